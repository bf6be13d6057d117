import torch

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is


def scored(rng, *batch, n=8, period=3, dtype=torch.float32):
    """Weights under a causal mask, with no two alike."""
    scores = normal(rng, *batch, n, n, dtype=dtype)
    hidden = ~torch.ones(n, n, dtype=torch.bool).tril()
    return {"weights": scores.masked_fill(hidden, -torch.inf).softmax(-1), "period": period}


def on_one_diagonal(n, period, offset):
    """All weight of every row on the place so far back, or on the first word."""
    place = (torch.arange(n) - offset).clamp(min=0)
    return {"weights": torch.eye(n, device="cpu")[place], "period": period}


def probes(rng):
    return {
        "plain": scored(rng, 2),
        "two leading axes": scored(rng, 2, 3, n=7, period=3),
        "one table": scored(rng, n=9, period=4),
        "read twice": scored(rng, 2, n=8, period=4),
        "read three times": scored(rng, 2, n=9, period=3),
        "not full": scored(rng, 2, n=10, period=4),
        "one word again": scored(rng, 3, n=5, period=4),
        "two words": scored(rng, 2, n=7, period=2),
        "the same word": scored(rng, 2, n=5, period=1),
        "no mask": {"weights": normal(rng, 2, 7, 7).softmax(-1), "period": 3},
        "equal sizes": scored(rng, 4, 4, n=4, period=2),
        "double": scored(rng, 2, dtype=torch.float64),
    }


def small(rng):
    for n, period in ((2, 1), (3, 2), (4, 2), (4, 3), (5, 2), (6, 3), (6, 2)):
        yield scored(rng, n=n, period=period)
    yield scored(rng, 2, n=4, period=2)


task = Task(
    reference.induction_score,
    number=2,
    returns=("scores",),
    difficulty=2,
    minutes=15,
    section="induction",
    probes=probes,
    differentiated=("plain", "no mask"),
    small=small,
)


@task.check(1)
def one_score_for_every_table(answer, rng):
    for batch in ((2,), (2, 3), ()):
        inputs = scored(rng, *batch)
        got = answer(inputs)
        if got.shape != batch:
            raise Failure(
                f"Weights of shape {tuple(inputs['weights'].shape)} have {batch or 'no'} leading "
                f"axes; scores should have the same, yours {tuple(got.shape)}.",
                inputs,
            )


@task.check(2)
def a_perfect_induction_head_scores_one_and_its_neighbors_zero(answer, rng):
    for n, period in ((8, 4), (9, 3)):
        for offset, expected in ((period - 1, 1.0), (period, 0.0), (period - 2, 0.0), (0, 0.0)):
            inputs = on_one_diagonal(n, period, offset)
            got = answer(inputs).item()
            if abs(got - expected) > 1e-4:
                came = answer.apart(got, expected)[0]
                raise Failure(
                    f"A text of {n} words repeats every {period}. A head that always looks "
                    f"{offset} places back, or at the first word, scores {expected:g}; yours "
                    f"says {came}.",
                    inputs,
                )


@task.check(2)
def it_is_right_for_two_blocks_and_for_parts_of_them(answer, rng):
    answer.matches(scored(rng, 2, n=8, period=4))
    answer.matches(scored(rng, 3, n=5, period=4))
    answer.matches(scored(rng, 2, n=10, period=4))


@task.check(2)
def it_is_right_for_any_period(answer, rng):
    for n, period in ((9, 3), (7, 2), (6, 1), (11, 5)):
        answer.matches(scored(rng, 2, n=n, period=period))
    answer.matches(scored(rng, 4, 4, n=4, period=2))


@task.check(1, "precision and gradients are right, and nothing else changes")
def precision_and_gradients_are_right_and_nothing_else_changes(answer, rng):
    answer.matches(scored(rng, 2, dtype=torch.float64))
    answer.gradients_match(scored(rng, 2))
    moves_nothing(answer, scored(rng, 2))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Score:
    def read(weights):
        return weights

    def distance(period, n):
        return period - 1

    def first(period, n):
        return period

    def last(period, n):
        return n

    def picked(weights, rows, distance):
        return weights[..., rows, (rows - distance).clamp(0, weights.shape[-1] - 1)]

    def share(picked, n, weights):
        return picked.mean(-1)

    def result(score):
        return score

    def __call__(self, weights, period):
        weights = self.read(weights)
        n = weights.shape[-1]
        rows = torch.arange(self.first(period, n), max(self.last(period, n), 1))
        picked = self.picked(weights, rows, self.distance(period, n))
        return self.result(self.share(picked, n, weights))


