"""Looking inside (chapter 12): what each head does, and what happens without it.

An attention is named as in the model, e.g. "layers.0.attention" or "decoder.1.cross_attention",
as `attention_maps` of chapter 5 names it; a head has a number from 0.
"""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncourse.masking import causal_mask
from attncourse.multihead import MultiHeadAttention, merge_heads, split_heads
from attncourse.validation import checked, validate_fits, validate_ids, validate_number
from attncourse.validation.looking_inside import (
    validate_head,
    validate_layers,
    validate_maps,
    validate_period,
    validate_place,
)

# --- A model of attention alone -------------------------------------------------------------------


class AttentionLayer(nn.Module):
    """x + attention(x): a Transformer's layer without its two-layer network.

    Args:
        model_width: m
        num_heads: of the attention.
    """

    def __init__(self, model_width: int, num_heads: int):
        super().__init__()
        self.norm = nn.LayerNorm(model_width)
        self.attention = MultiHeadAttention(model_width, num_heads)

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b n m"]:
        """Return (b n m); `mask` hides the words that come later."""
        normed = self.norm(x)
        return x + self.attention(normed, normed, normed, mask)[0]


class AttentionOnly(nn.Module):
    """Score the next word of a text by attention alone, in which everything is a sum over heads.

    Args:
        words: size of the vocabulary.
        model_width: m
        num_heads: in each layer.
        num_layers: of the one stack.
        attend: makes what a layer attends by, one a layer: chapter 8's schemes.
        positions: of n words and m features, added to the words' vectors; `torch.zeros` adds none.

    Source: Elhage et al. (2021), "A Mathematical Framework for Transformer Circuits".
    """

    def __init__(
        self,
        words: int,
        model_width: int = 32,
        num_heads: int = 2,
        num_layers: int = 2,
        attend: Callable[[], Callable] | None = None,
        positions: Callable = torch.zeros,
    ):
        super().__init__()
        self.embedding = nn.Embedding(words, model_width)
        self.positions = positions
        self.layers = nn.ModuleList(
            AttentionLayer(model_width, num_heads) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(model_width)
        self.output = nn.Linear(model_width, words)
        nn.init.normal_(self.embedding.weight, std=model_width**-0.5)
        if attend is not None:
            for layer in self.layers:
                layer.attention.attend = attend()

    def embed(self, text: Int[Tensor, "b n"]) -> Float[Tensor, "b n m"]:
        """Turn each word into its vector."""
        validate_ids("text", text, self.embedding.num_embeddings)
        x = self.embedding(text) * math.sqrt(self.embedding.embedding_dim)
        return x + self.positions(*x.shape[1:]).to(x)

    def forward(self, text: Int[Tensor, "b n"]) -> Float[Tensor, "b n vocab"]:
        """Score the word after each word of the text."""
        x, mask = self.embed(text), causal_mask(text.shape[1]).to(text.device)
        for layer in self.layers:
            x = layer(x, mask)
        return self.output(self.norm(x))


# --- Watching and changing heads ------------------------------------------------------------------


def attention_in(model: nn.Module, layer: str) -> MultiHeadAttention:
    """The attention of this name.

    Raises:
        ValueError: the model has no attention of this name.
    """
    found = {n: part for n, part in model.named_modules() if isinstance(part, MultiHeadAttention)}
    if layer not in found:
        raise ValueError(f"the model's attentions are {', '.join(found)}; none is named {layer!r}")
    return found[layer]


def _replaced(model: nn.Module, layer: str, head: int, change: Callable) -> nn.Module:
    """A copy of the model that changes what a head hands on, heads (b h q d), before `out_proj`."""
    model = copy.deepcopy(model)
    attention = attention_in(model, layer)
    h = attention.num_heads
    validate_head(layer, head, h)

    def hook(_, inputs: tuple[Tensor]) -> Tensor:
        return merge_heads(change(split_heads(inputs[0], h).clone()))

    attention.out_proj.register_forward_pre_hook(hook)
    return model


@torch.no_grad()
def head_outputs(model: nn.Module, *inputs) -> dict[str, Float[Tensor, "b h _q d"]]:
    """Run the model once and collect what every head hands on, before `out_proj` mixes them.

    Returns:
        The attention's name in the model -> (b h q d).
    """
    outputs = {}
    hooks = [
        part.out_proj.register_forward_pre_hook(
            lambda _, inputs, name=name, h=part.num_heads: outputs.__setitem__(
                name, split_heads(inputs[0], h)
            )
        )
        for name, part in model.named_modules()
        if isinstance(part, MultiHeadAttention)
    ]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def ablated(
    model: nn.Module, layer: str, head: int, value: float | Float[Tensor, "..."] = 0.0
) -> nn.Module:
    """The model without one head: whatever it reads, the head hands on `value`.

    0 takes its voice away. Its mean over many texts (q d) or (d) leaves what it always says. What
    it said about other texts (b q d) leaves all but the connection to this one.

    Args:
        model: stays as it is.
        layer: name of the attention in the model.
        head: from 0.
        value: a number, or a tensor that broadcasts to the head's output (b q d).

    Returns:
        A copy that is called as the model is; of a copy another head can be ablated.

    Raises:
        TypeError, ValueError: no such attention or head, a value that is no number and no tensor;
            or, when called, one that does not fit.

    Source: Michel et al. (2019), section 2.3 (zero); Wang et al. (2023), section 2 (mean).
    """
    if not isinstance(value, Tensor):
        validate_number("value", value)

    def change(heads: Float[Tensor, "b h q d"]) -> Float[Tensor, "b h q d"]:
        if isinstance(value, Tensor):
            b, _, q, d = heads.shape
            validate_fits("value", value, (b, q, d), "b q d")
        heads[:, head] = value
        return heads

    return _replaced(model, layer, head, change)


@checked
def patched(
    model: nn.Module,
    clean: Int[Tensor, "b n"],
    corrupted: Int[Tensor, "b n"],
    place: tuple[str, int, int],
) -> Tensor:
    """Read the corrupted text; at one place hear what a head said when the text was clean.

    If the right answer comes back, this place is enough to bring back what was lost.

    Args:
        model: called with a text; stays as it is.
        clean: (b n) ids.
        corrupted: (b n) ids, as long.
        place: name of the attention, head from 0, position from 0 (or −1 for the last, …).

    Returns:
        What the model returns for the corrupted text, patched.

    Raises:
        TypeError, ValueError: texts of different shapes, no such attention, head or position.

    Source: Vig et al. (2020), who exchange what heads and neurons say between two texts. (Meng et
    al., 2022, put hidden states back that noise had spoiled.)
    """
    validate_place(place, clean.shape[1])
    layer, head, position = place
    attention_in(model, layer)
    said = head_outputs(model, clean)[layer]

    def change(heads: Float[Tensor, "b h q d"]) -> Float[Tensor, "b h q d"]:
        heads[:, head, position] = said[:, head, position]
        return heads

    return _replaced(model, layer, head, change)(corrupted)


@torch.no_grad()
def through(
    model: AttentionOnly,
    text: Int[Tensor, "b n"],
    without: nn.Module,
    parts: str = "qkv",
) -> Float[Tensor, "b n vocab"]:
    """Path patching in two layers: the second layer's q, k or v are made as if heads were ablated.

    All else, the sum that the output is read from too, is as it was.

    Args:
        model: of two layers.
        text: (b n) ids.
        without: the model with heads of layer 0 ablated.
        parts: which of "q", "k" and "v" listen to the ablated model.

    Raises:
        ValueError: other letters, or a model of more or fewer layers.

    Source: Wang et al. (2023), section 3; kinds of composition in Elhage et al. (2021).
    """
    if len(model.layers) != 2:
        raise ValueError(f"the model must have two layers; it has {len(model.layers)}")
    if unknown := set(parts) - set("qkv"):
        raise ValueError(f"parts may be q, k and v; got {', '.join(sorted(unknown))}")
    mask = causal_mask(text.shape[1]).to(text.device)
    embedded, (_, second) = model.embed(text), model.layers
    whole, cut = (each.layers[0](embedded, mask) for each in (model, without))
    query, key, value = (second.norm(cut if part in parts else whole) for part in "qkv")
    x = whole + second.attention(query, key, value, mask)[0]
    return model.output(model.norm(x))


# --- Scores of heads ------------------------------------------------------------------------------


def previous_token_score(weights: Float[Tensor, "*heads n n"]) -> Float[Tensor, "*heads"]:
    """How much weight goes to the word before, on average over the words that have one.

    Raises:
        TypeError, ValueError: weights that are no (… n n), or of a single word.
    """
    validate_maps("weights", weights, least=2)
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(-1)


def induction_score(weights: Float[Tensor, "*heads n n"], period: int) -> Float[Tensor, "*heads"]:
    """How much weight goes to the word *after* this word's last occurrence, in a repeated text.

    The word at i stood at i − period before; what followed it there stands at i − period + 1. The
    mean is over all i from `period` on: earlier words have not occurred yet.

    Args:
        weights: (… n n), of a text that repeats itself every `period` words.
        period: at least 1, below n.

    Returns:
        (…), 0 to 1.

    Raises:
        TypeError, ValueError: weights that are no (… n n), a period with nothing repeated.

    Source: Olsson et al. (2022), "prefix matching"; Elhage et al. (2021).
    """
    validate_period(weights, period)
    # This diagonal begins at row period − 1, whose word has not occurred yet.
    return weights.diagonal(offset=1 - period, dim1=-2, dim2=-1)[..., 1:].mean(-1)


def ov_matrix(attention: MultiHeadAttention, head: int) -> Float[Tensor, "m m"]:
    """What a head hands on of what it reads, as one matrix: x ↦ x W_OV (biases left out)."""
    validate_head("the attention", head, attention.num_heads)
    d = attention.v_proj.out_features // attention.num_heads
    rows = slice(head * d, (head + 1) * d)
    return attention.v_proj.weight[rows].T @ attention.out_proj.weight[:, rows].T


@checked
def copying_score(
    W_OV: Float[Tensor, "m m"], W_E: Float[Tensor, "vocab m"], W_U: Float[Tensor, "m vocab"]
) -> float:
    """Whether a head makes the words likelier that it reads: 1 copies, −1 forbids, 0 neither.

    W_E W_OV W_U says how much reading each word raises the score of each; of its eigenvalues λ,
    Σ λ / Σ abs(λ), where a complex pair counts by its real parts.

    Args:
        W_OV: (m m), from what is read to what is handed on, as rows: x ↦ x W_OV.
        W_E: (vocab m), a row a word.
        W_U: (m vocab), from the model's width to scores, a column a word.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit; a head that hands on nothing.

    Source: Elhage et al. (2021), section "Copying / Primacy of Eigenvalues".
    """
    # (vocab vocab) and (m m) in another order of the product: the same eigenvalues, but for zeros.
    eigenvalues = torch.linalg.eigvals(W_OV.double() @ (W_U.double() @ W_E.double()))
    total = eigenvalues.abs().sum()
    if not total > 0:
        raise ValueError("every eigenvalue is 0: this head hands on nothing, there is no score")
    return (eigenvalues.real.sum() / total).item()


@torch.no_grad()
def attributed(
    model: AttentionOnly, text: Int[Tensor, "b n"], words: Int[Tensor, "b n"]
) -> dict[str, Float[Tensor, "b n"]]:
    """How much each part of the sum adds to the score of a word, directly.

    What the output reads is a sum: the word itself and what each head adds. With the last norm's
    scale held as it is, the score of a word is a sum, too. It is counted from the mean of all
    words' scores, since only differences matter to a softmax.

    Args:
        model: of attention alone.
        text: (b n) ids.
        words: (b n), at each place the word whose score is asked for.

    Returns:
        part -> (b n): "word", then "layer.head" for each head, then "biases". Together they are the
        word's score less the mean score.

    Source: Elhage et al. (2021), the "logit" terms of a path; Wang et al. (2023), section 3.1.
    """
    x = model.embed(text)
    validate_ids("words", words, model.output.out_features)
    parts, biases = {"word": x}, torch.zeros_like(x)
    for number, (name, heads) in enumerate(head_outputs(model, text).items()):
        out = attention_in(model, name).out_proj
        for head, said in enumerate(heads.unbind(1)):
            rows = slice(head * said.shape[-1], (head + 1) * said.shape[-1])
            parts[f"{number}.{head}"] = said @ out.weight[:, rows].T
        biases = biases + out.bias
    parts["biases"] = biases
    scale = (sum(parts.values()).var(-1, correction=0) + model.norm.eps).sqrt()
    # The norm takes each part's own mean off, for the mean of a sum is the sum of the means.
    reads = model.output.weight - model.output.weight.mean(0)
    found = {}
    for name, part in parts.items():
        normed = (part - part.mean(-1, keepdim=True)) / scale[..., None] * model.norm.weight
        if name == "biases":
            normed = normed + model.norm.bias
        found[name] = einsum(normed, reads[words], "b n m, b n m -> b n")
    found["biases"] += (model.output.bias - model.output.bias.mean())[words]
    return found


# --- From weights to a map of the whole model -----------------------------------------------------


def rollout(weights: Sequence[Float[Tensor, "b h n n"]]) -> Float[Tensor, "b n n"]:
    """How much of each word arrives at each, if layers passed on averages of what they read.

    A layer's map is the mean of its heads; half of it is what the residual connection keeps:
    Â = (A + I) / 2. Layer after layer, R = Â_L … Â₂ Â₁.

    Args:
        weights: (b h n n) for each layer, the first layer first.

    Returns:
        (b n n), rows sum to 1: of position q, what came from each position k of the input.

    Raises:
        TypeError, ValueError: no layer, or layers of different texts.

    Source: Abnar and Zuidema (2020), section 3.
    """
    validate_layers(weights)
    result = None
    for layer in weights:
        mean = layer.mean(1)
        kept = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)) / 2
        result = kept if result is None else einsum(kept, result, "b q n, b n k -> b q k")
    return result


