"""Commands of who teaches: release, grade, report."""

import collections
import contextlib
import dataclasses
import functools
import os
import re
import time
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from attncourse.cli.app import (
    Assignment,
    app,
    assignment_names,
    chosen,
    console,
    counted,
    fail,
    known,
    need,
    need_unix,
    progress,
)

LONGEST_NOTE = 300  # characters of what is said about a file
FEW = 10  # students who are named one by one
WORK = ("submitted", "autograded", "exercises", "solutions", "feedback")
MADE_HERE = ("autograded", "solutions", "feedback")  # of these no file is a student's
LARGEST_OUTPUT = 2**26  # bytes


def writable(*outputs: Path | None, earlier: Callable[[bytes], bool]) -> None:
    """Refuse to write where something is that such a command did not write itself.

    Args:
        earlier: whether a file's bytes are an output of another day, which may be replaced.
    """
    for path in filter(None, outputs):
        place = path.resolve()
        for folder in WORK:
            log = folder == "autograded" and place.suffix == ".log"
            if place.is_relative_to(Path(folder).resolve()) and not log:
                raise fail(f"{path} is in {folder}/; give the output another name")
        if not path.is_file():
            continue
        try:
            size = path.stat().st_size
            ours = not size or (size <= LARGEST_OUTPUT and earlier(path.read_bytes()))
        except OSError as error:
            raise fail(f"{error.filename or path}: {error.strerror}") from None
        if not ours:
            said = "is there, and no output of this command; give it another name, or remove"
            raise fail(f"{path} {said} {path.name} first")


