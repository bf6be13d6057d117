"""The checks of lab 6. Each one's name is the sentence a teacher would say. No clock is read."""

import math

import pytest
import torch

from attncourse.checks.common import integers, moves_nothing, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Failure, Task, Unanswered, compare, shape_of
from attncourse.lab import lab6_write_flash as reference
from attncourse.lab.audit import audit, passed, summary
from attncourse.lab.meters import count
from attncourse.lab.receipts import ReceiptError, decode

points = pytest.mark.points
DOUBLE, HALF = torch.float64, torch.float16


def agrees(answer, inputs, names=None, tolerance=None):
    """Assert that answer and reference agree on the named results, −∞ in the same places."""
    got, expected = answer(inputs), answer.expected(inputs)
    for name, ours, theirs in zip(answer.task.returns, expected, got, strict=True):
        if names and name not in names:
            continue
        nothing = ours == -math.inf
        if theirs.shape == ours.shape:
            if not torch.equal(theirs == -math.inf, nothing):
                raise Failure(
                    f"{name} is −∞ where no key has been seen, and nowhere else. Yours is not.",
                    inputs,
                    ours,
                    theirs,
                )
            ours, theirs = ours.masked_fill(nothing, 0), theirs.masked_fill(nothing, 0)
        compare(name, theirs, ours, inputs, tolerance)


def metered(answer):
    """The answer, as a meter sees it: bytes and shapes, no values."""

    def measure(**inputs):
        counts = count(answer, *inputs.values())
        return {
            "biggest": counts.biggest_bytes,
            "shape": list(counts.biggest_shape),
            "peak": counts.peak_bytes,
        }

    return measure


SHORT, LONG, TILE = 64, 128, 16


def memory_of(answer, inputs):
    """What the meter says of a call, or a Failure."""
    seen = answer.observe(inputs, adapt=metered)
    if seen.error or not isinstance(seen.returned, dict):
        raise Failure(f"Your answer {seen.error or 'returned nothing'}", inputs)
    return seen.returned


def growth(answer, call) -> dict[str, float]:
    """Exponents of the biggest tensor and of the peak, between a short and a long sequence."""
    rng = torch.Generator().manual_seed(0)
    short, long = (memory_of(answer, call(rng, n)) for n in (SHORT, LONG))
    span = math.log(LONG / SHORT)
    grown = {
        key: math.log(max(long[key], 1) / max(short[key], 1)) / span for key in ("biggest", "peak")
    }
    return grown | {
        "shape": long["shape"],
        "entry": long["biggest"] / max(math.prod(long["shape"]), 1),
    }


def computes(answer, inputs):
    """Assert that a simple call is right: what computes something else saves no memory."""
    agrees(answer, inputs, answer.task.returns[:1], tolerance=1e-2)


def stays_linear(answer, call):
    """Assert that neither the biggest tensor nor the peak grows like n²."""
    grown = growth(answer, call)
    shape = f"({' '.join(map(str, grown['shape']))})"
    if grown["biggest"] > 1.2:
        raise Failure(
            f"The meter: with n = {LONG} and tiles of {TILE}, your biggest tensor is {shape}, and "
            f"it grows like n^{grown['biggest']:.2f}. Tiles and sequences may be held, at most "
            "n^1; a number for every query and key may not, in no tensor, also no boolean one."
        )
    if grown["peak"] > 1.2:
        raise Failure(
            "The meter: no single tensor is too big, but all that is alive at once grows like "
            f"n^{grown['peak']:.2f}. Let go of a tile before you make the next one."
        )


def cuts_both(answer, call):
    """Assert that a tile is at most `tile` queries by `tile` keys."""
    inputs = call(torch.Generator().manual_seed(0), LONG)
    seen = memory_of(answer, inputs)
    # Twice a sequence of the widest tensor in its working dtype: room for padding and pairs.
    allowed = 2 * (LONG + TILE) * max(inputs["key"].shape[-1], inputs["value"].shape[-1]) * 4
    if seen["biggest"] > allowed:
        shape = f"({' '.join(map(str, seen['shape']))})"
        raise Failure(
            f"The meter: your biggest tensor is {shape}, with n = {LONG} and tiles of {TILE}. A "
            f"tile is at most {TILE} queries by {TILE} keys: cut both the queries and the keys."
        )


# --- merge --------------------------------------------------------------------------------------

PARTS = ("weighted", "maximum", "total")


def of_two_parts(answer):
    """The answer as a function of six tensors."""

    def joined(weighted_1, maximum_1, total_1, weighted_2, maximum_2, total_2):
        return answer((weighted_1, maximum_1, total_1), (weighted_2, maximum_2, total_2))

    return joined


