import math

import torch
import torch.nn.functional as F

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION, LIBRARY_SOFTMAX
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def softmax_probes(rng):
    return {
        "rows": {"scores": normal(rng, 3, 4, 5), "dim": -1},
        "square": {"scores": normal(rng, 4, 4), "dim": -1},
        "columns": {"scores": normal(rng, 3, 4, 5), "dim": 1},
        "first axis": {"scores": normal(rng, 3, 4, 5), "dim": 0},
        "one row": {"scores": normal(rng, 6), "dim": -1},
        "positive": {"scores": normal(rng, 3, 5).abs() + 0.1, "dim": -1},
        "sixty": {"scores": integers(rng, 3, 5) + torch.tensor([60.0]), "dim": -1},
        "large": {"scores": integers(rng, 3, 5) + torch.tensor([1e4]), "dim": -1},
        "very negative": {"scores": integers(rng, 3, 5) - torch.tensor([1e4]), "dim": -1},
        "rows far apart": {
            "scores": integers(rng, 3, 4) + torch.tensor([[1e4], [0.0], [-1e4]]),
            "dim": -1,
        },
        "wide": {"scores": torch.tensor([[0.0, 400.0, 399.0], [-400.0, 2.0, 1.0]]), "dim": -1},
        "double": {"scores": normal(rng, 3, 5, dtype=torch.float64), "dim": -1},
        "columns far apart": {
            "scores": integers(rng, 3, 4) + torch.tensor([1e4, 0.0, -1e4, 9.0]),
            "dim": 0,
        },
        "dim left out": {"scores": normal(rng, 3, 4, 5)},
    }


def softmax_traits(answer):
    scores = normal(torch.Generator().manual_seed(0), 3, 5, dtype=torch.float64)
    weights = answer({"scores": scores, "dim": -1})
    lost = (weights.sum(-1) - 1).abs().max().item()
    return {
        "rows miss one by a little": 1e-10 < lost < 1e-4,
        "reads seven digits of a score": torch.equal(
            weights, answer({"scores": scores.float().double(), "dim": -1})
        ),
    }


def softmax_small(rng):
    for shape in ((2,), (3,), (2, 2), (2, 3)):
        for _ in range(4):
            yield {"scores": integers(rng, *shape), "dim": -1}
    yield {"scores": integers(rng, 2, 3), "dim": 0}
    yield {"scores": integers(rng, 2, 2, 2), "dim": 1}
    for size in (100.0, 1000.0, 1e4):
        yield {"scores": torch.tensor([size, size + 1]), "dim": -1}
        yield {"scores": torch.tensor([-size, -size - 1]), "dim": -1}
        yield {"scores": torch.tensor([0.0, size]), "dim": -1}
        yield {"scores": torch.tensor([[size, size + 1], [0.0, 1.0]]), "dim": -1}
        yield {"scores": torch.tensor([[-size, 1 - size], [size, size]]), "dim": -1}


def softmax_maps(rng):
    return [("two rows of three scores", {"scores": normal(rng, 2, 3), "dim": -1}, ("scores",))]


task = Task(
    reference.softmax,
    number=1,
    returns=("weights",),
    difficulty=1,
    minutes=10,
    section="stable-softmax",
    probes=softmax_probes,
    differentiated=("rows", "columns"),
    small=softmax_small,
    maps=softmax_maps,
    traits=softmax_traits,
    forbidden=LIBRARY_SOFTMAX + FUSED_ATTENTION,
)


@task.check(1)
def one_weight_for_every_score_in_its_dtype(answer, rng):
    scores = normal(rng, 3, 4, 5)
    weights = answer({"scores": scores})
    if weights.shape != scores.shape:
        raise Failure(
            f"weights have shape {shape_of(weights)}; scores came with {shape_of(scores)}.",
            {"scores": scores},
        )
    if weights.dtype != scores.dtype:
        raise Failure(f"weights are {weights.dtype}; scores came as {scores.dtype}.")


