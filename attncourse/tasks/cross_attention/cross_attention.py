"""Attention from one sequence to another: task 1 of chapter 7."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from attncourse import cross_attention as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, weights_of
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.multihead import MultiHeadAttention
from attncourse.tasks.cross_attention import appended, like, turned


class Asked(nn.Module):
    """Holds the attention that an answer is given, so that its weights can be swapped."""

    def __init__(self, answer, attention):
        super().__init__()
        self.answer, self.attention = answer, attention

    def forward(self, target, memory, *mask, **named):
        return self.answer(target, memory, self.attention, *mask, **named)


def with_an_attention(answer):
    """The answer as a function of tensors: it is given chapter 5's attention with these weights.

    `training` says in which mode that attention is, and has to be left; `by_position` passes the
    mask without its name.
    """

    def function(*, target, memory, num_heads, training=None, by_position=False, **rest):
        attention = made(MultiHeadAttention, target.shape[-1], num_heads, training=bool(training))
        asked = Asked(answer, attention.to(target.dtype))
        weights = {f"attention.{name}": rest.pop(name) for name in list(rest) if "." in name}
        masks = tuple(rest.values())
        given = ((target, memory, *masks), {}) if by_position else ((target, memory), rest)
        returned = functional_call(asked, weights, *given)
        if training is not None and any(part.training != training for part in attention.modules()):
            mode = "evaluation" if training else "training"
            raise Unusable(f"leaves the attention in {mode} mode; the caller had it in the other")
        return returned

    return function


def asked_inputs(rng, b=2, q=3, k=5, m=6, h=2, mask=None, dtype=torch.float32, **others):
    return {
        "target": normal(rng, b, q, m, dtype=dtype),
        "memory": normal(rng, b, k, m, dtype=dtype),
        "memory_mask": mask,
        "num_heads": h,
        **weights_of(like(MultiHeadAttention, m, h), rng, dtype),
        **others,
    }


def hidden_giants(rng, q=3, k=5, b=2):
    """What is hidden is ten thousand times as large as what is not."""
    inputs = asked_inputs(rng, b=b, q=q, k=k, mask=mixed_mask(rng, b, 1, k))
    inputs["memory"] *= torch.where(inputs["memory_mask"], 1.0, 1e4).mT
    return inputs


def cross_probes(rng):
    return {
        "plain": asked_inputs(rng),
        "as many target as source words": asked_inputs(rng, q=4, k=4),
        "all equal": asked_inputs(rng, b=4, q=4, k=4, m=4, h=4),
        "padding": asked_inputs(rng, b=3, q=4, mask=mixed_mask(rng, 3, 1, 5)),
        "padding, b = q": asked_inputs(rng, b=4, q=4, mask=mixed_mask(rng, 4, 1, 5)),
        "square mask": asked_inputs(rng, q=4, k=4, mask=mixed_mask(rng, 4, 4)),
        "mask": asked_inputs(rng, q=4, mask=mixed_mask(rng, 2, 4, 5)),
        "dead row": asked_inputs(rng, mask=dead_mask(rng, 2, 3, 5)),
        "training": asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5), training=True),
        "evaluation": asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 1, 5), training=False),
        "one target word": asked_inputs(rng, q=1),
        "double": asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 5), dtype=torch.float64),
    }


def cross_small(rng):
    def example(b, q, k, mask=None):
        inputs = asked_inputs(rng, b, q, k, 2, 1, mask)
        return inputs | {"target": integers(rng, b, q, 2), "memory": integers(rng, b, k, 2)}

    for b, q, k in ((1, 1, 2), (1, 2, 2), (1, 2, 3), (2, 2, 2), (2, 2, 3)):
        yield example(b, q, k)
        yield example(b, q, k)
    yield example(1, 1, 2, torch.tensor([[[True, False]]]))
    yield example(1, 2, 2, torch.tensor([[True, False], [True, True]]))
    yield example(2, 1, 2, torch.tensor([[[True, False]], [[True, True]]]))
    yield example(2, 2, 2, torch.tensor([[[True, False]], [[True, True]]]))
    yield example(1, 2, 2, torch.tensor([[False, False], [True, True]]))
    for training in (False, True):
        yield example(2, 2, 3, mixed_mask(rng, 2, 1, 3)) | {"training": training}


def cross_maps(rng):
    words = {"q": 3, "k": 3, "m": 4}
    padded = torch.tensor([[[True, True, True]], [[True, False, False]]])
    title = "two sentences of three words, padding in the second source"
    return [
        ("two sentences of three words", asked_inputs(rng, **words), ("memory",)),
        (title, asked_inputs(rng, **words, mask=padded), ("memory",)),
        (title, asked_inputs(rng, **words, mask=padded), ("target",)),
    ]


task = Task(
    reference.cross_attention,
    number=1,
    returns=("output", "weights"),
    difficulty=1,
    minutes=10,
    section="two-sequences",
    hints=(
        "Somebody asks, and somebody has the answers. Which of the two sequences is being written, "
        "and which one is looked up?",
        "A key is what an entry is found by, a value what it hands over, so both come from the "
        "same sequence. The mask belongs to that sequence, too.",
        "`attention` takes query, key, value and mask, in this order, and returns the pair that "
        "you should return. Of its first three arguments, two are the same tensor.",
    ),
    probes=cross_probes,
    adapt=with_an_attention,
    differentiated=("plain", "padding", "dead row"),
    small=cross_small,
    maps=cross_maps,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def it_returns_an_output_and_the_weights(answer, rng):
    inputs = asked_inputs(rng, b=2, q=3, k=5, m=8, h=4)
    output, weights = answer(inputs)
    for name, tensor, axes, shape in (
        ("output", output, "(b q m)", (2, 3, 8)),
        ("weights", weights, "(b h q k)", (2, 4, 3, 5)),
    ):
        if tensor.shape != shape:
            raise Failure(
                f"{name} has shape {shape_of(tensor)}; expected {axes} = "
                f"{shape_of(torch.empty(shape))}.",
                inputs,
            )


@task.check(1)
def the_target_asks_and_the_memory_answers(answer, rng):
    answer.matches(asked_inputs(rng))
    answer.matches(asked_inputs(rng, b=3, q=7, k=2, m=9, h=3))
    answer.matches(turned(asked_inputs(rng)))


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    answer.matches(asked_inputs(rng, q=5, k=5))
    answer.matches(asked_inputs(rng, b=4, q=4, k=4, m=4, h=4))
    answer.matches(asked_inputs(rng, b=1, q=1))
    answer.matches(asked_inputs(rng, b=3, q=1, k=1, m=1, h=1))


@task.check(1)
def the_order_of_the_memory_does_not_matter_its_content_does(answer, rng):
    inputs = asked_inputs(rng, q=5, k=5)
    shuffled = dict(inputs, memory=inputs["memory"].flip(1))
    compare("output with the memory in another order", answer(shuffled)[0], answer(inputs)[0])
    other = dict(inputs, memory=normal(rng, 2, 5, 6))
    if (answer(other)[0] - answer(inputs)[0]).abs().max() < 1e-3:
        raise Failure("Another memory gives the same output: nothing is looked up.", inputs)


@task.check(1)
def padding_of_the_source_is_hidden(answer, rng):
    inputs = asked_inputs(rng)
    longer = appended(inputs, 5 * normal(rng, 2, 3, 6))
    compare("output with padding behind the source", answer(longer)[0], answer(inputs)[0], longer)
    answer.matches(asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 1, 5)))
    answer.matches(asked_inputs(rng, b=4, q=4, mask=mixed_mask(rng, 4, 1, 5)))
    answer.matches(asked_inputs(rng, b=4, q=4, k=4, m=4, mask=mixed_mask(rng, 4, 1, 4)))
    answer.matches(hidden_giants(rng))


@task.check(1)
def a_mask_of_any_kind_reaches_the_attention(answer, rng):
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 3, 5)))
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 3, 5)))
    answer.matches(asked_inputs(rng, b=4, q=4, k=4, mask=mixed_mask(rng, 4, 4, 4)))
    answer.matches(asked_inputs(rng, q=4, k=4, mask=mixed_mask(rng, 4, 4)))
    answer.matches(asked_inputs(rng, mask=torch.ones(2, 1, 5, dtype=torch.bool)))
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 3, 5), by_position=True))
    answer.matches(asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 5), dtype=torch.float64))


@task.check(1)
def gradients_reach_target_memory_and_attention(answer, rng):
    answer.gradients_match(asked_inputs(rng))
    answer.gradients_match(asked_inputs(rng, b=3, q=4))


@task.check(1)
def a_query_with_nothing_to_attend_to_stays_finite(answer, rng):
    answer.matches(asked_inputs(rng, mask=dead_mask(rng, 2, 3, 5)), gradient=True)
    empty = mixed_mask(rng, 3, 1, 5)
    empty[1] = False
    answer.matches(asked_inputs(rng, b=3, q=1, mask=empty), gradient=True)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, asked_inputs(rng))
    moves_nothing(answer, asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5)))
    moves_nothing(answer, asked_inputs(rng, mask=dead_mask(rng, 2, 3, 5)))
    inputs = asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5))
    outputs = [answer(inputs | {"training": mode})[0] for mode in (True, False)]
    compare("output in training mode, beside evaluation", *outputs, inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class CrossAttention:
    def enters(target, memory):
        return target, memory

    def visible(mask, target, memory, attention):
        return mask

    def roles(target, memory):
        return target, memory, memory

    def ask(attention, query, key, value, mask):
        return attention(query, key, value, mask)

    def results(output, weights, target, mask):
        return output, weights

    def __call__(self, target, memory, attention, memory_mask=None):
        target, memory = self.enters(target, memory)
        mask = self.visible(memory_mask, target, memory, attention)
        pair = self.ask(attention, *self.roles(target, memory), mask)
        return self.results(*pair, target, mask)


# --- faults: who asks whom ----------------------------------------------------------------------

task.fault(
    "X-WRONG-KV",
    "Only queries and keys see different data; the values stay with the target.",
    "A key is what an entry is found by, a value what it hands over: both belong to the same "
    "entry. With your values nothing of the source can reach the output.",
    section="whose-values",
    roles=lambda target, memory: (target, memory, target),
)
task.fault(
    "C-KEYS-OF-TARGET",
    "Words of the target are compared with each other; the source only gives the values.",
    "Then nobody looks at the source to decide what to read. A word of the target has to be "
    "compared with the entries it looks up.",
    section="whose-values",
    roles=lambda target, memory: (target, target, memory),
)
task.fault(
    "C-SOURCE-ASKS",
    "The source comes first, so it gives the queries, and the target the keys and values.",
    "Count the rows: the output should have one for each word that is being written. So who has to "
    "ask?",
    roles=lambda target, memory: (memory, target, target),
)
task.fault(
    "X-LEAK",
    "Query, key and value are the target, as everywhere in the decoder.",
    "That is self-attention: the memory is not used at all. Replace the memory, and your output "
    "stays the same.",
    section="three-attentions",
    roles=lambda target, memory: (target, target, target),
)
task.fault(
    "C-SOURCE-ASKS-ITSELF",
    "The memory is what attention works on, so it plays all three parts.",
    "That is what the encoder did before. Here somebody new comes and asks: change the target, and "
    "your output stays the same.",
    section="three-attentions",
    roles=lambda target, memory: (memory, memory, memory),
)
task.fault(
    "C-ARGUMENT-ORDER",
    "`attention` takes what is looked up first, and then who asks: key, value, query.",
    "Its order is query, key, value. As you call it, the source asks itself and gets the words of "
    "the target handed over.",
    roles=lambda target, memory: (memory, memory, target),
)


def joined(target, memory):
    both = torch.cat([memory, target], dim=1)
    return target, both, both


def joined_mask(mask, target, memory, attention):
    if mask is None:
        return None
    shape = torch.broadcast_shapes(mask.shape, (*target.shape[:2], memory.shape[1]))
    visible = torch.ones(*target.shape[:2], target.shape[1], dtype=torch.bool)
    return torch.cat([mask.expand(shape), visible], dim=-1)


task.fault(
    "C-BOTH-ANSWER",
    "A word should be able to look at the source and at the target, so both are joined.",
    "The words of the target have had their own attention before. Here every column of the weights "
    "is a word of the source.",
    roles=joined,
    visible=(joined_mask, ...),
)


@task.fault(
    "H-BATCH-FIRST",
    "Attention layers want the word axis first, so I turn the inputs and turn back.",
    "Some libraries do; this course is batch-first everywhere. Turned around, each sentence looks "
    "at the other sentences of its batch.",
)
class WordsFirst(CrossAttention):
    def enters(target, memory):
        return target.transpose(0, 1), memory.transpose(0, 1)

    def results(output, weights, target, mask):
        return output.transpose(0, 1), weights


task.fault(
    "C-NORMALIZED-MEMORY",
    "What goes into an attention has to be normalized, the memory as well.",
    "The encoder's last norm has done that. This function hands over what it was given; whoever "
    "calls it decides about norms.",
    section="layer-normalization",
    enters=(
        lambda target, memory: (target, F.layer_norm(memory, memory.shape[-1:])),
        lambda target, memory: [F.layer_norm(x, x.shape[-1:]) for x in (target, memory)],
    ),
)
task.fault(
    "C-SCALED-TWICE",
    "Scores have to be divided by a root, so I shrink the queries first.",
    "The attention scales its scores itself. Scaled twice, the weights become flatter than they "
    "should be.",
    enters=lambda target, memory: (target / target.shape[-1] ** 0.5, memory),
)
task.fault(
    "C-MEMORY-DETACHED",
    "The encoder's result is finished, so no gradient has to go back into it.",
    "The encoder learns only from what the decoder does with its memory. Cut off here, it stays as "
    "it was at the start.",
    section="whole-transformer",
    enters=lambda target, memory: (target, memory.detach()),
)
task.fault(
    "C-VALUES-DETACHED",
    "Gradients through the keys are enough, the values are only read.",
    "The output is made of values. Without their gradient the encoder learns where it is looked "
    "at, and hardly what it should say there.",
    section="whole-transformer",
    roles=lambda target, memory: (target, memory, memory.detach()),
)


@task.fault(
    "C-NO-GRADIENT",
    "The numbers are right, so the answer is right.",
    "The values are, but under `no_grad` nothing arrives where it is needed: neither target nor "
    "memory nor the attention could learn.",
    section="whole-transformer",
)
class WithoutGradient(CrossAttention):
    __call__ = torch.no_grad()(CrossAttention.__call__)


# --- faults: masks ------------------------------------------------------------------------------


def if_given(change):
    """What is done to a mask, if there is one."""
    return lambda mask, *_: None if mask is None else change(mask)


def rows(mask):
    return mask[:, 0] if mask.ndim == 3 else mask


def without_query_axis(mask):
    return mask.squeeze(1) if mask.ndim == 3 and mask.shape[1] == 1 else mask


def first_for_all(mask):
    return mask[:1].expand_as(mask) if mask.ndim == 3 else mask


def one_opened(mask):
    mask = mask.clone()
    mask[..., 0] |= ~mask.any(-1)
    return mask


def opened_in_place(mask):
    mask[..., 0] = True
    return mask


def triangle(target, memory, from_the_end):
    q, k = target.shape[1], memory.shape[1]
    return torch.ones(q, k, dtype=torch.bool).tril(from_the_end * (k - q))


def causal(from_the_end):
    def visible(mask, target, memory, attention):
        before = triangle(target, memory, from_the_end)
        return before if mask is None else before & mask

    return visible


def zeroed(attention, query, key, value, mask):
    if mask is None or mask.ndim == 2 or mask.shape[1] > 1:
        return attention(query, key, value, mask)
    return attention(query, key * mask.mT, value * mask.mT)


def crossed_out(attention, query, key, value, mask):
    output, weights = attention(query, key, value)
    if mask is None:
        return output, weights
    return output, weights * (mask if mask.ndim == 2 else mask[:, None])


task.fault(
    "X-NOMASK",
    "Cross-attention needs no mask, because the whole source is known.",
    "It needs no causal mask. But in a batch short sources are padded, and padding has keys and "
    "values like any word: somebody has to hide them.",
    section="source-mask",
    ask=lambda attention, query, key, value, mask: attention(query, key, value),
)
task.fault(
    "X-CAUSAL",
    "A decoder must not look ahead, so the causal mask applies here, too.",
    "What it must not see is later words of the *target*. The source is known to its end before "
    "the first word is written, and word order differs between languages.",
    section="source-mask",
    visible=(
        lambda mask, target, memory, attention: triangle(target, memory, False),
        causal(from_the_end=True),
        causal(from_the_end=False),
    ),
)
task.fault(
    "X-TGTMASK",
    "The mask belongs to those who ask, so it runs along the queries.",
    "A mask hides *keys*, and keys are words of the source. Along the queries it has another "
    "length, and where both lengths agree it hides the wrong words.",
    section="source-mask",
    visible=if_given(lambda mask: mask.mT),
)
task.fault(
    "M-POLARITY",
    "True in a mask means: hide this.",
    "Libraries differ, so read the convention first: here True means that a query may attend. You "
    "read what should be hidden, and hide the rest.",
    section="source-mask",
    visible=if_given(torch.logical_not),
)
task.fault(
    "M-SHAPE-BT",
    "One row of True and False for each sentence, (b k), is a complete mask.",
    "An attention reads two axes as (q k): one row for each *query*. It fails unless there are as "
    "many sentences as queries, and then it mixes up who may see what.",
    section="source-mask",
    visible=(if_given(rows), if_given(without_query_axis)),
)
task.fault(
    "C-HEADS-AXIS",
    "The attention has heads, so I give the mask an axis for them.",
    "The attention does that itself. A mask is (q k) or (b q k), with one row for all queries or "
    "one for each, and is handed on as it came.",
    section="source-mask",
    visible=(if_given(lambda mask: mask[:, None] if mask.ndim == 3 else mask)),
)
task.fault(
    "C-FIRST-MASK",
    "One mask serves the whole batch.",
    "The sentences of a batch differ in length: padding begins somewhere else in each. You give "
    "all of them the mask of the first.",
    section="source-mask",
    visible=if_given(first_for_all),
)
task.fault(
    "C-ZEROED-MEMORY",
    "If I set the vectors of the padding to zero, nobody reads them.",
    "A vector of zeros is still an entry: after the projection it has a key, a score and therefore "
    "a weight, which the real words lose. Its key must be hidden.",
    section="source-mask",
    ask=zeroed,
)
task.fault(
    "M-AFTER-SOFTMAX",
    "I let the attention do its work and cross out the hidden weights afterwards.",
    "Then the output was computed with them, and the weights that are left no longer sum to one. A "
    "hidden key must lose before the competition.",
    section="source-mask",
    ask=crossed_out,
)
task.fault(
    "M-TRAIN-ONLY",
    "Padding only exists in training, so the mask is used there only.",
    "A batch is padded whenever several sentences are translated at once. Your answer treats the "
    "same input differently in evaluation.",
    section="source-mask",
    visible=lambda mask, target, memory, attention: mask if attention.training else None,
)
task.fault(
    "C-RESCUED-ROW",
    "A query that may attend to nothing would give NaN, so I open one key for it.",
    "The attention you are given handles such rows. What you opened was hidden for a reason: now "
    "that query reads padding.",
    section="source-mask",
    visible=if_given(one_opened),
)
task.fault(
    "C-OPEN-MASK",
    "I may mend the mask in place, it is only a helper.",
    "The mask belongs to the caller, who uses it again in the next layer and now finds it changed. "
    "And the key that you opened should have stayed hidden.",
    section="source-mask",
    visible=if_given(opened_in_place),
)
task.fault(
    "C-DEAD-OUTPUT",
    "A query that may attend to nothing gets output 0, whatever the attention returns.",
    "Its weights are 0, yes. But behind them the attention still adds the bias of its last layer, "
    "and that result is yours to hand on, not to correct.",
    results=lambda output, weights, target, mask: (
        output if mask is None else output * mask.any(-1, keepdim=True),
        weights,
    ),
)

# --- faults: what is left behind, and returned --------------------------------------------------


def switched(attention, query, key, value, mask):
    attention.eval()
    return attention(query, key, value, mask)


def left_in_training(attention, query, key, value, mask):
    pair = attention.eval()(query, key, value, mask)
    attention.train()
    return pair


def mean_of_heads(output, weights, target, mask):
    return output, weights.mean(1)


task.fault(
    "C-SWITCHES-MODE",
    "An attention has to be in evaluation mode to give clean weights.",
    "Mode is the caller's decision. After your call the attention stays in evaluation mode, and "
    "from then on a training loop trains without dropout.",
    ask=switched,
)
task.fault(
    "C-TRAIN-KEPT",
    "I switch the attention to evaluation mode, and afterwards back to training mode.",
    "*Back* is only right if it was in training mode before. Mode is the caller's decision, and "
    "nothing here needs another one.",
    ask=left_in_training,
)
task.fault(
    "H-AVG-WEIGHTS",
    "One table of weights is enough, so I average over the heads.",
    "Each head asks a question of its own, and an average is an answer to none of them. Return the "
    "weights as the attention gives them.",
    results=mean_of_heads,
)
task.fault(
    "C-FIRST-HEAD",
    "One table of weights is enough, so I return that of the first head.",
    "Each head asks a question of its own, and the first one speaks for none of the others. Return "
    "the weights as the attention gives them.",
    results=lambda output, weights, target, mask: (output, weights[:, 0]),
)
task.fault(
    "C-RESIDUAL-INSIDE",
    "Every part of a Transformer adds its input again, so I do it here.",
    "It does, but the decoder layer around this function adds it. Done in both places, the input "
    "counts twice.",
    section="residual-connection",
    results=(
        lambda output, weights, target, mask: (target + output, weights),
        lambda output, weights, target, mask: (
            F.layer_norm(target + output, target.shape[-1:]),
            weights,
        ),
    ),
)
task.fault(
    "C-OUTPUT-ONLY",
    "The output is the result; the weights are only an intermediate step.",
    "The weights are what you look at to see where the model looks, so they are returned, too: a "
    "pair.",
    results=lambda output, weights, target, mask: output,
)
task.fault(
    "C-PAIR-TURNED",
    "Weights come first, since they are computed first.",
    "The order of a pair is an agreement: output first, weights second, as in every attention of "
    "this course.",
    results=lambda output, weights, target, mask: (weights, output),
)
task.fault(
    "C-FLOAT32",
    "Networks compute in float32, so the result is turned into it.",
    "The caller chose the precision. Of inputs in float64 you return half of the digits.",
    results=lambda output, weights, target, mask: (output.float(), weights.float()),
)
