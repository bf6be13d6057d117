import statistics

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab.timing import LEAST_SAMPLES
from attncourse.tasks import made_up, receipts
from attncourse.tasks.receipts import grave, pasted, record_of

LAB = "lab1_time_it_right"
KINDS = ("product", "copy")
PREDICTED = ("timers",)


def timed(record, kind) -> list[dict]:
    return [p for p in record["points"] if p["name"] == kind and p.get("seconds")]


def enough(record) -> bool:
    return all(
        len({p.get("n") for p in timed(record, kind)}) >= 3
        and all(max(p.get("samples") or 0, len(p["seconds"])) >= 20 for p in timed(record, kind))
        for kind in KINDS
    )


def speeds(record, kind) -> list[float]:
    """Flops or bytes per second at every size: by the median, by the best on a CPU."""
    key = {"product": "flops", "copy": "bytes"}[kind]
    found = []
    for point in timed(record, kind):
        one = min if point.get("clock") == "cpu" else statistics.median
        found.append((point.get(key) or 0) / max(one(point["seconds"]), 1e-12))
    return found


def roofs(record) -> dict[str, float]:
    """What the record claims; 0 where it claims nothing."""
    ceilings = record["machine"].get("ceilings") or {}
    products = (ceilings.get("flops_per_second") or {}).values()
    return {"product": max(products, default=0), "copy": ceilings.get("bytes_per_second") or 0}


def roofs_follow(record) -> bool:
    """Each roof is, within 10 %, what was measured at one of the sizes."""
    claimed = roofs(record)
    return all(
        any(0.9 * each <= claimed[kind] <= 1.1 * each for each in speeds(record, kind))
        for kind in KINDS
    )


task = Task(
    reference.lab1_receipt,
    number=5,
    section="lab1-receipt",
    **receipts.TASK,
)


@task.check(1)
def the_receipt_of_this_lab_can_be_read(answer):
    receipts.record_of_this_lab(answer)


@task.check(1)
def the_prediction_was_made_before_the_first_measurement(answer):
    if receipts.not_predicted(record_of(answer), PREDICTED, receipts.is_something):
        raise Failure(
            "Your prediction of `timers` is missing, or came after the first measurement. Move "
            "the .jsonl file away and run the notebook from its prediction on. Whether the "
            "prediction is right makes no difference to the points."
        )


@task.check(1)
def three_products_and_three_copies_have_twenty_samples_each(answer):
    if not enough(record_of(answer)):
        raise Failure(
            "Products and copies of at least three sizes are expected, with at least "
            f"{LEAST_SAMPLES} samples each. Run the measuring cell to its end."
        )


@task.check(1)
def the_audit_finds_nothing_impossible_or_inconsistent(answer):
    found = grave(record_of(answer))
    if found:
        raise Failure(str(found[0]))


@task.check(1)
def the_roofs_are_those_of_its_own_samples(answer):
    record = record_of(answer)
    if not roofs_follow(record):
        claimed = roofs(record)
        said = "; ".join(
            f"{kind}: {claimed[kind]:.3g} claimed, at best "
            f"{max(speeds(record, kind), default=0):.3g} by the samples"
            for kind in KINDS
        )
        raise Failure(
            f"The roofs in your record do not follow from its own samples ({said}, per "
            "second). A roof is what you measured, not what a data sheet promises."
        )


def evidence(record):
    return {
        "all sizes": all(len(timed(record, kind)) >= 3 for kind in KINDS),
        "enough samples": enough(record),
        "roofs follow": roofs_follow(record),
    }


def a_record(machine=made_up.CPU, sizes=3, kinds=KINDS, roof=None, **how):
    """A record as this machine could have measured it, the roofs its own."""
    gpu = made_up.on_gpu(machine)
    rates = {"product": 2.2e13, "copy": 2.4e11} if gpu else {"product": 6e10, "copy": 1e10}

    def point(kind, n):
        key, work = ("flops", 2 * n**3) if kind == "product" else ("bytes", 2 * n)
        return {"name": kind, "n": n, key: work, "seconds": work / rates[kind]}

    largest = {"product": 2048, "copy": 2**28}
    points = [point(kind, largest[kind] >> step) for kind in kinds for step in range(sizes)]
    made = made_up.record(LAB, machine, {"timers": [0, -1, 1]}, [[each] for each in points], **how)
    best = {kind: max(speeds(made, kind), default=rates[kind]) for kind in KINDS}
    dtype = made["points"][0]["dtype"]
    made["machine"] = made_up.with_roofs(machine, dtype, roof or best["product"], best["copy"])
    return made


# --- faults -------------------------------------------------------------------------------------

ROOFS = "lab1-roofs"

receipts.shared(
    task,
    a_record,
    PREDICTED,
    receipts.is_something,
    evidence=evidence,
    own={
        "CUT-OFF": "L1-RECEIPT-CUT",
        "FILE": "L1-RECEIPT-FILE",
        "TOO-FAST": "L1-RECEIPT-LAUNCHES",
        "OTHER-LAB": "L1-RECEIPT-OTHER",
        "NO-PREDICTION": "L1-RECEIPT-NO-PREDICTION",
        "AFTERWARD": "L1-RECEIPT-LATE",
        "THREE-SAMPLES": "L1-RECEIPT-ONCE",
        "ONE-AFTER-THE-OTHER": None,  # here nothing is compared,
        "WRONG-RESULT": None,  # and nothing has a result
    },
    few=1,
    checks=False,
)
task.fault("L1-RECEIPT-HALF", section=ROOFS, forms=[pasted(a_record, kinds=("product",))])
task.fault("L1-RECEIPT-SHEET", section=ROOFS, forms=[pasted(a_record, roof=2e11)])
