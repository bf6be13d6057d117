"""The checks of chapter 3. Each one's name is the sentence a teacher would say."""

import pytest
import torch

from attncourse import scaled_dot_product as reference
from attncourse.checks.common import (
    causal,
    dead_mask,
    integers,
    mixed_mask,
    moves_nothing,
    normal,
)
from attncourse.checks.observe import FUSED_ATTENTION, LIBRARY_SOFTMAX
from attncourse.checks.task import Failure, Task, compare, shape_of

points = pytest.mark.points


# --- softmax ------------------------------------------------------------------------------------


def softmax_probes(rng):
    return {
        "rows": {"scores": normal(rng, 3, 4, 5), "dim": -1},
        "square": {"scores": normal(rng, 4, 4), "dim": -1},
        "columns": {"scores": normal(rng, 3, 4, 5), "dim": 1},
        "first axis": {"scores": normal(rng, 3, 4, 5), "dim": 0},
        "one row": {"scores": normal(rng, 6), "dim": -1},
        "positive": {"scores": normal(rng, 3, 5).abs() + 0.1, "dim": -1},
        "sixty": {"scores": integers(rng, 3, 5) + torch.tensor([60.0]), "dim": -1},
        "large": {"scores": integers(rng, 3, 5) + torch.tensor([1e4]), "dim": -1},
        "very negative": {"scores": integers(rng, 3, 5) - torch.tensor([1e4]), "dim": -1},
        "rows far apart": {
            "scores": integers(rng, 3, 4) + torch.tensor([[1e4], [0.0], [-1e4]]),
            "dim": -1,
        },
        "wide": {"scores": torch.tensor([[0.0, 400.0, 399.0], [-400.0, 2.0, 1.0]]), "dim": -1},
        "double": {"scores": normal(rng, 3, 5, dtype=torch.float64), "dim": -1},
    }


def softmax_small(rng):
    for shape in ((2,), (3,), (2, 2), (2, 3)):
        for _ in range(4):
            yield {"scores": integers(rng, *shape), "dim": -1}
    yield {"scores": integers(rng, 2, 3), "dim": 0}
    yield {"scores": integers(rng, 2, 2, 2), "dim": 1}
    for size in (100.0, 1000.0, 1e4):
        yield {"scores": torch.tensor([size, size + 1]), "dim": -1}
        yield {"scores": torch.tensor([-size, -size - 1]), "dim": -1}
        yield {"scores": torch.tensor([0.0, size]), "dim": -1}
        yield {"scores": torch.tensor([[size, size + 1], [0.0, 1.0]]), "dim": -1}
        yield {"scores": torch.tensor([[-size, 1 - size], [size, size]]), "dim": -1}


def softmax_maps(rng):
    return [("two rows of three scores", {"scores": normal(rng, 2, 3), "dim": -1}, ("scores",))]


