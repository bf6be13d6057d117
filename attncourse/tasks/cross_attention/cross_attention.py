import inspect

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from attncourse import cross_attention as reference
from attncourse.checks.answer import Failure, compare, following, moves_nothing, shape_of
from attncourse.checks.inputs import dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, weights_of
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.multihead import MultiHeadAttention
from attncourse.tasks.cross_attention import appended, dead_rows_are_right, like, turned


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


def with_an_ear(answer):
    """The answer as a function that says who asks, and who is asked."""

    def function(*, target, memory, num_heads, **rest):
        attention, heard = made(MultiHeadAttention, target.shape[-1], num_heads), []
        call = inspect.signature(attention.forward).bind

        def listen(module, given, named):
            heard[:] = [call(*given, **named).arguments]

        attention.register_forward_pre_hook(listen, with_kwargs=True)
        answer(target, memory, attention)
        if not heard:
            raise Unusable("never calls the attention")
        roles = {"query": target, "key": memory, "value": memory}
        return tuple(torch.equal(heard[0][role], words) for role, words in roles.items())

    return function


def cross_traits(answer):
    inputs = asked_inputs(torch.Generator().manual_seed(0), q=4, k=4)
    found = answer.observe(inputs, adapt=with_an_ear).returned
    who = ("the target asks", "the memory is compared", "the memory is mixed")
    return dict(zip(who, found or (), strict=False))


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
        "padding, as many words": asked_inputs(rng, b=3, q=5, mask=mixed_mask(rng, 3, 1, 5)),
        "square mask": asked_inputs(rng, q=4, k=4, mask=mixed_mask(rng, 4, 4)),
        "mask": asked_inputs(rng, q=4, mask=mixed_mask(rng, 2, 4, 5)),
        "dead row": asked_inputs(rng, mask=dead_mask(rng, 2, 3, 5)),
        "training": asked_inputs(rng, q=5, mask=mixed_mask(rng, 2, 1, 5), training=True),
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
    probes=cross_probes,
    adapt=with_an_attention,
    differentiated=("plain", "padding", "dead row"),
    small=cross_small,
    maps=cross_maps,
    traits=cross_traits,
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


@task.check(1, "the order of the memory does not matter, its content does")
def the_order_of_the_memory_does_not_matter_its_content_does(answer, rng):
    inputs = asked_inputs(rng, q=5, k=5)
    shuffled = dict(inputs, memory=inputs["memory"].flip(1))
    compare("output with the memory in another order", answer(shuffled)[0], answer(inputs)[0])
    other = dict(inputs, memory=normal(rng, 2, 5, 6))
    if (answer(other)[0] - answer(inputs)[0]).abs().max() < 1e-3:
        raise Failure(
            "Another memory gives the same output: your answer does not read the memory.", inputs
        )


@task.check(1)
def the_result_is_right_where_the_source_is_padded(answer, rng):
    inputs = asked_inputs(rng)
    longer = appended(inputs, 5 * normal(rng, 2, 3, 6))
    compare("output with padding behind the source", answer(longer)[0], answer(inputs)[0], longer)
    answer.matches(asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 1, 5)))
    answer.matches(asked_inputs(rng, b=4, q=4, mask=mixed_mask(rng, 4, 1, 5)))
    answer.matches(asked_inputs(rng, b=4, q=4, k=4, m=4, mask=mixed_mask(rng, 4, 1, 4)))
    answer.matches(hidden_giants(rng))


@task.check(1)
def the_result_is_right_with_a_mask_of_any_kind(answer, rng):
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 3, 5)))
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 3, 5)))
    answer.matches(asked_inputs(rng, b=4, q=4, k=4, mask=mixed_mask(rng, 4, 4, 4)))
    answer.matches(asked_inputs(rng, q=4, k=4, mask=mixed_mask(rng, 4, 4)))
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5)))
    answer.matches(asked_inputs(rng, mask=torch.ones(2, 1, 5, dtype=torch.bool)))
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 3, 5), by_position=True))
    answer.matches(asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 5), dtype=torch.float64))


@task.check(1, "the gradients of target, memory and attention are right")
def the_gradients_of_target_memory_and_attention_are_right(answer, rng):
    answer.gradients_match(asked_inputs(rng))
    answer.gradients_match(asked_inputs(rng, b=3, q=4))


def right_with_live_masks(answer):
    """Assert that masks count where every query may attend to something."""
    rng = torch.Generator().manual_seed(0)
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 3, 5)))
    answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5)))


