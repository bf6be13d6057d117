"""Faults that any answer can have, whatever its task: in what goes in, or in what comes out.

They ascribe no thought. Each says what was seen, as a condition under which a right answer would
have returned the same: "as if `key` were rounded to float32".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attncourse.checks import prose
from attncourse.checks.answer import Inputs
from attncourse.checks.fingerprint import outputs, probes
from attncourse.checks.task import ByName, Task


@dataclass(frozen=True, eq=False)
class Generic:
    """A change of inputs or of outputs; `generic.md` has the sentence that says so.

    Attributes:
        of: what is changed, and to what: what the sentence leaves open.
        alone: too rare a slip to be believed beside another one.
    """

    id: str
    of: tuple[str, ...] = ()
    inward: Callable[[Inputs], Inputs] | None = None
    outward: Callable[[object], object] | None = None
    alone: bool = False
    thinks: str = ""

    @property
    def name(self) -> str:
        """Its own among those of a task."""
        return " ".join((self.id, *self.of))

    @property
    def why(self) -> str:
        return prose.generic(self.id).format(*self.of)

    def around(self, task: Task, answer: Callable) -> ByName:
        return ByName(task, answer, self.inward or _same, self.outward or _same)


def _same(value):
    return value


@functools.cache
def of(task: Task) -> tuple[Generic, ...]:
    """The generic faults that make sense for a task's inputs and outputs."""
    return (*_inward(task), *_outward(task))


# --- what goes in -------------------------------------------------------------------------------


def _inward(task: Task) -> Iterator[Generic]:
    values: dict[str, list] = {}
    for inputs in probes(task).values():
        for name, value in inputs.items():
            if value is not None and "." not in name:  # not the weights of a module
                values.setdefault(name, []).append(value)
    for name, seen in values.items():
        if all(isinstance(value, Tensor) for value in seen):
            yield from _of_tensor(name, seen)
        elif all(isinstance(value, bool | int | float) for value in seen):
            yield from _of_number(name, seen)
    tensors = [name for name, seen in values.items() if _kind(seen)]
    for one, two in itertools.permutations(tensors, 2):
        if _kind(values[one]) == _kind(values[two]):
            yield Generic(
                "AS-IF-TAKEN-FOR-ANOTHER",
                (two, one),
                functools.partial(_replace, one, two),
            )
    for one, two in itertools.combinations(tensors, 2):
        if _kind(values[one]) == _kind(values[two]):
            yield Generic(
                "AS-IF-EXCHANGED",
                (one, two),
                functools.partial(_exchange, one, two),
            )


def _kind(seen: list) -> object:
    if not all(isinstance(value, Tensor) for value in seen):
        return None
    return seen[0].is_floating_point(), seen[0].dtype == torch.bool


def _replace(one: str, two: str, inputs: Inputs) -> Inputs:
    return inputs | {one: inputs[two]}


def _exchange(one: str, two: str, inputs: Inputs) -> Inputs:
    return inputs | {one: inputs[two], two: inputs[one]}


def _each(name: str, change: Callable, inputs: Inputs) -> Inputs:
    return inputs | {name: change(inputs[name])} if inputs.get(name) is not None else inputs


def _first(x: Tensor) -> Tensor:
    return x[:1].expand_as(x)


def _first_row(x: Tensor) -> Tensor:
    return x[..., :1, :].expand_as(x)


def _turned(x: Tensor) -> Tensor:
    return x.mT if x.ndim > 1 and x.shape[-1] == x.shape[-2] else x


def _of_tensor(name: str, seen: list[Tensor]) -> Iterator[Generic]:
    def change(id: str, function: Callable) -> Generic:
        return Generic(id, (name,), functools.partial(_each, name, function))

    if max(value.ndim for value in seen) > 1:
        yield change("AS-IF-THE-FIRST", _first)
    if seen[0].dtype == torch.bool:
        yield change("AS-IF-INVERTED", torch.logical_not)
        yield change("AS-IF-ALL-TRUE", torch.ones_like)
        yield change("AS-IF-TRANSPOSED", _turned)
        if max(value.ndim for value in seen) > 1:
            yield change("AS-IF-FIRST-ROW", _first_row)
    elif seen[0].is_floating_point():
        yield change("AS-IF-DETACHED", Tensor.detach)
        yield change("AS-IF-ZERO", torch.zeros_like)
        yield change("AS-IF-NEGATIVE", torch.neg)
        if any(value.dtype != torch.float32 for value in seen):
            yield change("AS-IF-FLOAT32", _rounded)
        yield change("AS-IF-SCALED-UP", _up)
        yield change("AS-IF-SCALED-DOWN", _down)


