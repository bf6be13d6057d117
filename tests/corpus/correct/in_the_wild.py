"""Right answers of chapter 14 in many styles: the judge must accept every one, on every seed."""

import math
import random

import einops
import numpy as np
import pytest
import torch
import torch.nn.functional as F

# --- test_attention


def a_row_of_false(attention):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 3), torch.randn(2, 5, 3), torch.randn(2, 5, 6)
    mask = torch.rand(4, 5) > 0.3
    mask[2] = False
    output, weights = attention(query, key, value, mask)
    assert torch.all(weights[:, 2] == 0)
    assert torch.all(output[:, 2] == 0)


def against_torch(attention):
    """PyTorch's own attention gives zeros there."""
    query, key, value = (torch.randn(2, 3, n, 8) for n in (4, 5, 5))
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[1, :, 3] = False
    output, weights = attention(query, key, value, mask=mask)
    assert torch.allclose(
        output, F.scaled_dot_product_attention(query, key, value, mask), atol=1e-5
    )
    expected = (~mask.any(-1)).logical_not().float().expand(2, 3, 4)
    assert torch.allclose(weights.sum(-1), expected, atol=1e-5)


def by_assert_close(attention):
    x = torch.linspace(-1, 1, 12).view(4, 3)
    mask = torch.ones(4, 4).tril(-1).bool()  # the first word sees nothing
    output, weights = attention(x, x, x, mask)
    torch.testing.assert_close(weights[0], torch.zeros(4))
    torch.testing.assert_close(output[0], torch.zeros(3))
    torch.testing.assert_close(weights[1:].sum(-1), torch.ones(3))


def a_sentence_of_padding(attention):
    """No word of the second sentence may be seen."""
    query, key, value = torch.ones(3, 2, 4), torch.ones(3, 6, 4), torch.ones(3, 6, 4)
    lengths = torch.tensor([6, 0, 3])
    mask = (torch.arange(6) < lengths[:, None])[:, None]  # b 1 k
    output, weights = attention(query, key, value, mask)
    if not torch.equal(weights[1], torch.zeros(2, 6)):
        raise AssertionError(f"weights {weights[1]}")
    if not torch.equal(output[1], torch.zeros(2, 4)):
        raise AssertionError(f"output {output[1]}")


def with_numpy(attention):
    rng = np.random.default_rng(7)
    q, k, v = (torch.from_numpy(rng.normal(size=(n, 4))) for n in (3, 6, 6))
    mask = np.ones((3, 6), dtype=bool)
    mask[0] = False
    output, weights = attention(q, k, v, torch.from_numpy(mask))
    np.testing.assert_allclose(weights[0].numpy(), 0, atol=1e-12)
    np.testing.assert_allclose(output[0].numpy(), np.zeros(4), atol=1e-12)
    np.testing.assert_allclose(weights[1:].sum(-1).numpy(), 1, atol=1e-9)


def all_promises_and_a_recomputation(attention):
    """Everything is computed again in float64, row by row."""
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, n, 4, generator=g) for n in (3, 5, 5))
    for mask in (None, torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]]).bool()):
        output, weights = attention(q, k, v) if mask is None else attention(q, k, v, mask)
        for b in range(2):
            for i in range(3):
                share = [0.0] * 5
                js = [j for j in range(5) if mask is None or mask[i, j]]
                e = {j: math.exp(float(q[b, i].double() @ k[b, j].double()) / 2) for j in js}
                for j in js:
                    share[j] = e[j] / sum(e.values())
                assert weights[b, i].tolist() == pytest.approx(share, abs=1e-5)
                row = sum((s * v[b, j].double() for j, s in enumerate(share)), torch.zeros(4))
                assert output[b, i].tolist() == pytest.approx(row.tolist(), abs=1e-5)


