"""What became of one submission: plain data, which needs no torch."""

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from attncourse.grading.inbox.submission import Assignment

if TYPE_CHECKING:
    from attncourse.checks.report import Report


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
    reports: dict[str, "tuple[Report, Report]"] = field(default_factory=dict, repr=False)

    @property
    def score(self) -> float:
        """Points without the written answers."""
        return sum(each.visible + each.hidden for each in self.verdicts.values())

    def as_data(self) -> dict:
        data = asdict(replace(self, reports={}))
        del data["reports"], data["said"]
        return data

    @classmethod
    def from_data(cls, data: dict) -> "Result":
        verdicts = {task: Verdict(**each) for task, each in data["verdicts"].items()}
        return cls(**data | {"verdicts": verdicts})


def nothing(about: Assignment, reason: str) -> Result:
    """The result of a submission that could not be judged."""
    verdicts = {g.task: Verdict(0, 0, g.points, "not readable") for g in about.graded}
    return Result(verdicts, review=[reason])
