"""Wrong answers of chapter 2. Ids A-…, D-… and M-… are the course catalogue's, C-… our own.

Each answer below differs from a right one in one thought. Everything else about it is right, so
that the judge can recognize that thought.
"""

import math

import torch
from torch import nn

from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# The right pieces, for wrong answers to put together.


def projected(query, keys, W_query, W_key):
    """Both projections, lined up: (b 1 a) and (b k a)."""
    return (query @ W_query)[:, None], keys @ W_key


def joined(query, keys):
    """The query before each key: (b k e+d)."""
    return torch.cat([query[:, None].expand(-1, keys.shape[1], -1), keys], dim=-1)


def masked_softmax(scores, mask, dim=-1):
    if mask is None:
        return torch.softmax(scores, dim)
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim).masked_fill(~mask, 0)


def average(weights, values):
    return torch.einsum("bk,bkv->bv", weights, values)


def finished(scores, values, mask):
    weights = masked_softmax(scores, mask)
    return average(weights, values), weights


# --- dot_scores ---------------------------------------------------------------------------------

DOT = "dot_scores"


@wrong(
    "C-DOT-SCALED",
    DOT,
    thinks="A dot score is divided by the root of the width.",
    why="That is the score of the next chapter. The plain dot product is the sum of the products, "
    "and nothing else.",
    section="score-family",
)
def scaled_dot(query, keys):
    return torch.einsum("bd,bkd->bk", query, keys) / math.sqrt(query.shape[-1])


@wrong(
    "C-MEAN",
    DOT,
    thinks="A dot product is the average of the products.",
    why="It is their sum. An average divides by the width as well, so every score comes out too "
    "small, and the wider the vectors the more so.",
    section="score-family",
)
def mean_of_products(query, keys):
    return (query[:, None] * keys).mean(-1)


@wrong(
    "A-BROADCAST",
    DOT,
    thinks="Query and keys can be multiplied as they are; torch lines them up.",
    why="Torch lines axes up from the right, so the sentences of (b d) meet the keys of (b k d). "
    "It raises an error, or, if b = k, silently compares key 2 with the query of sentence 2.",
    section="additive-breaks",
)
def dot_without_new_axis(query, keys):
    return (query * keys).sum(-1)


@wrong(
    "C-ALL-PAIRS",
    DOT,
    thinks="A matrix product of the queries with the turned keys gives all scores.",
    why="It gives more than all: every query of the batch with the keys of every sentence, "
    "(b b k). Sentences have nothing to do with each other.",
    section="score-family",
)
def queries_of_all_sentences(query, keys):
    return query @ keys.transpose(1, 2)


@wrong(
    "C-NOT-SUMMED",
    DOT,
    thinks="A score is the product of query and key, entry by entry.",
    why="That leaves d numbers for each key. A score is one number: how well the key fits as a "
    "whole.",
    section="score-family",
)
def products_not_summed(query, keys):
    return query[:, None] * keys


@wrong(
    "D-COSINE",
    DOT,
    thinks="Similarity means the cosine of the angle between two vectors.",
    why="The dot product keeps the lengths: a long key may count more. The cosine divides them "
    "out.",
    section="score-family",
)
def cosine_of_query_and_key(query, keys):
    unit = torch.nn.functional.normalize
    return torch.einsum("bd,bkd->bk", unit(query, dim=-1), unit(keys, dim=-1))


def squared_distance(query, keys):
    return (query[:, None] - keys).square().sum(-1)


@wrong(
    "D-DISTANCE",
    DOT,
    thinks="The score is how far apart query and key are.",
    why="A distance is small when two vectors agree, so the worst key would get the most weight. A "
    "score grows with agreement.",
    section="score-family",
    variants=(squared_distance,),
)
def distance(query, keys):
    return (query[:, None] - keys).square().sum(-1).sqrt()


@wrong(
    "C-SCORES-ARE-WEIGHTS",
    DOT,
    thinks="A score function returns numbers that sum to one.",
    why="Those are weights, and they come one step later. Scores may be any numbers; `attend` "
    "turns them into shares, and doing it twice flattens them.",
    section="soft-search",
)
def softmax_of_dot(query, keys):
    return torch.softmax(torch.einsum("bd,bkd->bk", query, keys), -1)


@wrong(
    "D-RESHAPE-KEY",
    DOT,
    thinks="Reshaping the keys from (b k d) to (b d k) swaps two axes.",
    why="A reshape cuts the same list of numbers into other rows; it never moves a number. The "
    "shape fits, the content is scrambled.",
    section="score-family",
)
def dot_with_reshaped_keys(query, keys):
    b, k, d = keys.shape
    return (query[:, None] @ keys.reshape(b, d, k))[:, 0]


@wrong(
    "C-KEEPDIM",
    DOT,
    thinks="An axis of length 1 more or less makes no difference.",
    why="To a person it does not; to broadcasting it does. With (b k 1) the next step would share "
    "weights along the wrong axis. Scores are (b k).",
    section="score-family",
    variants=(lambda query, keys: torch.einsum("bd,bkd->bk", query, keys)[:, None],),
)
def dot_with_an_axis_left(query, keys):
    return keys @ query[:, :, None]


@wrong(
    "C-SQUEEZE",
    DOT,
    thinks="`squeeze()` removes the axis that I had added.",
    why="It removes every axis of length 1. With one sentence in the batch, or one word in the "
    "sentence, it takes an axis that belongs there. Say which axis you mean.",
    section="score-family",
)
def dot_squeezed(query, keys):
    return (keys @ query[:, :, None]).squeeze()


@wrong(
    "C-FIRST-QUERY",
    DOT,
    thinks="There is one query for the whole batch.",
    why="Each sentence brings its own query, a row of (b d). You compare all keys with the query "
    "of the first sentence.",
    section="score-family",
)
def first_query_for_all(query, keys):
    return keys @ query[0]


@wrong(
    "C-FLOAT32",
    DOT,
    thinks="Computing in float32 is always fine.",
    why="The inputs came as float64 and your scores leave as float32. The caller loses half of the "
    "digits. Keep the dtype that came.",
    section="score-family",
)
def dot_in_float32(query, keys):
    return torch.einsum("bd,bkd->bk", query.float(), keys.float())


@wrong(
    "C-DETACHED",
    DOT,
    thinks="The numbers are right, so the answer is right.",
    why="The numbers are, but no gradient reaches the inputs: `.detach()`, `.data`, `no_grad` or a "
    "detour through NumPy cuts the graph, and the model cannot learn where to look.",
    section="soft-search",
)
def dot_detached(query, keys):
    return torch.einsum("bd,bkd->bk", query.detach(), keys.detach())


@wrong(
    "C-INPLACE",
    DOT,
    thinks="Multiplying the keys in place saves memory.",
    why="The keys belong to the caller, who needs them again for the next word: after your call "
    "they are scaled by the query. `a *= b` edits the tensor itself.",
    section="score-family",
)
def dot_edits_its_keys(query, keys):
    keys *= query[:, None]
    return keys.sum(-1)


# --- general_scores -----------------------------------------------------------------------------

GENERAL = "general_scores"


def turned_by_linear(query, keys, W):
    return torch.einsum("be,bke->bk", torch.nn.functional.linear(query, W), keys)


@wrong(
    "C-W-TRANSPOSED",
    GENERAL,
    thinks="W is used as W transposed; for a learned matrix it is all the same.",
    why="W is (e d): rows meet the query, columns the key. With e ≠ d the other way round is an "
    "error; with e = d it runs, and gives other scores.",
    section="score-family",
    variants=(turned_by_linear,),
)
def transposed_weight(query, keys, W):
    return torch.einsum("bd,de,bke->bk", query, W.T, keys)


