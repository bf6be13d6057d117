"""The command `attncourse`: a student's check and hints, an instructor's release and grading."""

import contextlib
import sys


def main() -> None:
    with _warm_ahead() as warm:
        # The commands, in this order; to load them takes a tenth of what to load torch does.
        from attncourse.cli import student, teacher, doctor  # noqa: F401, I001
        from attncourse.cli.app import app

        app(obj=warm)


@contextlib.contextmanager
def _warm_ahead():
    """What `grade` will need, begun before anything else is loaded; and ended with it."""
    warm = None
    if sys.argv[1:2] == ["grade"]:
        from attncourse.grading.jail.warm import Warm, can_fork

        warm = Warm() if can_fork() else None
    try:
        yield warm
    finally:
        if warm:
            warm.end()
