import contextlib
import statistics
import time
import types
from unittest import mock

import torch

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab import stopwatches, timing
from attncourse.lab.stopwatches import SCENARIOS, accepts, panel, try_out
from attncourse.lab.timing import LEAST_SAMPLES
from attncourse.lab.virtual_gpu import VirtualGPU
from attncourse.tasks.lab1_time_it_right import draw


def copied(module):
    """A module's functions for the judge: they stay where those of the module are withheld."""
    own = dict(vars(module))
    for name, each in vars(module).items():
        if isinstance(each, types.FunctionType):
            own[name] = types.FunctionType(each.__code__, own, name, each.__defaults__)
    return own


EXPLAIN = copied(stopwatches)["explain"]


@contextlib.contextmanager
def no_ready_made_stopwatch():
    """The package's own stopwatch refuses to work here."""

    def refuse(*_, **__):
        raise RuntimeError("this calls attncourse's own stopwatch; here the point is to write one")

    with mock.patch.object(timing, "compare", refuse):
        yield


@contextlib.contextmanager
def counted_flushes():
    """The flushes of all virtual GPUs, as a list that grows."""
    found, flush = [], VirtualGPU.flush

    def counted(self):
        found.append(self)
        return flush(self)

    with mock.patch.object(VirtualGPU, "flush", counted):
        yield found


def on_the_virtual_gpu(answer):
    """Let an answer measure kernels of known time; what it said, as plain data."""

    def tried(scenario, seed, view="ratio"):
        with no_ready_made_stopwatch(), counted_flushes() as flushes:
            outcome = try_out(answer, scenario, seed)
            explained = EXPLAIN(panel(answer, seed)) if view == "explained" else None
        error = outcome.error or ""
        if error.startswith("NotImplementedError"):
            raise NotImplementedError
        if "returned nothing (None)" in error:
            return None
        if view == "explained":
            return {"explained": explained or "nothing"}
        if view == "verdict":
            return {"verdict": verdict(scenario, outcome)}
        ratio = None if error else outcome.ratio
        said = {"ratio": ratio, "samples": outcome.samples, "error": error}
        said |= {"flushes": len(flushes)}
        return said | {"slowest": max(outcome.each, default=None), "order": order(outcome.each)}

    return tried


def order(samples):
    """How the samples lie; those of a real clock lie in no order."""
    if len(samples) > 2 and len(set(samples)) == 1:
        return "all alike"
    return "sorted" if len(samples) > 9 and list(samples) == sorted(samples) else "as they came"


COLD = ("first call", "waking clock")  # whoever warmed up has no slow sample here


def verdict(scenario, outcome):
    if outcome.error:
        return f"an error: {outcome.error[:40]}"
    # in whatever unit the samples are
    slow = scenario in COLD and max(outcome.each) > 1.5 * statistics.median(outcome.each)
    cold = ", with samples of a cold start" if slow else ""
    if accepts(scenario, outcome.ratio):
        return "right" + cold
    return ("too high" if outcome.ratio > 1 else "too low") + cold


def trial(scenario, seed, view="ratio"):
    return {"scenario": scenario, "seed": seed, "view": view}


def probes(rng):
    found = {name: trial(name, 7, "verdict") for name in SCENARIOS if name != "slow malloc"}
    found["all of them"] = trial("long kernel", 11, "explained")
    found["slow malloc"] = trial("slow malloc", 7, "verdict")
    return found


def traits(answer):
    said = answer(trial("long kernel", 7))
    few = said["samples"] < LEAST_SAMPLES
    return {
        "one number": said["samples"] == 1,
        "too few samples": few,
        "order": said["order"],
        "a flush for each sample": said["flushes"] >= said["samples"],
    }


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
        if scenario in COLD and said["slowest"] > 1.5:
            raise Failure(
                f"{about}: the slowest of your samples is {said['slowest']:.3g} times the true "
                "time. Whatever only warms up is no sample: warm up for 25 ms or more first.",
                inputs,
            )


