import itertools
import math
import statistics

import numpy as np
import torch

from attncourse.checks.answer import Failure, following, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import fits
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.tasks.lab2_quadratic_wall import pick

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


def backward(inputs):
    return {name: each[::-1] for name, each in inputs.items()}


def probes(rng):
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
        "from large to small": backward(timings(rng, 2.0, floor=512)),
        "doubling": timings(rng, 2.0, n=SIZES[::2]),
    }


def small(rng):
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


def right_when_clean(answer, p=2.0, n=SIZES):
    inputs = timings(torch.Generator(), p, n=n)
    growth_near(answer, inputs, p, 0.05, "No noise, no fixed cost")


def right_as_in_order(answer, inputs, what):
    pairs = sorted(zip(*inputs.values(), strict=True))
    in_order = dict(zip(inputs, map(list, zip(*pairs, strict=True)), strict=True))
    with following(lambda: growth_near(answer, in_order, 2.0, 0.15, what)):
        growth_near(answer, inputs, 2.0, 0.15, what)


task = Task(
    reference.fit_growth,
    number=4,
    returns=float,
    difficulty=3,
    minutes=15,
    section="lab2-fit",
    probes=probes,
    small=small,
    adapt=on_its_own,
    ready_made=(fits.fit_exponent,),
    tolerance=0.02,
)


@task.check(1)
def a_clean_power_law_gives_its_exponent(answer, rng):
    for p in (1.0, 1.5, 2.0, 3.0):
        growth_near(answer, timings(rng, p, scale=0.01), p, 0.05, "No noise, no fixed cost")


@task.check(1)
def sizes_may_be_any_and_in_any_order(answer, rng):
    odd = [100, 130, 210, 320, 450, 700, 1000, 1700, 2500, 4100, 6000, 9000, 15000]
    with following(lambda: right_when_clean(answer, n=SIZES[::2])):
        growth_near(answer, timings(rng, 2.0, n=odd), 2.0, 0.05, "Sizes that do not double")
    inputs = timings(rng, 2.0, floor=512, shuffled=True)
    right_as_in_order(answer, inputs, "Sizes in any order")
    for join in ("sum", "max"):
        inputs = backward(timings(rng, 2.0, floor=512, join=join))
        right_as_in_order(answer, inputs, "Sizes from large to small")


@task.check(2)
def a_fixed_cost_does_not_hide_the_growth(answer, rng):
    for p in (1.5, 2.0, 2.5):
        for join in ("sum", "max"):
            inputs = timings(rng, p, floor=pick(rng, 256, 384, 512), join=join)
            with following(lambda p=p: right_when_clean(answer, p)):
                growth_near(answer, inputs, p, 0.15, "A fixed cost in every time")


@task.check(2)
def one_wild_value_does_not_move_it(answer, rng):
    for place in range(len(SIZES)):
        inputs = timings(rng, 2.0, wild=(place,))
        with following(lambda: right_when_clean(answer)):
            growth_near(answer, inputs, 2.0, 0.15, "One value that is many times too large")


@task.check(1)
def noise_of_two_percent_does_not_matter(answer, rng):
    for p in (1.5, 2.0):
        with following(lambda p=p: right_when_clean(answer, p)):
            growth_near(answer, timings(rng, p, noise=0.02), p, 0.15, "Noise of two percent")


@task.check(2, "it is right with a fixed cost, noise and a wild value at once")
def all_of_it_at_once(answer, rng):
    for join, place in itertools.product(("sum", "max"), (-1, -3, -5)):
        inputs = timings(rng, 2.0, floor=384, join=join, noise=0.02, wild=(place,))
        with following(lambda: right_when_clean(answer)):
            growth_near(answer, inputs, 2.0, 0.2, "Fixed cost, noise and a wild value")


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, timings(rng, 2.0, floor=256, shuffled=True))


# --- the reference in steps ---------------------------------------------------------------------


