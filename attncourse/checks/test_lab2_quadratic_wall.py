"""The checks of lab 2. Each one's name is the sentence a teacher would say.

No clock of the grading machine is read: memory is counted, times are made up or come from the
student's own receipt.
"""

import math

import pytest
import torch

from attncourse.checks.common import as_number, fields, integers, moves_nothing, normal
from attncourse.checks.observe import FUSED_ATTENTION
from attncourse.checks.receipt import as_text, grave, read, record_of, timed
from attncourse.checks.task import Failure, Task, Unanswered, compare, shape_of
from attncourse.lab import fits
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.lab.meters import count

points = pytest.mark.points
LAB = "lab2_quadratic_wall"


def pick(rng, *values):
    """One of the values, by chance."""
    return values[torch.randint(len(values), (), generator=rng, device="cpu")]


# --- naive_attention ----------------------------------------------------------------------------
# Letters: b batch, h heads, n positions, d width of a head.


def qkv(rng, b, h, n, d, make=normal, **options):
    return {name: make(rng, b, h, n, d, **options) for name in ("q", "k", "v")}


def attention_probes(rng):
    return {
        "ordinary": qkv(rng, 2, 3, 5, 4),
        "wide": qkv(rng, 1, 2, 3, 7),
        "square": qkv(rng, 4, 4, 4, 4),
        "one position": qkv(rng, 2, 2, 1, 3),
        "double": qkv(rng, 2, 1, 6, 5, dtype=torch.float64),
    }


def attention_small(rng):
    yield qkv(rng, 1, 1, 2, 1, make=integers)
    yield qkv(rng, 1, 1, 2, 2, make=integers)
    yield qkv(rng, 1, 2, 2, 2, make=integers)
    yield qkv(rng, 1, 2, 3, 4)


def metered(attention):
    """The answer under the meter: the bytes of its biggest tensor."""

    def function(q, k, v):
        output = []
        counts = count(lambda: output.append(attention(q, k, v)))
        return None if output[0] is None else {"biggest": counts.biggest_bytes}

    return function


METERED = {"b": 2, "h": 3, "d": 4}


