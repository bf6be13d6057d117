"""What one point says by itself."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from attncourse.lab.audit.reading import (
    AGAIN,
    FUSED,
    IMPOSSIBLE,
    INCONSISTENT,
    NOTE,
    Finding,
    Point,
    Reading,
)
from attncourse.lab.timing import (
    CONTENDED,
    LEAST_SAMPLES,
    LEAST_SLOW_SAMPLES,
    SLOW_SECONDS,
    THROTTLED,
    UNSTEADY,
    enough,
)


def _samples(book: Reading) -> Iterator[Finding]:
    for point in book.points:
        if point["error"] or point.seconds.size:
            continue
        if point["peak_bytes"] is None and point["flops"] is None:
            yield point.complain("nothing_measured", NOTE, "No samples and no error: measure it.")
    for point in book.timed:
        if (point.seconds <= 0).any():
            yield point.complain(
                "not_a_time",
                IMPOSSIBLE,
                "Nothing takes no time at all. The clock was read too early, or it is too coarse: "
                "measure several calls in one sample.",
                shortest=float(point.seconds.min()),
            )
        elif not enough(point.seconds):
            yield point.complain(
                "too_few_samples",
                INCONSISTENT,  # with AGAIN one could keep the best few
                f"Too few samples to see their noise: take {LEAST_SAMPLES} or more of each point, "
                f"{LEAST_SLOW_SAMPLES} where a call takes {SLOW_SECONDS} s or more.",
                samples=point.seconds.size,
            )


def _warm_up(book: Reading) -> Iterator[Finding]:
    able = [point for point in book.timed if point.seconds.size >= 5 and point.median > 0]
    slow = [point for point in able if point.seconds[0] > 5 * point.median]
    # One late first call can be another program; nearly all of them are not.
    severity = INCONSISTENT if len(slow) >= 3 and len(slow) > len(able) / 2 else AGAIN
    for point in slow:
        yield point.complain(
            "warm_up_counted",
            severity,
            "The first sample holds what only the first call does (loading, compiling, choosing "
            "kernels). Call the function a few times before the clock starts.",
            first_over_median=point.seconds[0] / point.median,
        )
        if severity == INCONSISTENT:
            return  # once says it all


def _noise(book: Reading) -> Iterator[Finding]:
    for point in book.timed:
        if point.seconds.size < 8:
            continue
        quarter = point.seconds.size // 4
        drift = np.median(point.seconds[-quarter:]) / max(np.median(point.seconds[:quarter]), 1e-12)
        low, high = np.quantile(point.seconds, [0.25, 0.75])
        if not 1 / THROTTLED <= drift <= THROTTLED:
            yield point.complain(
                "drift",
                AGAIN,
                "Samples at the end differ from those at the start: the clock changed (heat, power "
                "limit) or another program came or went. Measure again after a pause.",
                last_over_first=float(drift),
            )
        if high - low > UNSTEADY * point.median:
            yield point.complain(
                "noisy",
                AGAIN,
                "The samples scatter widely. Close what else is running and measure again.",
                iqr_over_median=float((high - low) / point.median),
            )
    for point in book.timed:
        ratio = point["wall_over_cpu"]
        if ratio is not None and ratio > CONTENDED and not book.gpu:
            yield point.complain(
                "contended",
                AGAIN,
                "Other programs had the processor part of the time. Measure again later.",
                wall_over_cpu=ratio,
            )
        elif ratio is not None and ratio < 0.7 and not book.gpu and point["clock"] == "cpu":
            yield point.complain(
                "hidden_threads",
                AGAIN,
                "More processor time than time on the wall: several threads worked, and their "
                "times add up. Set torch.set_num_threads(1) and measure again.",
                wall_over_cpu=ratio,
            )


def _headline(book: Reading) -> Iterator[Finding]:
    for point in book.timed:
        said = point["headline"]
        if said is None or point["samples"]:  # thinned: the statistics moved a little
            continue
        right = [point.median] + ([float(point.seconds.min())] if point["clock"] == "cpu" else [])
        if any(math.isclose(said, value, rel_tol=0.05) for value in right):
            continue  # two digits are enough for a headline
        mean = math.isclose(said, float(point.seconds.mean()), rel_tol=0.05)
        yield point.complain(
            "mean_reported" if mean else "headline_from_elsewhere",
            INCONSISTENT,
            "This is the mean, which one slow sample can move anywhere: report the median."
            if mean
            else "The number reported does not follow from the samples: compute it from them.",
            reported=said,
            median=point.median,
        )


def _regular(book: Reading) -> Iterator[Finding]:
    for point in book.timed:
        pattern = _pattern(point)
        if pattern:
            yield point.complain(
                "too_regular",
                INCONSISTENT,
                f"Samples of a real clock scatter; these {pattern}. Record what the clock said, "
                "every sample.",
                samples=point.seconds.size,
            )
        elif point.seconds.size >= 10 and _ordered(point.seconds):
            yield point.complain(
                "sorted_samples",
                AGAIN,
                "The samples are sorted, so a drift cannot be seen. Keep them as they came.",
                samples=point.seconds.size,
            )


def _pattern(point: Point) -> str | None:
    """In words, if no clock would produce this."""
    seconds, count, middle = point.seconds, point.seconds.size, point.median
    if count < 10:
        return None
    different = len(set(seconds.tolist()))
    # CUDA events tick every 0.5 µs or so: short kernels often take the same number of ticks.
    if different == 1:
        return "are all the same" if middle > 1e-3 else None
    if point.unit > 0.011 * middle and middle > 1e-4:
        return "are rounded to two digits"
    line = np.polyval(np.polyfit(np.arange(count), seconds, 1), np.arange(count))
    if different >= 10 and np.std(seconds - line) < 0.003 * np.std(seconds) + 0.35 * point.unit:
        return "lie on a straight line"
    for period in range(5, count // 2 + 1):
        if different >= 5 and np.array_equal(seconds[period:], seconds[:-period]):
            return f"repeat every {period}"
    return None


def _ordered(seconds: np.ndarray) -> bool:
    steps = np.diff(seconds)
    return len(set(seconds.tolist())) >= 8 and bool((steps >= 0).all() or (steps <= 0).all())


def _results(book: Reading) -> Iterator[Finding]:
    # A few times the rounding of the dtype; float16 and bfloat16 keep 11 and 8 bits.
    tolerance = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
    for point in book.points:
        error = point["reference_error"]
        wild = "reference_error" in (point["not_finite"] or ())
        if wild or (error is not None and error > tolerance.get(point["dtype"], 1e-1)):
            yield point.complain(
                "wrong_result",
                INCONSISTENT,
                "A wrong answer's speed is worthless. Compare with the reference first, and let "
                "NaN fail the comparison.",
                reference_error=math.nan if wild else error,
            )
        if point["grad"] and not point["backward"]:
            yield point.complain(
                "grad_on",
                INCONSISTENT,
                "Autograd kept what a backward pass would need, in time and memory. Time inference "
                "within torch.inference_mode().",
            )
        if point["edited"]:
            yield point.complain(
                "edited",
                INCONSISTENT,
                "This line of the file was changed after it was written. Measure the configuration "
                "again; a mistake is better explained than erased.",
            )
        if (point["attempts"] or 1) > 3:
            yield point.complain(
                "many_attempts",
                NOTE,
                "Measured several times; the last one counts. Say why in your explanation.",
                attempts=point["attempts"],
            )


def _clocks(book: Reading) -> Iterator[Finding]:
    for point in book.timed:
        if point["clock"] == "events" and not book.gpu:
            yield point.complain(
                "clock_mismatch",
                IMPOSSIBLE,
                "CUDA events need a GPU, and this record is from a CPU, so it mixes two machines. "
                "Measure it on one.",
            )
        elif point["clock"] == "cpu" and book.gpu:
            yield point.complain(
                "clock_mismatch",
                INCONSISTENT,
                "Processor time does not see what a GPU does. Use CUDA events.",
            )


def _backends(book: Reading) -> Iterator[Finding]:
    reasons = {}
    for point in book.timed:
        backend, name = point["backend"], point.name.lower()
        if backend is None:
            continue
        key = backend, point.without("name", "n")
        if key not in reasons:
            reasons[key] = _why_not(book.machine, point)
        reason = reasons[key]
        if reason:
            yield point.complain(
                "backend_impossible",
                IMPOSSIBLE,
                f"{backend} cannot have run here: {reason}. Ask `which_backend` instead of "
                "assuming.",
            )
        elif backend == "MATH" and any(word in name for word in ("flash", "efficient", "cudnn")):
            yield point.complain(
                "math_called_flash",
                INCONSISTENT,
                f'The name says "{point.name}", but MATH ran: a silent fallback. Force the backend '
                "with sdpa_kernel, or name what ran.",
            )


def _why_not(machine: Mapping[str, object], point: Point) -> str | None:
    """Why this backend cannot run on this machine, or None if it can, or nobody knows."""
    backend = point["backend"]
    if backend not in FUSED:
        return None
    if machine.get("device") != "cuda":
        return None if backend == "FLASH" else "a CPU has only FLASH and MATH"
    try:
        import torch

        from attncourse.lab.backends import may_run, sdpa_call

        call = sdpa_call(
            getattr(torch, point["dtype"]),
            d=point["d"] or 64,
            h=point["h"] or 8,
            kv_heads=point["kv_heads"],
            mask="bool" if point["mask"] else None,
            dropout=point["dropout"] or 0.0,
            requires_grad=bool(point["backward"]),
        )
        verdicts = may_run(
            tuple(machine["capability"]), **call, torch_version=machine["torch"].split("+")[0]
        )
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, RuntimeError):
        return None  # not enough is known to forbid it
    refusals = {verdict.backend: verdict.refusals for verdict in verdicts}
    return "; ".join(refusals.get(backend, ())) or None


DETECTORS = (_samples, _warm_up, _noise, _headline, _regular, _results, _clocks, _backends)
