"""Break the reference code in every small way, and see whether the checks notice.

    python tests/bench/mutants.py [TASK ...] [--jobs 2]

Each mutant changes one thing in one answer: an operator, a constant, an axis, an argument, a line;
in the reference itself, or in a function of the course that it calls and that is no task of its
own. Lines that only validate are left alone, since an answer need not have them. A mutant that
passes all checks is either equivalent (see EQUIVALENT, each with its reason) or a hole.
"""

import argparse
import ast
import collections
import copy
import functools
import importlib
import inspect
import multiprocessing
import signal
import textwrap
from collections.abc import Callable, Iterator

import torch
from tqdm import tqdm

from attncourse.checks import engine, registry

SECONDS = 20  # a mutant may loop forever

SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {
    "amax": "amin",
    "argmax": "argmin",
    "cat": "stack",
    "cos": "sin",
    "exp": "sigmoid",
    "full_like": "zeros_like",
    "log": "exp",
    "max": "min",
    "mean": "sum",
    "min": "max",
    "ones": "zeros",
    "relu": "sigmoid",
    "sin": "cos",
    "sqrt": "exp",
    "sum": "mean",
    "tanh": "relu",
    "tril": "triu",
    "zeros": "ones",
}

# (task, mutant) -> why it does the same as the reference for every input that is promised.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "AdditiveAttention",
        "weights = self.W_query.weight.T, self.W_key.weight.T, self.v.weight[0]  [0 -> -1]",
    ): "v has one row, so its first is its last",
    (
        "score_variance",
        'scores = einsum(query, key, "samples d, samples d -> samples")  [einsum(query, key, '
        "'samples d, samples d -> samples') -> einsum(key, query, "
        "'samples d, samples d -> samples')]",
    ): "a dot product is symmetric",
}


def _equivalent(task: str, line: str, why: str, changes: list[str] | None = None) -> None:
    """Record why some changes of a line (all, where no promised input reaches it) are no errors."""
    every = [line] if changes is None else [f"{line}  {change}" for change in changes]
    EQUIVALENT.update({(task, each): why for each in every})


def is_equivalent(task: str, name: str) -> bool:
    return (task, name) in EQUIVALENT or (task, name.split("  [")[0]) in EQUIVALENT


