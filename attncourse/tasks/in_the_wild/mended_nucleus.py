import math

import torch

from attncourse import in_the_wild as reference
from attncourse.checks.answer import Failure, moves_nothing
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.top_p import Nucleus, of_top_p

# Shares of words. No two of a row are equal, and no sum of the likeliest is a top_p of below:
# rounding would decide.
LADDER = [0.15, 0.40, 0.03, 0.24, 0.07, 0.11]
STEEP = [0.05, 0.09, 0.62, 0.01, 0.20, 0.03]
FLAT = [0.16, 0.105, 0.225, 0.13, 0.195, 0.185]
TINY = 1e-9  # of float32, 1 − TINY is 1


def cut(*rows, top_p, shift=0.0):
    return {"logits": torch.tensor(rows).log() + shift, "top_p": top_p}


def probes(rng):
    return {
        "next to nothing": cut(LADDER, FLAT, STEEP, top_p=TINY),
        "a little": cut(STEEP, FLAT, top_p=0.1),
        "less than half": cut(STEEP, FLAT, top_p=0.3),
        "more than half": cut(LADDER, STEEP, top_p=0.6),
        "three rows": cut(FLAT, LADDER, STEEP, top_p=0.75),
        "nearly all": cut(LADDER, FLAT, top_p=0.88),
        "but the last": cut(LADDER, STEEP, FLAT, top_p=0.98),
        "high scores": cut(LADDER, top_p=0.5, shift=30.0),
        "low scores": cut(FLAT, LADDER, top_p=0.5, shift=-40.0),
    }


def small(rng):
    for top_p in (0.3, 0.6, 0.95):
        yield cut([0.3, 0.7], top_p=top_p)
    for top_p in (0.3, 0.6, 0.9):
        yield cut([0.2, 0.5, 0.3], top_p=top_p)
    yield cut([0.2, 0.5, 0.3], [0.1, 0.1, 0.8], top_p=0.6)
    yield cut(LADDER, top_p=0.6)
    yield cut([0.2, 0.5, 0.3], [0.1, 0.8, 0.1], top_p=TINY)
    yield cut(LADDER, FLAT, top_p=TINY)


def traits(answer):
    """Beside a fill as large as −1e9, logits are too small to be told apart."""
    inputs = cut(FLAT, LADDER, top_p=0.6, shift=1.0)
    got, logits = answer(inputs), inputs["logits"]
    stays = got > -1e8
    as_before = got.shape == logits.shape and torch.allclose(got[stays], logits[stays], atol=1e-3)
    return {"a word has another logit": not as_before}


task = Task(
    reference.mended_nucleus,
    number=6,
    returns=("logits",),
    difficulty=2,
    minutes=10,
    section="wild-top-p",
    probes=probes,
    small=small,
    traits=traits,
)


def right_words(answer, inputs):
    """Assert that the right words stay, with whatever logits."""
    got, expected = answer(inputs), answer.expected(inputs)
    if got.shape != expected.shape:
        raise Failure("The result has another shape than the logits.", inputs, expected, got)
    for row, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
        due, stays = (x.gt(-torch.inf).nonzero().flatten().tolist() for x in (ours, theirs))
        if due != stays:
            shares = ", ".join(f"{share:.3f}" for share in inputs["logits"][row].softmax(-1))
            raise Failure(
                f"Of words with the shares {shares}, top_p = {inputs['top_p']} keeps the words "
                f"{due}; yours keeps {stays}.",
                inputs,
                expected,
                got,
                whole="result",
            )


def stay(answer, inputs):
    """Assert that the right words stay, and that they stay as they were."""
    right_words(answer, inputs)
    got, expected = answer(inputs), answer.expected(inputs)
    if not torch.equal(expected, got):
        raise Failure("A word that stays has another logit than before.", inputs, expected, got)


@task.check(2, "it keeps the right words and gives −∞ to all others")
def it_keeps_the_right_words(answer):
    for top_p in (0.3, 0.6, 0.75, 0.88, 0.98):
        for shift in (0.0, 1.0):  # logits need not be logarithms of shares
            right_words(answer, cut(LADDER, top_p=top_p, shift=shift))


@task.check(1)
def it_is_right_where_a_likely_word_alone_is_enough(answer):
    for top_p in (0.05, 0.3, 0.6):
        stay(answer, cut(STEEP, top_p=top_p))
    for row in (LADDER, FLAT, STEEP):  # several of them are another check's business
        stay(answer, cut(row, top_p=TINY))


