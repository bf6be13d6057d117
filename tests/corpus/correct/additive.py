"""Right answers in many styles: the judge must accept every one of them, on every seed."""

import functools

import einops
import torch
import torch.nn.functional as F
from torch import nn

# --- dot_scores


def dot_einsum(query, keys):
    return torch.einsum("bd,bkd->bk", query, keys)


def dot_by_broadcasting(q, h):
    return (q.unsqueeze(1) * h).sum(dim=-1)


def dot_by_bmm(query, keys):
    return torch.bmm(keys, query.unsqueeze(-1)).squeeze(-1)


def dot_by_matmul(query, keys):
    return (query[:, None, :] @ keys.mT)[:, 0]


def dot_with_loops(query, keys):
    return torch.stack([torch.stack([q @ k for k in row]) for q, row in zip(query, keys)])  # noqa: B905


def dot_over_features(query, keys):
    total = torch.zeros_like(keys[..., 0])
    for i in range(query.shape[-1]):
        total = total + query[:, i, None] * keys[:, :, i]
    return total


def dot_all_pairs_then_own(query, keys):
    """Every query with every sentence, of which only the diagonal is kept."""
    return torch.einsum("cd,bkd->bck", query, keys).diagonal(dim1=0, dim2=1).mT


def dot_in_double(query, keys):
    return torch.linalg.vecdot(query.double()[:, None], keys.double()).to(keys.dtype)


def dot_by_vmap(query, keys):
    return torch.vmap(lambda q, k: k @ q)(query, keys)


def dot_by_squares(query, keys):
    """q·k = (|q + k|² − |q − k|²) / 4, in double so that nothing cancels."""
    q, k = query.double()[:, None], keys.double()
    return (((q + k).square() - (q - k).square()).sum(-1) / 4).to(keys.dtype)


def dot_einops(query, keys):
    return einops.reduce(einops.rearrange(query, "b d -> b 1 d") * keys, "b k d -> b k", "sum")


def dot_by_cosine(query, keys):
    angles = F.cosine_similarity(query[:, None], keys, dim=-1, eps=1e-30)
    return angles * query.norm(dim=-1, keepdim=True) * keys.norm(dim=-1)


def dot_row_by_row(query, keys):
    scores = torch.empty(keys.shape[:2], dtype=keys.dtype)
    for row in range(len(keys)):
        scores[row] = keys[row].mv(query[row])
    return scores


class Dot(nn.Module):
    def forward(self, query, keys):
        return einops.einsum(query, keys, "b d, b k d -> b k")


DOT = [
    dot_einsum,
    dot_by_broadcasting,
    dot_by_bmm,
    dot_by_matmul,
    dot_with_loops,
    dot_over_features,
    dot_all_pairs_then_own,
    dot_in_double,
    dot_by_vmap,
    dot_by_squares,
    dot_einops,
    dot_by_cosine,
    dot_row_by_row,
    lambda query, keys: torch.linalg.vecdot(query[:, None], keys),
    Dot(),
    functools.partial(torch.einsum, "bd,bkd->bk"),
]


# --- general_scores


def general_einsum(query, keys, W):
    return torch.einsum("be,ed,bkd->bk", query, W, keys)


def general_projects_the_query(query, keys, W):
    return dot_by_bmm(query @ W, keys)


def general_projects_the_keys(query, keys, W):
    return ((keys @ W.T) * query[:, None]).sum(-1)


def general_bilinear(query, keys, W):
    copies = query[:, None].expand(-1, keys.shape[1], -1)
    return F.bilinear(copies.contiguous(), keys.contiguous(), W[None])[..., 0]


def general_linear(query, keys, W):
    return torch.baddbmm(
        torch.zeros_like(keys[..., :1]), keys, F.linear(query, W.t()).unsqueeze(2)
    ).flatten(1)


def general_outer(query, keys, W):
    """⟨W, q kᵀ⟩: the matrix of all products, weighed by W."""
    outer = query[:, None, :, None] * keys[:, :, None, :]
    return (outer * W).sum(dim=(-2, -1))


def general_with_loops(query, keys, W):
    return torch.stack([torch.stack([q @ (W @ k) for k in row]) for q, row in zip(query, keys)])  # noqa: B905


def general_tensordot(query, keys, W):
    everything = torch.tensordot(torch.tensordot(query, W, 1), keys, dims=([1], [2]))
    return everything[torch.arange(len(query)), torch.arange(len(query))]


