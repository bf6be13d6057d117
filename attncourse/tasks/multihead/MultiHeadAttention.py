"""Multi-head attention as a layer: what it promises, its reference in steps, what goes wrong."""

import contextlib
import functools
import math
import re
import zlib

import torch
import torch.nn.functional as F
from torch import nn

from attncourse import multihead as reference
from attncourse.checks.answer import Failure, compare, has_shape, moves_nothing
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, parts_of, with_weights
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is, thoughts
from attncourse.validation import validate_mask

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


def traits(answer):
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
    seen = answer.observe({"model_width": 6, "num_heads": 2}, adapt=parts_of)
    names = [name for name, _ in seen.returned or ()]
    facts["learns nothing"] = not seen.error and not names
    facts["projects each head alone"] = any(re.match(r"[qkv]_proj\.\d", name) for name in names)
    facts["resets the random state"] = answer.resets_random_state(revealing_inputs(fresh(), b=1))
    return facts


def probes(rng):
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
        "double": layer_inputs(rng, 2, 3, 5, m=8, dtype=torch.float64, mask=mixed_mask(rng, 3, 5)),
        "used before": layer_inputs(rng, 2, 3, 4, m=6, h=2, earlier="other words"),
        "rows far apart": rows_far_apart(rng),
        "large negative, masked": large_layer(rng, -30_000.0, mixed_mask(rng, 2, 3, 4)),
        "hidden winner": hidden_winner(rng, 300.0),
        "hidden winner by far": hidden_winner(rng, 3e5),
    }


def small(rng):
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


