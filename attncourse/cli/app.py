"""What all commands share: one way to say what is wrong, what is missing, how far one is."""

import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from attncourse import __version__, extras

if TYPE_CHECKING:
    from rich.progress import Progress


class Commands(typer.core.TyperGroup):
    """What cannot be done is one sentence, whichever command was to do it."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except Exception as error:
            from attncourse.grading import Refusal

            if isinstance(error, Refusal | extras.Missing):
                raise fail(str(error)) from None
            raise


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
console = Console()

DEFAULT = "03_scaled_dot_product"
Assignment = Annotated[str, typer.Argument(help="Its name, e.g. " + DEFAULT)]


def say_version(wanted: bool) -> None:
    if wanted:
        print(f"attncourse {__version__}")
        raise typer.Exit


@app.callback()
def of_all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=say_version, help="Say which version this is"
        ),
    ] = False,
) -> None:
    """Check answers and get hints; release, grade and report as a teacher."""


def fail(message: str) -> typer.Exit:
    """Bad input: one sentence on stderr, exit code 2."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"attncourse: {message}", markup=False)
    return typer.Exit(2)


def counted(number: int, noun: str) -> str:
    """E.g. "1 file", "2 files"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def progress() -> "Progress":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def need(extra: str, *modules: str) -> None:
    """Fail with the way out if an optional part is not installed."""
    from importlib.util import find_spec

    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise fail(f"this command needs {', '.join(missing)}; get it with `{extras.cure(extra)}`")


def need_unix() -> None:
    """For commands on students' work: Windows lacks the jails, locks and limits that they need."""
    if sys.platform == "win32":
        raise fail("students' work is graded on Linux, and not on Windows; use WSL (aka.ms/wsl)")


def read_notebook(path: Path):
    """The notebook in a file, or one sentence on what is wrong with it."""
    need("notebook", "nbformat")
    import nbformat

    if not path.exists():
        raise fail(f"there is no file {path}")
    if path.suffix != ".ipynb":
        raise fail(f"{path} is not a notebook (.ipynb)")
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (json.JSONDecodeError, nbformat.reader.NotJSONError, UnicodeDecodeError):
        raise fail(f"{path} is not a readable notebook: its JSON is broken") from None
    except (nbformat.ValidationError, AttributeError, KeyError, TypeError, OSError) as error:
        first = str(error).strip().splitlines()[0][:120]
        raise fail(f"{path} is not a valid notebook: {first}") from None
    return notebook


def assignment_names() -> list[str]:
    if not Path("nbgrader_config.py").exists():
        raise fail("run this in the course's own folder, the one with nbgrader_config.py")
    try:
        return sorted(path.name for path in Path("solutions").iterdir() if path.is_dir())
    except OSError as error:
        said = "it is a part of the course, and says which assignments there are"
        raise fail(f"solutions/: {error.strerror}; {said}") from None


def known(assignment: str) -> str:
    names = assignment_names()
    if assignment not in names:
        wanted = assignment.lstrip("0")
        near = [name for name in names if name.lstrip("0").startswith(wanted)]
        near = near or [name for name in names if wanted in name]
        near = near or difflib.get_close_matches(assignment, names)
        there = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names)}"
        raise fail(f"no assignment is named {assignment}; {there}")
    return assignment


def chosen(assignment: str) -> str:
    """The assignment that was named; else the only one with work, or the first to try."""
    if assignment:
        return known(assignment)
    names = assignment_names()
    begun = [name for name in names if any(Path("submitted").glob(f"*/{name}"))]
    if len(begun) > 1:
        raise fail(f"of which assignment? There is work of {', '.join(begun)}")
    name = (begun or [DEFAULT])[0]
    note = Console(stderr=True, highlight=False, soft_wrap=True)
    note.print(f"attncourse: no assignment was named; this is {name}", style="dim")
    return name