task = Task(
    reference.bench,
    number=1,
    returns=dict,
    difficulty=3,
    minutes=20,
    section="lab1-method",
    probes=probes,
    small=lambda rng: iter(()),
    adapt=on_the_virtual_gpu,
    ready_made=(timing.compare, timing.measure),
    traits=traits,
)


@task.check(1)
def it_returns_at_least_twenty_samples_that_scatter_in_the_order_of_the_calls(answer, rng):
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
    if said["order"] == "all alike":
        raise Failure(
            "Your samples are all alike, and those of real calls never are: noise and a drift are "
            "to be seen in them. Is each the time of one call, up to its end?",
            inputs,
        )
    if said["order"] != "as they came":
        raise Failure(
            f"Your samples are {said['order']}. Return the seconds of each call, in the order of "
            "the calls: noise and a drift are to be seen in them.",
            inputs,
        )


@task.check(1)
def it_is_right_about_a_long_kernel(answer, rng):
    near_the_truth(answer, rng, "long kernel")


@task.check(1)
def it_is_right_about_a_short_kernel(answer, rng):
    near_the_truth(answer, rng, "short kernel")


@task.check(1)
def it_is_right_where_the_first_call_is_slow(answer, rng):
    near_the_truth(answer, rng, "first call")


@task.check(1)
def it_is_right_where_the_clock_has_to_wake_up(answer, rng):
    near_the_truth(answer, rng, "waking clock")


@task.check(1)
def it_is_right_where_calls_are_disturbed(answer, rng):
    near_the_truth(answer, rng, "outliers")


@task.check(1)
def it_is_right_where_inputs_wait_in_the_cache(answer, rng):
    near_the_truth(answer, rng, "hot L2")


@task.check(1)
def it_is_right_where_the_queue_is_not_empty(answer, rng):
    near_the_truth(answer, rng, "dirty queue")


@task.check(1)
def it_is_right_where_memory_comes_slowly(answer, rng):
    near_the_truth(answer, rng, "slow malloc")


# --- the reference in steps ---------------------------------------------------------------------


def event():
    return torch.cuda.Event(enable_timing=True)


def between_events(fn, flush):
    start, end = event(), event()
    flush()
    start.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def from_the_end(fn, flush):
    return -between_events(fn, flush)


def on_the_wall(fn, flush, clock=time.perf_counter):
    flush()
    torch.cuda.synchronize()
    start = clock()
    fn()
    torch.cuda.synchronize()
    return clock() - start


@task.steps
class Stopwatch:
    def warm_up(fn):
        fn()
        torch.cuda.synchronize()
        start = time.perf_counter()
        while time.perf_counter() - start < 0.03:
            fn()
            torch.cuda.synchronize()

    def one(fn, flush):
        return between_events(fn, flush)

    def collect(self, fn, flush):
        return [self.one(fn, flush) for _ in range(30)]

    def results(times):
        return times

    def __call__(self, fn, flush):
        self.warm_up(fn)
        return self.results(self.collect(fn, flush))


task.spelling(one=lambda fn, flush: on_the_wall(fn, flush))

# --- faults -------------------------------------------------------------------------------------

LAUNCH, MEDIAN = "lab1-launch", "lab1-median"


def only_queued(fn):
    start = time.perf_counter()
    while time.perf_counter() - start < 0.03:
        fn()


def calls(count):
    """A warm-up of so many calls."""

    def warm_up(fn):
        for _ in range(count):
            fn()
            torch.cuda.synchronize()

    return warm_up


def launch(fn, flush):
    flush()
    torch.cuda.synchronize()
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def launch_into_a_full_queue(fn, flush):
    flush()
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def clock_started_during_the_flush(fn, flush):
    flush()
    start = time.perf_counter()
    fn()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def flush_between_the_events(fn, flush):
    start, end = event(), event()
    start.record()
    flush()
    fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def total(count):
    """The mean of a loop."""

    def collect(fn, flush):
        start = time.perf_counter()
        for _ in range(count):
            fn()
        torch.cuda.synchronize()
        return [(time.perf_counter() - start) / count]

    return collect


