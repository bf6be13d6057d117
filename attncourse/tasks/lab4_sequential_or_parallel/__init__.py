"""Lab 4: what its tasks share."""

import torch

from attncourse.checks.task import Chapter

chapter = Chapter("lab4_sequential_or_parallel", "lab 4")

LAB = "lab4_sequential_or_parallel"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]
