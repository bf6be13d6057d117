"""Answers to chapters 1–7 and the labs by a sixth writer who had read the notebooks alone.

Written blind: neither judge nor tasks were seen, and each wrong answer says what its writer
believed. What the judge said before anything was mended by them is in tests/bench/answers.md. Which
names are fair was said by somebody else, with the judge's in view. `MENDED` are the answers of which
it knew less than now. What a task lets pass, whatever its writer said, is stored as right.
"""

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
from torch.nn.utils.rnn import pack_padded_sequence

from attncourse import lab
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right

MENDED = (
    "greedy_decode-2",
    "general_scores-1",
    "softmax-2",
    "hidden_scale-1",
    "next_word_pairs-1",
    "cross_attention-2",
    "largest_n-1",
    "who_computed_it-2",
    "multiplications-1",
    "tiled_attention-3",
)

# ---------------------------------------------------------------- 01 the bottleneck


# shows: two sentences, lengths [1, 2]: the two rows come out exchanged
@wrong(
    "encode",
    "I sort the sentences by length so that they can be packed, and the last state of the packed GRU is the answer",
    "C-NOT-UNSORTED",
)
def _(tokens, lengths, embedding, gru):
    lengths, order = lengths.sort(descending=True)
    x = embedding(tokens[order])
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)
    _, last = gru(packed)
    return last[0]


# shows: tokens [[5, 3]], length 2: the mean of both states; [[5, 0, 7]], length 3: the middle one is left out
@wrong(
    "encode",
    "padding is id 0, so I can count the real words myself; all states of the real words together stand for the sentence, so I take their mean",
    ("C-LENGTHS-FROM-ZEROS",),
    ("C-MEAN-STATE",),
)
def _(tokens, lengths, embedding, gru):
    states, _ = gru(embedding(tokens))
    real = (tokens != 0).unsqueeze(-1)
    count = real.sum(1).clamp(min=1)
    vector = (states * real).sum(1) / count
    return vector


@right("encode")
def _(tokens, lengths, embedding, gru):
    rows = []
    for sentence, length in zip(tokens, lengths.tolist()):
        only_words = sentence[:length].unsqueeze(0)
        rows.append(gru(embedding(only_words))[1].flatten())
    return torch.stack(rows)


# shows: target [[4, 5, 6]], bos 1: gives [[1, 5, 6]] instead of [[1, 4, 5]]
@wrong(
    "teacher_inputs",
    "the decoder's inputs are the target with the begin mark at the first place",
    "C-REPLACES-THE-FIRST",
)
def _(target, bos):
    inputs = target.clone()
    inputs[:, 0] = bos
    return inputs


# shows: target [[4, 5, 6]], bos 1: gives [[1, 5, 6]], and target is [[1, 5, 6]] afterward
@wrong(
    "teacher_inputs",
    "bos takes the place of the first word; I may write it into the target, since a tensor is passed by value",
    ("C-REPLACES-THE-FIRST",),
    ("C-EDITS-THE-TARGET",),
)
def _(target, bos):
    b, n = target.shape
    for row in range(b):
        target[row, 0] = bos
    return target


# shows: two rows, one with 1 word and one with 3 words: each row counts half
@wrong(
    "sequence_loss",
    "the loss of a batch is the mean over its sentences, each the mean over its words",
    "C-MEAN-OF-MEANS",
)
def _(logits, target, pad):
    real = (target != pad).to(logits.dtype)
    losses = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    per_sentence = (losses * real).sum(-1) / real.sum(-1).clamp(min=1)
    return per_sentence.mean()


# shows: logits 10,000 apart give inf; pad = 2 with word 0 in the target
@wrong(
    "sequence_loss",
    "the log of the softmax is what the formula says; padding always has the id 0",
    ("C-LOG-OF-SOFTMAX",),
    ("C-PAD-BY-HEART",),
)
def _(logits, target, pad):
    p = torch.softmax(logits, dim=-1)
    p = p[p.new_ones(target.shape).nonzero(as_tuple=True) + (target.flatten(),)]
    real = target.flatten() != 0
    return -torch.log(p)[real].mean()


@right("sequence_loss")
def _(logits, target, pad):
    total, count = logits.sum() * 0, 0
    b, n = target.shape
    for i in range(b):
        for j in range(n):
            word = target[i, j].item()
            if word == pad:
                continue
            below = logits[i, j] - logits[i, j].detach().max()  # all at most 0
            total = total + torch.logsumexp(below, dim=0) - below[word]
            count += 1
    return total / max(count, 1)


# shows: two rows, the first says eos at once: the second has only one word
@wrong("greedy_decode", "a batch is finished when a row has said eos", "C-STOPS-WITH-ANY")
def _(step, state, bos, eos, max_length, batch_size):
    token = torch.full((batch_size,), bos)
    written = []
    while len(written) < max_length:
        logits, state = step(token, state)
        token = logits.argmax(dim=-1)
        if written:
            token = torch.where(written[-1] == eos, torch.full_like(token, eos), token)
        written.append(token)
        if (token == eos).any():
            break
    return torch.stack(written, dim=1)


# shows: one row whose decoder counts its steps in state: starts with bos and repeats the first step
@wrong(
    "greedy_decode",
    "the state is the sentence's vector, so every step gets the same one; the output begins with bos",
    ("C-STATE-NOT-KEPT",),
    ("C-KEEPS-BOS",),
)
def _(step, state, bos, eos, max_length, batch_size):
    ids = torch.full((batch_size, 1), bos)
    ended = torch.zeros(batch_size, dtype=torch.bool)
    for _ in range(max_length):
        logits, _new_state = step(ids[:, -1], state)
        nxt = logits.argmax(1).masked_fill(ended, eos)
        ids = torch.cat([ids, nxt[:, None]], dim=1)
        ended = ended | (nxt == eos)
    return ids


@right("greedy_decode")
def _(step, state, bos, eos, max_length, batch_size):
    output = torch.full((batch_size, max_length), eos, dtype=torch.long)
    token = output.new_full((batch_size,), bos)
    open_rows = set(range(batch_size))
    for t in range(max_length):
        logits, state = step(token, state)
        token = logits.max(dim=-1).indices
        for row in sorted(open_rows):
            output[row, t] = token[row]
            if token[row].item() == eos:
                open_rows.discard(row)
        if not open_rows:
            break
    return output


# shows: prediction ["un"], target ["un", "deux"]: counts as right
@wrong(
    "exact_match_by_length",
    "zip goes through both sentences, so if all pairs are equal the sentence is right",
    "C-ZIP-STOPS-EARLY",
)
def _(predictions, targets, lengths):
    hits, totals = defaultdict(int), defaultdict(int)
    for p, t, n in zip(predictions, targets, lengths):
        totals[n] += 1
        hits[n] += all(a == b for a, b in zip(p, t))
    return {n: hits[n] / totals[n] for n in totals}


# shows: one right sentence of length 1, one wrong of length 2: length 2 is missing from the dict
@wrong(
    "exact_match_by_length",
    "I count the right ones for each length and divide by how many there are of it",
    "C-ZEROS-MISSING",
)
def _(predictions, targets, lengths):
    of_length = Counter(lengths)
    correct = Counter(n for p, t, n in zip(predictions, targets, lengths) if list(p) == list(t))
    shares = {}
    for n, c in correct.items():
        shares[n] = c / of_length[n]
    return shares


# shows: targets of two words, lengths [3, 4], one right: keyed by 2; shares of all sentences
@wrong(
    "exact_match_by_length",
    "the length of a sentence is the number of words of its translation; a share is the right ones over all sentences",
    ("C-OWN-LENGTHS",),
    ("C-SHARE-OF-ALL",),
)
def _(predictions, targets, lengths):
    result = {}
    for prediction, target in zip(predictions, targets):
        n = len(target)
        result.setdefault(n, 0)
        if prediction == target:
            result[n] += 1
    return {n: count / len(targets) for n, count in result.items()}


# ---------------------------------------------------------------- 02 additive attention


# shows: two sentences with different queries: both use the first query
@wrong("dot_scores", "keys @ query.T has one column too many, so I take the first", "C-FIRST-QUERY")
def _(query, keys):
    table = keys @ query.T
    return table[:, :, 0]


# shows: query [[1., 1.]], keys [[[1., 2.], [0., 1.]]]: gives [[0.73, 0.27]], the softmax of [1.5, 0.5], instead of [[3., 1.]]
@wrong(
    "dot_scores",
    "the scores of attention go through a softmax; the mean over the features is the dot product",
    ("C-SCORES-ARE-WEIGHTS",),
    ("C-MEAN",),
)
def _(query, keys):
    product = query[:, None, :] * keys
    scores = product.mean(dim=-1)
    return torch.softmax(scores, dim=1)


@right("dot_scores")
def _(query, keys):
    return torch.stack([torch.stack([q.dot(key) for key in ks]) for q, ks in zip(query, keys)])


# shows: query [[1.]], W [[1., 2.]], keys [[[1., 1.]]]: each is summed alone, 3 · 2 = 6 instead of 3
@wrong(
    "general_scores",
    "einsum sums over every letter that is not in the result, so keys may have a letter of its own",
    "C-OWN-LETTER",
)
def _(query, keys, W):
    return torch.einsum("be,ed,bkf->bk", query, W, keys)


# shows: query [[1.]], W [[2.]], keys [[[1.], [3.]]]: tanh(2) and 3·tanh(2) under a softmax instead of [2, 6]
@wrong(
    "general_scores",
    "a learned layer ends with a tanh; scores sum to one over the keys",
    ("C-GENERAL-TANH",),
    ("C-SCORES-ARE-WEIGHTS",),
)
def _(query, keys, W):
    projected = torch.tanh(query @ W)  # b d
    scores = (keys @ projected.unsqueeze(-1)).squeeze(-1)
    return scores.softmax(dim=-1)


# shows: v [3.]: tanh of 3 times the sum instead of 3 times the tanh
@wrong(
    "concat_scores", "the tanh bends the number that the network gives in the end", "C-TANH-LAST"
)
def _(query, keys, W, v):
    q = repeat(query, "b e -> b k e", k=keys.shape[1])
    hidden = torch.einsum("bkx,xa->bka", torch.cat((q, keys), -1), W)
    return (hidden @ v).tanh()


# shows: two sentences with two keys: sentence 1 meets both queries; W's first rows meet the keys
@wrong(
    "concat_scores",
    "repeat writes every query k times in a row; the key comes first in the pair",
    ("C-REPEAT",),
    ("C-KEYS-FIRST",),
)
def _(query, keys, W, v):
    b, k, d = keys.shape
    tiled = query.repeat(k, 1).view(b, k, -1)
    both = torch.cat([keys, tiled], dim=2)
    hidden = torch.tanh(both @ W)
    return (hidden * v).sum(dim=2)


# shows: query [[1.]], key [[[1.]]], all weights 1: 2·tanh(1) = 1.52 instead of tanh(2) = 0.96
@wrong("additive_scores", "both projections pass through a tanh and are then added", "C-TANH-EACH")
def _(query, keys, W_query, W_key, v):
    q = torch.tanh(query @ W_query)
    k = torch.tanh(keys @ W_key)
    return (q[:, None] + k) @ v


# shows: a = 2, v [1., 1.]: half of the score; and no bend: query [[3.]] gives large numbers
@wrong(
    "additive_scores",
    "additive means that query and key are added and nothing else; v weighs the mean over the hidden units",
    ("A-NO-TANH",),
    ("C-MEAN",),
)
def _(query, keys, W_query, W_key, v):
    q = rearrange(query @ W_query, "b a -> b 1 a")
    hidden = q + keys @ W_key
    weighted = hidden * v
    return weighted.mean(dim=-1)


