"""Lab 6: the reference against closed forms, autograd and the meters, and what the page says."""

import math

import pytest
import torch
from torch.nn import functional as F

from attncourse import lab
from attncourse.checks import registry
from attncourse.checks.answer import Answer
from attncourse.lab import lab6_write_flash as flash
from attncourse.lab.audit import audit, passed
from attncourse.lab.receipts import decode
from attncourse.masking import causal_mask, masked_softmax

SHAPES = [
    (7, 7, 3),
    (6, 6, 2),
    (5, 8, 3),
    (8, 5, 3),
    (1, 9, 4),
    (9, 1, 4),
    (8, 8, 16),
    (5, 5, 1),
    (33, 65, 16),
]


def naive(query, key, value, causal=False):
    """In the dtype of the inputs, all scores at once."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        q, k = scores.shape[-2:]
        mask = mask.tril(k - q)
    return masked_softmax(scores, mask) @ value, scores.masked_fill(~mask, -math.inf).logsumexp(-1)


def inputs(q, k, dtype=torch.float64, d=4, v=5, size=1.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = (2, 3, q, d), (2, 3, k, d), (2, 3, k, v)
    return [(size * torch.randn(s, generator=rng, dtype=torch.float64)).to(dtype) for s in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q", "k", "tile"), SHAPES)
def test_tiles_give_what_all_scores_at_once_give(q, k, tile, causal):
    qkv = inputs(q, k)
    for got, expected in zip(
        flash.tiled_attention(*qkv, tile, causal), naive(*qkv, causal), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q", "k", "tile"), SHAPES)
def test_backward_is_autograds(q, k, tile, causal):
    qkv = [x.requires_grad_() for x in inputs(q, k)]
    output, _ = naive(*qkv, causal)
    upstream = torch.randn(output.shape, dtype=torch.float64)
    expected = torch.autograd.grad(output, qkv, upstream)
    with torch.no_grad():
        kept = flash.tiled_attention(*qkv, tile, causal)
        got = flash.tiled_backward(*qkv, *kept, upstream, tile, causal)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_as_a_function_of_autograd_it_passes_gradcheck():
    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value):
            output, logsumexp = flash.tiled_attention(query, key, value, 2, True)
            ctx.save_for_backward(query, key, value, output, logsumexp)
            return output

        @staticmethod
        def backward(ctx, upstream):
            return flash.tiled_backward(*ctx.saved_tensors, upstream, 2, True)

    assert torch.autograd.gradcheck(Flash.apply, [x.requires_grad_() for x in inputs(5, 3)])


def test_it_agrees_with_torchs_own_attention():
    qkv = inputs(40, 40, torch.float32)
    for causal in (False, True):
        ours, _ = flash.tiled_attention(*qkv, 16, causal)
        theirs = F.scaled_dot_product_attention(*qkv, is_causal=causal)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_causal_means_what_chapter_6_means():
    for q, k in ((1, 4), (3, 5), (4, 4)):
        qkv = inputs(q, k)
        _, logsumexp = flash.tiled_attention(*qkv, 2, True)
        scores = (qkv[0] @ qkv[1].mT / 2).masked_fill(~causal_mask(q, k), -math.inf)
        torch.testing.assert_close(logsumexp, scores.logsumexp(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_costs_only_the_last_rounding(dtype):
    qkv = inputs(33, 33, dtype, size=3.0)
    output, logsumexp = flash.tiled_attention(*qkv, 8)
    exact, sums = naive(*(x.double() for x in qkv))
    rounding = torch.finfo(dtype).eps
    assert output.dtype == dtype and logsumexp.dtype == torch.float32
    assert (output.double() - exact).abs().max() <= rounding * exact.abs().max()
    assert (logsumexp - sums).abs().max() < 1e-4


def test_scores_of_ten_thousand():
    query, key, value = inputs(8, 8, torch.float32, size=100.0)
    assert (query @ key.mT / 2).abs().max() > 1e4
    output, logsumexp = flash.tiled_attention(query, key, value, 3)
    exact, sums = naive(query.double(), key.double(), value.double())
    torch.testing.assert_close(output.double(), exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(logsumexp.double(), sums, rtol=1e-6, atol=0)


def test_parts_merge_in_any_order_and_grouping():
    rng = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(4, 12, generator=rng, dtype=torch.float64)
    value = torch.randn(12, 3, generator=rng, dtype=torch.float64)
    parts = [flash.part_of(scores[:, i : i + 3], value[i : i + 3]) for i in range(0, 12, 3)]
    a, b, c, d = parts
    left = flash.merge(flash.merge(flash.merge(a, b), c), d)
    other = flash.merge(flash.merge(d, b), flash.merge(c, a))
    for one, two, whole in zip(left, other, flash.part_of(scores, value), strict=True):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, whole)
    torch.testing.assert_close(left[0] / left[2][:, None], scores.softmax(-1) @ value)


# What the page says


@pytest.mark.slow
def test_the_biggest_tensor_grows_like_n_and_that_of_naive_like_n_squared():
    sizes = (128, 256, 512)
    for fn, exponent in ((lambda *qkv: naive(*qkv)[0], 2.0), (tiled_by_32, 1.0)):
        biggest = [lab.count(fn, *one_head(n)).biggest_bytes for n in sizes]
        assert lab.fit_exponent(sizes, biggest).exponent == pytest.approx(exponent, abs=0.05)


def one_head(n, grad=False):
    return [torch.randn(1, 1, n, 64, requires_grad=grad) for _ in range(3)]


def tiled_by_32(*qkv):
    return flash.tiled_attention(*qkv, 32)[0]


def test_on_the_meta_device_a_table_of_128_gib_is_never_made():
    shapes = (torch.empty(1, 16, 65536, 64, dtype=torch.float16, device="meta") for _ in range(2))
    query, key = shapes
    assert lab.count(lambda: query @ key.mT).biggest_bytes == 128 * 2**30


def test_autograd_through_the_tiles_keeps_more_than_naive_attention_does():
    qkv = one_head(256, grad=True)
    through_naive = lab.saved_for_backward(
        lambda *x: (x[0] @ x[1].mT / 8).softmax(-1) @ x[2], *qkv
    ).activations
    assert lab.saved_for_backward(tiled_by_32, *qkv).activations > through_naive >= 256 * 256 * 4
    with torch.no_grad():
        own = sum(x.nbytes for x in flash.tiled_attention(*qkv, 32))
    assert own == 256 * 64 * 4 + 256 * 4


def test_with_large_tiles_the_tile_is_the_biggest_tensor():
    biggest = [
        lab.count(lambda *x: flash.tiled_attention(*x, 256), *one_head(n)).biggest_bytes
        for n in (256, 512)
    ]
    assert biggest == [256 * 256 * 4] * 2


def test_a_score_of_89_has_no_exponential_in_float32():
    assert torch.tensor(89.0).exp().isinf() and torch.tensor(88.0).exp().isfinite()


def test_check_yourself_1():
    one = (torch.tensor([[0.0]]), torch.tensor([2.0]), torch.tensor([1.0]))
    two = (torch.tensor([[0.0]]), torch.tensor([4.0]), torch.tensor([3.0]))
    _, maximum, total = flash.merge(one, two)
    assert maximum == 4 and total.item() == pytest.approx(3.135, abs=5e-4)


def test_the_stored_receipt_is_possible_and_says_what_the_page_draws():
    record = decode(flash.RECEIPT)
    assert passed(audit(record)) and len(record["points"]) == 19
    assert record["machine"]["label"] == "CPU, 1 thread"
    found = flash.best_tile(record)
    best = {(p["name"], p["n"], p.get("tile")): min(p["seconds"]) for p in record["points"]}
    assert found["u_shaped"] and found["n"] == 2048
    assert best["tiled", 2048, 32] > 5 * best["tiled", 2048, found["tile"]]
    assert best["fused", 2048, None] < best["tiled", 2048, found["tile"]]


def keeps_yes_and_no(query, key, value, tile, causal=False):
    """Tiles; then a table of who may see whom for each, kept as if for the way back."""
    found = flash.tiled_attention(query, key, value, tile, causal)
    kept = []
    for row in range(0, query.shape[2], tile):
        for column in range(0, row + 1, tile):
            rows, columns = torch.arange(row, row + tile), torch.arange(column, column + tile)
            kept.append(columns <= rows[:, None])
    return found


def test_not_even_tiles_of_one_byte_a_number_may_all_be_kept():
    about = registry.find("tiled_attention")
    assert about.traits(Answer(about, keeps_yes_and_no))["keeps its tiles"]
