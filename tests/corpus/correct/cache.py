"""Right answers to chapter 10's tasks, in styles the course does not use."""

import functools
import math

import einops
import torch
import torch.nn.functional as F
from torch import nn

from attncourse import masking, scaled_dot_product
from attncourse.positions import rotate

# --- extend


def extend(cache, key, value):
    if cache is None:
        return key, value
    keys, values = cache
    return torch.cat([keys, key], dim=-2), torch.cat((values, value), dim=-2)


def extend_by_einops(cache, key, value):
    """One pattern; the pieces may differ in the packed axis."""
    if not cache:
        return [key, value]
    return [einops.pack(pair, "* d")[0] if pair[0].ndim == 2 else torch.cat(pair, -2)
            for pair in zip(cache, (key, value), strict=False)]  # fmt: skip


def extend_from_empty(cache=None, key=None, value=None):
    """Nothing so far is a cache of length 0."""
    if cache is None:
        cache = key[..., :0, :], value[..., :0, :]
    return tuple(
        torch.cat(pair, dim=key.ndim - 2) for pair in zip(cache, (key, value), strict=False)
    )


def extend_by_assignment(cache, key, value):
    """New memory, filled in two pieces; autograd follows an assignment, too."""
    if cache is None:
        return key.clone(), value.clone()
    longer = []
    for kept, new in zip(cache, (key, value), strict=False):
        n = kept.shape[-2]
        whole = kept.new_empty((*kept.shape[:-2], n + new.shape[-2], kept.shape[-1]))
        whole[..., :n, :] = kept
        whole[..., n:, :] = new
        longer.append(whole)
    return tuple(longer)


def extend_turned(cache, key, value):
    """Positions moved to the front, joined there, and moved back."""

    def joined(kept, new):
        return torch.cat([kept.movedim(-2, 0), new.movedim(-2, 0)]).movedim(0, -2)

    return (key, value) if cache is None else (joined(cache[0], key), joined(cache[1], value))


def extend_position_by_position(cache, key, value):
    rows = list(zip(*(x.unbind(-2) for x in cache), strict=False)) if cache is not None else []
    rows += zip(key.unbind(-2), value.unbind(-2), strict=False)
    keys, values = zip(*rows, strict=False)
    return torch.stack(keys, -2), torch.stack(values, -2)


def extend_by_padding(cache, key, value):
    if cache is None:
        return key + 0, value + 0
    old, new = cache[0].size(-2), key.size(-2)
    return [
        F.pad(kept, (0, 0, 0, new)) + F.pad(fresh, (0, 0, old, 0))
        for kept, fresh in zip(cache, (key, value), strict=False)
    ]


def extend_by_scatter(cache, key, value):
    """The new rows are put behind the old ones by their numbers."""
    if not cache:
        return key, value
    longer = []
    for kept, fresh in ((cache[0], key), (cache[1], value)):
        rows = torch.arange(kept.shape[-2] + fresh.shape[-2])
        old, new = rows.split((kept.shape[-2], fresh.shape[-2]))
        empty = kept.new_zeros(*kept.shape[:-2], len(rows), kept.shape[-1])
        longer.append(empty.index_copy(-2, old, kept).index_copy(-2, new, fresh))
    return tuple(longer)


EXTEND = [
    extend,
    extend_by_einops,
    extend_from_empty,
    extend_by_assignment,
    extend_turned,
    extend_position_by_position,
    extend_by_padding,
    extend_by_scatter,
    functools.partial(extend),
]

# --- cached_attention


def cached_attention(query, key, value, cache=None, mask=None):
    keys, values = extend(cache, key, value)
    visible = masking.causal_mask(query.shape[-2], keys.shape[-2])
    if mask is not None:
        visible = visible & mask
    output, _ = scaled_dot_product.scaled_dot_product_attention(query, keys, values, visible)
    return output, (keys, values)


