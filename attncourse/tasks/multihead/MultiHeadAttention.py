import contextlib
import functools
import math
import re
import zlib

import torch
import torch.nn.functional as F
from torch import nn

from attncourse import multihead as reference
from attncourse.checks.answer import Failure, compare, following, has_shape, moves_nothing, shape_of
from attncourse.checks.inputs import causal, dead_mask, integers, mixed_mask, normal
from attncourse.checks.modules import made, parts_of, with_weights
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.attention import (
    matches_but_for_dead_rows,
    matches_but_for_the_mask,
    minus_infinity,
    of_dead_neighbors,
)
from attncourse.validation import validate_mask

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
LENIENT = "identity, with biases of 0 if there are any"  # who has none is seen to do all else
LET = {"projections": LENIENT}


def layer_as_function(cls):
    """The layer as a function of its sizes, its inputs and its weights by name.

    Without weights, the layer's own are replaced by random ones, whatever their names are: enough
    for all that must hold with any weights. Further inputs: `projections`, "identity" for weights
    that do nothing, or LENIENT; `dropout`; `training`; `further`, "random" for other numbers in
    whatever else the layer learns; and `earlier`, whether the layer has been used before: "other
    words" of the same number, under another mask, or "longer" sentences.
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
        if projections in ("identity", LENIENT):
            weights = identity(model_width)
        weights = weights or own_weights(layer)
        there = dict(layer.named_parameters(remove_duplicate=False))  # a layer may have two names
        if projections == LENIENT:
            weights = {n: w for n, w in weights.items() if n in there or n.endswith("weight")}
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


@contextlib.contextmanager
def of_the_shape():
    """What fails inside says that a shape is wrong, and no more: the first check has said so."""
    try:
        yield
    except Failure as failure:
        failure.whole = "shape"
        raise


def used_weights(answer, inputs, **options):
    """The weights (b h q k) that averaged the values, their copy, and those returned."""
    *used, weights = seen_weights(answer, inputs, **options)
    h, (b, q, _), k = inputs["num_heads"], inputs["query"].shape, inputs["key"].shape[1]
    with of_the_shape():
        has_shape("weights", weights, "(b h q k)", b, h, q, k, inputs=inputs)
    return *used, weights


def seen_weights(answer, inputs, **options):
    """The same, whatever shape the weights have that are returned."""
    output, weights = answer(inputs, **options)
    b, q, m = inputs["query"].shape
    h, k = inputs["num_heads"], inputs["key"].shape[1]
    with of_the_shape():
        has_shape("output", output, "(b q m)", b, q, m, inputs=inputs)
    shown = output.reshape(b, q, h, 2, k).permute(3, 0, 2, 1, 4)
    return shown[0], shown[1], weights


def is_close(left, right):
    return (left - right).abs() < 1e-4


def reads_everything(answer, rng):
    """Assert that every feature of query and key can move the weights of every head."""
    inputs = layer_inputs(rng, 2, 3, 4, m=6, h=3, weights=False)
    _, before = answer(inputs)
    with of_the_shape():
        has_shape("weights", before, "(b h q k)", 2, 3, 3, 4, inputs=inputs)
    for name in ("query", "key"):
        for feature in (0, 3, 5):
            changed = inputs[name].clone()  # in every word, and of no two keys by the same
            changed[..., feature] += torch.arange(changed.shape[1], device=changed.device) + 1
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
        return seen_weights(answer, revealing_inputs(fresh(), b=4, **options) | LET)

    def reads():
        inputs = layer_inputs(fresh(), 2, 3, 4, m=6, h=3, weights=False)
        changed = inputs["query"].clone()
        changed[..., [0, 5]] += torch.tensor([2.0, -2.0])
        before, after = answer(inputs)[1], answer(inputs | {"query": changed})[1]
        has_shape("weights", before, "(b h q k)", 2, 3, 3, 4, inputs=inputs)
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
        yield "drops a weight as a whole", is_close(used, copy).all().item()
        yield "each query drops its own", not (kept == kept[:, :, :1]).all().item()
        if not used.shape == whole.shape == returned.shape:
            return
        yield "returns dropped weights", not is_close(whole, returned).all().item()
        yield "what is kept stays as it was", is_close(used, whole)[kept].all().item()
        yield "what is kept grows", is_close(used, whole / (1 - DROPPED))[kept].all().item()
        yield "what is kept grows too much", is_close(used, whole / DROPPED)[kept].all().item()
        yield "what is kept sums to one", is_close(used.sum(-1), 1.0)[kept.any(-1)].all().item()

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
        # Who drops there drops everything: no chance blurs it.
        "all dropped, outside training": layer_inputs(rng, 2, 3, 4, m=6, h=2, dropout=1.0),
        **{name: inputs | LET for name, inputs in large(rng).items()},
    }


def large(rng):
    return {
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
        # A NaN in the same place is another check's business.
        if one.shape != two.shape or not is_close(one.nan_to_num(), two.nan_to_num()).all():
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
        with of_the_shape():
            has_shape("output", output, "(b q m)", b, q, m, inputs=inputs)
            has_shape("weights", weights, "(b h q k)", b, h, q, k, inputs=inputs)


@task.check(1)
def without_mask_and_dropout_every_row_of_weights_sums_to_one(answer, rng):
    inputs = layer_inputs(rng, 2, 4, 5, m=6, h=3, weights=False)
    _, weights = answer(inputs)
    if weights.shape[:-1] != (2, 3, 4):
        said = f"weights has shape {shape_of(weights)}; expected (b h q k) = (2 3 4 5)."
        raise Failure(said, inputs, whole="shape")
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    compare("the sum of each row of weights", weights.sum(-1), torch.ones(2, 3, 4), inputs)


@task.check(1)
def every_feature_of_query_and_key_has_a_say_in_where_each_head_looks(answer, rng):
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
            if one.shape[0] != b:
                raise Failure(
                    f"{name} has shape {shape_of(one)}; its first axis should be that of the {b} "
                    "sentences.",
                    inputs,
                    whole="shape",
                )
            if not is_close(one, two)[[0, *range(2, b)]].all():
                raise Failure(
                    f"Sentence 2 of {b} changed, and so did the {name} of other sentences. "
                    "Words may look only at words of their own sentence.",
                    inputs,
                )


@task.check(1, "with a causal mask a word depends on all words so far, and on no later one")
def with_a_causal_mask_a_word_depends_on_all_words_so_far_and_on_no_later_one(answer, rng):
    inputs = sentence_inputs(rng, 1, 4, mask=causal(4), weights=False)
    before, _ = answer(inputs)
    for changed in range(4):
        words = inputs["query"].clone()
        words[:, changed] += normal(rng, 6)
        after, _ = answer(inputs | dict.fromkeys(("query", "key", "value"), words))
        has_shape("output", after, "(b q m)", 1, 4, 6, inputs=inputs)
        moved = ~is_close(before.nan_to_num(), after.nan_to_num())[0].all(-1)
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
    matches = functools.partial(matches_but_for_the_mask, answer)
    matches(layer_inputs(rng, 2, 4, 5, m=6, h=3, mask=mixed_mask(rng, 4, 5)))
    matches(layer_inputs(rng, 2, 4, 5, m=6, h=3, mask=mixed_mask(rng, 2, 4, 5)))
    matches(layer_inputs(rng, 3, 4, 5, m=6, h=2, mask=mixed_mask(rng, 3, 1, 5)))
    matches(sentence_inputs(rng, 2, 4, m=8, h=4, mask=causal(4)))
    everything = torch.ones(4, 5, dtype=torch.bool)
    matches(layer_inputs(rng, mask=everything))
    # Where sizes are equal, a mask can be laid on the wrong axes without an error.
    matches(layer_inputs(rng, 3, 3, 4, m=6, h=3, mask=mixed_mask(rng, 3, 3, 4)))
    matches(layer_inputs(rng, 2, 3, 4, m=6, h=2, mask=mixed_mask(rng, 2, 1, 4)))
    matches(layer_inputs(rng, 2, 3, 3, m=6, h=3, mask=mixed_mask(rng, 3, 3)))
    matches(layer_inputs(rng, 1, 3, 4, m=6, h=3, mask=mixed_mask(rng, 1, 3, 4)))
    double = {"m": 8, "dtype": torch.float64}
    matches(layer_inputs(rng, mask=mixed_mask(rng, 4, 5), **double))
    trained = layer_inputs(rng, mask=mixed_mask(rng, 4, 5), training=True)
    matches(trained)
    masked = large_layer(rng, -30_000.0, mixed_mask(rng, 3, 4))
    matches(masked, tolerance=5e-3)
    for high in (300.0, 3e5):  # hidden keys with by far the best scores
        matches(hidden_winner(rng, high))
    inputs = layer_inputs(rng, mask=mixed_mask(rng, 4, 5))
    _, weights = answer(inputs)
    if (weights.masked_fill(inputs["mask"], 0) > 1e-7).any():
        raise Failure("A hidden key keeps a little weight.", inputs, got=weights)


@task.check(
    1,
    "a query that may attend to nothing has no weights, gets the last bias and spoils nothing else",
)
def a_query_with_nothing_to_attend_to_gets_the_last_bias(answer, rng):
    inputs = layer_inputs(rng, mask=dead_mask(rng, 2, 4, 5))
    with following(lambda: it_returns_an_output_and_the_weights_of_every_head(answer, rng)):
        output, weights = answer(inputs)
    with of_the_shape():
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
    matches_but_for_dead_rows(answer, inputs, gradient=True)
    matches_but_for_dead_rows(answer, layer_inputs(rng, mask=dead_mask(rng, 4, 5)))
    empty_sentence = mixed_mask(rng, 3, 1, 5)
    empty_sentence[1] = False
    matches_but_for_dead_rows(answer, layer_inputs(rng, 3, mask=empty_sentence), gradient=True)


@task.check(1, "dropout changes nothing outside training, nor where none is asked for")
def dropout_changes_nothing_outside_training_nor_where_none_is_asked_for(answer, rng):
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


@task.check(2, "dropout acts on the weights as nn.Dropout does, and not on those returned")
def dropout_acts_on_the_weights(answer, rng):
    inputs = revealing_inputs(rng)
    used, copy, returned = used_weights(answer, inputs)
    seen, seen_copy, whole = used_weights(answer, inputs | {"dropout": None, "training": False})
    whole_rows = "The weights you return should be those from before dropout"
    if not is_close(returned, whole).all():
        raise Failure(f"{whole_rows}: in training they changed.", inputs)
    if is_close(used, whole).all():
        raise Failure("In training, a layer made with dropout=0.25 drops nothing.", inputs)
    if not is_close(seen, seen_copy).all():
        raise Failure(
            "What is dropped cannot be seen: without a dropout, too, features of one value are "
            "not used alike.",
            inputs,
            whole="result",
        )
    if not is_close(used, copy).all():
        raise Failure(
            "Dropout took single features of an output or a value. It should act on weights: "
            "a word is seen by a head or it is not, with all its features.",
            inputs,
        )
    if not is_close(seen, whole).all():
        raise Failure(
            "What is dropped cannot be seen: without a dropout, too, the output is not what the "
            "weights you return make of the values.",
            inputs,
            whole="result",
        )
    kept, large = used.abs() > 1e-4, whole > 0.01
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


@task.check(1)
def gradients_reach_the_inputs_and_every_projection_through_output_and_weights(answer, rng):
    answer.gradients_match(layer_inputs(rng, 3, 4, 5, m=6, h=2))
    answer.gradients_match(layer_inputs(rng, mask=mixed_mask(rng, 4, 5)))
    answer.gradients_match(layer_inputs(rng, mask=mixed_mask(rng, 2, 4, 5), training=True))


@task.check(1, "it keeps nothing from one call to the next and changes nothing else")
def it_keeps_nothing_from_one_call_to_the_next(answer, rng):
    with following(lambda: it_returns_an_output_and_the_weights_of_every_head(answer, rng)):
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
    dropped = revealing_inputs(rng)
    if answer.resets_random_state(dropped):
        raise Failure(
            "After your layer, the global random generator is always in the same state: a "
            "`manual_seed` in `forward` makes all later draws of the program repeat.",
            dropped,
        )
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

    def finish(output, weights, query):
        return output

    def shown(weights, scores, hidden, used):
        return weights

    def results(output, weights):
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
        used = self.drop(weights)
        output = self.finish(self.write(self.merge(self.average(used, v))), weights, query)
        return self.results(output, self.shown(weights, scores, hidden, used))


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


@whole("H-SPLIT-EMBED", project=slices_of_full_width)
class Slices(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        d = model_width // num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))

    def split(x):
        return x

    def project(self, query, key, value):
        return Layer.project(self, *(Layer.split(self, x) for x in (query, key, value)))


breaks("H-VIEW-SPLIT", split=reshaped)
breaks("H-VIEW-MERGE", merge=flat)
breaks("H-VIEW-BOTH", split=reshaped, merge=flat)
breaks("H-CONTIGUOUS", merge=lambda x: x.transpose(1, 2).view(x.shape[0], x.shape[2], -1))
splits(
    "C-NO-SWAP",
    split=lambda self, x: x.unflatten(-1, (self.num_heads, -1)),
    merge=lambda x: x.flatten(2),
)
splits("H-FUSED-LAYOUT", split=interleaved, merge=(lambda x: x.permute(0, 2, 3, 1).flatten(2), ...))
splits(
    "C-SPLIT-WIDTH",
    split=lambda self, x: x.unflatten(-1, (-1, self.num_heads)).transpose(1, 2),
    scale=(..., lambda self, scores: scores / math.sqrt(self.num_heads)),
)
parity(
    "H-BATCH-FIRST",
    split=lambda self, x: Layer.split(self, x.transpose(0, 1)),
    merge=lambda x: Layer.merge(x).transpose(0, 1),
)
splits(
    "C-QUERY-LENGTH",
    project=lambda self, query, key, value: [
        x.view(query.shape) for x in Layer.project(self, query, key, value)
    ],
)
splits("C-SHARED-PROJECTION", project=projected("qqq"))
splits("C-COPIED-LINE", project=tuple(map(projected, ("qkk", "qqv", "kkv", "qvv", "qkq"))))
splits("C-SELF-ONLY", project=projected("qkv", of="qqq"))
splits("C-VALUE-FROM-KEY", project=projected("qkv", of="qkk"))
splits("D-KEY-AS-VALUE", project=projected("qkk", of="qkk"))
splits("X-WRONG-KV", project=projected("qvk", of="qvk"))
splits("C-SWAPPED-QUERY-KEY", project=projected("kqv"))
whole("C-FORGOTTEN-PROJECTION", project=projected("qk-"))
whole("C-RAW-QUERY-KEY", project=tuple(map(projected, ("--v", "-kv", "q-v"))))
whole("C-NO-PROJECTIONS", project=projected("---"))


def without_bias(*names):
    def make(self, *sizes, **options):
        Layer.__init__(self, *sizes, **options)
        for name in names:
            getattr(self, name).register_parameter("bias", None)

    return make


def by_other_names(self, *sizes, **options):
    Layer.__init__(self, *sizes, **options)
    self.W_q, self.W_k, self.W_v, self.W_o = (getattr(self, name) for name in PROJECTIONS)
    for name in PROJECTIONS:
        delattr(self, name)


parity("C-NO-BIAS", __init__=(without_bias(*PROJECTIONS), without_bias(*PROJECTIONS[:3])))
task.fault(
    "C-OWN-NAMES",
    __init__=by_other_names,
    project=lambda self, query, key, value: (self.W_q(query), self.W_k(key), self.W_v(value)),
    write=lambda self, merged: self.W_o(merged),
)


@heads("C-HEADS-OF-FULL-WIDTH")
class FullWidth(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        self.head_width = model_width
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(model_width, num_heads * model_width) for _ in range(3)
        )
        self.out_proj = nn.Linear(num_heads * model_width, model_width)


@heads("C-LINEAR-PER-HEAD")
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


@task.fault("C-MADE-IN-FORWARD")
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


breaks("D-SCALE-DMODEL", scale=over_root_of_model_width)
breaks("D-NO-SCALE", scale=as_is)
breaks("D-SCALE-DK", scale=lambda self, scores: scores / self.head_width)
breaks("C-SCALE-HEADS", scale=lambda self, scores: scores / math.sqrt(self.num_heads))
breaks("D-SCALE-TIMES", scale=lambda self, scores: scores * math.sqrt(self.head_width))
breaks("D-SCALE-KEYS", scale=lambda self, scores: scores / math.sqrt(scores.shape[-1]))
breaks(
    "D-SCALE-AFTER", scale=as_is, after=lambda self, weights: weights / math.sqrt(self.head_width)
)
task.fault(
    "C-QUERY-SCALED-IN-PLACE",
    project=lambda self, query, key, value: Layer.project(
        self, query.div_(math.sqrt(self.head_width)), key, value
    ),
    scale=as_is,
)
splits("D-SOFTMAX-DIM", share=lambda scores: scores.softmax(-2))
# What is hidden is hidden in all heads, and mostly in all sentences: no other takes its share.
KEPT = {"hide": (..., ..., minus_infinity), "clear": (..., as_is, as_is)}
row("C-SOFTMAX-HEADS", **KEPT, share=lambda scores: scores.softmax(1))
row("C-SOFTMAX-SENTENCES", **KEPT, share=lambda scores: scores.softmax(0))
row("C-ONE-WIDE-HEAD", compare=one_wide_head, scale=(over_root_of_model_width, ...))
task.fault("D-NO-SOFTMAX", share=as_is, hide=lambda scores, mask: scores * mask)
task.fault(
    "D-NAIVE-SOFTMAX",
    share=lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True),
    hide=minus_infinity,
    clear=(as_is, ...),
)
task.fault(
    "D-GLOBAL-MAX",
    share=lambda scores: F.normalize((scores - scores.max()).exp(), p=1.0, dim=-1, eps=0.0),
)
task.fault("C-HALF-DIGITS", share=lambda scores: scores.float().softmax(-1).to(scores.dtype))
task.fault("C-NO-GRADIENT-WEIGHTS", after=lambda self, weights: weights.detach())

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


task.fault("M-IGNORED", visible=lambda mask, scores: None)
parity("M-POLARITY", visible=lambda mask, scores: None if mask is None else ~mask)
task.fault(
    "C-MASK-MEETS-HEADS",
    aligned=(as_is, refused(as_is), lambda mask, scores: mask[None, None]),
)
task.fault("C-MASK-ALWAYS-BATCHED", aligned=(axis_for_all, refused(axis_for_all)))
task.fault("M-REPEAT-HEADS", aligned=repeated)
task.fault("C-MASK-FIRST-HEAD", aligned=first_head_only)
task.fault("M-FIRST-MASK", aligned=lambda mask, scores: mask[0] if mask.ndim == 3 else mask)
task.fault("M-ONE-ROW", visible=lambda mask, scores: None if mask is None else mask[..., :1, :])
task.fault("M-TRANSPOSED", visible=lambda mask, scores: None if mask is None else mask.mT)
task.fault("M-IF-MASK", visible=lambda mask, scores: mask if mask else None)
task.fault("M-AFTER-SOFTMAX", hide=as_is, clear=lambda weights, mask: weights * mask)
task.fault(
    "M-AFTER-RENORMALIZED",
    hide=as_is,
    clear=(
        renormalized(lambda total: total + 1e-9),
        renormalized(lambda total: total.clamp(min=1e-9)),
        renormalized(as_is),
    ),
)
task.fault("M-ADD-BOOL", hide=lambda scores, mask: scores + mask, clear=(as_is, ...))
task.fault("C-MASK-ZERO-SCORE", hide=low(0.0), clear=(as_is, only_dead_rows, ...))
task.fault(
    "M-SMALL-FILL",
    hide=(low(-1e4), low(-1e4), low(-1e4), lowered(1e4), lowered(1e4), lowered(100.0)),
    clear=(only_dead_rows, as_is, ..., ..., as_is, only_dead_rows),
)
task.fault("M-INF-TIMES-ZERO", hide=lambda s, mask: s + (1 - mask.to(s)) * -torch.inf)
task.fault("M-PLUS-INFINITY", hide=low(torch.inf), clear=(as_is, ...))
task.fault(
    "M-DEAD-ROW",
    hide=(
        minus_infinity,
        ...,
        lambda scores, mask: scores + torch.where(mask, 0.0, -torch.inf).to(scores),
    ),
    clear=(as_is, as_is, lambda weights, mask: weights.nan_to_num(0.0)),
)
of_dead_neighbors(task)
task.fault(
    "C-DEAD-OUTPUT-ZERO",
    finish=(
        lambda output, weights, query: output * (weights.sum((1, 3)) > 0)[..., None],
        lambda output, weights, query: output.nan_to_num(0.0),
    ),
    hide=(..., minus_infinity),
    clear=(..., as_is),
    shown=(..., lambda weights, scores, hidden, used: weights.nan_to_num(0.0)),
)
task.fault("C-ALWAYS-CAUSAL", visible=and_causal)
task.fault("M-TRAIN-ONLY", visible=lambda self, mask, scores: mask if self.training else None)
task.fault("M-INPLACE", aligned=lambda mask, scores: mask.unsqueeze_(1) if mask.ndim == 3 else mask)


@task.fault("C-MASK-KEPT")
class KeepsFirstMask(Layer):
    kept = None

    def visible(self, mask, scores):
        self.kept = mask if self.kept is None else self.kept
        return self.kept


@task.fault("C-WEIGHTS-KEPT")
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


drops("D-DROPOUT-PLACE", compare=lambda self, q, k: self.dropout(q @ k.mT), drop=as_is)
drops("C-DROPOUT-RETURNED", shown=lambda weights, scores, hidden, used: used)
drops("D-SDPA-DROPOUT", drop=lambda self, weights: F.dropout(weights, self.dropout.p))
drops("C-DROPOUT-NEVER", drop=as_is)
drops(
    "C-DROPOUT-DEFAULT",
    __init__=lambda self, m, h, dropout=0.1: Layer.__init__(self, m, h, dropout),
)
drops(
    "C-DROPOUT-OUTPUT",
    write=lambda self, merged: self.dropout(self.out_proj(merged)),
    drop=(as_is, ...),
)
drops("C-DROPOUT-VALUES", average=lambda self, weights, v: weights @ self.dropout(v), drop=as_is)
drops("C-DROPOUT-SHRINKS", drop=drops_without_scale)
drops(
    "C-DROPOUT-KEEP",
    drop=lambda self, weights: F.dropout(
        weights, self.dropout.p and 1 - self.dropout.p, self.training
    ),
)
drops(
    "C-DROPOUT-SCALED-LATER",
    drop=(
        shrinks_in_use,
        lambda self, w: self.dropout(w) * (1.0 if self.training else 1 - self.dropout.p),
    ),
)
drops("C-DROPOUT-NORMALIZED", drop=drops_and_normalizes)
drops("C-DROPOUT-SEEDED", drop=drops_with_a_seed)

# --- faults: the last projection, and what is returned ------------------------------------------


def turned(x, linear):
    return x @ linear.weight + linear.bias


def turned_inward(self, query, key, value):
    return turned(query, self.q_proj), turned(key, self.k_proj), turned(value, self.v_proj)


def turned_out(self, merged):
    return turned(merged, self.out_proj)


heads(
    "H-WO-SHAPE", write=(turned_out, ..., turned_out), project=(..., turned_inward, turned_inward)
)


@heads("H-NO-WO", write=as_is)
class WithoutOut(Layer):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__(model_width, num_heads, dropout)
        del self.out_proj

    def write(merged):
        return merged


parity("H-AVG-WEIGHTS", shown=lambda weights, scores, hidden, used: weights.mean(1))
parity("C-ONE-HEAD-SHOWN", shown=lambda weights, scores, hidden, used: weights[:, 0])
task.fault("C-RETURNED-DETACHED", shown=lambda weights, scores, hidden, used: weights.detach())
splits(
    "C-WEIGHTS-FOLDED",
    shown=(
        lambda weights, scores, hidden, used: weights.flatten(0, 1),
        lambda weights, scores, hidden, used: weights.transpose(0, 1).flatten(0, 1),
    ),
)
splits(
    "C-RETURNS-SCORES",
    shown=(
        lambda weights, scores, hidden, used: hidden,
        lambda weights, scores, hidden, used: scores,
    ),
)
task.fault("M-MAPS-UNMASKED", shown=lambda weights, scores, hidden, used: scores.softmax(-1))
task.fault("C-OUTPUT-ALONE", results=lambda output, weights: output)
task.fault("D-SWAPPED-RESULTS", results=lambda output, weights: (weights, output))
splits("C-TRANSPOSED-WEIGHTS", shown=lambda weights, scores, hidden, used: weights.mT)
task.fault("C-RESIDUAL", finish=lambda output, weights, query: output + query)
task.fault(
    "C-LAYER-NORM",
    results=lambda output, weights: (F.layer_norm(output, output.shape[-1:]), weights),
)
