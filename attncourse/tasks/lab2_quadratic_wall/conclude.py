"""conclude."""

import statistics

import numpy as np
import torch

from attncourse.checks.answer import Failure, as_number, fields, moves_nothing
from attncourse.checks.inputs import normal
from attncourse.checks.task import Task
from attncourse.lab import fits
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.tasks.lab2_quadratic_wall import LAB

CONCLUSIONS = ("time_exponent", "memory_exponent", "ratio", "wall", "held")


def said(conclude):
    """What the answer concludes, as five numbers."""

    def function(record):
        found = conclude(record)
        if found is None:
            return None
        return list(map(as_number, fields(found, CONCLUSIONS), CONCLUSIONS))

    return function


T4 = {"device": "cuda", "name": "Tesla T4", "label": "T4", "memory_bytes": 16 * 10**9}


CPU = {"device": "cpu", "name": "a CPU", "label": "CPU, 1 thread", "memory_bytes": 25 * 10**9}


def a_record(
    rng,
    *,
    machine=T4,
    sizes=(256, 512, 1024, 2048, 4096, 8192, 16384),
    time=2.0,
    floor=700,
    bytes_like=2.0,
    ratio=3.5,
    ends=8192,
    predicted=1.1,
    disturbed=None,
    slow_first=False,
):
    """A made-up record whose truth is known.

    Args:
        time: true exponent of the fused time; work equals the fixed cost at n = `floor`.
        bytes_like: true exponent of the naive peak.
        ratio: naive over fused time at n = `ends`, the largest that naive attention reaches.
        predicted: the predicted wall over the true one.
        disturbed: the name whose samples at n = `ends` are partly many times too long.

    Returns:
        record, truth.
    """
    n_last = ends
    peak_last = 0.3 * machine["memory_bytes"]
    wall = n_last * (machine["memory_bytes"] / peak_last) ** (1 / bytes_like)
    truth = {
        "time_exponent": time,
        "memory_exponent": bytes_like,
        "ratio": ratio,
        "wall": wall,
        "held": 1 / 1.5 <= predicted <= 1.5,
    }
    made = []
    for n in sizes:
        fused = 2e-3 * max((n / n_last) ** time, (floor / n_last) ** time)
        naive = 2e-3 * max(ratio * (n / n_last) ** 2.2, 0.8 * (floor / n_last) ** time)
        for name, seconds in (("naive", naive), ("fused", fused)):
            failed = name == "naive" and n > n_last
            factors = (0.015 * normal(rng, 21, dtype=torch.float64)).exp().tolist()
            samples = [round(seconds * factor, 12) for factor in factors]
            if name == disturbed and n == n_last:
                samples[3:10] = [4 * each for each in samples[3:10]]
            if slow_first:
                samples[0] *= 30 if name == "fused" else 6
            peak = peak_last * (n / n_last) ** bytes_like if name == "naive" else 8192.0 * n
            made.append(
                {
                    "name": name,
                    "n": n,
                    "b": 1,
                    "h": 16,
                    "d": 64,
                    "seconds": [] if failed else samples,
                    "clock": "events" if machine is T4 else "cpu",
                    "started": [],
                    "peak_bytes": None if failed else round(peak),
                    "backend": None,
                    "dtype": "float16" if machine is T4 else "float32",
                    "error": "out of memory" if failed else None,
                }
            )
    order = torch.randperm(len(made), generator=rng, device="cpu").tolist()
    guess = {
        "time_exponent": 2,
        "ratio": 3,
        "wall": round(predicted * wall),
    }
    record = {
        "lab": LAB,
        "machine": dict(machine),
        "predictions": {
            name: {"value": value, "at": 1.0, "session": 0, "points": 0}
            for name, value in guess.items()
        },
        "points": [made[place] for place in order],
    }
    return record, truth


CPU_SIZES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


RECORDS = {
    "T4": {},
    "CPU": {"machine": CPU, "sizes": CPU_SIZES, "ends": 4096, "floor": 100, "predicted": 2.4},
    "row by row": {"bytes_like": 1.0, "ratio": 0.7, "predicted": 0.8},
    "disturbed naive": {"disturbed": "naive", "predicted": 0.4},
    "disturbed fused": {"disturbed": "fused", "slow_first": True, "time": 1.8, "predicted": 1.3},
    "naive is faster": {"ratio": 0.4, "ends": 16384, "time": 2.2, "predicted": 0.75},
}


def conclude_probes(rng):
    return {name: {"record": a_record(rng, **how)[0]} for name, how in RECORDS.items()}


LIMITS = {"time_exponent": 0.15, "memory_exponent": 0.1, "ratio": 0.08, "wall": 0.15}


WORDS = {
    "time_exponent": "fused times grow like n to the",
    "memory_exponent": "naive peak bytes grow like n to the",
    "ratio": "naive time over fused time at the largest n that both have",
    "wall": "n at which the naive peak fills the memory of the machine",
    "held": "prediction within a factor of 1.5 of the wall (1 = yes)",
}