_equivalent(
    "sinusoidal_positions",
    "position = torch.arange(length, dtype=torch.float64)",
    "whole numbers are exact, and become float64 beside the frequencies",
    ["[torch.arange(length, dtype=torch.float64) -> torch.arange(length)]"],
)
_equivalent(
    "sinusoidal_positions",
    "frequency = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)",
    "frequencies of float32 are as precise as the table that is promised",
    ["[torch.arange(0, width, 2, dtype=torch.float64) -> torch.arange(0, width, 2)]"],
)
_equivalent(
    "is_permutation_equivariant",
    "swap = [1, 0, *range(2, n)] if n > 1 else [0]",
    "one word has no other order: nobody is asked about it",
    [
        "[[1, 0, *range(2, n)] if n > 1 else [0] -> [1, 0, *range(2, n)]]",
        "[n > 1 -> n >= 1]",
        "[1 -> 0]",
        "[0 -> 1] (2)",
        "[0 -> -1] (2)",
    ],
)
_ANY_SOUND_TOLERANCE = (
    "no tolerance is prescribed: the checks' outputs agree up to 1e-6, or differ by 1e-2 and more"
)
_equivalent(
    "is_permutation_equivariant",
    "largest = output.nan_to_num(0, 0, 0).abs().max().item()  # NaN and infinity aside",
    _ANY_SOUND_TOLERANCE,
    [
        "[output.nan_to_num(0, 0, 0).abs().max().item() -> output.nan_to_num(0, 0, 0).abs().max()]",
        "[output.nan_to_num(0, 0, 0).abs().max -> output.nan_to_num(0, 0, 0).abs().min]",
        "[output.nan_to_num(0, 0, 0).abs() -> output.nan_to_num(0, 0, 0)]",
        "[output.nan_to_num(0, 0, 0) -> output]",
        *(f"[0 -> {number}]{nth}" for number in (1, -1) for nth in ("", " (2)", " (3)")),
    ],
)
_equivalent(
    "is_permutation_equivariant",
    "tolerance = torch.finfo(output.dtype).eps ** 0.5 * (1 + largest)",
    _ANY_SOUND_TOLERANCE,
    [
        "[torch.finfo(output.dtype).eps ** 0.5 * (1 + largest) -> "
        f"torch.finfo(output.dtype).eps ** 0.5{scale}]"
        for scale in (" / (1 + largest)", "")
    ]
    + ["[1 + largest -> 1]", "[1 + largest -> largest]", "[1 -> 2]", "[1 -> 0]"],
)
_equivalent(
    "is_permutation_equivariant",
    "torch.allclose(layer(x[:, order]), output[:, order], rtol=0, atol=tolerance)",
    "without a relative tolerance, or with so small a one, allclose is symmetric",
    [
        "[torch.allclose(layer(x[:, order]), output[:, order], rtol=0, atol=tolerance) -> "
        f"torch.allclose({other}atol=tolerance)]"
        for other in (
            "output[:, order], layer(x[:, order]), rtol=0, ",
            "layer(x[:, order]), output[:, order], ",
        )
    ],
)
_ON_THE_CPU = "answers are judged on the CPU, where a tensor lies if no device is named"
_INT64 = "the ids and lengths that are handed over are of int64 already"
_equivalent(
    "encode",
    "return states[torch.arange(len(tokens), device=states.device), lengths.long() - 1]",
    _ON_THE_CPU,
    ["[torch.arange(len(tokens), device=states.device) -> torch.arange(len(tokens))]"],
)
_equivalent(
    "encode",
    "return states[torch.arange(len(tokens), device=states.device), lengths.long() - 1]",
    _INT64,
    ["[lengths.long() -> lengths]"],
)
_equivalent(
    "sequence_loss",
    "return F.cross_entropy(logits, target.long(), ignore_index=pad)",
    _INT64,
    ["[target.long() -> target]"],
)
_equivalent(
    "greedy_decode",
    "first = state[0] if isinstance(state, tuple) and state else state",
    _ON_THE_CPU,
    ["[state[0] if isinstance(state, tuple) and state else state -> state]", "[0 -> -1]"],
)
_equivalent(
    "greedy_decode",
    'token = torch.full((batch_size,), bos, device=getattr(first, "device", None))',
    _ON_THE_CPU,
    [
        "[torch.full((batch_size,), bos, device=getattr(first, 'device', None)) -> "
        "torch.full((batch_size,), bos)]"
    ],
)
_equivalent(
    "greedy_decode",
    "token = logits.argmax(-1).masked_fill(finished, eos)",
    "logits are (b vocab): their last axis is axis 1",
    ["[-1 -> 1]"],
)
_equivalent(
    "greedy_decode",
    "finished = finished | (token == eos)",
    "a finished row has just written eos, so that it counts as finished again",
    ["[finished | (token == eos) -> token == eos]"],
)
_equivalent(
    "greedy_decode",
    "if finished.all():",
    "stopping early is left free: all that would follow is eos",
    ["[if finished.all():\n    break -> if False:\n    break]"],
)
_equivalent(
    "greedy_decode",
    "break",
    "stopping early is left free: all that would follow is eos",
    ["[break -> pass]"],
)
_equivalent(
    "exact_match_by_length",
    "for prediction, target, length in zip(predictions, targets, lengths, strict=True):",
    "equality is symmetric, and the three lists that are handed over are equally long",
    [
        "[zip(predictions, targets, lengths, strict=True) -> "
        "zip(targets, predictions, lengths, strict=True)]",
        "[zip(predictions, targets, lengths, strict=True) -> zip(predictions, targets, lengths)]",
        "[True -> False]",
    ],
)


_equivalent(
    "padding_mask",
    "place = torch.arange(max_length, device=lengths.device)",
    _ON_THE_CPU,
    ["[torch.arange(max_length, device=lengths.device) -> torch.arange(max_length)]"],
)

_DROPS = "{'dropout': self.dropout} if self.training and self.dropout.p > 0 else {}"
_equivalent(
    "MultiHeadAttention",
    'drops = {"dropout": self.dropout} if self.training and self.dropout.p > 0 else {}',
    "nn.Dropout changes nothing out of training, or with p = 0",
    [
        f"[{_DROPS} -> {{'dropout': self.dropout}}]",
        "[self.training and self.dropout.p > 0 -> self.training or self.dropout.p > 0]",
        "[self.dropout.p > 0 -> self.dropout.p >= 0]",
        "[0 -> -1]",
    ],
)

_USED = "weights if dropout is None else dropout(weights)"
_equivalent(
    "scaled_dot_product_attention",
    f"used = {_USED}",
    "the task's answer is given no dropout",
    [f"[{_USED} -> weights]"],
)

