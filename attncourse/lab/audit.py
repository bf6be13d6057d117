"""Is a lab's record possible, and was it measured well? Every claim again, from the samples.

Evidence, not proof: whoever knows this file can invent a record that passes it. It catches what
physics forbids, what contradicts itself, and the usual mistakes of measuring. A noisy, busy or
throttled machine is nobody's fault: it is asked to measure again and loses no points.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attncourse.lab.fits import fit_exponent
from attncourse.lab.receipts import configuration, validate
from attncourse.lab.roofline import datasheet
from attncourse.lab.timing import CONTENDED, LEAST_SAMPLES, THROTTLED, UNSTEADY

IMPOSSIBLE, INCONSISTENT, AGAIN, NOTE = "impossible", "inconsistent", "measure again", "note"
SEVERITIES = (IMPOSSIBLE, INCONSISTENT, AGAIN, NOTE)
TOLERANCE = 1.1  # ceilings are measured, too
FAR_ABOVE = 3  # times its own ceiling: whichever of the two is wrong, they were not measured alike
FUSED = ("FLASH", "EFFICIENT", "CUDNN")  # backends that never write n × n scores


@dataclass(frozen=True)
class Finding:
    """Something in a record that a careful reader would ask about.

    Attributes:
        name: of the detector that spoke, such as "warm_up_counted".
        severity: "impossible", "inconsistent", "measure again" or "note".
        configuration: which points, in words, such as "naive, n=1024".
        numbers: the evidence.
        sentence: what it means and what to do.
    """

    name: str
    severity: str
    configuration: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    sentence: str = ""

    def __str__(self) -> str:
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in self.numbers.items())
        where = f" ({numbers})" if numbers else ""
        return f"{self.severity}: {self.configuration}{where}. {self.sentence}"


def audit(record: Mapping[str, object]) -> list[Finding]:
    """Look for impossible, inconsistent and badly measured data in a lab's record.

    Beside the keys that every record has, a point may say: `headline` (the one number reported,
    in seconds), `grad` and `backward` (whether gradients were recorded, and wanted), `precision`
    (of float32 products), `label` (a text with "L2" admits that the data waited in the cache),
    `d`, `h`, `kv_heads`, `mask`, `dropout` (for the rules of the backends). Implementations are
    compared where all keys of their configuration but `name` agree. A lab whose peak memory is
    the same at every n by design leaves `peak_bytes` out.

    Args:
        record: as `Recorder.record`, `load` or `decode` return it.

    Returns:
        Findings, the gravest first; the same record gives the same findings.

    Raises:
        ValueError: not a record.
    """
    validate(record)
    book = _Book(record)
    found = [finding for detector in DETECTORS for finding in detector(book)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def passed(findings: list[Finding]) -> bool:
    """Whether nothing is impossible or inconsistent; "measure again" costs no points."""
    return not any(finding.severity in (IMPOSSIBLE, INCONSISTENT) for finding in findings)


def summary(findings: list[Finding]) -> str:
    """What the audit has to say to a student, as text."""
    kinds = defaultdict(list)
    for finding in findings:
        kinds[finding.name, finding.severity].append(finding)
    lines = [f"- {same[0]}" + _more(len(same) - 1) for same in kinds.values()]
    if not passed(findings):
        opening = "Some of this record cannot be right as it stands:"
    elif any(finding.severity == AGAIN for finding in findings):
        opening = "Nothing impossible here. Some points deserve another run; no points are lost:"
    elif lines:
        opening = "Nothing impossible or inconsistent here. Worth knowing:"
    else:
        opening = "Nothing impossible or inconsistent here."
    closing = "An audit is evidence, not proof: it reads the samples and cannot see the run."
    return "\n".join([opening, *lines, closing])


def _more(count: int) -> str:
    return f" And {count} more like it." if count else ""


class _Point:
    """One configuration, with what most detectors ask for."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        self.raw = raw
        self.seconds = np.asarray(raw.get("seconds") or [], float)
        self.started = np.asarray(raw.get("started") or [], float)
        self.median = float(np.median(self.seconds)) if self.seconds.size else math.nan
        self.name, self.n = raw["name"], raw.get("n")
        keys = configuration(raw)
        self.words = ", ".join([self.name] + [f"{k}={v}" for k, v in keys.items() if k != "name"])

    def __getitem__(self, key: str) -> object:
        return self.raw.get(key)

    @property
    def work(self) -> float:
        """Operations, or bytes where nobody counted them, or else n."""
        return float(self["flops"] or self["bytes"] or self.n or 0)

    @cached_property
    def unit(self) -> float:
        return _unit(self.seconds)

    @cached_property
    def ordered(self) -> np.ndarray:
        return np.sort(self.seconds)

    @cached_property
    def noise(self) -> float:
        """The typical step from one sample to the next, which a slow drift does not change."""
        return float(np.median(np.abs(np.diff(self.seconds))))

    def without(self, *keys: str) -> str:
        """The configuration less some keys, to group by."""
        rest = {k: v for k, v in configuration(self.raw).items() if k not in keys}
        return repr(sorted(rest.items()))

    def complain(self, name: str, severity: str, sentence: str, **numbers: float) -> Finding:
        return Finding(name, severity, self.words, numbers, sentence)


