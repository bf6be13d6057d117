"""summarize."""

import math
import statistics

import torch

from attncourse.checks.answer import Failure, describe, moves_nothing
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference


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


task = Task(
    reference.summarize,
    number=2,
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


@task.check(1)
def half_of_the_samples_lie_below_the_median(answer, rng):
    for count in (5, 21, 33):
        summarized(answer, some_samples(rng, count), "median")


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
    samples = some_samples(rng, 20, unit=1e-6)
    summarized(answer, samples, "median", "iqr")
    moves_nothing(answer, {"samples": samples})


# --- faults ---------------------------------------------------------------------------------------


def pair(samples, middle=None, spread=None):
    low, half, high = statistics.quantiles(samples, n=4, method="inclusive")
    return half if middle is None else middle, high - low if spread is None else spread


@task.fault(
    "L1-SUMMARY-MEAN",
    thinks="The middle of some samples is their mean.",
    why="The mean follows every accident: one sample of 80 among fives moves it far above all the "
    "others. In the middle of the ordered samples stands another number.",
)
def mean_for_median(samples):
    return pair(samples, middle=sum(samples) / len(samples))


@task.fault(
    "L1-SUMMARY-BEST",
    thinks="The honest number is the shortest time.",
    why="That is a fine number for a CPU, where disturbances only ever make things slower. On a "
    "GPU the clock moves both ways, and here the median was asked for.",
)
def best_for_median(samples):
    return pair(samples, middle=min(samples))


@task.fault(
    "L1-SUMMARY-UPPER",
    thinks="The median is the sample at place n // 2.",
    why="For an odd number of samples it is. For an even number two samples stand in the middle, "
    "and the median lies halfway between them.",
)
def upper_of_the_middle_two(samples):
    return pair(samples, middle=sorted(samples)[len(samples) // 2])


@task.fault(
    "L1-SUMMARY-UNSORTED",
    thinks="The sample in the middle of the list is the median.",
    why="The list is in the order in which the calls were made. A place has a meaning only once "
    "the samples are in order of size.",
)
def middle_of_the_list(samples):
    n = len(samples)
    return pair(samples, middle=(samples[(n - 1) // 2] + samples[n // 2]) / 2)


@task.fault(
    "L1-SUMMARY-DEVIATION",
    thinks="The spread of samples is their standard deviation.",
    why="It squares distances, so one accident outweighs all other samples together. The span of "
    "the middle half does not notice accidents at all.",
    forms=(lambda samples: pair(samples, spread=statistics.pstdev(samples)),),
)
def standard_deviation(samples):
    return pair(samples, spread=statistics.stdev(samples))


@task.fault(
    "L1-SUMMARY-RANGE",
    thinks="The spread is the distance of the slowest from the fastest.",
    why="Those two are the accidents. The more samples you take, the larger this span grows, "
    "although the machine has not become any noisier.",
)
def full_range(samples):
    return pair(samples, spread=max(samples) - min(samples))


@task.fault(
    "L1-SUMMARY-EXCLUSIVE",
    thinks="There is only one way to place a quartile between two samples.",
    why="There are nine in textbooks. You used places that count from n + 1, the default of "
    "Python's statistics; the task counts from n − 1, as numpy and torch do.",
)
def exclusive_quartiles(samples):
    low, _, high = statistics.quantiles(samples, n=4)
    return pair(samples, spread=high - low)


@task.fault(
    "L1-SUMMARY-QUARTILE",
    thinks="The interquartile range is the upper quartile.",
    why="A quartile is a place on the scale; a range is a distance between two places. Add a "
    "constant to all samples, and a range must stay as it is.",
)
def upper_quartile(samples):
    return pair(samples, spread=statistics.quantiles(samples, n=4, method="inclusive")[2])
