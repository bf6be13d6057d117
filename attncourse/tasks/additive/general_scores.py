import math

import torch
import torch.nn.functional as F

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
from attncourse.tasks.additive._scores import in_a_layer, of_every_score, of_products
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
    probes=probes_of(general_inputs, "ed"),
    differentiated=("plain", "all equal"),
    small=small_of(general_shapes),
    maps=maps_of(general_inputs),
    traits=digits_of(general_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_sentence_has_one_row_with_one_score_for_every_key(answer, rng):
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


@task.check(1, "one sentence, one key or one feature is enough")
def one_sentence_or_one_key_or_one_feature_is_enough(answer, rng):
    holds_for_one(answer, rng, general_inputs, "ed")


@task.check(1, "gradients reach query, keys and W")
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
    def matrix(W):
        return W

    def project(query, W):
        return query @ W

    def bend(projected):
        return projected

    def of_keys(keys, W):
        return keys

    def __call__(self, query, keys, W):
        W = self.matrix(W)
        asked = self.bend(self.project(query, W))
        return self.result(self.scale(self.score(asked, self.of_keys(keys, W)), query, keys))


# --- faults -------------------------------------------------------------------------------------


def overwritten(query, W):
    if W.shape[0] != W.shape[1]:
        return query @ W
    query[:] = query @ W
    return query


def only_if_needed(query, W):
    return query if W.shape[0] == W.shape[1] else query @ W


def cut_to_fit(query, W):
    """The query, cut or filled up with zeros to the width of a key."""
    return F.pad(query, (0, W.shape[1] - W.shape[0]))


of_every_score(task)
of_products(task)
task.fault("C-W-TRANSPOSED", matrix=lambda W: W.T)
task.fault(
    "C-W-RESHAPED",
    matrix=(lambda W: W.reshape(W.shape[::-1]).mT, lambda W: W.T.reshape(W.shape)),
)
task.fault("C-NO-W", project=(lambda query, W: query, cut_to_fit))
task.fault("C-W-TWICE", of_keys=lambda keys, W: keys @ W)
task.fault("C-NO-W-IF-EQUAL", project=only_if_needed)
task.fault(
    "C-GENERAL-TANH",
    bend=(torch.tanh, ...),
    project=(..., lambda query, W: query),
    of_keys=(..., lambda keys, W: (keys @ W.mT).tanh()),
)
task.fault("C-GENERAL-RELU", bend=torch.relu)
task.fault(
    "C-TANH-LAST", result=(torch.tanh, ...), add=(..., lambda products: products.sum(-1).tanh())
)
task.fault(
    "C-GENERAL-SCALED",
    scale=(
        lambda scores, query, keys: scores / math.sqrt(keys.shape[-1]),
        lambda scores, query, keys: scores / math.sqrt(query.shape[-1]),
    ),
)
task.fault("C-W-OWN-LETTER", project=lambda query, W: query.sum(-1, keepdim=True) * W.sum(0))
task.fault("C-FROZEN-W", matrix=torch.detach)
task.fault("C-W-IN-A-LAYER", project=in_a_layer)
task.fault("C-INPLACE-SQUARE", project=overwritten)
task.fault("C-W-SHARES", matrix=lambda W: W.softmax(-1))
