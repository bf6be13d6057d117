"""The checks of chapter 5. Each one's name is the sentence a teacher would say."""

import contextlib
import functools
import zlib

import pytest
import torch
from torch import nn

from attncourse import multihead as reference
from attncourse.checks.common import (
    causal,
    dead_mask,
    integers,
    made,
    mixed_mask,
    moves_nothing,
    normal,
    with_weights,
)
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Failure, Task, compare, shape_of

points = pytest.mark.points


def has_shape(name, tensor, axes, *shape, inputs):
    """Assert the shape of what came back, and that it kept the inputs' dtype, float32."""
    if tensor.shape != shape:
        raise Failure(
            f"{name} has shape {shape_of(tensor)}; expected {axes} = "
            f"{shape_of(torch.empty(shape))}.",
            inputs,
        )
    if tensor.dtype != torch.float32:
        raise Failure(f"{name} has dtype {tensor.dtype}; the inputs were float32.", inputs)


# --- split_heads --------------------------------------------------------------------------------


def split_inputs(rng, b=2, n=3, h=4, d=5, dtype=torch.float32):
    return {"x": normal(rng, b, n, h * d, dtype=dtype), "num_heads": h}


def split_probes(rng):
    return {
        "plain": split_inputs(rng),
        "as many words as heads": split_inputs(rng, 2, 3, 3, 4),
        "as many sentences as words": split_inputs(rng, 3, 3, 2, 4),
        "as many sentences as heads": split_inputs(rng, 2, 3, 2, 4),
        "as many heads as features": split_inputs(rng, 2, 5, 3, 3),
        "all equal": split_inputs(rng, 3, 3, 3, 3),
        "two heads": split_inputs(rng, 3, 4, 2, 5),
        "one head": split_inputs(rng, 2, 3, 1, 4),
        "heads of width one": split_inputs(rng, 2, 4, 3, 1),
        "one sentence": split_inputs(rng, 1, 4, 2, 3),
        "one word": split_inputs(rng, 3, 1, 2, 4),
        "double": split_inputs(rng, 2, 3, 2, 4, dtype=torch.float64),
    }


def numbered(*shape):
    """1, 2, 3, …: a tensor in which every number tells where it came from."""
    count = torch.Size(shape).numel()
    return torch.arange(1.0, count + 1, device="cpu").reshape(shape)


def split_small(rng):
    for b, n, h, d in (
        (1, 1, 1, 1),
        (1, 1, 1, 2),
        (1, 1, 2, 1),
        (1, 1, 2, 2),
        (1, 2, 1, 1),
        (1, 2, 2, 1),
        (1, 2, 2, 2),
        (2, 1, 2, 1),
        (2, 2, 2, 1),
        (1, 2, 3, 2),
        (2, 1, 3, 2),
        (2, 2, 3, 1),
        (2, 3, 2, 1),
        (2, 2, 3, 2),
    ):
        yield {"x": numbered(b, n, h * d), "num_heads": h}


def split_maps(rng):
    return [
        ("one sentence of four words, two heads", split_inputs(rng, 1, 4, 2, 2), ("x",)),
        ("two sentences of two words, two heads", split_inputs(rng, 2, 2, 2, 2), ("x",)),
    ]


