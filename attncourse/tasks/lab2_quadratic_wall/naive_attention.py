"""naive_attention."""

import math

import torch

from attncourse.checks.answer import Failure, Unanswered, compare, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.lab.meters import count


def qkv(rng, b, h, n, d, make=normal, **options):
    return {name: make(rng, b, h, n, d, **options) for name in ("q", "k", "v")}


def attention_probes(rng):
    return {
        "ordinary": qkv(rng, 2, 3, 5, 4),
        "wide": qkv(rng, 1, 2, 3, 7),
        "square": qkv(rng, 4, 4, 4, 4),
        "one position": qkv(rng, 2, 2, 1, 3),
        "double": qkv(rng, 2, 1, 6, 5, dtype=torch.float64),
    }


def attention_small(rng):
    yield qkv(rng, 1, 1, 2, 1, make=integers)
    yield qkv(rng, 1, 1, 2, 2, make=integers)
    yield qkv(rng, 1, 2, 2, 2, make=integers)
    yield qkv(rng, 1, 2, 3, 4)


def metered(attention):
    """The answer under the meter: the bytes of its biggest tensor."""

    def function(q, k, v):
        output = []
        counts = count(lambda: output.append(attention(q, k, v)))
        return None if output[0] is None else {"biggest": counts.biggest_bytes}

    return function


METERED = {"b": 2, "h": 3, "d": 4}


def biggest(answer, n, rng=None):
    """Numbers in the biggest tensor that an answer makes for n positions."""
    rng = rng or torch.Generator().manual_seed(n)
    inputs = qkv(rng, METERED["b"], METERED["h"], n, METERED["d"])
    seen = answer.observe(inputs, adapt=metered)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        raise Failure(f"Your answer {seen.error}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned["biggest"] / 4


def attention_traits(answer):
    small, large = biggest(answer, 64), max(biggest(answer, 256), 1)
    scores = METERED["b"] * METERED["h"] * 256**2
    return {
        "its memory grows like n": math.log(large / max(small, 1), 4) < 1.5,
        "one head at a time": math.isclose(large, 256**2, rel_tol=0.05),
        "one sentence at a time": math.isclose(large, METERED["h"] * 256**2, rel_tol=0.05),
        "more than the scores": large > 1.05 * scores,
        "less than the scores": large < 0.95 * scores,
    }


task = Task(
    reference.naive_attention,
    number=1,
    returns=("output",),
    difficulty=1,
    minutes=8,
    section="lab2-naive",
    hints=(
        "Three tables: scores, weights, output. Write one line for each, for all heads and "
        "sentences at once.",
        "`@` multiplies the last two axes and leaves the ones before them alone; `.mT` swaps "
        "the last two. Scores have the axes (b h n n).",
        "scores = q times k transposed, over the root of d; weights = softmax over the last "
        "axis; output = weights times v.",
    ),
    probes=attention_probes,
    small=attention_small,
    differentiated=("ordinary",),
    forbidden=FUSED_ATTENTION,
    traits=attention_traits,
)


@task.check(1)
def each_position_gets_one_vector(answer, rng):
    for b, h, n, d in ((2, 3, 5, 4), (1, 2, 4, 7), (2, 2, 1, 3)):
        inputs = qkv(rng, b, h, n, d)
        output = answer(inputs)
        if output.shape != (b, h, n, d):
            raise Failure(
                f"The output has shape {shape_of(output)}; expected (b h n d) = ({b} {h} {n} {d}).",
                inputs,
            )


@task.check(2)
def the_values_are_those_of_the_formula(answer, rng):
    for sizes in ((2, 3, 5, 4), (1, 2, 3, 7), (3, 3, 3, 3), (2, 2, 1, 3)):
        answer.matches(qkv(rng, *sizes))
    inputs = qkv(rng, 2, 2, 6, 5, dtype=torch.float64)
    compare("output", answer(inputs), answer.expected(inputs), inputs, tolerance=1e-9)


@task.check(2)
def all_scores_exist_at_once(answer, rng):
    for n in (64, 128):
        found = biggest(answer, n, rng)
        scores = METERED["b"] * METERED["h"] * n * n
        if not math.isclose(found, scores, rel_tol=0.05):
            raise Failure(
                f"For b = {METERED['b']}, h = {METERED['h']}, n = {n} the scores are "
                f"b·h·n·n = {scores:,} numbers. The biggest tensor that your answer makes has "
                f"{found:,.0f} (counted in float32). Naive attention makes the whole table of "
                "scores, and nothing bigger."
            )


@task.check(2)
def the_biggest_tensor_grows_like_n_squared(answer, rng):
    sizes = (64, 128, 256)
    found = [biggest(answer, n, rng) for n in sizes]
    exponent = math.log(max(found[-1], 1) / max(found[0], 1), sizes[-1] / sizes[0])
    if abs(exponent - 2) > 0.05:
        raise Failure(
            f"From n = {sizes[0]} to n = {sizes[-1]} your biggest tensor grows like "
            f"n^{exponent:.2f}; in naive attention it grows like n^2.00."
        )


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, qkv(rng, 2, 2, 4, 3))