def nothing_that_is_hidden_moves_it(attention):
    """Other keys and values behind the mask: the results stay, and are finite zeros."""
    q, k, v = torch.ones(4, 2), torch.eye(3, 2), torch.arange(12.0).view(3, 4)
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3, [False, True, False]])
    results = attention(q, k, v, mask), attention(q, 5 * k, v + 1, mask)
    for output, weights in results:
        for table in (output, weights):
            assert table[1].isfinite().all() and table[1].abs().max() <= 1e-6, table
        assert einops.reduce(weights, "q k -> q", "sum").round(decimals=4).tolist() == [1, 0, 1, 1]


def each_row_in_turn(attention):
    """A row after the other is hidden; the others attend as they did."""
    g = torch.Generator().manual_seed(12)
    words = torch.randn(5, 6, generator=g)
    _, usual = attention(words, words, words)
    for hidden in range(5):
        see = torch.arange(5).ne(hidden).unsqueeze(1).expand(5, 5)
        output, weights = attention(words, words, words, see)
        wanted = usual * see
        gap = torch.cat([weights - wanted, output - wanted @ words], 1).abs().max()
        assert gap <= 2e-5, f"row {hidden} is hidden: off by {gap}"


class Raised:
    """A test that is an object, with a name for each of its cases."""

    def __call__(self, attention):
        for name, row in {"first": 0, "last": 3}.items():
            mask = torch.ones(4, 4, dtype=torch.bool)
            mask[row] = False
            try:
                output, weights = attention(*torch.ones(3, 1, 4, 2), mask)
            except Exception as error:
                raise AssertionError(f"{name}: it ended with {error}") from error
            assert not output[0, row].any() and not weights[0, row].any(), name


# --- test_positions


def by_the_formula(positions):
    for width in range(1, 12):
        table = positions(9, width)
        assert table.shape == (9, width)
        for p in range(9):
            for feature in range(width):
                angle = p / 10000 ** ((feature - feature % 2) / width)
                wanted = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
                assert abs(table[p, feature].item() - wanted) < 1e-3


