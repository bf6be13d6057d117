"""Answers to chapters 8–13 by a writer who had read the notebooks alone: 80 wrong and 30 right ones.

Written blind: neither pages nor judge were seen, and each wrong answer says what its writer believed.
Many follow public bug reports of the same algorithms. Two of them (034 and 035) fail by an accident
of their writer, who took the state for a tensor of floating-point numbers.

Before anything was mended by them, the judge accepted 29 of the 30 right ones, caught 79 of the 80
wrong ones, named 55 of the 65 single mistakes with the student's own thought (2 of them as a part), and both of
two in 12 of 15; it named none wrongly. `MENDED` are the answers of which it knew less than now.
"""

import copy
import heapq
import math
import re
from collections import Counter

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import nn

from attncourse.masking import causal_mask
from attncourse.multihead import merge_heads, split_heads
from attncourse.one_stack import byte_letters, byte_words
from attncourse.positions import rotate
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right

MENDED = (
    "sample-3",
    "extend-1",
    "cached_attention-3",
    "reach-2",
    "windowed_attention-2",
    "linear_attention-2",
    "linear_step-1",
    "linear_step-2",
    "linear_step-3",
    "ring_attention-1",
    "ring_attention-3",
    "span_mask-2",
    "induction_score-2",
    "gated_cross_attention-1",
)


# --- chapter 8, positions ---


# 001_relative_scores
@wrong(
    "relative_scores",
    "The queries start at place 0, also when more keys than queries are there",
    "P-TOPLEFT",
)
def _(query, key, table):
    n_q, n_k = query.shape[-2], key.shape[-2]
    reach = (table.shape[0] - 1) // 2
    place_q = torch.arange(n_q)
    place_k = torch.arange(n_k)
    offset = (place_k[None, :] - place_q[:, None]).clamp(-reach, reach)
    rows = table[offset + reach]  # q k d
    content = query @ key.mT
    position = einsum(query, rows, "... q d, q k d -> ... q k")
    return (content + position) / math.sqrt(query.shape[-1])


# 002_relative_scores
@wrong(
    "relative_scores",
    "The offset is the query place minus the key place, so the rows of the table are read in reverse",
    "C-SHAW-OTHER-WAY",
)
def _(query, key, table):
    q, d = query.shape[-2:]
    k = key.shape[-2]
    c = len(table) // 2
    i = torch.arange(k - q, k).unsqueeze(1)
    j = torch.arange(k).unsqueeze(0)
    index = torch.clamp(i - j, min=-c, max=c) + c
    by_offset = query @ table.T  # ... q r
    index = index.expand(*by_offset.shape[:-2], q, k)
    scores = query @ key.transpose(-1, -2) + by_offset.gather(-1, index)
    return scores / d**0.5


# 003_relative_scores
@wrong(
    "relative_scores",
    "Queries and keys both begin at place 0; only the content product is divided by the root of d, the position part is a bias",
    ("P-TOPLEFT",),
    ("C-SHAW-SCALED-HALF",),
)
def _(query, key, table):
    d = query.size(-1)
    q, k = query.size(-2), key.size(-2)
    c = (table.size(0) - 1) // 2
    places = torch.arange(k)
    mine = places[:q]
    steps = torch.clip(places - mine[:, None], -c, c)
    vectors = table[steps + c]
    content = torch.einsum("...id,...jd->...ij", query, key) / math.sqrt(d)
    position = torch.einsum("...id,ijd->...ij", query, vectors)
    return content + position


