"""The class report: what an instructor wants to know before Monday, as a page, as CSV, as JSON.

All three show one and the same plain data, made by `data_of`. The page is a single file that loads
nothing; names of students and files are hostile until they are escaped, so the template escapes
everything, and a text that a spreadsheet would take for a formula is made harmless in the CSV.
"""

import base64
import codecs
import collections
import contextlib
import csv
import hashlib
import importlib
import inspect
import io
import json
import math
import os
import re
import statistics
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import jinja2
from markupsafe import Markup

from attncourse.checks import pages, registry
from attncourse.grading.books import disk, results
from attncourse.grading.books.results import Row
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.ingest import was_answered
from attncourse.grading.inbox.submission import Assignment
from attncourse.grading.inbox.untrusted import printable
from attncourse.grading.inbox.writing import put_out
from attncourse.grading.outbox import similarity
from attncourse.markup import with_code

TEMPLATE = Path(__file__).with_name("report.html.j2")
STEPS = (1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 200, 500, 1000)  # points in a bar of the histogram


def page_of(assignment: str) -> Path:
    """Where the page goes if nobody says otherwise: beside the book, and not published with it."""
    return Path("_build", "report", f"{assignment}.html")


def data_of(assignment: str, rows: list[Row], track: Callable[[Iterable], Iterable] = iter) -> dict:
    """Everything the report says, as plain data.

    Args:
        rows: what `results.of_class` found.
        track: shows how far a long loop is.

    Raises:
        Unreleased: the assignment is not released.
    """
    job = disk.job_of(assignment)
    about = job.about
    graded = [row for row in rows if row.score is not None]
    handed_in = disk.submissions(assignment)
    return {
        "assignment": assignment,
        "made": datetime.now().astimezone().isoformat(timespec="minutes"),
        "submissions": len(handed_in.keys() | {row.student for row in rows}),
        "review": [
            {"student": row.student, "reasons": row.result.review}
            for row in rows
            if row.result and row.result.review
        ],
        "unread": [
            {"question": question, "points": points, "students": _who(graded, question)}
            for question, points in about.questions.items()
        ],
        "not_graded": sorted(handed_in.keys() - {row.student for row in graded}),
        "stale": [row.student for row in rows if row.stale],
        "nothing_handed_in": results.without_submission(assignment),
        "misconceptions": _misconceptions(graded),
        "failures": _failures(graded),
        "tasks": _tasks(graded, about),
        "scores": _scores(graded),
        "alike": _alike(about, track(list(handed_in.items())), job.solution),
        "identical": _identical(about, handed_in),
        "too_few_to_compare": len(handed_in) < similarity.FEWEST,
        "students": [_student(row, about) for row in rows],
    }


def _who(rows: Iterable[Row], question: str) -> list[str]:
    return [row.student for row in rows if question in row.unread]


def _misconceptions(rows: list[Row]) -> list[dict]:
    """What was misunderstood, the most frequent first; one thought in two tasks counts once."""
    known, found = results.catalogue(), {}
    for row in rows:
        for task, title in row.thoughts:
            if wrong := known.get((task, title)):
                about = registry.find(task)
                entry = found.setdefault(
                    (wrong.id, wrong.thinks),
                    {
                        "id": wrong.id,
                        "thinks": wrong.thinks,
                        "why": wrong.why,
                        "page": about.page,
                        "section": wrong.section,
                        "read": pages.words(about.home, wrong.section) if wrong.section else "",
                        "tasks": [],
                        "students": [],
                    },
                )
                entry["tasks"] += [task] * (task not in entry["tasks"])
                entry["students"] += [row.student] * (row.student not in entry["students"])
    return sorted(found.values(), key=lambda entry: (-len(entry["students"]), entry["id"]))


def _failures(rows: list[Row]) -> list[dict]:
    """What failed and has no name, by the check that failed first."""
    known, found = results.catalogue(), collections.defaultdict(list)
    for row in rows:
        for task, title in row.thoughts:
            if (task, title) not in known:
                found[task, title].append(row.student)
    grouped = [
        {"task": task, "what": title, "students": students}
        for (task, title), students in found.items()
    ]
    return sorted(grouped, key=lambda entry: -len(entry["students"]))


