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


def dot_inputs(rng, b=2, k=4, d=5, dtype=torch.float32):
    return {
        "query": normal(rng, b, d, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
    }


def dot_shapes(b, k, d, _):
    return (("query", (b, d)), ("keys", (b, k, d)))


task = Task(
    reference.dot_scores,
    number=1,
    returns=("scores",),
    difficulty=1,
    minutes=8,
    section="score-family",
    probes=probes_of(dot_inputs, "d"),
    differentiated=("plain", "all equal"),
    small=small_of(dot_shapes),
    maps=maps_of(dot_inputs),
    traits=digits_of(dot_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_sentence_has_one_row_with_one_score_for_every_key(answer, rng):
    gives_one_score_a_key(answer, dot_inputs(rng))


@task.check(1)
def scores_match_the_formula(answer, rng):
    answer.matches(dot_inputs(rng))
    answer.matches(dot_inputs(rng, b=3, k=7, d=33))
    answer.matches(turned(dot_inputs(rng, b=3, k=4)))
    answer.matches(dot_inputs(rng, b=3, dtype=torch.float64))


@task.check(1)
def equal_sizes_hide_no_mistake(answer, rng):
    holds_for_equal_sizes(answer, rng, dot_inputs, "d")


@task.check(1, "one sentence, one key or one feature is enough")
def one_sentence_or_one_key_or_one_feature_is_enough(answer, rng):
    holds_for_one(answer, rng, dot_inputs, "d")


@task.check(1)
def gradients_pass_and_nothing_else_changes(answer, rng):
    answer.gradients_match(dot_inputs(rng))
    moves_nothing(answer, dot_inputs(rng))
    moves_nothing(answer, dot_inputs(rng, b=4, k=4, d=4))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Dot:
    def line_up(query):
        return query[:, None]

    def for_every_key(query, keys):
        return query

    def compare(query, keys):
        return query * keys

    def add(products):
        return products.sum(-1)

    def scale(scores, query, keys):
        return scores

    def result(scores):
        return scores

    def score(self, query, keys):
        query = self.for_every_key(self.line_up(query), keys)
        return self.add(self.compare(query, keys))

    def __call__(self, query, keys):
        return self.result(self.scale(self.score(query, keys), query, keys))


# --- faults -------------------------------------------------------------------------------------

of_every_score(task)
of_products(task)
task.fault("C-DOT-SCALED", scale=lambda scores, query, keys: scores / math.sqrt(keys.shape[-1]))
task.fault("C-DOT-SUM", compare=torch.add)