def cached_by_places(query, key, value, cache=None, mask=None):
    """Places compared instead of a triangle."""
    keys, values = extend_from_empty(cache, key, value)
    n, q = keys.shape[-2], query.shape[-2]
    at = torch.arange(n)
    visible = at <= at[n - q :, None]
    visible = visible if mask is None else torch.logical_and(visible, mask)
    scores = torch.einsum("...qd,...kd->...qk", query, keys) / math.sqrt(query.shape[-1])
    scores = torch.where(visible, scores, torch.finfo(scores.dtype).min)
    weights = torch.where(visible, torch.softmax(scores, -1), 0)
    return weights.matmul(values), [keys, values]


def cached_row_by_row(query, key, value, cache=None, mask=None):
    """Each new position by itself, over what it may see and nothing else."""
    keys, values = extend_turned(cache, key, value)
    n, q = keys.shape[-2], query.shape[-2]
    rows = []
    for i in range(q):
        seen = n - q + i + 1
        scores = query[..., i : i + 1, :] @ keys[..., :seen, :].transpose(-2, -1)
        scores = scores / query.shape[-1] ** 0.5
        if mask is None:
            weights = scores.softmax(-1)
        else:
            row = mask[..., -1:, :seen] if mask.shape[-2] == 1 else mask[..., i : i + 1, :seen]
            weights = scores.masked_fill(~row, -1e30).softmax(-1).masked_fill(~row, 0)
        rows.append(weights @ values[..., :seen, :])
    return torch.cat(rows, -2), (keys, values)


def cached_word_by_word(query, key, value, cache=None, mask=None):
    """Several new positions are one after the other, through the function itself."""
    q, n = query.shape[-2], 0 if cache is None else cache[0].shape[-2]
    if q > 1:
        outputs = []
        for i in range(q):
            given = mask
            if mask is not None:
                given = mask if mask.shape[-2] == 1 else mask[..., i : i + 1, :]
                given = given[..., : n + i + 1]
            pieces = (x[..., i : i + 1, :] for x in (query, key, value))
            output, cache = cached_word_by_word(*pieces, cache, given)
            outputs.append(output)
        return torch.cat(outputs, dim=-2), cache
    cache = extend(cache, key, value)
    if mask is None:
        mask = torch.ones(1, n + 1, dtype=torch.bool)
    return scaled_dot_product.scaled_dot_product_attention(query, *cache, mask)[0], cache


def cached_in_double(query, key, value, cache=None, mask=None):
    keys, values = extend(cache, key, value)
    n, q = keys.shape[-2], query.shape[-2]
    later = torch.ones(q, n).triu(n - q + 1) > 0
    hidden = later if mask is None else later | ~mask
    bias = torch.zeros(hidden.shape).double().masked_fill(hidden, -1e300)
    scores = query.double() @ keys.double().mT * query.shape[-1] ** -0.5 + bias
    weights = scores.softmax(-1) * ~hidden.all(-1, keepdim=True)
    return (weights @ values.double()).to(query.dtype), (keys, values)


class CachedObject:
    """Something that can be called; its cache is a list."""

    def __call__(self, query, key, value, cache=None, mask=None):
        keys, values = extend_by_padding(cache, key, value)
        scores = (query[..., :, None, :] * keys[..., None, :, :]).sum(-1) / query.shape[-1] ** 0.5
        far = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(
            scores.shape[-1] - scores.shape[-2]
        )
        seen = far if mask is None else (far.int() * mask.int()).bool()
        top = scores.masked_fill(~seen, -math.inf).amax(-1, keepdim=True)
        top = top.masked_fill(top == -math.inf, 0)
        powers = (scores - top).exp().masked_fill(~seen, 0)
        total = powers.sum(-1, keepdim=True)
        return (powers / total.masked_fill(total == 0, 1)) @ values, [keys, values]


CACHED = [
    cached_attention,
    cached_by_places,
    cached_row_by_row,
    cached_word_by_word,
    cached_in_double,
    CachedObject(),
    functools.partial(cached_by_places),
]

# --- grouped_query_attention


