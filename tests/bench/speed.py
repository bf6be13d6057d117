"""How quick the judge and the import are: `make bench`. Nothing is asserted; machines are noisy.

Every time stands beside a yardstick measured in the same run (a fixed piece of torch work), so
that two runs on different machines can be compared by the ratio.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from correct_answers import CORRECT

from attncourse import misconceptions
from attncourse.checks import engine, run, warm_up

console = Console()


def seconds(work, *arguments) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def yardstick() -> float:
    """A thousand small matrix products: the median of five goes."""
    x = torch.ones(64, 64)
    return statistics.median(seconds(lambda: [x @ x for _ in range(1000)]) for _ in range(5))


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


def main() -> None:
    base, added = imports()
    console.print(f"import torch, einops: {base:.2f} s; import attncourse on top: {added:.3f} s")
    console.print(f"the judge's first check in a process (warm_up): {seconds(warm_up):.2f} s")
    unit = yardstick()
    console.print(f"yardstick: 1,000 products of 64 x 64 in {unit * 1000:.1f} ms")
    table = Table("task", "answers", "median s", "worst s", "median / yardstick")

    def row(name: str, kind: str, times: list[float]) -> None:
        middle = statistics.median(times)
        table.add_row(
            name,
            f"{len(times)} {kind}",
            f"{middle:.3f}",
            f"{max(times):.3f}",
            f"{middle / unit:.0f}",
        )

    wrong = [m for stem in engine.chapters() for m in misconceptions.of_chapter(stem)]
    for name, right in CORRECT.items():
        row(name, "right", [seconds(run, name, answer) for answer in right])
        mistakes = [m.answer for m in wrong if m.task == name]
        first = seconds(run, name, mistakes[0])  # also computes what all others share
        row(name, "wrong", [seconds(run, name, answer) for answer in mistakes])
        row(name, "first wrong", [first])
    notebook = [right[0] for right in CORRECT.values()]
    total = sum(map(seconds, [run] * len(CORRECT), CORRECT, notebook))
    console.print(table)
    console.print(f"all checks of a notebook, answers right: {total:.2f} s")


if __name__ == "__main__":
    main()
