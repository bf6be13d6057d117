"""concat_scores."""

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
    reads_the_query,
    small_of,
    survives_large_numbers,
    turned,
)


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
    hints=(
        "The small network reads one pair at a time: the query, and behind it one key. There "
        "are k keys and one query a sentence, so the query has to appear k times.",
        "Give the query an axis for keys and expand it to (b k e); then the two can be joined "
        "along the last axis to (b k e+d). W leads to (b k a). What bends the line?",
        "pairs = the expanded query and the keys, joined on the last axis, query first; "
        "hidden = tanh of pairs times W; scores = hidden times v, summed over a.",
    ),
    probes=probes_of(concat_inputs, "eda"),
    differentiated=("plain", "all equal"),
    small=small_of(concat_shapes),
    maps=maps_of(concat_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_key_gets_one_score(answer, rng):
    gives_one_score_a_key(answer, concat_inputs(rng))


@task.check(1)
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


@task.check(1)
def one_sentence_or_one_key_is_enough(answer, rng):
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


# --- faults ---------------------------------------------------------------------------------------


def joined(query, keys):
    """The query before each key: (b k e+d)."""
    return torch.cat([query[:, None].expand(-1, keys.shape[1], -1), keys], dim=-1)


@task.fault(
    "A-NO-TANH",
    thinks="A linear layer on query and key is enough; the tanh is decoration.",
    why="Without a bend the query adds the same number to the score of every key, and the softmax "
    "ignores it: all queries get the same weights.",
    section="linear-score",
)
def linear_concat(query, keys, W, v):
    return joined(query, keys) @ W @ v


@task.fault(
    "A-RELU",
    thinks="Any bend will do, so I take ReLU.",
    why="It does see the query, and it could be learned with. But it is another score: the one "
    "asked for squeezes to −1 … 1, and weights trained with it fit no other.",
)
def relu_concat(query, keys, W, v):
    return torch.relu(joined(query, keys) @ W) @ v


@task.fault(
    "C-SIGMOID",
    thinks="The bend is a sigmoid.",
    why="It looks like tanh, but runs from 0 to 1 and is less steep. A unit of tanh can also speak "
    "against a key.",
    section="soft-search",
)
def sigmoid_concat(query, keys, W, v):
    return torch.sigmoid(joined(query, keys) @ W) @ v


def keys_first_by_halves(query, keys, W, v):
    d = keys.shape[-1]
    return torch.tanh((query @ W[d:])[:, None] + keys @ W[:d]) @ v


@task.fault(
    "C-KEYS-FIRST",
    thinks="Whether query or key comes first makes no difference.",
    why="For a W of your own it would not. But this W is given: its first e rows belong to the "
    "query. In your order they meet the key.",
    forms=(keys_first_by_halves,),
)
def keys_before_query(query, keys, W, v):
    pairs = joined(query, keys)
    e = query.shape[-1]
    return torch.tanh(torch.cat([pairs[..., e:], pairs[..., :e]], -1) @ W) @ v


@task.fault(
    "C-TANH-LAST",
    thinks="The tanh is applied to the finished score.",
    why="Then no score can leave −1 … 1, and inside everything is linear. The bend belongs to each "
    "hidden unit, before v weighs them.",
    section="soft-search",
)
def tanh_of_the_concat_score(query, keys, W, v):
    return torch.tanh(joined(query, keys) @ W @ v)


@task.fault(
    "C-TANH-FIRST",
    thinks="The tanh is applied to query and key before W.",
    why="Squeezing each number by itself leaves the rest linear: the query still adds the same to "
    "every score, and the softmax ignores it. The bend must come after the sum.",
    section="linear-score",
)
def tanh_before_the_weight(query, keys, W, v):
    return torch.tanh(joined(query, keys)) @ W @ v


@task.fault(
    "C-NO-V",
    thinks="The score is the sum of the hidden units.",
    why="Your scores never read v. It says how much each unit counts, and whether it speaks for or "
    "against a key.",
    section="soft-search",
)
def concat_without_v(query, keys, W, v):
    return torch.tanh(joined(query, keys) @ W).sum(-1)


@task.fault(
    "C-REPEAT",
    thinks="`repeat` followed by a reshape copies the query of each sentence for its keys.",
    why="`repeat` lays the whole batch down k times: queries 1, 2, 1, 2, … The reshape then "
    "gives a sentence the queries of others. With one sentence nobody notices.",
    section="additive-breaks",
    forms=(
        lambda query, keys, W, v: (
            torch.tanh(
                torch.cat([query.tile(keys.shape[1], 1).reshape(*keys.shape[:2], -1), keys], -1) @ W
            )
            @ v
        ),
    ),
)
def repeated_queries(query, keys, W, v):
    b, k, _ = keys.shape
    copies = query.repeat(k, 1).view(b, k, -1)
    return torch.tanh(torch.cat([copies, keys], -1) @ W) @ v


@task.fault(
    "A-BROADCAST",
    thinks="`query.expand(b, k, -1)` gives every key the query of its sentence.",
    why="The new axis appears on the left, where b should be. That is an error, or, if b = k, key "
    "2 of every sentence gets the query of sentence 2.",
    section="additive-breaks",
)
def expands_on_the_wrong_side(query, keys, W, v):
    copies = query.expand(*keys.shape[:2], -1)
    return torch.tanh(torch.cat([copies, keys], -1) @ W) @ v


@task.fault(
    "C-SCORES-ARE-WEIGHTS",
    thinks="A softmax turns the result into scores.",
    why="It turns scores into weights, and that is the job of `attend`. What is asked for here is "
    "what enters it.",
    section="soft-search",
)
def softmax_of_concat(query, keys, W, v):
    return torch.softmax(torch.tanh(joined(query, keys) @ W) @ v, -1)


@task.fault(
    "C-SQUEEZE",
    thinks="`squeeze()` removes the last axis, which has length 1.",
    why="It removes every axis of length 1, so a batch of one sentence or a sentence of one word "
    "comes out with an axis too few. Name the axis.",
)
def concat_squeezed(query, keys, W, v):
    return (torch.tanh(joined(query, keys) @ W) @ v[:, None]).squeeze()


@task.fault(
    "C-DETACHED-QUERY",
    thinks="The query is the decoder's business, so no gradient needs to go back to it.",
    why="It does: by that gradient the decoder learns to ask. Your scores are right, but its state "
    "would never be trained to look in the right place.",
    section="soft-search",
)
def concat_with_detached_query(query, keys, W, v):
    return torch.tanh(joined(query.detach(), keys) @ W) @ v


@task.fault(
    "C-NAIVE-TANH",
    thinks="tanh is (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ), so that is what I compute.",
    why="On paper yes. From x = 89 on, exp is infinite in float32, and infinity over infinity is "
    "NaN. A ready-made tanh knows its limit is 1.",
    section="soft-search",
)
def concat_with_naive_tanh(query, keys, W, v):
    x = joined(query, keys) @ W
    return ((x.exp() - (-x).exp()) / (x.exp() + (-x).exp())) @ v


@task.fault(
    "C-FLOAT32",
    thinks="Casting everything to float32 avoids trouble with dtypes.",
    why="It makes some: float64 comes in, float32 goes out, and half of the digits are gone.",
)
def concat_in_float32(query, keys, W, v):
    return torch.tanh(joined(query.float(), keys.float()) @ W.float()) @ v.float()


@task.fault(
    "C-KEYS-FIRST-NO-TANH",
    thinks="Keys first, then the query, and one linear layer.",
    why="Two things at once: the first e rows of W belong to the query, which comes first; and "
    "without a bend no query can change the weights.",
    section="linear-score",
)
def keys_first_and_linear(query, keys, W, v):
    d = keys.shape[-1]
    return ((query @ W[d:])[:, None] + keys @ W[:d]) @ v
