"""cross_attention."""

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

    `training` puts that attention into training mode; `by_position` passes the mask without its
    name.
    """

    def function(*, target, memory, num_heads, training=False, by_position=False, **rest):
        attention = made(MultiHeadAttention, target.shape[-1], num_heads, training=training)
        asked = Asked(answer, attention.to(target.dtype))
        weights = {f"attention.{name}": rest.pop(name) for name in list(rest) if "." in name}
        masks = tuple(rest.values())
        given = ((target, memory, *masks), {}) if by_position else ((target, memory), rest)
        returned = functional_call(asked, weights, *given)
        if any(part.training != training for part in attention.modules()):
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
    inputs = asked_inputs(rng, b=b, q=q, k=k, mask=mixed_mask(rng, b, 1, k), dtype=torch.float64)
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
        "one target word": asked_inputs(rng, q=1),
        "double": asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 5), dtype=torch.float64),
    }


def cross_small(rng):
    def example(b, q, k, mask=None):
        inputs = asked_inputs(rng, b, q, k, 2, 1, mask)
        return inputs | {
            "target": integers(rng, b, q, 2),
            "memory": integers(rng, b, k, 2),
        }

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
        "Somebody asks, and somebody has the answers. Which of the two sequences is being "
        "written, and which one is looked up?",
        "A key is what an entry is found by, a value what it hands over, so both come from "
        "the same sequence. The mask belongs to that sequence, too.",
        "`attention` takes query, key, value and mask, in this order, and returns the pair "
        "that you should return. Of its first three arguments, two are the same tensor.",
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
    answer.matches(asked_inputs(rng, b=3, dtype=torch.float64))


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
    answer.gradients_match(asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5), training=True))


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
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5), training=True))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "X-WRONG-KV",
    thinks="Only queries and keys see different data; the values stay with the target.",
    why="A key is what an entry is found by, a value what it hands over: both belong to the same "
    "entry. With your values nothing of the source can reach the output.",
    section="whose-values",
)
def values_of_target(target, memory, attention, memory_mask=None):
    return attention(target, memory, target, memory_mask)


@task.fault(
    "C-KEYS-OF-TARGET",
    thinks="Words of the target are compared with each other; the source only gives the values.",
    why="Then nobody looks at the source to decide what to read. A word of the target has to be "
    "compared with the entries it looks up.",
    section="whose-values",
)
def keys_of_target(target, memory, attention, memory_mask=None):
    return attention(target, target, memory, memory_mask)


@task.fault(
    "C-SOURCE-ASKS",
    thinks="The source comes first, so it gives the queries, and the target the keys and values.",
    why="Count the rows: the output should have one for each word that is being written. So who "
    "has to ask?",
)
def source_asks(target, memory, attention, memory_mask=None):
    return attention(memory, target, target, memory_mask)


@task.fault(
    "X-LEAK",
    thinks="Query, key and value are the target, as everywhere in the decoder.",
    why="That is self-attention: the memory is not used at all. Replace the memory, and your "
    "output stays the same.",
    section="three-attentions",
)
def target_asks_itself(target, memory, attention, memory_mask=None):
    return attention(target, target, target, memory_mask)


@task.fault(
    "C-SOURCE-ASKS-ITSELF",
    thinks="The memory is what attention works on, so it plays all three parts.",
    why="That is what the encoder did before. Here somebody new comes and asks: change the "
    "target, and your output stays the same.",
    section="three-attentions",
)
def source_asks_itself(target, memory, attention, memory_mask=None):
    return attention(memory, memory, memory, memory_mask)


@task.fault(
    "C-BOTH-ANSWER",
    thinks="A word should be able to look at the source and at the target, so both are joined.",
    why="The words of the target have had their own attention before. Here every column of the "
    "weights is a word of the source.",
)
def both_answer(target, memory, attention, memory_mask=None):
    joined = torch.cat([memory, target], dim=1)
    if memory_mask is not None:
        shape = torch.broadcast_shapes(memory_mask.shape, (*target.shape[:2], memory.shape[1]))
        visible = torch.ones(*target.shape[:2], target.shape[1], dtype=torch.bool)
        memory_mask = torch.cat([memory_mask.expand(shape), visible], dim=-1)
    return attention(target, joined, joined, memory_mask)


@task.fault(
    "X-NOMASK",
    thinks="Cross-attention needs no mask, because the whole source is known.",
    why="It needs no causal mask. But in a batch short sources are padded, and padding has keys "
    "and values like any word: somebody has to hide them.",
    section="source-mask",
)
def without_mask(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory)


def causal_and_no_padding(target, memory, attention, memory_mask=None):
    mask = torch.ones(target.shape[1], memory.shape[1], dtype=torch.bool).tril()
    return attention(target, memory, memory, mask)


def causal_from_the_end(target, memory, attention, memory_mask=None):
    q, k = target.shape[1], memory.shape[1]
    mask = torch.ones(q, k, dtype=torch.bool).tril(k - q)
    return attention(target, memory, memory, mask if memory_mask is None else mask & memory_mask)


@task.fault(
    "X-CAUSAL",
    thinks="A decoder must not look ahead, so the causal mask applies here, too.",
    why="What it must not see is later words of the *target*. The source is known to its end "
    "before the first word is written, and word order differs between languages.",
    section="source-mask",
    forms=(causal_and_no_padding, causal_from_the_end),
)
def causal_on_the_source(target, memory, attention, memory_mask=None):
    mask = torch.ones(target.shape[1], memory.shape[1], dtype=torch.bool).tril()
    return attention(target, memory, memory, mask if memory_mask is None else mask & memory_mask)


@task.fault(
    "X-TGTMASK",
    thinks="The mask belongs to those who ask, so it runs along the queries.",
    why="A mask hides *keys*, and keys are words of the source. Along the queries it has another "
    "length, and where both lengths agree it hides the wrong words.",
    section="source-mask",
)
def mask_along_the_queries(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, None if memory_mask is None else memory_mask.mT)


@task.fault(
    "M-POLARITY",
    thinks="True in a mask means: hide this.",
    why="Libraries differ, so read the convention first: here True means that a query may attend. "
    "You read what should be hidden, and hide the rest.",
    section="source-mask",
)
def opposite_mask(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, None if memory_mask is None else ~memory_mask)


def first_row_of_mask(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3 and memory_mask.shape[1] == 1:
        memory_mask = memory_mask.squeeze(1)
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "M-SHAPE-BT",
    thinks="One row of True and False for each sentence, (b k), is a complete mask.",
    why="An attention reads two axes as (q k): one row for each *query*. It fails unless there are "
    "as many sentences as queries, and then it mixes up who may see what.",
    section="source-mask",
    forms=(first_row_of_mask,),
)
def mask_without_its_query_axis(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3:
        memory_mask = memory_mask[:, 0]
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "C-FIRST-MASK",
    thinks="One mask serves the whole batch.",
    why="The sentences of a batch differ in length: padding begins somewhere else in each. You "
    "give all of them the mask of the first.",
    section="source-mask",
)
def mask_of_first_sentence(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3:
        memory_mask = memory_mask[:1].expand_as(memory_mask)
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "C-ZEROED-MEMORY",
    thinks="If I set the vectors of the padding to zero, nobody reads them.",
    why="A vector of zeros is still an entry: after the projection it has a key, a score and "
    "therefore a weight, which the real words lose. Its key must be hidden.",
    section="source-mask",
)
def zeros_instead_of_mask(target, memory, attention, memory_mask=None):
    if memory_mask is not None and memory_mask.ndim == 3 and memory_mask.shape[1] == 1:
        return attention(target, memory.masked_fill(~memory_mask.mT, 0.0), memory * memory_mask.mT)
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "M-AFTER-SOFTMAX",
    thinks="I let the attention do its work and cross out the hidden weights afterwards.",
    why="Then the output was computed with them, and the weights that are left no longer sum to "
    "one. A hidden key must lose before the competition.",
    section="source-mask",
)
def masked_afterwards(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory)
    if memory_mask is not None:
        weights = weights * (memory_mask if memory_mask.ndim == 2 else memory_mask[:, None])
    return output, weights


@task.fault(
    "M-TRAIN-ONLY",
    thinks="Padding only exists in training, so the mask is used there only.",
    why="A batch is padded whenever several sentences are translated at once. Your answer treats "
    "the same input differently in evaluation.",
    section="source-mask",
)
def mask_in_training_only(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask if attention.training else None)


@task.fault(
    "C-RESCUED-ROW",
    thinks="A query that may attend to nothing would give NaN, so I open one key for it.",
    why="The attention you are given handles such rows. What you opened was hidden for a reason: "
    "now that query reads padding.",
    section="source-mask",
)
def opened_for_dead_rows(target, memory, attention, memory_mask=None):
    if memory_mask is not None:
        memory_mask = memory_mask.clone()
        memory_mask[..., 0] |= ~memory_mask.any(-1)
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "C-DEAD-OUTPUT",
    thinks="A query that may attend to nothing gets output 0, whatever the attention returns.",
    why="Its weights are 0, yes. But behind them the attention still adds the bias of its last "
    "layer, and that result is yours to hand on, not to correct.",
)
def zeros_for_dead_rows(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    if memory_mask is not None:
        output = output * memory_mask.any(-1, keepdim=True)
    return output, weights


@task.fault(
    "C-OPEN-MASK",
    thinks="I may mend the mask in place, it is only a helper.",
    why="The mask belongs to the caller, who uses it again in the next layer and now finds it "
    "changed. And the key that you opened should have stayed hidden.",
    section="source-mask",
)
def mask_in_place(target, memory, attention, memory_mask=None):
    if memory_mask is not None:
        memory_mask[..., 0] = True
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "H-AVG-WEIGHTS",
    thinks="One table of weights is enough, so I average over the heads.",
    why="Each head asks a question of its own, and an average is an answer to none of them. "
    "Return the weights as the attention gives them.",
)
def averaged_heads(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return output, weights.mean(1)


@task.fault(
    "H-BATCH-FIRST",
    thinks="Attention layers want the word axis first, so I turn the inputs and turn back.",
    why="Some libraries do; this course is batch-first everywhere. Turned around, each sentence "
    "looks at the other sentences of its batch.",
)
def words_first(target, memory, attention, memory_mask=None):
    memory = memory.transpose(0, 1)
    output, weights = attention(target.transpose(0, 1), memory, memory, memory_mask)
    return output.transpose(0, 1), weights


def residual_and_norm(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return F.layer_norm(target + output, target.shape[-1:]), weights


@task.fault(
    "C-RESIDUAL-INSIDE",
    thinks="Every part of a Transformer adds its input again, so I do it here.",
    why="It does, but the decoder layer around this function adds it. Done in both places, the "
    "input counts twice.",
    section="residual-connection",
    forms=(residual_and_norm,),
)
def residual_inside(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return target + output, weights


@task.fault(
    "C-NORMALIZED-MEMORY",
    thinks="What goes into an attention has to be normalized, the memory as well.",
    why="The encoder's last norm has done that. This function hands over what it was given; "
    "whoever calls it decides about norms.",
    section="layer-normalization",
)
def normalized_memory(target, memory, attention, memory_mask=None):
    memory = F.layer_norm(memory, memory.shape[-1:])
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "C-SCALED-TWICE",
    thinks="Scores have to be divided by a root, so I shrink the queries first.",
    why="The attention scales its scores itself. Scaled twice, the weights become flatter than "
    "they should be.",
)
def scaled_twice(target, memory, attention, memory_mask=None):
    return attention(target / target.shape[-1] ** 0.5, memory, memory, memory_mask)


@task.fault(
    "C-MEMORY-DETACHED",
    thinks="The encoder's result is finished, so no gradient has to go back into it.",
    why="The encoder learns only from what the decoder does with its memory. Cut off here, it "
    "stays as it was at the start.",
    section="whole-transformer",
)
def detached_memory(target, memory, attention, memory_mask=None):
    memory = memory.detach()
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "C-VALUES-DETACHED",
    thinks="Gradients through the keys are enough, the values are only read.",
    why="The output is made of values. Without their gradient the encoder learns where it is "
    "looked at, and hardly what it should say there.",
    section="whole-transformer",
)
def detached_values(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory.detach(), memory_mask)


@task.fault(
    "C-NO-GRADIENT",
    thinks="The numbers are right, so the answer is right.",
    why="The values are, but under `no_grad` nothing arrives where it is needed: neither target "
    "nor memory nor the attention could learn.",
    section="whole-transformer",
)
@torch.no_grad()
def without_gradient(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "C-SWITCHES-MODE",
    thinks="An attention has to be in evaluation mode to give clean weights.",
    why="Mode is the caller's decision. After your call the attention stays in evaluation mode, "
    "and from then on a training loop trains without dropout.",
)
def switches_mode(target, memory, attention, memory_mask=None):
    attention.eval()
    return attention(target, memory, memory, memory_mask)


@task.fault(
    "C-OUTPUT-ONLY",
    thinks="The output is the result; the weights are only an intermediate step.",
    why="The weights are what you look at to see where the model looks, so they are returned, "
    "too: a pair.",
)
def output_only(target, memory, attention, memory_mask=None):
    return attention(target, memory, memory, memory_mask)[0]


@task.fault(
    "C-PAIR-TURNED",
    thinks="Weights come first, since they are computed first.",
    why="The order of a pair is an agreement: output first, weights second, as in every attention "
    "of this course.",
)
def pair_turned(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return weights, output


@task.fault(
    "C-FLOAT32",
    thinks="Networks compute in float32, so the result is turned into it.",
    why="The caller chose the precision. Of inputs in float64 you return half of the digits.",
)
def in_float32(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory, memory_mask)
    return output.float(), weights.float()
