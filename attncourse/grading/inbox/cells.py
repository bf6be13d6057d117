"""One cell of a notebook, as students and their editors make it."""

import ast
import functools
import re
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MARKER = re.compile(r"^# attncourse: *([\w.-]+)/([\w-]+)( hidden)?( check)?[ \t]*$", re.MULTILINE)
DEFINES = re.compile(r"^(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_CELL_MARK = re.compile(r"\A# ?%%.*\n?")  # PyCharm's first line
# Databricks keeps a text as code that begins with %md.
_TEXT_MAGIC = re.compile(r"\s*%{1,2}(?:md(?:-sandbox)?|markdown|html|latex)\b[ \t]*")


def source_of(cell: dict) -> str:
    """A cell's text; "" if there is none."""
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def unmarked(source: str) -> str:
    """A cell's text without the line that an editor has put in front of it."""
    return _CELL_MARK.sub("", source)


def text_of(cell: dict) -> str | None:
    """What a cell says to a reader; None if it is code."""
    source = unmarked(source_of(cell))
    if magic := _TEXT_MAGIC.match(source):
        return source[magic.end() :]
    return None if cell.get("cell_type") == "code" else source


def grade_id_of(cell: dict) -> str | None:
    metadata = cell.get("metadata")
    mark = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = mark.get("grade_id") if isinstance(mark, dict) else None
    return grade_id if isinstance(grade_id, str) else None


def remembered(most: int, longest: int = 10_000) -> Callable:
    """Remember what came of texts of a usual size: the course's own come with every student.

    Args:
        most: texts; what comes of one, such as a tree, may be a hundred times as large.
        longest: characters of a text.
    """

    def keeping(function: Callable[[str], T]) -> Callable[[str], T]:
        kept = functools.lru_cache(most)(function)

        @functools.wraps(function)
        def of(source: str) -> T:
            return (kept if len(source) < longest else function)(source)

        return of

    return keeping


@remembered(100)
def parsed(source: str) -> ast.Module | None:
    """The syntax tree of a cell; None if it is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
