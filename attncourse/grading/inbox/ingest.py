"""What students really send, filed into submitted/: zips of a course system, renamed files.

Whose a file is comes from its path, which assignment from what is in it. Its marks are restored,
the file is written completely or not at all, the one before it is kept, and what cannot be filed
is said, with what to ask the student for.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.archives import Purse, Refused, Sent, contents, is_noise
from attncourse.grading.inbox.restore import recognize, restore
from attncourse.grading.inbox.senders import (
    Roster,
    Sender,
    comparable,
    is_added,
    outermost,
    safe_name,
    senders,
    timestamp_of,
    without_copies,
)
from attncourse.grading.inbox.submission import MARKER, Assignment, Notebook, grade_id_of, source_of
from attncourse.grading.inbox.untrusted import looks_like, printable
from attncourse.grading.inbox.writing import one_at_a_time, write

SUBMITTED = Path("submitted")


# --- what it is ---------------------------------------------------------------------------------

ASK = "ask for the notebook (.ipynb): File ▸ Download"
KINDS = {  # how a file begins or its name ends -> what it is
    "pdf": (b"%PDF", (".pdf",), "a PDF"),
    "word": (b"", (".docx", ".doc", ".odt", ".pages", ".rtf"), "a text document"),
    "archive": (b"", (".rar", ".7z", ".tar", ".gz", ".tgz"), "an archive that is no zip"),
    "picture": (b"\x89PNG", (".png", ".jpg", ".jpeg", ".heic", ".gif", ".webp"), "a picture"),
    "script": (b"", (".py",), "a Python script"),
    "link": (b"", (".url", ".webloc", ".gdoc", ".desktop", ".lnk"), "a link, not the file"),
}


def notebook_in(name: str, data: bytes) -> bytes:
    """A notebook's text in UTF-8.

    Raises:
        Refused: it is something else.
    """
    lower, begin = name.lower(), data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not data.strip():
        raise Refused("the file is empty; ask for it again")
    for begins, ends, what in KINDS.values():
        if (begins and begin.startswith(begins)) or lower.endswith(ends):
            raise Refused(f"{what}; {ASK}")
    if data.startswith(b"PK\x03\x04"):
        raise Refused(f"a zip or a text document under another name; {ASK}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").encode()
    if re.search(r"(_(text|link)|onlinetext)\.html$", lower):
        raise Refused(f"text or a link, typed into the course system; {ASK}")
    if begin.startswith(b"<") and not begin.startswith(b"<<<<<<<"):
        login = re.search(rb"login|log in|sign in|password", data[:100_000], re.IGNORECASE)
        what = "of a login" if login else "(a printed notebook?)"
        raise Refused(f"a web page {what}; {ASK}")
    if b"colab.research.google.com/drive/" in begin and not begin.startswith((b"{", b"[")):
        raise Refused(f"a link to Colab; {ASK}")
    if not begin.startswith((b"{", b"[", b"<")) and not lower.endswith(".ipynb"):
        raise Refused(f"not a notebook; {ASK}")
    return data


@dataclass(frozen=True)
class Course:
    """The assignments that may be filed."""

    released: dict[str, dict]  # name -> notebook in exercises/
    about: dict[str, Assignment]

    @classmethod
    def here(cls) -> "Course":
        """Read the course's folder; assignments that are not released are left out."""
        released, about = {}, {}
        for path in sorted(Path("solutions").glob("*/*.ipynb")):
            name, twin = path.stem, Path("exercises") / path.parent.name / path.name
            if name == path.parent.name and twin.is_file():
                both = [reading.course_notebook(each)[1] for each in (path, twin)]
                about[name], released[name] = reading.assignment_of(name, *both), both[1]
        return cls(released, about)

    def assignment_in(self, cells: list[dict], name: str) -> str | None:
        """Which assignment a notebook is of; None if that cannot be said."""
        for counts in self._evidence(cells, name):
            best = sorted(counts, key=counts.get, reverse=True)
            if best and counts[best[0]]:
                tie = len(best) > 1 and counts[best[0]] == counts[best[1]]
                return None if tie else best[0]
        return None

    def _evidence(self, cells: list[dict], name: str) -> Iterator[dict[str, int]]:
        """Assignment -> how much speaks for it, the surest first."""
        sources = [source_of(cell) for cell in cells]
        marked = Counter(m[1] for source in sources for m in MARKER.finditer(source))
        yield {a: marked[a] for a in self.about}
        ids = {grade_id_of(cell) for cell in cells}
        yield {a: len(ids & {*about.tasks, *about.questions}) for a, about in self.about.items()}
        yield {a: int(comparable(a) in comparable(name)) for a in self.about}
        code = (source_of(cell) for cell in cells if cell.get("cell_type") == "code")
        defined = {each for s in code for each in reading.defined_in(reading.plain_python(s))}
        found = {a: len(defined & set(about.tasks)) for a, about in self.about.items()}
        yield {a: count if count > 1 else 0 for a, count in found.items()}  # one may be chance