def biggest(answer, n, rng=None):
    """Numbers in the biggest tensor that an answer makes for n positions."""
    rng = rng or torch.Generator().manual_seed(n)
    inputs = qkv(rng, METERED["b"], METERED["h"], n, METERED["d"])
    seen = answer.observe(inputs, adapt=metered)
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        raise Failure(f"Your answer {seen.error}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned["biggest"] / 4


def attention_traits(answer):
    small, large = biggest(answer, 64), max(biggest(answer, 256), 1)
    scores = METERED["b"] * METERED["h"] * 256**2
    return {
        "its memory grows like n": math.log(large / max(small, 1), 4) < 1.5,
        "one head at a time": math.isclose(large, 256**2, rel_tol=0.05),
        "one sentence at a time": math.isclose(large, METERED["h"] * 256**2, rel_tol=0.05),
        "more than the scores": large > 1.05 * scores,
        "less than the scores": large < 0.95 * scores,
    }


class TestNaiveAttention:
    task = Task(
        name="naive_attention",
        reference=reference.naive_attention,
        returns=("output",),
        difficulty=1,
        minutes=8,
        section="lab2-naive",
        hints=(
            "Three tables: scores, weights, output. Write one line for each, for all heads and "
            "sentences at once.",
            "`@` multiplies the last two axes and leaves the ones before them alone; `.mT` swaps "
            "the last two. Scores have the axes (b h n n).",
            "scores = q times k transposed, over the root of d; weights = softmax over the last "
            "axis; output = weights times v.",
        ),
        probes=attention_probes,
        small=attention_small,
        differentiated=("ordinary",),
        forbidden=FUSED_ATTENTION,
        traits=attention_traits,
    )

    @points(1)
    def test_each_position_gets_one_vector(self, answer, rng):
        for b, h, n, d in ((2, 3, 5, 4), (1, 2, 4, 7), (2, 2, 1, 3)):
            inputs = qkv(rng, b, h, n, d)
            output = answer(inputs)
            if output.shape != (b, h, n, d):
                raise Failure(
                    f"The output has shape {shape_of(output)}; expected (b h n d) = "
                    f"({b} {h} {n} {d}).",
                    inputs,
                )

    @points(2)
    def test_the_values_are_those_of_the_formula(self, answer, rng):
        for sizes in ((2, 3, 5, 4), (1, 2, 3, 7), (3, 3, 3, 3), (2, 2, 1, 3)):
            answer.matches(qkv(rng, *sizes))
        inputs = qkv(rng, 2, 2, 6, 5, dtype=torch.float64)
        compare("output", answer(inputs), answer.expected(inputs), inputs, tolerance=1e-9)

    @points(2)
    def test_all_scores_exist_at_once(self, answer, rng):
        for n in (64, 128):
            found = biggest(answer, n, rng)
            scores = METERED["b"] * METERED["h"] * n * n
            if not math.isclose(found, scores, rel_tol=0.05):
                raise Failure(
                    f"For b = {METERED['b']}, h = {METERED['h']}, n = {n} the scores are "
                    f"b·h·n·n = {scores:,} numbers. The biggest tensor that your answer makes has "
                    f"{found:,.0f} (counted in float32). Naive attention makes the whole table of "
                    "scores, and nothing bigger."
                )

    @points(2)
    def test_the_biggest_tensor_grows_like_n_squared(self, answer, rng):
        sizes = (64, 128, 256)
        found = [biggest(answer, n, rng) for n in sizes]
        exponent = math.log(max(found[-1], 1) / max(found[0], 1), sizes[-1] / sizes[0])
        if abs(exponent - 2) > 0.05:
            raise Failure(
                f"From n = {sizes[0]} to n = {sizes[-1]} your biggest tensor grows like "
                f"n^{exponent:.2f}; in naive attention it grows like n^2.00."
            )

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, qkv(rng, 2, 2, 4, 3))


# --- peak_bytes ---------------------------------------------------------------------------------


def sizes(b, h, n, d, width):
    return {"b": b, "h": h, "n": n, "d": d, "bytes_per_number": width}


def peak_probes(rng):
    return {
        "large": sizes(2, 16, 8192, 64, 2),
        "wide heads": sizes(3, 2, 64, 256, 4),
        "short": sizes(2, 4, 16, 64, 4),
        "one head": sizes(1, 1, 1000, 50, 4),
        "one position": sizes(5, 3, 1, 1, 8),
    }


def peak_small(rng):
    yield sizes(1, 1, 1, 1, 1)
    yield sizes(1, 1, 2, 1, 1)
    yield sizes(1, 1, 2, 3, 2)
    yield sizes(2, 1, 2, 3, 4)
    yield sizes(1, 3, 4, 64, 4)


def within_ten_percent(answer, inputs):
    got, expected = answer(inputs), answer.expected(inputs)
    if not abs(got - expected) <= 0.1 * expected:
        words = ", ".join(f"{name} = {value}" for name, value in inputs.items())
        raise Failure(
            f"For {words} the meter counts a peak of {expected:,.0f} bytes; your formula gives "
            f"{got:,.0f}, which is {got / expected:.2f} times that.",
            inputs,
            expected,
            got,
        )


