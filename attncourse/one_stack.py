"""One stack (chapter 9): a decoder alone writes, an encoder alone fills in; what both read."""

import functools
import math
import re
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncourse.bottleneck import apply_merges
from attncourse.cross_attention import EncoderLayer
from attncourse.masking import causal_mask
from attncourse.multihead import attention_parameters
from attncourse.positions import RotaryAttention
from attncourse.scaled_dot_product import softmax
from attncourse.self_attention import sinusoidal_positions
from attncourse.validation import (
    checked,
    validate_axes,
    validate_ids,
    validate_logits,
    validate_merges,
    validate_pair,
    validate_sizes,
)

NOT_ASKED = -100  # a target that no loss counts; cross-entropy knows the number

# --- A decoder alone ------------------------------------------------------------------------------


class GPTLayer(EncoderLayer):
    """Read the words so far, then think: the encoder's layer with a smooth bend for a ReLU.

    Source: Radford et al. (2019), section 2.3; GELU in its tanh form, Hendrycks and Gimpel (2016).
    """

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b n m"]:
        """Return (b n m); `mask` hides the words that come later."""
        normed = self.norm1(x)
        x = x + self.self_attention(normed, normed, normed, mask)[0]
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Score the next word of a text from the words so far: chapter 7's decoder, with no source.

    Args:
        words: size of the vocabulary.
        model_width: m
        num_heads: of every attention.
        hidden_width: of the two-layer networks.
        num_layers: in the one stack.

    Source: Radford et al. (2018), section 3.1; order of the parts as in Radford et al. (2019).
    """

    def __init__(
        self,
        words: int,
        model_width: int = 64,
        num_heads: int = 4,
        hidden_width: int = 192,
        num_layers: int = 4,
    ):
        super().__init__()
        self.embedding = nn.Embedding(words, model_width)
        self.positions = sinusoidal_positions  # of n words and m features, as in chapter 7
        sizes = model_width, num_heads, hidden_width
        self.layers = nn.ModuleList(GPTLayer(*sizes) for _ in range(num_layers))
        self.norm = nn.LayerNorm(model_width)
        self.output = nn.Linear(model_width, words)
        nn.init.normal_(self.embedding.weight, std=model_width**-0.5)

    def read(self, text: Int[Tensor, "b n"]) -> Float[Tensor, "b n m"]:
        """Turn each word into a vector that knows the words before it."""
        validate_ids("text", text, self.embedding.num_embeddings)
        x = embed(self, text)
        mask = causal_mask(text.shape[1]).to(text.device)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)

    def forward(self, text: Int[Tensor, "b n"]) -> Float[Tensor, "b n vocab"]:
        """Score the word after each word of the text. Padding on the right needs no mask."""
        return self.output(self.read(text))


def close_gaps(text: Int[Tensor, "b n"], pad: int = 0) -> Int[Tensor, "b n"]:
    """Move each row's padding to the end, where it disturbs nobody; the words keep their order."""
    return text.gather(1, (text == pad).byte().argsort(dim=1, stable=True))


