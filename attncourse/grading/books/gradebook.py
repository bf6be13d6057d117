"""The writer of nbgrader's gradebook: points, comments and flags, a submission at a time.

A run writes from one process, and several runs may write at once: SQLite on one machine,
PostgreSQL on many. A submission is one transaction; what another writer has locked or created in
the meantime is tried again.
"""

import logging
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nbgrader.api import Assignment as Released
from nbgrader.api import (
    BaseCell,
    Grade,
    Gradebook,
    GradeCell,
    InvalidEntry,
    MissingEntry,
    Notebook,
    SubmittedNotebook,
)
from nbgrader.api import SubmittedAssignment as Submission
from nbgrader.preprocessors import AssignLatePenalties
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError, OperationalError

from attncourse.grading.books import nbgrader_api
from attncourse.grading.books.nbgrader_api import NoGradebook
from attncourse.grading.inbox.senders import Roster
from attncourse.grading.inbox.submission import Assignment, OtherPoints
from attncourse.grading.inbox.writing import one_at_a_time
from attncourse.grading.jail.page import harmless
from attncourse.grading.jail.result import Result, Verdict

T = TypeVar("T")
PATIENCE = 60.0  # seconds to wait for a gradebook that is locked, restarting or on a full disk

log = logging.getLogger(__name__)


class Writer:
    """An open gradebook; a context manager.

    Raises:
        NotReleased: the gradebook does not know the assignment, and cannot be told.
        NoGradebook: it cannot be opened.
    """

    def __init__(self, about: Assignment):
        self.about = about
        # nbgrader logs a traceback for each error that is tried again here.
        logging.getLogger("tornado.application").setLevel(logging.CRITICAL)
        with one_at_a_time(Path("autograded")):  # who comes first makes the tables
            self.gradebook = patiently(nbgrader_api.open_gradebook, _is_no_server)
            patiently(lambda: self._is_known() or self._register())
            check_points(self.gradebook, about)
            self.gradebook.db.rollback()
        self.penalty = penalties()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gradebook.close()

    def _is_known(self) -> bool:
        # One that has a due date and was never released has no notebooks.
        known = {each.name for each in self.gradebook.assignments if each.notebooks}
        self.gradebook.db.rollback()  # the transaction of this look
        return self.about.name in known

    def _register(self) -> None:
        """Students have the release that is in exercises/: it stays as it is."""
        from attncourse.grading.books import generate

        name = self.about.name
        if any(Path("autograded").glob(f"*/{name}/result.json")):
            log.warning(
                f"the gradebook does not know {name}, which was graded before; points and comments "
                "that a person gave are in another one. Is db_url in nbgrader_config.py right?"
            )
        with nbgrader_api.all_or_nothing(self.gradebook):
            generate.register(self.gradebook, name)
            check_points(self.gradebook, self.about)

    def write(
        self, student: str, result: Result, timestamp=None, before: Result | None = None
    ) -> None:
        """Book one result; points that a person has given stay.

        Args:
            before: what the gradebook was last told of this student. Where nothing has changed
                since, whoever has looked at it need not look again.

        Raises:
            NoGradebook: it was locked, or its disk full, for longer than `PATIENCE`.
        """
        patiently(lambda: self._write(student, result, timestamp, before))

    def _write(self, student: str, result: Result, timestamp, before: Result | None) -> None:
        with nbgrader_api.all_or_nothing(self.gradebook):
            self._book(student, result, timestamp, before)
        self._look_again(student, result)

    def _look_again(self, student: str, result: Result) -> None:
        """See that the points are kept: a session that rolls back on its way ends without an error.

        Raises:
            InvalidEntry: they are not.
        """
        points = (
            select(func.count(Grade.id), func.coalesce(func.sum(Grade.auto_score), 0.0))
            .join(SubmittedNotebook, SubmittedNotebook.id == Grade.notebook_id)
            .join(Submission, Submission.id == SubmittedNotebook.assignment_id)
            .join(Released, Released.id == Submission.assignment_id)
            .where(Released.name == self.about.name, Submission.student_id == student)
        )
        with self.gradebook.engine.connect() as connection:
            cells, booked = connection.execute(points).one()
        if not cells or abs(booked - result.score) > 1e-6:
            raise InvalidEntry(f"the points of {student} were written, and are not there")

    def _book(self, student: str, result: Result, timestamp, before: Result | None) -> None:
        book, about = self.gradebook, self.about
        book.update_or_create_student(student)
        try:
            book.find_submission(about.name, student)
        except MissingEntry:
            before = None  # this is another gradebook than the one that was told
        # None, too: a time that is gone makes nobody late.
        submission = book.update_or_create_submission(about.name, student, timestamp=timestamp)
        notebook = submission.notebooks[0]
        # Asked for at once: a grade would ask for its cell's name by itself.
        cells = book.db.query(BaseCell).filter_by(notebook_id=notebook.notebook_id)
        names = {cell.id: cell.name for cell in cells}
        grades = {names[grade.cell_id]: grade for grade in notebook.grades}
        comments = {names[comment.cell_id]: comment for comment in notebook.comments}
        if before and not _was_told(grades, about, before):
            before = None  # this is an older copy
        for each in about.graded:
            verdict = result.verdicts[each.task]
            for grade_id, points in (
                (each.visible, verdict.visible),
                (each.hidden, verdict.hidden),
            ):
                grade = grades[grade_id]
                grade.auto_score = points
                if not _same(before, result, each.task):
                    # nbgrader's rule: what a person has graded is looked at again.
                    looked_at = grade.manual_score is not None
                    grade.needs_manual_grade = looked_at or (bool(result.review) and points == 0)
            comments[each.task].auto_comment = comment_on(verdict)
        for question in about.questions:
            text, grade = result.texts.get(question), grades[question]
            empty = text == ""  # of a file that cannot be read nobody knows
            grade.auto_score = 0 if empty else None
            if before is None or before.texts.get(question) != text:
                grade.needs_manual_grade = not empty or grade.manual_score is not None
            comments[question].auto_comment = "No response." if empty else None
        book.db.flush()
        book.db.refresh(notebook)  # its score is a sum that the database computes
        notebook.late_submission_penalty = self.penalty(submission)
        book.db.commit()


