"""DecoderLayer."""

import torch
import torch.nn.functional as F
from torch import nn

from attncourse import cross_attention as reference
from attncourse.checks.answer import Failure, Unanswered, compare, moves_nothing, shape_of
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, parts_of, weights_of, with_weights
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.multihead import MultiHeadAttention
from attncourse.tasks.cross_attention import appended, like, turned

SIZES = ("model_width", "num_heads", "hidden_width")


def layer_as_function(cls):
    """The layer as a function of sizes, inputs and weights.

    `training` switches it to training mode, `by_position` passes the masks without their names,
    and `earlier_target` and `earlier_memory` are what the same layer has seen in a call before.
    """

    def function(*, target, memory, target_mask=None, memory_mask=None, **rest):
        training, by_position = rest.pop("training", False), rest.pop("by_position", False)
        sizes = [rest.pop(size) for size in SIZES]
        if cls is reference.DecoderLayer:  # it keeps nothing between calls
            layer = like(cls, *sizes).train(training)
        else:
            layer = made(cls, *sizes, training=training)
            if target.dtype != torch.float32:
                layer = layer.to(target.dtype)
        earlier = [rest.pop(name) for name in ("earlier_target", "earlier_memory") if name in rest]
        has = dict(layer.named_parameters(remove_duplicate=False))
        if "norm1.weight" not in has:
            # Not begun (then it returns None), or a ready-made layer: the search for short cuts
            # has to see what it calls. What it lacks is said below.
            returned = layer(target, memory)
            if not any(True for _ in layer.parameters()):
                return returned
        for name in rest:
            if name not in has:
                raise Unusable(f"lacks `{name}`; the task says how the parts are called")
        if earlier:
            with_weights(layer, rest, *earlier)
        if by_position:
            return with_weights(layer, rest, target, memory, target_mask, memory_mask)
        masks = {"target_mask": target_mask, "memory_mask": memory_mask}
        given = {name: mask for name, mask in masks.items() if mask is not None}
        return with_weights(layer, rest, target, memory, **given)

    return function


def layer_inputs(
    rng, b=2, q=3, k=5, m=6, h=2, hidden=7, target_mask=None, memory_mask=None,
    dtype=torch.float32, **others,
):  # fmt: skip
    weights = weights_of(like(reference.DecoderLayer, m, h, hidden), rng, dtype)
    for name in weights:
        if name.startswith("norm") and name.endswith("weight"):
            weights[name] = 1 + weights[name] / 2  # three norms that can be told apart
    return {
        "target": normal(rng, b, q, m, dtype=dtype),
        "memory": normal(rng, b, k, m, dtype=dtype),
        "target_mask": target_mask,
        "memory_mask": memory_mask,
        "model_width": m,
        "num_heads": h,
        "hidden_width": hidden,
        **weights,
        **others,
    }


def second_call(rng, **options):
    inputs = layer_inputs(rng, **options)
    for name in ("target", "memory"):
        inputs[f"earlier_{name}"] = normal(rng, *inputs[name].shape)
    return inputs


def both_masks(rng, b=2, q=3, k=5, **options):
    masks = {"target_mask": causal(q), "memory_mask": mixed_mask(rng, b, 1, k)}
    return layer_inputs(rng, b=b, q=q, k=k, **masks, **options)


def own_target_masks(rng, b=2, q=4):
    """(b q q), causal and different for each sentence; every word sees itself."""
    return causal(q) & (mixed_mask(rng, b, q, q) | torch.eye(q, dtype=torch.bool))


def parts_of_layer(answer) -> dict[str, tuple]:
    """Names and shapes of the layer's parameters; a Failure if it cannot be made."""
    seen = answer.observe(dict(zip(SIZES, (6, 2, 7), strict=True)), adapt=parts_of)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        where = f" ({seen.error_line})" if seen.error_line else ""
        raise Failure(f"Your answer {seen.error}{where}")
    return dict(seen.returned)


def remembers(answer) -> bool:
    """Whether a call before changes the result of this one."""
    inputs = second_call(torch.Generator().manual_seed(0))
    alone = {name: value for name, value in inputs.items() if not name.startswith("earlier")}
    one, two = answer.observe(inputs), answer.observe(alone)
    if one.error or two.error:
        return bool(one.error) != bool(two.error)
    tensors = isinstance(one.returned, torch.Tensor) and isinstance(two.returned, torch.Tensor)
    return tensors and not torch.equal(one.returned, two.returned)


def layer_probes(rng):
    """Few, and each for several things at once: a layer takes ten times as long as a function."""
    return {
        "plain": layer_inputs(rng),
        "all equal": layer_inputs(rng, b=4, q=4, k=4, m=4, h=4, hidden=4),
        "causal": layer_inputs(rng, q=4, target_mask=causal(4)),
        "padding, double": layer_inputs(
            rng, b=3, memory_mask=mixed_mask(rng, 3, 1, 5), dtype=torch.float64
        ),
        "both masks": both_masks(rng),
        "equal lengths, by position": both_masks(rng, b=4, q=4, k=4, by_position=True),
        "training": both_masks(rng, training=True),
        "dead rows": layer_inputs(
            rng, target_mask=dead_mask(rng, 2, 3, 3), memory_mask=dead_mask(rng, 2, 3, 5)
        ),
        "second call": second_call(rng),
    }


