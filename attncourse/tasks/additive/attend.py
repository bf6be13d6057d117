import contextlib
import math

import torch

from attncourse import additive as reference
from attncourse.checks.answer import Failure, following, moves_nothing
from attncourse.checks.inputs import dead_mask, integers, mixed_mask, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.additive import (
    averages,
    averages_if_masked,
    ignores_padding,
    returns_a_pair,
    rows_sum_to_one,
    turned,
)
from attncourse.tasks.attention import minus_infinity, zeros_if_any_is_nan


def attend_inputs(rng, b=3, k=5, v=4, mask=None, dtype=torch.float32):
    return {
        "scores": normal(rng, b, k, dtype=dtype),
        "values": normal(rng, b, k, v, dtype=dtype),
        "mask": mask,
    }


def large_scores(rng, size=1e4, mask=None, b=3, k=4):
    """Whole scores near `size`, with another order in each row."""
    order = torch.rand(b, k, generator=rng, device="cpu").argsort(-1).to(torch.float32)
    return {"scores": size + order, "values": normal(rng, b, k, 2), "mask": mask}


def rows_far_apart(rng):
    inputs = large_scores(rng, size=0.0)
    inputs["scores"] += torch.tensor([[1e4], [0.0], [-1e4]])
    return inputs


def hidden_winner(rng, high):
    """Scores of hidden keys lie `high` above all others."""
    inputs = large_scores(rng, size=0.0, mask=mixed_mask(rng, 3, 4))
    inputs["scores"] += high * ~inputs["mask"]
    return inputs


def hidden_loser(rng, size=-20_000.0):
    """All scores lie so low that −10,000, or −100, would be a high one."""
    return large_scores(rng, size=size, mask=mixed_mask(rng, 3, 4))


def without_a_mask(rng):
    """The mask is left out, so that its default is what counts."""
    inputs = attend_inputs(rng, 2, 4, 3)
    del inputs["mask"]
    return inputs


def first_key_hidden(rng, b=3, k=5, **options):
    """Padding in front: a mask that no length can describe."""
    mask = torch.ones(b, k, dtype=torch.bool)
    mask[:, 0] = False
    return attend_inputs(rng, b, k, mask=mask, **options)


def first_row_full(rng, b, k):
    """The opposite mask would hide all of the first sentence."""
    mask = mixed_mask(rng, b, k)
    mask[0] = True
    return mask


def attend_traits(answer):
    inputs = attend_inputs(torch.Generator().manual_seed(0))
    outputs = [answer(inputs, seed=seed)[0] for seed in (1, 2)]
    double = attend_inputs(torch.Generator().manual_seed(0), dtype=torch.float64)
    rounded = double | {"scores": double["scores"].float().double()}
    weights = answer(double)[1]
    lost = (weights.sum(-1) - 1).abs().max().item()
    return {
        "differs from call to call": not torch.equal(*outputs),
        "rows miss one by a little": 1e-10 < lost < 1e-4,
        "reads seven digits of a score": torch.equal(weights, answer(rounded)[1]),
    }


def attend_probes(rng):
    return {
        "plain": attend_inputs(rng),
        "all equal": attend_inputs(rng, 4, 4, 4),
        "one sentence": attend_inputs(rng, 1, 4, 3),
        "one number a value": attend_inputs(rng, 2, 3, 1),
        "mask": attend_inputs(rng, 3, 6, 4, mask=mixed_mask(rng, 3, 6)),
        "mask, all equal": attend_inputs(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4)),
        "dead row": attend_inputs(rng, 3, 5, 2, mask=dead_mask(rng, 3, 5)),
        "one large score": large_scores(rng),
        "rows far apart": rows_far_apart(rng),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
        "hidden winner by more": hidden_winner(rng, 3000.0),
        "hidden loser": hidden_loser(rng),
        "hidden loser by little": hidden_loser(rng, -2000.0),
        "hidden loser by far": hidden_winner(rng, -3e5),
        "mask left out": without_a_mask(rng),
        "double": attend_inputs(rng, 2, 5, 3, mixed_mask(rng, 2, 5), dtype=torch.float64),
        "one row without padding": attend_inputs(rng, 3, 4, 2, mask=first_row_full(rng, 3, 4)),
    }


