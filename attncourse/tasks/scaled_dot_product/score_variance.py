"""score_variance."""

import math

import torch

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.tasks.scaled_dot_product import is_a_plain_number

# 10,000 samples know a variance to about 1.6 %; seven times that is never reached by chance.
SAMPLES, SAMPLING_ERROR = 10_000, 0.11


def variance_inputs(d, scaled, samples=SAMPLES):
    return {"d": d, "samples": samples, "scaled": scaled}


def variance_probes(rng):
    return {
        f"{'scaled' if scaled else 'raw'}, d = {d}": variance_inputs(d, scaled)
        for scaled in (False, True)
        for d in (9, 25)
    }


def same_for_any_samples(answer):
    few, many = (answer(variance_inputs(30, False, samples=samples)) for samples in (10, SAMPLES))
    return few == many


def variance_traits(answer):
    inputs = variance_inputs(4, False, 100)
    return {
        "same for any number of samples": same_for_any_samples(answer),
        "same for any random numbers": answer(inputs, seed=1) == answer(inputs, seed=2),
        "resets the random state": answer.resets_random_state(inputs),
    }


def variance_small(rng):
    for d in (1, 2, 4, 16, 50):
        for scaled in (False, True):
            yield variance_inputs(d, scaled)


def is_near(answer, inputs, expected, tolerance=SAMPLING_ERROR, **options):
    got = answer(inputs, **options)
    if not abs(got / expected - 1) <= tolerance:  # NaN fails too
        raise Failure(
            f"For d = {inputs['d']}, {'scaled' if inputs['scaled'] else 'not scaled'}, your "
            f"variance is {got:.4g}; about {expected:.4g} is expected.",
            inputs,
            torch.tensor(float(expected)),
            torch.tensor(got),
        )


task = Task(
    reference.score_variance,
    number=3,
    returns=float,
    difficulty=2,
    minutes=15,
    section="why-scale",
    hints=(
        "One score is q·k for one query and one key. To see how much scores vary you need "
        "many of them, each from a fresh query and a fresh key.",
        "torch.randn draws standard normal numbers. With queries and keys of shape "
        "(samples d), multiply entry by entry and sum over d: one score per sample.",
        "queries, keys: two (samples d) draws; scores: the sum over d of their product; "
        "divided by the root of d if `scaled`; return the variance of scores as a float.",
    ),
    probes=variance_probes,
    small=variance_small,
    traits=variance_traits,
    chance=True,
    tolerance=SAMPLING_ERROR,
)


@task.check(1)
def it_returns_a_plain_number(answer):
    inputs = variance_inputs(8, False, samples=1000)
    is_a_plain_number(answer, inputs)


@task.check(1)
def unscaled_scores_vary_by_the_width(answer):
    for d in (16, 50, 100):
        is_near(answer, variance_inputs(d, False), d)


@task.check(1)
def scaled_scores_vary_by_one(answer):
    for d in (16, 50, 100):
        is_near(answer, variance_inputs(d, True), 1)


@task.check(1)
def every_sample_is_drawn_anew(answer):
    for seed in range(6):  # one shared query would give |q|², which is all over the place
        is_near(answer, variance_inputs(2, False), 2, tolerance=0.16, seed=seed)
    if same_for_any_samples(answer):
        raise Failure(
            f"10 samples and {SAMPLES:,} samples give exactly the same variance: is it "
            "measured, and is `samples` used?"
        )


@task.check(1)
def the_global_random_state_is_not_reset(answer):
    inputs = variance_inputs(4, False, samples=100)
    answer(inputs)
    if answer.resets_random_state(inputs):
        raise Failure(
            "After your answer, the global random generator is always in the same state: a "
            "`manual_seed` inside a function makes everybody's later draws repeat.",
            inputs,
        )


# --- faults ---------------------------------------------------------------------------------------


def draw(d, samples):
    return torch.randn(samples, d), torch.randn(samples, d)


def dots(d, samples, scaled):
    query, key = draw(d, samples)
    scores = (query * key).sum(-1)
    return scores / math.sqrt(d) if scaled else scores


@task.fault(
    "V-STANDARD-DEVIATION",
    thinks="The spread of the scores is their standard deviation.",
    why="That is the root of what is asked. Variances add up over the d features, which is why "
    "the result is so simple; standard deviations do not.",
)
def returns_standard_deviation(d, samples, scaled):
    return dots(d, samples, scaled).std().item()


