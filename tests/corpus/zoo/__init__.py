"""Submissions that go wrong, each with the exact points it must get.

A case turns the notebook of a student who did everything right into what was handed in. `points`
has a letter for each task, in order: F full, P some, 0 none; "" if nothing is graded, and no zero.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ASSIGNMENT = "03_scaled_dot_product"
NAME = f"{ASSIGNMENT}.ipynb"
TASKS = ("softmax", "scaled_dot_product_attention", "score_variance", "hidden_scale")
ROOT = Path(__file__).parents[3]

Files = dict[str, bytes | str]  # name -> content, or "-> target" for a link


@dataclass(frozen=True)
class Case:
    """One submission and its outcome."""

    make: Callable[[dict], Files]
    points: str
    review: str = ""  # part of a reason why a person should look; "" = there must be none
    repair: str = ""  # part of what was odd and was dealt with
    title: str = ""  # of the first wrong answer
    same_as: str = ""  # a case that earns exactly as many points
    seconds: float = 20.0  # it may take no longer, with the budget of the tests


CASES: dict[str, Case] = {}
ATTACKS: dict[str, list[str]] = {}  # by what they attempt, as SECURITY.md says it: their names
# Of these, those that meet the walls of a jail, which for an ordinary user are built otherwise. The
# others meet the judge, or the program that reads what was handed in.
ON_WALLS: list[str] = []
_meets_walls = False


def notebook(folder: str) -> dict:
    return json.loads((ROOT / folder / ASSIGNMENT / NAME).read_text(encoding="utf-8"))


def grade_id(cell: dict) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def right() -> dict:
    """A released notebook with the course's own answers in it."""
    released = notebook("exercises")
    answers = {grade_id(cell): cell["source"] for cell in notebook("solutions")["cells"]}
    for cell in released["cells"]:
        if grade_id(cell) in TASKS:
            cell["source"] = answers[grade_id(cell)]
    return released


def cell_of(content: dict, name: str) -> dict:
    return next(cell for cell in content["cells"] if grade_id(cell) == name)


def source_of(cell: dict) -> str:
    return "".join(cell["source"])


def files(content: object, name: str = NAME) -> Files:
    return {name: json.dumps(content).encode()}


def code(name: str, points: str, source: str, task: str = "softmax", **outcome) -> None:
    """A case: `source` stands in the cell of a task; {right} in it is the right answer."""

    def make(content: dict) -> Files:
        cell = cell_of(content, task)
        marker = f"# attncourse: {ASSIGNMENT}/{task}\n"
        answer = source_of(cell).removeprefix(marker)
        cell["source"] = marker + source.replace("{right}", answer)
        return files(content)

    add(name, Case(make, points, **outcome))


def edited(name: str, points: str, **outcome):
    """A case: the decorated function changes the notebook in place, or returns another."""

    def decorate(change):
        def make(content: dict) -> Files:
            return files(change(content) or content)

        add(name, Case(make, points, **outcome))
        return change

    return decorate


def attempt(what: str, on_walls: bool = False) -> None:
    """What the attacks from here on attempt; "" for those that are none."""
    global _meets_walls
    ATTACKS[what], _meets_walls = ATTACKS.pop(what, []), on_walls


def add(name: str, case: Case) -> None:
    assert name not in CASES, name
    CASES[name] = case
    if ATTACKS:
        [*ATTACKS.values()][-1].append(name)
    if _meets_walls:
        ON_WALLS.append(name)


def built(case: Case) -> Files:
    return case.make(copy.deepcopy(right()))


from corpus.zoo import attacks, faults  # noqa: E402, F401  they fill CASES
