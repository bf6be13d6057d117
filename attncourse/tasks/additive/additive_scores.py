import torch

from attncourse import additive as reference
from attncourse.checks.answer import moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks import as_is
from attncourse.tasks.additive import (
    digits_of,
    gives_one_score_a_key,
    holds_for_equal_sizes,
    holds_for_one,
    maps_of,
    probes_of,
    reads_the_query,
    small_of,
    survives_large_numbers,
    turned,
)
from attncourse.tasks.additive._scores import in_a_layer, of_every_score, of_hidden_layers


def additive_inputs(rng, b=2, k=4, e=3, d=5, a=6, dtype=torch.float32):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "W_query": normal(rng, e, a, dtype=dtype) / 2,
        "W_key": normal(rng, d, a, dtype=dtype) / 2,
        "v": normal(rng, a, dtype=dtype),
    }


def additive_shapes(b, k, e, d):
    weights = (("W_query", (e, 2)), ("W_key", (d, 2)), ("v", (2,)))
    return (("query", (b, e)), ("keys", (b, k, d)), *weights)


task = Task(
    reference.additive_scores,
    number=4,
    returns=("scores",),
    difficulty=3,
    minutes=15,
    section="soft-search",
    probes=probes_of(additive_inputs, "eda"),
    differentiated=("plain", "all equal"),
    small=small_of(additive_shapes),
    maps=maps_of(additive_inputs),
    traits=digits_of(additive_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_sentence_has_one_row_with_one_score_for_every_key(answer, rng):
    gives_one_score_a_key(answer, additive_inputs(rng))


@task.check(1, "another query shares the weights out otherwise")
def the_query_decides_which_key_wins(answer, rng):
    reads_the_query(answer, rng, additive_inputs)


@task.check(2)
def scores_match_the_formula(answer, rng):
    answer.matches(additive_inputs(rng))
    answer.matches(additive_inputs(rng, b=3, k=7, e=5, d=4, a=9))
    answer.matches(turned(additive_inputs(rng, b=3, k=4)))
    answer.matches(additive_inputs(rng, b=3, dtype=torch.float64))


@task.check(1)
def equal_sizes_hide_no_mistake(answer, rng):
    holds_for_equal_sizes(answer, rng, additive_inputs, "eda")


@task.check(1, "one sentence, one key or one feature is enough")
def one_sentence_or_one_key_or_one_feature_is_enough(answer, rng):
    holds_for_one(answer, rng, additive_inputs, "eda")


@task.check(1)
def large_numbers_stay_finite(answer, rng):
    survives_large_numbers(answer, rng, additive_inputs)


@task.check(1)
def gradients_reach_all_five_inputs(answer, rng):
    answer.gradients_match(additive_inputs(rng))
    answer.gradients_match(additive_inputs(rng, b=4, k=4, e=4, d=4, a=4))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, additive_inputs(rng))
    moves_nothing(answer, additive_inputs(rng, b=4, k=4, e=4, d=4, a=4))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Additive:
    def of_query(query, W_query, W_key):
        return query @ W_query

    def of_keys(keys, W_query, W_key):
        return keys @ W_key

    def line_up(query):
        return query[:, None]

    def for_every_key(query, keys):
        return query

    def meet(query, keys):
        return query + keys

    def bend(hidden):
        return hidden.tanh()

    def weigh(hidden, v):
        return hidden @ v

    def result(scores):
        return scores

    def __call__(self, query, keys, W_query, W_key, v):
        query, keys = self.of_query(query, W_query, W_key), self.of_keys(keys, W_query, W_key)
        query = self.for_every_key(self.line_up(query), keys)
        return self.result(self.weigh(self.bend(self.meet(query, keys)), v))


# --- faults -------------------------------------------------------------------------------------


def by_key_weight(x, W_query, W_key):
    return x @ W_key


def by_query_weight(x, W_query, W_key):
    return x @ W_query


LINEAR, FAMILY = {"section": "linear-score"}, {"section": "score-family"}

of_every_score(task)
of_hidden_layers(task)
task.fault("A-TIED-PROJ", of_query=(by_key_weight, ...), of_keys=(..., by_query_weight))
task.fault("C-SWAPPED-PROJ", of_query=by_key_weight, of_keys=by_query_weight)
task.fault(
    "C-W-TRANSPOSED",
    of_query=lambda query, W_query, W_key: query @ W_query.T,
    of_keys=lambda keys, W_query, W_key: keys @ W_key.T,
)
task.fault(
    "C-W-IN-A-LAYER",
    of_query=lambda query, W_query, W_key: in_a_layer(query, W_query),
    of_keys=lambda keys, W_query, W_key: in_a_layer(keys, W_key),
)
task.fault(
    "C-TANH-BEFORE",
    **LINEAR,
    of_query=lambda query, W_query, W_key: query.tanh() @ W_query,
    of_keys=lambda keys, W_query, W_key: keys.tanh() @ W_key,
    bend=as_is,
)
task.fault(
    "C-TANH-EACH",
    **LINEAR,
    meet=(
        lambda query, keys: query.tanh() + keys.tanh(),
        lambda query, keys: query + keys.tanh(),
        lambda query, keys: query.tanh() + keys,
    ),
    bend=as_is,
)
task.fault("C-PRODUCT", meet=torch.mul)
task.fault("C-DIFFERENCE", meet=(torch.sub, lambda query, keys: keys - query))
task.fault("C-NO-QUERY", meet=lambda query, keys: keys)
task.fault(
    "C-DETACHED-KEYS", **FAMILY, of_keys=lambda keys, W_query, W_key: (keys @ W_key).detach()
)
