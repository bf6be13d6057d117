"""What all processes that grade have in common: surroundings, a log, and a handle to end them."""

import contextlib
import os
import select
import signal
import socket
import sys
import tempfile

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


def can_fork() -> bool:
    """Whether a process that has loaded torch may be forked, and a fork be ended by a handle."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return sys.platform == "linux"


class Log:
    """What processes write to their stderr. It is read only where they cannot do their work."""

    def __init__(self):
        if hasattr(os, "memfd_create"):  # in memory: it works on a full disk, too
            self.file = os.fdopen(os.memfd_create("log"), "w+b")
        else:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this object

    def fileno(self) -> int:
        return self.file.fileno()

    def length(self) -> int:
        return os.fstat(self.fileno()).st_size

    def cause(self, since: int = 0) -> str:
        """The first error after a place in the log, in its own words; "" if there is none."""
        text = os.pread(self.fileno(), 1 << 20, since).decode(errors="replace")
        _, _, error = text.partition("Traceback (most recent call last):\n")
        lines = (line.strip() for line in error.splitlines() if line[:1].strip())
        return next(lines, "")[:300]


class Forked:
    """A process that another one has forked: as much of `subprocess.Popen` as is needed.

    Args:
        handle: of the process; or a socket over which it comes as soon as the process runs.
    """

    def __init__(self, handle: int | socket.socket):
        self.handle: int | socket.socket | None = handle

    def kill(self) -> None:
        if isinstance(self.handle, socket.socket):
            with self.handle as news:
                handles = socket.recv_fds(news, 16, 1)[1]
            self.handle = handles[0] if handles else None  # None: the process was never forked
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def poll(self) -> int | None:
        """None while the process lives, as `Popen.poll` says it."""
        return 1 if select.select([self.handle], [], [], 0)[0] else None

    def communicate(self) -> None:
        """Wait for the end of a process that was killed."""
        if self.handle is not None:
            select.select([self.handle], [], [])
            os.close(self.handle)
            self.handle = None


Started = tuple[socket.socket, Forked]  # the way to a process, and the process
