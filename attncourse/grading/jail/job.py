"""Grading one submission, as a pure function: a notebook's bytes go in, plain data comes out."""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import attncourse
from attncourse.checks import registry
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import Assignment, Unreadable
from attncourse.grading.inbox.untrusted import MEMORY, printable
from attncourse.grading.jail import record
from attncourse.grading.jail.remote import TRIES, Born, Budget, Killed, children
from attncourse.grading.jail.score import nothing, score
from attncourse.grading.jail.walls import Unavailable

DEFAULT = Budget()


@dataclass(frozen=True)
class Job:
    """What a worker needs to know; it never sees the course's folder."""

    assignment: str
    solution: str  # texts of the two notebooks
    released: str
    jailed: bool = True
    budget: Budget = DEFAULT
    record: bool = True  # also the executed notebook

    @property
    def about(self) -> Assignment:
        """The assignment, as its two notebooks say it."""
        return _assignment_of(self)


def grade_bytes(job: Job, data: bytes) -> dict:
    """Grade one submission.

    Returns:
        "result", a `Result` as data, and "notebook", the executed notebook's text or None.

    Raises:
        Unavailable: no jail can be built here, and the job asks for one.
    """
    about, notebook = job.about, None
    try:
        found = reading.read(data, about)
    except Unreadable as error:
        result = nothing(about, f"the file cannot be read: {error}")
        if job.record:
            notebook = record.unread(job.released, about, result)
        return {"result": result.as_data(), "notebook": notebook}
    kept = zygote(job.jailed)
    for _ in range(TRIES):
        result = score(found, about, kept, job.budget)
        if not result.disturbed:
            break
    if job.record:
        notebook = record.executed(found, job.released, about, result, kept, job.budget)
    if result.disturbed:
        result.review.append(f"{result.disturbed}, {TRIES} times: short of memory? Grade again")
    return {"result": result.as_data(), "notebook": notebook}


@functools.cache
def _assignment_of(job: Job) -> Assignment:
    return reading.assignment_of(job.assignment, *map(json.loads, (job.solution, job.released)))


@functools.cache
def zygote(jailed: bool):
    """What forks this process's jailed children."""
    return children(jailed, _born)


_born: Born | None = None  # the zygote that a worker was born with


def born_with(born: Born | None) -> None:
    """Use what a worker was born with, instead of starting one."""
    global _born
    _born = born


def grade_or_say_why(job: Job, data: bytes) -> dict | str:
    """`grade_bytes`, or why it failed: a fault of ours on one submission stops no other.

    Raises:
        Unavailable: no jail can be built here, and the job asks for one.
        Killed: what starts jails is killed again and again.
    """
    try:
        return grade_bytes(job, data)
    except (Unavailable, Killed):
        raise
    except MemoryError:
        return f"to read and judge it takes more than {MEMORY / 2**30:.0f} GiB of memory"
    except Exception as error:
        said = printable(f"{type(error).__name__}: {error}")[:300]
        return f"the judge itself failed, please report it ({said})"


@functools.cache
def version() -> bytes:
    """Changes with every file of the course's package, and of outside packages with tasks."""
    digest = hashlib.sha256()
    for place in (Path(attncourse.__file__).parent, *registry.outside_files()):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.digest()


def key_of(job: Job, data: bytes) -> str:
    """The same key, the same result: of a submission, the assignment and the judge."""
    digest = hashlib.sha256(version())
    for part in (job.solution, job.released):
        digest.update(part.encode())
    digest.update(data)
    return digest.hexdigest()
