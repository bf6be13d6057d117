"""The virtual GPU behaves like a GPU, and its panel tells timers that lie from honest ones."""

import contextlib
import datetime
import functools
import math
import statistics
import sys
import threading
import time
import time as t
import timeit
from collections.abc import Callable
from time import perf_counter, perf_counter_ns, sleep
from typing import NamedTuple

import numpy as np
import pytest
import torch
from corpus.correct.lab1_time_it_right import (
    between_events,
    buffer_of_its_own,
    event,
    one_synchronize_at_the_end,
    wait_for_the_event,
    warm_up,
)
from torch.cuda import Event

from attncourse import lab
from attncourse.checks.task import answer_of
from attncourse.lab import timing
from attncourse.lab.famous import FAMOUS
from attncourse.lab.stopwatches import SCENARIOS, accepts, explain, panel, plot_panels, try_out
from attncourse.lab.virtual_gpu import OUTLIER_EVERY, STEPS, TICK, Hardware, VirtualGPU
from attncourse.tasks.lab1_time_it_right.bench import task as BENCH


def wrong(id, form=0):
    """A timer with one of the course's known mistakes."""
    return answer_of(BENCH, BENCH.faults[id].forms[form])


allocates_between_the_events = wrong("L1-ALLOCATION")
divided_twice = wrong("L1-DIVIDED-TWICE")
events_without_time = wrong("L1-EVENTS-WITHOUT-TIME")
flush_between_the_events = wrong("L1-FLUSH-COUNTED", 1)
hot_loop = wrong("L1-NO-FLUSH")
launches_into_a_full_queue = wrong("L1-NO-SYNC", 1)
launches_only = wrong("L1-NO-SYNC")
loop_after_a_queue = wrong("L1-DIRTY-QUEUE")
loop_total = wrong("L1-LOOP-TOTAL")
mean_of_events = wrong("L1-MEAN")
milliseconds = wrong("L1-MILLISECONDS")
one_cold_call = wrong("L1-COLD")
one_warm_call = wrong("L1-ONE-SAMPLE")
reads_too_early = wrong("L1-READ-EARLY")
shortest_of_a_hot_loop = wrong("L1-NO-FLUSH", 1)
warm_up_in_the_mean = wrong("L1-WARM-UP-COUNTED")

# A zoo of timers, written as students write them; more are among the answers of lab 1. Those that
# read a clock stand here, for only the clocks of a timer's own module become virtual.


def poll_the_event(fn, flush):
    warm_up(fn)
    start, end = event(), event()
    times = []
    for _ in range(20):
        flush()
        start.record()
        fn()
        end.record()
        while not end.query():
            pass
        times.append(start.elapsed_time(end) / 1000)
    return times


def wall_clock(fn, flush, clock=time.perf_counter):
    warm_up(fn)
    times = []
    for _ in range(30):
        flush()
        torch.cuda.synchronize()
        start = clock()
        fn()
        torch.cuda.synchronize()
        times.append(clock() - start)
    return times