class _Book:
    """A record, sorted the ways detectors read it."""

    def __init__(self, record: Mapping[str, object]) -> None:
        self.machine, self.predictions = record["machine"], record["predictions"]
        self.points = [_Point(point) for point in record["points"]]
        self.timed = [point for point in self.points if point.seconds.size and not point["error"]]
        self.gpu = self.machine.get("device") == "cuda"

    def series(self, of: str = "seconds") -> Iterator[tuple[list[_Point], np.ndarray]]:
        """Points that differ in n alone, ascending, four or more, and what was measured."""
        rows = defaultdict(list)
        for point in self.points if of == "peak_bytes" else self.timed:
            value = point.median if of == "seconds" else point[of]
            if point.n and value and value > 0 and not point["error"]:
                rows[point.without("n")].append((point.n, value, point))
        for row in rows.values():
            row.sort(key=lambda entry: entry[0])
            if len({n for n, _, _ in row}) >= 4:
                yield [point for *_, point in row], np.array([value for _, value, _ in row])

    def flat(self, points: list[_Point], seconds: np.ndarray) -> bool:
        """Whether a GPU's times stay the same while the work grows."""
        grown = points[-1].work >= 16 * points[0].work > 0
        return self.gpu and grown and seconds.max() < 1.5 * seconds.min()

    def rivals(self, *differ: str) -> Iterator[list[_Point]]:
        """Points of several names that are there to be compared: all else is the same."""
        groups = defaultdict(list)
        for point in self.timed:
            # A product counts FLOPs and a copy bytes: no rivals, even with the same n.
            counted = point["flops"] is not None, point["bytes"] is not None
            groups[point.without("name", *differ), counted].append(point)
        for group in groups.values():
            if len({point.name for point in group}) > 1:
                yield group


def _unit(values: np.ndarray) -> float:
    """The power of ten that all values are multiples of: how finely they were written down."""
    for digits in range(16):
        scaled = values * 10.0**digits
        if np.abs(scaled).max() >= 1 and np.abs(scaled - np.round(scaled)).max() < 1e-6:
            return 10.0**-digits
    return 0.0


def _span(points: list[_Point]) -> float:
    return points[-1].n / points[0].n


# One point at a time


def _samples(book: _Book) -> Iterator[Finding]:
    for point in book.points:
        if point["error"] or point.seconds.size:
            continue
        if point["peak_bytes"] is None and point["flops"] is None:
            yield point.complain("nothing_measured", NOTE, "No samples and no error: measure it.")
    for point in book.timed:
        count = point["samples"] or point.seconds.size
        if (point.seconds <= 0).any():
            yield point.complain(
                "not_a_time",
                IMPOSSIBLE,
                "Nothing takes no time at all. The clock was read too early, or it is too coarse: "
                "measure several calls in one sample.",
                shortest=float(point.seconds.min()),
            )
        elif count < LEAST_SAMPLES:
            yield point.complain(
                "too_few_samples",
                INCONSISTENT,  # with AGAIN one could keep the best few
                f"Too few samples to see their noise: take {LEAST_SAMPLES} or more of each point.",
                samples=count,
            )


def _warm_up(book: _Book) -> Iterator[Finding]:
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


def _noise(book: _Book) -> Iterator[Finding]:
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


def _headline(book: _Book) -> Iterator[Finding]:
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


def _regular(book: _Book) -> Iterator[Finding]:
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
                "The samples are sorted, so nobody can see a drift. Keep them as they came.",
                samples=point.seconds.size,
            )


