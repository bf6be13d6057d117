"""Answers to chapters 1–7 and the labs by a writer who had the notebooks alone, half with two mistakes.

What the judge said before anything was mended by these is in tests/bench/answers.md. Which names are
fair was said by somebody else, with the judge's in view.
"""

import collections
import functools
import itertools
import math
import statistics
import time
from collections import Counter, defaultdict

import einops
import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attncourse import lab
from attncourse.multihead import MultiHeadAttention
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right


# shows: one sentence of three tokens and one pad, a GRU of width 1: the vector gives [[0.2156]];
#   right is [[0.3259]]
@wrong(
    "encode",
    "Padding is id 0, so I count the ids that are not 0; the state after the last real token stands at place `length`",
    ("C-LENGTHS-FROM-ZEROS",),
    ("C-ONE-TOO-FAR",),
)
def _(tokens, lengths, embedding, gru):
    states, _ = gru(embedding(tokens))
    real = (tokens != 0).sum(dim=1)
    rows = torch.arange(tokens.shape[0])
    return states[rows, real]


# shows: teacher_inputs(torch.tensor([[5, 6, 2], [7, 2, 0]]), 1) gives [[1, 5, 6], [0, 7, 2]];
#   right is [[1, 5, 6], [1, 7, 2]]
@wrong(
    "teacher_inputs",
    "inputs[0, 0] = bos puts bos at the start, so nothing more is needed",
    "C-BOS-IN-ONE-ROW",
)
def _(target, bos):
    inputs = torch.zeros_like(target)
    inputs[:, 1:] = target[:, :-1]
    inputs[0, 0] = bos
    return inputs


# shows: (lambda x: (teacher_inputs(x, 1), x))(torch.tensor([[5, 6, 2], [7, 2, 0]])) gives ([[1,
#   5, 6], [7, 7, 2]], [[1, 5, 6], [7, 7, 2]]); right is ([[1, 5, 6], [1, 7, 2]], [[5, 6, 2], [7,
#   2, 0]])
@wrong(
    "teacher_inputs",
    "I can shift the words inside target itself, a clone on the right side is enough; the batch starts with bos, so bos goes to place [0][0]",
    ("C-EDITS-THE-TARGET",),
    ("C-BOS-IN-ONE-ROW",),
)
def _(target, bos):
    target[:, 1:] = target[:, :-1].clone()
    target[0][0] = bos
    return target


# shows: sequence_loss(torch.zeros(1, 1, 4), torch.tensor([[1]]), 0) gives 2; right is 1.386
@wrong("sequence_loss", "The surprise is -log2 p, that is how information is measured", "C-BITS")
def _(logits, target, pad):
    logp = torch.log_softmax(logits, dim=-1) / math.log(2)
    picked = logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    real = target != pad
    return -picked[real].sum() / real.sum()


# shows: sequence_loss(torch.tensor([[[0., 2., 0.], [0., 2., 0.]], [[0., 0., 4.], [0., 0., 0.]]]),
#   torch.tensor([[1, 1], [1, 0]]), 0) gives 1.11; right is 1.505
@wrong(
    "sequence_loss",
    "cross_entropy wants probabilities, so softmax comes first; every sentence counts the same, so first the mean of each sentence and then the mean of these",
    ("C-SOFTMAX-TWICE",),
    ("C-MEAN-OF-MEANS",),
)
def _(logits, target, pad):
    probs = logits.softmax(dim=-1)
    losses = F.cross_entropy(probs.transpose(1, 2), target, ignore_index=pad, reduction="none")
    count = (target != pad).sum(dim=1)
    per_sentence = losses.sum(dim=1) / count
    return per_sentence.mean()


# shows: greedy_decode(lambda tok, s: (F.one_hot(torch.tensor([1, 3, 2, 2])[tok], 4).float(), s),
#   0, 1, 2, 3, 1) gives [[3, 3, 3]]; right is [[3, 2, 2]]
@wrong(
    "greedy_decode",
    "The decoder always gets bos, since what it has written is in the state",
    "C-NOT-FED-BACK",
)
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    finished = torch.zeros(batch_size, dtype=torch.bool)
    words = []
    for _ in range(max_length):
        logits, state = step(token, state)
        word = logits.argmax(dim=-1)
        word = torch.where(finished, torch.full_like(word, eos), word)
        finished = finished | (word == eos)
        words.append(word)
        if finished.all():
            break
    return torch.stack(words, dim=1)


# shows: exact_match_by_length([["deux"]], [["deux", "cents"]], [3]) gives {2: 1}; right is {3: 0}
@wrong(
    "exact_match_by_length",
    "If all words that were written agree with the target then it is right, zip compares them one by one; length is the number of words of the target",
    ("C-ZIP-STOPS-EARLY",),
    ("C-OWN-LENGTHS",),
)
def _(predictions, targets, lengths):
    right = defaultdict(int)
    total = defaultdict(int)
    for prediction, target, length in zip(predictions, targets, lengths):
        length = len(target)
        total[length] += 1
        if all(p == t for p, t in zip(prediction, target)):
            right[length] += 1
    return {n: right[n] / total[n] for n in total}


# shows: exact_match_by_length([["cent", "deux"]], [["deux", "cent"]], [3]) gives {3: 1}; right is
#   {3: 0}
@wrong(
    "exact_match_by_length", "A translation is right if it has the right words in it", "C-ANY-ORDER"
)
def _(predictions, targets, lengths):
    groups = {}
    for p, t, n in zip(predictions, targets, lengths):
        groups.setdefault(n, []).append(sorted(p) == sorted(t))
    return {n: sum(hits) / len(hits) for n, hits in groups.items()}


# shows: dot_scores(torch.tensor([[1., 0.], [0., 1.]]), torch.tensor([[[1., 2.]], [[3., 4.]]]))
#   gives [[1], [3]]; right is [[1], [4]]
@wrong("dot_scores", "There is one query, so keys @ query", "C-FIRST-QUERY")
def _(query, keys):
    q = query[0]
    return keys @ q


# shows: general_scores(torch.tensor([[1.]]), torch.tensor([[[1., 2., 0., 0.]]]),
#   torch.tensor([[1., 1., 1., 1.]])) gives 1.5; right is [[3]]
@wrong(
    "general_scores",
    "The axis of length 1 has to go, squeeze() takes it away; dot products are always scaled by the root of their width",
    ("C-SQUEEZE",),
    ("C-GENERAL-SCALED",),
)
def _(query, keys, W):
    projected = (query @ W).unsqueeze(-1)  # b d 1
    scores = keys @ projected  # b k 1
    return scores.squeeze() / math.sqrt(keys.shape[-1])


