"""A made-up class, to see grading at work: nobody in it exists."""

import ast
import builtins
import contextlib
import copy
import functools
import hashlib
import inspect
import itertools
import random
import symtable
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import nbformat

from attncourse.checks import registry
from attncourse.checks.task import Fault, Task, answer_of, compose, is_change
from attncourse.checks.without_secrets import VERBS, bound, names, verb
from attncourse.grading import Refusal
from attncourse.grading.inbox.submission import Unreadable, grade_id_of, notebook_of
from attncourse.grading.inbox.submission import source_of as source_of_cell

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
BUILT_IN = frozenset(dir(builtins))
BROKEN = "def {name}(x)\n    return x  # the colon is missing above"


def source_of(answer: Callable, name: str) -> str:
    """The source of an answer under another name, with all it needs from its own module."""
    module = sys.modules[answer.__module__]
    needed = copy.deepcopy(_needed(_statements(module), {answer.__name__}, vars(module)))
    if vars(module).get(answer.__name__) is not answer:
        raise KeyError(answer.__name__)
    for node in needed:
        for part in ast.walk(node):  # it may call itself
            if isinstance(part, ast.Name) and part.id == answer.__name__:
                part.id = name
        if answer.__name__ in bound(node):
            node.name = name
    return _text(needed)


def source_of_fault(fault: Fault, place: int = 0) -> str:
    """A form of a misconception as a student might hand it in, with all it needs.

    Raises:
        LookupError: it is made by a function, and stands nowhere as it is.
    """
    task, form = registry.find(fault.task), fault.forms[place]
    if not inspect.signature(task.reference).parameters:  # a receipt: it is what it returns
        return f"def {task.name}():\n    return {answer_of(task, form)()!r}"
    source = _source(task, fault, place) if is_change(task, form) else source_of(form, task.name)
    if missing := _unbound(symtable.symtable(source, "", "exec")):
        raise LookupError(f"{fault.id} needs {', '.join(missing)}")
    return source


def _unbound(table: symtable.SymbolTable, known: frozenset[str] = BUILT_IN) -> set[str]:
    """Names that a piece of code looks up outside of itself."""
    if table.get_type() == "module":
        known |= {each.get_name() for each in table.get_symbols() if each.is_assigned()}
        known |= {each.get_name() for each in table.get_symbols() if each.is_imported()}
    used = {each.get_name() for each in table.get_symbols() if each.is_global()}
    return (used - known).union(*(_unbound(each, known) for each in table.get_children()))


def _source(task: Task, fault: Fault, place: int) -> str:
    """The steps of a task, some of them changed, as one program."""
    form = fault.forms[place]
    module, steps = sys.modules[task.module], task.composed.__name__
    nodes, known = _statements(module), vars(module)
    if isinstance(form, type):
        faulty, needed = form.__name__, _needed(nodes, {form.__name__}, known)
    else:
        faulty = f"Wrong{steps}"
        body = _changes(task, fault, place)
        needed = _needed(nodes, {steps}.union(*map(names, body)), known)
        needed.append(ast.parse(f"class {faulty}({steps}): pass").body[0])
        needed[-1].body = body
    for node in needed:
        if bound(node) & {steps, faulty}:
            _mark_static(node)
    if isinstance(task.reference, type):
        door = f"class {task.name}({faulty}): pass"
    else:
        door = _door(task.name, inspect.signature(compose(task, form)), faulty)
    return _text([*needed, *ast.parse(door).body])


def _door(name: str, signature: inspect.Signature, faulty: str) -> str:
    """A function that hands its arguments to steps that it has made once."""
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    takes, gives = [], []
    for each in signature.parameters.values():
        takes.append(str(each))
        gives.append(star.get(each.kind, "") + each.name)
    last = len(takes) - 1 if takes[-1].startswith("**") else len(takes)
    starred = any(each.startswith("*") for each in takes[:last])
    takes.insert(last, f"steps={faulty}()" if starred else f"*, steps={faulty}()")
    return f"def {name}({', '.join(takes)}): return steps({', '.join(gives)})"


