"""Wrong answers of lab 1, all with ids L1-…: the mistakes that stopwatches for GPUs are known for.

Each function below differs from a right answer in one thought. Everything else about it is right,
so that the judge can recognize that thought.
"""

import functools
import statistics
import time

import torch

from attncourse.lab.receipts import encode
from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- bench --------------------------------------------------------------------------------------

BENCH = "bench"


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


@wrong(
    "L1-NO-SYNC",
    BENCH,
    thinks="When fn() returns, its work is done.",
    why="On a GPU it returns when the work is queued. You timed the queueing, which takes the same "
    "few microseconds for every kernel. Something must wait for the GPU before you read a clock.",
    section="lab1-launch",
    variants=(launches_into_a_full_queue,),
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


@wrong(
    "L1-FLUSH-COUNTED",
    BENCH,
    thinks="The flush stands above the line that starts the clock, or is too quick to matter.",
    why="The flush writes 256 MiB, often longer than the kernel takes. A clock of the host starts "
    "while the GPU is still at it; between two events it is counted as well.",
    section="lab1-launch",
    variants=(flush_between_the_events,),
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


@wrong(
    "L1-DIRTY-QUEUE",
    BENCH,
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


@wrong(
    "L1-COLD",
    BENCH,
    thinks="A function takes as long as it takes, so one call is as good as any.",
    why="The very first call compiles, loads libraries and finds the clock of the GPU asleep: it "
    "can take a thousand times as long. And one number shows nothing of its own noise.",
    section="lab1-method",
)
def one_cold_call(fn, flush):
    flush()
    torch.cuda.synchronize()
    start = time.perf_counter()
    fn()
    torch.cuda.synchronize()
    return [time.perf_counter() - start]


@wrong(
    "L1-WARM-UP-COUNTED",
    BENCH,
    thinks="With thirty calls the slow first one drowns in the mean.",
    why="It does not drown: a first call of half a second adds ten milliseconds or more to each "
    "of the thirty. Calls that only warm up are not samples.",
    section="lab1-method",
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


@wrong(
    "L1-ONE-SAMPLE",
    BENCH,
    thinks="After a warm-up one careful measurement is enough.",
    why="If that one call is disturbed by another program or a clock that drops, nothing shows it. "
    "Only many samples tell the usual from the accident.",
    section="lab1-median",
)
def one_warm_call(fn, flush):
    return between_events(fn, flush, samples=1)


def mean_thirty_times(fn, flush):
    return [statistics.mean(between_events(fn, flush))] * 30


@wrong(
    "L1-MEAN",
    BENCH,
    thinks="The fair summary of many samples is their mean.",
    why="One disturbed call in six, ten times as long, makes the mean two and a half times too "
    "large. Return every sample, so that a number that does not mind can be chosen.",
    section="lab1-median",
    variants=(mean_thirty_times,),
)
def mean_of_events(fn, flush):
    return [statistics.mean(between_events(fn, flush))]


@wrong(
    "L1-LOOP-TOTAL",
    BENCH,
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


@wrong(
    "L1-BLOCKS",
    BENCH,
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


@wrong(
    "L1-NO-FLUSH",
    BENCH,
    thinks="The flush only makes things slower; the time of the kernel itself does not need it.",
    why="Called again at once, the kernel finds its inputs in the L2 cache and runs up to twice as "
    "fast. In a network other layers have filled that cache in between.",
    section="lab1-method",
    variants=(shortest_of_a_hot_loop,),
)
def hot_loop(fn, flush):
    return between_events(fn, lambda: None)


@wrong(
    "L1-ALLOCATION",
    BENCH,
    thinks="To make a tensor takes no time worth mentioning.",
    why="To ask for memory can take milliseconds, and it stands between your two events. Whatever "
    "is not the function's own work has to be ready before the clock starts.",
    section="lab1-method",
)
def allocates_between_the_events(fn, flush):
    def with_a_new_tensor():
        torch.zeros(512, 512, device="cuda")
        fn()

    return between_events(with_a_new_tensor, flush)


def microseconds(fn, flush):
    return [1e6 * seconds for seconds in between_events(fn, flush)]


@wrong(
    "L1-MILLISECONDS",
    BENCH,
    thinks="elapsed_time gives seconds, as the clocks of Python do.",
    why="It gives milliseconds. All your times are too large by one factor, the mark of a wrong "
    "unit: no disturbance treats all kernels alike.",
    section="lab1-method",
)
def milliseconds(fn, flush):
    return [1000 * seconds for seconds in between_events(fn, flush)]


@wrong(
    "L1-NANOSECONDS",
    BENCH,
    thinks="A clock with a finer unit gives finer seconds.",
    why="perf_counter_ns counts nanoseconds, a billion to a second. All your times are too large "
    "by that one factor.",
    section="lab1-method",
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


@wrong(
    "L1-DIVIDED-TWICE",
    BENCH,
    thinks="Times of a GPU always have to be divided by a thousand.",
    why="Only elapsed_time speaks in milliseconds. perf_counter speaks in seconds already, so your "
    "times are all too small by one factor.",
    section="lab1-method",
)
def divided_twice(fn, flush):
    return [seconds / 1000 for seconds in between_events(fn, flush)]


@wrong(
    "L1-READ-EARLY",
    BENCH,
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


@wrong(
    "L1-EVENTS-WITHOUT-TIME",
    BENCH,
    thinks="An event knows its time by itself.",
    why="By default it does not: events also serve to keep work in order, and are quicker without "
    "a time. Ask for the time when you make them.",
    section="lab1-method",
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


@wrong(
    "L1-ONE-NUMBER",
    BENCH,
    thinks="Only the median matters, so a timer returns the median.",
    why="Who gets one number cannot see whether it is worth anything. The samples show the noise, "
    "a drift, a late start; the median is taken from them later.",
    section="lab1-median",
)
def only_the_median(fn, flush):
    return statistics.median(between_events(fn, flush))


@wrong(
    "L1-FEW",
    BENCH,
    thinks="Ten samples are plenty.",
    why="The times are right, but with ten samples the quartiles rest on two or three of them. "
    "The lab asks for twenty or more.",
    section="lab1-median",
)
def ten_samples(fn, flush):
    return between_events(fn, flush, samples=10)


# --- summarize ----------------------------------------------------------------------------------

SUMMARY = "summarize"


def pair(samples, middle=None, spread=None):
    low, half, high = statistics.quantiles(samples, n=4, method="inclusive")
    return half if middle is None else middle, high - low if spread is None else spread


@wrong(
    "L1-SUMMARY-MEAN",
    SUMMARY,
    thinks="The middle of some samples is their mean.",
    why="The mean follows every accident: one sample of 80 among fives moves it far above all the "
    "others. In the middle of the ordered samples stands another number.",
    section="lab1-median",
)
def mean_for_median(samples):
    return pair(samples, middle=sum(samples) / len(samples))


@wrong(
    "L1-SUMMARY-BEST",
    SUMMARY,
    thinks="The honest number is the shortest time.",
    why="That is a fine number for a CPU, where disturbances only ever make things slower. On a "
    "GPU the clock moves both ways, and here the median was asked for.",
    section="lab1-median",
)
def best_for_median(samples):
    return pair(samples, middle=min(samples))


@wrong(
    "L1-SUMMARY-UPPER",
    SUMMARY,
    thinks="The median is the sample at place n // 2.",
    why="For an odd number of samples it is. For an even number two samples stand in the middle, "
    "and the median lies halfway between them.",
    section="lab1-median",
)
def upper_of_the_middle_two(samples):
    return pair(samples, middle=sorted(samples)[len(samples) // 2])


@wrong(
    "L1-SUMMARY-UNSORTED",
    SUMMARY,
    thinks="The sample in the middle of the list is the median.",
    why="The list is in the order in which the calls were made. A place has a meaning only once "
    "the samples are in order of size.",
    section="lab1-median",
)
def middle_of_the_list(samples):
    n = len(samples)
    return pair(samples, middle=(samples[(n - 1) // 2] + samples[n // 2]) / 2)


@wrong(
    "L1-SUMMARY-DEVIATION",
    SUMMARY,
    thinks="The spread of samples is their standard deviation.",
    why="It squares distances, so one accident outweighs all other samples together. The span of "
    "the middle half does not notice accidents at all.",
    section="lab1-median",
    variants=(lambda samples: pair(samples, spread=statistics.pstdev(samples)),),
)
def standard_deviation(samples):
    return pair(samples, spread=statistics.stdev(samples))


@wrong(
    "L1-SUMMARY-RANGE",
    SUMMARY,
    thinks="The spread is the distance of the slowest from the fastest.",
    why="Those two are the accidents. The more samples you take, the larger this span grows, "
    "although the machine has not become any noisier.",
    section="lab1-median",
)
def full_range(samples):
    return pair(samples, spread=max(samples) - min(samples))


@wrong(
    "L1-SUMMARY-EXCLUSIVE",
    SUMMARY,
    thinks="There is only one way to place a quartile between two samples.",
    why="There are nine in textbooks. You used places that count from n + 1, the default of "
    "Python's statistics; the task counts from n − 1, as numpy and torch do.",
    section="lab1-median",
)
def exclusive_quartiles(samples):
    low, _, high = statistics.quantiles(samples, n=4)
    return pair(samples, spread=high - low)


@wrong(
    "L1-SUMMARY-QUARTILE",
    SUMMARY,
    thinks="The interquartile range is the upper quartile.",
    why="A quartile is a place on the scale; a range is a distance between two places. Add a "
    "constant to all samples, and a range must stay as it is.",
    section="lab1-median",
)
def upper_quartile(samples):
    return pair(samples, spread=statistics.quantiles(samples, n=4, method="inclusive")[2])


# --- make_inputs --------------------------------------------------------------------------------

INPUTS = "make_inputs"


def own(seed):
    return torch.Generator().manual_seed(seed)


@wrong(
    "L1-INPUTS-ZEROS",
    INPUTS,
    thinks="What the numbers are makes no difference to the time.",
    why="A chip that flips fewer bits draws less power, so at its power limit it runs faster on "
    "zeros or ones. And with such inputs you could not check a result.",
    section="lab1-inputs",
    variants=(lambda b, h, n, d, seed: [torch.ones(b, h, n, d)] * 3,),
)
def zeros(b, h, n, d, seed):
    return tuple(torch.zeros(3, b, h, n, d))


@wrong(
    "L1-INPUTS-UNIFORM",
    INPUTS,
    thinks="torch.rand is torch's random tensor.",
    why="Its numbers are spread evenly between 0 and 1, none below zero, so that all scores come "
    "out large and alike. Queries and keys of a network are spread around zero.",
    section="lab1-inputs",
)
def uniform(b, h, n, d, seed):
    return tuple(torch.rand(3, b, h, n, d, generator=own(seed)))


@wrong(
    "L1-INPUTS-ALIKE",
    INPUTS,
    thinks="Each of the three tensors needs the seed.",
    why="With the same seed for each, query, key and value are one tensor three times. Every "
    "word then fits itself best, which no network does.",
    section="lab1-inputs",
)
def three_times_the_same(b, h, n, d, seed):
    return tuple(torch.randn(b, h, n, d, generator=own(seed)) for _ in range(3))


@wrong(
    "L1-INPUTS-GLOBAL-SEED",
    INPUTS,
    thinks="torch.manual_seed is how one gets reproducible numbers.",
    why="It resets the generator that everybody draws from. Whoever trains or samples in the same "
    "notebook gets other numbers because of you.",
    section="lab1-inputs",
)
def global_seed(b, h, n, d, seed):
    torch.manual_seed(seed)
    return tuple(torch.randn(3, b, h, n, d))


@wrong(
    "L1-INPUTS-NO-SEED",
    INPUTS,
    thinks="Random is random; the seed is a formality.",
    why="Then nobody can repeat your measurement on the same numbers, you included, and what "
    "others draw afterward depends on you.",
    section="lab1-inputs",
)
def no_seed(b, h, n, d, seed):
    return tuple(torch.randn(3, b, h, n, d))


@wrong(
    "L1-INPUTS-FIXED-SEED",
    INPUTS,
    thinks="A fixed seed of my own makes it reproducible.",
    why="It does, but the caller's seed is ignored: two measurements that should be independent "
    "get the same numbers.",
    section="lab1-inputs",
)
def fixed_seed(b, h, n, d, seed):
    return tuple(torch.randn(3, b, h, n, d, generator=own(0)))


@wrong(
    "L1-INPUTS-AXES",
    INPUTS,
    thinks="The heads come right before the width, as they do after a projection.",
    why="Attention over (b n h d) takes each word's heads for positions: other work, and another "
    "time. Here the axes are b h n d.",
    section="lab1-inputs",
)
def heads_after_positions(b, h, n, d, seed):
    return tuple(torch.randn(3, b, n, h, d, generator=own(seed)))


@wrong(
    "L1-INPUTS-EXPANDED",
    INPUTS,
    thinks="One head, stretched over all of them, saves memory and is as good.",
    why="All heads then read the same numbers from memory, and a cache serves them all. You would "
    "time a smaller problem than you say.",
    section="lab1-inputs",
)
def one_sentence_stretched(b, h, n, d, seed):
    return tuple(
        each.expand(b, h, n, d) for each in torch.randn(3, 1, 1, n, d, generator=own(seed))
    )


@wrong(
    "L1-INPUTS-DOUBLE",
    INPUTS,
    thinks="More digits are safer.",
    why="float64 moves twice the bytes of float32, and many GPUs compute it 32 times slower or "
    "worse. Nobody runs attention in it.",
    section="lab1-inputs",
)
def double(b, h, n, d, seed):
    return tuple(torch.randn(3, b, h, n, d, generator=own(seed), dtype=torch.float64))


# --- name_the_mistake ---------------------------------------------------------------------------

NAME = "name_the_mistake"


def right_name(ratios, skip=()):
    low, high = min(ratios.values()), max(ratios.values())
    rules = {
        "wrong unit": high < 10 * low and not 0.1 < low < 10,
        "no synchronize": ratios["long kernel"] < 0.5,
        "first call counted": ratios["first call"] > 3,
        "earlier work counted": ratios["short kernel"] > 3 or ratios["dirty queue"] > 3,
        "allocation inside": ratios["slow malloc"] > 1.5,
        "hot cache": ratios["hot L2"] < 0.8,
        "single sample": ratios["outliers"] > 4,
        "mean": ratios["outliers"] > 1.3,
    }
    return next((name for name, holds in rules.items() if holds and name not in skip), "none")


@wrong(
    "L1-NAME-TOO-STRICT",
    NAME,
    thinks="An honest timer is within a tenth of the truth in every scenario.",
    why="A kernel of 25 microseconds is over before the host is done talking. A host's clock sees "
    "up to twice its time, and nobody is to blame.",
    section="lab1-signatures",
)
def short_kernels_are_suspicious(ratios):
    name = right_name(ratios)
    suspicious = 1.1 < ratios["short kernel"] < 3 and name == "none"
    return "earlier work counted" if suspicious else name


@wrong(
    "L1-NAME-UNIT-MISSED",
    NAME,
    thinks="Far too small times always come from a missing synchronize.",
    why="Without a wait, each scenario is off by a factor of its own, since a launch takes the "
    "same time for every kernel. Off by one factor everywhere means something else.",
    section="lab1-signatures",
)
def small_is_no_synchronize(ratios):
    return "no synchronize" if max(ratios.values()) < 0.5 else right_name(ratios)


@wrong(
    "L1-NAME-OUTLIERS-FIRST",
    NAME,
    thinks="As soon as the outliers are too high, it is a mean or a single sample.",
    why="Other mistakes raise that entry, too: a counted first call, a counted flush. The entry "
    "that stands out most names the mistake.",
    section="lab1-signatures",
)
def outliers_first(ratios):
    unit = right_name(ratios)
    if unit in ("wrong unit", "no synchronize") or ratios["outliers"] < 1.3:
        return unit
    return "single sample" if ratios["outliers"] > 4 else "mean"


@wrong(
    "L1-NAME-ALLOCATION-FIRST",
    NAME,
    thinks="If the slow malloc is too high, memory is allocated inside.",
    why="A flush in the timed span is there in every scenario, the one with slow malloc included. "
    "Look at the short kernel before you decide.",
    section="lab1-signatures",
)
def allocation_first(ratios):
    name = right_name(ratios)
    if name == "earlier work counted" and ratios["slow malloc"] > 1.1:
        return "allocation inside"
    return name


@wrong(
    "L1-NAME-QUEUE-ONLY",
    NAME,
    thinks="Earlier work shows in the scenario with a dirty queue, and only there.",
    why="A warm-up that waits has emptied that queue. What is counted then is the flush, and it "
    "weighs most where the kernel is shortest.",
    section="lab1-signatures",
)
def only_the_dirty_queue(ratios):
    name = right_name(ratios, skip=("earlier work counted",))
    return "earlier work counted" if ratios["dirty queue"] > 3 and name != "wrong unit" else name


@wrong(
    "L1-NAME-ONE-SIDE",
    NAME,
    thinks="A wrong timer is always too slow.",
    why="An input that waits in the cache makes a kernel faster than your program will ever see "
    "it. A ratio below one is as wrong as one above.",
    section="lab1-signatures",
)
def too_low_is_fine(ratios):
    return right_name(ratios, skip=("hot cache",))


@wrong(
    "L1-NAME-SINGLE-OR-MEAN",
    NAME,
    thinks="Outliers that are too high mean a mean.",
    why="A mean dilutes one disturbed call in six to a factor below three. A single sample can be "
    "the disturbed call itself, with its whole factor of five to ten.",
    section="lab1-signatures",
)
def always_a_mean(ratios):
    return right_name(ratios, skip=("single sample",))


@wrong(
    "L1-NAME-LARGE-UNIT",
    NAME,
    thinks="A wrong unit is a factor of a thousand.",
    why="It can be: milliseconds. It can also be a million or a billion, and go the other way. "
    "What marks a unit is that the factor is the same everywhere.",
    section="lab1-signatures",
)
def only_milliseconds(ratios):
    name = right_name(ratios)
    if name != "wrong unit" or 300 < ratios["long kernel"] < 3000:
        return name
    return right_name(ratios, skip=("wrong unit",))


# --- lab1_receipt -------------------------------------------------------------------------------

RECEIPT = "lab1_receipt"


def some_times(seconds, count=24):
    """Times that scatter like measured ones."""
    own = torch.Generator().manual_seed(int(1e7 * seconds) + count)
    scatter = torch.rand(count, generator=own, dtype=torch.float64) ** 4
    return [round(seconds * (1 + 0.05 * each), 9) for each in scatter.tolist()]


def some_record(
    lab="lab1_time_it_right", early=True, count=24, roof=6e10, kinds=("product", "copy"), speed=1
):
    """A record as this lab writes it, of a CPU with 60 GFLOP/s and 10 GB/s, or with one fault."""
    machine = {
        "device": "cpu", "name": "some CPU", "capability": None, "memory_bytes": 2**34,
        "l2_bytes": None, "threads": 1, "torch": "2.13.0+cpu", "python": "3.13.1", "cuda": None,
        "label": "CPU, 1 thread", "precision": "highest",
        "ceilings": {"flops_per_second": {"float32": roof}, "bytes_per_second": 1e10},
    }  # fmt: skip
    made = {"value": [0, -1, 1], "at": 0.5, "session": 1, "points": 0 if early else 6}
    points = []
    for kind in kinds:
        for n in (256, 512, 1024) if kind == "product" else (2**20, 2**24, 2**27):
            key, work = ("flops", 2 * n**3) if kind == "product" else ("bytes", 2 * n)
            rate = 6e10 * speed if kind == "product" else 1e10
            points.append({
                "name": kind, "n": n, "dtype": "float32", "clock": "cpu", "session": 1,
                "seconds": some_times(work / rate, count), key: work,
            })  # fmt: skip
    predictions = {} if early is None else {"timers": made}
    return {"lab": lab, "machine": machine, "predictions": predictions, "points": points}


@functools.cache
def some_receipt(**changes):
    return encode(some_record(**changes))


@wrong(
    "L1-RECEIPT-CUT",
    RECEIPT,
    thinks="The first line of the receipt is the receipt.",
    why="A receipt is one long text, broken into lines for the eye. Its own checksum says that "
    "characters are missing; copy all lines.",
    section="lab1-receipt",
)
def first_line_only():
    return some_receipt()[:76]


@wrong(
    "L1-RECEIPT-FILE",
    RECEIPT,
    thinks="The name of the file is enough; the rest can be looked up there.",
    why="The file lies on your machine, or in a Colab session that is gone tomorrow. What you hand "
    "in is the text that holds the samples.",
    section="lab1-receipt",
)
def name_of_the_file():
    return "lab1_time_it_right.CPU-1-thread-torch-2.13.0.jsonl"


@wrong(
    "L1-RECEIPT-OTHER",
    RECEIPT,
    thinks="A receipt is a receipt.",
    why="This one is of another lab, with other questions. Each lab prints its own at the end of "
    "its measurements.",
    section="lab1-receipt",
)
def of_another_lab():
    return some_receipt(lab="lab2_quadratic_wall")


@wrong(
    "L1-RECEIPT-NO-PREDICTION",
    RECEIPT,
    thinks="A prediction that may be wrong is better left out.",
    why="A wrong prediction costs no points, and a surprise is what one remembers. Without one, "
    "there is nothing that the measurement could surprise.",
    section="lab1-receipt",
)
def without_a_prediction():
    return some_receipt(early=None)


@wrong(
    "L1-RECEIPT-LATE",
    RECEIPT,
    thinks="The prediction can be filled in when the results are there.",
    why="Then it is no prediction. The record notes how many points had been measured, and it was "
    "more than none.",
    section="lab1-receipt",
)
def predicted_afterward():
    return some_receipt(early=False)


@wrong(
    "L1-RECEIPT-ONCE",
    RECEIPT,
    thinks="One sample for each size is enough for a roof.",
    why="A roof is a claim about what a machine can do. With one sample nobody can tell it from an "
    "accident.",
    section="lab1-receipt",
)
def one_sample_each():
    return some_receipt(count=1)


@wrong(
    "L1-RECEIPT-HALF",
    RECEIPT,
    thinks="The products are the interesting part.",
    why="A machine has two roofs, one for arithmetic and one for memory. Much of attention is "
    "bound by the second, so the copies are needed, too.",
    section="lab1-roofs",
)
def products_only():
    return some_receipt(kinds=("product",))


@wrong(
    "L1-RECEIPT-SHEET",
    RECEIPT,
    thinks="The roof of a machine is written in its data sheet.",
    why="That is what the chip could do in theory. Limits on power and heat keep real machines "
    "below, often far below, so a roof is measured, in the same session.",
    section="lab1-roofs",
)
def roof_from_a_data_sheet():
    return some_receipt(roof=2e11)


@wrong(
    "L1-RECEIPT-LAUNCHES",
    RECEIPT,
    thinks="A very fast machine is good news.",
    why="No machine of this kind computes that fast. A clock that stops before the work is done "
    "gives such numbers, and so does a wrong unit.",
    section="lab1-receipt",
)
def faster_than_any_machine():
    return some_receipt(speed=1e4, roof=6e14)
