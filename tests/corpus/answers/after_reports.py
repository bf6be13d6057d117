"""Wrong answers of chapters 1, 5, 8–13 and lab 6, written again after what others had reported.

A student who saw pages and notebooks alone wrote 406 wrong answers to chapters 8–13, and kept them.
The report on them describes those that the judge gave no name, and public bug reports of the same
algorithms describe more. They are written here from these descriptions, before anything was mended
by them. Beside them stand mistakes of the same kinds in other tasks: half of a known one, a known
one to the other side, and two at once of which each is known alone.
"""

import copy
import math
from collections import Counter

import torch
import torch.nn.functional as F

from attncourse.looking_inside import attention_in
from attncourse.one_stack import byte_letters, byte_words
from attncourse.scaled_dot_product import scaled_dot_product_attention as attention
from corpus.answers import Corpus
from corpus.answers.first_sight_10_11 import HEAD_BY_HEAD, WITH_EINSUM, latent

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right


def both(*halves):
    """Two mistakes, each with the ids that would be a fair diagnosis."""
    return tuple((each,) if isinstance(each, str) else each for each in halves)


# --- What the student of chapters 8–13 reported: one mistake --------------------------------------


@wrong("patched", "every h-th feature belongs to a head", "I-INTERLEAVED")
def _(model, clean, corrupted, place):
    layer, head, position = place
    heard = {}

    def listen(module, args):
        heard["said"] = args[0].detach().clone()

    module = attention_in(model, layer)
    h = module.num_heads
    handle = module.out_proj.register_forward_pre_hook(listen)
    with torch.no_grad():
        model(clean)
    handle.remove()

    def put(module, args):
        x = args[0].clone()
        x[:, position, head::h] = heard["said"][:, position, head::h]
        return (x,)

    handle = module.out_proj.register_forward_pre_hook(put)
    try:
        return model(corrupted)
    finally:
        handle.remove()


@wrong("windowed_attention", "indices modulo n, so both ends meet", "W-CIRCLE")
def _(query, key, value, width):
    n = query.shape[-2]
    outputs = []
    for i in range(n):
        seen = sorted({(i + o) % n for o in range(-width, width + 1)})
        scores = (key[..., seen, :] * query[..., i : i + 1, :]).sum(-1) / query.shape[-1] ** 0.5
        outputs.append((scores.softmax(-1)[..., None] * value[..., seen, :]).sum(-2))
    return torch.stack(outputs, -2)


@wrong(
    "windowed_attention",
    "range(i - width, ...) goes below zero, and Python counts from the end",
    "W-CIRCLE",
    "W-BELOW-ZERO",
)
def _(query, key, value, width):
    n = query.shape[-2]
    outputs = []
    for i in range(n):
        seen = list(range(max(i - width, -n), min(i + width, n - 1) + 1))
        scores = (key[..., seen, :] * query[..., i : i + 1, :]).sum(-1) / query.shape[-1] ** 0.5
        outputs.append((scores.softmax(-1)[..., None] * value[..., seen, :]).sum(-2))
    return torch.stack(outputs, -2)


