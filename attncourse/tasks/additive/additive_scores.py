"""additive_scores."""

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
    reads_the_query,
    small_of,
    survives_large_numbers,
    turned,
)


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
    hints=(
        "Follow steps 1 and 2 of the chapter: project, add, squeeze, sum. Write the axes of "
        "every tensor beside its line.",
        "The projected query is (b a), the projected keys are (b k a). Torch lines axes up "
        "from the right, so b would meet k. Where must the query get an axis of length 1?",
        "from_query = query times W_query as (b 1 a); from_keys = keys times W_key, (b k a); "
        "hidden = tanh of their sum; scores = hidden times v, summed over a.",
    ),
    probes=probes_of(additive_inputs, "eda"),
    differentiated=("plain", "all equal"),
    small=small_of(additive_shapes),
    maps=maps_of(additive_inputs),
    features=1,
    forbidden=FUSED_ATTENTION,
)


@task.check(1)
def every_key_gets_one_score(answer, rng):
    gives_one_score_a_key(answer, additive_inputs(rng))


@task.check(1)
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


@task.check(1)
def one_sentence_or_one_key_is_enough(answer, rng):
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


# --- faults ---------------------------------------------------------------------------------------


def projected(query, keys, W_query, W_key):
    """Both projections, lined up: (b 1 a) and (b k a)."""
    return (query @ W_query)[:, None], keys @ W_key


@task.fault(
    "A-NO-TANH",
    thinks="Adding the two projections is the additive score; the tanh is decoration.",
    why="Without it the query adds the same number to the score of every key. The softmax ignores "
    "that, so all queries get the same weights.",
    section="linear-score",
)
def linear_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (one + two) @ v


@task.fault(
    "A-RELU",
    thinks="ReLU is the modern tanh.",
    why="It bends too, so it sees the query. But it gives other scores than the formula: weights "
    "that were trained with tanh do not fit.",
)
def relu_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.relu(one + two) @ v


@task.fault(
    "C-SIGMOID",
    thinks="Each hidden unit is a sigmoid.",
    why="A sigmoid runs from 0 to 1 and is less steep. The formula has tanh, from −1 to 1: the two "
    "give different weights.",
)
def sigmoid_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.sigmoid(one + two) @ v


def additive_projects_sum(query, keys, W_query, W_key, v):
    return torch.tanh(torch.matmul(query, W_query) + torch.matmul(keys, W_key)) @ v


@task.fault(
    "A-BROADCAST",
    thinks="The projected query and keys can be added as they are; torch lines them up.",
    why="(b a) and (b k a) are lined up from the right, so b meets k. That is an error, or, if "
    "b = k, each key is scored with another sentence's query.",
    section="additive-breaks",
)
def additive_without_new_axis(query, keys, W_query, W_key, v):
    return additive_projects_sum(query, keys, W_query, W_key, v)


def both_by_query_weight(query, keys, W_query, W_key, v):
    return torch.tanh((query @ W_query)[:, None] + keys @ W_query) @ v


@task.fault(
    "A-TIED-PROJ",
    thinks="One projection serves query and keys alike.",
    why="Then asking and answering are the same thing, and the widths must agree. Two matrices are "
    "given: one reads the decoder's state, the other the annotations.",
    forms=(both_by_query_weight,),
)
def one_projection_for_both(query, keys, W_query, W_key, v):
    return torch.tanh((query @ W_key)[:, None] + keys @ W_key) @ v


@task.fault(
    "C-SWAPPED-PROJ",
    thinks="Which matrix projects which makes no difference.",
    why="W_query is (e a) and W_key is (d a). If e ≠ d the swap is an error; if e = d it runs, and "
    "each matrix reads what it was not trained on.",
)
def swapped_projections(query, keys, W_query, W_key, v):
    return torch.tanh((query @ W_key)[:, None] + keys @ W_query) @ v


