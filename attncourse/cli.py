"""The command `attncourse`: a student's check and hints, an instructor's release and grading."""

import json
import os
import platform
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
console = Console()

LONGEST = 120  # seconds that a round of `check --watch` may take
DEFAULT = "03_scaled_dot_product"
Assignment = Annotated[str, typer.Argument(help="Name of the assignment, e.g. " + DEFAULT)]


def fail(message: str) -> typer.Exit:
    """Bad input: one sentence on stderr, exit code 2."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"attncourse: {message}")
    return typer.Exit(2)


def progress() -> Progress:
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
        raise fail(
            f"this command needs {', '.join(missing)}; get it with "
            f"`pip install 'attncourse[{extra}]'`"
        )


def read_notebook(path: Path):
    """The notebook in a file, or one sentence on what is wrong with it."""
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
    return sorted(path.name for path in Path("solutions").iterdir() if path.is_dir())


def known(assignment: str) -> str:
    names = assignment_names()
    if assignment not in names:
        raise fail(f"no assignment is named {assignment}; there are: {', '.join(names)}")
    return assignment


# --- for students -------------------------------------------------------------------------------


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Your notebook (.ipynb) or script (.py)")],
    watch: Annotated[bool, typer.Option("--watch", help="Judge again at every save")] = False,
) -> None:
    """Judge a file: run a notebook from top to bottom, or the answers in a script.

    The file itself is not changed. With --watch, only the definitions in a notebook are run, and
    you see how far you are, the first report that is not green, and the next hint.

    Exit code 0: everything passed; 1: something failed; 2: the file could not be judged.
    """
    if watch:
        watch_file(file)
    elif file.suffix == ".py":
        raise typer.Exit(0 if judge_answers(file) else 1)
    else:
        check_notebook(file)


def judge_answers(path: Path, briefly: bool = False) -> bool:
    """Judge the answers in a file; True if all tasks of its chapters pass.

    With `briefly`, show one line a task, the first report that is not green, and a hint.
    """
    from attncourse.checks import answers, run

    if not path.exists():
        raise fail(f"there is no file {path}")
    if path.suffix == ".ipynb":
        read_notebook(path)
    try:
        found = answers.load(path)
    except (Exception, SystemExit) as error:
        raise fail(f"{path} does not run: {type(error).__name__}: {error}") from None
    if not found:
        raise fail(f"{path} defines no answer; `attncourse tasks` lists their names")
    names = answers.of_chapters(found)
    reports = {}
    with progress() as bar:
        step = bar.add_task("judging", total=len(names))
        for name in names:
            reports[name] = run(name, found.get(name))
            bar.advance(step)
    red = [name for name, report in reports.items() if not report.passed]
    if briefly:
        for name, report in reports.items():
            mark = "✓" if report.passed else "✗" if name in found else "·"
            console.print(f"{mark} {name}: {report.earned:g} of {report.points:g} points")
        console.print()
    for name in red[:1] if briefly else names:
        if name in found:
            console.print(str(reports[name]) + "\n", markup=False, highlight=False, soft_wrap=True)
    if red and briefly:
        console.print(f"Next: {red[0]}. {reports[red[0]].about.hints[0]}", markup=False)
        console.print(f"More: attncourse hint {red[0]} 2", style="dim")
    done = len(names) - len(red)
    earned = sum(report.earned for report in reports.values())
    points = sum(report.points for report in reports.values())
    console.print(f"{done} of {len(names)} tasks, {earned:g} of {points:g} points", style="bold")
    return not red


def watch_file(path: Path) -> None:
    """Judge a file whenever it is saved, each time in a new process; Ctrl-C ends it."""
    import subprocess

    from watchfiles import watch

    if not path.exists():
        raise fail(f"there is no file {path}")
    code = "import sys; from attncourse.cli import judge_briefly; judge_briefly(sys.argv[1])"
    command = [sys.executable, "-c", code, str(path)]
    # Editors replace a file when they save it, so its folder is watched.
    changes = watch(path.resolve().parent, recursive=False, rust_timeout=200, yield_on_timeout=True)
    running = subprocess.Popen(command)
    started, waiting = time.monotonic(), True
    try:
        for change in changes:
            if any(Path(changed).name == path.name for _, changed in change):
                running.kill()
                running.wait()
                console.clear()
                running = subprocess.Popen(command)
                started, waiting = time.monotonic(), True
            elif waiting and running.poll() is not None:
                console.print(f"Waiting for {path} to be saved. Ctrl-C ends.", style="dim")
                waiting = False
            elif waiting and time.monotonic() - started > LONGEST:
                running.kill()
                console.print(f"Stopped after {LONGEST} seconds: an endless loop?", style="red")
    finally:
        running.kill()


def judge_briefly(path: str) -> None:
    """One round of `check --watch`."""
    try:
        judge_answers(Path(path), briefly=True)
    except (typer.Exit, KeyboardInterrupt):
        sys.exit(2)


def check_notebook(notebook: Path) -> None:
    need("grader", "nbclient", "ipykernel")
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    from attncourse.checks.report import MIME

    content = read_notebook(notebook)
    cells = [cell for cell in content.cells if cell.cell_type == "code"]
    with progress() as bar:
        step = bar.add_task(f"running {notebook.name}", total=len(cells))
        client = NotebookClient(
            content,
            timeout=120,
            allow_errors=True,
            kernel_name="python3",
            extra_arguments=["--Application.log_level=ERROR"],
            resources={"metadata": {"path": str(notebook.resolve().parent)}},
            on_cell_complete=lambda cell, cell_index: bar.advance(step, cell.cell_type == "code"),
        )
        stopped = None
        try:
            client.execute()
        except CellTimeoutError:
            stopped = "A cell ran for more than two minutes and was stopped: an endless loop?"
        except DeadKernelError:
            stopped = "The notebook's Python process died: out of memory, or a call to exit?"
    passed, earned, points, reports = True, 0.0, 0.0, 0
    for cell in cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                passed = False
                line = f"{output.ename}: {output.evalue}".strip().splitlines()[0]
                first = cell.source.strip().splitlines()[0]
                console.print(
                    f"✗ the cell that begins with `{first}` raised {line}\n", markup=False
                )
            elif MIME in output.get("data", {}):
                report = output["data"][MIME]
                reports += 1
                passed &= report["passed"]
                earned, points = earned + report["earned"], points + report["points"]
                text = output["data"]["text/plain"]
                console.print(text + "\n", markup=False, highlight=False, soft_wrap=True)
    if stopped:
        raise fail(stopped)
    if not reports:
        raise fail(f"{notebook} has no check cells, or none of them ran")
    console.print(f"{earned:g} of {points:g} points", style="bold")
    raise typer.Exit(0 if passed else 1)


@app.command()
def tasks() -> None:
    """List the tasks of the course: points, difficulty, minutes."""
    from attncourse.checks import engine

    table = Table("chapter", "task", "points", "difficulty", "minutes")
    for name, task in engine.all_tasks().items():
        stars = "●" * task.difficulty + "○" * (5 - task.difficulty)
        points = f"{engine.points_of(name):g}"
        table.add_row(Path(task.page).name, name, points, stars, str(task.minutes))
    console.print(table)


@app.command()
def hint(
    task: Annotated[str, typer.Argument(help="Name of the task, as in `attncourse tasks`")],
    number: Annotated[int, typer.Argument(min=1, max=3, help="1 nudge, 2 idea, 3 almost code")] = 1,
) -> None:
    """Show one hint for a task: first a nudge, then the idea, then almost code."""
    from attncourse.checks import engine

    try:
        hints = engine.find(task).hints
    except ValueError as error:
        raise fail(str(error)) from None
    console.print(hints[number - 1], markup=False, highlight=False)
    if number < 3:
        console.print(f"Still stuck? attncourse hint {task} {number + 1}", style="dim")


# --- for instructors ----------------------------------------------------------------------------


@app.command()
def release(assignment: Assignment = "") -> None:
    """Make the students' notebooks in exercises/ from solutions/ (all, or one assignment)."""
    need("grader", "nbgrader")
    from attncourse.grading import nbgrader_api

    names = [known(assignment)] if assignment else assignment_names()
    with progress() as bar:
        step = bar.add_task("releasing", total=len(names))
        for name in names:
            error = nbgrader_api.release(name)
            bar.advance(step)
            if error:
                raise fail(f"nbgrader could not release {name}: {error}")
    console.print(f"exercises/: {', '.join(names)}")


