"""Fingerprints of all explanations of a task, computed once and kept with the package.

A task has some hundred explanations with one fault and some thousand with two; to look at all of
them takes seconds to minutes, and a student waits. Few of them differ in any one piece, so a table
holds a short code for each, by what the explanation is: ids of faults, numbers of form and
spelling. It only says which explanations are worth a closer look: those are looked at afresh. Of
the reference it holds every number, where all are tensors: to compute them takes up to a fifth of a
first check. A table counts as long as its task and the code that makes explanations stay as they
are.

    make fingerprints
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import math
import re
import signal
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from attncourse.checks import compositions, examples, fingerprint, generic, inputs, merge, registry
from attncourse.checks.compositions import Explanation, Part
from attncourse.checks.compositions import Key as Row
from attncourse.checks.fingerprint import (
    TRAITS,
    Fingerprint,
    Gradient,
    Key,
    outputs,
    tolerance,
)
from attncourse.checks.task import Fault, Task

if TYPE_CHECKING:
    from attncourse.checks.explain import Evidence

FOLDER = Path(__file__).parent.parent / "data" / "fingerprints"
MOST_LOOKED_AT = 24  # explanations that seem to fit, and are looked at afresh
FORMAT = "4"  # changes with what a table holds
LEAST = 0.45  # of what is wrong, an explanation has to explain to be looked at
MOST_PROBES = 6  # on which explanations with two faults are kept
MOST_SECONDS = 2.0  # for one explanation with two faults
MOST_OFF = 1  # pieces in which two faults may seem not to fit: codes are coarse
NEVER = 0xFFFF  # the code of one that takes longer
MOST_LIVE = 300  # explanations with two faults that are tried where no table is kept
MOST_OF_THOUGHTS = 600  # of these, where there are more
SIGNS = 4  # random projections of a tensor that stand for it


# --- one piece ----------------------------------------------------------------------------------


def _flat(value: object) -> tuple[str, np.ndarray, float]:
    """A piece as its structure, its numbers, and what is rounding noise in them."""
    if isinstance(value, Gradient):
        structure, numbers, _ = _flat(value.value)
        return f"gradient {structure}", numbers, value.floor
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)}", value.detach().double().reshape(-1).numpy(), 0.0
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(key, _flat(each)) for key, each in items]
        if isinstance(value, dict):  # equal in any order
            parts.sort(key=lambda part: repr(part[0]))
        numbers = [each[1] for _, each in parts]
        structure = ",".join(f"{key!r}:{each[0]}" for key, each in parts)
        return f"({structure})", np.concatenate([np.zeros(0), *numbers]), 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", np.array([float(value)]), 0.0
    return repr(value), np.zeros(0), 0.0


@functools.cache
def _signs(length: int) -> np.ndarray:
    return np.random.default_rng(length).choice((-1.0, 1.0), (SIGNS, length))


@np.errstate(over="ignore", invalid="ignore")  # an answer may return any number
def _sign(value: object) -> np.ndarray:
    """A piece as a few numbers: a hash of its structure, projections, size, noise."""
    structure, numbers, floor = _flat(value)
    finite = np.isfinite(numbers)
    structure += f" {np.isnan(numbers).sum()} {(~finite).sum()}"
    numbers = np.where(finite, numbers, 0.0)
    size = np.abs(numbers).max(initial=0.0)
    projected = _signs(len(numbers)) @ numbers / math.sqrt(max(1, len(numbers)))
    kind = zlib.crc32(structure.encode()) & 0xFFFFFF  # as much as a float32 holds
    return np.array([kind, *projected, size, floor], dtype=np.float32)


@np.errstate(over="ignore", invalid="ignore")
def _alike(one: np.ndarray, all_: np.ndarray, near: float) -> np.ndarray:
    """Which rows of signs are equal to one, as far as signs can tell."""
    floor = np.maximum(all_[:, -1], one[-1]) + near * np.maximum(all_[:, -2], one[-2])
    close = np.abs(all_[:, 1:-2] - one[1:-2]).max(1, initial=0.0) <= floor + 1e-12
    return (all_[:, 0] == one[0]) & close


class _Codes:
    """Small numbers for the different values of one piece; 0 where there is nothing to compare."""

    def __init__(self, near: float):
        self.near, self.signs = near, np.zeros((0, SIGNS + 3), dtype=np.float32)

    def of(self, value: object) -> int:
        if value is None:
            return 0
        sign = _sign(value)
        found = np.flatnonzero(_alike(sign, self.signs, self.near))
        if len(found):
            return int(found[0]) + 1
        self.signs = np.vstack([self.signs, sign])
        return len(self.signs)


# --- a table ------------------------------------------------------------------------------------


Shown = tuple[str, str, str]  # PROBE and a key of it; SMALL, a place, an output; MAP, a place, ""
PROBE, SMALL, MAP = "probe", "small", "map"

NOBODY = 0xFFFF  # in place of a second fault


@dataclass(frozen=True)
class Rows:
    """What the rows of a table explain; thousands, of which a few are ever looked at."""

    names: list[str]  # of faults
    numbers: np.ndarray  # (5 rows) the first fault and its form, the second and its form, spelling

    @classmethod
    def of(cls, rows: list[Row]) -> Rows:
        names = sorted({name for parts, _ in rows for name, _ in parts})
        number, made = {name: n for n, name in enumerate(names)}, []
        for parts, spelling in rows:
            (one, first), (two, second) = (*parts, ("", 0))[:2]
            made.append((number[one], first, number.get(two, NOBODY), second, spelling))
        return cls(names, np.array(made, dtype=np.uint16).reshape(-1, 5).T)

    def __getitem__(self, n: int) -> Row:
        one, first, two, second, spelling = self.numbers[:, n].tolist()
        parts = [(self.names[one], first)]
        if two != NOBODY:
            parts.append((self.names[two], second))
        return tuple(parts), spelling


@dataclass(frozen=True, eq=False)
class Table:
    """Codes of the pieces (columns) that explanations (rows) show."""

    task: Task
    keys: list[Key]  # columns of `one`
    signs: list[np.ndarray]  # of the values that the codes of a column stand for
    reference: np.ndarray  # (keys) codes
    rows: Rows  # of `one`
    one: np.ndarray  # (explanations keys) with one fault
    columns: np.ndarray  # which columns are kept for two
    rows_of_two: Rows
    two: np.ndarray  # (explanations columns) with two faults, and generic ones alone
    shown: dict[Shown, object]  # by the reference, of which it need not be asked then

    def _fits(self, found: Evidence, codes: np.ndarray, columns) -> np.ndarray:
        """(explanations pieces) True where it shows what the answer shows."""
        near = 4 * tolerance(self.task)
        fits = np.zeros((len(codes), len(columns)), dtype=bool)
        for place, column in enumerate(columns):
            value = found.got.piece(self.keys[column])
            if value is None:
                fits[:, place] = codes[:, place] == 0
                continue
            # nothing to compare, the codes from 1 on, and (clipped) NEVER
            of_code = np.zeros(len(self.signs[column]) + 2, dtype=bool)
            of_code[1:-1] = _alike(_sign(value), self.signs[column], near)
            fits[:, place] = of_code.take(codes[:, place], mode="clip")
        return fits

    def _seems(self, found, codes, columns) -> tuple[np.ndarray, np.ndarray]:
        """How much each explanation seems to explain, and what it seems to contradict."""
        compared = np.array([self.keys[column] in found.keys for column in columns])
        wrong = np.array([self.keys[column] in found.wrong for column in columns])
        fits = self._fits(found, codes[:, wrong], np.array(columns)[wrong])
        differs = (codes != self.reference[columns]) & compared
        # Even where its code is the reference's: codes are coarse, and a small number beside a
        # large one, or one entry of many, may be wrong without another code.
        explained = fits.sum(1) / max(1, wrong.sum())
        contradicted = differs[:, ~wrong].sum(1)
        return explained, contradicted

    def singles(self, found: Evidence) -> list[Explanation]:
        """Explanations with one fault that are worth a closer look, the best first."""
        every = {each.key: each for each in compositions.singles(self.task)}
        explained, contradicted = self._seems(found, self.one, range(len(self.keys)))
        # a code may err where a value is nearly another: one contradiction is looked at, too
        order = np.lexsort((-explained, contradicted))
        good = [n for n in order if explained[n] >= LEAST and contradicted[n] <= 1]
        likely = {n: every[row] for n in good[:MOST_LOOKED_AT] if (row := self.rows[n]) in every}
        for n, each in likely.items():
            if traits := self._traits(self.one[n]):
                each.shows.know(TRAITS, traits)
        return list(likely.values())

    def _traits(self, codes: np.ndarray) -> dict[Key, bool]:
        """Those of a row, if all say yes or no: that may take long to measure, and is known."""
        kinds, found = {_sign(value)[0]: value for value in (True, False)}, {}
        for column, key in enumerate(self.keys):
            if key[0] == TRAITS and (code := codes[column]):
                found[key] = kinds.get(self.signs[column][code - 1][0])
        return {} if None in found.values() else found

    def pairs(self, found: Evidence) -> list[Explanation]:
        """Explanations with two faults, or a generic one, that seem to explain everything."""
        explained, contradicted = self._seems(found, self.two, self.columns)
        good = np.flatnonzero((explained == 1) & (contradicted == 0))[:MOST_LOOKED_AT]
        rows = [self.rows_of_two[n] for n in good]
        return [each for row in rows if (each := compositions.explanation(self.task, row))]

    @functools.cached_property
    def wrong_on(self) -> dict[str, set[str]]:
        """Of each fault the probes on which it is wrong, in whichever form."""
        wrong: dict[str, set[str]] = defaultdict(set)
        for n, codes in enumerate(self.one):
            ((name, _),), _ = self.rows[n]
            wrong[name] |= {
                self.keys[column][0] for column in np.flatnonzero(codes != self.reference)
            }
        return wrong

    @functools.cached_property
    def unlike(self) -> dict[str, int]:
        """Of each fault in how many pieces its first form differs from the reference.

        Codes miss one piece or two, and more where small numbers stand beside large ones in a list
        or a table of facts: of tasks that have such, nothing is said.
        """
        shown = fingerprint.of_reference(self.task)
        if any(isinstance(shown.piece(key), dict | list | tuple) for key in self.keys):
            return {}
        rows = ((n, *self.rows[n]) for n in range(len(self.one)))
        differs = (self.one != self.reference).sum(1)
        return {
            part[0]: int(differs[n]) for n, (part,), spelling in rows if part[1] == spelling == 0
        }

    @functools.cached_property
    def variety(self) -> dict[str, int]:
        """Of each probe, how many different results it has for the known faults."""
        columns: dict[str, list[int]] = defaultdict(list)
        for n, (probe, _) in enumerate(self.keys):
            columns[probe].append(n)
        return {probe: len(np.unique(self.one[:, n], axis=0)) for probe, n in columns.items()}

    @functools.cached_property
    def left_out(self) -> list[str]:
        """The probes on which nothing is kept of two faults, the one that tells most first."""
        kept = {self.keys[column][0] for column in self.columns} | {TRAITS}
        return sorted(self.variety.keys() - kept, key=lambda probe: (-self.variety[probe], probe))

    def likely_pairs(self, found: Evidence) -> Iterator[tuple[Part, Part]]:
        """Two faults, in any form, that seem to explain together what is wrong."""
        return in_pairs(*self._plain(found))

    def likely_threes(self, found: Evidence, can: Callable) -> Iterator[tuple[Part, Part, Part]]:
        """Three faults of those that `can` be together with others, each in its first form."""
        names, *what = self._plain(found, lambda part: part[1] == 0 and can(part))
        return in_threes(names, *what)

    def _plain(self, found: Evidence, wanted: Callable = lambda part: True) -> tuple:
        """Names of the wordings, in which pieces they differ, where they fit; and what is wrong."""
        rows = ((n, *self.rows[n]) for n in range(len(self.one)))
        plain = [n for n, (part,), spelling in rows if spelling == 0 and wanted(part)]
        columns = [n for n, key in enumerate(self.keys) if key in found.keys]
        codes = self.one[plain][:, columns]
        wrong = np.array([self.keys[column] in found.wrong for column in columns])
        fits = np.zeros(codes.shape, dtype=bool)
        fits[:, wrong] = self._fits(found, codes[:, wrong], np.array(columns)[wrong])
        names = [self.rows[n][0][0] for n in plain]
        return names, codes != self.reference[columns], fits, wrong


def in_pairs(
    names: list[Part], differs: np.ndarray, fits: np.ndarray, wrong: np.ndarray
) -> Iterator[tuple[Part, Part]]:
    """Two of the names, rows of the tables, that together may show what is wrong; best first.

    Where only one of two differs from the reference, it has to fit; where something is wrong, one
    of the two has to differ. Of equally good ones come first those that show more by themselves.
    """
    right = (~differs).astype(np.float32)
    unlike = (differs & ~(fits & wrong)).astype(np.float32)
    off = unlike @ right.T
    off = off + off.T + right[:, wrong] @ right[:, wrong].T
    shown = (differs & fits & wrong).astype(np.float32)  # by one of them as it is
    missed = shown @ shown.T - shown.sum(1) - shown.sum(1)[:, None]
    for n in np.lexsort((missed.ravel(), off.ravel())):
        one, two = divmod(int(n), len(names))
        if off[one, two] > MOST_OFF:
            return
        if one < two and names[one][0] != names[two][0]:
            yield names[one], names[two]


def in_threes(
    names: list[Part], differs: np.ndarray, fits: np.ndarray, wrong: np.ndarray
) -> Iterator[tuple[Part, Part, Part]]:
    """Three of the names, in the same way; first those of which most can be seen alone."""
    right = (~differs).astype(np.float32)
    unlike = (differs & ~(fits & wrong)).astype(np.float32)
    shown = (differs & fits & wrong).astype(np.float32)
    found, seen = [], []
    for one in range(len(names) - 2):
        rest = slice(one + 1, None)
        beside, mine = right[rest], right[one]
        # Where one alone differs, it has to fit; where something is wrong, one has to differ.
        off = ((unlike[one] + mine * wrong) * beside) @ beside.T
        alone = (mine * unlike[rest]) @ beside.T
        off += alone + alone.T
        two, three = np.nonzero(np.triu(off == 0, 1))
        explains = np.maximum(shown[one], np.maximum(shown[rest][two], shown[rest][three])).sum(1)
        found.append(np.stack([np.full(len(two), one), two + one + 1, three + one + 1], 1))
        seen.append(explains)
    if not found:
        return
    every = np.concatenate(found)
    for n in np.argsort(-np.concatenate(seen), kind="stable"):
        yield tuple(names[each] for each in every[n])


# What makes explanations, and what they show on a task's probes; and the task's own files.
MAKERS = (compositions, fingerprint, generic, inputs, merge)


def _stamp(task: Task) -> str:
    """Changes with the code that says what a task's explanations are, and not with its words."""
    digest = hashlib.sha256(FORMAT.encode())
    for module in (*MAKERS, *_files(task)):
        digest.update(_code(Path(module.__file__)).encode())
    return digest.hexdigest()


