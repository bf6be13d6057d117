"""Right answers in many styles: the judge must accept every one of them, on every seed."""

import functools
import math

import einops
import numpy as np
import torch
import torch.nn.functional as F

# --- softmax


def plain(scores, dim=-1):
    shifted = scores - scores.max(dim=dim, keepdim=True).values
    return shifted.exp() / shifted.exp().sum(dim=dim, keepdim=True)


def by_log_sum_exp(scores, dim=-1):
    return torch.exp(scores - torch.logsumexp(scores, dim, keepdim=True))


def in_double(scores, dim=-1):
    s = scores.double()
    e = torch.exp(s - s.amax(dim, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).to(scores.dtype)


def pairwise_sigmoid(scores, dim=-1):
    """1 / Σⱼ exp(sⱼ − sᵢ): no maximum anywhere, and stable enough, since exp(+large) = inf."""
    moved = scores.movedim(dim, -1)
    differences = (moved[..., None, :] - moved[..., :, None]).clamp(max=60)
    return (1 / differences.exp().sum(-1)).movedim(-1, dim)


def with_moved_axes(x, dim=-1):
    rows = x.transpose(dim, -1)
    rows = rows - rows.max(-1)[0].unsqueeze(-1).detach()
    rows = torch.exp(rows)
    return (rows / torch.einsum("...i->...", rows)[..., None]).transpose(dim, -1)


def one_row_at_a_time(scores, dim=-1):
    moved = scores.movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    done = []
    for row in rows:
        e = (row - max(row.tolist())).exp()
        done.append(e / sum(e))
    return torch.stack(done).reshape(moved.shape).movedim(-1, dim)


def by_powers(scores, dim=-1):
    e = math.e ** (scores - scores.amax(dim=dim, keepdim=True))
    return torch.div(e, e.sum(dim, True))


class Softmax:
    def __call__(self, scores, dim=-1):
        return plain(scores, dim)


SOFTMAX = [
    plain,
    by_log_sum_exp,
    in_double,
    pairwise_sigmoid,
    with_moved_axes,
    one_row_at_a_time,
    by_powers,
    Softmax(),
    functools.partial(plain),
    lambda *args, **kwargs: plain(*args, **kwargs),
]


# --- scaled_dot_product_attention


def straight(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        weights = torch.where(mask, weights, 0.0)
    return weights @ value, weights


def minus_one_billion(query, key, value, mask=None):
    scores = torch.matmul(query, key.mT) * query.size(-1) ** -0.5
    if mask is not None:
        scores = torch.where(mask, scores, torch.full_like(scores, -1e9))
    weights = F.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights * mask
    return torch.matmul(weights, value), weights


def additive_infinity(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        alive = mask.any(-1, keepdim=True)
        bias = torch.zeros_like(mask, dtype=query.dtype)
        bias = bias.masked_fill(~mask & alive, -torch.inf)  # dead rows are dealt with below
        weights = (scores + bias).softmax(-1) * alive
    else:
        weights = scores.softmax(-1)
    return torch.einsum("...qk,...kv->...qv", weights, value), weights


def with_bmm(query, key, value, mask=None):
    lead = query.shape[:-2]
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    if mask is not None:
        full = mask.expand(*lead, scores.shape[1], scores.shape[2])
        full = full.reshape(scores.shape)
        scores = scores.masked_fill(full.logical_not(), torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, 2)
    if mask is not None:
        weights = weights.masked_fill(full.logical_not(), 0)
    output = torch.bmm(weights, v)
    return output.reshape(*lead, *output.shape[1:]), weights.reshape(*lead, *weights.shape[1:])


def with_loops(query, key, value, mask=None):
    lead = query.shape[:-2]
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (query, key, value))
    shape = (*lead, q.shape[1], k.shape[1])
    allowed = None if mask is None else mask.expand(shape).reshape(len(q), *shape[-2:])
    outputs, all_weights = [], []
    for b in range(len(q)):
        for i in range(q.shape[1]):
            scores = torch.stack([q[b, i] @ k[b, j] for j in range(k.shape[1])])
            scores = scores / q.shape[-1] ** 0.5
            seen = torch.ones_like(scores, dtype=torch.bool) if mask is None else allowed[b, i]
            weights = torch.zeros_like(scores)
            if seen.any():
                weights = weights.masked_scatter(seen, scores[seen].softmax(0))
            all_weights.append(weights)
            outputs.append(sum(w * row for w, row in zip(weights, v[b], strict=True)))
    return (
        torch.stack(outputs).reshape(*lead, q.shape[1], v.shape[-1]),
        torch.stack(all_weights).reshape(shape),
    )


def double_inside(query, key, value, mask=None):
    output, weights = straight(query.double(), key.double(), value.double(), mask)
    return output.to(query.dtype), weights.to(query.dtype)


def log_space(query, key, value, mask=None):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return weights @ value, weights


def einops_style(q, k, v, mask=None):
    scores = einops.einsum(q, k, "... i d, ... j d -> ... i j") * (q.shape[-1] ** -0.5)
    scores = scores - einops.reduce(scores, "... i j -> ... i 1", "max").detach()
    e = scores.exp()
    if mask is not None:
        # A row's maximum may be hidden: go down from the largest visible one instead.
        scores = einops.einsum(q, k, "... i d, ... j d -> ... i j") * (q.shape[-1] ** -0.5)
        visible = scores.masked_fill(~mask, torch.finfo(q.dtype).min)
        e = (visible - visible.amax(-1, keepdim=True).detach()).exp() * mask
    weights = e / e.sum(-1, keepdim=True).clamp(min=1e-30)
    return einops.einsum(weights, v, "... i j, ... j d -> ... i d"), weights


def scaled_queries(query, key, value, mask=None):
    root = query.shape[-1] ** 0.25
    scores = (query / root) @ (key / root).transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -1e30)
    weights = torch.nn.Softmax(dim=-1)(scores)
    if mask is not None:
        weights = weights.masked_fill(mask.logical_not(), 0)
    return [weights.matmul(value), weights]


def keys_first(query, key, value, mask=None):
    """(k q) tables, as on the slides where columns are queries, turned back at the end."""
    scores = key @ query.transpose(-2, -1) / query.shape[-1] ** 0.5
    turned = None
    if mask is not None:
        turned = mask.expand(*query.shape[:-1], key.shape[-2]).transpose(-2, -1)
        scores = scores.masked_fill(~turned, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-2)
    if turned is not None:
        weights = weights.masked_fill(~turned, 0)
    output = (value.transpose(-2, -1) @ weights).transpose(-2, -1)
    return output, weights.transpose(-2, -1)


def online(query, key, value, mask=None):
    """One key at a time, with a running maximum: what FlashAttention does."""
    d, lowest = query.shape[-1], torch.finfo(query.dtype).min
    scores = []
    best = torch.full_like(query[..., :1], lowest)
    total = torch.zeros_like(best)
    for j in range(key.shape[-2]):
        s = (query * key[..., j : j + 1, :]).sum(-1, keepdim=True) / math.sqrt(d)
        if mask is not None:
            column = mask[..., j : j + 1] if mask.shape[-1] > 1 else mask
            s = torch.where(column, s, lowest)
        new = torch.maximum(best, s)
        total = total * (best - new).exp() + (s - new).exp()
        best = new
        scores.append(s)
    weights = (torch.cat(scores, -1) - best).exp() / total
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return weights @ value, weights


class Attention(torch.nn.Module):
    def forward(self, query, key, value, mask=None):
        print("computing", query.shape)  # harmless, and common
        return straight(query, key, value, mask)


def safe_rows(query, key, value, mask=None):
    """Dead rows look at everything first, and are cleared afterwards."""
    scores = query @ key.transpose(-2, -1) / np.sqrt(query.shape[-1])
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool)
    alive = mask.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(mask | ~alive), -torch.inf).softmax(dim=-1)
    weights = weights * alive
    return weights @ value, weights


