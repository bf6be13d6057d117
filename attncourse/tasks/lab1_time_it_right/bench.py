"""bench."""

import contextlib
import statistics
import time
from unittest import mock

import torch

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab import timing
from attncourse.lab.timing import LEAST_SAMPLES
from attncourse.lab.virtual_gpu import SCENARIOS, accepts, explain, panel, try_out
from attncourse.tasks.lab1_time_it_right import draw


@contextlib.contextmanager
def no_ready_made_stopwatch():
    """The package's own stopwatch refuses to work here."""

    def refuse(*_, **__):
        raise RuntimeError("this calls attncourse's own stopwatch; here the point is to write one")

    with mock.patch.object(timing, "compare", refuse):
        yield


def on_the_virtual_gpu(answer):
    """Let an answer measure kernels of known time; what it said, as plain data."""

    def tried(scenario, seed, view="ratio"):
        with no_ready_made_stopwatch():
            if view == "explained":
                return {"explained": explain(panel(answer, seed)) or "nothing"}
            outcome = try_out(answer, scenario, seed)
        error = outcome.error or ""
        if error.startswith("NotImplementedError"):
            raise NotImplementedError
        if "returned nothing (None)" in error:
            return None
        if view == "verdict":
            return {"verdict": verdict(scenario, outcome)}
        ratio = None if error else outcome.ratio
        return {"ratio": ratio, "samples": outcome.samples, "error": error}

    return tried


def verdict(scenario, outcome):
    if outcome.error:
        return f"an error: {outcome.error[:40]}"
    if accepts(scenario, outcome.ratio):
        return "right"
    return "too high" if outcome.ratio > 1 else "too low"


def trial(scenario, seed, view="ratio"):
    return {"scenario": scenario, "seed": seed, "view": view}


def bench_probes(rng):
    probes = {name: trial(name, 7, "verdict") for name in SCENARIOS if name != "slow malloc"}
    probes["all of them"] = trial("long kernel", 11, "explained")
    probes["slow malloc"] = trial("slow malloc", 7, "verdict")
    return probes


def bench_traits(answer):
    samples = answer(trial("long kernel", 7))["samples"]
    return {"one number": samples == 1, "too few samples": samples < LEAST_SAMPLES}


def near_the_truth(answer, rng, scenario):
    """Assert that a timer is right on two machines of a kind."""
    for _ in range(2):
        inputs = trial(scenario, draw(rng))
        said = answer(inputs)
        about = f"Scenario “{scenario}” ({SCENARIOS[scenario].what})"
        if said["error"]:
            raise Failure(f"{about}: your timer stopped with {said['error']}", inputs)
        least, most = SCENARIOS[scenario].accepted
        if not least <= said["ratio"] <= most:
            raise Failure(
                f"{about}: your timer says {said['ratio']:.3g} times the true time. "
                f"Right is {least:g} to {most:g}.",
                inputs,
            )


task = Task(
    reference.bench,
    number=1,
    returns=dict,
    difficulty=3,
    minutes=20,
    section="lab1-method",
    hints=(
        "Draw two lines, one for the Python program and one for the GPU. Where on them does "
        "`fn()` return, and where is its work done? Which moments do you want to note?",
        "Events are notes on the GPU's own line: `torch.cuda.Event(enable_timing=True)`, "
        "`record()` before and after, and after a `torch.cuda.synchronize()` "
        "`start.elapsed_time(end)` in milliseconds. Before all that: a warm-up of at least "
        "25 ms, in which the program waits for the GPU after every call.",
        "fn(), synchronize; until 30 ms are over: fn(), synchronize. Then 30 times: two new "
        "events; flush(); start.record(); fn(); end.record(); synchronize; append "
        "start.elapsed_time(end) / 1000. Return the list.",
    ),
    probes=bench_probes,
    small=lambda rng: iter(()),
    adapt=on_the_virtual_gpu,
    traits=bench_traits,
)


@task.check(1)
def it_returns_the_seconds_of_at_least_twenty_calls(answer, rng):
    inputs = trial("long kernel", draw(rng))
    said = answer(inputs)
    if said["error"]:
        raise Failure(f"Your timer stopped with {said['error']}", inputs)
    if said["samples"] < LEAST_SAMPLES:
        raise Failure(
            f"Your timer returned {said['samples']} number(s). Return a list with the seconds "
            f"of each call, {LEAST_SAMPLES} or more: fewer do not show their own noise.",
            inputs,
        )


@task.check(1)
def a_long_kernel_takes_as_long_as_it_takes(answer, rng):
    near_the_truth(answer, rng, "long kernel")


