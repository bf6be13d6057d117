"""What is read of a task: its hints, its thoughts, and why they are wrong, in `<task>.md`.

    # softmax
    From scores to weights.

    ## Hints
    1. A nudge.
    2. The idea.
    3. Almost code.

    ## Names
    - `rows`: rows of `tokens`

    ## D-SOFTMAX-MINUS
    What the student probably thinks.

    > Why that is wrong.

Under Names stands what a reader calls inputs that an answer has no parameter for, as its adapter
makes something of them, and results of which something has to be said.
What several tasks of a folder share is in a file there whose name begins with `_`, and what all
share in `attncourse/tasks/*.md`; a task's own words come first. A translation lies beside each file
(`softmax.zh.md`); a sentence that it lacks is said in English. Nothing is read before it is shown.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncourse.checks.task import Fault, Task

TASKS = Path(__file__).parent.parent / "tasks"
GENERIC = Path(__file__).parent / "generic.md"
HINTS, NAMES = "Hints", "Names"
KINDS = "thinks", "why"

_chosen: contextvars.ContextVar[str | None] = contextvars.ContextVar("language", default=None)


@dataclass(frozen=True)
class Entry:
    """A thought, and why it is wrong; or whatever stands under one heading."""

    thinks: str = ""
    why: str = ""
    line: int = 0  # of the heading


@dataclass
class Words:
    """What one file says, or, in the short form of a task, its module."""

    sentence: str = ""
    hints: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    thoughts: dict[str, Entry] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)  # by line


# --- which language -----------------------------------------------------------------------------


def language() -> str:
    """The two letters of a language, as in `ATTNCOURSE_LANG=zh`; "" and "en" are English."""
    chosen = _chosen.get()
    found = os.environ.get("ATTNCOURSE_LANG", "") if chosen is None else chosen
    return found if found.isalpha() and found != "en" else ""


@contextlib.contextmanager
def speaking(chosen: str | None) -> Iterator[None]:
    """Say everything in that language, or, for None, in the one of the environment."""
    before = _chosen.set(chosen)
    try:
        yield
    finally:
        _chosen.reset(before)


# --- what is said -------------------------------------------------------------------------------


def hints(task: Task) -> tuple[str, ...]:
    return next((each.hints for each in _said(task) if each.hints), ())


def sentence(task: Task) -> str:
    """What the task asks for."""
    own = map(read, _in_languages(files_of(task)[0])) if files_of(task) else ()
    return next((each.sentence for each in (task.said, *own) if each.sentence), "")


def thought(fault: Fault, kind: str) -> str:
    """What the student thinks ("thinks"), or why that is wrong ("why"); "" if nothing says it."""
    ids = dict.fromkeys((fault.id, fault.words))
    entries = (each.thoughts.get(id, Entry()) for each in _said(fault.of) for id in ids)
    return next((said for entry in entries if (said := getattr(entry, kind))), "")


def called(task: Task, name: str) -> str:
    """What a reader calls an input or a result: its name, if nothing says otherwise."""
    return next((each.names[name] for each in _said(task) if name in each.names), f"`{name}`")


def generic(id: str) -> str:
    """The sentence of a fault that any answer can have."""
    files = _in_languages(GENERIC)
    said = (read(path).thoughts.get(id, Entry()).thinks for path in files)
    return next(filter(None, said), id)


@functools.cache
def files_of(task: Task, translated: bool = False) -> list[Path]:
    """The files that may say something of a task, its own first; in English, or all that exist."""
    module = getattr(sys.modules.get(task.module), "__file__", None)
    if module is None:
        return []
    folder = Path(module).parent
    shared = sorted(TASKS.glob("*.md")) if TASKS in folder.parents else []
    found = [folder / f"{task.name}.md", *sorted(folder.glob("_*.md")), *shared]
    found = [path for path in found if "." not in path.stem]
    if translated:
        found = [each for path in found for each in path.parent.glob(f"{path.stem}*.md")]
    return found


def _said(task: Task) -> list[Words]:
    """All that says something of a task; what comes first counts."""
    translated, english = [], [task.said]
    for path in files_of(task):
        *other, own = _in_languages(path)
        translated += map(read, other)
        english.append(read(own))
    return [*translated, *english]


def _in_languages(path: Path) -> list[Path]:
    chosen = language()
    return [path.with_suffix(f".{chosen}.md"), path] if chosen else [path]


# --- how it is read -----------------------------------------------------------------------------


@functools.cache
def read(path: Path) -> Words:
    """What a file says; nothing if there is none, or if it cannot be read."""
    found = Words()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return found
    except (OSError, UnicodeDecodeError) as error:  # a judgment without its words is still one
        found.problems.append((1, f"the file cannot be read: {error}"))
        return found
    for line, heading, body in _sections(text):
        paragraphs = _paragraphs(body)
        if heading == HINTS:
            found.hints = tuple(_numbered(body))
        elif heading == NAMES:
            found.names = dict(re.findall(r"^- `(.+?)`: (.+)$", body, re.MULTILINE))
        elif not heading:
            found.sentence = _joined(paragraphs[0]) if paragraphs else ""
        else:
            plain = [_joined(each) for each in paragraphs if not each.startswith(">")]
            quoted = [_joined(each) for each in paragraphs if each.startswith(">")]
            if max(len(plain), len(quoted)) > 1:
                found.problems.append((line, f"{heading} has more than one paragraph of a kind"))
            if heading in found.thoughts:
                found.problems.append((line, f"{heading} is there twice"))
            if not plain and not quoted:
                found.problems.append((line, f"{heading} says nothing"))
            found.thoughts[heading] = Entry(" ".join(plain), " ".join(quoted), line)
    return found


def _sections(text: str) -> Iterator[tuple[int, str, str]]:
    """The number of a heading's line, the heading ("" for what comes first), what is below it."""
    heading, start, body = "", 1, []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            yield start, heading, "\n".join(body)
            heading, start, body = line.removeprefix("##").strip(), number, []
        elif not line.startswith("# "):
            body.append(line)
    yield start, heading, "\n".join(body)


