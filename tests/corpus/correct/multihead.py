"""Right answers of chapter 5 in many styles: the judge must accept every one, on every seed."""

import copy
import fractions
import functools
import itertools
import math

import einops
import torch
import torch.nn.functional as F
from torch import nn

from attncourse import multihead as course
from attncourse.scaled_dot_product import scaled_dot_product_attention

# --- split_heads


def split_by_einops(x, num_heads):
    return einops.rearrange(x, "b n (h d) -> b h n d", h=num_heads)


def split_by_view_and_transpose(x, num_heads):
    b, n, m = x.size()
    return x.view(b, n, num_heads, m // num_heads).transpose(1, 2)


def split_by_unflatten(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).movedim(-2, -3).contiguous()


def split_by_chunks(x, num_heads):
    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)


def split_by_slices(x, num_heads):
    d = x.shape[-1] // num_heads
    heads = [x[..., i * d : (i + 1) * d] for i in range(num_heads)]
    return torch.cat([head.unsqueeze(1) for head in heads], dim=1)


def split_by_a_loop(x, num_heads):
    b, n, m = x.shape
    d = m // num_heads
    heads = x.new_zeros(b, num_heads, n, d)
    for i in range(num_heads):
        heads[:, i] = x[:, :, d * i : d * i + d]
    return heads


def split_by_selection(x, num_heads):
    """A product with 0/1 matrices: slow, and exact."""
    m = x.shape[-1]
    choose = torch.eye(m, dtype=x.dtype).reshape(m, num_heads, m // num_heads)
    return torch.einsum("bnm,mhd->bhnd", x, choose)


def split_by_gathering(x, num_heads):
    n, m = x.shape[1:]
    d = m // num_heads
    columns = torch.arange(m).reshape(num_heads, 1, d).expand(num_heads, n, d)
    rows = torch.arange(n).reshape(1, n, 1)
    return x[:, rows, columns]


def split_by_strides(x, num_heads):
    b, n, m = x.shape
    d = m // num_heads
    one, two, three = x.stride()
    return x.as_strided((b, num_heads, n, d), (one, d * three, two, three), x.storage_offset())


class Splitter:
    def __call__(self, x, num_heads):
        return x.reshape(*x.shape[:2], num_heads, -1).permute(0, 2, 1, 3)


def split_by_a_window(x, num_heads):
    d = x.shape[-1] // num_heads
    return x.unfold(2, d, d).transpose(1, 2)


class SplitWithItsOwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x, num_heads):
        return split_by_einops(x, num_heads)

    @staticmethod
    def backward(context, gradient):
        return einops.rearrange(gradient, "b h n d -> b n (h d)"), None


def split_with_its_own_gradient(x, num_heads):
    return SplitWithItsOwnGradient.apply(x, num_heads)


SPLIT = [
    split_by_einops,
    split_by_view_and_transpose,
    split_by_unflatten,
    split_by_chunks,
    split_by_slices,
    split_by_a_loop,
    split_by_selection,
    split_by_gathering,
    split_by_strides,
    split_by_a_window,
    split_with_its_own_gradient,
    torch.compile(split_by_unflatten, backend="eager"),
    Splitter(),
    functools.partial(split_by_view_and_transpose),
    torch.vmap(lambda x, num_heads: split_by_unflatten(x, num_heads), in_dims=(0, None)),
]

# --- merge_heads


def merge_by_einops(x):
    return einops.rearrange(x, "b h n d -> b n (h d)")


def merge_by_reshape(x):
    b, h, n, d = x.shape
    return x.transpose(1, 2).reshape(b, n, h * d)


def merge_by_contiguous_view(x):
    batch, heads, length, width = x.size()
    return x.permute(0, 2, 1, 3).contiguous().view(batch, length, heads * width)


def merge_by_flatten(x):
    return x.swapaxes(1, 2).flatten(2)


def merge_by_cat(x):
    return torch.cat(x.unbind(dim=1), dim=-1)


def merge_by_a_loop(x):
    b, h, n, d = x.shape
    merged = x.new_empty(b, n, h * d)
    for head, word in itertools.product(range(h), range(n)):
        merged[:, word, head * d : (head + 1) * d] = x[:, head, word]
    return merged


