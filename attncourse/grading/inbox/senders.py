"""Whose a file is: from the names that Canvas, Moodle and Gradescope give, or from its folder."""

import contextlib
import csv
import functools
import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from attncourse.grading.inbox.archives import Refused, Sent
from attncourse.grading.inbox.untrusted import TooMuch, limited, printable

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
LONGEST_PART = 255  # characters of a name in a path; the patterns here are quick on these
# What would read as a user's and a file's number once more: a name that was made to be misread.
AGAIN = re.compile(r"(?:^|_)(?:\d{3,}_\d{3,}_|\d+_assignsubmission_)")
# Gradescope's export: a folder for each submission, and submission_metadata.yml with, for each
# folder, `:submitters:` (`:name:`, `:sid:`, `:email:`) and `:created_at:`. The only one of the
# three that says when: the times in the others' zips are those of the download.
SECONDS = 60.0  # to read that file
DEEPEST = 50  # lists and tables in each other in it; a real one has a dozen
LARGEST_GROUP = 100  # students; a few lines can name the same thousands for each folder


@dataclass(frozen=True)
class Sender:
    """Who sent a file."""

    file: str  # the name that the student gave it
    names: tuple[str, ...]  # what a roster may know the student by, the surest first
    student: str = ""  # a name for the folder; "" = only a roster can tell
    when: datetime | None = None
    late: bool = False
    number: int = 0  # the greater of two files' numbers was sent later
    inside: str = ""  # the folders in the student's own that it lies in


def senders(sent: Sent, assignments: list[str]) -> list[Sender]:
    """Whose a file is, from its path: of a group, several.

    Only the outermost name says it. That one was given by the course system or the instructor; all
    below it the student chose, and could choose another student's name.

    Raises:
        Refused: that name is not certain, or was made to be misread.
    """
    if max(map(len, sent.path)) > LONGEST_PART:
        raise Refused("its name, or a folder's, is too long for any disk; say it: --student NAME")
    place = sent.base
    while place < len(sent.path) - 1 and sent.path[place] in assignments:
        place += 1  # 03_attention/jane/x.ipynb
    top, last = sent.path[place], place == len(sent.path) - 1
    if sent.metadata and re.fullmatch(r"submission_\d+", top):
        listed = _gradescope(sent.metadata).get(top, [((), None)])
        return [Sender(sent.name, names, "".join(names[:1]), when) for names, when in listed]
    if sender := _of_moodle(top, sent, last) or _of_canvas(top, sent, last, assignments):
        return [sender]
    for part in sent.path[place + 1 :]:
        if MOODLE.fullmatch(part) or _of_canvas(part, sent, False, assignments):
            raise Refused(
                f"whose is it? It lies in {top}, and its name is from a "
                "course system; give the folder of its export by itself"
            )
    return [_by_folder(sent, place, assignments)]


def _of_moodle(part: str, sent: Sent, last: bool) -> Sender | None:
    found = MOODLE.fullmatch(part)
    if not found:
        return None
    _refuse_twice(found["rest"])
    file = found["rest"] if last and found["rest"] else sent.name
    return Sender(file, (found["id"], found["name"]), f"{found['name']}_{found['id']}")


def _of_canvas(part: str, sent: Sent, last: bool, assignments: list[str]) -> Sender | None:
    found = CANVAS.fullmatch(part)
    if not found:
        return None
    tail = comparable(f"{found['file']}_{found['rest']}")
    if any(tail.startswith(comparable(name)) for name in assignments):
        return None  # jane_12_03_attention.ipynb: not the file with the number 3
    _refuse_twice(found["rest"])
    # Canvas itself counts files that have the same name.
    file = re.sub(r"-\d+(\.\w+)$", r"\1", found["rest"] or "") if last else sent.name
    names = tuple(filter(None, (found["id"], found["name"])))
    late, number = bool(found["late"]), int(found["file"] or 0)
    return Sender(file, names, "_".join(reversed(names)), late=late, number=number)


def _refuse_twice(rest: str | None) -> None:
    """Where people choose their own name or a file's, two may stand in one: `x_1_2_y_3_4_z`."""
    if rest and AGAIN.search(rest):
        raise Refused("whose is it? Its name can be read in two ways; say it: --student NAME")


def _by_folder(sent: Sent, place: int, assignments: list[str]) -> Sender:
    """`jane/x.ipynb`, `jane.zip/work/x.ipynb`, or `jane_03_x.ipynb`."""
    number = re.search(r"(?:-| ?\()(\d+)\)?\.", sent.name)
    count = int(number[1]) if number else 0
    folders = [part for part in sent.path[place:-1] if part not in assignments]
    if len(folders) > 1 and place < sent.common:
        raise Refused(
            f"whose is it? All lies in {folders[0]}: if that is one student's, "
            f"say it: --student NAME; if it has a folder for each student, give that by itself"
        )
    if folders:
        student = re.sub(r"\.zip$", "", folders[0], flags=re.IGNORECASE)
        return Sender(sent.name, (student,), student, number=count, inside="/".join(folders[1:]))
    stem = _without_copies(sent.name)
    student = next((stem.split(a)[0] for a in assignments if a in stem), "")
    student = re.sub(rf"(^|[ _-])({COPY_OF})+$", "", student, flags=re.I).strip(" _-.")
    return Sender(sent.name, tuple(filter(None, (student, stem))), student, number=count)


COPY_OF = r"copy[ _]of[ _]|kopie[ _]von[ _]|copia[ _]de[ _]|copie[ _]de[ _]"


def _without_copies(name: str) -> str:
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
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"the roster {path} cannot be read: {error}") from None
    if not rows or "id" not in rows[0]:
        raise Refused(f"the roster {path} needs a column `id`, the name in submitted/")
    return Roster(rows, "the roster")


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

    def find(self, names: tuple[str, ...]) -> str | None:
        """Whose name one of these is; None if nobody's.

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
        return None


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


def timestamp_of(folder: Path):
    """When it was handed in, as nbgrader's collect step wrote it; None if it did not, or not so."""
    from nbgrader.utils import parse_utc

    try:
        return parse_utc((folder / "timestamp.txt").read_text(encoding="utf-8").strip())
    except (OSError, ValueError, OverflowError):
        return None