# --- faults ---------------------------------------------------------------------------------------


def sixteen_queries_at_a_time(q, k, v):
    blocks = [
        torch.softmax(block @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v
        for block in q.split(16, dim=-2)
    ]
    return torch.cat(blocks, dim=-2)


@task.fault(
    "L2-ROW-BY-ROW",
    thinks="Naive means a loop: one query after the other.",
    why="The values are right, but only one row of scores exists at a time, so memory grows like "
    "n and there is no wall to find. Here, naive means that the whole table is made.",
    forms=(sixteen_queries_at_a_time,),
)
def row_by_row(q, k, v):
    rows = []
    for i in range(q.shape[-2]):
        scores = q[:, :, i : i + 1] @ k.mT / math.sqrt(q.shape[-1])
        rows.append(torch.softmax(scores, dim=-1) @ v)
    return torch.cat(rows, dim=-2)


@task.fault(
    "L2-HEAD-BY-HEAD",
    thinks="Each head does its own attention, so there is a loop over the heads.",
    why="The values are right, but the table of one head is freed before the next is made: the "
    "peak no longer grows with h. A GPU works on all heads at once; let one product do that.",
)
def head_by_head(q, k, v):
    outputs = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h] @ k[b, h].mT / math.sqrt(q.shape[-1])
            outputs.append(torch.softmax(scores, dim=-1) @ v[b, h])
    return torch.stack(outputs).reshape(q.shape)


@task.fault(
    "L2-SENTENCE-BY-SENTENCE",
    thinks="The sentences of a batch have nothing to do with each other, so I loop over them.",
    why="The values are right, but the scores of one sentence are freed before those of the next "
    "are made, so the peak does not grow with b. One product takes the whole batch.",
)
def sentence_by_sentence(q, k, v):
    outputs = []
    for query, key, value in zip(q, k, v, strict=True):
        scores = query @ key.mT / math.sqrt(q.shape[-1])
        outputs.append(torch.softmax(scores, dim=-1) @ value)
    return torch.stack(outputs)


@task.fault(
    "L2-BROADCAST-PRODUCT",
    thinks="Multiply every query with every key, elementwise, and sum over d afterward.",
    why="The values are right, but all products exist before the sum: d times as many numbers as "
    "there are scores. A matrix product adds them up as it goes.",
)
def all_products_first(q, k, v):
    products = q[:, :, :, None, :] * k[:, :, None, :, :]
    scores = products.sum(-1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


@task.fault(
    "L2-NO-SCALE",
    thinks="Attention is softmax(qkᵀ)v.",
    why="The scores are not divided, so they spread more the wider the heads are. Time and memory "
    "look the same; the result is another one. Compare with the fused call before you time it.",
)
def without_the_root(q, k, v):
    return torch.softmax(q @ k.mT, dim=-1) @ v


@task.fault(
    "L2-SCALE-BY-N",
    thinks="The scores are divided by the root of the last axis of the table, n.",
    why="What is summed in a score is d products, so the root is that of d, the width of a head. "
    "With n the weights would become more even in every longer text.",
)
def divided_by_root_n(q, k, v):
    scores = q @ k.mT
    return torch.softmax(scores / math.sqrt(scores.shape[-1]), dim=-1) @ v


@task.fault(
    "L2-SOFTMAX-AXIS",
    thinks="Softmax over axis −2: every key shares out its weight among the queries.",
    why="It is the query that shares out its attention among the keys: each row sums to one, and a "
    "row runs along the last axis.",
)
def softmax_over_queries(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-2) @ v


@task.fault(
    "L2-HEADS-MIXED",
    thinks="The axes are (b n h d), as in many libraries, so heads and positions are swapped.",
    why="Here they are (b h n d). Swapped, each position compares its heads with each other: the "
    "shape is right, no position hears another, and there is no n × n.",
)
def heads_and_positions_swapped(q, k, v):
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)
