"""Answers to chapters 8–14 by a writer who had the notebooks alone, half with two mistakes.

What the judge said before anything was mended by these is in tests/bench/answers.md. Which names are
fair was said by somebody else, with the judge's in view.
"""
# ruff: noqa: B007, B905, E501, E731, E741, RUF005, RUF059, SIM102, SIM113

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
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right

# How to read the "shows" lines: f is the answer below, "right" is what a right answer gives there
# (R[task]). Names of the small script that printed them: rn(*sizes) random float64 numbers; G() a
# generator; toy(words, states, seed) a random `step`; freq(f, logits, …) shares of the ids in 4,000
# draws; moved and peak are lab.count's moved bytes and peak bytes; latent_same(class, sizes) a layer
# with the same parameters for every class; model() two layers of three heads, TX a text for it,
# hooks(m) how many hooks are on it; Reader(seed, b) a stand-in for `read` which counts `encode` in n,
# img(b) pictures for it; att a plain attention; same compares with a tolerance; says(test, one) what
# a test says about an implementation, which is named for what it does.


# ------------------------------------------------------------------ 8: positions


# shows: f(torch.ones(1, 1), torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [3.0]]))
#   gives [[2.0, 3.0, 3.0]]
#   right [[1.0, 1.0, 2.0]]
@wrong(
    "relative_scores",
    "Query i stands at place i, so the offset is just the column number minus the row number.",
    "P-TOPLEFT",
)
def _(query, key, table):
    d = query.shape[-1]
    clip = table.shape[0] // 2
    rows = torch.arange(query.shape[-2]).unsqueeze(1)
    cols = torch.arange(key.shape[-2]).unsqueeze(0)
    index = torch.clamp(cols - rows, -clip, clip) + clip
    keys_with_place = key.unsqueeze(-3) + table[index]  # … q k d
    return (query.unsqueeze(-2) * keys_with_place).sum(-1) / math.sqrt(d)


# shows: f(torch.ones(2, 4), torch.zeros(2, 4), torch.arange(3.0)[:, None].expand(3, 4))
#   gives [[4.0, 0.0], [8.0, 4.0]]
#   right [[2.0, 4.0], [0.0, 2.0]]
@wrong(
    "relative_scores",
    "The offset is how far the key lies behind the query, query place minus key place; only q·k has to be divided by √d, the table is learned at its own size.",
    ("C-SHAW-OTHER-WAY",),
    ("C-SHAW-SCALED-HALF",),
)
def _(query, key, table):
    q, k, d = query.shape[-2], key.shape[-2], query.shape[-1]
    c = (len(table) - 1) // 2
    i = torch.arange(k - q, k)
    j = torch.arange(k)
    offset = (i[:, None] - j[None, :]).clamp(-c, c)
    content = query @ key.transpose(-1, -2) / d**0.5
    place = einsum(query, table[offset + c], "... q d, q k d -> ... q k")
    return content + place


# shows: f(torch.ones(3, 1), torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [3.0]]))
#   gives [[1.155, 1.732, 0.0], [0.577, 1.155, 1.732], [0.0, 0.577, 1.155]]
#   right [[2.0, 3.0, 3.0], [1.0, 2.0, 3.0], [1.0, 1.0, 2.0]]
@wrong(
    "relative_scores",
    "Keys farther away than the table reaches have no row and get nothing added; the divisor is the root of how many keys there are.",
    ("C-SHAW-FAR-NOTHING",),
    ("D-SCALE-KEYS",),
)
def _(query, key, table):
    num_q, num_k = query.size(-2), key.size(-2)
    c = table.size(0) // 2
    offsets = torch.arange(num_k) - torch.arange(num_q)[:, None] - (num_k - num_q)
    rows = offsets.clamp(-c, c) + c
    added = table[rows]
    near = offsets.abs() <= c
    added = added * near[..., None]
    scores = query @ key.mT + (query[..., :, None, :] @ added.mT).squeeze(-2)
    return scores / math.sqrt(num_k)


# shows: f(torch.tensor([-1, 0, 1, 2]), 4, 16, False)
#   gives [1, 0, 1, 2]
#   right [1, 0, 0, 0]
@wrong(
    "relative_buckets",
    "With one direction the distance is |offset| too, there is just no second half of buckets.",
    "C-BUCKETS-FUTURE-DISTANCE",
)
def _(offsets, num_buckets, max_distance, bidirectional):
    result = torch.zeros_like(offsets, dtype=torch.int64)
    if bidirectional:
        num_buckets //= 2
        result += (offsets > 0).long() * num_buckets
    distance = offsets.abs()
    exact = num_buckets // 2
    log_part = torch.log(distance.clamp(min=1).double() / exact) / math.log(max_distance / exact)
    far = exact + (log_part * (num_buckets - exact)).long()
    far = torch.minimum(far, torch.full_like(far, num_buckets - 1))
    return result + torch.where(distance < exact, distance.long(), far)