@app.command("sample-class")
def sample_class(
    assignment: Assignment = DEFAULT,
    students: Annotated[int, typer.Option(min=1, help="How many")] = 24,
) -> None:
    """Make up a class: submissions right, unusual, mistaken, half-empty and broken."""
    need("grader", "nbgrader")
    from attncourse.grading import sample

    released = Path("exercises") / known(assignment) / f"{assignment}.ipynb"
    if not released.exists():
        raise fail(f"{released} is not there yet; run `attncourse release` first")
    made = sample.write_class(assignment, students)
    console.print(f"submitted/: {students} submissions of {assignment}, {made} of them new")


@app.command()
def grade(
    assignment: Assignment = DEFAULT,
    students: Annotated[str, typer.Option(help="Only these, by name, with commas between")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="How many at a time")] = min(4, os.cpu_count()),
    force: Annotated[bool, typer.Option("--force", help="Also what did not change")] = False,
    no_jail: Annotated[
        bool, typer.Option("--no-jail", help="Run students' code as you, able to do what you can")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line per student")] = False,
) -> None:
    """Grade what is in submitted/ and not graded yet, into nbgrader's gradebook.

    Students' code runs in jails. Safe to interrupt at any moment: what is graded stays graded, and
    the next run goes on from there.

    Exit code 0: every submission has points, or a reason why a person should look.
    """
    need("grader", "nbgrader")
    from attncourse.grading import run
    from attncourse.grading.jail import Unavailable

    known(assignment)
    try:
        job = run.job_of(assignment, jailed=not no_jail)
    except FileNotFoundError:
        raise fail(f"{assignment} is not released; run `attncourse release` first") from None
    handed_in = run.submissions(assignment)
    if students:
        wanted = [name.strip() for name in students.split(",")]
        strangers = [name for name in wanted if name not in handed_in]
        if strangers:
            raise fail(f"nothing of {', '.join(strangers)} is in submitted/ for {assignment}")
        handed_in = {name: handed_in[name] for name in wanted}
    if no_jail:
        console.print("Without a jail: students' code can read and change what you can.")
    fresh, look = 0, {}
    with progress() as bar:
        step = bar.add_task("grading", total=len(handed_in))
        try:
            for event in run.grade_class(job, handed_in, run.in_processes(jobs), force):
                bar.advance(step)
                fresh += event.fresh
                if event.result.review:
                    look[event.student] = event.result.review
                if verbose:
                    line = f"{event.student}: {event.result.score:g} points"
                    took = f", {event.result.seconds:.1f} s" if event.fresh else ", as before"
                    bar.console.print(line + took, highlight=False)
        except Unavailable as error:
            raise fail(
                f"no jail can be built on this machine: {error}. On Linux, allow user namespaces; "
                "or accept that students' code runs as you, with --no-jail"
            ) from None
        except KeyboardInterrupt:
            raise fail("stopped; what is graded is kept, and the next run goes on") from None
    same = len(handed_in) - fresh
    console.print(f"graded {fresh} submissions of {assignment}; {same} had not changed")
    for student, reasons in look.items():
        console.print(f"look at {student}: {'; '.join(reasons)}", markup=False, highlight=False)


