"""tiled_attention."""

import math

import torch

from attncourse.checks.answer import Failure, moves_nothing, shape_of
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.tasks.lab6_write_flash import (
    DOUBLE,
    HALF,
    TILE,
    agrees,
    call,
    computes,
    cuts_both,
    memory_traits,
    stays_linear,
)
from attncourse.tasks.lab6_write_flash._faults import INFINITY, finite, hide_later


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


task = Task(
    reference.tiled_attention,
    number=2,
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


@task.check(1)
def an_output_and_a_logsumexp_for_every_query(answer, rng):
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


@task.check(1)
def one_tile_is_ordinary_attention(answer, rng):
    for n, tile in ((4, 4), (3, 8), (1, 1)):
        agrees(answer, call(rng, n, n, tile), "output")


@task.check(2)
def many_tiles_give_the_same_as_one(answer, rng):
    for n, tile in ((6, 3), (8, 2), (4, 1)):
        agrees(answer, call(rng, n, n, tile), "output")
    agrees(answer, call(rng, 8, 8, 4, dtype=DOUBLE, b=3, h=3, d=3, v=3), "output")


@task.check(1)
def the_last_tile_may_be_shorter(answer, rng):
    for n, tile in ((7, 3), (5, 2), (9, 4), (5, 4)):
        agrees(answer, call(rng, n, n, tile), "output")


@task.check(1)
def there_may_be_more_keys_than_queries_or_fewer(answer, rng):
    for q, k in ((1, 7), (5, 8), (8, 5), (6, 1)):
        agrees(answer, call(rng, q, k, 3), "output")


@task.check(1)
def the_logsumexp_is_that_of_all_scores_of_a_query(answer, rng):
    for q, k, tile in ((4, 4, 4), (6, 6, 2), (5, 8, 3)):
        agrees(answer, call(rng, q, k, tile), ("logsumexp",))
    agrees(answer, call(rng, 6, 6, 2, True, dtype=DOUBLE), ("logsumexp",))


@task.check(1)
def causal_no_query_sees_a_later_key(answer, rng):
    for n, tile in ((6, 2), (7, 3), (5, 8), (4, 1)):
        agrees(answer, call(rng, n, n, tile, True), "output")


@task.check(1)
def causal_the_queries_are_the_last_positions(answer, rng):
    for q, k, tile in ((1, 5, 2), (3, 7, 2), (4, 6, 4)):
        agrees(answer, call(rng, q, k, tile, True), "output")


@task.check(1)
def a_query_that_sees_nothing_gets_zero_and_minus_infinity(answer, rng):
    for q, k, tile in ((7, 4, 2), (5, 1, 2), (6, 5, 3)):
        agrees(answer, call(rng, q, k, tile, True))


@task.check(1)
def scores_of_ten_thousand_stay_finite(answer, rng):
    for q, k, tile in ((6, 6, 2), (7, 7, 3), (4, 4, 4)):
        agrees(answer, call(rng, q, k, tile, spread=50.0), tolerance=1e-2)
    low = call(rng, 4, 6, 2)
    low["query"], low["key"] = -200 * torch.ones(2, 3, 4, 4), 100 * torch.ones(2, 3, 6, 4)
    agrees(answer, low, tolerance=1e-2)  # all scores are -40,000


@task.check(1)
def half_precision_is_computed_in_float32(answer, rng):
    agrees(answer, call(rng, 7, 7, 3, dtype=HALF), tolerance=2e-3)
    agrees(answer, call(rng, 6, 6, 2, True, dtype=HALF, size=6.0), ("output",), 2e-3)
    agrees(answer, call(rng, 6, 6, 2, dtype=HALF, size=6.0), ("logsumexp",), 1e-4)


@task.check(2)
def nothing_grows_like_the_square_of_the_length(answer, rng):
    computes(answer, call(rng, 6, 6, 3))
    stays_linear(answer, long_call)


@task.check(1)
def queries_and_keys_are_both_cut(answer, rng):
    computes(answer, call(rng, 6, 6, 3))
    cuts_both(answer, long_call)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, call(rng, 5, 7, 3))
    moves_nothing(answer, call(rng, 5, 5, 2, True, dtype=DOUBLE))


