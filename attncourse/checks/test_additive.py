"""The checks of chapter 2. Each one's name is the sentence a teacher would say."""

import zlib

import pytest
import torch

from attncourse import additive as reference
from attncourse.checks.common import (
    dead_mask,
    integers,
    made,
    mixed_mask,
    moves_nothing,
    normal,
    parts_of,
    with_weights,
)
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Failure, Task, Unanswered, compare, shape_of

points = pytest.mark.points

# --- inputs of the four scores ------------------------------------------------------------------
# Letters: b sentences, k keys, e width of the query, d width of a key, a alignment width.


def dot_inputs(rng, b=2, k=4, d=5, dtype=torch.float32):
    return {
        "query": normal(rng, b, d, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
    }


def general_inputs(rng, b=2, k=4, e=3, d=5, dtype=torch.float32):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "W": normal(rng, e, d, dtype=dtype),
    }


def concat_inputs(rng, b=2, k=4, e=3, d=5, a=6, dtype=torch.float32):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "W": normal(rng, e + d, a, dtype=dtype) / 2,
        "v": normal(rng, a, dtype=dtype),
    }


def additive_inputs(rng, b=2, k=4, e=3, d=5, a=6, dtype=torch.float32):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "W_query": normal(rng, e, a, dtype=dtype) / 2,
        "W_key": normal(rng, d, a, dtype=dtype) / 2,
        "v": normal(rng, a, dtype=dtype),
    }


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


def dot_shapes(b, k, d, _):
    return (("query", (b, d)), ("keys", (b, k, d)))


def general_shapes(b, k, e, d):
    return (("query", (b, e)), ("keys", (b, k, d)), ("W", (e, d)))


def concat_shapes(b, k, e, d):
    return (("query", (b, e)), ("keys", (b, k, d)), ("W", (e + d, 2)), ("v", (2,)))


def additive_shapes(b, k, e, d):
    weights = (("W_query", (e, 2)), ("W_key", (d, 2)), ("v", (2,)))
    return (("query", (b, e)), ("keys", (b, k, d)), *weights)


def maps_of(make):
    def maps(rng):
        return [
            ("the scores of three sentences", make(rng, b=3, k=3), ("query",)),
            ("the scores of two sentences with two keys each", make(rng, b=2, k=2), ("keys",)),
        ]

    return maps


def turned(inputs):
    """The same numbers, not contiguous."""
    return {
        name: value.mT.contiguous().mT if value.ndim > 1 else value
        for name, value in inputs.items()
    }


# --- checks that the four scores share ----------------------------------------------------------


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
    one, two = (torch.softmax(answer(each), -1) for each in (inputs, other))
    if one.shape == two.shape and (one - two).abs().max() < 1e-4:
        raise Failure(
            "Two different queries give the same weights: the softmax of your scores does not "
            "depend on the query.",
            inputs,
        )


def survives_large_numbers(answer, rng, make):
    for name in ("query", "keys"):
        answer.matches(large_inputs(rng, make, name))


# --- dot_scores ---------------------------------------------------------------------------------


