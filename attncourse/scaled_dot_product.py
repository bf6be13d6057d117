"""Scaled dot-product attention (chapter 3): a look-up in which every entry answers a little."""

import math
from collections.abc import Callable

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from attncourse.validation import validate_attention, validate_scores, validate_tables


def softmax(scores: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*axes"]:
    """Turn scores into positive weights that sum to one along `dim`: exp(sᵢ) / Σⱼ exp(sⱼ).

    Args:
        scores: any shape, floating point.
        dim: the axis that competes; in attention the keys, which are last.

    Returns:
        Weights of the same shape and dtype; finite for scores of any finite size.

    Raises:
        TypeError: `scores` is not a floating-point tensor.
        ValueError: there is nothing to compete along `dim`.

    Source: Bridle (1990), "Probabilistic Interpretation of Feedforward Classification
    Network Outputs".
    """
    validate_scores(scores, dim)
    # Adding a constant to all scores changes no weight, and exp never overflows at or below 0.
    exponentials = (scores - scores.amax(dim, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim, keepdim=True)


def scaled_dot_product_attention(
    query: Float[Tensor, "*#batch q d"],
    key: Float[Tensor, "*#batch k d"],
    value: Float[Tensor, "*#batch k v"],
    mask: Bool[Tensor, "..."] | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Float[Tensor, "... q v"], Float[Tensor, "... q k"]]:
    """Average the values, weighted by how well each key answers each query: softmax(QKᵀ/√d)V.

    Args:
        query: (… q d), one vector a question; `…` are any leading axes (batch, heads), which
            broadcast.
        key: (… k d), one vector an entry, as wide as a query.
        value: (… k v), what each entry has to say; its width `v` is free.
        mask: boolean, broadcasts to (… q k); True = this query may attend to this key.
        dropout: what the weights go through before they average, in a layer's training (chapter 5);
            those returned are whole.

    Returns:
        output: (… q v).
        weights: (… q k); each row sums to one, or is all 0 where a query may attend to nothing.

    Raises:
        TypeError: an argument is not a tensor, or of the wrong dtype.
        ValueError: shapes or devices that do not fit, or a mask that hides every key from
            every one of several queries: most likely the opposite of what was meant.

    Source: Vaswani et al. (2017), "Attention Is All You Need", section 3.2.1, equation 1.
    """
    validate_attention(query, key, value, mask)
    # The variance of q·k is d; this makes it 1. Scaling q first keeps float16 from overflowing.
    scaled_query = query / math.sqrt(query.shape[-1])
    scores = einsum(scaled_query, key, "... q d, ... k d -> ... q k")
    if mask is None:
        weights = softmax(scores)
    else:
        # The lowest finite number, not -inf: a row of -inf alone would be 0/0.
        weights = softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min))
        weights = weights.masked_fill(~mask, 0.0)  # changes only rows with nothing to attend to
    used = weights if dropout is None else dropout(weights)
    return einsum(used, value, "... q k, ... k v -> ... q v"), weights


def score_variance(d: int, samples: int, scaled: bool) -> float:
    """Measure the variance of q·k (or of q·k/√d) for standard normal q and k of width `d`.

    Args:
        d: width of a query and of a key.
        samples: how many (q, k) pairs to draw from torch's global random generator.
        scaled: whether to divide each score by √d.

    Returns:
        The sample variance, dimensionless: about `d`, or about 1 when scaled.

    Raises:
        ValueError: `d` < 1 or `samples` < 2.

    Source: Vaswani et al. (2017), footnote 4.
    """
    if d < 1 or samples < 2:
        raise ValueError(
            f"a variance needs d >= 1 and samples >= 2; got d={d} and samples={samples}"
        )
    query, key = torch.randn(2, samples, d)
    scores = einsum(query, key, "samples d, samples d -> samples")
    return (scores / math.sqrt(d) if scaled else scores).var().item()


def hidden_scale(scores: Float[Tensor, "q k"], weights: Float[Tensor, "q k"]) -> float:
    """Find the factor c with weights ≈ softmax(scores / c), from two printed tables.

    Within a row, log wᵢ − log wⱼ = (sᵢ − sⱼ) / c: the row's normalizer cancels. So 1/c is the
    slope of a least-squares line through the centered points. A weight is known to a fixed
    ±0.005, hence its logarithm to ±0.005/w: each point counts w².

    Args:
        scores: (q k), before scaling and softmax.
        weights: (q k), rounded; a weight of 0 means "masked" and is left out.

    Returns:
        The factor c, dimensionless; √d if the table comes from scaled dot-product attention.

    Raises:
        TypeError: a table is not a floating-point tensor.
        ValueError: the tables differ in shape, or say nothing about c.
    """
    validate_tables(scores, weights)
    seen = weights > 0
    trust = torch.where(seen, weights, 0.0).double() ** 2

    def centered(table: Tensor) -> Tensor:
        table = torch.where(seen, table.double(), 0.0)
        total = trust.sum(-1, keepdim=True)
        mean = (trust * table).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
        return table - mean

    across, up = centered(scores), centered(weights.log())
    slope = (trust * across * up).sum() / (trust * across**2).sum()
    if not slope.abs() * across.abs().max() > 1e-9:  # a flat line, or NaN
        raise ValueError(
            "no row has two different scores with two different weights above 0: "
            "such tables say nothing about the scale"
        )
    return 1 / slope.item()
