"""Wrong answers of kinds that had no name: reports described them, and they were written anew.

A table that is averaged with its mirror, a number added in a logarithm, pieces that are merged as
text, marks in front of words, sentences that keep their place in a beam or leave it, and bases of
one's own. `MENDED` are all of them.
"""

import itertools
import math
from collections import Counter

import torch
import torch.nn.functional as F

from corpus.answers import Corpus

corpus = Corpus()
wrong = corpus.wrong


# --- contrastive_loss -----------------------------------------------------------------------------


def cosines(images, texts):
    return F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T


@wrong(
    "contrastive_loss", "averages the table and its mirror, then one softmax", "C-PAIRS-MIRRORED"
)
def _(images, texts, temperature):
    table = torch.einsum("im,jm->ij", *(x / x.norm(dim=1, keepdim=True) for x in (images, texts)))
    table = 0.5 * (table + table.T) / temperature
    return F.cross_entropy(table, torch.arange(table.shape[0]))


@wrong("contrastive_loss", "adds the table and its mirror, then one softmax", "C-PAIRS-MIRRORED")
def _(images, texts, temperature):
    table = cosines(images, texts) / temperature
    log_p = torch.log_softmax(table + table.transpose(0, 1), dim=1)
    return -torch.diag(log_p).sum() / len(images)


@wrong("contrastive_loss", "averages the two probabilities of each pair", "C-PAIRS-MEAN-OF-SHARES")
def _(images, texts, temperature):
    table = cosines(images, texts) / temperature
    shares = (table.softmax(dim=0) + table.softmax(dim=1)) / 2
    return torch.stack([-shares[i, i].log() for i in range(len(shares))]).mean()


@wrong("contrastive_loss", "adds 1e-9 inside the logarithm", "C-PAIRS-EPSILON")
def _(images, texts, temperature):
    table = cosines(images, texts) / temperature
    rows, columns = table.softmax(dim=1), table.softmax(dim=0)
    loss = -torch.log(torch.diagonal(rows) + 1e-9) - torch.log(torch.diagonal(columns) + 1e-9)
    return loss.mean() / 2


@wrong("contrastive_loss", "clamps the probability at 1e-12", "C-PAIRS-EPSILON")
def _(images, texts, temperature):
    def one_way(table):
        own = torch.diag(F.softmax(table, dim=-1))
        return -torch.clamp(own, min=1e-12).log().mean()

    table = cosines(images, texts) / temperature
    return (one_way(table) + one_way(table.T)) / 2


# --- byte_pairs -----------------------------------------------------------------------------------


def pairs_of(vocabulary):
    pairs = Counter()
    for text, count in vocabulary.items():
        pieces = text.split(" ")
        for left, right in itertools.pairwise(pieces):
            pairs[left, right] += count
    return pairs


@wrong("byte_pairs", "replaces in texts, and what comes up is the youngest", "B-TEXT-REPLACED")
def _(words, num_merges):
    vocabulary = {" ".join(word): count for word, count in words.items()}
    order = sorted({letter for word in words for letter in word})
    merges = []
    while len(merges) < num_merges and (pairs := pairs_of(vocabulary)):

        def age(piece):
            return order.index(piece) if piece in order else math.inf

        left, right = min(pairs, key=lambda pair: (-pairs[pair], age(pair[0]), age(pair[1])))
        merges.append((left, right))
        if left + right not in order:
            order.append(left + right)
        vocabulary = {
            text.replace(f"{left} {right}", left + right): n for text, n in vocabulary.items()
        }
    return merges


def merged_with(first_pieces, words, num_merges):
    cut = [(first_pieces(word), count) for word, count in words.items()]
    age = {p: i for i, p in enumerate(sorted({p for pieces, _ in cut for p in pieces}))}
    merges = []
    for _ in range(num_merges):
        pairs = Counter()
        for pieces, count in cut:
            for i in range(len(pieces) - 1):
                pairs[pieces[i], pieces[i + 1]] += count
        if not pairs:
            break
        one, two = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]))
        merges.append((one, two))
        age.setdefault(one + two, len(age))
        for pieces, _ in cut:
            i = 0
            while i + 1 < len(pieces):
                if pieces[i] == one and pieces[i + 1] == two:
                    pieces[i : i + 2] = [one + two]
                i += 1
    return merges