# --- faults ---------------------------------------------------------------------------------------


def forward(query, key, value, tile, causal, **thought):
    """Tiled attention with one thought changed; without a thought it is right."""
    (q, d), k, v = query.shape[-2:], key.shape[-2], value.shape[-1]
    wide = query.dtype if "half" in thought else torch.promote_types(query.dtype, torch.float32)
    result = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], v)
    logsumexp = query.new_zeros(query.shape[:-1], dtype=result)
    scale = 1.0 if "no_scale" in thought else 1 / math.sqrt(d)
    whole = (k // tile * tile, q // tile * tile) if "no_rest" in thought else (k, q)
    if "pads" in thought and k % tile:
        room = (*key.shape[:-2], tile - k % tile)
        key = torch.cat([key, key.new_zeros(*room, d)], dim=-2)
        value = torch.cat([value, value.new_zeros(*room, v)], dim=-2)
        whole = (key.shape[-2], q)
    if "whole_mask" in thought:
        visible = torch.ones(q, k, dtype=torch.bool).tril(k - q)
    for row in range(0, whole[1], tile):
        rows = slice(row, row + tile)
        queries = query[..., rows, :].to(wide) * scale
        maximum = torch.full_like(queries[..., 0], -INFINITY)
        total = torch.zeros_like(maximum)
        weighted = torch.zeros(*maximum.shape, v, dtype=wide)
        for column in range(0, whole[0], tile):
            columns = slice(column, column + tile)
            scores = queries @ key[..., columns, :].to(wide).mT
            if causal and "whole_mask" in thought:
                scores = scores.masked_fill(~visible[rows, columns], -INFINITY)
            elif causal and "own_tile" in thought:
                scores = hide_later(scores, 0, 0)
            elif causal and "start" in thought:
                scores = hide_later(scores, row, column)
            elif causal and "ignored" not in thought:
                scores = hide_later(scores, row + k - q, column)
            new = torch.maximum(maximum, scores.amax(-1))
            if "no_max" in thought:
                new = torch.zeros_like(new)
                maximum = new
            origin = new if "nan" in thought else finite(new)
            weights = (scores - origin[..., None]).exp()
            shrink = (maximum - origin).exp()
            shrink = torch.ones_like(shrink) if "no_rescale" in thought else shrink
            total = shrink * total + weights.sum(-1)
            weighted = shrink[..., None] * weighted + weights @ value[..., columns, :].to(wide)
            if "divides" in thought:
                weighted = weighted / total.clamp(min=1)[..., None]
            maximum = new
        if "divides" in thought:
            output[..., rows, :] = weighted
        elif "nan" in thought or "no_max" in thought:
            output[..., rows, :] = weighted / total[..., None]
        else:
            output[..., rows, :] = weighted / total.clamp(min=1)[..., None]
        logarithm = total.log()
        found = logarithm if "no_lse_max" in thought else maximum + logarithm
        logsumexp[..., rows] = maximum.to(result) if "lse_max" in thought else found.to(result)
    return output, logsumexp


@task.fault(
    "L6-NO-RESCALE",
    thinks="When a larger maximum comes, only the new tile uses it.",
    why="What was summed before is still counted in units of e to the old maximum. The sums so far "
    "must shrink when the maximum grows.",
    section="merge",
)
def sums_keep_their_unit(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_rescale=True)


@task.fault(
    "L6-TILE-SOFTMAX",
    thinks="A softmax for each tile, then the mean over the tiles.",
    why="That gives every tile the same share, whether it holds the best key or none worth "
    "reading. Tiles must compete with each other by their totals.",
    section="four-numbers",
)
def mean_of_tiles(query, key, value, tile, causal=False):
    q, k = query.shape[-2], key.shape[-2]
    outputs, sums = [], []
    for column in range(0, k, tile):
        columns = slice(column, column + tile)
        scores = query.float() @ key[..., columns, :].float().mT / math.sqrt(query.shape[-1])
        if causal:
            scores = hide_later(scores, k - q, column)
        outputs.append(scores.softmax(-1).nan_to_num() @ value[..., columns, :].float())
        sums.append(scores.logsumexp(-1))
    wide = torch.promote_types(query.dtype, torch.float32)
    logsumexp = torch.stack(sums).logsumexp(0).to(wide)
    return torch.stack(outputs).mean(0).to(query.dtype), logsumexp


@task.fault(
    "L6-DIVIDES-EACH",
    thinks="After every tile the state is divided by its total.",
    why="The next tile then meets an output in place of a sum, and dividing again by a total that "
    "holds the old keys counts them twice. Divide once, at the end.",
)
def divides_after_each_tile(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, divides=True)


@task.fault(
    "L6-NO-SCALE",
    thinks="Tiles change how scores are computed, and the division by the root of d is gone.",
    why="It is the same attention as before, only in another order: the scores are q·k over the "
    "square root of the width.",
)
def not_scaled(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_scale=True)


@task.fault(
    "L6-NO-REST",
    thinks="There are n // tile tiles.",
    why="Only if the tile divides n. Otherwise the last positions are never visited, as queries "
    "and as keys.",
)
def rest_left_out(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_rest=True)


@task.fault(
    "L6-PADS-COUNT",
    thinks="Keys of zeros fill the last tile, and zeros change nothing.",
    why="A key of zeros has the score 0, and e to 0 is 1: it takes its share of the total. What "
    "fills a tile must be hidden, by a score of −∞.",
)
def padded_with_zeros(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, pads=True)


@task.fault(
    "L6-CAUSAL-IGNORED",
    thinks="In tiles, no mask is needed.",
    why="With causal=True no query may see a later key. Tiles on the diagonal are half hidden, and "
    "tiles right of it wholly.",
)
def causal_ignored(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, ignored=True)


@task.fault(
    "L6-OWN-TILE",
    thinks="Each tile gets a triangle, counted from the tile's own corner.",
    why="Later is a matter of positions in the whole sequence. Add where the tile begins, for the "
    "queries and for the keys, before you compare.",
)
def triangle_in_each_tile(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, own_tile=True)


@task.fault(
    "L6-CAUSAL-START",
    thinks="Query 0 stands at position 0, also when there are more keys than queries.",
    why="Here the queries are the last positions, as in a writer that keeps its keys: query 0 "
    "comes after the k − q keys before it.",
)
def aligned_at_the_start(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, start=True)


@task.fault(
    "L6-EMPTY-NAN",
    thinks="Every query sees at least one key.",
    why="With more queries than keys the first ones see none, and a whole tile may be hidden. "
    "Then −∞ − (−∞) and 0/0 appear, and neither is a number.",
    section="nothing-seen",
)
def nan_where_nothing_is_seen(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, nan=True)


@task.fault(
    "L6-NO-MAX",
    thinks="Without the maximum the sums are plain sums, and no rescaling is needed.",
    why="On paper, yes. But e to 89 is infinite in float32, and scores may reach 10,000. The "
    "running maximum is what keeps every exponential at 1 or below.",
    section="four-numbers",
)
def no_maximum(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_max=True)


@task.fault(
    "L6-LSE-NO-MAX",
    thinks="The logsumexp is the logarithm of the total.",
    why="The total is counted in units of e to the maximum. Its logarithm lacks exactly that "
    "maximum.",
    section="backward",
)
def logarithm_of_total(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_lse_max=True)


@task.fault(
    "L6-LSE-IS-MAX",
    thinks="The backward pass needs the maximum, so that is what is kept.",
    why="With the maximum alone the weights could not be computed again: the total is missing. "
    "Both together fit into one number.",
    section="backward",
)
def maximum_for_logsumexp(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, lse_max=True)


@task.fault(
    "L6-HALF",
    thinks="Half precision goes in, so everything is computed in it.",
    why="float16 has three digits: at a score of 1,000 neighbors differ by 0.5, a factor of 1.6 in "
    "the weight. Multiply halves, but compute scores and sums in float32.",
)
def all_in_half(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, half=True)


def all_at_once(query, key, value, causal):
    q, k, wide = query.shape[-2], key.shape[-2], torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).mT / math.sqrt(query.shape[-1])
    if causal:
        scores = hide_later(scores, k - q, 0)
    return scores, scores.logsumexp(-1)


