"""Chapter 12: what its tasks share."""

import functools

import torch
from torch import nn

from attncourse.checks.answer import compare
from attncourse.checks.inputs import normal
from attncourse.checks.task import Chapter
from attncourse.looking_inside import AttentionOnly

chapter = Chapter("12_looking_inside", "chapter 12")

WORDS = 11
HEADS, WIDTH = 3, 4  # of a head; the model is twelve wide


@functools.cache
def _size(layers):
    """Parameters of a small model."""
    return sum(parameter.numel() for parameter in _untrained(layers).parameters())


def _untrained(layers):
    """A model in whose numbers nobody is interested."""
    with torch.random.fork_rng(devices=[]):
        return AttentionOnly(WORDS, 12, HEADS, layers)


def model_numbers(rng, layers=2, dtype=torch.float32):
    """Every parameter of a small model, in one row."""
    return 0.5 * normal(rng, _size(layers), dtype=dtype)


def model_of(numbers, layers=2):
    """A model of attention alone with these numbers as its parameters."""
    model = _untrained(layers).to(numbers.dtype)
    nn.utils.vector_to_parameters(numbers.detach().clone(), model.parameters())
    return model.eval()


def says_as_it_should(answer, inputs):
    """Assert that scores are right; what becomes of the given model is a check of its own."""
    said, _ = answer(inputs)
    compare(answer.task.returns[0], said, answer.expected(inputs)[0], inputs)


def a_text(rng, b, n):
    return torch.randint(WORDS, (b, n), generator=rng, device="cpu")
