"""Wrong answers of lab 2. Each differs from a right one in one thought."""

import itertools
import math
import random
import statistics

import numpy as np
import torch

from attncourse.lab import fits
from attncourse.lab.receipts import encode
from attncourse.misconceptions import Collection

collection = Collection()
wrong = collection.misconception

# --- naive_attention ----------------------------------------------------------------------------

NAIVE = "naive_attention"


def sixteen_queries_at_a_time(q, k, v):
    blocks = [
        torch.softmax(block @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v
        for block in q.split(16, dim=-2)
    ]
    return torch.cat(blocks, dim=-2)


@wrong(
    "L2-ROW-BY-ROW",
    NAIVE,
    thinks="Naive means a loop: one query after the other.",
    why="The values are right, but only one row of scores exists at a time, so memory grows like "
    "n and there is no wall to find. Here, naive means that the whole table is made.",
    section="lab2-naive",
    variants=(sixteen_queries_at_a_time,),
)
def row_by_row(q, k, v):
    rows = []
    for i in range(q.shape[-2]):
        scores = q[:, :, i : i + 1] @ k.mT / math.sqrt(q.shape[-1])
        rows.append(torch.softmax(scores, dim=-1) @ v)
    return torch.cat(rows, dim=-2)


@wrong(
    "L2-HEAD-BY-HEAD",
    NAIVE,
    thinks="Each head does its own attention, so there is a loop over the heads.",
    why="The values are right, but the table of one head is freed before the next is made: the "
    "peak no longer grows with h. A GPU works on all heads at once; let one product do that.",
    section="lab2-naive",
)
def head_by_head(q, k, v):
    outputs = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h] @ k[b, h].mT / math.sqrt(q.shape[-1])
            outputs.append(torch.softmax(scores, dim=-1) @ v[b, h])
    return torch.stack(outputs).reshape(q.shape)


@wrong(
    "L2-SENTENCE-BY-SENTENCE",
    NAIVE,
    thinks="The sentences of a batch have nothing to do with each other, so I loop over them.",
    why="The values are right, but the scores of one sentence are freed before those of the next "
    "are made, so the peak does not grow with b. One product takes the whole batch.",
    section="lab2-naive",
)
def sentence_by_sentence(q, k, v):
    outputs = []
    for query, key, value in zip(q, k, v, strict=True):
        scores = query @ key.mT / math.sqrt(q.shape[-1])
        outputs.append(torch.softmax(scores, dim=-1) @ value)
    return torch.stack(outputs)


@wrong(
    "L2-BROADCAST-PRODUCT",
    NAIVE,
    thinks="Multiply every query with every key, elementwise, and sum over d afterward.",
    why="The values are right, but all products exist before the sum: d times as many numbers as "
    "there are scores. A matrix product adds them up as it goes.",
    section="lab2-naive",
)
def all_products_first(q, k, v):
    products = q[:, :, :, None, :] * k[:, :, None, :, :]
    scores = products.sum(-1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


@wrong(
    "L2-NO-SCALE",
    NAIVE,
    thinks="Attention is softmax(qkᵀ)v.",
    why="The scores are not divided, so they spread more the wider the heads are. Time and memory "
    "look the same; the result is another one. Compare with the fused call before you time it.",
    section="lab2-naive",
)
def without_the_root(q, k, v):
    return torch.softmax(q @ k.mT, dim=-1) @ v


@wrong(
    "L2-SCALE-BY-N",
    NAIVE,
    thinks="The scores are divided by the root of the last axis of the table, n.",
    why="What is summed in a score is d products, so the root is that of d, the width of a head. "
    "With n the weights would become more even in every longer text.",
    section="lab2-naive",
)
def divided_by_root_n(q, k, v):
    scores = q @ k.mT
    return torch.softmax(scores / math.sqrt(scores.shape[-1]), dim=-1) @ v


@wrong(
    "L2-SOFTMAX-AXIS",
    NAIVE,
    thinks="Softmax over axis −2: every key shares out its weight among the queries.",
    why="It is the query that shares out its attention among the keys: each row sums to one, and a "
    "row runs along the last axis.",
    section="lab2-naive",
)
def softmax_over_queries(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-2) @ v


@wrong(
    "L2-HEADS-MIXED",
    NAIVE,
    thinks="The axes are (b n h d), as in many libraries, so heads and positions are swapped.",
    why="Here they are (b h n d). Swapped, each position compares its heads with each other: the "
    "shape is right, no position hears another, and there is no n × n.",
    section="lab2-naive",
)
def heads_and_positions_swapped(q, k, v):
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)


