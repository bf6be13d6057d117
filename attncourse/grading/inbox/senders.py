"""Whose a file is: from the names that course systems give, or from its folder."""

import contextlib
import csv
import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from attncourse.grading.inbox.archives import LONGEST_PART, Refused, Sent, is_zip
from attncourse.grading.inbox.untrusted import TooMuch, limited, printable

# All patterns here are quick on names up to LONGEST_PART.
#
# Canvas, ContentZipper#get_filename in lib/content_zipper.rb (instructure/canvas-lms): the sortable
# name in small letters and without anything but letters, LATE, the user's number, the file's
# number, the file's name. Where grading is anonymous: LATE_anon_ab1c2_123_name.
CANVAS = re.compile(
    r"(?:(?!LATE_)(?P<name>\S+?)_)?(?:(?P<late>LATE)_)?(?P<id>\d+|anon_[0-9A-Za-z]+)"
    r"_(?:(?P<file>\d+)_(?P<rest>.+)|(?P<typed>text|link)\.html)"
)
# Moodle, get_student_prefix in mod/assign/classes/downloader.php (moodle/moodle): the full name,
# or "Participant", the number, and the plug-in, as a folder or, if so chosen, before the file name.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+(?:_(?P<rest>.*))?")
# Brightspace, the download of an assignment's folder: `100126-6203 - Di Four - Sep 13, 2026 900 AM`
# is the user's number, the folder's, the name (some schools put a number of their own before it),
# and when. That is a folder, or stands before the file's name. An index.html lies beside them.
BRIGHTSPACE = re.compile(r"(?P<id>\d+)-\d+ - .+ - .*\b20\d\d\b.*")
# Blackboard, "Assignment File Download": the column's title, the login, when, and the file's name;
# with each attempt comes a text that says the same.
BLACKBOARD = re.compile(
    r"(?P<head>.+_(?P<login>[^_]+))_attempt_(?P<when>\d{4}(-\d\d){5})(?:_(?P<rest>.+)|\.txt)"
)
# Open edX, OraDownloadData in openassessment/data.py (openedx/edx-ora2): a folder for each unit,
# and in it the problem's number, the login, and the file's name. A submissions.csv lies beside.
OPEN_EDX_UNIT = re.compile(r"\[\d+\].*, \[\d+\].*, \[\d+\].*(?<!\.zip)|Removed from course")
OPEN_EDX = re.compile(r"\[(?:\d+|x)\] - (?P<login>\S+?)(?: - (?P<rest>.+)|\.\w+)")
ADDED = {"index.html": BRIGHTSPACE, "submissions.csv": OPEN_EDX_UNIT}  # beside such names
# What would read as a user's and a file's number once more: a name that was made to be misread.
AGAIN = re.compile(r"(?:^|_)(?:\d{3,}_\d{3,}_|\d+_assignsubmission_)|_attempt_\d{4}-\d\d-")
# A date or an attempt: in a name that no system here gives, so that it is not a student's alone.
DATED = re.compile(
    r"(?<!\d)(?:20\d\d[-._]\d\d?[-._]\d\d?|20\d{6}T\d{6}Z?|\d\d?[-._]\d\d?[-._]20\d\d"
    r"|\d\d?\.?[ _][^\W\d_]{3,}\.?,?[ _]20\d\d|(?<![^\W_])[^\W\d_]{3,}\.?[ _]\d\d?,?[ _]20\d\d)"
    r"(?!\d)(?:[-_ ,T]+\d\d?[:._h-]?\d\d(?:[:._-]\d\d)?(?!\d)(?:\s?[ap]m\b)?)?"
    r"|(?<![^\W_])(?:attempt|versuch|tentative|intento|poging)(?![^\W_])(?:[ _-]*\d+)?",
    re.IGNORECASE,
)
# Gradescope's export: a folder for each submission, and submission_metadata.yml with, for each
# folder, `:submitters:` (`:name:`, `:sid:`, `:email:`) and `:created_at:`. It alone says when with
# a time zone. What Brightspace and Blackboard say is the school's time; where no name says a time,
# there is none: the times in zips are those of the download.
SECONDS = 60.0  # to read that file
DEEPEST = 50  # lists and tables in each other in it; a real one has a dozen
LARGEST_GROUP = 100  # students; a few lines can name the same thousands for each folder


