"""Several graders write into one gradebook at once: SQLite, and a PostgreSQL server of our own."""

import contextlib
import glob
import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attncourse import cli
from attncourse.grading.books import disk, nbgrader_api
from attncourse.grading.inbox import sample
from attncourse.grading.jail.job import key_of
from attncourse.grading.jail.result import Result, Verdict

CHAPTER_3 = "03_scaled_dot_product"
STUDENTS = 24


@contextlib.contextmanager
def a_server():
    """The address of an empty server that listens on a socket in a folder of its own; or None."""
    programs = [
        *glob.glob("/usr/lib/postgresql/*/bin"),
        os.path.dirname(shutil.which("initdb") or ""),
    ]
    if not programs[0] or importlib.util.find_spec("psycopg") is None:
        yield None
        return
    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")  # a socket's path must be short
    # The server refuses to run as root.
    who = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    if who:
        shutil.chown(folder, "nobody", "nogroup")

    def call(program: str, *arguments: str) -> None:
        command = [f"{programs[0]}/{program}", "-D", f"{folder}/data", *arguments]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, cwd=folder, **quiet, **who)

    call("initdb", "--auth", "trust", "--username", "grader", "--no-sync", "--encoding", "UTF8")
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    call("pg_ctl", "start", "-w", "-o", options, "-l", f"{folder}/log")
    try:
        yield f"postgresql+psycopg://grader@/postgres?host={folder}"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            call("pg_ctl", "stop", "-m", "immediate")
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server():
    with a_server() as address:
        if not address:
            pytest.skip("needs PostgreSQL and psycopg (Debian: apt-get install postgresql)")
        yield address


@pytest.fixture
def graded(course) -> dict[str, float]:
    """A class with a result for everybody, of which the gradebook knows nothing yet: points."""
    sample.write_class(CHAPTER_3, STUDENTS)
    job = disk.job_of(CHAPTER_3)
    graded, points = job.about.graded, {}
    for number, (student, folder) in enumerate(disk.submissions(CHAPTER_3).items()):
        result = Result({g.task: Verdict(number % 5, 2, g.points) for g in graded})
        key = key_of(job, (folder / f"{CHAPTER_3}.ipynb").read_bytes())
        disk.store_result(disk.result_path(CHAPTER_3, student), key, result)
        disk.store(disk.record_path(CHAPTER_3, student), "{}")
        points[student] = result.score
    return points


def grade(students: str) -> None:
    """`attncourse grade`, in a process that ends with it."""
    done = CliRunner().invoke(cli.app, ["grade", CHAPTER_3, "--students", students])
    print(done.output)
    sys.exit(done.exit_code)


def booked_by_two() -> dict[str, float]:
    """What stands in the gradebook after two runs at once, from nothing; half is of both."""
    names = list(disk.submissions(CHAPTER_3))
    third = STUDENTS // 4
    mine = (names[: 3 * third], names[third:])
    # Forks: processes of their own, which need not load torch again.
    fork = multiprocessing.get_context("fork")
    graders = [fork.Process(target=grade, args=(",".join(some),)) for some in mine]
    for grader in graders:
        grader.start()
    for grader in graders:
        grader.join(timeout=120)
        assert grader.exitcode == 0
    with nbgrader_api.gradebook() as book:
        assert len(book.students) == STUDENTS
        return {each.student.id: each.score for each in book.assignment_submissions(CHAPTER_3)}


@pytest.mark.slow
def test_two_graders_share_a_file(graded):
    assert booked_by_two() == graded


@pytest.mark.slow
def test_two_graders_share_a_server(graded, server):
    with Path("nbgrader_config.py").open("a") as file:
        file.write(f"\nc.CourseDirectory.db_url = {server!r}\n")
    nbgrader_api._api_of.cache_clear()
    assert booked_by_two() == graded
    assert not Path("gradebook.db").exists()