@task.check(1)
def the_result_is_right_where_a_query_may_attend_to_nothing(answer, rng):
    empty = mixed_mask(rng, 3, 1, 5)
    empty[1] = False
    dead = asked_inputs(rng, mask=dead_mask(rng, 2, 3, 5)), asked_inputs(rng, b=3, q=1, mask=empty)
    usual = asked_inputs(torch.Generator().manual_seed(0))
    dead_rows_are_right(answer, dead, usual, lambda: right_with_live_masks(answer))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, asked_inputs(rng))
    moves_nothing(answer, asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5)))
    live = asked_inputs(rng, mask=mixed_mask(rng, 2, 3, 5))
    with following(lambda: answer(live)):
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

    def prepare(attention):
        pass

    def leave(attention):
        pass

    def roles(target, memory):
        return target, memory, memory

    def ask(attention, query, key, value, mask):
        return attention(query, key, value, mask)

    def finish(output, target, mask):
        return output

    def shown(weights):
        return weights

    def results(output, weights):
        return output, weights

    def __call__(self, target, memory, attention, memory_mask=None):
        target, memory = self.enters(target, memory)
        mask = self.visible(memory_mask, target, memory, attention)
        self.prepare(attention)
        output, weights = self.ask(attention, *self.roles(target, memory), mask)
        self.leave(attention)
        return self.results(self.finish(output, target, mask), self.shown(weights))


# --- faults: who asks whom ----------------------------------------------------------------------

task.fault(
    "X-WRONG-KV", section="whose-values", roles=lambda target, memory: (target, memory, target)
)
task.fault(
    "C-KEYS-OF-TARGET",
    section="whose-values",
    roles=lambda target, memory: (target, target, memory),
)
task.fault("C-SOURCE-ASKS", roles=lambda target, memory: (memory, target, target))
task.fault(
    "X-LEAK", section="three-attentions", roles=lambda target, memory: (target, target, target)
)
task.fault(
    "C-SOURCE-ASKS-ITSELF",
    section="three-attentions",
    roles=lambda target, memory: (memory, memory, memory),
)
task.fault("C-ARGUMENT-ORDER", roles=lambda target, memory: (memory, memory, target))


def joined(target, memory):
    both = torch.cat([memory, target], dim=1)
    return target, both, both


def joined_mask(mask, target, memory, attention):
    if mask is None:
        return None
    shape = torch.broadcast_shapes(mask.shape, (*target.shape[:2], memory.shape[1]))
    visible = torch.ones(*target.shape[:2], target.shape[1], dtype=torch.bool)
    return torch.cat([mask.expand(shape), visible], dim=-1)


task.fault("C-BOTH-ANSWER", roles=joined, visible=(joined_mask, ...))


@task.fault("H-BATCH-FIRST")
class WordsFirst(CrossAttention):
    def enters(target, memory):
        return target.transpose(0, 1), memory.transpose(0, 1)

    def finish(output, target, mask):
        return output.transpose(0, 1)


task.fault(
    "C-NORMALIZED-MEMORY",
    section="layer-normalization",
    enters=(
        lambda target, memory: (target, F.layer_norm(memory, memory.shape[-1:])),
        lambda target, memory: [F.layer_norm(x, x.shape[-1:]) for x in (target, memory)],
    ),
)
task.fault(
    "C-SCALED-TWICE", enters=lambda target, memory: (target / target.shape[-1] ** 0.5, memory)
)
task.fault(
    "C-MEMORY-DETACHED",
    section="whole-transformer",
    enters=lambda target, memory: (target, memory.detach()),
)
task.fault(
    "C-VALUES-DETACHED",
    section="whole-transformer",
    roles=lambda target, memory: (target, memory, memory.detach()),
)

task.fault(
    "C-KEYS-DETACHED",
    section="whole-transformer",
    roles=lambda target, memory: (target, memory.detach(), memory),
)


@task.fault("C-NO-GRADIENT", section="whole-transformer")
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


def all_opened(mask):
    return mask | ~mask.any(-1, keepdim=True)


def opened_in_place(mask):
    mask[..., 0] = True
    return mask


def triangle(target, memory, from_the_end):
    q, k = target.shape[1], memory.shape[1]
    return torch.ones(q, k, dtype=torch.bool).tril(from_the_end * (k - q))


def causal(from_the_end, instead=False):
    """A triangle beside the mask, or instead of one that is not given."""

    def visible(mask, target, memory, attention):
        before = triangle(target, memory, from_the_end)
        return before if mask is None else mask if instead else before & mask

    return visible


