"""What students misunderstand wherever keys meet a cache: the axis that grows, added masks, √d."""

import math

import torch

from attncourse.checks.task import Task


def along(dim):
    return lambda kept, new: torch.cat([kept, new], dim=dim)


def of_the_growing_axis(task: Task, **about) -> None:
    """Faults of the step `grow` (kept, new -> both)."""
    task.fault("K-CAT-HEADS", **about, grow=along(1))
    task.fault("K-CAT-AXIS-2", **about, grow=along(2))


def of_added_masks(task: Task, **about) -> None:
    """Faults of the step `hide` (scores, mask -> scores); what is hidden is cleared later."""
    task.fault("M-ADD-BOOL", **about, hide=lambda scores, mask: scores + mask)
    task.fault(
        "M-INF-TIMES-ZERO",
        **about,
        hide=lambda scores, mask: scores + (1 - mask.to(scores.dtype)) * -torch.inf,
        clear=(..., lambda weights, mask: weights),
    )


def of_filled_masks(task: Task, **about) -> None:
    """The other side is filled; the steps are those of added masks."""
    task.fault(
        "K-VISIBLE-FILLED",
        **about,
        hide=lambda scores, mask: scores.masked_fill(mask, torch.finfo(scores.dtype).min),
        clear=(..., lambda weights, mask: weights),
    )


def of_scales(task: Task) -> None:
    """Faults of the step `scale` (scores, query, value, … -> scores)."""
    task.fault(
        "C-SCALE-DV",
        scale=lambda scores, query, value, *_: scores / math.sqrt(value.shape[-1]),
    )
    task.fault(
        "C-SCALE-TIMES",
        scale=lambda scores, query, *_: scores * math.sqrt(query.shape[-1]),
    )