# --- peak_bytes ---------------------------------------------------------------------------------

PEAK = "peak_bytes"


@wrong(
    "L2-ONE-TABLE",
    PEAK,
    thinks="There is one n × n table: the scores become the weights.",
    why="Softmax writes a new table while it reads the old one, and the scores keep their name "
    "until the function ends. Two tables are there at once.",
    section="lab2-peak",
)
def one_table(b, h, n, d, bytes_per_number):
    return b * h * (n * n + n * d) * bytes_per_number


@wrong(
    "L2-THREE-TABLES",
    PEAK,
    thinks="Product, scaled scores and weights: three n × n tables.",
    why="Three are made, but never are all alive: the unscaled product has no name, so it is freed "
    "as soon as the scaled one is there. The peak counts what is alive at once.",
    section="lab2-peak",
)
def three_tables(b, h, n, d, bytes_per_number):
    return b * h * (3 * n * n + n * d) * bytes_per_number


@wrong(
    "L2-PASSES",
    PEAK,
    thinks="The scores are written and read six times in all, so six tables count.",
    why="That is traffic, bytes that move, and it decides about the time. The peak asks how much "
    "is in memory at one moment; a table read twice is there once.",
    section="lab2-peak",
)
def passes_over_memory(b, h, n, d, bytes_per_number):
    return b * h * (6 * n * n + 4 * n * d) * bytes_per_number


@wrong(
    "L2-ONE-HEAD",
    PEAK,
    thinks="A table has n × n numbers.",
    why="Each head has one of its own, and they are all made by the same product. The number of "
    "heads counts like the number of sentences.",
    section="lab2-peak",
)
def without_heads(b, h, n, d, bytes_per_number):
    return b * (2 * n * n + n * d) * bytes_per_number


@wrong(
    "L2-ONE-SENTENCE",
    PEAK,
    thinks="The batch does not matter: attention is within a sentence.",
    why="It is, but all sentences of a batch are computed at once, and each has its own tables.",
    section="lab2-peak",
)
def without_batch(b, h, n, d, bytes_per_number):
    return h * (2 * n * n + n * d) * bytes_per_number


@wrong(
    "L2-HEADS-SPLIT-TABLES",
    PEAK,
    thinks="Heads split the width d among them, so the tables get smaller with more heads.",
    why="They split the width of the model, and d is what each head has. A table has n × n numbers "
    "whatever the width; more heads make more tables.",
    section="lab2-peak",
)
def smaller_with_more_heads(b, h, n, d, bytes_per_number):
    return b * (2 * n * n // h + n * d) * bytes_per_number


@wrong(
    "L2-NUMBERS",
    PEAK,
    thinks="The peak is the count of numbers.",
    why="Memory is counted in bytes, and a number takes four of them in float32, two in float16. "
    "That is why half precision moves the wall.",
    section="lab2-peak",
)
def numbers_not_bytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d)


@wrong(
    "L2-ALWAYS-FLOAT32",
    PEAK,
    thinks="A number takes four bytes.",
    why="In float32 it does. The function is told how many bytes a number takes; a T4 works in "
    "float16, with two.",
    section="lab2-peak",
)
def always_four_bytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d) * 4


@wrong(
    "L2-TABLES-ONLY",
    PEAK,
    thinks="Only the n × n tables matter.",
    why="For long sequences, yes. Where n is not much larger than d, the output is as large as a "
    "table: with n = d it is a third of the peak.",
    section="lab2-peak",
)
def tables_only(b, h, n, d, bytes_per_number):
    return b * h * 2 * n * n * bytes_per_number


@wrong(
    "L2-INPUTS-IN-PEAK",
    PEAK,
    thinks="q, k and v take memory, so they belong to the peak of the call.",
    why="They do take memory, before the call as well as during it. The peak counts what the call "
    "allocates itself; the inputs are added when you ask what fits.",
    section="lab2-peak",
)
def with_inputs(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + 4 * n * d) * bytes_per_number


def in_gibibytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d) * bytes_per_number / 2**30


