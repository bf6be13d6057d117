import math

import torch
import torch.nn.functional as F

from attncourse import long_sequences as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def linear_inputs(rng, *batch, n=5, d=4, v=3, make=normal, **options):
    return {
        "query": make(rng, *batch, n, d, **options),
        "key": make(rng, *batch, n, d, **options),
        "value": make(rng, *batch, n, v, **options),
    }


def probes(rng):
    return {
        "a text": linear_inputs(rng, 2, n=6),
        "heads": linear_inputs(rng, 2, 3, n=5, d=4, v=6),
        "one word": linear_inputs(rng, 2, n=1),
        "one text, no batch": linear_inputs(rng, n=7, d=2),
        "all equal": linear_inputs(rng, 4, 4, n=4, d=4, v=4),
        "wide": linear_inputs(rng, 1, n=4, d=16, v=2),
        "large numbers": {
            name: 4 * tensor for name, tensor in linear_inputs(rng, 2, n=6, d=3).items()
        },
        "below zero": linear_inputs(rng, 2, n=5) | {"key": -normal(rng, 2, 5, 4).abs() - 0.5},
        "far below zero": far_below(rng, 2, n=5),
        "double": linear_inputs(rng, 2, 2, n=6, dtype=torch.float64),
    }


def far_below(rng, *batch, n):
    """Queries and keys of which all features are near 0."""
    inputs = linear_inputs(rng, *batch, n=n)
    return inputs | {name: -5 - inputs[name].abs() for name in ("query", "key")}


def small(rng):
    for n, d in ((1, 1), (2, 1), (3, 1), (2, 2), (2, 4), (3, 4)):
        for _ in range(2):
            yield linear_inputs(rng, n=n, d=d, v=1, make=integers)
    yield linear_inputs(rng, 1, n=3, d=2, v=2, make=integers)
    yield linear_inputs(rng, 2, 2, n=4, d=3, v=2)


def maps(rng):
    return [("five words", linear_inputs(rng, 1, n=5, d=3, v=2), ("query", "key", "value"))]


task = Task(
    reference.linear_attention,
    number=4,
    returns=("output",),
    difficulty=2,
    minutes=20,
    section="linear-attention",
    probes=probes,
    differentiated=("a text", "below zero"),
    small=small,
    maps=maps,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_place_gets_one_output_as_wide_as_a_value(answer, rng):
    for batch, n, v in (((2,), 6, 3), ((2, 3), 5, 6), ((), 4, 2)):
        inputs = linear_inputs(rng, *batch, n=n, v=v)
        output = answer(inputs)
        if output.shape != (*batch, n, v):
            raise Failure(
                f"output has shape {shape_of(output)}; expected "
                f"{shape_of(torch.empty(*batch, n, v))}.",
                inputs,
            )


@task.check(1)
def the_first_word_gets_its_own_value(answer, rng):
    inputs = linear_inputs(rng, 2, 3, n=5)
    compare("output of the first word", answer(inputs)[..., 0, :], inputs["value"][..., 0, :])
    answer.matches(linear_inputs(rng, 2, n=1))
    zeros = inputs | {"query": torch.zeros_like(inputs["query"])}
    compare("output of the first word", answer(zeros)[..., 0, :], zeros["value"][..., 0, :], zeros)


@task.check(1)
def every_output_is_an_average_of_values(answer, rng):
    inputs = linear_inputs(rng, 2, n=7, d=3)
    ones = inputs | {"value": torch.ones(2, 7, 2)}
    for each in (ones, ones | {"query": torch.zeros(2, 7, 3)}):
        compare("output where all values are 1", answer(each), torch.ones(2, 7, 2), each)
    apart = inputs | {"value": torch.eye(7).expand(2, 7, 7).clone()}  # then weights come out
    output, value, weights = answer(inputs), inputs["value"], answer(apart)
    if weights.shape != (2, 7, 7) or (weights < -1e-4).any():
        raise Failure("With one value 1 and the others 0, some outputs are negative.", apart)
    compare("output, beside the average that other values show", output, weights @ value, inputs)
    least, most = (x[:, None] for x in value.aminmax(dim=1))
    if (output < least - 1e-4).any() or (output > most + 1e-4).any():
        raise Failure("Some outputs are below all values, or above all of them.", inputs)


@task.check(2)
def nobody_sees_a_later_word(answer, rng):
    inputs = linear_inputs(rng, 2, n=6)
    whole = answer(inputs)
    for n in (1, 3, 5):
        part = {name: tensor[..., :n, :] for name, tensor in inputs.items()}
        # A NaN in the same place tells nothing of later words.
        both = whole[..., :n, :].nan_to_num(), answer(part).nan_to_num()
        compare(f"output of the first {n} words of 6", *both, inputs)
    answer.holds_of_the_right(inputs)


@task.check(3)
def it_matches_on_any_text(answer, rng):
    for batch, n, d in (((2,), 6, 4), ((2, 3), 5, 4), ((), 7, 2), ((1,), 4, 16)):
        answer.matches(linear_inputs(rng, *batch, n=n, d=d))
    answer.matches(linear_inputs(rng, 4, 4, n=4, d=4, v=4))
    answer.matches(linear_inputs(rng, 2, 2, n=6, dtype=torch.float64))
    below = {"key": -normal(rng, 2, 5, 4).abs() - 0.5}
    answer.matches(linear_inputs(rng, 2, n=5) | below)
    answer.matches({name: 4 * x for name, x in linear_inputs(rng, 2, n=6).items()})


@task.check(1)
def small_weights_are_shared_out_as_large_ones(answer, rng):
    answer.matches(far_below(rng, 2, n=5))
    answer.matches(far_below(rng, 1, n=3))


@task.check(1, "the gradients of query, key and value are right")
def the_gradients_of_query_key_and_value_are_right(answer, rng):
    answer.gradients_match(linear_inputs(rng, 2, n=6))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, linear_inputs(rng, 2, 3, n=5))


