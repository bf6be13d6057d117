"""How quick grading is, beside nbgrader's own: `python tests/bench/grading.py [--students N]`.

The same made-up class is graded by stock nbgrader and by this course, each as one command from
start to end. "Each further" leaves out the start: it is the time between the first output and the
last, by student. What takes seconds is done several times, before stock nbgrader and after it, and
the median counts. All figures are of one run on one machine, and only their ratios travel.
"""

import argparse
import collections
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import nbformat
from conftest import ROOT, copy_course

from attncourse.grading.books import disk
from attncourse.grading.inbox import sample
from attncourse.grading.jail import workers
from attncourse.grading.outbox.release import TaskFacts

ASSIGNMENT = "03_scaled_dot_product"
OURS = 4  # times that each of our commands is measured, before stock nbgrader and after it
STOCK = """
c = get_config()
c.CourseDirectory.course_id = "attncourse"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=24)
    size = parser.parse_args().students
    nbgrader = [sys.executable, "-m", "nbgrader"]
    course = [sys.executable, "-m", "attncourse"]
    taken, between = collections.defaultdict(list), collections.defaultdict(list)
    pages = f"feedback/*/{ASSIGNMENT}/*.html"

    def measure(name: str, outputs: str, command: list[str]) -> None:
        started = time.time()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        taken[name].append((time.time() - started) / size)
        times = sorted(path.stat().st_mtime for path in Path().glob(outputs))
        assert len(times) == size, f"{name}: {len(times)} of {size}"
        between[name].append((times[-1] - times[0]) / (size - 1))

    def ours() -> None:
        with a_class(size):
            results = f"autograded/*/{ASSIGNMENT}/result.json"
            grade = [*course, "grade", ASSIGNMENT, "--force"]
            for _ in range(OURS):
                measure("points", results, [*grade, "--no-record"])
                measure("grade", results, grade)
                measure("feedback", pages, [*course, "feedback", ASSIGNMENT, "--force"])

    ours()
    with a_class(size):
        Path("nbgrader_config.py").write_text(STOCK)
        solution = Path("solutions", ASSIGNMENT, f"{ASSIGNMENT}.ipynb")
        content, _ = TaskFacts().preprocess(nbformat.read(solution, as_version=4), {})
        nbformat.write(content, solution)  # nbgrader by itself reads the points there
        release = [*nbgrader, "generate_assignment", ASSIGNMENT, "--force"]
        subprocess.run(release, check=True, capture_output=True)
        notebooks = f"autograded/*/{ASSIGNMENT}/*.ipynb"
        measure("nbgrader autograde", notebooks, [*nbgrader, "autograde", ASSIGNMENT])
        measure("nbgrader feedback", pages, [*nbgrader, "generate_feedback", ASSIGNMENT])
    ours()
    whole, further = (
        {name: statistics.median(values) for name, values in each.items()}
        for each in (taken, between)
    )

    def plus(name: str, first: str, second: str) -> None:
        for each in (whole, further):
            each[name] = each[first] + each[second]

    plus("nbgrader autograde and generate_feedback", "nbgrader autograde", "nbgrader feedback")
    plus("attncourse grade and feedback", "grade", "feedback")

    print(f"{size} submissions of {ASSIGNMENT}, {os.cpu_count()} cores, seconds a submission\n")
    print("| | whole run | ratio | each further | ratio |\n|---|---|---|---|---|")
    for name, other in (
        ("nbgrader autograde", "nbgrader autograde"),
        ("points", "nbgrader autograde"),
        ("grade", "nbgrader autograde"),
        ("nbgrader autograde and generate_feedback", "nbgrader autograde and generate_feedback"),
        ("attncourse grade and feedback", "nbgrader autograde and generate_feedback"),
    ):
        cells = (
            f"{each[name]:.3f} | {each[other] / each[name]:.1f} ×" for each in (whole, further)
        )
        said = {"points": "attncourse, points only", "grade": "attncourse grade"}.get(name, name)
        print(f"| {said} | {' | '.join(cells)} |")
    print(f"\nThe course's own solution, graded first: {proof():.2f} s in a worker that is warm.")


def proof() -> float:
    """Seconds in which a machine proves that it can grade."""
    with a_class(0):
        worker, seconds = workers.Worker(disk.job_of(ASSIGNMENT)), []
        for _ in range(1 + OURS):  # the first loads torch
            started = time.monotonic()
            worker.take(None)
            worker.reply()
            seconds.append(time.monotonic() - started)
        worker.end()
    return statistics.median(seconds[1:])


@contextlib.contextmanager
def a_class(size: int):
    """A course folder of one's own, with a class that nobody has graded."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        copy_course(ROOT, Path(folder))
        sample.write_class(ASSIGNMENT, size)
        yield


if __name__ == "__main__":
    main()
