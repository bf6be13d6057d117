"""Wrong answers that are named and explained: what the judge recognizes, one module a chapter."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Misconception:
    """A complete wrong answer, and what the student who wrote it probably thinks.

    Attributes:
        id: as in the course's catalogue, e.g. "D-SOFTMAX-DIM".
        task: the answer it is a wrong version of.
        thinks: what the student probably thinks, one sentence, in the student's words.
        why: why that is wrong, without giving the solution away.
        section: anchor in the chapter to read again.
        answer: the wrong answer itself.
        variants: the same thought in code that shows itself differently.
    """

    id: str
    task: str
    thinks: str
    why: str
    section: str
    answer: Callable
    variants: tuple[Callable, ...] = ()


class Collection:
    """The misconceptions of one chapter, in the order they are written down."""

    def __init__(self):
        self.all: list[Misconception] = []

    def misconception(self, id, task, *, thinks, why, section, variants=()):
        """Decorator: record the wrong answer below it."""

        def record(answer):
            self.all.append(Misconception(id, task, thinks, why, section, answer, variants))
            return answer

        return record


def of_chapter(stem: str) -> list[Misconception]:
    """All misconceptions of a chapter, e.g. of "scaled_dot_product"."""
    return importlib.import_module(f"{__name__}.{stem}").collection.all
