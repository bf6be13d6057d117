"""What a student measured of products and copies: the two roofs of a machine."""

import statistics
from dataclasses import replace

from attncourse.checks.answer import Failure
from attncourse.checks.task import Task, Thought
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
    **receipts.TASK
    | {
        "hints": (
            "The cell that measures prints a text at its end. Have you run it to the end?",
            "Copy all lines between the quotation marks, from `attn1:` to the last one. Line "
            "breaks do no harm, missing characters do.",
            'Replace the dots by return """ and the lines, and close with """. If the check says '
            "that something is impossible, mend your stopwatch and measure again; if it says "
            "“measure again”, that is advice and costs nothing.",
        )
    },
)


@task.check(1)
def the_receipt_of_this_lab_can_be_read(answer):
    record_of(answer)


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
def nothing_in_it_is_impossible(answer):
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
            f"{max(speeds(record, kind)):.3g} by the samples"
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
        receipts.CUT_OFF: Thought(
            "L1-RECEIPT-CUT",
            "The first line of the receipt is the receipt.",
            "A receipt is one long text, broken into lines for the eye. Its own checksum says that "
            "characters are missing; copy all lines.",
        ),
        receipts.FILE: replace(receipts.FILE, id="L1-RECEIPT-FILE"),
        receipts.TOO_FAST: replace(receipts.TOO_FAST, id="L1-RECEIPT-LAUNCHES"),
        receipts.OTHER_LAB: replace(receipts.OTHER_LAB, id="L1-RECEIPT-OTHER"),
        receipts.NO_PREDICTION: Thought(
            "L1-RECEIPT-NO-PREDICTION",
            "A prediction that may be wrong is better left out.",
            "A wrong prediction costs no points, and a surprise is what one remembers. Without "
            "one, there is nothing that the measurement could surprise.",
        ),
        receipts.AFTERWARD: Thought(
            "L1-RECEIPT-LATE",
            "The prediction can be filled in when the results are there.",
            "Then it is no prediction. The record notes how many points had been measured, and it "
            "was more than none.",
        ),
        receipts.FEW_SAMPLES: Thought(
            "L1-RECEIPT-ONCE",
            "One sample for each size is enough for a roof.",
            "A roof is a claim about what a machine can do. With one sample nobody can tell it "
            "from an accident.",
        ),
        receipts.IN_BLOCKS: None,  # here nothing is compared,
        receipts.WRONG_RESULT: None,  # and nothing has a result
    },
    few=1,
    checks=False,
)
task.fault(
    "L1-RECEIPT-HALF",
    "The products are the interesting part.",
    "A machine has two roofs, one for arithmetic and one for memory. Much of attention is bound by "
    "the second, so the copies are needed, too.",
    section=ROOFS,
    forms=[pasted(a_record, kinds=("product",))],
)
task.fault(
    "L1-RECEIPT-SHEET",
    "The roof of a machine is written in its data sheet.",
    "That is what the chip could do in theory. Limits on power and heat keep real machines below, "
    "often far below, so a roof is measured, in the same session.",
    section=ROOFS,
    forms=[pasted(a_record, roof=2e11)],
)