@dataclass(frozen=True)
class Sender:
    """Who sent a file."""

    file: str  # the name that the student gave it
    names: tuple[str, ...]  # what a roster may know the student by, the surest first
    student: str = ""  # a name for the folder; "" = only a roster can tell
    parts: tuple[str, ...] = ()  # of a name, for the roster if it knows no whole one
    account: str = ""  # what the course system tells users apart by
    when: datetime | None = None  # without a time zone: the school's
    late: bool = False
    number: int = 0  # the greater of two files' numbers was sent later
    inside: str = ""  # the folders in the student's own that it lies in
    doubt: str = ""  # what to say if only a roster can tell, and there is none


def senders(sent: Sent, assignments: list[str]) -> list[Sender]:
    """Whose a file is, from its path: of a group, several.

    Only the outermost name says it. That one was given by the course system or the instructor; all
    below it the student chose, and could choose another student's name.

    Raises:
        Refused: that name is not certain, or was made to be misread.
    """
    if max(map(len, sent.path)) > LONGEST_PART:
        raise Refused("its name, or a folder's, is too long for any disk; say it: --student NAME")
    place = outermost(sent, assignments)
    top, last = sent.path[place], place == len(sent.path) - 1
    if sent.metadata and SUBMISSION.fullmatch(top):
        listed = _gradescope(sent.metadata).get(top) or [((), None)]
        return [
            Sender(sent.name, names, "".join(names[:1]), account=_number(names), when=when)
            for names, when in listed
        ]
    if sender := _of_system(top, None if last else sent.name, assignments):
        return [sender]
    for part in sent.path[place + 1 :]:
        if _of_system(part, sent.name, assignments):
            raise Refused(
                f"whose is it? It lies in {top}, and its name is from a "
                "course system; give the folder of its export by itself"
            )
    return [_by_folder(sent, place, assignments)]


def outermost(sent: Sent, assignments: list[str]) -> int:
    """Where in a path the name stands that says whose it is.

    Folders of assignments say nobody. Neither does one around all, if the files in it are called as
    those of several students are.
    """
    place, end = sent.base, len(sent.path) - 1
    while place < end and sent.path[place] in assignments:
        place += 1
    top = sent.path[place]
    if place == end or len(top) > LONGEST_PART or is_zip(top):
        return place
    given = any(pattern.fullmatch(top) for pattern in (*PATTERNS, SUBMISSION))
    directly = sent.common == place + 1 and (place + 1 == end or is_zip(sent.path[place + 1]))
    is_class = directly and not given and _owners(sent.beside, tuple(assignments)) > 1
    return place + bool(is_class or OPEN_EDX_UNIT.fullmatch(top))


@functools.cache
def _owners(names: frozenset[str], assignments: tuple[str, ...]) -> int:
    """How many students there are, if these are the names of their files."""
    notebooks = [name for name in names if name.lower().endswith((".ipynb", ".zip"))]
    named = [_named(name, assignments) for name in notebooks]
    # A name like the assignment's says nobody, any other may be somebody's.
    return len(
        {student if any(a in stem for a in assignments) else stem for student, stem in named}
    )


def is_added(sent: Sent) -> bool:
    """Whether a course system has added a file, for who downloads it."""
    beside = ADDED.get(sent.name)
    outer = len(sent.path) == sent.common + 1
    return bool(beside and outer and any(beside.fullmatch(name) for name in sent.beside))


def _of_system(part: str, file: str | None, assignments: list[str]) -> Sender | None:
    """From a name of a course system's; None if it is none.

    Args:
        file: what the student called the file; None if that stands in this name, too.
    """
    ways = (
        _of_moodle(part, file),
        _of_canvas(part, file, assignments),
        _of_brightspace(part, file),
        _of_blackboard(part, file),
        _of_open_edx(part, file),
    )
    found = [sender for sender in ways if sender]
    if len(found) > 1:
        raise Refused(TWICE)
    return found[0] if found else None


def _of_moodle(part: str, file: str | None) -> Sender | None:
    found = MOODLE.fullmatch(part)
    if not found:
        return None
    _refuse_twice(found["rest"])
    name, number = found["name"], found["id"]
    file = file or found["rest"] or part
    return Sender(file, (number, name), f"{name}_{number}", account=number)