def general_in_double(query, keys, W):
    return general_einsum(query.double(), keys.double(), W.double()).type_as(query)


def general_all_at_once(query, keys, W):
    return (query[:, None, :, None] * W * keys[:, :, None, :]).sum((-1, -2))


def general_by_vmap(query, keys, W):
    return torch.vmap(lambda q, k: k @ (W.T @ q))(query, keys)


GENERAL = [
    general_einsum,
    general_projects_the_query,
    general_projects_the_keys,
    general_bilinear,
    general_linear,
    general_outer,
    general_with_loops,
    general_tensordot,
    general_in_double,
    general_all_at_once,
    general_by_vmap,
    lambda *args, **kwargs: general_einsum(*args, **kwargs),
    functools.partial(general_projects_the_query),
]


# --- concat_scores


def concat_expand(query, keys, W, v):
    query = query.unsqueeze(1).expand(-1, keys.size(1), -1)
    return torch.tanh(torch.cat((query, keys), dim=-1) @ W) @ v


def concat_repeat(query, keys, W, v):
    query = einops.repeat(query, "b e -> b k e", k=keys.shape[1])
    hidden = torch.einsum("bkc,ca->bka", torch.cat([query, keys], 2), W).tanh()
    return torch.einsum("bka,a->bk", hidden, v)


def concat_interleave(query, keys, W, v):
    b, k, d = keys.shape
    rows = torch.hstack([query.repeat_interleave(k, 0), keys.reshape(b * k, d)])
    return torch.mv(torch.tanh(torch.mm(rows, W)), v).view(b, k)


def concat_as_additive(query, keys, W, v):
    e = query.shape[-1]
    return torch.tanh((query @ W[:e]).unsqueeze(1) + keys @ W[e:]) @ v


def concat_by_sigmoid(query, keys, W, v):
    """tanh x = 2 σ(2x) − 1."""
    W_query, W_key = W.split([query.shape[1], keys.shape[2]])
    x = (query @ W_query)[:, None] + keys @ W_key
    return ((2 * torch.sigmoid(2 * x) - 1) * v).sum(-1)


def concat_one_key_at_a_time(query, keys, W, v):
    scores = []
    for k in range(keys.shape[1]):
        pair = torch.cat([query, keys[:, k]], 1)
        scores.append((torch.tanh(pair @ W) * v).sum(1, keepdim=True))
    return torch.cat(scores, 1)


def concat_linear(query, keys, W, v):
    pair = torch.cat([query[:, None].repeat(1, keys.shape[1], 1), keys], -1)
    return F.linear(torch.tanh(F.linear(pair, W.T)), v[None]).squeeze(-1)


def concat_padded(query, keys, W, v):
    """A zero-filled table, into which both are written."""
    (b, k, d), e = keys.shape, query.shape[1]
    pair = keys.new_zeros(b, k, e + d)
    pair[..., :e] = query[:, None]
    pair[..., e:] = keys
    return pair.matmul(W).tanh().matmul(v)


def concat_in_place_bend(query, keys, W, v):
    pair = torch.cat([query[:, None].expand(*keys.shape[:2], -1), keys], -1)
    hidden = pair @ W
    hidden.tanh_()  # its own tensor, and tanh keeps what it needs
    return hidden @ v


def concat_by_vmap(query, keys, W, v):
    def one(q, k):
        return torch.tanh(torch.cat([q, k]) @ W) @ v

    return torch.vmap(torch.vmap(one, in_dims=(None, 0)))(query, keys)


def concat_by_modules(query, keys, W, v):
    first, last = (nn.Linear(i, o, bias=False, device="meta") for i, o in (W.shape, (len(v), 1)))
    pairs = torch.cat([query[:, None].expand(-1, keys.shape[1], -1), keys], -1)
    weights = {"0.weight": W.T, "2.weight": v[None]}
    network = nn.Sequential(first, nn.Tanh(), last)
    return torch.func.functional_call(network, weights, (pairs,)).squeeze(-1)


CONCAT = [
    concat_expand,
    concat_repeat,
    concat_interleave,
    concat_as_additive,
    concat_by_sigmoid,
    concat_one_key_at_a_time,
    concat_linear,
    concat_padded,
    concat_in_place_bend,
    concat_by_vmap,
    concat_by_modules,
    functools.partial(concat_expand),
]


