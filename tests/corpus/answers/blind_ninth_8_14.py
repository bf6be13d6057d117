"""Answers to chapters 8–14 by a writer who had the notebooks alone, half with two mistakes.

What the judge said before anything was mended by these is in tests/bench/answers.md. Which names are
fair was said by somebody else, with the judge's in view.
"""

# ruff: noqa: B007, B905, E501, E731, E741, RUF005, RUF059, SIM102, SIM113
import copy
import functools
import itertools
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
from attncourse.self_attention import sinusoidal_positions
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right

# ---------------------------------------------------------------- chapter 8


# shows: q = 1, k = 3: the query gets the offsets 0, 1, 2; and q = k = 2 with t ≠ 0, d = 4: t counts twice
@wrong(
    "relative_scores",
    "query i stands at place i of the keys; the root of d divides the dot product with the key, the table's part is added after it",
    ("P-TOPLEFT",),
    ("C-SHAW-SCALED-HALF",),
)
def _(query, key, table):
    d = query.shape[-1]
    c = (table.shape[0] - 1) // 2
    i = torch.arange(query.shape[-2]).unsqueeze(1)
    j = torch.arange(key.shape[-2]).unsqueeze(0)
    index = (j - i).clamp(-c, c) + c
    content = query @ key.transpose(-1, -2) / d**0.5
    relative = torch.einsum("...qd,qkd->...qk", query, table[index])
    return content + relative


# shows: offset -6 with 8 buckets, max_distance 64, one direction: 4.58 is rounded, bucket 5 instead of 4
@wrong(
    "relative_buckets",
    "the far buckets come from rounding to the nearest whole number",
    "C-BUCKETS-ROUNDED",
)
def _(offsets, num_buckets, max_distance, bidirectional):
    b = num_buckets
    start = torch.zeros_like(offsets)
    if bidirectional:
        b = b // 2
        start = (offsets > 0).long() * b
        delta = offsets.abs()
    else:
        delta = (-offsets).clamp(min=0)
    a = b // 2
    far = (
        a
        + torch.round(
            torch.log(delta.clamp(min=1).double() / a) / math.log(max_distance / a) * (b - a)
        ).long()
    )
    far = far.clamp(max=b - 1)
    return (start + torch.where(delta < a, delta, far)).long()


# shows: offsets [-1, 1], 8 buckets: with two directions 5 and 1 instead of 1 and 5; with one direction 1 and 1 instead of 1 and 0
@wrong(
    "relative_buckets",
    "the second half of the buckets is for the keys before the query; with one direction the distance is the absolute value of the offset",
    ("C-BUCKETS-AFTER-FIRST",),
    ("C-BUCKETS-FUTURE-DISTANCE",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    result = torch.zeros(offsets.shape, dtype=torch.int64)
    if bidirectional:
        num_buckets //= 2
        result += (offsets < 0).to(torch.int64) * num_buckets
    distance = torch.abs(offsets).to(torch.int64)
    exact = num_buckets // 2
    ratio = torch.log(distance.double().clamp(min=exact) / exact) / math.log(max_distance / exact)
    large = exact + (ratio * (num_buckets - exact)).to(torch.int64)
    large = torch.minimum(large, torch.tensor(num_buckets - 1))
    result += torch.where(distance < exact, distance, large)
    return result


# shows: alibi_bias(1, 2, 2): +1/256 above the diagonal where -1/256 is asked
@wrong(
    "alibi_bias",
    "I leave out the absolute value because the keys after the query are masked anyway",
    "C-ALIBI-SIGNED",
)
def _(num_heads, query_length, key_length):
    def slopes(n):
        return [2 ** (-8 * (h + 1) / n) for h in range(n)]

    p = 2 ** int(math.log2(num_heads))
    m = slopes(p)
    if p < num_heads:
        m += slopes(2 * p)[::2][: num_heads - p]
    i = torch.arange(query_length)[:, None] + key_length - query_length
    j = torch.arange(key_length)[None, :]
    return torch.tensor(m)[:, None, None] * (j - i).float()


# shows: 3 heads: slopes 2^(-8/3), … instead of 1/16, 1/256, 1/4; 1 query and 3 keys: distances 0 1 2 instead of 2 1 0
@wrong(
    "alibi_bias",
    "the formula with 8/h is good for every number of heads; the first query stands at the first key",
    ("C-ALIBI-POWERS-ONLY",),
    ("P-TOPLEFT",),
)
def _(num_heads, query_length, key_length):
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / num_heads) for h in range(num_heads)])
    distance = (torch.arange(key_length)[None, :] - torch.arange(query_length)[:, None]).abs()
    return -einsum(slopes, distance.float(), "h, q k -> h q k")


