"""The judge: `check` an answer in a notebook, `run` one without a word, `hint` when stuck."""

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterator

from attncourse import terminal

__all__ = ["check", "hint", "run", "use", "warm_up"]

# Seconds: after which it is said that a check goes on, and that it is slow; and those that an
# answer has for all checks of a task where a class is graded.
SAID, WARNED, GRADED = 2.0, 8.0, 30.0


def check(
    answer: Callable | str,
    task: str | None = None,
    *,
    seed: int = 0,
    language: str | None = None,
) -> float:
    """Judge an answer, show the report, and return the points earned.

    nbgrader books the returned number as the points of the cell it stands in.

    Args:
        answer: the function under test, or its name: `check("softmax")` also works (and says so)
            when no `softmax` has been defined yet.
        task: the name of the task; by default the answer's own name.
        seed: of the random inputs.
        language: in which thoughts are named, such as "zh", as far as they are translated; by
            default that of the environment variable `ATTNCOURSE_LANG`.

    Raises:
        ValueError: there is no such task.
    """
    from attncourse.checks import prose
    from attncourse.checks.report import Points

    name = answer if isinstance(answer, str) else _name_of(answer)
    if isinstance(answer, str):
        answer = sys._getframe(1).f_globals.get(answer)
    with prose.speaking(language):
        with waiting(task or name):
            report = run(task or name, answer, seeds=(seed,))
        _show(report)
    return Points(report.earned)


def run(task: str, answer: Callable | None, seeds=(0,)):
    """Judge an answer and return a `Report` (`.task .points .earned .passed .results .diagnosis`).

    Args:
        task: the name of the task, as in `attncourse tasks`.
        answer: the function under test; None means that there is none.
        seeds: of the random inputs; a check must hold on every one.

    Raises:
        ValueError: there is no such task.
    """
    from attncourse.checks import engine  # torch's first import waits for the first check

    return dataclasses.replace(engine.run(task, answer, seeds), near=True)


@contextlib.contextmanager
def waiting(name: str) -> Iterator[None]:
    """Say that the check of an answer goes on, to somebody who waits for it; nothing in a pipe."""
    stream = sys.stdout
    said = {
        SAID: f"Checking `{name}` …",
        WARNED: f"`{name}` takes {WARNED:g} seconds by now. That is slow, and need not be wrong. "
        f"Where a class is graded, an answer has {GRADED:g} seconds for all checks: if yours goes "
        "through a tensor number by number, compute rows, or all of it, at once.",
    }
    timers = [threading.Timer(seconds, _tell, (line, stream)) for seconds, line in said.items()]
    if _in_a_notebook() or stream.isatty():
        for timer in timers:
            timer.daemon = True  # whoever interrupts a check need not wait for it
            timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _tell(line: str, stream) -> None:
    print(terminal.fitting(line, stream), file=stream, flush=True)


def hint(task: str) -> None:
    """Show the hints for a task: folded in a notebook, all three in a terminal.

    Raises:
        ValueError: there is no such task.
    """
    from attncourse.checks import registry, report

    _show(report.Hints(registry.find(task)))


def use(name: str) -> Callable:
    """The notebook's own answer if the judge accepts it, else the course's: nothing cascades.

    Raises:
        ValueError: there is no such task.
    """
    from attncourse.checks import registry

    answer = sys._getframe(1).f_globals.get(name)
    if run(name, answer).passed:
        return answer
    print(f"Your `{name}` is not finished yet, so this cell uses the course's.")
    return registry.find(name).reference


def warm_up() -> None:
    """Load what the first check needs (two seconds), so that it is as quick as the others."""
    from attncourse.checks import engine

    engine.run("softmax", lambda scores, dim=-1: scores.exp())


def _name_of(answer: Callable) -> str:
    while isinstance(answer, functools.partial):
        answer = answer.func
    return getattr(answer, "__name__", type(answer).__name__)


def _in_a_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return bool(ipython and ipython.get_ipython())


def _show(shown) -> None:
    if _in_a_notebook():
        sys.modules["IPython"].display.display(shown)
    else:
        print(terminal.fitting(str(shown), sys.stdout))