def maps(rng):
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
    probes=probes,
    adapt=layer_as_function,
    differentiated=("plain", "dead row"),
    small=small,
    maps=maps,
    traits=traits,
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


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Layer(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_width = num_heads, model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def project(self, query, key, value):
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def compare(self, q, k):
        return q @ k.mT

    def scale(self, scores):
        return scores / math.sqrt(self.head_width)

    def visible(mask, scores):
        return mask

    def aligned(mask, scores):
        return mask[:, None] if mask.ndim == 3 else mask

    def hide(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

    def share(scores):
        return scores.softmax(-1)

    def clear(weights, mask):
        return weights.masked_fill(~mask, 0.0)

    def after(self, weights):
        return weights

    def drop(self, weights):
        return self.dropout(weights)

    def average(self, weights, v):
        return weights @ v

    def merge(x):
        return x.transpose(1, 2).flatten(2)

    def write(self, merged):
        return self.out_proj(merged)

    def results(output, weights, scores, hidden, query):
        return output, weights

    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        hidden = scores = self.scale(self.compare(q, k))
        mask = self.visible(mask, scores)
        if mask is not None:
            mask = self.aligned(mask, scores)
            hidden = self.hide(scores, mask)
        weights = self.share(hidden)
        if mask is not None:
            weights = self.clear(weights, mask)
        weights = self.after(weights)
        output = self.write(self.merge(self.average(self.drop(weights), v)))
        return self.results(output, weights, scores, hidden, query)


def minus_infinity(scores, mask):
    return scores.masked_fill(~mask, -torch.inf)


def only_dead_rows(weights, mask):
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


task.spelling(hide=minus_infinity)
task.spelling(clear=only_dead_rows)

# --- faults: project and split ------------------------------------------------------------------

splits = functools.partial(task.fault, section="project-split")
breaks = functools.partial(task.fault, section="multihead-breaks")
drops = functools.partial(task.fault, section="weights-dropout")
whole = functools.partial(task.fault, section="whole-embedding")
parity = functools.partial(task.fault, section="multihead-parity")
heads = functools.partial(task.fault, section="sum-over-heads")
row = functools.partial(task.fault, section="one-row")


def projected(by, of="qkv"):
    """What asks, is found, is read: by which projection ("-" for none), of which argument."""

    def project(self, query, key, value):
        given = {"q": query, "k": key, "v": value}
        layers = {"-": as_is, "q": self.q_proj, "k": self.k_proj, "v": self.v_proj}
        return [layers[one](given[x]) for one, x in zip(by, of, strict=True)]

    return project


def reshaped(self, x):
    return x.reshape(x.shape[0], self.num_heads, x.shape[1], self.head_width)


def flat(x):
    return x.reshape(x.shape[0], x.shape[2], -1)


def interleaved(self, x):
    return x.unflatten(-1, (-1, self.num_heads)).permute(0, 3, 1, 2)


def slices_of_full_width(self, query, key, value):
    """Each head reads only its own slice: the blocks on the diagonal of the projections."""
    blocks = torch.block_diag(*[torch.ones(self.head_width, self.head_width)] * self.num_heads)
    inward = (query, self.q_proj), (key, self.k_proj), (value, self.v_proj)
    return [F.linear(x, blocks.to(x) * each.weight, each.bias) for x, each in inward]


@whole(
    "H-SPLIT-EMBED",
    "Each head gets its own slice of the embedding and works on that.",
    "Then a head can never use a feature outside its slice. The projections come first and see the "
    "whole vector, from width m to width m; what is cut into pieces are their results.",
    project=slices_of_full_width,
)
class Slices(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        d = model_width // num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))

    def split(x):
        return x

    def project(self, query, key, value):
        return Layer.project(self, *(Layer.split(self, x) for x in (query, key, value)))


breaks(
    "H-VIEW-SPLIT",
    "To split, I reshape the projections to (b h n d).",
    "The shape is right, but a reshape keeps the order in memory: each head holds a few whole "
    "words instead of a piece of every word. With a causal mask, outputs then see the future.",
    split=reshaped,
)
breaks(
    "H-VIEW-MERGE",
    "To merge, I reshape what the heads return to (b n m).",
    "All words of head 1 lie together there, so your output mixes several words into one. The "
    "shape is right, and with a causal mask the future leaks.",
    merge=flat,
)
breaks(
    "H-VIEW-BOTH",
    "I split by a reshape and merge by a reshape, so one undoes the other.",
    "Nothing leaks and the model trains, but each head holds a part of the words, whole, and the "
    "words of one part never see the others. The dependency map shows the blocks.",
    split=reshaped,
    merge=flat,
)
breaks(
    "H-CONTIGUOUS",
    "After swapping the axes back, `view` joins heads and features.",
    "`view` never copies, and after the swap the numbers of one word no longer lie in order: an "
    "error. Do not delete the swap; use what copies where it must.",
    merge=lambda x: x.transpose(1, 2).view(x.shape[0], x.shape[2], -1),
)
splits(
    "C-NO-SWAP",
    "Once each vector is cut into heads and features, attention can begin.",
    "Attention compares along the last two axes. Yours are heads and features, so the heads of one "
    "word look at each other, and no word looks at another. The heads' axis belongs in front of "
    "the words.",
    split=lambda self, x: x.unflatten(-1, (self.num_heads, -1)),
    merge=lambda x: x.flatten(2),
)
splits(
    "H-FUSED-LAYOUT",
    "Head i takes every h-th feature of a projection, beginning with the i-th.",
    "Trained from scratch it would work as well, but this layer must load weights that others "
    "trained, and theirs are laid out as (h d): the first d rows belong to head 1.",
    split=interleaved,
    merge=(lambda x: x.permute(0, 2, 3, 1).flatten(2), ...),
)
parity(
    "H-BATCH-FIRST",
    "Words come first and sentences second, as in PyTorch's own layer.",
    "Here the batch is first, (b n m). Your words attend to words at the same place of other "
    "sentences: change one sentence, and the others' outputs change.",
    split=lambda self, x: Layer.split(self, x.transpose(0, 1)),
    merge=lambda x: Layer.merge(x).transpose(0, 1),
)
splits(
    "C-QUERY-LENGTH",
    "All three have the length of the query, so I reshape with that.",
    "In self-attention they have. In cross-attention there are q queries and k keys, and the two "
    "lengths have nothing to do with each other.",
    project=lambda self, query, key, value: [
        x.view(query.shape) for x in Layer.project(self, query, key, value)
    ],
)
splits(
    "C-SHARED-PROJECTION",
    "Queries, keys and values come from the same sentence, so one projection does for all.",
    "A word asks with one vector and is found by another: *four* looks for *ninety*, not for "
    "itself. Three roles, three matrices; keys projected like queries mostly find themselves.",
    project=projected("qqq"),
)
splits(
    "C-COPIED-LINE",
    "The three lines are alike, so I copied one of them.",
    "In one of the copies the name of the projection stayed as it was. That projection now has two "
    "roles, and another one is never used, so it gets no gradient and learns nothing.",
    project=tuple(map(projected, ("qqv", "kkv", "qkk", "qvv", "qkq"))),
)
splits(
    "C-SELF-ONLY",
    "It is self-attention: queries, keys and values all come from the first argument.",
    "Often all three are the same sentence, but the caller decides. In chapter 7 the queries come "
    "from the translation, keys and values from the source.",
    project=projected("qkv", of="qqq"),
)
splits(
    "C-VALUE-FROM-KEY",
    "Keys and values belong to the same words, so the values are computed from `key`.",
    "They belong to the same words but may be different vectors, and they come as two arguments. "
    "Yours never looks at `value`.",
    project=projected("qkv", of="qkk"),
)
splits(thoughts.KEY_AS_VALUE, project=projected("qkk", of="qkk"))
splits(
    "X-WRONG-KV",
    "Keys and values go together, so it does not matter which is which.",
    "Keys are compared with the queries, values are averaged. You compare with the projected "
    "values and average the projected keys.",
    project=projected("qvk", of="qvk"),
)
splits(
    "C-SWAPPED-QUERY-KEY",
    "A dot product does not care about the order, so query and key may change places.",
    "The product does not, but each has its own projection and its own axis. You project the "
    "queries with the keys' matrix and the keys with the queries'.",
    project=projected("kqv"),
)
whole(
    "C-FORGOTTEN-PROJECTION",
    "The values are what the words have to say, so they need no projection.",
    "Unprojected, head i passes on features of its own slice only. `v_proj` lets every head choose "
    "what it passes on, from the whole vector.",
    project=projected("qk-"),
)
whole(
    "C-RAW-QUERY-KEY",
    "Queries and keys can be compared as they came.",
    "Unprojected, head i reads its own slice of the embedding only, and cannot learn what to look "
    "for there. `q_proj` and `k_proj` let every head ask about the whole vector.",
    project=tuple(map(projected, ("--v", "-kv", "q-v"))),
)
whole(
    "C-NO-PROJECTIONS",
    "Splitting makes the heads; the words go in as they are.",
    "Then each head owns a slice of the embedding, and a word asks, is found and is read by the "
    "same numbers. Heads become different questions by their projections, which yours never uses.",
    project=projected("---"),
)


def without_bias(self, *sizes, **options):
    Layer.__init__(self, *sizes, **options)
    for name in PROJECTIONS:
        getattr(self, name).register_parameter("bias", None)


def by_other_names(self, *sizes, **options):
    Layer.__init__(self, *sizes, **options)
    self.W_q, self.W_k, self.W_v, self.W_o = (getattr(self, name) for name in PROJECTIONS)
    for name in PROJECTIONS:
        delattr(self, name)


parity(
    "C-NO-BIAS",
    "A projection is a matrix, so the linear layers need no bias.",
    "The formula has none, and many models do without. This layer has biases like PyTorch's: the "
    "task says so, since weights are copied in by name.",
    __init__=without_bias,
)
task.fault(
    "C-OWN-NAMES",
    "What the parts of my class are called is my own business.",
    "Inside a program, yes. But weights are saved, loaded and copied by these names, here and "
    "everywhere in PyTorch. The task gives four: q_proj, k_proj, v_proj, out_proj.",
    __init__=by_other_names,
    project=lambda self, query, key, value: (self.W_q(query), self.W_k(key), self.W_v(value)),
    write=lambda self, merged: self.W_o(merged),
)


@heads(
    "C-LINEAR-PER-HEAD",
    "Every head needs small linear layers of its own, in a list.",
    "That computes the same, but their weights have other names and shapes, `q_proj.0.weight` "
    "(d m), and weights that others trained cannot be loaded. One layer from m to m holds all "
    "heads: the first d rows of its matrix belong to head 1.",
)
class LinearPerHead(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        for name in ("q_proj", "k_proj", "v_proj"):
            each = [nn.Linear(model_width, self.head_width) for _ in range(num_heads)]
            setattr(self, name, nn.ModuleList(each))

    def project(self, *inputs):
        layers = self.q_proj, self.k_proj, self.v_proj
        pairs = zip(inputs, layers, strict=True)
        return [torch.cat([one(x) for one in each], -1) for x, each in pairs]


@task.fault(
    "C-MADE-IN-FORWARD",
    "A linear layer is made where it is used, in `forward`.",
    "A layer that is made there is new in every call, with new random weights: nothing can be "
    "learned, saved or copied in. Make layers once, in `__init__`.",
)
class MadeInForward(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        nn.Module.__init__(self)
        self.num_heads, self.head_width = num_heads, model_width // num_heads
        self.dropout = nn.Dropout(dropout)

    def project(self, *inputs):
        return [nn.Linear(x.shape[-1], x.shape[-1])(x) for x in inputs]

    def write(self, merged):
        return nn.Linear(merged.shape[-1], merged.shape[-1])(merged)


# --- faults: scores and softmax -----------------------------------------------------------------


def one_wide_head(self, q, k):
    scores = Layer.merge(q) @ Layer.merge(k).mT
    return scores[:, None].expand(-1, self.num_heads, -1, -1)


def over_root_of_model_width(self, scores):
    return scores / math.sqrt(self.num_heads * self.head_width)


breaks(
    "D-SCALE-DMODEL",
    "Scores are divided by the root of the model's width.",
    "A score inside a head is a sum of d products, not of m, so its variance is d. Divided by √m, "
    "scores are too small and all weights too equal, the more so the more heads.",
    scale=over_root_of_model_width,
)
breaks(
    "D-NO-SCALE",
    "The projections can learn the right size of the scores, so no scale is needed.",
    "At the start they have not learned it: scores vary by √d, the softmax sits on one key, and "
    "its gradient nearly vanishes. Chapter 3's scale applies inside every head.",
    scale=as_is,
)
breaks(thoughts.SCALE_DK, scale=lambda self, scores: scores / self.head_width)
breaks(
    "C-SCALE-HEADS",
    "With h heads, scores are divided by the root of h.",
    "How many heads there are plays no part in one head's score: it is a sum over the d features "
    "of that head. Where h = d both give the same, by luck.",
    scale=lambda self, scores: scores / math.sqrt(self.num_heads),
)
breaks(
    thoughts.SCALE_AFTER,
    scale=as_is,
    after=lambda self, weights: weights / math.sqrt(self.head_width),
)
task.fault(
    "C-QUERY-SCALED-IN-PLACE",
    "Scaling the query before its projection, in place, is the cheapest way.",
    "`query` belongs to the caller, who still needs it, in self-attention even as key and value. "
    "And the bias of the projection then misses the scale.",
    project=lambda self, query, key, value: Layer.project(
        self, query.div_(math.sqrt(self.head_width)), key, value
    ),
    scale=as_is,
)
splits(thoughts.SOFTMAX_DIM, share=lambda scores: scores.softmax(-2))
row(
    "C-SOFTMAX-HEADS",
    "The heads compete with each other, so the softmax runs over axis 1.",
    "That axis was another one while there were no heads. Now it holds the heads, and heads never "
    "compete: each has a budget of one for every query, spent on keys.",
    share=lambda scores: scores.softmax(1),
)
row(
    "C-ONE-WIDE-HEAD",
    "All heads can share one table of weights, computed from the whole queries and keys.",
    "Then there is one row of weights a query again, however many heads it is copied to: the "
    "budget of a single head. Split before the scores, so that each head asks for itself.",
    compare=one_wide_head,
    scale=(over_root_of_model_width, ...),
)
task.fault(thoughts.NO_SOFTMAX, share=as_is, hide=lambda scores, mask: scores * mask)
task.fault(
    thoughts.NAIVE_SOFTMAX,
    share=lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True),
    hide=minus_infinity,
    clear=(as_is, ...),
)
task.fault(
    thoughts.GLOBAL_MAX,
    share=lambda scores: F.normalize((scores - scores.max()).exp(), p=1.0, dim=-1, eps=0.0),
)
task.fault(
    "C-HALF-DIGITS",
    "The softmax is safer in float32, so I convert to it and back.",
    "For float16 that would help. From float64 it throws half of the digits away. Filling with the "
    "dtype's own lowest number is safe in every precision.",
    share=lambda scores: scores.float().softmax(-1).to(scores.dtype),
)
task.fault(
    "C-NO-GRADIENT-WEIGHTS",
    "The weights only say where to look, so they need no gradient.",
    "Where to look is what has to be learned: without a gradient, `q_proj` and `k_proj` stay as "
    "random as they began.",
    after=lambda self, weights: weights.detach(),
)

# --- faults: masks ------------------------------------------------------------------------------


def low(number):
    return lambda scores, mask: scores.masked_fill(~mask, number)


def lowered(number):
    return lambda scores, mask: scores - number * ~mask


def renormalized(total):
    def clear(weights, mask):
        weights = weights * mask
        return weights / total(weights.sum(-1, keepdim=True))

    return clear


def refused(aligned):
    """The same mask, where attention is a function that refuses masks of a wrong shape."""

    def step(mask, scores):
        mask = aligned(mask, scores)
        validate_mask(mask, scores, tuple(scores.shape))
        return mask

    return step


def axis_for_all(mask, scores):
    return mask.unsqueeze(1)


def repeated(mask, scores):
    b, h, q, k = scores.shape
    return mask.expand(b, q, k).repeat(h, 1, 1).reshape(b, h, q, k)


def first_head_only(mask, scores):
    mask = Layer.aligned(mask, scores).expand_as(scores).clone()
    mask[:, 1:] = True
    return mask


def and_causal(mask, scores):
    earlier = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return earlier if mask is None else mask & earlier


task.fault(
    "M-IGNORED",
    "The mask concerns whoever calls the layer.",
    "The layer alone can keep a hidden key out of the competition: before the softmax. Yours takes "
    "the mask and never uses it. (`masked_fill` without a last underscore returns a new tensor: is "
    "it kept?)",
    visible=lambda mask, scores: None,
)
parity(
    "M-POLARITY",
    "True marks the keys to leave out, as in nn.MultiheadAttention.",
    "There it does. In this course True means *may attend*, as in F.scaled_dot_product_attention: "
    "your layer looks at exactly what it should not.",
    visible=lambda mask, scores: None if mask is None else ~mask,
)
task.fault(
    "C-MASK-MEETS-HEADS",
    "A mask broadcasts by itself, whatever axes it has.",
    "Axes are matched from the right: the b of a mask (b q k) meets the h of the scores (b h q k). "
    "If b = h, sentence 1's mask is laid on head 1, and no error says so.",
    aligned=(as_is, refused(as_is)),
)
task.fault(
    "C-MASK-ALWAYS-BATCHED",
    "Every mask gets an axis for the heads, right after the first.",
    "That is right for (b q k). A mask (q k) becomes (q 1 k): its queries now meet the heads, "
    "which fails, or hides the wrong words where h = q.",
    aligned=(axis_for_all, refused(axis_for_all)),
)
task.fault(
    "M-REPEAT-HEADS",
    "Heads are folded into the batch, so the mask is repeated h times.",
    "`repeat` lays whole batches one after another: 1 2 3 1 2 3. The folded heads need each "
    "sentence's mask h times in a row: 1 1 2 2 3 3. Better, keep the heads' axis.",
    aligned=repeated,
)
task.fault(
    "C-MASK-FIRST-HEAD",
    "One mask belongs to one head; the others are free to look.",
    "What is hidden is hidden from the layer: a single head that sees the future is enough to leak "
    "it. All heads obey the same mask.",
    aligned=first_head_only,
)
task.fault(thoughts.FIRST_MASK, aligned=lambda mask, scores: mask[0] if mask.ndim == 3 else mask)
task.fault(
    thoughts.ONE_ROW, visible=lambda mask, scores: None if mask is None else mask[..., :1, :]
)
task.fault(thoughts.TRANSPOSED_MASK, visible=lambda mask, scores: None if mask is None else mask.mT)
task.fault(thoughts.IF_MASK, visible=lambda mask, scores: mask if mask else None)
task.fault(thoughts.AFTER_SOFTMAX, hide=as_is, clear=lambda weights, mask: weights * mask)
task.fault(
    thoughts.AFTER_RENORMALIZED,
    hide=as_is,
    clear=(
        renormalized(lambda total: total + 1e-9),
        renormalized(lambda total: total.clamp(min=1e-9)),
        renormalized(as_is),
    ),
)
task.fault(thoughts.ADD_BOOL, hide=lambda scores, mask: scores + mask, clear=(as_is, ...))
task.fault(
    "C-MASK-ZERO-SCORE",
    "A hidden key gets the score 0, so nobody looks at it.",
    "Zero is an ordinary score: exp(0) is 1, and next to negative scores it even wins. Scores have "
    "no zero point; only the lowest possible score is out of the race.",
    hide=low(0.0),
    clear=(as_is, only_dead_rows, ...),
)
task.fault(
    "M-SMALL-FILL",
    "A score of −100 or −10,000 is low enough to hide a key.",
    "Real scores can lie below it, or be larger than what you subtract; then the hidden keys win. "
    "The lowest number of the dtype is never beaten.",
    hide=(low(-1e4), low(-1e4), low(-1e4), lowered(1e4), lowered(1e4), lowered(100.0)),
    clear=(only_dead_rows, as_is, ..., ..., as_is, only_dead_rows),
)
task.fault(thoughts.INF_TIMES_ZERO, hide=lambda s, mask: s + (1 - mask.to(s)) * -torch.inf)
task.fault(thoughts.PLUS_INFINITY, hide=low(torch.inf), clear=(as_is, ...))
task.fault(
    "M-DEAD-ROW",
    "Every query has some key to look at, so filling the hidden scores is all.",
    "Padding and other masks together can leave a query nothing. Then −∞ everywhere gives NaN, "
    "also in the gradient, and a finite fill gives equal weights to what is hidden. Wanted: "
    "weights 0.",
    hide=(
        minus_infinity,
        ...,
        lambda scores, mask: scores + torch.where(mask, 0.0, -torch.inf).to(scores),
    ),
    clear=(as_is, as_is, lambda weights, mask: weights.nan_to_num(0.0)),
)
task.fault(
    "C-DEAD-OUTPUT-ZERO",
    "A query with nothing to attend to gets the output zero.",
    "Its heads return zero. But their zeros still pass through the last projection, which adds its "
    "bias. Erasing that afterwards makes this row obey another rule than all others.",
    results=lambda output, weights, *_: (output * (weights.sum((1, 3)) > 0)[..., None], weights),
)
task.fault(
    "C-ALWAYS-CAUSAL",
    "A word may look only at earlier words, always.",
    "That holds where a model predicts the next word. An encoder reads the whole sentence, and in "
    "cross-attention *earlier* has no meaning. The caller says it by a mask.",
    visible=and_causal,
)
task.fault(
    "M-TRAIN-ONLY",
    "The mask keeps the model from cheating in training; later it is not needed.",
    "A model that learned without the hidden words meets them for the first time in evaluation, "
    "and padding is never to be read. The mask holds in both modes; only dropout asks which one it "
    "is.",
    visible=lambda self, mask, scores: mask if self.training else None,
)
task.fault(
    "M-INPLACE",
    "Giving the mask its axis in place saves a copy.",
    "The mask belongs to the caller, who uses it for the next layer, and finds it with another "
    "shape. A name without the trailing underscore returns a new view and costs nothing either.",
    aligned=lambda mask, scores: mask.unsqueeze_(1) if mask.ndim == 3 else mask,
)


@task.fault(
    "C-MASK-KEPT",
    "The mask is the same for every call, so I keep the first one in `self`.",
    "The next batch has other lengths, and the same layer may be called with another mask or none. "
    "What depends on a call must not outlive it.",
)
class KeepsFirstMask(Layer):
    kept = None

    def visible(self, mask, scores):
        self.kept = mask if self.kept is None else self.kept
        return self.kept


@task.fault(
    "C-WEIGHTS-KEPT",
    "Keys and values do not change, so they are computed once and kept in `self`.",
    "They change with every sentence. Your layer answers the second call from the first one's "
    "words, where the lengths allow it. A cache is passed in and out by the caller.",
)
class KeepsKeysAndValues(Layer):
    kept = None

    def project(self, query, key, value):
        q, k, v = Layer.project(self, query, key, value)
        self.kept = self.kept or (k, v)
        return q, *self.kept


# --- faults: dropout ----------------------------------------------------------------------------


def drops_without_scale(self, weights):
    if self.training and self.dropout.p:
        weights = weights * (torch.rand_like(weights) >= self.dropout.p)
    return weights


def shrinks_in_use(self, weights):
    return drops_without_scale(self, weights) * (1.0 if self.training else 1 - self.dropout.p)


def drops_and_normalizes(self, weights):
    used = self.dropout(weights)
    if self.training and self.dropout.p:
        used = used / used.sum(-1, keepdim=True).clamp(min=1e-9)
    return used


def drops_with_a_seed(self, weights):
    if self.training and self.dropout.p:
        torch.manual_seed(0)
    return self.dropout(weights)


drops(
    "D-DROPOUT-PLACE",
    "Dropout hides some scores before the softmax.",
    "A dropped score is 0, not hidden: exp(0) is 1, and the softmax spreads the rest anew. Dropout "
    "comes after the softmax, on the weights.",
    compare=lambda self, q, k: self.dropout(q @ k.mT),
    drop=as_is,
)
drops(
    "C-DROPOUT-RETURNED",
    "The weights that I return are those that were used, after dropout.",
    "Then in training the rows do not sum to one, and every picture of them has holes. What the "
    "layer *wanted* to look at are the weights before dropout.",
    after=lambda self, weights: self.dropout(weights),
    drop=as_is,
)
drops(
    "D-SDPA-DROPOUT",
    "F.dropout knows by itself whether the model is training.",
    "It does not: a function has no mode, and its default is to drop. A translator would lose "
    "words at random, in use. `self.training` tells the mode, or nn.Dropout asks it for you.",
    drop=lambda self, weights: F.dropout(weights, self.dropout.p),
)
drops(
    "C-DROPOUT-NEVER",
    "`dropout` is an option for later, so I leave it out for now.",
    "The layer accepts it and does nothing: training would quietly go on without. It acts between "
    "the softmax and the average.",
    drop=as_is,
)
drops(
    "C-DROPOUT-DEFAULT",
    "A dropout of 0.1 is a good default.",
    "Often it is, but the signature says 0.0: who asks for nothing gets nothing. Otherwise two "
    "layers with the same weights give different results in training.",
    __init__=lambda self, m, h, dropout=0.1: Layer.__init__(self, m, h, dropout),
)
drops(
    "C-DROPOUT-OUTPUT",
    "Dropout belongs at the end of a layer, on its output.",
    "Models often have one there, too, outside of this layer. Here it acts on the weights: for one "
    "step a head does not see some of the *words*, with all their features.",
    write=lambda self, merged: self.dropout(self.out_proj(merged)),
    drop=(as_is, ...),
)
drops(
    "C-DROPOUT-VALUES",
    "Dropping features of the values comes to the same as dropping weights.",
    "A dropped value is lost to all queries at once, feature by feature. A dropped weight takes "
    "one word from one query in one head.",
    average=lambda self, weights, v: weights @ self.dropout(v),
    drop=as_is,
)
drops(
    "C-DROPOUT-SHRINKS",
    "Dropout sets some weights to zero, and that is all.",
    "Then outputs are smaller in training than in use. What is kept is divided by the share that "
    "is kept, so that the mean stays as it was.",
    drop=drops_without_scale,
)
drops(
    "C-DROPOUT-KEEP",
    "`dropout` is the share of the weights that is kept.",
    "Some libraries count that way. Here, as in nn.Dropout, it is the share that is lost: with "
    "0.25 you set three of four weights to zero and multiply the rest by four.",
    drop=lambda self, weights: F.dropout(
        weights, self.dropout.p and 1 - self.dropout.p, self.training
    ),
)
drops(
    "C-DROPOUT-SCALED-LATER",
    "In use, all weights are multiplied by the share that was kept in training.",
    "The first papers did that. Here what is kept is enlarged in training, where dropout acts, and "
    "in evaluation the layer does nothing special. Otherwise its rows of weights would no longer "
    "average the values.",
    drop=(
        shrinks_in_use,
        lambda self, w: self.dropout(w) * (1.0 if self.training else 1 - self.dropout.p),
    ),
)
drops(
    "C-DROPOUT-NORMALIZED",
    "After dropout each row must be brought back to the sum one.",
    "A row of one draw need not sum to one; its mean over many draws does, since what is kept is "
    "divided by the share that is kept. Dividing by the row's sum undoes part of the dropout.",
    drop=drops_and_normalizes,
)
drops(
    "C-DROPOUT-SEEDED",
    "Fixing the seed before dropout makes training repeatable.",
    "It makes every step drop the same weights, and all other draws of the program repeat, too: "
    "there is one generator for everybody. Whoever starts the training sets the seed, once.",
    drop=drops_with_a_seed,
)

# --- faults: the last projection, and what is returned ------------------------------------------


def turned(x, linear):
    return x @ linear.weight + linear.bias


def turned_inward(self, query, key, value):
    return turned(query, self.q_proj), turned(key, self.k_proj), turned(value, self.v_proj)


def turned_out(self, merged):
    return turned(merged, self.out_proj)


heads(
    "H-WO-SHAPE",
    "The weight of an nn.Linear is the matrix that I multiply by from the right.",
    "nn.Linear keeps its matrix as (out, in), the transpose of the formula's. As both sizes are m "
    "here, no error tells you. Calling the layer does it right.",
    write=(turned_out, ..., turned_out),
    project=(..., turned_inward, turned_inward),
)


@heads(
    "H-NO-WO",
    "The merged heads have the right width already, so nothing is left to do.",
    "Without the last projection each head can write only into its own d numbers, and no two heads "
    "can add to the same feature. W^O lets each of them reach all.",
    write=as_is,
)
class WithoutOut(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        del self.out_proj

    def write(merged):
        return merged


parity(
    "H-AVG-WEIGHTS",
    "One map of weights is returned: the mean over the heads.",
    "A mean looks like a head, but no head need look like it: one reads *ninety*, another *four*. "
    "Return them all, (b h q k); whoever wants the mean can take it.",
    results=lambda output, weights, *_: (output, weights.mean(1)),
)
splits(
    "C-RETURNS-SCORES",
    "The scores show where a head looks, so I return those.",
    "Scores are numbers of any sign and size; they are comparable only within a row. Weights are "
    "what the values were averaged with: after the softmax, each row with sum one.",
    results=(
        lambda output, weights, scores, hidden, query: (output, hidden),
        lambda output, weights, scores, hidden, query: (output, scores),
    ),
)
task.fault(
    thoughts.MAPS_UNMASKED,
    results=lambda output, weights, scores, *_: (output, scores.softmax(-1)),
)
task.fault(
    "C-OUTPUT-ALONE",
    "A layer returns its output; the weights are an inner matter.",
    "Pictures and chapter 7's alignments need the weights. Return the pair: output (b q m), "
    "weights (b h q k).",
    results=lambda output, *_: output,
)
task.fault(thoughts.SWAPPED_RESULTS, results=lambda output, weights, *_: (weights, output))
splits(
    "C-TRANSPOSED-WEIGHTS",
    "Weights are returned with the keys first, as columns of the picture.",
    "In this course a row belongs to a query and a column to a key: (b h q k). With q = k the "
    "shape hides the difference; the sums do not: rows sum to one.",
    results=lambda output, weights, *_: (output, weights.mT),
)
task.fault(
    "C-RESIDUAL",
    "Attention adds what it found to the query.",
    "The Transformer does that, around this layer: chapter 7's layers add, and normalize. Done "
    "here too, the input would be counted twice.",
    results=lambda output, weights, *rest: (output + rest[-1], weights),
)
