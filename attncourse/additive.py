"""Additive attention (chapter 2): the decoder looks back at every word of the source."""

from collections.abc import Callable

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attncourse.scaled_dot_product import softmax
from attncourse.validation import checked, validate_lengths, validate_mask

# --- How well does each key fit the query? --------------------------------------------------------


@checked
def dot_scores(query: Float[Tensor, "b d"], keys: Float[Tensor, "b k d"]) -> Float[Tensor, "b k"]:
    """Score each key by its dot product with the query: q·kᵢ.

    Source: Luong et al. (2015), "Effective Approaches to Attention-based Neural Machine
    Translation", section 3.1, "dot".
    """
    return einsum(query, keys, "b d, b k d -> b k")


@checked
def general_scores(
    query: Float[Tensor, "b e"], keys: Float[Tensor, "b k d"], W: Float[Tensor, "e d"]
) -> Float[Tensor, "b k"]:
    """Score each key after turning the query into the keys' space: qᵀ W kᵢ.

    Source: Luong et al. (2015), section 3.1, "general".
    """
    return einsum(query, W, keys, "b e, e d, b k d -> b k")


@checked
def concat_scores(
    query: Float[Tensor, "b e"],
    keys: Float[Tensor, "b k d"],
    W: Float[Tensor, "e+d a"],
    v: Float[Tensor, " a"],
) -> Float[Tensor, "b k"]:
    """Score each key by a small network that reads query and key side by side: vᵀ tanh([q; kᵢ] W).

    Source: Luong et al. (2015), section 3.1, "concat".
    """
    query = query[:, None, :].expand(-1, keys.shape[1], -1)  # b k e: the same query for every key
    hidden = torch.tanh(torch.cat([query, keys], dim=-1) @ W)  # b k a
    return einsum(hidden, v, "b k a, a -> b k")


@checked
def additive_scores(
    query: Float[Tensor, "b e"],
    keys: Float[Tensor, "b k d"],
    W_query: Float[Tensor, "e a"],
    W_key: Float[Tensor, "d a"],
    v: Float[Tensor, " a"],
) -> Float[Tensor, "b k"]:
    """Score each key by a small network with one hidden layer: vᵀ tanh(q W_query + kᵢ W_key).

    Source: Bahdanau et al. (2015), "Neural Machine Translation by Jointly Learning to Align and
    Translate", section A.1.2.
    """
    projected_query = einsum(query, W_query, "b e, e a -> b a")
    projected_keys = einsum(keys, W_key, "b k d, d a -> b k a")
    hidden = torch.tanh(rearrange(projected_query, "b a -> b 1 a") + projected_keys)
    return einsum(hidden, v, "b k a, a -> b k")


# --- From scores to a context vector --------------------------------------------------------------


@checked
def attend(
    scores: Float[Tensor, "b k"],
    values: Float[Tensor, "b k v"],
    mask: Bool[Tensor, "b k"] | None = None,
) -> tuple[Float[Tensor, "b v"], Float[Tensor, "b k"]]:
    """Average the values by the softmax of their scores: Σᵢ wᵢ vᵢ.

    Args:
        scores: (b k), any real numbers.
        values: (b k v).
        mask: (b k), True = may be attended to; padding is False.

    Returns:
        context: (b v).
        weights: (b k); each row sums to one, or is all 0 where everything is masked.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit.

    Source: Bahdanau et al. (2015), equations 5 and 6.
    """
    if mask is None:
        weights = softmax(scores)
    else:
        validate_mask(mask, scores, tuple(scores.shape), "b k")
        weights = softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min))
        weights = weights.masked_fill(~mask, 0.0)  # changes only rows with nothing to attend to
    return einsum(weights, values, "b k, b k v -> b v"), weights


