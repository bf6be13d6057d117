"""Grading a class: every submission gets points or a reason, whatever happens on the way.

The work is one pure function, `grade_bytes`: a notebook's bytes in, plain data out. Worker
processes (or a cluster's) run it; this process alone writes results and the gradebook. A result is
on the disk before it is in the gradebook, and both before the next one, so that a run that was
killed goes on where it stopped.
"""

import collections
import contextlib
import functools
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import NamedTuple

import attncourse
from attncourse.checks import registry
from attncourse.grading import Refusal, cgroup, record
from attncourse.grading import submission as reading
from attncourse.grading.jail import Unavailable
from attncourse.grading.remote import TRIES, Born, Budget, Killed, children
from attncourse.grading.score import Result, Verdict, score
from attncourse.grading.submission import Assignment
from attncourse.grading.untrusted import MEMORY, limited_memory, printable
from attncourse.grading.warm import Warm, can_fork, surroundings

DEFAULT = Budget()
RESULT = "result.json"  # beside the autograded notebook
LONGEST_NAME = 128  # of a student, in nbgrader's gradebook
DIED = f"the process that graded it died {TRIES} times"
SPARE = 120.0  # seconds beyond the budget, for what is read and judged outside of the jail


class Unreleased(Refusal, FileNotFoundError):
    """The assignment's notebooks are not there."""


# --- the pure function --------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a worker needs to know; it never sees the course's folder."""

    assignment: str
    solution: str  # texts of the two notebooks
    released: str
    jailed: bool = True
    budget: Budget = DEFAULT
    record: bool = True  # also the executed notebook


def grade_bytes(job: Job, data: bytes) -> dict:
    """Grade one submission.

    Returns:
        "result", a `Result` as data, and "notebook", the executed notebook's text or None.

    Raises:
        Unavailable: no jail can be built here, and the job asks for one.
    """
    about, zygote = assignment(job), _zygote(job.jailed)
    for _ in range(TRIES):
        result = score(data, about, zygote, job.budget)
        if not result.disturbed:
            break
    notebook = None
    if job.record:
        notebook = record.executed(data, job.released, about, result, zygote, job.budget)
    if result.disturbed:
        result.review.append(f"{result.disturbed}, {TRIES} times: short of memory? Grade again")
    return {"result": result.as_data(), "notebook": notebook}


@functools.cache
def assignment(job: Job) -> Assignment:
    """The assignment of a job, as its two notebooks say it."""
    return reading.assignment_of(job.assignment, job.solution, job.released)


@functools.cache
def _zygote(jailed: bool):
    return children(jailed, _born)


_born: Born | None = None  # the zygote that a worker was born with


# --- what is there ------------------------------------------------------------------------------


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
    """What is stored; None if there is nothing that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        key, booked = data.pop("key"), data.pop("booked", False)
        return Stored(key, Result.from_data(data), booked)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def store_result(path: Path, key: str, result: Result, booked: bool = False) -> None:
    data = {"key": key, "booked": booked} | result.as_data()
    graded = path.stat() if booked else None
    # That it is booked may be lost with the machine's power: then it is booked once more.
    store(path, json.dumps(data, indent=1, ensure_ascii=False), lasting=not booked)
    if graded:  # the file's time is when it was graded
        os.utime(path, ns=(graded.st_atime_ns, graded.st_mtime_ns))


def store(path: Path, text: str, lasting: bool = True) -> None:
    """Write a file so that it is there completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.part")  # somebody else may write the same one
    with scratch.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
    scratch.replace(path)


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


def job_of(
    assignment: str, jailed: bool = True, budget: Budget = DEFAULT, record: bool = True
) -> Job:
    """What is to be done for an assignment.

    Raises:
        Unreleased: it is not in solutions/, or not released yet.
        OtherPoints: solution and release disagree about what a cell is worth.
    """
    try:
        texts = [
            (Path(folder) / assignment / f"{assignment}.ipynb").read_text(encoding="utf-8")
            for folder in ("solutions", "exercises")
        ]
    except FileNotFoundError:
        raise Unreleased(f"{assignment} is not released; run `attncourse release` first") from None
    reading.check_points(assignment, *texts)
    return Job(assignment, *texts, jailed, budget, record)


