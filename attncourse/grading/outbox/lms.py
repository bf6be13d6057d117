"""Points for the course system: the CSV it exported comes in, the same file goes out with points.

Only the cells of one assignment change; every other byte stays as it was, so that Canvas or Moodle
finds its own file again. Nobody is guessed: a student is found by login, ID or e-mail, by name only
if nothing else fits and nobody shares it, and whoever has no match on the other side is reported.

What the two systems want, as they say it:

- Canvas, in its own code (lib/gradebook_exporter.rb and lib/gradebook_importer.rb,
  https://github.com/instructure/canvas-lms): a row is a student's by ID, SIS User ID or SIS Login
  ID; a column is an assignment's by "Title (id)", and without an id makes a new assignment; "Points
  Possible" and "Manual Posting" are rows, too; "EX" is excused, "N/A" does not have the assignment.
- Moodle ("Grade import", https://docs.moodle.org/405/en/Grade_import): columns are mapped by hand,
  one to e-mail address, username or ID number, others to a grade and its feedback; feedback that
  comes without its grade deletes the grade. Columns are named in format_column_name of
  grade/export/lib.php, those of a grading worksheet in mod/assign/feedback/offline/locallib.php
  (https://github.com/moodle/moodle).
"""

import collections
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from attncourse.grading.books import disk, nbgrader_api, results
from attncourse.grading.outbox.class_report import harmless


class Refused(Exception):
    """A file that cannot be filled in; says why, and what to do."""


@dataclass(frozen=True)
class Graded:
    """What the course system should know about a student."""

    student: str  # the name in submitted/
    score: float
    unread: bool = False  # a written answer is not in the score yet
    stale: bool = False  # graded before something changed
    comment: str = ""
    keys: tuple[str, ...] = ()  # e-mail and ID, if the gradebook knows them
    name: str = ""


@dataclass
class Filled:
    """A file with points, and who is not in it."""

    data: bytes = b""
    column: str = ""
    added: bool = False  # the file had no such column
    rows: dict[str, str] = field(default_factory=dict)  # student -> whose row, as the system says
    by_name: list[str] = field(default_factory=list)  # of these, found by nothing but the name
    changed: list[str] = field(default_factory=list)  # rows that had other points
    kept: list[str] = field(default_factory=list)  # rows that are excused, or not assigned
    without_points: list[str] = field(default_factory=list)  # rows of students without points
    without_row: list[str] = field(default_factory=list)  # students the system does not have
    doubtful: list[str] = field(default_factory=list)  # rows that fit several, or compete
    notes: list[str] = field(default_factory=list)


WHO = {  # columns that say whose row it is
    "canvas": ("SIS Login ID", "SIS User ID", "ID", "Integration ID"),
    "moodle": ("Email address", "Username", "ID number"),
}
NAMES = ("Student", "Full name", "First name", "FirstName", "Last name", "LastName", "Surname")
KEPT = {"EX", "N/A"}


# --- what there is to say -----------------------------------------------------------------------


def graded(assignment: str) -> tuple[list[Graded], float, list[str]]:
    """Everybody with points, the most that can be had, and who handed in and is not graded.

    Raises:
        Refusal: as in `results.of_class`.
    """
    job = disk.job_of(assignment)
    about = job.about
    order = [*about.tasks, *about.questions]
    found = []
    everybody = results.of_class(assignment)
    rows = {row.student: row for row in everybody if row.score is not None}
    with nbgrader_api.gradebook() as gradebook:
        comments = _comments(gradebook, assignment)
        for student in gradebook.students:
            if row := rows.get(student.id):
                said = comments[student.id]
                found.append(
                    Graded(
                        student.id,
                        row.score,
                        bool(row.unread & about.questions.keys()),
                        row.stale,
                        " ".join(f"{name}: {said[name]}" for name in order if said.get(name)),
                        tuple(key for key in (student.email, student.lms_user_id) if key),
                        row.name,
                    )
                )
    not_graded = [row.student for row in everybody if row.score is None]
    return sorted(found, key=lambda each: each.student), about.points, not_graded


def _comments(gradebook, assignment: str) -> dict[str, dict[str, str]]:
    """Student -> name of the cell -> what the gradebook says there; one query."""
    from nbgrader.api import Assignment, BaseCell, Comment, SubmittedAssignment, SubmittedNotebook

    rows = (
        gradebook.db.query(SubmittedAssignment.student_id, BaseCell.name, Comment.comment)
        .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Comment, Comment.notebook_id == SubmittedNotebook.id)
        .join(BaseCell, BaseCell.id == Comment.cell_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .filter(Assignment.name == assignment)
    )
    comments = collections.defaultdict(dict)
    for student, cell, comment in rows:
        comments[student][cell] = comment
    return comments


# --- a CSV file whose bytes stay -----------------------------------------------------------------


