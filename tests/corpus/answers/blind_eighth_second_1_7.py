"""Answers to chapters 1–7 and the labs by another writer who had the notebooks alone, half with two mistakes.

What the judge said before anything was mended by these is in tests/bench/answers.md. Which names are
fair was said by somebody else, with the judge's in view.
"""
# ruff: noqa: B007, B905, E501, E731, E741, RUF005, RUF059, SIM102, SIM113

import collections
import functools
import math
import statistics
import time

import einops
import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from torch import nn

from attncourse import lab
from attncourse.multihead import MultiHeadAttention
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right


# shows: f(t([[1]]),t([1]),emb,gru)
#   gives [[[0.371, -0.1193, -0.1609, 0.1634]]]
#   not   [[0.371, -0.1193, -0.1609, 0.1634]]
@wrong(
    "encode",
    "With a list of places, indexing takes one place from each row, as I do with arrays",
    "C-ALL-BY-ALL",
)
def _(tokens, lengths, embedding, gru):
    states, _last = gru(embedding(tokens))
    return states[:, lengths - 1]


# shows: f(t([[1,2],[3,0]]),t([2,1]),emb,gru)
#   gives [[-0.02517, 0.3673, -0.4152, -0.3632], [0.3432, 0.5398, -0.3514, 0.4889]]
#   not   [[-0.02517, 0.3673, -0.4152, -0.3632], [-0.02815, 0.4006, -0.3044, -0.3117]]
@wrong(
    "encode",
    "Padding is id 0, so I count what is not 0; the state after n tokens stands at index n",
    ("C-LENGTHS-FROM-ZEROS",),
    ("C-ONE-TOO-FAR",),
)
def _(tokens, lengths, embedding, gru):
    states = gru(embedding(tokens))[0]
    real = (tokens != 0).sum(dim=1)
    end = tokens.shape[1] - 1
    picked = []
    for row, count in zip(states, real.tolist()):
        picked.append(row[min(count, end)])
    return torch.stack(picked)


@right("encode")
def _(tokens, lengths, embedding, gru):
    everything, _last = gru(embedding(tokens))
    place = torch.arange(tokens.shape[1], device=tokens.device)
    chosen = (place[None] == lengths[:, None] - 1).to(everything.dtype)
    return torch.einsum("bn,bnh->bh", chosen, everything)


# shows: keep(f,t([[3,3,2,0],[4,2,0,0]]),1)
#   gives ([[1, 3, 3, 2], [1, 4, 2, 0]], [[1, 3, 3, 2], [1, 4, 2, 0]])
#   not   ([[1, 3, 3, 2], [1, 4, 2, 0]], [[3, 3, 2, 0], [4, 2, 0, 0]])
@wrong("teacher_inputs", "A new name gives me a new tensor", "C-EDITS-THE-TARGET")
def _(target, bos):
    inputs = target
    inputs[:, 1:] = target[:, :-1].clone()
    inputs[:, 0] = bos
    return inputs


# shows: f(t([[3]]),1)
#   gives [[1, 3]]
#   not   [[1]]
@wrong(
    "teacher_inputs",
    "The decoder reads bos and then the whole sentence; ones times bos makes a fine column",
    ("C-NOTHING-DROPPED",),
    ("C-IDS-AS-FLOATS",),
)
def _(target, bos):
    first = torch.ones(target.shape[0], 1) * bos
    return torch.cat((first, target), dim=1)


# shows: g(lambda x:f(x,t([[1,2,3],[0,3,3]]),3),R(0,2,3,4))
#   gives error RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn
#   not   [tensor(2, 3, 4)[0.0523, -0.282, 0.126, 0.105, …]]
@wrong(
    "sequence_loss",
    "The mean of the picked log-probabilities can be taken in NumPy and made a tensor again",
    "C-LOSS-CUT-OFF",
)
def _(logits, target, pad):
    logp = logits.log_softmax(-1)
    picked = logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    keep = target != pad
    nll = -picked.detach().numpy()[keep.numpy()]
    return torch.tensor(nll.mean())


# shows: f(t([[[0.,1.],[2.,0.]]]),t([[1,0]]),0)
#   gives 0.1566
#   not   0.3133
@wrong(
    "sequence_loss",
    "A small number inside the log prevents log of zero; the mean is over all places of the batch",
    ("C-LOG-OF-SOFTMAX",),
    ("C-PADS-IN-THE-COUNT",),
)
def _(logits, target, pad):
    real = (target != pad).to(logits.dtype)
    logp = torch.log(torch.softmax(logits, -1) + 1e-9)
    onehot = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
    each = -(logp * onehot).sum(-1) * real
    return each.mean()


# shows: whole(f(table_step([[[1,3,2,2]],[[2,3,2,2]],[[2,1,2,1]]]),0,0,2,4,1),4,2)
#   gives [[1, 3, 2, 2]]
#   not   [[1, 3, 1, 1]]
@wrong(
    "greedy_decode",
    "The state is for me to keep and step gets the first one each time; a row that has ended is filled with bos",
    ("C-STATE-NOT-KEPT",),
    (),
)
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    over = torch.zeros(batch_size, dtype=torch.bool)
    said = []
    while len(said) < max_length and not over.all():
        logits, _new = step(token, state)
        token = logits.argmax(-1)
        token[over] = bos
        said.append(token)
        over = over | (token == eos)
    out = torch.stack(said, 1)
    return F.pad(out, (0, max_length - out.shape[1]), value=eos)


# shows: whole(f(table_step([[[1,3,3,2],[2,2,3,3]]]),0,0,2,5,2),5,2)
#   gives [[1, 2, 2, 2, 2], [2, 2, 2, 2, 2]]
#   not   [[1, 3, 2, 2, 2], [2, 2, 2, 2, 2]]
@wrong("greedy_decode", "I can stop as soon as an eos has been written", "C-STOPS-WITH-ANY")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    result = torch.full((batch_size, max_length), eos)
    alive = torch.ones(batch_size, dtype=torch.bool)
    for i in range(max_length):
        logits, state = step(token, state)
        token = torch.where(alive, logits.argmax(dim=-1), eos)
        result[:, i] = token
        alive &= token != eos
        if not alive.all():
            break
    return result


# shows: f([[]],[[1]],[1])
#   gives {1: 1}
#   not   {1: 0}
@wrong(
    "exact_match_by_length",
    "Comparing word by word with zip finds every error",
    "C-ZIP-STOPS-EARLY",
)
def _(predictions, targets, lengths):
    groups = collections.defaultdict(list)
    for p, q, n in zip(predictions, targets, lengths):
        good = all(a == b for a, b in zip(p, q))
        groups[n].append(good)
    return {n: sum(g) / len(g) for n, g in groups.items()}


# shows: f([[1]],[[1]],[3])
#   gives {1: 1}
#   not   {3: 1}
@wrong(
    "exact_match_by_length",
    "All the right words are there, so it counts; the length is that of the right translation",
    ("C-ANY-ORDER",),
    ("C-OWN-LENGTHS",),
)
def _(predictions, targets, lengths):
    result = {}
    lens = [len(q) for q in targets]
    for n in sorted(set(lens)):
        mine = [i for i, l in enumerate(lens) if l == n]
        hits = [set(predictions[i]) == set(targets[i]) for i in mine]
        result[n] = float(np.mean(hits))
    return result


# shows: f(R(0,2,3),R(1,2,2,3))
#   gives [[0.8064, 1.076], [-0.2196, 0.7291]]
#   not   [[0.8064, 1.452], [0.1577, 0.7291]]
@wrong("dot_scores", "Broadcasting lines the query up with the keys by itself", "A-BROADCAST")
def _(query, keys):
    return (query * keys).sum(-1)


# shows: f(t([[1.,2.]]),t([[[3.,4.]]]),t([[0.,1.],[2.,0.]]))
#   gives 14
#   not   [[16]]
@wrong(
    "general_scores",
    "The matrix multiplies the keys from the right; squeeze removes the axis of one that is left",
    ("C-W-TRANSPOSED",),
    (),
)
def _(query, keys, W):
    projected = keys @ W
    return torch.matmul(projected, query.unsqueeze(-1)).squeeze()


@right("general_scores")
def _(query, keys, W):
    rows = []
    for q, k in zip(query, keys):
        rows.append(torch.stack([(torch.outer(q, key) * W).sum() for key in k]))
    return torch.stack(rows)


# shows: f(R(0,2,2),R(1,2,3,2),R(2,4,3),R(3,3))
#   gives [[0.6098, -0.5563, 0.4014], [-0.6107, 0.4007, -0.6397]]
#   not   [[0.6098, 0.3137, 0.4014], [-0.6107, -0.743, -0.6397]]
@wrong(
    "concat_scores",
    "Tiling the query k times and reshaping puts a copy beside each key",
    "C-REPEAT",
)
def _(query, keys, W, v):
    b, k, _d = keys.shape
    tiled = query.repeat(k, 1).reshape(b, k, -1)
    hidden = torch.tanh(torch.cat([tiled, keys], -1) @ W)
    return hidden @ v


