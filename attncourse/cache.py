"""Cache and shared heads (chapter 10): what a model that writes has to keep, and how little.

Letters beside the course's: c cached heads, each of which serves h/c heads of queries; l width of
a latent; r width of a rotated key; w places of a window; s positions of a page.
"""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attncourse.bottleneck import greedy_decode
from attncourse.masking import causal_mask
from attncourse.multihead import merge_heads, split_heads
from attncourse.one_stack import GPT, GPTLayer
from attncourse.positions import rotate
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.validation import checked, validate_ids, validate_mask, validate_sizes
from attncourse.validation.cache import (
    positions_in,
    validate_cache,
    validate_even,
    validate_paged,
    validate_shared_heads,
    validate_step,
)

Cache = tuple[Float[Tensor, "... _n d"], Float[Tensor, "... _n v"]]  # all keys so far, all values


def extend(
    cache: Cache | None, key: Float[Tensor, "... q d"], value: Float[Tensor, "... q v"]
) -> Cache:
    """Put new keys and values behind those that are kept; the cache itself stays as it was.

    Args:
        cache: keys (… n d) and values (… n v) of the n positions so far; None = none so far.
        key: (… q d), of q new positions.
        value: (… q v).

    Returns:
        keys: (… n+q d).
        values: (… n+q v).

    Raises:
        TypeError, ValueError: what is new does not fit what is kept: another batch, width, dtype.

    Source: described in Shazeer (2019), section 2.4; Pope et al. (2023), section 2.
    """
    validate_cache(cache, key=key, value=value)
    if cache is None:
        return key, value
    keys, values = cache
    return torch.cat([keys, key], dim=-2), torch.cat([values, value], dim=-2)


def cached_attention(
    query: Float[Tensor, "... q d"],
    key: Float[Tensor, "... q d"],
    value: Float[Tensor, "... q v"],
    cache: Cache | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    attend: Callable = scaled_dot_product_attention,
) -> tuple[Float[Tensor, "... q v"], Cache]:
    """Attend causally from q new positions to all before them, which are cached, and to themselves.

    A text cut into any chunks gives what it gives in one piece.

    Args:
        query, key: (… q d), of the new positions.
        value: (… q v).
        cache: keys and values of the n positions before; None = none.
        mask: broadcasts to (… q n+q); True = may attend, as far as the position is not a later
            one. Hide the padding on the left of short texts.
        attend: `attend(query, keys, values, mask) -> (output, weights)`.

    Returns:
        output: (… q v).
        cache: with the new positions; hand it in with the next ones.

    Raises:
        TypeError, ValueError: what is new does not fit what is kept, or the mask neither.
    """
    validate_step(query, key, mask, positions_in(cache))
    keys, values = cache = extend(cache, key, value)
    # The new positions are the last q of all: their rows stand at the bottom of the triangle.
    causal = causal_mask(query.shape[-2], keys.shape[-2]).to(query.device)
    output, _ = attend(query, keys, values, causal if mask is None else causal & mask)
    return output, cache


@checked
def grouped_query_attention(
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b c k d"],
    value: Float[Tensor, "b c k v"],
    mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "b h q v"], Float[Tensor, "b h q k"]]:
    """Attend in h heads over c heads of keys and values; h/c heads in a row share one.

    c = h is multi-head attention, c = 1 multi-query attention.

    Args:
        query: (b h q d).
        key: (b c k d); c divides h.
        value: (b c k v).
        mask: broadcasts to (b h q k); True = may attend.

    Returns:
        output: (b h q v).
        weights: (b h q k).

    Raises:
        TypeError, ValueError: heads that do not divide, shapes that do not fit.

    Source: Ainslie et al. (2023), section 2.2; with c = 1 Shazeer (2019), section 3.
    """
    validate_shared_heads(query, key)
    b, h, q, _ = query.shape
    c, k = key.shape[1:3]
    if mask is not None:
        validate_mask(mask, query, (b, h, q, k), "b h q k")
        mask = rearrange(mask.expand(b, h, q, k), "b (c g) q k -> b c (g q) k", c=c)
    # The queries of a group become rows of one product with their keys, so no key is copied.
    grouped = rearrange(query, "b (c g) q d -> b c (g q) d", c=c)
    output, weights = scaled_dot_product_attention(grouped, key, value, mask)
    return tuple(rearrange(x, "b c (g q) x -> b (c g) q x", q=q) for x in (output, weights))


