"""Answers that are modules: how a check gives them weights, and looks at them from outside."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attncourse.checks.answer import Inputs, describe, shape_of
from attncourse.checks.inputs import normal
from attncourse.checks.observe import Unusable


def weights_of(module: nn.Module, rng: torch.Generator, dtype=torch.float32) -> Inputs:
    """Random weights for a module like this one, by name ("q_proj.weight")."""
    return {
        name: normal(rng, *parameter.shape, dtype=dtype) / max(1, parameter.shape[-1]) ** 0.5
        for name, parameter in module.named_parameters()
    }


def with_weights(module: nn.Module, weights: dict[str, Tensor], *arguments, **keywords):
    """Call a module as if its parameters were `weights`, and let gradients reach them.

    Raises:
        Unusable: the module lacks one of them, or has it in another shape.
    """
    has = dict(module.named_parameters(remove_duplicate=False))  # a layer may have two names
    for name, tensor in weights.items():
        if name not in has:
            there = ", ".join(has) or "none at all"
            raise Unusable(f"makes a module without the parameter `{name}`: it has {there}.")
        if has[name].shape != tensor.shape:
            raise Unusable(
                f"makes a module whose `{name}` has the shape {shape_of(has[name])}; "
                f"expected {shape_of(tensor)}."
            )
    return functional_call(module, weights, arguments, keywords, tie_weights=False)


def made(cls: Callable[..., nn.Module], *sizes, training=False) -> nn.Module:
    """Make a student's module, and leave the random state as it was.

    Raises:
        Unusable: what came is no module.
    """
    state = torch.get_rng_state()
    module = cls(*sizes)
    torch.set_rng_state(state)
    if not isinstance(module, nn.Module):
        raise Unusable(f"makes {describe(module)} when it is called; an nn.Module is expected.")
    module = getattr(module, "_orig_mod", module)  # torch.compile wraps it, and all names with it
    return module.train(training)


def parts_of(cls):
    """An `adapt` that looks at a class from outside: names and shapes of its parameters."""

    def look(**sizes):
        parameters = made(cls, *sizes.values()).named_parameters(remove_duplicate=False)
        return [(name, tuple(parameter.shape)) for name, parameter in parameters]

    return look


def as_its_owner_left_it(model: nn.Module) -> nn.Module:
    """The model with one part in training, and one parameter that is not to be learned."""
    list(model.modules())[-1].train()
    next(model.parameters()).requires_grad_(False)
    return model


def standing(model: nn.Module) -> list[str]:
    """What a caller may have set in a model besides its numbers, a line for each."""
    parts, numbers = list(model.named_modules()), list(model.named_parameters())
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for _, part in parts)
    return [
        f"hooks: {hooks}",
        "in training: " + " ".join(name for name, part in parts if part.training),
        "learned: " + " ".join(name for name, each in numbers if each.requires_grad),
        "parts: " + " ".join(name for name, _ in parts),
    ]


WHAT_STANDS = {
    "hooks": "calls a function of yours in every run. Remove each hook (`handle.remove()`), or "
    "work on a copy",
    "in training": "is in another mode: `train` or `eval` was called. Work on a copy, or put back "
    "the mode that it had",
    "learned": "has parameters whose `requires_grad` is another. Use `torch.no_grad()`, or work on "
    "a copy",
    "parts": "consists of other parts. Work on a copy",
}


def disturbed(before: list[str], after: list[str]) -> str:
    """What is no longer as it was, to be said after "the given model"; empty if nothing is."""
    for one, two in zip(before, after, strict=True):
        if one != two:
            return WHAT_STANDS[one.split(":")[0]]
    return ""
