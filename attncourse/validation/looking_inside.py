"""What chapter 12 is given: weights of trained layers, and a place among them."""

from torch import Tensor

from attncourse.validation.tensors import shown, validate_tensor


def validate_maps(name: str, weights: Tensor, least: int = 1) -> None:
    """Raise unless weights are (… n n), with n at least `least`."""
    validate_tensor(name, weights)
    if weights.ndim < 2 or weights.shape[-1] != weights.shape[-2] or weights.shape[-1] < least:
        few = f", n >= {least}" if least > 1 else ""
        raise ValueError(
            f"{name} must be (… n n), a row and a column for each position{few}; "
            f"got shape {shown(weights)}"
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
        said = shown(weights) if isinstance(weights, Tensor) else repr(weights)[:40]
        raise TypeError(
            f"weights must be a list of (b h n n), one a layer, the first layer first; got {said}"
        )
    first = weights[0]
    for number, layer in enumerate(weights):
        name = f"weights[{number}]"
        validate_maps(name, layer)
        if layer.ndim != 4:
            raise ValueError(f"{name} must have axes (b h n n); got shape {shown(layer)}")
        if (layer.shape[0], *layer.shape[2:]) != (first.shape[0], *first.shape[2:]):
            raise ValueError(
                f"layers must read the same texts: {name} has shape {shown(layer)}, "
                f"weights[0] {shown(first)}"
            )
        if layer.dtype != first.dtype:
            raise TypeError(f"{name} is {layer.dtype} but weights[0] is {first.dtype}")
