"""Run a command as an ordinary user, although this is root: `python tests/ordinary.py COMMAND`.

Python may lie below a folder that is root's alone, such as /root. Then that folder is, for this
command, an empty one in which there is nothing but Python.
"""

import os
import stat
import sys
from pathlib import Path

from attncourse.grading.jail import walls

NOBODY = 65534


def main(command: list[str]) -> None:
    walls._call("unshare", "mounts of its own", walls._libc.unshare(walls.NEW_MOUNTS))
    python = Path(sys.base_prefix)
    opened = os.open(python, os.O_PATH)
    walls._mount(None, "/", None, walls.RECURSIVE | walls.PRIVATE)
    closed = [p for p in python.parents if not p.stat().st_mode & stat.S_IXOTH]
    if closed:
        walls._mount("tmpfs", str(closed[-1]), "tmpfs", 0, "mode=755")
        walls._bind(opened, str(python))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.environ["HOME"] = "/tmp"
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