@task.check(1)
def weights_are_positive_and_sum_to_one(answer, rng):
    inputs = {"scores": normal(rng, 3, 4, 7)}
    weights = answer(inputs)
    if weights.shape != (3, 4, 7):
        raise Failure(f"weights have shape {shape_of(weights)}; expected (3 4 7).", inputs)
    if (weights <= 0).any():
        raise Failure("Some weights are not positive.", inputs, got=weights)
    compare("the sum of each row", weights.sum(-1), torch.ones(3, 4), inputs)


@task.check(1)
def weights_match_the_formula(answer, rng):
    answer.matches({"scores": normal(rng, 3, 4, 5), "dim": -1})
    answer.matches({"scores": normal(rng, 4, 4)})  # the last axis, if none is named
    answer.matches({"scores": normal(rng, 2, 3, 4)})
    answer.matches({"scores": 9 * normal(rng, 5, 3).T, "dim": -1})  # not contiguous
    answer.matches({"scores": normal(rng, 6, dtype=torch.float64), "dim": -1})


@task.check(1)
def any_axis_can_compete(answer, rng):
    for dim in (0, 1, 2, -2):
        answer.matches({"scores": normal(rng, 3, 4, 5), "dim": dim})
    answer.matches({"scores": normal(rng, 3, 2), "dim": 0})
    answer.matches({"scores": normal(rng, 3, 1), "dim": -1})


@task.check(1)
def scores_of_ten_thousand_give_finite_and_right_weights(answer, rng):
    # A log-sum-exp of 1e4 is known to 1e-3 in float32, so nothing sharper is asked.
    offset = torch.tensor([[1e4], [0.0], [-1e4]])
    answer.matches({"scores": integers(rng, 3, 5) + offset, "dim": -1}, tolerance=5e-3)
    answer.matches({"scores": integers(rng, 2, 3) - 1e4, "dim": -1}, tolerance=5e-3)
    answer.matches({"scores": torch.tensor([[-1e4, 1e4, 9998.0]]), "dim": -1}, tolerance=5e-3)
    answer.matches({"scores": torch.tensor([[0.0, 400.0, 399.0]]), "dim": -1}, tolerance=5e-3)


@task.check(1)
def gradients_pass_and_nothing_else_changes(answer, rng):
    inputs = {"scores": normal(rng, 3, 4, 5), "dim": -1}
    answer.gradients_match(inputs)
    moves_nothing(answer, inputs)


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Softmax:
    def axis(dim, scores):
        return dim

    def enter(scores):
        return scores

    def temper(scores, dim):
        return scores

    def peak(scores, dim):
        return scores.amax(dim, keepdim=True)

    def shift(scores, peak, dim):
        return scores - peak

    def grow(shifted):
        return shifted.exp()

    def whole(e, scores, dim):
        return e.sum(dim, keepdim=True)

    def divide(e, whole, dim, shifted):
        return e / whole

    def result(weights, scores, dim):
        return weights

    def leave(weights, dtype):
        return weights

    def __call__(self, scores, dim=-1):
        dim, dtype, scores = self.axis(dim, scores), scores.dtype, self.enter(scores)
        tempered = self.temper(scores, dim)
        shifted = self.shift(tempered, self.peak(tempered, dim), dim)
        e = self.grow(shifted)
        weights = self.divide(e, self.whole(e, scores, dim), dim, shifted)
        weights = self.result(weights, scores, dim)
        return self.leave(weights, dtype)


# --- faults: the axis ---------------------------------------------------------------------------

