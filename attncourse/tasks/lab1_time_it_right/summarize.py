import math
import statistics

import torch

from attncourse.checks.answer import Failure, describe, following, moves_nothing
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab.timing import Sample


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
TIES = [5.0, 5.0, 9.0, 5.0, 6.0, 5.0]
NINE = [12.0, 10.0, 19.0, 11.0, 13.0, 95.0, 10.5, 14.0, 13.5]


def probes(rng):
    lists = {"even": EVEN, "odd": ODD, "nine": NINE, "in order": [1.0, 2, 4, 9], "ties": TIES}
    return {
        f"{name}, {part}": {"samples": samples, "part": part}
        for name, samples in lists.items()
        for part in ("median", "iqr")
    } | {"both": {"samples": EVEN}}


def small(rng):
    for samples in ([1.0, 3.0], [3.0, 1.0, 2.0], [4.0, 1.0, 2.0, 9.0], ODD, EVEN, TIES, NINE):
        yield {"samples": samples}


def traits(answer):
    return {"millionths": answer({"samples": [1e-6 * each for each in EVEN]})["median"] > 0}


def some_samples(rng, count):
    """Times as they come: most of them close together, one in six disturbed."""
    times = 10 + torch.rand(count, generator=rng, device="cpu")
    disturbed = torch.rand(count, generator=rng, device="cpu") < 1 / 6
    return torch.where(disturbed, 7 * times, times).tolist()


def summarized(answer, samples, *parts):
    """Assert that these parts are right; that they are not rounded, another check asks."""
    inputs = {"samples": samples}
    got, expected = answer(inputs), answer.expected(inputs)
    names = {"median": "The median", "iqr": "The interquartile range"}
    for part in parts:
        if abs(got[part] - expected[part]) > 1e-4 * min(samples):
            shown = ", ".join(f"{each:.4g}" for each in samples[:9])
            due, came = answer.apart(expected[part], got[part], ".6g")
            raise Failure(
                f"{names[part]} of {shown}{', …' * (len(samples) > 9)} is {due}; yours is {came}.",
                inputs,
                expected,
                got,
                whole=part,
            )


task = Task(
    reference.summarize,
    number=2,
    returns=dict,
    difficulty=2,
    minutes=10,
    section="lab1-median",
    probes=probes,
    small=small,
    adapt=two_numbers,
    ready_made=(Sample.median.fget, Sample.iqr.fget),
    traits=traits,
)


@task.check(1)
def half_of_the_samples_lie_below_the_median(answer, rng):
    for count in (5, 21, 33):
        summarized(answer, some_samples(rng, count), "median")
    coarse = [float(round(each)) for each in some_samples(rng, 33)]  # a clock with long ticks
    summarized(answer, coarse, "median")


@task.check(1)
def of_an_even_number_the_median_is_between_the_middle_two(answer, rng):
    for count in (2, 6, 20, 30):
        summarized(answer, some_samples(rng, count), "median")


@task.check(1)
def the_middle_half_lies_within_the_interquartile_range(answer, rng):
    for count in (2, 5, 9, 20, 30, 31):
        summarized(answer, some_samples(rng, count), "iqr")


@task.check(1)
def microseconds_count_and_the_samples_stay_in_order(answer, rng):
    samples = some_samples(rng, 20)
    inputs = {"samples": [1e-6 * each for each in samples]}
    moves_nothing(answer, inputs)
    got, whole = answer(inputs), answer({"samples": samples})
    for part, said in got.items():  # against itself: what else is wrong has been said
        if abs(said - 1e-6 * whole[part]) > 1e-12 * max(samples):
            one, two = answer.apart(whole[part], 1e6 * said, ".6g")
            with following(lambda part=part: summarized(answer, samples, part)):
                raise Failure(
                    f"The {part} of some samples is {one}; of the same in millionths it is {two} "
                    "millionths. A result in seconds must not be rounded.",
                    inputs,
                )


# --- the reference in steps ---------------------------------------------------------------------


def at(share, in_order, last=-1, turn=lambda part: part):
    """What lies at a share of the way; between two places, in proportion."""
    left, part = divmod(share * (len(in_order) + last), 1)
    right = min(int(left) + 1, len(in_order) - 1)
    return in_order[int(left)] + turn(part) * (in_order[right] - in_order[int(left)])


@task.steps
class Summary:
    def order(samples):
        return sorted(samples)

    def middle(in_order):
        return at(0.5, in_order)

    def quarters(in_order):
        return at(0.25, in_order), at(0.75, in_order)

    def span(first, third, in_order):
        return third - first

    def spread(self, in_order):
        return self.span(*self.quarters(in_order), in_order)

    def results(middle, spread):
        return middle, spread

    def __call__(self, samples):
        in_order = self.order(samples)
        return self.results(self.middle(in_order), self.spread(in_order))


# --- faults -------------------------------------------------------------------------------------


