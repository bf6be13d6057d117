"""Numbers that are given beside tensors, and what has to be divided by them."""

from torch import Tensor

from attncourse.validation.tensors import is_readable, shown, validate_tensor


def validate_sizes(asks: str = "", least: int = 1, /, **sizes: object) -> None:
    """Raise unless every size is a whole number of at least `least`; `asks` names who needs it."""
    for name, size in sizes.items():
        if size is None:
            raise ValueError(f"{asks or 'this'} needs {name}")
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            raise ValueError(f"{name} must be a whole number of at least {least}; got {size!r}")


def validate_number(name: str, value: object) -> None:
    """Raise unless `value` is a number of Python's."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number; got {type(value).__name__}")


def validate_scalar(name: str, value: object) -> None:
    """Raise unless `value` is a tensor of one floating-point number."""
    validate_tensor(name, value)
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number; got shape {shown(value)}")


def validate_positive(name: str, value: object) -> None:
    """Raise unless `value` is one number above 0, as a float or a tensor."""
    if isinstance(value, Tensor):
        validate_scalar(name, value)
        is_positive = not is_readable(value) or bool(value > 0)
    else:
        validate_number(name, value)
        is_positive = value > 0
    if not is_positive:
        raise ValueError(f"{name} must be above 0; got {value}")


def validate_heads(x: Tensor, num_heads: int) -> None:
    """Raise unless x (b n m) can be cut into `num_heads` heads of equal width."""
    if num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(
            f"{num_heads} heads of equal width do not fit into m = {x.shape[-1]}: "
            f"x has shape {shown(x)}"
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
            f"and x = {image.shape[3]}: image has shape {shown(image)}"
        )
