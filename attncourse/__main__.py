"""The command `attncourse`, also as `python -m attncourse`."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attncourse import terminal

if TYPE_CHECKING:
    from attncourse.grading.jail.warm import Warm


def main() -> None:
    terminal.prepare(sys.stdout, sys.stderr)
    try:
        with _loading_torch() as warm:
            from attncourse.cli import app

            app(obj=warm)
    except KeyboardInterrupt:  # before there was a command that could say something
        sys.exit(130)


@contextlib.contextmanager
def _loading_torch() -> "Iterator[Warm | None]":
    """The fork server, which loads torch for `grade` while this process loads the command line."""
    warm = None
    if sys.argv[1:2] == ["grade"]:
        from attncourse.grading.jail.processes import can_fork
        from attncourse.grading.jail.warm import Warm

        warm = Warm() if can_fork() else None
    try:
        yield warm
    finally:
        if warm:
            warm.end()


if __name__ == "__main__":
    main()