def merge_by_padding(x):
    """A sum of vectors that are zero outside their own piece."""
    h, d = x.shape[1], x.shape[3]
    return sum(F.pad(x[:, i], (i * d, (h - 1 - i) * d)) for i in range(h))


def merge_by_pack(x):
    return einops.pack([head for head in einops.rearrange(x, "b h n d -> h b n d")], "b n *")[0]


def merge_by_asking_for_every_feature(x):
    h, d = x.shape[1], x.shape[3]
    feature = torch.arange(h * d)
    return x[:, feature // d, :, feature % d].permute(1, 2, 0)


class Merger(nn.Module):
    def forward(self, x):
        return merge_by_flatten(x)


MERGE = [
    merge_by_einops,
    merge_by_reshape,
    merge_by_contiguous_view,
    merge_by_flatten,
    merge_by_cat,
    merge_by_a_loop,
    merge_by_padding,
    merge_by_pack,
    merge_by_asking_for_every_feature,
    Merger(),
    functools.partial(einops.rearrange, pattern="b h n d -> b n (h d)"),
]

# --- MultiHeadAttention


class FromTheCourse(nn.Module):
    """Made of what the course provides for the earlier tasks."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(model_width, model_width) for _ in range(4)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q = course.split_heads(self.q_proj(query), self.h)
        k = course.split_heads(self.k_proj(key), self.h)
        v = course.split_heads(self.v_proj(value), self.h)
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)
        _, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(course.merge_heads(self.dropout(weights) @ v)), weights


class OneHeadAfterTheOther(nn.Module):
    """A loop over heads; the output is the sum of what each head writes."""

    def __init__(self, model_width: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.width, self.p = num_heads, model_width // num_heads, dropout
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(model_width, model_width))

    def one(self, head, query, key, value, mask):
        own = slice(head * self.width, (head + 1) * self.width)
        q, k, v = (
            F.linear(x, projection.weight[own], projection.bias[own])
            for x, projection in ((query, self.q_proj), (key, self.k_proj), (value, self.v_proj))
        )
        scores = torch.einsum("bqd,bkd->bqk", q, k) * self.width**-0.5
        if mask is not None:
            scores = torch.where(mask, scores, -1e9)
        weights = F.softmax(scores, dim=-1)
        if mask is not None:
            weights = weights * mask
        used = F.dropout(weights, self.p, self.training)
        return F.linear(torch.bmm(used, v), self.out_proj.weight[:, own]), weights

    def forward(self, query, key, value, mask=None):
        written, weights = zip(
            *(self.one(head, query, key, value, mask) for head in range(self.heads)), strict=True
        )
        return sum(written) + self.out_proj.bias, torch.stack(weights, dim=1)


class FoldedIntoTheBatch(nn.Module):
    """Heads are folded into the batch, as older code does, and masks repeated for each of them."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super(FoldedIntoTheBatch, self).__init__()  # noqa: UP008
        self.out_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.q_proj = nn.Linear(model_width, model_width)
        self.drop = nn.Dropout(p=dropout)
        self.softmax = nn.Softmax(dim=2)
        self.num_heads = num_heads
        self.d_k = model_width // num_heads
        self.register_buffer("temperature", torch.tensor(float(self.d_k)).sqrt())
        self.weights = None  # what the last call looked at, for pictures

    def fold(self, x):
        b, n, _ = x.shape
        x = x.view(b, n, self.num_heads, self.d_k).permute(0, 2, 1, 3)
        return x.reshape(b * self.num_heads, n, self.d_k)

    def forward(self, query, key, value, mask=None):
        b, q, m = query.shape
        queries = self.fold(self.q_proj(query))
        keys, values = self.fold(self.k_proj(key)), self.fold(self.v_proj(value))
        scores = torch.bmm(queries / math.sqrt(self.d_k), keys.transpose(1, 2))
        if mask is None:
            weights = self.softmax(scores)
        else:
            if mask.dim() == 2:
                mask = mask[None]
            mask = mask.expand(b, q, key.shape[1]).repeat_interleave(self.num_heads, dim=0)
            alive = mask.any(dim=-1, keepdim=True)
            scores = scores.masked_fill(~mask, float("-inf")).masked_fill(~alive, 0.0)
            weights = self.softmax(scores).masked_fill(~alive, 0.0)
        output = torch.bmm(self.drop(weights), values)
        output = output.view(b, self.num_heads, q, self.d_k).transpose(1, 2).reshape(b, q, m)
        self.weights = weights.view(b, self.num_heads, q, -1).detach()
        return self.out_proj(output), weights.view(b, self.num_heads, q, -1)


class Clones(nn.Module):
    """Four deep copies of one layer under four names, one product for all projections."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        assert model_width % num_heads == 0
        linear = nn.Linear(model_width, model_width)
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            copy.deepcopy(linear) for _ in names
        )
        self.num_heads, self.keep = num_heads, 1 - dropout

    def forward(self, query, key, value, mask=None, need_weights=True):
        linears = (self.q_proj, self.k_proj, self.v_proj)
        weight = torch.stack([each.weight for each in linears])
        bias = torch.stack([each.bias for each in linears])
        q, k, v = (
            einops.einsum(x, w.unflatten(0, (self.num_heads, -1)), "b n i, h d i -> b h n d")
            + c.unflatten(0, (self.num_heads, 1, -1))
            for x, w, c in zip((query, key, value), weight, bias, strict=True)
        )
        scores = einops.einsum(q, k, "b h q d, b h k d -> b h q k") / q.size(-1) ** 0.5
        if mask is not None:
            mask = mask.reshape(-1, 1, *mask.shape[-2:])
            scores = scores.masked_fill(mask.logical_not(), torch.finfo(scores.dtype).min)
        scores = scores - scores.amax(-1, keepdim=True)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        if mask is not None:
            weights = torch.where(mask, weights, torch.zeros_like(weights))
        used = weights
        if self.training and self.keep < 1:
            kept = torch.bernoulli(torch.full_like(weights, self.keep))
            used = weights * kept / self.keep
        heads = einops.einsum(used, v, "b h q k, b h k d -> b q h d")
        return self.out_proj(heads.flatten(-2)), weights


class InDouble(nn.Module):
    """Computes in float64 and answers in the inputs' own precision."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.config = {"h": num_heads, "d": model_width // num_heads}
        self.q_proj = nn.Linear(in_features=model_width, out_features=model_width, bias=True)
        self.k_proj = nn.Linear(in_features=model_width, out_features=model_width, bias=True)
        self.v_proj = nn.Linear(in_features=model_width, out_features=model_width, bias=True)
        self.out_proj = nn.Linear(in_features=model_width, out_features=model_width, bias=True)
        self.dropout = dropout

    def forward(self, query, key, value, mask=None):
        h, dtype = self.config["h"], query.dtype
        q = self.q_proj(query).double().tensor_split(h, dim=-1)
        k = self.k_proj(key).double().tensor_split(h, dim=-1)
        v = self.v_proj(value).double().tensor_split(h, dim=-1)
        scores = torch.stack([a @ b.mT for a, b in zip(q, k, strict=True)], 1)
        scores = scores / math.sqrt(self.config["d"])
        if mask is None:
            mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool)
        mask = mask if mask.ndim == 2 else mask[:, None]
        bias = torch.zeros_like(scores).masked_fill(~mask, -1e30)
        weights = torch.softmax(scores + bias, -1) * mask.any(-1, keepdim=True)
        used = torch.dropout(weights, self.dropout, self.training)
        merged = torch.cat([used[:, i] @ v[i] for i in range(h)], dim=-1)
        return self.out_proj(merged.to(dtype)), weights.to(dtype)


