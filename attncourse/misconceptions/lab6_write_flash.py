"""Wrong answers of lab 6. Each differs from a right one in one thought."""

import math
import random
import statistics

import torch

from attncourse.lab.receipts import encode
from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

INFINITY = math.inf


def finite(maximum):
    return maximum.masked_fill(maximum == -INFINITY, 0)


# --- merge --------------------------------------------------------------------------------------

MERGE = "merge"


@wrong(
    "L6-NO-RESCALE",
    MERGE,
    thinks="Two sums over different keys are added.",
    why="Each sum is counted in units of e to its own maximum. Before they are added, both need "
    "the same unit, like meters and feet.",
    section="merge",
)
def added_as_they_are(one, two):
    return one[0] + two[0], torch.maximum(one[1], two[1]), one[2] + two[2]


@wrong(
    "L6-ONE-SIDE",
    MERGE,
    thinks="The new part has the larger maximum, so only the old sums must shrink.",
    why="Either part may hold the larger maximum. If the old one does, it is the new part that "
    "must shrink.",
    section="merge",
)
def only_the_first_shrinks(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrink = (one[1] - finite(maximum)).exp()
    return one[0] * shrink[..., None] + two[0], maximum, one[2] * shrink + two[2]


@wrong(
    "L6-WEIGHTED-FORGOTTEN",
    MERGE,
    thinks="Only the totals depend on the maximum, so only they are rescaled.",
    why="The weighted values are sums of the same exponentials, times values. They change with the "
    "unit exactly as the total does.",
    section="merge",
)
def only_totals_shrink(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrinks = [(part[1] - finite(maximum)).exp() for part in (one, two)]
    return one[0] + two[0], maximum, one[2] * shrinks[0] + two[2] * shrinks[1]


@wrong(
    "L6-UPSIDE-DOWN",
    MERGE,
    thinks="The factor is e to the common maximum minus the own one.",
    why="That factor is 1 or more, so the part with the lower scores would grow. It must shrink: "
    "its keys matter less than it believed.",
    section="merge",
)
def grows_instead(one, two):
    maximum = torch.maximum(one[1], two[1])
    grow = [(finite(maximum) - finite(part[1])).exp() for part in (one, two)]
    weighted = one[0] * grow[0][..., None] + two[0] * grow[1][..., None]
    return weighted, maximum, one[2] * grow[0] + two[2] * grow[1]


@wrong(
    "L6-EMPTY-NAN",
    MERGE,
    thinks="e to the difference of two maxima is always a number.",
    why="If neither part has seen a key, both maxima are −∞, and −∞ − (−∞) is not a number. One "
    "NaN spreads to everything computed from it.",
    section="nothing-seen",
)
def nan_if_both_are_empty(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrinks = [(part[1] - maximum).exp() for part in (one, two)]
    weighted = one[0] * shrinks[0][..., None] + two[0] * shrinks[1][..., None]
    return weighted, maximum, one[2] * shrinks[0] + two[2] * shrinks[1]


@wrong(
    "L6-NORMALIZED",
    MERGE,
    thinks="A merged part should already be the output, so divide by the total.",
    why="Then it can no longer be merged with the next one as it stands: the total would be "
    "counted twice. Divide once, after the last tile.",
    section="merge",
)
def divided_already(one, two):
    maximum = torch.maximum(one[1], two[1])
    shrinks = [(part[1] - finite(maximum)).exp() for part in (one, two)]
    weighted = one[0] * shrinks[0][..., None] + two[0] * shrinks[1][..., None]
    total = one[2] * shrinks[0] + two[2] * shrinks[1]
    return weighted / total.clamp(min=1)[..., None], maximum, total


@wrong(
    "L6-NO-MAX",
    MERGE,
    thinks="To get a common unit, multiply by e to the maximum and divide by e to the new one.",
    why="Right on paper. But e to 89 is already infinite in float32, and ∞/∞ is not a number. "
    "Subtract the maxima first, then take one exponential.",
    section="merge",
)
def through_the_exponentials(one, two):
    maximum = torch.maximum(one[1], two[1])
    unit = finite(maximum).exp()
    shrinks = [part[1].exp() / unit for part in (one, two)]
    weighted = one[0] * shrinks[0][..., None] + two[0] * shrinks[1][..., None]
    return weighted, maximum, one[2] * shrinks[0] + two[2] * shrinks[1]


# --- tiled_attention ----------------------------------------------------------------------------

FORWARD = "tiled_attention"


def hide_later(scores, position, column):
    q, k = scores.shape[-2:]
    queries, keys = torch.arange(q) + position, torch.arange(k) + column
    return scores.masked_fill(keys > queries[:, None], -INFINITY)


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


@wrong(
    "L6-NO-RESCALE",
    FORWARD,
    thinks="When a larger maximum comes, only the new tile uses it.",
    why="What was summed before is still counted in units of e to the old maximum. The sums so far "
    "must shrink when the maximum grows.",
    section="merge",
)
def sums_keep_their_unit(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_rescale=True)


@wrong(
    "L6-TILE-SOFTMAX",
    FORWARD,
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


@wrong(
    "L6-DIVIDES-EACH",
    FORWARD,
    thinks="After every tile the state is divided by its total.",
    why="The next tile then meets an output in place of a sum, and dividing again by a total that "
    "holds the old keys counts them twice. Divide once, at the end.",
    section="tiles",
)
def divides_after_each_tile(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, divides=True)


@wrong(
    "L6-NO-SCALE",
    FORWARD,
    thinks="Tiles change how scores are computed, and the division by the root of d is gone.",
    why="It is the same attention as before, only in another order: the scores are q·k over the "
    "square root of the width.",
    section="tiles",
)
def not_scaled(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_scale=True)


@wrong(
    "L6-NO-REST",
    FORWARD,
    thinks="There are n // tile tiles.",
    why="Only if the tile divides n. Otherwise the last positions are never visited, as queries "
    "and as keys.",
    section="tiles",
)
def rest_left_out(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_rest=True)


@wrong(
    "L6-PADS-COUNT",
    FORWARD,
    thinks="Keys of zeros fill the last tile, and zeros change nothing.",
    why="A key of zeros has the score 0, and e to 0 is 1: it takes its share of the total. What "
    "fills a tile must be hidden, by a score of −∞.",
    section="tiles",
)
def padded_with_zeros(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, pads=True)


@wrong(
    "L6-CAUSAL-IGNORED",
    FORWARD,
    thinks="In tiles, no mask is needed.",
    why="With causal=True no query may see a later key. Tiles on the diagonal are half hidden, and "
    "tiles right of it wholly.",
    section="tiles",
)
def causal_ignored(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, ignored=True)


@wrong(
    "L6-OWN-TILE",
    FORWARD,
    thinks="Each tile gets a triangle, counted from the tile's own corner.",
    why="Later is a matter of positions in the whole sequence. Add where the tile begins, for the "
    "queries and for the keys, before you compare.",
    section="tiles",
)
def triangle_in_each_tile(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, own_tile=True)


@wrong(
    "L6-CAUSAL-START",
    FORWARD,
    thinks="Query 0 stands at position 0, also when there are more keys than queries.",
    why="Here the queries are the last positions, as in a writer that keeps its keys: query 0 "
    "comes after the k − q keys before it.",
    section="tiles",
)
def aligned_at_the_start(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, start=True)


@wrong(
    "L6-EMPTY-NAN",
    FORWARD,
    thinks="Every query sees at least one key.",
    why="With more queries than keys the first ones see none, and a whole tile may be hidden. "
    "Then −∞ − (−∞) and 0/0 appear, and neither is a number.",
    section="nothing-seen",
)
def nan_where_nothing_is_seen(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, nan=True)


@wrong(
    "L6-NO-MAX",
    FORWARD,
    thinks="Without the maximum the sums are plain sums, and no rescaling is needed.",
    why="On paper, yes. But e to 89 is infinite in float32, and scores may reach 10,000. The "
    "running maximum is what keeps every exponential at 1 or below.",
    section="four-numbers",
)
def no_maximum(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_max=True)


@wrong(
    "L6-LSE-NO-MAX",
    FORWARD,
    thinks="The logsumexp is the logarithm of the total.",
    why="The total is counted in units of e to the maximum. Its logarithm lacks exactly that "
    "maximum.",
    section="backward",
)
def logarithm_of_total(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, no_lse_max=True)


@wrong(
    "L6-LSE-IS-MAX",
    FORWARD,
    thinks="The backward pass needs the maximum, so that is what is kept.",
    why="With the maximum alone the weights could not be computed again: the total is missing. "
    "Both together fit into one number.",
    section="backward",
)
def maximum_for_logsumexp(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, lse_max=True)


@wrong(
    "L6-HALF",
    FORWARD,
    thinks="Half precision goes in, so everything is computed in it.",
    why="float16 has three digits: at a score of 1,000 neighbors differ by 0.5, a factor of 1.6 in "
    "the weight. Multiply halves, but compute scores and sums in float32.",
    section="tiles",
)
def all_in_half(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, half=True)


def all_at_once(query, key, value, causal):
    q, k, wide = query.shape[-2], key.shape[-2], torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).mT / math.sqrt(query.shape[-1])
    if causal:
        scores = hide_later(scores, k - q, 0)
    return scores, scores.logsumexp(-1)


@wrong(
    "L6-WHOLE-MATRIX",
    FORWARD,
    thinks="The scores are computed at once, and tiles are cut out of them.",
    why="The values are right, but the n × n scores exist again, and they were the reason for "
    "tiles. Cut queries and keys first; multiply tile by tile.",
    section="meter",
)
def whole_scores(query, key, value, tile, causal=False):
    scores, logsumexp = all_at_once(query, key, value, causal)
    weights = (scores - finite(logsumexp)[..., None]).exp()
    return (weights @ value.to(weights.dtype)).to(query.dtype), logsumexp


@wrong(
    "L6-WHOLE-MASK",
    FORWARD,
    thinks="A boolean mask is small, so it is made once for all positions.",
    why="It has an entry for every query and key: at 100,000 positions 10 billion bytes. Whether a "
    "key comes later follows from two positions, in each tile.",
    section="meter",
)
def whole_mask(query, key, value, tile, causal=False):
    return forward(query, key, value, tile, causal, whole_mask=True)


@wrong(
    "L6-WHOLE-ROWS",
    FORWARD,
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


@wrong(
    "L6-KEEPS-TILES",
    FORWARD,
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


# --- tiled_backward -----------------------------------------------------------------------------

BACKWARD = "tiled_backward"


def backward(query, key, value, output, logsumexp, grad_output, tile, causal, **thought):
    """Tiled backward with one thought changed; without a thought it is right."""
    (q, d), k = query.shape[-2:], key.shape[-2]
    wide = query.dtype if "half" in thought else logsumexp.dtype
    scale = 1 / math.sqrt(d)
    mean = (grad_output.to(wide) * output.to(wide)).sum(-1, keepdim=True)
    grads = [torch.zeros_like(x, dtype=wide) for x in (query, key, value)]
    keep = 0.0 if "overwrites" in thought else 1.0
    for row in range(0, q, tile):
        rows = slice(row, row + tile)
        queries, upstream = query[..., rows, :].to(wide), grad_output[..., rows, :].to(wide)
        for column in range(0, k, tile):
            columns = slice(column, column + tile)
            keys, values = key[..., columns, :].to(wide), value[..., columns, :].to(wide)
            scores = queries @ keys.mT * scale
            if causal and "start" in thought:
                scores = hide_later(scores, row, column)
            elif causal and "ignored" not in thought:
                scores = hide_later(scores, row + k - q, column)
            origin = logsumexp[..., rows, None].to(wide)
            weights = (scores - (origin if "nan" in thought else finite(origin))).exp()
            if "tile_softmax" in thought:
                weights = scores.softmax(-1).nan_to_num()
            grad_weights = upstream @ values.mT
            middle = mean[..., rows, :]
            if "tile_mean" in thought:
                middle = (weights * grad_weights).sum(-1, keepdim=True)
            middle = 0 * middle if "no_mean" in thought else middle
            grad_scores = weights * (grad_weights - middle)
            if "no_scale" not in thought:
                grad_scores = grad_scores * scale
            grads[0][..., rows, :] += grad_scores @ keys
            for grad, added in (
                (grads[1], grad_scores.mT @ queries),
                (grads[2], weights.mT @ upstream),
            ):
                grad[..., columns, :] = keep * grad[..., columns, :] + added
    return tuple(grad.to(query.dtype) for grad in grads)


@wrong(
    "L6-NO-MEAN",
    BACKWARD,
    thinks="The gradient of a score is its weight times the gradient of the weight.",
    why="A score that rises takes weight away from all other keys of its row. That is the mean "
    "which is subtracted before the product.",
    section="backward",
)
def no_mean(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(query, key, value, output, logsumexp, grad_output, tile, causal, no_mean=True)


@wrong(
    "L6-TILE-MEAN",
    BACKWARD,
    thinks="The mean of the gradients is taken over the keys of the tile.",
    why="A score competes with all keys of its row, in every tile. The mean over all of them is "
    "known without visiting them: grad_output times output, summed over the width.",
    section="backward",
)
def mean_within_the_tile(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(query, key, value, output, logsumexp, grad_output, tile, causal, tile_mean=True)


@wrong(
    "L6-TILE-SOFTMAX",
    BACKWARD,
    thinks="The weights of a tile are the softmax of its scores.",
    why="That softmax knows only the keys of this tile, and its rows sum to one in every tile. The "
    "logsumexp of forward knows all keys.",
    section="backward",
)
def softmax_within_the_tile(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(
        query, key, value, output, logsumexp, grad_output, tile, causal, tile_softmax=True
    )


@wrong(
    "L6-NO-SCALE",
    BACKWARD,
    thinks="The root of d belongs to the scores and is done with.",
    why="Scores are q·k over the root of d, so the gradient of a query is the keys times the "
    "gradient of the scores, over the same root.",
    section="backward",
)
def gradient_not_scaled(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(query, key, value, output, logsumexp, grad_output, tile, causal, no_scale=True)


@wrong(
    "L6-OVERWRITES",
    BACKWARD,
    thinks="Each tile writes its gradients into their places.",
    why="A key is read by many tiles of queries, and each adds to its gradient. Written with = "
    "only the last one is left.",
    section="backward",
)
def last_tile_wins(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(
        query, key, value, output, logsumexp, grad_output, tile, causal, overwrites=True
    )


@wrong(
    "L6-CAUSAL-IGNORED",
    BACKWARD,
    thinks="Forward has hidden the later keys, so backward need not.",
    why="Backward computes the weights again, from the scores. A key that forward hid gets a "
    "weight again unless it is hidden again.",
    section="backward",
)
def not_hidden_again(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(query, key, value, output, logsumexp, grad_output, tile, causal, ignored=True)


@wrong(
    "L6-CAUSAL-START",
    BACKWARD,
    thinks="In backward, too, query 0 stands at position 0.",
    why="Forward put the queries at the end of the keys. Backward must hide exactly the same "
    "places, or it differentiates another function.",
    section="backward",
)
def backward_from_the_start(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(query, key, value, output, logsumexp, grad_output, tile, causal, start=True)


@wrong(
    "L6-EMPTY-NAN",
    BACKWARD,
    thinks="The logsumexp is a number for every query.",
    why="It is −∞ for a query that saw nothing, and −∞ − (−∞) is not a number. Its gradients are "
    "0, as nothing it did had any effect.",
    section="nothing-seen",
)
def nan_from_nothing(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(query, key, value, output, logsumexp, grad_output, tile, causal, nan=True)


@wrong(
    "L6-HALF",
    BACKWARD,
    thinks="Gradients in half precision are computed in half precision.",
    why="A gradient is a sum over many tiles, and each addition in float16 keeps three digits. Sum "
    "in float32, round once at the end.",
    section="backward",
)
def gradients_in_half(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    return backward(query, key, value, output, logsumexp, grad_output, tile, causal, half=True)


@wrong(
    "L6-WHOLE-MATRIX",
    BACKWARD,
    thinks="Backward happens once, so it may hold all weights.",
    why="Memory is counted at its peak. With n × n weights in backward, training runs out where it "
    "did before, and the tiles of forward have won nothing.",
    section="meter",
)
def whole_weights(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    n = max(query.shape[-2], key.shape[-2])
    return backward(query, key, value, output, logsumexp, grad_output, n, causal)


# --- best_tile ----------------------------------------------------------------------------------

TILE = "best_tile"


def headline(point):
    best = point["clock"] == "cpu"
    return min(point["seconds"]) if best else statistics.median(point["seconds"])


def conclude(record, number=headline, margin=1.1, least=None, compared="naive"):
    timed = [p for p in record["points"] if p["seconds"] and not p["error"]]
    n = max(p["n"] for p in timed if p["name"] == "tiled")
    here = {p["tile"]: number(p) for p in timed if p["name"] == "tiled" and p["n"] == n}
    tile = min(here, key=here.get)
    naive = [number(p) for p in timed if p["name"] == compared and p["n"] == n]
    ends = min(here[min(here)], here[max(here)])
    return {
        "n": n,
        "tile": tile,
        "u_shaped": ends >= margin * here[tile],
        "speedup": naive[0] / here[tile] if naive else None,
    }


@wrong(
    "L6-MEAN",
    TILE,
    thinks="A point's number is the mean of its samples.",
    why="One sample in which another program came in can move a mean anywhere. A CPU's best time "
    "or a GPU's median stays where it is.",
    section="conclude",
)
def by_the_mean(record):
    return conclude(record, lambda point: statistics.mean(point["seconds"]))


@wrong(
    "L6-MEDIAN-ALWAYS",
    TILE,
    thinks="The median is always the right number.",
    why="On a GPU, yes. What disturbs a CPU's processor time only ever makes it longer, so the "
    "best sample is the least disturbed.",
    section="conclude",
)
def by_the_median(record):
    return conclude(record, lambda point: statistics.median(point["seconds"]))


@wrong(
    "L6-BEST-ALWAYS",
    TILE,
    thinks="The shortest sample is always the right number.",
    why="A GPU's clock moves both ways, and one lucky sample is no typical time. For CUDA events "
    "take the median.",
    section="conclude",
)
def by_the_best(record):
    return conclude(record, lambda point: min(point["seconds"]))


@wrong(
    "L6-ALL-LENGTHS",
    TILE,
    thinks="The fastest point of the whole record tells the best tile.",
    why="The fastest point is one of the shortest sequence, which had less to do. Tiles can be "
    "compared only at one n.",
    section="conclude",
)
def fastest_of_all(record):
    shortest = min(p["n"] for p in record["points"])
    points = [p for p in record["points"] if p["n"] == shortest]
    return conclude(record | {"points": points})


@wrong(
    "L6-VALLEY-BY-PLACE",
    TILE,
    thinks="If the best tile is neither the smallest nor the largest, the curve is a valley.",
    why="Some tile always comes first, by noise alone. A valley has two slopes: both ends must be "
    "clearly slower, by a tenth here.",
    section="conclude",
)
def valley_by_place(record):
    return conclude(record, margin=1.0 + 1e-12)


@wrong(
    "L6-UPSIDE-DOWN",
    TILE,
    thinks="The speed-up is the time of the tiles over the time of naive.",
    why="That ratio is below one when tiles are faster. A speed-up above one means faster: the old "
    "time over the new one.",
    section="conclude",
)
def speedup_upside_down(record):
    said = conclude(record)
    return said | {"speedup": said["speedup"] and 1 / said["speedup"]}


@wrong(
    "L6-OVER-FUSED",
    TILE,
    thinks="The speed-up is over the fused attention.",
    why="Fused attention is the goal, written by experts for this machine. What tiles change is "
    "seen against naive, which does the same operations at once.",
    section="conclude",
)
def over_fused(record):
    return conclude(record, compared="fused")


@wrong(
    "L6-NO-TIME",
    TILE,
    thinks="What ran out of memory took no time.",
    why="It has no time at all, and it did not win. A point with an error is left out of every "
    "comparison of times.",
    section="conclude",
)
def nothing_is_fast(record):
    points = [p | {"seconds": p["seconds"] or [1e-12], "error": None} for p in record["points"]]
    return conclude(record | {"points": points})


# --- lab6_receipt -------------------------------------------------------------------------------

RECEIPT = "lab6_receipt"


def receipt_of(lab="lab6_write_flash", tiles=(32, 64, 128, 256, 512), predicted=True, alike=False):
    """A receipt made up for the tests: from no machine at all."""
    chance = random.Random(6)
    machine = {"device": "cpu", "name": "none", "threads": 1, "torch": "2.13.0+cpu"}
    machine |= {"label": "CPU, 1 thread", "python": "3.13.1", "ceilings": None}
    points, clock = [], 1.0
    for n in (512, 1024, 2048):
        rivals = [("naive", {}), ("fused", {}), *(("tiled", {"tile": tile}) for tile in tiles)]
        rows = [[] for _ in rivals]
        starts = [[] for _ in rivals]
        for _ in range(20):
            for seconds, started in zip(rows, starts, strict=True):
                seconds.append(0.01 if alike else 2e-9 * n * n * chance.uniform(1.0, 1.1))
                started.append(clock)
                clock += 2 * seconds[-1] + 1e-3
        for (name, keys), seconds, started in zip(rivals, rows, starts, strict=True):
            point = {"name": name, "n": n, "seconds": seconds, "started": started, "clock": "cpu"}
            points.append(point | keys | {"dtype": "float32", "error": None, "wall_over_cpu": 1.0})
    made = {"value": 128, "at": 1.0, "session": 0, "points": 0}
    predictions = {"best tile": made} if predicted else {}
    return encode({"lab": lab, "machine": machine, "predictions": predictions, "points": points})


@wrong(
    "L6-CUT-OFF",
    RECEIPT,
    thinks="The first lines of the receipt are enough.",
    why="The receipt says how long it is and carries a checksum of all of it. Copy everything "
    "between the quotes, to the last character.",
    section="measure",
)
def first_half():
    receipt = receipt_of()
    return receipt[: len(receipt) // 2]


@wrong(
    "L6-OTHER-LAB",
    RECEIPT,
    thinks="Any receipt will do.",
    why="This one is from another lab, or from a record opened under another name. Here the sweep "
    "over tiles is wanted.",
    section="measure",
)
def of_another_lab():
    return receipt_of(lab="lab2_quadratic_wall")


@wrong(
    "L6-NO-SWEEP",
    RECEIPT,
    thinks="One good tile size is enough.",
    why="Then nobody can see whether it is good: a best is best of several. Measure sizes from far "
    "too small to too large.",
    section="measure",
)
def two_tiles():
    return receipt_of(tiles=(128, 256))


@wrong(
    "L6-NO-PREDICTION",
    RECEIPT,
    thinks="A prediction is written when the result is known.",
    why="Then it predicts nothing. The worth of a prediction is the surprise afterward; being "
    "wrong costs no points.",
    section="measure",
)
def nothing_predicted():
    return receipt_of(predicted=False)


@wrong(
    "L6-MADE-UP",
    RECEIPT,
    thinks="Every sample is the same number, so the result is clear.",
    why="No clock gives the same time twenty times over. Hand in what was measured, noise and all: "
    "noise costs no points.",
    section="measure",
)
def no_noise():
    return receipt_of(alike=True)