class TestSoftmax:
    task = Task(
        name="softmax",
        reference=reference.softmax,
        returns=("weights",),
        difficulty=1,
        minutes=10,
        section="stable-softmax",
        hints=(
            "Weights are positive and, along `dim`, sum to one. Which function makes any number "
            "positive, and what do you divide by so that the sum is one?",
            "exp(1e4) is infinite, and inf/inf is NaN. Subtract the same number from all scores "
            "of a row and no weight changes. Which number makes every exponent 0 or less?",
            "Three steps, each along `dim` and with keepdim=True so that shapes still fit: the "
            "largest score; exp of (scores − largest); divide by the sum of those.",
        ),
        probes=softmax_probes,
        differentiated=("rows", "columns"),
        small=softmax_small,
        maps=softmax_maps,
        forbidden=LIBRARY_SOFTMAX,
    )

    @points(1)
    def test_one_weight_for_every_score(self, answer, rng):
        scores = normal(rng, 3, 4, 5)
        weights = answer({"scores": scores})
        if weights.shape != scores.shape:
            raise Failure(
                f"weights have shape {shape_of(weights)}; scores came with {shape_of(scores)}.",
                {"scores": scores},
            )
        if weights.dtype != scores.dtype:
            raise Failure(f"weights are {weights.dtype}; scores came as {scores.dtype}.")

    @points(1)
    def test_weights_are_positive_and_sum_to_one(self, answer, rng):
        inputs = {"scores": normal(rng, 4, 7)}
        weights = answer(inputs)
        if (weights < 0).any():
            raise Failure("Some weights are negative.", inputs, got=weights)
        if weights.shape != (4, 7):
            raise Failure(f"weights have shape {shape_of(weights)}; expected (4 7).", inputs)
        compare("the sum of each row", weights.sum(-1), torch.ones(4), inputs)

    @points(1)
    def test_weights_match_the_formula(self, answer, rng):
        answer.matches({"scores": normal(rng, 3, 4, 5), "dim": -1})
        answer.matches({"scores": normal(rng, 4, 4)})  # the last axis, if none is named
        answer.matches({"scores": normal(rng, 2, 3, 4)})
        answer.matches({"scores": 9 * normal(rng, 5, 3).T, "dim": -1})  # not contiguous
        answer.matches({"scores": normal(rng, 6, dtype=torch.float64), "dim": -1})

    @points(1)
    def test_any_axis_can_compete(self, answer, rng):
        for dim in (0, 1, 2, -2):
            answer.matches({"scores": normal(rng, 3, 4, 5), "dim": dim})
        answer.matches({"scores": normal(rng, 3, 2), "dim": 0})
        answer.matches({"scores": normal(rng, 3, 1), "dim": -1})

    @points(1)
    def test_scores_of_ten_thousand_give_finite_weights(self, answer, rng):
        # A log-sum-exp of 1e4 is known to 1e-3 in float32, so nothing sharper is asked.
        offset = torch.tensor([[1e4], [0.0], [-1e4]])
        answer.matches({"scores": integers(rng, 3, 5) + offset, "dim": -1}, tolerance=5e-3)
        answer.matches({"scores": integers(rng, 2, 3) - 1e4, "dim": -1}, tolerance=5e-3)
        answer.matches({"scores": torch.tensor([[-1e4, 1e4, 9998.0]]), "dim": -1}, tolerance=5e-3)
        answer.matches({"scores": torch.tensor([[0.0, 400.0, 399.0]]), "dim": -1}, tolerance=5e-3)

    @points(1)
    def test_gradients_pass_and_nothing_else_changes(self, answer, rng):
        inputs = {"scores": normal(rng, 3, 4, 5), "dim": -1}
        answer.gradients_match(inputs)
        moves_nothing(answer, inputs)


# --- scaled_dot_product_attention ---------------------------------------------------------------


# In float64, d = 9: its root has no rounding, however it was computed.
DOUBLE = {"dtype": torch.float64, "d": 9}


def attention_inputs(rng, *batch, q=4, k=5, d=7, v=6, mask=None, dtype=torch.float32):
    return {
        "query": normal(rng, *batch, q, d, dtype=dtype),
        "key": normal(rng, *batch, k, d, dtype=dtype),
        "value": normal(rng, *batch, k, v, dtype=dtype),
        "mask": mask,
    }


def large_attention(rng, q=3, k=4, d=4, mask=None, size=1e4):
    """Scores near ±`size` after scaling, all of them whole numbers."""
    query = torch.zeros(q, d)
    query[:, 0] = 2.0  # √d = 2, so that scores are key[:, 0]
    key = torch.zeros(k, d)
    key[:, 0] = size + torch.randperm(k, generator=rng, device="cpu").to(torch.float32)
    return {"query": query, "key": key, "value": normal(rng, k, 3), "mask": mask}


def far_apart(rng):
    """Rows of scores near 1e4, 0 and -1e4: no single shift serves them all."""
    inputs = large_attention(rng)
    inputs["query"] *= torch.tensor([[1.0], [0.0], [-1.0]])
    return inputs


