"""Bad input, said in the caller's words: which argument, what came, what was expected."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce, wraps
from itertools import zip_longest
from types import UnionType

import torch
from jaxtyping import Float, Int
from torch import Tensor


def _shape(tensor: Tensor) -> str:
    return "(" + " ".join(map(str, tensor.shape)) + ")"


def validate_tensor(name: str, value: object, kind: str = "floating-point") -> None:
    """Raise TypeError unless `value` is a tensor of floating-point (or of "whole") numbers."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}")
    is_whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    if not (is_whole if kind == "whole" else value.is_floating_point()):
        raise TypeError(f"{name} must hold {kind} numbers; got {value.dtype}")


def checked(function: Callable | None = None, /, **of_layer: str) -> Callable:
    """Raise at a call unless its tensors have the axes and the numbers that their annotations name.

    `Float[Tensor, "b k d"]` asks for floating-point numbers and three axes; a letter means the same
    length in all arguments. Masks are left to the function.

    Args:
        of_layer: letter -> where a layer has that length, as in @checked(m="q_proj.in_features").
    """
    if function is None:
        return partial(checked, **of_layer)
    parameters = tuple(inspect.signature(function).parameters)
    axes = {name: _axes(function.__annotations__.get(name)) for name in parameters}
    axes = {name: said for name, said in axes.items() if said}

    @wraps(function)
    def call(*args, **kwargs):
        given = dict(zip(parameters, args, strict=False)) | kwargs
        lengths = {
            letter: ("the layer", reduce(getattr, place.split("."), given["self"]))
            for letter, place in of_layer.items()
        }
        tensors = {
            name: (given[name], letters, kind)
            for name, (letters, kind, is_optional) in axes.items()
            if name in given and not (is_optional and given[name] is None)
        }
        validate_axes(lengths, **tensors)
        return function(*args, **kwargs)

    return call


def _axes(annotation: object) -> tuple[str, str, bool] | None:
    """Letters, kind of numbers, and whether None will do; None if there is nothing to look at."""
    said, is_optional = annotation, isinstance(annotation, UnionType)
    if is_optional:
        said = annotation.__args__[0]
    kind = {Float.dtypes: "floating-point", Int.dtypes: "whole"}.get(getattr(said, "dtypes", None))
    return kind and (re.sub(r"^(\*#?\w+|\.\.\.)", "…", said.dim_str), kind, is_optional)


def validate_axes(
    fixed: Mapping[str, tuple[str, int]] | None = None, /, **arguments: tuple
) -> None:
    """Raise unless every tensor has its axes, and a letter means the same length everywhere.

    Args:
        fixed: lengths that are known before, letter -> (where from, length), such as
            {"m": ("q_proj", 64)}.
        arguments: name=(tensor, axes) or name=(tensor, axes, kind), such as keys=(keys, "b k d").
            "…" at the beginning stands for any axes. An axis may be a sum of earlier ones
            ("e+d", "q+k-1"). Kind is "floating-point" or "whole".
    """
    known = dict(fixed or {})
    first = None
    for name, (tensor, axes, *kind) in arguments.items():
        validate_tensor(name, tensor, *kind)
        letters = axes.removeprefix("…").split()
        more = tensor.ndim - len(letters)
        if more < 0 or (more > 0 and "…" not in axes):
            raise ValueError(f"{name} must have axes ({axes}); got shape {_shape(tensor)}")
        for letter, length in zip(letters, tensor.shape[more:], strict=True):
            if "+" in letter:
                known[letter] = _sum(letter, known)
            where, expected = known.setdefault(letter, (name, length))
            if length != expected:
                raise ValueError(
                    f"{name} {_shape(tensor)} has axes ({axes}), so {letter} = {length}; "
                    f"but {where} has {letter} = {expected}"
                )
        if tensor.is_floating_point():
            first = first or (name, tensor)
            if tensor.dtype != first[1].dtype:
                raise TypeError(
                    f"{name} is {tensor.dtype} but {first[0]} is {first[1].dtype}; use one dtype"
                )