def _earned(row: Row, about: Assignment) -> dict[str, float | None]:
    """Points by task and written answer; None where a person has not read it yet."""
    points = {
        each.task: row.points.get(each.visible, 0.0) + row.points.get(each.hidden, 0.0)
        for each in about.graded
    }
    for question in about.questions:
        points[question] = None if question in row.unread else row.points.get(question, 0.0)
    return points


def _tasks(rows: list[Row], about: Assignment) -> list[dict]:
    most = {each.task: 2 * each.points for each in about.graded} | about.questions
    table = [_earned(row, about) for row in rows]
    tasks = []
    for name, points in most.items():
        earned = [row[name] for row in table if row[name] is not None]
        tasks.append(
            {
                "task": name,
                "points": points,
                "written": name in about.questions,
                "judged": len(earned),
                "solved": sum(each >= points for each in earned),
                "mean": round(statistics.fmean(earned), 2) if earned else None,
            }
        )
    return tasks


def _scores(rows: list[Row]) -> dict:
    """How the points are spread."""
    scores = [row.score for row in rows]
    most = max((row.max_score for row in rows), default=0.0)
    step = next((step for step in STEPS if most <= 10 * step), most / 10)
    last = max(1, math.ceil(most / step)) - 1
    counts = collections.Counter(min(int(score / step), last) for score in scores)
    return {
        "most": most,
        "mean": round(statistics.fmean(scores), 1) if scores else None,
        "median": statistics.median(scores) if scores else None,
        "lowest": min(scores, default=None),
        "highest": max(scores, default=None),
        "histogram": [
            {"from": number * step, "to": (number + 1) * step, "students": counts[number]}
            for number in range(last + 1)
        ],
    }


def _student(row: Row, about: Assignment) -> dict:
    return {
        "student": row.student,
        "name": row.name,
        "score": row.score,
        "most": row.max_score,
        "late": row.late,
        "points": _earned(row, about) if row.score is not None else {},
        "wrong": row.wrong,
        "repairs": row.result.repairs if row.result else [],
        "review": row.result.review if row.result else [],
        "seconds": row.result.seconds if row.result else None,
    }


# --- near-duplicates ----------------------------------------------------------------------------


def _alike(about: Assignment, handed_in: Iterable[tuple[str, Path]], solution: str) -> list[dict]:
    """Who wrote the same; what the course has written, right or wrong, is no evidence."""
    known = [*about.released.values(), *map(reading.source_of, json.loads(solution)["cells"])]
    for chapter in {registry.find(task).chapter for task in about.tasks}:
        known += course_code(chapter)
    written = ((student, _cells(folder, about)) for student, folder in handed_in)
    return [
        {"students": list(group.students), "shared": group.shared, "lines": group.lines}
        for group in similarity.alike(written, known)
    ]


def _identical(about: Assignment, handed_in: dict[str, Path]) -> list[list[str]]:
    """Who handed in the same file with something answered in it."""
    groups, files = collections.defaultdict(list), {}
    for student, folder in handed_in.items():
        data = _bytes(folder)
        digest = hashlib.sha256(data).digest()
        groups[digest].append(student)
        if len(groups[digest]) == 2:
            files[digest] = data
    return [groups[digest] for digest, data in files.items() if was_answered(data, about)]


def course_code(chapter: str) -> list[str]:
    """A chapter's reference code, which the book prints, and its known wrong answers."""
    tasks = registry.of_chapter(chapter)
    modules = dict.fromkeys(task.reference.__module__ for task in tasks)
    modules |= dict.fromkeys(task.module for task in tasks)
    return [inspect.getsource(importlib.import_module(module)) for module in modules]


def _cells(folder: Path, about: Assignment) -> list[str]:
    try:
        return [source for _, source, _ in reading.read(_bytes(folder), about).code]
    except reading.Unreadable:
        return []


def _bytes(folder: Path) -> bytes:
    """The notebook that was handed in; nothing if it is missing or too large."""
    path, _ = disk.notebook_in(folder)
    with contextlib.suppress(OSError):
        if path and path.stat().st_size <= reading.LARGEST:
            return path.read_bytes()
    return b""