class TestSplitHeads:
    task = Task(
        name="split_heads",
        reference=reference.split_heads,
        returns=("heads",),
        difficulty=2,
        minutes=10,
        section="project-split",
        hints=(
            "Two things happen: each vector is cut into `num_heads` pieces, and the pieces' axis "
            "moves in front of the words. Which of the two can a reshape do alone?",
            "A reshape keeps the order in which numbers lie in memory. So it may cut the last "
            "axis in two, and nothing else. To move an axis, swap it with another.",
            "In einops, one pattern: left, the last axis written as (h d), heads first; right, h "
            "between b and n. In torch: cut the last axis into two axes, h and d; then swap axes "
            "1 and 2.",
        ),
        probes=split_probes,
        differentiated=("plain",),
        small=split_small,
        maps=split_maps,
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_every_head_gets_an_axis_of_its_own(self, answer, rng):
        for b, n, h, d in ((2, 3, 4, 5), (5, 4, 3, 2), (3, 2, 6, 4)):
            inputs = split_inputs(rng, b, n, h, d)
            has_shape("heads", answer(inputs), "(b h n d)", b, h, n, d, inputs=inputs)

    @points(1)
    def test_a_head_holds_its_piece_of_every_word(self, answer, rng):
        for b, n, h, d in ((1, 4, 2, 3), (2, 5, 3, 4), (3, 2, 4, 5)):
            inputs = split_inputs(rng, b, n, h, d)
            heads = answer(inputs)
            has_shape("heads", heads, "(b h n d)", b, h, n, d, inputs=inputs)
            for i in range(h):
                piece = inputs["x"][:, :, i * d : (i + 1) * d]
                if not torch.equal(heads[:, i], piece):
                    raise Failure(
                        f"Head {i + 1} of {h} should hold the numbers {i * d + 1} to "
                        f"{(i + 1) * d} of every word, and word after word; it holds others.",
                        inputs,
                        expected=piece,
                        got=heads[:, i],
                    )

    @points(1)
    def test_equal_sizes_and_sizes_of_one_work(self, answer, rng):
        for sizes in ((2, 3, 3, 4), (3, 3, 2, 4), (2, 3, 2, 4), (2, 5, 3, 3), (4, 4, 4, 4)):
            answer.matches(split_inputs(rng, *sizes))
        for sizes in ((1, 3, 2, 4), (2, 1, 3, 4), (2, 3, 1, 4), (2, 3, 4, 1), (1, 1, 1, 1)):
            answer.matches(split_inputs(rng, *sizes))

    @points(1)
    def test_any_memory_order_and_float64_work(self, answer, rng):
        inputs = split_inputs(rng, 2, 3, 4, 5)
        for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
            turned = inputs["x"].permute(order).contiguous()
            back = turned.permute(*(order.index(axis) for axis in range(3)))  # not contiguous
            answer.matches(inputs | {"x": back})
        answer.matches(split_inputs(rng, 2, 3, 2, 4, dtype=torch.float64))

    @points(1)
    def test_gradients_pass_and_nothing_else_changes(self, answer, rng):
        inputs = split_inputs(rng)
        answer.gradients_match(inputs)
        moves_nothing(answer, inputs)


# --- merge_heads --------------------------------------------------------------------------------


def merge_inputs(rng, b=2, h=4, n=3, d=5, dtype=torch.float32):
    return {"x": normal(rng, b, h, n, d, dtype=dtype)}


def merge_probes(rng):
    return {
        "plain": merge_inputs(rng),
        "as many words as heads": merge_inputs(rng, 2, 3, 3, 4),
        "as many sentences as words": merge_inputs(rng, 3, 2, 3, 4),
        "as many sentences as heads": merge_inputs(rng, 2, 2, 3, 4),
        "as many words as features": merge_inputs(rng, 2, 3, 4, 4),
        "as many heads as features": merge_inputs(rng, 2, 3, 5, 3),
        "all equal": merge_inputs(rng, 3, 3, 3, 3),
        "one head": merge_inputs(rng, 2, 1, 3, 4),
        "heads of width one": merge_inputs(rng, 2, 3, 4, 1),
        "one sentence": merge_inputs(rng, 1, 2, 4, 3),
        "one word": merge_inputs(rng, 3, 2, 1, 4),
        "double": merge_inputs(rng, 2, 2, 3, 4, dtype=torch.float64),
    }


def merge_small(rng):
    for inputs in split_small(rng):
        yield {"x": reference.split_heads(inputs["x"], inputs["num_heads"]).contiguous()}


def merge_maps(rng):
    return [
        ("one sentence of three words, two heads", merge_inputs(rng, 1, 2, 3, 2), ("x",)),
        ("two sentences of two words, two heads", merge_inputs(rng, 2, 2, 2, 2), ("x",)),
    ]


class TestMergeHeads:
    task = Task(
        name="merge_heads",
        reference=reference.merge_heads,
        returns=("merged",),
        difficulty=2,
        minutes=10,
        section="project-split",
        hints=(
            "This is `split_heads` read backwards: what happened last there is undone first here.",
            "The features of one word must become neighbors again: first its piece of head 1, "
            "then its piece of head 2, and so on. As it comes, all words of head 1 lie together.",
            "In einops, turn your pattern of `split_heads` around. In torch: swap the axes of "
            "heads and words, then join the last two axes (`reshape` copies where it must, `view` "
            "refuses).",
        ),
        probes=merge_probes,
        differentiated=("plain",),
        small=merge_small,
        maps=merge_maps,
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_every_word_gets_one_vector_of_full_width(self, answer, rng):
        for b, h, n, d in ((2, 4, 3, 5), (5, 3, 4, 2), (3, 6, 2, 4)):
            inputs = merge_inputs(rng, b, h, n, d)
            has_shape("merged", answer(inputs), "(b n (h d))", b, n, h * d, inputs=inputs)

    @points(1)
    def test_the_pieces_of_a_word_stand_side_by_side(self, answer, rng):
        for b, h, n, d in ((1, 2, 4, 3), (2, 3, 5, 4), (3, 4, 2, 5)):
            inputs = merge_inputs(rng, b, h, n, d)
            merged = answer(inputs)
            has_shape("merged", merged, "(b n (h d))", b, n, h * d, inputs=inputs)
            for i in range(h):
                got, piece = merged[:, :, i * d : (i + 1) * d], inputs["x"][:, i]
                if not torch.equal(got, piece):
                    raise Failure(
                        f"The numbers {i * d + 1} to {(i + 1) * d} of every word should be those "
                        f"of head {i + 1}, for that word; they are others.",
                        inputs,
                        expected=piece,
                        got=got,
                    )

    @points(1)
    def test_equal_sizes_and_sizes_of_one_work(self, answer, rng):
        for sizes in ((2, 3, 3, 4), (3, 2, 3, 4), (2, 2, 3, 4), (2, 3, 4, 4), (4, 4, 4, 4)):
            answer.matches(merge_inputs(rng, *sizes))
        answer.matches(merge_inputs(rng, 2, 3, 5, 3))
        for sizes in ((1, 3, 2, 4), (2, 1, 3, 4), (2, 3, 1, 4), (2, 3, 4, 1), (1, 1, 1, 1)):
            answer.matches(merge_inputs(rng, *sizes))

    @points(1)
    def test_any_memory_order_and_float64_work(self, answer, rng):
        inputs = merge_inputs(rng)
        for order in ((0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0)):
            turned = inputs["x"].permute(order).contiguous()
            back = turned.permute(*(order.index(axis) for axis in range(4)))  # not contiguous
            answer.matches({"x": back})
        answer.matches(merge_inputs(rng, 2, 2, 3, 4, dtype=torch.float64))

    @points(1)
    def test_gradients_pass_and_nothing_else_changes(self, answer, rng):
        inputs = merge_inputs(rng)
        answer.gradients_match(inputs)
        moves_nothing(answer, inputs)


# --- MultiHeadAttention -------------------------------------------------------------------------

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def layer_as_function(cls):
    """The layer as a function of its sizes, its inputs and its weights by name.

    Without weights, the layer's own are replaced by random ones, whatever their names are: enough
    for all that must hold with any weights. Further inputs: `projections`, "identity" for weights
    that do nothing; `dropout`; `training`; `further`, "random" for other numbers in whatever else
    the layer learns; and `earlier`, whether the layer has been used before: "other words" of the
    same number, under another mask, or "longer" sentences.
    """

    def function(
        *,
        model_width,
        num_heads,
        query,
        key,
        value,
        mask=None,
        projections="random",
        dropout=None,
        training=False,
        further="its own",
        earlier="never",
        **weights,
    ):
        make = cls if dropout is None else functools.partial(cls, dropout=dropout)
        layer = made(make, model_width, num_heads, training=training).to(query.dtype)
        if projections == "identity":
            weights = identity(model_width)
        weights = weights or own_weights(layer)
        there = dict(layer.named_parameters(remove_duplicate=False))  # a layer may have two names
        # Where a projection is missing, `forward` has the first word: perhaps it is not begun.
        if not there.keys() >= weights.keys() and layer(query, key, value) is None:
            return None
        if further == "random":
            copied = {id(there[name]) for name in weights if name in there}
            own = own_weights(layer)
            own = {n: w for n, w in own.items() if there[n].requires_grad}
            weights = {n: w for n, w in own.items() if id(there[n]) not in copied} | weights
        weights = {name: torch.as_tensor(w, dtype=query.dtype) for name, w in weights.items()}
        if earlier == "other words":
            hidden = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool)
            hidden[:, 0] = False
            with_weights(layer, weights, query.exp(), key.exp(), value.exp(), mask=hidden)
        if earlier == "longer":
            longer = torch.ones(query.shape[0] + 1, query.shape[1] + 2, model_width).to(query)
            with_weights(layer, weights, longer, longer, longer, mask=causal(longer.shape[1]))
        keywords = {} if mask is None else {"mask": mask}
        return with_weights(layer, weights, query, key, value, **keywords)

    return function


def own_weights(layer: nn.Module):
    """Random weights for the parameters that a layer has, the same for the same name."""
    return {
        name: normal(torch.Generator().manual_seed(zlib.crc32(name.encode())), *parameter.shape)
        / max(1, parameter.shape[-1] if parameter.ndim else 1) ** 0.5
        for name, parameter in layer.named_parameters()
    }


def identity(m):
    """Projections that change nothing, so that a result can be checked in the head."""
    weights = {f"{name}.weight": torch.eye(m, device="cpu") for name in PROJECTIONS}
    return weights | {f"{name}.bias": torch.zeros(m, device="cpu") for name in PROJECTIONS}


def random_projections(rng, m, dtype=torch.float32):
    weights = {}
    for name in PROJECTIONS:
        weights[f"{name}.weight"] = normal(rng, m, m, dtype=dtype) / m**0.5
        weights[f"{name}.bias"] = normal(rng, m, dtype=dtype) / 2
    # A list, which gets no gradient: this bias adds the same to all scores of a row, so that its
    # gradient is zero up to rounding, and rounding is nothing to be judged by.
    weights["k_proj.bias"] = weights["k_proj.bias"].tolist()
    return weights


def layer_inputs(
    rng, b=2, q=4, k=5, m=6, h=2, mask=None, dtype=torch.float32, weights=True, **options
):
    inputs = {
        "model_width": m,
        "num_heads": h,
        "query": normal(rng, b, q, m, dtype=dtype),
        "key": normal(rng, b, k, m, dtype=dtype),
        "value": normal(rng, b, k, m, dtype=dtype),
        "mask": mask,
    }
    return inputs | options | (random_projections(rng, m, dtype) if weights else {})


def sentence_inputs(rng, b=2, n=4, m=6, h=2, **options):
    """Self-attention: query, key and value are the same sentences."""
    inputs = layer_inputs(rng, b, n, n, m, h, **options)
    return inputs | dict.fromkeys(("key", "value"), inputs["query"])


def large_layer(rng, size=1e4, mask=None, b=2, q=3, k=4, **options):
    """Scores near ±`size` after scaling, in every head all of them whole numbers, in any order."""
    inputs = layer_inputs(rng, b, q, k, m=8, h=2, weights=False, mask=mask) | options
    query, key = torch.zeros(b, q, 8), torch.zeros(b, k, 8)
    for first in (0, 4):  # the first feature of a head; √d = 2, so that scores are that of a key
        query[..., first] = 2.0
        order = torch.rand(b, k, generator=rng, device="cpu").argsort(-1)
        key[..., first] = size + order.to(torch.float32)
    return inputs | {"query": query, "key": key, "projections": "identity"}


def rows_far_apart(rng):
    """Rows of scores near 1e4, 0 and -1e4: no single shift serves them all."""
    inputs = large_layer(rng)
    return inputs | {"query": inputs["query"] * torch.tensor([[1.0], [0.0], [-1.0]])}


def hidden_winner(rng, high):
    """Scores of hidden keys lie `high` above all others."""
    mask = mixed_mask(rng, 2, 1, 4)
    inputs = large_layer(rng, size=0.0, mask=mask)
    key = inputs["key"].clone()
    key[..., ::4] += high * ~mask[:, 0, :, None]
    return inputs | {"key": key}


DROPPED = 0.25


def revealing_inputs(rng, b=8, q=24, k=3, h=2, dropout=DROPPED, training=True):
    """Inputs for which the output shows the weights that were used, twice for every head.

    Value j is 1 in the features j and k + j of each head and 0 in all others; what comes out of a
    head is its row of weights, followed by the same row.
    """
    m = 2 * h * k
    inputs = layer_inputs(rng, b, q, k, m, h, weights=False)
    inputs["value"] = torch.eye(k).repeat(1, 2 * h).expand(b, k, m).contiguous()
    options = {"projections": "identity", "dropout": dropout, "training": training}
    return inputs | options | {"query": inputs["query"] / 2}


def used_weights(answer, inputs, **options):
    """The weights (b h q k) that averaged the values, their copy, and those returned."""
    output, weights = answer(inputs, **options)
    b, q, m = inputs["query"].shape
    h, k = inputs["num_heads"], inputs["key"].shape[1]
    has_shape("output", output, "(b q m)", b, q, m, inputs=inputs)
    has_shape("weights", weights, "(b h q k)", b, h, q, k, inputs=inputs)
    shown = output.reshape(b, q, h, 2, k).permute(3, 0, 2, 1, 4)
    return shown[0], shown[1], weights


def is_close(left, right):
    return (left - right).abs() < 1e-4


def reads_everything(answer, rng):
    """Assert that every feature of query and key can move the weights of every head."""
    inputs = layer_inputs(rng, 2, 3, 4, m=6, h=3, weights=False)
    _, before = answer(inputs)
    has_shape("weights", before, "(b h q k)", 2, 3, 3, 4, inputs=inputs)
    for name in ("query", "key"):
        for feature in (0, 3, 5):
            changed = inputs[name].clone()
            changed[:, :2, feature] += 2.0
            _, after = answer(inputs | {name: changed})
            for head in range(3):
                if is_close(before[:, head], after[:, head]).all():
                    raise Failure(
                        f"Feature {feature + 1} of {name} changed, and the weights of head "
                        f"{head + 1} stayed as they were. Every head should read the whole vector.",
                        inputs,
                    )


def layer_traits(answer):
    """Yes-or-no evidence that numbers cannot give: what chance does, and what each head reads."""

    def fresh():
        return torch.Generator().manual_seed(0)

    def call(**options):
        return used_weights(answer, revealing_inputs(fresh(), b=4, **options))

    def reads():
        inputs = layer_inputs(fresh(), 2, 3, 4, m=6, h=3, weights=False)
        changed = inputs["query"].clone()
        changed[..., [0, 5]] += torch.tensor([2.0, -2.0])
        before, after = answer(inputs)[1], answer(inputs | {"query": changed})[1]
        return all(not is_close(before[:, head], after[:, head]).all() for head in range(3))

    def exact():
        inputs = layer_inputs(fresh(), m=8, weights=False, dtype=torch.float64)
        return (answer(inputs)[1].sum(-1) - 1).abs().max().item() < 1e-10

    def dropout():
        still, _, whole = call(dropout=None, training=False)
        used, copy, returned = call()
        kept = used > 1e-4
        later, _, _ = call(training=False)
        yield "changes in evaluation", not is_close(still, later).all().item()
        yield "drops in evaluation", ((later < 1e-4) & (still > 0.01)).any().item()
        yield "drops by default", not is_close(still, call(dropout=None)[0]).all().item()
        yield "drops in training", not is_close(still, used).all().item()
        yield "returns dropped weights", not is_close(whole, returned).all().item()
        yield "drops a weight as a whole", is_close(used, copy).all().item()
        yield "what is kept stays as it was", is_close(used, whole)[kept].all().item()
        yield "what is kept grows", is_close(used, whole / (1 - DROPPED))[kept].all().item()
        yield "what is kept grows too much", is_close(used, whole / DROPPED)[kept].all().item()
        yield "what is kept sums to one", is_close(used.sum(-1), 1.0)[kept.any(-1)].all().item()
        yield "each query drops its own", not (kept == kept[:, :, :1]).all().item()

    facts = {}
    for name, question in (("heads read everything", reads), ("rows sum to one exactly", exact)):
        with contextlib.suppress(Failure):  # to fail, too, is no trait
            facts[name] = question()
    with contextlib.suppress(Failure):
        facts |= dict(dropout())
    facts["resets the random state"] = answer.resets_random_state(revealing_inputs(fresh(), b=1))
    return facts


def layer_probes(rng):
    return {
        "plain": layer_inputs(rng, 3, 4, 5, m=8, h=2),
        "all equal": layer_inputs(rng, 3, 3, 3, m=9, h=3),
        "one head": layer_inputs(rng, 2, 3, 4, m=4, h=1),
        "heads of width one": layer_inputs(rng, 2, 4, 3, m=3, h=3),
        "mask (q k)": layer_inputs(rng, 2, 4, 5, m=6, h=3, mask=mixed_mask(rng, 4, 5)),
        "mask (q k), as many heads as queries": layer_inputs(
            rng, 2, 3, 5, m=6, h=3, mask=mixed_mask(rng, 3, 5), training=True
        ),
        "mask (b q k), as many sentences as heads": layer_inputs(
            rng, 2, 3, 5, m=8, h=2, mask=mixed_mask(rng, 2, 3, 5)
        ),
        "padding (b 1 k)": layer_inputs(rng, 3, 4, 5, m=4, h=2, mask=mixed_mask(rng, 3, 1, 5)),
        "causal": sentence_inputs(rng, 2, 4, m=8, h=4, mask=causal(4)),
        "dead row": layer_inputs(rng, 2, 4, 5, m=6, h=2, mask=dead_mask(rng, 2, 4, 5)),
        "used before": layer_inputs(rng, 2, 3, 4, m=6, h=2, earlier="other words"),
        "rows far apart": rows_far_apart(rng),
        "large negative, masked": large_layer(rng, -30_000.0, mixed_mask(rng, 2, 3, 4)),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
    }


def layer_small(rng):
    def example(b, q, k, m, h, mask=None, projections="identity", **options):
        inputs = {
            "model_width": m,
            "num_heads": h,
            "query": integers(rng, b, q, m),
            "key": integers(rng, b, k, m),
            "value": integers(rng, b, k, m, low=0, high=9),
            "mask": mask,
            "projections": projections,
        }
        if projections == "random":
            inputs |= random_projections(rng, m)
        return inputs | options

    sizes = ((1, 1, 1, 1, 1), (1, 1, 2, 1, 1), (1, 1, 2, 2, 1), (1, 1, 2, 2, 2), (1, 2, 2, 2, 2))
    larger = ((1, 2, 3, 2, 2), (1, 2, 2, 4, 2), (1, 2, 3, 4, 2), (2, 2, 2, 2, 2))
    for projections in ("identity", "random"):
        for size in sizes + larger:
            for _ in range(2):
                yield example(*size, projections=projections)
    for b, q, k, m, h in sizes[1:] + larger:
        for shape in ((q, k), (b, q, k)):
            mask = torch.rand(shape, generator=rng, device="cpu") > 0.5
            mask[..., 0] |= ~mask.any(-1)
            yield example(b, q, k, m, h, mask)
    for b, h in ((2, 2), (3, 2)):
        yield example(b, 3, 3, 2 * h, h, mixed_mask(rng, b, 3, 3))
    yield example(1, 1, 2, 1, 1, torch.tensor([[False, False]]))
    yield example(1, 2, 2, 2, 1, torch.tensor([[True, False], [False, False]]))
    yield example(1, 2, 2, 2, 1, torch.tensor([[True, False], [False, False]]), "random")
    yield example(1, 2, 2, 2, 1, earlier="other words")
    yield example(1, 2, 2, 2, 1, training=True)
    yield example(1, 2, 2, 2, 1, dropout=0.5)
    masks = {"all": None, "the first": torch.tensor([[True, False]])}
    for first, second, seen in (
        (100.0, 101.0, "all"),
        (1e4, 1e4 + 1, "all"),
        (-1e5, -1e5 + 1, "the first"),
        (0.0, 3e4, "the first"),
    ):
        yield {
            "model_width": 1,
            "num_heads": 1,
            "query": torch.tensor([[[1.0]]]),
            "key": torch.tensor([[[first], [second]]]),
            "value": torch.tensor([[[1.0], [2.0]]]),
            "mask": masks[seen],
            "projections": "identity",
        }


def layer_maps(rng):
    everything = ("query", "key", "value")
    four = {"n": 4, "m": 4, "h": 2, "weights": False}
    return [
        (
            "one sentence of four words, causal mask, two heads",
            sentence_inputs(rng, 1, mask=causal(4), **four),
            everything,
        ),
        (
            "two sentences of two words, two heads",
            sentence_inputs(rng, 2, **four | {"n": 2}),
            everything,
        ),
    ]


def only_made(cls):
    """An `adapt` that makes the layer and does nothing with it."""

    def make(**sizes):
        cls(*sizes.values())

    return make


class TestMultiHeadAttention:
    task = Task(
        name="MultiHeadAttention",
        reference=reference.MultiHeadAttention,
        returns=("output", "weights"),
        difficulty=4,
        minutes=35,
        section="multihead-code",
        hints=(
            "Five steps: project, split, attend, merge, project. In `__init__` make only what has "
            "weights, and the dropout; all else happens in `forward`. Write the axes beside every "
            "line: (b q m), (b h q d), (b h q k).",
            "Heads are one more leading axis, so attention itself is chapter 3's. A mask (b q k) "
            "has no axis for heads yet: where would it meet them if it stayed so? And the weights "
            "you return are those that no dropout has touched.",
            "q = split(self.q_proj(query)), k and v alike; scores = q·k over d, divided by the "
            "root of the width of one head; a mask with three axes gets one of length 1 after b; "
            "weights as in chapter 3; heads = dropout(weights) times v; return "
            "self.out_proj(merge(heads)) and the weights.",
        ),
        probes=layer_probes,
        adapt=layer_as_function,
        differentiated=("plain", "dead row"),
        small=layer_small,
        maps=layer_maps,
        traits=layer_traits,
        features=1,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_it_returns_an_output_and_the_weights_of_every_head(self, answer, rng):
        for b, q, k, m, h in ((2, 4, 5, 6, 3), (3, 5, 2, 8, 4)):
            inputs = layer_inputs(rng, b, q, k, m, h, weights=False)
            output, weights = answer(inputs)
            has_shape("output", output, "(b q m)", b, q, m, inputs=inputs)
            has_shape("weights", weights, "(b h q k)", b, h, q, k, inputs=inputs)

    @points(1)
    def test_every_row_of_weights_sums_to_one(self, answer, rng):
        inputs = layer_inputs(rng, 2, 4, 5, m=6, h=3, weights=False)
        _, weights = answer(inputs)
        if (weights < 0).any():
            raise Failure("Some weights are negative.", inputs, got=weights)
        compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 3, 4), inputs)

    @points(1)
    def test_each_head_reads_the_whole_embedding(self, answer, rng):
        reads_everything(answer, rng)

    @points(1)
    def test_sentences_do_not_see_each_other(self, answer, rng):
        for b, n in ((3, 4), (4, 4)):
            inputs = sentence_inputs(rng, b, n, weights=False)
            other = inputs["query"].clone()
            other[1] += 1.0
            before = answer(inputs)
            after = answer(inputs | dict.fromkeys(("query", "key", "value"), other))
            for name, one, two in zip(("output", "weights"), before, after, strict=True):
                if one.shape[0] != b or not is_close(one, two)[[0, *range(2, b)]].all():
                    raise Failure(
                        f"Sentence 2 of {b} changed, and so did the {name} of other sentences. "
                        "Words may look only at words of their own sentence.",
                        inputs,
                    )

    @points(1)
    def test_with_a_causal_mask_a_word_depends_on_all_words_so_far(self, answer, rng):
        inputs = sentence_inputs(rng, 1, 4, mask=causal(4), weights=False)
        before, _ = answer(inputs)
        for changed in range(4):
            words = inputs["query"].clone()
            words[:, changed] += normal(rng, 6)
            after, _ = answer(inputs | dict.fromkeys(("query", "key", "value"), words))
            has_shape("output", after, "(b q m)", 1, 4, 6, inputs=inputs)
            moved = ~is_close(before, after)[0].all(-1)
            if moved[:changed].any():
                raise Failure(
                    f"Word {changed + 1} changed, and so did the output of an earlier word, from "
                    "which the mask hides it.",
                    inputs,
                )
            if not moved[changed:].all():
                raise Failure(
                    f"Word {changed + 1} changed, and the output of a word that may look at it "
                    "did not.",
                    inputs,
                )

    @points(3)
    def test_with_copied_weights_it_matches_the_formula(self, answer, rng):
        answer.matches(layer_inputs(rng, 3, 4, 5, m=6, h=2))
        answer.matches(layer_inputs(rng, 2, 5, 3, m=12, h=3))
        answer.matches(sentence_inputs(rng, 2, 5, m=8, h=4))
        answer.matches(layer_inputs(rng, 2, 3, 4, m=20, h=2))
        for h in (2, 8):  # √d is 2 and 1
            answer.matches(layer_inputs(rng, 2, 3, 5, m=8, h=h, dtype=torch.float64))
        self.nothing_else_is_learned(answer, layer_inputs(rng))
        turned = layer_inputs(rng, 2, 3, 4, m=6, h=2)  # the same numbers, not contiguous
        turned |= {name: turned[name].mT.contiguous().mT for name in ("query", "key", "value")}
        answer.matches(turned)

    @points(1)
    def test_equal_sizes_and_sizes_of_one_work(self, answer, rng):
        answer.matches(layer_inputs(rng, 3, 3, 3, m=9, h=3))
        answer.matches(layer_inputs(rng, 2, 2, 2, m=4, h=2))
        answer.matches(layer_inputs(rng, 2, 3, 4, m=4, h=1))  # one head
        answer.matches(layer_inputs(rng, 2, 4, 3, m=3, h=3))  # heads of width one
        answer.matches(layer_inputs(rng, 1, 3, 4, m=6, h=3))
        answer.matches(layer_inputs(rng, 2, 1, 4, m=6, h=2))
        answer.matches(layer_inputs(rng, 2, 3, 1, m=6, h=2))
        answer.matches(layer_inputs(rng, 1, 1, 1, m=1, h=1))

    @points(1)
    def test_large_scores_stay_finite(self, answer, rng):
        answer.matches(large_layer(rng), tolerance=5e-3)
        answer.matches(large_layer(rng, size=-1e4), tolerance=5e-3)
        answer.matches(rows_far_apart(rng), tolerance=5e-3)

    @points(2)
    def test_a_mask_holds_in_every_head(self, answer, rng):
        answer.matches(layer_inputs(rng, 2, 4, 5, m=6, h=3, mask=mixed_mask(rng, 4, 5)))
        answer.matches(layer_inputs(rng, 2, 4, 5, m=6, h=3, mask=mixed_mask(rng, 2, 4, 5)))
        answer.matches(layer_inputs(rng, 3, 4, 5, m=6, h=2, mask=mixed_mask(rng, 3, 1, 5)))
        answer.matches(sentence_inputs(rng, 2, 4, m=8, h=4, mask=causal(4)))
        everything = torch.ones(4, 5, dtype=torch.bool)
        answer.matches(layer_inputs(rng, mask=everything))
        # Where sizes are equal, a mask can be laid on the wrong axes without an error.
        answer.matches(layer_inputs(rng, 3, 3, 4, m=6, h=3, mask=mixed_mask(rng, 3, 3, 4)))
        answer.matches(layer_inputs(rng, 2, 3, 4, m=6, h=2, mask=mixed_mask(rng, 2, 1, 4)))
        answer.matches(layer_inputs(rng, 2, 3, 3, m=6, h=3, mask=mixed_mask(rng, 3, 3)))
        answer.matches(layer_inputs(rng, 1, 3, 4, m=6, h=3, mask=mixed_mask(rng, 1, 3, 4)))
        double = {"m": 8, "dtype": torch.float64}
        answer.matches(layer_inputs(rng, mask=mixed_mask(rng, 4, 5), **double))
        trained = layer_inputs(rng, mask=mixed_mask(rng, 4, 5), training=True)
        answer.matches(trained)
        masked = large_layer(rng, -30_000.0, mixed_mask(rng, 3, 4))
        answer.matches(masked, tolerance=5e-3)
        for high in (300.0, 3e5):  # hidden keys with by far the best scores
            answer.matches(hidden_winner(rng, high))
        inputs = layer_inputs(rng, mask=mixed_mask(rng, 4, 5))
        _, weights = answer(inputs)
        if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
            raise Failure("A hidden key keeps a little weight.", inputs, got=weights)

    @points(1)
    def test_a_query_with_nothing_to_attend_to_gets_the_last_bias(self, answer, rng):
        inputs = layer_inputs(rng, mask=dead_mask(rng, 2, 4, 5))
        output, weights = answer(inputs)
        has_shape("output", output, "(b q m)", 2, 4, 6, inputs=inputs)
        has_shape("weights", weights, "(b h q k)", 2, 2, 4, 5, inputs=inputs)
        if not (weights[:, :, 1] == 0).all():
            raise Failure(
                "Query 2 may attend to nothing, so its weights are 0 in every head; yours are not.",
                inputs,
                got=weights[:, :, 1],
            )
        bias = inputs["out_proj.bias"].expand(2, 6)
        compare("the output of a query with nothing to attend to", output[:, 1], bias, inputs)
        answer.matches(inputs, gradient=True)
        answer.matches(layer_inputs(rng, mask=dead_mask(rng, 4, 5)))
        empty_sentence = mixed_mask(rng, 3, 1, 5)
        empty_sentence[1] = False
        answer.matches(layer_inputs(rng, 3, mask=empty_sentence), gradient=True)

    @points(1)
    def test_outside_training_nothing_is_dropped(self, answer, rng):
        inputs = layer_inputs(rng, weights=False)
        expected = answer(inputs)
        for options, said in (
            ({"dropout": 0.5}, "In evaluation, a layer made with dropout=0.5 should drop nothing"),
            ({"training": True}, "A layer made without a dropout should drop nothing in training"),
            ({"dropout": 0.0, "training": True}, "dropout=0.0 should drop nothing in training"),
        ):
            got = answer(inputs | options)
            for name, one, two in zip(("output", "weights"), expected, got, strict=True):
                if one.shape != two.shape or not is_close(one, two).all():
                    raise Failure(f"{said}, but the {name} changed.", inputs | options)

    @points(2)
    def test_dropout_acts_on_the_weights(self, answer, rng):
        inputs = revealing_inputs(rng)
        used, copy, returned = used_weights(answer, inputs)
        _, _, whole = used_weights(answer, inputs | {"dropout": None, "training": False})
        whole_rows = "The weights you return should be those from before dropout"
        if not is_close(returned, whole).all():
            raise Failure(f"{whole_rows}: in training they changed.", inputs)
        if is_close(used, whole).all():
            raise Failure("In training, a layer made with dropout=0.25 drops nothing.", inputs)
        if not is_close(used, copy).all():
            raise Failure(
                "Dropout took single features of an output or a value. It should act on weights: "
                "a word is seen by a head or it is not, with all its features.",
                inputs,
            )
        kept, large = used > 1e-4, whole > 0.01
        if not is_close(used, whole / (1 - DROPPED) * kept).all():
            raise Failure(
                "With dropout=0.25, a weight that is used should be 0 or the weight divided by "
                "0.75; some of yours are neither.",
                inputs,
            )
        for axis, name in enumerate(("sentence", "head", "query", "key")):
            if kept.any() and (kept == kept.narrow(axis, 0, 1)).all():
                raise Failure(
                    f"Every {name} lost the same weights; each should draw for itself.", inputs
                )
        share = (~kept)[large].double().mean().item()
        if abs(share - DROPPED) > 0.08:
            raise Failure(f"With dropout=0.25, {share:.0%} of the weights were dropped.", inputs)
        if answer.resets_random_state(inputs):
            raise Failure(
                "After your layer, the global random generator is always in the same state: a "
                "`manual_seed` in `forward` makes everybody's later draws repeat.",
                inputs,
            )
        dead = inputs | {"mask": dead_mask(rng, 24, 3)}
        output, _ = answer(dead)
        if (output[:, 1].abs() > 1e-6).any():
            raise Failure("With dropout, a query that may attend to nothing sees something.", dead)

    @points(1)
    def test_gradients_reach_the_inputs_and_every_projection(self, answer, rng):
        answer.gradients_match(layer_inputs(rng, 3, 4, 5, m=6, h=2))
        answer.gradients_match(layer_inputs(rng, mask=mixed_mask(rng, 4, 5)))
        answer.gradients_match(layer_inputs(rng, mask=mixed_mask(rng, 2, 4, 5), training=True))

    @points(1)
    def test_it_keeps_nothing_from_one_call_to_the_next(self, answer, rng):
        moves_nothing(answer, layer_inputs(rng))
        moves_nothing(answer, layer_inputs(rng, mask=mixed_mask(rng, 4, 5)))
        moves_nothing(answer, layer_inputs(rng, mask=mixed_mask(rng, 2, 4, 5), dropout=0.5))
        for inputs in (
            layer_inputs(rng, 2, 3, 3),
            layer_inputs(rng, 2, 3, 4, mask=mixed_mask(rng, 3, 4)),
            layer_inputs(rng, 3, 4, 4, mask=mixed_mask(rng, 3, 4, 4)),
        ):
            for earlier in ("other words", "longer"):
                used = inputs | {"earlier": earlier}
                self.compare_calls(answer(inputs), answer(used), used)
        made_twice = [
            answer.observe({"model_width": 6, "num_heads": 2}, adapt=only_made, seed=seed)
            for seed in (1, 2)
        ]
        if any(one == two for one, two in zip(*(m.random_states for m in made_twice), strict=True)):
            raise Failure(
                "After your layer is made, the global random generator is always in the same "
                "state: leave `manual_seed` to the caller."
            )

    def nothing_else_is_learned(self, answer, inputs):
        other = inputs | {"further": "random"}
        for one, two in zip(answer(inputs), answer(other), strict=True):
            if one.shape != two.shape or not is_close(one, two).all():
                raise Failure(
                    "Your layer learns something besides its four projections: other numbers there "
                    "change its output, even with the same weights copied into it.",
                    inputs,
                )

    def compare_calls(self, first, later, inputs):
        for name, one, two in zip(("output", "weights"), first, later, strict=True):
            if one.shape != two.shape or not is_close(one, two).all():
                raise Failure(
                    f"The {name} is another one when the layer was called before, with other "
                    "sentences and another mask. Does it keep something of them in `self`?",
                    inputs,
                )


