"""Timers against the truth, on many virtual GPUs, as Markdown.

    python tests/bench/virtual_gpu.py [--seeds 50]

Each cell: median of measured / true over all seeds, and in how many of them it was accepted where
that is not all or none. The last columns: how often the timer was rejected, and how often `explain`
said something.
"""

import argparse
import statistics
import sys
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))

from test_virtual_gpu import FAULTY, GOOD

from attncourse.lab.famous import FAMOUS
from attncourse.lab.stopwatches import SCENARIOS, accepts, explain, panel


def cell(scenario: str, values: list[float | str]) -> str:
    accepted = sum(accepts(scenario, value) for value in values)
    numbers = [value for value in values if not isinstance(value, str)]
    text = f"{statistics.median(numbers):.3g}" if numbers else "error"
    if accepted == len(values):
        return text
    return f"**{text}**" + (f" ({accepted}/{len(values)} accepted)" if accepted else "")


def row(name: str, panels: list[dict[str, float | str]]) -> str:
    cells = [cell(scenario, [values[scenario] for values in panels]) for scenario in SCENARIOS]
    rejected = sum(not all(accepts(*item) for item in values.items()) for values in panels)
    explained = sum(explain(values) is not None for values in panels)
    return f"| {name} | {' | '.join(cells)} | {rejected} | {explained} |"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--seeds", type=int, default=50)
    seeds = range(arguments.parse_args().seeds)
    torch.set_num_threads(1)
    groups = {
        "good": GOOD,
        "faulty": {name: fault.timer for name, fault in FAULTY.items()},
        "famous": {name: famous.timer for name, famous in FAMOUS.items()},
    }
    with tqdm(total=sum(map(len, groups.values())) * len(seeds), unit="panel") as bar:
        for group, timers in groups.items():
            lines = [
                f"| {group} timer | {' | '.join(SCENARIOS)} | rejected | explained |",
                "|---" * (len(SCENARIOS) + 3) + "|",
            ]
            for name, timer in timers.items():
                panels = []
                for seed in seeds:
                    panels.append(panel(timer, seed))
                    bar.update()
                lines.append(row(name, panels))
            bar.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
