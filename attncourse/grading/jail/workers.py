"""Workers: they grade one submission after the other, and one that dies costs nobody a result."""

import collections
import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path

from attncourse.grading import CannotGrade
from attncourse.grading.inbox.submission import OtherPoints
from attncourse.grading.inbox.untrusted import limited_memory, printable
from attncourse.grading.jail import cgroup
from attncourse.grading.jail.job import TRIES, Job
from attncourse.grading.jail.processes import Log, Started, can_fork, surroundings
from attncourse.grading.jail.walls import Unavailable
from attncourse.grading.jail.warm import Warm

DIED = f"was killed {TRIES} times"
SPARE = 120.0  # seconds beyond the budget, for what is read and judged outside of the jail
PROOF = 180.0  # seconds for the course's own solution, and to load what judges it

# Grades notebooks by student, in any order: yields data of a result, or why nobody could judge it.
GradeAll = Callable[[Job, dict[str, Path]], Iterator[tuple[str, dict | str]]]


def in_processes(jobs: int, warm: Warm | None = None) -> GradeAll:
    """Grade on this machine, `jobs` at a time; a worker that dies costs nobody a result.

    Args:
        warm: the fork server, if it was started beforehand. It ends with the grading.
    """

    def grade_all(job: Job, notebooks: dict[str, Path]) -> Iterator[tuple[str, dict | str]]:
        graded = _graded(jobs, warm, job, notebooks)
        next(graded)
        return graded

    return grade_all


def _graded(
    jobs: int, warm: Warm | None, job: Job, notebooks: dict[str, Path]
) -> Iterator[tuple[str, dict | str]]:
    """What comes of each notebook; what is yielded first says that the workers begin to load."""
    if warm is None and notebooks and can_fork():
        warm = Warm().for_workers(jobs)
    idle = [Worker(job, warm) for _ in range(min(jobs, len(notebooks)))]
    busy: dict[Worker, str | None] = {}
    # Those that may take long come first, so that at the end no worker waits long for another.
    by_size = sorted(notebooks, key=lambda student: -_size(notebooks[student]))
    waiting: collections.deque[str | None] = collections.deque(by_size)
    proven, deaths = False, collections.Counter()
    in_a_row = 0  # deaths since anybody was judged
    done: list[tuple[str, dict | str]] = []
    given_up: dict[str, str] = {}  # students who are not judged, if the machine can grade
    try:
        if idle:  # None: the course's own solution, which says whether this machine can grade
            idle[-1].take(None)
            busy[idle.pop()] = None
        yield "", ""
        while True:
            while idle and waiting:
                student = waiting.popleft()
                try:
                    idle[-1].take(student and notebooks[student].read_bytes())
                except OSError as error:
                    done.append((student, f"the file cannot be read: {error.strerror}"))
                else:
                    busy[idle.pop()] = student
            if proven:
                yield from done  # the workers do not wait for what is done with it
                done = []
            if not busy:
                return
            ready = connection.wait(busy, timeout=min(worker.left() for worker in busy))
            for worker in [each for each in busy if each in ready or not each.left()]:
                try:
                    reply = worker.reply()
                except Unavailable:
                    if not proven:
                        raise
                    reply = None  # a moment ago one could: the machine is short of something
                student, late = busy.pop(worker), reply == worker.too_long
                died = late or reply is None
                if died:
                    cause = worker.cause()
                    worker.end()
                    worker = Worker(job, warm)
                idle.append(worker)
                if not died:
                    in_a_row = 0
                    if student is None:
                        proven, deaths[None] = True, 0
                        done += given_up.items()
                        given_up = {}
                    else:
                        done.append((student, reply))
                    continue
                deaths[student] += 1
                in_a_row += 1
                if student is None:
                    if late or cause or deaths[None] == TRIES:
                        raise CannotGrade(reply or cause or f"the process for it {DIED}")
                elif late or deaths[student] == TRIES:
                    given_up[student] = reply or f"the process that graded it {DIED}"
                else:
                    waiting.append(student)
                asked = None in waiting or None in busy.values()
                if not asked and (late or deaths[student] > 1 or in_a_row > 1 or student is None):
                    waiting.appendleft(None)
    finally:
        ending = [worker.process for worker in (*idle, *busy)] + (warm.started if warm else [])
        for process in ending:  # all at once: each takes a hundredth of a second to end
            process.kill()
        for worker in (*idle, *busy):
            worker.end()
        if warm:
            warm.end()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it is said when its turn comes
        return 0


