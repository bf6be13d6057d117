"""The axes of tensors, by the letters that a signature names."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial, reduce, wraps
from types import UnionType

from jaxtyping import Float, Int

from attncourse.validation.tensors import shown, validate_tensor


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
            raise ValueError(f"{name} must have axes ({axes}); got shape {shown(tensor)}")
        for letter, length in zip(letters, tensor.shape[more:], strict=True):
            if "+" in letter:
                known[letter] = _sum(letter, known)
            where, expected = known.setdefault(letter, (name, length))
            if length != expected:
                raise ValueError(
                    f"{name} {shown(tensor)} has axes ({axes}), so {letter} = {length}; "
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