def by_assert_close_of_a_table(positions):
    p, i = torch.arange(7.0)[:, None], torch.arange(5)
    angle = p * 10_000 ** (-(i // 2 * 2) / 5)
    torch.testing.assert_close(
        positions(7, 5), torch.where(i % 2 == 0, angle.sin(), angle.cos()), rtol=0, atol=1e-4
    )


def the_last_feature(positions):
    """Only what is special at an odd width, and the second hand."""
    for width in (3, 7, 9):
        table = positions(5, width)
        assert list(table.shape) == [5, width], table.shape
        speed = 10_000 ** -((width - 1) / width)
        last = torch.sin(torch.arange(5) * speed)
        assert torch.allclose(table[:, -1], last, atol=1e-4), width
        assert torch.allclose(table[:, 1], torch.arange(5).cos(), atol=1e-4), width


def by_addition(positions):
    """The angle of two steps is twice the angle of one: hands that turn evenly."""
    table = positions(3, 5).double()
    sines, cosines = table[:, 0::2], table[:, 1::2]
    assert table.shape == (3, 5)
    speeds = torch.asin(sines[1])
    wanted = torch.tensor([1.0, 10_000 ** (-2 / 5), 10_000 ** (-4 / 5)], dtype=torch.float64)
    assert (speeds - wanted).abs().max() < 1e-4
    assert (sines[2] - (2 * wanted).sin()).abs().max() < 1e-4
    assert (cosines[1] - wanted[:2].cos()).abs().max() < 1e-4


def a_few_numbers_by_hand(positions):
    table = positions(3, 3)
    assert tuple(table.shape) == (3, 3)
    expected = [[0.0, 1.0, 0.0], [0.8415, 0.5403, 0.0022], [0.9093, -0.4161, 0.0043]]
    for row, wanted in zip(table.tolist(), expected):  # noqa: B905
        assert row == pytest.approx(wanted, abs=1e-3)


def in_numpy(positions):
    for width in np.random.default_rng(1).permutation([2, 3, 5, 6, 7]):
        table = positions(10, int(width)).numpy()
        place, i = np.mgrid[0:10, 0:width]
        angle = place * np.exp(-np.log(10_000) * (i - i % 2) / width)
        np.testing.assert_allclose(table, np.where(i % 2, np.cos(angle), np.sin(angle)), atol=1e-4)


def any_error_is_a_verdict(positions):
    for width in (1, 5):
        try:
            table = positions(4, width)
        except Exception as error:
            raise AssertionError(f"width {width}: {type(error).__name__}") from error
        i = torch.arange(width)
        angle = torch.arange(4)[:, None] / 10_000 ** ((i - i % 2) / width)
        right = angle.sin() * (i % 2 == 0) + angle.cos() * (i % 2 == 1)
        assert table.shape == right.shape, table.shape
        assert (table - right).abs().max() < 1e-3


def by_complex_numbers(positions):
    """Sine and cosine of a hand are one complex number on the unit circle."""
    steps, features = 12, 9
    found = positions(steps, features)
    if found.size() != (steps, features):
        raise AssertionError("another shape")
    speeds = torch.logspace(0, -4 * 8 / 9, 5, dtype=torch.float64)
    circle = torch.polar(torch.ones(steps, 5).double(), torch.outer(torch.arange(12.0), speeds))
    sines, cosines = found[:, ::2].double(), found[:, 1::2].double()
    for name, ours, theirs in (
        ("sines", circle.imag, sines),
        ("cosines", circle.real[:, :4], cosines),
    ):
        assert (ours - theirs).norm(p=torch.inf) < 5e-4, name


# --- test_nucleus


def the_words_that_stay(nucleus):
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    for top_p, count in ((0.4, 1), (0.7, 2), (0.9, 3), (0.99, 4)):
        kept = torch.isfinite(nucleus(logits, top_p))
        assert kept.tolist() == [[i < count for i in range(4)]]


def by_the_promise(nucleus):
    """The sum reaches top_p, and without its last word it does not."""
    torch.manual_seed(11)
    logits = torch.randn(6, 12) * 2
    shares = logits.softmax(-1)
    for top_p in (0.15, 0.5, 0.8, 0.95):
        stays = nucleus(logits, top_p) != -torch.inf
        for row, kept in zip(shares, stays):  # noqa: B905
            assert kept.any()
            assert row[kept].sum() >= top_p - 1e-6
            assert row[kept].sum() - row[kept].min() < top_p + 1e-6


def it_reaches_top_p(nucleus):
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0, 0.5]])
    before = logits.softmax(-1)
    for percent in range(5, 100, 10):
        left = before[nucleus(logits, percent / 100).isfinite()].sum().item()
        assert left >= percent / 100, f"top_p = 0.{percent:02}: only {left:.3f} is left"


def bit_for_bit(nucleus):
    """Logits are untouched or −∞, so equality is exact."""
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 5.0]])  # shares .09 .67 .24; .99
    expected = torch.tensor([[-torch.inf, 3.0, 2.0], [-torch.inf, -torch.inf, 5.0]])
    assert torch.equal(nucleus(logits.clone(), 0.8), expected)


def by_numpy_and_unittest(nucleus):
    shares = np.array([0.05, 0.45, 0.2, 0.3])
    result = nucleus(torch.from_numpy(np.log(shares))[None], 0.7).numpy()[0]
    np.testing.assert_array_equal(np.isneginf(result), [True, False, True, False])


def by_counting(nucleus):
    shares = torch.tensor([0.04, 0.4, 0.25, 0.19, 0.12])
    order = shares.argsort(descending=True)
    for top_p in torch.arange(0.07, 1, 0.1).tolist():
        total, count = 0.0, 0
        while total < top_p:
            total += shares[order[count]].item()
            count += 1
        result = nucleus(shares.log().unsqueeze(0), top_p)[0]
        assert sorted(order[:count].tolist()) == torch.where(result > -1e30)[0].tolist(), top_p


def sums_of_shuffled_rows(nucleus):
    """The same shares in many orders leave the same number of words."""
    g = torch.Generator().manual_seed(0)
    rows = [torch.tensor([0.6, 0.2, 0.11, 0.09])[torch.randperm(4, generator=g)] for _ in range(5)]
    result = nucleus(torch.stack(rows).log(), 0.75)
    assert result.exp().sum(-1).tolist() == pytest.approx([0.8] * 5, abs=1e-4), result