class TestDotScores:
    task = Task(
        name="dot_scores",
        reference=reference.dot_scores,
        returns=("scores",),
        difficulty=1,
        minutes=8,
        section="score-family",
        hints=(
            "A dot product multiplies two vectors entry by entry and adds everything up. Which "
            "axis is added up here, and which axes stay?",
            "The query (b d) has no axis for keys, so it must be compared with every key of its "
            "own sentence. Either name the axes (einsum), or give the query an axis of length 1.",
            'With names: "b d, b k d -> b k". Without: make the query (b 1 d), multiply it by the '
            "keys (b k d), and sum over the last axis.",
        ),
        probes=probes_of(dot_inputs, "d"),
        differentiated=("plain", "all equal"),
        small=small_of(dot_shapes),
        maps=maps_of(dot_inputs),
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_every_key_gets_one_score(self, answer, rng):
        gives_one_score_a_key(answer, dot_inputs(rng))

    @points(1)
    def test_scores_match_the_formula(self, answer, rng):
        answer.matches(dot_inputs(rng))
        answer.matches(dot_inputs(rng, b=3, k=7, d=33))
        answer.matches(turned(dot_inputs(rng, b=3, k=4)))
        answer.matches(dot_inputs(rng, b=3, dtype=torch.float64))

    @points(1)
    def test_a_query_meets_only_the_keys_of_its_own_sentence(self, answer, rng):
        holds_for_equal_sizes(answer, rng, dot_inputs, "d")

    @points(1)
    def test_one_sentence_or_one_key_is_enough(self, answer, rng):
        holds_for_one(answer, rng, dot_inputs, "d")

    @points(1)
    def test_gradients_pass_and_nothing_else_changes(self, answer, rng):
        answer.gradients_match(dot_inputs(rng))
        moves_nothing(answer, dot_inputs(rng))
        moves_nothing(answer, dot_inputs(rng, b=4, k=4, d=4))


# --- general_scores -----------------------------------------------------------------------------


class TestGeneralScores:
    task = Task(
        name="general_scores",
        reference=reference.general_scores,
        returns=("scores",),
        difficulty=2,
        minutes=10,
        section="score-family",
        hints=(
            "The query has width e, a key has width d, and W is (e d). Which of the two can be "
            "multiplied by W so that both have the same width?",
            "W turns the query into the keys' space: (b e) times (e d) is (b d). After that it "
            "is the task before.",
            'In one line with names: "b e, e d, b k d -> b k". Or in two: the projected query '
            "`query @ W`, then its dot product with every key of the same sentence.",
        ),
        probes=probes_of(general_inputs, "ed"),
        differentiated=("plain", "all equal"),
        small=small_of(general_shapes),
        maps=maps_of(general_inputs),
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_every_key_gets_one_score(self, answer, rng):
        gives_one_score_a_key(answer, general_inputs(rng))

    @points(1)
    def test_scores_match_the_formula(self, answer, rng):
        answer.matches(general_inputs(rng))
        answer.matches(general_inputs(rng, b=3, k=7, e=11, d=6))
        answer.matches(turned(general_inputs(rng, b=3, k=4)))
        answer.matches(general_inputs(rng, b=3, dtype=torch.float64))

    @points(1)
    def test_equal_sizes_hide_no_mistake(self, answer, rng):
        holds_for_equal_sizes(answer, rng, general_inputs, "ed")

    @points(1)
    def test_one_sentence_or_one_key_is_enough(self, answer, rng):
        holds_for_one(answer, rng, general_inputs, "ed")

    @points(1)
    def test_gradients_reach_query_keys_and_W(self, answer, rng):
        answer.gradients_match(general_inputs(rng))
        answer.gradients_match(general_inputs(rng, b=4, k=4, e=4, d=4))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, general_inputs(rng))
        moves_nothing(answer, general_inputs(rng, b=4, k=4, e=4, d=4))


# --- concat_scores ------------------------------------------------------------------------------


class TestConcatScores:
    task = Task(
        name="concat_scores",
        reference=reference.concat_scores,
        returns=("scores",),
        difficulty=2,
        minutes=15,
        section="score-family",
        hints=(
            "The small network reads one pair at a time: the query, and behind it one key. There "
            "are k keys and one query a sentence, so the query has to appear k times.",
            "Give the query an axis for keys and expand it to (b k e); then the two can be joined "
            "along the last axis to (b k e+d). W leads to (b k a). What bends the line?",
            "pairs = the expanded query and the keys, joined on the last axis, query first; "
            "hidden = tanh of pairs times W; scores = hidden times v, summed over a.",
        ),
        probes=probes_of(concat_inputs, "eda"),
        differentiated=("plain", "all equal"),
        small=small_of(concat_shapes),
        maps=maps_of(concat_inputs),
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_every_key_gets_one_score(self, answer, rng):
        gives_one_score_a_key(answer, concat_inputs(rng))

    @points(1)
    def test_the_query_decides_which_key_wins(self, answer, rng):
        reads_the_query(answer, rng, concat_inputs)

    @points(2)
    def test_scores_match_the_formula(self, answer, rng):
        answer.matches(concat_inputs(rng))
        answer.matches(concat_inputs(rng, b=3, k=7, e=5, d=4, a=9))
        answer.matches(turned(concat_inputs(rng, b=3, k=4)))
        answer.matches(concat_inputs(rng, b=3, dtype=torch.float64))

    @points(1)
    def test_equal_sizes_hide_no_mistake(self, answer, rng):
        holds_for_equal_sizes(answer, rng, concat_inputs, "eda")

    @points(1)
    def test_one_sentence_or_one_key_is_enough(self, answer, rng):
        holds_for_one(answer, rng, concat_inputs, "eda")

    @points(1)
    def test_large_numbers_stay_finite(self, answer, rng):
        survives_large_numbers(answer, rng, concat_inputs)

    @points(1)
    def test_gradients_reach_all_four_inputs(self, answer, rng):
        answer.gradients_match(concat_inputs(rng))
        answer.gradients_match(concat_inputs(rng, b=4, k=4, e=4, d=4, a=4))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, concat_inputs(rng))
        moves_nothing(answer, concat_inputs(rng, b=4, k=4, e=4, d=4, a=4))


# --- additive_scores ----------------------------------------------------------------------------


class TestAdditiveScores:
    task = Task(
        name="additive_scores",
        reference=reference.additive_scores,
        returns=("scores",),
        difficulty=3,
        minutes=15,
        section="soft-search",
        hints=(
            "Follow steps 1 and 2 of the chapter: project, add, squeeze, sum. Write the axes of "
            "every tensor beside its line.",
            "The projected query is (b a), the projected keys are (b k a). Torch lines axes up "
            "from the right, so b would meet k. Where must the query get an axis of length 1?",
            "from_query = query times W_query as (b 1 a); from_keys = keys times W_key, (b k a); "
            "hidden = tanh of their sum; scores = hidden times v, summed over a.",
        ),
        probes=probes_of(additive_inputs, "eda"),
        differentiated=("plain", "all equal"),
        small=small_of(additive_shapes),
        maps=maps_of(additive_inputs),
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_every_key_gets_one_score(self, answer, rng):
        gives_one_score_a_key(answer, additive_inputs(rng))

    @points(1)
    def test_the_query_decides_which_key_wins(self, answer, rng):
        reads_the_query(answer, rng, additive_inputs)

    @points(2)
    def test_scores_match_the_formula(self, answer, rng):
        answer.matches(additive_inputs(rng))
        answer.matches(additive_inputs(rng, b=3, k=7, e=5, d=4, a=9))
        answer.matches(turned(additive_inputs(rng, b=3, k=4)))
        answer.matches(additive_inputs(rng, b=3, dtype=torch.float64))

    @points(1)
    def test_equal_sizes_hide_no_mistake(self, answer, rng):
        holds_for_equal_sizes(answer, rng, additive_inputs, "eda")

    @points(1)
    def test_one_sentence_or_one_key_is_enough(self, answer, rng):
        holds_for_one(answer, rng, additive_inputs, "eda")

    @points(1)
    def test_large_numbers_stay_finite(self, answer, rng):
        survives_large_numbers(answer, rng, additive_inputs)

    @points(1)
    def test_gradients_reach_all_five_inputs(self, answer, rng):
        answer.gradients_match(additive_inputs(rng))
        answer.gradients_match(additive_inputs(rng, b=4, k=4, e=4, d=4, a=4))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, additive_inputs(rng))
        moves_nothing(answer, additive_inputs(rng, b=4, k=4, e=4, d=4, a=4))


# --- attend -------------------------------------------------------------------------------------


def attend_inputs(rng, b=3, k=5, v=4, mask=None, dtype=torch.float32):
    return {
        "scores": normal(rng, b, k, dtype=dtype),
        "values": normal(rng, b, k, v, dtype=dtype),
        "mask": mask,
    }


def large_scores(rng, size=1e4, mask=None, b=3, k=4):
    """Whole scores near `size`, with another order in each row."""
    order = torch.rand(b, k, generator=rng, device="cpu").argsort(-1).to(torch.float32)
    return {"scores": size + order, "values": normal(rng, b, k, 2), "mask": mask}


def rows_far_apart(rng):
    inputs = large_scores(rng, size=0.0)
    inputs["scores"] += torch.tensor([[1e4], [0.0], [-1e4]])
    return inputs


def hidden_winner(rng, high):
    """Scores of hidden keys lie `high` above all others."""
    inputs = large_scores(rng, size=0.0, mask=mixed_mask(rng, 3, 4))
    inputs["scores"] += high * ~inputs["mask"]
    return inputs


def hidden_loser(rng):
    """All visible scores lie below −20,000, where −10,000 would be a high score."""
    return large_scores(rng, size=-20_000.0, mask=mixed_mask(rng, 3, 4))


def first_key_hidden(rng, b=3, k=5, **options):
    """Padding in front: a mask that no length can describe."""
    mask = torch.ones(b, k, dtype=torch.bool)
    mask[:, 0] = False
    return attend_inputs(rng, b, k, mask=mask, **options)


def attend_traits(answer):
    inputs = attend_inputs(torch.Generator().manual_seed(0))
    outputs = [answer(inputs, seed=seed)[0] for seed in (1, 2)]
    double = attend_inputs(torch.Generator().manual_seed(0), dtype=torch.float64)
    lost = (answer(double)[1].sum(-1) - 1).abs().max().item()
    return {
        "differs from call to call": not torch.equal(*outputs),
        "rows miss one by a little": 1e-10 < lost < 1e-4,
    }


def attend_probes(rng):
    return {
        "plain": attend_inputs(rng),
        "all equal": attend_inputs(rng, 4, 4, 4),
        "one sentence": attend_inputs(rng, 1, 4, 3),
        "one number a value": attend_inputs(rng, 2, 3, 1),
        "mask": attend_inputs(rng, 3, 6, 4, mask=mixed_mask(rng, 3, 6)),
        "mask, all equal": attend_inputs(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4)),
        "dead row": attend_inputs(rng, 3, 5, 2, mask=dead_mask(rng, 3, 5)),
        "one large score": large_scores(rng),
        "rows far apart": rows_far_apart(rng),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
        "hidden loser": hidden_loser(rng),
        "double": attend_inputs(rng, 2, 5, 3, mixed_mask(rng, 2, 5), dtype=torch.float64),
    }


