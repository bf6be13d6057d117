"""Multi-head attention (chapter 5): several questions at once."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.validation import checked, validate_heads, validate_mask


@checked
def split_heads(x: Float[Tensor, "b n m"], num_heads: int) -> Float[Tensor, "b h n d"]:
    """Cut every vector into `num_heads` equal pieces, and make the pieces an axis of their own.

    Raises:
        ValueError: the width is no multiple of `num_heads`.
    """
    validate_heads(x, num_heads)
    return rearrange(x, "b n (h d) -> b h n d", h=num_heads)


@checked
def merge_heads(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b n h*d"]:
    """Put the heads' vectors side by side again; the inverse of `split_heads`."""
    return rearrange(x, "b h n d -> b n (h d)")


class MultiHeadAttention(nn.Module):
    """Project, split into heads, attend in each, merge, project: Concat(head₁, …, head_h) W^O.

    Args:
        model_width: m, of the inputs and of the output.
        num_heads: h, how many questions a position may ask at once; each is m/h wide.
        dropout: share of the weights set to zero in training.

    Raises:
        ValueError: `model_width` is no multiple of `num_heads`.

    Source: Vaswani et al. (2017), section 3.2.2.
    """

    def __init__(self, model_width: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        if num_heads < 1 or model_width % num_heads:
            raise ValueError(
                f"{num_heads} heads of equal width do not fit into model_width={model_width}"
            )
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.attend = scaled_dot_product_attention  # chapter 8 puts others in its place
        self.dropout = nn.Dropout(dropout)

    @checked(m="q_proj.in_features")
    def forward(
        self,
        query: Float[Tensor, "b q m"],
        key: Float[Tensor, "b k m"],
        value: Float[Tensor, "b k m"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "b q m"], Float[Tensor, "b h q k"]]:
        """Attend from every query to every key, in all heads.

        Args:
            query: (b q m).
            key: (b k m).
            value: (b k m).
            mask: (q k), (b 1 k) or (b q k); True = may attend, in every head.

        Returns:
            output: (b q m).
            weights: (b h q k), before dropout.

        Raises:
            TypeError, ValueError: shapes or dtypes that do not fit.
        """
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        if mask is not None:
            validate_mask(mask, query, (*query.shape[:2], key.shape[1]), "b q k")
            if mask.ndim == 3:
                mask = rearrange(mask, "b q k -> b 1 q k")  # one mask for all heads
        drops = {"dropout": self.dropout} if self.training and self.dropout.p > 0 else {}
        heads, weights = self.attend(q, k, v, mask, **drops)
        return self.out_proj(merge_heads(heads)), weights


def attention_parameters(
    model_width: int, num_heads: int, num_layers: int, head_width: int | None = None
) -> int:
    """Count the weights of all attention layers of a Transformer, biases left out.

    Each head has three projections from the model's width to its own, and one back.

    Args:
        model_width: m
        num_heads: heads in a layer.
        num_layers: layers with one attention each.
        head_width: of a head; by default m / num_heads.

    Raises:
        ValueError: a size below 1, or `num_heads` that do not divide `model_width` although no
            `head_width` is given.

    Source: Vaswani et al. (2017), section 3.2.2; GPT-3's sizes in Brown et al. (2020), table 2.1.
    """
    if min(model_width, num_heads, num_layers, head_width or 1) < 1 or head_width == 0:
        raise ValueError(
            f"every size must be at least 1; got model_width={model_width}, "
            f"num_heads={num_heads}, num_layers={num_layers}, head_width={head_width}"
        )
    if head_width is None:
        if model_width % num_heads:
            raise ValueError(
                f"{num_heads} heads of equal width do not fit into model_width={model_width}; "
                "give head_width"
            )
        head_width = model_width // num_heads
    return num_layers * num_heads * 4 * model_width * head_width


@torch.no_grad()
def attention_maps(model: nn.Module, *inputs) -> dict[str, Float[Tensor, "b h _q _k"]]:
    """Run the model once and collect the weights of every `MultiHeadAttention` inside it.

    Returns:
        The attention's name in the model -> its weights (b h q k).
    """
    maps = {}
    hooks = [
        module.register_forward_hook(
            lambda module, args, output, name=name: maps.__setitem__(name, output[1])
        )
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    ]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return maps
