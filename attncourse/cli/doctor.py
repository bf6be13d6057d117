"""`attncourse doctor`: what is here, what is missing, and how to get it."""

import platform
import shutil
import sys
from importlib import metadata

import typer
from rich.console import Console

from attncourse.cli.app import ALLOW_JAILS, app, console


def jail_state() -> tuple[str, bool, str]:
    """For `doctor`: whether a jail can be built here. Only graders need one."""
    from importlib.util import find_spec

    if sys.platform == "win32":
        return "none on Windows; needed only to grade", True, "grade in WSL (aka.ms/wsl)"
    if find_spec("nbgrader") is None:
        return "not tried; needed only to grade", True, ""
    from attncourse.grading.jail.remote import why_no_jail

    with Console(stderr=True).status("building a jail, to see"):
        reason = why_no_jail()
    if reason:
        unlimited = "memory, files, network" if sys.platform == "darwin" else "files, network"
        cure = f"{ALLOW_JAILS}. With --no-jail, time is limited, and not: {unlimited}"
        return f"cannot be built, and is needed to grade: {reason}", True, cure
    return "students' code runs in one when it is graded", True, ""


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and how to get it."""
    import torch

    healthy = True

    def line(name: str, state: str, good: bool = True, cure: str = "") -> None:
        nonlocal healthy
        healthy &= good
        mark = "[green]✓[/]" if good else "[red]✗[/]"
        console.print(f"{mark} {name:<14} {state}" + (f"\n  → {cure}" if cure else ""))

    python = sys.version_info
    fits = (3, 11) <= python[:2] < (3, 14)
    line("Python", platform.python_version(), fits, "" if fits else "use Python 3.11 to 3.13")

    def package(name: str, extra: str = "") -> None:
        wanted = f"attncourse[{extra}]" if extra else "attncourse"
        try:
            line(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            needed = {"grader": "to check files and grade", "book": "to build the book"}
            state = f"missing, needed {needed[extra]}" if extra else "missing"
            line(name, state, bool(extra), f"pip install '{wanted}'")

    for name in ("attncourse", "torch", "einops", "jaxtyping", "matplotlib", "pytest"):
        package(name)
    for name in ("nbgrader", "nbclient", "ipykernel"):
        package(name, "grader")
    package("jupyter-book", "book")
    if torch.cuda.is_available():
        line("GPU", f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    else:
        line("GPU", "none; everything here runs on the CPU")
    line("jail", *jail_state())
    free = shutil.disk_usage(".").free / 2**30
    enough = free > 1
    line("disk", f"{free:.0f} GiB free", enough, "" if enough else "grading needs about 1 GiB")
    raise typer.Exit(0 if healthy else 1)
