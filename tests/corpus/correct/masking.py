"""Right answers in many styles: the judge must accept every one of them, on every seed."""

import collections
import functools
import itertools

import einops
import numpy as np
import torch
import torch.nn.functional as F

# --- next_word_pairs


def slices(tokens):
    return [(tokens[:place], tokens[place]) for place in range(1, len(tokens))]


def by_enumeration(tokens):
    return [(tokens[: i + 1], word) for i, word in enumerate(tokens[1:])]


def growing_copies(tokens):
    so_far, pairs = [], []
    for word in tokens:
        if so_far:
            pairs.append((so_far.copy(), word))
        so_far.append(word)
    return pairs


def accumulated(tokens):
    contexts = itertools.accumulate([token] for token in tokens)
    return list(zip(contexts, tokens[1:], strict=False))


def backward(tokens):
    pairs, rest = [], list(tokens)
    while len(rest) > 1:
        following = rest.pop()
        pairs.append((list(rest), following))
    return pairs[::-1]


def recursively(tokens):
    if len(tokens) < 2:
        return []
    return [*recursively(tokens[:-1]), (list(tokens[:-1]), tokens[-1])]


def pairs_as_lists(tokens):
    return [[list(tokens[:n]), tokens[n]] for n in range(1, len(tokens))]


def by_generator(tokens):
    def pairs():
        for place, following in enumerate(tokens):
            if place:
                yield [*itertools.islice(tokens, place)], following

    return list(pairs())


def unpacked(tokens):
    pairs = []
    for end in range(2, 1 + len(tokens)):
        *context, following = tokens[:end]
        pairs.append((context, following))
    return pairs


def as_a_tuple_of_pairs(tokens):
    return tuple((tokens[:place], tokens[place]) for place in range(1, len(tokens)))


Pair = collections.namedtuple("Pair", ("context", "following"))


def named_pairs(tokens):
    return [Pair(tokens[:place], tokens[place]) for place in range(1, len(tokens))]


def growing_deque(tokens):
    so_far, pairs = collections.deque(tokens[:1]), []
    for following in tokens[1:]:
        pairs.append((list(so_far), following))
        so_far.append(following)
    return pairs


class Pairs:
    def __init__(self):
        self.calls = 0

    def __call__(self, tokens):
        self.calls += 1
        print("pairs of", tokens)  # harmless, and common
        return slices(tokens)


PAIRS = [
    slices,
    by_enumeration,
    growing_copies,
    accumulated,
    backward,
    recursively,
    pairs_as_lists,
    by_generator,
    unpacked,
    as_a_tuple_of_pairs,
    named_pairs,
    growing_deque,
    Pairs(),
    functools.partial(slices),
    lambda *args: slices(*args),
]


# --- causal_mask


def by_tril(query_length, key_length=None):
    if key_length is None:
        key_length = query_length
    ones = torch.ones(query_length, key_length, dtype=torch.bool)
    return torch.tril(ones, diagonal=key_length - query_length)


def by_comparison(query_length, key_length=None):
    key_length = key_length or query_length
    queries = torch.arange(key_length - query_length, key_length)
    return queries[:, None] >= torch.arange(key_length)