@task.check(1)
def it_is_right_for_several_rows(answer):
    for top_p in (0.3, 0.6, 0.75, 0.88):
        stay(answer, cut(FLAT, LADDER, STEEP, top_p=top_p))


@task.check(1)
def it_is_right_for_high_and_low_scores(answer):
    for shift in (30.0, -40.0):
        for row in (FLAT, STEEP):
            stay(answer, cut(row, top_p=0.6, shift=shift))


@task.check(1)
def it_changes_nothing_but_its_result(answer):
    moves_nothing(answer, cut(LADDER, STEEP, top_p=0.6))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class CutOff(Nucleus):
    def shares(logits):
        return logits.softmax(-1)

    def result(logits, keep, p):
        return logits.masked_fill(~keep, -torch.inf)

    def __call__(self, logits, top_p):
        p = self.shares(logits)
        likely, order = self.sort(p)
        return self.result(logits, self.back(self.stays(likely, top_p), order), p)


# --- faults -------------------------------------------------------------------------------------

of_top_p(task)
task.fault("P-TOP-P-OF-LOGITS", shares=as_is)
task.fault("P-TOP-P-EXP", shares=lambda logits: logits.exp())
task.fault(
    "P-TOP-P-ONE-MORE",
    stays=lambda likely, top_p: (
        torch.arange(likely.shape[-1]) <= (likely.cumsum(-1) - likely < top_p).sum(-1, keepdim=True)
    ),
)


def down_to_the_limit(likely, top_p):
    limit = likely[likely.cumsum(-1) - likely < top_p].min()
    return likely >= limit


def as_many_as_the_longest(likely, top_p):
    many = (likely.cumsum(-1) - likely < top_p).sum(-1).max()
    return (torch.arange(likely.shape[-1]) < many).expand(likely.shape)


task.fault("P-TOP-P-ONE-LIMIT", stays=down_to_the_limit)
task.fault("P-TOP-P-ONE-COUNT", stays=as_many_as_the_longest)


def moved_alone(likely, top_p):
    keep = likely.cumsum(-1) <= top_p
    return torch.cat([keep[..., :1], keep[..., :-1]], -1)


task.fault("P-TOP-P-FIRST-BY-ITSELF", stays=moved_alone)


task.fault(
    "P-TOP-P-ROLLED",
    stays=(
        lambda likely, top_p: (likely.cumsum(-1) < top_p).roll(1, -1),
        lambda likely, top_p: (likely.cumsum(-1) <= top_p).roll(1, -1),
    ),
)


def share_of_words(whole):
    """How many words `top_p` is of all, made whole by this."""

    def stays(likely, top_p):
        words = likely.shape[-1]
        return (torch.arange(words) < max(1, whole(top_p * words))).expand(likely.shape)

    return stays


task.fault(
    "P-TOP-P-SHARE-OF-WORDS",
    stays=(share_of_words(math.ceil), share_of_words(round), share_of_words(int)),
)
task.fault("P-TOP-P-OVER-TEXTS", shares=lambda logits: logits.softmax(0))
task.fault(
    "P-TOP-P-IN-ORDER",
    result=lambda logits, keep, p: (
        logits.masked_fill(~keep, -torch.inf).sort(-1, descending=True).values
    ),
)
task.fault(
    "P-TOP-P-SHARES",
    result=(
        lambda logits, keep, p: p * keep,
        lambda logits, keep, p: p * keep / (p * keep).sum(-1, keepdim=True),
    ),
)
task.fault(
    "P-TOP-P-LOG-SHARES",
    result=(
        lambda logits, keep, p: p.log().masked_fill(~keep, -torch.inf),
        lambda logits, keep, p: logits.masked_fill(~keep, -torch.inf).log_softmax(-1),
    ),
)
task.fault("P-FILL-ZERO", result=lambda logits, keep, p: logits.masked_fill(~keep, 0.0))
task.fault("P-TOP-P-LARGE-FILL", result=lambda logits, keep, p: logits.masked_fill(~keep, -1e9))


@task.fault("P-EDITS-LOGITS")
class Edits(CutOff):
    def result(logits, keep, p):
        return logits.masked_fill_(~keep, -torch.inf)