ATTENTION = [
    straight,
    minus_one_billion,
    additive_infinity,
    with_bmm,
    with_loops,
    double_inside,
    log_space,
    einops_style,
    scaled_queries,
    keys_first,
    online,
    Attention(),
    safe_rows,
    functools.partial(straight, mask=None),
    lambda *args, **kwargs: straight(*args, **kwargs),
]


# --- score_variance


def two_draws(d, samples, scaled):
    q, k = torch.randn(samples, d), torch.randn(samples, d)
    scores = (q * k).sum(dim=1)
    if scaled:
        scores = scores / d**0.5
    return float(scores.var())


def own_generator(d, samples, scaled):
    g = torch.Generator().manual_seed(7)
    q, k = torch.randn(2, samples, d, generator=g)
    s = torch.einsum("sd,sd->s", q, k) / (math.sqrt(d) if scaled else 1)
    return s.var(unbiased=False).item()


def fresh_generator(d, samples, scaled):
    rng = np.random.default_rng()
    q, k = rng.standard_normal((2, samples, d))
    s = (q * k).sum(-1) / (math.sqrt(d) if scaled else 1)
    return float(s.var())


def mean_of_squares(d, samples, scaled):
    scores = torch.bmm(torch.randn(samples, 1, d), torch.randn(samples, d, 1)).flatten()
    return ((scores**2).mean() / (d if scaled else 1)).item()