def _sum(letters: str, known: Mapping[str, tuple[str, int]]) -> tuple[str, int]:
    """Where from, and how much: "q+k-1" of lengths that are known."""
    parts = letters.replace("-", "+-").split("+")
    where = " and ".join(known[part][0] for part in parts if part in known)
    return where, sum(known[part][1] if part in known else int(part) for part in parts)


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that these broadcast to; None if there is none.

    `torch.broadcast_shapes` imports sympy with its first call, which takes most of a second.
    """
    lengths = []
    for axis in zip_longest(*map(reversed, shapes), fillvalue=1):
        length = 1
        for each in axis:
            if length != each != 1:
                if length != 1:
                    return None
                length = each
        lengths.append(length)
    return tuple(reversed(lengths))


def _is_readable(tensor: Tensor) -> bool:
    """Whether its numbers can be looked at: not in a compiled graph, nor on the meta device."""
    return not torch.compiler.is_compiling() and tensor.device.type != "meta"


def validate_ids(name: str, ids: Tensor, words: int, pad: int | None = None) -> None:
    """Raise unless ids (b n) are whole, in 0 … `words` − 1, and not all of them padding."""
    validate_axes(**{name: (ids, "b n", "whole")})
    if ids.shape[1] == 0:
        raise ValueError(f"{name} {_shape(ids)} is empty: a row needs at least one word")
    if not (_is_readable(ids) and ids.numel()):
        return
    if not 0 <= ids.min() <= ids.max() < words:
        raise ValueError(
            f"{name} holds ids from {ids.min()} to {ids.max()}; known are 0 to {words - 1}"
        )
    if pad is not None and bool((ids == pad).all()):
        raise ValueError(f"{name} {_shape(ids)} holds nothing but padding (id {pad})")


def validate_logits(logits: Tensor) -> None:
    """Raise unless logits (b vocab) score at least one word, and all of them with a number."""
    if logits.shape[1] == 0 or (_is_readable(logits) and logits.isnan().any()):
        raise ValueError(
            "logits (b vocab) must hold a number for at least one word; "
            f"got shape {tuple(logits.shape)}, {int(logits.isnan().sum())} of them NaN"
        )


def validate_paged(positions: Tensor, places: int) -> None:
    """Raise unless positions (b) lie in 0 … `places` − 1, as many as the pages of a text have."""
    if _is_readable(positions) and not 0 <= positions.min() <= positions.max() < places:
        raise ValueError(
            f"positions must lie in 0 to {places - 1}, the pages of a text; "
            f"got {positions.tolist()}"
        )


def validate_lengths(tokens: Tensor, lengths: Tensor) -> None:
    """Raise unless tokens (b n) can have as many real tokens in each row as lengths (b) says."""
    longest = tokens.shape[1]
    if lengths.numel() and not (lengths.min() >= 1 and lengths.max() <= longest):
        raise ValueError(
            f"every sentence must have 1 to n = {longest} real tokens; "
            f"lengths go from {lengths.min()} to {lengths.max()}"
        )


def validate_scores(scores: Tensor, dim: int) -> None:
    """Raise unless a softmax over axis `dim` of `scores` means something."""
    validate_tensor("scores", scores)
    if not -scores.ndim <= dim < scores.ndim:
        raise ValueError(
            f"dim={dim} names no axis of scores, whose shape {_shape(scores)} has {scores.ndim}"
        )
    if scores.shape[dim] == 0:
        raise ValueError(
            f"scores is empty along dim={dim} (shape {_shape(scores)}): "
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
            f"got {_shape(scores)} and {_shape(weights)}"
        )


def validate_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Raise unless (… q d), (… k d), (… k v) and a boolean mask (… q k) fit together."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        axes = {"query": "(… q d)", "key": "(… k d)", "value": "(… k v)"}[name]
        validate_tensor(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(f"{name} must have axes {axes}; got shape {_shape(tensor)}")
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name} is {tensor.dtype} but query is {query.dtype}; use one dtype")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device} but query is on {query.device}")
        if 0 in tensor.shape[-2:]:
            raise ValueError(
                f"{name} {axes} is empty: got shape {_shape(tensor)}; "
                "at least one position and one feature are needed"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            "query and key must have the same width d to be compared; "
            f"got query {_shape(query)} with d = {query.shape[-1]} "
            f"and key {_shape(key)} with d = {key.shape[-1]}"
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            "every key needs its value: key and value must have the same length k; "
            f"got key {_shape(key)} with k = {key.shape[-2]} "
            f"and value {_shape(value)} with k = {value.shape[-2]}"
        )
    batch = _broadcast(*(tensor.shape[:-2] for tensor in tensors.values()))
    if batch is None:
        shapes = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in tensors.items())
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
    if _broadcast(mask.shape, shape) != tuple(shape):
        inserted = "None, " * (len(shape) - 2)
        advice = f". A padding mask (b k) needs an axis for the queries: mask[:, {inserted}:]"
        raise ValueError(
            f"mask must broadcast to {axes}; got shape {_shape(mask)}"
            + (advice if mask.ndim == 2 and len(shape) > 2 else "")
        )
    # One dead row is legal and gives 0. Nothing at all for several queries is a mask that means
    # the opposite.
    queries = (1, *shape)[-2]
    if not may_hide_all and _is_readable(mask) and queries > 1 and mask.numel() and not mask.any():
        raise ValueError(
            f"mask {_shape(mask)} hides every key from every query. Here True means "
            "'may attend'; if yours means 'ignore', pass ~mask"
        )


def validate_cache(cache: object, **new: Tensor) -> None:
    """Raise unless each new (… q x) fits behind what a cache, a pair or None, keeps: (… n x)."""
    lengths = {}
    for name, tensor in new.items():
        validate_tensor(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(f"{name} must have axes (… q {name[0]}); got shape {_shape(tensor)}")
        lengths[name] = tensor.shape[-2]
    if len(set(lengths.values())) > 1:
        said = " and ".join(f"{name} {_shape(tensor)}" for name, tensor in new.items())
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
                f"{name} {_shape(tensor)} does not fit behind the {_shape(kept)} that the cache "
                "holds: all axes but the positions must agree"
            )
        if kept.shape[:-2] != tensor.shape[:-2]:
            raise ValueError(
                f"{name} {_shape(tensor)} belongs to another batch, or to other heads, than the "
                f"{_shape(kept)} that the cache holds; a new text begins with None"
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
            f"got {_shape(keys)} and {_shape(values)}"
        )
    return keys.shape[-2]


def validate_step(query: Tensor, key: Tensor, mask: Tensor | None, kept: int) -> None:
    """Raise unless new queries and keys (… q d) are as many, and a mask is (… q n+q)."""
    for name, tensor in (("query", query), ("key", key)):
        validate_tensor(name, tensor)
        if tensor.ndim < 2:
            raise ValueError(f"{name} must have axes (… q d); got shape {_shape(tensor)}")
    q = query.shape[-2]
    if q != key.shape[-2]:
        raise ValueError(
            "a new position has one query and one key; "
            f"got query {_shape(query)} with q = {q} and key {_shape(key)} with {key.shape[-2]}"
        )
    if mask is not None:
        validate_mask(mask, query, (*query.shape[:-1], kept + q), "… q n+q")


def validate_pair(name: str, returned: object, parts: str) -> None:
    """Raise unless a caller's function has returned two things; `parts` says which."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        got = type(returned).__name__
        if isinstance(returned, tuple | list):
            got += f" of {len(returned)}"
        raise TypeError(f"{name} must return the pair ({parts}); got {got}")


