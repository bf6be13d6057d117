"""Grading's promises: jailed answers are judged as in a notebook, and a killed run goes on."""

import errno
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT, copy_course, heeds_interrupts
from correct_answers import CORRECT
from nbgrader.utils import parse_utc
from typer.testing import CliRunner

from attncourse import cli, misconceptions
from attncourse.checks import engine
from attncourse.grading import jail, nbgrader_api, results, run, sample, score, submission, wire
from attncourse.grading.gradebook import Writer
from attncourse.grading.remote import (
    Budget,
    RemoteAnswer,
    Sandbox,
    Spawner,
    Zygote,
    children,
)

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


def test_a_short_message_cannot_ask_for_much_memory():
    """Every byte of the body is in one tensor at most, whatever the header says."""
    form = ["list", *[["tensor", "uint8", [2**20], 0]] * 300]
    header = json.dumps(form).encode()
    ours, theirs = socket.socketpair()
    data = wire._LENGTHS.pack(len(header), 2**20) + header + bytes(2**20)
    threading.Thread(target=ours.sendall, args=(data,), daemon=True).start()
    tracemalloc.start()
    with pytest.raises(wire.Malformed):
        wire.receive(theirs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_a_question_may_hold_two_megabytes_of_code_and_a_reply_not():
    code = "é" * submission.MOST_CODE
    ours, theirs = socket.socketpair()
    data = wire.pack((1, code), wire.QUESTION)
    threading.Thread(target=ours.sendall, args=(data,), daemon=True).start()
    assert wire.receive(theirs, longest=wire.QUESTION) == (1, code)
    with pytest.raises(wire.Malformed):
        wire.pack((1, code))


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
            found, look = submission.ready_made(
                submission.definitions([source]), engine.find(name), submission.definitions([])
            )
            assert not found or found.startswith("the course's"), (name, answer)
            assert not look, (name, answer, look)


# --- a class


def grade(*arguments):
    return CliRunner().invoke(cli.app, ["grade", CHAPTER_3, *arguments])


def stored() -> dict[str, dict]:
    found = {}
    for path in Path("autograded").glob(f"*/{CHAPTER_3}/{run.RESULT}"):
        data = json.loads(path.read_text(encoding="utf-8"))
        data.pop("seconds")
        found[path.parts[1]] = data
    return found


def points() -> dict[str, float]:
    return {row.student: row.score for row in results.of_class(CHAPTER_3)}


def stop(process: subprocess.Popen, how: signal.Signals) -> None:
    """Send a signal to one process; nothing that it has started may be left a little later."""
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(how)
    process.wait(timeout=30)
    left = psutil.wait_procs(family, timeout=30)[1]
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]


@linux
@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_stopped(course, zygote):
    sample.write_class(CHAPTER_3, 6)
    command = [sys.executable, "-m", "attncourse", "grade", CHAPTER_3, "--jobs", "1"]
    kept: dict[str, float] = {}
    for enough, how in ((1, signal.SIGKILL), (2, signal.SIGINT)):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, preexec_fn=heeds_interrupts, **quiet)
        while len(stored()) < enough and process.poll() is None:
            time.sleep(0.02)
        stop(process, how)
        for student, when in kept.items():  # nobody is graded twice
            assert run.result_path(CHAPTER_3, student).stat().st_mtime == when
        kept = {s: run.result_path(CHAPTER_3, s).stat().st_mtime for s in stored()}
        assert enough <= len(kept) < 6

    def here(job, notebooks):
        for student, path in notebooks.items():
            result = score.score(path.read_bytes(), run._assignment(job), zygote, job.budget)
            yield student, {"result": result.as_data(), "notebook": None}

    job, handed_in = replace(run.job_of(CHAPTER_3), record=False), run.submissions(CHAPTER_3)
    before = stored()
    events = list(run.grade_class(job, handed_in, here))
    assert {event.student for event in events if not event.fresh} == kept.keys()
    assert len(stored()) == 6
    booked = points()

    # points that a person gave stay
    with nbgrader_api.gradebook() as book:
        one = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student01")
        one.manual_score = 5
        book.db.commit()
    list(run.grade_class(job, {student: handed_in[student] for student in kept}, here, force=True))
    assert {student: stored()[student] for student in kept} == before  # two runs, the same grades
    with nbgrader_api.gradebook() as book:
        one = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student01")
        assert one.manual_score == 5 and one.needs_manual_grade
    assert points() == booked | {"student01": booked["student01"] + 5}


HUNG = """
import time
from attncourse.grading import remote, wire
warm = [remote.Zygote(), remote.Zygote(jailed=False), remote.Spawner()]
for each in warm:
    child = each.fork([])
    cells = [("cell", "import time; time.sleep(999)", True)]
    child.channel.sendall(wire.pack((1, "run", cells, False)))
    child._read_pid()
print("asleep", flush=True)
time.sleep(999)
"""