def says(answer, rng, name, records):
    """Assert that one conclusion is right about these records."""
    for kind, how in records.items():
        record, truth = a_record(rng, **how)
        got = answer({"record": record})[CONCLUSIONS.index(name)].item()
        expected = float(truth[name])
        limit = LIMITS.get(name, 0) * (expected if name in ("ratio", "wall") else 1)
        if not abs(got - expected) <= limit:
            raise Failure(
                f"In a made-up record ({kind}), {WORDS[name]}: {expected:,.4g}. "
                f"Your function says {got:,.4g}."
            )


task = Task(
    reference.conclude,
    number=6,
    returns=CONCLUSIONS,
    difficulty=3,
    minutes=18,
    section="lab2-conclude",
    hints=(
        "Begin with order: which points have a time at all, which are naive, which are fused? "
        "Make a dict n → median seconds for each.",
        "`lab.fit_exponent(sizes, values).exponent` fits times and bytes alike. The ratio "
        "needs an n that is in both dicts. For the wall take the largest naive peak: how many "
        "times does it fit into the memory, and by which factor may n grow for that?",
        "If bytes grow like n to the p, n may grow by the factor (memory / peak) to the power "
        "1/p. The prediction held if wall / 1.5 <= predicted <= 1.5 · wall, where predicted "
        'is record["predictions"]["wall"]["value"].',
    ),
    probes=conclude_probes,
    small=lambda rng: iter(()),
    adapt=said,
    tolerance=0.04,
)


@task.check(2)
def the_fused_time_has_its_exponent(answer, rng):
    kinds = ("T4", "CPU", "disturbed fused", "naive is faster")
    says(answer, rng, "time_exponent", {kind: RECORDS[kind] for kind in kinds})


@task.check(2)
def the_naive_memory_has_its_exponent(answer, rng):
    kinds = ("T4", "CPU", "row by row")
    says(answer, rng, "memory_exponent", {kind: RECORDS[kind] for kind in kinds})


@task.check(2)
def the_ratio_is_taken_where_both_have_a_time(answer, rng):
    says(answer, rng, "ratio", {"T4": RECORDS["T4"], "CPU": RECORDS["CPU"]})
    says(answer, rng, "ratio", {"naive is faster": RECORDS["naive is faster"]})


@task.check(1)
def a_few_slow_samples_do_not_move_the_ratio(answer, rng):
    kinds = ("disturbed naive", "disturbed fused")
    says(answer, rng, "ratio", {kind: RECORDS[kind] for kind in kinds})


@task.check(2)
def the_wall_follows_from_the_peaks(answer, rng):
    kinds = ("T4", "CPU", "row by row")
    says(answer, rng, "wall", {kind: RECORDS[kind] for kind in kinds})


@task.check(1)
def it_says_whether_the_prediction_held(answer, rng):
    says(answer, rng, "held", RECORDS)


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- faults ---------------------------------------------------------------------------------------


def middles(record, name, average=statistics.median):
    """n -> one time."""
    return {
        point["n"]: average(point["seconds"])
        for point in record["points"]
        if point["name"] == name and not point["error"]
    }


def peaks_of(record, name):
    """n -> peak bytes."""
    return {
        point["n"]: point["peak_bytes"]
        for point in record["points"]
        if point["name"] == name and not point["error"]
    }


def growth(values):
    return fits.fit_exponent([*values], [*values.values()]).exponent


def where_it_ends(peak, record, exponent):
    last = max(peak)
    return last * (record["machine"]["memory_bytes"] / peak[last]) ** (1 / exponent)


def summary(record, naive=None, fused=None, **instead):
    """Right conclusions, from these times, less what is replaced."""
    naive = naive or middles(record, "naive")
    fused = fused or middles(record, "fused")
    peak = peaks_of(record, "naive")
    exponent = growth(peak)
    wall = instead.get("wall", where_it_ends(peak, record, exponent))
    predicted = record["predictions"]["wall"]["value"]
    n = max(naive.keys() & fused.keys())
    return {
        "time_exponent": growth(fused),
        "memory_exponent": exponent,
        "ratio": naive[n] / fused[n],
        "wall": wall,
        "held": wall / 1.5 <= predicted <= 1.5 * wall,
    } | instead


@task.fault(
    "L2-MEAN",
    thinks="The time of a size is the mean of its samples.",
    why="One disturbed sample moves a mean anywhere, and seven of 21 nearly double it. Look at the "
    "samples: a median stays where most of them are.",
)
def means(record):
    naive, fused = (middles(record, name, statistics.mean) for name in ("naive", "fused"))
    return summary(record, naive, fused)


@task.fault(
    "L2-FIRST-SAMPLE",
    thinks="The first sample is the time.",
    why="It is one of many, and the one that most likely holds what only a first call does. Use "
    "all of them.",
)
def first_samples(record):
    naive, fused = (middles(record, name, lambda s: s[0]) for name in ("naive", "fused"))
    return summary(record, naive, fused)


@task.fault(
    "L2-SLOWEST",
    thinks="To be on the safe side, the slowest sample counts.",
    why="The slowest sample tells of whatever disturbed it, another program for instance. It is no "
    "safe side; it is somebody else's time.",
)
def slowest_samples(record):
    naive, fused = (middles(record, name, max) for name in ("naive", "fused"))
    return summary(record, naive, fused)


