"""Grading on a dask cluster: the same results, whoever dies on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, copy_course, heeds_interrupts

from attncourse.grading.books import disk
from attncourse.grading.inbox import sample
from attncourse.grading.jail import workers
from attncourse.grading.jail.cluster import Unusable, on_cluster
from attncourse.grading.jail.remote import why_no_jail

distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the jail is made of Linux namespaces"),
]
CHAPTER_3 = "03_scaled_dot_product"


def start(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        start_new_session=True,
    )


def start_worker(address: str, **environment: str) -> subprocess.Popen:
    here = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0")
    return start("distributed.cli.dask_worker", address, *here, **environment)


def end(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """The address of a scheduler, with one worker."""
    if reason := why_no_jail():
        pytest.skip(f"no jail can be built here: {reason}")
    file = tmp_path_factory.mktemp("dask") / "scheduler.json"
    address = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    blame_at_once = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    process = start("distributed.cli.dask_scheduler", *address, "--no-dashboard", **blame_at_once)
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.1)
    address = json.loads(file.read_text())["address"]
    worker = start_worker(address)
    yield address
    end(worker)
    end(process)


@pytest.fixture(scope="module")
def class_of_six(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("course")
        copy_course(ROOT, folder)
        patch.chdir(folder)
        sample.write_class(CHAPTER_3, 6)
        yield disk.submissions(CHAPTER_3)


def stored() -> dict[str, float]:
    """When the result of each student was written."""
    paths = {student: disk.result_path(CHAPTER_3, student) for student in os.listdir("submitted")}
    return {student: path.stat().st_mtime for student, path in paths.items() if path.exists()}


def grade(address: str, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "attncourse", "grade", CHAPTER_3, "--cluster", address, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    )


def test_nobody_is_lost_with_a_worker_or_a_keyboard_interrupt(scheduler, class_of_six):
    mortal = start_worker(scheduler)
    try:
        grader = grade(scheduler)
        while len(stored()) < 1 and grader.poll() is None:
            time.sleep(0.02)
        grader.send_signal(signal.SIGINT)
        out, err = grader.communicate(timeout=240)
        assert grader.returncode == 2 and "stopped" in err, out + err
        kept = stored()
        assert 1 <= len(kept) < 6

        grader = grade(scheduler)
        while len(stored()) < len(kept) + 1 and grader.poll() is None:
            time.sleep(0.02)
        os.kill(mortal.pid, signal.SIGKILL)
        out, err = grader.communicate(timeout=240)
        assert grader.returncode == 0, out + err
        assert f"{len(kept)} had not changed" in out
        assert stored().items() >= kept.items() and len(stored()) == 6
    finally:
        end(mortal)
    job = disk.job_of(CHAPTER_3)
    here = workers.in_processes(1)(
        job, {s: disk.notebook_in(f)[0] for s, f in class_of_six.items()}
    )
    for student, reply in here:
        there = disk.load_result(disk.result_path(CHAPTER_3, student))[1].as_data()
        assert there | {"seconds": 0} == reply["result"] | {"seconds": 0}


def test_a_worker_that_cannot_grade_is_named_and_costs_nobody_a_point(
    scheduler, class_of_six, tmp_path
):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('libfreetype.so.6')")
    with distributed.Client(scheduler) as client:
        broken = start_worker(scheduler, PYTHONPATH=str(tmp_path))
        client.wait_for_workers(2, timeout=240)
    before = {path: path.read_bytes() for path in Path("autograded").glob("*/*/*")}
    try:
        out, err = (grader := grade(scheduler, "--force")).communicate(timeout=240)
        assert grader.returncode == 2 and "this machine cannot grade" in err, out + err
        assert "the worker tcp://" in err and "libfreetype.so.6" in err
    finally:
        end(broken)
    after = {path: path.read_bytes() for path in Path("autograded").glob("*/*/*")}
    assert after.keys() >= before.keys()
    points = [disk.load_result(disk.result_path(CHAPTER_3, each)) for each in class_of_six]
    assert all(each.result.readable for each in points if each)


def test_another_version_on_the_workers_is_an_error(scheduler, class_of_six, monkeypatch):
    monkeypatch.setattr("attncourse.grading.jail.cluster.version", lambda: b"of another day")
    notebooks = {"a": Path(class_of_six["student01"], f"{CHAPTER_3}.ipynb")}
    with pytest.raises(Unusable, match="another version of attncourse"):
        list(on_cluster(scheduler)(disk.job_of(CHAPTER_3), notebooks))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tls://127.0.0.1:9", "nowhere.invalid"])
def test_a_scheduler_that_is_not_there_is_an_error_at_once(class_of_six, address):
    notebooks = {"a": Path(class_of_six["student01"], f"{CHAPTER_3}.ipynb")}
    started = time.monotonic()
    with pytest.raises(Unusable, match="no dask scheduler answers"):
        list(on_cluster(address)(disk.job_of(CHAPTER_3), notebooks))
    assert time.monotonic() - started < 10