def attend_small(rng):
    def example(b, k, v, mask=None):
        values = integers(rng, b, k, v, low=0, high=9)
        return {"scores": integers(rng, b, k), "values": values, "mask": mask}

    sizes = ((1, 1, 1), (1, 2, 1), (1, 2, 2), (1, 3, 2), (2, 2, 1), (2, 2, 2), (2, 3, 2))
    for size in sizes:
        for _ in range(3):
            yield example(*size)
    for b, k, v in sizes[1:]:
        for _ in range(3):
            mask = torch.rand(b, k, generator=rng, device="cpu") > 0.5
            mask[:, 0] |= ~mask.any(-1)
            yield example(b, k, v, mask)
    yield example(1, 2, 1, torch.tensor([[False, False]]))
    yield example(2, 2, 1, torch.tensor([[True, False], [False, False]]))
    for size in (100.0, 1e4, -1e5):
        yield {
            "scores": torch.tensor([[size, size + 1]]),
            "values": torch.tensor([[[1.0], [2.0]]]),
            "mask": None if size > 0 else torch.tensor([[True, False]]),
        }


def attend_maps(rng):
    padded = torch.tensor([[True, True, False], [True, False, False]])
    return [
        ("two sentences of three keys", attend_inputs(rng, 2, 3, 2), ("values",)),
        (
            "two sentences of three keys, the last and the last two hidden",
            attend_inputs(rng, 2, 3, 2, mask=padded),
            ("values",),
        ),
    ]


task = Task(
    reference.attend,
    number=5,
    returns=("context", "weights"),
    difficulty=2,
    minutes=20,
    section="padding-in-softmax",
    probes=attend_probes,
    differentiated=("plain", "mask", "dead row"),
    small=attend_small,
    maps=attend_maps,
    traits=attend_traits,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_a_context_and_the_weights(answer, rng):
    returns_a_pair(answer, attend_inputs(rng, 3, 5, 4), 3, 5, 4)


@task.check(1)
def without_a_mask_every_row_of_weights_sums_to_one(answer, rng):
    rows_sum_to_one(answer, attend_inputs(rng), 3)


@task.check(1, "the context is the values averaged by your weights")
def the_context_averages_the_values_by_the_weights(answer, rng):
    inputs = attend_inputs(rng)
    averages(answer, inputs, inputs["values"])
    masked = inputs | {"mask": mixed_mask(rng, 3, 5)}
    averages_if_masked(answer, masked, masked["values"])


@task.check(1)
def weights_and_context_match_the_formula(answer, rng):
    answer.matches(attend_inputs(rng))
    answer.matches(attend_inputs(rng, 2, 7, 3))
    answer.matches(attend_inputs(rng, 2, dtype=torch.float64))
    answer.matches(turned(attend_inputs(rng) | {"mask": mixed_mask(rng, 3, 5)}))
    answer.matches(without_a_mask(rng))


def steady(answer):
    """What fails inside is left open where two calls with the same inputs differ."""

    def usual():
        unsteady = False
        with contextlib.suppress(Failure):
            unsteady = attend_traits(answer)["differs from call to call"]
        if unsteady:
            raise Failure("Two calls with the same inputs differ.")

    return following(usual)


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    with steady(answer):
        answer.matches(attend_inputs(rng, 4, 4, 4))
        answer.matches(attend_inputs(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4)))
        answer.matches(attend_inputs(rng, 1, 4, 3))
        answer.matches(attend_inputs(rng, 3, 1, 2))
        answer.matches(attend_inputs(rng, 2, 3, 1))
        answer.matches(attend_inputs(rng, 1, 1, 1, mask=torch.tensor([[True]])))


