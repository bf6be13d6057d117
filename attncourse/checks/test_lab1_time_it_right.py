"""The checks of lab 1. Each one's name is the sentence a teacher would say.

No check looks at a clock of the machine it runs on: timers are held against the virtual GPU, whose
true times are known, and a receipt against itself.
"""

import contextlib
import functools
import math
import statistics
import time
from unittest import mock

import pytest
import torch
from torch import Tensor

from attncourse.checks.common import moves_nothing
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Failure, Task, describe
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab import receipts, timing
from attncourse.lab.audit import IMPOSSIBLE, INCONSISTENT, audit
from attncourse.lab.timing import LEAST_SAMPLES
from attncourse.lab.virtual_gpu import SCENARIOS, accepts, explain, panel, try_out

points = pytest.mark.points


def draw(rng, most=1_000_000) -> int:
    return int(torch.randint(most, (), generator=rng, device="cpu"))


# --- bench --------------------------------------------------------------------------------------


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


class TestBench:
    task = Task(
        name="bench",
        reference=reference.bench,
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

    @points(1)
    def test_it_returns_the_seconds_of_at_least_twenty_calls(self, answer, rng):
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

    @points(1)
    def test_a_long_kernel_takes_as_long_as_it_takes(self, answer, rng):
        near_the_truth(answer, rng, "long kernel")

    @points(1)
    def test_a_short_kernel_does_not_drown_in_what_comes_with_it(self, answer, rng):
        near_the_truth(answer, rng, "short kernel")

    @points(1)
    def test_the_first_call_does_not_count(self, answer, rng):
        near_the_truth(answer, rng, "first call")

    @points(1)
    def test_it_waits_until_the_clock_is_up(self, answer, rng):
        near_the_truth(answer, rng, "waking clock")

    @points(1)
    def test_a_disturbed_call_moves_nothing(self, answer, rng):
        near_the_truth(answer, rng, "outliers")

    @points(1)
    def test_no_input_waits_in_the_cache(self, answer, rng):
        near_the_truth(answer, rng, "hot L2")

    @points(1)
    def test_what_was_queued_before_does_not_count(self, answer, rng):
        near_the_truth(answer, rng, "dirty queue")

    @points(1)
    def test_no_memory_is_requested_while_the_clock_runs(self, answer, rng):
        near_the_truth(answer, rng, "slow malloc")


# --- summarize ----------------------------------------------------------------------------------


def two_numbers(answer):
    """The pair as a dict of floats; `part` picks one."""

    def named(samples, part=None):
        returned = answer(samples)
        if returned is None:
            return None
        try:
            middle, spread = (float(each) for each in returned)
        except (TypeError, ValueError):
            raise Unusable(
                f"returned {describe(returned)}; a pair of numbers is expected: the median and "
                "the interquartile range."
            ) from None
        both = {"median": middle, "iqr": spread}
        return {part: both[part]} if part else both

    return named


EVEN = [4.0, 1.0, 9.0, 2.0, 80.0, 3.0]
ODD = [7.0, 3.0, 30.0, 5.0, 4.0]
NINE = [12.0, 10.0, 19.0, 11.0, 13.0, 95.0, 10.5, 14.0, 13.5]


def summary_probes(rng):
    return {
        f"{name}, {part}": {"samples": samples, "part": part}
        for name, samples in {
            "even": EVEN,
            "odd": ODD,
            "nine": NINE,
            "in order": [1.0, 2, 4, 9],
        }.items()
        for part in ("median", "iqr")
    }


def summary_small(rng):
    for samples in ([1.0, 3.0], [3.0, 1.0, 2.0], [4.0, 1.0, 2.0, 9.0], ODD, EVEN, NINE):
        yield {"samples": samples}


def some_samples(rng, count, unit=1.0):
    """Times as they come: most of them close together, one in six disturbed."""
    times = 10 + torch.rand(count, generator=rng, device="cpu")
    disturbed = torch.rand(count, generator=rng, device="cpu") < 1 / 6
    return [unit * each for each in torch.where(disturbed, 7 * times, times).tolist()]


def summarized(answer, samples, *parts):
    """Assert that these parts are right, to six digits whatever the unit."""
    inputs = {"samples": samples}
    got, expected = answer(inputs), answer.expected(inputs)
    names = {"median": "The median", "iqr": "The interquartile range"}
    for part in parts:
        if not math.isclose(got[part], expected[part], rel_tol=1e-6, abs_tol=1e-12):
            shown = ", ".join(f"{each:.4g}" for each in samples[:9])
            raise Failure(
                f"{names[part]} of {shown}{', …' * (len(samples) > 9)} is {expected[part]:.6g}; "
                f"yours is {got[part]:.6g}.",
                inputs,
                expected,
                got,
            )


class TestSummarize:
    task = Task(
        name="summarize",
        reference=reference.summarize,
        returns=dict,
        difficulty=2,
        minutes=10,
        section="lab1-median",
        hints=(
            "Which number would not change if the slowest sample took a minute? And which span "
            "would not change either?",
            "Sort a copy. Half of the samples lie below the median; a quarter lies below the first "
            "quartile, a quarter above the third. The interquartile range is the distance of these "
            "two. Between two samples, share in proportion.",
            "`torch.quantile(torch.tensor(samples, dtype=torch.float64), torch.tensor([0.25, 0.5, "
            "0.75], dtype=torch.float64))` gives all three; return the second, and the third minus "
            "the first.",
        ),
        probes=summary_probes,
        small=summary_small,
        adapt=two_numbers,
    )

    @points(1)
    def test_half_of_the_samples_lie_below_the_median(self, answer, rng):
        for count in (5, 21, 33):
            summarized(answer, some_samples(rng, count), "median")

    @points(1)
    def test_of_an_even_number_the_median_is_between_the_middle_two(self, answer, rng):
        for count in (2, 6, 20, 30):
            summarized(answer, some_samples(rng, count), "median")

    @points(1)
    def test_the_middle_half_lies_within_the_interquartile_range(self, answer, rng):
        for count in (2, 5, 9, 20, 30, 31):
            summarized(answer, some_samples(rng, count), "iqr")

    @points(1)
    def test_microseconds_count_and_the_samples_stay_in_order(self, answer, rng):
        samples = some_samples(rng, 20, unit=1e-6)
        summarized(answer, samples, "median", "iqr")
        moves_nothing(answer, {"samples": samples})


# --- make_inputs --------------------------------------------------------------------------------
# Letters: b batch, h heads, n positions, d width of a head.


def facts_of(answer):
    """What can be said about a student's tensors, whatever the numbers are."""

    def facts(b, h, n, d, seed):
        made = answer(b, h, n, d, seed)
        if made is None:
            return None
        tensors = three(made)
        with torch.random.fork_rng(devices=[]):
            torch.rand(3)  # whatever was drawn elsewhere in between
            again, other = three(answer(b, h, n, d, seed)), three(answer(b, h, n, d, seed + 1000))
        numbers = torch.cat([each.detach().flatten().double() for each in tensors])
        usual = (numbers.abs() < 1).double().mean().item()
        return {
            "shapes": [list(each.shape) for each in tensors],
            "dtypes": [str(each.dtype).removeprefix("torch.") for each in tensors],
            "mean is 0": abs(numbers.mean().item()) < 0.08,
            "spread is 1": abs(numbers.std().item() - 1) < 0.08,
            "two thirds lie within 1": abs(usual - 0.683) < 0.04,
            "all differ": numbers.unique().numel() > 0.99 * numbers.numel(),
            "same again": all(map(torch.equal, tensors, again)),
            "other seed, other numbers": not any(map(torch.equal, tensors, other)),
        }

    return facts


def three(made) -> list[Tensor]:
    tensors = list(made) if isinstance(made, list | tuple | Tensor) else [made]
    if len(tensors) != 3 or not all(isinstance(each, Tensor) for each in tensors):
        raise Unusable(f"returned {describe(made)}; three tensors are expected: query, key, value.")
    return tensors


def sizes(b, h, n, d, seed):
    return {"b": b, "h": h, "n": n, "d": d, "seed": seed}


def input_probes(rng):
    return {
        "all sizes differ": sizes(2, 3, 40, 16, 5),
        "one sentence, one head": sizes(1, 1, 96, 32, 0),
        "equal sizes": sizes(7, 7, 7, 7, 12),
    }


def input_traits(answer):
    facts = answer(sizes(2, 3, 40, 16, 5))
    return {name: value for name, value in facts.items() if isinstance(value, bool)} | {
        "resets the random state": answer.resets_random_state(sizes(2, 3, 40, 16, 5))
    }


def some_sizes(rng):
    return sizes(2, 3, 40, 16, draw(rng)), sizes(1, 5, 64, 24, draw(rng))


class TestMakeInputs:
    task = Task(
        name="make_inputs",
        reference=reference.make_inputs,
        returns=dict,
        difficulty=2,
        minutes=8,
        section="lab1-inputs",
        hints=(
            "Somebody runs your lab again next year, after other cells have drawn other random "
            "numbers. What must not change? And whose random numbers must not change through you?",
            "`torch.randn` takes `generator=`. A generator of your own, `torch.Generator()`, has a "
            "seed of its own, and nobody else draws from it.",
            "own = torch.Generator().manual_seed(seed); then three times torch.randn(b, h, n, d, "
            "generator=own).",
        ),
        probes=input_probes,
        small=lambda rng: iter([sizes(2, 3, 40, 16, 5)]),
        adapt=facts_of,
        traits=input_traits,
    )

    @points(1)
    def test_query_key_and_value_have_axes_b_h_n_d(self, answer, rng):
        for inputs in (*some_sizes(rng), sizes(1, 1, 2, 3, 0)):
            facts = answer(inputs)
            expected = [[inputs[name] for name in "bhnd"]] * 3
            if facts["shapes"] != expected:
                raise Failure(
                    f"For b={inputs['b']}, h={inputs['h']}, n={inputs['n']}, d={inputs['d']} the "
                    f"shapes are {facts['shapes']}; expected three times {expected[0]}.",
                    inputs,
                )
            if facts["dtypes"] != ["float32"] * 3:
                raise Failure(f"The dtypes are {facts['dtypes']}; expected float32.", inputs)

    @points(1)
    def test_all_numbers_are_standard_normal_and_no_two_alike(self, answer, rng):
        said = {
            "mean is 0": "The mean of all numbers is not 0.",
            "spread is 1": "The standard deviation of all numbers is not 1.",
            "two thirds lie within 1": "Of standard normal numbers 68 % lie between −1 and 1; of "
            "yours another share.",
            "all differ": "Some numbers come again and again: query, key, value, heads and "
            "sentences each need numbers of their own.",
        }
        for inputs in some_sizes(rng):
            facts = answer(inputs)
            for name, sentence in said.items():
                if not facts[name]:
                    raise Failure(sentence, inputs)

    @points(1)
    def test_a_seed_gives_the_same_numbers_every_time(self, answer, rng):
        for inputs in some_sizes(rng):
            facts = answer(inputs)
            if not facts["same again"]:
                raise Failure("The same seed gave other numbers on the second call.", inputs)
            if not facts["other seed, other numbers"]:
                raise Failure("Another seed gave the same numbers.", inputs)

    @points(1)
    def test_the_random_state_of_others_stays_as_it_is(self, answer, rng):
        inputs = sizes(2, 3, 40, 16, draw(rng))
        answer(inputs)
        if answer.observe(inputs).random_state_moved:
            raise Failure(
                "Your answer moved or reset the global random state: whoever draws numbers after "
                "it gets others because of you.",
                inputs,
            )


# --- name_the_mistake ---------------------------------------------------------------------------
# Timers with one mistake each, from which hidden panels are made. With events or the host's clock.

NAMES = (
    *("none", "no synchronize", "earlier work counted", "first call counted", "single sample"),
    *("mean", "hot cache", "allocation inside", "wrong unit"),
)


def flawed(mistake: str, form: int):
    """A timer with this mistake; `form` picks one of the ways to make it."""

    def one(fn, flush):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if mistake != "hot cache":
            flush()
        wall = form % 2 or mistake in ("no synchronize", "first call counted")
        if wall and mistake != "earlier work counted":
            torch.cuda.synchronize()
        before = time.perf_counter()
        start.record()
        if mistake == "earlier work counted" and not wall:
            flush()
        if mistake == "allocation inside":
            torch.zeros(256, 256, device="cuda")
        fn()
        end.record()
        if mistake != "no synchronize":
            torch.cuda.synchronize()
        return time.perf_counter() - before if wall else start.elapsed_time(end) / 1e3

    def timer(fn, flush):
        # Calls instead of time: enough for every clock here, and quick to simulate.
        queued = mistake == "earlier work counted" and form == 2
        for _ in range(8 if queued else 0 if mistake == "first call counted" else 60):
            fn()
        if queued:
            before = time.perf_counter()
            for _ in range(20):
                fn()
            torch.cuda.synchronize()
            return (time.perf_counter() - before) / 20
        torch.cuda.synchronize()
        if mistake == "single sample" or (mistake == "first call counted" and form % 2):
            return one(fn, flush)
        times = [one(fn, flush) for _ in range(20)]
        if mistake in ("mean", "first call counted"):
            return statistics.mean(times)
        factors = (1e3, 1e9, 1e-3, 1e6)
        return [factors[form] * each for each in times] if mistake == "wrong unit" else times

    return timer


@functools.lru_cache(512)
def hidden_panel(mistake: str, form: int, seed: int) -> dict[str, float]:
    ratios = panel(flawed(mistake, form), seed)
    return {scenario: float(f"{value:.3g}") for scenario, value in ratios.items()}


def of(mistake, form, seed):
    return {"ratios": dict(hidden_panel(mistake, form, seed))}


def as_a_name(answer):
    def named(ratios):
        name = answer(ratios)
        return None if name is None else {"name": name}

    return named


def panel_probes(rng):
    tried = {"none": (0, 1), "earlier work counted": (0, 2), "wrong unit": (0, 1, 2)}
    return {
        f"{mistake} {form}": of(mistake, form, 3)
        for mistake in NAMES
        for form in tried.get(mistake, (0,))
    }


def panel_small(rng):
    yield from panel_probes(rng).values()


def named(answer, mistake, form, rng):
    """Assert that a panel gets the name of its mistake."""
    inputs = of(mistake, form, draw(rng, 1000))
    name = answer(inputs)["name"]
    if name == mistake:
        return
    if not isinstance(name, str):
        raise Failure(
            f"Your answer returned {describe(name)}; one of the names is expected.", inputs
        )
    if name not in NAMES:
        raise Failure(f"“{name}” is none of the nine names: {', '.join(NAMES)}.", inputs)
    ratios = ", ".join(f"{scenario} {value:g}" for scenario, value in inputs["ratios"].items())
    raise Failure(
        f"The panel {ratios} is from a timer whose mistake is “{mistake}”; you say “{name}”.",
        inputs,
        {"name": mistake},
        {"name": name},
    )


class TestNameTheMistake:
    task = Task(
        name="name_the_mistake",
        reference=reference.name_the_mistake,
        returns=dict,
        difficulty=3,
        minutes=15,
        section="lab1-signatures",
        hints=(
            "Run the cell with the panels again and look at one row at a time: which entry stands "
            "out the most, by its factor? Begin with the rows in which everything is wrong.",
            "All entries wrong by one factor: a unit. All too small, each by a factor of its own: "
            "no synchronize. Then the loudest first: first call, short kernel or dirty queue, slow "
            "malloc, hot L2, and last outliers, which has two mistakes to tell apart by size.",
            "unit: high < 10 · low, and far from 1. Then long kernel < 0.5; first call > 3; short "
            "kernel > 3 or dirty queue > 3; slow malloc > 1.5; hot L2 < 0.8; outliers > 4 is a "
            "single sample, > 1.3 a mean; else none.",
        ),
        probes=panel_probes,
        small=panel_small,
        adapt=as_a_name,
    )

    @points(1)
    def test_an_honest_timer_is_left_in_peace(self, answer, rng):
        for form in (0, 1, 0, 1):
            named(answer, "none", form, rng)
        moves_nothing(answer, of("none", 0, 1))

    @points(1)
    def test_no_synchronize_and_a_wrong_unit_are_told_apart(self, answer, rng):
        named(answer, "no synchronize", 0, rng)
        for form in range(4):
            named(answer, "wrong unit", form, rng)

    @points(1)
    def test_work_that_is_not_of_the_function_is_noticed(self, answer, rng):
        for form in range(3):
            named(answer, "earlier work counted", form, rng)
        for form in range(2):
            named(answer, "allocation inside", form, rng)

    @points(1)
    def test_a_first_call_and_a_hot_cache_are_noticed(self, answer, rng):
        for mistake in ("first call counted", "hot cache"):
            for form in range(2):
                named(answer, mistake, form, rng)

    @points(1)
    def test_a_single_sample_is_told_from_a_mean(self, answer, rng):
        for mistake in ("single sample", "mean"):
            for form in range(2):
                named(answer, mistake, form, rng)


# --- lab1_receipt -------------------------------------------------------------------------------


def as_text(answer):
    def text():
        returned = answer()
        if returned is None or returned is ... or returned == "":
            return None
        return {"receipt": returned}

    return text


def record_of(answer):
    """The record in a student's receipt, or a Failure that says what to do."""
    text = answer({})["receipt"]
    if not isinstance(text, str):
        raise Failure(
            f"Your answer returned {describe(text)}; the text of the receipt is expected."
        )
    try:
        record = receipts.decode(text)
    except receipts.ReceiptError as error:
        raise Failure(f"This receipt cannot be read: {error}") from None
    if record["lab"] != LAB:
        raise Failure(f"This is the receipt of “{record['lab']}”; that of {LAB} is expected.")
    return record


LAB = "lab1_time_it_right"
KINDS = ("product", "copy")


def predicted_before(record) -> bool:
    made = record["predictions"].get("timers")
    return isinstance(made, dict) and bool(made.get("value")) and not made.get("points")


def timed(record, kind) -> list[dict]:
    return [p for p in record["points"] if p["name"] == kind and p.get("seconds")]


def enough(record) -> bool:
    return all(
        len({p.get("n") for p in timed(record, kind)}) >= 3
        and all(max(p.get("samples") or 0, len(p["seconds"])) >= 20 for p in timed(record, kind))
        for kind in KINDS
    )


def speeds(record, kind) -> list[float]:
    """Flops or bytes per second at every size: by the median, by the best on a CPU."""
    key = {"product": "flops", "copy": "bytes"}[kind]
    found = []
    for point in timed(record, kind):
        one = min if point.get("clock") == "cpu" else statistics.median
        found.append((point.get(key) or 0) / max(one(point["seconds"]), 1e-12))
    return found


def roofs(record) -> dict[str, float]:
    """What the record claims; 0 where it claims nothing."""
    ceilings = record["machine"].get("ceilings") or {}
    products = (ceilings.get("flops_per_second") or {}).values()
    return {"product": max(products, default=0), "copy": ceilings.get("bytes_per_second") or 0}


def roofs_follow(record) -> bool:
    """Each roof is, within 10 %, what was measured at one of the sizes."""
    claimed = roofs(record)
    return all(
        any(0.9 * each <= claimed[kind] <= 1.1 * each for each in speeds(record, kind))
        for kind in KINDS
    )


def grave(record) -> list:
    return [each for each in audit(record) if each.severity in (IMPOSSIBLE, INCONSISTENT)]


def receipt_traits(answer):
    text = answer({})["receipt"]
    try:
        record = receipts.decode(text) if isinstance(text, str) else None
    except receipts.ReceiptError:
        record = None
    of_this_lab = record is not None and record["lab"] == LAB
    grave_names = {each.name for each in grave(record)} if of_this_lab else set()
    return {
        "a receipt": isinstance(text, str) and receipts.PREFIX in text,
        "readable": record is not None,
        "of this lab": of_this_lab or record is None,
        "predicted": not of_this_lab or bool(record["predictions"].get("timers")),
        "predicted before": not of_this_lab or predicted_before(record),
        "all sizes": not of_this_lab or all(len(timed(record, k)) >= 3 for k in KINDS),
        "enough samples": not of_this_lab or enough(record),
        "possible": not grave_names,
        "within the data sheet": not grave_names & {"units", "faster_than_peak"},
        "roofs follow": not of_this_lab or roofs_follow(record),
    }


class TestLab1Receipt:
    task = Task(
        name="lab1_receipt",
        reference=reference.lab1_receipt,
        returns=dict,
        difficulty=1,
        minutes=5,
        section="lab1-receipt",
        hints=(
            "The cell that measures prints a text at its end. Have you run it to the end?",
            "Copy all lines between the quotation marks, from `attn1:` to the last one. Line "
            "breaks do no harm, missing characters do.",
            'Replace the dots by return """ and the lines, and close with """. If the check says '
            "that something is impossible, mend your stopwatch and measure again; if it says "
            "“measure again”, that is advice and costs nothing.",
        ),
        probes=lambda rng: {"the receipt": {}},
        small=lambda rng: iter(()),
        adapt=as_text,
        traits=receipt_traits,
    )

    @points(1)
    def test_the_receipt_of_this_lab_can_be_read(self, answer):
        record_of(answer)

    @points(1)
    def test_the_prediction_was_made_before_the_first_measurement(self, answer):
        if not predicted_before(record_of(answer)):
            raise Failure(
                "Your prediction of `timers` is missing, or came after the first measurement. Move "
                "the .jsonl file away and run the notebook from its prediction on. Whether the "
                "prediction is right makes no difference to the points."
            )

    @points(1)
    def test_three_products_and_three_copies_have_twenty_samples_each(self, answer):
        if not enough(record_of(answer)):
            raise Failure(
                "Products and copies of at least three sizes are expected, with at least "
                f"{LEAST_SAMPLES} samples each. Run the measuring cell to its end."
            )

    @points(1)
    def test_nothing_in_it_is_impossible(self, answer):
        found = grave(record_of(answer))
        if found:
            raise Failure(str(found[0]))

    @points(1)
    def test_the_roofs_are_those_of_its_own_samples(self, answer):
        record = record_of(answer)
        if not roofs_follow(record):
            claimed = roofs(record)
            said = "; ".join(
                f"{kind}: {claimed[kind]:.3g} claimed, at best "
                f"{max(speeds(record, kind)):.3g} by the samples"
                for kind in KINDS
            )
            raise Failure(
                f"The roofs in your record do not follow from its own samples ({said}, per "
                "second). A roof is what you measured, not what a data sheet promises."
            )
