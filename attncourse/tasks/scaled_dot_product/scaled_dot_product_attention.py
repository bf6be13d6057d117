import math

import torch
import torch.nn.functional as F

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure, compare, following, has_shape, moves_nothing
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.attention import (
    DOUBLE,
    Attention,
    a_mask_may_broadcast,
    a_masked_key_gets_no_weight_and_takes_none_from_the_others,
    a_query_with_nothing_to_attend_to_gets_zeros_and_spoils_nothing_else,
    attention_inputs,
    hidden_winner,
    large_attention,
    minus_infinity,
    of_masks,
    only_dead_rows,
)


def far_apart(rng):
    """Rows of scores near 1e4, 0 and -1e4: no single shift serves them all."""
    inputs = large_attention(rng)
    inputs["query"] *= torch.tensor([[1.0], [0.0], [-1.0]])
    return inputs


def attention_traits(answer):
    inputs = attention_inputs(torch.Generator().manual_seed(0), 3)
    outputs = [answer(inputs, seed=seed)[0] for seed in (1, 2)]
    return {"differs from call to call": not torch.equal(*outputs)}


def attention_probes(rng):
    return {
        "plain": attention_inputs(rng, 2, 3),
        "square": attention_inputs(rng, 4, 4, q=4, k=4, d=4, v=4),
        "flat": attention_inputs(rng, q=3, k=5, d=2, v=4),
        "one batch axis": attention_inputs(rng, 3, q=4, k=5, d=9, v=2),
        "mask": attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)),
        "causal": attention_inputs(rng, 2, q=5, k=5, d=3, v=4, mask=causal(5)),
        "padding": attention_inputs(rng, 3, 2, mask=mixed_mask(rng, 3, 1, 1, 5)),
        "dead row": attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5)),
        "large": large_attention(rng),
        "large negative, masked": large_attention(rng, mask=mixed_mask(rng, 3, 4), size=-30_000.0),
        "double": attention_inputs(rng, 2, **DOUBLE),
        "rows far apart": far_apart(rng),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
    }


def attention_small(rng):
    sizes = ((1, 1, 1, 1), (1, 2, 1, 1), (1, 2, 2, 1), (2, 2, 1, 1), (2, 2, 2, 1), (2, 3, 2, 2))

    def example(q, k, d, v, mask=None):
        return {
            "query": integers(rng, q, d),
            "key": integers(rng, k, d),
            "value": integers(rng, k, v, low=0, high=9),
            "mask": mask,
        }

    for size in sizes:
        for _ in range(4):
            yield example(*size)
    for q, k, d, v in sizes[1:]:
        for _ in range(4):
            mask = torch.rand(q, k, generator=rng, device="cpu") > 0.5
            mask[:, 0] |= ~mask.any(-1)
            yield example(q, k, d, v, mask)
    yield example(1, 2, 1, 1, torch.tensor([[False, False]]))
    yield example(2, 2, 1, 1, torch.tensor([[True, False], [False, False]]))
    yield {name: value[None] for name, value in example(2, 2, 1, 1).items() if name != "mask"}
    for size in (100.0, 1e4, -1e5):
        yield {
            "query": torch.tensor([[1.0]]),
            "key": torch.tensor([[size], [size + 1]]),
            "value": torch.tensor([[1.0], [2.0]]),
            "mask": None if size > 0 else torch.tensor([[True, False]]),
        }


def attention_maps(rng):
    words = {"q": 3, "k": 3, "d": 4, "v": 2}
    moved = ("key", "value")
    return [
        ("two sentences of three words", attention_inputs(rng, 2, **words), moved),
        (
            "two sentences of three words, causal mask",
            attention_inputs(rng, 2, **words, mask=causal(3)),
            moved,
        ),
    ]


task = Task(
    reference.scaled_dot_product_attention,
    number=2,
    returns=("output", "weights"),
    difficulty=2,
    minutes=25,
    section="the-code",
    probes=attention_probes,
    differentiated=("plain", "mask", "dead row"),
    small=attention_small,
    maps=attention_maps,
    traits=attention_traits,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_an_output_and_the_weights(answer, rng):
    inputs = attention_inputs(rng, 2, 3)
    output, weights = answer(inputs)
    has_shape("output", output, "(… q v)", 2, 3, 4, 6, inputs=inputs)
    has_shape("weights", weights, "(… q k)", 2, 3, 4, 5, inputs=inputs)


@task.check(1)
def without_a_mask_every_row_of_weights_sums_to_one(answer, rng):
    inputs = attention_inputs(rng, 2, 3)
    _, weights = answer(inputs)
    has_shape("weights", weights, "(… q k)", 2, 3, 4, 5, inputs=inputs)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 3, 4), inputs)


