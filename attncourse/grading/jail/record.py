"""The executed notebook of one submission, for people to read: nothing in it decides points.

The student's cells run in a jailed child of their own. The judge's are not run: they show the
reports of the score path below the source that was released, never the hidden one. What a browser
would obey (scripts, styles, pictures from elsewhere) stays out: an instructor looks at this page.
"""

import base64
import contextlib
import functools
import json
import re
import time
from collections.abc import Container
from dataclasses import dataclass

import bleach
from markupsafe import Markup

from attncourse.checks.report import MIME
from attncourse.grading.inbox import restore
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import Assignment, Submission
from attncourse.grading.inbox.untrusted import printable
from attncourse.grading.jail.remote import TRIES, Budget, Died, Killed, Zygote
from attncourse.grading.jail.score import Result
from attncourse.grading.jail.walls import Unavailable

CELL_SECONDS = 5.0  # a cell that needs longer is stopped, and shows what the student saw
TEXT = 21_000  # characters of a stream, an error or a text: as in the shell, and its last line
HTML = 60_000
PICTURE = 2_000_000  # characters of base64
ALL_HTML = 300_000  # in one notebook; it takes a while to look through
RECORD = 6_000_000  # characters of all outputs
CELLS, SOURCE = 1000, 100_000  # a notebook's cells, a cell's characters
FORMULAS = 2_000_000  # of a text, its formulas times its characters: 50 milliseconds of nbconvert
_FORMULA = re.compile(r"\\(?=begin\{|\\[\[(])")  # `$` needs no care: it ends another as well


def executed(
    found: Submission,
    released: str,
    about: Assignment,
    result: Result,
    zygote: Zygote,
    budget: Budget,
) -> str:
    """Run a submission's cells, and put the judge's reports where they belong.

    Args:
        found: the notebook as it was handed in.
        released: the text of the notebook in exercises/.
        result: with its reports, as `score` returns it.

    Returns:
        The text of a notebook with nbgrader's marks, whatever became of the student's.

    Raises:
        Unavailable: no jail can be built on this machine.
    """
    try:
        for _ in range(TRIES):
            try:
                text, disturbed = _executed(found, released, about, result, zygote, budget)
            except Killed as error:
                text, disturbed = unread(released, about, result), f"the process for it {error}"
            if not disturbed:
                break
        result.disturbed = result.disturbed or disturbed
        return text
    except Unavailable:
        raise
    except Exception as error:  # a fault of ours in what is only shown costs nobody the points
        said = printable(f"{type(error).__name__}: {error}")[:300]
        reason = f"no executed notebook could be made ({said})"
        result.review.append(f"{reason}; please report it")
        return unread(released, about, result)


def _executed(found, released, about, result, zygote, budget) -> tuple[str, str]:
    """The record, and what disturbed the making of it ("" if nothing did)."""
    cells, marked = found.cells[:CELLS], _marked(released)
    names = {
        place: name
        for place, name in restore.recognize(cells, about, json.loads(released)).items()
        if not _is_judge(marked[name]) or _is_check(cells[place])
    }
    names, _ = restore.choose(cells, names, about)
    whole = {label: everything for label, _, everything in found.code}
    passed = [task for task, reports in result.reports.items() if reports[0].passed]
    record, count = [], 0
    with contextlib.closing(_Student(zygote, passed, budget.record)) as student:
        for number, cell in enumerate(cells, start=1):
            name, label = names.get(number - 1), f"cell {number}"
            made = _cell(cell, number, marked.get(name), about)
            if name and _is_judge(made):
                made["outputs"] = judged(name, about, result)
            elif label in whole:
                made |= {"cell_type": "code", "outputs": [], "execution_count": None}
                made["outputs"] = student.run(cell) if whole[label] else student.define(cell)
                count += whole[label]
                made["execution_count"] = count if whole[label] else None
            record.append(made)
    return _notebook(record, released, about, result), student.disturbed


def unread(released: str, about: Assignment, result: Result) -> str:
    """The record of what could not be read or judged: the release, and the reason."""
    record = [
        _cell(cell, number, cell, about)
        for number, cell in enumerate(json.loads(released)["cells"], start=1)
    ]
    return _notebook(record, released, about, result)


# --- the cells of a notebook --------------------------------------------------------------------