def two_parts(rng, *lead, v=3, counts=(3, 2), dtype=torch.float32, shift=(0.0, 0.0), size=1.0):
    """Parts of two sets of keys; a count of 0 is no key at all."""
    inputs = {}
    for number, (k, moved) in enumerate(zip(counts, shift, strict=True), 1):
        scores = size * normal(rng, *lead, k, dtype=dtype) + moved
        value = normal(rng, *lead[:-1], k, v, dtype=dtype)
        if k:
            part = reference.part_of(scores, value)
        else:
            part = (
                value.new_zeros(*lead, v),
                value.new_full(lead, -math.inf),
                value.new_zeros(lead),
            )
        inputs |= {f"{name}_{number}": x for name, x in zip(PARTS, part, strict=True)}
    return inputs


def easy_parts(first, second):
    """Parts of a row, from (score, value) pairs."""
    inputs = {}
    for number, pairs in enumerate((first, second), 1):
        scores = torch.tensor([[score for score, _ in pairs]])
        value = torch.tensor([[float(value)] for _, value in pairs])
        part = reference.part_of(scores, value)
        inputs |= {f"{name}_{number}": x for name, x in zip(PARTS, part, strict=True)}
    return inputs


def merge_probes(rng):
    return {
        "one row": two_parts(rng, 1),
        "rows": two_parts(rng, 4),
        "batch": two_parts(rng, 2, 3, 4),
        "first higher": two_parts(rng, 3, shift=(3.0, 0.0)),
        "second higher": two_parts(rng, 3, shift=(0.0, 3.0)),
        "second empty": two_parts(rng, 3, counts=(3, 0)),
        "first empty": two_parts(rng, 3, counts=(0, 3)),
        "both empty": two_parts(rng, 2, counts=(0, 0)),
        "far apart": two_parts(rng, 3, shift=(-300.0, 200.0)),
        "large": two_parts(rng, 3, shift=(1e4, 1e4)),
        "double": two_parts(rng, 3, dtype=DOUBLE),
    }


def merge_small(rng):
    yield easy_parts([(0.0, 1)], [(0.0, 3)])
    yield easy_parts([(0.0, 1)], [(1.0, 3)])
    yield easy_parts([(1.0, 1)], [(0.0, 3)])
    yield two_parts(rng, 2, v=2)
    yield easy_parts([(400.0, 1)], [(401.0, 3)])


class TestMerge:
    task = Task(
        name="merge",
        reference=reference.merge,
        returns=PARTS,
        difficulty=3,
        minutes=12,
        section="merge",
        hints=(
            "Take the four numbers of the page: two parts with one key each, scores 1 and 3. In "
            "which unit does each part count? In which unit should both count?",
            "A part counts in units of e^(its own maximum). The larger maximum becomes the common "
            "one; a part whose maximum was lower shrinks, its total and its weighted values by the "
            "same factor. What is the factor if a part is empty, and what if both are?",
            "maximum = the larger of the two, entry by entry; factor_i = exp(maximum_i − maximum), "
            "0 for an empty part (put 0 in place of a common maximum of −∞, so that no "
            "−∞ − (−∞) arises); total = factor_1 · total_1 + factor_2 · total_2, and weighted "
            "alike, with the factors as (… q 1).",
        ),
        probes=merge_probes,
        small=merge_small,
        adapt=of_two_parts,
    )

    @points(1)
    def test_a_merged_part_is_a_part_again(self, answer, rng):
        for inputs in (two_parts(rng, 4), two_parts(rng, 2, 3, 4, dtype=DOUBLE)):
            for name, got in zip(PARTS, answer(inputs), strict=True):
                came = inputs[f"{name}_1"]
                if got.shape != came.shape or got.dtype != came.dtype:
                    raise Failure(
                        f"{name} is {shape_of(got)}, {got.dtype}; in both parts it came as "
                        f"{shape_of(came)}, {came.dtype}.",
                        inputs,
                    )

    @points(2)
    def test_two_parts_make_what_all_their_keys_would_have_made(self, answer, rng):
        for lead in ((1,), (5,), (2, 3, 4)):
            for counts in ((1, 1), (3, 2), (1, 6)):
                agrees(answer, two_parts(rng, *lead, counts=counts, size=2.0))
        agrees(answer, two_parts(rng, 4, dtype=DOUBLE))

    @points(1)
    def test_either_part_may_hold_the_larger_maximum(self, answer, rng):
        for shift in ((3.0, 0.0), (0.0, 3.0), (-2.0, -9.0)):
            agrees(answer, two_parts(rng, 2, 4, shift=shift))

    @points(1)
    def test_a_part_without_keys_changes_nothing(self, answer, rng):
        for counts in ((3, 0), (0, 3)):
            agrees(answer, two_parts(rng, 2, 4, counts=counts))

    @points(1)
    def test_two_parts_without_keys_stay_one_without_keys(self, answer, rng):
        agrees(answer, two_parts(rng, 3, counts=(0, 0)))
        some, none = two_parts(rng, 3), two_parts(rng, 3, counts=(0, 0))
        mixed = {name: torch.cat([some[name], none[name]]) for name in some}  # row by row
        agrees(answer, mixed)

    @points(1)
    def test_large_scores_stay_finite(self, answer, rng):
        for shift in ((1e4, 1e4), (1e4, -1e4), (-1e4, -1e4), (-300.0, 200.0)):
            agrees(answer, two_parts(rng, 4, shift=shift))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, two_parts(rng, 4))
        moves_nothing(answer, two_parts(rng, 4, counts=(0, 2)))