def validate_sizes(asks: str = "", least: int = 1, /, **sizes: object) -> None:
    """Raise unless every size is a whole number of at least `least`; `asks` names who needs it."""
    for name, size in sizes.items():
        if size is None:
            raise ValueError(f"{asks or 'this'} needs {name}")
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            raise ValueError(f"{name} must be a whole number of at least {least}; got {size!r}")


def validate_even(**widths: int) -> None:
    """Raise unless features of these widths can be rotated: in pairs."""
    for name, width in widths.items():
        if width % 2:
            raise ValueError(f"{name}={width} must be even: numbers are rotated in pairs")


def validate_counts(words: object) -> None:
    """Raise unless `words` map each word to how often it occurs, a whole number of at least 0."""
    expected = "words must map each word to how often it occurs"
    if not isinstance(words, Mapping):
        raise TypeError(f"{expected}; got {type(words).__name__}")
    for word, count in words.items():
        if not isinstance(word, str):
            raise TypeError(f"{expected}; got the word {word!r}, of type {type(word).__name__}")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(
                f"{expected}, a whole number of at least 0; got {count!r} for {word!r}"
            )


def validate_merges(merges: object) -> None:
    """Raise unless merges are a list of pairs."""
    if isinstance(merges, str) or not isinstance(merges, Sequence):
        raise TypeError(f"merges must be a list of pairs of pieces; got {type(merges).__name__}")
    for merge in merges:
        if not isinstance(merge, tuple | list) or len(merge) != 2:
            raise ValueError(f"merges must hold pairs of pieces; got {merge!r}")


def validate_shared_heads(query: Tensor, key: Tensor) -> None:
    """Raise unless the c heads of key (b c k d) divide the h of query (b h q d)."""
    h, c = query.shape[1], key.shape[1]
    if c < 1 or h % c:
        raise ValueError(
            f"c = {c} heads of keys cannot serve h = {h} heads of queries equally: "
            f"got query {_shape(query)} and key {_shape(key)}"
        )


