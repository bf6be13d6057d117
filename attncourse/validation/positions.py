"""What chapter 8 is given: places, offsets and their tables."""

import torch
from torch import Tensor

from attncourse.validation.axes import validate_axes
from attncourse.validation.masks import validate_attention
from attncourse.validation.sizes import validate_sizes
from attncourse.validation.tensors import broadcast, is_readable, shown, validate_tensor


def validate_places(x: Tensor, positions: Tensor) -> None:
    """Raise unless x (… n d) has an even width and positions (n) or (… n) fit it."""
    validate_tensor("x", x)
    if x.ndim < 2 or x.shape[-1] < 2 or x.shape[-1] % 2:
        raise ValueError(
            f"x must have axes (… n d) with an even d, for features turn in pairs; "
            f"got shape {shown(x)}"
        )
    if not isinstance(positions, Tensor):
        raise TypeError(f"positions must be a torch.Tensor; got {type(positions).__name__}")
    if positions.dtype == torch.bool or positions.is_complex():
        raise TypeError(f"positions must hold real numbers; got {positions.dtype}")
    if is_readable(positions) and not positions.isfinite().all():
        raise ValueError("positions must be finite; some are infinite or NaN")
    if positions.device != x.device:
        raise ValueError(f"positions is on {positions.device} but x is on {x.device}")
    *leading, n = positions.shape or (0,)
    fits = broadcast(leading, x.shape[:-2]) == x.shape[:-2]
    if not fits or positions.ndim == 0 or n != x.shape[-2]:
        raise ValueError(
            f"positions must have axes (n), or (… n) as x has (… n d): one place a vector; "
            f"got positions {shown(positions)} for x {shown(x)}"
        )


def validate_table(query: Tensor, key: Tensor, table: Tensor) -> None:
    """Raise unless (… q d), (… k d) and a table (2c+1 d) of vectors by offset fit together."""
    validate_attention(query, key, key, None)
    validate_axes(query=(query, "… q d"), table=(table, "r d"))
    if table.shape[0] % 2 == 0:
        raise ValueError(
            "table must have 2c + 1 rows: c for what comes before, one for the place itself, "
            f"c for what comes after; got shape {shown(table)}"
        )


def validate_shift(scores: Tensor) -> None:
    """Raise unless scores (… q r) hold at least one offset r = q + k − 1 a key."""
    validate_tensor("scores", scores)
    if scores.ndim < 2:
        raise ValueError(f"scores must have axes (… q r); got shape {shown(scores)}")
    q, r = scores.shape[-2:]
    if r < q:
        raise ValueError(
            f"scores must have r = q + k - 1 offsets a query, so at least q = {q}; "
            f"got shape {shown(scores)} with r = {r}"
        )


def validate_buckets(
    offsets: Tensor, num_buckets: int, max_distance: int, bidirectional: bool
) -> None:
    """Raise unless whole offsets can be sorted into so many buckets."""
    validate_tensor("offsets", offsets, "whole")
    validate_sizes(num_buckets=num_buckets, max_distance=max_distance)
    a_side = num_buckets // 2 if bidirectional else num_buckets
    if a_side < 2 or num_buckets % (2 * (1 + bidirectional)):
        multiple = "4, for two directions" if bidirectional else "2"
        raise ValueError(
            "half of a direction's buckets hold one distance each, half a range: num_buckets must "
            f"be a multiple of {multiple}; got {num_buckets}"
        )
    if max_distance <= a_side // 2:
        raise ValueError(
            f"max_distance must be above {a_side // 2}, up to which every distance has "
            f"a bucket of its own; got {max_distance}"
        )