def up_to_minus(weights, rows, distance):
    """The diagonal of a square whose columns end `distance` before the last; at 0, nowhere."""
    return weights[..., rows[0] :, 1:-distance].diagonal(dim1=-2, dim2=-1)


task.fault("I-SAME-WORD", distance=lambda period, n: period)
task.fault(
    "I-WORD-BEFORE-IT",
    distance=lambda period, n: period + 1,
    first=(..., ..., ..., lambda period, n: period + 1),
    # The first row looks at place −1: that is the first place, none, or the last.
    picked=(
        ...,
        lambda w, rows, distance: (
            w[..., rows, (rows - distance).clamp(0, w.shape[-1] - 1)] * (rows >= distance)
        ),
        lambda w, rows, distance: w[..., rows, rows - distance],
        ...,
    ),
)
task.fault("I-TWO-AFTER-IT", distance=lambda period, n: period - 2)
task.fault("I-WHOLE-DIAGONAL", first=lambda period, n: period - 1)
task.fault(
    "I-ONE-TOO-LATE",
    first=(lambda period, n: min(period + 1, n - 1), lambda period, n: period + 1),
)
task.fault(
    "I-WHOLE-BLOCKS",
    last=lambda period, n: n // period * period if n >= 2 * period else n,
)
task.fault(
    "I-LAST-REPETITION",
    first=(lambda period, n: max(period, n - period), lambda period, n: n - period),
    picked=(..., lambda w, rows, distance: w[..., rows, rows - distance]),
)
task.fault(
    "I-ALL-ROWS",
    first=lambda period, n: 0,
    picked=(..., lambda w, rows, distance: w[..., rows, (rows - distance) % w.shape[-1]]),
)
task.fault("I-DIVIDED-BY-N", share=lambda picked, n, weights: picked.sum(-1) / n)
task.fault(
    "I-DIVIDED-BY-PERIOD", share=lambda picked, n, w: picked.sum(-1) / (n - picked.shape[-1])
)
task.fault("I-ONE-ROW-MORE", share=lambda picked, n, w: picked.sum(-1) / (picked.shape[-1] + 1))
task.fault("I-SLICE-TO-ZERO", picked=up_to_minus)
task.fault(
    "I-SHARE-OF-ALL",
    share=lambda picked, n, weights: picked.sum(-1) / weights.sum((-2, -1)),
)
task.fault("I-SUMMED", share=lambda picked, n, weights: picked.sum(-1))
task.fault("I-BEST-ROW", share=lambda picked, n, weights: picked.amax(-1))
task.fault("I-LAST-ROW", share=lambda picked, n, weights: picked[..., -1])
task.fault(
    "I-STACKED-IN-FRONT",
    share=(
        lambda picked, n, weights: picked.movedim(-1, 0).mean(-1),
        lambda picked, n, weights: picked.movedim(-1, 0).sum(-1) / picked.shape[-1],
    ),
)
task.fault(
    "I-HEADS-AVERAGED",
    share=(
        lambda picked, n, weights: picked.mean(),
        lambda picked, n, weights: picked.mean(-1).mean(-1),
    ),
)
task.fault("I-PREVIOUS-TOKEN", distance=lambda period, n: 1)
task.fault("I-HALF-THE-TEXT", distance=lambda period, n: n // 2 - 1, first=lambda period, n: n // 2)
task.fault("I-FIRST-REPETITION", last=lambda period, n: min(2 * period, n))
task.fault("I-TURNED", read=lambda weights: weights.mT)


def hard(weights, rows, distance):
    best = weights[..., rows, :].argmax(-1)
    return (best == rows - distance).to(weights.dtype)


task.fault("I-HARD", picked=hard)


def all_before(least):
    """The word at 0 follows no occurrence, as nothing stands before it; or it counts as well."""

    class AllBefore(Score):
        def __call__(self, weights, period):
            self.period = period
            return super().__call__(weights, period)

        def picked(self, weights, rows, distance):
            columns, latest = torch.arange(weights.shape[-1]), (rows - distance)[:, None]
            there = (least <= columns) & (columns <= latest)
            there &= (latest - columns) % self.period == 0
            return (weights[..., rows, :] * there).sum(-1)

    return AllBefore


task.fault("I-ALL-OCCURRENCES", forms=[all_before(1), all_before(0)])
task.fault("I-BEST-HEAD", result=lambda score: score.max())
task.fault(
    "I-PLAIN-NUMBER",
    result=(
        lambda score: score.flatten()[:1].squeeze(),
        lambda score: score.mean().item(),
    ),
)
task.fault("C-FLOAT32", result=lambda score: score.float())
task.fault("C-DETACHED", read=torch.detach)
task.spelling(result=as_is)
