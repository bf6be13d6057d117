"""The checks of chapter 7. Each one's name is the sentence a teacher would say."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.func import functional_call

from attncourse import cross_attention as reference
from attncourse.checks.common import (
    causal,
    dead_mask,
    integers,
    made,
    mixed_mask,
    moves_nothing,
    normal,
    parts_of,
    weights_of,
    with_weights,
)
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Failure, Task, Unanswered, compare, shape_of
from attncourse.multihead import MultiHeadAttention

points = pytest.mark.points
like = functools.cache(made)  # modules of which only names and shapes are looked at

# Letters: b sentences, q target words, k source words, m width of a word, h heads.


# --- cross_attention ----------------------------------------------------------------------------


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


def appended(inputs, more):
    """The same source with `more` words behind it that nobody may attend to."""
    b, k = inputs["memory"].shape[:2]
    longer = dict(inputs, memory=torch.cat([inputs["memory"], more], 1))
    longer["memory_mask"] = (torch.arange(k + more.shape[1]) < k).expand(b, 1, -1)
    return longer


def turned(inputs):
    """The same numbers, not contiguous."""
    names = ("target", "memory")
    return dict(inputs, **{name: inputs[name].mT.contiguous().mT for name in names})


class TestCrossAttention:
    task = Task(
        name="cross_attention",
        reference=reference.cross_attention,
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

    @points(1)
    def test_it_returns_an_output_and_the_weights(self, answer, rng):
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

    @points(1)
    def test_the_target_asks_and_the_memory_answers(self, answer, rng):
        answer.matches(asked_inputs(rng))
        answer.matches(asked_inputs(rng, b=3, q=7, k=2, m=9, h=3))
        answer.matches(turned(asked_inputs(rng)))
        answer.matches(asked_inputs(rng, b=3, dtype=torch.float64))

    @points(1)
    def test_equal_sizes_and_sizes_of_one_work(self, answer, rng):
        answer.matches(asked_inputs(rng, q=5, k=5))
        answer.matches(asked_inputs(rng, b=4, q=4, k=4, m=4, h=4))
        answer.matches(asked_inputs(rng, b=1, q=1))
        answer.matches(asked_inputs(rng, b=3, q=1, k=1, m=1, h=1))

    @points(1)
    def test_the_order_of_the_memory_does_not_matter_its_content_does(self, answer, rng):
        inputs = asked_inputs(rng, q=5, k=5)
        shuffled = dict(inputs, memory=inputs["memory"].flip(1))
        compare("output with the memory in another order", answer(shuffled)[0], answer(inputs)[0])
        other = dict(inputs, memory=normal(rng, 2, 5, 6))
        if (answer(other)[0] - answer(inputs)[0]).abs().max() < 1e-3:
            raise Failure("Another memory gives the same output: nothing is looked up.", inputs)

    @points(1)
    def test_padding_of_the_source_is_hidden(self, answer, rng):
        inputs = asked_inputs(rng)
        longer = appended(inputs, 5 * normal(rng, 2, 3, 6))
        compare(
            "output with padding behind the source", answer(longer)[0], answer(inputs)[0], longer
        )
        answer.matches(asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 1, 5)))
        answer.matches(asked_inputs(rng, b=4, q=4, mask=mixed_mask(rng, 4, 1, 5)))
        answer.matches(asked_inputs(rng, b=4, q=4, k=4, m=4, mask=mixed_mask(rng, 4, 1, 4)))
        answer.matches(hidden_giants(rng))

    @points(1)
    def test_a_mask_of_any_kind_reaches_the_attention(self, answer, rng):
        answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 3, 5)))
        answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 3, 5)))
        answer.matches(asked_inputs(rng, b=4, q=4, k=4, mask=mixed_mask(rng, 4, 4, 4)))
        answer.matches(asked_inputs(rng, q=4, k=4, mask=mixed_mask(rng, 4, 4)))
        answer.matches(asked_inputs(rng, mask=torch.ones(2, 1, 5, dtype=torch.bool)))
        answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 3, 5), by_position=True))
        answer.matches(asked_inputs(rng, b=3, mask=mixed_mask(rng, 3, 5), dtype=torch.float64))

    @points(1)
    def test_gradients_reach_target_memory_and_attention(self, answer, rng):
        answer.gradients_match(asked_inputs(rng))
        answer.gradients_match(asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5), training=True))

    @points(1)
    def test_a_query_with_nothing_to_attend_to_stays_finite(self, answer, rng):
        answer.matches(asked_inputs(rng, mask=dead_mask(rng, 2, 3, 5)), gradient=True)
        empty = mixed_mask(rng, 3, 1, 5)
        empty[1] = False
        answer.matches(asked_inputs(rng, b=3, q=1, mask=empty), gradient=True)

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, asked_inputs(rng))
        moves_nothing(answer, asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5)))
        moves_nothing(answer, asked_inputs(rng, mask=dead_mask(rng, 2, 3, 5)))
        answer.matches(asked_inputs(rng, mask=mixed_mask(rng, 2, 1, 5), training=True))


# --- DecoderLayer -------------------------------------------------------------------------------

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


class TestDecoderLayer:
    task = Task(
        name="DecoderLayer",
        reference=reference.DecoderLayer,
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

    @points(1)
    def test_its_parts_have_the_names_of_the_task(self, answer, rng):
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

    @points(1)
    def test_every_target_word_keeps_its_place_and_its_width(self, answer, rng):
        for inputs in (layer_inputs(rng), layer_inputs(rng, b=3, q=7, k=2, m=8, h=4)):
            output, target = answer(inputs), inputs["target"]
            if output.shape != target.shape:
                raise Failure(
                    f"The output has shape {shape_of(output)}; the target came with "
                    f"{shape_of(target)}, and so must the output.",
                    inputs,
                )

    @points(3)
    def test_with_the_same_weights_it_gives_the_same_output(self, answer, rng):
        answer.matches(layer_inputs(rng))
        answer.matches(layer_inputs(rng, b=3, q=7, k=2, m=8, h=4, hidden=3))
        answer.matches(layer_inputs(rng, b=3, dtype=torch.float64))
        answer.matches(turned(layer_inputs(rng, b=3)))

    @points(1)
    def test_equal_sizes_and_sizes_of_one_work(self, answer, rng):
        answer.matches(layer_inputs(rng, b=4, q=4, k=4, m=4, h=4, hidden=4))
        answer.matches(both_masks(rng, b=5, q=5, k=5, m=5, h=1, hidden=5))
        answer.matches(layer_inputs(rng, b=1, q=1, k=4))
        answer.matches(layer_inputs(rng, b=3, q=1, k=1, m=1, h=1, hidden=1))

    @points(1)
    def test_a_word_hears_no_later_word_of_the_target(self, answer, rng):
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

    @points(1)
    def test_the_first_word_hears_the_whole_source(self, answer, rng):
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

    @points(1)
    def test_padding_of_the_source_changes_nothing(self, answer, rng):
        inputs = layer_inputs(rng, target_mask=causal(3))
        longer = appended(inputs, 5 * normal(rng, 2, 3, 6))
        compare("output with padding behind the source", answer(longer), answer(inputs), longer)
        answer.matches(layer_inputs(rng, b=3, memory_mask=mixed_mask(rng, 3, 1, 5)))
        answer.matches(both_masks(rng, b=4, q=4, k=4))
        inputs = both_masks(rng, dtype=torch.float64)
        inputs["memory"] *= torch.where(inputs["memory_mask"], 1.0, 1e4).mT
        answer.matches(inputs)

    @points(1)
    def test_a_mask_may_have_any_kind_and_come_by_position(self, answer, rng):
        answer.matches(both_masks(rng, by_position=True))
        answer.matches(layer_inputs(rng, memory_mask=mixed_mask(rng, 3, 5), by_position=True))
        answer.matches(layer_inputs(rng, memory_mask=mixed_mask(rng, 2, 3, 5)))
        answer.matches(layer_inputs(rng, target_mask=causal(3), by_position=True))
        everything = torch.ones(2, 1, 5, dtype=torch.bool)
        answer.matches(layer_inputs(rng, memory_mask=everything))

    @points(1)
    def test_gradients_reach_target_memory_and_every_weight(self, answer, rng):
        answer.gradients_match(layer_inputs(rng))
        answer.gradients_match(both_masks(rng, q=4, training=True))

    @points(1)
    def test_a_word_with_nothing_to_attend_to_stays_finite(self, answer, rng):
        dead = {"target_mask": dead_mask(rng, 2, 3, 3), "memory_mask": dead_mask(rng, 2, 3, 5)}
        answer.matches(layer_inputs(rng, **dead), gradient=True)
        empty = mixed_mask(rng, 3, 1, 5)
        empty[1] = False
        answer.matches(layer_inputs(rng, b=3, q=1, memory_mask=empty), gradient=True)

    @points(1)
    def test_numbers_of_any_size_are_fine(self, answer, rng):
        answer.matches(extreme_layer(rng, 1e3))
        answer.matches(extreme_layer(rng, 1e-3))

    @points(1)
    def test_training_mode_and_earlier_calls_make_no_difference(self, answer, rng):
        answer.matches(both_masks(rng, training=True))
        answer.matches(layer_inputs(rng, training=True))
        answer.matches(second_call(rng))
        if remembers(answer):
            raise Failure("The result depends on what the same layer saw in an earlier call.")

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, layer_inputs(rng))
        moves_nothing(answer, both_masks(rng))
        moves_nothing(answer, both_masks(rng, training=True))


# --- translate ----------------------------------------------------------------------------------

VOCABULARY = 11  # words of the target; a prime, so that mistakes do not meet again by chance


class Speaker(nn.Module):
    """A model that has made up its mind: what it wants to say for each source sentence.

    It scores each position from the source and from the words up to there, as a Transformer does.
    If those words are not what it wanted to say, it says something else. `wants` goes on behind
    `eos`, since a model does not stop by itself.
    """

    def __init__(self, source, wants, bos, scores, patience):
        super().__init__()
        self.scores = nn.Parameter(scores)  # (said, word); its diagonal is the largest of each row
        self.idle = nn.Sequential(nn.Dropout(0.0))  # something inside that has a mode, too
        self.known, self.wants, self.bos, self.patience = source.clone(), wants, bos, patience

    def forward(self, source, words):
        self.patience -= 1
        if self.patience < 0:
            raise Unusable("asks the model far more often than there are words to write")
        for name, tensor, axes in (("source", source, "(b n)"), ("words", words, "(b t)")):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
            if tensor.ndim != 2:
                raise ValueError(f"{name} must have axes {axes}; got shape {shape_of(tensor)}")
            if tensor.is_floating_point() or tensor.dtype == torch.bool:
                raise TypeError(f"{name} must hold ids, whole numbers; got {tensor.dtype}")
        if len(source) != len(words):
            raise ValueError(f"source {shape_of(source)} and words {shape_of(words)} differ in b")
        if source.shape[1] != self.known.shape[1]:
            raise ValueError(
                f"source has {source.shape[1]} columns; the sentences have {self.known.shape[1]}"
            )
        if words.numel() and not 0 <= words.min() <= words.max() < len(self.scores):
            raise ValueError(f"words must be ids below {len(self.scores)}; some are not")
        strange = (source[:, None] - self.known[None]).abs().sum(-1)  # b rows
        row = strange.argmin(-1)
        t = words.shape[1]
        wanted = self.wants[row][:, torch.arange(t) % self.wants.shape[1]]  # b t
        before = torch.cat([torch.full_like(words[:, :1], self.bos), wanted[:, : t - 1]], 1)
        surprise = ((words - before) ** 2 * torch.arange(1, t + 1)).cumsum(1)
        said = (wanted + surprise + strange.amin(-1)[:, None]) % len(self.scores)
        return self.scores[said]  # b t word


def with_a_model(answer):
    """The answer as a function of plain inputs: it is given a `Speaker`.

    A shorter result, in which every row has ended, is filled up with `eos` to `max_length`.
    """

    def function(*, source, model_wants, bos, eos, max_length, training=False, **rest):
        patience = 4 * len(source) * (max_length + 1)
        model = Speaker(source, model_wants, bos, rest.pop("model.scores"), patience)
        model.train(training)
        before = model.scores.detach().clone()
        returned = answer(model, source, bos, eos, max_length)
        if any(part.training != training for part in model.modules()):
            mode = "evaluation" if training else "training"
            raise Unusable(f"leaves the model in {mode} mode; the caller had it in the other")
        if not model.scores.requires_grad or model.scores.grad is not None:
            raise Unusable("changes what the model learns: its parameters or their gradients")
        if not torch.equal(model.scores, before):
            raise Unusable("changes the model's parameters")
        if not torch.is_grad_enabled():
            raise Unusable("leaves gradients switched off for everybody after it")
        return filled_up(returned, len(source), eos, max_length)

    return function


def filled_up(words, b, eos, max_length):
    if not isinstance(words, torch.Tensor) or words.ndim != 2 or len(words) != b:
        return words
    if words.is_floating_point() or words.dtype == torch.bool:
        return words
    words = words.long()
    missing = max_length - words.shape[1]
    if missing > 0:
        open_rows = (~(words == eos).any(1)).nonzero().flatten().tolist()
        if open_rows:
            raise Unusable(
                f"stopped after {words.shape[1]} of {max_length} words, although row "
                f"{open_rows[0]} has no `eos` yet"
            )
        words = nn.functional.pad(words, (0, missing), value=eos)
    return words


def speech(rng, ends, n=4, bos=1, eos=2, max_length=7, dtype=torch.float32, **others):
    """Sentences of which row i ends with its word number `ends[i]` (from 1; 0 = never).

    Behind its end, a row goes on with other words, and with a second `eos`.
    """
    b, length = len(ends), max_length + 3
    other = torch.tensor([word for word in range(VOCABULARY) if word not in (bos, eos)])
    pick = torch.randint(len(other), (b, length), generator=rng, device="cpu")
    wants = other[pick]
    for row, end in enumerate(ends):
        if end:
            wants[row, end - 1] = eos
            wants[row, end + 1] = eos
    source = torch.randint(3, 9, (b, n), generator=rng, device="cpu")
    source[:, 0] = 10 * (1 + torch.randperm(b, generator=rng, device="cpu"))  # no two alike
    scores = normal(rng, VOCABULARY, VOCABULARY, dtype=dtype)
    best = scores.amax(1) + 0.5
    scores[range(VOCABULARY), range(VOCABULARY)] = best
    return {
        "source": source,
        "model_wants": wants,
        "bos": bos,
        "eos": eos,
        "max_length": max_length,
        "model.scores": scores,
        **others,
    }


def scored(inputs, change):
    """The same model with other numbers as scores, in the same order."""
    return dict(inputs, **{"model.scores": change(inputs["model.scores"])})


def translate_probes(rng):
    return {
        "two sentences": speech(rng, (3, 6)),
        "the long one first": speech(rng, (6, 2, 4)),
        "one sentence": speech(rng, (5,)),
        "same ends": speech(rng, (4, 4)),
        "at once": speech(rng, (1, 4)),
        "at the limit": speech(rng, (7, 3)),
        "never": speech(rng, (0, 3, 0)),
        "one word": speech(rng, (0, 1), max_length=1),
        "other marks": speech(rng, (3, 5), bos=9, eos=4),
        "eos is zero": speech(rng, (2, 0, 4), bos=3, eos=0),
        "training": speech(rng, (3, 2), training=True),
        "negative scores": scored(speech(rng, (3, 6)), lambda s: s - 100),
        "large scores": scored(speech(rng, (2, 4)), lambda s: s * 1e5),
        "close scores": scored(speech(rng, (2, 4), dtype=torch.float64), lambda s: 1 + 1e-9 * s),
    }


def watched(translate):
    """An `adapt` that says what the model gets to see of the words that were written."""

    def look(**inputs):
        model = Speaker(inputs["source"], inputs["model_wants"], 1, inputs["model.scores"], 99)
        longest, exchanged = [], []

        def note(module, given, named):
            words = named.get("words", given[-1] if given else None)
            longest.append(words.shape[1])
            exchanged.append(torch.equal(words, inputs["source"]))

        model.register_forward_pre_hook(note, with_kwargs=True)
        with contextlib.suppress(Exception):
            translate(model, inputs["source"], 1, 2, 7)
        return {
            "hands nothing back": len(longest) > 1 == max(longest),
            "takes the source for the words": any(exchanged),
        }

    return look


def translate_traits(answer):
    seen = answer.observe(speech(torch.Generator().manual_seed(0), (0, 5)), adapt=watched)
    return seen.returned if isinstance(seen.returned, dict) else {}


def translate_small(rng):
    for ends in ((0,), (1,), (2,), (3,), (2, 1), (1, 3), (3, 2), (2, 4)):
        yield speech(rng, ends, n=2, max_length=max(ends) or 1)
        yield speech(rng, ends, n=2, max_length=max(ends) + 1)
    yield speech(rng, (2,), n=2, bos=9, eos=4, max_length=3)
    yield speech(rng, (2, 1), n=2, bos=3, eos=0, max_length=3)
    yield speech(rng, (2,), n=2, max_length=3, training=True)
    yield scored(speech(rng, (2,), n=2, max_length=3), lambda scores: scores - 100)
    yield scored(speech(rng, (2,), n=2, max_length=3), lambda scores: scores * 1e5)
    close = speech(rng, (2,), n=2, max_length=3, dtype=torch.float64)
    yield scored(close, lambda scores: 1 + 1e-9 * scores)


def same_words(answer, inputs, special=""):
    """Assert that the answer writes what the reference writes, row by row.

    `special` is said with a failure: what the numbers do not show.
    """
    got, expected = answer(inputs), answer.expected(inputs)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        compare("the translation", got, expected, inputs)
    for row, (ours, theirs) in enumerate(zip(expected.tolist(), got.tolist(), strict=True)):
        if ours != theirs:
            place = next(
                i for i, two in enumerate(zip(ours, theirs, strict=True)) if len({*two}) > 1
            )
            raise Failure(
                f"Row {row}, word {place + 1}: your answer writes {theirs[place]}; expected "
                f"{ours[place]} (bos is {inputs['bos']}, eos is {inputs['eos']}).{special}",
                inputs,
                expected,
                got,
            )


class TestTranslate:
    task = Task(
        name="translate",
        reference=reference.translate,
        returns=("words",),
        difficulty=2,
        minutes=25,
        section="writing-greedily",
        hints=(
            "The model gives scores for the word after each of `words`. Which words are there at "
            "the start, and which of the scores tell you the next one?",
            "Keep `words` (b t), starting with bos in every row. Each round: scores of the last "
            "position, likeliest word, append it. A row that has said eos says eos for ever, "
            "whatever the model wants.",
            "Each round: logits = model(source, words)[:, -1]; word = logits.argmax(-1), replaced "
            "by eos in rows that are finished; update `finished`; words = cat of words and "
            "word[:, None]. Stop after max_length rounds, or once all are finished; leave out "
            "column 0.",
        ),
        probes=translate_probes,
        adapt=with_a_model,
        small=translate_small,
        traits=translate_traits,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_it_returns_ids_one_row_for_each_sentence(self, answer, rng):
        inputs = speech(rng, (3, 6, 0))
        words = answer(inputs)
        if words.is_floating_point() or words.dtype == torch.bool:
            raise Failure(f"The words have dtype {words.dtype}; ids are whole numbers.", inputs)
        if words.ndim != 2 or len(words) != 3:
            raise Failure(
                f"The translation has shape {shape_of(words)}; expected (b t) with b = 3.", inputs
            )
        if words.shape[1] > 7:
            raise Failure(
                f"The translation has {words.shape[1]} words; max_length is 7, and bos is not "
                "part of a translation.",
                inputs,
            )

    @points(2)
    def test_each_word_is_the_likeliest_after_those_before(self, answer, rng):
        same_words(answer, speech(rng, (6,), n=3))
        same_words(answer, speech(rng, (0,), n=5))
        same_words(answer, speech(rng, (4, 4, 4)))
        same_words(answer, speech(rng, (9,), n=2, max_length=12))

    @points(1)
    def test_after_its_first_eos_a_row_says_nothing_else(self, answer, rng):
        same_words(answer, speech(rng, (2, 6)))
        same_words(answer, speech(rng, (6, 2, 4)))
        same_words(answer, speech(rng, (1, 0)))

    @points(1)
    def test_no_row_stops_before_it_has_ended(self, answer, rng):
        same_words(answer, speech(rng, (1, 6)))
        same_words(answer, speech(rng, (5, 1, 3)))
        same_words(answer, speech(rng, (1, 1)))

    @points(1)
    def test_it_stops_at_the_largest_length(self, answer, rng):
        for max_length in (1, 2, 5):
            same_words(answer, speech(rng, (0, 2, 0), max_length=max_length))
        same_words(answer, speech(rng, (5, 4), max_length=5))
        same_words(answer, speech(rng, (6, 4), max_length=5))
        same_words(answer, speech(rng, (0, 33), max_length=40))

    @points(1)
    def test_begin_and_end_marks_are_those_of_the_caller(self, answer, rng):
        same_words(answer, speech(rng, (3, 5), bos=9, eos=4))
        same_words(answer, speech(rng, (4, 2, 0), bos=3, eos=0))
        same_words(answer, speech(rng, (4, 2, 0), bos=0, eos=10))

    @points(1)
    def test_a_batch_is_translated_like_its_sentences_one_by_one(self, answer, rng):
        inputs = speech(rng, (4, 2, 0, 6))
        together = answer(inputs)
        for row in range(4):
            alone = dict(inputs, source=inputs["source"][[row]])
            alone["model_wants"] = inputs["model_wants"][[row]]
            compare(f"row {row} of a batch, beside the same sentence alone", together[[row]],
                    answer(alone), inputs)  # fmt: skip
        same_words(answer, speech(rng, (4, 2, 0, 3), n=4, max_length=4))
        same_words(answer, speech(rng, (2,) * 7))
        same_words(answer, speech(rng, (3, 2), n=1))

    @points(1)
    def test_scores_may_have_any_size(self, answer, rng):
        def forbid(scores):
            """A model may rule words out."""
            return scores.masked_fill(scores < scores.median(-1, keepdim=True).values, -torch.inf)

        for change, special in (
            (lambda scores: scores - 100, "all scores are about −100"),
            (lambda scores: scores * 1e5, "scores are as large as 100,000"),
            (lambda scores: scores - 1e4, "all scores are about −10,000"),
            (forbid, "some scores are −inf"),
            (lambda scores: forbid(scores - 100), "scores are about −100, and some are −inf"),
        ):
            same_words(answer, scored(speech(rng, (3, 6)), change), f" Here {special}.")
        close = scored(speech(rng, (3, 6), dtype=torch.float64), lambda scores: 1 + 1e-9 * scores)
        same_words(answer, close, " Here scores are float64 and differ in the ninth digit.")

    @points(1)
    def test_the_model_is_left_in_its_mode(self, answer, rng):
        for training in (True, False):
            same_words(answer, speech(rng, (3, 2), training=training))

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, speech(rng, (3, 6)))
        inputs = speech(rng, (3, 6, 0), n=5)
        inputs["source"] = inputs["source"].T.contiguous().T  # not contiguous
        moves_nothing(answer, inputs)
        same_words(answer, inputs)
