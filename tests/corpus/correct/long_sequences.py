"""Right answers to chapter 11's tasks, in styles the course does not use."""

import functools
import math
from collections import deque

import einops
import numpy as np
import torch
import torch.nn.functional as F

from attncourse import scaled_dot_product

# --- window_mask


def mask_by_loops(n, width, global_tokens=0):
    return torch.tensor(
        [[abs(i - j) <= width or min(i, j) < global_tokens for j in range(n)] for i in range(n)]
    )


def mask_by_triangles(n, width, global_tokens=0):
    mask = torch.ones(n, n, dtype=torch.bool).tril(width).triu(-width)
    mask[:global_tokens] = True
    mask[:, :global_tokens] = True
    return mask


def mask_by_outer(n, width, global_tokens=0):
    i = np.arange(n)
    near = np.abs(np.subtract.outer(i, i)) <= width
    first = i < global_tokens
    return torch.from_numpy(np.logical_or(near, np.logical_or.outer(first, first)))


def mask_by_the_smaller(n, width, global_tokens=0):
    i = torch.arange(n)
    rows, columns = torch.meshgrid(i, i, indexing="ij")
    far = (rows - columns).pow(2) > width * width
    return ~(far & (torch.minimum(rows, columns) >= global_tokens))


def mask_by_rows(n, width, global_tokens=0):
    mask = torch.zeros((n, n), dtype=torch.bool)
    for i in range(n):
        if i < global_tokens:
            mask[i] = 1
        else:
            mask[i, max(0, i - width) : i + width + 1] = 1
            mask[i, :global_tokens] = 1
    return mask


def mask_by_distance_matrix(n, width, global_tokens=0):
    place = torch.arange(n, dtype=torch.float32)[:, None]
    near = torch.cdist(place, place, p=1) <= width + 0.5
    first = (torch.arange(n) - global_tokens) < 0
    return near | einops.rearrange(first, "q -> q 1") | einops.rearrange(first, "k -> 1 k")


def mask_by_bands(n, width, global_tokens=0):
    total = sum(
        torch.diag(torch.ones(n - abs(k)), k) for k in range(-width, width + 1) if abs(k) < n
    )
    total[:global_tokens, :] += 1
    total[:, :global_tokens] += 1
    return total > 0


MASK = [
    mask_by_loops,
    mask_by_triangles,
    mask_by_outer,
    mask_by_the_smaller,
    mask_by_rows,
    mask_by_distance_matrix,
    mask_by_bands,
    functools.partial(mask_by_triangles),
]

# --- reach


def reach_by_power(mask, layers):
    step = mask.double() + torch.eye(len(mask), dtype=torch.float64)
    return torch.linalg.matrix_power(step, layers) > 0


def reach_by_sets(mask, layers):
    n = len(mask)
    known = [{i} for i in range(n)]
    for _ in range(layers):
        known = [known[i].union(*(known[j] for j in range(n) if mask[i, j])) for i in range(n)]
    return torch.tensor([[j in known[i] for j in range(n)] for i in range(n)])


def reach_by_search(mask, layers):
    """Breadth first, from every word along the arrows."""
    n = mask.size(0)
    reached = torch.zeros(n, n, dtype=torch.bool)
    for start in range(n):
        queue, far = deque([start]), {start: 0}
        while queue:
            i = queue.popleft()
            if far[i] < layers:
                for j in mask[i].nonzero().flatten().tolist():
                    if j not in far:
                        far[j] = far[i] + 1
                        queue.append(j)
        reached[start, list(far)] = True
    return reached


def reach_by_any(mask, layers):
    known = torch.eye(mask.shape[0]).bool()
    for _ in range(layers):
        known = known | (mask[:, :, None] & known[None]).any(dim=1)
    return known


def reach_by_recursion(mask, layers):
    one = torch.eye(len(mask), dtype=torch.bool)
    if layers == 0:
        return one
    return ((mask | one).int() @ reach_by_recursion(mask, layers - 1).int()).bool()


def reach_from_the_other_side(mask, layers):
    step = (mask.T | torch.eye(len(mask), dtype=torch.bool)).float()
    spread = torch.eye(len(mask))
    for _ in range(layers):
        spread = (spread @ step).clamp(max=1)
    return spread.T > 0.5


def reach_by_doubling(mask, layers):
    """Squares, and the binary digits of the number of layers."""
    known = torch.eye(len(mask), dtype=torch.bool)
    power = mask | known
    while layers:
        if layers & 1:
            known = power.float() @ known.float() > 0
        power = power.float() @ power.float() > 0
        layers >>= 1
    return known