class TestPeakBytes:
    task = Task(
        name="peak_bytes",
        reference=reference.peak_bytes,
        returns=float,
        difficulty=2,
        minutes=10,
        section="lab2-peak",
        hints=(
            "Go through the three lines of naive attention. After each, which tables are still "
            "in memory?",
            "At the last line the scores still have a name, the weights are being read and the "
            "output is being written. How many numbers does each hold, for one head?",
            "For one head: two tables of n times n and one of n times d. Then all heads, all "
            "sentences, and the bytes of a number.",
        ),
        probes=peak_probes,
        small=peak_small,
        tolerance=0.03,
    )

    @points(2)
    def test_long_sequences_are_within_ten_percent(self, answer, rng):
        for n in (2048, 4096, 16384):
            within_ten_percent(answer, sizes(1, 16, n, 64, 2))
        within_ten_percent(answer, sizes(1, 1, pick(rng, 3000, 5000, 7000), 64, 4))

    @points(1)
    def test_heads_and_sentences_count(self, answer, rng):
        within_ten_percent(answer, sizes(pick(rng, 2, 4, 7), 1, 4096, 32, 4))
        within_ten_percent(answer, sizes(1, pick(rng, 3, 5, 8), 4096, 32, 4))

    @points(1)
    def test_a_number_may_take_two_four_or_eight_bytes(self, answer):
        for width in (2, 4, 8):
            within_ten_percent(answer, sizes(2, 3, 1024, 16, width))

    @points(2)
    def test_short_sequences_with_wide_heads_too(self, answer, rng):
        for n, d in ((64, 64), (64, 256), (16, 128), (pick(rng, 24, 40, 56), 96)):
            within_ten_percent(answer, sizes(2, 4, n, d, 4))


# --- largest_n ----------------------------------------------------------------------------------


def memory(total, b, h, d, width):
    return {"memory_bytes": total, "b": b, "h": h, "d": d, "bytes_per_number": width}


def needed(n, memory_bytes, b, h, d, bytes_per_number):
    """Bytes of q, k, v and of the peak."""
    return b * h * (2 * n * n + 4 * n * d) * bytes_per_number


def memory_probes(rng):
    return {
        "T4": memory(16 * 10**9, 1, 16, 64, 2),
        "batch": memory(3 * 10**9, 4, 2, 32, 4),
        "exactly": memory(needed(1000, 0, 2, 3, 50, 4), 2, 3, 50, 4),
        "one byte less": memory(needed(1000, 0, 2, 3, 50, 4) - 1, 2, 3, 50, 4),
        "wide": memory(10**6, 1, 2, 512, 2),
        "tiny": memory(100, 2, 2, 64, 4),
    }


def memory_small(rng):
    yield memory(6, 1, 1, 1, 1)
    yield memory(16, 1, 1, 1, 1)
    yield memory(100, 1, 1, 2, 1)
    yield memory(1000, 2, 3, 4, 4)
    yield memory(10**6, 1, 2, 512, 2)


def the_wall(answer, inputs):
    """Assert that what was returned fits, and one more does not."""
    got, expected = answer(inputs), answer.expected(inputs)
    total = inputs["memory_bytes"]
    if got < 0:
        raise Failure(f"You say n = {got}; where nothing fits, say 0.", inputs, expected, got)
    if got != expected:
        which = (
            f"needs {needed(got, **inputs):,} bytes, and {total:,} are there"
            if got > expected
            else f"fits, and so does {got + 1}, which needs {needed(got + 1, **inputs):,} bytes "
            f"of {total:,}"
        )
        words = ", ".join(f"{name} = {value}" for name, value in inputs.items())
        raise Failure(f"For {words} you say n = {got}. It {which}.", inputs, expected, got)


