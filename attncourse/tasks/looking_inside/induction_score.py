"""Weight on the word after the last occurrence: what is promised, what goes wrong."""

import functools

import torch

from attncourse import looking_inside as reference
from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.tasks import as_is, thoughts


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
    hints=(
        "Write down a text of period 3, A B C A B C, with places 0 to 5. The second B stands at "
        "4. Where did B stand before, and where is the word that followed it?",
        "The word at i stood at i − period, and its successor at i − period + 1: one diagonal of "
        "the table, below the main one. Which is the first row whose word has occurred before?",
        "weights.diagonal(offset=1 − period, dim1=−2, dim2=−1) begins at row period − 1; drop its "
        "first entry and take the mean over the last axis.",
    ),
    probes=probes,
    differentiated=("plain",),
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
                raise Failure(
                    f"A text of {n} words repeats every {period}. A head that always looks "
                    f"{offset} places back scores {expected:g}; yours says {got:.3g}.",
                    inputs,
                )


@task.check(2)
def only_words_that_have_occurred_count(answer, rng):
    answer.matches(scored(rng, 2, n=8, period=4))
    answer.matches(scored(rng, 3, n=5, period=4))
    answer.matches(scored(rng, 2, n=10, period=4))


@task.check(2)
def it_is_right_for_any_period(answer, rng):
    for n, period in ((9, 3), (7, 2), (6, 1), (11, 5)):
        answer.matches(scored(rng, 2, n=n, period=period))
    answer.matches(scored(rng, 4, 4, n=4, period=2))


@task.check(1)
def precision_gradients_and_everything_else_stay(answer, rng):
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


task.fault(
    "I-SAME-WORD",
    "An induction head looks at the last occurrence of this word.",
    "At the word *after* it: what followed last time is what comes now. Yours scores a head that "
    "finds the word itself, one place too early.",
    distance=lambda period, n: period,
)
task.fault(
    "I-WORD-BEFORE-IT",
    "Going back one period and one word gives the word that is looked for.",
    "Forward by one: i − period + 1. Yours looks at what stood *before* the last occurrence.",
    distance=lambda period, n: period + 1,
)
task.fault(
    "I-TWO-AFTER-IT",
    "The word to be predicted stands at i + 1, so its successor counts.",
    "The word at i predicts the one at i + 1, and that one's last occurrence is at i − period + 1. "
    "You went one place farther.",
    distance=lambda period, n: period - 2,
)
task.fault(
    "I-WHOLE-DIAGONAL",
    "The whole diagonal counts.",
    "Its first entry is the row period − 1: the last word of the first block, which has not "
    "occurred before. A head cannot know it, and your mean asks it to.",
    first=lambda period, n: period - 1,
)
task.fault(
    "I-ONE-TOO-LATE",
    "The repetition begins after the first repeated word.",
    "The word at place `period` has occurred already, at place 0. Your mean leaves it out.",
    first=lambda period, n: min(period + 1, n - 1),
)
task.fault(
    "I-ALL-ROWS",
    "The mean is over all words of the text.",
    "Words of the first block have no last occurrence. In these rows you take some other weight "
    "(an index below 0 counts from the end, or is cut to 0).",
    first=lambda period, n: 0,
    picked=(..., lambda w, rows, distance: w[..., rows, (rows - distance) % w.shape[-1]]),
)
task.fault(
    "I-DIVIDED-BY-N",
    "A mean is a sum divided by n.",
    "Only n − period rows are summed: a perfect head would score 1 − period/n.",
    share=lambda picked, n, weights: picked.sum(-1) / n,
)
task.fault(
    "I-SUMMED",
    "The score is the sum of these weights.",
    "Then a longer text has better heads. The mean lies between 0 and 1.",
    share=lambda picked, n, weights: picked.sum(-1),
)
task.fault(
    "I-BEST-ROW",
    "The score is the largest of these weights.",
    "One lucky row is enough for that. A head that *always* looks there is meant: take the mean.",
    share=lambda picked, n, weights: picked.amax(-1),
)
task.fault(
    "I-LAST-ROW",
    "The last word decides.",
    "Every repeated word is a case. One row is one case, and the mean over them is the score.",
    share=lambda picked, n, weights: picked[..., -1],
)
task.fault(
    "I-HEADS-AVERAGED",
    "One score for the layer.",
    "The heads differ: that is what the score is for. Keep all leading axes.",
    share=lambda picked, n, weights: picked.mean(),
)
task.fault(
    "I-PREVIOUS-TOKEN",
    "The head looks one place back.",
    "That is the other head of the circuit, which prepares the keys. This one looks period − 1 "
    "places back.",
    distance=lambda period, n: 1,
)
task.fault(
    "I-HALF-THE-TEXT",
    "The text is read twice, so the period is half of it.",
    "The period is given: a text may hold three repetitions, or two and a half.",
    distance=lambda period, n: n // 2 - 1,
    first=lambda period, n: n // 2,
)
task.fault(
    "I-FIRST-REPETITION",
    "The second block is the repetition.",
    "So is the third, and a part of one. All rows from `period` on count.",
    last=lambda period, n: min(2 * period, n),
)
task.fault(
    "I-TURNED",
    "Columns are queries.",
    "Rows are: the word at i asks, and looks back. Yours reads weights from the other triangle, "
    "where a causal mask left zeros.",
    read=lambda weights: weights.mT,
)


def hard(weights, rows, distance):
    best = weights[..., rows, :].argmax(-1)
    return (best == rows - distance).to(weights.dtype)


task.fault(
    "I-HARD",
    "A head looks at the place with the largest weight.",
    "That counts rows in which it wins. The score is softer: how much of the weight lies there.",
    picked=hard,
)


def all_before(weights, rows, distance, least=1):
    """Nothing stands before the word at 0, so it follows no occurrence."""
    columns, latest = torch.arange(weights.shape[-1]), (rows - distance)[:, None]
    there = (least <= columns) & (columns <= latest) & ((latest - columns) % (distance + 1) == 0)
    return (weights[..., rows, :] * there).sum(-1)


task.fault(
    "I-ALL-OCCURRENCES",
    "Every earlier occurrence counts.",
    "The one a period ago does; with three blocks you also add the weight on the first. That is a "
    "sensible score of another name.",
    picked=(all_before, functools.partial(all_before, least=0)),
)
task.fault(
    "I-PLAIN-NUMBER",
    "A score is a number.",
    "It is one for each table, as a tensor with the leading axes: here all but the first are lost.",
    result=lambda score: score.flatten()[:1].squeeze(),
)
task.fault(thoughts.FLOAT32, result=lambda score: score.float())
task.fault(thoughts.DETACHED, read=torch.detach)
task.spelling(result=as_is)
