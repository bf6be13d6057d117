"""In the wild (chapter 14): tests that find what public code often gets wrong, and code mended.

Each test takes an implementation. It raises AssertionError if one promise is broken, by whatever
route, and returns None otherwise.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncourse.validation import checked, validate_logits, validate_mask


def test_attention(attention: Callable) -> None:
    """Assert that a query that may attend to nothing gets zeros, as output and as weights.

    Args:
        attention: takes query (… q d), key (… k d), value (… k v) and a mask (… q k), True = may
            attend; returns output (… q v) and weights (… q k).

    Raises:
        AssertionError: it gets something else, NaN included.
    """
    rng = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 3, generator=rng) for n in (4, 5, 5))
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[0, 3:] = False
    mask[1] = False  # this query may attend to nothing
    output, weights = attention(query, key, value, mask)
    # NaN equals nothing, so it fails here, too.
    assert (weights[:, 1] == 0).all(), "a query with no visible key has weights"
    assert (output[:, 1] == 0).all(), "a query with no visible key has an output"


@checked
def mended_attention(
    query: Float[Tensor, "*#batch q d"],
    key: Float[Tensor, "*#batch k d"],
    value: Float[Tensor, "*#batch k v"],
    mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "... q v"], Float[Tensor, "... q k"]]:
    """Average the values, weighted by how well each key answers each query: softmax(QKᵀ/√d)V.

    Args:
        query: (… q d).
        key: (… k d).
        value: (… k v).
        mask: boolean, broadcasts to (… q k); True = may attend.

    Returns:
        output: (… q v), all 0 where a query may attend to nothing.
        weights: (… q k); each row sums to one, or is all 0.

    Raises:
        TypeError, ValueError: tensors that do not fit.

    Source: Vaswani et al. (2017), section 3.2.1.
    """
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        validate_mask(mask, query, tuple(scores.shape), may_hide_all=True)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
        # Where all scores are equally low, softmax shares out evenly what nobody may read.
        weights = weights.masked_fill(~mask, 0.0)
    return weights @ value, weights


def test_positions(positions: Callable) -> None:
    """Assert that a table of sinusoids is right at odd widths.

    Args:
        positions: takes length and width; returns a table (length width).

    Raises:
        AssertionError: it has another shape or other numbers.
    """
    for length, width in ((6, 1), (6, 3), (4, 5), (5, 7)):
        table = positions(length, width)
        assert table.shape == (length, width), f"shape {tuple(table.shape)} at width {width}"
        for feature in range(width):
            speed = 10_000 ** (-(feature - feature % 2) / width)
            wave = math.cos if feature % 2 else math.sin
            expected = torch.tensor([wave(place * speed) for place in range(length)])
            assert torch.allclose(table[:, feature], expected, atol=1e-4), f"feature {feature}"


def mended_positions(length: int, width: int) -> Float[Tensor, "length width"]:
    """Give every position a vector of sines and cosines of geometrically falling frequencies.

    Feature 2i is sin(p / 10000^(2i/width)), feature 2i + 1 the cosine of the same angle.

    Args:
        length: positions p = 0, 1, …, length − 1.
        width: features a position; an odd width ends with a sine.

    Source: Vaswani et al. (2017), section 3.5.
    """
    table = torch.empty(length, width)
    place = torch.arange(length)[:, None]
    speed = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    table[:, 0::2] = torch.sin(place * speed)
    table[:, 1::2] = torch.cos(place * speed[: width // 2])  # the last speed may have no cosine
    return table


def test_nucleus(nucleus: Callable) -> None:
    """Assert that top-p keeps the fewest likeliest words that reach top_p together.

    Args:
        nucleus: takes logits (b vocab) and top_p; returns them with −∞ for words that are out.

    Raises:
        AssertionError: other words stay.
    """
    shares = torch.tensor([[0.1, 0.5, 0.06, 0.3, 0.04], [0.05, 0.02, 0.9, 0.02, 0.01]])
    # No sum is near a top_p, where rounding would decide.
    for top_p, expected in (
        (0.2, [[1], [2]]),
        (0.6, [[1, 3], [2]]),
        (0.85, [[0, 1, 3], [2]]),
    ):
        stays = nucleus(shares.log(), top_p) > -torch.inf
        found = [row.nonzero().flatten().tolist() for row in stays]
        assert found == expected, f"top_p = {top_p} keeps the words {found}, not {expected}"


@checked
def mended_nucleus(logits: Float[Tensor, "b vocab"], top_p: float) -> Float[Tensor, "b vocab"]:
    """Cut off the tail: of each row, the fewest likeliest words that reach top_p together stay.

    Args:
        logits: (b vocab).
        top_p: above 0, not above 1.

    Returns:
        The logits, with −∞ for the words that are out.

    Raises:
        TypeError, ValueError: logits that are no (b vocab) or no numbers.

    Source: Holtzman et al. (2020), section 3.1.
    """
    validate_logits(logits)
    likely, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    before = likely.cumsum(-1) - likely  # what the likelier words have together
    out = before >= top_p
    return logits.masked_fill(out.scatter(-1, order, out), -torch.inf)