class Table:
    """The cells of a CSV file, each with its place in the text.

    Raises:
        Refused: it is not such a file.
    """

    def __init__(self, data: bytes, wanted: Iterable[str]):
        if b"\0" in data:
            raise Refused("it is not UTF-8; save it as “CSV UTF-8”")
        # Bytes that are not UTF-8 come back out as they went in.
        self.text = data.decode("utf-8", "surrogateescape")
        self.changes: dict[tuple[int, int], str] = {}
        for self.delimiter in ",;\t":
            self.rows = list(self._rows())
            self.header = [self.cell(0, n).strip() for n in range(len(self.rows[0]))]
            if set(wanted) & set(self.header):
                return
        raise Refused(f"none of its columns is named {', '.join(wanted)}")

    def _rows(self) -> Iterable[list[tuple[int, int]]]:
        cell = re.compile(f'"(?:[^"]|"")*"|[^{self.delimiter}\r\n]*')
        place, row = int(self.text.startswith("\ufeff")), []
        while True:
            start, end = cell.match(self.text, place).span()
            row.append((start, end))
            after = self.text[end : end + 1]
            closed = end - start > 1 and self.text[end - 1] == '"'
            if after not in ("", "\r", "\n", self.delimiter) or (
                self.text.startswith('"', start) and not closed
            ):
                line = self.text.count("\n", 0, start) + 1
                raise Refused(f"line {line} has a quotation mark without its other half")
            if after == self.delimiter:
                place = end + 1
                continue
            yield row
            row, place = [], end + (2 if self.text.startswith("\r\n", end) else 1)
            if place >= len(self.text):
                return

    def cell(self, row: int, column: int) -> str:
        if column >= len(self.rows[row]):
            return ""
        start, end = self.rows[row][column]
        text = self.text[start:end]
        return text[1:-1].replace('""', '"') if text.startswith('"') else text

    def put(self, row: int, column: int, text: str) -> None:
        self.changes[row, column] = text

    def bytes(self) -> bytes:
        """The file with all changes; a row that is too short gets empty cells."""
        parts, done, widths = [], 0, [len(row) for row in self.rows]
        for (row, column), text in sorted(self.changes.items()):
            if re.search(f'[{self.delimiter}"\r\n]|^ | $', text):
                text = '"' + text.replace('"', '""') + '"'
            if column < len(self.rows[row]):
                start, end = self.rows[row][column]
            else:
                start = end = self.rows[row][-1][1]
                text = self.delimiter * (column - widths[row] + 1) + text
                widths[row] = column + 1
            parts += [self.text[done:start], text]
            done = end
        return ("".join(parts) + self.text[done:]).encode("utf-8", "surrogateescape")


# --- filling it in -------------------------------------------------------------------------------


def fill(
    data: bytes, system: str, assignment: str, points: list[Graded], most: float, column: str = ""
) -> Filled:
    """Put points into a file that Canvas or Moodle exported.

    Args:
        system: "canvas" or "moodle".
        points: of everybody; `most` is what can be had.
        column: the name of the column; found by the assignment's name if "".

    Raises:
        Refused: the file is not what it should be, or has no or several such columns.
    """
    table, filled = Table(data, WHO[system]), Filled()
    place, comments = _columns(table, system, assignment, column)
    filled.added = place >= len(table.header)
    filled.column = assignment if filled.added else table.header[place]
    if filled.added:
        table.put(0, place, harmless(assignment))
        if system == "moodle":
            table.put(0, comments, harmless(f"{assignment} feedback"))
    people = []
    for row in range(1, len(table.rows)):
        if system == "canvas" and "Points Possible" in table.cell(row, 0):
            _compare(table, row, place, most, filled)
        elif any(_cell(table, row, name) for name in WHO[system]):
            people.append(row)
    if filled.column == "Grade":  # of Moodle's grading worksheet
        for theirs in dict.fromkeys(_cell(table, row, "Maximum Grade") for row in people):
            _compare_most("Moodle", theirs, most, filled)
    matched = _match(table, system, people, points, filled)
    for row in people:
        student = matched.get(row)
        if student is None:
            if row not in filled.doubtful:
                filled.without_points.append(_whose(table, row))
        elif table.cell(row, place).strip().upper() in KEPT:
            filled.kept.append(_whose(table, row))
        else:
            filled.rows[student.student] = _whose(table, row)
            if _number(table.cell(row, place)) not in (None, round(student.score, 2)):
                filled.changed.append(f"{_whose(table, row)} ({table.cell(row, place)})")
            table.put(row, place, f"{student.score:.2f}".rstrip("0").rstrip("."))
            if comments is not None:
                table.put(row, comments, harmless(student.comment))
    filled.doubtful = [_whose(table, row) for row in filled.doubtful]
    found = {student.student for student in matched.values()}
    filled.without_row = [each.student for each in points if each.student not in found]
    filled.data = table.bytes()
    return filled


def is_filled(data: bytes, roster: bytes, system: str) -> bool:
    """Whether a file has a roster's columns, those that `fill` adds, and nobody else in it."""
    try:
        here, there = (Table(each, WHO[system]) for each in (data, roster))
    except Refused:
        return False
    old, new = here.header, there.header
    same = len(new) <= len(old) <= len(new) + 2 and old[: len(new)] == new
    return same and _people(here, system) <= _people(there, system)