def attend_small(rng):
    def example(b, k, v, mask=None):
        values = integers(rng, b, k, v, low=0, high=9)
        return {"scores": integers(rng, b, k), "values": values, "mask": mask}

    sizes = ((1, 1, 1), (1, 2, 1), (1, 2, 2), (1, 3, 2), (2, 2, 1), (2, 2, 2), (2, 3, 2))
    for size in sizes:
        for _ in range(3):
            yield example(*size)
    for b, k, v in sizes[1:]:
        for _ in range(3):
            mask = torch.rand(b, k, generator=rng, device="cpu") > 0.5
            mask[:, 0] |= ~mask.any(-1)
            yield example(b, k, v, mask)
    yield example(1, 2, 1, torch.tensor([[False, False]]))
    yield example(2, 2, 1, torch.tensor([[True, False], [False, False]]))
    for size in (100.0, 1e4, -1e5):
        yield {
            "scores": torch.tensor([[size, size + 1]]),
            "values": torch.tensor([[[1.0], [2.0]]]),
            "mask": None if size > 0 else torch.tensor([[True, False]]),
        }


def attend_maps(rng):
    padded = torch.tensor([[True, True, False], [True, False, False]])
    return [
        ("two sentences of three keys", attend_inputs(rng, 2, 3, 2), ("values",)),
        (
            "two sentences of three keys, the last and the last two hidden",
            attend_inputs(rng, 2, 3, 2, mask=padded),
            ("values",),
        ),
    ]


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