@task.check(1)
def a_short_kernel_does_not_drown_in_what_comes_with_it(answer, rng):
    near_the_truth(answer, rng, "short kernel")


@task.check(1)
def the_first_call_does_not_count(answer, rng):
    near_the_truth(answer, rng, "first call")


@task.check(1)
def it_waits_until_the_clock_is_up(answer, rng):
    near_the_truth(answer, rng, "waking clock")


@task.check(1)
def a_disturbed_call_moves_nothing(answer, rng):
    near_the_truth(answer, rng, "outliers")


@task.check(1)
def no_input_waits_in_the_cache(answer, rng):
    near_the_truth(answer, rng, "hot L2")


@task.check(1)
def what_was_queued_before_does_not_count(answer, rng):
    near_the_truth(answer, rng, "dirty queue")


@task.check(1)
def no_memory_is_requested_while_the_clock_runs(answer, rng):
    near_the_truth(answer, rng, "slow malloc")


# --- faults ---------------------------------------------------------------------------------------


def event():
    return torch.cuda.Event(enable_timing=True)


def warm_up(fn):
    fn()
    torch.cuda.synchronize()
    start = time.perf_counter()
    while time.perf_counter() - start < 0.03:
        fn()
        torch.cuda.synchronize()


def between_events(fn, flush, samples=30):
    warm_up(fn)
    times = []
    for _ in range(samples):
        start, end = event(), event()
        flush()
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return times


def launches_into_a_full_queue(fn, flush):
    start = time.perf_counter()
    while time.perf_counter() - start < 0.03:
        fn()
    times = []
    for _ in range(30):
        flush()
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return times