def mass_that_is_thrown_away(nucleus):
    """What goes is at most 1 − top_p, and so is no word of the head."""
    rng = random.Random(5)
    for _ in range(40):
        scores = [rng.gauss(0, 3) for _ in range(8)]
        limit = rng.uniform(0.1, 0.95)
        (after,) = nucleus(torch.tensor([scores]), limit).tolist()
        whole = sum(map(math.exp, scores))
        gone = sum(math.exp(s) for s, now in zip(scores, after) if now == -math.inf) / whole  # noqa: B905
        assert gone <= 1 - limit + 1e-5, (scores, limit)


# --- mended_attention


def cleared(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)
    return weights @ value, weights


def dead_rows_cleared(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query, key) * query.size(-1) ** -0.5
    if mask is None:
        weights = F.softmax(scores, -1)
    else:
        dead = ~mask.any(dim=-1, keepdim=True)
        weights = F.softmax(scores.masked_fill(~mask, float("-inf")).masked_fill(dead, 0.0), -1)
        weights = weights.masked_fill(dead, 0.0)
    return torch.matmul(weights, value), weights


def times_the_mask(query, key, value, mask=None):
    scores = einops.einsum(query, key, "... q d, ... k d -> ... q k") / query.shape[-1] ** 0.5
    if mask is None:
        mask = torch.ones((), dtype=torch.bool)
    lowest = torch.finfo(scores.dtype).min
    weights = torch.where(mask, scores, torch.full_like(scores, lowest)).softmax(-1) * mask
    return einops.einsum(weights, value, "... q k, ... k v -> ... q v"), weights


def own_softmax(query, key, value, mask=None):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    seen = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    top = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    e = torch.where(seen, scores - top, -torch.inf).exp()
    total = e.sum(-1, keepdim=True)
    weights = e / torch.where(total == 0, 1.0, total)
    return weights @ value, weights


def where_it_sees(query, key, value, mask=None):
    scores = query.matmul(key.swapaxes(-1, -2)).div(query.shape[-1] ** 0.5)
    if mask is not None:
        alive = mask.any(-1, keepdim=True)
        weights = torch.where(alive, scores.masked_fill(alive & ~mask, -torch.inf).softmax(-1), 0.0)
    else:
        weights = scores.softmax(-1)
    return weights.matmul(value), weights


def in_log_space(query, key, value, mask=None):
    scores = (query / math.sqrt(query.shape[-1])) @ key.mT
    if mask is None:
        weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    else:
        hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = (hidden - hidden.logsumexp(-1, keepdim=True)).exp() * mask.to(scores.dtype)
    return weights @ value, weights


# --- mended_positions


def fewer_cosines(length, width):
    table = torch.zeros(length, width)
    place = torch.arange(length)[:, None]
    speed = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table[:, 0::2] = torch.sin(place * speed)
    table[:, 1::2] = torch.cos(place * speed)[:, : width // 2]
    return table


def speeds_without_the_last(length, width):
    table = torch.empty(length, width)
    place = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    speed = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    table[:, 0::2] = (place * speed).sin()
    if width > 1:
        table[:, 1::2] = (place * speed[: width // 2]).cos()
    return table


def wider_and_cut(length, width):
    angle = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, width, 2) / width))
    return einops.rearrange([angle.sin(), angle.cos()], "two p i -> p (i two)")[:, :width]