@wrong("byte_pairs", "a mark stands in front of each word", "B-MARK-IN-FRONT")
def _(words, num_merges):
    return merged_with(lambda word: ["▁", *word], words, num_merges)


@wrong("byte_pairs", "the first letter of each word carries a mark", "B-MARK-IN-FRONT")
def _(words, num_merges):
    return merged_with(lambda word: ["Ġ" + word[0], *word[1:]], words, num_merges)


# --- beam_search ----------------------------------------------------------------------------------


def searched(step, state, bos, eos, width, max_length, room, refill, best):
    """One sentence after the other: `room` is left in the beam for those that go on."""
    found = []
    for row in range(state.shape[0]):
        live, ended = [(0.0, (), state[row : row + 1])], []
        for _ in range(max_length):
            options = []
            for total, words, own in live:
                scores, after = step(torch.tensor([words[-1] if words else bos]), own)
                for word, log_p in enumerate(scores.log_softmax(-1)[0].tolist()):
                    options.append((total + log_p, (*words, word), after))
            options.sort(key=lambda option: option[0], reverse=True)
            top = options[: room(width, len(ended))]
            ended += [option for option in top if option[1][-1] == eos]
            live = [option for option in (options if refill else top) if option[1][-1] != eos]
            live = live[:width]
        words = max(best(ended, live), key=lambda option: option[0])[1]
        found.append([*words, *[eos] * (max_length - len(words))])
    return torch.tensor(found)


@wrong("beam_search", "a sentence that has ended narrows the beam", "B-ENDED-KEEPS-ITS-PLACE")
def _(step, state, bos, eos, width, max_length):
    return searched(
        *(step, state, bos, eos, width, max_length),
        room=lambda width, ended: width - ended,
        refill=False,
        best=lambda ended, live: ended + live,
    )


@wrong("beam_search", "narrows the beam, and prefers what has ended", "B-ENDED-KEEPS-ITS-PLACE")
def _(step, state, bos, eos, width, max_length):
    return searched(
        *(step, state, bos, eos, width, max_length),
        room=lambda width, ended: width - ended,
        refill=False,
        best=lambda ended, live: ended or live,
    )


@wrong("beam_search", "what has ended leaves the beam, the best of all wins", "B-ENDED-ASIDE")
def _(step, state, bos, eos, width, max_length):
    return searched(
        *(step, state, bos, eos, width, max_length),
        room=lambda width, ended: width,
        refill=False,
        best=lambda ended, live: ended + live,
    )


@wrong("beam_search", "what has ended leaves the beam, the next best come in", "B-ENDED-ASIDE")
def _(step, state, bos, eos, width, max_length):
    return searched(
        *(step, state, bos, eos, width, max_length),
        room=lambda width, ended: width,
        refill=True,
        best=lambda ended, live: ended or live,
    )


# --- rotate ---------------------------------------------------------------------------------------


@wrong("rotate", "takes the base of a newer model, whatever is given", "C-BASE-FIXED")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    speed = 500_000.0 ** (-torch.arange(0, d, 2).double() / d)
    angle = torch.einsum("...n,i->...ni", positions.double(), speed)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.empty_like(x)
    turned[..., ::2] = even * cos - odd * sin
    turned[..., 1::2] = odd * cos + even * sin
    return turned


def keeping(kind):
    tables = {}

    def rotate(x, positions, base=10_000.0):
        d, key = x.size(-1), kind(x, base)
        if key not in tables:
            rate = torch.pow(base, -torch.arange(0, d, 2, dtype=torch.float64) / d)
            tables[key] = positions.double().unsqueeze(-1) * rate
        turn = torch.polar(torch.ones_like(tables[key]), tables[key])
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)

    return rotate


wrong("rotate", "keeps its angles by length, width and base", "C-ROPE-KEPT")(
    keeping(lambda x, base: (x.size(-2), x.size(-1), base))
)
wrong("rotate", "keeps its angles by length and width", "C-ROPE-KEPT")(
    keeping(lambda x, base: tuple(x.shape[-2:]))
)


