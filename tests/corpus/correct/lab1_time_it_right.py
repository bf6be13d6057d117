"""Right answers in many styles: the judge must accept every one of them, on every seed."""

import statistics
import time
import time as t
from time import perf_counter, perf_counter_ns

import numpy as np
import torch
from torch.cuda import Event

from attncourse.lab.receipts import encode, wrap
from attncourse.tasks import made_up
from attncourse.tasks.lab1_time_it_right.lab1_receipt import a_record

# --- bench


def event():
    return torch.cuda.Event(enable_timing=True)


def warm_up(fn, seconds=0.03):
    fn()
    torch.cuda.synchronize()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
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


def one_synchronize_at_the_end(fn, flush):
    warm_up(fn)
    pairs = [(event(), event()) for _ in range(50)]
    for start, end in pairs:
        flush()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return torch.tensor([start.elapsed_time(end) for start, end in pairs]) / 1000


def wait_for_the_event(fn, flush):
    warm_up(fn)
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    times = []
    for _ in range(40):
        flush()
        start.record()
        fn()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
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
    for _ in range(25):
        flush()
        torch.cuda.synchronize()
        start = perf_counter_ns()
        fn()
        torch.cuda.synchronize()
        times.append((perf_counter_ns() - start) / 1e9)
    return tuple(times)


def monotonic_clock(fn, flush):
    return np.array(wall_clock(fn, flush, t.monotonic))


def many_calls_to_warm_up(fn, flush):
    for _ in range(100):
        fn()
    torch.cuda.synchronize()
    times = []
    while len(times) < 20:
        start, end = event(), event()
        flush()
        torch.cuda.synchronize()
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        times += [start.elapsed_time(end) / 1e3]
    return times


def buffer_of_its_own(fn, flush):
    cache = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    return between_events(fn, cache.zero_)


def with_helpers_inside(fn, flush):
    def once():
        flush()
        torch.cuda.current_stream().synchronize()
        before = perf_counter()
        fn()
        torch.cuda.current_stream().synchronize()
        return perf_counter() - before

    stop = perf_counter() + 0.05
    while perf_counter() < stop:
        once()
    return [once() for _ in range(30)]


# --- summarize


def by_statistics(samples):
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return statistics.median(samples), third - first


def by_numpy(samples):
    return np.median(samples), np.subtract(*np.percentile(samples, [75, 25]))


def by_torch(samples):
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    low, middle, high = torch.quantile(torch.tensor(samples, dtype=torch.float64), shares)
    return middle, high - low


def by_hand(samples):
    in_order, n = sorted(samples), len(samples)

    def at(quarters):
        whole, rest = divmod(quarters * (n - 1), 4)
        following = in_order[min(whole + 1, n - 1)]
        return in_order[whole] * (1 - rest / 4) + following * rest / 4

    return at(2), at(3) - at(1)


