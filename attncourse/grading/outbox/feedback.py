"""A page for each student: points by task, the judge's reports, what a person wrote.

One file that loads nothing from elsewhere and runs nothing, made of the record (the executed
notebook) and nbgrader's gradebook. It stands where `nbgrader generate_feedback` puts its own page,
which needs the network for its formulas and has three times the size.
"""

import functools
import hashlib
import json
import multiprocessing
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import jinja2
import pygments
from markupsafe import Markup
from nbconvert.filters import strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat.v4 import nbjson
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from attncourse.grading import Refusal
from attncourse.grading.books import disk, nbgrader_api, results
from attncourse.grading.inbox.submission import Assignment
from attncourse.grading.inbox.untrusted import limited, printable
from attncourse.grading.inbox.writing import write as write_file

TEMPLATE = Path(__file__).with_name("feedback.html.j2")
SECONDS = 60.0  # for a page; most need a tenth
FEW = 20  # pages that are made in the time a second process takes to start


@dataclass(frozen=True)
class Line:
    """A task or a written answer, in the table at the top of a page."""

    name: str
    cell: str  # its grade id
    points: str  # "10 of 12"
    about: str = ""  # what the student seems to think, or what failed


@dataclass(frozen=True)
class Grades:
    """What the gradebook says of one submission."""

    student: str
    assignment: str
    score: float
    max_score: float
    late: float
    lines: list[Line]
    points: dict[str, str]  # grade id -> "6 of 6 points"
    comments: dict[str, str]  # grade id -> text


@dataclass(frozen=True)
class Event:
    """A student's page is there, or why it is not."""

    student: str
    fresh: bool = False  # made now
    problem: str = ""
    stale: bool = False  # of a result that a new run would replace


def path_of(assignment: str, student: str) -> Path:
    return Path("feedback") / student / assignment / f"{assignment}.html"


def graded(assignment: str) -> list[str]:
    """The students with something in autograded/."""
    folders = Path("autograded").glob(f"*/{assignment}")
    return sorted(folder.parent.name for folder in folders if folder.is_dir())


def not_graded(assignment: str) -> set[str]:
    """The students who handed something in and have nothing in autograded/."""
    return disk.submissions(assignment).keys() - graded(assignment)