# --- additive_scores


def additive_straight(query, keys, W_query, W_key, v):
    return torch.tanh((query @ W_query).unsqueeze(1) + keys @ W_key) @ v


def additive_einsum(query, keys, W_query, W_key, v):
    x = torch.einsum("be,ea->ba", query, W_query)[:, None] + torch.einsum(
        "bkd,da->bka", keys, W_key
    )
    return torch.einsum("bka,a->bk", x.tanh(), v)


def additive_as_concat(query, keys, W_query, W_key, v):
    return concat_expand(query, keys, torch.cat([W_query, W_key]), v)


def additive_einops(query, keys, W_query, W_key, v):
    from_query = einops.einsum(query, W_query, "b e, e a -> b a")
    from_keys = einops.einsum(keys, W_key, "b k d, d a -> b k a")
    from_query = einops.repeat(from_query, "b a -> b k a", k=keys.shape[1])
    return einops.einsum(torch.tanh(from_query + from_keys), v, "b k a, a -> b k")


def additive_by_units(query, keys, W_query, W_key, v):
    total = 0
    for a in range(len(v)):
        total = total + v[a] * torch.tanh((query @ W_query[:, a])[:, None] + keys @ W_key[:, a])
    return total


def additive_stable_exponentials(query, keys, W_query, W_key, v):
    """tanh x = sign x · (1 − e) / (1 + e) with e = exp(−2|x|), which never overflows."""
    x = (query @ W_query)[:, None] + keys @ W_key
    e = torch.exp(-2 * x.abs())
    return torch.where(x >= 0, (1 - e) / (1 + e), (e - 1) / (1 + e)) @ v


def additive_linear(query, keys, W_query, W_key, v):
    hidden = torch.tanh(F.linear(query, W_query.T).view(-1, 1, len(v)) + F.linear(keys, W_key.T))
    return F.linear(hidden, v.unsqueeze(0)).view(keys.shape[:2])


def additive_transposed(query, keys, W_query, W_key, v):
    """Keys on the last axis, as in (b a k)."""
    x = (W_key.T @ keys.transpose(1, 2)) + (query @ W_query)[..., None]
    return (v @ x.tanh()).reshape(keys.shape[0], -1)


def additive_double(query, keys, W_query, W_key, v):
    args = (x.double() for x in (query, keys, W_query, W_key, v))
    return additive_straight(*args).to(query.dtype)


def additive_in_one_operation(query, keys, W_query, W_key, v):
    from_query = (query @ W_query)[:, None]
    hidden = torch.baddbmm(from_query, keys, W_key.expand(len(keys), -1, -1)).tanh()
    return torch.linalg.vecdot(hidden, v)


def additive_key_by_key(query, keys, W_query, W_key, v):
    scores = [((query @ W_query + key @ W_key).tanh() * v).sum(1) for key in keys.unbind(1)]
    return torch.stack(scores, dim=1)


class Additive:
    def __call__(self, query, keys, W_query, W_key, v):
        return additive_straight(query, keys, W_query, W_key, v)


ADDITIVE = [
    additive_straight,
    additive_einsum,
    additive_as_concat,
    additive_einops,
    additive_by_units,
    additive_stable_exponentials,
    additive_linear,
    additive_transposed,
    additive_double,
    additive_in_one_operation,
    additive_key_by_key,
    Additive(),
    lambda *args, **kwargs: additive_straight(*args, **kwargs),
]


# --- attend