_TRUST = "trust = torch.where(seen, weights, 0.0).double() ** 2"
_equivalent(
    "hidden_scale",
    _TRUST,
    "how much a point counts is left free: within the 5 % that rounding of the tables leaves",
    [
        "[torch.where(seen, weights, 0.0).double() ** 2 -> "
        "torch.where(seen, weights, 0.0).double()]",
        "[2 -> 3]",
        "[2 -> 1]",
    ],
)
_equivalent(
    "hidden_scale",
    _TRUST,
    "the tables have two decimals: float32 keeps seven",
    ["[torch.where(seen, weights, 0.0).double() -> torch.where(seen, weights, 0.0)]"],
)
_equivalent(
    "hidden_scale",
    "table = torch.where(seen, table.double(), 0.0)",
    "the tables have two decimals, and what is not seen has no weight in any sum",
    ["[table.double() -> table]", "[0.0 -> 1.0]"],
)
_equivalent(
    "hidden_scale",
    "total = trust.sum(-1, keepdim=True)",
    "tables are (q k): their last axis is axis 1",
    ["[-1 -> 1]"],
)
_equivalent(
    "hidden_scale",
    "mean = (trust * table).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)",
    "tables are (q k), and each row that is handed over has a weight above 0",
    ["[-1 -> 1]", "[total > 0 -> total >= 0]", "[0 -> -1]", "[1.0 -> 2.0]"],
)

_equivalent(
    "relative_scores",
    "row = row.to(query.device).expand(*by_offset.shape[:-1], -1)",
    _ON_THE_CPU,
    ["[row.to(query.device) -> row]"],
)
_SHARE = "share = (distance.clamp(min=1) / alone).log() / math.log(max_distance / alone)"
_equivalent(
    "relative_buckets",
    _SHARE,
    "the smallest distances have buckets of their own: their share is computed, and not used",
    ["[distance.clamp(min=1) -> distance]", "[1 -> 0]"],
)
_equivalent(
    "relative_buckets",
    _SHARE,
    "matters to distance 1 alone, with 2 buckets: then every distance above 0 has the second one",
    ["[1 -> 2]"],
)
_equivalent(
    "relative_buckets",
    "far = (alone + (share * (num_buckets - alone)).long()).clamp(max=num_buckets - 1)",
    "a direction has an even number of buckets, of which half are alone",
    ["[num_buckets - alone -> alone]"],
)
_equivalent(
    "relative_buckets",
    "return first + torch.where(distance < alone, distance, far)",
    "at this distance the share is log 1 = 0, and both branches agree",
    ["[distance < alone -> distance <= alone]"],
)
_equivalent(
    "rotate",
    "frequency = rotary_frequencies(x.shape[-1], base).to(x.device)",
    _ON_THE_CPU,
    [
        "[rotary_frequencies(x.shape[-1], base).to(x.device) -> "
        "rotary_frequencies(x.shape[-1], base)]"
    ],
)
_equivalent(
    "rotate",
    'angle = einsum(positions.double(), frequency, "... n, i -> ... n i")',
    "the task's positions are (n) whole numbers, which become float64 beside the frequencies",
    ["[positions.double() -> positions]", "['... n, i -> ... n i' -> '... n, i -> n ... i']"],
)
_equivalent(
    "masked_words",
    "share = torch.as_tensor(share, dtype=torch.float32, device=tokens.device)",
    "the task's share is one plain number, which becomes float32",
    [
        "[torch.as_tensor(share, dtype=torch.float32, device=tokens.device) -> "
        "torch.as_tensor(share, device=tokens.device)]"
    ],
)
_equivalent(
    "masked_words",
    "share = torch.as_tensor(share, dtype=torch.float32, device=tokens.device)",
    _ON_THE_CPU,
    [
        "[torch.as_tensor(share, dtype=torch.float32, device=tokens.device) -> "
        "torch.as_tensor(share, dtype=torch.float32)]"
    ],
)
_equivalent(
    "masked_words",
    "chance = torch.as_tensor(chance, device=tokens.device).expand(tokens.shape)",
    _ON_THE_CPU,
    ["[torch.as_tensor(chance, device=tokens.device) -> torch.as_tensor(chance)]"],
)
_RANDINT = "torch.randint(vocabulary_size, tokens.shape, generator=rng, "
for _left, _why in (("device=tokens.device", _INT64), ("dtype=tokens.dtype", _ON_THE_CPU)):
    _equivalent(
        "masked_words",
        "anything = torch.randint(",
        _why,
        [f"[{_RANDINT}dtype=tokens.dtype, device=tokens.device) -> {_RANDINT}{_left})]"],
    )
