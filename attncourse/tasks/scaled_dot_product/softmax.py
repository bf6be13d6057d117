"""From scores to weights: exp over the sum of exps, along any axis."""

import math

import torch

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import FUSED_ATTENTION, LIBRARY_SOFTMAX
from attncourse.checks.task import Task
from attncourse.tasks import as_is, thoughts


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
    hints=(
        "Weights are positive and, along `dim`, sum to one. Which function makes any number "
        "positive, and what do you divide by so that the sum is one?",
        "exp(1e4) is infinite, and inf/inf is NaN. Subtract the same number from all scores "
        "of a row and no weight changes. Which number makes every exponent 0 or less?",
        "Three steps, each along `dim` and with keepdim=True so that shapes still fit: the "
        "largest score; exp of (scores − largest); divide by the sum of those.",
    ),
    probes=softmax_probes,
    differentiated=("rows", "columns"),
    small=softmax_small,
    maps=softmax_maps,
    traits=softmax_traits,
    forbidden=LIBRARY_SOFTMAX + FUSED_ATTENTION,
)


@task.check(1)
def one_weight_for_every_score(answer, rng):
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
    inputs = {"scores": normal(rng, 4, 7)}
    weights = answer(inputs)
    if (weights < 0).any():
        raise Failure("Some weights are negative.", inputs, got=weights)
    if weights.shape != (4, 7):
        raise Failure(f"weights have shape {shape_of(weights)}; expected (4 7).", inputs)
    compare("the sum of each row", weights.sum(-1), torch.ones(4), inputs)


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
def scores_of_ten_thousand_give_finite_weights(answer, rng):
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

    def shift(scores, dim):
        return scores - scores.amax(dim, keepdim=True)

    def grow(shifted):
        return shifted.exp()

    def whole(e, scores, dim):
        return e.sum(dim, keepdim=True)

    def divide(e, whole, dim):
        return e / whole

    def result(weights, scores, dim):
        return weights

    def __call__(self, scores, dim=-1):
        dim = self.axis(dim, scores)
        e = self.grow(self.shift(scores, dim))
        return self.result(self.divide(e, self.whole(e, scores, dim), dim), scores, dim)


# --- faults: the axis ---------------------------------------------------------------------------

task.fault(
    "D-SOFTMAX-IGNORES-DIM",
    "Softmax runs over the last axis, always.",
    "In attention it usually does, but the caller chooses: `dim` says which axis competes. Your "
    "weights are the same for every `dim`.",
    axis=lambda dim, scores: -1,
)
task.fault(
    "D-SOFTMAX-AXIS-FIXED",
    "Softmax runs over the first axis, or the second, always.",
    "What stands there depends on how many axes there are: keys, queries, heads or sentences. The "
    "caller says which one competes: `dim`.",
    axis=(lambda dim, scores: 0, lambda dim, scores: 1),
)
task.fault(
    thoughts.SOFTMAX_ALL,
    "All weights together sum to one.",
    "Each row is a competition of its own: every row sums to one. A sum without an axis lets all "
    "rows compete with each other, as the dependency map shows.",
    whole=lambda e, scores, dim: e.sum(),
    shift=(lambda scores, dim: scores - scores.amax(), ...),
)
task.fault(
    "D-SOFTMAX-KEEPDIM",
    "A sum or maximum along `dim` gives one number per row, and torch will match each row with its "
    "own.",
    "That result has lost an axis. Broadcasting lines axes up from the right, so rows meet the "
    "wrong numbers; it only goes unnoticed where two lengths agree.",
    whole=(lambda e, scores, dim: e.sum(dim), ..., lambda e, scores, dim: e.sum(dim)),
    shift=(..., lambda scores, dim: scores - scores.amax(dim)),
)
task.fault(
    "D-SOFTMAX-SHIFT-AXIS",
    "Whichever axis competes, the largest score is looked for along my own axis.",
    "A shift keeps the weights only if all that compete are shifted alike. Along another axis each "
    "of them gets a shift of its own, which changes their differences.",
    shift=(
        lambda scores, dim: scores - scores.amax(-1, keepdim=True),
        lambda scores, dim: scores - scores.amax(0, keepdim=True),
    ),
)


