"""The general score: a learned matrix between query and key."""

import math

import torch

from attncourse import additive as reference
from attncourse.checks.answer import moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks.additive import (
    digits_of,
    gives_one_score_a_key,
    holds_for_equal_sizes,
    holds_for_one,
    maps_of,
    probes_of,
    small_of,
    turned,
)
from attncourse.tasks.additive._scores import of_every_score, of_products
from attncourse.tasks.additive.dot_scores import Dot


def general_inputs(rng, b=2, k=4, e=3, d=5, dtype=torch.float32):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "W": normal(rng, e, d, dtype=dtype),
    }


def general_shapes(b, k, e, d):
    return (("query", (b, e)), ("keys", (b, k, d)), ("W", (e, d)))


task = Task(
    reference.general_scores,
    number=2,
    returns=("scores",),
    difficulty=2,
    minutes=10,
    section="score-family",
    hints=(
        "The query has width e, a key has width d, and W is (e d). Which of the two can be "
        "multiplied by W so that both have the same width?",
        "W turns the query into the keys' space: (b e) times (e d) is (b d). After that it "
        "is the task before.",
        'In one line with names: "b e, e d, b k d -> b k". Or in two: the projected query '
        "`query @ W`, then its dot product with every key of the same sentence.",
    ),
    probes=probes_of(general_inputs, "ed"),
    differentiated=("plain", "all equal"),
    small=small_of(general_shapes),
    maps=maps_of(general_inputs),
    traits=digits_of(general_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_key_gets_one_score(answer, rng):
    gives_one_score_a_key(answer, general_inputs(rng))


@task.check(1)
def scores_match_the_formula(answer, rng):
    answer.matches(general_inputs(rng))
    answer.matches(general_inputs(rng, b=3, k=7, e=11, d=6))
    answer.matches(turned(general_inputs(rng, b=3, k=4)))
    answer.matches(general_inputs(rng, b=3, dtype=torch.float64))


@task.check(1)
def equal_sizes_hide_no_mistake(answer, rng):
    holds_for_equal_sizes(answer, rng, general_inputs, "ed")


@task.check(1)
def one_sentence_or_one_key_is_enough(answer, rng):
    holds_for_one(answer, rng, general_inputs, "ed")


@task.check(1)
def gradients_reach_query_keys_and_W(answer, rng):
    answer.gradients_match(general_inputs(rng))
    answer.gradients_match(general_inputs(rng, b=4, k=4, e=4, d=4))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, general_inputs(rng))
    moves_nothing(answer, general_inputs(rng, b=4, k=4, e=4, d=4))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class General(Dot):
    def project(query, W):
        return query @ W

    def __call__(self, query, keys, W):
        return super().__call__(self.project(query, W), keys)


# --- faults -------------------------------------------------------------------------------------


def overwritten(query, W):
    if W.shape[0] != W.shape[1]:
        return query @ W
    query[:] = query @ W
    return query


of_every_score(task)
of_products(task)
task.fault(
    "C-W-TRANSPOSED",
    "W is used as W transposed; for a learned matrix it is all the same.",
    "W is (e d): rows meet the query, columns the key. With e ≠ d the other way round is an error; "
    "with e = d it runs, and gives other scores.",
    project=lambda query, W: query @ W.T,
)
task.fault(
    "C-NO-W",
    "General is dot with another name.",
    "Your scores never read W. It is what lets a query be compared with keys of another width, and "
    "what can be learned.",
    project=lambda query, W: query,
)
task.fault(
    "C-GENERAL-TANH",
    "After every matrix comes a tanh.",
    "In additive and concat scores yes. The general score is q W k, linear in each of the three; "
    "the query gets through without a tanh, since it multiplies the key.",
    project=lambda query, W: (query @ W).tanh(),
)
task.fault(
    "C-TANH-LAST",
    "The tanh is applied to the finished score.",
    "Then no score can leave −1 … 1, and no key can ever get much more weight than another. The "
    "general score has no bend.",
    result=torch.tanh,
)
task.fault(
    "C-GENERAL-SCALED",
    "The score is divided by the root of the key's width.",
    "That belongs to the next chapter. W is learned and can take any size, so nothing is divided "
    "here.",
    add=lambda products: products.sum(-1) / math.sqrt(products.shape[-1]),
)
task.fault(
    "C-FROZEN-W",
    "W is a number table, not a variable, so it may be detached.",
    "The scores are right, and the query and the keys get gradients. W gets none, so the one thing "
    "that this score can learn stays as it was.",
    project=lambda query, W: query @ W.detach(),
)
task.fault(
    "C-INPLACE-SQUARE",
    "The projected query can be stored where the query was.",
    "If e = d the shapes fit, and the caller's query is overwritten: the next step asks with "
    "another vector. Give the result a name of its own.",
    project=overwritten,
)
task.fault(
    "C-W-SHARES",
    "A softmax over W makes its numbers shares.",
    "W is a learned matrix, and its numbers may be negative. The softmax shares out attention "
    "among keys, one step later.",
    project=lambda query, W: query @ W.softmax(-1),
)
