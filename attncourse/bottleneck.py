"""The bottleneck (chapter 1): a sentence squeezed into one vector and unfolded again."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from attncourse.validation import (
    checked,
    validate_axes,
    validate_counts,
    validate_lengths,
    validate_pair,
    validate_sizes,
)

# --- Words into pieces ----------------------------------------------------------------------------


def byte_pairs(words: dict[str, int], num_merges: int) -> list[tuple[str, str]]:
    """Learn byte-pair encoding: merge the most frequent pair of neighbors, again and again.

    Among equally frequent pairs wins the one whose left piece is the older, then the right one:
    letters come first, in the order of their code points, then pieces in the order of their birth.
    (So does the library `tokenizers`, and learns the same pairs.)

    Args:
        words: how often each word occurs.
        num_merges: how many pairs to merge at most.

    Returns:
        The merged pairs, in order.

    Raises:
        TypeError, ValueError: `words` is no mapping from a word to a whole number of at least 0,
            or `num_merges` no such number.

    Source: Sennrich et al. (2016), "Neural Machine Translation of Rare Words with Subword Units",
    algorithm 1.
    """
    validate_counts(words)
    validate_sizes("", 0, num_merges=num_merges)
    pieces = {word: list(word) for word in words}
    age = {letter: place for place, letter in enumerate(sorted(set().union(*words)))}
    merges = []
    for _ in range(num_merges):
        pairs = Counter()
        for word, parts in pieces.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]))
        age.setdefault("".join(best), len(age))  # a piece that is born twice keeps its age
        merges.append(best)
        pieces = {word: _merge(parts, best) for word, parts in pieces.items()}
    return merges


def apply_merges(word: str, merges: Sequence[tuple[str, str]]) -> list[str]:
    """Cut a word into pieces: its letters, merged in the order in which the pairs were learned."""
    pieces = list(word)
    for pair in merges:
        pieces = _merge(pieces, pair)
    return pieces


def _merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    if pair[0] not in pieces:  # so it is with most words
        return pieces
    merged = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece  # longer than the pair's first half, so it merges only once
        else:
            merged.append(piece)
    return merged


# --- One step of a recurrent network --------------------------------------------------------------
# Weights as torch keeps them: W_input (gates·hidden, width), W_hidden (gates·hidden, hidden).


def rnn_step(
    x: Float[Tensor, "b d"],
    h: Float[Tensor, "b hidden"],
    W_input: Float[Tensor, "hidden d"],
    W_hidden: Float[Tensor, "hidden hidden"],
    bias: Float[Tensor, " hidden"],
) -> Float[Tensor, "b hidden"]:
    """Take in one token: h′ = tanh(W x + U h + b).

    Source: Elman (1990), "Finding Structure in Time".
    """
    return torch.tanh(x @ W_input.T + h @ W_hidden.T + bias)


def lstm_step(
    x: Float[Tensor, "b d"],
    state: tuple[Float[Tensor, "b hidden"], Float[Tensor, "b hidden"]],
    W_input: Float[Tensor, "gates d"],
    W_hidden: Float[Tensor, "gates hidden"],
    bias: Float[Tensor, " gates"],
) -> tuple[Float[Tensor, "b hidden"], Float[Tensor, "b hidden"]]:
    """Take in one token and keep a memory cell c beside h: c′ = f·c + i·g, h′ = o·tanh(c′).

    The four gates (input i, forget f, candidate g, output o) stand below each other in the weights.

    Source: Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al. (2000).
    """
    h, c = state
    i, f, g, o = (x @ W_input.T + h @ W_hidden.T + bias).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(
    x: Float[Tensor, "b d"],
    h: Float[Tensor, "b hidden"],
    W_input: Float[Tensor, "gates d"],
    W_hidden: Float[Tensor, "gates hidden"],
    bias_input: Float[Tensor, " gates"],
    bias_hidden: Float[Tensor, " gates"],
) -> Float[Tensor, "b hidden"]:
    """Take in one token: h′ = z·h + (1 − z)·n, a blend of the old state and a candidate n.

    The gates (reset r, update z, candidate n) stand below each other in the weights. The reset
    gate acts on U h + b, as in torch, hence two biases.

    Source: Cho et al. (2014), "Learning Phrase Representations using RNN Encoder-Decoder".
    """
    r_x, z_x, n_x = (x @ W_input.T + bias_input).chunk(3, dim=-1)
    r_h, z_h, n_h = (h @ W_hidden.T + bias_hidden).chunk(3, dim=-1)
    r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    n = torch.tanh(n_x + r * n_h)
    return z * h + (1 - z) * n


# --- From a sentence to a vector and back ---------------------------------------------------------


@checked
def encode(
    tokens: Int[Tensor, "b n"],
    lengths: Int[Tensor, " b"],
    embedding: nn.Embedding,
    gru: nn.GRU,
) -> Float[Tensor, "b hidden"]:
    """Read each sentence into one vector: the state after its last real token.

    Args:
        tokens: (b n) ids, padded on the right with any id of the vocabulary: it does not matter
            which.
        lengths: (b), real tokens in each sentence, 1 to n.
        embedding: turns an id into a vector.
        gru: one layer, one direction, `batch_first=True`.

    Raises:
        TypeError: tokens or lengths are not whole numbers.
        ValueError: a length below 1 or above n, or a GRU of another kind.

    Source: Cho et al. (2014), section 2.2; Sutskever et al. (2014), section 2.
    """
    validate_lengths(tokens, lengths)
    if gru.num_layers != 1 or gru.bidirectional or not gru.batch_first:
        raise ValueError("gru must have one layer, one direction and batch_first=True")
    states, _ = gru(embedding(tokens))  # b n hidden: the state after every token, padding too
    return states[torch.arange(len(tokens), device=states.device), lengths.long() - 1]


@checked
def teacher_inputs(target: Int[Tensor, "b n"], bos: int) -> Int[Tensor, "b n"]:
    """Shift the target to the right: the decoder sees word t − 1 while it predicts word t.

    Args:
        target: (b n) ids to be predicted.
        bos: id that stands before the first word.

    Returns:
        (b n): `bos`, then all words but the last.

    Source: Williams and Zipser (1989), teacher forcing.
    """
    return torch.cat([torch.full_like(target[:, :1], bos), target[:, :-1]], dim=1)


@checked
def sequence_loss(
    logits: Float[Tensor, "b n vocab"], target: Int[Tensor, "b n"], pad: int
) -> Float[Tensor, ""]:
    """Mean cross-entropy over the real tokens: −log p(target), padding left out.

    Args:
        logits: (b n vocab), scores of every word at every position.
        target: (b n) ids.
        pad: the id that fills up short rows; its positions do not count.

    Returns:
        A differentiable scalar, in nats a token; NaN if there is nothing but padding.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit.
    """
    logits = rearrange(logits, "b n vocab -> b vocab n")
    return F.cross_entropy(logits, target.long(), ignore_index=pad)


@torch.no_grad()
def greedy_decode(
    step: Callable,
    state: object,
    bos: int,
    eos: int,
    max_length: int,
    batch_size: int,
) -> Int[Tensor, "b n"]:
    """Write word after word, each time the likeliest, until every row has said `eos`.

    Args:
        step: `step(token (b), state) -> (logits (b vocab), state)`.
        state: what `step` gets first; anything. If it is a tensor, or a tuple that begins with
            one, the words are written where that tensor is.
        bos: id that stands before the first word.
        eos: id that closes a sentence.
        max_length: words in a row at most.
        batch_size: rows.

    Returns:
        (b, ≤ max_length) ids without `bos`; after a row's first `eos` only `eos`.

    Raises:
        TypeError: `step` returns no pair.
        ValueError: `max_length` < 1, or logits that are not (b vocab).
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1; got {max_length}")
    first = state[0] if isinstance(state, tuple) and state else state
    token = torch.full((batch_size,), bos, device=getattr(first, "device", None))
    finished = torch.zeros_like(token, dtype=torch.bool)
    written = []
    for _ in range(max_length):
        returned = step(token, state)
        validate_pair("step(token, state)", returned, "logits, state")
        logits, state = returned
        validate_axes(token=(token, "b", "whole"), logits=(logits, "b vocab"))
        token = logits.argmax(-1).masked_fill(finished, eos)
        finished = finished | (token == eos)
        written.append(token)
        if finished.all():
            break
    return torch.stack(written, dim=1)


