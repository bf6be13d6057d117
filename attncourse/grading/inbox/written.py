"""Written answers, wherever a student or an editor has put them.

They land below their cell, in the question's, in a comment or a photo; some editors cut a text
into paragraphs, others make code of it. So an answer is all that is left of the cells between a
question and the next task when the course's own text is taken away.
"""

import ast
import bisect
import functools
import html
import re
import textwrap
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attncourse.checks.answer_files import plain_python
from attncourse.grading.inbox.cells import (
    DEFINES,
    MARKER,
    grade_id_of,
    parsed,
    remembered,
    source_of,
    text_of,
    unmarked,
)

if TYPE_CHECKING:
    from attncourse.grading.inbox.submission import Assignment

LONG = 20_000  # characters; no text of the course has as many
_WORD = re.compile(r"[^\W_]+|[^\w\s]")
_SAYING = ("Sm", "So", "Sc")  # what √, → and € are
_SPACE = re.compile(r"<(?:/?p|/?div|br|hr) ?/?>")
_LINK = re.compile(r"(?<!!)(\[[^\]\n]*\])\([^)\n]*\)")  # a release has other addresses
_COMMENT = re.compile(r"\s*#+ ?")


@dataclass(frozen=True)
class Written:
    """What a student has written to a question."""

    place: int | None = None  # of the cell that is for it; None if that is gone
    parts: dict[int, str] = field(default_factory=dict)  # place of a cell -> what it says, Markdown
    review: str = ""  # why a person should look for it
    repair: str = ""  # where there is more

    @property
    def text(self) -> str:
        return "\n\n".join(dict.fromkeys(self.parts.values()))


def answers(cells: list[dict], about: "Assignment") -> dict[str, Written]:
    """What is written to each question of an assignment, by grade id; "" if not released yet."""
    return {
        question: _answer(cells, about, question) if question in about.released else Written()
        for question in about.questions
    }


def _answer(cells: list[dict], about: "Assignment", question: str) -> Written:
    stub = _Course((about.released[question],))
    course = _around(question, tuple(about.released.items()), _marks(about))
    borders: dict[str, int] = {}
    for place, cell in enumerate(cells):
        if task := _task_of(cell, about, question):
            borders.setdefault(task, place)  # a copy is no border
    known = {*borders.values()}
    texts = {place: text for place, cell in enumerate(cells) if (text := text_of(cell))}
    marked = [place for place, cell in enumerate(cells) if grade_id_of(cell) == question]
    stubs = [place for place, text in texts.items() if place not in known and stub.is_in(text)]
    asked = [place for place, text in texts.items() if course.asks(text)]
    anchors = sorted({*marked, *stubs, *asked})
    # Below the question any code may be an answer; above it, code belongs to the task before.
    below = anchors[0] if anchors else max(known, default=-1)
    own, says = {}, set()
    for place in _between(sorted(known), anchors, len(cells)):
        if place in known or _is_an_editors(cells[place]):
            continue
        text, is_text = (stub if place in marked else course).left_of(cells[place])
        if text and (is_text or place >= below):
            own[place] = text
            says |= {place} if is_text else set()
    alone = (p for p in own if anchors and p in says and p >= below and course.has_none(cells[p]))
    answered = [place for place in marked if place in own]
    place = next(iter([*answered[-1:], *marked[-1:], *stubs[-1:], *alone]), None)
    if place in own:
        more = {p: text for p, text in own.items() if p in says and p >= below and p != place}
        repair = f"more on `{question}` stands in {_cells(more)}" if more else ""
        return Written(place, {place: own[place]} | more, repair=repair)
    review = f"the written answer `{question}` "
    if says:
        review += f"seems to stand in {_cells(sorted(says))}"
    elif own:
        review += f"may be the code in {_cells(own)}"
    else:
        review = f"{review}is not there" if place is None else ""
    return Written(place, own, review)


def _marks(about: "Assignment") -> frozenset[str]:
    """The grade ids of all tasks and questions."""
    checks = {name for each in about.graded for name in (each.visible, each.hidden)}
    return frozenset(checks.union(about.tasks, about.questions))


def _task_of(cell: dict, about: "Assignment", question: str) -> str | None:
    """Which other task or question a cell belongs to."""
    source, grade_id = source_of(cell), grade_id_of(cell)
    if (marker := MARKER.search(source)) and marker[1] == about.name:
        return marker[0].strip() if marker[4] else marker[2]
    if grade_id in about.released:
        return grade_id if grade_id != question else None
    return next((name for name in DEFINES.findall(source) if name in about.tasks), None)


def _between(borders: list[int], anchors: list[int], size: int) -> list[int]:
    """The places between the same borders as some anchor; all, if nothing tells where it was."""
    if not anchors:
        return [*range(size)]
    edges, rooms = [-1, *borders, size], {bisect.bisect(borders, anchor) for anchor in anchors}
    return [place for room in sorted(rooms) for place in range(edges[room] + 1, edges[room + 1])]


def _is_an_editors(cell: dict) -> bool:
    """Whether Deepnote has put a cell at the end, to speak of itself."""
    metadata = cell.get("metadata")
    return isinstance(metadata, dict) and metadata.get("created_in_deepnote_cell") is True


