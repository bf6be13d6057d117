"""Chapter 12: what its tasks share."""

import torch
from torch import nn

from attncourse.checks.inputs import normal
from attncourse.checks.task import Chapter
from attncourse.looking_inside import AttentionOnly

chapter = Chapter("12_looking_inside", "chapter 12")

WORDS = 11
HEADS, WIDTH = 3, 4  # of a head; the model is twelve wide


def model_numbers(rng, layers=2, dtype=torch.float32):
    """Every parameter of a small model, in one row."""
    size = sum(
        parameter.numel() for parameter in AttentionOnly(WORDS, 12, HEADS, layers).parameters()
    )
    return 0.5 * normal(rng, size, dtype=dtype)


def model_of(numbers, layers=2):
    """A model of attention alone with these numbers as its parameters."""
    with torch.random.fork_rng(devices=[]):
        model = AttentionOnly(WORDS, 12, HEADS, layers).to(numbers.dtype)
    nn.utils.vector_to_parameters(numbers.detach().clone(), model.parameters())
    return model.eval()


def a_text(rng, b, n):
    return torch.randint(WORDS, (b, n), generator=rng, device="cpu")


def as_is(x, *_):
    return x
