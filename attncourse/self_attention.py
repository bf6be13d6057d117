"""Self-attention (chapter 4): a sentence asks questions of itself."""

from collections.abc import Callable

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.validation import checked, validate_tensor


@checked
def self_attention(
    x: Float[Tensor, "b n m"],
    W_query: Float[Tensor, "m d"],
    W_key: Float[Tensor, "m d"],
    W_value: Float[Tensor, "m v"],
) -> tuple[Float[Tensor, "b n v"], Float[Tensor, "b n n"]]:
    """Attend from a sequence to itself: queries, keys and values are three views of the same x.

    Args:
        x: (b n m), one vector a position.
        W_query, W_key: (m d), what a position asks and what it is found by.
        W_value: (m v), what a position hands over.

    Returns:
        output: (b n v), every position in the light of all others.
        weights: (b n n); row i is how much position i reads from each position.

    Raises:
        TypeError, ValueError: shapes or dtypes that do not fit.

    Source: Vaswani et al. (2017), section 3.2.3; the idea as "intra-attention" in Cheng et al.
    (2016) and Parikh et al. (2016).
    """
    query = einsum(x, W_query, "b n m, m d -> b n d")
    key = einsum(x, W_key, "b n m, m d -> b n d")
    value = einsum(x, W_value, "b n m, m v -> b n v")
    return scaled_dot_product_attention(query, key, value)


def sinusoidal_positions(length: int, width: int) -> Float[Tensor, "length width"]:
    """Give every position a vector of sines and cosines of geometrically falling frequencies.

    Feature 2i is sin(p / 10000^(2i/width)), feature 2i + 1 the cosine of the same angle.

    Args:
        length: positions p = 0, 1, …, length − 1.
        width: features a position; an odd width ends with a sine.

    Raises:
        ValueError: `length` < 0 or `width` < 1.

    Source: Vaswani et al. (2017), section 3.5.
    """
    if length < 0 or width < 1:
        raise ValueError(f"needs length >= 0 and width >= 1; got length={length}, width={width}")
    position = torch.arange(length, dtype=torch.float64)
    frequency = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = einsum(position, frequency, "p, i -> p i")
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # p i 2: sine, cosine side by side
    return pairs.flatten(1)[:, :width].to(torch.get_default_dtype())


class LearnedPositions(nn.Module):
    """Add a learned vector to every position, up to a largest length.

    Args:
        max_length: positions in the table; a longer sequence has no vector to add.
        width: features a position.

    Source: Gehring et al. (2017), section 3.1; used in BERT and GPT.
    """

    def __init__(self, max_length: int, width: int):
        super().__init__()
        self.table = nn.Embedding(max_length, width)

    @checked(m="table.embedding_dim")
    def forward(self, x: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
        """Return x plus the first n vectors of the table.

        Raises:
            ValueError: x is longer than the table, or of another width.
        """
        length = x.shape[1]
        if length > self.table.num_embeddings:
            raise ValueError(
                f"x has {length} positions, but the table of learned positions ends after "
                f"{self.table.num_embeddings}"
            )
        return x + self.table.weight[:length]


@checked
def is_permutation_equivariant(layer: Callable, x: Float[Tensor, "b n m"]) -> bool:
    """Whether the layer, shown x in another order, gives the same outputs in that order.

    Two reorderings are tried: a swap of the first two positions and a shift of all by one. Every
    other order is a chain of these.

    Args:
        layer: takes (b n m) and returns one tensor (b n …).
        x: (b n m).

    Raises:
        TypeError, ValueError: x is not a floating-point tensor (b n m), or layer(x) is no tensor.
    """
    output = layer(x)
    validate_tensor("layer(x)", output)
    n = x.shape[1]
    swap = [1, 0, *range(2, n)] if n > 1 else [0]
    shift = [*range(1, n), 0]
    # Float sums depend on the order of their terms, so equal means equal in half of the digits.
    largest = output.nan_to_num(0, 0, 0).abs().max().item()  # NaN and infinity aside
    tolerance = torch.finfo(output.dtype).eps ** 0.5 * (1 + largest)
    return all(
        torch.allclose(layer(x[:, order]), output[:, order], rtol=0, atol=tolerance)
        for order in (swap, shift)
    )
