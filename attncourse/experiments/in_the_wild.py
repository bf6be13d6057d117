"""What public implementations get wrong: the stored rows of chapter 14, counted.

    >>> rows = in_the_wild.stored()["items"]
    >>> in_the_wild.verdict(rows[0])                     # "right", "excluded" or "wrong"
    >>> in_the_wild.commonest(in_the_wild.counted(rows, known))

How the items were chosen and judged stands in tests/bench/in_the_wild.md.
"""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path

from attncourse.pretrained import DATA

VERDICTS = ("right", "excluded", "wrong")
# What one task's list calls by two names, and another's by one.
ONE_THOUGHT = {"M-DEAD-ROW-UNIFORM": "M-DEAD-ROW"}
# What a misconception is about, by the beginning of its name, and what the checks of it say.
ABOUT = {
    "M-": ("mask", "nothing to attend to"),
    "C-DROPOUT": ("dropout acts",),
    "P-TOP-K": ("top-k leaves",),
    "P-TOP-P": ("top-p leaves",),
}


def wilson(count: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    if not of:
        return 0.0, 1.0
    share, spread = count / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def stored(folder: Path = DATA) -> dict:
    """What was found: `items`, a row for each, `repositories`, `near-duplicates`."""
    return json.loads((folder / "in_the_wild.json").read_text("utf-8"))


def is_asked(row: dict, misconception: str) -> bool:
    """Whether an item is counted for a misconception: code without masks is not for one of masks.

    Nor is an item whose authors exclude the misconception, or that has no such option.
    """
    excluded = set(row["excludes"])
    for begins, said in ABOUT.items():
        if misconception.startswith(begins):
            theirs = not any(word in check for check in row["not theirs"] for word in said)
            return theirs and not excluded & {misconception, begins.rstrip("-") + "-IGNORED"}
    return misconception not in excluded


def found_in(row: dict) -> list[str]:
    """What the judge named in an item, of what is counted for it."""
    named = [ONE_THOUGHT.get(each, each) for each in row["named"] if row["failed"]]
    return [each for each in named if is_asked(row, each)]


def verdict(row: dict) -> str:
    """Right; excluded, where the authors rule out all that is wrong; or wrong."""
    if not row["failed"]:
        return "right"
    ruled_out = bool(row["named"]) and not row["partly"] and not found_in(row)
    return "excluded" if ruled_out else "wrong"


def counted(
    rows: list[dict], known: Mapping[str, Collection[str]]
) -> dict[str, dict[str, tuple[int, int]]]:
    """How many items have a misconception, and of how many: {misconception: {task: (n, of)}}.

    Args:
        rows: items.
        known: for each task the misconceptions of its list. An item is among those asked where its
            task's list has the misconception, or where the judge found it in another item.
    """
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for name in sorted({each for row in rows for each in found_in(row)}):
        counts[name] = {}
        for task in sorted({row["task"] for row in rows}):
            asked = [row for row in rows if row["task"] == task and is_asked(row, name)]
            have = sum(name in found_in(row) for row in asked)
            if asked and (have or name in known[task]):
                counts[name][task] = have, len(asked)
    return counts


def commonest(counts: dict[str, dict[str, tuple[int, int]]]) -> list[tuple[str, int, int]]:
    """Misconceptions with their counts over all tasks, the one that most items have first.

    Of two that as many items have, the one that was looked for in more items comes first.
    """
    sums = [(name, *map(sum, zip(*of.values(), strict=True))) for name, of in counts.items()]
    return sorted(sums, key=lambda each: (-each[1], -each[2], each[0]))