# --- tiled_attention ----------------------------------------------------------------------------


def call(rng, q, k, tile, causal=False, dtype=torch.float32, spread=0.0, size=1.0, **axes):
    """Inputs of the forward pass; with `spread`, whole numbers so large that scores reach 1e4."""
    b, h, d, v = (axes.get(axis, usual) for axis, usual in zip("bhdv", (2, 3, 4, 5), strict=True))

    def draw(*shape):
        return spread * integers(rng, *shape) if spread else size * normal(rng, *shape)

    return {
        "query": draw(b, h, q, d).to(dtype),
        "key": draw(b, h, k, d).to(dtype),
        "value": normal(rng, b, h, k, v).to(dtype),
        "tile": tile,
        "causal": causal,
    }


def forward_probes(rng):
    return {
        "one tile": call(rng, 4, 4, 4),
        "tiles": call(rng, 6, 6, 3),
        "shorter last tile": call(rng, 7, 7, 3),
        "one query": call(rng, 1, 7, 3),
        "fewer queries": call(rng, 5, 8, 3),
        "more queries": call(rng, 8, 5, 3),
        "causal": call(rng, 6, 6, 2, True),
        "causal, fewer queries": call(rng, 3, 7, 2, True),
        "causal, more queries": call(rng, 7, 4, 2, True),
        "large": call(rng, 6, 6, 2, spread=20.0),
        "half": call(rng, 6, 6, 2, dtype=HALF, size=6.0),
        "double": call(rng, 7, 5, 3, dtype=DOUBLE),
        "wide tile": call(rng, 3, 3, 8),
        "tiles of one": call(rng, 4, 4, 1),
    }


def forward_small(rng):
    for n, tile in ((1, 1), (2, 2), (2, 1), (3, 2)):
        yield call(rng, n, n, tile, b=1, h=1, d=1, v=1)
        yield call(rng, n, n, tile, b=1, h=1, d=2, v=1)
    yield call(rng, 1, 3, 2, b=1, h=1, d=2, v=1)
    yield call(rng, 2, 2, 1, True, b=1, h=1, d=2, v=1)
    yield call(rng, 1, 2, 1, True, b=1, h=1, d=2, v=1)
    yield call(rng, 3, 3, 2, True, b=1, h=1, d=2, v=1)
    yield call(rng, 2, 2, 1, b=1, h=1, d=2, v=1, spread=50.0)


def long_call(rng, n):
    return call(rng, n, n, TILE, True, b=1, h=1, d=3, v=2)


def memory_traits(long):
    def traits(answer):
        grown = growth(answer, long)
        try:
            cuts_both(answer, long)
            whole = False
        except Failure:
            whole = True
        return {
            "biggest tensor grows like n²": grown["biggest"] > 1.2,
            "it is a table of yes and no": grown["biggest"] > 1.2 and grown["entry"] == 1,
            "keeps its tiles": grown["peak"] > 1.2,
            "one side is whole": whole,
        }

    return traits