# shows: f(R(0,1,2),R(1,1,1,2),R(2,4,3),R(3,3))
#   gives [[0.7159]]
#   not   [[0.6098]]
@wrong(
    "concat_scores",
    "The key comes first in the pair; tanh is the last step of the network",
    ("C-KEYS-FIRST",),
    ("C-TANH-LAST",),
)
def _(query, keys, W, v):
    q = query[:, None, :].expand(-1, keys.shape[1], -1)
    pair = torch.cat((keys, q), dim=2)
    return torch.tanh(pair @ W @ v)


# shows: f(R(0,1,2),R(1,1,1,2),R(2,2,3),R(4,2,3),R(3,3))
#   gives [[0.02573]]
#   not   [[0.1376]]
@wrong(
    "additive_scores",
    "tanh bends each of the two projections; v gives an average over the hidden units",
    ("C-TANH-EACH",),
    ("C-MEAN",),
)
def _(query, keys, W_query, W_key, v):
    from_query = (query @ W_query).unsqueeze(1)
    from_keys = keys @ W_key
    bent = torch.tanh(from_query) + torch.tanh(from_keys)
    return (bent * v).mean(dim=-1)


# shows: f(t([[1.,2.]]),t([[[1.],[3.]]]),t([[False,False]]))
#   gives ([[nan]], [[nan, nan]])
#   not   ([[0]], [[0, 0]])
@wrong(
    "attend",
    "One maximum for the whole table makes exp safe; a sum of zero does not happen",
    (),
    ("M-DEAD-ROW",),
)
def _(scores, values, mask=None):
    seen = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    low = scores.masked_fill(~seen, -1e30)
    e = torch.exp(low - low.max().detach()) * seen
    total = e.sum(-1, keepdim=True)
    weights = e / total
    return einsum(weights, values, "b k, b k v -> b v"), weights