@right("additive_scores")
def _(query, keys, W_query, W_key, v):
    columns = []
    asked = einsum(query, W_query, "b e, e a -> b a")
    for k in range(keys.shape[1]):
        bent = (keys[:, k] @ W_key + asked).tanh()
        columns.append(einsum(bent, v, "b a, a -> b"))
    return torch.stack(columns, dim=-1)


# shows: scores [[1., 2.]], mask [[True, False]]: weights [0.27, 0] instead of [1, 0]
@wrong("attend", "a weight that is set to 0 after the softmax is hidden", "M-AFTER-SOFTMAX")
def _(scores, values, mask=None):
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights * mask
    context = torch.einsum("bk,bkv->bv", weights, values)
    return context, weights


# shows: mask [[True, False]] reads key 2 alone; with all of them hidden the weights are not 0
@wrong(
    "attend",
    "True in a mask marks the padding; minus a billion is as good as minus infinity for every row",
    ("M-POLARITY",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask, -1e9)
    weights = scores.softmax(-1)
    context = torch.bmm(weights.unsqueeze(1), values).squeeze(1)
    return context, weights


# shows: scores [[10000., 0.]]: exp overflows, and the weights are NaN
@wrong(
    "attend",
    "softmax is exp over the sum of exp, and hidden keys are left out of the sum",
    "D-NAIVE-SOFTMAX",
)
def _(scores, values, mask=None):
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    e = torch.exp(scores) * mask
    total = e.sum(-1, keepdim=True)
    weights = e / torch.where(total == 0, torch.ones_like(total), total)
    return (weights[..., None] * values).sum(1), weights


# shows: fresh module: W_query.bias is there, and with the weights copied in the result is moved by it
@wrong(
    "AdditiveAttention",
    "an nn.Linear is a matrix, so W_query, W_key and v are three nn.Linears",
    "A-BIAS",
)
class AdditiveAttention(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim)
        self.W_key = nn.Linear(key_dim, attention_dim)
        self.v = nn.Linear(attention_dim, 1)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query)[:, None] + self.W_key(keys))
        scores = self.v(hidden).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
            dead = ~mask.any(-1, keepdim=True)
            scores = scores.masked_fill(dead, 0.0)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)
        return (weights[:, None] @ keys)[:, 0], weights


# shows: key_dim = attention_dim = 2: the context is a mean of W_key(keys); and the weights sum to one over the batch
@wrong(
    "AdditiveAttention",
    "the values are the projected keys; the softmax runs over the first axis",
    ("A-VALUE-IS-KEY",),
    ("A-SOFTMAX-QUERIES",),
)
class AdditiveAttention(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        projected = self.W_key(keys)
        q = self.W_query(query).unsqueeze(1)
        scores = self.v(torch.tanh(q + projected))[..., 0]
        if mask is not None:
            scores = torch.where(mask, scores, torch.full_like(scores, -1e30))
        weights = torch.softmax(scores, 0)
        if mask is not None:
            weights = weights * mask
        context = einsum(weights, projected, "b k, b k d -> b d")
        return context, weights


# ---------------------------------------------------------------- 03 scaled dot-product attention


# shows: [[1., 2.], [3., 5.]]: the sums stand along the wrong axis when they are broadcast
@wrong("softmax", "broadcasting finds the right axis for the sums by itself", "D-SOFTMAX-KEEPDIM")
def _(scores, dim=-1):
    biggest = torch.amax(scores, dim=dim, keepdim=True)
    numbers = torch.exp(scores - biggest)
    sums = numbers.sum(dim=dim)
    return numbers / sums


# shows: rows [0., 1.] and [10000., 10001.]: NaN in the first row; float64 comes back as float32
@wrong(
    "softmax",
    "one maximum of the whole table is enough against overflow; computing in float32 is what softmax does",
    ("D-SOFTMAX-GLOBAL-MAX",),
    ("D-SOFTMAX-FLOAT32",),
)
def _(scores, dim=-1):
    x = scores.float()
    x = x - x.max()
    e = torch.exp(x)
    return e / torch.sum(e, dim=dim, keepdim=True)


@right("softmax")
def _(scores, dim=-1):
    grown = torch.exp(scores - torch.amax(scores, dim, keepdim=True))
    return F.normalize(grown, p=1, dim=dim)  # all are positive: the 1-norm is the sum


# shows: d = 4, v = 1: scores are divided by 1 instead of 2
@wrong(
    "scaled_dot_product_attention",
    "d is the width of a head, and all three of a head have the same width",
    "D-SCALE-DV",
)
def _(query, key, value, mask=None):
    d = value.shape[-1]
    scores = torch.matmul(query, key.transpose(-2, -1)) / d**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, -1)
    weights = torch.nan_to_num(weights, nan=0.0)
    return weights @ value, weights


# shows: q = k = 2, d = 4: columns sum to one; and scores are too small by a factor of 2
@wrong(
    "scaled_dot_product_attention",
    "scores are divided by d; the softmax goes over the queries, which is the axis -2",
    ("D-SCALE-DK",),
    ("D-SOFTMAX-DIM",),
)
def _(query, key, value, mask=None):
    scores = query @ key.mT
    scores = scores / query.size(-1)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -math.inf)
    weights = F.softmax(scores, dim=-2).nan_to_num()
    output = weights @ value
    return output, weights


@right("scaled_dot_product_attention")
def _(query, key, value, mask=None):
    small = query / query.shape[-1] ** 0.25
    scores = small @ (key / key.shape[-1] ** 0.25).mT
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        allowed = allowed & mask
    top = scores.where(allowed, scores.new_full((), -math.inf)).amax(-1, keepdim=True)
    top = top.detach().clamp(min=torch.finfo(scores.dtype).min)
    grown = torch.exp((scores - top).where(allowed, scores.new_full((), -math.inf)))
    share = grown.sum(-1, keepdim=True)
    weights = grown / share.where(share > 0, torch.ones_like(share))
    return weights @ value, weights


# shows: d = 16, not scaled: about 1 instead of 16
@wrong(
    "score_variance",
    "a score is a product of a query and a key, and var takes all of them",
    "V-NOT-SUMMED",
)
def _(d, samples, scaled):
    q = torch.randn(samples, d)
    k = torch.randn(samples, d)
    scores = q * k
    if scaled:
        scores /= d**0.5
    return float(scores.var())


# shows: d = 16, not scaled: about 0.9 (root of 16 · 7/144) instead of 16
@wrong(
    "score_variance",
    "torch.rand gives normal numbers; std is the measure of how much scores vary",
    ("V-UNIFORM",),
    ("V-STANDARD-DEVIATION",),
)
def _(d, samples, scaled):
    total = []
    for _ in range(samples):
        q, k = torch.rand(d), torch.rand(d)
        s = torch.dot(q, k)
        total.append(s / math.sqrt(d) if scaled else s)
    return torch.stack(total).std().item()


@right("score_variance")
def _(d, samples, scaled):
    rng = np.random.default_rng()
    q, k = rng.standard_normal((2, samples, d))
    dots = np.einsum("sd,sd->s", q, k)
    return float(np.var(dots, ddof=1) / (d if scaled else 1))


# shows: the tables of the picture in the notebook: 4.0 instead of 8
@wrong(
    "hidden_scale",
    "I try many c and take the one whose softmax is nearest to the table",
    "C-GRID-UNMASKED",
)
def _(scores, weights):
    best, smallest = 1.0, math.inf
    for step in range(10, 4001):
        c = step / 100
        off = (torch.softmax(scores / c, dim=-1) - weights).abs().sum().item()
        if off < smallest:
            best, smallest = c, off
    return best


# shows: weights = softmax(scores / 3): returns 9
@wrong(
    "hidden_scale",
    "the hidden number is the width d, which is the square of what the scores were divided by",
    "C-SQUARED",
)
def _(scores, weights):
    top = bottom = 0.0
    for s, w in zip(scores.double(), weights.double()):
        seen = w > 0
        if seen.sum() < 2:
            continue
        x = s[seen] - s[seen].mean()
        y = w[seen].log()
        y = y - y.mean()
        top += (x * x).sum().item()
        bottom += (x * y).sum().item()
    c = top / bottom
    return c**2


# shows: rows with different levels, [0, 1] and [10, 11], scores / 3: one line through all of them; and 1/c
@wrong(
    "hidden_scale",
    "log w = s / c + constant with one constant for the table; the slope of the line is the factor",
    ("C-ROWS-MIXED",),
    ("C-INVERSE",),
)
def _(scores, weights):
    seen = weights > 0
    x = scores[seen].double().numpy()
    y = weights[seen].double().log().numpy()
    slope, _ = np.polyfit(x, y, 1)
    return float(slope)


# ---------------------------------------------------------------- 04 self-attention


# shows: m = 4, d = 1: divided by 2 instead of 1
@wrong(
    "self_attention", "the scores are divided by the root of the width of a word", "D-SCALE-DMODEL"
)
def _(x, W_query, W_key, W_value):
    b, n, m = x.shape
    q, k, v = x @ W_query, x @ W_key, x @ W_value
    weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(m), dim=-1)
    return weights @ v, weights


# shows: W_query, W_key different: the weights are those of the keys that ask
@wrong("self_attention", "the score of word i and word j is key i times query j", "C-ROLES-SWAPPED")
def _(x, W_query, W_key, W_value):
    q = einsum(x, W_query, "b n m, m d -> b n d")
    k = einsum(x, W_key, "b n m, m d -> b n d")
    v = einsum(x, W_value, "b n m, m v -> b n v")
    scores = einsum(k, q, "b i d, b j d -> b i j") / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return weights @ v, weights


# shows: x → neighbors' mean around a circle, (x[i-1] + x[i+1]) / 2: True, because turning round changes nothing
@wrong(
    "is_permutation_equivariant",
    "if the layer does not notice the words in reverse, it does not see the order",
    "C-ONLY-REVERSED",
)
def _(layer, x):
    backward = x.flip(1)
    with torch.no_grad():
        return torch.allclose(layer(backward), layer(x).flip(1), atol=1e-5)


# shows: self-attention on six random words in float32: False, since the sums are rounded differently
@wrong(
    "is_permutation_equivariant",
    "the outputs are the same numbers in another order, so torch.equal must hold",
    "C-EXACT",
)
def _(layer, x):
    n = x.shape[1]
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        order = torch.randperm(n, generator=generator)
        if not torch.equal(layer(x[:, order]), layer(x)[:, order]):
            return False
    return True


# shows: layer = identity: False; afterward torch.initial_seed() is 0
@wrong(
    "is_permutation_equivariant",
    "a blind layer gives the same output for every order; a fixed seed makes the test repeatable",
    ("C-INVARIANT",),
    ("C-SEEDED",),
)
def _(layer, x):
    torch.manual_seed(0)
    usual = layer(x)
    results = []
    for _ in range(5):
        p = torch.randperm(x.size(1))
        shuffled = layer(x[:, p, :])
        results.append(torch.allclose(shuffled, usual, rtol=1e-4, atol=1e-5))
    return all(results)


# shows: (2, 4): feature 1 of position 1 is cos(1 / 10) instead of cos(1)
@wrong(
    "sinusoidal_positions",
    "every feature has its own frequency, 10,000 to the feature over the width",
    "C-FREQ-EACH",
)
def _(length, width):
    table = torch.zeros(length, width)
    for p in range(length):
        for f in range(width):
            angle = p / 10_000 ** (f / width)
            table[p, f] = math.sin(angle) if f % 2 == 0 else math.cos(angle)
    return table