def _of_canvas(part: str, file: str | None, assignments: list[str]) -> Sender | None:
    found = CANVAS.fullmatch(part)
    if not found:
        return None
    tail = comparable(f"{found['file']}_{found['rest']}")
    if any(tail.startswith(comparable(name)) for name in assignments):
        return None  # jane_12_03_attention.ipynb: not the file with the number 3
    _refuse_twice(found["rest"])
    # Canvas itself counts files that have the same name.
    file = file or re.sub(r"-\d+(\.\w+)$", r"\1", found["rest"] or "")
    names = tuple(filter(None, (found["id"], found["name"])))
    late, number = bool(found["late"]), int(found["file"] or 0)
    student = "_".join(reversed(names))
    return Sender(file, names, student, account=found["id"], late=late, number=number)


def _of_brightspace(part: str, file: str | None) -> Sender | None:
    found = BRIGHTSPACE.fullmatch(part)
    if not found:
        return None
    _, *parts = part.split(" - ")
    dates = [place for place, each in enumerate(parts) if DATED.fullmatch(each)]
    dates = dates or [place for place, each in enumerate(parts) if re.search(r"\b20\d\d\b", each)]
    if len(dates) > 1 or dates == [0]:
        raise Refused(TWICE)
    names, rest = parts[: dates[0]], " - ".join(parts[dates[0] + 1 :])
    _refuse_twice(rest)
    student, number = f"{names[-1]}_{found['id']}", found["id"]
    when = _brightspace_time(parts[dates[0]])
    return Sender(file or rest or part, (number, *names), student, account=number, when=when)


def _brightspace_time(said: str) -> datetime | None:
    """`Sep 13, 2026 900 AM`, and what other languages and settings make of it; None if unknown."""
    words = re.sub(r"(\d\d?)[:._](\d\d)\b", r"\1\2", said).replace(",", " ").split()
    words = [word.zfill(4) if re.fullmatch(r"\d{3}", word) else word for word in words]
    for day in ("%b %d %Y", "%B %d %Y", "%d %b %Y", "%d %B %Y", "%Y-%m-%d"):
        for clock in ("%I%M %p", "%H%M"):
            with contextlib.suppress(ValueError):
                return datetime.strptime(" ".join(words), f"{day} {clock}")
    return None


def _of_blackboard(part: str, file: str | None) -> Sender | None:
    found = BLACKBOARD.fullmatch(part)
    if not found:
        return None
    _refuse_twice(found["rest"])
    if AGAIN.search(found["head"]):
        raise Refused(TWICE)
    words = found["head"].split("_")  # a login may have a _ in it, and so may the title
    logins = tuple("_".join(words[start:]) for start in range(len(words) - 1, 0, -1))
    try:
        when = datetime.strptime(found["when"], "%Y-%m-%d-%H-%M-%S")
    except ValueError:
        when = None
    file = file or found["rest"] or part
    return Sender(file, (), found["login"], logins, account=found["head"], when=when)


def _of_open_edx(part: str, file: str | None) -> Sender | None:
    found = OPEN_EDX.fullmatch(part)
    if not found:
        return None
    login = found["login"]
    return Sender(file or found["rest"] or part, (login,), login, account=login)


PATTERNS = (MOODLE, CANVAS, BRIGHTSPACE, BLACKBOARD, OPEN_EDX)
SUBMISSION = re.compile(r"submission_\d+")  # a folder of Gradescope's
TWICE = "whose is it? Its name can be read in two ways; say it: --student NAME"


def _refuse_twice(rest: str | None) -> None:
    """Where people choose their own name or a file's, two may stand in one: `x_1_2_y_3_4_z`."""
    if rest and AGAIN.search(rest):
        raise Refused(TWICE)