@wrong("linear_attention", "without the word itself, except in the first row", "L-NOT-ITSELF")
def _(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    w = torch.tril(q @ k.transpose(-1, -2), diagonal=-1)
    w[..., 0, 0] = 1.0
    return (w / w.sum(-1, keepdim=True)) @ value


wrong("LatentAttention", "the turned queries are rotated before they are split", "L-TURNED-AS-ONE")(
    latent(
        HEAD_BY_HEAD,
        (
            "        qr = self.q_rope(x).view(b, n, h, r).transpose(1, 2)\n        qr = rotate(qr, pos)",
            "        qr = rotate(self.q_rope(x), pos).view(b, n, h, r).transpose(1, 2)",
        ),
        (
            "rotate(self.q_rope(x).view(b, new, h, r).transpose(1, 2), pos)",
            "rotate(self.q_rope(x), pos).view(b, new, h, r).transpose(1, 2)",
        ),
    )
)

wrong(
    "LatentAttention",
    "heads read across: view(b, h, n, d) at once",
    "H-VIEW-SPLIT",
    "H-SPLIT-NO-TRANSPOSE",
)(
    latent(
        WITH_EINSUM,
        (
            'einops.rearrange(x, "b n (h d) -> b h n d", h=self.h)',
            "x.reshape(x.shape[0], self.h, x.shape[1], -1)",
        ),
    )
)


@wrong("byte_pairs", "pieces in a text with blanks, and replace", "B-TEXT-REPLACED")
def _(words, num_merges):
    texts = {word: " ".join(word) for word in words}
    order = {c: i for i, c in enumerate(sorted({c for w in words for c in w}))}
    merges = []
    while len(merges) < num_merges:
        count = Counter()
        for word, text in texts.items():
            parts = text.split()
            for a, b in zip(parts, parts[1:]):
                count[a, b] += words[word]
        if not count:
            break
        best = min(count, key=lambda p: (-count[p], order[p[0]], order[p[1]]))
        order.setdefault(best[0] + best[1], len(order))
        merges.append(best)
        texts = {w: t.replace(" ".join(best), "".join(best)) for w, t in texts.items()}
    return merges


@wrong(
    "ring_attention",
    "the sums are brought to the new maximum, the outputs are not",
    "R-OUTPUT-NOT-RESCALED",
)
def _(query_shards, key_shards, value_shards):
    outputs = []
    for q in query_shards:
        top = torch.full_like(q[..., :1], -math.inf)
        below = torch.zeros_like(top)
        above = 0.0
        for k, v in zip(key_shards, value_shards):
            s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            e = torch.exp(s - new)
            below = below * torch.exp(top - new) + e.sum(-1, keepdim=True)
            above = above + e @ v
            top = new
        outputs.append(above / below)
    return outputs


@wrong("masked_words", "the random word is never word 0", "W-NEVER-ZERO")
def _(tokens, share, mask_id, vocabulary_size, rng):
    ask = torch.rand(tokens.shape, generator=rng) < share
    how = torch.rand(tokens.shape, generator=rng)
    low = min(1, vocabulary_size - 1)
    other = torch.randint(low, vocabulary_size, tokens.shape, generator=rng)
    x = torch.where(ask & (how < 0.8), torch.full_like(tokens, mask_id), tokens)
    x = torch.where(ask & (how >= 0.8) & (how < 0.9), other, x)
    return x, torch.where(ask, tokens, torch.full_like(tokens, -100))


@wrong("window_mask", "one global token too many, where there are any", "W-GLOBAL-ONE-MORE")
def _(n, width, global_tokens=0):
    i = torch.arange(n)
    m = (i[:, None] - i[None, :]).abs() <= width
    if global_tokens:
        m[: global_tokens + 1] = True
        m[:, : global_tokens + 1] = True
    return m


def beams(step, state, bos, eos, width, max_length, worth, stop=None):
    rows = []
    for r in range(len(state)):
        found = [([bos], 0.0, state[r : r + 1])]
        for _ in range(max_length):
            new = []
            for words, total, s in found:
                if words[-1] == eos and len(words) > 1:
                    new.append((words, total, s))
                    continue
                logits, after = step(torch.tensor([words[-1]]), s)
                log_p = torch.log_softmax(logits[0], -1)
                new += [(words + [w], total + log_p[w].item(), after) for w in range(len(log_p))]
            new.sort(key=lambda b: -worth(b))
            found = new[:width]
            if stop and stop(found):
                break
        rows.append(found[0][0][1:])
    longest = max(map(len, rows))
    return torch.tensor([w + [eos] * (longest - len(w)) for w in rows])


@wrong("beam_search", "the mean of the logarithms, and bos counts as a word", "B-MEAN-BY-LENGTH")
def _(step, state, bos, eos, width, max_length):
    return beams(step, state, bos, eos, width, max_length, lambda b: b[1] / len(b[0]))


@wrong(
    "beam_search",
    "a sentence ends as soon as any of its beams has ended",
    "B-FIRST-END-WINS",
    "B-ANY-END-STOPS",
)
def _(step, state, bos, eos, width, max_length):
    return beams(
        step, state, bos, eos, width, max_length, lambda b: b[1],
        lambda found: any(b[0][-1] == eos for b in found),
    )  # fmt: skip


@wrong("copying_score", "the mean of each real part over its absolute value", "I-EACH-SHARE")
def _(W_OV, W_E, W_U):
    ev = torch.linalg.eigvals(W_E @ W_OV @ W_U)
    ev = ev[ev.abs() > 1e-6 * ev.abs().max()]
    return (ev.real / ev.abs()).mean().item()


@wrong("copying_score", "the mean over the largest", "I-MEAN-OVER-LARGEST")
def _(W_OV, W_E, W_U):
    ev = torch.linalg.eigvals(W_OV @ W_U @ W_E)
    return (ev.real.mean() / ev.abs().max()).item()


@wrong("linear_attention", "relu + 1", "L-RELU-PLUS-ONE")
def _(query, key, value):
    q, k = query.clamp(min=0) + 1, key.clamp(min=0) + 1
    w = torch.tril(q @ k.mT)
    return w @ value / w.sum(-1, keepdim=True)


@wrong("linear_attention", "query and key are divided by the fourth root of d", "L-SCALED")
def _(query, key, value):
    root = query.shape[-1] ** 0.25
    q, k = F.elu(query / root) + 1, F.elu(key / root) + 1
    w = torch.tril(q @ k.mT)
    return w @ value / w.sum(-1, keepdim=True)


@wrong("contrastive_loss", "over e to the temperature", "C-PAIRS-LOGARITHM")
def _(images, texts, temperature):
    a = images / images.norm(dim=-1, keepdim=True)
    b = texts / texts.norm(dim=-1, keepdim=True)
    s = a @ b.T / torch.as_tensor(temperature).exp()
    y = torch.arange(len(s))
    return 0.5 * (F.cross_entropy(s, y) + F.cross_entropy(s.T, y))


# --- After public bug reports: one mistake --------------------------------------------------------


@wrong("rotate", "the paper's i - 1, with i from 0", "C-PAIRS-FROM-MINUS-ONE", "C-PAIRS-FROM-ONE")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    i = torch.arange(d // 2, dtype=torch.float64)
    theta = base ** (-2 * (i - 1) / d)
    a = positions.double()[..., None] * theta
    c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
    out = torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * c - x[..., 1::2] * s
    out[..., 1::2] = x[..., ::2] * s + x[..., 1::2] * c
    return out


@wrong(
    "rotate",
    "angles stand twice in a table d wide, and its first half is used",
    "C-ROPE-ANGLES-TWICE",
)
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    speed = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    a = (positions.double()[..., None] * speed).repeat_interleave(2, -1)[..., : d // 2]
    c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
    p, q = x[..., 0::2], x[..., 1::2]
    return torch.stack((p * c - q * s, p * s + q * c), -1).flatten(-2)


@wrong(
    "grouped_query_attention", "the scores of a group's queries are added up", "G-QUERIES-SUMMED"
)
def _(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    s = query.view(b, c, h // c, q, d).sum(2) @ key.mT / math.sqrt(d)
    s = s.repeat_interleave(h // c, 1)
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    w = s.softmax(-1)
    if mask is not None:
        w = w.masked_fill(~mask, 0)
    return w @ value.repeat_interleave(h // c, 1), w


@wrong(
    "encode_text", "joins from the left whatever pair is known, and starts over", "B-LEFTMOST-PAIR"
)
def _(text, merges):
    known = set(map(tuple, merges))
    ids = {}
    for piece in [*sorted(byte_letters()), *("".join(m) for m in merges)]:
        ids.setdefault(piece, len(ids))
    out = []
    for word in byte_words(text):
        parts, i = list(word), 0
        while i < len(parts) - 1:
            if (parts[i], parts[i + 1]) in known:
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
                i = max(i - 1, 0)
            else:
                i += 1
        out += [ids[p] for p in parts]
    return out


@wrong("linear_attention", "multiplied by what it should be divided by", "L-MULTIPLIED")
def _(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    z = (q * k.cumsum(-2)).sum(-1, keepdim=True)
    return torch.tril(q @ k.mT) @ value * z


@wrong(
    "cached_attention",
    "a square mask (q q) beside scores (q n+q)",
    "K-MASK-SQUARE",
    "K-MASK-TOP-LEFT",
)
def _(query, key, value, cache=None, mask=None):
    if cache is not None:
        key, value = torch.cat([cache[0], key], -2), torch.cat([cache[1], value], -2)
    q = query.shape[-2]
    s = query @ key.mT / math.sqrt(query.shape[-1])
    s = s.masked_fill(~torch.ones(q, q).tril().bool(), -1e30)
    seen = torch.ones(q, q).tril().bool()
    if mask is not None:
        s, seen = s.masked_fill(~mask, -1e30), seen & mask
    return s.softmax(-1).masked_fill(~seen, 0) @ value, (key, value)


def tiled(query, key, value, tile, causal, shrink_total, shrink_output):
    b, h, n, d = query.shape
    k = key.shape[-2]
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_zeros(b, h, n, value.shape[-1])
    lse = query.new_zeros(b, h, n, dtype=wide)
    for i in range(0, n, tile):
        qs = query[:, :, i : i + tile].to(wide) / math.sqrt(d)
        m = torch.full_like(qs[..., 0], -math.inf)
        l = torch.zeros_like(m)
        o = m.new_zeros(*m.shape, value.shape[-1])
        for j in range(0, k, tile):
            s = qs @ key[:, :, j : j + tile].to(wide).mT
            if causal:
                row = torch.arange(i, i + qs.shape[2], device=s.device)[:, None] + k - n
                column = torch.arange(j, j + s.shape[-1], device=s.device)
                s = s.masked_fill(column > row, -math.inf)
            new = torch.maximum(m, s.amax(-1))
            safe = new.masked_fill(new == -math.inf, 0)
            e, old = torch.exp(s - safe[..., None]), torch.exp(m - safe)
            l = (l * old if shrink_total else l) + e.sum(-1)
            o = (o * old[..., None] if shrink_output else o) + e @ value[:, :, j : j + tile].to(
                wide
            )
            m = new
        out[:, :, i : i + tile] = o / l.masked_fill(l == 0, 1)[..., None]
        lse[:, :, i : i + tile] = m + l.log()
    return out, lse


@wrong(
    "tiled_attention",
    "the total shrinks, the output does not",
    "L6-NO-RESCALE",
    "L6-OUTPUT-NOT-RESCALED",
)
def _(query, key, value, tile, causal=False):
    return tiled(query, key, value, tile, causal, True, False)


@wrong(
    "tiled_attention",
    "the output shrinks, the total does not",
    "L6-NO-RESCALE",
    "L6-TOTAL-NOT-RESCALED",
)
def _(query, key, value, tile, causal=False):
    return tiled(query, key, value, tile, causal, False, True)


@wrong(
    "contrastive_loss",
    "the temperature once more, in front of the loss",
    "C-PAIRS-TEMPERATURE-IN-FRONT",
)
def _(images, texts, temperature):
    a, b = F.normalize(images, dim=1), F.normalize(texts, dim=1)
    s = a @ b.t() / temperature
    y = torch.arange(len(s))
    return temperature * (F.cross_entropy(s, y) + F.cross_entropy(s.t(), y)) / 2


@wrong(
    "contrastive_loss",
    "the targets are how alike the pictures and the texts are",
    "C-PAIRS-SOFT-TARGETS",
)
def _(images, texts, temperature):
    a, b = F.normalize(images, dim=1), F.normalize(texts, dim=1)
    s = a @ b.t() / temperature
    goal = ((a @ a.t() + b @ b.t()) / 2 / temperature).softmax(-1)
    one = -(goal * s.log_softmax(-1)).sum(-1)
    two = -(goal.t() * s.t().log_softmax(-1)).sum(-1)
    return (one + two).mean() / 2


# --- Half of a known mistake, or a known one to the other side ------------------------------------


@wrong("rotate", "places begin at -1", "C-FROM-MINUS-ONE", "C-FROM-ONE")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    speed = base ** (-torch.arange(0, d, 2).double() / d)
    a = (positions.double() - 1)[..., None] * speed
    c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
    p, q = x[..., 0::2], x[..., 1::2]
    return torch.stack((p * c - q * s, p * s + q * c), -1).flatten(-2)


@wrong("alibi_bias", "the neighbors are at distance 0", "C-ALIBI-FROM-ZERO-UP")
def _(num_heads, query_length, key_length):
    def powers(h):
        return [2 ** (-8 * (i + 1) / h) for i in range(h)]

    h = 2 ** int(math.log2(num_heads))
    m = powers(h)
    if h < num_heads:
        m = m + powers(2 * h)[0::2][: num_heads - h]
    i = torch.arange(key_length - query_length, key_length)[:, None]
    away = (i - torch.arange(key_length)).abs()
    return -torch.tensor(m)[:, None, None] * (away - 1)


@wrong(
    "linear_step",
    "the table is a mean of old and new, the sum of the keys is right",
    "L-STATE-MEAN",
)
def _(state, query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    table, keys = torch.einsum("...d,...v->...dv", k, value), k
    if state is not None:
        table, keys = (state[0] + table) / 2, state[1] + keys
    below = (q * keys).sum(-1, keepdim=True)
    return torch.einsum("...d,...dv->...v", q, table) / below, (table, keys)


@wrong("linear_step", "the table of before gets no gradient", "L-DETACHED")
def _(state, query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    table, keys = torch.einsum("...d,...v->...dv", k, value), k
    if state is not None:
        table, keys = state[0].detach() + table, state[1] + keys
    below = (q * keys).sum(-1, keepdim=True)
    return torch.einsum("...d,...dv->...v", q, table) / below, (table, keys)


def sines(n, h, first=0, twice=1):
    i = torch.arange(h)
    angle = torch.arange(first, n + first).double()[:, None] / 10000.0 ** (twice * 2 * (i // 2) / h)
    return torch.where(i % 2 == 0, angle.sin(), angle.cos()).float()


@wrong("positions_2d", "columns are counted from 1, rows from 0", "C-2D-FROM-ONE")
def _(rows, columns, width):
    h = width // 2
    r, c = sines(rows, h), sines(columns, h, first=1)
    return torch.cat([r.repeat_interleave(columns, 0), c.repeat(rows, 1)], 1)


@wrong("positions_2d", "the exponent of the rows is twice as large", "C-2D-EXPONENT-TWICE")
def _(rows, columns, width):
    h = width // 2
    r, c = sines(rows, h, twice=2), sines(columns, h)
    return torch.cat([r.repeat_interleave(columns, 0), c.repeat(rows, 1)], 1)


@wrong("positions_2d", "places begin at -1", "C-2D-FROM-ONE")
def _(rows, columns, width):
    h = width // 2
    r, c = sines(rows, h, first=-1), sines(columns, h, first=-1)
    return torch.cat([r.repeat_interleave(columns, 0), c.repeat(rows, 1)], 1)


@wrong("contrastive_loss", "the texts' side forgets the temperature", "C-PAIRS-NO-TEMPERATURE")
def _(images, texts, temperature):
    a, b = F.normalize(images, dim=1), F.normalize(texts, dim=1)
    s, y = a @ b.t(), torch.arange(len(a))
    return (F.cross_entropy(s / temperature, y) + F.cross_entropy(s.t(), y)) / 2


@wrong("contrastive_loss", "pictures are normalized along the batch", "C-PAIRS-NORM-OF-COLUMNS")
def _(images, texts, temperature):
    a, b = F.normalize(images, dim=0), F.normalize(texts, dim=1)
    s, y = a @ b.t() / temperature, torch.arange(len(a))
    return (F.cross_entropy(s, y) + F.cross_entropy(s.t(), y)) / 2


@wrong(
    "grouped_query_attention", "keys by repeat, values by repeat_interleave", "G-REPEAT", "G-ORDER"
)
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    return attention(query, key.repeat(1, g, 1, 1), value.repeat_interleave(g, 1), mask)


@wrong(
    "grouped_query_attention", "values by repeat, keys by repeat_interleave", "G-REPEAT", "G-ORDER"
)
def _(query, key, value, mask=None):
    g = query.shape[1] // key.shape[1]
    return attention(query, key.repeat_interleave(g, 1), value.repeat(1, g, 1, 1), mask)


@wrong("extend", "new values go in front, new keys behind", "K-NEW-FIRST")
def _(cache, key, value):
    if cache is None:
        return key, value
    return torch.cat([cache[0], key], -2), torch.cat([value, cache[1]], -2)


@wrong("extend", "the kept keys are detached, the values are not", "C-DETACHED")
def _(cache, key, value):
    if cache is None:
        return key, value
    return torch.cat([cache[0].detach(), key], -2), torch.cat([cache[1], value], -2)


@wrong("extend", "the oldest key makes room, the values all stay", "K-ROLLING")
def _(cache, key, value):
    if cache is None:
        return key, value
    n = cache[0].shape[-2]
    return torch.cat([cache[0], key], -2)[..., -n:, :], torch.cat([cache[1], value], -2)


@wrong(
    "byte_pairs",
    "among equals the youngest left piece wins, then the oldest right one",
    "B-YOUNGEST",
)
def _(words, num_merges):
    parts = {w: list(w) for w in words}
    born = {c: i for i, c in enumerate(sorted({c for w in words for c in w}))}
    merges = []
    for _ in range(num_merges):
        count = Counter()
        for w, p in parts.items():
            for pair in zip(p, p[1:]):
                count[pair] += words[w]
        if not count:
            return merges
        best = max(count, key=lambda p: (count[p], born[p[0]], -born[p[1]]))
        merges.append(best)
        born.setdefault(best[0] + best[1], len(born))
        for w, p in parts.items():
            new, i = [], 0
            while i < len(p):
                if tuple(p[i : i + 2]) == best:
                    new.append(p[i] + p[i + 1])
                    i += 2
                else:
                    new.append(p[i])
                    i += 1
            parts[w] = new
    return merges


@wrong("relative_scores", "the table's term is divided by the root twice", "C-SHAW-SCALED-HALF")
def _(query, key, table):
    q, k, d = query.shape[-2], key.shape[-2], query.shape[-1]
    c = len(table) // 2
    o = (torch.arange(k)[None, :] - torch.arange(k - q, k)[:, None]).clamp(-c, c) + c
    t = (query[..., :, None, :] * table[o]).sum(-1)
    return query @ key.mT / math.sqrt(d) + t / d


@wrong(
    "merge", "e to the common maximum minus the own one, for the second part only", "L6-UPSIDE-DOWN"
)
def _(one, two):
    (w1, m1, t1), (w2, m2, t2) = one, two
    m = torch.maximum(m1, m2)
    safe = m.masked_fill(m == -math.inf, 0)
    a = torch.exp(m1 - safe)
    b = torch.where(m2 == -math.inf, 0, torch.exp(safe - m2))
    return a[..., None] * w1 + b[..., None] * w2, m, a * t1 + b * t2


wrong(
    "LatentAttention", "heads of the content are read across, the turned ones not", "H-VIEW-SPLIT"
)(
    latent(
        HEAD_BY_HEAD,
        (
            "q = self.q_proj(x).view(b, n, h, d).transpose(1, 2)",
            "q = self.q_proj(x).view(b, h, n, d)",
        ),
    )
)


@wrong(
    "induction_score",
    "the mean is over one row too many below: n - period + 1",
    "I-DIVIDED-BY-N",
    "I-ONE-ROW-MORE",
)
def _(weights, period):
    n = weights.shape[-1]
    found = [weights[..., i, i - period + 1] for i in range(period, n)]
    return torch.stack(found, -1).sum(-1) / (n - period + 1)


@wrong("rollout", "the residual has weight 1 and the mean a half", "I-HALF-OF-ONE")
def _(weights):
    r = None
    for w in weights:
        a = w.mean(1) / 2 + torch.eye(w.shape[-1], dtype=w.dtype)
        r = a if r is None else a @ r
    return r


@wrong("span_mask", "the word itself is at distance -1", "A-DISTANCE-FROM-1")
def _(distance, span, ramp):
    return ((ramp + span - (distance - 1)) / ramp).clamp(0, 1)


@wrong(
    "sinusoidal_positions", "only the cosines have twice the exponent", "P-FREQ", "C-EXPONENT-TWICE"
)
def _(n, m):
    i = torch.arange(m)
    e = (i // 2) * 2 / m * torch.where(i % 2 == 0, 1, 2)
    a = torch.arange(n)[:, None].double() / 10000.0 ** e.double()
    return torch.where(i % 2 == 0, a.sin(), a.cos()).float()


# --- Two mistakes, each known alone ---------------------------------------------------------------


@wrong(
    "masked_words",
    "asks for a share of each row exactly; only masks are asked for",
    *both("W-EXACT-NUMBER", "W-ONLY-MASKS-ASKED"),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    b, n = tokens.shape
    many = round(n * share)
    ask = torch.zeros(b, n, dtype=torch.bool)
    for row in range(b):
        ask[row, torch.randperm(n, generator=rng)[:many]] = True
    p = torch.rand(b, n, generator=rng)
    masked, other = ask & (p < 0.8), ask & (p >= 0.8) & (p < 0.9)
    x = tokens.clone()
    x[masked] = mask_id
    x[other] = torch.randint(vocabulary_size, (b, n), generator=rng)[other]
    return x, torch.where(masked, tokens, -100)


@wrong(
    "masked_words",
    "every word asked for is masked; the targets are 0 elsewhere",
    *both("W-ALL-MASKED", "W-NOTHING-IS-ZERO"),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    ask = torch.rand(tokens.shape, generator=rng) < share
    return tokens.masked_fill(ask, mask_id), tokens * ask


@wrong(
    "masked_words",
    "one tenth of all words is exchanged; writes into tokens",
    *both("W-EXCHANGED-ANYWHERE", "W-EDITS-TOKENS"),
)
def _(tokens, share, mask_id, vocabulary_size, rng):
    before = tokens.clone()
    ask = torch.rand(tokens.shape, generator=rng) < share
    masked = ask & (torch.rand(tokens.shape, generator=rng) < 0.8)
    tokens[masked] = mask_id
    other = ~masked & (torch.rand(tokens.shape, generator=rng) < 0.1)
    tokens[other] = torch.randint(vocabulary_size, tokens.shape, generator=rng)[other]
    return tokens, before.masked_fill(~ask, -100)


@wrong(
    "sample",
    "logits times temperature; the word that reaches top_p is left out",
    *both("P-TEMPERATURE-TIMES", "P-TOP-P-WITHOUT-THE-LAST"),
)
def _(logits, temperature=1.0, top_k=None, top_p=None):
    z = logits * temperature
    if top_k is not None:
        z = z.masked_fill(z < z.topk(min(top_k, z.shape[1])).values[:, -1:], -torch.inf)
    p = z.softmax(-1)
    if top_p is not None:
        s, o = p.sort(descending=True)
        out = s.cumsum(-1) > top_p
        out[:, 0] = False
        p = p.masked_fill(torch.zeros_like(out).scatter(1, o, out), 0.0)
    return torch.multinomial(p, 1).squeeze(1)


@wrong("sample", "top_k is not used; one draw for all rows", *both("P-TOP-K-IGNORED", "P-ONE-DRAW"))
def _(logits, temperature=1.0, top_k=None, top_p=None):
    p = (logits / temperature).softmax(-1)
    if top_p is not None:
        s, o = p.sort(descending=True)
        keep = s.cumsum(-1) - s < top_p
        p = p * torch.zeros_like(keep).scatter(1, o, keep)
    p = p / p.sum(-1, keepdim=True)
    u = torch.rand(())
    return (p.cumsum(-1) < u).sum(-1).clamp(max=p.shape[1] - 1)


def stacked(step, state, bos, eos, width, max_length, *, start, freeze, pick, tile=False):
    b = len(state)
    state = (
        state.repeat(width, *[1] * (state.ndim - 1)) if tile else state.repeat_interleave(width, 0)
    )
    word = torch.full((b * width,), bos)
    total = start(b, width)
    text = torch.zeros(b, width, 0, dtype=torch.long)
    ended = torch.zeros(b, width, dtype=torch.bool)
    for _ in range(max_length):
        logits, state = step(word, state)
        lp = logits.log_softmax(-1).reshape(b, width, -1)
        lp = freeze(lp, ended)
        V = lp.shape[-1]
        total, place = (total[..., None] + lp).reshape(b, -1).topk(width, dim=-1)
        old, new = place // V, place % V
        text = torch.cat(
            [text.gather(1, old[..., None].expand(-1, -1, text.shape[-1])), new[..., None]], -1
        )
        ended = ended.gather(1, old) | (new == eos)
        state = state[(old + width * torch.arange(b)[:, None]).flatten()]
        word = new.flatten()
        if ended[:, 0].all():
            break
    return pick(text, total, ended)


def first_only(b, width):
    t = torch.full((b, width), -math.inf)
    t[:, 0] = 0
    return t


def silent(eos):
    def freeze(lp, ended):
        only = torch.full_like(lp, -math.inf)
        only[..., eos] = 0
        return torch.where(ended[..., None], only, lp)

    return freeze


@wrong(
    "beam_search",
    "all beginnings start with total 0; states are tiled",
    *both("B-ALL-ALIKE", "B-TILED"),
)
def _(step, state, bos, eos, width, max_length):
    return stacked(
        step, state, bos, eos, width, max_length, tile=True, freeze=silent(eos),
        start=lambda b, w: torch.zeros(b, w), pick=lambda text, total, ended: text[:, 0],
    )  # fmt: skip


@wrong(
    "beam_search",
    "goes on after eos; the last of the beam is returned",
    *both("B-GOES-ON-AFTER-EOS", "B-LAST-OF-THE-BEAM"),
)
def _(step, state, bos, eos, width, max_length):
    return stacked(
        step, state, bos, eos, width, max_length, freeze=lambda lp, ended: lp,
        start=first_only, pick=lambda text, total, ended: text[:, -1],
    )  # fmt: skip


@wrong(
    "beam_search",
    "all beginnings start with total 0; 0 after eos",
    *both("B-ALL-ALIKE", "B-ZERO-AFTER-EOS"),
)
def _(step, state, bos, eos, width, max_length):
    def pick(text, total, ended):
        best = text[:, 0]
        late = (best == eos).cumsum(1) - (best == eos).long() > 0
        return best.masked_fill(late, 0)

    return stacked(
        step, state, bos, eos, width, max_length, freeze=silent(eos),
        start=lambda b, w: torch.zeros(b, w), pick=pick,
    )  # fmt: skip


@wrong(
    "window_mask",
    "looks back only; the global tokens are only looked at",
    *both("W-PAST-ONLY", "W-GLOBAL-LOOKED-AT"),
)
def _(n, width, global_tokens=0):
    m = torch.ones(n, n).tril().triu(-width).bool()
    m[:, :global_tokens] = True
    return m


@wrong(
    "window_mask",
    "less than width, the word itself stays; one global token too many",
    *both("W-WIDTH-STRICT", "W-GLOBAL-ONE-MORE"),
)
def _(n, width, global_tokens=0):
    i = torch.arange(n)
    m = ((i[:, None] - i).abs() < width) | torch.eye(n, dtype=torch.bool)
    if global_tokens > 0:
        m[: global_tokens + 1] = True
        m[:, : global_tokens + 1] = True
    return m


@wrong(
    "window_mask",
    "the window of half the width; global tokens at the end",
    *both("W-WIDTH-WHOLE", "W-GLOBAL-LAST"),
)
def _(n, width, global_tokens=0):
    i = torch.arange(n)
    m = (i[:, None] - i).abs() <= width // 2
    if global_tokens:
        m[-global_tokens:] = True
        m[:, -global_tokens:] = True
    return m


@wrong(
    "reach", "what was known is forgotten; columns are who hears", *both("R-FORGETS", "R-OTHER-WAY")
)
def _(mask, layers):
    r = torch.eye(len(mask))
    for _ in range(layers):
        r = ((mask.float().T @ r) > 0).float()
    return r > 0


@wrong("reach", "one layer less; 0 and 1 come back", *both("R-ONE-LESS", "R-NUMBERS"))
def _(mask, layers):
    a = mask | torch.eye(len(mask), dtype=torch.bool)
    r = torch.eye(len(mask)).long()
    for _ in range(layers - 1):
        r = ((a.long() @ r) > 0).long()
    return r


@wrong("reach", "one layer more; nobody hears of oneself", *both("R-ONE-MORE", "R-WITHOUT-ONESELF"))
def _(mask, layers):
    eye = torch.eye(len(mask), dtype=torch.bool)
    r = mask | eye
    for _ in range(layers):
        r = r | ((mask.float() @ r.float()) > 0)
    return r & ~eye


@wrong(
    "windowed_attention",
    "the window of half the width; scores are not scaled",
    *both("W-WIDTH-WHOLE", "D-NO-SCALE"),
)
def _(query, key, value, width):
    n, w = query.shape[-2], width // 2
    out = []
    for i in range(n):
        a, b = max(0, i - w), min(n, i + w + 1)
        s = query[..., i : i + 1, :] @ key[..., a:b, :].mT
        out.append(s.softmax(-1) @ value[..., a:b, :])
    return torch.cat(out, -2)


@wrong(
    "windowed_attention",
    "the slice ends too early; divided by d",
    *both("W-SLICE-END", "D-SCALE-DK"),
)
def _(query, key, value, width):
    n = query.shape[-2]
    out = []
    for i in range(n):
        a, b = max(0, i - width), min(n, i + width)
        b = max(b, a + 1)
        s = query[..., i : i + 1, :] @ key[..., a:b, :].mT / query.shape[-1]
        out.append(s.softmax(-1) @ value[..., a:b, :])
    return torch.cat(out, -2)


@wrong(
    "windowed_attention",
    "looks back only; keys are averaged",
    *both("W-PAST-ONLY", "D-KEY-AS-VALUE"),
)
def _(query, key, value, width):
    n = query.shape[-2]
    out = []
    for i in range(n):
        a = max(0, i - width)
        s = query[..., i : i + 1, :] @ key[..., a : i + 1, :].mT / math.sqrt(query.shape[-1])
        out.append(s.softmax(-1) @ key[..., a : i + 1, :])
    return torch.cat(out, -2)


@wrong("linear_attention", "elu without + 1; an epsilon below", *both(("L-ELU",), ("L-EPSILON",)))
def _(query, key, value):
    q, k = F.elu(query), F.elu(key)
    w = torch.tril(q @ k.mT)
    return w @ value / (w.sum(-1, keepdim=True) + 1e-3)


@wrong("linear_attention", "not causal; relu with 1e-6", *both("L-LINEAR-CAUSAL", "L-RELU"))
def _(query, key, value):
    q, k = F.relu(query) + 1e-6, F.relu(key) + 1e-6
    table = k.mT @ value
    return q @ table / (q @ k.sum(-2)[..., None])


@wrong(
    "linear_attention",
    "only the keys get features; without the word itself",
    *both("L-KEYS-ONLY", "L-NOT-ITSELF"),
)
def _(query, key, value):
    k = F.elu(key) + 1
    w = torch.tril(query @ k.mT, -1)
    return w @ value / w.sum(-1, keepdim=True)


@wrong("positions_2d", "columns first; places from 1", *both("C-2D-COLUMN-FIRST", "C-2D-FROM-ONE"))
def _(rows, columns, width):
    h = width // 2
    r, c = sines(rows, h, first=1), sines(columns, h, first=1)
    return torch.cat([c.repeat(rows, 1), r.repeat_interleave(columns, 0)], 1)


@wrong(
    "positions_2d",
    "down the columns first; the exponent twice as large",
    *both("C-2D-DOWN-FIRST", "C-2D-EXPONENT-TWICE"),
)
def _(rows, columns, width):
    h = width // 2
    r, c = sines(rows, h, twice=2), sines(columns, h, twice=2)
    return torch.cat([r.repeat(columns, 1), c.repeat_interleave(rows, 0)], 1)


@wrong(
    "positions_2d",
    "all cosines behind the sines; places as a share",
    *both("C-2D-SINES-FIRST", "C-2D-SHARE"),
)
def _(rows, columns, width):
    def table(n, h):
        e = 10000.0 ** (-torch.arange(0, h, 2) / h)
        a = (torch.arange(n) / n)[:, None] * e
        return torch.cat([a.sin(), a.cos()[:, : h // 2]], 1)

    h = width // 2
    return torch.cat(
        [table(rows, h).repeat_interleave(columns, 0), table(columns, h).repeat(rows, 1)], 1
    )


def without(model, layer, hook):
    model = copy.deepcopy(model)
    attention_in(model, layer).out_proj.register_forward_pre_hook(hook)
    return model


@wrong("ablated", "heads count from 1; the value is added", *both("I-HEAD-FROM-ONE", "I-ADDED"))
def _(model, layer, head, value=0.0):
    d = attention_in(model, layer).out_proj.in_features // attention_in(model, layer).num_heads

    def hook(_, args):
        x = args[0].clone()
        x[..., (head - 1) * d : head * d or None] += value
        return (x,)

    return without(model, layer, hook)


@wrong(
    "linear_step",
    "the query is divided by the root of d; nothing to divide by",
    *both("L-SCALED", "L-LINEAR-NORM"),
)
def _(state, query, key, value):
    q, k = F.elu(query / math.sqrt(query.shape[-1])) + 1, F.elu(key) + 1
    table, keys = k[..., None] * value[..., None, :], k
    if state is not None:
        table, keys = state[0] + table, state[1] + keys
    return (q[..., None] * table).sum(-2), (table, keys)


@wrong(
    "gated_cross_attention",
    "a sigmoid for a gate; the mask is not used",
    *both("C-GATE-SIGMOID", "M-IGNORED"),
)
def _(text, memory, attention, gate, memory_mask=None):
    found, w = attention(text, memory, memory, None)
    return text + torch.sigmoid(gate) * found, w


@wrong(
    "contrastive_loss",
    "pictures only; times the temperature",
    *both("C-PAIRS-PICTURES-ONLY", "C-PAIRS-TIMES"),
)
def _(images, texts, temperature):
    s = F.normalize(images) @ F.normalize(texts).T * temperature
    return F.cross_entropy(s, torch.arange(len(s)))


@wrong("rotate", "the other layout; places from 1", *both("P-ROPE-LAYOUT", "C-FROM-ONE"))
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    a = (positions + 1).double()[..., None] * base ** (-torch.arange(0, d, 2).double() / d)
    c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
    p, q = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([p * c - q * s, p * s + q * c], -1)


@wrong(
    "patches",
    "width before height; colors last within a patch",
    *both("C-PATCH-SIZE-TURNED", "C-PATCH-COLOR-LAST"),
)
def _(image, size):
    w, h = size
    b, c, y, x = image.shape
    t = image.unfold(2, h, h).unfold(3, w, w)
    return t.permute(0, 2, 3, 4, 5, 1).reshape(b, -1, h * w * c)
