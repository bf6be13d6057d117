import functools

import torch
import torch.nn.functional as F
from torch import nn

from attncourse import cross_attention as reference
from attncourse.checks.answer import (
    Failure,
    Unanswered,
    compare,
    moves_nothing,
    shape_of,
)
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, parts_of, weights_of, with_weights
from attncourse.checks.observe import FUSED_ATTENTION, Unusable
from attncourse.checks.task import Task
from attncourse.multihead import MultiHeadAttention
from attncourse.tasks.cross_attention import appended, dead_rows_are_right, like, turned

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
    """What an error tells: a pair was taken for one tensor, or the module was never begun."""
    error = answer.observe(layer_inputs(torch.Generator().manual_seed(0))).error or ""
    return {
        "takes a pair for a tensor": "tuple" in error,
        "is no module yet": "before Module.__init__" in error,
    }


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
    inputs = layer_inputs(rng, b=2, q=4, k=5, dtype=torch.float64)
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
    answer.matches(turned(layer_inputs(rng, b=3)))


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    answer.matches(layer_inputs(rng, b=4, q=4, k=4, m=4, h=4, hidden=4))
    answer.matches(layer_inputs(rng, b=5, q=5, k=5, m=5, h=1, hidden=5))
    answer.matches(layer_inputs(rng, b=1, q=1, k=4))
    answer.matches(layer_inputs(rng, b=3, q=1, k=1, m=1, h=1, hidden=1))


@task.check(1)
def the_output_is_right_where_later_words_are_hidden(answer, rng):
    answer.matches(layer_inputs(rng, q=4, target_mask=causal(4)))
    answer.matches(layer_inputs(rng, q=4, target_mask=own_target_masks(rng)))
    answer.matches(layer_inputs(rng, b=3, q=5, k=5, target_mask=causal(5)))
    inputs = layer_inputs(rng, q=4, target_mask=causal(4))
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
                f"Source word {place + 1} of 5 has no influence on the first target word.", inputs
            )


@task.check(1)
def the_output_is_right_where_the_source_is_padded(answer, rng):
    inputs = layer_inputs(rng)
    longer = appended(inputs, 5 * normal(rng, 2, 3, 6))
    compare("output with padding behind the source", answer(longer), answer(inputs), longer)
    answer.matches(layer_inputs(rng, b=3, memory_mask=mixed_mask(rng, 3, 1, 5)))
    answer.matches(layer_inputs(rng, b=4, q=4, k=4, memory_mask=mixed_mask(rng, 4, 1, 4)))
    inputs = layer_inputs(rng, memory_mask=mixed_mask(rng, 2, 1, 5))
    inputs["memory"] *= torch.where(inputs["memory_mask"], 1.0, 1e4).mT
    answer.matches(inputs)


@task.check(1)
def the_output_is_right_with_a_memory_mask_of_any_kind_also_by_position(answer, rng):
    inputs = both_masks(rng)
    by_name, by_position = answer(inputs), answer(inputs | {"by_position": True})
    compare("output with masks by position, beside masks by name", by_position, by_name, inputs)
    answer.matches(layer_inputs(rng, memory_mask=mixed_mask(rng, 3, 5)))
    answer.matches(layer_inputs(rng, memory_mask=mixed_mask(rng, 2, 3, 5)))
    everything = torch.ones(2, 1, 5, dtype=torch.bool)
    answer.matches(layer_inputs(rng, memory_mask=everything))


@task.check(1, "gradients reach target, memory and every weight")
def gradients_reach_target_memory_and_every_weight(answer, rng):
    answer.gradients_match(layer_inputs(rng))
    answer.gradients_match(layer_inputs(rng, b=3, q=4, training=True))


def right_with_live_masks(answer):
    """Assert that masks count where every word may attend to something."""
    rng = torch.Generator().manual_seed(0)
    live = {"target_mask": mixed_mask(rng, 2, 3, 3), "memory_mask": mixed_mask(rng, 2, 3, 5)}
    answer.matches(layer_inputs(rng, **live))
    answer.matches(both_masks(rng))


