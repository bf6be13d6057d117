"""The meters: what a call allocates, dispatches and keeps, the same on every run and machine."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from attncourse.lab.meters import Counts, Meter, allocator_peak, count, saved_for_backward, trace

KB = 1024


def naive(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def tiled(q, k, v, tile=64):
    """Online softmax over tiles of keys: never n × n numbers at once."""
    output = torch.zeros_like(q)
    largest = torch.full((*q.shape[:-1], 1), -math.inf)
    total = torch.zeros((*q.shape[:-1], 1))
    for first in range(0, k.shape[-2], tile):
        scores = q @ k[..., first : first + tile, :].mT / math.sqrt(q.shape[-1])
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, shrink = (scores - new).exp(), (largest - new).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        output = output * shrink + weights @ v[..., first : first + tile, :]
        largest = new
    return output / total


def qkv(n, b=1, h=4, d=64, **options):
    return [torch.ones(b, h, n, d, **options) for _ in range(3)]


@pytest.mark.parametrize(
    "attention, exponent",
    [(naive, 2.0), (tiled, 1.0), (F.scaled_dot_product_attention, 1.0)],
    ids=["naive", "tiled", "sdpa"],
)
def test_the_exponent_of_the_biggest_tensor_is_exact(attention, exponent):
    biggest = [count(attention, *qkv(n)).biggest_bytes for n in (128, 256, 512)]
    for less, more in pairwise(biggest):
        assert math.log2(more / less) == exponent


def test_naive_attention_holds_two_score_tables_at_once():
    b, h, n, d = 2, 3, 64, 16
    scores = b * h * n * n * 4
    assert count(naive, *qkv(n, b, h, d)) == Counts(
        peak_bytes=2 * scores,
        biggest_bytes=scores,
        biggest_shape=(b * h, n, n),
        input_bytes=3 * b * h * n * d * 4,
        moved_bytes=6 * scores + 4 * b * h * n * d * 4,
        operations={"bmm": 2, "div": 1, "_softmax": 1},
    )


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_modes_of_autograd_do_not_change_the_counts(mode):
    expected = count(naive, *qkv(64))
    with mode():
        assert count(naive, *qkv(64)) == expected


def test_a_tensor_from_inference_mode_is_counted_like_any_other():
    with torch.inference_mode():
        inputs = qkv(64)
    assert count(naive, *inputs) == count(naive, *qkv(64))


def test_counting_twice_gives_the_same():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = torch.ones(2, 8, 16)
    assert count(layer, x) == count(layer, x)
    assert saved_for_backward(layer, x) == saved_for_backward(layer, x)


def test_memory_given_back_is_not_in_the_peak():
    def chain(x):
        for _ in range(10):
            x = x + 1
        return x

    x = torch.zeros(KB // 4)
    assert count(chain, x).peak_bytes == 2 * KB
    assert count(lambda: [chain(x), chain(x), chain(x)]).peak_bytes == 4 * KB


def test_views_and_writing_in_place_cost_nothing():
    def look(x):
        x = x.view(16, 16).mT[2:].unsqueeze(0).expand(7, -1, -1)
        return x[0].detach()

    def write(x):
        x.add_(1).relu_()
        x[3] = 2.0
        torch.mul(x, 2, out=x)
        return x

    x = torch.zeros(256)
    assert count(look, x).peak_bytes == 0 and count(look, x).operations == {}
    written = count(write, x)
    assert written.peak_bytes <= 8  # the number 2.0
    assert written.operations["add_"] == written.operations["mul"] == 1


def test_a_view_keeps_its_whole_storage_alive():
    def corner(x):
        return (x + 1)[:1]

    def keep_corners(x):
        return [corner(x) for _ in range(3)]

    assert count(keep_corners, torch.zeros(256)).peak_bytes == 3 * KB


def test_inputs_weights_and_constants_are_counted_apart():
    layer = nn.Linear(16, 16)
    shift = torch.ones(16)
    counted = count(lambda x: layer(x) + shift, torch.ones(4, 16))
    assert counted.input_bytes == 4 * (16 * 16 + 16 + 16 + 4 * 16)
    assert counted.peak_bytes == 2 * 4 * 16 * 4


def test_a_tensor_made_from_numbers_is_no_input():
    counted = count(lambda: torch.tensor([1.0, 2.0]) + 1)
    assert counted.input_bytes == 0 and counted.peak_bytes >= 16


def test_growing_a_tensor_in_place_is_seen():
    def grow():
        x = torch.zeros(4)
        return x.resize_(256)

    assert count(grow).peak_bytes == KB


def test_the_backward_pass_is_counted():
    q, k, v = qkv(64, requires_grad=True)
    forward = count(naive, q, k, v)
    both = count(lambda: naive(q, k, v).sum().backward())
    assert both.operations["bmm"] == 6 and "_softmax_backward_data" in both.operations
    assert both.peak_bytes > forward.peak_bytes
    assert q.grad is not None


def test_what_would_not_fit_can_be_counted_on_meta():
    n = 2**16
    inputs = qkv(n, h=16, dtype=torch.float16, device="meta")
    assert count(naive, *inputs).biggest_bytes == 16 * n * n * 2  # 128 GiB
    assert count(naive, *qkv(64, device="meta")) == count(naive, *qkv(64))


def test_moved_bytes_are_what_has_to_be_fetched_and_stored():
    x, row = torch.ones(16, 16), torch.ones(16)
    assert count(torch.add, x, row.expand(16, 16)).moved_bytes == KB + 64 + KB
    assert count(x.add_, 1).moved_bytes == 2 * KB
    assert count(x.view, 256).moved_bytes == 0
    assert count(torch.empty, 256).moved_bytes == 0
    assert count(torch.zeros, 256).moved_bytes == KB


def test_a_loop_dispatches_more_for_longer_texts_and_attention_does_not():
    cell = nn.RNNCell(8, 16)

    def loop(x):
        hidden = torch.zeros(1, 16)
        for step in x:
            hidden = cell(step, hidden)
        return hidden

    totals = {}
    with torch.no_grad():
        for n in (16, 32, 64):
            totals[n] = count(loop, torch.ones(n, 1, 8)).total, count(naive, *qkv(n)).total
    assert totals == {16: (65, 4), 32: (129, 4), 64: (257, 4)}  # 4n + 1


def test_the_trace_has_all_names_in_order():
    names = trace(lambda x: (x.mT @ x).exp_(), torch.ones(2, 2))
    assert names == ["transpose", "mm", "exp_"]


def test_meters_can_be_nested():
    inputs = qkv(64)
    with Meter() as outer:
        torch.ones(4)
        inner = count(naive, *inputs)
    assert inner == count(naive, *inputs)
    assert outer.counts().peak_bytes == inner.peak_bytes
    assert outer.counts().operations == {"ones": 1, **inner.operations}


def test_an_error_passes_through_and_leaves_what_was_counted():
    def fails(x):
        x = x + 1
        raise ValueError("as it should")

    x = torch.zeros(256)
    with pytest.raises(ValueError, match="as it should"), Meter() as meter:
        fails(x)
    assert meter.counts().peak_bytes == KB
    with pytest.raises(ValueError, match="as it should"):
        saved_for_backward(fails, x)
    before = meter.counts()
    torch.ones(1000) + 1  # nobody listens any more
    assert meter.counts() == before


def test_a_meter_keeps_no_tensor_alive():
    with Meter() as meter:
        x = torch.ones(256)
        assert meter.made(x.untyped_storage())
        del x
        y = torch.ones(256)
    assert meter.counts().peak_bytes == KB
    del y


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sparse_and_nested_tensors_pass_through():
    sparse = torch.eye(4).to_sparse()
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    assert count(lambda: sparse @ torch.ones(4, 2)).biggest_bytes == 4 * 2 * 4
    assert count(lambda: nested * 2).peak_bytes >= 6 * 3 * 4


# Bytes saved for the backward pass


def test_naive_attention_saves_the_weights_and_fused_attention_does_not():
    b, h, n, d = 1, 4, 1024, 64
    inputs = qkv(n, b, h, d, requires_grad=True)
    size = b * h * n * d * 4
    by_naive = saved_for_backward(naive, *inputs)
    by_fused = saved_for_backward(F.scaled_dot_product_attention, *inputs)
    assert (by_naive.activations, by_naive.inputs) == (b * h * n * n * 4, 3 * size)  # 19 MiB
    assert (by_fused.activations, by_fused.inputs) == (size + b * h * n * 4, 3 * size)  # 4 MiB
    assert by_fused.total == 4 * size + b * h * n * 4


def test_each_storage_is_saved_once():
    x = torch.ones(256, requires_grad=True)
    saved = saved_for_backward(lambda: (x * x) * x.view(16, 16).view(-1))
    assert (saved.activations, saved.inputs) == (KB, KB)


def test_without_gradients_nothing_is_saved():
    with torch.no_grad():
        assert saved_for_backward(naive, *qkv(16, requires_grad=True)).total == 0
    assert saved_for_backward(naive, *qkv(16)).total == 0


def test_recomputing_saves_less():
    def again(q, k, v):
        return checkpoint(naive, q, k, v, use_reentrant=False)

    inputs = qkv(64, requires_grad=True)
    assert saved_for_backward(again, *inputs).activations == 0
    assert saved_for_backward(naive, *inputs).activations > 0


def test_nested_meters_of_saved_bytes_see_the_same():
    x = torch.ones(256, requires_grad=True)
    inner = []
    outer = saved_for_backward(lambda: inner.append(saved_for_backward(lambda: x.exp().sin())))
    assert outer == inner[0]
    assert outer.activations == KB


def test_gradients_are_right_while_saved_bytes_are_counted():
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    saved_for_backward(lambda: x.exp().sum().backward())
    torch.testing.assert_close(x.grad, x.detach().exp())


# The allocator of a GPU, which this machine may not have


def test_without_a_gpu_there_is_no_allocator_to_ask(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert allocator_peak(naive, *qkv(16)) is None


def test_the_allocator_is_asked_for_the_peak_above_the_start(monkeypatch):
    calls = []
    state = {"now": 700, "peak": 10**9}  # a peak of what ran before

    def run():
        calls.append("run")
        state["now"], state["peak"] = 800, 1000
        return "result"

    def reset():
        calls.append("reset")
        state["peak"] = state["now"]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: state["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: state["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    assert allocator_peak(run) == 300
    assert calls == ["synchronize", "reset", "run", "synchronize"]