def hidden_winner(rng, high):
    """Scores of hidden keys lie `high` above all others."""
    inputs = large_attention(rng, mask=mixed_mask(rng, 1, 4), size=0.0)
    inputs["key"][:, 0] += high * ~inputs["mask"][0]
    return inputs


def attention_traits(answer):
    inputs = attention_inputs(torch.Generator().manual_seed(0), 3)
    outputs = [answer(inputs, seed=seed)[0] for seed in (1, 2)]
    return {"differs from call to call": not torch.equal(*outputs)}


def attention_probes(rng):
    return {
        "plain": attention_inputs(rng, 2, 3),
        "square": attention_inputs(rng, 4, 4, q=4, k=4, d=4, v=4),
        "flat": attention_inputs(rng, q=3, k=5, d=2, v=4),
        "one batch axis": attention_inputs(rng, 3, q=4, k=5, d=9, v=2),
        "mask": attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)),
        "causal": attention_inputs(rng, 2, q=5, k=5, d=3, v=4, mask=causal(5)),
        "padding": attention_inputs(rng, 3, 2, mask=mixed_mask(rng, 3, 1, 1, 5)),
        "dead row": attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5)),
        "large": large_attention(rng),
        "large negative, masked": large_attention(rng, mask=mixed_mask(rng, 3, 4), size=-30_000.0),
        "double": attention_inputs(rng, 2, **DOUBLE),
        "rows far apart": far_apart(rng),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
    }


def attention_small(rng):
    sizes = ((1, 1, 1, 1), (1, 2, 1, 1), (1, 2, 2, 1), (2, 2, 1, 1), (2, 2, 2, 1), (2, 3, 2, 2))

    def example(q, k, d, v, mask=None):
        return {
            "query": integers(rng, q, d),
            "key": integers(rng, k, d),
            "value": integers(rng, k, v, low=0, high=9),
            "mask": mask,
        }

    for size in sizes:
        for _ in range(4):
            yield example(*size)
    for q, k, d, v in sizes[1:]:
        for _ in range(4):
            mask = torch.rand(q, k, generator=rng, device="cpu") > 0.5
            mask[:, 0] |= ~mask.any(-1)
            yield example(q, k, d, v, mask)
    yield example(1, 2, 1, 1, torch.tensor([[False, False]]))
    yield example(2, 2, 1, 1, torch.tensor([[True, False], [False, False]]))
    yield {name: value[None] for name, value in example(2, 2, 1, 1).items() if name != "mask"}
    for size in (100.0, 1e4, -1e5):
        yield {
            "query": torch.tensor([[1.0]]),
            "key": torch.tensor([[size], [size + 1]]),
            "value": torch.tensor([[1.0], [2.0]]),
            "mask": None if size > 0 else torch.tensor([[True, False]]),
        }


def attention_maps(rng):
    words = {"q": 3, "k": 3, "d": 4, "v": 2}
    moved = ("key", "value")
    return [
        ("two sentences of three words", attention_inputs(rng, 2, **words), moved),
        (
            "two sentences of three words, causal mask",
            attention_inputs(rng, 2, **words, mask=causal(3)),
            moved,
        ),
    ]


