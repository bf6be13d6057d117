"""Chapter 6: what its tasks share."""

import torch

from attncourse.checks.answer import Failure, agree_plain, shape_of
from attncourse.checks.task import Chapter

chapter = Chapter("06_masking", "chapter 6")


def still_answers(answer, before, inputs):
    """Assert that a call is not spoiled by an earlier one, of the same kind and size.

    An answer that is wrong about the earlier one, too, is none that remembers. Sizes that no other
    check uses find out what is kept by size.
    """
    if not remembers(answer, before, before) and remembers(answer, before, inputs):
        raise Failure(
            "After a call with other inputs, your answer gives a wrong result: it keeps something "
            "from one call to the next.",
            inputs,
        )


def remembers(answer, before, inputs) -> bool:
    """Whether a call is spoiled by an earlier one; checked where it is right otherwise."""
    try:
        answer(before)
        got, expected = answer(inputs), answer.expected(inputs)
    except Failure:
        return False
    if isinstance(expected, torch.Tensor):
        return got.shape != expected.shape or not torch.allclose(got.double(), expected.double())
    return not agree_plain(got, expected)


def a_mask(answer, inputs, shape, axes):
    """The answer's mask, if shape and dtype are right."""
    mask = answer(inputs)
    if mask.shape != shape:
        raise Failure(
            f"The mask has shape {shape_of(mask)}; expected {axes} = "
            f"({' '.join(map(str, shape))}).",
            inputs,
        )
    if mask.dtype != torch.bool:
        raise Failure(f"The mask is {mask.dtype}; a boolean one is expected.", inputs, got=mask)
    return mask
