"""Answers to chapters 8–14 by another writer who had the notebooks alone, half with two mistakes.

What the judge said before anything was mended by these is in tests/bench/answers.md. Which names are
fair was said by somebody else, with the judge's in view.
"""

# ruff: noqa: B007, B905, E501, E731, E741, RUF005, RUF059, SIM102, SIM113
import copy
import functools
import math
import random
from collections import Counter

import einops
import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import nn

from attncourse.masking import causal_mask
from attncourse.multihead import merge_heads, split_heads
from attncourse.one_stack import byte_letters, byte_words
from attncourse.positions import rotate
from attncourse.scaled_dot_product import scaled_dot_product_attention
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right


# ---------------------------------------------------------------- 08 positions
# shows: f(torch.ones(1, 1), torch.zeros(3, 1), torch.arange(-2.0, 3)[:, None])
#   gives [[0.0, 1.0, 2.0]]
#   right [[-2.0, -1.0, 0.0]]
@wrong(
    "relative_scores",
    "queries and keys both count from 0, so the offset is just column minus row",
    "P-TOPLEFT",
)
def _(query, key, table):
    c = (table.shape[0] - 1) // 2
    rows, cols = np.indices((query.shape[-2], key.shape[-2]))
    offset = np.clip(cols - rows, -c, c) + c
    t = table[torch.from_numpy(offset)]
    return (torch.matmul(query, key.mT) + torch.einsum("...qd,qkd->...qk", query, t)) / math.sqrt(
        query.shape[-1]
    )


# shows: f(torch.ones(1, 4), torch.ones(1, 4), torch.ones(3, 4))
#   gives [[6.0]]
#   right [[4.0]]
@wrong(
    "relative_scores",
    "the root belongs to the dot product with the key, the position term comes on top of it; offset is how far back the key is, i minus j",
    ("C-SHAW-SCALED-HALF",),
    ("C-SHAW-OTHER-WAY",),
)
def _(query, key, table):
    q, k, d = query.shape[-2], key.shape[-2], query.shape[-1]
    c = len(table) // 2
    i = torch.arange(k - q, k).view(-1, 1)
    j = torch.arange(k).view(1, -1)
    index = (i - j).clamp(min=-c, max=c) + c
    content = query @ key.transpose(-1, -2)
    content = content / d**0.5
    position = (query.unsqueeze(-2) * table[index]).sum(-1)
    return content + position


# shows: f(torch.eye(2), torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
#   gives [[0.707, 2.121], [4.242, 1.414]]
#   right [[2.121, 3.535], [1.414, 2.828]]
@wrong(
    "relative_scores",
    "the rows of the table are indexed by the clipped offset itself, −1 is the last row as everywhere in Python",
    "C-SHAW-NO-MIDDLE",
)
def _(query, key, table):
    # score per row of the table, then gather like np.take_along_axis
    by_row = query @ table.T
    n_q, n_k = query.shape[-2], key.shape[-2]
    half = table.shape[0] // 2
    pos_q = torch.arange(n_q) + (n_k - n_q)
    pos_k = torch.arange(n_k)
    rel = (pos_k[None, :] - pos_q[:, None]).clip(-half, half)
    rel = rel % table.shape[0]
    picked = torch.gather(by_row, -1, rel.expand(*query.shape[:-2], n_q, n_k))
    return (query @ key.mT + picked) / query.shape[-1] ** 0.5


# shows: f(torch.tensor([0, 1, 5, -9]), 8, 20, True)
#   gives [0, 1, 2, 7]
#   right [0, 5, 6, 3]
@wrong(
    "relative_buckets",
    "keys before the query are the ones that get the second half",
    "C-BUCKETS-AFTER-FIRST",
)
def _(offsets, num_buckets, max_distance, bidirectional):
    n = -offsets.long()
    start = torch.zeros_like(n)
    if bidirectional:
        num_buckets //= 2
        start = start + (n > 0).long() * num_buckets
        n = n.abs()
    else:
        n = torch.maximum(n, torch.zeros_like(n))
    exact = num_buckets // 2
    far = (
        exact
        + (
            torch.log(n.clamp(min=1).double() / exact)
            / math.log(max_distance / exact)
            * (num_buckets - exact)
        ).long()
    )
    far = far.clamp(max=num_buckets - 1)
    return start + torch.where(n < exact, n, far)


