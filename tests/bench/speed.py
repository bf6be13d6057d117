"""How quick the judge and the import are: `make bench`. Nothing is asserted; machines are noisy.

    python tests/bench/speed.py [TASK ...] [--every 1] [--jobs 2] [--reports FILE]

Each answer that the tests know is judged once: right ones in many styles, every form of every
fault, and the answers of people who had read only the texts (tests/corpus). The judge uses one
core, so its seconds are those of the processor; all answers take half an hour of it, and with
--every 4 a quarter. "First" is the first check of a task in a process
that has warmed up, as the first of a student's day; for all others, what a task's answers share
has been computed before. With --reports, each report is written to a file in a fixed order: two
files are equal where a change has made the judge faster and has changed no sentence.
"""

import argparse
import collections
import gc
import json
import multiprocessing
import pkgutil
import statistics
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))

from corpus import answers
from corpus.correct import CORRECT

from attncourse.checks import compositions, registry, run, task, warm_up

SLOWEST = 30
PAIRS = 20  # of faults, for each task


def seconds(work, *arguments) -> tuple[float, object]:
    task._expected.clear()  # what the reference returned for an earlier answer
    start = time.process_time()
    found = work(*arguments)
    return time.process_time() - start, found


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


def written_by_people(name: str) -> list:
    """Entries for a task, with the corpus they are from."""
    return [
        (module.name, entry)
        for module in pkgutil.iter_modules(answers.__path__)
        for entry in import_module(f"corpus.answers.{module.name}").corpus.all
        if entry.task == name
    ]


def wrong_forms(name: str) -> list[tuple[str, object]]:
    """Every form of every fault, in the plain spelling, by its id and number."""
    every = compositions.singles(registry.find(name))
    return [
        (f"{each.key[0][0][0]}/{each.key[0][0][1]}", each.make)
        for each in every
        if each.key[1] == 0
    ]


def pairs_of_faults(name: str) -> list[tuple[str, object]]:
    """Two faults at once, in the plain spelling: evenly chosen of all that go together."""
    about = registry.find(name)
    every = [
        each
        for each in compositions.pairs(about)
        if each.key[1] == 0 and all(part[0] in about.faults for part in each.key[0])
        if len(each.faults) == 2
    ]
    return [
        (" + ".join(part[0] for part in each.key[0]), each.make)
        for each in every[:: max(1, len(every) // PAIRS)]
    ]


def of_task(job: tuple[str, int]) -> list[tuple]:
    """(kind, seconds, answer, its report) for all answers to a task, but for the first checks."""
    name, every = job
    torch.set_num_threads(1)
    course = [("right", f"{n}", answer) for n, answer in enumerate(CORRECT[name], 1)]
    forms = [("form of a fault", label, make()) for label, make in wrong_forms(name)]
    pairs = [("two faults", label, make()) for label, make in pairs_of_faults(name)]
    people = [
        (f"people's, {'wrong' if entry.slip else 'right'}", f"{entry.id} in {module}", entry.answer)
        for module, entry in written_by_people(name)
    ]
    run(name, forms[0][2])  # computes what all others share
    return [
        (kind, *judged(name, label, answer))
        for kind, label, answer in (course + forms + pairs + people)[::every]
    ]


def first(job: tuple[str, int]) -> list[tuple]:
    """The same of one fault, whose first form is the first answer to the task."""
    name, place = job
    torch.set_num_threads(1)
    fault = list(registry.find(name).faults.values())[place]
    answer = task.answer_of(fault.of, fault.forms[0])
    return [("first", *judged(name, fault.id, answer))]


def judged(name: str, label: str, answer) -> tuple[float, str, str]:
    took, report = seconds(run, name, answer)
    return took, f"{name}: {label}", str(report)


def share(times: list[float], part: float) -> float:
    """The time below which that part of all times lies."""
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*", help="names of tasks; all if none is given")
    parser.add_argument("--every", type=int, default=1, help="judge every n-th answer (1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--reports", type=Path, help="write each report to this file")
    options = parser.parse_args()
    tasks = options.task or list(registry.all_tasks())
    torch.set_num_threads(1)
    if not options.task:
        base, added = imports()
        print(f"import torch, einops: {base:.2f} s; import attncourse on top: {added:.3f} s")
    print(f"the judge's first check in a process (warm_up): {seconds(warm_up)[0]:.2f} s\n")
    firsts = [(name, n) for name in tasks for n in range(len(registry.find(name).faults))]
    jobs = [(of_task, (name, options.every)) for name in tasks]
    jobs += [(first, job) for job in firsts[:: options.every]]
    found = []
    gc.collect()
    gc.freeze()  # as the grader's forks: no collection looks at what they share
    # A fork for each job: what it imports or remembers is gone afterward.
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for rows in tqdm(pool.imap(_do, jobs, chunksize=1), total=len(jobs), leave=False):
            found += rows
    by_kind = collections.defaultdict(list)
    for kind, took, *_ in found:
        by_kind[kind].append(took)
        by_kind["all"].append(took)
    by_kind["all"] = by_kind.pop("all")  # last
    print("| answers | number | median s | 95th percentile | 99th percentile | worst s |")
    print("|---|---|---|---|---|---|")
    for kind, times in by_kind.items():
        parts = " | ".join(f"{share(times, part):.3f}" for part in (0.5, 0.95, 0.99))
        print(f"| {kind} | {len(times)} | {parts} | {max(times):.3f} |")
    print(f"\nThe slowest {SLOWEST}:\n")
    for kind, took, label, _ in sorted(found, key=lambda row: -row[1])[:SLOWEST]:
        print(f"- {took:.2f} s: {label} ({kind})")
    print("\nAll checks of a notebook, its answers right (sum of the medians):\n")
    totals = collections.Counter()
    for name in tasks:
        times = [
            took
            for kind, took, label, _ in found
            if label.startswith(f"{name}: ") and kind == "right"
        ]
        totals[registry.find(name).chapter] += statistics.median(times)
    for stem, total in totals.items():
        print(f"- {stem}: {total:.2f} s")
    if options.reports:
        lines = [json.dumps([kind, label, report]) for kind, _, label, report in found]
        options.reports.write_text("\n".join(lines))


def _do(job: tuple) -> list[tuple]:
    work, argument = job
    return work(argument)


if __name__ == "__main__":
    main()