@wrong(
    "C-NO-W",
    GENERAL,
    thinks="General is dot with another name.",
    why="Your scores never read W. It is what lets a query be compared with keys of another width, "
    "and what can be learned.",
    section="score-family",
)
def without_the_weight(query, keys, W):
    return torch.einsum("bd,bkd->bk", query, keys)


@wrong(
    "C-GENERAL-TANH",
    GENERAL,
    thinks="After every matrix comes a tanh.",
    why="In additive and concat scores yes. The general score is q W k, linear in each of the "
    "three; the query gets through without a tanh, since it multiplies the key.",
    section="score-family",
)
def general_with_tanh(query, keys, W):
    return torch.einsum("bd,bkd->bk", torch.tanh(query @ W), keys)


@wrong(
    "C-GENERAL-SCALED",
    GENERAL,
    thinks="The score is divided by the root of the key's width.",
    why="That belongs to the next chapter. W is learned and can take any size, so nothing is "
    "divided here.",
    section="score-family",
)
def general_scaled(query, keys, W):
    return torch.einsum("be,ed,bkd->bk", query, W, keys) / math.sqrt(keys.shape[-1])


def general_one_axis_short(query, keys, W):
    return ((query @ W) * keys).sum(-1)


def general_other_axis_short(query, keys, W):
    return (query * (keys @ W.T)).sum(-1)


@wrong(
    "A-BROADCAST",
    GENERAL,
    thinks="The projected query and the keys can be multiplied as they are; torch lines them up.",
    why="It lines them up from the right: the sentences of (b d) meet the keys of (b k d). That is "
    "an error, or, if b = k, each key is compared with another sentence's query.",
    section="additive-breaks",
    variants=(general_other_axis_short,),
)
def general_without_new_axis(query, keys, W):
    return general_one_axis_short(query, keys, W)


@wrong(
    "C-ALL-PAIRS",
    GENERAL,
    thinks="One matrix product of all queries with all keys gives the scores.",
    why="It pairs the query of every sentence with the keys of every other: (b b k). Each sentence "
    "has one query of its own.",
    section="score-family",
)
def general_of_all_sentences(query, keys, W):
    return query @ W @ keys.transpose(1, 2)


@wrong(
    "C-SCORES-ARE-WEIGHTS",
    GENERAL,
    thinks="A score function ends with a softmax.",
    why="The softmax belongs to `attend`, the next step. Scores may be any numbers; after a second "
    "softmax the weights would be nearly equal.",
    section="soft-search",
)
def softmax_of_general(query, keys, W):
    return torch.softmax(torch.einsum("be,ed,bkd->bk", query, W, keys), -1)


def general_squeezed_after_bmm(query, keys, W):
    return torch.bmm(keys, (query @ W).unsqueeze(2)).squeeze()


@wrong(
    "C-SQUEEZE",
    GENERAL,
    thinks="`squeeze()` takes away the axis that I had put in.",
    why="It takes away every axis of length 1. A batch of one sentence, or a sentence of one word, "
    "loses an axis that belongs there. Name the axis.",
    section="score-family",
)
def general_squeezed(query, keys, W):
    return general_squeezed_after_bmm(query, keys, W)


@wrong(
    "C-FROZEN-W",
    GENERAL,
    thinks="W is a number table, not a variable, so it may be detached.",
    why="The scores are right, and the query and the keys get gradients. W gets none, so the one "
    "thing that this score can learn stays as it was.",
    section="score-family",
    variants=(lambda query, keys, W: torch.einsum("be,ed,bkd->bk", query, W.data, keys),),
)
def frozen_weight(query, keys, W):
    return torch.einsum("be,ed,bkd->bk", query, W.detach(), keys)


@wrong(
    "C-FLOAT32",
    GENERAL,
    thinks="Everything may be turned into float32 first.",
    why="Inputs of float64 then lose half of their digits on the way, and the result has another "
    "dtype than the caller works in.",
    section="score-family",
)
def general_in_float32(query, keys, W):
    return torch.einsum("be,ed,bkd->bk", query.float(), W.float(), keys.float())


@wrong(
    "C-INPLACE-SQUARE",
    GENERAL,
    thinks="The projected query can be stored where the query was.",
    why="If e = d the shapes fit, and the caller's query is overwritten: the next step asks with "
    "another vector. Give the result a name of its own.",
    section="score-family",
)
def general_overwrites_the_query(query, keys, W):
    if W.shape[0] == W.shape[1]:
        query[:] = query @ W
    else:
        query = query @ W
    return torch.einsum("bd,bkd->bk", query, keys)


@wrong(
    "C-KEYS-SUMMED",
    GENERAL,
    thinks="The keys of a sentence can be summed before they are compared.",
    why="A score is asked for each key. Yours compares the query with the sum of all keys and "
    "writes the same number everywhere.",
    section="soft-search",
)
def keys_summed_first(query, keys, W):
    total = torch.einsum("be,ed,bkd->b", query, W, keys)
    return total[:, None].expand(-1, keys.shape[1])


# --- concat_scores ------------------------------------------------------------------------------

CONCAT = "concat_scores"


@wrong(
    "A-NO-TANH",
    CONCAT,
    thinks="A linear layer on query and key is enough; the tanh is decoration.",
    why="Without a bend the query adds the same number to the score of every key, and the softmax "
    "ignores it: all queries get the same weights.",
    section="linear-score",
)
def linear_concat(query, keys, W, v):
    return joined(query, keys) @ W @ v


@wrong(
    "A-RELU",
    CONCAT,
    thinks="Any bend will do, so I take ReLU.",
    why="It does see the query, and it could be learned with. But it is another score: the one "
    "asked for squeezes to −1 … 1, and weights trained with it fit no other.",
    section="score-family",
)
def relu_concat(query, keys, W, v):
    return torch.relu(joined(query, keys) @ W) @ v