def reach_by_numpy(mask, layers):
    table = np.eye(len(mask), dtype=bool)
    for _ in range(layers):
        table = np.einsum("ij,jk->ik", mask.numpy(), table) | table
    return torch.as_tensor(table)


REACH = [
    reach_by_power,
    reach_by_sets,
    reach_by_search,
    reach_by_any,
    reach_by_recursion,
    reach_from_the_other_side,
    reach_by_doubling,
    reach_by_numpy,
]

# --- windowed_attention


def windowed_by_slices(query, key, value, width):
    """One query at a time."""
    rows = []
    for i in range(query.shape[-2]):
        near = slice(max(0, i - width), i + width + 1)
        scores = (key[..., near, :] @ query[..., i, :, None])[..., 0] / math.sqrt(query.shape[-1])
        rows.append((scores.softmax(-1)[..., None] * value[..., near, :]).sum(-2))
    return torch.stack(rows, -2)


def windowed_by_diagonals(query, key, value, width):
    """One offset at a time: 2·width + 1 products of the shifted text."""
    n = query.size(-2)
    width = min(width, n - 1)
    i = torch.arange(n)
    scores, values = [], []
    for offset in range(-width, width + 1):
        j = (i + offset).clamp(0, n - 1)
        score = (query * key[..., j, :]).sum(-1) * query.size(-1) ** -0.5
        scores.append(score.masked_fill((i + offset < 0) | (i + offset >= n), -math.inf))
        values.append(value[..., j, :])
    weights = torch.softmax(torch.stack(scores, -1), -1)
    return sum(w[..., None] * v for w, v in zip(weights.unbind(-1), values, strict=True))


def windowed_by_block_loop(query, key, value, width):
    """A loop over blocks; the course's attention with a mask in each."""
    n, outputs = query.shape[-2], []
    for start in range(0, n, width):
        first, last = max(0, start - width), min(n, start + 2 * width)
        rows = query[..., start : start + width, :]
        i = torch.arange(start, start + rows.shape[-2])[:, None]
        mask = (torch.arange(first, last) - i).abs() <= width
        output, _ = scaled_dot_product.scaled_dot_product_attention(
            rows, key[..., first:last, :], value[..., first:last, :], mask
        )
        outputs.append(output)
    return torch.cat(outputs, dim=-2)


def windowed_by_unfold(query, key, value, width):
    """Every query gets its own 2w + 1 keys as a view."""
    n = query.shape[-2]
    width = min(width, n)
    keys, values = (
        F.pad(x, (0, 0, width, width)).unfold(-2, 2 * width + 1, 1) for x in (key, value)
    )
    scores = torch.einsum("...nd,...ndw->...nw", query, keys) / query.shape[-1] ** 0.5
    at = torch.arange(n)[:, None] + torch.arange(-width, width + 1)
    scores = scores.where((at >= 0) & (at < n), torch.tensor(-torch.inf, dtype=scores.dtype))
    return torch.einsum("...nw,...nvw->...nv", scores.softmax(-1), values)


def windowed_by_neighbors(query, key, value, width):
    """Three blocks side by side, by rolling blocks of zeros."""
    n, d = query.shape[-2:]
    blocks = -(-n // width)
    fill = blocks * width - n

    def cut(x):
        return F.pad(x, (0, 0, 0, fill)).unflatten(-2, (blocks, width))

    def three(x):
        empty = torch.zeros_like(x[..., :1, :, :])
        before = torch.cat([empty, x[..., :-1, :, :]], -3)
        after = torch.cat([x[..., 1:, :, :], empty], -3)
        return torch.cat([before, x, after], dim=-2)

    place = cut(torch.arange(1, n + 1, dtype=torch.float32)[:, None])[..., 0]  # 0: nobody
    at = three(place[..., None])[..., 0]
    hidden = ((at[:, None, :] - place[:, :, None]).abs() > width) | (at[:, None, :] == 0)
    scores = cut(query) @ three(cut(key)).mT / math.sqrt(d)
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights @ three(cut(value))).flatten(-3, -2)[..., :n, :]


