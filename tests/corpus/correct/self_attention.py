"""Right answers of chapter 4 in many styles: the judge must accept every one, on every seed."""

import collections
import functools
import itertools
import math
import random

import einops
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from attncourse.scaled_dot_product import scaled_dot_product_attention

# --- self_attention


def straight(x, W_query, W_key, W_value):
    query, key, value = x @ W_query, x @ W_key, x @ W_value
    weights = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(query.shape[-1]), dim=-1)
    return weights @ value, weights


def by_chapter_3(x, W_query, W_key, W_value):
    return scaled_dot_product_attention(x @ W_query, x @ W_key, x @ W_value)


def by_einsum(x, W_query, W_key, W_value):
    query = torch.einsum("bnm,md->bnd", x, W_query)
    key = torch.einsum("bnm,md->bnd", x, W_key)
    value = torch.einsum("bnm,mv->bnv", x, W_value)
    scores = torch.einsum("bqd,bkd->bqk", query, key) * query.size(-1) ** -0.5
    weights = F.softmax(scores, -1)
    return torch.einsum("bqk,bkv->bqv", weights, value), weights


def one_product_for_all_three(x, W_query, W_key, W_value):
    d = W_query.shape[1]
    q, k, v = (x @ torch.cat([W_query, W_key, W_value], 1)).tensor_split([d, 2 * d], dim=-1)
    weights = (torch.bmm(q, k.mT) / d**0.5).softmax(2)
    return torch.bmm(weights, v), weights


def matrices_first(x, W_query, W_key, W_value):
    """x (W_query W_keyᵀ) xᵀ: one bilinear form, and the value projection after the average."""
    form = W_query @ W_key.T / math.sqrt(W_key.shape[1])
    weights = (x @ form @ x.mT).softmax(-1)
    return [(weights @ x) @ W_value, weights]


def tokens_as_columns(x, W_query, W_key, W_value):
    E = x.mT
    Q, K, V = W_query.T @ E, W_key.T @ E, W_value.T @ E
    columns = (K.mT @ Q / Q.shape[-2] ** 0.5).softmax(-2)
    return (V @ columns).mT, columns.mT


def with_loops(x, W_query, W_key, W_value):
    outputs, tables = [], []
    for sentence in x:
        q, k, v = sentence @ W_query, sentence @ W_key, sentence @ W_value
        table = []
        for asking in q:
            scores = torch.stack([asking @ found for found in k]) / math.sqrt(len(asking))
            e = (scores - scores.max()).exp()
            table.append(e / e.sum())
        tables.append(torch.stack(table))
        outputs.append(torch.stack([sum(w * u for w, u in zip(row, v)) for row in table]))  # noqa: B905
    return torch.stack(outputs), torch.stack(tables)


def with_linear(x, W_query, W_key, W_value):
    query, key, value = (F.linear(x, W.T) for W in (W_query, W_key, W_value))
    return by_chapter_3(x, W_query, W_key, W_value)[0] * 0 + straight(x, W_query, W_key, W_value)[
        0
    ], (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) + 0 * value.sum()


def with_modules(x, W_query, W_key, W_value):
    def project(W):
        layer = nn.Linear(*W.shape, bias=False, device="meta")
        return torch.func.functional_call(layer, {"weight": W.T}, (x,))

    q, k, v = map(project, (W_query, W_key, W_value))
    weights = nn.Softmax(dim=-1)(q @ k.permute(0, 2, 1) / np.sqrt(q.shape[-1]))
    return weights.matmul(v), weights


def double_inside(x, W_query, W_key, W_value):
    output, weights = straight(*(t.double() for t in (x, W_query, W_key, W_value)))
    return output.to(x.dtype), weights.to(x.dtype)


def roots_shared(x, W_query, W_key, W_value):
    root = W_query.shape[1] ** 0.25
    weights = ((x @ (W_query / root)) @ (x @ (W_key / root)).mT).softmax(-1)
    return weights @ (x @ W_value), weights


def in_log_space(x, W_query, W_key, W_value):
    scores = einops.einsum(x @ W_query, x @ W_key, "b i d, b j d -> b i j")
    scores = scores / math.sqrt(W_query.shape[-1])
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return einops.einsum(weights, x, W_value, "b i j, b j m, m v -> b i v"), weights


def with_a_true_mask(x, W_query, W_key, W_value):
    n = x.shape[1]
    scores = (x @ W_query).matmul((x @ W_key).swapaxes(-2, -1)) / math.sqrt(W_key.shape[-1])
    scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool), -1e9)
    weights = scores.softmax(dim=-1)
    return weights.matmul(x.matmul(W_value)), weights


