import math

import torch

from attncourse import in_the_wild as reference
from attncourse.checks.answer import following, moves_nothing
from attncourse.checks.inputs import causal, dead_mask, mixed_mask
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
    matches_but_for_the_mask,
    of_masks,
    only_dead_rows,
)


def all_hidden(rng):
    return attention_inputs(rng, 2, mask=torch.zeros(4, 5, dtype=torch.bool))


def probes(rng):
    return {
        "plain": attention_inputs(rng, 2, 3),
        "mask": attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)),
        "causal": attention_inputs(rng, 2, q=5, k=5, d=3, v=4, mask=causal(5)),
        "padding": attention_inputs(rng, 3, 2, mask=mixed_mask(rng, 3, 1, 1, 5)),
        "dead row": attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5)),
        "dead row, square": attention_inputs(rng, 2, q=4, k=4, mask=dead_mask(rng, 2, 4, 4)),
        "all hidden": all_hidden(rng),
        "large negative, masked": large_attention(rng, mask=mixed_mask(rng, 3, 4), size=-30_000.0),
        "double": attention_inputs(rng, 2, mask=dead_mask(rng, 4, 5), **DOUBLE),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
    }


def small(rng):
    for rows in (
        *([[False, False]], [[True, False]], [[True, False], [False, False]]),
        *([[False, True], [True, True]], [[False, False], [False, False]]),
    ):
        mask = torch.tensor(rows)
        yield attention_inputs(rng, q=len(rows), k=2, d=1, v=1, mask=mask)
    yield attention_inputs(rng, q=1, k=2, d=1, v=1)


task = Task(
    reference.mended_attention,
    number=2,
    returns=("output", "weights"),
    difficulty=2,
    minutes=10,
    section="wild-dead-row",
    probes=probes,
    differentiated=("plain", "mask", "dead row"),
    small=small,
    features=1,
    forbidden=FUSED_ATTENTION,
)


def a_mask_broadcasts(answer):
    """Assert that a mask in which every query may attend to something may broadcast."""
    rng = torch.Generator().manual_seed(0)
    answer.matches(attention_inputs(rng, 2, mask=mixed_mask(rng, 4, 5)))


@task.check(2, "with a query that may attend to nothing all is right, the gradient too")
def with_a_query_that_may_attend_to_nothing_all_is_right(answer, rng):
    answer.matches(attention_inputs(rng, 2, mask=dead_mask(rng, 2, 4, 5)), gradient=True)
    answer.matches(attention_inputs(rng, 2, q=4, k=4, mask=dead_mask(rng, 2, 4, 4)))
    with following(lambda: a_mask_broadcasts(answer)):
        a_query_with_nothing_to_attend_to_gets_zeros_and_spoils_nothing_else(answer, rng)


@task.check(1, "if all is hidden, all is right, the gradient too")
def if_all_is_hidden_all_is_right(answer, rng):
    hidden = torch.zeros(2, 4, 5, dtype=torch.bool)
    answer.matches(attention_inputs(rng, 2, mask=hidden), gradient=True)
    with following(lambda: a_mask_broadcasts(answer)):
        answer.matches(all_hidden(rng), gradient=True)


@task.check(1)
def without_a_mask_it_is_as_it_was(answer, rng):
    answer.matches(attention_inputs(rng, 2, 3), gradient=True)
    answer.matches(attention_inputs(rng, **DOUBLE))


@task.check(1, "a masked key gets no weight and takes none from the others")
def a_masked_key_gets_no_weight(answer, rng):
    matches_but_for_the_mask(answer, attention_inputs(rng, 2, 3, mask=mixed_mask(rng, 2, 3, 4, 5)))
    with following(lambda: a_mask_broadcasts(answer)):
        a_masked_key_gets_no_weight_and_takes_none_from_the_others(answer, rng)


task.check(1)(a_mask_may_broadcast)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, attention_inputs(rng, 3, mask=dead_mask(rng, 4, 5)))


# --- the reference in steps ---------------------------------------------------------------------

task.steps(Attention)
task.spelling(clear=only_dead_rows)

# --- faults -------------------------------------------------------------------------------------

