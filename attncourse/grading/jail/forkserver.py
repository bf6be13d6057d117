"""The fork server: it loads torch once, and forks the zygotes and the workers.

    python -m attncourse.grading.jail.forkserver FD

Without it, each worker and each zygote would load torch, which takes as long as grading ten
students. It starts with a clean environment, so no secret of the instructor's is in the memory of
any fork; Python's own `multiprocessing.forkserver` starts with the environment of its parent. The
fork server forks the zygotes before it loads anything of the judge, and the workers after that.
All of them have the grader's pipe as their input, and end when the grader ends.
"""

import contextlib
import gc
import itertools
import os
import signal
import socket
import sys

from attncourse.grading.jail.processes import Forked, Started


def serve(control: socket.socket) -> None:
    """Load, fork as many zygotes as the first message says, and a worker for each one after it.

    Never returns.
    """
    gc.disable()  # it would look at a million new objects again and again
    from attncourse.checks import installed, registry
    from attncourse.grading.jail import child  # with torch

    child.torch_is_ready()
    installed.entry_points()  # all that is installed is looked through once, and not by every fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # no collection touches these pages, so the forks share them
    zygotes: list[Started] = []
    for _ in range(int(control.recv(16) or os._exit(0))):
        ours, theirs = socket.socketpair()
        number = os.fork()
        if number == 0:
            for each in (control, ours, *(way for way, _ in zygotes)):
                each.close()
            child.zygote(theirs)
            os._exit(0)
        theirs.close()
        zygotes.append((ours, Forked(os.pidfd_open(number))))

    # The zygotes load what children need, and at the same time the fork server what workers need.
    from attncourse.grading.jail import grade, workers  # noqa: F401

    registry.all_tasks()
    gc.enable()
    gc.freeze()
    for zygote in itertools.cycle(zygotes):
        _, handles, *_ = socket.recv_fds(control, 16, 2)
        if not handles:
            os._exit(0)  # the grader is gone, or needs no more
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel, news = handles
            with socket.socket(fileno=news) as grader, contextlib.suppress(BrokenPipeError):
                socket.send_fds(grader, [b"forked"], [os.pidfd_open(os.getpid())])
            # If the grader is gone, the worker finds its channel closed.
            workers.work(channel, zygote)
            os._exit(0)
        for each in handles:
            os.close(each)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
