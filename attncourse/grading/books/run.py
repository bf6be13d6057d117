"""Grading a class: every submission gets points or a reason, whatever happens on the way.

Worker processes (or a cluster's) do the work; this process alone writes results and the gradebook.
A result is on the disk before it is in the gradebook, and both before the next one, so that a run
that was killed goes on where it stopped. Who could not be judged keeps the points and the record of
before; where there are none, none are booked. What the machine could not do is nobody's zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attncourse.grading import loading
from attncourse.grading.books import disk
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.senders import timestamp_of
from attncourse.grading.jail.job import Job, key_of
from attncourse.grading.jail.result import NOT_READABLE, Result
from attncourse.grading.jail.workers import GradeAll


@dataclass(frozen=True)
class Event:
    """One submission is done, or could not be judged."""

    student: str
    result: Result | None  # None if it could not be judged
    fresh: bool  # graded now, not found from an earlier run
    why: str = ""  # it could not be judged


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
    about = job.about
    todo, keys, odd, known, same, missing = {}, {}, {}, {}, {}, {}
    for student, folder in students.items():
        path, odd[student] = disk.notebook_in(folder)
        try:
            if path is None:
                missing[student] = odd[student]
                continue
            if (size := path.stat().st_size) > reading.LARGEST:
                missing[student] = f"the notebook has {size / 2**20:.0f} MiB"
                continue
            keys[student] = key_of(job, path.read_bytes())
        except OSError as error:
            missing[student] = f"the file cannot be read: {error.strerror}"
            continue
        stored = disk.load_result(disk.result_path(job.assignment, student))
        if stored and stored.booked:
            known[student] = stored.result
        recorded = not job.record or disk.record_path(job.assignment, student).exists()
        whole = stored and stored.result.verdicts.keys() >= set(about.tasks)
        if whole and stored.key == keys[student] and recorded and not force:
            same[student] = stored.result
        else:
            todo[student] = path

    graded = grade_all(job, todo)  # it may begin to load what judges
    with loading():
        from attncourse.grading.books.gradebook import Writer  # which takes a second

    with Writer(about) as writer:  # whose address may be wrong, before anybody is judged

        def book(student: str, result: Result, fresh: bool, notebook: str | None = None) -> Event:
            if odd[student] and odd[student] not in result.repairs:
                result.repairs.append(odd[student])
            place = disk.result_path(job.assignment, student)
            if fresh:
                kept = disk.record_path(job.assignment, student)
                if notebook:
                    disk.store(kept, notebook)
                disk.store_result(place, keys[student], result)
                if not notebook:
                    kept.unlink(missing_ok=True)  # it would show other code
            before = known.get(student)
            writer.write(student, result, timestamp_of(students[student]), before)
            if fresh or before is None:
                disk.store_result(place, keys[student], result, booked=True)
            return Event(student, result, fresh)

        for student, why in missing.items():
            yield Event(student, None, True, why)
        for student, result in same.items():
            yield book(student, result, fresh=False)
        for student, data in graded:
            if isinstance(data, str):
                yield Event(student, None, True, data)
                continue
            result, before = Result.from_data(data["result"]), known.get(student)
            if before and before.readable and not result.readable:  # perhaps half a copy of a file
                yield Event(student, None, True, next(iter(result.review), NOT_READABLE))
                continue
            if result.disturbed:
                keys[student] = ""  # the next run tries again
            yield book(student, result, True, data["notebook"])