def _by_folder(sent: Sent, place: int, assignments: list[str]) -> Sender:
    """`jane/x.ipynb`, `jane.zip/work/x.ipynb`, or `jane_03_x.ipynb`."""
    number = re.search(r"(?:-| ?\()(\d+)\)?\.", sent.name)
    count = int(number[1]) if number else 0
    folders = sent.path[place:] if is_zip(sent.name) else sent.path[place:-1]
    folders = [part for part in folders if part not in assignments]
    if len(folders) > 1 and place < sent.common:
        raise Refused(
            f"whose is it? All lies in {'/'.join(sent.path[place : sent.common])}: if that is one "
            "student's, say it: --student NAME; if it has a folder for each student, give that by "
            "itself"
        )
    doubt = ""
    if folders:
        student = stem = re.sub(r"\.zip$", "", folders[0], flags=re.IGNORECASE)
    else:
        student, stem = _named(sent.name, assignments)
        if place and not student:
            doubt = (
                f"whose is it? Its name says nobody, and {sent.path[place - 1]} is no student's: "
                "put each student's name before the file's, give a roster, or say it: "
                "--student NAME"
            )
    if DATED.search(student):
        student = ""
        doubt = (
            "whose is it? Its name holds a date or an attempt, too: give a roster with the name or "
            "the number that stands there, or say it: --student NAME"
        )
    names = tuple(dict.fromkeys(filter(None, (student, stem))))
    return Sender(
        sent.name,
        names,
        student,
        _parts(stem),
        account=_number(names),
        number=count,
        inside="/".join(folders[1:]),
        doubt=doubt,
    )


def _number(names: tuple[str, ...]) -> str:
    """The surest name, if it is a number."""
    return next((name for name in names[:1] if name.isdecimal()), "")


def _named(name: str, assignments: Sequence[str]) -> tuple[str, str]:
    """What stands before the assignment in a file's name, and all of it but its end."""
    stem = without_copies(re.sub(r"\.zip$", "", name, flags=re.IGNORECASE))
    student = next((stem.split(a)[0] for a in assignments if a in stem), "")
    student = re.sub(rf"(^|[ _-])({COPY_OF})+$", "", student, flags=re.I).strip(" _-.")
    return student, stem


def _parts(name: str) -> tuple[str, ...]:
    """Of `One_Anna_aone_4711` (ILIAS) or `One, Anna(aone)` (Sakai) what a roster may know.

    That is what stands by itself or has a number in it, and words that follow each other. A word
    alone is too little: one's first name may be another one's login.
    """
    undated = DATED.sub(" - ", name)
    words = [word for word in re.split(r"[\s_,;()\[\]]+", undated) if comparable(word)][:12]
    found = re.split(r" - |[()\[\]]", undated)
    found += ["".join(words[i:j]) for i in range(len(words)) for j in range(i + 2, len(words) + 1)]
    found += [part for word in words for part in (word, *word.split("-")) if re.search(r"\d", part)]
    if len(words) > 3 and words[-1].isdecimal():
        found.append(words[-2])  # ILIAS: last name, first name, login, number
    # Numbers that count something, or a year, are nobody's.
    known = (each.strip() for each in found if not re.fullmatch(r"[\W_]*(\d{1,3}|20\d\d)?", each))
    return tuple(dict.fromkeys(known))


COPY_OF = r"copy[ _]of[ _]|kopie[ _]von[ _]|copia[ _]de[ _]|copie[ _]de[ _]"


def without_copies(name: str) -> str:
    """A file's name without its end, and without what browsers and Colab add to a copy's."""
    stem = re.sub(r"(\.ipynb|\.json|\.txt)+$", "", name, flags=re.IGNORECASE)
    stem = re.sub(rf"^({COPY_OF})+", "", stem, flags=re.I)
    return re.sub(r"(-\d+| ?\(\d+\)| ?- ?copy\d*)+$", "", stem, flags=re.IGNORECASE)


def comparable(name: str) -> str:
    """A name without case, spaces and signs: `Smith, Bob` is Canvas's `smithbob`."""
    return "".join(c for c in unicodedata.normalize("NFKC", name).casefold() if c.isalnum())


@functools.cache
def _gradescope(data: bytes) -> dict[str, list[tuple[tuple[str, ...], datetime | None]]]:
    """Folder -> for each of its group the names and the time, from submission_metadata.yml."""
    try:
        with limited(SECONDS):
            _look_at_depth(data)
            listed = yaml.load(data, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError, MemoryError, TooMuch):
        return {}
    found = {}
    for folder, about in listed.items() if isinstance(listed, dict) else ():
        # Not what it seems: no names, or no such time.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):
            when = about.get(":created_at")
            if isinstance(when, datetime):
                when = when.replace(tzinfo=when.tzinfo or UTC).astimezone(UTC)
            else:
                when = None
            if len(group := about[":submitters"]) <= LARGEST_GROUP:
                found[folder] = [(_names(each), when) for each in group]
    return found