class Projection(nn.Linear):
    """A linear layer that also splits."""

    def __init__(self, width, heads):
        super().__init__(width, width)
        self.heads = heads

    def forward(self, x):
        return super().forward(x).reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)


class WithItsOwnParts(nn.Module):
    """Sub-layers of one's own kind, a mask kept as a buffer that is never used, one list output."""

    def __init__(self, model_width, num_heads, dropout=0.0, max_length=64):
        super().__init__()
        self.q_proj = Projection(model_width, num_heads)
        self.k_proj = Projection(model_width, num_heads)
        self.v_proj = Projection(model_width, num_heads)
        self.out_proj = nn.Linear(model_width, model_width)
        self.register_buffer("causal", torch.ones(max_length, max_length).tril().bool())
        self.softmax = nn.Softmax(-1)
        self.attention_dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        queries, keys, values = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        scores = (queries.unsqueeze(-2) * keys.unsqueeze(-3)).sum(-1)
        scores = scores.div(math.sqrt(queries.shape[-1]))
        if mask is not None:
            mask = einops.rearrange(mask, "... q k -> ... 1 q k") if mask.ndim > 2 else mask
            mask = mask.expand_as(scores)
            scores = scores.clone()
            scores[~mask] = -torch.inf
            dead = ~mask.any(-1)
            scores[dead] = 0.0
            weights = self.softmax(scores) * ~dead[..., None]
        else:
            weights = self.softmax(scores)
        heads = torch.matmul(self.attention_dropout(weights), values)
        return [self.out_proj(torch.cat(list(heads.unbind(1)), -1)), weights]