def _paragraphs(body: str) -> list[str]:
    """Without empty lines; a quoted one begins with >."""
    return [each.strip() for each in re.split(r"\n\s*\n", body) if each.strip()]


def _joined(paragraph: str) -> str:
    """Its lines as one, without the marks of a quotation."""
    return " ".join(re.sub(r"^> ?", "", paragraph, flags=re.MULTILINE).split())


def _numbered(body: str) -> Iterator[str]:
    for item in re.split(r"^\d+\. +", body, flags=re.MULTILINE)[1:]:
        yield " ".join(item.split())


# --- what is wrong with it ----------------------------------------------------------------------


def problems(task: Task) -> Iterator[str]:
    """What is wrong with the words of a task, one sentence each, with file and line."""
    own, *shared = files_of(task) or [Path(f"{task.name}.md")]
    if len(set(hints(task))) != 3 or not all(hints(task)):
        yield f"{own}: give three different hints (a nudge, the idea, almost code)"
    for path in (own, *shared):
        for line, said in read(path).problems:
            yield f"{path}:{line}: {said}"
    named = {id for fault in task.faults.values() for id in (fault.id, fault.words)}
    for path in sorted({own, *own.parent.glob(f"{own.stem}.*.md")}):
        for id, entry in read(path).thoughts.items():
            if id not in named:
                yield f"{path}:{entry.line}: {task.name} has no fault {id} (is it spelled alike?)"
    for fault in task.faults.values():
        for kind, what in zip(KINDS, ("what the student thinks", "why that is wrong"), strict=True):
            said = getattr(fault, kind)
            if not said:
                yield f"{own}: {fault.id} does not say {what}; write it under “## {fault.id}”"
            elif is_cut(said):
                line = read(own).thoughts.get(fault.id, Entry()).line
                yield f"{own}:{line}: {fault.id} ends in the middle of a sentence: “…{said[-30:]}”"


def is_cut(text: str) -> bool:
    """Whether a text does not end like a sentence."""
    return not re.search(r"[.?!…:][)\"'”’`*]*$|[。？！]$", text.rstrip())