_DRAW = "return torch.multinomial(probabilities, 1, generator=rng)[:, 0]"
_equivalent(
    "sample",
    _DRAW,
    "in the task chance comes from the global generator",
    ["[torch.multinomial(probabilities, 1, generator=rng) -> torch.multinomial(probabilities, 1)]"],
)
_equivalent(
    "sample", _DRAW, "of two draws without replacement the first is as if alone", ["[1 -> 2]"]
)
_equivalent(
    "sample", "temperature: float = 1.0,", "`sample` always hands it over", ["[1.0 -> 2.0]"]
)
_equivalent("sample", _DRAW, "one draw is one column, the first and the last", ["[0 -> -1]"])
_FULL = "torch.full((b * width,), bos"
_TOTAL = "torch.full((b, width), -torch.inf"
_equivalent(
    "beam_search",
    f"token = {_FULL}, device=state.device)",
    _ON_THE_CPU,
    [f"[{_FULL}, device=state.device) -> {_FULL})]"],
)
_equivalent(
    "beam_search",
    f"total = {_TOTAL}, device=state.device)",
    _ON_THE_CPU,
    [f"[{_TOTAL}, device=state.device) -> {_TOTAL})]"],
)
_ROW = "row = place // logits.shape[-1] + width * torch.arange(b, device=place.device)[:, None]"
_equivalent(
    "beam_search",
    _ROW,
    _ON_THE_CPU,
    ["[torch.arange(b, device=place.device) -> torch.arange(b)]"],
)
_equivalent(
    "beam_search",
    "written = token.new_empty(b * width, 0)",
    "there is nothing in rows without columns, and PyTorch takes any number of them",
    ["[b * width -> b]", "[b * width -> width]"],
)
_START = "total[:, 0] = 0.0  # all beginnings are still the same one: only the first counts"
_equivalent(
    "beam_search",
    _START,
    "all beginnings are still the same one: which of them counts is left free",
    ["[0 -> -1]"],
)
_equivalent("beam_search", _START, "the same for all that is compared with it", ["[0.0 -> 1.0]"])
for _line in (
    "log_p = logits.log_softmax(-1)",
    _ROW,
    "row, token = row.flatten(), (place % logits.shape[-1]).flatten()",
):
    _equivalent(
        "beam_search", _line, "logits are (r vocab): their last axis is axis 1", ["[-1 -> 1]"]
    )
_equivalent(
    "beam_search",
    "finished = finished[row] | (token == eos)",
    "who has ended has said eos again, so that it counts as ended",
    ["[finished[row] | (token == eos) -> token == eos]"],
)
_BREAK = "if finished[::width].all():  # whoever goes on only gets less likely than the best"
_equivalent(
    "beam_search",
    _BREAK,
    "stopping early is left free: the best sentences stay as they are",
    ["[if finished[::width].all():\n    break -> if False:\n    break]"],
)
_equivalent(
    "beam_search",
    "break",
    "stopping early is left free: the best sentences stay as they are",
    ["[break -> pass]"],
)
_CAUSAL = "causal_mask(query.shape[-2], keys.shape[-2])"
_equivalent(
    "cached_attention",
    f"causal = {_CAUSAL}.to(query.device)",
    _ON_THE_CPU,
    [f"[{_CAUSAL}.to(query.device) -> {_CAUSAL}]"],
)
_equivalent(
    "LatentAttention",
    "positions = torch.arange(start, start + x.shape[1], device=x.device)",
    _ON_THE_CPU,
    [
        "[torch.arange(start, start + x.shape[1], device=x.device) -> "
        "torch.arange(start, start + x.shape[1])]"
    ],
)
_equivalent(
    "LatentAttention",
    "query, turned, latent, rope_key = self._project(x, start=0)",
    "rotated queries and keys meet by the difference of their positions, in a whole text",
    ["[0 -> 1]", "[0 -> -1]"],
)
_equivalent(
    "LatentAttention",
    "heads, _ = cached_attention(query, key, value, None, _for_heads(mask))",
    "the task's layer is given no mask: both are None",
    [
        "[cached_attention(query, key, value, None, _for_heads(mask)) -> "
        "cached_attention(query, key, value, _for_heads(mask), None)]"
    ],
)
_FOR_HEADS = "mask[:, None] if mask is not None and mask.ndim == 3 else mask"
_equivalent(
    "LatentAttention",
    f"return {_FOR_HEADS}",
    "the task's layer is given no mask: None is handed on",
    [
        f"[{_FOR_HEADS} -> mask]",
        "[mask.ndim == 3 -> mask.ndim != 3]",
        "[3 -> 4]",
        "[3 -> 2]",
    ],
)
_VISIBLE = "causal_mask(x.shape[1], key.shape[1])"
_equivalent(
    "LatentAttention",
    f"visible = {_VISIBLE}.to(x.device)",
    _ON_THE_CPU,
    [f"[{_VISIBLE}.to(x.device) -> {_VISIBLE}]"],
)
_MASKED = "visible if mask is None else visible & _for_heads(mask)"
_equivalent(
    "LatentAttention",
    f"visible = {_MASKED}",
    "the task's layer is given no mask",
    [
        f"[visible = {_MASKED} -> pass]",
        f"[{_MASKED} -> visible]",
        "[visible & _for_heads(mask) -> visible | _for_heads(mask)]",
        "[visible & _for_heads(mask) -> visible]",
        "[visible & _for_heads(mask) -> _for_heads(mask)]",
    ],
)
for _task in ("relative_scores", "alibi_bias"):
    _equivalent(
        _task,
        "query_length: int, key_length: int, cross: bool = False",
        "`cross` is always handed over",
        ["[False -> True]"],
    )
    _equivalent(
        _task,
        "def offsets(query_length: int, key_length: int, cross: bool = False) "
        '-> Int[Tensor, "q k"]:',
        "`cross` is always handed over",
        ["[False -> True]"],
    )
    _equivalent(
        _task,
        "first = 0 if cross else key_length - query_length",
        "in the task queries and keys are of one text",
        [
            "[0 if cross else key_length - query_length -> key_length - query_length]",
            "[0 -> 1]",
            "[0 -> -1]",
        ],
    )
