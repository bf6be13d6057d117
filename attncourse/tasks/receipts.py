"""The receipts of labs: how they are read, what all of them promise, and what may be wrong."""

import functools
from collections.abc import Callable

from attncourse.checks.answer import Answer, Failure, Unanswered, describe, following, left_open
from attncourse.checks.observe import Unusable
from attncourse.checks.task import Task
from attncourse.lab.audit import IMPOSSIBLE, INCONSISTENT, Finding, audit
from attncourse.lab.receipts import ReceiptError, decode, encode


def is_text(receipt):
    """An `adapt`: whether the answer returned a text; which one is no evidence on a mistake."""

    def function():
        text = receipt()
        if text is None or text is ...:
            return None
        if not isinstance(text, str):
            raise Unusable(f"returned {describe(text)}; the receipt is a text in quotes.")
        return {"is text": True}

    return function


def as_text(receipt):
    """An `adapt`: what the answer returned."""

    def function():
        text = receipt()
        return {"text": str(text)} if isinstance(text, str) else is_text(lambda: text)()

    return function


TASK = {  # what the tasks of all receipts say of themselves
    "returns": dict,
    "difficulty": 1,
    "minutes": 5,
    "probes": lambda rng: {"receipt": {}},
    "small": lambda rng: iter(()),
    "adapt": is_text,
}


# --- what a receipt says ------------------------------------------------------------------------


def read(answer: Answer) -> dict:
    """The record in the receipt, of whatever lab, or a Failure that says why it cannot be read."""
    text = answer({}, adapt=as_text)["text"]
    if not text.strip():
        raise Unanswered("The receipt is empty.")
    try:
        return decode(text)
    except ReceiptError as error:
        raise Failure(f"The receipt cannot be read: {error}") from None


def record_of_this_lab(answer: Answer) -> dict:
    """The record of the answer's lab, or a Failure that says why there is none."""
    record, lab = read(answer), answer.task.chapter
    if record["lab"] != lab:
        raise Failure(f'This receipt is of "{record["lab"]}"; paste the one of {lab}.')
    return record


def record_of(answer: Answer) -> dict:
    """The same for a check of what is in it: without a record, that stays open."""
    with left_open():
        return record_of_this_lab(answer)


def timed(record: dict, name: str, **having) -> dict[int, dict]:
    """n -> point, of what has that name and a time."""
    wanted = {"name": name} | having
    return {
        point["n"]: point
        for point in record["points"]
        if all(point.get(key) == value for key, value in wanted.items())
        and point.get("n")
        and point.get("seconds")
        and not point.get("error")
    }


def grave(record: dict) -> list[Finding]:
    """What the audit finds impossible or inconsistent."""
    return [each for each in audit(record) if each.severity in (IMPOSSIBLE, INCONSISTENT)]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_something(value: object) -> bool:
    return value not in (None, "", [])


def _guesses(record: dict, names: tuple[str, ...], fits: Callable) -> dict[str, dict]:
    made = {name: record["predictions"].get(name) for name in names}
    return {
        name: each
        for name, each in made.items()
        if isinstance(each, dict) and fits(each.get("value"))
    }


def _late(guess: dict) -> bool:
    return guess.get("points") != 0


def not_predicted(record: dict, names: tuple[str, ...], fits: Callable = is_number) -> list[str]:
    """What has no fitting prediction from before the first measurement."""
    made = _guesses(record, names, fits)
    return [name for name in names if name not in made or _late(made[name])]


AUDITED = (
    *("units", "faster_than_peak", "faster_than_memory", "launch_time", "overlap", "edited"),
    "far_above_ceiling",
    *("out_of_memory_as_time", "peak_not_reset", "reserved_not_allocated", "wrong_result"),
    *("too_regular", "too_few_samples", "copied_samples", "warm_up_counted", "not_interleaved"),
    *("mixed_dtypes", "math_called_flash", "backend_impossible", "grad_on", "clock_mismatch"),
)
UNREADABLE = ("empty", "cut off", "changed on the way", "no receipt here")


def traits(own: Callable[[dict], dict], names: tuple[str, ...], fits: Callable = is_number):
    """Evidence on a receipt, as a task wants it; `own` is what else its lab looks at."""

    def found(answer):
        try:
            record = read(answer)
        except Failure as failure:
            return {"readable": False, **{said: said in str(failure) for said in UNREADABLE}}
        if record["lab"] != answer.task.chapter:  # whatever else differs follows from that
            return {"readable": True, "of this lab": False}
        made, grave_names = _guesses(record, names, fits), {each.name for each in grave(record)}
        return {
            **{"readable": True, **dict.fromkeys(UNREADABLE, False), "of this lab": True},
            "predicted": len(made) == len(names),
            "predicted in time": not any(map(_late, made.values())),
            "time for all samples": _long_enough(record),
            "samples differ": all(len({*p["seconds"], 0}) != 2 for p in record["points"]),
            **own(record),
            **{f"audit: {name}": name in grave_names for name in AUDITED},
        }

    return found


def _long_enough(record: dict) -> bool:
    """Whether all samples can have fit between the first start and the last, on three cores."""
    starts = [each for point in record["points"] for each in point.get("started") or ()]
    total = sum(sum(point["seconds"]) for point in record["points"])
    return not starts or total < 3 * (max(starts) - min(starts))


# --- wrong receipts -----------------------------------------------------------------------------


