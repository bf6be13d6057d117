"""Near-duplicates: submissions that share code which hardly anybody else in the class wrote.

It says "look at these together", never more. Winnowing (Schleimer, Wilkerson and Aiken, "Winnowing:
Local Algorithms for Document Fingerprinting", SIGMOD 2003) over the syntax trees of what students
wrote, so that names, comments, spacing, annotations and the order of functions do not matter. What
the course itself has written down, right or wrong, is no evidence. Most right answers to a
five-line task look alike, so only fingerprints that are rare in the class count, and only many of
them. An index of fingerprints stands for comparing all pairs: a thousand submissions take seconds.

Own lines and not the library copydetect, which winnows, too: it compares every pair of files, and
counts what everybody wrote as much as what only two did, which points at whoever wrote it plainly.
"""

import ast
import collections
import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attncourse.checks.answer_files import plain_python

GRAM = 12  # nodes of a syntax tree in a fingerprint: about a line of code
WINDOW = 4  # every shared run of GRAM + WINDOW - 1 nodes is found
ENOUGH = 20  # shared rare fingerprints: seven lines or so, more than chance or a tutorial explains
LONGEST = 200_000  # characters of a cell that somebody may have typed
FEWEST = 8  # submissions: among fewer, nobody can say what is rare

Place = tuple[int, int]  # cell and line


@dataclass(frozen=True)
class Alike:
    """Students whose submissions share rare code."""

    students: tuple[str, ...]
    shared: int  # fingerprints, of the two that share most
    lines: dict[str, str]  # by student: what they wrote there


def alike(submissions: Iterable[tuple[str, list[str]]], known: Iterable[str]) -> list[Alike]:
    """Groups of submissions to look at together, the most alike first.

    Args:
        submissions: student and the sources of the cells; read once, one after the other.
        known: sources that are no evidence: the release, the solution, known wrong answers.
    """
    common = {mark for source in known for mark, _ in fingerprints(source)}
    written, found = {}, {}  # student -> cells; student -> fingerprint -> where it stands
    for student, cells in submissions:
        written[student], found[student] = cells, _index(cells, common)
    holders = collections.defaultdict(list)
    for student, places in found.items():
        for mark in places:
            holders[mark].append(student)
    few = min(math.isqrt(len(written)), len(written) // 4) if len(written) >= FEWEST else 0
    shared = collections.defaultdict(set)
    for mark, students in holders.items():
        if 2 <= len(students) <= few:
            for pair in itertools.combinations(students, 2):
                shared[pair].add(mark)
    pairs = {pair: marks for pair, marks in shared.items() if len(marks) >= ENOUGH}
    groups = []
    for students in _connected(pairs):
        inside = [marks for pair, marks in pairs.items() if pair[0] in students]
        marks = set().union(*inside)
        lines = {
            student: _excerpt(written[student], marks & found[student].keys(), found[student])
            for student in students
        }
        groups.append(Alike(students, max(map(len, inside)), lines))
    return sorted(groups, key=lambda group: (-group.shared, group.students))


def _index(cells: list[str], common: set[bytes]) -> dict[bytes, set[Place]]:
    """Fingerprint -> where it stands in one submission, without what is common."""
    places = collections.defaultdict(set)
    for number, source in enumerate(cells):
        for mark, lines in fingerprints(source):
            if mark not in common:
                places[mark].update((number, line) for line in lines)
    return places


def _connected(pairs: Iterable[tuple[str, str]]) -> set[tuple[str, ...]]:
    group = {}
    for one, other in pairs:
        both = group.get(one, {one}) | group.get(other, {other})
        group |= dict.fromkeys(both, both)
    return {tuple(sorted(students)) for students in group.values()}


def _excerpt(cells: list[str], marks: set[bytes], places: dict[bytes, set[Place]]) -> str:
    """The lines with these fingerprints, as they were written; … where others stand between."""
    spots = sorted(set().union(*(places[mark] for mark in marks)))
    text, before = [], None
    for cell, line in spots:
        if before and (cell, line - 1) != before:
            text.append("…")
        text.append(plain_python(cells[cell]).splitlines()[line - 1])
        before = cell, line
    return "\n".join(text)


@functools.lru_cache(10_000)  # many cells are everybody's
def fingerprints(source: str) -> tuple[tuple[bytes, set[int]], ...]:
    """Hashes of runs of nodes, and the lines they stand on; none of what cannot be read."""
    try:
        if len(source) > LONGEST:
            return ()
        return tuple(
            found
            for statement in ast.parse(plain_python(source)).body
            for found in _winnow(list(nodes(statement, statement.lineno)))
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _winnow(nodes: list[tuple[str, int]]) -> Iterator[tuple[bytes, set[int]]]:
    """The smallest hash of every window."""
    grams = [
        (_hash(run), {line for _, line in run})
        for run in (nodes[i : i + GRAM] for i in range(len(nodes) - GRAM + 1))
    ]
    last = None
    for start in range(len(grams) - WINDOW + 1):
        best = min(range(start, start + WINDOW), key=lambda i: (grams[i][0], -i))
        if best != last:
            yield grams[best]
        last = best


def _hash(run) -> bytes:
    text = "\0".join(name for name, _ in run)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()


# What a copy may change without being less of a copy.
UNSEEN = {"annotation", "returns", "type_comment", "type_params", "decorator_list", "ctx"}


def nodes(node: ast.AST, line: int) -> Iterator[tuple[str, int]]:
    """Kinds of nodes in the order of the text, without the names that a student can choose."""
    todo = [(node, line)]  # not by recursion: somebody may chain a thousand names
    while todo:
        node, line = todo.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        line = getattr(node, "lineno", line)
        kind = type(node).__name__
        match node:
            case ast.Attribute():
                kind = "." + node.attr
            case ast.Constant():
                kind = repr(node.value)[:40]
            case ast.keyword():
                kind = f"{node.arg}="
        yield kind, line
        fields = [value for field, value in ast.iter_fields(node) if field not in UNSEEN]
        parts = [part for each in fields for part in (each if isinstance(each, list) else [each])]
        todo += [(part, line) for part in reversed(parts) if isinstance(part, ast.AST)]
