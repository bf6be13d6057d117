"""What students misunderstand in every score: the query's axis, what is returned, the bend."""

import math

import torch

from attncourse.checks.task import Task
from attncourse.tasks import as_is, thoughts

SEARCH, FAMILY = {"section": "soft-search"}, {"section": "score-family"}


def of_every_score(task: Task) -> None:
    """Faults of the steps `line_up` (query -> b 1 width) and `result` (scores -> scores)."""
    task.fault(
        "A-BROADCAST",
        "The query fits the keys as it is; torch adds the axis that it lacks.",
        "Torch adds it on the left, where b should be: the sentences of the query meet the keys. "
        "It raises an error, or, if b = k, silently compares key 2 of every sentence with the "
        "query of sentence 2.",
        section="additive-breaks",
        line_up=as_is,
    )
    task.fault(
        "C-FIRST-QUERY",
        "There is one query for the whole batch.",
        "Each sentence brings its own query, a row of the query's table. You compare all keys with "
        "the query of one sentence.",
        **FAMILY,
        line_up=(lambda query: query[:1, None], lambda query: query[-1:, None]),
    )
    task.fault(
        "C-QUERY-MEAN",
        "One query stands for the batch, so I average over the sentences.",
        "Each sentence asks its own question. With one sentence your answer is right; with more, "
        "they all ask the same.",
        **FAMILY,
        line_up=(
            lambda query: query.mean(0, keepdim=True)[:, None],
            lambda query: query.sum(0, keepdim=True)[:, None],
        ),
    )
    task.fault(
        "C-DETACHED-QUERY",
        "The query is the decoder's business, so no gradient needs to go back to it.",
        "It does: by that gradient the decoder learns to ask. Your scores are right, but its state "
        "would never be trained to look in the right place.",
        **SEARCH,
        line_up=lambda query: query[:, None].detach(),
    )
    task.fault(
        "C-SCORES-ARE-WEIGHTS",
        "A score function ends with a softmax and returns numbers that sum to one.",
        "Those are weights, and they come one step later. Scores may be any numbers; `attend`, "
        "which also knows the mask, turns them into shares, and doing it twice flattens them.",
        **SEARCH,
        result=(lambda scores: scores.softmax(-1), lambda scores: scores.softmax(0)),
    )
    task.fault(
        "C-KEEPDIM",
        "An axis of length 1 more or less makes no difference.",
        "To a person it does not; to broadcasting it does. With (b k 1) the next step would share "
        "weights along the wrong axis. Scores are (b k).",
        **FAMILY,
        result=(lambda scores: scores[..., None], lambda scores: scores[:, None]),
    )
    task.fault(
        "C-SQUEEZE",
        "`squeeze()` removes the axis that I had added.",
        "It removes every axis of length 1. With one sentence in the batch, or one word in the "
        "sentence, it takes an axis that belongs there. Say which axis you mean.",
        **FAMILY,
        result=torch.squeeze,
    )
    task.fault(
        "C-KEYS-SUMMED",
        "The keys of a sentence can be summed before they are compared.",
        "A score is asked for each key. Yours writes the same number everywhere: what all keys of "
        "the sentence get together.",
        **SEARCH,
        result=lambda scores: scores.sum(1, keepdim=True).expand_as(scores),
    )
    task.fault(thoughts.DETACHED, **SEARCH, result=lambda scores: scores.detach())

    def float32(self, *inputs):
        return task.composed.__call__(self, *(x.float() for x in inputs))

    def float32_inside(self, *inputs):
        return float32(self, *inputs).to(inputs[0].dtype)

    task.fault(thoughts.FLOAT32, **FAMILY, __call__=float32)
    task.fault(
        "C-FLOAT32-INSIDE",
        "Casting to float32 inside and back at the end loses nothing.",
        "The dtype is right again, the digits are not: of the sixteen that came, seven are left. "
        "Compute in the dtype of the inputs.",
        **FAMILY,
        __call__=float32_inside,
    )


def of_products(task: Task) -> None:
    """Faults of the steps `compare` (query, keys -> b k width) and `add` (products -> b k)."""
    task.fault(
        "C-ALL-PAIRS",
        "A matrix product of the queries with the turned keys gives all scores.",
        "It gives more than all: every query of the batch with the keys of every sentence, "
        "(b b k). Sentences have nothing to do with each other, and each has one query.",
        **FAMILY,
        compare=lambda query, keys: query[None, :, 0, None] * keys[:, None],
    )
    task.fault(
        "C-MEAN",
        "A dot product is the average of the products.",
        "It is their sum. An average divides by the width as well, so every score comes out too "
        "small, and the wider the vectors the more so.",
        **FAMILY,
        add=lambda products: products.mean(-1),
    )
    task.fault(
        "C-NOT-SUMMED",
        "A score is the product of query and key, entry by entry.",
        "That leaves as many numbers for each key as it is wide. A score is one number: how well "
        "the key fits as a whole.",
        **FAMILY,
        add=as_is,
    )
    task.fault(
        "C-SUMMED-OVER-KEYS",
        "The products are summed over axis 1.",
        "Axis 1 are the keys: what is left says how well each feature fits, over all keys. A score "
        "belongs to one key, and the sum runs over its features.",
        **FAMILY,
        add=lambda products: products.sum(1),
    )
    task.fault(
        "D-COSINE",
        "Similarity means the cosine of the angle between two vectors.",
        "The dot product keeps the lengths: a long key may count more. The cosine divides them "
        "out.",
        **FAMILY,
        compare=lambda query, keys: (
            query / query.norm(dim=-1, keepdim=True) * keys / keys.norm(dim=-1, keepdim=True)
        ),
    )
    task.fault(
        "D-DISTANCE",
        "The score is how far apart query and key are.",
        "A distance is small when two vectors agree, so the worst key would get the most weight. "
        "A score grows with agreement.",
        **FAMILY,
        compare=lambda query, keys: (query - keys).square(),
        add=(lambda squares: squares.sum(-1).sqrt(), ...),
    )
    task.fault(
        "D-RESHAPE-KEY",
        "Reshaping the keys from (b k d) to (b d k) swaps two axes.",
        "A reshape cuts the same list of numbers into other rows; it never moves a number. The "
        "shape fits, the content is scrambled.",
        **FAMILY,
        compare=lambda query, keys: (
            query * keys.reshape(keys.shape[0], keys.shape[2], keys.shape[1]).mT
        ),
    )
    task.fault(
        "C-INPLACE",
        "Multiplying the keys in place saves memory.",
        "The keys belong to the caller, who needs them again for the next word: after your call "
        "they are scaled by the query. `a *= b` edits the tensor itself.",
        **FAMILY,
        compare=lambda query, keys: keys.mul_(query),
    )


