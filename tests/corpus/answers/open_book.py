"""Chapters 8 to 10, by somebody who had read the tasks' files: no measure of what is recognized.

Spelled as students spell: with loops, old-fashioned names and detours, all on purpose.
"""

import itertools
import math
from collections import Counter, defaultdict

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn

from attncourse.masking import causal_mask
from attncourse.one_stack import byte_letters, byte_words
from attncourse.positions import rotate as turned
from attncourse.scaled_dot_product import scaled_dot_product_attention as attend
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right

# --- Chapter 8: relative_scores -------------------------------------------------------------------


def shaw(query, key, row_of, scale=None, mix=None):
    """Scores by a loop over pairs; `row_of(i, j)` gives the vector of a pair."""
    q, k = query.size(-2), key.size(-2)
    out = torch.zeros(*query.shape[:-1], k, dtype=query.dtype)
    for i in range(q):
        for j in range(k):
            vector = row_of(i, j)
            term = (
                query[..., i, :] * (key[..., j, :] + vector) if mix is None else mix(i, j, vector)
            )
            out[..., i, j] = term.sum(-1)
    return out / (scale or math.sqrt(query.size(-1)))


@wrong("relative_scores", "counts queries from the first key", "P-TOPLEFT")
def _(query, key, table):
    c = (table.size(0) - 1) // 2
    return shaw(query, key, lambda i, j: table[max(-c, min(c, j - i)) + c])


@wrong("relative_scores", "takes query minus key for the offset", "C-SHAW-OTHER-WAY")
def _(query, key, table):
    c, past = (table.size(0) - 1) // 2, key.size(-2) - query.size(-2)
    return shaw(query, key, lambda i, j: table[max(-c, min(c, i + past - j)) + c])


@wrong("relative_scores", "takes c for the number of rows less one", "C-SHAW-NOT-CLIPPED",
       "C-SHAW-NO-MIDDLE")  # fmt: skip
def _(query, key, table):
    n, past = table.size(0), key.size(-2) - query.size(-2)
    return shaw(query, key, lambda i, j: table[(j - i - past) % n])


@wrong("relative_scores", "looks the table up by the distance", "C-SHAW-DISTANCE")
def _(query, key, table):
    i = torch.arange(key.shape[-2] - query.shape[-2], key.shape[-2]).view(-1, 1)
    j = torch.arange(key.shape[-2]).view(1, -1)
    c = len(table) // 2
    vectors = table.index_select(0, ((i - j).abs().clamp(max=c) + c).flatten())
    vectors = vectors.view(query.shape[-2], key.shape[-2], -1)
    return ((key.unsqueeze(-3) + vectors) * query.unsqueeze(-2)).sum(-1) / query.shape[-1] ** 0.5


@wrong("relative_scores", "scales by the number of rows")
def _(query, key, table):
    c, past = len(table) // 2, key.size(-2) - query.size(-2)
    return shaw(query, key, lambda i, j: table[max(-c, min(c, j - i - past)) + c], scale=len(table))


@wrong("relative_scores", "scales the content and not the offset", "C-SHAW-SCALED-HALF")
def _(query, key, table):
    c = len(table) // 2
    where = torch.arange(key.shape[-2]) - torch.arange(key.shape[-2])[-query.shape[-2] :, None]
    extra = torch.stack([query @ row for row in table], -1)
    extra = extra.gather(-1, (where.clamp(-c, c) + c).expand(*query.shape[:-1], -1))
    return query.matmul(key.transpose(-1, -2)).div(math.sqrt(query.shape[-1])) + extra


@wrong("relative_scores", "zeroes what is beyond c", "C-SHAW-FAR-NOTHING")
def _(query, key, table):
    c, past = len(table) // 2, key.size(-2) - query.size(-2)
    nothing = torch.zeros_like(table[0])
    return shaw(
        query, key, lambda i, j: table[j - i - past + c] if abs(j - i - past) <= c else nothing
    )


@wrong("relative_scores", "meets the vector with the key", "C-SHAW-KEY-TIMES-TABLE")
def _(query, key, table):
    c, past = len(table) // 2, key.size(-2) - query.size(-2)

    def mix(i, j, vector):
        return query[..., i, :] * key[..., j, :] + key[..., j, :] * vector

    return shaw(query, key, lambda i, j: table[max(-c, min(c, j - i - past)) + c], mix=mix)


@wrong("relative_scores", "adds the vector to the query", "C-SHAW-KEY-TIMES-TABLE")
def _(query, key, table):
    c, past = len(table) // 2, key.size(-2) - query.size(-2)

    def mix(i, j, vector):
        return (query[..., i, :] + vector) * key[..., j, :]

    return shaw(query, key, lambda i, j: table[max(-c, min(c, j - i - past)) + c], mix=mix)


@wrong("relative_scores", "adds the vector to both", "C-SHAW-ADDED-TO-BOTH")
def _(query, key, table):
    c, past = len(table) // 2, key.size(-2) - query.size(-2)

    def mix(i, j, vector):
        return (query[..., i, :] + vector) * (key[..., j, :] + vector)

    return shaw(query, key, lambda i, j: table[max(-c, min(c, j - i - past)) + c], mix=mix)


@wrong("relative_scores", "returns weights", "C-SCORES-ARE-WEIGHTS")
def _(query, key, table):
    c, past = len(table) // 2, key.size(-2) - query.size(-2)
    scores = shaw(query, key, lambda i, j: table[max(-c, min(c, j - i - past)) + c])
    return F.softmax(scores, dim=-1)


@right("relative_scores")
def _(query, key, table):
    c, past = len(table) // 2, key.size(-2) - query.size(-2)
    return shaw(query, key, lambda i, j: table[max(-c, min(c, j - i - past)) + c])


# --- relative_buckets -----------------------------------------------------------------------------


def bucket(offsets, one):
    flat = [one(o) for o in offsets.flatten().tolist()]
    return torch.tensor(flat, dtype=torch.long).view(offsets.shape)


def t5(o, num_buckets, max_distance, both, log=math.log, cut=int, end=True, after=None):
    b = num_buckets // 2 if both else num_buckets
    first = 0
    if both:
        first = b if o > 0 else 0
        o = abs(o)
    else:
        o = -min(o, 0)
    near = b // 2
    if o < near:
        return first + o
    far = near + cut(log(o / near) / log(max_distance / near) * (b - near))
    return first + (min(far, b - 1) if end else far)


@wrong("relative_buckets", "rounds to the nearest", "C-BUCKETS-ROUNDED")
def _(offsets, num_buckets, max_distance, bidirectional):
    return bucket(offsets, lambda o: t5(o, num_buckets, max_distance, bidirectional, cut=round))


@wrong("relative_buckets", "forgets the last bucket", "C-BUCKETS-NO-END")
def _(offsets, num_buckets, max_distance, bidirectional):
    return bucket(offsets, lambda o: t5(o, num_buckets, max_distance, bidirectional, end=False))


@wrong("relative_buckets", "takes the past for what is above 0", "C-BUCKETS-OTHER-WAY")
def _(offsets, num_buckets, max_distance, bidirectional):
    return bucket(offsets, lambda o: t5(-o, num_buckets, max_distance, bidirectional))


@wrong("relative_buckets", "halves the buckets in any case", "C-BUCKETS-ALWAYS-HALVED")
def _(offsets, num_buckets, max_distance, bidirectional):
    n = num_buckets if bidirectional else num_buckets // 2
    return bucket(offsets, lambda o: t5(o, n, max_distance, bidirectional))


@wrong("relative_buckets", "spreads far ones evenly", "C-BUCKETS-STRAIGHT")
def _(offsets, num_buckets, max_distance, bidirectional):
    b = num_buckets // 2 if bidirectional else num_buckets
    a = b // 2
    back = torch.abs(offsets) if bidirectional else torch.relu(-offsets)
    width = (max_distance - a) / (b - a)
    far = (a + (back - a) / width).long().clamp(max=b - 1)
    out = torch.where(back < a, back, far)
    if bidirectional:
        out = out + b * (offsets > 0).long()
    return out


@wrong("relative_buckets", "one too many alone", "C-BUCKETS-CLIPPED")
def _(offsets, num_buckets, max_distance, bidirectional):
    def one(o):
        b = num_buckets // 2 if bidirectional else num_buckets
        first = b if bidirectional and o > 0 else 0
        d = abs(o) if bidirectional else max(0, -o)
        return first + min(d, b - 1)

    return bucket(offsets, one)