def where_even(length, width):
    i = torch.arange(width)
    angle = torch.arange(length)[:, None] / 10_000 ** (2 * (i // 2) / width)
    return torch.where(i % 2 == 0, torch.sin(angle), torch.cos(angle))


def in_a_loop(length, width):
    table = torch.zeros(length, width)
    for p in range(length):
        for i in range(0, width, 2):
            table[p, i] = math.sin(p / 10000 ** (i / width))
            if i + 1 < width:
                table[p, i + 1] = math.cos(p / 10000 ** (i / width))
    return table


def through_numpy(length, width):
    i = np.arange(width)
    angle = np.arange(length)[:, None] / np.power(10_000, (i - i % 2) / width)
    table = np.zeros((length, width), dtype=np.float32)
    table[:, ::2], table[:, 1::2] = np.sin(angle[:, ::2]), np.cos(angle[:, 1::2])
    return torch.from_numpy(table)


# --- mended_nucleus


def what_is_before(logits, top_p):
    likely, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    out = likely.cumsum(dim=-1) - likely >= top_p
    return logits.masked_fill(out.scatter(-1, order, out), -torch.inf)


def moved_to_the_right(logits, top_p):
    ordered, order = torch.sort(logits, descending=True)
    out = ordered.softmax(-1).cumsum(-1) > top_p
    out[..., 1:] = out[..., :-1].clone()
    out[..., 0] = 0
    return logits.masked_fill(torch.zeros_like(out).scatter(1, order, out), float("-inf"))


def from_below(logits, top_p):
    ordered, order = logits.sort(dim=-1)
    out = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    out[:, -1:] = False
    return logits.masked_fill(out.scatter(1, order, out), -math.inf)


def row_by_row(logits, top_p):
    rows = []
    for row in logits:
        shares = row.softmax(0)
        kept, total = [], 0.0
        for word in shares.argsort(descending=True).tolist():
            if total >= top_p:
                break
            kept.append(word)
            total += shares[word].item()
        left = torch.full_like(row, -torch.inf)
        left[kept] = row[kept]
        rows.append(left)
    return torch.stack(rows)


def by_a_threshold(logits, top_p):
    shares = logits.softmax(-1)
    likely = shares.sort(-1, True).values
    takes = (likely.cumsum(-1) < top_p).sum(-1, keepdim=True).clamp(max=likely.shape[-1] - 1)
    return torch.where(shares >= likely.gather(-1, takes), logits, -torch.inf)


def ranked(logits, top_p):
    shares = F.softmax(logits, dim=-1)
    order = shares.argsort(-1, descending=True)
    rank = order.argsort(-1)
    before = F.pad(shares.gather(-1, order).cumsum(-1), (1, -1)).gather(-1, rank)
    return logits.clone().masked_fill_(before >= top_p, -torch.inf)


def pairwise(logits, top_p):
    """What all likelier words have together, without sorting."""
    shares = logits.softmax(-1)
    likelier = shares[:, None] > shares[:, :, None]  # b word other
    before = (likelier * shares[:, None]).sum(-1)
    return logits.masked_fill(before >= top_p, -torch.inf)


CORRECT = {
    "test_attention": [
        a_row_of_false,
        against_torch,
        by_assert_close,
        a_sentence_of_padding,
        with_numpy,
        all_promises_and_a_recomputation,
        nothing_that_is_hidden_moves_it,
        each_row_in_turn,
        Raised(),
    ],
    "test_positions": [
        by_the_formula,
        by_assert_close_of_a_table,
        the_last_feature,
        by_addition,
        a_few_numbers_by_hand,
        in_numpy,
        any_error_is_a_verdict,
        by_complex_numbers,
    ],
    "test_nucleus": [
        the_words_that_stay,
        by_the_promise,
        it_reaches_top_p,
        bit_for_bit,
        by_numpy_and_unittest,
        by_counting,
        sums_of_shuffled_rows,
        mass_that_is_thrown_away,
    ],
    "mended_attention": [
        cleared,
        dead_rows_cleared,
        times_the_mask,
        own_softmax,
        where_it_sees,
        in_log_space,
    ],
    "mended_positions": [
        fewer_cosines,
        speeds_without_the_last,
        wider_and_cut,
        where_even,
        in_a_loop,
        through_numpy,
    ],
    "mended_nucleus": [
        what_is_before,
        moved_to_the_right,
        from_below,
        row_by_row,
        by_a_threshold,
        ranked,
        pairwise,
    ],
}
