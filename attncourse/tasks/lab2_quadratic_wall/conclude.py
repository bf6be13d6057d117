import functools
import math
import statistics

import numpy as np
import torch

from attncourse.checks.answer import Failure, as_number, fields, moves_nothing
from attncourse.checks.task import Task
from attncourse.lab import fits
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.lab.timing import headline
from attncourse.tasks import made_up
from attncourse.tasks.lab2_quadratic_wall import LAB, pick

CONCLUSIONS = ("time_exponent", "memory_exponent", "ratio", "wall", "held")


def said(conclude):
    """What the answer concludes, as five numbers."""

    def function(record):
        found = conclude(record)
        if found is None:
            return None
        if isinstance(found, dict):  # what is missing costs its own check, and no other
            found = dict.fromkeys(CONCLUSIONS, math.nan) | found
        return list(map(as_number, fields(found, CONCLUSIONS), CONCLUSIONS))

    return function


T4 = made_up.T4
CPU = made_up.CPU


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
    fused_ends=None,
):
    """A made-up record whose truth is known.

    Args:
        time: true exponent of the fused time; work equals the fixed cost at n = `floor`.
        bytes_like: true exponent of the naive peak.
        ratio: naive over fused time at n = `ends`, the largest that naive attention reaches.
        predicted: the predicted wall over the true one.
        disturbed: the name whose samples at n = `ends` are partly many times too long.
        fused_ends: the largest n that the fused call reaches, if not all.

    Returns:
        record, truth.
    """
    n_last = ends
    peak_last = 0.3 * machine["memory_bytes"]
    wall = n_last * (machine["memory_bytes"] / peak_last) ** (1 / bytes_like)
    truth = {
        "time_exponent": time,
        "memory_exponent": bytes_like,
        "ratio": ratio * ((fused_ends or ends) / ends) ** (2.2 - time),
        "wall": wall,
        "held": 1 / 1.5 <= predicted <= 1.5,
    }
    groups = []
    for n in sizes:
        fused = 2e-3 * max((n / n_last) ** time, (floor / n_last) ** time)
        naive = 2e-3 * max(ratio * (n / n_last) ** 2.2, 0.8 * (floor / n_last) ** time)
        peak = round(peak_last * (n / n_last) ** bytes_like)
        lost, missed = (
            {"peak_bytes": None, "error": "out of memory"} if n > last else {}
            for last in (n_last, fused_ends or max(sizes))
        )
        same = {"n": n, "h": 16, "d": 64}
        groups.append([
            same | {"name": "naive", "seconds": naive, "peak_bytes": peak} | lost,
            same | {"name": "fused", "seconds": fused, "peak_bytes": 8192 * n} | missed,
        ])  # fmt: skip
    guesses = {"time_exponent": 2, "ratio": 3, "wall": round(predicted * wall)}
    how = {"samples": 21, "noise": 0.015, "seed": pick(rng, *range(10_000))}
    record = made_up.record(LAB, machine, guesses, groups, **how)
    for point in record["points"]:
        times = point["seconds"]
        if point["name"] == disturbed and point["n"] == n_last:
            last = 16 if machine is CPU else 10  # where the shortest counts, most are disturbed
            times[3:last] = [4 * each for each in times[3:last]]
            if machine is T4:
                times[12:15] = [0.7 * each for each in times[12:15]]
        if slow_first and times:
            times[0] *= 30 if point["name"] == "fused" else 6
    order = torch.randperm(len(record["points"]), generator=rng, device="cpu").tolist()
    record["points"] = [record["points"][place] for place in order]
    return record, truth


CPU_SIZES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


ON_A_CPU = {"machine": CPU, "sizes": CPU_SIZES, "ends": 4096, "floor": 100}
RECORDS = {
    "T4": {},
    "CPU": {**ON_A_CPU, "predicted": 2.4},
    "disturbed on a CPU": {**ON_A_CPU, "disturbed": "naive", "predicted": 0.8},
    "row by row": {"bytes_like": 1.0, "ratio": 0.7, "predicted": 0.58},
    "disturbed naive": {"disturbed": "naive", "predicted": 0.4},
    "disturbed fused": {"disturbed": "fused", "slow_first": True, "time": 1.8, "predicted": 1.3},
    "nearly right": {"predicted": 1.005},
    "fused ends first": {"fused_ends": 4096, "ratio": 2.5, "predicted": 0.9},
    "naive is faster": {"ratio": 0.4, "ends": 16384, "time": 2.2, "predicted": 0.75},
}


def probes(rng):
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
        if math.isnan(got):
            raise Failure(f'The dict that you return has no number under "{name}".')
        limit = LIMITS.get(name, 0) * (expected if name in ("ratio", "wall") else 1)
        if not abs(got - expected) <= limit:
            raise Failure(
                f"In a made-up record ({kind}), {WORDS[name]}: {expected:,.4g}. "
                f"Your function says {got:,.4g}.",
                whole=name,
            )