def layer_traits(answer):
    """Whether the layer goes on with an attention's pair as if it were one tensor."""
    error = answer.observe(layer_inputs(torch.Generator().manual_seed(0))).error
    return {"takes a pair for a tensor": "tuple" in (error or "")}


def layer_small(rng):
    def example(b, q, k, **masks):
        inputs = layer_inputs(rng, b, q, k, 2, 1, 2, **masks)
        return inputs | {"target": integers(rng, b, q, 2), "memory": integers(rng, b, k, 2)}

    for b, q, k in ((1, 1, 1), (1, 1, 2), (1, 2, 2), (1, 2, 3), (2, 2, 2)):
        yield example(b, q, k)
        yield example(b, q, k)
    yield example(1, 2, 2, target_mask=causal(2))
    yield example(1, 2, 3, target_mask=causal(2))
    yield example(1, 1, 2, memory_mask=torch.tensor([[[True, False]]]))
    yield example(2, 2, 2, memory_mask=torch.tensor([[[True, False]], [[True, True]]]))
    both = {"target_mask": causal(2), "memory_mask": torch.tensor([[[True, True, False]]])}
    yield example(1, 2, 3, **both)
    yield example(1, 2, 3, **both) | {"by_position": True}
    yield example(1, 2, 3, **both) | {"training": True}
    yield example(1, 2, 2, target_mask=torch.tensor([[True, False], [False, False]]))
    yield example(1, 2, 2, memory_mask=torch.tensor([[True, False], [False, False]]))
    for _ in range(3):
        yield layer_inputs(rng, 1, 2, 2, 4, 2, 3)


def layer_maps(rng):
    words = {"q": 3, "k": 3, "m": 4}
    masks = {
        "target_mask": causal(3),
        "memory_mask": torch.tensor([[[True, True, True]], [[True, False, False]]]),
    }
    title = "two sentences of three words, causal mask and padding in the second source"
    return [
        (title, layer_inputs(rng, **words, **masks), ("target",)),
        (title, layer_inputs(rng, **words, **masks), ("memory",)),
    ]


def extreme_layer(rng, size):
    """Numbers of `size` in target and memory, large ones between the linear layers.

    In float64, so that a score of a million is exact.
    """
    inputs = both_masks(rng, b=2, q=4, k=5, dtype=torch.float64)
    inputs["target"] *= size
    inputs["memory"] *= size
    inputs["linear1.weight"] *= 100
    return inputs


