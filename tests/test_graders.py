"""Graders for other platforms: the documented layout, started as documented, and the same points.

The platforms are simulated: folders as their documents describe them, and nothing of theirs runs.
"""

import base64
import contextlib
import copy
import io
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT, copy_course, points_of
from corpus.zoo import ASSIGNMENT, CASES, NAME, TASKS, built, cell_of, files, notebook, right
from typer.testing import CliRunner

from attncourse import cli
from attncourse.grading import CannotGrade
from attncourse.grading.books import disk, results
from attncourse.grading.inbox.senders import timestamp_of
from attncourse.grading.jail import walls, workers
from attncourse.grading.jail.job import Budget
from attncourse.grading.jail.result import Result, Verdict
from attncourse.grading.outbox import export_grader, hosted, otter_plugin

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="graders run on Linux")
JUDGED, _ = points_of(ASSIGNMENT)
PLATFORMS = ("gradescope", "prairielearn", "otter", "github-classroom")
# What a class hands in most: right answers, loud ones, moved and lost marks, typical mistakes,
# other names of the file, and files that are none.
COMMONEST = (
    "no attack", "nothing done", "syntax error", "never defined", "not a number",
    "wrong answer that later ones call", "F.softmax", "loop in the answer", "raises at the top",
    "warns on stderr", "shell and magic lines", "answer cell copied, the copy edited",
    "answer cell deleted", "metadata lost", "metadata and markers lost", "saved by Colab",
    "renamed by Colab", "renamed by a browser", "files beside it", "broken JSON",
)  # fmt: skip
QUICK = Budget(call=2.5, task=5, submission=25)