_equivalent(
    "alibi_bias",
    "between = 2.0 ** (-4 * torch.arange(1, 2 * power, 2) / power)",
    "more slopes than are taken: the last ones are cut off",
    ["[2 -> 3]"],
)
_equivalent(
    "rotate",
    'def rotary_frequencies(width: int, base: float = 10_000.0) -> Float[Tensor, " pairs"]:',
    "the base is always handed over",
    ["[10000.0 -> 10001.0]"],
)
_equivalent(
    "encode_text",
    "visible = {*range(33, 127), *range(161, 173), *range(174, 256)}",
    "256 is no byte",
    ["[256 -> 257]"],
)
_equivalent(
    "encode_text",
    "others = iter(range(256, 512))",
    "only the first 68 of these letters are taken",
    ["[512 -> 513]", "[512 -> 511]"],
)
_equivalent(
    "encode_text",
    "half = error.object[error.start]",
    "part of a refusal",
    ["[half = error.object[error.start] -> pass]"],
)
_LEAST = "least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]"
_equivalent(
    "sample",
    _LEAST,
    "the smaller of two, in any order",
    ["[min(top_k, logits.shape[-1]) -> min(logits.shape[-1], top_k)]"],
)
_SORT = "likely, order = probabilities.sort(dim=-1, descending=True, stable=True)"
_equivalent(
    "sample",
    _SORT,
    "the last axis is the one that is sorted if none is named",
    [f"[{_SORT[16:]} -> probabilities.sort(descending=True, stable=True)]"],
)
_equivalent(
    "sample",
    _SORT,
    "which of two equally likely words stays is left free",
    [f"[{_SORT[16:]} -> probabilities.sort(dim=-1, descending=True)]", "[True -> False] (2)"],
)
_BEFORE = "before = likely.cumsum(-1) - likely  # b vocab: what the likelier words have together"
_KEEP = "keep = (before < top_p).scatter(-1, order, before < top_p)"
_NORMAL = "probabilities = probabilities / probabilities.sum(-1, keepdim=True)"
for _line in (_LEAST, _SORT, _BEFORE, _KEEP, _NORMAL):
    _equivalent("sample", _line, "logits are (b vocab): their last axis is axis 1", ["[-1 -> 1]"])
_equivalent(
    "sample",
    _KEEP,
    "every place of it is written over",
    ["[before < top_p -> before <= top_p]"],
)
_equivalent(
    "sample",
    _KEEP,
    "where a sum is top_p exactly, rounding decides: the task leaves it free",
    ["[before < top_p -> before <= top_p] (2)"],
)
_equivalent(
    "sample",
    _NORMAL,
    "torch.multinomial shares out by numbers of any sum",
    [
        f"[{_NORMAL} -> pass]",
        *(
            f"[{_NORMAL[16:]} -> {other}]"
            for other in ("probabilities * probabilities.sum(-1, keepdim=True)", "probabilities")
        ),
        "[probabilities.sum -> probabilities.mean]",
    ],
)
_equivalent(
    "window_mask",
    'def window_mask(n: int, width: int, global_tokens: int = 0) -> Bool[Tensor, "n n"]:',
    "the task's answer is always told the number of global tokens",
    ["[0 -> 1]", "[0 -> -1]"],
)
_EYE = "torch.eye(len(mask), dtype=torch.bool"
_equivalent(
    "reach",
    f"known = {_EYE}, device=mask.device)",
    _ON_THE_CPU,
    [f"[{_EYE}, device=mask.device) -> {_EYE})]"],
)
_equivalent(
    "windowed_attention",
    "size = min(width, n)",
    "the smaller of two, in any order",
    ["[min(width, n) -> min(n, width)]"],
)
_PLACE, _NEAR = "torch.arange(n + fill", "torch.arange(-size, 2 * size"
_PLACE_LINE = f"place = {_PLACE}, device=query.device).unflatten(0, (-1, size, 1))  # c s 1"
_equivalent(
    "windowed_attention",
    _PLACE_LINE,
    _ON_THE_CPU,
    [f"[{_PLACE}, device=query.device) -> {_PLACE})]"],
)
_equivalent(
    "windowed_attention", _PLACE_LINE, "its one axis is the first and the last", ["[0 -> -1]"]
)
_equivalent(
    "windowed_attention",
    f"at = place[:, :1] + {_NEAR}, device=query.device)  # c 1 3s",
    _ON_THE_CPU,
    [f"[{_NEAR}, device=query.device) -> {_NEAR})]"],
)
_FEATURE = "return torch.where(x > 0, x + 1, x.clamp(max=0).exp())"
for _task in ("linear_attention", "linear_step"):
    _equivalent(_task, _FEATURE, "x + 1 and the exponential agree at 0", ["[x > 0 -> x >= 0]"])
    _equivalent(
        _task, _FEATURE, "only the exponential of what is not above 0 is taken", ["[0 -> 1] (2)"]
    )
    _equivalent(
        _task,
        _FEATURE,
        "the same, but for the gradient of features above 88, which is left free",
        ["[x.clamp(max=0) -> x]"],
    )