@task.fault(
    "D-SOFTMAX-NO-DEFAULT",
    "Whoever calls this says `dim`.",
    "The signature of the task says `dim=-1`: without it, the last axis competes.",
)
class NoDefault(Softmax):
    def __call__(self, scores, dim):
        return super().__call__(scores, dim)


class SecondAxis(Softmax):
    def __call__(self, scores, dim=1):
        return super().__call__(scores, dim)


@task.fault(
    "D-SOFTMAX-OTHER-DEFAULT",
    "Without `dim`, the first axis competes, or the second.",
    "The keys, which compete in attention, are always last, however many axes stand before them. "
    "So the task's default is the last axis.",
    forms=(SecondAxis,),
)
class FirstAxis(Softmax):
    def __call__(self, scores, dim=0):
        return super().__call__(scores, dim)


# --- faults: the shift --------------------------------------------------------------------------


def in_place(scores, dim):
    scores -= scores.amax(dim, keepdim=True)
    return scores


def in_place_by_values(scores, dim):
    scores -= scores.max(dim, keepdim=True).values
    return scores


def standardized(scores, dim):
    centered = scores - scores.mean(dim, keepdim=True)
    return Softmax.shift(centered / centered.square().mean(dim, keepdim=True).sqrt(), dim)


def cut(*limits):
    return lambda scores, dim: scores.clamp(*limits)


task.fault(
    thoughts.NAIVE_SOFTMAX,
    "The formula is exp over the sum of exps, so that is what I compute.",
    "On paper yes. In float32 exp(89) is already infinite, and infinity over infinity is NaN. "
    "Something that changes no weight can be done to the scores first.",
    shift=as_is,
    result=(..., lambda weights, scores, dim: weights.nan_to_num()),
)
task.fault(
    "D-SOFTMAX-GLOBAL-MAX",
    "One shift for the whole table, such as its largest score, is enough to be safe.",
    "It may stop overflow, but a row far below becomes all zeros after exp, and 0/0 is NaN. Each "
    "row needs its own shift.",
    shift=lambda scores, dim: scores - scores.amax(),
)
task.fault(
    "D-SOFTMAX-MEAN",
    "Any shift keeps the weights, so it does not matter what I subtract from a row.",
    "On paper true. But if a score stays far above what you subtracted, its exp overflows. Which "
    "shift leaves no positive exponent?",
    shift=(
        lambda scores, dim: scores - scores.mean(dim, keepdim=True),
        lambda scores, dim: scores - scores.amin(dim, keepdim=True),
    ),
)
task.fault(
    "D-SOFTMAX-MINUS",
    "The exponent carries a minus sign, as in a distance.",
    "Then the smallest score wins. A score measures agreement: the larger it is, the larger its "
    "weight.",
    shift=(
        lambda scores, dim: scores.amin(dim, keepdim=True) - scores,
        lambda scores, dim: scores.amax(dim, keepdim=True) - scores,
    ),
)
task.fault(
    "D-SOFTMAX-INPLACE",
    "Subtracting in place saves memory and changes nothing else.",
    "`scores` belongs to the caller, who sees it changed. `a -= b` edits the tensor itself; "
    "`a = a - b` makes a new one.",
    shift=(in_place, in_place_by_values),
)
task.fault(
    "D-SOFTMAX-PLUS-MAX",
    "The shift by the largest score is an addition.",
    "Any shift keeps the weights, but this one doubles the exponents that were already too large. "
    "The shift should bring them down.",
    shift=lambda scores, dim: scores + scores.amax(dim, keepdim=True),
)
task.fault(
    "D-SOFTMAX-CLAMP",
    "Cutting scores off at a limit prevents overflow.",
    "It does, and it makes 9,999 and 10,000 equal. A shift prevents overflow too, and keeps every "
    "difference.",
    shift=(cut(-50, 50), cut(None, 50), cut(None, 80), cut(-80, 80), cut(-88, 88)),
)
task.fault(
    "D-SOFTMAX-DIVIDES-BY-MAX",
    "Dividing the scores by their maximum keeps exp small.",
    "It does, but it also changes the differences, and the weights depend on nothing else. Adding "
    "or subtracting a number keeps differences; dividing does not.",
    shift=lambda scores, dim: scores / scores.amax(dim, keepdim=True),
)
task.fault(
    "D-SOFTMAX-STANDARDIZE",
    "Scores should have mean 0 and variance 1 before the exponential.",
    "The mean does no harm, but dividing by each row's own spread makes a clear winner and a near "
    "tie look alike. Softmax leaves differences as they are.",
    section="why-scale",
    shift=standardized,
)
task.fault(
    "D-SOFTMAX-SCALED",
    "Before the exponential, scores are divided by the root of the width.",
    "In attention whoever computes the scores does that. The last axis of scores counts keys, and "
    "softmax takes differences as they come.",
    section="why-scale",
    shift=lambda scores, dim: Softmax.shift(scores / math.sqrt(scores.shape[-1]), dim),
)