class TestLargestN:
    task = Task(
        name="largest_n",
        reference=reference.largest_n,
        returns=int,
        difficulty=2,
        minutes=12,
        section="lab2-wall",
        hints=(
            "What lies in memory at the worst moment? What `peak_bytes` counts, and what was "
            "there before.",
            "For one head: scores and weights n times n each, output, query, key and value n times "
            "d each. Set this times b, h and the bytes of a number equal to the memory. It is a "
            "quadratic equation; or search, as the need only grows with n.",
            "(2n² + 4nd)·b·h·bytes <= memory. Solve for n and round down; or begin at 0 and 1, "
            "double the second until it does not fit, then halve the gap. What does not fit even "
            "for n = 1 gives 0.",
        ),
        probes=memory_probes,
        small=memory_small,
        tolerance=1e-6,
    )

    @points(2)
    def test_it_finds_the_wall_of_a_gpu(self, answer, rng):
        for total, h, d, width in (
            (16 * 10**9, 16, 64, 2),
            (24 * 10**9, 12, 128, 2),
            (pick(rng, 8, 40, 80) * 10**9, 32, 128, 4),
        ):
            the_wall(answer, memory(total, 1, h, d, width))

    @points(1)
    def test_a_batch_brings_the_wall_nearer(self, answer, rng):
        for b in (2, 8, pick(rng, 16, 32, 5)):
            the_wall(answer, memory(4 * 10**9, b, 4, 64, 2))

    @points(2)
    def test_what_you_return_fits_and_one_more_does_not(self, answer, rng):
        for n in (pick(rng, 300, 411, 512), 1000, 77):
            exactly = needed(n, 0, 2, 3, 50, 4)
            for spare in (0, 1, -1):
                the_wall(answer, memory(exactly + spare, 2, 3, 50, 4))

    @points(1)
    def test_the_inputs_lie_in_memory_too(self, answer, rng):
        for d in (256, 512, pick(rng, 300, 700, 1024)):
            the_wall(answer, memory(10**6, 1, 2, d, 2))

    @points(1)
    def test_where_nothing_fits_it_says_0(self, answer):
        the_wall(answer, memory(100, 2, 2, 64, 4))
        the_wall(answer, memory(0, 1, 1, 1, 1))


# --- fit_growth ---------------------------------------------------------------------------------