@task.fault(
    "L2-DIFFERENT-N",
    thinks="The ratio is that of the two largest times.",
    why="The two end at different sizes: naive attention ran out of memory, the fused call went "
    "on. Compare them at an n where both have a time.",
)
def each_at_its_own_end(record):
    naive, fused = middles(record, "naive"), middles(record, "fused")
    return summary(record, ratio=naive[max(naive)] / fused[max(fused)])


@task.fault(
    "L2-SMALLEST-N",
    thinks="The ratio can be read off at any size, say the first.",
    why="At the smallest size both spend their time on the fixed cost, so the ratio is near one "
    "whatever the method. Take the largest that both have.",
)
def ratio_at_the_smallest(record):
    naive, fused = middles(record, "naive"), middles(record, "fused")
    n = min(naive.keys() & fused.keys())
    return summary(record, ratio=naive[n] / fused[n])


@task.fault(
    "L2-RATIO-INVERTED",
    thinks="The ratio says which share of the naive time the fused call needs.",
    why="That is the inverse: 0.3 instead of 3. Here naive stands above the fraction bar, so that "
    "the number says how many times slower it is.",
)
def fused_over_naive(record):
    return summary(record, ratio=1 / summary(record)["ratio"])


@task.fault(
    "L2-NAIVE-TIME",
    thinks="The exponent of the time is that of the naive call.",
    why="Naive times are no clean power: they bend where the tables leave the cache. The lab asks "
    "for the exponent of the fused call, which grows evenly.",
)
def exponent_of_naive_time(record):
    return summary(record, time_exponent=growth(middles(record, "naive")))


@task.fault(
    "L2-TIMES-ALL-SIZES",
    thinks="The exponent of the time is the slope through all sizes.",
    why="The small ones are mostly fixed cost and pull the slope down. Use a fit that knows of it, "
    "yours or `lab.fit_exponent`.",
    section="lab2-fit",
)
def slope_through_all_times(record):
    fused = middles(record, "fused")
    slope = np.polyfit(np.log([*fused]), np.log([*fused.values()]), 1)[0]
    return summary(record, time_exponent=float(slope))


@task.fault(
    "L2-ASSUMED-SQUARE",
    thinks="Naive attention grows like n², that is known.",
    why="A conclusion says what this record says. One of ours holds an attention that works row by "
    "row under the name naive, and its bytes grow like n.",
)
def square_without_looking(record):
    peak = peaks_of(record, "naive")
    return summary(record, memory_exponent=2.0, wall=where_it_ends(peak, record, 2.0))


@task.fault(
    "L2-FUSED-MEMORY",
    thinks="The memory of attention is that of the fused call.",
    why="That grows like n and hits no wall here. Asked for are the peak and the wall of the naive "
    "call.",
)
def memory_of_the_fused_call(record):
    peak = peaks_of(record, "fused")
    wall = where_it_ends(peak, record, growth(peak))
    return summary(record, memory_exponent=growth(peak), wall=wall)


@task.fault(
    "L2-WALL-LINEAR",
    thinks="If the peak fits three times into the memory, n can be three times as large.",
    why="Twice the n needs four times the bytes. So three times the memory gives only the square "
    "root of three times the positions.",
    section="lab2-wall",
)
def wall_in_proportion(record):
    peak = peaks_of(record, "naive")
    return summary(record, wall=where_it_ends(peak, record, 1.0))


@task.fault(
    "L2-WALL-MEASURED",
    thinks="The wall is the largest n that worked.",
    why="That is one of the sizes you chose; a CPU with much memory never fails at them. The peak "
    "there tells how much further it would go.",
    section="lab2-wall",
)
def largest_that_worked(record):
    return summary(record, wall=float(max(peaks_of(record, "naive"))))


@task.fault(
    "L2-WALL-PREDICTED",
    thinks="The wall is what I predicted.",
    why="Then a prediction would always hold. The wall follows from the peaks in the record; the "
    "prediction is compared with it afterward.",
    section="lab2-predict",
)
def wall_as_predicted(record):
    return summary(record, wall=record["predictions"]["wall"]["value"])


@task.fault(
    "L2-HELD-EXACTLY",
    thinks="A prediction holds if it is the right number.",
    why="No prediction of a measurement is right to the digit. A factor of 1.5 either way was "
    "agreed before, and that is what makes it a test.",
    section="lab2-predict",
)
def held_within_one_percent(record):
    predicted, wall = record["predictions"]["wall"]["value"], summary(record)["wall"]
    return summary(record, held=abs(predicted / wall - 1) < 0.01)


@task.fault(
    "L2-HELD-ONE-SIDED",
    thinks="The prediction held if the wall came no earlier than predicted.",
    why="A factor of 1.5 goes both ways: who predicts 10 when it is 10,000 has not been right.",
    section="lab2-predict",
)
def held_one_sided(record):
    predicted, wall = record["predictions"]["wall"]["value"], summary(record)["wall"]
    return summary(record, held=predicted <= 1.5 * wall)