@wrong(
    "L2-MEGABYTES",
    PEAK,
    thinks="Memory is best said in megabytes.",
    why="For people, yes. A function that returns bytes can be compared with the meter and added "
    "to other bytes; divide when you print.",
    section="lab2-peak",
    variants=(in_gibibytes,),
)
def in_megabytes(b, h, n, d, bytes_per_number):
    return b * h * (2 * n * n + n * d) * bytes_per_number / 1e6


# --- fit_growth ---------------------------------------------------------------------------------

FIT = "fit_growth"


def theil_sen_over_everything(sizes, seconds):
    x, y = np.log(sizes), np.log(seconds)
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


@wrong(
    "L2-ALL-SIZES",
    FIT,
    thinks="The more points, the better the line: all sizes go into the fit.",
    why="At the small sizes nearly all time is fixed cost, which does not grow. These points are "
    "not noise that averages out; they pull the slope down. Use the sizes where work rules.",
    section="lab2-fit",
    variants=(theil_sen_over_everything,),
)
def line_through_everything(sizes, seconds):
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


@wrong(
    "L2-LEAST-SQUARES",
    FIT,
    thinks="Leave out the overhead, then least squares finds the slope.",
    why="A square gives one wild value more say than all the others, and at the end of the line it "
    "has the longest lever. Medians do not mind one wild value.",
    section="lab2-fit",
)
def squares_on_the_tail(sizes, seconds):
    points = [(n, s) for n, s in zip(sizes, seconds, strict=True) if s > 10 * min(seconds)]
    n, s = zip(*points, strict=True)
    return float(np.polyfit(np.log(n), np.log(s), 1)[0])


@wrong(
    "L2-ENDPOINTS",
    FIT,
    thinks="The slope is that from the first point to the last.",
    why="Then two measurements decide, and the first of them is mostly fixed cost. All that lies "
    "between is thrown away.",
    section="lab2-fit",
)
def from_first_to_last(sizes, seconds):
    (small, early), *_, (large, late) = sorted(zip(sizes, seconds, strict=True))
    return math.log(late / early) / math.log(large / small)


@wrong(
    "L2-LAST-TWO",
    FIT,
    thinks="Only the largest sizes are free of overhead, so the last two points give the slope.",
    why="The thought is right, but two points have no witness: if one of them is wild, nothing "
    "shows it. Use all sizes where the fixed cost is small.",
    section="lab2-fit",
)
def last_two(sizes, seconds):
    (small, early), (large, late) = sorted(zip(sizes, seconds, strict=True))[-2:]
    return math.log(late / early) / math.log(large / small)


@wrong(
    "L2-NO-LOGARITHM",
    FIT,
    thinks="The slope of seconds over n is the growth.",
    why="That slope has a unit, seconds per position, and it changes along the curve. An exponent "
    "is a slope between logarithms.",
    section="lab2-fit",
)
def slope_without_logarithms(sizes, seconds):
    return float(np.polyfit(sizes, seconds, 1)[0])


@wrong(
    "L2-ONE-LOGARITHM",
    FIT,
    thinks="Take the logarithm of the times and fit a line over n.",
    why="A straight line there means growth like eⁿ, where each further position multiplies the "
    "time. A power law is straight where both axes are logarithmic.",
    section="lab2-fit",
)
def logarithm_of_times_only(sizes, seconds):
    return float(np.polyfit(sizes, np.log(seconds), 1)[0])


@wrong(
    "L2-SLOPE-UPSIDE-DOWN",
    FIT,
    thinks="The slope is the change of log n over the change of log seconds.",
    why="That is by which power n grows with the time, the inverse: 0.5 instead of 2. What depends "
    "stands above the fraction bar.",
    section="lab2-fit",
)
def upside_down(sizes, seconds):
    points = sorted(zip(sizes, seconds, strict=True))
    beyond = [(n, s) for n, s in points if s > 10 * min(seconds)]
    slopes = [
        math.log(m / n) / math.log(t / s)
        for i, (n, s) in enumerate(beyond)
        for m, t in beyond[i + 1 :]
    ]
    return statistics.median(slopes)


@wrong(
    "L2-SIZES-DOUBLE",
    FIT,
    thinks="Each size is twice the one before, so the base-2 logarithm of the ratio of times will "
    "do.",
    why="These sizes grow by steps of their own. Divide by the logarithm of the ratio of the "
    "sizes: it is 1 only where they double.",
    section="lab2-fit",
)
def assumes_doubling(sizes, seconds):
    points = sorted(zip(sizes, seconds, strict=True))
    beyond = [s for _, s in points if s > 10 * min(seconds)]
    return statistics.median(math.log2(late / early) for early, late in itertools.pairwise(beyond))