task = Task(
    reference.DecoderLayer,
    number=2,
    returns=("output",),
    difficulty=3,
    minutes=35,
    section="decoder-layer",
    hints=(
        "A word of the target does three things, one after the other: it asks the words "
        "before it, it asks the source, it thinks for itself. Draw the three, and around each "
        "of them the sum.",
        "Pre-norm: x + part(norm(x)), three times, each with its own norm, each starting from "
        "what the one before returned. In the second part only the question is normalized: "
        "the memory is taken as it comes. And which of the two masks hides words of the "
        "target, which words of the source?",
        "normed = self.norm1(target); target = target + self.self_attention(normed, normed, "
        "normed, target_mask)[0]. The second part is the same with norm2 and "
        "cross_attention, but its keys and values are `memory`, as it came. The third is "
        "linear2 of the ReLU of linear1 of norm3.",
    ),
    probes=layer_probes,
    adapt=layer_as_function,
    differentiated=("plain",),
    small=layer_small,
    maps=layer_maps,
    traits=layer_traits,
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def its_parts_have_the_names_of_the_task(answer, rng):
    has, layer = parts_of_layer(answer), like(reference.DecoderLayer, 6, 2, 7)
    if not has:
        answer(layer_inputs(rng))
    for name, parameter in layer.named_parameters():
        if name not in has:
            there = sorted({other.rsplit(".", 1)[0] for other in has}) or ["none at all"]
            raise Failure(
                f"There is no `{name}`; the layer's parts are: {', '.join(there)}. The names "
                "belong to the task, so that weights can be copied."
            )
        if has[name] != parameter.shape:
            raise Failure(
                f"With DecoderLayer(6, 2, 7), `{name}` has shape "
                f"{shape_of(torch.empty(has[name]))}; expected {shape_of(parameter)}."
            )


@task.check(1)
def every_target_word_keeps_its_place_and_its_width(answer, rng):
    for inputs in (layer_inputs(rng), layer_inputs(rng, b=3, q=7, k=2, m=8, h=4)):
        output, target = answer(inputs), inputs["target"]
        if output.shape != target.shape:
            raise Failure(
                f"The output has shape {shape_of(output)}; the target came with "
                f"{shape_of(target)}, and so must the output.",
                inputs,
            )


@task.check(3)
def with_the_same_weights_it_gives_the_same_output(answer, rng):
    answer.matches(layer_inputs(rng))
    answer.matches(layer_inputs(rng, b=3, q=7, k=2, m=8, h=4, hidden=3))
    answer.matches(layer_inputs(rng, b=3, dtype=torch.float64))
    answer.matches(turned(layer_inputs(rng, b=3)))


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    answer.matches(layer_inputs(rng, b=4, q=4, k=4, m=4, h=4, hidden=4))
    answer.matches(both_masks(rng, b=5, q=5, k=5, m=5, h=1, hidden=5))
    answer.matches(layer_inputs(rng, b=1, q=1, k=4))
    answer.matches(layer_inputs(rng, b=3, q=1, k=1, m=1, h=1, hidden=1))


@task.check(1)
def a_word_hears_no_later_word_of_the_target(answer, rng):
    answer.matches(layer_inputs(rng, q=4, target_mask=causal(4)))
    answer.matches(layer_inputs(rng, q=4, target_mask=own_target_masks(rng)))
    answer.matches(both_masks(rng, b=3, q=5, k=5))
    inputs = both_masks(rng, q=4)
    changed = dict(inputs, target=inputs["target"].clone())
    changed["target"][:, 2:] += normal(rng, 2, 2, 6) + 1
    compare(
        "the output for words before the changed one",
        answer(changed)[:, :2],
        answer(inputs)[:, :2],
        inputs,
    )


@task.check(1)
def the_first_word_hears_the_whole_source(answer, rng):
    inputs = layer_inputs(rng, q=4, target_mask=causal(4))
    before = answer(inputs)[:, 0]
    for place in range(5):
        memory = inputs["memory"].clone()
        memory[:, place] += normal(rng, 2, 6) + 1
        after = answer(dict(inputs, memory=memory))[:, 0]
        if (after - before).abs().amax(-1).min() < 1e-6:
            raise Failure(
                f"Source word {place + 1} of 5 has no influence on the first target word.",
                inputs,
            )


@task.check(1)
def padding_of_the_source_changes_nothing(answer, rng):
    inputs = layer_inputs(rng, target_mask=causal(3))
    longer = appended(inputs, 5 * normal(rng, 2, 3, 6))
    compare("output with padding behind the source", answer(longer), answer(inputs), longer)
    answer.matches(layer_inputs(rng, b=3, memory_mask=mixed_mask(rng, 3, 1, 5)))
    answer.matches(both_masks(rng, b=4, q=4, k=4))
    inputs = both_masks(rng, dtype=torch.float64)
    inputs["memory"] *= torch.where(inputs["memory_mask"], 1.0, 1e4).mT
    answer.matches(inputs)


@task.check(1)
def a_mask_may_have_any_kind_and_come_by_position(answer, rng):
    answer.matches(both_masks(rng, by_position=True))
    answer.matches(layer_inputs(rng, memory_mask=mixed_mask(rng, 3, 5), by_position=True))
    answer.matches(layer_inputs(rng, memory_mask=mixed_mask(rng, 2, 3, 5)))
    answer.matches(layer_inputs(rng, target_mask=causal(3), by_position=True))
    everything = torch.ones(2, 1, 5, dtype=torch.bool)
    answer.matches(layer_inputs(rng, memory_mask=everything))


@task.check(1)
def gradients_reach_target_memory_and_every_weight(answer, rng):
    answer.gradients_match(layer_inputs(rng))
    answer.gradients_match(both_masks(rng, q=4, training=True))


@task.check(1)
def a_word_with_nothing_to_attend_to_stays_finite(answer, rng):
    dead = {"target_mask": dead_mask(rng, 2, 3, 3), "memory_mask": dead_mask(rng, 2, 3, 5)}
    answer.matches(layer_inputs(rng, **dead), gradient=True)
    empty = mixed_mask(rng, 3, 1, 5)
    empty[1] = False
    answer.matches(layer_inputs(rng, b=3, q=1, memory_mask=empty), gradient=True)


@task.check(1)
def numbers_of_any_size_are_fine(answer, rng):
    answer.matches(extreme_layer(rng, 1e3))
    answer.matches(extreme_layer(rng, 1e-3))


@task.check(1)
def training_mode_and_earlier_calls_make_no_difference(answer, rng):
    answer.matches(both_masks(rng, training=True))
    answer.matches(layer_inputs(rng, training=True))
    answer.matches(second_call(rng))
    if remembers(answer):
        raise Failure("The result depends on what the same layer saw in an earlier call.")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, layer_inputs(rng))
    moves_nothing(answer, both_masks(rng))
    moves_nothing(answer, both_masks(rng, training=True))


# --- faults ---------------------------------------------------------------------------------------


class Parts(nn.Module):
    """What a decoder layer is made of; the answers below differ in what they do with it."""

    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.norm2 = nn.LayerNorm(model_width)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.norm3 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def ask_target(self, x, mask):
        y = self.norm1(x)
        return x + self.self_attention(y, y, y, mask)[0]

    def ask_memory(self, x, memory, mask):
        return x + self.cross_attention(self.norm2(x), memory, memory, mask)[0]

    def network(self, x):
        return self.linear2(self.linear1(x).relu())

    def think(self, x):
        return x + self.network(self.norm3(x))

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        return self.think(self.ask_memory(x, memory, memory_mask))


