"""A student's notebook as it really arrives, and the assignment it should be.

Nothing here runs a student's code, and nothing a student can write stops it: what cannot be read
becomes a reason why a person should look.
"""

import ast
import contextlib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attncourse.checks.answer_files import DEFINITIONS, plain_python
from attncourse.grading import Refusal
from attncourse.grading.inbox import written
from attncourse.grading.inbox.cells import (
    DEFINES,
    MARKER,
    grade_id_of,
    parsed,
    remembered,
    source_of,
    text_of,
    unmarked,
)
from attncourse.grading.inbox.written import Written

if TYPE_CHECKING:
    from attncourse.checks.task import Task

LARGEST = 64 * 2**20  # bytes of a notebook that we are willing to read
MOST_CELLS = 10_000
MOST_VALUES = 4_000_000  # of JSON: each takes a hundred bytes or so
MOST_CODE = 2 * 2**20  # bytes of all its code; a table of 200,000 numbers fits
MOST_WORDS = 500_000  # and signs in it: a syntax tree takes a kilobyte for each
_OF_COURSE = re.compile(r"\battncourse(?:\.\w+)+")
_WORD = re.compile(r"\d[\w.]*|\w+|[^\w\s]")


class Unreadable(Exception):
    """A file that is no notebook; says why."""


class OtherPoints(Refusal):
    """What a cell is worth is not known, or two places disagree; says which, and what to do."""


@dataclass(frozen=True)
class Graded:
    """A task of an assignment, and the two cells of the gradebook that book its points."""

    task: str  # its name
    visible: str  # grade ids
    hidden: str
    points: float  # of each
    seed: int  # of the numbers nobody has seen


@dataclass(frozen=True)
class Assignment:
    """What the instructor's notebook says."""

    name: str
    graded: tuple[Graded, ...]
    questions: dict[str, float]  # grade id of a written answer -> points
    released: dict[str, str]  # cell's id or grade id -> source, as students get it

    @property
    def tasks(self) -> list[str]:
        return [each.task for each in self.graded]

    @functools.cached_property
    def stubs(self) -> dict[str, str]:
        """Task -> the code of its cell as students get it."""
        return {task: code_of(self.released.get(task, "")) for task in self.tasks}

    @functools.cached_property
    def allowed(self) -> tuple[str, ...]:
        """Full names of what its notebook uses of the course, or imports."""
        return named_in(self.released.values())

    @property
    def points(self) -> float:
        return sum(2 * each.points for each in self.graded) + sum(self.questions.values())


def assignment_of(name: str, solution: dict, released: dict) -> Assignment:
    """Read an assignment from its notebooks in solutions/ and exercises/.

    Points are those of the release: `check_points` sees that they are the tasks' own.

    Raises:
        Refusal: a cell with points is not as it should be.
    """
    checks: dict[str, dict[bool, tuple[str, int]]] = {}
    questions = {}
    for mark, source in _graded_cells(solution, f"solutions/{name}"):
        if mark.get("solution"):
            questions[mark["grade_id"]] = _worth(mark)
        else:
            task, seed = _checked(name, mark, source)
            checks.setdefault(task, {})[seed is not None] = mark["grade_id"], seed or 0
    for task, both in checks.items():
        if len(both) < 2:
            raise Refusal(f"solutions/{name} needs a check of {task} with a seed and one without")
    marks = (mark for mark, _ in _graded_cells(released, f"exercises/{name}"))
    worth = {mark["grade_id"]: _worth(mark) for mark in marks}
    graded = tuple(
        Graded(task, both[False][0], both[True][0], worth.get(both[False][0], 0.0), both[True][1])
        for task, both in checks.items()
    )
    sources = {grade_id_of(cell) or cell.get("id"): source_of(cell) for cell in released["cells"]}
    return Assignment(name, graded, questions, sources)


