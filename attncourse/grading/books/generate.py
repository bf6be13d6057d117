"""Releases: exercises/ and the cells in the gradebook are made from solutions/, both or neither.

nbgrader's own step deletes the release before it makes another, and books cell after cell. Here it
works into a folder beside, and what it would book is one transaction.
"""

import contextlib
import copy
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import SaveCells
from nbgrader.utils import capture_log, temp_attrs

from attncourse.grading import Refusal
from attncourse.grading.books import nbgrader_api

RELEASED = Path("exercises")
KINDS = ("grade", "solution", "task", "source")  # of cells, in nbgrader's gradebook

Made = dict[str, NotebookNode]  # an assignment's notebooks, as the gradebook should know them


class NotReleased(Refusal):
    """nbgrader cannot make the assignment from solutions/; says why."""


def release(assignments: list[str], done: Callable[[], None] = lambda: None) -> None:
    """Make exercises/ASSIGNMENT from solutions/ASSIGNMENT, and tell the gradebook.

    Other files there stay. Where anything fails, all assignments are as they were.

    Args:
        done: called after each assignment.

    Raises:
        NotReleased: one cannot be made, or its cells must stay as they are.
        NoGradebook: the gradebook cannot be used.
    """
    RELEASED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=RELEASED) as beside:
        made = {}
        for name in assignments:
            made[name] = _generate(name, Path(beside, "new"), whole=True)
            done()
        with nbgrader_api.gradebook() as book:
            for name in assignments:
                _refuse_other_cells(book, name, made[name])
            with contextlib.ExitStack() as undo:
                with nbgrader_api.all_or_nothing(book):
                    for name in assignments:
                        _enter(book, name, made[name])
                        _swap(Path(beside), name, undo)
                undo.pop_all()


def register(book: Gradebook, assignment: str) -> None:
    """Tell a gradebook the cells of an assignment that it does not know; exercises/ stays.

    Raises:
        NotReleased: they cannot be read from solutions/.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        made = _generate(assignment, Path(nowhere), whole=False)
    _enter(book, assignment, made)


def _generate(assignment: str, folder: Path, whole: bool) -> Made:
    """Let nbgrader make an assignment in a folder.

    Args:
        whole: go on with what makes the students' notebook of what the gradebook knows.
    """
    made: Made = {}

    def keep(notebook: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        made[resources["nbgrader"]["notebook"]] = copy.deepcopy(notebook)
        return notebook, resources

    api = nbgrader_api.api()
    with temp_attrs(api.coursedir, assignment_id=assignment, release_directory=str(folder)):
        converter = GenerateAssignment(coursedir=api.coursedir, parent=api)
        converter.force = converter.no_database = True
        steps = converter.preprocessors
        names = [getattr(step, "__name__", str(step)).rpartition(".")[2] for step in steps]
        place = names.index(SaveCells.__name__)
        converter.preprocessors = [*steps[:place], keep, *(steps[place + 1 :] if whole else ())]
        if reason := _why_not(converter):
            raise NotReleased(
                f"nbgrader could not make {assignment} from solutions/, so exercises/ is as it "
                f"was: {reason}"
            )
    return made


def _why_not(converter: GenerateAssignment) -> str:
    """Run it quietly; returns why it failed, or ''."""
    silence = io.StringIO()
    with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
        result = capture_log(converter)
    if result["success"]:
        return ""
    log = (result.get("error") or "") + (result.get("log") or "")
    if re.search(r"^KeyboardInterrupt\b", log, re.MULTILINE):  # it catches that, too
        raise KeyboardInterrupt
    reasons = re.findall(r"^\s*([\w.]*(?:Error|Exception|Refusal): .+)$", log, re.MULTILINE)
    last = next((each for each in reversed(reasons) if "traceback" not in each), "")
    return re.sub(r"^[\w.]*Refusal: ", "", last) or "no reason given"


class _Cells(SaveCells):
    """nbgrader's step, for a gradebook that is open."""

    def __init__(self, book: Gradebook, assignment: str, name: str, notebook: NotebookNode):
        super().__init__()
        self.gradebook, self.assignment_id, self.notebook_id = book, assignment, name
        self.notebook = notebook
        for kind in KINDS:
            setattr(self, f"new_{kind}_cells", {})
        for number, cell in enumerate(notebook.cells):
            self.preprocess_cell(cell, {}, number)

    def of(self, kind: str) -> set[str]:
        return set(getattr(self, f"new_{kind}_cells"))

    def enter(self) -> None:
        self._create_notebook(self.notebook)


def _enter(book: Gradebook, assignment: str, made: Made) -> None:
    """Tell the gradebook all cells of an assignment."""
    for notebook in list(book.update_or_create_assignment(assignment).notebooks):
        if notebook.name not in made:
            book.remove_notebook(notebook.name, assignment)
    for name, notebook in made.items():
        _Cells(book, assignment, name, notebook).enter()


def _refuse_other_cells(book: Gradebook, assignment: str, made: Made) -> None:
    """nbgrader changes no cells that points may hang on; say it before it does.

    Raises:
        NotReleased: cells are new, gone, or of another kind, and there are submissions.
    """
    try:
        known = book.find_assignment(assignment)
    except MissingEntry:
        return
    before = {notebook.name: notebook for notebook in known.notebooks}
    if not known.submissions or not before:
        return
    gone, new, other = set(before.keys() - made), set(made.keys() - before), set()
    for name in before.keys() & made:
        now = _Cells(book, assignment, name, made[name])
        was = {kind: {c.name for c in getattr(before[name], f"{kind}_cells")} for kind in KINDS}
        gone |= was["source"] - now.of("source")
        new |= now.of("source") - was["source"]
        other |= {cell for kind in KINDS for cell in was[kind] ^ now.of(kind)}
    other -= gone | new
    changes = (("removed", gone), ("new", new), ("of another kind", other))
    said = "; ".join(f"{', '.join(sorted(cells))}: {what}" for what, cells in changes if cells)
    if said:
        raise NotReleased(
            f"nothing was released: in solutions/{assignment} some cells are not those that the "
            f"gradebook has points for ({said}), and {len(known.submissions)} students have "
            f"submissions there. Either give solutions/{assignment} the cells that it had; or "
            "begin the assignment anew, which costs all points and comments that a person gave, "
            "due date and extensions: keep a copy of gradebook.db, then "
            f"`nbgrader db assignment remove {assignment} --force`, "
            f"`attncourse release {assignment}` and `attncourse grade {assignment}`"
        )


def _swap(beside: Path, assignment: str, undo: contextlib.ExitStack) -> None:
    """Put what was made where students get it, file by file: at each moment there is one."""
    new, old = beside / "new" / assignment, beside / "old" / assignment
    files = sorted(path.relative_to(new) for path in new.rglob("*") if path.is_file())
    files.sort(key=lambda file: file.suffix == ".ipynb")  # a notebook comes after its data
    for file in files:
        target, before = RELEASED / assignment / file, old / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            before.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(target, before)
            undo.callback(os.replace, before, target)
        else:
            undo.callback(target.unlink, missing_ok=True)
        os.replace(new / file, target)