class EveryHeadByVmap(nn.Module):
    """Attention of one head, mapped over the heads."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(model_width, model_width)
        self.k_proj = nn.Linear(model_width, model_width)
        self.v_proj = nn.Linear(model_width, model_width)
        self.out_proj = nn.Linear(model_width, model_width)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def look(q, k, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores.masked_fill(~mask, -1e20), -1)
        return weights.masked_fill(~mask, 0.0)

    def forward(self, query, key, value, mask=None):
        split = functools.partial(
            einops.rearrange, pattern="b n (h d) -> h b n d", h=self.num_heads
        )
        q, k, v = split(self.q_proj(query)), split(self.k_proj(key)), split(self.v_proj(value))
        if mask is None:
            mask = torch.tensor(True)
        weights = torch.vmap(self.look, in_dims=(0, 0, None))(q, k, mask)
        heads = self.dropout(weights) @ v
        merged = einops.rearrange(heads, "h b n d -> b n (h d)")
        return self.out_proj(merged), weights.transpose(0, 1)


class HeadsBesideFeatures(nn.Module):
    """Never swaps axes: (b n h d) throughout. Dead rows become NaN for a moment."""

    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.h = num_heads
        for name in ("q", "k", "v", "out"):
            setattr(self, f"{name}_proj", nn.Linear(model_width, model_width))
        self.dropout = dropout

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            project(x).unflatten(-1, (self.h, -1))
            for project, x in (
                (self.q_proj, query),
                (self.k_proj, key),
                (self.v_proj, value),
            )
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask.reshape(-1, 1, *mask.shape[-2:]), -torch.inf)
        weights = scores.softmax(-1).nan_to_num()
        used = F.dropout(weights, self.dropout, self.training)
        return self.out_proj(torch.einsum("bhqk,bkhd->bqhd", used, v).flatten(-2)), weights


class OneKeyMore(FromTheCourse):
    """Queries with nothing to attend to look at a key that is cut off again."""

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            einops.rearrange(project(x), "b n (h d) -> b h n d", h=self.h)
            for project, x in zip(
                (self.q_proj, self.k_proj, self.v_proj), (query, key, value), strict=True
            )
        )
        root = q.shape[-1] ** 0.25
        scores = (q / root) @ (k / root).mT  # the scale, shared out
        if mask is None:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool)
        mask = mask.reshape(-1, 1, *mask.shape[-2:]).expand_as(scores)
        mask = torch.cat([mask, ~mask.any(-1, keepdim=True)], dim=-1)
        scores = F.pad(scores, (0, 1)).masked_fill(~mask, -torch.inf)
        weights = torch.log_softmax(scores, -1).exp()[..., :-1]
        return self.out_proj((self.dropout(weights) @ v).transpose(1, 2).flatten(2)), weights


class SentenceBySentence(FromTheCourse):
    """One sentence after the other, with a dropout of its own making."""

    def one(self, query, key, value, mask):
        q, k, v = (
            einops.rearrange(x, "n (h d) -> h n d", h=self.h)
            for x in (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        )
        weights = EveryHeadByVmap.look(q, k, torch.tensor(True) if mask is None else mask)
        used, p = weights, self.dropout.p
        if self.training and p > 0:
            used = weights * (torch.rand_like(weights) > p) / (1 - p)
        return self.out_proj(einops.rearrange(used @ v, "h n d -> n (h d)")), weights

    def forward(self, query, key, value, mask=None):
        masks = [mask] * len(query)
        if mask is not None and mask.ndim == 3:
            masks = mask.expand(len(query), -1, -1)
        done = [self.one(*each) for each in zip(query, key, value, masks, strict=True)]
        outputs, weights = zip(*done, strict=True)
        return torch.stack(outputs), torch.stack(weights)


def compiled_layer(model_width, num_heads, dropout=0.0):
    return torch.compile(HeadsBesideFeatures(model_width, num_heads, dropout), backend="eager")


def layer_from_a_function(model_width, num_heads, dropout=0.0):
    return FromTheCourse(model_width, num_heads, dropout=dropout)


LAYER = [
    FromTheCourse,
    OneHeadAfterTheOther,
    FoldedIntoTheBatch,
    Clones,
    InDouble,
    WithItsOwnParts,
    EveryHeadByVmap,
    HeadsBesideFeatures,
    OneKeyMore,
    SentenceBySentence,
    compiled_layer,
    layer_from_a_function,
    functools.partial(FoldedIntoTheBatch),
]

# --- attention_parameters


def count(model_width, num_heads, num_layers, head_width=None):
    if head_width is None:
        head_width = model_width // num_heads
    return 4 * model_width * head_width * num_heads * num_layers


def count_in_words(model_width, num_heads, num_layers, head_width=None):
    inner = model_width if head_width is None else num_heads * head_width
    query = key = value = model_width * inner
    output = inner * model_width
    return sum([query, key, value, output]) * num_layers


def count_by_loops(model_width, num_heads, num_layers, head_width=None):
    width = head_width or model_width // num_heads
    total = 0
    for _ in range(num_layers):
        for _ in range(num_heads):
            total += 3 * model_width * width + width * model_width
    return total


def count_real_matrices(model_width, num_heads, num_layers, head_width=None):
    """On the meta device a matrix has a shape and no numbers."""
    inner = num_heads * (head_width or model_width // num_heads)
    with torch.device("meta"):
        layer = nn.ModuleDict(
            {name: nn.Linear(model_width, inner, bias=False) for name in ("q", "k", "v")}
        )
        layer["out"] = nn.Linear(inner, model_width, bias=False)
    return num_layers * sum(p.numel() for p in layer.parameters())


def count_by_product(model_width, num_heads, num_layers, head_width=None):
    head_width = head_width or int(model_width / num_heads)
    return math.prod((2, 2, model_width, head_width, num_heads, num_layers))


def count_with_tensors(model_width, num_heads, num_layers, head_width=None):
    inner = model_width if head_width is None else num_heads * head_width
    shapes = torch.tensor([[model_width, inner]] * 3 + [[inner, model_width]])
    return int(shapes.prod(1).sum() * num_layers)


def count_by_fractions(model_width, num_heads, num_layers, head_width=None):
    width = fractions.Fraction(model_width, num_heads) if head_width is None else head_width
    return int(4 * model_width * width * num_heads * num_layers)


def count_any_arguments(*sizes, **named):
    names = ("model_width", "num_heads", "num_layers", "head_width")
    given = dict(zip(names, sizes, strict=False)) | named
    d = given.get("head_width") or given["model_width"] // given["num_heads"]
    return (given["model_width"] * d * given["num_heads"] * given["num_layers"]) << 2


COUNT = [
    count,
    count_in_words,
    count_by_loops,
    count_real_matrices,
    count_by_product,
    count_with_tensors,
    count_by_fractions,
    count_any_arguments,
    functools.lru_cache(count),
    functools.partial(count),
]

CORRECT = {
    "split_heads": SPLIT,
    "merge_heads": MERGE,
    "MultiHeadAttention": LAYER,
    "attention_parameters": COUNT,
}
