"""lab6_receipt."""

import random

from attncourse.checks.answer import Failure, Unanswered
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.lab.audit import audit, passed, summary
from attncourse.lab.receipts import ReceiptError, decode, encode
from attncourse.tasks.lab6_write_flash import nothing


def kind_of(answer):
    """Whether there is text; None if nothing was handed in."""

    def look():
        text = answer()
        return None if text is None else {"is text": isinstance(text, str)}

    return look


def text_of(answer):
    return lambda: {"receipt": answer()}


def read(answer) -> dict:
    """The record that was handed in, or a Failure that says what to do."""
    seen = answer.observe({}, adapt=text_of)
    text = seen.returned.get("receipt") if isinstance(seen.returned, dict) else None
    if seen.error:
        raise Failure(f"Your answer {seen.error}")
    if text is None or text == "":
        raise Unanswered("There is no receipt yet.")
    if not isinstance(text, str):
        raise Failure("`lab6_receipt()` returns the receipt as text, in quotes.")
    try:
        return decode(text)
    except ReceiptError as error:
        raise Failure(f"The receipt cannot be read: {error}") from None


def record_of(answer) -> dict:
    """The record of this lab, or a Failure: of another one there is nothing more to say."""
    record = read(answer)
    if record["lab"] != "lab6_write_flash":
        raise Failure(f"This is a receipt of {record['lab'] or 'no lab'}, not of this one.")
    return record


def tiles_at(record) -> dict[int, set]:
    """n -> tiles with a time or with an error that says why there is none."""
    found: dict[int, set] = {}
    for point in record["points"]:
        known = point.get("seconds") or point.get("error")
        if point["name"] == "tiled" and point.get("tile") and point.get("n") and known:
            found.setdefault(point["n"], set()).add(point["tile"])
    return found


def is_a_sweep(record) -> str:
    """What is missing, in words; "" if nothing is."""
    tiles = tiles_at(record)
    if not tiles:
        return 'There is no point named "tiled" with a tile and an n.'
    n = max(tiles)
    if len(tiles[n]) < 4 or max(tiles[n]) < 8 * min(tiles[n]):
        return (
            f"At n = {n:g} there are {len(tiles[n])} tile sizes. A curve needs 4 or more, and "
            "the largest at least 8 times the smallest."
        )
    if len(tiles) < 3:
        return f"There are {len(tiles)} lengths; with 3 or more one sees what grows."
    for name in ("naive", "fused"):
        beside = [
            point
            for point in record["points"]
            if point["name"] == name and point.get("n") == n
            and (point.get("seconds") or point.get("error"))
        ]  # fmt: skip
        if not beside:
            return f"At n = {n:g} there is no {name} attention beside the tiles."
    return ""


def predicted(record) -> bool:
    made = record["predictions"].get("best tile")
    return isinstance(made, dict) and made.get("value") is not None and not made.get("points")


def receipt_traits(answer):
    try:
        record = read(answer)
    except Failure:
        return {"cannot be read": True}
    return {
        "cannot be read": False,
        "another lab": record["lab"] != "lab6_write_flash",
        "no sweep": bool(is_a_sweep(record)),
        "no prediction": not predicted(record),
        "audit": not passed(audit(record)),
    }


task = Task(
    reference.lab6_receipt,
    number=5,
    returns=dict,
    difficulty=1,
    minutes=5,
    section="measure",
    hints=(
        "Run the cell that predicts and the cell that measures, from the top. At its end, the "
        "second one prints the receipt.",
        "Copy all of the text between the three quotes, from attn1: to its last character, "
        "and paste it between three quotes here, after `return`.",
        'return """attn1:… (all lines as printed) …""". If the audit complains about a '
        "point, measure that one again: rename the .jsonl file beside the notebook first.",
    ),
    probes=lambda rng: {"receipt": {}},
    small=nothing,
    adapt=kind_of,
    traits=receipt_traits,
)


@task.check(1)
def it_is_a_receipt_of_this_lab(answer):
    record_of(answer)


@task.check(1)
def tiles_are_swept_with_naive_and_fused_beside_them(answer):
    missing = is_a_sweep(record_of(answer))
    if missing:
        raise Failure(missing)


@task.check(1)
def the_best_tile_was_predicted_before_measuring(answer):
    if not predicted(record_of(answer)):
        raise Failure(
            'There is no prediction of the "best tile" from before the first measurement. It '
            "need not be right; run the predicting cell first, then measure."
        )


@task.check(2)
def nothing_in_it_is_impossible_or_contradicts_itself(answer):
    findings = audit(record_of(answer))
    if not passed(findings):
        raise Failure(summary(findings))


# --- faults ---------------------------------------------------------------------------------------


def receipt_of(lab="lab6_write_flash", tiles=(32, 64, 128, 256, 512), predicted=True, alike=False):
    """A receipt made up for the tests: from no machine at all."""
    chance = random.Random(6)
    machine = {"device": "cpu", "name": "none", "threads": 1, "torch": "2.13.0+cpu"}
    machine |= {"label": "CPU, 1 thread", "python": "3.13.1", "ceilings": None}
    points, clock = [], 1.0
    for n in (512, 1024, 2048):
        rivals = [("naive", {}), ("fused", {}), *(("tiled", {"tile": tile}) for tile in tiles)]
        rows = [[] for _ in rivals]
        starts = [[] for _ in rivals]
        for _ in range(20):
            for seconds, started in zip(rows, starts, strict=True):
                seconds.append(0.01 if alike else 2e-9 * n * n * chance.uniform(1.0, 1.1))
                started.append(clock)
                clock += 2 * seconds[-1] + 1e-3
        for (name, keys), seconds, started in zip(rivals, rows, starts, strict=True):
            point = {"name": name, "n": n, "seconds": seconds, "started": started, "clock": "cpu"}
            points.append(point | keys | {"dtype": "float32", "error": None, "wall_over_cpu": 1.0})
    made = {"value": 128, "at": 1.0, "session": 0, "points": 0}
    predictions = {"best tile": made} if predicted else {}
    return encode({"lab": lab, "machine": machine, "predictions": predictions, "points": points})


@task.fault(
    "L6-CUT-OFF",
    thinks="The first lines of the receipt are enough.",
    why="The receipt says how long it is and carries a checksum of all of it. Copy everything "
    "between the quotes, to the last character.",
)
def first_half():
    receipt = receipt_of()
    return receipt[: len(receipt) // 2]


@task.fault(
    "L6-OTHER-LAB",
    thinks="Any receipt will do.",
    why="This one is from another lab, or from a record opened under another name. Here the sweep "
    "over tiles is wanted.",
)
def of_another_lab():
    return receipt_of(lab="lab2_quadratic_wall")


@task.fault(
    "L6-NO-SWEEP",
    thinks="One good tile size is enough.",
    why="Then nobody can see whether it is good: a best is best of several. Measure sizes from far "
    "too small to too large.",
)
def two_tiles():
    return receipt_of(tiles=(128, 256))


@task.fault(
    "L6-NO-PREDICTION",
    thinks="A prediction is written when the result is known.",
    why="Then it predicts nothing. The worth of a prediction is the surprise afterward; being "
    "wrong costs no points.",
)
def nothing_predicted():
    return receipt_of(predicted=False)


@task.fault(
    "L6-MADE-UP",
    thinks="Every sample is the same number, so the result is clear.",
    why="No clock gives the same time twenty times over. Hand in what was measured, noise and all: "
    "noise costs no points.",
)
def no_noise():
    return receipt_of(alike=True)
