"""Chapter 7: what its tasks share."""

import functools

import torch

from attncourse.checks.answer import following
from attncourse.checks.modules import made
from attncourse.checks.task import Chapter

chapter = Chapter("07_cross_attention", "chapter 7")

like = functools.cache(made)  # modules of which only names and shapes are looked at


def appended(inputs, more):
    """The same source with `more` words behind it that nobody may attend to."""
    b, k = inputs["memory"].shape[:2]
    longer = dict(inputs, memory=torch.cat([inputs["memory"], more], 1))
    longer["memory_mask"] = (torch.arange(k + more.shape[1]) < k).expand(b, 1, -1)
    return longer


def turned(inputs):
    """The same numbers, not contiguous."""
    names = ("target", "memory")
    return dict(inputs, **{name: inputs[name].mT.contiguous().mT for name in names})


def dead_rows_are_right(answer, dead, usual, right_with_live_masks):
    """Assert it of values and gradients, where those of the usual inputs are right."""
    with following(right_with_live_masks):
        for inputs in dead:
            answer.matches(inputs)
    with following(lambda: answer.gradients_match(usual)):
        for inputs in dead:
            answer.gradients_match(inputs)
