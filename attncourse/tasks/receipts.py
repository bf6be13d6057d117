"""What the checks of several labs share: how a student's receipt is read."""

from attncourse.checks.answer import Answer, Failure, Unanswered, describe
from attncourse.checks.observe import Unusable
from attncourse.lab.audit import IMPOSSIBLE, INCONSISTENT, Finding, audit
from attncourse.lab.receipts import ReceiptError, decode


def as_text(receipt):
    """An `adapt`: what the answer returned, as a list of one text."""

    def function():
        text = receipt()
        if text is None:
            return None
        if not isinstance(text, str):
            raise Unusable(f"returned {describe(text)}; the receipt is a text in quotes.")
        return [str(text)]

    return function


def read(answer: Answer) -> dict:
    """The record in the receipt, of whatever lab, or a Failure that says why it cannot be read."""
    (text,) = answer({})
    if not text.strip():
        raise Unanswered("The receipt is empty.")
    try:
        return decode(text)
    except ReceiptError as error:
        raise Failure(f"The receipt cannot be read: {error}") from None


def record_of(answer: Answer) -> dict:
    """The record of the answer's lab, or a Failure: of another one there is nothing more to say."""
    record, lab = read(answer), answer.task.chapter
    if record["lab"] != lab:
        raise Failure(f'This receipt is of "{record["lab"]}"; paste the one of {lab}.')
    return record


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
