"""Positions (chapter 8): where a word stands, told to the word or to the pair that meets."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncourse.cross_attention import Transformer
from attncourse.masking import masked_softmax
from attncourse.scaled_dot_product import scaled_dot_product_attention, softmax
from attncourse.self_attention import LearnedPositions, sinusoidal_positions
from attncourse.validation import checked, validate_positive, validate_sizes
from attncourse.validation.positions import (
    validate_buckets,
    validate_places,
    validate_shift,
    validate_table,
)


def places(
    query_length: int, key_length: int, cross: bool = False
) -> tuple[Int[Tensor, " q"], Int[Tensor, " k"]]:
    """Number the queries and the keys.

    Args:
        query_length: q
        key_length: k
        cross: the queries are another text's and count from 0 as the keys do. By default they are
            the *last* q of the k positions, as in `causal_mask`.

    Raises:
        ValueError: a length that is not a whole number of at least 0.
    """
    for name, length in (("query_length", query_length), ("key_length", key_length)):
        if isinstance(length, float) or length < 0:
            raise ValueError(f"{name} must be a whole number of at least 0; got {length}")
    first = 0 if cross else key_length - query_length
    return torch.arange(first, first + query_length), torch.arange(key_length)


def offsets(query_length: int, key_length: int, cross: bool = False) -> Int[Tensor, "q k"]:
    """How far each key stands from each query: j − i, negative for what came before.

    Args:
        query_length, key_length, cross: as for `places`.
    """
    i, j = places(query_length, key_length, cross)
    return j - i[:, None]


# --- Turned: RoPE ---


def rotary_frequencies(width: int, base: float = 10_000.0) -> Float[Tensor, " pairs"]:
    """Angle, in radians a position, by which each of the width/2 pairs turns: base^(−2i/width).

    Raises:
        ValueError: `width` is not an even number of at least 2, or `base` is not above 0.
    """
    if width < 2 or width % 2 or not base > 0:
        raise ValueError(
            "features turn in pairs: needs an even width >= 2 and base > 0; "
            f"got width={width}, base={base}"
        )
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotate(
    x: Float[Tensor, "*batch n d"], positions: Tensor, base: float = 10_000.0
) -> Float[Tensor, "*batch n d"]:
    """Turn each pair of features (2i, 2i + 1) by the angle position · base^(−2i/d).

    A query turned by its place times a key turned by its own depends on the two vectors and on the
    difference of the places. Values are not turned: they are handed over, not compared.

    Args:
        x: (… n d), queries or keys of a head; d is even.
        positions: (n), or (… n) that broadcasts to x's leading axes. Whole numbers or others: a
            stretched text has places between places.
        base: the larger, the slower the slow pairs turn.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit, an odd width, places that are NaN
            or infinite.

    Source: Su et al. (2021), "RoFormer", section 3.4.2.
    """
    validate_places(x, positions)
    # In float64: half precision has no digits left for an angle of a thousand radians.
    frequency = rotary_frequencies(x.shape[-1], base).to(x.device)
    angle = einsum(positions.double(), frequency, "... n, i -> ... n i")
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def halves_from_pairs(width: int) -> Int[Tensor, " width"]:
    """The order that takes features which turn in neighboring pairs to a first and a second half.

    `x[..., halves_from_pairs(d)]` is laid out as most of Hugging Face's models have it: feature i
    turns with feature i + d/2.

    Raises:
        ValueError: `width` is not an even number of at least 2.
    """
    if width < 2 or width % 2:
        raise ValueError(f"features turn in pairs: needs an even width >= 2; got width={width}")
    return torch.arange(width).unflatten(0, (-1, 2)).T.flatten()


def ntk_base(base: float, stretch: float, width: int) -> float:
    """The base at which the slowest pair turns `stretch` times slower, and the fastest as before.

    Raises:
        TypeError, ValueError: `base` or `stretch` is not above 0, or `width` not an even number of
            at least 4: a single pair is the fastest and the slowest.

    Source: bloc97 (2023), "NTK-aware scaled RoPE"; Peng et al. (2023), "YaRN", section 3.1.
    """
    validate_positive("base", base)
    validate_positive("stretch", stretch)
    if width < 4 or width % 2:
        raise ValueError(f"needs an even width >= 4, two pairs or more; got width={width}")
    return base * stretch ** (width / (width - 2))


def scaled_frequencies(
    width: int, rope: Mapping[str, float | str]
) -> tuple[Float[Tensor, " pairs"], float]:
    """How fast the pairs turn in a model that was made to read longer texts than in pretraining.

    "linear" slows every pair down by `factor`. "llama3" and "yarn" go by parts: a pair that turned
    often within the `original_max_position_embeddings` words stays as it was, one that hardly came
    round is slowed down by `factor`, and between the two it is a mean of both.

    Args:
        width: of a head.
        rope: what a published config.json says: `rope_theta`, and what stands in its
            `rope_scaling` or `rope_parameters`.

    Returns:
        frequencies: in radians a position, of the pairs that turn (`partial_rotary_factor`).
        temperature: what turned queries and turned keys are multiplied by, each.

    Raises:
        ValueError: a `rope_type` other than "default", "linear", "llama3" and "yarn".

    Source: Chen et al. (2023), section 3.2; Peng et al. (2023), "YaRN", sections 3.2 and 3.4, with
    the borders of its code; the configuration of Llama 3.1.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    turned = int(width * rope.get("partial_rotary_factor", 1.0))
    base, factor = rope["rope_theta"], rope.get("factor", 1.0)
    speed, temperature = rotary_frequencies(turned, base), 1.0
    if kind == "default":
        return speed, temperature
    if kind == "linear":
        return speed / factor, temperature
    if kind not in ("llama3", "yarn"):
        raise ValueError(f"rope_type must be default, linear, llama3 or yarn; got {kind!r}")
    length = rope["original_max_position_embeddings"] / (2 * math.pi)
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = (length * speed - low) / (high - low)  # by how often a pair came round
    else:
        fast, slow = (
            turned * math.log(length / rope.get(name, turns)) / (2 * math.log(base))
            for name, turns in (("beta_fast", 32), ("beta_slow", 1))
        )
        first, last = max(math.floor(fast), 0), min(math.ceil(slow), turned - 1)
        kept = 1 - (torch.arange(turned // 2) - first) / max(last - first, 1e-3)
        grown, of_all = (
            0.1 * rope.get(name, default) * math.log(factor) + 1
            for name, default in (("mscale", 1), ("mscale_all_dim", 0))
        )
        temperature = rope.get("attention_factor", grown / of_all)
    kept = kept.clamp(0, 1)
    return speed * kept + speed / factor * (1 - kept), temperature


class RotaryAttention(nn.Module):
    """An `attend` for `MultiHeadAttention`: queries and keys are turned by their places.

    Args:
        base: as for `rotate`.
        stretch: places are divided by it. Above 1 it squeezes a long text into the places of a
            short one: "position interpolation", Chen et al. (2023).
        cross: as for `places`.

    Raises:
        TypeError, ValueError: `base` or `stretch` is not above 0.
    """

    def __init__(self, base: float = 10_000.0, stretch: float = 1.0, cross: bool = False):
        super().__init__()
        validate_positive("base", base)
        validate_positive("stretch", stretch)
        self.base, self.stretch, self.cross = base, stretch, cross

    def forward(
        self,
        query: Float[Tensor, "*#batch q d"],
        key: Float[Tensor, "*#batch k d"],
        value: Float[Tensor, "*#batch k v"],
        mask: Bool[Tensor, "..."] | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Float[Tensor, "... q v"], Float[Tensor, "... q k"]]:
        """Return (output, weights) as `scaled_dot_product_attention` does."""
        i, j = (
            place.to(query.device) / self.stretch
            for place in places(query.shape[-2], key.shape[-2], self.cross)
        )
        query, key = rotate(query, i, self.base), rotate(key, j, self.base)
        return scaled_dot_product_attention(query, key, value, mask, dropout)


# --- Added to the scores: Shaw, T5, ALiBi, Transformer-XL ---


def attend_by(
    scores: Float[Tensor, "*#batch q k"],
    value: Float[Tensor, "*#batch k v"],
    mask: Bool[Tensor, "..."] | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Float[Tensor, "... q v"], Float[Tensor, "... q k"]]:
    """The second half of attention: from scores, whoever made them, to output and weights."""
    weights = softmax(scores) if mask is None else masked_softmax(scores, mask)
    used = weights if dropout is None else dropout(weights)
    return einsum(used, value, "... q k, ... k v -> ... q v"), weights


def _dot_products(query: Tensor, key: Tensor) -> Tensor:
    return einsum(query / math.sqrt(query.shape[-1]), key, "... q d, ... k d -> ... q k")


def relative_scores(
    query: Float[Tensor, "*#batch q d"],
    key: Float[Tensor, "*#batch k d"],
    table: Float[Tensor, "r d"],
    cross: bool = False,
) -> Float[Tensor, "... q k"]:
    """Score each query against each key plus a vector that says how far apart they are.

    sᵢⱼ = qᵢ · (kⱼ + t_(j − i)) / √d, with offsets beyond ±c taken for ±c.

    Args:
        query: (… q d).
        key: (… k d).
        table: (2c + 1, d), one row for each offset from −c to c; the middle row is offset 0.
        cross: as for `places`.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit, a table without a middle row.

    Source: Shaw et al. (2018), section 3.2, keys only.
    """
    validate_table(query, key, table)
    c = table.shape[0] // 2
    row = offsets(query.shape[-2], key.shape[-2], cross).clamp(-c, c) + c  # q k
    by_offset = einsum(query / math.sqrt(query.shape[-1]), table, "... q d, r d -> ... q r")
    row = row.to(query.device).expand(*by_offset.shape[:-1], -1)
    return _dot_products(query, key) + by_offset.gather(-1, row)


class ShawAttention(nn.Module):
    """An `attend` with a learned vector for every offset, the same in all heads.

    Args:
        head_width: d
        clip: c, the largest offset that has a vector of its own.
        cross: as for `places`.

    Raises:
        ValueError: `head_width` is no whole number of at least 1, or `clip` none of at least 0.
    """

    def __init__(self, head_width: int, clip: int = 8, cross: bool = False):
        super().__init__()
        validate_sizes(head_width=head_width)
        validate_sizes("", 0, clip=clip)
        self.table = nn.Parameter(torch.randn(2 * clip + 1, head_width))
        self.cross = cross

    def forward(self, query, key, value, mask=None, dropout=None):
        """Return (output, weights) as `scaled_dot_product_attention` does."""
        scores = relative_scores(query, key, self.table, self.cross)
        return attend_by(scores, value, mask, dropout)


def relative_buckets(
    offsets: Int[Tensor, "*axes"], num_buckets: int, max_distance: int, bidirectional: bool
) -> Int[Tensor, "*axes"]:
    """Sort offsets into buckets: near ones alone, far ones in ever wider company.

    With two directions the first half of the buckets is for keys at or before the query, the second
    for those after it; with one direction whatever comes after counts as distance 0. Of a
    direction's b buckets the first b/2 hold the distances 0, 1, … alone; the others share the
    logarithm of the distance evenly, and the last holds everything from `max_distance` on.

    Args:
        offsets: j − i, whole numbers of any shape.
        num_buckets: in all.
        max_distance: from here on distances are not told apart.
        bidirectional: whether what comes after has buckets, too.

    Raises:
        TypeError, ValueError: offsets that are not whole, or buckets that cannot be shared so.

    Source: Raffel et al. (2020), "T5", section 2.1; the formula is in its code only.
    """
    validate_buckets(offsets, num_buckets, max_distance, bidirectional)
    if bidirectional:
        num_buckets //= 2
        first = (offsets > 0) * num_buckets
        distance = offsets.abs()
    else:
        first = 0
        distance = (-offsets).clamp(min=0)
    alone = num_buckets // 2
    # In float32, as everybody has it: on the borders a better logarithm would decide otherwise.
    share = (distance.clamp(min=1) / alone).log() / math.log(max_distance / alone)
    far = (alone + (share * (num_buckets - alone)).long()).clamp(max=num_buckets - 1)
    return first + torch.where(distance < alone, distance, far)


class BucketAttention(nn.Module):
    """An `attend` with a learned number for every bucket of offsets and every head.

    Args:
        num_heads: h
        num_buckets, max_distance, bidirectional: as for `relative_buckets`.
        cross: as for `places`.

    Raises:
        ValueError: no heads, or buckets that cannot be shared as `relative_buckets` asks.

    Source: Raffel et al. (2020), section 2.1. There all layers share one table, and its code does
    not divide scores by √d.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        cross: bool = False,
    ):
        super().__init__()
        validate_sizes(num_heads=num_heads)
        validate_buckets(offsets(0, 0), num_buckets, max_distance, bidirectional)
        self.bias = nn.Embedding(num_buckets, num_heads)
        self.buckets = num_buckets, max_distance, bidirectional
        self.cross = cross

    @checked(h="bias.embedding_dim")
    def forward(
        self,
        query: Float[Tensor, "b h q d"],
        key: Float[Tensor, "b h k d"],
        value: Float[Tensor, "b h k v"],
        mask: Bool[Tensor, "..."] | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Float[Tensor, "b h q v"], Float[Tensor, "b h q k"]]:
        """Return (output, weights) as `scaled_dot_product_attention` does."""
        offset = offsets(query.shape[-2], key.shape[-2], self.cross).to(query.device)
        bias = self.bias(relative_buckets(offset, *self.buckets))  # q k h
        scores = _dot_products(query, key) + bias.movedim(-1, 0)
        return attend_by(scores, value, mask, dropout)


def alibi_slopes(num_heads: int) -> Float[Tensor, " h"]:
    """How steeply each head's scores fall: 2^(−8/h), 2^(−16/h), …, 2^(−8).

    A number of heads that is no power of two takes the slopes of the power below, and then every
    second slope of twice that power.

    Raises:
        ValueError: `num_heads` is not a whole number of at least 1.

    Source: Press et al. (2022), section 3; other numbers of heads in its code.
    """
    validate_sizes(num_heads=num_heads)
    power = 2 ** (num_heads.bit_length() - 1)
    first = 2.0 ** (-8 * torch.arange(1, power + 1) / power)
    between = 2.0 ** (-4 * torch.arange(1, 2 * power, 2) / power)
    return torch.cat([first, between])[:num_heads]


def alibi_bias(
    num_heads: int, query_length: int, key_length: int, cross: bool = False
) -> Float[Tensor, "h q k"]:
    """What ALiBi adds to the scores: −slope · abs(j − i), nothing to learn.

    Args:
        num_heads: h
        query_length, key_length, cross: as for `places`.

    Raises:
        ValueError: `num_heads` is no whole number of at least 1, a length none of at least 0.

    Source: Press et al. (2022), "Train Short, Test Long", section 3.
    """
    distance = offsets(query_length, key_length, cross).abs()
    return -alibi_slopes(num_heads)[:, None, None] * distance


class AlibiAttention(nn.Module):
    """An `attend` whose scores fall with the distance, in each head at its own rate.

    Args:
        cross: as for `places`.
    """

    def __init__(self, cross: bool = False):
        super().__init__()
        self.cross = cross

    def forward(self, query, key, value, mask=None, dropout=None):
        """Return (output, weights) as `scaled_dot_product_attention` does."""
        bias = alibi_bias(query.shape[-3], query.shape[-2], key.shape[-2], self.cross).to(query)
        return attend_by(_dot_products(query, key) + bias, value, mask, dropout)


def shift_relative(scores: Float[Tensor, "*batch q r"]) -> Float[Tensor, "*batch q k"]:
    """From scores by offset to scores by key, without a loop: row i begins q − 1 − i later.

    Column c of the input is the offset c − (k − 1), where r = q + k − 1 offsets occur between q
    queries and k keys, the last query standing at the last key.

    Args:
        scores: (… q r), for every query and every offset j − i from −(k − 1) to q − 1.

    Returns:
        (… q k), with k = r − q + 1.

    Raises:
        TypeError, ValueError: scores that are no (… q r), or fewer offsets than queries.

    Source: Dai et al. (2019), "Transformer-XL", appendix B.
    """
    validate_shift(scores)
    q, r = scores.shape[-2:]
    # One column more, and rows of r read from it each begin one place earlier than the last.
    padded = F.pad(scores, (0, 1)).flatten(-2)
    return padded[..., q - 1 : q - 1 + q * r].unflatten(-1, (q, r))[..., : r - q + 1]


@checked
def transformer_xl_attention(
    query: Float[Tensor, "*#batch h q d"],
    key: Float[Tensor, "*#batch h k d"],
    value: Float[Tensor, "*#batch h k v"],
    offset_key: Float[Tensor, "h q+k-1 d"],
    content_bias: Float[Tensor, "h d"],
    offset_bias: Float[Tensor, "h d"],
    mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "... q v"], Float[Tensor, "... q k"]]:
    """Score by what stands there and by how far it is, each with its own key and its own bias.

    sᵢⱼ = ((qᵢ + u) · kⱼ + (qᵢ + w) · r_(j − i)) / √d.

    Args:
        query: (… h q d), the last q of the positions.
        key: (… h k d), the remembered segment's first.
        value: (… h k v).
        offset_key: (h r d), r = q + k − 1 keys for the offsets −(k − 1), …, q − 1: projected
            sinusoids.
        content_bias: (h d), u.
        offset_bias: (h d), w.
        mask: broadcasts to (… h q k); True = may attend.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit, such as other than q + k − 1
            offsets.

    Source: Dai et al. (2019), section 3.3.
    """
    by_offset = _dot_products(query + offset_bias[:, None], offset_key)
    scores = _dot_products(query + content_bias[:, None], key) + shift_relative(by_offset)
    return attend_by(scores, value, mask)


# --- One scheme for another ---


class Sinusoids(nn.Module):
    """Add sines and cosines to every position."""

    def forward(self, x: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
        """Return x plus n sinusoidal vectors."""
        return x + sinusoidal_positions(*x.shape[1:]).to(x)


ADDED = ("sinusoidal", "learned", "none")  # to the words, before the first layer
RELATIVE = ("shaw", "t5", "alibi", "rope")  # in every attention
LEARNED_PLACES = 64


def _no_positions(length: int, width: int) -> Tensor:
    return torch.zeros(length, width)


def _placed(layer: nn.Module, inputs: tuple) -> tuple:
    x, *others = inputs
    return layer.place(x), *others


def make_attend(scheme: str, num_heads: int, head_width: int, part: str = "decoder") -> Callable:
    """Make what stands between the projections and the output of one attention.

    Args:
        scheme: one of `RELATIVE`; for any other, plain attention.
        num_heads, head_width: of the attention.
        part: "encoder" (T5 gives both directions buckets), "decoder", or "cross" (both texts count
            from 0).
    """
    cross = part == "cross"
    match scheme:
        case "shaw":
            return ShawAttention(head_width, cross=cross)
        case "t5":
            attend = BucketAttention(num_heads, bidirectional=part != "decoder", cross=cross)
            # T5's own start; an Embedding's is √m times as wide, and few steps do not undo it.
            nn.init.normal_(attend.bias.weight, std=(num_heads * head_width) ** -0.5)
            return attend
        case "alibi":
            return AlibiAttention(cross)
        case "rope":
            return RotaryAttention(cross=cross)
    return scaled_dot_product_attention


def exchange(
    model: Transformer, scheme: str, parts: Sequence[str] = ("encoder", "decoder")
) -> Transformer:
    """Exchange, in place, how some parts of a Transformer know about order; return the model.

    A part with one of `RELATIVE` gets no positions added to its words. Parts that are not named
    stay as they are. New weights are drawn from torch's global random generator.

    Args:
        model: as `Transformer` builds it, or after other exchanges.
        scheme: one of `ADDED` or of `RELATIVE`.
        parts: of "encoder" and "decoder" (their self-attention) and "cross". Cross-attention has no
            words of its own to add to, so it takes "none" or one of `RELATIVE`.

    Raises:
        ValueError: a scheme or a part that does not exist, or one that does not go with the other.
    """
    if scheme not in ADDED + RELATIVE or not set(parts) <= {"encoder", "decoder", "cross"}:
        raise ValueError(
            f"schemes are {', '.join(ADDED + RELATIVE)}, parts encoder, decoder, cross; "
            f"got scheme={scheme!r} and parts={tuple(parts)}"
        )
    if "cross" in parts and scheme in ADDED[:2]:
        raise ValueError(f"{scheme!r} is added to words, and cross-attention has none of its own")
    for stack in (model.encoder, model.decoder):
        if not hasattr(stack[0], "place"):  # the two stacks get their positions apart from now on
            stack[0].place = Sinusoids()
            stack[0].register_forward_pre_hook(_placed)
    model.positions = _no_positions
    for part in parts:
        stack = model.encoder if part == "encoder" else model.decoder
        if part != "cross":
            width = model.source_embedding.embedding_dim
            stack[0].place = {
                "sinusoidal": Sinusoids(),
                "learned": LearnedPositions(LEARNED_PLACES, width),
            }.get(scheme, nn.Identity())
        for layer in stack:
            attention = layer.cross_attention if part == "cross" else layer.self_attention
            head_width = attention.q_proj.out_features // attention.num_heads
            del attention.attend  # torch lets no function take the place of a module
            attention.attend = make_attend(scheme, attention.num_heads, head_width, part)
    return model
