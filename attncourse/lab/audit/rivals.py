"""Implementations against each other."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from attncourse.lab.audit.reading import AGAIN, INCONSISTENT, NOTE, Finding, Point, Reading


def _interleaved(book: Reading) -> Iterator[Finding]:
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


def _sizes(book: Reading) -> Iterator[Finding]:
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


def _mixed(book: Reading) -> Iterator[Finding]:
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


def _copied(book: Reading) -> Iterator[Finding]:
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


def _shuffled(a: Point, b: Point) -> bool:
    """Whether two lists hold the same numbers, as far as the digits tell."""
    rounding = 0.51 * max(a.unit, b.unit) + 1e-15
    middle_half = a.ordered[-a.ordered.size // 4] - a.ordered[a.ordered.size // 4]
    return middle_half > 20 * rounding and np.abs(a.ordered - b.ordered).max() <= rounding


def _scaled(a: Point, b: Point) -> bool:
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


DETECTORS = (_interleaved, _sizes, _mixed, _copied)
