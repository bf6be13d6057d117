"""What became of a class: points from the gradebook, diagnoses from the stored results."""

import collections
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from attncourse.checks import registry
from attncourse.checks.diagnosis import AND
from attncourse.checks.report import MIME
from attncourse.checks.task import Fault
from attncourse.grading.books import disk, nbgrader_api
from attncourse.grading.inbox import submission as reading
from attncourse.grading.jail.result import Result


@dataclass(frozen=True)
class Row:
    """One student's result."""

    student: str
    score: float | None  # points, less what being late costs; None if never graded
    max_score: float
    needs_reading: bool  # a person has to look at it, e.g. at a written answer
    wrong: dict[str, str]  # task -> id of the misconception, or what failed
    name: str = ""  # as the gradebook knows it
    late: float = 0.0  # points lost
    stale: bool = False  # graded before the file, the assignment or the course changed
    points: dict[str, float] = field(default_factory=dict)  # by the gradebook's cells
    unread: frozenset[str] = frozenset()  # those cells that wait for a person
    result: Result | None = None  # None if nbgrader itself graded it

    @property
    def thoughts(self) -> list[tuple[str, str]]:
        """(task, id or what failed): of two misconceptions at once both."""
        return [(task, each) for task, title in self.wrong.items() for each in title.split(AND)]


def diagnoses(notebook: Path) -> dict[str, str]:
    """The titles of the diagnoses in a notebook that nbgrader itself has executed, by task.

    Anything may stand in one: what cannot be read says nothing.
    """
    found = {}
    damaged = (reading.Unreadable, LookupError, TypeError, AttributeError)
    with contextlib.suppress(OSError, *damaged):
        for cell in reading.notebook_of(notebook.read_bytes()).cells:
            for output in cell.get("outputs", ()):
                report = output.get("data", {}).get(MIME)
                if report and not report["passed"]:
                    found.setdefault(str(report["task"]), str(report["title"]))
    return found


def of_class(assignment: str) -> list[Row]:
    """Every submission of an assignment, by student, also those that are not graded.

    What being late costs is computed from the points that they have now, a person's included, and
    is written into the gradebook where something else stands there.

    Raises:
        Refusal: the assignment is not released, gradebook and notebooks disagree about points, or
            there is no gradebook.
    """
    from attncourse.grading.books.gradebook import check_points, penalties

    job, rows, settled = disk.job_of(assignment), [], True
    with nbgrader_api.gradebook() as gradebook:
        check_points(gradebook, job.about)
        cells, penalty = _cells(gradebook, assignment), penalties()
        for submission in gradebook.assignment_submissions(assignment):
            student, notebook_row = submission.student.id, submission.notebooks[0]
            lost = penalty(submission)
            if lost != notebook_row.late_submission_penalty:
                notebook_row.late_submission_penalty, settled = lost, False
            path = disk.result_path(assignment, student)
            stored = disk.load_result(path)
            notebook = Path("autograded") / student / assignment / f"{assignment}.ipynb"
            if stored:
                verdicts = stored.result.verdicts.items()
                wrong = {task: verdict.title for task, verdict in verdicts if verdict.title}
            else:
                wrong = diagnoses(notebook) if notebook.exists() else {}
            late = lost or 0.0
            rows.append(
                Row(
                    student,
                    max(0.0, submission.score - late) if stored or notebook.exists() else None,
                    submission.max_score,
                    submission.needs_manual_grade,
                    wrong,
                    name_of(submission.student),
                    late,
                    path.exists() and disk.is_stale(job, student, stored.key if stored else ""),
                    {cell: score for cell, score, _ in cells[student]},
                    frozenset(cell for cell, _, unread in cells[student] if unread),
                    stored.result if stored else None,
                )
            )
        if not settled:
            gradebook.db.commit()
        waiting = disk.submissions(assignment).keys() - {row.student for row in rows}
        names = {each.id: name_of(each) for each in gradebook.students} if waiting else {}
    most = job.about.points
    rows += [Row(each, None, most, False, {}, names.get(each, "")) for each in waiting]
    return sorted(rows, key=lambda row: row.student)