def padding_changes_nothing(answer, inputs, longer, k):
    """Assert that keys behind the first `k`, all hidden, change no context and no weight."""
    context, weights = answer(inputs)
    padded_context, padded_weights = answer(longer)
    compare("the context, once padding is added", padded_context, context, longer)
    compare("the weights of real words", padded_weights[:, :k], weights, longer)
    if padded_weights[:, k:].abs().sum() > 1e-6:
        raise Failure("Padding gets a part of the weights.", longer, got=padded_weights)


class TestAttend:
    task = Task(
        name="attend",
        reference=reference.attend,
        returns=("context", "weights"),
        difficulty=2,
        minutes=20,
        section="padding-in-softmax",
        hints=(
            "Follow steps 3 and 4 of the chapter: shares first, then the average. The mask says "
            "who may take part in the sharing. When must it be known: before or after?",
            "Before the softmax a hidden score has to go so far down that its exponential is 0. "
            "And look at a row in which everything is hidden: which weights should it end with?",
            "Where the mask is False, fill in the lowest number the dtype has; softmax over the "
            "last axis; where the mask is False, set the weights to 0. The context is the sum "
            "over k of weight times value; weights come second.",
        ),
        probes=attend_probes,
        differentiated=("plain", "mask", "dead row"),
        small=attend_small,
        maps=attend_maps,
        traits=attend_traits,
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_it_returns_a_context_and_the_weights(self, answer, rng):
        returns_a_pair(answer, attend_inputs(rng, 3, 5, 4), 3, 5, 4)

    @points(1)
    def test_every_row_of_weights_sums_to_one(self, answer, rng):
        rows_sum_to_one(answer, attend_inputs(rng), 3)

    @points(1)
    def test_the_context_averages_the_values_by_the_weights(self, answer, rng):
        inputs = attend_inputs(rng)
        context, weights = answer(inputs)
        if weights.shape != (3, 5):
            raise Failure(f"weights have shape {shape_of(weights)}; expected (3 5).", inputs)
        average = (weights[:, :, None] * inputs["values"]).sum(1)
        compare("context", context, average, inputs)

    @points(1)
    def test_weights_and_context_match_the_formula(self, answer, rng):
        answer.matches(attend_inputs(rng))
        answer.matches(attend_inputs(rng, 2, 7, 3))
        answer.matches(attend_inputs(rng, 2, dtype=torch.float64))
        answer.matches(turned(attend_inputs(rng) | {"mask": mixed_mask(rng, 3, 5)}))

    @points(1)
    def test_equal_sizes_and_sizes_of_one_work(self, answer, rng):
        answer.matches(attend_inputs(rng, 4, 4, 4))
        answer.matches(attend_inputs(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4)))
        answer.matches(attend_inputs(rng, 1, 4, 3))
        answer.matches(attend_inputs(rng, 3, 1, 2))
        answer.matches(attend_inputs(rng, 2, 3, 1))
        answer.matches(attend_inputs(rng, 1, 1, 1, mask=torch.tensor([[True]])))

    @points(1)
    def test_large_scores_stay_finite(self, answer, rng):
        answer.matches(large_scores(rng), tolerance=5e-3)
        answer.matches(large_scores(rng, size=-1e4), tolerance=5e-3)
        answer.matches(rows_far_apart(rng), tolerance=5e-3)

    @points(2)
    def test_a_hidden_key_gets_no_weight(self, answer, rng):
        answer.matches(attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))
        answer.matches(first_key_hidden(rng))
        answer.matches(first_key_hidden(rng, dtype=torch.float64))
        answer.matches(attend_inputs(rng, mask=torch.ones(3, 5, dtype=torch.bool)))
        for high in (300.0, 3e5):
            answer.matches(hidden_winner(rng, high))
        answer.matches(hidden_loser(rng), tolerance=5e-3)
        inputs = attend_inputs(rng, mask=mixed_mask(rng, 3, 5))
        _, weights = answer(inputs)
        if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
            raise Failure("A hidden key keeps a little weight.", inputs, got=weights)

    @points(1)
    def test_padding_changes_nothing(self, answer, rng):
        inputs, more = attend_inputs(rng), attend_inputs(rng, k=4)
        longer = {n: torch.cat([inputs[n], more[n]], 1) for n in ("scores", "values")}
        longer["mask"] = (torch.arange(9) < 5).expand(3, 9)
        padding_changes_nothing(answer, inputs, longer, 5)

    @points(1)
    def test_a_row_with_nothing_to_attend_to_gets_zeros(self, answer, rng):
        answer.matches(attend_inputs(rng, mask=dead_mask(rng, 3, 5)), gradient=True)
        answer.matches(attend_inputs(rng, 1, 4, mask=torch.zeros(1, 4, dtype=torch.bool)))
        answer.matches(attend_inputs(rng, 4, 4, 4, mask=dead_mask(rng, 4, 4)), gradient=True)

    @points(1)
    def test_gradients_reach_scores_and_values(self, answer, rng):
        answer.gradients_match(attend_inputs(rng))
        answer.gradients_match(attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, attend_inputs(rng))
        moves_nothing(answer, attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))
        moves_nothing(answer, attend_inputs(rng, mask=dead_mask(rng, 3, 5)))