def windowed_by_index(query, key, value, width):
    """Keys of each block gathered by their places, cut off at the ends."""
    n = query.shape[-2]
    outputs = []
    for rows in torch.arange(n).split(width):
        at = torch.arange(int(rows[0]) - width, int(rows[-1]) + width + 1)
        at = at[(at >= 0) & (at < n)]
        scores = query[..., rows, :] @ key[..., at, :].transpose(-1, -2)
        scores = scores / math.sqrt(query.shape[-1])
        scores = scores.masked_fill((rows[:, None] - at).abs() > width, -1e9)
        outputs.append(torch.softmax(scores, dim=-1) @ value[..., at, :])
    return torch.cat(outputs, -2)


class Windowed:
    def __call__(self, query, key, value, width):
        return windowed_by_index(query, key, value, width)


WINDOWED = [
    windowed_by_slices,
    windowed_by_diagonals,
    windowed_by_block_loop,
    windowed_by_unfold,
    windowed_by_neighbors,
    windowed_by_index,
    Windowed(),
]

# --- linear_attention


def linear_by_triangle(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    scores = torch.tril(q @ k.transpose(-2, -1))
    return scores @ value / scores.sum(dim=-1, keepdim=True)


def linear_by_running_sums(query, key, value):
    """All states of the text at once."""
    q, k = (1 + F.elu(x) for x in (query, key))
    tables = (k[..., None] * value[..., None, :]).cumsum(-3)  # … n d v
    sums = torch.einsum("...nd,...ndv->...nv", q, tables)
    return sums / (q * k.cumsum(-2)).sum(-1, keepdim=True)


def linear_by_loop(query, key, value):
    q, k = torch.nn.ELU()(query) + 1, torch.nn.ELU()(key) + 1
    table, total, outputs = 0, 0, []
    for i in range(query.shape[-2]):
        table = table + k[..., i, :, None] * value[..., i, None, :]
        total = total + k[..., i, :]
        above = (q[..., i, None, :] @ table)[..., 0, :]
        outputs.append(above / (q[..., i, :] * total).sum(-1, keepdim=True))
    return torch.stack(outputs, dim=-2)


def linear_with_a_column_of_ones(query, key, value):
    """The divisor is the output for values of 1."""
    value = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    q, k = torch.where(query > 0, query + 1, query.exp()), F.elu(key).add(1)
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    sums = torch.where(mask, q @ k.mT, 0.0) @ value
    return sums[..., :-1] / sums[..., -1:]


def linear_by_numbers(query, key, value):
    """Row by row: weights, then an average."""

    def features(x):
        return x.clamp(min=0) + x.clamp(max=0).exp()

    q, k = features(query), features(key)
    rows = []
    for i in range(1, q.shape[-2] + 1):
        weights = (k[..., :i, :] * q[..., i - 1 : i, :]).sum(-1)
        weights = F.normalize(weights, p=1, dim=-1)
        rows.append((weights.unsqueeze(-1) * value[..., :i, :]).sum(-2, keepdim=True))
    return torch.cat(rows, -2)


def linear_in_chunks(query, key, value, size=2):
    """A triangle inside a chunk, a state between chunks."""
    q, k = F.elu(query) + 1, F.elu(key) + 1
    table = k[..., :0, :].mT @ value[..., :0, :]
    total = k[..., :0, :].sum(-2, keepdim=True)
    outputs = []
    for start in range(0, q.shape[-2], size):
        rows = slice(start, start + size)
        a, b, v = q[..., rows, :], k[..., rows, :], value[..., rows, :]
        inside = (a @ b.mT).tril()
        above = inside @ v + a @ table
        below = inside.sum(-1, keepdim=True) + (a * total).sum(-1, keepdim=True)
        outputs.append(above / below)
        table, total = table + b.mT @ v, total + b.sum(-2, keepdim=True)
    return torch.cat(outputs, -2)


def linear_by_einops(query, key, value):
    q, k = F.elu(query) + 1.0, F.elu(key) + 1.0
    scores = einops.einsum(q, k, "... q d, ... k d -> ... q k")
    n = scores.shape[-1]
    later = torch.arange(n)[None, :] > torch.arange(n)[:, None]
    scores = scores.masked_fill(later, 0)
    weights = scores / einops.reduce(scores, "... q k -> ... q 1", "sum")
    return einops.einsum(weights, value, "... q k, ... k v -> ... q v")


LINEAR = [
    linear_by_triangle,
    linear_by_running_sums,
    linear_by_loop,
    linear_with_a_column_of_ones,
    linear_by_numbers,
    linear_in_chunks,
    linear_by_einops,
    functools.partial(linear_in_chunks, size=3),
]

# --- linear_step


def step_by_einsum(state, query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    table, total = torch.einsum("...d,...v->...dv", k, value), k
    if state is not None:
        table, total = table + state[0], total + state[1]
    above = torch.einsum("...d,...dv->...v", q, table)
    below = torch.einsum("...d,...d->...", q, total)
    return above / below.unsqueeze(-1), (table, total)


def step_from_zero(state, query, key, value):
    if state is None:
        zero = query.new_zeros
        state = zero(*key.shape, value.shape[-1]), zero(key.shape)
    table, total = state
    q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (query, key))
    table = table + k[..., :, None] @ value[..., None, :]
    total = total + k
    return (q[..., None, :] @ table)[..., 0, :] / (q * total).sum(-1, True), [table, total]


def step_by_old_and_new(state, query, key, value):
    """What the state says and what the word adds, apart."""
    q, k = F.elu(query) + 1, F.elu(key) + 1
    own = (q * k).sum(-1, keepdim=True)
    above, below = own * value, own
    new = k.unsqueeze(-1) * value.unsqueeze(-2), k
    if state is not None:
        above = above + (q.unsqueeze(-2) @ state[0]).squeeze(-2)
        below = below + (q.unsqueeze(-2) @ state[1].unsqueeze(-1)).squeeze(-1)
        new = state[0] + new[0], state[1] + new[1]
    return above / below, new


def step_with_a_wider_table(state, query, key, value):
    """Table and vector as one table, whose last column is the vector."""
    q, k = F.elu(query).add(1), F.elu(key).add(1)
    wide = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    table = k[..., None] * wide[..., None, :]
    if state is not None:
        table = table + torch.cat([state[0], state[1][..., None]], -1)
    sums = (q[..., None] * table).sum(dim=-2)
    return sums[..., :-1] / sums[..., -1:], (table[..., :-1], table[..., -1])


def step_by_einops(state, query, key, value):
    q, k = (F.elu(x) + 1 for x in (query, key))
    add = einops.einsum(k, value, "... d, ... v -> ... d v"), k
    state = add if state is None else tuple(a + b for a, b in zip(state, add, strict=True))
    output = einops.einsum(q, state[0], "... d, ... d v -> ... v")
    return output / einops.einsum(q, state[1], "... d, ... d -> ...")[..., None], state


def step_by_weights(state, query, key, value):
    """The query is divided first."""
    q, k = F.elu(query) + 1, F.elu(key) + 1
    old = (0.0, 0.0) if state is None else state
    table, total = old[0] + torch.mul(k[..., None], value[..., None, :]), old[1] + k
    q = q / (q * total).sum(-1, keepdim=True)
    return torch.matmul(table.mT, q[..., None])[..., 0], (table, total)


class Stepper:
    def __call__(self, state, query, key, value):
        return step_from_zero(state, query, key, value)


STEP = [
    step_by_einsum,
    step_from_zero,
    step_by_old_and_new,
    step_with_a_wider_table,
    step_by_einops,
    step_by_weights,
    Stepper(),
]

# --- ring_attention


def ring_by_logsumexp(query_shards, key_shards, value_shards):
    outputs = []
    for i, q in enumerate(query_shards):
        so_far = None
        for step in range(len(query_shards)):
            j = (i - step) % len(query_shards)
            scores = q @ key_shards[j].mT / math.sqrt(q.shape[-1])
            new = scores.softmax(-1) @ value_shards[j], scores.logsumexp(-1, keepdim=True)
            if so_far is None:
                so_far = new
                continue
            total = torch.logaddexp(so_far[1], new[1])
            output = so_far[0] * (so_far[1] - total).exp() + new[0] * (new[1] - total).exp()
            so_far = output, total
        outputs.append(so_far[0])
    return outputs


def ring_as_in_flash(query_shards, key_shards, value_shards):
    """Weighted values, largest score and sum; one division at the end."""
    results = []
    for q in query_shards:
        largest = torch.full_like(q[..., :1], -math.inf)
        total, weighted = torch.zeros_like(largest), 0.0
        for k, v in zip(key_shards, value_shards, strict=True):
            scores = torch.einsum("...qd,...kd->...qk", q, k) * q.shape[-1] ** -0.5
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            shrink, weights = (largest - new).exp(), (scores - new).exp()
            weighted = weighted * shrink + weights @ v
            total = total * shrink + weights.sum(-1, keepdim=True)
            largest = new
        results.append(weighted / total)
    return results


def ring_in_two_passes(query_shards, key_shards, value_shards):
    """First the sum over all shards, then the values: the ring is gone round twice."""
    outputs = []
    for q in query_shards:
        scaled = q / math.sqrt(q.shape[-1])
        totals = [torch.logsumexp(scaled @ k.mT, dim=-1) for k in key_shards]
        total = functools.reduce(torch.logaddexp, totals)[..., None]
        parts = [
            (scaled @ k.mT - total).exp() @ v for k, v in zip(key_shards, value_shards, strict=True)
        ]
        outputs.append(sum(parts))
    return outputs


def ring_by_rounds(query_shards, key_shards, value_shards):
    """All processes take a round together, then everybody hands on."""
    p = len(query_shards)
    held = deque(zip(key_shards, value_shards, strict=True))
    states = [None] * p
    for _ in range(p):
        for i in range(p):
            k, v = held[i]
            s = query_shards[i] @ k.transpose(-1, -2) / query_shards[i].shape[-1] ** 0.5
            lse = torch.logsumexp(s, -1, keepdim=True)
            out = torch.exp(s - lse) @ v
            if states[i] is not None:
                other, old = states[i]
                out = other - torch.sigmoid(lse - old) * (other - out)
                lse = old - F.logsigmoid(old - lse)
            states[i] = out, lse
        held.rotate(1)
    return [state[0] for state in states]


def ring_by_shares(query_shards, key_shards, value_shards):
    """All partial outputs first; a softmax over the shards says how much each counts."""
    outputs = []
    for q in query_shards:
        parts, totals = [], []
        for k, v in zip(key_shards, value_shards, strict=True):
            scores = (q @ k.mT) / math.sqrt(q.shape[-1])
            parts.append(torch.softmax(scores, -1) @ v)
            totals.append(scores.logsumexp(-1))
        shares = torch.stack(totals).softmax(0)[..., None]
        outputs.append(sum(share * part for share, part in zip(shares, parts, strict=True)))
    return tuple(outputs)


def ring_key_by_key(query_shards, key_shards, value_shards):
    """A running sum, one key at a time."""
    outputs = []
    for q in query_shards:
        output, total = None, None
        for k, v in zip(key_shards, value_shards, strict=True):
            for i in range(k.shape[-2]):
                score = (q * k[..., i : i + 1, :]).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])
                value = v[..., i : i + 1, :].expand(*q.shape[:-1], v.shape[-1])
                if output is None:
                    output, total = value, score
                else:
                    output = output + torch.sigmoid(score - total) * (value - output)
                    total = torch.logaddexp(total, score)
        outputs.append(output)
    return outputs