class OtterResults:
    """As much of Otter's results as its documents promise to a plugin."""

    class Case:
        def __init__(self, name, hidden, points):
            self.test_case, self.passed, self.message = self, None, None
            self.name, self.hidden, self.points = name, hidden, points

    class Question:
        def __init__(self, cases):
            self.test_case_results = cases

        def update_score(self, points):
            self.score = points

    def __init__(self, questions: dict[str, list] | None = None):
        both = {task: [self.Case(task, hidden, 1) for hidden in (False, True)] for task in TASKS}
        questions = questions or both
        self.results = {task: self.Question(cases) for task, cases in questions.items()}

    def set_output(self, text):
        self.output = text


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """The course's folder, as a teacher has it."""
    folder = tmp_path_factory.mktemp("course")
    copy_course(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def packed(course) -> dict[str, zipfile.ZipFile]:
    """What `attncourse export-grader` writes, by platform."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(course)
        for to in PLATFORMS:
            done = CliRunner().invoke(cli.app, ["export-grader", ASSIGNMENT, "--to", to])
            assert done.exit_code == 0 and f"#graders-{to}" in done.output, done.output
            found[to] = zipfile.ZipFile(course / f"{ASSIGNMENT}-{to}.zip")
    return found


def unpacked(archive: zipfile.ZipFile, folder: Path) -> Path:
    """A zip on the disk, with the rights of its files."""
    for entry in archive.infolist():
        path = Path(archive.extract(entry, folder))
        path.chmod(entry.external_attr >> 16)
    return folder


@pytest.fixture(scope="module")
def source(packed, tmp_path_factory) -> Path:
    """Where a platform has the assignment."""
    return unpacked(packed["gradescope"], tmp_path_factory.mktemp("source"))


def handed_in(folder: Path, content: dict) -> Path:
    folder.mkdir(parents=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return folder


def graded(*arguments, **options) -> hosted.Outcome:
    try:
        return hosted.grade(*arguments, **options)
    except hosted.NotGraded as error:
        pytest.fail(str(error))


@pytest.fixture(scope="module")
def judged(source, tmp_path_factory):
    """By case: what a platform is told, and the points of `attncourse grade` for the file."""
    folder, outcomes, points = tmp_path_factory.mktemp("handed_in"), {}, {}
    with contextlib.chdir(source):
        job = disk.job_of(ASSIGNMENT, budget=QUICK, record=False)
    for name in COMMONEST:
        place = handed_in(folder / name / ASSIGNMENT, built(CASES[name]))
        outcomes[name] = graded(source, place, QUICK)
        reply = workers.in_own_process(job, disk.notebook_in(place)[0].read_bytes())
        points[name] = Result.from_data(reply["result"]).score
    yield outcomes, points
    if kept := vars(workers._mine).pop("kept", None):  # another test may have ended it
        kept[1].end()


def points_on(platform: str, outcome: hosted.Outcome) -> float:
    """As the platform counts them."""
    if platform == "gradescope":
        return sum(test["score"] for test in hosted.gradescope(outcome)["tests"])
    if platform == "prairielearn":
        told = hosted.prairielearn(outcome)
        most = sum(line.most for line in outcome.lines)
        return most * told["score"] if told["gradable"] else 0.0
    if platform == "github-classroom":
        return sum(test["score"] for test in hosted.github_classroom(outcome)["tests"])
    plugin = otter_plugin.Judge("", {}, {})
    plugin.outcome, results = outcome, OtterResults()
    plugin.after_grading(results)
    return sum(question.score for question in results.results.values())


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", COMMONEST)
def test_a_platform_s_points_are_those_of_attncourse_grade(judged, platform, name):
    outcomes, points = judged
    assert points_on(platform, outcomes[name]) == pytest.approx(points[name]), outcomes[name]


@pytest.mark.slow
def test_a_class_is_not_all_right_and_not_all_wrong(judged):
    assert len(COMMONEST) == 20 and len(set(judged[1].values())) > 3


# --- what was handed in -------------------------------------------------------------------------


def other_assignment(content: dict) -> dict:
    other = json.loads((ROOT / "exercises/06_masking/06_masking.ipynb").read_text("utf-8"))
    return files(other, NAME)


def older_release(content: dict) -> dict:
    """Other points, a task that is not there yet, other texts."""
    cell_of(content, "softmax-check")["metadata"]["nbgrader"]["points"] = 99
    content["cells"].remove(cell_of(content, "hidden_scale"))
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = "An older text."
    return files(content)


WRONG = CASES["wrong answer that later ones call"]
BAD = {  # what was handed in, a part of what is said, and the points
    "no notebook": (
        lambda nb: {"a.txt": b"x"}, "no notebook of this assignment (a.txt: not a notebook)", 0
    ),
    "nothing": (lambda nb: {}, "There is no notebook in what you handed in", 0),
    "two that differ": (
        lambda nb: files(nb, "a.ipynb") | files(notebook("exercises"), "b.ipynb"),
        "There are several notebooks, none of that name (a.ipynb, b.ipynb): hand in",
        0,
    ),
    "two, one of that name": (
        lambda nb: files(notebook("exercises"), "b.ipynb") | files(nb), "", JUDGED
    ),
    "the same twice": (
        lambda nb: files(nb, "a.ipynb") | files(nb, "b.ipynb"), "was named a.ipynb", JUDGED
    ),
    "another assignment's": (
        other_assignment, f"({NAME}: it is of 06_masking, not of {ASSIGNMENT}): hand in", 0
    ),
    "another assignment's beside it": (
        lambda nb: {"b.ipynb": other_assignment(nb)[NAME]} | files(nb), "", JUDGED
    ),
    "the course's solution": (lambda nb: files(notebook("solutions")), "", JUDGED),
    "renamed": (lambda nb: files(nb, "final (2).ipynb"), "was named final (2).ipynb", JUDGED),
    "of an older release": (older_release, "were changed and are put right", JUDGED - 10),
    "in a zip": (lambda nb: {"mine.zip": zipped(files(nb))}, "was named mine.zip/", JUDGED),
}  # fmt: skip


def zipped(content: dict) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return packed.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_the_points_that_are_right(source, tmp_path, name):
    make, said, points = BAD[name]
    outcome = graded(source, handed_in(tmp_path / "sent", make(copy.deepcopy(right()))), QUICK)
    assert outcome.earned == points and outcome.most == JUDGED
    assert any(said in line for line in outcome.said)
    assert not outcome.told or "older" in name  # a task is missing
    if not points:
        assert outcome.refused and len(outcome.said) == 1 and outcome.said[0].count(". ") == 0
        assert hosted.gradescope(outcome)["output"] == outcome.said[0]
        assert hosted.prairielearn(outcome) == {"gradable": False, "format_errors": outcome.said}
        assert outcome.said[0] in hosted.summary(outcome)


# --- started as each platform starts it ---------------------------------------------------------

# Stands for uv: the environment that it makes is the one in which the tests run.
UV = f"""#!{sys.executable}
import os, sys
from pathlib import Path
print(*sys.argv[1:])
if sys.argv[1] == "venv":
    python = Path(sys.argv[-1], "bin", "python")
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\\nexec {sys.executable} "$@"\\n')
    python.chmod(0o755)
else:
    assert all(Path(name).exists() for name in ("constraints.txt", "requirements.txt"))
"""


def install(script: Path, folder: Path) -> str:
    """What a grader's setup.sh installs, with a program in the place of uv."""
    (folder / "programs").mkdir()
    (folder / "programs" / "uv").write_text(UV)
    (folder / "programs" / "uv").chmod(0o755)
    path = f"{folder / 'programs'}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", script], env={"PATH": path}, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(command: list, **environment) -> tuple[int, str]:
    surroundings = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, cwd="/")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def autograder(packed, tmp_path):
    """Gradescope's folder /autograder, once setup.sh has run."""
    for folder in ("source", "results"):
        (tmp_path / folder).mkdir()
    unpacked(packed["gradescope"], tmp_path / "source")
    shutil.copy(tmp_path / "source" / "run_autograder", tmp_path)
    installed = install(tmp_path / "source" / "setup.sh", tmp_path)
    assert f"torch=={export_grader.metadata.version('torch').partition('+')[0]}" in installed
    return tmp_path


