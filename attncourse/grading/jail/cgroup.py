"""Limits that Linux itself keeps over all processes of a jail together: control groups, version 2.

They count what no look at processes does: files in memory, buffers of pipes and sockets, and all of
it at every moment. Only who was given a group may make groups below it ("delegation"), as by

    systemd-run --user --scope -p Delegate=yes attncourse grade …

The kernel's rules are in https://docs.kernel.org/admin-guide/cgroup-v2.html. A group that hands out
limits may hold no process itself, so the grader goes one level down, and its jails stand beside it:

    given/grader         the grader, its fork server, workers and zygotes
    given/jail-PID-SLOT  one jail
"""

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
GRADER = "grader"


def _own() -> Path:
    """The group of this process. Raises OSError if there is none of version 2."""
    for line in OWN.read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            return ROOT / path.lstrip("/")
    raise FileNotFoundError("no control group of version 2")


def take() -> bool:
    """Make room for groups below that of this process, before it starts any other.

    Returns:
        Whether it was given to us. Then all that this process starts can make a `Group`.
    """
    try:
        given = _own()
        if given.name == GRADER:
            return True
        if "memory" not in (given / "cgroup.controllers").read_text().split():
            return False
        (given / GRADER).mkdir(exist_ok=True)
        (given / GRADER / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return False
    try:
        (given / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError:  # other programs are in the group, such as a shell
        with contextlib.suppress(OSError):
            (given / "cgroup.procs").write_text(str(os.getpid()))
            (given / GRADER).rmdir()
        return False
    return True


class Group:
    """A jail's own.

    Raises:
        OSError: none can be made, since nobody has called `take`, or it was not possible.
    """

    def __init__(self, slot: int, memory: int, processes: int):
        own = _own()
        if own.name != GRADER:
            raise PermissionError("no control group was given to the grader")
        mine = f"jail-{os.getpid()}-"
        for old in own.parent.glob(f"{mine}*"):
            with contextlib.suppress(OSError):  # its last process is not gone yet
                old.rmdir()
        self.path = own.parent / f"{mine}{slot}"
        self.path.mkdir()
        self._set("memory.max", memory)
        self._set("memory.oom.group", 1)  # the kernel ends all of it, or nothing
        with contextlib.suppress(FileNotFoundError):  # a machine without swap
            self._set("memory.swap.max", 0)
        self._set("pids.max", processes)

    def _set(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))

    def add(self, pid: int) -> None:
        """Let a process, and all that it will start, count here."""
        self._set("cgroup.procs", pid)

    def was_full(self) -> bool:
        """Whether the kernel ended the jail at this limit, and not at one of the machine's."""
        try:
            lines = (self.path / "memory.events.local").read_text().splitlines()
            return any(int(line.split()[1]) for line in lines if line.startswith("oom "))
        except OSError:
            return False
