"""What became of a class: points from the gradebook, diagnoses from the stored results."""

import collections
import json
from dataclasses import dataclass
from pathlib import Path

from attncourse import misconceptions
from attncourse.checks import engine
from attncourse.checks.report import MIME
from attncourse.grading import nbgrader_api, run


@dataclass(frozen=True)
class Row:
    """One student's result."""

    student: str
    score: float | None  # points; None if never graded
    max_score: float
    needs_reading: bool  # a written answer has no points yet
    wrong: dict[str, str]  # task -> id of the misconception, or what failed


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
        for submission in gradebook.assignment_submissions(assignment):
            student = submission.student.id
            stored = run.load_result(run.result_path(assignment, student))
            notebook = Path("autograded") / student / assignment / f"{assignment}.ipynb"
            if stored:
                verdicts = stored[1].verdicts.items()
                wrong = {task: verdict.title for task, verdict in verdicts if verdict.title}
            else:
                wrong = diagnoses(notebook) if notebook.exists() else {}
            rows.append(
                Row(
                    student,
                    submission.score if stored or notebook.exists() else None,
                    submission.max_score,
                    submission.needs_manual_grade,
                    wrong,
                )
            )
    return sorted(rows, key=lambda row: row.student)


def by_frequency(rows: list[Row]) -> list[tuple[str, str, int]]:
    """(id, what the students think, how many), the most frequent first."""
    thoughts = {
        wrong.id: wrong.thinks
        for chapter in engine.chapters()
        for wrong in misconceptions.of_chapter(chapter)
    }
    counted = collections.Counter(title for row in rows for title in set(row.wrong.values()))
    return [(name, thoughts[name], n) for name, n in counted.most_common() if name in thoughts]
