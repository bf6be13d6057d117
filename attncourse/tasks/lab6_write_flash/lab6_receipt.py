from attncourse.checks.answer import Failure
from attncourse.checks.task import Task
from attncourse.lab import lab6_write_flash as reference
from attncourse.lab.roofline import attention_flops
from attncourse.tasks import made_up, receipts
from attncourse.tasks.receipts import grave, pasted, record_of

PREDICTED = ("best tile",)


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


def with_work(record) -> dict:
    """The record with the operations of each point, which no point of this lab says itself."""
    made = []
    for point in record["points"]:
        n, h, d = (point.get(key) or 0 for key in "nhd")
        made.append(point | {"flops": point.get("flops") or attention_flops(1, h, n, d)})
    return record | {"points": made}


task = Task(
    reference.lab6_receipt,
    number=5,
    section="measure",
    **receipts.TASK,
)


@task.check(1)
def it_is_a_receipt_of_this_lab(answer):
    receipts.record_of_this_lab(answer)


@task.check(1)
def tiles_are_swept_with_naive_and_fused_beside_them(answer):
    missing = is_a_sweep(record_of(answer))
    if missing:
        raise Failure(missing)


@task.check(1)
def the_best_tile_was_predicted_before_measuring(answer):
    if receipts.not_predicted(record_of(answer), PREDICTED, receipts.is_something):
        raise Failure(
            'There is no prediction of the "best tile" from before the first measurement. It '
            "need not be right; run the predicting cell first, then measure."
        )


@task.check(2)
def the_audit_finds_nothing_impossible_or_inconsistent(answer):
    receipts.all_possible(with_work(record_of(answer)))


def evidence(record):
    return {
        "no sweep": bool(is_a_sweep(record)),
        "possible speed": len(grave(with_work(record))) == len(grave(record)),
    }


def a_record(
    machine=made_up.CPU,
    sizes=(512, 1024, 2048),
    tiles=(32, 64, 128, 256, 512),
    lost=(),
    predicted=128,
    **how,
):
    """A record as this machine could have measured it; naive attention has `lost` some n."""

    def group(n):
        costs = [("naive", 2.0, {}), ("fused", 0.8, {})]
        costs += [("tiled", 1 + 64 / tile, {"tile": tile}) for tile in tiles if tile <= n]
        for name, cost, more in costs:
            error = "out of memory" if name == "naive" and n in lost else None
            point = {"name": name, "n": n, "h": 1, "d": 64, "error": error} | more
            yield point | {"seconds": 4e-9 * n * n * cost}

    guesses = {"best tile": predicted}
    return made_up.record("lab6_write_flash", machine, guesses, map(group, sizes), **how)


# --- faults -------------------------------------------------------------------------------------

receipts.shared(
    task,
    a_record,
    PREDICTED,
    receipts.is_something,
    evidence=evidence,
    checks=False,
)
task.fault("L6-NO-SWEEP", forms=[pasted(a_record, tiles=(128, 256))])
