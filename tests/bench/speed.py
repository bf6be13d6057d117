"""How quick the judge and the import are: `make bench`. Nothing is asserted; machines are noisy.

    python tests/bench/speed.py [TASK ...]

The judge uses one core, so its seconds are those of the processor. Every task stands beside a
yardstick measured right before it (a fixed piece of torch work), so that two runs can be compared
by the ratio, on different machines or on one whose speed changes. "First wrong" is the first check
in a process that has warmed up, as the first of a student's day.
"""

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from corpus.correct import CORRECT

from attncourse.checks import registry, run, task, warm_up
from attncourse.checks.task import answer_of


def seconds(work, *arguments) -> float:
    task._expected.clear()  # what the reference returned for an earlier answer
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def yardstick() -> float:
    """A thousand times a softmax and a product of small matrices: the median of 15 goes."""
    x = torch.ones(8, 8)
    return statistics.median(
        seconds(lambda: [x.softmax(-1) @ x for _ in range(1000)]) for _ in range(15)
    )


def imports(repeats: int = 7) -> tuple[float, float]:
    """Seconds for the import of torch and einops, and what `import attncourse` adds to it."""
    code = (
        "import time; a = time.perf_counter(); import torch, einops; b = time.perf_counter(); "
        "import attncourse; c = time.perf_counter(); print(b - a, c - b)"
    )
    goes = [
        tuple(map(float, subprocess.check_output([sys.executable, "-c", code]).split()))
        for _ in range(repeats)
    ]
    return tuple(statistics.median(column) for column in zip(*goes, strict=True))


def wrong_answers(name: str) -> list:
    about = registry.find(name)
    return [answer_of(about, fault.forms[0]) for fault in about.faults.values()]


def first_wrong(name: str) -> float:
    return seconds(run, name, wrong_answers(name)[0])


def in_its_own_process(work, *arguments):
    """A fork of this one: what the work imports or remembers is gone afterward."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*", help="names of tasks; all if none is given")
    tasks = parser.parse_args().task or list(registry.all_tasks())
    torch.set_num_threads(1)
    base, added = imports()
    print(f"import torch, einops: {base:.2f} s; import attncourse on top: {added:.3f} s")
    print(f"the judge's first check in a process (warm_up): {seconds(warm_up):.2f} s")
    firsts = {name: in_its_own_process(first_wrong, name) for name in tasks}
    print("yardstick: 1,000 small softmaxes and products\n")
    print("| task | answers | median s | worst s | yardstick ms | median / yardstick |")
    print("|---|---|---|---|---|---|")

    def row(name: str, kind: str, times: list[float]) -> None:
        middle = statistics.median(times)
        print(
            f"| {name} | {len(times)} {kind} | {middle:.3f} | {max(times):.3f} "
            f"| {unit * 1000:.1f} | {middle / unit:.0f} |"
        )

    totals = dict.fromkeys((registry.find(name).chapter for name in tasks), 0.0)
    for name in tasks:
        unit = yardstick()
        times = [seconds(run, name, answer) for answer in CORRECT[name]]
        totals[registry.find(name).chapter] += statistics.median(times)
        row(name, "right", times)
        mistakes = wrong_answers(name)
        run(name, mistakes[0])  # computes what all others share
        row(name, "wrong", [seconds(run, name, answer) for answer in mistakes])
        row(name, "first wrong", [firsts[name]])
    print("\nAll checks of a notebook, its answers right (sum of the medians):\n")
    for stem, total in totals.items():
        print(f"- {stem}: {total:.2f} s")


if __name__ == "__main__":
    main()