# --- AdditiveAttention --------------------------------------------------------------------------

SIZES = ("query_dim", "key_dim", "attention_dim")
LAYERS = ("W_query", "W_key", "v")


def as_function(cls):
    """The module as a function of sizes, inputs and weights.

    `training` switches it to training mode. `earlier_query` and `earlier_keys` are what the same
    module has seen in a call before.
    """

    def function(*, query, keys, mask=None, training=False, **rest):
        module = made(cls, *(rest.pop(size) for size in SIZES), training=training).to(query.dtype)
        earlier = [rest.pop(name) for name in ("earlier_query", "earlier_keys") if name in rest]
        names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        # Where a layer is missing, `forward` has the first word: perhaps it is not begun.
        if not names >= rest.keys() and module(query, keys) is None:
            return None
        # A bias is nobody's input. Its numbers depend on its name only, not on chance.
        for name, parameter in module.named_parameters():
            if name.endswith(".bias") and name not in rest:
                own = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                with torch.no_grad():
                    parameter.copy_(torch.randn(parameter.shape, generator=own))
        if earlier:
            with_weights(module, rest, *earlier)
        masks = {} if mask is None else {"mask": mask}
        return with_weights(module, rest, query, keys, **masks)

    return function


def module_inputs(rng, b=2, k=4, e=3, d=5, a=6, mask=None, dtype=torch.float32, **others):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "mask": mask,
        "query_dim": e,
        "key_dim": d,
        "attention_dim": a,
        "W_query.weight": normal(rng, a, e, dtype=dtype) / 2,
        "W_key.weight": normal(rng, a, d, dtype=dtype) / 2,
        "v.weight": normal(rng, 1, a, dtype=dtype) * 2,
        **others,
    }


