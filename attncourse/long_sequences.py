"""Long sequences (chapter 11): who has to look at whom, and what need not be computed.

Letters beside the course's: w how far a window reaches to each side; l layers; p processes of a
ring, with a shard of the positions each; r rows that keys are squeezed to; t rounds of hashing.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncourse.masking import causal_mask
from attncourse.positions import attend_by, offsets
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.validation import (
    checked,
    validate_attention,
    validate_mask,
    validate_number,
    validate_positive,
    validate_sizes,
)
from attncourse.validation.long_sequences import (
    validate_linear_state,
    validate_parts,
    validate_rates,
    validate_reach,
    validate_shards,
    validate_span,
    validate_text,
)

# --- Patterns: who looks at whom ---

Pattern = Callable[[Tensor, Tensor], Tensor]  # (i, j): may the query at i look at the key at j?


def mask_of(pattern: Pattern, n: int) -> Bool[Tensor, "n n"]:
    """Write a pattern down for n positions; True = may attend."""
    validate_sizes(n=n)
    i = torch.arange(n)
    return pattern(i[:, None], i).expand(n, n)


def any_of(*patterns: Pattern) -> Pattern:
    """Look where any of the patterns allows it."""
    return lambda i, j: reduce(operator.or_, (pattern(i, j) for pattern in patterns))


def causally(pattern: Pattern) -> Pattern:
    """Look where the pattern allows it, and not ahead."""
    return lambda i, j: pattern(i, j) & (j <= i)


def window(width: int) -> Pattern:
    """Look at most `width` positions away, to both sides.

    Source: Beltagy et al. (2020), "Longformer", section 3.1.
    """
    validate_sizes("", 0, width=width)
    return lambda i, j: (i - j).abs() <= width


def dilated(width: int, step: int) -> Pattern:
    """A window with holes: `width` positions to each side, `step` apart.

    Source: Beltagy et al. (2020), section 3.1.
    """
    validate_sizes("", 0, width=width)
    validate_sizes(step=step)
    return lambda i, j: ((i - j).abs() <= width * step) & ((i - j) % step == 0)


def strided(stride: int) -> Pattern:
    """Look at the `stride` nearest, and at every `stride`-th beyond.

    Source: Child et al. (2019), "Sparse Transformers", section 4.3.
    """
    validate_sizes(stride=stride)
    return lambda i, j: ((i - j).abs() < stride) | ((i - j) % stride == 0)


def fixed(size: int) -> Pattern:
    """Look at one's own block of `size` positions, and at the last position of every block.

    Source: Child et al. (2019), section 4.3, for c = 1; there the last c positions of each block.
    """
    validate_sizes(size=size)
    return lambda i, j: (i // size == j // size) | (j % size == size - 1)


def global_tokens(count: int) -> Pattern:
    """The first `count` positions look at all others, and all others look at them.

    Source: Beltagy et al. (2020), section 3.1.
    """
    validate_sizes("", 0, count=count)
    return lambda i, j: (i < count) | (j < count)


def random_keys(n: int, count: int, generator: torch.Generator) -> Pattern:
    """Every query looks at `count` keys of n, drawn at random once and for all.

    Source: Zaheer et al. (2020), "BigBird", section 2; there whole blocks are drawn.
    """
    validate_sizes(n=n)
    validate_sizes("", 0, count=count)
    if count > n:
        raise ValueError(f"count must be at most n = {n}, for no key is drawn twice; got {count}")
    drawn = torch.rand(n, n, generator=generator).argsort(-1)[:, :count]
    table = torch.zeros(n, n, dtype=torch.bool).scatter(1, drawn, True)

    def pattern(i: Tensor, j: Tensor) -> Tensor:
        try:
            return table.to(i.device)[i, j]
        except IndexError:
            raise ValueError(
                f"keys were drawn for n = {n} positions; the text has more, draw for all of them"
            ) from None

    return pattern


def shifted_blocks(size: int, blocks: int, shift: int) -> Pattern:
    """The queries of block b look at the keys of block b + `shift`, counted in a circle.

    Source: Qiu et al. (2020), "Blockwise Self-Attention" (BlockBERT), section 3.1.
    """
    validate_sizes(size=size, blocks=blocks)
    return lambda i, j: (i // size + shift) % blocks == j // size


def window_mask(n: int, width: int, global_tokens: int = 0) -> Bool[Tensor, "n n"]:
    """Longformer's mask: a window, and global tokens at the beginning.

    Args:
        n: positions.
        width: w; each looks at itself and at w positions on each side.
        global_tokens: so many first positions look at all others, and are looked at by all.

    Returns:
        (n n); True = may attend.

    Raises:
        ValueError: a size below 0, or no position.

    Source: Beltagy et al. (2020), "Longformer", section 3.1. (Its window of 512 is w = 256.)
    """
    validate_sizes(n=n)
    validate_sizes("", 0, width=width, global_tokens=global_tokens)
    i = torch.arange(n)
    near = (i - i[:, None]).abs() <= width
    first = i < global_tokens
    return near | first | first[:, None]


# --- Reach: who has heard of whom ---


def reach(mask: Bool[Tensor, "n n"], layers: int) -> Bool[Tensor, "n n"]:
    """Say who can have heard of whom after some layers with the same mask.

    In one layer i hears what the positions know that it looks at, and it keeps what it knew: the
    residual connection adds what stood there before.

    Args:
        mask: (n n); True = may attend.
        layers: l, 0 or more.

    Returns:
        (n n): True at i j where something of word j can be at position i.

    Raises:
        TypeError, ValueError: a mask that is no square of booleans, less than 0 layers.
    """
    validate_reach(mask, layers)
    known = torch.eye(len(mask), dtype=torch.bool, device=mask.device)
    for _ in range(layers):
        known = hear(mask, known)
    return known


def hear(mask: Bool[Tensor, "n n"], known: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """What everybody knows after one layer more; row i of `known` says of whom i knew before."""
    heard = mask.float() @ known.float() > 0  # of any that i looks at
    return heard | known


def layers_needed(masks: Iterable[Bool[Tensor, "n n"]], causal: bool = False) -> int | None:
    """After how many layers everybody has heard of everybody (causal: of all before).

    Args:
        masks: of the layers, from the first one on: `itertools.repeat(mask, most)` if they are
            alike.

    Returns:
        The number of layers; None = these layers do not suffice.
    """
    known = None
    for layers, mask in enumerate(masks, 1):
        validate_reach(mask, layers)
        if known is None:
            known = torch.eye(len(mask), dtype=torch.bool, device=mask.device)
            wanted = causal_mask(len(mask)) if causal else torch.ones_like(known)
        known = hear(mask, known)
        if known[wanted].all():
            return layers
    return None


def flow(mask: Bool[Tensor, "n n"], layers: int) -> Float[Tensor, "n n"]:
    """How much of word j is in position i, if every query shares its weight equally, in each layer.

    Returns:
        (n n), float64, rows of sum 1; 1/n would be a fair share.

    Source: Abnar and Zuidema (2020), "Quantifying Attention Flow in Transformers", section 3 (its
    rollout, here without residual connections).
    """
    validate_reach(mask, layers)
    weights = mask.double() / mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.linalg.matrix_power(weights, layers)


# --- Work that is not done ---


def windowed_attention(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch n d"],
    value: Float[Tensor, "*batch n v"],
    width: int,
) -> Float[Tensor, "*batch n v"]:
    """Attend to oneself and to `width` positions on each side, in memory of order n·w.

    The text is cut into blocks of w positions. Whatever a query may see lies in its own block or in
    one of the two beside it, so only 3·w scores a query are computed.

    Args:
        query, key: (… n d), of one text.
        value: (… n v).
        width: w

    Returns:
        (… n v), as attention with the mask abs(i − j) ≤ w gives it.

    Raises:
        TypeError, ValueError: shapes that do not fit, a width below 1.

    Source: Beltagy et al. (2020), section 3.2 and appendix A ("chunks").
    """
    validate_text(query, key, value)
    validate_sizes(width=width)
    n = query.shape[-2]
    size = min(width, n)
    fill = -n % size  # positions that the last block lacks
    queries = F.pad(query, (0, 0, 0, fill)).unflatten(-2, (-1, size))  # … c s d
    keys, values = (
        F.pad(x, (0, 0, size, size + fill)).unfold(-2, 3 * size, size).mT  # … c 3s d
        for x in (key, value)
    )
    place = torch.arange(n + fill, device=query.device).unflatten(0, (-1, size, 1))  # c s 1
    at = place[:, :1] + torch.arange(-size, 2 * size, device=query.device)  # c 1 3s
    visible = ((at - place).abs() <= width) & (at >= 0) & (at < n)
    output, _ = scaled_dot_product_attention(queries, keys, values, visible)
    return output.flatten(-3, -2)[..., :n, :]


@checked
def linformer_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    key_rows: Float[Tensor, "r k"],
    value_rows: Float[Tensor, "r k"],
) -> tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q r"]]:
    """Attend to r mixtures of all keys instead of to k keys.

    Every row mixes all positions, so no mask can hide a later word: it is no attention for writing.

    Args:
        query, key, value: as for attention.
        key_rows, value_rows: (r k), learned; both the identity gives attention itself.

    Returns:
        output: (… q v).
        weights: (… q r).

    Source: Wang et al. (2020), "Linformer", section 4.
    """
    return scaled_dot_product_attention(query, key_rows @ key, value_rows @ value)


@checked
def lsh_buckets(
    x: Float[Tensor, "*batch n d"], rotations: Float[Tensor, "t d c"]
) -> Int[Tensor, "t *batch n"]:
    """Put vectors into buckets so that those of like direction often share one.

    A vector is turned at random; its bucket is the axis, of 2c half-axes, that it then lies
    nearest.

    Args:
        x: (… n d).
        rotations: (t d c), standard normal numbers, for t rounds.

    Returns:
        (t … n), whole numbers from 0 to 2c − 1.

    Source: Kitaev et al. (2020), "Reformer", section 2; Andoni et al. (2015).
    """
    turned = einsum(x, rotations, "... n d, t d c -> t ... n c")
    return torch.cat([turned, -turned], dim=-1).argmax(-1)


def same_bucket(
    query_buckets: Int[Tensor, "t *batch q"], key_buckets: Int[Tensor, "t *batch k"]
) -> Bool[Tensor, "*batch q k"]:
    """Which pairs meet in a bucket in at least one round."""
    return (query_buckets[..., :, None] == key_buckets[..., None, :]).any(0)


def shared_qk_attention(
    query: Float[Tensor, "*batch n d"],
    value: Float[Tensor, "*batch n v"],
    mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*batch n v"], Float[Tensor, "*batch n n"]]:
    """Attend with the queries as keys, at length 1; to oneself only if there is nobody else.

    A query would find itself first, so its own score is lowered out of sight.

    Source: Kitaev et al. (2020), section 2; with all positions in one bucket.
    """
    validate_attention(query, query, value, mask)
    n = query.shape[-2]
    # Length 1, all but 10⁻⁶ of the mean square; it takes the place of the division by √d.
    length = (query.square().mean(-1, keepdim=True) + 1e-6).sqrt() * math.sqrt(query.shape[-1])
    scores = einsum(query, query / length, "... q d, ... k d -> ... q k")
    oneself = torch.eye(n, dtype=torch.bool, device=query.device)
    return attend_by(scores.masked_fill(oneself, torch.finfo(scores.dtype).min), value, mask)


def span_mask(
    distance: Tensor, span: float | Float[Tensor, "..."], ramp: float
) -> Float[Tensor, "..."]:
    """How much a key at some distance counts: 1 up to the span, then less, 0 from span + ramp on.

    min(max(1 + (span − distance) / ramp, 0), 1): softly cut, so that the span can be learned.

    Args:
        distance: of any shape, 0 or more.
        span: z; a number, or a tensor that broadcasts to the distances, such as (h 1 1).
        ramp: R, above 0, over how many positions it falls.

    Returns:
        Like distance and span together; a weight of 0 to 1 that multiplies e^score.

    Raises:
        TypeError, ValueError: distances that are no tensor, a span that is no number, a ramp that
            is not above 0.

    Source: Sukhbaatar et al. (2019), "Adaptive Attention Span in Transformers", section 2.2.
    """
    validate_span(distance, span, ramp)
    return (1 + (span - distance) / ramp).clamp(0, 1)


class SpanAttention(nn.Module):
    """An `attend` for `MultiHeadAttention` whose heads learn how far they look back.

    Args:
        num_heads: h
        longest: the largest span, in positions.
        start: the span that all heads begin with.
        ramp: as for `span_mask`.

    Raises:
        TypeError, ValueError: sizes that are no numbers above 0, a start beyond the longest span.

    Source: Sukhbaatar et al. (2019), section 2.2.
    """

    def __init__(self, num_heads: int, longest: float, start: float, ramp: float):
        super().__init__()
        validate_sizes(num_heads=num_heads)
        validate_positive("longest", longest)
        validate_positive("ramp", ramp)
        validate_number("start", start)
        if not 0 <= start <= longest:
            raise ValueError(f"start must be from 0 to longest = {longest}; got {start}")
        self.share = nn.Parameter(torch.full((num_heads,), start / longest))  # of the longest span
        self.longest, self.ramp = longest, ramp

    def spans(self) -> Float[Tensor, " h"]:
        """How far each head looks, in positions."""
        return self.longest * self.share.clamp(0, 1)

    def forward(
        self,
        query: Float[Tensor, "b h q d"],
        key: Float[Tensor, "b h k d"],
        value: Float[Tensor, "b h k v"],
        mask: Bool[Tensor, "..."] | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Float[Tensor, "b h q v"], Float[Tensor, "b h q k"]]:
        """Return (output, weights) as `scaled_dot_product_attention` does."""
        distance = offsets(query.shape[-2], key.shape[-2]).abs().to(query.device)
        counts = span_mask(distance, self.spans()[:, None, None], self.ramp)  # h q k
        hidden = counts == 0
        scores = einsum(query, key, "... q d, ... k d -> ... q k") / math.sqrt(query.shape[-1])
        # e^(score + log counts) is counts · e^score, and cannot become 0/0.
        scores = scores + counts.masked_fill(hidden, 1.0).log()
        return attend_by(scores, value, ~hidden if mask is None else mask & ~hidden, dropout)


# --- A state instead of a list ---

State = tuple[Float[Tensor, "... d v"], Float[Tensor, "... d"]]  # Σ φ(k) vᵀ and Σ φ(k)


def feature_map(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """elu(x) + 1: x + 1 above 0, eˣ below; never 0, so the sum of weights is not either."""
    # Written out: −1 + e⁻²⁰ + 1 would be 0 in float32.
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def linear_attention(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch n d"],
    value: Float[Tensor, "*batch n v"],
) -> Float[Tensor, "*batch n v"]:
    """Attend causally with weights φ(q)·φ(k) over their sum, all positions at once.

    The same numbers as `linear_step` gives one by one. The table of weights is n · n, so nothing is
    saved in this form; `chunked_linear_attention` saves it.

    Args:
        query, key: (… n d), of one text.
        value: (… n v).

    Returns:
        (… n v).

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit.

    Source: Katharopoulos et al. (2020), "Transformers are RNNs", section 3.2 and 3.3.
    """
    validate_text(query, key, value)
    query, key = feature_map(query), feature_map(key)
    scores = einsum(query, key, "... q d, ... k d -> ... q k").tril()
    weights = scores / scores.sum(-1, keepdim=True)
    return einsum(weights, value, "... q k, ... k v -> ... q v")


def chunked_linear_attention(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch n d"],
    value: Float[Tensor, "*batch n v"],
    size: int = 64,
) -> Float[Tensor, "*batch n v"]:
    """`linear_attention`, chunk by chunk: a table within each, a state for all chunks before.

    For twice the text it does twice the work, and a chunk is one product of matrices, not `size`
    steps.

    Args:
        query, key, value: as for `linear_attention`.
        size: positions in a chunk; the last may be shorter.

    Source: Sun et al. (2023), "Retentive Network", section 2.3 (chunkwise); without their decay.
    """
    validate_text(query, key, value)
    validate_sizes(size=size)
    query, key = feature_map(query), feature_map(key)
    value = F.pad(value, (0, 1), value=1.0)  # one more feature, which sums the weights
    state = key.new_zeros(*key.shape[:-2], key.shape[-1], value.shape[-1])  # … d v+1
    sums = []
    for q, k, v in zip(*(x.split(size, dim=-2) for x in (query, key, value)), strict=True):
        sums.append((q @ k.mT).tril() @ v + q @ state)
        state = state + k.mT @ v
    total = torch.cat(sums, dim=-2)
    return total[..., :-1] / total[..., -1:]


def linear_step(
    state: State | None,
    query: Float[Tensor, "*batch d"],
    key: Float[Tensor, "*batch d"],
    value: Float[Tensor, "*batch v"],
) -> tuple[Float[Tensor, "*batch v"], State]:
    """Take in one position, and attend from it to all so far: to a state that never grows.

    Args:
        state: Σ φ(k) vᵀ (… d v) and Σ φ(k) (… d) of the positions before; None = none.
        query, key: (… d), of the new position.
        value: (… v).

    Returns:
        output: (… v).
        state: with the new position.

    Raises:
        TypeError, ValueError: what is new does not fit the state.

    Source: Katharopoulos et al. (2020), section 3.4.
    """
    validate_linear_state(state, query, key, value)
    query, key = feature_map(query), feature_map(key)
    total, weight = einsum(key, value, "... d, ... v -> ... d v"), key
    if state is not None:
        total, weight = state[0] + total, state[1] + weight
    sums = einsum(query, total, "... d, ... d v -> ... v")
    return sums / einsum(query, weight, "... d, ... d -> ...")[..., None], (total, weight)


def delta_rule(
    query: Float[Tensor, "*batch n d"],
    key: Float[Tensor, "*batch n d"],
    value: Float[Tensor, "*batch n v"],
    strength: Float[Tensor, "*batch n"],
    decay: Float[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n v"]:
    """Write into a state what it does not know yet: S ← αS + β k (v − (αS)ᵀk)ᵀ, and read Sᵀq.

    With unit keys and β = 1 the state afterwards answers key k with v, whatever it said before.

    Args:
        query, key: (… n d), without a feature map; keys of length 1.
        value: (… n v).
        strength: β (… n), 0 to 1, how much of the difference is written.
        decay: α (… n), 0 to 1, what is left of the state; None = all. With it, the gated rule.

    Returns:
        (… n v).

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit.

    Source: Schlag et al. (2021), "Linear Transformers Are Secretly Fast Weight Programmers",
    section 4; gated: Yang et al. (2025), "Gated Delta Networks", section 3.
    """
    validate_text(query, key, value)
    validate_rates(query, key, value, strength=strength)
    if decay is not None:
        validate_rates(query, key, value, decay=decay)
    state = einsum(key[..., 0, :], value[..., 0, :], "... d, ... v -> ... d v") * 0
    outputs = []
    for i in range(query.shape[-2]):
        q, k, v = query[..., i, :], key[..., i, :], value[..., i, :]
        if decay is not None:
            state = decay[..., i, None, None] * state
        known = einsum(state, k, "... d v, ... d -> ... v")
        new = strength[..., i, None] * (v - known)
        state = state + einsum(k, new, "... d, ... v -> ... d v")
        outputs.append(einsum(state, q, "... d v, ... d -> ... v"))
    return torch.stack(outputs, dim=-2)


# --- Many machines ---

Part = tuple[Float[Tensor, "... q v"], Float[Tensor, "... q"]]  # output, log of the sum of e^score


def partial_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    mask: Bool[Tensor, "q k"] | None = None,
) -> Part:
    """Attend to some of the keys, and say how much there was to share.

    Returns:
        output: (… q v), 0 where the mask hides all keys.
        logsumexp: (… q), the logarithm of Σ e^score; −∞ where the mask hides all keys.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit, a mask that is not boolean.
    """
    validate_attention(query, key, value, None)
    scores = einsum(query / math.sqrt(query.shape[-1]), key, "... q d, ... k d -> ... q k")
    if mask is not None:
        validate_mask(mask, query, tuple(scores.shape), may_hide_all=True)
        # A row of −∞ has no gradient: so the lowest number here, and −∞ when all is done.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    total = scores.logsumexp(-1)
    weights = (scores - total[..., None]).exp()
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
        total = total.masked_fill(~mask.any(-1), -math.inf)
    return einsum(weights, value, "... q k, ... k v -> ... q v"), total


def merge(one: Part, two: Part) -> Part:
    """Join what two sets of keys gave, exactly as if they had been one set.

    Each output counts as much as e^logsumexp says: the first with e^(l₁) of e^(l₁) + e^(l₂).

    Raises:
        TypeError, ValueError: what is no pair (… q v), (… q), or pairs of different shapes.

    Source: Milakov and Gimelshein (2018), section 3, in the form of Liu and Abbeel (2023),
    "Blockwise Parallel Transformer".
    """
    validate_parts(one, two)
    (output_1, total_1), (output_2, total_2) = one, two
    nothing = (total_1 == -math.inf) & (total_2 == -math.inf)  # −∞ − (−∞) would be no number
    total_1, total_2 = (total.masked_fill(nothing, 0.0) for total in (total_1, total_2))
    share = torch.sigmoid(total_2 - total_1)[..., None]
    total = torch.logaddexp(total_1, total_2).masked_fill(nothing, -math.inf)
    return output_1 + share * (output_2 - output_1), total


def ring_attention(
    query_shards: Sequence[Float[Tensor, "*batch _q d"]],
    key_shards: Sequence[Float[Tensor, "*batch _k d"]],
    value_shards: Sequence[Float[Tensor, "*batch _k v"]],
    positions: Sequence[Int[Tensor, " _n"]] | None = None,
) -> list[Float[Tensor, "*batch _q v"]]:
    """Attend in p processes, each with one shard of keys and values at a time.

    Process i keeps its queries. Keys and values travel round the ring: p times everybody attends to
    the shard at hand, merges, and hands it on to the next. Here all processes are simulated in one.

    Args:
        query_shards, key_shards: p tensors (… n/p d), whose lengths may differ.
        value_shards: p tensors (… n/p v).
        positions: where in the text each shard's positions stand, p tensors (n/p); then attention
            is causal. None: everybody sees everybody.

    Returns:
        p tensors (… n/p v): the shards of the output of full attention.

    Raises:
        TypeError, ValueError: lists of different lengths, shards that do not fit together.

    Source: Li et al. (2021), "Sequence Parallelism", section 3 (keys and values go round, and all
    scores of a row are kept); Liu et al. (2024), "Ring Attention", section 3 (with merging).
    """
    validate_shards(query_shards, key_shards, value_shards, positions)
    p = len(query_shards)
    held = list(range(p))  # whose shard each process holds
    parts: list[Part | None] = [None] * p
    for _ in range(p):
        for i, j in enumerate(held):
            mask = positions and positions[i][:, None] >= positions[j]
            part = partial_attention(query_shards[i], key_shards[j], value_shards[j], mask)
            parts[i] = part if parts[i] is None else merge(parts[i], part)
        held = held[-1:] + held[:-1]  # everybody hands on to the next
    return [output for output, _ in parts]


def ring_bytes(processes: int, keys: Tensor, values: Tensor) -> int:
    """Bytes that each process sends: all of its shard, processes − 1 times.

    Args:
        processes: p
        keys, values: of the whole text; shards are equal.
    """
    validate_sizes(processes=processes)
    return (processes - 1) * (keys.nbytes + values.nbytes) // processes


def ring_utilization(positions: Sequence[Int[Tensor, " _n"]]) -> float:
    """Share of the time in which a causal ring computes what is needed.

    In every round all wait for the process with the most pairs (query, key) that are not hidden.
    Hidden pairs are taken to cost nothing; a kernel that works in tiles gains less.

    Args:
        positions: as for `ring_attention`.

    Source: Brandon et al. (2023), "Striped Attention", section 3.
    """
    p, needed, waited = len(positions), 0, 0
    for step in range(p):
        pairs = [int((positions[i][:, None] >= positions[i - step]).sum()) for i in range(p)]
        needed, waited = needed + sum(pairs), waited + max(pairs)
    return needed / (p * waited)


def process_ring_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch q d"],
    value: Float[Tensor, "*batch q v"],
    position: Int[Tensor, " q"] | None = None,
) -> tuple[Float[Tensor, "*batch q v"], int]:
    """`ring_attention` as one of p real processes runs it, under `torch.distributed`.

    While a shard comes in, another goes out: a process holds two.

    Args:
        query, key, value: this process's shards; all processes have equal ones.
        position: as in `ring_attention`, of this process.

    Returns:
        output: this process's shard.
        sent: bytes of keys and values that this process has sent.
    """
    import torch.distributed as dist  # not everywhere built in, and needed only here

    rank, p, sent, part = dist.get_rank(), dist.get_world_size(), 0, None
    held = [x.contiguous() for x in (key, value, position) if x is not None]
    for step in range(p):
        mask = None if position is None else position[:, None] >= held[2]
        new = partial_attention(query, *held[:2], mask)
        part = new if part is None else merge(part, new)
        if step < p - 1:
            coming = [torch.empty_like(x) for x in held]
            sends = [dist.P2POp(dist.isend, x, (rank + 1) % p) for x in held]
            receives = [dist.P2POp(dist.irecv, x, (rank - 1) % p) for x in coming]
            for request in dist.batch_isend_irecv(sends + receives):
                request.wait()
            sent += sum(x.nbytes for x in held[:2])
            held = coming
    return part[0], sent
