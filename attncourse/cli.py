"""The command `attncourse`: a student's check and hints, an instructor's release and grading."""

import collections
import functools
import json
import os
import platform
import shutil
import sys
import time
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


class Commands(typer.core.TyperGroup):
    """What cannot be done is one sentence, whichever command was to do it."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except Exception as error:
            from attncourse.grading import Refusal

            if isinstance(error, Refusal):
                raise fail(str(error)) from None
            raise


app = typer.Typer(
    cls=Commands,
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
console = Console()

LONGEST_NOTE = 300  # characters of what is said about a file
LONGEST = 120  # seconds that a round of `check --watch` may take
DEFAULT = "03_scaled_dot_product"
Assignment = Annotated[str, typer.Argument(help="Its name, e.g. " + DEFAULT)]


def fail(message: str) -> typer.Exit:
    """Bad input: one sentence on stderr, exit code 2."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"attncourse: {message}", markup=False)
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
    """List the tasks of the course: points, difficulty, minutes.

    A task's points are those of the check that you can run, and as many again for the same checks
    on other numbers, after you hand in. Written answers are listed in the course's own folder.
    """
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
    for cell in read_notebook(path).cells if path.exists() else ():
        mark = cell.metadata.get("nbgrader", {})
        if mark.get("grade") and mark.get("solution"):
            found[mark["grade_id"]] = float(mark["points"])
    return found


@app.command()
def hint(
    task: Annotated[str, typer.Argument(help="Name of the task, as in `attncourse tasks`")],
    number: Annotated[int, typer.Argument(min=1, max=3, help="1 nudge, 2 idea, 3 almost code")] = 1,
) -> None:
    """Show one hint for a task: first a nudge, then the idea, then almost code."""
    from attncourse.checks import registry

    try:
        hints = registry.find(task).hints
    except ValueError as error:
        raise fail(str(error)) from None
    console.print(hints[number - 1], markup=False, highlight=False)
    if number < 3:
        console.print(f"Still stuck? attncourse hint {task} {number + 1}", style="dim")


# --- for authors of tasks -----------------------------------------------------------------------


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
    """Say what is wrong with a task: are its faults caught and told apart, are its sections there?

    Exit code 0: nothing is wrong; 1: something is; 2: there is no such task.
    """
    from attncourse.checks import lint, registry

    tasks, bad = [], 0
    for name in names:
        try:
            path = Path(name)
            tasks += registry.in_file(path) if path.suffix == ".py" else [registry.find(name)]
        except (ValueError, registry.Mistake, OSError) as error:
            raise fail(str(error)) from None
    pages = Path.cwd() if Path("_config.yml").exists() else None
    for task in tasks:
        with console.status(f"{task.name}: looking at {len(task.faults)} faults"):
            found = list(lint.complaints(task, pages))
        for sentence in found:
            console.print(f"✗ {sentence}", markup=False, highlight=False, soft_wrap=True)
        if not found:
            faults = f"{len(task.faults)} fault{'s' if len(task.faults) != 1 else ''}"
            said = f"✓ {task.name}: {len(task.checks)} checks, {faults}, all told apart"
            console.print(said, markup=False, highlight=False)
        bad += len(found)
    raise typer.Exit(1 if bad else 0)


# --- for instructors ----------------------------------------------------------------------------


@app.command()
def release(assignment: Assignment = "") -> None:
    """Make the students' notebooks in exercises/ from solutions/ (all, or one assignment)."""
    need("grader", "nbgrader")
    from attncourse.grading.books import nbgrader_api
    from attncourse.grading.inbox.submission import check_points

    names = [known(assignment)] if assignment else assignment_names()
    with progress() as bar:
        step = bar.add_task("releasing", total=len(names))
        for name in names:
            solution = Path("solutions") / name / f"{name}.ipynb"
            check_points(name, solution.read_text(encoding="utf-8"))
            error = nbgrader_api.release(name)
            bar.advance(step)
            if error:
                raise fail(f"nbgrader could not release {name}: {error}")
    console.print(f"exercises/: {', '.join(names)}")


