"""lab1_receipt."""

import functools
import statistics

import torch

from attncourse.checks.answer import Failure, describe
from attncourse.checks.task import Task
from attncourse.lab import lab1_time_it_right as reference
from attncourse.lab import receipts
from attncourse.lab.audit import IMPOSSIBLE, INCONSISTENT, audit
from attncourse.lab.receipts import encode
from attncourse.lab.timing import LEAST_SAMPLES


def as_text(answer):
    def text():
        returned = answer()
        if returned is None or returned is ... or returned == "":
            return None
        return {"receipt": returned}

    return text


def record_of(answer):
    """The record in a student's receipt, or a Failure that says what to do."""
    text = answer({})["receipt"]
    if not isinstance(text, str):
        raise Failure(
            f"Your answer returned {describe(text)}; the text of the receipt is expected."
        )
    try:
        record = receipts.decode(text)
    except receipts.ReceiptError as error:
        raise Failure(f"This receipt cannot be read: {error}") from None
    if record["lab"] != LAB:
        raise Failure(f"This is the receipt of “{record['lab']}”; that of {LAB} is expected.")
    return record


LAB = "lab1_time_it_right"


KINDS = ("product", "copy")


def predicted_before(record) -> bool:
    made = record["predictions"].get("timers")
    return isinstance(made, dict) and bool(made.get("value")) and not made.get("points")


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


def grave(record) -> list:
    return [each for each in audit(record) if each.severity in (IMPOSSIBLE, INCONSISTENT)]


def receipt_traits(answer):
    text = answer({})["receipt"]
    try:
        record = receipts.decode(text) if isinstance(text, str) else None
    except receipts.ReceiptError:
        record = None
    of_this_lab = record is not None and record["lab"] == LAB
    grave_names = {each.name for each in grave(record)} if of_this_lab else set()
    return {
        "a receipt": isinstance(text, str) and receipts.PREFIX in text,
        "readable": record is not None,
        "of this lab": of_this_lab or record is None,
        "predicted": not of_this_lab or bool(record["predictions"].get("timers")),
        "predicted before": not of_this_lab or predicted_before(record),
        "all sizes": not of_this_lab or all(len(timed(record, k)) >= 3 for k in KINDS),
        "enough samples": not of_this_lab or enough(record),
        "possible": not grave_names,
        "within the data sheet": not grave_names & {"units", "faster_than_peak"},
        "roofs follow": not of_this_lab or roofs_follow(record),
    }


task = Task(
    reference.lab1_receipt,
    number=5,
    returns=dict,
    difficulty=1,
    minutes=5,
    section="lab1-receipt",
    hints=(
        "The cell that measures prints a text at its end. Have you run it to the end?",
        "Copy all lines between the quotation marks, from `attn1:` to the last one. Line "
        "breaks do no harm, missing characters do.",
        'Replace the dots by return """ and the lines, and close with """. If the check says '
        "that something is impossible, mend your stopwatch and measure again; if it says "
        "“measure again”, that is advice and costs nothing.",
    ),
    probes=lambda rng: {"the receipt": {}},
    small=lambda rng: iter(()),
    adapt=as_text,
    traits=receipt_traits,
)


@task.check(1)
def the_receipt_of_this_lab_can_be_read(answer):
    record_of(answer)


@task.check(1)
def the_prediction_was_made_before_the_first_measurement(answer):
    if not predicted_before(record_of(answer)):
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


# --- faults ---------------------------------------------------------------------------------------


def some_times(seconds, count=24):
    """Times that scatter like measured ones."""
    own = torch.Generator().manual_seed(int(1e7 * seconds) + count)
    scatter = torch.rand(count, generator=own, dtype=torch.float64) ** 4
    return [round(seconds * (1 + 0.05 * each), 9) for each in scatter.tolist()]


