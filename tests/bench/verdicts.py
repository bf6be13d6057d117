"""How often the judge is right, on the course's own right and wrong answers.

    python tests/bench/verdicts.py [TASK ...] [--seeds 200] [--jobs 2]

Right answers are judged with many seeds (a rejection is a false alarm), wrong ones with one: are
they rejected, and is the misunderstanding named, wrongly named, or only described?
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))

from correct_answers import CORRECT

from attncourse import misconceptions
from attncourse.checks import engine, run


def right(task: str, place: int, seeds: int) -> tuple:
    torch.set_num_threads(1)
    run(task, CORRECT[task][place])  # whatever is loaded or cached at the first check
    start = time.perf_counter()
    run(task, CORRECT[task][place])
    seconds = time.perf_counter() - start
    return not run(task, CORRECT[task][place], seeds=range(seeds)).passed, seconds


def wrong(task: str, place: int) -> tuple:
    torch.set_num_threads(1)
    chapter = engine.find(task).chapter
    known = [m for m in misconceptions.of_chapter(chapter) if m.task == task]
    verdicts = []
    for form in (known[place].answer, *known[place].variants):
        report = run(task, form)
        start = time.perf_counter()
        report = run(task, form)
        seconds = time.perf_counter() - start
        named = report.diagnosis.id if report.diagnosis else None
        verdict = "accepted" if report.passed else "described"
        if not report.passed and named:
            verdict = (
                "named" if named == known[place].id else f"misnamed {known[place].id}: {named}"
            )
        verdicts.append((verdict, seconds))
    return verdicts


def judge(job: tuple) -> tuple:
    kind, *arguments = job
    return job, (right if kind == "right" else wrong)(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*", help="names of tasks; all if none is given")
    parser.add_argument("--seeds", type=int, default=200, help="for each right answer (200)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    options = parser.parse_args()
    tasks = options.task or list(engine.all_tasks())
    jobs = []
    for task in tasks:
        known = misconceptions.of_chapter(engine.find(task).chapter)
        count = sum(m.task == task for m in known)
        jobs += [("wrong", task, place) for place in range(count)]
        jobs += [("right", task, place, options.seeds) for place in range(len(CORRECT[task]))]
    found = {task: {"right": [], "wrong": []} for task in tasks}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        results = pool.imap_unordered(judge, jobs)
        for (kind, task, *_), verdict in tqdm(results, total=len(jobs), desc="judging"):
            found[task][kind] += [verdict] if kind == "right" else verdict
    print(
        f"| answer | right × {options.seeds} seeds | false alarms | wrong | accepted | named |",
        end="",
    )
    print(" misnamed | median s | worst s |\n|" + "---|" * 9)
    complaints = []
    for task in tasks:
        alarms = [alarm for alarm, _ in found[task]["right"]]
        verdicts = [verdict for verdict, _ in found[task]["wrong"]]
        times = [seconds for kind in ("right", "wrong") for _, seconds in found[task][kind]]
        misnamed = [verdict for verdict in verdicts if verdict.startswith("misnamed")]
        complaints += [f"{task}: {verdict}" for verdict in misnamed]
        print(
            f"| {task} | {len(alarms)} | {sum(alarms)} | {len(verdicts)} "
            f"| {verdicts.count('accepted')} | {verdicts.count('named')} | {len(misnamed)} "
            f"| {statistics.median(times):.2f} | {max(times):.2f} |"
        )
    print("\n".join(complaints))


if __name__ == "__main__":
    main()
