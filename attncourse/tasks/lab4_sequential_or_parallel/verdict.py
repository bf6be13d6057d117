import functools
import math
import statistics

import torch

from attncourse.checks.answer import Failure, following, known, moves_nothing, numbers_of
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.lab.timing import headline
from attncourse.tasks.lab4_sequential_or_parallel import LAB

CONCLUSIONS = (
    *("always_faster", "crossover_1", "crossover_8"),
    *("batch_loop", "batch_attention", "held"),
)
NONE = ("crossover_1", "crossover_8")  # may be None


def said(verdict):
    """What the answer concludes, as six numbers; 0 for None, NaN for what is missing."""

    def function(record):
        found = verdict(record)
        if found is None:
            return None
        if isinstance(found, dict):
            found = found | {name: 0 for name in NONE if found.get(name, "") is None}
        return numbers_of(found, CONCLUSIONS)

    return function


T4 = {"device": "cuda", "name": "Tesla T4", "label": "T4", "memory_bytes": 16 * 10**9}
CPU = {"device": "cpu", "name": "a CPU", "label": "CPU, 1 thread", "memory_bytes": 25 * 10**9}
MADE_UP_SIZES = (128, 256, 512, 1024, 2048)


def a_record(
    rng,
    *,
    machine=CPU,
    sizes=MADE_UP_SIZES,
    even=(3000, 700),
    loop=1.8,
    batches=(1.6, 2.1),
    predicted=600,
    slow_start=(),
    loop_ahead=(),
    fails=(),
    disturbed=(),
    slow_first=False,
):
    """A made-up record whose truth is known.

    Args:
        even: n at which attention and the fused GRU take the same time, for b = 1 and b = 8.
        loop: time of the loop over that of the fused GRU, with b = 1.
        batches: time with b = 8 over that with b = 1 at the largest n, of the loop and of the
            fused GRU; less at smaller n.
        predicted: the predicted crossover; 0 for none.
        slow_start: sizes at which attention takes 1.5 times as long as the fused GRU, for b = 1.
        loop_ahead: (b, n) at which the loop takes two thirds of attention's time.
        fails: (name, b, n) that ran out of memory.
        disturbed: (name, b, n) whose samples are partly four times too long.

    Returns:
        record, truth.
    """
    true = {}
    for place, b in enumerate((1, 8)):
        for n in sizes:
            steps, fused = (
                2e-5 * n * (1 + (batch - 1) * (n / sizes[-1]) ** 0.4 if b == 8 else 1)
                for batch in batches
            )
            attention = fused * (1.5 if b == 1 and n in slow_start else (n / even[place]) ** 0.9)
            steps *= loop
            if (b, n) in loop_ahead:
                steps = attention / 1.5
            took = {"fused": fused, "attention": attention, "loop": steps}
            true |= {(name, b, n): seconds for name, seconds in took.items()}
    made = []
    for (name, b, n), seconds in true.items():
        failed = (name, b, n) in fails
        factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
        samples = [round(seconds * factor, 12) for factor in factors]
        if (name, b, n) in disturbed:
            last = 10 if machine is T4 else 16  # where the shortest counts, most are disturbed
            samples[3:last] = [4 * each for each in samples[3:last]]
            if machine is T4:
                samples[12:15] = [0.7 * each for each in samples[12:15]]
        if slow_first:
            samples[0] *= 40 if name == "attention" else 6
        made.append(
            {
                **{"name": name, "n": n, "b": b, "d": 128},
                "seconds": [] if failed else samples,
                "clock": "events" if machine is T4 else "cpu",
                **{"started": [], "peak_bytes": None, "backend": None, "dtype": "float32"},
                "error": "out of memory" if failed else None,
            }
        )
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    guess = {"crossover": predicted, "batch_loop": 2, "batch_attention": 8}
    record = {
        "lab": LAB,
        "machine": dict(machine),
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": [made[place] for place in order],
    }
    return record, _truth({k: v for k, v in true.items() if k not in fails}, predicted)