# Steps of 1.5 and 1.33: not every size is a power of two.
SIZES = [2**i * m // 2 for i in range(6, 15) for m in (2, 3)][:-1]  # 64, 96, 128, …, 16384


def timings(rng, p, *, floor=0, join="sum", noise=0.0, wild=(), shuffled=False, n=SIZES, scale=1.0):
    """Made-up times ~ nᵖ; work equals the fixed cost at n = `floor`; some values 4 to 12 times."""
    work = [scale * 1e-3 * (each / n[0]) ** p for each in n]
    cost = scale * 1e-3 * (floor / n[0]) ** p
    times = [cost + t if join == "sum" else max(cost, t) for t in work]
    drawn = normal(rng, len(n), dtype=torch.float64).tolist()
    times = [t * math.exp(noise * each) for t, each in zip(times, drawn, strict=True)]
    for place in wild:
        times[place] *= pick(rng, 4.0, 7.0, 12.0)
    order = torch.randperm(len(n), generator=rng, device="cpu").tolist()
    order = order if shuffled else range(len(n))
    return {"sizes": [n[i] for i in order], "seconds": [times[i] for i in order]}


def growth_probes(rng):
    return {
        "clean": timings(rng, 2.0),
        "cubic": timings(rng, 3.0, scale=1e-3),
        "fixed cost": timings(rng, 2.0, floor=512),
        "floor": timings(rng, 1.5, floor=512, join="max"),
        "last one wild": timings(rng, 2.0, wild=(-1,)),
        "first one wild": timings(rng, 2.0, wild=(0,)),
        "middle one wild": timings(rng, 1.5, wild=(8,)),
        "floor and last wild": timings(rng, 2.0, floor=384, wild=(-1,)),
        "shuffled": timings(rng, 2.0, floor=512, shuffled=True),
        "doubling": timings(rng, 2.0, n=SIZES[::2]),
    }


def growth_small(rng):
    yield timings(rng, 1.0, n=[64 * 2**i for i in range(6)])
    yield timings(rng, 2.0, n=[64 * 2**i for i in range(6)])
    yield timings(rng, 2.0, n=[64, 96, 192, 400, 900, 2000, 4000])
    yield timings(rng, 2.0, floor=512, n=SIZES[::2])
    yield timings(rng, 2.0, wild=(-1,), n=SIZES)


def the_courses_fit(*_, **__):
    raise RuntimeError("fit_exponent does this task; write a fit of your own, then compare.")


def on_its_own(fit):
    """The answer, without the package's own fit."""

    def function(sizes, seconds):
        code, fits.fit_exponent.__code__ = fits.fit_exponent.__code__, the_courses_fit.__code__
        try:
            return fit(sizes, seconds)
        finally:
            fits.fit_exponent.__code__ = code

    return function


def growth_near(answer, inputs, p, tolerance, what):
    got = answer(inputs)
    if not abs(got - p) <= tolerance:
        raise Failure(
            f"{what}: these times grow like n^{p:g} at the large sizes; your fit says "
            f"n^{got:.2f}. Within {tolerance:g} is near enough.",
            inputs,
            p,
            got,
        )


class TestFitGrowth:
    task = Task(
        name="fit_growth",
        reference=reference.fit_growth,
        returns=float,
        difficulty=3,
        minutes=15,
        section="lab2-fit",
        hints=(
            "In a log–log plot a power law is a straight line. What is its slope, between any two "
            "of its points?",
            "Two things bend the line. The fixed cost rules where a time is near the smallest "
            "one: leave those sizes out. A wild value spoils every slope that it takes part in: "
            "what kind of average does not mind?",
            "Keep the sizes whose time is more than ten times the smallest. For every pair of "
            "them: difference of log seconds over difference of log sizes. Return the median.",
        ),
        probes=growth_probes,
        small=growth_small,
        adapt=on_its_own,
        tolerance=0.02,
    )

    @points(1)
    def test_a_clean_power_law_gives_its_exponent(self, answer, rng):
        for p in (1.0, 1.5, 2.0, 3.0):
            growth_near(answer, timings(rng, p, scale=0.01), p, 0.05, "No noise, no fixed cost")

    @points(1)
    def test_sizes_may_be_any_and_in_any_order(self, answer, rng):
        odd = [100, 130, 210, 320, 450, 700, 1000, 1700, 2500, 4100, 6000, 9000, 15000]
        growth_near(answer, timings(rng, 2.0, n=odd), 2.0, 0.05, "Sizes that do not double")
        inputs = timings(rng, 2.0, floor=512, shuffled=True)
        growth_near(answer, inputs, 2.0, 0.15, "Sizes in any order")

    @points(2)
    def test_a_fixed_cost_does_not_hide_the_growth(self, answer, rng):
        for p in (1.5, 2.0, 2.5):
            for join in ("sum", "max"):
                inputs = timings(rng, p, floor=pick(rng, 256, 384, 512), join=join)
                growth_near(answer, inputs, p, 0.15, "A fixed cost in every time")

    @points(2)
    def test_one_wild_value_does_not_move_it(self, answer, rng):
        for place in (-1, 0, pick(rng, 6, 8, 10, 12)):
            inputs = timings(rng, 2.0, wild=(place,))
            growth_near(answer, inputs, 2.0, 0.15, "One value that is many times too large")

    @points(1)
    def test_noise_of_two_percent_does_not_matter(self, answer, rng):
        for p in (1.5, 2.0):
            growth_near(answer, timings(rng, p, noise=0.02), p, 0.15, "Noise of two percent")

    @points(2)
    def test_all_of_it_at_once(self, answer, rng):
        for join in ("sum", "max"):
            inputs = timings(
                rng, 2.0, floor=384, join=join, noise=0.02, wild=(pick(rng, -1, -3, -5),)
            )
            growth_near(answer, inputs, 2.0, 0.2, "Fixed cost, noise and a wild value")

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, timings(rng, 2.0, floor=256, shuffled=True))


# --- lab2_receipt -------------------------------------------------------------------------------


def predictions_missing(record):
    """What was not predicted as a number before the first measurement."""
    return [
        name
        for name in ("time_exponent", "ratio", "wall")
        if not isinstance((made := _prediction(record, name)).get("value"), int | float)
        or isinstance(made.get("value"), bool)
        or made.get("points") != 0
    ]


