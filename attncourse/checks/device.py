"""Does an answer make its tensors where its inputs are? Seen without a GPU.

An answer that mixes devices runs on a CPU, where there is one device, and stops on a GPU. Here its
inputs say that they are on another device, and keep their numbers on the CPU; every operation is
held to the rule of a GPU: all tensors on one device, but for copies, indices and single numbers.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from attncourse.checks.answer import Answer, Failure, Inputs, shape_of

aten = torch.ops.aten
MAY_MIX = (aten.copy_, aten._to_copy, aten.index, aten.index_put, aten.index_put_)
# Of all devices that torch knows, the one that needs no hardware. What torch itself computes on it
# is not used: it holds no numbers, and the first operation imports torch._dynamo, for 1.5 s.
THERE = torch.device("meta")


class _Mixed(Exception):
    """Tensors of two devices met."""


class _There(Tensor):
    """A tensor that says it is on another device."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor):
        made = Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), dtype=here.dtype, device=THERE
        )
        made.here = here
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        """Compute on the CPU; the result is where its device says, or else where its inputs are."""
        kwargs, tensors = dict(kwargs or {}), []

        def here(x):
            if isinstance(x, Tensor):
                tensors.append(x)
            return _here(x)

        name, device = function.overloadpacket, kwargs.get("device")
        if device == THERE:
            kwargs["device"] = torch.device("cpu")
        inside = _map(here, args), _map(here, kwargs)
        away = [x for x in tensors if x.device != THERE and x.ndim]
        if name not in MAY_MIX and away and len(away) < len(tensors):
            operation = str(name).removeprefix("aten.").rstrip("_")
            raise _Mixed(f"`{operation}` gets a tensor of shape {shape_of(away[0])} on the CPU")
        there = device == THERE or (device is None and any(x.device == THERE for x in tensors))
        if name in (aten.copy_, aten.index_put_):  # what is written into stays where it is
            there = args[0].device == THERE
        returned = function(*inside[0], **inside[1])
        if not there:
            return returned
        returned = _map(lambda x: cls(x) if isinstance(x, Tensor) else x, returned)
        return return_and_correct_aliasing(function, args, kwargs, returned)


class _Watched(TorchDispatchMode):
    """Sees what no such tensor takes part in, too: how others are made, and where."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in observe.py

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _There.__torch_dispatch__(function, types, args, kwargs)


def _map(function, x):
    """What a function makes of all in tuples, lists and dicts: `tree_map` takes far longer."""
    if isinstance(x, dict):
        return {key: _map(function, each) for key, each in x.items()}
    if isinstance(x, tuple | list):
        return type(x)([_map(function, each) for each in x])
    return function(x)


def _here(x):
    if isinstance(x, Tensor) and x.device == THERE:
        # `torch.tensor` makes its own on "meta", without the numbers it was given.
        return x.here if isinstance(x, _There) else torch.zeros(x.shape, dtype=x.dtype)
    return x


def _move(x):
    return _There(x.detach()) if isinstance(x, Tensor) else x


def elsewhere(function):
    """A function of tensors as it would be called with its inputs on another device.

    A task that adapts its answers makes an `adapt` of this, in its own file:
    `def on_another_device(answer): return elsewhere(of_two_parts(answer))`.
    """

    def watched(**inputs):
        inputs = tree_map(_move, inputs)
        try:
            with _Watched():
                returned = function(*inputs.values())
        except _Mixed as mixed:
            return {"mixed": str(mixed)}
        except Exception:  # what it does with them is for other checks
            return {"mixed": ""}
        tensors = [x for x in tree_leaves(returned) if isinstance(x, Tensor)]
        left = [x for x in tensors if x.device != THERE and x.ndim]
        said = f"it returns a tensor of shape {shape_of(left[0])} on the CPU" if left else ""
        return {"mixed": said}

    return watched


def on_another_device(answer):
    """An `adapt`, for an answer that is a function of tensors."""
    return elsewhere(answer)


def mixed(answer: Answer, inputs: Inputs, adapt=on_another_device) -> str:
    """Where an answer mixes its inputs' device with the CPU, in words; "" if nowhere seen."""
    seen = answer.observe(inputs, adapt=adapt)
    return seen.returned["mixed"] if isinstance(seen.returned, dict) else ""


def stays_with(answer: Answer, inputs: Inputs, adapt=on_another_device) -> None:
    """Assert that an answer runs, and that it could on whatever device its inputs are."""
    answer(inputs)
    said = mixed(answer, inputs, adapt)
    if said:
        raise Failure(
            f"On a GPU this would fail: {said}, the others are with the inputs. `torch.zeros`, "
            "`full`, `arange` and the like use the CPU by default: say `device=x.device`, or "
            "use `torch.zeros_like(x)` or `x.new_zeros(…)`."
        )
