import math

import torch

from attncourse.checks.answer import Failure, following, moves_nothing, shape_of
from attncourse.checks.device import stays_with
from attncourse.checks.inputs import normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.tasks import as_is
from attncourse.tasks.lab6_write_flash import (
    DOUBLE,
    HALF,
    TILE,
    agrees,
    call,
    computes,
    cuts_both,
    memory_traits,
    stays_linear,
)
from attncourse.tasks.lab6_write_flash._faults import (
    OWN_TILE,
    finite,
    hide_from_the_cpu,
    hide_later,
    of_causal_masks,
    one_tile_at_least,
    whole_tiles,
)

GRADS = ("grad_query", "grad_key", "grad_value")


def backward(rng, *sizes, **how):
    """Inputs of the backward pass: those of forward, what it returned, and a gradient."""
    forward = call(rng, *sizes, **how)
    output, logsumexp = reference.tiled_attention(**forward | {"tile": max(sizes[:2])})
    tensors = {name: forward[name] for name in ("query", "key", "value")}
    tensors |= {"output": output, "logsumexp": logsumexp}
    tensors["grad_output"] = normal(rng, *output.shape).to(output.dtype)
    return tensors | {"tile": forward["tile"], "causal": forward["causal"]}


def canceling(rng):
    """Gradients of 1,000 and −1,000 around small ones, which half precision loses in between."""
    inputs = backward(rng, 22, 1, 1, dtype=HALF, b=1, h=1)
    gradient = torch.full((22,), 0.2)
    gradient[0], gradient[-1] = 1000, -1000
    inputs["grad_output"] = gradient[:, None].expand(1, 1, 22, 5).to(HALF).clone()
    return inputs


def backward_probes(rng):
    return {
        "one tile": backward(rng, 4, 4, 4),
        "tiles": backward(rng, 6, 6, 3),
        "shorter last tile": backward(rng, 7, 7, 3),
        "fewer queries": backward(rng, 5, 8, 3),
        "more queries": backward(rng, 8, 5, 3),
        "causal": backward(rng, 6, 6, 2, True),
        "causal, fewer queries": backward(rng, 3, 7, 2, True),
        "causal, more queries": backward(rng, 7, 4, 2, True),
        "large": backward(rng, 6, 6, 2, spread=20.0),
        "half": backward(rng, 6, 6, 2, dtype=HALF, size=4.0),
        "half, canceling": canceling(rng),
        "double": backward(rng, 7, 5, 3, dtype=DOUBLE),
        "tiles of one": backward(rng, 4, 4, 1),
    }


def backward_small(rng):
    for n, tile in ((1, 1), (2, 2), (2, 1), (3, 2)):
        yield backward(rng, n, n, tile, b=1, h=1, d=1, v=1)
        yield backward(rng, n, n, tile, b=1, h=1, d=2, v=1)
    yield backward(rng, 1, 3, 2, b=1, h=1, d=2, v=1)
    yield backward(rng, 2, 2, 1, True, b=1, h=1, d=2, v=1)
    yield backward(rng, 1, 2, 1, True, b=1, h=1, d=2, v=1)
    yield backward(rng, 3, 2, 1, True, b=1, h=1, d=2, v=1)


def long_backward(rng, n):
    """For a meter, which sees no values."""
    inputs = call(rng, n, n, TILE, True, b=1, h=1, d=3, v=2)
    like = {"output": inputs["value"], "logsumexp": inputs["value"][..., 0]}
    like["grad_output"] = inputs["value"]
    tile, causal = inputs.pop("tile"), inputs.pop("causal")
    return inputs | like | {"tile": tile, "causal": causal}


