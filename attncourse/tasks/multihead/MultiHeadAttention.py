"""MultiHeadAttention."""

import contextlib
import functools
import math
import zlib

import torch
import torch.nn.functional as F
from torch import nn

from attncourse import multihead as reference
from attncourse.checks.answer import Failure, compare, moves_nothing
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, with_weights
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.tasks.multihead import has_shape

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


task = Task(
    reference.MultiHeadAttention,
    number=3,
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


def nothing_else_is_learned(answer, inputs):
    other = inputs | {"further": "random"}
    for one, two in zip(answer(inputs), answer(other), strict=True):
        if one.shape != two.shape or not is_close(one, two).all():
            raise Failure(
                "Your layer learns something besides its four projections: other numbers there "
                "change its output, even with the same weights copied into it.",
                inputs,
            )


def compare_calls(first, later, inputs):
    for name, one, two in zip(("output", "weights"), first, later, strict=True):
        if one.shape != two.shape or not is_close(one, two).all():
            raise Failure(
                f"The {name} is another one when the layer was called before, with other "
                "sentences and another mask. Does it keep something of them in `self`?",
                inputs,
            )


@task.check(1)
def it_returns_an_output_and_the_weights_of_every_head(answer, rng):
    for b, q, k, m, h in ((2, 4, 5, 6, 3), (3, 5, 2, 8, 4)):
        inputs = layer_inputs(rng, b, q, k, m, h, weights=False)
        output, weights = answer(inputs)
        has_shape("output", output, "(b q m)", b, q, m, inputs=inputs)
        has_shape("weights", weights, "(b h q k)", b, h, q, k, inputs=inputs)


@task.check(1)
def every_row_of_weights_sums_to_one(answer, rng):
    inputs = layer_inputs(rng, 2, 4, 5, m=6, h=3, weights=False)
    _, weights = answer(inputs)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 3, 4), inputs)


@task.check(1)
def each_head_reads_the_whole_embedding(answer, rng):
    reads_everything(answer, rng)


@task.check(1)
def sentences_do_not_see_each_other(answer, rng):
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


@task.check(1)
def with_a_causal_mask_a_word_depends_on_all_words_so_far(answer, rng):
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


@task.check(3)
def with_copied_weights_it_matches_the_formula(answer, rng):
    answer.matches(layer_inputs(rng, 3, 4, 5, m=6, h=2))
    answer.matches(layer_inputs(rng, 2, 5, 3, m=12, h=3))
    answer.matches(sentence_inputs(rng, 2, 5, m=8, h=4))
    answer.matches(layer_inputs(rng, 2, 3, 4, m=20, h=2))
    for h in (2, 8):  # √d is 2 and 1
        answer.matches(layer_inputs(rng, 2, 3, 5, m=8, h=h, dtype=torch.float64))
    nothing_else_is_learned(answer, layer_inputs(rng))
    turned = layer_inputs(rng, 2, 3, 4, m=6, h=2)  # the same numbers, not contiguous
    turned |= {name: turned[name].mT.contiguous().mT for name in ("query", "key", "value")}
    answer.matches(turned)


@task.check(1)
def equal_sizes_and_sizes_of_one_work(answer, rng):
    answer.matches(layer_inputs(rng, 3, 3, 3, m=9, h=3))
    answer.matches(layer_inputs(rng, 2, 2, 2, m=4, h=2))
    answer.matches(layer_inputs(rng, 2, 3, 4, m=4, h=1))  # one head
    answer.matches(layer_inputs(rng, 2, 4, 3, m=3, h=3))  # heads of width one
    answer.matches(layer_inputs(rng, 1, 3, 4, m=6, h=3))
    answer.matches(layer_inputs(rng, 2, 1, 4, m=6, h=2))
    answer.matches(layer_inputs(rng, 2, 3, 1, m=6, h=2))
    answer.matches(layer_inputs(rng, 1, 1, 1, m=1, h=1))


@task.check(1)
def large_scores_stay_finite(answer, rng):
    answer.matches(large_layer(rng), tolerance=5e-3)
    answer.matches(large_layer(rng, size=-1e4), tolerance=5e-3)
    answer.matches(rows_far_apart(rng), tolerance=5e-3)


@task.check(2)
def a_mask_holds_in_every_head(answer, rng):
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


@task.check(1)
def a_query_with_nothing_to_attend_to_gets_the_last_bias(answer, rng):
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


@task.check(1)
def outside_training_nothing_is_dropped(answer, rng):
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


@task.check(2)
def dropout_acts_on_the_weights(answer, rng):
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
            raise Failure(f"Every {name} lost the same weights; each should draw for it", inputs)
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


