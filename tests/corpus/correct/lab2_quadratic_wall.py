"""Right answers of lab 2 in many styles: the judge must accept every one of them, on every seed."""

import bisect
import itertools
import math
import statistics

import einops
import numpy as np
import torch

from attncourse import lab
from attncourse.lab.receipts import encode, wrap
from attncourse.tasks import made_up
from attncourse.tasks.lab2_quadratic_wall.lab2_receipt import a_record

# --- naive_attention


def three_lines(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return weights @ v


def in_one_line(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, -1) @ v


def query_scaled_first(q, k, v):
    return (q * q.shape[-1] ** -0.5 @ k.mT).softmax(dim=-1) @ v


def by_einsum(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)


def by_einops(q, k, v):
    scores = einops.einsum(q, k, "b h q d, b h k d -> b h q k") / math.sqrt(q.shape[-1])
    return einops.einsum(scores.softmax(-1), v, "b h q k, b h k d -> b h q d")


def softmax_by_hand(q, k, v):
    scores = torch.matmul(q, k.mT).div(math.sqrt(k.size(-1)))
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True) @ v


def divided_at_the_end(q, k, v):
    exponentials = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return exponentials @ v / exponentials.sum(-1, keepdim=True)


def in_three_axes(q, k, v):
    b, h, n, d = q.shape
    q, k, v = (tensor.reshape(b * h, n, d) for tensor in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d)
    return torch.bmm(torch.nn.functional.softmax(scores, dim=2), v).reshape(b, h, n, d)


def in_place(q, k, v):
    scores = q @ k.mT
    scores /= math.sqrt(q.shape[-1])
    scores -= scores.max(-1, keepdim=True).values
    scores = scores.exp_()
    return scores.div(scores.sum(-1, keepdim=True)) @ v


# --- peak_bytes


def tables_and_output(b, h, n, d, bytes_per_number):
    scores = weights = n * n
    output = n * d
    return b * h * (scores + weights + output) * bytes_per_number


def factored(b, h, n, d, bytes_per_number):
    return bytes_per_number * b * h * n * (2 * n + d)


def as_a_float(b, h, n, d, bytes_per_number):
    return float(bytes_per_number) * b * h * (2.0 * n**2 + n * d)


def by_the_meter(b, h, n, d, bytes_per_number):
    dtype = {1: torch.int8, 2: torch.float16, 4: torch.float32, 8: torch.float64}[bytes_per_number]
    table = torch.empty(b, h, n, n, dtype=dtype, device="meta")
    output = torch.empty(b, h, n, d, dtype=dtype, device="meta")
    return 2 * table.nbytes + output.nbytes


def by_a_product(b, h, n, d, bytes_per_number):
    return math.prod((b, h, n, n + n + d, bytes_per_number))


def by_counting(b, h, n, d, bytes_per_number):
    alive = {"scores": (b, h, n, n), "weights": (b, h, n, n), "output": (b, h, n, d)}
    return sum(map(math.prod, alive.values())) * bytes_per_number


def with_row_maxima(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d + n) * bytes_per_number


# --- fit_growth


def median_of_all_slopes_beyond(sizes, seconds):
    points = sorted(zip(sizes, seconds, strict=True))
    beyond = [(n, s) for n, s in points if s > 10 * min(seconds)]
    return statistics.median(
        math.log(t / s) / math.log(m / n) for (n, s), (m, t) in itertools.combinations(beyond, 2)
    )


def repeated_medians(sizes, seconds):
    order = np.argsort(sizes)
    n, s = np.array(sizes, float)[order], np.array(seconds, float)[order]
    x, y = np.log(n[s > 12 * s.min()]), np.log(s[s > 12 * s.min()])
    with np.errstate(all="ignore"):
        slopes = (y[:, None] - y) / (x[:, None] - x)
    return float(np.median([np.median(np.delete(row, i)) for i, row in enumerate(slopes)]))


def every_exponent_tried(sizes, seconds):
    n, s = np.array(sizes, float), np.array(seconds, float)
    x, y = np.log(n[s > 10 * s.min()]), np.log(s[s > 10 * s.min()])
    misfit = {}
    for p in np.arange(0.5, 4, 0.005):
        rest = y - p * x
        misfit[p] = np.abs(rest - np.median(rest)).sum()
    return float(min(misfit, key=misfit.get))


def far_points_trusted_less(sizes, seconds):
    n, s = np.array(sizes, float), np.array(seconds, float)
    keep = s > 10 * s.min()
    x, y = np.log(n[keep]), np.log(s[keep])
    trust = np.ones_like(x)
    for _ in range(60):
        slope, start = np.polyfit(x, y, 1, w=np.sqrt(trust))
        trust = 1 / np.maximum(np.abs(y - slope * x - start), 1e-4)
    return slope


