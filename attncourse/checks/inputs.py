"""Inputs for checks and probes: what every chapter draws them with."""

import torch
from torch import Tensor


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
