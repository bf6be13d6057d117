"""The one writer of nbgrader's gradebook: points, comments and flags, a submission at a time."""

from pathlib import Path

from nbgrader.preprocessors import AssignLatePenalties

from attncourse.grading import nbgrader_api
from attncourse.grading.score import Result, Verdict
from attncourse.grading.submission import Assignment


class NotReleased(Exception):
    """The assignment is not in the gradebook yet."""


class Writer:
    """An open gradebook; a context manager. Only one process writes, so nothing waits for a lock.

    Raises:
        NotReleased: the gradebook does not know the assignment.
    """

    def __init__(self, about: Assignment):
        self.about = about
        self.gradebook = nbgrader_api.gradebook()
        known = {assignment.name for assignment in self.gradebook.assignments}
        if about.name not in known and nbgrader_api.release(about.name):
            raise NotReleased(about.name)
        self.late = AssignLatePenalties(config=nbgrader_api.configuration())
        self.late.init_plugin()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gradebook.close()

    def write(self, student: str, result: Result, timestamp=None) -> None:
        """Book one result; points that a person has given stay."""
        book, about = self.gradebook, self.about
        book.update_or_create_student(student)
        when = {"timestamp": timestamp} if timestamp else {}
        submission = book.update_or_create_submission(about.name, student, **when)
        notebook = submission.notebooks[0]
        grades = {grade.name: grade for grade in notebook.grades}
        comments = {comment.name: comment for comment in notebook.comments}
        for each in about.graded:
            verdict = result.verdicts[each.task.name]
            for grade_id, points in (
                (each.visible, verdict.visible),
                (each.hidden, verdict.hidden),
            ):
                grade = grades[grade_id]
                grade.auto_score = points
                # nbgrader's rule: what a person has graded is looked at again after a new run.
                looked_at = grade.manual_score is not None
                grade.needs_manual_grade = looked_at or (bool(result.review) and points == 0)
            comments[each.task.name].auto_comment = comment_on(verdict)
        for question in about.questions:
            text = result.texts.get(question, "").strip()
            empty = text in ("", about.released.get(question, "").strip())
            grade = grades[question]
            grade.auto_score = 0 if empty else None
            grade.needs_manual_grade = not empty or grade.manual_score is not None
            comments[question].auto_comment = "No response." if empty else None
        notebook.late_submission_penalty = None
        if submission.total_seconds_late > 0:
            penalty = self.late.plugin_inst.late_submission_penalty(
                student, notebook.score, submission.total_seconds_late
            )
            if penalty is not None:
                notebook.late_submission_penalty = min(max(penalty, 0), notebook.score)
        book.db.commit()


def comment_on(verdict: Verdict) -> str | None:
    """What the student reads under the answer."""
    if not verdict.title:
        return None
    parts = [verdict.title + "."]
    if verdict.thinks:
        parts.append(f"You may think: {verdict.thinks}")
    return " ".join([*parts, verdict.why]).strip()


def timestamp_of(folder: Path):
    """When it was handed in, as nbgrader's collect step wrote it; None if it did not, or not so."""
    from nbgrader.utils import parse_utc

    try:
        return parse_utc((folder / "timestamp.txt").read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None