@functools.cache
def _marked(released: str) -> dict[str, dict]:
    """Grade id -> cell, of those cells that nbgrader knows."""
    cells = json.loads(released)["cells"]
    return {mark["grade_id"]: cell for cell in cells if (mark := _mark(cell))}


def _mark(cell: dict) -> dict:
    return cell["metadata"].get("nbgrader", {})


def _is_judge(cell: dict) -> bool:
    return _mark(cell).get("grade", False) and not _mark(cell)["solution"]


def _is_check(cell: dict) -> bool:
    marker = reading.MARKER.search(reading.source_of(cell))
    return bool(marker and marker[4])


def _cell(cell: dict, number: int, released: dict | None, about: Assignment) -> dict:
    """A cell without outputs; a released one brings its marks, and the judge's its text as well."""
    kind, source = cell.get("cell_type"), reading.source_of(cell)[:SOURCE]
    made = {
        "cell_type": kind if kind in ("code", "markdown") else "raw",
        "id": f"cell-{number}",
        "metadata": {},
        "source": source,
    }
    if released:
        made |= {"cell_type": released["cell_type"], "metadata": released["metadata"]}
        if _is_judge(released):
            made["source"] = reading.source_of(released)
    if made["cell_type"] == "code":
        made |= {"execution_count": None, "outputs": []}
    else:
        pictures = _attachments(cell)
        if source not in about.released.values():
            made["source"] = harmless(source, pictures)
        if pictures:
            made["attachments"] = pictures
    return made


def _notebook(record: list[dict], released: str, about: Assignment, result: Result) -> str:
    """Add the graded cells that were deleted, each behind its neighbor, and the grader's notes."""
    place = 0
    for name, cell in _marked(released).items():
        here = [i for i, each in enumerate(record) if _mark(each).get("grade_id") == name]
        if not here:
            record.insert(place, _cell(cell, f"deleted-{name}"[:50], cell, about))
        place = (here[0] if here else place) + 1
        made = record[place - 1]
        if _is_judge(made) and not made["outputs"]:
            made["outputs"] = judged(name, about, result)
    if notes := [*result.review, *result.repairs]:
        lines = "\n".join(f"- {harmless(note[:500])}" for note in notes[:50])
        text = f"**The grader's notes**\n\n{lines}"
        record.insert(0, {"cell_type": "markdown", "id": "notes", "metadata": {}, "source": text})
    left = RECORD
    for cell in record:
        for number, output in enumerate(cell.get("outputs", ())):
            left -= len(json.dumps(output))
            if left < 0:
                cell["outputs"][number:] = [_note("The outputs of this notebook are too long.")]
                break
    notebook = json.loads(released) | {"cells": record}
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    return text.encode(errors="replace").decode()  # half a character pair fits into no file


# --- the judge's outputs ------------------------------------------------------------------------


def judged(grade_id: str, about: Assignment, result: Result) -> list[dict]:
    """What a cell of the judge shows: the report; of the second, hidden check what it adds."""
    each = next(each for each in about.graded if grade_id in (each.visible, each.hidden))
    if each.task.name not in result.reports:
        return [_note("Not judged: " + "; ".join(result.review or ["no reason given"]))]
    visible, hidden = result.reports[each.task.name]
    if grade_id == each.visible:
        return [_display(visible._repr_mimebundle_())]
    line = f"{hidden.earned:g} of {hidden.points:g} points after you handed in"
    if hidden.passed:
        return [_display(_line(f"✓ {line}.") | {MIME: hidden.as_dict()})]
    if visible.diagnosis and hidden.diagnosis and visible.diagnosis.id == hidden.diagnosis.id:
        return [_display(_line(f"✗ {line}, for the same reason.") | {MIME: hidden.as_dict()})]
    return [_note(f"✗ {line}:"), _display(hidden._repr_mimebundle_())]