# shows: names(f,2,3,4)
#   gives ['W_key.weight', 'W_query.bias', 'W_query.weight', 'v.weight']
#   not   ['W_key.weight', 'W_query.weight', 'v.weight']
@wrong(
    "AdditiveAttention",
    "Layers are made as always; hiding a key is multiplying its weight by zero",
    ("A-BIAS",),
    ("M-AFTER-SOFTMAX",),
)
class _(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        energy = self.v(torch.tanh(self.W_query(query)[:, None] + self.W_key(keys)))
        weights = torch.softmax(energy[..., 0], dim=-1)
        if mask is not None:
            weights = weights * mask
        return (weights[..., None] * keys).sum(1), weights


# shows: f(t([[0.,1.],[2.,0.]]))
#   gives [[0.2689, 0.8808], [0.7311, 0.1192]]
#   not   [[0.2689, 0.7311], [0.8808, 0.1192]]
@wrong("softmax", "Sum and divide along the axis, torch puts the axis back", "D-SOFTMAX-KEEPDIM")
def _(scores, dim=-1):
    shifted = scores - scores.amax(dim, keepdim=True)
    e = shifted.exp()
    return e / e.sum(dim)


@right("softmax")
def _(scores, dim=-1):
    largest = scores.sort(dim).values.select(dim, -1).unsqueeze(dim)
    powers = torch.exp2((scores - largest) * math.log2(math.e))
    return powers / powers.cumsum(dim).select(dim, -1).unsqueeze(dim)


# shows: f(R(0,2,2,4),R(1,2,3,4),R(2,2,3,4))
#   gives (tensor(2, 2, 4)[-1.08, 0.971, -1.25, -0.868, …], [[[0.7567, 0.2297, 0.01354], [0.2374, 0.6431, 0.1195]], [[0.7068, 0.1856, 0.1076], [0.1141, 0.633…
#   not   (tensor(2, 2, 4)[-1.08, 0.98, -1.23, -0.783, …], [[[0.6718, 0.2892, 0.03906], [0.2748, 0.556, 0.1691]], [[0.6051, 0.2351, 0.1599], [0.1636, 0.5497,…
@wrong(
    "scaled_dot_product_attention", "The width is the second number of the shape", "D-SCALE-SECOND"
)
def _(query, key, value, mask=None):
    scores = einsum(query, key, "... q d, ... k d -> ... q k") / query.shape[1] ** 0.5
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
    return weights @ value, weights


# shows: near(f(4,20000,False),4.)
#   gives False
#   not   True
@wrong(
    "score_variance",
    "One query is enough, many keys meet it; to scale the scores is to divide the variance by the root",
    ("V-ONE-QUERY",),
    ("V-SCALES-THE-VARIANCE",),
)
def _(d, samples, scaled):
    q = torch.randn(1, d)
    k = torch.randn(samples, d)
    scores = (q * k).sum(-1)
    variance = scores.var().item()
    return variance / math.sqrt(d) if scaled else variance


# shows: near(f(4,20000,False),4.)
#   gives False
#   not   True
@wrong("score_variance", "How much numbers vary is what std says", "V-STANDARD-DEVIATION")
def _(d, samples, scaled):
    rng = np.random.default_rng()
    q, k = rng.standard_normal((2, samples, d))
    dots = np.einsum("sd,sd->s", q, k)
    if scaled:
        dots = dots / np.sqrt(d)
    return float(np.std(dots))


# shows: near(f(S1*8,sm(S1*8,8.,M3)),8.,.05)
#   gives False
#   not   True
@wrong("hidden_scale", "A masked key has its score too, so it is in the sum", "C-GRID-UNMASKED")
def _(scores, weights):
    best, least = 1.0, float("inf")
    hidden = weights == 0
    for c in torch.logspace(-1, 3, 2000).tolist():
        x = scores / c
        error = (x.softmax(-1) - weights).square().sum().item()
        if error < least:
            best, least = c, error
    return best


# shows: near(f(S1,sm(S1,1.)),1.,.05)
#   gives False
#   not   True
@wrong(
    "hidden_scale",
    "The logarithm undoes the softmax, log10 as on my calculator; the slope of log-weights over scores is the factor",
    (),
    (),
)
def _(scores, weights):
    s, w = scores.numpy(), weights.numpy()
    ds, dl = [], []
    for row_s, row_w in zip(s, w):
        keep = row_w > 0
        a = row_s[keep]
        logs = np.log10(row_w[keep])
        ds.extend(a - a.mean())
        dl.extend(logs - logs.mean())
    slope = np.dot(ds, dl) / np.dot(ds, ds)
    return float(slope)


# shows: f(R(0,1,2,3),R(1,3,4),R(2,3,4),R(3,3,2))
#   gives ([[[0.7823, 3.231], [0.6243, 2.878]]], [[[0.5813, 0.4617], [0.4187, 0.5383]]])
#   not   ([[[0.8753, 3.213], [0.7998, 3.144]]], [[[0.7108, 0.2892], [0.6183, 0.3817]]])
@wrong(
    "self_attention",
    "The width under the root is that of the word; a weight is a share among the queries",
    ("D-SCALE-DMODEL",),
    ("D-SOFTMAX-DIM",),
)
def _(x, W_query, W_key, W_value):
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    d = x.shape[-1]
    weights = torch.softmax(q @ k.mT / d**0.5, dim=1)
    return weights @ v, weights


# shows: f(R(0,1,2,3),R(1,3,4),R(2,3,4),R(3,3,2))
#   gives ([[[0.7608, 3.108], [0.6762, 3.03]]], [[[0.5705, 0.4295], [0.4668, 0.5332]]])
#   not   ([[[0.8753, 3.213], [0.7998, 3.144]]], [[[0.7108, 0.2892], [0.6183, 0.3817]]])
@wrong("self_attention", "Keys ask and queries answer, the table is the same", "C-ROLES-SWAPPED")
def _(x, W_query, W_key, W_value):
    queries = einsum(x, W_query, "b n m, m d -> b n d")
    keys = einsum(x, W_key, "b n m, m d -> b n d")
    values = einsum(x, W_value, "b n m, m v -> b n v")
    scores = einsum(keys, queries, "b i d, b j d -> b i j") / math.sqrt(keys.shape[2])
    weights = scores.softmax(-1)
    return einsum(weights, values, "b i j, b j v -> b i v"), weights


# shows: f(lambda x:x+x.flip(1),R(0,1,4,2))
#   gives True
#   not   False
@wrong(
    "is_permutation_equivariant",
    "Backward is the hardest order, if that works all others do",
    "C-ONLY-REVERSED",
)
def _(layer, x):
    n = x.shape[1]
    orders = [torch.arange(n - 1, -1, -1)]
    return all(torch.allclose(layer(x[:, p]), layer(x)[:, p], atol=1e-5) for p in orders)


# shows: f(lambda x:x/3+x.sum(1,keepdim=True),R(0,2,50,3)*3)
#   gives False
#   not   True
@wrong(
    "is_permutation_equivariant",
    "A seed makes the test repeatable; equal outputs are equal in every bit",
    ("C-SEEDED",),
    ("C-EXACT",),
)
def _(layer, x):
    torch.manual_seed(0)
    g = None
    before = layer(x)
    for _ in range(10):
        order = torch.randperm(x.shape[1], generator=g)
        after = layer(x[:, order])
        if not torch.equal(after, before[:, order]):
            return False
    return True


# shows: f(1,2)
#   gives [[0.8415, 0.5403]]
#   not   [[0, 1]]
@wrong(
    "sinusoidal_positions",
    "The first word is number one; all sines first and the cosines behind them",
    ("C-FROM-ONE",),
    ("C-HALVES",),
)
def _(length, width):
    p = torch.arange(1, length + 1, dtype=torch.float64)[:, None]
    i = torch.arange((width + 1) // 2, dtype=torch.float64)
    angle = p / 10000 ** (2 * i / width)
    both = torch.cat((angle.sin(), angle.cos()), dim=1)
    return both[:, :width].float()


# shows: f(2,2)
#   gives [[0, 1], [0.8415, 0.9999]]
#   not   [[0, 1], [0.8415, 0.5403]]
@wrong(
    "sinusoidal_positions",
    "The exponent is the number of the feature over the width, for cosines too",
    "C-FREQ-EACH",
)
def _(length, width):
    pos = np.arange(length)[:, np.newaxis]
    i = np.arange(width)[np.newaxis]
    angles = pos / np.power(10000, i / np.float64(width))
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return torch.from_numpy(angles).float()


# shows: f(t([[[1,2,3,4,5,6]]]),2)
#   gives [[[[1, 3, 5]], [[2, 4, 6]]]]
#   not   [[[[1, 2, 3]], [[4, 5, 6]]]]
@wrong("split_heads", "Heads take the numbers in turn, one for each", "H-FUSED-LAYOUT")
def _(x, num_heads):
    return rearrange(x, "b n (d h) -> b h n d", h=num_heads)


# shows: f(torch.arange(4).reshape(1,2,1,2))
#   gives [[[0, 2, 1, 3]]]
#   not   [[[0, 1, 2, 3]]]
@wrong(
    "merge_heads", "First move the heads to the end, then flatten the last two", "H-FUSED-LAYOUT"
)
def _(x):
    moved = x.permute(0, 2, 3, 1)
    return moved.flatten(-2)


# shows: seeded(f,4,2)(R(0,1,1,4),R(1,1,2,4),R(2,1,2,4))
#   gives ([[[-0.5071, -0.2859, 0.3262, -0.3726]]], [[[[0.807, 0.193]], [[0.5103, 0.4897]]]])
#   not   ([[[-0.5201, -0.2853, 0.3217, -0.3922]]], [[[[0.8832, 0.1168]], [[0.5145, 0.4855]]]])
@wrong(
    "MultiHeadAttention",
    "The scale is the root of the model's width; a mask gets one more axis in front",
    ("D-SCALE-DMODEL",),
    ("C-MASK-MEETS-HEADS",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.drop = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            rearrange(proj(x), "b n (h d) -> b h n d", h=self.h)
            for proj, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        scores = q @ k.mT / math.sqrt(query.shape[-1])
        if mask is not None:
            mask = mask.unsqueeze(0)
            scores = scores.masked_fill(~mask, -1e30)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask
        out = rearrange(self.drop(weights) @ v, "b h q d -> b q (h d)")
        return self.out_proj(out), weights


# shows: seeded(f,4,2,dropout=1.0)(R(0,1,1,4),R(1,1,2,4),R(2,1,2,4))
#   gives ([[[-0.4323, 0.1495, 0.2096, -0.03993]]], [[[[0, 0]], [[0, 0]]]])
#   not   ([[[-0.4323, 0.1495, 0.2096, -0.03993]]], [[[[0.8832, 0.1168]], [[0.5145, 0.4855]]]])
@wrong(
    "MultiHeadAttention",
    "F.dropout knows by itself when it is training; the weights that I used are the weights to return",
    ("D-SDPA-DROPOUT",),
    ("C-DROPOUT-RETURNED",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(model_width, model_width))
        self.num_heads, self.p = num_heads, dropout

    def forward(self, query, key, value, mask=None):
        b, n, m = query.shape
        d = m // self.num_heads
        q = self.q_proj(query).view(b, -1, self.num_heads, d).transpose(1, 2)
        k = self.k_proj(key).view(b, -1, self.num_heads, d).transpose(1, 2)
        v = self.v_proj(value).view(b, -1, self.num_heads, d).transpose(1, 2)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / d**0.5
        weights = scores
        if mask is not None:
            seen = mask if mask.dim() == 2 else mask[:, None]
            weights = weights.masked_fill(~seen, -1e30).softmax(-1) * seen
        else:
            weights = weights.softmax(-1)
        dropped = F.dropout(weights, self.p)
        out = (dropped @ v).transpose(1, 2).reshape(b, n, m)
        return self.out_proj(out), dropped


# shows: f(2,1,1)
#   gives 12
#   not   16
@wrong(
    "attention_parameters",
    "Query, key and value are three matrices; a head's matrix is m by d and all heads share it when the width is given",
    ("C-PARAMETERS-NO-OUT",),
    ("C-PARAMETERS-TOTAL-WIDTH",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    if head_width is None:
        inner = model_width
    else:
        inner = head_width
    return 3 * model_width * inner * num_layers


# shows: f(8,2,3)
#   gives 1536
#   not   768
@wrong("attention_parameters", "Every head has four square matrices of the model's width", "H-COST")
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width or model_width // num_heads
    one_head = 4 * model_width * model_width
    return num_layers * num_heads * one_head


# shows: f([3,0,5])
#   gives [([3, 0], 5)]
#   not   [([3], 0), ([3, 0], 5)]
@wrong(
    "next_word_pairs",
    "I append each token to the context and store it; there is a pair whenever a following token exists",
    ("C-ONE-LIST",),
    ("C-ZERO-SKIPPED",),
)
def _(tokens):
    pairs, context = [], []
    for token, following in zip(tokens, tokens[1:]):
        context.append(token)
        if following:
            pairs.append((context, following))
    return pairs


# shows: f(1)
#   gives [[1]]
#   not   [[True]]
@wrong("causal_mask", "The lower triangle of ones is the mask", "C-NOT-BOOLEAN")
def _(query_length, key_length=None):
    k = key_length or query_length
    table = torch.ones(query_length, k)
    return table.tril(k - query_length)


@right("causal_mask")
def _(query_length, key_length=None):
    k = query_length if key_length is None else key_length
    rows = []
    for left in range(query_length - 1, -1, -1):
        rows.append([True] * (k - left) + [False] * left)
    return torch.tensor(rows, dtype=torch.bool).reshape(query_length, k)


# shows: f(t([1]),2)
#   gives [[[True]]]
#   not   [[[True, False]]]
@wrong("padding_mask", "The table ends with the longest sentence of the batch", "C-LONGEST")
def _(lengths, max_length):
    k = int(lengths.max())
    real = torch.zeros(len(lengths), 1, k, dtype=torch.bool)
    for i, n in enumerate(lengths.tolist()):
        real[i, :, :n] = True
    return real


# shows: f(t([[-3e4,1e4,-3e4]]),t([True,False,True]))
#   gives [[0, 1, 0]]
#   not   [[0.5, 0, 0.5]]
@wrong(
    "masked_softmax",
    "Minus ten thousand is low enough, and safe in half precision; I compute in float32 and that is what I hand back",
    ("M-SMALL-FILL",),
    ("C-FLOAT32-RETURNED",),
)
def _(scores, mask):
    x = scores.float() if scores.dtype == torch.float16 else scores
    x = x.masked_fill(~mask, -1e4)
    weights = x.softmax(-1) * mask.any(-1, keepdim=True)
    return weights


# shows: keep(f,t([[0.,1.]]),t([[True,False]]))
#   gives ([[1, 0]], [[0, -3.403e+38]])
#   not   ([[1, 0]], [[0, 1]])
@wrong(
    "masked_softmax", "Filling with the trailing underscore is the same as without it", "M-INPLACE"
)
def _(scores, mask):
    lowest = torch.finfo(scores.dtype).min
    hidden = scores.masked_fill_(~mask, lowest)
    return torch.where(mask, torch.softmax(hidden, -1), 0.0)


# shows: f(R(0,1,1,4),R(1,1,1,4),CA)
#   gives ([[[-0.4311, 0.6189, -0.1238, -0.4623]]], [[[1]]])
#   not   ([[[-0.4311, 0.6189, -0.1238, -0.4623]]], [[[[1]], [[1]]]])
@wrong(
    "cross_attention",
    "In torch a True in the mask means ignore; the returned weights are the mean over heads as in nn.MultiheadAttention",
    ("M-POLARITY",),
    ("H-AVG-WEIGHTS",),
)
def _(target, memory, attention, memory_mask=None):
    if memory_mask is not None:
        memory_mask = ~memory_mask
    output, weights = attention(target, memory, memory, memory_mask)
    return output, weights.mean(dim=1)


# shows: f(R(0,1,1,4),R(1,1,1,4),CA)
#   gives ([[[-0.3025, 0.1766, -0.1113, -0.7485]]], [[[[1]], [[1]]]])
#   not   ([[[-0.4311, 0.6189, -0.1238, -0.4623]]], [[[[1]], [[1]]]])
@wrong(
    "cross_attention",
    "Query and value come from the target, only the key is the source's",
    "X-WRONG-KV",
)
def _(target, memory, attention, memory_mask=None):
    return attention(target, memory, target, memory_mask)


# shows: seeded(f,4,2,8)(R(0,1,1,4),R(1,1,1,4))
#   gives [[[-6.81, -2.819, 0.395, -2.072]]]
#   not   [[[-0.8225, -1.778, -2.073, -1.192]]]
@wrong(
    "DecoderLayer",
    "The second norm is for the memory too; the sum starts from the normalized vector",
    ("C-MEMORY-NORMALIZED",),
    ("C-SUM-OF-NORMED-SELF",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(model_width) for _ in range(3))
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = self.norm1(target)
        x = x + self.self_attention(x, x, x, target_mask)[0]
        m = self.norm2(memory)
        x = x + self.cross_attention(self.norm2(x), m, m, memory_mask)[0]
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))


# shows: seeded(f,4,2,8)(R(0,1,1,4),R(1,1,1,4))
#   gives [[[-0.8902, 0.7777, -2.175, 0.2585]]]
#   not   [[[-0.8225, -1.778, -2.073, -1.192]]]
@wrong(
    "DecoderLayer",
    "Only the query side is normalized in self-attention, keys and values stay raw",
    "C-QUERY-NORMED-ONLY",
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
        normed = self.norm1(target)
        source = target
        heard, _w = self.self_attention(normed, source, source, target_mask)
        target = target + heard
        read, _w = self.cross_attention(self.norm2(target), memory, memory, memory_mask)
        target = target + read
        hidden = F.relu(self.linear1(self.norm3(target)))
        return target + self.linear2(hidden)


# shows: f(Fixed([[3,2]]),t([[5]]),1,2,1)
#   gives [[]]
#   not   [[3]]
@wrong("translate", "bos is one of the max_length words", "C-LIMIT-COUNTS-BOS")
def _(model, source, bos, eos, max_length):
    b = source.shape[0]
    words = source.new_full((b, max_length + 1), eos)
    words[:, 0] = bos
    ended = torch.zeros(b, dtype=torch.bool)
    for t in range(max_length - 1):
        scores = model(source, words[:, : t + 1])
        guess = scores[:, t].argmax(-1)
        guess[ended] = eos
        words[:, t + 1] = guess
        ended |= guess == eos
    return words[:, 1:max_length]


@right("sequence_loss")
def _(logits, target, pad):
    total, count = 0.0, 0
    for scores, words in zip(logits, target):
        for row, word in zip(scores, words.tolist()):
            if word != pad:
                total = total + (row - row[word]).logsumexp(0)
                count += 1
    return total / count


@right("MultiHeadAttention")
class _(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(model_width, model_width) for _ in range(4)
        )
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        pieces, tables = [], []
        for q, k, v in zip(
            self.q_proj(query).chunk(self.num_heads, -1),
            self.k_proj(key).chunk(self.num_heads, -1),
            self.v_proj(value).chunk(self.num_heads, -1),
        ):
            scores = torch.bmm(q * q.shape[-1] ** -0.5, k.mT)
            if mask is None:
                table = scores.softmax(-1)
            else:
                dead = ~mask.any(-1, keepdim=True)
                scores = scores.masked_fill(~(mask | dead), float("-inf"))
                table = scores.softmax(-1).masked_fill(dead, 0.0)
            tables.append(table)
            pieces.append(self.dropout(table) @ v)
        return self.out_proj(torch.cat(pieces, -1)), torch.stack(tables, 1)


@right("sinusoidal_positions")
def _(length, width):
    hands = -(-width // 2)
    angle = np.outer(np.arange(length), 10000.0 ** (-2 * np.arange(hands) / width))
    turning = 1j * np.exp(-1j * angle)  # real part: sine, imaginary part: cosine
    table = turning.view(np.float64).reshape(length, 2 * hands)
    return torch.tensor(table[:, :width], dtype=torch.float32)


# shows: panel(f)
#   gives {'long kernel': 'right', 'short kernel': 'right', 'first call': 'right', 'waking clock': 'right', 'outliers': 'right', 'hot L2': '0.5 times', 'dirt…
#   not   {'long kernel': 'right', 'short kernel': 'right', 'first call': 'right', 'waking clock': 'right', 'outliers': 'right', 'hot L2': 'right', 'dirty qu…
@wrong("bench", "One flush before all samples empties the cache", "L1-NO-FLUSH")
def _(fn, flush):
    for _ in range(300):
        fn()
    flush()
    times = []
    for _ in range(30):
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        fn()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    return times


# shows: f([1.,2.])
#   gives (1.5, 1.5)
#   not   (1.5, 0.5)
@wrong(
    "summarize",
    "sort leaves my list sorted and that is all it does; statistics has quantiles, it is the same rule",
    ("L1-SUMMARY-IN-PLACE",),
    ("L1-SUMMARY-EXCLUSIVE",),
)
def _(samples):
    samples.sort()
    ordered = samples
    first, middle, third = statistics.quantiles(ordered, n=4)
    return middle, third - first


# shows: f([1.,2.])
#   gives (1.5, 0)
#   not   (1.5, 0.5)
@wrong("summarize", "A quartile is a sample, so its place is rounded down", "L1-SUMMARY-NO-SHARE")
def _(samples):
    s = np.sort(samples)
    n = len(s)
    q1, q3 = (np.take(s, int((n - 1) * share)) for share in (0.25, 0.75))
    return float(np.median(s)), float(q3 - q1)


@right("summarize")
def _(samples):
    ordered = torch.tensor(samples, dtype=torch.float64).sort().values
    place = (len(samples) - 1) * torch.tensor([1, 2, 3], dtype=torch.float64) / 4
    low = place.floor().long()
    high = (low + 1).clamp(max=len(samples) - 1)
    a, m, z = torch.lerp(ordered[low], ordered[high], place - low).tolist()
    return m, z - a


# shows: (lambda a,b,c:(torch.equal(a,b),torch.equal(b,c)))(*f(1,1,4,4,0))
#   gives (True, True)
#   not   (False, False)
@wrong(
    "make_inputs",
    "A generator with the seed for each of the three makes each repeatable; rand is random enough",
    ("L1-INPUTS-ALIKE",),
    ("L1-INPUTS-UNIFORM",),
)
def _(b, h, n, d, seed):
    out = []
    for _ in range(3):
        g = torch.Generator().manual_seed(seed)
        out.append(torch.rand(b, h, n, d, generator=g))
    return tuple(out)


# shows: [x.dtype for x in f(1,1,2,2,0)]
#   gives [torch.float64, torch.float64, torch.float64]
#   not   [torch.float32, torch.float32, torch.float32]
@wrong(
    "make_inputs",
    "NumPy's generator has a seed of its own, and from_numpy gives the usual floats",
    "L1-INPUTS-DOUBLE",
)
def _(b, h, n, d, seed):
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((3, b, h, n, d))
    query, key, value = torch.from_numpy(draws)
    return query, key, value


# shows: f(ra(short_kernel=2.0))
#   gives 'earlier work counted'
#   not   'none'
@wrong(
    "name_the_mistake",
    "The entry farthest from one is the largest one; a short kernel that takes twice as long is off as well",
    (),
    ("L1-NAME-TOO-STRICT",),
)
def _(ratios):
    rows = dict(ratios)
    size = lambda r: abs(r - 1)
    if all(0.8 < r < 1.25 for r in rows.values()):
        return "none"
    usual = statistics.median(ratios.values())
    if not 0.1 < usual < 50 and max(ratios.values()) / min(ratios.values()) < 20:
        return "wrong unit"
    name = max(rows, key=lambda k: size(rows[k]))
    if rows[name] < 1:
        return "hot cache" if name == "hot L2" else "no synchronize"
    if name == "outliers":
        return "mean" if rows[name] < 3.5 else "single sample"
    return {
        "first call": "first call counted",
        "slow malloc": "allocation inside",
    }.get(name, "earlier work counted")


# shows: f(R(0,1,1,2,1),R(1,1,1,2,1),R(2,1,1,2,1))
#   gives [[[[0.1445], [0.0242]]]]
#   not   [[[[0.1752], [0.06657]]]]
@wrong(
    "naive_attention",
    "Each column of the table is shared out; the root is of the number of positions",
    ("L2-SOFTMAX-AXIS",),
    ("L2-SCALE-BY-N",),
)
def _(q, k, v):
    b, h, n, d = q.shape
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(n)
    return torch.softmax(scores, 2) @ v


# shows: f(1,1,1,1,4)
#   gives 4
#   not   12
@wrong(
    "peak_bytes",
    "The weights take the place of the scores; the output comes when the tables are gone",
    ("L2-ONE-TABLE",),
    ("L2-TABLES-ONLY",),
)
def _(b, h, n, d, bytes_per_number):
    table = b * h * n * n
    tables = 1 * table
    output = 0
    return bytes_per_number * (tables + output)


# shows: f(0,1,1,1,4)
#   gives 1
#   not   0
@wrong(
    "largest_n",
    "The peak of the last task is everything; at least one position always fits",
    ("L2-WALL-NO-INPUTS",),
    ("L2-AT-LEAST-ONE",),
)
def _(memory_bytes, b, h, d, bytes_per_number):
    n = 1
    while True:
        m = n + 1
        need = b * h * bytes_per_number * (2 * m * m + 1 * m * d)
        if need > memory_bytes:
            return n
        n = m


# shows: f(10000,1,1,4,4)
#   gives 32
#   not   31
@wrong(
    "largest_n",
    "Solving the quadratic equation gives n, rounded to a whole number",
    "L2-ROUNDED-UP",
)
def _(memory_bytes, b, h, d, bytes_per_number):
    numbers = memory_bytes / (b * h * bytes_per_number)
    n = (-4 * d + math.sqrt(16 * d * d + 8 * numbers)) / 4
    return round(n)


# shows: near(float(f(SZ[::-1],[max(256**2,n**2)*1e-9 for n in SZ[::-1]])),2.,.1)
#   gives False
#   not   True
@wrong(
    "fit_growth",
    "The lists go from small to large, so the second half are the large sizes; least squares averages one wild value away",
    ("L2-AS-THEY-CAME",),
    ("L2-LEAST-SQUARES",),
)
def _(sizes, seconds):
    x, y = np.log(sizes), np.log(seconds)
    half = len(x) // 2
    x, y = x[half:], y[half:]
    return float(np.polyfit(x, y, 1)[0])


# shows: near(float(f(SZ,[max(2048**2,n**2)*1e-9 for n in SZ][:5]+[n**2*1e-9 for n in SZ[5:]])),2.,.05)
#   gives False
#   not   True
@wrong(
    "fit_growth",
    "The median of all slopes forgives everything, small sizes included",
    "L2-ALL-SIZES",
)
def _(sizes, seconds):
    pairs = sorted(zip(sizes, seconds))
    slopes = [
        math.log(t2 / t1) / math.log(n2 / n1)
        for i, (n1, t1) in enumerate(pairs)
        for n2, t2 in pairs[i + 1 :]
    ]
    return statistics.median(slopes)


# shows: f(rec2())
#   gives {'time_exponent': 2, 'memory_exponent': 2, 'ratio': 2.25, 'wall': 3.277e+04, 'held': False}
#   not   {'time_exponent': 2, 'memory_exponent': 2, 'ratio': 3, 'wall': 3.277e+04, 'held': False}
@wrong(
    "conclude",
    "Naive memory is n squared, so the wall is a square root away; a time is the median, whatever the clock",
    ("L2-ASSUMED-SQUARE",),
    ("C-MEDIAN-EVERYWHERE",),
)
def _(record):
    def seconds(p):
        if False:
            return min(p["seconds"])
        return statistics.median(p["seconds"])

    ok = [p for p in record["points"] if p["error"] is None]
    naive = {p["n"]: p for p in ok if p["name"] == "naive"}
    fused = {p["n"]: p for p in ok if p["name"] == "fused"}
    big = sorted(fused)[len(fused) // 2 :]
    peaks = sorted(naive)
    time_p = lab.fit_exponent(big, [seconds(fused[n]) for n in big]).exponent
    mem_p = lab.fit_exponent(peaks, [naive[n]["peak_bytes"] for n in peaks]).exponent
    both = max(naive.keys() & fused.keys())
    last = peaks[-1]
    factor = record["machine"]["memory_bytes"] / naive[last]["peak_bytes"]
    wall = last * factor ** (0.5)
    guess = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": time_p,
        "memory_exponent": mem_p,
        "ratio": seconds(naive[both]) / seconds(fused[both]),
        "wall": wall,
        "held": 1 / 1.5 <= guess / wall <= 1.5,
    }


# shows: f(lambda:torch.softmax(q@k.mT,-1))
#   gives 'NAIVE'
#   not   'NONE'
@wrong(
    "which_backend",
    "A softmax between products is naive, whatever else ran; any product before it is enough",
    ("L3-MATH-IS-NAIVE",),
    ("L3-ONE-PRODUCT",),
)
def _(fn):
    names = lab.trace(fn)

    def naive():
        for i, name in enumerate(names):
            if "_softmax" in name and any("mm" in x for x in names[:i]):
                if True:
                    return True
        return False

    if naive():
        return "NAIVE"
    for part, word in (
        ("flash_attention", "FLASH"),
        ("efficient_attention", "EFFICIENT"),
        ("cudnn_attention", "CUDNN"),
        ("_native_multi_head_attention", "NATIVE_MHA"),
        ("_safe_softmax", "MATH"),
    ):
        if any(part in name for name in names):
            return word
    return "NONE"


# shows: f('cpu',call(dtype='float32'))
#   gives ['MATH']
#   not   ['FLASH', 'MATH']
@wrong(
    "backends_for",
    "FLASH has the same rules on the CPU, half precision and a width of 256 at most; no mask for cuDNN, as for flash",
    ("L3-CPU-AS-GPU",),
    (),
)
def _(capability, call):
    if call["axes"] != 4 or call["last_stride"] != 1:
        return ["MATH"]
    kind, d = call["dtype"], call["d"]
    half = kind in ("float16", "bfloat16")
    if capability == "cpu":
        fine = call["dropout"] == 0 and half and d <= 256
        return ["FLASH", "MATH"] if fine else ["MATH"]
    names = []
    if capability == (9, 0) and half and d % 8 == 0 and d <= 128 and not call["mask"]:
        names.append("CUDNN")
    uneven = call["causal"] and call["queries"] != call["keys"]
    if capability >= (8, 0) and half and d <= 256 and not call["mask"] and not uneven:
        names.append("FLASH")
    if call["kv_heads"] == call["heads"]:
        new = capability >= (8, 0)
        if kind == "float32" and (not new or d % 4 == 0):
            names.append("EFFICIENT")
        if (kind == "float16" or kind == "bfloat16" and new) and d % 8 == 0:
            names.append("EFFICIENT")
    return names + ["MATH"]


# shows: f((7,5),call(dtype='float32',d=63))
#   gives ['MATH']
#   not   ['EFFICIENT', 'MATH']
@wrong(
    "backends_for",
    "Efficient attention wants a width that is a multiple of eight",
    "L3-ONE-MULTIPLE",
)
def _(capability, call):
    c = call
    plain = c["axes"] == 4 and c["last_stride"] == 1
    sixteen = c["dtype"] in {"float16", "bfloat16"}
    if capability == "cpu":
        cpu = plain and not c["dropout"] > 0
        cpu = cpu and (sixteen or c["dtype"] in {"float32", "float64"})
        return ["FLASH"] * cpu + ["MATH"]
    ampere = capability >= (8, 0)
    step = 8
    may = {
        "CUDNN": plain and capability == (9, 0) and sixteen and c["d"] % 8 == 0 and c["d"] <= 128,
        "FLASH": plain
        and ampere
        and sixteen
        and c["d"] <= 256
        and not c["mask"]
        and not (c["causal"] and c["queries"] != c["keys"]),
        "EFFICIENT": plain
        and c["kv_heads"] == c["heads"]
        and c["d"] % step == 0
        and (c["dtype"] in {"float16", "float32"} or c["dtype"] == "bfloat16" and ampere),
        "MATH": True,
    }
    return [name for name, yes in may.items() if yes]


# shows: f(1,1,1,1,4,False,False)
#   gives {'flops': 2, 'naive_bytes': 40, 'fused_bytes': 16}
#   not   {'flops': 4, 'naive_bytes': 40, 'fused_bytes': 16}
@wrong(
    "attention_work",
    "A multiplication with its addition is one operation; forward and backward together are 2.5 times the forward pass",
    ("L3-MULTIPLY-ONLY",),
    ("L3-BACKWARD-ALONE",),
)
def _(b, h, n, d, bytes_per_number, causal, backward):
    flops = 2 * 1 * b * h * n * n * d
    if causal:
        flops /= 2
    if backward:
        flops *= 2.5
    table, sequence = b * h * n * n, b * h * n * d
    return {
        "flops": flops,
        "naive_bytes": (6 * table + 4 * sequence) * bytes_per_number,
        "fused_bytes": 4 * sequence * bytes_per_number,
    }


# shows: f(1,1,1,1,4,False,False)
#   gives {'flops': 4, 'naive_bytes': 28, 'fused_bytes': 16}
#   not   {'flops': 4, 'naive_bytes': 40, 'fused_bytes': 16}
@wrong(
    "attention_work", "What was just written is still there and need not be read", "L3-WRITES-ONLY"
)
def _(b, h, n, d, bytes_per_number, causal, backward):
    seq = b * h * n * d * bytes_per_number
    tab = b * h * n * n * bytes_per_number
    ops = 4 * b * h * n * n * d
    half = 0.5 if causal else 1
    steps = [2 * seq + tab, tab, tab, seq + seq]
    return {
        "flops": ops * half * (3.5 if backward else 1),
        "naive_bytes": sum(steps),
        "fused_bytes": 4 * seq,
    }


# shows: f(100,10,4,2)
#   gives {'intensity': 10, 'ridge': 2, 'roof': 20, 'bound': 'compute'}
#   not   {'intensity': 10, 'ridge': 2, 'roof': 4, 'bound': 'compute'}
@wrong("roof_over", "The roof is the slope times the intensity", "L3-NO-CEILING")
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    x = flops / moved_bytes
    ridge = flops_per_second / bytes_per_second
    roof = x * bytes_per_second
    bound = "memory" if x < ridge else "compute"
    return {"intensity": x, "ridge": ridge, "roof": roof, "bound": bound}


@right("roof_over")
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    computing, moving = flops / flops_per_second, moved_bytes / bytes_per_second
    slower = np.argmax([computing, moving])
    return {
        "intensity": flops / moved_bytes,
        "ridge": flops_per_second / bytes_per_second,
        "roof": flops / (computing, moving)[slower],
        "bound": ("compute", "memory")[slower],
    }


# shows: f(lambda x:x+x.flip(1),torch.zeros(1,3,2))
#   gives False
#   not   True
@wrong("sees_future", "Later numbers are changed by scaling them", "L3-DOUBLED")
def _(fn, x):
    before = fn(x)
    for i in range(1, x.shape[1]):
        other = x.clone()
        other[:, i:] *= 3
        after = fn(other)
        moved = (after - before).abs()[:, :i]
        if moved.max() > 1e-5:
            return True
    return False


# shows: (lambda x:(f(lambda y:y*2,x),x))(R(0,1,2,1))
#   gives (False, [[[1.541], [1.323]]])
#   not   (False, [[[1.541], [-0.2934]]])
@wrong(
    "sees_future",
    "If the last word does not leak, no later word does; a slice of x is a copy that I may change",
    ("L3-LAST-ONLY",),
    ("L3-IN-PLACE",),
)
def _(fn, x):
    usual = fn(x).clone()
    n = x.size(1)
    for j in range(n - 1, n):
        y = x[:, :]
        y[:, j] = torch.randn_like(y[:, j]) * 2
        if not torch.allclose(fn(y)[:, :j], usual[:, :j], rtol=0, atol=1e-5):
            return True
    return False


# shows: f(rec3())
#   gives {'naive_bound': 'memory', 'fused_bound': 'compute', 'naive_share': 0.12, 'fell_back': ['dropout'], 'cost': 2}
#   not   {'naive_bound': 'compute', 'fused_bound': 'compute', 'naive_share': 0.256, 'fell_back': ['dropout'], 'cost': 2}
@wrong(
    "who_computed_it",
    "The machine's ceiling is the highest of its numbers; where nothing fell back there is no cost",
    ("L3-LARGEST-CEILING",),
    ("L3-COST-ZERO",),
)
def _(record):
    points = record["points"]
    roofs = record["machine"]["ceilings"]

    def clock_time(p):
        return (min if p["clock"] == "cpu" else statistics.median)(p["seconds"])

    n = max(p["n"] for p in points if p["name"] == "naive" and p["seconds"])
    at = {p["name"]: p for p in points if p["n"] == n and p["name"] != "call"}

    def peak(p):
        table = roofs["flops_per_second"]
        return max(table.values())

    def bound(p):
        return (
            "memory" if p["flops"] / p["bytes"] < peak(p) / roofs["bytes_per_second"] else "compute"
        )

    p = at["naive"]
    roof = min(peak(p), p["flops"] / p["bytes"] * roofs["bytes_per_second"])
    calls = {p["call"]: p for p in points if p["name"] == "call"}
    fell = sorted(name for name, p in calls.items() if p["backend"] == "MATH")
    times = [clock_time(calls[name]) for name in fell if calls[name]["seconds"]]
    return {
        "naive_bound": bound(p),
        "fused_bound": bound(at["fused"]),
        "naive_share": p["flops"] / clock_time(p) / roof,
        "fell_back": fell,
        "cost": max(times) / clock_time(calls["plain"]) if times else 0.0,
    }


# shows: f(cell,R(0,1,1,1),R(1,1,1))
#   gives [[[0.6614]]]
#   not   [[[0.9935]]]
@wrong(
    "step_loop", "The state of a position is the one that its cell was given", "L4-BEFORE-THE-STEP"
)
def _(cell, inputs, state):
    states = []
    for x in inputs.unbind(1):
        states.append(state)
        state = cell(x, state)
    return torch.stack(states, 1)


@right("step_loop")
def _(cell, inputs, state):
    out = functools.reduce(
        lambda done, x: done + [cell(x, done[-1])], rearrange(inputs, "b n d -> n b d"), [state]
    )
    return rearrange(out[1:], "n b d -> b n d")


# shows: f(model(2,3))
#   gives (2, 6)
#   not   (2, 3)
@wrong("operators", "Three positions against one show what a position needs", "L4-DIFFERENCE")
def _(run):
    one, three = (lab.count(run, n).total for n in (1, 3))
    per_position = three - one
    return one - (three - one) // 2, per_position


# shows: f(chain(5000)|{'x':[4999]})
#   gives error RecursionError: maximum recursion depth exceeded in comparison
#   not   5001
@wrong(
    "longest_chain",
    "A function that calls itself for each need finds the deepest one",
    "L4-RECURSION",
)
def _(needs):
    @functools.cache
    def depth(step):
        return 1 + max((depth(other) for other in needs[step]), default=0)

    last = set(needs) - {other for others in needs.values() for other in others}
    return max((depth(step) for step in last), default=0)


# shows: f({})
#   gives error ValueError: max() arg is an empty sequence
#   not   0
@wrong(
    "longest_chain",
    "A chain is as long as its waits; a dict of steps has a first step",
    ("L4-ARROWS",),
    ("L4-NO-STEPS",),
)
def _(needs):
    level = {}
    for step, waits in needs.items():
        level[step] = max([level[w] + 1 for w in waits] + [0])
    return max(level.values())


@right("longest_chain")
def _(needs):
    rounds, done = 0, set()
    waiting = {step: set(others) for step, others in needs.items()}
    users = collections.defaultdict(list)
    for step, others in waiting.items():
        for other in others:
            users[other].append(step)
    ready = [step for step, others in waiting.items() if not others]
    while ready:
        rounds += 1
        following = []
        for step in ready:
            for user in users[step]:
                waiting[user].discard(step)
                if not waiting[user] and user not in done:
                    done.add(user)
                    following.append(user)
        ready = following
    return rounds


# shows: f('gru',1,2,3)
#   gives 72
#   not   108
@wrong(
    "multiplications",
    "A GRU has two gates and so two pairs of products; a score is one multiplication",
    ("L4-TWO-GATES",),
    ("L4-TABLE-WITHOUT-WIDTH",),
)
def _(layer, b, n, d):
    pair = 2 * b * n * d * d
    if layer == "rnn":
        return pair
    if layer == "gru":
        return 2 * pair
    return 2 * pair + 2 * b * n * n


# shows: f('attention',1,2,3)
#   gives 78
#   not   96
@wrong("multiplications", "Only queries, keys and values are projected", "L4-THREE-PROJECTIONS")
def _(layer, b, n, d):
    recurrent = {"rnn": 1, "gru": 3}
    if layer in recurrent:
        return recurrent[layer] * 2 * b * n * d**2
    return b * (3 * n * d**2 + 2 * n**2 * d)


# shows: f(rec4())
#   gives {'always_faster': False, 'crossover_1': 4096, 'crossover_8': 256, 'batch_loop': 1.636, 'batch_attention': 8, 'held': False}
#   not   {'always_faster': False, 'crossover_1': 4096, 'crossover_8': 256, 'batch_loop': 1.636, 'batch_attention': 8, 'held': True}
@wrong(
    "verdict",
    "The crossover is the first n where attention is slower; the prediction may be off by two",
    ("L4-FIRST-SLOWER",),
    (),
)
def _(record):
    time_of = {}
    for p in record["points"]:
        if p["seconds"]:
            best = min if p["clock"] == "cpu" else statistics.median
            time_of[p["name"], p["b"], p["n"]] = best(p["seconds"])
    places = {(b, n) for _, b, n in time_of}

    def cross(b):
        both = sorted(
            n
            for c, n in places
            if c == b and ("attention", b, n) in time_of and ("fused", b, n) in time_of
        )
        slower = [time_of["attention", b, n] > time_of["fused", b, n] for n in both]
        for i, n in enumerate(both):
            if slower[i]:
                return n
        return None

    def batch(name):
        n = max(n for b, n in places if (name, 1, n) in time_of and (name, 8, n) in time_of)
        return time_of[name, 8, n] / time_of[name, 1, n]

    always = all(
        t < time_of.get((other, b, n), math.inf)
        for (name, b, n), t in time_of.items()
        if name == "attention"
        for other in ("loop", "fused")
    )
    guess, c8 = record["predictions"]["crossover"]["value"], cross(8)
    if c8 is None:
        held = guess == 0
    else:
        held = abs(guess - c8) <= 2
    return {
        "always_faster": always,
        "crossover_1": cross(1),
        "crossover_8": c8,
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "held": held,
    }


# shows: f(1,1,1,1,1,4)
#   gives 4
#   not   8
@wrong("cache_bytes", "Key and value share one place in the cache", "L5-KEYS-ONLY")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    per_token = 1 * kv_heads * d * bytes_per_number
    return b * n * per_token * layers


# shows: roomy(f,0,1,2)
#   gives ([[[[1.541, -0.2934]]]], [[[[0.6614, 0.2669]]]], [[[[1.541, -0.2934], [0, 0]]]], [[[[0.6614, 0.2669], [0, 0]]]], False, False)
#   not   ([[[[1.541, -0.2934]]]], [[[[0.6614, 0.2669]]]], [[[[1.541, -0.2934], [0, 0]]]], [[[[0.6614, 0.2669], [0, 0]]]], True, True)
@wrong(
    "append_to_cache",
    "cat makes the longer cache, the old one is filled too; a slice assignment complains by itself when there is no room",
    ("L5-CLONE",),
    (),
)
def _(key_cache, value_cache, length, key, value):
    n = length + key.shape[2]
    key_cache[:, :, length:n] = key
    value_cache[:, :, length:n] = value
    keys = torch.cat([key_cache[:, :, :length], key], dim=2)
    values = torch.cat([value_cache[:, :, :length], value], dim=2)
    return keys, values


# shows: roomy(f,0,1,2)
#   gives ([[[[1.541, -0.2934], [0, 0]]]], [[[[0.6614, 0.2669], [0, 0]]]], [[[[1.541, -0.2934], [0, 0]]]], [[[[0.6614, 0.2669], [0, 0]]]], True, True)
#   not   ([[[[1.541, -0.2934]]]], [[[[0.6614, 0.2669]]]], [[[[1.541, -0.2934], [0, 0]]]], [[[[0.6614, 0.2669], [0, 0]]]], True, True)
@wrong("append_to_cache", "The cache that I was given is what I return", "L5-ALL-THE-ROOM")
def _(key_cache, value_cache, length, key, value):
    t, room = key.size(2), key_cache.size(2)
    if length + t > room:
        raise ValueError(f"{length} + {t} > {room}")
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache.narrow(2, length, t).copy_(new)
    return key_cache, value_cache


# shows: f(R(0,1,1,4),R(1,1,1,3,4),R(2,1,1,3,4))
#   gives [[[0.8499, -0.6053, 0.5017, 0.3113]]]
#   not   [[[0.6333, -0.6048, 0.4854, 0.1501]]]
@wrong(
    "decode_step",
    "Heads are dealt to the cached heads in turn; with one query there is nothing to scale",
    ("L5-GROUP-ORDER",),
    ("L5-NO-SCALE",),
)
def _(query, keys, values):
    b, h, d = query.shape
    c = keys.shape[1]
    groups = query.view(b, h // c, c, d).transpose(1, 2)
    scores = groups @ keys.mT
    weights = torch.softmax(scores, -1)
    out = weights @ values
    out = out.transpose(1, 2)
    return out.reshape(b, h, d)


@right("decode_step")
def _(query, keys, values):
    c = keys.shape[1]
    rows = rearrange(query, "b (c g) d -> b c g d", c=c) * query.shape[-1] ** -0.5
    weights = einsum(rows, keys, "b c g d, b c n d -> b c g n").softmax(dim=-1)
    return einsum(weights, values, "b c g n, b c n d -> b c g d").flatten(1, 2)


# shows: f(4,10,2,100,1000)
#   gives 33.33
#   not   22.22
@wrong(
    "tokens_per_second", "The texts share one cache as they share the weights", "L5-SHARED-CACHE"
)
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    cache = n * bytes_per_token
    seconds = (cache + weight_bytes) / bytes_per_second
    return b / seconds


# shows: f(rec5())
#   gives {'bytes_per_second': 9.143e+09, 'share': 0.9143, 'ideal': 32, 'speed_up': 8.75, 'computes': False, 'from_cache': 0, 'held': False}
#   not   {'bytes_per_second': 9.143e+09, 'share': 0.9143, 'ideal': 32, 'speed_up': 8.75, 'computes': True, 'from_cache': 0, 'held': False}
@wrong(
    "conclude_decode",
    "Operations per byte are those of the MHA step; more bytes than a copy means it came from the cache",
    ("L5-RIDGE-OF-MHA",),
    ("L5-FASTER-THAN-A-COPY",),
)
def _(record):
    roof = record["machine"]["ceilings"]
    copy = roof["bytes_per_second"]
    timed = {}
    for p in record["points"]:
        if p["seconds"]:
            best = min if p["clock"] == "cpu" else statistics.median
            timed[p["name"], p["n"]] = (p, best(p["seconds"]))
    last = max(n for name, n in timed if name == "MHA")
    point, seconds = timed["MHA", last]
    rate = point["bytes"] / seconds
    both = max(n for name, n in timed if name == "MHA" and ("MQA", n) in timed)
    (big, slow), (small, quick) = timed["MHA", both], timed["MQA", both]
    speed_up = slow / quick
    ridge = roof["flops_per_second"][small["dtype"]] / copy
    guess = record["predictions"]["speed_up"]["value"]
    return {
        "bytes_per_second": rate,
        "share": rate / copy,
        "ideal": big["bytes"] / small["bytes"],
        "speed_up": speed_up,
        "computes": big["flops"] / big["bytes"] > ridge,
        "from_cache": sum(p["bytes"] / s > copy for p, s in timed.values()),
        "held": speed_up / 1.5 <= guess <= speed_up * 1.5,
    }


# shows: f(part(R(0,1,2),R(1,2,3)),part(R(2,1,2)*1000,R(3,2,3)))
#   gives ([[0.8033, 0.1748, 0.08898]], [392.3], [2.16])
#   not   ([[0.8033, 0.1748, 0.08898]], [392.3], [1])
@wrong(
    "merge",
    "Only the weighted sums need the new unit; two empty parts never meet",
    ("L6-TOTAL-FORGOTTEN",),
    ("L6-EMPTY-NAN",),
)
def _(one, two):
    (w1, m1, t1), (w2, m2, t2) = one, two
    m = torch.maximum(m1, m2)
    base = m
    a, c = torch.exp(m1 - base), torch.exp(m2 - base)
    weighted = a[..., None] * w1 + c[..., None] * w2
    return weighted, m, t1 + t2


# shows: f(R(0,1,1,1,2),R(1,1,1,2,2),R(2,1,1,2,2),1)
#   gives ([[[[0.1604, -0.5434]]]], [[[0.3943]]])
#   not   ([[[[0.1604, -0.5434]]]], [[[1.06]]])
@wrong(
    "tiled_attention",
    "Query i sees the keys up to number i; the logsumexp is the logarithm of the total",
    ("L6-CAUSAL-START",),
    ("L6-LSE-NO-MAX",),
)
def _(query, key, value, tile, causal=False):
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    n, k, d = query.shape[2], key.shape[2], query.shape[3]
    output = query.new_zeros(*query.shape[:3], value.shape[3])
    logsumexp = query.new_full(query.shape[:3], -math.inf, dtype=wide)
    offset = 0
    for i in range(0, n, tile):
        q = query[:, :, i : i + tile].to(wide)
        rows = torch.arange(i, i + q.shape[2], device=query.device)
        top = q.new_full(q.shape[:3], -math.inf)
        total = torch.zeros_like(top)
        weighted = q.new_zeros(*q.shape[:3], value.shape[3])
        for j in range(0, k, tile):
            s = q @ key[:, :, j : j + tile].to(wide).mT / math.sqrt(d)
            if causal:
                columns = torch.arange(j, j + s.shape[3], device=query.device)
                s = s.masked_fill(columns > rows[:, None] + offset, -math.inf)
            new = torch.maximum(top, s.amax(-1))
            safe = new.masked_fill(new == -math.inf, 0)
            p = torch.exp(s - safe[..., None])
            shrink = torch.exp(top - safe)
            total = total * shrink + p.sum(-1)
            weighted = weighted * shrink[..., None] + p @ value[:, :, j : j + tile].to(wide)
            top = new
        out = weighted / total.masked_fill(total == 0, 1)[..., None]
        output[:, :, i : i + tile] = out.to(query.dtype)
        logsumexp[:, :, i : i + tile] = total.log()
    return output, logsumexp


# shows: f(R(0,1,2,5,4)*50,R(1,1,2,7,4)*50,R(2,1,2,7,3),3)
#   gives (tensor(1, 2, 5, 3)[-1.04, 0.917, -1.3, -1.96, …], [[[4305, 5728, 1935, 2751, 4332], [1944, -47.2, -193.4, 3471, 6123]]])
#   not   (tensor(1, 2, 5, 3)[-1.04, 0.917, -1.3, -0.848, …], [[[4305, 5728, 1935, 2751, 4332], [1944, -47.2, -193.4, 3471, 6123]]])
@wrong(
    "tiled_attention",
    "Values are added up with the unit they came in, one division at the end puts it right",
    "L6-NO-RESCALE",
)
def _(query, key, value, tile, causal=False):
    b, h, n, d = query.shape
    k, v = value.shape[2:]
    acc = torch.promote_types(query.dtype, torch.float32)
    outs = torch.zeros(b, h, n, v, dtype=query.dtype, device=query.device)
    lse = torch.zeros(b, h, n, dtype=acc, device=query.device)
    for i0 in range(0, n, tile):
        i1 = min(i0 + tile, n)
        m = torch.full((b, h, i1 - i0), -math.inf, dtype=acc, device=query.device)
        l = torch.zeros_like(m)
        o = torch.zeros(b, h, i1 - i0, v, dtype=acc, device=query.device)
        for j0 in range(0, k, tile):
            j1 = min(j0 + tile, k)
            s = einsum(
                query[:, :, i0:i1].to(acc), key[:, :, j0:j1].to(acc), "b h q d, b h k d -> b h q k"
            )
            s = s * d**-0.5
            if causal:
                i = torch.arange(i0, i1, device=s.device)[:, None] + (k - n)
                s = torch.where(torch.arange(j0, j1, device=s.device) <= i, s, -math.inf)
            m_new = torch.maximum(m, s.max(-1).values)
            ref = torch.nan_to_num(m_new, neginf=0.0)
            p = (s - ref[..., None]).exp()
            alpha = (m - ref).exp()
            l = alpha * l + p.sum(-1)
            o = o + p @ value[:, :, j0:j1].to(acc)
            m = m_new
        outs[:, :, i0:i1] = (o / torch.where(l > 0, l, 1.0)[..., None]).to(outs.dtype)
        lse[:, :, i0:i1] = m + l.log()
    return outs, lse


# shows: bw(f,R(0,1,1,3,4),R(1,1,1,2,4),R(2,1,1,2,3),2)
#   gives ([[[[-0.5631, -0.219, -0.8014, -0.1212], [-0.2632, -0.1024, -0.3746, -0.05665], [0.1061, 0.04126, 0.151, 0.02283]]]], [[[[-0.5915, 0.4406, 0.9498, …
#   not   ([[[[-0.2815, -0.1095, -0.4007, -0.0606], [-0.1316, -0.05119, -0.1873, -0.02833], [0.05303, 0.02063, 0.07548, 0.01141]]]], [[[[-0.2958, 0.2203, 0.4…
@wrong(
    "tiled_backward",
    "The root of d was in the scores and the weights know it; each tile of queries writes the gradient of its keys",
    ("L6-NO-SCALE",),
    ("L6-OVERWRITES",),
)
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    wide = logsumexp.dtype
    n, k, d = query.shape[2], key.shape[2], query.shape[3]
    grads = [torch.zeros_like(x, dtype=wide) for x in (query, key, value)]
    grad_q, grad_k, grad_v = grads
    scale = 1 / math.sqrt(d)
    for i in range(0, n, tile):
        here = slice(i, i + tile)
        q, g = query[:, :, here].to(wide), grad_output[:, :, here].to(wide)
        mean = (g * output[:, :, here].to(wide)).sum(-1, keepdim=True)
        norm = logsumexp[:, :, here, None]
        norm = norm.masked_fill(norm == -math.inf, math.inf)
        for j in range(0, k, tile):
            there = slice(j, j + tile)
            kk, v = key[:, :, there].to(wide), value[:, :, there].to(wide)
            s = q @ kk.mT * scale
            if causal:
                rows = torch.arange(i, i + q.shape[2], device=query.device)[:, None] + k - n
                columns = torch.arange(j, j + kk.shape[2], device=query.device)
                s = s.masked_fill(columns > rows, -math.inf)
            w = torch.exp(s - norm)
            ds = w * (g @ v.mT - mean)
            grad_q[:, :, here] += ds @ kk
            grad_k[:, :, there] += ds.mT @ q
            grad_v[:, :, there] = w.mT @ g
    return tuple(x.to(query.dtype) for x in grads)


# shows: f(rec6('cuda',shape=(4,2,1,1.05)))
#   gives {'n': 1024, 'tile': 64, 'u_shaped': True, 'speedup': 1.5}
#   not   {'n': 1024, 'tile': 64, 'u_shaped': False, 'speedup': 1.5}
@wrong(
    "best_tile",
    "The largest n of the record is meant; a curve that rises on one side is u-shaped",
    ("L6-LARGEST-IN-RECORD",),
    ("L6-ONE-SLOPE",),
)
def _(record):
    def cost(p):
        return min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])

    timed = [p for p in record["points"] if p["seconds"]]
    n = max(p["n"] for p in timed)
    curve = {p["tile"]: cost(p) for p in timed if p["name"] == "tiled" and p["n"] == n}
    tile = min(curve, key=curve.get)
    edges = [curve[min(curve)], curve[max(curve)]]
    naive = [cost(p) for p in timed if p["name"] == "naive" and p["n"] == n]
    return {
        "n": n,
        "tile": tile,
        "u_shaped": any(e >= 1.1 * curve[tile] for e in edges),
        "speedup": naive[0] / curve[tile] if naive else None,
    }


# shows: f(rec6())
#   gives {'n': 1024, 'tile': 128, 'u_shaped': False, 'speedup': 1}
#   not   {'n': 1024, 'tile': 64, 'u_shaped': True, 'speedup': 1.5}
@wrong("best_tile", "The time of a point is the average of its samples", "L6-MEAN")
def _(record):
    time_of = lambda p: statistics.mean(p["seconds"])
    good = [p for p in record["points"] if not p["error"] and p["seconds"]]
    tiled = [p for p in good if p["name"] == "tiled"]
    n = max(p["n"] for p in tiled)
    tiled = sorted((p for p in tiled if p["n"] == n), key=lambda p: p["tile"])
    times = np.array([time_of(p) for p in tiled])
    best = int(times.argmin())
    naive = [time_of(p) for p in good if p["name"] == "naive" and p["n"] == n]
    speedup = naive[0] / float(times[best]) if naive else None
    u = bool(min(times[0], times[-1]) >= 1.1 * times[best])
    return {"n": n, "tile": tiled[best]["tile"], "u_shaped": u, "speedup": speedup}