def _files(task: Task) -> list[ModuleType]:
    """A task's module and package, and those of other tasks that they take something from."""
    todo, found = [task.module, task.module.rpartition(".")[0]], {}
    while todo:
        name = todo.pop()
        if name in found or not f"{name}.".startswith(f"{registry.COURSE}."):
            continue
        found[name] = module = sys.modules[name]
        homes = map(_home, vars(module).values())
        # In a package is besides whatever was loaded of it.
        todo += [home for home in homes if not home.startswith(f"{name}.")]
    return [found[name] for name in sorted(found)]


def _home(value: object) -> str:
    """The name of a module, or of the module that a value comes from."""
    is_module = isinstance(value, ModuleType)
    return value.__name__ if is_module else str(getattr(value, "__module__", ""))


# What changes nothing that an answer shows: what documents, and the checks of a task.
_NO_CODE = re.compile(
    r"""
      ^[ ]* \"\"\" .*? \"\"\" [ ]*$                                    # a docstring
    | ^@\w+\.check\( [^\n]*\n (?: [^\n]*\n )*? (?= \n\n?\S | \Z )  # a check, to its end
    | (?: ^[ ]* | [ ]{2} ) \# [^\n]*                                   # a comment
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)


@functools.cache
def _code(path: Path) -> str:
    """The code of a file, without words, empty lines and the kind of its line ends."""
    code = _NO_CODE.sub("", path.read_text(encoding="utf-8"))
    return "\n".join(line.rstrip() for line in code.splitlines() if line.strip())


class _Endless(BaseException):
    """An answer takes too long."""


@contextlib.contextmanager
def _at_most(seconds: float):
    """Interrupt what takes longer; gives a list that is not empty then."""
    late: list[bool] = []

    def stop(*_):
        late.append(True)
        raise _Endless

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: what is raised in an answer is noted like any other error of it.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
    try:
        yield late
    except _Endless:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def build(task: Task) -> Table:
    """Look at every explanation of a task (seconds to minutes)."""
    reference = fingerprint.of_reference(task).everything()
    keys = [key for key in reference.pieces if reference.piece(key) is not None]
    codes = [_Codes(tolerance(task)) for _ in keys]

    def row(shows: Fingerprint, columns) -> list[int]:
        return [codes[column].of(shows.piece(keys[column])) for column in columns]

    first = np.array(row(reference, range(len(keys))), dtype=np.uint16)
    alone = compositions.singles(task)
    one = [row(each.shows, range(len(keys))) for each in _progress(alone, task)]
    one = np.array(one, dtype=np.uint16).reshape(-1, len(keys))
    columns = _columns(task, keys, one, first)
    two, rows_of_two = [], []
    for each in _progress(compositions.pairs(task), task):
        shows = Fingerprint(task, each.make(), gradients=False)
        with _at_most(MOST_SECONDS) as late:
            codes_of_both = row(shows, columns)
        # Two faults together may never stop: nobody shall look at them again.
        two.append([NEVER] * len(columns) if late else codes_of_both)
        rows_of_two.append(each.key)
    two = np.array(two, dtype=np.uint16).reshape(-1, len(columns))
    signs = [each.signs for each in codes]
    rows = [each.key for each in alone]
    columns = np.array(columns, dtype=int)
    both = Rows.of(rows_of_two)
    return Table(task, keys, signs, first, Rows.of(rows), one, columns, both, two, shown_by(task))


def shown_by(task: Task) -> dict[Shown, object]:
    """What its reference shows on probes, small inputs and maps; nothing if that is no tensors."""
    pieces = Fingerprint(task, task.reference).everything().pieces  # not what a table knows
    found = {(PROBE, *key): value for key, value in pieces.items() if key[0] != TRAITS}
    for place in range(len(examples.small(task))):
        values = examples.of_small(task, place)
        found |= {
            (SMALL, f"{place}", name): x for name, x in zip(outputs(task), values, strict=True)
        }
    for place in range(len(examples.maps(task)) if task.maps else 0):
        found[MAP, f"{place}", ""] = examples.of_map(task, place)
    are_tensors = isinstance(task.returns, tuple) and all(map(_is_plain, found.values()))
    return found if are_tensors else {}


def _progress(explanations, task: Task):
    from tqdm import tqdm

    return tqdm(explanations, desc=task.name, leave=False, mininterval=1)


def _columns(task: Task, keys: list[Key], one: np.ndarray, first: np.ndarray) -> list[int]:
    """Outputs on the probes that together tell most single faults from the reference."""
    values = [n for n, key in enumerate(keys) if key[1] in outputs(task)]
    probes = list(dict.fromkeys(keys[n][0] for n in values))
    differs = {
        probe: (one != first)[:, [n for n in values if keys[n][0] == probe]].any(1)
        for probe in probes
    }
    seen, chosen = np.zeros(len(one), dtype=bool), []
    variety = {
        probe: len(np.unique(one[:, [n for n in values if keys[n][0] == probe]], axis=0))
        for probe in probes
    }
    while probes and len(chosen) < MOST_PROBES:
        probe = max(probes, key=lambda each: ((differs[each] & ~seen).sum(), variety[each]))
        if len(chosen) >= 3 and not (differs[probe] & ~seen).any():
            break
        seen |= differs[probe]
        chosen.append(probe)
        probes.remove(probe)
    return [n for n in values if keys[n][0] in chosen]


# --- on disk ------------------------------------------------------------------------------------


def is_wanted(task: Task) -> bool:
    """Whether a table is kept with the package: for the course's own tasks.

    Not where chance blurs what an answer shows: a code would stand for values that differ.
    """
    blurred = task.chance or tolerance(task) > 0.01
    return task.module.startswith(f"{registry.COURSE}.") and not blurred


def path_of(task: Task) -> Path:
    return FOLDER / f"{task.name}.npz"


def save(table: Table) -> None:
    FOLDER.mkdir(exist_ok=True)
    pieces, numbers = _written(table.shown)
    lengths = [len(signs) for signs in table.signs]
    beside = path_of(table.task).with_suffix(".new.npz")  # nobody reads half of one
    np.savez_compressed(
        beside,
        stamp=np.array(_stamp(table.task)),
        keys=_packed("\t".join(key) for key in table.keys),
        lengths=np.array(lengths, dtype=np.uint16),
        signs=_short(np.vstack(table.signs), tolerance(table.task)).T,
        reference=table.reference,
        names=_packed(table.rows.names),
        rows=table.rows.numbers,
        one=table.one,
        columns=table.columns,
        names_of_two=_packed(table.rows_of_two.names),
        rows_of_two=table.rows_of_two.numbers,
        two=table.two,
        shown=_packed(pieces),
        shown_numbers=np.frombuffer(numbers, dtype=np.uint8),
    )
    beside.replace(path_of(table.task))


def _short(signs: np.ndarray, near: float) -> np.ndarray:
    """With as many digits as a comparison looks at: files are a third smaller."""
    short = signs.copy()
    if near >= 1e-3:
        short[:, 1:].view(np.uint32)[...] &= 0xFFFFF800  # 12 of 23 bits after the point
    return short


def _packed(texts: Iterable[str]) -> np.ndarray:
    return np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)


def _unpacked(data: np.ndarray) -> list[str]:
    return data.tobytes().decode().split("\n")


def _is_plain(piece: object) -> bool:
    value = piece.value if isinstance(piece, Gradient) else piece
    return isinstance(value, Tensor | str | bool)


def _written(pieces: dict[Shown, object]) -> tuple[list[str], bytes]:
    """Pieces as lines and the bytes of all their numbers, to the last digit."""
    lines, numbers = [], []
    for key, piece in pieces.items():
        floor = piece.floor if isinstance(piece, Gradient) else None
        value = piece.value if isinstance(piece, Gradient) else piece
        if isinstance(value, Tensor):
            flat = value.detach().contiguous().reshape(-1)
            numbers.append(flat.view(torch.uint8).numpy().tobytes())
            value = [str(value.dtype).removeprefix("torch."), *value.shape]
        lines.append(json.dumps([*key, floor, value]))
    return lines, b"".join(numbers)


def _read(lines: list[str], numbers: np.ndarray) -> dict[Shown, object]:
    """What `_written` wrote."""
    pieces, start = {}, 0
    for *key, floor, value in map(json.loads, filter(None, lines)):
        if isinstance(value, list):
            kind, *shape = value
            dtype = getattr(torch, kind)
            end = start + dtype.itemsize * math.prod(shape)
            flat = torch.from_numpy(numbers[start:end].copy())
            start, value = end, flat.view(dtype).reshape(shape)
        pieces[tuple(key)] = value if floor is None else Gradient(value, floor)
    return pieces


DAMAGED = OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error


def is_current(task: Task) -> bool:
    """Whether a task's table is there, and made from the files as they are."""
    try:
        with np.load(path_of(task)) as data:
            return str(data["stamp"]) == _stamp(task)
    except DAMAGED:
        return False


@functools.cache
def load(task: Task) -> Table | None:
    """The table of a task; None if there is none, or it is out of date or damaged."""
    with contextlib.suppress(DAMAGED):
        if not is_current(task):
            return None
        table, reference = _loaded(task), fingerprint.of_reference(task)
        if traits := table._traits(table.reference):
            reference.know(TRAITS, traits)
        if not _is_shown_here(table):
            return replace(table, shown={})
        for probe in fingerprint.probes(task):
            reference.know(probe, _on(table, probe))
        return table
    return None


def _on(table: Table, probe: str) -> dict[Key, object]:
    return {key[1:]: piece for key, piece in table.shown.items() if key[:2] == (PROBE, probe)}


def _is_shown_here(table: Table) -> bool:
    """Whether the reference shows on the first probe what the table says, with this torch, too."""
    first = next(iter(fingerprint.probes(table.task)))
    here, there = fingerprint.of_reference(table.task).on(first), _on(table, first)
    near = tolerance(table.task)
    return here.keys() == there.keys() and all(
        fingerprint.agree(here[key], there[key], near) for key in here
    )


def of_small(task: Task, place: int) -> tuple:
    """What the small inputs at a place ask for."""
    shown, names = _shown(task), [(SMALL, f"{place}", name) for name in outputs(task)]
    if names[0] in shown:
        return tuple(shown[name] for name in names)
    return examples.of_small(task, place)


def of_map(task: Task, place: int) -> Tensor:
    """The dependency map that is right."""
    known = _shown(task).get((MAP, f"{place}", ""))
    return examples.of_map(task, place) if known is None else known


def _shown(task: Task) -> dict[Shown, object]:
    table = load(task)
    return table.shown if table else {}


def _loaded(task: Task) -> Table:
    with np.load(path_of(task)) as data:
        ends = np.cumsum(data["lengths"])[:-1]
        keys = [tuple(key.split("\t")) for key in _unpacked(data["keys"])]
        return Table(
            task,
            keys,
            np.split(np.ascontiguousarray(data["signs"].T), ends),
            data["reference"],
            Rows(_unpacked(data["names"]), data["rows"]),
            data["one"],
            data["columns"],
            Rows(_unpacked(data["names_of_two"]), data["rows_of_two"]),
            data["two"],
            _read(_unpacked(data["shown"]), data["shown_numbers"]) if "shown" in data else {},
        )


def live_pairs(found: Evidence) -> list[Explanation]:
    """Without a table: those with two faults that fit where the answer is first wrong."""
    every = [] if is_wanted(found.task) else _live(found.task)
    wrong = [key for key in found.wrong if key[1] in outputs(found.task)]
    if not wrong:
        return list(every)
    key = min(wrong, key=list(fingerprint.of_reference(found.task).pieces).index)
    near = tolerance(found.task)
    return [
        each
        for each in every
        if fingerprint.agree(found.got.piece(key), each.shows.piece(key), near)
    ]


@functools.lru_cache(8)  # what they show is kept with them: the next answer need not wait for it
def _live(task: Task) -> tuple[Explanation, ...]:
    every = tuple(itertools.islice(compositions.pairs(task), MOST_LIVE + 1))
    if len(every) > MOST_LIVE:  # then of two thoughts, and none beside a mere description
        both = (each for each in compositions.pairs(task) if _of_thoughts(each))
        every = tuple(itertools.islice(both, MOST_OF_THOUGHTS + 1))
    if len(every) > MOST_OF_THOUGHTS or task.returns is dict:
        return ()  # tables of facts say themselves which are likely (see relatives)
    return every


def _of_thoughts(each: Explanation) -> bool:
    return all(isinstance(fault, Fault) for fault in each.faults)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m attncourse.checks.tables",
        description="Store what tells a task's explanations apart, where a table is out of date.",
    )
    parser.add_argument("task", nargs="*", help="its name, such as softmax (all)")
    try:
        tasks = [registry.find(name) for name in parser.parse_args().task]
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    for task in tasks or registry.all_tasks().values():
        if is_wanted(task) and not is_current(task):
            save(build(task))
            print(f"{task.name}: {path_of(task).stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()