def _cells(gradebook, assignment: str) -> dict[str, list[tuple[str, float, bool]]]:
    """Student -> the gradebook's cells: name, points, whether a person has to look; one query."""
    from nbgrader.api import Assignment, BaseCell, Grade, SubmittedAssignment, SubmittedNotebook

    rows = (
        gradebook.db.query(
            SubmittedAssignment.student_id, BaseCell.name, Grade.score, Grade.needs_manual_grade
        )
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
        .join(BaseCell, BaseCell.id == Grade.cell_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .filter(Assignment.name == assignment)
    )
    cells = collections.defaultdict(list)
    for student, *cell in rows:
        cells[student].append(tuple(cell))
    return cells


def name_of(student) -> str:
    """A student's name in the gradebook, "" if it has none."""
    return " ".join(part for part in (student.first_name, student.last_name) if part)


def without_submission(assignment: str) -> list[str]:
    """Students of the gradebook who handed nothing in."""
    with nbgrader_api.gradebook() as gradebook:
        there = {each.student_id for each in gradebook.assignment_submissions(assignment)}
        everybody = {student.id for student in gradebook.students}
    return sorted(everybody - there - disk.submissions(assignment).keys())


@dataclass(frozen=True)
class Total:
    """A student's result in the whole course."""

    student: str
    name: str
    percent: float | None  # None if nothing counts yet
    points: dict[str, float | None]  # by assignment; None if nothing of it is graded
    waiting: tuple[str, ...]  # assignments in which a person has to look at something
    not_graded: tuple[str, ...] = ()  # those with work that is not graded, and does not count


def of_course(weights: dict[str, float]) -> tuple[dict[str, float], list[Total]]:
    """Every student's total: Σ weight · points / most, divided by Σ weight.

    An assignment counts once something of it is graded. Who handed nothing in has 0 points of it;
    for whom it is not graded yet, it does not count yet.

    Args:
        weights: by assignment, zero or more; with 0 it does not count.

    Returns:
        What each assignment that counts is worth in points, and the totals by student.
    """
    begun = {folder.name for folder in Path("autograded").glob("*/*")}
    counted = [name for name in weights if weights[name] and name in begun]
    classes = {name: of_class(name) for name in counted}
    graded = {name: [row for row in all if row.score is not None] for name, all in classes.items()}
    most = {name: rows[0].max_score for name, rows in graded.items() if rows}
    rows = {(name, row.student): row for name in most for row in classes[name]}
    with nbgrader_api.gradebook() as gradebook:
        known = {student.id: name_of(student) for student in gradebook.students}
    totals = []
    for student in sorted(known.keys() | {student for _, student in rows}):
        own = {name: rows.get((name, student)) for name in most}
        not_graded = [name for name, row in own.items() if row and row.score is None]
        points = {name: row and row.score for name, row in own.items()}
        share = sum(weights[name] * (points[name] or 0) / most[name] for name in most)
        whole = sum(weights[name] for name in most if name not in not_graded)
        totals.append(
            Total(
                student,
                known.get(student, ""),
                100 * share / whole if whole else None,
                points,
                tuple(name for name, row in own.items() if row and row.needs_reading),
                tuple(not_graded),
            )
        )
    return most, totals


def catalogue() -> dict[tuple[str, str], Fault]:
    """Every known misconception, by task and id: one id may stand in several tasks."""
    return {
        (name, fault.id): fault
        for name, task in registry.all_tasks().items()
        for fault in task.faults.values()
    }


def by_frequency(rows: list[Row]) -> list[tuple[str, str, int]]:
    """(id, what the students think, how many), the most frequent first."""
    known = catalogue()
    counted = collections.Counter(
        thought
        for row in rows
        for thought in {
            (title, known[task, title].thinks)
            for task, title in row.thoughts
            if (task, title) in known
        }
    )
    return [(*thought, n) for thought, n in counted.most_common()]
