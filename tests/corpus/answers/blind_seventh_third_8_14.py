"""Answers to chapters 8–14 by another writer who had the notebooks alone, half with two mistakes.

Nothing was mended by these but sentences and notes on what is fair. What the judge said of them is in
tests/bench/answers.md.

In the lines "shows" (made by running the answer and a right one), f is the answer, T is
torch.tensor, and rn(*shape, seed=0) draws normal numbers from a generator with that seed. A result
is written as its first numbers and its shape.
grad: the gradient of one argument, of a weighted sum of the result. freq: how often each id is drawn.
mw: masked_words on 60,000 tokens. Tokens kept, share asked for, of these masked, exchanged, any other
change, targets right, …, smallest and largest exchanged id.
beam: beam_search with the width, n = max_length, b sentences, V words and a seed, on a step of tables;
its rows are filled up with eos. la_f, la_s: LatentAttention with drawn weights, forward, and step
in pieces of the given sizes. growth: does memory for a text twice as long grow by less than 2.5?
abl, pat: scores of the stored model "varying", with that place ablated or patched.
rd: read of three toy pictures. gca: gated_cross_attention at that gate, and what attention was given;
gca_g: the gradient of the gate. ta, tp, tn: what the test says of right implementations (good1 …,
np, f32, loop, mended, nuc2, nuc3) and of broken ones.
"""

import copy
import functools
import itertools
import math
from collections import Counter, defaultdict

import einops
import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import nn

from attncourse.multihead import merge_heads, split_heads
from attncourse.one_stack import byte_letters, byte_words
from attncourse.positions import rotate
from attncourse.scaled_dot_product import scaled_dot_product_attention
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right


# shows: f(T([[1.]]),T([[0.]]),T([[1.],[2.],[3.]])) gives [1.0] (1, 1); right: [2.0] (1, 1)
@wrong("relative_scores", "the row of the table is simply the clipped offset", "C-SHAW-NO-MIDDLE")
def _(query, key, table):
    q, k = query.shape[-2], key.shape[-2]
    c = (table.shape[0] - 1) // 2
    i = torch.arange(k - q, k).unsqueeze(1)
    j = torch.arange(k).unsqueeze(0)
    rel = (j - i).clamp(-c, c)
    positional = einsum(query, table[rel], "... q d, q k d -> ... q k")
    return (query @ key.transpose(-1, -2) + positional) / math.sqrt(query.shape[-1])


# shows: f(T([[1.]]),T([[0.],[0.]]),T([[1.],[2.],[3.]])) gives [2.0, 3.0] (1, 2); right: [1.0, 2.0] (1, 2)
@wrong(
    "relative_scores",
    "the first query stands at the first key; the root of d belongs under q·k only",
    ("P-TOPLEFT",),
    ("C-SHAW-SCALED-HALF",),
)
def _(query, key, table):
    nq, nk, d = query.size(-2), key.size(-2), query.size(-1)
    c = len(table) // 2
    offsets = torch.arange(nk) - torch.arange(nq)[:, None]
    vectors = table[offsets.clamp(-c, c) + c]  # q k d
    content = torch.einsum("...qd,...kd->...qk", query, key)
    place = torch.einsum("...qd,qkd->...qk", query, vectors)
    return content / d**0.5 + place