def _truth(true, predicted):
    """What follows from the true times."""
    behind = {
        (b, n, other): true["attention", b, n] > seconds
        for (other, b, n), seconds in true.items()
        if other != "attention" and ("attention", b, n) in true
    }

    def crossover(b):
        sizes = sorted(n for (c, n, other) in behind if c == b and other == "fused")
        from_there = [n for n in sizes if all(behind[b, m, "fused"] for m in sizes if m >= n)]
        return min(from_there, default=0)

    def batch(name):
        n = max(n for (other, b, n) in true if other == name and b == 8 and (name, 1, n) in true)
        return true[name, 8, n] / true[name, 1, n]

    at_8 = crossover(8)
    return {
        "always_faster": not any(behind.values()),
        "crossover_1": crossover(1),
        "crossover_8": at_8,
        "batch_loop": batch("loop"),
        "batch_attention": batch("attention"),
        "held": at_8 / 2 <= predicted <= 2 * at_8 if at_8 else predicted == 0,
    }


DISTURBED = {
    "disturbed": (
        *(("attention", 8, 512), ("fused", 8, 1024), ("loop", 8, 2048)),
        *(("attention", 1, 2048), ("fused", 1, 1024)),
    ),
    "slow_first": True,
    "predicted": 1100,
}
RECORDS = {
    "a CPU": {},
    "a GPU": {"machine": T4, "even": (9e4, 3e4), "loop": 6.0, "batches": (1.05, 1.1)},
    "a GPU, and no crossover predicted": {"machine": T4, "even": (9e4, 3e4), "predicted": 0},
    "both cross": {"even": (1400, 360), "predicted": 2100},
    "slow at the smallest sizes alone": {
        "even": (9e4, 3e4),
        "slow_start": (128, 256),
        "predicted": 128,
    },
    "the loop is ahead once": {"even": (9e4, 9000), "loop_ahead": ((8, 256),), "predicted": 2000},
    "attention ran out of memory": {
        "even": (9e4, 700),
        "fails": (("attention", 8, 2048), ("loop", 8, 2048)),
        "predicted": 2048,
    },
    "disturbed": {**DISTURBED, "machine": T4},
    "disturbed on a CPU": DISTURBED,
    "all slower": {"even": (90, 60), "predicted": 40},
    "only the loop is ahead, at the large end": {
        "even": (9e4, 9000),
        "loop_ahead": ((1, 2048), (8, 1024), (8, 2048)),
        "predicted": 0,
    },
    "only attention ran out of memory": {
        "even": (9e4, 700),
        "fails": (("attention", 8, 2048),),
        "batches": (3.0, 2.1),
        "predicted": 2048,
    },
    "attention ran out of memory while it was ahead": {
        **{"machine": T4, "even": (9e4, 3e4), "loop": 6.0, "predicted": 0},
        "fails": (("attention", 8, 2048),),
    },
    "the fused GRU has no time where the loop is ahead": {
        "even": (9e4, 9000),
        "loop_ahead": ((8, 1024),),
        "fails": (("fused", 8, 1024),),
        "predicted": 0,
    },
    "a GPU, and a crossover far beyond predicted": {
        **{"machine": T4, "even": (9e4, 3e4), "predicted": 100_000}
    },
}


# A size at which attention is slower need not be the one from which on it is.
TWICE = "slow at the smallest size, and at the large end"
CROSSES_TWICE = {"even": (1400, 360), "slow_start": (128,)}


def probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


WORDS = {
    "always_faster": "attention beats both others wherever both have a time",
    "crossover_1": "for b = 1, the n from which on attention takes longer than the fused GRU",
    "crossover_8": "for b = 8, the n from which on attention takes longer than the fused GRU",
    "batch_loop": "the loop's time with b = 8 over that with b = 1, at the largest n with both",
    "batch_attention": "attention's time with b = 8 over that with b = 1, at the largest n with "
    "both",
    "held": "the prediction held",
}


def shown(name, value):
    """A conclusion as the student wrote it."""
    if name in ("always_faster", "held"):
        return str({0: False, 1: True}.get(value, value))
    return "None" if name in NONE and value == 0 else f"{value:,.4g}"


def says(answer, rng, names, kinds):
    """Assert that conclusions are right about these records."""
    for kind in kinds:
        record, truth = a_record(rng, **(RECORDS | {TWICE: CROSSES_TWICE})[kind])
        found = answer({"record": record})
        for name in names:
            got = known(found[CONCLUSIONS.index(name)], name).item()
            expected = float(truth[name])
            limit = 0.08 * expected if name.startswith("batch") else 0
            if not abs(got - expected) <= limit:
                raise Failure(
                    f"In a made-up record ({kind}), {WORDS[name]}: {shown(name, expected)}. "
                    f"Your function says {shown(name, got)}.",
                    whole=name,
                )