def _cells(places: Iterable[int]) -> str:
    numbers = [str(place + 1) for place in places]
    return f"cells {', '.join(numbers)}"[:100] if numbers[1:] else f"cell {numbers[0]}"


# --- whose text it is ---------------------------------------------------------------------------


class _Course:
    """What the course wrote.

    Args:
        sources: of its cells, which an editor may have moved.
        near: some of them, which an editor may have cut into lines or joined.
        question: of these the one that asks.
    """

    def __init__(self, sources: Iterable[str], near: Iterable[str] = (), question: str = ""):
        self.cells = [_words(source) for source in sources]
        self.lines = [line for source in near for line in _lines(source)]
        self.code = {line.strip() for source in sources for line in source.splitlines()}
        others = [line for source in {*sources} - {question} for line in _lines(source)]
        asks = (line for line in _lines(question) if line not in others)
        self.question = [line for line in asks if len(line) > 3]

    def is_in(self, text: str) -> bool:
        """Whether a text is nothing but one of its cells."""
        words = _words(text[:LONG])
        return bool(words) and any(_is_part(words, each) for each in self.cells)

    def asks(self, text: str) -> bool:
        """Whether a part of the question is in a text."""
        lines = [line for line in _lines(text[:LONG]) if len(line) > 3]
        return any(_is_part(line, each) for line in lines for each in self.question)

    def has_none(self, cell: dict) -> bool:
        """Whether no line of a cell is the course's."""
        text = text_of(cell)
        if text is None:
            return self.code.isdisjoint(map(str.strip, source_of(cell).splitlines()))
        return self._left_of_text(text) == text

    def left_of(self, cell: dict) -> tuple[str, bool]:
        """What of a cell is not the course's, as Markdown, and whether it is text, not code."""
        text = text_of(cell)
        if text is None:
            return self._left_of_code(unmarked(source_of(cell)))
        text, pictures = self._left_of_text(text), cell.get("attachments")
        for name in pictures if isinstance(pictures, dict) else ():
            if f"(attachment:{name})" not in text:
                text += f"\n\n![{name}](attachment:{name})"
        return text, True

    def _left_of_text(self, text: str) -> str:
        if len(text) > LONG:
            return text.strip() and text
        if self.is_in(text):
            return ""
        lines = text.splitlines()
        left = [line for line in lines if not any(_is_part(_words(line), x) for x in self.lines)]
        if not any(map(_words, left)):
            return ""
        return text if left == lines else "\n".join(left).strip()

    def _left_of_code(self, source: str) -> tuple[str, bool]:
        lines = [line for line in source.splitlines() if line.strip()]
        left = [line for line in lines if line.strip() not in self.code]
        if not any(map(_words, left)):
            return "", False
        tree = parsed(plain_python(source))
        if tree is None:  # a text, or code that fails
            return self._left_of_text(source), True
        notes = [_COMMENT.sub("", line, 1) for line in left if line.lstrip().startswith("#")]
        note = textwrap.dedent("\n".join(notes)).strip()
        texts = [text for node in tree.body if (text := _text_in(node)) and text not in self.code]
        is_text = bool(texts) or (bool(note) and parsed(note) is None)  # else code, switched off
        if all(map(_text_in, tree.body)):
            return "\n\n".join(filter(None, [note, *texts])), is_text
        # The course's code is there to be played with.
        is_played_with = lines[0].startswith("# attncourse:") and lines[0].strip() in self.code
        if not is_text and (is_played_with or all(map(_asks_us, tree.body))):
            return "", False
        ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", source)), default=0))
        return f"{ticks}python\n{source}\n{ticks}", is_text


@functools.lru_cache(8)
def _around(question: str, released: tuple[tuple[str, str], ...], marks: frozenset) -> _Course:
    """The course's cells, and those of them that stand between a question's neighbors."""
    names, sources = zip(*released, strict=True)
    start = here = names.index(question)
    end = here + 1
    while start and names[start - 1] not in marks:
        start -= 1
    while end < len(names) and names[end] not in marks:
        end += 1
    return _Course(sources, sources[start:end], sources[here - 1] if here > start else "")


def _text_in(node: ast.stmt) -> str:
    """The text that a statement is, with which nothing is done."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text.strip()
    return ""


def _asks_us(node: ast.stmt) -> bool:
    """Whether a statement runs a check or shows a hint."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="check" | "hint"))):
            return True
    return False


def _lines(source: str) -> list[list[str]]:
    return [words for line in source.splitlines() if (words := _words(line))]


@remembered(2000, longest=1000)
def _words(text: str) -> list[str]:
    """What a text says, without its markup: its words, or its signs if it has none."""
    text = _SPACE.sub(" ", unicodedata.normalize("NFC", html.unescape(text)).casefold())
    parts = _WORD.findall(_LINK.sub(r"\1", text))
    words = [part for part in parts if part.isalnum() or _says(part)]
    return words or [part for part in parts if part.isascii() and part not in "*_#>`~|-\\"]


def _says(sign: str) -> bool:
    return not sign.isascii() and unicodedata.category(sign) in _SAYING


def _is_part(words: list[str], course: list[str]) -> bool:
    """Whether there is nothing but words of the course's text, in its order, and most of them."""
    if not words or not len(course) <= 2 * len(words) <= 2 * len(course):
        return False
    rest = iter(course)
    return all(word in rest for word in words)