def is_stale(job: Job, student: str, key: str) -> bool:
    """Whether what was handed in would be graded anew; not if it is gone."""
    path, _ = notebook_in(Path("submitted") / student / job.assignment)
    try:
        return path is not None and key_of(job, path.read_bytes()) != key
    except OSError:
        return True


# --- many ---------------------------------------------------------------------------------------


# Grades notebooks by student, in any order: yields data of a result, or why there is none.
GradeAll = Callable[[Job, dict[str, Path]], Iterator[tuple[str, dict | str]]]


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


def in_processes(jobs: int, warm: Warm | None = None) -> GradeAll:
    """Grade on this machine, `jobs` at a time; a worker that dies costs nobody a result.

    Args:
        warm: what forks the workers, if it was started beforehand. It ends with the grading.
    """

    def grade_all(job: Job, notebooks: dict[str, Path]) -> Iterator[tuple[str, dict | str]]:
        nonlocal warm
        if warm is None and notebooks and can_fork():
            warm = Warm(job.jailed, jobs)
        idle = [Worker(job, warm) for _ in range(min(jobs, len(notebooks)))]
        busy: dict[Worker, str] = {}
        jails = False  # whether one could be built
        waiting, deaths = collections.deque(notebooks), collections.Counter()
        done: list[tuple[str, dict | str]] = []
        try:
            while True:
                while idle and waiting:
                    student = waiting.popleft()
                    try:
                        idle[-1].take(notebooks[student].read_bytes())
                    except OSError as error:
                        done.append((student, f"the file cannot be read: {error.strerror}"))
                    else:
                        busy[idle.pop()] = student
                yield from done  # the workers do not wait for what is done with it
                if not busy:
                    return
                done = []
                ready = connection.wait(busy, timeout=min(worker.left() for worker in busy))
                for worker in [each for each in busy if each in ready or not each.left()]:
                    try:
                        reply = worker.reply()
                        jails |= reply is not None
                    except Unavailable:
                        if not jails:
                            raise
                        reply = None  # a moment ago one could: the machine is short of something
                    student = busy.pop(worker)
                    if reply is None or reply == worker.too_long:
                        worker.end()
                        worker = Worker(job, warm)
                    if reply is None:
                        deaths[student] += 1
                        if deaths[student] == TRIES:
                            done.append((student, DIED))
                        else:
                            waiting.append(student)
                    else:
                        done.append((student, reply))
                    idle.append(worker)
        finally:
            for worker in (*idle, *busy):
                worker.end()
            if warm:
                warm.end()

    return grade_all


