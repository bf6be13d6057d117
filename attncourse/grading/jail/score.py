"""The points of one submission that was read: plain data comes out, nothing else is touched."""

import re
import time

from attncourse.checks import engine, registry
from attncourse.checks.diagnosis import AND
from attncourse.checks.report import Report
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.submission import Assignment, Submission
from attncourse.grading.inbox.untrusted import printable
from attncourse.grading.jail.job import Budget
from attncourse.grading.jail.remote import RemoteAnswer, Sandbox, Zygote
from attncourse.grading.jail.result import Result, Verdict

LONGEST, MOST = 500, 100  # characters of a note, notes of each kind
LONGEST_TEXT = 100_000  # characters of a written answer
# What a machine says that is short of something: an answer can provoke it, too.
_SHORT = re.compile(
    "MemoryError|(?:can't|Cannot) allocate memory|Too many open files|No space left on device|"
    "can't start new thread|Resource temporarily unavailable|Disk quota exceeded"
)


def score(found: Submission, about: Assignment, zygote: Zygote, budget: Budget) -> Result:
    """Judge the answers in a notebook; every submission gets points or a reason.

    Raises:
        Unavailable: no jail can be built on this machine.
    """
    started = time.monotonic()
    result = Result(texts=found.texts, repairs=[*found.repairs], review=[*found.review])
    sandbox = Sandbox(zygote, about.tasks, found.code, budget, about.allowed)
    _judge(found, about, sandbox, result)
    _make_printable(result)
    result.seconds = round(time.monotonic() - started, 3)
    return result


def _make_printable(result: Result) -> None:
    """Clean every text of a result, which goes to terminals, logs, tables and the gradebook."""
    for verdict in result.verdicts.values():
        verdict.title = printable(verdict.title)
        verdict.failed = [printable(name) for name in verdict.failed]
        for name in ("thinks", "why", "report"):
            setattr(verdict, name, printable(getattr(verdict, name), lines=True))
    result.texts = {name: text[:LONGEST_TEXT] for name, text in result.texts.items()}
    result.repairs = [printable(note)[:LONGEST] for note in result.repairs[:MOST]]
    result.review = [printable(note)[:LONGEST] for note in result.review[:MOST]]


def _judge(found: Submission, about: Assignment, sandbox: Sandbox, result: Result) -> None:
    result.review += reading.odd_code(found.code, list(map(registry.find, about.tasks)))
    try:
        for each in about.graded:
            task = each.task
            answer = RemoteAnswer(sandbox, task)
            if task not in sandbox.defined:
                answer = None
            elif sandbox.defined[task]:
                answer = sandbox.defined[task]  # not callable: the judge says so
            report, hidden = engine.run_each(task, answer, (0, each.seed))
            result.reports[task] = report, hidden
            verdict = result.verdicts[task] = _verdict(report, hidden, each.points)
            if answer is None and (why := _why_not(found, task, sandbox.problems)):
                verdict.title += f" ({why})"
            if not sandbox.whole and (answer is None or "NameError" in verdict.report):
                sandbox.review.append(f"`{task}` may need what was left out of its cells")
            sandbox.look_behind()
            sandbox.provide(task, rebind=not report.passed)
        result.repairs += dict.fromkeys(sandbox.notes)
        result.review += dict.fromkeys(sandbox.review)
        result.disturbed, result.stood = sandbox.disturbed, sandbox.stood
        said = [*sandbox.problems.values(), *(each.report for each in result.verdicts.values())]
        short = _SHORT.search("\n".join(said))
        result.doubt = sandbox.doubt or (f"an answer met “{short[0]}”" if short else "")
        if sandbox.said is not None:
            result.said = sandbox.said | sandbox.problems.keys()
        for label, problem in sandbox.problems.items():
            result.repairs.append(f"{label}: {problem}")
    finally:
        sandbox.close()


def _why_not(found: Submission, task: str, problems: dict[str, str]) -> str:
    """The error of the last cell that should define an answer; "" if none fails."""
    cells = (label for label, source, _ in found.code if task in reading.defined_in(source))
    why = next((problems[label] for label in reversed([*cells]) if label in problems), "")
    return printable(why.replace(AND, "+"))[:100]


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
