import math

import torch

from attncourse import positions as reference
from attncourse.checks.answer import Failure, compare, has_shape, moves_nothing
from attncourse.checks.task import Task


def bias_inputs(h, q, k):
    return {"num_heads": h, "query_length": q, "key_length": k}


def probes(rng):
    sizes = (
        *((4, 5, 5), (2, 3, 3), (1, 4, 4), (8, 6, 6), (16, 3, 3), (3, 3, 3), (6, 4, 4), (12, 5, 5)),
        *((4, 1, 5), (4, 2, 6), (2, 3, 7), (8, 1, 1), (4, 4, 4), (20, 2, 2)),
    )
    return {f"{h} heads, {q} queries, {k} keys": bias_inputs(h, q, k) for h, q, k in sizes}


def small(rng):
    for h, q, k in ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 1, 2), (1, 3, 3), (2, 1, 3), (3, 2, 2)):
        yield bias_inputs(h, q, k)
    for h in (4, 6, 8):
        yield bias_inputs(h, 1, 2)


task = Task(
    reference.alibi_bias,
    number=3,
    returns=("bias",),
    difficulty=2,
    minutes=20,
    section="alibi",
    probes=probes,
    small=small,
)


@task.check(1)
def a_float32_table_for_every_head(answer, rng):
    for h, q, k in ((4, 5, 5), (2, 3, 7), (8, 1, 1), (6, 4, 4)):
        inputs = bias_inputs(h, q, k)
        has_shape("bias", answer(inputs), "(h q k)", h, q, k, inputs=inputs)


@task.check(1)
def a_word_loses_nothing_at_itself_and_something_everywhere_else(answer, rng):
    for h in (1, 4, 6):
        inputs = bias_inputs(h, 4, 4)
        bias = answer(inputs)
        has_shape("bias", bias, "(h q k)", h, 4, 4, inputs=inputs)
        compare("the bias at distance 0", bias.diagonal(0, 1, 2), torch.zeros(h, 4), inputs)
        others = ~torch.eye(4, dtype=torch.bool)
        if not (bias[:, others] < 0).all():
            raise Failure(
                "A bias is added to a score. To make far keys lose, it is below 0 for every key "
                "that stands elsewhere, before or after.",
                inputs,
                got=bias,
            )


@task.check(1)
def from_key_to_key_the_bias_changes_by_equal_steps(answer, rng):
    inputs = bias_inputs(4, 1, 9)
    bias = answer(inputs)
    has_shape("bias", bias, "(h q k)", 4, 1, 9, inputs=inputs)
    steps = bias.diff(dim=-1)
    compare("the steps from key to key", steps, steps[..., :1].expand_as(steps), inputs)


@task.check(2)
def the_table_is_right_for_powers_of_two(answer, rng):
    for h in (1, 2, 4, 8, 16):
        answer.matches(bias_inputs(h, 3, 3))
    answer.matches(bias_inputs(8, 6, 6))


@task.check(1)
def the_table_is_right_for_other_numbers_of_heads(answer, rng):
    for h in (3, 5, 6, 7, 12, 20):
        answer.matches(bias_inputs(h, 4, 4))


@task.check(1)
def the_table_is_right_with_more_keys_than_queries(answer, rng):
    for h, q, k in ((4, 1, 5), (4, 2, 6), (2, 3, 7)):
        answer.matches(bias_inputs(h, q, k))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, bias_inputs(4, 3, 5))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Bias:
    def power(h):
        return 2 ** int(math.log2(h))

    def heads(p):
        return torch.arange(1, p + 1) / p

    def new_heads(p):
        return torch.arange(1, 2 * p, 2) / (2 * p)

    def slope(head):
        return 2.0 ** (-8 * head)

    def first(self, p):
        return self.slope(self.heads(p))

    def between(self, p):
        return self.slope(self.new_heads(p))

    def slopes(first, between, h):
        return torch.cat([first, between])[:h]

    def places(q, k):
        return torch.arange(k - q, k), torch.arange(k)

    def distance(i, j):
        return (j - i[:, None]).abs()

    def grow(distance, k):
        return distance

    def tables(slopes, distance):
        return slopes[:, None, None] * distance

    def sign(tables):
        return -tables

    def hide(bias, offsets):
        return bias

    def power_of_e(bias):
        return bias

    def axes(bias):
        return bias

    def result(bias):
        return bias

    def __call__(self, num_heads, query_length, key_length):
        p = self.power(num_heads)
        slopes = self.slopes(self.first(p), self.between(p), num_heads)
        i, j = self.places(query_length, key_length)
        distance = self.grow(self.distance(i, j), key_length)
        bias = self.hide(self.sign(self.tables(slopes, distance)), j - i[:, None])
        return self.result(self.axes(self.power_of_e(bias)))


# --- faults: slopes -----------------------------------------------------------------------------