class ValuesFromMemoryOnly(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(y, y, memory, mask)[0]


@task.fault(
    "X-WRONG-KV",
    thinks="In cross-attention only two of the three inputs differ from self-attention: query and "
    "key, or query and value.",
    why="Keys and values are two sides of one entry: found by the one, handed over by the other. "
    "Both are words of the source.",
    section="whose-values",
    forms=(ValuesFromMemoryOnly,),
)
class ValuesFromTarget(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(y, memory, y, mask)[0]


@task.fault(
    "C-SOURCE-ASKS",
    thinks="The memory asks the target what it has to deliver.",
    why="Then there is one result for each word of the *source*, and it cannot be added to the "
    "target's. Who is being written asks.",
    section="two-sequences",
)
class SourceAsks(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(memory, y, y, mask)[0]


@task.fault(
    "X-LEAK",
    thinks="The second attention works on the target, like the first.",
    why="Then nothing of the source ever reaches the target, and the target's words are open to "
    "each other behind the causal mask.",
    section="three-attentions",
)
class TargetTwice(Parts):
    def ask_memory(self, x, memory, mask):
        y = self.norm2(x)
        return x + self.cross_attention(y, y, y)[0]


@task.fault(
    "C-NO-CROSS",
    thinks="A decoder layer is an encoder layer with a causal mask.",
    why="In a language model, yes. In a translator it has a third part in the middle, the only "
    "way from the source to the target.",
)
class NoCrossAttention(Parts):
    def ask_memory(self, x, memory, mask):
        return x


@task.fault(
    "C-NO-SELF",
    thinks="The source holds all the information, so the target only asks the source.",
    why="What was written before decides what comes next: behind *quatre* may stand *cent* or "
    "*vingt*. Words of the target have to hear the words before them.",
)
class NoSelfAttention(Parts):
    def ask_target(self, x, mask):
        return x


@task.fault(
    "C-NO-NETWORK",
    thinks="After both attentions the word knows everything, so the layer is done.",
    why="Attention only mixes vectors. The third part, two linear layers with a ReLU between "
    "them, works on what the mixing brought, word by word.",
    section="feed-forward",
)
class NoNetwork(Parts):
    def think(self, x):
        return x


@task.fault(
    "C-ASKS-UNCHANGED",
    thinks="The question to the source is the target as it came in.",
    why="It is the target *after* the first part: with what a word has heard from the words "
    "before it, it knows better what to ask.",
)
class AsksUnchanged(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = x + self.cross_attention(self.norm2(target), memory, memory, memory_mask)[0]
        return self.think(x)


@task.fault(
    "X-NOMASK",
    thinks="Cross-attention is unmasked: the decoder may see all of the source.",
    why="All *words* of the source. In a batch it also contains padding, which has keys and "
    "values, and takes weight unless `memory_mask` hides it.",
    section="source-mask",
)
class NoMemoryMask(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, memory, None)


@task.fault(
    "C-NO-TARGET-MASK",
    thinks="The target that is handed in has been written already, so nothing has to be hidden.",
    why="In training it is the whole sentence, and a position would read the very word it has to "
    "predict. `target_mask` prevents that.",
    section="three-attentions",
)
class NoTargetMask(Parts):
    def ask_target(self, x, mask):
        return super().ask_target(x, None)


class TargetMaskTwice(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        return self.think(self.ask_memory(x, memory, target_mask))


@task.fault(
    "X-TGTMASK",
    thinks="It does not matter much which of the two masks goes where, if one is there.",
    why="A mask hides keys. In the first attention these are words of the target, in the second "
    "words of the source: each has a mask made for it.",
    section="three-attentions",
    forms=(TargetMaskTwice,),
)
class MasksExchanged(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, memory_mask)
        return self.think(self.ask_memory(x, memory, target_mask))


@task.fault(
    "X-CAUSAL",
    thinks="A decoder must not look ahead, in the source neither.",
    why="The source is known to its end before the first word is written. With a triangle the "
    "first target word sees one source word only.",
)
class CausalOnSource(Parts):
    def ask_memory(self, x, memory, mask):
        triangle = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool).tril()
        return super().ask_memory(x, memory, triangle if mask is None else triangle & mask)


class CausalWithoutMask(Parts):
    def ask_target(self, x, mask):
        if mask is None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return super().ask_target(x, mask)


@task.fault(
    "C-ALWAYS-CAUSAL",
    thinks="A decoder is causal, so the layer makes its triangle itself.",
    why="The caller decides through `target_mask`: without one, every word may see every other. "
    "A triangle of your own cannot be taken away.",
    section="three-attentions",
    forms=(CausalWithoutMask,),
)
class AlwaysCausal(Parts):
    def ask_target(self, x, mask):
        triangle = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return super().ask_target(x, triangle if mask is None else triangle & mask)


class OneModuleTwoNames(Parts):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.cross_attention = self.self_attention


class OnlyCrossAttentionUsed(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        return x + self.cross_attention(y, y, y, mask)[0]


@task.fault(
    "X-REUSE",
    thinks="Attention is attention: one module can do both.",
    why="The mechanism is the same, the projections are not. Asking one's own sentence and asking "
    "another need weights of their own; half of yours never learn.",
    forms=(OneModuleTwoNames, OnlyCrossAttentionUsed),
)
class SelfAttentionForBoth(Parts):
    def ask_memory(self, x, memory, mask):
        return x + self.self_attention(self.norm2(x), memory, memory, mask)[0]


def opposite(mask):
    return None if mask is None else ~mask


class TargetMaskOpposite(Parts):
    def ask_target(self, x, mask):
        return super().ask_target(x, opposite(mask))


class MemoryMaskOpposite(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, memory, opposite(mask))


@task.fault(
    "M-POLARITY",
    thinks="In a mask True marks what has to be hidden.",
    why="In some libraries. In this course True means *may attend*, and the attention you call "
    "reads it so. You show what should be hidden and hide the rest.",
    section="source-mask",
    forms=(TargetMaskOpposite, MemoryMaskOpposite),
)
class MasksOpposite(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        return super().forward(target, memory, opposite(target_mask), opposite(memory_mask))


class TargetMaskInTraining(Parts):
    def ask_target(self, x, mask):
        return super().ask_target(x, mask if self.training else None)


@task.fault(
    "M-TRAIN-ONLY",
    thinks="Masks are for training, where the whole target is known.",
    why="In evaluation the model is often given a whole target, too, and sources are padded as "
    "before. The same input must mean the same in both modes.",
    section="cross-breaks",
    forms=(TargetMaskInTraining,),
)
class MasksInTraining(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        if not self.training:
            target_mask = memory_mask = None
        return super().forward(target, memory, target_mask, memory_mask)


@task.fault(
    "C-MASK-ORDER",
    thinks="Callers use names, so I may put `memory_mask` before `target_mask`.",
    why="The Transformer of this course passes both masks by position, target's first. Then yours "
    "are exchanged without any error.",
)
class MemoryMaskFirst(Parts):
    def forward(self, target, memory, memory_mask=None, target_mask=None):
        return super().forward(target, memory, target_mask, memory_mask)


class PostNormWithoutMemoryMask(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = self.norm1(x + self.self_attention(x, x, x, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory)[0])
        return self.norm3(x + self.network(x))


@task.fault(
    "C-POST-NORM",
    thinks="Normalize after each sum, as in the paper.",
    why="The paper did, and it works with a slow warm-up. Here it is pre-norm: the norm stands in "
    "front of each part, inside the sum.",
    section="layer-normalization",
    forms=(PostNormWithoutMemoryMask,),
)
class PostNorm(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = self.norm1(x + self.self_attention(x, x, x, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory, memory_mask)[0])
        return self.norm3(x + self.network(x))


@task.fault(
    "C-NORM-OF-RESULT",
    thinks="What a part returns is normalized before it is added: x + norm(part(x)).",
    why="Pre-norm normalizes what goes *into* a part. Your parts get sums that nobody has "
    "normalized, and what they return has always the same size.",
    section="layer-normalization",
)
class NormOfResult(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = x + self.norm1(self.self_attention(x, x, x, target_mask)[0])
        x = x + self.norm2(self.cross_attention(x, memory, memory, memory_mask)[0])
        return x + self.norm3(self.network(x))


@task.fault(
    "C-SUM-OF-FIRST",
    thinks="Each part adds to the target as it came into the layer.",
    why="Each adds to what the part before it returned. In your layer the sum around a part "
    "leaves out what the parts before it had added.",
    section="residual-connection",
)
class SumOfFirst(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = target + self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return target + self.network(self.norm3(x))


@task.fault(
    "C-SUM-OF-NORMED",
    thinks="What goes into a part is what is added again behind it: the normalized vector.",
    why="Then nothing of the vector itself gets through the layer, only its normalized shadow. "
    "The line around a part starts *before* the norm.",
    section="residual-connection",
)
class SumOfNormed(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        x = x + self.self_attention(x, x, x, target_mask)[0]
        x = self.norm2(x)
        x = x + self.cross_attention(x, memory, memory, memory_mask)[0]
        x = self.norm3(x)
        return x + self.network(x)


@task.fault(
    "C-NO-SUM-SELF",
    thinks="The first attention replaces each word by what it found.",
    why="What it found is an average of values. Without the sum around the self-attention, a word "
    "no longer has its own vector.",
    section="residual-connection",
)
class NoSumAroundSelfAttention(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        return self.self_attention(y, y, y, mask)[0]


@task.fault(
    "C-NO-SUM-CROSS",
    thinks="The second attention replaces each word by what it found in the source.",
    why="Then what was written so far shows only in how the weights fell. Around the "
    "cross-attention, too, leads a line that adds what was there.",
    section="residual-connection",
)
class NoSumAroundCrossAttention(Parts):
    def ask_memory(self, x, memory, mask):
        return self.cross_attention(self.norm2(x), memory, memory, mask)[0]


@task.fault(
    "C-NO-SUM-NETWORK",
    thinks="The network's output is the layer's output.",
    why="Everything that both attentions brought would have to pass through its narrow ReLU. The "
    "third part adds to the word as well.",
    section="residual-connection",
)
class NoSumAroundNetwork(Parts):
    def think(self, x):
        return self.network(self.norm3(x))


@task.fault(
    "C-NO-SUMS",
    thinks="The parts stand in a row: each takes what the one before returns.",
    why="Averages of averages resemble each other: after a few such layers all words are one "
    "vector. Something has to lead around each part.",
    section="residual-connection",
)
class NoSums(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        x = self.self_attention(y, y, y, target_mask)[0]
        x = self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return self.network(self.norm3(x))


@task.fault(
    "C-ONE-SUM",
    thinks="One residual connection from the layer's input to its end is enough.",
    why="There are three, one around each part, so that the second part sees word and notes of "
    "the first together.",
    section="residual-connection",
)
class OneSum(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        x = self.self_attention(y, y, y, target_mask)[0]
        x = self.cross_attention(self.norm2(x), memory, memory, memory_mask)[0]
        return target + self.network(self.norm3(x))


@task.fault(
    "C-PARALLEL",
    thinks="Three parts, three contributions: all are computed from the same target and added.",
    why="They come one after the other: the question to the source is asked by a word that has "
    "already read what was written before it.",
)
class AllAtOnce(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        first = self.ask_target(x, target_mask) - x
        second = self.ask_memory(x, memory, memory_mask) - x
        return x + first + second + self.network(self.norm3(x))


@task.fault(
    "C-SOURCE-FIRST",
    thinks="The source comes first, then the target looks at itself.",
    why="The other way round: a word reads what was written so far, and with that it knows what "
    "to ask the source.",
)
class SourceFirst(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_memory(target, memory, memory_mask)
        return self.think(self.ask_target(x, target_mask))


@task.fault(
    "C-THINKS-TOO-EARLY",
    thinks="The network stands behind the self-attention, as in the encoder layer.",
    why="It works on what *both* attentions brought, so it comes last. In the middle it cannot "
    "know what the source said.",
)
class NetworkInTheMiddle(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.think(self.ask_target(target, target_mask))
        return self.ask_memory(x, memory, memory_mask)


@task.fault(
    "C-MEMORY-NORMALIZED",
    thinks="Pre-norm means that everything is normalized before an attention, the memory too.",
    why="The encoder's last norm has done that once, for all decoder layers. Here only what asks "
    "is normalized.",
)
class MemoryNormalized(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, self.norm2(memory), mask)


@task.fault(
    "C-QUERY-NORMED-ONLY",
    thinks="In self-attention only the query is normalized.",
    why="All three come from the same vectors, and pre-norm normalizes these before any of the "
    "three projections.",
    section="layer-normalization",
)
class OnlyQueryNormalized(Parts):
    def ask_target(self, x, mask):
        return x + self.self_attention(self.norm1(x), x, x, mask)[0]


@task.fault(
    "C-NO-NORMS",
    thinks="Norms make training easier; the result does not depend on them.",
    why="They belong to what the layer computes: each part works on `norm(x)`. You have made "
    "the three norms, and `forward` does not call them.",
    section="layer-normalization",
)
class NoNorms(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target + self.self_attention(target, target, target, target_mask)[0]
        x = x + self.cross_attention(x, memory, memory, memory_mask)[0]
        return x + self.network(x)


@task.fault(
    "C-NO-NORM1",
    thinks="What comes in has been normalized by the layer before.",
    why="In pre-norm no layer normalizes what it returns: that is a sum, and it grows from layer "
    "to layer. The first attention needs `norm1` like the others theirs.",
    section="layer-normalization",
)
class NoNorm1(Parts):
    def ask_target(self, x, mask):
        return x + self.self_attention(x, x, x, mask)[0]


@task.fault(
    "C-NO-NORM2",
    thinks="The memory is normalized already, so the cross-attention needs no norm.",
    why="The memory is, the question is not: sums are never normalized by themselves. What asks "
    "goes through `norm2` first.",
    section="layer-normalization",
)
class NoNorm2(Parts):
    def ask_memory(self, x, memory, mask):
        return x + self.cross_attention(x, memory, memory, mask)[0]


@task.fault(
    "C-NO-NORM3",
    thinks="Norms are for attention; the network takes the vector as it is.",
    why="By then two sums have been added to it. The network, too, should not have to care how "
    "large they have become.",
    section="layer-normalization",
)
class NoNorm3(Parts):
    def think(self, x):
        return x + self.network(x)


@task.fault(
    "C-ONE-NORM",
    thinks="A norm has hardly any weights, so one can serve all three parts.",
    why="Each part has its own learned scale and shift, for what it needs. Two of your three "
    "norms never learn.",
    section="layer-normalization",
)
class OneNorm(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = x + self.cross_attention(self.norm1(x), memory, memory, memory_mask)[0]
        return x + self.network(self.norm1(x))


@task.fault(
    "C-NORMS-MOVED",
    thinks="Whichever norm stands where makes no difference, they are all the same.",
    why="At the start of training they are. Afterwards each has learned for its own part; with "
    "copied weights, exchanged norms give other numbers.",
    section="layer-normalization",
)
class NormsExchanged(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        x = x + self.cross_attention(self.norm3(x), memory, memory, memory_mask)[0]
        return x + self.network(self.norm2(x))


@task.fault(
    "C-NORM-AT-END",
    thinks="A layer should hand on normalized vectors.",
    why="Then the lines around the parts end at each layer. In pre-norm the sums stay as they "
    "are; one last norm stands behind the last layer.",
    section="layer-normalization",
)
class NormAtTheEnd(Parts):
    def forward(self, *args, **kwargs):
        x = super().forward(*args, **kwargs)
        return F.layer_norm(x, x.shape[-1:])


class NormOverWords(nn.Module):
    """Normalizes a whole sentence at once."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.layer_norm(x, x.shape[1:]) * self.weight + self.bias


class NormOverBatch(NormOverWords):
    """Normalizes each feature over all words of all sentences."""

    def forward(self, x):
        mean, variance = x.mean((0, 1)), x.var((0, 1), correction=0)
        return (x - mean) / (variance + 1e-5).sqrt() * self.weight + self.bias


class NormOfUnbiased(NormOverWords):
    """Divides by the standard deviation as torch computes it by default."""

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        return centered / (x.std(-1, keepdim=True) + 1e-6) * self.weight + self.bias


class NormsOverBatch(Parts):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.norm1, self.norm2, self.norm3 = (NormOverBatch(model_width) for _ in range(3))


@task.fault(
    "C-NORM-OVER-WORDS",
    thinks="Layer normalization uses the mean over the whole layer: all words, all features.",
    why="Then each word hears all others through mean and variance, later ones included, behind "
    "the mask's back. Each word is normalized alone.",
    section="layer-normalization",
    forms=(NormsOverBatch,),
)
class NormsOverWords(Parts):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.norm1, self.norm2, self.norm3 = (NormOverWords(model_width) for _ in range(3))


@task.fault(
    "C-NORM-UNBIASED",
    thinks="A norm subtracts the mean and divides by `x.std(-1)`.",
    why="Nearly. `std` divides by m − 1 where the norm divides by m, and the tiny number belongs "
    "under the root. For short vectors that shows.",
    section="layer-normalization",
)
class UnbiasedNorms(Parts):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.norm1, self.norm2, self.norm3 = (NormOfUnbiased(model_width) for _ in range(3))


@task.fault(
    "C-NO-RELU",
    thinks="Two linear layers in a row are a network.",
    why="Two linear maps in a row are one linear map. Something that bends has to stand between "
    "them.",
    section="feed-forward",
)
class NoReLU(Parts):
    def network(self, x):
        return self.linear2(self.linear1(x))


@task.fault(
    "C-GELU",
    thinks="Modern models bend with GELU or a relative, so I take that.",
    why="A fine choice for a model of your own. Here it is the paper's ReLU, and with copied "
    "weights another bend gives other numbers.",
    section="feed-forward",
)
class GELU(Parts):
    def network(self, x):
        return self.linear2(F.gelu(self.linear1(x)))


class ReLUOnlyBehind(Parts):
    def network(self, x):
        return self.linear2(self.linear1(x)).relu()


@task.fault(
    "C-RELU-BEHIND",
    thinks="Every linear layer has its ReLU behind it.",
    why="Behind the second one it forbids negative numbers, so the network could only ever add "
    "to a word and never take away.",
    section="feed-forward",
    forms=(ReLUOnlyBehind,),
)
class ReLUBehindBoth(Parts):
    def network(self, x):
        return super().network(x).relu()


@task.fault(
    "C-DROPOUT",
    thinks="A Transformer layer has dropout, as in the paper.",
    why="The paper's has, ours has none: the task says so. In training mode your layer gives "
    "other numbers on each call.",
    section="whole-transformer",
)
class Dropout(Parts):
    def think(self, x):
        return x + F.dropout(self.network(self.norm3(x)), 0.1, self.training)


class KeptMask(Parts):
    kept = None

    def ask_target(self, x, mask):
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = super().ask_target(x, mask)
        return self.kept


@task.fault(
    "K-STALE",
    thinks="The memory stays the same while a sentence is written, so I keep it from the first "
    "call.",
    why="The next sentence has another memory. What is kept in the layer answers for a sentence "
    "that nobody is asking about; hand such things in and out instead.",
    section="writing-greedily",
    forms=(KeptMask,),
)
class KeptMemory(Parts):
    kept = None

    def ask_memory(self, x, memory, mask):
        if self.kept is None or self.kept.shape != memory.shape:
            self.kept = memory
        return super().ask_memory(x, self.kept, mask)


@task.fault(
    "C-MEMORY-DETACHED",
    thinks="The encoder is finished when the decoder begins, so its memory needs no gradient.",
    why="It is finished reading, not learning. The only way for the encoder to learn leads "
    "through this layer.",
    section="whole-transformer",
)
class MemoryDetached(Parts):
    def ask_memory(self, x, memory, mask):
        return super().ask_memory(x, memory.detach(), mask)


@task.fault(
    "C-IN-PLACE",
    thinks="`target += …` is a shorter way to write the sum.",
    why="It writes into the caller's own tensor. `x += y` edits, `x = x + y` makes a new one.",
    section="residual-connection",
)
class InPlace(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        x += self.self_attention(y, y, y, mask)[0]
        return x


@task.fault(
    "C-WITH-WEIGHTS",
    thinks="A layer returns its output and the weights, like an attention.",
    why="An attention does. A layer's output goes straight into the next layer, so it is one "
    "tensor; an attention returns a pair, and the layer takes its first half.",
)
class WithWeights(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.ask_target(target, target_mask)
        y, weights = self.cross_attention(self.norm2(x), memory, memory, memory_mask)
        return self.think(x + y), weights


class PairHandedOn(Parts):
    def forward(self, target, memory, target_mask=None, memory_mask=None):
        y = self.norm1(target)
        x = self.self_attention(y, y, y, target_mask)
        return self.think(self.ask_memory(x, memory, memory_mask))


@task.fault(
    "C-PAIR-ADDED",
    thinks="What an attention returns is its output.",
    why="It returns a pair: the output, and the weights beside it. Only the first of the two is "
    "added to the words; as a whole a pair cannot be added.",
    forms=(PairHandedOn,),
)
class PairAdded(Parts):
    def ask_target(self, x, mask):
        y = self.norm1(x)
        return x + self.self_attention(y, y, y, mask)


@task.fault(
    "C-FLOAT32",
    thinks="Layers compute in float32, so the result is turned into it.",
    why="The caller chose the precision of the layer. Of inputs in float64 you return half of "
    "the digits.",
)
class Float32(Parts):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs).float()


class OwnAttention(MultiHeadAttention):
    """Multi-head attention whose ways to split and merge can be changed."""

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def last(self, x):
        return self.out_proj(x)

    def scale(self, d):
        return d**-0.5

    def forward(self, query, key, value, mask=None):
        q = self.split(self.q_proj(query))
        k, v = self.split(self.k_proj(key)), self.split(self.v_proj(value))
        scores = q @ k.mT * self.scale(q.shape[-1])
        if mask is None:
            weights = scores.softmax(-1)
        else:
            mask = mask if mask.ndim == 2 else mask[:, None]
            lowest = torch.finfo(scores.dtype).min
            weights = scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)
        return self.last(self.merge(weights @ v)), weights


class WithOwn(Parts):
    """A decoder layer with another attention inside."""

    attention = OwnAttention

    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__(model_width, num_heads, hidden_width)
        self.self_attention = self.attention(model_width, num_heads)
        self.cross_attention = self.attention(model_width, num_heads)


class ViewSplit(OwnAttention):
    def split(self, x):
        return x.reshape(len(x), self.num_heads, x.shape[1], -1)


class ViewMerge(OwnAttention):
    def merge(self, x):
        return x.reshape(len(x), x.shape[2], -1)


class ViewBoth(ViewSplit, ViewMerge):
    pass


class NoScale(OwnAttention):
    def scale(self, d):
        return 1.0


class ScaleByModelWidth(OwnAttention):
    def scale(self, d):
        return (d * self.num_heads) ** -0.5


class NoLastProjection(OwnAttention):
    def last(self, x):
        return x


class ViewSplitLayer(WithOwn):
    attention = ViewSplit


class ViewMergeLayer(WithOwn):
    attention = ViewMerge


class ViewBothLayer(WithOwn):
    attention = ViewBoth


class ScaleByModelWidthLayer(WithOwn):
    attention = ScaleByModelWidth


class NoScaleLayer(WithOwn):
    attention = NoScale


class NoLastProjectionLayer(WithOwn):
    attention = NoLastProjection


task.fault(
    "H-VIEW-SPLIT",
    thinks="To get heads I reshape to (b, h, n, d) at once: the shape is right.",
    why="The shape is, the content is not: a reshape cuts along the *words*, so one head gets "
    "words that belong to others. Width is cut first, then axes change places.",
    section="three-attentions",
)(ViewSplitLayer)


task.fault(
    "H-VIEW-MERGE",
    thinks="To put the heads back together I reshape to (b, n, m) at once.",
    why="Heads and words still have to change places: as it is, pieces of different words end up "
    "in one vector, later words included.",
    section="three-attentions",
)(ViewMergeLayer)


task.fault(
    "H-VIEW-BOTH",
    thinks="If splitting and merging undo each other, the heads are right.",
    why="They undo each other, yet in between each head had only a part of the *words*. No word "
    "of the target sees all the words it may see.",
    section="three-attentions",
)(ViewBothLayer)


task.fault(
    "D-NO-SCALE",
    thinks="With normalized inputs the scores need no scaling any more.",
    why="The norm keeps the vectors in bounds, but a score still sums over the width of a head. "
    "Without the root, the softmax saturates.",
    section="layer-normalization",
    forms=(ScaleByModelWidthLayer,),
)(NoScaleLayer)


task.fault(
    "H-NO-WO",
    thinks="Merged heads are the output of an attention.",
    why="Behind the merge stands `out_proj`, which mixes what the heads have found. In your layer "
    "it never learns.",
    section="three-attentions",
)(NoLastProjectionLayer)
