"""The command of who takes code from somewhere: `attncourse inspect`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attncourse.cli.app import app, console, fail, need, progress
from attncourse.grading.jail.job import Budget

if TYPE_CHECKING:
    from attncourse.checks.lookalikes import Found, Reading
    from attncourse.checks.report import Report
    from attncourse.grading.jail.remote import Zygote

BEGIN = "what the file defines"
BUDGET = Budget(call=5, task=20, submission=40)
LARGEST = 2_000_000  # characters of a file: a definition in more than that is generated


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A Python file with attention, masks, positions, …")],
    named: Annotated[
        list[str] | None,
        typer.Option("--as", metavar="NAME=TASK", help="Judge this definition as that task"),
    ] = None,
    source: Annotated[bool, typer.Option("--show", help="Show how the code was read")] = False,
    jailed: Annotated[
        bool, typer.Option("--jail/--no-jail", help="Whether the code runs in a jail")
    ] = True,
) -> None:
    """Judge code from anywhere: find what in a file looks like a task of the course.

    Functions and classes are found by their names, and you are asked which tasks they are. They run
    in a jail, which shows them nothing of yours. Whether True in a mask hides, what is returned,
    what the parts of a layer are called: code is read in the way that agrees most with the course.

    Exit code 0: all that was judged is right; 1: something is not; 2: there is nothing to judge.
    """
    from attncourse.checks import lookalikes

    if sys.platform == "win32":
        raise fail("code of others runs in a jail, which Windows lacks; use WSL (aka.ms/wsl)")
    need("grader", "nbgrader", "packaging", "matplotlib")
    text = _text_of(file)
    try:
        found = lookalikes.of_file(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise fail(f"{file} is no Python: {getattr(error, 'msg', error)}") from None
    chosen = _chosen(found, named or [], text)
    if not chosen:
        raise fail(
            f"nothing in {file} looks like a task. If something is one: --as NAME=TASK "
            "(`attncourse tasks` lists them)"
        )
    all_right = True
    with _children(jailed) as zygote:
        for each, task in chosen:
            with progress() as bar:
                step = bar.add_task(f"reading {each.name} as {task}", total=None)

                def advance(total: int, bar=bar, step=step) -> None:
                    bar.update(step, total=total, advance=1)

                verdict = judged(each, task, text, file, zygote, advance)
            _show(verdict, each, task, file, source)
            all_right &= verdict.report is not None and verdict.report.passed
    raise typer.Exit(0 if all_right else 1)


def _text_of(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise fail(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise fail(f"{file} is no text") from None
    if len(text) > LARGEST:
        raise fail(f"{file} has {len(text):,} characters; {LARGEST:,} is the most that is read")
    return text


def _children(jailed: bool) -> "Zygote":
    from attncourse.grading.jail.remote import CannotGrade, Unavailable, children

    try:
        zygote = children(jailed)
        if jailed:
            zygote.fork([]).kill()
    except (Unavailable, CannotGrade) as error:
        raise fail(
            f"no jail can be built here: {error}. Read the file; if you would run it yourself, "
            "--no-jail does"
        ) from None
    return zygote


def somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _chosen(found: list["Found"], named: list[str], text: str) -> list[tuple["Found", str]]:
    """Pairs (definition, task), as said or as asked; where nobody can be asked, the likeliest."""
    from attncourse.checks import lookalikes, registry

    said = {}
    for each in named:
        name, _, task = each.partition("=")
        if task not in registry.all_tasks():
            raise fail(f"--as {each}: there is no task {task!r}; `attncourse tasks` lists them")
        said[name] = task
    everything = {each.name: each for each in lookalikes.of_file(text, tuple(said))}
    if unknown := set(said) - set(everything):
        raise fail(f"--as: the file has no function or class {', '.join(sorted(unknown))}")
    chosen = []
    for each in found:
        if each.name in said or (named and not somebody_is_there()):
            continue
        console.print(
            f"{each.name} (line {each.line}) looks like {' or '.join(each.tasks)}",
            markup=False, highlight=False,
        )  # fmt: skip
        task = each.tasks[0]
        if somebody_is_there():
            task = typer.prompt("Judge it as (or: no)", default=task).strip()
            while task != "no" and task not in registry.all_tasks():
                task = typer.prompt(f"There is no task {task}. Judge it as (or: no)", default="no")
        if task != "no":
            chosen.append((each, task))
    return chosen + [(everything[name], task) for name, task in said.items()]


@dataclass
class Verdict:
    """What is said of one definition."""

    report: "Report | None" = None
    reading: "Reading | None" = None  # how it was read
    problem: str = ""  # why there is no report


def judged(
    each: "Found",
    task: str,
    text: str,
    file: Path,
    zygote: "Zygote",
    advance: Callable[[int], None] = lambda total: None,
) -> Verdict:
    """The report under the reading that agrees most often with the course; the plainest of those.

    Args:
        advance: called with how many readings there are, after each.
    """
    from attncourse.checks import engine, lookalikes
    from attncourse.grading.jail.remote import RemoteAnswer, Sandbox

    try:
        readings = lookalikes.readings(each, task)
    except lookalikes.Unreadable as error:
        return Verdict(problem=str(error))
    begin = lookalikes.loaded(text, each.name, file.name)

    def sandbox(reading):
        cells = [(BEGIN, begin, True), ("reading", reading.source, True)]
        return Sandbox(zygote, [task], cells, BUDGET)

    most, best, problem = -1, None, ""
    for reading in readings:
        tried = sandbox(reading)
        try:
            if task in tried.defined:
                right, of = lookalikes.agreeing(task, RemoteAnswer(tried, task))
                if right > most:
                    most, best = right, reading
                if right == of:
                    break
            else:
                said = [*tried.problems.values(), *tried.notes, *tried.review]
                problem = problem or next(iter(said), "it cannot be run")
                if BEGIN in tried.problems:
                    break  # under no reading does it run
        finally:
            tried.close()
        advance(len(readings))
    if best is None:
        return Verdict(problem=problem)
    judged = sandbox(best)
    try:
        (report,) = engine.run_each(task, RemoteAnswer(judged, task), (0,))
    finally:
        judged.close()
    return Verdict(replace(report, note=""), best)


def _show(verdict: Verdict, each: "Found", task: str, file: Path, source: bool) -> None:
    title = f"{each.name}, {file.name} line {each.line}, judged as {task}"
    console.print(f"\n{title}", style="bold", markup=False, highlight=False, soft_wrap=True)
    if verdict.report is None:
        console.print(f"· not judged: {verdict.problem}", markup=False, highlight=False)
        return
    if verdict.reading.words:
        said = f"Read so: {verdict.reading.words}."
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    if source:
        console.print(verdict.reading.source.strip(), style="dim", markup=False, highlight=False)
    console.print(str(verdict.report), markup=False, highlight=False, soft_wrap=True)