class ScoredAttention(nn.Module):
    """Attention with any of the four scores and the weights it needs; the values are the keys.

    Args:
        score: called as `score(query, keys, **weights)`.
        shapes: of each weight, by the name of the score's argument, such as W=(8, 16).
    """

    def __init__(self, score: Callable, **shapes: tuple[int, ...]):
        super().__init__()
        self.score = score
        self.weights = nn.ParameterDict(
            {name: torch.randn(shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
        )

    def forward(
        self,
        query: Float[Tensor, "b e"],
        keys: Float[Tensor, "b k d"],
        mask: Bool[Tensor, "b k"] | None = None,
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b k"]]:
        """Return context (b d) and weights (b k)."""
        return attend(self.score(query, keys, **self.weights), keys, mask)


class AdditiveAttention(nn.Module):
    """Additive attention with its weights; the values are the keys.

    Args:
        query_dim: width e of the query, in Bahdanau's decoder the previous state.
        key_dim: width d of a key, in Bahdanau's decoder an annotation.
        attention_dim: width a of the hidden layer.

    Source: Bahdanau et al. (2015), section 3.1 and A.1.2.
    """

    def __init__(self, query_dim: int, key_dim: int, attention_dim: int):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(
        self,
        query: Float[Tensor, "b e"],
        keys: Float[Tensor, "b k d"],
        mask: Bool[Tensor, "b k"] | None = None,
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b k"]]:
        """Return context (b d) and weights (b k)."""
        weights = self.W_query.weight.T, self.W_key.weight.T, self.v.weight[0]
        return attend(additive_scores(query, keys, *weights), keys, mask)


# --- The translator -------------------------------------------------------------------------------


@checked
def annotate(
    tokens: Int[Tensor, "b n"],
    lengths: Int[Tensor, " b"],
    embedding: nn.Embedding,
    gru: nn.GRU,
) -> Float[Tensor, "b n d"]:
    """Keep the state after *every* word: one annotation a word, 0 on padding.

    With a bidirectional GRU an annotation is the forward state followed by the backward state, so
    it knows the words on both sides. Packing keeps the backward GRU from starting on padding.

    Args:
        tokens: (b n) ids, padded on the right.
        lengths: (b), real tokens in each sentence, 1 to n.
        embedding: turns an id into a vector.
        gru: any `nn.GRU` with `batch_first=True`.

    Source: Bahdanau et al. (2015), section 3.2.
    """
    validate_lengths(tokens, lengths)
    packed = pack_padded_sequence(
        embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    states, _ = pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=tokens.shape[1])
    return states


class AttentionEncoderDecoder(nn.Module):
    """Chapter 1's translator, except that the decoder looks back before every word.

    Args:
        source_words: size of the source vocabulary.
        target_words: size of the target vocabulary.
        width: of a word's vector.
        hidden: of the states.
        attention: called as `attention(query (b hidden), keys (b k hidden), mask (b k))`; by
            default additive attention.
        pad: id that fills up short rows.

    Source: Bahdanau et al. (2015), section 3, with a GRU of one direction as encoder.
    """

    def __init__(
        self,
        source_words: int,
        target_words: int,
        width: int = 64,
        hidden: int = 64,
        attention: nn.Module | None = None,
        pad: int = 0,
    ):
        super().__init__()
        self.pad = pad
        self.source_embedding = nn.Embedding(source_words, width)
        self.encoder = nn.GRU(width, hidden, batch_first=True)
        self.target_embedding = nn.Embedding(target_words, width)
        self.attention = attention or AdditiveAttention(hidden, hidden, hidden)
        self.decoder = nn.GRUCell(width + hidden, hidden)
        self.output = nn.Linear(2 * hidden, target_words)

    def start(self, source: Int[Tensor, "b n"]) -> tuple[Tensor, Tensor, Tensor]:
        """Read the source: the last state, all annotations (b k d), and where real words stand."""
        mask = source != self.pad
        annotations = annotate(source, mask.sum(-1), self.source_embedding, self.encoder)
        last = mask.sum(-1) - 1
        state = annotations[torch.arange(len(source), device=source.device), last]
        return state, annotations, mask

    def look_and_step(
        self, word: Int[Tensor, " b"], state: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Float[Tensor, "b vocab"], tuple[Tensor, Tensor, Tensor], Float[Tensor, "b k"]]:
        """Take in one target word, look back, score the next; also say where it looked."""
        hidden, annotations, mask = state
        context, weights = self.attention(hidden, annotations, mask)
        inputs = torch.cat([self.target_embedding(word), context], dim=-1)
        hidden = self.decoder(inputs, hidden)
        logits = self.output(torch.cat([hidden, context], dim=-1))
        return logits, (hidden, annotations, mask), weights

    def step(self, word: Int[Tensor, " b"], state: tuple[Tensor, Tensor, Tensor]):
        """Take in one target word; score the next."""
        logits, state, _ = self.look_and_step(word, state)
        return logits, state

    def align(
        self, source: Int[Tensor, "b k"], words: Int[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b t vocab"], Float[Tensor, "b t k"]]:
        """Score the word after each of `words`, and return where each step looked."""
        state = self.start(source)
        logits, weights = [], []
        for word in words.unbind(dim=1):  # one after the other: each state needs the last
            scores, state, looked = self.look_and_step(word, state)
            logits.append(scores)
            weights.append(looked)
        return torch.stack(logits, dim=1), torch.stack(weights, dim=1)

    def forward(
        self, source: Int[Tensor, "b n"], words: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t vocab"]:
        """Score the word after each of `words` (teacher forcing)."""
        return self.align(source, words)[0]


class BidirectionalEncoderDecoder(AttentionEncoderDecoder):
    """The same with an encoder that reads in both directions.

    Each direction has half of a state's numbers, so every other layer keeps its size. The decoder
    starts from what each direction read last.

    Args:
        source_words, target_words, width: as above.
        hidden: of the states; an even number.
        options: `attention` and `pad`, as above.

    Source: Bahdanau et al. (2015), section 3.2.
    """

    def __init__(
        self, source_words: int, target_words: int, width: int = 64, hidden: int = 64, **options
    ):
        super().__init__(source_words, target_words, width, hidden, **options)
        self.encoder = nn.GRU(width, hidden // 2, batch_first=True, bidirectional=True)

    def start(self, source: Int[Tensor, "b n"]) -> tuple[Tensor, Tensor, Tensor]:
        """Read the source: what each direction read last, all annotations (b k d), real words."""
        last_real, annotations, mask = super().start(source)
        half = self.encoder.hidden_size
        state = torch.cat([last_real[:, :half], annotations[:, 0, half:]], dim=-1)
        return state, annotations, mask