# --- faults: what is positive, and what is the whole --------------------------------------------


def divides_in_place(e, whole, dim):
    e /= whole
    return e


def best(e, whole, dim):
    winner = e == e.amax(dim, keepdim=True)
    return winner.to(e.dtype) / winner.sum(dim, keepdim=True) + 0 * e


task.fault(
    "D-SOFTMAX-LINEAR",
    "Dividing each score by the sum of the scores makes weights.",
    "Scores can be negative, and their sum can be zero. Something has to make them positive before "
    "they are divided.",
    shift=as_is,
    grow=as_is,
)
task.fault(
    "D-SOFTMAX-RELU",
    "A negative score means no interest, so it gets weight zero.",
    "A score has no zero point: add 5 to all of them and softmax gives the same weights. Only "
    "differences count, so no score is negative in itself.",
    shift=as_is,
    grow=torch.relu,
)
task.fault(
    "D-SOFTMAX-POSITIVE",
    "Squares or absolute values are positive, too, so they may stand for the exponential.",
    "Then −3 counts as much as 3: the worst key wins as often as the best. The exponential is "
    "positive and grows with the score.",
    shift=as_is,
    grow=(torch.square, torch.abs),
)
task.fault(
    "D-SOFTMAX-FROM-MINIMUM",
    "Subtracting the smallest score makes all of them positive, and then they can be divided.",
    "The smallest score always gets weight zero then, however close it is. Softmax takes "
    "exponentials: every score keeps some weight.",
    shift=lambda scores, dim: scores - scores.amin(dim, keepdim=True),
    grow=as_is,
)
task.fault(
    "D-SOFTMAX-BASE",
    "Any base will do for the exponential.",
    "Another base is another temperature: with base 2 every score counts ln 2 ≈ 0.69 times as "
    "much. Softmax means base e.",
    grow=(torch.exp2, lambda shifted: 10**shifted),
)
task.fault(
    "D-SOFTMAX-OVER-MAX",
    "Dividing by the largest exponential normalizes a row.",
    "Then the largest weight is one and the row sums to more. Weights are shares of a whole: what "
    "is the whole?",
    divide=as_is,
)
task.fault(
    "D-SOFTMAX-NOT-DIVIDED",
    "The exponentials of the scores are the weights.",
    "They are positive, and sum to anything. To be shares, they must be divided by their sum.",
    shift=as_is,
    divide=as_is,
)
task.fault(
    "D-SOFTMAX-L2",
    "Normalizing means dividing by the length of the vector.",
    "Then the squares of a row sum to one, not the weights. An average needs weights whose plain "
    "sum is one.",
    whole=lambda e, scores, dim: e.square().sum(dim, keepdim=True).sqrt(),
)
task.fault(
    "D-SOFTMAX-OVER-MEAN",
    "Each exponential is divided by the mean of its row.",
    "Then a row's weights have mean one, and their sum is as large as the row is long. Shares of "
    "one come from the sum.",
    whole=lambda e, scores, dim: e.mean(dim, keepdim=True),
)
task.fault(
    "D-SOFTMAX-OVER-SCORES",
    "The exponentials are divided by the sum of the scores.",
    "What is shared out are exponentials, so the whole is their sum. The scores' own sum can be "
    "negative, or zero.",
    whole=lambda e, scores, dim: scores.sum(dim, keepdim=True),
    shift=(as_is, ...),
)
task.fault(
    "D-SOFTMAX-LEFT-OUT",
    "A score is divided by the sum of the others.",
    "Then the weights are odds, and sum to more than one. The whole holds all exponentials, its "
    "own among them.",
    whole=lambda e, scores, dim: e.sum(dim, keepdim=True) - e,
)
task.fault(
    "D-SOFTMAX-EPSILON",
    "A small number added to the sum makes the division safe and changes nothing.",
    "It changes the last digits: rows then sum to a little less than one, which float64 shows. "
    "After subtracting the row's maximum the sum is at least 1, so it is safe anyway.",
    whole=(
        lambda e, scores, dim: e.sum(dim, keepdim=True) + 1e-6,
        lambda e, scores, dim: e.sum(dim, keepdim=True) + 1e-8,
    ),
)
task.fault(
    "D-SOFTMAX-INPLACE-GRAPH",
    "Editing a tensor that I made myself can do no harm.",
    "The caller sees none of it, but autograd does: it kept that tensor to compute the gradient of "
    "exp, and finds other numbers in it. Make a new tensor instead of `/=` or `-=`.",
    section="gradients",
    divide=divides_in_place,
)
task.fault(
    "D-SOFTMAX-HARD",
    "The largest score wins, so its weight is one and the others are zero.",
    "That is a hard maximum. It has no useful gradient, and the runner-up is lost. Softmax is its "
    "smooth form: every score keeps some weight.",
    section="soft-lookup",
    divide=best,
)

