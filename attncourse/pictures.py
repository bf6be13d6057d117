"""Pictures (chapter 13): cut into patches, a picture is a source like any other.

Letters beside the course's: y and x, rows and columns of pixels; c colors; p numbers of a patch.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncourse.bottleneck import greedy_decode
from attncourse.cross_attention import Transformer, cross_attention
from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention
from attncourse.one_stack import GPT, embed
from attncourse.self_attention import sinusoidal_positions
from attncourse.validation import (
    checked,
    validate_ids,
    validate_picture,
    validate_positive,
    validate_scalar,
    validate_sizes,
)

# --- From pixels to a memory ----------------------------------------------------------------------


@checked
def patches(image: Float[Tensor, "b c y x"], size: tuple[int, int]) -> Float[Tensor, "b n p"]:
    """Cut a picture into tiles, and write each as one vector: the words of a picture.

    Args:
        image: (b c y x).
        size: height and width of a patch, in pixels; they divide the picture's.

    Returns:
        (b n p): patches as one reads, row by row; within a patch color by color, and each color row
        by row, so that p = c · height · width.

    Raises:
        TypeError, ValueError: no picture, or patches that do not fill it.

    Source: Dosovitskiy et al. (2021), section 3.1.
    """
    validate_picture(image, size)
    height, width = size
    return rearrange(image, "b c (i y) (j x) -> b (i j) (c y x)", y=height, x=width)


def positions_2d(rows: int, columns: int, width: int) -> Float[Tensor, "n width"]:
    """Say where in a picture each patch lies: half of the features tell its row, half its column.

    Args:
        rows, columns: of patches, n = rows · columns.
        width: features a patch, even.

    Returns:
        (n width): patches row by row; chapter 4's sinusoids of the row, then those of the column.

    Raises:
        ValueError: a size below 1, or an odd width.

    Source: Parmar et al. (2018), "Image Transformer", section 3.1; so in Carion et al. (2020).
    """
    validate_sizes(rows=rows, columns=columns, width=width)
    if width % 2:
        raise ValueError(f"width must be even, half for rows and half for columns; got {width}")
    row = repeat(sinusoidal_positions(rows, width // 2), "i m -> (i j) m", j=columns)
    column = repeat(sinusoidal_positions(columns, width // 2), "j m -> (i j) m", i=rows)
    return torch.cat([row, column], dim=-1)


@checked
def standardized(image: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Shift and scale each picture to mean 0 and deviation 1: light or dark, it looks the same."""
    axes = {"dim": (1, 2, 3), "keepdim": True}
    return (image - image.mean(**axes)) / image.std(**axes).clamp(min=1e-6)


