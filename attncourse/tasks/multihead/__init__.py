"""Chapter 5: what its tasks share."""

import torch

from attncourse.checks.task import Chapter

chapter = Chapter("05_multihead", "chapter 5")


def numbered(*shape):
    """1, 2, 3, …: a tensor in which every number tells where it came from."""
    count = torch.Size(shape).numel()
    return torch.arange(1.0, count + 1, device="cpu").reshape(shape)


def split_small(rng):
    for b, n, h, d in (
        (1, 1, 1, 1),
        (1, 1, 1, 2),
        (1, 1, 2, 1),
        (1, 1, 2, 2),
        (1, 2, 1, 1),
        (1, 2, 2, 1),
        (1, 2, 2, 2),
        (2, 1, 2, 1),
        (2, 2, 2, 1),
        (1, 2, 3, 2),
        (2, 1, 3, 2),
        (2, 2, 3, 1),
        (2, 3, 2, 1),
        (2, 2, 3, 2),
    ):
        yield {"x": numbered(b, n, h * d), "num_heads": h}
