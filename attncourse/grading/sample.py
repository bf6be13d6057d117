"""A made-up class, to see grading at work: nobody in it exists."""

import ast
import copy
import functools
import inspect
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import nbformat

from attncourse import misconceptions
from attncourse.checks import engine
from attncourse.grading.submission import grade_id_of

# Right, but not as the course would write it.
UNUSUAL = {
    "softmax": """
def softmax(scores, dim=-1):
    return torch.exp(scores - torch.logsumexp(scores, dim, keepdim=True))
""",
    "scaled_dot_product_attention": """
def scaled_dot_product_attention(query, key, value, mask=None):
    rows = []
    for j in range(key.shape[-2]):  # one key after the other
        rows.append((query * key[..., j : j + 1, :]).sum(-1))
    scores = torch.stack(rows, dim=-1) / query.shape[-1] ** 0.5
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    scores = torch.where(mask, scores, -1e9)
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp() * mask
    return weights @ value, weights
""",
}
BROKEN = "def {name}(x)\n    return x  # the colon is missing above"


def source_of(answer: Callable, name: str) -> str:
    """The source of an answer under another name, with all it needs from its own module."""
    statements = _statements(sys.modules[answer.__module__])
    binds = {bound: node for node in statements for bound in _bound(node)}
    needed, todo = [], [answer.__name__]
    while todo:
        node = binds[todo.pop()]
        if node not in needed:
            needed.append(node)
            used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            todo += used & binds.keys() - {"wrong", "collection"}
    written = copy.deepcopy([node for node in statements if node in needed])
    for node in written:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.decorator_list = [each for each in node.decorator_list if not _records(each)]
            if node.name == answer.__name__:
                node.name = name
        for part in ast.walk(node):  # it may call itself
            if isinstance(part, ast.Name) and part.id == answer.__name__:
                part.id = name
    return "\n\n\n".join(map(ast.unparse, written))


@functools.cache
def _statements(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement of a module gives a meaning to."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [part.id for each in targets for part in ast.walk(each) if isinstance(part, ast.Name)]


def _records(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "wrong"


def students(tasks: list[str], chance: random.Random) -> Iterator[dict[str, str | None]]:
    """Answers by task, student after student: None = as the course would write it, '' = empty."""
    wrong = [m for m in misconceptions.of_chapter(engine.find(tasks[0]).chapter)]
    chance.shuffle(wrong)
    mistakes = itertools.cycle(wrong)
    for number in itertools.count():
        answers: dict[str, str | None] = dict.fromkeys(tasks)
        match number % 8:
            case 0:
                pass  # everything right
            case 1:
                answers |= {name: code for name, code in UNUSUAL.items() if name in tasks}
            case 2 | 3 | 4 | 5:
                for mistake in itertools.islice(mistakes, 1 + number % 2):
                    answers[mistake.task] = source_of(mistake.answer, mistake.task)
            case 6:
                half = len(tasks) // 2 if number > 8 else 0  # the first of them never started
                answers |= dict.fromkeys(tasks[half:], "")
            case 7:
                answers[tasks[0]] = BROKEN.format(name=tasks[0])
        yield answers


def write_class(assignment: str, size: int, seed: int = 3) -> int:
    """Write `size` submissions into submitted/; returns how many were not there already."""
    released = nbformat.read(Path("exercises", assignment, f"{assignment}.ipynb"), as_version=4)
    solution = nbformat.read(Path("solutions", assignment, f"{assignment}.ipynb"), as_version=4)
    right = {grade_id_of(cell): cell.source for cell in solution.cells if grade_id_of(cell)}
    tasks = [name for name in engine.all_tasks() if name in right]
    written = 0
    for number, answers in enumerate(
        itertools.islice(students(tasks, random.Random(seed)), size), start=1
    ):
        notebook = nbformat.from_dict(released)
        started = any(code != "" for code in answers.values())
        for cell in notebook.cells:
            name = grade_id_of(cell)
            if name in answers and answers[name] != "":
                code = answers[name]
                marker = f"# attncourse: {assignment}/{name}\n"
                cell.source = right[name] if code is None else marker + code.strip("\n")
            elif started and name in right and cell.cell_type == "markdown":
                cell.source = "A made-up student would explain it here."
        path = Path("submitted", f"student{number:02}", assignment, f"{assignment}.ipynb")
        text = nbformat.writes(notebook) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written += 1
    return written