@task.steps
class Fit:
    def points(sizes, seconds):
        return sorted(zip(sizes, seconds, strict=True))

    def beyond(points):
        least = min(s for _, s in points)
        return [(n, s) for n, s in points if s > 10 * least]

    def pairs(points):
        return itertools.combinations(points, 2)

    def slope(self, small, early, large, late):
        across, up = self.plane(math.log(large / small), math.log(late / early))
        return up / across

    def middle(slopes):
        return statistics.median(slopes)

    def plane(across, up):
        return across, up

    def fit(self, points):
        return self.middle([self.slope(*one, *two) for one, two in self.pairs(points)])

    def said(exponent):
        return exponent

    def __call__(self, sizes, seconds):
        return self.said(self.fit(self.beyond(self.points(sizes, seconds))))


# --- faults -------------------------------------------------------------------------------------


def as_they_came(sizes, seconds):
    return list(zip(sizes, seconds, strict=True))


def all_of_them(points):
    return points


def larger_half(points):
    return points[len(points) // 2 :]


def smaller_half(points):
    return points[: len(points) // 2]


def largest_quarter(points):
    return points[3 * len(points) // 4 :]


def without_the_cost(points):
    least = min(s for _, s in points)
    return [(n, s - least) for n, s in points if s > least]


def without_the_first(points):
    return [(n, s - points[0][1]) for n, s in points if s > points[0][1]]


def one_by_one(points):
    """As if every time were a power of its size, and nothing stood before it."""
    return statistics.median(math.log(s) / math.log(n) for n, s in points)


def line(x=np.log, y=np.log, place=0):
    """Least squares through the points, on axes of one's choice."""

    def fit(self, points):
        n, s = zip(*points, strict=True)
        return float(np.polyfit(*self.plane(x(n), y(s)), 1)[place])

    return fit


task.fault("L2-ALL-SIZES", beyond=all_of_them, fit=(line(), ...))
task.fault("L2-LEAST-SQUARES", fit=line(), beyond=(..., larger_half))
task.fault(
    "L2-ENDPOINTS",
    pairs=lambda points: [(points[0], points[-1])],
    beyond=(all_of_them, all_of_them, ...),
    points=(..., as_they_came, ...),
)
task.fault(
    "L2-LAST-TWO",
    beyond=all_of_them,
    pairs=lambda points: [points[-2:]],
    points=(..., as_they_came),
)
task.fault(
    "L2-LAST-FEW",
    beyond=(largest_quarter, *2 * (lambda points: points[-3:], lambda points: points[-4:])),
    fit=(*3 * (line(),), ...),
)
task.fault("L2-SMALL-SIZES", beyond=smaller_half, fit=(line(), ...))
task.fault(
    "L2-NO-LOGARITHM",
    beyond=(all_of_them, all_of_them, larger_half),
    fit=(line(np.array, np.array), ...),
    slope=(..., *2 * (lambda small, early, large, late: (late - early) / (large - small),)),
)
task.fault(
    "L2-ONE-LOGARITHM",
    beyond=(all_of_them, larger_half),
    fit=(line(np.array, np.log), line(lambda n: np.array(n) / max(n), np.log)),
)
task.fault(
    "L2-SLOPE-UPSIDE-DOWN",
    plane=lambda across, up: (up, across),
)
task.fault(
    "L2-SIZES-DOUBLE",
    pairs=(itertools.pairwise, ...),
    slope=lambda small, early, large, late: math.log2(late / early),
)
task.fault("L2-AS-THEY-CAME", points=as_they_came, beyond=larger_half)
task.fault("L2-INTERCEPT", fit=line(place=1))
task.fault(
    "L2-COURSES-FIT",
    fit=lambda points: fits.fit_exponent(*zip(*points, strict=True)).exponent,
    beyond=all_of_them,
)
task.fault("L2-MEAN-SLOPE", middle=statistics.mean, beyond=(..., larger_half))
task.fault(
    "L2-NEIGHBORS",
    pairs=itertools.pairwise,
    middle=(statistics.mean, statistics.mean, ...),
    beyond=(..., larger_half, all_of_them),
)
task.fault("L2-LARGEST-SLOPE", middle=max)
task.fault("L2-WHOLE-EXPONENT", said=lambda exponent: float(round(exponent)))
task.fault("L2-LOGARITHM-OF-ONE", beyond=all_of_them, fit=one_by_one)
task.fault(
    "L2-FIXED-COST-TAKEN-OFF",
    beyond=2 * (without_the_cost, without_the_first),
    fit=(..., ..., line(), line()),
)
