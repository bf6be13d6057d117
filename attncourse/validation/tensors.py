"""Tensors by themselves: kind of numbers and shape, and how a message shows them."""

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor


def shown(tensor: Tensor) -> str:
    """Its shape, as messages say it: (2 5 6)."""
    return "(" + " ".join(map(str, tensor.shape)) + ")"


def validate_tensor(name: str, value: object, kind: str = "floating-point") -> None:
    """Raise TypeError unless `value` is a tensor of floating-point (or of "whole") numbers."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}")
    is_whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    if not (is_whole if kind == "whole" else value.is_floating_point()):
        raise TypeError(f"{name} must hold {kind} numbers; got {value.dtype}")


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that these broadcast to; None if there is none.

    `torch.broadcast_shapes` imports sympy with its first call, which takes most of a second.
    """
    lengths = []
    for axis in zip_longest(*map(reversed, shapes), fillvalue=1):
        length = 1
        for each in axis:
            if length != each != 1:
                if length != 1:
                    return None
                length = each
        lengths.append(length)
    return tuple(reversed(lengths))


def is_readable(tensor: Tensor) -> bool:
    """Whether its numbers can be looked at: not in a compiled graph, nor on the meta device."""
    return not torch.compiler.is_compiling() and tensor.device.type != "meta"


def validate_fits(name: str, value: Tensor, shape: tuple[int, ...], axes: str) -> None:
    """Raise unless `value` broadcasts to `shape`, and makes it no larger."""
    if broadcast(value.shape, shape) != tuple(shape):
        raise ValueError(
            f"{name} must broadcast to ({axes}) = ({' '.join(map(str, shape))}); "
            f"got shape {shown(value)}"
        )
