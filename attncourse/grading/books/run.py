"""Grading a class: every submission gets points or a reason, whatever happens on the way.

Worker processes (or a cluster's) do the work; this process alone writes results and the gradebook.
A result is on the disk before it is in the gradebook, and both before the next one, so that a run
that was killed goes on where it stopped. Who could not be judged keeps the points and the record of
before; where there are none, none are booked. What the machine could not do is nobody's zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attncourse.grading import loading
from attncourse.grading.books import disk
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.senders import timestamp_of
from attncourse.grading.jail.job import Job, key_of
from attncourse.grading.jail.result import NOT_READABLE, Result
from attncourse.grading.jail.workers import GradeAll

if TYPE_CHECKING:
    from attncourse.grading.books.gradebook import Writer


@dataclass(frozen=True)
class Event:
    """One submission is done, or could not be judged."""

    student: str
    result: Result | None  # None if it could not be judged
    fresh: bool  # graded now, not found from an earlier run
    why: str = ""  # it could not be judged


@dataclass(frozen=True)
class HandedIn:
    """What a student handed in, and what an earlier run made of it."""

    student: str
    folder: Path
    missing: str = ""  # why there is no notebook to grade
    path: Path | None = None  # of the notebook
    odd: str = ""  # about it
    key: str = ""  # under which its result is stored
    stored: disk.Stored | None = None

    @property
    def booked(self) -> Result | None:
        """What the gradebook has."""
        return self.stored.result if self.stored and self.stored.booked else None

    def is_graded(self, job: Job) -> bool:
        """Whether an earlier run left all that this job asks for, of the same notebook."""
        recorded = not job.record or disk.record_path(job.assignment, self.student).exists()
        if not (self.stored and recorded and self.stored.key == self.key):
            return False
        return self.stored.result.verdicts.keys() >= set(job.about.tasks)

    def noted(self, result: Result) -> Result:
        """A result that says, too, what is odd about the notebook."""
        if self.odd and self.odd not in result.repairs:
            result.repairs.append(self.odd)
        return result


def _handed_in(job: Job, student: str, folder: Path) -> HandedIn:
    path, odd = disk.notebook_in(folder)
    if path is None:
        return HandedIn(student, folder, missing=odd)
    try:
        if (size := path.stat().st_size) > reading.LARGEST:
            return HandedIn(student, folder, f"the notebook has {size / 2**20:.0f} MiB")
        key = key_of(job, path.read_bytes())
    except OSError as error:
        return HandedIn(student, folder, f"the file cannot be read: {error.strerror}")
    stored = disk.load_result(disk.result_path(job.assignment, student))
    return HandedIn(student, folder, "", path, odd, key, stored)


def grade_class(
    job: Job,
    students: dict[str, Path],
    grade_all: GradeAll,
    force: bool = False,
) -> Iterator[Event]:
    """Grade what changed since the last run, and put everything into the gradebook.

    Raises:
        CannotGrade: the machine fails with the course's own solution, too.

    Args:
        students: by name, the folder each handed in.
        grade_all: where the work is done, e.g. `in_processes(2)`.
        force: grade again what is graded.
    """
    found = {name: _handed_in(job, name, folder) for name, folder in students.items()}
    there = [each for each in found.values() if not each.missing]
    same = {each.student: each for each in there if not force and each.is_graded(job)}
    todo = {each.student: each.path for each in there if each.student not in same}
    graded = grade_all(job, todo)  # it may begin to load what judges
    with loading():
        from attncourse.grading.books.gradebook import Writer  # which takes a second

    with Writer(job.about) as writer:  # whose address may be wrong, before anybody is judged
        for each in found.values():
            if each.missing:
                yield Event(each.student, None, True, each.missing)
        for each in same.values():
            result = each.noted(each.stored.result)
            _book(writer, job, each, result)
            yield Event(each.student, result, False)
        for student, data in graded:
            if isinstance(data, str):
                yield Event(student, None, True, data)
                continue
            result, before = Result.from_data(data["result"]), found[student].booked
            if before and before.readable and not result.readable:  # perhaps half a copy of a file
                yield Event(student, None, True, next(iter(result.review), NOT_READABLE))
                continue
            _store(job, found[student], found[student].noted(result), data["notebook"])
            _book(writer, job, found[student], result, fresh=True)
            yield Event(student, result, True)


def _store(job: Job, of: HandedIn, result: Result, notebook: str | None) -> None:
    """A new result, and the executed notebook that belongs to it."""
    record = disk.record_path(job.assignment, of.student)
    if notebook:
        disk.store(record, notebook)
    disk.store_result(_place(job, of), _key(of, result), result)
    if not notebook:
        record.unlink(missing_ok=True)  # it would show other code


def _book(writer: "Writer", job: Job, of: HandedIn, result: Result, fresh: bool = False) -> None:
    """Put a stored result into the gradebook, and store that it is there."""
    writer.write(of.student, result, timestamp_of(of.folder), of.booked)
    if fresh or of.booked is None:
        disk.store_result(_place(job, of), _key(of, result), result, booked=True)


def _place(job: Job, of: HandedIn) -> Path:
    return disk.result_path(job.assignment, of.student)


def _key(of: HandedIn, result: Result) -> str:
    return "" if result.disturbed else of.key  # of a disturbed one, the next run tries again
