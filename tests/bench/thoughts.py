"""Which task knows which thought: a table of thoughts × tasks, with no empty square.

    python tests/bench/thoughts.py > tests/bench/thoughts.md

A thought that one task knows may occur to somebody in another. Each square holds the faults by
which the task knows it, `engine` where a fault that any answer can have says it, or the reason why
it cannot occur there. Reasons that no program can see are in thoughts.csv.
"""

import csv
from pathlib import Path

import torch

from attncourse.checks import generic, registry
from attncourse.checks.fingerprint import probes
from attncourse.checks.task import Task

DATA = Path(__file__).with_suffix(".csv")


def inputs_of(task: Task) -> list:
    return [value for inputs in probes(task).values() for value in inputs.values()]


def kinds(task: Task) -> set[torch.dtype]:
    return {value.dtype for value in inputs_of(task) if isinstance(value, torch.Tensor)}


# Of each thought: what the engine has for any answer, and when it cannot occur at all.
RULES = {
    "detached": (
        {"AS-IF-DETACHED", "AS-IF-OUT-DETACHED"},
        lambda task: "" if task.differentiated else "no gradient is asked for",
    ),
    "float32 inside": (
        {"AS-IF-FLOAT32", "AS-IF-OUT-FLOAT32"},
        lambda task: "" if torch.float64 in kinds(task) else "nothing comes in float64",
    ),
}


def data() -> dict[tuple[str, str], tuple[list[str], str]]:
    """(thought, task) -> ids of faults, or none and the reason; task "" stands for all others."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(r["thought"], r["task"]): (r["faults"].split(), r["reason"]) for r in rows}


def square(task: Task, thought: str, known: dict) -> str:
    """How the task knows the thought, or why it need not; "" if neither is so."""
    faults, reason = known.get((thought, task.name), ([], ""))
    if faults:
        return " ".join(id for id in faults if id in task.faults)
    if reason:
        return f"({reason})"
    if thought in RULES:
        engine, impossible = RULES[thought]
        if reason := impossible(task):
            return f"({reason})"
        return "engine" if engine & {each.id for each in generic.of(task)} else ""
    _, reason = known.get((thought, ""), ([], ""))
    return f"({reason})" if reason else ""


def table() -> str:
    known = data()
    thoughts = list(dict.fromkeys([*RULES, *(thought for thought, _ in known)]))
    rows = [["task", *thoughts], ["---"] * (len(thoughts) + 1)]
    for task in registry.all_tasks().values():
        rows.append([task.name, *(square(task, thought, known) for thought in thoughts)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(table(), end="")
