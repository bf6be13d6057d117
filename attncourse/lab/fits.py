"""How time or memory grows: an exponent, beside the fixed cost that hides it at small sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXPONENTS = np.arange(0, 4.005, 0.01)  # candidates; nothing in this course grows like n⁵
MARGIN = 0.02  # a misfit below 2 % is noise: no reason to assume a fixed cost
EXACT = 1e-3  # closer than any clock: counted bytes, whose fixed cost shows even where it rules


@dataclass(frozen=True)
class Fit:
    """What `fit_exponent` found: values grow like n to the `exponent` beside an `overhead`.

    Attributes:
        exponent: p of nᵖ, dimensionless.
        overhead: the fixed cost, in the unit of the values; 0 if the fit needs none.
        scale: c of c·nᵖ, in the unit of the values.
        kind: how cost and work join: "power" (no overhead), "sum" (overhead + work, such as
            inputs that are always allocated) or "max" (the longer of the two, such as launches
            that a GPU works off while the host prepares the next).
        n: the sizes that the exponent rests on, ascending: those where the work is at least as
            much as the overhead.
        slopes: (n, slope) between neighboring sizes, n in their middle: a straight line in a
            log–log plot has one slope; a floor begins with 0, a cache cliff shows as a bump.
        misfit: mean distance of the values from the fit, relative: 0.03 = 3 %.
    """

    exponent: float
    overhead: float
    scale: float
    kind: str
    n: tuple[float, ...]
    slopes: tuple[tuple[float, float], ...]
    misfit: float

    def __call__(self, n: float) -> float:
        """The value the fit expects at size `n`."""
        work = self.scale * n**self.exponent
        return max(self.overhead, work) if self.kind == "max" else self.overhead + work

    def __str__(self) -> str:
        floor = f", overhead {self.overhead:.3g}" if self.overhead else ""
        start = f" from n = {self.n[0]:g} on" if self.n else ""
        return f"grows like n^{self.exponent:.2f}{start}{floor}, misfit {self.misfit:.0%}"


def fit_exponent(n: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit seconds ≈ overhead + c·nᵖ, or max(overhead, c·nᵖ), whichever is closer.

    Three explanations compete, by their mean relative distance from the values: a power law
    alone (its p is the median slope over all pairs of sizes, Theil–Sen), a sum with a fixed cost
    (p is scanned; overhead and c follow, by least absolute relative error), and a floor that work
    outgrows. A fixed cost is assumed only where it nearly halves the misfit, and only if three
    sizes or more lie beyond it (with fewer, noise would decide) or the fit is exact, as with bytes.

    Args:
        n: sizes, positive, three different ones or more; over a range of 8 or more to mean much.
        seconds: one positive value a size, such as its median time, or its peak bytes.

    Returns:
        The fit. One wild value among six or more hardly moves it.

    Raises:
        ValueError: too few sizes, lists of different lengths, or a value that is not positive.

    Source: Sen (1968), "Estimates of the Regression Coefficient Based on Kendall's Tau".
    """
    n, values = np.asarray(n, float), np.asarray(seconds, float)
    if n.ndim != 1 or n.shape != values.shape:
        raise ValueError(f"one value a size: got {n.size} sizes and {values.size} values")
    if len(set(n)) < 3:
        raise ValueError(f"an exponent needs three different sizes; got {len(set(n))}")
    if not (np.isfinite(n) & np.isfinite(values) & (n > 0) & (values > 0)).all():
        raise ValueError(
            "sizes and values must be positive numbers; leave out the sizes that ran out of memory"
        )
    order = np.argsort(n, kind="stable")
    n, values = n[order], values[order]

    plain = _power(n, values)
    if not plain.misfit > MARGIN:  # what has a floor is not even looked at: it takes a while
        return plain
    with_floor = min([_sum(n, values), *_maxima(n, values)], key=lambda fit: fit.misfit)
    return with_floor if with_floor.misfit < 0.6 * plain.misfit else plain


def _power(n: np.ndarray, values: np.ndarray) -> Fit:
    exponent, scale = _theil_sen(n, values)
    return _describe(n, values, exponent, 0.0, scale, "power")


def _sum(n: np.ndarray, values: np.ndarray) -> Fit:
    """Overhead + c·nᵖ: for every candidate p at once, the best overhead and c, neither below 0."""
    # Relative to the values, overhead·a + c·b should be 1 everywhere.
    a = np.broadcast_to(1 / values, (len(EXPONENTS), len(n)))
    b = (n / n[-1]) ** EXPONENTS[:, None] / values
    terms = np.stack([a * a, b * b, a * b, a, b], axis=-1)
    trust = np.ones_like(b)
    for _ in range(30):  # least absolute error, as least squares that trust far points less
        aa, bb, ab, ones_a, ones_b = (trust[:, None] @ terms)[:, 0].T
        determinant = np.maximum(aa * bb - ab**2, 1e-12 * aa * bb)
        overhead = np.maximum((ones_a * bb - ones_b * ab) / determinant, 0)
        scale = np.maximum((ones_b - overhead * ab) / bb, 0)
        distance = np.abs(overhead[:, None] * a + scale[:, None] * b - 1)
        trust = 1 / np.maximum(distance, 1e-3)
    model = overhead[:, None] * a + scale[:, None] * b
    best = np.abs(np.log(np.maximum(model, 1e-9))).mean(1).argmin()
    p = EXPONENTS[best]
    return _describe(n, values, p, overhead[best], scale[best] / n[-1] ** p, "sum")


def _maxima(n: np.ndarray, values: np.ndarray) -> list[Fit]:
    """max(overhead, c·nᵖ): the first two, three, … sizes as the floor, a power law beyond."""
    fits = []
    for k in range(2, len(n) - 2):
        exponent, scale = _theil_sen(n[k:], values[k:])
        floor = float(np.median(values[:k]))
        fits.append(_describe(n, values, exponent, floor, scale, "max"))
    return fits


def _theil_sen(n: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Exponent and scale of a power law, by medians."""
    x, y = np.log(n), np.log(values)
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] > x[i]
    slope = float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart]))
    return slope, math.exp(np.median(y - slope * x))


def _describe(n, values, exponent, overhead, scale, kind) -> Fit:
    work = scale * n**exponent
    beyond = work >= 0.99 * overhead
    model = np.maximum(overhead, work) if kind == "max" else overhead + work
    misfit = float(np.abs(np.log(np.maximum(model, 1e-300) / values)).mean())
    if beyond.sum() < 3 and misfit > EXACT:
        misfit = math.inf
    apart = np.flatnonzero(np.diff(n) > 0)
    slopes = np.diff(np.log(values))[apart] / np.diff(np.log(n))[apart]
    middles = np.sqrt(n[apart] * n[apart + 1])
    return Fit(
        exponent=float(exponent),
        overhead=float(overhead),
        scale=float(scale),
        kind=kind,
        n=tuple(n[beyond].tolist()),
        slopes=tuple(zip(middles.tolist(), slopes.tolist(), strict=True)),
        misfit=misfit,
    )