@pytest.mark.slow
def test_gradescope_reads_points_reports_and_what_is_hidden(autograder):
    handed_in(autograder / "submission", built(WRONG))
    code, printed = started([autograder / "run_autograder"])
    assert code == 0, printed
    told = json.loads((autograder / "results" / "results.json").read_text("utf-8"))
    assert [test["visibility"] for test in told["tests"]] == ["visible", "after_published"] * 4
    assert "D-SOFTMAX-SIGMOID" in told["tests"][0]["output"]
    assert told["tests"][0]["score"] < told["tests"][0]["max_score"] == 6
    assert all(test["score"] == test["max_score"] for test in told["tests"][2:])
    assert {test["max_score"] for test in told["tests"][::2]} == {5.0, 6.0, 12.0}


def break_machine(folder: Path) -> None:
    """The course's own solution does not get its points: as on a machine that is broken."""
    path = folder / "solutions" / ASSIGNMENT / NAME
    content = json.loads(path.read_text("utf-8"))
    cell_of(content, "softmax")["source"] = "def softmax(scores, dim=-1):\n    return scores"
    path.write_text(json.dumps(content))


@pytest.mark.slow
def test_what_gradescope_s_machine_cannot_do_has_no_score(autograder):
    break_machine(autograder / "source")
    handed_in(autograder / "submission", files(right()))
    results = autograder / "results" / "results.json"
    results.write_text("of an earlier run")
    code, printed = started([autograder / "run_autograder"])
    assert code == 1 and not results.exists()
    assert "not graded: its `softmax` gets" in printed and "Traceback" not in printed


