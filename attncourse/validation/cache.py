"""What chapter 10 is given: a cache, and what comes behind it."""

from torch import Tensor

from attncourse.validation.masks import validate_mask
from attncourse.validation.tensors import is_readable, shown, validate_tensor


def validate_cache(cache: object, **new: Tensor) -> None:
    """Raise unless each new (… q x) fits behind what a cache, a pair or None, keeps: (… n x)."""
    lengths = {}
    for name, tensor in new.items():
        validate_tensor(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(f"{name} must have axes (… q {name[0]}); got shape {shown(tensor)}")
        lengths[name] = tensor.shape[-2]
    if len(set(lengths.values())) > 1:
        said = " and ".join(f"{name} {shown(tensor)}" for name, tensor in new.items())
        raise ValueError(f"every new key needs its value: got {said}")
    if cache is None:
        return
    positions_in(cache)
    for (name, tensor), kept in zip(new.items(), cache, strict=True):
        validate_tensor(f"the cache of {name}", kept)
        if kept.dtype != tensor.dtype:
            raise TypeError(f"{name} is {tensor.dtype} but the cache holds {kept.dtype}")
        if kept.device != tensor.device:
            raise ValueError(f"{name} is on {tensor.device} but the cache is on {kept.device}")
        if kept.ndim != tensor.ndim or kept.shape[-1] != tensor.shape[-1]:
            raise ValueError(
                f"{name} {shown(tensor)} does not fit behind the {shown(kept)} that the cache "
                "holds: all axes but the positions must agree"
            )
        if kept.shape[:-2] != tensor.shape[:-2]:
            raise ValueError(
                f"{name} {shown(tensor)} belongs to another batch, or to other heads, than the "
                f"{shown(kept)} that the cache holds; a new text begins with None"
            )


def positions_in(cache: object) -> int:
    """How many positions a cache, a pair or None, holds; raise unless both tensors hold as many."""
    if cache is None:
        return 0
    if not isinstance(cache, tuple | list) or len(cache) != 2:
        raise TypeError(
            "cache must be None or a pair (keys, values), as the last call returned it; "
            f"got {type(cache).__name__}"
        )
    keys, values = cache
    for name, kept in (("key", keys), ("value", values)):
        validate_tensor(f"the cache of {name}", kept)
    if keys.ndim < 2 or values.ndim < 2 or keys.shape[-2] != values.shape[-2]:
        raise ValueError(
            "the cache must hold as many keys (… n d) as values (… n v); "
            f"got {shown(keys)} and {shown(values)}"
        )
    return keys.shape[-2]


def validate_step(query: Tensor, key: Tensor, mask: Tensor | None, kept: int) -> None:
    """Raise unless new queries and keys (… q d) are as many, and a mask is (… q n+q)."""
    for name, tensor in (("query", query), ("key", key)):
        validate_tensor(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(f"{name} must have axes (… q d); got shape {shown(tensor)}")
    q = query.shape[-2]
    if q != key.shape[-2]:
        raise ValueError(
            "a new position has one query and one key; "
            f"got query {shown(query)} with q = {q} and key {shown(key)} with {key.shape[-2]}"
        )
    if mask is not None:
        validate_mask(mask, query, (*query.shape[:-1], kept + q), "… q n+q")


def validate_paged(positions: Tensor, places: int) -> None:
    """Raise unless positions (b) lie in 0 … `places` − 1, as many as the pages of a text have."""
    if is_readable(positions) and not 0 <= positions.min() <= positions.max() < places:
        raise ValueError(
            f"positions must lie in 0 to {places - 1}, the pages of a text; "
            f"got {positions.tolist()}"
        )


def validate_even(**widths: int) -> None:
    """Raise unless features of these widths can be rotated: in pairs."""
    for name, width in widths.items():
        if width % 2:
            raise ValueError(f"{name}={width} must be even: numbers are rotated in pairs")


def validate_shared_heads(query: Tensor, key: Tensor) -> None:
    """Raise unless the c heads of key (b c k d) divide the h of query (b h q d)."""
    h, c = query.shape[1], key.shape[1]
    if c < 1 or h % c:
        raise ValueError(
            f"c = {c} heads of keys cannot serve h = {h} heads of queries equally: "
            f"got query {shown(query)} and key {shown(key)}"
        )