def _text(nodes: list[ast.stmt]) -> str:
    return "\n\n\n".join(ast.unparse(node) for node in nodes)


@functools.cache
def _statements(module: ModuleType) -> list[ast.stmt]:
    """A module's statements; what it has from other files of tasks stands in front of them."""
    found = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(registry.COURSE):
            found += _statements(sys.modules[node.module]) if node.module in sys.modules else []
        else:
            found.append(node)
    return found


def _says(call: ast.AST, known: dict) -> bool:
    """Whether a call says something about a task: `task.fault(…)`, or a part of it by a name."""
    if verb(call) in VERBS:
        return True
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return False
    return _of_task(known.get(call.func.id))


def _of_task(value: object) -> bool:
    """Whether a name of a module stands for the task, or for one of its verbs."""
    said = isinstance(value, functools.partial) and value.func.__name__ in VERBS
    return said or isinstance(value, Task)


def _needed(nodes: list[ast.stmt], wanted: set[str], known: dict) -> list[ast.stmt]:
    """The statements that give these names a meaning, and all that those need, in their order."""
    binds = {name: node for node in nodes for name in bound(node) if not _of_task(known.get(name))}
    needed, todo = [], [name for name in wanted if name in binds]
    while todo:
        node = binds[todo.pop()]
        if node not in needed:
            needed.append(node)
            said = [names(each) for each in _said(node, known)]
            todo += names(node).difference(*said) & binds.keys()
    found = [_copy(node) for node in nodes if node in needed]
    for node in found:
        if said := _said(node, known):
            node.decorator_list = [each for each in node.decorator_list if each not in said]
    return found


def _copy(node: ast.stmt) -> ast.stmt:
    """A copy as deep as what is changed there: of a statement, and of those in a class."""
    node = copy.copy(node)
    if isinstance(node, ast.ClassDef):
        node.body = [copy.copy(each) for each in node.body]
    return node


def _said(node: ast.stmt, known: dict) -> list[ast.expr]:
    """The decorators by which a statement says something about a task."""
    return [each for each in getattr(node, "decorator_list", ()) if _says(each, known)]


@functools.cache
def _calls_by_fault(module: ModuleType) -> dict[str, ast.Call]:
    """What a module says of its task, itself or by a function of another file, by a fault's id."""
    nodes, known, found = ast.parse(inspect.getsource(module)).body, _known(module), {}
    for function in _sharing(nodes, known):
        nodes += ast.parse(inspect.getsource(function)).body
    for call in (part for node in nodes for part in ast.walk(node) if _says(part, known)):
        if isinstance(call, ast.Call) and call.args:
            # A name may be that of a function which says it of several tasks.
            with contextlib.suppress(NameError):
                who = eval(compile(ast.Expression(call.args[0]), "", "eval"), known)
                found.setdefault(str(getattr(who, "id", who)), call)
    return found


