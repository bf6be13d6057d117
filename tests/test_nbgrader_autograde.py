"""`nbgrader autograde` itself: as safe as `attncourse grade`, and the same points."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, copy_course
from corpus.zoo import ASSIGNMENT, CASES, NAME, built, files, right
from test_zoo import contents, hand_in, letters, student

from attncourse.grading.books import autograde, disk, generate, nbgrader_api, results, run
from attncourse.grading.jail import walls, workers
from attncourse.grading.jail.job import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="the jail is made of Linux namespaces"),
]
# What stops nbgrader's own autograde for a whole class, or costs correct work its points. The rest
# of the zoo takes the same way through the same code, in test_zoo.py.
STOPPING = (
    "answer cell copied, the copy edited",
    "schema_version 99",
    "schema_version 1",
    "kill the parent",
    "warns on stderr",
    "30 MB of outputs",
    "metadata and markers lost",
    "broken JSON",
    "renamed by Colab",
    "bad timestamp",
    A_LINK := "a link to a neighbor",  # it is no notebook, so nobody is graded
)
NEIGHBORS = ("a_good", "z_good")


def is_there(name: str) -> bool:
    return disk.record_path(ASSIGNMENT, name).is_file()


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A class of hard cases, graded by one call of nbgrader; results by student."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("nbgrader")
        copy_course(ROOT, folder)
        patch.chdir(folder)
        with open("nbgrader_config.py", "a") as config:
            config.write("c.Execute.kernel_name = 'none'\n")  # nobody may start one
        for name in STOPPING:
            hand_in(student(name), built(CASES[name]))
        for name in NEIGHBORS:
            hand_in(name, files(right()))
        below = right()
        below["cells"].append({"cell_type": "markdown", "metadata": {}, "source": "Since √d."})
        hand_in("below", files(below))
        Path("submitted/a_good", ASSIGNMENT, disk.RESULT).write_text('{"forged": true}')
        Path("submitted/a_good", ASSIGNMENT, f"{NAME}.1").write_text("{}")
        before = contents()
        assert not Path("gradebook.db").exists()  # as in a fresh clone: nothing else ran before
        command = ["nbgrader", "autograde", ASSIGNMENT]
        done = subprocess.run(command, capture_output=True, text=True)
        if "No jail can be built" in done.stderr:
            pytest.skip("no jail can be built here")
        assert done.returncode == 1, done.stderr[-5000:]  # one is not graded
        assert contents() == before
        stored = {
            who: disk.load_result(disk.result_path(ASSIGNMENT, who))[1]
            for who in (*map(student, STOPPING), *NEIGHBORS, "below")
            if who != student(A_LINK)
        }
        yield stored, done.stderr


@pytest.mark.parametrize("name", STOPPING)
def test_a_case_gets_what_attncourse_grade_gives(graded, name):
    case = CASES[name]
    if name == A_LINK:
        assert not is_there(student(name))
        assert f"{student(name)} is not graded: {case.review}" in graded[1]
        return
    result = graded[0][student(name)]
    assert letters(result) == case.points, result
    if case.review:
        assert any(case.review in reason for reason in result.review)
        assert f"Look at {student(name)}: " in graded[1]
    assert is_there(student(name))


@pytest.mark.parametrize("name", NEIGHBORS)
def test_neighbors_get_full_marks(graded, name):
    assert letters(graded[0][name]) == "FFFF"


def test_the_gradebook_has_the_same_points(graded):
    rows = {row.student: row.score for row in results.of_class(ASSIGNMENT)}
    assert rows.pop(student(A_LINK)) is None
    assert rows == {who: result.score for who, result in graded[0].items()}


def test_a_written_answer_below_its_cell_waits_for_a_person(graded):
    rows = {row.student: row for row in results.of_class(ASSIGNMENT)}
    assert rows["below"].unread == {"why-scaled"} and not rows["a_good"].unread
    assert "Look at below: the written answer `why-scaled` seems to stand in cell 30" in graded[1]
    done = nbgrader_api.api().generate_feedback(ASSIGNMENT, "below")
    assert done["success"], done
    text = Path("feedback/below", ASSIGNMENT, f"{ASSIGNMENT}.html").read_text(encoding="utf-8")
    assert text.count("Since √d.") == 2 and "No response." not in text  # in the box, and below


def test_attncourse_grade_finds_nothing_left_to_do(graded):
    def nobody(job, notebooks):
        assert not notebooks, notebooks
        return iter(())

    handed_in = disk.submissions(ASSIGNMENT)
    for event in run.grade_class(disk.job_of(ASSIGNMENT), handed_in, nobody):
        if event.student == student(A_LINK):
            assert event.result is None
        else:
            assert not event.fresh and event.result.score == graded[0][event.student].score


def test_again_grades_only_what_is_new(graded):
    done = nbgrader_api.api().autograde(ASSIGNMENT, "*", force=False)
    assert done["log"].count("Skipping existing") == len(graded[0])


def test_nothing_else_on_the_way_looks_like_an_error(graded):
    assert graded[1].count("Traceback") == 1  # of who is not graded
    for word in ("CRITICAL", "SAWarning"):
        assert word not in graded[1]


def test_feedback_shows_the_record_and_nothing_of_the_graders(graded):
    done = nbgrader_api.api().generate_feedback(ASSIGNMENT, "a_good")
    assert done["success"], done
    (page,) = Path("feedback/a_good", ASSIGNMENT).iterdir()  # no result.json, nothing earlier
    text = page.read_text(encoding="utf-8")
    assert page.name == f"{ASSIGNMENT}.html" and "BEGIN HIDDEN" not in text
    assert "seed=31" not in text


# --- from Python: what formgrader's button does


def test_formgraders_button_gives_solutions_everything_and_releases_nothing(course):
    assignment = "06_masking"
    for folder in ("solutions", "exercises"):
        target = Path("submitted", folder, assignment)
        target.mkdir(parents=True)
        shutil.copy(Path(folder, assignment, f"{assignment}.ipynb"), target)
    generate.release([assignment])
    api, scores = nbgrader_api.api(), {}
    for who in ("solutions", "exercises"):
        done = api.autograde(assignment, who)
        if "No jail can be built" in done.get("log", ""):
            pytest.skip("no jail can be built here")
        assert done["success"], done
        scores[who] = disk.load_result(disk.result_path(assignment, who))[1].score
    questions = disk.job_of(assignment).about.questions
    rows = {row.student: row for row in results.of_class(assignment)}
    assert scores["solutions"] == rows["solutions"].max_score - sum(questions.values())
    assert scores["exercises"] == 0
    assert {who: row.score for who, row in rows.items()} == scores
    vars(workers._mine).pop("kept")[1].end()


def test_without_a_jail_nothing_is_graded_and_nothing_left_behind(course, monkeypatch):
    hand_in("a", files(right()))
    hand_in("b", files(right()))
    Path("submitted/a", ASSIGNMENT, "data.csv").write_text("1")
    generate.release([ASSIGNMENT])
    jobs = []

    def refuse(job, notebooks):
        jobs.append(job)
        raise walls.Unavailable("clone (Operation not permitted)")
        yield

    monkeypatch.setattr(autograde, "_one_by_one", refuse)
    done = nbgrader_api.api().autograde(ASSIGNMENT, "*")
    assert not done["success"] and "No jail can be built on this machine: clone" in done["log"]
    assert "--JailedExporter.jailed=False" in done["log"]
    assert [job.jailed for job in jobs] == [True]  # and nobody after the first
    assert not list(Path().glob("autograded/*/*"))
    nbgrader_api.api().config.JailedExporter.jailed = False
    nbgrader_api.api().autograde(ASSIGNMENT, "a")
    assert not jobs[-1].jailed


def test_a_reply_that_comes_too_late_is_nobody_elses(monkeypatch):
    ended = []

    class Interrupted:
        def take(self, data):
            pass

        def reply(self):
            raise KeyboardInterrupt

        def end(self):
            ended.append(self)

    monkeypatch.setattr(workers, "Worker", lambda *_: Interrupted())
    monkeypatch.setattr(workers, "_warm", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        workers.in_own_process(Job(ASSIGNMENT, "", ""), b"")
    assert "kept" not in vars(workers._mine) and len(ended) == 1


def test_the_record_is_a_notebook_that_nbgrader_knows(graded):
    for who in ("a_good", student("broken JSON"), student("metadata and markers lost")):
        cells = json.loads(disk.record_path(ASSIGNMENT, who).read_text(encoding="utf-8"))["cells"]
        names = {cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in cells}
        assert {"softmax", "softmax-check", "softmax-hidden", "why-scaled"} <= names, who