def second_call(rng, **options):
    inputs = module_inputs(rng, **options)
    for name in ("query", "keys"):
        inputs[f"earlier_{name}"] = normal(rng, *inputs[name].shape)
    return inputs


def layers_of(answer) -> dict[str, object]:
    """What the module is made of, looked at from outside; a Failure if it cannot be made."""
    seen = answer.observe(dict(zip(SIZES, (3, 5, 6), strict=True)), adapt=parts_of)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        where = f" ({seen.error_line})" if seen.error_line else ""
        raise Failure(f"Your answer {seen.error}{where}")
    return dict(seen.returned)


def _differ(one, two) -> bool:
    """Whether two observations hold different numbers."""
    if not isinstance(one.returned, list) or not isinstance(two.returned, list):
        return False
    return any(
        isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and not torch.equal(x, y)
        for x, y in zip(one.returned, two.returned, strict=False)
    )


def module_traits(answer):
    layers = layers_of(answer)
    weights = sum(torch.Size(shape).numel() for shape in layers.values())
    seen = answer.observe(second_call(torch.Generator().manual_seed(0)))
    fresh = second_call(torch.Generator().manual_seed(0))
    del fresh["earlier_query"], fresh["earlier_keys"]
    alone = answer.observe(fresh)
    remembers = bool(seen.error) != bool(alone.error) or _differ(seen, alone)
    training = module_inputs(torch.Generator().manual_seed(0), training=True)
    return {
        "differs from call to call": _differ(*(answer.observe(training, seed=s) for s in (1, 2))),
        "remembers the call before": remembers,
        "has biases": any(f"{name}.bias" in layers for name in LAYERS),
        "has no weights": not layers,
        "has fewer weights": 0 < weights < 54,
        "has bare parameters": any("." not in name for name in layers),
    }