def ring_backwards(query_shards, key_shards, value_shards):
    """The ring the other way round: order does not matter."""
    return ring_as_in_flash(query_shards, key_shards[::-1], value_shards[::-1])


RING = [
    ring_by_logsumexp,
    ring_as_in_flash,
    ring_in_two_passes,
    ring_by_rounds,
    ring_by_shares,
    ring_key_by_key,
    ring_backwards,
]

# --- span_mask


def span_by_clamp(distance, span, ramp):
    return ((ramp + span - distance) / ramp).clamp(0, 1)


def span_by_extremes(distance, span, ramp):
    line = 1 + (span - distance) / ramp
    return torch.minimum(torch.maximum(line, torch.zeros_like(line)), torch.ones_like(line))


def span_by_cases(distance, span, ramp):
    line = (span + ramp - distance) / ramp
    return torch.where(line > 1, 1.0, torch.where(line < 0, 0.0, line)).to(line.dtype)


def span_by_relus(distance, span, ramp):
    """What is left, less what is too much."""
    line = (ramp + span - distance) / ramp
    return F.relu(line) - F.relu(line - 1)


def span_by_hardtanh(distance, span, ramp):
    return F.hardtanh((span - distance) / ramp + 1, 0.0, 1.0)


def span_by_what_is_lost(distance, span, ramp):
    beyond = torch.relu(distance - span)
    return torch.relu(1 - beyond / ramp)


def span_by_numpy_names(distance, span, ramp):
    return torch.clip((span - distance + ramp).div(ramp), min=0, max=1)


SPAN = [
    span_by_clamp,
    span_by_extremes,
    span_by_cases,
    span_by_relus,
    span_by_hardtanh,
    span_by_what_is_lost,
    span_by_numpy_names,
]

CORRECT = {
    "window_mask": MASK,
    "reach": REACH,
    "windowed_attention": WINDOWED,
    "linear_attention": LINEAR,
    "linear_step": STEP,
    "ring_attention": RING,
    "span_mask": SPAN,
}