@pytest.mark.slow
def test_prairielearn_starts_its_grader_in_a_job_s_folder(packed, tmp_path):
    course = unpacked(packed["prairielearn"], tmp_path / "course")
    question = course / "questions" / ASSIGNMENT
    about = json.loads((question / "info.json").read_text("utf-8"))
    assert about["gradingMethod"] == "External" and about["type"] == "v3" and about["uuid"]
    options = about["externalGradingOptions"]
    assert hosted.SECONDS < options["timeout"] <= 600 and not options.get("enableNetworking")
    for name in (NAME, "info.json"):
        assert not [*question.glob(f"clientFilesQuestion/**/solutions/**/{name}")]
    image = tmp_path / "attncourse"
    shutil.copytree(course / "image", image / "source")
    assert "COPY . /attncourse/source" in (course / "image" / "Dockerfile").read_text()
    install(image / "source" / "setup.sh", tmp_path)
    job = tmp_path / "grade"
    shutil.copytree(question / "tests", job / "tests")
    entry = [job / Path(options["entrypoint"]).relative_to("/grade")]

    handed_in(job / "student", built(WRONG))
    code, printed = started(entry, ATTNCOURSE=str(image))
    assert code == 0, printed
    told = json.loads((job / "results" / "results.json").read_text("utf-8"))
    assert told["gradable"] is True and 0.5 < told["score"] < 1
    assert "D-SOFTMAX-SIGMOID" in told["tests"][0]["output"]
    assert not any(test["output"] for test in told["tests"][1::2])  # of the hidden numbers

    break_machine(job / "tests")
    code, printed = started(entry, ATTNCOURSE=str(image))
    told = json.loads((job / "results" / "results.json").read_text("utf-8"))
    assert code == 1 and "not graded" in printed
    assert (
        told["gradable"] is False and "score" not in told and "teacher" in told["format_errors"][0]
    )


def test_a_grader_of_prairielearn_s_that_is_killed_leaves_no_zero(tmp_path, monkeypatch, capsys):
    results = tmp_path / "results" / "results.json"
    results.parent.mkdir()
    results.write_text('{"score": 1}')  # of an earlier run

    def fails(*_):
        assert json.loads(results.read_text())["gradable"] is False  # as if it were killed now
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(hosted, "grade", fails)
    assert hosted.main("prairielearn", "tests", "student", str(results)) == 1
    assert json.loads(results.read_text()) == {
        "gradable": False,
        "format_errors": [hosted.NOT_GRADED],
    }
    assert "Allow more processes" in capsys.readouterr().out


def test_a_report_that_tells_of_hidden_numbers_stands_beside_those():
    both, hidden_alone = Verdict(1, 2, 3, report="r"), Verdict(3, 2, 3, report="r")
    visible_alone, right_ = Verdict(1, 3, 3, report="r"), Verdict(3, 3, 3, report="r")
    result = Result(dict(enumerate([both, hidden_alone, visible_alone, right_])))
    again = "as above, on other numbers"
    reports = [line.report for line in hosted._lines(result)]
    assert reports == ["r", again, "", "r", "r", "", "", ""]


