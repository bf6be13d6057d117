"""What the tests of the mechanisms share: seeded numbers, comparisons, refusals."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import beartype
import jaxtyping
import pytest
import torch
from hypothesis import settings

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]
steadily = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True)
class Call:
    """A line of a chapter's table: one call of a mechanism, for test_contract.py.

    Args:
        function: a function, or a layer's method, whose first input is the layer.
        inputs: makes them, the same at every call.
        shapes: of the tensor, or the tensors, that it returns; None if they are not said here.
        case: what tells this call from others of the same mechanism.
        equals: what is no tensor: the result itself, or its type.
        graph: a backend of torch.compile for which this call must be one graph.
        draws: whether it draws from torch's own random numbers.
    """

    function: Callable
    inputs: Callable[[], Sequence]
    shapes: Sequence | None = None
    case: str = ""
    equals: object = None
    graph: str | None = None
    draws: bool = False


def randn(*shape, seed=0, dtype=torch.float64):
    """Standard normal numbers that leave the global random generator alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make_mask(*shape, seed=0):
    """A random mask with visible and hidden keys, and at least one visible key in every row."""
    mask = randn(*shape, seed=seed) > 0
    mask[..., 0] = True
    assert not mask.all(), "choose another seed: this mask hides nothing"
    return mask


def seeded(make, *arguments, seed=0, **options):
    """A module with float64 weights that leaves the global random generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*arguments, **options).double()


def filled(module, seed=0):
    """The module in float64, every parameter drawn anew, biases and norms included."""
    for i, parameter in enumerate(module.double().parameters()):
        width = parameter.shape[-1] if parameter.ndim > 1 else 1
        parameter.data = randn(*parameter.shape, seed=1000 * seed + i) / math.sqrt(width)
    return module


def assert_equal_to(expected, actual, atol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def gradients(results, inputs, seed=100):
    """Gradients of a random projection of all results, so that no error can cancel."""
    loss = sum((r * randn(*r.shape, seed=seed + i)).sum() for i, r in enumerate(results))
    return torch.autograd.grad(loss, inputs)


def assert_all_agree(expected, actual, inputs):
    """The results are equal, and so are the gradients by every input."""
    inputs = list(inputs)
    for want, got in zip(expected, actual, strict=True):
        assert_equal_to(want, got)
    for want, got in zip(gradients(expected, inputs), gradients(actual, inputs), strict=True):
        assert_equal_to(want, got)


def assert_refused(error, words, call, **arguments):
    """The call raises one error, which says these phrases in this order (" ... " between them)."""
    in_this_order = ".*".join(re.escape(phrase) for phrase in words.split(" ... "))
    with pytest.raises(error, match=in_this_order) as raised:
        call(**arguments)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None, "one error only"


def word_by_word(translator, source, words):
    """Scores (b t vocab) of a translator that is told one word at a time."""
    state, logits = translator.start(source), []
    for word in words.unbind(1):
        scores, state = translator.step(word, state)
        logits.append(scores)
    return torch.stack(logits, 1)


def typed(function):
    """The function with its jaxtyping annotations checked at every call."""
    return jaxtyping.jaxtyped(typechecker=beartype.beartype)(function)