def sentence_by_sentence(x, W_query, W_key, W_value):
    pairs = [straight(row[None], W_query, W_key, W_value) for row in x]
    return tuple(torch.cat(each) for each in zip(*pairs))  # noqa: B905


def vectorized(x, W_query, W_key, W_value):
    return torch.vmap(lambda sentence: straight_alone(sentence, W_query, W_key, W_value))(x)


def straight_alone(sentence, W_query, W_key, W_value):
    scores = (sentence @ W_query) @ (sentence @ W_key).T / math.sqrt(W_query.shape[1])
    return scores.softmax(-1) @ (sentence @ W_value), scores.softmax(-1)


class OwnSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient):
        (weights,) = ctx.saved_tensors
        return weights * (gradient - (weights * gradient).sum(-1, keepdim=True))


def with_own_backward(x, W_query, W_key, W_value):
    weights = OwnSoftmax.apply((x @ W_query) @ (x @ W_key).mT / math.sqrt(W_query.shape[1]))
    return weights @ (x @ W_value), weights


def scaled_in_one_operation(x, W_query, W_key, W_value):
    query, key = x @ W_query, x @ W_key
    room = x.new_zeros(1, 1, 1)
    scores = torch.baddbmm(room, query, key.mT, beta=0, alpha=query.shape[-1] ** -0.5)
    return scores.softmax(-1).bmm(x @ W_value), scores.softmax(-1)


def edits_its_own(x, W_query, W_key, W_value):
    scores = (x @ W_query).bmm((x @ W_key).mT)
    scores /= math.sqrt(W_key.shape[-1])
    scores -= scores.detach().amax(-1, keepdim=True)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return weights @ (x @ W_value), weights


def says_shapes(x, W_query, W_key, W_value):
    print(x.shape, W_query.shape)
    return straight(x, W_query, W_key, W_value)


Pair = collections.namedtuple("Pair", "output weights")


def named_pair(x, W_query, W_key, W_value):
    return Pair(*straight(x, W_query, W_key, W_value))


class Attention:
    def __call__(self, x, W_query, W_key, W_value):
        return straight(x, W_query, W_key, W_value)


class AttentionModule(nn.Module):
    def forward(self, x, W_query, W_key, W_value):
        return straight(x, W_query, W_key, W_value)


SELF_ATTENTION = [
    straight,
    by_chapter_3,
    by_einsum,
    one_product_for_all_three,
    matrices_first,
    tokens_as_columns,
    with_loops,
    with_linear,
    with_modules,
    double_inside,
    roots_shared,
    in_log_space,
    with_a_true_mask,
    sentence_by_sentence,
    vectorized,
    with_own_backward,
    scaled_in_one_operation,
    edits_its_own,
    says_shapes,
    named_pair,
    Attention(),
    AttentionModule(),
    functools.partial(straight),
    lambda *inputs: straight(*inputs),
]


# --- sinusoidal_positions