@pytest.mark.slow
def test_github_classroom_s_workflow_grades_and_reports(packed, tmp_path):
    both = unpacked(packed["github-classroom"], tmp_path / "both")
    template = {path.name for path in (both / "template").rglob("*") if path.is_file()}
    assert template == {"classroom.yml", NAME}  # all that a student gets
    workflow = yaml.safe_load((both / "template/.github/workflows/classroom.yml").read_text())
    (work,) = workflow["jobs"].values()
    steps = {step.get("id") or step.get("run") or step["uses"]: step for step in work["steps"]}
    report = next(step for name, step in steps.items() if "grading-reporter" in name)
    assert report["with"]["runners"] == "grade"
    assert report["env"] == {"GRADE_RESULTS": "${{ steps.grade.outputs.result }}"}
    assert 60 * steps["grade"]["timeout-minutes"] > hosted.SECONDS

    shutil.copytree(both / "grader", tmp_path / "grader")
    install(tmp_path / "grader" / "setup.sh", tmp_path)
    sudo = '#!/bin/sh\nshift\nexec "$@"\n'  # we are who we are
    (tmp_path / "programs" / "sudo").write_text(sudo)
    (tmp_path / "programs" / "sudo").chmod(0o755)
    sent = copy.deepcopy(right())
    forged = "'\\n::notice title=Autograding report::{\"totalPoints\":99}\\n'"
    cell = cell_of(sent, "softmax")
    cell["source"] = f"def softmax(scores, dim=-1):\n    raise ValueError({forged})"
    handed_in(tmp_path / "submission", files(sent))

    def graded() -> tuple[int, str, list[str]]:
        kept = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for path in kept.values():
            path.write_text("")
        surroundings = {name: str(path) for name, path in kept.items()}
        surroundings["PATH"] = f"{tmp_path / 'programs'}:/usr/bin:/bin"
        script = f"cd {tmp_path}\n{steps['grade']['run']}"
        code, printed = started(["bash", "-e", "-c", script], **surroundings)
        return code, printed, [path.read_text("utf-8") for path in kept.values()]

    code, printed, (output, summary) = graded()
    assert code == 0, printed
    assert not [line for line in printed.splitlines() if line.lstrip().startswith("::")]
    told = json.loads(base64.b64decode(output.strip().removeprefix("result=")))
    assert told["max_score"] == JUDGED and told["status"] == "fail"
    assert sum(test["score"] for test in told["tests"]) == JUDGED - 12
    assert "| softmax | 0 | 6 |" in summary and "ValueError" in summary

    break_machine(tmp_path / "grader")
    code, printed, (output, _) = graded()
    assert code == 1 and not output and "not graded: its `softmax` gets" in printed


# --- Otter --------------------------------------------------------------------------------------


class Otter:
    """`otter.test_files`, as far as its documents describe test files."""

    @staticmethod
    def test_case(name, points, hidden=False):
        return lambda _: OtterResults.Case(name, hidden, points)


@pytest.mark.slow
def test_otter_gives_the_plugin_s_points_and_runs_nothing_of_a_student_s(
    packed, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "otter", Otter)
    monkeypatch.setitem(sys.modules, "otter.test_files", Otter)
    files_ = unpacked(packed["otter"], tmp_path / "inputs")
    questions = {}
    for path in (files_ / "tests").glob("*.py"):
        names = {}
        exec(path.read_text("utf-8"), names)
        assert names["OK_FORMAT"] is False
        cases = [each for each in names.values() if isinstance(each, OtterResults.Case)]
        questions[names["name"]] = cases
    assert questions.keys() == set(TASKS)
    assert sum(case.points for cases in questions.values() for case in cases) == JUDGED
    for folder in ("solutions", "exercises"):  # as `otter generate … solutions exercises` puts it
        shutil.copytree(files_ / folder, tmp_path / "autograder/source/files" / folder)
    place = handed_in(tmp_path / "autograder/submission", built(WRONG)) / NAME
    config = json.loads((files_ / "otter_config.json").read_text("utf-8"))
    assert config["plugins"] == [f"{otter_plugin.__name__}.{otter_plugin.Judge.__name__}"]

    plugin = otter_plugin.Judge(str(place), {}, {})
    assert plugin.before_grading({}) is None and not plugin.before_execution({"cells": [1]}).cells
    results = OtterResults(questions)
    plugin.after_grading(results)
    shown, hidden = results.results["softmax"].test_case_results
    assert not shown.passed and "D-SOFTMAX-SIGMOID" in shown.message and not hidden.passed
    assert 0 < results.results["softmax"].score < 12
    assert results.results["hidden_scale"].score == 10 and "waits for a person" in results.output

    break_machine(tmp_path / "autograder/source/files")
    with pytest.raises(hosted.NotGraded, match="its `softmax` gets"):
        otter_plugin.Judge(str(place), {}, {}).before_execution(None)


