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


def averages(answer, inputs, averaged):
    """Assert that the context is the average of the input `averaged` by the weights."""
    context, weights = answer(inputs)
    if weights.shape != averaged.shape[:2]:
        expected = shape_of(averaged[..., 0])
        raise Failure(f"weights have shape {shape_of(weights)}; expected {expected}.", inputs)
    average = (weights[:, :, None] * averaged).sum(1)
    # Both are NaN where the weights are, and that is another check's affair.
    compare("context", context.nan_to_num(), average.nan_to_num(), inputs)


def averages_if_masked(answer, inputs, averaged):
    """`averages`, unless nothing comes back: that is another check's affair, too."""
    if not answer.observe(inputs).error:
        averages(answer, inputs, averaged)


def gives_zeros(answer, inputs):
    """Assert that what has nothing to attend to gives zeros, whether or not the rest is right."""
    dead = ~inputs["mask"].any(-1)
    for name, result, due in zip(
        ("context", "weights"), answer(inputs), answer.expected(inputs), strict=True
    ):
        if result.shape == due.shape and (result[dead] != 0).any():
            compare(name, result, due, inputs)


def ignores_padding(answer, inputs, longer, k, finite=True):
    """Assert that keys behind the first `k`, all hidden, change no context and no weight.

    Args:
        finite: whether numbers are asked for; else NaN may stay NaN.
    """
    context, weights, padded_context, padded_weights = (
        result if finite else result.nan_to_num()
        for each in (inputs, longer)
        for result in answer(each)
    )
    compare("the context, once padding is added", padded_context, context, longer)
    compare("the weights of real words", padded_weights[:, :k], weights, longer)
    if padded_weights[:, k:].abs().sum() > 1e-6:
        raise Failure("Padding gets a part of the weights.", longer, got=padded_weights)