def some_record(
    lab="lab1_time_it_right", early=True, count=24, roof=6e10, kinds=("product", "copy"), speed=1
):
    """A record as this lab writes it, of a CPU with 60 GFLOP/s and 10 GB/s, or with one fault."""
    machine = {
        "device": "cpu", "name": "some CPU", "capability": None, "memory_bytes": 2**34,
        "l2_bytes": None, "threads": 1, "torch": "2.13.0+cpu", "python": "3.13.1", "cuda": None,
        "label": "CPU, 1 thread", "precision": "highest",
        "ceilings": {"flops_per_second": {"float32": roof}, "bytes_per_second": 1e10},
    }  # fmt: skip
    made = {"value": [0, -1, 1], "at": 0.5, "session": 1, "points": 0 if early else 6}
    points = []
    for kind in kinds:
        for n in (256, 512, 1024) if kind == "product" else (2**20, 2**24, 2**27):
            key, work = ("flops", 2 * n**3) if kind == "product" else ("bytes", 2 * n)
            rate = 6e10 * speed if kind == "product" else 1e10
            points.append({
                "name": kind, "n": n, "dtype": "float32", "clock": "cpu", "session": 1,
                "seconds": some_times(work / rate, count), key: work,
            })  # fmt: skip
    predictions = {} if early is None else {"timers": made}
    return {"lab": lab, "machine": machine, "predictions": predictions, "points": points}


@functools.cache
def some_receipt(**changes):
    return encode(some_record(**changes))


@task.fault(
    "L1-RECEIPT-CUT",
    thinks="The first line of the receipt is the receipt.",
    why="A receipt is one long text, broken into lines for the eye. Its own checksum says that "
    "characters are missing; copy all lines.",
)
def first_line_only():
    return some_receipt()[:76]


@task.fault(
    "L1-RECEIPT-FILE",
    thinks="The name of the file is enough; the rest can be looked up there.",
    why="The file lies on your machine, or in a Colab session that is gone tomorrow. What you hand "
    "in is the text that holds the samples.",
)
def name_of_the_file():
    return "lab1_time_it_right.CPU-1-thread-torch-2.13.0.jsonl"


@task.fault(
    "L1-RECEIPT-OTHER",
    thinks="A receipt is a receipt.",
    why="This one is of another lab, with other questions. Each lab prints its own at the end of "
    "its measurements.",
)
def of_another_lab():
    return some_receipt(lab="lab2_quadratic_wall")


@task.fault(
    "L1-RECEIPT-NO-PREDICTION",
    thinks="A prediction that may be wrong is better left out.",
    why="A wrong prediction costs no points, and a surprise is what one remembers. Without one, "
    "there is nothing that the measurement could surprise.",
)
def without_a_prediction():
    return some_receipt(early=None)


@task.fault(
    "L1-RECEIPT-LATE",
    thinks="The prediction can be filled in when the results are there.",
    why="Then it is no prediction. The record notes how many points had been measured, and it was "
    "more than none.",
)
def predicted_afterward():
    return some_receipt(early=False)


@task.fault(
    "L1-RECEIPT-ONCE",
    thinks="One sample for each size is enough for a roof.",
    why="A roof is a claim about what a machine can do. With one sample nobody can tell it from an "
    "accident.",
)
def one_sample_each():
    return some_receipt(count=1)


@task.fault(
    "L1-RECEIPT-HALF",
    thinks="The products are the interesting part.",
    why="A machine has two roofs, one for arithmetic and one for memory. Much of attention is "
    "bound by the second, so the copies are needed, too.",
    section="lab1-roofs",
)
def products_only():
    return some_receipt(kinds=("product",))


@task.fault(
    "L1-RECEIPT-SHEET",
    thinks="The roof of a machine is written in its data sheet.",
    why="That is what the chip could do in theory. Limits on power and heat keep real machines "
    "below, often far below, so a roof is measured, in the same session.",
    section="lab1-roofs",
)
def roof_from_a_data_sheet():
    return some_receipt(roof=2e11)


@task.fault(
    "L1-RECEIPT-LAUNCHES",
    thinks="A very fast machine is good news.",
    why="No machine of this kind computes that fast. A clock that stops before the work is done "
    "gives such numbers, and so does a wrong unit.",
)
def faster_than_any_machine():
    return some_receipt(speed=1e4, roof=6e14)