def _names(submitter: dict) -> tuple[str, ...]:
    kept = (submitter.get(key) for key in (":sid", ":email", ":name"))
    return tuple(str(name) for name in kept if name and isinstance(name, str | int))


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML without merge keys (`<<: [*a, *a]`), where each line can be nine times the last."""

    def flatten_mapping(self, node):
        pass  # nobody knows how to make `<<`: an error of YAML's


def _look_at_depth(data: bytes) -> None:
    """Raises: RecursionError: the C loader would crash on it."""
    depth = 0
    for event in yaml.parse(data, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise RecursionError


def roster_in(path: Path) -> "Roster":
    """The roster in a CSV file as `nbgrader db student import` reads it.

    Raises:
        Refused: it is not such a file.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            rows = [(table.line_num, row) for row in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"the roster {path} cannot be read: {error}") from None
    if not rows or "id" not in rows[0][1]:
        raise Refused(f"the roster {path} needs a column `id`, the name in submitted/")
    if lines := [str(line) for line, row in rows if not (row["id"] or "").strip()]:
        several = "lines" if lines[1:] else "line"
        raise Refused(f"the roster {path} has no id in {several} {', '.join(lines[:9])}")
    return Roster([row for _, row in rows], "the roster")


class Roster:
    """Which names belong to which student.

    Args:
        rows: of each student an `id`, and any others (first_name, last_name, email, lms_user_id,
            ...). Whatever stands in a student's row and in no other one's, finds the student.
        called: where they stand, in words.
        complete: who is not in it is no student of this course.
    """

    def __init__(self, rows: list[dict], called: str, complete: bool = True):
        self.called, self.complete = called, complete
        self.students = {row["id"] for row in rows}
        self.known: dict[str, set[str]] = {}
        for row in rows:
            first, last = row.get("first_name") or "", row.get("last_name") or ""
            others = row.keys() - {"first_name", "last_name", None}  # one alone is too little
            names = {row[column] or "" for column in others}
            for name in map(comparable, names | {first + last, last + first}):
                if name:
                    self.known.setdefault(name, set()).add(row["id"])

    def find(self, names: tuple[str, ...], parts: tuple[str, ...] = ()) -> str | None:
        """Whose name one of these is; None if nobody's.

        Args:
            names: the surest first.
            parts: of a name, where no whole one is known. All that are known must be one student's.

        Raises:
            Refused: it is more than one student's.
        """
        several = ""
        for name in names:
            students = self.known.get(comparable(name), set())
            if len(students) == 1:
                return next(iter(students))
            if students:
                several = f"{printable(name)} is {' and '.join(sorted(students))} in {self.called}"
        if several:
            raise Refused(f"{several}; say whose it is: --student NAME")
        known = (self.known.get(comparable(part), set()) for part in parts)
        found = sorted(
            {student for students in known if len(students) == 1 for student in students}
        )
        if len(found) > 1:
            both = f"parts of its name are {' and '.join(found)} in {self.called}"
            raise Refused(f"{both}; say whose it is: --student NAME")
        return found[0] if found else None


def _of_a_name(letter: str) -> bool:
    return letter.isalnum() or letter in "_.@-" or unicodedata.category(letter) in ("Mn", "Mc")


def safe_name(student: str) -> str:
    """A name for a folder, the same on every system: letters, digits and `_ . @ -`."""
    kept = unicodedata.normalize("NFC", student)
    kept = "".join(c if _of_a_name(c) else " " for c in kept)
    name = re.sub(r" +", "_", kept)
    name = name.strip("_.-").encode()[:100].decode(errors="ignore").rstrip("_.-")
    taken = re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", name, re.IGNORECASE)
    return f"{name}_" if taken else name


TIMESTAMP = "timestamp.txt"


def timestamp_of(folder: Path):
    """When it was handed in, as nbgrader's collect step or a person wrote it; None if nobody did.

    It is the first line with something in it; editors write a mark before it.
    """
    from nbgrader.utils import parse_utc

    try:
        lines = (folder / TIMESTAMP).read_text(encoding="utf-8-sig").split("\n")
        return parse_utc(next(filter(None, map(str.strip, lines))))
    except (OSError, ValueError, OverflowError, StopIteration):
        return None
