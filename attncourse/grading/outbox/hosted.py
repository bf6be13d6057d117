"""One submission on somebody else's grader: found, judged as in a class, and told in its words.

    python -m attncourse.grading.outbox.hosted PLATFORM COURSE SUBMITTED [RESULTS]

`attncourse export-grader` writes what starts this. COURSE holds the solution and the release of one
assignment, SUBMITTED what a student handed in; RESULTS is the file that the platform reads.

Three things can come out. Points; a sentence, where nothing of the assignment was handed in; or
that nothing was graded, by no fault of the student's, which each platform is told in a way that is
no zero there.
"""

import base64
import contextlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from attncourse.grading import Refusal
from attncourse.grading.books import disk
from attncourse.grading.inbox import archives, ingest
from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox.cells import MARKER, source_of
from attncourse.grading.inbox.untrusted import TooMuch, limited, limited_memory, printable
from attncourse.grading.inbox.writing import write
from attncourse.grading.jail import workers
from attncourse.grading.jail.cures import cure_for, in_words
from attncourse.grading.jail.job import DEFAULT, Budget
from attncourse.grading.jail.result import Result
from attncourse.grading.jail.walls import Unavailable

SECONDS = 540.0  # for one submission: all platforms are asked for a minute more
NOT_GRADED = "Not graded, by no fault of yours: tell your teacher. It costs no attempt."


class NotGraded(Exception):
    """The machine could not judge; says why."""


@dataclass(frozen=True)
class Line:
    """One row of what a platform shows: a task's points on the numbers of one check."""

    name: str
    earned: float
    most: float
    report: str = ""
    hidden: bool = False  # the numbers that no student has seen


@dataclass(frozen=True)
class Outcome:
    """What became of a submission."""

    lines: list[Line]
    said: list[str] = field(default_factory=list)  # to the student
    told: list[str] = field(default_factory=list)  # to the teacher
    refused: bool = False  # nothing that could be judged was handed in

    @property
    def earned(self) -> float:
        return sum(line.earned for line in self.lines)

    @property
    def most(self) -> float:
        return sum(line.most for line in self.lines)


def grade(course: Path, submitted: Path, budget: Budget = DEFAULT) -> Outcome:
    """Find a notebook among what was handed in, and judge it by the road of `attncourse grade`.

    Where no jail can be built, the answers are judged without: a platform runs each submission in
    a container of its own. The teacher is told.

    Raises:
        NotGraded: the machine could not judge.
    """
    try:
        with contextlib.chdir(course):
            (name,) = (path.name for path in Path("solutions").iterdir() if path.is_dir())
            desk = ingest.Desk(ingest.Course.here(), "student", name)
            jobs = [disk.job_of(name, jail, budget, record=False) for jail in (True, False)]
        with limited_memory():
            data, odd = _chosen(submitted, desk)
        with limited(SECONDS):
            reply, told = None, []
            for job in jobs:
                try:
                    reply = workers.in_own_process(job, data) if data else odd
                    break
                except Unavailable as error:
                    told = [f"judged without a jail, which cannot be built here: {error}"]
    except TooMuch:
        raise NotGraded(f"it takes more than {SECONDS:.0f} seconds") from None
    except OSError as error:
        raise NotGraded(in_words(error)) from None
    except (Refusal, Unavailable) as error:
        raise NotGraded(str(error)) from None
    if isinstance(reply, str):
        raise NotGraded(reply)
    if not data:
        nothing = [
            Line(each.task, 0.0, each.points, hidden=hidden)
            for each in jobs[0].about.graded
            for hidden in (False, True)
        ]
        return Outcome(nothing, odd, refused=True)
    result = Result.from_data(reply["result"])
    questions = jobs[0].about.questions
    waiting = [f"`{each}` waits for a person ({questions[each]:g} points)" for each in questions]
    said = [*odd, *result.repairs, *waiting]
    return Outcome(_lines(result), said, [*told, *result.review])


def _chosen(submitted: Path, desk: ingest.Desk) -> tuple[bytes, list[str]]:
    """The notebook that counts, and what was odd about it; or no bytes, and why there is none."""
    fit: dict[bytes, tuple[str, list[str]]] = {}
    others, refused = [], []
    for sent in (each for outer in archives.unpack(submitted) for each in archives.contents(outer)):
        if archives.is_noise(sent.path):
            continue
        where = printable("/".join(sent.path))
        try:
            with sent.purse.spent():
                data = ingest.notebook_in(sent.name, sent.read())
                _, notebook, repairs = desk.understood(sent.name, data)
            _see_no_other(reading.notebook_of(data), desk.assignment)
        except archives.Refused as error:
            kept = refused if where.endswith(".ipynb") else others
            kept.append(f"{where}: {str(error).partition('; ask')[0]}")
            continue
        if where != f"{desk.assignment}.ipynb":
            repairs = [f"the notebook was named {where}", *repairs]
            fit.setdefault(notebook.data, (where, repairs))
        else:
            return notebook.data, repairs
    wanted = f"hand in {desk.assignment}.ipynb"
    if len(fit) == 1:
        (data, (_, repairs)), *_ = fit.items()
        return data, repairs
    if fit:
        names = ", ".join(where for where, _ in fit.values())
        return b"", [f"There are several notebooks, none of that name ({names}): {wanted}."]
    if refused or others:
        return b"", [
            f"There is no notebook of this assignment ({(refused or others)[0]}): {wanted}."
        ]
    return b"", [f"There is no notebook in what you handed in: {wanted}."]