def by_slices(length, width):
    position = torch.arange(length).unsqueeze(1)
    speed = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * speed)
    table[:, 1::2] = torch.cos(position * speed)[:, : width // 2]
    return table


def entry_by_entry(length, width):
    table = torch.empty(length, width)
    for p in range(length):
        for i in range(width):
            angle = p / 10_000 ** (i // 2 * 2 / width)
            table[p, i] = math.cos(angle) if i % 2 else math.sin(angle)
    return table


def with_a_phase(length, width):
    """A cosine is a sine a quarter of a turn ahead."""
    i = torch.arange(width)
    speed = 10_000.0 ** (-2.0 * torch.div(i, 2, rounding_mode="floor") / width)
    return torch.sin(torch.arange(length)[:, None] * speed + (i % 2) * math.pi / 2)


def by_where(length, width):
    i = torch.arange(width)
    angle = torch.outer(torch.arange(length).float(), torch.pow(10_000.0, -(i - i % 2) / width))
    return torch.where(i % 2 == 0, angle.sin(), angle.cos())


def stacked(length, width):
    angle = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    pairs = torch.stack((angle.sin(), angle.cos()), dim=2)
    return einops.rearrange(pairs, "p i two -> p (i two)")[:, :width]


def by_numpy(length, width):
    p, i = np.arange(length)[:, None], np.arange(width)[None]
    angle = p / np.power(10_000, 2 * (i // 2) / width)
    angle[:, 0::2] = np.sin(angle[:, 0::2])
    angle[:, 1::2] = np.cos(angle[:, 1::2])
    return torch.from_numpy(angle).float()


def by_rotation(length, width):
    """Turn position 0 again and again, in float64."""
    speed = 10_000.0 ** (-torch.arange(0, width, 2).double() / width)
    turn = torch.polar(torch.ones_like(speed), speed)
    hands = torch.stack([turn**p for p in range(length)])
    return torch.stack([hands.imag, hands.real], -1).flatten(1)[:, :width].float()


def as_lists(length, width):
    waves = itertools.cycle((math.sin, math.cos))
    functions = [next(waves) for _ in range(width)]
    return torch.tensor(
        [
            [f(p * 10_000 ** (-2 * (i // 2) / width)) for i, f in enumerate(functions)]
            for p in range(length)
        ]
    )


def as_parameter(length, width):
    return nn.Parameter(by_slices(length, width), requires_grad=False)


def padded_then_cut(length, width):
    """One feature too many for an odd width, but the speeds of the width that was asked for."""
    even = width + width % 2
    table = torch.zeros(length, even)
    angle = torch.arange(length).view(-1, 1) * 1e-4 ** (
        torch.arange(0, even, 2).view(1, -1) / width
    )
    table[:, ::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table[:, :width]


def as_complex_numbers(length, width):
    speed = 1e4 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    hands = torch.exp(1j * torch.arange(length)[:, None] * speed)
    return torch.view_as_real(hands).flip(-1).reshape(length, -1)[:, :width].float()


def step_by_step(length, width):
    """Each position from the one before it, by the addition theorem."""
    speed = 1e4 ** (-torch.arange(0, width, 2).double() / width)
    sine, cosine, rows = torch.zeros_like(speed), torch.ones_like(speed), []
    for _ in range(length):
        rows.append(torch.stack([sine, cosine], 1).flatten()[:width])
        sine, cosine = (
            sine * speed.cos() + cosine * speed.sin(),
            cosine * speed.cos() - sine * speed.sin(),
        )
    return torch.stack(rows).float()


def cut_from_a_long_table(length, width):
    return by_slices(2000, width)[:length]


def float32_throughout(length, width):
    p = np.arange(length, dtype=np.float32)[:, None]
    two_i = np.arange(0, width, 2, dtype=np.float32)
    angle = p * np.exp(two_i * np.float32(-math.log(1e4) / width))
    table = np.zeros((length, width), np.float32)
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle[:, : width // 2])
    return torch.from_numpy(table)


def turned_view(length, width):
    return by_where(length, width).T.contiguous().T


class Positions:
    def __call__(self, length, width):
        return by_slices(length, width)


SINUSOIDAL_POSITIONS = [
    by_slices,
    entry_by_entry,
    with_a_phase,
    by_where,
    stacked,
    by_numpy,
    by_rotation,
    as_lists,
    as_parameter,
    padded_then_cut,
    functools.lru_cache(by_slices),
    as_complex_numbers,
    step_by_step,
    cut_from_a_long_table,
    float32_throughout,
    turned_view,
    torch.no_grad()(by_slices),
    torch.inference_mode()(stacked),
    Positions(),
    functools.partial(by_where),
]


# --- is_permutation_equivariant


def swap_and_shift(layer, x):
    n, output = x.shape[1], layer(x)
    orders = [1, 0, *range(2, n)], [*range(1, n), 0]
    return all(torch.allclose(layer(x[:, o]), output[:, o], atol=1e-5) for o in orders)


def several(one):
    """A single random order may be the old one, so six have to agree."""

    @functools.wraps(one)
    def asked(layer, x):
        return all(one(layer, x) for _ in range(6))

    return asked


@several
def random_orders(layer, x):
    order = torch.randperm(x.shape[1])
    return torch.allclose(layer(x)[:, order], layer(x[:, order]))


def many_random_orders(layer, x, trials=20):
    before = layer(x)
    for _ in range(trials):
        order = torch.randperm(x.size(1))
        if not torch.allclose(layer(x[:, order]), before[:, order], rtol=1e-3, atol=1e-4):
            return False
    return True


def all_orders(layer, x):
    output = layer(x)
    for order in itertools.permutations(range(x.shape[1])):
        order = list(order)
        if (layer(x[:, order]) - output[:, order]).abs().max() > 1e-6:
            return False
    return True


def neighbors_swapped(layer, x):
    output = layer(x)

    def unmoved(i):
        order = list(range(x.shape[1]))
        order[i], order[i + 1] = order[i + 1], order[i]
        return bool(torch.isclose(layer(x[:, order]), output[:, order], atol=1e-4).all())

    return all(unmoved(i) for i in range(x.shape[1] - 1))


def by_matrix(layer, x):
    """P layer(X) against layer(P X)."""
    n = x.shape[1]
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        P = torch.eye(n, dtype=x.dtype)[torch.randperm(n, generator=generator)]
        y = layer(x)
        if not torch.allclose(layer(P @ x), P.to(y.dtype) @ y, atol=1e-4):
            return False
    return True


def undone(layer, x):
    """Reorder, apply the layer, put the outputs back."""
    result = True
    for _ in range(5):
        order = torch.randperm(x.shape[1])
        back = torch.argsort(order)
        result = result and torch.allclose(layer(x[:, order])[:, back], layer(x), atol=1e-5)
    return result


def by_python_chance(layer, x):
    for _ in range(8):
        order = random.sample(range(x.shape[1]), x.shape[1])
        difference = layer(x[:, order, :]) - layer(x)[:, order, :]
        if difference.abs().max().item() > 1e-3:
            return False
    return True


@several
def by_numpy_chance(layer, x):
    order = torch.from_numpy(np.random.permutation(x.shape[1]))
    one, two = layer(x.index_select(1, order)), layer(x).index_select(1, order)
    return bool(np.allclose(one.numpy(), two.numpy(), atol=1e-5))


def own_words(layer, x):
    """Fresh words of the same shape, beside those that came."""
    return all(random_orders(layer, words) for words in (x, torch.randn_like(x)))


@several
def by_assert(layer, x):
    order = torch.randperm(x.shape[1])
    try:
        torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], rtol=1e-4, atol=1e-4)
    except AssertionError:
        return False
    return True


@several
def in_double(layer, x):
    x, order = x.double(), torch.randperm(x.shape[1])
    return torch.allclose(layer(x[:, order]), layer(x)[:, order])


def gathered(layer, x):
    output = layer(x)
    for _ in range(3):
        order = torch.rand(x.shape[1]).argsort()[None, :, None]
        moved = layer(x.gather(1, order.expand_as(x)))
        if (moved - output.gather(1, order.expand_as(output))).abs().max() > 1e-4:
            return False
    return True


@several
def by_relative_norm(layer, x):
    output, order = layer(x), torch.randperm(x.shape[1])
    return bool((layer(x[:, order]) - output[:, order]).norm() <= 1e-5 * output.norm())


def every_pair_swapped(layer, x):
    output = layer(x)
    for i, j in itertools.combinations(range(x.shape[1]), 2):
        order = torch.arange(x.shape[1])
        order[i], order[j] = j, i
        if not torch.isclose(layer(x[:, order]), output[:, order], atol=1e-5).all().item():
            return False
    return True


@several
def scattered(layer, x):
    """Word i goes to place order[i], on both sides."""
    order = torch.randperm(x.shape[1])
    moved, expected = torch.empty_like(x), torch.empty_like(layer(x))
    moved[:, order], expected[:, order] = x, layer(x)
    return torch.allclose(layer(moved), expected, atol=1e-5)


@several
def edits_a_copy(layer, x):
    output, order, copy = layer(x), torch.randperm(x.shape[1]), x.clone()
    copy[:] = copy[:, order]
    return torch.allclose(layer(copy), output[:, order], atol=1e-5)


@several
def strict(layer, x):
    order = torch.randperm(x.shape[1])
    return bool(((layer(x[:, order]) - layer(x)[:, order]).abs() <= 1e-6).all())


class Test:
    __test__ = False

    def __call__(self, layer, x):
        return many_random_orders(layer, x)


IS_PERMUTATION_EQUIVARIANT = [
    swap_and_shift,
    random_orders,
    many_random_orders,
    all_orders,
    neighbors_swapped,
    by_matrix,
    undone,
    by_python_chance,
    by_numpy_chance,
    own_words,
    by_assert,
    in_double,
    gathered,
    by_relative_norm,
    every_pair_swapped,
    scattered,
    edits_a_copy,
    strict,
    Test(),
    functools.partial(many_random_orders, trials=3),
    torch.no_grad()(swap_and_shift),
]


CORRECT = {
    "self_attention": SELF_ATTENTION,
    "sinusoidal_positions": SINUSOIDAL_POSITIONS,
    "is_permutation_equivariant": IS_PERMUTATION_EQUIVARIANT,
}