task = Task(
    reference.conclude,
    number=6,
    returns=CONCLUSIONS,
    difficulty=3,
    minutes=18,
    section="lab2-conclude",
    probes=probes,
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
def the_ratio_is_naive_over_fused_at_the_largest_n_that_both_have(answer, rng):
    says(answer, rng, "ratio", {"T4": RECORDS["T4"], "CPU": RECORDS["CPU"]})
    for kind in ("naive is faster", "fused ends first"):
        says(answer, rng, "ratio", {kind: RECORDS[kind]})


@task.check(1)
def disturbed_samples_do_not_move_the_ratio(answer, rng):
    kinds = ("disturbed naive", "disturbed fused", "disturbed on a CPU")
    says(answer, rng, "ratio", {kind: RECORDS[kind] for kind in kinds})


@task.check(2)
def the_wall_follows_from_the_peaks(answer, rng):
    kinds = ("T4", "CPU", "row by row")
    says(answer, rng, "wall", {kind: RECORDS[kind] for kind in kinds})
    known_wall(answer)


def known_wall(answer):
    """Assert that the wall is right in records that are the same in two checks."""
    kinds = ("T4", "CPU", "row by row")
    rng = torch.Generator().manual_seed(0)
    says(answer, rng, "wall", {kind: RECORDS[kind] for kind in kinds})


def misses_the_wall(answer):
    try:
        known_wall(answer)
    except Failure:
        return True
    return False


def held_for_its_wall(answer, rng):
    """Whether "held" is right for the wall that the answer says, in all records."""
    for how in RECORDS.values():
        record, _ = a_record(rng, **how)
        *_, wall, held = (number.item() for number in answer({"record": record}))
        ratio = record["predictions"]["wall"]["value"] / wall if wall > 0 else math.nan
        if math.isnan(ratio) or held != (1 / 1.5 <= ratio <= 1.5):
            return False
    return True


@task.check(1)
def it_says_whether_the_prediction_held(answer, rng):
    try:
        says(answer, rng, "held", RECORDS)
    except Failure:
        if not misses_the_wall(answer) or not held_for_its_wall(answer, rng):
            raise


@task.check(1)
def it_changes_nothing_but_its_result(answer, rng):
    moves_nothing(answer, {"record": a_record(rng)[0]})


# --- the reference in steps ---------------------------------------------------------------------


@functools.lru_cache(maxsize=1000)  # hundreds of thoughts, one beside another, ask for the same
def exponent_of(*points):
    return fits.fit_exponent([n for n, _ in points], [value for _, value in points]).exponent


def exponent(values):
    return exponent_of(*values.items())


def where_it_ends(peak, record, p, last=None):
    last = last or max(peak)
    return last * (record["machine"]["memory_bytes"] / peak[last]) ** (1 / p)


@task.steps
class Conclusions:
    def done(record):
        return [point for point in record["points"] if not point["error"]]

    number = headline

    def common(naive, fused):
        """Where each of the two is looked at."""
        n = max(naive.keys() & fused.keys())
        return n, n

    def ratio(naive, fused):
        return naive / fused

    def compared(self, naive, fused):
        at, beside = self.common(naive, fused)
        return self.ratio(naive[at], fused[beside])

    def times_of(naive, fused):
        return fused

    def growth(values):
        return exponent(values)

    def peaks(naive, fused):
        return naive

    def memory_exponent(peak):
        return exponent(peak)

    def wall(peak, record, p):
        return where_it_ends(peak, record, p)

    def predicted(record):
        return record["predictions"]["wall"]["value"]

    def held(wall, predicted):
        return wall / 1.5 <= predicted <= 1.5 * wall

    def results(found):
        return found

    def __call__(self, record):
        done = self.done(record)
        naive, fused = (
            {p["n"]: self.number(p) for p in done if p["name"] == name}
            for name in ("naive", "fused")
        )
        peak = self.peaks(
            *(
                {p["n"]: p["peak_bytes"] for p in done if p["name"] == name}
                for name in ("naive", "fused")
            )
        )
        p = self.memory_exponent(peak)
        wall = self.wall(peak, record, p)
        return self.results({
            "time_exponent": self.growth(self.times_of(naive, fused)),
            "memory_exponent": p,
            "ratio": self.compared(naive, fused),
            "wall": wall,
            "held": self.held(wall, self.predicted(record)),
        })  # fmt: skip


def by(middle):
    return lambda point: middle(point["seconds"])


# --- faults -------------------------------------------------------------------------------------


def line(values):
    return float(np.polyfit(np.log([*values]), np.log([*values.values()]), 1)[0])


def over_all(middle):
    """A ratio at every n that both have, in one number."""

    def compared(self, naive, fused):
        return middle([self.ratio(naive[n], fused[n]) for n in naive if n in fused])

    return compared


def listed(place):
    return lambda naive, fused: ([n for n in naive if n in fused][place],) * 2


def last_listed(peak, record, p):
    return where_it_ends(peak, record, p, [*peak][-1])


def first_that_failed(peak, record, p):
    failed = [point["n"] for point in record["points"] if point["error"]]
    return float(min(failed)) if failed else where_it_ends(peak, record, p)


def shortest_on_a_gpu(point):
    return (statistics.median if point["clock"] == "cpu" else min)(point["seconds"])


def done_points(record):
    return [point for point in record["points"] if not point["error"]]


def with_times(record):
    for point in record["points"]:
        point["time"] = 0.0
    return done_points(record)


def in_order(record):
    record["points"].sort(key=lambda point: point["n"])
    return done_points(record)


def without_the_last_key(found):
    return {name: found[name] for name in CONCLUSIONS[:-1]}


task.fault("C-FASTEST-SAMPLE", number=by(min))
task.fault("C-MEDIAN-EVERYWHERE", number=by(statistics.median))
task.fault("L2-CLOCKS-SWAPPED", number=shortest_on_a_gpu)
task.fault("L2-RATIO-OVER-ALL", compared=(over_all(statistics.mean), over_all(statistics.median)))
task.fault("L2-EXPONENT-ROUNDED", growth=lambda values: float(round(exponent(values))))
task.fault("L2-MEAN", number=by(statistics.mean))
task.fault("L2-FIRST-SAMPLE", number=by(lambda seconds: seconds[0]))
task.fault("L2-SLOWEST", number=by(max))
task.fault("L2-DIFFERENT-N", common=lambda naive, fused: (max(naive), max(fused)))
task.fault("L2-WHERE-NAIVE-ENDS", common=lambda naive, fused: (max(naive), max(naive)))
task.fault("L2-SMALLEST-N", common=lambda naive, fused: (min(naive.keys() & fused.keys()),) * 2)
task.fault("L2-RATIO-INVERTED", ratio=lambda naive, fused: fused / naive)
task.fault("L2-NAIVE-TIME", times_of=lambda naive, fused: naive)
task.fault("L2-TIMES-ALL-SIZES", section="lab2-fit", growth=line)
task.fault(
    "L2-ASSUMED-SQUARE",
    memory_exponent=(lambda peak: 2.0, ...),
    wall=(..., lambda peak, record, p: where_it_ends(peak, record, 2.0)),
)
task.fault("L2-FUSED-MEMORY", peaks=lambda naive, fused: fused)
task.fault(
    "L2-WALL-LINEAR",
    section="lab2-wall",
    wall=lambda peak, record, p: where_it_ends(peak, record, 1.0),
)
task.fault("L2-WALL-FIRST-FAILED", section="lab2-wall", wall=first_that_failed)
task.fault("L2-WALL-MEASURED", section="lab2-wall", wall=lambda peak, record, p: float(max(peak)))
task.fault(
    "L2-WALL-PREDICTED",
    section="lab2-predict",
    wall=lambda peak, record, p: record["predictions"]["wall"]["value"],
)
task.fault(
    "L2-HELD-EXACTLY",
    section="lab2-predict",
    held=lambda wall, predicted: abs(predicted / wall - 1) < 0.01,
)
task.fault(
    "L2-HELD-ONE-SIDED",
    section="lab2-predict",
    held=lambda wall, predicted: predicted <= 1.5 * wall,
)
task.fault(
    "L2-HELD-HALF",
    section="lab2-predict",
    held=lambda wall, predicted: abs(predicted - wall) <= 0.5 * wall,
)
task.fault(
    "L2-HELD-DIFFERENCE",
    section="lab2-predict",
    held=lambda wall, predicted: abs(predicted - wall) <= 1.5,
)
task.fault("L2-FAILED-POINTS", done=lambda record: record["points"])
task.fault("L2-PREDICTION-ENTRY", predicted=lambda record: record["predictions"]["wall"])
task.fault(
    "L2-AS-LISTED",
    common=(listed(-1), listed(-1), listed(0)),
    wall=(last_listed, ...),
)
task.fault("L2-HELD-OTHER-SIDE", held=lambda wall, predicted: predicted >= wall / 1.5)
task.fault("L2-HELD-ALWAYS", held=lambda wall, predicted: True)
task.fault("L2-RECORD-WRITTEN-INTO", done=(with_times, in_order))
task.fault("L2-KEY-LEFT-OUT", results=without_the_last_key)