class Worker:
    """A process that grades one submission after the other; it ends when this one does."""

    def __init__(self, job: Job, warm: Warm | None = None):
        if job.jailed:
            cgroup.take()
        ours, theirs = socket.socketpair()
        self.channel = connection.Connection(ours.detach())
        self.process = (warm and warm.fork(theirs)) or subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import work; work({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # nothing comes: its end is the end of this process
            env=surroundings(),
            start_new_session=True,  # Ctrl-C stops this process, which ends the others
        )
        theirs.close()
        with contextlib.suppress(BrokenPipeError):  # it is dead, and has no reply
            self.channel.send(job)
        self.seconds = TRIES * job.budget.submission + job.budget.record + SPARE
        self.too_long = f"to read and judge it takes more than {self.seconds:.0f} seconds"
        self.deadline = 0.0

    def fileno(self) -> int:
        return self.channel.fileno()

    def take(self, data: bytes) -> None:
        self.deadline = time.monotonic() + self.seconds
        with contextlib.suppress(BrokenPipeError):  # it is dead, and has no reply
            self.channel.send_bytes(data)

    def left(self) -> float:
        """Seconds that it still has for the submission."""
        return max(0.0, self.deadline - time.monotonic())

    def reply(self) -> dict | str | None:
        """What came of the submission; None if the process died. `too_long`: end this one.

        Raises:
            Unavailable: no jail can be built here.
        """
        try:
            if not self.channel.poll(self.left()):
                return self.too_long
            reply = self.channel.recv()
        except (EOFError, OSError):
            return None
        if isinstance(reply, Unavailable):
            raise reply
        return reply

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.channel.close()


_mine = threading.local()  # of a thread: the job it had last, and the worker for that


def in_own_process(job: Job, data: bytes) -> dict | str:
    """Grade one submission in a worker that stays warm for the next of the same job.

    Raises:
        Unavailable: no jail can be built here.
    """
    for _ in range(TRIES):
        last, worker = vars(_mine).pop("kept", (None, None))
        if worker and last != job:
            worker.end()
        if not worker or last != job:
            worker = Worker(job)
        reply = None
        try:
            worker.take(data)
            reply = worker.reply()
        finally:
            # Dead, late, or interrupted: the next question would get this reply.
            if reply is None or reply == worker.too_long:
                worker.end()
        if reply == worker.too_long:
            return reply
        if reply is not None:
            _mine.kept = job, worker
            return reply
    return DIED


def work(handle: int, born: Born | None = None) -> None:
    """A worker's life."""
    global _born
    _born = born
    threading.Thread(target=_end_with_grader, daemon=True).start()
    channel = connection.Connection(handle)
    with contextlib.suppress(EOFError, OSError):
        job = channel.recv()
        with contextlib.suppress(Unavailable):  # said when the first submission is graded
            _zygote(job.jailed)  # before the limit, which its children do not need
        with limited_memory():
            _serve(channel, job)


def _serve(channel: connection.Connection, job: Job) -> None:
    while True:
        data = channel.recv_bytes()
        try:
            reply = grade_or_say_why(job, data)
        except Unavailable as error:
            reply = error
        except Killed:
            return  # a new worker may have more luck
        channel.send(reply)


def _end_with_grader() -> None:
    """Nobody wants the results any more; the zygote and its children end with this process."""
    while os.read(0, 1):  # not `sys.stdin`: its lock would disturb the end of this process
        pass
    os._exit(1)


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

    about = assignment(job)
    todo, keys, odd, known = {}, {}, {}, {}
    with Writer(about) as writer:

        def book(student: str, result: Result, fresh: bool, notebook: str | None = None) -> Event:
            if odd.get(student) and odd[student] not in result.repairs:
                result.repairs.append(odd[student])
            place = result_path(job.assignment, student)
            if fresh:
                kept = record_path(job.assignment, student)
                kept.unlink(missing_ok=True)  # an older one would show other code
                if notebook:
                    store(kept, notebook)
                store_result(place, keys[student], result)
            before = known.get(student)
            writer.write(student, result, timestamp_of(students[student]), before)
            if fresh or before is None:
                store_result(place, keys[student], result, booked=True)
            return Event(student, result, fresh)

        for student, folder in students.items():
            path, odd[student] = notebook_in(folder)
            try:
                if path and (size := path.stat().st_size) > reading.LARGEST:
                    path, odd[student] = None, f"the notebook has {size / 2**20:.0f} MiB"
                data = path.read_bytes() if path else b""
            except OSError as error:
                path, odd[student] = None, f"the file cannot be read: {error.strerror}"
                data = b""
            keys[student] = key_of(job, data)
            stored = load_result(result_path(job.assignment, student))
            if stored and stored.booked:
                known[student] = stored.result
            recorded = not job.record or record_path(job.assignment, student).exists()
            if stored and stored.key == keys[student] and recorded and not force:
                yield book(student, stored.result, fresh=False)
            elif path is None:
                result = nothing(about, odd.pop(student))
                yield book(
                    student, result, True, job.record and record.unread(job.released, about, result)
                )
            else:
                todo[student] = path
        for student, data in grade_all(job, todo):
            if isinstance(data, str):
                keys[student] = ""  # the next run tries again
                result = nothing(about, data)
                notebook = job.record and record.unread(job.released, about, result)
            else:
                result, notebook = Result.from_data(data["result"]), data["notebook"]
                if result.disturbed:
                    keys[student] = ""
            yield book(student, result, True, notebook)


def nothing(about: Assignment, reason: str) -> Result:
    """The result of a submission that could not be judged."""
    verdicts = {g.task.name: Verdict(0, 0, g.points, "not readable") for g in about.graded}
    return Result(verdicts, review=[reason])