@task.check(1)
def without_a_mask_the_output_is_the_returned_weights_times_the_values(answer, rng):
    inputs = attention_inputs(rng, 3)
    output, weights = answer(inputs)
    has_shape("weights", weights, "(… q k)", 3, 4, 5, inputs=inputs)
    compare("output", output, weights @ inputs["value"], inputs)


@task.check(2)
def weights_and_output_match_the_formula(answer, rng):
    answer.matches(attention_inputs(rng, 3))
    answer.matches(attention_inputs(rng, 4, q=4, k=4, d=4, v=4))
    answer.matches(attention_inputs(rng, 2, d=33, v=2))
    answer.matches(attention_inputs(rng, 2, q=1, k=1, d=1, v=1))
    answer.matches(attention_inputs(rng, 2, **DOUBLE))
    turned = attention_inputs(rng, 2)  # the same numbers, not contiguous
    turned |= {name: turned[name].mT.contiguous().mT for name in ("query", "key", "value")}
    answer.matches(turned)


@task.check(1)
def any_leading_axes_work(answer, rng):
    with following(lambda: answer.matches(attention_inputs(rng, 3))):
        answer.matches(attention_inputs(rng))
        answer.matches(attention_inputs(rng, 2, 3))
        answer.matches(attention_inputs(rng, 2, 1, 3))


@task.check(1)
def large_scores_stay_finite(answer, rng):
    with following(lambda: answer.matches(attention_inputs(rng, d=4))):
        answer.matches(large_attention(rng), tolerance=5e-3)
        answer.matches(large_attention(rng, size=-1e4), tolerance=5e-3)
        answer.matches(far_apart(rng), tolerance=5e-3)


task.check(1)(a_masked_key_gets_no_weight_and_takes_none_from_the_others)
task.check(1)(a_mask_may_broadcast)
task.check(1)(a_query_with_nothing_to_attend_to_gets_zeros_and_spoils_nothing_else)


@task.check(1, "gradients reach query, key and value")
def gradients_reach_query_key_and_value(answer, rng):
    answer.gradients_match(attention_inputs(rng, 2, 3))
    answer.gradients_match(attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5)))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, attention_inputs(rng, 3))
    with following(lambda: it_returns_an_output_and_the_weights(answer, rng)):
        moves_nothing(answer, attention_inputs(rng, 3, mask=mixed_mask(rng, 4, 5)))


# --- the reference in steps ---------------------------------------------------------------------

task.steps(Attention)
task.spelling(clear=only_dead_rows)
task.spelling(
    hide=lambda scores, mask: scores.masked_fill(mask.any(-1, keepdim=True) & ~mask, -torch.inf)
)

# --- faults: scores -----------------------------------------------------------------------------

SCALE, FIVE, AXES = "why-scale", "five-steps", "leading-axes"


def by_root(size):
    """Scores over the root of some size."""
    return lambda scores, query, key, value: scores / math.sqrt(size(query, key, value))


def heads_and_width(query, key, value):
    return query.shape[-1] * (query.shape[1] if query.ndim == 4 else 1)


task.fault("D-NO-SCALE", section=SCALE, scale=as_is)
task.fault("D-SCALE-DK", section=SCALE, scale=lambda s, query, *_: s / query.shape[-1])
task.fault("D-SCALE-DV", section=SCALE, scale=by_root(lambda query, key, value: value.shape[-1]))
task.fault("D-SCALE-KEYS", section=SCALE, scale=by_root(lambda query, key, value: key.shape[-2]))
task.fault("D-SCALE-DMODEL", section=SCALE, scale=by_root(heads_and_width))
task.fault("D-SCALE-SECOND", section=SCALE, scale=by_root(lambda query, *_: query.shape[1]))
task.fault(
    "D-SCALE-AFTER",
    section=SCALE,
    scale=as_is,
    after=lambda weights, query: weights / math.sqrt(query.shape[-1]),
)
task.fault(
    "D-SCALE-TIMES",
    section=SCALE,
    scale=lambda scores, query, *_: scores * math.sqrt(query.shape[-1]),
)
task.fault(
    "D-SCALE-FOURTH-ROOT",
    section=SCALE,
    scale=lambda scores, query, *_: scores / query.shape[-1] ** 0.25,
)
task.fault("D-SCALE-CONSTANT", section=SCALE, scale=lambda scores, *_: scores / 8)
task.fault(
    "D-TRANSPOSE-T",
    section=AXES,
    compare=lambda query, key: query @ key.permute(*reversed(range(key.ndim))),
)
task.fault(
    "D-TRANSPOSE-12",
    section=AXES,
    compare=(
        lambda query, key: query @ key.transpose(1, 2),
        lambda query, key: torch.bmm(query, key.transpose(1, 2)),
    ),
)
task.fault(
    "D-RESHAPE-KEY",
    section=AXES,
    compare=lambda query, key: query @ key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2]),
)
task.fault(
    "D-COSINE",
    section=FIVE,
    compare=lambda query, key: F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT,
    scale=(as_is, ...),
)
task.fault(
    "C-FIXED-AXES",
    section=AXES,
    compare=(
        lambda query, key: torch.einsum("bqd,bkd->bqk", query, key),
        lambda query, key: torch.einsum("bhqd,bhkd->bhqk", query, key),
    ),
)
task.fault("D-DISTANCE", section=FIVE, compare=torch.cdist, scale=(as_is, ...))
task.fault("D-SELF-SCORES", section="soft-lookup", compare=lambda query, key: key @ key.mT)
task.fault(
    "D-DETACHED-KEYS", section="gradients", compare=lambda query, key: query @ key.detach().mT
)
task.fault(
    "D-INPLACE",
    compare=lambda query, key: query.div_(math.sqrt(query.shape[-1])) @ key.mT,
    scale=as_is,
)