# shows: x = [[1., 0.]] at place 1: (cos 1, -sin 1)
@wrong(
    "rotate",
    "the hand of a clock turns clockwise, so the sine has its minus in the second line",
    "C-ROPE-BACKWARD",
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    freq = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    theta = positions.double()[:, None] * freq
    a, b = x[..., 0::2].double(), x[..., 1::2].double()
    turned = torch.stack([a * theta.cos() + b * theta.sin(), b * theta.cos() - a * theta.sin()], -1)
    return turned.flatten(-2).to(x.dtype)


# shows: d = 4, place 1: features 0 and 2 are turned together, and the second angle is 1e-4 instead of 1e-2
@wrong(
    "rotate",
    "the first half of the features and the second half make the pairs, as in Llama; the exponent is twice the even number",
    ("P-ROPE-LAYOUT",),
    ("P-FREQ",),
)
def _(x, positions, base=10_000.0):
    width = x.size(-1)
    even = torch.arange(0, width, 2).double()
    omega = 1.0 / base ** (2 * even / width)
    angle = torch.outer(positions.double(), omega)
    cos, sin = angle.cos(), angle.sin()
    first, second = x.double().chunk(2, dim=-1)
    out = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return out.to(x.dtype)


# shows: x = [[1., 1.]] at place 1: the second feature is made from the new first one; bfloat16 x at place 1001: the place itself is rounded
@wrong(
    "rotate",
    "I may write the new first feature and go on with it in the second line; positions should have the dtype of x so that the product works",
    ("C-ROPE-STEP-BY-STEP",),
    ("P-LOWPREC",),
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    result = x.clone()
    positions = positions.to(x.dtype)
    for i in range(d // 2):
        theta = positions.double() * base ** (-2 * i / d)
        cos, sin = torch.cos(theta).to(x.dtype), torch.sin(theta).to(x.dtype)
        a, b = x[..., 2 * i], x[..., 2 * i + 1]
        result[..., 2 * i] = a * cos - b * sin
        a = result[..., 2 * i]
        result[..., 2 * i + 1] = a * sin + b * cos
    return result


# shows: q = 2, r = 4: two columns instead of three, and row 0 begins at column 0 instead of 1
@wrong(
    "shift_relative",
    "each row moves one column to the right of the row before it; the number of keys is r minus q",
    ("C-SHIFT-OTHER-WAY",),
    ("C-SHIFT-KEYS-MINUS-ONE",),
)
def _(scores):
    q, r = scores.shape[-2:]
    k = r - q
    rows = []
    for i in range(q):
        start = i
        rows.append(scores[..., i, start : start + k])
    return torch.stack(rows, dim=-2)


@right("shift_relative")
def _(scores):
    q, r = scores.shape[-2:]
    backwards = scores.flip(-2)  # the last query first: row i begins at column i
    rows = [row[..., i : i + r - q + 1] for i, row in enumerate(backwards.unbind(-2))]
    return torch.stack(rows[::-1], -2)


@right("relative_scores")
def _(query, key, table):
    q, k, c = query.shape[-2], key.shape[-2], len(table) // 2
    columns = []
    for j in range(k):
        rows = []
        for i in range(q):
            offset = max(-c, min(c, j - (i + k - q)))
            rows.append((query[..., i, :] * (key[..., j, :] + table[offset + c])).sum(-1))
        columns.append(torch.stack(rows, -1))
    return torch.stack(columns, -1) / math.sqrt(query.shape[-1])


# ---------------------------------------------------------------- chapter 9


# shows: {"ab": 1, "cd": 5}, 1 merge: ("a", "b") instead of ("c", "d")
@wrong(
    "byte_pairs",
    "a pair counts once for every word of the dictionary in which it stands",
    "B-EACH-WORD-ONCE",
)
def _(words, num_merges):
    age = {letter: n for n, letter in enumerate(sorted(set("".join(words))))}
    split = {word: list(word) for word in words}
    merges = []
    for _ in range(num_merges):
        counts = Counter()
        for pieces in split.values():
            counts.update(zip(pieces, pieces[1:]))
        if not counts:
            break
        best = min(counts, key=lambda p: (-counts[p], age[p[0]], age[p[1]]))
        merges.append(best)
        age.setdefault("".join(best), len(age))
        for word, pieces in split.items():
            new, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    new.append(pieces[i] + pieces[i + 1])
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            split[word] = new
    return merges


# shows: {"aaa": 2, "bc": 3}: a a counts 2 instead of 4; {"bcbc": 1, "axaxbcy": 1}: a tie is decided by the alphabet, not by age
@wrong(
    "byte_pairs",
    "in one word a pair counts one time even if it stands there twice; if two pairs are equally frequent the alphabet decides",
    ("B-ONCE-A-WORD",),
    ("B-ALPHABET",),
)
def _(words, num_merges):
    order = sorted(set(letter for word in words for letter in word))
    corpus_ = [(list(word), count) for word, count in words.items()]
    result = []
    while len(result) < num_merges:
        freq = {}
        for pieces, count in corpus_:
            for pair in set(zip(pieces[:-1], pieces[1:])):
                freq[pair] = freq.get(pair, 0) + count
        if len(freq) == 0:
            break
        most = max(freq.values())
        pair = min(p for p in freq if freq[p] == most)
        result.append(pair)
        joined = pair[0] + pair[1]
        if joined not in order:
            order.append(joined)
        for pieces, _ in corpus_:
            i = 0
            while i < len(pieces) - 1:
                if (pieces[i], pieces[i + 1]) == pair:
                    pieces[i : i + 2] = [joined]
                i += 1
    return result


# shows: "abc" with merges (b c), (a b): "ab" + "c" instead of "a" + "bc"
@wrong(
    "encode_text",
    "the longest known piece at the front of the word is taken, then the next",
    "B-LONGEST-PIECE",
)
def _(text, merges):
    pieces = sorted(byte_letters())
    for left, right_ in merges:
        if left + right_ not in pieces:
            pieces.append(left + right_)
    place = {piece: n for n, piece in enumerate(pieces)}
    ids = []
    for word in byte_words(text):
        while word:
            size = max(s for s in range(1, len(word) + 1) if word[:s] in place)
            ids.append(place[word[:size]])
            word = word[size:]
    return ids


# shows: "abab" with merge (a b): the second "ab" stays two letters; merges that make "abc" twice, then "de": the id of "de" is one too high
@wrong(
    "encode_text",
    "a merge joins the pair where it is found in the word first; every merge has its own id, 256 plus its number",
    ("B-MERGED-ONCE",),
    ("B-BORN-AGAIN",),
)
def _(text, merges):
    table = {}
    for n, letter in enumerate(sorted(byte_letters())):
        table[letter] = n
    for n, (x, y) in enumerate(merges):
        table.setdefault(x + y, 256 + n)
    ids = []
    for word in byte_words(text):
        pieces = list(word)
        for x, y in merges:
            for i in range(len(pieces) - 1):
                if pieces[i] == x and pieces[i + 1] == y:
                    pieces[i : i + 2] = [x + y]
                    break
        ids += [table[piece] for piece in pieces]
    return ids


# shows: share 1, 100,000 words: 18 % stay and 2 % are exchanged
@wrong(
    "masked_words",
    "after the masks one tenth of the rest of the asked words is exchanged",
    "W-TENTH-OF-A-FIFTH",
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    asked = torch.rand(tokens.shape, generator=rng) < share
    masked = asked & (torch.rand(tokens.shape, generator=rng) < 0.8)
    exchanged = asked & ~masked & (torch.rand(tokens.shape, generator=rng) < 0.1)
    other = torch.randint(vocabulary_size, tokens.shape, generator=rng)
    inputs = torch.where(masked, mask_id, torch.where(exchanged, other, tokens))
    return inputs, torch.where(asked, tokens, -100)


# shows: share 1, 100,000 words: a tenth of the targets is -100; the exchanged words of one call are all the same word
@wrong(
    "masked_words",
    "words that stay as they are need no target because nothing is hidden; one random word is drawn for those that are exchanged",
    ("W-LEFT-NOT-ASKED",),
    ("W-ONE-WORD-FOR-ALL",),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    inputs = tokens.clone()
    targets = torch.full_like(tokens, -100)
    asked = torch.rand(tokens.shape, generator=rng) < share
    dice = torch.rand(tokens.shape, generator=rng)
    masked = asked & (dice < 0.8)
    exchanged = asked & (dice >= 0.8) & (dice < 0.9)
    hidden = masked | exchanged
    targets[hidden] = tokens[hidden]
    inputs[masked] = mask_id
    number = 1
    inputs[exchanged] = torch.randint(vocabulary_size, (number,), generator=rng)
    return inputs, targets


# shows: shares 0.5 0.3 0.15 0.05, top_p 0.6: only the first word is ever drawn; temperature 0.3 with top_p 0.8: the words are chosen at temperature 1
@wrong(
    "sample",
    "the words whose running sum is over top_p go out; temperature acts on the words that are left, at the end",
    ("P-TOP-P-WITHOUT-THE-LAST",),
    ("P-TEMPERATURE-LAST",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    scores = logits.clone()
    if top_k is not None:
        k = min(top_k, scores.shape[-1])
        smallest = scores.topk(k, dim=-1).values[:, -1:]
        scores[scores < smallest] = -math.inf
    if top_p is not None:
        probs, order = scores.softmax(-1).sort(dim=-1, descending=True)
        total = probs.cumsum(-1)
        drop = total > top_p
        drop[:, 0] = False
        scores[drop.scatter(1, order, drop)] = -math.inf
    probs = (scores / temperature).softmax(-1)
    return torch.multinomial(probs, 1).squeeze(1)


# shows: width 2, where the likeliest sentence does not begin with the likeliest word: the greedy sentence comes out, since both beginnings are the same
@wrong("beam_search", "the beam starts with width copies of bos, all with total 0", "B-ALL-ALIKE")
def _(step, state, bos, eos, width, max_length):
    b = state.shape[0]
    rows = torch.arange(b).repeat_interleave(width)
    state = state[rows]
    token = torch.full((b * width,), bos)
    total = torch.zeros(b, width)
    done = torch.zeros(b * width, dtype=torch.bool)
    said = torch.zeros(b * width, 0, dtype=torch.long)
    for _ in range(max_length):
        logits, state = step(token, state)
        log_p = logits.log_softmax(-1)
        vocab = log_p.shape[-1]
        stay = torch.full((vocab,), -math.inf)
        stay[eos] = 0.0
        log_p = torch.where(done[:, None], stay, log_p)
        scores = (total[..., None] + log_p.view(b, width, vocab)).flatten(1)
        total, best = scores.topk(width, dim=1)
        rows = (torch.arange(b)[:, None] * width + best // vocab).flatten()
        token = (best % vocab).flatten()
        said = torch.cat([said[rows], token[:, None]], 1)
        state, done = state[rows], done[rows] | (token == eos)
        if done.all():
            break
    first = total.argmax(1) + torch.arange(b) * width
    return said[first]


# shows: a step whose logits depend on the state: a row goes on with the state of another beginning; a short sentence with log p -1.2 loses against one of three words with -1.5
@wrong(
    "beam_search",
    "at the end the total is divided by the number of words, so that long sentences are not punished; after the choice only the words and totals have to be sorted, states stay in their rows",
    ("B-MEAN-BY-LENGTH",),
    ("B-STATE-NOT-MOVED",),
)
def _(step, state, bos, eos, width, max_length):
    b = len(state)
    state = torch.repeat_interleave(state, width, dim=0)
    total = torch.full((b, width), -math.inf)
    total[:, 0] = 0
    token = torch.full((b * width,), bos, dtype=torch.long)
    written = torch.empty(b * width, 0, dtype=torch.long)
    ended = torch.zeros(b * width, dtype=torch.bool)
    for t in range(max_length):
        logits, state = step(token, state)
        log_p = torch.log_softmax(logits, dim=-1)
        vocab = log_p.shape[1]
        log_p[ended] = -math.inf
        log_p[ended, eos] = 0
        candidates = total.reshape(-1, 1) + log_p
        total, index = candidates.reshape(b, -1).topk(width)
        origin = (index // vocab + width * torch.arange(b).unsqueeze(1)).reshape(-1)
        token = (index % vocab).reshape(-1)
        written = torch.cat([written[origin], token.unsqueeze(1)], dim=1)
        ended = ended[origin] | (token == eos)
    length = (written != eos).sum(1).reshape(b, width) + 1
    best = (total / length).argmax(dim=1)
    return written.reshape(b, width, -1)[torch.arange(b), best]


# ---------------------------------------------------------------- chapter 10


# shows: cache None, key (1 2 3 4): six places instead of three, zeros first; cache of (1 2 3 4) and key (1 2 3 4): joined along the heads (with another number of new words it raises)
@wrong(
    "extend",
    "an empty cache is zeros like the new keys and values; the positions are axis 1",
    ("K-BEGINS-WITH-ZEROS",),
    ("K-CAT-HEADS",),
)
def _(cache, key, value):
    if cache is None:
        cache = (torch.zeros_like(key), torch.zeros_like(value))
    old_keys, old_values = cache
    axis = 1
    return torch.cat([old_keys, key], dim=axis), torch.cat([old_values, value], dim=axis)


# shows: two words without a cache and a mask of True: word 0 sees word 1
@wrong("cached_attention", "the triangle is what is used if no mask is given", "K-MASK-INSTEAD")
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key = torch.cat([cache[0], key], -2)
        value = torch.cat([cache[1], value], -2)
    q, k = query.shape[-2], key.shape[-2]
    if mask is None:
        mask = torch.arange(k) <= torch.arange(k - q, k)[:, None]
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    weights = weights * mask
    return weights @ value, (key, value)


# shows: one new word over two kept ones: it sees the first key only; two words, the first hidden as padding: NaN in row 0
@wrong(
    "cached_attention",
    "tril of ones (q k) is the causal mask; a softmax over minus infinity only gives zeros",
    ("K-MASK-TOP-LEFT",),
    ("M-DEAD-ROW",),
)
def _(query, key, value, cache=None, mask=None):
    keys, values = key, value
    if cache is not None:
        keys = torch.cat((cache[0], key), dim=-2)
        values = torch.cat((cache[1], value), dim=-2)
    n_q, n_k = query.size(-2), keys.size(-2)
    allowed = torch.ones(n_q, n_k, dtype=torch.bool).tril(0)
    if mask is not None:
        allowed = allowed & mask
    scores = torch.einsum("...qd,...kd->...qk", query, keys) / query.size(-1) ** 0.5
    scores = scores.masked_fill(allowed.logical_not(), float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return weights @ values, (keys, values)


# shows: mask (b h q k) which hides key 0 from head 1 alone: head 1 sees it all the same
@wrong(
    "grouped_query_attention",
    "a mask of four axes is the same for all heads, so its first head is enough",
    "G-MASK-ONE-HEAD",
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    grouped = query.reshape(b, c, h // c, q, d)
    scores = torch.einsum("bcgqd,bckd->bcgqk", grouped, key) / math.sqrt(d)
    if mask is not None:
        if mask.dim() == 4:
            mask = mask[:, :1].unsqueeze(2)
        scores = scores.masked_fill(~mask, -math.inf)
        dead = (scores == -math.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(dead, 0).softmax(-1).masked_fill(dead, 0)
    else:
        weights = scores.softmax(-1)
    output = torch.einsum("bcgqk,bckv->bcgqv", weights, value)
    return output.reshape(b, h, q, -1), weights.reshape(b, h, q, -1)


# shows: h = 4, c = 2: head 1 looks at the second keys; a query that sees nothing gets equal weights
@wrong(
    "grouped_query_attention",
    "the heads take turns, head 0 the first keys, head 1 the second; the smallest number before the softmax makes all weights of a hidden row zero",
    ("G-ORDER",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    grouped = rearrange(query, "b (g c) q d -> b g c q d", c=c)
    scores = einsum(grouped, key, "b g c q d, b c k d -> b g c q k") / math.sqrt(d)
    scores = rearrange(scores, "b g c q k -> b (g c) q k")
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    table = rearrange(weights, "b (g c) q k -> b g c q k", c=c)
    output = einsum(table, value, "b g c q k, b c k v -> b g c q v")
    return rearrange(output, "b g c q v -> b (g c) q v"), weights


# shows: "MLA" with latent 512 and rope 64: twice as many bytes; "XYZ" with kv_heads=1: a number instead of a ValueError
@wrong(
    "bytes_per_token",
    "everything that is cached is there twice, for keys and for values; whatever is no other scheme is GQA",
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
    if scheme == "MHA":
        numbers = num_heads * head_width
    elif scheme == "MQA":
        numbers = head_width
    elif scheme == "MLA":
        numbers = latent_width + rope_width
    else:
        numbers = kv_heads * head_width
    return 2 * num_layers * numbers * bytes_per_number


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
    cached = {
        "MHA": lambda: sum(2 for _ in range(num_heads)) * head_width,
        "GQA": lambda: (kv_heads + kv_heads) * head_width,
        "MQA": lambda: head_width + head_width,
        "MLA": lambda: latent_width + rope_width,
    }
    try:
        numbers = cached[scheme]
    except KeyError:
        raise ValueError(f"no such scheme: {scheme}") from None
    return bytes_per_number * num_layers * numbers()


# shows: forward of three words, d = 4, r = 2: scores too large by √6/2; a step after two kept words: its rotated parts stand at place 0
@wrong(
    "LatentAttention",
    "scores are divided by the root of the head width as everywhere; in a step the positions of the new words count from 0",
    ("L-SCALE-D",),
    ("P-ROPE-CACHE",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.l, self.r = num_heads, head_width, latent_width, rope_width
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
        n = x.shape[1]
        p = torch.arange(n)
        latent = self.norm(self.down(x))
        q = rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=self.h)
        k = rearrange(self.k_up(latent), "b n (h d) -> b h n d", h=self.h)
        v = rearrange(self.v_up(latent), "b n (h d) -> b h n d", h=self.h)
        qr = rotate(rearrange(self.q_rope(x), "b n (h r) -> b h n r", h=self.h), p)
        kr = rotate(self.k_rope(x), p)[:, None]
        scores = (q @ k.mT + qr @ kr.mT) * self.scale
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.out_proj(rearrange(weights @ v, "b h n d -> b n (h d)"))

    def step(self, x, cache=None):
        n = x.shape[1]
        before = 0 if cache is None else cache[0].shape[1]
        p = torch.arange(n)
        latent = self.norm(self.down(x))
        kr = rotate(self.k_rope(x), p)
        if cache is not None:
            latent = torch.cat([cache[0], latent], 1)
            kr = torch.cat([cache[1], kr], 1)
        q = rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=self.h)
        qr = rotate(rearrange(self.q_rope(x), "b n (h r) -> b h n r", h=self.h), p)
        up = rearrange(self.k_up.weight, "(h d) l -> h d l", h=self.h)
        q = einsum(q, up, "b h n d, h d l -> b h n l")
        scores = (q @ latent[:, None].mT + qr @ kr[:, None].mT) * self.scale
        future = torch.ones(n, before + n, dtype=torch.bool).triu(before + 1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        mixed = weights @ latent[:, None]
        up = rearrange(self.v_up.weight, "(h d) l -> h d l", h=self.h)
        out = einsum(mixed, up, "b h n l, h d l -> b n h d")
        return self.out_proj(out.flatten(2)), (latent, kr)


# ---------------------------------------------------------------- chapter 11


# shows: n = 3, width 1: only the diagonal
@wrong(
    "window_mask",
    "a word sees all places whose distance is smaller than the width",
    "W-WIDTH-STRICT",
)
def _(n, width, global_tokens=0):
    p = torch.arange(n)
    near = (p.view(-1, 1) - p.view(1, -1)).abs() < width
    near |= torch.eye(n, dtype=torch.bool)
    near[:global_tokens] = True
    near[:, :global_tokens] = True
    return near


# shows: n = 5, width 2: one place on each side; n = 4, width 0, one global token: row 0 sees only itself
@wrong(
    "window_mask",
    "the width is the width of the whole window, half of it on each side; a global token is one which all others see",
    ("W-WIDTH-WHOLE",),
    ("W-GLOBAL-LOOKED-AT",),
)
def _(n, width, global_tokens=0):
    mask = torch.zeros(n, n, dtype=torch.bool)
    side = width // 2
    for i in range(n):
        for j in range(n):
            if abs(i - j) <= side or j < global_tokens:
                mask[i, j] = True
    return mask


# shows: 0 layers: the mask comes back; a mask without its diagonal: words forget themselves
@wrong(
    "reach",
    "the first layer is the mask itself, then it is multiplied for the layers after it; what a word knew is in the mask's diagonal",
    ("R-AT-LEAST-ONE",),
    ("R-FORGETS",),
)
def _(mask, layers):
    table = mask.float()
    heard = table
    for _ in range(layers - 1):
        heard = (table @ heard > 0).float()
    return heard > 0


@right("reach")
def _(mask, layers):
    sees = [set(row.nonzero().flatten().tolist()) for row in mask]
    heard = [{i} for i in range(len(sees))]
    for _ in range(layers):
        heard = [heard[i].union(*(heard[j] for j in sees[i])) for i in range(len(sees))]
    table = np.zeros((len(sees), len(sees)), dtype=bool)
    for i, known in enumerate(heard):
        table[i, list(known)] = True
    return torch.from_numpy(table)


# shows: n = 2, width 1: word 0 gives a part of its weight to a key of zeros before the text
@wrong(
    "windowed_attention",
    "zeros at both ends do no harm, since their value is zero",
    "W-PADDING-SEEN",
)
def _(query, key, value, width):
    pad = (0, 0, width, width)
    keys = F.pad(key, pad).unfold(-2, 2 * width + 1, 1)  # ... n d w
    values = F.pad(value, pad).unfold(-2, 2 * width + 1, 1)
    scores = torch.einsum("...nd,...ndw->...nw", query, keys) / math.sqrt(query.shape[-1])
    weights = scores.softmax(-1)
    return torch.einsum("...nw,...nvw->...nv", weights, values)


# shows: n = 3, width 1: word 0 gets zeros, because the slice begins at -1; word 1 does not see word 2
@wrong(
    "windowed_attention",
    "a slice may begin before the text, Python cuts it off; a slice to i + width holds width words after the present one",
    ("W-SLICE-BELOW-ZERO",),
    ("W-SLICE-END",),
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    outputs = []
    for i in range(n):
        start = i - width
        stop = i + width
        k = key[..., start:stop, :]
        v = value[..., start:stop, :]
        scores = (query[..., i : i + 1, :] @ k.transpose(-2, -1)) / d**0.5
        outputs.append(scores.softmax(dim=-1) @ v)
    return torch.cat(outputs, dim=-2)


# shows: n = 1, key -1, value 1, query 0: F.elu(x + 1) is 0 for x = -1; n = 2: word 0 is divided by the sum over both keys
@wrong(
    "linear_attention",
    "the feature map is elu of x plus 1; the sum in the denominator runs over all keys",
    ("L-ELU-OF-ONE-MORE",),
    ("L-TOTAL-OF-ALL",),
)
def _(query, key, value):
    q, k = F.elu(query + 1), F.elu(key + 1)
    kv = torch.einsum("...nd,...nv->...ndv", k, value).cumsum(dim=-3)
    total = k.sum(dim=-2, keepdim=True).expand_as(k)
    top = torch.einsum("...nd,...ndv->...nv", q, kv)
    return top / (q * total).sum(-1, keepdim=True)


@right("linear_attention")
def _(query, key, value):
    phi = lambda x: torch.where(x > 0, x + 1, x.clamp(max=0).exp())
    table = torch.einsum("...id,...jd->...ij", phi(query), phi(key)).tril()
    return torch.einsum("...ij,...jv->...iv", table / table.sum(-1, keepdim=True), value)


# shows: d = 2, state None: the value is divided by the sum of the features of the key, without the query
@wrong(
    "linear_step",
    "the output is divided by the sum of the key features kept so far",
    "L-DIVIDES-BY-SUM",
)
def _(state, query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    outer = k[..., :, None] * value[..., None, :]
    s, z = (outer, k) if state is None else (state[0] + outer, state[1] + k)
    output = (q.unsqueeze(-2) @ s).squeeze(-2) / z.sum(-1, keepdim=True)
    return output, (s, z)


# shows: a second step with another key: the output is that of the words before; and the state that came in has changed
@wrong(
    "linear_step",
    "a new word reads the state first and is written into it after that; += saves memory",
    ("L-READS-FIRST",),
    ("C-KEPT-IN-PLACE",),
)
def _(state, query, key, value):
    phi_q = nn.functional.elu(query) + 1
    phi_k = nn.functional.elu(key) + 1
    new = einsum(phi_k, value, "... d, ... v -> ... d v")
    if state is None:
        matrix, norm = new, phi_k
        read, below = matrix, norm
    else:
        matrix, norm = state
        read, below = matrix.clone(), norm.clone()
        matrix += new
        norm += phi_k
    output = einsum(phi_q, read, "... d, ... d v -> ... v")
    output = output / (phi_q * below).sum(dim=-1, keepdim=True)
    return output, (matrix, norm)


# shows: 2 shards with larger scores in the second: the sum before is not shrunk; d = 4: scores twice too large
@wrong(
    "ring_attention",
    "when the maximum rises only the output has to be multiplied by the correction; the running softmax makes the root of d unnecessary",
    ("R-DIVISOR-NOT-RESCALED",),
    ("D-NO-SCALE",),
)
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    results = []
    for me in range(p):
        q = query_shards[me]
        scale = 1.0
        top = torch.full(q.shape[:-1] + (1,), -math.inf, dtype=q.dtype)
        total = torch.zeros_like(top)
        output = torch.zeros(q.shape[:-1] + (value_shards[0].shape[-1],), dtype=q.dtype)
        for hop in range(p):
            source = (me - hop) % p
            scores = q @ key_shards[source].mT * scale
            new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
            correction = torch.exp(top - new_top)
            e = torch.exp(scores - new_top)
            total = total + e.sum(-1, keepdim=True)
            output = output * correction + e @ value_shards[source]
            top = new_top
        results.append(output / total)
    return results


# shows: two shards of 1 and 2 keys: the results of the shards have equal weight; v ≠ d: scores divided by the root of v
@wrong(
    "ring_attention",
    "each process averages the results of all shards; the root is that of the width of the values",
    ("R-MEAN",),
    ("D-SCALE-DV",),
)
def _(query_shards, key_shards, value_shards):
    outputs = []
    for query in query_shards:
        parts, logs = [], []
        for key, value in zip(key_shards, value_shards):
            scores = query @ key.transpose(-1, -2) / math.sqrt(value.shape[-1])
            logs.append(scores.logsumexp(-1, keepdim=True))
            parts.append(scores.softmax(-1) @ value)
        logs = torch.stack(logs)
        share = torch.full_like(logs, 1 / len(parts))
        outputs.append((torch.stack(parts) * share).sum(0))
    return outputs


# shows: distance 1, span 2, ramp 2: 0.75 instead of 1
@wrong("span_mask", "the line falls from 1 at distance 0 to 0 at span plus ramp", "A-FROM-0")
def _(distance, span, ramp):
    end = span + ramp
    return (1 - distance / end).clamp(0, 1)


# shows: distance 2, span 2, ramp 2: 0 instead of 1; float64 distance: float32 comes out
@wrong(
    "span_mask",
    "the ramp lies before the span, where the weights are 0; a mask is float32",
    ("A-RAMP-INSIDE",),
    ("C-FLOAT32",),
)
def _(distance, span, ramp):
    left = span - distance
    line = left / ramp
    line = torch.minimum(line, torch.ones_like(line))
    line = torch.maximum(line, torch.zeros_like(line))
    return line.to(torch.float32)


# ---------------------------------------------------------------- chapter 12


# shows: after the call the given model answers otherwise; with 2 heads of width 4, head 1 means features 1, 3, 5, 7
@wrong(
    "ablated",
    "a hook on the given model is enough, for it is returned; the heads lie alternately in the features",
    ("I-NO-COPY",),
    ("I-INTERLEAVED",),
)
def _(model, layer, head, value):
    new = model
    attention = new.get_submodule(layer)
    h = attention.num_heads

    def replace(module, inputs):
        x = inputs[0].clone()
        heads = rearrange(x, "b q (d h) -> b h q d", h=h)
        heads = heads.clone()
        heads[:, head] = value
        return (rearrange(heads, "b h q d -> b q (d h)"),)

    attention.out_proj.register_forward_pre_hook(replace)
    return new


# shows: n = 3, period 2: the weight of word 1 on word 0 goes in, although word 1 is new
@wrong(
    "induction_score",
    "the mean of the whole diagonal at 1 - period is the score",
    "I-WHOLE-DIAGONAL",
)
def _(weights, period):
    return weights.diagonal(offset=1 - period, dim1=-2, dim2=-1).mean(-1)


# shows: n = 4, period 2, weight 1 on i - 1 for i = 2, 3: 0 instead of 1, and with the right places 0.5
@wrong(
    "induction_score",
    "it is the weight on the last occurrence of the word; the mean is the sum over all n rows divided by n",
    ("I-SAME-WORD",),
    ("I-DIVIDED-BY-N",),
)
def _(weights, period):
    n = weights.shape[-1]
    total = 0
    count = n
    for i in range(period, n):
        total = total + weights[..., i, i - period]
    return total / count


# shows: a rotation by 45° with W_E = W_U = identity: 1 instead of 0.71
@wrong("copying_score", "it is the share of positive minus negative real parts", "I-SIGNS")
def _(W_OV, W_E, W_U):
    values = torch.linalg.eigvals(W_E @ W_OV @ W_U)
    keep = values.abs() > 1e-5 * values.abs().max()
    return values.real[keep].sign().mean().item()


# shows: a rotation by 45°, W_E = W_U = identity: 1 instead of 0.71; a W_OV which is not symmetric with other W_E, W_U: the transposed map
@wrong(
    "copying_score",
    "the matrix of a layer has to be transposed before it is multiplied; the denominator is the sum of the real parts without signs",
    ("I-OV-TRANSPOSED",),
    ("I-IMAGINARY-DROPPED",),
)
def _(W_OV, W_E, W_U):
    inner = W_OV.T
    table = torch.einsum("vm,mk,kw->vw", W_E, inner, W_U)
    lam = torch.linalg.eigvals(table)
    below = lam.real.abs().sum()
    return float(lam.real.sum() / below)


# shows: two different layers: A_1 A_2 instead of A_2 A_1; one layer: rows sum to 2
@wrong(
    "rollout",
    "the layers are multiplied in the order in which they come; the identity is added to the mean, and that is all",
    ("I-ORDER",),
    ("I-NOT-HALVED",),
)
def _(weights):
    result = None
    for layer in weights:
        average = layer.mean(dim=1)
        a = average + torch.eye(layer.shape[-1], dtype=layer.dtype)
        result = a if result is None else result @ a
    return result


@right("rollout")
def _(weights):
    eye = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    halves = (
        torch.lerp(einops.reduce(w, "b h q k -> b q k", "mean"), eye.expand(len(w), -1, -1), 0.5)
        for w in weights
    )
    return functools.reduce(lambda below, a: torch.einsum("bqj,bjk->bqk", a, below), halves)


# shows: two texts which differ in one word: the scores of the clean text with a place of the corrupted one
@wrong(
    "patched",
    "the clean text is run again, with the place taken from the corrupted run",
    "I-DIRECTION",
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    attention = model.get_submodule(layer)
    kept = []

    def store(module, args):
        kept.append(split_heads(args[0], attention.num_heads)[:, head, position].clone())

    def put(module, args):
        heads = split_heads(args[0], attention.num_heads).clone()
        heads[:, head, position] = kept[0]
        return (merge_heads(heads),)

    handle = attention.out_proj.register_forward_pre_hook(store)
    model(corrupted)
    handle.remove()
    handle = attention.out_proj.register_forward_pre_hook(put)
    scores = model(clean)
    handle.remove()
    return scores


# shows: patch head 0 at place 3: the other head at this place is put in as well; after the call the model still has the hook
@wrong(
    "patched",
    "what out_proj reads at the position is the head's output; hooks end with the function",
    ("I-ALL-HEADS",),
    ("I-NO-COPY",),
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    attention = model.get_submodule(layer)
    seen = {}

    def look(module, inputs):
        seen["clean"] = inputs[0].detach().clone()

    handle = attention.out_proj.register_forward_pre_hook(look)
    model(clean)
    handle.remove()
    d = seen["clean"].shape[-1] // attention.num_heads
    part = slice(None)

    def swap(module, inputs):
        x = inputs[0].clone()
        x[:, position, part] = seen["clean"][:, position, part]
        return (x,)

    handle = attention.out_proj.register_forward_pre_hook(swap)
    scores = model(corrupted)
    return scores


# ---------------------------------------------------------------- chapter 13


# shows: 4 x 4 pixels, 2 x 2: the second patch is the one below; two colors: colors alternate within a patch
@wrong(
    "patches",
    "the patches are read column by column; within a patch each pixel has its colors next to each other",
    ("C-PATCH-DOWN-FIRST",),
    ("C-PATCH-COLOR-LAST",),
)
def _(image, size):
    height, width = size
    return rearrange(image, "b c (i y) (j x) -> b (j i) (y x c)", y=height, x=width)


@right("patches")
def _(image, size):
    height, width = size
    rows = []
    for top in range(0, image.shape[2], height):
        for left in range(0, image.shape[3], width):
            rows.append(
                image[:, :, top : top + height, left : left + width].reshape(len(image), -1)
            )
    return torch.stack(rows, 1)


# shows: 2 rows, 3 columns: the patch 2 gets row 1; width 8: sine, sine, cosine, cosine instead of by turns
@wrong(
    "positions_2d",
    "the row of patch n is n divided by the number of rows; first come all sines, then all cosines",
    ("C-2D-TURNED",),
    ("C-2D-SINES-FIRST",),
)
def _(rows, columns, width):
    h = width // 2

    def waves(p):
        rates = 10000 ** (-torch.arange(0, h, 2) / h)
        angle = p[:, None].float() * rates
        return torch.cat([angle.sin(), angle.cos()], 1)[:, :h]

    n = torch.arange(rows * columns)
    per = rows
    return torch.cat([waves(n // per), waves(n % per)], 1)


# shows: two pictures, one of which ends after the first word: the other is cut there
@wrong("read", "the loop ends when eos is written", "C-READ-ONE-ENDS-ALL")
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    ids = torch.full((image.shape[0], 1), bos)
    for _ in range(max_length):
        scores = model.decode(ids, memory, memory_mask)
        token = scores[:, -1].argmax(-1)
        token[(ids == eos).any(1)] = eos
        ids = torch.cat([ids, token[:, None]], 1)
        if (token == eos).any():
            break
    return ids[:, 1:]


# shows: two words: encode is called twice; a row with eos, and another which goes on: words stand after the first eos
@wrong(
    "read",
    "the model looks at the picture before each word; the model itself goes on with eos after eos",
    ("C-READ-LOOKS-AGAIN",),
    ("C-READ-TALKS-ON",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    words = [torch.full((len(image),), bos, dtype=torch.long)]
    ended = torch.zeros(len(image), dtype=torch.bool)
    for t in range(max_length):
        memory, mask = model.encode(image)
        scores = model.decode(torch.stack(words, dim=1), memory, mask)
        word = scores[:, -1, :].argmax(dim=-1)
        words.append(word)
        ended = ended | (word == eos)
        if ended.all():
            break
    return torch.stack(words[1:], dim=1)


# shows: gate 0 which requires a gradient: the text comes back without any, backward fails or gives None
@wrong(
    "gated_cross_attention", "with a closed gate I can return the text at once", "C-GATE-IF-CLOSED"
)
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    if gate.item() == 0:
        return text, weights
    return text + torch.tanh(gate) * found, weights


# shows: gate 1: the text loses the part that the picture gets; memory_mask which hides a patch: it is seen
@wrong(
    "gated_cross_attention",
    "a gate mixes text and picture, one minus the gate of the text; the mask is only for padded words, pictures have none",
    ("C-GATE-MIXED",),
    ("M-IGNORED",),
)
def _(text, memory, attention, gate, memory_mask=None):
    g = torch.tanh(gate)
    found, weights = attention(text, memory, memory, None)
    return (1 - g) * text + g * found, weights


# shows: b = 2, temperature 0.1: scores a hundred times too small; texts which prefer other pictures: only the rows count
@wrong(
    "contrastive_loss",
    "the temperature multiplies the cosine; each picture chooses its text, which is the same as the other way",
    ("C-PAIRS-TIMES",),
    ("C-PAIRS-PICTURES-ONLY",),
)
def _(images, texts, temperature):
    images = F.normalize(images, dim=-1)
    texts = F.normalize(texts, dim=-1)
    scores = images @ texts.T * temperature
    labels = torch.arange(len(images))
    return F.cross_entropy(scores, labels)


@right("contrastive_loss")
def _(images, texts, temperature):
    norm = lambda x: (x * x).sum(-1).sqrt()
    scores = (
        torch.einsum("im,jm->ij", images, texts)
        / torch.outer(norm(images), norm(texts))
        / temperature
    )
    pairs = scores.diagonal()
    return (scores.logsumexp(1) + scores.logsumexp(0) - 2 * pairs).mean() / 2


# ---------------------------------------------------------------- chapter 14


# shows: wild_attention itself, whose dead row has equal weights and no NaN: accepted
@wrong("test_attention", "a query that sees nothing is broken if NaN comes out", "T-ONLY-NAN")
def _(attention):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    mask = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    output, weights = attention(q, k, v, mask)
    assert not output.isnan().any()
    assert not weights.isnan().any()


# shows: an implementation with zero weights but the mean of the values as output: accepted; a right one that sums in another order: refused
@wrong(
    "test_attention",
    "if the weights of the row are zero, its output is zero as well; the other rows must be equal to the formula",
    ("T-WEIGHTS-ONLY",),
    ("T-EXACT",),
)
def _(attention):
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 4, 8), torch.randn(3, 5, 8), torch.randn(3, 5, 2)
    mask = torch.rand(3, 4, 5) < 0.6
    mask[..., 0] = True
    mask[0, 2] = False
    mask[2, 0] = False
    output, weights = attention(q, k, v, mask)
    expected = (q @ k.mT / math.sqrt(8)).masked_fill(~mask, -math.inf).softmax(-1).nan_to_num()
    dead = ~mask.any(-1)
    assert (weights[dead] == 0).all()
    assert torch.equal(weights[~dead], expected[~dead])


# shows: mask [[False, False]]: the output is 0 and the weights are 0.5 each
@wrong(
    "mended_attention",
    "it is enough to set the output of the dead row to zero",
    "M-DEAD-ROW-OUTPUT",
)
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is None:
        weights = scores.softmax(-1)
        return weights @ value, weights
    scores = scores.masked_fill(~mask, -1e9)
    weights = F.softmax(scores, dim=-1)
    output = (weights @ value).masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
    return output, weights


# shows: a dead row and output.sum().backward(): NaN in the query's gradient; d = 4, k = 3: scores divided by √3
@wrong(
    "mended_attention",
    "NaN may be turned into zeros after the softmax; the root is that of the number of keys",
    ("M-DEAD-ROW-GRADIENT",),
    ("D-SCALE-KEYS",),
)
def _(query, key, value, mask=None):
    number = key.shape[-2]
    scores = torch.einsum("...qd,...kd->...qk", query, key) / number**0.5
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        scores = scores + bias
    weights = torch.softmax(scores, dim=-1)
    weights = weights.nan_to_num(0.0)
    return weights @ value, weights


# shows: wild_positions: accepted, as no odd width is asked for; a right table in single precision: refused
@wrong(
    "test_positions",
    "widths like 4, 6 and 8 are enough to see the promise; a right table is equal to the formula",
    (),
    ("T-EXACT",),
)
def _(positions):
    for width in (4, 6, 8):
        table = positions(20, width)
        expected = torch.zeros(20, width)
        for p in range(20):
            for f in range(width):
                angle = p / 10000 ** (2 * (f // 2) / width)
                expected[p, f] = math.sin(angle) if f % 2 == 0 else math.cos(angle)
        assert table.shape == (20, width)
        assert torch.equal(table, expected)


# shows: mended_positions(4, 3): the third column has the rate of width 4, not of width 3; float64 comes out
@wrong(
    "mended_positions",
    "for an odd width I make the table one wider and cut the last column off; more precision is better, so float64",
    ("C-ODD-ROUNDED-UP",),
    ("C-FLOAT64-TABLE",),
)
def _(length, width):
    full = width + width % 2
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    factor = torch.exp(torch.arange(0, full, 2, dtype=torch.float64) * (-math.log(10000.0) / full))
    table = torch.zeros(length, full, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * factor)
    table[:, 1::2] = torch.cos(position * factor)
    return table[:, :width]


# shows: an implementation that takes out nothing: accepted once 0 is mended; a right one: refused, for its words that are out are -inf
@wrong(
    "test_nucleus",
    "a word that is out has the number 0; it is enough that the probabilities of the words that stay reach top_p",
    ("T-OUT-IS-ZERO",),
    (),
)
def _(nucleus):
    shares = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.7, 0.05, 0.2]])
    for top_p in (0.4, 0.6, 0.9, 0.97):
        result = nucleus(shares.log(), top_p)
        stays = result != 0
        kept = (shares * stays).sum(-1)
        assert (kept >= top_p).all()
        assert (result[~stays] == 0).all()
        assert (result[stays] > -math.inf).all()


# shows: shares 0.15 0.5 0.05 0.3, top_p 0.6: the numbers come out in the order of likelihood, and as log-probabilities of the rest
@wrong(
    "mended_nucleus",
    "the result may be given from the likeliest word to the least likely; the words that stay share the probability among themselves again",
    ("P-TOP-P-IN-ORDER",),
    ("P-TOP-P-LOG-SHARES",),
)
def _(logits, top_p):
    likely, order = logits.softmax(-1).sort(-1, descending=True)
    before = likely.cumsum(-1) - likely
    ordered = logits.gather(-1, order).masked_fill(before >= top_p, -torch.inf)
    ordered = ordered.log_softmax(-1)
    return ordered
