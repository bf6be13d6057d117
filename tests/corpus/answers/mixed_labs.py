"""Answers to the labs by somebody who knew only the tasks' texts: one slip each, and right ones.

See mixed.py. Tasks that ask for the receipt of a measurement are left out.
"""

import itertools
import math
import re
import statistics
import time

import einops
import numpy as np
import torch
import torch.nn.functional as F

from attncourse import lab
from corpus.answers import Corpus

corpus = Corpus()
wrong, right = corpus.wrong, corpus.right


# --- Lab 1: bench ---------------------------------------------------------------------------------


@wrong("bench", "does not wait for the GPU, so it times the launch", "L1-NO-SYNC")
def _(fn, flush):
    for _ in range(100):
        fn()
    torch.cuda.synchronize()
    out = []
    for _ in range(30):
        flush()
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        fn()
        t1 = time.perf_counter()
        out.append(t1 - t0)
    return out


@wrong("bench", "returns milliseconds", "L1-MILLISECONDS")
def _(fn, flush):
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        fn()
        torch.cuda.synchronize()
    times = []
    for _ in range(30):
        a = torch.cuda.Event(enable_timing=True)
        b = torch.cuda.Event(enable_timing=True)
        flush()
        a.record()
        fn()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return times


@wrong("bench", "flushes between the two events", "L1-FLUSH-COUNTED")
def _(fn, flush):
    for _ in range(300):
        fn()
    torch.cuda.synchronize()
    result = []
    for _ in range(25):
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        start.record()
        flush()
        fn()
        stop.record()
        torch.cuda.synchronize()
        result.append(start.elapsed_time(stop) / 1000)
    return result


@wrong("bench", "never flushes, so the inputs wait in the cache", "L1-NO-FLUSH")
def _(fn, flush):
    for _ in range(300):
        fn()
    torch.cuda.synchronize()
    events = [
        [torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)]
        for _ in range(40)
    ]
    for begin, end in events:
        begin.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e-3 for begin, end in events]


@right("bench")
def _(fn, flush):
    until = time.perf_counter() + 0.06
    fn()
    torch.cuda.synchronize()
    while time.perf_counter() < until:
        fn()
        torch.cuda.synchronize()
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(30)]
    stops = [torch.cuda.Event(enable_timing=True) for _ in range(30)]
    for start, stop in zip(starts, stops):
        flush()
        start.record()
        fn()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) / 1000.0 for start, stop in zip(starts, stops)]


@right("bench")
def _(fn, flush):
    def once():
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush()
        first.record()
        fn()
        second.record()
        torch.cuda.synchronize()
        return first.elapsed_time(second) * 1e-3

    seconds = []
    warm = 0.0
    while warm < 0.05:  # by the GPU's own time
        warm += once() + 1e-4
    while len(seconds) < 50:
        seconds.append(once())
    return seconds


# --- Lab 1: summarize -----------------------------------------------------------------------------


@wrong("summarize", "gives the mean", "L1-SUMMARY-MEAN")
def _(samples):
    q1, q3 = np.quantile(samples, [0.25, 0.75])
    return float(np.mean(samples)), float(q3 - q1)


@wrong(
    "summarize", "gives the standard deviation, not the interquartile range", "L1-SUMMARY-DEVIATION"
)
def _(samples):
    return statistics.median(samples), statistics.stdev(samples)


@wrong("summarize", "does not put the samples in order", "L1-SUMMARY-UNSORTED")
def _(samples):
    def at(place):
        low = int(place)
        high = min(low + 1, len(samples) - 1)
        return samples[low] + (place - low) * (samples[high] - samples[low])

    n = len(samples)
    return at((n - 1) / 2), at(3 * (n - 1) / 4) - at((n - 1) / 4)


