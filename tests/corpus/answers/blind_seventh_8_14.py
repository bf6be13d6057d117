"""Answers to chapters 8–14 by a writer who had the notebooks alone, half with two mistakes.

What the judge said before anything was mended by these is in tests/bench/answers.md. Which names are
fair was said by somebody else, with the judge's in view.

Each comment "shows" names an input on which the answer is wrong; a second one, where there is
one, shows the second mistake. In these comments T(list) is a float64 tensor, L(list) one of whole
numbers, B(list) a boolean one, R(seed, *shape) float64 numbers drawn by randn with this seed, and
W(seed, *shape) the softmax of them. Other small helpers were the writer's own.
"""

import copy
import functools
import math
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


# ---------------------------------------------------------------- chapter 8


# shows: relative_scores(T([[1.]]), T([[0.], [0.]]), T([[1.], [3.], [7.]])) -> [[3.0, 7.0]]; right: [[1.0, 3.0]]
@wrong(
    "relative_scores",
    "Queries and keys are both numbered from 0, so the offset is just j minus i.",
    "P-TOPLEFT",
)
def _(query, key, table):
    q, k, d = query.shape[-2], key.shape[-2], query.shape[-1]
    c = (table.shape[0] - 1) // 2
    i = torch.arange(q)[:, None]
    j = torch.arange(k)[None, :]
    rows = (j - i).clamp(-c, c) + c
    content = query @ key.mT
    position = einsum(query, table[rows], "... q d, q k d -> ... q k")
    return (content + position) / math.sqrt(d)


# shows: relative_scores(T([[1.], [1.]]), T([[0.], [0.]]), T([[1.], [3.], [7.]])) -> [[3.0, 1.0], [7.0, 3.0]]; right: [[3.0, 7.0], [1.0, 3.0]]
# shows: relative_scores(R(1, 3, 4), R(2, 5, 4), R(3, 5, 4)) -> (3, 5) [[-0.923, -0.305, 0.951, 0.52, -0.44], [-2.55, -2.84, 1.42, -1.7, 2.29], [-0.875, -1.52, -0.0806, 0.402…; right: (3, 5) [[-0.626, 0.0557, 0.268, 0.704, -0.301], [-1.49, -1.78, 0.807, -1.04, 2.08], [-0.28, -0.928, 0.514, -0.…
@wrong(
    "relative_scores",
    "The offset is how far the key lies behind the query, i minus j; only the content product needs the scale, the table is learned anyway",
    ("C-SHAW-OTHER-WAY",),
    ("C-SHAW-SCALED-HALF",),
)
def _(query, key, table):
    c = table.shape[0] // 2
    places = torch.arange(key.shape[-2])
    asking = places[key.shape[-2] - query.shape[-2] :]
    offset = asking[:, None] - places
    vectors = table[offset.clamp(min=-c, max=c) + c]  # q k d
    extra = (query.unsqueeze(-2) * vectors).sum(-1)
    return query @ key.mT / math.sqrt(query.shape[-1]) + extra


# shows: relative_buckets(L([-1]), 8, 21, True) -> [5]; right: [1]
@wrong(
    "relative_buckets",
    "Buckets of the second half belong to the keys before the query.",
    "C-BUCKETS-AFTER-FIRST",
)
def _(offsets, num_buckets, max_distance, bidirectional):
    bucket = torch.zeros_like(offsets, dtype=torch.long)
    if bidirectional:
        num_buckets //= 2
        bucket += (offsets < 0).long() * num_buckets
        distance = offsets.abs().long()
    else:
        distance = (-offsets).clamp(min=0).long()
    exact = num_buckets // 2
    far = (
        exact
        + (
            torch.log(distance.clamp(min=1).float() / exact)
            / math.log(max_distance / exact)
            * (num_buckets - exact)
        ).long()
    )
    far = far.clamp(max=num_buckets - 1)
    return bucket + torch.where(distance < exact, distance, far)


# shows: relative_buckets(torch.arange(-30, 31), 8, 21, True) -> (61,) [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 0, 5, 6, 6, 7…; right: (61,) [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 1, 0, 5, 6, 6, 6…
# shows: relative_buckets(L([1]), 8, 30, False) -> [1]; right: [0]
@wrong(
    "relative_buckets",
    "The logarithm stretches over all b buckets of a direction; one direction means the distance is the absolute offset",
    ("C-BUCKETS-SPREAD-OVER-ALL",),
    ("C-BUCKETS-FUTURE-DISTANCE",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    offsets = offsets.long()
    if bidirectional:
        b = num_buckets // 2
        start = torch.where(offsets > 0, b, 0)
        dist = offsets.abs()
    else:
        b = num_buckets
        start = torch.zeros_like(offsets)
        dist = offsets.abs()
    a = b // 2
    ratio = torch.log(dist.clamp(min=a) / a) / math.log(max_distance / a)
    far = a + torch.floor(ratio * b).long()
    far = torch.minimum(far, torch.full_like(far, b - 1))
    return start + torch.where(dist < a, dist, far)


# shows: alibi_bias(6, 1, 2) -> [[[-0.25, -0.0]], [[-0.0625, -0.0]], [[-0.0156, -0.0]], [[-0.00391, -0.0]], [[-0.5, -0.0]], [[-0.25, -0.0]]]; right: [[[-0.25, -0.0]], [[-0.0625, -0.0]], [[-0.0156, -0.0]], [[-0.00391, -0.0]], [[-0.5, -0.0]], [[-0.125, -0.0]]]
@wrong(
    "alibi_bias",
    "With 6 heads the missing slopes are simply the next ones of the row for 8 heads.",
    "C-ALIBI-ONE-AFTER-THE-OTHER",
)
def _(num_heads, query_length, key_length):
    p = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / p) for i in range(1, p + 1)]
    extra = [2 ** (-4 * i / p) for i in range(1, 2 * p + 1)]
    slopes += extra[: num_heads - p]
    m = torch.tensor(slopes)
    i = torch.arange(key_length - query_length, key_length)
    j = torch.arange(key_length)
    return -m[:, None, None] * (j - i[:, None]).abs()


# shows: alibi_bias(1, 1, 2) -> [[[-1.0, 0.0]]]; right: [[[-0.00391, -0.0]]]
# shows: alibi_bias(1, 2, 2) -> [[[0.0, 1.0], [-1.0, 0.0]]]; right: [[[-0.0, -0.00391], [-0.00391, -0.0]]]
@wrong(
    "alibi_bias",
    "The first head does not decay so slowly: slopes begin at 1 and halve their way; the bias is slope times j - i, which is negative for the keys that count",
    ("C-ALIBI-FROM-ONE",),
    ("C-ALIBI-SIGNED",),
)
def _(num_heads, query_length, key_length):
    def slopes(h):
        if math.log2(h).is_integer():
            start = 2 ** (-8 / h)
            return [start**i for i in range(h)]
        p = 2 ** int(math.log2(h))
        return slopes(p) + slopes(2 * p)[0::2][: h - p]

    m = torch.tensor(slopes(num_heads)).view(-1, 1, 1)
    offset = (
        torch.arange(key_length)[None]
        - torch.arange(key_length - query_length, key_length)[:, None]
    )
    return m * offset