_equivalent(
    "linear_step",
    'return sums / einsum(query, weight, "... d, ... d -> ...")[..., None], (total, weight)',
    "a dot product is symmetric",
    [
        "[einsum(query, weight, '... d, ... d -> ...') -> "
        "einsum(weight, query, '... d, ... d -> ...')]"
    ],
)
for _line in (
    "if mask is not None:",
    "scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)",
    "weights = weights.masked_fill(~mask, 0.0)",
    "total = total.masked_fill(~mask.any(-1), -math.inf)",
):
    _equivalent("ring_attention", _line, "in the task everybody sees everybody: no mask is made")
_equivalent(
    "ring_attention",
    "mask = positions and positions[i][:, None] >= positions[j]",
    "in the task everybody sees everybody: there are no positions",
    ["[positions[i][:, None] >= positions[j] -> positions[i][:, None] > positions[j]]"],
)
_NOTHING = "(total_1 == -math.inf) & (total_2 == -math.inf)"
_JOINED = "torch.logaddexp(total_1, total_2)"
_SEEN = "in the task everybody sees everybody: no total is −∞"
_equivalent(
    "ring_attention",
    f"nothing = {_NOTHING}  # −∞ − (−∞) would be no number",
    _SEEN,
    [
        f"[{_NOTHING} -> {_NOTHING.replace('&', '|')}]",
        f"[{_NOTHING} -> total_1 == -math.inf]",
        f"[{_NOTHING} -> total_2 == -math.inf]",
        "[total_1 == -math.inf -> total_1 != -math.inf]",
        "[total_2 == -math.inf -> total_2 != -math.inf]",
        "[-math.inf -> math.inf]",
        "[-math.inf -> math.inf] (2)",
    ],
)
_TOTALS = "(total.masked_fill(nothing, 0.0) for total in (total_1, total_2))"
_equivalent(
    "ring_attention",
    f"total_1, total_2 = {_TOTALS}",
    _SEEN,
    [
        f"[total_1, total_2 = {_TOTALS} -> pass]",
        "[total.masked_fill(nothing, 0.0) -> total]",
        "[0.0 -> 1.0]",
    ],
)
_equivalent(
    "ring_attention",
    f"total = {_JOINED}.masked_fill(nothing, -math.inf)",
    _SEEN,
    [f"[{_JOINED}.masked_fill(nothing, -math.inf) -> {_JOINED}]", "[-math.inf -> math.inf]"],
)
_equivalent(
    "ring_attention",
    f"total = {_JOINED}.masked_fill(nothing, -math.inf)",
    "a sum is symmetric",
    [f"[{_JOINED} -> torch.logaddexp(total_2, total_1)]"],
)
_equivalent(
    "ring_attention",
    "parts[i] = part if parts[i] is None else merge(parts[i], part)",
    "joining two parts is symmetric",
    ["[merge(parts[i], part) -> merge(part, parts[i])]"],
)
_HOOK = "return merge_heads(change(split_heads(inputs[0], h).clone()))"
for _task in ("ablated", "patched"):
    _equivalent(
        _task,
        _HOOK,
        "what enters `out_proj` was made for it, and nobody else reads it",
        ["[split_heads(inputs[0], h).clone() -> split_heads(inputs[0], h)]"],
    )
    _equivalent(_task, _HOOK, "a linear layer has one input", ["[0 -> -1]"])
