"""Formulas against independent counts; tables against themselves; a plot one can read."""

import math
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from attncourse.lab import timing
from attncourse.lab.meters import count
from attncourse.lab.roofline import (
    DATASHEETS,
    PUBLISHED,
    attainable,
    attention_flops,
    cache_bytes_per_token,
    compute_bound_from,
    datasheet,
    decode_bytes,
    fused_bytes,
    intensity,
    measured_ceilings,
    naive_bytes,
    plot_roofline,
    published,
    ridge,
)

matplotlib.use("Agg")
SIZES = {"b": 2, "h": 3, "n": 40, "d": 16}


def naive(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores if mask is None else scores + mask, dim=-1) @ v


def qkv(b, h, n, d, n_keys=None, **options):
    lengths = n, n_keys or n, n_keys or n
    return [torch.ones(b, h, length, d, **options) for length in lengths]


# Formulas


@pytest.mark.parametrize("n_keys", [None, 24])
def test_flops_are_those_of_the_two_products(n_keys):
    with FlopCounterMode(display=False) as counter:
        naive(*qkv(**SIZES, n_keys=n_keys))
    assert attention_flops(**SIZES, n_keys=n_keys) == counter.get_total_flops()


def test_flops_follow_the_conventions_of_published_figures():
    forward = attention_flops(**SIZES)
    assert attention_flops(**SIZES, causal=True) == forward / 2
    assert attention_flops(**SIZES, backward=True) == 3.5 * forward
    # Autograd keeps the weights instead of computing them again: 2 products forward, 4 back.
    with FlopCounterMode(display=False) as counter:
        naive(*qkv(**SIZES, requires_grad=True)).sum().backward()
    assert counter.get_total_flops() == 3 * forward


