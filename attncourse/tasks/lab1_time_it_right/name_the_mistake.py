"""What is wrong with a timer, from its panel alone."""

from attncourse.checks.answer import moves_nothing
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab.stopwatches import explain
from attncourse.tasks.lab1_time_it_right import NAMES, named, of


def as_a_name(answer):
    def named(ratios):
        name = answer(ratios)
        return None if name is None else {"name": name}

    return named


def probes(rng):
    tried = {"none": (0, 1), "earlier work counted": (0, 2), "wrong unit": (0, 1, 2)}
    return {
        f"{mistake} {form}": of(mistake, form, 3)
        for mistake in NAMES
        for form in tried.get(mistake, (0,))
    }


def small(rng):
    yield from probes(rng).values()


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
    probes=probes,
    small=small,
    adapt=as_a_name,
    ready_made=(explain,),
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


# --- the reference in steps ---------------------------------------------------------------------

LOUDEST_FIRST = ("unit", "queued", "first", "earlier", "allocation", "hot", "single", "mean")
SAID = {
    **{"unit": "wrong unit", "queued": "no synchronize", "first": "first call counted"},
    **{"earlier": "earlier work counted", "allocation": "allocation inside"},
    **{"hot": "hot cache", "single": "single sample", "mean": "mean"},
}


@task.steps
class Rules:
    def unit(r):
        low, high = min(r.values()), max(r.values())
        return high < 10 * low and not 0.1 < low < 10

    def queued(r):
        return r["long kernel"] < 0.5

    def first(r):
        return r["first call"] > 3

    def earlier(r):
        return r["short kernel"] > 3 or r["dirty queue"] > 3

    def allocation(r):
        return r["slow malloc"] > 1.5

    def hot(r):
        return r["hot L2"] < 0.8

    def single(r):
        return r["outliers"] > 4

    def mean(r):
        return r["outliers"] > 1.3

    def order():
        return LOUDEST_FIRST

    def rest(r):
        return "none"

    def __call__(self, ratios):
        found = (SAID[rule] for rule in self.order() if getattr(self, rule)(ratios))
        return next(found, None) or self.rest(ratios)


# --- faults -------------------------------------------------------------------------------------


def never(r):
    return False


def before(*rules):
    """These rules first, after those on all scenarios at once."""
    first = ("unit", "queued", *rules)
    return lambda: (*first, *(rule for rule in LOUDEST_FIRST if rule not in first))


def suspicious(r):
    return "earlier work counted" if 1.1 < r["short kernel"] < 3 else "none"


task.fault(
    "L1-NAME-TOO-STRICT",
    "An honest timer is within a tenth of the truth in every scenario.",
    "A kernel of 25 microseconds is over before the host is done talking. A host's clock sees "
    "up to twice its time, and nobody is to blame.",
    rest=suspicious,
)
task.fault(
    "L1-NAME-UNIT-MISSED",
    "Far too small times always come from a missing synchronize.",
    "Without a wait, each scenario is off by a factor of its own, since a launch takes the "
    "same time for every kernel. Off by one factor everywhere means something else.",
    unit=lambda r: Rules.unit(r) and max(r.values()) > 1,
)
task.fault(
    "L1-NAME-OUTLIERS-FIRST",
    "As soon as the outliers are too high, it is a mean or a single sample.",
    "Other mistakes raise that entry, too: a counted first call, a counted flush. The entry "
    "that stands out most names the mistake.",
    order=before("single", "mean"),
)
task.fault(
    "L1-NAME-ALLOCATION-FIRST",
    "If the slow malloc is too high, memory is allocated inside.",
    "A flush in the timed span is there in every scenario, the one with slow malloc included. "
    "Look at the short kernel before you decide.",
    allocation=lambda r: r["slow malloc"] > 1.1,
    earlier=lambda r: Rules.earlier(r) and r["slow malloc"] <= 1.1,
)
task.fault(
    "L1-NAME-QUEUE-ONLY",
    "Earlier work shows in the scenario with a dirty queue, and only there.",
    "A warm-up that waits has emptied that queue. What is counted then is the flush, and it "
    "weighs most where the kernel is shortest.",
    earlier=lambda r: r["dirty queue"] > 3,
)
task.fault(
    "L1-NAME-ONE-SIDE",
    "A wrong timer is always too slow.",
    "An input that waits in the cache makes a kernel faster than your program will ever see "
    "it. A ratio below one is as wrong as one above.",
    hot=never,
)
task.fault(
    "L1-NAME-SINGLE-OR-MEAN",
    "Outliers that are too high mean a mean.",
    "A mean dilutes one disturbed call in six to a factor below three. A single sample can be "
    "the disturbed call itself, with its whole factor of five to ten.",
    single=never,
)
task.fault(
    "L1-NAME-LARGE-UNIT",
    "A wrong unit is a factor of a thousand.",
    "It can be: milliseconds. It can also be a million or a billion, and go the other way. "
    "What marks a unit is that the factor is the same everywhere.",
    unit=lambda r: Rules.unit(r) and 300 < r["long kernel"] < 3000,
)
task.fault(
    "L1-NAME-FLUSH-ONLY",
    "Earlier work is the flush, and shows where the kernel is short.",
    "A queue that was full before the clock started is earlier work, too. A short kernel sees "
    "nothing of it if the warm-up waits there; the scenario with a dirty queue does.",
    earlier=lambda r: r["short kernel"] > 3,
)
task.fault(
    "L1-NAME-FIRST-MISSED",
    "A slow first call disappears among thirty others.",
    "A first call of half a second divided by thirty is still many times a kernel. The entry "
    "of the first call tells it from all other mistakes.",
    first=never,
)
task.fault(
    "L1-NAME-MEAN-MISSED",
    "If the outliers are too high, it was a single sample.",
    "A single sample can be the disturbed call itself, five to ten times too long. A mean "
    "dilutes one call in six, and stays below three.",
    single=lambda r: r["outliers"] > 1.3,
)
task.fault(
    "L1-NAME-ALLOCATION-MISSED",
    "Memory that is slow to get is the machine's fault, not the timer's.",
    "The timer asks for it while the clock runs. Whatever is not the function's own work has "
    "to be ready before.",
    allocation=never,
)
task.fault(
    "L1-NAME-NO-UNIT",
    "Each scenario has a mistake of its own, so I look at them one by one.",
    "Some mistakes are in all of them. If every entry is off by the same factor, no single one "
    "tells why: look at the smallest and the largest first.",
    unit=never,
)