_equivalent(
    "ablated",
    'model: nn.Module, layer: str, head: int, value: float | Float[Tensor, "..."] = 0.0',
    "the task's answer is always told the value",
    ["[0.0 -> 1.0]"],
)
_equivalent(
    "ablated",
    "if isinstance(value, Tensor):",
    "its lines only refuse values that do not fit",
)
_equivalent(
    "patched", "name, split_heads(inputs[0], h)", "a linear layer has one input", ["[0 -> -1]"]
)
_equivalent(
    "patched",
    "attention_in(model, layer)",
    "its result is not used: it refuses a layer that is not there",
    ["[attention_in(model, layer) -> pass]"],
)
_KEPT = "torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)"
_KEPT_LINE = f"kept = (mean + {_KEPT}) / 2"
_equivalent(
    "rollout",
    _KEPT_LINE,
    "its zeros and ones are exact, and become float64 beside weights of float64",
    [f"[{_KEPT} -> torch.eye(mean.shape[-1], device=mean.device)]"],
)
_equivalent(
    "rollout",
    _KEPT_LINE,
    _ON_THE_CPU,
    [f"[{_KEPT} -> torch.eye(mean.shape[-1], dtype=mean.dtype)]"],
)
_equivalent(
    "rollout", _KEPT_LINE, "maps are (b n n): as many rows as columns", ["[-1 -> 1]", "[1 -> 2]"]
)
_equivalent(
    "positions_2d",
    "return torch.cat([row, column], dim=-1)",
    "tables are (n m): their last axis is axis 1",
    ["[-1 -> 1]"],
)
_EMPTY = "torch.empty(len(image), 0, dtype=torch.long"
_equivalent(
    "read",
    f"nothing_yet = {_EMPTY}, device=image.device)",
    _ON_THE_CPU,
    [f"[{_EMPTY}, device=image.device) -> {_EMPTY})]"],
)
_equivalent(
    "contrastive_loss",
    "images, texts = F.normalize(images, dim=-1), F.normalize(texts, dim=-1)",
    "vectors are (b m): their last axis is axis 1, the one that F.normalize takes if none is named",
    [
        "[F.normalize(images, dim=-1) -> F.normalize(images)]",
        "[F.normalize(texts, dim=-1) -> F.normalize(texts)]",
        "[-1 -> 1]",
        "[-1 -> 1] (2)",
    ],
)
_equivalent(
    "contrastive_loss",
    'scores = einsum(images, texts, "i m, j m -> i j") / temperature',
    "the loss is the mean of both sides: pictures and texts may change their places",
    [
        "[einsum(images, texts, 'i m, j m -> i j') -> einsum(texts, images, 'i m, j m -> i j')]",
        "['i m, j m -> i j' -> 'i m, j m -> j i']",
    ],
)
_equivalent(
    "contrastive_loss",
    "own = torch.arange(len(images), device=images.device)",
    _ON_THE_CPU,
    ["[torch.arange(len(images), device=images.device) -> torch.arange(len(images))]"],
)


def _validates(node: ast.stmt) -> bool:
    """Whether a statement only refuses bad input."""
    if isinstance(node, ast.If):
        return all(map(_validates, node.body)) and not node.orelse
    call = node.value if isinstance(node, ast.Expr) else None
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    return isinstance(node, ast.Raise) or "validate" in name or "raise_" in name


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Every (node, field, place in the field) that holds code of an answer."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.stmt) and (_validates(child) or _is_docstring(child)):
                continue
            yield tree, field, place
            yield from _places(child)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Other nodes that may stand where this one stands."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        changed = copy.deepcopy(node)
        changed.op = SWAPS[type(node.op)]()
        yield changed
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        changed = copy.deepcopy(node)
        changed.ops[0] = SWAPS[type(node.ops[0])]()
        yield changed
    if isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = SWAPS[type(node.op)]()
        yield changed
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        changed = copy.deepcopy(node)
        changed.attr = NAMES[node.attr]
        yield changed
    if isinstance(node, ast.Name) and node.id in NAMES:
        yield ast.Name(NAMES[node.id], node.ctx)
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        for place in range(len(node.args) - 1):
            changed = copy.deepcopy(node)
            changed.args[place : place + 2] = changed.args[place : place + 2][::-1]
            yield changed
    if isinstance(node, ast.Call) and node.keywords:
        for place in range(len(node.keywords)):
            changed = copy.deepcopy(node)
            del changed.keywords[place]
            yield changed
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.value  # x.f(…) -> x
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    if isinstance(node, ast.If):
        for value in (True, False):
            changed = copy.deepcopy(node)
            changed.test = ast.Constant(value)
            yield changed
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Break):
        yield ast.Pass()
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        changed = copy.deepcopy(node)
        changed.value.elts = changed.value.elts[::-1]
        yield changed


