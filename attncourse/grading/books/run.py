"""Grading a class: every submission gets points or a reason, whatever happens on the way.

Worker processes (or a cluster's) do the work; this process alone writes results and the gradebook.
A result is on the disk before it is in the gradebook, and both before the next one, so that a run
that was killed goes on where it stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attncourse.grading.books import disk
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.senders import timestamp_of
from attncourse.grading.jail.job import Job, key_of
from attncourse.grading.jail.page import unread
from attncourse.grading.jail.result import Result, nothing
from attncourse.grading.jail.workers import GradeAll


@dataclass(frozen=True)
class Event:
    """One submission is done."""

    student: str
    result: Result
    fresh: bool  # graded now, not found from an earlier run


def grade_class(
    job: Job,
    students: dict[str, Path],
    grade_all: GradeAll,
    force: bool = False,
) -> Iterator[Event]:
    """Grade what changed since the last run, and put everything into the gradebook.

    Args:
        students: by name, the folder each handed in.
        grade_all: where the work is done, e.g. `in_processes(2)`.
        force: grade again what is graded.
    """
    about = job.about
    todo, keys, odd, known, same = {}, {}, {}, {}, {}
    for student, folder in students.items():
        path, odd[student] = disk.notebook_in(folder)
        try:
            if path and (size := path.stat().st_size) > reading.LARGEST:
                path, odd[student] = None, f"the notebook has {size / 2**20:.0f} MiB"
            data = path.read_bytes() if path else b""
        except OSError as error:
            path, odd[student] = None, f"the file cannot be read: {error.strerror}"
            data = b""
        keys[student] = key_of(job, data)
        stored = disk.load_result(disk.result_path(job.assignment, student))
        if stored and stored.booked:
            known[student] = stored.result
        recorded = not job.record or disk.record_path(job.assignment, student).exists()
        whole = stored and stored.result.verdicts.keys() >= set(about.tasks)
        if whole and stored.key == keys[student] and recorded and not force:
            same[student] = stored.result
        elif path:
            todo[student] = path

    from attncourse.grading.books.gradebook import Writer

    with Writer(about) as writer:  # whose address may be wrong, before anything is judged
        graded = grade_all(job, todo)

        def book(student: str, result: Result, fresh: bool, notebook: str | None = None) -> Event:
            if odd.get(student) and odd[student] not in result.repairs:
                result.repairs.append(odd[student])
            place = disk.result_path(job.assignment, student)
            if fresh:
                kept = disk.record_path(job.assignment, student)
                kept.unlink(missing_ok=True)  # an older one would show other code
                if notebook:
                    disk.store(kept, notebook)
                disk.store_result(place, keys[student], result)
            before = known.get(student)
            writer.write(student, result, timestamp_of(students[student]), before)
            if fresh or before is None:
                disk.store_result(place, keys[student], result, booked=True)
            return Event(student, result, fresh)

        for student in students:
            if student in same:
                yield book(student, same[student], fresh=False)
            elif student not in todo:
                result = nothing(about, odd.pop(student))
                notebook = job.record and unread(job.released, about, result)
                yield book(student, result, True, notebook)
        for student, data in graded:
            if isinstance(data, str):
                keys[student] = ""  # the next run tries again
                result = nothing(about, data)
                notebook = job.record and unread(job.released, about, result)
            else:
                result, notebook = Result.from_data(data["result"]), data["notebook"]
                if result.disturbed:
                    keys[student] = ""
            yield book(student, result, True, notebook)
