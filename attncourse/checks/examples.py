"""Small inputs, inputs in which one position moves, and what the reference makes of both."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from attncourse.checks.answer import Failure, Inputs, unpack
from attncourse.checks.task import Task


@functools.cache
def small(task: Task) -> tuple[Inputs, ...]:
    return tuple(task.small(torch.Generator().manual_seed(0)))


@functools.cache
def of_small(task: Task, place: int) -> tuple:
    """What the reference makes of the small inputs at a place."""
    return unpack(task, task.observe(task.reference, small(task)[place]))


def _positions(task: Task, tensor: Tensor) -> Tensor:
    """(positions features)"""
    features = task.features if tensor.is_floating_point() else 0  # an id is a position
    shape = tensor.shape[: tensor.ndim - features]
    return tensor.reshape(shape.numel(), -1)


def _moves(task: Task, inputs: Inputs, moved: tuple[str, ...]) -> list[list[Inputs]]:
    """Inputs in which one position after another is changed, each in several ways.

    One way alone may not show: a tanh at its end passes on hardly anything.
    """
    fresh, moves = torch.Generator().manual_seed(1), []
    for position in range(len(_positions(task, inputs[moved[0]]))):
        ways = [dict(inputs) for _ in range(3)]
        for name in moved:
            old = _positions(task, inputs[name])[position]
            noise = torch.randn(old.shape, generator=fresh, device="cpu")
            real = old.is_floating_point()  # else an id: another one
            new = (old + noise + 1, -old, 0 * old) if real else 3 * (old + 1,)
            for way, row in zip(ways, new, strict=True):
                way[name] = inputs[name].clone()
                _positions(task, way[name])[position] = row
        moves.append(ways)
    return moves


def dependencies(
    task: Task, answer: Callable, inputs: Inputs, moves: list[list[Inputs]]
) -> Tensor | None:
    """(outputs inputs), True where changing an input position changes an output position."""

    def outputs(inputs: Inputs) -> Tensor:
        return _positions(task, unpack(task, task.observe(answer, inputs))[0])

    def changed(ways: list[Inputs]) -> Tensor:
        same = torch.ones(len(before), dtype=torch.bool)
        for way in ways:
            alike = torch.isclose(before, outputs(way), rtol=1e-4, atol=1e-6, equal_nan=True)
            same = same & alike.all(-1)
            if not same.any():
                break
        return ~same

    try:
        before = outputs(inputs)
        columns = [changed(ways) for ways in moves]
    except (Failure, RuntimeError, IndexError, TypeError):
        return None
    return torch.stack(columns, dim=-1)


@functools.cache
def maps(task: Task) -> tuple[tuple[str, str, Inputs, list[list[Inputs]]], ...]:
    """Of each map: its title, what is moved, inputs before and after every move."""
    return tuple(
        (title, " and ".join(moved), inputs, _moves(task, inputs, moved))
        for title, inputs, moved in task.maps(torch.Generator().manual_seed(0))
    )


@functools.cache
def of_map(task: Task, place: int) -> Tensor:
    return dependencies(task, task.reference, *maps(task)[place][2:])