def exact_match_by_length(
    predictions: Sequence[Sequence], targets: Sequence[Sequence], lengths: Sequence[int]
) -> dict[int, float]:
    """Share of sentences translated without a single error, for every length.

    Args:
        predictions: a list of tokens for each sentence.
        targets: the right translation of each.
        lengths: what to sort each by, such as the number of words in the source.

    Returns:
        Length -> share between 0 and 1, shortest first.

    Raises:
        ValueError: the three lists differ in length.
    """
    if not len(predictions) == len(targets) == len(lengths):
        raise ValueError(
            "one prediction, one target and one length a sentence: "
            f"got {len(predictions)}, {len(targets)} and {len(lengths)}"
        )
    hits = defaultdict(list)
    for prediction, target, length in zip(predictions, targets, lengths, strict=True):
        hits[int(length)].append(list(prediction) == list(target))
    return {length: sum(hits[length]) / len(hits[length]) for length in sorted(hits)}


class EncoderDecoder(nn.Module):
    """Translate through one vector: a GRU reads the source, another starts from its last state.

    Args:
        source_words: size of the source vocabulary.
        target_words: size of the target vocabulary.
        width: of a word's vector.
        hidden: of the state, the only thing that passes from source to target.
        pad: id that fills up short rows.

    Source: Sutskever et al. (2014), "Sequence to Sequence Learning with Neural Networks"; here with
    GRUs and without reversing the source.
    """

    def __init__(
        self, source_words: int, target_words: int, width: int = 64, hidden: int = 64, pad: int = 0
    ):
        super().__init__()
        self.pad = pad
        self.source_embedding = nn.Embedding(source_words, width)
        self.encoder = nn.GRU(width, hidden, batch_first=True)
        self.target_embedding = nn.Embedding(target_words, width)
        self.decoder = nn.GRU(width, hidden, batch_first=True)
        self.output = nn.Linear(hidden, target_words)

    def start(self, source: Int[Tensor, "b n"]) -> Float[Tensor, "b hidden"]:
        """Read the source; everything the decoder will ever know of it."""
        lengths = (source != self.pad).sum(-1)
        return encode(source, lengths, self.source_embedding, self.encoder)

    def step(
        self, word: Int[Tensor, " b"], state: Float[Tensor, "b hidden"]
    ) -> tuple[Float[Tensor, "b vocab"], Float[Tensor, "b hidden"]]:
        """Take in one target word; score the next."""
        inputs = rearrange(self.target_embedding(word), "b d -> b 1 d")
        _, state = self.decoder(inputs, rearrange(state, "b hidden -> 1 b hidden"))
        state = rearrange(state, "1 b hidden -> b hidden")
        return self.output(state), state

    def forward(
        self, source: Int[Tensor, "b n"], words: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t vocab"]:
        """Score the word after each of `words`, all in one pass (teacher forcing)."""
        state = rearrange(self.start(source), "b hidden -> 1 b hidden")
        states, _ = self.decoder(self.target_embedding(words), state)
        return self.output(states)