def _people(table: Table, system: str) -> set[tuple[str, ...]]:
    return {
        tuple(_cell(table, row, name) for name in WHO[system]) for row in range(1, len(table.rows))
    }


def _number(text: str) -> float | None:
    """What a cell says in points, with a decimal comma or point; None if it says nothing."""
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        return None


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().strip()


def _letters(text: str) -> str:
    return "".join(letter for letter in _plain(text) if letter.isalnum())


def _columns(table: Table, system: str, assignment: str, column: str) -> tuple[int, int | None]:
    """Where points go, and comments if the system has a place for them."""
    header = table.header
    if column:
        if header.count(column) != 1 or column in (*WHO[system], *NAMES, "Section"):
            raise Refused(f"it has no column {column!r} for points; it has: {', '.join(header)}")
        place = header.index(column)
    elif system == "moodle" and {"Identifier", "Grade"} <= set(header):  # a grading worksheet
        place = header.index("Grade")
    else:
        kind = r" \(\d+\)$" if system == "canvas" else r" \(Real\)$|(?<!\))$"
        names = {
            n: _letters(re.sub(kind, "", name))
            for n, name in enumerate(header)
            if re.search(kind, name)
        }
        wanted = _letters(assignment)
        fits = [n for n, name in names.items() if name == wanted]
        fits = fits or [n for n, name in names.items() if wanted in name]
        if len(fits) > 1:
            several = ", ".join(header[n] for n in fits)
            raise Refused(f"several of its columns fit: {several}; choose one with --column")
        place = fits[0] if fits else len(header)
    if system == "canvas":
        return place, None
    if place >= len(header):
        return place, place + 1
    stem = re.sub(r" \(Real\)$", "", header[place])
    feedback = "Feedback comments" if stem == "Grade" else f"{stem} (Feedback)"
    return place, header.index(feedback) if feedback in header else None


def _cell(table: Table, row: int, name: str) -> str:
    return table.cell(row, table.header.index(name)).strip() if name in table.header else ""


def _whose(table: Table, row: int) -> str:
    """A row's student, for people to read."""
    parts = [_cell(table, row, name) for name in NAMES]
    who = " ".join(part for part in parts if part) or ", ".join(
        filter(None, (_cell(table, row, name) for names in WHO.values() for name in names))
    )
    return who.encode("utf-8", "replace").decode()


def _compare(table: Table, row: int, place: int, most: float, filled: Filled) -> None:
    """Does the system count as many points as we do?"""
    theirs = table.cell(row, place).strip()
    if filled.added:
        table.put(row, place, f"{most:g}")
    elif "read only" in theirs:
        raise Refused(f"Canvas does not let anybody change the column {filled.column}")
    else:
        _compare_most("Canvas", theirs, most, filled)


def _compare_most(system: str, theirs: str, most: float, filled: Filled) -> None:
    if _number(theirs) not in (None, most):
        filled.notes.append(f"{system} counts {theirs} points for it, here there are {most:g}")


def _match(
    table: Table, system: str, people: list[int], points: list[Graded], filled: Filled
) -> dict[int, Graded]:
    """Row -> student; a student that several rows fit, or a row that several fit, is nobody's."""
    known = collections.defaultdict(set)
    names = collections.defaultdict(set)
    for number, each in enumerate(points):
        own, _, last = each.student.rpartition("_")  # as ingest names it: smithbob_340934
        filed = last.isdigit() and bool(own)
        for key in (each.student, *each.keys, *([last] if filed else [])):
            known[_plain(key)].add(number)
        for name in {_letters(own if filed else each.student), _letters(each.name)} - {""}:
            names[name].add(number)

    def hits(row: int) -> set[int]:
        keys = [_plain(_cell(table, row, name)) for name in WHO[system]]
        return set().union(*(known.get(key, set()) for key in keys if key))

    def same_name(row: int) -> set[int]:
        parts = [_cell(table, row, name) for name in NAMES]
        parts = [part for part in parts if part]
        turned = [", ".join(reversed(part.split(", ", 1))) for part in parts]
        ways = {_letters(" ".join(way)) for way in (parts, turned, parts[::-1])}
        return set().union(*(names.get(way, set()) for way in ways))

    matched: dict[int, Graded] = {}
    for ways in (hits, same_name):
        taken = {id(student) for student in matched.values()}
        fits = {
            row: {n for n in ways(row) if id(points[n]) not in taken}
            for row in people
            if row not in matched and row not in filled.doubtful
        }
        claims = collections.Counter(n for found in fits.values() for n in found)
        for row, found in fits.items():
            if len(found) == 1 and claims[next(iter(found))] == 1:
                matched[row] = points[next(iter(found))]
                if ways is same_name:
                    filled.by_name.append(_whose(table, row))
            elif found:
                filled.doubtful.append(row)
    return matched