# --- faults: what is returned -------------------------------------------------------------------

task.fault(
    "D-SOFTMAX-LOG",
    "The logarithm of the weights is as good as the weights, and more stable.",
    "Log-weights are negative and sum to nothing in particular. An average needs the weights "
    "themselves.",
    result=lambda weights, scores, dim: scores - scores.logsumexp(dim, keepdim=True),
)
task.fault(
    "D-SOFTMAX-SIGMOID",
    "Each score becomes a weight between 0 and 1 by itself.",
    "Then nothing competes and rows do not sum to one. In softmax one weight can only grow if the "
    "others shrink.",
    result=lambda weights, scores, dim: scores.sigmoid(),
)
task.fault(
    "D-SOFTMAX-DETACH",
    "The numbers are right, so the answer is right.",
    "The values are, but no gradient reaches the scores: `.detach()`, `.data`, `no_grad` or a "
    "detour through NumPy cut the graph, and such a model cannot learn where to look.",
    section="gradients",
    result=lambda weights, scores, dim: weights.detach(),
)
task.fault(
    "D-SOFTMAX-FLOAT32",
    "Computing in float32 is always fine.",
    "Your weights are float32 although the scores came as float64: the caller loses half of the "
    "digits. Keep the dtype that came.",
    shift=lambda scores, dim: Softmax.shift(scores.float(), dim),
)
task.fault(
    "D-SOFTMAX-FLOAT32-INSIDE",
    "Casting to float32 inside and back at the end loses nothing.",
    "The dtype is right again, the digits are not: of the sixteen that came, seven are left. "
    "Compute in the dtype of the scores.",
    shift=lambda scores, dim: Softmax.shift(scores.float(), dim),
    result=lambda weights, scores, dim: weights.to(scores.dtype),
)