@wrong(
    "L2-AS-THEY-CAME",
    FIT,
    thinks="The second half of the list holds the large sizes.",
    why="Only if the list is sorted, and a lab that was interrupted and resumed is not. Sort the "
    "pairs first.",
    section="lab2-fit",
)
def second_half_of_the_list(sizes, seconds):
    half = len(sizes) // 2
    x, y = np.log(sizes[half:]), np.log(seconds[half:])
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


@wrong(
    "L2-INTERCEPT",
    FIT,
    thinks="The second number that polyfit returns is the exponent.",
    why="polyfit gives the highest power first: the slope, then the intercept. The intercept is "
    "the logarithm of the time at n = 1.",
    section="lab2-fit",
)
def the_intercept(sizes, seconds):
    points = [(n, s) for n, s in zip(sizes, seconds, strict=True) if s > 10 * min(seconds)]
    n, s = zip(*points, strict=True)
    return float(np.polyfit(np.log(n), np.log(s), 1)[1])


@wrong(
    "L2-COURSES-FIT",
    FIT,
    thinks="The package has fit_exponent, so I call that.",
    why="From the next task on you may. This one asks you to write a fit, so that you know what it "
    "leaves out and why; then compare the two.",
    section="lab2-fit",
)
def calls_the_package(sizes, seconds):
    return fits.fit_exponent(sizes, seconds).exponent


# --- largest_n ----------------------------------------------------------------------------------

WALL = "largest_n"


@wrong(
    "L2-NO-ROOT",
    WALL,
    thinks="Divide the memory by what one position needs.",
    why="A position needs more the more others there are: the tables grow like n². Twice the "
    "memory gives only 1.4 times the positions.",
    section="lab2-wall",
)
def linear_wall(memory_bytes, b, h, d, bytes_per_number):
    return memory_bytes // (b * h * 4 * d * bytes_per_number)