def _prediction(record, name):
    made = record["predictions"].get(name)
    return made if isinstance(made, dict) else {}


def common_sizes(record):
    return sorted(timed(record, "naive").keys() & timed(record, "fused").keys())


WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def wrong_peaks(record):
    """Of naive attention from n = 1024 on: n, bytes measured, bytes expected."""
    found = []
    for n, p in timed(record, "naive").items():
        b, h, d = (p.get(key) or 1 for key in "bhd")
        counted = b * h * (2 * n * n + n * d) * WIDTHS.get(p.get("dtype"), 4)
        peak = p.get("peak_bytes") or 0
        # Other ways to write it keep one table more or less; a GPU rounds and adds a workspace.
        if n >= 1024 and not 0.45 * counted <= peak <= 1.6 * counted + 2**25:
            found.append((n, peak, counted))
    return found


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure as failure:
        return {"readable": False, "cut off": "cut off" in str(failure)}
    common, found = common_sizes(record), {each.name for each in grave(record)}
    return {
        "readable": True,
        "cut off": False,
        "of this lab": record["lab"] == LAB,
        "predicted": "wall" in record["predictions"],
        "predicted in time": not predictions_missing(record),
        "naive": bool(timed(record, "naive")),
        "fused": bool(timed(record, "fused")),
        "enough sizes": len(common) >= 4 and common[-1] >= 8 * common[0],
        "right peaks": not wrong_peaks(record),
        **{f"audit: {name}": name in found for name in AUDITED},
    }


AUDITED = (
    *("units", "faster_than_peak", "launch_time", "overlap", "out_of_memory_as_time"),
    *("peak_not_reset", "reserved_not_allocated", "too_regular", "not_interleaved"),
    *("mixed_dtypes", "copied_samples", "too_few_samples", "warm_up_counted", "edited"),
    *("wrong_result", "math_called_flash"),
)


class TestReceipt:
    task = Task(
        name="lab2_receipt",
        reference=reference.lab2_receipt,
        returns=list,
        difficulty=1,
        minutes=5,
        section="lab2-receipt",
        hints=(
            "Run the measuring cell to its end. It prints the receipt.",
            "The receipt is a long text that begins with attn1:. Put it between three quotes, "
            "after `return`; line breaks and spaces inside do not matter.",
            'return """attn1:…""" with all that stands between the quotes of the printed RECEIPT.',
        ),
        probes=lambda rng: {"receipt": {}},
        small=lambda rng: iter(()),
        adapt=as_text,
        traits=receipt_traits,
    )

    @points(1)
    def test_the_receipt_can_be_read(self, answer):
        read(answer)

    @points(1)
    def test_it_is_the_receipt_of_this_lab(self, answer):
        record_of(answer)

    @points(2)
    def test_predictions_were_written_before_the_first_measurement(self, answer):
        missing = predictions_missing(record_of(answer))
        if missing:
            raise Failure(
                f"Not predicted as a number before the first measurement: {', '.join(missing)}. "
                "A prediction need not be right; it has to come first. Move the .jsonl file away, "
                "write your numbers and measure again."
            )

    @points(2)
    def test_naive_and_fused_attention_were_timed_at_four_sizes_or_more(self, answer):
        record = record_of(answer)
        common = common_sizes(record)
        if len(common) < 4 or common[-1] < 8 * common[0]:
            raise Failure(
                f'Sizes at which both "naive" and "fused" have times: {common or "none"}. An '
                "exponent needs four or more, the largest at least 8 times the smallest."
            )

    @points(2)
    def test_the_peaks_of_naive_attention_are_two_tables_of_n_by_n(self, answer):
        record = record_of(answer)
        if not any(n >= 1024 for n in timed(record, "naive")):
            raise Failure('No point "naive" with n of 1,024 or more has a time and a peak.')
        for n, peak, counted in wrong_peaks(record):
            raise Failure(
                f"Naive attention at n = {n}: the receipt says a peak of {peak:,} bytes. Scores, "
                f"weights and output are {counted:,}. Measure the peak of the call alone, in bytes."
            )

    @points(4)
    def test_nothing_in_it_is_impossible_or_contradicts_itself(self, answer):
        found = grave(record_of(answer))
        if found:
            more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
            raise Failure(f"{found[0]}{more}")