def check_points(
    name: str, solution_text: str, released_text: str = "", tasks: bool = True
) -> None:
    """See that nobody disagrees about points.

    A task's stand in its file, and the release copies them; a written answer's in the solution.

    Args:
        tasks: look into the tasks' files, too, for which torch is loaded.

    Raises:
        OtherPoints: the solution says something else of a task, or the release of a cell.
    """
    solution = json.loads(solution_text)
    worth: dict[str, float | None] = {}  # None: as much as the release says
    for mark, source in _graded_cells(solution, f"solutions/{name}"):
        points = _worth(mark)
        if not mark.get("solution"):
            points = _points_of_task(name, mark, points, source) if tasks else None
        worth[mark["grade_id"]] = points
    released_now = json.loads(released_text) if released_text else {"cells": ()}
    for mark, _ in _graded_cells(released_now, f"exercises/{name}"):
        released, now = _worth(mark), "gone"
        if mark["grade_id"] in worth:
            wanted = worth.pop(mark["grade_id"])
            if wanted in (None, released):
                continue
            now = f"worth {wanted:g}"
        raise OtherPoints(
            f"{mark['grade_id']} was released with {released:g} points, and is {now} now; "
            f"run `attncourse release {name}`"
        )
    if released_text and worth:
        raise OtherPoints(
            f"{', '.join(worth)} is not in exercises/{name} yet; run `attncourse release {name}`"
        )


def _points_of_task(name: str, mark: dict, points: float, source: str) -> float:
    """What a check is worth; the solution may say the same of it, or 0."""
    from attncourse.checks import registry  # with torch, which who reads notebooks need not load

    wanted, _ = _checked(name, mark, source)
    try:
        task = registry.find(wanted)
    except ValueError as error:
        raise OtherPoints(f"the cell {mark['grade_id']} of solutions/{name}: {error}") from None
    if points not in (0, task.points):
        raise OtherPoints(
            f"{mark['grade_id']} has {points:g} points in solutions/{name}, and its task "
            f"{task.points:g}. A task's points are the sum of its checks', in its file "
            f"{task.module.replace('.', '/')}.py: change them there, and write 0 here"
        )
    return task.points


def _graded_cells(notebook: dict, where: str) -> Iterator[tuple[dict, str]]:
    for number, cell in enumerate(notebook["cells"], start=1):
        mark = cell["metadata"].get("nbgrader")
        if isinstance(mark, dict) and mark.get("grade"):
            has_points = isinstance(mark.get("points"), int | float | None)
            if not (isinstance(mark.get("grade_id"), str) and has_points):
                raise Refusal(f"cell {number} of {where} has points, but no grade_id or no number")
            yield mark, source_of(cell)


def _worth(mark: dict) -> float:
    return float(mark.get("points") or 0)


def _checked(name: str, mark: dict, source: str) -> tuple[str, int | None]:
    """Which task a cell checks, and with which seed; None if students see the check."""
    for node in ast.walk(parsed(source) or ast.Module([], [])):
        match node:
            case ast.Call(func=ast.Name("check"), args=[ast.Constant(str(task))], keywords=[]):
                return task, None
            case ast.Call(
                func=ast.Name("check"),
                args=[ast.Constant(str(task))],
                keywords=[ast.keyword("seed", ast.Constant(int(seed)))],
            ):
                return task, seed
    raise Refusal(
        f"the cell {mark['grade_id']} of solutions/{name} has points and should be "
        '`check("TASK")` or `check("TASK", seed=NUMBER)`'
    )


def course_notebook(path: Path) -> tuple[str, dict]:
    """The text and the JSON of one of the course's own notebooks.

    Raises:
        Refusal: it is none, as after a merge.
    """
    data = path.read_bytes()
    try:
        text = data.decode()
        notebook = json.loads(text)
        whole = all(isinstance(cell["metadata"], dict) for cell in notebook["cells"])
    except (KeyError, TypeError):
        whole = False
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path} cannot be read: {_why_no_json(data)} ({error})") from None
    if not whole:
        raise Refusal(f"{path} cannot be read: not every cell has its metadata")
    return text, notebook


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notebook:
    """A file with a notebook in it, parsed."""

    data: bytes  # the file
    says: dict  # its JSON
    cells: list[dict]  # whatever its version