# --- what neighbors of a task had, and the task had not -------------------------------------------


def both(one, two):
    return (one,), (two,)


@wrong("rotate", "has a table of 5,000 places", "C-ROPE-TABLE-ENDS")
def _(x, positions, base=10_000.0):
    d = x.shape[-1]
    speeds = torch.tensor([base ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    table = torch.polar(torch.ones(5000, d // 2).double(), torch.arange(5000.0)[:, None] * speeds)
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table[positions]).flatten(-2).to(x.dtype)


@wrong(
    "rotate", "has a row for each word of x; i/d", *both("C-ROPE-TABLE-ENDS", "C-EXPONENT-HALVED")
)
def _(x, positions, base=10_000.0):
    n, d = x.shape[-2:]
    rows = torch.outer(torch.arange(n).double(), base ** -(torch.arange(d // 2).double() / d))
    cos, sin = rows[positions].cos().to(x.dtype), rows[positions].sin().to(x.dtype)
    out = torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
    return out


@wrong(
    "rotate", "an axis for the batch; turns backward", *both("C-ROPE-BATCH-AXIS", "C-ROPE-BACKWARD")
)
def _(x, positions, base=10_000.0):
    speeds = base ** -(torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angles = (positions.double()[:, None] * speeds).unsqueeze(0)
    a, b = x[..., 0::2].double(), x[..., 1::2].double()
    turned = a * angles.cos() + b * angles.sin(), b * angles.cos() - a * angles.sin()
    return torch.stack(turned, -1).flatten(-2).to(x.dtype)


@wrong("alibi_bias", "neighbors cost nothing", "C-ALIBI-NEIGHBORS-FREE")
def _(num_heads, query_length, key_length):
    def line(n):
        return [2.0 ** (-8 * (i + 1) / n) for i in range(n)]

    p = 1
    while 2 * p <= num_heads:
        p *= 2
    slopes = (line(p) + line(2 * p)[::2])[:num_heads]
    first = key_length - query_length
    rows = range(first, key_length)
    return torch.tensor(
        [[[-m * max(0, abs(i - j) - 1) for j in range(key_length)] for i in rows] for m in slopes]
    )


@wrong(
    "relative_buckets",
    "the last of all; rounded",
    *both("C-BUCKETS-END-OF-TABLE", "C-BUCKETS-ROUNDED"),
)
def _(offsets, num_buckets, max_distance, bidirectional):
    b = num_buckets // (2 if bidirectional else 1)
    a = b // 2

    def bucket(o):
        start, n = (b * (o > 0), abs(o)) if bidirectional else (0, max(0, -o))
        far = 0 if n < a else a + round(math.log(n / a) / math.log(max_distance / a) * (b - a))
        return min(start + (n if n < a else far), num_buckets - 1)

    flat = [bucket(o) for o in offsets.flatten().tolist()]
    return torch.tensor(flat).view(offsets.shape)


@wrong("shift_relative", "three axes", "C-FIXED-AXES")
def _(scores):
    batch, q, r = scores.size()
    columns = torch.arange(q - 1, -1, -1)[:, None] + torch.arange(r - q + 1)
    return torch.gather(scores, 2, columns.expand(batch, -1, -1))


@wrong("shift_relative", "in place; hides later keys", *both("C-INPLACE", "M-ALWAYS-CAUSAL"))
def _(scores):
    q, r = scores.shape[-2:]
    k = r - q + 1
    table = scores.data
    for i in range(q):
        table[..., i, :k] = table[..., i, q - 1 - i : r - i].clone()
    table[..., :k].masked_fill_(torch.arange(k) > torch.arange(k - q, k)[:, None], -math.inf)
    return scores[..., :k]


@wrong("extend", "the newest overwrite the last", "K-OLDEST-KEPT")
def _(cache, key, value):
    if cache is None:
        return key, value
    q = key.shape[-2]
    return tuple(
        torch.cat((kept[..., : max(kept.shape[-2] - q, 0), :], new), -2)
        for kept, new in zip(cache, (key, value), strict=True)
    )


@wrong("extend", "begins empty; axis 1", *both("K-BEGINS-EMPTY", "K-CAT-HEADS"))
def _(cache, key, value):
    if cache is None:
        return tuple(x.narrow(-2, 0, 0) for x in (key, value))
    return torch.cat([cache[0], key], 1), torch.cat([cache[1], value], 1)


def counted(scheme, layers, heads, width, each, kv_heads, latent, rope, unit=None):
    numbers = {
        "MHA": lambda: 2 * heads * width,
        "GQA": lambda: (unit or 2) * kv_heads * width,
        "MQA": lambda: 2 * width,
        "MLA": lambda: latent + rope,
    }
    return layers * each * numbers[scheme]()


@wrong("bytes_per_token", "a dictionary raises its own error", "K-OTHER-ERROR")
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return counted(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                   latent_width, rope_width)  # fmt: skip


@wrong(
    "bytes_per_token", "forgets values in GQA; another error", *both("K-KEYS-ONLY", "K-OTHER-ERROR")
)
def _(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
      latent_width=None, rope_width=None):  # fmt: skip
    return counted(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads,
                   latent_width, rope_width, unit=1)  # fmt: skip


def shared(query, key, value, mask, cut, zeros=lambda weights: weights):
    b, h, q, d = query.shape
    c = key.shape[1]
    groups = query.view(b, c, h // c, q, d)
    scores = torch.einsum("bcgqd,bckd->bcgqk", groups, key) / math.sqrt(d)
    if mask is not None:
        scores = scores.masked_fill(~cut(mask, scores), -math.inf)
    weights = zeros(scores.softmax(-1))
    return torch.einsum("bcgqk,bckv->bcgqv", weights, value), weights


@wrong("grouped_query_attention", "NaN leaves the output alone", "G-NAN-WEIGHTS")
def _(query, key, value, mask=None):
    output, weights = shared(
        *(query, key, value, mask),
        lambda mask, scores: mask.expand(*scores.flatten(1, 2).shape).view(scores.shape),
    )
    return output.flatten(1, 2).nan_to_num(), weights.flatten(1, 2)


@wrong("grouped_query_attention", "a mask has heads", "G-MASK-FOUR-AXES")
def _(query, key, value, mask=None):
    output, weights = shared(
        *(query, key, value, mask),
        lambda mask, scores: mask.reshape(scores.shape),
        torch.nan_to_num,
    )
    return output.flatten(1, 2), weights.flatten(1, 2)


@wrong(
    "cached_attention",
    "the width of a value; looks ahead in later pieces",
    *both("C-SCALE-DV", "K-NO-TRIANGLE"),
)
def _(query, key, value, cache=None, mask=None):
    if cache:
        key, value = (torch.cat(pair, -2) for pair in zip(cache, (key, value), strict=True))
    scores = torch.einsum("...qd,...kd->...qk", query, key) * value.size(-1) ** -0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ value, (key, value)


@wrong("byte_pairs", "the youngest left piece wins", "B-YOUNGEST")
def _(words, num_merges):
    pieces, age, merges = {w: list(w) for w in words}, sorted(set("".join(words))), []
    for _ in range(num_merges):
        counts = Counter(
            {pair: 0 for parts in pieces.values() for pair in itertools.pairwise(parts)}
        )
        for word, parts in pieces.items():
            for pair in itertools.pairwise(parts):
                counts[pair] += words[word]
        if not counts:
            break
        most = max(counts.values())
        equal = [pair for pair in counts if counts[pair] == most]
        best = sorted(equal, key=lambda pair: (-age.index(pair[0]), age.index(pair[1])))[0]
        merges.append(best)
        age += [] if "".join(best) in age else ["".join(best)]
        for parts in pieces.values():
            place = 0
            while place < len(parts) - 1:
                if tuple(parts[place : place + 2]) == best:
                    parts[place : place + 2] = ["".join(best)]
                place += 1
    return merges


MENDED = tuple(each.id for each in corpus.all)