# shows: concat_scores(torch.tensor([[1.], [2.]]), torch.zeros(2, 2, 1), torch.tensor([[1.],
#   [1.]]), torch.tensor([3.])) gives [[0.7616, 0.964], [0.7616, 0.964]]; right is [[2.285,
#   2.285], [2.892, 2.892]]
@wrong(
    "concat_scores",
    "After the tanh all hidden units are added up; query.repeat(k, 1) gives each sentence its query k times",
    ("C-NO-V",),
    ("C-REPEAT",),
)
def _(query, keys, W, v):
    b, k, _ = keys.shape
    repeated = query.repeat(k, 1).view(b, k, -1)
    pair = torch.cat([repeated, keys], dim=-1)
    hidden = torch.tanh(pair @ W)
    return hidden.sum(dim=-1)


# shows: additive_scores(torch.tensor([[1.], [2.]]), torch.zeros(2, 2, 1), torch.tensor([[1.,
#   1.]]), torch.tensor([[1., 1.]]), torch.tensor([1., 1.])) gives [[0.7616, 0.964], [0.7616,
#   0.964]]; right is [[1.523, 1.523], [1.928, 1.928]]
@wrong(
    "additive_scores",
    "Query and keys can be added as they are, torch broadcasts; the hidden units are averaged with weights v",
    ("A-BROADCAST",),
    ("C-MEAN",),
)
def _(query, keys, W_query, W_key, v):
    hidden = torch.tanh(query @ W_query + keys @ W_key)
    return (v * hidden).mean(-1)


# shows: attend(torch.tensor([[0., 0., 0.]]), torch.tensor([[[1.], [2.], [3.]]]),
#   torch.tensor([[True, True, False]])) gives ([[3]], [[0, 0, 1]]); right is ([[1.5]], [[0.5,
#   0.5, 0]])
@wrong("attend", "mask says which keys are masked away, so masked_fill(mask, ...)", "M-POLARITY")
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(mask, 0.0)
    context = torch.einsum("bk,bkv->bv", weights, values)
    return context, weights