@dataclass
class Submission:
    """A notebook, read once: all that is asked of it later is asked of this."""

    cells: list[dict] = field(default_factory=list)  # as they were handed in
    code: list[tuple[str, str, bool]] = field(default_factory=list)  # label, source, run all of it
    untouched: set[str] = field(default_factory=set)  # tasks whose cell is as it was released
    written: dict[str, Written] = field(default_factory=dict)  # grade id -> what answers it
    repairs: list[str] = field(default_factory=list)  # what was odd, and is dealt with
    review: list[str] = field(default_factory=list)  # what a person should look at

    @property
    def texts(self) -> dict[str, str]:
        """Grade id -> written answer; "" where there is none."""
        return {question: each.text for question, each in self.written.items()}


def notebook_of(data: bytes) -> Notebook:
    """Parse a file.

    Raises:
        Unreadable: it is not a notebook.
    """
    if len(data) > LARGEST:
        raise Unreadable(
            f"it has {len(data) / 2**20:.0f} MiB, and more than {LARGEST / 2**20:.0f} are not read"
        )
    if not data.strip():
        raise Unreadable("the file is empty")
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise Unreadable("it holds millions of values: its outputs must be cleared")
    try:
        notebook = json.loads(data.decode("utf-8-sig", errors="replace"))
    except RecursionError:
        raise Unreadable("its JSON is nested too deeply") from None
    except ValueError:
        raise Unreadable(_why_no_json(data)) from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):  # version 3
        sheets = [sheet for sheet in notebook["worksheets"] if isinstance(sheet, dict)]
        cells = [cell for sheet in sheets for cell in sheet.get("cells", [])]
    if not isinstance(cells, list):
        raise Unreadable("it has no cells: not a notebook")
    if len(cells) > MOST_CELLS:
        raise Unreadable(f"it has {len(cells):,} cells, and more than {MOST_CELLS:,} are not read")
    cells = [cell for cell in cells if isinstance(cell, dict)]
    code = [source_of(cell) for cell in cells if may_be_code(cell)]
    size = sum(len(source.encode(errors="replace")) for source in code)
    if size > MOST_CODE:
        raise Unreadable(
            f"it has {size / 2**20:.1f} MiB of code, and more than {MOST_CODE / 2**20:.0f} MiB "
            "are not read: data belongs into a file of its own"
        )
    if sum(map(_words, code)) > MOST_WORDS:
        raise Unreadable(
            f"it has more than {MOST_WORDS:,} words and signs of code, and is not read: "
            "data belongs into a file of its own"
        )
    return Notebook(data, notebook, cells)


def _why_no_json(data: bytes) -> str:
    merged = re.search(rb"^(<{7}|>{7}) ", data, re.MULTILINE)
    return "it has the marks of a merge conflict in it" if merged else "its JSON is broken"


def may_be_code(cell: dict) -> bool:
    """Whether Python may stand in a cell: an editor may have turned an answer into text."""
    return cell.get("cell_type") != "markdown" or DEFINES.search(source_of(cell)) is not None


def _words(source: str) -> int:
    """An upper bound for how large a syntax tree gets, without making it; a line weighs most."""
    return 2 * source.count("\n") + sum(1 for _ in _WORD.finditer(source))


def read(data: bytes, about: Assignment) -> Submission:
    """Find the answers in a notebook: by grade id, else by the marker in the text, else by name.

    Raises:
        Unreadable: it is not a notebook.
    """
    return answers_in(notebook_of(data).cells, about)