@app.command("sample-class")
def sample_class(
    assignment: Assignment = "",
    students: Annotated[int, typer.Option(min=1, help="How many")] = 24,
) -> None:
    """Make up a class: submissions right, unusual, mistaken, half-empty and broken."""
    need("grader", "nbgrader")
    from attncourse.grading.inbox import sample

    assignment = chosen(assignment)
    released = Path("exercises") / assignment / f"{assignment}.ipynb"
    if not released.exists():
        raise fail(f"{released} is not there yet; run `attncourse release` first")
    made = sample.write_class(assignment, students)
    console.print(f"submitted/: {students} submissions of {assignment}, {made} of them new")


@app.command()
def ingest(
    files: Annotated[list[Path], typer.Argument(help="Notebooks, folders, or zips")],
    assignment: Annotated[str, typer.Option(help="Refuse what is of another one")] = "",
    student: Annotated[str, typer.Option(help="All of it is of this one")] = "",
    roster: Annotated[
        Path | None, typer.Option(help="CSV: a column id, and names, e-mails, LMS ids beside it")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say it, but write nothing")] = False,
) -> None:
    """File what students sent into submitted/: notebooks, folders, zips of a course system.

    Whose a file is, its name or folder says (Canvas, Moodle, Gradescope, one folder a student),
    of several zips each one's own name; which assignment, its content. Lost marks are put back.
    What is replaced is kept beside it.

    Exit code 0: everything is filed; 1: something is not, with the reason.
    """
    need("grader", "nbgrader")
    from attncourse.grading.books.gradebook import roster as registered
    from attncourse.grading.inbox import ingest as desk
    from attncourse.grading.inbox.archives import Refused, unpack
    from attncourse.grading.inbox.senders import roster_in, safe_name
    from attncourse.grading.inbox.untrusted import limited_memory

    known(assignment) if assignment else assignment_names()
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        raise fail(f"there is no {', '.join(missing)}")
    if student and student != safe_name(student):
        raise fail(f"{student!r} is no name for a folder; try {safe_name(student)!r}")
    try:
        by_name = roster_in(roster) if roster else registered()
    except Refused as error:
        raise fail(str(error)) from None
    clerk = desk.Desk(desk.Course.here(), student, assignment, by_name, dry_run)
    rows, stopped = [], False
    with limited_memory(), progress() as bar:
        try:
            sent = unpack(*files)
            if not sent:
                raise fail(f"there is nothing in {', '.join(map(str, files))}")
            for each in bar.track(sent, description="filing"):
                rows += clerk.take(each)
        except KeyboardInterrupt:
            stopped = True
    complete = show_filed(desk.settled(rows), desk.OUTCOMES, clerk.ignored, dry_run)
    if stopped:
        raise fail("stopped; what is filed is filed, run it again for the rest")
    raise typer.Exit(0 if complete else 1)


def show_filed(rows: list, outcomes: tuple[str, ...], ignored: int, dry_run: bool) -> bool:
    """Print what was odd and what is not filed; True if everything is."""
    from rich.text import Text

    from attncourse.grading.inbox.untrusted import printable

    told = Table("student", "file", "what was done")
    refused = Table("student", "file", "not filed, because")
    for row in rows:
        if row.notes:
            notes = "\n".join(printable(note)[:LONGEST_NOTE] for note in row.notes)
            cells = (row.student or "?", printable(row.source)[:LONGEST_NOTE], notes)
            table = told if row.outcome else refused
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    for table in (told, refused):
        if table.row_count:
            console.print(table)
    counts = {name: sum(row.outcome == name for row in rows) for name in outcomes}
    counts |= {"not filed": refused.row_count}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing"
    console.print(f"submitted/{' (dry run)' if dry_run else ''}: {said}", highlight=False)
    of = collections.Counter(row.assignment for row in rows if row.assignment and row.outcome)
    if of:
        said = ", ".join(f"{count} of {name}" for name, count in of.most_common())
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    if ignored:
        console.print(f"{ignored} files of the computer's own are passed over", style="dim")
    return not refused.row_count


@app.command()
def grade(
    ctx: typer.Context,
    assignment: Assignment = "",
    students: Annotated[str, typer.Option(help="Only these, by name, with commas between")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="How many at a time")] = min(4, os.cpu_count()),
    force: Annotated[bool, typer.Option("--force", help="Also what did not change")] = False,
    no_jail: Annotated[
        bool, typer.Option("--no-jail", help="Run students' code as you, able to do what you can")
    ] = False,
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Only points, no executed notebooks")
    ] = False,
    cluster: Annotated[
        str, typer.Option(help="Address of a dask scheduler, e.g. tcp://10.0.0.1:8786")
    ] = "",
    log: Annotated[
        Path | None, typer.Option(help="A line per student goes here [autograded/ASSIGNMENT.log]")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show these lines")] = False,
) -> None:
    """Grade what is in submitted/ and not graded yet, into nbgrader's gradebook.

    Students' code runs in jails. Safe to interrupt at any moment: what is graded stays graded, and
    the next run goes on from there.

    Exit code 0: every submission has points, or a reason why a person should look; 1: one has a
    name that no gradebook can hold.
    """
    if sys.platform == "win32":
        raise fail("students' code cannot be jailed on Windows; grade in WSL (aka.ms/wsl)")
    need("grader", "nbgrader")
    if cluster:
        need("cluster", "distributed")
    assignment = chosen(assignment)
    warm = None if cluster else warm_up(ctx, assignment, jobs, not no_jail, force)
    from attncourse.grading.books import disk, run
    from attncourse.grading.books.gradebook import NotReleased
    from attncourse.grading.books.nbgrader_api import NoGradebook
    from attncourse.grading.inbox.untrusted import alike, printable
    from attncourse.grading.jail import workers
    from attncourse.grading.jail.cluster import Unusable, on_cluster
    from attncourse.grading.jail.walls import Unavailable

    job = disk.job_of(assignment, jailed=not no_jail, record=not no_record)
    handed_in, nameless = disk.submissions(assignment), disk.unbookable(assignment)
    if not (handed_in or nameless):
        cure = "`attncourse ingest FILES` files what students sent"
        raise fail(f"nothing of {assignment} is in submitted/; {cure}")
    namesakes = alike(list(handed_in))
    if students:
        wanted = [name.strip() for name in students.split(",")]
        strangers = [name for name in wanted if name not in handed_in]
        if strangers:
            raise fail(f"nothing of {', '.join(strangers)} is in submitted/ for {assignment}")
        handed_in = {name: handed_in[name] for name in wanted}
    if no_jail:
        console.print(
            "Without a jail: students' code can read and change what you can.", style="bold red"
        )
    kept = "What is graded is kept, and the next run goes on from there"
    log = log or Path("autograded") / f"{assignment}.log"
    where = on_cluster(cluster) if cluster else workers.in_processes(jobs, warm)
    fresh, same, look = 0, 0, {}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8", buffering=1) as lines, progress() as bar:
            step = bar.add_task("grading", total=len(handed_in))
            for event in run.grade_class(job, handed_in, where, force):
                if event.fresh and not fresh:  # the time that is left is that of fresh ones
                    bar.reset(step, completed=same)
                bar.advance(step)
                fresh, same = fresh + event.fresh, same + (not event.fresh)
                line = line_of(event)
                if event.fresh:
                    lines.write(line + "\n")
                if event.result.review:
                    look[event.student] = event.result.review
                if verbose:
                    bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
    except Unavailable as error:
        raise fail(
            f"no jail can be built on this machine: {error}. {ALLOW_JAILS}. Or accept, with "
            "--no-jail, that students' code can read, change and send whatever you can"
        ) from None
    except NotReleased as error:
        raise fail(f"nbgrader could not release {assignment}: {error}") from None
    except NoGradebook as error:
        raise fail(f"{error}. {kept}") from None
    except Unusable as error:
        raise fail(f"{error}. {kept}") from None
    except OSError as error:
        raise fail(f"{error.filename or log}: {error.strerror or error}. {kept}") from None
    except KeyboardInterrupt:
        raise fail(f"stopped. {kept}") from None
    console.print(f"graded {fresh} submissions of {assignment}; {same} had not changed")
    plainly = {"markup": False, "highlight": False, "soft_wrap": True}
    for student, reasons in look.items():
        console.print(printable(f"look at {student}: {'; '.join(reasons)}"), **plainly)
    for group in namesakes:
        console.print(f"names that look alike: {', '.join(group)}", **plainly)
    for student in nameless:
        said = f"not graded: rename the folder submitted/{student!a}, no gradebook can hold that"
        console.print(said, **plainly)
    raise typer.Exit(1 if nameless else 0)


