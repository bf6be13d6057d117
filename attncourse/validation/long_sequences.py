"""What chapter 11 is given: reach, spans, rates, states and shards of a long text."""

import torch
from torch import Tensor

from attncourse.validation.axes import validate_axes
from attncourse.validation.masks import validate_attention
from attncourse.validation.sizes import validate_number, validate_positive, validate_sizes
from attncourse.validation.tensors import broadcast, shown, validate_fits, validate_tensor


def validate_text(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise unless (… n d), (… n d), (… n v) are of one text: as many queries as keys."""
    validate_attention(query, key, value, None)
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            "query and key must be of one text, with n positions each; "
            f"got query {shown(query)} and key {shown(key)}"
        )


def validate_reach(mask: Tensor, layers: int) -> None:
    """Raise unless mask is boolean and (n n), and layers a whole number of at least 0."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a boolean torch.Tensor (n n); got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may attend; got {mask.dtype}")
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1]:
        raise ValueError(
            f"mask must have axes (n n), for the words of one text; got shape {shown(mask)}"
        )
    validate_sizes("", 0, layers=layers)


def validate_span(distance: Tensor, span: float | Tensor, ramp: float) -> None:
    """Raise unless distances are numbers in a tensor, spans fit them, and the ramp is above 0."""
    if not isinstance(distance, Tensor):
        raise TypeError(f"distance must be a torch.Tensor; got {type(distance).__name__}")
    if distance.dtype == torch.bool or distance.is_complex():
        raise TypeError(f"distance must hold real numbers; got {distance.dtype}")
    validate_positive("ramp", ramp)
    if not isinstance(span, Tensor):
        validate_number("span", span)
        return
    if broadcast(span.shape, distance.shape) is None:
        raise ValueError(
            "span must broadcast with distance, as (h 1 1) with (q k); "
            f"got span {shown(span)} for distance {shown(distance)}"
        )


def validate_rates(query: Tensor, key: Tensor, value: Tensor, **rates: Tensor) -> None:
    """Raise unless each rate is (… n), one number for each position of a text (… n d)."""
    batch = broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    for name, rate in rates.items():
        validate_axes(key=(key, "… n d"), **{name: (rate, "… n")})
        validate_fits(name, rate, (*batch, key.shape[-2]), "… n")


def validate_parts(one: object, two: object) -> None:
    """Raise unless both are pairs (… q v), (… q): of the same queries, over different keys."""
    for name, part in (("one", one), ("two", two)):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise TypeError(
                f"{name} must be a pair (output (… q v), logsumexp (… q)); "
                f"got {type(part).__name__}"
            )
        output, total = part
        validate_axes(**{f"the output of {name}": (output, "… q v")})
        validate_axes(**{f"the logsumexp of {name}": (total, "… q")})
        if output.shape[:-1] != total.shape:
            raise ValueError(
                f"{name} must be a pair (output (… q v), logsumexp (… q)); "
                f"got {shown(output)} and {shown(total)}"
            )
    if one[0].shape != two[0].shape:
        raise ValueError(
            "one and two must be of the same queries; "
            f"got outputs {shown(one[0])} and {shown(two[0])}"
        )


def validate_linear_state(state: object, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise unless (… d), (… d), (… v) fit together, and a state ((… d v), (… d)) or None them."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        validate_tensor(name, tensor)
        if tensor.ndim < 1 or tensor.dtype != query.dtype:
            raise ValueError(
                f"{name} must be one position's vector (… {name[0] if name == 'value' else 'd'}) "
                f"of {query.dtype}; got {shown(tensor)} of {tensor.dtype}"
            )
    if query.shape != key.shape or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            "query (… d), key (… d) and value (… v) must be of one position; "
            f"got {shown(query)}, {shown(key)} and {shown(value)}"
        )
    if state is None:
        return
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise TypeError(
            "state must be None or a pair (… d v), (… d), as the last call returned it; "
            f"got {type(state).__name__}"
        )
    for part, axes, shape in zip(
        state, ("(… d v)", "(… d)"), ((*key.shape, value.shape[-1]), key.shape), strict=True
    ):
        validate_tensor(f"the state {axes}", part)
        if part.shape != shape or part.dtype != key.dtype:
            raise ValueError(
                f"the state {axes} is {shown(part)} of {part.dtype}, and key {shown(key)} and "
                f"value {shown(value)} of {key.dtype} do not fit it; a new text begins with None"
            )


def validate_shards(queries: object, keys: object, values: object, positions: object) -> None:
    """Raise unless there are as many shards of each kind, and each three fit together."""
    lists = {"query_shards": queries, "key_shards": keys, "value_shards": values}
    if positions is not None:
        lists["positions"] = positions
    for name, shards in lists.items():
        if isinstance(shards, Tensor) or not isinstance(shards, list | tuple):
            raise TypeError(
                f"{name} must be a list of tensors, one a process; got {type(shards).__name__}"
            )
    lengths = {name: len(shards) for name, shards in lists.items()}
    if len(set(lengths.values())) > 1 or not queries:
        said = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise ValueError(f"every process has one shard of each kind; got {said}")
    for query, key, value in zip(queries, keys, values, strict=True):
        validate_attention(queries[0], key, value, None)
        validate_attention(query, key, value, None)
    for query, key, places in zip(queries, keys, positions or [], strict=bool(positions)):
        if places.shape != (query.shape[-2],) or places.shape != (key.shape[-2],):
            raise ValueError(
                "positions says where each position of a shard stands; got "
                f"{shown(places)} for query {shown(query)} and key {shown(key)}"
            )
