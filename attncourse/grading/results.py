"""What became of a class: points from the gradebook, diagnoses from the stored results."""

import collections
import json
from dataclasses import dataclass, field
from pathlib import Path

from attncourse.checks import registry
from attncourse.checks.diagnosis import AND
from attncourse.checks.report import MIME
from attncourse.checks.task import Fault
from attncourse.grading import nbgrader_api, run
from attncourse.grading.score import Result


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
    points: dict[str, float] = field(default_factory=dict)  # by the gradebook's cells
    unread: frozenset[str] = frozenset()  # those cells that wait for a person
    result: Result | None = None  # None if nbgrader itself graded it

    @property
    def thoughts(self) -> list[tuple[str, str]]:
        """(task, id or what failed): of two misconceptions at once both."""
        return [(task, each) for task, title in self.wrong.items() for each in title.split(AND)]


def diagnoses(notebook: Path) -> dict[str, str]:
    """The titles of the diagnoses in a notebook that nbgrader itself has executed, by task."""
    found = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            report = output.get("data", {}).get(MIME)
            if report and not report["passed"]:
                found.setdefault(report["task"], report["title"])
    return found


def of_class(assignment: str) -> list[Row]:
    """Every graded submission of an assignment, by student."""
    rows = []
    with nbgrader_api.gradebook() as gradebook:
        cells = _cells(gradebook, assignment)
        for submission in gradebook.assignment_submissions(assignment):
            student = submission.student.id
            stored = run.load_result(run.result_path(assignment, student))
            notebook = Path("autograded") / student / assignment / f"{assignment}.ipynb"
            if stored:
                verdicts = stored[1].verdicts.items()
                wrong = {task: verdict.title for task, verdict in verdicts if verdict.title}
            else:
                wrong = diagnoses(notebook) if notebook.exists() else {}
            late = submission.late_submission_penalty or 0.0
            rows.append(
                Row(
                    student,
                    max(0.0, submission.score - late) if stored or notebook.exists() else None,
                    submission.max_score,
                    submission.needs_manual_grade,
                    wrong,
                    name_of(submission.student),
                    late,
                    {cell: score for cell, score, _ in cells[student]},
                    frozenset(cell for cell, _, unread in cells[student] if unread),
                    stored[1] if stored else None,
                )
            )
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
    return sorted(everybody - there - run.submissions(assignment).keys())


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