class TestScaledDotProductAttention:
    task = Task(
        name="scaled_dot_product_attention",
        reference=reference.scaled_dot_product_attention,
        returns=("output", "weights"),
        difficulty=2,
        minutes=25,
        section="the-code",
        hints=(
            "Follow the five steps of the chapter: scores, scale, mask, softmax, average. Write "
            "the axes of every tensor beside its line: query (… q d), key (… k d), value (… k v).",
            "Scores have one row per query and one column per key; `d` is summed away. A row is a "
            "competition between keys. A masked key must lose before the competition, not after; "
            "and a row in which everybody is masked has to end as zeros.",
            "scores = einsum over d, divided by the root of d; where the mask is False, fill in "
            "the lowest number the dtype has; softmax over the last axis; where the mask is "
            "False, set the weights to 0; output = einsum over k; return both.",
        ),
        probes=attention_probes,
        differentiated=("plain", "mask", "dead row"),
        small=attention_small,
        maps=attention_maps,
        traits=attention_traits,
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_it_returns_an_output_and_the_weights(self, answer, rng):
        inputs = attention_inputs(rng, 2, 3)
        output, weights = answer(inputs)
        for name, tensor, shape in (
            ("output", output, (2, 3, 4, 6)),
            ("weights", weights, (2, 3, 4, 5)),
        ):
            if tensor.shape != shape:
                axes = "(… q v)" if name == "output" else "(… q k)"
                raise Failure(
                    f"{name} has shape {shape_of(tensor)}; "
                    f"expected {axes} = {shape_of(torch.empty(shape))}.",
                    inputs,
                )
            if tensor.dtype != torch.float32:
                raise Failure(f"{name} has dtype {tensor.dtype}; the inputs were float32.", inputs)

    @points(1)
    def test_every_row_of_weights_sums_to_one(self, answer, rng):
        inputs = attention_inputs(rng, 2, 3)
        _, weights = answer(inputs)
        if (weights < 0).any():
            raise Failure("Some weights are negative.", inputs, got=weights)
        compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 3, 4), inputs)

    @points(1)
    def test_the_output_averages_the_values_by_the_weights(self, answer, rng):
        inputs = attention_inputs(rng, 3)
        output, weights = answer(inputs)
        if weights.shape != (3, 4, 5):
            raise Failure(f"weights have shape {shape_of(weights)}; expected (3 4 5).", inputs)
        compare("output", output, weights @ inputs["value"], inputs)

    @points(2)
    def test_weights_and_output_match_the_formula(self, answer, rng):
        answer.matches(attention_inputs(rng, 3))
        answer.matches(attention_inputs(rng, 4, q=4, k=4, d=4, v=4))
        answer.matches(attention_inputs(rng, 2, d=33, v=2))
        answer.matches(attention_inputs(rng, 2, q=1, k=1, d=1, v=1))
        answer.matches(attention_inputs(rng, 2, **DOUBLE))
        turned = attention_inputs(rng, 2)  # the same numbers, not contiguous
        turned |= {name: turned[name].mT.contiguous().mT for name in ("query", "key", "value")}
        answer.matches(turned)

    @points(1)
    def test_any_leading_axes_work(self, answer, rng):
        answer.matches(attention_inputs(rng))
        answer.matches(attention_inputs(rng, 2, 3))
        answer.matches(attention_inputs(rng, 2, 1, 3))

    @points(1)
    def test_large_scores_stay_finite(self, answer, rng):
        answer.matches(large_attention(rng), tolerance=5e-3)
        answer.matches(large_attention(rng, size=-1e4), tolerance=5e-3)
        answer.matches(far_apart(rng), tolerance=5e-3)

    @points(1)
    def test_a_masked_key_gets_no_weight(self, answer, rng):
        answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)))
        answer.matches(attention_inputs(rng, 2, q=5, k=5, mask=causal(5)))
        answer.matches(attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5), **DOUBLE))
        masked = large_attention(rng, mask=mixed_mask(rng, 3, 4), size=-30_000.0)
        answer.matches(masked, tolerance=5e-3)
        for high in (300.0, 3e5):  # hidden keys with by far the best scores
            answer.matches(hidden_winner(rng, high))
        inputs = attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5))
        _, weights = answer(inputs)
        if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
            raise Failure("A hidden key keeps a little weight.", inputs, got=weights)

    @points(1)
    def test_a_mask_may_broadcast(self, answer, rng):
        answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 4, 5)))
        answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 1, 1, 5)))
        answer.matches(attention_inputs(rng, 3, mask=mixed_mask(rng, 3, 1, 5)))
        answer.matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 3, 4, 5)))
        queries = torch.ones(4, 1, dtype=torch.bool)  # (q 1)
        answer.matches(attention_inputs(rng, 2, mask=queries))
        everything = torch.ones(4, 5, dtype=torch.bool)
        answer.matches(attention_inputs(rng, 3, mask=everything))

    @points(1)
    def test_a_query_with_nothing_to_attend_to_gets_zeros(self, answer, rng):
        inputs = attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5))
        answer.matches(inputs, gradient=True)
        answer.matches(attention_inputs(rng, 2, mask=dead_mask(rng, 4, 5)))
        empty_sentence = mixed_mask(rng, 3, 1, 5)
        empty_sentence[1] = False
        answer.matches(attention_inputs(rng, 3, mask=empty_sentence), gradient=True)
        queries = torch.tensor([[True], [False], [True], [True]])  # (q 1)
        answer.matches(attention_inputs(rng, 2, mask=queries))

    @points(1)
    def test_gradients_reach_query_key_and_value(self, answer, rng):
        answer.gradients_match(attention_inputs(rng, 2, 3))
        answer.gradients_match(attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5)))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, attention_inputs(rng, 3))
        moves_nothing(answer, attention_inputs(rng, 3, mask=mixed_mask(rng, 4, 5)))