# 004_relative_scores
@right("relative_scores")
def _(query, key, table):
    r, d = table.shape
    q, k = query.shape[-2], key.shape[-2]
    offset = torch.arange(k) - torch.arange(k - q, k).unsqueeze(1)
    row = (offset + r // 2).clamp(0, r - 1)
    pick = F.one_hot(row, r).to(table.dtype)  # q k r
    keys = key.unsqueeze(-3) + pick @ table  # ... q k d
    return (query.unsqueeze(-2) * keys).sum(-1) * d**-0.5


# 005_relative_buckets
@wrong(
    "relative_buckets",
    "The far buckets divide the distances evenly, each as wide as the other",
    "C-BUCKETS-STRAIGHT",
)
def _(offsets, num_buckets, max_distance, bidirectional):
    result = torch.zeros_like(offsets, dtype=torch.long)
    if bidirectional:
        num_buckets //= 2
        result = result + (offsets > 0).long() * num_buckets
        distance = offsets.abs()
    else:
        distance = (-offsets).clamp(min=0)
    exact = num_buckets // 2
    far = distance.clamp(min=1).double()
    share = (far - exact) / (max_distance - exact)
    large = exact + (share * (num_buckets - exact)).floor().long()
    large = large.clamp(max=num_buckets - 1)
    return result + torch.where(distance < exact, distance.long(), large)


# 006_relative_buckets
@wrong(
    "relative_buckets",
    "The logarithm ends by itself, nothing need be cut at the last bucket; in one direction, too, the distance is the absolute value, and the mask takes care of later keys",
    ("C-BUCKETS-NO-END",),
    ("C-BUCKETS-FUTURE-DISTANCE",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    offsets = offsets.to(torch.int64)
    if bidirectional:
        b = num_buckets // 2
        start = torch.where(offsets > 0, b, 0)
        delta = offsets.abs()
    else:
        b = num_buckets
        start = torch.zeros_like(offsets)
        delta = torch.abs(offsets)
    a = b // 2
    far = torch.log(delta.clamp(min=a) / a) / math.log(max_distance / a) * (b - a)
    far = a + far.floor().long()
    return start + torch.where(delta < a, delta, far)


# 007_relative_buckets
@right("relative_buckets")
def _(offsets, num_buckets, max_distance, bidirectional):
    b = num_buckets // 2 if bidirectional else num_buckets
    a = b // 2
    near = [float(x) for x in range(1, a + 1)]
    far = [a * (max_distance / a) ** (n / (b - a)) for n in range(1, b - a)]
    borders = torch.tensor(near + far, dtype=torch.float64)
    back = offsets.abs() if bidirectional else torch.where(offsets < 0, -offsets, 0)
    bucket = torch.bucketize(back.double(), borders, right=True)
    return bucket + b * (offsets > 0) if bidirectional else bucket


# 008_alibi_bias
@wrong(
    "alibi_bias", "The same geometric series holds for any number of heads", "C-ALIBI-POWERS-ONLY"
)
def _(num_heads, query_length, key_length):
    h = num_heads
    slopes = [2.0 ** (-8.0 * i / h) for i in range(1, h + 1)]
    slopes = torch.tensor(slopes)
    i = torch.arange(key_length - query_length, key_length)[:, None]
    j = torch.arange(key_length)
    distance = (j - i).abs().float()
    return -slopes[:, None, None] * distance


# 009_alibi_bias
@wrong(
    "alibi_bias",
    "The distances of the queries are built from the number of queries alone, the first query stands at place 0",
    "P-TOPLEFT",
)
def _(num_heads, query_length, key_length):
    def series(n):
        start = 2 ** (-8 / n)
        return [start ** (i + 1) for i in range(n)]

    power = 2 ** math.floor(math.log2(num_heads))
    slopes = series(power)
    if power < num_heads:
        slopes += series(2 * power)[0::2][: num_heads - power]
    queries = torch.arange(query_length)
    keys = torch.arange(key_length)
    away = (queries.view(-1, 1) - keys.view(1, -1)).abs()
    m = torch.tensor(slopes, dtype=torch.float32).view(-1, 1, 1)
    return -(m * away)


# 010_alibi_bias
@wrong(
    "alibi_bias",
    "The bias is slope times distance, added with a plus; the slopes are one series for any number of heads",
    ("C-ALIBI-POSITIVE",),
    ("C-ALIBI-POWERS-ONLY",),
)
def _(num_heads, query_length, key_length):
    m = torch.tensor([2 ** (-8 * (n + 1) / num_heads) for n in range(num_heads)])
    last = key_length - 1
    i = last - torch.arange(query_length).flip(0)
    gap = torch.abs(torch.arange(key_length)[None] - i[:, None]).to(torch.float32)
    return einsum(m, gap, "h, q k -> h q k")


# 011_alibi_bias
@right("alibi_bias")
def _(num_heads, query_length, key_length):
    def slopes(h):
        if h & (h - 1) == 0:
            return [0.5 ** (8 * i / h) for i in range(1, h + 1)]
        p = 1 << (h.bit_length() - 1)
        return slopes(p) + slopes(2 * p)[::2][: h - p]

    bias = torch.empty(num_heads, query_length, key_length)
    for head, slope in enumerate(slopes(num_heads)):
        for i in range(query_length):
            here = key_length - query_length + i
            for j in range(key_length):
                bias[head, i, j] = -slope * abs(j - here)
    return bias


# 012_rotate
@wrong(
    "rotate",
    "A pair is feature i and feature i + d/2: the vector is cut into halves",
    "P-ROPE-LAYOUT",
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    speed = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = positions.to(torch.float64)[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    wide = x.double()
    a, b = wide[..., : d // 2], wide[..., d // 2 :]
    first, second = a * cos - b * sin, a * sin + b * cos
    out = torch.cat([first, second], dim=-1)
    return out.to(x.dtype)


# 013_rotate
@wrong(
    "rotate",
    "The angles may be computed in the dtype of x, since the result has it anyway",
    "P-LOWPREC",
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    kind = x.dtype
    pairs = torch.arange(0, d, 2, dtype=torch.float64)
    theta = (base ** (-pairs / d)).to(kind)
    angles = positions.to(kind).unsqueeze(-1) * theta
    c, s = torch.cos(angles), torch.sin(angles)
    even, odd = x[..., 0::2].to(kind), x[..., 1::2].to(kind)
    turned = torch.stack((even * c - odd * s, even * s + odd * c), dim=-1)
    return turned.flatten(-2).to(x.dtype)


# 014_rotate
@wrong(
    "rotate",
    "The n vectors stand at the places 0 to n − 1, so positions only say how many there are",
    "P-ROPE-CACHE",
)
def _(x, positions, base=10_000.0):
    n, d = x.shape[-2], x.shape[-1]
    places = torch.arange(n)
    rates = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    theta = torch.outer(places.double(), rates)
    z = x.double().unflatten(-1, (d // 2, 2))
    a, b = z.unbind(-1)
    out = torch.stack([a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()], -1)
    return out.flatten(-2).to(x.dtype)


# 015_rotate
@right("rotate")
def _(x, positions, base=10_000.0):
    exponent = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
    angle = positions.to(torch.float64).outer(base**-exponent)
    z = torch.complex(x[..., ::2].double(), x[..., 1::2].double())
    z = z * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(z).flatten(-2).to(x.dtype)


# 016_shift_relative
@wrong(
    "shift_relative",
    "After a zero column in front and the new shape, the last row is the one too many",
    "C-SHIFT-OTHER-END-CUT",
)
def _(scores):
    q, r = scores.shape[-2:]
    lead = scores.shape[:-2]
    padded = F.pad(scores, (1, 0))  # ... q r+1
    folded = padded.reshape(*lead, r + 1, q)
    shifted = folded[..., :-1, :].reshape(*lead, q, r)
    return shifted[..., : r - q + 1]


# 017_shift_relative
@wrong(
    "shift_relative",
    "Row 0 starts at the first column, and each row starts one column further right",
    "C-SHIFT-OTHER-WAY",
)
def _(scores):
    q, r = scores.size(-2), scores.size(-1)
    k = r - q + 1
    rows = []
    for i in range(q):
        begin = i
        rows.append(scores[..., i, begin : begin + k])
    return torch.stack(rows, dim=-2)


# 018_shift_relative
@right("shift_relative")
def _(scores):
    q, r = scores.shape[-2:]
    rolled = [scores[..., i, :].roll(i + 1 - q, dims=-1) for i in range(q)]
    return torch.stack(rolled, dim=-2)[..., : r + 1 - q]


# --- chapter 9, one stack ---


# 019_byte_pairs
@wrong(
    "byte_pairs",
    "A pair counts only as often as it can be merged: in aaa the pair a a stands once",
    "B-NO-OVERLAP",
)
def _(words, num_merges):
    split = {word: list(word) for word in words}
    rank = {letter: i for i, letter in enumerate(sorted(set("".join(words))))}
    merges = []
    for _ in range(num_merges):
        counts = Counter()
        for word, pieces in split.items():
            seen = {}
            for i, pair in enumerate(zip(pieces, pieces[1:])):
                if seen.get(pair) == i - 1 and pair[0] == pair[1]:
                    continue
                seen[pair] = i
                counts[pair] += words[word]
        if not counts:
            break
        best = min(counts, key=lambda p: (-counts[p], rank[p[0]], rank[p[1]]))
        merges.append(best)
        joined = best[0] + best[1]
        rank.setdefault(joined, len(rank))
        for word, pieces in split.items():
            new, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    new.append(joined)
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            split[word] = new
    return merges


# 020_byte_pairs
@wrong(
    "byte_pairs",
    "Of equally frequent pairs, the one that was counted first wins: max takes it",
    "B-FIRST-MET",
)
def _(words, num_merges):
    split = {word: list(word) for word in words}
    rank = {letter: i for i, letter in enumerate(sorted(set("".join(words))))}
    merges = []
    for _ in range(num_merges):
        counts = Counter()
        for word, pieces in split.items():
            for pair in zip(pieces, pieces[1:]):
                counts[pair] += words[word]
        if not counts:
            break
        best = max(counts, key=counts.get)
        merges.append(best)
        joined = best[0] + best[1]
        rank.setdefault(joined, len(rank))
        for word, pieces in split.items():
            new, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    new.append(joined)
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            split[word] = new
    return merges


# 021_byte_pairs
@wrong(
    "byte_pairs",
    "A pair that occurs only once is not worth a merge, so it stops there",
    "B-AT-LEAST-TWICE",
)
def _(words, num_merges):
    split = {word: list(word) for word in words}
    rank = {letter: i for i, letter in enumerate(sorted(set("".join(words))))}
    merges = []
    for _ in range(num_merges):
        counts = Counter()
        for word, pieces in split.items():
            for pair in zip(pieces, pieces[1:]):
                counts[pair] += words[word]
        if not counts or max(counts.values()) < 2:
            break
        best = min(counts, key=lambda p: (-counts[p], rank[p[0]], rank[p[1]]))
        merges.append(best)
        joined = best[0] + best[1]
        rank.setdefault(joined, len(rank))
        for word, pieces in split.items():
            new, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    new.append(joined)
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            split[word] = new
    return merges


# 022_byte_pairs
@wrong(
    "byte_pairs",
    "Each word of the dict counts once, whatever its number; ties are broken by the alphabet",
    ("B-EACH-WORD-ONCE",),
    ("B-ALPHABET",),
)
def _(words, num_merges):
    split = {word: list(word) for word in words}
    rank = {letter: i for i, letter in enumerate(sorted(set("".join(words))))}
    merges = []
    for _ in range(num_merges):
        counts = Counter()
        for word, pieces in split.items():
            for pair in zip(pieces, pieces[1:]):
                counts[pair] += 1
        if not counts:
            break
        best = min(counts, key=lambda p: (-counts[p], p))
        merges.append(best)
        joined = best[0] + best[1]
        rank.setdefault(joined, len(rank))
        for word, pieces in split.items():
            new, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    new.append(joined)
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            split[word] = new
    return merges


# 023_byte_pairs
@right("byte_pairs")
def _(words, num_merges):
    names = sorted({letter for word in words for letter in word})
    number = {name: i for i, name in enumerate(names)}
    texts = [([number[letter] for letter in word], times) for word, times in words.items()]
    result = []
    while len(result) < num_merges:
        votes = {}
        for pieces, times in texts:
            for i in range(len(pieces) - 1):
                pair = pieces[i], pieces[i + 1]
                votes[pair] = votes.get(pair, 0) + times
        if not votes:
            break
        most = max(votes.values())
        left, right = min(pair for pair, n in votes.items() if n == most)
        name = names[left] + names[right]
        result.append((names[left], names[right]))
        if name not in number:
            number[name] = len(names)
            names.append(name)
        new = number[name]
        for pieces, _ in texts:
            i = 0
            while i + 1 < len(pieces):
                if pieces[i] == left and pieces[i + 1] == right:
                    pieces[i : i + 2] = [new]
                i += 1
    return result


# 024_encode_text
@wrong(
    "encode_text",
    "Neighbors are joined from the left whenever their piece is in the vocabulary, the order of the merges does not matter",
    "B-LONGEST-PIECE",
)
def _(text, merges):
    pieces = sorted(byte_letters())
    for left, right in merges:
        if left + right not in pieces:
            pieces.append(left + right)
    place = {piece: i for i, piece in enumerate(pieces)}
    ids = []
    for part in byte_words(text):
        tokens = list(part)
        joining = True
        while joining:
            joining = False
            for i in range(len(tokens) - 1):
                if tokens[i] + tokens[i + 1] in place:
                    tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
                    joining = True
                    break
        ids.extend(place[token] for token in tokens)
    return ids


# 025_encode_text
@wrong(
    "encode_text",
    "Every merge has a place of its own, and a piece that is made twice gets the later one",
    "B-BORN-AGAIN",
)
def _(text, merges):
    vocabulary = {letter: i for i, letter in enumerate(sorted(byte_letters()))}
    for n, (left, right) in enumerate(merges):
        vocabulary[left + right] = 256 + n
    ids = []
    for part in byte_words(text):
        symbols = list(part)
        for left, right in merges:
            i = 0
            while i < len(symbols) - 1:
                if symbols[i] == left and symbols[i + 1] == right:
                    symbols[i] = left + right
                    del symbols[i + 1]
                i += 1
        for symbol in symbols:
            ids.append(vocabulary[symbol])
    return ids


# 026_encode_text
@right("encode_text")
def _(text, merges):
    mark = "\t"  # no byte letter is a tab
    ids = {piece: i for i, piece in enumerate(sorted(byte_letters()))}
    for pair in merges:
        piece = "".join(pair)
        ids[piece] = ids.get(piece, len(ids))
    result = []
    for part in byte_words(text):
        line = mark + mark.join(part) + mark
        for left, right in merges:
            pattern = f"(?<={mark}){re.escape(left)}{mark}{re.escape(right)}(?={mark})"
            line = re.sub(pattern, lambda found: found[0].replace(mark, ""), line)
        result += [ids[piece] for piece in line.split(mark)[1:-1]]
    return result


# 027_masked_words
@wrong(
    "masked_words",
    "Of the asked words that are not masked, a tenth is exchanged",
    "W-TENTH-OF-A-FIFTH",
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    inputs, targets = tokens.clone(), tokens.clone()

    def chance(p):
        return torch.rand(tokens.shape, generator=rng) < p

    asked = chance(share)
    targets[~asked] = -100
    masked = asked & chance(0.8)
    inputs[masked] = mask_id
    exchanged = asked & ~masked & chance(0.1)
    anything = torch.randint(vocabulary_size, tokens.shape, generator=rng)
    inputs[exchanged] = anything[exchanged]
    return inputs, targets


# 028_masked_words
@wrong(
    "masked_words",
    "The target stands only where the input was replaced by the mask",
    "W-ONLY-MASKS-ASKED",
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    asked = torch.rand(tokens.shape, generator=rng) < share
    dice = torch.rand(tokens.shape, generator=rng)
    hide = asked & (dice < 0.8)
    swap = asked & (dice >= 0.8) & (dice < 0.9)
    words = (torch.rand(tokens.shape, generator=rng) * vocabulary_size).long()
    inputs = tokens.masked_fill(hide, mask_id)
    inputs = torch.where(swap, words, inputs)
    targets = tokens.masked_fill(~hide, -100)
    return inputs, targets


# 029_masked_words
@right("masked_words")
def _(tokens, share, mask_id, vocabulary_size, rng):
    u = torch.rand(tokens.shape, generator=rng, dtype=torch.float64)
    other = torch.rand(tokens.shape, generator=rng, dtype=torch.float64)
    other = (other * vocabulary_size).floor().to(tokens.dtype)
    inputs = tokens.clone()
    inputs[u < 0.9 * share] = other[u < 0.9 * share]
    inputs[u < 0.8 * share] = mask_id
    return inputs, torch.where(u < share, tokens, torch.full_like(tokens, -100))


# 030_sample
@wrong(
    "sample",
    "A word stays if the sum including it is still at most top_p",
    "P-TOP-P-WITHOUT-THE-LAST",
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    scores = logits / temperature
    if top_k is not None:
        k = min(top_k, scores.shape[-1])
        least = scores.topk(k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    probs = scores.softmax(dim=-1)
    if top_p is not None:
        ordered, ids = probs.sort(dim=-1, descending=True)
        total = ordered.cumsum(dim=-1)
        keep = total <= top_p
        keep[:, 0] = True
        ordered = ordered * keep
        probs = torch.zeros_like(probs).scatter(-1, ids, ordered)
    return torch.multinomial(probs, 1).squeeze(-1)


# 031_sample
@wrong(
    "sample",
    "The temperature only matters for the draw, so it is applied after words have been cut",
    "P-TEMPERATURE-LAST",
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    x = logits
    if top_k is not None and top_k < x.size(-1):
        values, _ = torch.topk(x, top_k)
        x = torch.where(x < values[:, [-1]], torch.full_like(x, -math.inf), x)
    if top_p is not None:
        order = x.argsort(dim=-1, descending=True)
        p = F.softmax(x.gather(-1, order), dim=-1)
        before = p.cumsum(-1) - p
        drop = torch.zeros_like(x, dtype=torch.bool).scatter(-1, order, before >= top_p)
        x = x.masked_fill(drop, -math.inf)
    p = F.softmax(x / temperature, dim=-1)
    return torch.multinomial(p, num_samples=1)[:, 0]


# 032_sample
@wrong(
    "sample",
    "A high temperature sharpens: the logits are multiplied by it; the number drawn from the sorted list is the word",
    ("P-TEMPERATURE-TIMES",),
    ("P-SHARE-NOT-PLACE",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    ordered, words = (logits * temperature).sort(dim=-1, descending=True)
    if top_k is not None:
        ordered = ordered.clone()
        ordered[:, top_k:] = float("-inf")
    p = ordered.softmax(-1)
    if top_p is not None:
        p = p * ((p.cumsum(-1) - p) < top_p)
    drawn = torch.multinomial(p, 1)
    return drawn[:, 0]


# 033_sample
@right("sample")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    log_p = (logits / temperature).log_softmax(-1)
    log_p, words = log_p.sort(-1, descending=True)
    place = torch.arange(log_p.shape[-1])
    if top_k is not None:
        log_p = log_p.masked_fill(place >= top_k, -math.inf)
    if top_p is not None:
        p = log_p.softmax(-1)
        before = F.pad(p.cumsum(-1)[:, :-1], (1, 0))
        log_p = log_p.masked_fill((before >= top_p) & (place > 0), -math.inf)
    noise = -torch.log(torch.empty_like(log_p).exponential_())
    return words[torch.arange(len(words)), (log_p + noise).argmax(-1)]


# 034_beam_search
@wrong(
    "beam_search",
    "A beginning that has said eos goes on like the others, what follows is cut off at the end",
    "B-GOES-ON-AFTER-EOS",
)
def _(step, state, bos, eos, width, max_length):
    b = state.shape[0]
    total = torch.full((b, width), -math.inf, dtype=state.dtype)
    total[:, 0] = 0
    rows = torch.arange(b).repeat_interleave(width)
    state = state[rows]
    token = torch.full((b * width,), bos)
    written = torch.zeros(b, width, 0, dtype=torch.long)
    ended = torch.zeros(b, width, dtype=torch.bool)
    for _ in range(max_length):
        logits, state = step(token, state)
        vocab = logits.shape[-1]
        log_p = logits.log_softmax(-1).view(b, width, vocab)
        best = (total[:, :, None] + log_p).flatten(1).topk(width)
        total, parent = best.values, best.indices // vocab
        word = best.indices % vocab
        written = written.gather(1, parent[:, :, None].expand(-1, -1, written.shape[2]))
        written = torch.cat([written, word[:, :, None]], dim=2)
        ended = ended.gather(1, parent) | (word == eos)
        token = word.flatten()
        state = state[(parent + torch.arange(b)[:, None] * width).flatten()]
    result = written[:, 0]
    after = (result == eos).cumsum(1) > 0
    return result.masked_fill(after, eos)


# 035_beam_search
@wrong(
    "beam_search",
    "The beginnings are put in their new order, the state needs no new order, since step has just made it",
    "B-STATE-NOT-MOVED",
)
def _(step, state, bos, eos, width, max_length):
    batch = len(state)
    state = state.repeat_interleave(width, dim=0)
    ids = torch.full((batch * width, 1), bos)
    totals = torch.full((batch, width), -math.inf, dtype=state.dtype)
    totals[:, 0] = 0.0
    for _ in range(max_length):
        last = ids[:, -1]
        logits, state = step(last, state)
        log_p = F.log_softmax(logits, dim=-1)
        done = (ids[:, 1:] == eos).any(dim=1)
        if done.any():
            log_p = log_p.clone()
            log_p[done] = -math.inf
            log_p[done, eos] = 0.0
        size = log_p.shape[-1]
        candidates = totals.reshape(-1, 1) + log_p
        totals, index = candidates.reshape(batch, -1).topk(width, dim=-1)
        rows = (index // size + width * torch.arange(batch).unsqueeze(1)).reshape(-1)
        ids = torch.cat([ids[rows], (index % size).reshape(-1, 1)], dim=1)
    return ids.reshape(batch, width, -1)[:, 0, 1:]


# 036_beam_search
@right("beam_search")
def _(step, state, bos, eos, width, max_length):
    answers = []
    for first in state:
        beam = [(0.0, [], first)]
        for _ in range(max_length):
            if beam[0][1][-1:] == [eos]:
                break
            candidates = []
            for total, words, here in beam:
                if words[-1:] == [eos]:
                    candidates.append((total, words, here))
                    continue
                last = words[-1] if words else bos
                logits, after = step(torch.tensor([last]), here[None])
                log_p = torch.log_softmax(logits[0], -1).tolist()
                candidates += [(total + lp, words + [w], after[0]) for w, lp in enumerate(log_p)]
            beam = heapq.nlargest(width, candidates, key=lambda c: c[0])
        answers.append(beam[0][1])
    longest = max(map(len, answers))
    return torch.tensor([words + [eos] * (longest - len(words)) for words in answers])


# --- chapter 10, cache ---


# 037_extend
@wrong(
    "extend",
    "The cache that came in is the store: the new positions are written into it",
    "C-KEPT-IN-PLACE",
)
def _(cache, key, value):
    if cache is None:
        return key, value
    keys, values = cache
    keys.data = torch.cat([keys, key], dim=-2)
    values.data = torch.cat([values, value], dim=-2)
    return keys, values


# 038_extend
@wrong("extend", "The positions are axis 1, after the texts", "K-CAT-HEADS")
def _(cache, key, value):
    if not cache:
        return (key, value)
    old_key, old_value = cache
    return torch.cat((old_key, key), dim=1), torch.cat((old_value, value), dim=1)


# 039_cached_attention
@wrong(
    "cached_attention", "The triangle starts in the top left corner, as always", "K-MASK-TOP-LEFT"
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
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    weights = weights.masked_fill(~visible, 0.0)
    return weights @ value, (key, value)


# 040_cached_attention
@wrong(
    "cached_attention",
    "Minus infinity and a softmax are enough, also for a row in which everything is hidden",
    "M-DEAD-ROW",
)
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key = torch.cat([cache[0], key], dim=-2)
        value = torch.cat([cache[1], value], dim=-2)
    q, k = query.shape[-2], key.shape[-2]
    visible = torch.ones(q, k, dtype=torch.bool).tril(k - q)
    if mask is not None:
        visible = visible & mask
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    return weights @ value, (key, value)


# 041_cached_attention
@wrong(
    "cached_attention",
    "A mask that is given replaces the triangle; a softmax over nothing gives zeros by itself",
    ("K-MASK-INSTEAD",),
    ("M-DEAD-ROW",),
)
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key = torch.cat([cache[0], key], dim=-2)
        value = torch.cat([cache[1], value], dim=-2)
    q, k = query.shape[-2], key.shape[-2]
    visible = torch.ones(q, k, dtype=torch.bool).tril(k - q)
    if mask is not None:
        visible = mask
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    return weights @ value, (key, value)


# 042_cached_attention
@right("cached_attention")
def _(query, key, value, cache=None, mask=None):
    if cache is None:
        cache = key[..., :0, :], value[..., :0, :]
    n, q = cache[0].shape[-2], query.shape[-2]
    keys, values = (torch.cat(pair, dim=-2) for pair in zip(cache, (key, value)))
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], q, n + q) if mask.dim() > 1 else mask.expand(q, n + q)
    rows = []
    for i in range(q):
        end = n + i + 1
        scores = (query[..., i : i + 1, :] * keys[..., :end, :]).sum(-1) / query.shape[-1] ** 0.5
        if mask is None:
            weights = torch.softmax(scores, -1)
        else:
            seen = mask[..., i, :end]
            power = torch.where(seen, scores, -math.inf)
            power = torch.exp(power - power.amax(-1, keepdim=True).clamp_min(-1e9))
            total = power.sum(-1, keepdim=True)
            weights = power / torch.where(total > 0, total, 1.0)
        rows.append((weights.unsqueeze(-1) * values[..., :end, :]).sum(-2))
    return torch.stack(rows, dim=-2), (keys, values)


# 043_grouped_query_attention
@wrong(
    "grouped_query_attention",
    "Heads of queries take the cached heads in turn: the first, the second, the first, the second",
    "G-ORDER",
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    order = "(g c)"
    packed = rearrange(query, f"b {order} q d -> b c (g q) d", c=c)
    scores = packed @ key.mT / math.sqrt(d)
    scores = rearrange(scores, f"b c (g q) k -> b {order} q k", q=q)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    mixed = rearrange(weights, f"b {order} q k -> b c (g q) k", c=c) @ value
    return rearrange(mixed, f"b c (g q) v -> b {order} q v", q=q), weights


# 044_grouped_query_attention
@wrong(
    "grouped_query_attention",
    "Keys and values are repeated until there are as many as query heads, then it is ordinary attention",
    "G-EXPAND",
)
def _(query, key, value, mask=None):
    times = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(times, dim=1)
    value = value.repeat_interleave(times, dim=1)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = torch.where(mask, weights, 0.0)
    return weights @ value, weights


# 045_grouped_query_attention
@right("grouped_query_attention")
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    grouped = query.unflatten(1, (c, h // c))  # b c g q d
    scores = torch.einsum("bcgqd,bckd->bcgqk", grouped, key).flatten(1, 2) * d**-0.5
    if mask is None:
        weights = scores.softmax(-1)
    else:
        hidden = ~mask.expand(scores.shape)
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(hidden, 0)
    mixed = torch.einsum("bcgqk,bckv->bcgqv", weights.unflatten(1, (c, h // c)), value)
    return mixed.flatten(1, 2), weights


# 046_bytes_per_token
@wrong(
    "bytes_per_token", "kv_heads says how many heads of queries share one cached head", "G-MEMBERS"
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
    if scheme == "MLA":
        numbers = latent_width + rope_width
    else:
        if scheme == "MHA":
            heads = num_heads
        elif scheme == "GQA":
            heads = num_heads // kv_heads
        elif scheme == "MQA":
            heads = 1
        else:
            raise ValueError(f"unknown scheme {scheme}")
        numbers = 2 * heads * head_width
    return num_layers * numbers * bytes_per_number


# 047_bytes_per_token
@wrong(
    "bytes_per_token",
    "In MLA, too, keys and values of all heads stand in the cache, the latent is only how they are made",
    "L-NOTHING-SAVED",
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
    per_layer = {
        "MHA": 2 * num_heads * head_width,
        "GQA": 2 * (kv_heads or 0) * head_width,
        "MQA": 2 * head_width,
        "MLA": 2 * num_heads * head_width,
    }
    if scheme not in per_layer:
        raise ValueError("scheme")
    return int(per_layer[scheme] * num_layers * bytes_per_number)


# 048_bytes_per_token
@wrong(
    "bytes_per_token",
    "The latent is kept twice, for keys and for values; the rotated key is part of the latent and takes no room",
    ("L-LATENT-TWICE",),
    ("L-CACHE-SIZE",),
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
        n = 2 * num_heads * head_width
    elif scheme == "GQA":
        n = 2 * kv_heads * head_width
    elif scheme == "MQA":
        n = 2 * head_width
    elif scheme == "MLA":
        n = 2 * latent_width
    else:
        raise ValueError(scheme)
    return n * num_layers * bytes_per_number


# 049_bytes_per_token
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
        case "MHA":
            kept = num_heads * head_width * 2
        case "GQA":
            kept = kv_heads * head_width * 2
        case "MQA":
            kept = head_width * 2
        case "MLA":
            kept = latent_width + rope_width
        case _:
            raise ValueError(f"I know no scheme {scheme!r}")
    return bytes_per_number * kept * num_layers


# 050_LatentAttention
@wrong("LatentAttention", "Each step turns its new positions from 0 on", "P-ROPE-CACHE")
class Latent050(nn.Module):
    """Attention that caches a latent and one rotated key a token."""

    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        m, h, d, l, r = model_width, num_heads, head_width, latent_width, rope_width
        self.h, self.d, self.l, self.r = h, d, l, r
        self.q_proj = nn.Linear(m, h * d, bias=False)
        self.q_rope = nn.Linear(m, h * r, bias=False)
        self.down = nn.Linear(m, l, bias=False)
        self.norm = nn.RMSNorm(l, eps=1e-6)
        self.k_rope = nn.Linear(m, r, bias=False)
        self.k_up = nn.Linear(l, h * d, bias=False)
        self.v_up = nn.Linear(l, h * d, bias=False)
        self.out_proj = nn.Linear(h * d, m, bias=False)

    def heads(self, x):
        return rearrange(x, "b n (h d) -> b h n d", h=self.h)

    def forward(self, x):
        """x (b n m) -> (b n m), a whole text."""
        n = x.shape[1]
        places = torch.arange(n)
        latent = self.norm(self.down(x))
        key, value = self.heads(self.k_up(latent)), self.heads(self.v_up(latent))
        turned_key = rotate(self.k_rope(x), places)[:, None]
        query = self.heads(self.q_proj(x))
        turned_query = rotate(self.heads(self.q_rope(x)), places)
        scores = query @ key.mT + turned_query @ turned_key.mT
        scores = scores / math.sqrt(self.d + self.r)
        scores = scores.masked_fill(~causal_mask(n), -math.inf)
        output = scores.softmax(-1) @ value
        return self.out_proj(rearrange(output, "b h n d -> b n (h d)"))

    def step(self, x, cache=None):
        """x (b q m), new positions -> (b q m), and the longer cache."""
        q = x.shape[1]
        kept = 0 if cache is None else cache[0].shape[1]
        places = torch.arange(q)
        latent = self.norm(self.down(x))
        turned_key = rotate(self.k_rope(x), places)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            turned_key = torch.cat([cache[1], turned_key], dim=1)
        query = self.heads(self.q_proj(x))
        turned_query = rotate(self.heads(self.q_rope(x)), places)
        k_matrix = self.k_up.weight.view(self.h, self.d, self.l)
        v_matrix = self.v_up.weight.view(self.h, self.d, self.l)
        absorbed = einsum(query, k_matrix, "b h q d, h d l -> b h q l")
        scores = absorbed @ latent[:, None].mT + turned_query @ turned_key[:, None].mT
        scores = scores / math.sqrt(self.d + self.r)
        scores = scores.masked_fill(~causal_mask(q, kept + q), -math.inf)
        mixed = scores.softmax(-1) @ latent[:, None]
        output = einsum(mixed, v_matrix, "b h q l, h d l -> b q h d")
        return self.out_proj(output.flatten(2)), (latent, turned_key)


# 051_LatentAttention
@wrong(
    "LatentAttention",
    "In the absorbed form the compared vectors are l + r wide, so the scores are divided by the root of that",
    "L-SCALE-LATENT",
)
class Latent051(nn.Module):
    """Attention that caches a latent and one rotated key a token."""

    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        m, h, d, l, r = model_width, num_heads, head_width, latent_width, rope_width
        self.h, self.d, self.l, self.r = h, d, l, r
        self.q_proj = nn.Linear(m, h * d, bias=False)
        self.q_rope = nn.Linear(m, h * r, bias=False)
        self.down = nn.Linear(m, l, bias=False)
        self.norm = nn.RMSNorm(l, eps=1e-6)
        self.k_rope = nn.Linear(m, r, bias=False)
        self.k_up = nn.Linear(l, h * d, bias=False)
        self.v_up = nn.Linear(l, h * d, bias=False)
        self.out_proj = nn.Linear(h * d, m, bias=False)

    def heads(self, x):
        return rearrange(x, "b n (h d) -> b h n d", h=self.h)

    def forward(self, x):
        """x (b n m) -> (b n m), a whole text."""
        n = x.shape[1]
        places = torch.arange(n)
        latent = self.norm(self.down(x))
        key, value = self.heads(self.k_up(latent)), self.heads(self.v_up(latent))
        turned_key = rotate(self.k_rope(x), places)[:, None]
        query = self.heads(self.q_proj(x))
        turned_query = rotate(self.heads(self.q_rope(x)), places)
        scores = query @ key.mT + turned_query @ turned_key.mT
        scores = scores / math.sqrt(self.d + self.r)
        scores = scores.masked_fill(~causal_mask(n), -math.inf)
        output = scores.softmax(-1) @ value
        return self.out_proj(rearrange(output, "b h n d -> b n (h d)"))

    def step(self, x, cache=None):
        """x (b q m), new positions -> (b q m), and the longer cache."""
        q = x.shape[1]
        kept = 0 if cache is None else cache[0].shape[1]
        places = torch.arange(kept, kept + q)
        latent = self.norm(self.down(x))
        turned_key = rotate(self.k_rope(x), places)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            turned_key = torch.cat([cache[1], turned_key], dim=1)
        query = self.heads(self.q_proj(x))
        turned_query = rotate(self.heads(self.q_rope(x)), places)
        k_matrix = self.k_up.weight.view(self.h, self.d, self.l)
        v_matrix = self.v_up.weight.view(self.h, self.d, self.l)
        absorbed = einsum(query, k_matrix, "b h q d, h d l -> b h q l")
        scores = absorbed @ latent[:, None].mT + turned_query @ turned_key[:, None].mT
        scores = scores / math.sqrt(self.l + self.r)
        scores = scores.masked_fill(~causal_mask(q, kept + q), -math.inf)
        mixed = scores.softmax(-1) @ latent[:, None]
        output = einsum(mixed, v_matrix, "b h q l, h d l -> b q h d")
        return self.out_proj(output.flatten(2)), (latent, turned_key)


# 052_LatentAttention
@wrong(
    "LatentAttention",
    "The latent is cached as it comes from down, the norm is for whole texts; the first new position of each step is place 0",
    ("L-NORM-NOT-IN-STEP",),
    ("P-ROPE-CACHE",),
)
class Latent052(nn.Module):
    """Attention that caches a latent and one rotated key a token."""

    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        m, h, d, l, r = model_width, num_heads, head_width, latent_width, rope_width
        self.h, self.d, self.l, self.r = h, d, l, r
        self.q_proj = nn.Linear(m, h * d, bias=False)
        self.q_rope = nn.Linear(m, h * r, bias=False)
        self.down = nn.Linear(m, l, bias=False)
        self.norm = nn.RMSNorm(l, eps=1e-6)
        self.k_rope = nn.Linear(m, r, bias=False)
        self.k_up = nn.Linear(l, h * d, bias=False)
        self.v_up = nn.Linear(l, h * d, bias=False)
        self.out_proj = nn.Linear(h * d, m, bias=False)

    def heads(self, x):
        return rearrange(x, "b n (h d) -> b h n d", h=self.h)

    def forward(self, x):
        """x (b n m) -> (b n m), a whole text."""
        n = x.shape[1]
        places = torch.arange(n)
        latent = self.norm(self.down(x))
        key, value = self.heads(self.k_up(latent)), self.heads(self.v_up(latent))
        turned_key = rotate(self.k_rope(x), places)[:, None]
        query = self.heads(self.q_proj(x))
        turned_query = rotate(self.heads(self.q_rope(x)), places)
        scores = query @ key.mT + turned_query @ turned_key.mT
        scores = scores / math.sqrt(self.d + self.r)
        scores = scores.masked_fill(~causal_mask(n), -math.inf)
        output = scores.softmax(-1) @ value
        return self.out_proj(rearrange(output, "b h n d -> b n (h d)"))

    def step(self, x, cache=None):
        """x (b q m), new positions -> (b q m), and the longer cache."""
        q = x.shape[1]
        kept = 0 if cache is None else cache[0].shape[1]
        places = torch.arange(q)
        latent = self.down(x)
        turned_key = rotate(self.k_rope(x), places)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            turned_key = torch.cat([cache[1], turned_key], dim=1)
        query = self.heads(self.q_proj(x))
        turned_query = rotate(self.heads(self.q_rope(x)), places)
        k_matrix = self.k_up.weight.view(self.h, self.d, self.l)
        v_matrix = self.v_up.weight.view(self.h, self.d, self.l)
        absorbed = einsum(query, k_matrix, "b h q d, h d l -> b h q l")
        scores = absorbed @ latent[:, None].mT + turned_query @ turned_key[:, None].mT
        scores = scores / math.sqrt(self.d + self.r)
        scores = scores.masked_fill(~causal_mask(q, kept + q), -math.inf)
        mixed = scores.softmax(-1) @ latent[:, None]
        output = einsum(mixed, v_matrix, "b h q l, h d l -> b q h d")
        return self.out_proj(output.flatten(2)), (latent, turned_key)


# 053_LatentAttention
@right("LatentAttention")
class Latent053(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.l, self.r = num_heads, head_width, latent_width, rope_width
        for name, start, end in [
            ("q_proj", model_width, num_heads * head_width),
            ("q_rope", model_width, num_heads * rope_width),
            ("down", model_width, latent_width),
            ("k_rope", model_width, rope_width),
            ("k_up", latent_width, num_heads * head_width),
            ("v_up", latent_width, num_heads * head_width),
            ("out_proj", num_heads * head_width, model_width),
        ]:
            setattr(self, name, nn.Linear(start, end, bias=False))
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)

    def forward(self, x):
        return self.step(x)[0]

    def step(self, x, cache=None):
        new = torch.cat([self.norm(self.down(x)), self.k_rope(x)], dim=-1)
        kept = new if cache is None else torch.cat([cache, new], dim=1)  # b k l+r
        latent, side = kept.split([self.l, self.r], dim=-1)
        q, k = x.shape[1], kept.shape[1]
        side = rotate(side, torch.arange(k))
        ask = self.q_proj(x).unflatten(-1, (self.h, self.d))  # b q h d
        turn = self.q_rope(x).unflatten(-1, (self.h, self.r)).transpose(1, 2)  # b h q r
        turn = rotate(turn, torch.arange(k - q, k))
        up = self.k_up.weight.unflatten(0, (self.h, self.d))  # h d l
        ask = torch.einsum("bqhd,hdl->bhql", ask, up)
        scores = torch.einsum("bhql,bkl->bhqk", ask, latent)
        scores = (scores + torch.einsum("bhqr,bkr->bhqk", turn, side)) * (self.d + self.r) ** -0.5
        late = torch.arange(k) > torch.arange(k - q, k)[:, None]
        weights = (scores - torch.where(late, math.inf, 0.0)).softmax(-1)
        mixed = torch.einsum("bhqk,bkl->bqhl", weights, latent)
        down = self.v_up.weight.unflatten(0, (self.h, self.d))
        return self.out_proj(torch.einsum("bqhl,hdl->bqhd", mixed, down).flatten(-2)), kept


# --- chapter 11, long sequences ---


# 054_window_mask
@wrong("window_mask", "A word sees places that are less than width away", "W-WIDTH-STRICT")
def _(n, width, global_tokens=0):
    place = torch.arange(n)
    distance = (place[:, None] - place[None, :]).abs()
    near = distance < width
    whole = place < global_tokens
    return near | whole[:, None] | whole[None, :]


# 055_window_mask
@wrong(
    "window_mask", "Global words see all words, that is what makes them global", "W-GLOBAL-LOOKS"
)
def _(n, width, global_tokens=0):
    mask = torch.ones(n, n, dtype=torch.bool).tril(width).triu(-width)
    mask[:global_tokens, :] = True
    return mask


# 056_window_mask
@wrong(
    "window_mask",
    "width is the whole window, half of it on each side; the first words are seen by all, but see only their window",
    ("W-WIDTH-WHOLE",),
    ("W-GLOBAL-LOOKED-AT",),
)
def _(n, width, global_tokens=0):
    side = width // 2
    i, j = torch.arange(n).view(n, 1), torch.arange(n).view(1, n)
    inside = (j >= i - side) & (j <= i + side)
    return inside | (j < global_tokens)


# 057_window_mask
@right("window_mask")
def _(n, width, global_tokens=0):
    return torch.tensor(
        [[abs(i - j) <= width or min(i, j) < global_tokens for j in range(n)] for i in range(n)]
    )


# 058_reach
@wrong(
    "reach",
    "What arrives is what the product of the masks says, a word keeps itself only if it may attend to itself",
    "R-FORGETS",
)
def _(mask, layers):
    known = torch.eye(mask.shape[0])
    step = mask.float()
    for _ in range(layers):
        known = ((step @ known) > 0).float()
    return known.bool()


# 059_reach
@wrong(
    "reach",
    "The number of ways fits into small whole numbers, which save memory",
    "R-PATHS-OVERFLOW",
)
def _(mask, layers):
    n = mask.shape[0]
    kind = torch.uint8
    step = mask.to(kind) + torch.eye(n, dtype=kind)
    paths = torch.eye(n, dtype=kind)
    for _ in range(layers):
        paths = step @ paths
    return paths > 0


# 060_reach
@right("reach")
def _(mask, layers):
    n = len(mask)
    sees = [[j for j in range(n) if mask[i, j]] for i in range(n)]
    knows = [{i} for i in range(n)]
    for _ in range(layers):
        knows = [knows[i].union(*(knows[j] for j in sees[i])) for i in range(n)]
    table = torch.zeros(n, n, dtype=torch.bool)
    for i, known in enumerate(knows):
        table[i, list(known)] = True
    return table


# 061_windowed_attention
@wrong(
    "windowed_attention",
    "A word sees its own block and the blocks beside it, as they are",
    "W-THREE-BLOCKS",
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    outputs = []
    for start in range(0, n, width):
        stop = min(start + width, n)
        first, last = max(start - width, 0), min(stop + width, n)
        scores = query[..., start:stop, :] @ key[..., first:last, :].mT / math.sqrt(d)
        outputs.append(scores.softmax(-1) @ value[..., first:last, :])
    return torch.cat(outputs, dim=-2)


# 062_windowed_attention
@wrong(
    "windowed_attention", "The padding at both ends is zero, so it does no harm", "W-PADDING-SEEN"
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    wide = 2 * width + 1

    def around(x):
        return F.pad(x, (0, 0, width, width)).unfold(-2, wide, 1)  # ... n d w

    scores = einsum(query, around(key), "... n d, ... n d w -> ... n w") / math.sqrt(d)
    return einsum(scores.softmax(-1), around(value), "... n w, ... n v w -> ... n v")


# 063_windowed_attention
@wrong(
    "windowed_attention",
    "A window looks back: the last width words and the word itself; the scores need no root of d in a window",
    ("W-PAST-ONLY",),
    ("D-NO-SCALE",),
)
def _(query, key, value, width):
    n = query.shape[-2]
    root = 1.0
    pieces = []
    for begin in range(0, n, width):
        end = min(n, begin + width)
        low, high = max(0, begin - width), min(n, end + width)
        near = query[..., begin:end, :] @ key[..., low:high, :].transpose(-1, -2) / root
        ago = torch.arange(begin, end)[:, None] - torch.arange(low, high)[None, :]
        visible = (ago >= 0) & (ago <= width)
        weights = torch.softmax(near.masked_fill(~visible, float("-inf")), dim=-1)
        pieces.append(weights @ value[..., low:high, :])
    return torch.cat(pieces, -2)


# 064_windowed_attention
@right("windowed_attention")
def _(query, key, value, width):
    n, d = query.shape[-2:]
    shifts = range(-min(width, n - 1), min(width, n - 1) + 1)
    scores = query.new_full((*query.shape[:-1], len(shifts)), -math.inf)
    for column, shift in enumerate(shifts):
        i = slice(max(0, -shift), min(n, n - shift))
        j = slice(max(0, shift), min(n, n + shift))
        scores[..., i, column] = (query[..., i, :] * key[..., j, :]).sum(-1) / math.sqrt(d)
    weights = scores.softmax(-1)
    output = value.new_zeros(value.shape)
    for column, shift in enumerate(shifts):
        i = slice(max(0, -shift), min(n, n - shift))
        j = slice(max(0, shift), min(n, n + shift))
        output[..., i, :] += weights[..., i, column, None] * value[..., j, :]
    return output


# 065_linear_attention
@wrong(
    "linear_attention",
    "The sum of the weights is a normalizer that is multiplied in at the end",
    "L-MULTIPLIED",
)
def _(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    norm = einsum(q, k.cumsum(dim=-2), "... n d, ... n d -> ... n")
    memory = einsum(k, value, "... n d, ... n v -> ... n d v").cumsum(dim=-3)
    output = einsum(q, memory, "... n d, ... n d v -> ... n v")
    return output * norm[..., None]


# 066_linear_attention
@wrong("linear_attention", "Sums over the words run along axis 1, as after the batch", "L-AXIS-1")
def _(query, key, value):
    def phi(x):
        return torch.nn.functional.elu(x) + 1

    q, k = phi(query), phi(key)
    so_far = torch.tril(q @ k.transpose(-2, -1))
    top = so_far @ value
    axis = 1
    bottom = (q * torch.cumsum(k, dim=axis)).sum(dim=-1, keepdim=True)
    return top / bottom


# 067_linear_attention
@wrong(
    "linear_attention",
    "The weights are divided by their sum over all keys of the text",
    "L-TOTAL-OF-ALL",
)
def _(query, key, value):
    q = F.elu(query) + 1.0
    k = F.elu(key) + 1.0
    weights = q @ k.mT
    seen = weights.tril()
    total = weights.sum(dim=-1, keepdim=True)
    return (seen / total) @ value


# 068_linear_attention
@right("linear_attention")
def _(query, key, value):
    q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (query, key))
    memory, total, rows = 0, 0, []
    for i in range(value.shape[-2]):
        memory = memory + k[..., i, :, None] * value[..., i, None, :]
        total = total + k[..., i, :]
        top = (q[..., i, :, None] * memory).sum(-2)
        rows.append(top / (q[..., i, :] * total).sum(-1, keepdim=True))
    return torch.stack(rows, -2)


# 069_linear_step
@wrong(
    "linear_step",
    "The output is read from the state before the new word is added to it",
    "L-READS-FIRST",
)
def _(state, query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    new = k[..., :, None] * value[..., None, :]
    if state is None:
        state = torch.zeros_like(new), torch.zeros_like(k)
    after = state[0] + new, state[1] + k
    memory, total = state
    output = einsum(q, memory, "... d, ... d v -> ... v")
    output = output / einsum(q, total, "... d, ... d -> ...")[..., None]
    return output, after


# 070_linear_step
@wrong("linear_step", "The state is an accumulator: new words are added into it", "C-KEPT-IN-PLACE")
def _(state, query, key, value):
    phi_q, phi_k = F.elu(query) + 1, F.elu(key) + 1
    outer = torch.einsum("...d,...v->...dv", phi_k, value)
    if state is None:
        s, z = outer, phi_k
    else:
        s, z = state
        s += outer
        z += phi_k
    numerator = torch.einsum("...d,...dv->...v", phi_q, s)
    denominator = (phi_q * z).sum(-1, keepdim=True)
    return numerator / denominator, (s, z)


# 071_linear_step
@right("linear_step")
def _(state, query, key, value):
    q, k = F.elu(query).add(1), F.elu(key).add(1)
    own = (q * k).sum(-1, keepdim=True)
    kv = torch.einsum("...i,...j->...ij", k, value)
    if state is None:
        return value.clone(), (kv, k)
    old_kv, old_k = state
    top = (q.unsqueeze(-2) @ old_kv).squeeze(-2) + own * value
    bottom = (q * old_k).sum(-1, keepdim=True) + own
    return top / bottom, (old_kv + kv, old_k + k)


# 072_ring_attention
@wrong(
    "ring_attention", "The logarithms of two sums are joined by adding them", "R-ADDED-LOGARITHMS"
)
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    results = []
    for me in range(p):
        query = query_shards[me]
        out = lse = None
        for hop in range(p):
            at = (me - hop) % p
            scores = query @ key_shards[at].mT / math.sqrt(query.shape[-1])
            block_lse = scores.logsumexp(-1, keepdim=True)
            block = scores.softmax(-1) @ value_shards[at]
            if out is None:
                out, lse = block, block_lse
                continue
            new = lse + block_lse
            out = torch.exp(lse - new) * out + torch.exp(block_lse - new) * block
            lse = new
        results.append(out)
    return results


# 073_ring_attention
@wrong(
    "ring_attention",
    "Sums of e to the score can be added up as they are, no maximum is needed",
    "R-OVERFLOW",
)
def _(query_shards, key_shards, value_shards):
    outputs = []
    for query in query_shards:
        scale = query.shape[-1] ** -0.5
        above, below = 0.0, 0.0
        for key, value in zip(key_shards, value_shards):
            e = torch.exp((query @ key.mT) * scale)
            above = above + e @ value
            below = below + e.sum(-1, keepdim=True)
        outputs.append(above / below)
    return outputs


# 074_ring_attention
@wrong(
    "ring_attention",
    "Each process softmaxes its own shard, and the result is the mean of the p outputs; the product is not divided by the root of d",
    ("R-MEAN",),
    ("D-NO-SCALE",),
)
def _(query_shards, key_shards, value_shards):
    results = []
    for query in query_shards:
        d = query.shape[-1]
        parts, logs = [], []
        for key, value in zip(key_shards, value_shards):
            scores = query @ key.mT
            parts.append(scores.softmax(-1) @ value)
            logs.append(scores.logsumexp(-1))
        results.append(sum(parts) / len(parts))
    return results


# 075_ring_attention
@right("ring_attention")
def _(query_shards, key_shards, value_shards):
    p, results = len(query_shards), []
    for me, query in enumerate(query_shards):
        route = [(me + hop) % p for hop in range(p)]

        def scores(at):
            return einsum(query, key_shards[at], "... q d, ... k d -> ... q k") / math.sqrt(
                query.shape[-1]
            )

        logs = torch.stack([scores(at).logsumexp(-1) for at in route]).logsumexp(0)
        results.append(sum((scores(at) - logs[..., None]).exp() @ value_shards[at] for at in route))
    return results


# 076_span_mask
@wrong(
    "span_mask",
    "The ramp lies inside the span: the line begins at span − ramp and reaches 0 at the span",
    "A-RAMP-INSIDE",
)
def _(distance, span, ramp):
    line = (span - distance) / ramp
    return line.clamp(0, 1)


# 077_span_mask
@wrong("span_mask", "The span is a share of the longest distance", "A-SHARE-OF-THE-LONGEST")
def _(distance, span, ramp):
    size = span * distance.max()
    return torch.clamp(1 - (distance - size) / ramp, min=0.0, max=1.0)


# 078_span_mask
@right("span_mask")
def _(distance, span, ramp):
    return F.hardtanh(1 + (span - distance) / ramp, min_val=0.0, max_val=1.0)


# --- chapter 12, looking inside ---


# 079_ablated
@wrong(
    "ablated",
    "A hook on the model changes what it does while the hook is there, so no copy is needed",
    "I-NO-COPY",
)
def _(model, layer, head, value):
    silent = model
    attention = silent.get_submodule(layer)
    width = attention.out_proj.in_features // attention.num_heads

    def replace(module, inputs):
        x = inputs[0].clone()
        x[..., head * width : (head + 1) * width] = value
        return (x,)

    attention.out_proj.register_forward_pre_hook(replace)
    return silent


# 080_ablated
@wrong(
    "ablated",
    "The features of the heads alternate: every num_heads-th feature belongs to this head",
    "I-INTERLEAVED",
)
def _(model, layer, head, value):
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)

    class Silenced(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            x = x.clone()
            mine = torch.arange(x.shape[-1]).unflatten(0, (-1, attention.num_heads))[:, head]
            x[..., mine] = value
            return self.inner(x)

    attention.out_proj = Silenced(attention.out_proj)
    return model


class WithoutHead(nn.Module):
    def __init__(self, linear, num_heads, head, value):
        super().__init__()
        self.linear, self.num_heads, self.head, self.value = linear, num_heads, head, value

    def forward(self, x):
        heads = list(x.chunk(self.num_heads, dim=-1))
        value = torch.as_tensor(self.value, dtype=x.dtype, device=x.device)
        heads[self.head] = value.expand_as(heads[self.head])
        return self.linear(torch.cat(heads, dim=-1))


# 081_ablated
@right("ablated")
def _(model, layer, head, value):
    new = copy.deepcopy(model)
    attention = new.get_submodule(layer)
    attention.out_proj = WithoutHead(attention.out_proj, attention.num_heads, head, value)
    return new


# 082_induction_score
@wrong(
    "induction_score",
    "An induction head looks at the earlier occurrence of the same word, period places back",
    "I-SAME-WORD",
)
def _(weights, period):
    n = weights.shape[-1]
    here = torch.arange(period, n)
    back = period
    return weights[..., here, here - back].mean(dim=-1)


# 083_induction_score
@wrong(
    "induction_score",
    "The score is the share of all weights in the table that lies on the stripe",
    "I-SHARE-OF-ALL",
    "I-DIVIDED-BY-N",
)
def _(weights, period):
    n = weights.shape[-1]
    i = torch.arange(n)
    pattern = (i[:, None] - i == period - 1) & (i[:, None] >= period)
    found = (weights * pattern).sum(dim=(-2, -1))
    return found / weights.sum(dim=(-2, -1))


# 084_induction_score
@right("induction_score")
def _(weights, period):
    n = weights.shape[-1]
    found = 0
    for i in range(period, n):
        found = found + weights[..., i, i - (period - 1)]
    return found / (n - period)


# 085_copying_score
@wrong(
    "copying_score",
    "Eigenvalues are real numbers, so only the real parts count, above and below",
    "I-IMAGINARY-DROPPED",
)
def _(W_OV, W_E, W_U):
    table = W_E @ W_OV @ W_U
    values = torch.linalg.eigvals(table)
    return (values.real.sum() / values.real.abs().sum()).item()


# 086_copying_score
@wrong(
    "copying_score",
    "What a head does is in W_OV alone; the size below the line is the sum of the singular values",
    ("I-OV-ALONE",),
    ("I-SINGULAR-BELOW",),
)
def _(W_OV, W_E, W_U):
    whole = W_OV
    real = torch.linalg.eigvals(whole).real
    size = torch.linalg.svdvals(whole)
    return float(real.sum() / size.sum())


# 087_copying_score
@right("copying_score")
def _(W_OV, W_E, W_U):
    eigenvalues = torch.linalg.eig(W_OV @ (W_U @ W_E))[0]
    return float(torch.sum(torch.real(eigenvalues)) / torch.sum(torch.abs(eigenvalues)))


# 088_rollout
@wrong(
    "rollout",
    "The layers are multiplied in the order in which they stand: first times second",
    "I-ORDER",
)
def _(weights):
    n = weights[0].shape[-1]
    result = torch.eye(n).expand(weights[0].shape[0], n, n).to(weights[0])
    for layer in weights:
        mixed = 0.5 * layer.mean(dim=1) + 0.5 * torch.eye(n).to(layer)
        result = result @ mixed
    return result


# 089_rollout
@wrong(
    "rollout",
    "The residual connection adds the identity, as the model does: mean plus I",
    "I-NOT-HALVED",
)
def _(weights):
    same = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    through = None
    for table in weights:
        step = table.mean(1) + same
        through = step if through is None else torch.bmm(step, through)
    return through


# 090_rollout
@right("rollout")
def rollout(weights):
    *before, last = weights
    mean = einsum(last, "b h q k -> b q k") / last.shape[1]
    step = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype)) * 0.5
    return step @ rollout(before) if before else step


# 091_patched
@wrong(
    "patched",
    "The clean texts are read, and the place comes from the corrupted ones",
    "I-DIRECTION",
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    attention = model.get_submodule(layer)
    d = attention.out_proj.in_features // attention.num_heads
    mine = slice(head * d, (head + 1) * d)
    giver, reader = corrupted, clean
    kept = {}

    def keep(module, inputs):
        kept["x"] = inputs[0].detach().clone()

    def put(module, inputs):
        x = inputs[0].clone()
        x[:, position, mine] = kept["x"][:, position, mine]
        return (x,)

    handle = attention.out_proj.register_forward_pre_hook(keep)
    model(giver)
    handle.remove()
    handle = attention.out_proj.register_forward_pre_hook(put)
    scores = model(reader)
    handle.remove()
    return scores


# 092_patched
@wrong(
    "patched",
    "The slice from position to position + 1 holds one place, whatever the position",
    "I-EMPTY-SLICE",
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    module = model.get_submodule(layer)
    store = []

    def read_clean(_, inputs):
        store.append(inputs[0])

    def write(_, inputs):
        x, source = inputs[0].clone(), store[0]
        width = x.shape[-1] // module.num_heads
        at = slice(position, position + 1)
        a, b = head * width, (head + 1) * width
        x[:, at, a:b] = source[:, at, a:b]
        return x

    one = module.out_proj.register_forward_pre_hook(read_clean)
    try:
        model(clean)
    finally:
        one.remove()
    two = module.out_proj.register_forward_pre_hook(write)
    try:
        return model(corrupted)
    finally:
        two.remove()


# 093_patched
@right("patched")
def _(model, clean, corrupted, place):
    layer, head, position = place
    kept = None

    def run(text, change):
        twin = copy.deepcopy(model)
        attention = twin.get_submodule(layer)
        inner = attention.out_proj.forward
        attention.out_proj.forward = lambda x: inner(change(split_heads(x, attention.num_heads)))
        return twin(text)

    def keep(heads):
        nonlocal kept
        kept = heads[:, head, position]
        return merge_heads(heads)

    def put(heads):
        heads = heads.clone()
        heads[:, head, position] = kept
        return merge_heads(heads)

    run(clean, keep)
    return run(corrupted, put)


# --- chapter 13, pictures ---


# 094_patches
@wrong(
    "patches",
    "A view cuts the picture: each patch is the next stretch of numbers",
    "C-PATCH-RESHAPED",
)
def _(image, size):
    b, c, y, x = image.shape
    height, width = size
    n = (y // height) * (x // width)
    return image.reshape(b, n, c * height * width)


# 095_patches
@wrong("patches", "Within a patch, the colors of a pixel stand side by side", "C-PATCH-COLOR-LAST")
def _(image, size):
    b, c, y, x = image.shape
    p, q = size
    tiles = image.reshape(b, c, y // p, p, x // q, q)
    tiles = tiles.permute(0, 2, 4, 3, 5, 1)
    return tiles.reshape(b, (y // p) * (x // q), c * p * q)


# 096_patches
@right("patches")
def _(image, size):
    columns = F.unfold(image, kernel_size=tuple(size), stride=tuple(size))  # b p n
    return columns.transpose(1, 2)


# 097_positions_2d
@wrong(
    "positions_2d",
    "The first half of the features belongs to the column (x), the second to the row (y)",
    "C-2D-COLUMN-FIRST",
)
def _(rows, columns, width):
    half = width // 2

    def waves(place):
        angles = place[:, None] / 10_000 ** (torch.arange(0, half, 2).double() / half)
        table = torch.zeros(len(place), half, dtype=torch.float64)
        table[:, 0::2] = angles.sin()
        table[:, 1::2] = angles.cos()[:, : half // 2]
        return table

    row = torch.arange(rows).double().repeat_interleave(columns)
    column = torch.arange(columns).double().repeat(rows)
    return torch.cat([waves(column), waves(row)], dim=1).float()


# 098_positions_2d
@wrong("positions_2d", "All sines come first, then all cosines", "C-2D-SINES-FIRST")
def _(rows, columns, width):
    half = width // 2

    def waves(place):
        angles = place[:, None] / 10_000 ** (torch.arange(0, half, 2).double() / half)
        table = torch.cat([angles.sin(), angles.cos()], dim=1)[:, :half]
        return table

    row = torch.arange(rows).double().repeat_interleave(columns)
    column = torch.arange(columns).double().repeat(rows)
    return torch.cat([waves(row), waves(column)], dim=1).float()


# 099_positions_2d
@wrong(
    "positions_2d",
    "x comes before y, so the column has the first half; the width in the exponent is the whole width of the vector",
    ("C-2D-COLUMN-FIRST",),
    ("C-2D-SPEEDS-OF-ALL",),
)
def _(rows, columns, width):
    half = width // 2

    def waves(place):
        angles = place[:, None] / 10_000 ** (torch.arange(0, half, 2).double() / width)
        table = torch.zeros(len(place), half, dtype=torch.float64)
        table[:, 0::2] = angles.sin()
        table[:, 1::2] = angles.cos()[:, : half // 2]
        return table

    row = torch.arange(rows).double().repeat_interleave(columns)
    column = torch.arange(columns).double().repeat(rows)
    return torch.cat([waves(column), waves(row)], dim=1).float()


# 100_positions_2d
@right("positions_2d")
def _(rows, columns, width):
    half = width // 2

    def feature(place, f):
        angle = place / 10_000 ** (2 * (f // 2) / half)
        return math.cos(angle) if f % 2 else math.sin(angle)

    table = []
    for y in range(rows):
        for x in range(columns):
            table.append(
                [feature(y, f) for f in range(half)] + [feature(x, f) for f in range(half)]
            )
    return torch.tensor(table, dtype=torch.float32)


# 101_read
@wrong(
    "read", "Each row writes max_length words, whoever prints them cuts at eos", "C-READ-TALKS-ON"
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    ids = torch.full((image.shape[0], 1), bos, dtype=torch.long)
    for _ in range(max_length):
        scores = model.decode(ids, memory, memory_mask)
        best = scores[:, -1].argmax(dim=-1)
        ids = torch.cat([ids, best[:, None]], dim=1)
    return ids[:, 1:]


# 102_read
@wrong("read", "The picture is looked at again for each word", "C-READ-LOOKS-AGAIN")
def _(model, image, bos=1, eos=2, max_length=12):
    words = torch.full((len(image), 1), bos)
    over = torch.zeros(len(image), dtype=torch.bool)
    while words.shape[1] <= max_length and not over.all():
        memory, mask = model.encode(image)
        word = model.decode(words, memory, mask)[:, -1].argmax(-1)
        word[over] = eos
        over = over | (word == eos)
        words = torch.cat((words, word.unsqueeze(1)), 1)
    return words[:, 1:]


# 103_read
@wrong(
    "read",
    "The text is complete with its bos; the other rows go on writing until each has ended, and so does a row that has ended",
    ("C-READ-KEEPS-BOS",),
    ("C-READ-TALKS-ON",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    text = torch.full((len(image), 1), bos)
    finished = torch.zeros(len(image), dtype=torch.bool)
    for _ in range(max_length):
        following = model.decode(text, memory, memory_mask)[:, -1].argmax(-1)
        text = torch.cat([text, following[:, None]], dim=-1)
        finished |= following == eos
        if finished.all():
            break
    return text


# 104_read
@right("read")
def _(model, image, bos=1, eos=2, max_length=12):
    looked = model.encode(image)
    ids = torch.full((image.shape[0], 1 + max_length), eos)
    ids[:, 0] = bos
    going = torch.ones(image.shape[0], dtype=torch.bool)
    for t in range(max_length):
        likeliest = model.decode(ids[:, : t + 1], *looked)[:, t].max(-1).indices
        ids[going, t + 1] = likeliest[going]
        going = going & (likeliest != eos)
    return ids[:, 1:]


# 105_gated_cross_attention
@wrong("gated_cross_attention", "The gate goes through the tangent", "C-GATE-TAN")
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    return text + gate.tan() * found, weights


# 106_gated_cross_attention
@wrong(
    "gated_cross_attention",
    "A closed gate is a case of its own: then the text is handed on as it is",
    "C-GATE-IF-CLOSED",
)
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    if gate == 0:
        return text, weights
    return text + torch.tanh(gate) * found, weights


# 107_contrastive_loss
@wrong(
    "contrastive_loss",
    "The dot product of two vectors is their likeness, the model learns good lengths itself",
    "C-PAIRS-NO-NORM",
)
def _(images, texts, temperature):
    scores = images @ texts.T / temperature
    right = torch.arange(scores.shape[0])
    by_image = F.cross_entropy(scores, right)
    by_text = F.cross_entropy(scores.T, right)
    return (by_image + by_text) / 2


# 108_contrastive_loss
@wrong(
    "contrastive_loss",
    "The product of the vectors as they come is the score; the losses of both directions are added up",
    ("C-PAIRS-NO-NORM",),
    ("C-PAIRS-SUM",),
)
def _(images, texts, temperature):
    table = einsum(images, texts, "i m, t m -> i t") / temperature
    of_images = -table.log_softmax(dim=1).diagonal().mean()
    of_texts = -table.log_softmax(dim=0).diagonal().mean()
    return of_images + of_texts


# 109_contrastive_loss
@wrong(
    "contrastive_loss",
    "Each picture chooses among the texts, the other direction follows from it, since the pairs are the same",
    "C-PAIRS-PICTURES-ONLY",
)
def _(images, texts, temperature):
    a, b = F.normalize(images, dim=-1), F.normalize(texts, dim=-1)
    scores = a @ b.mT / temperature
    pairs = torch.arange(scores.shape[-1])
    first = F.cross_entropy(scores, pairs)
    second = F.cross_entropy(scores.mT, pairs)
    return first


# 110_contrastive_loss
@right("contrastive_loss")
def _(images, texts, temperature):
    cosine = F.cosine_similarity(images[:, None], texts[None], dim=-1)
    scores = cosine / temperature
    sums = scores.logsumexp(0) + scores.logsumexp(1)
    return sums.mean() / 2 - scores.diagonal().mean()