task.fault("D-SOFTMAX-IGNORES-DIM", axis=lambda dim, scores: -1)
task.fault("D-SOFTMAX-AXIS-FIXED", axis=(lambda dim, scores: 0, lambda dim, scores: 1))
task.fault(
    "D-SOFTMAX-ALL",
    whole=lambda e, scores, dim: e.sum(),
    peak=(lambda scores, dim: scores.amax(), ...),
)
task.fault(
    "D-SOFTMAX-KEEPDIM",
    whole=(
        lambda e, scores, dim: e.sum(dim),
        ...,
        lambda e, scores, dim: e.sum(dim),
        lambda e, scores, dim: e.sum(dim).unsqueeze(-1),
        lambda e, scores, dim: e.sum(dim).unsqueeze(-1),
    ),
    peak=(
        ...,
        lambda scores, dim: scores.amax(dim),
        lambda scores, dim: scores.amax(dim),
        ...,
        lambda scores, dim: scores.amax(dim).unsqueeze(-1),
    ),
)
task.fault(
    "D-SOFTMAX-SHIFT-AXIS",
    peak=(
        lambda scores, dim: scores.amax(-1, keepdim=True),
        lambda scores, dim: scores.amax(0, keepdim=True),
    ),
)


@task.fault("D-SOFTMAX-NO-DEFAULT")
class NoDefault(Softmax):
    def __call__(self, scores, dim):
        return super().__call__(scores, dim)


class SecondAxis(Softmax):
    def __call__(self, scores, dim=1):
        return super().__call__(scores, dim)


@task.fault("D-SOFTMAX-OTHER-DEFAULT", forms=(SecondAxis,))
class FirstAxis(Softmax):
    def __call__(self, scores, dim=0):
        return super().__call__(scores, dim)


# --- faults: the shift --------------------------------------------------------------------------


def in_place(scores, peak, dim):
    scores -= peak
    return scores


def standardized(scores, dim):
    centered = scores - scores.mean(dim, keepdim=True)
    return centered / centered.square().mean(dim, keepdim=True).sqrt()


def standardized_by_one_less(scores, dim):
    return (scores - scores.mean(dim, keepdim=True)) / scores.std(dim, keepdim=True)


def cut(*limits):
    return lambda scores, peak, dim: scores.clamp(*limits)


task.fault(
    "D-NAIVE-SOFTMAX", shift=as_is, result=(..., lambda weights, scores, dim: weights.nan_to_num())
)
task.fault(
    "D-SOFTMAX-ONLY-DOWN",
    peak=lambda scores, dim: scores.amax(dim, keepdim=True).clamp(min=0),
)
task.fault("D-SOFTMAX-GLOBAL-MAX", peak=lambda scores, dim: scores.amax())
task.fault("D-SOFTMAX-LARGEST-SIZE", peak=lambda scores, dim: scores.abs().amax(dim, keepdim=True))
task.fault(
    "D-SOFTMAX-MEAN",
    peak=(
        lambda scores, dim: scores.mean(dim, keepdim=True),
        lambda scores, dim: scores.amin(dim, keepdim=True),
    ),
)
task.fault(
    "D-SOFTMAX-MINUS",
    shift=lambda scores, peak, dim: peak - scores,
    peak=(lambda scores, dim: scores.amin(dim, keepdim=True), ...),
)
task.fault(
    "D-SOFTMAX-INPLACE",
    shift=in_place,
    peak=(..., lambda scores, dim: scores.max(dim, keepdim=True).values),
)
task.fault("D-SOFTMAX-PLUS-MAX", shift=lambda scores, peak, dim: scores + peak)
task.fault(
    "D-SOFTMAX-CLAMP",
    shift=(
        cut(-50, 50),
        cut(None, 50),
        cut(None, 80),
        cut(-80, 80),
        cut(-88, 88),
        lambda scores, peak, dim: (scores - scores.mean(dim, keepdim=True)).clamp(-80, 80),
    ),
)
task.fault(
    "D-SOFTMAX-DIVIDES-BY-MAX",
    shift=lambda scores, peak, dim: scores / peak,
    peak=(
        ...,
        lambda scores, dim: scores.abs().amax(dim, keepdim=True),
        lambda scores, dim: scores.amax(),
        lambda scores, dim: scores.abs().amax(),
    ),
)
task.fault(
    "D-SOFTMAX-STANDARDIZE",
    section="why-scale",
    temper=(standardized, standardized_by_one_less),
)
task.fault(
    "D-SOFTMAX-SCALED",
    section="why-scale",
    temper=(
        lambda scores, dim: scores / math.sqrt(scores.shape[-1]),
        lambda scores, dim: scores / math.sqrt(scores.shape[dim]),
    ),
)