def _sharing(nodes: list[ast.stmt], known: dict) -> Iterator[FunctionType]:
    """The functions of other files that say something of a module's task: `of_masks(task)`."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = known.get(getattr(node.value.func, "id", ""))
            told = [known.get(getattr(each, "id", "")) for each in node.value.args[:1]]
            if isinstance(function, FunctionType) and all(map(_of_task, told)) and told:
                yield function


def _known(module: ModuleType) -> dict:
    """What the names of a module stand for, and those of the files of tasks that it uses."""
    homes = {getattr(each, "__module__", "") for each in vars(module).values()}
    found: dict = {}
    for name in sorted(home for home in homes if str(home).startswith(f"{registry.COURSE}.")):
        found |= vars(sys.modules[name])
    return found | vars(module)


def _changes(task: Task, fault: Fault, place: int) -> list[ast.stmt]:
    """What one form of a fault says of the steps, as statements of a class."""
    module, form = sys.modules[task.module], fault.forms[place]
    call, known = _calls_by_fault(module).get(fault.id), _known(module)
    steps = {each.arg: each.value for each in call.keywords if each.arg in form} if call else {}
    if steps.keys() != form.keys():
        raise LookupError(fault.id)
    body = []
    for step, value in steps.items():
        text = ast.unparse(value)
        if isinstance(value, ast.Tuple):
            text = f"({text})[{min(place, len(eval(text, dict(known))) - 1)}]"
        if isinstance(form[step], staticmethod):
            text = f"staticmethod({text})"
        body += ast.parse(f"{step} = {text}").body
    return body


def _mark_static(node: ast.ClassDef) -> None:
    """A step without `self` is a static method: here nobody makes it one."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            first = (each.args.posonlyargs + each.args.args)[:1]
            if not first or first[0].arg != "self":
                each.decorator_list = [ast.Name("staticmethod")]


def _sources(task: Task) -> Iterator[dict[str, str]]:
    """The wrong answers to a task that have a source of their own."""
    for fault in task.faults.values():
        with contextlib.suppress(LookupError):
            yield {task.name: source_of_fault(fault)}


def students(tasks: list[str], chance: random.Random) -> Iterator[dict[str, str | None]]:
    """Answers by task, student after student: None = as the course would write it, '' = empty."""
    wrong = [source for name in tasks for source in _sources(registry.find(name))]
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
                    answers |= mistake
            case 6:
                half = len(tasks) // 2 if number > 8 else 0  # the first of them never started
                answers |= dict.fromkeys(tasks[half:], "")
            case 7:
                answers[tasks[0]] = BROKEN.format(name=tasks[0])
        yield answers


def write_class(assignment: str, size: int, seed: int = 3) -> int:
    """Write `size` submissions into submitted/; returns how many were not there already.

    Raises:
        Refusal: somebody's own work is there; nothing is written then.
    """
    released = nbformat.read(Path("exercises", assignment, f"{assignment}.ipynb"), as_version=4)
    solution = nbformat.read(Path("solutions", assignment, f"{assignment}.ipynb"), as_version=4)
    right = {grade_id_of(cell): cell.source for cell in solution.cells if grade_id_of(cell)}
    tasks = [name for name in registry.all_tasks() if name in right]
    made: dict[Path, str] = {}
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
        folder = Path("submitted", f"student{number:02}", assignment)
        made[folder / f"{assignment}.ipynb"] = _signed(notebook)
    if theirs := [path for target in made for path in _of_others(target)]:
        raise Refusal(
            f"{theirs[0]} is not as sample-class wrote it, so it may be somebody's work, and "
            "stays. Move it out of submitted/, or make up the class in a copy of the course"
        )
    new = {
        path: text
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in new.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(text, encoding="utf-8")
        path.with_suffix(".part").replace(path)
    return len(new)


def _signed(notebook: nbformat.NotebookNode) -> str:
    """Its text, with the mark by which we know that nobody has changed it."""
    notebook.metadata["made_up"] = _digest(notebook.cells)
    return nbformat.writes(notebook) + "\n"


def _digest(cells: list[dict]) -> str:
    return hashlib.sha256("\0".join(map(source_of_cell, cells)).encode()).hexdigest()


def _of_others(target: Path) -> list[Path]:
    """What stands in the way of a made-up notebook, and is none."""
    folders = [target.parent.parent, target.parent]
    links = [folder for folder in folders if folder.is_symlink()]
    return links or [path for path in target.parent.glob("*.ipynb") if not _is_made_up(path)]


def _is_made_up(path: Path) -> bool:
    try:
        notebook = notebook_of(path.read_bytes())
        return notebook.says["metadata"]["made_up"] == _digest(notebook.cells)
    except (OSError, Unreadable, LookupError, TypeError, UnicodeEncodeError):
        return False