@task.fault(
    "V-MEAN",
    thinks="The average score tells how large scores are.",
    why="Positive and negative scores cancel, so the mean is near 0 for every width. What grows is "
    "how far they scatter.",
)
def returns_mean(d, samples, scaled):
    return dots(d, samples, scaled).mean().item()


@task.fault(
    "V-NOT-SUMMED",
    thinks="A score is the product of a query and a key, entry by entry.",
    why="That leaves d numbers per pair, each with variance 1. A dot product adds them up into one "
    "score, and that sum is what grows with d.",
)
def products_not_summed(d, samples, scaled):
    query, key = draw(d, samples)
    products = query * key / (math.sqrt(d) if scaled else 1)
    return products.var().item()


@task.fault(
    "V-IGNORES-SCALED",
    thinks="`scaled` makes no difference to the variance.",
    why="Dividing every score by √d divides their variance by d. Your result is the same for both "
    "settings.",
)
def ignores_scaled(d, samples, scaled):
    return dots(d, samples, False).var().item()


@task.fault(
    "V-ALWAYS-SCALED",
    thinks="Scores are always scaled.",
    why="The point is to compare: with `scaled=False` the raw dot products are asked for.",
)
def always_scaled(d, samples, scaled):
    return dots(d, samples, True).var().item()


@task.fault(
    "V-SCALE-DK",
    thinks="Scaled scores are divided by d.",
    why="Dividing scores by d divides their variance by d², so wide vectors end up with almost "
    "none. Which divisor brings the variance to 1?",
)
def scales_by_width(d, samples, scaled):
    return (dots(d, samples, False) / (d if scaled else 1)).var().item()


@task.fault(
    "V-SCALES-THE-VARIANCE",
    thinks="I can divide the variance by √d instead of the scores.",
    why="A factor on the scores counts squared in their variance, so the two are not the same. "
    "Scale the scores, then measure.",
)
def scales_the_variance(d, samples, scaled):
    return dots(d, samples, False).var().item() / (math.sqrt(d) if scaled else 1)


@task.fault(
    "V-UNIFORM",
    thinks="`torch.rand` draws random vectors, which is all that is needed.",
    why="It draws uniformly from 0 to 1: all positive, with variance 1/12. Standard normal numbers "
    "have mean 0 and variance 1; their function has one letter more.",
)
def uniform_vectors(d, samples, scaled):
    scores = (torch.rand(samples, d) * torch.rand(samples, d)).sum(-1)
    return (scores / (math.sqrt(d) if scaled else 1)).var().item()


@task.fault(
    "V-ONE-VECTOR",
    thinks="Query and key can be the same random vector.",
    why="q·q is a squared length, never negative, and its variance is twice as large. A query and "
    "a key are drawn independently.",
)
def query_is_key(d, samples, scaled):
    query, _ = draw(d, samples)
    scores = (query * query).sum(-1)
    return (scores / (math.sqrt(d) if scaled else 1)).var().item()


@task.fault(
    "V-FORMULA",
    thinks="I know the result, so I return it.",
    why="The formula is right, and this task is about seeing it happen: the answer must not know "
    "it in advance. Draw vectors, compute scores, measure.",
)
def returns_formula(d, samples, scaled):
    return 1.0 if scaled else float(d)


@task.fault(
    "V-IGNORES-SAMPLES",
    thinks="The number of samples is always the same, so I wrote it down.",
    why="The caller says how many pairs to draw: `samples` is an argument. Yours gives the same "
    "result for 10 as for 20,000.",
)
def ignores_samples(d, samples, scaled):
    return dots(d, 20_000, scaled).var().item()


@task.fault(
    "V-INVERTED",
    thinks="`scaled` means that the scores come scaled already, so the other case needs the root.",
    why="With `scaled=True` the scores are divided before the variance is taken; with False they "
    "stay raw. Yours does the opposite.",
)
def scales_the_wrong_case(d, samples, scaled):
    return dots(d, samples, not scaled).var().item()


@task.fault(
    "V-RESEED",
    thinks="A `manual_seed` inside the function makes it reproducible.",
    why="It also resets everybody else's random numbers on each call, so later draws repeat. Leave "
    "the global generator to the caller, or use a `torch.Generator` of your own.",
)
def reseeds(d, samples, scaled):
    torch.default_generator.manual_seed(0)
    return dots(d, samples, scaled).var().item()


@task.fault(
    "V-TENSOR",
    thinks="A tensor with one number is a number.",
    why="Nearly: it drags a device, a dtype and perhaps a graph along. A plain Python float is "
    "asked for; `.item()` makes one.",
)
def variance_as_tensor(d, samples, scaled):
    return dots(d, samples, scaled).var()
