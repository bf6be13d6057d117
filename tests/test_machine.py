"""The machine is not the student: what it is short of or breaks is nobody's zero, and is said.

Each fault meets a class that is graded. Afterwards gradebook, results and records are what they
were; the command says what died, in the first error's words, and what helps; and it does not end
with 0. Faults of the code that grades are written into a copy of the package.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT, copy_course

from attncourse.grading.inbox import sample
from attncourse.grading.jail.cures import cure_for
from attncourse.grading.jail.remote import why_no_jail

NAME = "03_scaled_dot_product"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="jails are made of Linux namespaces"),
]


@dataclass(frozen=True)
class Fault:
    """One line of the package, as it would behave on a broken machine."""

    file: str  # in attncourse/grading/jail
    line: str  # what stands there, stripped
    instead: str
    said: str


ASKED = "reply = getattr(names, question)(*arguments)"
FAULTS = {
    "what loads torch cannot": Fault(
        "forkserver.py", "child.torch_is_ready()", 'raise ImportError("libcuda.so")', "libcuda.so"
    ),
    "a GPU's thread": Fault(
        "child.py", "threads = _threads()", "threads = 3", "3 threads before a fork"
    ),
    "a worker cannot begin": Fault(
        "workers.py",
        "grade.use_zygote(zygote)",
        'raise ImportError("no lxml")',
        "ImportError: no lx",
    ),
    "what forks jails cannot load": Fault(
        "child.py", "withheld.find()", 'raise AttributeError("no softmax")', "no softmax"
    ),
    "what forks jails crashes": Fault(
        "child.py", "withheld.find()", "os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"
    ),
    "children end when they start": Fault(
        "child.py", "os.setsid()", "os._exit(7)", "ended Python itself, 3 times"
    ),
    "children end at the first question": Fault(
        "child.py", ASKED, "os._exit(1)", "its process ended Python itself"
    ),
    "children crash at the first question": Fault(
        "child.py", ASKED, "os.abort()", "its process made Python crash"
    ),
    "children cannot be asked": Fault(
        "child.py", ASKED, 'raise TypeError("older library")', "TypeError: older library"
    ),
    "the judge raises": Fault(
        "grade.py", "points_agree(job)", 'raise ValueError("damaged data")', "damaged data"
    ),
    "numbers are wrong": Fault(
        "child.py",
        "torch.set_num_threads(1)",
        "torch.exp = torch.sigmoid",
        "of 12 points (fails: weights",
    ),
}
LIMITS = "-v 3000000", "-n 48", "-f 100", "-t 60"


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Path:
    """A class of three, graded."""
    if reason := why_no_jail():
        pytest.skip(f"no jail can be built here: {reason}")
    folder = tmp_path_factory.mktemp("machine")
    copy_course(ROOT, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sample.write_class(NAME, 3)
    assert grade(folder)[0] == 0
    return folder


@pytest.fixture
def course(graded, tmp_path) -> Path:
    """A copy of that class to break."""
    return shutil.copytree(graded, tmp_path / "course")


def grade(
    folder: Path,
    *options: str,
    limits: str = "",
    package: Path = ROOT,
    meanwhile: Callable[[subprocess.Popen], None] = lambda _: None,
) -> tuple[int, str, float]:
    """`attncourse grade`: its exit code, what it said, and how long it took."""
    environment = os.environ | {"PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "attncourse", "grade", NAME, "--jobs", "1", *options]
    if limits:
        command = ["sh", "-c", f'ulimit {limits}; exec "$@"', "sh", *command]
    started = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        meanwhile(process)
        said, _ = process.communicate(timeout=300)
    return process.returncode, said, time.monotonic() - started


def kept(folder: Path) -> tuple:
    """All that a failed run must leave alone: points, results, records."""
    book = sqlite3.connect(f"file:{folder}/gradebook.db?mode=ro", uri=True)
    points = book.execute("select auto_score, manual_score, notebook_id from grade").fetchall()
    book.close()
    files = {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.glob("autograded/*/*/*"))
    }
    return sorted(points, key=repr), files


def with_fault(fault: Fault, folder: Path) -> Path:
    """A copy of the package in which one line is another; what is compiled fits the other files."""
    shutil.copytree(ROOT / "attncourse", folder / "attncourse")
    file = folder / "attncourse" / "grading" / "jail" / fault.file
    found = rf"^( +){re.escape(fault.line)}.*$"
    text, times = re.subn(found, rf"\1{fault.instead}", file.read_text(), flags=re.MULTILINE)
    assert times == 1, fault
    file.write_text(text)
    return folder


def says_so(done: tuple[int, str, float], *words: str) -> None:
    code, said, seconds = done
    assert code == 2 and seconds < 60, done
    assert "Traceback" not in said and "graded" not in said.split("attncourse:")[0], said
    for each in words:
        assert each in said, said


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_what_grades_ends_the_run_and_changes_nothing(name, course, tmp_path):
    before = kept(course)
    package = with_fault(FAULTS[name], tmp_path / "package")
    done = grade(course, package=package)  # its files differ, so all would be graded again
    says_so(done, "this machine cannot grade", FAULTS[name].said, "Nothing was booked")
    assert kept(course) == before


def test_a_thread_that_the_driver_of_a_gpu_starts_changes_no_points(course, tmp_path):
    asked = "torch.cuda.is_available()"
    thread = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    fault = Fault("child.py", asked, f"{asked}; {thread}", "")
    points, _ = kept(course)
    code, said, _ = grade(course, "--force", package=with_fault(fault, tmp_path / "package"))
    assert code == 0, said
    assert kept(course)[0] == points


@pytest.mark.parametrize("limits", LIMITS)
def test_a_machine_that_is_short_of_something_says_what_helps(limits, course):
    before = kept(course)
    # With CUDA, torch alone takes more room than that, and is killed before anything can be said.
    helps = "lift" if torch.version.cuda and limits.startswith("-v") else "Raise it:"
    says_so(grade(course, "--force", limits=limits), f"{helps} `ulimit {limits[:2]}")
    assert kept(course) == before


def test_a_machine_that_kills_all_that_grades_changes_nothing(course):
    before = kept(course)

    def kill_all(process):
        while process.poll() is None:
            time.sleep(0.5)
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()

    says_so(grade(course, "--force", meanwhile=kill_all), "was killed 3 times", "Is memory short")
    assert kept(course) == before


def test_a_machine_that_breaks_on_the_way_keeps_what_it_has_done(course, tmp_path):
    broken = tmp_path / "broken"
    dies = f"os.path.exists({str(broken)!r}) and os.kill(forked, 9)"
    fault = Fault("child.py", "living[forked] = status", f"living[forked] = status; {dies}", "")
    package = with_fault(fault, tmp_path / "package")
    before, log = kept(course), course / "autograded" / f"{NAME}.log"
    size = log.stat().st_size

    def breaks(process):
        while process.poll() is None and log.stat().st_size == size:
            time.sleep(0.01)
        broken.touch()

    code, said, _ = grade(course, package=package, meanwhile=breaks)
    assert code == 2 and "killed from outside" in said and "What is graded is kept" in said
    points, files = kept(course)
    assert points == before[0] and files.keys() == before[1].keys()


# A student's own end costs nobody else a point, and does not stop the class.
ENDS = {
    "exits": "import os\nos._exit(0)",
    "crashes": "import os\nos.abort()",
    "says that memory is short": "raise MemoryError",
}


def test_students_who_end_their_processes_on_purpose_stop_no_class(course):
    for number, (who, line) in enumerate(ENDS.items()):
        folder = course / "submitted" / who.replace(" ", "_") / NAME
        shutil.copytree(course / "submitted" / "student01" / NAME, folder)
        file = folder / f"{NAME}.ipynb"
        content = json.loads(file.read_text(encoding="utf-8"))
        for cell in content["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == "softmax":
                marker = f"# attncourse: {NAME}/softmax\ndef softmax(scores, dim=-1):\n    "
                cell["source"] = marker + line.replace("\n", "\n    ") + f"\n# {number}"
        file.write_text(json.dumps(content), encoding="utf-8")
    code, said, _ = grade(course)
    assert code == 0 and "graded 3 submissions" in said, said
    for who in ENDS:
        result = course / "autograded" / who.replace(" ", "_") / NAME / "result.json"
        verdicts = json.loads(result.read_text(encoding="utf-8"))["verdicts"]
        assert verdicts["softmax"]["visible"] == 0 and verdicts["score_variance"]["visible"] > 0


def test_a_notebook_that_is_away_for_a_moment_is_no_zero(course):
    before = kept(course)
    file = course / "submitted" / "student01" / NAME / f"{NAME}.ipynb"
    file.rename(file.with_suffix(".away"))
    code, said, _ = grade(course, "--force", "--students", "student01")
    assert code == 3 and "not graded: student01: there is no notebook" in said
    assert "no zero was written" in said
    assert kept(course) == before


def test_half_a_copy_of_a_notebook_replaces_no_points(course):
    before = kept(course)
    file = course / "submitted" / "student01" / NAME / f"{NAME}.ipynb"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    code, said, _ = grade(course)
    assert code == 3 and "not graded: student01: the file cannot be read" in said
    assert kept(course) == before


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("clone (new namespaces): No space left on device", "user.max_user_namespaces"),
        ("clone (new namespaces): Operation not permitted", "apparmor_restrict"),
        ("clone (new namespaces): Cannot allocate memory", "fewer --jobs"),
        ("[Errno 24] Too many open files: '/usr'", "ulimit -n 4096"),
        ("[Errno 28] No space left on device", "room on the disk"),
        ("RuntimeError: can't start new thread", "ulimit -u"),
        ("`ulimit -c` is lower here than in a jail", "`* hard core unlimited` in /etc"),
        ("something else", "attncourse doctor"),
    ],
)
def test_a_shortage_gets_the_right_cure(reason, cure):
    assert cure in cure_for(reason)
