"""name_the_mistake."""

from attncourse.checks.answer import moves_nothing
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.tasks.lab1_time_it_right import NAMES, named, of


def as_a_name(answer):
    def named(ratios):
        name = answer(ratios)
        return None if name is None else {"name": name}

    return named


def panel_probes(rng):
    tried = {"none": (0, 1), "earlier work counted": (0, 2), "wrong unit": (0, 1, 2)}
    return {
        f"{mistake} {form}": of(mistake, form, 3)
        for mistake in NAMES
        for form in tried.get(mistake, (0,))
    }


def panel_small(rng):
    yield from panel_probes(rng).values()


task = Task(
    reference.name_the_mistake,
    number=4,
    returns=dict,
    difficulty=3,
    minutes=15,
    section="lab1-signatures",
    hints=(
        "Run the cell with the panels again and look at one row at a time: which entry stands "
        "out the most, by its factor? Begin with the rows in which everything is wrong.",
        "All entries wrong by one factor: a unit. All too small, each by a factor of its own: "
        "no synchronize. Then the loudest first: first call, short kernel or dirty queue, slow "
        "malloc, hot L2, and last outliers, which has two mistakes to tell apart by size.",
        "unit: high < 10 · low, and far from 1. Then long kernel < 0.5; first call > 3; short "
        "kernel > 3 or dirty queue > 3; slow malloc > 1.5; hot L2 < 0.8; outliers > 4 is a "
        "single sample, > 1.3 a mean; else none.",
    ),
    probes=panel_probes,
    small=panel_small,
    adapt=as_a_name,
)


@task.check(1)
def an_honest_timer_is_left_in_peace(answer, rng):
    for form in (0, 1, 0, 1):
        named(answer, "none", form, rng)
    moves_nothing(answer, of("none", 0, 1))


@task.check(1)
def no_synchronize_and_a_wrong_unit_are_told_apart(answer, rng):
    named(answer, "no synchronize", 0, rng)
    for form in range(4):
        named(answer, "wrong unit", form, rng)


@task.check(1)
def work_that_is_not_of_the_function_is_noticed(answer, rng):
    for form in range(3):
        named(answer, "earlier work counted", form, rng)
    for form in range(2):
        named(answer, "allocation inside", form, rng)


@task.check(1)
def a_first_call_and_a_hot_cache_are_noticed(answer, rng):
    for mistake in ("first call counted", "hot cache"):
        for form in range(2):
            named(answer, mistake, form, rng)


@task.check(1)
def a_single_sample_is_told_from_a_mean(answer, rng):
    for mistake in ("single sample", "mean"):
        for form in range(2):
            named(answer, mistake, form, rng)


# --- faults ---------------------------------------------------------------------------------------


def right_name(ratios, skip=()):
    low, high = min(ratios.values()), max(ratios.values())
    rules = {
        "wrong unit": high < 10 * low and not 0.1 < low < 10,
        "no synchronize": ratios["long kernel"] < 0.5,
        "first call counted": ratios["first call"] > 3,
        "earlier work counted": ratios["short kernel"] > 3 or ratios["dirty queue"] > 3,
        "allocation inside": ratios["slow malloc"] > 1.5,
        "hot cache": ratios["hot L2"] < 0.8,
        "single sample": ratios["outliers"] > 4,
        "mean": ratios["outliers"] > 1.3,
    }
    return next((name for name, holds in rules.items() if holds and name not in skip), "none")


@task.fault(
    "L1-NAME-TOO-STRICT",
    thinks="An honest timer is within a tenth of the truth in every scenario.",
    why="A kernel of 25 microseconds is over before the host is done talking. A host's clock sees "
    "up to twice its time, and nobody is to blame.",
)
def short_kernels_are_suspicious(ratios):
    name = right_name(ratios)
    suspicious = 1.1 < ratios["short kernel"] < 3 and name == "none"
    return "earlier work counted" if suspicious else name


@task.fault(
    "L1-NAME-UNIT-MISSED",
    thinks="Far too small times always come from a missing synchronize.",
    why="Without a wait, each scenario is off by a factor of its own, since a launch takes the "
    "same time for every kernel. Off by one factor everywhere means something else.",
)
def small_is_no_synchronize(ratios):
    return "no synchronize" if max(ratios.values()) < 0.5 else right_name(ratios)


@task.fault(
    "L1-NAME-OUTLIERS-FIRST",
    thinks="As soon as the outliers are too high, it is a mean or a single sample.",
    why="Other mistakes raise that entry, too: a counted first call, a counted flush. The entry "
    "that stands out most names the mistake.",
)
def outliers_first(ratios):
    unit = right_name(ratios)
    if unit in ("wrong unit", "no synchronize") or ratios["outliers"] < 1.3:
        return unit
    return "single sample" if ratios["outliers"] > 4 else "mean"


@task.fault(
    "L1-NAME-ALLOCATION-FIRST",
    thinks="If the slow malloc is too high, memory is allocated inside.",
    why="A flush in the timed span is there in every scenario, the one with slow malloc included. "
    "Look at the short kernel before you decide.",
)
def allocation_first(ratios):
    name = right_name(ratios)
    if name == "earlier work counted" and ratios["slow malloc"] > 1.1:
        return "allocation inside"
    return name


@task.fault(
    "L1-NAME-QUEUE-ONLY",
    thinks="Earlier work shows in the scenario with a dirty queue, and only there.",
    why="A warm-up that waits has emptied that queue. What is counted then is the flush, and it "
    "weighs most where the kernel is shortest.",
)
def only_the_dirty_queue(ratios):
    name = right_name(ratios, skip=("earlier work counted",))
    return "earlier work counted" if ratios["dirty queue"] > 3 and name != "wrong unit" else name


@task.fault(
    "L1-NAME-ONE-SIDE",
    thinks="A wrong timer is always too slow.",
    why="An input that waits in the cache makes a kernel faster than your program will ever see "
    "it. A ratio below one is as wrong as one above.",
)
def too_low_is_fine(ratios):
    return right_name(ratios, skip=("hot cache",))


@task.fault(
    "L1-NAME-SINGLE-OR-MEAN",
    thinks="Outliers that are too high mean a mean.",
    why="A mean dilutes one disturbed call in six to a factor below three. A single sample can be "
    "the disturbed call itself, with its whole factor of five to ten.",
)
def always_a_mean(ratios):
    return right_name(ratios, skip=("single sample",))


@task.fault(
    "L1-NAME-LARGE-UNIT",
    thinks="A wrong unit is a factor of a thousand.",
    why="It can be: milliseconds. It can also be a million or a billion, and go the other way. "
    "What marks a unit is that the factor is the same everywhere.",
)
def only_milliseconds(ratios):
    name = right_name(ratios)
    if name != "wrong unit" or 300 < ratios["long kernel"] < 3000:
        return name
    return right_name(ratios, skip=("wrong unit",))
