"""The grader's side of the fork server: start it, have workers forked, replace it if it dies."""

import contextlib
import select
import socket
import subprocess
import sys
import threading

from attncourse.grading import CannotGrade
from attncourse.grading.jail import cgroup
from attncourse.grading.jail.processes import Forked, Log, surroundings

TOGETHER = 4  # workers that share a zygote: it needs a hundredth of a second for a fork
SERVER = "attncourse.grading.jail.forkserver"


class Warm:
    """The fork server, as the grader sees it. One that dies is replaced.

    It takes a while to load; what it is told meanwhile it does after that.
    """

    def __init__(self):
        cgroup.take()
        self.zygotes, self.lock, self.log = 0, threading.Lock(), Log()
        self.started: list[subprocess.Popen] = []  # all but the last are dead; their forks live on
        self._start()

    def for_workers(self, number: int) -> "Warm":
        """Say how many workers will be asked for, more or less.

        Until the fork server knows, it loads torch, and nothing else.
        """
        self.zygotes = 1 + (number - 1) // TOGETHER
        self._tell()
        return self

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # the fork server is dead, as `fork` will see
            self.control.send(str(self.zygotes).encode())

    def _start(self) -> None:
        # SEQPACKET keeps messages apart.
        self.control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", SERVER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # nothing comes; when it ends, the fork server and all forks end
            stderr=self.log,
            env=surroundings(),
            start_new_session=True,  # Ctrl-C reaches the grader alone, which ends the others
        )
        self.started.append(self.process)
        theirs.close()

    def fork(self, channel: socket.socket) -> Forked:
        """Have a worker forked, which listens to a channel (see `workers.work`).

        Raises:
            CannotGrade: the fork server cannot load what the workers need.
        """
        news, theirs = socket.socketpair()
        with theirs, self.lock:
            if select.select([self.control], [], [], 0)[0]:  # it never sends: it has ended
                if (code := self.process.wait()) > 0:  # of its own: the next would, too
                    raise CannotGrade(self.log.cause() or f"what loads torch ends with code {code}")
                self.control.close()
                self._start()
                self._tell()
            # If the fork server dies before it forks, there is no worker. Whoever asks the worker
            # finds the channel closed.
            with contextlib.suppress(OSError):
                socket.send_fds(self.control, [b"fork"], [channel.fileno(), theirs.fileno()])
        return Forked(news)

    def end(self) -> None:
        self.control.close()
        for process in self.started:
            process.kill()
            process.communicate()