# --- faults: softmax ----------------------------------------------------------------------------


def naive(scores, mask):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def naive_times_mask(scores, mask):
    e = scores.exp() if mask is None else scores.exp() * mask
    return e / e.sum(-1, keepdim=True)


def naive_and_safe(scores, mask):
    total = scores.exp().sum(-1, keepdim=True)
    return scores.exp() / total.masked_fill(total == 0, 1)


def one_shift_for_all(scores, mask):
    return naive_and_safe(scores - scores.max(), mask)


def one_shift_and_nan(scores, mask):
    weights = naive(scores - scores.max(), mask)
    return weights if mask is None else weights.masked_fill(~mask.any(-1, keepdim=True), 0)


def hard(scores, mask):
    soft = scores.softmax(-1) if mask is None else scores.softmax(-1) * mask
    best = (soft == soft.amax(-1, keepdim=True)) & (soft > 0)
    return best.to(scores.dtype) / best.sum(-1, keepdim=True).clamp(min=1) + 0 * soft


task.fault("D-SOFTMAX-AXIS-1", section=AXES, share=lambda scores, mask: scores.softmax(1))
task.fault(
    "D-SOFTMAX-DIM",
    section=FIVE,
    share=lambda scores, mask: scores.softmax(-2),
    clear=(..., as_is),  # a row without keys gets nothing where the others share each column
)
task.fault(
    "D-SOFTMAX-ALL",
    section=FIVE,
    share=lambda scores, mask: scores.flatten(-2).softmax(-1).view(scores.shape),
)
task.fault(
    "D-NAIVE-SOFTMAX",
    section="stable-softmax",
    share=(naive_and_safe, naive, naive, naive_times_mask),
    hide=(
        minus_infinity,
        minus_infinity,
        lambda scores, mask: scores.masked_fill(~mask, -1e9),
        as_is,
    ),
    clear=(..., as_is, as_is, as_is),
)
task.fault(
    "D-GLOBAL-MAX",
    section="stable-softmax",
    share=(one_shift_and_nan, one_shift_for_all, one_shift_for_all),
    hide=(..., ..., minus_infinity),
)
task.fault("C-SIGMOID-WEIGHTS", section=FIVE, share=lambda scores, mask: scores.sigmoid())
task.fault("D-HARD-ATTENTION", section="soft-lookup", share=hard)
task.fault("D-NO-SOFTMAX", section=FIVE, share=as_is, hide=lambda scores, mask: scores * mask)
task.fault("D-DROPOUT-PLACE", after=lambda weights, query: torch.dropout(weights, 0.1, train=True))
task.fault("D-DETACHED-WEIGHTS", section="gradients", after=lambda weights, query: weights.detach())

# --- faults: masks ------------------------------------------------------------------------------


of_masks(task, section="masks")


@task.fault("M-DEAD-ROW-OUTPUT", section="masks")
class OutputCleared(Attention):
    """The weights of a row in which all is hidden stay as they are."""

    clear = as_is

    def __call__(self, query, key, value, mask=None):
        output, weights = super().__call__(query, key, value, mask)
        return output if mask is None else output * mask.any(-1, keepdim=True), weights


# --- faults: what is read and returned ----------------------------------------------------------


@task.fault("D-FLOAT32", words="C-FLOAT32")
class InFloat32(Attention):
    def __call__(self, query, key, value, mask=None):
        return super().__call__(query.float(), key.float(), value.float(), mask)


task.fault(
    "D-KEY-AS-VALUE",
    section="soft-lookup",
    average=lambda weights, query, key, value: weights @ key,
)
task.fault(
    "D-MEAN-OUTPUT",
    section=FIVE,
    average=lambda weights, query, key, value: weights @ value / value.shape[-2],
)
task.fault(
    "D-SCORES-AS-WEIGHTS", section=FIVE, results=lambda output, weights, scores: (output, scores)
)
task.fault("D-SWAPPED-RESULTS", results=lambda output, weights, scores: (weights, output))
task.fault("D-OUTPUT-ONLY", results=lambda output, weights, scores: output)
