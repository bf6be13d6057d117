"""Nobody loses a point to a process that dies: `python tests/bench/monkey.py [--kills N]`.

A class of made-up students and of the whole zoo is graded undisturbed. Then it is graded while a
monkey kills random processes of the run (the grader, the fork server, workers and zygotes, prepared
zygotes, children and what they have started) with SIGKILL and SIGTERM, and starts the
grader again when it was the one. Every point must be the same. A class that is done before the
monkey has had enough is graded once more. Exit code 1 if a point differs.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from conftest import ROOT, copy_course
from corpus.zoo import ASSIGNMENT, CASES, built
from test_zoo import hand_in, student

from attncourse.grading import CannotGrade
from attncourse.grading.books import disk, run
from attncourse.grading.inbox import sample
from attncourse.grading.jail import workers
from attncourse.grading.jail.job import Budget

# Who takes long to start is killed less often, or the run would never end.
ROLES = ("grader", "fork server", "worker or zygote", "prepared zygote", "child")
WEIGHTS = (1, 1, 4, 12, 12)


def grade() -> None:
    """One run, in a process of its own that may be killed."""
    job = disk.job_of(ASSIGNMENT, budget=Budget(call=6, task=12, submission=60), record=False)
    try:
        for _ in run.grade_class(job, disk.submissions(ASSIGNMENT), workers.in_processes(2)):
            pass
    except CannotGrade as error:  # it was killed three times in a row
        sys.exit(f"stopped: {error}")


def start() -> subprocess.Popen:
    return subprocess.Popen([sys.executable, __file__, "--grade"], start_new_session=True)


def graded() -> dict[str, dict]:
    """By student, what a run has stored."""
    found = {}
    for who in disk.submissions(ASSIGNMENT):
        with contextlib.suppress(OSError):
            found[who] = json.loads(disk.result_path(ASSIGNMENT, who).read_text())
    return found


def points(result: dict) -> dict[str, list[float]]:
    verdicts = result["verdicts"].items()
    return {task: [verdict["visible"], verdict["hidden"]] for task, verdict in verdicts}


def role(process: psutil.Process, grader: int) -> str:
    """What a process of the run is there for, by how far it is from the grader."""
    line = [each.pid for each in process.parents()]
    depth = line.index(grader) + 1 if grader in line else 0
    return ROLES[min(depth, len(ROLES) - 1)]


def disturb(kills: int, pause: float, random: random.Random) -> collections.Counter:
    """Grade the class once more, with a monkey; returns how often it killed whom, and with what."""
    done, grader = collections.Counter(), start()
    while True:
        time.sleep(random.uniform(0, pause))
        if grader.poll() is not None:
            if grader.returncode == 0:
                return done
            done["the run itself, stopped"] += grader.returncode > 0
            grader = start()
        if done.total() >= kills:
            continue  # the rest in peace
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(grader.pid)
            family = collections.defaultdict(list)
            for each in (top, *top.children(recursive=True)):
                family[role(each, grader.pid)].append(each)
            # The last is the fork server: those that it has forked go on, out of this family.
            last = done.total() == kills - 1
            who = "fork server" if last else random.choices(ROLES, WEIGHTS)[0]
            if family["child"] and family[who]:  # an answer is being judged, here or there
                how = random.choice([signal.SIGKILL, signal.SIGTERM])
                random.choice(family[who]).send_signal(how)
                done[f"{who}, {how.name}"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=200, help="besides the zoo")
    parser.add_argument("--cases", type=int, default=len(CASES), help="of the zoo")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.5, help="at most so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grade", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.grade:
        return grade()
    dice, done, wrong = random.Random(wanted.seed), collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        copy_course(ROOT, Path(folder))
        sample.write_class(ASSIGNMENT, wanted.students)
        for name in list(CASES)[: wanted.cases]:
            hand_in(student(name), built(CASES[name]))
        started = time.time()
        assert start().wait() == 0
        expected, quiet = graded(), time.time() - started
        rounds = again = 0
        started = time.time()
        while done.total() < wanted.kills:
            shutil.rmtree("autograded")
            done += disturb(wanted.kills - done.total(), wanted.pause, dice)
            rounds, found = rounds + 1, graded()
            doubtful = {who for who, result in found.items() if not result["key"]}
            doubtful |= expected.keys() - found.keys()
            if doubtful:
                assert start().wait() == 0  # because of the monkey: they are judged again
                again, found = again + len(doubtful), graded()
            assert found.keys() == expected.keys(), "somebody is missing"
            for who, result in found.items():
                if points(result) != points(expected[who]):
                    wrong.append(who)
                    print(who, points(expected[who]), result, sep="\n  ")
    print(f"{len(expected)} submissions, undisturbed in {quiet:.0f} s ({os.cpu_count()} cores)")
    print(f"{rounds} rounds with {done.total()} kills in {time.time() - started:.0f} s:")
    for name, count in sorted(done.items()):
        print(f"  {name}: {count}")
    print(f"{again} were not judged, and judged by the next run")
    print(f"{len(wrong)} with other points than undisturbed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