@task.check(1)
def the_output_is_right_where_a_word_may_attend_to_nothing(answer, rng):
    masks = {"target_mask": dead_mask(rng, 2, 3, 3), "memory_mask": dead_mask(rng, 2, 3, 5)}
    empty = mixed_mask(rng, 3, 1, 5)
    empty[1] = False
    dead = layer_inputs(rng, **masks), layer_inputs(rng, b=3, q=1, memory_mask=empty)
    usual = layer_inputs(torch.Generator().manual_seed(0))
    dead_rows_are_right(answer, dead, usual, lambda: right_with_live_masks(answer))


@task.check(1)
def numbers_of_any_size_are_fine(answer, rng):
    answer.matches(extreme_layer(rng, 1e3))
    answer.matches(extreme_layer(rng, 1e-3))


@task.check(1)
def training_mode_and_earlier_calls_make_no_difference(answer, rng):
    for inputs in (both_masks(rng), layer_inputs(rng)):
        trained = answer(inputs | {"training": True})
        compare("output in training mode, beside evaluation", trained, answer(inputs), inputs)
    if remembers(answer):
        raise Failure("The result depends on what the same layer saw in an earlier call.")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, layer_inputs(rng))
    moves_nothing(answer, both_masks(rng))
    moves_nothing(answer, both_masks(rng, training=True))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Layer(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        num_heads, hidden_width = self.sizes(model_width, num_heads, hidden_width)
        self.norm1 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.norm2 = nn.LayerNorm(model_width)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.norm3 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def sizes(model_width, num_heads, hidden_width):
        return num_heads, hidden_width

    def masks(self, target_mask, memory_mask):
        return target_mask, memory_mask

    def order():
        return 1, 2, 3  # self-attention, cross-attention, network

    def enters(x, number):  # x: the target as it came, and what it was after each part
        return x[-1]

    def norm_of(self, number):
        return getattr(self, f"norm{number}")

    def standardize(x, weight, bias):
        return F.layer_norm(x, x.shape[-1:], weight, bias)

    def normalize(self, x, number):
        norm = self.norm_of(number)
        return self.standardize(x, norm.weight, norm.bias)

    def hide_later(mask, y):
        return mask

    def hear(self, y, x, mask):
        return self.attend(self.self_attention, y, y, y, mask)

    def heard(self, memory):
        return memory

    def hide_padding(mask, y, memory):
        return mask

    def look_up(self, y, memory, mask):
        return self.attend(self.cross_attention, y, memory, memory, mask)

    def attend(attention, query, key, value, mask):
        return attention(query, key, value, mask)[0]

    def bend(y):
        return y.relu()

    def think(self, y):
        return self.linear2(self.bend(self.linear1(y)))

    def drop(self, part, number):
        return part

    def add(self, x, part, normed, number):
        return x[-1] + part

    def returned(self, x, memory):
        return x[-1]

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        target_mask, memory_mask = self.masks(target_mask, memory_mask)
        x = [target]
        for number in self.order():
            asks = self.enters(x, number)
            y = self.normalize(asks, number)
            if number == 1:
                part = self.hear(y, asks, self.hide_later(target_mask, y))
            elif number == 2:
                source = self.heard(memory)
                part = self.look_up(y, source, self.hide_padding(memory_mask, y, source))
            else:
                part = self.think(y)
            x.append(self.add(x, self.drop(part, number), y, number))
        return self.returned(x, memory)


# --- faults: the three parts --------------------------------------------------------------------


def from_the_part(*numbers):
    """These parts take what the part before has found, without the sum around it."""
    return lambda x, number: x[-1] - x[-2] if number in numbers else x[-1]


def parts(*order):
    """Parts in another order, with norms of their own; or with norm 1 before the first of them."""
    norms = {number: f"norm{place}" for place, number in enumerate(order, 1)}
    return {
        "order": lambda: order,
        "norm_of": (..., lambda self, number: getattr(self, norms[number])),
    }


three = functools.partial(task.fault, section="three-attentions")
norm = functools.partial(task.fault, section="layer-normalization")
around = functools.partial(task.fault, section="residual-connection")
network = functools.partial(task.fault, section="feed-forward")

task.fault(
    "X-WRONG-KV",
    section="whose-values",
    look_up=(
        lambda self, y, memory, mask: self.cross_attention(y, memory, y, mask)[0],
        lambda self, y, memory, mask: self.cross_attention(y, y, memory, mask)[0],
    ),
)
task.fault(
    "C-SOURCE-ASKS",
    section="two-sequences",
    look_up=lambda self, y, memory, mask: self.cross_attention(memory, y, y, mask)[0],
)
three(
    "X-LEAK",
    look_up=(
        lambda self, y, memory, mask: self.cross_attention(y, y, y)[0],
        lambda self, y, memory, mask: self.cross_attention(y, y, y, mask)[0],
    ),
    masks=(..., lambda target_mask, memory_mask: (target_mask, target_mask)),
)
task.fault("C-NO-CROSS", **parts(1, 3))
task.fault("C-NO-SELF", **parts(2, 3))
network("C-NO-NETWORK", order=lambda: (1, 2))
task.fault("C-SOURCE-FIRST", **parts(2, 1, 3))
task.fault("C-THINKS-TOO-EARLY", **parts(1, 3, 2))
network("C-THINKS-FIRST", **parts(3, 1, 2))
task.fault(
    "C-ASKS-UNCHANGED",
    enters=lambda x, number: x[0] if number == 2 else x[-1],
    norm_of=(..., lambda self, number: self.norm3 if number == 3 else self.norm1),
)
network(
    "C-THINKS-UNCHANGED",
    enters=(
        lambda x, number: x[0] if number == 3 else x[-1],
        lambda x, number: x[1] if number == 3 else x[-1],
    ),
)
task.fault(
    "C-ASKS-THE-PART",
    section="residual-connection",
    enters=tuple(from_the_part(*numbers) for numbers in ((2,), (2, 3), (3,))),
)
task.fault("C-PARALLEL", enters=lambda x, number: x[0])


@task.fault(
    "X-REUSE",
    look_up=(lambda self, y, memory, mask: self.self_attention(y, memory, memory, mask)[0], ...),
    hear=(..., lambda self, y, x, mask: self.cross_attention(y, y, y, mask)[0]),
)
class OneModuleTwoNames(Layer):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.cross_attention = self.self_attention


# --- faults: masks ------------------------------------------------------------------------------


def triangle(y, keys):
    return torch.ones(y.shape[1], keys.shape[1], dtype=torch.bool).tril()


def causal_on_source(mask, y, memory):
    return triangle(y, memory) if mask is None else triangle(y, memory) & mask


def opposite(mask, *_):
    return None if mask is None else ~mask


def if_true(mask, *_):
    return mask if mask is not None and mask else None


task.fault("X-NOMASK", section="source-mask", hide_padding=lambda mask, y, memory: None)
three("C-NO-TARGET-MASK", hide_later=lambda mask, y: None)
three("C-NO-MASKS", masks=lambda target_mask, memory_mask: (None, None))
three(
    "X-TGTMASK",
    masks=(
        lambda target_mask, memory_mask: (memory_mask, target_mask),
        lambda target_mask, memory_mask: (target_mask, target_mask),
        lambda target_mask, memory_mask: (memory_mask, memory_mask),
    ),
)
task.fault("X-CAUSAL", hide_padding=causal_on_source)
task.fault(
    "M-IF-MASK",
    section="source-mask",
    hide_later=(if_true, ..., if_true),
    hide_padding=(..., if_true, if_true),
)
three(
    "C-ALWAYS-CAUSAL",
    hide_later=(
        lambda mask, y: triangle(y, y) if mask is None else triangle(y, y) & mask,
        lambda mask, y: triangle(y, y) if mask is None else mask,
        lambda mask, y: triangle(y, y),
    ),
)
task.fault(
    "M-POLARITY",
    section="source-mask",
    hide_later=(opposite, opposite, ...),
    hide_padding=(opposite, ..., opposite),
)
task.fault(
    "M-TRAIN-ONLY",
    section="cross-breaks",
    masks=(
        lambda self, *both: both if self.training else (None, None),
        lambda self, target_mask, memory_mask: (
            target_mask if self.training else None,
            memory_mask,
        ),
    ),
)


@task.fault("C-MASK-ORDER")
class MemoryMaskFirst(Layer):
    def forward(self, target, memory, memory_mask=None, target_mask=None):
        return super().forward(target, memory, target_mask, memory_mask)


# --- faults: norms ------------------------------------------------------------------------------


def without_norm(*numbers):
    """No norm in front of these parts."""

    def normalize(self, x, number):
        return x if number in numbers else Layer.normalize(self, x, number)

    return normalize


def with_norms(*numbers):
    """Which norm stands in front of each part, of three."""
    return lambda self, number: getattr(self, f"norm{numbers[number - 1]}")


def norm_of_result(self, x, part, normed, number):
    return x[-1] + Layer.normalize(self, part, number)


def norm_of_sum(self, x, part, normed, number):
    return Layer.normalize(self, x[-1] + part, number)


def over_batch(x, weight, bias):
    mean, variance = x.mean((0, 1)), x.var((0, 1), correction=0)
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def by_std(x, weight, bias):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) * weight + bias


