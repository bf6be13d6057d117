"""Right answers of chapter 8 in many styles: the judge must accept every one, on every seed."""

import bisect
import functools
import itertools
import math

import einops
import numpy as np
import torch
import torch.nn.functional as F

# --- relative_scores


def scores_by_lookup(query, key, table):
    q, k, c = query.shape[-2], key.shape[-2], len(table) // 2
    i, j = torch.arange(k - q, k), torch.arange(k)
    rows = (j - i[:, None]).clamp(-c, c) + c
    offset = torch.einsum("...qd,qkd->...qk", query, table[rows])
    return (query @ key.mT + offset) / math.sqrt(query.shape[-1])


def scores_by_wide_keys(query, key, table):
    """Every query gets keys of its own: content plus offset, q times as much memory."""
    q, k, c = query.shape[-2], key.shape[-2], len(table) // 2
    offsets = torch.arange(k)[None, :] - torch.arange(k - q, k)[:, None]
    keys = key.unsqueeze(-3) + F.embedding(offsets.clamp(min=-c, max=c) + c, table)
    return (query.unsqueeze(-2) * keys).sum(-1) * query.shape[-1] ** -0.5


def scores_by_gathering(query, key, table):
    q, k, d = query.shape[-2], key.shape[-2], query.shape[-1]
    c = table.shape[0] // 2
    every = einops.einsum(query, table, "... q d, r d -> ... q r")
    rows = [[min(max(j - (i + k - q), -c), c) + c for j in range(k)] for i in range(q)]
    index = torch.tensor(rows).expand(*every.shape[:-1], k)
    return (einops.einsum(query, key, "... q d, ... k d -> ... q k") + every.gather(-1, index)) / (
        d**0.5
    )


def scores_by_loops(query, key, table):
    q, k, d = query.shape[-2], key.shape[-2], query.shape[-1]
    c = (len(table) - 1) // 2
    rows = []
    for i in range(q):
        row = []
        for j in range(k):
            offset = max(-c, min(c, j - (i + k - q)))
            row.append((query[..., i, :] * (key[..., j, :] + table[offset + c])).sum(-1))
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2) / math.sqrt(d)


def scores_by_padding_the_table(query, key, table):
    """The outer rows repeated as often as a text is long, then slices instead of clipping."""
    q, k, c = query.shape[-2], key.shape[-2], len(table) // 2
    long = torch.cat([table[:1].expand(k, -1), table, table[-1:].expand(q, -1)])
    first = k + c  # the row of offset 0
    slices = [long[first - (i + k - q) : first - (i + k - q) + k] for i in range(q)]
    return torch.einsum(
        "...qd,...qkd->...qk",
        query / query.size(-1) ** 0.5,
        key[..., None, :, :] + torch.stack(slices),
    )