# --- the reference in steps ---------------------------------------------------------------------


def elu_plus_one(x):
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


@task.steps
class Linear:
    def of_query(x):
        return elu_plus_one(x)

    def of_key(x):
        return elu_plus_one(x)

    def of_value(x):
        return x

    def scale(query, key):
        return query, key

    def seen(scores):
        return torch.ones_like(scores, dtype=torch.bool).tril()

    def hide(scores, seen):
        return scores.masked_fill(~seen, 0)

    def total(scores, every, features):
        return scores.sum(-1, keepdim=True)

    def share(scores, total):
        return scores / total

    def average(weights, value, key):
        return weights @ value

    def __call__(self, query, key, value):
        scaled = self.scale(query, key)
        features = self.of_key(scaled[1])
        every = self.of_query(scaled[0]) @ features.mT
        scores = self.hide(every, self.seen(every))
        weights = self.share(scores, self.total(scores, every, features))
        return self.average(weights, self.of_value(value), key)


def both(function):
    return {"of_query": function, "of_key": function}


def above_zero(x):
    return torch.relu(x) + 1e-6


def divided(power, *which):
    """The query, the key or both (0, 1) over a power of d."""

    def scale(*given):
        return [x / x.shape[-1] ** power if n in which else x for n, x in enumerate(given)]

    return scale


def tanh_plus_one(x):
    return x.tanh() + 1


# --- faults: φ ----------------------------------------------------------------------------------

task.fault("L-NO-FEATURES", **both(as_is))
task.fault("L-ELU", **both(torch.nn.functional.elu))
task.fault("L-ELU-OF-ONE-MORE", **both(lambda x: torch.nn.functional.elu(x + 1)))
task.fault(
    "L-RELU",
    of_query=(torch.relu, torch.relu, above_zero, ..., torch.relu),
    of_key=(torch.relu, above_zero, above_zero, torch.relu, torch.relu),
    total=(..., ..., ..., ..., lambda scores, every, features: scores.sum(-1, keepdim=True) + 1e-6),
)
task.fault("L-RELU-PLUS-ONE", **both(lambda x: torch.relu(x) + 1))
task.fault("L-EXP", **both(torch.exp))
OTHERS = torch.nn.functional.softplus, torch.sigmoid, torch.square, torch.abs, tanh_plus_one
task.fault("L-OTHER-FEATURES", of_query=OTHERS, of_key=OTHERS)
task.fault(
    "L-SOFTMAX-EACH",
    of_query=lambda x: x.softmax(-1),
    of_key=(lambda x: x.softmax(-1), lambda x: x.softmax(-2), elu_plus_one),
)
task.fault(
    "L-OF-SCORES",
    **both(as_is),
    hide=(
        lambda scores, seen: elu_plus_one(scores).masked_fill(~seen, 0),
        lambda scores, seen: (F.elu(scores) + 1).masked_fill(~seen, 0),  # 0 far below
    ),
)
task.fault("L-KEYS-ONLY", of_query=as_is)
task.fault("L-QUERIES-ONLY", of_key=as_is)
task.fault("L-FEATURED-VALUES", of_value=lambda self, x: self.of_key(x))
task.fault(
    "L-SCALED",
    scale=(
        divided(1 / 2, 0),
        divided(1, 0),
        divided(1 / 4, 0, 1),
        divided(1 / 2, 1),
        divided(1 / 2, 0, 1),
    ),
)

# --- faults: who sees whom ----------------------------------------------------------------------

task.fault("L-LINEAR-CAUSAL", seen=lambda scores: torch.ones_like(scores, dtype=torch.bool))
task.fault("L-TOTAL-OF-ALL", total=lambda scores, every, features: every.sum(-1, keepdim=True))


