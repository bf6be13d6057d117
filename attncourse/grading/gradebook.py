"""The writer of nbgrader's gradebook: points, comments and flags, a submission at a time.

A run writes from one process, and several runs may write at once: SQLite on one machine,
PostgreSQL on many. A submission is one transaction; what another writer has locked or created in
the meantime is tried again.
"""

import contextlib
import fcntl
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from nbgrader.api import InvalidEntry
from nbgrader.preprocessors import AssignLatePenalties
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import scoped_session, sessionmaker

from attncourse.grading import nbgrader_api
from attncourse.grading.score import Result, Verdict
from attncourse.grading.submission import Assignment

T = TypeVar("T")
PATIENCE = 60.0  # seconds to wait for a gradebook that is locked, restarting or on a full disk

log = logging.getLogger(__name__)


class NotReleased(Exception):
    """The assignment is not in the gradebook, and nbgrader cannot put it there; says why."""


class Unwritable(Exception):
    """The gradebook cannot be used; says why."""


class Writer:
    """An open gradebook; a context manager.

    Raises:
        NotReleased: the gradebook does not know the assignment.
        Unwritable: it cannot be opened.
    """

    def __init__(self, about: Assignment):
        self.about = about
        # nbgrader logs a traceback for each error that is tried again here.
        logging.getLogger("tornado.application").setLevel(logging.CRITICAL)
        with _one_at_a_time():  # who comes first makes the tables
            try:
                self.gradebook = patiently(nbgrader_api.gradebook)
            except ModuleNotFoundError as error:
                raise Unwritable(
                    f"{error.name} is not installed; pip install 'attncourse[postgresql]'"
                ) from None
            if not patiently(self._is_known):
                reason = nbgrader_api.release(about.name)
                if reason:
                    raise NotReleased(reason)
        self.late = AssignLatePenalties(config=nbgrader_api.configuration())
        self.late.init_plugin()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gradebook.close()

    def _is_known(self) -> bool:
        known = {assignment.name for assignment in self.gradebook.assignments}
        self.gradebook.db.rollback()  # the transaction of this look
        return self.about.name in known

    def write(self, student: str, result: Result, timestamp=None) -> None:
        """Book one result; points that a person has given stay.

        Raises:
            Unwritable: the gradebook was locked, or its disk full, for longer than `PATIENCE`.
        """
        patiently(lambda: self._write(student, result, timestamp))

    def _write(self, student: str, result: Result, timestamp) -> None:
        book = self.gradebook
        with book.engine.begin() as connection:
            # nbgrader's own commits end here: all or nothing of a submission is booked.
            joined = sessionmaker(bind=connection, join_transaction_mode="rollback_only")
            book.db.remove()
            book.db = scoped_session(joined)
            self._book(student, result, timestamp)

    def _book(self, student: str, result: Result, timestamp) -> None:
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
        book.db.flush()
        book.db.refresh(notebook)  # its score is a sum that the database computes
        if submission.total_seconds_late > 0:
            penalty = self.late.plugin_inst.late_submission_penalty(
                student, notebook.score, submission.total_seconds_late
            )
            if penalty is not None:
                notebook.late_submission_penalty = min(max(penalty, 0), notebook.score)
        book.db.commit()


def patiently(step: Callable[[], T]) -> T:
    """Try until it works, for `PATIENCE` seconds.

    Raises:
        Unwritable: it never worked.
    """
    started, warned = time.monotonic(), False
    while True:
        try:
            return step()
        except (DBAPIError, InvalidEntry) as error:
            reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
            waited = time.monotonic() - started
            if waited > PATIENCE:
                raise Unwritable(reason) from None
            if waited > 1 and not warned:
                warned = True
                log.warning(
                    f"the gradebook cannot be written now ({reason}); "
                    f"trying again for {PATIENCE:.0f} seconds"
                )
            time.sleep(random.uniform(0, 0.2 + waited / 10))  # so that two do not meet again


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Of all that grade in this folder."""
    folder = Path("autograded")
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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
    except (OSError, ValueError, OverflowError):
        return None
