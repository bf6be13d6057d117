"""What became of one submission: plain data, which needs no torch."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from attncourse.grading.inbox.submission import Assignment

if TYPE_CHECKING:
    from attncourse.checks.report import Report

T = TypeVar("T")


NOT_READABLE = "not readable"  # what stands for an answer in a file that is no notebook


@dataclass
class Verdict:
    """What became of one answer."""

    visible: float  # points of the check that the student can run
    hidden: float  # of the same checks on fresh numbers
    points: float  # the most for each of the two
    title: str = ""  # the misconception's id, or a few words; "" if the answer is right
    thinks: str = ""
    why: str = ""
    section: str = ""  # anchor in the book
    failed: list[str] = field(default_factory=list)  # names of the checks
    report: str = ""  # as the student would see it


@dataclass
class Result:
    """What became of one submission."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by task
    texts: dict[str, str] = field(default_factory=dict)  # written answers, "" where there is none
    repairs: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)
    disturbed: str = ""  # why it must be judged again, by no fault of the answers
    seconds: float = 0.0
    # For the record, and not kept as data. Labels of cells that fail, print or draw something, or
    # None if that is not known; the reports, by task, of the visible and of the hidden check.
    said: set[str] | None = field(default=None, repr=False)
    doubt: str = field(default="", repr=False)  # what a broken machine may have done as well
    stood: bool = field(default=False, repr=False)  # a child was late and had not computed
    reports: dict[str, "tuple[Report, Report]"] = field(default_factory=dict, repr=False)

    @property
    def score(self) -> float:
        """Points without the written answers."""
        return sum(each.visible + each.hidden for each in self.verdicts.values())

    @property
    def readable(self) -> bool:
        """Whether there was a notebook to judge."""
        return any(each.title != NOT_READABLE for each in self.verdicts.values())

    def as_data(self) -> dict:
        data = asdict(replace(self, reports={}))
        for name in ("reports", "said", "doubt", "stood"):
            del data[name]
        return data

    @classmethod
    def from_data(cls, data: dict) -> "Result":
        """What `as_data` made.

        Raises:
            TypeError: it is something else.
        """
        if not _is(data.get("verdicts"), dict[str, dict]):
            raise TypeError("there are no verdicts")
        verdicts = {task: _made(Verdict, each) for task, each in data["verdicts"].items()}
        return _made(cls, data | {"verdicts": verdicts})


def _made(kind: type[T], data: dict[str, Any]) -> T:
    for each in fields(kind):
        if each.name in data and not _is(data[each.name], each.type):
            raise TypeError(f"{each.name} is no {each.type}")
    return kind(**data)


def _is(value: object, kind: Any) -> bool:
    """Whether data is what an annotation says."""
    inner = get_args(kind)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is(each, inner[0]) for each in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_is(each, inner[1]) for each in value.values())
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return isinstance(value, kind)


def nothing(about: Assignment, reason: str) -> Result:
    """The result of a submission that could not be judged."""
    verdicts = {g.task: Verdict(0, 0, g.points, NOT_READABLE) for g in about.graded}
    return Result(verdicts, review=[reason])