class Continuation(nn.Module):
    """A language model as a translator: the source is a text, its translation what comes next.

    Args:
        model: `model(text (b n)) -> (b n vocab)`, one vocabulary for both languages.
        pad: id that fills up short rows.
    """

    def __init__(self, model: nn.Module, pad: int = 0):
        super().__init__()
        self.model, self.pad = model, pad

    def forward(
        self, source: Int[Tensor, "b n"], words: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t vocab"]:
        """Score the word after each of `words`, which stand right behind the source's words."""
        text = close_gaps(torch.cat([source, words], dim=1), self.pad)
        logits = self.model(text)
        first = (source != self.pad).sum(1, keepdim=True)  # b 1: where `words` begin now
        place = first + torch.arange(words.shape[1], device=words.device)  # b t
        place = place.clamp(max=text.shape[1] - 1)  # of padding behind `words`: nobody reads it
        return logits.gather(1, place[..., None].expand(-1, -1, logits.shape[-1]))


# --- An encoder alone -----------------------------------------------------------------------------


class BERTLayer(EncoderLayer):
    """Read all words, then think, with a normalization *after* each part.

    Source: Devlin et al. (2019), section 3; the order of the parts is that of the Transformer.
    """

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b n m"]:
        """Return (b n m); `mask` hides the padding."""
        x = self.norm1(x + self.self_attention(x, x, x, mask)[0])
        return self.norm2(x + self.linear2(F.gelu(self.linear1(x))))


class BERT(nn.Module):
    """Score what each word of a text is, from the words on both sides.

    Args:
        words: size of the vocabulary, the mask's id included.
        model_width: m
        num_heads: of every attention.
        hidden_width: of the two-layer networks.
        num_layers: in the one stack.
        pad: id that fills up short rows.

    Source: Devlin et al. (2019), section 3, without its second task and its sentence vectors.
    """

    def __init__(
        self,
        words: int,
        model_width: int = 64,
        num_heads: int = 4,
        hidden_width: int = 192,
        num_layers: int = 3,
        pad: int = 0,
    ):
        super().__init__()
        self.pad = pad
        self.embedding = nn.Embedding(words, model_width)
        self.positions = sinusoidal_positions
        self.norm = nn.LayerNorm(model_width)
        sizes = model_width, num_heads, hidden_width
        self.layers = nn.ModuleList(BERTLayer(*sizes) for _ in range(num_layers))
        self.output = nn.Linear(model_width, words)
        nn.init.normal_(self.embedding.weight, std=model_width**-0.5)

    def read(self, text: Int[Tensor, "b n"]) -> Float[Tensor, "b n m"]:
        """Turn each word into a vector that knows all others."""
        validate_ids("text", text, self.embedding.num_embeddings, self.pad)
        x = self.norm(embed(self, text))
        mask = (text != self.pad)[:, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def forward(self, text: Int[Tensor, "b n"]) -> Float[Tensor, "b n vocab"]:
        """Score, for each place, the words that may stand there."""
        return self.output(self.read(text))


def embed(model: nn.Module, text: Int[Tensor, "b n"]) -> Float[Tensor, "b n m"]:
    """Turn the ids of a text into vectors that know their places, as GPT and BERT begin."""
    x = model.embedding(text) * math.sqrt(model.embedding.embedding_dim)
    return x + model.positions(*x.shape[1:]).to(x)


def with_rotation(model: GPT | BERT) -> GPT | BERT:
    """Let the model's attentions turn queries and keys (chapter 8), and add no positions.

    Changes the model in place and returns it.
    """
    model.positions = torch.zeros  # of n words and m features: nothing is added
    for layer in model.layers:
        layer.self_attention.attend = RotaryAttention()
    return model


@checked
def masked_words(
    tokens: Int[Tensor, "b n"],
    share: float | Float[Tensor, "b 1"],
    mask_id: int,
    vocabulary_size: int,
    rng: torch.Generator,
) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Hide some words, and ask for them: of those asked, 80% masked, 10% exchanged, 10% left.

    Args:
        tokens: (b n) ids.
        share: how likely a word is asked for, 0 to 1; one for all, or (b 1).
        mask_id: id that stands where a word is hidden; it may lie behind the words.
        vocabulary_size: words; an exchanged word is any id below it, each as likely.
        rng: where chance comes from.

    Returns:
        inputs: (b n), what the model reads.
        targets: (b n), the word that stood there where it is asked for, else −100.

    Raises:
        TypeError, ValueError: tokens that are no (b n) of words, a share outside 0 to 1 or of
            another shape, a vocabulary without a word, a mask's id below 0.

    Source: Devlin et al. (2019), section 3.1 and appendix A.1.
    """
    validate_sizes(vocabulary_size=vocabulary_size)
    validate_sizes("", 0, mask_id=mask_id)
    share = torch.as_tensor(share, dtype=torch.float32, device=tokens.device)
    if not bool(((share >= 0) & (share <= 1)).all()):
        raise ValueError(f"share must lie between 0 and 1; got {share.tolist()}")
    if share.ndim:
        validate_axes({"b": ("tokens", len(tokens)), "1": ("one a row", 1)}, share=(share, "b 1"))
    if tokens.numel():
        validate_ids("tokens", tokens, vocabulary_size)

    def draw(chance: Tensor | float) -> Bool[Tensor, "b n"]:
        chance = torch.as_tensor(chance, device=tokens.device).expand(tokens.shape)
        return torch.bernoulli(chance, generator=rng).bool()

    asked = draw(share)
    masked = asked & draw(0.8)
    exchanged = asked & ~masked & draw(0.5)  # half of the fifth that is left
    anything = torch.randint(
        vocabulary_size, tokens.shape, generator=rng, dtype=tokens.dtype, device=tokens.device
    )
    inputs = torch.where(exchanged, anything, tokens.masked_fill(masked, mask_id))
    return inputs, tokens.masked_fill(~asked, NOT_ASKED)


# Which of the hidden places to fill now, given how sure the model is of its word at each: (b n).
Order = Callable[[Float[Tensor, "b n"], Bool[Tensor, "b n"]], Bool[Tensor, "b n"]]


def all_at_once(sureness: Tensor, hidden: Tensor) -> Tensor:
    """Fill every place in one round."""
    return hidden


def half_each_round(sureness: Tensor, hidden: Tensor) -> Tensor:
    """Fill the surer half of what is left; of an odd number, one more than half."""
    rank = sureness.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rank < (hidden.sum(-1, keepdim=True) + 1) // 2


def left_to_right(sureness: Tensor, hidden: Tensor) -> Tensor:
    """Fill the first place that is left."""
    return hidden & (hidden.cumsum(-1) == 1)


def by_confidence(sureness: Tensor, hidden: Tensor) -> Tensor:
    """Fill the one place of which the model is surest."""
    return F.one_hot(sureness.argmax(-1), sureness.shape[-1]).bool()


@torch.no_grad()
def fill_in(
    model: Callable, text: Int[Tensor, "b n"], mask_id: int, order: Order
) -> Int[Tensor, "b n"]:
    """Replace every mask by the model's likeliest word, round after round.

    Args:
        model: `model(text (b n)) -> (b n vocab)`.
        text: (b n) ids, `mask_id` where a word is to be found.
        mask_id: is never written.
        order: which of the places to fill in a round; the next round reads what they got.

    Returns:
        (b n): the text without masks.

    Raises:
        ValueError: an order that fills no place in a round.

    Source: Ghazvininejad et al. (2019), "Mask-Predict", section 3; there words are masked again.
    """
    while (hidden := text == mask_id).any():
        logits = model(text)
        logits[..., mask_id] = -torch.inf
        sureness, word = softmax(logits).max(-1)
        now = order(sureness.masked_fill(~hidden, 0.0), hidden) & hidden
        if not now.any():
            raise ValueError(f"order fills none of the {hidden.sum()} places that are left")
        text = torch.where(now, word, text)
    return text


# --- Text into ids --------------------------------------------------------------------------------

PIECE_OF_TEXT = re.compile(r" ?[^ \n]+|[ \n]+")  # a word with the blank before it, or blanks alone


@functools.cache
def byte_letters() -> tuple[str, ...]:
    """A visible letter for each of the 256 bytes, as GPT-2 has them: Ġ is the blank.

    A byte that is a visible character stands for itself; the others get the letters from 256 on.
    """
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in visible else next(others)) for byte in range(256))


def byte_words(text: str) -> list[str]:
    """Cut a text at its blanks, and write each part in byte letters.

    Raises:
        TypeError: `text` is no str.
        ValueError: half of a letter that UTF-16 writes in two; it has no bytes of its own.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str; got {type(text).__name__}")
    letters = byte_letters()
    try:
        parts = [part.encode() for part in PIECE_OF_TEXT.findall(text)]
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"text holds {half!r}, half of a letter, which has no bytes") from None
    return ["".join(letters[byte] for byte in part) for part in parts]


def piece_ids(merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Number the pieces: the 256 byte letters in alphabetical order, then each merge's piece.

    Letters are ordered by code point. A piece that two merges make keeps its first number.
    """
    validate_merges(merges)
    pieces = [*sorted(byte_letters()), *(left + right for left, right in merges)]
    return {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}


def encode_text(text: str, merges: Sequence[tuple[str, str]]) -> list[int]:
    """Turn any text into ids: bytes, merged in the order in which the pairs were learned.

    Args:
        text: any string; nothing is unknown, since every byte has an id.
        merges: pairs of pieces in byte letters, as `bottleneck.byte_pairs` learns them.

    Raises:
        TypeError, ValueError: a text that is no str, merges that are no list of pairs, or one of
            pieces that no letter or earlier merge makes.

    Source: Radford et al. (2019), section 2.2: byte-pair encoding on bytes.
    """
    ids, known = piece_ids(merges), set(byte_letters())
    for left, right in merges:
        if not {left, right} <= known:
            raise ValueError(f"merge {(left, right)} is of pieces that nothing before it makes")
        known.add(left + right)
    return [ids[piece] for word in byte_words(text) for piece in apply_merges(word, merges)]


def decode_text(ids: Sequence[int], merges: Sequence[tuple[str, str]]) -> str:
    """Turn ids into the text they were made of.

    Raises:
        TypeError, ValueError: merges that are no list of pairs, an id that is no piece, or bytes
            that are no text (ids cut off mid-letter).
    """
    pieces = dict(enumerate(piece_ids(merges)))
    if unknown := [each for each in ids if each not in pieces]:
        raise ValueError(f"ids are whole numbers from 0 to {len(pieces) - 1}; got {unknown}")
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    found = bytes(byte_of[letter] for each in ids for letter in pieces[each])
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"ids stand for bytes that are no text: {error.reason} at byte {error.start} of "
            f"{len(found)}; were they cut in the middle of a letter?"
        ) from None


# --- Choosing words -------------------------------------------------------------------------------


@checked
def sampling_distribution(
    logits: Float[Tensor, "b vocab"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "b vocab"]:
    """From what a model scores to what is drawn from: sharpened or flattened, its tail cut off.

    Args:
        logits: (b vocab).
        temperature: divides the logits; below 1 likely words get likelier.
        top_k: only so many words are left, the likeliest; words that tie with the last stay, too.
        top_p: then only the fewest likeliest words that have this probability together are left.

    Returns:
        Probabilities (b vocab).

    Raises:
        TypeError, ValueError: logits that are no (b vocab) or no numbers, `temperature` ≤ 0,
            `top_k` no whole number of at least 1, or `top_p` outside 0 to 1.

    Source: top-k, Fan et al. (2018), section 5; top-p, Holtzman et al. (2020), section 3.1.
    """
    validate_logits(logits)
    if not temperature > 0:
        raise ValueError(
            f"temperature must be above 0; got {temperature}. For the likeliest word use argmax"
        )
    if top_k is not None:
        validate_sizes(top_k=top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie above 0 and not above 1; got {top_p}")
    logits = logits / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probabilities = softmax(logits)
    if top_p is not None:
        likely, order = probabilities.sort(dim=-1, descending=True, stable=True)
        before = likely.cumsum(-1) - likely  # b vocab: what the likelier words have together
        keep = (before < top_p).scatter(-1, order, before < top_p)
        probabilities = probabilities * keep
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return probabilities


def sample(
    logits: Float[Tensor, "b vocab"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: torch.Generator | None = None,
) -> Int[Tensor, " b"]:
    """Draw a word for each row.

    Args:
        logits, temperature, top_k, top_p: as for `sampling_distribution`.
        rng: where chance comes from; torch's global generator if None.

    Returns:
        (b) ids.
    """
    probabilities = sampling_distribution(logits, temperature, top_k, top_p)
    return torch.multinomial(probabilities, 1, generator=rng)[:, 0]


@torch.no_grad()
def beam_search(
    step: Callable, state: Tensor, bos: int, eos: int, width: int, max_length: int
) -> Int[Tensor, "b t"]:
    """Write word after word, keeping the `width` likeliest beginnings of each sentence.

    A beginning that has said `eos` stays as it is and competes with those that go on.

    Args:
        step: `step(token (r), state (r …)) -> (logits (r vocab), state (r …))`, for any number r of
            rows.
        state: (b …), one row a sentence; what `step` gets first.
        bos: id that stands before the first word.
        eos: id that closes a sentence.
        width: beginnings to keep; with 1 this is greedy decoding.
        max_length: words in a row at most.

    Returns:
        (b, ≤ max_length): the likeliest sentence found for each row, without `bos`; after its first
        `eos` only `eos`.

    Raises:
        TypeError, ValueError: `width` or `max_length` is no whole number of at least 1, `bos` or
            `eos` none of at least 0, a state without rows, a `step` that returns no pair, logits
            that are not (b·width vocab), or no word `eos` among them.

    Source: Graves (2012), section 2.5; Sutskever et al. (2014), section 3.2.
    """
    validate_sizes(width=width, max_length=max_length)
    validate_sizes("", 0, bos=bos, eos=eos)
    if not isinstance(state, Tensor):
        raise TypeError(
            f"state must be a torch.Tensor, a row a sentence; got {type(state).__name__}"
        )
    if state.ndim == 0 or len(state) == 0:
        raise ValueError(f"state must have a row a sentence; got shape {tuple(state.shape)}")
    b = len(state)
    state = state.repeat_interleave(width, 0)  # (b w): the beginnings of a sentence side by side
    token = torch.full((b * width,), bos, device=state.device)
    written = token.new_empty(b * width, 0)
    total = torch.full((b, width), -torch.inf, device=state.device)
    total[:, 0] = 0.0  # all beginnings are still the same one: only the first counts
    finished = torch.zeros_like(token, dtype=torch.bool)
    for _ in range(max_length):
        returned = step(token, state)
        validate_pair("step(token, state)", returned, "logits, state")
        logits, state = returned
        validate_axes(token=(token, "r", "whole"), logits=(logits, "r vocab"))
        if not 0 <= eos < logits.shape[1]:
            raise ValueError(f"eos must be one of the {logits.shape[1]} words; got {eos}")
        log_p = logits.log_softmax(-1)
        closed = torch.full_like(log_p, -torch.inf)
        closed[:, eos] = 0.0  # who has ended says eos again, which costs nothing
        log_p = torch.where(finished[:, None], closed, log_p)
        every = total[..., None] + rearrange(log_p, "(b w) vocab -> b w vocab", b=b)
        total, place = every.flatten(1).topk(width)  # b w, best first
        row = place // logits.shape[-1] + width * torch.arange(b, device=place.device)[:, None]
        row, token = row.flatten(), (place % logits.shape[-1]).flatten()
        state, written = state[row], torch.cat([written[row], token[:, None]], dim=1)
        finished = finished[row] | (token == eos)
        if finished[::width].all():  # the best have ended, and no longer text is likelier
            break
    return written[::width]


@checked
def log_probability(
    logits: Float[Tensor, "b t vocab"], target: Int[Tensor, "b t"], pad: int
) -> Float[Tensor, " b"]:
    """How likely a model finds each sentence: the sum of log p over its real tokens.

    Args:
        logits: (b t vocab), by teacher forcing.
        target: (b t) ids, closed by eos.
        pad: the id that fills up short rows; its positions do not count.

    Raises:
        TypeError, ValueError: shapes that do not fit, or words that have no score.
    """
    validate_ids("target", target, logits.shape[-1])
    log_p = logits.log_softmax(-1).gather(-1, target.long()[..., None])[..., 0]
    return log_p.masked_fill(target == pad, 0.0).sum(-1)


# --- What GPT-3 is made of ------------------------------------------------------------------------


def gpt_parameters(
    vocabulary_size: int, context_length: int, model_width: int, num_layers: int
) -> dict[str, int]:
    """Count all parameters of a GPT, by what they are for.

    The networks are four times as wide as the model, positions are learned, and the scores of the
    words are made with the table of the embedding.

    Args:
        vocabulary_size: words.
        context_length: places.
        model_width: m
        num_layers: of attention and network each.

    Raises:
        ValueError: a size that is not a whole number of at least 1.

    Source: Brown et al. (2020), table 2.1; the parts are those of Radford et al. (2019).
    """
    validate_sizes(vocabulary_size=vocabulary_size, context_length=context_length)
    validate_sizes(model_width=model_width, num_layers=num_layers)
    m = model_width
    return {
        "attention": attention_parameters(m, 1, num_layers),
        "networks": num_layers * 2 * m * 4 * m,
        # 4 m in the attention, 4 m + m in the network, 2 m in each of two norms; the last norm.
        "biases and norms": num_layers * 13 * m + 2 * m,
        "embedding": vocabulary_size * m,
        "positions": context_length * m,
    }
