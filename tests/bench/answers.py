"""How the judge does on answers by people who had only read the tasks' texts.

    python tests/bench/answers.py [--held-out] [--jobs 2] [--complain] [MODULE ...]

The answers in tests/corpus/answers/ were written without a look at the judge; only then was each
wrong one marked with the misconceptions that would be a fair diagnosis. A name counts as right if
it is among them. (The author of `open_book` had looked, and the catalogue was mended with all
answers of `first_sight_8_9` in view: their lines show what is accepted, and no more.
Before anything was mended by `blind_8_13`, all of it in view, 29 of its 30 right ones were accepted
and 79 of its 80 wrong ones caught; 55 of 65 single mistakes had their name, both of two in 12 of
15 answers.)
Every tenth answer is held out: it is judged with --held-out only, and nobody mends the
catalogue by it.
"""

import argparse
import collections
import importlib
import multiprocessing
import pkgutil
import sys
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))

from corpus import answers

from attncourse.checks import run


def entries(module: str, held_out: bool) -> list:
    every = importlib.import_module(f"corpus.answers.{module}").corpus.all
    return [entry for entry in every if held_out or not entry.held_out]


def judge(job: tuple[str, int, bool]) -> tuple[str, str]:
    """The verdict on one answer, and a line about it."""
    torch.set_num_threads(1)
    module, place, held_out = job
    entry = entries(module, held_out)[place]
    report = run(entry.task, entry.answer)
    if entry.slip is None:
        return ("right", "") if report.passed else ("refused", f"{entry.id}: {report}")
    if report.passed:
        return "accepted", f"{entry.id}: {entry.slip}"
    diagnosis = report.diagnosis
    line = f"{entry.id}: {entry.slip} -> {diagnosis.title} {diagnosis.seen} {entry.accept}"
    ids = set(diagnosis.ids)
    known = [fault for fault in ids if not fault.startswith("AS-IF")]
    hit = [bool(ids & set(accepted)) for accepted in entry.mistakes]
    if known and all(hit):
        return "named", line
    if known and any(hit):
        return "half", line
    if known:
        return "other", line
    if ids:
        return "as if", line
    return ("statement" if diagnosis.seen else "evidence"), line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found = sorted(module.name for module in pkgutil.iter_modules(answers.__path__))
    parser.add_argument("module", nargs="*", default=found, help=f"of {', '.join(found)}")
    parser.add_argument("--held-out", action="store_true", help="also what is held out")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--complain", action="store_true", help="a line for each that has no name")
    options = parser.parse_args()
    print(
        "| answers | right ones accepted | wrong ones | caught | named | half of two | "
        "a statement | as if | otherwise named | evidence only |"
    )
    print("|" + "---|" * 10)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for module in options.module:
            every = entries(module, options.held_out)
            parts = {"one mistake": [], "two mistakes": []}
            jobs = [(module, place, options.held_out) for place in range(len(every))]
            results = tqdm(pool.imap(judge, jobs), total=len(jobs), desc=module, leave=False)
            right, lines = collections.Counter(), []
            for entry, (verdict, line) in zip(every, results, strict=True):
                if entry.slip is None:
                    right[verdict] += 1
                else:
                    parts["two mistakes" if len(entry.mistakes) > 1 else "one mistake"].append(
                        verdict
                    )
                if verdict not in ("right", "named"):
                    lines.append(f"{verdict}: {line}")
            for part, verdicts in parts.items():
                if not verdicts:
                    continue
                count, n = collections.Counter(verdicts), len(verdicts)
                shares = [
                    f"{count[each]} ({100 * count[each] / n:.1f} %)"
                    for each in ("named", "half", "statement", "as if", "other", "evidence")
                ]
                accepted = f"{right['right']} of {right.total()}"
                print(
                    f"| {module}, {part} | {accepted} | {n} | {n - count['accepted']} | "
                    + " | ".join(shares)
                    + " |",
                    flush=True,
                )
            if options.complain:
                print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
