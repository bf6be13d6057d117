"""One process loads what all others need, and forks them: those that grade, and their zygotes.

    python -m attncourse.grading.jail.warm FD

Without it, each of them would load torch, which takes as long as to grade ten students.
It begins with a clean environment, so no secret of the instructor's is in the memory of any fork.
Zygotes are forked before anything of the judge is loaded, workers after; all end with the grader,
whose end closes their input.
"""

import contextlib
import gc
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from attncourse.grading import CannotGrade
from attncourse.grading.jail import cgroup

TOGETHER = 4  # workers that share a zygote, which needs a hundredth of a second for a fork

# What Python, its packages and the C library look for.
NEEDED = {
    *("HOME", "LANG", "TMPDIR", "TZ", "PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH"),
    *("DYLD_LIBRARY_PATH", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    "ATTNCOURSE_LANG",
}
GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # which ones a program sees


def surroundings() -> dict[str, str]:
    """The environment of what grades, without the instructor's secrets.

    What a process was started with stays in its memory, and in the memory of all its forks.
    """
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    kept = {k: v for k, v in os.environ.items() if k in NEEDED or k.startswith("LC_")}
    kept |= dict.fromkeys(threads, "1")  # children share the cores, not each has all
    # Where torch sees a GPU, autograd starts a thread for it, which would not survive a fork.
    return kept | dict.fromkeys(GPUS, "")


class Log:
    """What processes write to their stderr: nobody reads it, unless they cannot do their work."""

    def __init__(self):
        if hasattr(os, "memfd_create"):  # a full disk has its say, too
            self.file = os.fdopen(os.memfd_create("log"), "w+b")
        else:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this object

    def fileno(self) -> int:
        return self.file.fileno()

    def length(self) -> int:
        return os.fstat(self.fileno()).st_size

    def cause(self, since: int = 0) -> str:
        """The first error that was written after a place, in its own words; "" if there is none."""
        text = os.pread(self.fileno(), 1 << 20, since).decode(errors="replace")
        _, _, error = text.partition("Traceback (most recent call last):\n")
        lines = (line.strip() for line in error.splitlines() if line[:1].strip())
        return next(lines, "")[:300]


def can_fork() -> bool:
    """Whether a process that has loaded torch may be forked, and a fork be ended by a handle."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return sys.platform == "linux"


# --- the grader's side --------------------------------------------------------------------------


class Warm:
    """The process that forks; it is ready a while after it was made. One that dies is replaced."""

    def __init__(self):
        cgroup.take()
        self.zygotes, self.lock, self.log = 0, threading.Lock(), Log()
        self.started: list[subprocess.Popen] = []  # all but the last are dead, and forks live on
        self._start()

    def for_workers(self, number: int) -> "Warm":
        """Say how many it will fork, more or less; before it knows, it loads only torch."""
        self.zygotes = 1 + (number - 1) // TOGETHER
        self._tell()
        return self

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # it is dead: that is seen when it is to fork
            self.control.send(str(self.zygotes).encode())

    def _start(self) -> None:
        # Of messages, each is read by itself.
        self.control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # nothing comes: its end is the end of all forks
            stderr=self.log,
            env=surroundings(),
            start_new_session=True,  # Ctrl-C stops the grader, which ends the others
        )
        self.started.append(self.process)
        theirs.close()

    def fork(self, channel: socket.socket) -> "Forked":
        """A worker (see `workers.work`) that listens to a channel.

        Raises:
            CannotGrade: what forks workers cannot load what they need.
        """
        news, theirs = socket.socketpair()
        with theirs, self.lock:
            if select.select([self.control], [], [], 0)[0]:  # it says nothing: this is its end
                if (code := self.process.wait()) > 0:  # by itself: the next one would do the same
                    raise CannotGrade(self.log.cause() or f"what loads torch ends with code {code}")
                self.control.close()
                self._start()
                self._tell()
            # It may die now, and nobody is born: that is seen when the worker is asked.
            with contextlib.suppress(OSError):
                socket.send_fds(self.control, [b"fork"], [channel.fileno(), theirs.fileno()])
        return Forked(news)

    def end(self) -> None:
        self.control.close()
        for process in self.started:
            process.kill()
            process.communicate()


class Forked:
    """A process that another one has forked: as much of `subprocess.Popen` as is needed.

    Args:
        handle: of the process; or a socket over which it sends one when it is born.
    """

    def __init__(self, handle: int | socket.socket):
        self.handle: int | socket.socket | None = handle

    def kill(self) -> None:
        if isinstance(self.handle, socket.socket):
            with self.handle as news:
                handles = socket.recv_fds(news, 16, 1)[1]
            self.handle = handles[0] if handles else None  # it was never born
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def poll(self) -> int | None:
        """None while it lives."""
        return 1 if select.select([self.handle], [], [], 0)[0] else None

    def communicate(self) -> None:
        """Wait for the end of one that was killed."""
        if self.handle is not None:
            select.select([self.handle], [], [])
            os.close(self.handle)
            self.handle = None


# --- the warm process ---------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Load, hear how many zygotes there shall be, and fork a worker for every message after that.

    Never returns.
    """
    gc.disable()  # it would look at a million new objects again and again
    from attncourse.checks import installed, registry
    from attncourse.grading.jail import child  # with torch; the rest both load side by side

    child.torch_is_ready()
    installed.entry_points()  # all that is installed is looked through once, and not by every fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # no collection touches these pages, so the forks share them
    born = []
    for _ in range(int(control.recv(16) or os._exit(0))):
        ours, theirs = socket.socketpair()
        number = os.fork()
        if number == 0:
            for each in (control, ours, *(before for before, _ in born)):
                each.close()
            child.zygote(theirs)
            os._exit(0)
        theirs.close()
        born.append((ours, Forked(os.pidfd_open(number))))

    from attncourse.grading.jail import grade, workers  # noqa: F401

    registry.all_tasks()
    gc.enable()
    gc.freeze()
    for zygote in itertools.cycle(born):
        _, handles, *_ = socket.recv_fds(control, 16, 2)
        if not handles:
            os._exit(0)  # the grader is gone, or needs no more
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel, news = handles
            with socket.socket(fileno=news) as grader, contextlib.suppress(BrokenPipeError):
                socket.send_fds(grader, [b"born"], [os.pidfd_open(os.getpid())])
            # If the grader is gone, the worker finds its channel closed.
            workers.work(channel, zygote)
            os._exit(0)
        for each in handles:
            os.close(each)


if __name__ == "__main__":
    from attncourse.grading.jail import warm  # by the name that others know it by

    warm.serve(socket.socket(fileno=int(sys.argv[1])))