# shows: f(torch.tensor([-100, -1, 1]), 8, 16, True)
#   gives [8, 5, 1]
#   right [3, 1, 5]
@wrong(
    "relative_buckets",
    "The keys before the query take the upper half of the buckets; the last bucket of a direction has number b.",
    ("C-BUCKETS-AFTER-FIRST",),
    ("C-BUCKETS-DISTANCE-CAPPED",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    offsets = offsets.to(torch.int64)
    if bidirectional:
        b = num_buckets // 2
        shift = torch.where(offsets < 0, b, 0)
        delta = offsets.abs()
    else:
        b, shift = num_buckets, 0
        delta = torch.relu(-offsets)
    a = b // 2
    ratio = (delta.clamp(min=a) / a).double().log() / math.log(max_distance / a)
    bucket = a + torch.floor(ratio * (b - a)).to(torch.int64)
    bucket = bucket.clamp(max=b)
    return shift + torch.where(delta < a, delta, bucket)


# shows: f(torch.tensor([0, -1, -2, -3, -7, -9, -14]), 8, 16, False)
#   gives [0, 1, 2, 2, 3, 3, 3]
#   right [0, 1, 2, 3, 5, 6, 7]
@wrong(
    "relative_buckets",
    "A distance goes into the nearest far bucket, so the logarithm is rounded; half of num_buckets belongs to one direction in both modes.",
    ("C-BUCKETS-ROUNDED",),
    ("C-BUCKETS-ALWAYS-HALVED",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    flat = offsets.flatten().tolist()
    b = num_buckets // 2
    a = b // 2
    out = []
    for o in flat:
        if bidirectional:
            start, delta = (b if o > 0 else 0), abs(o)
        else:
            start, delta = 0, max(-o, 0)
        if delta < a:
            out.append(start + delta)
            continue
        step = math.log(delta / a) / math.log(max_distance / a) * (b - a)
        out.append(start + min(a + round(step), b - 1))
    return torch.tensor(out, dtype=torch.int64).reshape(offsets.shape)


# shows: f(3, 1, 2)
#   gives [[[-0.157, -0.0]], [[-0.025, -0.0]], [[-0.004, -0.0]]]
#   right [[[-0.062, -0.0]], [[-0.004, -0.0]], [[-0.25, -0.0]]]
@wrong(
    "alibi_bias",
    "The slopes are 2^(−8/h), 2^(−16/h), … whatever the number of heads is.",
    "C-ALIBI-POWERS-ONLY",
)
def _(num_heads, query_length, key_length):
    slopes = 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)
    q = torch.arange(key_length - query_length, key_length)
    k = torch.arange(key_length)
    distance = (k[None] - q[:, None]).abs()
    return -slopes[:, None, None] * distance


# shows: f(3, 2, 2)
#   gives [[[-0.0, 0.062], [-0.062, -0.0]], [[-0.0, 0.004], [-0.004, -0.0]], [[-0.0, 0.062], [-0.062, -0.0]]]
#   right [[[-0.0, -0.062], [-0.062, -0.0]], [[-0.0, -0.004], [-0.004, -0.0]], [[-0.0, -0.25], [-0.25, -0.0]]]
@wrong(
    "alibi_bias",
    "The slopes still needed are the second, fourth, sixth … of those for 2p heads; keys after the query have a negative distance, so they get a positive bias.",
    ("C-ALIBI-MORE-OF-THE-SAME",),
    ("C-ALIBI-SIGNED",),
)
def _(num_heads, query_length, key_length):
    def power_of_two(count):
        first = 2 ** (-8 / count)
        return [first ** (i + 1) for i in range(count)]

    p = 2 ** math.floor(math.log2(num_heads))
    slopes = power_of_two(p)
    slopes += power_of_two(2 * p)[1::2][: num_heads - p]
    slopes = torch.tensor(slopes)
    back = (
        torch.arange(query_length)[:, None] + (key_length - query_length) - torch.arange(key_length)
    )
    return einsum(-slopes, back.float(), "h, q k -> h q k")


# shows: f(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([1]))
#   gives [[-1.984, 1.96, 2.462, 4.02]]
#   right [[-1.143, 1.922, 2.96, 4.03]]
@wrong("rotate", "Feature i is paired with feature i + d/2, as in rotate_half.", "P-ROPE-LAYOUT")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    freq = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = positions.double()[:, None] * freq
    cos, sin = angle.cos(), angle.sin()
    a, b = x.double().chunk(2, dim=-1)
    out = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return out.to(x.dtype)


# shows: f(torch.tensor([[1.0, 0.0]]).bfloat16(), torch.tensor([301])), f(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([3000001]))
#   gives ([[-0.022, -1.0]], [[0.997, -0.073, -0.589, -0.808]])
#   right ([[0.828, -0.559]], [[0.997, -0.073, -0.588, -0.809]])
@wrong("rotate", "The angles are computed in the same precision as x.", "P-LOWPREC")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    theta = positions.to(x.dtype)[:, None] / base ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
    out = torch.empty_like(x)
    even, odd = x[..., ::2], x[..., 1::2]
    out[..., ::2] = even * theta.cos() - odd * theta.sin()
    out[..., 1::2] = even * theta.sin() + odd * theta.cos()
    return out


# shows: f(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([1]))
#   gives [[0.54, -0.841, 0.995, -0.1]]
#   right [[0.54, 0.841, 1.0, 0.01]]
@wrong(
    "rotate",
    "The hand of a clock turns clockwise, (a cos + b sin, b cos − a sin); pair number i turns with base^(−i/d).",
    ("C-ROPE-BACKWARD",),
    ("C-EXPONENT-HALVED",),
)
def _(x, positions, base=10_000.0):
    *_, n, d = x.shape
    pairs = rearrange(x, "... n (i two) -> ... n i two", two=2).double()
    i = torch.arange(d // 2, dtype=torch.float64)
    speed = base ** (-i / d)
    theta = torch.outer(positions.double(), speed)
    c, s = torch.cos(theta), torch.sin(theta)
    turned = torch.stack(
        [pairs[..., 0] * c + pairs[..., 1] * s, pairs[..., 1] * c - pairs[..., 0] * s], dim=-1
    )
    return rearrange(turned, "... n i two -> ... n (i two)").to(x.dtype)


# shows: f(torch.tensor([[-2, -1, 0, 1], [-2, -1, 0, 1]]))
#   gives [[0, 1, 0], [-1, 0, 1]]
#   right [[-1, 0, 1], [-2, -1, 0]]
@wrong(
    "shift_relative",
    "After the pad and reshape trick the wanted keys are the last k columns, since the last query stands at the last key.",
    "C-SHIFT-CUT-LEFT",
)
def _(scores):
    *front, q, r = scores.shape
    k = r - q + 1
    padded = F.pad(scores, (1, 0))  # … q r+1
    padded = padded.reshape(*front, r + 1, q)
    shifted = padded[..., 1:, :].reshape(*front, q, r)
    return shifted[..., -k:]


# shows: f(torch.tensor([[-2, -1, 0, 1], [-2, -1, 0, 1]]))
#   gives [[-2, -1], [-1, 0]]
#   right [[-1, 0, 1], [-2, -1, 0]]
@wrong(
    "shift_relative",
    "Row 0 begins at the first column and every later row begins one column further right; from r = q + k − 1 I get k = r − q.",
    ("C-SHIFT-OTHER-WAY",),
    ("C-SHIFT-KEYS-MINUS-ONE",),
)
def _(scores):
    q, r = scores.shape[-2], scores.shape[-1]
    k = r - q
    rows = []
    for i in range(q):
        start = i
        rows.append(scores[..., i, start : start + k])
    return torch.stack(rows, dim=-2)


# ------------------------------------------------------------------ 9: one stack


# shows: f({"cb": 2, "ab": 2}, 1)
#   gives [(c, b)]
#   right [(a, b)]
@wrong(
    "byte_pairs",
    "Among equally frequent pairs the one that was counted first wins, as in Counter.most_common.",
    "B-FIRST-MET",
)
def _(words, num_merges):
    texts = {word: list(word) for word in words}
    merges = []
    while len(merges) < num_merges:
        counts = Counter()
        for word, pieces in texts.items():
            for pair in zip(pieces[:-1], pieces[1:]):
                counts[pair] += words[word]
        if not counts:
            break
        (left, right), _ = counts.most_common(1)[0]
        merges.append((left, right))
        for word, pieces in texts.items():
            i = 0
            while i < len(pieces) - 1:
                if pieces[i] == left and pieces[i + 1] == right:
                    pieces[i : i + 2] = [left + right]
                i += 1
    return merges


# shows: f({"ab": 1, "cd": 3, "ae": 1}, 3)
#   gives []
#   right [(c, d), (a, b), (a, e)]
@wrong(
    "byte_pairs",
    "The words are a set, each of them counts its pairs once; a pair that stands in one place only is not worth a merge, so there I stop.",
    ("B-EACH-WORD-ONCE",),
    ("B-AT-LEAST-TWICE",),
)
def _(words, num_merges):
    split = [(list(w), n) for w, n in words.items()]
    order = sorted({c for w in words for c in w})
    result = []
    for _ in range(num_merges):
        freq = {}
        for pieces, n in split:
            for a, b in zip(pieces, pieces[1:]):
                freq[a, b] = freq.get((a, b), 0) + 1
        if not freq or max(freq.values()) < 2:
            break
        top = max(freq.values())
        ties = [p for p in freq if freq[p] == top]
        best = min(ties, key=lambda p: (order.index(p[0]), order.index(p[1])))
        result.append(best)
        joined = best[0] + best[1]
        if joined not in order:
            order.append(joined)
        new_split = []
        for pieces, n in split:
            new = []
            while pieces:
                if tuple(pieces[:2]) == best:
                    new.append(joined)
                    pieces = pieces[2:]
                else:
                    new.append(pieces[0])
                    pieces = pieces[1:]
            new_split.append((new, n))
        split = new_split
    return result


# shows: [f({"aaa": 2, "bc": 3}, 1), f({"abx": 2, "cd": 2, "ab": 1}, 2)]
#   gives [[(b, c)], [(a, b), (ab, x)]]
#   right [[(a, a)], [(a, b), (c, d)]]
@wrong(
    "byte_pairs",
    "In aaa the pair a a can be joined only once, so it counts once; ties go to the pair that is first in the alphabet.",
    ("B-NO-OVERLAP",),
    ("B-ALPHABET",),
)
def _(words, num_merges):
    def count(pieces):
        seen, last = Counter(), None
        for pair in zip(pieces, pieces[1:]):
            if pair == last:  # its first half is used up
                last = None
                continue
            seen[pair] += 1
            last = pair
        return seen

    def join(pieces, pair):
        out = []
        for piece in pieces:
            if out and not out[-1][1] and (out[-1][0], piece) == pair:
                out[-1] = (out[-1][0] + piece, True)
            else:
                out.append((piece, False))
        return [piece for piece, _ in out]

    table = {w: list(w) for w in words}
    pairs = []
    for _ in range(num_merges):
        total = Counter()
        for w, n in words.items():
            for pair, times in count(table[w]).items():
                total[pair] += n * times
        if not total:
            return pairs
        best = sorted(total, key=lambda p: (-total[p], p))[0]
        pairs.append(best)
        table = {w: join(pieces, best) for w, pieces in table.items()}
    return pairs


# shows: f("abc", [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")])
#   gives [259]
#   right [258]
@wrong(
    "encode_text",
    "Every merge takes a place in the list, also one that makes a piece that is there already.",
    "B-BORN-AGAIN",
)
def _(text, merges):
    vocabulary = sorted(byte_letters()) + [left + right for left, right in merges]
    index = {piece: i for i, piece in enumerate(vocabulary)}
    ids = []
    for part in byte_words(text):
        pieces = list(part)
        for left, right in merges:
            i, new = 0, []
            while i < len(pieces):
                if pieces[i : i + 2] == [left, right]:
                    new.append(left + right)
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            pieces = new
        ids.extend(index[piece] for piece in pieces)
    return ids


# shows: f("b a", [("b", "Ġ")])
#   gives [256, 97]
#   right [65, 220, 64]
@wrong(
    "encode_text",
    "byte_letters() is in the order of the bytes, and that order is the order of the ids; the parts are put together again before the pairs are joined.",
    ("B-BYTE-IS-ID",),
    ("B-NOT-CUT",),
)
def _(text, merges):
    places = {}
    for letter in byte_letters():
        places[letter] = len(places)
    for pair in merges:
        places.setdefault("".join(pair), len(places))

    def joined(pieces, pair):
        out = []
        k = 0
        while k < len(pieces):
            if k + 1 < len(pieces) and (pieces[k], pieces[k + 1]) == tuple(pair):
                out.append(pieces[k] + pieces[k + 1])
                k += 1
            else:
                out.append(pieces[k])
            k += 1
        return out

    ids = []
    for part in ["".join(byte_words(text))]:
        ids += [places[piece] for piece in functools.reduce(joined, merges, list(part))]
    return ids


# shows: (f(torch.full((400, 400), 7), 1.0, 0, 50, G())[0] == 7).double().mean().mul(20).round().div(20)
#   gives 0.2
#   right 0.1
@wrong(
    "masked_words",
    "First 80 % are masked, then of the words still left 10 % are exchanged and the others stay.",
    "W-TENTH-OF-A-FIFTH",
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    def coin(p):
        return torch.rand(tokens.shape, generator=rng) < p

    asked = coin(share)
    masked = asked & coin(0.8)
    exchanged = asked & ~masked & coin(0.1)
    inputs = tokens.masked_fill(masked, mask_id)
    random_words = torch.randint(0, vocabulary_size, tokens.shape, generator=rng)
    inputs = torch.where(exchanged, random_words, inputs)
    return inputs, tokens.masked_fill(~asked, -100)


# shows: (lambda i, y: [len(i[(i != 7) & (i != 60)].unique()) > 10, ((y != -100).double().mean() * 20).round() / 20])(*f(torch.full((400, 400), 7), 1.0, 60, 50, G()))
#   gives [False, 0.9]
#   right [True, 1.0]
@wrong(
    "masked_words",
    "A word that stays as it is needs no answer, its target is −100; the word that replaces is drawn once for the batch.",
    ("W-LEFT-NOT-ASKED",),
    ("W-ONE-WORD-FOR-ALL",),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    inputs, targets = tokens.clone(), torch.full_like(tokens, -100)
    chosen = torch.rand(tokens.shape, generator=rng).lt(share)
    r = torch.rand(tokens.shape, generator=rng)
    to_mask = chosen & (r < 0.8)
    to_swap = chosen & (r >= 0.8) & (r < 0.9)
    inputs[to_mask] = mask_id
    other = torch.randint(vocabulary_size, (1,), generator=rng)
    inputs[to_swap] = other
    hidden = to_mask | to_swap
    targets[hidden] = tokens[hidden]
    return inputs, targets


# shows: freq(f, [math.log(0.5), math.log(0.3), math.log(0.15), math.log(0.05)], top_p=0.6)[0]
#   gives about [1.0, 0.0, 0.0, 0.0]
#   right about [0.64, 0.36, 0.0, 0.0]
@wrong(
    "sample",
    "Words stay as long as the running sum is not above top_p, and the likeliest always stays.",
    "P-TOP-P-WITHOUT-THE-LAST",
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = torch.where(logits < smallest, -math.inf, logits)
    if top_p is not None:
        ordered, index = logits.sort(dim=-1, descending=True)
        total = ordered.softmax(-1).cumsum(-1)
        drop = total > top_p
        drop[:, 0] = False
        ordered[drop] = -math.inf
        logits = torch.empty_like(logits).scatter_(-1, index, ordered)
    return torch.distributions.Categorical(logits=logits).sample()


# shows: freq(f, [math.log(0.5), math.log(0.25), math.log(0.15), math.log(0.1)], temperature=0.5, top_k=2, top_p=0.75)[0]
#   gives about [0.6, 0.4, 0.0, 0.0]
#   right about [1.0, 0.0, 0.0, 0.0]
@wrong(
    "sample",
    "A lower temperature makes the scores smaller, so I multiply by it; top_p looks at the probabilities that the model gave, before top_k took words out.",
    ("P-TEMPERATURE-TIMES",),
    ("P-TOP-P-BEFORE-TOP-K",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    b, vocab = logits.shape
    logits = logits * temperature
    probs = logits.softmax(dim=-1)
    left = probs.clone()
    if top_k:
        ranks = probs.argsort(-1, descending=True).argsort(-1)
        left[ranks >= top_k] = 0
    if top_p:
        likely, order = probs.sort(-1, descending=True)
        before = likely.cumsum(-1) - likely
        for row in range(b):
            left[row, order[row, before[row] >= top_p]] = 0
    return torch.multinomial(left, num_samples=1).squeeze(1)


# shows: f(lambda t, s: (torch.tensor([[0.0, 0, 0, 0], [0.0, 0, 3, 3.1], [0.0, 0, 0, 0], [3.0, 0, 0, 0]]).double()[t], s), torch.zeros(1), 1, 2, 2, 3)
#   gives [[3, 0, 1]]
#   right [[2, 2, 2]]
@wrong(
    "beam_search",
    "All beginnings get further words until the end, and what comes after eos is overwritten when the ids are returned.",
    "B-GOES-ON-AFTER-EOS",
)
def _(step, state, bos, eos, width, max_length):
    b = len(state)
    ids = torch.full((b, 1, 1), bos)  # b beam t
    total = torch.zeros(b, 1)
    for t in range(max_length):
        beam = ids.shape[1]
        logits, state = step(ids[:, :, -1].reshape(-1), state)
        vocab = logits.shape[-1]
        log_p = F.log_softmax(logits, dim=-1).reshape(b, beam, vocab)
        candidates = (total[:, :, None] + log_p).reshape(b, -1)
        total, best = candidates.topk(min(width, beam * vocab), dim=-1)
        parent, word = best // vocab, best % vocab
        kept = ids[torch.arange(b)[:, None], parent]
        ids = torch.cat([kept, word[:, :, None]], dim=-1)
        state = state[(torch.arange(b)[:, None] * beam + parent).reshape(-1)]
    out = ids[:, 0, 1:]
    after = (out == eos).int().cumsum(-1) - (out == eos).int() > 0
    return out.masked_fill(after, eos)


# shows: f(lambda t, s: (torch.tensor([[5.0, 4.9, 4.8, 4.9], [-0.5, -9, -9, -0.9], [0.0, 0, 0, 0], [-9.0, -9, 0, -9]])[t], s), torch.zeros(1), 1, 2, 2, 2)
#   gives [[0, 0]]
#   right [[3, 2]]
@wrong(
    "beam_search",
    "I start with `width` rows for every sentence, all with bos and total 0; the logits are already logarithms, so they can be added up as they are.",
    ("B-ALL-ALIKE",),
    (),
)
def _(step, state, bos, eos, width, max_length):
    b = state.shape[0]
    state = state.repeat_interleave(width, dim=0)
    tokens = torch.full((b * width,), bos)
    scores = torch.zeros(b, width)
    finished = torch.zeros(b, width, dtype=torch.bool)
    written = torch.zeros(b, width, 0, dtype=torch.long)
    for _ in range(max_length):
        logits, state = step(tokens, state)
        vocab = logits.shape[1]
        gain = logits.view(b, width, vocab)
        stay = torch.full((vocab,), -torch.inf, dtype=gain.dtype)
        stay[eos] = 0
        gain = torch.where(finished.unsqueeze(-1), stay, gain)
        scores, flat = (scores.unsqueeze(-1) + gain).flatten(1).topk(width)
        parent = flat.div(vocab, rounding_mode="floor")
        word = flat.remainder(vocab)
        written = torch.cat(
            [
                written.gather(1, parent[..., None].expand(-1, -1, written.shape[2])),
                word[..., None],
            ],
            2,
        )
        finished = finished.gather(1, parent) | (word == eos)
        rows = (parent + width * torch.arange(b)[:, None]).flatten()
        state, tokens = state[rows], word.flatten()
        if finished.all():
            break
    return written[:, 0]


# shows: f(toy(4, 3, 85), torch.tensor([0]), 1, 2, 2, 3)
#   gives [[3, 3, 2]]
#   right [[0, 2, 2]]
@wrong(
    "beam_search",
    "The states stay in their rows, only the words have to be sorted; at the end the best beginning is the one with the best mean per word.",
    ("B-STATE-NOT-MOVED",),
    ("B-MEAN-BY-LENGTH",),
)
def _(step, state, bos, eos, width, max_length):
    results = []
    for sentence in range(len(state)):
        own = state[sentence : sentence + 1]
        beams = [([], 0.0)]
        for _ in range(max_length):
            last = torch.tensor([words[-1] if words else bos for words, _ in beams])
            if len(own) != len(beams):
                own = own[torch.arange(len(beams)).clamp(max=len(own) - 1)]
            logits, own = step(last, own)
            log_p = logits.log_softmax(-1)
            options = []
            for row, (words, total) in enumerate(beams):
                if words and words[-1] == eos:
                    options.append((words + [eos], total, row))
                else:
                    for v, lp in enumerate(log_p[row].tolist()):
                        options.append((words + [v], total + lp, row))
            options.sort(key=lambda o: o[1], reverse=True)
            options = options[:width]
            beams = [(words, total) for words, total, _ in options]

        def said(words):
            return words.index(eos) + 1 if eos in words else len(words)

        best = max(beams, key=lambda beam: beam[1] / max(said(beam[0]), 1))
        results.append(best[0])
    return torch.tensor(results)


# ------------------------------------------------------------------ 10: cache and shared heads


# shows: [x.shape for x in f((torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)), torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))]
#   gives raises RuntimeError: Sizes of tensors must match except in dimension 1. Expected
#   right [(1, 2, 4, 4), (1, 2, 4, 4)]
@wrong("extend", "The positions are axis 1, right after the batch.", "K-CAT-HEADS")
def _(cache, key, value):
    if cache is None:
        return key, value
    keys, values = cache
    return torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1)


# shows: f((torch.zeros(1, 1), torch.zeros(1, 1)), torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [2.0]]))
#   gives ([[2.0], [0.0]], [[2.0], [0.0]])
#   right ([[0.0], [1.0], [2.0]], [[0.0], [1.0], [2.0]])
@wrong(
    "extend",
    "The newest word goes to the front of the list; a step brings one word, the last row of key and value.",
    ("K-NEW-FIRST",),
    ("K-LAST-ONLY",),
)
def _(cache, key, value):
    if cache is not None:
        old_keys, old_values = cache
        key = key[..., -1:, :]
        value = value[..., -1:, :]
        key = torch.cat((key, old_keys), dim=-2)
        value = torch.cat((value, old_values), dim=-2)
    return (key, value)


# shows: f(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), (torch.zeros(1, 1), torch.zeros(1, 1)))[0]
#   gives [[0.0]]
#   right [[0.5]]
@wrong(
    "cached_attention",
    "torch.ones(q, k).tril() hides the future, also when there are more keys than queries.",
    "K-MASK-TOP-LEFT",
)
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key = torch.cat([cache[0], key], dim=-2)
        value = torch.cat([cache[1], value], dim=-2)
    q, k = query.shape[-2], key.shape[-2]
    visible = torch.ones(q, k, dtype=torch.bool).tril()
    if mask is not None:
        visible = visible & mask
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    weights = torch.where(visible.any(-1, keepdim=True), weights, 0.0)
    return weights @ value, (key, value)


# shows: f(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]), None, torch.tensor([[False, True]]))[0]
#   gives [[3.0], [3.0]]
#   right [[0.0], [3.0]]
@wrong(
    "cached_attention",
    "If a mask is given, it takes the place of the triangle; −1e9 at hidden places is enough to make everything zero.",
    ("K-MASK-INSTEAD",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(query, key, value, cache=None, mask=None):
    keys, values = key, value
    if cache is not None:
        past_keys, past_values = cache
        keys = torch.cat([past_keys, key], -2)
        values = torch.cat([past_values, value], -2)
    n_new, n_all = key.shape[-2], keys.shape[-2]
    place = torch.arange(n_all - n_new, n_all)
    triangle = torch.arange(n_all) <= place.unsqueeze(-1)
    if mask is None:
        mask = triangle
    scores = einsum(query, keys, "... q d, ... k d -> ... q k") / query.shape[-1] ** 0.5
    scores = scores.masked_fill(mask.logical_not(), -1e9)
    weights = torch.softmax(scores, dim=-1)
    return einsum(weights, values, "... q k, ... k v -> ... q v"), (keys, values)


# shows: f(torch.ones(1, 4, 1, 1), torch.zeros(1, 2, 1, 1), torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1))[0].flatten()
#   gives [1.0, 2.0, 1.0, 2.0]
#   right [1.0, 1.0, 2.0, 2.0]
@wrong(
    "grouped_query_attention",
    "The heads of queries take turns: head 0 uses cached head 0, head 1 cached head 1, and so on around.",
    "G-ORDER",
)
def _(query, key, value, mask=None):
    c = key.shape[1]
    grouped = rearrange(query, "b (g c) q d -> b c g q d", c=c)
    scores = einsum(grouped, key, "b c g q d, b c k d -> b c g q k") / math.sqrt(query.shape[-1])
    scores = rearrange(scores, "b c g q k -> b (g c) q k")
    if mask is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
    output = einsum(
        rearrange(weights, "b (g c) q k -> b c g q k", c=c),
        value,
        "b c g q k, b c k v -> b c g q v",
    )
    return rearrange(output, "b c g q v -> b (g c) q v"), weights


# shows: [f(torch.ones(1, 2, 1, 1), torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1))[1].shape, moved(f) < 150000]
#   gives [(1, 1, 1, 1), False]
#   right [(1, 2, 1, 1), True]
@wrong(
    "grouped_query_attention",
    "repeat_interleave gives each head its keys and is only a view; the heads that share keys also share one table of weights, their mean.",
    (),
    ("G-WEIGHTS-OF-GROUP",),
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c, k = key.shape[1], key.shape[2]
    group = h // c
    key = key.repeat_interleave(group, dim=1)
    value = value.repeat_interleave(group, dim=1)
    scores = query @ key.transpose(2, 3) / math.sqrt(d)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
        alive = mask.any(-1, keepdim=True)
        weights = torch.where(alive, scores, 0.0).softmax(-1) * alive
    else:
        weights = scores.softmax(-1)
    output = weights @ value
    tables = weights.reshape(b, c, group, q, k).mean(2)
    return output, tables


# shows: f("MLA", 1, 4, 16, 2, latent_width=24, rope_width=8)
#   gives 128
#   right 64
@wrong(
    "bytes_per_token",
    "Keys and values are both cached in every scheme, so a latent layer counts twice, too.",
    "L-ALL-TWICE",
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
        width = num_heads * head_width
    elif scheme == "GQA":
        width = kv_heads * head_width
    elif scheme == "MQA":
        width = head_width
    elif scheme == "MLA":
        width = latent_width + rope_width
    else:
        raise ValueError(f"unknown scheme {scheme!r}")
    return 2 * width * num_layers * bytes_per_number


# shows: [f("MHA", 1, 8, 4, 2), f("GQA", 1, 8, 4, 2, kv_heads=4)]
#   gives [64, 16]
#   right [128, 64]
@wrong(
    "bytes_per_token",
    "kv_heads says how many heads share one key, so num_heads / kv_heads are cached; a token keeps one vector of head_width in each head.",
    ("G-MEMBERS",),
    ("K-KEYS-ONLY",),
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
    numbers = {
        "MHA": lambda: num_heads * head_width,
        "GQA": lambda: num_heads // kv_heads * head_width,
        "MQA": lambda: head_width,
        "MLA": lambda: latent_width + rope_width,
    }
    if scheme not in numbers:
        raise ValueError(scheme)
    return int(numbers[scheme]() * num_layers * bytes_per_number)


# shows: (lambda a, b, x: (a(x) - b(x)).abs().max() < 1e-6)(latent_same(f, (4, 1, 2, 2, 2)), latent_same(R["LatentAttention"], (4, 1, 2, 2, 2)), rn(1, 2, 4))
#   gives False
#   right True
@wrong(
    "LatentAttention",
    "The scores are divided by the root of the head's width, √d, as always.",
    "L-SCALE-D",
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.r = num_heads, head_width, rope_width
        self.q_proj = nn.Linear(model_width, num_heads * head_width, bias=False)
        self.q_rope = nn.Linear(model_width, num_heads * rope_width, bias=False)
        self.down = nn.Linear(model_width, latent_width, bias=False)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = nn.Linear(model_width, rope_width, bias=False)
        self.k_up = nn.Linear(latent_width, num_heads * head_width, bias=False)
        self.v_up = nn.Linear(latent_width, num_heads * head_width, bias=False)
        self.out_proj = nn.Linear(num_heads * head_width, model_width, bias=False)
        self.scale = head_width**-0.5

    def forward(self, x):
        return self.step(x)[0]

    def step(self, x, cache=None):
        start = 0 if cache is None else cache[0].shape[1]
        places = torch.arange(start, start + x.shape[1])
        latent = self.norm(self.down(x))
        rope_key = rotate(self.k_rope(x), places)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            rope_key = torch.cat([cache[1], rope_key], dim=1)
        q = rearrange(self.q_proj(x), "b q (h d) -> b h q d", h=self.h)
        rope_q = rotate(rearrange(self.q_rope(x), "b q (h r) -> b h q r", h=self.h), places)
        up = rearrange(self.k_up.weight, "(h d) l -> h d l", h=self.h)
        q = einsum(q, up, "b h q d, h d l -> b h q l")
        scores = einsum(q, latent, "b h q l, b k l -> b h q k")
        scores = (scores + einsum(rope_q, rope_key, "b h q r, b k r -> b h q k")) * self.scale
        future = torch.ones(x.shape[1], latent.shape[1], dtype=torch.bool).triu(start + 1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        read = einsum(weights, latent, "b h q k, b k l -> b h q l")
        up = rearrange(self.v_up.weight, "(h d) l -> h d l", h=self.h)
        out = einsum(read, up, "b h q l, h d l -> b q h d")
        return self.out_proj(out.flatten(2)), (latent, rope_key)


# shows: (lambda a, x: (a.step(x[:, 1:], a.step(x[:, :1])[1])[0] - a(x)[:, 1:]).abs().max() < 1e-4)(latent_same(f, (4, 1, 2, 2, 2)), rn(1, 2, 4))
#   gives False
#   right True
@wrong(
    "LatentAttention", "In a step the new words are numbered from 0, as in forward.", "P-ROPE-CACHE"
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()

        def linear(a, b):
            return nn.Linear(a, b, bias=False)

        self.heads = num_heads
        self.q_proj = linear(model_width, num_heads * head_width)
        self.q_rope = linear(model_width, num_heads * rope_width)
        self.down = linear(model_width, latent_width)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = linear(model_width, rope_width)
        self.k_up = linear(latent_width, num_heads * head_width)
        self.v_up = linear(latent_width, num_heads * head_width)
        self.out_proj = linear(num_heads * head_width, model_width)
        self.root = math.sqrt(head_width + rope_width)

    def split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x):
        b, n, m = x.shape
        places = torch.arange(n)
        latent = self.norm(self.down(x))
        q, k, v = (
            self.split(self.q_proj(x)),
            self.split(self.k_up(latent)),
            self.split(self.v_up(latent)),
        )
        qr = rotate(self.split(self.q_rope(x)), places)
        kr = rotate(self.k_rope(x), places).unsqueeze(1)
        scores = (q @ k.mT + qr @ kr.mT) / self.root
        weights = scores.masked_fill(~causal_mask(n), -torch.inf).softmax(-1)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(b, n, -1))

    def step(self, x, cache=None):
        b, n, m = x.shape
        places = torch.arange(n)
        latents = self.norm(self.down(x))
        rotated = rotate(self.k_rope(x), places)
        if cache is not None:
            latents = torch.cat((cache[0], latents), 1)
            rotated = torch.cat((cache[1], rotated), 1)
        k = latents.shape[1]
        q = self.split(self.q_proj(x)) @ self.k_up.weight.view(self.heads, -1, latents.shape[2])
        qr = rotate(self.split(self.q_rope(x)), places)
        scores = (q @ latents[:, None].mT + qr @ rotated[:, None].mT) / self.root
        allowed = torch.ones(n, k, dtype=torch.bool).tril(k - n)
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        heads = (weights @ latents[:, None]) @ self.v_up.weight.view(
            self.heads, -1, latents.shape[2]
        ).mT
        return self.out_proj(heads.transpose(1, 2).reshape(b, n, -1)), (latents, rotated)


# shows: (lambda a, b, x: (a(x) - b(x)).abs().max() < 1e-4)(latent_same(f, (4, 2, 2, 2, 2)), latent_same(R["LatentAttention"], (4, 2, 2, 2, 2)), rn(1, 2, 4))
#   gives False
#   right True
@wrong(
    "LatentAttention",
    "In q_rope the numbers of the heads stand beside each other feature by feature, (r h); the norm is for training only, so I just made it and use the latent as `down` gives it.",
    ("H-FEATURES-TURNED",),
    ("L-NO-NORM",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        m, h, d, l, r = model_width, num_heads, head_width, latent_width, rope_width
        sizes = {
            "q_proj": (m, h * d),
            "q_rope": (m, h * r),
            "down": (m, l),
            "k_rope": (m, r),
            "k_up": (l, h * d),
            "v_up": (l, h * d),
            "out_proj": (h * d, m),
        }
        for name, (a, b) in sizes.items():
            setattr(self, name, nn.Linear(a, b, bias=False))
        self.norm = nn.RMSNorm(l, eps=1e-6)
        self.h, self.d, self.r = h, d, r

    def forward(self, x):
        out, _ = self.step(x)
        return out

    def step(self, x, cache=None):
        q = x.shape[1]
        old = 0 if cache is None else cache.shape[1]
        where = torch.arange(old, old + q)
        c = self.down(x)
        new = torch.cat([c, rotate(self.k_rope(x), where)], dim=-1)
        cache = new if cache is None else torch.cat([cache, new], dim=1)
        latent, turned = cache[..., : -self.r], cache[..., -self.r :]
        ask = rearrange(self.q_proj(x), "b q (h d) -> b h q d", h=self.h)
        ask_turned = rearrange(self.q_rope(x), "b q (r h) -> b h q r", h=self.h)
        ask_turned = rotate(ask_turned, where)
        w_k = rearrange(self.k_up.weight, "(h d) l -> h d l", h=self.h)
        w_v = rearrange(self.v_up.weight, "(h d) l -> h d l", h=self.h)
        s = torch.einsum("bhqd,hdl,bkl->bhqk", ask, w_k, latent)
        s = s + torch.einsum("bhqr,bkr->bhqk", ask_turned, turned)
        s = s / math.sqrt(self.d + self.r)
        hide = torch.arange(old + q)[None, :] > where[:, None]
        p = s.masked_fill(hide, -math.inf).softmax(dim=-1)
        out = torch.einsum("bhqk,bkl,hdl->bqhd", p, latent, w_v)
        return self.out_proj(rearrange(out, "b q h d -> b q (h d)")), cache


# shows: (lambda a, b, x: [(a(x) - b(x)).abs().max() < 1e-4, (a.step(x)[0] - a(x)).abs().max() < 1e-4])(latent_same(f, (4, 2, 2, 2, 2)), latent_same(R["LatentAttention"], (4, 2, 2, 2, 2)), rn(1, 2, 4))
#   gives [False, False]
#   right [True, True]
@wrong(
    "LatentAttention",
    "Each of the two dot products gets its own root, √d and √r; a step sees only kept words and new ones, nothing later, so it needs no mask.",
    ("L-SCALE-EACH",),
    ("K-NO-TRIANGLE",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.num_heads = num_heads
        self.head_width = head_width
        self.rope_width = rope_width
        inner = num_heads * head_width
        self.q_proj = nn.Linear(model_width, inner, bias=False)
        self.q_rope = nn.Linear(model_width, num_heads * rope_width, bias=False)
        self.down = nn.Linear(model_width, latent_width, bias=False)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = nn.Linear(model_width, rope_width, bias=False)
        self.k_up = nn.Linear(latent_width, inner, bias=False)
        self.v_up = nn.Linear(latent_width, inner, bias=False)
        self.out_proj = nn.Linear(inner, model_width, bias=False)

    def join(self, content, place):
        d, r = self.head_width, self.rope_width
        return content / math.sqrt(d) + place / math.sqrt(r)

    def forward(self, x):
        n, h = x.shape[1], self.num_heads
        latent = self.norm(self.down(x))
        positions = torch.arange(n)
        query = rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=h)
        key = rearrange(self.k_up(latent), "b n (h d) -> b h n d", h=h)
        value = rearrange(self.v_up(latent), "b n (h d) -> b h n d", h=h)
        query_r = rotate(rearrange(self.q_rope(x), "b n (h r) -> b h n r", h=h), positions)
        key_r = repeat(rotate(self.k_rope(x), positions), "b n r -> b h n r", h=h)
        scores = self.join(query @ key.mT, query_r @ key_r.mT)
        scores = scores.masked_fill(~causal_mask(n), -torch.inf)
        return self.out_proj(rearrange(scores.softmax(-1) @ value, "b h n d -> b n (h d)"))

    def step(self, x, cache=None):
        h, d = self.num_heads, self.head_width
        latent, start = self.norm(self.down(x)), 0
        if cache is not None:
            start = cache["latent"].shape[1]
        positions = torch.arange(start, start + x.shape[1])
        key_r = rotate(self.k_rope(x), positions)
        if cache is not None:
            latent = torch.cat([cache["latent"], latent], dim=1)
            key_r = torch.cat([cache["rope"], key_r], dim=1)
        query = rearrange(self.q_proj(x), "b q (h d) -> b h q d", h=h)
        query_r = rotate(rearrange(self.q_rope(x), "b q (h r) -> b h q r", h=h), positions)
        up = self.k_up.weight.reshape(h, d, -1)
        absorbed = query @ up  # b h q l
        scores = self.join(absorbed @ latent.unsqueeze(1).mT, query_r @ key_r.unsqueeze(1).mT)
        mixed = scores.softmax(-1) @ latent.unsqueeze(1)
        out = mixed @ self.v_up.weight.reshape(h, d, -1).mT
        return self.out_proj(rearrange(out, "b h q d -> b q (h d)")), {
            "latent": latent,
            "rope": key_r,
        }


# ------------------------------------------------------------------ 11: long sequences


# shows: f(3, 1, 0)
#   gives [[True, False, False], [False, True, False], [False, False, True]]
#   right [[True, True, False], [True, True, True], [False, True, True]]
@wrong(
    "window_mask",
    "`width` is the width of the whole window, half of it lies on each side.",
    "W-WIDTH-WHOLE",
)
def _(n, width, global_tokens=0):
    i = torch.arange(n)
    half = width // 2
    near = (i[None, :] - i[:, None]).abs() <= half
    near[:global_tokens, :] = True
    near[:, :global_tokens] = True
    return near


# shows: [f(3, 1, 0), f(3, 0, 1)]
#   gives [[[True, False, False], [False, True, False], [False, False, True]], [[True, False, False], [True, False, False], [True, False, False]]]
#   right [[[True, True, False], [True, True, True], [False, True, True]], [[True, True, True], [True, True, False], [True, False, True]]]
@wrong(
    "window_mask",
    "The word itself counts as one of the `width` places; a global token is seen by everybody, but looks only at its own window.",
    ("W-WIDTH-STRICT",),
    ("W-GLOBAL-LOOKED-AT",),
)
def _(n, width, global_tokens=0):
    mask = torch.zeros(n, n, dtype=torch.bool)
    for row in range(n):
        for column in range(n):
            near = abs(row - column) < width
            mask[row, column] = near or column < global_tokens
    return mask


# shows: f(torch.tensor([[False, False], [True, False]]), 2)
#   gives [[False, False], [False, False]]
#   right [[True, False], [True, True]]
@wrong("reach", "What can have arrived after L layers is the L-th power of the mask.", "R-FORGETS")
def _(mask, layers):
    steps = mask.double()
    now = torch.eye(mask.shape[0], dtype=torch.float64)
    for _ in range(layers):
        now = (steps @ now).clamp(max=1)
    return now > 0


# shows: [f(torch.ones(2, 2).tril().bool(), 0), f(torch.ones(2, 2).tril().bool(), 1)]
#   gives [[[True, True], [False, True]], [[True, True], [False, True]]]
#   right [[[True, False], [False, True]], [[True, False], [True, True]]]
@wrong(
    "reach",
    "Before the first layer the table is the mask itself; the news flows from row i to column j, so what I have to return is turned around.",
    ("R-ONE-MORE",),
    ("R-OTHER-WAY",),
)
def _(mask, layers):
    n = mask.shape[-1]
    eye = torch.eye(n).bool()
    one = mask | eye
    heard = one.clone()
    for _ in range(layers):
        new = heard.clone()
        for middle in range(n):
            new |= one[:, middle : middle + 1] & heard[middle : middle + 1, :]
        heard = new
    return heard.T


# shows: peak(f, 512) / peak(f, 256) < 2.6
#   gives False
#   right True
@wrong(
    "windowed_attention",
    "With the far scores at −∞ no memory is spent on them, so a mask over the table is enough.",
    "W-DENSE",
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    place = torch.arange(n)
    far = (place[:, None] - place).abs() > width
    scores = query @ key.transpose(-2, -1) / math.sqrt(d)
    weights = scores.masked_fill(far, -torch.inf).softmax(dim=-1)
    return weights @ value


# shows: f(torch.ones(4, 4), torch.tensor([0.0, 0, 0, 1])[:, None].expand(4, 4), torch.tensor([[0.0], [0], [0], [8]]), 2)
#   gives [[7.583], [7.583], [7.583], [7.583]]
#   right [[0.0], [5.69], [5.69], [6.296]]
@wrong(
    "windowed_attention",
    "A block looks at its own block and at the one on each side, and that is the window; inside blocks that small no √d is needed.",
    ("W-THREE-BLOCKS",),
    ("D-NO-SCALE",),
)
def _(query, key, value, width):
    n = query.shape[-2]
    parts = []
    for start in range(0, n, width):
        stop = min(start + width, n)
        low, high = max(start - width, 0), min(stop + width, n)
        scores = query[..., start:stop, :] @ key[..., low:high, :].mT
        parts.append(scores.softmax(-1) @ value[..., low:high, :])
    return torch.cat(parts, dim=-2)


# shows: f(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([[2.0], [6.0]]), 1)
#   gives [[1.0], [4.0]]
#   right [[4.0], [4.0]]
@wrong(
    "windowed_attention",
    "A word must not see later words, so the window lies before it; the zeros that pad the ends have score 0 and so no weight.",
    ("W-PAST-ONLY",),
    (),
)
def _(query, key, value, width):
    n, d = query.shape[-2], query.shape[-1]
    after = 0
    size = width + after + 1
    windows_k = F.pad(key, (0, 0, width, after)).unfold(-2, size, 1)  # … n d w
    windows_v = F.pad(value, (0, 0, width, after)).unfold(-2, size, 1)  # … n v w
    scores = einsum(query, windows_k, "... n d, ... n d w -> ... n w") / math.sqrt(d)
    weights = scores.softmax(dim=-1)
    return einsum(weights, windows_v, "... n w, ... n v w -> ... n v")


# shows: f(torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1))
#   gives [[0.5], [1.0]]
#   right [[1.0], [1.0]]
@wrong(
    "linear_attention",
    "The sum below the fraction is the sum of φ(k) over the whole text, the same for every query.",
    "L-TOTAL-OF-ALL",
)
def _(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    kv = torch.einsum("...nd,...nv->...ndv", k, value).cumsum(dim=-3)
    above = torch.einsum("...nd,...ndv->...nv", q, kv)
    z = k.sum(dim=-2, keepdim=True)
    below = (q * z).sum(-1, keepdim=True)
    return above / below


# shows: f(torch.tensor([[1.0], [-2.0]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [3.0]]))
#   gives [[1.311], [2.914]]
#   right [[1.0], [1.311]]
@wrong(
    "linear_attention",
    "φ takes the place of the exponential, so it is applied to the score q·k; moving the parentheses means that every query reads the same sums over all keys.",
    ("L-OF-SCORES",),
    ("L-LINEAR-CAUSAL",),
)
def _(query, key, value):
    def phi(x):
        return torch.nn.functional.elu(x) + 1

    scores = phi(query @ key.mT)
    return scores @ value / scores.sum(-1, keepdim=True)


# shows: (lambda s: (f(s, torch.zeros(1), torch.zeros(1), torch.ones(1)), s)[1])((torch.zeros(1, 1), torch.zeros(1)))
#   gives ([[1.0]], [1.0])
#   right ([[0.0]], [0.0])
@wrong(
    "linear_step",
    "The state is the running sum, so the new word is added to it with +=.",
    "C-KEPT-IN-PLACE",
)
def _(state, query, key, value):
    phi_q, phi_k = F.elu(query) + 1, F.elu(key) + 1
    update = phi_k.unsqueeze(-1) * value.unsqueeze(-2)
    if state is None:
        sums, norm = torch.zeros_like(update), torch.zeros_like(phi_k)
    else:
        sums, norm = state
    sums += update
    norm += phi_k
    top = (phi_q.unsqueeze(-2) @ sums).squeeze(-2)
    bottom = (phi_q * norm).sum(-1, keepdim=True)
    return top / bottom, (sums, norm)


# shows: f((torch.tensor([[1.0], [0.0]]), torch.tensor([1.0, 1.0])), torch.tensor([1.0, 2.0]), torch.zeros(2), torch.ones(1))[0]
#   gives [0.333]
#   right [0.7]
@wrong(
    "linear_step",
    "Only the keys go through φ, the query just reads; the output is read from the words before, then the new word is put in (the first word reads itself).",
    ("L-KEYS-ONLY",),
    ("L-READS-FIRST",),
)
def _(state, query, key, value):
    k = nn.functional.elu(key) + 1
    q = query
    memory = einsum(k, value, "... d, ... v -> ... d v")
    if state is None:
        new_state = (memory, k)
        source = new_state
    else:
        new_state = (state[0] + memory, state[1] + k)
        source = state
    found = einsum(q, source[0], "... d, ... d v -> ... v")
    return found / einsum(q, source[1], "... d, ... d -> ...")[..., None], new_state


# shows: f([torch.zeros(1, 1)], [torch.zeros(1, 1)], [torch.ones(1, 1)]) + f([torch.zeros(1, 1), torch.zeros(2, 1)], [torch.zeros(1, 1), torch.zeros(2, 1)], [torch.ones(1, 1), torch.zeros(2, 1)])
#   gives [[[1.0]], [[0.5]], [[0.5], [0.5]]]
#   right [[[1.0]], [[0.333]], [[0.333], [0.333]]]
@wrong(
    "ring_attention",
    "Each process attends to every shard with its own softmax, and the p results are averaged.",
    "R-MEAN",
)
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    outputs = []
    for rank in range(p):
        q = query_shards[rank]
        found, sizes = [], []
        for hop in range(p):
            k, v = key_shards[(rank + hop) % p], value_shards[(rank + hop) % p]
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            sizes.append(scores.logsumexp(-1, keepdim=True))
            found.append(scores.softmax(-1) @ v)
        outputs.append(sum(found) / p)
    return outputs


# shows: f([torch.ones(1, 1), torch.ones(1, 1)], [torch.zeros(1, 1), torch.ones(1, 1)], [torch.zeros(1, 1), torch.ones(1, 1)])
#   gives [[[0.0]], [[0.5]]]
#   right [[[0.731]], [[0.731]]]
@wrong(
    "ring_attention",
    "When a larger score comes, it is enough to replace the maximum, the sums go on as they are; process i has to see only the shards up to its own.",
    ("R-NOT-RESCALED",),
    ("R-CAUSAL",),
)
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    results = []
    for i, q in enumerate(query_shards):
        top = torch.full_like(q[..., :1], -torch.inf)
        total = torch.zeros_like(q[..., :1])
        out = 0.0
        for step in range(p):
            j = (i + 1 + step) % p
            if j > i:
                continue
            scores = torch.einsum("...qd,...kd->...qk", q, key_shards[j]) / math.sqrt(q.shape[-1])
            top = torch.maximum(top, scores.amax(-1, keepdim=True))
            e = torch.exp(scores - top)
            total = total + e.sum(-1, keepdim=True)
            out = out + e @ value_shards[j]
        results.append(out / total)
    return results


# shows: f(torch.arange(5.0), torch.tensor(2.0), 2)
#   gives [1.0, 0.5, 0.0, 0.0, 0.0]
#   right [1.0, 1.0, 1.0, 0.5, 0.0]
@wrong(
    "span_mask",
    "The ramp ends at the span: 1 up to span − ramp and 0 from the span on.",
    "A-RAMP-INSIDE",
)
def _(distance, span, ramp):
    soft = (span - distance) / ramp
    return soft.clamp(0.0, 1.0)


# shows: [f(torch.tensor([5.0]), torch.tensor(1.0), 2), f(torch.tensor([0.0]), torch.tensor(-1.0), 2)]
#   gives [[-1.0], [1.0]]
#   right [[0.0], [0.5]]
@wrong(
    "span_mask",
    "It only has to be kept from growing above 1; a span below zero makes no sense, so it counts as 0.",
    ("A-NOT-BELOW-0",),
    ("A-SPAN-NOT-BELOW-0",),
)
def _(distance, span, ramp):
    span = torch.clamp(span, min=0)
    line = 1 - (distance - span) / ramp
    line = torch.minimum(line, torch.ones_like(line))
    return line


# ------------------------------------------------------------------ 12: looking inside


# shows: (lambda m: (f(m, "layers.0.attention", 0, 0.0), hooks(m))[1])(model())
#   gives 1
#   right 0
@wrong(
    "ablated",
    "A hook on the model that I was given is fine, it is the same model afterwards with one head less.",
    "I-NO-COPY",
)
def _(model, layer, head, value):
    attention = model.get_submodule(layer)
    heads = attention.num_heads

    def replace(module, inputs):
        x = inputs[0]
        d = x.shape[-1] // heads
        new = x.clone()
        new[:, :, head * d : (head + 1) * d] = value
        return (new, *inputs[1:])

    attention.out_proj.register_forward_pre_hook(replace)
    return model


# shows: (lambda m: (same(f(m, "layers.0.attention", 0, 0.0)(TX), R["ablated"](m, "layers.0.attention", 0, 0.0)(TX)), m.training))(model(train=True))
#   gives (False, False)
#   right (True, True)
@wrong(
    "ablated",
    "The heads lie side by side in the last axis of (d h), so head i is every h-th feature; first the model goes into eval mode, or the result is not stable.",
    ("I-INTERLEAVED",),
    ("I-OTHER-MODE",),
)
def _(model, layer, head, value):
    model.eval()
    twin = copy.deepcopy(model)
    block = twin.get_submodule(layer)
    num_heads = block.num_heads

    class Without(nn.Module):
        def __init__(self, out_proj):
            super().__init__()
            self.inner = out_proj

        def forward(self, x):
            b, n, m = x.shape
            parts = x.reshape(b, n, m // num_heads, num_heads).clone()
            parts[..., head] = value
            return self.inner(parts.reshape(b, n, m))

    block.out_proj = Without(block.out_proj)
    return twin


# shows: f(torch.tensor([[1, 0, 0, 0], [0.25, 0.75, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]), 2)
#   gives 0.75
#   right 1.0
@wrong(
    "induction_score",
    "The places lie on one diagonal, period − 1 below the main one, and the score is the mean of that diagonal.",
    "I-WHOLE-DIAGONAL",
)
def _(weights, period):
    stripe = torch.diagonal(weights, offset=-(period - 1), dim1=-2, dim2=-1)
    return stripe.mean(dim=-1)


# shows: f(torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 1.0, 0]]), 2)
#   gives 0.062
#   right 0.875
@wrong(
    "induction_score",
    "It looks at the last occurrence of the present word, at i − period; the mean is over all n words.",
    ("I-SAME-WORD",),
    ("I-DIVIDED-BY-N",),
)
def _(weights, period):
    n = weights.shape[-1]
    total = torch.zeros(weights.shape[:-2], dtype=weights.dtype)
    for i in range(period, n):
        total = total + weights[..., i, i - period]
    return total / n


# shows: f(torch.diag(torch.tensor([1.0, -2.0])), torch.eye(2), torch.diag(torch.tensor([1.0, 0.0])))
#   gives -0.333
#   right 1.000
@wrong(
    "copying_score",
    "Whether a head copies is decided by the eigenvalues of its own matrix W_OV.",
    "I-OV-ALONE",
)
def _(W_OV, W_E, W_U):
    values = torch.linalg.eigvals(W_OV)
    return float(values.real.sum() / values.abs().sum())


# shows: f(torch.tensor([[1.0, 2.0], [-3.0, 0.5]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.eye(2))
#   gives -1.000
#   right 0.686
@wrong(
    "copying_score",
    "nn.Linear keeps its matrix transposed, so W_OV has to be transposed first; the size of an eigenvalue is the absolute value of its real part.",
    ("I-OV-TRANSPOSED",),
    ("I-IMAGINARY-DROPPED",),
)
def _(W_OV, W_E, W_U):
    table = einsum(W_E, W_OV.T, W_U, "v m, m k, k w -> v w")
    real = torch.linalg.eigvals(table).real
    size = real.abs()
    return (real.sum() / size.sum()).item()


# shows: f([torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]), torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])])
#   gives [[[0.5, 0.5], [0.25, 0.75]]]
#   right [[[0.75, 0.25], [0.5, 0.5]]]
@wrong(
    "rollout", "The first layer comes first, so it stands on the left of the product.", "I-ORDER"
)
def _(weights):
    n = weights[0].shape[-1]
    result = torch.eye(n, dtype=weights[0].dtype)
    for layer in weights:
        mixed = 0.5 * layer.mean(dim=1) + 0.5 * torch.eye(n, dtype=layer.dtype)
        result = result @ mixed
    return result


# shows: f([torch.tensor([[[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]])])
#   gives [[[2.0, 0.0], [1.0, 2.0]]]
#   right [[[1.0, 0.0], [0.25, 0.75]]]
@wrong(
    "rollout",
    "The residual is A + I, the ½ is only a factor that may be left out; of the heads the strongest counts, the maximum at every place.",
    ("I-NOT-HALVED",),
    ("I-HEADS-MAX",),
)
def _(weights):
    eye = torch.eye(weights[0].shape[-1]).to(weights[0])
    maps = []
    for w in weights:
        a = w.amax(1)
        maps.append(a + eye)
    return functools.reduce(lambda low, high: high @ low, maps)


# shows: same(f(model(), TX, TX.roll(1, 0), ("layers.0.attention", 0, 0)), R["patched"](model(), TX, TX.roll(1, 0), ("layers.0.attention", 0, 0)))
#   gives False
#   right True
@wrong(
    "patched",
    "The head's output of the clean run is put in as a whole, at all positions.",
    "I-ALL-PLACES",
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    attention = model.get_submodule(layer)
    store = {}

    def keep(module, args):
        store["clean"] = args[0].detach().clone()

    def swap(module, args):
        x = args[0].clone()
        d = x.shape[-1] // attention.num_heads
        own = slice(head * d, head * d + d)
        x[..., own] = store["clean"][..., own]
        return (x,)

    handle = attention.out_proj.register_forward_pre_hook(keep)
    try:
        model(clean)
    finally:
        handle.remove()
    handle = attention.out_proj.register_forward_pre_hook(swap)
    try:
        return model(corrupted)
    finally:
        handle.remove()


# shows: (lambda m: [same(f(m, TX, TX.roll(1, 0), ("layers.0.attention", 0, 0)), R["patched"](model(), TX, TX.roll(1, 0), ("layers.0.attention", 0, 0))), hooks(m)])(model())
#   gives [False, 1]
#   right [True, 0]
@wrong(
    "patched",
    "The clean text is read with one place from the corrupted run; the hook lives only as long as my function.",
    ("I-DIRECTION",),
    ("I-NO-COPY",),
)
def _(model, clean, corrupted, place):
    name, head, position = place
    att = model.get_submodule(name)
    proj = att.out_proj
    seen = []
    first = proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(corrupted)
    first.remove()

    def put_in(_, args):
        heads = split_heads(args[0], att.num_heads).clone()  # b h n d
        heads[:, head, position] = split_heads(seen[0], att.num_heads)[:, head, position]
        return (merge_heads(heads),)

    proj.register_forward_pre_hook(put_in)
    scores = model(clean)
    return scores


# ------------------------------------------------------------------ 13: pictures


# shows: f(torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]]), (1, 2))
#   gives [[[1.0, 3.0, 2.0, 4.0]]]
#   right [[[1.0, 2.0, 3.0, 4.0]]]
@wrong(
    "patches",
    "A patch is written pixel by pixel, and each pixel has its colors together.",
    "C-PATCH-COLOR-LAST",
)
def _(image, size):
    h, w = size
    return rearrange(image, "b c (i h) (j w) -> b (i j) (h w c)", h=h, w=w)


# shows: f(torch.arange(16.0).reshape(1, 1, 4, 4), (1, 2))
#   gives [[[0.0, 4.0], [8.0, 12.0], [1.0, 5.0], [9.0, 13.0], [2.0, 6.0], [10.0, 14.0], [3.0, 7.0], [11.0, 15.0]]]
#   right [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0], [10.0, 11.0], [12.0, 13.0], [14.0, 15.0]]]
@wrong(
    "patches",
    "size is (width, height), as x comes before y; the patches are numbered down the first column, then the second.",
    ("C-PATCH-SIZE-TURNED",),
    ("C-PATCH-DOWN-FIRST",),
)
def _(image, size):
    width, height = size
    b, c, y, x = image.shape
    found = []
    for left in range(0, x, width):
        for top in range(0, y, height):
            piece = image[:, :, top : top + height, left : left + width]
            found.append(piece.reshape(b, -1))
    return torch.stack(found, dim=1)


# shows: f(1, 2, 4)
#   gives [[0.0, 1.0, 0.0, 1.0], [0.841, 0.54, 0.0, 1.0]]
#   right [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.841, 0.54]]
@wrong(
    "positions_2d",
    "x comes first: the first half of the features is for the column, the second for the row.",
    "C-2D-COLUMN-FIRST",
)
def _(rows, columns, width):
    half = width // 2

    def waves(count):
        place = torch.arange(count, dtype=torch.float32)[:, None]
        feature = torch.arange(half)
        angle = place / 10_000.0 ** ((feature - feature % 2) / half)
        return torch.where(feature % 2 == 0, angle.sin(), angle.cos())

    row = waves(rows).repeat_interleave(columns, dim=0)
    column = waves(columns).repeat(rows, 1)
    return torch.cat([column, row], dim=1)


# shows: f(2, 1, 8)
#   gives [[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0], [0.841, 0.1, 0.54, 0.995, 0.0, 0.0, 1.0, 1.0]]
#   right [[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0], [0.841, 0.54, 0.01, 1.0, 0.0, 1.0, 0.0, 1.0]]
@wrong(
    "positions_2d",
    "First come all the sines, then all the cosines of a half; the exponent is 2i over `width`, the width of the whole vector.",
    ("C-2D-SINES-FIRST",),
    ("C-2D-SPEEDS-OF-ALL",),
)
def _(rows, columns, width):
    h = width // 2
    even = torch.arange(0, h, 2).float()
    speed = torch.exp(-math.log(10000.0) * even / width)
    table = torch.zeros(rows, columns, width)
    for r in range(rows):
        for c in range(columns):
            for start, p in ((0, r), (h, c)):
                sines, cosines = torch.sin(p * speed), torch.cos(p * speed)[: h // 2]
                table[r, c, start : start + h] = torch.cat([sines, cosines])
    return table.reshape(rows * columns, width)


# shows: f(Reader(4, 4, up=0.3), img(4))
#   gives [[0, 2, 4, 0, 2, 4], [4, 2, 3, 2, 3, 1], [3, 3, 4, 4, 4, 2], [0, 1, 2, 3, 3, 4]]
#   right [[0, 2, 2, 2, 2, 2], [4, 2, 2, 2, 2, 2], [3, 3, 4, 4, 4, 2], [0, 1, 2, 2, 2, 2]]
@wrong(
    "read",
    "I go on until every row has said eos, and the rows are returned as they are.",
    "C-READ-TALKS-ON",
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    ids = torch.full((image.shape[0], 1), bos, dtype=torch.long)
    ended = torch.zeros(image.shape[0], dtype=torch.bool)
    while ids.shape[1] <= max_length and not ended.all():
        word = model.decode(ids, memory, memory_mask)[:, -1].argmax(-1)
        ended = ended | (word == eos)
        ids = torch.cat([ids, word[:, None]], dim=1)
    return ids[:, 1:]


# shows: (lambda m: (f(m, img(1), 1, 2, 3), m.n))(Reader(1, 1, up=-99.0))
#   gives ([[1, 4, 1, 0]], 3)
#   right ([[4, 1, 0]], 1)
@wrong(
    "read",
    "For each word the model is asked anew, encode and then decode; the first column of the result is bos.",
    ("C-READ-LOOKS-AGAIN",),
    ("C-READ-KEEPS-BOS",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    b = len(image)
    ids = torch.full((b, 1), bos)
    for t in range(max_length):
        memory, mask = model.encode(image)
        scores = model.decode(ids, memory, mask)
        next_word = scores[:, -1, :].argmax(dim=-1, keepdim=True)
        over = (ids == eos).any(dim=1, keepdim=True)
        next_word = next_word.masked_fill(over, eos)
        ids = torch.cat((ids, next_word), dim=1)
    return ids


# shows: f(Reader(4, 4, up=0.3), img(4))
#   gives [[0, 4], [4, 0], [3, 3], [0, 2]]
#   right [[0, 2, 2, 2, 2, 2], [4, 2, 2, 2, 2, 2], [3, 3, 4, 4, 4, 2], [0, 1, 2, 2, 2, 2]]
@wrong(
    "read",
    "The decoder needs just the newest word, the others are in the memory; when a row has said eos, the batch is done.",
    ("C-READ-LAST-WORD",),
    ("C-READ-ONE-ENDS-ALL",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    words = [torch.full((image.shape[0],), bos)]
    alive = torch.ones(image.shape[0], dtype=torch.bool)
    for _ in range(max_length):
        given = words[-1][:, None]
        best = model.decode(given, memory, memory_mask)[:, -1].max(-1).indices
        best[~alive] = eos
        words.append(best)
        alive &= best != eos
        if not alive.all():
            break
    return torch.stack(words[1:], dim=1)


# shows: f(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), att, torch.tensor(1.0))[0]
#   gives [[[1.0]]]
#   right [[[0.762]]]
@wrong(
    "gated_cross_attention",
    "The gate begins at 0 and is multiplied as it is, it is a number anyway.",
    "C-GATE-NO-TANH",
)
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    return text + gate * found, weights


# shows: f(torch.ones(1, 1, 1), torch.tensor([[[0.0], [1.0]]]), att, torch.tensor(1.0), torch.tensor([[[True, False]]]))
#   gives ([[[2.114]]], [[[0.269, 0.731]]])
#   right ([[[1.762]]], [[[1.0, 0.0]]])
@wrong(
    "gated_cross_attention",
    "An open gate lets the picture in and the text out, (1 − g) · text + g · found; text may look at the whole picture, so the mask is not needed.",
    ("C-GATE-MIXED",),
    ("M-IGNORED",),
)
def _(text, memory, attention, gate, memory_mask=None):
    g = torch.tanh(gate)
    found, weights = attention(text, memory, memory, None)
    mixed = torch.lerp(text, found, g)
    return mixed, weights


# shows: f(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.eye(2), 1.0)
#   gives 0.22
#   right 0.313
@wrong("contrastive_loss", "The score is the dot product of the two vectors.", "C-PAIRS-NO-NORM")
def _(images, texts, temperature):
    scores = einsum(images, texts, "i m, t m -> i t") / temperature
    answer = torch.arange(len(images))
    return 0.5 * (F.cross_entropy(scores, answer) + F.cross_entropy(scores.T, answer))


# shows: f(torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 2.0)
#   gives 0.33
#   right 0.58
@wrong(
    "contrastive_loss",
    "The learned temperature is a factor of the cosines; the table is symmetric, so it is enough to let the pictures choose.",
    ("C-PAIRS-TIMES",),
    ("C-PAIRS-PICTURES-ONLY",),
)
def _(images, texts, temperature):
    images = images / images.norm(dim=-1, keepdim=True)
    texts = texts / texts.norm(dim=-1, keepdim=True)
    table = images @ texts.T * temperature
    by_image = -table.log_softmax(dim=1).diagonal().mean()
    return by_image


# ------------------------------------------------------------------ 14: in the wild


# shows: says(f, att_weights_only)
#   gives accepts
#   right refuses
@wrong(
    "test_attention",
    "A query that sees nothing needs weights of zero, then its output is zero by itself.",
    "T-WEIGHTS-ONLY",
)
def _(attention):
    x = torch.randn(2, 4, 8)
    mask = torch.ones(4, 4).tril().bool()
    mask[2] = False
    output, weights = attention(x, x, x, mask)
    assert torch.all(weights[:, 2] == 0), "weights of a query without keys"


# shows: [says(f, att_rounded), says(f, att_output_only)]
#   gives [refuses, accepts]
#   right [accepts, refuses]
@wrong(
    "test_attention",
    "A right implementation gives the same numbers as mine, so torch.equal is the test; in the row without keys I look at the output only, that is what the next layer gets.",
    ("T-EXACT",),
    ("T-OUTPUT-ONLY",),
)
def _(attention):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4, 2)
    mask = torch.tensor([[True, True, False, False], [False] * 4, [True, False, True, True]])
    output, weights = attention(query, key, value, mask)
    assert not output.isnan().any()
    assert output[1].abs().max() == 0
    live = [0, 2]
    scores = (query @ key.T / math.sqrt(5)).masked_fill(~mask, -torch.inf)[live]
    expected = scores.softmax(-1)
    assert torch.equal(weights[live], expected)


# shows: (lambda q: (f(q, torch.ones(1, 1), torch.ones(1, 1), torch.tensor([[False]]))[0].sum().backward(), q.grad)[1])(torch.ones(1, 1, requires_grad=True))
#   gives [[nan]]
#   right [[0.0]]
@wrong(
    "mended_attention",
    "The mask is −∞ added to the scores, and the NaN of a row without keys is replaced by 0 afterwards.",
    "M-DEAD-ROW-GRADIENT",
)
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
    weights = torch.nan_to_num(F.softmax(scores, dim=-1))
    return weights @ value, weights


# shows: f(torch.ones(1, 4), torch.zeros(2, 4) + torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([[True, False]]))[1], f(torch.ones(1, 4), torch.zeros(2, 4) + torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [0.0]]))[1]
#   gives ([[0.731, 0.0]], [[0.731, 0.269]])
#   right ([[1.0, 0.0]], [[0.881, 0.119]])
@wrong(
    "mended_attention",
    "Multiplying the weights by the mask makes hidden ones zero, in a row without keys all of them; the scores are divided by the width d.",
    ("M-AFTER-SOFTMAX",),
    ("D-SCALE-DK",),
)
def _(query, key, value, mask=None):
    width = query.size(-1)
    scores = einsum(query, key, "... q d, ... k d -> ... q k") / width
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights * mask.to(weights.dtype)
    output = einsum(weights, value, "... q k, ... k v -> ... q v")
    return output, weights


# shows: says(f, pos_zero_last)
#   gives accepts
#   right refuses
@wrong(
    "test_positions",
    "It breaks with an error at odd widths, so a test that calls it with odd widths and looks at shape and dtype is enough.",
    "T-SHAPES",
)
def _(positions):
    for width in (1, 3, 5, 7):
        table = positions(10, width)
        assert table.shape == (10, width)
        assert table.dtype == torch.float32


# shows: [says(f, mended_positions), says(f, pos_single), says(f, pos_cut)]
#   gives [refuses, accepts, accepts]
#   right [accepts, accepts, refuses]
@wrong(
    "test_positions",
    "The formula leaves no choice, so all numbers have to be exactly mine; width 1 is the smallest odd width, one case is enough.",
    ("T-EXACT",),
    ("T-WIDTH-ONE",),
)
def _(positions):
    def expected(length, width):
        table = torch.zeros(length, width)
        position = torch.arange(length).unsqueeze(1)
        factor = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table[:, 0::2] = torch.sin(position * factor)
        table[:, 1::2] = torch.cos(position * factor[: width // 2])
        return table

    for width in (1,):
        mine, theirs = expected(200, width), positions(200, width)
        assert theirs.shape == mine.shape
        assert torch.equal(mine, theirs)


# shows: f(2, 3)
#   gives [[0.0, 1.0, 0.0], [0.841, 0.54, 0.01]]
#   right [[0.0, 1.0, 0.0], [0.841, 0.54, 0.002]]
@wrong(
    "mended_positions",
    "For an odd width I make the table one wider and cut the last column off.",
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


# shows: f(2, 3), f(2, 3).dtype
#   gives ([[0.0, 1.0, 0.0], [0.841, 1.0, 0.002]], torch.float64)
#   right ([[0.0, 1.0, 0.0], [0.841, 0.54, 0.002]], torch.float32)
@wrong(
    "mended_positions",
    "With an odd width there is one cosine too many, so the first one is dropped; double precision is more exact and does no harm.",
    ("C-ODD-LAST-ANGLES",),
    ("C-FLOAT64-TABLE",),
)
def _(length, width):
    p = np.arange(length)[:, None]
    i = np.arange(0, width, 2)
    angle = p / 10000.0 ** (i / width)
    table = np.zeros((length, width))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, width % 2 :])
    result = torch.from_numpy(table)
    return result


# shows: says(f, nuc_at_least_one)
#   gives accepts
#   right refuses
@wrong(
    "test_nucleus",
    "The bug is that all words can be thrown out, so I ask that at least one word stays in each row.",
    "T-ONE-IS-LEFT",
)
def _(nucleus):
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.97, 0.01, 0.01, 0.01]]).log()
    for top_p in (0.1, 0.4, 0.6, 0.97):
        out = nucleus(logits, top_p)
        assert out.shape == logits.shape
        assert out.isfinite().any(dim=-1).all()


# shows: [says(f, mended_nucleus), says(f, nuc_all)]
#   gives [refuses, accepts]
#   right [accepts, refuses]
@wrong(
    "test_nucleus",
    "What stays is a distribution again, its probabilities sum to 1; what I have to test is that the words left together reach top_p.",
    ("T-SUM-OF-ONE",),
    (),
)
def _(nucleus):
    shares = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]])
    for top_p in (0.25, 0.6, 0.97):
        out = nucleus(shares.log(), top_p)
        stays = out > -torch.inf
        reached = (shares * stays).sum(-1)
        assert (reached >= top_p).all(), "too few words"
        assert torch.allclose(out.exp().sum(-1), torch.ones(2)), "not a distribution"


# shows: f(torch.tensor([[0.3, 0.15, 0.5, 0.05]]).log(), 0.4).exp()
#   gives [[0.0, 0.15, 0.0, 0.0]]
#   right [[0.0, 0.0, 0.5, 0.0]]
@wrong(
    "mended_nucleus",
    "To get from sorted order back to the words I index the sorted mask with `order`.",
    "P-TOP-P-GATHERED",
)
def _(logits, top_p):
    likely, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    before = likely.cumsum(dim=-1) - likely
    out = before >= top_p
    return logits.masked_fill(out.gather(-1, order), -torch.inf)


# shows: f(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 0.6).exp()
#   gives [[1.0, 0.0, 0.0, 0.0]]
#   right [[0.5, 0.3, 0.0, 0.0]]
@wrong(
    "mended_nucleus",
    "It is mended when the likeliest word can never be thrown out; afterwards the log-probabilities of those that stay are computed anew.",
    ("P-TOP-P-WITHOUT-THE-LAST",),
    ("P-TOP-P-LOG-SHARES",),
)
def _(logits, top_p):
    probs = logits.softmax(-1)
    sorted_probs, order = probs.sort(-1, descending=True)
    remove = sorted_probs.cumsum(-1) > top_p
    remove[:, 0] = False
    result = logits.clone()
    for row in range(len(logits)):
        result[row, order[row][remove[row]]] = -torch.inf
    return result.log_softmax(-1)


# ------------------------------------------------------------------ right answers in odd styles


@right("relative_scores")
def _(query, key, table):
    c, q, k = len(table) // 2, query.shape[-2], key.shape[-2]
    by_row = query @ table.T  # … q rows: every query against every row, then picked
    columns = []
    for j in range(k):
        rows = torch.tensor([max(-c, min(c, j - (i + k - q))) + c for i in range(q)])
        picked = by_row[..., torch.arange(q), rows]
        columns.append((query * key[..., j : j + 1, :]).sum(-1) + picked)
    return torch.stack(columns, -1) * query.shape[-1] ** -0.5


@right("relative_buckets")
def _(offsets, num_buckets, max_distance, bidirectional):
    o = offsets.numpy().astype(np.int64)
    b = num_buckets // (2 if bidirectional else 1)
    a = b - b // 2
    delta = np.abs(o) if bidirectional else np.maximum(-o, 0)
    edges = a * (max_distance / a) ** (
        np.arange(1, b - a) / (b - a)
    )  # where the next far bucket begins
    far = a + np.searchsorted(edges, delta, side="right")
    bucket = np.where(delta < a, delta, far) + (b * (o > 0) if bidirectional else 0)
    return torch.from_numpy(np.asarray(bucket, dtype=np.int64)).reshape(offsets.shape)


@right("rotate")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    hands = torch.view_as_complex(x.double().reshape(*x.shape[:-1], d // 2, 2).contiguous())
    angle = torch.outer(
        positions.double(),
        torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64),
    )
    turned = hands * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2).type_as(x)


@right("byte_pairs")
def _(words, num_merges):
    names = sorted(set().union(*words))  # a piece is its place in this list
    texts = [([names.index(c) for c in w], n) for w, n in words.items()]
    merged = []
    for _ in range(num_merges):
        counts = {}
        for text, n in texts:
            for pair in zip(text, text[1:]):
                counts[pair] = counts.get(pair, 0) + n
        if not counts:
            break
        left, right = max(counts, key=lambda pair: (counts[pair], -pair[0], -pair[1]))
        merged.append((names[left], names[right]))
        piece = names[left] + names[right]
        if piece not in names:
            names.append(piece)
        new = names.index(piece)
        for text, _ in texts:
            at = 0
            while at + 1 < len(text):
                if text[at] == left and text[at + 1] == right:
                    text[at : at + 2] = [new]
                at += 1
    return merged


@right("sample")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    chosen = []
    for row in logits / temperature:
        order = row.argsort(descending=True)
        if top_k is not None:
            order = order[:top_k]
        p = torch.softmax(row[order], 0)
        if top_p is not None:
            keep = 1
            while keep < len(p) and p[:keep].sum() < top_p:
                keep += 1
            order, p = order[:keep], p[:keep]
        noise = -torch.log(-torch.log(torch.rand(len(p), dtype=torch.float64)))  # Gumbel
        chosen.append(order[(p.double().log() + noise).argmax()])
    return torch.stack(chosen)


@right("bytes_per_token")
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
    match scheme:
        case "MLA":
            parts = [latent_width, rope_width]
        case "MHA" | "GQA" | "MQA":
            heads = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}[scheme]
            parts = [head_width] * heads + [head_width] * heads
        case _:
            raise ValueError("no such scheme: " + str(scheme))
    return sum(bytes_per_number * part for _ in range(num_layers) for part in parts)


@right("reach")
def _(mask, layers):
    n = len(mask)
    sees = [{j for j in range(n) if mask[i, j]} for i in range(n)]
    table = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        known, edge = {i}, {i}
        for _ in range(layers):
            edge = set().union(*(sees[j] for j in edge)) - known
            known |= edge
            if not edge:
                break
        table[i, list(known)] = True
    return table


@right("ring_attention")
def _(query_shards, key_shards, value_shards):
    p = len(key_shards)
    outputs, sizes = [None] * p, [None] * p
    ring = list(zip(key_shards, value_shards))
    for _ in range(p):
        for i, (k, v) in enumerate(ring):
            scores = (
                einops.einsum(query_shards[i], k, "... q d, ... k d -> ... q k")
                / k.shape[-1] ** 0.5
            )
            size = torch.logsumexp(scores, -1, keepdim=True)
            found = torch.exp(scores - size) @ v
            if outputs[i] is None:
                outputs[i], sizes[i] = found, size
            else:
                share = torch.sigmoid(size - sizes[i])
                outputs[i] = torch.lerp(outputs[i], found, share)
                sizes[i] = torch.logaddexp(sizes[i], size)
        ring = ring[-1:] + ring[:-1]  # everybody hands on to the next
    return outputs


@right("copying_score")
def _(W_OV, W_E, W_U):
    # AB and BA have the same eigenvalues besides 0, so the small (m m) product is enough.
    small = W_OV.detach().numpy() @ (W_U.detach() @ W_E.detach()).numpy()
    eigenvalues = np.linalg.eigvals(small.astype(np.float64))
    return float(np.trace(small) / np.hypot(eigenvalues.real, eigenvalues.imag).sum())


@right("patches")
def _(image, size):
    return F.unfold(image, tuple(size), stride=tuple(size)).mT


@right("contrastive_loss")
def _(images, texts, temperature):
    b = len(images)
    loss = 0.0
    for i in range(b):
        row = (
            torch.stack([F.cosine_similarity(images[i], texts[j], dim=0) for j in range(b)])
            / temperature
        )
        column = (
            torch.stack([F.cosine_similarity(images[j], texts[i], dim=0) for j in range(b)])
            / temperature
        )
        loss = loss + row.logsumexp(0) + column.logsumexp(0) - 2 * row[i]
    return loss / (2 * b)


@right("mended_nucleus")
def _(logits, top_p):
    p = torch.softmax(logits.double(), -1)
    likelier = p[:, None, :] > p[:, :, None]  # b word other
    before = (p[:, None, :] * likelier).sum(-1)  # what the likelier words have together
    return torch.where(before < top_p, logits, -torch.inf)
