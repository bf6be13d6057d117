import random

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab4_sequential_or_parallel as reference
from attncourse.tasks import made_up, receipts
from attncourse.tasks.lab4_sequential_or_parallel import LAB
from attncourse.tasks.receipts import pasted, points, record_of, timed

NAMES = ("loop", "fused", "attention")


PREDICTED = ("crossover", "batch_loop", "batch_attention")


def common_sizes(record, b):
    """Sizes at which all three have a time."""
    return sorted(set.intersection(*(set(timed(record, name, b=b)) for name in NAMES)))


def enough(sizes):
    return len(sizes) >= 4 and sizes[-1] >= 8 * sizes[0]


LONG = 1024  # a quick run, which is for trying the cells out, stops far below


def long_enough(sizes):
    return not sizes or sizes[-1] >= LONG


def unlike(record):
    """The first point whose result was not compared with float64, or differs from it."""
    for b in (1, 8):
        for name in NAMES:
            for n, p in sorted(timed(record, name, b=b).items()):
                error = p.get("reference_error")
                if not isinstance(error, int | float) or not error < 1e-2:
                    return f"{name} at b = {b}, n = {n}", error
    return None


task = Task(reference.lab4_receipt, number=5, section="lab4-receipt", **receipts.TASK)


@task.check(2)
def all_three_were_timed_for_one_sentence_and_for_eight_at_enough_sizes(answer):
    record = record_of(answer)
    for b in (1, 8):
        common = common_sizes(record, b)
        if not enough(common):
            raise Failure(
                f"With b = {b}, sizes at which loop, fused and attention all have times: "
                f"{', '.join(map(str, common)) or 'none'}. Four or more are needed, the "
                "largest at least 8 times the smallest."
            )
        if not long_enough(common):
            raise Failure(
                f"With b = {b}, the largest n at which all three have times is {common[-1]}; "
                f"{LONG:,} or more is needed. A quick run is no result: start again without "
                "ATTNCOURSE_QUICK, and measure."
            )


@task.check(2)
def the_results_were_compared_with_the_truth_and_agree(answer):
    found = unlike(record_of(answer))
    if found:
        where, error = found
        raise Failure(
            f"{where}: "
            + (
                "nobody has compared the result with one in float64."
                if error is None
                else f"the result is off by {error}, so this is another computation."
            )
        )


def evidence(record):
    sizes = [common_sizes(record, b) for b in (1, 8)]
    return {
        **{f"{name}, b = {b}": bool(timed(record, name, b=b)) for name in NAMES for b in (1, 8)},
        "enough sizes": all(map(enough, sizes)),
        "long enough": all(map(long_enough, sizes)),
        "compared": not unlike(record),
    }


SMALL = (128, 256, 512, 1024)


def a_record(sizes=SMALL, **how):
    """A record as a T4 could have measured it, in float32."""

    def group(n, b):
        steps = 2 * 6 * b * n * 128**2
        products = 2 * b * (4 * n * 128**2 + 2 * n * n * 128)
        same = {"n": n, "b": b, "d": 128, "dtype": "float32", "reference_error": 2e-6}
        return [
            same | {"name": "loop", "flops": steps, "seconds": 9e-5 * n},
            same | {"name": "fused", "flops": steps, "seconds": 1.1e-5 * n * (1 + 0.02 * b)},
            same
            | {"name": "attention", "flops": products, "backend": "EFFICIENT"}
            | {"seconds": 6e-5 + b * n * (3e-8 + n * 1.4e-10)},
        ]

    groups = [group(n, b) for n in sizes for b in (1, 8)]
    guesses = {"crossover": 500, "batch_loop": 2, "batch_attention": 8}
    return made_up.record(LAB, made_up.T4, guesses, groups, **{"seed": 4} | how)


# --- faults -------------------------------------------------------------------------------------


def launch_times(record):
    chance = random.Random(8)
    for point in record["points"]:
        thin = 3 if point["name"] == "attention" else 2  # so that it fits
        point["started"] = [round(each, thin) for each in point["started"]]
        if point["name"] == "attention":
            point["seconds"] = [4e-5 * chance.lognormvariate(0, 0.05) for _ in range(20)]


receipts.shared(
    task,
    a_record,
    PREDICTED,
    evidence=evidence,
    own={"WRONG-RESULT": None},  # L4-OTHER-WEIGHTS, and a check of its own
    predict="lab4-predict",
)
task.fault(
    "L4-ONE-SENTENCE-ONLY",
    section="lab4-batch",
    forms=[pasted(a_record, receipts.only(lambda point: point["b"] == 1))],
)
task.fault(
    "L4-NO-LOOP", forms=[pasted(a_record, receipts.only(lambda point: point["name"] != "loop"))]
)
task.fault(
    "L4-NO-FUSED", forms=[pasted(a_record, receipts.only(lambda point: point["name"] != "fused"))]
)
task.fault("L4-FEW-SIZES", forms=[pasted(a_record, sizes=(512, 1024, 2048))])
task.fault("L4-QUICK-RUN", forms=[pasted(a_record, sizes=(16, 32, 64, 128))])
task.fault("L4-NOT-COMPARED", forms=[pasted(a_record, points(reference_error=None))])
task.fault("L4-OTHER-WEIGHTS", forms=[pasted(a_record, points("loop", reference_error=0.8))])
task.fault(
    "L4-NO-SYNCHRONIZE", forms=[pasted(a_record, launch_times, sizes=(128, 256, 512, 1024, 2048))]
)
task.fault("L4-HALF-AGAINST-FULL", forms=[pasted(a_record, points("attention", dtype="float16"))])
