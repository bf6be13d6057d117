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
def _untrained(layers):
    """A model in whose numbers nobody is interested, and how many each parameter has."""
    with torch.random.fork_rng(devices=[]):
        model = AttentionOnly(WORDS, 12, HEADS, layers).eval()
    return model, [parameter.numel() for parameter in model.parameters()]


def model_numbers(rng, layers=2, dtype=torch.float32):
    """Every parameter of a small model, in one row."""
    return 0.5 * normal(rng, sum(_untrained(layers)[1]), dtype=dtype)


def model_of(numbers, layers=2):
    """A model of attention alone with these numbers as its parameters."""
    model, sizes = _untrained(layers)
    return _like(model, iter(numbers.detach().clone().split(sizes)))


def _like(module, numbers):
    """The same module with the next numbers: a new one draws its own, which takes far longer."""
    made = object.__new__(type(module))
    made.__dict__.update(
        (name, value.copy() if isinstance(value, dict | set) else value)
        for name, value in vars(module).items()
    )
    for name, parameter in made._parameters.items():
        made._parameters[name] = nn.Parameter(next(numbers).view_as(parameter))
    for name, part in made._modules.items():
        made._modules[name] = _like(part, numbers)
    return made


def said_before(inputs, text):
    """What the given model says of a text while nobody has touched it."""
    return model_of(inputs["model.numbers"], inputs["model.layers"])(text).detach()


def says_as_it_should(answer, inputs):
    """Assert that scores are right; what becomes of the given model is a check of its own."""
    said, _ = answer(inputs)
    compare(answer.task.returns[0], said, answer.expected(inputs)[0], inputs)


def a_text(rng, b, n):
    return torch.randint(WORDS, (b, n), generator=rng, device="cpu")
