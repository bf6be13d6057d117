"""Scaled dot-product attention: its inputs, its steps, checks and faults of its masks."""

import math

import torch

from attncourse.checks.answer import Failure, following
from attncourse.checks.inputs import causal, dead_mask, mixed_mask, normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is

# In float64, d = 9: its root has no rounding, however it was computed.
DOUBLE = {"dtype": torch.float64, "d": 9}


def attention_inputs(rng, *batch, q=4, k=5, d=7, v=6, mask=None, dtype=torch.float32):
    return {
        "query": normal(rng, *batch, q, d, dtype=dtype),
        "key": normal(rng, *batch, k, d, dtype=dtype),
        "value": normal(rng, *batch, k, v, dtype=dtype),
        "mask": mask,
    }


def large_attention(rng, q=3, k=4, d=4, mask=None, size=1e4):
    """Scores near ±`size` after scaling, all of them whole numbers."""
    query = torch.zeros(q, d)
    query[:, 0] = 2.0  # √d = 2, so that scores are key[:, 0]
    key = torch.zeros(k, d)
    key[:, 0] = size + torch.randperm(k, generator=rng, device="cpu").to(torch.float32)
    return {"query": query, "key": key, "value": normal(rng, k, 3), "mask": mask}


def hidden_winner(rng, high):
    """Scores of hidden keys lie `high` above all others."""
    inputs = large_attention(rng, mask=mixed_mask(rng, 1, 4), size=0.0)
    inputs["key"][:, 0] += high * ~inputs["mask"][0]
    return inputs


# --- checks


def a_masked_key_gets_no_weight_and_takes_none_from_the_others(answer, rng):
    matches_but_for_the_mask(answer, attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)))
    matches_but_for_the_mask(answer, attention_inputs(rng, 2, q=5, k=5, mask=causal(5)))
    matches_but_for_the_mask(answer, attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5), **DOUBLE))
    masked = large_attention(rng, mask=mixed_mask(rng, 3, 4), size=-30_000.0)
    matches_but_for_the_mask(answer, masked, tolerance=5e-3)
    for high in (300.0, 3e5):  # hidden keys with by far the best scores
        matches_but_for_the_mask(answer, hidden_winner(rng, high))
    inputs = attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5))
    _, weights = answer(inputs)
    if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
        raise Failure("A hidden key keeps a little weight.", inputs, got=weights)


def matches_but_for_the_mask(answer, inputs, **options):
    """`matches`; what is wrong without the mask, too, has checks of its own."""
    with following(lambda: answer.matches(inputs | {"mask": None}, **options)):
        answer.matches(inputs, **options)


def a_mask_may_broadcast(answer, rng):
    def matches(inputs):
        full = inputs["mask"].expand(*inputs["query"].shape[:-1], inputs["key"].shape[-2])
        with following(lambda: answer.matches(inputs | {"mask": full.contiguous()})):
            answer.matches(inputs)

    matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 4, 5)))
    matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 1, 1, 5)))
    matches(attention_inputs(rng, 3, mask=mixed_mask(rng, 3, 1, 5)))
    matches(attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 3, 4, 5)))
    queries = torch.ones(4, 1, dtype=torch.bool)  # (q 1)
    matches(attention_inputs(rng, 2, mask=queries))
    everything = torch.ones(4, 5, dtype=torch.bool)
    matches(attention_inputs(rng, 3, mask=everything))


def a_query_with_nothing_to_attend_to_gets_zeros_and_spoils_nothing_else(answer, rng):
    matches_but_for_dead_rows(answer, attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5)), True)
    matches_but_for_dead_rows(answer, attention_inputs(rng, 2, mask=dead_mask(rng, 4, 5)))
    empty_sentence = mixed_mask(rng, 3, 1, 5)
    empty_sentence[1] = False
    matches_but_for_dead_rows(answer, attention_inputs(rng, 3, mask=empty_sentence), True)
    queries = torch.tensor([[True], [False], [True], [True]])  # (q 1)
    matches_but_for_dead_rows(answer, attention_inputs(rng, 2, mask=queries))


def matches_but_for_dead_rows(answer, inputs, gradient=False):
    """`matches`; what is wrong with any mask, or with none, has checks of its own."""
    alive = inputs["mask"] | ~inputs["mask"].any(-1, keepdim=True)
    with following(lambda: answer.matches(inputs | {"mask": alive}, gradient=gradient)):
        answer.matches(inputs, gradient=gradient)


# --- steps


class Attention:
    def compare(query, key):
        return query @ key.mT

    def scale(scores, query, key, value):
        return scores / math.sqrt(query.shape[-1])

    def visible(mask, scores):
        return mask

    def hide(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def share(scores, mask):
        return scores.softmax(-1)

    def clear(weights, mask):
        return weights.masked_fill(~mask, 0.0)

    def after(weights, query):
        return weights

    def average(weights, query, key, value):
        return weights @ value

    def results(output, weights, scores):
        return output, weights

    def __call__(self, query, key, value, mask=None):
        scores = self.scale(self.compare(query, key), query, key, value)
        mask = self.visible(mask, scores)
        hidden = scores if mask is None else self.hide(scores, mask)
        weights = self.share(hidden, mask)
        if mask is not None:
            weights = self.clear(weights, mask)
        weights = self.after(weights, query)
        return self.results(self.average(weights, query, key, value), weights, scores)


# --- faults


def minus_infinity(scores, mask):
    return scores.masked_fill(~mask, -torch.inf)


def only_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def zeros_if_any_is_nan(weights, mask):
    return torch.zeros_like(weights) if weights.isnan().any() else weights


def zeros_if_a_row_is_dead(weights, mask):
    return weights.masked_fill(~mask, 0.0) * mask.any(-1).all()


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


class MaskedValues(Attention):
    def hide(scores, mask):
        return scores

    def clear(weights, mask):
        return weights

    def __call__(self, query, key, value, mask=None):
        output, weights = super().__call__(query, key, value, mask)
        return (output if mask is None else (weights * mask) @ value), weights


def of_dead_neighbors(task: Task, **about) -> None:
    """One row without keys, and no row gets anything: a fault of the steps `hide` and `clear`."""
    task.fault(
        "C-DEAD-NEIGHBOR",
        **about,
        hide=(minus_infinity, ...),
        clear=(zeros_if_any_is_nan, zeros_if_a_row_is_dead),
    )


def of_masks(task: Task, **about) -> None:
    """Faults of the steps `visible` (mask, scores -> mask), `hide` and `clear`, and of results.

    Args:
        about: of each fault, such as the section to read again.
    """
    task.fault("M-POLARITY", **about, visible=lambda mask, scores: None if mask is None else ~mask)
    task.fault("M-IGNORED", **about, visible=lambda mask, scores: None)
    task.fault("M-DEAD-ROW", **about, hide=minus_infinity, clear=as_is)
    of_dead_neighbors(task, **about)
    task.fault(
        "M-DEAD-ROW-UNIFORM",
        **about,
        hide=(..., lambda scores, mask: scores - 1e9 * ~mask),
        clear=as_is,
    )
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
        hide=(
            low(-1e4),
            lambda scores, mask: scores - 1e4 * ~mask,
            low(-1e4),
            lambda scores, mask: scores - 1e4 * ~mask,
        ),
        clear=(only_dead_rows, only_dead_rows, as_is, as_is),
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

    task.fault("M-VALUES", **about)(MaskedValues)