norm("C-POST-NORM", normalize=without_norm(1, 2, 3), add=norm_of_sum)
norm("C-NORM-OF-RESULT", normalize=without_norm(1, 2, 3), add=norm_of_result)
norm("C-NORM-TWICE", add=(norm_of_sum, norm_of_result))
task.fault(
    "C-MEMORY-NORMALIZED",
    heard=(lambda self, memory: self.norm2(memory), lambda self, memory: self.norm1(memory)),
)
norm(
    "C-QUERY-NORMED-ONLY",
    hear=(
        lambda self, y, x, mask: self.self_attention(y, x, x, mask)[0],
        lambda self, y, x, mask: self.self_attention(y, y, x, mask)[0],
    ),
)
norm("C-NO-NORMS", normalize=without_norm(1, 2, 3))
norm("C-NO-NORM1", normalize=without_norm(1))
norm("C-NO-NORM2", normalize=without_norm(2))
norm("C-NO-NORM3", normalize=without_norm(3))
norm("C-ONE-NORM", norm_of=(with_norms(1, 1, 1), with_norms(2, 2, 2)))
norm("C-NORM-AGAIN", norm_of=(with_norms(1, 1, 3), with_norms(1, 2, 2), with_norms(1, 2, 1)))
norm("C-NORMS-MOVED", norm_of=(with_norms(1, 3, 2), with_norms(2, 1, 3)))
norm(
    "C-NORM-AT-END",
    returned=(
        lambda x, memory: F.layer_norm(x[-1], x[-1].shape[-1:]),
        lambda self, x, memory: self.norm3(x[-1]),
        lambda self, x, memory: self.norm1(x[-1]),
    ),
)
norm(
    "C-NORM-OVER-WORDS",
    standardize=(lambda x, weight, bias: F.layer_norm(x, x.shape[1:]) * weight + bias, over_batch),
)
norm("C-NORM-UNBIASED", standardize=by_std)

