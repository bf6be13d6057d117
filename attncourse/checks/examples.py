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


def _moves(task: Task, inputs: Inputs, moved: tuple[str, ...]) -> list[Inputs]:
    """Inputs in which one position after another is changed."""
    fresh, moves = torch.Generator().manual_seed(1), []
    for position in range(len(_positions(task, inputs[moved[0]]))):
        changed = dict(inputs)
        for name in moved:
            changed[name] = inputs[name].clone()
            row = _positions(task, changed[name])[position]
            noise = torch.randn(row.shape, generator=fresh, device="cpu")
            row += noise + 1 if row.is_floating_point() else 1  # an id: another one
        moves.append(changed)
    return moves


def dependencies(
    task: Task, answer: Callable, inputs: Inputs, moves: list[Inputs]
) -> Tensor | None:
    """(outputs inputs), True where changing an input position changes an output position."""

    def outputs(inputs: Inputs) -> Tensor:
        return _positions(task, unpack(task, task.observe(answer, inputs))[0])

    try:
        before = outputs(inputs)
        columns = [
            ~torch.isclose(before, outputs(each), rtol=1e-4, atol=1e-6, equal_nan=True).all(-1)
            for each in moves
        ]
    except (Failure, RuntimeError, IndexError, TypeError):
        return None
    return torch.stack(columns, dim=-1)


@functools.cache
def maps(task: Task) -> tuple[tuple[str, str, Inputs, list[Inputs]], ...]:
    """Of each map: its title, what is moved, inputs before and after every move."""
    return tuple(
        (title, " and ".join(moved), inputs, _moves(task, inputs, moved))
        for title, inputs, moved in task.maps(torch.Generator().manual_seed(0))
    )


@functools.cache
def of_map(task: Task, place: int) -> Tensor:
    return dependencies(task, task.reference, *maps(task)[place][2:])