task = Task(
    reference.verdict,
    number=6,
    returns=tuple(f"{name} (0 for None)" if name in NONE else name for name in CONCLUSIONS),
    difficulty=3,
    minutes=18,
    section="lab4-verdict",
    probes=probes,
    small=lambda rng: iter(()),
    adapt=said,
    tolerance=0.04,
)


CROSSING = ("a CPU", "both cross", "all slower", TWICE)
NO_CROSSING = (
    "a GPU",
    "slow at the smallest sizes alone",
    "only the loop is ahead, at the large end",
)
REFUTING = ("a CPU", "slow at the smallest sizes alone", "the loop is ahead once")
SUPPORTING = ("a GPU", "a GPU, and no crossover predicted")
BATCHES = ("a CPU", "a GPU", "both cross")
USUAL = {  # records of the checks that are a conclusion's own
    "always_faster": REFUTING + SUPPORTING,
    **dict.fromkeys(("crossover_1", "crossover_8"), CROSSING + NO_CROSSING),
    **dict.fromkeys(("batch_loop", "batch_attention"), BATCHES),
}


def misses_the_crossover(answer, rng):
    try:
        says(answer, rng, ["crossover_8"], RECORDS)
    except Failure:
        return True
    return False


def held_for_its_crossover(answer, rng):
    """Whether "held" is right for the crossover that the answer says, in all records."""
    for how in RECORDS.values():
        record, _ = a_record(rng, **how)
        found = dict(zip(CONCLUSIONS, answer({"record": record}), strict=True))
        own, held = (found[name].item() for name in ("crossover_8", "held"))
        predicted = record["predictions"]["crossover"]["value"]
        if held != (own / 2 <= predicted <= 2 * own if own else predicted == 0):
            return False
    return True


def right_as_usual(answer, rng, name):
    """Assert that a conclusion is right where it has checks of its own."""
    if name == "held":
        if not held_for_its_crossover(answer, rng):
            raise Failure("It does not follow from the crossover.")
        name = "crossover_8"
    says(answer, rng, [name], USUAL[name])


def says_all(answer, rng, kinds):
    """Assert that each conclusion is right about these records, if it is right as usual."""
    failures = []
    for name in CONCLUSIONS:
        try:
            with following(functools.partial(right_as_usual, answer, rng, name)):
                says(answer, rng, [name], kinds)
        except Failure as failure:
            failures.append(failure)
    if failures:
        raise min(failures, key=lambda failure: failure.open)


@task.check(2)
def one_slower_point_refutes_always(answer, rng):
    says(answer, rng, ["always_faster"], REFUTING)


@task.check(1)
def a_record_without_a_slower_point_supports_it(answer, rng):
    says(answer, rng, ["always_faster"], SUPPORTING)


@task.check(2)
def the_crossover_is_the_size_from_which_on_attention_is_slower(answer, rng):
    says(answer, rng, ["crossover_1", "crossover_8"], CROSSING)


@task.check(1)
def where_attention_wins_at_the_largest_size_there_is_no_crossover(answer, rng):
    says(answer, rng, ["crossover_1", "crossover_8"], NO_CROSSING)


@task.check(1)
def it_is_right_where_something_ran_out_of_memory(answer, rng):
    kinds = (
        "attention ran out of memory",
        "only attention ran out of memory",
        "attention ran out of memory while it was ahead",
        "the fused GRU has no time where the loop is ahead",
    )
    says_all(answer, rng, kinds)


@task.check(1)
def it_is_right_beside_disturbed_samples(answer, rng):
    says_all(answer, rng, ("disturbed", "disturbed on a CPU"))


@task.check(2)
def it_says_what_eight_sentences_cost(answer, rng):
    says(answer, rng, ["batch_loop", "batch_attention"], BATCHES)


@task.check(1)
def it_says_whether_the_prediction_held(answer, rng):
    try:
        says(answer, rng, ["held"], RECORDS)
    except Failure:
        if not misses_the_crossover(answer, rng) or not held_for_its_crossover(answer, rng):
            raise


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- steps --------------------------------------------------------------------------------------


RIVALS = [(other, b) for other in ("loop", "fused") for b in (1, 8)]


def behind(time, other, b):
    """n -> whether attention takes longer, ascending."""
    ours, theirs = time["attention", b], time[other, b]
    return {n: ours[n] > theirs[n] for n in sorted(ours.keys() & theirs.keys())}


def never_behind(rivals=RIVALS):
    return lambda time: not any(any(behind(time, *rival).values()) for rival in rivals)