@wrong(
    "L2-WALL-ONE-TABLE",
    WALL,
    thinks="The scores have to fit: n² numbers for each head.",
    why="Scores and weights are alive at once, so twice that has to fit. With one table you would "
    "promise 1.4 times as many positions as there is room for.",
    section="lab2-wall",
)
def room_for_one_table(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    step = 1 << 40
    while step:
        m = n + step
        if b * h * (m * m + 4 * m * d) * bytes_per_number <= memory_bytes:
            n = m
        step //= 2
    return n


@wrong(
    "L2-WALL-NO-INPUTS",
    WALL,
    thinks="What peak_bytes says has to fit.",
    why="The queries, keys and values are in memory as well, all the time. They are small for long "
    "sequences, not for wide heads.",
    section="lab2-wall",
)
def peak_alone(memory_bytes, b, h, d, bytes_per_number):
    n = 0
    step = 1 << 40
    while step:
        m = n + step
        if b * h * (2 * m * m + m * d) * bytes_per_number <= memory_bytes:
            n = m
        step //= 2
    return n


@wrong(
    "L2-WALL-TABLES-ONLY",
    WALL,
    thinks="Two tables have to fit; the rest is small.",
    why="For long sequences it is. But the answer should be exact, and with wide heads q, k, v and "
    "the output take more than the tables.",
    section="lab2-wall",
)
def root_of_the_memory(memory_bytes, b, h, d, bytes_per_number):
    return math.isqrt(memory_bytes // (2 * b * h * bytes_per_number))


@wrong(
    "L2-ONE-TOO-MANY",
    WALL,
    thinks="Count up until it no longer fits, and return that.",
    why="That is the first n that fails. Asked for is the last one that works, one less.",
    section="lab2-wall",
)
def first_that_fails(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (2 * b * h * bytes_per_number)
    return math.isqrt(room + d * d) - d + 1


@wrong(
    "L2-STRICTLY-LESS",
    WALL,
    thinks="What is needed must be less than the memory.",
    why="As much as there is will do: the last byte may be used. Where the need is exactly the "
    "memory, you stop one position early.",
    section="lab2-wall",
)
def less_than_the_memory(memory_bytes, b, h, d, bytes_per_number):
    room = max(memory_bytes - 1, 0) // (2 * b * h * bytes_per_number)
    return math.isqrt(room + d * d) - d


@wrong(
    "L2-POWERS-OF-TWO",
    WALL,
    thinks="Sequence lengths are powers of two.",
    why="Benchmarks like them, memory does not care. Between 8,192, which fits, and 16,384, which "
    "does not, the wall stands somewhere.",
    section="lab2-wall",
)
def doubling_only(memory_bytes, b, h, d, bytes_per_number):
    n = 1
    while b * h * (2 * n * n + 4 * n * d) * bytes_per_number <= memory_bytes:
        n *= 2
    return n // 2


@wrong(
    "L2-WALL-ONE-HEAD",
    WALL,
    thinks="One head after the other has to fit.",
    why="All heads of all sentences are computed at once. With 16 heads the wall stands four times "
    "nearer than for one.",
    section="lab2-wall",
)
def one_head_must_fit(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (2 * bytes_per_number)
    return math.isqrt(room + d * d) - d


@wrong(
    "L2-WALL-NUMBERS",
    WALL,
    thinks="The memory holds so many numbers.",
    why="It holds so many bytes, and each number takes several.",
    section="lab2-wall",
)
def numbers_must_fit(memory_bytes, b, h, d, bytes_per_number):
    room = memory_bytes // (2 * b * h)
    return math.isqrt(room + d * d) - d


# --- lab2_receipt -------------------------------------------------------------------------------

RECEIPT = "lab2_receipt"


def a_record(sizes=(256, 512, 1024, 2048, 4096, 8192, 16384), samples=20):
    """A record as a T4 could have measured it."""
    chance, now, made = random.Random(7), 2.0, []
    for n in sizes:
        both = []
        for name, true in (
            ("naive", max(2e-5, 2.2e-10 * 3.0 * n * n)),
            ("fused", max(1.5e-5, 3.6e-10 * n * n)),
        ):
            failed = name == "naive" and n > 8192
            both.append(
                {
                    "name": name,
                    "n": n,
                    "b": 1,
                    "h": 16,
                    "d": 64,
                    "dtype": "float16",
                    "seconds": [],
                    "started": [],
                    "clock": "events",
                    "peak_bytes": None
                    if failed
                    else 32 * (2 * n * n + n * 64 if name == "naive" else n * 66),
                    "flops": 4096.0 * n * n,
                    "backend": "EFFICIENT" if name == "fused" else None,
                    "error": "out of memory" if failed else None,
                    "wall_over_cpu": 1.0,
                    "reference_error": 5e-4,
                    "true": true,
                }
            )
        for _ in range(samples):
            for point in both:
                if not point["error"]:
                    point["seconds"].append(point["true"] * chance.lognormvariate(0, 0.02))
                    point["started"].append(now)
                    now += point["true"] + 2e-3
        for point in both:
            del point["true"]
        made += both
    guess = {"time_exponent": 2, "ratio": 3, "wall": 12000}
    return {
        "lab": "lab2_quadratic_wall",
        "machine": {
            "device": "cuda",
            "name": "Tesla T4",
            "capability": [7, 5],
            "memory_bytes": 15_828_320_256,
            "l2_bytes": 4_194_304,
            "threads": 1,
            "torch": "2.11.0+cu128",
            "python": "3.13.15",
            "cuda": "12.8",
            "label": "T4",
            "ceilings": None,
            "precision": "highest",
        },
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": made,
    }


@wrong(
    "L2-CUT-OFF",
    RECEIPT,
    thinks="I have marked the receipt with the mouse and pasted it.",
    why="Its end is missing. It is some dozens of lines long: take all that stands between the two "
    "lines of three quotes.",
    section="lab2-receipt",
)
def cut_off():
    return encode(a_record())[:-300]


@wrong(
    "L2-OTHER-LAB",
    RECEIPT,
    thinks="A receipt is a receipt.",
    why="This one is of another lab. The file of this lab has its name in the file name, and so "
    "has what is printed above the receipt.",
    section="lab2-receipt",
)
def of_another_lab():
    return encode(a_record() | {"lab": "lab1_time_it_right"})


@wrong(
    "L2-NO-PREDICTION",
    RECEIPT,
    thinks="The measurement is what counts; a guess adds nothing.",
    why="Who has not guessed is not surprised, and surprise is what one learns from. A prediction "
    "need not be right; it has to be there before the first measurement.",
    section="lab2-predict",
)
def without_predictions():
    return encode(a_record() | {"predictions": {}})


@wrong(
    "L2-AFTERWARD",
    RECEIPT,
    thinks="I have filled in the predictions when I knew the numbers.",
    why="Then they are results. The record notes how many points had been measured. Start a new "
    "file, and guess first: wrong guesses cost nothing.",
    section="lab2-predict",
)
def predicted_afterward():
    record = a_record()
    for made in record["predictions"].values():
        made["points"] = 14
    return encode(record)


@wrong(
    "L2-ONLY-NAIVE",
    RECEIPT,
    thinks="The lab is about naive attention, so I have measured that.",
    why="Without the fused call in the same run nobody can say what the table costs: a slow "
    "machine and a slow method look alike.",
    section="lab2-receipt",
)
def naive_only():
    record = a_record()
    record["points"] = [point for point in record["points"] if point["name"] == "naive"]
    return encode(record)


@wrong(
    "L2-FEW-SIZES",
    RECEIPT,
    thinks="Two or three sizes show the trend.",
    why="Through two points goes any line. With four or more, over a range of 8, one sees where "
    "the fixed cost ends, and whether it is a line at all.",
    section="lab2-fit",
)
def three_sizes():
    return encode(a_record(sizes=(1024, 2048, 4096)))


@wrong(
    "L2-MILLISECONDS",
    RECEIPT,
    thinks="elapsed_time gives the time, so that is what I record.",
    why="It gives milliseconds, and a record holds seconds. With these numbers each sample would "
    "last longer than the time until the next began.",
    section="lab2-receipt",
)
def in_milliseconds():
    record = a_record()
    for point in record["points"]:
        point["seconds"] = [1000 * each for each in point["seconds"]]
    return encode(record)


@wrong(
    "L2-OOM-AS-TIME",
    RECEIPT,
    thinks="It failed after some seconds, so I record these seconds.",
    why="A run that ends in an error has done no attention, so it has no time. Out of memory is a "
    "result of its own: record the error, and no samples.",
    section="lab2-wall",
)
def failure_with_a_time():
    record = a_record()
    for point in record["points"]:
        if point["error"]:
            point["seconds"] = [0.31 + 0.007 * i % 0.02 for i in range(20)]
    return encode(record)


@wrong(
    "L2-PEAK-NOT-RESET",
    RECEIPT,
    thinks="max_memory_allocated tells the peak of the last call.",
    why="It tells the largest since the last reset, here that of the naive call before. So the "
    "fused call seems to need n × n, too. Reset it before each call.",
    section="lab2-peak",
)
def peak_of_the_call_before():
    record = a_record(sizes=(256, 512, 1024, 2048, 4096, 8192))
    for naive, fused in zip(record["points"][::2], record["points"][1::2], strict=True):
        fused["peak_bytes"] = naive["peak_bytes"]
    return encode(record)


@wrong(
    "L2-RESERVED",
    RECEIPT,
    thinks="nvidia-smi or memory_reserved shows how much attention needs.",
    why="They show what the allocator keeps, freed or not, so the number is the same for every n. "
    "Ask for the peak of what was allocated.",
    section="lab2-peak",
)
def what_the_allocator_keeps():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] = None if point["error"] else 9_663_676_416
    return encode(record)


@wrong(
    "L2-PEAK-IN-MIB",
    RECEIPT,
    thinks="Peaks are best kept in mebibytes.",
    why="The field holds bytes, and everything computed from it believes that. Keep bytes; divide "
    "when you print.",
    section="lab2-peak",
)
def peaks_in_mebibytes():
    record = a_record()
    for point in record["points"]:
        point["peak_bytes"] = point["peak_bytes"] and point["peak_bytes"] / 2**20
    return encode(record)


@wrong(
    "L2-ONE-AFTER-THE-OTHER",
    RECEIPT,
    thinks="First all runs of one, then all runs of the other.",
    why="A GPU's clock falls as it heats up, so what comes second looks slower. In turn, A B A B, "
    "both suffer alike; `lab.compare` does that.",
    section="lab2-receipt",
)
def one_after_the_other():
    record = a_record()
    now = 2.0
    for name in ("naive", "fused"):
        for point in record["points"]:
            if point["name"] == name and point["seconds"]:
                point["started"] = [now + i * 0.5 for i in range(len(point["seconds"]))]
                now += 20.0
    return encode(record)


@wrong(
    "L2-HALF-AGAINST-FULL",
    RECEIPT,
    thinks="Naive in float32, as I wrote it; fused in float16, as it is meant to be used.",
    why="Half the bytes is no better method. Part of the ratio is then the format. Compare both in "
    "the same.",
    section="lab2-receipt",
)
def two_formats():
    record = a_record(sizes=(256, 512, 1024, 2048, 4096))
    for point in record["points"][::2]:
        point["dtype"], point["peak_bytes"] = "float32", 2 * point["peak_bytes"]
    return encode(record)


@wrong(
    "L2-THREE-SAMPLES",
    RECEIPT,
    thinks="Three runs and the best of them will do.",
    why="Three numbers cannot show their own noise. Take 20 or more; at the sizes of this lab that "
    "costs seconds.",
    section="lab2-receipt",
)
def three_samples():
    return encode(a_record(samples=3))


# --- conclude -----------------------------------------------------------------------------------

CONCLUDE = "conclude"


def middles(record, name, average=statistics.median):
    """n -> one time."""
    return {
        point["n"]: average(point["seconds"])
        for point in record["points"]
        if point["name"] == name and not point["error"]
    }


def peaks_of(record, name):
    """n -> peak bytes."""
    return {
        point["n"]: point["peak_bytes"]
        for point in record["points"]
        if point["name"] == name and not point["error"]
    }


def growth(values):
    return fits.fit_exponent([*values], [*values.values()]).exponent


def where_it_ends(peak, record, exponent):
    last = max(peak)
    return last * (record["machine"]["memory_bytes"] / peak[last]) ** (1 / exponent)


def summary(record, naive=None, fused=None, **instead):
    """Right conclusions, from these times, less what is replaced."""
    naive = naive or middles(record, "naive")
    fused = fused or middles(record, "fused")
    peak = peaks_of(record, "naive")
    exponent = growth(peak)
    wall = instead.get("wall", where_it_ends(peak, record, exponent))
    predicted = record["predictions"]["wall"]["value"]
    n = max(naive.keys() & fused.keys())
    return {
        "time_exponent": growth(fused),
        "memory_exponent": exponent,
        "ratio": naive[n] / fused[n],
        "wall": wall,
        "held": wall / 1.5 <= predicted <= 1.5 * wall,
    } | instead


@wrong(
    "L2-MEAN",
    CONCLUDE,
    thinks="The time of a size is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 nearly double it. Look at the "
    "samples: a median stays where most of them are.",
    section="lab2-conclude",
)
def means(record):
    naive, fused = (middles(record, name, statistics.mean) for name in ("naive", "fused"))
    return summary(record, naive, fused)


@wrong(
    "L2-FIRST-SAMPLE",
    CONCLUDE,
    thinks="The first sample is the time.",
    why="It is one of many, and the one that most likely holds what only a first call does. Use "
    "all of them.",
    section="lab2-conclude",
)
def first_samples(record):
    naive, fused = (middles(record, name, lambda s: s[0]) for name in ("naive", "fused"))
    return summary(record, naive, fused)


@wrong(
    "L2-SLOWEST",
    CONCLUDE,
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it, another program for instance. It is no "
    "safe side; it is somebody else's time.",
    section="lab2-conclude",
)
def slowest_samples(record):
    naive, fused = (middles(record, name, max) for name in ("naive", "fused"))
    return summary(record, naive, fused)


@wrong(
    "L2-DIFFERENT-N",
    CONCLUDE,
    thinks="The ratio is that of the two largest times.",
    why="The two end at different sizes: naive attention ran out of memory, the fused call went "
    "on. Compare them at an n where both have a time.",
    section="lab2-conclude",
)
def each_at_its_own_end(record):
    naive, fused = middles(record, "naive"), middles(record, "fused")
    return summary(record, ratio=naive[max(naive)] / fused[max(fused)])


@wrong(
    "L2-SMALLEST-N",
    CONCLUDE,
    thinks="The ratio can be read off at any size, say the first.",
    why="At the smallest size both spend their time on the fixed cost, so the ratio is near one "
    "whatever the method. Take the largest that both have.",
    section="lab2-conclude",
)
def ratio_at_the_smallest(record):
    naive, fused = middles(record, "naive"), middles(record, "fused")
    n = min(naive.keys() & fused.keys())
    return summary(record, ratio=naive[n] / fused[n])


@wrong(
    "L2-RATIO-INVERTED",
    CONCLUDE,
    thinks="The ratio says which share of the naive time the fused call needs.",
    why="That is the inverse: 0.3 instead of 3. Here naive stands above the fraction bar, so that "
    "the number says how many times slower it is.",
    section="lab2-conclude",
)
def fused_over_naive(record):
    return summary(record, ratio=1 / summary(record)["ratio"])


@wrong(
    "L2-NAIVE-TIME",
    CONCLUDE,
    thinks="The exponent of the time is that of the naive call.",
    why="Naive times are no clean power: they bend where the tables leave the cache. The lab asks "
    "for the exponent of the fused call, which grows evenly.",
    section="lab2-conclude",
)
def exponent_of_naive_time(record):
    return summary(record, time_exponent=growth(middles(record, "naive")))


@wrong(
    "L2-TIMES-ALL-SIZES",
    CONCLUDE,
    thinks="The exponent of the time is the slope through all sizes.",
    why="The small ones are mostly fixed cost and pull the slope down. Use a fit that knows of it, "
    "yours or `lab.fit_exponent`.",
    section="lab2-fit",
)
def slope_through_all_times(record):
    fused = middles(record, "fused")
    slope = np.polyfit(np.log([*fused]), np.log([*fused.values()]), 1)[0]
    return summary(record, time_exponent=float(slope))


@wrong(
    "L2-ASSUMED-SQUARE",
    CONCLUDE,
    thinks="Naive attention grows like n², that is known.",
    why="A conclusion says what this record says. One of ours holds an attention that works row by "
    "row under the name naive, and its bytes grow like n.",
    section="lab2-conclude",
)
def square_without_looking(record):
    peak = peaks_of(record, "naive")
    return summary(record, memory_exponent=2.0, wall=where_it_ends(peak, record, 2.0))


@wrong(
    "L2-FUSED-MEMORY",
    CONCLUDE,
    thinks="The memory of attention is that of the fused call.",
    why="That grows like n and hits no wall here. Asked for are the peak and the wall of the naive "
    "call.",
    section="lab2-conclude",
)
def memory_of_the_fused_call(record):
    peak = peaks_of(record, "fused")
    wall = where_it_ends(peak, record, growth(peak))
    return summary(record, memory_exponent=growth(peak), wall=wall)


@wrong(
    "L2-WALL-LINEAR",
    CONCLUDE,
    thinks="If the peak fits three times into the memory, n can be three times as large.",
    why="Twice the n needs four times the bytes. So three times the memory gives only the square "
    "root of three times the positions.",
    section="lab2-wall",
)
def wall_in_proportion(record):
    peak = peaks_of(record, "naive")
    return summary(record, wall=where_it_ends(peak, record, 1.0))


@wrong(
    "L2-WALL-MEASURED",
    CONCLUDE,
    thinks="The wall is the largest n that worked.",
    why="That is one of the sizes you chose; a CPU with much memory never fails at them. The peak "
    "there tells how much further it would go.",
    section="lab2-wall",
)
def largest_that_worked(record):
    return summary(record, wall=float(max(peaks_of(record, "naive"))))


@wrong(
    "L2-WALL-PREDICTED",
    CONCLUDE,
    thinks="The wall is what I predicted.",
    why="Then a prediction would always hold. The wall follows from the peaks in the record; the "
    "prediction is compared with it afterward.",
    section="lab2-predict",
)
def wall_as_predicted(record):
    return summary(record, wall=record["predictions"]["wall"]["value"])


@wrong(
    "L2-HELD-EXACTLY",
    CONCLUDE,
    thinks="A prediction holds if it is the right number.",
    why="No prediction of a measurement is right to the digit. A factor of 1.5 either way was "
    "agreed before, and that is what makes it a test.",
    section="lab2-predict",
)
def held_within_one_percent(record):
    predicted, wall = record["predictions"]["wall"]["value"], summary(record)["wall"]
    return summary(record, held=abs(predicted / wall - 1) < 0.01)


@wrong(
    "L2-HELD-ONE-SIDED",
    CONCLUDE,
    thinks="The prediction held if the wall came no earlier than predicted.",
    why="A factor of 1.5 goes both ways: who predicts 10 when it is 10,000 has not been right.",
    section="lab2-predict",
)
def held_one_sided(record):
    predicted, wall = record["predictions"]["wall"]["value"], summary(record)["wall"]
    return summary(record, held=predicted <= 1.5 * wall)
