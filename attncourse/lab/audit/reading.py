"""A record as the detectors read it, and what they find."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attncourse.lab.receipts import configuration

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


class Point:
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
        return unit_of(self.seconds)

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


class Reading:
    """A record, sorted the ways detectors read it."""

    def __init__(self, record: Mapping[str, object]) -> None:
        self.machine, self.predictions = record["machine"], record["predictions"]
        self.points = [Point(point) for point in record["points"]]
        self.timed = [point for point in self.points if point.seconds.size and not point["error"]]
        self.gpu = self.machine.get("device") == "cuda"

    def series(self, of: str = "seconds") -> Iterator[tuple[list[Point], np.ndarray]]:
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

    def flat(self, points: list[Point], seconds: np.ndarray) -> bool:
        """Whether a GPU's times stay the same while the work grows."""
        grown = points[-1].work >= 16 * points[0].work > 0
        return self.gpu and grown and seconds.max() < 1.5 * seconds.min()

    def rivals(self, *differ: str) -> Iterator[list[Point]]:
        """Points of several names that are there to be compared: all else is the same."""
        groups = defaultdict(list)
        for point in self.timed:
            # A product counts FLOPs and a copy bytes: no rivals, even with the same n.
            counted = point["flops"] is not None, point["bytes"] is not None
            groups[point.without("name", *differ), counted].append(point)
        for group in groups.values():
            if len({point.name for point in group}) > 1:
                yield group


def unit_of(values: np.ndarray) -> float:
    """The power of ten that all values are multiples of: how finely they were written down."""
    for digits in range(16):
        scaled = values * 10.0**digits
        if np.abs(scaled).max() >= 1 and np.abs(scaled - np.round(scaled)).max() < 1e-6:
            return 10.0**-digits
    return 0.0


def span(points: list[Point]) -> float:
    return points[-1].n / points[0].n