def module_probes(rng):
    return {
        "plain": module_inputs(rng),
        "as many sentences as keys": module_inputs(rng, b=4, k=4),
        "all equal": module_inputs(rng, b=4, k=4, e=4, d=4, a=4),
        "one sentence": module_inputs(rng, b=1),
        "mask": module_inputs(rng, b=3, k=6, mask=mixed_mask(rng, 3, 6)),
        "dead row": module_inputs(rng, b=3, mask=dead_mask(rng, 3, 4)),
        "training": module_inputs(rng, b=3, k=6, training=True),
        "double": module_inputs(rng, mask=mixed_mask(rng, 2, 4), dtype=torch.float64),
        "large": large_keys(rng),
    }


def large_keys(rng, k=4):
    """Whole numbers, keys of 10,000: sums are exact, and the tanh is far outside."""
    inputs = module_inputs(rng, k=k)
    for name in ("query", "keys", *(f"{layer}.weight" for layer in LAYERS)):
        inputs[name] = integers(rng, *inputs[name].shape)
    inputs["keys"] *= 1e4
    inputs["v.weight"] *= 60  # scores are up to some hundreds
    return inputs


def module_small(rng):
    for b, k, e, d, a in ((1, 1, 1, 1, 1), (1, 2, 1, 1, 1), (1, 2, 1, 2, 2), (2, 2, 2, 3, 2)):
        for hidden in (None, -1):
            for _ in range(3):
                inputs = module_inputs(rng, b, k, e, d, a)
                for name in ("query", "keys"):
                    inputs[name] = integers(rng, *inputs[name].shape)
                if hidden is not None and k > 1:
                    inputs["mask"] = torch.ones(b, k, dtype=torch.bool)
                    inputs["mask"][:, hidden] = False
                yield inputs
    yield module_inputs(rng, 1, 2, 1, 1, 1, mask=torch.zeros(1, 2, dtype=torch.bool))


def module_maps(rng):
    padded = torch.tensor([[True, True, False], [True, False, False]])
    return [
        ("three sentences of three keys", module_inputs(rng, 3, 3), ("query",)),
        (
            "two sentences of three keys, the last and the last two hidden",
            module_inputs(rng, 2, 3, mask=padded),
            ("keys",),
        ),
    ]


