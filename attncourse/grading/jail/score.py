"""The points of one submission that was read: plain data comes out, nothing else is touched."""

import time
from dataclasses import asdict, dataclass, field, replace

from attncourse.checks import engine
from attncourse.checks.report import Report
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import Assignment, Submission
from attncourse.grading.inbox.untrusted import printable
from attncourse.grading.jail.remote import Budget, RemoteAnswer, Sandbox, Zygote

LONGEST, MOST = 500, 100  # characters of a note, notes of each kind
LONGEST_TEXT = 100_000  # characters of a written answer


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
    texts: dict[str, str] = field(default_factory=dict)  # written answers, for a person to read
    repairs: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)
    disturbed: str = ""  # why it must be judged again, by no fault of the answers
    seconds: float = 0.0
    # What stands in the record, by task: of the visible and of the hidden check. Not kept as data.
    reports: dict[str, tuple[Report, Report]] = field(default_factory=dict, repr=False)

    @property
    def score(self) -> float:
        """Points without the written answers."""
        return sum(each.visible + each.hidden for each in self.verdicts.values())

    def as_data(self) -> dict:
        data = asdict(replace(self, reports={}))
        del data["reports"]
        return data

    @classmethod
    def from_data(cls, data: dict) -> "Result":
        verdicts = {task: Verdict(**each) for task, each in data["verdicts"].items()}
        return cls(**data | {"verdicts": verdicts})


def nothing(about: Assignment, reason: str) -> Result:
    """The result of a submission that could not be judged."""
    verdicts = {g.task.name: Verdict(0, 0, g.points, "not readable") for g in about.graded}
    return Result(verdicts, review=[reason])


def score(found: Submission, about: Assignment, zygote: Zygote, budget: Budget) -> Result:
    """Judge the answers in a notebook; every submission gets points or a reason.

    Raises:
        Unavailable: no jail can be built on this machine.
    """
    started = time.monotonic()
    result = Result(texts=found.texts, repairs=[*found.repairs], review=[*found.review])
    allowed = reading.named_in(about.released.values())
    sandbox = Sandbox(zygote, about.tasks, found.code, budget, allowed)
    _judge(found, about, sandbox, result)
    _make_printable(result)
    result.seconds = round(time.monotonic() - started, 3)
    return result


def _make_printable(result: Result) -> None:
    """From here on it goes to terminals, logs, tables and the gradebook."""
    for verdict in result.verdicts.values():
        verdict.title = printable(verdict.title)
        verdict.failed = [printable(name) for name in verdict.failed]
        for name in ("thinks", "why", "report"):
            setattr(verdict, name, printable(getattr(verdict, name), lines=True))
    result.texts = {name: text[:LONGEST_TEXT] for name, text in result.texts.items()}
    result.repairs = [printable(note)[:LONGEST] for note in result.repairs[:MOST]]
    result.review = [printable(note)[:LONGEST] for note in result.review[:MOST]]


def _judge(found: Submission, about: Assignment, sandbox: Sandbox, result: Result) -> None:
    result.review += reading.odd_code(found.code, [each.task for each in about.graded])
    try:
        for each in about.graded:
            task = each.task
            answer = RemoteAnswer(sandbox, task.name)
            if task.name not in sandbox.defined:
                answer = None
            elif sandbox.defined[task.name]:
                answer = sandbox.defined[task.name]  # not callable: the judge says so
            report, hidden = engine.run_each(task.name, answer, (0, each.seed))
            result.reports[task.name] = report, hidden
            verdict = result.verdicts[task.name] = _verdict(report, hidden, each.points)
            if not sandbox.whole and (answer is None or "NameError" in verdict.report):
                sandbox.review.append(f"`{task.name}` may need what was left out of its cells")
            sandbox.look_behind()
            sandbox.provide(task.name, rebind=not report.passed)
        result.repairs += dict.fromkeys(sandbox.notes)
        result.review += dict.fromkeys(sandbox.review)
        result.disturbed = sandbox.disturbed
        for label, problem in sandbox.problems.items():
            result.repairs.append(f"{label}: {problem}")
    finally:
        sandbox.close()


def _verdict(visible: Report, hidden: Report, points: float) -> Verdict:
    worse = visible if not visible.passed else hidden
    verdict = Verdict(visible.earned, hidden.earned, points, report=str(worse))
    if worse.passed:
        return verdict
    verdict.failed = [result.name for result in worse.results if not result.passed]
    if found := worse.diagnosis:
        verdict.title, verdict.thinks, verdict.why = found.title, found.thinks, found.why
        verdict.section = found.section
    return verdict
