"""Does an answer make its tensors where its inputs are? Seen without a GPU.

An answer that mixes devices runs on a CPU, where there is one device, and stops on a GPU. Here its
inputs are on torch's meta device, which computes shapes and no numbers, and every operation is
held to the rule of a GPU: all tensors on one device, but for copies, indices and single numbers.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from attncourse.checks.answer import Answer, Failure, Inputs, shape_of

aten = torch.ops.aten
MAY_MIX = (aten.copy_, aten._to_copy, aten.index, aten.index_put, aten.index_put_)


class _Mixed(Exception):
    """Tensors of two devices met."""


class _OneDevice(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in observe.py

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, function.overloadpacket
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        away = [x for x in tensors if not x.is_meta and x.ndim]
        if name in MAY_MIX:
            # Numbers cannot leave the meta device; that they may leave a GPU is all that counts.
            if name is aten.copy_ and not args[0].is_meta and args[1].is_meta:
                return args[0]
            if name is aten._to_copy and args[0].is_meta and kwargs.get("device") is not None:
                return torch.zeros_like(args[0], **{"device": kwargs["device"]})
        elif away and len(away) < len(tensors):
            operation = str(name).removeprefix("aten.").rstrip("_")
            raise _Mixed(f"`{operation}` gets a tensor of shape {shape_of(away[0])} on the CPU")
        return function(*args, **kwargs)


def _move(x):
    return x.to("meta") if isinstance(x, Tensor) else x


def elsewhere(function):
    """A function of tensors as it would be called with its inputs on another device.

    A task that adapts its answers makes an `adapt` of this, in its own file:
    `def on_another_device(answer): return elsewhere(of_two_parts(answer))`.
    """

    def watched(**inputs):
        inputs = tree_map(_move, inputs)
        try:
            with _OneDevice():
                returned = function(*inputs.values())
        except _Mixed as mixed:
            return {"mixed": str(mixed)}
        except Exception:  # it asks for numbers, and here there are none
            return {"mixed": ""}
        left = [
            x for x in tree_leaves(returned) if isinstance(x, Tensor) and x.ndim and not x.is_meta
        ]
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
            f"On a GPU this would stop: {said}, the others are with the inputs. `torch.zeros`, "
            "`full`, `arange` and their like use the CPU unless told otherwise: say "
            "`device=x.device`, or ask a tensor for its like (`torch.zeros_like(x)`, "
            "`x.new_zeros(…)`)."
        )