@task.fault(
    "L6-WHOLE-MATRIX",
    thinks="The scores are computed at once, and tiles are cut out of them.",
    why="The values are right, but the n × n scores exist again, and they were the reason for "
    "tiles. Cut queries and keys first; multiply tile by tile.",
    section="meter",
)
def whole_scores(query, key, value, tile, causal=False):
    scores, logsumexp = all_at_once(query, key, value, causal)
    weights = (scores - finite(logsumexp)[..., None]).exp()
    return (weights @ value.to(weights.dtype)).to(query.dtype), logsumexp


@task.fault(
    "L6-WHOLE-MASK",
    thinks="A boolean mask is small, so it is made once for all positions.",
    why="It has an entry for every query and key: at 100,000 positions 10 billion bytes. Whether a "
    "key comes later follows from two positions, in each tile.",
    section="meter",
)
def whole_mask(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, whole_mask=True)


@task.fault(
    "L6-WHOLE-ROWS",
    thinks="Cutting the queries is enough: a few rows of scores at a time.",
    why="Memory then grows like n, which is good. But a row is as long as the sequence, too long "
    "for the chip's small memory; and nothing is merged. Cut the keys, too.",
    section="meter",
)
def rows_at_once(query, key, value, tile, causal=False):
    q, k = query.shape[-2], key.shape[-2]
    wide = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    logsumexp = query.new_zeros(query.shape[:-1], dtype=wide)
    for row in range(0, q, tile):
        rows = slice(row, row + tile)
        scores = query[..., rows, :].to(wide) @ key.to(wide).mT / math.sqrt(query.shape[-1])
        if causal:
            scores = hide_later(scores, row + k - q, 0)
        logsumexp[..., rows] = scores.logsumexp(-1)
        weights = (scores - finite(logsumexp[..., rows])[..., None]).exp()
        output[..., rows, :] = (weights @ value.to(wide)).to(query.dtype)
    return output, logsumexp