task = Task(
    reference.tiled_backward,
    number=3,
    returns=GRADS,
    difficulty=5,
    minutes=20,
    section="backward",
    probes=backward_probes,
    small=backward_small,
    traits=memory_traits(lambda rng: backward(rng, 4, 4, 3, True), long_backward),
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def a_gradient_is_like_the_tensor_it_belongs_to(answer, rng):
    for dtype in (torch.float32, DOUBLE, HALF):
        inputs = backward(rng, 5, 7, 3, dtype=dtype)
        for name, got in zip(GRADS, answer(inputs), strict=True):
            like = inputs[name.removeprefix("grad_")]
            if got.shape != like.shape or got.dtype != dtype:
                raise Failure(
                    f"{name} is {shape_of(got)}, {got.dtype}; the tensor it belongs to is "
                    f"{shape_of(like)}, {dtype}.",
                    inputs,
                )


@task.check(1)
def the_gradient_of_the_values_is_right(answer, rng):
    for n, tile in ((4, 4), (6, 3), (6, 2)):
        agrees(answer, backward(rng, n, n, tile), ("grad_value",))


@task.check(1)
def the_gradient_of_the_keys_is_right(answer, rng):
    for n, tile in ((4, 4), (6, 3), (6, 2)):
        agrees(answer, backward(rng, n, n, tile), ("grad_key",))


@task.check(1)
def the_gradient_of_the_queries_is_right(answer, rng):
    for n, tile in ((4, 4), (6, 3), (6, 2)):
        agrees(answer, backward(rng, n, n, tile), ("grad_query",))


@task.check(1)
def all_three_are_right_for_any_lengths_and_any_tile(answer, rng):
    for q, k, tile in ((7, 7, 3), (5, 8, 3), (8, 5, 4), (1, 6, 4), (3, 3, 1), (3, 3, 9)):
        agrees(answer, backward(rng, q, k, tile))
    agrees(answer, backward(rng, 7, 5, 3, dtype=DOUBLE))


@task.check(1)
def causal_all_three_are_right(answer, rng):
    for q, k, tile in ((6, 6, 2), (7, 7, 3), (3, 7, 2), (1, 5, 2)):
        agrees(answer, backward(rng, q, k, tile, True))


@task.check(1)
def causal_all_three_are_right_beside_queries_that_saw_nothing(answer, rng):
    for q, k, tile in ((7, 4, 2), (5, 1, 2), (6, 5, 3)):
        agrees(answer, backward(rng, q, k, tile, True))


def right_as_usual(answer, causal=(False, True)):
    """Assert that ordinary scores in float32 come out right: what is not has other checks."""
    rng = torch.Generator().manual_seed(0)
    for kind in causal:
        for q, k, tile in ((6, 6, 2), (7, 7, 3)):
            agrees(answer, backward(rng, q, k, tile, kind))


@task.check(1)
def scores_of_ten_thousand_come_out_right(answer, rng):
    with following(lambda: right_as_usual(answer, (False,))):
        for q, k, tile in ((6, 6, 2), (7, 7, 3)):
            agrees(answer, backward(rng, q, k, tile, spread=50.0), tolerance=1e-2)


@task.check(1)
def half_precision_comes_out_right_computed_in_float32(answer, rng):
    with following(lambda: right_as_usual(answer)):
        agrees(answer, backward(rng, 7, 7, 3, dtype=HALF), tolerance=2e-3)
        agrees(answer, backward(rng, 6, 6, 2, True, dtype=HALF, size=4.0), tolerance=3e-3)
        agrees(answer, canceling(rng), tolerance=3e-3)


@task.check(
    5, "it computes the gradient of the queries and nothing grows like the square of the length"
)
def nothing_grows_like_the_square_of_the_length(answer, rng):
    computes(answer, backward(rng, 6, 6, 3))
    stays_linear(answer, long_backward)


@task.check(6, "it computes the gradient of the queries and cuts both queries and keys")
def queries_and_keys_are_both_cut(answer, rng):
    computes(answer, backward(rng, 6, 6, 3))
    cuts_both(answer, long_backward)


@task.check(1)
def new_tensors_are_made_where_its_inputs_are(answer, rng):
    stays_with(answer, backward(rng, 4, 4, 3, True))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, backward(rng, 5, 7, 3))
    moves_nothing(answer, backward(rng, 4, 4, 2, True))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Backward:
    mean = kept = shares = rows = columns = as_is

    def zeros(x, wide):
        return torch.zeros_like(x, dtype=wide)

    def of_outputs(upstream, output):
        return (upstream * output).sum(-1, keepdim=True)

    def wide(dtype):
        return torch.promote_types(dtype, torch.float32)

    def cut(tile, q, k):
        return tile, tile

    def hide(scores, row, column, q, k):
        return hide_later(scores, row + k - q, column)

    def weigh(scores, logsumexp):
        return (scores - finite(logsumexp)).exp()

    def scores(queries, keys):
        return queries @ keys.mT / math.sqrt(queries.shape[-1])

    def of_scores(weights, grad_weights, middle):
        return weights * (grad_weights - middle)

    def scaled(grad, name, d):
        return grad / math.sqrt(d)

    def for_values(grad, d):
        return grad

    def rounded(grad, dtype):
        return grad.to(dtype)

    def __call__(self, query, key, value, output, logsumexp, grad_output, tile, causal=False):
        (q, d), k, wide = query.shape[-2:], key.shape[-2], self.wide(query.dtype)
        high, broad = self.cut(tile, q, k)
        mean = self.of_outputs(grad_output.to(wide), output.to(wide))
        tensors = {"query": query, "key": key, "value": value}
        grads = {name: self.zeros(x, wide) for name, x in tensors.items()}
        for row in range(0, self.rows(q, tile), high):
            rows = slice(row, row + high)
            queries, upstream = query[..., rows, :].to(wide), grad_output[..., rows, :].to(wide)
            for column in range(0, self.columns(k, tile), broad):
                columns = slice(column, column + broad)
                keys, values = key[..., columns, :].to(wide), value[..., columns, :].to(wide)
                scores = self.scores(queries, keys)
                scores = self.hide(scores, row, column, q, k) if causal else scores
                weights = self.weigh(scores, logsumexp[..., rows, None].to(wide))
                grad_weights = upstream @ values.mT
                middle = self.mean(mean[..., rows, :], weights, grad_weights)
                grad_scores = self.of_scores(weights, grad_weights, middle)
                grad_values = self.shares(weights, grad_scores).mT @ upstream
                for name, place, added in (
                    ("query", rows, self.scaled(grad_scores @ keys, "query", d)),
                    ("key", columns, self.scaled(grad_scores.mT @ queries, "key", d)),
                    ("value", columns, self.for_values(grad_values, d)),
                ):
                    before = grads[name][..., place, :]
                    grads[name][..., place, :] = self.kept(before, name) + added
        return tuple(self.rounded(grad, query.dtype) for grad in grads.values())