@app.command()
def report(assignment: Assignment = DEFAULT) -> None:
    """Show a graded class: points, and the misconception behind each wrong answer."""
    need("grader", "nbgrader")
    from attncourse.grading import results

    rows = results.of_class(known(assignment))
    if not rows:
        raise fail(f"nothing is graded yet for {assignment}; run `attncourse grade` first")
    table = Table("student", "points", "what was misunderstood")
    for row in rows:
        points = f"{row.score:g} of {row.max_score:g}" if row.score is not None else "not graded"
        wrong = "\n".join(f"{task}: {title}" for task, title in row.wrong.items())
        table.add_row(row.student, points + (" +" if row.needs_reading else ""), wrong)
    console.print(table)
    console.print("+ a written answer waits for a person: nbgrader formgrader", style="dim")
    thoughts = Table("students", "misconception", "what they probably think", box=None)
    for name, thought, count in results.by_frequency(rows):
        thoughts.add_row(str(count), name, thought)
    console.print(thoughts)


# --- for everybody ------------------------------------------------------------------------------


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
    free = shutil.disk_usage(".").free / 2**30
    enough = free > 1
    line("disk", f"{free:.0f} GiB free", enough, "" if enough else "grading needs about 1 GiB")
    raise typer.Exit(0 if healthy else 1)


def main() -> None:
    app()
