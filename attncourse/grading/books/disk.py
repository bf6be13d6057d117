"""Where everything of a class lies on the disk: what was handed in, and what came of it."""

import itertools
import json
import os
from pathlib import Path
from typing import NamedTuple

from attncourse.grading import Refusal
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.untrusted import printable
from attncourse.grading.inbox.writing import write
from attncourse.grading.jail.job import DEFAULT, Budget, Job, key_of
from attncourse.grading.jail.result import Result

RESULT = "result.json"  # beside the autograded notebook
LONGEST_NAME = 128  # of a student, in nbgrader's gradebook


class Unreleased(Refusal, FileNotFoundError):
    """The assignment's notebooks are not there."""


def submissions(assignment: str) -> dict[str, Path]:
    """Student -> the folder of what was handed in, in submitted/, without `unbookable` ones."""
    return {who: folder for who, folder in _folders(assignment).items() if _bookable(who)}


def unbookable(assignment: str) -> list[str]:
    """Names of folders in submitted/ that the gradebook cannot hold: these must be renamed."""
    return [who for who in _folders(assignment) if not _bookable(who)]


def _folders(assignment: str) -> dict[str, Path]:
    folders = Path("submitted").glob(f"*/{assignment}")
    return {folder.parent.name: folder for folder in sorted(folders) if folder.is_dir()}


def _bookable(student: str) -> bool:
    return len(student) <= LONGEST_NAME and student.isprintable()  # so it is UTF-8, too


def notebook_in(folder: Path) -> tuple[Path | None, str]:
    """The notebook to grade, and what is odd about it ("" if nothing is)."""
    wanted = folder / f"{folder.name}.ipynb"
    if wanted.is_file() and not wanted.is_symlink():
        return wanted, ""
    others = [p for p in sorted(folder.glob("*.ipynb")) if p.is_file() and not p.is_symlink()]
    if len(others) == 1:
        return others[0], f"the notebook was named {printable(others[0].name)}"
    if others:
        names = ", ".join(path.name for path in others[:9])
        return None, f"several notebooks, none named {wanted.name}: {printable(names)}"
    return None, "there is no notebook"


def result_path(assignment: str, student: str) -> Path:
    return Path("autograded") / student / assignment / RESULT


def record_path(assignment: str, student: str) -> Path:
    """The executed notebook, where nbgrader has its own."""
    return Path("autograded") / student / assignment / f"{assignment}.ipynb"


class Stored(NamedTuple):
    """A result on the disk."""

    key: str  # it was made under
    result: Result
    booked: bool  # the gradebook knows it


def load_result(path: Path) -> Stored | None:
    """What is stored; None if there is nothing, or something else: then it is graded again."""
    damaged = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        key, booked = data.pop("key"), data.pop("booked", False)
        return Stored(str(key), Result.from_data(data), booked is True)
    except (OSError, *damaged):
        return None


def store_result(path: Path, key: str, result: Result, booked: bool = False) -> None:
    data = {"key": key, "booked": booked} | result.as_data()
    graded = path.stat() if booked else None
    # That it is booked may be lost with the machine's power: then it is booked once more.
    store(path, json.dumps(data, indent=1, ensure_ascii=False), lasting=not booked)
    if graded:  # the file's time is when it was graded
        os.utime(path, ns=(graded.st_atime_ns, graded.st_mtime_ns))


def store(path: Path, text: str, lasting: bool = True) -> None:
    """Write a file so that it is there completely or not at all.

    A folder in its place, made by hand or by another program, stays beside it.
    """
    if path.is_dir():
        names = (path.with_name(f"{path.name}.{n}") for n in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
    write(path, text.encode(errors="replace"), lasting)


def job_of(
    assignment: str,
    jailed: bool = True,
    budget: Budget = DEFAULT,
    record: bool = True,
    checked: bool = True,
) -> Job:
    """What is to be done for an assignment.

    Args:
        checked: see that nobody disagrees about points of tasks. Who grades does it, with torch.

    Raises:
        Unreleased: it is not in solutions/, or not released yet.
        Refusal: one of its notebooks cannot be read.
        OtherPoints: solution and release disagree about what a cell is worth.
    """
    try:
        texts = [
            reading.course_notebook(Path(folder) / assignment / f"{assignment}.ipynb")[0]
            for folder in ("solutions", "exercises")
        ]
    except FileNotFoundError:
        raise Unreleased(f"{assignment} is not released; run `attncourse release` first") from None
    reading.check_points(assignment, *texts, tasks=checked)
    return Job(assignment, *texts, jailed, budget, record)


def is_stale(job: Job, student: str, key: str) -> bool:
    """Whether what was handed in would be graded anew; not if it is gone."""
    path, _ = notebook_in(Path("submitted") / student / job.assignment)
    try:
        return path is not None and key_of(job, path.read_bytes()) != key
    except OSError:
        return True