def nothing_for_nobody(scores, logsumexp):
    return (scores - finite(logsumexp)).exp().masked_fill(logsumexp == -math.inf, 0)


# The same wherever the right keys are hidden: where none is left, all weights are 0 already.
task.spelling(weigh=nothing_for_nobody)


def unscaled(*names):
    return lambda grad, name, d: grad if name in names else grad / math.sqrt(d)


def overwritten(*names):
    return lambda grad, name: 0 * grad if name in names else grad


# --- faults -------------------------------------------------------------------------------------

task.fault(
    "C-ON-THE-CPU",
    zeros=(lambda x, wide: torch.zeros(x.shape, dtype=wide), ...),
    hide=(..., hide_from_the_cpu),
)

task.fault(
    "L6-NO-REST",
    rows=(whole_tiles, whole_tiles, ..., one_tile_at_least, ...),
    columns=(whole_tiles, ..., whole_tiles, one_tile_at_least, one_tile_at_least),
)
task.fault("L6-NO-MEAN", mean=lambda mean, weights, grad_weights: 0.0)
task.fault(
    "L6-MEAN-OVER-WIDTH",
    of_outputs=lambda upstream, output: (upstream * output).mean(-1, keepdim=True),
)
task.fault("L6-OUTPUT-ALONE", of_outputs=lambda upstream, output: output.sum(-1, keepdim=True))
task.fault(
    "L6-TILE-MEAN",
    mean=lambda mean, weights, grad_weights: (weights * grad_weights).sum(-1, keepdim=True),
)
task.fault("L6-TILE-SOFTMAX", weigh=lambda scores, logsumexp: scores.softmax(-1).nan_to_num())
task.fault("L6-NO-SCALE", scaled=(unscaled("query", "key"), unscaled("query")))
task.fault("L6-KEY-NOT-SCALED", scaled=unscaled("key"))
task.fault(
    "L6-OVERWRITES", kept=(overwritten("key", "value"), overwritten("key"), overwritten("value"))
)
task.fault("L6-QUERY-OVERWRITTEN", kept=overwritten("query"))
task.fault(
    "L6-VALUES-UNWEIGHTED",
    shares=(
        lambda weights, grad_scores: torch.ones_like(weights),
        lambda weights, grad_scores: (weights > 0).to(weights.dtype),
    ),
)
task.fault("L6-VALUES-SCALED", for_values=lambda grad, d: grad / math.sqrt(d))
task.fault("L6-SCORES-NOT-SCALED", scores=lambda queries, keys: queries @ keys.mT)
task.fault(
    "L6-SCALE-BY-D",
    scaled=(
        lambda grad, name, d: grad / d,
        lambda grad, name, d: grad / d if name == "query" else grad / math.sqrt(d),
    ),
)
task.fault(
    "L6-KEY-SCALED-TWICE",
    scaled=lambda grad, name, d: grad / d if name == "key" else grad / math.sqrt(d),
)
task.fault("L6-NO-WEIGHT", of_scores=lambda weights, grad_weights, middle: grad_weights - middle)
task.fault(
    "L6-MEAN-ADDED",
    of_scores=lambda weights, grad_weights, middle: weights * (grad_weights + middle),
)
task.fault(
    "L6-MEAN-NOT-WEIGHTED",
    of_scores=lambda weights, grad_weights, middle: weights * grad_weights - middle,
)
task.fault("L6-NO-LOGSUMEXP", weigh=lambda scores, logsumexp: scores.exp())
task.fault("L6-NOT-ROUNDED", rounded=lambda grad, dtype: grad)
of_causal_masks(task, Backward.hide)
task.fault("L6-VALUES-BY-SCORES", shares=lambda weights, grad_scores: grad_scores)
task.fault("L6-CAUSAL-IGNORED", hide=as_is)
task.fault("L6-OWN-TILE", hide=OWN_TILE)
task.fault(
    "L6-CAUSAL-START", hide=lambda scores, row, column, q, k: hide_later(scores, row, column)
)
task.fault(
    "L6-EMPTY-NAN",
    section="nothing-seen",
    weigh=lambda scores, logsumexp: (scores - logsumexp).exp(),
)
task.fault("L6-HALF", wide=as_is)
task.fault("L6-WHOLE-MATRIX", section="meter", cut=lambda tile, q, k: (q, k))
task.fault("L6-WHOLE-ROWS", section="meter", cut=lambda tile, q, k: (tile, k))


@task.fault("L6-SUMS-IN-HALF")
class SumsInHalf(Backward):
    def __call__(self, query, *others, **named):
        self.narrow = query.dtype
        return super().__call__(query, *others, **named)

    def kept(self, grad, name):
        return grad.to(self.narrow).to(grad.dtype)