@task.check(1)
def gradients_reach_the_inputs_and_every_projection(answer, rng):
    answer.gradients_match(layer_inputs(rng, 3, 4, 5, m=6, h=2))
    answer.gradients_match(layer_inputs(rng, mask=mixed_mask(rng, 4, 5)))
    answer.gradients_match(layer_inputs(rng, mask=mixed_mask(rng, 2, 4, 5), training=True))


@task.check(1)
def it_keeps_nothing_from_one_call_to_the_next(answer, rng):
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
            compare_calls(answer(inputs), answer(used), used)
    made_twice = [
        answer.observe({"model_width": 6, "num_heads": 2}, adapt=only_made, seed=seed)
        for seed in (1, 2)
    ]
    if any(one == two for one, two in zip(*(m.random_states for m in made_twice), strict=True)):
        raise Failure(
            "After your layer is made, the global random generator is always in the same "
            "state: leave `manual_seed` to the caller."
        )


# --- faults ---------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A right answer in pieces, so that a wrong one can replace one of them."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_width = num_heads, model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)

    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.head_width)

    def aligned(self, mask):
        return mask[:, None] if mask.ndim == 3 else mask

    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)

    def average(self, weights, v):
        return self.dropout(weights) @ v

    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        return self.out_proj(self.merge(self.average(weights, v))), weights


class SlicesOfFullWidth(Layer):
    """Each head reads only its own slice: the blocks on the diagonal of the projections."""

    def project(self, query, key, value):
        d = self.head_width
        blocks = torch.block_diag(*[torch.ones(d, d)] * self.num_heads).to(query)
        return [
            F.linear(x, blocks * linear.weight, linear.bias)
            for x, linear in ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        ]


@task.fault(
    "H-SPLIT-EMBED",
    thinks="Each head gets its own slice of the embedding and works on that.",
    why="Then a head can never use a feature outside its slice. The projections come first and see "
    "the whole vector, from width m to width m; what is cut into pieces are their results.",
    section="whole-embedding",
    forms=(SlicesOfFullWidth,),
)
class Slices(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        d = model_width // num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))

    def split(self, x):
        return x

    def project(self, query, key, value):
        q, k, v = (Layer.split(self, x) for x in (query, key, value))
        return self.q_proj(q), self.k_proj(k), self.v_proj(v)


@task.fault(
    "H-VIEW-SPLIT",
    thinks="To split, I reshape the projections to (b h n d).",
    why="The shape is right, but a reshape keeps the order in memory: each head holds a few whole "
    "words instead of a piece of every word. With a causal mask, outputs then see the future.",
    section="multihead-breaks",
)
class SplitByReshape(Layer):
    def split(self, x):
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], self.head_width)


@task.fault(
    "C-NO-SWAP",
    thinks="Once each vector is cut into heads and features, attention can begin.",
    why="Attention compares along the last two axes. Yours are heads and features, so the heads of "
    "one word look at each other, and no word looks at another. The heads' axis belongs in front "
    "of the words.",
    section="project-split",
)
class SplitWithoutSwap(Layer):
    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1))

    def merge(self, x):
        return x.flatten(2)


@task.fault(
    "H-VIEW-MERGE",
    thinks="To merge, I reshape what the heads return to (b n m).",
    why="All words of head 1 lie together there, so your output mixes several words into one. The "
    "shape is right, and with a causal mask the future leaks.",
    section="multihead-breaks",
)
class MergeByReshape(Layer):
    def merge(self, x):
        b, h, n, d = x.shape
        return x.reshape(b, n, h * d)


@task.fault(
    "H-VIEW-BOTH",
    thinks="I split by a reshape and merge by a reshape, so one undoes the other.",
    why="Nothing leaks and the model trains, but each head holds a part of the words, whole, and "
    "the words of one part never see the others. The dependency map shows the blocks.",
    section="multihead-breaks",
)
class SplitAndMergeByReshape(Layer):
    def split(self, x):
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], self.head_width)

    def merge(self, x):
        b, h, n, d = x.shape
        return x.reshape(b, n, h * d)


@task.fault(
    "H-CONTIGUOUS",
    thinks="After swapping the axes back, `view` joins heads and features.",
    why="`view` never copies, and after the swap the numbers of one word no longer lie in order: "
    "an error. Do not delete the swap; use what copies where it must.",
    section="multihead-breaks",
)
class MergeByView(Layer):
    def merge(self, x):
        b, h, n, d = x.shape
        return x.transpose(1, 2).view(b, n, h * d)


@task.fault(
    "H-FUSED-LAYOUT",
    thinks="Head i takes every h-th feature of a projection, beginning with the i-th.",
    why="Trained from scratch it would work as well, but this layer must load weights that others "
    "trained, and theirs are laid out as (h d): the first d rows belong to head 1.",
    section="project-split",
)
class Interleaved(Layer):
    def split(self, x):
        return x.unflatten(-1, (-1, self.num_heads)).permute(0, 3, 1, 2)

    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


