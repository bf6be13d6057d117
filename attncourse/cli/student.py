"""Commands of who does the exercises, or writes tasks."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from attncourse.cli.app import app, console, fail, need, progress, read_notebook

LONGEST = 120  # seconds that a round of `check --watch` may take


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
    from attncourse.checks import answer_files, run

    if not path.exists():
        raise fail(f"there is no file {path}")
    if path.suffix == ".ipynb":
        read_notebook(path)
    try:
        found = answer_files.load(path)
    except (Exception, SystemExit) as error:
        raise fail(f"{path} does not run: {type(error).__name__}: {error}") from None
    if not found:
        raise fail(f"{path} defines no answer; `attncourse tasks` lists their names")
    names = answer_files.of_chapters(found)
    reports = {}
    with progress() as bar:
        step = bar.add_task("judging", total=len(names))
        for name in names:
            bar.update(step, description=f"judging {name}")
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
        nudge = next(iter(reports[red[0]].about.hints), "")
        console.print(f"Next: {red[0]}. {nudge}", markup=False)
        console.print(f"More: attncourse hint {red[0]} 2", style="dim")
    done = len(names) - len(red)
    earned = sum(report.earned for report in reports.values())
    points = sum(report.points for report in reports.values())
    console.print(f"{done} of {len(names)} tasks, {earned:g} of {points:g} points", style="bold")
    return not red


def watch_file(path: Path) -> None:
    """Judge a file whenever it is saved, each time in a new process; Ctrl-C ends it."""
    need("notebook", "watchfiles", *["nbformat"] * (path.suffix == ".ipynb"))
    import subprocess

    from watchfiles import watch

    if not path.exists():
        raise fail(f"there is no file {path}")
    code = "import sys; from attncourse.cli import student; student.judge_briefly(sys.argv[1])"
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
    need("notebook", "nbformat", "nbclient", "ipykernel")
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    from attncourse.checks.report import MIME

    content = read_notebook(notebook)
    make_room_for_kernels()
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


def make_room_for_kernels() -> None:
    """Jupyter keeps what it says to a kernel in the home folder: elsewhere if that is read-only."""
    import os
    import tempfile

    from jupyter_core.paths import jupyter_runtime_dir

    try:
        place = Path(jupyter_runtime_dir())
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="attncourse-")


@app.command()
def tasks() -> None:
    """List the tasks of the course: points, difficulty, minutes.

    A task's points are those of the check that you can run, and as many again for the same checks
    on other numbers, after you hand in. Written answers are listed in the course's own folder.
    """
    from rich.table import Table

    from attncourse.checks import registry

    chapters: dict[str, list] = {}
    for task in registry.all_tasks().values():
        chapters.setdefault(task.assignment, []).append(task)
    for assignment, tasks in chapters.items():
        rows = []
        for task in tasks:
            stars = "●" * task.difficulty + "○" * (5 - task.difficulty)
            points = f"{task.points:g} + {task.points:g}"
            rows.append((task.name, points, stars, str(task.minutes)))
        written = written_answers(assignment)
        rows += [(name, f"{points:g}", "written", "") for name, points in written.items()]
        most = sum(2 * task.points for task in tasks) + sum(written.values())
        table = Table(title=f"{assignment}: {most:g} points", title_justify="left", box=None)
        table.add_column("task", overflow="fold", min_width=32)
        for column in ("points", "difficulty", "minutes"):
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()


def written_answers(assignment: str) -> dict[str, float]:
    """Points of the questions that a person grades, by grade id; none without the notebook."""
    path = Path("exercises") / assignment / f"{assignment}.ipynb"
    found = {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else ()
    for cell in cells:
        mark = cell["metadata"].get("nbgrader", {})
        if mark.get("grade") and mark.get("solution"):
            found[mark["grade_id"]] = float(mark["points"])
    return found


@app.command()
def hint(
    task: Annotated[str, typer.Argument(help="Name of the task, as in `attncourse tasks`")],
    number: Annotated[int, typer.Argument(min=1, max=3, help="1 nudge, 2 idea, 3 almost code")] = 1,
) -> None:
    """Show one hint for a task: first a nudge, then the idea, then almost code."""
    from attncourse.checks import prose, registry

    try:
        about = registry.find(task)
    except ValueError as error:
        raise fail(str(error)) from None
    if len(about.hints) < number:
        raise fail(f"{task} has no hint {number}; `attncourse lint-task {task}` says why")
    if number == 1 and (asked := prose.sentence(about)):
        console.print(asked, style="bold", markup=False, highlight=False)
    console.print(about.hints[number - 1], markup=False, highlight=False)
    if number < 3:
        console.print(f"Still stuck? attncourse hint {task} {number + 1}", style="dim")


@app.command("new-task")
def new_task(
    name: Annotated[str, typer.Argument(help="Name of the function a student will write")],
    folder: Annotated[Path, typer.Option("--in", help="Where to make the package")] = Path("."),
) -> None:
    """Write a package with a task of your own: reference, wrong answer, notebook. Then edit it."""
    from attncourse import author

    try:
        made = author.write_package(name, folder)
    except (ValueError, FileExistsError) as error:
        raise fail(str(error)) from None
    for path in made:
        console.print(f"  {path}", markup=False, highlight=False)
    console.print(
        f"Edit {made[0].name}. Then: pip install -e {made[0].parent}; attncourse lint-task {name}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@app.command("lint-task")
def lint_task(
    names: Annotated[
        list[str], typer.Argument(help="Names of tasks, or a file (.py) that holds some")
    ],
) -> None:
    """Say what is wrong with a task: are its faults caught and told apart, is all of it there?

    In the course's folder it looks for its sections on the pages and its cells in the solutions.

    Exit code 0: nothing is wrong; 1: something is; 2: there is no such task.
    """
    from attncourse.checks import lint, registry, tables

    tasks, bad = [], 0
    for name in names:
        try:
            path = Path(name)
            tasks += registry.in_file(path) if path.suffix == ".py" else [registry.find(name)]
        except Exception as error:  # whatever a file raises that somebody is writing
            if said := registry.located(error):
                raise fail(said) from None
            raise
    pages = Path.cwd() if Path("_config.yml").exists() and Path("book").is_dir() else None
    for task in tasks:
        with console.status(f"{task.name}: looking at {len(task.faults)} faults"):
            found = list(lint.complaints(task, pages))
        for sentence in found:
            console.print(f"✗ {sentence}", markup=False, highlight=False, soft_wrap=True)
        if not found:
            faults = f"{len(task.faults)} fault{'s' if len(task.faults) != 1 else ''}"
            said = f"✓ {task.name}: {len(task.checks)} checks, {faults}, all told apart"
            console.print(said, markup=False, highlight=False)
            if pages and tables.is_wanted(task) and not tables.is_current(task):
                console.print("  This is not stored yet: make fingerprints", style="dim")
        bad += len(found)
    raise typer.Exit(1 if bad else 0)
