import functools
import math

import torch

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure, following
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
        for d in (1, 2, 7, 9, 16)
    } | {
        f"{'scaled' if scaled else 'raw'}, fewer samples": variance_inputs(16, scaled, 3000)
        for scaled in (False, True)
    }


def same_for_any_samples(answer, scaled=False):
    few, many = (answer(variance_inputs(30, scaled, samples=samples)) for samples in (10, 1000))
    return few == many


def differs_between_seeds(answer):
    """How far ten measurements scatter, in shares of the width: much if all share one vector."""
    got = torch.tensor([answer(variance_inputs(2, False, 2000), seed=seed) for seed in range(10)])
    return (got.std() / 2).item()


# How far a variance of n samples scatters, as a share of itself: the root of (2 + 6/d) / n, since a
# sum of d products of two normal numbers has a kurtosis of 3 + 6/d. So wide vectors show whether
# there is any noise of this size, and d = 1 whether it is that of a product.
WIDE = {"d": 4, "step": 1, "times": 64, "samples": 24}
NARROW = {"d": 1, "step": 0, "times": 192, "samples": 500}
WIDTHS = range(WIDE["d"], WIDE["d"] + WIDE["times"])
SCATTER = math.sqrt(sum(2 + 6 / d for d in WIDTHS) / len(WIDTHS) / WIDE["samples"])
NARROW_SCATTER = math.sqrt((2 + 6) / NARROW["samples"])


def measured_often(answer):
    """How far measurements scatter, as a share of their mean; of `times` widths from `d` on."""

    def scatter(d, step, times, samples, scaled):
        widths = [d + step * place for place in range(times)]
        found = [float(answer(d, samples, scaled)) / (1 if scaled else d) for d in widths]
        found = torch.tensor(found, dtype=torch.float64)
        return (found.std() / found.mean()).item()

    return scatter


@functools.lru_cache(2)  # several checks ask the same of an answer
def noise_of(answer, scaled):
    """How far measurements of several widths scatter, and those of one width."""
    return [answer(inputs | {"scaled": scaled}, adapt=measured_often) for inputs in (WIDE, NARROW)]


def is_measured(answer, scaled):
    """A Failure unless results differ from each other as measurements do."""
    if same_for_any_samples(answer, scaled):
        raise Failure(
            "10 samples and 1,000 samples give exactly the same variance: do you "
            "measure it, and do you use `samples`?"
        )
    wide, narrow = noise_of(answer, scaled)
    # For one width, a generator of one's own may draw the same again, and for others the same in
    # another order. The limits are five standard errors or more away from what is right.
    again = abs(narrow) < 1e-9
    low, high = (0.2, 3) if again else (0.5, 1.5)
    if not (low < wide / SCATTER < high and (again or narrow / NARROW_SCATTER > 0.7)):
        raise Failure(
            f"Measurements of {WIDE['samples']} samples differ from each other by about "
            f"{SCATTER:.0%}, as the vectors are drawn by chance; yours by {wide:.0%}. Is it the "
            "variance, and is it measured each time from new vectors?"
        )


def variance_traits(answer):
    inputs = variance_inputs(4, False, 100)
    return {
        "differs widely from seed to seed": differs_between_seeds(answer) > 0.25,
        "same for any number of samples": same_for_any_samples(answer),
        "same for any number of samples, scaled": same_for_any_samples(answer, True),
        "same for any random numbers": answer(inputs, seed=1) == answer(inputs, seed=2),
        "exactly the formula": answer(inputs) == inputs["d"],
        "resets the random state": answer.resets_random_state(inputs),
    }


def variance_small(rng):
    for d in (1, 2, 4, 16, 50):
        for scaled in (False, True):
            yield variance_inputs(d, scaled)


def is_near(answer, inputs, expected, tolerance=SAMPLING_ERROR, **options):
    got = answer(inputs, **options)
    if not abs(got / expected - 1) <= tolerance:  # NaN fails too
        kind = "scaled" if inputs["scaled"] else "not scaled"
        raise Failure(
            f"For d = {inputs['d']}, {kind}, your variance is {got:.4g}; about {expected:.4g} is "
            "expected.",
            inputs,
            torch.tensor(float(expected)),
            torch.tensor(got),
            whole=kind,
        )