class TestTiledAttention:
    task = Task(
        name="tiled_attention",
        reference=reference.tiled_attention,
        returns=("output", "logsumexp"),
        difficulty=5,
        minutes=25,
        section="tiles",
        hints=(
            "Two loops: over tiles of queries outside, over tiles of keys inside. What must a tile "
            "of queries remember from one tile of keys to the next?",
            "Start each tile of queries with the part without keys: weighted 0, maximum −∞, total "
            "0. For each tile of keys compute the scores (b h tile tile), hide what comes later, "
            "and merge the part of these keys into the state. When the keys are through, divide "
            "weighted by total. Causal: query i stands at position i + (k − q).",
            "new = maximum(old maximum, scores.amax(−1)), with 0 for −∞ wherever it is subtracted; "
            "weights = exp(scores − new); shrink = exp(old − new); total = shrink · total + "
            "weights.sum(−1); weighted = shrink · weighted + weights @ values. At the end: "
            "output = weighted / total, 0 where total is 0; logsumexp = maximum + log(total). "
            "Compute in float32 at least.",
        ),
        probes=forward_probes,
        small=forward_small,
        traits=memory_traits(long_call),
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_an_output_and_a_logsumexp_for_every_query(self, answer, rng):
        for dtype in (torch.float32, DOUBLE, HALF):
            inputs = call(rng, 5, 7, 3, dtype=dtype)
            output, logsumexp = answer(inputs)
            wide = torch.promote_types(dtype, torch.float32)
            for name, got, shape, kind in (
                ("output", output, (2, 3, 5, 5), dtype),
                ("logsumexp", logsumexp, (2, 3, 5), wide),
            ):
                if got.shape != shape or got.dtype != kind:
                    raise Failure(
                        f"{name} is {shape_of(got)}, {got.dtype}; for {dtype} inputs expected "
                        f"({' '.join(map(str, shape))}), {kind}.",
                        inputs,
                    )

    @points(1)
    def test_one_tile_is_ordinary_attention(self, answer, rng):
        for n, tile in ((4, 4), (3, 8), (1, 1)):
            agrees(answer, call(rng, n, n, tile), "output")

    @points(2)
    def test_many_tiles_give_the_same_as_one(self, answer, rng):
        for n, tile in ((6, 3), (8, 2), (4, 1)):
            agrees(answer, call(rng, n, n, tile), "output")
        agrees(answer, call(rng, 8, 8, 4, dtype=DOUBLE, b=3, h=3, d=3, v=3), "output")

    @points(1)
    def test_the_last_tile_may_be_shorter(self, answer, rng):
        for n, tile in ((7, 3), (5, 2), (9, 4), (5, 4)):
            agrees(answer, call(rng, n, n, tile), "output")

    @points(1)
    def test_there_may_be_more_keys_than_queries_or_fewer(self, answer, rng):
        for q, k in ((1, 7), (5, 8), (8, 5), (6, 1)):
            agrees(answer, call(rng, q, k, 3), "output")

    @points(1)
    def test_the_logsumexp_is_that_of_all_scores_of_a_query(self, answer, rng):
        for q, k, tile in ((4, 4, 4), (6, 6, 2), (5, 8, 3)):
            agrees(answer, call(rng, q, k, tile), ("logsumexp",))
        agrees(answer, call(rng, 6, 6, 2, True, dtype=DOUBLE), ("logsumexp",))

    @points(1)
    def test_causal_no_query_sees_a_later_key(self, answer, rng):
        for n, tile in ((6, 2), (7, 3), (5, 8), (4, 1)):
            agrees(answer, call(rng, n, n, tile, True), "output")

    @points(1)
    def test_causal_the_queries_are_the_last_positions(self, answer, rng):
        for q, k, tile in ((1, 5, 2), (3, 7, 2), (4, 6, 4)):
            agrees(answer, call(rng, q, k, tile, True), "output")

    @points(1)
    def test_a_query_that_sees_nothing_gets_zero_and_minus_infinity(self, answer, rng):
        for q, k, tile in ((7, 4, 2), (5, 1, 2), (6, 5, 3)):
            agrees(answer, call(rng, q, k, tile, True))

    @points(1)
    def test_scores_of_ten_thousand_stay_finite(self, answer, rng):
        for q, k, tile in ((6, 6, 2), (7, 7, 3), (4, 4, 4)):
            agrees(answer, call(rng, q, k, tile, spread=50.0), tolerance=1e-2)
        low = call(rng, 4, 6, 2)
        low["query"], low["key"] = -200 * torch.ones(2, 3, 4, 4), 100 * torch.ones(2, 3, 6, 4)
        agrees(answer, low, tolerance=1e-2)  # all scores are -40,000

    @points(1)
    def test_half_precision_is_computed_in_float32(self, answer, rng):
        agrees(answer, call(rng, 7, 7, 3, dtype=HALF), tolerance=2e-3)
        agrees(answer, call(rng, 6, 6, 2, True, dtype=HALF, size=6.0), ("output",), 2e-3)
        agrees(answer, call(rng, 6, 6, 2, dtype=HALF, size=6.0), ("logsumexp",), 1e-4)

    @points(2)
    def test_nothing_grows_like_the_square_of_the_length(self, answer, rng):
        computes(answer, call(rng, 6, 6, 3))
        stays_linear(answer, long_call)

    @points(1)
    def test_queries_and_keys_are_both_cut(self, answer, rng):
        computes(answer, call(rng, 6, 6, 3))
        cuts_both(answer, long_call)

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, call(rng, 5, 7, 3))
        moves_nothing(answer, call(rng, 5, 5, 2, True, dtype=DOUBLE))


# --- tiled_backward -----------------------------------------------------------------------------