def attend_straight(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    return torch.einsum("bk,bkv->bv", weights, values), weights


def attend_minus_a_billion(scores, values, mask=None):
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    weights = F.softmax(torch.where(mask, scores, -1e9), dim=1) * mask
    return torch.bmm(weights.unsqueeze(1), values).squeeze(1), weights


def attend_infinity_with_care(scores, values, mask=None):
    if mask is not None:
        dead = ~mask.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~(mask | dead), float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = torch.where(dead, torch.zeros_like(weights), weights)
    return (weights.unsqueeze(-1) * values).sum(dim=1), weights


def attend_by_exponentials(scores, values, mask=None):
    seen = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
    lowest = torch.finfo(scores.dtype).min
    top = scores.masked_fill(seen == 0, lowest).amax(-1, keepdim=True)
    e = torch.exp((scores - top).clamp(max=0)) * seen
    total = e.sum(-1, keepdim=True)
    weights = e / torch.where(total > 0, total, 1)
    return (weights[:, None] @ values)[:, 0], weights


def attend_one_sentence_at_a_time(scores, values, mask=None):
    contexts, table = [], []
    for b in range(len(scores)):
        weights = torch.zeros_like(scores[b])
        seen = slice(None) if mask is None else mask[b]
        if mask is None or mask[b].any():
            weights[seen] = torch.softmax(scores[b][seen], 0)
        table.append(weights)
        contexts.append(weights @ values[b])
    return torch.stack(contexts), torch.stack(table)


def attend_in_log_space(scores, values, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    weights = (scores - torch.logsumexp(scores, -1, keepdim=True)).exp()
    if mask is not None:
        weights = weights * mask
    return [torch.einsum("bk,bkv->bv", weights, values), weights]


def attend_double(scores, values, mask=None):
    context, weights = attend_straight(scores.double(), values.double(), mask)
    return context.to(scores.dtype), weights.to(scores.dtype)


def attend_added_bias(scores, values, mask=None):
    if mask is None:
        return attend_straight(scores, values)
    bias = torch.zeros_like(scores).masked_fill(
        mask.logical_not(), torch.finfo(scores.dtype).min / 2
    )
    weights = nn.Softmax(dim=-1)(scores + bias)
    return (weights * mask).unsqueeze(-2).matmul(values).squeeze(-2), weights * mask


def attend_keys_last(scores, values, mask=None):
    keep = torch.ones_like(scores) if mask is None else mask.type_as(scores)
    hidden = (1 - keep) * 1e12
    weights = torch.softmax(scores - hidden, -1) * keep
    return torch.sum(values.transpose(1, 2) * weights[:, None, :], dim=-1), weights


def attend_sorted(scores, values, mask=None):
    """In another order, and back: the average does not know it."""
    order = scores.argsort(-1)
    sorted_mask = None if mask is None else mask.gather(1, order)
    picked = values.gather(1, order[..., None].expand_as(values))
    context, weights = attend_straight(scores.gather(1, order), picked, sorted_mask)
    return context, torch.zeros_like(weights).scatter(1, order, weights)


def attend_nan_to_num(scores, values, mask=None):
    """NaN inside, but the fill stops its gradient."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.nan_to_num(scores.softmax(-1))
    return (weights[..., None] * values).sum(1), weights


def attend_only_to_the_visible(scores, values, mask=None):
    """A softmax over those scores alone, put back where they came from."""
    rows = []
    for row, own in enumerate(scores):
        seen = torch.arange(len(own)) if mask is None else mask[row].nonzero().flatten()
        weights = torch.zeros_like(own)
        rows.append(weights.index_put((seen,), own[seen].softmax(0)) if len(seen) else weights)
    weights = torch.stack(rows)
    return torch.stack([w @ v for w, v in zip(weights, values, strict=True)]), weights


class Attend(nn.Module):
    def forward(self, scores, values, mask=None):
        print("attending", tuple(scores.shape))  # harmless, and common
        return attend_straight(scores, values, mask)


ATTEND = [
    attend_straight,
    attend_minus_a_billion,
    attend_infinity_with_care,
    attend_by_exponentials,
    attend_one_sentence_at_a_time,
    attend_in_log_space,
    attend_double,
    attend_added_bias,
    attend_keys_last,
    attend_sorted,
    attend_nan_to_num,
    attend_only_to_the_visible,
    Attend(),
    functools.partial(attend_straight, mask=None),
]


# --- AdditiveAttention


class Plain(nn.Module):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        self.W_query = nn.Linear(query_dim, attention_dim, bias=False)
        self.W_key = nn.Linear(key_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, query, keys, mask=None):
        hidden = torch.tanh(self.W_query(query).unsqueeze(1) + self.W_key(keys))
        return attend_straight(self.v(hidden).squeeze(-1), keys, mask)


class ByWeights(nn.Module):
    """Reads the layers' weights and computes with them itself."""

    def __init__(self, query_dim: int, key_dim: int, attention_dim: int):
        super().__init__()
        self.v = nn.Linear(attention_dim, 1, False)
        self.W_key = nn.Linear(key_dim, attention_dim, False)
        self.W_query = nn.Linear(query_dim, attention_dim, False)

    def forward(self, query, keys, mask=None):
        v = self.v.weight.flatten()
        scores = additive_einsum(query, keys, self.W_query.weight.T, self.W_key.weight.T, v)
        return attend_minus_a_billion(scores, keys, mask)


class WithBuffers(Plain):
    """Buffers and settings of its own, a small initialization, and a remembered heat map."""

    def __init__(self, query_dim, key_dim, attention_dim, verbose=False):
        super().__init__(query_dim, key_dim, attention_dim)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("lowest", torch.tensor(-1e9), persistent=False)
        self.verbose, self.last = verbose, None
        nn.init.xavier_uniform_(self.W_key.weight)
        nn.init.zeros_(self.v.weight)

    def forward(self, query, keys, mask=None):
        self.calls += 1
        context, weights = super().forward(query, keys, mask)
        self.last = weights.detach()
        return context, weights


class AsConcat(Plain):
    def forward(self, query, keys, mask=None):
        W = torch.cat([self.W_query.weight, self.W_key.weight], dim=1).T
        return attend_infinity_with_care(
            concat_repeat(query, keys, W, self.v.weight[0]), keys, mask
        )


class WithPieces(nn.Module):
    """Sub-modules that share the layers under a second name."""

    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__()
        layers = {
            "W_query": nn.Linear(query_dim, attention_dim, bias=False),
            "W_key": nn.Linear(key_dim, attention_dim, bias=False),
            "v": nn.Linear(attention_dim, 1, bias=False),
        }
        self.layers = nn.ModuleDict(layers)
        self.W_query, self.W_key, self.v = layers.values()
        self.bend = nn.Sequential(nn.Tanh(), nn.Identity())
        self.dropout = nn.Dropout(0.0)

    def forward(self, query, keys, mask=None):
        x = self.bend(self.layers["W_query"](query)[:, None] + self.W_key(keys))
        context, weights = attend_by_exponentials(self.layers["v"](x)[..., 0], keys, mask)
        return self.dropout(context), weights


class Sentences(Plain):
    """One sentence at a time."""

    def forward(self, query, keys, mask=None):
        pairs = [
            super(Sentences, self).forward(
                query[i : i + 1], keys[i : i + 1], None if mask is None else mask[i : i + 1]
            )
            for i in range(len(query))
        ]
        contexts, weights = zip(*pairs, strict=True)
        return torch.cat(contexts), torch.cat(weights)


class KeepsProjectedKeys(Plain):
    """Remembers the keys' projection as long as the very same keys come."""

    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__(query_dim, key_dim, attention_dim)
        self.known = None, None

    def forward(self, query, keys, mask=None):
        if self.known[0] is not keys or torch.is_grad_enabled():
            self.known = keys, self.W_key(keys)
        hidden = torch.tanh(self.W_query(query)[:, None] + self.known[1])
        return attend_straight((hidden * self.v.weight[0]).sum(-1), keys, mask)


class Bare(nn.Linear):
    """A linear layer of one's own."""

    def __init__(self, i, o):
        super().__init__(i, o, bias=False)


class OwnLinear(Plain):
    def __init__(self, query_dim, key_dim, attention_dim):
        super().__init__(query_dim, key_dim, attention_dim)
        self.W_query, self.W_key = Bare(query_dim, attention_dim), Bare(key_dim, attention_dim)
        self.double()

    def forward(self, query, keys, mask=None):
        context, weights = super().forward(query.to(self.v.weight), keys.to(self.v.weight), mask)
        return context.to(keys.dtype), weights.to(keys.dtype)


class CalledDirectly(Plain):
    """With names, and past the hooks of nn.Module."""

    def __call__(self, query, keys, mask=None):
        return self.forward(query=query, keys=keys, mask=mask)


def make(query_dim, key_dim, attention_dim):
    """A function that makes the module is as good as its class."""
    return Plain(query_dim, key_dim, attention_dim)


MODULE = [
    Plain,
    ByWeights,
    WithBuffers,
    AsConcat,
    WithPieces,
    Sentences,
    KeepsProjectedKeys,
    OwnLinear,
    CalledDirectly,
    make,
    functools.partial(Plain),
]

CORRECT = {
    "dot_scores": DOT,
    "general_scores": GENERAL,
    "concat_scores": CONCAT,
    "additive_scores": ADDITIVE,
    "attend": ATTEND,
    "AdditiveAttention": MODULE,
}
