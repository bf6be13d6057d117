"""What is to be done with each submission of an assignment, and the mark of what was done."""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import attncourse
from attncourse.checks import GRADED, installed
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import Assignment

TRIES = 3  # how often we do again what was disturbed


@dataclass(frozen=True)
class Budget:
    """Seconds that answers may take to reply, where none waits for a processor that others have.

    Generous: a right answer needs a hundredth, one that loops over rows a tenth.
    """

    call: float = 10.0
    task: float = GRADED
    submission: float = 120.0
    record: float = 20.0  # for the executed notebook, which costs no points


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


@functools.cache
def _assignment_of(job: Job) -> Assignment:
    return reading.assignment_of(job.assignment, *map(json.loads, (job.solution, job.released)))


@functools.cache
def version() -> bytes:
    """Changes with every module of the course's package, and of outside packages with tasks.

    Not with how its lines end: a checkout on Windows is the same version. Nor with the words of a
    task: another comma grades nobody again, and `grade --force` says it in the new words.
    """
    digest = hashlib.sha256()
    for place in (Path(attncourse.__file__).parent, *installed.outside_files()):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.digest()


def key_of(job: Job, data: bytes) -> str:
    """The same key, the same result: of a submission, the assignment and the judge."""
    digest = hashlib.sha256(version())
    for part in (job.solution, job.released):
        digest.update(part.encode())
    digest.update(data)
    return digest.hexdigest()