def _see_no_other(notebook: reading.Notebook, wanted: str) -> None:
    """The platform's folder has one assignment, so another one's name is read from the cells.

    Raises:
        Refused: the notebook is of another assignment.
    """
    sources = map(source_of, notebook.cells)
    marked = {mark[1] for source in sources for mark in MARKER.finditer(source)}
    if marked and wanted not in marked:
        raise archives.Refused(f"it is of {printable(min(marked))}, not of {wanted}")


def _lines(result: Result) -> list[Line]:
    """Two for each task. A report that tells of hidden numbers stands beside those alone."""
    found = []
    for task, verdict in result.verdicts.items():
        most, report = verdict.points, verdict.report
        seen, again = report, "as above, on other numbers"
        if verdict.visible == most:
            seen, again = "", report
        if verdict.hidden == most:
            again = ""
        found.append(Line(task, verdict.visible, most, seen))
        found.append(Line(task, verdict.hidden, most, again, hidden=True))
    return found


def _name(line: Line) -> str:
    return f"{line.name}, on other numbers" if line.hidden else line.name


# --- what each platform reads -------------------------------------------------------------------


def gradescope(outcome: Outcome) -> dict:
    """Its `results.json`; see gradescope-autograders.readthedocs.io/en/latest/specs/."""
    tests = [
        {
            "name": _name(line),
            "score": line.earned,
            "max_score": line.most,
            "output": line.report,
            "output_format": "text",
            "visibility": "after_published" if line.hidden else "visible",
        }
        for line in outcome.lines
    ]
    said = {"output": "\n".join(outcome.said), "output_format": "text"}
    return said | {"tests": tests, "stdout_visibility": "hidden"}


def prairielearn(outcome: Outcome) -> dict:
    """Its `results.json`; see prairielearn.readthedocs.io/en/latest/externalGrading/.

    All of it is shown at once, so of hidden numbers there are points and no report.
    """
    if outcome.refused:
        return {"gradable": False, "format_errors": outcome.said}
    tests = [
        {
            "name": _name(line),
            "points": line.earned,
            "max_points": line.most,
            "output": "" if line.hidden else line.report,
        }
        for line in outcome.lines
    ]
    score = outcome.earned / outcome.most
    return {"gradable": True, "score": score, "message": "\n".join(outcome.said), "tests": tests}


def github_classroom(outcome: Outcome) -> dict:
    """What its reporter reads, as the action autograding-command-grader writes it."""
    tests = [
        {
            "name": _name(line),
            "status": "pass" if line.earned == line.most else "fail",
            "score": line.earned,
            "message": "" if line.hidden else line.report,
            "line_no": 0,
        }
        for line in outcome.lines
    ]
    passed = outcome.earned == outcome.most
    status = "pass" if passed else "fail"
    return {"version": 1, "status": status, "max_score": outcome.most, "tests": tests}


def summary(outcome: Outcome) -> str:
    """The same in Markdown, for the page of a workflow's run."""
    rows = ["| | points | of |", "|---|--:|--:|"]
    rows += [f"| {_name(line)} | {line.earned:g} | {line.most:g} |" for line in outcome.lines]
    reports = [
        f"\n```text\n{line.report}\n```"
        for line in outcome.lines
        if line.report and not line.hidden
    ]
    said = [f"- {each}" for each in outcome.said]
    return "\n".join([*rows, "", *said, *reports, ""])


FORMS = {"gradescope": gradescope, "prairielearn": prairielearn}


def _report(platform: str, results: Path | None, outcome: Outcome) -> None:
    for line in outcome.told:  # the platform keeps what is printed for the teacher
        print(f"look at this: {line}")
    if platform in FORMS:
        write(results, json.dumps(FORMS[platform](outcome), indent=1).encode())
        return
    # Never a student's words: a line that begins with :: is a command to a workflow.
    print(f"{outcome.earned:g} of {outcome.most:g} points")
    text = base64.b64encode(json.dumps(github_classroom(outcome)).encode()).decode()
    kept = {"GITHUB_OUTPUT": f"result={text}\n", "GITHUB_STEP_SUMMARY": summary(outcome)}
    for name, line in kept.items():
        with open(os.environ[name], "a", encoding="utf-8") as file:
            file.write(line)


def main(platform: str, course: str, submitted: str, results: str = "") -> int:
    """Grade, and say it; 1 if it could not be graded."""
    path = Path(results) if results else None
    if path:
        path.unlink(missing_ok=True)  # of an earlier run: it would be this one's
    if platform == "prairielearn":  # where no result is a zero, as after this process was killed
        write(path, json.dumps({"gradable": False, "format_errors": [NOT_GRADED]}).encode())
    try:
        _report(platform, path, grade(Path(course), Path(submitted)))
    except NotGraded as error:
        why = str(error)
    except Exception as error:
        why = f"the grader itself failed, please report it ({type(error).__name__}: {error})"
    else:
        return 0
    print(printable(f"not graded: {why}. {cure_for(why)}."))
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
