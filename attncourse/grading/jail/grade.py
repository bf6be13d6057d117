"""Grading one submission, as a pure function: a notebook's bytes go in, plain data comes out."""

import contextlib
import functools

from attncourse.checks import registry, tables
from attncourse.checks.fingerprint import of_reference
from attncourse.grading import CannotGrade
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import OtherPoints, Unreadable
from attncourse.grading.inbox.untrusted import MEMORY, printable
from attncourse.grading.jail import page, record
from attncourse.grading.jail.job import TRIES, Job
from attncourse.grading.jail.processes import Started
from attncourse.grading.jail.remote import Killed, children
from attncourse.grading.jail.result import Result, nothing
from attncourse.grading.jail.score import score
from attncourse.grading.jail.walls import Unavailable


class NotJudged(Exception):
    """A submission could not be judged, by no fault of its own; the message says why."""


def grade_bytes(job: Job, data: bytes) -> dict:
    """Grade one submission.

    Returns:
        "result", a `Result` as data, and "notebook", the executed notebook's text or None.

    Raises:
        NotJudged: its process was killed again and again.
        CannotGrade: the machine fails with the course's own solution, too.
        Unavailable: no jail can be built here, and the job asks for one.
        OtherPoints: the release says something else about points than the tasks.
    """
    result, notebook = _graded(job, data)
    if result.doubt:
        prove(job)
    return {"result": result.as_data(), "notebook": notebook}


def prove(job: Job) -> str:
    """Grade the course's own solution: a machine can grade if that has all points.

    Returns:
        That it has.

    Raises:
        CannotGrade: it has not.
        Unavailable: no jail can be built here, and the job asks for one.
        OtherPoints: the release says something else about points than the tasks.
    """
    try:
        result, _ = _graded(job, job.solution.encode())
    except (Unavailable, OtherPoints, CannotGrade, Killed):
        raise
    except NotJudged as error:
        raise CannotGrade(str(error).replace(": a call to exit?", "")) from None
    except Exception as error:
        raise CannotGrade(printable(f"{type(error).__name__}: {error}")[:300]) from None
    if reason := result.disturbed or result.doubt:
        raise CannotGrade(reason.replace(": a call to exit?", ""))
    for task, verdict in result.verdicts.items():
        if (got := verdict.visible + verdict.hidden) < (most := 2 * verdict.points):
            # Not the misconception: what fails here is the machine.
            why = "; ".join([*result.review, f"fails: {verdict.failed[0]}"])
            raise CannotGrade(f"its `{task}` gets {got:g} of {most:g} points ({why})")
    return "proven"


def _graded(job: Job, data: bytes) -> tuple[Result, str | None]:
    """The result of a submission, and its executed notebook."""
    points_agree(job)
    about, notebook = job.about, None
    try:
        found = reading.read(data, about)
    except Unreadable as error:
        result = nothing(about, f"the file cannot be read: {error}")
        if job.record:
            notebook = page.unread(job.released, about, result)
        return result, notebook
    kept, again = zygote(job.jailed), True
    for _ in range(TRIES):
        result = score(found, about, kept, job.budget)
        if result.stood and again:
            again = False  # a machine that is paused once will not be paused again
        elif not result.disturbed:
            break
    if result.disturbed:
        raise NotJudged(f"{result.disturbed}, {TRIES} times")
    if job.record:
        notebook = record.executed(found, job.released, about, result, kept, job.budget)
    if result.disturbed:
        result.review.append(f"{result.disturbed}, {TRIES} times: short of memory? Grade again")
    return result, notebook


def get_ready(job: Job) -> None:
    """Find what every submission needs, while the zygote still loads."""
    with contextlib.suppress(Exception):  # said when a submission is graded
        for each in job.about.graded:
            task = registry.find(each.task)
            tables.load(task)
            of_reference(task).everything()


@functools.cache
def points_agree(job: Job) -> None:
    """See once for each job that nobody disagrees about points.

    Raises:
        OtherPoints: the release says something else about points than the tasks.
    """
    reading.check_points(job.assignment, job.solution, job.released)


@functools.cache
def zygote(jailed: bool):
    """The zygote of this process."""
    return children(jailed, _zygote)


_zygote: Started | None = None  # one that is there already


def use_zygote(started: Started | None) -> None:
    """Let `zygote` be one that is there already, instead of a new one."""
    global _zygote
    _zygote = started


def grade_or_say_why(job: Job, data: bytes) -> dict | str:
    """`grade_bytes`, or why it failed: a fault of ours on one submission stops no other.

    Raises:
        CannotGrade: it would fail with every submission.
        Unavailable: no jail can be built here, and the job asks for one.
        Killed: the zygote, or each child, is killed again and again.
        OtherPoints: the release says something else about points than the tasks.
    """
    try:
        return grade_bytes(job, data)
    except (Unavailable, Killed, OtherPoints, CannotGrade):
        raise
    except NotJudged as error:
        why = str(error)
    except MemoryError:
        why = f"to read and judge it takes more than {MEMORY / 2**30:.0f} GiB of memory"
    except Exception as error:
        said = printable(f"{type(error).__name__}: {error}")[:300]
        why = f"the judge itself failed, please report it ({said})"
    prove(job)
    return why