def loop_total(fn, flush):
    torch.cuda.synchronize()
    return total(30)(fn, flush)


def ten_queued(fn):
    for _ in range(10):
        fn()


def block(fn, flush):
    def twelve():
        for _ in range(12):
            fn()

    return between_events(twelve, flush) / 12


def with_a_new_tensor(self, fn, flush):
    def wasteful():
        torch.zeros(512, 512, device="cuda")
        fn()

    return [self.one(wasteful, flush) for _ in range(30)]


def read_early(fn, flush):
    start, end = event(), event()
    flush()
    start.record()
    fn()
    end.record()
    return start.elapsed_time(end) / 1000


def without_time(fn, flush):
    start, end = torch.cuda.Event(), torch.cuda.Event()
    flush()
    start.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def hot(self, fn, flush):
    return [self.one(fn, lambda: None) for _ in range(30)]


def one_flush(self, fn, flush):
    flush()
    return hot(self, fn, flush)


def in_units(factor):
    """Samples in another unit; two units are no two mistakes."""
    return lambda times: [factor * each for each in times]


def samples(count):
    return lambda self, fn, flush: [self.one(fn, flush) for _ in range(count)]


task.fault(
    "L1-NO-SYNC", section=LAUNCH, one=(launch, launch_into_a_full_queue), warm_up=(..., only_queued)
)
task.fault(
    "L1-FLUSH-COUNTED",
    section=LAUNCH,
    one=(clock_started_during_the_flush, flush_between_the_events),
)
task.fault("L1-DIRTY-QUEUE", section=LAUNCH, warm_up=ten_queued, collect=total(20))
task.fault("L1-COLD", warm_up=calls(0), collect=lambda fn, flush: [on_the_wall(fn, flush)])
task.fault("L1-WARM-UP-COUNTED", warm_up=calls(0), results=lambda times: [statistics.mean(times)])
task.fault("L1-ONE-SAMPLE", section=MEDIAN, collect=samples(1))
task.fault(
    "L1-MEAN",
    section=MEDIAN,
    results=(lambda times: [statistics.mean(times)], lambda times: [statistics.mean(times)] * 30),
)
task.fault(
    "L1-LOOP-TOTAL",
    section=MEDIAN,
    collect=loop_total,
    results=(..., lambda times: 30 * times),
)
task.fault("L1-BLOCKS", section=MEDIAN, one=block)
task.fault(
    "L1-NO-FLUSH",
    collect=(hot, one_flush),
)
task.fault("L1-ALLOCATION", collect=with_a_new_tensor)
task.fault("L1-MILLISECONDS", results=in_units(1e3))
task.fault("L1-MICROSECONDS", results=in_units(1e6))
task.fault("L1-NANOSECONDS", results=in_units(1e9))
task.fault("L1-DIVIDED-TWICE", results=in_units(1e-3))
task.fault("L1-EVENTS-REVERSED", one=from_the_end)
task.fault("L1-READ-EARLY", section=LAUNCH, one=read_early)
task.fault("L1-EVENTS-WITHOUT-TIME", one=without_time)
task.fault("L1-ONE-NUMBER", section=MEDIAN, results=statistics.median)
task.fault("L1-FEW", section=MEDIAN, collect=samples(10))
task.fault("L1-NO-WARM-UP", warm_up=calls(0))
task.fault("L1-SHORT-WARM-UP", warm_up=(calls(3), calls(1)))
task.fault(
    "L1-SAME-NUMBER",
    section=MEDIAN,
    results=(lambda times: [min(times)] * 30, lambda times: [statistics.median(times)] * 30),
)
task.fault("L1-SORTED", section=MEDIAN, results=sorted)
