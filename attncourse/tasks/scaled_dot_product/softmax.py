"""softmax."""

import torch

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure, compare, moves_nothing, shape_of
from attncourse.checks.inputs import integers, normal
from attncourse.checks.observe import LIBRARY_SOFTMAX
from attncourse.checks.task import Task


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
    forbidden=LIBRARY_SOFTMAX,
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


# --- faults ---------------------------------------------------------------------------------------


def exponentials(scores, dim):
    return (scores - scores.amax(dim, keepdim=True)).exp()


@task.fault(
    "D-NAIVE-SOFTMAX",
    thinks="The formula is exp over the sum of exps, so that is what I compute.",
    why="On paper yes. In float32 exp(89) is already infinite, and infinity over infinity is NaN. "
    "Something that changes no weight can be done to the scores first.",
)
def naive_softmax(scores, dim=-1):
    return scores.exp() / scores.exp().sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-IGNORES-DIM",
    thinks="Softmax runs over the last axis, always.",
    why="In attention it usually does, but the caller chooses: `dim` says which axis competes. "
    "Your weights are the same for every `dim`.",
)
def softmax_last_axis(scores, dim=-1):
    e = exponentials(scores, -1)
    return e / e.sum(-1, keepdim=True)


@task.fault(
    "D-SOFTMAX-ALL",
    thinks="All weights together sum to one.",
    why="Each row is a competition of its own: every row sums to one. A sum without an axis lets "
    "all rows compete with each other, as the dependency map shows.",
)
def softmax_over_everything(scores, dim=-1):
    e = (scores - scores.amax()).exp()
    return e / e.sum()


def softmax_of_rows_minus_flat_maximum(scores, dim=-1):
    e = (scores - scores.amax(dim)).exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-KEEPDIM",
    thinks="A sum or maximum along `dim` gives one number per row, and torch will match each row "
    "with its own.",
    why="That result has lost an axis. Broadcasting lines axes up from the right, so rows meet the "
    "wrong numbers; it only goes unnoticed where two lengths agree.",
    forms=(softmax_of_rows_minus_flat_maximum,),
)
def softmax_without_keepdim(scores, dim=-1):
    e = exponentials(scores, dim)
    return e / e.sum(dim)


@task.fault(
    "D-SOFTMAX-LOG",
    thinks="The logarithm of the weights is as good as the weights, and more stable.",
    why="Log-weights are negative and sum to nothing in particular. An average needs the weights "
    "themselves.",
)
def log_softmax(scores, dim=-1):
    shifted = scores - scores.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@task.fault(
    "D-SOFTMAX-LINEAR",
    thinks="Dividing each score by the sum of the scores makes weights.",
    why="Scores can be negative, and their sum can be zero. Something has to make them positive "
    "before they are divided.",
)
def linear_normalization(scores, dim=-1):
    return scores / scores.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-RELU",
    thinks="A negative score means no interest, so it gets weight zero.",
    why="A score has no zero point: add 5 to all of them and softmax gives the same weights. Only "
    "differences count, so no score is negative in itself.",
)
def relu_normalization(scores, dim=-1):
    positive = scores.clamp(min=0)
    return positive / positive.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-SIGMOID",
    thinks="Each score becomes a weight between 0 and 1 by itself.",
    why="Then nothing competes and rows do not sum to one. In softmax one weight can only grow "
    "if the others shrink.",
)
def sigmoid_weights(scores, dim=-1):
    return scores.sigmoid()


@task.fault(
    "D-SOFTMAX-HARD",
    thinks="The largest score wins, so its weight is one and the others are zero.",
    why="That is a hard maximum. It has no useful gradient, and the runner-up is lost. Softmax "
    "is its smooth form: every score keeps some weight.",
    section="soft-lookup",
)
def hardmax(scores, dim=-1):
    best = scores == scores.amax(dim, keepdim=True)
    return best.to(scores.dtype) / best.sum(dim, keepdim=True) + 0 * scores


