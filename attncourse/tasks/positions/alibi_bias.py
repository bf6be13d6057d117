"""Scores that fall with the distance: task 3 of chapter 8."""

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
    hints=(
        "For one head the table is a ridge: 0 where key and query stand at the same place, and "
        "lower the farther away. How steep is it in head 1 of 8, how steep in head 8?",
        "Distances (q k) first, with queries that end where the keys end. Then slopes (h 1 1): "
        "with h a power of two, head 1 has 2^(−8/h), and each next head that much again. If h is "
        "no power of two, begin with the slopes for the power below it.",
        "distance = |arange(k) − arange(k − q, k)[:, None]|; p = the largest power of two ≤ h; "
        "slopes = 2^(−8·(1…p)/p), then 2^(−4·(1, 3, 5, …)/p) for the h − p heads that are left; "
        "bias = −slopes[:, None, None] · distance.",
    ),
    probes=probes,
    small=small,
)


@task.check(1)
def a_table_for_every_head(answer, rng):
    for h, q, k in ((4, 5, 5), (2, 3, 7), (8, 1, 1)):
        inputs = bias_inputs(h, q, k)
        has_shape("bias", answer(inputs), "(h q k)", h, q, k, inputs=inputs)


@task.check(1)
def a_word_beside_itself_loses_nothing_and_all_others_lose(answer, rng):
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
def twice_as_far_costs_twice_as_much(answer, rng):
    inputs = bias_inputs(4, 1, 9)
    bias = answer(inputs)
    has_shape("bias", bias, "(h q k)", 4, 1, 9, inputs=inputs)
    steps = bias.diff(dim=-1)
    compare("the steps from key to key", steps, steps[..., :1].expand_as(steps), inputs)


@task.check(2)
def slopes_match_for_powers_of_two(answer, rng):
    for h in (1, 2, 4, 8, 16):
        answer.matches(bias_inputs(h, 3, 3))
    answer.matches(bias_inputs(8, 6, 6))


@task.check(1)
def other_numbers_of_heads_take_slopes_between(answer, rng):
    for h in (3, 5, 6, 7, 12, 20):
        answer.matches(bias_inputs(h, 2, 2))


@task.check(1)
def the_last_query_stands_at_the_last_key(answer, rng):
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

    def first(p, h):
        return 2.0 ** (-8 * torch.arange(1, p + 1) / p)

    def between(p):
        return 2.0 ** (-4 * torch.arange(1, 2 * p, 2) / p)

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

    def result(tables, offsets):
        return -tables

    def __call__(self, num_heads, query_length, key_length):
        p = self.power(num_heads)
        slopes = self.slopes(self.first(p, num_heads), self.between(p), num_heads)
        i, j = self.places(query_length, key_length)
        distance = self.grow(self.distance(i, j), key_length)
        return self.result(self.tables(slopes, distance), j - i[:, None])


# --- faults: slopes -----------------------------------------------------------------------------