class TransposedInward(Layer):
    def project(self, query, key, value):
        inward = ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        return tuple(x @ each.weight + each.bias for x, each in inward)


class TransposedAll(TransposedInward):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        merged = self.merge(self.average(weights, v))
        return merged @ self.out_proj.weight + self.out_proj.bias, weights


@task.fault(
    "H-WO-SHAPE",
    thinks="The weight of an nn.Linear is the matrix that I multiply by from the right.",
    why="nn.Linear keeps its matrix as (out, in), the transpose of the formula's. As both sizes "
    "are m here, no error tells you. Calling the layer does it right.",
    section="sum-over-heads",
    forms=(TransposedInward, TransposedAll),
)
class TransposedOut(Layer):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        merged = self.merge(self.average(weights, v))
        return merged @ self.out_proj.weight + self.out_proj.bias, weights


class WithoutOutLayer(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        del self.out_proj

    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        return self.merge(self.average(weights, v)), weights


@task.fault(
    "H-NO-WO",
    thinks="The merged heads have the right width already, so nothing is left to do.",
    why="Without the last projection each head can write only into its own d numbers, and no two "
    "heads can add to the same feature. W^O lets each of them reach all.",
    section="sum-over-heads",
    forms=(WithoutOutLayer,),
)
class WithoutOut(Layer):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.weigh(self.score(q, k), mask)
        return self.merge(self.average(weights, v)), weights


@task.fault(
    "H-BATCH-FIRST",
    thinks="Words come first and sentences second, as in PyTorch's own layer.",
    why="Here the batch is first, (b n m). Your words attend to words at the same place of other "
    "sentences: change one sentence, and the others' outputs change.",
    section="multihead-parity",
)
class WordsFirst(Layer):
    def split(self, x):
        return super().split(x.transpose(0, 1))

    def merge(self, x):
        return super().merge(x).transpose(0, 1)


def mean_of_heads(weights):
    return weights.mean(1)


@task.fault(
    "H-AVG-WEIGHTS",
    thinks="One map of weights is returned: the mean over the heads.",
    why="A mean looks like a head, but no head need look like it: one reads *ninety*, another "
    "*four*. Return them all, (b h q k); whoever wants the mean can take it.",
    section="multihead-parity",
)
class AveragedWeights(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return output, mean_of_heads(weights)


@task.fault(
    "C-RETURNS-SCORES",
    thinks="The scores show where a head looks, so I return those.",
    why="Scores are numbers of any sign and size; they are comparable only within a row. Weights "
    "are what the values were averaged with: after the softmax, each row with sum one.",
    section="project-split",
)
class ReturnsScores(Layer):
    def forward(self, query, key, value, mask=None):
        output, _ = super().forward(query, key, value, mask)
        q, k, _ = (self.split(x) for x in self.project(query, key, value))
        scores = self.score(q, k)
        if mask is not None:
            scores = scores.masked_fill(~self.aligned(mask), torch.finfo(scores.dtype).min)
        return output, scores


@task.fault(
    "C-OUTPUT-ALONE",
    thinks="A layer returns its output; the weights are an inner matter.",
    why="Pictures and chapter 7's alignments need the weights. Return the pair: output (b q m), "
    "weights (b h q k).",
)
class OutputAlone(Layer):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, mask)[0]


@task.fault(
    "D-SCALE-DMODEL",
    thinks="Scores are divided by the root of the model's width.",
    why="A score inside a head is a sum of d products, not of m, so its variance is d. Divided by "
    "√m, scores are too small and all weights too equal, the more so the more heads.",
    section="multihead-breaks",
)
class ScaledByModelWidth(Layer):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.q_proj.in_features)


@task.fault(
    "D-NO-SCALE",
    thinks="The projections can learn the right size of the scores, so no scale is needed.",
    why="At the start they have not learned it: scores vary by √d, the softmax sits on one key, "
    "and its gradient nearly vanishes. Chapter 3's scale applies inside every head.",
    section="multihead-breaks",
)
class Unscaled(Layer):
    def score(self, q, k):
        return q @ k.mT


@task.fault(
    "D-SCALE-DK",
    thinks="Scores are divided by the width of a head.",
    why="The variance of a score is d, so its typical size is the *root* of d. Dividing by d "
    "itself makes scores too small and the weights nearly equal.",
    section="multihead-breaks",
)
class ScaledByWidth(Layer):
    def score(self, q, k):
        return q @ k.mT / self.head_width


@task.fault(
    "C-SCALE-HEADS",
    thinks="With h heads, scores are divided by the root of h.",
    why="How many heads there are plays no part in one head's score: it is a sum over the d "
    "features of that head. Where h = d both give the same, by luck.",
    section="multihead-breaks",
)
class ScaledByHeads(Layer):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.num_heads)