def opposite_of_triu(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    later = torch.ones(query_length, key_length).triu(key_length - query_length + 1)
    return later == 0


def cut_from_a_square(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    return torch.ones(key_length, key_length).tril().bool()[key_length - query_length :]


def last_rows(q, k=None):
    k = q if k is None else k
    return torch.tril(torch.ones((k, k), dtype=torch.uint8))[-q:].to(torch.bool)


def past_beside_triangle(query_length, key_length=None):
    triangle = torch.ones(query_length, query_length, dtype=torch.bool).tril()
    if key_length is None:
        return triangle
    past = torch.ones(query_length, key_length - query_length, dtype=torch.bool)
    return torch.cat([past, triangle], dim=1)


def with_loops(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    mask = torch.zeros(query_length, key_length, dtype=torch.bool)
    for i in range(query_length):
        for j in range(key_length):
            mask[i, j] = j <= i + key_length - query_length
    return mask


def from_lists(query_length, key_length=None):
    key_length = key_length if key_length is not None else query_length
    behind = key_length - query_length
    return torch.tensor([[j - behind <= i for j in range(key_length)] for i in range(query_length)])


def with_numpy(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    return torch.from_numpy(np.tri(query_length, key_length, key_length - query_length, dtype=bool))


def by_running_sum(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    own = torch.eye(query_length, dtype=torch.long)  # q q
    padded = F.pad(own, (key_length - query_length, 0))
    return padded.flip(-1).cumsum(-1).flip(-1) > 0


def by_minus_infinity(query_length, key_length=None):
    key_length = query_length if key_length is None else key_length
    additive = torch.full((query_length, key_length), float("-inf"))
    return torch.triu(additive, diagonal=1 + key_length - query_length) == 0


def upside_down(query_length, key_length=None):
    """Seen from the last query, everything starts at the lower right corner."""
    key_length = query_length if key_length is None else key_length
    seen = torch.ones(query_length, key_length, dtype=torch.bool).triu()
    return seen.flip(0, 1)


@functools.lru_cache
def kept(query_length, key_length=None):
    return by_tril(query_length, key_length)


def from_torchs_own(query_length, key_length=None):
    """It holds 0 and −∞, and is square."""
    key_length = query_length if key_length is None else key_length
    additive = torch.nn.Transformer.generate_square_subsequent_mask(key_length)
    return additive[-query_length:] == 0


def turned_triangle(query_length, key_length=None):
    """The mask is a view: its rows lie apart in memory."""
    key_length = query_length if key_length is None else key_length
    keys_by_queries = torch.ones(key_length, query_length, dtype=torch.bool)
    return keys_by_queries.triu(query_length - key_length).T


class Buffer:
    """Keeps the largest triangle so far, and cuts its lower right corner out."""

    def __init__(self):
        self.triangle = torch.ones(4, 4, dtype=torch.bool).tril()

    def __call__(self, query_length, key_length=None):
        key_length = key_length or query_length
        if key_length > len(self.triangle):
            self.triangle = torch.ones(key_length, key_length, dtype=torch.bool).tril()
        return self.triangle[-query_length:, -key_length:]


class Mask(torch.nn.Module):
    def forward(self, query_length, key_length=None):
        return by_comparison(query_length, key_length)


CAUSAL = [
    by_tril,
    by_comparison,
    opposite_of_triu,
    cut_from_a_square,
    last_rows,
    past_beside_triangle,
    with_loops,
    from_lists,
    with_numpy,
    by_running_sum,
    by_minus_infinity,
    upside_down,
    kept,
    from_torchs_own,
    turned_triangle,
    Buffer(),
    torch.no_grad()(by_tril),
    torch.compile(by_comparison, backend="eager"),
    Mask(),
    functools.partial(by_tril),
    lambda *args, **kwargs: by_tril(*args, **kwargs),
]


# --- padding_mask


def places(lengths, max_length):
    return (torch.arange(max_length) < lengths[:, None])[:, None, :]


def unsqueezed(lengths, max_length):
    positions = torch.arange(max_length, dtype=lengths.dtype).unsqueeze(0)
    return positions.lt(lengths.unsqueeze(1)).unsqueeze(1)


def three_axes(lengths, max_length):
    return torch.arange(max_length).view(1, 1, -1) < lengths.view(-1, 1, 1)


def by_rows(lengths, max_length):
    mask = torch.zeros(len(lengths), 1, max_length, dtype=torch.bool)
    for row, length in zip(mask, lengths, strict=True):
        row[0, :length] = True
    return mask


def from_nested_lists(lengths, max_length):
    rows = [[[True] * n + [False] * (max_length - n)] for n in lengths.tolist()]
    return torch.tensor(rows, dtype=torch.bool)


def rows_of_a_triangle(lengths, max_length):
    """Row n of a strict triangle has n ones: it is what a sentence of n words may see."""
    triangle = torch.ones(max_length + 1, max_length).tril(-1)
    return triangle[lengths.long()].bool()[:, None]


def by_last_places(lengths, max_length):
    ends = F.one_hot(lengths.long(), max_length + 1)
    return (ends.cumsum(-1)[:, :-1] == 0)[:, None]


def with_einops(lengths, max_length):
    columns = einops.rearrange(lengths, "b -> b 1 1")
    return einops.rearrange(torch.arange(max_length), "k -> 1 1 k") < columns


def minus_the_pads(lengths, max_length):
    pads = torch.arange(max_length)[None] >= lengths[:, None]
    return pads.logical_not()[:, None]


def in_numpy(lengths, max_length):
    return torch.from_numpy(np.arange(max_length) < lengths.numpy()[:, None, None])


def by_filling(lengths, max_length):
    rows = [torch.ones(int(n), dtype=torch.bool) for n in lengths]
    padded = torch.stack([F.pad(row, (0, max_length - len(row))) for row in rows])
    return padded.unsqueeze(-2)


def expanded(lengths, max_length):
    table = torch.arange(max_length).expand(len(lengths), 1, max_length)
    return table < lengths[:, None, None]


def ends_scattered(lengths, max_length):
    ends = torch.zeros(len(lengths), 1, max_length + 1)
    ends = ends.scatter(2, lengths.long()[:, None, None], 1)
    return ends.cumsum(-1)[..., :-1] == 0


def mapped(lengths, max_length):
    return torch.vmap(lambda length: torch.arange(max_length)[None] < length)(lengths)


def what_is_left(lengths, max_length):
    return (lengths[:, None, None] - torch.arange(max_length)).clamp(0, 1).bool()


def places_first(lengths, max_length):
    return (torch.arange(max_length)[:, None] < lengths).T[:, None]


class Padding:
    def __call__(self, lengths, max_length):
        return places(lengths, max_length)


PADDING = [
    places,
    unsqueezed,
    three_axes,
    by_rows,
    from_nested_lists,
    rows_of_a_triangle,
    by_last_places,
    with_einops,
    minus_the_pads,
    in_numpy,
    by_filling,
    expanded,
    ends_scattered,
    mapped,
    what_is_left,
    places_first,
    torch.no_grad()(places),
    Padding(),
    functools.partial(places),
    lambda *args, **kwargs: places(*args, **kwargs),
]


# --- masked_softmax


def lowest_finite(scores, mask):
    filled = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return filled.softmax(dim=-1).masked_fill(~mask, 0.0)


def infinity_and_where(scores, mask):
    weights = torch.where(mask, scores, float("-inf")).softmax(-1)
    return torch.where(mask, weights, 0)


def nan_to_num(scores, mask):
    """The NaN is outside of what is differentiated: a fill lets no gradient back."""
    return F.softmax(scores.masked_fill(mask == 0, -torch.inf), dim=-1).nan_to_num(0.0)


def dead_rows_look_at_all(scores, mask):
    alive = mask.any(dim=-1, keepdim=True)
    return scores.masked_fill(~mask & alive, -torch.inf).softmax(dim=-1) * alive


def half_in_single(scores, mask):
    wide = scores.float() if scores.dtype == torch.float16 else scores
    weights = F.softmax(wide.masked_fill(~mask, -1e9), -1) * mask
    return weights.to(scores.dtype)


def double_inside(scores, mask):
    weights = scores.double().masked_fill(~mask, -1e300).softmax(-1)
    return (weights * mask).to(scores.dtype)


def by_hand(scores, mask):
    visible = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    e = (visible - visible.amax(-1, keepdim=True)).exp() * mask
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total > 0, total, 1)


def by_log_sum_exp(scores, mask):
    wide = scores.float() if scores.dtype == torch.float16 else scores
    filled = wide.masked_fill(mask.logical_not(), torch.finfo(wide.dtype).min)
    weights = torch.exp(filled - torch.logsumexp(filled, dim=-1, keepdim=True))
    return weights.masked_fill(mask.logical_not(), 0).to(scores.dtype)


def visible_rows_only(scores, mask):
    """One row at a time, and of each row nothing but what may be seen."""
    rows = scores.reshape(-1, scores.shape[-1])
    seen = mask.expand(scores.shape).reshape(rows.shape)
    weights = [
        torch.zeros_like(row).masked_scatter(may, row[may].softmax(0)) if may.any() else row * 0
        for row, may in zip(rows, seen, strict=True)
    ]
    return torch.stack(weights).reshape(scores.shape)


def added_below_living_rows(scores, mask):
    bias = torch.zeros(mask.shape, dtype=scores.dtype)
    alive = mask.any(-1, keepdim=True)
    bias = bias.masked_fill(mask.logical_not() & alive, -torch.inf)
    return torch.softmax(scores + bias, -1) * alive.to(scores.dtype)


def fill_for_each_dtype(scores, mask):
    fill = {torch.float16: -6e4, torch.float32: -1e30, torch.float64: -1e300}[scores.dtype]
    weights = torch.where(mask, scores, fill).softmax(-1)
    return weights * mask.any(-1, keepdim=True)


def indexed_copy(scores, mask):
    filled, hidden = scores.clone(), ~mask.expand_as(scores)
    filled[hidden] = -float("inf")
    filled[hidden.all(-1)] = 0.0
    weights = filled.softmax(-1)
    return weights.masked_fill(hidden, 0)


def sigmoids_of_differences(scores, mask):
    """1 / Σⱼ exp(sⱼ − sᵢ) over the visible j; a large exponent means weight 0 anyway."""
    wide = scores.double()
    differences = wide[..., None, :] - wide[..., :, None]
    seen = mask.expand(scores.shape)
    differences = differences.masked_fill(~seen[..., None, :], -torch.inf).clamp(max=700)
    total = differences.exp().sum(-1)
    weights = 1 / total.masked_fill(~seen, 1)
    return weights.masked_fill(~seen, 0).to(scores.dtype)


def torch_masked(scores, mask):
    seen = mask.expand(scores.shape)
    return torch.masked.softmax(scores, -1, mask=seen).masked_fill(~seen, 0)


def keys_first(scores, mask):
    turned = scores.movedim(-1, 0)
    hidden = ~mask.expand(scores.shape).movedim(-1, 0)
    weights = turned.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(0)
    return weights.masked_fill(hidden, 0).movedim(0, -1)


def with_a_drain(scores, mask):
    """One more key that only dead rows may see takes all of their weight, and is cut off again."""
    seen = mask.expand(scores.shape)
    dead = ~seen.any(-1, keepdim=True)
    filled = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1)
    weights = filled.masked_fill(~torch.cat([seen, dead], -1), -torch.inf).softmax(-1)
    return weights[..., :-1]


def logarithms(scores, mask):
    weights = torch.log_softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1).exp()
    return weights * mask


def sorted_first(scores, mask):
    best = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).sort(-1, descending=True)
    weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
    return weights * mask


def mapped_over_one_more_axis(scores, mask):
    return torch.vmap(lambda one: lowest_finite(one, mask))(scores[None])[0]


def on_a_private_copy(scores, mask):
    mine = scores.clone()
    mine.masked_fill_(~mask, torch.finfo(scores.dtype).min)
    return mine.softmax(-1).clone().masked_fill_(~mask, 0)


def sum_clamped_from_below(scores, mask):
    """A living row's sum is at least 1, as its highest score counts 1."""
    visible = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    e = (visible - visible.amax(-1, keepdim=True).detach()).exp() * mask
    return e / e.sum(-1, keepdim=True).clamp(min=1e-6)


def nan_in_a_dead_row_only(scores, mask):
    """NaN arises, but `where` lets none of it back to the scores."""
    visible = torch.where(mask, scores, -torch.inf)
    e = torch.exp(visible - visible.max(-1, keepdim=True).values)
    return torch.nan_to_num(e / e.sum(-1, keepdim=True))


def log_sum_exp_of_the_living(scores, mask):
    wide = scores.double()
    total = torch.logsumexp(torch.where(mask, wide, -torch.inf), -1, keepdim=True)
    total = torch.where(total.isinf(), 0, total)
    logarithms = (wide - total).clamp(max=0)
    return torch.where(mask, logarithms.exp(), 0).to(scores.dtype)


class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, mask):
        weights = lowest_finite(scores, mask)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient):
        (weights,) = ctx.saved_tensors
        return weights * (gradient - (weights * gradient).sum(-1, keepdim=True)), None


