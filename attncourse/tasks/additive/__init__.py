"""Chapter 2: what its tasks share."""

import torch

from attncourse.checks.answer import Failure, compare, shape_of
from attncourse.checks.inputs import integers
from attncourse.checks.task import Chapter

chapter = Chapter("02_additive", "chapter 2")


def probes_of(make, widths):
    """Every pair of sizes that can hide a mistake by being equal, and those that are one."""
    same = dict.fromkeys(widths, 4)

    def probes(rng):
        return {
            "plain": make(rng),
            "large": large_inputs(rng, make),
            "as many sentences as keys": make(rng, b=4, k=4),
            "all equal": make(rng, b=4, k=4, **same),
            "equal widths": make(rng, b=2, k=3, **same),
            "one sentence": make(rng, b=1),
            "one key": make(rng, b=3, k=1),
            "one sentence, equal widths": make(rng, b=1, k=3, **same),
            "wide": make(rng, b=2, k=3, **dict.fromkeys(widths, 9)),
            "double": make(rng, b=3, k=2, dtype=torch.float64),
        }

    return probes


def large_inputs(rng, make, large="keys"):
    """Whole numbers, one input up to 20,000: every sum is exact, and a tanh is far outside."""
    inputs = {name: integers(rng, *value.shape) for name, value in make(rng).items()}
    inputs[large] *= 1e4
    return inputs


def small_of(shapes):
    """From one sentence with one key on; `shapes` maps the widths to each argument's shape."""

    def small(rng):
        for b, k, width in ((1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 2), (2, 3, 2)):
            for other in (width, width + 1):
                for _ in range(3):
                    yield {
                        name: integers(rng, *shape) for name, shape in shapes(b, k, width, other)
                    }

    return small


def maps_of(make):
    def maps(rng):
        return [
            ("the scores of three sentences", make(rng, b=3, k=3), ("query",)),
            ("the scores of two sentences with two keys each", make(rng, b=2, k=2), ("keys",)),
        ]

    return maps


def digits_of(make):
    """Traits: whether more than seven digits of a float64 input make a difference."""

    def traits(answer):
        double = make(torch.Generator().manual_seed(0), dtype=torch.float64)
        rounded = {name: value.float().double() for name, value in double.items()}
        return {"reads seven digits": torch.equal(answer(double), answer(rounded))}

    return traits


def turned(inputs):
    """The same numbers, not contiguous."""
    return {
        name: value.mT.contiguous().mT if value.ndim > 1 else value
        for name, value in inputs.items()
    }


def gives_one_score_a_key(answer, inputs):
    scores, expected = answer(inputs), inputs["keys"].shape[:2]
    if scores.shape != expected:
        raise Failure(
            f"scores have shape {shape_of(scores)}; expected (b k) = "
            f"{shape_of(torch.empty(expected))}: one number for each key of each sentence.",
            inputs,
        )
    if scores.dtype != inputs["keys"].dtype:
        raise Failure(f"scores are {scores.dtype}; the inputs were {inputs['keys'].dtype}.", inputs)


def holds_for_equal_sizes(answer, rng, make, widths):
    answer.matches(make(rng, b=4, k=4))
    answer.matches(make(rng, b=3, k=5, **dict.fromkeys(widths, 3)))
    answer.matches(make(rng, b=2, k=5, **dict.fromkeys(widths, 5)))
    answer.matches(make(rng, b=4, k=4, **dict.fromkeys(widths, 4)))


def holds_for_one(answer, rng, make, widths):
    answer.matches(make(rng, b=1))
    answer.matches(make(rng, b=3, k=1))
    answer.matches(make(rng, b=1, k=1))
    answer.matches(make(rng, b=2, k=3, **dict.fromkeys(widths, 1)))


def reads_the_query(answer, rng, make):
    """Assert that another query shares out the weights otherwise."""
    inputs = make(rng, b=3, k=5, d=6, e=6, a=8)
    other = dict(inputs, query=-2 * inputs["query"])
    one, two = (answer(each) for each in (inputs, other))
    if one.ndim > 1:  # an axis of length 1 behind the keys is another check's affair
        one, two = (scores.flatten(1).softmax(-1) for scores in (one, two))
    if one.shape == two.shape and (one - two).abs().max() < 1e-4:
        raise Failure(
            "Two different queries give the same weights: the softmax of your scores does not "
            "depend on the query.",
            inputs,
        )


def survives_large_numbers(answer, rng, make):
    for name in ("query", "keys"):
        answer.matches(large_inputs(rng, make, name))


def returns_a_pair(answer, inputs, b, k, v):
    context, weights = answer(inputs)
    for name, tensor, axes, shape in (
        ("context", context, "(b v)", (b, v)),
        ("weights", weights, "(b k)", (b, k)),
    ):
        if tensor.shape != shape:
            expected = shape_of(torch.empty(shape))
            raise Failure(
                f"{name} has shape {shape_of(tensor)}; expected {axes} = {expected}.", inputs
            )
        if tensor.dtype != torch.float32:
            raise Failure(f"{name} has dtype {tensor.dtype}; the inputs were float32.", inputs)


def rows_sum_to_one(answer, inputs, b):
    _, weights = answer(inputs)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(b), inputs)


def ignores_padding(answer, inputs, longer, k):
    """Assert that keys behind the first `k`, all hidden, change no context and no weight."""
    context, weights = answer(inputs)
    padded_context, padded_weights = answer(longer)
    compare("the context, once padding is added", padded_context, context, longer)
    compare("the weights of real words", padded_weights[:, :k], weights, longer)
    if padded_weights[:, k:].abs().sum() > 1e-6:
        raise Failure("Padding gets a part of the weights.", longer, got=padded_weights)
