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

from attncourse.checks.answer import Inputs
from attncourse.checks.fingerprint import outputs, probes
from attncourse.checks.task import ByName, Task


@dataclass(frozen=True, eq=False)
class Generic:
    """A change of inputs or of outputs, and the sentence that says so."""

    id: str
    why: str
    inward: Callable[[Inputs], Inputs] | None = None
    outward: Callable[[object], object] | None = None
    alone: bool = False  # too rare a slip to be believed beside another one
    thinks: str = ""

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
                f"as if `{two}` were used where `{one}` belongs",
                functools.partial(_replace, one, two),
            )
    for one, two in itertools.combinations(tensors, 2):
        if _kind(values[one]) == _kind(values[two]):
            yield Generic(
                "AS-IF-EXCHANGED",
                f"as if `{one}` and `{two}` were exchanged",
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
    def change(id: str, words: str, function: Callable) -> Generic:
        return Generic(id, words.format(f"`{name}`"), functools.partial(_each, name, function))

    if max(value.ndim for value in seen) > 1:
        yield change("AS-IF-THE-FIRST", "as if the first {} of the batch stood for all", _first)
    if seen[0].dtype == torch.bool:
        yield change("AS-IF-INVERTED", "as if {} said the opposite", torch.logical_not)
        yield change("AS-IF-ALL-TRUE", "as if {} were True everywhere", torch.ones_like)
        yield change("AS-IF-TRANSPOSED", "as if {} were transposed", _turned)
        if max(value.ndim for value in seen) > 1:
            yield change("AS-IF-FIRST-ROW", "as if the first row of {} held for all", _first_row)
    elif seen[0].is_floating_point():
        yield change("AS-IF-DETACHED", "as if {} had been detached from the graph", Tensor.detach)
        yield change("AS-IF-ZERO", "as if {} were zero everywhere", torch.zeros_like)
        yield change("AS-IF-NEGATIVE", "as if {} had the opposite sign", torch.neg)
        if any(value.dtype != torch.float32 for value in seen):
            yield change("AS-IF-FLOAT32", "as if {} were rounded to float32", _rounded)
        yield change("AS-IF-SCALED-UP", "as if {} were multiplied by the root of its width", _up)
        yield change("AS-IF-SCALED-DOWN", "as if {} were divided by the root of its width", _down)


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
            f"as if `{name}` were always {value}",
            functools.partial(_each, name, lambda _, value=value: value),
            alone=not isinstance(value, bool),
        )
    if isinstance(found[0], bool):
        yield Generic(
            "AS-IF-INVERTED",
            f"as if `{name}` said the opposite",
            functools.partial(_each, name, lambda value: not value),
        )


# --- what comes out -----------------------------------------------------------------------------


def _outward(task: Task) -> Iterator[Generic]:
    names = outputs(task)
    if task.returns in (float, int):
        yield from _of_plain_number(task.returns)
    if task.returns is bool:
        yield Generic("AS-IF-NOT", "as if the result said the opposite", outward=lambda x: not x)
    if not isinstance(task.returns, tuple):
        return
    for place, name in enumerate(names):
        for id, words, function in TENSOR_OUT:
            yield Generic(
                id,
                words.format(f"`{name}`"),
                outward=functools.partial(_one_of, place, len(names), function),
            )
    if len(names) == 2:
        yield Generic(
            "AS-IF-RESULTS-EXCHANGED",
            f"as if `{names[0]}` and `{names[1]}` were returned in the other order",
            outward=lambda pair: (pair[1], pair[0]),
        )
        for place, name in enumerate(names):
            yield Generic(
                "AS-IF-ONE-RESULT",
                f"as if `{name}` were returned alone",
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
    ("AS-IF-TURNED", "as if the last two axes of {} were exchanged", _turned_last),
    ("AS-IF-AXES-EXCHANGED", "as if the first two axes of {} were exchanged", _turned_first),
    ("AS-IF-AXIS-IN-FRONT", "as if {} got one more axis in front", lambda x: x[None]),
    ("AS-IF-AXIS-AT-END", "as if {} got one more axis at the end", lambda x: x[..., None]),
    ("AS-IF-SQUEEZED", "as if {} lost every axis of length 1", torch.squeeze),
    ("AS-IF-FLAT", "as if all axes of {} were joined", torch.flatten),
    ("AS-IF-OUT-DETACHED", "as if {} had been detached from the graph", Tensor.detach),
    ("AS-IF-OUT-FLOAT32", "as if {} were turned into float32", Tensor.float),
    ("AS-IF-OUT-DOUBLE", "as if {} were turned into float64", Tensor.double),
    ("AS-IF-OUT-NEGATIVE", "as if {} had the opposite sign", _opposite),
    ("AS-IF-OUT-FIRST", "as if the first {} of the batch stood for all", _first),
    ("AS-IF-OUT-ZERO", "as if {} were zero everywhere", torch.zeros_like),
    ("AS-IF-OUT-MEAN", "as if {} were averaged over its first axis", lambda x: x.mean(0)),
    ("AS-IF-OUT-SUM", "as if {} were summed over its first axis", lambda x: x.sum(0)),
    ("AS-IF-OUT-MEAN-1", "as if {} were averaged over its second axis", lambda x: x.mean(1)),
)  # fmt: skip


def _of_plain_number(kind: type) -> Iterator[Generic]:
    changes = [
        ("AS-IF-TENSOR", "as if the number were left in a tensor", torch.tensor, False),
        ("AS-IF-NEGATIVE", "as if the result had the opposite sign", lambda x: -x, False),
        ("AS-IF-TWICE", "as if the result were taken twice", lambda x: 2 * x, False),
        ("AS-IF-HALF", "as if the result were halved", lambda x: x / 2, False),
        ("AS-IF-INVERSE", "as if one were divided by the result", lambda x: 1 / x, False),
        ("AS-IF-SQUARE", "as if the result were squared", lambda x: x * x, True),
        ("AS-IF-ROOT", "as if the root of the result were taken", lambda x: x**0.5, True),
    ]
    if kind is int:
        changes += [
            ("AS-IF-ONE-MORE", "as if the result were one larger", lambda x: x + 1, True),
            ("AS-IF-ONE-LESS", "as if the result were one smaller", lambda x: x - 1, True),
        ]
    for id, words, function, alone in changes:
        yield Generic(id, words, outward=function, alone=alone)
