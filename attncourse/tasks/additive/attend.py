"""attend."""

import torch

from attncourse import additive as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import dead_mask, integers, mixed_mask, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks.additive import (
    ignores_padding,
    returns_a_pair,
    rows_sum_to_one,
    turned,
)
from attncourse.tasks.additive._faults import average, finished, masked_softmax, naive_weights


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


def hidden_loser(rng):
    """All visible scores lie below −20,000, where −10,000 would be a high score."""
    return large_scores(rng, size=-20_000.0, mask=mixed_mask(rng, 3, 4))


def first_key_hidden(rng, b=3, k=5, **options):
    """Padding in front: a mask that no length can describe."""
    mask = torch.ones(b, k, dtype=torch.bool)
    mask[:, 0] = False
    return attend_inputs(rng, b, k, mask=mask, **options)


def attend_traits(answer):
    inputs = attend_inputs(torch.Generator().manual_seed(0))
    outputs = [answer(inputs, seed=seed)[0] for seed in (1, 2)]
    double = attend_inputs(torch.Generator().manual_seed(0), dtype=torch.float64)
    lost = (answer(double)[1].sum(-1) - 1).abs().max().item()
    return {
        "differs from call to call": not torch.equal(*outputs),
        "rows miss one by a little": 1e-10 < lost < 1e-4,
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
        "hidden loser": hidden_loser(rng),
        "double": attend_inputs(rng, 2, 5, 3, mixed_mask(rng, 2, 5), dtype=torch.float64),
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
    hints=(
        "Follow steps 3 and 4 of the chapter: shares first, then the average. The mask says "
        "who may take part in the sharing. When must it be known: before or after?",
        "Before the softmax a hidden score has to go so far down that its exponential is 0. "
        "And look at a row in which everything is hidden: which weights should it end with?",
        "Where the mask is False, fill in the lowest number the dtype has; softmax over the "
        "last axis; where the mask is False, set the weights to 0. The context is the sum "
        "over k of weight times value; weights come second.",
    ),
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
def every_row_of_weights_sums_to_one(answer, rng):
    rows_sum_to_one(answer, attend_inputs(rng), 3)


@task.check(1)
def the_context_averages_the_values_by_the_weights(answer, rng):
    inputs = attend_inputs(rng)
    context, weights = answer(inputs)
    if weights.shape != (3, 5):
        raise Failure(f"weights have shape {shape_of(weights)}; expected (3 5).", inputs)
    average = (weights[:, :, None] * inputs["values"]).sum(1)
    compare("context", context, average, inputs)


@task.check(1)
def weights_and_context_match_the_formula(answer, rng):
    answer.matches(attend_inputs(rng))
    answer.matches(attend_inputs(rng, 2, 7, 3))
    answer.matches(attend_inputs(rng, 2, dtype=torch.float64))
    answer.matches(turned(attend_inputs(rng) | {"mask": mixed_mask(rng, 3, 5)}))


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    answer.matches(attend_inputs(rng, 4, 4, 4))
    answer.matches(attend_inputs(rng, 4, 4, 4, mask=mixed_mask(rng, 4, 4)))
    answer.matches(attend_inputs(rng, 1, 4, 3))
    answer.matches(attend_inputs(rng, 3, 1, 2))
    answer.matches(attend_inputs(rng, 2, 3, 1))
    answer.matches(attend_inputs(rng, 1, 1, 1, mask=torch.tensor([[True]])))


@task.check(1)
def large_scores_stay_finite(answer, rng):
    answer.matches(large_scores(rng), tolerance=5e-3)
    answer.matches(large_scores(rng, size=-1e4), tolerance=5e-3)
    answer.matches(rows_far_apart(rng), tolerance=5e-3)


@task.check(2)
def a_hidden_key_gets_no_weight(answer, rng):
    answer.matches(attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))
    answer.matches(first_key_hidden(rng))
    answer.matches(first_key_hidden(rng, dtype=torch.float64))
    answer.matches(attend_inputs(rng, mask=torch.ones(3, 5, dtype=torch.bool)))
    for high in (300.0, 3e5):
        answer.matches(hidden_winner(rng, high))
    answer.matches(hidden_loser(rng), tolerance=5e-3)
    inputs = attend_inputs(rng, mask=mixed_mask(rng, 3, 5))
    _, weights = answer(inputs)
    if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
        raise Failure("A hidden key keeps a little weight.", inputs, got=weights)