@wrong("relative_buckets", "counts 0 to what comes after", "C-BUCKETS-ZERO-AFTER")
def _(offsets, num_buckets, max_distance, bidirectional):
    def one(o):
        return t5(o, num_buckets, max_distance, bidirectional) + (
            num_buckets // 2 if bidirectional and o == 0 else 0
        )

    return bucket(offsets, one)


@wrong("relative_buckets", "mixes distances ahead into one direction", "C-BUCKETS-FUTURE-DISTANCE")
def _(offsets, num_buckets, max_distance, bidirectional):
    return bucket(
        offsets,
        lambda o: t5(o if bidirectional else -abs(o), num_buckets, max_distance, bidirectional),
    )


@wrong("relative_buckets", "takes log2 of the distance alone", "C-BUCKETS-LOG-UNSCALED")
def _(offsets, num_buckets, max_distance, bidirectional):
    def one(o):
        b = num_buckets // 2 if bidirectional else num_buckets
        first = b if bidirectional and o > 0 else 0
        d = abs(o) if bidirectional else max(0, -o)
        return first + (d if d < b // 2 else min(b - 1, b // 2 + int(math.log2(d / (b // 2)))))

    return bucket(offsets, one)


@wrong("relative_buckets", "returns floats", "C-BUCKETS-FLOAT")
def _(offsets, num_buckets, max_distance, bidirectional):
    return bucket(offsets, lambda o: t5(o, num_buckets, max_distance, bidirectional)).double()


@wrong("relative_buckets", "clips at max_distance before the near ones are told apart")
def _(offsets, num_buckets, max_distance, bidirectional):
    return bucket(
        offsets.clamp(-max_distance // 2, max_distance // 2),
        lambda o: t5(o, num_buckets, max_distance, bidirectional),
    )


@right("relative_buckets")
def _(offsets, num_buckets, max_distance, bidirectional):
    return bucket(offsets, lambda o: t5(o, num_buckets, max_distance, bidirectional))


# --- alibi_bias -----------------------------------------------------------------------------------


def press(n):
    """The paper's own program."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    p = 2 ** math.floor(math.log2(n))
    return press(p) + press(2 * p)[0::2][: n - p]


def ridge(slopes, q, k, far=lambda i, j: -abs(j - i), past=None):
    past = k - q if past is None else past
    return torch.tensor(
        [[[m * far(i + past, j) for j in range(k)] for i in range(q)] for m in slopes]
    )


@wrong("alibi_bias", "queries count from the first key", "P-TOPLEFT")
def _(num_heads, query_length, key_length):
    return ridge(press(num_heads), query_length, key_length, past=0)


@wrong("alibi_bias", "distance with a sign", "C-ALIBI-SIGNED")
def _(num_heads, query_length, key_length):
    return ridge(press(num_heads), query_length, key_length, lambda i, j: j - i)


@wrong("alibi_bias", "nothing for what comes after", "C-ALIBI-PAST-ONLY")
def _(num_heads, query_length, key_length):
    return ridge(press(num_heads), query_length, key_length, lambda i, j: min(0, j - i))


@wrong("alibi_bias", "one half, one quarter, … for any number of heads", "C-ALIBI-HALVES")
def _(num_heads, query_length, key_length):
    return ridge([0.5 ** (h + 1) for h in range(num_heads)], query_length, key_length)


@wrong("alibi_bias", "formula for powers of two, always", "C-ALIBI-POWERS-ONLY")
def _(num_heads, query_length, key_length):
    slopes = [2 ** (-8 / num_heads * (h + 1)) for h in range(num_heads)]
    return ridge(slopes, query_length, key_length)


@wrong("alibi_bias", "exponents from 0", "C-ALIBI-FROM-ONE")
def _(num_heads, query_length, key_length):
    p = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * h / p) for h in range(p)] + press(2 * p)[0::2]
    return ridge(slopes[:num_heads], query_length, key_length)


@wrong("alibi_bias", "slopes sorted", "C-ALIBI-SORTED")
def _(num_heads, query_length, key_length):
    return ridge(sorted(press(num_heads), reverse=True), query_length, key_length)


@wrong("alibi_bias", "the plus sign", "C-ALIBI-POSITIVE")
def _(num_heads, query_length, key_length):
    return ridge(press(num_heads), query_length, key_length, lambda i, j: abs(i - j))


@wrong("alibi_bias", "the future hidden by a big negative", "M-ALWAYS-CAUSAL")
def _(num_heads, query_length, key_length):
    return ridge(
        press(num_heads), query_length, key_length, lambda i, j: -1e9 if j > i else float(j - i)
    )


@wrong("alibi_bias", "nearest power of two above, cut off", "C-ALIBI-ROUNDED-UP")
def _(num_heads, query_length, key_length):
    n = 1
    while n < num_heads:
        n = n * 2
    return ridge(press(n)[:num_heads], query_length, key_length)


@wrong("alibi_bias", "the further heads take slopes 2, 4, …", "C-ALIBI-SECOND-OF-EACH",
       "C-ALIBI-MORE-OF-THE-SAME")  # fmt: skip
def _(num_heads, query_length, key_length):
    p = 2 ** math.floor(math.log2(num_heads))
    slopes = press(p) + press(2 * p)[1::2][: num_heads - p]
    return ridge(slopes, query_length, key_length)


@right("alibi_bias")
def _(num_heads, query_length, key_length):
    return ridge(press(num_heads), query_length, key_length).float()


# --- rotate ---------------------------------------------------------------------------------------


def hand(x, positions, speed, place=lambda p: p):
    """Pair by pair, with sines from the standard library."""
    out = torch.empty_like(x)
    for n, p in enumerate(positions.tolist()):
        for i in range(x.shape[-1] // 2):
            t = place(p) * speed(i)
            a, b = x[..., n, 2 * i], x[..., n, 2 * i + 1]
            out[..., n, 2 * i] = a * math.cos(t) - b * math.sin(t)
            out[..., n, 2 * i + 1] = a * math.sin(t) + b * math.cos(t)
    return out


@wrong("rotate", "two factors of 2", "P-FREQ")
def _(x, positions, base=10000.0):
    return hand(x, positions, lambda i: base ** (-4 * i / x.shape[-1]))


@wrong("rotate", "no factor of 2", "C-EXPONENT-HALVED")
def _(x, positions, base=10000.0):
    return hand(x, positions, lambda i: base ** (-i / x.shape[-1]))


@wrong("rotate", "counts words by itself", "P-ROPE-CACHE")
def _(x, positions, base=10000.0):
    return hand(x, torch.arange(x.shape[-2]), lambda i: base ** (-2 * i / x.shape[-1]))


@wrong("rotate", "clockwise", "C-ROPE-BACKWARD")
def _(x, positions, base=10000.0):
    return hand(x, -positions, lambda i: base ** (-2 * i / x.shape[-1]))


@wrong("rotate", "copies rotate_half from a library", "P-ROPE-LAYOUT")
def _(x, positions, base=10000.0):
    inv_freq = 1.0 / (base ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1]))
    freqs = torch.outer(positions.double(), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    half = torch.cat((-x2, x1), dim=-1)
    return x * emb.cos().to(x.dtype) + half * emb.sin().to(x.dtype)


@wrong("rotate", "rotate_half with interleaved angles", "C-ROPE-TWO-LAYOUTS")
def _(x, positions, base=10000.0):
    inv_freq = 1.0 / (base ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1]))
    emb = torch.outer(positions.double(), inv_freq).repeat_interleave(2, -1)
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    half = torch.cat((-x2, x1), dim=-1)
    return x * emb.cos().to(x.dtype) + half * emb.sin().to(x.dtype)


@wrong("rotate", "multiplies by cosine and sine alone", "C-ROPE-COS-SIN")
def _(x, positions, base=10000.0):
    angle = positions[:, None] / base ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    out = x.clone()
    out[..., ::2] *= torch.cos(angle).to(x.dtype)
    out[..., 1::2] *= torch.sin(angle).to(x.dtype)
    return out


@wrong("rotate", "overwrites the first before the second is made", "C-ROPE-STEP-BY-STEP")
def _(x, positions, base=10000.0):
    angle = positions[:, None] / base ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    out = x.clone()
    out[..., ::2] = out[..., ::2] * cos - out[..., 1::2] * sin
    out[..., 1::2] = out[..., ::2] * sin + out[..., 1::2] * cos
    return out


@wrong("rotate", "degrees for radians", "C-DEGREES")
def _(x, positions, base=10000.0):
    return hand(x, positions, lambda i: math.radians(base ** (-2 * i / x.shape[-1])))


@wrong("rotate", "angles in half precision", "P-LOWPREC")
def _(x, positions, base=10000.0):
    speed = base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = (positions.half()[:, None] * speed.half()).to(x.dtype)
    pair = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    turn = torch.complex(angle.cos(), angle.sin())
    return torch.view_as_real(pair * turn).flatten(-2)


@wrong("rotate", "base is fixed", "C-BASE-IGNORED")
def _(x, positions, base=10000.0):
    return hand(x, positions, lambda i: 10000 ** (-2 * i / x.shape[-1]))


@right("rotate")
def _(x, positions, base=10000.0):
    return hand(x, positions, lambda i: base ** (-2 * i / x.shape[-1]))


@right("rotate")
def _(x, positions, base=10000.0):
    """The sums of angles of two neighbors, as a matrix."""
    d = x.shape[-1]
    out = []
    for n, p in enumerate(positions.tolist()):
        blocks = []
        for i in range(d // 2):
            t = p / base ** (2 * i / d)
            block = [[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]]
            blocks.append(torch.tensor(block, dtype=x.dtype))
        out.append(x[..., n, :] @ torch.block_diag(*blocks).T)
    return torch.stack(out, -2)


# --- shift_relative -------------------------------------------------------------------------------


def moved(scores, column):
    q, r = scores.shape[-2:]
    k = r - q + 1
    rows = [
        torch.stack([scores[..., i, column(i, j, q, k)] for j in range(k)], -1) for i in range(q)
    ]
    return torch.stack(rows, -2)


@wrong("shift_relative", "moves the other way", "C-SHIFT-OTHER-WAY")
def _(scores):
    return moved(scores, lambda i, j, q, k: i + j)


@wrong("shift_relative", "does not move", "C-SHIFT-NONE")
def _(scores):
    return scores[..., : scores.size(-1) - scores.size(-2) + 1]


@wrong("shift_relative", "takes the last columns, unmoved", "C-SHIFT-NONE")
def _(scores):
    k = scores.size(-1) - scores.size(-2) + 1
    return scores[..., -k:]


@wrong("shift_relative", "returns all columns after the shift", "C-SHIFT-NOT-CUT")
def _(scores):
    q, r = scores.shape[-2:]
    x = F.pad(scores, (1, 0)).reshape(*scores.shape[:-2], r + 1, q)
    return x[..., 1:, :].reshape(*scores.shape[:-2], q, r)


@wrong("shift_relative", "rolls each row by one too far", "C-SHIFT-ONE-MORE")
def _(scores):
    q, r = scores.shape[-2:]
    rows = [scores[..., i, :].roll(-(q - i), -1) for i in range(q)]
    return torch.stack(rows, -2)[..., : r - q + 1]


@wrong("shift_relative", "hides what comes after", "M-ALWAYS-CAUSAL")
def _(scores):
    q, r = scores.shape[-2:]
    k = r - q + 1
    out = moved(scores, lambda i, j, q, k: q - 1 - i + j)
    return out * torch.ones(q, k, dtype=out.dtype).tril(k - q)


@wrong("shift_relative", "reads distances from near to far", "C-SHIFT-BACKWARD",
       "C-SHIFT-MIRRORED")  # fmt: skip
def _(scores):
    return moved(scores.flip(-1), lambda i, j, q, k: q - 1 - i + j)


@wrong("shift_relative", "counts queries from the first key", "C-SHIFT-FROM-THE-FIRST-KEY")
def _(scores):
    r = scores.shape[-1]
    return moved(scores, lambda i, j, q, k: min(r - 1, j - i + k - 1))


@wrong("shift_relative", "as many keys as queries", "C-SHIFT-SQUARE")
def _(scores):
    q = scores.shape[-2]
    rows = [scores[..., i, q - 1 - i : 2 * q - 1 - i] for i in range(q)]
    return torch.stack(rows, -2)


@wrong("shift_relative", "one too far left: negative columns come from the end", "C-SHIFT-ONE-LESS")
def _(scores):
    return moved(scores, lambda i, j, q, k: q - 2 - i + j)


@right("shift_relative")
def _(scores):
    q, r = scores.shape[-2:]
    return scores.as_strided(
        (*scores.shape[:-1], r - q + 1),
        (*scores.stride()[:-2], scores.stride(-2) - scores.stride(-1), scores.stride(-1)),
        scores.storage_offset() + (q - 1) * scores.stride(-1),
    ).clone()


# --- Chapter 9: byte_pairs ------------------------------------------------------------------------


def joined(parts, pair):
    out, i = [], 0
    while i < len(parts):
        if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
            out.append(parts[i] + parts[i + 1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


def learn(words, n, weight=lambda count: count, choose=None, merge=joined, least=1):
    vocab = {w: [*w] for w in words}
    order = sorted({letter for w in words for letter in w})
    found = []
    while len(found) < n:
        tally = defaultdict(int)
        for w, parts in vocab.items():
            for a, b in itertools.pairwise(parts):
                tally[a, b] += weight(words[w])
        if not tally or max(tally.values()) < least:
            break
        if choose:
            best = choose(tally, order)
        else:
            best = min(tally, key=lambda p: (-tally[p], order.index(p[0]), order.index(p[1])))
        found.append(best)
        if best[0] + best[1] not in order:
            order.append(best[0] + best[1])
        vocab = {w: merge(parts, best) for w, parts in vocab.items()}
    return found


@wrong("byte_pairs", "ignores how often a word occurs", "B-EACH-WORD-ONCE")
def _(words, num_merges):
    return learn(words, num_merges, weight=lambda count: 1)


@wrong("byte_pairs", "ties by the first one met", "B-FIRST-MET")
def _(words, num_merges):
    return learn(words, num_merges, choose=lambda tally, order: max(tally, key=tally.get))


@wrong("byte_pairs", "ties by the alphabet", "B-ALPHABET")
def _(words, num_merges):
    return learn(
        words, num_merges, choose=lambda tally, order: min(tally, key=lambda p: (-tally[p], p))
    )


@wrong("byte_pairs", "ties by the last in the alphabet", "B-LAST-IN-THE-ALPHABET")
def _(words, num_merges):
    return learn(
        words, num_merges, choose=lambda tally, order: max(tally, key=lambda p: (tally[p], p))
    )


@wrong("byte_pairs", "Counter.most_common decides", "B-FIRST-MET")
def _(words, num_merges):
    return learn(words, num_merges, choose=lambda tally, order: Counter(tally).most_common(1)[0][0])


@wrong("byte_pairs", "stops when every pair is rare", "B-AT-LEAST-TWICE")
def _(words, num_merges):
    return learn(words, num_merges, least=2)


@wrong("byte_pairs", "returns pieces", "B-PIECES")
def _(words, num_merges):
    return [a + b for a, b in learn(words, num_merges)]


@wrong("byte_pairs", "replaces in text, as the first papers do", "B-TEXT-REPLACED")
def _(words, num_merges):
    def merge(parts, pair):
        return " ".join(parts).replace(" ".join(pair), "".join(pair)).split()

    return learn(words, num_merges, merge=merge)


@wrong("byte_pairs", "counts a pair once a word", "B-ONCE-A-WORD")
def _(words, num_merges):
    parts, ages = {w: list(w) for w in words}, sorted(set("".join(words)))
    out = []
    for _ in range(num_merges):
        tally = Counter()
        for w in words:
            for p in set(zip(parts[w], parts[w][1:])):
                tally[p] += words[w]
        if not tally:
            return out
        top = max(tally.values())
        best = sorted(
            (p for p in tally if tally[p] == top),
            key=lambda p: (ages.index(p[0]), ages.index(p[1])),
        )[0]
        out.append(best)
        if "".join(best) not in ages:
            ages += ["".join(best)]
        parts = {w: joined(ps, best) for w, ps in parts.items()}
    return out


@wrong("byte_pairs", "adds an end-of-word mark", "B-END-MARK")
def _(words, num_merges):
    return learn({w + "_": n for w, n in words.items()}, num_merges)


@wrong("byte_pairs", "one merge too few", "B-ONE-MERGE-LESS")
def _(words, num_merges):
    return learn(words, num_merges - 1)


@right("byte_pairs")
def _(words, num_merges):
    return learn(words, num_merges)


# --- encode_text ----------------------------------------------------------------------------------


def number(merges):
    table = {}
    for letter in sorted(byte_letters()):
        table[letter] = len(table)
    for a, b in merges:
        if a + b not in table:
            table[a + b] = len(table)
    return table


def spell(text, merges, table=None, words=byte_words, join=joined, order=list):
    table = table or number(merges)
    out = []
    for word in words(text):
        parts = [*word]
        for a, b in order(merges):
            parts = join(parts, (a, b))
        for part in parts:
            out.append(table[part])
    return out


@wrong("encode_text", "a new id for each merge", "B-BORN-AGAIN")
def _(text, merges):
    pieces = sorted(byte_letters()) + [a + b for a, b in merges]
    return spell(text, merges, {piece: i for i, piece in enumerate(pieces)})


@wrong("encode_text", "letters in the order of bytes", "B-BYTE-IS-ID")
def _(text, merges):
    table = {}
    for piece in [*byte_letters(), *(a + b for a, b in merges)]:
        table.setdefault(piece, len(table))
    return spell(text, merges, table)


@wrong("encode_text", "splits at blanks by itself", "B-BLANKS-LOST")
def _(text, merges):
    def words(text):
        return [byte_words(w)[0] for w in text.split()]

    return spell(text, merges, words=words)


@wrong("encode_text", "each word gets its blank in front, the first, too", "B-BLANK-IN-FRONT")
def _(text, merges):
    return spell(" " + text, merges)


@wrong("encode_text", "merges the newest first", "B-LAST-MERGE-FIRST")
def _(text, merges):
    return spell(text, merges, order=lambda m: list(m)[::-1])


@wrong("encode_text", "lists of lists", "B-NESTED")
def _(text, merges):
    table = number(merges)
    return [[table[p] for p in word] for word in _pieces(text, merges)]


def _pieces(text, merges):
    for word in byte_words(text):
        parts = list(word)
        for pair in merges:
            parts = joined(parts, tuple(pair))
        yield parts


@wrong("encode_text", "greedy longest piece", "B-LONGEST-PIECE")
def _(text, merges):
    table, out = number(merges), []
    for word in byte_words(text):
        while word:
            size = max(n for n in range(1, len(word) + 1) if word[:n] in table)
            out.append(table[word[:size]])
            word = word[size:]
    return out


@wrong("encode_text", "no merges at all", "B-NOT-MERGED")
def _(text, merges):
    table = number(merges)
    return [table[letter] for letter in "".join(byte_words(text))]


@right("encode_text")  # again until nothing changes: the same for merges that were learned
def _(text, merges):
    table, out = number(merges), []
    for word in byte_words(text):
        parts, before = list(word), None
        while parts != before:
            before = parts
            for pair in merges:
                parts = joined(parts, tuple(pair))
        out.extend(table[p] for p in parts)
    return out


@wrong("encode_text", "merges over the whole text", "B-NOT-CUT")
def _(text, merges):
    return spell(text, merges, words=lambda text: ["".join(byte_words(text))])


@wrong("encode_text", "returns a tensor")
def _(text, merges):
    return torch.tensor(spell(text, merges))


@right("encode_text")
def _(text, merges):
    rank = {tuple(pair): i for i, pair in reversed(list(enumerate(merges)))}
    table, out = number(merges), []
    for word in byte_words(text):
        parts = list(word)
        for pair in sorted(rank, key=rank.get):
            parts = joined(parts, pair)
        out += [table[p] for p in parts]
    return out


# --- masked_words ---------------------------------------------------------------------------------


@wrong("masked_words", "masks all", "W-ALL-MASKED")
def _(tokens, share, mask_id, vocabulary_size, rng):
    pick = torch.rand(tokens.size(), generator=rng).lt(share)
    out, want = tokens.clone(), torch.full_like(tokens, -100)
    out[pick], want[pick] = mask_id, tokens[pick]
    return out, want


def recipe(tokens, share, mask_id, size, rng, limits=(0.8, 0.9)):
    """One draw decides what becomes of a word that is asked for."""
    pick = torch.rand(tokens.size(), generator=rng).lt(share)
    dice = torch.rand(tokens.size(), generator=rng)
    any_word = torch.randint(0, size, tokens.size(), generator=rng)
    out = tokens.clone()
    out[pick & (dice < limits[0])] = mask_id
    swap = pick & (dice >= limits[0]) & (dice < limits[1])
    out[swap] = any_word[swap]
    want = torch.where(pick, tokens, torch.full_like(tokens, -100))
    return out, want, pick, dice


@wrong("masked_words", "exchanges all of the rest", "W-NONE-LEFT")
def _(tokens, share, mask_id, vocabulary_size, rng):
    return recipe(tokens, share, mask_id, vocabulary_size, rng, (0.8, 1.0))[:2]


@wrong("masked_words", "leaves all of the rest", "W-NONE-EXCHANGED")
def _(tokens, share, mask_id, vocabulary_size, rng):
    return recipe(tokens, share, mask_id, vocabulary_size, rng, (0.8, 0.8))[:2]


@wrong("masked_words", "asks for the changed ones only", "W-LEFT-NOT-ASKED")
def _(tokens, share, mask_id, vocabulary_size, rng):
    out, want, _, dice = recipe(tokens, share, mask_id, vocabulary_size, rng)
    want[dice >= 0.9] = -100
    return out, want


@wrong("masked_words", "asks for masks only", "W-ONLY-MASKS-ASKED")
def _(tokens, share, mask_id, vocabulary_size, rng):
    out, want, _, dice = recipe(tokens, share, mask_id, vocabulary_size, rng)
    want[dice >= 0.8] = -100
    return out, want


@wrong("masked_words", "an exact number of words of each row", "W-EXACT-NUMBER")
def _(tokens, share, mask_id, vocabulary_size, rng):
    n = tokens.shape[1]
    order = torch.rand(tokens.shape, generator=rng).argsort(1).argsort(1)
    pick = order < round(share * n)
    dice = torch.rand(tokens.shape, generator=rng)
    any_word = torch.randint(vocabulary_size, tokens.shape, generator=rng)
    out = torch.where(pick & (dice < 0.8), mask_id, tokens)
    out = torch.where(pick & (dice >= 0.8) & (dice < 0.9), any_word, out)
    return out, torch.where(pick, tokens, -100)


@wrong("masked_words", "never draws the largest id", "W-LAST-ID")
def _(tokens, share, mask_id, vocabulary_size, rng):
    return recipe(tokens, share, mask_id, vocabulary_size - 1, rng)[:2]


@wrong("masked_words", "ignore index 0", "W-NOTHING-IS-ZERO")
def _(tokens, share, mask_id, vocabulary_size, rng):
    out, want, pick, _ = recipe(tokens, share, mask_id, vocabulary_size, rng)
    return out, want * pick


@wrong("masked_words", "draws from the global generator", "W-GLOBAL-CHANCE")
def _(tokens, share, mask_id, vocabulary_size, rng):
    return recipe(tokens, share, mask_id, vocabulary_size, None)[:2]


@wrong("masked_words", "changes the sentence it was given", "W-EDITS-TOKENS")
def _(tokens, share, mask_id, vocabulary_size, rng):
    out, want, _, _ = recipe(tokens, share, mask_id, vocabulary_size, rng)
    tokens.copy_(out)
    return tokens, want


@wrong("masked_words", "loss on everything", "W-ALL-ASKED")
def _(tokens, share, mask_id, vocabulary_size, rng):
    return recipe(tokens, share, mask_id, vocabulary_size, rng)[0], tokens.clone()


@wrong("masked_words", "a tenth of what is left after the masks", "W-TENTH-OF-A-FIFTH")
def _(tokens, share, mask_id, vocabulary_size, rng):
    return recipe(tokens, share, mask_id, vocabulary_size, rng, (0.8, 0.82))[:2]


@right("masked_words")
def _(tokens, share, mask_id, vocabulary_size, rng):
    return recipe(tokens, share, mask_id, vocabulary_size, rng)[:2]


# --- sample ---------------------------------------------------------------------------------------


def shares(logits, temperature, top_k, top_p):
    scores = logits / temperature
    if top_k is not None:
        kth = torch.sort(scores, dim=1, descending=True)[0][:, min(top_k, scores.size(1)) - 1]
        scores = torch.where(scores < kth[:, None], float("-inf"), scores)
    p = F.softmax(scores, dim=1)
    if top_p is not None:
        keep = torch.zeros_like(p)
        for row in range(len(p)):
            total = 0.0
            for word in torch.argsort(p[row], descending=True).tolist():
                keep[row, word] = 1
                total += p[row, word].item()
                if total >= top_p:
                    break
        p = p * keep
    return p


def pull(p):
    return torch.multinomial(p, num_samples=1).squeeze(1)


@wrong("sample", "takes the likeliest", "P-GREEDY")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    return shares(logits, temperature, top_k, top_p).argmax(dim=1)


@wrong("sample", "heats the probabilities", "P-TEMPERATURE-IGNORED")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p = shares(logits, 1.0, top_k, top_p) / temperature
    return pull(p / p.sum(1, keepdim=True))


@wrong("sample", "times, not divided", "P-TEMPERATURE-TIMES")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    return pull(shares(logits, 1 / temperature, top_k, top_p))


@wrong("sample", "rank taken for a word", "P-SHARE-NOT-PLACE")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p, _ = shares(logits, temperature, top_k, top_p).sort(1, descending=True)
    return torch.multinomial(p, 1)[:, 0]


@wrong("sample", "filters one or the other", "P-ONE-FILTER")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    return pull(shares(logits, temperature, top_k, None if top_k is not None else top_p))


@wrong("sample", "p is a threshold of a single word", "P-TOP-P-THRESHOLD")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p = shares(logits, temperature, top_k, None)
    if top_p is not None:
        p = torch.where((p >= top_p) | (p == p.max(1, keepdim=True)[0]), p, 0.0)
    return pull(p)


@wrong("sample", "the word that crosses the line goes", "P-TOP-P-WITHOUT-THE-LAST")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p = shares(logits, temperature, top_k, None)
    if top_p is not None:
        sorted_p, ids = torch.sort(p, descending=True)
        remove = torch.cumsum(sorted_p, dim=-1) > top_p
        remove[:, 0] = False
        p = p.masked_fill(remove.scatter(1, ids, remove), 0)
    return pull(p)


@wrong("sample", "top-k in the first row only", "P-TOP-K-FIRST-ROW")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    logits = logits / temperature
    if top_k is not None and top_k < logits.size(1):
        logits = logits.masked_fill(logits < logits[0].topk(top_k)[0].min(), -1e30)
    return pull(shares(logits, 1.0, None, top_p))


@wrong("sample", "fills with 0", "P-FILL-ZERO")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    logits = logits / temperature
    if top_k is not None:
        logits = logits * (logits >= logits.topk(min(top_k, logits.size(1)))[0][:, -1:])
    return pull(shares(logits, 1.0, None, top_p))


@wrong("sample", "k is too large for topk", "P-TOP-K-TOO-LARGE")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    if top_k is not None:
        least = (logits / temperature).topk(top_k)[0][:, -1:]
        logits = torch.where(logits / temperature < least, -math.inf, logits)
    return pull(shares(logits, temperature, None, top_p))


@wrong("sample", "a column", "P-COLUMN")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    return shares(logits, temperature, top_k, top_p).multinomial(1)


@wrong("sample", "p before temperature", "P-TEMPERATURE-LAST")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p = shares(logits, 1.0, top_k, top_p)
    return pull(torch.softmax(p.log() / temperature, 1))


@right("sample")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p = shares(logits, temperature, top_k, top_p)
    p = p / p.sum(1, keepdim=True)
    return (p.cumsum(1) < torch.rand(len(p), 1)).sum(1).clamp(max=p.size(1) - 1)


@right("sample")
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p = shares(logits, temperature, top_k, top_p)
    return (p.log() - (-torch.rand(p.shape).log()).log()).argmax(1)  # the Gumbel trick


# --- beam_search ----------------------------------------------------------------------------------


def by_hand(step, state, bos, eos, width, max_length, score=None, free=True, pick=None, first=None):
    """One sentence and one beginning at a time, in Python."""
    score = score or (lambda row: torch.log_softmax(row, -1))
    results = []
    for s in range(len(state)):
        beam = [(0.0, [], state[s : s + 1])] * (first or 1)
        for _ in range(max_length):
            grown = []
            for total, words, own in beam:
                if words and words[-1] == eos and free:
                    grown.append((total, [*words, eos], own))
                    continue
                token = torch.tensor([words[-1] if words else bos])
                logits, new = step(token, own)
                for word, gain in enumerate(score(logits[0]).tolist()):
                    grown.append((total + gain, [*words, word], new))
            grown.sort(key=lambda each: -each[0])
            beam = grown[:width]
        results.append((pick or (lambda beam: beam[0]))(beam)[1])
    return torch.tensor(results)


@wrong("beam_search", "sums raw scores", "B-LOGITS-ADDED")
def _(step, state, bos, eos, width, max_length):
    return by_hand(step, state, bos, eos, width, max_length, score=lambda row: row)


@wrong("beam_search", "sums probabilities", "B-PROBABILITIES-ADDED")
def _(step, state, bos, eos, width, max_length):
    return by_hand(step, state, bos, eos, width, max_length, score=lambda row: row.softmax(-1))


@wrong("beam_search", "goes on after eos", "B-GOES-ON-AFTER-EOS")
def _(step, state, bos, eos, width, max_length):
    return by_hand(step, state, bos, eos, width, max_length, free=False)


@wrong("beam_search", "all beginnings the same at first", "B-ALL-ALIKE")
def _(step, state, bos, eos, width, max_length):
    return by_hand(step, state, bos, eos, width, max_length, first=width)


@wrong("beam_search", "returns the worst of the beam", "B-LAST-OF-THE-BEAM")
def _(step, state, bos, eos, width, max_length):
    return by_hand(step, state, bos, eos, width, max_length, pick=lambda beam: beam[-1])


@wrong("beam_search", "normalizes by length in the end", "B-MEAN-BY-LENGTH")
def _(step, state, bos, eos, width, max_length):
    def pick(beam):
        def length(words):
            return words.index(eos) + 1 if eos in words else len(words)

        return max(beam, key=lambda each: each[0] / length(each[1]))

    return by_hand(step, state, bos, eos, width, max_length, pick=pick)


@wrong("beam_search", "prefers the finished", "B-ONLY-ENDED")
def _(step, state, bos, eos, width, max_length):
    def pick(beam):
        return next((each for each in beam if eos in each[1]), beam[0])

    return by_hand(step, state, bos, eos, width, max_length, pick=pick)


@wrong("beam_search", "greedy", "B-GREEDY")
def _(step, state, bos, eos, width, max_length):
    return by_hand(step, state, bos, eos, 1, max_length)


def batched(step, state, bos, eos, width, max_length, copy=None, move=True, marks=True):
    b = state.shape[0]
    state = copy(state) if copy else state.repeat_interleave(width, dim=0)
    tokens = torch.full((b * width, 1), bos)
    scores = torch.full((b, width), float("-inf"))
    scores[:, 0] = 0
    done = torch.zeros(b * width).bool()
    for _ in range(max_length):
        logits, state = step(tokens[:, -1], state)
        lp = F.log_softmax(logits, dim=-1)
        lp[done] = float("-inf")
        lp[done, eos] = 0
        v = lp.shape[-1]
        scores, idx = (scores.view(-1, 1) + lp).view(b, -1).topk(width)
        beam = (idx.div(v, rounding_mode="floor") + torch.arange(b).unsqueeze(1) * width).view(-1)
        word = (idx % v).view(-1, 1)
        tokens = torch.cat([tokens[beam], word], dim=1)
        if move:
            state = state[beam]
        done = (done[beam] if marks else done) | (word[:, 0] == eos)
    return tokens.view(b, width, -1)[:, 0, 1:]


@wrong("beam_search", "leaves the state where it was", "B-STATE-NOT-MOVED")
def _(step, state, bos, eos, width, max_length):
    return batched(step, state, bos, eos, width, max_length, move=False)


@wrong("beam_search", "leaves the ends where they were", "B-ENDED-NOT-MOVED")
def _(step, state, bos, eos, width, max_length):
    return batched(step, state, bos, eos, width, max_length, marks=False)


@wrong("beam_search", "tiles the states", "B-TILED")
def _(step, state, bos, eos, width, max_length):
    return batched(step, state, bos, eos, width, max_length, copy=lambda x: x.repeat(width, 1))


@wrong("beam_search", "keeps bos", "B-BOS-KEPT")
def _(step, state, bos, eos, width, max_length):
    found = by_hand(step, state, bos, eos, width, max_length)
    return torch.cat([torch.full_like(found[:, :1], bos), found], 1)[:, :max_length]


@wrong(
    "beam_search",
    "the beam gets narrower as sentences end",
    "B-ENDED-DROPPED",
    "B-ENDED-KEEPS-ITS-PLACE",
)
def _(step, state, bos, eos, width, max_length):
    rows = []
    for s in range(len(state)):
        beam, ended = [(0.0, [], state[s : s + 1])], []
        for _ in range(max_length):
            grown = []
            for total, words, own in beam:
                logits, new = step(torch.tensor([words[-1] if words else bos]), own)
                gains = logits[0].log_softmax(-1)
                grown += [(total + g.item(), [*words, w], new) for w, g in enumerate(gains)]
            grown = sorted(grown, key=lambda x: x[0], reverse=True)[: width - len(ended)]
            ended += [g for g in grown if g[1][-1] == eos]
            beam = [g for g in grown if g[1][-1] != eos]
            if not beam:
                break
        best = max(ended or beam, key=lambda x: x[0])[1]
        rows.append(best + [eos] * (max_length - len(best)))
    return torch.tensor(rows)


@right("beam_search")
def _(step, state, bos, eos, width, max_length):
    return by_hand(step, state, bos, eos, width, max_length)


@right("beam_search")
def _(step, state, bos, eos, width, max_length):
    return batched(step, state, bos, eos, width, max_length)


# --- Chapter 10: extend ---------------------------------------------------------------------------


@wrong("extend", "puts the new in front", "K-NEW-FIRST")
def _(cache, key, value):
    if cache:
        return torch.cat((key, cache[0]), -2), torch.cat((value, cache[1]), -2)
    return key, value


@wrong("extend", "axis 1", "K-CAT-HEADS")
def _(cache, key, value):
    return tuple(
        new if cache is None else torch.cat([cache[i], new], dim=1)
        for i, new in enumerate((key, value))
    )


@wrong("extend", "axis 2", "K-CAT-AXIS-2")
def _(cache, key, value):
    if cache is None:
        cache = (key[..., :0, :], value[..., :0, :])
    return torch.concat((cache[0], key), 2), torch.concat((cache[1], value), 2)


@wrong("extend", "hstack", "K-CAT-HEADS")
def _(cache, key, value):
    if cache is None:
        return key, value
    return torch.hstack([cache[0], key]), torch.hstack([cache[1], value])


@wrong("extend", "vstack", "K-CAT-FIRST-AXIS")
def _(cache, key, value):
    if cache is None:
        return key, value
    return torch.vstack([cache[0], key]), torch.vstack([cache[1], value])


@wrong("extend", "gives back what is new", "K-ONLY-THE-NEW")
def _(cache, key, value):
    if cache is not None:
        keys = torch.cat([cache[0], key], -2)
        values = torch.cat([cache[1], value], -2)
        assert keys.shape[-2] == values.shape[-2]
    return (key, value)


@wrong("extend", "values first", "K-PAIR-TURNED")
def _(cache, key, value):
    if cache is None:
        return value, key
    return torch.cat([cache[1], value], -2), torch.cat([cache[0], key], -2)


@wrong("extend", "a list that was there grows, and the first call fails", "K-NO-BEGINNING")
def _(cache, key, value):
    past_key, past_value = cache
    return torch.cat([past_key, key], dim=-2), torch.cat([past_value, value], dim=-2)


@wrong("extend", "keys twice", "K-KEY-TWICE")
def _(cache, key, value):
    if cache is None:
        return key, key
    keys = torch.cat([cache[0], key], dim=-2)
    return keys, keys


@wrong("extend", "throws the oldest away", "K-ROLLING")
def _(cache, key, value):
    if cache is None:
        return key, value
    n = max(cache[0].shape[-2], key.shape[-2])
    return torch.cat([cache[0], key], -2)[..., -n:, :], torch.cat([cache[1], value], -2)[
        ..., -n:, :
    ]


@wrong("extend", "one tensor instead of a pair")
def _(cache, key, value):
    if cache is None:
        return torch.cat([key, value], -1)
    return torch.cat([torch.cat([*cache], -1), torch.cat([key, value], -1)], -2)


@wrong("extend", "only the last of the new positions is kept", "K-LAST-ONLY")
def _(cache, key, value):
    key, value = key[..., -1:, :], value[..., -1:, :]
    if cache is None:
        return key, value
    return torch.cat([cache[0], key], -2), torch.cat([cache[1], value], -2)


@right("extend")
def _(cache, key, value):
    if cache is None:
        return [key, value]
    n, q = cache[0].shape[-2], key.shape[-2]
    out = []
    for old, new in zip(cache, (key, value)):
        room = old.new_empty(*old.shape[:-2], n + q, old.shape[-1])
        room[..., :n, :] = old
        room[..., n:, :] = new
        out.append(room)
    return out


# --- cached_attention -----------------------------------------------------------------------------


def onward(query, key, value, cache, seen, scale=None, mask=None, fill=float("-inf")):
    """`seen(i, j, n)`: may new query i look at key j, with n kept?"""
    n = 0
    if cache is not None:
        n = cache[0].shape[-2]
        key, value = torch.cat([cache[0], key], -2), torch.cat([cache[1], value], -2)
    q, k = query.shape[-2], key.shape[-2]
    ok = torch.tensor([[seen(i, j, n) for j in range(k)] for i in range(q)])
    if mask is not None:
        ok = ok & mask
    s = query @ key.transpose(-2, -1) / (scale or math.sqrt(query.shape[-1]))
    s = torch.where(ok, s, torch.full_like(s, fill))
    w = torch.nan_to_num(torch.softmax(s, -1)) if fill == float("-inf") else torch.softmax(s, -1)
    return w @ value, (key, value)


@wrong("cached_attention", "tril", "K-MASK-TOP-LEFT")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: j <= i, mask=mask)


@wrong("cached_attention", "no triangle once something is kept", "K-LATER-PIECE-FREE")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: n > 0 or j <= i, mask=mask)


@wrong("cached_attention", "no triangle at the start", "K-FIRST-PIECE-FREE")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: n == 0 or j <= n + i, mask=mask)


@wrong("cached_attention", "strictly before", "K-NOT-ITSELF")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: j < n + i, mask=mask)


@wrong("cached_attention", "one ahead", "K-ONE-AHEAD")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: j <= n + i + 1, mask=mask)


@wrong("cached_attention", "a large negative number hides", "M-DEAD-ROW-UNIFORM")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: j <= n + i, mask=mask, fill=-1e9)


@wrong("cached_attention", "forgets the mask", "K-MASK-IGNORED")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: j <= n + i)


@wrong("cached_attention", "either triangle or mask", "K-MASK-INSTEAD")
def _(query, key, value, cache=None, mask=None):
    free = mask is not None
    return onward(query, key, value, cache, lambda i, j, n: free or j <= n + i, mask=mask)


@wrong("cached_attention", "True hides", "K-MASK-POLARITY")
def _(query, key, value, cache=None, mask=None):
    mask = None if mask is None else torch.logical_not(mask)
    return onward(query, key, value, cache, lambda i, j, n: j <= n + i, mask=mask)


@wrong("cached_attention", "scales by the number of keys", "K-SCALE-BY-N")
def _(query, key, value, cache=None, mask=None):
    k = key.shape[-2] + (0 if cache is None else cache[0].shape[-2])
    return onward(query, key, value, cache, lambda i, j, n: j <= n + i, k**0.5, mask)


@wrong("cached_attention", "hands back the old cache", "K-NOT-EXTENDED")
def _(query, key, value, cache=None, mask=None):
    out, new = onward(query, key, value, cache, lambda i, j, n: j <= n + i, mask=mask)
    return out, new if cache is None else cache


class Remembers:
    def __init__(self):
        self.kept = None

    def __call__(self, query, key, value, cache=None, mask=None):
        out, self.kept = onward(query, key, value, self.kept, lambda i, j, n: j <= n + i, mask=mask)
        return out, self.kept


wrong("cached_attention", "keeps its own list", "K-STALE")(Remembers())


@wrong("cached_attention", "attends before it extends", "K-ATTENDS-FIRST")
def _(query, key, value, cache=None, mask=None):
    if cache is None:
        return onward(query, key, value, None, lambda i, j, n: j <= i, mask=mask)
    n = cache[0].shape[-2]
    mask = None if mask is None else mask[..., :n]
    out, _ = attend(query, *cache, mask)
    return out, (torch.cat([cache[0], key], -2), torch.cat([cache[1], value], -2))


@right("cached_attention")
def _(query, key, value, cache=None, mask=None):
    return onward(query, key, value, cache, lambda i, j, n: j - n <= i, mask=mask)


# --- grouped_query_attention ----------------------------------------------------------------------


def heads(query, key, value, mask, which):
    """Head by head; `which(i, h, c)` says which cached head serves head i."""
    h, c, outs, ws = query.size(1), key.size(1), [], []
    m = None if mask is None else mask.expand(query.size(0), h, query.size(2), key.size(2))
    for i in range(h):
        j = which(i, h, c)
        out, w = attend(query[:, i], key[:, j], value[:, j], None if m is None else m[:, i])
        outs.append(out)
        ws.append(w)
    return torch.stack(outs, dim=1), torch.stack(ws, dim=1)


@wrong("grouped_query_attention", "modulo", "G-ORDER", "G-REPEAT")
def _(query, key, value, mask=None):
    return heads(query, key, value, mask, lambda i, h, c: i % c)


@wrong("grouped_query_attention", "divides by c", "G-MEMBERS")
def _(query, key, value, mask=None):
    return heads(query, key, value, mask, lambda i, h, c: min(i // c, c - 1))


@wrong("grouped_query_attention", "always the first", "G-FIRST-HEAD")
def _(query, key, value, mask=None):
    return heads(query, key, value, mask, lambda i, h, c: 0)


@wrong("grouped_query_attention", "einops repeat", "G-EXPAND")
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    key, value = (repeat(x, "b c k d -> b (c g) k d", g=g) for x in (key, value))
    return attend(query, key, value, mask)


@wrong("grouped_query_attention", "einops repeat, order reversed", "G-REPEAT", "G-ORDER")
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    key, value = (repeat(x, "b c k d -> b (g c) k d", g=g) for x in (key, value))
    return attend(query, key, value, mask)


@wrong("grouped_query_attention", "broadcasts in a product with five axes", "G-EXPAND")
def _(query, key, value, mask=None):
    b, h, n, d = query.shape
    c, k = key.shape[1], key.shape[2]
    q5 = query.view(b, c, h // c, n, d)
    s = q5 @ key.unsqueeze(2).transpose(-1, -2) / d**0.5
    if mask is not None:
        mask = mask.expand(b, h, n, k).view(b, c, h // c, n, k)
        s = s.masked_fill(~mask, -torch.inf)
    w = s.softmax(-1).nan_to_num()
    return (w @ value.unsqueeze(2)).reshape(b, h, n, -1), w.reshape(b, h, n, k)


def folded(query, key, value, mask, scale=None, fold=None):
    b, h, n, d = query.shape
    c, k = key.shape[1], key.shape[2]
    rows = query.reshape(b, c, h // c * n, d)
    s = torch.einsum("bcid,bcjd->bcij", rows, key) / (scale or math.sqrt(d))
    if mask is not None:
        m = (fold or (lambda m: m.reshape(b, c, h // c * n, k)))(mask.expand(b, h, n, k))
        s = s.masked_fill(m.logical_not(), -math.inf)
    w = torch.nan_to_num(F.softmax(s, -1))
    out = torch.einsum("bcij,bcjv->bciv", w, value)
    return out.reshape(b, h, n, -1), w.reshape(b, h, n, k)


@wrong("grouped_query_attention", "scale by the group, too", "G-SCALE-GROUP")
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    return folded(query, key, value, mask, scale=math.sqrt(g * query.shape[-1]))


@wrong("grouped_query_attention", "scale by all heads", "G-SCALE-HEADS")
def _(query, key, value, mask=None):
    return folded(query, key, value, mask, scale=math.sqrt(query.shape[1] * query.shape[-1]))


@wrong("grouped_query_attention", "no scale", "D-NO-SCALE")
def _(query, key, value, mask=None):
    return folded(query, key, value, mask, scale=1)


@wrong("grouped_query_attention", "a mask for one head of a group", "G-MASK-FIRST-HEAD")
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    return folded(query, key, value, mask, fold=lambda m: m[:, ::g].repeat(1, 1, g, 1))


@wrong("grouped_query_attention", "mask rows in the other order", "G-MASK-ORDER")
def _(query, key, value, mask=None):
    c = key.shape[1]
    return folded(
        query, key, value, mask, fold=lambda m: rearrange(m, "b (c g) q k -> b c (q g) k", c=c)
    )


@wrong("grouped_query_attention", "queries of a group averaged", "G-ONE-QUERY")
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    mean = rearrange(query, "b (c g) q d -> b c g q d", g=g).mean(2)
    return folded(mean.repeat_interleave(g, 1), key, value, mask)


@wrong("grouped_query_attention", "NaN in dead rows", "M-DEAD-ROW")
def _(query, key, value, mask=None):
    b, h, n, d = query.shape
    c, k = key.shape[1], key.shape[2]
    s = torch.einsum("bcid,bcjd->bcij", query.reshape(b, c, -1, d), key) / math.sqrt(d)
    s = s.view(b, h, n, k)
    if mask is not None:
        s = s.masked_fill(mask == 0, float("-inf"))
    w = s.softmax(-1)
    return torch.einsum("bcij,bcjv->bciv", w.view(b, c, -1, k), value).view(b, h, n, -1), w


@right("grouped_query_attention")
def _(query, key, value, mask=None):
    return heads(query, key, value, mask, lambda i, h, c: i // (h // c))


@right("grouped_query_attention")
def _(query, key, value, mask=None):
    return folded(query, key, value, mask)


@right("grouped_query_attention")
def _(query, key, value, mask=None):
    c = key.shape[1]
    q5 = rearrange(query, "b (c g) q d -> b c g q d", c=c)
    s = torch.einsum("bcgqd,bckd->bcgqk", q5, key) / query.shape[-1] ** 0.5
    s = s.flatten(1, 2)
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    w = s.softmax(-1).nan_to_num(0.0)
    out = torch.einsum("bcgqk,bckv->bcgqv", w.unflatten(1, (c, -1)), value)
    return out.flatten(1, 2), w


# --- bytes_per_token ------------------------------------------------------------------------------


def tally(scheme, layers, h, d, size, c=None, l=None, r=None, *, kv=2, heads=None, mla=None):  # noqa: E741
    if scheme in ("MHA", "GQA", "MQA"):
        n = {"MHA": h, "GQA": c, "MQA": 1}[scheme] if heads is None else heads(scheme, h, c)
        return layers * kv * n * d * size
    if scheme == "MLA":
        return layers * (mla or (lambda: l + r))() * size
    raise ValueError(scheme)


@wrong("bytes_per_token", "keys only", "K-KEYS-ONLY")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width, kv=1)  # fmt: skip


@wrong("bytes_per_token", "one layer", "K-ONE-LAYER")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, 1, num_heads, head_width, bytes_per_number, kv_heads, latent_width,
                 rope_width)  # fmt: skip


@wrong("bytes_per_token", "queries, too", "K-QUERIES-TOO")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width, kv=3)  # fmt: skip


@wrong("bytes_per_token", "h / c heads", "G-MEMBERS")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    def heads(scheme, h, c):
        return {"MHA": h, "MQA": 1}.get(scheme) or h // c

    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width, heads=heads)  # fmt: skip


@wrong("bytes_per_token", "GQA like MHA", "G-EXPAND-BYTES")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width,
                 heads=lambda s, h, c: 1 if s == "MQA" else h)  # fmt: skip


@wrong("bytes_per_token", "latent only", "L-CACHE-SIZE")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width, mla=lambda: latent_width)  # fmt: skip


@wrong("bytes_per_token", "twice the latent", "L-LATENT-TWICE", "L-ALL-TWICE")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width, mla=lambda: 2 * latent_width + rope_width)  # fmt: skip


@wrong("bytes_per_token", "a rotated key a head", "L-ROPE-EACH")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width,
                 mla=lambda: latent_width + num_heads * rope_width)  # fmt: skip


@wrong("bytes_per_token", "divides, so a float comes out", "K-FLOAT")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width) / 1  # fmt: skip


@wrong("bytes_per_token", "an unknown scheme costs nothing", "K-ANY-NAME")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    try:
        return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                     latent_width, rope_width)  # fmt: skip
    except ValueError:
        return 0


@wrong("bytes_per_token", "bits", "K-BITS")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number * 8, kv_heads,
                 latent_width, rope_width)  # fmt: skip


@wrong("bytes_per_token", "MQA with all values", "G-ONE-KEY-TWO-VALUES")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    if scheme == "MQA":
        return num_layers * bytes_per_number * head_width * (1 + num_heads)
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width)  # fmt: skip


@right("bytes_per_token")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    plain = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}
    if scheme == "MLA":
        return num_layers * (latent_width + rope_width) * bytes_per_number
    if scheme not in plain:
        raise ValueError(scheme)
    return num_layers * 2 * plain[scheme] * head_width * bytes_per_number


@right("bytes_per_token")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return tally(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                 latent_width, rope_width)  # fmt: skip


# --- LatentAttention ------------------------------------------------------------------------------


class Mine(nn.Module):
    """As a student has it: everything in one place, and switches are overridden methods."""

    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.l, self.r = num_heads, head_width, latent_width, rope_width
        lin = self.lin
        self.q_proj = lin(model_width, num_heads * head_width)
        self.q_rope = lin(model_width, num_heads * rope_width)
        self.down = lin(model_width, latent_width)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = lin(model_width, rope_width)
        self.k_up = lin(latent_width, num_heads * head_width)
        self.v_up = lin(latent_width, num_heads * head_width)
        self.out_proj = lin(num_heads * head_width, model_width)

    def lin(self, a, b):
        return nn.Linear(a, b, bias=False)

    def scale(self):
        return math.sqrt(self.d + self.r)

    def begin(self, cache):
        return 0 if cache is None else cache[0].shape[1]

    def cut(self, x):
        return x.view(x.shape[0], x.shape[1], self.h, -1).permute(0, 2, 1, 3)

    def latent(self, x):
        return self.norm(self.down(x))

    def turn(self, x, p):
        return turned(x, p)

    def turn_key(self, x, p):
        return turned(x, p)

    def see(self, q, k):
        return causal_mask(q, k)

    def see_step(self, q, k):
        return self.see(q, k)

    def forward(self, x):
        c, p = self.latent(x), torch.arange(x.shape[1])
        s = self.cut(self.q_proj(x)) @ self.cut(self.k_up(c)).transpose(-1, -2)
        s = s + self.turn(self.cut(self.q_rope(x)), p) @ self.turn_key(self.k_rope(x), p).unsqueeze(
            1
        ).transpose(-1, -2)
        s = (s / self.scale()).masked_fill(~self.see(x.shape[1], x.shape[1]), -torch.inf)
        return self.merge(s.softmax(-1) @ self.cut(self.v_up(c)))

    def merge(self, y):
        return self.out_proj(y.permute(0, 2, 1, 3).flatten(2))

    def grow(self, cache, c, kr):
        if cache is None:
            return c, kr
        return torch.cat([cache[0], c], 1), torch.cat([cache[1], kr], 1)

    def step(self, x, cache=None):
        start = self.begin(cache)
        p = torch.arange(start, start + x.shape[1])
        cache = self.grow(cache, self.latent(x), self.turn_key(self.k_rope(x), p))
        c, kr = cache
        up = self.k_up.weight.view(self.h, self.d, self.l)
        qc = torch.einsum("bhqd,hdl->bhql", self.cut(self.q_proj(x)), up)
        s = torch.einsum("bhql,bkl->bhqk", qc, c)
        s = s + torch.einsum("bhqr,bkr->bhqk", self.turn(self.cut(self.q_rope(x)), p), kr)
        s = (s / self.scale()).masked_fill(~self.see_step(x.shape[1], c.shape[1]), -torch.inf)
        y = torch.einsum("bhqk,bkl->bhql", s.softmax(-1), c)
        y = torch.einsum("bhql,hdl->bhqd", y, self.v_up.weight.view(self.h, self.d, self.l))
        return self.merge(y), cache


@wrong("LatentAttention", "root of d", "L-SCALE-D")
class _RootOfD(Mine):
    def scale(self):
        return self.d**0.5


@wrong("LatentAttention", "root of l + r", "L-SCALE-LATENT")
class _RootOfLatent(Mine):
    def scale(self):
        return math.sqrt(self.l + self.r)


@wrong("LatentAttention", "no norm", "L-NO-NORM")
class _NoNorm(Mine):
    def latent(self, x):
        return self.down(x)


@wrong("LatentAttention", "each step begins at 0", "P-ROPE-CACHE")
class _FromZero(Mine):
    def begin(self, cache):
        return 0


@wrong("LatentAttention", "places counted by steps, not by positions", "L-PLACE-BY-STEPS")
class _BySteps(Mine):
    def begin(self, cache):
        self.steps = 0 if cache is None else self.steps + 1
        return self.steps


@wrong("LatentAttention", "not causal", "L-NOT-CAUSAL")
class _Free(Mine):
    def see(self, q, k):
        return torch.ones(q, k).bool()


@wrong("LatentAttention", "no triangle in a step", "K-NO-TRIANGLE")
class _FreeStep(Mine):
    def see_step(self, q, k):
        return torch.ones(q, k).bool()


@wrong("LatentAttention", "tril in a step", "K-MASK-TOP-LEFT")
class _TopLeft(Mine):
    def see_step(self, q, k):
        return torch.tril(torch.ones(q, k)).bool()


@wrong("LatentAttention", "the key is not turned", "L-KEY-NOT-TURNED")
class _KeyStill(Mine):
    def turn_key(self, x, p):
        return x


@wrong("LatentAttention", "the query is not turned", "L-QUERY-NOT-TURNED")
class _QueryStill(Mine):
    def turn(self, x, p):
        return x


@wrong("LatentAttention", "makes keys again in every step", "L-UNFOLD")
class _Unfolds(Mine):
    def step(self, x, cache=None):
        start = self.begin(cache)
        p = torch.arange(start, start + x.shape[1])
        cache = self.grow(cache, self.latent(x), self.turn_key(self.k_rope(x), p))
        c, kr = cache
        s = self.cut(self.q_proj(x)) @ self.cut(self.k_up(c)).mT
        s = s + self.turn(self.cut(self.q_rope(x)), p) @ kr[:, None].mT
        s = (s / self.scale()).masked_fill(~self.see(x.shape[1], c.shape[1]), -torch.inf)
        return self.merge(s.softmax(-1) @ self.cut(self.v_up(c))), cache


@wrong("LatentAttention", "keeps x and starts again", "L-CACHE-X")
class _KeepsX(Mine):
    def step(self, x, cache=None):
        text = x if cache is None else torch.cat([cache, x], 1)
        return self.forward(text)[:, -x.shape[1] :], text


@wrong("LatentAttention", "biases", "L-BIAS")
class _Biased(Mine):
    def lin(self, a, b):
        return nn.Linear(a, b)


@wrong("LatentAttention", "latents averaged, then k_up", "L-VALUE-UP")
class _KeysForValues(Mine):
    def forward(self, x):
        kept, self.v_up = self.v_up, self.k_up
        out = super().forward(x)
        self.v_up = kept
        return out

    def step(self, x, cache=None):
        kept, self.v_up = self.v_up, self.k_up
        out = super().step(x, cache)
        self.v_up = kept
        return out


@wrong("LatentAttention", "view without a permutation", "H-VIEW-SPLIT")
class _Mixed(Mine):
    def cut(self, x):
        return x.reshape(x.shape[0], self.h, x.shape[1], -1)


@wrong(
    "LatentAttention", "normalizes in a step the cache that is normalized already", "L-NORM-AGAIN"
)
class _NormTwice(Mine):
    def grow(self, cache, c, kr):
        if cache is None:
            return c, kr
        return torch.cat([self.norm(cache[0]), c], 1), torch.cat([cache[1], kr], 1)


@right("LatentAttention")
class _Right(Mine):
    pass
