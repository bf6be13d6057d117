"""Write a task of your own, in a package of your own.

    from attncourse.author import task

    @task(inputs=[{"weights": torch.tensor([0.5, 0.5])}, …], hints=("…", "…", "…"))
    def entropy(weights):
        return torch.special.entr(weights).sum(-1)

    @entropy.fault("E-NAN", "0 · log 0 is 0.", "log 0 is minus infinity, and 0 times that is NaN.")
    def _(weights):
        return -(weights * weights.log()).sum(-1)

Register the module as an entry point of the group `attncourse.tasks`. Then the task is judged,
hinted, released and graded like the course's own. `attncourse new-task` writes such a package, and
`attncourse lint-task` says what is wrong with it. The book has a page on it: "Write your own task".
"""

import keyword
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from attncourse.checks.answer import Answer, Failure, Inputs, compare, moves_nothing
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.prose import Words
from attncourse.checks.task import BadTask, Chapter, Task

__all__ = [
    "Answer",
    "Chapter",
    "Failure",
    "Task",
    "causal",
    "compare",
    "dead_mask",
    "integers",
    "mixed_mask",
    "moves_nothing",
    "normal",
    "task",
    "write_package",
]


def task(
    inputs: list[Inputs] | Callable[[torch.Generator], list[Inputs]],
    hints: tuple[str, ...] = (),
    **about,
) -> Callable:
    """Decorator: make a task of a reference function.

    It gets a check for each of the inputs, worth one point ("it is right on input 1"), and one
    that nothing else changes; `@name.check(points)` adds others.

    Args:
        inputs: at least two sets of arguments, by name, on which wrong answers tell themselves
            apart; or a function that draws them, which gives every student fresh numbers.
        hints: three (a nudge, the idea, almost code), if no file of words gives them.
        about: what else there is to say, as in `Task`: returns, section, difficulty,
            minutes, forbidden, tolerance, …

    Raises:
        BadTask: the reference cannot be called with them, or there is only one set.
    """

    def make(reference: Callable) -> Task:
        def drawn(rng: torch.Generator) -> list[Inputs]:
            return inputs(rng) if callable(inputs) else inputs

        first = drawn(torch.Generator().manual_seed(0))
        if len(first) < 2:
            raise BadTask(f"{reference.__name__}: give at least two sets of inputs")
        returned = _returned(reference, first[0])
        names = [f"input {number}" for number in range(1, len(first) + 1)]
        about.setdefault("returns", _returns(returned))
        if isinstance(about["returns"], tuple):
            about.setdefault("differentiated", tuple(names))
        made = Task(
            reference,
            probes=lambda rng: dict(zip(names, drawn(rng), strict=True)),
            small=lambda rng: iter(sorted(drawn(rng), key=_size)),
            said=Words(hints=tuple(hints)),
            **about,
        )
        for place, name in enumerate(names):
            made.check(1)(_right_on(place, name, drawn))
        made.check(1)(_nothing_else(drawn))
        return made

    return make


def _returned(reference: Callable, inputs: Inputs) -> object:
    try:
        return reference(**inputs)
    except Exception as error:
        raise BadTask(
            f"{reference.__name__}: the reference fails on its first inputs "
            f"({type(error).__name__}: {error})"
        ) from error


def _returns(value: object) -> tuple[str, ...] | type:
    """What an answer returns, as `Task` says it."""
    if isinstance(value, Tensor):
        return ("result",)
    if isinstance(value, tuple):
        return tuple(f"result {number}" for number in range(1, len(value) + 1))
    return type(value)


def _size(inputs: Inputs) -> int:
    return sum(value.numel() for value in inputs.values() if isinstance(value, Tensor))


def _right_on(place: int, name: str, drawn: Callable) -> Callable:
    def check(answer: Answer, rng: torch.Generator) -> None:
        answer.matches(drawn(rng)[place])

    check.__name__ = f"it is right on {name}"
    return check


def _nothing_else(drawn: Callable) -> Callable:
    def it_changes_nothing_but_its_result(answer: Answer, rng: torch.Generator) -> None:
        moves_nothing(answer, drawn(rng)[0])

    return it_changes_nothing_but_its_result


# --- a new package ------------------------------------------------------------------------------

