"""What attention is given: queries, keys, values, a mask, and scores."""

import torch
from torch import Tensor

from attncourse.validation.tensors import broadcast, is_readable, shown, validate_tensor


def validate_scores(scores: Tensor, dim: int) -> None:
    """Raise unless a softmax over axis `dim` of `scores` means something."""
    validate_tensor("scores", scores)
    if not -scores.ndim <= dim < scores.ndim:
        raise ValueError(
            f"dim={dim} names no axis of scores, whose shape {shown(scores)} has {scores.ndim}"
        )
    if scores.shape[dim] == 0:
        raise ValueError(
            f"scores is empty along dim={dim} (shape {shown(scores)}): "
            "weights over nothing cannot sum to one"
        )


def validate_tables(scores: Tensor, weights: Tensor) -> None:
    """Raise unless both are tables (q k) of numbers."""
    for name, table in (("scores", scores), ("weights", weights)):
        validate_tensor(name, table)
        if table.isnan().any():
            raise ValueError(f"{name} must hold numbers; some of its entries are NaN")
    if scores.ndim != 2 or scores.shape != weights.shape:
        raise ValueError(
            "scores and weights must be two tables of the same shape (q k); "
            f"got {shown(scores)} and {shown(weights)}"
        )


def validate_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Raise unless (… q d), (… k d), (… k v) and a boolean mask (… q k) fit together."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        axes = {"query": "(… q d)", "key": "(… k d)", "value": "(… k v)"}[name]
        validate_tensor(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(f"{name} must have axes {axes}; got shape {shown(tensor)}")
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name} is {tensor.dtype} but query is {query.dtype}; use one dtype")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device} but query is on {query.device}")
        if 0 in tensor.shape[-2:]:
            raise ValueError(
                f"{name} {axes} is empty: got shape {shown(tensor)}; "
                "at least one position and one feature are needed"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            "query and key must have the same width d to be compared; "
            f"got query {shown(query)} with d = {query.shape[-1]} "
            f"and key {shown(key)} with d = {key.shape[-1]}"
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            "every key needs its value: key and value must have the same length k; "
            f"got key {shown(key)} with k = {key.shape[-2]} "
            f"and value {shown(value)} with k = {value.shape[-2]}"
        )
    batch = broadcast(*(tensor.shape[:-2] for tensor in tensors.values()))
    if batch is None:
        shapes = ", ".join(f"{name} {shown(tensor)}" for name, tensor in tensors.items())
        raise ValueError(f"the leading axes do not broadcast together; got {shapes}")
    if mask is not None:
        validate_mask(mask, query, (*batch, query.shape[-2], key.shape[-2]))


def validate_mask(
    mask: Tensor,
    scored: Tensor,
    shape: tuple[int, ...],
    axes: str = "… q k",
    name: str = "query",
    may_hide_all: bool = False,
) -> None:
    """Raise unless `mask` is boolean, broadcasts to `shape`, and is where `scored` is.

    Args:
        mask: the argument in question.
        scored: what is masked; `name` is what the caller calls it.
        shape: (… q k).
        axes: the letters of `shape`.
        name: of `scored`.
        may_hide_all: whether a mask of False alone will do, as for some of a text's keys.
    """
    axes = f"({axes}) = ({' '.join(map(str, shape))})"
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a boolean torch.Tensor {axes}; got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean, True = may attend; got {mask.dtype}. "
            "For a 0/1 mask use mask.bool(); for an additive 0/-inf mask use mask == 0"
        )
    if mask.device != scored.device:
        raise ValueError(f"mask is on {mask.device} but {name} is on {scored.device}")
    if broadcast(mask.shape, shape) != tuple(shape):
        inserted = "None, " * (len(shape) - 2)
        advice = f". A padding mask (b k) goes in as mask[:, {inserted}:]"
        raise ValueError(
            f"mask must broadcast to {axes}; got shape {shown(mask)}"
            + (advice if mask.ndim == 2 and len(shape) > 2 else "")
        )
    # One dead row is legal and gives 0. Nothing at all for several queries is a mask that means
    # the opposite.
    queries = (1, *shape)[-2]
    if not may_hide_all and is_readable(mask) and queries > 1 and mask.numel() and not mask.any():
        raise ValueError(
            f"mask {shown(mask)} hides every key from every query. Here True means "
            "'may attend'; if yours means 'ignore', pass ~mask"
        )