def within(guess, found):
    return found / 2 <= guess <= 2 * found if found else guess == 0


@task.steps
class Verdict:
    number, always, size = headline, never_behind(), max

    def done(point):
        return not point["error"]

    def times(time):
        return time

    def slower(time, b):
        return behind(time, "fused", b)

    def crossover(slower):
        ahead = [n for n, is_slower in slower.items() if not is_slower]
        return min((n for n in slower if n > max(ahead, default=0)), default=None)

    def shared(time, name):
        return time[name, 1].keys() & time[name, 8].keys()

    def batch(self, time, name):
        n = self.size(self.shared(time, name))
        return self.ratio(time[name, 1][n], time[name, 8][n])

    def ratio(one, eight):
        return eight / one

    def held(guess, at_1, at_8):
        return within(guess, at_8)

    def order(at_1, at_8):
        return at_1, at_8

    def __call__(self, record):
        time = {}
        for p in filter(self.done, record["points"]):
            time.setdefault((p["name"], p["b"]), {})[p["n"]] = self.number(p)
        time = self.times(time)
        crossovers = [self.crossover(self.slower(time, b)) for b in (1, 8)]
        at_1, at_8 = self.order(*crossovers)
        return {
            "always_faster": self.always(time),
            "crossover_1": at_1,
            "crossover_8": at_8,
            "batch_loop": self.batch(time, "loop"),
            "batch_attention": self.batch(time, "attention"),
            "held": self.held(record["predictions"]["crossover"]["value"], *crossovers),
        }


def by(middle):
    return lambda point: middle(point["seconds"])


# --- faults -------------------------------------------------------------------------------------


def complete(time):
    """Only the sizes at which all three have a time."""
    three = {
        b: set.intersection(*(set(row) for (_, c), row in time.items() if b == c)) for b in (1, 8)
    }
    return {(name, b): {n: row[n] for n in row if n in three[b]} for (name, b), row in time.items()}


def endless(time):
    """Attention's missing times as infinite."""
    return time | {
        ("attention", b): dict.fromkeys(time["loop", b] | time["fused", b], math.inf)
        | time["attention", b]
        for b in (1, 8)
    }


def mostly(time):
    slower = [is_slower for rival in RIVALS for is_slower in behind(time, *rival).values()]
    return sum(slower) < len(slower) / 2


def at_the_end(time):
    return not any([*behind(time, *rival).values()][-1] for rival in RIVALS)


def behind_either(time, b):
    loop, fused = behind(time, "loop", b), behind(time, "fused", b)
    return {n: fused[n] or loop.get(n, False) for n in fused}


def last_ahead(slower):
    ahead = [n for n, is_slower in slower.items() if not is_slower]
    return max(ahead, default=None) if any(slower.values()) else None


def noted_before_it_is_asked(slower):
    found = None
    for n, is_slower in reversed(slower.items()):
        found = n
        if not is_slower:
            break
    return found


def one_size_before(slower):
    found, sizes = Verdict.crossover(slower), list(slower)
    return found and sizes[max(sizes.index(found) - 1, 0)]


def listed(time, b):
    """n -> whether attention takes longer, in the order of the points."""
    ours, theirs = time["attention", b], time["fused", b]
    return {n: ours[n] > theirs[n] for n in ours if n in theirs}


def first_of_the_last_slower(slower):
    found = None
    for n, is_slower in reversed(slower.items()):
        if not is_slower:
            break
        found = n
    return found


def or_not_a_number(self, time, name):
    n = self.size(map(max, time.values()))
    return self.ratio(time[name, 1].get(n, math.nan), time[name, 8].get(n, math.nan))


CROSSOVER, BATCH = {"section": "lab4-crossover"}, {"section": "lab4-batch"}
PREDICT = {"section": "lab4-predict"}

