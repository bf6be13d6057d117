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


MENDED = tuple(each.id for each in corpus.all)
