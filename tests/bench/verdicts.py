"""How often the judge is right, on the course's own right and wrong answers.

    python tests/bench/verdicts.py [TASK ...] [--seeds 200] [--jobs 2]

Right answers are judged with many seeds (a rejection is a false alarm): the first six of a task
with all of them, the others with a tenth. Wrong answers are judged with one seed: are they
rejected, and is the misunderstanding named, wrongly named, or only described?
"""

import argparse
import multiprocessing
import sys
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))

from corpus.correct import CORRECT

from attncourse.checks import compositions, engine, registry, run

MANY = 6  # so many answers of a task are judged with every seed


def right(task: str, place: int, seeds: int) -> tuple[int, int]:
    torch.set_num_threads(1)
    reports = engine.run_each(task, CORRECT[task][place], range(seeds))
    return seeds, sum(not report.passed for report in reports)


def known_errors(task: str) -> list[compositions.Explanation]:
    """Every form of every misconception, in all spellings of the steps around it."""
    return list(compositions.singles(registry.find(task)))


def wrong(task: str, place: int) -> list[str]:
    torch.set_num_threads(1)
    known = known_errors(task)[place]
    (fault,) = known.faults
    report = run(task, known.make())
    if report.passed:
        return ["accepted"]
    if not report.diagnosis.ids:
        return ["described"]
    return [
        "named"
        if report.diagnosis.ids == [fault.id]
        else f"misnamed {fault.id}: {report.diagnosis.title}"
    ]


def judge(job: tuple) -> tuple[str, tuple | list]:
    kind, *arguments = job
    return kind, (right if kind == "right" else wrong)(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*", help="names of tasks; all if none is given")
    parser.add_argument("--seeds", type=int, default=200, help="for each right answer (200)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    options = parser.parse_args()
    print(
        "| answer | right answers | judged | false alarms | wrong | accepted | named | misnamed |"
    )
    print("|" + "---|" * 8)
    complaints = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for task in options.task or registry.all_tasks():
            jobs = [("wrong", task, place) for place in range(len(known_errors(task)))]
            for place in range(len(CORRECT[task])):
                seeds = options.seeds if place < MANY else max(1, options.seeds // 10)
                jobs.append(("right", task, place, seeds))
            found = {"right": [], "wrong": []}
            results = pool.imap_unordered(judge, jobs)
            for kind, verdict in tqdm(results, total=len(jobs), desc=task, leave=False):
                found[kind] += [verdict] if kind == "right" else verdict
            judged, alarms = map(sum, zip(*found["right"], strict=True))
            verdicts = found["wrong"]
            misnamed = [verdict for verdict in verdicts if verdict.startswith("misnamed")]
            complaints += [f"{task}: {verdict}" for verdict in misnamed]
            print(
                f"| {task} | {len(CORRECT[task])} | {judged} | {alarms} | {len(verdicts)} "
                f"| {verdicts.count('accepted')} | {verdicts.count('named')} | {len(misnamed)} |",
                flush=True,
            )
    print("\n".join(complaints))


if __name__ == "__main__":
    main()
