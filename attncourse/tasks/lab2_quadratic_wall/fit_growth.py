"""The exponent of a growth, beside a fixed cost and wild values."""

import itertools
import math
import statistics

import numpy as np
import torch

from attncourse.checks.answer import Failure, moves_nothing
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


task = Task(
    reference.fit_growth,
    number=4,
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
    growth_near(answer, timings(rng, 2.0, n=odd), 2.0, 0.05, "Sizes that do not double")
    inputs = timings(rng, 2.0, floor=512, shuffled=True)
    growth_near(answer, inputs, 2.0, 0.15, "Sizes in any order")


@task.check(2)
def a_fixed_cost_does_not_hide_the_growth(answer, rng):
    for p in (1.5, 2.0, 2.5):
        for join in ("sum", "max"):
            inputs = timings(rng, p, floor=pick(rng, 256, 384, 512), join=join)
            growth_near(answer, inputs, p, 0.15, "A fixed cost in every time")


@task.check(2)
def one_wild_value_does_not_move_it(answer, rng):
    for place in (-1, 0, pick(rng, 6, 8, 10, 12)):
        inputs = timings(rng, 2.0, wild=(place,))
        growth_near(answer, inputs, 2.0, 0.15, "One value that is many times too large")


@task.check(1)
def noise_of_two_percent_does_not_matter(answer, rng):
    for p in (1.5, 2.0):
        growth_near(answer, timings(rng, p, noise=0.02), p, 0.15, "Noise of two percent")


@task.check(2)
def all_of_it_at_once(answer, rng):
    for join in ("sum", "max"):
        inputs = timings(rng, 2.0, floor=384, join=join, noise=0.02, wild=(pick(rng, -1, -3, -5),))
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

    def slope(small, early, large, late):
        return math.log(late / early) / math.log(large / small)

    def middle(slopes):
        return statistics.median(slopes)

    def fit(self, points):
        return self.middle([self.slope(*one, *two) for one, two in self.pairs(points)])

    def __call__(self, sizes, seconds):
        return self.fit(self.beyond(self.points(sizes, seconds)))


# --- faults -------------------------------------------------------------------------------------


def as_they_came(sizes, seconds):
    return list(zip(sizes, seconds, strict=True))


def all_of_them(points):
    return points


def larger_half(points):
    return points[len(points) // 2 :]


def line(x=np.log, y=np.log, place=0):
    """Least squares through the points, on axes of one's choice."""

    def fit(points):
        n, s = zip(*points, strict=True)
        return float(np.polyfit(x(n), y(s), 1)[place])

    return fit


task.fault(
    "L2-ALL-SIZES",
    "The more points, the better the line: all sizes go into the fit.",
    "At the small sizes nearly all time is fixed cost, which does not grow. These points are "
    "not noise that averages out; they pull the slope down. Use the sizes where work rules.",
    beyond=all_of_them,
    fit=(line(), ...),
)
task.fault(
    "L2-LEAST-SQUARES",
    "Leave out the overhead, then least squares finds the slope.",
    "A square gives one wild value more say than all the others, and at the end of the line it "
    "has the longest lever. Medians do not mind one wild value.",
    fit=line(),
)
task.fault(
    "L2-ENDPOINTS",
    "The slope is that from the first point to the last.",
    "Then two measurements decide, and the first of them is mostly fixed cost. All that lies "
    "between is thrown away.",
    beyond=all_of_them,
    pairs=lambda points: [(points[0], points[-1])],
    points=(..., as_they_came),
)
task.fault(
    "L2-LAST-TWO",
    "Only the largest sizes are free of overhead, so the last two points give the slope.",
    "The thought is right, but two points have no witness: if one of them is wild, nothing "
    "shows it. Use all sizes where the fixed cost is small.",
    beyond=all_of_them,
    pairs=lambda points: [points[-2:]],
    points=(..., as_they_came),
)
task.fault(
    "L2-NO-LOGARITHM",
    "The slope of seconds over n is the growth.",
    "That slope has a unit, seconds per position, and it changes along the curve. An exponent "
    "is a slope between logarithms.",
    beyond=all_of_them,
    fit=line(np.array, np.array),
)
task.fault(
    "L2-ONE-LOGARITHM",
    "Take the logarithm of the times and fit a line over n.",
    "A straight line there means growth like eⁿ, where each further position multiplies the "
    "time. A power law is straight where both axes are logarithmic.",
    beyond=(all_of_them, larger_half),
    fit=(line(np.array, np.log), line(lambda n: np.array(n) / max(n), np.log)),
)
task.fault(
    "L2-SLOPE-UPSIDE-DOWN",
    "The slope is the change of log n over the change of log seconds.",
    "That is by which power n grows with the time, the inverse: 0.5 instead of 2. What depends "
    "stands above the fraction bar.",
    slope=lambda small, early, large, late: math.log(large / small) / math.log(late / early),
)
task.fault(
    "L2-SIZES-DOUBLE",
    "Each size is twice the one before, so the base-2 logarithm of the ratio of times will do.",
    "These sizes grow by steps of their own. Divide by the logarithm of the ratio of the "
    "sizes: it is 1 only where they double.",
    pairs=itertools.pairwise,
    slope=lambda small, early, large, late: math.log2(late / early),
)
task.fault(
    "L2-AS-THEY-CAME",
    "The second half of the list holds the large sizes.",
    "Only if the list is sorted, and a lab that was interrupted and resumed is not. Sort the "
    "pairs first.",
    points=as_they_came,
    beyond=larger_half,
)
task.fault(
    "L2-INTERCEPT",
    "The second number that polyfit returns is the exponent.",
    "polyfit gives the highest power first: the slope, then the intercept. The intercept is "
    "the logarithm of the time at n = 1.",
    fit=line(place=1),
)
task.fault(
    "L2-COURSES-FIT",
    "The package has fit_exponent, so I call that.",
    "From the next task on you may. This one asks you to write a fit, so that you know what it "
    "leaves out and why; then compare the two.",
    fit=lambda points: fits.fit_exponent(*zip(*points, strict=True)).exponent,
    beyond=all_of_them,
)
task.fault(
    "L2-MEAN-SLOPE",
    "The fair summary of many slopes is their mean.",
    "One wild value is in every slope that it takes part in, and some of them are steep "
    "without bound. A median does not mind them.",
    middle=statistics.mean,
    beyond=(..., larger_half),
)
task.fault(
    "L2-NEIGHBORS",
    "The slope is that between neighbors, on average.",
    "Neighbors lie close together, so a little noise in either turns the slope between them. "
    "Points far apart say more about it; and the mean of all steps is only that from the first "
    "to the last.",
    pairs=itertools.pairwise,
    middle=statistics.mean,
)
task.fault(
    "L2-LARGEST-SLOPE",
    "The steepest slope is the true growth, since overhead only flattens it.",
    "Overhead flattens, and noise and wild values steepen. The steepest of many slopes is the "
    "one with the worst of them.",
    middle=max,
)
task.fault(
    "L2-WHOLE-EXPONENT",
    "An exponent is a whole number.",
    "In a formula it often is. What is measured may lie between, and whether it does is what a "
    "fit is for.",
    middle=lambda slopes: float(round(statistics.median(slopes))),
)
task.fault(
    "L2-FIXED-COST-TAKEN-OFF",
    "The fixed cost is the smallest time, so I take that off all others.",
    "The smallest time holds work, too, and with it the next ones lose most of theirs. Leave "
    "the sizes out where the fixed cost rules; do not correct them.",
    beyond=lambda points: [
        (n, s - min(t for _, t in points)) for n, s in points[1:] if s > min(t for _, t in points)
    ],
)