def naive_tanh(x):
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def weighed_in_place(hidden, v):
    hidden *= v
    return hidden.sum(-1)


def of_hidden_layers(task: Task) -> None:
    """Faults of the steps `bend` (b k a) and `weigh` (hidden, v -> b k)."""
    task.fault(
        "A-NO-TANH",
        "A linear layer on query and key is enough; the tanh is decoration.",
        "Without a bend the query adds the same number to the score of every key, and the softmax "
        "ignores it: all queries get the same weights.",
        section="linear-score",
        bend=as_is,
    )
    task.fault(
        "A-RELU",
        "ReLU is the modern tanh: any bend will do.",
        "It does see the query, and it could be learned with. But it is another score: the one "
        "asked for squeezes to −1 … 1, and weights trained with it fit no other.",
        bend=torch.relu,
    )
    task.fault(
        "C-SIGMOID",
        "The bend is a sigmoid.",
        "It looks like tanh, but runs from 0 to 1 and is less steep. A unit of tanh can also speak "
        "against a key.",
        **SEARCH,
        bend=torch.sigmoid,
    )
    task.fault(
        "C-TANH-LAST",
        "The tanh is applied to the finished score.",
        "Then no score can leave −1 … 1, and inside everything is linear. The bend belongs to each "
        "hidden unit, before v weighs them.",
        **SEARCH,
        bend=as_is,
        weigh=lambda hidden, v: (hidden @ v).tanh(),
    )
    task.fault(
        "C-TANH-TWICE",
        "A tanh for the hidden units, and one more for the score.",
        "The second squeezes all scores to −1 … 1, so no key can ever get much more weight than "
        "another. Scores may be any numbers.",
        **SEARCH,
        weigh=lambda hidden, v: (hidden @ v).tanh(),
    )
    task.fault(
        "C-NAIVE-TANH",
        "tanh is (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ), so that is what I compute.",
        "On paper yes. From x = 89 on, exp is infinite in float32, and infinity over infinity is "
        "NaN. A ready-made tanh knows its limit is 1.",
        **SEARCH,
        bend=naive_tanh,
    )
    task.fault(
        "C-NO-V",
        "The score is the sum of the hidden units.",
        "Your scores never read v. It says how much each unit counts, and whether it speaks for or "
        "against a key.",
        **SEARCH,
        weigh=lambda hidden, v: hidden.sum(-1),
    )
    task.fault(
        "C-MEAN",
        "The weighed hidden units are averaged.",
        "They are summed: hidden · v. A mean divides by their number as well, so every score comes "
        "out too small.",
        **SEARCH,
        weigh=lambda hidden, v: (hidden * v).mean(-1),
    )
    task.fault(
        "C-NOT-SUMMED",
        "Each hidden unit is multiplied by its entry of v, and that is the score.",
        "That leaves a numbers for each key. A score is one number: their sum.",
        **SEARCH,
        weigh=torch.mul,
    )
    task.fault(
        "C-V-SHARES",
        "v holds shares, so a softmax goes over it.",
        "The softmax shares out attention among keys, one step later. v weighs the hidden units, "
        "and its numbers may be negative: a unit may speak against a key.",
        **SEARCH,
        weigh=lambda hidden, v: hidden @ v.softmax(-1),
    )
    task.fault(
        "C-SCALED",
        "The score is divided by the root of the width of the hidden layer.",
        "Scaling belongs to the dot product of the next chapter. Here the tanh keeps each unit "
        "within −1 … 1, and v sets the size.",
        **SEARCH,
        weigh=lambda hidden, v: hidden @ v / math.sqrt(len(v)),
    )
    task.fault(
        "C-FROZEN-V",
        "v is a table of numbers, not a variable, so it may be detached.",
        "The scores are right, and v gets no gradient: which unit speaks for a key, and which "
        "against it, is never learned.",
        **SEARCH,
        weigh=lambda hidden, v: hidden @ v.detach(),
    )
    task.fault(
        "C-INPLACE-GRAPH",
        "Editing a tensor that I made myself can do no harm.",
        "The caller sees none of it, but autograd does: tanh needs its own result for the "
        "gradient, and finds other numbers in it. Make a new tensor instead of `*=`.",
        **SEARCH,
        weigh=weighed_in_place,
    )