# shows: (1, 4): the first row is sin(1), cos(1), …; (2, 4): feature 2 turns at 10,000^(1/4)
@wrong(
    "sinusoidal_positions",
    "the first word has position 1; hand i has the exponent i over the width",
    ("C-FROM-ONE",),
    ("C-EXPONENT-HALVED",),
)
def _(length, width):
    pe = torch.empty(length, width)
    hands = torch.arange((width + 1) // 2)
    rates = torch.pow(10_000.0, -hands / width)
    position = torch.arange(1, length + 1)
    pe[:, 0::2] = torch.sin(torch.outer(position, rates))
    pe[:, 1::2] = torch.cos(torch.outer(position, rates))[:, : width // 2]
    return pe


@right("sinusoidal_positions")
def _(length, width):
    feature = np.arange(width)
    angle = np.arange(length)[:, None] / np.power(1e4, (feature - feature % 2) / width)
    # a cosine is a sine a quarter of a turn ahead
    return torch.from_numpy(np.sin(angle + (feature % 2) * np.pi / 2)).float()


# ---------------------------------------------------------------- 05 multi-head attention


# shows: x [[[1, 2, 3, 4]]]: head 1 gets 1 and 3
@wrong(
    "split_heads", "the numbers are dealt out to the heads one by one, like cards", "H-FUSED-LAYOUT"
)
def _(x, num_heads):
    return rearrange(x, "b n (d h) -> b h n d", h=num_heads)


# shows: x (1 3 4), two heads: shape (1 3 2 2), and word 1 of head 1 holds 1 and 3
@wrong(
    "split_heads",
    "the heads get an axis of their own behind the words; num_heads is the last axis of the view",
    ("C-SPLIT-NO-SWAP",),
    ("H-FUSED-LAYOUT",),
)
def _(x, num_heads):
    b, n, m = x.size()
    pieces = x.view(b, n, m // num_heads, num_heads)
    return pieces.transpose(2, 3)


@right("split_heads")
def _(x, num_heads):
    return torch.stack(torch.chunk(x, num_heads, dim=-1)).movedim(0, 1)


# shows: x (1 2 2 1) = 1, 2 | 3, 4: gives [[1, 2], [3, 4]] instead of [[1, 3], [2, 4]]
@wrong("merge_heads", "flatten the heads and their width into one axis", "H-VIEW-MERGE")
def _(x):
    b, h, n, d = x.shape
    return x.contiguous().view(b, n, h * d)


# shows: x (1 2 1 2) = [1, 2], [3, 4]: gives 1 3 2 4
@wrong(
    "merge_heads",
    "the last axis becomes the long one, so the width stands before the heads",
    "H-FUSED-LAYOUT",
)
def _(x):
    x = x.permute(0, 2, 3, 1)  # b n d h
    return x.flatten(-2)


@right("merge_heads")
def _(x):
    return torch.cat(list(x.unbind(dim=1)), dim=-1)


# shows: dropout = 0.5 in training: the returned rows do not sum to one
@wrong(
    "MultiHeadAttention",
    "the dropout is a part of the weights, so the weights that I return have it",
    "C-DROPOUT-RETURNED",
)
class MultiHeadAttention(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        assert model_width % num_heads == 0
        self.h, self.d = num_heads, model_width // num_heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(model_width, model_width))
        self.drop = nn.Dropout(dropout)

    def split(self, x):
        return x.unflatten(-1, (self.h, self.d)).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            self.split(self.q_proj(query)),
            self.split(self.k_proj(key)),
            self.split(self.v_proj(value)),
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(self.d)
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = scores.masked_fill(mask.logical_not(), float("-inf"))
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        weights = self.drop(weights)
        heads = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return self.out_proj(heads.transpose(1, 2).flatten(2)), weights


# shows: q = h = 2 and the causal mask (q k): head 2 of every query looks at everything, head 1 at one key
@wrong(
    "MultiHeadAttention",
    "a mask gets an axis for the heads at place 1, and broadcasting does the rest",
    "C-MASK-ALWAYS-BATCHED",
)
class MultiHeadAttention(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_width = model_width // num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        b, q_len, m = query.shape
        k_len = key.shape[1]
        q = self.q_proj(query).view(b, q_len, self.num_heads, self.head_width).permute(0, 2, 1, 3)
        k = self.k_proj(key).view(b, k_len, self.num_heads, self.head_width).permute(0, 2, 1, 3)
        v = self.v_proj(value).view(b, k_len, self.num_heads, self.head_width).permute(0, 2, 1, 3)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_width)
        if mask is not None:
            mask = mask.unsqueeze(1)
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.nan_to_num(F.softmax(scores, dim=-1))
        attended = torch.matmul(self.dropout(weights), v)
        attended = attended.permute(0, 2, 1, 3).reshape(b, q_len, m)
        return self.out_proj(attended), weights


# shows: value other than key: the output does not move; heads merged without a swap for two words
@wrong(
    "MultiHeadAttention",
    "key and value are the same words, so both projections read the key; reshape lays the heads side by side",
    ("C-VALUE-FROM-KEY",),
    ("H-VIEW-MERGE",),
)
class MultiHeadAttention(nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(model_width, model_width) for _ in range(4)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        def cut(x):
            return einops.rearrange(x, "b n (h d) -> b h n d", h=self.heads)

        q, k, v = cut(self.q_proj(query)), cut(self.k_proj(key)), cut(self.v_proj(key))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            mask = mask if mask.ndim == 2 else mask[:, None]
            scores = torch.where(mask, scores, -math.inf)
        weights = torch.softmax(scores, dim=-1)
        weights = torch.where(weights.isnan(), 0.0, weights)
        out = self.dropout(weights) @ v
        out = out.reshape(query.shape)
        return self.out_proj(out), weights


# shows: (8, 2, 1): 256.0, a float
@wrong("attention_parameters", "m / h is the width of a head", "C-PARAMETERS-FLOAT")
def _(model_width, num_heads, num_layers, head_width=None):
    d = head_width or model_width / num_heads
    query = key = value = model_width * num_heads * d
    output = num_heads * d * model_width
    return num_layers * (query + key + value + output)


# shows: (8, 2, 3): 3 · 64 = 192 instead of 768
@wrong(
    "attention_parameters",
    "queries, keys and values have a matrix each; GPT-3 has as many heads as layers, num_layers is counted with the heads already",
    ("C-PARAMETERS-NO-OUT",),
    ("H-HEADCOUNT",),
)
def _(model_width, num_heads, num_layers, head_width=None):
    d = model_width // num_heads if head_width is None else head_width
    matrices = 3
    return matrices * model_width * num_heads * d


# ---------------------------------------------------------------- 06 masking


# shows: ["nine", "and", "nine", "two"]: the third context is ["nine"] again
@wrong("next_word_pairs", "tokens.index tells me where a word stands", "C-FIRST-OCCURRENCE")
def _(tokens):
    pairs = []
    for word in tokens[:-1]:
        i = tokens.index(word)
        pairs.append((tokens[: i + 1], tokens[i + 1]))
    return pairs


# shows: [1, 2]: [([1, 2], 1), ([1, 2], 2)] instead of [([1], 2)]
@wrong(
    "next_word_pairs",
    "I let one list grow and put it into every pair; the first word has to be guessed as well, from the empty list",
    ("C-ONE-LIST",),
    ("C-EMPTY-CONTEXT",),
)
def _(tokens):
    context, pairs = [], []
    for token in tokens:
        pairs.append((context, token))
        context.append(token)
    return pairs


# shows: (2, 3): the last query does not see the last key
@wrong("causal_mask", "the lower triangle is the causal mask, whatever the lengths", "M-TOPLEFT")
def _(query_length, key_length=None):
    key_length = key_length or query_length
    return torch.ones(query_length, key_length, dtype=torch.bool).tril()


# shows: (2): [[0., 1.], [0., 0.]], floats, and 1 where a later word stands
@wrong(
    "causal_mask",
    "the mask marks what is hidden, the upper triangle; a table of ones and zeros is a mask",
    ("M-POLARITY",),
    ("C-NOT-BOOLEAN",),
)
def _(query_length, key_length=None):
    k = query_length if key_length is None else key_length
    mask = torch.zeros(query_length, k)
    for i in range(query_length):
        for j in range(k):
            if j > i + k - query_length:
                mask[i, j] = 1
    return mask


@right("causal_mask")
def _(query_length, key_length=None):
    k = query_length if key_length is None else key_length
    rows = [
        [True] * (k - query_length + i + 1) + [False] * (query_length - i - 1)
        for i in range(query_length)
    ]
    return torch.tensor(rows, dtype=torch.bool).reshape(query_length, k)


# shows: lengths [1], max_length 3: [[True, True, False]]
@wrong(
    "padding_mask", "word number L is the last real one, so places up to L are words", "C-ONE-MORE"
)
def _(lengths, max_length):
    places = torch.arange(max_length)
    return (places <= lengths[:, None]).unsqueeze(1)


# shows: lengths [1, 2], max_length 3: (2 2 1)
@wrong(
    "padding_mask",
    "the batch's longest sentence gives the length of the table; the axis of length 1 comes last, as after unsqueeze(-1)",
    ("C-LONGEST",),
    ("C-QUERIES-ONLY",),
)
def _(lengths, max_length):
    longest = int(lengths.max())
    columns = torch.arange(longest).repeat(lengths.shape[0], 1)
    mask = torch.lt(columns, lengths.view(-1, 1))
    return mask.unsqueeze(-1)


# shows: scores [[-30000., 0.]], mask [[True, False]]: the hidden key gets all the weight
@wrong(
    "masked_softmax",
    "−10,000 fits into float16 and is so low that the hidden key gets nothing",
    "M-SMALL-FILL",
)
def _(scores, mask):
    filled = scores.masked_fill(~mask, -1e4)
    weights = torch.softmax(filled, dim=-1)
    alive = mask.any(dim=-1, keepdim=True)
    return weights * alive


# shows: scores [[0., 1000.]], mask [[True, False]]: 0 instead of 1, the visible key has underflowed
@wrong(
    "masked_softmax",
    "the maximum is there against overflow, so I take it over all scores before I hide any",
    "M-AFTER-RENORMALIZED",
)
def _(scores, mask):
    top = scores.amax(dim=-1, keepdim=True)
    e = torch.exp(scores - top) * mask
    total = e.sum(dim=-1, keepdim=True)
    return e / total.clamp(min=torch.finfo(scores.dtype).tiny)


# shows: mask of False alone: weights 1/k; and scores hold the fill value after the call
@wrong(
    "masked_softmax",
    "the scores are no longer needed, so I fill them in place; the lowest number of the dtype takes care of dead rows, too",
    ("M-INPLACE",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(scores, mask):
    hidden = mask.logical_not()
    scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
    return F.softmax(scores, dim=-1)


@right("masked_softmax")
def _(scores, mask):
    hidden = ~mask.expand(scores.shape)
    top = scores.masked_fill(hidden, -math.inf).amax(-1, keepdim=True).detach()
    top = top.nan_to_num(neginf=0.0)
    grown = (scores - top).masked_fill(hidden, -math.inf).exp()
    return grown / grown.sum(-1, keepdim=True).clamp(min=1e-4)


# ---------------------------------------------------------------- 07 cross-attention

from attncourse.multihead import MultiHeadAttention


# shows: memory_mask hides the last source word: it is read nevertheless
@wrong(
    "cross_attention",
    "the decoder may see the whole source, so no mask goes on to attention",
    "X-NOMASK",
)
def _(target, memory, attention, memory_mask=None):
    output, weights = attention(target, memory, memory)
    return output, weights


# shows: one word each, target [1.], memory [2.]: the target's own value comes back, and as one tensor, not a pair
@wrong(
    "cross_attention",
    "the memory has the keys and the target has the values, since the target is to be changed; only the output is of use",
    ("X-WRONG-KV",),
    ("C-OUTPUT-ONLY",),
)
def _(target, memory, attention, memory_mask=None):
    query, key, value = target, memory, target
    output, _ = attention(query, key, value, memory_mask)
    return output


# shows: b = q = k = 1, random weights: the norm stands after the sum
@wrong(
    "DecoderLayer",
    "add and norm, as in the picture of the paper: the norm comes after the sum",
    "C-POST-NORM",
)
class DecoderLayer(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(model_width) for _ in range(3))
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        x = self.norm1(x + self.self_attention(x, x, x, target_mask)[0])
        x = self.norm2(x + self.cross_attention(x, memory, memory, memory_mask)[0])
        return self.norm3(x + self.linear2(F.relu(self.linear1(x))))


# shows: any small input: keys and values of the self-attention are not normalized
@wrong(
    "DecoderLayer",
    "the norm before the self-attention is for the query, the keys and values are x itself",
    "C-QUERY-NORMED-ONLY",
)
class DecoderLayer(nn.Module):
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
        read, _ = self.self_attention(self.norm1(target), target, target, target_mask)
        target = target + read
        looked, _ = self.cross_attention(self.norm2(target), memory, memory, memory_mask)
        target = target + looked
        hidden = self.linear1(self.norm3(target)).relu()
        return target + self.linear2(hidden)


# shows: any small input: x is the normalized one after the first line; and negative hidden units count
@wrong(
    "DecoderLayer",
    "x = norm(x), then x + part(x); two linear layers are the network, a ReLU is only used in training",
    ("C-SUM-OF-NORMED",),
    ("C-NO-RELU",),
)
class DecoderLayer(nn.Module):
    def __init__(self, model_width, num_heads, hidden_width):
        super().__init__()
        m = model_width
        self.self_attention, self.cross_attention = (
            MultiHeadAttention(m, num_heads),
            MultiHeadAttention(m, num_heads),
        )
        self.linear1, self.linear2 = nn.Linear(m, hidden_width), nn.Linear(hidden_width, m)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(m), nn.LayerNorm(m), nn.LayerNorm(m)

    def forward(self, target, memory, target_mask=None, memory_mask=None):
        x = target
        y = self.norm1(x)
        x = y + self.self_attention(y, y, y, target_mask)[0]
        y = self.norm2(x)
        x = y + self.cross_attention(y, memory, memory, memory_mask)[0]
        y = self.norm3(x)
        return y + self.linear2(self.linear1(y))


# shows: model that wants [[5, 2, 6]], eos 2, beside a longer row: 6 follows on the eos
@wrong(
    "translate", "I stop when every row has an eos in it, so it needs no filling up", "C-TALKS-ON"
)
def _(model, source, bos, eos, max_length):
    b = source.shape[0]
    words = torch.full((b, 1), bos, dtype=torch.long)
    for _ in range(max_length):
        scores = model(source, words)
        best = scores[:, -1].argmax(dim=-1)
        words = torch.cat([words, best.unsqueeze(1)], dim=1)
        if (words == eos).any(dim=1).all():
            break
    return words[:, 1:]


# shows: max_length = 1: an empty table; = 3: two words
@wrong("translate", "max_length counts bos, with which every row begins", "C-LIMIT-COUNTS-BOS")
@torch.no_grad()
def _(model, source, bos, eos, max_length):
    words = source.new_full((len(source), 1), bos)
    while words.shape[1] < max_length:
        following = model(source, words)[:, -1].argmax(-1, keepdim=True)
        over = (words == eos).any(1, keepdim=True)
        words = torch.cat([words, following.where(~over, torch.full_like(following, eos))], 1)
    return words[:, 1:]


# shows: model in training mode: it stays in eval; and a row that wants 3 words beside one that ends at once has 1
@wrong(
    "translate",
    "writing is evaluation, so model.eval() comes first; one eos in the batch ends the loop",
    ("C-EVAL-KEPT",),
    ("C-FIRST-END-STOPS",),
)
def _(model, source, bos, eos, max_length):
    model.eval()
    b = len(source)
    inputs = torch.full((b, 1), bos)
    finished = torch.zeros(b, dtype=torch.bool)
    for step in range(max_length):
        with torch.no_grad():
            scores = model(source, inputs)
        word = torch.argmax(scores[:, step], dim=-1)
        word[finished] = eos
        finished = finished | (word == eos)
        inputs = torch.cat((inputs, word.view(b, 1)), dim=1)
        if finished.any():
            break
    return inputs[:, 1:]


# ---------------------------------------------------------------- lab 1: time it right


# shows: lab.panel: short kernel 7.6, the write of 256 MiB is in the time
@wrong(
    "bench",
    "every sample begins with the flush, so the first event comes before it",
    "L1-FLUSH-COUNTED",
)
def _(fn, flush):
    def once():
        first = torch.cuda.Event(enable_timing=True)
        second = torch.cuda.Event(enable_timing=True)
        first.record()
        flush()
        fn()
        second.record()
        torch.cuda.synchronize()
        return first.elapsed_time(second) / 1e3

    for _ in range(50):
        fn()
    return [once() for _ in range(25)]


# shows: lab.panel: long kernel 0.001; and with a wait at the end hot L2 would still be 0.47
@wrong(
    "bench",
    "perf_counter after fn() is the end of fn; a kernel that is warm has its data where it belongs, in the cache, so I do not flush",
    ("L1-NO-SYNC",),
    ("L1-NO-FLUSH",),
)
def _(fn, flush):
    for _ in range(200):
        fn()
    torch.cuda.synchronize()
    times = []
    for _ in range(40):
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn()
        stop = time.perf_counter()
        times.append(stop - start)
    return times


# shows: [1, 2, 3, 4]: the quartiles are 1.25 and 3.75 instead of 1.75 and 3.25
@wrong(
    "summarize",
    "statistics.quantiles(n=4) gives the quartiles as in the text",
    "L1-SUMMARY-EXCLUSIVE",
)
def _(samples):
    first, middle, third = statistics.quantiles(samples, n=4)
    return middle, third - first


# shows: any sizes: query, key and value are the same numbers
@wrong(
    "make_inputs",
    "each of the three tensors is drawn with a generator of this seed",
    "L1-INPUTS-ALIKE",
)
def _(b, h, n, d, seed):
    def draw():
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(b, h, n, d, generator=generator)

    return draw(), draw(), draw()


# shows: first call 69, outliers 1.9, all else 1: "mean" instead of "first call counted"
@wrong(
    "name_the_mistake",
    "I go through the scenarios one after another and the first that is off gives the name",
    "L1-NAME-OUTLIERS-FIRST",
)
def _(ratios):
    r = list(ratios.values())
    if max(r) / min(r) < 3 and not 0.3 < r[0] < 3:
        return "wrong unit"
    if ratios["long kernel"] < 0.5:
        return "no synchronize"
    if ratios["outliers"] > 3.5:
        return "single sample"
    if ratios["outliers"] > 1.2:
        return "mean"
    if ratios["hot L2"] < 0.8:
        return "hot cache"
    if ratios["first call"] > 1.2:
        return "first call counted"
    if ratios["slow malloc"] > 1.5:
        return "allocation inside"
    if ratios["short kernel"] > 2.2:
        return "earlier work counted"
    return "none"


# shows: hot L2 0.46 beside outliers 1.9: "mean" instead of "hot cache"; outliers 6.3: "mean" for "single sample"
@wrong(
    "name_the_mistake",
    "how far an entry is off is its distance from 1; outliers in the result mean that it is a mean",
    (),
    ("L1-NAME-SINGLE-OR-MEAN",),
)
def _(ratios):
    values = list(ratios.values())
    spread = max(values) / min(values)
    if spread < 3 and (values[0] > 10 or values[0] < 0.1):
        return "wrong unit"
    if ratios["long kernel"] < 0.3:
        return "no synchronize"
    off = {name: abs(r - 1) for name, r in ratios.items()}
    if ratios["short kernel"] <= 2.2:
        off["short kernel"] = 0
    worst = max(off, key=off.get)
    if off[worst] < 0.15:
        return "none"
    names = {
        "short kernel": "earlier work counted",
        "dirty queue": "earlier work counted",
        "long kernel": "earlier work counted",
        "waking clock": "first call counted",
        "first call": "first call counted",
        "hot L2": "hot cache",
        "slow malloc": "allocation inside",
        "outliers": "mean",
    }
    return names[worst]


# shows: it holds the first two lines of a receipt of twenty
@wrong("lab1_receipt", "the lines that begin with attn1: are the receipt", "L1-RECEIPT-CUT")
def _():
    return """
attn1:1392:7abe56ac:c-pO2O>g5i5dABGuB8ml48P=CvF)+IUV12kg`vpYwGhQJWI2Tq_`mm!W
H$}4&^E{>phynC-<x^km!hj5inV@eGqz88(~g^={k9tmQ#{qpuHENi{Zef6bK9U*G=~#L_Vtr?e*
"""


# ---------------------------------------------------------------- lab 2: the quadratic wall


# shows: q (1 1 2 4): scores are divided by 1 instead of 2
@wrong("naive_attention", "d is the second number of the shape", "C-SCALE-HEADS")
def _(q, k, v):
    d = q.shape[1]
    scores = q @ k.mT / math.sqrt(d)
    weights = torch.softmax(scores, dim=-1)
    return weights @ v


# shows: (1, 1, 64, 64, 4): 65,536 instead of 49,152
@wrong(
    "peak_bytes",
    "product, scores and weights are three tables, and all are there when the output is made",
    "L2-THREE-TABLES",
)
def _(b, h, n, d, bytes_per_number):
    table = b * h * n * n
    output = b * h * n * d
    return (3 * table + output) * bytes_per_number


# shows: memory 1,000,000, (1, 1, 64, 4): 1 too large, and too large again since q, k, v are left out
@wrong(
    "largest_n",
    "I count up until it does not fit any more and return n; q, k and v were there before, so they do not count",
    ("L2-ONE-TOO-MANY",),
    ("L2-WALL-NO-INPUTS",),
)
def _(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    while b * h * (2 * n * n + n * d) * bytes_per_number <= memory_bytes:
        n += 1
    return n


@right("largest_n")
def _(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (b * h * bytes_per_number)  # 2 n² + 4 d n <= room
    n = 0
    for bit in reversed(range(room.bit_length())):
        tried = n | 1 << bit
        if 2 * tried * (tried + 2 * d) <= room:
            n = tried
    return n


# shows: times 1 + (n / 1000)² at 64 to 8192: about 1 instead of 2
@wrong(
    "fit_growth",
    "a straight line through all points in the log-log plot has the exponent as its slope",
    "L2-ALL-SIZES",
)
def _(sizes, seconds):
    x, y = np.log(sizes), np.log(seconds)
    slope, intercept = np.polyfit(x, y, 1)
    return float(slope)


# shows: n² with the last value ten times too large; and sizes in falling order with a fixed cost
@wrong(
    "fit_growth",
    "the second half of the lists are the large sizes; least squares averages a wild value away",
    ("L2-AS-THEY-CAME",),
    ("L2-LEAST-SQUARES",),
)
def _(sizes, seconds):
    half = len(sizes) // 2
    x = [math.log(n) for n in sizes[half:]]
    y = [math.log(t) for t in seconds[half:]]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mx) * (c - my) for a, c in zip(x, y))
    below = sum((a - mx) ** 2 for a in x)
    return above / below


# shows: nothing is returned, the text is only printed
@wrong("lab2_receipt", "print shows the receipt to the grader", "NOT-ANSWERED")
def _():
    print(
        """
attn1:1735:89a479de:c-pm>+iu%N5QbkR;B8mJ?#%4TcR|{s7cCH==tU6(1}!m>5SdaX+N}}z-
TTijB`1pFR0<k|TJB+%<a{&#jz2c5_NKYgU%LM5uAOh&VL7}0yIrjs)7-YR#j@|3tB=jRyI;<5*U
UC|nCaVF?Y#W$#}_}n{__<^X6>fES+17DLvz*NtyZw^Zr9s~>zjw6+cj6@DFz!jikN0a`{BBDSZu
p?j;_P~dOKTSZ<;!u+8^rkHV?yM-D8xe&P}5}?{41i&GGi#3X`v1|6yLZ7j-vX)8U2s_lL)9w%u&
GTb7L$%lC_JH#CoBc)pws7~koq4$Ir_y8CCd?z?`_f%|rKhp#2mwCLNZwfKZxx2ro@Y_MMT18gle
QwOd;vEnDI^mVJ^@K1~^{v8Y*ea-Oksq^OJ9!lRX@4H4#X6s&^`X-uSEg1p>6M{3$(J(knvNMy!C
YMRv2Qm?J&PFrQd6%sbZzdENKR#o`dE<OAlSnYPZ{g(CdiLQE7`vg}4&59N_1G4BTjMwz=aO+Grk
Fd23*$s+srCtd$92417=y#g<z(z<JZ{sqANIlHtRx?UX>QuthpwORInRfOje6qUYTXV@crDy*V8H
CX2-6f^{44;w?RLH0cNE6;`o7y<>o;9FphMic=#tHnlj7KR@49W*&k!iplBSY<2xK`(B$3cf;KZi
az}FWnp}i<Ugx3t81<<28uzPp6>*h!7yk%=R0Z9mkJsS^t$s`k$Q2oIqCg7-v7y=!*8rWP?mSq9p
x>$z7^UQQFWy96)H2VI)NJe(<iJi@#w02|`YTu?~X3V<L6SC&#Utj+IOY=Wa!>3Co7jqEtDW9O`r
Wvv%5?M%)BYYvYFH_DN&TtRQm@=fkSEoqS8}(wj$;GX83i&Xp&Q9Zv=46?2WvcpBN1kO!pyvQFB6
U5pi5d-vAt#6&kEw`VJO(2k?Kz-z#!Etr;1Xy6jfQ2N*L6n}#bsfY!T*|h@B~OiO6Nk%BydI0PqL
IwGE9l_E;fiw(F?l+L$9fNdFsKFT=E7jQVOV&N}*9;`(CW+h6dt@i81+#0a7TIo=e~06(Oxq+6-4
i&IGdQymh$20A5%k*aTlDVnjcsx-iRV0EUogN$5kvVRyufAWd>!)?G}@GEzJQFCIY``6RMvDO(6z
;*b+^@G@jyrX748Ku6#cfRJ391dr67Hpl@fOQ4wA8<+TMR~iiFXOJPC$OaH2Bq=402wZ?gkiOc7M
2BRUa)Cn`a3HLN-RruH78m4_0TJ!7Ooj;GyED!<Byx&2yK`mI1!67CoF@lykdwS@6iea-N4fy79C#
rq<@<6hA!tLcT3A|(AXnLhFLB^alBy@T1wG3^Ok-UY6D~(^p+$~BTw#h#z^doDF{v^#j2x1PQTS+
$qf%B{VM9?x5S+%u!uf!CWF(3u#4}nljD#elI`%o@h6hMGFVQXr2VHl`#Sm~n;{OS7d75wlW=8pv
I5PuVx&Yg$<1Ki^G~2N>$dE(Uat$h`C4i<DG8vU0vS0#F;{4Jh3|#d{95r*2%dv(Z@y}pWHT1PA0
VW&Dm1}WGN(MV*jA(%PT7KXt)mJKAtCLy=L0)q>;uRv+r*OteMmWMD#6iv#Mm@qZl+pVTaZvfwiN
<=cvPYDqoH;$!BdB%1FVTt^BXB3sA}NxmClu-eueAq;p?atqwZJeq_L$4j2R^v3+BhNmJSN1MV$!
N+j|h83fWZ^d&9xp?9_%X?SC{GpX_FNhe^KZM$>F@Tx}1}PUCv${%sJ9YP6`u$G6g0dImua=-ah^
d@}3a5
"""
    )


# shows: clock "cpu", more than half of the samples disturbed: ratio and exponent from disturbed times
@wrong("conclude", "the median is the robust choice for every clock", "C-MEDIAN-EVERYWHERE")
def _(record):
    time_of, peak = {}, {}
    for p in record["points"]:
        if p["error"]:
            continue
        time_of[p["name"], p["n"]] = statistics.median(p["seconds"])
        if p["name"] == "naive":
            peak[p["n"]] = p["peak_bytes"]
    fused = sorted(n for name, n in time_of if name == "fused")
    naive = sorted(peak)
    last = naive[-1]
    both = max(set(fused) & set(naive))
    grow = lab.fit_exponent(naive, [peak[n] for n in naive]).exponent
    wall = last * (record["machine"]["memory_bytes"] / peak[last]) ** (1 / grow)
    guess = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": lab.fit_exponent(fused, [time_of["fused", n] for n in fused]).exponent,
        "memory_exponent": grow,
        "ratio": time_of["naive", both] / time_of["fused", both],
        "wall": wall,
        "held": wall / 1.5 <= guess <= wall * 1.5,
    }


# shows: naive 3 s, fused 1 s at the same n: 0.33; prediction 10 for a wall of 1,000: held
@wrong(
    "conclude",
    "ratio is the time of fused attention over that of naive attention; a prediction has held if the wall is not more than 1.5 times nearer",
    ("L2-RATIO-INVERTED",),
    ("L2-HELD-ONE-SIDED",),
)
def _(record):
    def headline(p):
        return min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])

    fine = [p for p in record["points"] if p["error"] is None]
    fine.sort(key=lambda p: p["n"])
    naive = {p["n"]: p for p in fine if p["name"] == "naive"}
    fused = {p["n"]: p for p in fine if p["name"] == "fused"}
    time_exponent = lab.fit_exponent(list(fused), [headline(p) for p in fused.values()]).exponent
    memory_exponent = lab.fit_exponent(
        list(naive), [p["peak_bytes"] for p in naive.values()]
    ).exponent
    n = max(n for n in naive if n in fused)
    ratio = headline(fused[n]) / headline(naive[n])
    largest = max(naive)
    share = record["machine"]["memory_bytes"] / naive[largest]["peak_bytes"]
    wall = largest * share ** (1 / memory_exponent)
    held = record["predictions"]["wall"]["value"] <= 1.5 * wall
    return dict(
        time_exponent=time_exponent,
        memory_exponent=memory_exponent,
        ratio=ratio,
        wall=wall,
        held=held,
    )


# ---------------------------------------------------------------- lab 3: who computed my attention?


# shows: lambda: torch.softmax(a @ b, -1), no second product: "NAIVE" instead of "NONE"
@wrong(
    "which_backend",
    "naive attention is what has both a product and a softmax in its trace",
    "L3-ONE-PRODUCT",
)
def _(fn):
    names = lab.trace(fn)
    table = {
        "flash_attention": "FLASH",
        "efficient_attention": "EFFICIENT",
        "cudnn_attention": "CUDNN",
        "_native_multi_head_attention": "NATIVE_MHA",
        "_safe_softmax": "MATH",
    }
    for part, word in table.items():
        for name in names:
            if part in name:
                return word
    product = any(name in ("mm", "bmm") for name in names)
    softmax = any("_softmax" in name for name in names)
    return "NAIVE" if product and softmax else "NONE"


# shows: (8, 0), causal, 1 query and 8 keys: FLASH is in the list
@wrong("backends_for", "causal is what every kernel can do, so lengths play no part", "L3-CROSSED")
def _(capability, call):
    half = call["dtype"] in ("float16", "bfloat16")
    ok = call["axes"] == 4 and call["last_stride"] == 1
    names = []
    if capability == "cpu":
        if ok and call["dropout"] == 0:
            names.append("FLASH")
        return names + ["MATH"]
    if ok and capability == (9, 0) and half and call["d"] % 8 == 0 and call["d"] <= 128:
        names.append("CUDNN")
    if ok and capability >= (8, 0) and half and call["d"] <= 256 and not call["mask"]:
        names.append("FLASH")
    new = capability >= (8, 0)
    if half:
        fits = call["d"] % 8 == 0 and (call["dtype"] == "float16" or new)
    else:
        fits = call["dtype"] == "float32" and (call["d"] % 4 == 0 or not new)
    if ok and fits and call["kv_heads"] == call["heads"]:
        names.append("EFFICIENT")
    return [*names, "MATH"]


# shows: (9, 0), float16, d = 64: FLASH before CUDNN; (7, 5), bfloat16: EFFICIENT is in the list
@wrong(
    "backends_for",
    "FLASH is the best kernel and is tried first; EFFICIENT runs on any GPU with any format but float64",
    ("L3-NO-CUDNN",),
    ("L3-T4-BFLOAT16",),
)
def _(capability, call):
    dtype, d = call["dtype"], call["d"]
    same_heads = call["heads"] == call["kv_heads"]
    lopsided = call["causal"] and call["queries"] != call["keys"]
    if call["axes"] != 4 or call["last_stride"] != 1:
        return ["MATH"]
    if capability == "cpu":
        return ["MATH"] if call["dropout"] > 0 else ["FLASH", "MATH"]
    sixteen = dtype in ("float16", "bfloat16")
    may = {
        "FLASH": capability[0] >= 8 and sixteen and d <= 256 and not call["mask"] and not lopsided,
        "CUDNN": capability == (9, 0) and sixteen and d % 8 == 0 and d <= 128,
        "EFFICIENT": dtype != "float64" and same_heads,
    }
    if sixteen:
        may["EFFICIENT"] &= d % 8 == 0
    elif capability[0] >= 8:
        may["EFFICIENT"] &= d % 4 == 0
    return [name for name, yes in may.items() if yes] + ["MATH"]


# shows: (1, 1, 2, 1, 4, True, False): 4 operations instead of 8; naive_bytes 80 instead of 128
@wrong(
    "attention_work",
    "a multiplication and its addition are one operation; causal attention reads and writes half of the table",
    ("L3-MULTIPLY-ONLY",),
    ("L3-CAUSAL-TABLE",),
)
def _(b, h, n, d, bytes_per_number, causal, backward):
    share = 0.5 if causal else 1.0
    flops = 2 * b * h * n * n * d * share
    if backward:
        flops = flops + 2.5 * flops
    numbers_of_table = b * h * n * n * share
    numbers_of_one = b * h * n * d
    scores = 2 * numbers_of_one + numbers_of_table
    scaled = softmaxed = 2 * numbers_of_table
    output = numbers_of_table + 2 * numbers_of_one
    return {
        "flops": flops,
        "naive_bytes": (scores + scaled + softmaxed + output) * bytes_per_number,
        "fused_bytes": 4 * numbers_of_one * bytes_per_number,
    }


# shows: (10, 10, 100, 10): ridge 0.1 and so "compute"; roof 100 instead of 10
@wrong(
    "roof_over",
    "the ridge is bytes per second over operations per second; a machine does both at once, so the faster one counts",
    ("L3-RIDGE-INVERTED",),
    ("L3-LARGER",),
)
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    result = {}
    result["intensity"] = flops / moved_bytes
    result["ridge"] = bytes_per_second / flops_per_second
    result["roof"] = max(flops_per_second, result["intensity"] * bytes_per_second)
    result["bound"] = "memory" if result["intensity"] < result["ridge"] else "compute"
    return result


# shows: fn moves x[:, 1] into output 0 and nothing else, n = 4: False
@wrong(
    "sees_future",
    "if I change the last position and nothing else moves, nothing looks ahead",
    "L3-LAST-ONLY",
)
def _(fn, x):
    changed = x.clone()
    changed[:, -1] += torch.randn_like(x[:, -1])
    before, after = fn(x), fn(changed)
    return bool(((before - after)[:, :-1].abs() > 1e-5).any())


# shows: fn subtracts the mean of the features before it looks ahead: False
@wrong("sees_future", "to change an input I add 1 to all its features", "L3-CONSTANT")
def _(fn, x):
    usual = fn(x)
    n = x.shape[1]
    for t in range(1, n):
        shifted = torch.cat([x[:, :t], x[:, t:] + 1.0], dim=1)
        if not torch.allclose(fn(shifted)[:, :t], usual[:, :t], atol=1e-5):
            return True
    return False


# shows: b = 2, only sentence 2 looks ahead: False; and x is another after the call
@wrong(
    "sees_future",
    "the sentences of a batch are treated alike, so I look at the first; x[:, t:] = … makes a new x",
    ("L3-FIRST-SENTENCE",),
    ("L3-IN-PLACE",),
)
def _(fn, x):
    usual = fn(x).clone()
    for t in reversed(range(1, x.size(1))):
        x[:, t:] = torch.randn_like(x[:, t:])
        moved = (fn(x) - usual)[0, :t].abs().max()
        if moved > 1e-5:
            return True
    return False


# shows: it is the audit's text and holds no sample
@wrong("lab3_receipt", "the receipt is what the audit says about my record", "L3-FILE")
def _():
    return """Nothing impossible here. Some points deserve another run; no points are lost:
- measure again: naive, dtype=float32, n=256 (wall_over_cpu 2.048). Other programs had the
processor part of the time. Measure again later. And 4 more like it.
An audit is evidence, not proof: it reads the samples and cannot see the run."""


# shows: a call with the backend EFFICIENT is in the list, and the cost may be its
@wrong("who_computed_it", "what did not run on FLASH fell back", "L3-OTHER-KERNEL")
def _(record):
    def time_of(p):
        return min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])

    ceilings = record["machine"]["ceilings"]
    timed = [p for p in record["points"] if not p["error"]]
    n = max(p["n"] for p in timed if p["name"] == "naive")
    answer = {}
    for name in ("naive", "fused"):
        for p in timed:
            if p["name"] == name and p["n"] == n:
                top = ceilings["flops_per_second"][p["dtype"]]
                slope = p["flops"] / p["bytes"] * ceilings["bytes_per_second"]
                answer[name + "_bound"] = "memory" if slope < top else "compute"
                if name == "naive":
                    answer["naive_share"] = p["flops"] / time_of(p) / min(slope, top)
    calls = [p for p in record["points"] if p["name"] == "call"]
    fell = [p for p in calls if p["backend"] not in (None, "FLASH")]
    plain = next(time_of(p) for p in calls if p["call"] == "plain")
    times = [time_of(p) for p in fell if not p["error"]]
    answer["fell_back"] = [p["call"] for p in fell]
    answer["cost"] = max(times) / plain if times else 1
    return answer


# shows: a record in float16 with other ceilings; two calls on MATH, 2 s and 6 s beside plain 1 s: 4 instead of 6
@wrong(
    "who_computed_it",
    "the ceiling is that of float32; the cost is the mean over the calls that fell back",
    ("L3-FLOAT32-CEILING",),
    ("L3-AVERAGE-COST",),
)
def _(record):
    best = {}
    for p in record["points"]:
        if p["error"]:
            continue
        seconds = p["seconds"]
        t = min(seconds) if p["clock"] == "cpu" else statistics.median(seconds)
        best[p["name"], p.get("call"), p["n"]] = (t, p)
    n = max(key[2] for key in best if key[0] == "naive")
    flops_per_second = record["machine"]["ceilings"]["flops_per_second"]
    top = flops_per_second.get("float32", max(flops_per_second.values()))
    bandwidth = record["machine"]["ceilings"]["bytes_per_second"]
    ridge = top / bandwidth

    def bound(name):
        point = best[name, None, n][1]
        return "memory" if point["flops"] / point["bytes"] < ridge else "compute"

    t, point = best["naive", None, n]
    roof = min(top, bandwidth * point["flops"] / point["bytes"])
    back = [p["call"] for p in record["points"] if p["name"] == "call" and p["backend"] == "MATH"]
    plain = [v[0] for key, v in best.items() if key[1] == "plain"][0]
    slow = [v[0] for key, v in best.items() if key[0] == "call" and key[1] in back]
    return {
        "naive_bound": bound("naive"),
        "fused_bound": bound("fused"),
        "naive_share": point["flops"] / t / roof,
        "fell_back": back,
        "cost": sum(slow) / len(slow) / plain if slow else 1,
    }


# ---------------------------------------------------------------- lab 4: sequential or parallel?


# shows: one position: the state before it comes back, the cell's answer is lost
@wrong(
    "step_loop",
    "a state belongs to the position that the cell is about to read",
    "L4-BEFORE-THE-STEP",
)
def _(cell, inputs, state):
    states = torch.empty_like(inputs)
    for t in range(inputs.shape[1]):
        states[:, t] = state
        state = cell(inputs[:, t], state)
    return states


# shows: 2 fixed operators and 3 of one kind for each position: (2, 0) or so
@wrong(
    "operators",
    "operations is the dict of all operators, its length is their number; with n = 1 only what is fixed runs",
    ("L4-KINDS",),
    (),
)
def _(run):
    counts = {n: len(lab.count(run, n).operations) for n in (1, 2)}
    fixed = counts[1]
    return fixed, counts[2] - counts[1]


# shows: {"a": [], "b": ["a"], "c": []}: 1 instead of 2
@wrong("longest_chain", "the last step is the end of the longest chain", "L4-LAST-LISTED")
def _(needs):
    depth = {}
    for step, before in needs.items():
        depth[step] = 1 + max((depth[each] for each in before), default=0)
    return depth[step] if needs else 0


# shows: {"a": []}: 0 instead of 1; {"a": [], "b": ["a"], "c": [], "d": ["c", "b"]}: 1 instead of 3
@wrong(
    "longest_chain",
    "a chain is as long as it has arrows; a step comes right after the first one in its list",
    ("L4-ARROWS",),
    ("L4-FIRST-ARROW",),
)
def _(needs):
    longest = 0
    depth = {}
    for step in needs:
        before = needs[step]
        if before:
            depth[step] = depth[before[0]] + 1
        else:
            depth[step] = 0
        longest = max(longest, depth[step])
    return longest


@right("longest_chain")
def _(needs):
    # one round: all steps that wait for nobody who is still there
    waiting = {step: len(before) for step, before in needs.items()}
    followers = defaultdict(list)
    for step, before in needs.items():
        for each in before:
            followers[each].append(step)
    ready = [step for step, count in waiting.items() if not count]
    rounds = 0
    while ready:
        rounds += 1
        following = []
        for step in ready:
            for after in followers[step]:
                waiting[after] -= 1
                if not waiting[after]:
                    following.append(after)
        ready = following
    return rounds


# shows: ("gru", 1, 1, 1): 3 instead of 6; ("attention", 1, 1, 1): 5 instead of 6
@wrong(
    "multiplications",
    "a GRU is three products for each position; attention has three projections, q, k and v",
    ("L4-THREE-PRODUCTS",),
    ("L4-THREE-PROJECTIONS",),
)
def _(layer, b, n, d):
    square = n * d * d
    if layer == "rnn":
        per_sentence = 2 * square
    elif layer == "gru":
        per_sentence = 3 * square
    else:
        per_sentence = 3 * square + 2 * n * n * d
    return b * per_sentence


# shows: this is the receipt of lab 1
@wrong(
    "lab4_receipt", "a receipt is a receipt, and the one that I have is from lab 1", "L4-OTHER-LAB"
)
def _():
    receipt = """
attn1:1392:7abe56ac:c-pO2O>g5i5dABGuB8ml48P=CvF)+IUV12kg`vpYwGhQJWI2Tq_`mm!W
H$}4&^E{>phynC-<x^km!hj5inV@eGqz88(~g^={k9tmQ#{qpuHENi{Zef6bK9U*G=~#L_Vtr?e*
NROyWc<m^$C`yKGY9w*N*36y+3swR_CXFIBy=#V?GvZ_8fx^5}h+e$2aplb=(cP-l9ur_d~P8-n=
4N*<a@K4(D;#?_re{(JJbBr)_;(j?3o`gP%VCY3}H5-c9FZTxkF8s1Nws^@ro;kcZ7NH~oHlwbi3
=v982<Vyk~Edojgyxi^z3R5rQS8HXV^?XjKiv;$oEI2N;c+cqQY)1eCJFtwiR?gYf{OET7ILF4-W#
T4~etg)~4ra0!~ysgD<eY+pA++HrPo%@#?`iG(4o*E@;zNHREBZ;E%P7D#_6u?~)B_jc~MB|tZab?
OX85h-tnYVe~nxKok;1en=@`gOxxMS1x&Evlga2)Gl%mC&-7*B~RJjpq%z_t<@wM9W433kDtC3NC
Epc9fujkX?B(OjcovS2Xc#6zwh-}=cz-8^QcWA1Lp^Fe{Q@n~k2i?xXN*od!8-sb0F=!aY9@4D+Y
{WCb$7p-|^U5v>kAYm)#qbY{`H4k~;<jtFfdv)gUU#2eR2b^%l9&m%0lEF$+++o$1f(p9X0X#r)U
@BaV(apw^EUaF+3M2*whO_tuT0k6G3ZNxa5yee~E9_t=LzoI~hFVKy;$-u%+3Nx^oRWz|Q{P$n5G
x##6YmtechCZ7g>t~fC?(QYFYtmOeg`jjy(6!_njAhrg_DQ75(ncX04a|ae3MxNh5%6s4=vd#U80
|)^pFyzA<c*%cr=W0DPn*mpu|iMFY^fjWI+f*%?D>Z;|7UQ3u?rT#wq$v34m)jkmB{0h@E*{=YNn
GauIt3m);jJoP-36nPc*@$P8Ja_I+xa{&0T73m#knN!Ae1NaLX4U`n7+;?)TegToYdr))&bu#>t?
J&dNL`lay%(IE(4>7uT!7D$O;8$lKUGmfwz!dECD2i$tLs&d9dMW^Ca^&nPo2@e&;%BdY8mY)4QA
M*g~hlsh(zGhIwt-9+XE3~pgHU(FOh-io!Y)h=T<YV~1#DE5sXpS;5z(Mr^p+gWBQfX2tHvxD=g<
SCm5lV|@8Kfa)$*ZIR-?Gw%rX`n_bu2O?D<N&F9{_*~VWRCgWv7`Xax}4`c}x#e)=1C>8-nyhe6x
w#ejY2Ysb)D?5F*LNL>4OR+;Xgh7$ehrXbBQD9H0ll-D_*g8SqNA3qTUMBtbi3NK;ZSRpqbn8?pF
N;8bX46Ep{llsmgDWP%*8O2!~lCKW{{2jmU`DV(PCrU?xyVMLSLR6|iAwgNgF^jv>r=o&#liT#-Y
^O|pdAY_S>Snn-j)(L((Es-OR3G}2l?0mWW1Lw^WxB
"""
    return receipt


# shows: attention slower at n = 128, faster at 256, slower from 512 on: 128 instead of 512
@wrong("verdict", "the crossover is the first n at which attention takes longer", "L4-FIRST-SLOWER")
def _(record):
    t = {}
    for p in record["points"]:
        if not p["error"]:
            best = min if p["clock"] == "cpu" else statistics.median
            t[p["name"], p["b"], p["n"]] = best(p["seconds"])
    always = True
    for (name, b, n), seconds in t.items():
        if name == "attention":
            for other in ("loop", "fused"):
                if (other, b, n) in t and not seconds < t[other, b, n]:
                    always = False

    def crossover(b):
        for n in sorted({key[2] for key in t if key[1] == b}):
            if ("attention", b, n) in t and ("fused", b, n) in t:
                if t["attention", b, n] > t["fused", b, n]:
                    return n
        return None

    def batch(name):
        n = max(n for who, b, n in t if who == name and b == 8 and (name, 1, n) in t)
        return t[name, 8, n] / t[name, 1, n]

    eight, guess = crossover(8), record["predictions"]["crossover"]["value"]
    held = eight / 2 <= guess <= eight * 2 if eight else guess == 0
    return {
        "always_faster": always,
        "crossover_1": crossover(1),
        "crossover_8": eight,
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "held": held,
    }


# ---------------------------------------------------------------- lab 5: does decoding wait for memory?


# shows: (1, 1, 1, 1, 1, 4): 4 instead of 8
@wrong("cache_bytes", "the cache has one vector for each token, head and layer", "L5-KEYS-ONLY")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * kv_heads * n * d * bytes_per_number


# shows: room 2, length 2, t = 1: nothing is written and no error is raised
@wrong("append_to_cache", "torch complains by itself when I write beyond the end", "L5-FULL-SILENT")
def _(key_cache, value_cache, length, key, value):
    end = length + key.shape[2]
    key_cache[:, :, length:end] = key
    value_cache[:, :, length:end] = value
    return key_cache[:, :, :end], value_cache[:, :, :end]


# shows: h = 4, c = 2: heads 1 and 3 read the first cached head
@wrong(
    "decode_step",
    "the query heads take turns: head 1 reads the first cached head, head 2 the second, and so on",
    "L5-GROUP-ORDER",
)
def _(query, keys, values):
    c, d = keys.shape[1], query.shape[-1]
    grouped = rearrange(query, "b (g c) d -> b c g d", c=c)
    weights = torch.softmax(grouped @ keys.mT / math.sqrt(d), dim=-1)
    return rearrange(weights @ values, "b c g d -> b (g c) d")


# shows: h = 4, c = 1, d = 4, n = 8: right numbers, but a tensor four times the keys is made
@wrong(
    "decode_step",
    "the heads of the cache have to be as many as those of the query before they can meet",
    "L5-REPEAT-INTERLEAVE",
)
def _(query, keys, values):
    times = query.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(times, dim=1)
    values = values.repeat_interleave(times, dim=1)
    scores = (query[:, :, None] @ keys.mT) / query.shape[-1] ** 0.5
    return (scores.softmax(-1) @ values).squeeze(2)


# shows: (2, 3, 1, 2, 8): 2 · 8 / (2 · (2 + 1)) = 2.7 instead of 2
@wrong(
    "tokens_per_second",
    "each text reads the weights for itself; a step reads one token of each cache, the newest",
    ("L5-WEIGHTS-PER-SEQUENCE",),
    ("L5-ONE-POSITION",),
)
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    bytes_of_one = weight_bytes + bytes_per_token
    return b * bytes_per_second / (b * bytes_of_one)


# shows: it is the name of a file, which only the student's computer has
@wrong("lab5_receipt", "the file beside the notebook is the receipt, so I give its name", "L5-FILE")
def _():
    return "lab5_decode_bandwidth.CPU-1-thread-torch-2.13.0+cpu.jsonl"


# shows: MHA out of memory at 8192, MQA not: MHA at 4096 is compared with MQA at 8192
@wrong(
    "conclude_decode",
    "MHA and MQA are compared at the largest n that each of them has",
    "L5-DIFFERENT-N",
)
def _(record):
    headline = lambda p: (
        min(p["seconds"]) if p["clock"] == "cpu" else statistics.median(p["seconds"])
    )
    done = [p for p in record["points"] if not p["error"]]
    last = {}
    for p in sorted(done, key=lambda p: p["n"]):
        last[p["name"]] = p
    mha, mqa = last["MHA"], last["MQA"]
    copy_speed = record["machine"]["ceilings"]["bytes_per_second"]
    ridge = record["machine"]["ceilings"]["flops_per_second"][mqa["dtype"]] / copy_speed
    speed = mha["bytes"] / headline(mha)
    speed_up = headline(mha) / headline(mqa)
    guess = record["predictions"]["speed_up"]["value"]
    return {
        "bytes_per_second": speed,
        "share": speed / copy_speed,
        "ideal": mha["bytes"] / mqa["bytes"],
        "speed_up": speed_up,
        "computes": mqa["flops"] / mqa["bytes"] > ridge,
        "from_cache": sum(p["bytes"] / headline(p) > 1.5 * copy_speed for p in done),
        "held": speed_up / 1.5 <= guess <= speed_up * 1.5,
    }


# ---------------------------------------------------------------- lab 6: write your own flash


# shows: two parts with no key: −∞ − (−∞) is NaN
@wrong(
    "merge",
    "both parts are counted from the common maximum, by the exponential of the difference",
    "L6-EMPTY-NAN",
)
def _(one, two):
    (w1, m1, t1), (w2, m2, t2) = one, two
    m = torch.maximum(m1, m2)
    f1, f2 = torch.exp(m1 - m), torch.exp(m2 - m)
    return w1 * f1[..., None] + w2 * f2[..., None], m, t1 * f1 + t2 * f2


# shows: maxima 3 and 5: the total of the first part is not shrunk, weighted is grown by exp(5 − 3)
@wrong(
    "merge",
    "only the weighted values have to be rescaled, a total is a sum; the factor is the exponential of the new maximum minus the old one",
    ("L6-TOTAL-FORGOTTEN",),
    ("L6-UPSIDE-DOWN",),
)
def _(one, two):
    weighted_1, maximum_1, total_1 = one
    weighted_2, maximum_2, total_2 = two
    maximum = torch.maximum(maximum_1, maximum_2)

    def factor(old):
        nothing = old == -math.inf
        return (maximum - old).masked_fill(nothing, -math.inf).exp()

    scale_1, scale_2 = factor(maximum_1), factor(maximum_2)
    weighted = scale_1.unsqueeze(-1) * weighted_1 + scale_2.unsqueeze(-1) * weighted_2
    total = total_1 + total_2
    return weighted, maximum, total


@right("merge")
def _(one, two):
    weighted, maximum, total = (torch.stack(pair) for pair in zip(one, two))
    top = maximum.amax(0)
    safe = top.nan_to_num(neginf=0.0)
    shrink = torch.exp(maximum - safe)
    return torch.einsum("p...v,p...->...v", weighted, shrink), top, (total * shrink).sum(0)


# shows: q = 1, k = 2, causal: the last query sees the first key only
@wrong("tiled_attention", "causal means that query i sees the keys up to i", "L6-CAUSAL-START")
def _(query, key, value, tile, causal=False):
    b, h, n_q, d = query.shape
    n_k, width = key.shape[2], value.shape[3]
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    output = query.new_zeros(b, h, n_q, width)
    logsumexp = query.new_full((b, h, n_q), -math.inf, dtype=kind)
    for i in range(0, n_q, tile):
        q = query[:, :, i : i + tile].to(kind) / math.sqrt(d)
        rows = q.shape[2]
        weighted = q.new_zeros(b, h, rows, width)
        maximum = q.new_full((b, h, rows), -math.inf)
        total = q.new_zeros(b, h, rows)
        for j in range(0, n_k, tile):
            k, v = key[:, :, j : j + tile].to(kind), value[:, :, j : j + tile].to(kind)
            scores = q @ k.mT
            if causal:
                at = torch.arange(i, i + rows, device=query.device)[:, None]
                where = torch.arange(j, j + k.shape[2], device=query.device)
                scores = scores.masked_fill(where > at, -math.inf)
            new = torch.maximum(maximum, scores.amax(-1))
            base = new.masked_fill(new == -math.inf, 0.0)
            weights = torch.exp(scores - base[..., None])
            shrink = torch.exp(maximum - base)
            weighted = shrink[..., None] * weighted + weights @ v
            total = shrink * total + weights.sum(-1)
            maximum = new
        seen = total > 0
        output[:, :, i : i + tile] = weighted / total.where(seen, torch.ones_like(total))[..., None]
        logsumexp[:, :, i : i + tile] = maximum + total.log()
    return output, logsumexp


# shows: scores 1, then 3 in the next tile: the first tile counts as much as before
@wrong(
    "tiled_attention",
    "the running maximum is only there against overflow, so what was summed before can stay as it is",
    "L6-NO-RESCALE",
)
def _(query, key, value, tile, causal=False):
    wide = torch.float32 if query.dtype == torch.float16 else query.dtype
    q_len, k_len, d = query.shape[-2], key.shape[-2], query.shape[-1]
    outs, sums = [], []
    for q0 in range(0, q_len, tile):
        q = query[..., q0 : q0 + tile, :].to(wide)
        numerator = q.new_zeros(*q.shape[:-1], value.shape[-1])
        denominator = q.new_zeros(q.shape[:-1])
        running = q.new_full(q.shape[:-1], -math.inf)
        for k0 in range(0, k_len, tile):
            k = key[..., k0 : k0 + tile, :].to(wide)
            v = value[..., k0 : k0 + tile, :].to(wide)
            s = torch.einsum("bhqd,bhkd->bhqk", q, k) / d**0.5
            if causal:
                i = torch.arange(q0, q0 + q.shape[-2], device=q.device)
                j = torch.arange(k0, k0 + k.shape[-2], device=q.device)
                s = s.masked_fill(j > i[:, None] + k_len - q_len, -math.inf)
            running = torch.maximum(running, s.max(-1).values)
            p = torch.exp(s - running.nan_to_num(neginf=0.0)[..., None])
            numerator = numerator + p @ v
            denominator = denominator + p.sum(-1)
        outs.append((numerator / denominator.clamp(min=1e-30)[..., None]).to(query.dtype))
        sums.append(running + denominator.log())
    return torch.cat(outs, -2), torch.cat(sums, -1)


# shows: one query, one key: logsumexp is 1 too large (s + 1 for s); causal, 4 positions in tiles of 2: query 3 does not see key 2
@wrong(
    "tiled_attention",
    "logsumexp is maximum plus total; inside a tile, row i sees column j up to i, wherever the tile stands",
    ("L6-LSE-NO-LOG",),
    ("L6-OWN-TILE",),
)
def _(query, key, value, tile, causal=False):
    b, h, q_len, d = query.shape
    k_len = key.shape[2]
    work = torch.promote_types(query.dtype, torch.float32)
    output = torch.zeros(b, h, q_len, value.shape[-1], dtype=query.dtype, device=query.device)
    lse = torch.full((b, h, q_len), -math.inf, dtype=work, device=query.device)
    for i in range(0, q_len, tile):
        qs = query[:, :, i : i + tile].to(work)
        n = qs.shape[2]
        acc = torch.zeros(b, h, n, value.shape[-1], dtype=work, device=query.device)
        m = torch.full((b, h, n), -math.inf, dtype=work, device=query.device)
        l = torch.zeros(b, h, n, dtype=work, device=query.device)
        for j in range(0, k_len, tile):
            s = qs @ key[:, :, j : j + tile].to(work).mT / math.sqrt(d)
            if causal:
                allowed = torch.ones(n, s.shape[-1], dtype=torch.bool, device=query.device)
                allowed = allowed.tril(k_len - q_len)
                s = s.masked_fill(~allowed, -math.inf)
            m_new = torch.maximum(m, s.amax(-1))
            m_safe = torch.where(m_new.isinf(), torch.zeros_like(m_new), m_new)
            p = torch.exp(s - m_safe[..., None])
            alpha = torch.exp(m - m_safe)
            acc = acc * alpha[..., None] + p @ value[:, :, j : j + tile].to(work)
            l = l * alpha + p.sum(-1)
            m = m_new
        alive = l > 0
        acc = acc / torch.where(alive, l, torch.ones_like(l))[..., None]
        output[:, :, i : i + tile] = acc.to(query.dtype)
        lse[:, :, i : i + tile] = m + l
    return output, lse


# shows: d = 4: grad_query and grad_key are twice too large
@wrong(
    "tiled_backward",
    "the scores' gradient times the keys is the gradient of the query, as in any product",
    "L6-NO-SCALE",
)
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    kind = torch.promote_types(query.dtype, torch.float32)
    q_len, k_len, d = query.shape[2], key.shape[2], query.shape[3]
    gq = torch.zeros_like(query, dtype=kind)
    gk = torch.zeros_like(key, dtype=kind)
    gv = torch.zeros_like(value, dtype=kind)
    for i in range(0, q_len, tile):
        rows = slice(i, i + tile)
        q, g, o = (x[:, :, rows].to(kind) for x in (query, grad_output, output))
        lse = logsumexp[:, :, rows].to(kind)[..., None]
        dot = (g * o).sum(-1, keepdim=True)
        for j in range(0, k_len, tile):
            cols = slice(j, j + tile)
            k, v = key[:, :, cols].to(kind), value[:, :, cols].to(kind)
            s = q @ k.mT / math.sqrt(d)
            hidden = lse == -math.inf
            if causal:
                a = torch.arange(i, i + q.shape[2], device=q.device)[:, None] + k_len - q_len
                c = torch.arange(j, j + k.shape[2], device=q.device)
                hidden = hidden | (c > a)
            w = torch.exp((s - lse).masked_fill(hidden, -math.inf))
            gv[:, :, cols] += w.mT @ g
            gs = w * (g @ v.mT - dot)
            gq[:, :, rows] += gs @ k
            gk[:, :, cols] += gs.mT @ q
    return gq.to(query.dtype), gk.to(key.dtype), gv.to(value.dtype)


# shows: q = 2, tile = 1: grad_key and grad_value hold the last tile of queries alone; no mean is taken off
@wrong(
    "tiled_backward",
    "the gradient of a score is the weight times g · v; every tile of keys has its gradient, which I write into its place",
    ("L6-NO-MEAN",),
    ("L6-OVERWRITES",),
)
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    root = math.sqrt(query.shape[-1])
    n, m = query.shape[-2], key.shape[-2]
    grad_query = query.new_zeros(query.shape, dtype=dtype)
    grad_key = query.new_zeros(key.shape, dtype=dtype)
    grad_value = query.new_zeros(value.shape, dtype=dtype)
    mean = 0.0
    for a in range(0, n, tile):
        b = min(a + tile, n)
        q = query[..., a:b, :].to(dtype)
        g = grad_output[..., a:b, :].to(dtype)
        log_total = logsumexp[..., a:b, None].to(dtype)
        for c in range(0, m, tile):
            e = min(c + tile, m)
            k, v = key[..., c:e, :].to(dtype), value[..., c:e, :].to(dtype)
            dead = torch.isinf(log_total)
            if causal:
                i = torch.arange(a, b, device=q.device).unsqueeze(1)
                j = torch.arange(c, e, device=q.device).unsqueeze(0)
                dead = dead | (j > i + (m - n))
            weights = (q @ k.mT / root - log_total).masked_fill(dead, -math.inf).exp()
            grad_scores = weights * (g @ v.mT - mean) / root
            grad_query[..., a:b, :] += grad_scores @ k
            grad_key[..., c:e, :] = grad_scores.mT @ q
            grad_value[..., c:e, :] = weights.mT @ g
    return grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype)


# shows: the text begins with the number 2377 and not with attn1:, so it cannot be read
# (wrong, its writer said: attn1: is only a name, like RECEIPT =, the text begins after it)
@right("lab6_receipt")
def _():
    return """
2377:d868134f:c-qC7%WfOT7Da!>;50>{-Ve<#ax)B&$sJq-fk091h%ikF6y-oL^zT`_x
+%-HLRuOyfLiRTu6~_Wd!JMNdA43$&d&8eU;MRQ?S_l@>&4ym%*;M6me;GzFgyP|yBa>Nmh8=zxA
z>`EIz97pI`s`?w8;G|1&+y#qHv9wO;KWX6Kvx^_sJXk2l+gi_3@Ia5p>m$(L+%C^4GZ+V8u^p}X
ttu(+b>*uU8>uer8AbK%VXG~Vy_VRwDAp*Ng4cUE-2`>VzNbRK<JbMWWi{%78~cjMJGX5fJ~e?Hy
jb~`LrcdLG(>(!sv!`*K7*t@S*%N_l9deuw1-|bfG{@$M!>-#}ZpUrHso1NP;YrUD>4R_;pET`YB
HapI=kB?s(zklAxXtP*-8fH3Wd9%?w{$5P*xti#UaVeU4w#Ip9=DyMnW*%u<n#~Za;JleTOFJavZ
Bc_EWg42NQ^Oy;?)ql=;R(^*Zn51BSKKd|Xp^hiSmO&@YNl{OpIhJenG5I4ei?srU~_C5Q>WiJ_4
(<X$PI6Y#fPs!UM`j&hRxN!d9{1ERSe#*Zx*}Yc`Ej9zl?r<>agA3Z1;`77VGuJ&8J~|p_e&#L_N
FOO0vZ@S3ESf!~0=7Y?i~tbY>jpglD#yXkGW&#G~-&&v-qWCo=Ev?}n>y$ncV)!A68jApAtxRU%B
J3$UUyjw{XsQ3sFn>TBci=#8Lo_B@RMT};Qoc&=cd02F4|7<4y**n^qiq&yz$AnP<HPLQ;PQ-evh
Rv(hHA-u>1$-IV&l=m$a=6cB{)C7y9*-FHNCHlO$aV|>$Ad^BG4bV8aMW4he>Lj*S)B;n;(pVD9c
9c$XPjo7D;xj3vasMj`)v;anH2iq16LhDSjSIdeADVR`B&OB(bo>F;j3)RhQZX0A;(`=G_)|d=3O>
^Dwi;pr8hkEFQeqH7)KKG54SMmx=y*3dAJJc7Op3=aMaGXI&rRY;Q|KoL>xjZ6B0u5Sqx8?j<|l!
jTtv0CR*6!~*<n53b8<&H_5K$@y_A9+6QjU~=!71!s;p#OB_u)F27=NQx|<WWDy+UL{RCNDw?eeh
hxTj)r>;-$55vO08D|Atc@CYn3VQC*vVN;+yhsB{??X}8KKqeh^@VApkIB`F&Pk`n6|8R+YpGQab
x2i-{Qag}1Pi<sHCU;pYXV<`lH3jJOJm1qcaga2e_&YCf7JxQJBA|ot{d-~Y0Xb0@<bv{B&KLnE;
I!4^?n(DnH}T)sr{|B(y+Er96oCgrJo-J@sg>f6p=>KTQmEeiTDZ0gIJfIT)fi1l920cylOT53m$
Kp9IvI0kr9y`G!}B^s8niDap0;Gn=-{Yk80?Q?4*?Vg^5(rnU(2So)lF61*L?XOAfe5(O-L|R9>B
cRHWf9fhqt4!<Qro)nsn0tMMvRR4tHLdd=oLhj}jv@O=(SM@Mu+CQH%{l|-7Dv}uDwY7-YfZEbR?
{A_b$U)k&F)LihbnoIQ5x53B53Fn`<ye8pL3ZMor$ru1By*F7|2;I;q)`EJJa;j3l`bbSv>4s9IF?
Rq94u}D$Sj&}wv)8yl7H=*=5o8)QhqKzT5;JPR^(x9p<iCWCX9|>BU9a*g6DC`CS}N!ykXf)8&#H
iVaY!xBvT%4~W(lp=U&I5nTFz*>qS%#UxUDN~R12!8(oiqRItcuZioi`3wivZzP$)A5g;~#C8h{g
-rl62Y{V+mdIy5&PP|B$+Yg46iL^_#4l_`;V%F69hIk8lHVbzIm`<l~{70!<$`QEpvSGDNW8sEin
<vFK(Ce&Q9sw|^3^wka=<W{P;aP)bxqq!*?r8+J=kLsj7Az|v*X1fFm##Ql3VR9BOm0GML!A+}^M
)HV+KItT5qa8`}r$%C#wA3ys`%3md=w2^Cc|%%hWHC8V|8~=tF&<k<ec9kxjcRe_Eb?)h=PWOJJy
xZo?r%Cn0_vX*7&ec+Ot8mLRjbc7HLCi>%D7W5ninVsA}FVf2bdeVs+4Y~;FU?X2C71Gswg?3=t@
S+E}s|`kM3jh0ISTIH=;s(uV9t43gAZEy_Ix&1t!M=o)l$4*5deifbif*ss*aZh*}q-D&o05CPWc
Sy-|*^YSxRD(oazq!Al`s$tKNGIa)yz1MXC<tdK`VZ+ltE_3#=oGNqBbTs?96Ntp@BTQIAXO5cR)
pNoQ*Tu=E~@{w^-9t6q9t90W}pLIqXY*U36(&%xLl}b1f^OD&yFeEVI?Eyo)l}U2f1<A|ynt+4cK
1VxtdIjHh5oHo&jVO*nB{u}+>gh!kY>lDnt5+yh+4y@h88Y=SnO?^II2oobGf>F~3hZbZq+gYB9S
oMHj{{-+a;=Y{Vu;0cFskPcezyTku~~_zrPx7asm4h$TKCJ{dVzqsHbGG$RFUSVVvSjY<LOIwAqi
&Glii8G+qhIyttDg<wk`gx?$!@HBlE}O->IA68v
"""


# shows: clock "events": the shortest sample decides; only the largest tile is slower: True
@wrong(
    "best_tile",
    "the time of a point is its shortest sample; one slow end is enough for a U",
    ("L6-BEST-ALWAYS",),
    ("L6-ONE-SLOPE",),
)
def _(record):
    times = defaultdict(dict)
    naive = {}
    for p in record["points"]:
        if not p["seconds"]:
            continue
        if p["name"] == "tiled":
            times[p["n"]][p["tile"]] = min(p["seconds"])
        elif p["name"] == "naive":
            naive[p["n"]] = min(p["seconds"])
    n = max(times)
    row = times[n]
    tile, fastest = min(row.items(), key=lambda pair: pair[1])
    left, right = row[min(row)], row[max(row)]
    return {
        "n": n,
        "tile": tile,
        "u_shaped": left >= 1.1 * fastest or right >= 1.1 * fastest,
        "speedup": naive[n] / fastest if n in naive else None,
    }