# --- faults: sums -------------------------------------------------------------------------------


def without_sum(*numbers):
    """No sum around these parts."""
    return lambda self, x, part, normed, number: part if number in numbers else x[-1] + part


def from_normed(*numbers):
    """What was normalized is added again, around these parts."""
    return lambda self, x, part, normed, number: part + (normed if number in numbers else x[-1])


around(
    "C-SUM-OF-FIRST",
    add=(
        lambda self, x, part, normed, number: x[0] + part,
        lambda self, x, part, normed, number: x[0 if number == 2 else -1] + part,
        lambda self, x, part, normed, number: x[0 if number == 3 else -1] + part,
    ),
)
around("C-SUM-OF-NORMED", add=from_normed(1, 2, 3))
around("C-SUM-OF-NORMED-SELF", add=from_normed(1))
around("C-SUM-OF-NORMED-CROSS", add=from_normed(2))
around("C-SUM-OF-NORMED-NETWORK", add=from_normed(3))
around("C-NO-SUM-SELF", add=without_sum(1))
around("C-NO-SUM-CROSS", add=without_sum(2))
around("C-NO-SUM-NETWORK", add=without_sum(3))
around("C-NO-SUM-ATTENTIONS", add=without_sum(1, 2))
around("C-NO-SUMS", add=without_sum(1, 2, 3))
around("C-ONE-SUM", add=lambda self, x, part, normed, number: x[0] + part if number == 3 else part)
around("C-SUM-TWICE", returned=lambda x, memory: x[-1] + x[0])