@task.fault(
    "D-SOFTMAX-GLOBAL-MAX",
    thinks="One shift for the whole table, such as its largest score, is enough to be safe.",
    why="It may stop overflow, but a row far below becomes all zeros after exp, and 0/0 is NaN. "
    "Each row needs its own shift.",
)
def softmax_global_maximum(scores, dim=-1):
    e = (scores - scores.amax()).exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-MEAN",
    thinks="Any shift keeps the weights, so it does not matter what I subtract from a row.",
    why="On paper true. But if a score stays far above what you subtracted, its exp overflows. "
    "Which shift leaves no positive exponent?",
)
def softmax_minus_mean(scores, dim=-1):
    e = (scores - scores.mean(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-MINUS",
    thinks="The exponent carries a minus sign, as in a distance.",
    why="Then the smallest score wins. A score measures agreement: the larger it is, the larger "
    "its weight.",
)
def softmin(scores, dim=-1):
    e = exponentials(-scores, dim)
    return e / e.sum(dim, keepdim=True)


def softmax_in_place_by_values(scores, dim=-1):
    scores -= scores.max(dim, keepdim=True).values
    e = scores.exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-INPLACE",
    thinks="Subtracting in place saves memory and changes nothing else.",
    why="`scores` belongs to the caller, who sees it changed. `a -= b` edits the tensor itself; "
    "`a = a - b` makes a new one.",
    forms=(softmax_in_place_by_values,),
)
def softmax_in_place(scores, dim=-1):
    scores -= scores.amax(dim, keepdim=True)
    e = scores.exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-INPLACE-GRAPH",
    thinks="Editing a tensor that I made myself can do no harm.",
    why="The caller sees none of it, but autograd does: it kept that tensor to compute the "
    "gradient of exp, and finds other numbers in it. Make a new tensor instead of `/=` or `-=`.",
    section="gradients",
)
def softmax_divides_in_place(scores, dim=-1):
    e = exponentials(scores, dim)
    e /= e.sum(dim, keepdim=True)
    return e


@task.fault(
    "D-SOFTMAX-PLUS-MAX",
    thinks="The shift by the largest score is an addition.",
    why="Any shift keeps the weights, but this one doubles the exponents that were already too "
    "large. The shift should bring them down.",
)
def softmax_plus_maximum(scores, dim=-1):
    e = (scores + scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-DETACH",
    thinks="The numbers are right, so the answer is right.",
    why="The values are, but no gradient reaches the scores: `.detach()`, `.data`, `no_grad` or a "
    "detour through NumPy cut the graph, and such a model cannot learn where to look.",
    section="gradients",
)
def softmax_detached(scores, dim=-1):
    e = exponentials(scores.detach(), dim)
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-FLOAT32",
    thinks="Computing in float32 is always fine.",
    why="Your weights are float32 although the scores came as float64: the caller loses half of "
    "the digits. Keep the dtype that came.",
)
def softmax_float32(scores, dim=-1):
    e = exponentials(scores.float(), dim)
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-CLAMP",
    thinks="Cutting scores off at a limit prevents overflow.",
    why="It does, and it makes 9,999 and 10,000 equal. A shift prevents overflow too, and keeps "
    "every difference.",
)
def softmax_clamped(scores, dim=-1):
    e = scores.clamp(-50, 50).exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-BASE",
    thinks="Any base will do for the exponential.",
    why="Another base is another temperature: with base 2 every score counts ln 2 ≈ 0.69 times as "
    "much. Softmax means base e.",
)
def softmax_base_two(scores, dim=-1):
    e = torch.exp2(scores - scores.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-OVER-MAX",
    thinks="Dividing by the largest exponential normalizes a row.",
    why="Then the largest weight is one and the row sums to more. Weights are shares of a whole: "
    "what is the whole?",
)
def softmax_over_maximum(scores, dim=-1):
    return exponentials(scores, dim)


@task.fault(
    "D-SOFTMAX-L2",
    thinks="Normalizing means dividing by the length of the vector.",
    why="Then the squares of a row sum to one, not the weights. An average needs weights whose "
    "plain sum is one.",
)
def softmax_unit_length(scores, dim=-1):
    e = exponentials(scores, dim)
    return e / e.square().sum(dim, keepdim=True).sqrt()


@task.fault(
    "D-SOFTMAX-DIVIDES-BY-MAX",
    thinks="Dividing the scores by their maximum keeps exp small.",
    why="It does, but it also changes the differences, and the weights depend on nothing else. "
    "Adding or subtracting a number keeps differences; dividing does not.",
)
def softmax_scores_over_maximum(scores, dim=-1):
    e = (scores / scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@task.fault(
    "D-SOFTMAX-STANDARDIZE",
    thinks="Scores should have mean 0 and variance 1 before the exponential.",
    why="The mean does no harm, but dividing by each row's own spread makes a clear winner and a "
    "near tie look alike. Softmax leaves differences as they are.",
    section="why-scale",
)
def softmax_standardized(scores, dim=-1):
    centered = scores - scores.mean(dim, keepdim=True)
    e = exponentials(centered / centered.square().mean(dim, keepdim=True).sqrt(), dim)
    return e / e.sum(dim, keepdim=True)