task.fault(
    "C-ALIBI-POWERS-ONLY",
    "The formula 2^(−8i/h) holds for every number of heads.",
    "It gives reasonable slopes, but other ones than models of 6 or 12 heads were trained with: "
    "they take those for the power of two below, and then every second of twice that power.",
    power=lambda h: h,
    between=lambda p: torch.zeros(0),
)
task.fault(
    "C-ALIBI-ROUNDED-UP",
    "For 6 heads I take the first 6 slopes of 8.",
    "Those are all steep or all middling, and the flattest, which look far back, are missing. The "
    "4 slopes of 4 heads come first, then 2 that lie between.",
    power=(lambda h: 2 ** math.ceil(math.log2(h)), lambda h: 2 ** round(math.log2(h))),
)
task.fault(
    "C-ALIBI-MORE-OF-THE-SAME",
    "Heads beyond the power of two begin again with the first slope.",
    "Two heads with one slope see alike. The further heads take slopes between those that are "
    "there: of twice the power the first, third, fifth. (The second and fourth are there already.)",
    slopes=lambda first, between, h: torch.cat([first, first])[:h],
)
task.fault(
    "C-ALIBI-ONE-AFTER-THE-OTHER",
    "The further heads take the first slopes of twice the power.",
    "Every second of them: the first, third, fifth. Those between are the slopes that are there "
    "already, and two heads with one slope see alike.",
    between=lambda p: 2.0 ** (-4 * torch.arange(1, p + 1) / p),
)
task.fault(
    "C-ALIBI-SECOND-OF-EACH",
    "The further heads take the second, fourth, … slope of twice the power.",
    "Those are the slopes that are there already. Between them lie the first, third, ….",
    between=lambda p: 2.0 ** (-4 * torch.arange(2, 2 * p + 1, 2) / p),
    slopes=lambda first, between, h: torch.cat([first, between.flip(0)])[:h],
)
task.fault(
    "C-ALIBI-SORTED",
    "Heads are sorted by slope.",
    "The slopes are the right ones. But those between come after the others, so that a trained "
    "model finds its heads in the order it learned.",
    slopes=lambda first, between, h: Bias.slopes(first, between, h).sort(descending=True).values,
)
task.fault(
    "C-ALIBI-FROM-ONE",
    "Head 1 has slope 1.",
    "Exponents are counted from 1: head 1 of h has 2^(−8/h) and the last has 2^(−8). Counted from "
    "0, every head is too steep, and the flattest slope is missing.",
    first=lambda p, h: 2.0 ** (-8 * torch.arange(p) / p),
    between=(..., lambda p: 2.0 ** (-4 * torch.arange(0, 2 * p, 2) / p)),
)
task.fault(
    "C-ALIBI-POWERS-OF-E",
    "Slopes are powers of e.",
    "Powers of 2: the last of them is 2^(−8), or 1/256. (The e comes later, in the softmax.)",
    first=lambda p, h: torch.exp(-8 * torch.arange(1, p + 1) / p),
    between=lambda p: torch.exp(-4 * torch.arange(1, 2 * p, 2) / p),
)
task.fault(
    "C-ALIBI-HALVES",
    "Each head is half as steep as the one before.",
    "With 8 heads it is. In general the slopes of all heads together run down to 2^(−8), so the "
    "factor depends on their number: 2^(−8/h).",
    first=lambda p, h: 2.0 ** -torch.arange(1, p + 1),
)
task.fault(
    "C-ALIBI-ONE-SLOPE",
    "All heads fall alike.",
    "Then no head can look far. Each has its own slope: some see only neighbors, the flattest "
    "hardly notice a distance.",
    slopes=(
        lambda first, between, h: first[:1].expand(h),
        lambda first, between, h: first[-1:].expand(h),
        lambda first, between, h: torch.ones(h),
    ),
)
task.fault(
    "C-ALIBI-REVERSED",
    "The flattest head comes first.",
    "The slopes are right, and their order is the other one: head 1 is the steepest.",
    first=lambda p, h: (2.0 ** (-8 * torch.arange(1, p + 1) / p)).flip(0),
)
task.fault(
    "C-ALIBI-EVEN-SLOPES",
    "Slopes go down by equal steps.",
    "By equal factors. In equal steps nearly all heads are steep; with factors half of them look "
    "far.",
    first=(
        lambda p, h: torch.arange(p, 0, -1) / p,
        lambda p, h: 1 / torch.arange(1, p + 1),
    ),
)
task.fault(
    "C-ALIBI-EIGHT",
    "The exponent of head i is −i/h.",
    "Without the 8 the flattest head still halves a weight every two words or so. With it slopes "
    "go down to 2^(−8).",
    first=lambda p, h: 2.0 ** (-torch.arange(1, p + 1) / p),
)

# --- faults: distances --------------------------------------------------------------------------