# --- score_variance -----------------------------------------------------------------------------

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


def is_a_plain_number(answer, inputs):
    answer(inputs)
    if isinstance(answer.observe(inputs).returned, torch.Tensor):
        raise Failure(
            "Your answer returned a tensor; a plain float is expected (`.item()` makes one).",
            inputs,
        )


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


class TestScoreVariance:
    task = Task(
        name="score_variance",
        reference=reference.score_variance,
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

    @points(1)
    def test_it_returns_a_plain_number(self, answer):
        inputs = variance_inputs(8, False, samples=1000)
        is_a_plain_number(answer, inputs)

    @points(1)
    def test_unscaled_scores_vary_by_the_width(self, answer):
        for d in (16, 50, 100):
            is_near(answer, variance_inputs(d, False), d)

    @points(1)
    def test_scaled_scores_vary_by_one(self, answer):
        for d in (16, 50, 100):
            is_near(answer, variance_inputs(d, True), 1)

    @points(1)
    def test_every_sample_is_drawn_anew(self, answer):
        for seed in range(6):  # one shared query would give |q|², which is all over the place
            is_near(answer, variance_inputs(2, False), 2, tolerance=0.16, seed=seed)
        if same_for_any_samples(answer):
            raise Failure(
                f"10 samples and {SAMPLES:,} samples give exactly the same variance: is it "
                "measured, and is `samples` used?"
            )

    @points(1)
    def test_the_global_random_state_is_not_reset(self, answer):
        inputs = variance_inputs(4, False, samples=100)
        answer(inputs)
        if answer.resets_random_state(inputs):
            raise Failure(
                "After your answer, the global random generator is always in the same state: a "
                "`manual_seed` inside a function makes everybody's later draws repeat.",
                inputs,
            )


# --- hidden_scale -------------------------------------------------------------------------------


def table(rng, c, q=8, k=4, masked=False):
    """Scores and their weights softmax(scores / c), both printed to two decimals.

    In each row the scores lie well apart, so that any sound estimator finds c to within 5 %.
    With `masked`, rows hide different keys, and in the first only one is left.
    """
    steps = torch.tensor([0.0, 0.5, 1.0, 1.6, 2.1])[:k]
    order = torch.rand(q, k, generator=rng, device="cpu").argsort(-1)
    jitter = torch.rand(q, k, generator=rng, device="cpu") * 0.1
    scores = ((steps + jitter).gather(-1, order) * c).mul(100).round() / 100
    hidden = torch.zeros(q, k, dtype=torch.bool)
    if masked:
        place = torch.rand(q, k, generator=rng, device="cpu").argsort(-1)
        hidden = place >= (k - 1 - torch.arange(q)[:, None] % (k - 2))  # one key or more a row
        hidden[0] = place[0] > 0
    weights = torch.softmax((scores / c).masked_fill(hidden, -torch.inf), -1)
    return {"scores": scores, "weights": weights.mul(100).round() / 100}


# The table of a lecture slide: its weights are not the softmax of its scores.
SLIDE = {
    "scores": torch.tensor(
        [
            [0.11, 0.00, 0.81, 0.79],
            [0.19, 0.50, 0.30, 0.48],
            [0.53, 0.98, 0.95, 0.14],
            [0.81, 0.86, 0.38, 0.90],
        ]
    ),
    "weights": torch.tensor(
        [
            [1.00, 0.00, 0.00, 0.00],
            [0.48, 0.52, 0.00, 0.00],
            [0.31, 0.35, 0.34, 0.00],
            [0.25, 0.26, 0.23, 0.26],
        ]
    ),
}


def scale_probes(rng):
    return {
        f"c = {c}{', masked' if masked else ''}": table(rng, c, masked=masked)
        for c in (0.5, 3.0, 6.3)
        for masked in (False, True)
    }


def scale_small(rng):
    for c in (1.0, 2.0, 4.0):
        yield table(rng, c, q=1)
    for c in (2.0, 4.0):
        yield table(rng, c, q=4, masked=True)
        yield table(rng, c, q=6, masked=True)


def finds(answer, inputs, c):
    got = answer(inputs)
    if not abs(got / c - 1) <= 0.05:
        raise Failure(
            f"Your scale is {got:.4g}; the table was made with {c:g} (5 % off is fine).",
            inputs,
            torch.tensor(float(c)),
            torch.tensor(got),
        )


class TestHiddenScale:
    task = Task(
        name="hidden_scale",
        reference=reference.hidden_scale,
        returns=float,
        difficulty=4,
        minutes=25,
        section="hidden-scale",
        hints=(
            "Softmax divides exp(score / c) by the sum of its row. What happens to that sum when "
            "you divide two weights of the same row by each other?",
            "log(wᵢ / wⱼ) = (sᵢ − sⱼ) / c. So differences of log-weights against differences of "
            "scores lie on a line through zero, with slope 1 / c. A weight of 0 has no logarithm: "
            "leave it out.",
            "In each row, over its non-zero weights only, subtract the mean from the scores and "
            "from the log-weights; collect all rows; 1 / c = Σ(score · log-weight) / Σ(score²).",
        ),
        probes=scale_probes,
        small=scale_small,
        tolerance=0.05,
    )

    @points(1)
    def test_it_returns_a_plain_number(self, answer, rng):
        inputs = table(rng, 2.0)
        is_a_plain_number(answer, inputs)

    @points(1)
    def test_it_finds_the_scale_of_a_full_table(self, answer, rng):
        for c, q, k in ((1.0, 8, 4), (3.0, 9, 3), (6.3, 7, 5), (1.37, 10, 4)):
            finds(answer, table(rng, c, q, k), c)

    @points(1)
    def test_a_weight_of_zero_means_masked(self, answer, rng):
        for c, q, k in ((0.5, 12, 4), (2.0, 11, 5), (4.7, 13, 4)):
            finds(answer, table(rng, c, q, k, masked=True), c)

    @points(1)
    def test_it_finds_the_scale_of_the_slide(self, answer):
        got = answer(SLIDE)
        if not 3.6 <= got <= 4.4:  # two decimals leave this table blurred: 10 % here
            raise Failure(f"Your scale for the slide's table is {got:.4g}; it hides 4.", SLIDE)

    @points(1)
    def test_the_tables_are_left_as_they_were(self, answer, rng):
        inputs = table(rng, 2.0, masked=True)
        seen = answer.observe(inputs)
        answer(inputs)
        if seen.edited:
            raise Failure(f"Your answer changed its own input: {', '.join(seen.edited)}.", inputs)