def write(
    assignment: str, students: list[str], jobs: int = 1, force: bool = False
) -> Iterator[Event]:
    """Make the pages of which the record or the grades have changed.

    Raises:
        Refusal: a process that makes them was killed.
    """
    job = disk.job_of(assignment)
    about = job.about
    graded = {row.student: row for row in results.of_class(assignment)}
    comments = _comments(about)
    todo = {}
    for student in students:
        record = disk.record_path(about.name, student)
        if student not in graded or not record.exists():
            yield Event(student, problem="there is no executed notebook; run `attncourse grade`")
            continue
        _let_nbgrader_release(about.name, student)
        grades = _grades(about, graded[student], comments[student])
        text = record.read_text(encoding="utf-8", errors="replace")
        key = _key(text, grades)
        if _key_of(path_of(about.name, student)) == key and not force:
            yield Event(student, stale=graded[student].stale)
        else:
            todo[student] = text, grades, key
    for student, made, problem in _made(todo, min(jobs, 1 + len(todo) // FEW)):
        if not problem:
            disk.store(path_of(about.name, student), made)
        yield Event(student, not problem, problem, graded[student].stale)


def _let_nbgrader_release(assignment: str, student: str) -> None:
    """Lay beside the page what `nbgrader release_feedback` wants, if the exchange brought it."""
    for name in ("timestamp.txt", "submission_secret.txt"):
        came = Path("submitted") / student / assignment / name
        if came.is_file() and not came.is_symlink() and came.stat().st_size < 1000:
            write_file(path_of(assignment, student).with_name(name), came.read_bytes(), False)


def _grades(about: Assignment, row: results.Row, comments: dict[str, str]) -> Grades:
    def told(most: float, *cells: str) -> str:
        if any(cell in row.unread and cell in about.questions for cell in cells):
            return f"not read yet, of {most:g}"
        return f"{sum(row.points.get(cell) or 0 for cell in cells):g} of {most:g}"

    lines, points = [], {}
    for each in about.graded:
        name, cells = each.task, (each.visible, each.hidden)
        about_it = sentence(row, name)
        lines.append(Line(name, name, told(2 * each.points, *cells), about_it))
        points |= {cell: told(each.points, cell) for cell in cells}
    for question, most in about.questions.items():
        points[question] = told(most, question)
        lines.append(Line(question, question, points[question]))
    score = row.score or 0.0
    return Grades(row.student, about.name, score, row.max_score, row.late, lines, points, comments)


def _comments(about: Assignment) -> dict[str, dict[str, str]]:
    """Student -> grade id -> what a person wrote; of written answers also "No response."."""
    from nbgrader.api import Assignment, Comment, SubmittedAssignment, SubmittedNotebook

    found: dict[str, dict[str, str]] = defaultdict(dict)
    with nbgrader_api.gradebook() as gradebook:
        rows = (
            gradebook.db.query(SubmittedAssignment.student_id, Comment)
            .select_from(Comment)
            .join(SubmittedNotebook, Comment.notebook_id == SubmittedNotebook.id)
            .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
            .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
            .filter(Assignment.name == about.name)
        )
        for student, comment in rows:
            said = comment.manual_comment
            if said is None and comment.name in about.questions:
                said = comment.auto_comment  # of a task, the report says it all
            if said:
                found[student][comment.name] = said
    return found


def sentence(row: results.Row, task: str) -> str:
    """What is wrong with an answer, in words; an id is for those who have the catalogue."""
    verdict = row.result.verdicts.get(task) if row.result else None
    if verdict and verdict.thinks:
        return f"You may think: {verdict.thinks}"
    return row.wrong.get(task, "")


# --- a page -------------------------------------------------------------------------------------


def page(record: str, grades: Grades, key: str) -> str:
    """The page of one student."""
    cells = nbjson.reads(record).cells
    return _template().render(cells=cells, grades=grades, key=key)


@functools.cache
def _template() -> jinja2.Template:
    lexer, formatter = PythonLexer(), HtmlFormatter(cssclass="code")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "markdown": _markdown,
        "plain": strip_ansi,
        "python": lambda source: Markup(pygments.highlight(source, lexer, formatter)),
    }
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def _markdown(text: str, pictures: dict | None = None) -> Markup:
    renderer = IPythonRenderer(escape=False, attachments=pictures, exclude_anchor_links=True)
    return Markup(MarkdownWithMath(renderer=renderer).render(text))


def _made(todo: dict, jobs: int) -> Iterator[tuple[str, str, str]]:
    """Student, page and problem, in any order; several pages at a time if there are many."""
    if jobs == 1:
        for student, parts in todo.items():
            yield student, *_tried(*parts)
        return
    quiet = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, **quiet) as pool:
        try:
            running = {pool.submit(_tried, *parts): student for student, parts in todo.items()}
            for future in as_completed(running):
                yield running[future], *future.result()
        except BrokenProcessPool:
            raise Refusal(
                "a process that makes pages was killed, as when memory is short. The pages that "
                "are written stay; run it again with `--jobs 1`"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _tried(record: str, grades: Grades, key: str) -> tuple[str, str]:
    try:
        with limited(SECONDS):
            return page(record, grades, key), ""
    except Exception as error:  # a record that somebody edited costs no other student the page
        said = printable(f"{type(error).__name__}: {error}")[:300]
        return "", f"its executed notebook cannot be shown: {said}"


# --- which pages are as they should be ----------------------------------------------------------


def _key(record: str, grades: Grades) -> str:
    """Changes with everything that a page shows."""
    digest = hashlib.sha256(TEMPLATE.read_text(encoding="utf-8").encode())
    digest.update(record.encode())
    digest.update(json.dumps(asdict(grades), sort_keys=True).encode())
    return digest.hexdigest()


def _key_of(page: Path) -> str:
    """The key that a page was made with; "" if there is no page of ours."""
    try:
        with page.open(encoding="utf-8") as file:
            found = re.search(r'name="attncourse-key" content="(\w+)"', file.read(1000))
    except (OSError, UnicodeDecodeError):
        return ""
    return found[1] if found else ""