class Worker:
    """A worker, as the grader sees it; the worker ends when the grader does."""

    def __init__(self, job: Job, warm: Warm | None = None):
        if job.jailed:
            cgroup.take()
        ours, theirs = socket.socketpair()
        self.channel = connection.Connection(ours.detach())
        self.log = warm.log if warm else Log()
        self.log_began = self.log.length()
        self.process = warm.fork(theirs) if warm else _start(theirs.fileno(), self.log)
        theirs.close()
        with contextlib.suppress(BrokenPipeError):  # a dead worker has no reply
            self.channel.send(job)
        self.seconds = TRIES * job.budget.submission + job.budget.record + SPARE
        self.too_long, self.deadline = "", 0.0

    def fileno(self) -> int:
        return self.channel.fileno()

    def take(self, data: bytes | None) -> None:
        """Give the worker a submission; or None, to be graded: the course's own solution."""
        seconds = PROOF if data is None else self.seconds
        self.deadline = time.monotonic() + seconds
        self.too_long = f"to read and judge it takes more than {seconds:.0f} seconds"
        with contextlib.suppress(BrokenPipeError):  # a dead worker has no reply
            self.channel.send(data)

    def left(self) -> float:
        """Seconds that the worker still has for the submission."""
        return max(0.0, self.deadline - time.monotonic())

    def reply(self) -> dict | str | None:
        """What came of the submission; None if the worker died; `too_long` if it is to be ended.

        Raises:
            CannotGrade: the machine fails with the course's own solution.
            Unavailable: no jail can be built here.
            OtherPoints: the release says something else about points than the tasks.
        """
        try:
            if not self.channel.poll(self.left()):
                return self.too_long
            reply = self.channel.recv()
        except (EOFError, OSError):
            return None
        if isinstance(reply, Unavailable | OtherPoints | CannotGrade):
            raise self._explained(reply)
        return reply

    def _explained(self, error: Exception) -> Exception:
        """The error with its first cause, if a process that died has written one to the log."""
        cause = self.cause() if isinstance(error, CannotGrade) else ""
        return CannotGrade(f"{error}: {cause}") if cause else error

    def cause(self) -> str:
        """Why the worker died, if it or the fork server wrote that to the log."""
        return printable(self.log.cause(self.log_began))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.channel.close()


def _start(handle: int, log: Log) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {__name__} import work; work({handle})"],
        pass_fds=[handle],
        stdin=subprocess.PIPE,  # nothing comes; when it ends, the worker does
        stderr=log,
        env=surroundings(),
        start_new_session=True,  # Ctrl-C reaches the grader alone, which ends the workers
    )


_mine = threading.local()  # of each thread: its last job, and the worker for that job
_one_warm = threading.Lock()


def _warm() -> Warm | None:
    """The fork server for all threads of this process; it ends with this process."""
    with _one_warm:
        return _only_warm() if can_fork() else None


@functools.cache
def _only_warm() -> Warm:
    return Warm().for_workers(1)


def in_own_process(job: Job, data: bytes) -> dict | str:
    """Grade one submission in a worker that stays warm for the next of the same job.

    Each worker proves first that it can grade, so one that follows a dead one does.

    Raises:
        CannotGrade: the machine fails with the course's own solution.
        Unavailable: no jail can be built here.
    """
    for _ in range(TRIES):
        last, worker = vars(_mine).pop("kept", (None, None))
        if worker and last != job:
            worker.end()
        if not worker or last != job:
            worker = _proven(job)
        if reply := _asked(worker, data):
            if reply == worker.too_long:
                break
            _mine.kept = job, worker
            return reply
    _mine.kept = job, _proven(job)
    return reply or f"the process that graded it {DIED}"


def _proven(job: Job) -> "Worker":
    """A new worker that has all points for the course's own solution.

    Raises:
        CannotGrade: no such worker can be had here.
    """
    for _ in range(TRIES):
        worker = Worker(job, _warm())
        reply = _asked(worker, None)
        if reply == worker.too_long:
            raise CannotGrade(reply)
        if reply:
            return worker
        if cause := worker.cause():
            raise CannotGrade(cause)
    raise CannotGrade(f"the process for it {DIED}")


def _asked(worker: "Worker", data: bytes | None) -> dict | str | None:
    """The worker's reply. A worker that is dead or late is ended."""
    reply = None
    try:
        worker.take(data)
        reply = worker.reply()
    finally:
        # A worker that is late or was interrupted would give this reply to the next question.
        if reply is None or reply == worker.too_long:
            worker.end()
    return reply


# --- a worker's own side ------------------------------------------------------------------------


def work(handle: int, zygote: Started | None = None) -> None:
    """A worker's life.

    Args:
        handle: of the channel to the grader.
        zygote: one that is there already; without it, the worker starts its own.
    """
    from attncourse.grading.jail import grade  # with torch, which the grader need not load

    grade.use_zygote(zygote)
    threading.Thread(target=_end_with_grader, daemon=True).start()
    channel = connection.Connection(handle)
    with contextlib.suppress(EOFError, OSError):
        job = channel.recv()
        with contextlib.suppress(Unavailable, CannotGrade):  # said when a submission is graded
            grade.zygote(job.jailed)  # before the limit, which is not for the children
        with limited_memory():
            grade.get_ready(job)
            _serve(channel, job)


def _serve(channel: connection.Connection, job: Job) -> None:
    from attncourse.grading.jail import grade
    from attncourse.grading.jail.remote import Killed

    while True:
        data = channel.recv()
        try:
            reply = grade.prove(job) if data is None else grade.grade_or_say_why(job, data)
        except (Unavailable, OtherPoints, CannotGrade) as error:
            reply = error
        except Killed:
            return  # a new worker may have more luck
        channel.send(reply)


def _end_with_grader() -> None:
    """Wait for the end of the grader, and end this worker, its zygote and its children."""
    while os.read(0, 1):  # not `sys.stdin`, whose lock would disturb the worker's own end
        pass
    os._exit(1)
