"""What students misunderstand in every score: the query's axis, what is returned, the bend."""

import math

import torch
from torch import nn

from attncourse.checks.task import Task
from attncourse.tasks import as_is

SEARCH, FAMILY = {"section": "soft-search"}, {"section": "score-family"}


def in_a_layer(x, W):
    """The product of a layer that holds a copy of W, and is thrown away."""
    layer = nn.Linear(*W.shape, bias=False, dtype=x.dtype)
    layer.weight.data = W.detach().T.clone()
    return layer(x)


def repeated(query, keys):
    b, k, _ = keys.shape
    return query[:, 0].repeat(k, 1).reshape(b, k, -1)


def of_every_score(task: Task) -> None:
    """Faults of the steps `line_up` (query -> b 1 width), `for_every_key` (-> b k width or b 1
    width) and `result` (scores -> scores).
    """
    task.fault("C-REPEAT", section="additive-breaks", for_every_key=repeated)
    task.fault("A-BROADCAST", section="additive-breaks", line_up=as_is)
    task.fault(
        "C-FIRST-QUERY",
        **FAMILY,
        line_up=(lambda query: query[:1, None], lambda query: query[-1:, None]),
    )
    task.fault(
        "C-QUERY-MEAN",
        **FAMILY,
        line_up=(
            lambda query: query.mean(0, keepdim=True)[:, None],
            lambda query: query.sum(0, keepdim=True)[:, None],
        ),
    )
    task.fault("C-DETACHED-QUERY", **SEARCH, line_up=lambda query: query[:, None].detach())
    task.fault(
        "C-SCORES-ARE-WEIGHTS",
        **SEARCH,
        result=(lambda scores: scores.softmax(-1), lambda scores: scores.softmax(0)),
    )
    task.fault(
        "C-KEEPDIM",
        **FAMILY,
        result=(lambda scores: scores[..., None], lambda scores: scores[:, None]),
    )
    task.fault("C-SQUEEZE", **FAMILY, result=torch.squeeze)
    task.fault(
        "C-FOLDED-BY-KEYS", **FAMILY, result=lambda scores: scores.reshape(scores.shape[::-1]).mT
    )
    task.fault("C-POSITIVE", **SEARCH, result=(torch.abs, torch.relu, torch.exp))
    task.fault(
        "C-KEYS-SUMMED",
        **SEARCH,
        result=lambda scores: scores.sum(1, keepdim=True).expand_as(scores),
    )
    task.fault("C-DETACHED", **SEARCH, result=lambda scores: scores.detach())
    task.fault("C-PLAIN-NUMBERS", **SEARCH, result=lambda scores: torch.tensor(scores.tolist()))
    task.fault("C-SCORES-FLOAT32", **FAMILY, result=lambda scores: scores.float())
    task.fault("C-SCORES-TURNED", **FAMILY, result=lambda scores: scores.T)

    def float32(self, *inputs):
        return task.composed.__call__(self, *(x.float() for x in inputs))

    def float32_inside(self, *inputs):
        return float32(self, *inputs).to(inputs[0].dtype)

    task.fault("C-FLOAT32", **FAMILY, __call__=float32)
    task.fault("C-FLOAT32-INSIDE", **FAMILY, __call__=float32_inside)