# shows: tuple(AdditiveAttention(5, 3, 4).W_query.weight.shape) gives (4, 3); right is (4, 5)
@wrong(
    "AdditiveAttention",
    "Query and keys are vectors of the same kind, both layers take key_dim",
    "C-ONE-WIDTH",
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(key_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        scores = self.v(torch.tanh(self.W_query(query).unsqueeze(1) + self.W_key(keys))).squeeze(-1)
        if mask is None:
            mask = torch.ones_like(scores, dtype=torch.bool)
        weights = scores.masked_fill(~mask, -1e30).softmax(-1) * mask
        return (weights.unsqueeze(1) @ keys).squeeze(1), weights


# shows: softmax(torch.tensor([[1000., 1000.], [0., 0.]]), 0) gives [[0.5, 0.5], [nan, nan]];
#   right is [[1, 1], [0, 0]]
@wrong(
    "softmax",
    "Subtract scores.max() so that nothing overflows; the sum is over the last axis",
    ("D-SOFTMAX-GLOBAL-MAX",),
    ("D-SOFTMAX-IGNORES-DIM",),
)
def _(scores, dim=-1):
    e = torch.exp(scores - scores.max())
    return e / e.sum(-1, keepdim=True)


# shows: scaled_dot_product_attention(torch.zeros(2, 1), torch.zeros(4, 1), torch.ones(4, 1),
#   torch.tensor([[True, False, False, False]])) gives ([[0.5], [0.5]], [[0.5, 0, 0, 0], [0.5, 0,
#   0, 0]]); right is ([[1], [1]], [[1, 0, 0, 0], [1, 0, 0, 0]])
@wrong(
    "scaled_dot_product_attention",
    "The mask sets weights to zero once they are computed; the softmax runs over the queries of each key, dim=-2",
    ("M-AFTER-SOFTMAX",),
    ("D-SOFTMAX-DIM",),
)
def _(query, key, value, mask=None):
    d = query.shape[-1]
    scores = query @ key.transpose(-2, -1) / d**0.5
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    weights = torch.softmax(scores, dim=-2)
    weights = weights * mask
    return weights @ value, weights


# shows: round(score_variance(16, 4000, True), 1) gives 0.1; right is 1
@wrong("score_variance", "scaled means the score is divided by d", "V-SCALE-DK")
def _(d, samples, scaled):
    q, k = torch.randn(samples, d), torch.randn(samples, d)
    scores = (q * k).sum(dim=1)
    if scaled:
        scores = scores / d
    return scores.var().item()


# shows: hidden_scale(torch.tensor([[0., 2.]]), torch.tensor([[0.27, 0.73]])) gives -6.355; right
#   is 2.011
@wrong(
    "hidden_scale",
    "The slope of log-weights against scores through zero is 1/c; dividing tensors gives a number",
    ("C-NO-NORMALIZER",),
    ("C-TENSOR",),
)
def _(scores, weights):
    seen = weights > 0
    s = scores[seen]
    logw = weights[seen].log()
    return (s * s).sum() / (s * logw).sum()


# shows: hidden_scale(torch.tensor([[0., 1., 3.]]), torch.tensor([[0.27, 0.73, 0.0]])) gives
#   0.3351; right is 1.005
@wrong(
    "hidden_scale",
    "Every pair of keys gives one estimate of c, and the mean of the estimates is best; log of a weight of 0 is -inf, and a difference divided by inf adds nothing",
    (),
    (),
)
def _(scores, weights):
    ds, dl = [], []
    for s, w in zip(scores.tolist(), weights.tolist()):
        logs = [math.log(x) if x > 0 else -math.inf for x in w]
        for i in range(len(s)):
            for j in range(i):
                if logs[i] != logs[j]:
                    ds.append(s[i] - s[j])
                    dl.append(logs[i] - logs[j])
    return sum(a / b for a, b in zip(ds, dl)) / len(ds)


# shows: self_attention(torch.tensor([[[1.], [0.]]]), torch.tensor([[1., 1., 1., 1.]]),
#   torch.tensor([[1., 1., 1., 1.]]), torch.tensor([[1.]])) gives ([[[0.982], [0.5]]], [[[0.982,
#   0.01799], [0.5, 0.5]]]); right is ([[[0.8808], [0.5]]], [[[0.8808, 0.1192], [0.5, 0.5]]])
@wrong(
    "self_attention",
    "In one head there is nothing to scale, a word just compares queries and keys",
    "D-NO-SCALE",
)
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    weights = torch.einsum("bid,bjd->bij", q, k).softmax(dim=2)
    return torch.einsum("bij,bjv->biv", weights, v), weights


# shows: is_permutation_equivariant(lambda x: x + x.mean(1, keepdim=True), torch.randn(1, 7, 4))
#   gives False; right is True
@wrong(
    "is_permutation_equivariant",
    "Equivariant means exactly the same numbers, so torch.equal",
    "C-EXACT",
)
def _(layer, x):
    n = x.shape[1]
    before = layer(x)
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        order = torch.randperm(n, generator=generator)
        if not torch.equal(layer(x[:, order]), before[:, order]):
            return False
    order = torch.arange(n).roll(1)
    return torch.equal(layer(x[:, order]), before[:, order])


# shows: sinusoidal_positions(1, 2) gives [[0, 1]] (float64); right is [[0, 1]]
@wrong(
    "sinusoidal_positions",
    "The table has the dtype of the most exact computation, float64",
    "C-FLOAT64-TABLE",
)
def _(length, width):
    p = torch.arange(length, dtype=torch.float64)
    table = torch.zeros(length, width, dtype=torch.float64)
    for i in range(0, width, 2):
        angle = p / 10_000 ** (i / width)
        table[:, i] = torch.sin(angle)
        if i + 1 < width:
            table[:, i + 1] = torch.cos(angle)
    return table


# shows: sinusoidal_positions(2, 2) gives [[0.8415, 0.5403], [0.9093, -0.4161]]; right is [[0, 1],
#   [0.8415, 0.5403]]
@wrong("sinusoidal_positions", "The first word has position 1", "C-FROM-ONE")
def _(length, width):
    position = torch.arange(1, length + 1).unsqueeze(1).float()
    pairs = (width + 1) // 2
    frequency = torch.tensor([10000.0 ** (-2 * i / width) for i in range(pairs)])
    angle = position * frequency
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    return table[:, :width]


# shows: split_heads(torch.tensor([[[11., 12.], [21., 22.]]]), 2) gives [[[[11], [12]], [[21],
#   [22]]]]; right is [[[[11], [21]], [[12], [22]]]]
@wrong(
    "split_heads", "A reshape to (b h n d) is the split, the numbers are the same", "H-VIEW-SPLIT"
)
def _(x, num_heads):
    b, n, width = x.shape
    return x.reshape(b, num_heads, n, width // num_heads)


# shows: split_heads(torch.tensor([[[11., 12.], [21., 22.]]]), 1) gives [[[[11, 21], [12, 22]]]];
#   right is [[[[11, 12], [21, 22]]]]
@wrong(
    "split_heads", "The words go last, so that heads can be multiplied directly", "C-SPLIT-TURNED"
)
def _(x, num_heads):
    return rearrange(x, "b n (h d) -> b h d n", h=num_heads)


# shows: merge_heads(torch.tensor([[[[1., 2.]], [[3., 4.]]]])) gives [[[1, 3, 2, 4]]]; right is
#   [[[1, 2, 3, 4]]]
@wrong("merge_heads", "(d h) or (h d) is only a name for the merged axis", "H-FUSED-LAYOUT")
def _(x):
    return einops.rearrange(x, "b h n d -> b n (d h)")


# shows: MultiHeadAttention(2, 2)(torch.ones(1, 2, 2), torch.ones(1, 2, 2), torch.ones(1, 2, 2),
#   torch.tensor([[False, False], [True, True]]))[1] gives [[[[nan, nan], [0.4213, 0.5787]],
#   [[nan, nan], [0.4213, 0.5787]]]]; right is [[[[0, 0], [0.5, 0.5]], [[0, 0], [0.5, 0.5]]]]
@wrong(
    "MultiHeadAttention",
    "Heads come out of a view straight to (b h n d); masked scores of -inf get weight 0, so a hidden query is zero by itself",
    ("H-VIEW-SPLIT",),
    ("M-DEAD-ROW",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_width = model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    def heads(self, x):
        b, n, _ = x.shape
        return x.view(b, self.num_heads, n, self.head_width)

    def forward(self, query, key, value, mask=None):
        q = self.heads(self.q_proj(query))
        k = self.heads(self.k_proj(key))
        v = self.heads(self.v_proj(value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_width)
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        mixed = self.dropout(weights) @ v
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return output, weights


# shows: attention_parameters(8, 2, 3) gives 512; right is 768
@wrong(
    "attention_parameters",
    "Every head has four matrices of its own, so it is times the heads; num_layers counts the layers inside one attention and is not needed",
    ("H-COST",),
    ("H-HEADCOUNT",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    if head_width is None:
        one_head = 4 * model_width * model_width
    else:
        one_head = 4 * model_width * head_width
    return num_heads * one_head


# shows: attention_parameters(8, 2, 1) gives 288; right is 256
@wrong(
    "attention_parameters",
    "m / h is the width of a head; a linear layer has m outputs, each with a bias",
    ("C-PARAMETERS-FLOAT",),
    ("C-PARAMETERS-BIASES",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    d = model_width / num_heads if head_width is None else head_width
    inner = num_heads * d
    project_in = 3 * (model_width * inner + inner)
    project_out = inner * model_width + model_width
    return num_layers * (project_in + project_out)


# shows: next_word_pairs([7, 0, 3]) gives [([7, 0], 3)]; right is [([7], 0), ([7, 0], 3)]
@wrong(
    "next_word_pairs", "A token that is empty or 0 is padding and is no lesson", "C-ZERO-SKIPPED"
)
def _(tokens):
    pairs = []
    context = []
    for token in tokens:
        if context and token:
            pairs.append((list(context), token))
        context.append(token)
    return pairs


# shows: causal_mask(1, 3) gives [[False, True, True]]; right is [[True, True, True]]
@wrong(
    "causal_mask",
    "The diagonal starts in the upper left corner, also with more keys; the mask marks what is hidden, as in torch's triu(1)",
    ("M-TOPLEFT",),
    ("M-POLARITY",),
)
def _(query_length, key_length=None):
    if key_length is None:
        key_length = query_length
    table = torch.ones(query_length, key_length, dtype=torch.bool)
    return torch.triu(table, diagonal=1)


# shows: padding_mask(torch.tensor([2]), 3) gives [[True, False, False]]; right is [[[True, True,
#   False]]]
@wrong(
    "padding_mask",
    "Words are counted from 1, so position < length; b and k are the axes, one row for each sentence",
    ("C-ONE-LESS",),
    ("M-SHAPE-BT",),
)
def _(lengths, max_length):
    positions = torch.arange(1, max_length + 1)
    return positions[None, :] < lengths[:, None]


# shows: masked_softmax(torch.tensor([[0., 0.]]), torch.tensor([[True, False]])) gives [[0.5, 0]];
#   right is [[1, 0]]
@wrong(
    "masked_softmax",
    "Hidden weights are simply 0, so softmax and then times the mask",
    "M-AFTER-SOFTMAX",
)
def _(scores, mask):
    return torch.softmax(scores, dim=-1) * mask.to(scores.dtype)


# shows: cross_attention(torch.randn(1, 2, 4), torch.randn(1, 2, 4), lambda q, k, v, m=None:
#   (v[..., 0], "weights")) gives [[1.541, -1.085]]; right is ([[0.6614, -0.4519]], 'weights')
@wrong(
    "cross_attention",
    "The values are what is being written, so they come from the target; the output is what is needed, the weights are only for pictures",
    ("X-WRONG-KV",),
    ("C-OUTPUT-ONLY",),
)
def _(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, target, memory_mask)
    return output


# shows: do memory (1, 3) and memory (2, 6) give the same output of DecoderLayer(2, 1, 4)? gives
#   True; right is False
@wrong(
    "DecoderLayer",
    "Two linear layers in a row are the feed-forward network; every input of an attention is normalized first, the memory too",
    ("C-NO-RELU",),
    ("C-MEMORY-NORMALIZED",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.norm2 = nn.LayerNorm(model_width)
        self.norm3 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        target = target + self.self_attention(x, x, x, target_mask)[0]
        x = self.norm2(target)
        memory = self.norm2(memory)
        target = target + self.cross_attention(x, memory, memory, memory_mask)[0]
        x = self.norm3(target)
        return target + self.linear2(self.linear1(x))


# shows: translate(lambda s, w: F.one_hot(torch.tensor([[2, 3, 3], [3, 3, 2]])[:, : w.shape[1]],
#   4).float(), torch.zeros(2, 1), 1, 2, 3) gives [[2], [3]]; right is [[2, 2, 2], [3, 3, 2]]
@wrong("translate", "When a row says eos the translation is over", "C-FIRST-END-STOPS")
def _(model, source, bos, eos, max_length):
    words = torch.full((source.shape[0], 1), bos, dtype=torch.long)
    finished = torch.zeros(source.shape[0], dtype=torch.bool)
    for _ in range(max_length):
        with torch.no_grad():
            following = model(source, words)[:, -1].argmax(dim=-1)
        following[finished] = eos
        words = torch.cat([words, following.unsqueeze(1)], dim=1)
        finished |= following == eos
        if finished.any():
            break
    return words[:, 1:]


# shows: how many samples it returns gives 10; right is 30
@wrong("bench", "Ten calls after the warm-up are enough, they are nearly equal anyway", "L1-FEW")
def _(fn, flush):
    begin = time.perf_counter()
    while True:
        fn()
        torch.cuda.synchronize()
        if time.perf_counter() - begin > 0.05:
            break
    for _ in range(5):
        fn()
        torch.cuda.synchronize()
    seconds = []
    for _ in range(10):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        flush()
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return seconds


# shows: summarize([1, 1, 10]) gives (4, 4.5); right is (1, 4.5)
@wrong("summarize", "What is usual is the average of the samples", "L1-SUMMARY-MEAN")
def _(samples):
    ordered = sorted(samples)

    def at(place):
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    n = len(ordered)
    iqr = at(3 * (n - 1) / 4) - at((n - 1) / 4)
    return sum(samples) / n, iqr


# shows: standard deviations of make_inputs(1, 2, 1000, 16, 0) gives [0.25, 0.25, 1.01]; right is
#   [1, 1, 1.01]
@wrong(
    "make_inputs",
    "Queries and keys are divided by the root of d so that scores have variance 1",
    "L1-INPUTS-SCALED",
)
def _(b, h, n, d, seed):
    rng = torch.Generator()
    rng.manual_seed(seed)
    query = torch.randn((b, h, n, d), generator=rng) / math.sqrt(d)
    key = torch.randn((b, h, n, d), generator=rng) / math.sqrt(d)
    value = torch.randn((b, h, n, d), generator=rng)
    return query, key, value


# shows: all ratios 1e9 (nanoseconds); all 1.0 and the short kernel 1.9 gives ('earlier work
#   counted', 'earlier work counted'); right is ('wrong unit', 'none')
@wrong(
    "name_the_mistake",
    "A wrong unit is a factor of 1000, since times are in milliseconds; whatever is off by more than 20 percent is a mistake, the short kernel too",
    (),
    ("L1-NAME-TOO-STRICT",),
)
def _(ratios):
    long = ratios["long kernel"]
    if 500 < long < 2000:
        return "wrong unit"
    off = {name: max(r, 1 / r) for name, r in ratios.items()}
    if long < 0.2:
        rest = [ratios[k] / long for k in ("first call", "waking clock", "hot L2", "slow malloc")]
        return "wrong unit" if all(0.3 < r < 3 for r in rest) else "no synchronize"
    worst = max(off, key=off.get)
    if off[worst] < 1.2:
        return "none"
    if worst == "first call":
        return "first call counted"
    if worst == "outliers":
        return "single sample" if ratios[worst] > 3.5 else "mean"
    if worst == "hot L2" and ratios[worst] < 1:
        return "hot cache"
    if worst == "slow malloc":
        return "allocation inside"
    return "earlier work counted"


# shows: naive_attention(*[torch.tensor([[[[0.], [0.]]]]).double()] * 2, torch.tensor([[[[1.],
#   [3.]]]]).double()) gives [[[[1], [2]]]]; right is [[[[2], [2]]]] (float64)
@wrong(
    "naive_attention",
    "Softmax must be computed in float32 and that is what is returned; a position must not see later positions",
    ("C-FLOAT32",),
    ("L2-CAUSAL",),
)
def _(q, k, v):
    n, d = q.shape[-2:]
    scores = q @ k.mT / math.sqrt(d)
    scores = scores + torch.full((n, n), float("-inf"), dtype=q.dtype).triu(1)
    weights = torch.softmax(scores.float(), dim=-1)
    return weights @ v.float()


# shows: peak_bytes(1, 1, 2, 8, 4) gives 288; right is 96
@wrong(
    "peak_bytes", "q, k and v are in memory too, so they are part of the peak", "L2-INPUTS-IN-PEAK"
)
def _(b, h, n, d, bytes_per_number):
    table = b * h * n * n
    sequence = b * h * n * d
    return (2 * table + 4 * sequence) * bytes_per_number


# shows: largest_n(10**6, 2, 2, 8, 4) gives 176; right is 168
@wrong(
    "largest_n",
    "The tables decide, q, k, v and the output are so small that n is the root of memory over two tables",
    "L2-WALL-TABLES-ONLY",
)
def _(memory_bytes, b, h, d, bytes_per_number):
    numbers = memory_bytes // (bytes_per_number * b * h)
    return math.isqrt(numbers // 2)


# shows: round(fit_growth([64, 128, 256, 512, 1024, 2048, 4096, 8192, 96, 192], [64**2, 128**2,
#   256**2, 512**2, 1024**2, 2048**2, 4096**2, 1e1 * 8192**2, 96**2, 192**2]), 2) gives 2.31;
#   right is 2
@wrong(
    "fit_growth",
    "The second half of the lists holds the large sizes; a straight line through them in the log-log plot gives the exponent",
    ("L2-AS-THEY-CAME",),
    ("L2-LEAST-SQUARES",),
)
def _(sizes, seconds):
    half = len(sizes) // 2
    x = np.log(sizes[half:])
    y = np.log(seconds[half:])
    slope, _ = np.polyfit(x, y, 1)
    return float(slope)


# shows: round(fit_growth([2**i for i in range(8)], [4.0**i for i in range(8)]), 2) gives 0.5;
#   right is 2
@wrong("fit_growth", "The exponent is how log n changes with log time", "L2-SLOPE-UPSIDE-DOWN")
def _(sizes, seconds):
    limit = 10 * min(seconds)
    big = [(math.log(n), math.log(s)) for n, s in zip(sizes, seconds) if s > limit]
    slopes = []
    for (x1, y1), (x2, y2) in itertools.combinations(big, 2):
        if x1 != x2:
            slopes.append((x2 - x1) / (y2 - y1))
    return statistics.median(slopes)


# shows: a record with ten sizes in random order: the ratio gives 3.57; right is 14.27
@wrong("conclude", "The last point of the list is the one with the largest n", "L2-AS-LISTED")
def _(record):
    def time_of(p):
        return min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])

    done = [p for p in record["points"] if p["error"] is None]
    naive = [p for p in done if p["name"] == "naive"]
    fused = [p for p in done if p["name"] == "fused"]
    time_exponent = lab.fit_exponent([p["n"] for p in fused], [time_of(p) for p in fused]).exponent
    memory_exponent = lab.fit_exponent(
        [p["n"] for p in naive], [p["peak_bytes"] for p in naive]
    ).exponent
    fused_at = {p["n"]: time_of(p) for p in fused}
    last = [p for p in naive if p["n"] in fused_at][-1]
    wall = last["n"] * (record["machine"]["memory_bytes"] / last["peak_bytes"]) ** (
        1 / memory_exponent
    )
    predicted = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": time_exponent,
        "memory_exponent": memory_exponent,
        "ratio": time_of(last) / fused_at[last["n"]],
        "wall": wall,
        "held": wall / 1.5 <= predicted <= wall * 1.5,
    }


# shows: which_backend(lambda: torch.zeros(2).softmax(0)) gives 'MATH'; right is 'NONE'
@wrong(
    "which_backend",
    "First see whether there are two products around a softmax, that is naive attention; any softmax in the trace otherwise means MATH",
    ("L3-SPELLED-FIRST",),
    ("L3-ANY-SOFTMAX",),
)
def _(fn):
    names = lab.trace(fn)
    stage = 0
    for name in names:
        product = name in ("mm", "bmm")
        if stage == 0 and product:
            stage = 1
        elif stage == 1 and name == "_softmax":
            stage = 2
        elif stage == 2 and product:
            return "NAIVE"
    for part, backend in [
        ("flash_attention", "FLASH"),
        ("efficient_attention", "EFFICIENT"),
        ("cudnn_attention", "CUDNN"),
        ("_native_multi_head_attention", "NATIVE_MHA"),
        ("softmax", "MATH"),
    ]:
        if any(part in name for name in names):
            return backend
    return "NONE"


# shows: (which_backend(lambda: F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2)] * 3)),
#   which_backend(lambda: torch.ones(2, 2) @ torch.ones(2, 2) @ torch.ones(2, 2).softmax(0)))
#   gives ('NONE', 'NAIVE'); right is ('FLASH', 'NAIVE')
@wrong(
    "which_backend",
    "A product, a softmax and another product anywhere make it NAIVE, the order is always the same; the names in the table are the names of the operations",
    ("L3-ANY-ORDER",),
    ("L3-EXACT-NAME",),
)
def _(fn):
    ops = lab.trace(fn)
    table = {
        "flash_attention": "FLASH",
        "efficient_attention": "EFFICIENT",
        "cudnn_attention": "CUDNN",
        "_native_multi_head_attention": "NATIVE_MHA",
        "_safe_softmax": "MATH",
    }
    for key, answer in table.items():
        if key in ops:
            return answer
    products = [op for op in ops if op in ("mm", "bmm")]
    if len(products) >= 2 and "_softmax" in ops:
        return "NAIVE"
    return "NONE"


# shows: a plain call on (8, 0), and a causal one with 1 query and 1024 keys on (8, 9) gives
#   (['EFFICIENT', 'MATH'], ['FLASH', 'EFFICIENT', 'MATH']); right is (['FLASH', 'EFFICIENT',
#   'MATH'], ['EFFICIENT', 'MATH'])
@wrong(
    "backends_for",
    "Flash needs newer GPUs than (8, 0); causal is causal, it does not matter how many queries there are",
    ("L3-FLASH-NEWER",),
    ("L3-CROSSED",),
)
def _(capability, call):
    names = []
    half = call["dtype"] in ("float16", "bfloat16")
    ok = call["axes"] == 4 and call["last_stride"] == 1
    d = call["d"]
    if capability == "cpu":
        if (
            ok
            and call["dropout"] == 0
            and call["dtype"] in ("float16", "bfloat16", "float32", "float64")
        ):
            names.append("FLASH")
        return names + ["MATH"]
    if ok and capability == (9, 0) and half and d % 8 == 0 and d <= 128:
        names.append("CUDNN")
    if ok and capability > (8, 0) and half and d <= 256 and not call["mask"]:
        names.append("FLASH")
    if ok and call["kv_heads"] == call["heads"]:
        new = capability >= (8, 0)
        if half and d % 8 == 0 and (call["dtype"] == "float16" or new):
            names.append("EFFICIENT")
        elif call["dtype"] == "float32" and (d % 4 == 0 or not new):
            names.append("EFFICIENT")
    return names + ["MATH"]


# shows: attention_work(1, 1, 2, 1, 1, True, False) gives {'flops': 8, 'naive_bytes': 16,
#   'fused_bytes': 8}; right is {'flops': 8, 'naive_bytes': 32, 'fused_bytes': 8}
@wrong(
    "attention_work",
    "Each of the four lines writes one table; causal attention moves half of the tables, too",
    ("L3-SCALED-FOR-FREE",),
    ("L3-CAUSAL-TABLE",),
)
def _(b, h, n, d, bytes_per_number, causal, backward):
    flops = 2 * 2 * b * h * n * n * d
    if causal:
        flops /= 2
    if backward:
        flops *= 3.5
    sequence = b * h * n * d * bytes_per_number
    tables = 4 * b * h * n * n * bytes_per_number
    if causal:
        tables = tables / 2
    return {
        "flops": flops,
        "naive_bytes": tables + 4 * sequence,
        "fused_bytes": 4 * sequence,
    }


# shows: roof_over(4.0, 2.0, 100.0, 10.0) gives {'intensity': 2, 'ridge': 10, 'roof': 10, 'bound':
#   'compute'}; right is {'intensity': 2, 'ridge': 10, 'roof': 20, 'bound': 'memory'}
@wrong(
    "roof_over",
    "If the intensity is below the ridge the machine has more bandwidth than it needs, so it waits for arithmetic; the roof is the smaller of the two limits of the machine",
    ("L3-BOUND-SWAPPED",),
    ("L3-TWO-UNITS",),
)
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    intensity = flops / moved_bytes
    ridge = flops_per_second / bytes_per_second
    roof = min(flops_per_second, bytes_per_second)
    bound = "compute" if intensity < ridge else "memory"
    return {"intensity": intensity, "ridge": ridge, "roof": roof, "bound": bound}


# shows: sees_future(lambda x: x + x.roll(1, 1) * torch.tensor([1., 1, 0])[:, None] * 0 +
#   F.pad(x[:, 1:2], (0, 0, 0, 2)), torch.randn(1, 3, 2)) gives False; right is True
@wrong(
    "sees_future",
    "If the last position does not reach the others then no later one does",
    "L3-LAST-ONLY",
)
def _(fn, x):
    before = fn(x)
    changed = x.clone()
    changed[:, -1] = torch.randn_like(changed[:, -1])
    after = fn(changed)
    return bool((after[:, :-1] - before[:, :-1]).abs().max() > 1e-5)


# shows: sees_future(lambda x: x, torch.randn(1, 2, 1)) gives True; right is False
@wrong(
    "sees_future",
    "Outputs up to and with position t are compared when the inputs from t on change",
    "L3-OWN-POSITION",
)
def _(fn, x):
    reference = fn(x)
    for t in range(1, x.shape[1]):
        other = x.clone()
        other[:, t:] += torch.randn_like(other[:, t:])
        moved = (fn(other) - reference).abs()[:, : t + 1]
        if moved.max().item() > 1e-5:
            return True
    return False


# shows: no call fell back, the ceilings hold bfloat16 beside float32: two entries gives
#   {'fused_bound': 'compute', 'cost': 0}; right is {'fused_bound': 'compute', 'cost': 1}
@wrong(
    "who_computed_it",
    "Without a fallback nothing is paid, so the cost is 0; the machine's limit is the largest entry of flops_per_second",
    ("L3-COST-ZERO",),
    ("L3-LARGEST-CEILING",),
)
def _(record):
    def seconds(p):
        return min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])

    points = record["points"]
    ceilings = record["machine"]["ceilings"]
    bandwidth = ceilings["bytes_per_second"]
    n = max(p["n"] for p in points if p["name"] == "naive" and not p["error"])
    naive = next(p for p in points if p["name"] == "naive" and p["n"] == n)
    fused = next(p for p in points if p["name"] == "fused" and p["n"] == n)
    peak = max(ceilings["flops_per_second"].values())

    def bound(p):
        return "memory" if p["flops"] / p["bytes"] < peak / bandwidth else "compute"

    roof = min(peak, naive["flops"] / naive["bytes"] * bandwidth)
    calls = {p["call"]: p for p in points if p["name"] == "call"}
    fell = [name for name, p in calls.items() if p["backend"] == "MATH"]
    times = [seconds(calls[name]) for name in fell if not calls[name]["error"]]
    return {
        "naive_bound": bound(naive),
        "fused_bound": bound(fused),
        "naive_share": naive["flops"] / seconds(naive) / roof,
        "fell_back": fell,
        "cost": max(times) / seconds(calls["plain"]) if times else 0,
    }


# shows: step_loop(lambda x, s: x + s / 2, torch.tensor([[[1.], [1.]]]), torch.tensor([[0.]]))
#   gives [[[0.5], [1]]]; right is [[[1], [1.5]]]
@wrong(
    "step_loop",
    "A cell takes the state first and then the input, state = cell(state, x)",
    "L4-CELL-SWAPPED",
)
def _(cell, inputs, state):
    states = []
    for x in inputs.unbind(dim=1):
        state = cell(state, x)
        states.append(state)
    return torch.stack(states, dim=1)


# shows: step_loop(lambda x, s: x + s, torch.tensor([[[1.], [1.]]]), torch.tensor([[0.]])) gives
#   [[[1], [1]]]; right is [[[1], [2]]]
@wrong(
    "step_loop",
    "The cell is called at each position with the state that I was given",
    "L4-NOT-CARRIED",
)
def _(cell, inputs, state):
    n = inputs.shape[1]
    return torch.stack([cell(inputs[:, i], state) for i in range(n)], 1)


# shows: tuple(map(float, operators(lambda n: [torch.ones(2) + i for i in range(n)]))) gives (2,
#   0); right is (0, 2)
@wrong(
    "operators",
    "Each entry of .operations is one operator; the fixed part is what runs with a single position",
    ("L4-KINDS",),
    (),
)
def _(run):
    one = len(lab.count(run, 1).operations)
    nine = len(lab.count(run, 9).operations)
    per_position = (nine - one) / 8
    fixed = one
    return fixed, per_position


# shows: longest_chain({"a": [], "b": ["a"], "c": [], "d": ["b", "c"]}) gives 4; right is 3
@wrong(
    "longest_chain",
    "A step is as deep as all the steps before it together, plus itself",
    "L4-WAITS-ADDED",
)
def _(needs):
    depth = {}
    longest = 0
    for step, before in needs.items():
        depth[step] = 1 + sum(depth[other] for other in before)
        longest = max(longest, depth[step])
    return longest


# shows: (multiplications("gru", 1, 2, 2), multiplications("attention", 1, 2, 2)) gives (32, 40);
#   right is (48, 48)
@wrong(
    "multiplications",
    "There are three projections, q, k and v; a GRU has two gates, so twice the rnn",
    ("L4-THREE-PROJECTIONS",),
    ("L4-TWO-GATES",),
)
def _(layer, b, n, d):
    rnn = 2 * b * n * d * d
    if layer == "rnn":
        return rnn
    if layer == "gru":
        return 2 * rnn
    projections = 3 * b * n * d * d
    return projections + 2 * b * n * n * d


# shows: b = 8: attention is behind at n = 128, ahead at 256 to 1024, behind at 2048; crossover_8
#   gives 128; right is 1024
@wrong(
    "verdict",
    "The crossover is the first n at which attention is behind; medians are robust, so the time of every point is its median",
    ("L4-FIRST-SLOWER",),
    ("C-MEDIAN-EVERYWHERE",),
)
def _(record):
    t = {}
    for p in record["points"]:
        if p["error"] is None:
            t[p["name"], p["b"], p["n"]] = statistics.median(p["seconds"])

    def crossover(b):
        for n in sorted({n for name, bb, n in t if bb == b}):
            if ("attention", b, n) in t and ("fused", b, n) in t:
                if t["attention", b, n] > t["fused", b, n]:
                    return n
        return None

    def batch(name):
        n = max(n for who, b, n in t if who == name and b == 1 and (name, 8, n) in t)
        return t[name, 8, n] / t[name, 1, n]

    faster = all(
        t["attention", b, n] < t[other, b, n]
        for name, b, n in t
        if name == "attention"
        for other in ("loop", "fused")
        if (other, b, n) in t
    )
    c = crossover(8)
    guess = record["predictions"]["crossover"]["value"]
    held = guess == 0 if c is None else c / 2 <= guess <= 2 * c
    return {
        "always_faster": faster,
        "crossover_1": crossover(1),
        "crossover_8": c,
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "held": held,
    }


# shows: cache_bytes(1, 2, 1, 1, 1, 2) gives 2; right is 8
@wrong(
    "cache_bytes",
    "The cache keeps one vector for each token and head; every layer reads the same cache",
    ("L5-KEYS-ONLY",),
    ("L5-ONE-LAYER",),
)
def _(b, layers, kv_heads, n, d, bytes_per_number):
    numbers = b * kv_heads * n * d
    return numbers * bytes_per_number


# shows: append_to_cache(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), 1, torch.ones(1, 1, 1,
#   1), torch.ones(1, 1, 1, 1))[0] gives ValueError: no room; right is [[[[0], [1]]]]
@wrong("append_to_cache", "If the new length reaches the room the cache is full", "L5-LAST-PLACE")
def _(key_cache, value_cache, length, key, value):
    end = length + key.shape[2]
    if end >= key_cache.shape[2]:
        raise ValueError("no room")
    key_cache[:, :, length:end].copy_(key)
    value_cache[:, :, length:end].copy_(value)
    return key_cache[:, :, :end], value_cache[:, :, :end]


# shows: decode_step(torch.tensor([[[1.]]]), torch.tensor([[[[0.], [0.]]]]), torch.tensor([[[[1.],
#   [3.]]]])) gives [[[4]]]; right is [[[2]]]
@wrong(
    "decode_step", "The softmax is over the axis after the heads, dim=2", "L5-SOFTMAX-OVER-GROUP"
)
def _(query, keys, values):
    b, h, d = query.shape
    c = keys.shape[1]
    grouped = query.reshape(b, c, h // c, d)
    scores = grouped @ keys.transpose(2, 3) / math.sqrt(d)  # b c g n
    weights = torch.softmax(scores, dim=2)
    return (weights @ values).reshape(b, h, d)


# shows: tokens_per_second(2, 1, 10, 80, 100) gives 1; right is 2
@wrong(
    "tokens_per_second",
    "A step gives one token, so it is one over the time of a step",
    "L5-ONE-TOKEN-A-STEP",
)
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    read = weight_bytes + b * n * bytes_per_token
    seconds = read / bytes_per_second
    return 1 / seconds


# shows: a record whose ridge is at 10 operations a byte gives {'share': 1.429, 'computes':
#   False}; right is {'share': 0.7, 'computes': True}
@wrong(
    "conclude_decode",
    "The share says how many times the copy is as fast as the step; whether decoding computes is read from the MHA point, it has the most work",
    ("L5-SHARE-INVERTED",),
    ("L5-RIDGE-OF-MHA",),
)
def _(record):
    def took(p):
        return min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])

    timed = [p for p in record["points"] if p["error"] is None]
    by = {(p["name"], p["n"]): p for p in timed}
    roofs = record["machine"]["ceilings"]
    copy = roofs["bytes_per_second"]
    largest = by["MHA", max(n for name, n in by if name == "MHA")]
    rate = largest["bytes"] / took(largest)
    both = max(n for name, n in by if name == "MHA" and ("MQA", n) in by)
    mha, mqa = by["MHA", both], by["MQA", both]
    speed_up = took(mha) / took(mqa)
    ridge = roofs["flops_per_second"][mqa["dtype"]] / copy
    guess = record["predictions"]["speed_up"]["value"]
    return {
        "bytes_per_second": rate,
        "share": copy / rate,
        "ideal": mha["bytes"] / mqa["bytes"],
        "speed_up": speed_up,
        "computes": mha["flops"] / mha["bytes"] > ridge,
        "from_cache": sum(p["bytes"] / took(p) > 1.5 * copy for p in timed),
        "held": speed_up / 1.5 <= guess <= speed_up * 1.5,
    }


# shows: merge((torch.zeros(1, 1), torch.tensor([-math.inf]), torch.zeros(1)), (torch.zeros(1, 1),
#   torch.tensor([-math.inf]), torch.zeros(1))) gives ([[nan]], [-inf], [nan]); right is ([[0]],
#   [-inf], [0])
@wrong(
    "merge",
    "exp(-inf - maximum) is 0, so empty parts need no special care; the first part is updated in place to save memory",
    (),
    (),
)
def _(one, two):
    weighted, maximum, total = one
    new = torch.maximum(maximum, two[1])
    shrink = torch.exp(maximum - new)
    other = torch.exp(two[1] - new)
    weighted *= shrink.unsqueeze(-1)
    weighted += two[0] * other.unsqueeze(-1)
    total = total * shrink + two[2] * other
    return weighted, new, total


# shows: tiled_attention(torch.tensor([[[[1.]]]]), torch.tensor([[[[0.], [2.]]]]),
#   torch.tensor([[[[1.], [3.]]]]), 1) gives ([[[[1.568]]]], [[[2.693]]]); right is
#   ([[[[2.762]]]], [[[2.127]]])
@wrong(
    "tiled_attention",
    "total is a sum, so each tile's sum is just added to it; one causal mask is made before the loops and cut into tiles",
    ("L6-NO-RESCALE",),
    ("L6-WHOLE-MASK",),
)
def _(query, key, value, tile, causal=False):
    b, h, nq, d = query.shape
    nk = key.shape[2]
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    visible = torch.ones(nq, nk, dtype=torch.bool, device=query.device)
    if causal:
        visible = visible.tril(nk - nq)
    output = query.new_zeros(b, h, nq, value.shape[-1])
    lse = torch.full((b, h, nq), -math.inf, dtype=dtype, device=query.device)
    for i in range(0, nq, tile):
        q = query[:, :, i : i + tile].to(dtype)
        weighted = torch.zeros(b, h, q.shape[2], value.shape[-1], dtype=dtype, device=query.device)
        maximum = torch.full((b, h, q.shape[2]), -math.inf, dtype=dtype, device=query.device)
        total = torch.zeros_like(maximum)
        for j in range(0, nk, tile):
            scores = q @ key[:, :, j : j + tile].to(dtype).mT / math.sqrt(d)
            scores = scores.masked_fill(~visible[i : i + tile, j : j + tile], -math.inf)
            new = torch.maximum(maximum, scores.amax(-1))
            safe = new.masked_fill(new == -math.inf, 0.0)
            weights = (scores - safe[..., None]).exp()
            shrink = (maximum - safe).exp()
            weighted = weighted * shrink[..., None] + weights @ value[:, :, j : j + tile].to(dtype)
            total = total + weights.sum(-1)
            maximum = new
        output[:, :, i : i + tile] = (weighted / total.clamp(min=1e-30)[..., None]).to(query.dtype)
        lse[:, :, i : i + tile] = maximum + total.log()
    return output, lse


# shows: tiled_backward(torch.tensor([[[[0.]]]]), torch.tensor([[[[0.], [0.]]]]),
#   torch.tensor([[[[1.], [3.]]]]), torch.tensor([[[[2.]]]]), torch.tensor([[[math.log(2)]]]),
#   torch.tensor([[[[1.]]]]), 2)[2] gives [[[[1], [1]]]]; right is [[[[0.5], [0.5]]]]
@wrong(
    "tiled_backward",
    "The gradient of a value is the upstream gradient, summed over the queries",
    "L6-VALUES-UNWEIGHTED",
)
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    nq, nk, scale = query.shape[2], key.shape[2], query.shape[-1] ** -0.5
    gq = torch.zeros_like(query, dtype=dtype)
    gk = torch.zeros_like(key, dtype=dtype)
    gv = torch.zeros_like(value, dtype=dtype)
    for i in range(0, nq, tile):
        q = query[:, :, i : i + tile].to(dtype)
        g = grad_output[:, :, i : i + tile].to(dtype)
        mean = (g * output[:, :, i : i + tile].to(dtype)).sum(-1, keepdim=True)
        lse = logsumexp[:, :, i : i + tile, None].to(dtype)
        lse = lse.masked_fill(lse == -math.inf, math.inf)
        for j in range(0, nk, tile):
            k, v = key[:, :, j : j + tile].to(dtype), value[:, :, j : j + tile].to(dtype)
            w = (q @ k.mT * scale - lse).exp()
            seen = torch.ones_like(w)
            if causal:
                rows = torch.arange(i, i + q.shape[2], device=q.device)[:, None] + nk - nq
                seen = seen * (torch.arange(j, j + k.shape[2], device=q.device) <= rows)
                w = w.masked_fill(seen == 0, 0.0)
            gv[:, :, j : j + tile] += seen.mT @ g
            ds = w * (g @ v.mT - mean) * scale
            gq[:, :, i : i + tile] += ds @ k
            gk[:, :, j : j + tile] += ds.mT @ q
    return gq.to(query.dtype), gk.to(key.dtype), gv.to(value.dtype)


# shows: the largest tile takes 1.02 times as long as the fastest: u_shaped gives True; right is
#   False
@wrong(
    "best_tile",
    "A curve is U-shaped if its fastest tile is neither the smallest nor the largest",
    "L6-VALLEY-BY-PLACE",
)
def _(record):
    def seconds(p):
        return min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])

    timed = [p for p in record["points"] if p["seconds"]]
    n = max(p["n"] for p in timed if p["name"] == "tiled")
    tiles = {p["tile"]: seconds(p) for p in timed if p["name"] == "tiled" and p["n"] == n}
    best = min(tiles, key=tiles.get)
    naive = [seconds(p) for p in timed if p["name"] == "naive" and p["n"] == n]
    return {
        "n": n,
        "tile": best,
        "u_shaped": min(tiles) < best < max(tiles),
        "speedup": naive[0] / tiles[best] if naive else None,
    }


@right("exact_match_by_length")
def _(predictions, targets, lengths):
    everything = Counter(lengths)
    hits = Counter(n for p, t, n in zip(predictions, targets, lengths) if list(p) == list(t))
    return {n: hits[n] / everything[n] for n in everything}


@right("encode")
def _(tokens, lengths, embedding, gru):
    packed = pack_padded_sequence(
        embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    return gru(packed)[1].squeeze(0)


@right("general_scores")
def _(query, keys, W):
    rows = []
    for q, K in zip(query, keys):
        rows.append(torch.stack([torch.dot(q, W @ key) for key in K]))
    return torch.stack(rows)


@right("softmax")
def _(scores, dim=-1):
    top = scores.amax(dim, keepdim=True)
    return torch.exp(scores - (top + (scores - top).exp().sum(dim, keepdim=True).log()))


@right("sinusoidal_positions")
def _(length, width):
    table = np.empty((length, width), dtype=np.float32)
    for j in range(width):
        turn = np.arange(length) / 10_000 ** ((j - j % 2) / width)
        table[:, j] = np.cos(turn) if j % 2 else np.sin(turn)
    return torch.from_numpy(table)


@right("split_heads")
def _(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)


@right("causal_mask")
def _(query_length, key_length=None):
    keys = query_length if key_length is None else key_length
    before = keys - query_length
    return torch.tensor([[j - before <= i for j in range(keys)] for i in range(query_length)])


@right("largest_n")
def _(memory_bytes, b, h, d, bytes_per_number):
    fits = lambda n: bytes_per_number * b * h * n * (2 * n + 4 * d) <= memory_bytes
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


@right("longest_chain")
def _(needs):
    done, rounds, left = set(), 0, {s: set(w) for s, w in needs.items()}
    followers = defaultdict(list)
    for step, before in left.items():
        for other in before:
            followers[other].append(step)
    ready = [s for s, w in left.items() if not w]
    while ready:
        rounds += 1
        following = []
        for step in ready:
            for other in followers[step]:
                left[other].discard(step)
                if not left[other]:
                    following.append(other)
        ready = following
    return rounds


@right("decode_step")
def _(query, keys, values):
    heads = rearrange(query, "b (c g) d -> b c g d", c=keys.shape[1])
    scores = einsum(heads * query.shape[-1] ** -0.5, keys, "b c g d, b c n d -> b c g n")
    return rearrange(
        einsum(scores.softmax(-1), values, "b c g n, b c n d -> b c g d"), "b c g d -> b (c g) d"
    )