class PatchEmbedding(nn.Module):
    """Turn a picture into vectors that know what they show and where: chapter 4's first step.

    The norm makes patches' vectors about as long as positions', whatever the light.

    Args:
        size: height and width of a patch, in pixels.
        model_width: m, even.
        channels: c

    Source: Dosovitskiy et al. (2021), section 3.1; there with learned positions and a class token.
    """

    def __init__(self, size: tuple[int, int], model_width: int, channels: int = 1):
        super().__init__()
        self.size, self.channels = size, channels
        self.linear = nn.Linear(channels * size[0] * size[1], model_width)
        self.norm = nn.LayerNorm(model_width)
        self.positions = positions_2d  # of rows, columns and features

    @checked(c="channels")
    def forward(self, image: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n m"]:
        """Return (b n m), a vector a patch."""
        x = self.norm(self.linear(patches(standardized(image), self.size)))
        rows, columns = (
            long // short for long, short in zip(image.shape[2:], self.size, strict=True)
        )
        return x + self.positions(rows, columns, x.shape[-1]).to(x)


class Reader(Transformer):
    """Chapter 7's Transformer with one thing exchanged: its source is a picture.

    Args:
        target_words: size of the vocabulary that it writes in.
        size: height and width of a patch, in pixels.
        channels: colors of the picture.
        sizes: as for `Transformer`.

    Source: the encoder as in Dosovitskiy et al. (2021), here with a decoder behind it.
    """

    def __init__(
        self, target_words: int, size: tuple[int, int] = (16, 8), channels: int = 1, **sizes
    ):
        super().__init__(1, target_words, **sizes)
        width = self.target_embedding.embedding_dim
        self.source_embedding = PatchEmbedding(size, width, channels)

    def encode(self, image: Float[Tensor, "b c y x"]) -> tuple[Float[Tensor, "b n m"], None]:
        """Look at a picture: the memory, and no mask, for pictures of one size have no padding."""
        x = self.source_embedding(image)
        for layer in self.encoder:
            x = layer(x)
        return self.encoder_norm(x), None


@torch.no_grad()
@checked
def read(
    model: nn.Module,
    image: Float[Tensor, "b c y x"],
    bos: int = 1,
    eos: int = 2,
    max_length: int = 12,
) -> Int[Tensor, "b t"]:
    """Write what a picture says, the likeliest word at a time. The picture is looked at once.

    Args:
        model: `model.encode(image) -> (memory, memory_mask)` and
            `model.decode(words (b t), memory, memory_mask) -> (b t vocab)`.
        image: (b c y x).
        bos: id that stands before the first word.
        eos: id that closes a sentence.
        max_length: words at most.

    Returns:
        (b, ≤ max_length) ids without `bos`; after a row's first `eos` only `eos`.

    Raises:
        TypeError, ValueError: image is no (b c y x), or `max_length` < 1.
    """
    memory, memory_mask = model.encode(image)

    def step(word: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        words = torch.cat([words, word[:, None]], dim=1)
        return model.decode(words, memory, memory_mask)[:, -1], words

    nothing_yet = torch.empty(len(image), 0, dtype=torch.long, device=image.device)
    return greedy_decode(step, nothing_yet, bos, eos, max_length, len(image))


# --- A language model learns to see ---------------------------------------------------------------


def gated_cross_attention(
    text: Float[Tensor, "b q m"],
    memory: Float[Tensor, "b k m"],
    attention: Callable,
    gate: Float[Tensor, ""],
    memory_mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "b q m"], Tensor]:
    """Add to a text what it finds in a picture, as much as the gate lets through.

    The gate is one learned number and passes tanh(gate) of it: at 0 nothing, so that a layer put
    into a trained model changes nothing before it has learned.

    Args:
        text: (b q m).
        memory: (b k m), of the picture.
        attention: `attention(query, key, value, mask) -> (output, weights)`.
        gate: one number.
        memory_mask: (q k), (b 1 k) or (b q k); True = may attend.

    Returns:
        text: (b q m) + tanh(gate) · what was found.
        weights: as `attention` returns them.

    Raises:
        TypeError, ValueError: shapes that do not fit; a gate of more than one number.

    Source: Alayrac et al. (2022), "Flamingo", section 2.2 and figure 4.
    """
    validate_scalar("gate", gate)
    found, weights = cross_attention(text, memory, attention, memory_mask)
    return text + gate.tanh() * found, weights


class GatedLayer(nn.Module):
    """Look at a picture, then think about it; both behind a gate that begins closed.

    Args:
        model_width: m
        num_heads: of the attention.
        hidden_width: of the two-layer network.

    Source: Alayrac et al. (2022), figure 4.
    """

    def __init__(self, model_width: int, num_heads: int, hidden_width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(model_width)
        self.cross_attention = MultiHeadAttention(model_width, num_heads)
        self.attention_gate = nn.Parameter(torch.zeros(()))
        self.norm2 = nn.LayerNorm(model_width)
        self.linear1 = nn.Linear(model_width, hidden_width)
        self.linear2 = nn.Linear(hidden_width, model_width)
        self.network_gate = nn.Parameter(torch.zeros(()))

    def forward(
        self,
        text: Float[Tensor, "b q m"],
        memory: Float[Tensor, "b k m"],
        memory_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "b q m"]:
        """Return (b q m)."""

        def attention(query: Tensor, *memory_and_mask) -> tuple[Tensor, Tensor]:
            return self.cross_attention(self.norm1(query), *memory_and_mask)

        gate = self.attention_gate
        text, _ = gated_cross_attention(text, memory, attention, gate, memory_mask)
        thought = self.linear2(F.gelu(self.linear1(self.norm2(text))))
        return text + self.network_gate.tanh() * thought


class Flamingo(nn.Module):
    """A language model that sees: the model and its eye stay as they are, gated layers learn.

    Args:
        language_model: chapter 9's; its parameters, and the eye's, are frozen.
        eye: `eye.encode(image) -> (memory, memory_mask)`.
        num_heads, hidden_width: of the new layers, one before each of the model's.

    Source: Alayrac et al. (2022), section 2; there a resampler shortens the memory first.
    """

    def __init__(self, language_model: GPT, eye: nn.Module, num_heads: int, hidden_width: int):
        super().__init__()
        self.language_model = language_model.requires_grad_(False)
        self.eye = eye.requires_grad_(False)
        sizes = language_model.embedding.embedding_dim, num_heads, hidden_width
        self.gated = nn.ModuleList(GatedLayer(*sizes) for _ in language_model.layers)

    def encode(self, image: Float[Tensor, "b c y x"]) -> tuple[Tensor, Tensor | None]:
        """Look at a picture with the frozen eye."""
        return self.eye.encode(image)

    def decode(
        self,
        words: Int[Tensor, "b t"],
        memory: Float[Tensor, "b n m"],
        memory_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """Score the word after each of `words`."""
        model = self.language_model
        validate_ids("words", words, model.embedding.num_embeddings)
        x, mask = embed(model, words), causal_mask(words.shape[1]).to(words.device)
        for gated, layer in zip(self.gated, model.layers, strict=True):
            x = layer(gated(x, memory, memory_mask), mask)
        return model.output(model.norm(x))

    def forward(
        self, image: Float[Tensor, "b c y x"], words: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t vocab"]:
        """Score the word after each of `words`, all at once (teacher forcing)."""
        return self.decode(words, *self.encode(image))


# --- Pictures and names in one space --------------------------------------------------------------


@checked
def contrastive_loss(
    images: Float[Tensor, "b m"],
    texts: Float[Tensor, "b m"],
    temperature: float | Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """How badly pictures find their texts in the batch, and texts their pictures.

    Each picture scores all texts by cosine / temperature; the loss is the cross-entropy of its own.
    Then the same from the texts' side, and the mean of both.

    Args:
        images: (b m); row i belongs to row i of `texts`.
        texts: (b m).
        temperature: above 0; the smaller, the more the best score counts.

    Returns:
        In nats; log b for vectors that tell nothing apart.

    Raises:
        TypeError, ValueError: shapes that do not fit, or a temperature that is not above 0.

    Source: Radford et al. (2021), "CLIP", section 2.3 and figure 3.
    """
    validate_positive("temperature", temperature)
    images, texts = F.normalize(images, dim=-1), F.normalize(texts, dim=-1)
    scores = einsum(images, texts, "i m, j m -> i j") / temperature
    own = torch.arange(len(images), device=images.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


class Pool(nn.Module):
    """One vector for many: a learned query asks them all, as chapter 2's decoder asks words.

    Args:
        model_width: m
        num_heads: of the attention.

    Source: Lee et al. (2019), "Set Transformer", section 3.2, with one seed. CLIP's ResNets pool
    so, too, with the mean of the patches as query.
    """

    def __init__(self, model_width: int, num_heads: int):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, model_width))
        self.attention = MultiHeadAttention(model_width, num_heads)

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "b 1 n"] | None = None
    ) -> Float[Tensor, "b m"]:
        """Return (b m); `mask` hides padding."""
        query = self.query.expand(len(x), -1, -1)
        return self.attention(query, x, x, mask)[0][:, 0]


class TwoTowers(nn.Module):
    """Pictures and texts as vectors of one space; those that belong together point the same way.

    Args:
        eye: `eye.encode(image) -> (memory (b n m), memory_mask)`.
        reader: `reader.read(text (b n)) -> (b n m)`, as chapter 9's BERT has it.
        model_width: m
        num_heads: of the two poolings.
        pad: id that fills up short texts.

    Source: Radford et al. (2021), figure 3.
    """

    def __init__(
        self, eye: nn.Module, reader: nn.Module, model_width: int, num_heads: int, pad: int = 0
    ):
        super().__init__()
        self.eye, self.reader, self.pad = eye, reader, pad
        self.image_pool, self.text_pool = (Pool(model_width, num_heads) for _ in range(2))
        self.log_temperature = nn.Parameter(torch.tensor(0.1).log())

    def of_images(self, image: Float[Tensor, "b c y x"]) -> Float[Tensor, "b m"]:
        """A vector for each picture."""
        return self.image_pool(*self.eye.encode(image))

    def of_texts(self, text: Int[Tensor, "b n"]) -> Float[Tensor, "b m"]:
        """A vector for each text."""
        return self.text_pool(self.reader.read(text), (text != self.pad)[:, None])

    def forward(self, image: Float[Tensor, "b c y x"], text: Int[Tensor, "b n"]) -> Tensor:
        """The contrastive loss of pictures with their texts."""
        vectors = self.of_images(image), self.of_texts(text)
        return contrastive_loss(*vectors, self.log_temperature.exp())