GRADS = ("grad_query", "grad_key", "grad_value")


def backward(rng, *sizes, **how):
    """Inputs of the backward pass: those of forward, what it returned, and a gradient."""
    forward = call(rng, *sizes, **how)
    output, logsumexp = reference.tiled_attention(**forward)
    tensors = {name: forward[name] for name in ("query", "key", "value")}
    tensors |= {"output": output, "logsumexp": logsumexp}
    tensors["grad_output"] = normal(rng, *output.shape).to(output.dtype)
    return tensors | {"tile": forward["tile"], "causal": forward["causal"]}


def backward_probes(rng):
    return {
        "one tile": backward(rng, 4, 4, 4),
        "tiles": backward(rng, 6, 6, 3),
        "shorter last tile": backward(rng, 7, 7, 3),
        "fewer queries": backward(rng, 5, 8, 3),
        "more queries": backward(rng, 8, 5, 3),
        "causal": backward(rng, 6, 6, 2, True),
        "causal, fewer queries": backward(rng, 3, 7, 2, True),
        "causal, more queries": backward(rng, 7, 4, 2, True),
        "large": backward(rng, 6, 6, 2, spread=20.0),
        "half": backward(rng, 6, 6, 2, dtype=HALF, size=4.0),
        "double": backward(rng, 7, 5, 3, dtype=DOUBLE),
        "tiles of one": backward(rng, 4, 4, 1),
    }


def backward_small(rng):
    for n, tile in ((1, 1), (2, 2), (2, 1), (3, 2)):
        yield backward(rng, n, n, tile, b=1, h=1, d=1, v=1)
        yield backward(rng, n, n, tile, b=1, h=1, d=2, v=1)
    yield backward(rng, 1, 3, 2, b=1, h=1, d=2, v=1)
    yield backward(rng, 2, 2, 1, True, b=1, h=1, d=2, v=1)
    yield backward(rng, 1, 2, 1, True, b=1, h=1, d=2, v=1)
    yield backward(rng, 3, 2, 1, True, b=1, h=1, d=2, v=1)


def long_backward(rng, n):
    return backward(rng, n, n, TILE, True, b=1, h=1, d=3, v=2)


class TestTiledBackward:
    task = Task(
        name="tiled_backward",
        reference=reference.tiled_backward,
        returns=GRADS,
        difficulty=5,
        minutes=20,
        section="backward",
        hints=(
            "Forward threw the weights away. Which of them can you compute again from a tile of "
            "queries, a tile of keys and the logsumexp of these queries alone?",
            "weights = exp(scores − logsumexp), for one tile. Then the chain rule, tile by tile: "
            "grad_value needs the weights; grad_weights = grad_output @ valuesᵀ; through the "
            "softmax: grad_scores = weights · (grad_weights − mean), where the mean of a row over "
            "all keys is Σ grad_output · output. A gradient is a sum over tiles.",
            "mean = (grad_output · output).sum(−1); for each tile: weights = exp(scores − "
            "logsumexp), 0 where hidden or where logsumexp is −∞; grad_value[keys] += weightsᵀ @ "
            "grad_output; grad_scores = weights · (grad_output @ valuesᵀ − mean); grad_query[rows] "
            "+= grad_scores @ keys / √d; grad_key[keys] += grad_scoresᵀ @ queries / √d. In "
            "float32 at least, then back to the dtype of the query.",
        ),
        probes=backward_probes,
        small=backward_small,
        traits=memory_traits(long_backward),
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_a_gradient_is_like_the_tensor_it_belongs_to(self, answer, rng):
        for dtype in (torch.float32, DOUBLE, HALF):
            inputs = backward(rng, 5, 7, 3, dtype=dtype)
            for name, got in zip(GRADS, answer(inputs), strict=True):
                like = inputs[name.removeprefix("grad_")]
                if got.shape != like.shape or got.dtype != dtype:
                    raise Failure(
                        f"{name} is {shape_of(got)}, {got.dtype}; the tensor it belongs to is "
                        f"{shape_of(like)}, {dtype}.",
                        inputs,
                    )

    @points(1)
    def test_the_gradient_of_the_values_is_right(self, answer, rng):
        for n, tile in ((4, 4), (6, 3), (8, 2)):
            agrees(answer, backward(rng, n, n, tile), ("grad_value",))

    @points(1)
    def test_the_gradient_of_the_keys_is_right(self, answer, rng):
        for n, tile in ((4, 4), (6, 3), (8, 2)):
            agrees(answer, backward(rng, n, n, tile), ("grad_key",))

    @points(1)
    def test_the_gradient_of_the_queries_is_right(self, answer, rng):
        for n, tile in ((4, 4), (6, 3), (8, 2)):
            agrees(answer, backward(rng, n, n, tile), ("grad_query",))

    @points(1)
    def test_any_lengths_and_any_tile(self, answer, rng):
        for q, k, tile in ((7, 7, 3), (5, 8, 3), (8, 5, 4), (1, 6, 4), (4, 4, 1), (3, 3, 9)):
            agrees(answer, backward(rng, q, k, tile))
        agrees(answer, backward(rng, 7, 5, 3, dtype=DOUBLE))

    @points(1)
    def test_causal_no_gradient_reaches_a_later_key(self, answer, rng):
        for q, k, tile in ((6, 6, 2), (7, 7, 3), (3, 7, 2), (1, 5, 2)):
            agrees(answer, backward(rng, q, k, tile, True))

    @points(1)
    def test_a_query_that_saw_nothing_has_gradient_zero(self, answer, rng):
        for q, k, tile in ((7, 4, 2), (5, 1, 2), (6, 5, 3)):
            agrees(answer, backward(rng, q, k, tile, True))

    @points(1)
    def test_scores_of_ten_thousand_stay_finite(self, answer, rng):
        for q, k, tile in ((6, 6, 2), (7, 7, 3)):
            agrees(answer, backward(rng, q, k, tile, spread=50.0), tolerance=1e-2)

    @points(1)
    def test_half_precision_is_computed_in_float32(self, answer, rng):
        agrees(answer, backward(rng, 7, 7, 3, dtype=HALF), tolerance=2e-3)
        agrees(answer, backward(rng, 6, 6, 2, True, dtype=HALF, size=4.0), tolerance=3e-3)

    @points(2)
    def test_nothing_grows_like_the_square_of_the_length(self, answer, rng):
        computes(answer, backward(rng, 6, 6, 3))
        stays_linear(answer, long_backward)

    @points(1)
    def test_queries_and_keys_are_both_cut(self, answer, rng):
        computes(answer, backward(rng, 6, 6, 3))
        cuts_both(answer, long_backward)

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, backward(rng, 5, 7, 3))
        moves_nothing(answer, backward(rng, 5, 5, 2, True))