# --- writing it ---------------------------------------------------------------------------------

COLUMNS = ("student", "name", "points", "of", "lost for being late")
OF_TOTALS = ("student", "name", "percent")


def is_output(data: bytes) -> bool:
    """Whether a file's bytes are what one of the functions below has written."""
    tables = [codecs.BOM_UTF8 + ",".join(each).encode() + b"," for each in (COLUMNS, OF_TOTALS)]
    page = data.lstrip().startswith(b"<!DOCTYPE html>") and b"<title>Class report: " in data[:4096]
    as_data = re.match(rb'\{\s*"assignment": "[^"]*",\s*"made": "', data)
    return data.startswith(tuple(tables)) or page or as_data is not None


def write_html(data: dict, path: Path) -> None:
    """The page, in one file."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"code": with_code, "name": _name, "number": _number}
    environment.filters |= {"day": _day, "digest": _digest}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    text = template.render(
        data=data,
        place={each["student"]: n for n, each in enumerate(data["students"], start=1)},
        link=lambda entry: _link(entry, path.parent),
    )
    put_out(path, text.encode(errors="replace"))


def _name(text: str) -> Markup:
    """A name in code's type that may break after an underscore."""
    return Markup("<code>{}</code>").format(Markup("_<wbr>").join(text.split("_")))


def _day(text: str) -> str:
    moment = datetime.fromisoformat(text)
    return f"{moment.day} {moment:%B %Y, %H:%M}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 2):g}"


def _digest(script: str) -> str:
    """What a page's policy calls a script that may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _link(entry: dict, folder: Path) -> str:
    """Address of a section of the book: of the page built beside, or else of the published one."""
    page, section = entry["page"], entry["section"]
    built = Path("_build", "html", f"{page}.html")
    if page and built.exists():
        return Path(os.path.relpath(built, folder)).as_posix() + f"#{section}"
    return pages.address(page, section)


def write_json(data: dict, path: Path) -> None:
    put_out(path, json.dumps(data, indent=1).encode())


def write_csv(data: dict, path: Path) -> None:
    """A row per student, as spreadsheets like it: UTF-8 with a mark, no formulas."""
    tasks = [each["task"] for each in data["tasks"]]
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow([*COLUMNS, *map(harmless, tasks), "misunderstood", "look at", "seconds"])
    for each in data["students"]:
        wrong = "; ".join(f"{task}: {title}" for task, title in each["wrong"].items())
        table.writerow(
            [
                harmless(each["student"]),
                harmless(each["name"]),
                "not graded" if each["score"] is None else each["score"],
                each["most"],
                each["late"],
                *(each["points"].get(task) for task in tasks),
                harmless(wrong),
                harmless("; ".join(each["review"])),
                each["seconds"],
            ]
        )
    put_out(path, text.getvalue().encode("utf-8-sig", errors="replace"))


def write_totals(most: dict[str, float], totals: list[results.Total], path: Path) -> None:
    """The course's totals: a row per student, a column per assignment."""
    text = io.StringIO()
    table = csv.writer(text)
    of = [f"{name} (of {points:g})" for name, points in most.items()]
    table.writerow([*OF_TOTALS, *map(harmless, of), "unread", "not graded"])
    for each in totals:
        names = [harmless(each.student), harmless(each.name)]
        points = [each.points[name] for name in most]
        percent = None if each.percent is None else round(each.percent, 2)
        lists = ["; ".join(each.waiting), "; ".join(each.not_graded)]
        table.writerow([*names, percent, *points, *lists])
    put_out(path, text.getvalue().encode("utf-8-sig", errors="replace"))


# In many countries a spreadsheet parts cells at each semicolon, whatever the quotes.
_FORMULA = re.compile(r"((?:^|[;\t]) *)(?=[=+@-])")


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula (OWASP, "CSV Injection")."""
    text = _FORMULA.sub(r"\1'", printable(text, lines=True))
    return f"'{text}" if text.startswith(("\t", "\r", "\n", "\0")) else text