class ShuffledAttention(nn.Module):
    """An `attend` whose weights are put on other keys, at random, among those it may see.

    Args:
        attend: the attention as it was.
        rng: where chance comes from.

    Source: the permutation test of Jain and Wallace (2019), section 4.2.1, here for whole models.
    """

    def __init__(self, attend: Callable, rng: torch.Generator):
        super().__init__()
        self.attend, self.rng = attend, rng

    def forward(self, query, key, value, mask=None):
        """Return (output, weights) as `scaled_dot_product_attention` does."""
        _, weights = self.attend(query, key, value, mask)
        visible = torch.ones_like(weights, dtype=torch.bool)
        visible = visible if mask is None else visible & mask
        chance = torch.rand(weights.shape, generator=self.rng).to(weights)
        # Visible keys come first in both orders: once as they stand, once shuffled.
        old = visible.byte().argsort(dim=-1, descending=True, stable=True)
        new = chance.masked_fill(~visible, 2.0).argsort(dim=-1)
        weights = torch.zeros_like(weights).scatter(-1, new, weights.gather(-1, old))
        return einsum(weights, value, "... q k, ... k v -> ... q v"), weights


def shuffled(model: nn.Module, layer: str, rng: torch.Generator) -> nn.Module:
    """A copy of the model in which one attention's weights lie on other keys (see above)."""
    model = copy.deepcopy(model)
    attention = attention_in(model, layer)
    attend = attention.attend
    attention.attend = ShuffledAttention(attend, rng)
    return model