@task.fault(
    "L1-NO-SYNC",
    thinks="When fn() returns, its work is done.",
    why="On a GPU it returns when the work is queued. You timed the queueing, which takes the same "
    "few microseconds for every kernel. Something must wait for the GPU before you read a clock.",
    section="lab1-launch",
    forms=(launches_into_a_full_queue,),
)
def launches_only(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        flush()
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return times


def flush_between_the_events(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        start, end = event(), event()
        start.record()
        flush()
        fn()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return times


@task.fault(
    "L1-FLUSH-COUNTED",
    thinks="The flush stands above the line that starts the clock, or is too quick to matter.",
    why="The flush writes 256 MiB, often longer than the kernel takes. A clock of the host starts "
    "while the GPU is still at it; between two events it is counted as well.",
    section="lab1-launch",
    forms=(flush_between_the_events,),
)
def clock_started_during_the_flush(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        flush()
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


@task.fault(
    "L1-DIRTY-QUEUE",
    thinks="To wait for the GPU at the end of the loop is enough.",
    why="What was in the queue before your clock started runs on your clock: your own unfinished "
    "warm-up, and other people's work. The total of a loop also hides single disturbed calls.",
    section="lab1-launch",
)
def loop_after_a_queue(fn, flush):
    for _ in range(10):
        fn()
    start = time.perf_counter()
    for _ in range(20):
        fn()
    torch.cuda.synchronize()
    return [(time.perf_counter() - start) / 20]


@task.fault(
    "L1-COLD",
    thinks="A function takes as long as it takes, so one call is as good as any.",
    why="The very first call compiles, loads libraries and finds the clock of the GPU asleep: it "
    "can take a thousand times as long. And one number shows nothing of its own noise.",
)
def one_cold_call(fn, flush):
    flush()
    torch.cuda.synchronize()
    start = time.perf_counter()
    fn()
    torch.cuda.synchronize()
    return [time.perf_counter() - start]


@task.fault(
    "L1-WARM-UP-COUNTED",
    thinks="With thirty calls the slow first one drowns in the mean.",
    why="It does not drown: a first call of half a second adds ten milliseconds or more to each "
    "of the thirty. Calls that only warm up are not samples.",
)
def warm_up_in_the_mean(fn, flush):
    times = []
    for _ in range(30):
        flush()
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return [sum(times) / len(times)]


@task.fault(
    "L1-ONE-SAMPLE",
    thinks="After a warm-up one careful measurement is enough.",
    why="If that one call is disturbed by another program or a clock that drops, nothing shows it. "
    "Only many samples tell the usual from the accident.",
    section="lab1-median",
)
def one_warm_call(fn, flush):
    return between_events(fn, flush, samples=1)


def mean_thirty_times(fn, flush):
    return [statistics.mean(between_events(fn, flush))] * 30


@task.fault(
    "L1-MEAN",
    thinks="The fair summary of many samples is their mean.",
    why="One disturbed call in six, ten times as long, makes the mean two and a half times too "
    "large. Return every sample, so that a number that does not mind can be chosen.",
    section="lab1-median",
    forms=(mean_thirty_times,),
)
def mean_of_events(fn, flush):
    return [statistics.mean(between_events(fn, flush))]


@task.fault(
    "L1-LOOP-TOTAL",
    thinks="The total of a loop divided by its length is the time of a call.",
    why="It is a mean, so every disturbed call counts in full. And from the second turn on, the "
    "loop finds its inputs in the cache, where a real program will not find them.",
    section="lab1-median",
)
def loop_total(fn, flush):
    warm_up(fn)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(30):
        fn()
    torch.cuda.synchronize()
    return [(time.perf_counter() - start) / 30]


@task.fault(
    "L1-BLOCKS",
    thinks="A sample is the average of a block of calls; the median of blocks is robust.",
    why="With one disturbed call in six, every block has one or two, so their median is a mean in "
    "disguise. Within a block the inputs also stay in the cache.",
    section="lab1-median",
)
def averages_of_blocks(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(20):
        start, end = event(), event()
        flush()
        start.record()
        for _ in range(12):
            fn()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 12_000)
    return times


def shortest_of_a_hot_loop(fn, flush):
    times = between_events(fn, lambda: None)
    return [min(times)] * len(times)


@task.fault(
    "L1-NO-FLUSH",
    thinks="The flush only makes things slower; the time of the kernel itself does not need it.",
    why="Called again at once, the kernel finds its inputs in the L2 cache and runs up to twice as "
    "fast. In a network other layers have filled that cache in between.",
    forms=(shortest_of_a_hot_loop,),
)
def hot_loop(fn, flush):
    return between_events(fn, lambda: None)


@task.fault(
    "L1-ALLOCATION",
    thinks="To make a tensor takes no time worth mentioning.",
    why="To ask for memory can take milliseconds, and it stands between your two events. Whatever "
    "is not the function's own work has to be ready before the clock starts.",
)
def allocates_between_the_events(fn, flush):
    def with_a_new_tensor():
        torch.zeros(512, 512, device="cuda")
        fn()

    return between_events(with_a_new_tensor, flush)


@task.fault(
    "L1-MILLISECONDS",
    thinks="elapsed_time gives seconds, as the clocks of Python do.",
    why="It gives milliseconds. All your times are too large by one factor, the mark of a wrong "
    "unit: no disturbance treats all kernels alike.",
)
def milliseconds(fn, flush):
    return [1000 * seconds for seconds in between_events(fn, flush)]


@task.fault(
    "L1-NANOSECONDS",
    thinks="A clock with a finer unit gives finer seconds.",
    why="perf_counter_ns counts nanoseconds, a billion to a second. All your times are too large "
    "by that one factor.",
)
def nanoseconds(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        flush()
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        fn()
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - start)
    return times


@task.fault(
    "L1-DIVIDED-TWICE",
    thinks="Times of a GPU always have to be divided by a thousand.",
    why="Only elapsed_time speaks in milliseconds. perf_counter speaks in seconds already, so your "
    "times are all too small by one factor.",
)
def divided_twice(fn, flush):
    return [seconds / 1000 for seconds in between_events(fn, flush)]


@task.fault(
    "L1-READ-EARLY",
    thinks="Once an event is recorded it can be read.",
    why="To record an event only queues a note for the GPU to write. Until the GPU gets there, the "
    "note is blank, and torch refuses to read it.",
    section="lab1-launch",
)
def reads_too_early(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        start, end = event(), event()
        flush()
        start.record()
        fn()
        end.record()
        times.append(start.elapsed_time(end) / 1000)
    return times


@task.fault(
    "L1-EVENTS-WITHOUT-TIME",
    thinks="An event knows its time by itself.",
    why="By default it does not: events also serve to keep work in order, and are quicker without "
    "a time. Ask for the time when you make them.",
)
def events_without_time(fn, flush):
    warm_up(fn)
    times = []
    for _ in range(30):
        start, end = torch.cuda.Event(), torch.cuda.Event()
        flush()
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return times


@task.fault(
    "L1-ONE-NUMBER",
    thinks="Only the median matters, so a timer returns the median.",
    why="Who gets one number cannot see whether it is worth anything. The samples show the noise, "
    "a drift, a late start; the median is taken from them later.",
    section="lab1-median",
)
def only_the_median(fn, flush):
    return statistics.median(between_events(fn, flush))


@task.fault(
    "L1-FEW",
    thinks="Ten samples are plenty.",
    why="The times are right, but with ten samples the quartiles rest on two or three of them. "
    "The lab asks for twenty or more.",
    section="lab1-median",
)
def ten_samples(fn, flush):
    return between_events(fn, flush, samples=10)