@task.fault(
    "C-TANH-EACH",
    thinks="Query and keys each go through the tanh, then they are added.",
    why="Then the query's part is again one number for all keys, and the softmax ignores it. Query "
    "and key have to meet before the bend.",
    section="linear-score",
)
def tanh_of_each(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (torch.tanh(one) + torch.tanh(two)) @ v


def tanh_of_the_query_only(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (torch.tanh(one) + two) @ v


@task.fault(
    "C-TANH-HALF",
    thinks="The tanh belongs to one of the two projections.",
    why="Whichever you choose, what the query brings is added outside the bend: the same number "
    "for every key. The tanh goes around the sum.",
    section="linear-score",
    forms=(tanh_of_the_query_only,),
)
def tanh_of_the_keys_only(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (one + torch.tanh(two)) @ v


@task.fault(
    "C-TANH-LAST",
    thinks="The tanh squeezes the finished score.",
    why="Then no key can ever score above 1, and inside everything is linear. Each hidden unit "
    "bends by itself, before v weighs them.",
)
def tanh_of_the_additive_score(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh((one + two) @ v)


@task.fault(
    "C-PRODUCT",
    thinks="Query and key meet by multiplication.",
    why="That is how the dot and the general score do it. This one adds the two projections, hence "
    "its name.",
)
def product_of_projections(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one * two) @ v


@task.fault(
    "C-DIFFERENCE",
    thinks="The score compares, so the projections are subtracted.",
    why="With weights of your own it would be as good, since a sign can be learned. With the given "
    "ones it is another score: the formula adds.",
    forms=(
        lambda query, keys, W_query, W_key, v: (
            torch.tanh(keys @ W_key - (query @ W_query)[:, None]) @ v
        ),
    ),
)
def difference_of_projections(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one - two) @ v


@task.fault(
    "C-NO-V",
    thinks="The hidden units are summed up, and that is the score.",
    why="Then every unit counts the same and v is never read. v learns which units matter and "
    "which speak against a key.",
)
def additive_without_v(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one + two).sum(-1)


@task.fault(
    "C-SCALED",
    thinks="The score is divided by the root of the alignment width.",
    why="Scaling belongs to the dot product of the next chapter. Here the tanh keeps each unit "
    "within −1 … 1, and v sets the size.",
)
def additive_scaled(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one + two) @ v / math.sqrt(len(v))


@task.fault(
    "C-QUERY-MEAN",
    thinks="One query stands for the batch, so I average over the sentences.",
    why="Each sentence asks its own question. With one sentence your answer is right; with more, "
    "they all ask the same.",
)
def mean_query(query, keys, W_query, W_key, v):
    one, two = projected(query.mean(0, keepdim=True), keys, W_query, W_key)
    return torch.tanh(one + two) @ v


@task.fault(
    "C-SCORES-ARE-WEIGHTS",
    thinks="The alignment model ends with a softmax.",
    why="It ends with scores, any numbers. Making shares of them is the next step, `attend`, which "
    "also has to know the mask.",
)
def softmax_of_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.softmax(torch.tanh(one + two) @ v, -1)


@task.fault(
    "C-SQUEEZE",
    thinks="`squeeze()` drops the last axis.",
    why="It drops all axes of length 1. With a batch of one sentence, or a sentence of one word, "
    "b or k is gone too. Name the axis.",
    section="score-family",
)
def additive_squeezed(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (torch.tanh(one + two) @ v[:, None]).squeeze()


@task.fault(
    "C-DETACHED-KEYS",
    thinks="The projected keys are computed once a sentence, so they can be detached.",
    why="Computing them once is a good idea, cutting the graph is not: no gradient reaches keys "
    "and W_key, and the encoder never learns to be found.",
    section="score-family",
)
def detached_projected_keys(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one + two.detach()) @ v


@task.fault(
    "C-NAIVE-TANH",
    thinks="I write tanh by its formula, with four exponentials.",
    why="For large sums both exponentials are infinite, and infinity over infinity is NaN. The "
    "ready-made tanh goes to 1 there.",
)
def additive_with_naive_tanh(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    x = one + two
    return ((x.exp() - (-x).exp()) / (x.exp() + (-x).exp())) @ v


@task.fault(
    "C-INPLACE-GRAPH",
    thinks="Editing a tensor that I made myself can do no harm.",
    why="The caller sees none of it, but autograd does: tanh needs its own result for the "
    "gradient, and finds other numbers in it. Make a new tensor instead of `*=`.",
)
def additive_multiplies_in_place(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    hidden = torch.tanh(one + two)
    hidden *= v
    return hidden.sum(-1)


@task.fault(
    "C-FLOAT32",
    thinks="float32 is enough for any score.",
    why="Perhaps, but the inputs came as float64, and the result has to keep their dtype and all "
    "their digits.",
)
def additive_in_float32(query, keys, W_query, W_key, v):
    one, two = projected(query.float(), keys.float(), W_query.float(), W_key.float())
    return torch.tanh(one + two) @ v.float()