task.fault("L4-MOSTLY", always=mostly)
task.fault("L4-AT-THE-END", always=at_the_end)
task.fault("L4-BEATS-THE-LOOP", always=never_behind([("loop", 1), ("loop", 8)]))
task.fault("L4-BEATS-THE-FUSED", always=never_behind([("fused", 1), ("fused", 8)]))
task.fault(
    "L4-ALL-THREE", always=(lambda time: never_behind()(complete(time)), ...), times=(..., complete)
)
task.fault(
    "L4-ENDLESS",
    always=lambda time: never_behind()(endless(time)),
    slower=lambda time, b: behind(endless(time), "fused", b),
)
task.fault("L4-NO-TIMES", done=lambda point: True)
task.fault("L4-ONE-SENTENCE-VERDICT", **BATCH, always=never_behind([("loop", 1), ("fused", 1)]))
task.fault("L4-EVERYBODY-KNOWS", always=lambda time: True)
task.fault(
    "L4-FIRST-SLOWER",
    **CROSSOVER,
    crossover=lambda slower: next((n for n, is_slower in slower.items() if is_slower), None),
)
task.fault(
    "L4-LAST-FASTER",
    **CROSSOVER,
    crossover=last_ahead,
    entire=[{"crossover": noted_before_it_is_asked}, {"crossover": one_size_before}],
)
task.fault("L4-LISTED-ORDER", **CROSSOVER, slower=listed, crossover=first_of_the_last_slower)
task.fault(
    "L4-LARGEST-N", **CROSSOVER, crossover=lambda slower: Verdict.crossover(slower) or max(slower)
)
task.fault("L4-CROSSES-THE-LOOP", **CROSSOVER, slower=lambda time, b: behind(time, "loop", b))
task.fault("L4-FASTER-RIVAL", **CROSSOVER, slower=behind_either)
task.fault("L4-EVEN-AT-D", section="lab4-work", crossover=lambda slower: 128)
task.fault("L4-BATCHES-SWAPPED", **BATCH, order=lambda at_1, at_8: (at_8, at_1))
task.fault("C-FASTEST-SAMPLE", number=by(min))
task.fault("C-MEDIAN-EVERYWHERE", number=by(statistics.median))
task.fault("L4-MEAN", number=by(statistics.mean))
task.fault("L4-FIRST-SAMPLE", number=by(lambda samples: samples[0]))
task.fault("L4-SLOWEST", number=by(max))
task.fault("L4-BATCH-SHARE", **BATCH, ratio=lambda one, eight: eight / one / 8)
task.fault("L4-BATCH-INVERTED", **BATCH, ratio=lambda one, eight: one / eight)
task.fault("L4-BATCH-SMALLEST-N", **BATCH, size=min)
task.fault(
    "L4-BATCH-AVERAGED",
    **BATCH,
    batch=lambda self, time, name: statistics.mean(
        self.ratio(time[name, 1][n], time[name, 8][n]) for n in self.shared(time, name)
    ),
)
task.fault(
    "L4-BATCH-COMMON-N",
    **BATCH,
    shared=lambda time, name: set.intersection(*map(set, time.values())),
)
task.fault(
    "L4-BATCH-RECORD-N",
    **BATCH,
    batch=or_not_a_number,
    entire=[{"shared": lambda time, name: {max(map(max, time.values()))}}],
)
task.fault(
    "L4-BATCH-OWN-N",
    **BATCH,
    batch=lambda self, time, name: self.ratio(
        *(time[name, b][self.size(time[name, b])] for b in (1, 8))
    ),
)
task.fault("L4-BATCH-ASSUMED", **BATCH, ratio=lambda one, eight: 8.0)
task.fault(
    "L4-HELD-EXACTLY",
    **PREDICT,
    held=lambda guess, at_1, at_8: guess == (at_8 or 0),
    entire=[
        {
            "held": lambda guess, at_1, at_8: (
                at_8 / 1.5 <= guess <= 1.5 * at_8 if at_8 else not guess
            )
        },
        {"held": lambda guess, at_1, at_8: abs(guess - at_8) <= at_8 / 2 if at_8 else not guess},
    ],
)
task.fault("L4-HELD-OTHER-BATCH", **PREDICT, held=lambda guess, at_1, at_8: within(guess, at_1))
task.fault(
    "L4-HELD-ONE-SIDED",
    **PREDICT,
    held=lambda guess, at_1, at_8: guess <= 2 * at_8 if at_8 else guess == 0,
)
task.fault(
    "L4-HELD-OTHER-SIDE",
    **PREDICT,
    held=lambda guess, at_1, at_8: at_8 <= 2 * guess if at_8 else guess == 0,
)
task.fault(
    "L4-NEVER-HELD", **PREDICT, held=lambda guess, at_1, at_8: bool(at_8) and within(guess, at_8)
)
task.fault(
    "L4-HELD-BEYOND",
    **PREDICT,
    entire=[{"held": lambda guess, at_1, at_8: within(guess, at_8) or (not at_8 and guess > 4096)}],
)