def is_log(data: bytes) -> bool:
    """Whether it is a log of `grade`; see `line_of`."""
    return re.match(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .+: ", data) is not None


@app.command("new-course")
def new_course(
    folder: Annotated[Path, typer.Argument(help="A new folder; or an earlier one, to update it")],
) -> None:
    """Write a course folder of your own: solutions, exercises, configuration, and how to go on.

    In a folder that this command made before, it brings in what is new, and keeps what you changed
    or deleted. Where you and the course both changed a file, the course's is put beside yours, with
    .new after its name, and is named until you delete it.

    Exit code 0: everything is as the course has it, or as you changed it; 1: some files differ.
    """
    need("grader", "nbgrader", "yaml")
    from attncourse.grading.outbox.new_course import NEW, released, write_course

    done = write_course(folder)
    where = folder if folder.name else folder.resolve()
    counts = {
        f"{counted(len(done.new), 'file')} written": done.new,
        f"{len(done.updated)} brought up to date": done.updated,
        f"{len(done.same)} unchanged": done.same,
        f"{len(done.changed)} changed by you": done.changed,
        f"{len(done.deleted)} deleted by you": done.deleted,
        f"{len(done.differ)} changed by you and by the course": done.differ,
    }
    said = ", ".join(count for count, names in counts.items() if names)
    console.print(f"{where}: {said}", markup=False, highlight=False, soft_wrap=True)
    for name in done.differ:
        if assignment := released(name):
            said = f"`attncourse release {assignment}` makes it again from your solution"
        else:
            said = f"the course's is {name}{NEW}; take over what you want, and delete {name}{NEW}"
        said = f"{name}: changed by you and by the course; {said}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    if done.new:
        console.print(f"Go on with {folder / 'README.md'}", markup=False, highlight=False)
    raise typer.Exit(1 if done.differ else 0)


@app.command()
def release(assignment: Assignment = "") -> None:
    """Make the students' notebooks in exercises/ from solutions/ (all, or one assignment)."""
    need("grader", "nbgrader")
    from attncourse.grading import Refusal
    from attncourse.grading.books import generate
    from attncourse.grading.inbox.submission import check_points, course_notebook
    from attncourse.grading.jail.cures import in_words

    names = [known(assignment)] if assignment else assignment_names()
    for name in names:
        solution = Path("solutions") / name / f"{name}.ipynb"
        try:
            check_points(name, course_notebook(solution)[0])
        except (OSError, Refusal) as error:
            raise fail(f"nothing was released: {error}") from None
    with progress() as bar:
        step = bar.add_task("releasing", total=len(names))
        try:
            generate.release(names, lambda: bar.advance(step))
        except OSError as error:
            raise fail(f"{in_words(error)}; exercises/ is as it was") from None
        except KeyboardInterrupt:
            raise fail("stopped; exercises/ is as it was") from None
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
    said = counted(students, "submission")
    console.print(f"submitted/: {said} of {assignment}, {made} of them new")


@app.command()
def ingest(
    files: Annotated[list[Path], typer.Argument(help="Notebooks, folders, or zips")],
    assignment: Annotated[str, typer.Option(help="Refuse notebooks of another one")] = "",
    student: Annotated[str, typer.Option(help="All files are from this one")] = "",
    roster: Annotated[
        Path | None, typer.Option(help="CSV: a column id, and names, e-mails, LMS ids beside it")
    ] = None,
    timezone: Annotated[
        str,
        typer.Option(help="Time zone of names (Brightspace, Blackboard), e.g. Europe/Berlin"),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would do; write nothing")
    ] = False,
) -> None:
    """File what students sent into submitted/: notebooks, folders, zips of a course system.

    A file's name or folder says whose it is (Canvas, Moodle, Gradescope, Brightspace, Blackboard,
    Open edX, one folder a student); of several zips, each zip's name does. The content says which
    assignment it is. Lost marks are put back. A replaced file is kept beside the new one.

    Exit code 0: everything is filed; 1: something is not, with the reason, or two different
    notebooks of one assignment came from one student.
    """
    need_unix()
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
    if own := [str(path) for path in files if _is_the_courses(path)]:
        raise fail(
            f"{', '.join(own)}: this is the course's own, and nobody sent it; name what was sent"
        )
    if student and not safe_name(student):
        raise fail(f"{student!r} is no name for a folder")
    student = safe_name(student)
    try:
        by_name = roster_in(roster) if roster else registered()
    except Refused as error:
        raise fail(str(error)) from None
    try:
        zone = zoneinfo.ZoneInfo(timezone) if timezone else None
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise fail(f"no time zone is named {timezone}; e.g. Europe/Berlin or UTC") from None
    clerk = desk.Desk(desk.Course.here(), student, assignment, by_name, dry_run, zone)
    rows, stopped = [], False
    with limited_memory(), progress() as bar:
        try:
            sent = unpack(*files)
            for each in bar.track(sent, description="filing"):
                rows += clerk.take(each)
        except KeyboardInterrupt:
            stopped = True
    if not (rows or stopped):
        raise fail(f"there is nothing in {', '.join(map(str, files))}")
    complete = show_filed(desk.settled(rows), desk.OUTCOMES, clerk.ignored, dry_run)
    if clerk.zoneless:
        said = f"the times in names ({clerk.zoneless}) are the school's: --timezone writes them"
        console.print(f"{said} into timestamp.txt; without it nothing is late", soft_wrap=True)
    if stopped:
        raise fail("stopped; what is filed is filed, run it again for the rest")
    raise typer.Exit(0 if complete else 1)


def _is_the_courses(path: Path) -> bool:
    """Whether a folder has the course in it, or something is the course's own work.

    A single notebook may come from submitted/, such as an earlier one that is wanted back.
    """
    place = path.resolve()
    folders = [Path(folder).resolve() for folder in WORK if path.is_dir() or folder in MADE_HERE]
    has = path.is_dir() and Path.cwd().is_relative_to(place)
    return has or any(place.is_relative_to(folder) for folder in folders)


def show_filed(rows: list, outcomes: tuple[str, ...], ignored: int, dry_run: bool) -> bool:
    """Print what was odd and what is not filed; True if everything is, beyond doubt."""
    from rich.table import Table
    from rich.text import Text

    from attncourse.grading.inbox.untrusted import printable

    told = Table("student", "file", "what was done")
    refused = Table("student", "file", "not filed, because")
    alike: dict[tuple, list] = {}  # of one student, for the same reason
    for row in rows:
        whose = row.student or row.source.split("/")[0]
        key = (whose, *row.notes) if not row.outcome else id(row)
        alike.setdefault(key, []).append(row)
    for row, *others in alike.values():
        if row.notes:
            notes = "\n".join(printable(note)[:LONGEST_NOTE] for note in row.notes)
            notes += f"\nand {len(others):,} more like this" if others else ""
            if row.outcome:
                notes = f"{row.outcome} in submitted/{row.student}/{row.assignment}\n{notes}"
            cells = (row.student or "?", printable(row.source)[:LONGEST_NOTE], notes)
            table = told if row.outcome else refused
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    for table in (told, refused):
        if table.row_count:
            console.print(table)
    counts = {name: sum(row.outcome == name for row in rows) for name in outcomes}
    counts |= {"not filed": sum(not row.outcome for row in rows)}
    counts |= {"to look at": sum(row.doubt for row in rows)}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing"
    console.print(f"submitted/{' (dry run)' if dry_run else ''}: {said}", highlight=False)
    of = collections.Counter(row.assignment for row in rows if row.assignment and row.outcome)
    if of:
        said = ", ".join(f"{count} of {name}" for name, count in of.most_common())
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    if ignored:
        said = "files that a computer or a course system added are passed over"
        console.print(f"{ignored} {said}", style="dim")
    return all(row.outcome and not row.doubt for row in rows)


@app.command()
def grade(
    ctx: typer.Context,
    assignment: Assignment = "",
    students: Annotated[str, typer.Option(help="Only these, by name, with commas between")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="How many at a time")] = min(4, os.cpu_count()),
    force: Annotated[bool, typer.Option("--force", help="Also what did not change")] = False,
    no_jail: Annotated[
        bool, typer.Option("--no-jail", help="Run students' code with all of your rights")
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
    the next run goes on from there. The course's own solution is graded first, in the same way: a
    machine that fails with it grades no student.

    Exit code 0: everybody was judged; 3: some students were not, keep their earlier points, and are
    named with the reason; 2: this machine cannot grade.
    """
    need_unix()
    need("grader", "nbgrader")
    if cluster:
        need("cluster", "distributed")
    writable(log, earlier=is_log)
    assignment = chosen(assignment)
    warm = None if cluster else warm_for(ctx, assignment, jobs, force)
    if ctx.obj and not warm:
        ctx.obj.end()
    from attncourse.grading import loading

    with loading():
        from attncourse.grading.books import disk, run
        from attncourse.grading.jail import workers
        from attncourse.grading.jail.cluster import on_cluster
    job = disk.job_of(assignment, jailed=not no_jail, record=not no_record, checked=False)
    everybody, nameless = disk.submissions(assignment), disk.unbookable(assignment)
    if not (everybody or nameless):
        cure = "`attncourse ingest FILES` files what students sent"
        raise fail(f"nothing of {assignment} is in submitted/; {cure}")
    handed_in = picked(everybody, students, assignment) if students else everybody
    if no_jail:
        console.print(
            "Without a jail: students' code can read and change what you can.", style="bold red"
        )
    log = log or Path("autograded") / f"{assignment}.log"
    where = on_cluster(cluster) if cluster else workers.in_processes(jobs, warm)
    so_far = Graded()
    with keeping(so_far):
        events = run.grade_class(job, handed_in, where, force)
        follow(events, len(handed_in), so_far, log, verbose)
    tell_count(so_far, assignment)
    tell(so_far, handed_in, everybody, nameless)
    raise typer.Exit(3 if nameless or so_far.not_judged else 0)


@dataclasses.dataclass
class Graded:
    """What came of a class so far."""

    fresh: list[str] = dataclasses.field(default_factory=list)  # graded now, by student
    same: int = 0  # found from an earlier run
    look: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # by student, at what
    not_judged: dict[str, str] = dataclasses.field(default_factory=dict)  # by student, why

    def add(self, event) -> None:
        if event.result is None:
            self.not_judged[event.student] = event.why
            return
        self.fresh += [event.student] * event.fresh
        self.same += not event.fresh
        if event.result.review:
            self.look[event.student] = event.result.review


def picked(handed_in: dict[str, Path], students: str, assignment: str) -> dict[str, Path]:
    """Of what was handed in, what the named students did."""
    wanted = [name.strip() for name in students.split(",")]
    strangers = [name for name in wanted if name not in handed_in]
    if strangers:
        raise fail(f"nothing of {', '.join(strangers)} is in submitted/ for {assignment}")
    return {name: handed_in[name] for name in wanted}


def follow(events: Iterable, number: int, so_far: Graded, log: Path, verbose: bool) -> None:
    """Grade as the events are asked for: a bar moves, and what is new goes into the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", buffering=1) as lines, progress() as bar:
        step = bar.add_task("grading", total=number)
        for event in events:
            if event.fresh and not so_far.fresh:  # the time that is left is that of fresh ones
                bar.reset(step, completed=so_far.same)
            bar.advance(step)
            so_far.add(event)
            line = line_of(event)
            if event.fresh:
                lines.write(line + "\n")
            if verbose:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def keeping(so_far: Graded) -> Iterator[None]:
    """Where grading cannot go on, say why, what to do, and what is kept."""
    from attncourse.grading import CannotGrade, loading

    with loading():
        from attncourse.grading.books.nbgrader_api import NoGradebook
        from attncourse.grading.jail.cluster import Unusable
        from attncourse.grading.jail.cures import cure_for, cure_of, in_words
        from attncourse.grading.jail.walls import Unavailable
    kept = "What is graded is kept, and the next run goes on from there"
    try:
        yield
    except Unavailable as error:
        raise fail(
            f"no jail can be built on this machine: {error}. {cure_for(str(error))}. {kept}"
        ) from None
    except CannotGrade as error:
        raise fail(
            "this machine cannot grade, as it fails with the course's own solution: "
            f"{error}. {cure_for(str(error))}. "
            f"{kept if so_far.fresh or so_far.same else 'Nothing was booked'}"
        ) from None
    except (NoGradebook, Unusable) as error:
        raise fail(f"{error}. {kept}") from None
    except OSError as error:
        raise fail(". ".join(filter(None, (in_words(error), cure_of(error), kept)))) from None
    except KeyboardInterrupt:
        raise fail(f"stopped. {kept}") from None


def tell_count(so_far: Graded, assignment: str) -> None:
    """Print how many were graded, and whom if these are few."""
    from attncourse.grading.inbox.untrusted import printable

    said = f"graded {counted(len(so_far.fresh), 'submission')} of {assignment}"
    if 0 < len(so_far.fresh) <= FEW:
        said += f": {', '.join(sorted(so_far.fresh))}"
    said = printable(f"{said}; {so_far.same} had not changed")
    console.print(said, markup=False, highlight=False, soft_wrap=True)


def tell(
    so_far: Graded, handed_in: dict[str, Path], everybody: Iterable[str], nameless: list[str]
) -> None:
    """Print what a person should look at, and who was not graded."""
    from attncourse.grading.inbox.senders import TIMESTAMP, timestamp_of
    from attncourse.grading.inbox.untrusted import alike, printable

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    for student, reasons in so_far.look.items():
        say(printable(f"look at {student}: {'; '.join(reasons)}"))
    if any("cell" in reason for reasons in so_far.look.values() for reason in reasons):
        console.print("Cells are counted from the top, texts too.", style="dim")
    for group in alike(list(everybody)):
        say(f"names that look alike: {', '.join(group)}")
    for student in nameless:
        say(f"not graded: rename the folder submitted/{student!a}, no gradebook can hold that")
    for student, folder in handed_in.items():
        if (folder / TIMESTAMP).exists() and timestamp_of(folder) is None:
            said = f"{folder / TIMESTAMP} says no time, so nothing counts as late"
            say(printable(f"look at {student}: {said}"))
    for student, why in so_far.not_judged.items():
        say(printable(f"not graded: {student}: {why}"))
    if so_far.not_judged:
        console.print("Who was not graded keeps the earlier points; no zero was written.")


def warm_for(ctx: typer.Context, assignment: str, jobs: int, force: bool):
    """The fork server, which loads torch while this process loads nbgrader; None without work."""
    from attncourse.grading.jail.processes import can_fork
    from attncourse.grading.jail.warm import Warm

    there = Path("autograded")
    new = (
        not (there / folder.parent.name / assignment / "result.json").exists()
        for folder in Path("submitted").glob(f"*/{assignment}")
    )
    if not (can_fork() and (force or any(new))):
        return None
    warm = ctx.obj or Warm()
    ctx.call_on_close(warm.end)
    return warm.for_workers(jobs)


def line_of(event) -> str:
    """One submission in the log: when, who, points, seconds, and what was odd. A single line."""
    from attncourse.grading.inbox.untrusted import printable

    result = event.result
    if result is None:
        return printable(f"{time.strftime('%F %T')} {event.student}: not graded, {event.why}")
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

    Grade by hand first (`jupyter lab`, then Formgrader), or run it again later: only pages
    that have changed are written again. A page is one file, and opens without a network.

    Exit code 0: every student who was graded has a page; 1: somebody has none.
    """
    need_unix()
    need("grader", "nbgrader")
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.jail.cures import cure_of, in_words
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
        except OSError as error:
            kept = "The pages that are there stay, run it again for the rest"
            raise fail(". ".join(filter(None, (in_words(error), cure_of(error), kept)))) from None
        except KeyboardInterrupt:
            raise fail(
                "stopped; the pages that are written stay, run it again for the rest"
            ) from None
    same = len(wanted) - fresh - len(without)
    said = f"feedback/: {counted(fresh, 'page')} of {assignment} written; {same} had not changed"
    console.print(said, highlight=False, soft_wrap=True)
    say_stale(assignment, stale)
    if not students:
        say_not_graded(assignment, sorted(pages.not_graded(assignment)))
    for student, problem in without.items():
        console.print(printable(f"no page for {student}: {problem}"), markup=False, highlight=False)
    raise typer.Exit(1 if without else 0)


def say_stale(assignment: str, students: list[str]) -> None:
    """Whose points are those of another day."""
    _say_whom(f"graded before something changed, run `attncourse grade {assignment}`", students)


def say_not_graded(assignment: str, students: list[str]) -> None:
    """Who handed something in and has no points, which is no zero."""
    _say_whom(f"handed in and not graded, run `attncourse grade {assignment}`", students)


def _say_whom(line: str, students: list[str]) -> None:
    from attncourse.grading.inbox.untrusted import printable

    if students:
        said = printable(f"{len(students)} {line}: {'; '.join(students)}")
        console.print(said, markup=False, highlight=False, soft_wrap=True)


@app.command()
def report(
    assignment: Assignment = "",
    html: Annotated[
        Path | None, typer.Option(help="Where the page goes; by default _build/report/")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also a table for a spreadsheet")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Also as plain data")] = None,
) -> None:
    """Show a graded class: points, and the misconception behind each wrong answer.

    Also writes a page with what to reteach, who needs a person, and near-duplicates.
    """
    need_unix()
    need("grader", "nbgrader")
    from rich.markup import escape
    from rich.table import Table

    from attncourse.grading.books import results
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.outbox import class_report

    writable(html, csv, as_json, earlier=class_report.is_output)
    assignment = chosen(assignment)
    rows = results.of_class(assignment)
    if all(row.score is None for row in rows):
        raise fail(f"nothing is graded yet for {assignment}; run `attncourse grade` first")
    table = Table("student", "points", "what was misunderstood")
    for row in rows:
        points = f"{row.score:g} of {row.max_score:g}" if row.score is not None else "not graded"
        wrong = "\n".join(printable(f"{task}: {title}") for task, title in row.wrong.items())
        points += f", {row.late:g} lost for being late" if row.late else ""
        points += " +" if row.needs_reading else ""
        table.add_row(escape(row.student), points, escape(wrong))
    console.print(table)
    say_not_graded(assignment, [row.student for row in rows if row.score is None])
    say_stale(assignment, [row.student for row in rows if row.stale])
    _say_whom("in the gradebook, nothing handed in", results.without_submission(assignment))
    console.print("+ a written answer waits for a person: jupyter lab, Formgrader", style="dim")
    thoughts = Table("students", "misconception", "what they probably think", box=None)
    for name, thought, count in results.by_frequency(rows):
        thoughts.add_row(str(count), name, escape(thought))
    console.print(thoughts)
    with progress() as bar:
        track = functools.partial(bar.track, description="comparing")
        data = class_report.data_of(assignment, rows, track)
    for group in data["identical"]:
        _say_whom("handed in the same file, byte for byte", group)
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
    column: Annotated[str, typer.Option(help="The column's name, if unlike the assignment's")] = "",
) -> None:
    """Put a class's points into the file that Canvas or Moodle exported, ready to be imported.

    Only the assignment's cells change. Late penalties and points that a person gave are in them.

    Exit code 0: every student who handed in is graded and has a row in the file (cells of excused
    students stay as they were); 1: some are not or have none, and it says who.
    """
    need_unix()
    need("grader", "nbgrader")
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.inbox.writing import put_out
    from attncourse.grading.outbox import lms

    if roster.exists() and output.exists() and output.samefile(roster):
        raise fail(f"{output} is the same file as {roster}; give the output another name")
    writable(output, earlier=lambda data: lms.is_filled(data, roster.read_bytes(), system))
    assignment = chosen(assignment)
    points, most, not_graded = lms.graded(assignment)
    if not points:
        raise fail(f"nothing is graded yet for {assignment}; run `attncourse grade` first")
    if not output.parent.is_dir():
        raise fail(f"there is no folder {output.parent} for the filled file")
    try:
        filled = lms.fill(roster.read_bytes(), system, assignment, points, most, column)
        put_out(output, filled.data)
    except lms.Refused as error:
        raise fail(printable(f"{roster} cannot be filled in: {error}")) from None
    except OSError as error:
        raise fail(f"{error.filename or output}: {error.strerror}") from None

    where = f"the new column {filled.column}" if filled.added else f"the column {filled.column}"
    said = f"{output}: points of {counted(len(filled.rows), 'student')} in {where}"
    for line in (said, *(f"note: {note}" for note in filled.notes)):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    there = system.capitalize()
    unread = [each.student for each in points if each.unread and each.student in filled.rows]
    say_not_graded(assignment, not_graded)
    say_stale(assignment, [each.student for each in points if each.stale])
    _say_whom("found by name only, to be checked", filled.by_name)
    _say_whom("had other points before", filled.changed)
    _say_whom("with written answers that are not read yet, and not in the points", unread)
    _say_whom(f"left as they were, excused or without the assignment in {there}", filled.kept)
    _say_whom(f"in {there} without points here", filled.without_points)
    _say_whom(f"in {there} and not certain whose row it is", filled.doubtful)
    _say_whom(f"graded here and not found in {there}", filled.without_row)
    if filled.without_row:
        console.print(
            "Tell the gradebook their e-mail addresses or IDs: "
            "nbgrader db student add NAME --email=ADDRESS --lms-user-id=ID\n"
            "If one of them does not belong in the class: nbgrader db student remove NAME --force, "
            "then delete the folders NAME in submitted/, autograded/ and feedback/.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    raise typer.Exit(1 if filled.without_row or not_graded else 0)


class Platform(StrEnum):
    """A grader that a teacher may have already."""

    gradescope = "gradescope"
    prairielearn = "prairielearn"
    otter = "otter"
    github_classroom = "github-classroom"


@app.command("export-grader")
def export_grader(
    assignment: Assignment = "",
    to: Annotated[Platform, typer.Option(help="Who runs the grader")] = ...,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A zip [ASSIGNMENT-PLATFORM.zip]")
    ] = None,
) -> None:
    """Write a grader of one assignment for another platform, with the points of `grade`.

    The zip has the layout that the platform documents. It holds the solution: keep it to yourself.
    """
    need("grader", "nbgrader")
    from attncourse.checks import pages
    from attncourse.grading.inbox.writing import put_out
    from attncourse.grading.outbox import export_grader as packing

    assignment = chosen(assignment)
    output = output or Path(f"{assignment}-{to}.zip")
    writable(output, earlier=packing.is_grader)
    try:
        put_out(output, packing.grader(assignment, to))
    except OSError as error:
        raise fail(f"{error.filename or output}: {error.strerror}") from None
    said = f"{output} is written; it goes on at {pages.address('book/graders', f'graders-{to}')}"
    console.print(said, markup=False, highlight=False, soft_wrap=True)


@app.command()
def total(
    weights: Annotated[
        list[str], typer.Option("--weight", help="ASSIGNMENT=NUMBER, e.g. 2; 1 by default")
    ] = [],  # noqa: B006  it is only read
    csv: Annotated[Path | None, typer.Option(help="Also a table for a spreadsheet")] = None,
) -> None:
    """Show each student's total of the course, in percent.

    It is the weighted mean of points / most over all assignments in which any student has points. A
    student who handed nothing in has 0 there; an assignment that is not graded yet does not count.
    Late penalties and points that a person gave are included.
    """
    need_unix()
    need("grader", "nbgrader")
    from rich.markup import escape
    from rich.table import Table

    from attncourse.grading.books import results
    from attncourse.grading.inbox.untrusted import printable
    from attncourse.grading.outbox import class_report

    writable(csv, earlier=class_report.is_output)
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
        shown = []
        for name, points in each.points.items():
            nothing = "not graded" if name in each.not_graded else "–"
            waits = " +" * (name in each.waiting)
            shown.append(nothing if points is None else f"{points:g}{waits}")
        percent = "–" if each.percent is None else f"{each.percent:.1f} %"
        table.add_row(escape(printable(each.student)), percent, *shown)
    console.print(table)
    for name, points in most.items():
        said = f"{number[name]}: {name}, {points:g} points, weight {weighed[name]:g}"
        console.print(said, highlight=False)
    console.print("+ a written answer waits for a person, and is not in the total", style="dim")
    if any(each.not_graded for each in totals):
        said = "not graded: it does not count for that student; run `attncourse grade ASSIGNMENT`"
        console.print(said, style="dim", highlight=False)
    if csv:
        try:
            class_report.write_totals(most, totals, csv)
        except OSError as error:
            raise fail(f"{csv} cannot be written: {error.strerror}") from None
        console.print(f"{csv} is written", markup=False, highlight=False, soft_wrap=True)
