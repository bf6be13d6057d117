"""The executed notebook of one submission, as people see it: its cells, and what stands below them.

Below the judge's cells stand the reports of the score path, below the source that was released, and
never the hidden one. What a browser would obey (scripts, styles, pictures from elsewhere) stays
out: an instructor looks at this page.
"""

import base64
import functools
import json
import re
from collections.abc import Container
from dataclasses import dataclass

import bleach
from markupsafe import Markup

from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import Assignment
from attncourse.grading.inbox.written import Written
from attncourse.grading.jail.result import Result

TEXT = 21_000  # characters of a stream, an error or a text: as in the shell, and its last line
HTML = 60_000
PICTURE = 2_000_000  # characters of base64
ALL_HTML = 300_000  # in one notebook; it takes a while to look through
RECORD = 6_000_000  # characters of all outputs
SOURCE = 100_000  # characters of a cell
FORMULAS = 2_000_000  # of a text, its formulas times its characters: 50 milliseconds of nbconvert
_FORMULA = re.compile(r"\\(?=begin\{|\\[\[(])")  # `$` needs no care: it ends another as well


def unread(released: str, about: Assignment, result: Result) -> str:
    """The record of what could not be read or judged: the release, and the reason."""
    record = [
        cell_of(cell, number, cell, about)
        for number, cell in enumerate(json.loads(released)["cells"], start=1)
    ]
    boxes = {name: {"source": harmless(text)} for name, text in result.texts.items() if text}
    return notebook_of(record, released, about, result, boxes)


# --- the cells of a notebook --------------------------------------------------------------------


@functools.cache
def marked(released: str) -> dict[str, dict]:
    """Grade id -> cell, of those cells that nbgrader knows."""
    cells = json.loads(released)["cells"]
    return {mark["grade_id"]: cell for cell in cells if (mark := _mark(cell))}


def _mark(cell: dict) -> dict:
    return cell["metadata"].get("nbgrader", {})


def is_judge(cell: dict) -> bool:
    return _mark(cell).get("grade", False) and not _mark(cell)["solution"]


def is_check(cell: dict) -> bool:
    marker = reading.MARKER.search(reading.source_of(cell))
    return bool(marker and marker[4])


def cell_of(cell: dict, number: int, released: dict | None, about: Assignment) -> dict:
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
        if is_judge(released):
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


def box(answer: Written, place: int | None, cells: list[dict]) -> dict:
    """A written answer with its pictures in one cell, where a person enters its points.

    Args:
        place: of that cell in `cells`; None if it was deleted.
    """
    texts, pictures, last = [], {}, None
    for each, text in answer.parts.items():
        if each != place and each - 1 != last:
            texts.append(f"*In cell {each + 1}:*")
        prefix = "" if each == place else f"cell-{each + 1}-"  # pictures share their names
        kept, pasted = _attachments(cells[each]), cells[each].get("attachments")
        for name in kept:
            pictures[prefix + name] = kept[name]
            text = text.replace(f"(attachment:{name})", f"(attachment:{prefix}{name})")
        texts.append(text)
        if lost := pasted.keys() - kept.keys() if isinstance(pasted, dict) else ():
            names, where = ", ".join(sorted(lost)), f"in cell {each + 1} of what was handed in"
            texts.append(f"*Too large to be shown, or no PNG or JPEG: {names}, {where}.*")
        last = each
    made = {"source": harmless("\n\n".join(texts)[:SOURCE], pictures)}
    return made | ({"attachments": pictures} if pictures else {})


def notebook_of(
    record: list[dict], released: str, about: Assignment, result: Result, boxes: dict[str, dict]
) -> str:
    """Add the graded cells that were deleted, each behind its neighbor, and the grader's notes.

    Args:
        boxes: by grade id, what stands in the cell of a written answer.
    """
    place = 0
    for name, cell in marked(released).items():
        here = [i for i, each in enumerate(record) if _mark(each).get("grade_id") == name]
        if not here:
            record.insert(place, cell_of(cell, f"deleted-{name}"[:50], cell, about))
        place = (here[0] if here else place) + 1
        made = record[place - 1]
        made |= boxes.get(name, {})
        if is_judge(made) and not made["outputs"]:
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
                cell["outputs"][number:] = [note("The outputs of this notebook are too long.")]
                break
    cells = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in record)  # a line for each
    rest = json.dumps({key: value for key, value in json.loads(released).items() if key != "cells"})
    text = f'{{"cells": [\n{cells}\n],\n{rest[1:]}\n'
    return text.encode(errors="replace").decode()  # half a character pair fits into no file


# --- the judge's outputs ------------------------------------------------------------------------


def judged(grade_id: str, about: Assignment, result: Result) -> list[dict]:
    """What a cell of the judge shows: the report; of the second, hidden check what it adds."""
    each = next(each for each in about.graded if grade_id in (each.visible, each.hidden))
    if each.task not in result.reports:
        return [note("Not judged: " + "; ".join(result.review or ["no reason given"]))]
    visible, hidden = result.reports[each.task]
    if grade_id == each.visible:
        return [_display(visible._repr_mimebundle_())]
    line = f"{hidden.earned:g} of {hidden.points:g} points after you handed in"
    if hidden.passed:
        return [_display(_line(f"✓ {line}.") | hidden.as_bundle())]
    if visible.diagnosis and hidden.diagnosis and visible.diagnosis.id == hidden.diagnosis.id:
        return [_display(_line(f"✗ {line}, for the same reason.") | hidden.as_bundle())]
    return [note(f"✗ {line}:"), _display(hidden._repr_mimebundle_())]


def _line(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": str(Markup("<p><em>{}</em></p>").format(text))}


def note(text: str) -> dict:
    return _display(_line(text))


def _display(data: dict) -> dict:
    return {"output_type": "display_data", "data": data, "metadata": {}}


# --- the student's outputs ----------------------------------------------------------------------


@dataclass
class Room:
    """What may still come into a record."""

    html: int = ALL_HTML


def cleaned(reply: object, room: Room) -> list[dict]:
    """Outputs of the right types and sizes, with nothing that a browser would obey."""
    outputs = reply.get("outputs") if isinstance(reply, dict) else None
    kept = []
    for output in outputs if isinstance(outputs, list) else ():
        if isinstance(output, dict) and len(kept) < 250:
            kept += _clean(output, room)
    lost = reply.get("lost", 0) if isinstance(reply, dict) else 0
    if type(lost) is int and lost > 0:
        kept.append(note(f"… and {lost:,} more outputs"))
    return kept


def _clean(output: dict, room: Room) -> list[dict]:
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


def _data(data: dict, room: Room) -> dict[str, str]:
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