@task.fault(
    "L6-KEEPS-TILES",
    thinks="First all tiles of scores are collected in a list, then the maximum is known.",
    why="The tiles in the list are the n × n scores, in pieces. A running maximum makes the list "
    "unnecessary: use a tile, then let go of it.",
    section="meter",
)
def collects_all_tiles(query, key, value, tile, causal=False):
    q, k = query.shape[-2], key.shape[-2]
    wide = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    logsumexp = query.new_full(query.shape[:-1], -INFINITY, dtype=wide)
    kept = {}
    for row in range(0, q, tile):
        rows = slice(row, row + tile)
        for column in range(0, k, tile):
            keys = key[..., column : column + tile, :].to(wide)
            scores = query[..., rows, :].to(wide) @ keys.mT / math.sqrt(query.shape[-1])
            kept[row, column] = hide_later(scores, row + k - q, column) if causal else scores
            logsumexp[..., rows] = logsumexp[..., rows].logaddexp(kept[row, column].logsumexp(-1))
    for (row, column), scores in kept.items():
        rows = slice(row, row + tile)
        weights = (scores - finite(logsumexp[..., rows])[..., None]).exp()
        output[..., rows, :] += (weights @ value[..., column : column + tile, :].to(wide)).to(
            output
        )
    return output, logsumexp
