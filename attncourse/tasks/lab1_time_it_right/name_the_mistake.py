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
    usual = {
        f"{mistake} {form}": of(mistake, form, 3)
        for mistake in NAMES
        for form in tried.get(mistake, (0,))
    }
    # Where an entry is off by less than usual, or by more: whether a limit is another, or missing.
    other = {"single sample": 20, "mean": 20, "hot cache": 32, "allocation inside": 16}
    other |= {"earlier work counted": 20}
    return usual | {f"{mistake} {seed}": of(mistake, 0, seed) for mistake, seed in other.items()}


def small(rng):
    yield from probes(rng).values()


task = Task(
    reference.name_the_mistake,
    number=4,
    returns=dict,
    difficulty=3,
    minutes=15,
    section="lab1-signatures",
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
def no_synchronize_and_a_wrong_unit_each_get_their_name(answer, rng):
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
    # Two entries are off, the smaller number by the larger factor.
    named(answer, "hot cache", 0, rng, also={"hot L2": 0.25, "outliers": 1.9})
    named(answer, "hot cache", 0, rng, also={"hot L2": 0.6})  # off by less than usual


@task.check(1)
def a_single_sample_and_a_mean_each_get_their_name(answer, rng):
    for mistake, less_than_usual in (("single sample", 5.5), ("mean", 1.7)):
        for form in range(2):
            named(answer, mistake, form, rng)
        named(answer, mistake, 0, rng, also={"outliers": less_than_usual})


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

    def spared(r):
        return False

    def order():
        return LOUDEST_FIRST

    def rest(r):
        return "none"

    def __call__(self, ratios):
        if self.spared(ratios):
            return "none"
        found = (SAID[rule] for rule in self.order() if getattr(self, rule)(ratios))
        return next(found, None) or self.rest(ratios)


# --- faults -------------------------------------------------------------------------------------


def never(r):
    return False


def only_too_large(r):
    return Rules.unit(r) and min(r.values()) > 10


def within(factor):
    return lambda r: max(r.values()) < factor * min(r.values())


def above(scenario, factor):
    return lambda r: r[scenario] > factor


def below(scenario, factor):
    return lambda r: r[scenario] < factor


def before(*rules):
    """These rules first, after those on all scenarios at once."""
    first = ("unit", "queued", *rules)
    return lambda: (*first, *(rule for rule in LOUDEST_FIRST if rule not in first))


def without(*rules):
    return lambda: tuple(rule for rule in LOUDEST_FIRST if rule not in rules)


def suspicious(r):
    return "earlier work counted" if 1.1 < r["short kernel"] < 3 else "none"


def the_same_to_a_third(r):
    return Rules.unit(r) and max(r.values()) < 1.35 * min(r.values())


task.fault(
    "L1-NAME-TOO-STRICT",
    rest=suspicious,
    unit=(..., the_same_to_a_third),
    order=(..., before("earlier")),
)
task.fault("L1-NAME-UNIT-MISSED", unit=lambda r: Rules.unit(r) and max(r.values()) > 1)
task.fault("L1-NAME-OUTLIERS-FIRST", order=before("single", "mean"))
task.fault(
    "L1-NAME-ALLOCATION-FIRST",
    allocation=lambda r: r["slow malloc"] > 1.1,
    earlier=lambda r: Rules.earlier(r) and r["slow malloc"] <= 1.1,
)
task.fault("L1-NAME-QUEUE-ONLY", earlier=lambda r: r["dirty queue"] > 3)
task.fault(
    "L1-NAME-ONE-SIDE",
    hot=(never, ...),
    order=(..., without("queued", "hot")),
    unit=(..., only_too_large),
)
task.fault("L1-NAME-SINGLE-OR-MEAN", single=(never, above("outliers", 6)))
task.fault(
    "L1-NAME-LARGE-UNIT",
    unit=lambda r: Rules.unit(r) and 300 < r["long kernel"] < 3000,
    order=(..., before("earlier")),
)
task.fault("L1-NAME-FLUSH-ONLY", earlier=lambda r: r["short kernel"] > 3)
task.fault("L1-NAME-FIRST-MISSED", first=never)
task.fault(
    "L1-NAME-WAKING",
    first=(
        lambda r: r["first call"] > 3 or r["waking clock"] > 1.2,
        lambda r: r["first call"] > 3 or r["waking clock"] > 1.1,
        lambda r: r["waking clock"] > 1.2,
    ),
)
task.fault("L1-NAME-MEAN-MISSED", single=Rules.mean)
task.fault("L1-NAME-ALLOCATION-MISSED", allocation=never)
task.fault("L1-NAME-NO-UNIT", unit=never, order=(..., before("earlier"), before("single", "mean")))
task.fault("L1-NAME-SAME-EVERYWHERE", spared=(within(3), Rules.unit))
task.fault("L1-NAME-TOO-SHORT", queued=lambda r: r["long kernel"] < 0.5 or r["hot L2"] < 0.8)
task.fault(
    "L1-NAME-DIRTY-NO-WAIT",
    queued=lambda r: r["long kernel"] < 0.5 or r["dirty queue"] > max(3, r["short kernel"]),
)
task.fault(
    "L1-NAME-QUIET",
    mean=(
        *(above("outliers", 2), above("outliers", 2), above("outliers", 2.2)),
        *(above("outliers", 3), never, above("outliers", 2), above("outliers", 3)),
    ),
    allocation=(
        *(above("slow malloc", 2), ..., above("slow malloc", 2)),
        *(above("slow malloc", 3), ..., above("slow malloc", 2), ...),
    ),
    hot=(..., ..., ..., ..., ..., below("hot L2", 0.5), ...),
)
task.fault(
    "L1-NAME-MEAN-IS-LOUDER",
    single=lambda r: Rules.mean(r) and not Rules.single(r),
    mean=lambda r: r["outliers"] > 4,
)