def nanoseconds(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        flush()
        torch.cuda.synchronize()
        start = perf_counter_ns()
        fn()
        torch.cuda.synchronize()
        times.append((perf_counter_ns() - start) / 1e9)
    return times


def renamed_module(fn, flush):
    return wall_clock(fn, flush, t.monotonic)


def bound_name(fn, flush):
    return wall_clock(fn, flush, perf_counter)


def in_a_closure():
    clock, synchronize = timeit.default_timer, torch.cuda.synchronize

    def timer(fn, flush):
        warm_up(fn)
        times = []
        for _ in range(30):
            flush()
            synchronize()
            start = clock()
            fn()
            synchronize()
            times.append(clock() - start)
        return times

    return timer


class Stopwatch:
    clock = time.perf_counter

    def __init__(self):
        self.synchronize = torch.cuda.synchronize

    def __call__(self, fn, flush):
        warm_up(fn)
        times = []
        for _ in range(30):
            flush()
            self.synchronize()
            start = self.clock()
            fn()
            self.synchronize()
            times.append(self.clock() - start)
        return times


def several_calls_if_short(fn, flush):
    """Ten calls between two events where one is too short for them, and says so."""
    calls = 10 if statistics.median(between_events(fn, flush, 5)) < 50e-6 else 1

    def several():
        for _ in range(calls):
            fn()

    return [seconds / calls for seconds in between_events(several, flush)]


def standard_library(seconds):
    def timed(fn, flush):
        def call():
            fn()
            torch.cuda.synchronize()

        warm_up(fn)
        times = []
        for _ in range(30):
            flush()
            torch.cuda.synchronize()
            times.append(seconds(call))
        return times

    return timed


@torch.inference_mode()
def decorated(fn, flush):
    return wall_clock(fn, flush)


def shortest_with_a_flush(fn, flush):
    return min(between_events(fn, flush))


GOOD = {
    "events": between_events,
    "events, one synchronize": one_synchronize_at_the_end,
    "events, event.synchronize": wait_for_the_event,
    "events, polled": poll_the_event,
    "wall clock": wall_clock,
    "nanoseconds": nanoseconds,
    "import time as t": renamed_module,
    "from time import perf_counter": bound_name,
    "clock in a closure": in_a_closure(),
    "clock in a class": Stopwatch(),
    "clock in a partial": functools.partial(wall_clock, clock=time.process_time),
    "several calls a sample": several_calls_if_short,
    "own flush buffer": buffer_of_its_own,
    "timeit.timeit": standard_library(lambda call: timeit.timeit(call, number=1)),
    "timeit.Timer": standard_library(lambda call: timeit.Timer(call).timeit(1)),
    "decorated": decorated,
    "min with a flush": shortest_with_a_flush,  # no harm that one could see
    "lab.measure": lambda fn, flush: timing.measure(fn, flush=flush),
    "lab.measure, own flush": lambda fn, flush: timing.measure(fn),
}


def no_synchronize_before_the_start(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        flush()
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


def flush_under_the_wall_clock(fn, flush):
    return wall_clock(lambda: (flush(), fn()), lambda: None)


def never_records_the_end(fn, flush):
    start, end = event(), event()
    start.record()
    fn()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def nanoseconds_taken_for_seconds(fn, flush):
    return [1e9 * seconds for seconds in nanoseconds(fn, flush)]


HIGH, LOW, ERROR = "too high", "too low", "error"
ALL = tuple(SCENARIOS)
AT_LEAST = ("short kernel", "hot L2", "dirty queue", "slow malloc", "first call")


class Fault(NamedTuple):
    timer: Callable
    signature: dict[str, str]  # what fails, on every seed
    words: tuple[str, ...]  # of the explanation
    only: bool = True  # nothing else fails


FAULTY = {
    "no synchronize": Fault(launches_only, dict.fromkeys(ALL, LOW), ("you measured the launch",)),
    "no synchronize, full queue": Fault(
        launches_into_a_full_queue,
        {"first call": LOW, "hot L2": LOW},
        ("the warm-up filled the queue",),
    ),
    "one cold call": Fault(
        one_cold_call,
        {"first call": HIGH, "waking clock": HIGH, "outliers": HIGH},
        ("No warm-up", "A single sample"),
    ),
    "one warm call": Fault(one_warm_call, {"outliers": HIGH}, ("A single sample",)),
    "warm-up in the mean": Fault(
        warm_up_in_the_mean,
        {"first call": HIGH, "waking clock": HIGH, "outliers": HIGH},
        ("No warm-up", "A mean"),
    ),
    "no synchronize before the start": Fault(
        no_synchronize_before_the_start, dict.fromkeys(AT_LEAST, HIGH), ("flush",), only=False
    ),
    "loop after a queue": Fault(
        loop_after_a_queue, {"dirty queue": HIGH}, ("before the start",), only=False
    ),
    "mean": Fault(mean_of_events, {"outliers": HIGH}, ("A mean",)),
    "loop total": Fault(loop_total, {"outliers": HIGH, "hot L2": LOW}, ("A mean", "No flush")),
    "no flush": Fault(hot_loop, {"hot L2": LOW}, ("No flush",)),
    "min of a hot loop": Fault(shortest_of_a_hot_loop, {"hot L2": LOW}, ("No flush",)),
    "flush between the events": Fault(
        flush_between_the_events, dict.fromkeys(AT_LEAST, HIGH), ("flush",), only=False
    ),
    "flush under the wall clock": Fault(
        flush_under_the_wall_clock, dict.fromkeys(AT_LEAST, HIGH), ("flush",), only=False
    ),
    "allocation inside": Fault(
        allocates_between_the_events, {"slow malloc": HIGH}, ("Memory is allocated",)
    ),
    "events read too early": Fault(
        reads_too_early, dict.fromkeys(ALL, ERROR), ("No synchronize before elapsed_time",)
    ),
    "events without time": Fault(
        events_without_time, dict.fromkeys(ALL, ERROR), ("enable_timing=True",)
    ),
    "end never recorded": Fault(
        never_records_the_end, dict.fromkeys(ALL, ERROR), ("both events recorded",)
    ),
    "milliseconds": Fault(milliseconds, dict.fromkeys(ALL, HIGH), ("milliseconds",)),
    "nanoseconds for seconds": Fault(
        nanoseconds_taken_for_seconds, dict.fromkeys(ALL, HIGH), ("nanoseconds",)
    ),
    "divided twice": Fault(divided_twice, dict.fromkeys(ALL, LOW), ("thousand times too small",)),
}


def failures(values: dict[str, float | str]) -> dict[str, str]:
    return {
        name: ERROR if isinstance(value, str) else HIGH if value > 1 else LOW
        for name, value in values.items()
        if not accepts(name, value)
    }


SEEDS = [0, 1]  # 60: tests/bench/sweeps.py


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_good_timer_passes(seed):
    for name, timer in GOOD.items():
        values = panel(timer, seed)
        assert not failures(values), (name, values)
        assert explain(values) is None, name


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_faulty_timer_fails_with_its_signature_and_its_name(seed):
    for name, fault in FAULTY.items():
        values = panel(fault.timer, seed)
        failed = failures(values)
        assert fault.signature.items() <= failed.items(), (name, values)
        if fault.only:
            assert failed == fault.signature, (name, values)
        said = explain(values)
        assert said and all(words in said for words in fault.words), (name, said, values)
        assert len(said.split("\n")) == len(fault.words), (name, said)


def test_the_zoo_is_large_enough():
    assert len(FAULTY) >= 13 and len(GOOD) >= 4


def test_what_nothing_explains_is_left_alone():
    fine = dict.fromkeys(SCENARIOS, 1.0)
    assert explain(fine) is None
    assert explain(fine | {"long kernel": 1.3}) is None
    assert explain(fine | {"outliers": 0.7}) is None
    # A known mistake beside an unknown one: naming one of them would send the reader astray.
    assert explain(fine | {"hot L2": 0.5, "long kernel": 1.3}) is None
    assert explain(dict.fromkeys(SCENARIOS, "ZeroDivisionError: division by zero")) is None


def test_two_mistakes_are_named_together():
    said = explain(panel(lambda fn, flush: 1000 * statistics.mean(between_events(fn, flush))))
    assert "milliseconds" in said and "A mean" in said


def test_a_panel_is_the_same_every_time_and_another_with_another_seed():
    assert panel(between_events, 3) == panel(between_events, 3)
    assert panel(mean_of_events, 3) != panel(mean_of_events, 4)


# The machine itself.


def test_a_launch_returns_at_once_and_synchronize_waits():
    with VirtualGPU(Hardware(noise=0)) as gpu:
        fn = gpu.kernel(5e-3)
        start = time.perf_counter()
        fn()
        launched = time.perf_counter() - start
        torch.cuda.synchronize()
        done = time.perf_counter() - start
    assert launched < 1e-5
    assert done == pytest.approx(5e-3, rel=0.01)


def test_elapsed_time_is_in_milliseconds_and_as_coarse_as_cudas():
    with VirtualGPU(Hardware(noise=0)) as gpu:
        fn, start, end = gpu.kernel(1.2345678e-3), event(), event()
        gpu.flush()
        start.record()
        fn()
        end.record()
        end.synchronize()
        took = start.elapsed_time(end)
    assert took == pytest.approx(1.2345678, abs=1e3 * TICK)
    assert took / (1e3 * TICK) == pytest.approx(round(took / (1e3 * TICK)))


def test_without_a_flush_events_see_the_gap_before_a_short_kernel():
    def span(before):
        with VirtualGPU(Hardware(noise=0, launch=6e-6)) as gpu:
            fn, start, end = gpu.kernel(20e-6), event(), event()
            torch.cuda.synchronize()
            before(gpu)
            start.record()
            fn()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3

    assert span(lambda gpu: None) == pytest.approx(26e-6, abs=TICK)
    assert span(lambda gpu: gpu.flush()) == pytest.approx(20e-6, abs=TICK)


def test_events_complain_as_in_torch():
    with VirtualGPU() as gpu:
        fn, start, end = gpu.kernel(1e-3), event(), event()
        start.record()
        with pytest.raises(ValueError, match="recorded"):
            start.elapsed_time(end)
        fn()
        end.record()
        assert not end.query()
        with pytest.raises(RuntimeError, match="completed"):
            start.elapsed_time(end)
        with pytest.raises(ValueError, match="enable_timing"):
            torch.cuda.Event().elapsed_time(end)
        torch.cuda.synchronize()
        assert end.query() and start.elapsed_time(end) > 0


def test_the_first_call_with_a_shape_is_slow_once():
    with VirtualGPU(Hardware(first=0.5)) as gpu:
        fn, took = gpu.kernel(1e-3), []
        for shape in (64, 64, 128, 64, 128):
            start = time.perf_counter()
            fn(shape)
            took.append(time.perf_counter() - start)
    assert [each > 0.4 for each in took] == [True, False, True, False, False]


def test_a_write_as_large_as_the_cache_cools_it():
    with VirtualGPU(Hardware(noise=0, hot=0.5, l2_bytes=1000)) as gpu:
        fn = gpu.kernel(1e-3)

        def work():
            before = gpu.worked
            fn()
            return gpu.worked - before

        cold, hot = work(), work()
        gpu.write(999)
        still_hot = work()
        gpu.write(1000)
        assert (cold, hot, still_hot, work()) == pytest.approx((1e-3, 5e-4, 5e-4, 1e-3))


def outliers(**how):
    with VirtualGPU(Hardware(noise=0, outlier=8), **how) as gpu:
        fn, slow = gpu.kernel(1e-3), []
        for call in range(60):
            before = gpu.worked
            fn()
            slow += [call] * (gpu.worked - before > 4e-3)
    return slow


def test_one_call_in_each_six_is_an_outlier():
    assert [call // OUTLIER_EVERY for call in outliers()] == list(range(60 // OUTLIER_EVERY))
    assert outliers() == outliers() != outliers(seed=1)
    assert outliers(only=17) == [17]


def test_the_clock_rises_and_falls_with_work():
    with VirtualGPU(Hardware(noise=0, wake=5e-3, slow=2, heat=20e-3, drop=1.5)) as gpu:
        fn, took = gpu.kernel(1e-3), []
        for _ in range(30):
            before = gpu.worked
            fn()
            took.append(gpu.worked - before)
    assert took[0] == pytest.approx(2e-3)
    assert took[10] == pytest.approx(1e-3)
    assert took[-1] == pytest.approx(1.5e-3)


def test_the_queue_is_not_endless():
    with VirtualGPU() as gpu:
        fn = gpu.kernel(1e-3)
        start = time.perf_counter()
        for _ in range(2000):
            fn()
        assert time.perf_counter() - start > 0.9  # 1024 may wait; then a launch waits, too


def test_sleep_passes_virtual_time_and_no_processor_time():
    real = time.monotonic()
    with VirtualGPU():
        wall, cpu = time.time(), time.process_time()
        sleep(3600)
        assert time.time() - wall == pytest.approx(3600, abs=1)
        assert time.process_time() - cpu < 1e-3
    assert time.monotonic() - real < 60


def test_all_clocks_tell_one_time():
    with VirtualGPU() as gpu:
        names = ("perf_counter", "monotonic", "time", "process_time", "thread_time")
        before = [getattr(time, name)() for name in names]
        nanoseconds = [getattr(time, f"{name}_ns")() for name in names]
        gpu.kernel(0.1)()
        torch.cuda.synchronize()
        assert all(isinstance(each, int) for each in nanoseconds)
        for name, then, then_ns in zip(names, before, nanoseconds, strict=True):
            assert getattr(time, name)() - then == pytest.approx(0.1, abs=0.01)
            assert getattr(time, f"{name}_ns")() - then_ns == pytest.approx(1e8, abs=1e7)


def test_tensors_on_the_gpu_cost_memory_and_time():
    with VirtualGPU(Hardware(malloc=1e-3, bandwidth=1e9)) as gpu:
        start = time.perf_counter()
        x = torch.empty(1000, 1000, device="cuda")
        assert 1e-3 < time.perf_counter() - start < 1.1e-3
        assert x.shape == (1000, 1000)
        assert gpu.worked == 0
        x.zero_()
        assert gpu.worked == pytest.approx(4e-3)  # 4 MB at 1 GB/s
        torch.zeros(1000, 1000).cuda()
        torch.zeros(1000, 1000).to(torch.device("cuda"))
        assert gpu.worked == pytest.approx(12e-3)
        torch.randn(1000, 1000, device="cuda:0")
        assert gpu.worked == pytest.approx(16e-3)
        torch.tensor([1.0, 2.0]).median().item()  # statistics on the CPU cost nothing
        assert gpu.worked == pytest.approx(16e-3)


def test_there_is_one_stream():
    with VirtualGPU() as gpu:
        gpu.kernel(1e-3)()
        assert not torch.cuda.current_stream().query()
        torch.cuda.current_stream().synchronize()
        assert torch.cuda.current_stream().query()
        with pytest.raises(RuntimeError, match="one stream"):
            torch.cuda.stream(None)


# Coming and going.


def clocks_and_cuda():
    return (
        *(value for name, value in sorted(vars(time).items()) if callable(value)),
        *(value for name, value in sorted(vars(torch.cuda).items()) if callable(value)),
        timeit.default_timer,
        timeit.timeit.__defaults__,
        timeit.Timer.__init__.__defaults__,
        torch.Event,
        torch.accelerator.synchronize,
        perf_counter,
        perf_counter_ns,
        sleep,
        Event,
        wall_clock.__defaults__,
        Stopwatch.clock,
        GOOD["clock in a closure"].__closure__[0].cell_contents,
        vars(GOOD["clock in a class"])["synchronize"],
    )


def test_everything_is_as_before_even_if_the_timer_raised():
    before = clocks_and_cuda()
    with pytest.raises(ZeroDivisionError), VirtualGPU(timer=GOOD["clock in a closure"]):
        assert clocks_and_cuda() != before
        assert torch.cuda.is_available()
        raise ZeroDivisionError
    panel(GOOD["clock in a class"])
    panel(lambda fn, flush: 1 / 0)
    after = clocks_and_cuda()
    assert all(old is new for old, new in zip(before, after, strict=True))


def test_a_notebooks_names_are_found(monkeypatch):
    """A notebook is `__main__`; the timer may be a function of another module."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "my_clock", time.perf_counter, raising=False)
    with VirtualGPU():
        start = main.my_clock()
        time.sleep(100)
        assert main.my_clock() - start > 99
    assert main.my_clock is time.perf_counter


def test_other_threads_keep_the_real_clock():
    real, seen = time.perf_counter(), []
    with VirtualGPU():
        time.sleep(1e6)
        thread = threading.Thread(target=lambda: seen.append(time.perf_counter()))
        thread.start()
        thread.join()
    assert abs(seen[0] - real) < 1000


def test_a_clock_that_a_timer_kept_is_real_again_afterward():
    with VirtualGPU():
        kept = time.perf_counter
    assert abs(kept() - time.perf_counter()) < 100


def test_a_virtual_gpu_is_entered_once():
    with VirtualGPU() as gpu, pytest.raises(RuntimeError, match="in use"), gpu:
        pass


# Timers that do not play along.


@pytest.mark.slow
@pytest.mark.parametrize(
    "timer",
    [
        lambda fn, flush: [time.perf_counter() for _ in iter(int, 1)],
        lambda fn, flush: [fn() for _ in iter(int, 1)],
        lambda fn, flush: next(i for i in iter(time.perf_counter, None) if i < 0),
    ],
)
def test_an_endless_loop_ends(timer):
    values = panel(timer)
    assert set(values) == set(SCENARIOS)
    assert all(f"{STEPS:,}" in value for value in values.values())


@pytest.mark.slow
def test_an_endless_loop_that_swallows_exceptions_ends():
    def stubborn(fn, flush):
        while True:
            with contextlib.suppress(Exception):
                fn()

    assert "EndlessLoop" in try_out(stubborn, "long kernel").error


def test_waiting_for_the_clock_is_allowed():
    def patient(fn, flush):
        start = time.perf_counter()
        while time.perf_counter() - start < 0.5:
            pass
        return between_events(fn, flush)

    assert try_out(patient, "long kernel").ratio == pytest.approx(1, abs=0.05)


def by_the_calendar(fn, flush):
    start = datetime.datetime.now()
    fn()
    return (datetime.datetime.now() - start).total_seconds()


def test_a_clock_that_nobody_can_turn_is_noticed():
    assert "no clock that the virtual GPU knows" in try_out(by_the_calendar, "long kernel").error


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned nothing (None)"),
        ([], "empty list"),
        ("1 ms", "returned str '1 ms'"),
        ([0.1, None], "list of seconds"),
        ([0.1, math.nan], "infinite or NaN"),
    ],
)
def test_what_is_not_a_list_of_seconds_is_said(result, words):
    def timer(fn, flush):
        time.perf_counter()
        return result

    outcome = try_out(timer, "long kernel")
    assert words in outcome.error and math.isnan(outcome.ratio)


@pytest.mark.parametrize(
    "wrap", [list, tuple, np.array, torch.tensor, statistics.median, np.median, iter]
)
def test_seconds_may_come_in_any_form(wrap):
    outcome = try_out(lambda fn, flush: wrap(between_events(fn, flush)), "long kernel")
    assert outcome.ratio == pytest.approx(1, abs=0.05)
    assert outcome.samples == (1 if wrap in (statistics.median, np.median) else 30)


def test_a_timer_that_is_always_zero_fails():
    values = panel(lambda fn, flush: 0 * time.perf_counter())
    assert failures(values) == dict.fromkeys(ALL, LOW)
    assert explain(values) is None


def test_an_unknown_scenario_is_refused():
    with pytest.raises(ValueError, match="long kernel"):
        try_out(between_events, "sunshine")


# What the labs draw.


@pytest.mark.slow
def test_famous_timers_are_good_for_what_they_were_made_for():
    for name, famous in FAMOUS.items():
        values = panel(famous.timer, 1)
        assert accepts("long kernel", values["long kernel"]), name
        assert accepts("first call", values["first call"]), name  # all of them warm up
        assert accepts("dirty queue", values["dirty queue"]), name  # and synchronize
        assert famous.source
    assert not failures(panel(FAMOUS["do_bench, median"].timer, 1))
    assert failures(panel(FAMOUS["do_bench, mean"].timer, 1)) == {"outliers": HIGH}


def test_the_table_is_drawn_with_every_ratio():
    axes = plot_panels({"good": panel(between_events), "early": panel(reads_too_early)})
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == 2 * len(SCENARIOS)
    assert texts.count("error") == len(SCENARIOS)
    assert "virtual GPU" in axes.get_title()


def test_the_lab_offers_all_of_it():
    assert lab.panel is panel and lab.explain is explain and lab.VirtualGPU is VirtualGPU