def warm_up(ctx: typer.Context, assignment: str, jobs: int, jailed: bool, force: bool):
    """While this process loads nbgrader, another one loads torch, if there is work for it."""
    from attncourse.grading.jail.warm import Warm, can_fork

    there = Path("autograded")
    new = (
        not (there / folder.parent.name / assignment / "result.json").exists()
        for folder in Path("submitted").glob(f"*/{assignment}")
    )
    if not (can_fork() and (any(new) or force)):
        return None
    warm = Warm(jailed, jobs)
    ctx.call_on_close(warm.end)
    return warm


ALLOW_JAILS = (
    "On Linux, allow user namespaces (Ubuntu: "
    "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`; containers: `--privileged`); "
    "elsewhere, grade on a Linux machine"
)


def line_of(event) -> str:
    """One submission in the log: when, who, points, seconds, and what was odd. A single line."""
    from attncourse.grading.inbox.untrusted import printable

    result = event.result
    took = f"{result.seconds:.1f} s" if event.fresh else "as before"
    parts = [f"{time.strftime('%F %T')} {event.student}: {result.score:g} points", took]
    return printable("; ".join([", ".join(parts), *result.review, *result.repairs]))


@app.command()
def feedback(
    assignment: Assignment = "",
    students: Annotated[str, typer.Option(help="Only these, by name, with commas between")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="How many at a time")] = min(4, os.cpu_count()),
    force: Annotated[bool, typer.Option("--force", help="Also what did not change")] = False,
) -> None:
    """Write a page for each student into feedback/: points, the judge's reports, your comments.

    Grade by hand first (`jupyter lab`, then Formgrader), or run it again later: only pages of which
    something has changed are written anew. A page is one file, and opens without a network.

    Exit code 0: every student who was graded has a page; 1: somebody has none.
    """
    need("grader", "nbgrader")
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.outbox import feedback as pages

    assignment = chosen(assignment)
    graded = pages.graded(assignment)
    wanted = [name.strip() for name in students.split(",")] if students else graded
    if not wanted:
        raise fail(f"nothing is graded yet for {assignment}; run `attncourse grade` first")
    fresh, without, stale = 0, {}, []
    with progress() as bar:
        step = bar.add_task("writing", total=len(wanted))
        try:
            for event in pages.write(assignment, wanted, jobs, force):
                bar.advance(step)
                fresh += event.fresh
                stale += [event.student] * event.stale
                if event.problem:
                    without[event.student] = event.problem
        except KeyboardInterrupt:
            raise fail(
                "stopped; the pages that are written stay, run it again for the rest"
            ) from None
    same = len(wanted) - fresh - len(without)
    console.print(f"feedback/: {fresh} pages of {assignment} written; {same} had not changed")
    say_stale(assignment, stale)
    for student, problem in without.items():
        console.print(printable(f"no page for {student}: {problem}"), markup=False, highlight=False)
    raise typer.Exit(1 if without else 0)