def zeroed(attention, query, key, value, mask):
    if mask is None or mask.ndim == 2 or mask.shape[1] > 1:
        return attention(query, key, value, mask)
    return attention(query, key * mask.mT, value * mask.mT)


def zeroed_instead(attention, query, key, value, mask):
    """The same, and no mask of any kind reaches the attention."""
    if mask is None or mask.ndim == 2 or mask.shape[1] > 1:
        return attention(query, key, value)
    return attention(query, key * mask.mT, value * mask.mT)


def crossed_out(attention, query, key, value, mask):
    output, weights = attention(query, key, value)
    if mask is None:
        return output, weights
    return output, weights * (mask if mask.ndim == 2 else mask[:, None])


task.fault(
    "X-NOMASK",
    section="source-mask",
    ask=lambda attention, query, key, value, mask: attention(query, key, value),
)
task.fault(
    "M-IF-MASK", section="source-mask", visible=if_given(lambda mask: mask if mask else None)
)
task.fault(
    "X-CAUSAL",
    section="source-mask",
    visible=(
        lambda mask, target, memory, attention: triangle(target, memory, False),
        causal(from_the_end=True),
        causal(from_the_end=False),
        causal(from_the_end=False, instead=True),
        causal(from_the_end=True, instead=True),
    ),
)
task.fault("X-TGTMASK", section="source-mask", visible=if_given(lambda mask: mask.mT))
task.fault("M-POLARITY", section="source-mask", visible=if_given(torch.logical_not))
task.fault(
    "M-SHAPE-BT", section="source-mask", visible=(if_given(rows), if_given(without_query_axis))
)
task.fault(
    "C-HEADS-AXIS",
    section="source-mask",
    visible=(
        if_given(lambda mask: mask[:, None] if mask.ndim == 3 else mask),
        if_given(lambda mask: mask[:, None]),
    ),
)
task.fault(
    "C-MASK-EXPANDED",
    section="source-mask",
    visible=(
        lambda mask, target, *_: None if mask is None else mask.expand(-1, target.shape[1], -1),
        lambda mask, target, *_: None if mask is None else mask.repeat(1, target.shape[1], 1),
    ),
)
task.fault("M-ONE-ROW", section="source-mask", visible=if_given(lambda mask: mask[..., :1, :]))
task.fault(
    "C-FIRST-MASK",
    section="source-mask",
    visible=(if_given(first_for_all), if_given(lambda mask: mask[:1])),
)
task.fault(
    "C-ANY-QUERY",
    section="source-mask",
    visible=if_given(lambda mask: mask.any(-2, keepdim=True)),
)
task.fault("C-ZEROED-MEMORY", section="source-mask", ask=(zeroed, zeroed_instead))
task.fault("M-AFTER-SOFTMAX", section="source-mask", ask=crossed_out)
task.fault(
    "M-TRAIN-ONLY",
    section="source-mask",
    visible=lambda mask, target, memory, attention: mask if attention.training else None,
)
task.fault(
    "C-RESCUED-ROW", section="source-mask", visible=(if_given(one_opened), if_given(all_opened))
)
task.fault("C-OPEN-MASK", section="source-mask", visible=if_given(opened_in_place))
task.fault(
    "C-DEAD-OUTPUT",
    finish=lambda output, target, mask: (
        output if mask is None else output * mask.any(-1, keepdim=True)
    ),
)

# --- faults: what is left behind, and returned --------------------------------------------------


task.fault("C-SWITCHES-MODE", prepare=lambda attention: attention.eval())
task.fault(
    "C-TRAIN-KEPT",
    prepare=lambda attention: attention.eval(),
    leave=lambda attention: attention.train(),
)
task.fault("H-AVG-WEIGHTS", shown=lambda weights: weights.mean(1))
task.fault("C-FIRST-HEAD", shown=lambda weights: weights[:, 0])
task.fault(
    "C-RESIDUAL-INSIDE",
    section="residual-connection",
    finish=(
        lambda output, target, mask: target + output,
        lambda output, target, mask: F.layer_norm(target + output, target.shape[-1:]),
    ),
)
task.fault(
    "C-NORMALIZED-OUTPUT",
    section="layer-normalization",
    finish=lambda output, target, mask: F.layer_norm(output, output.shape[-1:]),
)
task.fault("C-WEIGHTS-DETACHED", shown=torch.detach)
task.fault("C-OUTPUT-ONLY", results=lambda output, weights: output)
task.fault("C-PAIR-TURNED", results=lambda output, weights: (weights, output))
task.fault("C-FLOAT32", results=lambda output, weights: (output.float(), weights.float()))