# shows: rotate(T([[1., 0., 0., 0.]]), L([1])) -> [[0.54, 0.0, 0.841, 0.0]]; right: [[0.54, 0.841, 0.0, 0.0]]
@wrong(
    "rotate",
    "A pair is a feature of the first half and the one at the same place in the second half.",
    "P-ROPE-LAYOUT",
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    freq = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.outer(positions.to(torch.float64), freq)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


# shows: rotate(T([[0., 0., 1., 0.]]), L([1])) -> [[0.0, 0.0, 1.0, 0.0]]; right: [[0.0, 0.0, 1.0, 0.01]]
# shows: rotate(T([[1., 0.]]), L([1])) -> [[1.0, 0.0]]; right: [[0.54, 0.841]]
@wrong(
    "rotate",
    "Pair i turns with the speed base^(-i/d); the places are the rows' own numbers 0, 1, 2",
    ("C-EXPONENT-HALVED",),
    ("P-ROPE-CACHE",),
)
def _(x, positions, base=10_000.0):
    n, d = x.shape[-2:]
    p = torch.arange(n).double()
    speed = torch.tensor([base ** (-i / d) for i in range(d // 2)], dtype=torch.float64)
    theta = p[:, None] * speed[None, :]
    c = torch.cos(theta).to(x.dtype)
    s = torch.sin(theta).to(x.dtype)
    result = torch.empty_like(x)
    result[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
    result[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
    return result


# shows: shift_relative(T([[1., 2., 3.], [4., 5., 6.]])) -> [[1.0, 2.0], [5.0, 6.0]]; right: [[2.0, 3.0], [4.0, 5.0]]
@wrong(
    "shift_relative",
    "Row i begins one column further right than the row before.",
    "C-SHIFT-OTHER-WAY",
)
def _(scores):
    q, r = scores.shape[-2:]
    k = r - q + 1
    index = torch.arange(k)[None, :] + torch.arange(q)[:, None]
    index = index.expand(*scores.shape[:-2], q, k)
    return scores.gather(-1, index)


# shows: shift_relative(T([[1., 2.]])) -> [[0.0]]; right: [[1.0, 2.0]]
# shows: shift_relative(T([[1., 2., 3., 4.], [5., 6., 7., 8.]])) -> [[1.0, 2.0], [0.0, 5.0]]; right: [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]
@wrong(
    "shift_relative",
    "The padding column goes on the left, everything else stays the same; there is one key for each query, so the table is cut to q columns",
    ("C-SHIFT-ONE-LESS",),
    ("C-SHIFT-SQUARE",),
)
def _(scores):
    q, r = scores.shape[-2:]
    k = q
    x = F.pad(scores, (1, 0))
    x = x.flatten(-2)[..., q - 1 :]
    x = x[..., : q * r].unflatten(-1, (q, r))
    return x[..., :k]


# ---------------------------------------------------------------- chapter 9


# shows: byte_pairs({'hundred':3, 'hundert':2, 'red':4, 'under':1}, 12) -> [(e, d), (r, ed), (n, d), (u, nd), (h, und), (e, r), (hund, red), (er, t), (hund, ert), (und, er)]; right: [(e, d), (r, ed), (n, d), (u, nd), (h, und), (e, r), (hund, red), (hund, er), (hunder, t), (und, er)]
@wrong(
    "byte_pairs",
    "Ties are decided by the alphabet: the pair that comes first in sorted order wins.",
    "B-ALPHABET",
)
def _(words, num_merges):
    splits = {w: list(w) for w in words}
    merges = []
    for _ in range(num_merges):
        counts = Counter()
        for w, pieces in splits.items():
            for pair in zip(pieces, pieces[1:]):
                counts[pair] += words[w]
        if not counts:
            break
        best = min(counts, key=lambda p: (-counts[p], p))
        merges.append(best)
        for w, pieces in splits.items():
            new, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    new.append(best[0] + best[1])
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            splits[w] = new
    return merges


# shows: byte_pairs({'ab':1, 'cb':5}, 1) -> [(a, b)]; right: [(c, b)]
# shows: byte_pairs({'ba':1, 'ab':1}, 1) -> [(b, a)]; right: [(a, b)]
@wrong(
    "byte_pairs",
    "Every different word counts once; the oldest letter is the one that comes first in the words",
    ("B-EACH-WORD-ONCE",),
    ("B-AGE-BY-OCCURRENCE",),
)
def _(words, num_merges):
    texts = [(list(w), n) for w, n in words.items()]
    age = {}
    for letter in dict.fromkeys("".join(words)):
        age[letter] = len(age)
    clock = len(age)
    out = []
    while len(out) < num_merges:
        pairs = Counter()
        for pieces, n in texts:
            for left, right_ in zip(pieces[:-1], pieces[1:]):
                pairs[left, right_] += 1
        if len(pairs) == 0:
            return out
        top = max(pairs.values())
        tied = [p for p in pairs if pairs[p] == top]
        left, right_ = sorted(tied, key=lambda p: (age[p[0]], age[p[1]]))[0]
        out.append((left, right_))
        age.setdefault(left + right_, clock)
        clock += 1
        merged = []
        for pieces, n in texts:
            new = []
            while pieces:
                if len(pieces) > 1 and pieces[0] == left and pieces[1] == right_:
                    new.append(left + right_)
                    pieces = pieces[2:]
                else:
                    new.append(pieces[0])
                    pieces = pieces[1:]
            merged.append((new, n))
        texts = merged
    return out


# shows: encode_text('a', []) -> [97]; right: [64]
@wrong(
    "encode_text", "The letters keep the order in which byte_letters gives them.", "B-BYTE-IS-ID"
)
def _(text, merges):
    vocab = list(byte_letters())
    for left, right_ in merges:
        if left + right_ not in vocab:
            vocab.append(left + right_)
    ids = {piece: i for i, piece in enumerate(vocab)}
    result = []
    for part in byte_words(text):
        pieces = list(part)
        for left, right_ in merges:
            i = 0
            while i < len(pieces) - 1:
                if pieces[i] == left and pieces[i + 1] == right_:
                    pieces[i : i + 2] = [left + right_]
                i += 1
        result.extend(ids[p] for p in pieces)
    return result


# shows: encode_text('abc ab', [('a', 'b'), ('ab', 'c'), ('b', 'c'), ('a', 'bc'), ('c', 'a')]) -> [259, 220, 256]; right: [257, 220, 256]
# shows: encode_text('abab', [('ab', 'ab'), ('a', 'b')]) -> [257, 64, 65]; right: [257, 257]
@wrong(
    "encode_text",
    "A merge that makes a known piece again still takes a place in the list; each merge joins the first such pair of a word",
    ("B-BORN-AGAIN",),
    ("B-MERGED-ONCE",),
)
def _(text, merges):
    table = {letter: i for i, letter in enumerate(sorted(byte_letters()))}
    for n, (a, b) in enumerate(merges):
        table[a + b] = 256 + n
    ids = []
    for part in byte_words(text):
        pieces = [c for c in part]
        for a, b in merges:
            i = 0
            while i < len(pieces) - 1:
                if pieces[i] == a and pieces[i + 1] == b:
                    pieces = pieces[:i] + [a + b] + pieces[i + 2 :]
                    break
                i += 1
        ids += [table[p] for p in pieces]
    return ids


# shows: bert(masked_words, 0.5, 'rates') -> about [0.8, 0.02, 0.19]; right: about [0.8, 0.09, 0.12]
@wrong(
    "masked_words",
    "10 % of the asked words are exchanged, so the third draw is compared with 0.1.",
    "W-TENTH-OF-A-FIFTH",
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    draw = lambda p: torch.rand(tokens.shape, generator=rng) < p
    asked = draw(share)
    masked = asked & draw(0.8)
    exchanged = asked & ~masked & draw(0.1)
    other = torch.randint(vocabulary_size, tokens.shape, generator=rng)
    inputs = torch.where(masked, mask_id, tokens)
    inputs = torch.where(exchanged, other, inputs)
    return inputs, torch.where(asked, tokens, -100)


# shows: bert(masked_words, 0.5, 'asked') -> about [0.45]; right: about [0.5]
# shows: bert(masked_words, 0.5, 'same seed twice') -> False; right: True
@wrong(
    "masked_words",
    "Words that stay as they are need no target, the model sees them anyway; the random words come from randint, which has its own chance",
    (),
    (),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    chance = torch.rand(tokens.shape, generator=rng)
    kind = torch.rand(tokens.shape, generator=rng)
    asked = chance < share
    inputs, targets = tokens.clone(), tokens.clone()
    masked = asked & (kind < 0.8)
    exchanged = asked & (kind >= 0.8) & (kind < 0.9)
    inputs[masked] = mask_id
    inputs[exchanged] = torch.randint(0, vocabulary_size, (int(exchanged.sum()),))
    targets[~(masked | exchanged)] = -100
    return inputs, targets


# shows: freq(sample, [math.log(x) for x in(.1, .5, .06, .3, .04)], top_p=0.6) -> about [0.0, 1.0, 0.0, 0.0, 0.0]; right: about [0.0, 0.62, 0.0, 0.38, 0.0]
@wrong(
    "sample",
    "A word is left only while the running sum is not above top_p.",
    "P-TOP-P-WITHOUT-THE-LAST",
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    scaled = logits / temperature
    if top_k is not None:
        k = min(top_k, scaled.shape[-1])
        limit = torch.topk(scaled, k).values[..., -1, None]
        scaled = scaled.masked_fill(scaled < limit, float("-inf"))
    if top_p is not None:
        ordered, index = torch.sort(scaled, descending=True)
        cumulative = ordered.softmax(-1).cumsum(-1)
        remove = cumulative > top_p
        remove[..., 0] = False
        remove = torch.zeros_like(remove).scatter(-1, index, remove)
        scaled = scaled.masked_fill(remove, float("-inf"))
    return torch.multinomial(scaled.softmax(-1), 1).squeeze(-1)


# shows: freq(sample, [math.log(x) for x in(.1, .5, .06, .3, .04)], temperature=2.0) -> about [0.03, 0.7, 0.01, 0.26, 0.01]; right: about [0.16, 0.35, 0.12, 0.28, 0.1]
# shows: freq(sample, [math.log(x) for x in(.1, .5, .06, .3, .04)], top_k=3, top_p=0.85) -> about [0.12, 0.55, 0.0, 0.33, 0.0]; right: about [0.0, 0.62, 0.0, 0.38, 0.0]
@wrong(
    "sample",
    "A temperature multiplies the logits; top_p looks at the probabilities of all words, before top_k has taken any out",
    ("P-TEMPERATURE-TIMES",),
    ("P-TOP-P-BEFORE-TOP-K",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    z = logits * temperature
    p = z.softmax(-1)
    keep = torch.ones_like(p, dtype=torch.bool)
    if top_k is not None:
        best = p.topk(min(top_k, p.shape[-1])).indices
        keep = torch.zeros_like(keep).scatter(-1, best, True)
    if top_p is not None:
        likely, order = p.sort(dim=-1, descending=True)
        before = likely.cumsum(-1) - likely
        keep = keep & torch.empty_like(keep).scatter(-1, order, before < top_p)
    return torch.multinomial(p * keep, 1)[:, 0]


# shows: beam_search(listed({0:[.02, .02, .5, .46], 2:[.02, .4, .3, .28], 3:[.02, .94, .02, .02], 1:[.25]*4}), torch.zeros(1, 1), 0, 1, 2, 2) -> [[2, 1]]; right: [[3, 1]]
@wrong("beam_search", "In the first round all beginnings start with a total of 0.", "B-ALL-ALIKE")
def _(step, state, bos, eos, width, max_length):
    b = state.shape[0]
    state = state.repeat_interleave(width, dim=0)
    token = torch.full((b * width,), bos)
    total = torch.zeros(b, width)
    ended = torch.zeros(b * width, dtype=torch.bool)
    written = torch.zeros(b * width, 0, dtype=torch.long)
    offset = torch.arange(b)[:, None] * width
    for _ in range(max_length):
        logits, state = step(token, state)
        vocab = logits.shape[-1]
        log_p = F.log_softmax(logits, dim=-1)
        stay = torch.full_like(log_p, -math.inf)
        stay[:, eos] = 0
        log_p = torch.where(ended[:, None], stay, log_p)
        scores = total[:, :, None] + log_p.view(b, width, vocab)
        total, place = scores.flatten(1).topk(width)
        rows = (place // vocab + offset).flatten()
        token = (place % vocab).flatten()
        state, ended = state[rows], ended[rows] | (token == eos)
        written = torch.cat([written[rows], token[:, None]], dim=1)
        if ended.view(b, width)[:, 0].all():
            break
    return written.view(b, width, -1)[:, 0]


# shows: beam_search(toy(2, 4), torch.arange(1), 0, 1, 2, 5) -> [[2, 0, 3, 0, 1]]; right: [[2, 1, 1, 1]]
# shows: beam_search(toy(4, 5), torch.arange(3), 0, 1, 3, 6) -> [[3, 4, 0, 3, 4, 0], [0, 4, 0, 0, 3, 2], [3, 0, 4, 4, 4, 4]]; right: [[3, 4, 3, 2, 0, 0], [1, 1, 1, 1, 1, 1], [0, 3, 4, 0, 0, 0]]
@wrong(
    "beam_search",
    "Logits can be summed up, the softmax does not change their order; a beginning's state stays in its row",
    ("B-LOGITS-ADDED",),
    ("B-STATE-NOT-MOVED",),
)
def _(step, state, bos, eos, width, max_length):
    b = len(state)
    states = state.repeat_interleave(width, 0)
    words = torch.full((b * width, 1), bos)
    totals = torch.full((b, width), -math.inf)
    totals[:, 0] = 0.0
    ended = torch.zeros(b * width, dtype=torch.bool)
    for _ in range(max_length):
        logits, states = step(words[:, -1], states)
        log_p = logits.clone()
        log_p[ended] = -math.inf
        log_p[ended, eos] = 0.0
        v = log_p.shape[1]
        totals, best = (
            (totals[:, :, None] + log_p.reshape(b, width, v)).reshape(b, -1).topk(width, dim=1)
        )
        row = (torch.arange(b)[:, None] * width + best // v).reshape(-1)
        new = (best % v).reshape(-1)
        words = torch.cat([words[row], new[:, None]], 1)
        ended = ended[row] | (new == eos)
        if ended.reshape(b, width)[:, 0].all():
            break
    return words.reshape(b, width, -1)[:, 0, 1:]


# ---------------------------------------------------------------- chapter 10


# shows: extend((T([[1.]]), T([[2.]])), T([[3.]]), T([[4.]])) -> ([[1.0, 3.0]], [[2.0, 4.0]]); right: ([[1.0], [3.0]], [[2.0], [4.0]])
@wrong("extend", "Axis 1 is the axis of positions.", "K-CAT-HEADS")
def _(cache, key, value):
    if cache is None:
        return key, value
    keys, values = cache
    keys = torch.cat((keys, key), dim=1)
    values = torch.cat((values, value), dim=1)
    return keys, values


# shows: extend((T([[1.]]), T([[2.]])), T([[3.]]), T([[4.]])) -> ([[3.0], [1.0]], [[4.0], [2.0]]); right: ([[1.0], [3.0]], [[2.0], [4.0]])
# shows: grad(extend, (R(1, 2, 3, 4), R(2, 2, 3, 5)), R(3, 2, 1, 4), R(4, 2, 1, 5), wrt=1, out=0) -> RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn; right: [[[13.0, 14.0, 15.0, 16.0]], [[29.0, 30.0, 31.0, 32.0]]]
@wrong(
    "extend",
    "The newest comes first; nothing of the cache is learned from any more, so it can be detached",
    ("K-NEW-FIRST",),
    ("C-DETACHED",),
)
def _(cache, key, value):
    key, value = key.detach(), value.detach()
    if cache is None:
        return key, value
    return tuple(torch.cat([new, old], dim=-2) for old, new in zip(cache, (key, value)))


# shows: pieces(cached_attention, [1, 1], n=2) -> [[0.803, 0.175, 0.089], [0.803, 0.175, 0.089]]; right: [[0.803, 0.175, 0.089], [0.255, 0.125, -0.475]]
@wrong("cached_attention", "The triangle begins in the top left corner.", "K-MASK-TOP-LEFT")
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key = torch.cat([cache[0], key], dim=-2)
        value = torch.cat([cache[1], value], dim=-2)
    q, k = query.shape[-2], key.shape[-2]
    visible = torch.ones(q, k, dtype=torch.bool).tril()
    if mask is not None:
        visible = visible & mask
    output, _ = scaled_dot_product_attention(query, key, value, visible)
    return output, (key, value)


# shows: cached_attention(R(1, 2, 2), R(2, 2, 2), R(3, 2, 1), None, B([[False, True], [False, True]]))[0] -> [[0.175], [0.175]]; right: [[0.0], [0.175]]
# shows: pieces(cached_attention, [1], n=1) -> [[0.0, 0.0, 0.0]]; right: [[0.803, 0.175, 0.089]]
@wrong(
    "cached_attention",
    "A mask says all about who sees whom, so the triangle is only for the case without one; the first new word sees only what was kept",
    ("K-MASK-INSTEAD",),
    ("K-NOT-ITSELF",),
)
def _(query, key, value, cache=None, mask=None):
    n = 0 if cache is None else cache[0].shape[-2]
    if n > 0:
        key, value = torch.cat((cache[0], key), -2), torch.cat((cache[1], value), -2)
    q = query.shape[-2]
    rows = torch.arange(n, n + q).unsqueeze(1)
    cols = torch.arange(n + q).unsqueeze(0)
    causal = cols < rows
    allowed = causal if mask is None else mask
    out, _w = scaled_dot_product_attention(query, key, value, allowed)
    return out, (key, value)


# shows: grouped_query_attention(R(1, 1, 4, 1, 2), R(2, 1, 2, 2, 2), R(3, 1, 2, 2, 1)) -> ([[[[0.569]], [[-0.348]], [[0.436]], [[-0.4]]]], [[[[0.627, 0.373]], [[0.379, 0.621]], [[0.415, 0.585]], [[0.3…; right: ([[[[0.569]], [[0.56]], [[-0.265]], [[-0.4]]]], [[[[0.627, 0.373]], [[0.614, 0.386]], [[0.497, 0.503]], [[0.30…
@wrong(
    "grouped_query_attention",
    "Heads share in turn: head 0 takes the first keys, head 1 the second, head 2 the first again.",
    "G-ORDER",
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c, k = key.shape[1], key.shape[2]
    g = h // c
    grouped = rearrange(query, "b (g c) q d -> b c (g q) d", c=c)
    if mask is not None:
        mask = mask.expand(b, h, q, k)
        mask = rearrange(mask, "b (g c) q k -> b c (g q) k", c=c)
    out, weights = scaled_dot_product_attention(grouped, key, value, mask)
    out = rearrange(out, "b c (g q) v -> b (g c) q v", g=g)
    weights = rearrange(weights, "b c (g q) k -> b (g c) q k", g=g)
    return out, weights


# shows: copies_nothing(grouped_query_attention) -> False; right: True
# shows: grouped_query_attention(R(1, 1, 1, 1, 2), R(2, 1, 1, 2, 2), R(3, 1, 1, 2, 1), B([[[[False, False]]]])) -> ([[[[0.489]]]], [[[[0.5, 0.5]]]]); right: ([[[[0.0]]]], [[[[0.0, 0.0]]]])
@wrong(
    "grouped_query_attention",
    "The keys can be repeated for the heads, a view will do; a query that may see nothing gets whatever a softmax over -1e9 gives",
    ("G-EXPAND",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    key = key.repeat_interleave(h // c, dim=1)
    value = value.repeat_interleave(h // c, dim=1)
    scores = query @ key.transpose(-1, -2) / d**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


# shows: bytes_per_token('MHA', 1, 1, 1, 1) -> 1; right: 2
@wrong(
    "bytes_per_token",
    "Keys and values are the same size, so one of them is counted.",
    "K-KEYS-ONLY",
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
        per_layer = latent_width + rope_width
    elif scheme in heads:
        per_layer = heads[scheme] * head_width
    else:
        raise ValueError(f"unknown scheme {scheme}")
    return num_layers * per_layer * bytes_per_number


# shows: bytes_per_token('MLA', 1, 2, 3, 2, latent_width=5, rope_width=2) -> 24; right: 14
# shows: bytes_per_token('XYZ', 1, 1, 1, 1) -> 2; right: ValueError: XYZ
@wrong(
    "bytes_per_token",
    "The latent is kept once for keys and once for values; whatever else is given is plain multi-head attention",
    ("L-LATENT-TWICE",),
    ("K-ANY-NAME",),
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
    if scheme == "GQA":
        numbers = 2 * kv_heads * head_width
    elif scheme == "MQA":
        numbers = 2 * head_width
    elif scheme == "MLA":
        numbers = 2 * latent_width + rope_width
    else:
        numbers = 2 * num_heads * head_width
    return numbers * bytes_per_number * num_layers


# shows: lat_step(LatentAttention, [1, 1]) -> [[[1.85, 0.163, 2.8, -0.886], [-0.169, 0.289, 1.48, -0.595]]]; right: [[[1.85, 0.163, 2.8, -0.886], [-0.267, 0.539, -0.247, -1.44]]]
@wrong(
    "LatentAttention", "In step the new words are numbered from 0 for the rotation.", "P-ROPE-CACHE"
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.num_heads, self.head_width, self.rope_width = num_heads, head_width, rope_width
        self.q_proj = nn.Linear(model_width, num_heads * head_width, bias=False)
        self.q_rope = nn.Linear(model_width, num_heads * rope_width, bias=False)
        self.down = nn.Linear(model_width, latent_width, bias=False)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = nn.Linear(model_width, rope_width, bias=False)
        self.k_up = nn.Linear(latent_width, num_heads * head_width, bias=False)
        self.v_up = nn.Linear(latent_width, num_heads * head_width, bias=False)
        self.out_proj = nn.Linear(num_heads * head_width, model_width, bias=False)

    def forward(self, x):
        n = x.shape[1]
        places = torch.arange(n)
        z = self.norm(self.down(x))
        q = split_heads(self.q_proj(x), self.num_heads)
        qr = rotate(split_heads(self.q_rope(x), self.num_heads), places)
        k = split_heads(self.k_up(z), self.num_heads)
        v = split_heads(self.v_up(z), self.num_heads)
        kr = rotate(self.k_rope(x), places)[:, None].expand_as(qr)
        out, _ = scaled_dot_product_attention(
            torch.cat([q, qr], -1), torch.cat([k, kr], -1), v, causal_mask(n)
        )
        return self.out_proj(merge_heads(out))

    def step(self, x, cache=None):
        q_len = x.shape[1]
        past = 0 if cache is None else cache[0].shape[1]
        places = torch.arange(q_len)
        z = self.norm(self.down(x))
        kr = rotate(self.k_rope(x), places)
        if cache is not None:
            z = torch.cat([cache[0], z], dim=1)
            kr = torch.cat([cache[1], kr], dim=1)
        q = split_heads(self.q_proj(x), self.num_heads)
        qr = rotate(split_heads(self.q_rope(x), self.num_heads), places)
        up = self.k_up.weight.unflatten(0, (self.num_heads, self.head_width))
        absorbed = einsum(q, up, "b h q d, h d l -> b h q l")
        scores = einsum(absorbed, z, "b h q l, b k l -> b h q k") + einsum(
            qr, kr, "b h q r, b k r -> b h q k"
        )
        scores = scores / math.sqrt(self.head_width + self.rope_width)
        seen = torch.ones(q_len, past + q_len, dtype=torch.bool).tril(past)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        latent = einsum(weights, z, "b h q k, b k l -> b h q l")
        down = self.v_up.weight.unflatten(0, (self.num_heads, self.head_width))
        heads = einsum(latent, down, "b h q l, h d l -> b h q d")
        return self.out_proj(merge_heads(heads)), (z, kr)


# shows: lat_forward(LatentAttention, n=2) -> [[[0.595, 0.456, 0.455, -1.47], [-1.04, -1.04, 2.35, 3.59]]]; right: [[[1.85, 0.163, 2.8, -0.886], [-0.267, 0.539, -0.247, -1.44]]]
# shows: lat_forward(LatentAttention, n=1) -> [[[0.595, 0.456, 0.455, -1.47]]]; right: [[[1.85, 0.163, 2.8, -0.886]]]
@wrong(
    "LatentAttention",
    "Scores are divided by the root of the head's width, as always; the latent is used without its norm, which is only for the cache's sake",
    ("L-SCALE-D",),
    ("L-NO-NORM",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        m, h, d, l, r = model_width, num_heads, head_width, latent_width, rope_width
        lin = functools.partial(nn.Linear, bias=False)
        self.h, self.d, self.r = h, d, r
        self.q_proj, self.q_rope = lin(m, h * d), lin(m, h * r)
        self.down, self.norm, self.k_rope = lin(m, l), nn.RMSNorm(l, eps=1e-6), lin(m, r)
        self.k_up, self.v_up = lin(l, h * d), lin(l, h * d)
        self.out_proj = lin(h * d, m)

    def forward(self, x):
        return self.step(x, None)[0]

    def step(self, x, cache=None):
        b, q, _ = x.shape
        n = cache["z"].shape[1] if cache else 0
        pos = torch.arange(n, n + q)
        z = self.down(x)
        kr = rotate(self.k_rope(x), pos)
        if cache:
            z, kr = torch.cat([cache["z"], z], 1), torch.cat([cache["kr"], kr], 1)
        query = self.q_proj(x).view(b, q, self.h, self.d)
        turned = rotate(self.q_rope(x).view(b, q, self.h, self.r).transpose(1, 2), pos)
        wk = self.k_up.weight.view(self.h, self.d, -1)
        wv = self.v_up.weight.view(self.h, self.d, -1)
        asking = torch.einsum("bqhd,hdl->bhql", query, wk)
        scores = torch.einsum("bhql,bkl->bhqk", asking, z) + torch.einsum(
            "bhqr,bkr->bhqk", turned, kr
        )
        scores = scores / self.d**0.5
        future = torch.arange(n + q)[None] > pos[:, None]
        w = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = torch.einsum("bhqk,bkl->bhql", w, z)
        out = torch.einsum("bhql,hdl->bqhd", mixed, wv).reshape(b, q, -1)
        return self.out_proj(out), {"z": z, "kr": kr}


# ---------------------------------------------------------------- chapter 11


# shows: window_mask(1, 0, 0) -> [[False]]; right: [[True]]
@wrong(
    "window_mask",
    "A width of w means w places altogether, so fewer than w apart.",
    "W-WIDTH-STRICT",
)
def _(n, width, global_tokens=0):
    i = torch.arange(n)
    near = (i[:, None] - i[None, :]).abs() < width
    is_global = i < global_tokens
    return near | is_global[:, None] | is_global[None, :]


# shows: window_mask(3, 0, 1) -> [[True, False, False], [True, True, False], [True, False, True]]; right: [[True, True, True], [True, True, False], [True, False, True]]
# shows: window_mask(3, 1, 0) -> [[True, False, False], [True, True, False], [False, True, True]]; right: [[True, True, False], [True, True, True], [False, True, True]]
@wrong(
    "window_mask",
    "Global tokens are seen by all, that is columns; a word looks back only",
    ("W-GLOBAL-LOOKED-AT",),
    ("W-PAST-ONLY",),
)
def _(n, width, global_tokens=0):
    mask = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        lo = max(0, i - width)
        hi = i + 1
        mask[i, lo:hi] = True
    mask[:, :global_tokens] = True
    return mask


# shows: reach(B([[False, True], [False, False]]), 1) -> [[False, True], [False, False]]; right: [[True, True], [False, True]]
@wrong("reach", "After L layers it is the L-th power of the mask.", "R-FORGETS")
def _(mask, layers):
    step = mask.float()
    table = torch.linalg.matrix_power(step, layers)
    return table > 0


# shows: reach(B([[True, True], [False, True]]), 1) -> [[True, False], [False, True]]; right: [[True, True], [False, True]]
# shows: reach(B([[False, True], [False, False]]), 1) -> [[True, False], [False, True]]; right: [[True, True], [False, True]]
@wrong(
    "reach",
    "Knowledge moves from the row to the column, so the table is read transposed; the first layer is what the words know before, so one step fewer is made",
    ("R-OTHER-WAY",),
    ("R-ONE-LESS",),
)
def _(mask, layers):
    n = len(mask)
    known = torch.eye(n, dtype=torch.bool)
    for _ in range(layers - 1):
        new = known.clone()
        for i in range(n):
            for j in range(n):
                if mask[j, i]:
                    new[i] |= known[j]
        known = new
    return known


# shows: windowed_attention(R(1, 2, 3), R(2, 2, 3), R(3, 2, 2), 1) -> [[0.803, 0.175], [0.593, -0.0574]]; right: [[0.521, -0.137], [0.593, -0.0574]]
@wrong(
    "windowed_attention", "A query at i sees the slice from i - width to i + width.", "W-SLICE-END"
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    rows = []
    for i in range(n):
        start, stop = max(0, i - width), min(n, i + width)
        scores = query[..., i : i + 1, :] @ key[..., start:stop, :].mT / math.sqrt(d)
        rows.append(scores.softmax(-1) @ value[..., start:stop, :])
    return torch.cat(rows, dim=-2)


# shows: windowed_attention(R(1, 4, 3), R(2, 4, 3), R(3, 4, 2), 2) -> [[0.217, -0.203], [0.236, -0.217], [0.17, -0.19], [0.22, -0.103]]; right: [[0.321, -0.655], [0.377, -0.346], [0.207, -0.231], [0.155, -0.321]]
# shows: windowed_attention(R(1, 1, 3), R(2, 1, 3), R(3, 1, 2), 1) -> [[0.287, 0.0624]]; right: [[0.803, 0.175]]
@wrong(
    "windowed_attention",
    "Three neighboring blocks are the window, every query of the block may see all of them; the zeros beyond the ends take no harm",
    ("W-THREE-BLOCKS",),
    ("W-PADDING-SEEN",),
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    s = width
    c = math.ceil(n / s)
    fill = c * s - n
    q = F.pad(query, (0, 0, 0, fill)).unflatten(-2, (c, s))
    k = F.pad(key, (0, 0, s, s + fill)).unfold(-2, 3 * s, s)  # … c d 3s
    v = F.pad(value, (0, 0, s, s + fill)).unfold(-2, 3 * s, s).mT
    scores = q @ k / math.sqrt(d)
    at_q = torch.arange(c)[:, None, None] * s + torch.arange(s)[None, :, None]
    at_k = torch.arange(c)[:, None, None] * s + torch.arange(3 * s)[None, None] - s
    visible = torch.ones(c, s, 3 * s, dtype=torch.bool)
    scores = scores.masked_fill(~visible, -math.inf)
    return (scores.softmax(-1) @ v).flatten(-3, -2)[..., :n, :]


# shows: linear_attention(T([[-1.], [0.]]), T([[-1.], [0.]]), T([[1.], [3.]])) -> [[1.0], [2.31]]; right: [[1.0], [2.46]]
@wrong(
    "linear_attention",
    "The mask hides with minus infinity, then a softmax as always makes the shares.",
    "L-SOFTMAX",
)
def _(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    scores = q @ k.mT
    n = scores.shape[-1]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return weights @ value


# shows: linear_attention(T([[0.], [0.]]), T([[0.], [0.]]), T([[1.], [3.]])) -> [[0.5], [2.0]]; right: [[1.0], [2.0]]
# shows: linear_attention(T([[-1.], [0.]]), T([[-1.], [0.]]), T([[1.], [3.]])) -> [[0.5], [2.0]]; right: [[1.0], [2.46]]
@wrong(
    "linear_attention",
    "The divisor is the sum of all keys' features, since a state has no place for a mask; phi is relu plus one",
    ("L-TOTAL-OF-ALL",),
    ("L-RELU-PLUS-ONE",),
)
def _(query, key, value):
    q = F.relu(query) + 1
    k = F.relu(key) + 1
    kv = torch.einsum("...nd,...nv->...ndv", k, value).cumsum(dim=-3)
    z = k.sum(dim=-2, keepdim=True).expand_as(k)
    top = torch.einsum("...nd,...ndv->...nv", q, kv)
    bottom = (q * z).sum(-1, keepdim=True)
    return top / bottom


# shows: linear_step(None, T([0.]), T([0.]), T([3.])) -> ([nan], ([[3.0]], [1.0])); right: ([3.0], ([[3.0]], [1.0]))
@wrong(
    "linear_step",
    "The output is asked from the state before the new word goes in.",
    "L-READS-FIRST",
)
def _(state, query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    if state is None:
        state = torch.zeros_like(k[..., :, None] * value[..., None, :]), torch.zeros_like(k)
    s, z = state
    out = (q.unsqueeze(-2) @ s).squeeze(-2) / (q * z).sum(-1, keepdim=True)
    s, z = s + k.unsqueeze(-1) * value.unsqueeze(-2), z + k
    return out, (s, z)


# shows: linear_step(None, T([0.]), T([0.]), T([3.])) -> ([nan], ([[3.0]], [1.0])); right: ([3.0], ([[3.0]], [1.0]))
# shows: kept(linear_step, (R(4, 2, 3), R(5, 2).exp()), R(1, 2), R(2, 2), R(3, 3)) -> False; right: True
@wrong(
    "linear_step",
    "The features of the query need no phi, only keys are summed up; adding to the state in place saves memory",
    ("L-KEYS-ONLY",),
    ("C-KEPT-IN-PLACE",),
)
def _(state, query, key, value):
    k = F.elu(key) + 1
    q = query
    outer = k[..., :, None] * value[..., None, :]
    if state is None:
        table, total = outer, k
    else:
        table, total = state
        table += outer
        total += k
    numerator = torch.einsum("...d,...dv->...v", q, table)
    denominator = torch.einsum("...d,...d->...", q, total)
    return numerator / denominator[..., None], (table, total)


# shows: ring_attention([T([[1.]]), T([[2.]])], [T([[0.]]), T([[1.]])], [T([[3.]]), T([[5.]])]) -> [[[4.0]], [[4.0]]]; right: [[[4.46]], [[4.76]]]
@wrong(
    "ring_attention",
    "Each shard's output has the same weight, so the mean over the ring is the answer.",
    "R-MEAN",
)
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    outputs = []
    for i in range(p):
        q = query_shards[i]
        parts = []
        for step in range(p):
            j = (i - step) % p
            scores = q @ key_shards[j].mT / math.sqrt(q.shape[-1])
            parts.append(scores.softmax(-1) @ value_shards[j])
        outputs.append(torch.stack(parts).mean(0))
    return outputs


# shows: ring_attention([T([[1.]]), T([[2.]])], [T([[0.]]), T([[1.]])], [T([[3.]]), T([[5.]])]) -> [[[3.0]], [[4.76]]]; right: [[[4.46]], [[4.76]]]
# shows: ring_attention([R(1, 2, 2)*40, R(2, 1, 2)*40], [R(3, 2, 2)*400, R(4, 1, 2)*400], [R(5, 2, 1), R(6, 1, 1)]) -> [[[nan], [nan]], [[nan]]]; right: [[[-0.487], [-0.487]], [[-0.487]]]
@wrong(
    "ring_attention",
    "A process meets the shards up to its own, later ones are the future; the sums of exponentials can be kept as they are, a logarithm is only for display",
    ("R-CAUSAL",),
    ("R-OVERFLOW",),
)
def _(query_shards, key_shards, value_shards):
    results = []
    for i, q in enumerate(query_shards):
        top = bottom = 0.0
        for j in range(i + 1):
            scores = q @ key_shards[j].mT / math.sqrt(q.shape[-1])
            e = scores.exp()
            top = top + e @ value_shards[j]
            bottom = bottom + e.sum(-1, keepdim=True)
        results.append(top / bottom)
    return results


# shows: span_mask(T([0., 1., 2., 3.]), T(1.), 2.0) -> [0.5, 0.0, 0.0, 0.0]; right: [1.0, 1.0, 0.5, 0.0]
@wrong(
    "span_mask",
    "The soft edge lies before the span: the mask is 0 from the span on.",
    "A-RAMP-INSIDE",
)
def _(distance, span, ramp):
    x = (span - distance) / ramp
    return torch.clamp(x, 0, 1)


# shows: span_mask(T([0., 1., 2., 3.]), T(-1.), 2.0) -> [1.0, 0.5, 0.0, 0.0]; right: [0.5, 0.0, 0.0, 0.0]
# shows: spangrad(span_mask, 1.0) -> RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn; right: 1.2
@wrong(
    "span_mask",
    "A span is a length, so below 0 it counts as 0; its number can be taken out for the comparison",
    ("A-SPAN-NOT-BELOW-0",),
    ("A-DETACHED",),
)
def _(distance, span, ramp):
    reach = span.clamp(min=0)
    reach = reach.detach()
    line = 1 - (distance - reach) / ramp
    return line.clamp(min=0.0, max=1.0)


# ---------------------------------------------------------------- chapter 12


# shows: abl_state(ablated, what='scores') -> False; right: True
@wrong("ablated", "A shallow copy is enough, since no weights are changed.", "I-NO-COPY")
def _(model, layer, head, value):
    other = copy.copy(model)
    attention = other.get_submodule(layer)

    def hook(module, args):
        heads = split_heads(args[0], attention.num_heads).clone()
        heads[:, head] = value
        return merge_heads(heads)

    attention.out_proj.register_forward_pre_hook(hook)
    return other


# shows: abl(ablated, 'layers.0.attention', 0, 0.0) -> (2, 4, 6) [[[-4.77, -4.15, -5.23, -13.0, -2.65, -7.75], [-2.27, 1.19, -7.53, -13.3, -6.07, -7.23], [-3.43, 2.9…; right: (2, 4, 6) [[[-6.93, -4.6, -7.21, -12.9, -0.0541, -6.4], [-2.86, 4.02, -10.9, -13.3, -5.51, -5.91], [-3.9, 2.44…
# shows: abl_state(ablated, True, what='training') -> False; right: True
@wrong(
    "ablated",
    "Features of a head lie at head, head + h, head + 2h; the model is only listened to, so it goes to eval mode",
    ("I-INTERLEAVED",),
    ("I-OTHER-MODE",),
)
def _(model, layer, head, value):
    new = copy.deepcopy(model)
    new.eval()
    model.eval()
    att = new.get_submodule(layer)

    def replace(module, inputs):
        x = inputs[0]
        x = rearrange(x, "b n (d h) -> b h n d", h=att.num_heads).clone()
        x[:, head] = value
        return rearrange(x, "b h n d -> b n (d h)")

    att.out_proj.register_forward_pre_hook(replace)
    return new


# shows: induction_score(T([[1., 0.], [.25, .75]]), 1) -> 0.25; right: 0.75
@wrong(
    "induction_score",
    "The head looks at the same word's last occurrence, i - period.",
    "I-SAME-WORD",
)
def _(weights, period):
    n = weights.shape[-1]
    i = torch.arange(period, n)
    return weights[..., i, i - period].mean(-1)


# shows: induction_score(W(1, 7, 7), 3) -> 0.14; right: 0.163
# shows: induction_score(W(1, 2, 6, 6), 2) -> 0.159; right: [0.124, 0.194]
@wrong(
    "induction_score",
    "The text is its block twice, so only the second block is looked at; one score comes out, the mean over all tables",
    ("I-FIRST-REPETITION",),
    ("I-HEADS-AVERAGED",),
)
def _(weights, period):
    n = weights.shape[-1]
    total = 0
    count = 0
    for i in range(period, min(n, 2 * period)):
        total = total + weights[..., i, i - period + 1]
        count += 1
    return (total / count).mean()


# shows: copying_score(T([[0., 2.], [1., 0.]]), T([[1., 0.], [0., 1.], [1., 1.]]), T([[1., 2., 0.], [0., 1., 1.]])) -> 7.85e-17; right: 1
@wrong(
    "copying_score",
    "The eigenvalues are those of W_OV alone, since W_E and W_U only translate.",
    "I-OV-ALONE",
)
def _(W_OV, W_E, W_U):
    values = torch.linalg.eigvals(W_OV)
    return (values.real.sum() / values.abs().sum()).item()


# shows: copying_score(T([[0., -1.], [1., 0.]]), torch.eye(2).double(), torch.eye(2).double()) -> nan; right: 0
# shows: copying_score(T([[1., 0.], [0., 1.]]), T([[1., 0.], [0., 1.]]), T([[1., 0.], [0., 1.]])) -> 1.0; right: 1
@wrong(
    "copying_score",
    "Sum of the real parts over the sum of their absolute values; a tensor of shape () is as good as a float",
    ("I-IMAGINARY-DROPPED",),
    ("I-TENSOR",),
)
def _(W_OV, W_E, W_U):
    table = W_E @ W_OV @ W_U
    eig = torch.linalg.eig(table).eigenvalues
    size = eig.real.abs().sum()
    score = eig.real.sum() / size
    return score


# shows: rollout([W(1, 1, 1, 2, 2), W(2, 1, 1, 2, 2)]) -> [[[0.73, 0.27], [0.44, 0.56]]]; right: [[[0.691, 0.309], [0.4, 0.6]]]
@wrong("rollout", "The product goes in the order of the layers from left to right.", "I-ORDER")
def _(weights):
    n = weights[0].shape[-1]
    eye = torch.eye(n, dtype=weights[0].dtype)
    result = eye
    for layer in weights:
        a = 0.5 * (layer.mean(dim=1) + eye)
        result = result @ a
    return result


# shows: rollout([W(1, 1, 2, 2, 2)]) -> [[[1.6, 0.571], [0.364, 1.87]]]; right: [[[0.757, 0.243], [0.123, 0.877]]]
# shows: rollout([W(1, 1, 1, 2, 2)]) -> [[[1.6, 0.403], [0.364, 1.64]]]; right: [[[0.799, 0.201], [0.182, 0.818]]]
@wrong(
    "rollout",
    "Of several heads the strongest counts; the identity is added and that is the residual",
    ("I-HEADS-MAX",),
    ("I-NOT-HALVED",),
)
def _(weights):
    mats = []
    for w in weights:
        heads = w.amax(dim=1)
        a = heads + torch.eye(w.shape[-1], dtype=w.dtype)
        mats.append(a)
    return functools.reduce(lambda below, above: above @ below, mats)


# shows: patched(small(), text(2), text(3), ('layers.0.attention', 0, 0)) -> (2, 4, 6) [[[-2.22, 8.15, -5.87, 0.763, -3.19, 5.11], [6.85, 2.4, 7.36, 3.31, -8.28, 1.58], [-1.76, 1.64, 3.81…; right: (2, 4, 6) [[[-2.22, 8.15, -5.87, 0.763, -3.19, 5.11], [3.17, -1.75, 6.86, 2.28, -3.79, -0.973], [-6.64, -1.68,…
@wrong("patched", "The head's whole output goes in from the clean run.", "I-ALL-PLACES")
def _(model, clean, corrupted, place):
    layer, head, position = place
    attention = model.get_submodule(layer)
    h = attention.num_heads
    store = {}

    def listen(module, inputs):
        store["heads"] = split_heads(inputs[0], h).clone()

    def patch(module, inputs):
        heads = split_heads(inputs[0], h).clone()
        heads[:, head] = store["heads"][:, head]
        return merge_heads(heads)

    handle = attention.out_proj.register_forward_pre_hook(listen)
    model(clean)
    handle.remove()
    handle = attention.out_proj.register_forward_pre_hook(patch)
    scores = model(corrupted)
    handle.remove()
    return scores


# shows: patched(small(), text(2), text(3), ('layers.0.attention', 0, 0)) -> (2, 4, 6) [[[-2.54, -1.87, -5.01, -8.48, -1.26, -2.15], [1.03, 0.55, -2.64, -5.35, -3.17, 0.626], [2.75, 7.57,…; right: (2, 4, 6) [[[-2.22, 8.15, -5.87, 0.763, -3.19, 5.11], [3.17, -1.75, 6.86, 2.28, -3.79, -0.973], [-6.64, -1.68,…
# shows: pat_state(patched) -> False; right: True
@wrong(
    "patched",
    "The base is the clean text and the place comes from the corrupted one; hooks go away by themselves with the function",
    ("I-DIRECTION",),
    ("I-NO-COPY",),
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    clean, corrupted = corrupted, clean
    att = model.get_submodule(layer)
    d = att.out_proj.in_features // att.num_heads
    cols = slice(head * d, head * d + d)
    heard = []
    first = att.out_proj.register_forward_pre_hook(
        lambda m, args: heard.append(args[0].detach().clone())
    )
    model(clean)
    first.remove()

    def put(module, args):
        x = args[0].clone()
        x[:, position, cols] = heard[0][:, position, cols]
        return (x,)

    second = att.out_proj.register_forward_pre_hook(put)
    out = model(corrupted)
    return out


# ---------------------------------------------------------------- chapter 13


# shows: patches(im(1, 2, 2, 2), (2, 2)) -> [[[1.0, 5.0, 2.0, 6.0, 3.0, 7.0, 4.0, 8.0]]]; right: [[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]]
@wrong(
    "patches", "Within a patch, each pixel writes its colors side by side.", "C-PATCH-COLOR-LAST"
)
def _(image, size):
    height, width = size
    return rearrange(image, "b c (i y) (j x) -> b (i j) (y x c)", y=height, x=width)


# shows: patches(im(1, 1, 2, 6), (1, 3)) -> [[[1.0, 7.0], [2.0, 8.0], [3.0, 9.0], [4.0, 10.0], [5.0, 11.0], [6.0, 12.0]]]; right: [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]]
# shows: patches(im(1, 1, 4, 4), (2, 2)) -> [[[1.0, 2.0, 5.0, 6.0], [9.0, 10.0, 13.0, 14.0], [3.0, 4.0, 7.0, 8.0], [11.0, 12.0, 15.0, 16.0]]]; right: [[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0], [9.0, 10.0, 13.0, 14.0], [11.0, 12.0, 15.0, 16.0]]]
@wrong(
    "patches",
    "size is width times height, as pictures are usually given; patches are read down the columns first",
    ("C-PATCH-SIZE-TURNED",),
    ("C-PATCH-DOWN-FIRST",),
)
def _(image, size):
    w, h = size
    b, c, Y, X = image.shape
    rows = []
    for x in range(0, X, w):
        for y in range(0, Y, h):
            rows.append(image[:, :, y : y + h, x : x + w].reshape(b, -1))
    return torch.stack(rows, dim=1)


# shows: positions_2d(2, 2, 4) -> [[0.0, 1.0, 0.0, 1.0], [0.841, 0.54, 0.0, 1.0], [0.0, 1.0, 0.841, 0.54], [0.841, 0.54, 0.841, 0.54]]; right: [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.841, 0.54], [0.841, 0.54, 0.0, 1.0], [0.841, 0.54, 0.841, 0.54]]
@wrong(
    "positions_2d",
    "The columns change slowly and the rows fast: the first half repeats, the second is interleaved.",
    "C-2D-DOWN-FIRST",
)
def _(rows, columns, width):
    def sinusoids(length, m):
        table = torch.zeros(length, m)
        for f in range(m):
            angle = torch.arange(length) * 10000.0 ** (-(f - f % 2) / m)
            table[:, f] = angle.cos() if f % 2 else angle.sin()
        return table

    row = sinusoids(rows, width // 2)
    col = sinusoids(columns, width // 2)
    first = row.repeat(columns, 1)
    second = col.repeat_interleave(rows, dim=0)
    return torch.cat([first, second], dim=1)


# shows: positions_2d(3, 2, 8) -> (6, 8) [[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0, 0.841, 0.0998, 0.54, 0.995], [0.841, 0.…; right: (6, 8) [[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0, 0.841, 0.54, 0.01, 1.0], [0.841, 0.54, …
# shows: positions_2d(2, 2, 6) -> (4, 6) [[0.0, 0.0, 1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.841, 0.0464, 0.54], [0.841, 0.0464, 0.54, 0.0, 0.0, …; right: (4, 6) [[0.0, 1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.841, 0.54, 0.00215], [0.841, 0.54, 0.00215, 0.0, 1.0…
@wrong(
    "positions_2d",
    "The speeds are those of the whole width; sines fill the first part of a half and cosines the rest",
    ("C-2D-SPEEDS-OF-ALL",),
    ("C-2D-SINES-FIRST",),
)
def _(rows, columns, width):
    half = width // 2

    def waves(places):
        f = torch.arange(half)
        speed = 10000.0 ** (-(f - f % 2) / width)
        angle = places[:, None].float() * speed
        sines, cosines = angle[:, 0::2].sin(), angle[:, 1::2].cos()
        table = torch.cat([sines, cosines], dim=1)
        return table

    place = torch.arange(rows * columns)
    return torch.cat([waves(place // columns), waves(place % columns)], dim=1)


# shows: encodes(read) -> 12; right: 1
@wrong(
    "read",
    "The picture is encoded for every word, as the decoder asks it again.",
    "C-READ-LOOKS-AGAIN",
)
def _(model, image, bos=1, eos=2, max_length=12):
    b = image.shape[0]
    words = torch.full((b, 1), bos, dtype=torch.long)
    finished = torch.zeros(b, dtype=torch.bool)
    for _ in range(max_length):
        memory, mask = model.encode(image)
        logits = model.decode(words, memory, mask)
        word = logits[:, -1].argmax(dim=-1)
        word = torch.where(finished, eos, word)
        finished = finished | (word == eos)
        words = torch.cat([words, word[:, None]], dim=1)
        if finished.all():
            break
    return words[:, 1:]


# shows: read(Eye(1), pics(0, 1)) -> [[1, 2], [1, 0]]; right: [[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2], [0, 3, 3, 4, 4, 4, 4, 0, 3, 4, 4, 4]]
# shows: read(Eye(0), pics(0), max_length=1) -> [[1, 0]]; right: [[0]]
@wrong(
    "read",
    "Reading stops when the first row has ended; bos is the first word of the result",
    ("C-READ-ONE-ENDS-ALL",),
    ("C-READ-KEEPS-BOS",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    words = torch.full((len(image), 1), bos)
    done = torch.zeros(len(image), dtype=torch.bool)
    while words.shape[1] <= max_length and not done.any():
        scores = model.decode(words, memory, memory_mask)
        nxt = scores[:, -1, :].argmax(-1)
        nxt[done] = eos
        done |= nxt == eos
        words = torch.cat((words, nxt.unsqueeze(1)), dim=1)
    return words


# shows: gate_grad(gated_cross_attention, 0.) -> RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn; right: 0.662
@wrong(
    "gated_cross_attention",
    "With a closed gate there is nothing to add, so the text can be returned at once.",
    "C-GATE-IF-CLOSED",
)
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    if gate.item() == 0:
        return text, weights
    return text + torch.tanh(gate) * found, weights


# shows: gated_cross_attention(R(1, 1, 1, 2), R(2, 1, 2, 2), attn_fn, T(0.)) -> ([[[1.32, 0.534]]], [[[1.0], [1.0]]]); right: ([[[0.661, 0.267]]], [[[0.627, 0.373]]])
# shows: gated_cross_attention(R(1, 1, 1, 2), R(2, 1, 2, 2), attn_fn, T(0.5)) -> ([[[1.48, 0.599]]], [[[1.0], [1.0]]]); right: ([[[0.778, -0.278]]], [[[0.627, 0.373]]])
@wrong(
    "gated_cross_attention",
    "A gate is a sigmoid between 0 and 1; the picture asks and the text answers",
    ("C-GATE-SIGMOID",),
    ("X-REVERSED",),
)
def _(text, memory, attention, gate, memory_mask=None):
    opened = torch.sigmoid(gate)
    found, weights = attention(memory, text, text, memory_mask)
    return text + opened * found[:, : text.shape[1]], weights


# shows: contrastive_loss(torch.eye(2).double(), T([[1., 0.], [1., 1.]]), 1.0) -> 0.479; right: 0.491
@wrong(
    "contrastive_loss",
    "One cross-entropy over the rows is enough: a pair is a pair.",
    "C-PAIRS-PICTURES-ONLY",
)
def _(images, texts, temperature):
    images = F.normalize(images, dim=-1)
    texts = F.normalize(texts, dim=-1)
    logits = images @ texts.T / temperature
    labels = torch.arange(len(logits))
    return F.cross_entropy(logits, labels)


# shows: contrastive_loss(T([[1., 0.]]), T([[0., 1.]]), 1.0) -> nan; right: 0.0
# shows: contrastive_loss(torch.eye(2).double(), torch.eye(2).double(), 1.0) -> 0.627; right: 0.313
@wrong(
    "contrastive_loss",
    "Vectors are normalized over the batch; both losses add up to the whole",
    ("C-PAIRS-NORM-OF-COLUMNS",),
    ("C-PAIRS-SUM",),
)
def _(images, texts, temperature):
    a = images / images.norm(dim=0, keepdim=True)
    b = texts / texts.norm(dim=0, keepdim=True)
    scores = einsum(a, b, "i m, j m -> i j") / temperature
    rows = -scores.log_softmax(1).diagonal().mean()
    cols = -scores.log_softmax(0).diagonal().mean()
    return rows + cols


# ---------------------------------------------------------------- chapter 14


# shows: verdict(test_attention, 'test_attention', 'bad', 'output_mean') -> accepts; right: refuses
@wrong(
    "test_attention",
    "If the weights of the blind query are zero, its output is zero as well.",
    "T-WEIGHTS-ONLY",
)
def _(attention):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    output, weights = attention(query, key, value, mask)
    assert (weights[:, 1] == 0).all(), "a blind query has weights"


# shows: verdict(test_attention, 'test_attention', 'bad', 'weights_even') -> accepts; right: refuses
# shows: verdict(test_attention, 'test_attention', 'bad', 'zero_if_all_dead') -> accepts; right: refuses
@wrong(
    "test_attention",
    "The output shows it all: if it is zero, the weights were zero; a query sees nothing if the mask is False everywhere",
    ("T-OUTPUT-ONLY",),
    ("T-ALL-HIDDEN",),
)
def _(attention):
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(4, 6, 8, generator=g) for _ in range(3))
    mask = torch.zeros(6, 6, dtype=torch.bool)
    blind = ~mask.any(-1)
    out, w = attention(q, k, v, mask)
    assert not out.isnan().any()
    assert (out[:, blind] == 0).all(), "a blind query has an output"


# shows: mended_attention(T([[1.]]), T([[1.]]), T([[2.]]), B([[False]])) -> ([[2.0]], [[0.0]]); right: ([[0.0]], [[0.0]])
@wrong(
    "mended_attention",
    "The weights that are handed out must be zero, so they are set to zero at the end.",
    "M-DEAD-ROW-WEIGHTS",
)
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = F.softmax(scores, dim=-1)
    output = weights @ value
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return output, weights


# shows: mended_attention(R(1, 2, 4), R(2, 3, 4), R(3, 3, 2), B([[True, False, True], [False, False, False]])) -> ([[0.362, -0.724], [0.313, -0.602]], [[0.417, 0.0, 0.583], [0.333, 0.333, 0.333]]); right: ([[0.371, -0.707], [0.0, 0.0]], [[0.428, 0.0, 0.572], [0.0, 0.0, 0.0]])
# shows: mended_attention(R(1, 2, 4), R(2, 3, 4), R(3, 3, 2)) -> ([[0.228, -0.67], [0.424, -0.409]], [[0.212, 0.493, 0.296], [0.483, 0.284, 0.233]]); right: ([[0.238, -0.663], [0.408, -0.435]], [[0.227, 0.471, 0.302], [0.462, 0.292, 0.246]])
@wrong(
    "mended_attention",
    "A dead row is one that is hidden in every head and text; scores are divided by the number of keys",
    ("M-DEAD-ROW-WHOLE-MASK",),
    ("D-SCALE-KEYS",),
)
def _(query, key, value, mask=None):
    scores = query @ key.mT / math.sqrt(key.shape[-2])
    if mask is None:
        weights = scores.softmax(-1)
        return weights @ value, weights
    mask = mask.expand(scores.shape)
    weights = scores.masked_fill(~mask, -1e9).softmax(-1)
    if not mask.any():
        weights = torch.zeros_like(scores)
    return weights @ value, weights


# shows: verdict(test_positions, 'test_positions', 'bad', 'zero_last') -> accepts; right: refuses
@wrong(
    "test_positions",
    "Odd widths end with an error, so calling the function is the test.",
    "T-SHAPES",
)
def _(positions):
    for width in (1, 3, 5, 7):
        table = positions(6, width)
        assert table.shape == (6, width)


# shows: verdict(test_positions, 'test_positions', 'bad', 'even_speeds') -> accepts; right: refuses
# shows: verdict(test_positions, 'test_positions', 'bad', 'column_more') -> accepts; right: refuses
@wrong(
    "test_positions",
    "It is the last column that goes wrong, so only that one is compared; its place is width - 1, so a shape need not be asked for",
    ("T-LAST-ALONE",),
    ("T-NAMED-FEATURES",),
)
def _(positions):
    for width in (3, 5, 9):
        table = positions(8, width)
        p = torch.arange(8).float()
        for f in [width - 1]:
            angle = p / 10000 ** ((f - f % 2) / width)
            want = angle.cos() if f % 2 else angle.sin()
            assert torch.allclose(table[:, f], want, atol=1e-3), f"feature {f} of {width}"


# shows: mended_positions(2, 3) -> [[0.0, 1.0, 0.0], [0.841, 0.54, 0.01]]; right: [[0.0, 1.0, 0.0], [0.841, 0.54, 0.00215]]
@wrong(
    "mended_positions",
    "With an odd width one more column is computed and the last one cut off.",
    "C-ODD-ROUNDED-UP",
)
def _(length, width):
    even = width + width % 2
    table = torch.zeros(length, even)
    position = torch.arange(length).unsqueeze(1)
    factor = torch.exp(torch.arange(0, even, 2) * (-math.log(10000.0) / even))
    table[:, 0::2] = torch.sin(position * factor)
    table[:, 1::2] = torch.cos(position * factor)
    return table[:, :width]


# shows: mended_positions(2, 1) -> [[0.0], [0.0]]; right: [[0.0], [0.841]]
# shows: mended_positions(2, 3) -> [[0.841, 0.54, 0.0], [0.909, -0.416, 0.0]]; right: [[0.0, 1.0, 0.0], [0.841, 0.54, 0.00215]]
@wrong(
    "mended_positions",
    "Positions count from 1; the last sine is the one that has no partner, so it is left out",
    ("C-FROM-ONE",),
    ("C-ODD-SILENT",),
)
def _(length, width):
    table = torch.zeros(length, width)
    position = torch.arange(1, length + 1).unsqueeze(1)
    half = width // 2
    factor = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table[:, 0 : 2 * half : 2] = torch.sin(position * factor[:half])
    table[:, 1::2] = torch.cos(position * factor[:half])
    return table


# shows: verdict(test_nucleus, 'test_nucleus', 'bad', 'wild_first_stays') -> accepts; right: refuses
@wrong(
    "test_nucleus",
    "One word with a great share is the case: with top_p below it, this word must stay.",
    "T-ONE-IS-LEFT",
)
def _(nucleus):
    logits = torch.tensor([[0.6, 0.25, 0.1, 0.05]]).log()
    result = nucleus(logits, 0.5)
    assert torch.isfinite(result).sum() == 1
    assert result[0, 0] == logits[0, 0]


# shows: verdict(test_nucleus, 'test_nucleus', 'bad', 'one_more') -> accepts; right: refuses
# shows: verdict(test_nucleus, 'test_nucleus', 'bad', 'wild_first_stays') -> accepts; right: refuses
@wrong(
    "test_nucleus",
    "The words that stay must together have at least top_p, that is all; the dangerous case is one word that has more than top_p alone",
    (),
    ("T-ONE-IS-LEFT",),
)
def _(nucleus):
    shares = torch.tensor([[0.1, 0.5, 0.06, 0.3, 0.04]])
    for top_p in (0.2, 0.4):
        result = nucleus(shares.log(), top_p)
        stays = result > -torch.inf
        assert shares[stays].sum() >= top_p, "too few words"


# shows: mended_nucleus(T([[.1, .5, .06, .3, .04]]).log(), .6) -> [[-2.3, -0.693, -inf, -inf, -inf]]; right: [[-inf, -0.693, -inf, -1.2, -inf]]
@wrong(
    "mended_nucleus",
    "The words are in order after sorting, so the mask fits the logits.",
    "P-TOP-P-NOT-PUT-BACK",
)
def _(logits, top_p):
    likely, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    out = likely.cumsum(dim=-1) - likely >= top_p
    return logits.masked_fill(out, -torch.inf)


# shows: mended_nucleus(T([[.5, .3, .15, .05]]).log(), .6) -> [[0.0, -inf, -inf, -inf]]; right: [[-0.693, -1.2, -inf, -inf]]
# shows: mended_nucleus(T([[.7, .3]]).log(), .5) -> [[0.0, -inf]]; right: [[-0.357, -inf]]
@wrong(
    "mended_nucleus",
    "It is mended if the likeliest word always stays; what stays is shared out anew, so its probabilities sum to 1",
    ("P-TOP-P-WITHOUT-THE-LAST",),
    ("P-TOP-P-LOG-SHARES",),
)
def _(logits, top_p):
    probs = torch.softmax(logits, dim=-1)
    likely, order = probs.sort(dim=-1, descending=True)
    out = likely.cumsum(dim=-1) > top_p
    out[:, 0] = False
    out = torch.zeros_like(out).scatter(-1, order, out)
    kept = logits.masked_fill(out, -torch.inf)
    return kept.log_softmax(dim=-1)


# ---------------------------------------------------------------- right answers


@right("relative_scores")
def _(query, key, table):
    q, k = query.shape[-2], key.shape[-2]
    c = len(table) // 2
    rows = []
    for i in range(q):
        place = i + k - q
        which = torch.tensor([min(max(j - place, -c), c) + c for j in range(k)])
        shifted = key + table[which]
        rows.append((shifted * query[..., i, None, :]).sum(-1))
    return torch.stack(rows, dim=-2) * query.shape[-1] ** -0.5


@right("rotate")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    theta = torch.outer(positions.double(), base ** -(torch.arange(0, d, 2).double() / d))
    turn = (
        torch.stack([theta.cos(), -theta.sin(), theta.sin(), theta.cos()], -1)
        .unflatten(-1, (2, 2))
        .to(x.dtype)
    )
    pairs = rearrange(x, "... n (i two) -> ... n i two", two=2)
    return einsum(turn, pairs, "n i out two, ... n i two -> ... n i out").flatten(-2)


@right("shift_relative")
def _(scores):
    q, r = scores.shape[-2:]
    k = r - q + 1
    return torch.stack([scores[..., i, q - 1 - i :][..., :k] for i in range(q)], dim=-2)


@right("alibi_bias")
def _(num_heads, query_length, key_length):
    def of(h):
        return np.exp2(-8.0 * np.arange(1, h + 1) / h)

    p = 1 << (num_heads.bit_length() - 1)
    slopes = np.concatenate([of(p), of(2 * p)[::2][: num_heads - p]])
    i = np.arange(query_length)[:, None] + key_length - query_length
    distance = np.abs(np.arange(key_length)[None] - i)
    return torch.from_numpy((-slopes[:, None, None] * distance).astype(np.float32))


@right("grouped_query_attention")
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    split = query.view(b, c, h // c, q, d)
    scores = torch.einsum("bcgqd,bckd->bcgqk", split / math.sqrt(d), key).flatten(1, 2)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    out = torch.einsum("bcgqk,bckv->bcgqv", weights.unflatten(1, (c, h // c)), value)
    return out.flatten(1, 2), weights


@right("reach")
def _(mask, layers):
    n = mask.shape[0]
    sees = [set(np.flatnonzero(row)) for row in mask.numpy()]
    table = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        frontier = {i}
        for _ in range(layers):
            grown = frontier.union(*(sees[j] for j in frontier))
            if grown == frontier:
                break
            frontier = grown
        table[i, list(frontier)] = True
    return table


@right("linear_attention")
def _(query, key, value):
    q, k = (
        torch.where(query > 0, query + 1, query.clamp(max=0).exp()),
        torch.where(key > 0, key + 1, key.clamp(max=0).exp()),
    )
    outputs, table, total = [], 0, 0
    for i in range(query.shape[-2]):
        table = table + k[..., i, :, None] * value[..., i, None, :]
        total = total + k[..., i, :]
        outputs.append(
            (q[..., i, None, :] @ table).squeeze(-2) / (q[..., i, :] * total).sum(-1, keepdim=True)
        )
    return torch.stack(outputs, -2)


@right("copying_score")
def _(W_OV, W_E, W_U):
    lam = np.linalg.eigvals((W_OV @ W_U @ W_E).detach().numpy())
    return float(np.real(lam).sum() / np.abs(lam).sum())


@right("contrastive_loss")
def _(images, texts, temperature):
    cosine = F.cosine_similarity(images[:, None], texts[None], dim=-1) / temperature
    own = cosine.diagonal()
    return (cosine.logsumexp(0) + cosine.logsumexp(1) - 2 * own).mean() / 2


@right("mended_nucleus")
def _(logits, top_p):
    p = logits.softmax(-1)
    # probability of all words that are likelier than this one
    likelier = (p[:, None, :] > p[:, :, None]).to(p.dtype) @ p[:, :, None]
    return torch.where(likelier.squeeze(-1) < top_p, logits, -torch.inf)