# --- what a zip holds, and where no jail can be built -------------------------------------------


@pytest.mark.slow
def test_the_wheel_is_this_package_without_other_assignments_solutions(packed):
    with packed["gradescope"].open(export_grader.this_package()[0]) as file:
        wheel = zipfile.ZipFile(io.BytesIO(file.read()))
    names = set(wheel.namelist())
    package = Path(cli.__file__).parent.parent
    for path in package.rglob("*.py"):
        where = path.relative_to(package.parent).as_posix()
        assert wheel.read(where) == path.read_bytes()
    assert not [name for name in names if name.endswith(".ipynb")]
    record = next(name for name in names if name.endswith("RECORD"))
    assert {line.split(",")[0] for line in wheel.read(record).decode().splitlines()} == names


@pytest.mark.slow
@pytest.mark.parametrize("to", PLATFORMS)
def test_a_grader_holds_one_assignment_and_is_the_same_every_time(packed, course, monkeypatch, to):
    held = [name for name in packed[to].namelist() if "solutions/" in name]
    assert [Path(name).name for name in held] == [NAME]
    monkeypatch.chdir(course)
    path = Path(f"{ASSIGNMENT}-{to}.zip")
    before = path.read_bytes()
    assert CliRunner().invoke(cli.app, ["export-grader", ASSIGNMENT, "--to", to]).exit_code == 0
    assert path.read_bytes() == before
    path.write_text("somebody's own")
    done = CliRunner().invoke(cli.app, ["export-grader", ASSIGNMENT, "--to", to])
    assert done.exit_code == 2 and path.read_text() == "somebody's own"
    path.write_bytes(before)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["gradescope", "prairielearn"])
def test_without_a_jail_the_answers_are_judged_and_the_teacher_is_told(
    source, tmp_path, monkeypatch, capsys, platform
):
    jobs = []

    def judge(job, data):
        jobs.append(job.jailed)
        if job.jailed:
            raise walls.Unavailable("clone (new namespaces): Operation not permitted")
        raise CannotGrade("it stops here")

    monkeypatch.setattr(workers, "in_own_process", judge)
    place = handed_in(tmp_path / "sent", files(right()))
    code = hosted.main(platform, str(source), str(place), str(tmp_path / "results.json"))
    assert jobs == [True, False] and code == 1 and "it stops here" in capsys.readouterr().out
    result = {"verdicts": {}, "review": []}
    monkeypatch.setattr(
        workers,
        "in_own_process",
        lambda job, data: judge(job, data) if job.jailed else {"result": result},
    )
    assert "without a jail" in graded(source, place).told[0]


# As in a container of Docker's, whose root may not make namespaces.
IN_DOCKER = (
    "setpriv",
    "--bounding-set=-sys_admin,-sys_ptrace",
    "--inh-caps=-sys_admin,-sys_ptrace",
)
PRYING = """import os

def refused(attempt):
    try:
        attempt()
    except OSError:
        return True

kept = [
    refused(lambda: open("{solution}").read()),
    refused(lambda: open("{results}/results.json", "w")),
    refused(lambda: open(f"/proc/{{os.getppid()}}/mem", "rb")),
    refused(lambda: os.kill(os.getppid(), 9)),
]

def softmax(scores, dim=-1):
    assert all(kept)
    weights = (scores - scores.amax(dim, keepdim=True)).exp()
    return weights / weights.sum(dim, keepdim=True)
"""