task.fault("C-ALIBI-POWERS-ONLY", power=lambda h: h, new_heads=lambda p: torch.zeros(0))
task.fault(
    "C-ALIBI-ALL-BETWEEN",
    slopes=lambda first, between, h: first if len(first) == h else torch.cat([first, between]),
)
task.fault(
    "C-ALIBI-ROUNDED-UP",
    power=(lambda h: 2 ** math.ceil(math.log2(h)), lambda h: 2 ** round(math.log2(h))),
)
task.fault(
    "C-ALIBI-MORE-OF-THE-SAME", slopes=lambda first, between, h: torch.cat([first, first])[:h]
)
task.fault(
    "C-ALIBI-ONE-AFTER-THE-OTHER",
    new_heads=(
        lambda p: torch.arange(1, p + 1) / (2 * p),
        lambda p: torch.arange(p + 1, 2 * p + 1) / (2 * p),
    ),
)
task.fault(
    "C-ALIBI-SECOND-OF-EACH",
    new_heads=lambda p: torch.arange(2, 2 * p + 1, 2) / (2 * p),
    slopes=lambda first, between, h: torch.cat([first, between.flip(0)])[:h],
)
task.fault(
    "C-ALIBI-SORTED",
    slopes=lambda first, between, h: Bias.slopes(first, between, h).sort(descending=True).values,
)
task.fault(
    "C-ALIBI-FROM-ONE",
    heads=lambda p: torch.arange(p) / p,
    new_heads=(..., lambda p: torch.arange(0, 2 * p, 2) / (2 * p)),
)
task.fault(
    "C-ALIBI-POWERS-OF-E",
    slope=lambda head: torch.exp(-8 * head),
)
task.fault(
    "C-ALIBI-HALVES",
    heads=lambda p: torch.arange(1, p + 1) / 8,
    new_heads=(..., lambda p: torch.arange(1, 2 * p, 2) / 8, lambda p: torch.zeros(0)),
    power=(..., ..., lambda h: h),
)
task.fault(
    "C-ALIBI-ONE-SLOPE",
    slopes=(
        lambda first, between, h: first[:1].expand(h),
        lambda first, between, h: first[-1:].expand(h),
        lambda first, between, h: torch.ones(h),
    ),
)
task.fault(
    "C-ALIBI-REVERSED",
    heads=(lambda p: (torch.arange(1, p + 1) / p).flip(0), ...),
    slopes=(..., lambda first, between, h: Bias.slopes(first, between, h).flip(0)),
)
task.fault(
    "C-ALIBI-EVEN-SLOPES",
    first=(
        lambda p: torch.arange(p, 0, -1) / p,
        lambda p: 1 / torch.arange(1, p + 1),
        lambda p: torch.arange(p, 0, -1) / p,
        lambda p: 1 / torch.arange(1, p + 1),
    ),
    between=(
        ...,
        ...,
        lambda p: torch.arange(2 * p, 0, -2) / (2 * p),
        lambda p: 1 / torch.arange(1, 2 * p, 2),
    ),
)
task.fault(
    "C-ALIBI-EIGHT",
    heads=(lambda p: torch.arange(1, p + 1) / (8 * p), ...),
    slope=(..., lambda head: 2.0**-head),
)

# --- faults: distances --------------------------------------------------------------------------

task.fault(
    "P-TOPLEFT", section="relative-breaks", places=lambda q, k: (torch.arange(q), torch.arange(k))
)
task.fault(
    "C-ALIBI-ONE-OFF",
    places=(
        lambda q, k: (torch.arange(k - q, k) + 1, torch.arange(k)),
        lambda q, k: (torch.arange(k - q, k), torch.arange(k) + 1),
    ),
)
task.fault(
    "C-ALIBI-SHIFT-OTHER-WAY",
    section="relative-breaks",
    places=lambda q, k: (torch.arange(q - k, 2 * q - k), torch.arange(k)),
)
task.fault("C-ALIBI-SIGNED", distance=lambda i, j: i[:, None] - j)
task.fault("C-ALIBI-SIGN-KEPT", distance=lambda i, j: j - i[:, None])
task.fault("C-ALIBI-PAST-ONLY", distance=lambda i, j: (i[:, None] - j).clamp(min=0))
task.fault(
    "C-ALIBI-KEYS-ONLY",
    distance=(
        lambda i, j: -j.expand(len(i), -1),
        lambda i, j: j.max() - j.expand(len(i), -1),
    ),
)
task.fault(
    "C-ALIBI-SHARE",
    grow=(
        lambda distance, k: distance / k,
        lambda distance, k: distance / len(distance),
        lambda distance, k: distance / distance.max().clamp(min=1),
        lambda distance, k: distance / max(1, k - 1),
    ),
)
task.fault(
    "C-ALIBI-CURVED",
    grow=(
        lambda distance, k: distance.square(),
        lambda distance, k: distance.float().sqrt(),
        lambda distance, k: distance.float().log1p(),
    ),
)
task.fault("C-ALIBI-FROM-ZERO-UP", grow=lambda distance, k: distance + 1)
task.fault(
    "C-ALIBI-NEIGHBORS-FREE",
    distance=(
        lambda i, j: (Bias.distance(i, j) - 1).clamp(min=0),
        lambda i, j: Bias.distance(i, j) - 1,
    ),
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault("C-ALIBI-POSITIVE", sign=lambda tables: tables)
task.fault(
    "M-ALWAYS-CAUSAL",
    hide=(
        lambda bias, offsets: bias.masked_fill(offsets > 0, -torch.inf),
        lambda bias, offsets: bias.masked_fill(offsets > 0, torch.finfo(torch.float32).min),
        lambda bias, offsets: bias.masked_fill(offsets > 0, -1e9),
        lambda bias, offsets: torch.where(offsets > 0, 1e9 * bias / offsets, bias),
    ),
)
task.fault("C-ALIBI-FACTOR", power_of_e=torch.exp)
task.fault("C-BATCH-AXES", axes=lambda bias: bias[None])
task.fault("C-HEADS-LAST", axes=lambda bias: bias.movedim(0, -1))
task.fault("C-TURNED", axes=lambda bias: bias.mT)
task.fault("C-FLOAT64-TABLE", result=lambda bias: bias.double())