@wrong(
    "summarize",
    "rounds the places of the quartiles down, in place of sharing",
    "L1-SUMMARY-EXCLUSIVE",
)
def _(samples):
    s = sorted(samples)
    n = len(s)
    return statistics.median(s), s[3 * (n - 1) // 4] - s[(n - 1) // 4]


@right("summarize")
def _(samples):
    q1, q2, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q2, q3 - q1


@right("summarize")
def _(samples):
    ordered = sorted(samples)

    def quantile(share):
        whole, rest = divmod(share * (len(ordered) - 1), 1)
        i = int(whole)
        return ordered[i] if rest == 0 else (1 - rest) * ordered[i] + rest * ordered[i + 1]

    return quantile(0.5), quantile(0.75) - quantile(0.25)


# --- Lab 1: make_inputs ---------------------------------------------------------------------------


@wrong("make_inputs", "seeds the global generator", "L1-INPUTS-GLOBAL-SEED")
def _(b, h, n, d, seed):
    torch.manual_seed(seed)
    return tuple(torch.randn(b, h, n, d) for _ in range(3))


@wrong("make_inputs", "draws uniform numbers", "L1-INPUTS-UNIFORM")
def _(b, h, n, d, seed):
    g = torch.Generator().manual_seed(seed)
    q, k, v = torch.rand((3, b, h, n, d), generator=g)
    return q, k, v


@wrong("make_inputs", "hands out the same numbers three times", "L1-INPUTS-ALIKE")
def _(b, h, n, d, seed):
    def draw():
        return torch.randn(b, h, n, d, generator=torch.Generator().manual_seed(seed))

    return draw(), draw(), draw()


@wrong("make_inputs", "draws numbers for one head only and repeats them", "L1-INPUTS-EXPANDED")
def _(b, h, n, d, seed):
    gen = torch.Generator()
    gen.manual_seed(seed)
    one = [torch.randn(b, 1, n, d, generator=gen) for _ in range(3)]
    return tuple(x.expand(b, h, n, d).contiguous() for x in one)


@right("make_inputs")
def _(b, h, n, d, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.randn(b, h, n, d), torch.randn(b, h, n, d), torch.randn(b, h, n, d)


@right("make_inputs")
def _(b, h, n, d, seed):
    numbers = np.random.default_rng(seed).standard_normal((3, b, h, n, d), dtype=np.float32)
    query, key, value = map(torch.from_numpy, numbers)
    return query, key, value


# --- Lab 1: name_the_mistake ----------------------------------------------------------------------

SIGNATURE = {
    "short kernel": "earlier work counted",
    "first call": "first call counted",
    "waking clock": "first call counted",
    "outliers": "mean",
    "hot L2": "hot cache",
    "dirty queue": "earlier work counted",
    "slow malloc": "allocation inside",
}


def mistake_at(scenario, ratios):
    if scenario == "outliers" and ratios[scenario] > 4:
        return "single sample"  # a mean is off by 2 or so
    return SIGNATURE.get(scenario, "none")


@wrong(
    "name_the_mistake",
    "says that it is honest where all is wrong by one factor",
    "L1-NAME-SAME-EVERYWHERE",
)
def _(ratios):
    spread = {k: abs(math.log(v)) for k, v in ratios.items()}
    if max(ratios.values()) / min(ratios.values()) < 3:
        return "none"
    if all(v < 0.8 for v in ratios.values()):
        return "no synchronize"
    return mistake_at(max(spread, key=spread.get), ratios)


@wrong("name_the_mistake", "takes 1 for exact: nothing is ever honest", "L1-NAME-TOO-STRICT")
def _(ratios):
    for name, mistake in SIGNATURE.items():
        if ratios[name] != 1.0:
            return mistake
    return "none"


@wrong(
    "name_the_mistake",
    "looks at the largest ratio only, so too small ones go unseen",
    "L1-NAME-ONE-SIDE",
)
def _(ratios):
    worst = max(ratios, key=ratios.get)
    if ratios[worst] < 2.2:
        return "none"
    if all(r > 100 for r in ratios.values()):
        return "wrong unit"
    return mistake_at(worst, ratios)


@wrong("name_the_mistake", "confuses the hot cache with a missing synchronize", "L1-NAME-TOO-SHORT")
def _(ratios):
    low, high = min(ratios.values()), max(ratios.values())
    if high < 0.01 or low > 100:
        return "wrong unit"
    if ratios["hot L2"] < 0.8:
        return "no synchronize"
    off = {k: abs(math.log(v)) for k, v in ratios.items()}
    if ratios["short kernel"] < 2.2:
        off["short kernel"] = 0.0
    worst = max(off, key=off.get)
    return "none" if off[worst] < 0.3 else mistake_at(worst, ratios)


@right("name_the_mistake")
def _(ratios):
    logs = {name: math.log10(ratio) for name, ratio in ratios.items()}
    low, high = min(logs.values()), max(logs.values())
    if high - low < 0.6 and min(abs(low), abs(high)) > 0.9:  # one factor everywhere
        return "wrong unit"
    if sum(x < math.log10(0.75) for x in logs.values()) >= 4:
        return "no synchronize"
    logs["long kernel"] = 0.0
    if 0.9 <= ratios["short kernel"] <= 2.2:
        logs["short kernel"] = 0.0
    loudest = max(logs, key=lambda name: abs(logs[name]))
    if abs(logs[loudest]) < math.log10(1.25):
        return "none"
    return mistake_at(loudest, ratios)


@right("name_the_mistake")
def _(ratios):
    values = sorted(ratios.values())
    middle = (values[3] * values[4]) ** 0.5
    if (middle > 20 or middle < 0.05) and values[-1] / values[0] < 5:
        return "wrong unit"
    if values[4] < 0.8:
        return "no synchronize"

    def factor(name):
        r = ratios[name]
        if name == "short kernel" and 0.9 < r < 2.2:
            return 1.0
        return max(r, 1 / r)

    ranking = sorted(SIGNATURE, key=factor, reverse=True)
    return mistake_at(ranking[0], ratios) if factor(ranking[0]) > 1.3 else "none"


# --- Lab 2: naive_attention -----------------------------------------------------------------------


@wrong("naive_attention", "loops over the queries, so no table is ever made", "L2-ROW-BY-ROW")
def _(q, k, v):
    rows = []
    for i in range(q.shape[2]):
        s = (q[:, :, i : i + 1] @ k.mT) / math.sqrt(q.shape[-1])
        rows.append(torch.softmax(s, dim=-1) @ v)
    return torch.cat(rows, dim=2)


@wrong("naive_attention", "does not scale", "L2-NO-SCALE")
def _(q, k, v):
    table = torch.einsum("bhqd,bhkd->bhqk", q, k)
    return torch.einsum("bhqk,bhkd->bhqd", table.softmax(-1), v)


@wrong("naive_attention", "normalizes over the queries", "L2-SOFTMAX-AXIS")
def _(q, k, v):
    att = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    return torch.softmax(att, dim=-2) @ v


@wrong("naive_attention", "hides later positions, which nobody asked for", "L2-CAUSAL")
def _(q, k, v):
    n, d = q.shape[-2:]
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(d)
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    return torch.matmul(F.softmax(scores, dim=-1), v)


@right("naive_attention")
def _(q, k, v):
    b, h, n, d = q.shape
    s = torch.bmm((q * d**-0.5).reshape(b * h, n, d), k.reshape(b * h, n, d).transpose(1, 2))
    return torch.bmm(s.softmax(-1), v.reshape(b * h, n, d)).view(b, h, n, d)


@right("naive_attention")
def _(q, k, v):
    scores = einops.einsum(q, k, "b h q d, b h k d -> b h q k").div_(math.sqrt(q.size(-1)))
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    scores.div_(scores.sum(-1, keepdim=True))
    return einops.einsum(scores, v, "b h q k, b h k d -> b h q d")


# --- Lab 2: peak_bytes ----------------------------------------------------------------------------


@wrong("peak_bytes", "counts one table only", "L2-ONE-TABLE")
def _(b, h, n, d, bytes_per_number):
    return b * h * n * n * bytes_per_number


@wrong("peak_bytes", "forgets the output, which matters where n is small", "L2-TABLES-ONLY")
def _(b, h, n, d, bytes_per_number):
    table = b * h * n**2
    return 2 * table * bytes_per_number


@wrong("peak_bytes", "counts q, k and v", "L2-INPUTS-IN-PEAK")
def _(b, h, n, d, bytes_per_number):
    tables = 2 * b * h * n * n
    return (tables + 4 * b * h * n * d) * bytes_per_number


@wrong("peak_bytes", "forgets the heads", "L2-ONE-HEAD")
def _(b, h, n, d, bytes_per_number):
    return bytes_per_number * (2 * b * n * n + b * n * d)


@right("peak_bytes")
def _(b, h, n, d, bytes_per_number):
    table, output = n * n, n * d
    moments = [2 * table, 2 * table, 2 * table + output]  # each line, the larger of its sides
    return b * h * bytes_per_number * max(moments)


@right("peak_bytes")
def _(b, h, n, d, bytes_per_number):
    return bytes_per_number * b * h * n * (2 * n + d)


# --- Lab 2: largest_n -----------------------------------------------------------------------------


@wrong("largest_n", "forgets q, k and v", "L2-WALL-NO-INPUTS")
def _(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    step = 1 << 40
    while step:
        m = n + step
        if b * h * (2 * m * m + m * d) * bytes_per_number <= memory_bytes:
            n = m
        step >>= 1
    return n


@wrong("largest_n", "returns the first n that does not fit any more", "L2-ONE-TOO-MANY")
def _(memory_bytes, b, h, d, bytes_per_number):
    def need(n):
        return b * h * n * (2 * n + 4 * d) * bytes_per_number

    lo, hi = 0, 1
    while need(hi) <= memory_bytes:
        hi *= 2
    while lo < hi:
        mid = (lo + hi) // 2
        if need(mid) <= memory_bytes:
            lo = mid + 1
        else:
            hi = mid
    return lo


@wrong("largest_n", "thinks of the table only and takes the root", "L2-WALL-TABLES-ONLY")
def _(memory_bytes, b, h, d, bytes_per_number):
    return math.isqrt(memory_bytes // (2 * b * h * bytes_per_number))


@wrong("largest_n", "takes powers of two only", "L2-POWERS-OF-TWO")
def _(memory_bytes, b, h, d, bytes_per_number):
    n = 1
    while b * h * (2 * n * n + 4 * n * d) * bytes_per_number <= memory_bytes:
        n *= 2
    return n // 2


@right("largest_n")
def _(memory_bytes, b, h, d, bytes_per_number):
    # 2n² + 4dn <= room, so n <= sqrt(d² + room / 2) - d, in whole numbers
    room = int(memory_bytes) // (b * h * bytes_per_number)
    return max(0, math.isqrt(d * d + room // 2) - d)


@right("largest_n")
def _(memory_bytes, b, h, d, bytes_per_number):
    fits = lambda n: (
        (2 * b * h * n * n + b * h * n * d + 3 * b * h * n * d) * bytes_per_number <= memory_bytes
    )
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# --- Lab 2: fit_growth ----------------------------------------------------------------------------


@wrong(
    "fit_growth",
    "fits one line through all points, fixed cost and wild value included",
    "L2-ALL-SIZES",
)
def _(sizes, seconds):
    slope, _ = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(slope)


@wrong(
    "fit_growth",
    "takes the slope between the two largest sizes, whatever happened there",
    "L2-LAST-TWO",
)
def _(sizes, seconds):
    (n1, t1), (n2, t2) = sorted(zip(sizes, seconds))[-2:]
    return math.log(t2 / t1) / math.log(n2 / n1)


@wrong("fit_growth", "fits the smaller half, where the fixed cost rules", "L2-SMALL-SIZES")
def _(sizes, seconds):
    pairs = sorted(zip(sizes, seconds))[: len(sizes) // 2]
    x, y = np.log(np.array(pairs)).T
    return float(np.polyfit(x, y, 1)[0])


@wrong("fit_growth", "forgets the logarithm of the sizes", "L2-ONE-LOGARITHM")
def _(sizes, seconds):
    pairs = sorted(zip(sizes, seconds))[len(sizes) // 2 :]
    n, t = map(np.array, zip(*pairs))
    return float(np.polyfit(n / n.max(), np.log(t), 1)[0])


@right("fit_growth")
def _(sizes, seconds):
    # time = a + c n^p: try many p, each with the best a, c >= 0, weighted by relative error
    pairs = sorted(zip(sizes, seconds))
    n, t = (np.array(x, dtype=float) for x in zip(*pairs))
    n = n / n[-1]

    def both(p, keep):
        work = n[keep] ** p
        A = np.stack([np.ones_like(work), work], 1) / t[keep][:, None]
        best = np.inf
        for columns in ([0, 1], [1]):
            solution, *_ = np.linalg.lstsq(A[:, columns], np.ones(len(work)), rcond=None)
            if (solution >= -1e-12).all():
                best = min(best, float((np.abs(A[:, columns] @ solution - 1) ** 2).sum()))
        return best

    def largest(p, keep):
        best = np.inf
        work = n[keep] ** p
        order = np.arange(len(t))[keep]
        for cut in range(len(order) // 2 + 2):
            c = np.exp(np.mean(np.log(t[keep][cut:] / work[cut:])))
            rest = np.log(t[keep][cut:] / (c * work[cut:]))
            loss = (rest**2).sum()
            if cut:
                flat = np.log(t[keep][:cut])
                loss += ((flat - flat.mean()) ** 2).sum()
                if c * work[cut - 1] > 1.1 * np.exp(flat.mean()):
                    continue
            best = min(best, float(loss) + 2e-4 * cut)
        return best

    exponents = np.arange(0.0, 4.01, 0.02)
    found = []
    for out in range(-1, len(n)):
        keep = np.arange(len(n)) != out
        for model in (both, largest):
            losses = [model(p, keep) for p in exponents]
            i = int(np.argmin(losses))
            found.append((losses[i] + (0.004 if out >= 0 else 0), exponents[i]))
    return float(min(found)[1])


@right("fit_growth")
def _(sizes, seconds):
    order = np.argsort(sizes)
    n, t = np.array(sizes, float)[order], np.array(seconds, float)[order]
    n /= n[-1]
    best, answer = np.inf, 0.0
    for p in np.arange(0.0, 4.01, 0.02):
        work = n**p
        for fixed in np.r_[0.0, np.linspace(0.05, 1.05, 101) * t.min()]:
            up = slice(len(n) // 2, None)
            c = np.median((t - fixed)[up] / work[up])
            k = np.median((t / work)[-3:])
            for model in (fixed + c * work, np.maximum(fixed, k * work)):
                if c > 0 and model.min() > 0:
                    off = np.sort(np.abs(np.log(t / model)))[:-1]  # one may be wild
                    if off.sum() < best:
                        best, answer = off.sum(), p
    return float(answer)


# --- Lab 2: conclude ------------------------------------------------------------------------------


def timed(record, name):
    """n -> the point, of those of this name that have a time."""
    return {p["n"]: p for p in record["points"] if p["name"] == name and p["seconds"]}


@wrong("conclude", "takes the mean of the samples, disturbed ones included", "L2-MEAN")
def _(record):
    naive, fused = timed(record, "naive"), timed(record, "fused")
    t = {n: statistics.mean(p["seconds"]) for n, p in fused.items()}
    bytes_ = {n: p["peak_bytes"] for n, p in naive.items()}
    p_time = lab.fit_exponent([*t], [*t.values()]).exponent
    p_mem = lab.fit_exponent([*bytes_], [*bytes_.values()]).exponent
    n = max(naive.keys() & fused.keys())
    last = max(bytes_)
    wall = last * (record["machine"]["memory_bytes"] / bytes_[last]) ** (1 / p_mem)
    guess = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": p_time,
        "memory_exponent": p_mem,
        "ratio": statistics.mean(naive[n]["seconds"]) / t[n],
        "wall": wall,
        "held": 1 / 1.5 <= guess / wall <= 1.5,
    }


@wrong("conclude", "turns the ratio around", "L2-RATIO-INVERTED")
def _(record):
    med = {
        name: {n: statistics.median(p["seconds"]) for n, p in timed(record, name).items()}
        for name in ("naive", "fused")
    }
    peaks = {n: p["peak_bytes"] for n, p in timed(record, "naive").items()}
    p = lab.fit_exponent(list(peaks), list(peaks.values())).exponent
    top, both = max(peaks), max(set(med["naive"]) & set(med["fused"]))
    wall = top * (record["machine"]["memory_bytes"] / peaks[top]) ** (1 / p)
    predicted = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": lab.fit_exponent(list(med["fused"]), list(med["fused"].values())).exponent,
        "memory_exponent": p,
        "ratio": med["fused"][both] / med["naive"][both],
        "wall": wall,
        "held": max(predicted / wall, wall / predicted) <= 1.5,
    }


@wrong("conclude", "lets memory grow in a straight line up to the wall", "L2-WALL-LINEAR")
def _(record):
    naive, fused = timed(record, "naive"), timed(record, "fused")
    median = lambda p: statistics.median(p["seconds"])
    time_fit = lab.fit_exponent([*fused], [median(p) for p in fused.values()])
    memory_fit = lab.fit_exponent([*naive], [p["peak_bytes"] for p in naive.values()])
    n = max(naive.keys() & fused.keys())
    last = naive[max(naive)]
    wall = last["n"] * record["machine"]["memory_bytes"] / last["peak_bytes"]
    guess = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": time_fit.exponent,
        "memory_exponent": memory_fit.exponent,
        "ratio": median(naive[n]) / median(fused[n]),
        "wall": wall,
        "held": wall / 1.5 <= guess <= wall * 1.5,
    }


@wrong(
    "conclude",
    "says that a prediction held if it was not too high, however low",
    "L2-HELD-ONE-SIDED",
)
def _(record):
    naive, fused = timed(record, "naive"), timed(record, "fused")
    sec = lambda p: float(np.median(p["seconds"]))
    mem = lab.fit_exponent([*naive], [p["peak_bytes"] for p in naive.values()]).exponent
    n_both, n_last = max(naive.keys() & fused.keys()), max(naive)
    room = record["machine"]["memory_bytes"] / naive[n_last]["peak_bytes"]
    wall = n_last * room ** (1 / mem)
    return {
        "time_exponent": lab.fit_exponent([*fused], [sec(p) for p in fused.values()]).exponent,
        "memory_exponent": mem,
        "ratio": sec(naive[n_both]) / sec(fused[n_both]),
        "wall": wall,
        "held": record["predictions"]["wall"]["value"] <= 1.5 * wall,
    }


@wrong("conclude", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    rows = [p for p in record["points"] if p["error"] is None]
    seconds = {(p["name"], p["n"]): statistics.median(p["seconds"]) for p in rows}
    peak = sorted((p["n"], p["peak_bytes"]) for p in rows if p["name"] == "naive")
    fused = sorted((n, t) for (name, n), t in seconds.items() if name == "fused")
    out = {
        "time_exponent": lab.fit_exponent(*map(list, zip(*fused))).exponent,
        "memory_exponent": lab.fit_exponent(*map(list, zip(*peak))).exponent,
    }
    common = [n for n, _ in peak if ("fused", n) in seconds]
    out["ratio"] = seconds["naive", common[-1]] / seconds["fused", common[-1]]
    n, size = peak[-1]
    total = record["machine"]["memory_bytes"]
    out["wall"] = n * math.exp(math.log(total / size) / out["memory_exponent"])
    off = math.log(record["predictions"]["wall"]["value"] / out["wall"])
    out["held"] = abs(off) <= math.log(1.5)
    return out


@wrong("conclude", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    naive, fused = timed(record, "naive"), timed(record, "fused")
    med = lambda p: sorted(p["seconds"])[len(p["seconds"]) // 2]
    a = lab.fit_exponent(list(fused.keys()), [med(fused[n]) for n in fused]).exponent
    e = lab.fit_exponent(list(naive.keys()), [naive[n]["peak_bytes"] for n in naive]).exponent
    n = sorted(set(naive).intersection(fused))[-1]
    big = max(naive.values(), key=lambda p: p["n"])
    wall = (record["machine"]["memory_bytes"] / big["peak_bytes"]) ** (1 / e) * big["n"]
    guess = record["predictions"]["wall"]["value"]
    return dict(
        time_exponent=a,
        memory_exponent=e,
        ratio=med(naive[n]) / med(fused[n]),
        wall=wall,
        held=bool(2 / 3 <= guess / wall <= 3 / 2),
    )


# --- Lab 3: which_backend -------------------------------------------------------------------------

WORDS = {
    "flash_attention": "FLASH",
    "efficient_attention": "EFFICIENT",
    "cudnn_attention": "CUDNN",
    "_native_multi_head_attention": "NATIVE_MHA",
    "_safe_softmax": "MATH",
}


def looks_written_out(names):
    """Whether there is a product, later a softmax, later a product."""
    kind = ["p" if "mm" in name else "s" if "_softmax" in name else "" for name in names]
    return re.search("p.*s.*p", "".join(kind)) is not None


@wrong("which_backend", "runs fn twice", "L3-WARM-UP")
def _(fn):
    fn()
    names = lab.trace(fn)
    for name in names:
        for part, word in WORDS.items():
            if part in name:
                return word
    return "NAIVE" if looks_written_out(names) else "NONE"


@wrong("which_backend", "takes MATH for naive attention", "L3-MATH-IS-NAIVE")
def _(fn):
    text = " ".join(lab.trace(fn))
    for part in ("flash_attention", "efficient_attention", "cudnn_attention"):
        if part in text:
            return part.split("_")[0].upper()
    if "_native_multi_head_attention" in text:
        return "NATIVE_MHA"
    return "NAIVE" if "softmax" in text and "mm" in text else "NONE"


@wrong("which_backend", "switches gradients off, and torch looks at that", "L3-OBSERVER")
def _(fn):
    with torch.no_grad():
        ops = list(lab.trace(fn))
    for op in ops:
        for part, word in WORDS.items():
            if part in op:
                return word
    return "NAIVE" if looks_written_out(ops) else "NONE"


@wrong(
    "which_backend",
    "takes every softmax for naive attention, with products or not",
    "L3-ONE-PRODUCT",
    "L3-ANY-ORDER",
)
def _(fn):
    ops = lab.trace(fn)
    for part in WORDS:
        if any(part in op for op in ops):
            return WORDS[part]
    return "NAIVE" if any("_softmax" in op for op in ops) else "NONE"


@right("which_backend")
def _(fn):
    operations = [str(each) for each in lab.trace(fn)]
    found = [word for part, word in WORDS.items() if any(part in op for op in operations)]
    if found:
        return found[0]
    stage = 0
    for op in operations:
        if (stage in (0, 2) and "mm" in op) or (stage == 1 and "_softmax" in op):
            stage += 1
    return "NAIVE" if stage == 3 else "NONE"


@right("which_backend")
def _(fn):
    trace = list(lab.trace(fn))
    for part, word in WORDS.items():
        for name in trace:
            if part in name:
                return word
    products = [i for i, name in enumerate(trace) if "mm" in name]
    softmaxes = [i for i, name in enumerate(trace) if "_softmax" in name]
    naive = any(products and products[0] < s < products[-1] for s in softmaxes)
    return "NAIVE" if naive else "NONE"


# --- Lab 3: backends_for --------------------------------------------------------------------------


def rules(capability, call, cudnn_mask=True, flash_mask=False, old_flash=False, gqa=False):
    """The table of the task, with switches for what somebody may read wrong."""
    width, dtype = call["d"], call["dtype"]
    half = dtype in ("float16", "bfloat16")
    usual = call["axes"] == 4 and call["last_stride"] == 1
    crooked = call["causal"] and call["queries"] != call["keys"]
    grouped = call["heads"] != call["kv_heads"]
    names = []
    if capability == "cpu":
        if usual and call["dropout"] == 0:
            names.append("FLASH")
        return [*names, "MATH"]
    if usual:
        if capability == (9, 0) and half and width % 8 == 0 and width <= 128:
            if cudnn_mask or not call["mask"]:
                names.append("CUDNN")
        if (old_flash or capability >= (8, 0)) and half and width <= 256 and not crooked:
            if flash_mask or not call["mask"]:
                names.append("FLASH")
        new = capability >= (8, 0)
        fits = dtype == "float16" or dtype == "float32" or (dtype == "bfloat16" and new)
        multiple = 8 if half else 4 if new else 1
        if fits and width % multiple == 0 and (gqa or not grouped):
            names.append("EFFICIENT")
    return [*names, "MATH"]


@wrong("backends_for", "lets FLASH take a mask", "L3-FLASH-MASK")
def _(capability, call):
    return rules(capability, call, flash_mask=True)


@wrong("backends_for", "lets FLASH run on a T4", "L3-T4-FLASH")
def _(capability, call):
    return rules(capability, call, old_flash=True)


@wrong("backends_for", "lets EFFICIENT group heads", "L3-GROUPS-EFFICIENT")
def _(capability, call):
    return rules(capability, call, gqa=True)


@wrong("backends_for", "names only the one that runs", "L3-FIRST-ONLY")
def _(capability, call):
    return rules(capability, call)[:1]


@right("backends_for")
def _(capability, call):
    on_cpu = capability == "cpu"
    c = call
    if c["axes"] != 4 or c["last_stride"] != 1:
        return ["MATH"]
    half = c["dtype"] in {"float16", "bfloat16"}
    new = not on_cpu and tuple(capability) >= (8, 0)
    oblong = c["causal"] and c["queries"] != c["keys"]
    tests = {
        "CUDNN": capability == (9, 0) and half and c["d"] % 8 == 0 and c["d"] <= 128,
        "FLASH": (on_cpu and not c["dropout"] > 0)
        or (new and half and c["d"] <= 256 and not c["mask"] and not oblong),
        "EFFICIENT": not on_cpu
        and c["kv_heads"] == c["heads"]
        and {
            "float16": c["d"] % 8 == 0,
            "bfloat16": c["d"] % 8 == 0 and new,
            "float32": c["d"] % 4 == 0 or not new,
        }.get(c["dtype"], False),
    }
    if on_cpu and c["dtype"] not in ("float16", "bfloat16", "float32", "float64"):
        tests["FLASH"] = False
    return [name for name, ok in tests.items() if ok] + ["MATH"]


@right("backends_for")
def _(capability, call):
    out = rules(capability, call)
    return list(out)


# --- Lab 3: attention_work ------------------------------------------------------------------------


@wrong("attention_work", "counts a multiplication and an addition as one", "L3-MULTIPLY-ONLY")
def _(b, h, n, d, bytes_per_number, causal, backward):
    flops = 2 * b * h * n * n * d
    flops = flops * (0.5 if causal else 1) * (3.5 if backward else 1)
    table, vector = b * h * n * n * bytes_per_number, b * h * n * d * bytes_per_number
    return {
        "flops": flops,
        "naive_bytes": 2 * vector + table + 4 * table + table + 2 * vector,
        "fused_bytes": 4 * vector,
    }


@wrong(
    "attention_work",
    "leaves the forward pass out where there is a backward pass",
    "L3-BACKWARD-ALONE",
)
def _(b, h, n, d, bytes_per_number, causal, backward):
    flops = 4 * b * h * n**2 * d
    if causal:
        flops /= 2
    if backward:
        flops *= 2.5
    t, x = n * n, n * d
    return dict(
        flops=flops,
        naive_bytes=b * h * bytes_per_number * (6 * t + 4 * x),
        fused_bytes=b * h * bytes_per_number * 4 * x,
    )


@wrong(
    "attention_work", "halves the bytes of a causal call, too", "L3-CAUSAL-BYTES", "L3-CAUSAL-TABLE"
)
def _(b, h, n, d, bytes_per_number, causal, backward):
    half = 0.5 if causal else 1.0
    row = b * h * n * d
    grid = b * h * n * n * half
    return {
        "flops": 4 * grid * d * (3.5 if backward else 1),
        "naive_bytes": (6 * grid + 4 * row) * bytes_per_number,
        "fused_bytes": 4 * row * bytes_per_number,
    }


@wrong("attention_work", "counts each table once, written and never read", "L3-WRITES-ONLY")
def _(b, h, n, d, bytes_per_number, causal, backward):
    work = 2 * (2 * n * n * d) * b * h
    work = work // 2 if causal else work
    work = work + 2.5 * work if backward else work
    size = b * h * bytes_per_number
    naive = size * (3 * n * d + 3 * n * n + n * d)
    return {"flops": work, "naive_bytes": naive, "fused_bytes": size * 4 * n * d}


@right("attention_work")
def _(b, h, n, d, bytes_per_number, causal, backward):
    product = 2 * n * n * d
    flops = b * h * 2 * product
    if causal:
        flops = flops / 2
    passes = 1 + 2.5 * bool(backward)
    vectors, table = n * d, n * n
    lines = [
        2 * vectors + table,
        table + table,
        table + table,
        table + vectors + vectors,
    ]
    unit = b * h * bytes_per_number
    return {
        "flops": flops * passes,
        "naive_bytes": unit * sum(lines),
        "fused_bytes": unit * (3 * vectors + vectors),
    }


@right("attention_work")
def _(b, h, n, d, bytes_per_number, causal, backward):
    heads = b * h
    return dict(
        flops=heads * n * n * d * (2 if causal else 4) * (3.5 if backward else 1),
        naive_bytes=2 * heads * n * bytes_per_number * (3 * n + 2 * d),
        fused_bytes=heads * n * d * bytes_per_number * 4,
    )


# --- Lab 3: roof_over -----------------------------------------------------------------------------


@wrong("roof_over", "lets the faster of the two decide", "L3-LARGER")
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    intensity, ridge = flops / moved_bytes, flops_per_second / bytes_per_second
    return {
        "intensity": intensity,
        "ridge": ridge,
        "roof": max(flops_per_second, intensity * bytes_per_second),
        "bound": "memory" if intensity < ridge else "compute",
    }


@wrong(
    "roof_over",
    "says compute where it waits for memory, and the other way round",
    "L3-BOUND-SWAPPED",
)
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    i, r = flops / moved_bytes, flops_per_second / bytes_per_second
    roof = min(flops_per_second, i * bytes_per_second)
    return dict(intensity=i, ridge=r, roof=roof, bound="memory" if i > r else "compute")


@wrong(
    "roof_over",
    "divides bytes by operations",
    "L3-UPSIDE-DOWN",
    "L3-RIDGE-INVERTED",
    "L3-BYTES-PER-OPERATION",
)
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    i, r = moved_bytes / flops, bytes_per_second / flops_per_second
    return {
        "intensity": i,
        "ridge": r,
        "roof": min(flops_per_second, bytes_per_second / i),
        "bound": "memory" if i > r else "compute",
    }


@wrong(
    "roof_over", "adds both times, as if one waited for the other to end", "L3-ONE-AFTER-THE-OTHER"
)
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    computing, moving = flops / flops_per_second, moved_bytes / bytes_per_second
    return {
        "intensity": flops / moved_bytes,
        "ridge": flops_per_second / bytes_per_second,
        "roof": flops / (computing + moving),
        "bound": "memory" if moving > computing else "compute",
    }


@right("roof_over")
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    seconds = {"compute": flops / flops_per_second, "memory": moved_bytes / bytes_per_second}
    bound = max(seconds, key=seconds.get)
    return {
        "intensity": flops / moved_bytes,
        "ridge": flops_per_second / bytes_per_second,
        "roof": flops / seconds[bound],
        "bound": bound,
    }


@right("roof_over")
def _(flops, moved_bytes, flops_per_second, bytes_per_second):
    result = {"ridge": flops_per_second / bytes_per_second, "intensity": flops / moved_bytes}
    if result["intensity"] < result["ridge"]:
        result.update(bound="memory", roof=bytes_per_second * flops / moved_bytes)
    else:
        result.update(bound="compute", roof=flops_per_second)
    return result


# --- Lab 3: sees_future ---------------------------------------------------------------------------


@wrong("sees_future", "changes the last position only", "L3-LAST-ONLY")
def _(fn, x):
    y = fn(x)
    changed = x.clone()
    changed[:, -1] += torch.randn_like(changed[:, -1])
    return bool(((fn(changed) - y)[:, :-1].abs() > 1e-5).any())


@wrong("sees_future", "writes into x", "L3-IN-PLACE")
def _(fn, x):
    before = fn(x).clone()
    for t in range(x.shape[1] - 1, 0, -1):
        x[:, t] += torch.randn_like(x[:, t])
        if ((fn(x) - before)[:, :t].abs() > 1e-5).any():
            return True
    return False


@wrong(
    "sees_future",
    "multiplies by two, which changes no zero and no norm",
    "L3-DOUBLED",
    "L3-ZEROED",  # "… or multiply them by something": zeros stay zeros
)
def _(fn, x):
    y = fn(x)
    for t in range(1, x.shape[1]):
        z = x.clone()
        z[:, t:] *= 2
        if (fn(z)[:, :t] - y[:, :t]).abs().max() > 1e-5:
            return True
    return False


@wrong("sees_future", "takes an output's own position for the future", "L3-OWN-POSITION")
def _(fn, x):
    y = fn(x)
    for t in range(x.shape[1]):
        z = x.clone()
        z[:, t] = torch.randn_like(z[:, t])
        if (fn(z) - y)[:, : t + 1].abs().max().item() > 1e-5:
            return True
    return False


@right("sees_future")
def _(fn, x):
    y = fn(x).clone()
    leak = False
    for t in range(1, x.shape[1]):
        for _ in range(3):
            z = torch.cat([x[:, :t], x[:, t:] + torch.randn_like(x[:, t:])], dim=1)
            off = (fn(z)[:, :t] - y[:, :t]).abs().max().item()
            leak = leak or off > 1e-5
    return leak


# the task: "on a GPU `x` lies there, and so must they"
@wrong("sees_future", "draws its noise on the CPU", "C-ON-THE-CPU")
def _(fn, x):
    base = fn(x.clone())
    b, n, d = x.shape
    for j in range(n):
        for sentence in range(b):
            for _ in range(2):
                other = x.clone()
                other[sentence, j] = x[sentence, j] + 2 * torch.randn(d, dtype=x.dtype)
                moved = (fn(other) - base).abs().amax(-1) > 2e-5
                if moved[:, :j].any():
                    return True
    return False


# --- Lab 3: who_computed_it -----------------------------------------------------------------------


def middle(point):
    return statistics.median(point["seconds"])


@wrong(
    "who_computed_it",
    "takes the largest n of all, where naive attention may have no time",
    "L3-FAILED-POINT",
)
def _(record):
    points = record["points"]
    ceil = record["machine"]["ceilings"]
    n = max(p["n"] for p in points if p["name"] in ("naive", "fused"))
    out = {}
    for p in points:
        if p["n"] == n and p["name"] in ("naive", "fused"):
            ridge = ceil["flops_per_second"][p["dtype"]] / ceil["bytes_per_second"]
            i = p["flops"] / p["bytes"]
            out[p["name"] + "_bound"] = "memory" if i < ridge else "compute"
            if p["name"] == "naive":
                roof = min(i * ceil["bytes_per_second"], ceil["flops_per_second"][p["dtype"]])
                out["naive_share"] = p["flops"] / middle(p) / roof
    calls = {p["call"]: p for p in points if p["name"] == "call"}
    out["fell_back"] = [c for c, p in calls.items() if p["backend"] == "MATH"]
    times = [middle(calls[c]) for c in out["fell_back"] if calls[c]["seconds"]]
    out["cost"] = max(times) / middle(calls["plain"]) if times else 1
    return out


def bounds(record, seconds):
    """The three entries of naive and fused attention."""
    ceilings = record["machine"]["ceilings"]
    there = {}
    for p in record["points"]:
        if p["name"] in ("naive", "fused"):
            there[p["name"], p["n"]] = p
    n = max(p["n"] for p in there.values() if p["name"] == "naive" and p["seconds"])
    out = {}
    for name in ("naive", "fused"):
        p = there[name, n]
        peak, width = ceilings["flops_per_second"][p["dtype"]], ceilings["bytes_per_second"]
        intensity = p["flops"] / p["bytes"]
        out[f"{name}_bound"] = "compute" if intensity * width >= peak else "memory"
        if name == "naive":
            out["naive_share"] = p["flops"] / seconds(p) / min(peak, intensity * width)
    return out


@wrong("who_computed_it", "takes the mean of the samples", "L3-MEAN")
def _(record):
    mean = lambda p: statistics.mean(p["seconds"])
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    back = [c for c in calls if calls[c]["backend"] == "MATH"]
    slow = [mean(calls[c]) for c in back if calls[c]["seconds"]]
    cost = max(slow) / mean(calls["plain"]) if slow else 1
    return bounds(record, mean) | {"fell_back": back, "cost": cost}


@wrong(
    "who_computed_it",
    "believes that every call but the plain one that is not FLASH fell back",
    "L3-OTHER-KERNEL",
    "L3-NOT-PLAIN",
)
def _(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    back = [c for c in calls if c != "plain" and calls[c]["backend"] != "FLASH"]
    slow = [middle(calls[c]) for c in back if calls[c]["seconds"]]
    cost = max(slow) / middle(calls["plain"]) if slow else 1
    return {**bounds(record, middle), "fell_back": back, "cost": cost}


@wrong(
    "who_computed_it",
    "takes the share of the peak, not of the roof at this intensity",
    "L3-SHARE-OF-PEAK",
)
def _(record):
    found = bounds(record, middle)
    naive = max(
        (p for p in record["points"] if p["name"] == "naive" and p["seconds"]),
        key=lambda p: p["n"],
    )
    peak = record["machine"]["ceilings"]["flops_per_second"][naive["dtype"]]
    found["naive_share"] = naive["flops"] / middle(naive) / peak
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    found["fell_back"] = [c for c in calls if calls[c]["backend"] == "MATH"]
    slow = [middle(calls[c]) for c in found["fell_back"] if calls[c]["seconds"]]
    found["cost"] = max(slow) / middle(calls["plain"]) if slow else 1
    return found


@wrong("who_computed_it", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    calls = {p["call"]: p for p in record["points"] if p["name"] == "call"}
    back = [c for c in calls if calls[c]["backend"] == "MATH"]
    slow = [middle(calls[c]) for c in back if calls[c]["seconds"]]
    cost = max(slow) / middle(calls["plain"]) if slow else 1
    return {**bounds(record, middle), "fell_back": back, "cost": cost}


@wrong("who_computed_it", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    result = bounds(record, lambda p: float(np.median(p["seconds"])))
    plain, slowest, result["fell_back"] = None, None, []
    for p in record["points"]:
        if p["name"] != "call":
            continue
        t = float(np.median(p["seconds"])) if p["seconds"] else None
        if p["call"] == "plain":
            plain = t
        if p["backend"] == "MATH":
            result["fell_back"].append(p["call"])
            if t is not None and (slowest is None or t > slowest):
                slowest = t
    result["cost"] = slowest / plain if slowest is not None else 1.0
    return result


# --- Lab 4: step_loop -----------------------------------------------------------------------------


@wrong("step_loop", "gives the first state to every step", "L4-NOT-CARRIED")
def _(cell, inputs, state):
    return torch.stack([cell(inputs[:, t], state) for t in range(inputs.shape[1])], dim=1)


@wrong("step_loop", "returns the last state only", "L4-LAST-STATE")
def _(cell, inputs, state):
    for t in range(inputs.size(1)):
        state = cell(inputs[:, t], state)
    return state


@wrong("step_loop", "walks over the sentences, not over the positions", "L4-OVER-SENTENCES")
def _(cell, inputs, state):
    out = []
    for x in inputs:
        state = cell(x[: len(state)], state[: len(x)])
        out.append(state)
    return torch.stack(out)


@wrong(
    "step_loop",
    "begins with the state before the first position, and leaves the last one out",
    "L4-BEFORE-THE-STEP",
)
def _(cell, inputs, state):
    states = []
    for x in inputs.unbind(1):
        states.append(state)
        state = cell(x, state)
    return torch.stack(states, 1)


@right("step_loop")
def _(cell, inputs, state):
    steps = itertools.accumulate(inputs.unbind(dim=1), lambda h, x: cell(x, h), initial=state)
    return torch.stack(list(steps)[1:], dim=1)


@right("step_loop")
def _(cell, inputs, state):
    b, n, d = inputs.shape
    result = inputs.new_zeros(b, n, state.shape[-1])
    h = state
    for i in range(n):
        h = cell(inputs[:, i, :], h)
        result[:, i, :] = h
    return result


# --- Lab 4: operators -----------------------------------------------------------------------------


@wrong(
    "operators", "divides the count by n and forgets what is fixed", "L4-SHARE-OF-N", "L4-NO-FIXED"
)
def _(run):
    return 0, lab.count(run, 64).total / 64


@wrong("operators", "takes the run on one position for what is fixed", "L4-FIXED-IS-ONE")
def _(run):
    one, two = lab.count(run, 1).total, lab.count(run, 2).total
    return one, two - one


@wrong("operators", "counts kinds of operators, not operators", "L4-KINDS")
def _(run):
    a, b = len(lab.count(run, 2).operations), len(lab.count(run, 4).operations)
    slope = (b - a) / 2
    return a - 2 * slope, slope


@wrong("operators", "gives the two the wrong way round", "L4-PAIR-SWAPPED")
def _(run):
    few, many = lab.count(run, 4).total, lab.count(run, 12).total
    per = (many - few) / 8
    return per, few - 4 * per


@right("operators")
def _(run):
    counts = [lab.count(run, n).total for n in (3, 13)]
    per_position = (counts[1] - counts[0]) // 10
    return counts[0] - 3 * per_position, per_position


@right("operators")
def _(run):
    totals = {n: sum(lab.count(run, n).operations.values()) for n in (1, 2)}
    return 2 * totals[1] - totals[2], totals[2] - totals[1]


# --- Lab 4: longest_chain -------------------------------------------------------------------------


@wrong("longest_chain", "counts all steps", "L4-ALL-STEPS")
def _(needs):
    return len(needs)


@wrong("longest_chain", "counts waits, not steps: one too few", "L4-ARROWS")
def _(needs):
    depth = {}
    for step, before in needs.items():
        depth[step] = max((depth[b] + 1 for b in before), default=0)
    return max(depth.values(), default=0)


@wrong("longest_chain", "calls itself, too deep for thousands of steps", "L4-RECURSION")
def _(needs):
    def depth(step):
        return 1 + max([depth(b) for b in needs[step]], default=0)

    return max([depth(step) for step in needs], default=0)


@wrong("longest_chain", "adds up the chains of all that a step waits for", "L4-WAITS-ADDED")
def _(needs):
    depth = {}
    for step in needs:
        depth[step] = 1 + sum(depth[b] for b in needs[step])
    return max(depth.values(), default=0)


@right("longest_chain")
def _(needs):
    rank, deepest = {}, 0
    for step, waits in needs.items():
        r = 0
        for w in waits:
            if rank[w] > r:
                r = rank[w]
        rank[step] = r + 1
        deepest = max(deepest, r + 1)
    return deepest


@right("longest_chain")
def _(needs):
    done, rounds = set(), 0
    left = dict(needs)
    level = {}
    for step in left:
        level[step] = max([level[w] for w in left[step]] + [0]) + 1
        done.add(step)
        rounds = rounds if rounds > level[step] else level[step]
    return rounds


# --- Lab 4: multiplications -----------------------------------------------------------------------


@wrong("multiplications", "forgets the table: scores and weighted values", "L4-LINEAR-ATTENTION")
def _(layer, b, n, d):
    return b * n * d * d * {"rnn": 2, "gru": 6, "attention": 4}[layer]


@wrong(
    "multiplications",
    "counts the product of the scores only, not that with the values",
    "L4-SCORES-ONLY",
)
def _(layer, b, n, d):
    if layer == "attention":
        return b * (4 * n * d * d + n * n * d)
    return b * n * 2 * d * d * (3 if layer == "gru" else 1)


@wrong("multiplications", "forgets the output projection", "L4-THREE-PROJECTIONS")
def _(layer, b, n, d):
    square = b * n * d**2
    return {"rnn": 2 * square, "gru": 6 * square, "attention": 3 * square + 2 * b * n * n * d}[
        layer
    ]


@wrong("multiplications", "counts additions, too", "L4-OPERATIONS")
def _(layer, b, n, d):
    products = {"rnn": 2, "gru": 6, "attention": 4}[layer] * n * d * d
    if layer == "attention":
        products += 2 * n * n * d
    return 2 * b * products


@right("multiplications")
def _(layer, b, n, d):
    match layer:
        case "rnn":
            return b * n * (d * d + d * d)
        case "gru":
            return 3 * b * n * (d * d + d * d)
        case _:
            return b * (4 * n * d * d + 2 * n * n * d)


@right("multiplications")
def _(layer, b, n, d):
    def product(rows, inner, columns):
        return rows * inner * columns

    if layer == "attention":
        one = sum(product(n, d, d) for _ in "qkvo") + product(n, d, n) + product(n, n, d)
    else:
        one = sum(product(1, d, d) for _ in range(2 * n)) * (3 if layer == "gru" else 1)
    return b * one


# --- Lab 4: verdict -------------------------------------------------------------------------------


def table_of(record, one=statistics.median):
    """(name, b, n) -> seconds."""
    return {
        (p["name"], p["b"], p["n"]): one(p["seconds"]) for p in record["points"] if p["seconds"]
    }


def crossover(times, b):
    """The smallest n from which on attention is behind the fused GRU."""
    ns = sorted(n for name, c, n in times if name == "attention" and c == b)
    found = None
    for n in reversed([n for n in ns if ("fused", b, n) in times]):
        if times["attention", b, n] > times["fused", b, n]:
            found = n
        else:
            break
    return found


def batch(times, name):
    n = max(n for who, b, n in times if who == name and b == 8 and (name, 1, n) in times)
    return times[name, 8, n] / times[name, 1, n]


def always(times, rivals=("loop", "fused")):
    return all(
        t < times[rival, b, n]
        for (name, b, n), t in times.items()
        if name == "attention"
        for rival in rivals
        if (rival, b, n) in times
    )


def held(guess, n):
    return guess == 0 if not n else n / 2 <= guess <= 2 * n


@wrong("verdict", "takes the mean of the samples", "L4-MEAN")
def _(record):
    times = table_of(record, statistics.mean)
    eight = crossover(times, 8)
    return {
        "always_faster": always(times),
        "crossover_1": crossover(times, 1),
        "crossover_8": eight,
        "batch_loop": batch(times, "loop"),
        "batch_attention": batch(times, "attention"),
        "held": held(record["predictions"]["crossover"]["value"], eight),
    }


@wrong(
    "verdict",
    "takes the first n at which attention is behind, though it gets ahead again",
    "L4-FIRST-SLOWER",
)
def _(record):
    times = table_of(record)

    def first(b):
        for n in sorted({n for _, c, n in times if c == b}):
            if ("attention", b, n) in times and ("fused", b, n) in times:
                if times["attention", b, n] > times["fused", b, n]:
                    return n
        return None

    eight = first(8)
    return {
        "always_faster": always(times),
        "crossover_1": first(1),
        "crossover_8": eight,
        "batch_loop": batch(times, "loop"),
        "batch_attention": batch(times, "attention"),
        "held": held(record["predictions"]["crossover"]["value"], eight),
    }


@wrong(
    "verdict",
    "compares attention with the loop only to say whether it is always faster",
    "L4-BEATS-THE-LOOP",
)
def _(record):
    times = table_of(record)
    return dict(
        always_faster=always(times, rivals=("loop",)),
        crossover_1=crossover(times, 1),
        crossover_8=crossover(times, 8),
        batch_loop=batch(times, "loop"),
        batch_attention=batch(times, "attention"),
        held=held(record["predictions"]["crossover"]["value"], crossover(times, 8)),
    )


@wrong("verdict", "turns the batch numbers around", "L4-BATCH-INVERTED")
def _(record):
    times = table_of(record)
    return dict(
        always_faster=always(times),
        crossover_1=crossover(times, 1),
        crossover_8=crossover(times, 8),
        batch_loop=1 / batch(times, "loop"),
        batch_attention=1 / batch(times, "attention"),
        held=held(record["predictions"]["crossover"]["value"], crossover(times, 8)),
    )


@wrong("verdict", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    times = table_of(record)
    cross = {b: crossover(times, b) for b in (1, 8)}
    guess = record["predictions"]["crossover"]["value"]
    return {
        "always_faster": always(times),
        **{f"crossover_{b}": n for b, n in cross.items()},
        **{f"batch_{name}": batch(times, name) for name in ("loop", "attention")},
        "held": held(guess, cross[8]),
    }


@wrong("verdict", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    med = {}
    for p in record["points"]:
        if p["error"] is None:
            s = sorted(p["seconds"])
            med[p["name"], p["b"], p["n"]] = (s[(len(s) - 1) // 2] + s[len(s) // 2]) / 2
    ahead = {
        (b, n, rival): t < med[rival, b, n]
        for (name, b, n), t in med.items()
        for rival in ("loop", "fused")
        if name == "attention" and (rival, b, n) in med
    }
    out = {"always_faster": all(ahead.values())}
    for b in (1, 8):
        behind = sorted(
            (n, not ok) for (c, n, rival), ok in ahead.items() if (c, rival) == (b, "fused")
        )
        from_here = [n for i, (n, _) in enumerate(behind) if all(bad for _, bad in behind[i:])]
        out[f"crossover_{b}"] = from_here[0] if from_here else 0
    for name in ("loop", "attention"):
        both = {n for w, b, n in med if w == name and b == 1} & {
            n for w, b, n in med if w == name and b == 8
        }
        out[f"batch_{name}"] = med[name, 8, max(both)] / med[name, 1, max(both)]
    guess, n = record["predictions"]["crossover"]["value"], out["crossover_8"]
    out["held"] = bool(0.5 <= guess / n <= 2) if n else guess == 0
    return out


# --- Lab 5: cache_bytes ---------------------------------------------------------------------------


@wrong("cache_bytes", "counts keys and forgets values", "L5-KEYS-ONLY")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    return b * layers * kv_heads * n * d * bytes_per_number


@wrong("cache_bytes", "forgets the layers", "L5-ONE-LAYER")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    key = b * kv_heads * n * d
    value = b * kv_heads * n * d
    return (key + value) * bytes_per_number


@wrong("cache_bytes", "counts n by n, as if the table of scores were kept", "L5-SCORES")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    return layers * b * kv_heads * (2 * n * d + n * n) * bytes_per_number


@wrong("cache_bytes", "gives numbers, not bytes", "L5-NUMBERS")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    return math.prod([2, b, layers, kv_heads, n, d])


@right("cache_bytes")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    a_token = 2 * kv_heads * d * layers * bytes_per_number
    return b * n * a_token


@right("cache_bytes")
def _(b, layers, kv_heads, n, d, bytes_per_number):
    one = math.prod((b, kv_heads, n, d)) * bytes_per_number
    return sum(one for _ in range(layers) for _ in ("keys", "values"))


# --- Lab 5: append_to_cache -----------------------------------------------------------------------


@wrong("append_to_cache", "glues new tensors together, a copy of the whole cache", "L5-CAT")
def _(key_cache, value_cache, length, key, value):
    if length + key.shape[2] > key_cache.shape[2]:
        raise ValueError("no room")
    keys = torch.cat([key_cache[:, :, :length], key], dim=2)
    values = torch.cat([value_cache[:, :, :length], value], dim=2)
    return keys, values


@wrong("append_to_cache", "returns the whole cache, rubbish included", "L5-ALL-THE-ROOM")
def _(key_cache, value_cache, length, key, value):
    t = key.size(2)
    if length + t > key_cache.size(2):
        raise ValueError(f"{length + t} positions do not fit")
    key_cache[:, :, length : length + t] = key
    value_cache[:, :, length : length + t] = value
    return key_cache, value_cache


@wrong(
    "append_to_cache", "does not see that there is no room, and writes nothing", "L5-FULL-SILENT"
)
def _(key_cache, value_cache, length, key, value):
    for i in range(key.shape[2]):
        key_cache[:, :, length + i : length + i + 1] = key[:, :, i : i + 1]
        value_cache[:, :, length + i : length + i + 1] = value[:, :, i : i + 1]
    n = length + key.shape[2]
    return key_cache[:, :, :n], value_cache[:, :, :n]


@wrong("append_to_cache", "writes one position only, however many are new", "L5-LAST-ONE-ONLY")
def _(key_cache, value_cache, length, key, value):
    if length + key.shape[2] > key_cache.shape[2]:
        raise ValueError("the cache is full")
    key_cache[:, :, length] = key[:, :, 0]
    value_cache[:, :, length] = value[:, :, 0]
    return key_cache[:, :, : length + 1], value_cache[:, :, : length + 1]


@right("append_to_cache")
def _(key_cache, value_cache, length, key, value):
    t = key.shape[-2]
    # narrow complains by itself when there is no room
    key_cache.narrow(2, length, t).copy_(key)
    value_cache.narrow(2, length, t).copy_(value)
    return key_cache.narrow(2, 0, length + t), value_cache.narrow(2, 0, length + t)


@right("append_to_cache")
def _(key_cache, value_cache, length, key, value):
    n = length + key.shape[2]
    if n > key_cache.shape[2]:
        raise ValueError(f"room for {key_cache.shape[2]} positions; {n} are needed")
    views = []
    for cache, new in ((key_cache, key), (value_cache, value)):
        filled = cache[:, :, :n]
        filled[..., length:, :] = new
        views.append(filled)
    return tuple(views)


# --- Lab 5: decode_step ---------------------------------------------------------------------------


@wrong("decode_step", "copies keys and values out to all heads", "L5-REPEAT-INTERLEAVE")
def _(query, keys, values):
    g = query.shape[1] // keys.shape[1]
    k, v = keys.repeat_interleave(g, dim=1), values.repeat_interleave(g, dim=1)
    w = torch.softmax(query[:, :, None] @ k.mT / math.sqrt(query.shape[-1]), dim=-1)
    return (w @ v)[:, :, 0]


@wrong(
    "decode_step",
    "gives neighboring heads different keys: groups every c-th head",
    "L5-GROUP-ORDER",
)
def _(query, keys, values):
    b, h, d = query.shape
    c = keys.shape[1]
    q = query.view(b, h // c, c, d).transpose(1, 2)
    w = (q @ keys.transpose(-1, -2) * d**-0.5).softmax(-1)
    return (w @ values).transpose(1, 2).reshape(b, h, d)


@wrong("decode_step", "does not scale", "L5-NO-SCALE")
def _(query, keys, values):
    b, h, d = query.shape
    q = query.unflatten(1, (keys.shape[1], -1))
    weights = torch.softmax(torch.einsum("bcgd,bcnd->bcgn", q, keys), dim=-1)
    return torch.einsum("bcgn,bcnd->bcgd", weights, values).reshape(b, h, d)


@wrong("decode_step", "averages the queries of a group into one", "L5-QUERIES-AVERAGED")
def _(query, keys, values):
    b, h, d = query.shape
    c = keys.shape[1]
    q = query.view(b, c, h // c, d).mean(2, keepdim=True)
    w = torch.softmax(q @ keys.mT / math.sqrt(d), -1)
    return (w @ values).expand(b, c, h // c, d).reshape(b, h, d)


@right("decode_step")
def _(query, keys, values):
    b, h, d = query.shape
    c = keys.size(1)
    q = query.reshape(b, c, h // c, d)
    scores = q @ keys.transpose(2, 3)
    weights = torch.softmax(scores / d**0.5, dim=-1)
    return (weights @ values).reshape(b, h, d)


@right("decode_step")
def _(query, keys, values):
    q = einops.rearrange(query, "b (c g) d -> b c g d", c=keys.shape[1])
    s = torch.matmul(q / math.sqrt(q.shape[-1]), keys.mT)
    e = torch.exp(s - s.amax(dim=-1, keepdim=True))
    out = torch.matmul(e, values) / e.sum(-1, keepdim=True)
    return einops.rearrange(out, "b c g d -> b (c g) d")


# --- Lab 5: tokens_per_second ---------------------------------------------------------------------


@wrong("tokens_per_second", "gives the tokens of one sequence", "L5-ONE-TOKEN-A-STEP")
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    return bytes_per_second / (weight_bytes + b * n * bytes_per_token)


@wrong("tokens_per_second", "reads the weights once for each sequence", "L5-WEIGHTS-PER-SEQUENCE")
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    step = b * (weight_bytes + n * bytes_per_token)
    return b * bytes_per_second / step


@wrong("tokens_per_second", "reads the cache of one sequence only", "L5-SHARED-CACHE")
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    seconds = (weight_bytes + n * bytes_per_token) / bytes_per_second
    return b / seconds


@wrong("tokens_per_second", "forgets that there are n tokens in the cache", "L5-ONE-POSITION")
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    moved = weight_bytes + b * bytes_per_token
    return b * (bytes_per_second / moved)


@right("tokens_per_second")
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    one_step = weight_bytes / bytes_per_second
    for _ in range(b):
        one_step += n * bytes_per_token / bytes_per_second
    return b / one_step


@right("tokens_per_second")
def _(b, n, bytes_per_token, weight_bytes, bytes_per_second):
    bytes_for_a_token = weight_bytes / b + n * bytes_per_token
    return bytes_per_second / bytes_for_a_token


# --- Lab 5: conclude_decode -----------------------------------------------------------------------


def kind_of(record, name):
    return {p["n"]: p for p in record["points"] if p["name"] == name and not p["error"]}


def decoded(record, time=lambda p: statistics.median(p["seconds"])):
    """All seven, by the rules."""
    roofs = record["machine"]["ceilings"]
    mha, mqa = kind_of(record, "MHA"), kind_of(record, "MQA")
    last, n = mha[max(mha)], max(mha.keys() & mqa.keys())
    speed = last["bytes"] / time(last)
    up = time(mha[n]) / time(mqa[n])
    ridge = roofs["flops_per_second"][mqa[n]["dtype"]] / roofs["bytes_per_second"]
    done = [p for p in record["points"] if not p["error"]]
    guess = record["predictions"]["speed_up"]["value"]
    return {
        "bytes_per_second": speed,
        "share": speed / roofs["bytes_per_second"],
        "ideal": mha[n]["bytes"] / mqa[n]["bytes"],
        "speed_up": up,
        "computes": mqa[n]["flops"] / mqa[n]["bytes"] > ridge,
        "from_cache": sum(p["bytes"] / time(p) > 1.5 * roofs["bytes_per_second"] for p in done),
        "held": 1 / 1.5 <= guess / up <= 1.5,
    }


@wrong("conclude_decode", "takes the mean of the samples", "L5-MEAN")
def _(record):
    return decoded(record, lambda p: statistics.mean(p["seconds"]))


@wrong("conclude_decode", "takes the first sample, which is often disturbed", "L5-FIRST-SAMPLE")
def _(record):
    return decoded(record, lambda p: p["seconds"][0])


@wrong("conclude_decode", "turns the speed-up around", "L5-UPSIDE-DOWN")
def _(record):
    out = decoded(record)
    out["speed_up"] = 1 / out["speed_up"]
    guess = record["predictions"]["speed_up"]["value"]
    out["held"] = 1 / 1.5 <= guess / out["speed_up"] <= 1.5
    return out


@wrong(
    "conclude_decode",
    "counts as from a cache whatever is faster than a copy",
    "L5-FASTER-THAN-A-COPY",
)
def _(record):
    out = decoded(record)
    copy = record["machine"]["ceilings"]["bytes_per_second"]
    out["from_cache"] = 0
    for p in record["points"]:
        if p["seconds"] and p["bytes"] / statistics.median(p["seconds"]) > copy:
            out["from_cache"] += 1
    return out


@wrong("conclude_decode", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    return dict(decoded(record))


@wrong("conclude_decode", "takes the median on a CPU's clock, too", "C-MEDIAN-EVERYWHERE")
def _(record):
    copy = record["machine"]["ceilings"]["bytes_per_second"]
    rows = {}
    from_cache = 0
    for p in record["points"]:
        if not p["seconds"]:
            continue
        t = float(np.median(np.array(p["seconds"])))
        rows.setdefault(p["name"], {})[p["n"]] = (t, p)
        from_cache += int(p["bytes"] > 1.5 * copy * t)
    t, top = rows["MHA"][max(rows["MHA"])]
    n = sorted(set(rows["MHA"]) & set(rows["MQA"]))[-1]
    (slow, wide), (fast, narrow) = rows["MHA"][n], rows["MQA"][n]
    flops = record["machine"]["ceilings"]["flops_per_second"][narrow["dtype"]]
    off = abs(math.log(record["predictions"]["speed_up"]["value"] / (slow / fast)))
    return {
        "bytes_per_second": top["bytes"] / t,
        "share": top["bytes"] / t / copy,
        "ideal": wide["bytes"] / narrow["bytes"],
        "speed_up": slow / fast,
        "computes": narrow["flops"] / flops > narrow["bytes"] / copy,
        "from_cache": from_cache,
        "held": off <= math.log(1.5),
    }


# --- Lab 6: merge ---------------------------------------------------------------------------------


@wrong("merge", "does not shrink the part with the lower maximum", "L6-NO-RESCALE")
def _(one, two):
    (w1, m1, t1), (w2, m2, t2) = one, two
    return w1 + w2, torch.maximum(m1, m2), t1 + t2


@wrong("merge", "makes NaN where both parts are without keys", "L6-EMPTY-NAN")
def _(one, two):
    w1, m1, t1 = one
    w2, m2, t2 = two
    m = torch.maximum(m1, m2)
    a, b = torch.exp(m1 - m), torch.exp(m2 - m)
    return a[..., None] * w1 + b[..., None] * w2, m, a * t1 + b * t2


@wrong("merge", "counts in units of 1, not of e to the maximum, and overflows", "L6-NO-MAX")
def _(one, two):
    w1, m1, t1 = one
    w2, m2, t2 = two
    top = torch.maximum(m1, m2)
    full = w1 * m1.exp()[..., None] + w2 * m2.exp()[..., None]
    total = t1 * m1.exp() + t2 * m2.exp()
    scale = torch.exp(-top)
    return full * scale[..., None], top, total * scale


@wrong("merge", "divides by the total already", "L6-NORMALIZED")
def _(one, two):
    w1, m1, t1 = one
    w2, m2, t2 = two
    m = torch.maximum(m1, m2)
    low = m.clamp(min=-1e30)
    a, b = torch.exp(m1 - low), torch.exp(m2 - low)
    total = a * t1 + b * t2
    mixed = a.unsqueeze(-1) * w1 + b.unsqueeze(-1) * w2
    return mixed / total.clamp(min=1e-30).unsqueeze(-1), m, total


@right("merge")
def _(one, two):
    stacked = [torch.stack(pair) for pair in zip(one, two)]
    weighted, maximum, total = stacked
    m = maximum.amax(0)
    shrink = torch.where(maximum == -torch.inf, 0.0, torch.exp(maximum - m)).to(total.dtype)
    return (shrink[..., None] * weighted).sum(0), m, (shrink * total).sum(0)


@right("merge")
def _(one, two):
    (w1, m1, t1), (w2, m2, t2) = one, two
    m = torch.maximum(m1, m2)
    safe = torch.where(torch.isinf(m), torch.zeros_like(m), m)
    a, b = (m1 - safe).exp(), (m2 - safe).exp()  # of no key: exp(-inf) = 0
    return torch.einsum("...q,...qv->...qv", a, w1) + b[..., None] * w2, m, a * t1 + b * t2


# --- Lab 6: tiled_attention -----------------------------------------------------------------------


def walk(query, key, value, tile, causal, *, scale=None, offset=None, rescale=True):
    """Attention in tiles, with switches for what somebody may get wrong."""
    b, h, q_len, d = query.shape
    k_len = key.shape[2]
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    scale = d**-0.5 if scale is None else scale
    offset = k_len - q_len if offset is None else offset
    output = torch.zeros(b, h, q_len, value.shape[-1], dtype=query.dtype, device=query.device)
    lse = torch.full((b, h, q_len), -math.inf, dtype=kind, device=query.device)
    for i in range(0, q_len, tile):
        qs = query[:, :, i : i + tile].to(kind) * scale
        rows = qs.shape[2]
        top = torch.full((b, h, rows), -math.inf, dtype=kind, device=query.device)
        total = torch.zeros_like(top)
        mixed = torch.zeros(b, h, rows, value.shape[-1], dtype=kind, device=query.device)
        for j in range(0, k_len, tile):
            ks, vs = key[:, :, j : j + tile].to(kind), value[:, :, j : j + tile].to(kind)
            s = qs @ ks.mT
            if causal:
                r = torch.arange(i, i + rows, device=s.device)[:, None] + offset
                c = torch.arange(j, j + ks.shape[2], device=s.device)[None]
                s = s.masked_fill(c > r, -math.inf)
            new = torch.maximum(top, s.amax(-1))
            safe = new.masked_fill(new == -math.inf, 0)
            p = torch.exp(s - safe[..., None])
            shrink = torch.exp(top - safe)
            if not rescale:
                shrink = (total > 0).to(kind)
            total = total * shrink + p.sum(-1)
            mixed = mixed * shrink[..., None] + p @ vs
            top = new
        seen = total > 0
        inside = mixed / torch.where(seen, total, 1)[..., None]
        output[:, :, i : i + tile] = inside.to(query.dtype)
        lse[:, :, i : i + tile] = torch.where(seen, top + total.log(), -math.inf)
    return output, lse


@wrong("tiled_attention", "does not shrink what it has when a larger score comes", "L6-NO-RESCALE")
def _(query, key, value, tile, causal=False):
    return walk(query, key, value, tile, causal, rescale=False)


@wrong("tiled_attention", "does not scale", "L6-NO-SCALE")
def _(query, key, value, tile, causal=False):
    return walk(query, key, value, tile, causal, scale=1.0)


@wrong(
    "tiled_attention",
    "takes the queries for the first positions where keys are more",
    "L6-CAUSAL-START",
)
def _(query, key, value, tile, causal=False):
    return walk(query, key, value, tile, causal, offset=0)


@wrong("tiled_attention", "makes the whole table at once, which the meter sees", "L6-WHOLE-MATRIX")
def _(query, key, value, tile, causal=False):
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k, v = (x.to(kind) for x in (query, key, value))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        n, m = s.shape[-2:]
        s = s.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1 + m - n), -math.inf)
    return s.softmax(-1).nan_to_num(0).matmul(v).to(query.dtype), s.logsumexp(-1)


@right("tiled_attention")
def _(query, key, value, tile, causal=False):
    return walk(query, key, value, tile, causal)


@right("tiled_attention")
def _(query, key, value, tile, causal=False):
    # keeps a normalized output and its logsumexp, and blends tile by tile
    nq, nk, d = query.shape[2], key.shape[2], query.shape[3]
    acc = torch.promote_types(query.dtype, torch.float32)
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    lse = torch.full(query.shape[:3], -torch.inf, dtype=acc, device=query.device)
    for i0 in range(0, nq, tile):
        i1 = min(i0 + tile, nq)
        q = query[:, :, i0:i1].to(acc) / math.sqrt(d)
        o, L = torch.zeros(*q.shape[:3], value.shape[3]).to(q), lse[:, :, i0:i1]
        for j0 in range(0, nk, tile):
            if causal and j0 > i1 - 1 + nk - nq:
                break
            j1 = min(j0 + tile, nk)
            s = torch.einsum("bhqd,bhkd->bhqk", q, key[:, :, j0:j1].to(acc))
            if causal:
                keep = torch.ones(i1 - i0, j1 - j0, dtype=torch.bool, device=s.device)
                s = s.masked_fill(~keep.tril(i0 - j0 + nk - nq), -torch.inf)
            here = torch.logsumexp(s, -1)
            both = torch.logaddexp(L, here)
            unit = both.masked_fill(both == -torch.inf, 0.0).unsqueeze(-1)
            w = torch.exp(s - unit)
            o = o * torch.exp(L.unsqueeze(-1) - unit) + w @ value[:, :, j0:j1].to(acc)
            L = both
        out[:, :, i0:i1] = o.to(out.dtype)
        lse[:, :, i0:i1] = L
    return out, lse


# --- Lab 6: tiled_backward ------------------------------------------------------------------------


def walk_back(
    query, key, value, output, lse, grad, tile, causal, *, scale=True, bracket=True, mix=""
):
    """The backward pass in tiles, with switches for what somebody may get wrong."""
    kind = lse.dtype
    nq, nk, d = query.shape[2], key.shape[2], query.shape[3]
    gq, gk, gv = (torch.zeros_like(x, dtype=kind) for x in (query, key, value))
    root = d**-0.5
    for i in range(0, nq, tile):
        q, g = query[:, :, i : i + tile].to(kind), grad[:, :, i : i + tile].to(kind)
        o, L = output[:, :, i : i + tile].to(kind), lse[:, :, i : i + tile]
        L = L.masked_fill(-math.inf == L, math.inf)
        mean = (g * o).sum(-1, keepdim=True) if bracket else 0.0
        for j in range(0, nk, tile):
            k, v = key[:, :, j : j + tile].to(kind), value[:, :, j : j + tile].to(kind)
            s = q @ k.mT * root
            if causal:
                r = torch.arange(i, i + q.shape[2], device=s.device)[:, None] + nk - nq
                c = torch.arange(j, j + k.shape[2], device=s.device)
                s = s.masked_fill(c > r, -math.inf)
            w = torch.exp(s - L[..., None])
            gv[:, :, j : j + tile] += w.mT @ g
            ds = w * (g @ v.mT - mean)
            if scale:
                ds = ds * root
            gq[:, :, i : i + tile] += ds @ k
            if mix == "overwrite":
                gk[:, :, j : j + tile] = ds.mT @ q
            else:
                gk[:, :, j : j + tile] += ds.mT @ q
    return gq.to(query.dtype), gk.to(key.dtype), gv.to(value.dtype)


@wrong(
    "tiled_backward",
    "forgets the root of d on the way from scores to queries and keys",
    "L6-NO-SCALE",
)
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    inputs = query, key, value, output, logsumexp, grad_output
    return walk_back(*inputs, tile, causal, scale=False)


@wrong("tiled_backward", "leaves out g times output, the softmax's own share", "L6-NO-MEAN")
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    inputs = query, key, value, output, logsumexp, grad_output
    return walk_back(*inputs, tile, causal, bracket=False)


@wrong(
    "tiled_backward",
    "overwrites the keys' gradient with that of the last tile of queries",
    "L6-OVERWRITES",
)
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    inputs = query, key, value, output, logsumexp, grad_output
    return walk_back(*inputs, tile, causal, mix="overwrite")


@wrong("tiled_backward", "pays no attention to causal", "L6-CAUSAL-IGNORED")
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    inputs = query, key, value, output, logsumexp, grad_output
    return walk_back(*inputs, tile, False)


@right("tiled_backward")
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    inputs = query, key, value, output, logsumexp, grad_output
    return walk_back(*inputs, tile, causal)


@right("tiled_backward")
def _(query, key, value, output, logsumexp, grad_output, tile, causal=False):
    f = logsumexp.dtype
    Nq, Nk, scale = query.shape[2], key.shape[2], 1 / math.sqrt(query.shape[3])
    delta = torch.einsum("bhqv,bhqv->bhq", grad_output.to(f), output.to(f))
    dQ = torch.zeros(query.shape, dtype=f, device=query.device)
    dK, dV = torch.zeros_like(key, dtype=f), torch.zeros_like(value, dtype=f)
    dead = torch.isinf(logsumexp)
    L = torch.where(dead, torch.zeros_like(logsumexp), logsumexp)
    for j in range(0, Nk, tile):  # keys outside, as in the paper
        kj, vj = key[:, :, j : j + tile].to(f), value[:, :, j : j + tile].to(f)
        for i in range(0, Nq, tile):
            rows = slice(i, min(i + tile, Nq))
            qi, gi = query[:, :, rows].to(f), grad_output[:, :, rows].to(f)
            P = torch.exp(torch.einsum("bhqd,bhkd->bhqk", qi, kj) * scale - L[:, :, rows, None])
            P = P.masked_fill(dead[:, :, rows, None], 0)
            if causal:
                ones = torch.ones(P.shape[-2:], dtype=torch.bool, device=P.device)
                P = P.masked_fill(~ones.tril(i - j + Nk - Nq), 0)
            dV[:, :, j : j + tile] += torch.einsum("bhqk,bhqv->bhkv", P, gi)
            dP = torch.einsum("bhqv,bhkv->bhqk", gi, vj)
            dS = scale * P * (dP - delta[:, :, rows, None])
            dQ[:, :, rows] += torch.einsum("bhqk,bhkd->bhqd", dS, kj)
            dK[:, :, j : j + tile] += torch.einsum("bhqk,bhqd->bhkd", dS, qi)
    return dQ.to(query.dtype), dK.to(key.dtype), dV.to(value.dtype)


# --- Lab 6: best_tile -----------------------------------------------------------------------------


def of_clock(point):
    one = min if point["clock"] == "cpu" else statistics.median
    return one(point["seconds"])


@wrong("best_tile", "takes the median on a CPU, too", "L6-MEDIAN-ALWAYS")
def _(record):
    time = lambda p: statistics.median(p["seconds"])
    done = [p for p in record["points"] if p["seconds"]]
    n = max(p["n"] for p in done if p["name"] == "tiled")
    curve = {p["tile"]: time(p) for p in done if p["name"] == "tiled" and p["n"] == n}
    tile = min(curve, key=curve.get)
    naive = [time(p) for p in done if p["name"] == "naive" and p["n"] == n]
    ends = min(curve[min(curve)], curve[max(curve)])
    return {
        "n": n,
        "tile": tile,
        "u_shaped": ends >= 1.1 * curve[tile],
        "speedup": naive[0] / curve[tile] if naive else None,
    }


@wrong("best_tile", "calls it a U if one end rises", "L6-ONE-SLOPE")
def _(record):
    done = [p for p in record["points"] if p["seconds"]]
    n = max(p["n"] for p in done if p["name"] == "tiled")
    curve = {p["tile"]: of_clock(p) for p in done if p["name"] == "tiled" and p["n"] == n}
    tile = min(curve, key=curve.get)
    naive = [of_clock(p) for p in done if p["name"] == "naive" and p["n"] == n]
    return dict(
        n=n,
        tile=tile,
        u_shaped=max(curve[min(curve)], curve[max(curve)]) >= 1.1 * curve[tile],
        speedup=naive[0] / curve[tile] if naive else None,
    )


@wrong("best_tile", "looks at all lengths together for the shortest time", "L6-ALL-LENGTHS")
def _(record):
    tiled = [p for p in record["points"] if p["name"] == "tiled" and not p["error"]]
    n = max(p["n"] for p in tiled)
    fastest = min(tiled, key=of_clock)
    tiles = sorted((p["tile"], of_clock(p)) for p in tiled if p["n"] == n)
    best = of_clock(fastest)
    naive = [p for p in record["points"] if p["name"] == "naive" and p["n"] == n and p["seconds"]]
    return {
        "n": n,
        "tile": fastest["tile"],
        "u_shaped": tiles[0][1] >= 1.1 * best and tiles[-1][1] >= 1.1 * best,
        "speedup": of_clock(naive[0]) / best if naive else None,
    }


@wrong("best_tile", "turns the speed-up around", "L6-UPSIDE-DOWN")
def _(record):
    points = [p for p in record["points"] if p["seconds"]]
    n = max(p["n"] for p in points if p["name"] == "tiled")
    t = {p.get("tile", p["name"]): of_clock(p) for p in points if p["n"] == n}
    sizes = sorted(x for x in t if isinstance(x, int))
    tile = min(sizes, key=t.get)
    return {
        "n": n,
        "tile": tile,
        "u_shaped": all(t[end] >= 1.1 * t[tile] for end in (sizes[0], sizes[-1])),
        "speedup": t[tile] / t["naive"] if "naive" in t else None,
    }


@right("best_tile")
def _(record):
    tiled, naive = {}, {}
    for p in record["points"]:
        if p["seconds"]:
            t = of_clock(p)
            if p["name"] == "tiled":
                tiled.setdefault(p["n"], {})[p["tile"]] = t
            elif p["name"] == "naive":
                naive[p["n"]] = t
    n = max(tiled)
    times = tiled[n]
    fastest = min(times.values())
    tile = next(size for size, t in times.items() if t == fastest)
    slow_ends = [times[size] / fastest >= 1.1 for size in (min(times), max(times))]
    return {
        "n": n,
        "tile": tile,
        "u_shaped": all(slow_ends),
        "speedup": naive[n] / fastest if n in naive else None,
    }


@right("best_tile")
def _(record):
    has_time = [p for p in record["points"] if not p["error"]]
    n = max([p["n"] for p in has_time if p["name"] == "tiled"])
    here = [p for p in has_time if p["n"] == n]
    curve = np.array(sorted((p["tile"], of_clock(p)) for p in here if p["name"] == "tiled"))
    i = int(curve[:, 1].argmin())
    ratio = curve[:, 1] / curve[i, 1]
    rival = next((of_clock(p) for p in here if p["name"] == "naive"), None)
    return {
        "n": n,
        "tile": int(curve[i, 0]),
        "u_shaped": bool(min(ratio[0], ratio[-1]) >= 1.1),
        "speedup": None if rival is None else float(rival / curve[i, 1]),
    }
