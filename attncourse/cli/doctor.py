"""`attncourse doctor`: what is here, what is missing, and how to get it."""

import platform
import shutil
import sys
from importlib import metadata

import typer
from rich.console import Console
from rich.markup import escape

from attncourse import __version__, extras
from attncourse.cli.app import app, console

# What brings it, what it is needed for, and its packages.
PACKAGES = (
    ("", "", ("torch", "einops", "jaxtyping", "numpy")),
    ("notebook", "for the notebooks' pictures and numbers", ("matplotlib", "num2words")),
    ("notebook", "to check notebooks in a terminal", ("nbclient", "ipykernel", "watchfiles")),
    ("pytest", "to let pytest call the judge", ("pytest",)),
    ("grader", "to grade", ("nbgrader",)),
    ("book", "to build the book", ("jupyter-book",)),
)
SMALLER = f"the smaller one: pip uninstall torch, then {extras.CPU_TORCH}"
REPORT = "this is new to us: please report the line above as an issue of the course"
GOOD, BAD, ABSENT = "[green]✓[/]", "[red]✗[/]", "[dim]–[/]"  # the last: nothing needs it here
# An answer that is right everywhere, and spelled as no answer of the course's is.
SOFTMAX = """
import torch

def softmax(scores, dim=-1):
    powers = torch.exp(scores - torch.amax(scores, dim, keepdim=True))
    return powers / torch.sum(powers, dim, keepdim=True)
"""


def jail_state() -> tuple[str, str, str]:
    """Whether this machine grades an answer in a jail; only graders need that."""
    from importlib.util import find_spec

    if sys.platform != "linux":
        cure = "grade in WSL (aka.ms/wsl)" if sys.platform == "win32" else "grade on Linux"
        return "only on Linux; needed only to grade", ABSENT, cure
    if find_spec("nbgrader") is None:
        return "not tried; needed only to grade", ABSENT, ""
    from attncourse.grading import CannotGrade
    from attncourse.grading.jail.cures import cure_for, cure_of, in_words
    from attncourse.grading.jail.walls import Unavailable
    from attncourse.grading.jail.workers import in_own_process

    try:
        with Console(stderr=True).status("grading an answer in a jail, to see"):
            in_own_process(_one_answer(), None)
    except OSError as error:
        return f"cannot grade here: {in_words(error)}", BAD, cure_of(error)
    except (Unavailable, CannotGrade) as error:
        return f"cannot grade here: {error}", BAD, cure_for(str(error), REPORT)
    return "an answer was graded in one", GOOD, ""


def _one_answer():
    """A notebook with one right answer, as `attncourse grade` gets it."""
    import json

    from attncourse.checks import registry
    from attncourse.grading.jail.job import Job

    points = registry.find("softmax").points
    cells = [
        {
            "cell_type": "code",
            "id": name,
            "metadata": {
                "nbgrader": {"grade_id": name, "grade": graded, "solution": not graded}
                | ({"points": points} if graded else {})
            },
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        for name, graded, source in (
            ("softmax", False, SOFTMAX),
            ("softmax-check", True, 'check("softmax")'),
            ("softmax-hidden", True, 'check("softmax", seed=1)'),
        )
    ]
    text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    return Job("doctor", text, text)


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and how to get it."""
    import torch

    healthy = True

    def line(name: str, state: str, mark: str = GOOD, cure: str = "") -> None:
        nonlocal healthy
        healthy &= mark != BAD
        console.print(f"{mark} {name:<14} {escape(state)}", soft_wrap=True, highlight=False)
        if cure:
            console.print(f"  → {cure}", markup=False, soft_wrap=True, highlight=False)

    python = sys.version_info
    fits = (3, 11) <= python[:2] < (3, 14)
    mark, cure = (GOOD, "") if fits else (BAD, "use Python 3.11 to 3.13")
    line("Python", platform.python_version(), mark, cure)

    def package(name: str, extra: str, needed: str) -> None:
        try:
            line(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            state = f"missing, needed {needed}" if extra else "missing"
            cure = extras.cure(extra) if extra else "pip install attncourse"
            line(name, state, ABSENT if extra else BAD, cure)

    line("attncourse", __version__)  # also where it is on the path, and not installed
    for extra, needed, names in PACKAGES:
        for name in names:
            package(name, extra, needed)
    if torch.cuda.is_available():
        line("GPU", f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    else:
        large = "; this torch is the build for one, which is larger" * bool(torch.version.cuda)
        line("GPU", f"none{large}; everything here runs on the CPU", cure=large and SMALLER)
    line("jail", *jail_state())
    free = shutil.disk_usage(".").free / 2**30
    mark, cure = (GOOD, "") if free > 1 else (BAD, "grading needs about 1 GiB")
    line("disk", f"{free:.0f} GiB free", mark, cure)
    raise typer.Exit(0 if healthy else 1)