def _pattern(point: _Point) -> str | None:
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


def _results(book: _Book) -> Iterator[Finding]:
    # A few times the rounding of the dtype; float16 and bfloat16 keep 11 and 8 bits.
    tolerance = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
    for point in book.points:
        error = point["reference_error"]
        wild = "reference_error" in (point["not_finite"] or ())
        if wild or (error is not None and error > tolerance.get(point["dtype"], 1e-1)):
            yield point.complain(
                "wrong_result",
                INCONSISTENT,
                "A fast wrong answer has no speed. Compare with the reference first, and let NaN "
                "fail the comparison.",
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


def _clocks(book: _Book) -> Iterator[Finding]:
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


def _backends(book: _Book) -> Iterator[Finding]:
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


def _why_not(machine: Mapping[str, object], point: _Point) -> str | None:
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


# One implementation across n


def _growth(book: _Book) -> Iterator[Finding]:
    for points, seconds in book.series():
        if book.flat(points, seconds):
            yield _launches(book, points)
        for small, large in itertools.pairwise(points):
            if large.n > small.n and large.median < 0.5 * small.median:
                yield large.complain(
                    "faster_when_larger",
                    AGAIN,
                    f"Larger and yet faster than n={small.n}. Did it really run, or did an error "
                    "get lost on the way? Measure both again.",
                    seconds=large.median,
                    smaller_seconds=small.median,
                )


def _launches(book: _Book, points: list[_Point]) -> Finding:
    """Honest launches of tiny kernels, or a clock that stopped before the work was done."""
    last = points[-1]
    share = max(_shares(book, last).get(key, 0.0) for key in ("flops", "bytes"))
    mild = NOTE if last["clock"] == "events" else AGAIN  # events cannot stop too early
    return last.complain(
        "launch_time",
        IMPOSSIBLE if share > TOLERANCE else mild,
        "The work grows and the time does not: this is the time to launch. Synchronize before the "
        "clock stops"
        + ("." if share > TOLERANCE else ", and take larger n to see the kernels themselves."),
        work_growth=last.work / points[0].work,
        share_of_peak=share,
    )


def _speed(book: _Book) -> Iterator[Finding]:
    flat = {
        id(p) for points, seconds in book.series() if book.flat(points, seconds) for p in points
    }
    for point in book.timed:
        shares = _shares(book, point)
        above = {key for key, share in shares.items() if share > TOLERANCE}
        if "L2" in (point["label"] or ""):
            above -= {"bytes in L2", "measured bytes"}
        if not above or (id(point) in flat and above & {"flops", "bytes"}):
            continue  # nothing to say, or said by `_growth`
        numbers = {key.replace(" ", "_"): share for key, share in shares.items() if key in above}
        if shares.get("flops", 0) > 10 * TOLERANCE:
            yield point.complain(
                "units",
                IMPOSSIBLE,
                "Far above what this machine can compute. Record seconds, and stop the clock only "
                "when the work is done.",
                **numbers,
            )
        elif "flops" in above:
            yield point.complain(
                "faster_than_peak",
                IMPOSSIBLE,
                "More operations a second than this machine can do. Check the FLOP formula (causal "
                "counts half), and that the clock stops only when the work is done.",
                **numbers,
            )
        elif shares.get("measured flops", 0) > FAR_ABOVE:
            yield point.complain(
                "far_above_ceiling",
                INCONSISTENT,
                "Several times as fast as the product that this record calls the fastest of its "
                "machine. One of the two was not measured, or not in seconds: measure both again.",
                **numbers,
            )
        elif "bytes" in above:
            yield point.complain(
                "faster_than_memory",
                IMPOSSIBLE,
                "More bytes a second than the memory can deliver, and too many to wait in the L2 "
                "cache. Check the count of bytes, and that the clock stops after the work.",
                **numbers,
            )
        elif "bytes in L2" in above:
            fits = point["bytes"] <= (book.machine.get("l2_bytes") or 0)
            yield point.complain(
                "hot_l2",
                AGAIN if fits else NOTE,
                "Faster than the memory can deliver, so the data waited in the L2 cache. Overwrite "
                'the cache before each call, or put "L2" into the label.'
                if fits
                else "Faster than the memory can deliver: what one step writes, the next still "
                'finds in the L2 cache. Put "L2" into the label.',
                **numbers,
            )
        else:
            yield point.complain(
                "above_ceiling",
                AGAIN,
                "Faster than the ceiling that you measured on this machine: one of the two is off. "
                "Measure the ceilings again in the same session.",
                **numbers,
            )


def _shares(book: _Book, point: _Point) -> dict[str, float]:
    """What a point achieves as a share of what its machine can do, by the sheet and as measured."""
    shares = {}
    for key, peak in _peaks(book.machine, point).items():
        done = point[key.removeprefix("measured ")]
        if not done or not point.median > 0:
            continue
        # Naive attention passes six to eight times over scores that may fit into the cache.
        if key == "bytes" and done <= 8 * (book.machine.get("l2_bytes") or math.inf):
            key = "bytes in L2"
        shares[key] = done / point.median / peak
    return shares


def _peaks(machine: Mapping[str, object], point: _Point) -> dict[str, float]:
    """FLOP/s and bytes/s: the measured ceilings, and what cannot be exceeded."""
    ceilings, dtype = machine.get("ceilings") or {}, point["dtype"]
    peaks = {
        "measured flops": (ceilings.get("flops_per_second") or {}).get(dtype),
        "measured bytes": ceilings.get("bytes_per_second"),
    }
    if machine.get("device") != "cuda":
        # One core: two units × 16 lanes × 2 FLOP × 5 GHz = 0.3 TFLOP/s in float32; matrix units
        # (Intel's AMX, Apple's SME) reach about 2. Processor time adds up over cores; time on the
        # wall does not. No limit for bytes: large caches deliver what they deliver.
        cores = 1 if point["clock"] == "cpu" else 256
        peaks |= {"flops": 4e12 * cores, "measured bytes": None}
    elif sheet := datasheet(str(machine.get("name"))):
        peaks["flops"] = sheet["flops_per_second"].get(dtype)
        peaks["bytes"] = sheet["bytes_per_second"]
        if dtype == "float32" and (machine.get("capability") or [0])[0] >= 8:
            peaks["flops"] *= 8  # TF32 (A100 datasheet: 156 against 19.5), also inside kernels
    else:  # a GPU without a sheet here: five times what it did in this session
        peaks |= {key: 5 * (peaks[f"measured {key}"] or 0) for key in ("flops", "bytes")}
    return {key: peak for key, peak in peaks.items() if peak}


def _memory(book: _Book) -> Iterator[Finding]:
    total = book.machine.get("memory_bytes")
    for point in book.points:
        if total and (point["peak_bytes"] or 0) > total:
            yield point.complain(
                "more_memory_than_there_is",
                IMPOSSIBLE,
                "More bytes than this device has. Check the unit: bytes, not KiB or MiB.",
                peak_bytes=point["peak_bytes"],
                memory_bytes=total,
            )
    rows = [(points, peaks) for points, peaks in book.series("peak_bytes") if _span(points) >= 8]
    by_place = defaultdict(set)  # (n, peak, …) -> names: who has the very same peak
    for points, peaks in rows:
        for point, peak in zip(points, peaks, strict=True):
            by_place[point.without("name"), peak].add(point.name)
    for points, peaks in rows:
        last, growth = points[-1], float(peaks.max() / peaks.min())
        exponent = fit_exponent([point.n for point in points], peaks).exponent
        shared = sum(
            len(by_place[point.without("name"), peak]) > 1
            for point, peak in zip(points, peaks, strict=True)
        )
        fused = {point["backend"] for point in points} <= set(FUSED)
        if growth < 1.02:
            yield last.complain(
                "reserved_not_allocated",
                INCONSISTENT,
                "The peak is the same at every n: this is what the allocator keeps, or a peak that "
                "was never reset. Call reset_peak_memory_stats() before and "
                "max_memory_allocated() after each configuration.",
                growth=growth,
            )
        elif exponent < 0.8 and growth > 1.5:
            yield last.complain(
                "peak_not_reset",
                INCONSISTENT,
                "Memory grows more slowly than its inputs: a peak from an earlier configuration "
                "shines through. Reset it before each one, and delete the old tensors.",
                exponent=exponent,
            )
        elif fused and exponent > 1.6 and shared >= 3:
            yield last.complain(
                "peak_not_reset",
                INCONSISTENT,
                "The same peaks as another implementation, to the byte: its peak was not reset. "
                "Call reset_peak_memory_stats() before each configuration.",
                exponent=exponent,
            )
        elif fused and exponent > 1.6:
            yield last.complain(
                "math_called_flash",
                INCONSISTENT,
                f"{last['backend']} never writes n × n scores, but this memory grows like n²: MATH "
                "ran. Force the backend with sdpa_kernel and look again.",
                exponent=exponent,
            )


def _out_of_memory(book: _Book) -> Iterator[Finding]:
    smallest = {}  # where an implementation ran out of memory first
    for point in book.points:
        if "memory" in (point["error"] or "") and point.n:
            key = point.without("n")
            smallest[key] = min(point.n, smallest.get(key, math.inf))
    for point in book.points:
        with_error = bool(point["error"]) and point.seconds.size > 0
        beyond = (
            not point["error"]
            and point.seconds.size > 0
            and point.n
            and point.n > smallest.get(point.without("n"), math.inf)
        )
        if with_error or beyond:
            yield point.complain(
                "out_of_memory_as_time",
                INCONSISTENT,
                "A run that ends in an error has no time: record the error and no samples."
                if with_error
                else "A smaller n already ran out of memory, so this cannot have run. Record the "
                "error, free what is left (del, empty_cache) and measure again.",
                n=point.n or 0,
            )


# Implementations against each other


def _interleaved(book: _Book) -> Iterator[Finding]:
    apart = {}
    for group in book.rivals():
        for a, b in itertools.combinations(group, 2):
            if a.name == b.name or not (a.started.size >= 5 and b.started.size >= 5):
                continue
            before = float((a.started[:, None] < b.started).mean())  # 0.5 when in turn
            same = a["session"] == b["session"]
            if not same or not 0.1 <= before <= 0.9:
                apart.setdefault(tuple(sorted((a.name, b.name))), (a, b, same))
    for (one, other), (a, b, same) in apart.items():
        yield Finding(
            "not_interleaved",
            INCONSISTENT if same else AGAIN,
            f"{one} and {other}, first at {a.words}",
            {"first_started": a.started[0], "second_started": b.started[0]},
            "One was measured after the other, so a clock that drifts looks like a speed-up. "
            "Measure them in turn, A B A B: `compare` does.",
        )


def _sizes(book: _Book) -> Iterator[Finding]:
    groups = defaultdict(lambda: defaultdict(set))
    ended = defaultdict(lambda: math.inf)  # smallest n that failed
    for point in book.points:
        if point.n is None:
            continue
        counted = point["flops"] is not None, point["bytes"] is not None
        key = point.without("name", "n", "dtype"), None if point["error"] else counted
        if point["error"]:
            ended[key[0], point.name] = min(point.n, ended[key[0], point.name])
        else:
            groups[key][point.name].add(point.n)
    for (rest, _), sizes in groups.items():
        for a, b in itertools.combinations(sorted(sizes), 2):
            lacks_a = {n for n in sizes[b] - sizes[a] if n < ended[rest, a]}
            lacks_b = {n for n in sizes[a] - sizes[b] if n < ended[rest, b]}
            if lacks_a or lacks_b:
                crossed = bool(lacks_a and lacks_b)
                yield Finding(
                    "different_sizes",
                    INCONSISTENT if crossed else NOTE,
                    f"{a} and {b}",
                    {"only_first": len(lacks_b), "only_second": len(lacks_a)},
                    "They were measured at different n, so they cannot be compared. Use one list "
                    "of sizes for all."
                    if crossed
                    else "One lacks sizes that the other has. Compare where both have a time.",
                )


def _mixed(book: _Book) -> Iterator[Finding]:
    for key, name, sentence in (
        ("dtype", "mixed_dtypes", "Half the bytes is not a better algorithm."),
        ("precision", "mixed_precision", "TF32 on one side is not a better algorithm."),
    ):
        seen = set()
        for group in book.rivals(key):
            kinds = defaultdict(set)
            for point in group:
                if point[key] is not None:
                    kinds[point.name].add(point[key])
            for a, b in itertools.combinations(sorted(kinds), 2):
                if kinds[a].isdisjoint(kinds[b]) and (a, b) not in seen:
                    seen.add((a, b))
                    yield Finding(
                        name,
                        INCONSISTENT,
                        f"{a} ({', '.join(kinds[a])}) and {b} ({', '.join(kinds[b])})",
                        {},
                        f"{sentence} Measure both in the same {key}.",
                    )


def _copied(book: _Book) -> Iterator[Finding]:
    # A list of few different numbers, such as ticks of a coarse clock, may well come twice.
    rich = [p for p in book.timed if p.seconds.size >= 10 and len(set(p.seconds.tolist())) >= 8]
    for a, b in itertools.combinations(rich, 2):
        if a.seconds.size != b.seconds.size:
            continue
        same = (a.seconds == b.seconds).mean() >= 0.8 or _shuffled(a, b)
        if same or _scaled(a, b):
            yield Finding(
                "copied_samples",
                INCONSISTENT,
                f"{a.words} and {b.words}",
                {"ratio": b.median / a.median},
                "These two have the same samples"
                + (": " if same else ", times a constant: ")
                + "noise never repeats itself. Measure each configuration.",
            )


def _shuffled(a: _Point, b: _Point) -> bool:
    """Whether two lists hold the same numbers, as far as the digits tell."""
    rounding = 0.51 * max(a.unit, b.unit) + 1e-15
    middle_half = a.ordered[-a.ordered.size // 4] - a.ordered[a.ordered.size // 4]
    return middle_half > 20 * rounding and np.abs(a.ordered - b.ordered).max() <= rounding


def _scaled(a: _Point, b: _Point) -> bool:
    """Whether one is the other times a constant, as far as the digits tell."""
    if a.started.size and b.started.size and a["session"] == b["session"]:
        overlap = min(a.started[-1], b.started[-1]) - max(a.started[0], b.started[0])
        if overlap > 0:  # measured in turn, a change of the clock hits both alike
            return False
    for point in (a, b):
        # The digits must tell noise from rounding, and there must be noise.
        if point.ordered[0] <= 0 or point.noise < max(20 * point.unit, 1e-4 * point.median):
            return False
    rounding = a.unit / 2 / a.seconds + b.unit / 2 / b.seconds
    ratio = b.seconds / a.seconds
    return bool((np.abs(ratio / np.median(ratio) - 1) <= 1.5 * rounding + 1e-9).mean() >= 0.95)


# The record as a whole


def _timestamps(book: _Book) -> Iterator[Finding]:
    sessions = defaultdict(list)
    for point in book.timed:
        if point.started.size:
            sessions[point["session"]].append(point)
    for points in sessions.values():
        backward = False
        for point in points:
            steps = np.diff(point.started)
            if (steps < 0).any() or point.started[0] < 0:
                backward = True
                yield point.complain(
                    "time_backward",
                    IMPOSSIBLE,
                    "A later sample began before an earlier one. Keep samples and their start "
                    "times together and in order.",
                    largest_step_back=float(-steps.min()) if steps.size else 0.0,
                )
        if not backward:
            yield from _overlapping(book, points)


def _overlapping(book: _Book, points: list[_Point]) -> Iterator[Finding]:
    """Samples that began before the one before them ended."""
    # Processor time adds up over threads; the time on the wall is at least its share.
    threads = max(book.machine.get("threads") or 1, 1)
    busy = [p.seconds / (threads if p["clock"] == "cpu" else 1) for p in points]
    owner = np.repeat(np.arange(len(points)), [p.seconds.size for p in points])
    started, busy = np.concatenate([p.started for p in points]), np.concatenate(busy)
    order = np.lexsort((busy, started))  # rounded to the same start, the shorter was first
    started, busy, owner = started[order], busy[order], owner[order]
    slack = 1e-5 + 2 * max(_unit(point.started) for point in points)
    room = np.diff(started) + slack
    over = busy[:-1] > 1.1 * room
    if over.sum() < max(3, 0.02 * over.size):
        return
    ratio = float(np.median(busy[:-1][over] / room[over]))
    # Milliseconds taken for seconds: nearly all overlap, and none would at a thousandth.
    thousand = over.mean() > 0.8 and (busy[:-1] / 1e3 <= 1.1 * room).mean() > 0.98
    yield points[owner[:-1][over][0]].complain(
        "units" if thousand and ratio > 10 else "overlap",
        IMPOSSIBLE,
        "A sample lasts far longer than the time until the next one began, about a thousandfold: "
        "events speak in milliseconds. Record seconds."
        if thousand and ratio > 10
        else "Samples overlap in time, although one runs after the other. Keep each sample with "
        "its own start time.",
        samples=int(over.sum()),
        lasts_over_room=ratio,
    )


# First torch release whose wheels had this CUDA or this Python (PyTorch, RELEASE.md, "Release
# Compatibility Matrix"; the lists of its wheels).
FIRST_CUDA = {
    "12.1": (2, 1),
    "12.4": (2, 4),
    "12.6": (2, 6),
    "12.8": (2, 7),
    "12.9": (2, 8),
    "13.0": (2, 9),
    "13.2": (2, 12),
}
LAST_CUDA_11 = (2, 7)
FIRST_PYTHON = {"3.11": (2, 0), "3.12": (2, 2), "3.13": (2, 5), "3.14": (2, 9)}

# Compute capability and memory of the largest variant (NVIDIA's data sheets; H100 NVL has 94 GB).
GPUS = {
    "V100": ((7, 0), 32e9),
    "T4": ((7, 5), 16e9),
    "A100": ((8, 0), 80e9),
    "A10G": ((8, 6), 24e9),
    "L4": ((8, 9), 24e9),
    "L40S": ((8, 9), 48e9),
    "H100": ((9, 0), 94e9),
    "H200": ((9, 0), 141e9),
}


def _versions(book: _Book) -> Iterator[Finding]:
    machine = book.machine
    spelled = re.fullmatch(r"(\d+)\.(\d+)\.\d+(?:\+(cpu|cu\d+))?", str(machine.get("torch")))
    if spelled is None:
        return  # a build from source may combine what it likes
    torch = int(spelled[1]), int(spelled[2])
    cuda, build = machine.get("cuda"), spelled[3]
    python = ".".join(str(machine.get("python")).split(".")[:2])
    reasons = []
    if cuda and (
        torch < FIRST_CUDA.get(cuda, (0, 0)) or (cuda.startswith("11.") and torch > LAST_CUDA_11)
    ):
        reasons.append(f"torch {machine['torch']} was never built for CUDA {cuda}")
    if torch < FIRST_PYTHON.get(python, (0, 0)):
        reasons.append(f"torch {machine['torch']} came before Python {python}")
    if build and build != "cpu" and cuda and build != "cu" + cuda.replace(".", ""):
        reasons.append(f"torch {machine['torch']} does not hold CUDA {cuda}")
    if book.gpu and (build == "cpu" or not cuda):
        reasons.append(f"torch {machine['torch']} without CUDA cannot use a GPU")
    for reason in reasons:
        yield Finding(
            "versions_impossible",
            IMPOSSIBLE,
            "the machine",
            {},
            f"{reason[0].upper()}{reason[1:]}. Let the lab record the versions itself.",
        )


def _device(book: _Book) -> Iterator[Finding]:
    machine, reasons = book.machine, []
    if machine.get("device") == "cpu" and machine.get("capability"):
        reasons.append("A CPU has no compute capability")
    for gpu, (capability, memory) in GPUS.items():
        if not book.gpu or not re.search(rf"\b{gpu}\b", str(machine.get("name"))):
            continue
        if list(machine.get("capability") or []) != list(capability):
            reasons.append(f"A {gpu} has compute capability {capability[0]}.{capability[1]}")
        if (machine.get("memory_bytes") or 0) > 1.1 * memory:
            reasons.append(f"A {gpu} has at most {memory / 1e9:.0f} GB")
    for reason in reasons:
        yield Finding(
            "device_mismatch",
            IMPOSSIBLE,
            "the machine",
            {},
            f"{reason}, so this record mixes two machines. Measure it on one.",
        )


def _predictions(book: _Book) -> Iterator[Finding]:
    for name, made in book.predictions.items():
        if isinstance(made, Mapping) and (made.get("points") or 0) > 0:
            yield Finding(
                "predicted_afterwards",
                NOTE,
                f"prediction of {name}",
                {"points_before": made["points"]},
                "Written down after some points were measured. A prediction teaches most before.",
            )


DETECTORS = (
    _samples,
    _warm_up,
    _noise,
    _headline,
    _regular,
    _results,
    _clocks,
    _backends,
    _growth,
    _speed,
    _memory,
    _out_of_memory,
    _interleaved,
    _sizes,
    _mixed,
    _copied,
    _timestamps,
    _versions,
    _device,
    _predictions,
)