def worst_point_left_out(sizes, seconds):
    pairs = [(math.log(n), math.log(s)) for n, s in zip(sizes, seconds, strict=True)
             if s > 10 * min(seconds)]  # fmt: skip

    def line(points):
        slope, start = np.polyfit(*zip(*points, strict=True), 1)
        return slope, sum((y - slope * x - start) ** 2 for x, y in points)

    without = [line([p for p in pairs if p is not each]) for each in pairs]
    return float(min(without, key=lambda found: found[1])[0])


def by_torch(sizes, seconds):
    n, order = torch.tensor(sizes, dtype=torch.float64).sort()
    s = torch.tensor(seconds, dtype=torch.float64)[order]
    beyond = s > 8 * s.min()
    x, y = n[beyond].log(), s[beyond].log()
    i, j = torch.triu_indices(len(x), len(x), 1)
    slopes = ((y[j] - y[i]) / (x[j] - x[i])).sort().values
    return ((slopes[len(slopes) // 2] + slopes[(len(slopes) - 1) // 2]) / 2).item()


def threshold_as_a_variable(sizes, seconds):
    data = dict(zip(sizes, seconds, strict=True))
    overhead = min(data.values())
    kept = sorted(n for n in data if data[n] / overhead > 10)
    slopes = []
    for place, n in enumerate(kept):
        for m in kept[place + 1 :]:
            slopes.append((math.log2(data[m]) - math.log2(data[n])) / (math.log2(m) - math.log2(n)))
    slopes.sort()
    return slopes[len(slopes) // 2]


# --- largest_n


def by_the_root(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (2 * b * h * bytes_per_number)
    return math.isqrt(room + d * d) - d


def by_halving(memory_bytes, b, h, d, bytes_per_number):
    def fits(n):
        return b * h * bytes_per_number * (2 * n * n + 4 * n * d) <= memory_bytes

    low, high = 0, 1
    while fits(high):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def counting_up(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    while b * h * bytes_per_number * (2 * (n + 1) ** 2 + 4 * (n + 1) * d) <= memory_bytes:
        n += 1
    return n


def a_float_and_a_look(memory_bytes, b, h, d, bytes_per_number):
    share = memory_bytes / (b * h * bytes_per_number)
    n = int((-4 * d + math.sqrt(16 * d * d + 8 * share)) / 4) + 2
    while n > 0 and (2 * n * n + 4 * n * d) * b * h * bytes_per_number > memory_bytes:
        n -= 1
    return n


def by_bisect(memory_bytes, b, h, d, bytes_per_number):
    def need(n):
        return b * h * bytes_per_number * (2 * n * n + 4 * n * d)

    return bisect.bisect_right(range(1, 1 << 30), memory_bytes, key=need)


def bit_by_bit(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    for bit in reversed(range(32)):
        m = n | 1 << bit
        if (2 * m * m + m * d + 3 * m * d) * b * h * bytes_per_number <= memory_bytes:
            n = m
    return n


# --- lab2_receipt


CPU_SIZES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


def a_cpu(gigabytes):
    return made_up.CPU | {"memory_bytes": gigabytes * 10**9}


def on_a_t4():
    return encode(a_record())


def on_a_cpu():
    return encode(a_record(a_cpu(13), sizes=CPU_SIZES))


def in_lines_with_its_name():
    return f'\n    RECEIPT = """\n{wrap(encode(a_record(seed=1)))}\n"""\n'


def on_a_busy_computer():  # it is asked to measure again, and loses nothing
    return encode(a_record(a_cpu(8), sizes=CPU_SIZES, busy=3.4, noise=0.3, samples=25))


def with_little_memory():
    return encode(a_record(a_cpu(1), sizes=(256, 512, 1024, 2048, 4096, 8192)))


def with_one_table_more_and_wild_guesses():
    return encode(a_record(seed=5, tables=3, predicted=(0.5, 1000.0, 1)))


def with_few_sizes():
    return encode(a_record(seed=6, sizes=(512, 1024, 2048, 4096)))


# --- conclude


def shortest_or_middle(point):
    return (min if point["clock"] == "cpu" else statistics.median)(point["seconds"])


def medians_and_the_course_fit(record):
    done = [p for p in record["points"] if not p["error"]]
    naive = {p["n"]: p for p in done if p["name"] == "naive"}
    fused = {p["n"]: p for p in done if p["name"] == "fused"}
    middle = {n: shortest_or_middle(p) for n, p in fused.items()}
    p = lab.fit_exponent(list(naive), [each["peak_bytes"] for each in naive.values()]).exponent
    n = max(set(naive) & set(fused))
    top = max(naive)
    wall = top * (record["machine"]["memory_bytes"] / naive[top]["peak_bytes"]) ** (1 / p)
    guess = record["predictions"]["wall"]["value"]
    return {
        "time_exponent": lab.fit_exponent(list(middle), list(middle.values())).exponent,
        "memory_exponent": p,
        "ratio": shortest_or_middle(naive[n]) / middle[n],
        "wall": wall,
        "held": max(wall / guess, guess / wall) <= 1.5,
    }


def by_one_rule(record):
    def number(point):
        times = np.array(point["seconds"])
        return np.min(times) if point["clock"] == "cpu" else np.median(times)

    time, peak = {"naive": {}, "fused": {}}, {}
    for point in record["points"]:
        if point["seconds"]:
            time[point["name"]][point["n"]] = number(point)
            if point["name"] == "naive":
                peak[point["n"]] = point["peak_bytes"]
    common = sorted(time["naive"].keys() & time["fused"].keys())
    bytes_fit = lab.fit_exponent(*zip(*peak.items(), strict=True))
    exponent = bytes_fit.exponent
    wall = (record["machine"]["memory_bytes"] / bytes_fit.scale) ** (1 / exponent)
    return {
        "time_exponent": lab.fit_exponent(*zip(*time["fused"].items(), strict=True)).exponent,
        "memory_exponent": exponent,
        "ratio": time["naive"][common[-1]] / time["fused"][common[-1]],
        "wall": int(wall),
        "held": abs(math.log(record["predictions"]["wall"]["value"] / wall)) <= math.log(1.5),
    }


def slopes_by_hand(record):
    def middle(point):
        return float(np.quantile(point["seconds"], 0 if point["clock"] == "cpu" else 0.5))

    def growth(pairs, beyond):
        pairs = sorted(pairs)
        least = min(value for _, value in pairs)
        kept = [(n, value) for n, value in pairs if value > beyond * least]
        slopes = [
            np.log(t / s) / np.log(m / n) for (n, s), (m, t) in itertools.combinations(kept, 2)
        ]
        return float(np.median(slopes))

    ok = [point for point in record["points"] if point["error"] is None]
    naive = {point["n"]: point for point in ok if point["name"] == "naive"}
    fused = {point["n"]: point for point in ok if point["name"] == "fused"}
    n = max(n for n in naive if n in fused)
    p = growth([(n, each["peak_bytes"]) for n, each in naive.items()], 0)
    largest = max(naive)
    room = record["machine"]["memory_bytes"] / naive[largest]["peak_bytes"]
    wall = largest * room ** (1 / p)
    ratio = record["predictions"]["wall"]["value"] / wall
    return {
        "time_exponent": growth([(n, middle(each)) for n, each in fused.items()], 5),
        "memory_exponent": p,
        "ratio": middle(naive[n]) / middle(fused[n]),
        "wall": wall,
        "held": 2 / 3 <= ratio <= 3 / 2,
    }


def numbers_of_numpy(record):
    found = medians_and_the_course_fit(record)
    return {name: np.float64(value) for name, value in found.items()}


def with_more_than_was_asked(record):
    found = medians_and_the_course_fit(record)
    failed = [p["n"] for p in record["points"] if p["error"]]
    return found | {"first failure": min(failed, default=None)}


def tensors_and_numbers(record):
    found = by_one_rule(record)
    found["ratio"] = torch.tensor(found["ratio"], dtype=torch.float64)
    found["held"] = int(found["held"])
    return found


CORRECT = {
    "naive_attention": [
        three_lines,
        in_one_line,
        query_scaled_first,
        by_einsum,
        by_einops,
        softmax_by_hand,
        divided_at_the_end,
        in_three_axes,
        in_place,
    ],
    "peak_bytes": [
        tables_and_output,
        factored,
        as_a_float,
        by_the_meter,
        by_a_product,
        by_counting,
        with_row_maxima,
    ],
    "fit_growth": [
        median_of_all_slopes_beyond,
        repeated_medians,
        every_exponent_tried,
        far_points_trusted_less,
        worst_point_left_out,
        by_torch,
        threshold_as_a_variable,
    ],
    "largest_n": [
        by_the_root,
        by_halving,
        counting_up,
        a_float_and_a_look,
        by_bisect,
        bit_by_bit,
    ],
    "lab2_receipt": [
        on_a_t4,
        on_a_cpu,
        in_lines_with_its_name,
        on_a_busy_computer,
        with_little_memory,
        with_one_table_more_and_wild_guesses,
        with_few_sizes,
    ],
    "conclude": [
        medians_and_the_course_fit,
        by_one_rule,
        slopes_by_hand,
        numbers_of_numpy,
        with_more_than_was_asked,
        tensors_and_numbers,
    ],
}