def _rounded(x: Tensor) -> Tensor:
    return x.float().to(x.dtype)


def _up(x: Tensor) -> Tensor:
    return x * x.shape[-1] ** 0.5 if x.ndim else x


def _down(x: Tensor) -> Tensor:
    return x / x.shape[-1] ** 0.5 if x.ndim else x


def _of_number(name: str, seen: list) -> Iterator[Generic]:
    found = list(dict.fromkeys(seen))
    if len(found) < 2:
        return
    for value in found if len(found) <= 6 else ():
        yield Generic(
            "AS-IF-FIXED",
            (name, str(value)),
            functools.partial(_each, name, lambda _, value=value: value),
            alone=not isinstance(value, bool),
        )
    if isinstance(found[0], bool):
        yield Generic(
            "AS-IF-INVERTED",
            (name,),
            functools.partial(_each, name, lambda value: not value),
        )


# --- what comes out -----------------------------------------------------------------------------


def _outward(task: Task) -> Iterator[Generic]:
    names = outputs(task)
    if task.returns in (float, int):
        yield from _of_plain_number(task.returns)
    if task.returns is bool:
        yield Generic("AS-IF-NOT", outward=lambda x: not x)
    if not isinstance(task.returns, tuple):
        return
    for place, name in enumerate(names):
        for id, function in TENSOR_OUT:
            yield Generic(
                id, (name,), outward=functools.partial(_one_of, place, len(names), function)
            )
    if len(names) == 2:
        yield Generic(
            "AS-IF-RESULTS-EXCHANGED",
            names,
            outward=lambda pair: (pair[1], pair[0]),
        )
        for place, name in enumerate(names):
            yield Generic(
                "AS-IF-ONE-RESULT",
                (name,),
                outward=lambda pair, place=place: pair[place],
            )


def _one_of(place: int, many: int, function: Callable, returned: object) -> object:
    if many == 1:
        return function(returned)
    returned = list(returned)
    returned[place] = function(returned[place])
    return tuple(returned)


def _turned_last(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def _turned_first(x: Tensor) -> Tensor:
    return x if x.ndim < 3 else x.transpose(0, 1)  # of two axes they are the last, too


def _opposite(x: Tensor) -> Tensor:
    return ~x if x.dtype == torch.bool else -x


TENSOR_OUT = (
    ("AS-IF-TURNED", _turned_last),
    ("AS-IF-AXES-EXCHANGED", _turned_first),
    ("AS-IF-AXIS-IN-FRONT", lambda x: x[None]),
    ("AS-IF-AXIS-AT-END", lambda x: x[..., None]),
    ("AS-IF-SQUEEZED", torch.squeeze),
    ("AS-IF-FLAT", torch.flatten),
    ("AS-IF-OUT-DETACHED", Tensor.detach),
    ("AS-IF-OUT-FLOAT32", Tensor.float),
    ("AS-IF-OUT-DOUBLE", Tensor.double),
    ("AS-IF-OUT-NEGATIVE", _opposite),
    ("AS-IF-OUT-FIRST", _first),
    ("AS-IF-OUT-ZERO", torch.zeros_like),
    ("AS-IF-OUT-MEAN", lambda x: x.mean(0)),
    ("AS-IF-OUT-SUM", lambda x: x.sum(0)),
    ("AS-IF-OUT-MEAN-1", lambda x: x.mean(1)),
)  # fmt: skip


def _of_plain_number(kind: type) -> Iterator[Generic]:
    changes = [
        ("AS-IF-TENSOR", torch.tensor, False),
        ("AS-IF-RESULT-NEGATIVE", lambda x: -x, False),
        ("AS-IF-TWICE", lambda x: 2 * x, False),
        ("AS-IF-HALF", lambda x: x / 2, False),
        ("AS-IF-INVERSE", lambda x: 1 / x, False),
        ("AS-IF-SQUARE", lambda x: x * x, True),
        ("AS-IF-ROOT", lambda x: x**0.5, True),
    ]
    if kind is int:
        changes += [
            ("AS-IF-ONE-MORE", lambda x: x + 1, True),
            ("AS-IF-ONE-LESS", lambda x: x - 1, True),
        ]
    for id, function, alone in changes:
        yield Generic(id, outward=function, alone=alone)