@task.check(1)
def large_scores_stay_finite(answer, rng):
    with steady(answer):
        answer.matches(large_scores(rng), tolerance=5e-3)
        answer.matches(large_scores(rng, size=-1e4), tolerance=5e-3)
        answer.matches(rows_far_apart(rng), tolerance=5e-3)


@task.check(2)
def beside_a_visible_key_a_hidden_one_has_no_say(answer, rng):
    with steady(answer):
        answer.matches(attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))
        answer.matches(first_key_hidden(rng))
        answer.matches(attend_inputs(rng, mask=torch.ones(3, 5, dtype=torch.bool)))
        for high in (300.0, 3e5):
            answer.matches(hidden_winner(rng, high))
        inputs = attend_inputs(rng, mask=mixed_mask(rng, 3, 5))
        _, weights = answer(inputs)
        if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
            raise Failure("A hidden key keeps a little weight.", inputs, got=weights)
    with following(lambda: answer.matches(large_scores(rng, size=-20_000.0), tolerance=5e-3)):
        answer.matches(hidden_loser(rng), tolerance=5e-3)
    with following(lambda: answer.matches(attend_inputs(rng, dtype=torch.float64))):
        answer.matches(first_key_hidden(rng, dtype=torch.float64))


@task.check(1)
def padding_changes_nothing(answer, rng):
    inputs, more = attend_inputs(rng), attend_inputs(rng, k=4)
    longer = {n: torch.cat([inputs[n], more[n]], 1) for n in ("scores", "values")}
    longer["mask"] = (torch.arange(9) < 5).expand(3, 9)
    low = {"scores": inputs["scores"] - 20_000}
    longer_low = {"scores": torch.cat([low["scores"], more["scores"]], 1)}
    with steady(answer):
        ignores_padding(answer, inputs, longer, 5)
        for lengths in ((5, 3, 4), (2, 5, 1)):  # the same words, and other pads behind them
            real = torch.arange(5) < torch.tensor(lengths)[:, None]
            one, other = attend_inputs(rng, mask=real), attend_inputs(rng, mask=real)
            other["scores"] = torch.where(real, one["scores"], other["scores"])
            other["values"] = torch.where(real[:, :, None], one["values"], other["values"])
            ignores_padding(answer, one, other, 5)
        ignores_padding(answer, inputs | low, longer | longer_low, 5, finite=False)


@task.check(1, "a row with nothing to attend to gives zeros, and harms nothing else")
def a_row_with_nothing_to_attend_to_gives_zeros_and_harms_nothing_else(answer, rng):
    dead = [
        attend_inputs(rng, mask=dead_mask(rng, 3, 5)),
        attend_inputs(rng, 4, 4, 4, mask=dead_mask(rng, 4, 4)),
        attend_inputs(rng, 1, 4, mask=torch.zeros(1, 4, dtype=torch.bool)),
    ]
    with steady(answer):
        for inputs in dead:
            answer.matches(inputs)
    with following(lambda: answer.gradients_match(attend_inputs(rng))):
        for inputs in dead[:2]:
            answer.gradients_match(inputs)