def pasted(record: Callable[..., dict], edit: Callable | None = None, **options) -> Callable:
    """An answer: the receipt of a record, after `edit` changed it (or made another of it)."""

    @functools.cache
    def receipt():
        made = record(**options)
        return encode(made if edit is None else edit(made) or made)

    return receipt


def points(*names: str, where: Callable = bool, **changes) -> Callable:
    """An edit: other values in the points of these names, or in all; a function gets the point."""

    def edit(record):
        for point in record["points"]:
            if where(point) and (not names or point["name"] in names):
                made = {k: v(point) if callable(v) else v for k, v in changes.items()}
                point |= made

    return edit


def only(where: Callable) -> Callable:
    """An edit: the points of which something holds."""
    return lambda record: record | {"points": list(filter(where, record["points"]))}


def times(factor: float) -> Callable:
    """An edit: all samples times a number."""
    return points(seconds=lambda point: [factor * each for each in point["seconds"]])


def one_after_the_other(record):
    now = 2.0
    for name in dict.fromkeys(point["name"] for point in record["points"]):
        for point in record["points"]:
            if point["name"] == name and point["seconds"]:
                point["started"] = [now + i * 0.5 for i in range(len(point["seconds"]))]
                now += 20.0


def _afterward(record):
    for made in record["predictions"].values():
        made["points"] = len(record["points"])


def _forgotten(place: int) -> Callable:
    def edit(record):
        del record["predictions"][list(record["predictions"])[place]]

    return edit


def shared(
    task: Task,
    record: Callable[..., dict],
    predicted: tuple[str, ...],
    fits: Callable = is_number,
    *,
    evidence: Callable[[dict], dict],
    own: dict[str, str | None] | None = None,
    predict: str = "",
    few: int = 3,
    checks: bool = True,
) -> None:
    """Give the task of a receipt what all of them have: evidence, checks and faults.

    The lab's own checks, which stand before this call, get their place between the shared ones.

    Args:
        record: makes a right record; takes `samples`.
        predicted: names of its predictions.
        fits: whether a value is one of those.
        evidence: what only this lab looks at, of a record.
        own: the lab's own id of a shared fault; None: it cannot occur.
        predict: the section on predictions.
        few: samples of a point that has too few.
        checks: whether it has the usual checks, or all of its own.
    """
    task.traits = traits(evidence, predicted, fits)
    if checks:
        _checks(task, predicted, fits)
    letters = task.reference.__name__.removesuffix("_receipt").replace("lab", "L")

    def fault(id, *answers, section=""):
        ours = (own or {}).get(id, f"{letters}-{id}")
        if ours is not None:
            task.fault(ours, words=id, section=section, forms=answers)

    def cut(piece):
        return functools.cache(lambda: piece(encode(record())))

    @functools.cache
    def changed():
        text = encode(record())
        return text[:500] + ("a" if text[500] != "a" else "b") + text[501:]

    def file_name():
        return f"{task.chapter}.CPU-1-thread-torch-2.13.0.jsonl"

    other = "lab2_quadratic_wall" if letters != "L2" else "lab1_time_it_right"
    each = [pasted(record, _forgotten(place)) for place in range(len(predicted) > 1)]
    pieces = (lambda text: text[:-300], lambda text: text[: len(text) // 2], lambda text: text[:76])
    fault("CUT-OFF", *map(cut, pieces))
    fault("DAMAGED", changed)
    fault("FILE", file_name)
    fault("OTHER-LAB", pasted(record, lambda made: made | {"lab": other}))
    none = pasted(record, lambda made: made | {"predictions": {}})
    fault("NO-PREDICTION", none, *each, section=predict)
    fault("AFTERWARD", pasted(record, _afterward), section=predict)
    fault("MILLISECONDS", pasted(record, times(1e3)))
    fault("TOO-FAST", pasted(record, times(1e-4)))
    fault("ONE-AFTER-THE-OTHER", pasted(record, one_after_the_other))
    fault("THREE-SAMPLES", pasted(record, samples=few))
    equal = points(seconds=lambda point: len(point["seconds"]) * point["seconds"][:1])
    fault("MADE-UP", pasted(record, equal))
    fault("WRONG-RESULT", pasted(record, points(reference_error=0.3)))


def _checks(task: Task, predicted: tuple[str, ...], fits: Callable) -> None:
    between = dict(task.checks)
    task.checks.clear()

    @task.check(1)
    def the_receipt_can_be_read(answer):
        read(answer)

    @task.check(1)
    def it_is_the_receipt_of_this_lab(answer):
        with following(lambda: read(answer)):
            record_of_this_lab(answer)

    @task.check(2)
    def predictions_were_written_before_the_first_measurement(answer):
        missing = not_predicted(record_of(answer), predicted, fits)
        if missing:
            kind, yours = ("", "predictions")
            if fits is is_number:
                kind, yours = " as a number", "numbers"
            raise Failure(
                f"Not predicted{kind} before the first measurement: {', '.join(missing)}. A "
                "prediction need not be right; it has to come first. Move the .jsonl file away, "
                f"write your {yours} and measure again."
            )

    task.checks |= between

    @task.check(4)
    def the_audit_finds_nothing_impossible_or_inconsistent(answer):
        all_possible(record_of(answer))


def all_possible(record: dict) -> None:
    """Assert that the audit finds nothing impossible or inconsistent."""
    found = grave(record)
    if found:
        more = f" And {len(found) - 1} more like it." if len(found) > 1 else ""
        raise Failure(f"{found[0]}{more}")
