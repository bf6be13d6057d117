"""Making the executed notebook of one submission: nothing in it decides points.

The student's cells run in a jailed child of their own. The judge's are not run: they show the
reports of the score path.
"""

import contextlib
import json
import time

from attncourse.checks.answer import NO_GPU
from attncourse.grading import CannotGrade
from attncourse.grading.inbox import restore
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import Assignment, Submission
from attncourse.grading.inbox.untrusted import printable
from attncourse.grading.jail import page
from attncourse.grading.jail.job import TRIES, Budget
from attncourse.grading.jail.remote import Died, Killed, Zygote
from attncourse.grading.jail.result import Result
from attncourse.grading.jail.walls import Unavailable

CELL_SECONDS = 5.0  # a cell that needs longer is stopped, and shows what the student saw
CELLS = 1000  # of a notebook


def executed(
    found: Submission,
    released: str,
    about: Assignment,
    result: Result,
    zygote: Zygote,
    budget: Budget,
) -> str:
    """Run a submission's cells, and put the judge's reports where they belong.

    Args:
        found: the notebook as it was handed in.
        released: the text of the notebook in exercises/.
        result: with its reports, as `score` returns it.

    Returns:
        The text of a notebook with nbgrader's marks, whatever became of the student's.

    Raises:
        Unavailable: no jail can be built on this machine.
        CannotGrade: what forks the children fails.
    """
    try:
        for _ in range(TRIES):
            try:
                text, disturbed = _executed(found, released, about, result, zygote, budget)
            except Killed as error:
                text = page.unread(released, about, result)
                disturbed = f"the process for it {error}"
            if not disturbed:
                break
        result.disturbed = result.disturbed or disturbed
        return text
    except (Unavailable, CannotGrade):
        raise
    except Exception as error:  # a fault of ours in what is only shown costs nobody the points
        said = printable(f"{type(error).__name__}: {error}")[:300]
        reason = f"no executed notebook could be made ({said})"
        result.review.append(f"{reason}; please report it")
        return page.unread(released, about, result)


def _executed(found, released, about, result, zygote, budget) -> tuple[str, str]:
    """The record, and what disturbed the making of it ("" if nothing did)."""
    cells, marked = found.cells[:CELLS], page.marked(released)
    names = {
        place: name
        for place, name in restore.recognize(cells, about, json.loads(released)).items()
        if not page.is_judge(marked[name]) or page.is_check(cells[place])
    }
    names, _ = restore.choose(cells, names, about)
    whole = {label: everything for label, _, everything in found.code}
    passed = [task for task, reports in result.reports.items() if reports[0].passed]
    record, count = [], 0
    silent = result.said is not None and all(
        reading.all_defines(reading.source_of(cell)) and f"cell {number}" not in result.said
        for number, cell in enumerate(cells, start=1)
        if whole.get(f"cell {number}")
    )
    student = _Student(None if silent else zygote, passed, budget.record, about.allowed)
    with contextlib.closing(student):
        for number, cell in enumerate(cells, start=1):
            name, label = names.get(number - 1), f"cell {number}"
            made = page.cell_of(cell, number, marked.get(name), about)
            if name and page.is_judge(made):
                made["outputs"] = page.judged(name, about, result)
            elif label in whole and name not in about.questions:
                made |= {"cell_type": "code", "outputs": [], "execution_count": None}
                made["outputs"] = student.run(cell) if whole[label] else student.define(cell)
                count += whole[label]
                made["execution_count"] = count if whole[label] else None
            record.append(made)
    places = {name: place for place, name in names.items()}
    boxes = {
        question: page.box(answer, places.get(question), found.cells)
        for question, answer in found.written.items()
        if answer.parts
    }
    return page.notebook_of(record, released, about, result, boxes), student.disturbed


# --- the student's child -------------------------------------------------------------------------


class _Student:
    """A child that runs whole cells. After the child's death no cell is run; that costs no point.

    Args:
        zygote: forks the child; None if all cells have shown nothing when they were judged.
        passed: the tasks of which `use` gives the student's answer.
        seconds: for all cells together.
        allowed: full names of what the released notebook uses.
    """

    def __init__(
        self,
        zygote: Zygote | None,
        passed: list[str],
        seconds: float,
        allowed: tuple[str, ...],
    ):
        self.deadline = time.monotonic() + seconds
        self.process, self.over, self.disturbed = zygote and zygote.fork([], allowed), "", ""
        self.room = page.Room()
        self._ask(10, "open", passed)

    def run(self, cell: dict) -> list[dict]:
        """Everything in a cell, and what it shows."""
        if not self.process:
            return []
        seconds = min(CELL_SECONDS, self.deadline - time.monotonic())
        if seconds <= 0 and not self.over:
            self.over = "the cells above have used up the time"
        if self.over:
            return [page.note(f"Not run: {self.over}"), *self.saved(cell)]
        reply = self._ask(seconds + 3, "show", reading.source_of(cell), seconds)
        if self.over:
            return [page.note(f"Nothing is run from here on: {self.over}"), *self.saved(cell)]
        shown = page.cleaned(reply, self.room)
        if isinstance(reply, dict) and reply.get("stopped") is True:
            return [*shown, page.note(f"Stopped after {seconds:.1f} seconds."), *self.saved(cell)]
        if any(NO_GPU.search(str(output.get("evalue"))) for output in shown):
            return self.saved(cell) or shown  # the student had one
        return shown

    def define(self, cell: dict) -> list[dict]:
        """Only what a cell of the course defines; what it showed was seen by the student."""
        if not self.over:
            self._ask(CELL_SECONDS, "define", reading.plain_python(reading.source_of(cell)))
        silent = reading.only_defines(reading.source_of(cell))
        nothing = [] if silent else [page.note("Not run here, and handed in without output.")]
        return self.saved(cell) or nothing

    def saved(self, cell: dict) -> list[dict]:
        """The outputs that a cell was handed in with, and a line that says so."""
        shown = page.cleaned({"outputs": cell.get("outputs")}, self.room)
        return shown and [page.note("Not run here. This is what the student saw:"), *shown]

    def _ask(self, seconds: float, *question) -> object:
        if not self.process:
            return None
        try:
            return self.process.ask(seconds, *question)
        except Died as error:
            self.over = f"a cell {error}"
            if isinstance(error, Killed):
                self.disturbed = f"the process that runs its cells {error}"
        return None

    def close(self) -> None:
        if self.process:
            self.process.kill()
