"""Cross-attention and the Transformer (chapter 7): a translator made of attention alone."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncourse.bottleneck import greedy_decode
from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.self_attention import sinusoidal_positions
from attncourse.validation import checked


@checked
def cross_attention(
    target: Float[Tensor, "b q m"],
    memory: Float[Tensor, "b k m"],
    attention: Callable,
    memory_mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "b q m"], Tensor]:
    """Ask with the target, look up in the source: it gives the keys *and* the values.

    Args:
        target: (b q m), what is being written.
        memory: (b k m), the source as the encoder left it.
        attention: `attention(query, key, value, mask) -> (output, weights)`.
        memory_mask: (q k), (b 1 k) or (b q k); True = may attend. Hide the source's padding.

    Returns:
        output: (b q m).
        weights: as `attention` returns them.

    Source: Vaswani et al. (2017), section 3.2.3.
    """
    return attention(target, memory, memory, memory_mask)


class EncoderLayer(nn.Module):
    """Every source word reads all others, then thinks for itself: x + attention, x + network.

    Args:
        model_width: m
        num_heads: of the attention.
        hidden_width: of the two-layer network.

    Source: Vaswani et al. (2017), section 3.1; normalization before each part as in Xiong et al.
    (2020), "On Layer Normalization in the Transformer Architecture".
    """

    def __init__(self, model_width: int, num_heads: int, hidden_width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.norm2 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b n m"]:
        """Return (b n m); `mask` hides the source's padding."""
        normed = self.norm1(x)
        x = x + self.self_attention(normed, normed, normed, mask)[0]
        return x + self.linear2(self.linear1(self.norm2(x)).relu())


class DecoderLayer(nn.Module):
    """Every target word reads the words before it, then the source, then thinks for itself.

    Args:
        model_width: m
        num_heads: of both attentions.
        hidden_width: of the two-layer network.

    Source: as for `EncoderLayer`.
    """

    def __init__(self, model_width: int, num_heads: int, hidden_width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.self_attention = MultiHeadAttention(model_width, num_heads)
        self.norm2 = nn.LayerNorm(model_width)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.norm3 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)

    def forward(
        self,
        target: Float[Tensor, "b q m"],
        memory: Float[Tensor, "b k m"],
        target_mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "b q m"]:
        """Return (b q m).

        Args:
            target: (b q m).
            memory: (b k m), already normalized by the encoder.
            target_mask: (q q) or (b q q); hides later words.
            memory_mask: (b 1 k); hides the source's padding.
        """
        normed = self.norm1(target)
        target = target + self.self_attention(normed, normed, normed, target_mask)[0]
        normed = self.norm2(target)
        target = target + cross_attention(normed, memory, self.cross_attention, memory_mask)[0]
        return target + self.linear2(self.linear1(self.norm3(target)).relu())


class Transformer(nn.Module):
    """Translate by attention alone: no state is carried from word to word.

    Args:
        source_words: size of the source vocabulary.
        target_words: size of the target vocabulary.
        model_width: m
        num_heads: of every attention.
        hidden_width: of the two-layer networks.
        num_layers: in the encoder, and again in the decoder.
        pad: id that fills up short rows.

    Source: Vaswani et al. (2017), section 3, with normalization before each part and no dropout.
    """

    def __init__(
        self,
        source_words: int,
        target_words: int,
        model_width: int = 64,
        num_heads: int = 4,
        hidden_width: int = 128,
        num_layers: int = 2,
        pad: int = 0,
    ):
        super().__init__()
        self.pad = pad
        self.source_embedding = nn.Embedding(source_words, model_width)
        self.target_embedding = nn.Embedding(target_words, model_width)
        self.positions = sinusoidal_positions  # of n words and m features; chapter 8 has others
        sizes = model_width, num_heads, hidden_width
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(num_layers))
        self.encoder_norm = nn.LayerNorm(model_width)
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(num_layers))
        self.decoder_norm = nn.LayerNorm(model_width)
        self.output = nn.Linear(model_width, target_words)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=model_width**-0.5)

    @checked
    def encode(
        self, source: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k m"], Bool[Tensor, "b 1 k"]]:
        """Read the source: the memory, and the mask that hides its padding."""
        x = self._embed(source, self.source_embedding)
        mask = (source != self.pad)[:, None, :]
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    @checked
    def decode(
        self,
        words: Int[Tensor, "b t"],
        memory: Float[Tensor, "b k m"],
        memory_mask: Bool[Tensor, "b 1 k"],
    ) -> Float[Tensor, "b t vocab"]:
        """Score the word after each of `words`, each seeing only those before it."""
        x = self._embed(words, self.target_embedding)
        mask = causal_mask(words.shape[1]).to(words.device)
        for layer in self.decoder:
            x = layer(x, memory, mask, memory_mask)
        return self.output(self.decoder_norm(x))

    def forward(
        self, source: Int[Tensor, "b k"], words: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t vocab"]:
        """Score the word after each of `words`, all at once (teacher forcing)."""
        return self.decode(words, *self.encode(source))

    def _embed(self, tokens: Int[Tensor, "b n"], embedding: nn.Embedding) -> Tensor:
        x = embedding(tokens) * math.sqrt(embedding.embedding_dim)
        return x + self.positions(*x.shape[1:]).to(x)


@checked
def translate(
    model: Callable, source: Int[Tensor, "b n"], bos: int, eos: int, max_length: int
) -> Int[Tensor, "b t"]:
    """Translate greedily with any model that scores the next words: `model(source, words)`.

    Args:
        model: `model(source (b n), words (b t)) -> (b t vocab)`, where words begin with `bos`.
        source: (b n) ids.
        bos: id that stands before the first word.
        eos: id that closes a sentence.
        max_length: words in a translation at most.

    Returns:
        (b, ≤ max_length) ids without `bos`; after a row's first `eos` only `eos`.

    Raises:
        TypeError, ValueError: source is not (b n) whole numbers, or `max_length` < 1.
    """

    def step(word: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        words = torch.cat([words, word[:, None]], dim=1)
        return model(source, words)[:, -1], words

    nothing_yet = source.new_empty(len(source), 0)
    return greedy_decode(step, nothing_yet, bos, eos, max_length, len(source))