def of_products(task: Task) -> None:
    """Faults of the steps `compare` (query, keys -> b k width) and `add` (products -> b k)."""
    task.fault(
        "C-ALL-PAIRS", **FAMILY, compare=lambda query, keys: query[None, :, 0, None] * keys[:, None]
    )
    task.fault(
        "C-ONE-BLOCK",
        **FAMILY,
        compare=(
            lambda query, keys: query * keys[:1],
            lambda query, keys: query * keys[-1:],
        ),
    )
    task.fault(
        "C-OWN-LETTER",
        **FAMILY,
        compare=lambda query, keys: query.sum(-1, keepdim=True) * keys,
    )
    task.fault("C-MEAN", **FAMILY, add=lambda products: products.mean(-1))
    task.fault("C-NOT-SUMMED", **FAMILY, add=as_is)
    task.fault("C-SUMMED-OVER-KEYS", **FAMILY, add=lambda products: products.sum(1))
    task.fault(
        "D-COSINE",
        **FAMILY,
        compare=lambda query, keys: (
            query / query.norm(dim=-1, keepdim=True) * keys / keys.norm(dim=-1, keepdim=True)
        ),
    )
    task.fault(
        "C-ONE-NORMALIZED",
        **FAMILY,
        compare=(
            lambda query, keys: query * keys / keys.norm(dim=-1, keepdim=True),
            lambda query, keys: query / query.norm(dim=-1, keepdim=True) * keys,
        ),
    )
    task.fault(
        "D-DISTANCE",
        **FAMILY,
        compare=lambda query, keys: (query - keys).square(),
        add=(lambda squares: squares.sum(-1).sqrt(), ...),
    )
    task.fault(
        "D-NEARNESS",
        **FAMILY,
        compare=lambda query, keys: -(query - keys).square(),
        add=(..., lambda squares: -(-squares.sum(-1)).sqrt()),
    )
    task.fault("C-DETACHED-KEYS", **FAMILY, compare=lambda query, keys: query * keys.detach())
    task.fault(
        "D-RESHAPE-KEY",
        **FAMILY,
        compare=lambda query, keys: (
            query * keys.reshape(keys.shape[0], keys.shape[2], keys.shape[1]).mT
        ),
    )
    task.fault("C-INPLACE", **FAMILY, compare=lambda query, keys: keys.mul_(query))


def naive_tanh(x):
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def weighed_in_place(hidden, v):
    hidden *= v
    return hidden.sum(-1)


def of_hidden_layers(task: Task) -> None:
    """Faults of the steps `bend` (b k a) and `weigh` (hidden, v -> b k)."""
    task.fault("A-NO-TANH", section="linear-score", bend=as_is)
    task.fault("A-RELU", bend=torch.relu)
    task.fault("C-SIGMOID", **SEARCH, bend=torch.sigmoid)
    task.fault(
        "C-TANH-LAST",
        **SEARCH,
        bend=as_is,
        weigh=(lambda hidden, v: (hidden @ v).tanh(), ...),
        result=(..., torch.tanh),
    )
    task.fault(
        "C-TANH-TWICE",
        **SEARCH,
        weigh=(lambda hidden, v: (hidden @ v).tanh(), ...),
        result=(..., torch.tanh),
    )
    task.fault(
        "C-SCALED-INSIDE",
        **SEARCH,
        bend=lambda hidden: (hidden / math.sqrt(hidden.shape[-1])).tanh(),
    )
    task.fault(
        "C-V-INSIDE",
        **SEARCH,
        bend=as_is,
        weigh=lambda hidden, v: (hidden * v).tanh().sum(-1),
    )
    task.fault("C-NAIVE-TANH", **SEARCH, bend=naive_tanh)
    task.fault("C-NO-V", **SEARCH, weigh=lambda hidden, v: hidden.sum(-1))
    task.fault("C-MEAN", **SEARCH, weigh=lambda hidden, v: (hidden * v).mean(-1))
    task.fault("C-NOT-SUMMED", **SEARCH, weigh=torch.mul)
    task.fault("C-SUMMED-OVER-KEYS", **SEARCH, weigh=lambda hidden, v: (hidden * v).sum(1))
    task.fault("C-V-SHARES", **SEARCH, weigh=lambda hidden, v: hidden @ v.softmax(-1))
    task.fault("C-SCALED", **SEARCH, weigh=lambda hidden, v: hidden @ v / math.sqrt(len(v)))
    task.fault("C-FROZEN-V", **SEARCH, weigh=lambda hidden, v: hidden @ v.detach())
    task.fault("C-INPLACE-GRAPH", **SEARCH, weigh=weighed_in_place)