# --- best_tile ----------------------------------------------------------------------------------


def sweep(
    rng, clock="cpu", sizes=(512, 1024, 2048), fastest=3, deep=True, left=2.0, right=2.0,
    naive=1.7, broken=(), beyond=False, tricky=True,
):  # fmt: skip
    """A record with a known truth: the tile number `fastest` of 32 … 1024 is it, at the largest n.

    Args:
        left, right: what the smallest and the largest tile take, over the fastest.
        naive: likewise; None: it ran out of memory.
        broken: tiles that ran out of memory at the largest n.
        beyond: whether there is a further n at which everything tiled ran out of memory.
        tricky: whether another tile wins by the mean, and by the median (CPU) or the best (GPU).
    """
    tiles, entries = (32, 64, 128, 256, 512, 1024), []

    def noisy(cost):
        return [cost * (1 + 0.01 * x) for x in torch.rand(21, generator=rng).tolist()]

    def add(name, n, seconds, **keys):
        point = {"name": name, "n": n, "clock": clock, "seconds": seconds, "dtype": "float32"}
        entries.append(point | {"error": None if seconds else "out of memory"} | keys)

    for n in sizes:
        last = n == sizes[-1]
        best = fastest if last else 0  # at a smaller n another tile is the fastest
        cost = 1e-9 * n**2 * (1 + torch.rand(1, generator=rng).item())
        usable = [i for i in range(len(tiles)) if not (last and tiles[i] in broken)]
        for i, tile in enumerate(tiles):
            if i not in usable:
                add("tiled", n, [], tile=tile)
                continue
            factor = 1.25 + 0.05 * abs(i - best)
            factor = left if i == usable[0] else right if i == usable[-1] else factor
            seconds = noisy(cost * (1 if i == best else factor))
            if tricky and i == best and clock == "cpu":
                seconds[4:] = [1.6 * s for s in seconds[4:]]  # another program came in
            elif tricky and i == best:
                seconds[3] *= 30  # one wild sample: the mean is elsewhere
            elif tricky and clock == "events" and abs(i - best) == 1:
                seconds[7] *= 0.3
            add("tiled", n, seconds, tile=tile)
        add("naive", n, [] if last and naive is None else noisy(cost * (naive or 1.3)))
        add("fused", n, noisy(cost * 0.4))
    if beyond:
        for tile in tiles:
            add("tiled", 2 * sizes[-1], [], tile=tile)
        add("fused", 2 * sizes[-1], noisy(4e-9 * sizes[-1] ** 2))
    order = torch.randperm(len(entries), generator=rng).tolist()
    record = {"lab": "lab6_write_flash", "machine": {}, "predictions": {}}
    return {"record": record | {"points": [entries[i] for i in order]}}


