"""Grading a class: every submission gets points or a reason, whatever happens on the way.

The work is one pure function, `grade_bytes`: a notebook's bytes in, plain data out. Worker
processes (or a cluster's) run it; this process alone writes results and the gradebook. A result is
on the disk before it is in the gradebook, and both before the next one, so that a run that was
killed goes on where it stopped.
"""

import functools
import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import attncourse
from attncourse.grading import submission as reading
from attncourse.grading.remote import Budget, Zygote
from attncourse.grading.score import Result, Verdict, score
from attncourse.grading.submission import Assignment

DEFAULT = Budget()
RESULT = "result.json"  # beside the autograded notebook


# --- the pure function --------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a worker needs to know; it never sees the course's folder."""

    assignment: str
    solution: str  # texts of the two notebooks
    released: str
    jailed: bool = True
    budget: Budget = DEFAULT


def grade_bytes(job: Job, data: bytes) -> dict:
    """Grade one submission.

    Raises:
        Unavailable: no jail can be built here, and the job asks for one.
    """
    return score(data, _assignment(job), _zygote(job.jailed), job.budget).as_data()


@functools.cache
def _assignment(job: Job) -> Assignment:
    return reading.assignment_of(job.assignment, job.solution, job.released)


@functools.cache
def _zygote(jailed: bool):
    return Zygote(jailed)


# --- what is there ------------------------------------------------------------------------------


def submissions(assignment: str) -> dict[str, Path]:
    """Student -> the folder of what was handed in, in submitted/."""
    folders = Path("submitted").glob(f"*/{assignment}")
    return {folder.parent.name: folder for folder in sorted(folders) if folder.is_dir()}


def notebook_in(folder: Path) -> tuple[Path | None, str]:
    """The notebook to grade, and what is odd about it ("" if nothing is)."""
    wanted = folder / f"{folder.name}.ipynb"
    if wanted.is_file() and not wanted.is_symlink():
        return wanted, ""
    others = [p for p in sorted(folder.glob("*.ipynb")) if p.is_file() and not p.is_symlink()]
    if len(others) == 1:
        return others[0], f"the notebook was named {others[0].name}"
    if others:
        names = ", ".join(path.name for path in others)
        return None, f"several notebooks, none named {wanted.name}: {names}"
    return None, "there is no notebook"


def result_path(assignment: str, student: str) -> Path:
    return Path("autograded") / student / assignment / RESULT


def load_result(path: Path) -> tuple[str, Result] | None:
    """A stored result and the key it was made under; None if there is none that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return data.pop("key"), Result.from_data(data)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def store_result(path: Path, key: str, result: Result) -> None:
    """Write a result so that it is there completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    text = json.dumps({"key": key} | result.as_data(), indent=1, ensure_ascii=False)
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


@functools.cache
def _version() -> bytes:
    """Changes with every file of the course's package."""
    digest = hashlib.sha256()
    for path in sorted(Path(attncourse.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def key_of(job: Job, data: bytes) -> str:
    """The same key, the same result: of a submission, the assignment and the judge."""
    digest = hashlib.sha256(_version())
    for part in (job.solution, job.released):
        digest.update(part.encode())
    digest.update(data)
    return digest.hexdigest()


def job_of(assignment: str, jailed: bool = True, budget: Budget = DEFAULT) -> Job:
    """Raises: FileNotFoundError: it is not in solutions/, or not released yet."""
    texts = [
        (Path(folder) / assignment / f"{assignment}.ipynb").read_text(encoding="utf-8")
        for folder in ("solutions", "exercises")
    ]
    return Job(assignment, *texts, jailed, budget)


# --- many ---------------------------------------------------------------------------------------


# Grades notebooks by student, in any order: yields data of a result, or why there is none.
GradeAll = Callable[[Job, dict[str, Path]], Iterator[tuple[str, dict | str]]]


def in_processes(jobs: int) -> GradeAll:
    """Grade on this machine, `jobs` at a time; a worker that dies costs nobody a result."""

    def grade_all(job: Job, notebooks: dict[str, Path]) -> Iterator[tuple[str, dict | str]]:
        left, tries = dict(notebooks), dict.fromkeys(notebooks, 0)
        while left:
            # The one that kills its worker cannot be told from its neighbors: each tries again,
            # the last time alone.
            alone = any(tries[student] > 1 for student in left)
            some = [next(s for s in left if tries[s] > 1)] if alone else list(left)
            with _pool(1 if alone else min(jobs, len(some))) as pool:
                try:
                    waiting = iter(some)
                    running = {}
                    while True:
                        for student in waiting:
                            data = left[student].read_bytes()
                            running[pool.submit(grade_bytes, job, data)] = student
                            if len(running) >= 2 * jobs:
                                break
                        if not running:
                            break
                        for future in wait(running, return_when=FIRST_COMPLETED).done:
                            student = running.pop(future)
                            tries[student] += 1
                            result = future.result()
                            del left[student]
                            yield student, result
                except BrokenProcessPool:
                    for student in running.values():
                        tries[student] += 1
                    if alone:
                        del left[some[0]]
                        yield some[0], "the process that graded it died, three times"
                except GeneratorExit:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise

    return grade_all


def _pool(jobs: int) -> ProcessPoolExecutor:
    os.environ["OMP_NUM_THREADS"] = "1"  # the submissions share the cores, not each of them all
    # On Ctrl-C only this process stops: the workers end when their queue is closed.
    quiet = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=spawn, **quiet)


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
    from attncourse.grading.gradebook import Writer, timestamp_of

    about = _assignment(job)
    todo, keys, odd = {}, {}, {}
    with Writer(about) as writer:

        def book(student: str, result: Result, fresh: bool) -> Event:
            if odd.get(student) and odd[student] not in result.repairs:
                result.repairs.append(odd[student])
            if fresh:
                store_result(result_path(job.assignment, student), keys[student], result)
            writer.write(student, result, timestamp_of(students[student]))
            return Event(student, result, fresh)

        for student, folder in students.items():
            path, odd[student] = notebook_in(folder)
            data = path.read_bytes() if path and path.stat().st_size <= reading.LARGEST else b""
            keys[student] = key_of(job, data)
            stored = load_result(result_path(job.assignment, student))
            if stored and stored[0] == keys[student] and not force:
                yield book(student, stored[1], fresh=False)
            elif path is None:
                yield book(student, nothing(about, odd.pop(student)), fresh=True)
            else:
                todo[student] = path
        for student, data in grade_all(job, todo):
            failed = isinstance(data, str)
            yield book(student, nothing(about, data) if failed else Result.from_data(data), True)


def nothing(about: Assignment, reason: str) -> Result:
    """The result of a submission that could not be judged."""
    verdicts = {g.task.name: Verdict(0, 0, g.points, "not readable") for g in about.graded}
    return Result(verdicts, review=[reason])
