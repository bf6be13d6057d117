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


def concat_inputs(rng, b=2, k=4, e=3, d=5, a=6, dtype=torch.float32):
    return {
        "query": normal(rng, b, e, dtype=dtype),
        "keys": normal(rng, b, k, d, dtype=dtype),
        "W": normal(rng, e + d, a, dtype=dtype) / 2,
        "v": normal(rng, a, dtype=dtype),
    }


def concat_shapes(b, k, e, d):
    return (("query", (b, e)), ("keys", (b, k, d)), ("W", (e + d, 2)), ("v", (2,)))


task = Task(
    reference.concat_scores,
    number=3,
    returns=("scores",),
    difficulty=2,
    minutes=15,
    section="score-family",
    probes=probes_of(concat_inputs, "eda"),
    differentiated=("plain", "all equal"),
    small=small_of(concat_shapes),
    maps=maps_of(concat_inputs),
    traits=digits_of(concat_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_sentence_has_one_row_with_one_score_for_every_key(answer, rng):
    gives_one_score_a_key(answer, concat_inputs(rng))


@task.check(1, "another query shares the weights out otherwise")
def the_query_decides_which_key_wins(answer, rng):
    reads_the_query(answer, rng, concat_inputs)


@task.check(2)
def scores_match_the_formula(answer, rng):
    answer.matches(concat_inputs(rng))
    answer.matches(concat_inputs(rng, b=3, k=7, e=5, d=4, a=9))
    answer.matches(turned(concat_inputs(rng, b=3, k=4)))
    answer.matches(concat_inputs(rng, b=3, dtype=torch.float64))


@task.check(1)
def equal_sizes_hide_no_mistake(answer, rng):
    holds_for_equal_sizes(answer, rng, concat_inputs, "eda")


@task.check(1, "one sentence, one key or one feature is enough")
def one_sentence_or_one_key_or_one_feature_is_enough(answer, rng):
    holds_for_one(answer, rng, concat_inputs, "eda")


@task.check(1)
def large_numbers_stay_finite(answer, rng):
    survives_large_numbers(answer, rng, concat_inputs)


@task.check(1)
def gradients_reach_all_four_inputs(answer, rng):
    answer.gradients_match(concat_inputs(rng))
    answer.gradients_match(concat_inputs(rng, b=4, k=4, e=4, d=4, a=4))


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, concat_inputs(rng))
    moves_nothing(answer, concat_inputs(rng, b=4, k=4, e=4, d=4, a=4))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Concat:
    def line_up(query):
        return query[:, None]

    def for_every_key(query, keys):
        return query.expand(*keys.shape[:2], -1)

    def join(queries, keys):
        return torch.cat([queries, keys], -1)

    def multiply(pairs, W):
        return pairs @ W

    def bend(hidden):
        return hidden.tanh()

    def weigh(hidden, v):
        return hidden @ v

    def result(scores):
        return scores

    def __call__(self, query, keys, W, v):
        pairs = self.join(self.for_every_key(self.line_up(query), keys), keys)
        return self.result(self.weigh(self.bend(self.multiply(pairs, W)), v))


# --- faults -------------------------------------------------------------------------------------


of_every_score(task)
of_hidden_layers(task)
task.fault("C-KEYS-FIRST", join=lambda queries, keys: torch.cat([keys, queries], -1))
task.fault(
    "C-TANH-FIRST", section="linear-score", multiply=lambda pairs, W: pairs.tanh() @ W, bend=as_is
)
task.fault("C-NO-QUERY", section="soft-search", line_up=lambda query: 0 * query[:, None])
task.fault("C-W-IN-A-LAYER", section="soft-search", multiply=in_a_layer)
task.fault("C-FROZEN-W", section="soft-search", multiply=lambda pairs, W: pairs @ W.detach())