# --- conclude -----------------------------------------------------------------------------------

CONCLUSIONS = ("time_exponent", "memory_exponent", "ratio", "wall", "held")


def said(conclude):
    """What the answer concludes, as five numbers."""

    def function(record):
        found = conclude(record)
        if found is None:
            return None
        return list(map(as_number, fields(found, CONCLUSIONS), CONCLUSIONS))

    return function


T4 = {"device": "cuda", "name": "Tesla T4", "label": "T4", "memory_bytes": 16 * 10**9}
CPU = {"device": "cpu", "name": "a CPU", "label": "CPU, 1 thread", "memory_bytes": 25 * 10**9}


def a_record(
    rng,
    *,
    machine=T4,
    sizes=(256, 512, 1024, 2048, 4096, 8192, 16384),
    time=2.0,
    floor=700,
    bytes_like=2.0,
    ratio=3.5,
    ends=8192,
    predicted=1.1,
    disturbed=None,
    slow_first=False,
):
    """A made-up record whose truth is known.

    Args:
        time: true exponent of the fused time; work equals the fixed cost at n = `floor`.
        bytes_like: true exponent of the naive peak.
        ratio: naive over fused time at n = `ends`, the largest that naive attention reaches.
        predicted: the predicted wall over the true one.
        disturbed: the name whose samples at n = `ends` are partly many times too long.

    Returns:
        record, truth.
    """
    n_last = ends
    peak_last = 0.3 * machine["memory_bytes"]
    wall = n_last * (machine["memory_bytes"] / peak_last) ** (1 / bytes_like)
    truth = {
        "time_exponent": time,
        "memory_exponent": bytes_like,
        "ratio": ratio,
        "wall": wall,
        "held": 1 / 1.5 <= predicted <= 1.5,
    }
    made = []
    for n in sizes:
        fused = 2e-3 * max((n / n_last) ** time, (floor / n_last) ** time)
        naive = 2e-3 * max(ratio * (n / n_last) ** 2.2, 0.8 * (floor / n_last) ** time)
        for name, seconds in (("naive", naive), ("fused", fused)):
            failed = name == "naive" and n > n_last
            factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
            samples = [round(seconds * factor, 12) for factor in factors]
            if name == disturbed and n == n_last:
                samples[3:10] = [4 * each for each in samples[3:10]]
            if slow_first:
                samples[0] *= 30 if name == "fused" else 6
            peak = peak_last * (n / n_last) ** bytes_like if name == "naive" else 8192.0 * n
            made.append(
                {
                    "name": name,
                    "n": n,
                    "b": 1,
                    "h": 16,
                    "d": 64,
                    "seconds": [] if failed else samples,
                    "clock": "events" if machine is T4 else "cpu",
                    "started": [],
                    "peak_bytes": None if failed else round(peak),
                    "backend": None,
                    "dtype": "float16" if machine is T4 else "float32",
                    "error": "out of memory" if failed else None,
                }
            )
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    guess = {
        "time_exponent": 2,
        "ratio": 3,
        "wall": round(predicted * wall),
    }
    record = {
        "lab": LAB,
        "machine": dict(machine),
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": [made[place] for place in order],
    }
    return record, truth