def first_row_kept(scores):
    """Row 0 has nothing before it, so there the word itself stays."""
    seen = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    seen[..., 0, 0] = True
    return seen


task.fault(
    "L-NOT-ITSELF",
    seen=(
        *(lambda scores: torch.ones_like(scores, dtype=torch.bool).tril(-1),) * 4,
        first_row_kept,
    ),
    hide=(
        ...,
        lambda scores, seen: scores * seen + 1e-9,
        lambda scores, seen: scores * seen + 1e-6,
        ...,
        ...,
    ),
    total=(
        ...,
        ...,
        ...,
        lambda scores, every, features: scores.sum(-1, keepdim=True).clamp(min=1e-6),
        ...,
    ),
)
task.fault("L-ONE-AHEAD", seen=lambda scores: torch.ones_like(scores, dtype=torch.bool).tril(1))
task.fault("L-FUTURE-ONLY", seen=lambda scores: torch.ones_like(scores, dtype=torch.bool).triu())
task.fault(
    "L-MINUS-INFINITY",
    hide=(
        lambda scores, seen: scores.masked_fill(~seen, -math.inf),
        lambda scores, seen: scores.masked_fill(~seen, -1e9),
    ),
)

# --- faults: sharing ----------------------------------------------------------------------------

task.fault("L-LINEAR-NORM", share=lambda scores, total: scores)
task.fault("L-MULTIPLIED", share=lambda scores, total: scores * total)
task.fault("L-DIVISOR-DETACHED", share=lambda scores, total: scores / total.detach())


@task.fault("L-FEATURE-BY-FEATURE")
class FeatureByFeature(Linear):
    def __call__(self, query, key, value):
        query, key = self.of_query(query), self.of_key(key)
        table = (key[..., None] * value[..., None, :]).cumsum(-3) / key.cumsum(-2)[..., None]
        return (query[..., None, :] @ table).squeeze(-2)


task.fault(
    "L-SOFTMAX",
    hide=(
        ...,
        lambda scores, seen: scores.masked_fill(~seen, -math.inf),
    ),
    share=lambda scores, total: scores.softmax(-1),
)
task.fault(
    "L-BY-COUNT",
    total=(
        lambda scores, every, features: torch.arange(1, scores.shape[-1] + 1).to(scores)[:, None],
        lambda scores, every, features: scores.shape[-1],
    ),
)
task.fault(
    "L-DIVIDES-BY-SUM",
    total=(
        lambda scores, every, features: features.cumsum(-2).sum(-1, keepdim=True),
        lambda scores, every, features: features.sum((-2, -1), keepdim=True),
    ),
)


def running(of_values, of_weights):
    """Running sums along these axes; rightly -3 and -2, of tables (… n d v) and of keys (… n d)."""

    class Running(Linear):
        def __call__(self, query, key, value):
            query, key = self.scale(query, key)
            query, key, value = self.of_query(query), self.of_key(key), self.of_value(value)
            table = (key[..., :, None] * value[..., None, :]).cumsum(of_values)
            total = (query * key.cumsum(of_weights)).sum(-1, keepdim=True)
            return self.share((query[..., None, :] @ table).squeeze(-2), total)

    return Running


task.fault("L-OTHER-AXIS", forms=[running(-2, -1), running(-3, -1), running(-2, -2)])
task.fault("L-AXIS-1", forms=[running(*each) for each in ((1, 1), (-3, 1), (1, -2))])
task.fault(
    "L-WEIGHT-NOT-ADDED",
    total=lambda scores, every, features: every.diagonal(dim1=-2, dim2=-1)[..., None],
)
task.fault("L-COLUMNS", total=lambda scores, every, features: scores.sum(-2, keepdim=True))
task.fault(
    "L-ROOT-OF-SQUARES",
    total=lambda scores, every, features: scores.square().sum(-1, keepdim=True).sqrt(),
)
task.fault(
    "L-EPSILON",
    total=(
        lambda scores, every, features: scores.sum(-1, keepdim=True) + 1e-6,
        lambda scores, every, features: scores.sum(-1, keepdim=True) + 1e-5,
        lambda scores, every, features: scores.sum(-1, keepdim=True) + 1e-3,
    ),
)
task.fault("D-WEIGHTS-TOO", average=lambda weights, value, key: (weights @ value, weights))
task.fault("D-KEY-AS-VALUE", average=lambda weights, value, key: weights @ key)
task.fault("D-DETACHED-WEIGHTS", share=lambda scores, total: (scores / total).detach())


@task.fault("C-FLOAT32")
class InFloat32(Linear):
    def __call__(self, query, key, value):
        return super().__call__(query.float(), key.float(), value.float())