def middle_two(samples):
    s, n = sorted(samples), len(samples)
    middle = s[n // 2] if n % 2 else 0.5 * (s[n // 2 - 1] + s[n // 2])
    return [middle, float(np.quantile(s, 0.75) - np.quantile(s, 0.25))]


def by_interpolation(samples):
    shares = np.interp([0.25, 0.5, 0.75], np.linspace(0, 1, len(samples)), sorted(samples))
    return shares[1], shares[2] - shares[0]


# --- make_inputs


def three_draws(b, h, n, d, seed):
    own = torch.Generator()
    own.manual_seed(seed)
    query = torch.randn(b, h, n, d, generator=own)
    key = torch.randn(b, h, n, d, generator=own)
    return query, key, torch.randn(b, h, n, d, generator=own)


def one_draw(b, h, n, d, seed):
    return torch.randn((3, b, h, n, d), generator=torch.Generator().manual_seed(seed)).unbind()


def numpy_generator(b, h, n, d, seed):
    own = np.random.default_rng(seed)
    return [torch.from_numpy(own.standard_normal((b, h, n, d), np.float32)) for _ in range(3)]


def in_place(b, h, n, d, seed):
    own = torch.Generator().manual_seed(seed)
    return tuple(torch.empty(b, h, n, d).normal_(generator=own) for _ in range(3))


def own_seed_for_each(b, h, n, d, seed):
    generators = (torch.Generator().manual_seed(3 * seed + i) for i in range(3))
    return tuple(torch.randn(b, h, n, d, generator=each) for each in generators)


def forked(b, h, n, d, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.randn(b, h, n, d), torch.randn(b, h, n, d), torch.randn(b, h, n, d)


def split_heads(b, h, n, d, seed):
    own = torch.Generator().manual_seed(seed)
    wide = torch.randn(b, n, 3 * h * d, generator=own).chunk(3, dim=-1)
    return tuple(each.unflatten(-1, (h, d)).transpose(1, 2) for each in wide)


# --- name_the_mistake


def rules_in_order(ratios):
    low, high = min(ratios.values()), max(ratios.values())
    if high / low < 10 and (low > 10 or high < 0.1):
        return "wrong unit"
    if ratios["long kernel"] < 0.5:
        return "no synchronize"
    if ratios["first call"] > 4:
        return "first call counted"
    if ratios["short kernel"] > 3 or ratios["dirty queue"] > 4:
        return "earlier work counted"
    if ratios["slow malloc"] > 1.5:
        return "allocation inside"
    if ratios["hot L2"] < 0.75:
        return "hot cache"
    if ratios["outliers"] > 3.5:
        return "single sample"
    return "mean" if ratios["outliers"] > 1.3 else "none"


def loudest_entry(ratios):
    values = list(ratios.values())
    if max(values) < 5 * min(values) and abs(np.log10(values[0])) > 1:
        return "wrong unit"
    if values[0] < 0.1:
        return "no synchronize"
    fair = ratios | ({"short kernel": 1} if 0.5 < ratios["short kernel"] < 2.5 else {})
    loudest = max(fair, key=lambda name: abs(np.log(fair[name])))
    if 0.75 < fair[loudest] < 1.3:
        return "none"
    if loudest == "outliers":
        return "single sample" if ratios["outliers"] > 3.5 else "mean"
    return {
        "first call": "first call counted",
        "short kernel": "earlier work counted",
        "dirty queue": "earlier work counted",
        "slow malloc": "allocation inside",
        "hot L2": "hot cache",
    }[loudest]


def table_of_rules(ratios):
    rules = [
        ("wrong unit", all(v > 50 for v in ratios.values())),
        ("wrong unit", all(v < 0.005 for v in ratios.values())),
        ("no synchronize", max(ratios.values()) < 0.6),
        ("first call counted", ratios["first call"] > 5),
        ("earlier work counted", max(ratios["short kernel"] / 2, ratios["dirty queue"] / 4) > 1.5),
        ("allocation inside", ratios["slow malloc"] > 1.6),
        ("hot cache", ratios["hot L2"] < 0.7),
        ("single sample", ratios["outliers"] > 4),
        ("mean", ratios["outliers"] > 1.4),
        ("none", True),
    ]
    return next(name for name, holds in rules if holds)


def matched(ratios):
    match ratios:
        case {"long kernel": x, "short kernel": y} if 0.3 < y / x < 3 and not 0.1 < x < 10:
            return "wrong unit"
        case {"long kernel": x} if x < 0.5:
            return "no synchronize"
        case {"first call": x} if x > 3:
            return "first call counted"
        case {"short kernel": x, "dirty queue": y} if x > 3 or y > 3:
            return "earlier work counted"
        case {"slow malloc": x} if x > 1.4:
            return "allocation inside"
        case {"hot L2": x} if x < 0.8:
            return "hot cache"
        case {"outliers": x} if x > 1.3:
            return "single sample" if x > 4 else "mean"
    return "none"


def nearest_signature(ratios):
    """The signature at the least distance, in logarithms; one of each kind as seen once."""
    order = [
        *("long kernel", "short kernel", "first call", "waking clock"),
        *("outliers", "hot L2", "dirty queue", "slow malloc"),
    ]
    seen = np.log([ratios[name] for name in order])
    if seen.std() < 0.3 and abs(seen.mean()) > 2:
        return "wrong unit"
    signatures = {
        "none": [[1, 1.2, 1, 1, 1, 1, 1, 1]],
        "no synchronize": [[0.001, 0.22, 0.008, 0.01, 0.009, 0.009, 0.009, 0.008]],
        "earlier work counted": [
            [1.1, 14, 1.6, 1.7, 1.5, 1.6, 1.6, 1.6],
            [1.5, 1.4, 1.5, 2.3, 3.1, 0.8, 20, 1.5],
        ],
        "first call counted": [
            [1, 1.4, 1000, 2.5, 7.5, 1, 1, 1],
            [1, 1.4, 33, 1.4, 2.1, 1, 1, 1],
        ],
        "single sample": [[1, 1.2, 1, 1, 7.5, 1, 1, 1]],
        "mean": [[1, 1.2, 1, 1, 2.1, 1, 1, 1]],
        "hot cache": [[1, 1.2, 1, 1, 1, 0.5, 1, 1]],
        "allocation inside": [[1, 1.3, 1, 1, 1, 1, 1, 2.5]],
    }
    distances = {
        name: min(np.abs(seen - np.log(each)).sum() for each in forms)
        for name, forms in signatures.items()
    }
    return min(distances, key=distances.get)


def with_a_dictionary(ratios):
    r = dict(ratios)
    if len({round(np.log10(value)) for value in r.values()}) == 1 and round(np.log10(r["hot L2"])):
        return "wrong unit"
    found = {
        "no synchronize": r["long kernel"] < 0.3,
        "first call counted": r["first call"] > 6,
        "earlier work counted": r["dirty queue"] > 5 or r["short kernel"] > 4,
        "hot cache": r["hot L2"] < 0.7,
        "allocation inside": r["slow malloc"] > 1.6,
        "single sample": r["outliers"] >= 4,
        "mean": 1.35 < r["outliers"] < 4,
    }
    return ([name for name, here in found.items() if here] + ["none"])[0]


# --- lab1_receipt


def on_a_cpu():
    return encode(a_record())


def on_a_t4():
    return encode(a_record(made_up.T4))


def wrapped_into_lines():
    return "\n" + wrap(encode(a_record(samples=40))) + "\n"


def as_the_whole_cell():
    return f'RECEIPT = """\n{wrap(encode(a_record(seed=2)), 60)}\n"""'


def of_a_noisy_machine():
    return encode(a_record(noise=0.5, busy=1.8))


def with_more_sizes():
    return "    " + wrap(encode(a_record(sizes=5))).replace("\n", "\n    ")


def as_bytes_decoded():
    return encode(a_record(samples=200)).encode().decode("utf-8")


CORRECT = {
    "bench": [
        between_events,
        one_synchronize_at_the_end,
        wait_for_the_event,
        wall_clock,
        nanoseconds,
        monotonic_clock,
        many_calls_to_warm_up,
        buffer_of_its_own,
        with_helpers_inside,
    ],
    "summarize": [by_statistics, by_numpy, by_torch, by_hand, middle_two, by_interpolation],
    "make_inputs": [
        three_draws,
        one_draw,
        numpy_generator,
        in_place,
        own_seed_for_each,
        forked,
        split_heads,
    ],
    "name_the_mistake": [
        rules_in_order,
        loudest_entry,
        table_of_rules,
        matched,
        nearest_signature,
        with_a_dictionary,
    ],
    "lab1_receipt": [
        on_a_cpu,
        on_a_t4,
        wrapped_into_lines,
        as_the_whole_cell,
        of_a_noisy_machine,
        with_more_sizes,
        as_bytes_decoded,
    ],
}