@pytest.mark.parametrize("n_keys", [None, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_naive_bytes_are_what_its_operations_move(n_keys, dtype):
    counted = count(naive, *qkv(**SIZES, n_keys=n_keys, dtype=dtype)).moved_bytes
    assert naive_bytes(**SIZES, n_keys=n_keys, element_bytes=dtype.itemsize) == counted


def test_a_mask_moves_the_scores_twice_more():
    mask = torch.zeros(40, 40)
    counted = count(naive, *qkv(**SIZES), mask).moved_bytes
    assert naive_bytes(**SIZES, element_bytes=4, mask=True) == counted - mask.nbytes


def test_fused_bytes_are_what_the_kernel_moves_besides_one_number_a_row():
    counted = count(F.scaled_dot_product_attention, *qkv(**SIZES)).moved_bytes
    normalizers = 4 * SIZES["b"] * SIZES["h"] * SIZES["n"]
    assert fused_bytes(**SIZES, element_bytes=4) == counted - normalizers


def test_the_intensity_of_fused_attention_grows_with_n_and_that_of_naive_does_not():
    for d in (64, 128):
        for n in (1024, 4096):
            size = {"b": 1, "h": 8, "n": n, "d": d}
            flops = attention_flops(**size)
            assert intensity(flops, fused_bytes(**size)) == n / 2
            assert intensity(flops, naive_bytes(**size)) == pytest.approx(d / 3, rel=0.1)


@pytest.mark.parametrize("h, kv_heads", [(32, 32), (32, 8), (32, 1)])
def test_decoding_has_one_intensity(h, kv_heads):
    for b, n, d in ((1, 512, 64), (8, 8192, 128)):
        flops = attention_flops(b, h, 1, d, n_keys=n)
        assert intensity(flops, decode_bytes(b, kv_heads, n, d)) == h / kv_heads


def test_the_cache_of_a_language_model():
    sizes = [cache_bytes_per_token(32, kv_heads, 128) // 1024 for kv_heads in (32, 8, 4, 1)]
    assert sizes == [512, 128, 64, 16]  # KiB
    assert decode_bytes(8, 32, 8192, 128) == 8 * 8192 * cache_bytes_per_token(1, 32, 128)


# Ceilings


def test_the_ridge_is_peak_over_bandwidth_and_fused_attention_crosses_it():
    rounded = {
        name: (round(ridge(sheet)), round(compute_bound_from(sheet, 64, fused=True)))
        for name, sheet in DATASHEETS.items()
    }
    assert rounded == {
        "T4": (203, 406),
        "L4": (403, 807),
        "A100-40": (201, 401),
        "A100-80": (153, 306),
        "H100": (295, 590),
        "H200": (206, 412),
    }


def test_naive_attention_never_crosses_the_ridge_of_a_gpu():
    for sheet in DATASHEETS.values():
        assert compute_bound_from(sheet, 128, fused=False) == math.inf
    slow = {"flops_per_second": {"float32": 40.0}, "bytes_per_second": 10.0}  # ridge 4
    n = compute_bound_from(slow, 64, fused=False, dtype="float32", element_bytes=4)
    for size, above in ((math.floor(n) - 1, False), (math.ceil(n) + 1, True)):
        shape = {"b": 1, "h": 1, "n": size, "d": 64}
        moved = naive_bytes(**shape, element_bytes=4)
        assert (intensity(attention_flops(**shape), moved) > 4) == above


def test_below_the_ridge_memory_is_the_roof_and_above_it_arithmetic():
    t4 = DATASHEETS["T4"]
    assert attainable(t4, 100.0, 1.0) == 100 * 320e9
    assert attainable(t4, 1000.0, 1.0) == 65e12
    assert attainable(t4, 1000.0, 1.0, "float32") == 8.1e12


def test_every_sheet_is_plausible_and_names_its_source():
    for name, sheet in DATASHEETS.items():
        assert name.split("-")[0] in sheet["source"]
        flops = sheet["flops_per_second"]
        assert flops["float16"] > 3 * flops["float32"]
        assert sheet["l2_bytes"] < 2**26 < sheet["memory_bytes"]
    assert "bfloat16" not in DATASHEETS["T4"]["flops_per_second"]


@pytest.mark.parametrize(
    "name, key",
    [
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("AMD EPYC 7B13", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name, key):
    assert datasheet(name) is (DATASHEETS[key] if key else None)


@pytest.mark.slow
def test_measured_ceilings_divide_work_by_the_headline(monkeypatch):
    measured = []

    def measure(fn, *, name, **how):
        fn()
        measured.append((name, how))
        return SimpleNamespace(headline=0.5)

    monkeypatch.setattr(timing, "measure", measure)
    ceilings = measured_ceilings("cpu", ["float32", "float64"], samples=7)
    assert ceilings == {
        "flops_per_second": {"float32": 2 * 1024**3 / 0.5, "float64": 2 * 1024**3 / 0.5},
        "bytes_per_second": 2 * 2**27 / 0.5,
    }
    assert measured == [
        ("product, float32", {"samples": 7}),
        ("product, float64", {"samples": 7}),
        ("copy", {"samples": 7}),
    ]


# Published


def test_no_published_speed_is_above_its_machine():
    for point in PUBLISHED:
        peak = DATASHEETS[point.gpu]["flops_per_second"]["float16"] / 1e12
        assert 0 < point.tflops < 0.8 * peak, point
        assert "flash-attention" in point.source


def test_published_speeds_show_what_the_text_says_about_them():
    def speeds(kernel, **like):
        return {point.n: point.tflops for point in published(kernel=kernel, **like)}

    for d in (64, 128):
        a100 = {"gpu": "A100-80", "d": d}
        naive_, fused = (speeds(kernel, **a100, causal=False) for kernel in ("PyTorch", "FA2"))
        assert 16384 in fused and 16384 not in naive_  # out of memory
        advantage = [fused[n] / naive_[n] for n in (1024, 2048, 4096, 8192)]
        assert min(advantage) > 2
        # Naive attention computes what the causal mask throws away.
        causal = speeds("PyTorch", **a100, causal=True)
        assert all(causal[n] < 0.55 * naive_[n] for n in causal)
        h100 = {"gpu": "H100", "d": d, "causal": False, "backward": False}
        assert speeds("FA3", **h100)[16384] > speeds("FA2", **h100)[16384]
        assert speeds("FA3", **h100)[512] < speeds("cuDNN", **h100)[512]


def test_published_naive_attention_lies_under_the_memory_roof():
    for point in published("H100", kernel="PyTorch", backward=False, causal=False):
        drawn = point.as_point()
        roof = attainable(DATASHEETS["H100"], drawn["flops"], drawn["bytes"])
        assert 0.4 * roof < drawn["flops_per_second"] < roof


# Plot


def test_the_plot_says_where_it_was_measured_and_what_is_published():
    points = [
        {"name": "naive", "n": n, "flops": 20.0 * n, "bytes": 1.0 * n, "clock": "events"}
        | {"seconds": [4e-12 * n, 1e-12 * n, 2e-12 * n]}
        for n in (512, 1024, 2048)
    ]
    points.append(points[0] | {"n": 4096, "seconds": [], "error": "out of memory"})
    points += [point.as_point() for point in published("A100-80", kernel="FA2", d=64, causal=False)]
    ceilings = {"measured": DATASHEETS["T4"], "A100 datasheet": DATASHEETS["A100-80"]}
    ax = plot_roofline(points, ceilings, "T4, fp16")
    assert ax.get_title() == "Roofline [T4, fp16]"
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("FLOP per byte", "FLOP per second")
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["naive", "FA2, d=64 (published)"]
    texts = {text.get_text() for text in ax.texts}
    assert {"n=512", "n=2048", "measured: 65 TFLOP/s, 320 GB/s"} <= texts
    assert "n=4096" not in texts
    naive_ = next(line for line in ax.lines if line.get_label() == "naive")
    assert list(naive_.get_xdata()) == [20.0] * 3
    assert list(naive_.get_ydata()) == pytest.approx([1e13] * 3)  # the median


def test_processor_times_are_drawn_by_their_best():
    point = {"name": "a", "flops": 6.0, "bytes": 1.0, "seconds": [3.0, 1.0, 2.0], "clock": "cpu"}
    ceiling = {"flops_per_second": {"float32": 10.0}, "bytes_per_second": 1.0}
    ax = plot_roofline([point], {"measured": ceiling}, "CPU, 1 thread", dtype="float32")
    assert list(ax.lines[-1].get_ydata()) == [6.0]


def test_a_plot_without_a_roof_asks_for_one():
    with pytest.raises(ValueError, match="at least one roof"):
        plot_roofline([], {}, "CPU")


def test_importing_loads_no_plotting():
    code = "import sys, attncourse.lab.roofline; print('matplotlib' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert printed.split() == [b"False"]