def _other_constants(value: object) -> Iterator[ast.Constant]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value + 1.0)
    elif isinstance(value, str) and "->" in value:  # a pattern of einops
        left, right = value.split("->")
        axes = right.split()
        for place in range(len(axes) - 1):
            swapped = [*axes[:place], axes[place + 1], axes[place], *axes[place + 2 :]]
            yield ast.Constant(f"{left}-> {' '.join(swapped)}")


def parts(task: str) -> list[Callable]:
    """A task's reference, last, and before it what it calls of the course that is no task."""
    tasks = {each.reference for each in registry.all_tasks().values()}
    found = [registry.find(task).reference]
    for part in found:
        module = importlib.import_module(part.__module__)
        nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(part))))]
        arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
        names = [node.id for node in nodes if isinstance(node, ast.Name)]
        for name in names:
            used = None if name in arguments else getattr(module, name, None)
            home = getattr(used, "__module__", None) or ""
            mine = home.startswith("attncourse.") and not home.startswith("attncourse.validation")
            if mine and callable(used) and used not in tasks and used not in found:
                found.append(used)
    return found[::-1]


@functools.cache
def mutants(task: str) -> list[tuple[str, ast.Module]]:
    """Every mutant of a task's reference: what was changed, and the module to run."""
    return list(_mutants(parts(task)))


def _mutants(answer: list[Callable]) -> Iterator[tuple[str, ast.Module]]:
    source = "\n".join(textwrap.dedent(inspect.getsource(part)) for part in answer)
    tree = ast.parse(source)
    seen = {ast.unparse(tree)}
    names = collections.Counter()
    for number, (holder, field, place) in enumerate(list(_places(tree))):
        node = getattr(holder, field) if place is None else getattr(holder, field)[place]
        for changed in _changes(node):
            copied = copy.deepcopy(tree)
            target, name, at = list(_places(copied))[number]
            if at is None:
                setattr(target, name, changed)
            else:
                getattr(target, name)[at] = changed
            ast.fix_missing_locations(copied)
            text = ast.unparse(copied)
            if text not in seen:
                seen.add(text)
                line = getattr(node, "lineno", 1)
                was = source.splitlines()[line - 1].strip()
                name = f"{was}  [{ast.unparse(node)} -> {ast.unparse(changed)}]"
                names[name] += 1  # a line may hold the same constant twice
                yield name + (f" ({names[name]})" if names[name] > 1 else ""), copied


def survives(task: str, number: int) -> bool | None:
    """Whether the checks accept a mutant; None if it does not even compile."""
    torch.set_num_threads(1)
    reference = registry.find(task).reference
    names = {}
    for part in parts(task):
        names |= vars(importlib.import_module(part.__module__))
    _, tree = mutants(task)[number]
    try:
        exec(compile(tree, "mutant", "exec"), names)
    except Exception:
        return None

    def stop(*_):
        raise TimeoutError("endless")

    signal.signal(signal.SIGALRM, stop)
    # Again and again: what is raised in an answer is noted like any other error of it.
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 0.2)
    try:
        results = engine.judge(registry.find(task), names[reference.__name__])
        return all(result.passed for result in results)
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*", help="names of tasks; if none, the chapters'")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    options = parser.parse_args()
    chapters = [name for name, task in registry.all_tasks().items() if "chapter" in task.place]
    tasks = options.task or chapters
    work = [(task, number) for task in tasks for number, _ in enumerate(mutants(task))]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        verdicts = pool.starmap_async(survives, work, chunksize=4)
        with tqdm(total=len(work), desc="mutants") as bar:
            while not verdicts.ready():
                verdicts.wait(1)
                bar.n = max(0, len(work) - 4 * verdicts._number_left)
                bar.refresh()
        found = dict(zip(work, verdicts.get(), strict=True))
    print("| answer | mutants | equivalent | rejected | share |\n|---|---|---|---|---|")
    holes = []
    for task in tasks:
        names = [name for name, _ in mutants(task)]
        judged = {names[n]: found[t, n] for t, n in work if t == task and found[t, n] is not None}
        alive = [name for name, survived in judged.items() if survived]
        equivalent = [name for name in alive if is_equivalent(task, name)]
        holes += [(task, name) for name in alive if name not in equivalent]
        total, rejected = len(judged) - len(equivalent), len(judged) - len(alive)
        print(
            f"| {task} | {len(judged)} | {len(equivalent)} | {rejected} "
            f"| {rejected / max(1, total):.1%} |"
        )
    print(f"\n{len(holes)} mutants survive without a proof")
    for task, name in holes:
        print(f"  {task}: {name}")


if __name__ == "__main__":
    main()
