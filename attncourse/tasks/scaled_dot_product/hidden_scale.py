"""hidden_scale."""

import torch

from attncourse import scaled_dot_product as reference
from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.tasks.scaled_dot_product import is_a_plain_number


def table(rng, c, q=8, k=4, masked=False):
    """Scores and their weights softmax(scores / c), both printed to two decimals.

    In each row the scores lie well apart, so that any sound estimator finds c to within 5 %.
    With `masked`, rows hide different keys, and in the first only one is left.
    """
    steps = torch.tensor([0.0, 0.5, 1.0, 1.6, 2.1])[:k]
    order = torch.rand(q, k, generator=rng, device="cpu").argsort(-1)
    jitter = torch.rand(q, k, generator=rng, device="cpu") * 0.1
    scores = ((steps + jitter).gather(-1, order) * c).mul(100).round() / 100
    hidden = torch.zeros(q, k, dtype=torch.bool)
    if masked:
        place = torch.rand(q, k, generator=rng, device="cpu").argsort(-1)
        hidden = place >= (k - 1 - torch.arange(q)[:, None] % (k - 2))  # one key or more a row
        hidden[0] = place[0] > 0
    weights = torch.softmax((scores / c).masked_fill(hidden, -torch.inf), -1)
    return {"scores": scores, "weights": weights.mul(100).round() / 100}


# The table of a lecture slide: its weights are not the softmax of its scores.
SLIDE = {
    "scores": torch.tensor(
        [
            [0.11, 0.00, 0.81, 0.79],
            [0.19, 0.50, 0.30, 0.48],
            [0.53, 0.98, 0.95, 0.14],
            [0.81, 0.86, 0.38, 0.90],
        ]
    ),
    "weights": torch.tensor(
        [
            [1.00, 0.00, 0.00, 0.00],
            [0.48, 0.52, 0.00, 0.00],
            [0.31, 0.35, 0.34, 0.00],
            [0.25, 0.26, 0.23, 0.26],
        ]
    ),
}


def scale_probes(rng):
    return {
        f"c = {c}{', masked' if masked else ''}": table(rng, c, masked=masked)
        for c in (0.5, 3.0, 6.3)
        for masked in (False, True)
    }


def scale_small(rng):
    for c in (1.0, 2.0, 4.0):
        yield table(rng, c, q=1)
    for c in (2.0, 4.0):
        yield table(rng, c, q=4, masked=True)
        yield table(rng, c, q=6, masked=True)


def finds(answer, inputs, c):
    got = answer(inputs)
    if not abs(got / c - 1) <= 0.05:
        raise Failure(
            f"Your scale is {got:.4g}; the table was made with {c:g} (5 % off is fine).",
            inputs,
            torch.tensor(float(c)),
            torch.tensor(got),
        )


task = Task(
    reference.hidden_scale,
    number=4,
    returns=float,
    difficulty=4,
    minutes=25,
    section="hidden-scale",
    hints=(
        "Softmax divides exp(score / c) by the sum of its row. What happens to that sum when "
        "you divide two weights of the same row by each other?",
        "log(wᵢ / wⱼ) = (sᵢ − sⱼ) / c. So differences of log-weights against differences of "
        "scores lie on a line through zero, with slope 1 / c. A weight of 0 has no logarithm: "
        "leave it out.",
        "In each row, over its non-zero weights only, subtract the mean from the scores and "
        "from the log-weights; collect all rows; 1 / c = Σ(score · log-weight) / Σ(score²).",
    ),
    probes=scale_probes,
    small=scale_small,
    tolerance=0.05,
)


@task.check(1)
def it_returns_a_plain_number(answer, rng):
    inputs = table(rng, 2.0)
    is_a_plain_number(answer, inputs)


@task.check(1)
def it_finds_the_scale_of_a_full_table(answer, rng):
    for c, q, k in ((1.0, 8, 4), (3.0, 9, 3), (6.3, 7, 5), (1.37, 10, 4)):
        finds(answer, table(rng, c, q, k), c)


@task.check(1)
def a_weight_of_zero_means_masked(answer, rng):
    for c, q, k in ((0.5, 12, 4), (2.0, 11, 5), (4.7, 13, 4)):
        finds(answer, table(rng, c, q, k, masked=True), c)


@task.check(1)
def it_finds_the_scale_of_the_slide(answer):
    got = answer(SLIDE)
    if not 3.6 <= got <= 4.4:  # two decimals leave this table blurred: 10 % here
        raise Failure(f"Your scale for the slide's table is {got:.4g}; it hides 4.", SLIDE)


@task.check(1)
def the_tables_are_left_as_they_were(answer, rng):
    inputs = table(rng, 2.0, masked=True)
    seen = answer.observe(inputs)
    answer(inputs)
    if seen.edited:
        raise Failure(f"Your answer changed its own input: {', '.join(seen.edited)}.", inputs)


# --- faults ---------------------------------------------------------------------------------------


