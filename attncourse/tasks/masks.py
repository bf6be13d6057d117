"""Faults of masks, in attention that is written in the steps visible, hide, share and clear."""

import torch

from attncourse.checks.task import Task
from attncourse.tasks import as_is


def minus_infinity(scores, mask):
    return scores.masked_fill(~mask, -torch.inf)


def only_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def transposed(mask, scores):
    return mask if mask is None else mask.mT


def transposed_if_square(mask, scores):
    square = mask is not None and mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]
    return mask.mT if square else mask


def triangle(mask, scores):
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return causal if mask is None else causal & mask


def renormalized(weights, mask):
    weights = weights * mask
    return weights / (weights.sum(-1, keepdim=True) + 1e-9)


def low(number):
    return lambda scores, mask: scores.masked_fill(~mask, number)


def of_masks(task: Task, **about) -> None:
    """Faults of the steps `visible` (mask, scores -> mask), `hide` and `clear`, and of results.

    Args:
        about: of each fault, such as the section to read again.
    """
    task.fault("M-POLARITY", **about, visible=lambda mask, scores: None if mask is None else ~mask)
    task.fault("M-IGNORED", **about, visible=lambda mask, scores: None)
    task.fault("M-DEAD-ROW", **about, hide=minus_infinity, clear=as_is)
    task.fault("M-DEAD-ROW-UNIFORM", **about, clear=as_is)
    task.fault(
        "M-DEAD-ROW-GRADIENT",
        **about,
        hide=lambda scores, mask: scores + torch.zeros_like(scores).masked_fill(~mask, -torch.inf),
        clear=lambda weights, mask: weights.nan_to_num(0.0),
    )
    task.fault("M-AFTER-SOFTMAX", **about, hide=as_is, clear=lambda weights, mask: weights * mask)
    task.fault("M-AFTER-RENORMALIZED", **about, hide=as_is, clear=renormalized)
    task.fault("M-ADD-BOOL", **about, hide=lambda scores, mask: scores + mask, clear=(as_is, ...))
    task.fault(
        "M-INF-TIMES-ZERO",
        **about,
        hide=lambda scores, mask: scores + (1 - mask.to(scores.dtype)) * -torch.inf,
        clear=(as_is, ...),
    )
    task.fault("M-FILL-ZERO", **about, hide=low(0.0), clear=(as_is, only_dead_rows, ...))
    task.fault("M-IF-MASK", **about, visible=lambda mask, scores: mask if mask else None)
    task.fault(
        "M-SMALL-FILL",
        **about,
        hide=(low(-1e4), lambda scores, mask: scores - 1e4 * ~mask, low(-1e4)),
        clear=(only_dead_rows, only_dead_rows, as_is),
    )
    task.fault("M-TRANSPOSED", **about, visible=(transposed_if_square, transposed))
    task.fault(
        "M-MAPS-UNMASKED",
        **about,
        results=lambda output, weights, scores: (output, scores.softmax(-1)),
    )
    task.fault("M-ALWAYS-CAUSAL", **about, visible=triangle)
    task.fault(
        "M-ONE-ROW",
        **about,
        visible=lambda mask, scores: None if mask is None else mask[..., :1, :],
    )

    @task.fault("M-VALUES", **about)
    class MaskedValues(task.composed):
        def hide(scores, mask):
            return scores

        def clear(weights, mask):
            return weights

        def __call__(self, query, key, value, mask=None):
            output, weights = super().__call__(query, key, value, mask)
            return (output if mask is None else (weights * mask) @ value), weights
