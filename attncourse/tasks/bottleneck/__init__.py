"""Chapter 1: what its tasks share."""

import torch

from attncourse.checks.task import Chapter

chapter = Chapter("01_bottleneck", "chapter 1")


def ids(rng, *shape, words=9, low=0):
    return torch.randint(low, words, shape, generator=rng, device="cpu")


def differ_from_call_to_call(answer, inputs):
    one, two = answer(inputs), answer(inputs)
    same = torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
    return {"differs from call to call": not same}


DOUBLE = {"dtype": torch.float64}


def targets(rng, b, n, bos=1, words=9):
    """Full rows of words from 3 on."""
    return {"target": ids(rng, b, n, words=words, low=3), "bos": bos}
