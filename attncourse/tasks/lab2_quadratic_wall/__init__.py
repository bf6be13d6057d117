"""Lab 2: what its tasks share."""

import torch

from attncourse.checks.task import Chapter

chapter = Chapter("lab2_quadratic_wall", "lab 2")

LAB = "lab2_quadratic_wall"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]


def sizes(b, h, n, d, width):
    return {"b": b, "h": h, "n": n, "d": d, "bytes_per_number": width}