def tile_probes(rng):
    return {
        "a valley": sweep(rng, tricky=False),
        "a busy CPU": sweep(rng),
        "a GPU": sweep(rng, "events", fastest=2),
        "the fastest is the largest": sweep(rng, fastest=5, right=1.0, tricky=False),
        "a flat end": sweep(rng, right=1.06, tricky=False),
        "a flat beginning": sweep(rng, "events", left=1.05, fastest=1, tricky=False),
        "naive is faster": sweep(rng, naive=0.6, tricky=False),
        "naive ran out": sweep(rng, naive=None, tricky=False),
        "tiles ran out": sweep(rng, "events", broken=(1024,), fastest=2, right=1.5),
        "all ran out beyond": sweep(rng, beyond=True, tricky=False),
        "one size": sweep(rng, sizes=(1024,), tricky=False),
    }


def says(answer, inputs, *keys):
    """Assert that the answer says these things of a record."""
    got, expected = answer(inputs), answer.expected(inputs)
    for key in keys:
        if key not in got:
            raise Failure(f'There is no "{key}" in your result.', inputs)
        mine, ours = got[key], expected[key]
        number = isinstance(ours, float) and isinstance(mine, int | float)
        close = number and math.isclose(mine, ours, rel_tol=1e-3)
        if not close and (mine != ours or isinstance(mine, bool) != isinstance(ours, bool)):
            raise Failure(
                f'"{key}" is {mine!r}; for this record (made up, with a known truth) it is '
                f"{ours!r}.",
                None,
                expected,
                got,
            )


def nothing(rng):
    return iter(())


class TestBestTile:
    task = Task(
        name="best_tile",
        reference=reference.best_tile,
        returns=dict,
        difficulty=3,
        minutes=10,
        section="conclude",
        hints=(
            "Sort the record on paper: which points have a time at all, and at which n should "
            "tiles be compared with each other?",
            'Keep the points with seconds. n is the largest of those named "tiled". Make a table '
            'tile → one number a point: the best sample where the clock is "cpu", else the '
            "median. Everything you need, naive too, is at this n.",
            "timed = points without error; n = max over tiled; tiles = {tile: headline} at n; tile "
            "= the key of the smallest; u_shaped = the headlines of min(tiles) and max(tiles) are "
            "both ≥ 1.1 × the smallest headline; speedup = naive's headline at n / the smallest, "
            "or None.",
        ),
        probes=tile_probes,
        small=nothing,
    )

    @points(1)
    def test_it_says_four_things(self, answer, rng):
        got = answer(sweep(rng))
        if set(got) != {"n", "tile", "u_shaped", "speedup"}:
            raise Failure(
                "The result is a dict with the keys n, tile, u_shaped and speedup; yours has "
                f"{', '.join(map(str, got)) or 'none'}."
            )
        if not isinstance(got["u_shaped"], bool):
            raise Failure(f'"u_shaped" is True or False; yours is {got["u_shaped"]!r}.')

    @points(1)
    def test_tiles_are_compared_at_the_largest_length(self, answer, rng):
        for sizes in ((512, 1024, 2048), (1024,), (256, 4096)):
            says(answer, sweep(rng, sizes=sizes, tricky=False), "n", "tile")

    @points(1)
    def test_on_a_cpu_the_best_time_counts(self, answer, rng):
        for fastest in (1, 2, 3, 4):
            says(answer, sweep(rng, fastest=fastest), "tile", "speedup")

    @points(1)
    def test_on_a_gpu_the_median_counts(self, answer, rng):
        for fastest in (1, 2, 3, 4):
            says(answer, sweep(rng, "events", fastest=fastest), "tile", "speedup")

    @points(1)
    def test_a_valley_has_two_slopes(self, answer, rng):
        for left, right in ((2, 2), (2, 1.06), (1.05, 2), (1.5, 1.2), (1.03, 1.04)):
            says(answer, sweep(rng, left=left, right=right, tricky=False), "u_shaped")
        says(answer, sweep(rng, fastest=5, right=1.0, tricky=False), "u_shaped", "tile")
        says(answer, sweep(rng, fastest=0, left=1.0, tricky=False), "u_shaped", "tile")

    @points(1)
    def test_the_speedup_is_over_naive_at_the_same_length(self, answer, rng):
        for naive in (0.6, 1.2, 3.0):
            says(answer, sweep(rng, naive=naive, tricky=False), "speedup")

    @points(1)
    def test_out_of_memory_is_no_time(self, answer, rng):
        says(answer, sweep(rng, naive=None, tricky=False), "n", "tile", "speedup")
        says(answer, sweep(rng, broken=(1024,), fastest=2), "tile", "u_shaped")
        says(answer, sweep(rng, broken=(32,), fastest=2, left=1.02), "tile", "u_shaped")
        says(answer, sweep(rng, beyond=True, tricky=False), "n", "tile", "speedup")

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, sweep(rng))