task.fault(
    "P-TOPLEFT",
    "Queries count from 0, as keys do.",
    "With more keys than queries, the queries are the last words. A single query, the newest word, "
    "would find the oldest key nearest.",
    section="relative-breaks",
    places=lambda q, k: (torch.arange(q), torch.arange(k)),
)
task.fault(
    "C-ALIBI-SIGNED",
    "The bias is slope times j − i.",
    "For the past that is right. For keys after the query it is above 0: an encoder would be drawn "
    "to the end of the text. Distance has no sign.",
    distance=lambda i, j: i[:, None] - j,
)
task.fault(
    "C-ALIBI-PAST-ONLY",
    "What comes after the query has bias 0.",
    "A decoder never sees it. But an encoder does, and then all later words would seem to stand "
    "right here.",
    distance=lambda i, j: (i[:, None] - j).clamp(min=0),
)
task.fault(
    "C-ALIBI-KEYS-ONLY",
    "The bias is slope times the key's place, for softmax takes no notice of a constant in a row.",
    "Under a causal mask that gives the same weights, and BLOOM's code does it. But these are "
    "other numbers than asked for, and without the mask other weights, too.",
    distance=(
        lambda i, j: -j.expand(len(i), -1),
        lambda i, j: j.max() - j.expand(len(i), -1),
    ),
)
task.fault(
    "C-ALIBI-SHARE",
    "The distance is a share of the text.",
    "Then the same two words lose less in a longer text, and the scheme no longer fits what was "
    "learned on short ones. A distance is a number of words.",
    grow=lambda distance, k: distance / k,
)
task.fault(
    "C-ALIBI-CURVED",
    "Far words lose ever more, or ever less.",
    "The bias is a straight line: each further word costs the same. (After the softmax that is a "
    "constant *factor*.)",
    grow=(
        lambda distance, k: distance.square(),
        lambda distance, k: distance.float().sqrt(),
        lambda distance, k: distance.float().log1p(),
    ),
)
task.fault(
    "C-ALIBI-FROM-ZERO-UP",
    "The word itself is at distance 1.",
    "A constant in all entries changes no weight, but these are other numbers: at its own place a "
    "word loses nothing.",
    grow=lambda distance, k: distance + 1,
)

# --- faults: what comes back --------------------------------------------------------------------

task.fault(
    "C-ALIBI-POSITIVE",
    "The bias is the slope times the distance.",
    "It is added to the scores: positive, it would favor whatever is far away. What is far has to "
    "lose.",
    result=lambda tables, offsets: tables,
)
task.fault(
    "M-ALWAYS-CAUSAL",
    "The future is hidden in the same table, with −∞.",
    "Many programs do so to save a step. Here the mask hides, and the bias only weighs: an encoder "
    "uses the same function.",
    result=(
        lambda tables, offsets: (-tables).masked_fill(offsets > 0, -torch.inf),
        lambda tables, offsets: (-tables).masked_fill(offsets > 0, torch.finfo(torch.float32).min),
        lambda tables, offsets: (-tables).masked_fill(offsets > 0, -1e9),
        lambda tables, offsets: torch.where(offsets > 0, -1e9 * tables / offsets, -tables),
    ),
)
task.fault(
    "C-ALIBI-FACTOR",
    "Each word farther away multiplies the weight, so I return the factors.",
    "They are what comes out after the softmax's exp. The bias is added before it.",
    result=lambda tables, offsets: (-tables).exp(),
)
task.fault(
    "C-BATCH-AXES",
    "A bias needs an axis for the batch.",
    "It broadcasts over the batch as it is: (h q k). An axis too many meets the wrong one "
    "elsewhere.",
    result=lambda tables, offsets: -tables[None],
)
task.fault(
    "C-HEADS-LAST",
    "Heads are the last axis.",
    "Scores are (b h q k), so the table for head h comes as (h q k). As (q k h) it broadcasts "
    "against other axes, or fails.",
    result=lambda tables, offsets: -tables.movedim(0, -1),
)
task.fault(
    "C-TURNED",
    "A row for each key.",
    "A row belongs to a query: (h q k). With equal lengths nobody notices; with one query and many "
    "kept keys it does not fit.",
    result=lambda tables, offsets: -tables.mT,
)
task.fault(
    "C-FLOAT64-TABLE",
    "More digits can do no harm.",
    "float32 scores plus a float64 bias are float64, and the next layer refuses them.",
    result=lambda tables, offsets: -tables.double(),
)