def say_stale(assignment: str, students: list[str]) -> None:
    """Whose points are those of another day."""
    from attncourse.grading.inbox.untrusted import printable

    if students:
        cure = f"run `attncourse grade {assignment}`"
        said = f"graded before something changed, {cure}: {'; '.join(students)}"
        console.print(printable(said), markup=False, highlight=False, soft_wrap=True)


@app.command()
def report(
    assignment: Assignment = "",
    html: Annotated[
        Path | None, typer.Option(help="Where the page goes; _build/report/ if not said")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also a table for a spreadsheet")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Also as plain data")] = None,
) -> None:
    """Show a graded class: points, and the misconception behind each wrong answer.

    Also writes a page with what to reteach, who needs a person, and near-duplicates.
    """
    need("grader", "nbgrader")
    from rich.markup import escape

    from attncourse.grading.books import results
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.outbox import class_report

    assignment = chosen(assignment)
    rows = results.of_class(assignment)
    if not rows:
        raise fail(f"nothing is graded yet for {assignment}; run `attncourse grade` first")
    table = Table("student", "points", "what was misunderstood")
    for row in rows:
        points = f"{row.score:g} of {row.max_score:g}" if row.score is not None else "not graded"
        wrong = "\n".join(printable(f"{task}: {title}") for task, title in row.wrong.items())
        points += f", {row.late:g} lost for being late" if row.late else ""
        points += " +" if row.needs_reading else ""
        table.add_row(escape(row.student), points, escape(wrong))
    console.print(table)
    say_stale(assignment, [row.student for row in rows if row.stale])
    if absent := results.without_submission(assignment):
        said = f"in the gradebook, nothing handed in: {'; '.join(absent)}"
        console.print(printable(said), markup=False, highlight=False, soft_wrap=True)
    console.print("+ a written answer waits for a person: jupyter lab, Formgrader", style="dim")
    thoughts = Table("students", "misconception", "what they probably think", box=None)
    for name, thought, count in results.by_frequency(rows):
        thoughts.add_row(str(count), name, escape(thought))
    console.print(thoughts)
    with progress() as bar:
        track = functools.partial(bar.track, description="comparing")
        data = class_report.data_of(assignment, rows, track)
    page = html or class_report.page_of(assignment)
    for path, write in (
        (page, class_report.write_html),
        (csv, class_report.write_csv),
        (as_json, class_report.write_json),
    ):
        if path:
            try:
                write(data, path)
            except OSError as error:
                raise fail(f"{path} cannot be written: {error.strerror}") from None
            console.print(f"{path} is written", markup=False, highlight=False, soft_wrap=True)