task = Task(
    reference.score_variance,
    number=3,
    returns=float,
    difficulty=2,
    minutes=15,
    section="why-scale",
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
def unscaled_scores_vary_by_the_width_in_as_many_samples_as_asked(answer):
    for d in (9, 16, 25):
        is_near(answer, variance_inputs(d, False), d)
    is_measured(answer, False)


@task.check(1)
def scaled_scores_vary_by_one_in_as_many_samples_as_asked(answer):
    for d in (9, 16, 25):
        is_near(answer, variance_inputs(d, True), 1)
    is_measured(answer, True)


@task.check(1)
def every_sample_is_drawn_anew(answer):
    with following(lambda: unscaled_scores_vary_by_the_width_in_as_many_samples_as_asked(answer)):
        for seed in range(6):  # one shared query would give |q|², which is all over the place
            is_near(answer, variance_inputs(2, False), 2, tolerance=0.16, seed=seed)
        is_measured(answer, False)


@task.check(1)
def the_global_random_state_is_not_reset(answer):
    inputs = variance_inputs(4, False, samples=100)
    answer(inputs)
    if answer.resets_random_state(inputs):
        raise Failure(
            "After your answer, the global random generator is always in the same state: a "
            "`manual_seed` inside a function makes all later draws of the program repeat.",
            inputs,
        )


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Variance:
    def before(self):
        pass

    def many(samples):
        return samples

    def vectors(samples, d):
        return torch.randn(samples, d)

    def draw(self, samples, d):
        return self.vectors(samples, d), self.vectors(samples, d)

    def compare(query, key):
        return (query * key).sum(-1)

    def scales(scaled):
        return scaled

    def scale(scores, d):
        return scores / math.sqrt(d)

    def spread(scores, d):
        return scores.var()

    def number(spread, d, scaled):
        return spread.item()

    def __call__(self, d, samples, scaled):
        self.before()
        scores = self.compare(*self.draw(self.many(samples), d))
        if self.scales(scaled):
            scores = self.scale(scores, d)
        return self.number(self.spread(scores, d), d, scaled)


# --- faults: vectors ----------------------------------------------------------------------------


def uniform(low, high):
    return lambda samples, d: torch.empty(samples, d).uniform_(low, high)


def one_query(self, samples, d):
    return self.vectors(1, d), self.vectors(samples, d)


def one_key(self, samples, d):
    return self.vectors(samples, d), self.vectors(1, d)


def same_vector(self, samples, d):
    query = self.vectors(samples, d)
    return query, query


task.fault("V-UNIFORM", vectors=uniform(0, 1))
task.fault("V-UNIFORM-CENTERED", vectors=uniform(-1, 1))
task.fault("V-ONE-VECTOR", draw=same_vector)
task.fault("V-ONE-QUERY", draw=(one_query, one_key))
task.fault(
    "V-NOT-SUMMED",
    compare=torch.mul,
    spread=(..., lambda scores, d: scores.var(-1).mean()),
)
task.fault(
    "V-SUMMED-OVER-SAMPLES",
    compare=lambda query, key: (query * key).sum(0),
    spread=(..., lambda scores, d: scores.var(correction=0)),
)
task.fault("V-MEAN-OF-PRODUCTS", compare=lambda query, key: (query * key).mean(-1))
task.fault(
    "V-IGNORES-SAMPLES",
    many=(lambda samples: 20_000, lambda samples: 10_000, lambda samples: 100_000),
)

# --- faults: the scale --------------------------------------------------------------------------

task.fault("V-IGNORES-SCALED", scales=lambda scaled: False)
task.fault("V-ALWAYS-SCALED", scales=lambda scaled: True)
task.fault("V-INVERTED", scales=lambda scaled: not scaled)
task.fault("V-SCALE-DK", scale=lambda scores, d: scores / d)
task.fault("V-SCALE-TIMES", scale=lambda scores, d: scores * math.sqrt(d))
task.fault("V-SCALE-SAMPLES", scale=lambda scores, d: scores / math.sqrt(len(scores)))
task.fault(
    "V-SCALES-THE-VARIANCE",
    scale=lambda scores, d: scores,
    number=lambda spread, d, scaled: spread.item() / (math.sqrt(d) if scaled else 1),
)
task.fault("V-SCALE-CONSTANT", scale=lambda scores, d: scores / 8)

# --- faults: what is measured -------------------------------------------------------------------

task.fault("V-STANDARD-DEVIATION", spread=lambda scores, d: scores.std())
task.fault("V-MEAN", spread=lambda scores, d: scores.mean())
task.fault("V-ABSOLUTE-MEAN", spread=lambda scores, d: scores.abs().mean())
task.fault("V-SUM-OF-SQUARES", spread=lambda scores, d: scores.square().sum())
task.fault("V-FORMULA", number=lambda spread, d, scaled: 1.0 if scaled else float(d))
task.fault("V-FORMULA-PARTLY", number=lambda spread, d, scaled: 1.0 if scaled else spread.item())


@task.fault("V-RESEED")
class Reseeds(Variance):
    def before(self):
        torch.default_generator.manual_seed(0)


task.fault("V-TENSOR", number=lambda spread, d, scaled: spread)