def slope(scores, weights):
    """Least squares of log-weights on scores, centered within each row's visible part."""
    seen = weights > 0
    count = seen.sum(-1, keepdim=True)

    def centered(table):
        table = torch.where(seen, table, 0)
        return torch.where(seen, table - table.sum(-1, keepdim=True) / count, 0)

    distance = centered(scores)
    return ((distance * centered(weights.log())).sum() / distance.square().sum()).item()


@task.fault(
    "C-SQUARED",
    thinks="The hidden number is the width d.",
    why="The width is its square. The scores were divided by c = √d, and c is what is asked for.",
)
def returns_width(scores, weights):
    return slope(scores, weights) ** -2


@task.fault(
    "C-INVERSE",
    thinks="The slope of log-weights over scores is the scale.",
    why="Log-weights are scores divided by c, so the slope is 1/c. For a table made with 4 you "
    "return a quarter.",
)
def returns_slope(scores, weights):
    return slope(scores, weights)


@task.fault(
    "C-ROOT",
    thinks="What I find is d, so its root is the scale.",
    why="What the logarithms give is already c itself; the root is one step too many.",
)
def returns_root(scores, weights):
    return slope(scores, weights) ** -0.5


@task.fault(
    "C-LOG-ZERO",
    thinks="All weights can be treated alike.",
    why="log 0 is −∞, and one of those spoils every sum. A weight of 0 means masked: it says "
    "nothing about the scale and has to be left out.",
)
def logarithm_of_zero(scores, weights):
    distance = scores - scores.mean(-1, keepdim=True)
    height = weights.log() - weights.log().mean(-1, keepdim=True)
    return (distance.square().sum() / (distance * height).sum()).item()


def zero_as(tiny):
    def zero_as_tiny(scores, weights):
        log = weights.clamp(min=tiny).log()
        distance = scores - scores.mean(-1, keepdim=True)
        height = log - log.mean(-1, keepdim=True)
        return (distance.square().sum() / (distance * height).sum()).item()

    return zero_as_tiny


@task.fault(
    "C-ZERO-AS-TINY",
    thinks="Adding a small number to the weights makes the logarithm safe.",
    why="Safe, but a masked key now looks like a real one with an absurdly low score, and it rules "
    "the fit. Leave masked keys out.",
    forms=tuple(zero_as(10.0**-n) for n in (3, 4, 5, 6, 8, 10, 12)),
)
def zero_as_tiny(scores, weights):
    log = (weights + 1e-9).log()
    distance = scores - scores.mean(-1, keepdim=True)
    height = log - log.mean(-1, keepdim=True)
    return (distance.square().sum() / (distance * height).sum()).item()


def mean_of_ratios(scores, weights):
    seen = (weights > 0) & (weights < 1)
    return (scores[seen] / weights[seen].log()).mean().item()


def median_of_ratios(scores, weights):
    seen = (weights > 0) & (weights < 1)
    return (scores[seen] / weights[seen].log()).median().item()


@task.fault(
    "C-NO-NORMALIZER",
    thinks="log w = s / c, so the scale is s / log w.",
    why="The logarithm of a weight also contains the logarithm of its row's sum. Compare two "
    "weights of the same row, and that part cancels.",
    forms=(mean_of_ratios, median_of_ratios),
)
def forgets_normalizer(scores, weights):
    seen = (weights > 0) & (weights < 1)
    scores, log = scores[seen], weights[seen].log()
    return ((scores * scores).sum() / (scores * log).sum()).item()


@task.fault(
    "C-ROWS-MIXED",
    thinks="All entries of the table lie on one line.",
    why="Each row has its own sum to divide by, so each row has its own offset. Center within rows "
    "before you put them together.",
)
def mixes_rows(scores, weights):
    seen = weights > 0
    scores, log = scores[seen], weights[seen].log()
    distance, height = scores - scores.mean(), log - log.mean()
    return (distance.square().sum() / (distance * height).sum()).item()


@task.fault(
    "C-NO-LOGARITHM",
    thinks="Scores divided by weights give the scale.",
    why="Softmax is not a division: it takes exponentials first. Ratios of weights become "
    "differences of scores only after a logarithm.",
)
def no_logarithm(scores, weights):
    seen = weights > 0
    return (scores[seen] / weights[seen]).mean().item()


@task.fault(
    "C-TENSOR",
    thinks="A tensor with one number is a number.",
    why="Nearly: it drags a dtype and a device along. A plain Python float is asked for; `.item()` "
    "makes one.",
)
def scale_as_tensor(scores, weights):
    return torch.tensor(1 / slope(scores, weights))


@task.fault(
    "C-INPLACE",
    thinks="I may turn the tables into what I need.",
    why="The tables belong to the caller, who finds them changed after your call. Work on a new "
    "tensor: `weights.log()` makes one, `weights.log_()` does not.",
)
def edits_the_tables(scores, weights):
    found = 1 / slope(scores, weights)
    weights.log_()
    return found