CPU_SIZES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
RECORDS = {
    "T4": {},
    "CPU": {"machine": CPU, "sizes": CPU_SIZES, "ends": 4096, "floor": 100, "predicted": 2.4},
    "row by row": {"bytes_like": 1.0, "ratio": 0.7, "predicted": 0.8},
    "disturbed naive": {"disturbed": "naive", "predicted": 0.4},
    "disturbed fused": {"disturbed": "fused", "slow_first": True, "time": 1.8, "predicted": 1.3},
    "naive is faster": {"ratio": 0.4, "ends": 16384, "time": 2.2, "predicted": 0.75},
}


def conclude_probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


LIMITS = {"time_exponent": 0.15, "memory_exponent": 0.1, "ratio": 0.08, "wall": 0.15}
WORDS = {
    "time_exponent": "fused times grow like n to the",
    "memory_exponent": "naive peak bytes grow like n to the",
    "ratio": "naive time over fused time at the largest n that both have",
    "wall": "n at which the naive peak fills the memory of the machine",
    "held": "prediction within a factor of 1.5 of the wall (1 = yes)",
}


def says(answer, rng, name, records):
    """Assert that one conclusion is right about these records."""
    for kind, how in records.items():
        record, truth = a_record(rng, **how)
        got = answer({"record": record})[CONCLUSIONS.index(name)].item()
        expected = float(truth[name])
        limit = LIMITS.get(name, 0) * (expected if name in ("ratio", "wall") else 1)
        if not abs(got - expected) <= limit:
            raise Failure(
                f"In a made-up record ({kind}), {WORDS[name]}: {expected:,.4g}. "
                f"Your function says {got:,.4g}."
            )


class TestConclude:
    task = Task(
        name="conclude",
        reference=reference.conclude,
        returns=CONCLUSIONS,
        difficulty=3,
        minutes=18,
        section="lab2-conclude",
        hints=(
            "Begin with order: which points have a time at all, which are naive, which are fused? "
            "Make a dict n → median seconds for each.",
            "`lab.fit_exponent(sizes, values).exponent` fits times and bytes alike. The ratio "
            "needs an n that is in both dicts. For the wall take the largest naive peak: how many "
            "times does it fit into the memory, and by which factor may n grow for that?",
            "If bytes grow like n to the p, n may grow by the factor (memory / peak) to the power "
            "1/p. The prediction held if wall / 1.5 <= predicted <= 1.5 · wall, where predicted "
            'is record["predictions"]["wall"]["value"].',
        ),
        probes=conclude_probes,
        small=lambda rng: iter(()),
        adapt=said,
        tolerance=0.04,
    )

    @points(2)
    def test_the_fused_time_has_its_exponent(self, answer, rng):
        kinds = ("T4", "CPU", "disturbed fused", "naive is faster")
        says(answer, rng, "time_exponent", {kind: RECORDS[kind] for kind in kinds})

    @points(2)
    def test_the_naive_memory_has_its_exponent(self, answer, rng):
        kinds = ("T4", "CPU", "row by row")
        says(answer, rng, "memory_exponent", {kind: RECORDS[kind] for kind in kinds})

    @points(2)
    def test_the_ratio_is_taken_where_both_have_a_time(self, answer, rng):
        says(answer, rng, "ratio", {"T4": RECORDS["T4"], "CPU": RECORDS["CPU"]})
        says(answer, rng, "ratio", {"naive is faster": RECORDS["naive is faster"]})

    @points(1)
    def test_a_few_slow_samples_do_not_move_the_ratio(self, answer, rng):
        kinds = ("disturbed naive", "disturbed fused")
        says(answer, rng, "ratio", {kind: RECORDS[kind] for kind in kinds})

    @points(2)
    def test_the_wall_follows_from_the_peaks(self, answer, rng):
        kinds = ("T4", "CPU", "row by row")
        says(answer, rng, "wall", {kind: RECORDS[kind] for kind in kinds})

    @points(1)
    def test_it_says_whether_the_prediction_held(self, answer, rng):
        says(answer, rng, "held", RECORDS)

    @points(1)
    def test_it_changes_nothing_but_its_result(self, answer, rng):
        moves_nothing(answer, {"record": a_record(rng)[0]})