@task.check(1)
def padding_changes_nothing(answer, rng):
    inputs, more = attend_inputs(rng), attend_inputs(rng, k=4)
    longer = {n: torch.cat([inputs[n], more[n]], 1) for n in ("scores", "values")}
    longer["mask"] = (torch.arange(9) < 5).expand(3, 9)
    ignores_padding(answer, inputs, longer, 5)


@task.check(1)
def a_row_with_nothing_to_attend_to_gets_zeros(answer, rng):
    answer.matches(attend_inputs(rng, mask=dead_mask(rng, 3, 5)), gradient=True)
    answer.matches(attend_inputs(rng, 1, 4, mask=torch.zeros(1, 4, dtype=torch.bool)))
    answer.matches(attend_inputs(rng, 4, 4, 4, mask=dead_mask(rng, 4, 4)), gradient=True)


@task.check(1)
def gradients_reach_scores_and_values(answer, rng):
    answer.gradients_match(attend_inputs(rng))
    answer.gradients_match(attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, attend_inputs(rng))
    moves_nothing(answer, attend_inputs(rng, mask=mixed_mask(rng, 3, 5)))
    moves_nothing(answer, attend_inputs(rng, mask=dead_mask(rng, 3, 5)))


# --- faults ---------------------------------------------------------------------------------------