def halves(in_order):
    n = len(in_order)
    return statistics.median(in_order[: n // 2]), statistics.median(in_order[(n + 1) // 2 :])


def exclusive(in_order):
    return statistics.quantiles(in_order, n=4)[::2]


def half_up(place):
    return math.floor(place + 0.5)


def nearest(place):
    """Quartiles that are samples: those at whole places."""
    return lambda in_order: [in_order[place(part * (len(in_order) - 1) / 4)] for part in (1, 3)]


def deviation_from_the_median(in_order):
    middle = statistics.median(in_order)
    return statistics.median(abs(each - middle) for each in in_order)


def inside_the_fences(samples):
    """Without what a box plot draws as points."""
    in_order = sorted(samples)
    low, high = at(0.25, in_order), at(0.75, in_order)
    fence = 1.5 * (high - low)
    low, high = low - fence, high + fence
    return [each for each in in_order if low <= each <= high]


def without_the_ends(samples):
    return sorted(samples)[1:-1] or samples


def near_the_mean(samples):
    mean, deviation = statistics.mean(samples), statistics.pstdev(samples)
    return [each for each in sorted(samples) if abs(each - mean) <= 2 * deviation]


def quartiles(change):
    """Quartiles that are found in another way."""
    return lambda in_order: (at(0.25, in_order, **change), at(0.75, in_order, **change))


def median(change):
    return lambda in_order: at(0.5, in_order, **change)


TURNED = {"turn": lambda part: 1 - part if part else 0}
TURNED_ALWAYS = {"turn": lambda part: 1 - part}  # at a whole place, that is the next sample
HALFWAY = {"turn": lambda part: 0.5 if part else 0}
FROM_N = {"last": 0}


def sorted_in_place(samples):
    samples.sort()
    return samples


task.fault("L1-SUMMARY-MEAN", middle=statistics.mean)
task.fault("L1-SUMMARY-BEST", middle=min)
task.fault(
    "L1-SUMMARY-UPPER",
    middle=(
        lambda in_order: in_order[len(in_order) // 2],
        lambda in_order: in_order[(len(in_order) - 1) // 2],
    ),
)
task.fault("L1-SUMMARY-MIDRANGE", middle=lambda in_order: (min(in_order) + max(in_order)) / 2)


@task.fault(
    "L1-SUMMARY-UNSORTED",
    order=list,
    middle=(..., lambda samples: samples[len(samples) // 2]),
    quarters=(..., lambda s: (s[len(s) // 4], s[3 * len(s) // 4])),
)
class OnlyTheMiddle(Summary):
    def __call__(self, samples):
        return self.results(self.middle(samples), self.spread(sorted(samples)))


task.fault("L1-SUMMARY-IN-PLACE", order=sorted_in_place)
task.fault(
    "L1-SUMMARY-FIRST-DROPPED",
    order=(lambda samples: sorted(samples[1:]), lambda samples: sorted(samples[1:] or samples)),
)
task.fault("L1-SUMMARY-ONCE-EACH", order=lambda samples: sorted(set(samples)))
task.fault(
    "L1-SUMMARY-SHARE-TURNED",
    quarters=(quartiles(TURNED), quartiles(TURNED_ALWAYS)),
    middle=(..., median(TURNED_ALWAYS)),
)
task.fault("L1-SUMMARY-HALFWAY", quarters=quartiles(HALFWAY))
task.fault(
    "L1-SUMMARY-PLACES-FROM-N",
    quarters=quartiles(FROM_N),
    middle=(median(FROM_N), ...),
)
task.fault(
    "L1-SUMMARY-NEGATIVE",
    span=lambda first, third, in_order: first - third,
)
task.fault(
    "L1-SUMMARY-OUTLIERS-OUT",
    order=(inside_the_fences, without_the_ends, near_the_mean),
)
task.fault("L1-SUMMARY-DEVIATION", spread=(statistics.stdev, statistics.pstdev))
task.fault("L1-SUMMARY-VARIANCE", spread=(statistics.variance, statistics.pvariance))
task.fault("L1-SUMMARY-FROM-MEDIAN", spread=deviation_from_the_median)
task.fault("L1-SUMMARY-RANGE", spread=lambda in_order: max(in_order) - min(in_order))
task.fault("L1-SUMMARY-EXCLUSIVE", quarters=exclusive)
task.fault("L1-SUMMARY-HINGES", quarters=halves)
no_share = task.fault(
    "L1-SUMMARY-NO-SHARE",
    quarters=(
        lambda in_order: (in_order[len(in_order) // 4], in_order[3 * len(in_order) // 4]),
        *map(nearest, (int, round, math.ceil, half_up)),
    ),
)


@no_share
class RoundedDown(Summary):
    """The median as well: a function finds what lies at a share of the way."""

    place = int

    def __call__(self, samples):
        in_order = self.order(samples)
        places = [part * (len(in_order) - 1) / 4 for part in (1, 2, 3)]
        first, middle, third = (in_order[type(self).place(each)] for each in places)
        return self.results(middle, self.span(first, third, in_order))


@no_share
class Rounded(RoundedDown):
    place = round


@no_share
class RoundedHalfUp(RoundedDown):
    place = half_up


@no_share
class RoundedUp(RoundedDown):
    place = math.ceil


task.fault("L1-SUMMARY-QUARTILE", span=lambda first, third, in_order: third)
task.fault(
    "L1-SUMMARY-HALF-RANGE",
    span=(
        lambda first, third, in_order: (third - first) / 2,
        lambda first, third, in_order: third - at(0.5, in_order),
        lambda first, third, in_order: at(0.5, in_order) - first,
    ),
)
task.fault("L1-SUMMARY-TENTHS", quarters=lambda in_order: (at(0.1, in_order), at(0.9, in_order)))
task.fault(
    "L1-SUMMARY-OTHER-UNIT",
    results=tuple(
        (lambda middle, spread, factor=factor: (factor * middle, factor * spread))
        for factor in (1e3, 1e6)
    ),
)
task.fault("L1-SUMMARY-PAIR", results=lambda middle, spread: (spread, middle))


@task.fault("L1-SUMMARY-TWO-QUARTILES")
class BothQuartiles(Summary):
    def __call__(self, samples):
        in_order = self.order(samples)
        return self.results(at(0.25, in_order), at(0.75, in_order))


task.fault(
    "L1-SUMMARY-ROUNDED", results=lambda middle, spread: (round(middle, 3), round(spread, 3))
)