def answers_in(cells: list[dict], about: Assignment) -> Submission:
    """The same, in the cells of a notebook."""
    found = Submission(cells, written=written.answers(cells, about))
    released = {plain_python(source) for source in about.released.values()}
    answers: dict[str, list[int]] = {task: [] for task in about.tasks}  # places in found.code
    for number, cell in enumerate(found.cells, start=1):
        label, source, grade_id = f"cell {number}", source_of(cell), grade_id_of(cell)
        is_code = text_of(cell) is None
        if grade_id in about.questions and not (is_code and parsed(plain_python(source))):
            continue
        marker = MARKER.search(source)
        if marker and marker[4]:
            continue  # a cell of the judge
        if not is_code and not may_be_code(cell):
            continue
        source = plain_python(unmarked(source))
        defines = defined_in(source)
        name = grade_id if grade_id in answers else None
        if name is None and marker and marker[1] == about.name and marker[2] in answers:
            name = marker[2]
        if not is_code:
            if name not in defines:
                continue
            found.repairs.append(f"{label} holds the answer `{name}`, but is not a code cell")
        if name is None and (here := [task for task in defines if task in answers]):
            name = here[0]
            found.repairs.append(f"{label} answers `{name}`, but has lost its marks")
        if name:
            answers[name].append(len(found.code))
            if name not in defines:
                other = ", ".join(f"`{each}`" for each in defines) or "nothing"
                found.review.append(f"{label} should define `{name}`, but defines {other}")
        found.code.append((label, source, bool(name) or source not in released))
    dropped = set()
    for name, places in answers.items():
        stubs_here = {
            place for place in places if code_of(found.code[place][1]) == about.stubs[name]
        }
        if not places:
            found.review.append(f"no cell answers `{name}`")
        elif len(stubs_here) == len(places):
            found.untouched.add(name)
        else:
            dropped |= stubs_here  # one that was copied below the answer would hide it
            if len(places) - len(stubs_here) > 1:
                found.repairs.append(f"`{name}` is answered {len(places)} times; the last counts")
    found.code = [cell for place, cell in enumerate(found.code) if place not in dropped]
    found.review += [each.review for each in found.written.values() if each.review]
    found.repairs += [each.repair for each in found.written.values() if each.repair]
    return found


def defined_in(source: str) -> list[str]:
    """The names of functions, classes and variables that a cell defines at its top level."""
    if tree := parsed(source):
        with contextlib.suppress(RecursionError):  # a long chain of `elif`
            return list(dict.fromkeys(name for node in tree.body for name in _defined_by(node)))
    return DEFINES.findall(source)


def only_defines(source: str) -> bool:
    """Whether nobody misses what a cell shows: it imports and defines, or offers hints."""
    if not (tree := parsed(plain_python(source))):
        return False

    def offers(node: ast.stmt) -> bool:
        call = node.value if isinstance(node, ast.Expr) else None
        return isinstance(call, ast.Call) and getattr(call.func, "id", "") == "hint"

    quiet = (*DEFINITIONS, ast.Assign)
    return all(isinstance(node, quiet) or offers(node) for node in tree.body)


def all_defines(source: str) -> bool:
    """Whether a cell holds imports and definitions only: it shows what these print or draw."""
    tree = parsed(source)
    return tree is not None and all(isinstance(node, DEFINITIONS) for node in tree.body)


def _defined_by(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = (part for target in targets for part in ast.walk(target))
        yield from (x.id for x in parts if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store))
    else:  # an `if`, a loop, `with`, `try`
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        for inner in (each for block in blocks for each in block):
            yield from _defined_by(inner)


@remembered(100)
def code_of(source: str) -> str:
    """A cell's code without comments and spacing, to see whether it was touched."""
    if tree := parsed(plain_python(source)):
        with contextlib.suppress(RecursionError, ValueError):  # many dots, or many digits
            return ast.dump(tree)
    return source


# --- what a person should look at ---------------------------------------------------------------


def named_in(released: Iterable[str]) -> tuple[str, ...]:
    """Full names of what a released notebook imports, or speaks of from the course."""
    sources = [plain_python(source) for source in released]
    names = {name for source in sources for name in _OF_COURSE.findall(source)}
    aliases = {}
    for source in sources:
        aliases |= _imports(source)
        names.update(_imports(source).values())
    for tree in filter(None, map(parsed, sources)):  # `lab.measure` is attncourse.lab.measure
        parts = (part for part in ast.walk(tree) if isinstance(part, ast.Attribute))
        used = (_dotted(part, aliases) for part in parts)
        names.update(name for name in used if name.startswith("attncourse."))
    return tuple(sorted(names))