def _line(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": str(Markup("<p><em>{}</em></p>").format(text))}


def _note(text: str) -> dict:
    return _display(_line(text))


def _display(data: dict) -> dict:
    return {"output_type": "display_data", "data": data, "metadata": {}}


# --- the student's outputs ----------------------------------------------------------------------


@dataclass
class _Room:
    """What may still come into a record."""

    html: int = ALL_HTML


class _Student:
    """A student's names in a jailed child. After its death no cell is run; that costs no point."""

    def __init__(self, zygote: Zygote, passed: list[str], seconds: float):
        self.deadline = time.monotonic() + seconds
        self.process, self.over, self.disturbed = zygote.fork([]), "", ""
        self.room = _Room()
        self._ask(10, "open", passed)

    def run(self, cell: dict) -> list[dict]:
        """Everything in a cell, and what it shows."""
        seconds = min(CELL_SECONDS, self.deadline - time.monotonic())
        if seconds <= 0 and not self.over:
            self.over = "the cells above have used up the time"
        if self.over:
            return [_note(f"Not run: {self.over}"), *self.saved(cell)]
        reply = self._ask(seconds + 3, "show", reading.source_of(cell), seconds)
        if self.over:
            return [_note(f"Nothing is run from here on: {self.over}"), *self.saved(cell)]
        shown = _cleaned(reply, self.room)
        if isinstance(reply, dict) and reply.get("stopped") is True:
            return [*shown, _note(f"Stopped after {seconds:.1f} seconds."), *self.saved(cell)]
        return shown

    def define(self, cell: dict) -> list[dict]:
        """Only what a cell of the course defines; what it showed was seen by the student."""
        if not self.over:
            self._ask(CELL_SECONDS, "define", reading.plain_python(reading.source_of(cell)))
        silent = reading.only_defines(reading.source_of(cell))
        nothing = [] if silent else [_note("Not run here, and handed in without output.")]
        return self.saved(cell) or nothing

    def saved(self, cell: dict) -> list[dict]:
        """The outputs that a cell was handed in with, and a line that says so."""
        shown = _cleaned({"outputs": cell.get("outputs")}, self.room)
        return shown and [_note("Not run here. This is what the student saw:"), *shown]

    def _ask(self, seconds: float, *question) -> object:
        try:
            return self.process.ask(seconds, *question)
        except Died as error:
            self.over = f"a cell {error}"
            if isinstance(error, Killed):
                self.disturbed = f"the process that runs its cells {error}"
        return None

    def close(self) -> None:
        self.process.kill()


def _cleaned(reply: object, room: _Room) -> list[dict]:
    """Outputs of the right types and sizes, with nothing that a browser would obey."""
    outputs = reply.get("outputs") if isinstance(reply, dict) else None
    kept = []
    for output in outputs if isinstance(outputs, list) else ():
        if isinstance(output, dict) and len(kept) < 250:
            kept += _clean(output, room)
    lost = reply.get("lost", 0) if isinstance(reply, dict) else 0
    if type(lost) is int and lost > 0:
        kept.append(_note(f"… and {lost:,} more outputs"))
    return kept


def _clean(output: dict, room: _Room) -> list[dict]:
    match output.get("output_type"):
        case "stream":
            name = "stderr" if output.get("name") == "stderr" else "stdout"
            lines = _text(output.get("text")).split("\n")
            # What a progress bar has written over is gone.
            text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
            return [{"output_type": "stream", "name": name, "text": _cut(text)}]
        case "error":
            lines = output.get("traceback")
            lines = lines if isinstance(lines, list) else _text(lines).split("\n")
            trace = _cut("\n".join(filter(None, map(_text, lines)))).split("\n")
            name, value = (_text(output.get(key))[:1000] for key in ("ename", "evalue"))
            return [{"output_type": "error", "ename": name, "evalue": value, "traceback": trace}]
        case "display_data" | "execute_result" as kind:
            data = output.get("data")
            shown = _data(data if isinstance(data, dict) else {}, room)
            count = {"execution_count": None} if kind == "execute_result" else {}
            return [_display(shown) | {"output_type": kind} | count] if shown else []
    return []


def _data(data: dict, room: _Room) -> dict[str, str]:
    """What may be shown of an output; where that is nothing but a text, also what may not."""
    shown, dropped = {}, []
    for mime, value in data.items():
        text = _text(value)
        match mime:
            case "text/plain":
                shown[mime] = _cut(text)
            case "text/markdown" | "text/latex" if len(text) <= TEXT:
                shown[mime] = harmless(text)
            case "text/html" if len(text) <= min(HTML, room.html) and _is_plain(text):
                room.html -= len(text)
                shown[mime] = sanitized(text)
            case "image/png" | "image/jpeg" if len(text) <= PICTURE and _is_base64(text):
                shown[mime] = text
            case "image/svg+xml" if len(text) <= PICTURE:  # in <img>, a picture runs no script
                code = base64.b64encode(text.encode(errors="replace")).decode()
                picture = Markup('<img src="data:image/svg+xml;base64,{}">').format(code)
                shown["text/html"] = str(picture)
            case _:
                dropped.append(re.sub(r"[^\w/.+-]", "", str(mime))[:60])
    if dropped and shown.keys() <= {"text/plain"}:
        lines = [shown.get("text/plain", ""), f"Not shown: {', '.join(dropped[:9])}"]
        shown = {"text/plain": "\n".join(filter(None, lines))}
    return shown


def _attachments(cell: dict) -> dict[str, dict[str, str]]:
    """Pictures that were pasted into a text."""
    kept, found = {}, cell.get("attachments")
    for name, data in found.items() if isinstance(found, dict) else ():
        for mime in ("image/png", "image/jpeg"):
            text = _text(data.get(mime)) if isinstance(data, dict) else ""
            if text and len(text) <= PICTURE and _is_base64(text):
                kept[name] = {mime: text}
    return kept


def _text(value: object) -> str:
    """A text of a notebook, which may come in lines."""
    if isinstance(value, list):
        value = "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _cut(text: str) -> str:
    lost = len(text) - TEXT
    return text[:TEXT] + f"\n… and {lost:,} more characters\n" if lost > 0 else text


def _is_base64(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9+/=\s]+", text) is not None


def harmless(text: str, pictures: Container[str] = ()) -> str:
    """Markdown of which tags, odd links and pictures from elsewhere are shown, and not obeyed.

    An invisible letter parts what makes them: `<` and a name, `]` and an address, `!` and `[`.
    In a text with very many formulas it parts these, too: for each that does not end, nbconvert
    looks through all the rest.

    Args:
        pictures: names of attachments that are there; nbconvert fails at others.
    """

    def picture(found: re.Match) -> str:
        return found[0] if found[1] in pictures else "!\u2060" + found[0][1:]

    if len(_FORMULA.findall(text)) * len(text) > FORMULAS:
        text = _FORMULA.sub("\\\\\u2060", text)
    text = re.sub(r"<(?=[A-Za-z/!?])", "<\u2060", text)
    text = re.sub(r"!(?=\[)(?:\[[^\]\n]{0,200}\]\(attachment:([\w.-]+)\))?", picture, text)
    known = r"(?:\(|:)\s*(?:https?://|mailto:|attachment:|#)"
    return re.sub(rf"\](?=[(:])(?!{known})", "]\u2060", text)


_TABLES = {"table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"}
_TEXTS = {*("p", "div", "span", "pre", "br", "hr", "sub", "sup", "small", "details", "summary"),
          *(f"h{n}" for n in range(1, 7))}  # fmt: skip


def sanitized(text: str) -> str:
    """HTML without scripts, styles, and anything from elsewhere."""
    return bleach.clean(
        re.sub(r"(?i)<(style|script)\b[^<>]*>[^<]*</\1>", "", text),
        tags=bleach.ALLOWED_TAGS | _TABLES | _TEXTS | {"img"},
        attributes={"*": _may_stay},
        protocols={"http", "https", "mailto", "data"},
        strip=True,
    )


def _is_plain(text: str) -> bool:
    """Whether HTML is small and flat, like tables are; on other things bleach works for minutes."""
    depth = deepest = tags = 0
    for tag in re.finditer(r"(?i)<(/?)(?!br\b|hr\b|img\b|input\b|col\b)", text):
        tags, depth = tags + 1, depth + (-1 if tag[1] else 1)
        deepest = max(deepest, depth)
    return deepest < 100 and tags < 4000


def _may_stay(tag: str, name: str, value: str) -> bool:
    if tag == "img" and name == "src":
        return value.startswith(("data:image/png;base64,", "data:image/jpeg;base64,"))
    if tag == "a" and name == "href":
        return value.startswith(("http://", "https://", "mailto:"))
    return name in ("colspan", "rowspan", "title", "alt", "align")