# --- attention_parameters -----------------------------------------------------------------------


def count_inputs(model_width, num_heads, num_layers, head_width=None):
    inputs = {"model_width": model_width, "num_heads": num_heads, "num_layers": num_layers}
    return inputs if head_width is None else inputs | {"head_width": head_width}


GPT_3 = count_inputs(12_288, 96, 96)
LARGE_AND_ODD = count_inputs(12_321, 111, 97)  # float32 would round this count


def count_probes(rng):
    return {
        "plain": count_inputs(12, 3, 5),
        "one layer": count_inputs(20, 4, 1),
        "one head": count_inputs(7, 1, 3),
        "as many heads as layers": count_inputs(12, 4, 4),
        "heads of width one": count_inputs(5, 5, 2),
        "narrower heads": count_inputs(12, 3, 2, 2),
        "wider heads": count_inputs(10, 4, 3, 8),
        "heads as wide as the model": count_inputs(6, 2, 3, 6),
        "heads that do not divide the width": count_inputs(10, 3, 2, 7),
        "heads of width one, by name": count_inputs(6, 2, 3, 1),
        "the usual width, by name": count_inputs(12, 3, 5, 4),
        "large and odd": LARGE_AND_ODD,
        "GPT-3": GPT_3,
    }


def count_small(rng):
    yield count_inputs(1, 1, 1)
    yield count_inputs(2, 1, 1)
    yield count_inputs(2, 2, 1)
    yield count_inputs(2, 1, 2)
    yield count_inputs(2, 1, 1, 1)
    yield count_inputs(1, 2, 1, 3)
    yield count_inputs(4, 2, 3)
    yield count_inputs(3, 2, 2, 5)
    yield GPT_3
    yield LARGE_AND_ODD