# --- faults: what is positive, and what is the whole --------------------------------------------


def divides_in_place(e, whole, dim, shifted):
    e /= whole
    return e


def best(e, whole, dim, shifted):
    winner = e == e.amax(dim, keepdim=True)
    return winner.to(e.dtype) / winner.sum(dim, keepdim=True) + 0 * e


def every_best(e, whole, dim, shifted):
    return (e == e.amax(dim, keepdim=True)).to(e.dtype)


def first_best(e, whole, dim, shifted):
    return torch.zeros_like(e).scatter(dim, e.argmax(dim, keepdim=True), 1.0)


task.fault("D-SOFTMAX-LINEAR", shift=as_is, grow=as_is)
task.fault("D-SOFTMAX-RELU", shift=as_is, grow=torch.relu)
task.fault("D-SOFTMAX-POSITIVE", shift=as_is, grow=(torch.square, torch.abs))
task.fault("D-SOFTMAX-OTHER-GROWTH", shift=as_is, grow=(torch.sigmoid, F.softplus))
task.fault(
    "D-SOFTMAX-FROM-MINIMUM",
    peak=lambda scores, dim: scores.amin(dim, keepdim=True),
    grow=as_is,
)
task.fault("D-SOFTMAX-BASE", grow=(torch.exp2, lambda shifted: 10**shifted))
task.fault(
    "D-SOFTMAX-OVER-MAX",
    divide=(as_is, ...),
    whole=(..., lambda e, scores, dim: e.amax(dim, keepdim=True)),
)
task.fault("D-SOFTMAX-NOT-DIVIDED", shift=as_is, divide=as_is)
task.fault("D-SOFTMAX-L2", whole=lambda e, scores, dim: e.square().sum(dim, keepdim=True).sqrt())
task.fault("D-SOFTMAX-OVER-MEAN", whole=lambda e, scores, dim: e.mean(dim, keepdim=True))
task.fault(
    "D-SOFTMAX-OVER-SCORES",
    whole=lambda e, scores, dim: scores.sum(dim, keepdim=True),
    shift=(as_is, ...),
)
task.fault("D-SOFTMAX-LEFT-OUT", whole=lambda e, scores, dim: e.sum(dim, keepdim=True) - e)
task.fault(
    "D-SOFTMAX-EPSILON",
    whole=(
        lambda e, scores, dim: e.sum(dim, keepdim=True) + 1e-6,
        lambda e, scores, dim: e.sum(dim, keepdim=True) + 1e-8,
    ),
)
task.fault("D-SOFTMAX-INPLACE-GRAPH", section="gradients", divide=divides_in_place)
task.fault("D-SOFTMAX-HARD", section="soft-lookup", divide=(best, every_best, first_best))

# --- faults: what is returned -------------------------------------------------------------------

task.fault(
    "D-SOFTMAX-LOG",
    result=(
        lambda weights, scores, dim: scores - scores.logsumexp(dim, keepdim=True),
        lambda weights, scores, dim: weights.log(),
        ...,
    ),
    divide=(..., ..., lambda e, whole, dim, shifted: shifted - whole.log()),
)
task.fault("D-SOFTMAX-SIGMOID", result=lambda weights, scores, dim: scores.sigmoid())
task.fault(
    "D-SOFTMAX-DETACH", section="gradients", result=lambda weights, scores, dim: weights.detach()
)
task.fault("D-SOFTMAX-FLOAT32", enter=torch.Tensor.float)
task.fault(
    "D-SOFTMAX-FLOAT32-INSIDE",
    enter=torch.Tensor.float,
    leave=torch.Tensor.to,
)
task.fault("D-SOFTMAX-FLOAT64", enter=torch.Tensor.double)