def _was_told(grades: dict[str, Grade], about: Assignment, before: Result) -> bool:
    """Whether a gradebook has the points of an earlier result."""
    told = {name: 0.0 if before.texts.get(name) == "" else None for name in about.questions}
    for each in about.graded:
        if verdict := before.verdicts.get(each.task):
            told |= {each.visible: verdict.visible, each.hidden: verdict.hidden}
    return all(grades[name].auto_score == points for name, points in told.items())


def _same(before: Result | None, result: Result, task: str) -> bool:
    """Whether a task has the points, and the submission the reasons to look, that it had."""
    if before is None or task not in before.verdicts:
        return False
    was, now = before.verdicts[task], result.verdicts[task]
    same_points = (was.visible, was.hidden) == (now.visible, now.hidden)
    return same_points and before.review == result.review


def check_points(book: Gradebook, about: Assignment) -> None:
    """See that the gradebook counts as many points as the notebooks.

    Raises:
        OtherPoints: it does not, as somebody else has released the assignment since.
    """
    rows = (
        book.db.query(GradeCell.name, GradeCell.max_score)
        .join(Notebook, Notebook.id == GradeCell.notebook_id)
        .join(Released, Released.id == Notebook.assignment_id)
        .filter(Released.name == about.name)
    )
    worth = dict(about.questions)
    worth |= {cell: each.points for each in about.graded for cell in (each.visible, each.hidden)}
    known = dict(map(tuple, rows))
    for cell, points in known.items():
        if points != worth.get(cell, 0):
            raise OtherPoints(
                f"{cell} has {points:g} points in the gradebook, and {worth.get(cell, 0):g} in "
                f"exercises/; run `attncourse release {about.name}`"
            )
    if known and (unknown := worth.keys() - known):
        raise OtherPoints(
            f"{', '.join(sorted(unknown))} is in exercises/, and the gradebook does not know it; "
            f"run `attncourse release {about.name}`"
        )


def penalties() -> Callable[[Submission], float | None]:
    """What being late costs a submission with the points that it has now, by the course's rule."""
    rule = AssignLatePenalties(config=nbgrader_api.configuration())
    rule.init_plugin()

    def penalty(submission: Submission) -> float | None:
        late, score = submission.total_seconds_late, submission.notebooks[0].score
        if not late > 0:
            return None
        lost = rule.plugin_inst.late_submission_penalty(submission.student_id, score, late)
        return None if lost is None else min(max(lost, 0.0), score)

    return penalty


def patiently(step: Callable[[], T], hopeless: Callable[[Exception], bool] = lambda _: False) -> T:
    """Try until it works, for `PATIENCE` seconds; at once no more if that is hopeless.

    Raises:
        NoGradebook: it never worked.
    """
    started, warned = time.monotonic(), False
    while True:
        try:
            return step()
        except (DBAPIError, InvalidEntry) as error:
            reason = nbgrader_api.said(error)
            waited = time.monotonic() - started
            if waited > PATIENCE or hopeless(error):
                raise NoGradebook(f"the gradebook cannot be used: {reason}") from None
            if waited > 1 and not warned:
                warned = True
                log.warning(
                    f"the gradebook cannot be written now ({reason}); "
                    f"trying again for {PATIENCE:.0f} seconds"
                )
            time.sleep(random.uniform(0, 0.2 + waited / 10))  # so that two do not meet again


def _is_no_server(error: Exception) -> bool:
    """Nobody answers at the address, or not to us; a file that is locked is another thing."""
    return isinstance(error, OperationalError) and "locked" not in str(error)


def comment_on(verdict: Verdict) -> str | None:
    """What the student reads under the answer."""
    if not verdict.title:
        return None
    first = f"You may think: {verdict.thinks}" if verdict.thinks else f"{verdict.title}."
    # nbgrader shows it as Markdown, and parts of it, such as an error's message, are a student's.
    return re.sub(r"\](?=[(:])", "]\u2060", harmless(f"{first} {verdict.why}".strip()))


def roster() -> Roster | None:
    """The students that were told to the gradebook; None if nothing but their folders' names was.

    Raises:
        NoGradebook: it cannot be read.
    """
    if not nbgrader_api.has_gradebook():
        return None
    columns = ("id", "first_name", "last_name", "email", "lms_user_id")
    with nbgrader_api.gradebook() as gradebook:
        rows = [{name: getattr(s, name) for name in columns} for s in gradebook.students]
    told = any(row[name] for row in rows for name in columns[1:])
    return Roster(rows, "the gradebook", complete=False) if told else None