def count_traits(answer):
    # The numbers of all probes are compared as if they were measured.
    return {"large numbers are exact": answer(LARGE_AND_ODD) == answer.expected(LARGE_AND_ODD)}


class TestAttentionParameters:
    task = Task(
        name="attention_parameters",
        reference=reference.attention_parameters,
        returns=int,
        difficulty=1,
        minutes=10,
        section="gpt3-parameters",
        hints=(
            "Start with one head. How many numbers does each of its matrices hold, and how many "
            "matrices has it?",
            "A head has three matrices from the model's width to its own, and a block of the "
            "output matrix for the way back. How often does each layer have a head, and how often "
            "does the model have a layer?",
            "head_width is model_width // num_heads where none is given (`//`, so that it stays "
            "whole). One matrix of one head: model_width times head_width. Multiply by the number "
            "of matrices, of heads and of layers.",
        ),
        probes=count_probes,
        traits=count_traits,
        small=count_small,
        forbidden=FUSED_ATTENTION,
    )

    @points(1)
    def test_it_returns_a_whole_number(self, answer):
        for inputs in (count_inputs(12, 3, 5), count_inputs(10, 3, 2, 7)):
            answer(inputs)
            if isinstance(answer.observe(inputs).returned, torch.Tensor):
                raise Failure("Your answer returned a tensor; a plain int is expected.", inputs)

    @points(1)
    def test_four_matrices_a_head_in_every_head_and_layer(self, answer, rng):
        for sizes in ((4, 2, 1), (12, 3, 5), (7, 1, 3), (5, 5, 2), (12, 4, 4), (1, 1, 1)):
            answer.matches(count_inputs(*sizes))
        for _ in range(4):
            heads, layers, width = torch.randint(1, 30, (3,), generator=rng).tolist()
            answer.matches(count_inputs(heads * width, heads, layers))

    @points(1)
    def test_a_head_may_have_any_width(self, answer, rng):
        for sizes in ((12, 3, 2, 2), (10, 4, 3, 8), (6, 2, 3, 6), (10, 3, 2, 7), (6, 2, 3, 1)):
            answer.matches(count_inputs(*sizes))
        answer.matches(count_inputs(12, 3, 5, 4))
        answer.matches(count_inputs(1024, 128, 24, 128))  # the largest T5
        for _ in range(4):
            answer.matches(count_inputs(*torch.randint(1, 30, (4,), generator=rng).tolist()))

    @points(1)
    def test_gpt_3_is_counted_to_the_last_parameter(self, answer):
        answer.matches(LARGE_AND_ODD)
        got = answer(GPT_3)
        if got != 57_982_058_496:
            raise Failure(
                f"GPT-3 has 57,982,058,496 parameters in its attention layers; you count {got:,}.",
                GPT_3,
                57_982_058_496,
                got,
            )
