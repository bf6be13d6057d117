"""Masking (chapter 6): what must not be seen."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncourse.scaled_dot_product import softmax
from attncourse.validation import checked, validate_mask, validate_scores, validate_tensor


def causal_mask(query_length: int, key_length: int | None = None) -> Bool[Tensor, "q k"]:
    """Let every position see itself and what came before: True on and below the diagonal.

    Args:
        query_length: q
        key_length: k, by default q. The queries are the *last* q of k positions (they continue what
            is already there), so the last query sees every key.

    Raises:
        ValueError: a length below 0.

    Source: Vaswani et al. (2017), section 3.2.3.
    """
    key_length = query_length if key_length is None else key_length
    if min(query_length, key_length) < 0:
        raise ValueError(
            "lengths cannot be negative; "
            f"got query_length={query_length} and key_length={key_length}"
        )
    everything = torch.ones(query_length, key_length, dtype=torch.bool)
    return everything.tril(key_length - query_length)


@checked
def padding_mask(lengths: Int[Tensor, " b"], max_length: int) -> Bool[Tensor, "b 1 k"]:
    """Hide the padding on the right of each sentence from every query.

    Args:
        lengths: (b), real tokens in each sentence, 0 to `max_length`.
        max_length: k, length to which the sentences are padded.

    Returns:
        (b 1 k): one row for all queries of a sentence; it broadcasts over them.

    Raises:
        TypeError: lengths are not whole numbers.
        ValueError: a sentence longer than `max_length`, or of negative length.
    """
    if lengths.numel() and not (lengths.min() >= 0 and lengths.max() <= max_length):
        raise ValueError(
            f"lengths must lie between 0 and max_length = {max_length}; "
            f"they go from {lengths.min()} to {lengths.max()}"
        )
    place = torch.arange(max_length, device=lengths.device)
    return (place < lengths[:, None])[:, None, :]


def masked_softmax(
    scores: Float[Tensor, "... q k"], mask: Bool[Tensor, "..."]
) -> Float[Tensor, "... q k"]:
    """Softmax over the keys that may be seen; the others get weight 0.

    Args:
        scores: (… q k).
        mask: broadcasts to (… q k); True = may attend.

    Returns:
        Weights (… q k); each row sums to one, or is all 0 where nothing may be seen.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit.
    """
    validate_scores(scores, -1)
    validate_mask(mask, scores, tuple(scores.shape), name="scores")
    # The lowest finite number, not -inf: a row of -inf alone would be 0/0.
    weights = softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min))
    return weights.masked_fill(~mask, 0.0)  # changes only rows with nothing to attend to


def next_word_pairs(tokens: Sequence) -> list[tuple[list, object]]:
    """What one sentence teaches about the next word: every beginning, and what follows.

    Args:
        tokens: n words or ids.

    Returns:
        n − 1 pairs (list of the words so far, next word).
    """
    return [(list(tokens[:place]), tokens[place]) for place in range(1, len(tokens))]


@torch.no_grad()
@checked
def dependency_map(
    layer: Callable[[Tensor], Tensor], x: Float[Tensor, "b n m"]
) -> Bool[Tensor, "n n"]:
    """Find out which outputs change when one input changes.

    Args:
        layer: takes (b n m) and returns one tensor (b n …).
        x: (b n m).

    Returns:
        (n n): row i, column j is True if output i changes when input j does.

    Raises:
        TypeError, ValueError: x is not a floating-point tensor (b n m), or layer(x) is no tensor.
    """
    before = layer(x)
    validate_tensor("layer(x)", before)
    # A push in every feature, and not the same in all: a normalization would undo that.
    push = torch.arange(x.shape[2], device=x.device).cos().to(x) * (1 + x.abs())
    largest = before.nan_to_num(0, 0, 0).abs().max().item()  # NaN and infinity aside
    columns = []
    for place in range(x.shape[1]):
        changed = x.clone()
        changed[:, place] += push[:, place]
        same = layer(changed).isclose(before, 0, 1e-6 * (1 + largest), equal_nan=True)
        columns.append(~same.reshape(*same.shape[:2], -1).all(2).all(0))  # n
    return torch.stack(columns, dim=1)