@task.check(1)
def gradients_reach_scores_and_values(answer, rng):
    answer.gradients_match(attend_inputs(rng))
    answer.gradients_match(attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, attend_inputs(rng))
    moves_nothing(answer, attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))
    moves_nothing(answer, attend_inputs(rng, mask=dead_mask(rng, 3, 5)))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Attend:
    def visible(mask, scores):
        return mask

    def hide(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def share(scores, mask):
        return scores.softmax(-1)

    def clear(weights, mask):
        return weights.masked_fill(~mask, 0.0)

    def after(weights, scores):
        return weights

    def average(weights, values, mask):
        return torch.einsum("bk,bkv->bv", weights, values)

    def results(context, weights, scores, mask):
        return context, weights

    def attend(self, scores, values, mask=None):
        mask = self.visible(mask, scores)
        hidden = scores if mask is None else self.hide(scores, mask)
        weights = self.share(hidden, mask)
        if mask is not None:
            weights = self.clear(weights, mask)
        weights = self.after(weights, scores)
        return self.results(self.average(weights, values, mask), weights, scores, mask)

    def __call__(self, scores, values, mask=None):
        return self.attend(scores, values, mask)


def only_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


task.spelling(clear=only_dead_rows)
task.spelling(
    hide=lambda scores, mask: scores.masked_fill(mask.any(-1, keepdim=True) & ~mask, -torch.inf)
)

# --- faults: masks ------------------------------------------------------------------------------


def unless_none(change):
    """A step that changes a mask, if there is one."""
    return lambda mask, scores: None if mask is None else change(mask)


def low(number):
    return lambda scores, mask: scores.masked_fill(~mask, number)


def lowered(number):
    return lambda scores, mask: scores - number * ~mask


def divided(safe_sum):
    """The weights are masked after the softmax and divided by their new sum."""
    return lambda weights, mask: weights * mask / safe_sum((weights * mask).sum(-1, keepdim=True))


def as_length(mask):
    return torch.arange(mask.shape[1]) < mask.sum(-1, keepdim=True)


task.fault("A-NO-MASK", visible=lambda mask, scores: None)
task.fault("M-POLARITY", visible=unless_none(torch.logical_not))
task.fault("M-AFTER-SOFTMAX", hide=as_is, clear=(lambda weights, mask: weights * mask, ...))
task.fault(
    "M-AFTER-RENORMALIZED",
    hide=as_is,
    clear=(
        divided(lambda total: total + 1e-9),
        divided(lambda total: total.clamp(min=1e-9)),
        divided(as_is),
        divided(lambda total: total.masked_fill(total == 0, 1)),
    ),
)
task.fault("M-DEAD-ROW", hide=minus_infinity, clear=as_is)
task.fault("M-DEAD-ROW-UNIFORM", clear=as_is)
task.fault(
    "M-DEAD-ROW-GRADIENT",
    hide=lambda scores, mask: scores + torch.zeros_like(scores).masked_fill(~mask, -torch.inf),
    clear=lambda weights, mask: weights.nan_to_num(0.0),
)
task.fault(
    "C-DEAD-NEIGHBOR",
    after=(lambda weights, scores: weights * (weights > 0).any(-1).all(), ...),
    hide=(..., minus_infinity),
    clear=(..., zeros_if_any_is_nan),
)
task.fault("M-ADD-BOOL", hide=lambda scores, mask: scores + mask, clear=(as_is, ...))
task.fault(
    "M-INF-TIMES-ZERO",
    hide=lambda scores, mask: scores + (1 - mask.to(scores.dtype)) * -torch.inf,
    clear=(as_is, ...),
)
task.fault("M-PLUS-INFINITY", hide=low(torch.inf), clear=(as_is, only_dead_rows, ...))
task.fault(
    "M-FILL-ZERO",
    hide=(low(0.0), lambda scores, mask: scores * mask),
    clear=(as_is, as_is, only_dead_rows, ...),
)
task.fault(
    "M-SMALL-FILL",
    hide=(low(-1e4), lowered(1e4), low(-1e4), lowered(1e4)),
    clear=(only_dead_rows, only_dead_rows, as_is),
)
task.fault(
    "M-TINY-FILL",
    hide=2 * (low(-100.0), low(-1e3), lowered(100.0), lowered(1e3)),
    clear=(only_dead_rows, ..., only_dead_rows, only_dead_rows, as_is),
)
task.fault(
    "M-VALUES",
    hide=as_is,
    clear=as_is,
    average=lambda weights, values, mask: torch.einsum(
        "bk,bkv->bv", weights, values if mask is None else values * mask[:, :, None]
    ),
)
task.fault(
    "M-MAPS-UNMASKED", results=lambda context, weights, scores, mask: (context, scores.softmax(-1))
)
task.fault(
    "M-WEIGHTS-ONLY",
    hide=as_is,
    clear=as_is,
    results=lambda context, weights, scores, mask: (
        context,
        weights if mask is None else weights * mask,
    ),
)
task.fault("C-MASK-AS-LENGTH", visible=unless_none(as_length))
task.fault("C-FIRST-MASK", visible=unless_none(lambda mask: mask[:1].expand_as(mask)))
task.fault("M-IF-MASK", visible=lambda mask, scores: mask if mask else None)


@task.fault("M-NO-DEFAULT")
class NoDefault(Attend):
    def __call__(self, scores, values, mask):
        return self.attend(scores, values, mask)


def overwritten(scores, mask):
    scores[~mask] = -torch.inf
    return torch.where(mask.any(-1, keepdim=True), scores, 0.0)


task.fault(
    "M-INPLACE",
    hide=(
        overwritten,
        lambda scores, mask: scores.masked_fill_(~mask, torch.finfo(scores.dtype).min),
    ),
)

# --- faults: shares -----------------------------------------------------------------------------


def naive(scores, mask, safe_sum=as_is):
    return scores.exp() / safe_sum(scores.exp().sum(-1, keepdim=True))


def unless_dead(total, mask):
    return total if mask is None else total.masked_fill(~mask.any(-1, keepdim=True), 1)


def naive_if_alive(scores, mask):
    return naive(scores, mask, lambda total: unless_dead(total, mask))


def naive_times_mask(safe_sum):
    def step(scores, mask):
        e = scores.exp() if mask is None else scores.exp() * mask
        return e / safe_sum(e.sum(-1, keepdim=True))

    return step


def one_shift_for_all(scores, mask):
    e = (scores - scores.max()).exp()
    return e / unless_dead(e.sum(-1, keepdim=True), mask)


def one_shift_and_no_division_by_zero(scores, mask):
    e = (scores - scores.max()).exp()
    e = e if mask is None else e.masked_fill(~mask, 0)
    return e / e.sum(-1, keepdim=True).clamp(min=1e-30)


def one_shift_times_mask(scores, mask):
    """What the lines above do where a sum of zero is divided by, too."""
    e = (scores - scores.max()).exp()
    e = e if mask is None else e.masked_fill(~mask, 0)
    return e / e.sum(-1, keepdim=True)


def with_epsilon(number):
    def step(scores, mask):
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return e / (e.sum(-1, keepdim=True) + number)

    return step


def hard(scores, mask):
    soft = scores.softmax(-1) if mask is None else scores.softmax(-1) * mask
    best = (soft == soft.amax(-1, keepdim=True)) & (soft > 0)
    return best.to(scores.dtype) / best.sum(-1, keepdim=True).clamp(min=1) + 0 * soft


SEARCH, BREAKS = {"section": "soft-search"}, {"section": "additive-breaks"}

task.fault(
    "A-SOFTMAX-QUERIES",
    **BREAKS,
    share=lambda scores, mask: scores.softmax(0),
    hide=(..., low(-1e9), ...),
    clear=(..., *[lambda weights, mask: weights.masked_fill(~mask, 0.0)] * 2),
)
task.fault(
    "D-SOFTMAX-ALL",
    **SEARCH,
    share=lambda scores, mask: scores.flatten().softmax(-1).view(scores.shape),
)
task.fault(
    "D-NAIVE-SOFTMAX",
    **SEARCH,
    share=(
        naive_if_alive,
        naive,
        lambda scores, mask: naive(scores, mask, lambda total: total + 1e-9),
        naive_times_mask(lambda total: total.clamp(min=1e-12)),
        naive_times_mask(as_is),
    ),
    hide=(..., ..., ..., as_is),
    clear=(..., as_is),
)
task.fault(
    "D-GLOBAL-MAX",
    **SEARCH,
    share=(one_shift_for_all, one_shift_and_no_division_by_zero, one_shift_times_mask),
    hide=(..., as_is, ...),
)
task.fault("D-HARD-ATTENTION", **SEARCH, share=hard)
task.fault("D-NO-SOFTMAX", **SEARCH, share=lambda scores, mask: scores.clone(), hide=as_is)
task.fault(
    "D-SOFTMAX-LINEAR",
    **SEARCH,
    share=lambda scores, mask: scores / scores.sum(-1, keepdim=True),
    hide=(low(0.0), as_is),
    clear=(lambda weights, mask: weights.nan_to_num(), ...),
)
task.fault("C-SIGMOID-WEIGHTS", **SEARCH, share=lambda scores, mask: scores.sigmoid())
task.fault("C-LOG-WEIGHTS", **SEARCH, share=lambda scores, mask: scores.log_softmax(-1))
task.fault("C-TWO-SOFTMAXES", **SEARCH, share=lambda scores, mask: scores.softmax(-1).softmax(-1))
task.fault("C-EPSILON", **SEARCH, share=(with_epsilon(1e-6), with_epsilon(1e-8)))

# --- faults: the average ------------------------------------------------------------------------


def weighted(weights, values, mask):
    return weights[:, :, None] * values


def mean_of_visible(weights, values, mask):
    if mask is None:
        return values.mean(1)
    return (values * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def mean_of_all(weights, values, mask):
    return values.mean(1)


task.fault("C-MEAN-CONTEXT", **SEARCH, average=lambda *all: weighted(*all).mean(1))
task.fault("C-PLAIN-MEAN", **SEARCH, average=(mean_of_visible, mean_of_all))
task.fault("C-NOT-SUMMED", **SEARCH, average=weighted)
task.fault("C-SUMMED-OVER-SENTENCES", **SEARCH, average=lambda *all: weighted(*all).sum(0))
task.fault("A-BROADCAST", **BREAKS, average=lambda weights, values, mask: (weights * values).sum(1))
task.fault(
    "C-ALL-PAIRS",
    **BREAKS,
    average=(
        lambda weights, values, mask: weights @ values,
        lambda weights, values, mask: (weights @ values).squeeze(),
        lambda weights, values, mask: weights @ values,
    ),
    hide=(..., ..., minus_infinity),
    clear=(..., ..., as_is),
)
task.fault("C-KEEPDIM", **SEARCH, average=lambda weights, values, mask: weights[:, None] @ values)
task.fault(
    "C-WEIGHTS-KEEPDIM",
    **SEARCH,
    results=(
        lambda context, weights, scores, mask: (context, weights[:, None]),
        lambda context, weights, scores, mask: (context, weights[:, :, None]),
    ),
)
task.fault(
    "C-SQUEEZE",
    **SEARCH,
    average=lambda weights, values, mask: (weights[:, None] @ values).squeeze(),
)

# --- faults: what is returned -------------------------------------------------------------------

task.fault(
    "D-SCORES-AS-WEIGHTS",
    **SEARCH,
    results=lambda context, weights, scores, mask: (context, scores.clone()),
)
task.fault(
    "D-SWAPPED-RESULTS", **SEARCH, results=lambda context, weights, scores, mask: (weights, context)
)
task.fault(
    "D-OUTPUT-ONLY", section="alignments", results=lambda context, weights, scores, mask: context
)
task.fault("D-DETACHED-WEIGHTS", **SEARCH, after=lambda weights, scores: weights.detach())
task.fault(
    "C-DETACHED-VALUES",
    **SEARCH,
    average=lambda weights, values, mask: torch.einsum("bk,bkv->bv", weights, values.detach()),
)
task.fault(
    "C-DROPOUT",
    section="alignments",
    after=lambda weights, scores: torch.dropout(weights, 0.1, train=True),
)


@task.fault("C-ATTEND-SCALED", **SEARCH)
class ScaledScores(Attend):
    def __call__(self, scores, values, mask=None):
        return self.attend(scores / math.sqrt(values.shape[-1]), values, mask)


@task.fault("C-FLOAT32", **SEARCH)
class InFloat32(Attend):
    def __call__(self, scores, values, mask=None):
        return self.attend(scores.float(), values.float(), mask)


@task.fault("C-FLOAT32-INSIDE", **SEARCH)
class InFloat32Inside(Attend):
    def __call__(self, scores, values, mask=None):
        results = self.attend(scores.float(), values.float(), mask)
        return tuple(result.to(scores.dtype) for result in results)