def with_its_own_gradient(scores, mask):
    return OwnGradient.apply(scores, mask)


class MaskedSoftmax(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = torch.nn.Softmax(dim=-1)

    def forward(self, scores, mask):
        print("softmax of", scores.shape)  # harmless, and common
        hidden = torch.logical_not(mask)
        weights = self.softmax(scores.masked_fill(hidden, torch.finfo(scores.dtype).min))
        return weights.masked_fill(hidden, 0)


SOFTMAX = [
    lowest_finite,
    infinity_and_where,
    nan_to_num,
    dead_rows_look_at_all,
    half_in_single,
    double_inside,
    by_hand,
    by_log_sum_exp,
    visible_rows_only,
    added_below_living_rows,
    fill_for_each_dtype,
    indexed_copy,
    sigmoids_of_differences,
    torch_masked,
    keys_first,
    with_a_drain,
    logarithms,
    sorted_first,
    mapped_over_one_more_axis,
    on_a_private_copy,
    sum_clamped_from_below,
    nan_in_a_dead_row_only,
    log_sum_exp_of_the_living,
    with_its_own_gradient,
    torch.compile(lowest_finite, backend="eager"),
    MaskedSoftmax(),
    functools.partial(lowest_finite),
    lambda *args, **kwargs: lowest_finite(*args, **kwargs),
]

CORRECT = {
    "next_word_pairs": PAIRS,
    "causal_mask": CAUSAL,
    "padding_mask": PADDING,
    "masked_softmax": SOFTMAX,
}