of_masks(task)
task.fault(
    "D-QUERY-DIVIDED-IN-PLACE",
    compare=lambda query, key: query.div_(math.sqrt(query.shape[-1])) @ key.mT,
    scale=as_is,
)


def only_a_whole_mask(weights, mask):
    return weights if mask.any() else torch.zeros_like(weights)


task.fault("M-DEAD-ROW-WHOLE-MASK", clear=only_a_whole_mask)


def a_mask_is_there(error):
    """What is done with None first decides its error: `mask.any(-1)`, or `~mask`."""

    def visible(mask, scores):
        if mask is None:
            raise error("None is no mask")
        return mask

    return visible


task.fault(
    "M-DEAD-ROW-OPENED",
    visible=lambda mask, scores: None if mask is None else mask | ~mask.any(-1, keepdim=True),
)


def of_its_full_shape(mask, scores):
    """The weights are looked up by it, as in `weights[~mask] = 0`."""
    if mask is not None and mask.shape != scores.shape:
        raise IndexError("the shape of the mask does not match")
    return mask


task.fault("M-MASK-AS-INDEX", visible=of_its_full_shape)


def afterward(mended):
    """Nothing is cleared before the average; of a mask, `mended` mends output or weights."""

    class Afterward(Attention):
        def __call__(self, query, key, value, mask=None):
            scores = self.scale(self.compare(query, key), query, key, value)
            mask = self.visible(mask, scores)
            weights = self.share(scores if mask is None else self.hide(scores, mask), mask)
            weights = self.after(weights, query)
            output = self.average(weights, query, key, value)
            if mask is not None:
                output, weights = mended(output, weights, mask)
            return self.results(output, weights, scores)

    return Afterward


def weights_alone(output, weights, mask):
    return output, weights.masked_fill(~mask, 0.0)


def output_alone(output, weights, mask):
    return output.masked_fill(~mask.any(-1, keepdim=True), 0.0), weights


task.fault("M-DEAD-ROW-WEIGHTS", forms=[afterward(weights_alone)])
task.fault("M-DEAD-ROW-OUTPUT", forms=[afterward(output_alone)])


def of_keys(weights, mask):
    """A row goes where its own number is that of a key which nobody sees."""
    seen = mask.expand(weights.shape).any(-2)
    return weights * seen[..., None]


task.fault(
    "M-DEAD-COLUMN",
    clear=(
        of_keys,
        lambda weights, mask: weights * mask.any(-2, True),
        lambda weights, mask: weights * mask.any(-2)[..., None],
    ),
)
task.fault("M-ALWAYS-GIVEN", visible=(a_mask_is_there(AttributeError), a_mask_is_there(TypeError)))

# Each of them may go wrong while the defect is mended.
task.fault("D-NO-SCALE", scale=as_is)
task.fault("D-SCALE-DK", scale=lambda scores, query, *_: scores / query.shape[-1])
task.fault(
    "D-SCALE-DV", scale=lambda scores, query, key, value: scores / math.sqrt(value.shape[-1])
)
task.fault("D-SCALE-TIMES", scale=lambda scores, q, *_: scores * math.sqrt(q.shape[-1]))
task.fault("D-SCALE-KEYS", scale=lambda scores, *_: scores / math.sqrt(scores.shape[-1]))
task.fault("D-SOFTMAX-DIM", share=lambda scores, mask: scores.softmax(-2))
task.fault("D-NO-SOFTMAX", share=as_is)
task.fault("D-DETACHED-WEIGHTS", after=lambda weights, query: weights.detach())
task.fault("D-KEY-AS-VALUE", average=lambda weights, query, key, value: weights @ key)
task.fault("D-SCORES-AS-WEIGHTS", results=lambda output, weights, scores: (output, scores))
task.fault("D-SWAPPED-RESULTS", results=lambda output, weights, scores: (weights, output))
task.fault("D-OUTPUT-ONLY", results=lambda output, weights, scores: output)


@task.fault("C-FLOAT32")
class InFloat32(Attention):
    def __call__(self, query, key, value, mask=None):
        return super().__call__(query.float(), key.float(), value.float(), mask)