class System(StrEnum):
    """A course system that points can go to."""

    canvas = "canvas"
    moodle = "moodle"


@app.command()
def export(
    assignment: Assignment = "",
    system: Annotated[
        System, typer.Option("--format", help="The course system that gets the points")
    ] = ...,
    roster: Annotated[
        Path, typer.Option(help="The grades as that system exported them, a CSV file")
    ] = ...,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the filled file goes")
    ] = ...,
    column: Annotated[str, typer.Option(help="Its name, if it is not like the assignment's")] = "",
) -> None:
    """Put a class's points into the file that Canvas or Moodle exported, ready to be imported.

    Only the assignment's cells change. Late penalties and points that a person gave are in them.

    Exit code 0: everybody with points is in the file; 1: somebody is not, and it says who.
    """
    need("grader", "nbgrader")
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.outbox import lms

    assignment = chosen(assignment)
    points, most = lms.graded(assignment)
    if not points:
        raise fail(f"nothing is graded yet for {assignment}; run `attncourse grade` first")
    if output.resolve() == roster.resolve():
        raise fail("the filled file would replace the roster; give it another name with -o")
    if not output.parent.is_dir():
        raise fail(f"there is no folder {output.parent} for the filled file")
    try:
        filled = lms.fill(roster.read_bytes(), system, assignment, points, most, column)
        output.write_bytes(filled.data)
    except lms.Refused as error:
        raise fail(printable(f"{roster} cannot be filled in: {error}")) from None
    except OSError as error:
        raise fail(f"{error.filename}: {error.strerror}") from None

    def say(line: str, names: list[str]) -> None:
        if names:
            said = printable(f"{line}: {'; '.join(names)}")
            console.print(said, markup=False, highlight=False, soft_wrap=True)

    where = f"the new column {filled.column}" if filled.added else f"the column {filled.column}"
    console.print(
        f"{output}: points of {len(filled.rows)} students in {where}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    there = system.capitalize()
    unread = [each.student for each in points if each.unread and each.student in filled.rows]
    say("note", filled.notes)
    say_stale(assignment, [each.student for each in points if each.stale])
    say("found by name only, check them", filled.by_name)
    say("had other points before", filled.changed)
    say("written answers not read yet, and not in the points", unread)
    say(f"left as they were, excused or without the assignment in {there}", filled.kept)
    say(f"in {there} without points here", filled.without_points)
    say(f"in {there} and not certain whose row it is", filled.doubtful)
    say(f"graded here and not found in {there}", filled.without_row)
    if filled.without_row:
        console.print(
            "Tell the gradebook their e-mail addresses or IDs: "
            "nbgrader db student add NAME --email=ADDRESS --lms-user-id=ID",
            soft_wrap=True,
        )
        raise typer.Exit(1)


@app.command()
def total(
    weights: Annotated[
        list[str], typer.Option("--weight", help="ASSIGNMENT=NUMBER, e.g. 2; 1 where none is said")
    ] = [],  # noqa: B006  it is only read
    csv: Annotated[Path | None, typer.Option(help="Also a table for a spreadsheet")] = None,
) -> None:
    """Show each student's total of the course, in percent.

    It is the mean of points / most over all assignments that somebody has points in, weighted. Who
    handed nothing in has 0 there; late penalties and points that a person gave are in.
    """
    need("grader", "nbgrader")
    from rich.markup import escape

    from attncourse.grading.books import results
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.outbox import class_report

    weighed = dict.fromkeys(assignment_names(), 1.0)
    for each in weights:
        name, _, number = each.partition("=")
        try:
            weighed[known(name)] = float(number)
        except ValueError:
            raise fail(f"--weight {each}: it should be ASSIGNMENT=NUMBER") from None
        if not 0 <= weighed[name] < float("inf"):
            raise fail(f"--weight {each}: a weight is 0 or more")
    most, totals = results.of_course(weighed)
    if not most:
        raise fail("nothing is graded yet; run `attncourse grade` first")
    number = {name: f"{n}" for n, name in enumerate(most, start=1)}
    table = Table("student", "total", *number.values())
    for each in totals:
        shown = ["–" if points is None else f"{points:g}" for points in each.points.values()]
        shown = [s + " +" * (n in each.waiting) for s, n in zip(shown, most, strict=True)]
        table.add_row(escape(printable(each.student)), f"{each.percent:.1f} %", *shown)
    console.print(table)
    for name, points in most.items():
        said = f"{number[name]}: {name}, {points:g} points, weight {weighed[name]:g}"
        console.print(said, highlight=False)
    console.print("+ a written answer waits for a person, and is not in the total", style="dim")
    if csv:
        try:
            class_report.write_totals(most, totals, csv)
        except OSError as error:
            raise fail(f"{csv} cannot be written: {error.strerror}") from None
        console.print(f"{csv} is written", markup=False, highlight=False, soft_wrap=True)


# --- for everybody ------------------------------------------------------------------------------


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


def main() -> None:
    app()
