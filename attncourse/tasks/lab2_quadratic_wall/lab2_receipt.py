from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab2_quadratic_wall as reference
from attncourse.tasks import made_up, receipts
from attncourse.tasks.lab2_quadratic_wall import LAB
from attncourse.tasks.receipts import pasted, points, record_of, timed

PREDICTED = ("time_exponent", "ratio", "wall")
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def common_sizes(record):
    return sorted(timed(record, "naive").keys() & timed(record, "fused").keys())


def wrong_peaks(record):
    """Of naive attention from n = 1024 on: n, bytes measured, bytes expected."""
    found = []
    for n, p in timed(record, "naive").items():
        b, h, d = (p.get(key) or 1 for key in "bhd")
        counted = b * h * (2 * n * n + n * d) * WIDTHS.get(p.get("dtype"), 4)
        peak = p.get("peak_bytes") or 0
        # Other ways to write it keep one table more or less; a GPU rounds and adds a workspace.
        if n >= 1024 and not 0.45 * counted <= peak <= 1.6 * counted + 2**25:
            found.append((n, peak, counted))
    return found


task = Task(reference.lab2_receipt, number=5, section="lab2-receipt", **receipts.TASK)


@task.check(2)
def naive_and_fused_attention_were_timed_at_four_sizes_or_more(answer):
    record = record_of(answer)
    common = common_sizes(record)
    if len(common) < 4 or common[-1] < 8 * common[0]:
        raise Failure(
            f'Sizes at which both "naive" and "fused" have times: {common or "none"}. An '
            "exponent needs four or more, the largest at least 8 times the smallest."
        )


@task.check(2, "the peaks of naive attention are two tables of n × n")
def the_peaks_of_naive_attention_are_two_tables_of_n_by_n(answer):
    record = record_of(answer)
    if not any(n >= 1024 for n in timed(record, "naive")):
        raise Failure('No point "naive" with n of 1,024 or more has a time and a peak.')
    for n, peak, counted in wrong_peaks(record):
        raise Failure(
            f"Naive attention at n = {n}: the receipt says a peak of {peak:,} bytes. Scores, "
            f"weights and output are {counted:,}. Measure the peak of the call alone, in bytes."
        )


def evidence(record):
    common = common_sizes(record)
    return {
        "naive": bool(timed(record, "naive")),
        "fused": bool(timed(record, "fused")),
        "enough sizes": len(common) >= 4 and common[-1] >= 8 * common[0],
        "right peaks": not wrong_peaks(record),
    }


def a_record(
    machine=made_up.T4,
    sizes=(256, 512, 1024, 2048, 4096, 8192, 16384),
    tables=2,
    predicted=(2, 3, 12000),
    **how,
):
    """A record as this machine could have measured it; naive attention holds so many tables."""
    gpu = made_up.on_gpu(machine)
    h, width, slower, least = (16, 2, 1, 2e-5) if gpu else (2, 4, 15, 4e-4)

    def group(n):
        peak, room = h * width * (tables * n * n + n * 64), 0.9 * machine["memory_bytes"]
        error = "out of memory" if peak > room else None
        same = {"n": n, "h": h, "d": 64, "flops": 256.0 * h * n * n}
        seconds = {"naive": 6.6e-10, "fused": 3.6e-10}
        seconds = {name: max(least, slower * rate * n * n) for name, rate in seconds.items()}
        naive = {"name": "naive", "peak_bytes": None if error else peak, "error": error}
        fused = {"name": "fused", "peak_bytes": h * width * n * 66}
        fused["backend"] = "EFFICIENT" if gpu else "FLASH"
        return [same | each | {"seconds": seconds[each["name"]]} for each in (naive, fused)]

    guesses = dict(zip(PREDICTED, predicted, strict=True))
    return made_up.record(LAB, machine, guesses, map(group, sizes), **how)


# --- faults -------------------------------------------------------------------------------------

PEAK = "lab2-peak"


def peak_of_the_call_before(record):
    for naive, fused in zip(record["points"][::2], record["points"][1::2], strict=True):
        fused["peak_bytes"] = naive["peak_bytes"]


receipts.shared(task, a_record, PREDICTED, evidence=evidence, predict="lab2-predict")
task.fault(
    "L2-ONLY-NAIVE", forms=[pasted(a_record, receipts.only(lambda point: point["name"] == "naive"))]
)
task.fault("L2-FEW-SIZES", section="lab2-fit", forms=[pasted(a_record, sizes=(1024, 2048, 4096))])
task.fault(
    "L2-OOM-AS-TIME",
    section="lab2-wall",
    forms=[
        pasted(
            a_record,
            points(
                where=lambda point: point["error"],
                seconds=lambda _: [0.31 + 0.007 * i % 0.02 for i in range(20)],
            ),
        )
    ],
)
task.fault(
    "L2-PEAK-NOT-RESET",
    section=PEAK,
    forms=[pasted(a_record, peak_of_the_call_before, sizes=(256, 512, 1024, 2048, 4096, 8192))],
)
task.fault(
    "L2-RESERVED",
    section=PEAK,
    forms=[
        pasted(a_record, points(peak_bytes=lambda point: None if point["error"] else 9_663_676_416))
    ],
)
task.fault(
    "L2-PEAK-IN-MIB",
    section=PEAK,
    forms=[
        pasted(
            a_record,
            points(peak_bytes=lambda point: point["peak_bytes"] and point["peak_bytes"] / 2**20),
        )
    ],
)
task.fault(
    "L2-HALF-AGAINST-FULL",
    forms=[
        pasted(
            a_record,
            points("naive", dtype="float32", peak_bytes=lambda point: 2 * point["peak_bytes"]),
            sizes=(256, 512, 1024, 2048, 4096),
        )
    ],
)
