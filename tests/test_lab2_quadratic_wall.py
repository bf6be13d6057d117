"""Lab 2's promises: its arithmetic is the meter's, its receipt is real, its claims hold."""

import math

import numpy as np
import pytest
import torch

from attncourse import lab
from attncourse.checks import registry, run
from attncourse.lab import lab2_quadratic_wall as course
from attncourse.scaled_dot_product import scaled_dot_product_attention
from attncourse.tasks.lab2_quadratic_wall import conclude, fit_growth

STEM = "lab2_quadratic_wall"
TASKS = [task.name for task in registry.of_chapter(STEM)]


def qkv(*shape, **options):
    return (torch.randn(*shape, **options) for _ in range(3))


@pytest.fixture(scope="module")
def record():
    return lab.receipts.decode(course.lab2_receipt())


# --- the reference


def test_naive_attention_is_attention():
    q, k, v = qkv(2, 3, 7, 5, dtype=torch.float64)
    theirs, _ = scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(course.naive_attention(q, k, v), theirs)
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(course.naive_attention(q, k, v), fused)


@pytest.mark.parametrize("sizes", [(1, 1, 4, 2), (2, 3, 40, 8), (1, 2, 64, 64), (3, 1, 5, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_the_peak_is_what_the_meter_counts(sizes, dtype):
    counts = lab.count(course.naive_attention, *qkv(*sizes, dtype=dtype))
    assert course.peak_bytes(*sizes, dtype.itemsize) == counts.peak_bytes


def test_the_peak_of_a_gpus_size_is_counted_without_its_memory():
    q, k, v = (torch.empty(1, 16, 16384, 64, dtype=torch.float16, device="meta") for _ in "qkv")
    peak = lab.count(course.naive_attention, q, k, v).peak_bytes
    assert course.peak_bytes(1, 16, 16384, 64, 2) == peak


@pytest.mark.parametrize("memory", [0, 1, 6, 1000, 10**6, 16 * 10**9, 141 * 10**9])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 50, 4), (1, 16, 64, 2), (1, 2, 512, 2)])
def test_the_wall_is_the_last_n_that_fits(memory, sizes):
    b, h, d, width = sizes
    n = course.largest_n(memory, b, h, d, width)

    def need(n):
        return course.peak_bytes(b, h, n, d, width) + 3 * b * h * n * d * width

    assert need(n) <= memory < need(n + 1)


@pytest.mark.parametrize("seed", range(20))
def test_both_fits_agree_on_what_the_judge_makes_up(seed):
    rng = torch.Generator().manual_seed(seed)
    data = fit_growth.timings(rng, 2.0, floor=384, noise=0.02, wild=(-3,), shuffled=True)
    ours = course.fit_growth(**data)
    theirs = lab.fit_exponent(data["sizes"], data["seconds"]).exponent
    assert abs(ours - 2) < 0.15 and abs(theirs - 2) < 0.15


@pytest.mark.parametrize("kind", conclude.RECORDS)
def test_the_conclusions_are_the_truth_of_made_up_records(kind):
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        record, truth = conclude.a_record(rng, **conclude.RECORDS[kind])
        found = course.conclude(record)
        assert found["held"] == truth["held"]
        assert abs(found["time_exponent"] - truth["time_exponent"]) < 0.1
        assert abs(found["memory_exponent"] - truth["memory_exponent"]) < 0.05
        assert math.isclose(found["ratio"], truth["ratio"], rel_tol=0.04)
        assert math.isclose(found["wall"], truth["wall"], rel_tol=0.08)


# --- the receipt measured here


def test_its_times_are_within_the_gates(record):
    found = course.conclude(record)
    assert 1.6 <= found["time_exponent"] <= 2.4
    assert found["ratio"] >= 1.8
    assert 1.9 <= found["memory_exponent"] <= 2.05


def test_its_peaks_are_those_of_the_meter_here(record):
    for point in record["points"]:
        if point["name"] == "naive":
            assert point["peak_bytes"] == course.peak_bytes(1, 2, point["n"], 64, 4)


# --- what the page says, and a sceptic would doubt


def test_fused_attention_needs_a_hundredth_and_its_time_still_grows_like_n_squared(record):
    peak = {(p["name"], p["n"]): p["peak_bytes"] for p in record["points"]}
    assert peak["naive", 4096] > 100 * peak["fused", 4096]
    assert course.conclude(record)["time_exponent"] > 1.6


def test_naive_time_is_steeper_than_a_square_somewhere(record):
    times = {p["n"]: min(p["seconds"]) for p in record["points"] if p["name"] == "naive"}
    slopes = lab.fit_exponent([*times], [*times.values()]).slopes
    where, steepest = max(slopes, key=lambda pair: pair[1])
    assert steepest > 2.8 and 1500 < where < 3000
    assert abs(slopes[-1][1] - 2) < 0.2


def test_a_t4_ends_between_8192_and_16384_and_four_times_the_memory_gives_twice_the_n():
    small, large = (course.largest_n(m * 10**9, 1, 16, 64, 2) for m in (16, 64))
    assert 8192 < small < 16384
    assert math.isclose(large / small, 2, rel_tol=0.01)


def test_a_loop_gives_the_same_values_and_has_no_table():
    q, k, v = qkv(1, 2, 256, 64)

    def row_by_row(q, k, v):
        rows = [course.naive_attention(q[:, :, i : i + 1], k, v) for i in range(q.shape[2])]
        return torch.cat(rows, dim=2)

    torch.testing.assert_close(row_by_row(q, k, v), course.naive_attention(q, k, v))
    whole, loop = (lab.count(f, q, k, v) for f in (course.naive_attention, row_by_row))
    assert loop.biggest_bytes < whole.biggest_bytes / 3


def test_one_wild_value_and_overhead_mislead_a_line_and_not_a_median():
    sizes = [64 * 2**i for i in range(9)]
    times = [1e-4 + 1e-9 * n**2 for n in sizes]
    times[-1] *= 6
    assert abs(np.polyfit(np.log(sizes), np.log(times), 1)[0] - 2) > 0.3
    assert abs(lab.fit_exponent(sizes, times).exponent - 2) < 0.1


# --- the judge


def test_a_fused_call_is_no_naive_attention():
    def fused(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    report = run("naive_attention", fused)
    assert report.earned == 0 and report.diagnosis.id == "SHORT-CUT"
