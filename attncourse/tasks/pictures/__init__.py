"""Chapter 13: what its tasks share."""

import torch

from attncourse.checks.answer import Failure, shape_of
from attncourse.checks.task import Chapter

chapter = Chapter("13_pictures", "chapter 13")


def has_shape(name, tensor, axes, *shape, inputs, dtype=torch.float32):
    """Assert the shape and the dtype of what came back."""
    if tensor.shape != shape:
        raise Failure(
            f"{name} has shape {shape_of(tensor)}; expected {axes} = "
            f"{shape_of(torch.empty(shape))}.",
            inputs,
        )
    if tensor.dtype != dtype:
        raise Failure(f"{name} has dtype {tensor.dtype}; expected {dtype}.", inputs)


def as_is(x, *_):
    return x