@wrong(
    "C-SIGMOID",
    CONCAT,
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


@wrong(
    "C-KEYS-FIRST",
    CONCAT,
    thinks="Whether query or key comes first makes no difference.",
    why="For a W of your own it would not. But this W is given: its first e rows belong to the "
    "query. In your order they meet the key.",
    section="score-family",
    variants=(keys_first_by_halves,),
)
def keys_before_query(query, keys, W, v):
    pairs = joined(query, keys)
    e = query.shape[-1]
    return torch.tanh(torch.cat([pairs[..., e:], pairs[..., :e]], -1) @ W) @ v


@wrong(
    "C-TANH-LAST",
    CONCAT,
    thinks="The tanh is applied to the finished score.",
    why="Then no score can leave −1 … 1, and inside everything is linear. The bend belongs to each "
    "hidden unit, before v weighs them.",
    section="soft-search",
)
def tanh_of_the_concat_score(query, keys, W, v):
    return torch.tanh(joined(query, keys) @ W @ v)


@wrong(
    "C-TANH-FIRST",
    CONCAT,
    thinks="The tanh is applied to query and key before W.",
    why="Squeezing each number by itself leaves the rest linear: the query still adds the same to "
    "every score, and the softmax ignores it. The bend must come after the sum.",
    section="linear-score",
)
def tanh_before_the_weight(query, keys, W, v):
    return torch.tanh(joined(query, keys)) @ W @ v


@wrong(
    "C-NO-V",
    CONCAT,
    thinks="The score is the sum of the hidden units.",
    why="Your scores never read v. It says how much each unit counts, and whether it speaks for or "
    "against a key.",
    section="soft-search",
)
def concat_without_v(query, keys, W, v):
    return torch.tanh(joined(query, keys) @ W).sum(-1)


@wrong(
    "C-REPEAT",
    CONCAT,
    thinks="`repeat` followed by a reshape copies the query of each sentence for its keys.",
    why="`repeat` lays the whole batch down k times: queries 1, 2, 1, 2, … The reshape then "
    "gives a sentence the queries of others. With one sentence nobody notices.",
    section="additive-breaks",
    variants=(
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


@wrong(
    "A-BROADCAST",
    CONCAT,
    thinks="`query.expand(b, k, -1)` gives every key the query of its sentence.",
    why="The new axis appears on the left, where b should be. That is an error, or, if b = k, key "
    "2 of every sentence gets the query of sentence 2.",
    section="additive-breaks",
)
def expands_on_the_wrong_side(query, keys, W, v):
    copies = query.expand(*keys.shape[:2], -1)
    return torch.tanh(torch.cat([copies, keys], -1) @ W) @ v


@wrong(
    "C-SCORES-ARE-WEIGHTS",
    CONCAT,
    thinks="A softmax turns the result into scores.",
    why="It turns scores into weights, and that is the job of `attend`. What is asked for here is "
    "what enters it.",
    section="soft-search",
)
def softmax_of_concat(query, keys, W, v):
    return torch.softmax(torch.tanh(joined(query, keys) @ W) @ v, -1)


@wrong(
    "C-SQUEEZE",
    CONCAT,
    thinks="`squeeze()` removes the last axis, which has length 1.",
    why="It removes every axis of length 1, so a batch of one sentence or a sentence of one word "
    "comes out with an axis too few. Name the axis.",
    section="score-family",
)
def concat_squeezed(query, keys, W, v):
    return (torch.tanh(joined(query, keys) @ W) @ v[:, None]).squeeze()


@wrong(
    "C-DETACHED-QUERY",
    CONCAT,
    thinks="The query is the decoder's business, so no gradient needs to go back to it.",
    why="It does: by that gradient the decoder learns to ask. Your scores are right, but its state "
    "would never be trained to look in the right place.",
    section="soft-search",
)
def concat_with_detached_query(query, keys, W, v):
    return torch.tanh(joined(query.detach(), keys) @ W) @ v


@wrong(
    "C-NAIVE-TANH",
    CONCAT,
    thinks="tanh is (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ), so that is what I compute.",
    why="On paper yes. From x = 89 on, exp is infinite in float32, and infinity over infinity is "
    "NaN. A ready-made tanh knows its limit is 1.",
    section="soft-search",
)
def concat_with_naive_tanh(query, keys, W, v):
    x = joined(query, keys) @ W
    return ((x.exp() - (-x).exp()) / (x.exp() + (-x).exp())) @ v


@wrong(
    "C-FLOAT32",
    CONCAT,
    thinks="Casting everything to float32 avoids trouble with dtypes.",
    why="It makes some: float64 comes in, float32 goes out, and half of the digits are gone.",
    section="score-family",
)
def concat_in_float32(query, keys, W, v):
    return torch.tanh(joined(query.float(), keys.float()) @ W.float()) @ v.float()


@wrong(
    "C-KEYS-FIRST-NO-TANH",
    CONCAT,
    thinks="Keys first, then the query, and one linear layer.",
    why="Two things at once: the first e rows of W belong to the query, which comes first; and "
    "without a bend no query can change the weights.",
    section="linear-score",
)
def keys_first_and_linear(query, keys, W, v):
    d = keys.shape[-1]
    return ((query @ W[d:])[:, None] + keys @ W[:d]) @ v


# --- additive_scores ----------------------------------------------------------------------------

ADDITIVE = "additive_scores"


@wrong(
    "A-NO-TANH",
    ADDITIVE,
    thinks="Adding the two projections is the additive score; the tanh is decoration.",
    why="Without it the query adds the same number to the score of every key. The softmax ignores "
    "that, so all queries get the same weights.",
    section="linear-score",
)
def linear_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (one + two) @ v


@wrong(
    "A-RELU",
    ADDITIVE,
    thinks="ReLU is the modern tanh.",
    why="It bends too, so it sees the query. But it gives other scores than the formula: weights "
    "that were trained with tanh do not fit.",
    section="soft-search",
)
def relu_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.relu(one + two) @ v


@wrong(
    "C-SIGMOID",
    ADDITIVE,
    thinks="Each hidden unit is a sigmoid.",
    why="A sigmoid runs from 0 to 1 and is less steep. The formula has tanh, from −1 to 1: the two "
    "give different weights.",
    section="soft-search",
)
def sigmoid_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.sigmoid(one + two) @ v


def additive_projects_sum(query, keys, W_query, W_key, v):
    return torch.tanh(torch.matmul(query, W_query) + torch.matmul(keys, W_key)) @ v


@wrong(
    "A-BROADCAST",
    ADDITIVE,
    thinks="The projected query and keys can be added as they are; torch lines them up.",
    why="(b a) and (b k a) are lined up from the right, so b meets k. That is an error, or, if "
    "b = k, each key is scored with another sentence's query.",
    section="additive-breaks",
)
def additive_without_new_axis(query, keys, W_query, W_key, v):
    return additive_projects_sum(query, keys, W_query, W_key, v)


def both_by_query_weight(query, keys, W_query, W_key, v):
    return torch.tanh((query @ W_query)[:, None] + keys @ W_query) @ v


@wrong(
    "A-TIED-PROJ",
    ADDITIVE,
    thinks="One projection serves query and keys alike.",
    why="Then asking and answering are the same thing, and the widths must agree. Two matrices are "
    "given: one reads the decoder's state, the other the annotations.",
    section="soft-search",
    variants=(both_by_query_weight,),
)
def one_projection_for_both(query, keys, W_query, W_key, v):
    return torch.tanh((query @ W_key)[:, None] + keys @ W_key) @ v


@wrong(
    "C-SWAPPED-PROJ",
    ADDITIVE,
    thinks="Which matrix projects which makes no difference.",
    why="W_query is (e a) and W_key is (d a). If e ≠ d the swap is an error; if e = d it runs, and "
    "each matrix reads what it was not trained on.",
    section="soft-search",
)
def swapped_projections(query, keys, W_query, W_key, v):
    return torch.tanh((query @ W_key)[:, None] + keys @ W_query) @ v


@wrong(
    "C-TANH-EACH",
    ADDITIVE,
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


@wrong(
    "C-TANH-HALF",
    ADDITIVE,
    thinks="The tanh belongs to one of the two projections.",
    why="Whichever you choose, what the query brings is added outside the bend: the same number "
    "for every key. The tanh goes around the sum.",
    section="linear-score",
    variants=(tanh_of_the_query_only,),
)
def tanh_of_the_keys_only(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (one + torch.tanh(two)) @ v


@wrong(
    "C-TANH-LAST",
    ADDITIVE,
    thinks="The tanh squeezes the finished score.",
    why="Then no key can ever score above 1, and inside everything is linear. Each hidden unit "
    "bends by itself, before v weighs them.",
    section="soft-search",
)
def tanh_of_the_additive_score(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh((one + two) @ v)


@wrong(
    "C-PRODUCT",
    ADDITIVE,
    thinks="Query and key meet by multiplication.",
    why="That is how the dot and the general score do it. This one adds the two projections, hence "
    "its name.",
    section="soft-search",
)
def product_of_projections(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one * two) @ v


@wrong(
    "C-DIFFERENCE",
    ADDITIVE,
    thinks="The score compares, so the projections are subtracted.",
    why="With weights of your own it would be as good, since a sign can be learned. With the given "
    "ones it is another score: the formula adds.",
    section="soft-search",
    variants=(
        lambda query, keys, W_query, W_key, v: (
            torch.tanh(keys @ W_key - (query @ W_query)[:, None]) @ v
        ),
    ),
)
def difference_of_projections(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one - two) @ v


@wrong(
    "C-NO-V",
    ADDITIVE,
    thinks="The hidden units are summed up, and that is the score.",
    why="Then every unit counts the same and v is never read. v learns which units matter and "
    "which speak against a key.",
    section="soft-search",
)
def additive_without_v(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one + two).sum(-1)


@wrong(
    "C-SCALED",
    ADDITIVE,
    thinks="The score is divided by the root of the alignment width.",
    why="Scaling belongs to the dot product of the next chapter. Here the tanh keeps each unit "
    "within −1 … 1, and v sets the size.",
    section="soft-search",
)
def additive_scaled(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one + two) @ v / math.sqrt(len(v))


@wrong(
    "C-QUERY-MEAN",
    ADDITIVE,
    thinks="One query stands for the batch, so I average over the sentences.",
    why="Each sentence asks its own question. With one sentence your answer is right; with more, "
    "they all ask the same.",
    section="soft-search",
)
def mean_query(query, keys, W_query, W_key, v):
    one, two = projected(query.mean(0, keepdim=True), keys, W_query, W_key)
    return torch.tanh(one + two) @ v


@wrong(
    "C-SCORES-ARE-WEIGHTS",
    ADDITIVE,
    thinks="The alignment model ends with a softmax.",
    why="It ends with scores, any numbers. Making shares of them is the next step, `attend`, which "
    "also has to know the mask.",
    section="soft-search",
)
def softmax_of_additive(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.softmax(torch.tanh(one + two) @ v, -1)


@wrong(
    "C-SQUEEZE",
    ADDITIVE,
    thinks="`squeeze()` drops the last axis.",
    why="It drops all axes of length 1. With a batch of one sentence, or a sentence of one word, "
    "b or k is gone too. Name the axis.",
    section="score-family",
)
def additive_squeezed(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return (torch.tanh(one + two) @ v[:, None]).squeeze()


@wrong(
    "C-DETACHED-KEYS",
    ADDITIVE,
    thinks="The projected keys are computed once a sentence, so they can be detached.",
    why="Computing them once is a good idea, cutting the graph is not: no gradient reaches keys "
    "and W_key, and the encoder never learns to be found.",
    section="score-family",
)
def detached_projected_keys(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    return torch.tanh(one + two.detach()) @ v


@wrong(
    "C-NAIVE-TANH",
    ADDITIVE,
    thinks="I write tanh by its formula, with four exponentials.",
    why="For large sums both exponentials are infinite, and infinity over infinity is NaN. The "
    "ready-made tanh goes to 1 there.",
    section="soft-search",
)
def additive_with_naive_tanh(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    x = one + two
    return ((x.exp() - (-x).exp()) / (x.exp() + (-x).exp())) @ v


@wrong(
    "C-INPLACE-GRAPH",
    ADDITIVE,
    thinks="Editing a tensor that I made myself can do no harm.",
    why="The caller sees none of it, but autograd does: tanh needs its own result for the "
    "gradient, and finds other numbers in it. Make a new tensor instead of `*=`.",
    section="soft-search",
)
def additive_multiplies_in_place(query, keys, W_query, W_key, v):
    one, two = projected(query, keys, W_query, W_key)
    hidden = torch.tanh(one + two)
    hidden *= v
    return hidden.sum(-1)


@wrong(
    "C-FLOAT32",
    ADDITIVE,
    thinks="float32 is enough for any score.",
    why="Perhaps, but the inputs came as float64, and the result has to keep their dtype and all "
    "their digits.",
    section="soft-search",
)
def additive_in_float32(query, keys, W_query, W_key, v):
    one, two = projected(query.float(), keys.float(), W_query.float(), W_key.float())
    return torch.tanh(one + two) @ v.float()


# --- attend -------------------------------------------------------------------------------------

ATTEND = "attend"


def softmax_over_sentences_unmasked_later(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = torch.softmax(scores, 0)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return average(weights, values), weights


@wrong(
    "A-SOFTMAX-QUERIES",
    ATTEND,
    thinks="The softmax runs over axis 0.",
    why="Axis 0 are the sentences of the batch: they now compete with each other for every place. "
    "A sentence shares out its weight among its own keys.",
    section="additive-breaks",
    variants=(softmax_over_sentences_unmasked_later,),
)
def softmax_over_sentences(scores, values, mask=None):
    weights = masked_softmax(scores, mask, dim=0)
    return average(weights, values), weights


@wrong(
    "D-SOFTMAX-ALL",
    ATTEND,
    thinks="All weights of the batch together sum to one.",
    why="Each sentence is a competition of its own: every row sums to one. With a batch of one "
    "sentence the two are the same, which hides it.",
    section="soft-search",
)
def softmax_over_the_batch(scores, values, mask=None):
    flat = masked_softmax(scores.flatten(), None if mask is None else mask.flatten())
    weights = flat.reshape(scores.shape)
    return average(weights, values), weights


@wrong(
    "A-NO-MASK",
    ATTEND,
    thinks="Padding is harmless, so the mask can be left out.",
    why="A padded place has a score like any other, and the softmax gives it a share. The longer "
    "the longest sentence of the batch, the less is left for the real words.",
    section="padding-in-softmax",
)
def no_mask(scores, values, mask=None):
    return finished(scores, values, None)


@wrong(
    "M-POLARITY",
    ATTEND,
    thinks="True in the mask means: this is padding.",
    why="In some libraries it does. Here True means that the key may be attended to. Your weights "
    "go exactly where there is nothing to read.",
    section="padding-in-softmax",
)
def opposite_mask(scores, values, mask=None):
    return finished(scores, values, None if mask is None else ~mask)


@wrong(
    "M-AFTER-SOFTMAX",
    ATTEND,
    thinks="Multiplying the weights by the mask after the softmax hides the padding.",
    why="The padding has already taken its share, so the rest sums to less than one. It must be "
    "out before the sharing.",
    section="padding-in-softmax",
)
def mask_after_softmax(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
    return average(weights, values), weights


def renormalized_with_clamp(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    return average(weights, values), weights


def renormalized_plainly(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True)
    return average(weights, values), weights


@wrong(
    "M-AFTER-RENORMALIZED",
    ATTEND,
    thinks="After the softmax I can mask the weights and divide by their new sum.",
    why="On paper that is the same. But a hidden key with a high score presses all visible weights "
    "to zero first, and 0/0 cannot bring them back.",
    section="padding-in-softmax",
    variants=(renormalized_with_clamp, renormalized_plainly),
)
def renormalized_after_softmax(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights * mask
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-9)
    return average(weights, values), weights


@wrong(
    "M-DEAD-ROW",
    ATTEND,
    thinks="Filling hidden scores with −∞ settles every case.",
    why="If all keys of a row are hidden, the row is −∞ only, and its softmax is 0/0: NaN, which "
    "spreads through the model. Such a row must give zeros.",
    section="padding-in-softmax",
)
def nan_on_dead_rows(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1)
    return average(weights, values), weights


@wrong(
    "M-DEAD-ROW-UNIFORM",
    ATTEND,
    thinks="A very low fill hides a key in every case.",
    why="Not if all keys of a row are hidden: then all are equally low, and the softmax shares the "
    "weight evenly among what is forbidden. Such a row must give zeros.",
    section="padding-in-softmax",
)
def uniform_on_dead_rows(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    return average(weights, values), weights


@wrong(
    "M-DEAD-ROW-GRADIENT",
    ATTEND,
    thinks="Replacing NaN by 0 at the end repairs a row with nothing to attend to.",
    why="It repairs the values. The NaN inside is still there, and on the way back it turns the "
    "gradients into NaN. Keep it from arising.",
    section="padding-in-softmax",
)
def nan_gradients_on_dead_rows(scores, values, mask=None):
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        scores = scores + bias
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return average(weights, values), weights


@wrong(
    "C-DEAD-NEIGHBOR",
    ATTEND,
    thinks="If a sentence has nothing to attend to, there is nothing to compute.",
    why="Not for that sentence. But its neighbors in the batch have words, and you return zeros "
    "for them too. Rows do not know of each other.",
    section="padding-in-softmax",
)
def one_dead_row_empties_the_batch(scores, values, mask=None):
    context, weights = finished(scores, values, mask)
    if mask is not None and not mask.any(-1).all():
        return context * 0, weights * 0
    return context, weights


@wrong(
    "M-ADD-BOOL",
    ATTEND,
    thinks="Adding the mask to the scores hides the padding.",
    why="True counts as 1 and False as 0, so real words get 1 more and nothing is hidden. A mask "
    "that is added would have to hold 0 and −∞.",
    section="padding-in-softmax",
)
def adds_boolean_mask(scores, values, mask=None):
    return finished(scores if mask is None else scores + mask, values, None)


@wrong(
    "M-INF-TIMES-ZERO",
    ATTEND,
    thinks="(1 − mask) · −∞ is 0 where the mask is 1.",
    why="0 · ∞ is NaN in floating point, so the scores of all real words are destroyed. Choose "
    "between two numbers instead of multiplying.",
    section="padding-in-softmax",
)
def infinity_times_zero(scores, values, mask=None):
    if mask is not None:
        scores = scores + (1 - mask.to(scores.dtype)) * -torch.inf
    return finished(scores, values, None)


def scores_times_mask(scores, values, mask=None):
    return finished(scores if mask is None else scores * mask, values, None)


@wrong(
    "M-FILL-ZERO",
    ATTEND,
    thinks="A hidden key gets score 0.",
    why="Score 0 is an ordinary score: exp(0) = 1, more than any negative score gets. To vanish, a "
    "score has to go all the way down.",
    section="padding-in-softmax",
    variants=(scores_times_mask,),
)
def fills_with_zero(scores, values, mask=None):
    return finished(scores if mask is None else scores.masked_fill(~mask, 0), values, None)


def small_fill_then_zeros(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    weights = torch.softmax(scores.masked_fill(~mask, -1e4), -1) * mask
    return average(weights, values), weights


def ten_thousand_subtracted(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    weights = torch.softmax(scores - 1e4 * ~mask, -1)
    weights = weights.masked_fill(~mask & ~mask.any(-1, keepdim=True), 0)
    return average(weights, values), weights


@wrong(
    "M-SMALL-FILL",
    ATTEND,
    thinks="−10,000 is as good as −∞.",
    why="Only while every real score lies above it. Where real scores reach −20,000, the hidden "
    "keys win. Use the lowest number the dtype has.",
    section="padding-in-softmax",
    variants=(small_fill_then_zeros, ten_thousand_subtracted),
)
def fill_that_is_not_low_enough(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    weights = torch.softmax(scores.masked_fill(~mask, -1e4), -1)
    weights = weights.masked_fill(~mask & ~mask.any(-1, keepdim=True), 0)
    return average(weights, values), weights


@wrong(
    "M-VALUES",
    ATTEND,
    thinks="Setting the hidden values to zero hides their keys.",
    why="A zero value still takes part with its weight and pulls the average toward zero. The "
    "weights themselves must leave it out.",
    section="padding-in-softmax",
)
def masks_the_values(scores, values, mask=None):
    weights = torch.softmax(scores, -1)
    if mask is not None:
        values = values * mask[:, :, None]
    return average(weights, values), weights


@wrong(
    "M-MAPS-UNMASKED",
    ATTEND,
    thinks="The mask matters for the context; the weights are only for looking at.",
    why="Your context respects the mask, but the weights you return are computed without it. The "
    "heat map shows attention that never happened.",
    section="padding-in-softmax",
)
def returns_unmasked_weights(scores, values, mask=None):
    context, _ = finished(scores, values, mask)
    return context, torch.softmax(scores, -1)


@wrong(
    "C-MASK-AS-LENGTH",
    ATTEND,
    thinks="A mask says how long a sentence is: the first so many keys are real.",
    why="Often, not always. A mask says for each key by itself whether it may be attended to, and "
    "padding may also stand in front.",
    section="padding-in-softmax",
)
def mask_as_length(scores, values, mask=None):
    if mask is not None:
        mask = torch.arange(scores.shape[1]) < mask.sum(-1, keepdim=True)
    return finished(scores, values, mask)


@wrong(
    "C-FIRST-MASK",
    ATTEND,
    thinks="All sentences of a batch have the same padding.",
    why="Each has its own row in the mask, and rows differ. You let the first one speak for all.",
    section="padding-in-softmax",
)
def first_mask_for_all(scores, values, mask=None):
    return finished(scores, values, None if mask is None else mask[:1].expand_as(mask))


def masks_in_place_by_method(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return finished(scores, values, mask)


@wrong(
    "M-INPLACE",
    ATTEND,
    thinks="Writing −∞ into the scores is the shortest way to mask them.",
    why="The scores belong to the caller, who finds them overwritten after your call. `a[…] = x` "
    "and `masked_fill_` edit the tensor itself; make a new one.",
    section="padding-in-softmax",
    variants=(masks_in_place_by_method,),
)
def masks_in_place(scores, values, mask=None):
    if mask is None:
        return finished(scores, values, None)
    scores[~mask] = -torch.inf
    weights = torch.where(mask.any(-1, keepdim=True), scores, 0).softmax(-1)
    weights = weights.masked_fill(~mask, 0)
    return average(weights, values), weights


@wrong(
    "D-NAIVE-SOFTMAX",
    ATTEND,
    thinks="The formula says exp over the sum of exps, so that is what I compute.",
    why="With scores above 88, exp is infinite in float32 and the weights are NaN. `torch.softmax` "
    "is allowed here, and it is careful.",
    section="soft-search",
    variants=(
        lambda scores, values, mask=None: naive_weights(scores, values, mask, dead_rows=False),
        lambda scores, values, mask=None: naive_weights(
            scores, values, mask, dead_rows=False, tiny=1e-9
        ),
    ),
)
def naive_softmax(scores, values, mask=None):
    return naive_weights(scores, values, mask)


def naive_weights(scores, values, mask=None, dead_rows=True, tiny=0.0):
    e = scores.exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    total = e.sum(-1, keepdim=True)
    if dead_rows:
        dead = torch.zeros_like(total) > 1 if mask is None else ~mask.any(-1, keepdim=True)
        total = total.masked_fill(dead, 1)
    weights = e / (total + tiny)
    return average(weights, values), weights


@wrong(
    "D-GLOBAL-MAX",
    ATTEND,
    thinks="One shift for the whole table of scores is enough to keep exp small.",
    why="It stops overflow, but a row far below becomes all zeros after exp, and 0/0 is NaN. Each "
    "row needs its own shift.",
    section="soft-search",
)
def one_shift_for_all(scores, values, mask=None):
    alive = torch.ones(len(scores), 1, dtype=torch.bool)
    if mask is not None:
        alive = mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    e = (scores - scores.max()).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    weights = e / e.sum(-1, keepdim=True).masked_fill(~alive, 1)
    return average(weights, values), weights


@wrong(
    "D-HARD-ATTENTION",
    ATTEND,
    thinks="The search takes the annotation with the best score.",
    why="That is a hard search: picking has no slope, so no gradient says how to score better. The "
    "soft search reads a little of all.",
    section="soft-search",
)
def hard_attention(scores, values, mask=None):
    soft = masked_softmax(scores, mask)
    best = (soft == soft.amax(-1, keepdim=True)) & (soft > 0)
    weights = best.to(scores.dtype) / best.sum(-1, keepdim=True).clamp(min=1) + 0 * soft
    return average(weights, values), weights


@wrong(
    "D-NO-SOFTMAX",
    ATTEND,
    thinks="The scores themselves are the weights.",
    why="Scores may be negative and sum to anything. Between score and average, something has to "
    "turn them into shares of one.",
    section="soft-search",
)
def no_softmax(scores, values, mask=None):
    weights = scores if mask is None else scores.masked_fill(~mask, 0)
    return average(weights, values), weights.clone()


@wrong(
    "D-SCORES-AS-WEIGHTS",
    ATTEND,
    thinks="The second result is the scores.",
    why="Scores are what enters the softmax; weights are what leaves it. The context is right, but "
    "a heat map of scores has rows that sum to nothing in particular.",
    section="soft-search",
)
def returns_scores(scores, values, mask=None):
    context, _ = finished(scores, values, mask)
    return context, scores.clone()


@wrong(
    "C-SIGMOID-WEIGHTS",
    ATTEND,
    thinks="A sigmoid gives every key its weight between 0 and 1.",
    why="Then keys do not compete, and the weights of a row sum to anything. A sum is no average: "
    "its size grows with the number of keys.",
    section="soft-search",
)
def sigmoid_weights(scores, values, mask=None):
    weights = torch.sigmoid(scores)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return average(weights, values), weights


@wrong(
    "C-MEAN-CONTEXT",
    ATTEND,
    thinks="The context is the mean of the weighted values.",
    why="The weights already sum to one, so their weighted sum is the average. Dividing by the "
    "number of keys once more makes it too small.",
    section="soft-search",
)
def mean_of_weighted_values(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return (weights[:, :, None] * values).mean(1), weights


@wrong(
    "C-NOT-SUMMED",
    ATTEND,
    thinks="The context is every value times its weight.",
    why="That is one vector for each key. The context is one for the sentence: add them up over "
    "the keys.",
    section="soft-search",
)
def weighted_values(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return weights[:, :, None] * values, weights


@wrong(
    "A-BROADCAST",
    ATTEND,
    thinks="Weights and values can be multiplied as they are; torch lines them up.",
    why="(b k) and (b k v) are lined up from the right, so k meets v and b meets k. That is an "
    "error, or, if all are equal, the wrong weights. Weights need an axis for v.",
    section="additive-breaks",
)
def weights_without_new_axis(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return (weights * values).sum(1), weights


def all_pairs_over_minus_infinity(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1)
    return weights @ values, weights


@wrong(
    "C-ALL-PAIRS",
    ATTEND,
    thinks="`weights @ values` is the weighted sum of the values.",
    why="For one sentence it is. With a batch, (b k) @ (b k v) applies the weights of every "
    "sentence to the values of every other: (b b v). Keep each sentence to itself.",
    section="additive-breaks",
    variants=(
        lambda scores, values, mask=None: (
            (masked_softmax(scores, mask) @ values).squeeze(),
            masked_softmax(scores, mask),
        ),
        all_pairs_over_minus_infinity,
    ),
)
def weights_of_all_sentences(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return weights @ values, weights


@wrong(
    "C-KEEPDIM",
    ATTEND,
    thinks="An axis of length 1 in the context does not matter.",
    why="It does as soon as the context is joined to a word's vector (b m): (b 1 v) does not fit, "
    "or broadcasts into something else. The context is (b v).",
    section="soft-search",
)
def context_with_an_axis_left(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return weights[:, None] @ values, weights


@wrong(
    "C-SQUEEZE",
    ATTEND,
    thinks="`squeeze()` removes the axis that the matrix product needed.",
    why="It removes every axis of length 1: with one sentence in the batch, or values of width 1, "
    "also one that belongs there. Name the axis.",
    section="soft-search",
)
def context_squeezed(scores, values, mask=None):
    weights = masked_softmax(scores, mask)
    return (weights[:, None] @ values).squeeze(), weights


@wrong(
    "D-SWAPPED-RESULTS",
    ATTEND,
    thinks="The function returns the weights and the context.",
    why="Both are right, in the other order: first the context, then the weights.",
    section="soft-search",
)
def swapped_results(scores, values, mask=None):
    context, weights = finished(scores, values, mask)
    return weights, context


@wrong(
    "D-OUTPUT-ONLY",
    ATTEND,
    thinks="Only the context is needed.",
    why="The decoder needs no more. You do: without the weights nobody can see where the model "
    "looked. Return the pair (context, weights).",
    section="alignments",
)
def context_only(scores, values, mask=None):
    return finished(scores, values, mask)[0]


@wrong(
    "D-DETACHED-WEIGHTS",
    ATTEND,
    thinks="The weights are a by-product; only values need a gradient.",
    why="Then the scores never learn: the gradient that says 'look elsewhere' flows through the "
    "weights. Something like `.detach()` cuts it.",
    section="soft-search",
)
def detached_weights(scores, values, mask=None):
    weights = masked_softmax(scores, mask).detach()
    return average(weights, values), weights


@wrong(
    "C-DETACHED-VALUES",
    ATTEND,
    thinks="Values are only read, so they need no gradient.",
    why="The encoder learns through them what to hand over. The numbers are right, but its "
    "annotations would only be trained to be found, not to be useful.",
    section="soft-search",
)
def detached_values(scores, values, mask=None):
    return finished(scores, values.detach(), mask)


@wrong(
    "C-EPSILON",
    ATTEND,
    thinks="A small number added to the sum makes the division safe and changes nothing.",
    why="It changes the sixth digit: rows then sum to a little less than one, which float64 shows. "
    "After subtracting the row's maximum the sum is at least 1, so it is safe anyway.",
    section="soft-search",
)
def epsilon_in_the_sum(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    if mask is not None:
        e = e.masked_fill(~mask, 0)
    weights = e / (e.sum(-1, keepdim=True) + 1e-6)
    return average(weights, values), weights


@wrong(
    "C-DROPOUT",
    ATTEND,
    thinks="Attention includes dropout, so some weights are set to zero at random.",
    why="Not this function: nothing here needs chance, and weights that are returned after dropout "
    "make heat maps lie.",
    section="alignments",
)
def dropped_weights(scores, values, mask=None):
    weights = torch.dropout(masked_softmax(scores, mask), 0.1, True)
    return average(weights, values), weights


@wrong(
    "C-FLOAT32",
    ATTEND,
    thinks="Weights between 0 and 1 do not need more than float32.",
    why="The inputs came as float64 and the results leave as float32. The caller loses half of the "
    "digits. Keep the dtype that came.",
    section="soft-search",
)
def attend_in_float32(scores, values, mask=None):
    return finished(scores.float(), values.float(), mask)


@wrong(
    "C-AFTER-SOFTMAX-SENTENCES",
    ATTEND,
    thinks="First the softmax over axis 0, then the mask.",
    why="Two things at once: axis 0 are the sentences, which should not compete with each other; "
    "and a mask after the softmax comes too late.",
    section="additive-breaks",
)
def softmax_over_sentences_then_mask(scores, values, mask=None):
    weights = torch.softmax(scores, 0)
    if mask is not None:
        weights = weights * mask
    return average(weights, values), weights


# --- AdditiveAttention --------------------------------------------------------------------------
# Every class below could be handed in under the right name.

MODULE = "AdditiveAttention"


class Layers(nn.Module):
    """The right layers, and right results as long as no piece is replaced."""

    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))

    def scores(self, query, keys):
        return self.v(self.hidden(query, keys))[..., 0]

    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys, mask)


class TanhOfEach(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query))[:, None] + torch.tanh(self.W_key(keys))


@wrong(
    "A-NO-TANH",
    MODULE,
    thinks="Two linear layers and a sum are the alignment model; the tanh is decoration.",
    why="Without a bend after the sum, the query adds the same number to the score of every key. "
    "The softmax ignores it: your weights never depend on the query.",
    section="linear-score",
    variants=(TanhOfEach,),
)
class NoTanh(Layers):
    def hidden(self, query, keys):
        return self.W_query(query)[:, None] + self.W_key(keys)


@wrong(
    "A-RELU",
    MODULE,
    thinks="A hidden layer has ReLU units.",
    why="It sees the query, and could be trained. But it is not the chapter's alignment model: "
    "with the same weights it gives other results.",
    section="soft-search",
)
class Relu(Layers):
    def hidden(self, query, keys):
        return torch.relu(self.W_query(query)[:, None] + self.W_key(keys))


@wrong(
    "C-SIGMOID",
    MODULE,
    thinks="A hidden layer has sigmoid units.",
    why="A sigmoid runs from 0 to 1, the tanh of the formula from −1 to 1 and steeper. With the "
    "same weights the results differ.",
    section="soft-search",
)
class Sigmoid(Layers):
    def hidden(self, query, keys):
        return torch.sigmoid(self.W_query(query)[:, None] + self.W_key(keys))


def with_biases(*names):
    class WithBiases(Layers):
        def __init__(self, query_dim, key_dim, attention_dim):
            super().__init__(query_dim, key_dim, attention_dim)
            for name in names:
                layer = getattr(self, name)
                setattr(self, name, nn.Linear(layer.in_features, layer.out_features))

    return WithBiases


@wrong(
    "A-BIAS",
    MODULE,
    thinks="`nn.Linear` has a bias, and it does no harm.",
    why="It does little harm, and it is not in the formula: with copied weights your results "
    "differ. The one of `v` cancels in the softmax and can never learn.",
    section="soft-search",
    variants=(
        with_biases("W_query", "W_key"),
        with_biases("W_query"),
        with_biases("W_key"),
        with_biases("v"),
    ),
)
class WithAllBiases(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim)
        self.W_key = nn.Linear(key_dim, attention_dim)
        self.v = nn.Linear(attention_dim, 1)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))
        return finished(self.v(hidden)[..., 0], keys, mask)


class OneLayerForKeys(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_key(query)[:, None] + self.W_key(keys))
        return finished(self.v(hidden)[..., 0], keys, mask)


class BothByKeyLayer(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_key(query)[:, None] + self.W_key(keys))


class BothByQueryLayer(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query)[:, None] + self.W_query(keys))


@wrong(
    "A-TIED-PROJ",
    MODULE,
    thinks="One layer projects query and keys alike.",
    why="Then asking and being found are the same thing, and both must be equally wide. The module "
    "has two: one reads the decoder's state, one the annotations.",
    section="soft-search",
    variants=(OneLayerForKeys, BothByKeyLayer, BothByQueryLayer),
)
class OneLayerForBoth(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query)[:, None] + self.W_query(keys))
        return finished(self.v(hidden)[..., 0], keys, mask)


@wrong(
    "A-VALUE-IS-KEY",
    MODULE,
    thinks="The projected keys are the values.",
    why="The projection is there to compare. What the decoder reads are the annotations as they "
    "came: your context is as wide as the alignment model, not as a key.",
    section="soft-search",
)
class ProjectedKeysAsValues(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), self.W_key(keys), mask)


@wrong(
    "C-NAMES",
    MODULE,
    thinks="What the layers are called is up to me.",
    why="Weights are copied in by name, here and whenever a trained model is loaded: the names "
    "`W_query`, `W_key` and `v` are part of the task.",
    section="soft-search",
    variants=(
        lambda query_dim, key_dim, attention_dim: renamed(
            Layers(query_dim, key_dim, attention_dim), "W_key"
        ),
        lambda query_dim, key_dim, attention_dim: renamed(
            Layers(query_dim, key_dim, attention_dim), "v"
        ),
    ),
)
class OwnNames(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.query_layer = nn.Linear(query_dim, attention_dim, bias=False)
        self.key_layer = nn.Linear(key_dim, attention_dim, bias=False)
        self.score_layer = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.query_layer(query)[:, None] + self.key_layer(keys))
        return finished(self.score_layer(hidden)[..., 0], keys, mask)


def renamed(module, name):
    """The module with another name for one of its layers."""
    setattr(module, f"my_{name}", getattr(module, name))
    delattr(module, name)
    return module


@wrong(
    "C-BARE-PARAMETERS",
    MODULE,
    thinks="Instead of a linear layer I can hold its matrix as a parameter.",
    why="It computes the same. But `W_query` is then a matrix and has no `.weight`, so weights "
    "cannot be copied in by name. The task asks for three `nn.Linear`.",
    section="soft-search",
)
class BareParameters(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(query_dim, attention_dim))
        self.W_key = nn.Parameter(torch.randn(key_dim, attention_dim))
        self.v = nn.Parameter(torch.randn(attention_dim))

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh((query @ self.W_query)[:, None] + keys @ self.W_key)
        return finished(hidden @ self.v, keys, mask)


class LayersInForward(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.sizes = query_dim, key_dim, attention_dim

    def forward(self, query, keys, mask=None):
        layers = Layers(*self.sizes).to(query.dtype)
        return layers(query, keys, mask)


@wrong(
    "C-UNREGISTERED",
    MODULE,
    thinks="PyTorch finds my layers wherever I keep them.",
    why="It finds only those that are attributes of the module itself, set in `__init__`. Layers "
    "in a list, or made in `forward`, are no parameters: nothing trains them.",
    section="soft-search",
    variants=(LayersInForward,),
)
class LayersInAList(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        sizes = (query_dim, attention_dim), (key_dim, attention_dim), (attention_dim, 1)
        self.layers = [nn.Linear(*size, bias=False) for size in sizes]

    def forward(self, query, keys, mask=None):
        from_query, from_keys, v = (layer.to(query.dtype) for layer in self.layers)
        hidden = torch.tanh(from_query(query)[:, None] + from_keys(keys))
        return finished(v(hidden)[..., 0], keys, mask)


@wrong(
    "C-TURNED-LAYERS",
    MODULE,
    thinks="`nn.Linear` takes first what comes out, then what goes in.",
    why="It takes in_features first, out_features second, and stores a weight of shape (out in). "
    "That its weight is turned around is its own affair.",
    section="soft-search",
)
class TurnedLayers(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(attention_dim, query_dim, bias=False)
        self.W_key = nn.Linear(attention_dim, key_dim, bias=False)
        self.v = nn.Linear(1, attention_dim, bias=False)

    def forward(self, query, keys, mask=None):
        one, two = query @ self.W_query.weight, keys @ self.W_key.weight
        return finished((torch.tanh(one[:, None] + two) @ self.v.weight)[..., 0], keys, mask)


@wrong(
    "A-BROADCAST",
    MODULE,
    thinks="The two projections can be added as they are; torch lines them up.",
    why="(b a) and (b k a) are lined up from the right, so b meets k. That is an error, or, if "
    "b = k, every key is scored with the query of another sentence.",
    section="additive-breaks",
)
class NoNewAxis(Layers):
    def hidden(self, query, keys):
        return torch.tanh(self.W_query(query) + self.W_key(keys))


@wrong(
    "A-SOFTMAX-QUERIES",
    MODULE,
    thinks="The softmax runs over the first axis.",
    why="That axis are the sentences of the batch: they compete with each other for each place, "
    "and rows do not sum to one. The keys are on the last axis.",
    section="additive-breaks",
)
class SoftmaxOverSentences(Layers):
    def forward(self, query, keys, mask=None):
        weights = masked_softmax(self.scores(query, keys), mask, dim=0)
        return average(weights, keys), weights


@wrong(
    "C-SOFTMAX-LAST-OF-THREE",
    MODULE,
    thinks="`v` leaves scores (b k 1), and softmax over the last axis normalizes them.",
    why="The last axis then has length 1, and a lone number always gets weight 1: every key counts "
    "fully. Remove that axis before the softmax.",
    section="soft-search",
)
class SoftmaxOverAnAxisOfOne(Layers):
    def forward(self, query, keys, mask=None):
        mask = None if mask is None else mask[..., None]
        weights = masked_softmax(self.v(self.hidden(query, keys)), mask)[..., 0]
        return average(weights, keys), weights


@wrong(
    "A-NO-MASK",
    MODULE,
    thinks="The module takes a mask; using it can wait.",
    why="Your weights are the same with and without it. Padding gets its share, and a translation "
    "depends on how long the other sentences of the batch are.",
    section="padding-in-softmax",
)
class NoMask(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys, None)


@wrong(
    "M-POLARITY",
    MODULE,
    thinks="The mask is True where there is padding.",
    why="Here True means: may be attended to. Your module reads the padding and skips the words.",
    section="padding-in-softmax",
)
class OppositeMask(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys, None if mask is None else ~mask)


@wrong(
    "M-AFTER-SOFTMAX",
    MODULE,
    thinks="The mask sets weights to zero after the softmax.",
    why="Too late: the hidden keys have taken their share, and what is left sums to less than one. "
    "Hide them before.",
    section="padding-in-softmax",
)
class MaskAfterSoftmax(Layers):
    def forward(self, query, keys, mask=None):
        weights = torch.softmax(self.scores(query, keys), -1)
        weights = weights if mask is None else weights * mask
        return average(weights, keys), weights


@wrong(
    "M-DEAD-ROW",
    MODULE,
    thinks="With −∞ for every hidden key the mask is done.",
    why="A sentence in which everything is hidden then gives 0/0, which is NaN. Its weights and "
    "its context have to be 0.",
    section="padding-in-softmax",
)
class NanOnDeadRows(Layers):
    def forward(self, query, keys, mask=None):
        scores = self.scores(query, keys)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        weights = torch.softmax(scores, -1)
        return average(weights, keys), weights


@wrong(
    "M-DEAD-ROW-UNIFORM",
    MODULE,
    thinks="With −1e9 for every hidden key the mask is done.",
    why="A sentence in which everything is hidden then has equal scores, and the softmax shares "
    "the weight evenly among the hidden. Its weights have to be 0.",
    section="padding-in-softmax",
)
class UniformOnDeadRows(Layers):
    def forward(self, query, keys, mask=None):
        scores = self.scores(query, keys)
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        weights = torch.softmax(scores, -1)
        return average(weights, keys), weights


@wrong(
    "D-NAIVE-SOFTMAX",
    MODULE,
    thinks="tanh keeps everything small, so exp cannot overflow.",
    why="It keeps each unit small. But v is learned and may be large, and so may be the score: exp "
    "of 89 is infinite in float32, and infinity over infinity NaN.",
    section="soft-search",
)
class NaiveSoftmax(Layers):
    def forward(self, query, keys, mask=None):
        return naive_weights(self.scores(query, keys), keys, mask)


@wrong(
    "C-DROPOUT",
    MODULE,
    thinks="A module that is trained needs dropout on its weights.",
    why="This one has none. In training mode some of your weights vanish at random and the others "
    "grow; rows no longer sum to one.",
    section="soft-search",
)
class WithDropout(Layers):
    def forward(self, query, keys, mask=None):
        weights = masked_softmax(self.scores(query, keys), mask)
        weights = torch.dropout(weights, 0.1, self.training)
        return average(weights, keys), weights


@wrong(
    "C-STALE-KEYS",
    MODULE,
    thinks="The keys' projection does not change, so I keep it from the first call.",
    why="Within one sentence it does not. The next sentence brings other keys, and your module "
    "still scores the old ones: right on the first call only.",
    section="score-family",
)
class KeepsTheFirstKeys(Layers):
    kept = None

    def hidden(self, query, keys):
        if self.kept is None or self.kept.shape[:2] != keys.shape[:2]:
            self.kept = self.W_key(keys)
        return torch.tanh(self.W_query(query)[:, None] + self.kept)


@wrong(
    "C-DETACHED-VALUES",
    MODULE,
    thinks="The keys are averaged only; the gradient through the scores is enough.",
    why="The encoder then learns to be found, and not what to hand over. The numbers are right, "
    "but half of the keys' gradient is cut.",
    section="soft-search",
)
class DetachedValues(Layers):
    def forward(self, query, keys, mask=None):
        return finished(self.scores(query, keys), keys.detach(), mask)


@wrong(
    "C-SQUEEZE",
    MODULE,
    thinks="`squeeze()` removes the axis of length 1 that `v` leaves.",
    why="It removes all of them: a batch of one sentence or a sentence of one word loses an axis "
    "that belongs there. Say which axis.",
    section="score-family",
)
class SqueezedScores(Layers):
    def scores(self, query, keys):
        return self.v(self.hidden(query, keys)).squeeze()


@wrong(
    "D-SWAPPED-RESULTS",
    MODULE,
    thinks="`forward` returns weights, then context.",
    why="Both are right, in the other order: the context comes first.",
    section="soft-search",
)
class SwappedResults(Layers):
    def forward(self, query, keys, mask=None):
        context, weights = super().forward(query, keys, mask)
        return weights, context


@wrong(
    "D-OUTPUT-ONLY",
    MODULE,
    thinks="The decoder needs the context, so that is all I return.",
    why="The weights are the other half of the answer: they show where the model looked. Return "
    "the pair (context, weights).",
    section="alignments",
)
class ContextOnly(Layers):
    def forward(self, query, keys, mask=None):
        return super().forward(query, keys, mask)[0]


@wrong(
    "C-NO-TANH-NO-MASK",
    MODULE,
    thinks="Two linear layers, a sum, a softmax: that is all there is to it.",
    why="Two things are missing: the bend, without which the weights ignore the query; and the "
    "mask, without which padding gets a share.",
    section="additive-breaks",
)
class NoTanhAndNoMask(Layers):
    def forward(self, query, keys, mask=None):
        scores = self.v(self.W_query(query)[:, None] + self.W_key(keys))[..., 0]
        return finished(scores, keys, None)


@wrong(
    "C-FLOAT32",
    MODULE,
    thinks="Inside the module everything may be float32.",
    why="A module moved to float64 has float64 weights and gets float64 keys; its results have to "
    "be float64, with all their digits.",
    section="soft-search",
)
class Float32Inside(Layers):
    def forward(self, query, keys, mask=None):
        context, weights = super().forward(query, keys, mask)
        return context.float(), weights.float()