@pytest.mark.slow
def test_in_a_container_without_jails_answers_are_a_user_who_reads_nothing_of_the_grader_s(
    source, tmp_path
):
    python = Path("/usr/bin/python3")  # everybody can read it
    asked = [python, "-c", "import sys; print(sys.version_info[:2])"]
    if os.getuid() or not python.exists() or not shutil.which("setpriv"):
        pytest.skip("we are no root, or there is no other Python")
    if subprocess.run(asked, capture_output=True, text=True).stdout.strip() != str(
        sys.version_info[:2]
    ):
        pytest.skip("the system's Python is of another version")
    shutil.copytree(source, tmp_path / "source")
    shutil.copy(tmp_path / "source" / "run_autograder", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "environment" / "bin").mkdir(parents=True)
    (tmp_path / "environment" / "bin" / "python").symlink_to(python)
    sent = copy.deepcopy(right())
    solution = tmp_path / "source" / "solutions" / ASSIGNMENT / NAME
    cell_of(sent, "softmax")["source"] = PRYING.format(
        solution=solution, results=tmp_path / "results"
    )
    handed_in(tmp_path / "submission", files(sent))
    for folder in [tmp_path, *tmp_path.parents][:-2]:  # pytest's are for one user
        folder.chmod(0o755)
    packages = f"{ROOT}:{Path(torch.__file__).parents[1]}"
    code, printed = started([*IN_DOCKER, tmp_path / "run_autograder"], PYTHONPATH=packages)
    assert code == 0, printed
    assert "judged without a jail, which cannot be built here: clone" in printed
    told = json.loads((tmp_path / "results" / "results.json").read_text("utf-8"))
    assert sum(test["score"] for test in told["tests"]) == JUDGED, told


# --- JupyterHub ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_nbgrader_s_exchange_brings_work_in_and_feedback_out(course, tmp_path, monkeypatch):
    """The commands of the page, an instructor's and a student's, with an exchange of their own."""
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    exchange = tmp_path / "exchange"
    shutil.copytree(course, teacher)
    for folder in (student, exchange):
        folder.mkdir()
    exchange.chmod(0o777)
    hub = f"c.Exchange.root = {str(exchange)!r}\nc.CourseDirectory.course_id = 'attn'\n"
    hub += (
        f"c.ExchangeCollect.groupshared = False\nc.Exchange.cache = {str(tmp_path / 'cache')!r}\n"
    )
    with (teacher / "nbgrader_config.py").open("a") as file:
        file.write(hub)
    (student / "nbgrader_config.py").write_text("c = get_config()\n" + hub)
    surroundings = os.environ | {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    whose = pwd.getpwuid(os.getuid()).pw_name  # the exchange asks the system

    def run(line: str, folder: Path) -> str:
        program, *words = line.split()
        command = [Path(sys.executable).with_name(program), *words]
        done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    page = (ROOT / "book" / "graders.md").read_text("utf-8").partition("(graders-jupyterhub)=")[2]
    release, *others = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()
    run(release, teacher)
    run(f"nbgrader fetch_assignment {ASSIGNMENT}", student)
    fetched = student / ASSIGNMENT / NAME
    assert fetched.read_bytes() == (ROOT / "exercises" / ASSIGNMENT / NAME).read_bytes()
    fetched.write_bytes(files(right())[NAME])
    run(f"nbgrader submit {ASSIGNMENT}", student)
    for line in others:
        printed = run(line, teacher)
        if line.startswith("nbgrader collect"):
            assert timestamp_of(teacher / "submitted" / whose / ASSIGNMENT)
        if line.startswith("attncourse grade"):
            assert "graded 1 submission of" in printed
    monkeypatch.chdir(teacher)
    (row,) = results.of_class(ASSIGNMENT)
    assert row.student == whose and row.score == JUDGED
    run(f"nbgrader fetch_feedback {ASSIGNMENT}", student)
    (seen,) = (student / ASSIGNMENT / "feedback").glob(f"*/{ASSIGNMENT}.html")
    made = teacher / "feedback" / whose / ASSIGNMENT / f"{ASSIGNMENT}.html"
    assert seen.read_bytes() == made.read_bytes()