def validate_heads(x: Tensor, num_heads: int) -> None:
    """Raise unless x (b n m) can be cut into `num_heads` heads of equal width."""
    if num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(
            f"{num_heads} heads of equal width do not fit into m = {x.shape[-1]}: "
            f"x has shape {_shape(x)}"
        )


def validate_places(x: Tensor, positions: Tensor) -> None:
    """Raise unless x (… n d) has an even width and positions (n) or (… n) fit it."""
    validate_tensor("x", x)
    if x.ndim < 2 or x.shape[-1] < 2 or x.shape[-1] % 2:
        raise ValueError(
            f"x must have axes (… n d) with an even d, for features turn in pairs; "
            f"got shape {_shape(x)}"
        )
    if not isinstance(positions, Tensor):
        raise TypeError(f"positions must be a torch.Tensor; got {type(positions).__name__}")
    if positions.dtype == torch.bool or positions.is_complex():
        raise TypeError(f"positions must hold real numbers; got {positions.dtype}")
    if _is_readable(positions) and not positions.isfinite().all():
        raise ValueError("positions must be finite; some are infinite or NaN")
    if positions.device != x.device:
        raise ValueError(f"positions is on {positions.device} but x is on {x.device}")
    *leading, n = positions.shape or (0,)
    fits = _broadcast(leading, x.shape[:-2]) == x.shape[:-2]
    if not fits or positions.ndim == 0 or n != x.shape[-2]:
        raise ValueError(
            f"positions must have axes (n), or (… n) as x has (… n d): one place a vector; "
            f"got positions {_shape(positions)} for x {_shape(x)}"
        )


def validate_table(query: Tensor, key: Tensor, table: Tensor) -> None:
    """Raise unless (… q d), (… k d) and a table (2c+1 d) of vectors by offset fit together."""
    validate_attention(query, key, key, None)
    validate_axes(query=(query, "… q d"), table=(table, "r d"))
    if table.shape[0] % 2 == 0:
        raise ValueError(
            "table must have 2c + 1 rows: c for what comes before, one for the place itself, "
            f"c for what comes after; got shape {_shape(table)}"
        )


def validate_shift(scores: Tensor) -> None:
    """Raise unless scores (… q r) hold at least one offset r = q + k − 1 a key."""
    validate_tensor("scores", scores)
    if scores.ndim < 2:
        raise ValueError(f"scores must have axes (… q r); got shape {_shape(scores)}")
    q, r = scores.shape[-2:]
    if r < q:
        raise ValueError(
            f"scores must have r = q + k - 1 offsets a query, so at least q = {q}; "
            f"got shape {_shape(scores)} with r = {r}"
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


def validate_maps(name: str, weights: Tensor, least: int = 1) -> None:
    """Raise unless weights are (… n n), with n at least `least`."""
    validate_tensor(name, weights)
    if weights.ndim < 2 or weights.shape[-1] != weights.shape[-2] or weights.shape[-1] < least:
        few = f", n >= {least}" if least > 1 else ""
        raise ValueError(
            f"{name} must be (… n n), a row and a column for each position{few}; "
            f"got shape {_shape(weights)}"
        )


def validate_period(weights: Tensor, period: int) -> None:
    """Raise unless weights are (… n n) of a text in which something is repeated."""
    validate_maps("weights", weights)
    n = weights.shape[-1]
    if isinstance(period, bool) or not isinstance(period, int) or not 1 <= period < n:
        raise ValueError(
            f"period must be a whole number from 1 to n - 1 = {n - 1}, or nothing is repeated; "
            f"got {period!r}"
        )


def validate_head(where: str, head: object, heads: int) -> None:
    """Raise unless `where`, an attention of so many heads, has this one."""
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < heads:
        raise ValueError(f"{where} has heads 0 to {heads - 1}; got head={head!r}")


def validate_place(place: object, n: int) -> None:
    """Raise unless place is (attention, head, position), with a position of a text of n words."""
    if not isinstance(place, tuple | list) or len(place) != 3:
        raise TypeError(f"place must be (attention's name, head, position); got {place!r}")
    position = place[2]
    if isinstance(position, bool) or not isinstance(position, int) or not -n <= position < n:
        raise ValueError(f"the texts have positions 0 to {n - 1}; got position={position!r}")


def validate_layers(weights: object) -> None:
    """Raise unless weights are a list of (b h n n), of the same texts in every layer."""
    if isinstance(weights, Tensor) or not isinstance(weights, list | tuple) or not weights:
        said = _shape(weights) if isinstance(weights, Tensor) else repr(weights)[:40]
        raise TypeError(
            f"weights must be a list of (b h n n), one a layer, the first layer first; got {said}"
        )
    first = weights[0]
    for number, layer in enumerate(weights):
        name = f"weights[{number}]"
        validate_maps(name, layer)
        if layer.ndim != 4:
            raise ValueError(f"{name} must have axes (b h n n); got shape {_shape(layer)}")
        if (layer.shape[0], *layer.shape[2:]) != (first.shape[0], *first.shape[2:]):
            raise ValueError(
                f"layers must read the same texts: {name} has shape {_shape(layer)}, "
                f"weights[0] {_shape(first)}"
            )
        if layer.dtype != first.dtype:
            raise TypeError(f"{name} is {layer.dtype} but weights[0] is {first.dtype}")


def validate_fits(name: str, value: Tensor, shape: tuple[int, ...], axes: str) -> None:
    """Raise unless `value` broadcasts to `shape`, and makes it no larger."""
    if _broadcast(value.shape, shape) != tuple(shape):
        raise ValueError(
            f"{name} must broadcast to ({axes}) = ({' '.join(map(str, shape))}); "
            f"got shape {_shape(value)}"
        )


def validate_text(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise unless (… n d), (… n d), (… n v) are of one text: as many queries as keys."""
    validate_attention(query, key, value, None)
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            "query and key must be of one text, with n positions each; "
            f"got query {_shape(query)} and key {_shape(key)}"
        )


def validate_reach(mask: Tensor, layers: int) -> None:
    """Raise unless mask is boolean and (n n), and layers a whole number of at least 0."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a boolean torch.Tensor (n n); got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may attend; got {mask.dtype}")
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1]:
        raise ValueError(
            f"mask must have axes (n n), for the words of one text; got shape {_shape(mask)}"
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
    if _broadcast(span.shape, distance.shape) is None:
        raise ValueError(
            "span must broadcast with distance, as (h 1 1) with (q k); "
            f"got span {_shape(span)} for distance {_shape(distance)}"
        )


def validate_rates(query: Tensor, key: Tensor, value: Tensor, **rates: Tensor) -> None:
    """Raise unless each rate is (… n), one number for each position of a text (… n d)."""
    batch = _broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
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
                f"got {_shape(output)} and {_shape(total)}"
            )
    if one[0].shape != two[0].shape:
        raise ValueError(
            "one and two must be of the same queries; "
            f"got outputs {_shape(one[0])} and {_shape(two[0])}"
        )