# --- lab6_receipt -------------------------------------------------------------------------------


def kind_of(answer):
    """Whether there is text; None if nothing was handed in."""

    def look():
        text = answer()
        return None if text is None else {"is text": isinstance(text, str)}

    return look


def text_of(answer):
    return lambda: {"receipt": answer()}


def read(answer) -> dict:
    """The record that was handed in, or a Failure that says what to do."""
    seen = answer.observe({}, adapt=text_of)
    text = seen.returned.get("receipt") if isinstance(seen.returned, dict) else None
    if seen.error:
        raise Failure(f"Your answer {seen.error}")
    if text is None or text == "":
        raise Unanswered("There is no receipt yet.")
    if not isinstance(text, str):
        raise Failure("`lab6_receipt()` returns the receipt as text, in quotes.")
    try:
        return decode(text)
    except ReceiptError as error:
        raise Failure(f"The receipt cannot be read: {error}") from None


def record_of(answer) -> dict:
    """The record of this lab, or a Failure: of another one there is nothing more to say."""
    record = read(answer)
    if record["lab"] != "lab6_write_flash":
        raise Failure(f"This is a receipt of {record['lab'] or 'no lab'}, not of this one.")
    return record


def tiles_at(record) -> dict[int, set]:
    """n -> tiles with a time or with an error that says why there is none."""
    found: dict[int, set] = {}
    for point in record["points"]:
        known = point.get("seconds") or point.get("error")
        if point["name"] == "tiled" and point.get("tile") and point.get("n") and known:
            found.setdefault(point["n"], set()).add(point["tile"])
    return found


def is_a_sweep(record) -> str:
    """What is missing, in words; "" if nothing is."""
    tiles = tiles_at(record)
    if not tiles:
        return 'There is no point named "tiled" with a tile and an n.'
    n = max(tiles)
    if len(tiles[n]) < 4 or max(tiles[n]) < 8 * min(tiles[n]):
        return (
            f"At n = {n:g} there are {len(tiles[n])} tile sizes. A curve needs 4 or more, and "
            "the largest at least 8 times the smallest."
        )
    if len(tiles) < 3:
        return f"There are {len(tiles)} lengths; with 3 or more one sees what grows."
    for name in ("naive", "fused"):
        beside = [
            point
            for point in record["points"]
            if point["name"] == name and point.get("n") == n
            and (point.get("seconds") or point.get("error"))
        ]  # fmt: skip
        if not beside:
            return f"At n = {n:g} there is no {name} attention beside the tiles."
    return ""


def predicted(record) -> bool:
    made = record["predictions"].get("best tile")
    return isinstance(made, dict) and made.get("value") is not None and not made.get("points")


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure:
        return {"cannot be read": True}
    return {
        "cannot be read": False,
        "another lab": record["lab"] != "lab6_write_flash",
        "no sweep": bool(is_a_sweep(record)),
        "no prediction": not predicted(record),
        "audit": not passed(audit(record)),
    }


class TestLab6Receipt:
    task = Task(
        name="lab6_receipt",
        reference=reference.lab6_receipt,
        returns=dict,
        difficulty=1,
        minutes=5,
        section="measure",
        hints=(
            "Run the cell that predicts and the cell that measures, from the top. At its end, the "
            "second one prints the receipt.",
            "Copy all of the text between the three quotes, from attn1: to its last character, "
            "and paste it between three quotes here, after `return`.",
            'return """attn1:… (all lines as printed) …""". If the audit complains about a '
            "point, measure that one again: rename the .jsonl file beside the notebook first.",
        ),
        probes=lambda rng: {"receipt": {}},
        small=nothing,
        adapt=kind_of,
        traits=receipt_traits,
    )

    @points(1)
    def test_it_is_a_receipt_of_this_lab(self, answer):
        record_of(answer)

    @points(1)
    def test_tiles_are_swept_with_naive_and_fused_beside_them(self, answer):
        missing = is_a_sweep(record_of(answer))
        if missing:
            raise Failure(missing)

    @points(1)
    def test_the_best_tile_was_predicted_before_measuring(self, answer):
        if not predicted(record_of(answer)):
            raise Failure(
                'There is no prediction of the "best tile" from before the first measurement. It '
                "need not be right; run the predicting cell first, then measure."
            )

    @points(2)
    def test_nothing_in_it_is_impossible_or_contradicts_itself(self, answer):
        findings = audit(record_of(answer))
        if not passed(findings):
            raise Failure(summary(findings))