# --- filing -------------------------------------------------------------------------------------


OUTCOMES = ("filed", "replaced", "unchanged", "set aside", "beside a notebook")


@dataclass
class Filed:
    """What became of one file, for one student."""

    source: str
    student: str = ""
    assignment: str = ""
    outcome: str = ""  # one of OUTCOMES; "" = not filed
    notes: list[str] = field(default_factory=list)  # repairs, or why it is not filed
    doubt: bool = False  # somebody must look, though it is filed


@dataclass
class Desk:
    """Files one thing after the other; remembers what it filed."""

    course: Course
    student: str = ""  # all is of this one
    assignment: str = ""  # all is of this one
    roster: Roster | None = None
    dry_run: bool = False
    zone: tzinfo | None = None  # of times that stand in names
    zoneless: int = 0  # of these, where that is not known
    ignored: int = 0
    purses: dict[tuple[str, ...], Purse] = field(default_factory=dict)  # of outermost names
    came: dict[tuple[str, str], list[tuple]] = field(default_factory=dict)  # in this run
    filed: dict[tuple[str, str], tuple] = field(default_factory=dict)  # -> what to compare by
    names: dict[str, str] = field(default_factory=dict)  # what it looks like -> the first of these
    accounts: dict[tuple[str, str], str] = field(default_factory=dict)  # -> the number it came from
    spelled: dict[str, str] = field(default_factory=dict)  # folder's name -> the student's

    def __post_init__(self):
        for folder in sorted(SUBMITTED.glob("*")):
            self.names.setdefault(looks_like(folder.name), folder.name)

    def take(self, outer: Sent) -> Iterator[Filed]:
        """File a file, or all that is in a student's zip."""
        name = outer.path[: outermost(outer, [*self.course.about]) + 1]
        outer = replace(outer, purse=self.purses.setdefault(name, Purse()))
        files = contents(outer)
        while True:
            try:
                with outer.purse.spent():
                    sent = next(files, None)
            except (Refused, MemoryError) as problem:
                yield self._refused(outer, problem)
                return
            if sent is None:
                return
            if is_noise(sent.path) or is_added(sent):
                self.ignored += 1
            else:
                yield from self._take(sent)

    def _take(self, sent: Sent) -> Iterator[Filed]:
        try:
            group = self._group(sent)
            with sent.purse.spent():
                data = notebook_in(sent.name, sent.read())
                assignment, notebook, repairs = self.understood(sent.name, data)
                answered = _answered(notebook, self.course.about[assignment])
        except (Refused, MemoryError) as problem:
            yield self._refused(sent, problem)
            return
        for sender in group:
            row = Filed(_source(sent), assignment=assignment, notes=list(repairs))
            if sender.file != f"{assignment}.ipynb":
                row.notes.insert(0, f"it was named {printable(sender.file)}")
            try:
                row.student = self._student(sender)
                self._only_one(row, sender)
                if self.roster and row.student not in self.roster.students:
                    row.notes.append(f"{row.student} is not in {self.roster.called} yet")
                if other := self._looks_like_another(row.student):
                    row.notes.append(f"{row.student} looks like {other}, who is another one")
                if sender.inside:
                    row.notes.append(f"it lay in {printable(sender.inside)}")
                alone = contextlib.nullcontext() if self.dry_run else one_at_a_time(SUBMITTED)
                with alone:
                    self._put(row, notebook.data, sender, sent, answered)
                if answered:
                    self._look_at_several(row, notebook.data, sender)
            except Refused as error:
                row.notes, row.outcome = [str(error)], ""
            except OSError as error:
                row.notes, row.outcome = [f"it cannot be written: {error}"], ""
            yield row

    def _refused(self, sent: Sent, problem: Exception) -> Filed:
        whose = ""
        with contextlib.suppress(Refused):
            whose = ", ".join(self._named(sender) or "?" for sender in self._group(sent))
        said = str(problem) or "to read it takes too much memory"
        return Filed(_source(sent), whose, notes=[said])

    def _group(self, sent: Sent) -> list[Sender]:
        try:
            return senders(sent, list(self.course.about))
        except Refused:
            if self.student:
                return [Sender(sent.name, ())]
            raise

    def understood(self, name: str, data: bytes) -> tuple[str, Notebook, list[str]]:
        """The assignment, the repaired notebook, and what was odd."""
        try:
            notebook = reading.notebook_of(data)
        except reading.Unreadable as error:
            raise Refused(f"{error}; ask for it again") from None
        found = self.course.assignment_in(notebook.cells, name)
        if found and self.assignment not in ("", found):
            raise Refused(f"it is of {found}, not of {self.assignment}")
        assignment = found or self.assignment
        if not assignment:
            raise Refused("nothing in it is of an assignment of this course; say it: --assignment")
        about, released = self.course.about[assignment], self.course.released[assignment]
        names = recognize(notebook.cells, about, released)
        if not names:
            raise Refused(f"nothing in it is of {assignment}; ask for the course's notebook")
        return assignment, *restore(notebook, names, about, released)

    def _named(self, sender: Sender) -> str:
        try:
            return self._student(sender)
        except Refused:
            return ""

    def _student(self, sender: Sender) -> str:
        """The student's name in submitted/."""
        if self.student:
            return self.student
        if self.roster:
            student = self.roster.find(sender.names, sender.parts)
            if student is None and self.roster.complete:
                tried = printable(", ".join(sender.names or sender.parts[:1]))
                raise Refused(f"nobody in the roster is {tried}; --student NAME says who it is")
            student = student or sender.student
        else:
            student = sender.student
        name = safe_name(student)
        if not name:
            cure = "whose is it? Say it: --student NAME, or put it in a folder of that name"
            raise Refused(printable(sender.doubt or cure))
        other = self.spelled.setdefault(name.casefold(), student)
        if other == student and self._looks_like_another(name).casefold() == name.casefold():
            other = self._looks_like_another(name)  # there from an earlier run
        if other != student:
            raise Refused(
                f"{printable(student)} and {printable(other)} would share a folder; use a roster"
            )
        return name

    def _looks_like_another(self, name: str) -> str:
        """Another student's name that a person may take for this one; "" if there is none."""
        first = self.names.setdefault(looks_like(name), name)
        return first if first != name else ""

    def _only_one(self, row: Filed, sender: Sender) -> None:
        """Two accounts may seem to be one student: people choose what they are called."""
        if sender.account and not self.student:
            first = self.accounts.setdefault((row.student, row.assignment), sender.account)
            if first != sender.account:
                both = printable(f"the accounts {first} and {sender.account}")
                where = f" in {self.roster.called}" if self.roster else ""
                raise Refused(f"{both} are both {row.student}{where}; whose is it?")

    def _look_at_several(self, row: Filed, data: bytes, sender: Sender) -> None:
        """Of two different answers one may be somebody else's, or the one that should count.

        Copies of one name, and attempts at different times, are versions of one.
        """
        name = comparable(without_copies(sender.file)), () if self.student else sender.names
        came = self.came.setdefault((row.student, row.assignment), [])
        for other, when, before, source in came:
            attempts = sender.when and when and sender.when != when
            if name != other and hash(data) != before and not attempts:
                row.doubt = True
                row.notes.append(
                    f"{source} came, too: two different notebooks of {row.assignment}. Are both of "
                    f"{row.student}, and which one counts? The other one is kept beside it"
                )
                break
        came.append((name, sender.when, hash(data), row.source))

    def _put(self, row: Filed, data: bytes, sender: Sender, sent: Sent, answered: bool) -> None:
        """Write a notebook, and keep the one that was there before."""
        folder = SUBMITTED / row.student / row.assignment
        target = folder / f"{row.assignment}.ipynb"
        about = self.course.about[row.assignment]
        said, when = sender.when, None  # without a time zone it tells only which one is later
        if said and (zone := said.tzinfo or self.zone):
            said = when = said.replace(tzinfo=zone).astimezone(UTC).replace(tzinfo=None)
        self.zoneless += said is not when
        if sender.late and not when:
            row.notes.append(
                "the course system says it was late, but not when: write it into timestamp.txt "
                f"in {folder}, e.g. {datetime.now():%Y-%m-%d} 23:59:00 UTC"
            )
        old = target.read_bytes() if target.is_file() else None
        before = self.filed.get((row.student, row.assignment))
        order = answered, said or datetime.min, sender.number, sent.saved
        then = before[1] if before else timestamp_of(folder) or datetime.max
        later = (said if before else when) and order[1] > then
        if old == data:
            row.outcome, row.notes = "unchanged", []
            if when and when < (timestamp_of(folder) or datetime.max):
                self._stamp(folder, when)
        elif old is None and before is None:
            row.outcome = "filed"
            self._write(target, data)
            self._stamp(folder, when)
        elif not later and any(path.read_bytes() == data for path in _kept(target)):
            row.outcome = "unchanged"
            row.notes = ["it came before, and another has replaced it since"]
            return
        elif reason := self._older(order, when, before, old, folder, about):
            row.outcome = "set aside"
            row.notes.append(f"{reason}; kept as {self._keep(target, data).name}")
            return
        else:
            row.outcome = "replaced"
            row.notes.append(f"the one before is kept as {self._keep(target, old).name}")
            self._write(target, data)
            self._stamp(folder, when)
        self.filed[row.student, row.assignment] = order

    def _older(self, order: tuple, when, before: tuple | None, old: bytes, folder, about) -> str:
        """Why what is there stays; "" if it does not."""
        answered = order[0]
        if before:
            now, then = (time if time > datetime.min else None for time in (order[1], before[1]))
        else:
            now, then = when, timestamp_of(folder)
        if now and then and now != then:
            return "it was sent earlier than the one that is there" if now < then else ""
        if before is None:
            before = (old is not None and was_answered(old, about),)
        if before[0] and not answered:
            return "nothing is answered in it, and in the one that is there something is"
        if len(before) > 1 and before > order:
            return "it seems older than the one that is there"
        return ""

    def _keep(self, target: Path, data: bytes | None) -> Path:
        """Keep a notebook under the next free number, if it is not kept yet."""
        kept = _kept(target)
        for path in kept:
            if path.read_bytes() == data:
                return path
        number = max((int(path.suffix[1:]) for path in kept), default=0) + 1
        path = target.with_name(f"{target.name}.{number}")
        if data is not None:
            self._write(path, data)
        return path

    def _stamp(self, folder: Path, when: datetime | None) -> None:
        """Say when it was handed in, as nbgrader reads it; an older time would be wrong."""
        if self.dry_run:
            return
        if when:
            self._write(folder / "timestamp.txt", f"{when:%Y-%m-%d %H:%M:%S.%f} UTC\n".encode())
        else:
            (folder / "timestamp.txt").unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        if not self.dry_run:
            write(path, data)