def validate_linear_state(state: object, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise unless (… d), (… d), (… v) fit together, and a state ((… d v), (… d)) or None them."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        validate_tensor(name, tensor)
        if tensor.ndim < 1 or tensor.dtype != query.dtype:
            raise ValueError(
                f"{name} must be one position's vector (… {name[0] if name == 'value' else 'd'}) "
                f"of {query.dtype}; got {_shape(tensor)} of {tensor.dtype}"
            )
    if query.shape != key.shape or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            "query (… d), key (… d) and value (… v) must be of one position; "
            f"got {_shape(query)}, {_shape(key)} and {_shape(value)}"
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
                f"the state {axes} is {_shape(part)} of {part.dtype}, and key {_shape(key)} and "
                f"value {_shape(value)} of {key.dtype} do not fit it; a new text begins with None"
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
                f"{_shape(places)} for query {_shape(query)} and key {_shape(key)}"
            )


def validate_picture(image: Tensor, size: tuple[int, int]) -> None:
    """Raise unless patches of this height and width fill an image (b c y x)."""
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise TypeError(f"size must be (height, width) of a patch, in pixels; got {size!r}")
    height, width = size
    validate_sizes(height=height, width=width)
    if 0 in image.shape or image.shape[2] % height or image.shape[3] % width:
        raise ValueError(
            f"patches of {height} × {width} pixels do not fill a picture of y = {image.shape[2]} "
            f"and x = {image.shape[3]}: image has shape {_shape(image)}"
        )


def validate_scalar(name: str, value: object) -> None:
    """Raise unless `value` is a tensor of one floating-point number."""
    validate_tensor(name, value)
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number; got shape {_shape(value)}")


def validate_number(name: str, value: object) -> None:
    """Raise unless `value` is a number of Python's."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number; got {type(value).__name__}")


def validate_positive(name: str, value: object) -> None:
    """Raise unless `value` is one number above 0, as a float or a tensor."""
    if isinstance(value, Tensor):
        validate_scalar(name, value)
        is_positive = not _is_readable(value) or bool(value > 0)
    else:
        validate_number(name, value)
        is_positive = value > 0
    if not is_positive:
        raise ValueError(f"{name} must be above 0; got {value}")