def softmax_over_sentences_unmasked_later(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = torch.softmax(scores, 0)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return average(weights, values), weights


@task.fault(
    "A-SOFTMAX-QUERIES",
    thinks="The softmax runs over axis 0.",
    why="Axis 0 are the sentences of the batch: they now compete with each other for every place. "
    "A sentence shares out its weight among its own keys.",
    section="additive-breaks",
    forms=(softmax_over_sentences_unmasked_later,),
)
def softmax_over_sentences(scores, values, mask=None):
    weights = masked_softmax(scores, mask, dim=0)
    return average(weights, values), weights


@task.fault(
    "D-SOFTMAX-ALL",
    thinks="All weights of the batch together sum to one.",
    why="Each sentence is a competition of its own: every row sums to one. With a batch of one "
    "sentence the two are the same, which hides it.",
    section="soft-search",
)
def softmax_over_the_batch(scores, values, mask=None):
    flat = masked_softmax(scores.flatten(), None if mask is None else mask.flatten())
    weights = flat.reshape(scores.shape)
    return average(weights, values), weights


@task.fault(
    "A-NO-MASK",
    thinks="Padding is harmless, so the mask can be left out.",
    why="A padded place has a score like any other, and the softmax gives it a share. The longer "
    "the longest sentence of the batch, the less is left for the real words.",
)
def no_mask(scores, values, mask=None):
    return finished(scores, values, None)


@task.fault(
    "M-POLARITY",
    thinks="True in the mask means: this is padding.",
    why="In some libraries it does. Here True means that the key may be attended to. Your weights "
    "go exactly where there is nothing to read.",
)
def opposite_mask(scores, values, mask=None):
    return finished(scores, values, None if mask is None else ~mask)


@task.fault(
    "M-AFTER-SOFTMAX",
    thinks="Multiplying the weights by the mask after the softmax hides the padding.",
    why="The padding has already taken its share, so the rest sums to less than one. It must be "
    "out before the sharing.",
)
def mask_after_softmax(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
    return average(weights, values), weights


def renormalized_with_clamp(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    return average(weights, values), weights


def renormalized_plainly(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True)
    return average(weights, values), weights


@task.fault(
    "M-AFTER-RENORMALIZED",
    thinks="After the softmax I can mask the weights and divide by their new sum.",
    why="On paper that is the same. But a hidden key with a high score presses all visible weights "
    "to zero first, and 0/0 cannot bring them back.",
    forms=(renormalized_with_clamp, renormalized_plainly),
)
def renormalized_after_softmax(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-9)
    return average(weights, values), weights


@task.fault(
    "M-DEAD-ROW",
    thinks="Filling hidden scores with −∞ settles every case.",
    why="If all keys of a row are hidden, the row is −∞ only, and its softmax is 0/0: NaN, which "
    "spreads through the model. Such a row must give zeros.",
)
def nan_on_dead_rows(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1)
    return average(weights, values), weights


@task.fault(
    "M-DEAD-ROW-UNIFORM",
    thinks="A very low fill hides a key in every case.",
    why="Not if all keys of a row are hidden: then all are equally low, and the softmax shares the "
    "weight evenly among what is forbidden. Such a row must give zeros.",
)
def uniform_on_dead_rows(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    return average(weights, values), weights


@task.fault(
    "M-DEAD-ROW-GRADIENT",
    thinks="Replacing NaN by 0 at the end repairs a row with nothing to attend to.",
    why="It repairs the values. The NaN inside is still there, and on the way back it turns the "
    "gradients into NaN. Keep it from arising.",
)
def nan_gradients_on_dead_rows(scores, values, mask=None):
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        scores = scores + bias
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return average(weights, values), weights


@task.fault(
    "C-DEAD-NEIGHBOR",
    thinks="If a sentence has nothing to attend to, there is nothing to compute.",
    why="Not for that sentence. But its neighbors in the batch have words, and you return zeros "
    "for them too. Rows do not know of each other.",
)
def one_dead_row_empties_the_batch(scores, values, mask=None):
    context, weights = finished(scores, values, mask)
    if mask is not None and not mask.any(-1).all():
        return context * 0, weights * 0
    return context, weights


@task.fault(
    "M-ADD-BOOL",
    thinks="Adding the mask to the scores hides the padding.",
    why="True counts as 1 and False as 0, so real words get 1 more and nothing is hidden. A mask "
    "that is added would have to hold 0 and −∞.",
)
def adds_boolean_mask(scores, values, mask=None):
    return finished(scores if mask is None else scores + mask, values, None)


@task.fault(
    "M-INF-TIMES-ZERO",
    thinks="(1 − mask) · −∞ is 0 where the mask is 1.",
    why="0 · ∞ is NaN in floating point, so the scores of all real words are destroyed. Choose "
    "between two numbers instead of multiplying.",
)
def infinity_times_zero(scores, values, mask=None):
    if mask is not None:
        scores = scores + (1 - mask.to(scores.dtype)) * -torch.inf
    return finished(scores, values, None)


def scores_times_mask(scores, values, mask=None):
    return finished(scores if mask is None else scores * mask, values, None)


@task.fault(
    "M-FILL-ZERO",
    thinks="A hidden key gets score 0.",
    why="Score 0 is an ordinary score: exp(0) = 1, more than any negative score gets. To vanish, a "
    "score has to go all the way down.",
    forms=(scores_times_mask,),
)
def fills_with_zero(scores, values, mask=None):
    return finished(scores if mask is None else scores.masked_fill(~mask, 0), values, None)


def small_fill_then_zeros(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    weights = torch.softmax(scores.masked_fill(~mask, -1e4), -1) * mask
    return average(weights, values), weights


def ten_thousand_subtracted(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    weights = torch.softmax(scores - 1e4 * ~mask, -1)
    weights = weights.masked_fill(~mask & ~mask.any(-1, keepdim=True), 0)
    return average(weights, values), weights


@task.fault(
    "M-SMALL-FILL",
    thinks="−10,000 is as good as −∞.",
    why="Only while every real score lies above it. Where real scores reach −20,000, the hidden "
    "keys win. Use the lowest number the dtype has.",
    forms=(small_fill_then_zeros, ten_thousand_subtracted),
)
def fill_that_is_not_low_enough(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    weights = torch.softmax(scores.masked_fill(~mask, -1e4), -1)
    weights = weights.masked_fill(~mask & ~mask.any(-1, keepdim=True), 0)
    return average(weights, values), weights


@task.fault(
    "M-VALUES",
    thinks="Setting the hidden values to zero hides their keys.",
    why="A zero value still takes part with its weight and pulls the average toward zero. The "
    "weights themselves must leave it out.",
)
def masks_the_values(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        values = values * mask[:, :, None]
    return average(weights, values), weights


@task.fault(
    "M-MAPS-UNMASKED",
    thinks="The mask matters for the context; the weights are only for looking at.",
    why="Your context respects the mask, but the weights you return are computed without it. The "
    "heat map shows attention that never happened.",
)
def returns_unmasked_weights(scores, values, mask=None):
    context, _ = finished(scores, values, mask)
    return context, torch.softmax(scores, -1)


@task.fault(
    "C-MASK-AS-LENGTH",
    thinks="A mask says how long a sentence is: the first so many keys are real.",
    why="Often, not always. A mask says for each key by itself whether it may be attended to, and "
    "padding may also stand in front.",
)
def mask_as_length(scores, values, mask=None):
    if mask is not None:
        mask = torch.arange(scores.shape[1]) < mask.sum(-1, keepdim=True)
    return finished(scores, values, mask)


@task.fault(
    "C-FIRST-MASK",
    thinks="All sentences of a batch have the same padding.",
    why="Each has its own row in the mask, and rows differ. You let the first one speak for all.",
)
def first_mask_for_all(scores, values, mask=None):
    return finished(scores, values, None if mask is None else mask[:1].expand_as(mask))


def masks_in_place_by_method(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return finished(scores, values, mask)


@task.fault(
    "M-INPLACE",
    thinks="Writing −∞ into the scores is the shortest way to mask them.",
    why="The scores belong to the caller, who finds them overwritten after your call. `a[…] = x` "
    "and `masked_fill_` edit the tensor itself; make a new one.",
    forms=(masks_in_place_by_method,),
)
def masks_in_place(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    scores[~mask] = -torch.inf
    weights = torch.where(mask.any(-1, keepdim=True), scores, 0).softmax(-1)
    weights = weights.masked_fill(~mask, 0)
    return average(weights, values), weights


@task.fault(
    "D-NAIVE-SOFTMAX",
    thinks="The formula says exp over the sum of exps, so that is what I compute.",
    why="With scores above 88, exp is infinite in float32 and the weights are NaN. `torch.softmax` "
    "is allowed here, and it is careful.",
    section="soft-search",
    forms=(
        lambda scores, values, mask=None: naive_weights(scores, values, mask, dead_rows=False),
        lambda scores, values, mask=None: naive_weights(
            scores, values, mask, dead_rows=False, tiny=1e-9
        ),
    ),
)
def naive_softmax(scores, values, mask=None):
    return naive_weights(scores, values, mask)


@task.fault(
    "D-GLOBAL-MAX",
    thinks="One shift for the whole table of scores is enough to keep exp small.",
    why="It stops overflow, but a row far below becomes all zeros after exp, and 0/0 is NaN. Each "
    "row needs its own shift.",
    section="soft-search",
)
def one_shift_for_all(scores, values, mask=None):
    alive = torch.ones(len(scores), 1, dtype=torch.bool)
    if mask is not None:
        alive = mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    e = (scores - scores.max()).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    weights = e / e.sum(-1, keepdim=True).masked_fill(~alive, 1)
    return average(weights, values), weights


@task.fault(
    "D-HARD-ATTENTION",
    thinks="The search takes the annotation with the best score.",
    why="That is a hard search: picking has no slope, so no gradient says how to score better. The "
    "soft search reads a little of all.",
    section="soft-search",
)
def hard_attention(scores, values, mask=None):
    soft = masked_softmax(scores, mask)
    best = (soft == soft.amax(-1, keepdim=True)) & (soft > 0)
    weights = best.to(scores.dtype) / best.sum(-1, keepdim=True).clamp(min=1) + 0 * soft
    return average(weights, values), weights


@task.fault(
    "D-NO-SOFTMAX",
    thinks="The scores themselves are the weights.",
    why="Scores may be negative and sum to anything. Between score and average, something has to "
    "turn them into shares of one.",
    section="soft-search",
)
def no_softmax(scores, values, mask=None):
    weights = scores if mask is None else scores.masked_fill(~mask, 0)
    return average(weights, values), weights.clone()


@task.fault(
    "D-SCORES-AS-WEIGHTS",
    thinks="The second result is the scores.",
    why="Scores are what enters the softmax; weights are what leaves it. The context is right, but "
    "a heat map of scores has rows that sum to nothing in particular.",
    section="soft-search",
)
def returns_scores(scores, values, mask=None):
    context, _ = finished(scores, values, mask)
    return context, scores.clone()


@task.fault(
    "C-SIGMOID-WEIGHTS",
    thinks="A sigmoid gives every key its weight between 0 and 1.",
    why="Then keys do not compete, and the weights of a row sum to anything. A sum is no average: "
    "its size grows with the number of keys.",
    section="soft-search",
)
def sigmoid_weights(scores, values, mask=None):
    weights = torch.sigmoid(scores)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return average(weights, values), weights


@task.fault(
    "C-MEAN-CONTEXT",
    thinks="The context is the mean of the weighted values.",
    why="The weights already sum to one, so their weighted sum is the average. Dividing by the "
    "number of keys once more makes it too small.",
    section="soft-search",
)
def mean_of_weighted_values(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return (weights[:, :, None] * values).mean(1), weights


@task.fault(
    "C-NOT-SUMMED",
    thinks="The context is every value times its weight.",
    why="That is one vector for each key. The context is one for the sentence: add them up over "
    "the keys.",
    section="soft-search",
)
def weighted_values(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return weights[:, :, None] * values, weights


@task.fault(
    "A-BROADCAST",
    thinks="Weights and values can be multiplied as they are; torch lines them up.",
    why="(b k) and (b k v) are lined up from the right, so k meets v and b meets k. That is an "
    "error, or, if all are equal, the wrong weights. Weights need an axis for v.",
    section="additive-breaks",
)
def weights_without_new_axis(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return (weights * values).sum(1), weights


def all_pairs_over_minus_infinity(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1)
    return weights @ values, weights


@task.fault(
    "C-ALL-PAIRS",
    thinks="`weights @ values` is the weighted sum of the values.",
    why="For one sentence it is. With a batch, (b k) @ (b k v) applies the weights of every "
    "sentence to the values of every other: (b b v). Keep each sentence to itself.",
    section="additive-breaks",
    forms=(
        lambda scores, values, mask=None: (
            (masked_softmax(scores, mask) @ values).squeeze(),
            masked_softmax(scores, mask),
        ),
        all_pairs_over_minus_infinity,
    ),
)
def weights_of_all_sentences(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return weights @ values, weights


@task.fault(
    "C-KEEPDIM",
    thinks="An axis of length 1 in the context does not matter.",
    why="It does as soon as the context is joined to a word's vector (b m): (b 1 v) does not fit, "
    "or broadcasts into something else. The context is (b v).",
    section="soft-search",
)
def context_with_an_axis_left(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return weights[:, None] @ values, weights


@task.fault(
    "C-SQUEEZE",
    thinks="`squeeze()` removes the axis that the matrix product needed.",
    why="It removes every axis of length 1: with one sentence in the batch, or values of width 1, "
    "also one that belongs there. Name the axis.",
    section="soft-search",
)
def context_squeezed(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return (weights[:, None] @ values).squeeze(), weights


@task.fault(
    "D-SWAPPED-RESULTS",
    thinks="The function returns the weights and the context.",
    why="Both are right, in the other order: first the context, then the weights.",
    section="soft-search",
)
def swapped_results(scores, values, mask=None):
    context, weights = finished(scores, values, mask)
    return weights, context


@task.fault(
    "D-OUTPUT-ONLY",
    thinks="Only the context is needed.",
    why="The decoder needs no more. You do: without the weights nobody can see where the model "
    "looked. Return the pair (context, weights).",
    section="alignments",
)
def context_only(scores, values, mask=None):
    return finished(scores, values, mask)[0]


@task.fault(
    "D-DETACHED-WEIGHTS",
    thinks="The weights are a by-product; only values need a gradient.",
    why="Then the scores never learn: the gradient that says 'look elsewhere' flows through the "
    "weights. Something like `.detach()` cuts it.",
    section="soft-search",
)
def detached_weights(scores, values, mask=None):
    weights = masked_softmax(scores, mask).detach()
    return average(weights, values), weights


@task.fault(
    "C-DETACHED-VALUES",
    thinks="Values are only read, so they need no gradient.",
    why="The encoder learns through them what to hand over. The numbers are right, but its "
    "annotations would only be trained to be found, not to be useful.",
    section="soft-search",
)
def detached_values(scores, values, mask=None):
    return finished(scores, values.detach(), mask)


@task.fault(
    "C-EPSILON",
    thinks="A small number added to the sum makes the division safe and changes nothing.",
    why="It changes the sixth digit: rows then sum to a little less than one, which float64 shows. "
    "After subtracting the row's maximum the sum is at least 1, so it is safe anyway.",
    section="soft-search",
)
def epsilon_in_the_sum(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    weights = e / (e.sum(-1, keepdim=True) + 1e-6)
    return average(weights, values), weights


@task.fault(
    "C-DROPOUT",
    thinks="Attention includes dropout, so some weights are set to zero at random.",
    why="Not this function: nothing here needs chance, and weights that are returned after dropout "
    "make heat maps lie.",
    section="alignments",
)
def dropped_weights(scores, values, mask=None):
    weights = torch.dropout(masked_softmax(scores, mask), 0.1, True)
    return average(weights, values), weights


@task.fault(
    "C-FLOAT32",
    thinks="Weights between 0 and 1 do not need more than float32.",
    why="The inputs came as float64 and the results leave as float32. The caller loses half of the "
    "digits. Keep the dtype that came.",
    section="soft-search",
)
def attend_in_float32(scores, values, mask=None):
    return finished(scores.float(), values.float(), mask)


@task.fault(
    "C-AFTER-SOFTMAX-SENTENCES",
    thinks="First the softmax over axis 0, then the mask.",
    why="Two things at once: axis 0 are the sentences, which should not compete with each other; "
    "and a mask after the softmax comes too late.",
    section="additive-breaks",
)
def softmax_over_sentences_then_mask(scores, values, mask=None):
    weights = torch.softmax(scores, 0)
    if mask is not None:
        weights = weights * mask
    return average(weights, values), weights