def grouped(query, key, value, mask=None):
    b, h, q, d = query.shape
    c = key.shape[1]
    rows = query.reshape(b, c, h // c * q, d)
    if mask is not None:
        mask = mask.expand(b, h, q, key.shape[2]).reshape(b, c, h // c * q, -1)
    output, weights = scaled_dot_product.scaled_dot_product_attention(rows, key, value, mask)
    return output.reshape(b, h, q, -1), weights.reshape(b, h, q, -1)


def grouped_by_loop(query, key, value, mask=None):
    """Group by group."""
    g = query.size(1) // key.size(1)
    outputs, tables = [], []
    for i in range(key.size(1)):
        asks, k, v = query[:, i * g : (i + 1) * g], key[:, i], value[:, i]
        scores = torch.stack([x @ k.mT for x in asks.unbind(1)], 1) / math.sqrt(query.size(-1))
        if mask is not None:
            m = mask.expand(*query.shape[:3], key.size(2))[:, i * g : (i + 1) * g]
            scores = scores.masked_fill(~m, -1e30)
        weights = scores.softmax(-1)
        weights = weights if mask is None else weights * m
        tables.append(weights)
        outputs.append(torch.stack([w @ v for w in weights.unbind(1)], 1))
    return torch.cat(outputs, 1), torch.cat(tables, 1)


def grouped_by_einops(query, key, value, mask=None):
    c, q = key.shape[1], query.shape[2]
    asks = einops.rearrange(query, "b (c g) q d -> b c (g q) d", c=c)
    scores = torch.matmul(asks, key.transpose(2, 3)) * query.shape[-1] ** -0.5
    scores = einops.rearrange(scores, "b c (g q) k -> b (c g) q k", q=q)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = weights.masked_fill(mask.logical_not(), 0.0)
    heads = einops.rearrange(weights, "b (c g) q k -> b c (g q) k", c=c) @ value
    return einops.rearrange(heads, "b c (g q) v -> b (c g) q v", q=q), weights


def grouped_head_by_head(query, key, value, mask=None):
    """Each head of queries looks up its own head of keys; nothing is copied."""
    g = query.shape[1] // key.shape[1]
    done = []
    for head in range(query.shape[1]):
        m = None
        if mask is not None:
            m = mask.expand(*query.shape[:3], key.shape[2])[:, head]
        k, v = key[:, head // g], value[:, head // g]
        done.append(one_head(query[:, head], k, v, m))
    outputs, weights = zip(*done, strict=False)
    return torch.stack(outputs, 1), torch.stack(weights, 1)


def one_head(query, key, value, mask):
    scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.shape[-1])
    if mask is None:
        weights = scores.softmax(-1)
    else:
        alive = mask.any(-1, keepdim=True)
        weights = scores.masked_fill(~mask & alive, -math.inf).softmax(-1) * alive
    return torch.bmm(weights, value), weights


def grouped_over_positions(query, key, value, mask=None):
    """The group stands behind the positions: (q g), and the mask with it."""
    (b, h, q, d), c = query.shape, key.shape[1]

    def rows(x):
        return x.unflatten(1, (c, h // c)).transpose(2, 3).flatten(2, 3)

    def back(x):
        return x.unflatten(2, (q, h // c)).transpose(2, 3).flatten(1, 2)

    scores = rows(query / d**0.5) @ key.mT
    if mask is not None:
        hidden = ~rows(mask.expand(b, h, q, key.shape[2]).contiguous())
        weights = torch.softmax(scores.masked_fill(hidden, -3e38), -1).masked_fill(hidden, 0)
    else:
        weights = torch.softmax(scores, -1)
    return back(weights @ value), back(weights)


def grouped_keys_first(query, key, value, mask=None):
    """Scores turned around: keys times queries."""
    (b, h, q, d), (_, c, k, _) = query.shape, key.shape
    turned = key @ query.reshape(b, c, -1, d).transpose(-1, -2)  # b c k (g q)
    scores = turned.div(math.sqrt(d)).transpose(-1, -2).reshape(b, h, q, k)
    if mask is not None:
        scores = scores + torch.zeros_like(scores).masked_fill(~mask, -1e30)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = torch.where(mask, weights, torch.zeros((), dtype=weights.dtype))
    return (weights.reshape(b, c, -1, k) @ value).reshape(b, h, q, -1), weights


GROUPED = [
    grouped,
    grouped_by_loop,
    grouped_by_einops,
    grouped_head_by_head,
    grouped_over_positions,
    grouped_keys_first,
    functools.partial(grouped),
]

# --- bytes_per_token


def cost(scheme, num_layers, num_heads, head_width, bytes_per_number,
         kv_heads=None, latent_width=None, rope_width=None):  # fmt: skip
    if scheme == "MLA":
        numbers = latent_width + rope_width
    elif scheme == "MHA":
        numbers = 2 * num_heads * head_width
    elif scheme == "GQA":
        numbers = 2 * kv_heads * head_width
    elif scheme == "MQA":
        numbers = 2 * head_width
    else:
        raise ValueError(scheme)
    return num_layers * numbers * bytes_per_number


class UnknownScheme(ValueError):
    pass


def cost_by_match(scheme, num_layers, num_heads, head_width, bytes_per_number, *more, **named):
    kv_heads, latent, rope = [*more, None, None, None][:3]
    kv_heads = named.get("kv_heads", kv_heads)
    match scheme:
        case "MLA":
            kept = named.get("latent_width", latent) + named.get("rope_width", rope)
        case "MHA" | "GQA" | "MQA":
            heads = num_heads if scheme == "MHA" else kv_heads if scheme == "GQA" else 1
            kept = head_width * heads << 1
        case other:
            raise UnknownScheme(other)
    return int(kept * num_layers * bytes_per_number)


def cost_by_table(scheme, num_layers, num_heads, head_width, bytes_per_number,
                  kv_heads=0, latent_width=0, rope_width=0):  # fmt: skip
    table = {
        "MHA": lambda: (num_heads * head_width,) * 2,
        "GQA": lambda: (kv_heads * head_width,) * 2,
        "MQA": lambda: (head_width,) * 2,
        "MLA": lambda: (latent_width, rope_width),
    }
    if scheme not in table:
        raise ValueError(f"{scheme} is none of {', '.join(table)}")
    return sum(table[scheme]()) * num_layers * bytes_per_number


def cost_measured(scheme, num_layers, num_heads, head_width, bytes_per_number,
                  kv_heads=None, latent_width=None, rope_width=None):  # fmt: skip
    """Tensors that have a shape and no memory."""
    dtype = {1: torch.int8, 2: torch.float16, 4: torch.float32, 8: torch.float64}[bytes_per_number]
    if scheme == "MLA":
        shapes = [(latent_width,), (rope_width,)]
    else:
        try:
            heads = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}[scheme]
        except KeyError:
            raise ValueError(scheme) from None
        shapes = [(heads, head_width)] * 2
    kept = [torch.empty(num_layers, *shape, dtype=dtype, device="meta") for shape in shapes]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def cost_by_loops(scheme, num_layers, num_heads, head_width, bytes_per_number,
                  kv_heads=None, latent_width=None, rope_width=None):  # fmt: skip
    if scheme not in {"MHA", "GQA", "MQA", "MLA"}:
        raise ValueError
    total = 0
    for _ in range(num_layers):
        if scheme == "MLA":
            total += latent_width
            total += rope_width
            continue
        for _ in range({"MHA": num_heads, "GQA": kv_heads}.get(scheme, 1)):
            total += head_width + head_width
    return total * bytes_per_number


def cost_by_products(scheme, *sizes, **named):
    names = ("num_layers", "num_heads", "head_width", "bytes_per_number",
             "kv_heads", "latent_width", "rope_width")  # fmt: skip
    given = dict(zip(names, sizes, strict=False)) | named
    outer = math.prod(given[name] for name in ("num_layers", "bytes_per_number"))
    if scheme == "MLA":
        return outer * sum(given[name] for name in ("latent_width", "rope_width"))
    heads = {"MHA": given["num_heads"], "GQA": given.get("kv_heads"), "MQA": 1}.get(scheme)
    if heads is None:
        raise ValueError("no scheme: " + scheme)
    return 2 * outer * heads * given["head_width"]


COST = [
    cost,
    cost_by_match,
    cost_by_table,
    cost_measured,
    cost_by_loops,
    cost_by_products,
    functools.partial(cost),
]

# --- LatentAttention


class Bare(nn.Module):
    """What all of these learn."""

    def __init__(self, model_width, num_heads, head_width, latent_width, rope_width):
        super().__init__()
        self.h, self.d, self.l, self.r = num_heads, head_width, latent_width, rope_width
        for name, inward, outward in (
            ("q_proj", model_width, num_heads * head_width),
            ("q_rope", model_width, num_heads * rope_width),
            ("down", model_width, latent_width),
            ("k_rope", model_width, rope_width),
            ("k_up", latent_width, num_heads * head_width),
            ("v_up", latent_width, num_heads * head_width),
            ("out_proj", num_heads * head_width, model_width),
        ):
            setattr(self, name, nn.Linear(inward, outward, bias=False))
        self.norm = nn.RMSNorm(latent_width, eps=1e-6)

    def heads(self, x):
        return einops.rearrange(x, "b n (h d) -> b h n d", h=self.h)


class OneTensor(Bare):
    """The cache is one tensor (b n l+r); the whole text is one step."""

    def forward(self, x):
        return self.step(x)[0]

    def step(self, x, cache=None):
        first = 0 if cache is None else cache.shape[1]
        places = torch.arange(first, first + x.shape[1])
        new = torch.cat([self.norm(self.down(x)), rotate(self.k_rope(x), places)], -1)
        cache = new if cache is None else torch.cat([cache, new], 1)
        content = self.heads(self.q_proj(x))
        k_up = einops.rearrange(self.k_up.weight, "(h d) l -> h d l", h=self.h)
        query = torch.cat([content @ k_up, rotate(self.heads(self.q_rope(x)), places)], -1)
        scores = query @ cache[:, None].mT / math.sqrt(self.d + self.r)
        at = torch.arange(cache.shape[1])
        weights = scores.masked_fill(at > places[:, None], -math.inf).softmax(-1)
        latents = weights @ cache[:, None, :, : self.l]
        v_up = einops.rearrange(self.v_up.weight, "(h d) l -> h l d", h=self.h)
        heads = einops.rearrange(latents @ v_up, "b h n d -> b n (h d)")
        return self.out_proj(heads), cache


class InADict(Bare):
    """Naive and absorbed, a cache with names and a count."""

    def forward(self, x):
        n = x.shape[1]
        at = torch.arange(n)
        latent = self.norm(self.down(x))
        key = torch.cat(
            [
                self.heads(self.k_up(latent)),
                rotate(self.k_rope(x), at)[:, None].expand(-1, self.h, -1, -1),
            ],
            -1,
        )
        query = torch.cat([self.heads(self.q_proj(x)), rotate(self.heads(self.q_rope(x)), at)], -1)
        heads, _ = scaled_dot_product.scaled_dot_product_attention(
            query, key, self.heads(self.v_up(latent)), masking.causal_mask(n)
        )
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def step(self, x, cache=None):
        cache = cache or {"length": 0, "latent": [], "rope": []}
        first, n = cache["length"], x.shape[1]
        at = torch.arange(first, first + n)
        cache = {
            "length": first + n,
            "latent": [*cache["latent"], self.norm(self.down(x))],
            "rope": [*cache["rope"], rotate(self.k_rope(x), at)],
        }
        latents, ropes = (torch.cat(cache[name], 1) for name in ("latent", "rope"))
        rows = []
        for i, head in enumerate(self.heads(self.q_proj(x)).unbind(1)):
            part = slice(i * self.d, (i + 1) * self.d)
            turned = rotate(self.heads(self.q_rope(x))[:, i], at)
            scores = head @ self.k_up.weight[part] @ latents.mT + turned @ ropes.mT
            seen = torch.ones(n, first + n, dtype=torch.bool).tril(first)
            scores = (scores * (self.d + self.r) ** -0.5).masked_fill(~seen, -1e30)
            rows.append(scores.softmax(-1) @ latents @ self.v_up.weight[part].T)
        return self.out_proj(torch.cat(rows, -1)), cache


class WordByWord(Bare):
    """A step takes its new words one at a time, and a text is a step."""

    def forward(self, x):
        return self.step(x, None)[0]

    def step(self, x, cache=None):
        outputs = []
        for word in x.split(1, 1):
            output, cache = self.word(word, cache)
            outputs.append(output)
        return torch.cat(outputs, 1), cache

    def word(self, x, cache):
        place = torch.tensor([0 if cache is None else cache[0].shape[1]])
        cache = extend(cache, self.norm(self.down(x)), rotate(self.k_rope(x), place))
        query = torch.einsum(
            "bhd,hdl->bhl",
            self.q_proj(x)[:, 0].unflatten(-1, (self.h, self.d)),
            self.k_up.weight.unflatten(0, (self.h, self.d)),
        )
        turned = rotate(self.heads(self.q_rope(x)), place)[:, :, 0]
        scores = torch.einsum("bhl,bnl->bhn", query, cache[0])
        scores = scores + torch.einsum("bhr,bnr->bhn", turned, cache[1])
        weights = torch.softmax(scores / math.sqrt(self.d + self.r), -1)
        latent = torch.einsum("bhn,bnl->bhl", weights, cache[0])
        up = self.v_up.weight.unflatten(0, (self.h, self.d))
        return self.out_proj(torch.einsum("bhl,hdl->bhd", latent, up).flatten(1))[:, None], cache


class OwnNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class WithItsOwnNorm(OneTensor):
    """A norm by hand, kept before the latent is normalized; normalized when it is read."""

    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.norm = OwnNorm(self.l)

    def step(self, x, cache=None):
        first = 0 if cache is None else cache[0].shape[1]
        places = torch.arange(first, first + x.shape[1])
        cache = extend_turned(cache, self.down(x), rotate(self.k_rope(x), places))
        latents = self.norm(cache[0])
        k_up, v_up = (up.weight.reshape(self.h, self.d, self.l) for up in (self.k_up, self.v_up))
        query = self.heads(self.q_proj(x)) @ k_up
        scores = query @ latents[:, None].transpose(-1, -2)
        scores = scores + rotate(self.heads(self.q_rope(x)), places) @ cache[1][:, None].mT
        seen = torch.arange(latents.shape[1]) <= places[:, None]
        scores = torch.where(seen, scores / (self.d + self.r) ** 0.5, -torch.inf)
        heads = scores.softmax(-1) @ latents[:, None] @ v_up.mT
        return self.out_proj(heads.transpose(1, 2).reshape(*x.shape[:2], -1)), cache


class Joined(OneTensor):
    """v_up and out_proj as one matrix, and the scale in the query."""

    def step(self, x, cache=None):
        first = 0 if cache is None else cache["at"].shape[1]
        places = torch.arange(first, first + x.shape[1])
        new = torch.cat([rotate(self.k_rope(x), places), self.norm(self.down(x))], -1)
        kept = new if cache is None else torch.cat([cache["at"], new], 1)
        query = torch.cat(
            [
                rotate(self.heads(self.q_rope(x)), places),
                self.heads(self.q_proj(x)) @ self.k_up.weight.view(self.h, self.d, self.l),
            ],
            -1,
        ) / math.sqrt(self.d + self.r)
        later = torch.arange(kept.shape[1]) > places[:, None]
        weights = (query @ kept.unsqueeze(1).mT).masked_fill(later, -1e38).softmax(-1)
        latent = weights @ kept[:, None, :, self.r :]
        both = torch.einsum(
            "hdl,mhd->hlm",
            self.v_up.weight.view(self.h, self.d, self.l),
            self.out_proj.weight.view(-1, self.h, self.d),
        )
        return torch.einsum("bhql,hlm->bqm", latent, both), {"at": kept}


LATENT = [OneTensor, InADict, WordByWord, WithItsOwnNorm, Joined, functools.partial(InADict)]

CORRECT = {
    "extend": EXTEND,
    "cached_attention": CACHED,
    "grouped_query_attention": GROUPED,
    "bytes_per_token": COST,
    "LatentAttention": LATENT,
}
