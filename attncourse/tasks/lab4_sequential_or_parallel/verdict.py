"""verdict."""

import statistics

import torch

from attncourse.checks.answer import Failure, as_number, fields, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.tasks.lab4_sequential_or_parallel import LAB

CONCLUSIONS = (
    "always_faster",
    "crossover_1",
    "crossover_8",
    "batch_loop",
    "batch_attention",
    "held",
)


def said(verdict):
    """What the answer concludes, as six numbers; 0 for None."""

    def function(record):
        found = verdict(record)
        if found is None:
            return None
        pairs = zip(CONCLUSIONS, fields(found, CONCLUSIONS), strict=True)
        return [
            as_number(0 if name in NONE and value is None else value, name) for name, value in pairs
        ]

    return function


NONE = ("crossover_1", "crossover_8")  # may be None


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
            true |= {
                ("fused", b, n): fused,
                ("attention", b, n): attention,
                ("loop", b, n): steps,
            }
    made = []
    for (name, b, n), seconds in true.items():
        failed = (name, b, n) in fails
        factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
        samples = [round(seconds * factor, 12) for factor in factors]
        if (name, b, n) in disturbed:
            samples[3:10] = [4 * each for each in samples[3:10]]
        if slow_first:
            samples[0] *= 40 if name == "attention" else 6
        made.append(
            {
                "name": name,
                "n": n,
                "b": b,
                "d": 128,
                "seconds": [] if failed else samples,
                "clock": "events" if machine is T4 else "cpu",
                "started": [],
                "peak_bytes": None,
                "backend": None,
                "dtype": "float32",
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
    "disturbed": {
        "disturbed": (
            *(("attention", 8, 512), ("fused", 8, 1024), ("loop", 8, 2048)),
            *(("attention", 1, 2048), ("fused", 1, 1024)),
        ),
        "slow_first": True,
        "predicted": 1100,
    },
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
    "the fused GRU has no time where the loop is ahead": {
        "even": (9e4, 9000),
        "loop_ahead": ((8, 1024),),
        "fails": (("fused", 8, 1024),),
        "predicted": 0,
    },
}


def verdict_probes(rng):
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
        record, truth = a_record(rng, **RECORDS[kind])
        found = answer({"record": record})
        for name in names:
            got, expected = found[CONCLUSIONS.index(name)].item(), float(truth[name])
            limit = 0.08 * expected if name.startswith("batch") else 0
            if not abs(got - expected) <= limit:
                raise Failure(
                    f"In a made-up record ({kind}), {WORDS[name]}: {shown(name, expected)}. "
                    f"Your function says {shown(name, got)}."
                )


task = Task(
    reference.verdict,
    number=6,
    returns=CONCLUSIONS,
    difficulty=3,
    minutes=18,
    section="lab4-verdict",
    hints=(
        "Begin with order: a dict (name, b) → {n: median seconds}, without the points that "
        "have an error. Then compare two names at the sizes that both have.",
        "always_faster: one slower point, of any b and either rival, refutes it. Crossover: go "
        "down from the largest n as long as attention is slower; the last n you passed is it.",
        "The batch numbers: largest n that is in both dicts of this name, time at b = 8 over "
        "time at b = 1. held: crossover / 2 <= predicted <= 2 · crossover, or predicted == 0 "
        "if there is no crossover.",
    ),
    probes=verdict_probes,
    small=lambda rng: iter(()),
    adapt=said,
    tolerance=0.04,
)


@task.check(2)
def one_slower_point_refutes_always(answer, rng):
    kinds = ("a CPU", "slow at the smallest sizes alone", "the loop is ahead once")
    says(answer, rng, ["always_faster"], kinds)


@task.check(1)
def a_record_without_a_slower_point_supports_it(answer, rng):
    kinds = ("a GPU", "a GPU, and no crossover predicted")
    says(answer, rng, ["always_faster"], kinds)


@task.check(2)
def the_crossover_is_the_size_from_which_on_attention_is_slower(answer, rng):
    kinds = ("a CPU", "both cross", "all slower")
    says(answer, rng, ["crossover_1", "crossover_8"], kinds)


@task.check(1)
def where_attention_wins_at_the_largest_size_there_is_no_crossover(answer, rng):
    kinds = (
        "a GPU",
        "slow at the smallest sizes alone",
        "only the loop is ahead, at the large end",
    )
    says(answer, rng, ["crossover_1", "crossover_8"], kinds)


@task.check(1)
def what_ran_out_of_memory_has_no_time(answer, rng):
    kinds = (
        "attention ran out of memory",
        "only attention ran out of memory",
        "the fused GRU has no time where the loop is ahead",
    )
    says(answer, rng, CONCLUSIONS, kinds)


@task.check(1)
def a_few_slow_samples_change_no_conclusion(answer, rng):
    says(answer, rng, CONCLUSIONS, ("disturbed",))


@task.check(2)
def it_says_what_eight_sentences_cost(answer, rng):
    says(answer, rng, ["batch_loop", "batch_attention"], ("a CPU", "a GPU", "both cross"))


@task.check(1)
def it_says_whether_the_prediction_held(answer, rng):
    says(answer, rng, ["held"], RECORDS)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- faults ---------------------------------------------------------------------------------------


def middles(record, average=statistics.median):
    """(name, b) -> n -> one time."""
    time = {}
    for point in record["points"]:
        if not point["error"]:
            key = point["name"], point["b"]
            time.setdefault(key, {})[point["n"]] = average(point["seconds"])
    return time


def behind(time, other, b):
    """n -> whether attention takes longer, ascending."""
    ours, theirs = time["attention", b], time[other, b]
    return {n: ours[n] > theirs[n] for n in sorted(ours.keys() & theirs.keys())}


def from_there_on(slower):
    found = None
    for n, is_slower in reversed(slower.items()):
        if not is_slower:
            break
        found = n
    return found


def batch(time, name, pick=max):
    n = pick(time[name, 1].keys() & time[name, 8].keys())
    return time[name, 8][n] / time[name, 1][n]


def held(predicted, at_8, factor=2.0):
    return predicted == 0 if not at_8 else at_8 / factor <= predicted <= factor * at_8


def summary(record, time=None, crossover=from_there_on, rival="fused", **instead):
    """Right conclusions from these times, less what is replaced."""
    time = time or middles(record)
    at_1, at_8 = (crossover(behind(time, rival, b)) for b in (1, 8))
    slower = [s for o in ("loop", "fused") for b in (1, 8) for s in behind(time, o, b).values()]
    return {
        "always_faster": not any(slower),
        "crossover_1": at_1,
        "crossover_8": at_8,
        "batch_loop": batch(time, "loop"),
        "batch_attention": batch(time, "attention"),
        "held": held(record["predictions"]["crossover"]["value"], at_8),
    } | instead


@task.fault(
    "L4-MOSTLY",
    thinks="Attention is faster at most points, so it is always faster.",
    why="Always is a strong word: a single slower point refutes it, and no number of faster ones "
    "mends that.",
)
def at_most_points(record):
    time = middles(record)
    slower = [s for o in ("loop", "fused") for b in (1, 8) for s in behind(time, o, b).values()]
    return summary(record, always_faster=sum(slower) < len(slower) / 2)


@task.fault(
    "L4-AT-THE-END",
    thinks="What counts is the largest n: who is ahead there is faster.",
    why="At the largest n of the record, yes. The statement says always, so the small sizes can "
    "refute it as well as the large ones.",
)
def at_the_largest(record):
    time = middles(record)
    ahead = not any(
        list(behind(time, other, b).values())[-1] for other in ("loop", "fused") for b in (1, 8)
    )
    return summary(record, always_faster=ahead)


@task.fault(
    "L4-BEATS-THE-LOOP",
    thinks="The recurrent network is the loop, so I compare with that.",
    why="Much of the loop's time is Python. The fused call runs the same steps without it; who "
    "claims that attention is faster has to beat that one, too.",
)
def against_the_loop(record):
    time = middles(record)
    slower = [s for b in (1, 8) for s in behind(time, "loop", b).values()]
    return summary(record, always_faster=not any(slower))


@task.fault(
    "L4-BEATS-THE-FUSED",
    thinks="The fused GRU is the faster rival, so beating it is enough.",
    why="Usually it is the faster one. The records decide that, not we: in one of them the loop is "
    "ahead at one size.",
)
def against_the_fused(record):
    time = middles(record)
    slower = [s for b in (1, 8) for s in behind(time, "fused", b).values()]
    return summary(record, always_faster=not any(slower))


def complete(time):
    """Only the sizes at which all three have a time."""
    both = {
        b: set.intersection(*(set(time[name, b]) for name in ("loop", "fused", "attention")))
        for b in (1, 8)
    }
    return {
        (name, b): {n: seconds for n, seconds in row.items() if n in both[b]}
        for (name, b), row in time.items()
    }


def of_complete_sizes(record):
    return summary(record, complete(middles(record)))


@task.fault(
    "L4-ALL-THREE",
    thinks="Sizes at which one of the three has no time are left out.",
    why="A comparison needs two. Where the fused GRU ran out of memory, the loop may be ahead of "
    "attention, and that refutes as well. Leave out only what is missing itself.",
    forms=(of_complete_sizes,),
)
def compared_where_all_three_have_times(record):
    time = complete(middles(record))
    slower = [s for o in ("loop", "fused") for b in (1, 8) for s in behind(time, o, b).values()]
    return summary(record, always_faster=not any(slower))


@task.fault(
    "L4-NO-TIMES",
    thinks="Every point has samples.",
    why="What ran out of memory has none, and there is no median of an empty list. Leave out the "
    "points with an error before you take medians.",
)
def medians_of_everything(record):
    time = {}
    for point in record["points"]:
        key = point["name"], point["b"]
        time.setdefault(key, {})[point["n"]] = statistics.median(point["seconds"])
    return summary(record, time)


@task.fault(
    "L4-ONE-SENTENCE-VERDICT",
    thinks="One sentence tells whether attention is faster.",
    why="With one sentence a machine has idle workers, which attention can use and a chain cannot. "
    "With eight there is work for all. Look at both.",
    section="lab4-batch",
)
def of_one_sentence(record):
    time = middles(record)
    slower = [s for other in ("loop", "fused") for s in behind(time, other, 1).values()]
    return summary(record, always_faster=not any(slower))


@task.fault(
    "L4-EVERYBODY-KNOWS",
    thinks="Attention is parallel, so it is always faster.",
    why="This is the statement to be tested. It speaks of depth; a record also shows work and "
    "workers. Read the times.",
)
def everybody_knows(record):
    return summary(record, always_faster=True)


def first_slower(slower):
    return next((n for n, is_slower in slower.items() if is_slower), None)


@task.fault(
    "L4-FIRST-SLOWER",
    thinks="The crossover is the first n at which attention is slower.",
    why="It may be ahead again later: at small sizes a fixed cost can decide. From the crossover "
    "on it stays behind, so look from the large end.",
    section="lab4-crossover",
)
def first_slower_size(record):
    return summary(record, crossover=first_slower)


def last_faster(slower):
    faster = [n for n, is_slower in slower.items() if not is_slower]
    return max(faster, default=None) if any(slower.values()) else None


def noted_before_it_is_asked(slower):
    found = None
    for n, is_slower in reversed(slower.items()):
        found = n
        if not is_slower:
            break
    return found


def one_size_before(slower):
    found, sizes = from_there_on(slower), list(slower)
    return found and sizes[max(sizes.index(found) - 1, 0)]


def noted_too_early(record):
    return summary(record, crossover=noted_before_it_is_asked)


def one_size_too_early(record):
    return summary(record, crossover=one_size_before)


@task.fault(
    "L4-LAST-FASTER",
    thinks="The crossover is the last n at which attention is ahead.",
    why="There it is still ahead. Asked for is the first n at which it has fallen behind for good, "
    "one size later.",
    section="lab4-crossover",
    forms=(noted_too_early, one_size_too_early),
)
def last_faster_size(record):
    return summary(record, crossover=last_faster)


@task.fault(
    "L4-LARGEST-N",
    thinks="If they do not cross, the crossover is the largest n.",
    why="Nobody has seen them cross there. Say None: beyond the record there is no measurement.",
    section="lab4-crossover",
)
def largest_if_none(record):
    return summary(record, crossover=lambda slower: from_there_on(slower) or max(slower))


@task.fault(
    "L4-CROSSES-THE-LOOP",
    thinks="The crossover is where attention meets the loop.",
    why="The loop carries the price of Python, so it is met later. Asked for is the fused GRU.",
    section="lab4-crossover",
)
def crossover_with_the_loop(record):
    return summary(record, rival="loop")


def behind_either(time, b):
    """n -> whether attention takes longer than the faster of the two."""
    loop, fused = behind(time, "loop", b), behind(time, "fused", b)
    return {n: fused[n] or loop.get(n, False) for n in fused}


@task.fault(
    "L4-FASTER-RIVAL",
    thinks="The crossover is where the faster of loop and fused GRU overtakes.",
    why="For “always” both rivals count. The crossover is that of the fused GRU alone, so that it "
    "says something about two layers and not about which program is good.",
    section="lab4-crossover",
)
def against_the_faster(record):
    time = middles(record)
    at_1, at_8 = (from_there_on(behind_either(time, b)) for b in (1, 8))
    guess = record["predictions"]["crossover"]["value"]
    return summary(record, crossover_1=at_1, crossover_8=at_8, held=held(guess, at_8))


@task.fault(
    "L4-EVEN-AT-D",
    thinks="Work is even at n = d, so they cross at 128.",
    why="Work says where the multiplications are even. The times follow only if each "
    "multiplication takes as long in both, and small steps are slow. Read the record.",
    section="lab4-work",
)
def even_at_d(record):
    d = record["points"][0]["d"]
    guess = record["predictions"]["crossover"]["value"]
    return summary(record, crossover_1=d, crossover_8=d, held=held(guess, d))


@task.fault(
    "L4-BATCHES-SWAPPED",
    thinks="Crossover for eight first, then for one.",
    why="The names say which is which: crossover_1 is that of one sentence. With more sentences it "
    "comes earlier, as there is less idle time to use.",
    section="lab4-batch",
)
def batches_swapped(record):
    right = summary(record)
    return right | {"crossover_1": right["crossover_8"], "crossover_8": right["crossover_1"]}


@task.fault(
    "L4-MEAN",
    thinks="The time of a size is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 nearly double it: enough to "
    "move a crossover. A median stays where most samples are.",
)
def means(record):
    return summary(record, middles(record, statistics.mean))


@task.fault(
    "L4-FIRST-SAMPLE",
    thinks="The first sample is the time.",
    why="It is one of many, and the one that most likely holds what only a first call does. Use "
    "all of them.",
)
def first_samples(record):
    return summary(record, middles(record, lambda samples: samples[0]))


@task.fault(
    "L4-SLOWEST",
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it, another program for instance. It is no "
    "safe side; it is somebody else's time.",
)
def slowest_samples(record):
    return summary(record, middles(record, max))


@task.fault(
    "L4-BATCH-SHARE",
    thinks="Eight sentences take less for each, so I divide by eight.",
    why="That is the time a sentence costs in a batch. Asked for is how many times as long the "
    "whole batch takes: 8 if nothing is gained, 1 if the others ride along for free.",
    section="lab4-batch",
)
def per_sentence(record):
    right = summary(record)
    return right | {name: right[name] / 8 for name in ("batch_loop", "batch_attention")}


@task.fault(
    "L4-BATCH-INVERTED",
    thinks="Time with one sentence over time with eight.",
    why="That is the inverse. The number should say how many times as long eight take.",
    section="lab4-batch",
)
def one_over_eight(record):
    right = summary(record)
    return right | {name: 1 / right[name] for name in ("batch_loop", "batch_attention")}


@task.fault(
    "L4-BATCH-SMALLEST-N",
    thinks="The batch numbers can be taken at any n, say the smallest.",
    why="At the smallest n fixed costs hide what eight sentences really cost. Take the largest n "
    "that has both times.",
    section="lab4-batch",
)
def batch_at_the_smallest(record):
    time = middles(record)
    return summary(
        record,
        batch_loop=batch(time, "loop", min),
        batch_attention=batch(time, "attention", min),
    )


@task.fault(
    "L4-BATCH-COMMON-N",
    thinks="Both batch numbers belong to the largest n that all three have.",
    why="Each compares a layer with itself, so it needs no other's time. Where attention ran out "
    "of memory, the loop may go on: take its own largest n.",
    section="lab4-batch",
)
def batch_at_a_common_size(record):
    time = middles(record)
    n = max(set.intersection(*map(set, time.values())))
    ratio = {name: time[name, 8][n] / time[name, 1][n] for name in ("loop", "attention")}
    return summary(record, batch_loop=ratio["loop"], batch_attention=ratio["attention"])


@task.fault(
    "L4-BATCH-ASSUMED",
    thinks="Eight sentences are eight times the work, so both numbers are 8.",
    why="Eight times the work takes eight times as long only if nobody was idle before. That is "
    "what the record tells.",
    section="lab4-batch",
)
def eight_times(record):
    return summary(record, batch_loop=8.0, batch_attention=8.0)


@task.fault(
    "L4-HELD-EXACTLY",
    thinks="A prediction holds if it is the right number.",
    why="The sizes are factors of 2 apart, so nobody can hit better than that. A factor of 2 "
    "either way was agreed before, and that is what makes it a test.",
    section="lab4-predict",
)
def held_exactly(record):
    right = summary(record)
    guess = record["predictions"]["crossover"]["value"]
    return right | {"held": guess == (right["crossover_8"] or 0)}


@task.fault(
    "L4-HELD-OTHER-BATCH",
    thinks="The prediction is compared with crossover_1.",
    why="What was predicted is the crossover for eight sentences at once. That of one sentence is "
    "another number.",
    section="lab4-predict",
)
def held_for_one_sentence(record):
    right = summary(record)
    guess = record["predictions"]["crossover"]["value"]
    return right | {"held": held(guess, right["crossover_1"])}


@task.fault(
    "L4-HELD-ONE-SIDED",
    thinks="The prediction held if the crossover came no earlier than predicted.",
    why="A factor of 2 goes both ways: who predicts 1 when it is 1,024 has not been right.",
    section="lab4-predict",
)
def held_one_sided(record):
    right = summary(record)
    guess = record["predictions"]["crossover"]["value"]
    at_8 = right["crossover_8"]
    return right | {"held": guess <= 2 * at_8 if at_8 else guess == 0}


@task.fault(
    "L4-NEVER-HELD",
    thinks="Without a crossover no prediction can have held.",
    why="Who wrote 0 said that there would be none, and was right. Compare with what was "
    "predicted, that too.",
    section="lab4-predict",
)
def never_held_without(record):
    right = summary(record)
    return right | {"held": right["held"] if right["crossover_8"] else False}