# shows: f(T([-1,0,1]),4,8,True) gives [3, 0, 1] (3,); right: [1, 0, 3] (3,)
@wrong(
    "relative_buckets",
    "keys before the query get the second half of the buckets",
    "C-BUCKETS-AFTER-FIRST",
)
def _(offsets, num_buckets, max_distance, bidirectional):
    offsets = offsets.long()
    ret = torch.zeros_like(offsets)
    if bidirectional:
        num_buckets //= 2
        ret += (offsets < 0).long() * num_buckets
        n = offsets.abs()
    else:
        n = torch.clamp(-offsets, min=0)
    max_exact = num_buckets // 2
    is_small = n < max_exact
    large = (
        max_exact
        + (
            torch.log(n.clamp(min=1).float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
    )
    large = large.clamp(max=num_buckets - 1)
    return ret + torch.where(is_small, n, large)


# shows: f(T([-9,-6,-3,3]),8,21,True) gives [2, 2, 2, 6] (4,); right: [3, 2, 2, 6] (4,)
@wrong(
    "relative_buckets",
    "the distance is |offset| in the one-directional case as well; the logarithm is divided by log of max_distance",
    ("C-BUCKETS-FUTURE-DISTANCE",),
    ("C-BUCKETS-LOG-OF-MAX",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    b = num_buckets // 2 if bidirectional else num_buckets
    a = b // 2
    distance = offsets.abs()  # how far
    share = torch.log(distance.clamp(min=1) / a) / (math.log(max_distance))
    far = (a + (share * (b - a)).floor()).clamp(max=b - 1)
    bucket = torch.where(distance < a, distance, far).to(torch.int64)
    if bidirectional:
        bucket = bucket + b * (offsets > 0)
    return bucket


# shows: f(T([-9,-6,-3,3]),8,21,True) gives [3, 3, 2, 6] (4,); right: [3, 2, 2, 6] (4,)
@wrong(
    "relative_buckets",
    "a negative offset is clamped to 0 if there is one direction; far buckets are rounded to the nearest",
    ("C-BUCKETS-AHEAD",),
    ("C-BUCKETS-ROUNDED",),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    b = num_buckets // 2 if bidirectional else num_buckets
    half = b // 2

    def bucket(o):
        first = b if bidirectional and o > 0 else 0
        delta = abs(o) if bidirectional else max(o, 0)
        if delta < half:
            return first + delta
        step = round(math.log(delta / half) / math.log(max_distance / half) * (b - half))
        return first + min(half + step, b - 1)

    flat = [bucket(o) for o in offsets.flatten().tolist()]
    return torch.tensor(flat, dtype=torch.int64).reshape(offsets.shape)


# shows: f(3,1,2) gives [-0.157, -0.0, -0.025, -0.0, -0.004, -0.0] (3, 1, 2); right: [-0.062, -0.0, -0.004, -0.0, -0.25, -0.0] (3, 1, 2)
@wrong("alibi_bias", "slopes are 2^(−8i/h) for any number of heads", "C-ALIBI-POWERS-ONLY")
def _(num_heads, query_length, key_length):
    m = [2 ** (-8 * i / num_heads) for i in range(1, num_heads + 1)]
    j = torch.arange(key_length)
    i = torch.arange(key_length - query_length, key_length)
    return -torch.tensor(m).view(-1, 1, 1) * (j[None] - i[:, None]).abs()


# shows: f(1,2,2) gives [0.0, 0.004, -0.004, 0.0] (1, 2, 2); right: [-0.0, -0.004, -0.004, -0.0] (1, 2, 2)
@wrong(
    "alibi_bias",
    "the bias is slope times (j − i), it is negative anyway; the missing heads get the first slopes of 2p heads",
    ("C-ALIBI-SIGNED",),
    ("C-ALIBI-ONE-AFTER-THE-OTHER",),
)
def _(num_heads, query_length, key_length):
    power = 2 ** math.floor(math.log2(num_heads))
    extra = num_heads - power
    e = torch.cat([8 * torch.arange(1, power + 1) / power, 4 * torch.arange(1, extra + 1) / power])
    m = (2.0**-e)[:, None, None]
    i = torch.arange(query_length).view(-1, 1) + (key_length - query_length)
    j = torch.arange(key_length).view(1, -1)
    return m * (j - i)


# shows: f(T([[1.,0,1,0]]),T([1])) gives [-0.301, 0.0, 1.382, 0.0] (1, 4); right: [0.54, 0.841, 1.0, 0.01] (1, 4)
@wrong("rotate", "a pair is a feature of the first half and one of the second", "P-ROPE-LAYOUT")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    inv_freq = 1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    freqs = torch.outer(positions.double(), inv_freq)
    cos, sin = freqs.cos().to(x.dtype), freqs.sin().to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


# shows: f(T([[1.,0]]),T([1])) gives [0.54, -0.841] (1, 2); right: [0.54, 0.841] (1, 2)
@wrong(
    "rotate",
    "the exponent is −i/d with i the number of the pair; the hand turns clockwise",
    ("C-EXPONENT-HALVED",),
    ("C-ROPE-BACKWARD",),
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    speed = base ** (-torch.arange(d // 2).double() / d)
    angle = positions.double()[:, None] * speed
    hands = torch.view_as_complex(x.double().unflatten(-1, (d // 2, 2)).contiguous())
    hands = hands * torch.exp(-1j * angle)
    return torch.view_as_real(hands).flatten(-2).to(x.dtype)


# shows: f(T([[1.,0,1,0]]),T([1])) gives [0.54, 1.0, 0.841, 0.01] (1, 4); right: [0.54, 0.841, 1.0, 0.01] (1, 4)
@wrong(
    "rotate",
    "even features first and odd ones after them is good enough; float32 is precise enough for angles",
    ("C-ROPE-JOINED-IN-HALVES",),
    (),
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    a, b = x[..., ::2], x[..., 1::2]
    theta = positions.float()[:, None] / base ** (torch.arange(0, d, 2) / d)
    c, s = theta.cos().to(x.dtype), theta.sin().to(x.dtype)
    return torch.cat([a * c - b * s, a * s + b * c], -1)


# shows: f(T([[1.,2],[3,4]])) gives [1.0, 4.0] (2, 1); right: [2.0, 3.0] (2, 1)
@wrong("shift_relative", "each row is moved one place further to the right", "C-SHIFT-OTHER-WAY")
def _(scores):
    q, r = scores.shape[-2:]
    k = r - q + 1
    rows = []
    for i in range(q):
        rows.append(scores[..., i, i : i + k])
    return torch.stack(rows, dim=-2)


# shows: f(T([[1.]])) gives [0.0] (1, 1); right: [1.0] (1, 1)
@wrong(
    "shift_relative",
    "after the padding the first q numbers are dropped; the last k columns are the keys",
    ("C-SHIFT-ONE-MORE",),
    ("C-SHIFT-CUT-LEFT",),
)
def _(scores):
    *lead, q, r = scores.shape
    k = r - q + 1
    padded = F.pad(scores, (0, 1))
    flat = F.pad(padded.flatten(-2), (0, q))
    return flat[..., q : q + q * r].reshape(*lead, q, r)[..., -k:]


@right("shift_relative")
def _(scores):
    # the way of the original code: a column of zeros on the left
    q, r = scores.shape[-2:]
    wide = torch.cat([torch.zeros_like(scores[..., :1]), scores], dim=-1)
    wide = wide.reshape(*scores.shape[:-2], r + 1, q)[..., 1:, :]
    return wide.reshape(scores.shape)[..., : r - q + 1]


# shows: f({'ab':2,'cd':1,'cde':1},1) gives (('c', 'd')); right: (('a', 'b'))
@wrong(
    "byte_pairs",
    "a pair counts once for each different word in which it stands",
    "B-EACH-WORD-ONCE",
)
def _(words, num_merges):
    spelled = {word: tuple(word) for word in words}
    age = {}
    for letter in sorted(set("".join(words))):
        age[letter] = len(age)
    merges = []
    while len(merges) < num_merges:
        counts = Counter()
        for word, pieces in spelled.items():
            for pair in itertools.pairwise(pieces):
                counts[pair] += 1
        if not counts:
            break
        left, right = min(counts, key=lambda p: (-counts[p], age[p[0]], age[p[1]]))
        merges.append((left, right))
        age.setdefault(left + right, len(age))
        for word, pieces in spelled.items():
            new, i = [], 0
            while i < len(pieces):
                if pieces[i : i + 2] == (left, right):
                    new.append(left + right)
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            spelled[word] = tuple(new)
    return merges


# shows: f({'aaa':1,'bc':1},2) gives (('a', 'a'), ('aa', 'a')); right: (('a', 'a'), ('b', 'c'))
@wrong(
    "byte_pairs",
    "ties are broken by the alphabet; joining with str.replace is the same as merging",
    ("B-ALPHABET",),
    ("B-TEXT-REPLACED",),
)
def _(words, num_merges):
    text = {" ".join(w): n for w, n in words.items()}
    age = sorted(set("".join(words)))
    merges = []
    for _ in range(num_merges):
        pairs = Counter()
        for s, n in text.items():
            parts = s.split(" ")
            for a, b in zip(parts, parts[1:]):
                pairs[a, b] += n
        if not pairs:
            break
        a, b = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append((a, b))
        if a + b not in age:
            age.append(a + b)
        text = {s.replace(a + " " + b, a + b): n for s, n in text.items()}
    return merges


# shows: f({'ab':1},1) gives (); right: (('a', 'b'))
@wrong(
    "byte_pairs",
    "a pair that occurs only once is not worth a merge; a pair counts once a word, even if it stands there twice",
    ("B-AT-LEAST-TWICE",),
    ("B-ONCE-A-WORD",),
)
def _(words, num_merges):
    pieces = {w: list(w) for w in words}
    order = {c: i for i, c in enumerate(sorted({c for w in words for c in w}))}
    result = []

    def merge(p, pair):
        out = []
        for piece in p:
            if out and (out[-1], piece) == pair and not glued[-1]:
                out[-1] += piece
                glued[-1] = True
            else:
                out.append(piece)
                glued.append(False)
        return out

    for _ in range(num_merges):
        n = defaultdict(int)
        for w, p in pieces.items():
            for pair in set(zip(p, p[1:])):
                n[pair] += words[w]
        if not n or max(n.values()) < 2:
            break
        top = max(n.values())
        best = sorted((order[a], order[b], a, b) for (a, b), m in n.items() if m == top)[0][2:]
        result.append(best)
        order.setdefault("".join(best), len(order))
        for w in pieces:
            glued = []
            pieces[w] = merge(pieces[w], best)
    return result


# shows: f('de',[('a','b'),('b','c'),('ab','c'),('a','bc'),('d','e')]) gives (260); right: (259)
@wrong("encode_text", "every merge has an id of its own, 256 plus its number", "B-BORN-AGAIN")
def _(text, merges):
    ids = {letter: i for i, letter in enumerate(sorted(byte_letters()))}
    for number, (a, b) in enumerate(merges):
        ids[a + b] = 256 + number
    result = []
    for part in byte_words(text):
        pieces = list(part)
        for a, b in merges:
            i = 0
            while i + 1 < len(pieces):
                if pieces[i] == a and pieces[i + 1] == b:
                    pieces[i : i + 2] = [a + b]
                i += 1
        result.extend(ids[piece] for piece in pieces)
    return result


# shows: f('a',[]) gives (97); right: (64)
@wrong(
    "encode_text",
    "byte_letters() already has the letters in the order of the ids; each merge is done once in a part",
    ("B-BYTE-IS-ID",),
    ("B-MERGED-ONCE",),
)
def _(text, merges):
    vocabulary = list(byte_letters())
    for pair in merges:
        if "".join(pair) not in vocabulary:
            vocabulary.append("".join(pair))
    out = []
    for word in byte_words(text):
        word = list(word)
        for pair in merges:
            for i in range(len(word)):
                if tuple(word[i : i + 2]) == tuple(pair):
                    word[i : i + 2] = ["".join(pair)]
                    break
        out += map(vocabulary.index, word)
    return out


@right("encode_text")
def _(text, merges):
    places = {}
    for piece in itertools.chain(sorted(byte_letters()), map("".join, merges)):
        places.setdefault(piece, len(places))

    def join(pieces, pair):
        if len(pieces) < 2:
            return pieces
        if (pieces[0], pieces[1]) == tuple(pair):
            return (pieces[0] + pieces[1],) + join(pieces[2:], pair)
        return pieces[:1] + join(pieces[1:], pair)

    parts = (functools.reduce(join, merges, tuple(part)) for part in byte_words(text))
    return [places[piece] for part in parts for piece in part]


# shows: mw(f,.5) gives (True, 0.499, 0.803, 0.019, False, True, True, True, 0, 49, True); right: (True, 0.499, 0.804, 0.094, False, True, True, True, 0, 49, True)
@wrong("masked_words", "a tenth of what is not masked is exchanged", "W-TENTH-OF-A-FIFTH")
def _(tokens, share, mask_id, vocabulary_size, rng):
    chance = lambda: torch.rand(tokens.shape, generator=rng)
    asked = chance() < share
    masked = asked & (chance() < 0.8)
    exchanged = asked & ~masked & (chance() < 0.1)
    any_word = torch.randint(vocabulary_size, tokens.shape, generator=rng)
    inputs = tokens.masked_fill(masked, mask_id)
    inputs = torch.where(exchanged, any_word, inputs)
    return inputs, tokens.masked_fill(~asked, -100)


# shows: mw(f,.5) gives (True, 0.448, 0.895, 0.105, False, True, True, True, 1, 49, True); right: (True, 0.499, 0.804, 0.094, False, True, True, True, 0, 49, True)
@wrong(
    "masked_words",
    "only a word that was changed is a target; id 0 is padding and is never put in",
    (),
    (),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    u = torch.rand(tokens.shape, generator=rng)
    asked = u < share
    v = torch.rand(tokens.shape, generator=rng)
    random_ids = torch.randint(1, vocabulary_size, tokens.shape, generator=rng)
    inputs = tokens.clone()
    inputs[asked & (v < 0.8)] = mask_id
    swap = asked & (v >= 0.8) & (v < 0.9)
    inputs[swap] = random_ids[swap]
    targets = torch.where(inputs != tokens, tokens, -100)
    return inputs, targets


# shows: mw(f,.5) gives (False, 0.499, 0.804, 0.096, False, True, True, True, 0, 49, True); right: (True, 0.499, 0.804, 0.094, False, True, True, True, 0, 49, True)
@wrong(
    "masked_words",
    "the inputs are the tokens with masks written into them; the exchanged words need no generator",
    (),
    (),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    targets = tokens.clone()
    asked = torch.bernoulli(torch.full(tokens.shape, float(share)), generator=rng).bool()
    targets[~asked] = -100
    kind = torch.rand(tokens.shape, generator=rng)
    inputs = tokens
    inputs[asked & (kind < 0.8)] = mask_id
    swapped = asked & (kind > 0.9)
    inputs[swapped] = torch.randint(vocabulary_size, (int(swapped.sum()),)).to(tokens)
    return inputs, targets


# shows: freq(f,T([[.1,.5,.06,.3,.04]]).log(),top_p=.6) gives [0.0, 1.0, 0.0, 0.0, 0.0] (5,); right: [0.0, 0.628, 0.0, 0.371, 0.0] (5,)
@wrong(
    "sample",
    "words stay as long as the sum is at most top_p, and the first stays in any case",
    "P-TOP-P-WITHOUT-THE-LAST",
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    logits = logits / temperature
    if top_k is not None:
        k = min(top_k, logits.shape[-1])
        least = torch.topk(logits, k).values[..., -1, None]
        logits = torch.where(logits < least, float("-inf"), logits)
    p = F.softmax(logits, -1)
    if top_p is not None:
        likely, order = torch.sort(p, descending=True, dim=-1)
        total = torch.cumsum(likely, -1)
        keep = total <= top_p
        keep[:, 0] = True
        p = p * keep.gather(-1, order.argsort(-1))
    return torch.multinomial(p, 1).squeeze(-1)


# shows: freq(f,T([[.1,.5,.06,.3,.04]]).log(),temperature=.5) gives [0.151, 0.343, 0.122, 0.277, 0.108] (5,); right: [0.024, 0.712, 0.013, 0.248, 0.004] (5,)
@wrong(
    "sample",
    "a high temperature sharpens, so the logits are multiplied by it; top_k is never above the vocabulary",
    ("P-TEMPERATURE-TIMES",),
    ("P-TOP-K-TOO-LARGE",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    scores = logits * temperature
    if top_k is not None:
        best, ids = scores.topk(top_k)
        scores = torch.full_like(scores, -math.inf).scatter(-1, ids, best)
    if top_p is not None:
        best, ids = scores.sort(descending=True)
        p = best.softmax(-1)
        best = best.masked_fill(p.cumsum(-1) - p >= top_p, -math.inf)
        scores = torch.empty_like(scores).scatter(-1, ids, best)
    return torch.distributions.Categorical(logits=scores).sample()


# shows: freq(f,T([[.1,.5,.06,.3,.04]]).log()) gives [0.503, 0.294, 0.097, 0.065, 0.041] (5,); right: [0.095, 0.506, 0.057, 0.299, 0.043] (5,)
@wrong(
    "sample",
    "top_p is looked at before top_k; a word drawn among the sorted ones is the id",
    (),
    ("P-SHARE-NOT-PLACE",),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    likely, order = (logits / temperature).softmax(-1).sort(-1, descending=True)
    place = torch.arange(logits.shape[-1])
    for way in ("p", "k"):
        if way == "p" and top_p is not None:
            likely = likely / likely.sum(-1, keepdim=True)
            likely = likely * (likely.cumsum(-1) - likely < top_p)
        if way == "k" and top_k is not None:
            likely = likely * (place < top_k)
    drawn = torch.multinomial(likely, 1)
    return drawn[:, 0]


@right("sample")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    ids = []
    for row in logits.detach().double().cpu().numpy():
        order = np.argsort(-row)
        if top_k is not None:
            order = order[:top_k]
        x = row[order] / temperature
        p = np.exp(x - x.max())
        p /= p.sum()
        if top_p is not None:
            n = 1
            while n < len(p) and p[:n].sum() < top_p:
                n += 1
            p, order = p[:n] / p[:n].sum(), order[:n]
        u = torch.rand((), dtype=torch.float64).item()
        ids.append(int(order[min(int(np.searchsorted(p.cumsum(), u, side="right")), len(p) - 1)]))
    return torch.tensor(ids)


# shows: beam(f,width=2,n=5,b=3,V=5,seed=0)[2] gives [4, 3, 4, 0, 0] (5,); right: [4, 3, 4, 0, 4] (5,)
@wrong(
    "beam_search",
    "only the words are sorted by the best totals, the state stays where it is",
    "B-STATE-NOT-MOVED",
)
def _(step, state, bos, eos, width, max_length):
    b = state.shape[0]
    state = state.repeat_interleave(width, 0)
    total = torch.full((b, width), -math.inf)
    total[:, 0] = 0.0
    words = torch.full((b * width, 1), bos)
    ended = torch.zeros(b * width, dtype=torch.bool)
    first = torch.arange(b)[:, None] * width
    for _ in range(max_length):
        logits, state = step(words[:, -1], state)
        log_p = logits.log_softmax(-1)
        vocab = log_p.shape[-1]
        log_p[ended] = -math.inf
        log_p[ended, eos] = 0.0
        candidates = (total[..., None] + log_p.view(b, width, vocab)).flatten(1)
        total, place = candidates.topk(width)
        row = (first + place // vocab).flatten()
        word = (place % vocab).flatten()
        words = torch.cat([words[row], word[:, None]], 1)
        ended = ended[row] | (word == eos)
        # next round
        if ended.view(b, width)[:, 0].all():
            break
    return words.view(b, width, -1)[:, 0, 1:]


# shows: beam(f,2,3,1,4) gives [2, 0, 3] (1, 3); right: [3, 1, 1] (1, 3)
@wrong(
    "beam_search",
    "all beginnings of the first round have the total 0; the search is over when the best beginning of one sentence has ended",
    ("B-ALL-ALIKE",),
    ("B-FIRST-SENTENCE-STOPS",),
)
def _(step, state, bos, eos, width, max_length):
    b = len(state)
    total = torch.zeros(b, width)
    state = torch.stack([state] * width, 1)  # b width ...
    token = torch.full((b, width), bos)
    text = torch.zeros(b, width, 0, dtype=torch.long)
    done = torch.zeros(b, width, dtype=torch.bool)
    sentence = torch.arange(b)[:, None]
    for _ in range(max_length):
        logits, new = step(token.flatten(), state.flatten(0, 1))
        state = new.unflatten(0, (b, width))
        lp = torch.log_softmax(logits, -1).unflatten(0, (b, width))
        stay = torch.full_like(lp, -math.inf)
        stay[..., eos] = 0
        lp = torch.where(done[..., None], stay, lp)
        n = lp.shape[-1]
        total, best = torch.topk((total[..., None] + lp).reshape(b, -1), width)
        origin, token = best // n, best % n
        text = torch.cat([text[sentence, origin], token[..., None]], -1)
        state, done = state[sentence, origin], done[sentence, origin] | (token == eos)
        if done[:, 0].any():
            break
    return text[:, 0]


# shows: beam(f,2,3,1,4,seed=3) gives [3, 2, 2] (1, 3); right: [1, 1, 1] (1, 3)
@wrong(
    "beam_search",
    "the totals are sums of the logits; a beginning that has ended may be lengthened, what follows eos is overwritten in the end",
    ("B-LOGITS-ADDED",),
    ("B-GOES-ON-AFTER-EOS",),
)
def _(step, state, bos, eos, width, max_length):
    sentences = []
    for one in state:
        beam = [(0.0, [bos], one)]
        for _ in range(max_length):
            tokens = torch.tensor([words[-1] for _, words, _ in beam])
            logits, states = step(tokens, torch.stack([s for _, _, s in beam]))
            scores = logits.tolist()
            new = [
                (beam[r][0] + s, beam[r][1] + [w], states[r])
                for r in range(len(beam))
                for w, s in enumerate(scores[r])
            ]
            new.sort(key=lambda t: t[0], reverse=True)
            beam = new[:width]
        words = beam[0][1][1:]
        if eos in words:
            stop = words.index(eos)
            words = words[:stop] + [eos] * (len(words) - stop)
        sentences.append(words)
    ids = torch.tensor(sentences)
    longest = int((ids != eos).sum(1).max()) + 1
    return ids[:, :longest]


# shows: f((T([[1.]]),T([[2.]])),T([[3.]]),T([[4.]])) gives ([1.0, 3.0] (1, 2), [2.0, 4.0] (1, 2)); right: ([1.0, 3.0] (2, 1), [2.0, 4.0] (2, 1))
@wrong("extend", "new positions go on the last axis", "K-CAT-WIDTH")
def _(cache, key, value):
    new = (key, value)
    if cache is None:
        return new
    return tuple(torch.cat([old, x], dim=-1) for old, x in zip(cache, new))


# shows: f((T([[1.]]),T([[2.]])),T([[3.]]),T([[4.]])) gives ([3.0, 1.0] (1, 2), [4.0, 2.0] (1, 2)); right: ([1.0, 3.0] (2, 1), [2.0, 4.0] (2, 1))
@wrong(
    "extend",
    "positions are the axis behind the texts, axis 1; the newest word comes first",
    ("K-CAT-HEADS",),
    ("K-NEW-FIRST",),
)
def _(cache, key, value):
    if cache is None:
        return key, value
    keys, values = cache
    append = lambda old, new: torch.cat((new, old), dim=1)
    return append(keys, key), append(values, value)


# shows: f(T([[0.]]),T([[0.]]),T([[2.]]),(T([[0.]]),T([[1.]]))) gives ([1.0] (1, 1), ([0.0, 0.0] (2, 1), [1.0, 2.0] (2, 1))); right: ([1.5] (1, 1), ([0.0, 0.0] (2, 1), [1.0, 2.0] (2, 1)))
@wrong("cached_attention", "the triangle starts in the top left corner", "K-MASK-TOP-LEFT")
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key = torch.cat([cache[0], key], -2)
        value = torch.cat([cache[1], value], -2)
    q, k = query.shape[-2], key.shape[-2]
    causal = torch.ones(q, k, dtype=torch.bool).tril()
    if mask is not None:
        causal = causal & mask
    output, _ = scaled_dot_product_attention(query, key, value, causal)
    return output, (key, value)


# shows: f(T([[0.],[0]]),T([[0.],[0]]),T([[1.],[2]]),None,T([True,True])) gives ([1.5, 1.5] (2, 1), ([0.0, 0.0] (2, 1), [1.0, 2.0] (2, 1))); right: ([1.0, 1.5] (2, 1), ([0.0, 0.0] (2, 1), [1.0, 2.0] (2, 1)))
@wrong(
    "cached_attention",
    "a mask takes the place of the triangle; −1e9 is enough for a row that sees nothing",
    ("K-MASK-INSTEAD",),
    ("M-DEAD-ROW-UNIFORM",),
)
def _(query, key, value, cache=None, mask=None):
    keys = key if cache is None else torch.cat((cache[0], key), dim=-2)
    values = value if cache is None else torch.cat((cache[1], value), dim=-2)
    new, total = key.shape[-2], keys.shape[-2]
    place = torch.arange(total - new, total)
    allowed = torch.arange(total)[None, :] <= place[:, None]
    if mask is not None:
        allowed = mask
    scores = einsum(query, keys, "... q d, ... k d -> ... q k") / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~allowed, -1e9)
    weights = torch.softmax(scores, -1)
    return weights @ values, (keys, values)


# shows: f(T([[0.]]),T([[0.]]),T([[1.]])) gives ([0.0] (1, 1), ([0.0] (1, 1), [1.0] (1, 1))); right: ([1.0] (1, 1), ([0.0] (1, 1), [1.0] (1, 1)))
@wrong(
    "cached_attention",
    "True in the mask means hidden; only earlier words are seen, not the word itself",
    ("K-MASK-POLARITY",),
    ("K-NOT-ITSELF",),
)
def _(query, key, value, cache=None, mask=None):
    n = 0
    if cache is not None:
        n = cache[0].shape[-2]
        key, value = torch.cat([cache[0], key], -2), torch.cat([cache[1], value], -2)
    hidden = torch.ones(query.shape[-2], key.shape[-2]).triu(n).bool()
    if mask is not None:
        hidden = hidden | mask
    return scaled_dot_product_attention(query, key, value, ~hidden)[0], (key, value)


# shows: f(rn(1,4,1,1),rn(1,2,2,1,seed=1),rn(1,2,2,1,seed=2)) gives ([0.175, -0.726, -0.04, -0.832] (1, 4, 1, 1), [0.647, 0.353, 0.541, 0.459, 0.297, 0.703, 0.421, 0.579] (1, 4, 1, 2)); right: ([0.175, 0.067, -0.521, -0.832] (1, 4, 1, 1), [0.647, 0.353, 0.471, 0.529, 0.772, 0.228, 0.421, 0.579] (1, 4, 1, 2))
@wrong(
    "grouped_query_attention", "head h of the queries looks at cached head h modulo c", "G-ORDER"
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c, k = key.shape[1], key.shape[2]
    grouped = rearrange(query, "b (g c) q d -> b c (g q) d", c=c)
    if mask is not None:
        mask = rearrange(mask.expand(b, h, q, k), "b (g c) q k -> b c (g q) k", c=c)
    output, weights = scaled_dot_product_attention(grouped, key, value, mask)
    output = rearrange(output, "b c (g q) v -> b (g c) q v", q=q)
    weights = rearrange(weights, "b c (g q) k -> b (g c) q k", q=q)
    return output, weights


# shows: f(rn(1,2,1,1),rn(1,1,1,1),rn(1,1,1,1),T([[[[False]],[[True]]]])) gives ([nan, 1.541] (1, 2, 1, 1), [nan, 1.0] (1, 2, 1, 1)); right: ([0.0, 1.541] (1, 2, 1, 1), [0.0, 1.0] (1, 2, 1, 1))
@wrong(
    "grouped_query_attention",
    "each key is written out for its group, a view costs the same; a row without keys is softmaxed as it is",
    ("G-EXPAND",),
    ("M-DEAD-ROW",),
)
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key.repeat_interleave(g, dim=1))
    scores = scores / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    output = weights @ value.repeat_interleave(g, dim=1)
    return output, weights


# shows: f(rn(1,4,1,1),rn(1,2,2,1,seed=1),rn(1,2,2,1,seed=2)) gives ([0.175, 0.067, -0.521, -0.832] (1, 4, 1, 1), [0.647, 0.353, 0.471, 0.529, 0.772, 0.228, 0.421, 0.579] (1, 2, 2, 1, 2)); right: ([0.175, 0.067, -0.521, -0.832] (1, 4, 1, 1), [0.647, 0.353, 0.471, 0.529, 0.772, 0.228, 0.421, 0.579] (1, 4, 1, 2))
@wrong(
    "grouped_query_attention",
    "the mask comes complete, as b h q k; the weights are handed out in groups, b c g q k",
    ("G-MASK-FOUR-AXES",),
    ("G-WEIGHTS-NOT-JOINED",),
)
def _(query, key, value, mask=None):
    B, H, Q, D = query.shape
    C, K = key.shape[1:3]
    G = H // C
    s = einsum(query.reshape(B, C, G, Q, D), key, "b c g q d, b c k d -> b c g q k") / D**0.5
    if mask is not None:
        m = mask.reshape(B, C, G, Q, K)
        s = s.masked_fill(~m, -1e30)
    w = s.softmax(-1)
    if mask is not None:
        w = w * m
    out = einsum(w, value, "b c g q k, b c k v -> b c g q v")
    return out.flatten(1, 2), w


@right("grouped_query_attention")
def _(query, key, value, mask=None):
    b, h, q, _ = query.shape
    c, k = key.shape[1:3]
    g = h // c
    outputs, tables = [], []
    for shared in range(c):
        askers = slice(shared * g, (shared + 1) * g)
        scores = einsum(query[:, askers], key[:, shared], "b g q d, b k d -> b g q k")
        scores = scores * query.shape[-1] ** -0.5
        if mask is None:
            table = scores.softmax(-1)
        else:
            seen = mask.expand(b, h, q, k)[:, askers]
            table = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) * seen
        tables.append(table)
        outputs.append(einsum(table, value[:, shared], "b g q k, b k v -> b g q v"))
    return torch.cat(outputs, 1), torch.cat(tables, 1)


# shows: f('GQA',3,12,5,4,3,16,4) gives 480; right: 360
@wrong("bytes_per_token", "GQA keeps num_heads / kv_heads heads", "G-MEMBERS")
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
    elif scheme == "MHA":
        numbers = 2 * num_heads * head_width
    elif scheme == "GQA":
        numbers = 2 * (num_heads // kv_heads) * head_width
    elif scheme == "MQA":
        numbers = 2 * head_width
    else:
        raise ValueError(f"unknown scheme {scheme}")
    return num_layers * numbers * bytes_per_number


# shows: f('MLA',2,4,8,2,latent_width=16,rope_width=4) gives 160; right: 80
@wrong(
    "bytes_per_token",
    "MLA keeps keys and values, so everything counts twice; what is none of the first three must be MLA",
    ("L-ALL-TWICE",),
    ("K-OTHER-ERROR",),
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
    else:
        width = latent_width + rope_width
    return 2 * width * num_layers * bytes_per_number


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
    heads = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1, "MLA": None}
    if scheme not in heads:
        raise ValueError("MHA, GQA, MQA or MLA, not " + str(scheme))
    parts = [latent_width, rope_width] if scheme == "MLA" else [head_width] * (2 * heads[scheme])
    return int(
        sum(bytes_per_number for _ in range(num_layers) for part in parts for _ in range(part))
    )


# shows: la_f(f)[0,0,:4] gives [-2.599, -3.981, -0.052, -2.922] (4,) torch.float64; right: [-1.566, -0.263, 0.382, -0.454] (4,) torch.float64
@wrong("LatentAttention", "the latent is what down makes, and it is kept like that", "L-NO-NORM")
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.r, self.l = num_heads, head_width, rope_width, latent_width

        def linear(i, o):
            return nn.Linear(i, o, bias=False)

        self.q_proj = linear(model_width, num_heads * head_width)
        self.q_rope = linear(model_width, num_heads * rope_width)
        self.down = linear(model_width, latent_width)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = linear(model_width, rope_width)
        self.k_up = linear(latent_width, num_heads * head_width)
        self.v_up = linear(latent_width, num_heads * head_width)
        self.out_proj = linear(num_heads * head_width, model_width)

    def latent(self, x):
        return self.down(x)

    def forward(self, x):
        return self.step(x)[0]

    def step(self, x, cache=None):
        n = 0 if cache is None else cache[0].shape[1]
        q = x.shape[1]
        places = torch.arange(n, n + q)
        z, kr = self.latent(x), rotate(self.k_rope(x), places)
        if cache is not None:
            z, kr = torch.cat([cache[0], z], 1), torch.cat([cache[1], kr], 1)
        qc = rearrange(self.q_proj(x), "b q (h d) -> b h q d", h=self.h)
        qr = rotate(rearrange(self.q_rope(x), "b q (h r) -> b h q r", h=self.h), places)
        up = rearrange(self.k_up.weight, "(h d) l -> h d l", h=self.h)
        absorbed = einsum(qc, up, "b h q d, h d l -> b h q l")
        scores = absorbed @ z[:, None].mT + qr @ kr[:, None].mT
        scores = scores / math.sqrt(self.d + self.r)
        seen = torch.ones(q, n + q, dtype=torch.bool).tril(n)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        mixed = weights @ z[:, None]
        v = rearrange(self.v_up.weight, "(h d) l -> h d l", h=self.h)
        heads = einsum(mixed, v, "b h q l, h d l -> b h q d")
        return self.out_proj(rearrange(heads, "b h q d -> b q (h d)")), (z, kr)


# shows: la_s(f,(2,3))[0,-1,:4] gives [1.149, -0.995, -1.328, 1.323] (4,) torch.float64; right: [1.043, -0.952, -1.268, 1.315] (4,) torch.float64
@wrong(
    "LatentAttention",
    "scores are divided by √d as always; new words of a step come after all the others, so a step needs no mask",
    ("L-SCALE-D",),
    ("K-NO-TRIANGLE",),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        m, h, d, l, r = model_width, num_heads, head_width, latent_width, rope_width
        self.num_heads, self.latent_width = h, l
        self.scale = head_width**-0.5
        self.q_proj = nn.Linear(m, h * d, bias=False)
        self.q_rope = nn.Linear(m, h * r, bias=False)
        self.down = nn.Linear(m, l, bias=False)
        self.norm = nn.RMSNorm(l, eps=1e-6)
        self.k_rope = nn.Linear(m, r, bias=False)
        self.k_up = nn.Linear(l, h * d, bias=False)
        self.v_up = nn.Linear(l, h * d, bias=False)
        self.out_proj = nn.Linear(h * d, m, bias=False)

    def attend(self, x, z, kr, start, triangle):
        query = split_heads(self.q_proj(x), self.num_heads)
        places = torch.arange(start, start + x.shape[1])
        rotated = rotate(split_heads(self.q_rope(x), self.num_heads), places)
        w_k = self.k_up.weight.unflatten(0, (self.num_heads, -1))
        w_v = self.v_up.weight.unflatten(0, (self.num_heads, -1))
        scores = torch.einsum("bhqd,hdl,bkl->bhqk", query, w_k, z)
        scores = (scores + torch.einsum("bhqr,bkr->bhqk", rotated, kr)) * self.scale
        if triangle is not None:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(triangle + 1)
            scores = scores.masked_fill(later, -math.inf)
        mixed = torch.einsum("bhqk,bkl->bhql", scores.softmax(-1), z)
        return self.out_proj(merge_heads(torch.einsum("bhql,hdl->bhqd", mixed, w_v)))

    def forward(self, x):
        kr = rotate(self.k_rope(x), torch.arange(x.shape[1]))
        return self.attend(x, self.norm(self.down(x)), kr, 0, 0)

    def step(self, x, cache=None):
        n = 0 if cache is None else cache.shape[1]
        z = self.norm(self.down(x))
        kr = rotate(self.k_rope(x), torch.arange(n, n + x.shape[1]))
        if cache is not None:
            z = torch.cat([cache[..., : self.latent_width], z], 1)
            kr = torch.cat([cache[..., self.latent_width :], kr], 1)
        return self.attend(x, z, kr, n, None), torch.cat([z, kr], -1)


# shows: la_s(f,(1,1,1,1,1))[0,-1,:4] gives [-0.28, -0.912, -0.893, 1.448] (4,) torch.float64; right: [1.043, -0.952, -1.268, 1.315] (4,) torch.float64
@wrong(
    "LatentAttention",
    "the queries of a step are turned from place 0 on; the last axis of a projection is split into width times heads",
    (),
    (),
)
class _(nn.Module):
    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.num_heads = num_heads
        self.head_width = head_width
        self.rope_width = rope_width
        sizes = {
            "q_proj": (model_width, num_heads * head_width),
            "q_rope": (model_width, num_heads * rope_width),
            "down": (model_width, latent_width),
            "k_rope": (model_width, rope_width),
            "k_up": (latent_width, num_heads * head_width),
            "v_up": (latent_width, num_heads * head_width),
            "out_proj": (num_heads * head_width, model_width),
        }
        for name, (i, o) in sizes.items():
            setattr(self, name, nn.Linear(i, o, bias=False))
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)

    def split(self, x):
        return rearrange(x, "b t (d h) -> b h t d", h=self.num_heads)

    def join(self, x):
        return self.out_proj(rearrange(x, "b h t d -> b t (d h)"))

    def forward(self, x):
        t = torch.arange(x.shape[1])
        latent = self.norm(self.down(x))
        keys, values = self.split(self.k_up(latent)), self.split(self.v_up(latent))
        s = self.split(self.q_proj(x)) @ keys.mT
        s = s + rotate(self.split(self.q_rope(x)), t) @ rotate(self.k_rope(x), t)[:, None].mT
        s = s / math.sqrt(self.head_width + self.rope_width)
        s = s.masked_fill(t > t[:, None], -math.inf)
        return self.join(s.softmax(-1) @ values)

    def step(self, x, cache=None):
        new = x.shape[1]
        old = 0 if cache is None else cache["latent"].shape[1]
        place_q = torch.arange(new)
        latent = self.norm(self.down(x))
        rope = rotate(self.k_rope(x), torch.arange(old, old + new))
        if cache is not None:
            latent = torch.cat([cache["latent"], latent], dim=1)
            rope = torch.cat([cache["rope"], rope], dim=1)
        up = lambda layer: rearrange(layer.weight, "(d h) l -> h l d", h=self.num_heads)
        q = self.split(self.q_proj(x)) @ up(self.k_up).mT
        s = q @ latent[:, None].mT + rotate(self.split(self.q_rope(x)), place_q) @ rope[:, None].mT
        s = s / math.sqrt(self.head_width + self.rope_width)
        s = s.masked_fill(
            torch.arange(old + new) > torch.arange(old, old + new)[:, None], -math.inf
        )
        heads = s.softmax(-1) @ latent[:, None] @ up(self.v_up)
        return self.join(heads), {"latent": latent, "rope": rope}


# shows: f(2,1) gives [True, False, False, True] (2, 2); right: [True, True, True, True] (2, 2)
@wrong("window_mask", "the width is the whole window, half of it on each side", "W-WIDTH-WHOLE")
def _(n, width, global_tokens=0):
    mask = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(n):
            near = abs(i - j) <= width // 2
            mask[i, j] = near or i < global_tokens or j < global_tokens
    return mask


# shows: f(1,0) gives [False] (1, 1); right: [True] (1, 1)
@wrong(
    "window_mask",
    "a global token sees all, nobody has to see it; near means less than width apart",
    ("W-GLOBAL-LOOKS",),
    ("W-WIDTH-STRICT",),
)
def _(n, width, global_tokens=0):
    i = torch.arange(n)
    mask = (i.view(-1, 1) - i.view(1, -1)).abs() < width
    mask[:global_tokens] = True
    return mask


@right("window_mask")
def _(n, width, global_tokens=0):
    band = torch.ones(n, n).tril(width).triu(-width)
    band[:global_tokens, :] += 1
    band[:, :global_tokens] += 1
    return band.bool()


# shows: f(T([[False]]),1) gives [False] (1, 1); right: [True] (1, 1)
@wrong(
    "reach",
    "a word knows after a layer what the words know that it looks at, and nothing else",
    "R-FORGETS",
)
def _(mask, layers):
    looks = mask.float()
    known = torch.eye(len(mask))
    for _ in range(layers):
        known = (looks @ known > 0).float()
    return known.bool()


# shows: f(T([[False]]),1) gives [False] (1, 1); right: [True] (1, 1)
@wrong(
    "reach",
    "each layer squares the table; the diagonal of the mask says whether a word still knows itself",
    ("R-DOUBLES",),
    ("R-FORGETS",),
)
def _(mask, layers):
    if layers == 0:
        return torch.eye(mask.shape[0], dtype=torch.bool)
    start = mask.float()
    table = start
    for _ in range(layers - 1):
        table = (table @ table > 0).float()
    return table > 0


@right("reach")
def _(mask, layers):
    looks = [set(row.nonzero().flatten().tolist()) for row in mask]
    knows = [{i} for i in range(len(looks))]
    for _ in range(layers):
        knows = [knows[i].union(*(knows[j] for j in looks[i])) for i in range(len(looks))]
    table = np.zeros(tuple(mask.shape), dtype=bool)
    for i, words in enumerate(knows):
        table[i, list(words)] = True
    return torch.from_numpy(table)


# shows: growth(f) gives False; right: True
@wrong("windowed_attention", "a mask for the window is enough", "W-DENSE")
def _(query, key, value, width):
    i = torch.arange(query.shape[-2])
    near = (i[:, None] - i[None, :]).abs() <= width
    return scaled_dot_product_attention(query, key, value, near)[0]


# shows: f(T([[0.],[0]]),T([[0.],[0]]),T([[1.],[2]]),1) gives [1.0, 2.0] (2, 1); right: [1.5, 1.5] (2, 1)
@wrong(
    "windowed_attention",
    "a key at distance width is already outside; the zeros that fill up the text are keys like any other",
    ("W-WIDTH-STRICT",),
    ("W-PADDING-SEEN",),
)
def _(query, key, value, width):
    n, d = query.shape[-2:]
    s = width
    c = -(-n // s)
    fill = c * s - n
    q = F.pad(query, (0, 0, 0, fill)).unflatten(-2, (c, s))
    k = F.pad(key, (0, 0, s, s + fill)).unfold(-2, 3 * s, s)  # ... c d 3s
    v = F.pad(value, (0, 0, s, s + fill)).unfold(-2, 3 * s, s).mT
    tq = torch.arange(c * s).view(c, s, 1)
    tk = (torch.arange(c)[:, None] * s + torch.arange(3 * s) - s).view(c, 1, 3 * s)
    near = (tq - tk).abs() < width
    seen = near
    scores = (q @ k / math.sqrt(d)).masked_fill(~seen, -1e9)
    out = scores.softmax(-1) @ v
    return out.flatten(-3, -2)[..., :n, :]


# shows: f(T([[0.],[0]]),T([[0.],[0]]),T([[1.],[2]]),1) gives [1.0, 1.5] (2, 1); right: [1.5, 1.5] (2, 1)
@wrong(
    "windowed_attention",
    "a slice i − width : i + width is the window; the scores need no scaling, the window is small anyway",
    ("W-SLICE-END",),
    ("D-NO-SCALE",),
)
def _(query, key, value, width):
    outputs = []
    for i in range(query.shape[-2]):
        k, v = (x[..., max(0, i - width) : i + width, :] for x in (key, value))
        q = query[..., i : i + 1, :]
        weights = torch.softmax(q @ k.mT, dim=-1)
        outputs.append(weights @ v)
    return torch.cat(outputs, dim=-2)


# shows: f(T([[0.],[0]]),T([[0.],[0]]),T([[1.],[2]])) gives [0.5, 1.5] (2, 1); right: [1.0, 1.5] (2, 1)
@wrong(
    "linear_attention",
    "φ(q) times the sum of all φ(k) is the divisor of every row",
    "L-TOTAL-OF-ALL",
)
def _(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    state = (k[..., :, None] * value[..., None, :]).cumsum(-3)  # ... n d v
    above = (q[..., None, :] @ state).squeeze(-2)
    below = q @ k.sum(-2)[..., None]
    return above / below


# shows: f(rn(2,5,4),rn(2,5,4,seed=1),rn(2,5,3,seed=2)) gives [-1.041, 0.917, -1.304, -1.105, -1.062, 0.986, -1.092, -1.271, 0.289, -0.185]… (2, 5, 3); right: [-1.041, 0.917, -1.304, -1.085, -0.457, 0.285, -1.072, -0.264, -0.283, -0.366]… (2, 5, 3)
@wrong(
    "linear_attention",
    "a small epsilon keeps the division safe; elu is taken of x + 1",
    (),
    ("L-ELU-OF-ONE-MORE",),
)
def _(query, key, value):
    phi = lambda x: F.elu(x + 1)
    scores = torch.tril(einsum(phi(query), phi(key), "... q d, ... k d -> ... q k"))
    weights = scores / (scores.sum(-1, keepdim=True) + 1e-6)
    return einsum(weights, value, "... q k, ... k v -> ... q v")


# shows: f(None,T([0.]),T([0.]),T([1.])) gives ([nan] (1,), ([1.0] (1, 1), [1.0] (1,))); right: ([1.0] (1,), ([1.0] (1, 1), [1.0] (1,)))
@wrong("linear_step", "ask first and then take the new word in", "L-READS-FIRST")
def _(state, query, key, value):
    q = (F.elu(query) + 1)[..., None, :]
    k = (F.elu(key) + 1)[..., None]
    if state is None:
        state = k @ value[..., None, :] * 0, k[..., 0] * 0
    old, old_k = state[0], state[1][..., None]
    new, new_k = old + k @ value[..., None, :], old_k + k
    output = (q @ old) / (q @ old_k)
    return output.squeeze(-2), (new, new_k.squeeze(-1))


# shows: f(None,T([0.]),T([0.]),T([1.])) gives ([nan] (1,), ([1.0] (1, 1), [1.0] (1,))); right: ([1.0] (1,), ([1.0] (1, 1), [1.0] (1,)))
@wrong(
    "linear_step",
    "the sums are updated where they are, with +=; φ is for the keys, the query is taken as it is",
    ("C-KEPT-IN-PLACE",),
    ("L-KEYS-ONLY",),
)
def _(state, query, key, value):
    k = F.elu(key) + 1
    outer = torch.einsum("...d,...v->...dv", k, value)
    if state is None:
        kv, z = outer, k
    else:
        kv, z = state
        kv += outer
        z += k
    numerator = (query.unsqueeze(-1) * kv).sum(dim=-2)
    denominator = (query * z).sum(dim=-1, keepdim=True)
    return numerator / denominator, (kv, z)


@right("linear_step")
def _(state, query, key, value):
    phi = lambda x: torch.where(x > 0, x + 1, x.exp())
    table, weight = (0, 0) if state is None else state
    weight = phi(key) + weight
    table = rearrange(phi(key), "... d -> ... d 1") * rearrange(value, "... v -> ... 1 v") + table
    shares = phi(query) / einsum(phi(query), weight, "... d, ... d -> ...")[..., None]
    return einsum(shares, table, "... d, ... d v -> ... v"), (table, weight)


# shows: f([T([[100.]])]*2,[T([[0.]]),T([[1.]])],[T([[1.]]),T([[2.]])]) gives ([nan] (1, 1), [nan] (1, 1)); right: ([2.0] (1, 1), [2.0] (1, 1))
@wrong("ring_attention", "sums of exponentials can be added up as they are", "R-OVERFLOW")
def _(query_shards, key_shards, value_shards):
    p = len(query_shards)
    keys, values = list(key_shards), list(value_shards)
    outputs = []
    for i, query in enumerate(query_shards):
        above, below = 0, 0
        for step in range(p):
            place = (i - step) % p
            s = torch.exp(query @ keys[place].mT / math.sqrt(query.shape[-1]))
            above = above + s @ values[place]
            below = below + s.sum(-1, keepdim=True)
        outputs.append(above / below)
    return outputs


# shows: f([T([[1.]])]*2,[T([[0.]]),T([[1.]])],[T([[1.]]),T([[2.]])]) gives ([1.269] (1, 1), [1.269] (1, 1)); right: ([1.731] (1, 1), [1.731] (1, 1))
@wrong(
    "ring_attention",
    "the share is sigmoid(l_old − l_new); the logarithms of the sums add up with +",
    ("R-SHARE-SWAPPED",),
    ("R-ADDED-LOGARITHMS",),
)
def _(query_shards, key_shards, value_shards):
    def local(q, k, v):
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return scores.softmax(-1) @ v, scores.logsumexp(-1, keepdim=True)

    result = []
    for q in query_shards:
        o, l = local(q, key_shards[0], value_shards[0])
        for k, v in zip(key_shards[1:], value_shards[1:]):
            o_new, l_new = local(q, k, v)
            share = torch.sigmoid(l - l_new)
            o = o + share * (o_new - o)
            l = l + l_new
        result.append(o)
    return result


@right("ring_attention")
def _(query_shards, key_shards, value_shards):
    # all processes in step: the shards go round, each keeps a running maximum
    p = len(query_shards)
    travelling = list(zip(key_shards, value_shards))
    kept = [None] * p
    for _ in range(p):
        for i, (k, v) in enumerate(travelling):
            s = (
                torch.einsum("...qd,...kd->...qk", query_shards[i], k)
                / query_shards[i].shape[-1] ** 0.5
            )
            top = s.max(-1, keepdim=True).values
            e = torch.exp(s - top)
            new = (top, e.sum(-1, keepdim=True), e @ v)
            if kept[i] is not None:
                m = torch.maximum(kept[i][0], top)
                old_f, new_f = torch.exp(kept[i][0] - m), torch.exp(top - m)
                new = (m, *(a * old_f + b * new_f for a, b in zip(kept[i][1:], new[1:])))
            kept[i] = new
        travelling = travelling[-1:] + travelling[:-1]
    return [total / weight for _, weight, total in kept]


# shows: f(T(0.),T(0.),1) gives [0.0] (); right: [1.0] ()
@wrong("span_mask", "the line ends at the span and begins at span − ramp", "A-RAMP-INSIDE")
def _(distance, span, ramp):
    return torch.clamp((span - distance) / ramp, min=0, max=1)


# shows: f(T(2.),T(1.),2) gives [0.667] (); right: [0.5] ()
@wrong("span_mask", "a span below 0 counts as 0; the line falls over span + ramp places", (), ())
def _(distance, span, ramp):
    span = span.clamp(min=0)
    line = 1 - (distance - span) / (span + ramp)
    line = torch.where(distance <= span, torch.ones_like(line), line)
    return torch.where(distance >= span + ramp, torch.zeros_like(line), line)


# shows: abl(f,'layers.1.attention',0,.3) gives [-1.149, 2.604, -1.872, 3.708, -2.561, -4.607, 3.472, -0.42, 0.529, 0.57]… (3, 48, 32); right: [-1.735, 2.364, -1.596, 3.54, -2.639, -4.152, 3.535, -0.659, 0.083, 0.61]… (3, 48, 32)
@wrong("ablated", "to switch a head off means to take its columns out of out_proj", "I-ALWAYS-ZERO")
def _(model, layer, head, value):
    other = copy.deepcopy(model)
    attention = other.get_submodule(layer)
    d = attention.out_proj.in_features // attention.num_heads
    with torch.no_grad():
        attention.out_proj.weight[:, head * d : (head + 1) * d] = 0
    return other


# shows: abl(f,'layers.0.attention',0,0.0) gives [1.401, 2.76, -2.448, 1.949, -0.605, -5.144, 3.225, 0.358, 1.244, 1.748]… (3, 48, 32); right: [1.852, 1.982, -0.967, 1.239, -0.598, -4.391, 3.528, 1.256, 0.418, 2.561]… (3, 48, 32)
@wrong(
    "ablated",
    "the features of the heads alternate, head 0 has 0, h, 2h, …; the hook belongs to the given model, a copy is not needed",
    ("I-INTERLEAVED",),
    ("I-NO-COPY",),
)
def _(model, layer, head, value):
    attention = model.get_submodule(layer)

    def hook(module, inputs):
        x = inputs[0].clone()
        x[..., head :: attention.num_heads] = value
        return x

    attention.out_proj.register_forward_pre_hook(hook)
    return model


# shows: f(T([[1.,0],[.4,.6]]),1) gives [0.4] (); right: [0.6] ()
@wrong(
    "induction_score", "the head looks at the last occurrence, period places back", "I-SAME-WORD"
)
def _(weights, period):
    n = weights.shape[-1]
    found = [weights[..., i, i - period] for i in range(period, n)]
    return torch.stack(found, -1).mean(-1)


# shows: f(T([[1.,0],[.4,.6]]),1) gives [0.8] (); right: [0.6] ()
@wrong(
    "induction_score",
    "the sum over the rows is divided by n; the diagonal is used from its first entry on",
    ("I-DIVIDED-BY-N",),
    ("I-WHOLE-DIAGONAL",),
)
def _(weights, period):
    diagonal = torch.diagonal(weights, offset=-(period - 1), dim1=-2, dim2=-1)
    return diagonal.sum(-1) / weights.shape[-1]


# shows: f(T([[0.,1],[-1,0]])+torch.eye(2),torch.eye(2),torch.eye(2)*3) gives 1.000; right: 0.707
@wrong("copying_score", "the table is symmetric enough for eigvalsh", "I-SYMMETRIZED")
def _(W_OV, W_E, W_U):
    table = W_E @ W_OV @ W_U
    values = torch.linalg.eigvalsh(table)
    return float(values.sum() / values.abs().sum())


# shows: f(T([[0.,1],[-1,0]])+torch.eye(2),torch.eye(2),torch.eye(2)*3) gives 1.000; right: 0.707
@wrong(
    "copying_score",
    "the head maps x to W_OV x, so W_OV has to be transposed; the magnitude of λ is that of its real part",
    ("I-OV-TRANSPOSED",),
    ("I-IMAGINARY-DROPPED",),
)
def _(W_OV, W_E, W_U):
    full = (W_E @ W_OV.T @ W_U).detach().double().numpy()
    lam = np.linalg.eigvals(full)
    return float(lam.real.sum() / np.abs(lam.real).sum())


@right("copying_score")
def _(W_OV, W_E, W_U):
    # The small product has the same eigenvalues but for zeros; their real parts sum to the trace.
    small = (W_U @ W_E).double() @ W_OV.double()
    return (small.trace() / torch.linalg.eigvals(small).abs().sum()).item()


# shows: f([rn(2,3,4,4,seed=i).softmax(-1) for i in range(3)]) gives [0.307, 0.278, 0.173, 0.241, 0.206, 0.402, 0.162, 0.23, 0.224, 0.273]… (2, 4, 4); right: [0.327, 0.242, 0.203, 0.228, 0.231, 0.361, 0.187, 0.221, 0.245, 0.232]… (2, 4, 4)
@wrong(
    "rollout",
    "the product runs from the first layer on the left to the last on the right",
    "I-EYE-FLOAT32",
    "I-ORDER",
)
def _(weights):
    eye = torch.eye(weights[0].shape[-1])
    result = eye
    for layer in weights:
        a = 0.5 * layer.mean(dim=1) + 0.5 * eye
        result = result @ a
    return result


# shows: f([rn(2,3,4,4,seed=i).softmax(-1) for i in range(3)]) gives [0.904, 0.568, 0.442, 0.541, 0.388, 1.049, 0.432, 0.528, 0.561, 0.775]… (2, 4, 4); right: [0.327, 0.242, 0.203, 0.228, 0.231, 0.361, 0.187, 0.221, 0.245, 0.232]… (2, 4, 4)
@wrong(
    "rollout",
    "of the heads the strongest counts; the residual is added once, after the product of the layers",
    ("I-HEADS-MAX",),
    ("I-RESIDUAL-ONCE",),
)
def _(weights):
    maps = (w.amax(1) for w in weights)
    table = functools.reduce(lambda below, above: above @ below, maps)
    return (table + torch.eye(table.shape[-1])) / 2


# shows: pat(f,('layers.0.attention',0,5)) gives [-0.765, 2.295, -3.132, 4.177, -2.6, -4.552, 0.853, 1.943, 9.535, -1.146]… (3, 48, 32); right: [-1.133, 1.962, -2.805, 1.736, -0.775, -2.103, -0.398, 2.387, 8.366, -1.728]… (3, 48, 32)
@wrong("patched", "the head's output is put in at all positions", "I-ALL-PLACES")
def _(model, clean, corrupted, place):
    layer, head, position = place
    model = copy.deepcopy(model)
    attention = model.get_submodule(layer)
    heard = {}

    def hook(module, inputs):
        heads = split_heads(inputs[0], attention.num_heads).clone()
        if "clean" not in heard:
            heard["clean"] = heads
            return None
        heads[:, head] = heard["clean"][:, head]
        return (merge_heads(heads),)

    attention.out_proj.register_forward_pre_hook(hook)
    model(clean)
    return model(corrupted)


# shows: pat(f,('layers.0.attention',0,5)) gives [0.365, 3.28, -0.613, 2.304, -2.468, -5.175, 3.061, 0.176, 1.181, 2.653]… (3, 48, 32); right: [-1.133, 1.962, -2.805, 1.736, -0.775, -2.103, -0.398, 2.387, 8.366, -1.728]… (3, 48, 32)
@wrong(
    "patched",
    "the corrupted output is put into the clean run; the hook may stay, it is harmless after the run",
    ("I-DIRECTION",),
    ("I-NO-COPY",),
)
def _(model, clean, corrupted, place):
    layer, head, position = place
    attention = model.get_submodule(layer)
    d = attention.out_proj.in_features // attention.num_heads
    mine = slice(head * d, head * d + d)
    store = []
    listener = attention.out_proj.register_forward_pre_hook(lambda _, i: store.append(i[0].clone()))
    model(corrupted)
    listener.remove()

    def replace(_, i):
        x = i[0].clone()
        x[:, position, mine] = store[0][:, position, mine]
        return (x,)

    attention.out_proj.register_forward_pre_hook(replace)
    scores = model(clean)
    return scores


# shows: f(torch.arange(4.).view(1,2,1,2),(1,2)) gives [0.0, 2.0, 1.0, 3.0] (1, 1, 4); right: [0.0, 1.0, 2.0, 3.0] (1, 1, 4)
@wrong("patches", "within a patch the colors of a pixel stand together", "C-PATCH-COLOR-LAST")
def _(image, size):
    height, width = size
    return rearrange(image, "b c (i y) (j x) -> b (i j) (y x c)", y=height, x=width)


# shows: f(torch.arange(4.).view(1,1,2,2),(1,2)) gives [0.0, 2.0, 1.0, 3.0] (1, 2, 2); right: [0.0, 1.0, 2.0, 3.0] (1, 2, 2)
@wrong(
    "patches",
    "size is width and height; the patches are numbered down the columns",
    ("C-PATCH-SIZE-TURNED",),
    ("C-PATCH-DOWN-FIRST",),
)
def _(image, size):
    w, h = size
    Y, X = image.shape[2:]
    rows = []
    for left in range(0, X, w):
        for top in range(0, Y, h):
            rows.append(image[:, :, top : top + h, left : left + w].flatten(1))
    return torch.stack(rows, dim=1)


@right("patches")
def _(image, size):
    return F.unfold(image, kernel_size=tuple(size), stride=tuple(size)).transpose(1, 2)


# shows: f(1,2,2) gives [0.0, 0.0, 0.841, 0.0] (2, 2); right: [0.0, 0.0, 0.0, 0.841] (2, 2)
@wrong("positions_2d", "the first half is for the column, x comes before y", "C-2D-COLUMN-FIRST")
def _(rows, columns, width):
    h = width // 2

    def sinusoids(places):
        f = torch.arange(h)
        angles = places[:, None] / 10000 ** ((f - f % 2) / h)
        return torch.where(f % 2 == 0, angles.sin(), angles.cos())

    p = torch.arange(rows * columns)
    return torch.cat([sinusoids(p % columns), sinusoids(p // columns)], dim=1)


# shows: f(1,1,2) gives [0.841, 0.841] (1, 2); right: [0.0, 0.0] (1, 2)
@wrong(
    "positions_2d",
    "all sines come first and then all cosines; rows and columns count from 1",
    ("C-2D-SINES-FIRST",),
    ("C-2D-FROM-ONE",),
)
def _(rows, columns, width):
    half = width // 2

    def waves(n):
        angle = torch.arange(1, n + 1)[:, None] * 10000.0 ** (-torch.arange(0, half, 2) / half)
        table = torch.cat([angle.sin(), angle.cos()[:, : half // 2]], 1)
        return table

    row = repeat(waves(rows), "i m -> (i j) m", j=columns)
    column = repeat(waves(columns), "j m -> (i j) m", i=rows)
    return torch.cat([row, column], dim=-1)


# shows: f(2,2,2) gives [0.0, 0.0, 0.841, 0.0, 0.0, 0.841, 0.841, 0.841] (4, 2); right: [0.0, 0.0, 0.0, 0.841, 0.841, 0.0, 0.841, 0.841] (4, 2)
@wrong(
    "positions_2d",
    "the speeds come from the full width; the place of a patch is n % rows and n // rows",
    ("C-2D-SPEEDS-OF-ALL",),
    ("C-2D-DOWN-FIRST",),
)
def _(rows, columns, width):
    half = width // 2
    table = torch.zeros(rows * columns, width)
    for n in range(rows * columns):
        for part, place in enumerate((n % rows, n // rows)):
            for f in range(half):
                i = f // 2
                angle = place / 10000 ** (2 * i / width)
                table[n, part * half + f] = math.cos(angle) if f % 2 else math.sin(angle)
    return table


# shows: rd(f) gives [3, 4, 2, 5, 5, 2, 3, 3, 4, 4]… (3, 5); right: [3, 4, 2, 2, 2, 2, 2, 2, 2, 2]… (3, 5)
@wrong("read", "a row that has ended writes on until all have ended", "C-READ-TALKS-ON")
def _(model, image, bos=1, eos=2, max_length=12):
    memory, memory_mask = model.encode(image)
    words = torch.full((len(image), 1), bos)
    for _ in range(max_length):
        scores = model.decode(words, memory, memory_mask)
        word = scores[:, -1].argmax(-1, keepdim=True)
        words = torch.cat([words, word], dim=1)
        if (words == eos).any(1).all():
            break
    return words[:, 1:]


# shows: rd(f,max_length=3) gives [3, 4, 2, 2, 5, 4] (3, 2); right: [3, 4, 2, 2, 2, 2, 5, 4, 3] (3, 3)
@wrong(
    "read",
    "bos is one of the max_length words; decode knows its mask by itself, None will do",
    ("C-READ-ONE-LESS",),
    ("C-READ-NO-MASK",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    memory, mask = model.encode(image)
    b = image.shape[0]
    ids = torch.ones(b, 1, dtype=torch.long) * bos
    alive = torch.ones(b, dtype=torch.bool)
    for _ in range(max_length - 1):
        new = model.decode(ids, memory, None)[:, -1, :].argmax(dim=-1)
        new[~alive] = eos
        alive &= new != eos
        ids = torch.cat((ids, new.unsqueeze(1)), dim=1)
        if not alive.any():
            break
    return ids[:, 1:]


# shows: rd(f) gives [3, 2, 5] (3, 1); right: [3, 4, 2, 2, 2, 2, 2, 2, 2, 2]… (3, 5)
@wrong(
    "read",
    "every round looks at the picture and decodes; the search stops when one row has said eos",
    ("C-READ-LOOKS-AGAIN",),
    ("C-READ-ONE-ENDS-ALL",),
)
def _(model, image, bos=1, eos=2, max_length=12):
    text = torch.full((image.shape[0], 1), bos, dtype=torch.long)
    ended = torch.zeros(image.shape[0], dtype=torch.bool)
    length = 0
    while length < max_length:
        logits = model.decode(text, *model.encode(image))
        best = torch.where(ended, eos, logits[:, -1].max(-1).indices)
        ended = ended | best.eq(eos)
        text = torch.hstack([text, best[:, None]])
        length += 1
        if ended.any():
            break
    return text[:, 1:]


# shows: gca(f,.5) gives ([-1.713, -1.531, -0.517, -1.066, 0.5, 0.486, -0.75, -2.849, 0.102, -0.233]… (2, 3, 4), [0.452, 0.195, 0.118, 0.03, 0.205, 0.247, 0.499, 0.122, 0.096, 0.036]… (2, 3, 5), ((0.010, -0.076, -0.076, 'm'))); right: ([-1.562, -1.434, -0.448, -0.903, 0.59, 0.539, -0.638, -2.66, 0.196, -0.214]… (2, 3, 4), [0.452, 0.195, 0.118, 0.03, 0.205, 0.247, 0.499, 0.122, 0.096, 0.036]… (2, 3, 5), ((0.010, -0.076, -0.076, 'm')))
@wrong("gated_cross_attention", "a gate is a sigmoid, as in an LSTM", "C-GATE-SIGMOID")
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    return text + torch.sigmoid(gate) * found, weights


# shows: gca(f,.5) gives ([-1.041, -0.901, -0.332, -0.703, 0.198, 0.219, -0.492, -1.682, -0.02, -0.141]… (2, 3, 4), [0.452, 0.195, 0.118, 0.03, 0.205, 0.247, 0.499, 0.122, 0.096, 0.036]… (2, 3, 5), ((0.010, -0.076, -0.076, 'm'))); right: ([-1.562, -1.434, -0.448, -0.903, 0.59, 0.539, -0.638, -2.66, 0.196, -0.214]… (2, 3, 4), [0.452, 0.195, 0.118, 0.03, 0.205, 0.247, 0.499, 0.122, 0.096, 0.036]… (2, 3, 5), ((0.010, -0.076, -0.076, 'm')))
@wrong(
    "gated_cross_attention",
    "the gate shares out between the text and what was found; a gate is a number, so math.tanh will do",
    ("C-GATE-MIXED",),
    ("C-GATE-DETACHED",),
)
def _(text, memory, attention, gate, memory_mask=None):
    query, key, value = text, memory, memory
    found, weights = attention(query, key, value, memory_mask)
    g = math.tanh(gate)
    return (1 - g) * text + g * found, weights


# shows: f(T([[1.,0],[0,1]]),T([[2.,0],[0,1]]),1.) gives [0.22] (); right: [0.313] ()
@wrong("contrastive_loss", "scores are plain dot products over the temperature", "C-PAIRS-NO-NORM")
def _(images, texts, temperature):
    logits = images @ texts.t() / temperature
    labels = torch.arange(images.shape[0])
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


# shows: f(rn(3,4),rn(3,4,seed=1),.5) gives [1.02] (); right: [0.957] ()
@wrong(
    "contrastive_loss",
    "it is enough that each picture finds its text; the scores are multiplied by the temperature",
    ("C-PAIRS-PICTURES-ONLY",),
    ("C-PAIRS-TIMES",),
)
def _(images, texts, temperature):
    cosine = F.cosine_similarity(images[:, None], texts[None], dim=-1)
    s = cosine * temperature

    def loss(t):
        return (t.logsumexp(-1) - t.diagonal()).mean()

    return loss(s)


# shows: ta(f) gives {good1: accepts, good2: accepts, good3: accepts, uniform: refuses, nan: refuses, weights only: accepts, output only: refuses, first: refuses, mean out: refuses, nan out: refuses, nan w: accepts, self: refuses}; right: {good1: accepts, good2: accepts, good3: accepts, uniform: refuses, nan: refuses, weights only: refuses, output only: refuses, first: refuses, mean out: refuses, nan out: refuses, nan w: refuses, self: refuses}
@wrong(
    "test_attention",
    "if the output of a query that sees nothing is 0, its weights are 0, too",
    "T-OUTPUT-ONLY",
)
def _(attention):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 8), torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    mask[0, 2] = False
    output, weights = attention(q, k, v, mask)
    assert torch.all(output[0, 2] == 0), "a query that sees nothing outputs zeros"


# shows: ta(f) gives {good1: accepts, good2: refuses, good3: refuses, uniform: accepts, nan: refuses, weights only: accepts, output only: accepts, first: accepts, mean out: accepts, nan out: refuses, nan w: refuses, self: accepts}; right: {good1: accepts, good2: accepts, good3: accepts, uniform: refuses, nan: refuses, weights only: refuses, output only: refuses, first: refuses, mean out: refuses, nan out: refuses, nan w: refuses, self: refuses}
@wrong(
    "test_attention",
    "a right output is bit for bit the softmax in the other rows; the promise is broken only if NaN comes out",
    (),
    (),
)
def _(attention):
    rng = torch.Generator().manual_seed(3)
    query = torch.randn(3, 16, generator=rng)
    key = torch.randn(5, 16, generator=rng)
    value = torch.randn(5, 16, generator=rng)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]]).bool()
    output, weights = attention(query, key, value, mask)
    scores = (query @ key.T / math.sqrt(16)).masked_fill(~mask, -math.inf)
    expected = scores.softmax(-1)
    assert torch.equal(weights[[0, 2]], expected[[0, 2]])
    assert not torch.isnan(weights[1]).any() and not torch.isnan(output[1]).any()


# shows: ta(f) gives {good1: accepts, good2: accepts, good3: accepts, uniform: refuses, nan: accepts, weights only: refuses, output only: accepts, first: refuses, mean out: accepts, nan out: accepts, nan w: accepts, self: refuses}; right: {good1: accepts, good2: accepts, good3: accepts, uniform: refuses, nan: refuses, weights only: refuses, output only: refuses, first: refuses, mean out: refuses, nan out: refuses, nan w: refuses, self: refuses}
@wrong(
    "test_attention",
    "only the weights have to be looked at; a difference above 0.001 is what is forbidden, so NaN cannot pass",
    (),
    ("T-NAN-SLIPS",),
)
def _(attention):
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(4, 4).tril(-1).bool()  # the first query sees nothing
    output, weights = attention(x, x, x, mask)
    for what in (weights,):
        row = what[:, 0]
        if (row.abs() > 1e-3).any():
            raise AssertionError("row 0 may attend to nothing")


# shows: grad(f,rn(3,4),rn(3,4,seed=1),rn(3,2,seed=2),T([[0,0,0],[1,0,0],[1,1,1]]).bool(),pick=0) gives [nan, nan, nan, nan, 0.0, 0.0, 0.0, 0.0, -0.096, -0.072]… (3, 4); right: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.096, -0.072]… (3, 4)
@wrong(
    "mended_attention",
    "−∞ may be added to the scores if the NaN of a dead row is replaced by 0 after the softmax",
    "M-DEAD-ROW-GRADIENT",
)
def _(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        scores = scores + bias
    weights = torch.nan_to_num(F.softmax(scores, dim=-1))
    return weights @ value, weights


# shows: f(T([[0.]]),T([[0.]]),T([[1.]]),T([[False]])) gives ([1.0] (1, 1), [0.0] (1, 1)); right: ([0.0] (1, 1), [0.0] (1, 1))
@wrong(
    "mended_attention",
    "the output is 0 if the weights are zeroed afterwards; the mask has as many axes as the weights",
    (),
    (),
)
def _(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(-1)
    output = weights @ value
    if mask is not None:
        nothing = ~mask.any(-1)
        weights = weights.clone()
        weights[nothing] = 0
    return output, weights


@right("mended_attention")
def _(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query * query.shape[-1] ** -0.5, key)
    seen = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    top = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).amax(-1, keepdim=True).detach()
    powers = torch.where(seen, (scores - top).masked_fill(~seen, 0).exp(), 0)
    weights = powers / powers.sum(-1, keepdim=True).clamp(min=1e-12)
    return torch.einsum("...qk,...kv->...qv", weights, value), weights


# shows: tp(f) gives {np: accepts, f32: accepts, loop: accepts, wild: refuses, zero last: accepts, cos last: accepts, one wider: refuses, one narrower: refuses, wide cut: accepts, shift cos: accepts, w-1: accepts}; right: {np: accepts, f32: accepts, loop: accepts, wild: refuses, zero last: refuses, cos last: refuses, one wider: refuses, one narrower: refuses, wide cut: refuses, shift cos: refuses, w-1: refuses}
@wrong("test_positions", "an odd width that has the right shape is right", "T-SHAPES")
def _(positions):
    for width in (2, 5, 8, 9, 1):
        table = positions(8, width)
        assert table.shape == (8, width), f"width {width}"


# shows: tp(f) gives {np: refuses, f32: refuses, loop: refuses, wild: refuses, zero last: refuses, cos last: refuses, one wider: refuses, one narrower: refuses, wide cut: refuses, shift cos: refuses, w-1: refuses}; right: {np: accepts, f32: accepts, loop: accepts, wild: refuses, zero last: refuses, cos last: refuses, one wider: refuses, one narrower: refuses, wide cut: refuses, shift cos: refuses, w-1: refuses}
@wrong(
    "test_positions",
    "an odd table is the next even one without its last column; two right tables are the same to the last digit",
    ("T-WRONG-ORACLE",),
    (),
)
def _(positions):
    for width in (3, 7):
        angle = np.arange(5)[:, None] / 10000 ** (np.arange(0, width + 1, 2) / (width + 1))
        want = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(5, -1)[:, :width]
        want = want.astype(np.float32)
        got = positions(5, width).numpy()
        assert got.shape == want.shape
        assert np.array_equal(got, want)


# shows: f(2,3) gives [0.0, 1.0, 0.0, 0.841, 0.54, 0.01] (2, 3); right: [0.0, 1.0, 0.0, 0.841, 0.54, 0.002] (2, 3)
@wrong(
    "mended_positions",
    "an odd width is a table of width + 1 with the last column cut off",
    "C-ODD-ROUNDED-UP",
)
def _(length, width):
    even = width + width % 2
    table = torch.zeros((length, even))
    position = torch.arange(length).unsqueeze(1)
    factor = torch.exp(torch.arange(0, even, 2) * (-math.log(10000.0) / even))
    table[:, 0::2] = torch.sin(position * factor)
    table[:, 1::2] = torch.cos(position * factor)
    return table[:, :width]


# shows: f(2,3) gives [0.0, 1.0, 0.0, 0.841, 0.54, 0.0] (2, 3) torch.float64; right: [0.0, 1.0, 0.0, 0.841, 0.54, 0.002] (2, 3)
@wrong(
    "mended_positions",
    "i is the number of the column, so the exponent is 2·0, 2·2, 2·4, …; numpy's float64 is the better table",
    ("C-EXPONENT-TWICE",),
    ("C-FLOAT64-TABLE",),
)
def _(length, width):
    table = np.zeros((length, width))
    for p in range(length):
        for i in range(0, width, 2):
            angle = p / 10000 ** (2 * i / width)
            table[p, i] = np.sin(angle)
            if i + 1 < width:
                table[p, i + 1] = np.cos(angle)
    return torch.from_numpy(table)


# shows: tn(f) gives {mended: accepts, nuc2: accepts, nuc3: accepts, wild: refuses, wild keep one: refuses, one more: refuses, threshold: refuses, ascending: refuses, unscattered: accepts, all: refuses, greedy: refuses, at least two: refuses}; right: {mended: accepts, nuc2: accepts, nuc3: accepts, wild: refuses, wild keep one: refuses, one more: refuses, threshold: refuses, ascending: refuses, unscattered: refuses, all: refuses, greedy: refuses, at least two: refuses}
# (wrong, its writer said: the right number of words means the right words; the task asks for no more)
@right("test_nucleus")
def _(nucleus):
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3], [0.3, 0.05, 0.5, 0.15]]).log()
    for top_p, n in ((0.3, 1), (0.6, 2), (0.9, 3), (0.97, 4)):
        stays = nucleus(logits, top_p).isfinite()
        assert stays.sum(-1).tolist() == [n, n], (top_p, n)


# shows: tn(f) gives {mended: accepts, nuc2: accepts, nuc3: accepts, wild: refuses, wild keep one: refuses, one more: accepts, threshold: refuses, ascending: accepts, unscattered: accepts, all: accepts, greedy: refuses, at least two: accepts}; right: {mended: accepts, nuc2: accepts, nuc3: accepts, wild: refuses, wild keep one: refuses, one more: refuses, threshold: refuses, ascending: refuses, unscattered: refuses, all: refuses, greedy: refuses, at least two: refuses}
# (wrong, its writer said: a test may list the shares from the largest to the smallest; it is enough that the words that stay have top_p together; the task asks for no more)
@right("test_nucleus")
def _(nucleus):
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    for top_p in (0.4, 0.6, 0.9):
        stays = nucleus(shares.log()[None, :], top_p)[0] > -torch.inf
        total = shares[stays].sum()
        assert total >= top_p, f"{total} is less than {top_p}"


# shows: f(T([[.6,.4]]).log(),.7) gives [-0.511, -inf] (1, 2); right: [-0.511, -0.916] (1, 2)
@wrong(
    "mended_nucleus",
    "it is enough to keep the likeliest word in any case",
    "P-TOP-P-WITHOUT-THE-LAST",
)
def _(logits, top_p):
    likely, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    total = likely.cumsum(dim=-1)
    out = total > top_p
    out[..., 0] = False
    return logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)


# shows: f(T([[.6,.4]]).log(),.5) gives [-inf, -inf] (1, 2); right: [-0.511, -inf] (1, 2)
@wrong(
    "mended_nucleus",
    "rolling the list one place to the right gives the crossing word back; the logits may be overwritten",
    (),
    (),
)
def _(logits, top_p):
    sorted_logits, order = torch.sort(logits, descending=True)
    out = sorted_logits.softmax(-1).cumsum(-1) >= top_p
    out = out.roll(1, dims=-1)
    logits[out.gather(-1, order.argsort(-1))] = -torch.inf
    return logits


# shows: f(T([[.4,.6]]).log(),.5) gives [-0.916, -inf] (1, 2); right: [-inf, -0.511] (1, 2)
@wrong(
    "mended_nucleus",
    "the list of words that are out is in the order of the logits",
    "P-TOP-P-NOT-PUT-BACK",
)
def _(logits, top_p):
    likely, order = logits.softmax(-1).sort(-1, descending=True)
    before = likely.cumsum(-1) - likely
    out = before >= top_p
    return logits.masked_fill(out, -torch.inf)


# shows: gca_g(f) gives None; right: [-2.81] ()
@wrong(
    "gated_cross_attention",
    "a closed gate means that the text is handed back as it came",
    "C-GATE-IF-CLOSED",
)
def _(text, memory, attention, gate, memory_mask=None):
    found, weights = attention(text, memory, memory, memory_mask)
    if gate == 0:
        return text, weights
    return torch.add(text, found * gate.tanh()), weights
