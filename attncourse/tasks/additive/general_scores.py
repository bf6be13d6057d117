"""general_scores."""

import math

import torch

from attncourse import additive as reference
from attncourse.checks.answer import moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.task import Task
from attncourse.tasks.additive import (
    gives_one_score_a_key,
    holds_for_equal_sizes,
    holds_for_one,
    maps_of,
    probes_of,
    small_of,
    turned,
)


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


# --- faults ---------------------------------------------------------------------------------------


def turned_by_linear(query, keys, W):
    return torch.einsum("be,bke->bk", torch.nn.functional.linear(query, W), keys)


@task.fault(
    "C-W-TRANSPOSED",
    thinks="W is used as W transposed; for a learned matrix it is all the same.",
    why="W is (e d): rows meet the query, columns the key. With e ≠ d the other way round is an "
    "error; with e = d it runs, and gives other scores.",
    forms=(turned_by_linear,),
)
def transposed_weight(query, keys, W):
    return torch.einsum("bd,de,bke->bk", query, W.T, keys)


@task.fault(
    "C-NO-W",
    thinks="General is dot with another name.",
    why="Your scores never read W. It is what lets a query be compared with keys of another width, "
    "and what can be learned.",
)
def without_the_weight(query, keys, W):
    return torch.einsum("bd,bkd->bk", query, keys)


@task.fault(
    "C-GENERAL-TANH",
    thinks="After every matrix comes a tanh.",
    why="In additive and concat scores yes. The general score is q W k, linear in each of the "
    "three; the query gets through without a tanh, since it multiplies the key.",
)
def general_with_tanh(query, keys, W):
    return torch.einsum("bd,bkd->bk", torch.tanh(query @ W), keys)


@task.fault(
    "C-GENERAL-SCALED",
    thinks="The score is divided by the root of the key's width.",
    why="That belongs to the next chapter. W is learned and can take any size, so nothing is "
    "divided here.",
)
def general_scaled(query, keys, W):
    return torch.einsum("be,ed,bkd->bk", query, W, keys) / math.sqrt(keys.shape[-1])


def general_one_axis_short(query, keys, W):
    return ((query @ W) * keys).sum(-1)


def general_other_axis_short(query, keys, W):
    return (query * (keys @ W.T)).sum(-1)


@task.fault(
    "A-BROADCAST",
    thinks="The projected query and the keys can be multiplied as they are; torch lines them up.",
    why="It lines them up from the right: the sentences of (b d) meet the keys of (b k d). That is "
    "an error, or, if b = k, each key is compared with another sentence's query.",
    section="additive-breaks",
    forms=(general_other_axis_short,),
)
def general_without_new_axis(query, keys, W):
    return general_one_axis_short(query, keys, W)


@task.fault(
    "C-ALL-PAIRS",
    thinks="One matrix product of all queries with all keys gives the scores.",
    why="It pairs the query of every sentence with the keys of every other: (b b k). Each sentence "
    "has one query of its own.",
)
def general_of_all_sentences(query, keys, W):
    return query @ W @ keys.transpose(1, 2)


@task.fault(
    "C-SCORES-ARE-WEIGHTS",
    thinks="A score function ends with a softmax.",
    why="The softmax belongs to `attend`, the next step. Scores may be any numbers; after a second "
    "softmax the weights would be nearly equal.",
    section="soft-search",
)
def softmax_of_general(query, keys, W):
    return torch.softmax(torch.einsum("be,ed,bkd->bk", query, W, keys), -1)


def general_squeezed_after_bmm(query, keys, W):
    return torch.bmm(keys, (query @ W).unsqueeze(2)).squeeze()


@task.fault(
    "C-SQUEEZE",
    thinks="`squeeze()` takes away the axis that I had put in.",
    why="It takes away every axis of length 1. A batch of one sentence, or a sentence of one word, "
    "loses an axis that belongs there. Name the axis.",
)
def general_squeezed(query, keys, W):
    return general_squeezed_after_bmm(query, keys, W)


@task.fault(
    "C-FROZEN-W",
    thinks="W is a number table, not a variable, so it may be detached.",
    why="The scores are right, and the query and the keys get gradients. W gets none, so the one "
    "thing that this score can learn stays as it was.",
    forms=(lambda query, keys, W: torch.einsum("be,ed,bkd->bk", query, W.data, keys),),
)
def frozen_weight(query, keys, W):
    return torch.einsum("be,ed,bkd->bk", query, W.detach(), keys)


@task.fault(
    "C-FLOAT32",
    thinks="Everything may be turned into float32 first.",
    why="Inputs of float64 then lose half of their digits on the way, and the result has another "
    "dtype than the caller works in.",
)
def general_in_float32(query, keys, W):
    return torch.einsum("be,ed,bkd->bk", query.float(), W.float(), keys.float())


@task.fault(
    "C-INPLACE-SQUARE",
    thinks="The projected query can be stored where the query was.",
    why="If e = d the shapes fit, and the caller's query is overwritten: the next step asks with "
    "another vector. Give the result a name of its own.",
)
def general_overwrites_the_query(query, keys, W):
    if W.shape[0] == W.shape[1]:
        query[:] = query @ W
    else:
        query = query @ W
    return torch.einsum("bd,bkd->bk", query, keys)


@task.fault(
    "C-KEYS-SUMMED",
    thinks="The keys of a sentence can be summed before they are compared.",
    why="A score is asked for each key. Yours compares the query with the sum of all keys and "
    "writes the same number everywhere.",
    section="soft-search",
)
def keys_summed_first(query, keys, W):
    total = torch.einsum("be,ed,bkd->b", query, W, keys)
    return total[:, None].expand(-1, keys.shape[1])