@linux
@pytest.mark.slow
def test_an_answer_that_sleeps_for_ever_does_not_outlive_its_grader(zygote):
    process = subprocess.Popen([sys.executable, "-c", HUNG], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"asleep\n"
    stop(process, signal.SIGKILL)


# What a worker does, but for the grading.
STUB = """
import os, sys
from multiprocessing.connection import Connection
channel = Connection(int(sys.argv[1]))
channel.recv_bytes()
while True:
    data = channel.recv_bytes()
    if data == b"kills":
        os.kill(os.getpid(), 9)
    channel.send(data.decode())
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_takes_for_ever_outside_of_the_jail_is_stopped_and_stops_nobody(
    jobs, tmp_path, monkeypatch
):
    def popen(_, pass_fds, start=subprocess.Popen, **options):
        stub = STUB.replace("os.kill(os.getpid(), 9)", "import time; time.sleep(999)")
        command = [sys.executable, "-c", stub, str(*pass_fds)]
        return start(command, pass_fds=pass_fds, **options)

    monkeypatch.setattr(run.subprocess, "Popen", popen)
    monkeypatch.setattr(run, "SPARE", 3.0)
    job = run.Job(CHAPTER_3, "", "", budget=Budget(submission=0, record=0))
    notebooks = {name: tmp_path / name for name in ("kills", "a", "b")}
    for name, path in notebooks.items():
        path.write_text(name)
    said = "to read and judge it takes more than 3 seconds"
    done = sorted(run.in_processes(jobs)(job, notebooks))
    assert done == [("a", "a"), ("b", "b"), ("kills", said)]
    assert run.in_own_process(job, b"kills") == said
    assert run.in_own_process(job, b"a") == "a"


HUNGRY = """
from attncourse.grading import run, untrusted
untrusted.MEMORY = run.MEMORY = 2**28
run.grade_bytes = lambda job, data: bytearray(int(data))
untrusted.limit_memory()
print(len(run.grade_or_say_why(None, b"1000000")), run.grade_or_say_why(None, b"1000000000"))
untrusted.lift_memory_limit()
print(len(run.grade_or_say_why(None, b"1000000000")))
"""


@linux
def test_what_needs_too_much_memory_outside_of_the_jail_ends_in_a_sentence():
    done = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, text=True)
    said = "to read and judge it takes more than 0 GiB of memory"
    assert done.stdout.splitlines() == [f"1000000 {said}", "1000000000"], done.stderr


@pytest.mark.parametrize("jobs", [1, 3])
def test_who_kills_the_process_that_grades_stops_nobody(jobs, tmp_path, monkeypatch):
    def popen(_, pass_fds, start=subprocess.Popen, **options):
        command = [sys.executable, "-c", STUB, str(*pass_fds)]
        return start(command, pass_fds=pass_fds, **options)

    monkeypatch.setattr(run.subprocess, "Popen", popen)
    notebooks = {name: tmp_path / name for name in ("a", "kills", "m", "is gone", "z")}
    for name, path in notebooks.items():
        path.write_text(name)
    notebooks["is gone"].unlink()
    job = run.Job(CHAPTER_3, "", "")
    assert sorted(run.in_processes(jobs)(job, notebooks)) == [
        ("a", "a"),
        ("is gone", "the file cannot be read: No such file or directory"),
        ("kills", run.DIED),
        ("m", "m"),
        ("z", "z"),
    ]
    assert run.in_own_process(job, b"kills") == run.DIED
    assert run.in_own_process(job, b"a") == "a"


@linux
@pytest.mark.slow
@pytest.mark.parametrize("start", [lambda: Zygote(jailed=False), Spawner])
def test_without_a_jail_the_points_are_the_same(start, zygote):
    about, solution = assignment(CHAPTER_3), notebook("solutions", CHAPTER_3)
    jailed = score.score(solution, about, zygote, Budget()).as_data()
    with start() as free:
        result = score.score(solution, about, free, Budget()).as_data()
    assert result | {"seconds": 0} == jailed | {"seconds": 0}


def test_where_no_jail_can_be_built_grading_says_so_at_once(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(jail.Unavailable, match="Linux namespaces"):
        children(jailed=True)
    assert isinstance(children(jailed=False), Spawner)  # it does not fork


# --- what an instructor sees


@pytest.fixture(scope="module")
def small_course(tmp_path_factory):
    """A class of three, with the gradebook it is booked in; SQLite does not wait for a lock."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("course")
        copy_course(ROOT, folder)
        patch.chdir(folder)
        with Path("nbgrader_config.py").open("a") as file:
            file.write('\nc.CourseDirectory.db_url = "sqlite:///gradebook.db?timeout=0.1"\n')
            file.write('c.LateSubmissionPlugin.penalty_method = "zero"\n')
        sample.write_class(CHAPTER_3, 3)
        with Writer(assignment(CHAPTER_3)):
            yield folder


@pytest.fixture
def made_up(small_course, monkeypatch):
    """`attncourse grade` with results out of thin air, each time from the beginning."""
    shutil.rmtree("autograded", ignore_errors=True)

    def grade_all(job, notebooks):
        for student in notebooks:
            result = run.nothing(run._assignment(job), f"made up for {student}")
            yield student, {"result": result.as_data(), "notebook": "{}"}

    monkeypatch.setattr(run, "in_processes", lambda jobs: grade_all)


def test_the_log_has_a_line_for_each_submission(made_up):
    done = grade("--verbose")
    log = Path(f"autograded/{CHAPTER_3}.log").read_text(encoding="utf-8")
    assert done.exit_code == 0 and "graded 3 submissions" in done.stdout
    assert [line.split()[2:] for line in log.splitlines()] == [
        f"student0{n}: 0 points, 0.0 s; made up for student0{n}".split() for n in (1, 2, 3)
    ]
    assert set(log.splitlines()) <= set(done.stderr.splitlines())
    assert "3 had not changed" in grade("--log", "other.log").stdout
    assert Path("other.log").read_text() == ""
    assert grade("--force", "--students", "student02", "--log", "other.log").exit_code == 0
    assert "student02" in Path("other.log").read_text()


def test_a_stranger_is_refused_and_an_impossible_name_stops_nobody(made_up):
    refused = grade("--students", "student01,nobody")
    assert refused.exit_code == 2 and "nothing of nobody" in refused.stderr
    strange = [Path("submitted", name) for name in ("x" * 129, "a\u200fb", "a\nb: 56 points")]
    alike = [Path("submitted", name) for name in ("anna", "Anna", "аnna")]  # the last: Cyrillic
    for folder in (*strange, *alike):
        (folder / CHAPTER_3).mkdir(parents=True)
    done = grade("--verbose")
    for folder in (*strange, *alike):
        shutil.rmtree(folder)
    with nbgrader_api.gradebook() as book:
        for folder in alike:
            book.remove_student(folder.name)
    assert done.exit_code == 1 and "graded 6 submissions" in done.stdout
    assert done.stdout.count("not graded: rename the folder") == 3
    assert "submitted/'a\\nb: 56 points'" in done.stdout and "\nb: 56" not in done.output
    assert "names that look alike: Anna, anna, аnna" in done.stdout


def test_without_a_jail_grading_says_so(made_up):
    assert "can read and change what you can" in grade("--no-jail").stdout


def test_who_is_late_pays_what_the_course_says(made_up):
    about = assignment(CHAPTER_3)
    right = {each.task.name: each.points for each in about.graded}
    result = score.Result({task: score.Verdict(most, most, most) for task, most in right.items()})
    with nbgrader_api.gradebook() as book, Writer(about) as writer:
        book.update_or_create_assignment(CHAPTER_3, duedate="2026-01-31 12:00:00 UTC")
        writer.write("student01", result, parse_utc("2026-01-31 11:59:00 UTC"))
        writer.write("student02", result, parse_utc("2026-01-31 12:01:00 UTC"))
        submissions = [book.find_submission(CHAPTER_3, f"student0{n}") for n in (1, 2)]
        paid = [each.score - (each.late_submission_penalty or 0) for each in submissions]
        book.update_or_create_assignment(CHAPTER_3, duedate=None)
    assert paid == [result.score, 0]


def test_a_locked_gradebook_is_waited_for(made_up, caplog):
    lock = sqlite3.connect("gradebook.db", isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    threading.Timer(2.5, lock.close).start()
    assert grade().exit_code == 0
    assert "database is locked" in caplog.text and "trying again" in caplog.text
    assert points().keys() == {"student01", "student02", "student03"}


def test_a_gradebook_that_stays_locked_is_an_error_and_loses_nothing(made_up, monkeypatch):
    assert grade().exit_code == 0
    monkeypatch.setattr("attncourse.grading.gradebook.PATIENCE", 0.3)
    with nbgrader_api.gradebook() as book:
        assert {each.student.id for each in book.assignment_submissions(CHAPTER_3)}
        book.remove_submission(CHAPTER_3, "student01")
    lock = sqlite3.connect("gradebook.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")  # it can be read, and not be written
    stopped = grade("--force")
    lock.close()
    assert stopped.exit_code == 2 and "database is locked. What is graded is kept" in stopped.stderr
    assert grade().exit_code == 0
    assert points().keys() == {"student01", "student02", "student03"}


def no_space(_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_an_error_and_loses_nothing(made_up, monkeypatch):
    assert grade("--students", "student01").exit_code == 0
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_space)
        stopped = grade()
    assert stopped.exit_code == 2 and "What is graded is kept" in stopped.stderr
    assert stored().keys() == {"student01"}
    done = grade()
    assert done.exit_code == 0 and "1 had not changed" in done.stdout
    assert stored().keys() == {"student01", "student02", "student03"}


@pytest.mark.parametrize("name", list(engine.all_tasks()))
def test_every_probe_can_travel(name):
    task = engine.find(name)
    for inputs in task.probes(torch.Generator().manual_seed(0)).values():
        assert b'"other"' not in wire.pack(inputs)