def scores_by_one_hot(query, key, table):
    q, k, r = query.shape[-2], key.shape[-2], len(table)
    offsets = torch.arange(k) - torch.arange(k - q, k).view(-1, 1)
    chosen = F.one_hot(torch.clip(offsets, -(r // 2), r // 2) + r // 2, r).to(table.dtype)
    scaled = query / math.sqrt(query.shape[-1])
    return scaled @ key.transpose(-1, -2) + torch.einsum(
        "qkr,...qr->...qk", chosen, scaled @ table.T
    )


class Scorer:
    def __call__(self, query, key, table):
        return scores_by_lookup(query, key, table)


SCORES = [
    scores_by_lookup,
    scores_by_wide_keys,
    scores_by_gathering,
    scores_by_loops,
    scores_by_padding_the_table,
    scores_by_one_hot,
    Scorer(),
    functools.partial(scores_by_one_hot),
]

# --- relative_buckets


def buckets_as_in_t5(offsets, num_buckets, max_distance, bidirectional):
    """The program that everybody copies, step by step."""
    buckets = 0
    if bidirectional:
        num_buckets //= 2
        buckets = buckets + (offsets > 0).to(torch.long) * num_buckets
        offsets = torch.abs(offsets)
    else:
        offsets = -torch.min(offsets, torch.zeros_like(offsets))
    exact = num_buckets // 2
    large = exact + (
        torch.log(offsets.float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    ).to(torch.long)
    large = torch.min(large, torch.full_like(large, num_buckets - 1))
    return buckets + torch.where(offsets < exact, offsets, large)


def bucket_of(offset, num_buckets, max_distance, bidirectional):
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(0, -offset)
    alone = num_buckets // 2
    if distance < alone:
        return first + distance
    share = math.log(distance / alone) / math.log(max_distance / alone)
    return first + min(num_buckets - 1, alone + int(share * (num_buckets - alone)))


def buckets_by_a_loop(offsets, num_buckets, max_distance, bidirectional):
    found = [
        bucket_of(offset, num_buckets, max_distance, bidirectional)
        for offset in offsets.flatten().tolist()
    ]
    return torch.tensor(found, dtype=torch.long).reshape(offsets.shape)


def buckets_by_map(offsets, num_buckets, max_distance, bidirectional):
    """What belongs to each distance is written down once; all that are farther get the last."""
    b = num_buckets // (2 if bidirectional else 1)
    written = [*range(b // 2)]
    for far in range(b // 2, max_distance):
        share = math.log(2 * far / b, 2 * max_distance / b)
        written += [b // 2 + math.floor(share * (b - b // 2) + 1e-12)]
    written += [b - 1]

    def place(offset):
        away = offset if bidirectional and offset > 0 else -min(offset, 0)
        return written[min(int(away), max_distance)] + b * bool(bidirectional and offset > 0)

    return offsets.clone().apply_(place)


def borders_of(b, max_distance):
    """The smallest distance of every bucket of a direction."""
    alone = b // 2
    far = b - alone
    steps = [alone * (max_distance / alone) ** (step / far) for step in range(far)]
    return [*range(alone), *steps]


def buckets_by_search(offsets, num_buckets, max_distance, bidirectional):
    """Borders first, then each distance is looked up among them."""
    b = num_buckets // 2 if bidirectional else num_buckets
    borders = torch.tensor(borders_of(b, max_distance), dtype=torch.float64)
    distance = offsets.abs() if bidirectional else offsets.clamp(max=0).neg()
    found = torch.searchsorted(borders, distance.double(), right=True) - 1
    return found + b * (offsets > 0) if bidirectional else found


def buckets_by_bisection(offsets, num_buckets, max_distance, bidirectional):
    b = num_buckets // 2 if bidirectional else num_buckets
    borders = borders_of(b, max_distance)
    after = b if bidirectional else 0

    def of(offset):
        distance = abs(offset) if bidirectional else max(-offset, 0)
        return bisect.bisect_right(borders, distance) - 1 + (after if offset > 0 else 0)

    return torch.tensor([of(o) for o in offsets.reshape(-1).tolist()]).view_as(offsets)


def buckets_in_double(offsets, num_buckets, max_distance, bidirectional):
    sides = 2 if bidirectional else 1
    b = num_buckets // sides
    alone = b // 2
    distance = torch.where(offsets < 0, -offsets, offsets if bidirectional else 0 * offsets)
    ratio = distance.double().div(alone).clamp_min(1.0)
    far = (torch.log2(ratio) / math.log2(max_distance / alone) * (b - alone)).floor().long()
    chosen = torch.where(distance >= alone, (far + alone).clamp_max(b - 1), distance)
    return chosen + (offsets > 0).long() * b if bidirectional else chosen


def buckets_by_numpy(offsets, num_buckets, max_distance, bidirectional):
    o = offsets.numpy()
    b = num_buckets // 2 if bidirectional else num_buckets
    n = np.abs(o) if bidirectional else np.maximum(-o, 0)
    alone = b // 2
    with np.errstate(divide="ignore"):
        share = np.log(n / alone) / np.log(max_distance / alone)
    far = np.minimum(np.nan_to_num(alone + share * (b - alone), neginf=0), b - 1).astype(np.int64)
    return torch.tensor(np.where(n < alone, n, far) + (o > 0) * b * bool(bidirectional))


BUCKETS = [
    buckets_as_in_t5,
    buckets_by_a_loop,
    buckets_by_map,
    buckets_by_search,
    buckets_by_bisection,
    buckets_in_double,
    buckets_by_numpy,
]

# --- alibi_bias


def slopes_as_in_alibi(n):
    """The authors' own recursion."""

    def of_a_power(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return of_a_power(n)
    closest = 2 ** math.floor(math.log2(n))
    return of_a_power(closest) + slopes_as_in_alibi(2 * closest)[0::2][: n - closest]


def bias_by_recursion(num_heads, query_length, key_length):
    i = torch.arange(key_length)[-query_length:]
    distance = (torch.arange(key_length)[None, :] - i[:, None]).abs()
    return -torch.tensor(slopes_as_in_alibi(num_heads)).view(-1, 1, 1) * distance


def bias_by_loops(num_heads, query_length, key_length):
    bias = torch.zeros(num_heads, query_length, key_length)
    first = key_length - query_length
    for h, slope in enumerate(slopes_as_in_alibi(num_heads)):
        for i, j in itertools.product(range(query_length), range(key_length)):
            bias[h, i, j] = -slope * abs(j - (first + i))
    return bias


def bias_by_powers(num_heads, query_length, key_length):
    p = 1
    while 2 * p <= num_heads:
        p *= 2
    exponents = [8 * i / p for i in range(1, p + 1)]
    exponents += [8 * (2 * i + 1) / (2 * p) for i in range(num_heads - p)]
    slopes = torch.tensor(2.0) ** -torch.tensor(exponents)
    place = torch.arange(key_length, dtype=torch.float32)
    return torch.einsum(
        "h,qk->hqk",
        slopes,
        -torch.cdist(place[key_length - query_length :, None], place[:, None], p=1),
    )


def bias_by_the_last_rows(num_heads, query_length, key_length):
    """The whole square, of which the last rows are wanted."""
    place = torch.arange(key_length)
    square = -(place[:, None] - place).abs().float()
    slopes = torch.tensor(slopes_as_in_alibi(num_heads))
    return einops.einsum(slopes, square[key_length - query_length :], "h, q k -> h q k")


def bias_by_outer(num_heads, query_length, key_length):
    place = torch.arange(query_length) + (key_length - query_length)
    later = torch.maximum(place[:, None], torch.arange(key_length))
    earlier = torch.minimum(place[:, None], torch.arange(key_length))
    slopes = torch.tensor(slopes_as_in_alibi(num_heads), dtype=torch.float64)
    return torch.multiply(slopes[..., None, None], earlier - later).to(torch.float32)


def bias_by_toeplitz(num_heads, query_length, key_length):
    """One long row of distances, from which every query reads its window."""
    ridge = torch.arange(1 - key_length, query_length).abs().float()
    rows = ridge.unfold(0, key_length, 1).flip(0)
    return torch.stack([slope * -rows for slope in slopes_as_in_alibi(num_heads)])


def bias_by_numpy(num_heads, query_length, key_length):
    gap = np.abs(
        np.arange(key_length)[None] - np.arange(key_length - query_length, key_length)[:, None]
    )
    return torch.from_numpy(
        -np.array(slopes_as_in_alibi(num_heads))[:, None, None] * gap[None]
    ).float()


BIAS = [
    bias_by_recursion,
    bias_by_loops,
    bias_by_powers,
    bias_by_the_last_rows,
    bias_by_outer,
    bias_by_toeplitz,
    bias_by_numpy,
    functools.partial(bias_by_recursion),
]

# --- rotate


def rotate_by_slices(x, positions, base=10_000.0):
    d = x.shape[-1]
    speed = base ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = positions[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    turned = torch.empty_like(x)
    turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    turned[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return turned


def rotate_by_complex_numbers(x, positions, base=10_000.0):
    """A pair is a complex number, and a turn is a product."""
    d = x.shape[-1]
    speed = 1.0 / base ** (torch.arange(0, d, 2)[: d // 2].double() / d)
    angle = torch.outer(positions.double(), speed)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn.to(pairs.dtype)).flatten(-2)


def rotate_by_matrices(x, positions, base=10_000.0):
    """One block-diagonal matrix a place, as in the paper's formula 15."""
    d = x.shape[-1]
    matrices = torch.zeros(len(positions), d, d, dtype=x.dtype)
    for n, place in enumerate(positions.tolist()):
        for i in range(d // 2):
            angle = place * base ** (-2 * i / d)
            block = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            matrices[n, 2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(block)
            if x.dtype == torch.float64:
                matrices[n, 2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
                    block, dtype=torch.float64
                )
    return torch.einsum("nij,...nj->...ni", matrices, x)


def rotate_with_a_partner(x, positions, base=10_000.0):
    """x·cos + partner·sin, the partner of (a, b) being (−b, a); the paper's formula 34."""
    d = x.shape[-1]
    speed = torch.pow(base, -torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = (positions.double()[:, None] * speed).repeat_interleave(2, dim=-1)
    partner = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)
    return x * angle.cos().to(x) + partner * angle.sin().to(x)


def rotate_by_einops(x, positions, base=10_000.0):
    a, b = einops.rearrange(x, "... (i two) -> two ... i", two=2)
    i = torch.arange(a.shape[-1], dtype=torch.float64)
    angle = einops.einsum(positions.double(), base ** (-2 * i / x.shape[-1]), "n, i -> n i")
    cos, sin = (wave.to(x.dtype) for wave in (torch.cos(angle), torch.sin(angle)))
    return einops.rearrange(
        [a * cos - b * sin, a * sin + b * cos], "two ... i -> ... (i two)", two=2
    )


def rotate_by_halves(x, positions, base=10_000.0):
    """Sorted into halves, turned as Hugging Face does, and sorted back."""
    d = x.shape[-1]
    order = torch.cat([torch.arange(0, d, 2), torch.arange(1, d, 2)])
    speed = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float64) / d))
    angle = torch.cat(2 * [positions.double().unsqueeze(-1) * speed], -1)
    halves = x[..., order]
    first, second = halves.chunk(2, dim=-1)
    turned = halves * angle.cos().to(x) + torch.cat((-second, first), dim=-1) * angle.sin().to(x)
    return turned[..., order.argsort()]


def rotate_word_by_word(x, positions, base=10_000.0):
    d = x.shape[-1]
    words = []
    for n, place in enumerate(positions):
        columns = []
        for i in range(0, d, 2):
            angle = place.double() / base ** (i / d)
            cos, sin = torch.cos(angle).to(x), torch.sin(angle).to(x)
            a, b = x[..., n, i], x[..., n, i + 1]
            columns += [a * cos - b * sin, b * cos + a * sin]
        words.append(torch.stack(columns, -1))
    return torch.stack(words, -2)


def rotate_by_sum_of_angles(x, positions, base=10_000.0):
    """Polar coordinates: the length stays, the angle grows. (At a zero vector no gradient.)"""
    a, b = x.unflatten(-1, (-1, 2)).double().unbind(-1)
    d = x.shape[-1]
    speed = base ** (-torch.arange(0, d, 2).double() / d)
    angle = torch.atan2(b, a) + positions.double()[:, None] * speed
    length = torch.hypot(a, b)
    return torch.stack([length * angle.cos(), length * angle.sin()], -1).flatten(-2).to(x.dtype)


ROTATE = [
    rotate_by_slices,
    rotate_by_complex_numbers,
    rotate_by_matrices,
    rotate_with_a_partner,
    rotate_by_einops,
    rotate_by_halves,
    rotate_word_by_word,
    rotate_by_sum_of_angles,
]

# --- shift_relative


def shift_by_padding(scores):
    q, r = scores.shape[-2:]
    flat = F.pad(scores, (0, 1)).flatten(-2)
    return flat[..., q - 1 : q - 1 + q * r].unflatten(-1, (q, r))[..., : r - q + 1]


def shift_as_in_transformer_xl(scores):
    """A column in front, the list cut into rows of another length, the first row dropped."""
    q, r = scores.shape[-2:]
    wide = torch.cat([scores.new_zeros(*scores.shape[:-1], 1), scores], dim=-1)
    tall = wide.reshape(*scores.shape[:-2], r + 1, q)
    return tall[..., 1:, :].reshape(scores.shape)[..., : r - q + 1]


def shift_by_gathering(scores):
    q, r = scores.shape[-2:]
    columns = torch.arange(r - q + 1) + torch.arange(q - 1, -1, -1)[:, None]
    return scores.gather(-1, columns.expand(*scores.shape[:-1], -1))


def shift_by_indices(scores):
    q, r = scores.size(-2), scores.size(-1)
    i = torch.arange(q).unsqueeze(1)
    j = torch.arange(r - q + 1).unsqueeze(0)
    return scores[..., i, j - i + q - 1]


def shift_by_slices(scores):
    q, r = scores.shape[-2:]
    k = r + 1 - q
    return torch.stack([scores[..., i, q - 1 - i : q - 1 - i + k] for i in range(q)], dim=-2)


def shift_by_rolling(scores):
    q = scores.shape[-2]
    rows = [row.roll(i + 1 - q, -1) for i, row in enumerate(scores.unbind(-2))]
    return torch.stack(rows, -2)[..., : scores.shape[-1] - q + 1]


def shift_by_strides(scores):
    """No number is moved: the same memory, read with another step."""
    scores = scores.contiguous()
    q, r = scores.shape[-2:]
    return scores.as_strided(
        (*scores.shape[:-1], r - q + 1),
        (*scores.stride()[:-2], r - 1, 1),
        scores.storage_offset() + q - 1,
    )


def shift_by_diagonals(scores):
    q, r = scores.shape[-2:]
    diagonals = [scores.flip(-2).diagonal(j, -2, -1).flip(-1) for j in range(r - q + 1)]
    return torch.stack(diagonals, -1)


def shift_by_loops(scores):
    q, r = scores.shape[-2:]
    shifted = scores.new_empty(*scores.shape[:-1], r - q + 1)
    for i, j in itertools.product(range(q), range(r - q + 1)):
        shifted[..., i, j] = scores[..., i, q - 1 - i + j]
    return shifted


SHIFT = [
    shift_by_padding,
    shift_as_in_transformer_xl,
    shift_by_gathering,
    shift_by_indices,
    shift_by_slices,
    shift_by_rolling,
    shift_by_strides,
    shift_by_diagonals,
    shift_by_loops,
]

CORRECT = {
    "relative_scores": SCORES,
    "relative_buckets": BUCKETS,
    "alibi_bias": BIAS,
    "rotate": ROTATE,
    "shift_relative": SHIFT,
}
