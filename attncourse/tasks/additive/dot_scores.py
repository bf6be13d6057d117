"""dot_scores."""

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
    hints=(
        "A dot product multiplies two vectors entry by entry and adds everything up. Which "
        "axis is added up here, and which axes stay?",
        "The query (b d) has no axis for keys, so it must be compared with every key of its "
        "own sentence. Either name the axes (einsum), or give the query an axis of length 1.",
        'With names: "b d, b k d -> b k". Without: make the query (b 1 d), multiply it by the '
        "keys (b k d), and sum over the last axis.",
    ),
    probes=probes_of(dot_inputs, "d"),
    differentiated=("plain", "all equal"),
    small=small_of(dot_shapes),
    maps=maps_of(dot_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_key_gets_one_score(answer, rng):
    gives_one_score_a_key(answer, dot_inputs(rng))


@task.check(1)
def scores_match_the_formula(answer, rng):
    answer.matches(dot_inputs(rng))
    answer.matches(dot_inputs(rng, b=3, k=7, d=33))
    answer.matches(turned(dot_inputs(rng, b=3, k=4)))
    answer.matches(dot_inputs(rng, b=3, dtype=torch.float64))


@task.check(1)
def a_query_meets_only_the_keys_of_its_own_sentence(answer, rng):
    holds_for_equal_sizes(answer, rng, dot_inputs, "d")


@task.check(1)
def one_sentence_or_one_key_is_enough(answer, rng):
    holds_for_one(answer, rng, dot_inputs, "d")


@task.check(1)
def gradients_pass_and_nothing_else_changes(answer, rng):
    answer.gradients_match(dot_inputs(rng))
    moves_nothing(answer, dot_inputs(rng))
    moves_nothing(answer, dot_inputs(rng, b=4, k=4, d=4))


# --- faults ---------------------------------------------------------------------------------------


@task.fault(
    "C-DOT-SCALED",
    thinks="A dot score is divided by the root of the width.",
    why="That is the score of the next chapter. The plain dot product is the sum of the products, "
    "and nothing else.",
)
def scaled_dot(query, keys):
    return torch.einsum("bd,bkd->bk", query, keys) / math.sqrt(query.shape[-1])


@task.fault(
    "C-MEAN",
    thinks="A dot product is the average of the products.",
    why="It is their sum. An average divides by the width as well, so every score comes out too "
    "small, and the wider the vectors the more so.",
)
def mean_of_products(query, keys):
    return (query[:, None] * keys).mean(-1)


@task.fault(
    "A-BROADCAST",
    thinks="Query and keys can be multiplied as they are; torch lines them up.",
    why="Torch lines axes up from the right, so the sentences of (b d) meet the keys of (b k d). "
    "It raises an error, or, if b = k, silently compares key 2 with the query of sentence 2.",
    section="additive-breaks",
)
def dot_without_new_axis(query, keys):
    return (query * keys).sum(-1)


@task.fault(
    "C-ALL-PAIRS",
    thinks="A matrix product of the queries with the turned keys gives all scores.",
    why="It gives more than all: every query of the batch with the keys of every sentence, "
    "(b b k). Sentences have nothing to do with each other.",
)
def queries_of_all_sentences(query, keys):
    return query @ keys.transpose(1, 2)


@task.fault(
    "C-NOT-SUMMED",
    thinks="A score is the product of query and key, entry by entry.",
    why="That leaves d numbers for each key. A score is one number: how well the key fits as a "
    "whole.",
)
def products_not_summed(query, keys):
    return query[:, None] * keys


@task.fault(
    "D-COSINE",
    thinks="Similarity means the cosine of the angle between two vectors.",
    why="The dot product keeps the lengths: a long key may count more. The cosine divides them "
    "out.",
)
def cosine_of_query_and_key(query, keys):
    unit = torch.nn.functional.normalize
    return torch.einsum("bd,bkd->bk", unit(query, dim=-1), unit(keys, dim=-1))


def squared_distance(query, keys):
    return (query[:, None] - keys).square().sum(-1)


@task.fault(
    "D-DISTANCE",
    thinks="The score is how far apart query and key are.",
    why="A distance is small when two vectors agree, so the worst key would get the most weight. A "
    "score grows with agreement.",
    forms=(squared_distance,),
)
def distance(query, keys):
    return (query[:, None] - keys).square().sum(-1).sqrt()


@task.fault(
    "C-SCORES-ARE-WEIGHTS",
    thinks="A score function returns numbers that sum to one.",
    why="Those are weights, and they come one step later. Scores may be any numbers; `attend` "
    "turns them into shares, and doing it twice flattens them.",
    section="soft-search",
)
def softmax_of_dot(query, keys):
    return torch.softmax(torch.einsum("bd,bkd->bk", query, keys), -1)


@task.fault(
    "D-RESHAPE-KEY",
    thinks="Reshaping the keys from (b k d) to (b d k) swaps two axes.",
    why="A reshape cuts the same list of numbers into other rows; it never moves a number. The "
    "shape fits, the content is scrambled.",
)
def dot_with_reshaped_keys(query, keys):
    b, k, d = keys.shape
    return (query[:, None] @ keys.reshape(b, d, k))[:, 0]


@task.fault(
    "C-KEEPDIM",
    thinks="An axis of length 1 more or less makes no difference.",
    why="To a person it does not; to broadcasting it does. With (b k 1) the next step would share "
    "weights along the wrong axis. Scores are (b k).",
    forms=(lambda query, keys: torch.einsum("bd,bkd->bk", query, keys)[:, None],),
)
def dot_with_an_axis_left(query, keys):
    return keys @ query[:, :, None]


@task.fault(
    "C-SQUEEZE",
    thinks="`squeeze()` removes the axis that I had added.",
    why="It removes every axis of length 1. With one sentence in the batch, or one word in the "
    "sentence, it takes an axis that belongs there. Say which axis you mean.",
)
def dot_squeezed(query, keys):
    return (keys @ query[:, :, None]).squeeze()


@task.fault(
    "C-FIRST-QUERY",
    thinks="There is one query for the whole batch.",
    why="Each sentence brings its own query, a row of (b d). You compare all keys with the query "
    "of the first sentence.",
)
def first_query_for_all(query, keys):
    return keys @ query[0]


@task.fault(
    "C-FLOAT32",
    thinks="Computing in float32 is always fine.",
    why="The inputs came as float64 and your scores leave as float32. The caller loses half of the "
    "digits. Keep the dtype that came.",
)
def dot_in_float32(query, keys):
    return torch.einsum("bd,bkd->bk", query.float(), keys.float())


@task.fault(
    "C-DETACHED",
    thinks="The numbers are right, so the answer is right.",
    why="The numbers are, but no gradient reaches the inputs: `.detach()`, `.data`, `no_grad` or a "
    "detour through NumPy cuts the graph, and the model cannot learn where to look.",
    section="soft-search",
)
def dot_detached(query, keys):
    return torch.einsum("bd,bkd->bk", query.detach(), keys.detach())


@task.fault(
    "C-INPLACE",
    thinks="Multiplying the keys in place saves memory.",
    why="The keys belong to the caller, who needs them again for the next word: after your call "
    "they are scaled by the query. `a *= b` edits the tensor itself.",
)
def dot_edits_its_keys(query, keys):
    keys *= query[:, None]
    return keys.sum(-1)