MODULE = '''"""Tasks of my own."""

import torch

from attncourse.author import Chapter, task

# The name of the folder in solutions/, and what a report calls this place.
chapter = Chapter("{package}", "{words}", page="")


@task(
    inputs=[
        {{"x": torch.tensor([1.0, 2.0, 3.0])}},
        {{"x": torch.tensor([[1.0, -1.0], [0.5, 4.0]])}},
    ],
    minutes=10,
)
def {name}(x):
    return x.square().mean(-1)  # the right answer


@{name}.fault("{letter}-SUM")
def _(x):
    return x.square().sum(-1)  # the wrong answer
'''

WORDS = """# {name}

What is asked, in a sentence.

## Hints

1. A nudge: what is asked?
2. The idea: which operation does it?
3. Almost code: one line of words.

## {letter}-SUM

What the student probably thinks, in one sentence.

> Why that is wrong, without giving the solution away.
"""

PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{project}"
version = "0.1.0"
dependencies = ["attncourse"]

[project.entry-points."attncourse.tasks"]
{package} = "{package}.{package}"

[tool.setuptools]
packages = ["{package}"]
package-dir = {{"{package}" = "."}}
package-data = {{"{package}" = ["*.md"]}}
"""


def write_package(name: str, folder: Path) -> list[Path]:
    """Write a package with one task to edit, and the notebook that students get.

    Args:
        name: of the function that a student will write.
        folder: in which the package's folder is made.

    Returns:
        The files: the module, what is read of it, pyproject.toml, and the instructor's notebook.

    Raises:
        ValueError: the name is no name in Python, or a task of that name is there.
        FileExistsError: so is the folder.
    """
    from attncourse.checks import registry

    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot be the name of a function")
    if name in registry.all_tasks():
        raise ValueError(f"there is a task named {name!r} already; take another name")
    package = f"{name.lower()}_lab"
    place = folder / package
    if place.exists():
        raise FileExistsError(f"{place} is there already; it was not changed")
    words = package.replace("_", " ")
    letter = name[0].upper()
    files = {
        f"{package}.py": MODULE.format(name=name, package=package, words=words, letter=letter),
        f"{name}.md": WORDS.format(name=name, letter=letter),
        "pyproject.toml": PROJECT.format(package=package, project=package.replace("_", "-")),
        f"{package}.ipynb": _notebook(name, package, words),
    }
    place.mkdir(parents=True)
    for file, text in files.items():
        (place / file).write_text(text, encoding="utf-8")
    return [place / file for file in files]


def _notebook(name: str, package: str, words: str) -> str:
    """The instructor's notebook, for solutions/<package>/."""
    import json

    def mark(grade_id: str, solution: bool) -> dict:
        about = {"grade_id": grade_id, "solution": solution, "grade": not solution}
        points = {} if solution else {"points": 0}  # the task's own, written at release
        return about | points | {"locked": not solution, "task": False, "schema_version": 3}

    place = f"# attncourse: {package}/{name}"
    cells = [
        ("markdown", "intro", f"# {words.capitalize()}\n\nWhat this is about.", None),
        ("code", "bootstrap", BOOTSTRAP, None),
        ("markdown", "task", f"## 1. {name}\n\nWrite `{name}(x)`. What it takes and gives.", None),
        ("code", "answer", ANSWER.format(place=place, name=name), mark(name, True)),
        ("code", "hints", f'hint("{name}")', None),
        ("code", "check", f'{place} check\ncheck("{name}")', mark(f"{name}-check", False)),
        ("code", "hidden", HIDDEN.format(place=place, name=name), mark(f"{name}-hidden", False)),
    ]
    made = []
    for kind, id, source, about in cells:
        cell = {"cell_type": kind, "id": id, "metadata": {"nbgrader": about} if about else {}}
        cell["source"] = source.splitlines(keepends=True)
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4}
    return json.dumps(notebook | {"nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"


BOOTSTRAP = """# attncourse: bootstrap
import torch

import attncourse
from attncourse import check, hint

attncourse.welcome()"""
ANSWER = """{place}
def {name}(x):
    ### BEGIN SOLUTION
    return x.square().mean(-1)
    ### END SOLUTION"""
HIDDEN = """{place} hidden check
### BEGIN HIDDEN TESTS
check("{name}", seed=31)
### END HIDDEN TESTS"""
