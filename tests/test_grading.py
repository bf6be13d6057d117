"""Grading's promises: jailed answers are judged as in a notebook, and a killed run goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from correct_answers import CORRECT

from attncourse import misconceptions
from attncourse.checks import engine
from attncourse.grading import jail, nbgrader_api, results, run, sample, score, submission, wire
from attncourse.grading.remote import Budget, RemoteAnswer, Sandbox, Zygote

ASSIGNMENTS = sorted(path.name for path in (ROOT / "solutions").iterdir() if path.is_dir())
CHAPTER_3 = "03_scaled_dot_product"
linux = pytest.mark.skipif(sys.platform != "linux", reason="the jail is made of Linux namespaces")


@pytest.fixture(scope="module")
def zygote():
    try:
        with Zygote() as warm:
            warm.fork([]).kill()
            yield warm
    except jail.Unavailable as error:
        pytest.skip(f"no jail can be built here: {error}")


def assignment(name: str) -> submission.Assignment:
    texts = (notebook(folder, name).decode() for folder in ("solutions", "exercises"))
    return submission.assignment_of(name, *texts)


def notebook(folder: str, name: str) -> bytes:
    return (ROOT / folder / name / f"{name}.ipynb").read_bytes()


# --- what travels between the processes


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        "text ✓",
        [1, (2, "x"), {"a": None, 3: [True]}],
        torch.randn(2, 0, 3),
        torch.tensor(3.0, dtype=torch.float16),
        torch.tensor([[True, False]]),
        torch.arange(6).reshape(2, 3).T,
    ],
    ids=str,
)
def test_plain_data_arrives_as_it_was_sent(value):
    ours, theirs = socket.socketpair()
    wire.send(ours, value)
    came = wire.receive(theirs)
    if isinstance(value, torch.Tensor):
        assert came.dtype == value.dtype and torch.equal(came, value)
    else:
        assert came == value


def test_objects_arrive_as_no_more_than_their_name():
    ours, theirs = socket.socketpair()
    wire.send(ours, [socket.AF_INET, object(), lambda: 1])
    _, thing, function = wire.receive(theirs)
    assert type(thing).__name__ == "object" and type(function).__name__ == "function"
    assert not callable(function)


@pytest.mark.parametrize(
    "header",
    [b"", b"[", b"{}", b'["tensor","float32",[9],0]', b'["tensor","float32",[-1],0]',
     b'["tensor","object",[1],0]', b'["tensor","float32",["1"],0]', b'["nothing"]',
     b'["dict",1]', b'["other"]', b"[" * 900_000],
)  # fmt: skip
def test_a_forged_message_is_refused(header):
    ours, theirs = socket.socketpair()
    data = wire._LENGTHS.pack(len(header), 0) + header
    threading.Thread(target=ours.sendall, args=(data,), daemon=True).start()
    with pytest.raises(wire.Malformed):
        wire.receive(theirs)


# --- judged in a jail as in a notebook


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_solution_gets_everything_and_a_release_nothing(name, zygote):
    about = assignment(name)
    best = score.score(notebook("solutions", name), about, zygote, Budget())
    assert best.score == about.points - sum(about.questions.values()), best
    assert not best.review and not best.repairs
    none = score.score(notebook("exercises", name), about, zygote, Budget())
    assert none.score == 0 and not none.review
    titles = {verdict.title for verdict in none.verdicts.values()}
    assert titles == {"not answered yet"}


def judged(zygote, task: str, source: str):
    sandbox = Sandbox(zygote, [task], [("cell 1", "import math\nimport torch\n" + source, True)])
    try:
        return engine.run(task, RemoteAnswer(sandbox, task))
    finally:
        sandbox.close()


@linux
@pytest.mark.slow
@pytest.mark.parametrize("chapter", sorted(engine.chapters()))
def test_a_misconception_is_named_through_the_wall(chapter, zygote):
    for wrong in misconceptions.of_chapter(chapter)[::9]:
        report = judged(zygote, wrong.task, sample.source_of(wrong.answer, wrong.task))
        here = engine.run(wrong.task, wrong.answer)
        assert report.earned == here.earned, wrong.id
        assert report.diagnosis.id == here.diagnosis.id, wrong.id


def test_no_right_answer_of_the_course_is_taken_for_a_ready_made_one():
    for name, answers in CORRECT.items():
        for answer in answers:
            try:
                source = sample.source_of(answer, name)
            except (AttributeError, KeyError, TypeError):
                continue  # a partial or an object has no source of its own
            found, look = submission.ready_made([("cell", source, True)], engine.find(name), "")
            assert not found or found.startswith("the course's"), (name, answer)
            assert not look, (name, answer, look)


# --- a class


def grade(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "attncourse", "grade", CHAPTER_3, *arguments],
        capture_output=True,
        text=True,
        **options,
    )


def stored() -> dict[str, dict]:
    found = {}
    for path in Path("autograded").glob(f"*/{CHAPTER_3}/{run.RESULT}"):
        data = json.loads(path.read_text(encoding="utf-8"))
        data.pop("seconds")
        found[path.parts[1]] = data
    return found


@linux
@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_stopped(course, zygote):
    sample.write_class(CHAPTER_3, 12)
    command = [sys.executable, "-m", "attncourse", "grade", CHAPTER_3, "--jobs", "2"]
    kept: dict[str, float] = {}
    for enough in (2, 6):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        while len(stored()) < enough and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for student, when in kept.items():  # nobody is graded twice
            assert run.result_path(CHAPTER_3, student).stat().st_mtime == when
        kept = {s: run.result_path(CHAPTER_3, s).stat().st_mtime for s in stored()}
    done = grade("--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert f"{len(kept)} had not changed" in done.stdout
    killed = stored()
    assert len(killed) == 12
    scores = {row.student: row.score for row in results.of_class(CHAPTER_3)}

    again = grade("--force", "--jobs", "2")
    assert again.returncode == 0, again.stderr
    assert stored() == killed  # two runs, the same grades
    assert {row.student: row.score for row in results.of_class(CHAPTER_3)} == scores
    assert "12 had not changed" in grade().stdout

    # points that a person gave stay
    with nbgrader_api.gradebook() as book:
        one = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student01")
        one.manual_score = 5
        book.db.commit()
    assert grade("--force", "--students", "student01").returncode == 0
    with nbgrader_api.gradebook() as book:
        one = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student01")
        assert one.manual_score == 5 and one.needs_manual_grade

    stranger = grade("--students", "student01,nobody")
    assert stranger.returncode == 2 and "nothing of nobody" in stranger.stderr


def test_without_a_jail_grading_says_so(course):
    sample.write_class(CHAPTER_3, 1)
    done = grade("--no-jail")
    assert done.returncode == 0, done.stderr
    assert "can read and change what you can" in done.stdout
    assert stored()["student01"]["verdicts"]["softmax"]["hidden"] > 0


@pytest.mark.parametrize("name", list(engine.all_tasks()))
def test_every_probe_can_travel(name):
    task = engine.find(name)
    for inputs in task.probes(torch.Generator().manual_seed(0)).values():
        assert b'"other"' not in wire.pack(inputs)