def with_numpy_number(d, samples, scaled):
    q, k = np.random.randn(samples, d), np.random.randn(samples, d)
    return np.var(np.einsum("ij,ij->i", q, k) / (np.sqrt(d) if scaled else 1))


def in_chunks(d, samples, scaled):
    scores = []
    while len(scores) < samples:
        n = min(1000, samples - len(scores))
        q, k = torch.randn(n, d), torch.randn(n, d)
        scores += torch.linalg.vecdot(q, k).tolist()
    mean = sum(scores) / len(scores)
    variance = sum((s - mean) ** 2 for s in scores) / (len(scores) - 1)
    return variance / d if scaled else variance


VARIANCE = [
    two_draws,
    own_generator,
    fresh_generator,
    mean_of_squares,
    with_numpy_number,
    in_chunks,
]


# --- hidden_scale


def least_squares(scores, weights):
    seen = weights > 0
    x, y = [], []
    for s, w, m in zip(scores, weights, seen, strict=True):
        s, log = s[m], w[m].log()
        x += (s - s.mean()).tolist()
        y += (log - log.mean()).tolist()
    return sum(a * a for a in x) / sum(a * b for a, b in zip(x, y, strict=True))


def other_regression(scores, weights):
    top = bottom = 0.0
    for s, w in zip(scores.tolist(), weights.tolist(), strict=True):
        pairs = [(a, math.log(b)) for a, b in zip(s, w, strict=True) if b > 0]
        ms, ml = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        top += sum((a - ms) * (b - ml) for a, b in pairs)
        bottom += sum((b - ml) ** 2 for _, b in pairs)
    return top / bottom


def median_of_pairs(scores, weights):
    found = []
    for s, w in zip(scores, weights, strict=True):
        index = w.nonzero().flatten().tolist()
        for n, i in enumerate(index):
            for j in index[n + 1 :]:
                if w[i] != w[j]:
                    found.append(((s[i] - s[j]) / (w[i] / w[j]).log()).item())
    return sorted(found)[len(found) // 2]


def grid_search(scores, weights):
    best = (math.inf, 0.0)
    for step in range(1200):
        c = 0.2 * 1.004**step
        guess = (scores / c).masked_fill(weights == 0, -1e9).softmax(-1)
        best = min(best, (((guess - weights) ** 2).sum().item(), c))
    return best[1]


def gradient_descent(scores, weights):
    log_c = torch.zeros((), requires_grad=True)
    with torch.enable_grad():
        optimizer = torch.optim.LBFGS([log_c], max_iter=60, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            scaled = (scores / log_c.exp()).masked_fill(weights == 0, -1e9)
            loss = -(weights * scaled.log_softmax(-1).masked_fill(weights == 0, 0)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return log_c.exp().item()


def pooled_pairs(scores, weights):
    s = scores[:, :, None] - scores[:, None, :]
    logs = torch.where(weights > 0, weights, 1).log()
    log = logs[:, :, None] - logs[:, None, :]
    both = (weights[:, :, None] > 0) & (weights[:, None, :] > 0)
    return ((s * s)[both].sum() / (s * log)[both].sum()).item()


SCALE = [
    least_squares,
    other_regression,
    median_of_pairs,
    grid_search,
    gradient_descent,
    pooled_pairs,
]

CORRECT = {
    "softmax": SOFTMAX,
    "scaled_dot_product_attention": ATTENTION,
    "score_variance": VARIANCE,
    "hidden_scale": SCALE,
}