SCHEMES = ("MHA", "GQA", "MQA", "MLA")


def bytes_per_token(
    scheme: str,
    num_layers: int,
    num_heads: int,
    head_width: int,
    bytes_per_number: int,
    kv_heads: int | None = None,
    latent_width: int | None = None,
    rope_width: int | None = None,
) -> int:
    """By how many bytes the cache of one text grows with each token.

    Args:
        scheme: "MHA", "GQA", "MQA" or "MLA".
        num_layers: each with a cache of its own.
        num_heads: h, of the queries.
        head_width: d, of a key and of a value.
        bytes_per_number: 4 for float32, 2 for float16.
        kv_heads: c, of the cache; GQA alone asks for it.
        latent_width: l; MLA alone asks for it.
        rope_width: r, of the one rotated key, even; MLA alone asks for it.

    Raises:
        ValueError: no such scheme, a size it needs and has not, heads that do not divide.

    Source: DeepSeek-AI (2024), table 1.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}; got {scheme!r}")
    validate_sizes(num_layers=num_layers, num_heads=num_heads, head_width=head_width)
    validate_sizes(bytes_per_number=bytes_per_number)
    if scheme == "MLA":
        validate_sizes(scheme, latent_width=latent_width, rope_width=rope_width)
        validate_even(rope_width=rope_width)
        numbers = latent_width + rope_width  # one of each, whatever the number of heads
    else:
        if scheme == "GQA":
            validate_sizes(scheme, kv_heads=kv_heads)
            if num_heads % kv_heads:
                raise ValueError(f"{num_heads} heads cannot share kv_heads={kv_heads} equally")
        cached_heads = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}[scheme]
        numbers = cached_heads * 2 * head_width  # a key and a value each
    return num_layers * numbers * bytes_per_number


def _for_heads(mask: Tensor | None) -> Tensor | None:
    """One mask for all heads: (b q k) gets an axis for them."""
    return mask[:, None] if mask is not None and mask.ndim == 3 else mask


class GroupedAttention(nn.Module):
    """Causal self-attention with c cached heads for h heads of queries, and rotated positions.

    Args:
        model_width: m
        num_heads: h; each is m/h wide.
        kv_heads: c, heads of keys and values; c = h is MHA, c = 1 is MQA.

    Raises:
        ValueError: heads that do not divide the width, or each other; heads of an odd width, for
            numbers are rotated in pairs.

    Source: as for `grouped_query_attention`; positions as in Su et al. (2021), section 3.4.
    """

    def __init__(self, model_width: int, num_heads: int, kv_heads: int):
        super().__init__()
        validate_sizes(model_width=model_width, num_heads=num_heads, kv_heads=kv_heads)
        if model_width % num_heads or num_heads % kv_heads:
            raise ValueError(
                f"kv_heads={kv_heads} must divide num_heads={num_heads}, and that must divide "
                f"model_width={model_width}"
            )
        if model_width // num_heads % 2:
            raise ValueError(
                f"num_heads={num_heads} in model_width={model_width} are "
                f"{model_width // num_heads} wide each; numbers are rotated in pairs, so it must "
                "be even"
            )
        self.num_heads, self.kv_heads = num_heads, kv_heads
        cached_width = model_width // num_heads * kv_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, cached_width)
        self.v_proj = nn.Linear(model_width, cached_width)
        self.out_proj = nn.Linear(model_width, model_width)

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b n m"]:
        """Attend within a whole text; `mask` as in `step`."""
        return self.step(x, None, mask)[0]

    @checked(m="q_proj.in_features")
    def step(
        self,
        x: Float[Tensor, "b q m"],
        cache: Cache | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "b q m"], Cache]:
        """Attend from q new positions to all so far; hide padding on the left by `mask`.

        Args:
            x: (b q m), the new positions.
            cache: keys and values of those before; None = none.
            mask: (q n+q), (b 1 n+q) or (b q n+q); True = may attend.

        Returns:
            output: (b q m).
            cache: keys, already rotated, and values: (b c n+q d) each.
        """
        start = positions_in(cache)
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        query = rotate(split_heads(self.q_proj(x), self.num_heads), positions)
        key = rotate(split_heads(self.k_proj(x), self.kv_heads), positions)
        value = split_heads(self.v_proj(x), self.kv_heads)
        heads, cache = cached_attention(
            query, key, value, cache, _for_heads(mask), grouped_query_attention
        )
        return self.out_proj(merge_heads(heads)), cache


class LatentAttention(nn.Module):
    """Multi-head latent attention: keys and values of all heads are made from one narrow vector.

    Only that vector, the latent, is cached, and one rotated key for all heads: a rotation between
    the latent and a head's key would keep the two products from becoming one (see `step`).

    Args:
        model_width: m
        num_heads: h
        head_width: d, of a head's key without its rotated part, and of its value.
        latent_width: l; at most m, or nothing is saved.
        rope_width: r, even: of the part of queries and keys that is rotated.

    Raises:
        ValueError: a size below 1, a latent wider than the model, an odd `rope_width`.

    Source: DeepSeek-AI (2024), "DeepSeek-V2", section 2.1; here with queries made in one step.
    """

    def __init__(
        self,
        model_width: int,
        num_heads: int,
        head_width: int,
        latent_width: int,
        rope_width: int,
    ):
        super().__init__()
        validate_sizes(model_width=model_width, num_heads=num_heads, head_width=head_width)
        validate_sizes(latent_width=latent_width, rope_width=rope_width)
        if latent_width > model_width:
            raise ValueError(
                f"latent_width={latent_width} is wider than model_width={model_width}: "
                "nothing is saved"
            )
        validate_even(rope_width=rope_width)
        self.num_heads, self.head_width, self.latent_width = num_heads, head_width, latent_width
        wide = num_heads * head_width
        self.q_proj = nn.Linear(model_width, wide, bias=False)
        self.q_rope = nn.Linear(model_width, num_heads * rope_width, bias=False)
        self.down = nn.Linear(model_width, latent_width, bias=False)
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.k_rope = nn.Linear(model_width, rope_width, bias=False)
        self.k_up = nn.Linear(latent_width, wide, bias=False)
        self.v_up = nn.Linear(latent_width, wide, bias=False)
        self.out_proj = nn.Linear(wide, model_width, bias=False)

    @checked(m="q_proj.in_features")
    def _project(self, x: Float[Tensor, "b q m"], start: int) -> tuple[Tensor, ...]:
        """Two parts of the queries (b h q d), (b h q r); what is kept: (b q l), (b q r)."""
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        query = split_heads(self.q_proj(x), self.num_heads)
        turned = rotate(split_heads(self.q_rope(x), self.num_heads), positions)
        return query, turned, self.norm(self.down(x)), rotate(self.k_rope(x), positions)

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b n m"]:
        """Attend within a whole text, with keys and values written out; `mask` as in `step`."""
        query, turned, latent, rope_key = self._project(x, start=0)
        key = split_heads(self.k_up(latent), self.num_heads)
        value = split_heads(self.v_up(latent), self.num_heads)
        shared = repeat(rope_key, "b n r -> b h n r", h=self.num_heads)
        query, key = torch.cat([query, turned], -1), torch.cat([key, shared], -1)
        heads, _ = cached_attention(query, key, value, None, _for_heads(mask))
        return self.out_proj(merge_heads(heads))

    def step(
        self,
        x: Float[Tensor, "b q m"],
        cache: Cache | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "b q m"], Cache]:
        """Attend from q new positions to all so far, and make no key and no value of the past.

        q · (z W) is (q Wᵀ) · z for a latent z: the query takes the matrix over, and meets the
        latents themselves. So all heads ask one cached head: its keys are latent and rotated key
        side by side, its values the latents.

        Args:
            x: (b q m), the new positions.
            cache: latents (b n l) and rotated keys (b n r) of those before; None = none.
            mask: (q n+q), (b 1 n+q) or (b q n+q); True = may attend.

        Returns:
            output: (b q m).
            cache: (b n+q l) and (b n+q r).
        """
        start = positions_in(cache)
        query, turned, latent, rope_key = self._project(x, start)
        latents, rope_keys = cache = extend(cache, latent, rope_key)
        k_up = rearrange(self.k_up.weight, "(h d) l -> h d l", h=self.num_heads)
        v_up = rearrange(self.v_up.weight, "(h d) l -> h d l", h=self.num_heads)
        absorbed = einsum(query, k_up, "b h q d, h d l -> b h q l")
        query = torch.cat([absorbed, turned], dim=-1)
        key = torch.cat([latents, rope_keys], dim=-1)
        # The scale is that of the scores as they were, of width d+r, not of the wider vectors.
        query = query * math.sqrt(query.shape[-1] / (self.head_width + turned.shape[-1]))
        visible = causal_mask(x.shape[1], key.shape[1]).to(x.device)
        visible = visible if mask is None else visible & _for_heads(mask)
        heads, _ = grouped_query_attention(query, key[:, None], latents[:, None], visible)
        heads = einsum(heads, v_up, "b h q l, h d l -> b h q d")
        return self.out_proj(merge_heads(heads)), cache


class CachedLayer(GPTLayer):
    """Chapter 9's layer with another attention, and a step that hands a cache in and out.

    Args:
        attention: with `forward` and `step`, such as `GroupedAttention`.
        model_width: m
        hidden_width: of the two-layer network.

    Raises:
        ValueError: an attention that is made for another width.
    """

    def __init__(self, attention: nn.Module, model_width: int, hidden_width: int):
        super().__init__(model_width, 1, hidden_width)
        # An attention of your own may have no `q_proj`; then nothing says what it reads.
        reads = attention.q_proj.in_features if hasattr(attention, "q_proj") else model_width
        if reads != model_width:
            raise ValueError(
                f"attention reads vectors of width {reads}; expected model_width={model_width}"
            )
        self.self_attention = attention

    def forward(
        self, x: Float[Tensor, "b n m"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b n m"]:
        """Return (b n m), of a whole text; the attention is causal by itself."""
        return self._think(x + self.self_attention(self.norm1(x), mask))

    def step(
        self,
        x: Float[Tensor, "b q m"],
        cache: Cache | None = None,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "b q m"], Cache]:
        """Return (b q m), of q new positions, and the cache with them."""
        heard, cache = self.self_attention.step(self.norm1(x), cache, mask)
        return self._think(x + heard), cache

    def _think(self, x: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh"))


class CachedGPT(GPT):
    """Chapter 9's decoder alone, with attentions of your choice, that can write with a cache.

    Args:
        words: size of the vocabulary.
        attentions: one a layer, which know about positions by themselves.
        model_width: m
        hidden_width: of the two-layer networks.

    Raises:
        ValueError: no attention, or one that is made for another width.
    """

    def __init__(
        self,
        words: int,
        attentions: Iterable[nn.Module],
        model_width: int = 64,
        hidden_width: int = 128,
    ):
        super().__init__(words, model_width, num_layers=0)
        self.positions = torch.zeros  # of n words and m features: nothing is added
        self.layers = nn.ModuleList(
            CachedLayer(attention, model_width, hidden_width) for attention in attentions
        )
        if not self.layers:
            raise ValueError("attentions must hold one a layer, so at least one; got none")

    def step(
        self,
        words: Int[Tensor, "b q"],
        caches: list[Cache] | None = None,
        real: Bool[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b q vocab"], list[Cache]]:
        """Score the word after each of q new ones.

        Args:
            words: (b q) ids.
            caches: one a layer, of the words before; None = nothing came before.
            real: (b n+q), of all words so far; False where padding stands, on the left.

        Returns:
            logits: (b q vocab).
            caches: with the new words.

        Raises:
            TypeError, ValueError: unknown words, caches that are not one a layer or are of other
                texts, or `real` of other words than those so far.
        """
        validate_ids("words", words, self.embedding.num_embeddings)
        if caches is not None and len(caches) != len(self.layers):
            raise ValueError(f"needs {len(self.layers)} caches, one a layer; got {len(caches)}")
        if real is not None:
            so_far = positions_in(caches[0] if caches else None) + words.shape[1]
            if real.dtype != torch.bool or real.shape != (len(words), so_far):
                raise ValueError(
                    f"real must be boolean, (b n+q) = ({len(words)} {so_far}); "
                    f"got ({' '.join(map(str, real.shape))}) of {real.dtype}"
                )
        x = self.embedding(words) * math.sqrt(self.embedding.embedding_dim)
        mask, extended = None if real is None else real[:, None], []
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x, cache = layer.step(x, cache, mask)
            extended.append(cache)
        return self.output(self.norm(x)), extended


@checked
def left_padded(tokens: Int[Tensor, "b n"], pad: int) -> Int[Tensor, "b n"]:
    """Move the padding on the right of each row to its left, so that all rows end together."""
    n = tokens.shape[1]
    padding = (tokens == pad).sum(-1, keepdim=True)
    return tokens.gather(1, (torch.arange(n, device=tokens.device) - padding) % n)


@torch.no_grad()
def write(
    model: CachedGPT,
    prompt: Int[Tensor, "b n"],
    bos: int,
    eos: int,
    max_length: int,
    pad: int | None = None,
) -> Int[Tensor, "b t"]:
    """Continue every row greedily, each word computed once.

    Args:
        prompt: (b n) ids, read in one piece; padding stands on the left.
        bos: id that stands between the prompt and what is written.
        eos: id that closes a row.
        max_length: words to write at most.
        pad: id that fills up short prompts; None = none is short.

    Returns:
        (b, ≤ max_length) ids; after a row's first `eos` only `eos`.

    Raises:
        TypeError, ValueError: a prompt without a word, unknown words, padding on the right.
    """
    words = model.embedding.num_embeddings
    validate_ids("prompt", prompt, words, pad)
    for name, word in (("bos", bos), ("eos", eos)):
        if word not in range(words):
            raise ValueError(f"{name} must be the id of a word, 0 to {words - 1}; got {word!r}")
    if pad is not None and bool((prompt[:, -1] == pad).any()):
        raise ValueError(
            "prompt must end with a word in every row, since new ones are written behind it; "
            "`left_padded` moves padding to the left"
        )
    real = torch.ones_like(prompt, dtype=torch.bool) if pad is None else prompt != pad
    _, caches = model.step(prompt, real=real)

    def step(word: Tensor, state: tuple) -> tuple[Tensor, tuple]:
        real, caches = state
        real = torch.cat([real, torch.ones_like(real[:, :1])], dim=1)
        logits, caches = model.step(word[:, None], caches, real)
        return logits[:, -1], (real, caches)

    return greedy_decode(step, (real, caches), bos, eos, max_length, len(prompt))


def pooled_heads(layer: GroupedAttention, kv_heads: int) -> GroupedAttention:
    """The layer with fewer cached heads, each the mean of those it replaces.

    Raises:
        ValueError: `kv_heads` does not divide the layer's.

    Source: Ainslie et al. (2023), section 2.1.
    """
    if kv_heads < 1 or layer.kv_heads % kv_heads:
        raise ValueError(f"{layer.kv_heads} cached heads cannot become {kv_heads} by equal groups")
    pooled = GroupedAttention(layer.q_proj.in_features, layer.num_heads, kv_heads)
    pooled = pooled.to(layer.q_proj.weight)
    state = layer.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        cut = state[name].unflatten(0, (kv_heads, layer.kv_heads // kv_heads, -1))  # c g d …
        state[name] = cut.mean(1).flatten(0, 1)
    pooled.load_state_dict(state)
    return pooled


Ring = tuple[Float[Tensor, "... w d"], Float[Tensor, "... w v"], int]


def rolling_attention(
    query: Float[Tensor, "... q d"],
    key: Float[Tensor, "... q d"],
    value: Float[Tensor, "... q v"],
    ring: Ring | None,
    width: int,
) -> tuple[Float[Tensor, "... q v"], Ring]:
    """Attend to oneself and the `width` − 1 positions before, from a cache that never grows.

    Position p is kept in place p mod `width`, where it overwrites position p − `width`.

    Args:
        query, key: (… q d), of the new positions.
        value: (… q v).
        ring: keys (… w d), values (… w v), and how many positions came so far; None = none.
        width: w, of the window and of the ring.

    Returns:
        output: (… q v).
        ring: with the new positions.

    Source: Jiang et al. (2023), "Mistral 7B", section 2 ("rolling buffer cache").
    """
    validate_sizes(width=width)
    validate_step(query, key, None, 0)
    if ring is None:
        empty = (x.new_zeros(*x.shape[:-2], width, x.shape[-1]) for x in (key, value))
        ring = *empty, 0
    keys, values, count = ring
    if positions_in((keys, values)) != width:
        raise ValueError(f"the ring has {keys.shape[-2]} places, but width = {width}")
    validate_cache((keys, values), key=key, value=value)
    places = torch.arange(width, device=key.device)
    held = count - 1 - (count - 1 - places) % width  # the position in each place; < 0: empty
    new = torch.arange(count, count + key.shape[-2], device=key.device)
    at = torch.cat([held, new])
    ago = new[:, None] - at  # q w+q
    visible = (ago >= 0) & (ago < width) & (at >= 0)
    # The ring is read before it is overwritten: the first of many new positions still need the old.
    everything = torch.cat([keys, key], dim=-2), torch.cat([values, value], dim=-2)
    output, _ = scaled_dot_product_attention(query, *everything, visible)
    last = new[-width:]
    keys = keys.index_copy(-2, last % width, key[..., -width:, :])
    values = values.index_copy(-2, last % width, value[..., -width:, :])
    return output, (keys, values, count + len(new))


@checked
def write_paged(
    pages: Float[Tensor, "p s d"],
    table: Int[Tensor, "b t"],
    positions: Int[Tensor, " b"],
    new: Float[Tensor, "b d"],
) -> Float[Tensor, "p s d"]:
    """Store one vector a text: position i of text b lies in page table[b, i // s], at i mod s.

    Args:
        pages: (p s d), the memory that all texts share; s positions a page.
        table: (b t), the block table: which t pages belong to each text, in order.
        positions: (b), where in its text each new vector stands.
        new: (b d).

    Raises:
        TypeError, ValueError: shapes that do not fit, a position behind the text's last page, a
            page that does not exist.

    Source: Kwon et al. (2023), "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", section 4.
    """
    size = pages.shape[1]
    validate_paged(positions, size * table.shape[1])
    validate_ids("table", table, len(pages))
    page = table.gather(1, (positions // size)[:, None])[:, 0]
    return pages.index_put((page, positions % size), new)


@checked
def read_paged(
    pages: Float[Tensor, "p s d"], table: Int[Tensor, "b t"]
) -> Float[Tensor, "b t*s d"]:
    """Collect every text's vectors in their order, up to the end of its last page.

    Raises:
        TypeError, ValueError: shapes that do not fit, a page that does not exist.
    """
    validate_ids("table", table, len(pages))
    return rearrange(pages[table], "b t s d -> b (t s) d")
