"""What the checks of several chapters share: inputs, and answers that are modules."""

import numbers
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attncourse.checks.observe import Unusable
from attncourse.checks.task import Answer, Failure, Inputs, describe, shape_of


def normal(rng: torch.Generator, *shape: int, dtype=torch.float32) -> Tensor:
    """Standard normal numbers on the CPU, whatever the student's defaults are."""
    return torch.randn(*shape, generator=rng, dtype=dtype, device="cpu")


def integers(rng: torch.Generator, *shape: int, low=-2, high=2) -> Tensor:
    """Small whole numbers: an example a student can check in the head."""
    drawn = torch.randint(low, high + 1, shape, generator=rng, device="cpu")
    return drawn.to(torch.float32)


def mixed_mask(rng: torch.Generator, *shape: int) -> Tensor:
    """Every row, and every row of the opposite mask, has somewhere to look."""
    order = torch.rand(*shape, generator=rng, device="cpu").argsort(-1)
    return order < shape[-1] - 2


def dead_mask(rng: torch.Generator, *shape: int) -> Tensor:
    """A mixed mask in which row 1 of each table may attend to nothing."""
    mask = mixed_mask(rng, *shape)
    mask[..., 1, :] = False
    return mask


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def moves_nothing(answer: Answer, inputs: Inputs) -> None:
    """Assert that a call leaves inputs, random state and settings alone, and can be repeated."""
    seen = answer.observe(inputs)
    first = answer(inputs)
    if seen.edited:
        raise Failure(
            f"Your answer changed its own input: {', '.join(seen.edited)}. The caller still needs "
            "it; an in-place operation (`-=`, `masked_fill_`, …) does that.",
            inputs,
        )
    if seen.random_state_moved:
        raise Failure(
            "Your answer moved or reset the global random state, and nothing here needs chance.",
            inputs,
        )
    if seen.settings_changed:
        raise Failure("Your answer changed torch's default dtype for everybody.", inputs)
    again = answer(inputs, seed=1)
    first, again = (value if isinstance(value, tuple) else (value,) for value in (first, again))
    for one, two, name in zip(first, again, _names(answer), strict=True):
        if isinstance(one, Tensor):  # a NaN in the same place is another check's business
            same = torch.equal(one.nan_to_num(), two.nan_to_num())
        else:
            same = one == two
        if not same:
            raise Failure(f"{name} is not the same on a second call with the same inputs.", inputs)


def _names(answer: Answer) -> tuple[str, ...]:
    returns = answer.task.returns
    return returns if isinstance(returns, tuple) else ("The result",)


# --- answers that return a dict ---------------------------------------------------------------


def fields(found: object, names: Iterable[str]) -> list:
    """The entries of a returned dict, in the order of the names.

    Raises:
        Unusable: it is no dict, or lacks one of them.
    """
    if not isinstance(found, dict):
        raise Unusable(f"returned {describe(found)}; a dict is expected.")
    missing = [name for name in names if name not in found]
    if missing:
        raise Unusable(f"returned a dict without {', '.join(map(repr, missing))}.")
    return [found[name] for name in names]


def as_number(value: object, name: str) -> Tensor:
    """A plain number, or a tensor or array of one, as a tensor in float64.

    Raises:
        Unusable: it is no number.
    """
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise Unusable(f"says that {name!r} is {describe(value)}; a number is expected.")
    return torch.tensor(float(value), dtype=torch.float64)


# --- answers that are modules -------------------------------------------------------------------


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