@task.fault(
    "D-SCALE-AFTER",
    thinks="First the softmax, then the division by √d.",
    why="After the softmax the damage is done: it has seen unscaled scores. And the rows no longer "
    "sum to one but to 1/√d.",
    section="multihead-breaks",
)
class ScaledAfterwards(Layer):
    def score(self, q, k):
        return q @ k.mT

    def weigh(self, scores, mask):
        return super().weigh(scores, mask) / math.sqrt(self.head_width)


@task.fault(
    "D-SOFTMAX-DIM",
    thinks="The softmax runs over the queries.",
    why="Keys compete for the attention of one query, so each row, the last axis, sums to one. "
    "With four axes it is easy to take the wrong one; naming them helps.",
    section="project-split",
)
class SoftmaxOverQueries(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-2)
        mask = self.aligned(mask)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-2).masked_fill(~mask, 0.0)


@task.fault(
    "C-SOFTMAX-HEADS",
    thinks="The heads compete with each other, so the softmax runs over axis 1.",
    why="That axis was another one while there were no heads. Now it holds the heads, and heads "
    "never compete: each has a budget of one for every query, spent on keys.",
    section="one-row",
)
class SoftmaxOverHeads(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(1)
        mask = self.aligned(mask)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(1).masked_fill(~mask, 0.0)


@task.fault(
    "C-ONE-WIDE-HEAD",
    thinks="All heads can share one table of weights, computed from the whole queries and keys.",
    why="Then there is one row of weights a query again, however many heads it is copied to: the "
    "budget of a single head. Split before the scores, so that each head asks for itself.",
    section="one-row",
)
class OneWideHead(Layer):
    def score(self, q, k):
        q, k = self.merge(q), self.merge(k)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores[:, None].expand(-1, self.num_heads, -1, -1)


@task.fault(
    "C-SHARED-PROJECTION",
    thinks="Queries, keys and values come from the same sentence, so one projection does for all.",
    why="A word asks with one vector and is found by another: *four* looks for *ninety*, not for "
    "itself. Three roles, three matrices; keys projected like queries mostly find themselves.",
    section="project-split",
)
class SharedProjection(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.q_proj(key), self.q_proj(value)


@task.fault(
    "C-SELF-ONLY",
    thinks="It is self-attention: queries, keys and values all come from the first argument.",
    why="Often all three are the same sentence, but the caller decides. In chapter 7 the queries "
    "come from the translation, keys and values from the source.",
    section="project-split",
)
class SelfOnly(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(query), self.v_proj(query)


@task.fault(
    "C-VALUE-FROM-KEY",
    thinks="Keys and values belong to the same words, so the values are computed from `key`.",
    why="They belong to the same words but may be different vectors, and they come as two "
    "arguments. Yours never looks at `value`.",
    section="project-split",
)
class ValueFromKey(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(key), self.v_proj(key)


@task.fault(
    "X-WRONG-KV",
    thinks="Keys and values go together, so it does not matter which is which.",
    why="Keys are compared with the queries, values are averaged. You compare with the projected "
    "values and average the projected keys.",
    section="project-split",
)
class SwappedRoles(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.v_proj(value), self.k_proj(key)


@task.fault(
    "C-SWAPPED-QUERY-KEY",
    thinks="A dot product does not care about the order, so query and key may change places.",
    why="The product does not, but each has its own projection and its own axis. You project the "
    "queries with the keys' matrix and the keys with the queries'.",
    section="project-split",
)
class SwappedProjections(Layer):
    def project(self, query, key, value):
        return self.k_proj(query), self.q_proj(key), self.v_proj(value)


@task.fault(
    "C-FORGOTTEN-PROJECTION",
    thinks="The values are what the words have to say, so they need no projection.",
    why="Unprojected, head i passes on features of its own slice only. `v_proj` lets every head "
    "choose what it passes on, from the whole vector.",
    section="whole-embedding",
)
class RawValues(Layer):
    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(key), value


@task.fault(
    "C-RESIDUAL",
    thinks="Attention adds what it found to the query.",
    why="The Transformer does that, around this layer: chapter 7's layers add, and normalize. Done "
    "here too, the input would be counted twice.",
)
class WithResidual(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return output + query, weights


@task.fault(
    "C-NO-BIAS",
    thinks="A projection is a matrix, so the linear layers need no bias.",
    why="The formula has none, and many models do without. This layer has biases like PyTorch's: "
    "the task says so, since weights are copied in by name.",
    section="multihead-parity",
)
class WithoutBias(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(model_width, model_width, bias=False))


class FormulaNames(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        self.W_q, self.W_k, self.W_v, self.W_o = (
            self.q_proj,
            self.k_proj,
            self.v_proj,
            self.out_proj,
        )
        del self.q_proj, self.k_proj, self.v_proj, self.out_proj

    def forward(self, query, key, value, mask=None):
        q, k, v = map(self.split, (self.W_q(query), self.W_k(key), self.W_v(value)))
        weights = self.weigh(self.score(q, k), mask)
        return self.W_o(self.merge(self.average(weights, v))), weights


@task.fault(
    "C-OWN-NAMES",
    thinks="What the parts of my class are called is my own business.",
    why="Inside a program, yes. But weights are saved, loaded and copied by these names, here and "
    "everywhere in PyTorch. The task gives four: q_proj, k_proj, v_proj, out_proj.",
    forms=(FormulaNames,),
)
class OwnNames(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_width = num_heads, model_width // num_heads
        self.query = nn.Linear(model_width, model_width)
        self.key = nn.Linear(model_width, model_width)
        self.value = nn.Linear(model_width, model_width)
        self.output = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        q, k = self.split(self.query(query)), self.split(self.key(key))
        v = self.split(self.value(value))
        scores = q @ k.mT / math.sqrt(self.head_width)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            mask = mask[:, None] if mask.ndim == 3 else mask
            low = torch.finfo(scores.dtype).min
            weights = scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)
        heads = self.dropout(weights) @ v
        return self.output(heads.transpose(1, 2).flatten(2)), weights


@task.fault(
    "C-QUERY-LENGTH",
    thinks="All three have the length of the query, so I reshape with that.",
    why="In self-attention they have. In cross-attention there are q queries and k keys, and the "
    "two lengths have nothing to do with each other.",
    section="project-split",
)
class LengthOfTheQuery(Layer):
    def forward(self, query, key, value, mask=None):
        b, n, _ = query.shape
        q, k, v = (
            x.view(b, n, self.num_heads, self.head_width).transpose(1, 2)
            for x in self.project(query, key, value)
        )
        weights = self.weigh(self.score(q, k), mask)
        return self.out_proj(self.merge(self.average(weights, v))), weights


@task.fault(
    "M-IGNORED",
    thinks="The mask concerns whoever calls the layer.",
    why="The layer alone can keep a hidden key out of the competition: before the softmax. Yours "
    "takes the mask and never uses it.",
)
class IgnoresMask(Layer):
    def weigh(self, scores, mask):
        return scores.softmax(-1)


@task.fault(
    "M-POLARITY",
    thinks="True marks the keys to leave out, as in nn.MultiheadAttention.",
    why="There it does. In this course True means *may attend*, as in "
    "F.scaled_dot_product_attention: your layer looks at exactly what it should not.",
    section="multihead-parity",
)
class OppositeMask(Layer):
    def aligned(self, mask):
        return ~super().aligned(mask)


class MaskMeetsChapter3(Layer):
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        _, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(self.merge(self.average(weights, v))), weights


@task.fault(
    "C-MASK-MEETS-HEADS",
    thinks="A mask broadcasts by itself, whatever axes it has.",
    why="Axes are matched from the right: the b of a mask (b q k) meets the h of the scores "
    "(b h q k). If b = h, sentence 1's mask is laid on head 1, and no error says so.",
    forms=(MaskMeetsChapter3,),
)
class MaskMeetsHeads(Layer):
    def aligned(self, mask):
        return mask


def mask_with_a_head_axis(mask):
    return mask.unsqueeze(1)


@task.fault(
    "C-MASK-ALWAYS-BATCHED",
    thinks="Every mask gets an axis for the heads, right after the first.",
    why="That is right for (b q k). A mask (q k) becomes (q 1 k): its queries now meet the heads, "
    "which fails, or hides the wrong words where h = q.",
)
class MaskAlwaysBatched(Layer):
    def aligned(self, mask):
        return mask_with_a_head_axis(mask)


@task.fault(
    "M-REPEAT-HEADS",
    thinks="Heads are folded into the batch, so the mask is repeated h times.",
    why="`repeat` lays whole batches one after another: 1 2 3 1 2 3. The folded heads need each "
    "sentence's mask h times in a row: 1 1 2 2 3 3. Better, keep the heads' axis.",
)
class RepeatedMask(Layer):
    def weigh(self, scores, mask):
        if mask is not None:
            b, h, q, k = scores.shape
            mask = mask.expand(b, q, k).repeat(h, 1, 1).reshape(b, h, q, k)
        if mask is None:
            return scores.softmax(-1)
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)


@task.fault(
    "C-MASK-FIRST-HEAD",
    thinks="One mask belongs to one head; the others are free to look.",
    why="What is hidden is hidden from the layer: a single head that sees the future is enough to "
    "leak it. All heads obey the same mask.",
)
class MaskInFirstHead(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask).expand_as(scores).clone()
        mask[:, 1:] = True
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, low).softmax(-1).masked_fill(~mask, 0.0)


@task.fault(
    "M-AFTER-SOFTMAX",
    thinks="Hidden keys get weight zero, after the softmax.",
    why="By then they have taken their share: what is left sums to less than one. A hidden key "
    "must lose before the competition.",
)
class MaskAfterSoftmax(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        return weights if mask is None else weights * self.aligned(mask)


class MaskZeroesScores(Layer):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores * self.aligned(mask)).softmax(-1)


class RenormalizedWithClamp(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        if mask is None:
            return weights
        weights = weights * self.aligned(mask)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)


class RenormalizedPlainly(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        if mask is None:
            return weights
        weights = weights * self.aligned(mask)
        return weights / weights.sum(-1, keepdim=True)


@task.fault(
    "M-AFTER-RENORMALIZED",
    thinks="I set hidden weights to zero after the softmax, and divide each row by its sum again.",
    why="On paper that is the same. But if a hidden key has by far the best score, it takes all "
    "the weight; to the visible keys nothing is left that could be divided. Hide it before the "
    "softmax.",
    forms=(RenormalizedWithClamp, RenormalizedPlainly),
)
class Renormalized(Layer):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        if mask is None:
            return weights
        weights = weights * self.aligned(mask)
        return weights / (weights.sum(-1, keepdim=True) + 1e-9)


@task.fault(
    "M-ADD-BOOL",
    thinks="Adding the mask to the scores hides what it should.",
    why="A boolean mask adds 1 or 0, which hides nothing: it only favors the visible keys a "
    "little. A hidden score must become so low that its exponential is 0.",
)
class MaskAdded(Layer):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores + self.aligned(mask)).softmax(-1)


@task.fault(
    "C-MASK-ZERO-SCORE",
    thinks="A hidden key gets the score 0, so nobody looks at it.",
    why="Zero is an ordinary score: exp(0) is 1, and next to negative scores it even wins. Scores "
    "have no zero point; only the lowest possible score is out of the race.",
    forms=(MaskZeroesScores,),
)
class MaskFillsZero(Layer):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~self.aligned(mask), 0)).softmax(-1)


class DeadRowsSpread(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return scores.masked_fill(~self.aligned(mask), torch.finfo(scores.dtype).min).softmax(-1)


class DeadRowsPatched(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        hidden = torch.where(self.aligned(mask), 0.0, -torch.inf).to(scores)
        return (scores + hidden).softmax(-1).nan_to_num(0.0)


@task.fault(
    "M-DEAD-ROW",
    thinks="Every query has some key to look at, so filling the hidden scores is all.",
    why="Padding and other masks together can leave a query nothing. Then −∞ everywhere gives NaN, "
    "also in the gradient, and a finite fill gives equal weights to what is hidden. Wanted: "
    "weights 0.",
    forms=(DeadRowsSpread, DeadRowsPatched),
)
class DeadRowsFail(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return scores.masked_fill(~self.aligned(mask), -torch.inf).softmax(-1)


@task.fault(
    "C-DEAD-OUTPUT-ZERO",
    thinks="A query with nothing to attend to gets the output zero.",
    why="Its heads return zero. But their zeros still pass through the last projection, which adds "
    "its bias. Erasing that afterwards makes this row obey another rule than all others.",
)
class DeadOutputsErased(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        alive = weights.sum((1, 3)) > 0  # b q
        return output * alive[..., None], weights


class FillOfTenThousand(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        return scores.masked_fill(~mask, -1e4).softmax(-1) * mask.any(-1, keepdim=True)


class AddedTenThousand(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        return (scores - 1e4 * ~mask).softmax(-1).masked_fill(~mask, 0.0)


@task.fault(
    "M-SMALL-FILL",
    thinks="A score of −100 or −10,000 is low enough to hide a key.",
    why="Real scores can lie below it, or be larger than what you subtract; then the hidden keys "
    "win. The lowest number of the dtype is never beaten.",
    forms=(FillOfTenThousand, AddedTenThousand),
)
class FillOfHundred(Layer):
    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        mask = self.aligned(mask)
        return scores.masked_fill(~mask, -100.0).softmax(-1) * mask.any(-1, keepdim=True)


@task.fault(
    "C-ALWAYS-CAUSAL",
    thinks="A word may look only at earlier words, always.",
    why="That holds where a model predicts the next word. An encoder reads the whole sentence, and "
    "in cross-attention *earlier* has no meaning. The caller says it by a mask.",
)
class AlwaysCausal(Layer):
    def weigh(self, scores, mask):
        earlier = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return super().weigh(scores, earlier if mask is None else self.aligned(mask) & earlier)


@task.fault(
    "M-TRAIN-ONLY",
    thinks="The mask keeps the model from cheating in training; later it is not needed.",
    why="A model that learned without the hidden words meets them for the first time in "
    "evaluation, and padding is never to be read. The mask holds in both modes; only dropout asks "
    "which one it is.",
)
class MaskInTrainingOnly(Layer):
    def weigh(self, scores, mask):
        return super().weigh(scores, mask if self.training else None)


@task.fault(
    "M-INPLACE",
    thinks="Giving the mask its axis in place saves a copy.",
    why="The mask belongs to the caller, who uses it for the next layer, and finds it with another "
    "shape. A name without the trailing underscore returns a new view and costs nothing either.",
)
class MaskTurnedInPlace(Layer):
    def aligned(self, mask):
        return mask.unsqueeze_(1) if mask.ndim == 3 else mask


@task.fault(
    "C-MASK-KEPT",
    thinks="The mask is the same for every call, so I keep the first one in `self`.",
    why="The next batch has other lengths, and the same layer may be called with another mask or "
    "none. What depends on a call must not outlive it.",
)
class KeepsFirstMask(Layer):
    kept = None

    def forward(self, query, key, value, mask=None):
        if self.kept is None:
            self.kept = mask
        return super().forward(query, key, value, self.kept)


@task.fault(
    "C-WEIGHTS-KEPT",
    thinks="Keys and values do not change, so they are computed once and kept in `self`.",
    why="They change with every sentence. Your layer answers the second call from the first "
    "one's words, where the lengths allow it. A cache is passed in and out by the caller.",
)
class KeepsKeysAndValues(Layer):
    kept = None

    def project(self, query, key, value):
        q, k, v = super().project(query, key, value)
        if self.kept is None:
            self.kept = (k, v)
        return q, *self.kept


@task.fault(
    "D-DROPOUT-PLACE",
    thinks="Dropout hides some scores before the softmax.",
    why="A dropped score is 0, not hidden: exp(0) is 1, and the softmax spreads the rest anew. "
    "Dropout comes after the softmax, on the weights.",
    section="weights-dropout",
)
class DropsScores(Layer):
    def weigh(self, scores, mask):
        return super().weigh(self.dropout(scores), mask)

    def average(self, weights, v):
        return weights @ v


@task.fault(
    "C-DROPOUT-RETURNED",
    thinks="The weights that I return are those that were used, after dropout.",
    why="Then in training the rows do not sum to one, and every picture of them has holes. What "
    "the layer *wanted* to look at are the weights before dropout.",
    section="weights-dropout",
)
class ReturnsDropped(Layer):
    def weigh(self, scores, mask):
        return self.dropout(super().weigh(scores, mask))

    def average(self, weights, v):
        return weights @ v


@task.fault(
    "D-SDPA-DROPOUT",
    thinks="F.dropout knows by itself whether the model is training.",
    why="It does not: a function has no mode, and its default is to drop. A translator would lose "
    "words at random, in use. `self.training` tells the mode, or nn.Dropout asks it for you.",
    section="weights-dropout",
)
class DropsAlways(Layer):
    def average(self, weights, v):
        return F.dropout(weights, self.dropout.p) @ v


@task.fault(
    "C-DROPOUT-NEVER",
    thinks="`dropout` is an option for later, so I leave it out for now.",
    why="The layer accepts it and does nothing: training would quietly go on without. It acts "
    "between the softmax and the average.",
    section="weights-dropout",
)
class DropsNothing(Layer):
    def average(self, weights, v):
        return weights @ v


@task.fault(
    "C-DROPOUT-DEFAULT",
    thinks="A dropout of 0.1 is a good default.",
    why="Often it is, but the signature says 0.0: who asks for nothing gets nothing. Otherwise two "
    "layers with the same weights give different results in training.",
    section="weights-dropout",
)
class DropsByDefault(Layer):
    def __init__(self, model_width, num_heads, dropout=0.1):
        super().__init__(model_width, num_heads, dropout)


@task.fault(
    "C-DROPOUT-OUTPUT",
    thinks="Dropout belongs at the end of a layer, on its output.",
    why="Models often have one there, too, outside of this layer. Here it acts on the weights: for "
    "one step a head does not see some of the *words*, with all their features.",
    section="weights-dropout",
)
class DropsOutput(Layer):
    def average(self, weights, v):
        return weights @ v

    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return self.dropout(output), weights


@task.fault(
    "C-DROPOUT-VALUES",
    thinks="Dropping features of the values comes to the same as dropping weights.",
    why="A dropped value is lost to all queries at once, feature by feature. A dropped weight "
    "takes one word from one query in one head.",
    section="weights-dropout",
)
class DropsValues(Layer):
    def average(self, weights, v):
        return weights @ self.dropout(v)


@task.fault(
    "C-DROPOUT-SHRINKS",
    thinks="Dropout sets some weights to zero, and that is all.",
    why="Then outputs are smaller in training than in use. What is kept is divided by the share "
    "that is kept, so that the mean stays as it was.",
    section="weights-dropout",
)
class DropsWithoutScale(Layer):
    def average(self, weights, v):
        if self.training and self.dropout.p:
            weights = weights * (torch.rand_like(weights) >= self.dropout.p)
        return weights @ v


class DropsMost(Layer):
    def average(self, weights, v):
        share = self.dropout.p and 1 - self.dropout.p
        return F.dropout(weights, share, self.training) @ v


@task.fault(
    "C-DROPOUT-KEEP",
    thinks="`dropout` is the share of the weights that is kept.",
    why="Some libraries count that way. Here, as in nn.Dropout, it is the share that is lost: with "
    "0.25 you set three of four weights to zero and multiply the rest by four.",
    section="weights-dropout",
    forms=(DropsMost,),
)
class KeepsTheShare(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, 1 - dropout if dropout else 0.0)


class DropsAndShrinksLater(Layer):
    def average(self, weights, v):
        return super().average(weights, v) * (1.0 if self.training else 1 - self.dropout.p)


@task.fault(
    "C-DROPOUT-SCALED-LATER",
    thinks="In use, all weights are multiplied by the share that was kept in training.",
    why="The first papers did that. Here what is kept is enlarged in training, where dropout acts, "
    "and in evaluation the layer does nothing special. Otherwise its rows of weights would no "
    "longer average the values.",
    section="weights-dropout",
    forms=(DropsAndShrinksLater,),
)
class ShrinksInUse(Layer):
    def average(self, weights, v):
        if self.training and self.dropout.p:
            return (weights * (torch.rand_like(weights) >= self.dropout.p)) @ v
        return weights @ v * (1 - self.dropout.p)


@task.fault(
    "C-DROPOUT-NORMALIZED",
    thinks="After dropout each row must be brought back to the sum one.",
    why="A row of one draw need not sum to one; its mean over many draws does, since what is kept "
    "is divided by the share that is kept. Dividing by the row's sum undoes part of the dropout.",
    section="weights-dropout",
)
class DropsAndNormalizes(Layer):
    def average(self, weights, v):
        used = self.dropout(weights)
        if self.training and self.dropout.p:
            used = used / used.sum(-1, keepdim=True).clamp(min=1e-9)
        return used @ v


@task.fault(
    "C-DROPOUT-SEEDED",
    thinks="Fixing the seed before dropout makes training repeatable.",
    why="It makes every step drop the same weights, and all other draws of the program repeat, "
    "too: there is one generator for everybody. Whoever starts the training sets the seed, once.",
    section="weights-dropout",
)
class DropsWithASeed(Layer):
    def average(self, weights, v):
        if self.training and self.dropout.p:
            torch.manual_seed(0)
        return super().average(weights, v)


@task.fault(
    "C-HALF-DIGITS",
    thinks="The softmax is safer in float32, so I convert to it and back.",
    why="For float16 that would help. From float64 it throws half of the digits away. Filling with "
    "the dtype's own lowest number is safe in every precision.",
)
class SoftmaxInFloat32(Layer):
    def weigh(self, scores, mask):
        return super().weigh(scores.float(), mask).to(scores.dtype)


@task.fault(
    "C-NO-GRADIENT-WEIGHTS",
    thinks="The weights only say where to look, so they need no gradient.",
    why="Where to look is what has to be learned: without a gradient, `q_proj` and `k_proj` stay "
    "as random as they began.",
)
class WeightsWithoutGradient(Layer):
    def weigh(self, scores, mask):
        return super().weigh(scores, mask).detach()


@task.fault(
    "C-QUERY-SCALED-IN-PLACE",
    thinks="Scaling the query before its projection, in place, is the cheapest way.",
    why="`query` belongs to the caller, who still needs it, in self-attention even as key and "
    "value. And the bias of the projection then misses the scale.",
)
class ScalesInPlace(Layer):
    def project(self, query, key, value):
        query /= math.sqrt(self.head_width)
        return super().project(query, key, value)

    def score(self, q, k):
        return q @ k.mT


@task.fault(
    "C-TRANSPOSED-WEIGHTS",
    thinks="Weights are returned with the keys first, as columns of the picture.",
    why="In this course a row belongs to a query and a column to a key: (b h q k). With q = k the "
    "shape hides the difference; the sums do not: rows sum to one.",
    section="project-split",
)
class WeightsTurned(Layer):
    def forward(self, query, key, value, mask=None):
        output, weights = super().forward(query, key, value, mask)
        return output, weights.mT


@task.fault(
    "C-TWO-ERRORS",
    thinks="A layer is a view, a product with √m, and a view back.",
    why="Two things at once: the views give each head a part of the words instead of a piece of "
    "every word, and a score inside a head is a sum of d products, not of m.",
    section="multihead-breaks",
)
class ViewsAndModelScale(SplitAndMergeByReshape):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(self.q_proj.in_features)