class TestAdditiveAttention:
    task = Task(
        name="AdditiveAttention",
        reference=reference.AdditiveAttention,
        returns=("context", "weights"),
        difficulty=3,
        minutes=20,
        section="soft-search",
        hints=(
            "A module holds what is learned. Which three matrices of `additive_scores` are "
            "learned, how wide is what goes in, and how wide is what comes out?",
            "`nn.Linear(i, o, bias=False)` computes x @ weight.T with a weight (o i), so you may "
            "call the layers instead of multiplying yourself. `v` leads from attention_dim to 1, "
            "and that last axis of length 1 has to go.",
            "hidden = tanh(self.W_query(query) with a new axis 1 + self.W_key(keys)); scores = "
            "self.v(hidden) without its last axis; then what `attend` does, with scores, keys "
            "and mask: the values are the keys as they came.",
        ),
        probes=module_probes,
        small=module_small,
        adapt=as_function,
        differentiated=("plain", "mask", "dead row"),
        maps=module_maps,
        traits=module_traits,
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_the_layers_have_the_names_of_the_task_and_no_bias(self, answer, rng):
        layers = layers_of(answer)
        if not layers:
            answer(module_inputs(rng))  # says if it is not begun
        for name, shape in zip(LAYERS, ((6, 3), (6, 5), (1, 6)), strict=True):
            got = layers.get(f"{name}.weight")
            there = ", ".join(layers) or "none at all"
            if got is None:
                raise Failure(
                    f"There is no `{name}.weight`; the module's parameters are: {there}. The names "
                    "are part of the task, so that weights can be copied."
                )
            if got != shape:
                raise Failure(
                    f"With query_dim 3, key_dim 5 and attention_dim 6, `{name}.weight` has shape "
                    f"{shape_of(torch.empty(got))}; expected {shape_of(torch.empty(shape))}."
                )
            if f"{name}.bias" in layers:
                raise Failure(f"`{name}` has a bias; the formula has none.")

    @points(1)
    def test_it_returns_a_context_and_the_weights(self, answer, rng):
        returns_a_pair(answer, module_inputs(rng), 2, 4, 5)

    @points(1)
    def test_every_row_of_weights_sums_to_one(self, answer, rng):
        rows_sum_to_one(answer, module_inputs(rng, b=3), 3)

    @points(1)
    def test_the_context_averages_the_keys_as_they_came(self, answer, rng):
        inputs = module_inputs(rng, d=6)  # as wide as the alignment
        context, weights = answer(inputs)
        if weights.shape != (2, 4):
            raise Failure(f"weights have shape {shape_of(weights)}; expected (2 4).", inputs)
        average = (weights[:, :, None] * inputs["keys"]).sum(1)
        compare("context", context, average, inputs)

    @points(2)
    def test_with_the_same_weights_it_gives_the_same_results(self, answer, rng):
        answer.matches(module_inputs(rng))
        answer.matches(module_inputs(rng, b=3, k=7, e=5, d=4, a=9))
        answer.matches(module_inputs(rng, b=3, dtype=torch.float64))
        answer.matches(turned_module(module_inputs(rng, b=3)))
        answer.matches(large_keys(rng), tolerance=5e-3)

    @points(1)
    def test_the_query_decides_which_key_wins(self, answer, rng):
        inputs = module_inputs(rng, b=3, k=5, e=6, a=8)
        other = dict(inputs, query=-2 * inputs["query"])
        one, two = (answer(each)[1] for each in (inputs, other))
        if (one - two).abs().max() < 1e-4:
            raise Failure(
                "Two different queries give the same weights: your scores add the same number to "
                "every key, and the softmax ignores that.",
                inputs,
            )

    @points(1)
    def test_equal_sizes_and_sizes_of_one_work(self, answer, rng):
        answer.matches(module_inputs(rng, b=4, k=4))
        answer.matches(module_inputs(rng, b=4, k=4, e=4, d=4, a=4))
        answer.matches(module_inputs(rng, b=1))
        answer.matches(module_inputs(rng, b=3, k=1))
        answer.matches(module_inputs(rng, b=1, k=1, e=1, d=1, a=1))

    @points(1)
    def test_padding_changes_nothing(self, answer, rng):
        inputs = module_inputs(rng, b=3)
        longer = dict(inputs, keys=torch.cat([inputs["keys"], normal(rng, 3, 3, 5)], 1))
        longer["mask"] = (torch.arange(7) < 4).expand(3, 7)
        padding_changes_nothing(answer, inputs, longer, 4)
        answer.matches(module_inputs(rng, b=3, mask=mixed_mask(rng, 3, 4)))

    @points(1)
    def test_a_row_with_nothing_to_attend_to_gets_zeros(self, answer, rng):
        answer.matches(module_inputs(rng, b=3, mask=dead_mask(rng, 3, 4)), gradient=True)
        answer.matches(module_inputs(rng, b=1, mask=torch.zeros(1, 4, dtype=torch.bool)))

    @points(1)
    def test_gradients_reach_query_keys_and_all_three_layers(self, answer, rng):
        answer.gradients_match(module_inputs(rng))
        answer.gradients_match(module_inputs(rng, mask=mixed_mask(rng, 2, 4)))

    @points(1)
    def test_training_mode_and_earlier_calls_make_no_difference(self, answer, rng):
        answer.matches(module_inputs(rng, b=3, training=True))
        answer.matches(second_call(rng))
        answer.matches(second_call(rng, b=4, k=4, e=4, d=4, a=4))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, module_inputs(rng))
        moves_nothing(answer, module_inputs(rng, mask=mixed_mask(rng, 2, 4)))


def turned_module(inputs):
    names = ("query", "keys")
    return dict(inputs, **turned({name: inputs[name] for name in names}))