def odd_code(code: Sequence[tuple[str, str, bool]], tasks: "list[Task]") -> list[str]:
    """Why a person should look at a student's own cells: what no answer needs, and could hide one.

    It decides no points: what is ready-made refuses where it is called (see withheld).

    Args:
        code: label and source of a cell, and whether it is the student's own.
    """
    trees, aliases, reasons = [], {}, []
    forbidden = {part for task in tasks for part in task.forbidden}
    for label, source, own in code:
        if tree := parsed(source):
            aliases |= _imports(source)
            trees += [(label, source, tree)] * own
    aside = ASIDE if forbidden else ()
    gives = (*HIDING, *aside)
    inside, scripted = INSIDE, False
    if "autograd.grad" in forbidden:
        inside = INSIDE | NODES
        scripted = any(own and _DERIVATIVE.search(source) for _, source, own in code)
    tops = {full.partition(".")[0] for full in aliases.values()}
    for label, source, tree in trees:
        answers = {task.name for task in tasks}.intersection(defined_in(source))
        odd: dict[str, None] = {}
        parts = [part for part in ast.walk(tree) if not isinstance(part, _SIGNS)]
        inner = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
        asked = {id(owner) for part in parts if (owner := _asked(part))}
        for name in _imports(source).values():
            top = name.partition(".")[0]
            if top in NATIVE or (name.endswith(".*") and (top in OTHERS or _holds(top, gives))):
                odd[f"imports `{name[:100]}`"] = None
        for part in parts:
            dotted = "" if id(part) in inner else _dotted(part, aliases)
            for name in _endings(dotted, tops):  # torch.sys.modules is sys.modules, too
                if (
                    (name in HIDING and (name == dotted or "." in name))  # torch.compile is none
                    or (name.startswith(aside) and not name.startswith("torch.__"))
                    or (answers and name in IN_ANSWERS)
                ):
                    odd[f"uses `{dotted[:100]}`"] = None
                elif (
                    isinstance(getattr(part, "ctx", None), ast.Load)
                    and id(part) not in asked
                    and _holds(name, gives)
                ):
                    odd[f"hands on `{dotted[:100]}`"] = None  # from here on by another name
            if scripted and f"{dotted}.".startswith("torch.jit."):
                odd["differentiates in TorchScript"] = None
            text = getattr(part, "value", "") if isinstance(part, ast.Constant) else ""
            if isinstance(text, str) and text.startswith(aside) and text.isprintable():
                odd[f"names `{text[:100]}`"] = None
            for name in inside.intersection(_names_in(part)):
                odd[f"uses `{name}`"] = None
            if changed := _changes(part, aliases):
                odd[f"changes `{changed[:100]}`"] = None
            if answers and aside and _looks_up(part):
                odd["looks up a name that is made as it runs"] = None
        if odd:
            reasons.append(f"{label} {', '.join([*odd][:5])}")
    return reasons


