"""A stopwatch for a GPU, tried out on virtual ones whose true times are known."""

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


def on_the_virtual_gpu(answer):
    """Let an answer measure kernels of known time; what it said, as plain data."""

    def tried(scenario, seed, view="ratio"):
        with no_ready_made_stopwatch():
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
    if accepts(scenario, outcome.ratio):
        slow = scenario in COLD and max(outcome.each) > 1.5
        return "right, with samples of a cold start" if slow else "right"
    return "too high" if outcome.ratio > 1 else "too low"


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
    return {"one number": said["samples"] == 1, "too few samples": few, "order": said["order"]}


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
    probes=probes,
    small=lambda rng: iter(()),
    adapt=on_the_virtual_gpu,
    ready_made=(timing.compare, timing.measure),
    traits=traits,
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
    if said["order"] != "as they came":
        raise Failure(
            f"Your samples are {said['order']}. Return the seconds of each call, in the order of "
            "the calls: noise and a drift are to be seen in them.",
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


def samples(count):
    return lambda self, fn, flush: [self.one(fn, flush) for _ in range(count)]


task.fault(
    "L1-NO-SYNC",
    "When fn() returns, its work is done.",
    "On a GPU it returns when the work is queued. You timed the queueing, which takes the same few "
    "microseconds for every kernel. Something must wait for the GPU before you read a clock.",
    section=LAUNCH,
    one=(launch, launch_into_a_full_queue),
    warm_up=(..., only_queued),
)
task.fault(
    "L1-FLUSH-COUNTED",
    "The flush stands above the line that starts the clock, or is too quick to matter.",
    "The flush writes 256 MiB, often longer than the kernel takes. A clock of the host starts "
    "while the GPU is still at it; between two events it is counted as well.",
    section=LAUNCH,
    one=(clock_started_during_the_flush, flush_between_the_events),
)
task.fault(
    "L1-DIRTY-QUEUE",
    "To wait for the GPU at the end of the loop is enough.",
    "What was in the queue before your clock started runs on your clock: your own unfinished warm- "
    "up, and other people's work. The total of a loop also hides single disturbed calls.",
    section=LAUNCH,
    warm_up=ten_queued,
    collect=total(20),
)
task.fault(
    "L1-COLD",
    "A function takes as long as it takes, so one call is as good as any.",
    "The very first call compiles, loads libraries and finds the clock of the GPU asleep: it can "
    "take a thousand times as long. And one number shows nothing of its own noise.",
    warm_up=calls(0),
    collect=lambda fn, flush: [on_the_wall(fn, flush)],
)
task.fault(
    "L1-WARM-UP-COUNTED",
    "With thirty calls the slow first one drowns in the mean.",
    "It does not drown: a first call of half a second adds ten milliseconds or more to each of the "
    "thirty. Calls that only warm up are not samples.",
    warm_up=calls(0),
    results=lambda times: [statistics.mean(times)],
)
task.fault(
    "L1-ONE-SAMPLE",
    "After a warm-up one careful measurement is enough.",
    "If that one call is disturbed by another program or a clock that drops, nothing shows it. "
    "Only many samples tell the usual from the accident.",
    section=MEDIAN,
    collect=samples(1),
)
task.fault(
    "L1-MEAN",
    "The fair summary of many samples is their mean.",
    "One disturbed call in six, ten times as long, makes the mean two and a half times too large. "
    "Return every sample, so that a number that does not mind can be chosen.",
    section=MEDIAN,
    results=(lambda times: [statistics.mean(times)], lambda times: [statistics.mean(times)] * 30),
)
task.fault(
    "L1-LOOP-TOTAL",
    "The total of a loop divided by its length is the time of a call.",
    "It is a mean, so every disturbed call counts in full. And from the second turn on, the loop "
    "finds its inputs in the cache, where a real program will not find them.",
    section=MEDIAN,
    collect=loop_total,
)
task.fault(
    "L1-BLOCKS",
    "A sample is the average of a block of calls; the median of blocks is robust.",
    "With one disturbed call in six, every block has one or two, so their median is a mean in "
    "disguise. Within a block the inputs also stay in the cache.",
    section=MEDIAN,
    one=block,
)
task.fault(
    "L1-NO-FLUSH",
    "The flush only makes things slower; the time of the kernel itself does not need it.",
    "Called again at once, the kernel finds its inputs in the L2 cache and runs up to twice as "
    "fast. In a network other layers have filled that cache in between.",
    collect=hot,
    results=(..., lambda times: [min(times)] * 30),
)
task.fault(
    "L1-ALLOCATION",
    "To make a tensor takes no time worth mentioning.",
    "To ask for memory can take milliseconds, and it stands between your two events. Whatever is "
    "not the function's own work has to be ready before the clock starts.",
    collect=with_a_new_tensor,
)
task.fault(
    "L1-MILLISECONDS",
    "elapsed_time gives seconds, as the clocks of Python do.",
    "It gives milliseconds. All your times are too large by one factor, the mark of a wrong unit: "
    "no disturbance treats all kernels alike.",
    results=lambda times: [1000 * each for each in times],
)
task.fault(
    "L1-NANOSECONDS",
    "A clock with a finer unit gives finer seconds.",
    "perf_counter_ns counts nanoseconds, a billion to a second. All your times are too large by "
    "that one factor.",
    results=lambda times: [1e9 * each for each in times],
)
task.fault(
    "L1-DIVIDED-TWICE",
    "Times of a GPU always have to be divided by a thousand.",
    "Only elapsed_time speaks in milliseconds. perf_counter speaks in seconds already, so your "
    "times are all too small by one factor.",
    results=lambda times: [each / 1000 for each in times],
)
task.fault(
    "L1-READ-EARLY",
    "Once an event is recorded it can be read.",
    "To record an event only queues a note for the GPU to write. Until the GPU gets there, the "
    "note is blank, and torch refuses to read it.",
    section=LAUNCH,
    one=read_early,
)
task.fault(
    "L1-EVENTS-WITHOUT-TIME",
    "An event knows its time by itself.",
    "By default it does not: events also serve to keep work in order, and are quicker without a "
    "time. Ask for the time when you make them.",
    one=without_time,
)
task.fault(
    "L1-ONE-NUMBER",
    "Only the median matters, so a timer returns the median.",
    "Who gets one number cannot see whether it is worth anything. The samples show the noise, a "
    "drift, a late start; the median is taken from them later.",
    section=MEDIAN,
    results=statistics.median,
)
task.fault(
    "L1-FEW",
    "Ten samples are plenty.",
    "The times are right, but with ten samples the quartiles rest on two or three of them. The lab "
    "asks for twenty or more.",
    section=MEDIAN,
    collect=samples(10),
)
task.fault(
    "L1-NO-WARM-UP",
    "The median does not mind a slow first call, so nobody needs to warm up.",
    "It does not mind one. But a first call is no disturbance, and the clock of a GPU needs some "
    "20 ms of work to rise: of a short kernel that may be most of your samples.",
    warm_up=calls(0),
)
task.fault(
    "L1-SHORT-WARM-UP",
    "Three calls warm a GPU up.",
    "They load and compile. The clock of a GPU rises with work, not with calls, and needs some 20 "
    "ms of it. Warm up by time.",
    warm_up=(calls(3), calls(1)),
)
task.fault(
    "L1-SAME-NUMBER",
    "The best time, or the median, is what counts, so I return that one for every call.",
    "Whoever gets one number thirty times cannot see whether it is worth anything: noise, a drift "
    "and a late start are gone. Return every sample as it came.",
    section=MEDIAN,
    results=(lambda times: [min(times)] * 30, lambda times: [statistics.median(times)] * 30),
)
task.fault(
    "L1-SORTED",
    "Samples are tidier in order of size.",
    "The order in which they came tells whether the machine was still warming up, or slowed down "
    "as it heated. Who needs them in order of size can sort a copy.",
    section=MEDIAN,
    results=sorted,
)