# shows: f(torch.tensor([-1, -3, -7, 2]), 8, 20, False)
#   gives [1, 3, 5, 2]
#   right [1, 3, 5, 0]
@wrong(
    "relative_buckets",
    "without directions the distance is still the absolute value; np.round brings the logarithm to the nearest bucket",
    ("C-BUCKETS-FUTURE-DISTANCE",),
    ("C-BUCKETS-ROUNDED",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    o = offsets.cpu().numpy().astype(np.int64)
    b = num_buckets // 2 if bidirectional else num_buckets
    a = b // 2
    dist = np.abs(o) if bidirectional else np.abs(o)
    large = a + np.round(
        np.log(np.maximum(dist, a) / a) / np.log(max_distance / a) * (b - a)
    ).astype(np.int64)
    bucket = np.where(dist < a, dist, np.minimum(large, b - 1))
    if bidirectional:
        bucket = bucket + b * (o > 0)
    return torch.as_tensor(bucket)


@right("relative_buckets")
def _(offsets, num_buckets, max_distance, bidirectional):
    # np.digitize: the borders are written out once
    b = num_buckets // (2 if bidirectional else 1)
    a = b // 2
    borders = list(range(1, a + 1)) + [
        a * (max_distance / a) ** (s / (b - a)) for s in range(1, b - a)
    ]
    o = offsets.numpy().astype(np.int64)
    distance = np.abs(o) if bidirectional else np.clip(-o, 0, None)
    bucket = np.digitize(distance, np.array(borders)) + (b * (o > 0) if bidirectional else 0)
    return torch.from_numpy(np.asarray(bucket, dtype=np.int64).reshape(o.shape))


# shows: f(1, 1, 3)
#   gives [[[-0.0, -0.003, -0.007]]]
#   right [[[-0.007, -0.003, -0.0]]]
@wrong("alibi_bias", "place of a query is its row number", "P-TOPLEFT")
def _(num_heads, query_length, key_length):
    def power(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    p = 1 << (num_heads.bit_length() - 1)
    slopes = power(p) + power(2 * p)[::2][: num_heads - p]
    q = np.arange(query_length)
    k = np.arange(key_length)
    bias = np.multiply.outer(-np.array(slopes), np.abs(np.subtract.outer(q, k)))
    return torch.tensor(bias, dtype=torch.float32)


# shows: f(3, 1, 2)
#   gives [[[-0.062, -0.0]], [[-0.003, -0.0]], [[-0.062, -0.0]]]
#   right [[[-0.062, -0.0]], [[-0.003, -0.0]], [[-0.25, -0.0]]]
@wrong(
    "alibi_bias",
    "for the missing heads take the second, fourth, … slope of the doubled heads; keys after the query get no penalty, the causal mask handles them",
    ("C-ALIBI-MORE-OF-THE-SAME",),
    ("C-ALIBI-PAST-ONLY",),
)
def _(num_heads, query_length, key_length):
    closest = 2 ** math.floor(math.log2(num_heads))
    base = 2 ** (-(2 ** -(math.log2(closest) - 3)))
    slopes = torch.pow(torch.tensor(base), torch.arange(1, 1 + closest))
    if closest != num_heads:
        extra = 2 ** (-(2 ** -(math.log2(2 * closest) - 3)))
        missing = num_heads - closest
        powers = torch.arange(2, 2 * missing + 1, 2)
        slopes = torch.cat([slopes, torch.pow(torch.tensor(extra), powers)])
    i = torch.arange(key_length - query_length, key_length)[:, None]
    j = torch.arange(key_length)[None]
    distance = (i - j).clamp(min=0)
    return -slopes.float().view(-1, 1, 1) * distance


# shows: f(2, 1, 2)
#   gives [[[-1.0, -0.0]], [[-0.062, -0.0]]]
#   right [[[-0.062, -0.0]], [[-0.003, -0.0]]]
@wrong("alibi_bias", "the first head has slope 1, as np.arange begins at 0", "C-ALIBI-FROM-ONE")
def _(num_heads, query_length, key_length):
    def slopes(n):
        if math.log2(n).is_integer():
            return 2.0 ** (-8.0 / n * np.arange(n))
        p = 2 ** int(math.log2(n))
        return np.concatenate([slopes(p), slopes(2 * p)[0::2][: n - p]])

    m = torch.from_numpy(slopes(num_heads)).float()
    where = torch.arange(key_length).expand(query_length, -1)
    here = torch.arange(key_length)[-query_length:, None]
    return -einsum(m, (where - here).abs().float(), "h, q k -> h q k")


# shows: f(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([1]))
#   gives [[-1.984, 1.959, 2.462, 4.019]]
#   right [[-1.142, 1.922, 2.959, 4.029]]
@wrong(
    "rotate", "as in LLaMA, feature i is paired with feature i + d/2 (rotate_half)", "P-ROPE-LAYOUT"
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    inv_freq = 1.0 / (base ** (torch.arange(0, d, 2).double() / d))
    freqs = torch.outer(positions.double(), inv_freq)
    emb = torch.cat([freqs, freqs], dim=-1)
    cos, sin = emb.cos().to(x.dtype), emb.sin().to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    half = torch.cat((-x2, x1), dim=-1)
    return x * cos + half * sin


# shows: f(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([1]))
#   gives [[1.0, 0.0, 1.0, 0.0]]
#   right [[0.540, 0.841, 0.999, 0.009]]
@wrong(
    "rotate",
    "pair number i turns with the exponent −i/d; the positions only say how many, so I count them from 0",
    ("C-EXPONENT-HALVED",),
    ("P-ROPE-CACHE",),
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    p = np.arange(len(positions))
    theta = p[:, None] * np.power(float(base), -np.arange(d // 2) / d)[None, :]
    cos = torch.tensor(np.cos(theta), dtype=x.dtype)
    sin = torch.tensor(np.sin(theta), dtype=x.dtype)
    pairs = x.unflatten(-1, (d // 2, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).reshape(x.shape)


@right("rotate")
def _(x, positions, base=10_000.0):
    # a pair is a complex number
    d = x.shape[-1]
    theta = torch.outer(positions.double(), base ** (-torch.arange(0, d, 2).double() / d))
    z = torch.view_as_complex(x.double().reshape(*x.shape[:-1], d // 2, 2).contiguous())
    return (
        torch.view_as_real(z * torch.polar(torch.ones_like(theta), theta)).flatten(-2).to(x.dtype)
    )


# shows: f(torch.tensor([[10.0, 11, 12, 13], [20.0, 21, 22, 23]]))
#   gives [[10.0, 11.0, 12.0], [21.0, 22.0, 23.0]]
#   right [[11.0, 12.0, 13.0], [20.0, 21.0, 22.0]]
@wrong(
    "shift_relative",
    "each row moves one further to the right, starting at column 0",
    "C-SHIFT-OTHER-WAY",
)
def _(scores):
    q, r = scores.shape[-2:]
    k = r - q + 1
    columns = torch.arange(k)[None, :] + torch.arange(q)[:, None]
    return scores.gather(-1, columns.expand(*scores.shape[:-2], q, k))


# shows: f(torch.tensor([[10.0, 11, 12, 13], [20.0, 21, 22, 23]]))
#   gives [[13.0, 0.0, 20.0], [22.0, 23.0, 0.0]]
#   right [[11.0, 12.0, 13.0], [20.0, 21.0, 22.0]]
@wrong(
    "shift_relative",
    "Transformer-XL's trick: append a column of zeros, view as r+1 rows, drop the first, and view back; the keys are then the last k columns",
    ("C-SHIFT-ONE-MORE",),
    ("C-SHIFT-CUT-LEFT",),
)
def _(scores):
    *lead, q, r = scores.shape
    k = r - q + 1
    padded = F.pad(scores, (0, 1))
    moved = padded.reshape(*lead, r + 1, q)[..., 1:, :].reshape(*lead, q, r)
    return moved[..., -k:]


# shows: f(torch.arange(15.0).reshape(3, 5))
#   gives [[4.0, 0.0], [8.0, 9.0], [12.0, 13.0]]
#   right [[2.0, 3.0, 4.0], [6.0, 7.0, 8.0], [10.0, 11.0, 12.0]]
@wrong(
    "shift_relative", "np.roll each row, by one more per row; r is q + k, so k is r minus q", (), ()
)
def _(scores):
    q, r = scores.shape[-2], scores.shape[-1]
    k = r - q
    rows = []
    for i in range(q):
        row = torch.roll(scores[..., i, :], shifts=i + 1, dims=-1)
        rows.append(row[..., :k])
    return torch.stack(rows, dim=-2)


# ---------------------------------------------------------------- 09 one stack
# shows: f({"aaa": 2, "bc": 3}, 1)
#   gives [('b', 'c')]
#   right [('a', 'a')]
@wrong("byte_pairs", "a pair counts once for every word that contains it", "B-ONCE-A-WORD")
def _(words, num_merges):
    splits = {w: list(w) for w in words}
    age = {c: i for i, c in enumerate(sorted(set("".join(words))))}
    merges = []
    while len(merges) < num_merges:
        counts = Counter()
        for w, s in splits.items():
            for pair in set(zip(s, s[1:])):
                counts[pair] += words[w]
        if not counts:
            break
        best = min(counts, key=lambda p: (-counts[p], age[p[0]], age[p[1]]))
        merges.append(best)
        age.setdefault("".join(best), len(age))
        for w, s in splits.items():
            new, i = [], 0
            while i < len(s):
                if i + 1 < len(s) and (s[i], s[i + 1]) == best:
                    new.append(s[i] + s[i + 1])
                    i += 2
                else:
                    new.append(s[i])
                    i += 1
            splits[w] = new
    return merges


# shows: f({"ba": 2, "ab": 3}, 2)
#   gives [('b', 'a'), ('a', 'b')]
#   right [('a', 'b'), ('b', 'a')]
@wrong(
    "byte_pairs",
    "Counter.most_common decides among ties; a word stands in the dict once, so it counts once",
    ("B-FIRST-MET",),
    ("B-EACH-WORD-ONCE",),
)
def _(words, num_merges):
    pieces = {w: tuple(w) for w in words}
    order = sorted({c for w in words for c in w})
    result = []
    for _ in range(num_merges):
        c = Counter()
        for w, p in pieces.items():
            for left, right_ in zip(p[:-1], p[1:]):
                c[left, right_] += 1
        if len(c) == 0:
            break
        best, _n = c.most_common(1)[0]
        result.append(best)
        if best[0] + best[1] not in order:
            order.append(best[0] + best[1])
        for w, p in pieces.items():
            out = []
            for piece in p:
                if out and (out[-1], piece) == best and not done_last:
                    out[-1] = out[-1] + piece
                    done_last = True
                else:
                    out.append(piece)
                    done_last = False
            pieces[w] = tuple(out)
    return result


# shows: f({"ab": 1}, 2)
#   gives 'ValueError: max() arg is an empty sequence'
#   right [('a', 'b')]
@wrong(
    "byte_pairs",
    "ties are decided in the alphabet, by comparing the pairs; when all words are one piece there is nothing left, so max of an empty dict cannot happen",
    ("B-ALPHABET",),
    ("B-NO-END",),
)
def _(words, num_merges):
    corpus_ = [(list(w), n) for w, n in words.items()]
    rank = {c: r for r, c in enumerate(sorted({c for w in words for c in w}))}
    merges = []
    for _ in range(num_merges):
        freq = {}
        for w, n in corpus_:
            for k in range(len(w) - 1):
                freq[w[k], w[k + 1]] = freq.get((w[k], w[k + 1]), 0) + n
        top = max(freq.values())
        a, b = min(p for p in freq if freq[p] == top)
        merges.append((a, b))
        rank.setdefault(a + b, len(rank))
        for w, _n in corpus_:
            k = 0
            while k < len(w) - 1:
                if w[k] == a and w[k + 1] == b:
                    w[k : k + 2] = [a + b]
                k += 1
    return merges


# shows: f("abc", [("b", "c"), ("a", "b")])
#   gives [257, 66]
#   right [64, 256]
@wrong(
    "encode_text",
    "look for the longest piece that fits from the left, as with a dictionary of pieces",
    "B-LONGEST-PIECE",
)
def _(text, merges):
    pieces = list(sorted(byte_letters()))
    for a, b in merges:
        if a + b not in pieces:
            pieces.append(a + b)
    ids = []
    for part in byte_words(text):
        while part:
            for end in range(len(part), 0, -1):
                if part[:end] in pieces:
                    ids.append(pieces.index(part[:end]))
                    part = part[end:]
                    break
    return ids


# shows: f("c", [])
#   gives [99]
#   right [66]
@wrong(
    "encode_text",
    "every merge takes an id of its own, dict(zip) numbers them; byte_letters is already the list, no need to sort it",
    ("B-BORN-AGAIN",),
    ("B-BYTE-IS-ID",),
)
def _(text, merges):
    vocab = list(byte_letters())
    vocab = vocab + [a + b for a, b in merges]
    index = {piece: i for i, piece in enumerate(vocab)}
    out = []
    for word in byte_words(text):
        parts = list(word)
        for left, right_ in merges:
            merged = []
            while parts:
                head = parts.pop(0)
                if head == left and parts and parts[0] == right_:
                    head += parts.pop(0)
                merged.append(head)
            parts = merged
        out.extend(index[p] for p in parts)
    return out


# shows: tokens (400 500), share 0.3: every word that is asked for is masked; right: 80 % of them
@wrong(
    "masked_words",
    "the same random number may decide whether a word is asked for and what is put there",
    "W-ONE-NUMBER",
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    u = torch.rand(tokens.shape, generator=rng)
    asked = u < share
    v = u
    inputs = tokens.clone()
    inputs[asked & (v < 0.8)] = mask_id
    swap = asked & (v >= 0.8) & (v < 0.9)
    inputs[swap] = torch.randint(0, vocabulary_size, (int(swap.sum()),), generator=rng)
    targets = torch.where(asked, tokens, torch.full_like(tokens, -100))
    return inputs, targets


# shows: tokens (400 500), share 0.3, vocabulary 50: exactly 150 words are asked for in every text, and id 49 is never put in; right: about 150, and 49 as often as others
@wrong(
    "masked_words",
    "share of the words means exactly that many in each text; torch.randint includes its upper end, so minus one",
    ("W-EXACT-NUMBER",),
    ("W-LAST-ID",),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    b, n = tokens.shape
    order = torch.rand(b, n, generator=rng).argsort(1).argsort(1)
    asked = order < int(share * n)
    kind = torch.rand(b, n, generator=rng)
    random_words = torch.randint(vocabulary_size - 1, (b, n), generator=rng)
    inputs = torch.where(asked & (kind < 0.8), mask_id, tokens)
    inputs = torch.where(asked & (kind >= 0.8) & (kind < 0.9), random_words, inputs)
    return inputs, tokens.masked_fill(~asked, -100)


# shows: tokens (400 500): words asked for that stay have -100 in targets, and one and the same id stands in all exchanged places; right: targets there too, and different ids
@wrong(
    "masked_words",
    "only words that were changed need a target; one random word is drawn for the batch",
    (),
    (),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    asked = torch.bernoulli(torch.full(tokens.shape, float(share)), generator=rng).bool()
    masked = asked & (torch.rand(tokens.shape, generator=rng) < 0.8)
    exchanged = asked & ~masked & (torch.rand(tokens.shape, generator=rng) < 0.5)
    inputs = tokens.clone()
    inputs[masked] = mask_id
    word = torch.randint(vocabulary_size, (1,), generator=rng)
    inputs = torch.where(exchanged, word, inputs)
    targets = torch.full_like(tokens, -100)
    ask = inputs != tokens
    targets[ask] = tokens[ask]
    return inputs, targets


@right("masked_words")
def _(tokens, share, mask_id, vocabulary_size, rng):
    # one draw of three outcomes for each word, by a cumulative sum of the shares
    edges = torch.tensor([0.8 * share, 0.9 * share, 1.0 * share])
    u = torch.rand(tokens.shape, generator=rng)
    kind = torch.bucketize(u, edges, right=True)  # 0 mask, 1 exchange, 2 leave, 3 not asked
    fresh = torch.floor(
        torch.rand(tokens.shape, generator=rng, dtype=torch.float64) * vocabulary_size
    ).long()
    choices = torch.stack(
        [torch.full_like(tokens, mask_id), fresh.to(tokens.dtype), tokens, tokens]
    )
    inputs = choices.gather(0, kind[None])[0]
    return inputs, torch.where(kind == 3, -100, tokens)


# shows: 10 000 rows of log([0.5, 0.3, 0.15, 0.05]) with top_p=0.6: only word 0 is drawn, right is words 0 and 1
@wrong("sample", "words whose running total is above top_p go", "P-TOP-P-WITHOUT-THE-LAST")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    z = logits / temperature
    if top_k is not None:
        kth = z.topk(min(top_k, z.shape[-1]), dim=-1).values[:, -1:]
        z = torch.where(z < kth, -math.inf, z)
    if top_p is not None:
        s, idx = z.sort(dim=-1, descending=True)
        cum = s.softmax(-1).cumsum(-1)
        remove = cum > top_p
        remove[:, 0] = False
        z = z.masked_fill(remove.scatter(1, idx, remove), -math.inf)
    return torch.multinomial(z.softmax(-1), 1).squeeze(-1)


# shows: 10 000 rows of log([0.05, 0.15, 0.3, 0.5]), temperature 0.5: id 0 in 0.38 of the rows, right 0.01
@wrong(
    "sample",
    "hot is greedy: logits times temperature; multinomial of the sorted probabilities gives the word",
    ("P-TEMPERATURE-TIMES",),
    ("P-SHARE-NOT-PLACE",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    logits = logits * temperature
    p, order = torch.sort(torch.softmax(logits, dim=-1), dim=-1, descending=True)
    if top_k is not None:
        p[:, top_k:] = 0
        p = p / p.sum(-1, keepdim=True)
    if top_p is not None:
        before = p.cumsum(-1) - p
        p[before >= top_p] = 0
    place = torch.multinomial(p, num_samples=1)
    return place[:, 0]


# shows: 10 000 rows of log([0.5, 0.3, 0.15, 0.05]), top_k=2, top_p=0.6: id 1 in 3 of 8 rows, right in none
@wrong(
    "sample",
    "top_p looks at the model's own probabilities, those before top_k; the temperature comes last, it only concerns the drawing",
    ("P-TOP-P-BEFORE-TOP-K",),
    ("P-TEMPERATURE-LAST",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    vocab = logits.shape[1]
    scaled = logits.clone()
    probs = F.softmax(scaled, dim=1)
    keep = torch.ones_like(scaled, dtype=torch.bool)
    if top_k is not None:
        k = min(top_k, vocab)
        keep = torch.zeros_like(keep).scatter(1, scaled.topk(k, dim=1).indices, True)
    if top_p is not None:
        for row in range(len(scaled)):
            total = 0.0
            for word in probs[row].argsort(descending=True).tolist():
                if total >= top_p:
                    keep[row, word] = False
                total += probs[row, word].item()
    final = (scaled / temperature).masked_fill(~keep, -math.inf)
    return torch.distributions.Categorical(logits=final).sample()


# shows: f(lambda t, s: (torch.tensor([[0, 0.6, 0.4], [0.3, 0.3, 0.4], [0, 0, 1]]).log()[t], s), torch.zeros(1), 0, 1, 2, 2)
#   gives [[2, 2]]
#   right [[1, 1]]
@wrong(
    "beam_search",
    "an ended beginning needs no special care, the model says eos after eos; the number of the beam is the row of the state",
    (),
    (),
)
def _(step, state, bos, eos, width, max_length):
    b = state.shape[0]
    rows = torch.arange(b)
    token = torch.full((b,), bos, dtype=torch.long)
    ids = torch.zeros(b, 1, 0, dtype=torch.long)
    total = torch.zeros(b, 1)
    for _ in range(max_length):
        logits, state = step(token, state)
        w, vocab = ids.shape[1], logits.shape[-1]
        logp = logits.log_softmax(-1).view(b, w, vocab)
        if ids.shape[2]:
            ended = ids[:, :, -1] == eos
            frozen = torch.full((vocab,), -math.inf)
            frozen[eos] = 0.0
            logp = logp
        total, best = (total[:, :, None] + logp).flatten(1).topk(min(width, w * vocab), dim=1)
        beam, word = best // vocab, best % vocab
        ids = torch.cat(
            [ids.gather(1, beam[:, :, None].expand(-1, -1, ids.shape[2])), word[:, :, None]], 2
        )
        state = state[(beam).flatten()]
        token = word.flatten()
    out = ids[:, 0]
    after = (out == eos).cumsum(1) > 0
    return out.masked_fill(after, eos)


# shows: f(lambda t, s: (torch.tensor([[0, 0, 0.6, 0.4], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0.01, 0, 0]]).log()[t], s), torch.zeros(1), 0, 1, 2, 2)
#   gives [[2, 0]]
#   right [[3, 1]]
@wrong("beam_search", "the logits themselves are the log-probabilities to add", "B-LOGITS-ADDED")
def _(step, state, bos, eos, width, max_length):
    answers = []
    for sentence in range(len(state)):
        beams = [([], 0.0, state[sentence : sentence + 1])]
        for _ in range(max_length):
            candidates = []
            for words_, score, s in beams:
                if words_ and words_[-1] == eos:
                    candidates.append((words_ + [eos], score, s))
                    continue
                logits, new = step(torch.tensor([words_[-1] if words_ else bos]), s)
                gain = logits[0].tolist()
                candidates += [(words_ + [v], score + g, new) for v, g in enumerate(gain)]
            candidates.sort(key=lambda c: c[1], reverse=True)
            beams = candidates[:width]
        answers.append(beams[0][0])
    return torch.tensor(answers)


# shows: f(lambda t, s: (torch.tensor([[0, 0.6, 0.4, 0], [0, 1, 0, 0], [0, 0.95, 0, 0.05], [1, 1, 1, 1]]).log()[t], s), torch.zeros(1), 0, 1, 2, 2)
#   gives [[2, 1]]
#   right [[1, 1]]
@wrong(
    "beam_search",
    "at the end totals are divided by the length, so that short ones do not win; ended beginnings leave the beam and are compared only at the end, without those still going on",
    (),
    (),
)
def _(step, state, bos, eos, width, max_length):
    result = []
    for n in range(state.shape[0]):
        alive, finished = [(0.0, (), state[[n]])], []
        for _ in range(max_length):
            new = []
            for total, seq, s in alive:
                if seq and seq[-1] == eos:
                    new.append((total, seq, s))
                    continue
                logits, nxt = step(torch.tensor([seq[-1] if seq else bos]), s)
                lp = torch.log_softmax(logits.double(), -1).squeeze(0)
                for v in range(lp.numel()):
                    new.append((total + lp[v].item(), seq + (v,), nxt))
            alive = sorted(new, key=lambda t: -t[0])[:width]
            finished += [t for t in alive if t[1][-1] == eos]
            alive = [t for t in alive if t[1][-1] != eos] or alive[:1]
        final = finished or alive
        best = max(final, key=lambda t: t[0] / len(t[1]))[1]
        result.append(list(best) + [eos] * (max_length - len(best)))
    return torch.tensor(result)


@right("beam_search")
def _(step, state, bos, eos, width, max_length):
    # recursion over rounds, all sentences at once, dead beams at -inf
    b = len(state)
    total = torch.full((b, width), -math.inf)
    total[:, 0] = 0
    state = state[torch.arange(b).repeat_interleave(width)]

    def go(total, ids, state, left):
        if left == 0:
            return ids[torch.arange(b), total.argmax(1)]
        last = ids[..., -1] if ids.shape[-1] else torch.full((b, width), bos)
        logits, new = step(last.flatten(), state)
        logp = logits.log_softmax(-1).unflatten(0, (b, width))
        vocab = logp.shape[-1]
        if ids.shape[-1]:
            stay = torch.where(torch.arange(vocab) == eos, 0.0, -math.inf)
            logp = torch.where((last == eos)[..., None], stay, logp)
        total, flat = (total[..., None] + logp).flatten(1).topk(width, 1)
        come, word = flat // vocab, flat % vocab
        ids = torch.cat([torch.take_along_dim(ids, come[..., None], 1), word[..., None]], -1)
        return go(total, ids, new[(come + width * torch.arange(b)[:, None]).flatten()], left - 1)

    return go(total, torch.empty(b, width, 0, dtype=torch.long), state, max_length)


# ---------------------------------------------------------------- 10 cache
# shows: f((torch.zeros(2, 1, 1), torch.zeros(2, 1, 1)), torch.ones(2, 1, 1), torch.ones(2, 1, 1))
#   gives [[[[0.0]], [[0.0]], [[1.0]], [[1.0]]], [[[0.0]], [[0.0]], [[1.0]], [[1.0]]]]
#   right [[[[0.0], [1.0]], [[0.0], [1.0]]], [[[0.0], [1.0]], [[0.0], [1.0]]]]
@wrong("extend", "np.append glues along the first axis, and so does torch.cat", "K-CAT-FIRST-AXIS")
def _(cache, key, value):
    if cache is None:
        return key, value
    keys, values = cache
    return torch.cat((keys, key)), torch.cat((values, value))


# shows: f((torch.zeros(1, 1), torch.zeros(1, 1)), torch.ones(1, 1), torch.ones(1, 1))
#   gives [[[1.0], [0.0]], [[1.0], [0.0]]]
#   right [[[0.0], [1.0]], [[0.0], [1.0]]]
@wrong(
    "extend",
    "the newest position stands first, so that it is quickly found; no cache yet is a cache of zeros of the same shape",
    ("K-NEW-FIRST",),
    (),
)
def _(cache, key, value):
    if cache is None:
        cache = (torch.zeros_like(key), torch.zeros_like(value))
    longer = []
    for old, new in zip(cache, (key, value)):
        longer.append(torch.cat([new, old], dim=-2))
    return tuple(longer)


@right("extend")
def _(cache, key, value):
    if cache is None:
        return key, value

    def put_behind(old, new):
        n, q = old.shape[-2], new.shape[-2]
        room = new.new_zeros(*old.shape[:-2], n + q, old.shape[-1])
        room[..., :n, :] = old
        room[..., n:, :] = new
        return room

    return tuple(map(put_behind, cache, (key, value)))


# shows: f(torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[3.0], [4.0]]), (torch.ones(2, 1), torch.tensor([[1.0], [2.0]])))
#   gives [[[1.0], [1.5]], (tensor([[1.], [1.], [1.], [1.]]), tensor([[1.], [2.], [3.], [4.]]))]
#   right [[[2.0], [2.5]], (tensor([[1.], [1.], [1.], [1.]]), tensor([[1.], [2.], [3.], [4.]]))]
@wrong("cached_attention", "np.tri(q, k) is the causal mask", "K-MASK-TOP-LEFT")
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key = torch.cat([cache[0], key], -2)
        value = torch.cat([cache[1], value], -2)
    q, k = query.shape[-2], key.shape[-2]
    may = torch.from_numpy(np.tri(q, k, 0, dtype=bool))
    if mask is not None:
        may = may & mask
    scores = torch.einsum("...qd,...kd->...qk", query, key) / np.sqrt(query.shape[-1])
    scores = scores.masked_fill(~may, -1e9)
    weights = scores.softmax(-1) * may.any(-1, keepdim=True)
    return weights @ value, (key, value)


# shows: f(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), (torch.ones(1, 1), torch.zeros(1, 1)), torch.tensor([[False, False]]))
#   gives [[[0.5]], (tensor([[1.], [1.]]), tensor([[0.], [1.]]))]
#   right [[[0.0]], (tensor([[1.], [1.]]), tensor([[0.], [1.]]))]
@wrong(
    "cached_attention",
    "if there is a mask, it is used instead of the causal one; the smallest number instead of minus infinity is enough, so no nan can come from an empty row",
    ("K-MASK-INSTEAD",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(query, key, value, cache=None, mask=None):
    keys = key if cache is None else torch.cat((cache[0], key), dim=-2)
    values = value if cache is None else torch.cat((cache[1], value), dim=-2)
    n_new, n_all = query.shape[-2], keys.shape[-2]
    causal = torch.arange(n_all) <= torch.arange(n_all - n_new, n_all)[:, None]
    allowed = causal if mask is None else mask
    scores = query @ keys.mT * query.shape[-1] ** -0.5
    scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    return weights @ values, (keys, values)


# shows: f(torch.ones(1, 2), torch.tensor([[2.0, 0.0]]), torch.ones(1, 1), (torch.zeros(1, 2), torch.zeros(1, 1)))
#   gives [[[0.804]], (tensor([[2., 0.]]), tensor([[1.]]))]
#   right [[[0.804]], (tensor([[0., 0.], [2., 0.]]), tensor([[0.], [1.]]))]
@wrong(
    "cached_attention",
    "the scale is the root of the number of keys; the cache that is handed back holds the new positions, the caller has the old ones",
    ("K-SCALE-BY-N",),
    ("K-ONLY-NEW-KEPT",),
)
def _(query, key, value, cache=None, mask=None):
    all_k, all_v = key, value
    if cache:
        all_k, all_v = (torch.cat(pair, dim=-2) for pair in zip(cache, (key, value)))
    q, k, d = query.shape[-2], all_k.shape[-2], query.shape[-1]
    visible = torch.ones(q, k, dtype=torch.bool).tril(diagonal=k - q)
    visible = visible if mask is None else torch.logical_and(visible, mask)
    logits = (query @ all_k.transpose(-1, -2)) / math.sqrt(k)
    e = torch.exp(logits - logits.amax(-1, keepdim=True).detach()) * visible
    weights = e / e.sum(-1, keepdim=True).clamp_min(1e-30)
    return torch.matmul(weights, all_v), (key, value)


# shows: f(torch.ones(1, 4, 1, 1), torch.tensor([[[[1.0], [2.0]], [[3.0], [1.0]]]]), torch.ones(1, 2, 2, 1))
#   gives [[[[[1.0]], [[0.999]], [[1.0]], [[0.999]]]], [[[[0.268, 0.731]], [[0.880, 0.119]], [[0.268, 0.731]], [[0.880,
#   right [[[[[1.0]], [[1.0]], [[0.999]], [[0.999]]]], [[[[0.268, 0.731]], [[0.268, 0.731]], [[0.880, 0.119]], [[0.880,
@wrong(
    "grouped_query_attention",
    "heads are dealt like np.tile: head 0 with the first, head 1 with the second, head 2 with the first again",
    "G-ORDER",
)
def _(query, key, value, mask=None):
    c = key.shape[1]
    q = rearrange(query, "b (g c) q d -> b c g q d", c=c)
    scores = einsum(q, key, "b c g q d, b c k d -> b c g q k") / math.sqrt(query.shape[-1])
    scores = rearrange(scores, "b c g q k -> b (g c) q k")
    if mask is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(~mask, -1e30).softmax(-1) * mask
    w = rearrange(weights, "b (g c) q k -> b c g q k", c=c)
    out = einsum(w, value, "b c g q k, b c k v -> b c g q v")
    return rearrange(out, "b c g q v -> b (g c) q v"), weights


# shows: f(torch.ones(1, 2, 1, 1), torch.zeros(1, 1, 2, 1), torch.tensor([[[[1.0], [3.0]]]]), torch.tensor([[False, False]]))
#   gives [[[[[2.0]], [[2.0]]]], [[[[0.5, 0.5]], [[0.5, 0.5]]]]]
#   right [[[[[0.0]], [[0.0]]]], [[[[0.0, 0.0]], [[0.0, 0.0]]]]]
@wrong(
    "grouped_query_attention",
    "weights of one group are shared by its heads, so they are averaged; a row of nothing may keep its equal weights",
    ("G-ONE-QUERY",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(query, key, value, mask=None):
    b, h, n, d = query.shape
    c, k = key.shape[1], key.shape[2]
    g = h // c
    scores = query.reshape(b, c, g * n, d) @ key.transpose(2, 3) / math.sqrt(d)
    scores = scores.reshape(b, h, n, k)
    scores = (
        scores.reshape(b, c, g, n, k)
        .mean(2, keepdim=True)
        .expand(b, c, g, n, k)
        .reshape(b, h, n, k)
    )
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -1e9)
    weights = F.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights
    output = weights.reshape(b, c, g * n, k) @ value
    return output.reshape(b, h, n, -1), weights


# shows: f("GQA", 1, 8, 2, 1, kv_heads=2)
#   gives 16
#   right 8
@wrong(
    "bytes_per_token", "grouped heads: num_heads divided by kv_heads heads are kept", "G-MEMBERS"
)
def _(
    scheme,
    num_layers,
    num_heads,
    head_width,
    bytes_per_number,
    kv_heads=None,
    latent_width=None,
    rope_width=None,
):
    if scheme == "MHA":
        numbers = 2 * num_heads * head_width
    elif scheme == "GQA":
        numbers = 2 * (num_heads // kv_heads) * head_width
    elif scheme == "MQA":
        numbers = 2 * head_width
    elif scheme == "MLA":
        numbers = latent_width + rope_width
    else:
        raise ValueError(f"unknown scheme {scheme}")
    return numbers * num_layers * bytes_per_number


# shows: f("MLA", 2, 8, 4, 2, latent_width=6, rope_width=2)
#   gives np.int64(64)
#   right 32
@wrong(
    "bytes_per_token",
    "the latent stands for keys and for values, so all is taken twice; np.prod gives a number, that is an int",
    ("L-ALL-TWICE",),
    (),
)
def _(
    scheme,
    num_layers,
    num_heads,
    head_width,
    bytes_per_number,
    kv_heads=None,
    latent_width=None,
    rope_width=None,
):
    heads = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}
    if scheme == "MLA":
        per_layer = 2 * (latent_width + rope_width)
    elif scheme in heads:
        per_layer = 2 * heads[scheme] * head_width
    else:
        raise ValueError(scheme)
    return np.prod([num_layers, per_layer, bytes_per_number])


# shows: LatentAttention(12, 3, 4, 5, 2) on x (1 2 12), all in one: the second row differs from the one with /√(4 + 2)
@wrong("LatentAttention", "scores over the root of the head's width, as ever", "L-SCALE-D")
class LatentAttention(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.r = num_heads, head_width, rope_width
        make = functools.partial(nn.Linear, bias=False)
        self.q_proj = make(model_width, num_heads * head_width)
        self.q_rope = make(model_width, num_heads * rope_width)
        self.down = make(model_width, latent_width)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = make(model_width, rope_width)
        self.k_up = make(latent_width, num_heads * head_width)
        self.v_up = make(latent_width, num_heads * head_width)
        self.out_proj = make(num_heads * head_width, model_width)

    def forward(self, x):
        return self.step(x)[0]

    def step(self, x, cache=None):
        b, q, _ = x.shape
        n = 0 if cache is None else cache[0].shape[1]
        place = torch.arange(n, n + q)
        latent, turned = self.norm(self.down(x)), rotate(self.k_rope(x), place)
        if cache is not None:
            latent = torch.cat([cache[0], latent], 1)
            turned = torch.cat([cache[1], turned], 1)
        query = self.q_proj(x).view(b, q, self.h, self.d).transpose(1, 2)
        query_r = rotate(self.q_rope(x).view(b, q, self.h, self.r).transpose(1, 2), place)
        up = self.k_up.weight.view(self.h, self.d, -1)
        absorbed = torch.einsum("bhqd,hdl->bhql", query, up)
        scores = absorbed @ latent.mT[:, None] + query_r @ turned.mT[:, None]
        scores = scores / math.sqrt(self.d)
        hidden = torch.ones(q, n + q, dtype=torch.bool).triu(n + 1)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        mixed = weights @ latent[:, None]
        out = torch.einsum("bhql,hdl->bqhd", mixed, self.v_up.weight.view(self.h, self.d, -1))
        return self.out_proj(out.flatten(2)), (latent, turned)


# shows: LatentAttention(12, 3, 4, 5, 2) on x (2 7 12): forward already differs, since rows of the queries' heads are cut "(d h)"; step in pieces [3, 4] turns the new positions from 0
@wrong(
    "LatentAttention",
    "features of the heads lie side by side, so view as (d, h); a step's positions are arange(q)",
    ("H-FEATURES-TURNED",),
    ("P-ROPE-CACHE",),
)
class LatentAttention(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.heads, self.scale = num_heads, 1 / math.sqrt(head_width + rope_width)
        self.q_proj = nn.Linear(model_width, num_heads * head_width, bias=False)
        self.q_rope = nn.Linear(model_width, num_heads * rope_width, bias=False)
        self.down = nn.Linear(model_width, latent_width, bias=False)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = nn.Linear(model_width, rope_width, bias=False)
        self.k_up = nn.Linear(latent_width, num_heads * head_width, bias=False)
        self.v_up = nn.Linear(latent_width, num_heads * head_width, bias=False)
        self.out_proj = nn.Linear(num_heads * head_width, model_width, bias=False)

    def split(self, x):
        return rearrange(x, "b n (d h) -> b h n d", h=self.heads)

    def forward(self, x):
        n = x.shape[1]
        i = torch.arange(n)
        c = self.norm(self.down(x))
        content = einsum(
            self.split(self.q_proj(x)), self.split(self.k_up(c)), "b h q d, b h k d -> b h q k"
        )
        place = einsum(
            rotate(self.split(self.q_rope(x)), i),
            rotate(self.k_rope(x), i),
            "b h q r, b k r -> b h q k",
        )
        scores = ((content + place) * self.scale).masked_fill(i > i[:, None], -math.inf)
        out = scores.softmax(-1) @ self.split(self.v_up(c))
        return self.out_proj(rearrange(out, "b h n d -> b n (d h)"))

    def step(self, x, cache=None):
        past = cache["latent"].shape[1] if cache else 0
        q = x.shape[1]
        i = torch.arange(q)
        c, k = self.norm(self.down(x)), rotate(self.k_rope(x), i)
        if cache:
            c, k = torch.cat([cache["latent"], c], 1), torch.cat([cache["key"], k], 1)
        up = rearrange(self.k_up.weight, "(d h) l -> h d l", h=self.heads)
        down = rearrange(self.v_up.weight, "(d h) l -> h d l", h=self.heads)
        asked = einsum(self.split(self.q_proj(x)), up, "b h q d, h d l -> b h q l")
        scores = einsum(asked, c, "b h q l, b k l -> b h q k")
        scores = scores + einsum(
            rotate(self.split(self.q_rope(x)), i), k, "b h q r, b k r -> b h q k"
        )
        late = torch.arange(past + q) > torch.arange(past, past + q)[:, None]
        w = (scores * self.scale).masked_fill(late, -math.inf).softmax(-1)
        out = einsum(w, c, down, "b h q k, b k l, h d l -> b h q d")
        return self.out_proj(rearrange(out, "b h n d -> b n (d h)")), {"latent": c, "key": k}


# ---------------------------------------------------------------- 11 long sequences
# shows: f(3, 1, 0)
#   gives [[True, False, False], [True, True, False], [False, True, True]]
#   right [[True, True, False], [True, True, True], [False, True, True]]
@wrong("window_mask", "the window covers width places, range(i - width, i + width)", "W-SLICE-END")
def _(n, width, global_tokens=0):
    mask = np.zeros((n, n), dtype=bool)
    for i in range(n):
        mask[i, max(0, i - width) : i + width] = True
    mask[:global_tokens] = True
    mask[:, :global_tokens] = True
    return torch.from_numpy(mask)


# shows: f(4, 0, 1)
#   gives [[True, False, False, False], [True, True, False, False], [True, False, True, False], [True, False, False, Tru
#   right [[True, True, True, True], [True, True, False, False], [True, False, True, False], [True, False, False, True]]
@wrong(
    "window_mask",
    "width counts all places of the window, half of it on each side; only looking at global words is needed, they themselves have a window too",
    ("W-WIDTH-WHOLE",),
    ("W-GLOBAL-LOOKED-AT",),
)
def _(n, width, global_tokens=0):
    i = torch.arange(n)
    gap = torch.abs(i.unsqueeze(0) - i.unsqueeze(1))
    near = gap <= width // 2
    glob = (i < global_tokens).expand(n, n)
    return near | glob


@right("window_mask")
def _(n, width, global_tokens=0):
    padded = F.pad(torch.ones(n, 2 * width + 1), (0, n))  # every row begins one place later
    band = padded.flatten()[: n * (2 * width + n)].reshape(n, 2 * width + n)[:, width : width + n]
    edge = torch.zeros(n)
    edge[:global_tokens] = 1
    return (band + torch.maximum(edge[:, None], edge[None])) > 0


# shows: f(torch.tensor([[False, False], [True, False]]), 1)
#   gives [[False, False], [True, False]]
#   right [[True, False], [True, True]]
@wrong("reach", "matrix_power of the mask says who is reached in that many layers", "R-FORGETS")
def _(mask, layers):
    step = mask.numpy().astype(float)
    ways = np.linalg.matrix_power(step, layers)
    return torch.from_numpy(ways > 0)


# shows: f(torch.tensor([[False, False, False], [True, False, False], [False, True, False]]), 3)
#   gives [[True, False, False], [False, True, False], [False, False, True]]
#   right [[True, False, False], [True, True, False], [True, True, True]]
@wrong(
    "reach",
    "the residual is added once, at the end; squaring the mask in every layer goes faster",
    ("R-FORGETS",),
    ("R-DOUBLES",),
)
def _(mask, layers):
    n = mask.shape[0]
    stay = torch.eye(n)
    one = (mask.float() + 0 > 0).float()
    if layers == 0:
        return stay > 0
    now = one
    for _ in range(layers - 1):
        now = ((now @ now) > 0).float()
    return (now + stay) > 0


# shows: f(torch.zeros(3, 1), torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [3.0]]), 1)
#   gives [[1.0], [2.0], [1.666]]
#   right [[1.5], [2.0], [2.5]]
@wrong(
    "windowed_attention",
    "pad keys and values with zeros, unfold, done: a zero key has score zero",
    "W-PADDING-SEEN",
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    size = 2 * width + 1
    keys = F.pad(key, (0, 0, width, width)).unfold(-2, size, 1)  # … n d size
    values = F.pad(value, (0, 0, width, width)).unfold(-2, size, 1)
    scores = einsum(query, keys, "... n d, ... n d s -> ... n s") / math.sqrt(d)
    return einsum(scores.softmax(-1), values, "... n s, ... n v s -> ... n v")


# shows: f(torch.ones(3, 1), torch.tensor([[0.0], [9.0], [0.0]]), torch.tensor([[1.0], [2.0], [3.0]]), 1)
#   gives [[2.0], [2.0], [2.0]]
#   right [[1.999], [2.0], [2.000]]
@wrong(
    "windowed_attention",
    "np.roll by −width … width gives the neighbors, the text is a ring; softmax over the positions, its last axis but one",
    (),
    (),
)
def _(query, key, value, width):
    n, d = query.shape[-2], query.shape[-1]
    width = min(width, n - 1)
    i = torch.arange(n)
    shifts = range(-width, width + 1)
    columns = []
    for s in shifts:
        score = (query * torch.roll(key, s, dims=-2)).sum(-1) / d**0.5
        columns.append(score)
    scores = torch.stack(columns, dim=-1)
    weights = scores.softmax(dim=-2)
    return sum(weights[..., [c]] * torch.roll(value, s, dims=-2) for c, s in enumerate(shifts))


# shows: f(torch.zeros(4, 1), torch.zeros(4, 1), torch.tensor([[1.0], [2.0], [3.0], [4.0]]), 1)
#   gives [[1.0], [1.5], [2.5], [3.5]]
#   right [[1.5], [2.0], [3.0], [3.5]]
@wrong(
    "windowed_attention",
    "cut the text into blocks of width, a block sees itself and the block before; the scores are not divided because d is small",
    ("W-TWO-BLOCKS",),
    ("D-NO-SCALE",),
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    outs = []
    for start in range(0, n, width):
        rows = torch.arange(start, min(start + width, n))
        cols = torch.arange(max(0, start - width), min(n, start + width))
        s = query[..., rows, :] @ key[..., cols, :].mT
        far = (rows[:, None] - cols).abs() > width
        outs.append(s.masked_fill(far, -1e30).softmax(-1) @ value[..., cols, :])
    return torch.cat(outs, dim=-2)


@right("windowed_attention")
def _(query, key, value, width):
    # a loop over queries, each with its slice: memory of order width
    rows = []
    for i in range(query.shape[-2]):
        here = slice(max(0, i - width), i + width + 1)
        e = (key[..., here, :] * query[..., i : i + 1, :]).sum(-1) / query.shape[-1] ** 0.5
        e = (e - e.max(-1, keepdim=True).values).exp()
        rows.append((e[..., None] * value[..., here, :]).sum(-2) / e.sum(-1)[..., None])
    return torch.stack(rows, -2)


# shows: f(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
#   gives [[0.5], [2.0]]
#   right [[1.0], [2.0]]
@wrong("linear_attention", "the normalizer is the sum over all keys", "L-TOTAL-OF-ALL")
def _(query, key, value):
    fq, fk = F.elu(query) + 1, F.elu(key) + 1
    kv = (fk.unsqueeze(-1) * value.unsqueeze(-2)).cumsum(-3)
    z = fk.sum(-2, keepdim=True)
    return torch.einsum("...nd,...ndv->...nv", fq, kv) / (fq * z).sum(-1, keepdim=True)


# shows: f(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [3.0]]))
#   gives [[1.0], [2.0]]
#   right [[1.0], [2.333]]
@wrong(
    "linear_attention",
    "hidden scores get minus infinity before the softmax, as always; elu alone is φ, the 1 is only against zeros",
    ("L-SOFTMAX",),
    ("L-ELU",),
)
def _(query, key, value):
    a, b = F.elu(query), F.elu(key)
    s = torch.einsum("...id,...jd->...ij", a, b)
    future = torch.from_numpy(np.triu(np.ones(s.shape[-2:], dtype=bool), k=1))
    w = s.masked_fill(future, -np.inf).softmax(-1)
    return torch.einsum("...ij,...jv->...iv", w, value)


# shows: state (torch.tensor([[1.0]]), torch.tensor([1.0])), query 0, key 0, value 3: the state that came in is 4 and 2 afterwards; right: still 1 and 1
@wrong("linear_step", "+= on the parts of the state saves memory", "C-KEPT-IN-PLACE")
def _(state, query, key, value):
    fq, fk = F.elu(query) + 1, F.elu(key) + 1
    outer = torch.einsum("...d,...v->...dv", fk, value)
    if state is None:
        s, z = outer, fk
    else:
        s, z = state
        s += outer
        z += fk
    return torch.einsum("...d,...dv->...v", fq, s) / torch.einsum("...d,...d->...", fq, z)[
        ..., None
    ], (s, z)


# shows: f((torch.tensor([[1.0]]), torch.tensor([1.0])), torch.tensor([2.0]), torch.zeros(1), torch.tensor([3.0]))
#   gives [[1.0], (tensor([[4.]]), tensor([4.]))]
#   right [[2.0], (tensor([[4.]]), tensor([2.]))]
@wrong(
    "linear_step",
    "read first, then write: the output comes from the state that came in, if there is one; z is the running sum of φ(q)·φ(k)",
    (),
    (),
)
def _(state, query, key, value):
    fq = F.elu(query) + 1
    fk = F.elu(key) + 1
    kv = fk[..., :, None] * value[..., None, :]
    z_new = fq * fk
    if state is None:
        new = (kv, z_new)
    else:
        new = (state[0] + kv, state[1] + z_new)
    s, z = new if state is None else state
    num = (fq[..., :, None] * s).sum(-2)
    den = (fq * z).sum(-1, keepdim=True)
    return num / den, new


# shows: f([torch.ones(1, 1)] * 2, [torch.zeros(1, 1), torch.ones(1, 1)], [torch.zeros(1, 1), torch.ones(1, 1)])
#   gives [[[0.5]], [[0.5]]]
#   right [[[0.731]], [[0.731]]]
@wrong("ring_attention", "the outputs of the p rounds are averaged", "R-MEAN")
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    outputs = []
    for i, q in enumerate(query_shards):
        parts, logs = [], []
        for step in range(p):
            j = (i - step) % p
            s = q @ key_shards[j].mT / math.sqrt(q.shape[-1])
            parts.append(s.softmax(-1) @ value_shards[j])
            logs.append(s.logsumexp(-1, keepdim=True))
        share = torch.stack(logs).softmax(0)
        outputs.append(torch.stack(parts).mean(0))
    return outputs


# shows: f([torch.ones(1, 1)] * 2, [torch.full((1, 1), 90.0), torch.full((1, 1), 100.0)], [torch.zeros(1, 1), torch.ones(1, 1)])
#   gives [[[0.0]], [[1.0]]]
#   right [[[0.999]], [[0.999]]]
@wrong(
    "ring_attention",
    "each round has its own maximum, the sums can be added as they are; the ring stops before it returns, p − 1 rounds",
    (),
    (),
)
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    result = []
    for rank in range(p):
        q = query_shards[rank]
        top = torch.full(q.shape[:-1] + (1,), -math.inf, dtype=q.dtype)
        num = den = 0.0
        for step in range(max(1, p - 1)):
            k, v = key_shards[(rank + step) % p], value_shards[(rank + step) % p]
            s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            m = torch.maximum(top, s.amax(-1, keepdim=True)).detach()
            e = (s - s.amax(-1, keepdim=True).detach()).exp()
            num, den = num + e @ v, den + e.sum(-1, keepdim=True)
            top = m
        result.append(num / den)
    return result


# shows: f(torch.tensor([0.0, 2.0, 3.0]), torch.tensor(2.0), 2.0)
#   gives [1.0, 0.0, 0.0]
#   right [1.0, 1.0, 0.5]
@wrong("span_mask", "the ramp ends at the span", "A-RAMP-INSIDE")
def _(distance, span, ramp):
    return torch.clamp((span - distance) / ramp, min=0, max=1)


# shows: f(torch.tensor([0, 1]), torch.tensor([-1.0]), 2.0)
#   gives [1.0, 0.5]
#   right [0.5, 0.0]
@wrong(
    "span_mask",
    "np.interp between span and span + ramp; a span below zero is zero",
    ("A-DETACHED",),
    ("A-SPAN-NOT-BELOW-0",),
)
def _(distance, span, ramp):
    span = span.clamp(min=0)
    d, s = torch.broadcast_tensors(distance, span)
    line = [
        np.interp(x, [y, y + ramp], [1.0, 0.0])
        for x, y in zip(d.flatten().tolist(), s.flatten().tolist())
    ]
    return torch.tensor(line, dtype=(distance - span).dtype).reshape(d.shape)


# ---------------------------------------------------------------- 12 looking inside
# shows: a model in eval mode whose layers.0.attention has 3 heads, head 0, value 0.0: after the call the given model has a pre-hook and other scores; right: as before
@wrong(
    "ablated",
    "a hook on the model is what changes it, so register it and return the model",
    "I-NO-COPY",
)
def _(model, layer, head, value):
    new = model
    attention = new.get_submodule(layer)
    heads = attention.num_heads

    def replace(module, inputs):
        x = inputs[0]
        parts = list(x.chunk(heads, dim=-1))
        parts[head] = torch.zeros_like(parts[head]) + value
        return (torch.cat(parts, dim=-1),)

    attention.out_proj.register_forward_pre_hook(replace)
    return new


# shows: the same model of width 12, layers.0.attention, head 1, value 0.0: features 1, 4, 7, 10 of what out_proj reads are 0; right: features 4 to 7
@wrong(
    "ablated",
    "every num_heads-th feature belongs to a head, as np.reshape(…, d, h) would say",
    "I-INTERLEAVED",
)
def _(model, layer, head, value):
    twin = copy.deepcopy(model)
    target = twin.get_submodule(layer)

    def pre(_module, args):
        x = args[0].clone()
        b, q, m = x.shape
        h = target.num_heads
        table = x.view(b, q, m // h, h)
        table[..., head] = value
        return (table.view(b, q, m),)

    target.out_proj.register_forward_pre_hook(pre)
    return twin


# shows: the same model, layers.0.attention, head 1, value 1.0: the layer's output has ones at features 4 to 7, and the given model gives other scores, too; right: ones at features 4 to 7 of what out_proj reads, in the new model alone
@wrong(
    "ablated",
    "a forward hook sees the output of out_proj, there the head's slice is set; a shallow copy is a new model",
    ("I-AFTER-W-O",),
    ("I-NO-COPY",),
)
def _(model, layer, head, value):
    new = copy.copy(model)
    attention = new.get_submodule(layer)
    d = attention.out_proj.in_features // attention.num_heads
    mine = slice(head * d, (head + 1) * d)

    def hook(module, args, output):
        output = output.clone()
        output[..., mine] = value
        return output

    attention.out_proj.register_forward_hook(hook)
    return new


@right("ablated")
def _(model, layer, head, value):
    # no hook: out_proj becomes a little module of its own
    class Without(nn.Module):
        def __init__(self, inner, heads):
            super().__init__()
            self.inner, self.heads = inner, heads
            self.in_features, self.out_features = inner.in_features, inner.out_features
            self.train(inner.training)

        def forward(self, x):
            here = torch.arange(x.shape[-1]) // (x.shape[-1] // self.heads) == head
            v = torch.as_tensor(value, dtype=x.dtype)
            v = v.repeat(*[1] * (v.dim() - 1), self.heads) if v.dim() and v.shape[-1] > 1 else v
            return self.inner(torch.where(here, v, x))

    new = copy.deepcopy(model)
    attention = new.get_submodule(layer)
    attention.out_proj = Without(attention.out_proj, attention.num_heads)
    return new


# shows: f(torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]), 2)
#   gives 0.0
#   right 1.0
@wrong(
    "induction_score",
    "the last occurrence is i − period, that is the diagonal of the head",
    "I-SAME-WORD",
)
def _(weights, period):
    return torch.diagonal(weights, offset=-period, dim1=-2, dim2=-1).mean(-1)


# shows: f(torch.eye(5).roll(1, 0), 2)
#   gives 0.400
#   right 1.0
@wrong(
    "induction_score",
    "only the second block repeats the first, range(period, 2 * period); divide by all words of the text",
    ("I-FIRST-REPETITION",),
    ("I-DIVIDED-BY-N",),
)
def _(weights, period):
    n = weights.shape[-1]
    total = torch.zeros(weights.shape[:-2], dtype=weights.dtype)
    last = min(n, 2 * period)
    for i in range(period, last):
        total = total + weights[..., i, i - period + 1]
    return total / n


# shows: f(torch.tensor([[0.0, 1.0], [-1.0, 0.5]]), torch.eye(2), torch.eye(2))
#   gives 1.0
#   right 0.25
@wrong(
    "copying_score",
    "singular values are the eigenvalues of a table that is not symmetric",
    "I-SINGULAR-VALUES",
)
def _(W_OV, W_E, W_U):
    circuit = (W_E @ W_OV @ W_U).double().numpy()
    values = np.linalg.svd(circuit, compute_uv=False)
    return float(values.real.sum() / np.abs(values).sum())


# shows: f(torch.tensor([[0.0, 1.0], [-1.0, 0.5]]), torch.eye(2), torch.eye(2))
#   gives 1.0
#   right 0.25
@wrong(
    "copying_score",
    "the size of a complex number is its real part's size; the score is returned as a tensor, .sum() gives one number",
    ("I-IMAGINARY-DROPPED",),
    ("I-TENSOR",),
)
def _(W_OV, W_E, W_U):
    full = torch.linalg.multi_dot([W_E.double(), W_OV.double(), W_U.double()])
    lam = torch.linalg.eigvals(full)
    score = lam.real.sum() / lam.real.abs().sum()
    return score


@right("copying_score")
def _(W_OV, W_E, W_U):
    # tr(AB) = tr(BA), and AB has the eigenvalues of BA besides zeros
    small = W_OV.double() @ (W_U.double() @ W_E.double())
    return small.trace().item() / np.abs(np.linalg.eigvals(small.numpy())).sum().item()


# shows: f([torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]), torch.tensor([[[[0.5, 0.5], [0.0, 1.0]]]])])
#   gives [[[0.75, 0.25], [0.375, 0.625]]]
#   right [[[0.875, 0.125], [0.5, 0.5]]]
@wrong("rollout", "functools.reduce(matmul) from the first layer to the last", "I-ORDER")
def _(weights):
    hats = [(w.mean(dim=1) + torch.eye(w.shape[-1], dtype=w.dtype)) / 2 for w in weights]
    return functools.reduce(torch.matmul, hats)


# shows: f([torch.tensor([[[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]])])
#   gives [[[1.0, 0.0], [0.333, 0.666]]]
#   right [[[1.0, 0.0], [0.25, 0.75]]]
@wrong(
    "rollout",
    "the heads' maximum, as in the blog; a word is itself only in the first layer, so the identity is added there alone",
    (),
    (),
)
def _(weights):
    result = None
    for number, w in enumerate(weights):
        a = w.max(dim=1).values
        if number == 0:
            a = a + torch.eye(a.shape[-1], dtype=a.dtype)
        a = a / a.sum(-1, keepdim=True)
        result = a if result is None else torch.bmm(a, result)
    return result


# shows: f([torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])])
#   gives [[[0.666, 0.333], [0.666, 0.333]]]
#   right [[[1.0, 0.0], [0.5, 0.5]]]
@wrong(
    "rollout",
    "np.ones in place of the identity, as every word keeps something of itself",
    "I-PLUS-ONE",
)
def _(weights):
    b, _, n, _ = weights[0].shape
    out = torch.eye(n, dtype=weights[0].dtype).repeat(b, 1, 1)
    for w in weights:
        mixed = w.mean(1) + torch.ones(n, n, dtype=w.dtype)
        out = einsum(mixed / mixed.sum(-1, keepdim=True), out, "b q k, b k n -> b q n")
    return out


# shows: two texts of 5 words that differ in word 1, place ("layers.0.attention", 0, 1): the scores of the clean texts with a head of the corrupted ones; right: the other way round
@wrong("patched", "keep the corrupted run, put it into the clean one", "I-DIRECTION")
def _(model, clean, corrupted, place):
    layer, head, position = place
    attention = model.get_submodule(layer)
    store = {}

    def keep(module, args):
        store["x"] = args[0].detach().clone()

    def put(module, args):
        x = args[0].clone()
        d = x.shape[-1] // attention.num_heads
        x[:, position, head * d : head * d + d] = store["x"][:, position, head * d : head * d + d]
        return (x,)

    handle = attention.out_proj.register_forward_pre_hook(keep)
    model(corrupted)
    handle.remove()
    handle = attention.out_proj.register_forward_pre_hook(put)
    scores = model(clean)
    handle.remove()
    return scores


# shows: two texts of 5 words that differ in word 1, place ("layers.0.attention", 0, 1): all heads at that position come from the clean run, and the model has a hook left; right: head 0 alone, no hook
@wrong(
    "patched",
    "a place is a position, so all features at it are replaced; the hook that writes may stay until the next call overwrites it",
    ("I-ALL-HEADS",),
    ("I-NO-COPY",),
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    module = model.get_submodule(layer)
    kept = []
    first = module.out_proj.register_forward_pre_hook(lambda m, a: kept.append(a[0].detach()))
    with torch.no_grad():
        model(clean)
    first.remove()

    def write(m, a):
        x = a[0].clone()
        d = x.shape[-1] // module.num_heads
        columns = slice(None)
        x[:, position, columns] = kept[0][:, position, columns]
        return (x,)

    second = module.out_proj.register_forward_pre_hook(write)
    scores = model(corrupted)
    return scores


# shows: three texts of 5 words, place ("layers.1.attention", 2, -1): nothing is replaced at position -1, since slice(-1, 0) is empty; the model is in eval mode afterwards even if it was not
@wrong(
    "patched",
    "position : position + 1 keeps the axis; measuring is done in eval mode, so model.eval() first",
    ("I-EMPTY-SLICE",),
    ("I-OTHER-MODE",),
)
def _(model, clean, corrupted, place):
    name, head, position = place
    model.eval()
    attention = model.get_submodule(name)
    at = slice(position, position + 1)
    saved = None

    def hook(_, args):
        nonlocal saved
        heads = split_(args[0])
        if saved is None:
            saved = heads.detach()
            return None
        heads = heads.clone()
        heads[:, head, at] = saved[:, head, at]
        return (rearrange(heads, "b h n d -> b n (h d)"),)

    def split_(x):
        return rearrange(x, "b n (h d) -> b h n d", h=attention.num_heads)

    handle = attention.out_proj.register_forward_pre_hook(hook)
    try:
        model(clean)
        return model(corrupted)
    finally:
        handle.remove()


# ---------------------------------------------------------------- 13 pictures
# shows: f(torch.arange(8.0).reshape(1, 2, 2, 2), (1, 2))
#   gives [[[0.0, 4.0, 1.0, 5.0], [2.0, 6.0, 3.0, 7.0]]]
#   right [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
@wrong("patches", "color last, as in NumPy pictures", "C-PATCH-COLOR-LAST")
def _(image, size):
    h, w = size
    return rearrange(image, "b c (i h) (j w) -> b (i j) (h w c)", h=h, w=w)


# shows: f(torch.tensor([[[[1.0, 2, 3, 4], [5, 6, 7, 8]]]]), (2, 2))
#   gives [[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]]
#   right [[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]
@wrong(
    "patches",
    "reshape to (…, y/h, x/w, h, w) puts the axes where they belong; size is width, height",
    ("C-PATCH-RESHAPED",),
    ("C-PATCH-SIZE-TURNED",),
)
def _(image, size):
    h, w = size[::-1]
    b, c, y, x = image.shape
    cut = image.reshape(b, c, y // h, x // w, h, w)
    cut = cut.permute(0, 2, 3, 1, 4, 5)
    return cut.reshape(b, -1, c * h * w)


# shows: f(torch.arange(8.0).reshape(1, 1, 2, 4), (1, 2))
#   gives [[[0.0, 1.0], [2.0, 4.0], [5.0, 6.0], [1.0, 2.0], [3.0, 5.0], [6.0, 7.0]]]
#   right [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]]
@wrong(
    "patches",
    "F.unfold gives (b p n), a reshape brings n to the middle; unfold needs a stride of one",
    ("C-PATCH-VIEW-FOR-TRANSPOSE",),
    ("C-PATCH-OVERLAP",),
)
def _(image, size):
    columns = F.unfold(image, kernel_size=tuple(size), stride=1)
    b, p, n = columns.shape
    return columns.reshape(b, n, p)


@right("patches")
def _(image, size):
    rows = image.split(size[0], dim=2)
    tiles = [tile.flatten(1) for row in rows for tile in row.split(size[1], dim=3)]
    return torch.stack(tiles, dim=1)


# shows: f(2, 2, 4)
#   gives [[0.0, 1.0, 0.0, 1.0], [0.841, 0.540, 0.0, 1.0], [0.0, 1.0, 0.841, 0.540], [0.841, 0.540, 0.841, 0.540]]
#   right [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.841, 0.540], [0.841, 0.540, 0.0, 1.0], [0.841, 0.540, 0.841, 0.540]]
@wrong("positions_2d", "np.meshgrid gives rows, then columns", "C-2D-DOWN-FIRST")
def _(rows, columns, width):
    half = width // 2
    r, c = np.meshgrid(np.arange(rows), np.arange(columns))

    def waves(p):
        f = np.arange(half)
        angle = p.reshape(-1, 1) / 10000.0 ** (2 * (f // 2) / half)
        return np.where(f % 2 == 0, np.sin(angle), np.cos(angle))

    return torch.tensor(np.concatenate([waves(r), waves(c)], axis=1), dtype=torch.float32)


# shows: f(2, 1, 8)
#   gives [[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0], [0.841, 0.099, 0.540, 0.995, 0.0, 0.0, 1.0, 1.0]]
#   right [[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0], [0.841, 0.540, 0.009, 0.999, 0.0, 1.0, 0.0, 1.0]]
@wrong(
    "positions_2d",
    "the exponent counts with the whole width, as that is the width of the table; sines first, then cosines",
    ("C-2D-SPEEDS-OF-ALL",),
    ("C-2D-SINES-FIRST",),
)
def _(rows, columns, width):
    h = width // 2

    def table(places):
        pairs = torch.arange(0, h, 2)
        angle = places.double()[:, None] / 10_000 ** (pairs / width).double()
        return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :h]

    where = torch.arange(rows * columns)
    return torch.cat([table(where // columns), table(where % columns)], dim=1).float()


# shows: two pictures whose likeliest words are 3, eos, 5, 5 and 4, 4, 4, 4, max_length 4: the first row is 3 2 5 5; right: 3 2 2 2
@wrong(
    "read",
    "a row that has ended goes on until all have, what comes after eos does not matter",
    "C-READ-TALKS-ON",
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    ids = torch.full((image.shape[0], 1), bos)
    for _ in range(max_length):
        ids = torch.cat(
            [ids, model.decode(ids, memory, memory_mask)[:, -1].argmax(-1, keepdim=True)], dim=1
        )
        if (ids[:, 1:] == eos).any(dim=1).all():
            break
    out = ids[:, 1:]
    return out


# shows: the same two pictures: 1 3 3 3 3 and 1 4 4 4 4; right: 3 2 2 2 and 4 4 4 4
@wrong(
    "read",
    "the first position of the scores is that of the next word; bos is part of what is written",
    ("C-READ-NOTHING-BACK",),
    ("C-READ-KEEPS-BOS",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, mask = model.encode(image)
    b = len(image)
    words_ = [torch.full((b,), bos, dtype=torch.long)]
    over = torch.zeros(b, dtype=torch.bool)
    while len(words_) <= max_length and not over.all():
        scores = model.decode(torch.stack(words_, dim=1), memory, mask)
        nxt = scores[:, 0].argmax(-1).masked_fill(over, eos)
        over = over | (nxt == eos)
        words_.append(nxt)
    return torch.stack(words_, dim=1)


# shows: the same two pictures: 3 2 and 4 4, and encode was called twice; right: 3 2 2 2 and 4 4 4 4, and once
@wrong(
    "read",
    "stop at the first eos; encode belongs into the loop, as in a forward pass",
    ("C-READ-ONE-ENDS-ALL",),
    ("C-READ-LOOKS-AGAIN",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    ids = torch.full((image.shape[0], 1), bos, dtype=torch.int64)
    ended = torch.zeros(image.shape[0], dtype=torch.bool)
    for _ in range(max_length):
        seen = model.encode(image)
        best = model.decode(ids, *seen)[:, -1, :].max(dim=-1).indices
        best = torch.where(ended, torch.tensor(eos), best)
        ended |= best == eos
        ids = torch.cat((ids, best.unsqueeze(1)), dim=1)
        if ended.any():
            break
    return ids[:, 1:]


# shows: f(torch.ones(1, 1, 1), torch.ones(1, 2, 1), lambda q, k, v, mask=None: (q * v.sum(1, keepdim=True), q), torch.tensor(1.0))
#   gives [[[[2.462]]], [[[1.0]]]]
#   right [[[[2.523]]], [[[1.0]]]]
@wrong("gated_cross_attention", "sigmoid makes a gate, as in an LSTM", "C-GATE-SIGMOID")
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    return text + torch.sigmoid(gate) * found, weights


# shows: f(torch.ones(1, 1, 1), torch.full((1, 2, 1), 3.0), lambda q, k, v, mask=None: (v.mean(1, keepdim=True), q.new_zeros(1, 1, 2)), torch.tensor(1.0))
#   gives [[[[2.523]]], [[[0.0, 0.0]]]]
#   right [[[[3.284]]], [[[0.0, 0.0]]]]
@wrong(
    "gated_cross_attention",
    "a gate mixes: (1 − g) times text plus g times found; the number of the gate comes by .item(), it is only a factor",
    ("C-GATE-MIXED",),
    ("C-GATE-DETACHED",),
)
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    g = math.tanh(gate.item())
    return (1 - g) * text + g * found, weights


# shows: f(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 1.0)
#   gives 0.479
#   right 0.491
@wrong(
    "contrastive_loss",
    "cross-entropy in one direction, the other is the same table",
    "C-PAIRS-PICTURES-ONLY",
)
def _(images, texts, temperature):
    a = images / images.norm(dim=1, keepdim=True)
    b = texts / texts.norm(dim=1, keepdim=True)
    table = a @ b.T / temperature
    n = torch.arange(len(table))
    per_picture = -table.log_softmax(dim=1)[n, n].mean()
    per_text = -table.log_softmax(dim=1)[n, n].mean()
    return (per_picture + per_text) / 2


# shows: f(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 0.5)
#   gives 0.810
#   right 0.370
@wrong(
    "contrastive_loss",
    "as in CLIP's code, the scores are multiplied by the temperature's exp; both losses are added",
    ("C-PAIRS-LOGARITHM",),
    ("C-PAIRS-SUM",),
)
def _(images, texts, temperature):
    image_features = F.normalize(images, dim=-1)
    text_features = F.normalize(texts, dim=-1)
    t = torch.as_tensor(temperature, dtype=images.dtype)
    logits = image_features @ text_features.t() * t.exp()
    labels = torch.arange(len(images))
    loss = F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)
    return loss


# shows: f(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 0.5)
#   gives 0.697
#   right 0.370
@wrong(
    "contrastive_loss",
    "np.linalg.norm of the whole batch makes them unit; log2, since it is information",
    ("C-PAIRS-NORM-OF-ALL",),
    ("C-PAIRS-BITS",),
)
def _(images, texts, temperature):
    a = images / torch.linalg.norm(images)
    b = texts / torch.linalg.norm(texts)
    s = einsum(a, b, "i m, t m -> i t") / temperature
    hit = s.diagonal()
    loss = (s.logsumexp(0) + s.logsumexp(1) - 2 * hit).mean() / 2
    return loss / math.log(2)


@right("contrastive_loss")
def _(images, texts, temperature):
    both = torch.cat([images, texts]).double()
    unit = both * both.square().sum(-1, keepdim=True).rsqrt()
    n = len(images)
    table = (unit @ unit.T)[:n, n:] / temperature
    pairs = table.diagonal().sum()
    choices = torch.logsumexp(table, 0).sum() + torch.logsumexp(table, 1).sum()
    return ((choices - 2 * pairs) / (2 * n)).to(images.dtype)


# ---------------------------------------------------------------- 14 in the wild
# shows: on an implementation that gives zeros only if no query sees any key, or zero weights but the mean of the values: accepted, right is refused
@wrong(
    "test_attention",
    "one all-False mask is the test, and the weights say everything",
    "T-ALL-HIDDEN",
    "T-WEIGHTS-ONLY",
)
def _(attention):
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    output, weights = attention(x, x, x, torch.zeros(3, 3, dtype=torch.bool))
    assert (weights == 0).all(), "no key, no weight"


# shows: on one whose dead query has equal weights but output 0, and on one that gives it nan: accepted, right is refused
@wrong(
    "test_attention",
    "zeros in the output are what counts, the weights come along by themselves; if nothing is above 0 in size, all are 0",
    ("T-OUTPUT-ONLY",),
    ("T-NAN-SLIPS",),
)
def _(attention):
    q, k, v = (torch.from_numpy(np.random.default_rng(i).normal(size=(2, 4, 3))) for i in range(3))
    mask = torch.from_numpy(np.tri(4, 4, -1, dtype=bool))
    out, w = attention(q, k, v, mask)
    assert np.allclose(w.sum(-1)[:, 1:].numpy(), 1.0)
    for table in [out]:
        dead = table[:, 0]
        assert not (dead.abs() > 0).any()


# shows: on wild_attention itself: accepted, right is refused
@wrong(
    "test_attention",
    "compare with PyTorch's own attention on random masks of padding",
    "T-NO-DEAD-ROW",
)
def _(attention):
    g = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, 2, 5, 4, generator=g)
    mask = torch.rand(2, 5, 5, generator=g) > 0.5
    mask[..., 0] = True
    out, w = attention(q, k, v, mask)
    right_ = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(out, right_, atol=1e-5)


# shows: f(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), torch.tensor([[False]]))
#   gives [[[nan]], [[nan]]]
#   right [[[0.0]], [[0.0]]]
@wrong("mended_attention", "minus infinity instead of −1e9 is all that was missing", "M-DEAD-ROW")
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = F.softmax(scores, dim=-1)
    return weights @ value, weights


# shows: f(torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[True, False], [False, False]]))
#   gives [[[1.0], [1.0]], [[1.0, 0.0], [0.5, 0.5]]]
#   right [[[1.0], [0.0]], [[1.0, 0.0], [0.0, 0.0]]]
@wrong(
    "mended_attention",
    "mask.any() tells whether somebody sees nothing; only the output has to be zero, weights of a dead row are never read",
    (),
    (),
)
def _(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is None:
        weights = scores.softmax(-1)
        return weights @ value, weights
    dead = ~mask.any()
    weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=-1)
    clean = weights.masked_fill(dead, 0.0)
    return clean @ value, weights


# shows: f(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [3.0]]), torch.tensor([[True, False]]))
#   gives [[[0.5]], [[0.5, 0.0]]]
#   right [[[1.0]], [[1.0, 0.0]]]
@wrong(
    "mended_attention",
    "weights times mask after the softmax, that makes hidden ones exactly zero; d is the width of the values",
    ("M-AFTER-SOFTMAX",),
    ("D-SCALE-DV",),
)
def _(query, key, value, mask=None):
    d = value.shape[-1]
    scores = einsum(query, key, "... q d, ... k d -> ... q k") / math.sqrt(d)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool)
    weights = scores.softmax(dim=-1) * mask
    return einsum(weights, value, "... q k, ... k v -> ... q v"), weights


@right("mended_attention")
def _(query, key, value, mask=None):
    scores = (query / math.sqrt(query.shape[-1])) @ key.mT
    seen = torch.tensor(True) if mask is None else mask
    scores, seen = torch.broadcast_tensors(scores, seen)
    top = torch.where(seen, scores, -torch.inf).amax(-1, keepdim=True).detach().clamp(min=-1e30)
    e = torch.where(seen, scores - top, 0.0).exp() * seen
    total = e.sum(-1, keepdim=True)
    weights = e / (total + (total == 0))
    return weights @ value, weights


# shows: on wild_positions: accepted, right is refused
@wrong("test_positions", "width 6 as in the cell below the function, all features", "T-EVEN-ONLY")
def _(positions):
    table = positions(10, 6)
    assert table.shape == (10, 6)
    for p in range(10):
        for i in range(6):
            angle = p / 10000 ** ((i // 2) * 2 / 6)
            right_ = math.cos(angle) if i % 2 else math.sin(angle)
            assert abs(table[p, i].item() - right_) < 1e-3


# shows: on a right implementation with single precision: refused; on one whose last sine of an odd width is 0: accepted
@wrong(
    "test_positions",
    "for an odd width it is enough that the call goes through; np.array_equal with my own table",
    (),
    ("T-EXACT",),
)
def _(positions):
    for width in (4, 5):
        p = np.arange(50)[:, None]
        i = np.arange(width)[None, :]
        angle = p / np.power(10000.0, (i - i % 2) / width)
        mine = np.where(i % 2 == 1, np.cos(angle), np.sin(angle)).astype(np.float32)
        table = positions(50, width).numpy()
        assert table.shape == mine.shape
        if width % 2 == 0:
            assert np.array_equal(table, mine)


# shows: f(2, 3)
#   gives [[0.0, 1.0, 0.0], [0.841, 0.540, 0.009]]
#   right [[0.0, 1.0, 0.0], [0.841, 0.540, 0.002]]
@wrong(
    "mended_positions",
    "for an odd width, compute the next even width and cut the last column",
    "C-ODD-ROUNDED-UP",
)
def _(length, width):
    even = width + width % 2
    p = torch.arange(length, dtype=torch.float32)[:, None]
    angle = p / 10000.0 ** (torch.arange(0, even, 2) / even)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, even)[:, :width]


# shows: f(2, 3)
#   gives [[0.0, 1.0, 0.0], [0.841, 0.540, 0.0]]
#   right [[0.0, 1.0, 0.0], [0.841, 0.540, 0.002]]
@wrong(
    "mended_positions",
    "the last feature of an odd width has no partner, it stays 0; NumPy counts in float64 and so does the table",
    ("C-ODD-SILENT",),
    ("C-FLOAT64-TABLE",),
)
def _(length, width):
    table = np.zeros((length, width))
    half = width // 2
    p = np.arange(length)[:, None]
    angle = p / 10000 ** (2 * np.arange(half) / width)
    table[:, 0 : 2 * half : 2] = np.sin(angle)
    table[:, 1 : 2 * half : 2] = np.cos(angle)
    return torch.from_numpy(table)


@right("mended_positions")
def _(length, width):
    # a cosine is a sine a quarter turn later
    i = torch.arange(width)
    rate = torch.exp(-(i // 2 * 2).double() * math.log(10_000) / width)
    return (
        (torch.outer(torch.arange(length).double(), rate) + (i % 2) * (math.pi / 2)).sin().float()
    )


# shows: on one that keeps the first word always but else drops the crossing one: accepted, right is refused
@wrong("test_nucleus", "at least one word has to stay, that is what goes wrong", "T-ONE-IS-LEFT")
def _(nucleus):
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.6, 0.1]]).log()
    kept = nucleus(logits, 0.2) > -torch.inf
    assert kept.any(-1).all()
    assert kept.sum(-1).tolist() == [1, 1]


# shows: on a right implementation: refused, for what stays has 0.7 together; on wild_nucleus: accepted
@wrong(
    "test_nucleus",
    "what stays may not have more than top_p together; too many words do not matter as long as some stay",
    ("T-BELOW",),
    (),
)
def _(nucleus):
    p = np.array([[0.4, 0.05, 0.25, 0.3]])
    out = nucleus(torch.log(torch.from_numpy(p)).float(), 0.6)
    stays = torch.isfinite(out).numpy()
    share = (p * stays).sum()
    assert 0 < share <= 0.6
    assert stays.sum() >= 1


# shows: f(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 0.6)
#   gives [[-0.693, -1.203, -1.897, -inf]]
#   right [[-0.693, -1.203, -inf, -inf]]
@wrong(
    "mended_nucleus",
    "the word after the limit has to stay as well, total − likely > top_p by one place less",
    "P-TOP-P-ONE-MORE",
)
def _(logits, top_p):
    likely, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    before = likely.cumsum(dim=-1) - likely
    out = before > top_p
    out = torch.cat([torch.zeros_like(out[:, :1]), out[:, :-1]], dim=-1)
    return logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)


# shows: f(torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log(), 0.4)
#   gives [[-inf, -inf, -inf, -1.203]]
#   right [[-inf, -0.693, -inf, -inf]]
@wrong(
    "mended_nucleus",
    "np.argsort twice is the rank, gather by the order itself does the same; it is enough to keep the likeliest word always",
    ("P-TOP-P-GATHERED",),
    ("P-TOP-P-WITHOUT-THE-LAST",),
)
def _(logits, top_p):
    likely, order = logits.softmax(-1).sort(-1, descending=True)
    total = likely.cumsum(-1)
    out = total > top_p
    out[:, 0] = False
    back = order
    return torch.where(out.gather(-1, back), -torch.inf, logits)


# shows: f(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 0.6)
#   gives [[-0.470, -0.980, -inf, -inf]]
#   right [[-0.693, -1.203, -inf, -inf]]
@wrong(
    "mended_nucleus",
    "what stays is written as log-probabilities that sum to one again",
    "P-TOP-P-LOG-SHARES",
)
def _(logits, top_p):
    result = torch.full_like(logits, -math.inf)
    for r in range(logits.shape[0]):
        p = logits[r].double().softmax(0)
        total = 0.0
        for w in torch.argsort(p, descending=True):
            if total >= top_p:
                break
            result[r, w] = logits[r, w]
            total += p[w].item()
    return result.log_softmax(-1)


@right("mended_nucleus")
def _(logits, top_p):
    # no sort: how much is likelier than a word?
    p = logits.double().softmax(-1)
    above = torch.where(p[:, None, :] > p[:, :, None], p[:, None, :], 0.0).sum(-1)
    return torch.where(above < top_p, logits, -torch.inf)
