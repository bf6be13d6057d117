"""Timers that many people learn from, as models: each follows the recipe of its source.

So one sees what a recipe is good for. All were written for a purpose that they serve; none for all.
"""

import math
import statistics
import timeit
from collections.abc import Callable
from typing import NamedTuple

import torch


class Famous(NamedTuple):
    """A well-known timer."""

    timer: Callable  # as in `try_out`; returns the one number its users read
    source: str


def _event() -> object:
    return torch.cuda.Event(enable_timing=True)


def _one_pair_of_events(fn: Callable, flush: Callable) -> float:
    start, end = _event(), _event()
    for _ in range(5):
        fn()
    start.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _mean_of_ten_steps(fn: Callable, flush: Callable) -> float:
    def step() -> float:
        start = timeit.default_timer()
        fn()
        torch.cuda.synchronize()
        return timeit.default_timer() - start

    for _ in range(5):
        step()
    return statistics.mean(step() for _ in range(10))


def _synchronized_clock() -> float:
    """What torch.utils.benchmark takes for a clock where there is a GPU."""
    torch.cuda.synchronize()
    return timeit.default_timer()


def _torch_timer(fn: Callable):
    from torch.utils.benchmark import Timer

    return Timer("fn()", globals={"fn": fn}, timer=_synchronized_clock)


def _do_bench(fn: Callable) -> list[float]:
    """Milliseconds of every repetition, with triton's default warm-up=25 and rep=100 ms."""
    fn()
    torch.cuda.synchronize()
    cache = torch.empty(int(256e6 // 4), dtype=torch.int, device="cuda")
    start, end = _event(), _event()
    start.record()
    for _ in range(5):
        cache.zero_()
        fn()
    end.record()
    torch.cuda.synchronize()
    estimate = start.elapsed_time(end) / 5
    for _ in range(max(1, int(25 / estimate))):
        fn()
    pairs = [(_event(), _event()) for _ in range(max(1, int(100 / estimate)))]
    for start, end in pairs:
        cache.zero_()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def _until_the_mean_is_sure(fn: Callable, flush: Callable) -> float:
    fn()  # the check of the result
    _repeat_until_sure(fn, 0.1)  # the warm-up
    return _repeat_until_sure(fn, 10.0)


def _repeat_until_sure(fn: Callable, budget: float) -> float:
    """Mean seconds of up to 100 calls: until its standard error is 0.1 % or the budget is gone."""
    seconds = []
    for _ in range(100):
        torch.cuda.synchronize()
        start, end = _event(), _event()
        torch.empty((32, 1024, 1024), dtype=torch.int64, device="cuda").fill_(42)  # 256 MiB
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
        if len(seconds) > 2:
            error = statistics.stdev(seconds) / math.sqrt(len(seconds))
            if error < 0.001 * statistics.mean(seconds) or sum(seconds) > budget:
                break
    return statistics.mean(seconds)


FAMOUS = {
    "GPU MODE lecture 1": Famous(
        _one_pair_of_events,
        "time_pytorch_function in lecture_001/pytorch_square.py, gpu-mode/lectures (7cb40f6)",
    ),
    "CS336 recipe": Famous(
        _mean_of_ten_steps,
        "Stanford CS336, assignment 2 (systems), benchmarking_script: 5 warm-up steps, mean of 10, "
        "timeit.default_timer, synchronize after each step",
    ),
    "torch Timer, blocked": Famous(
        lambda fn, flush: _torch_timer(fn).blocked_autorange().median,
        "torch.utils.benchmark.Timer.blocked_autorange itself (its median is over block averages)",
    ),
    "flash-attn timeit(30)": Famous(
        lambda fn, flush: _torch_timer(fn).timeit(30).mean,
        "benchmarks/benchmark_flash_attention.py (repeats = 30) and flash_attn/utils/benchmark.py, "
        "Dao-AILab/flash-attention",
    ),
    "do_bench, mean": Famous(
        lambda fn, flush: statistics.mean(_do_bench(fn)) / 1e3,
        'triton.testing.do_bench, triton 3.6, with its default return_mode="mean"',
    ),
    "do_bench, median": Famous(
        lambda fn, flush: statistics.median(_do_bench(fn)) / 1e3,
        'triton.testing.do_bench, triton 3.6, with return_mode="median"',
    ),
    "kernelbot": Famous(
        _until_the_mean_is_sure,
        "_run_single_benchmark in problems/pmpp_v2/eval.py, gpu-mode/reference-kernels (f83cb92)",
    ),
}
