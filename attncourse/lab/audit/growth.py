"""One implementation, across n."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from attncourse.lab.audit.reading import (
    AGAIN,
    FAR_ABOVE,
    FUSED,
    IMPOSSIBLE,
    INCONSISTENT,
    NOTE,
    TOLERANCE,
    Finding,
    Point,
    Reading,
    span,
)
from attncourse.lab.fits import fit_exponent
from attncourse.lab.roofline import datasheet


def _growth(book: Reading) -> Iterator[Finding]:
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


def _launches(book: Reading, points: list[Point]) -> Finding:
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


def _speed(book: Reading) -> Iterator[Finding]:
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


def _shares(book: Reading, point: Point) -> dict[str, float]:
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


def _peaks(machine: Mapping[str, object], point: Point) -> dict[str, float]:
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


def _memory(book: Reading) -> Iterator[Finding]:
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
    rows = [(points, peaks) for points, peaks in book.series("peak_bytes") if span(points) >= 8]
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


def _out_of_memory(book: Reading) -> Iterator[Finding]:
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


DETECTORS = (_growth, _speed, _memory, _out_of_memory)