def settled(rows: list[Filed]) -> list[Filed]:
    """When all is filed: what lies beside a notebook need not be one, like a PDF of the same.

    And what came among notebooks of another assignment may have been sent by mistake.
    """
    sent = [row for row in rows if row.outcome]
    have = {row.student for row in rows if row.student and (row.outcome or _may_be(row))}
    for row in rows:
        if not row.outcome and row.student in have and not _may_be(row):
            row.outcome, row.notes = "beside a notebook", []
    of = Counter(row.assignment for row in sent)
    usual, count = of.most_common(1)[0] if of else ("", 0)
    for row in sent:
        if 4 * of[row.assignment] <= of.total() < 2 * count:
            row.notes.append(f"it is of {row.assignment}, and most here is of {usual}: a mistake?")
    return rows


def _may_be(row: Filed) -> bool:
    """Whether somebody handed it in as a notebook."""
    return row.source.lower().endswith((".ipynb", ".zip"))


def _source(sent: Sent) -> str:
    return printable("/".join(sent.path))


def _kept(target: Path) -> list[Path]:
    """Earlier submissions beside the one that counts."""
    return [p for p in target.parent.glob(f"{target.name}.*") if p.suffix[1:].isdecimal()]


def was_answered(data: bytes, about: Assignment) -> bool:
    """Whether a file is a notebook in which a student has begun."""
    try:
        return _answered(reading.notebook_of(data), about)
    except reading.Unreadable:
        return False


def _answered(notebook: Notebook, about: Assignment) -> bool:
    """Whether a student has begun."""
    found = reading.answers_in(notebook.cells, about)
    return any(found.texts.values()) or len(found.untouched) < len(about.tasks)