# --- faults: the network, and what the layer keeps and returns ----------------------------------

network("C-NO-RELU", bend=lambda y: y)
network("C-GELU", bend=(F.gelu, F.silu, F.leaky_relu))
network("C-TANH", bend=(torch.tanh, torch.sigmoid))
network(
    "C-RELU-BEHIND",
    think=(
        lambda self, y: Layer.think(self, y).relu(),
        lambda self, y: self.linear2(self.linear1(y)).relu(),
    ),
)
network(
    "C-HIDDEN-WIDTH",
    sizes=(lambda m, num_heads, hidden: (num_heads, m), lambda m, h, hidden: (h, 4 * m)),
)
three("C-HEADS-FIXED", sizes=tuple(lambda m, h, hidden, n=n: (n, hidden) for n in (1, 2, 4)))
task.fault(
    "C-DROPOUT",
    section="whole-transformer",
    drop=(
        lambda self, part, number: F.dropout(part, 0.1, self.training) if number == 3 else part,
        lambda self, part, number: F.dropout(part, 0.1, self.training),
    ),
)


class KeptTarget(Layer):
    kept = None

    def add(self, x, part, normed, number):
        if number == 1 and (self.kept is None or self.kept.shape != part.shape):
            self.kept = x[-1] + part
        return self.kept if number == 1 else x[-1] + part


@task.fault("K-STALE", section="writing-greedily", forms=(KeptTarget,))
class KeptMemory(Layer):
    kept = None

    def heard(self, memory):
        if self.kept is None or self.kept.shape != memory.shape:
            self.kept = memory
        return self.kept


task.fault(
    "C-MEMORY-DETACHED",
    section="whole-transformer",
    heard=lambda self, memory: memory.detach(),
)
around("C-IN-PLACE", add=lambda self, x, part, normed, number: x[-1].add_(part))
task.fault("C-PAIR-ADDED", attend=lambda attention, *inputs: attention(*inputs))
task.fault("C-WITH-MEMORY", returned=lambda x, memory: (x[-1], memory))
task.fault("C-FLOAT32", returned=lambda x, memory: x[-1].float())


@task.fault("C-WITH-WEIGHTS")
class WithWeights(Layer):
    def forward(self, target, memory, *masks, **named):
        output = super().forward(target, memory, *masks, **named)
        return output, self.cross_attention(output, memory, memory)[1]


@task.fault("C-NO-SUPER")
class NoSuper(Layer):
    def __init__(self, *sizes):
        self.norm1 = nn.LayerNorm(sizes[0])


# --- faults: inside the attentions --------------------------------------------------------------


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def own_attention(split=split, merge=merge, power=lambda d, heads: d**-0.5, project=True):
    """Multi-head attention that splits, merges, scales or ends in another way."""

    def attend(attention, query, key, value, mask):
        h = attention.num_heads
        q = split(attention.q_proj(query), h)
        k, v = split(attention.k_proj(key), h), split(attention.v_proj(value), h)
        scores = q @ k.mT * power(q.shape[-1], h)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            mask = mask if mask.ndim == 2 else mask[:, None]
            lowest = torch.finfo(scores.dtype).min
            weights = scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)
        output = merge(weights @ v)
        return attention.out_proj(output) if project else output

    return attend


def cut_words(x, heads):
    return x.reshape(len(x), heads, x.shape[1], -1)


def join_at_once(x):
    return x.reshape(len(x), x.shape[2], -1)


three("H-VIEW-SPLIT", attend=own_attention(split=cut_words))
three("H-VIEW-MERGE", attend=own_attention(merge=join_at_once))
three("H-VIEW-BOTH", attend=own_attention(split=cut_words, merge=join_at_once))
norm("D-NO-SCALE", attend=own_attention(power=lambda d, heads: 1.0))
three("C-SCALE-MODEL", attend=own_attention(power=lambda d, heads: (d * heads) ** -0.5))
three("H-NO-WO", attend=own_attention(project=False))