# Half of a tree's nodes: signs, and what becomes of a name. None of them names anything.
_SIGNS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
# What a notebook of these tasks never needs, and what could hide a call from us.
HIDING = {
    *("exec", "eval", "compile", "__import__", "sys.modules", "resource.setrlimit"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "operator.attrgetter"),
    *("operator.methodcaller", "importlib.import_module", "importlib.reload"),
    *("importlib.util.module_from_spec", "importlib.util.spec_from_file_location"),
    *("inspect.currentframe", "inspect.stack", "traceback.walk_stack", "sys._current_frames"),
    *("sys.settrace", "sys.setprofile", "threading.setprofile", "threading.settrace"),
}
NATIVE = {"ctypes", "_ctypes", "cffi"}  # what lies below torch's operators
IN_ANSWERS = {"globals", "vars"}
# Attributes that lead from an object to what was not given to the answer.
INSIDE = {
    *("__globals__", "__closure__", "__code__", "cell_contents", "tb_frame", "f_back", "f_locals"),
    *("f_globals", "gi_frame", "cr_frame", "__subclasses__", "__kwdefaults__", "_getframe"),
    *(*NATIVE, "ctypeslib", "PyDLL", "CDLL"),  # other modules have imported it
}
# Where a task may not be done by a derivative: ways to one around torch's functions.
NODES = {
    *("grad_fn", "next_functions", "_execution_engine", "_engine_run_backward", "run_backward"),
    *("get_gradient_edge", "GradientEdge", "_get_grad_fn_or_grad_acc"),
}
_DERIVATIVE = re.compile(r"\b(?:grad|backward)\s*\(")  # TorchScript has one of its own
# Where a ready-made function could still be had: in another Python, and where torch and the course
# keep their own definitions. Threads and forks do not help, since it refuses there, too.
ASIDE = (
    *("subprocess.", "multiprocessing.", "torch.multiprocessing.", "os.system", "os.popen"),
    *("os.exec", "os.posix_spawn", "torch._", "torch.ops.", "torch.overrides.", "torch.utils._"),
    *("torch.library.", "torch.export.", "torch.fx.", "attncourse.grading", "attncourse.tasks"),
    "torch.distributed.",  # it has an engine of its own
    *("attncourse.checks.observe.observe", "attncourse.checks.observe.differentiate"),
    *("attncourse.checks.task", "attncourse.checks.engine", "attncourse.checks.registry"),
)
OTHERS = ("torch", "attncourse", "builtins")  # they belong to the judge, too


def _names_in(node: ast.AST) -> list[str]:
    """The attributes that it names, also in a text: "f_back.f_locals", or in a pattern."""
    match node:
        case ast.Constant(value=str(text)):
            return text.split(".")
        case ast.MatchClass(kwd_attrs=names):
            return names
        case ast.ImportFrom(names=aliases):
            return [alias.name for alias in aliases]
    return [getattr(node, "attr", "")]


def _asked(node: ast.AST) -> ast.AST | None:
    """What `getattr` is asked of, which by itself hands on nothing."""
    match node:
        case ast.Call(func=ast.Name("getattr" | "hasattr"), args=[owner, *_]):
            return owner
    return None


def _endings(dotted: str, tops: set[str]) -> list[str]:
    """A full name, and what it may be another name for: modules hold what they have imported."""
    parts = dotted.split(".")
    return [".".join(parts[place:]) for place in range(len(parts) if parts[0] in tops else 1)]


def _holds(module: str, names: Iterable[str]) -> bool:
    """Whether one of these names stands in a module."""
    return bool(module) and any(name.startswith(f"{module}.") for name in names)


def _changes(node: ast.AST, aliases: dict[str, str]) -> str:
    """What it puts in the place of something that was imported."""
    match node:
        case ast.Call(func=ast.Name("setattr" | "delattr"), args=[owner, *_]):
            full = _dotted(owner, aliases)
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            full = _dotted(node, aliases)
        case _:
            return ""
    ours = full.partition(".")[0] in OTHERS and not full.startswith("torch.backends.")
    return full if ours else ""


def _looks_up(node: ast.AST) -> bool:
    """Whether this is `getattr` with a name that cannot be read."""
    match node:
        case ast.Call(func=ast.Name("getattr"), args=[_, name, *_]):
            return not isinstance(name, ast.Constant)
    return False


@remembered(100)
def _imports(source: str) -> dict[str, str]:
    """Local name -> full name, of everything that is imported anywhere."""
    found = {}
    tree = parsed(source) if "import" in source else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """The full name of `F.softmax` or `getattr(F, "softmax")`; "" for anything else."""
    names: list[str] = []
    while not isinstance(node, ast.Name):  # not by recursion: somebody may chain a thousand
        match node:
            case ast.Attribute(value=owner, attr=name):
                names.append(name)
            case ast.Call(func=ast.Name("getattr"), args=[owner, ast.Constant(str(name)), *_]):
                names.append(name)
            case _:
                return ""
        node = owner
    return ".".join([aliases.get(node.id, node.id), *reversed(names)])
