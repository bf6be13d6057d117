"""Answers to the tasks, with the ideas that a teacher would accept as a diagnosis.

The judge's checks and misconceptions were made by people who know them. These answers were not:
their authors first read the tasks, and looked at the judge's catalogue only afterwards, to say
which of its sentences would be a fair diagnosis of each slip. (`open_book` is the exception.)
"""

import zlib
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One answer to one task.

    Args:
        task: name of the function or class that was asked for.
        slip: what went wrong, as a teacher would note it; None for a right answer.
        answer: the function or class.
        accept: ids of misconceptions that would be a fair diagnosis; none where no sentence fits.
            Where the slip names two mistakes ("first; second"), two tuples of ids, one for each.
        number: of this entry within its task, from 1.
    """

    task: str
    slip: str | None
    answer: object
    accept: tuple[str, ...] | tuple[tuple[str, ...], tuple[str, ...]]
    number: int

    @property
    def id(self) -> str:
        return f"{self.task}-{self.number}"

    @property
    def mistakes(self) -> tuple[tuple[str, ...], ...]:
        """For each mistake the ids that would be a fair diagnosis: one tuple, two, or none."""
        if self.slip is None:
            return ()
        return self.accept if "; " in self.slip else (self.accept,)

    @property
    def held_out(self) -> bool:
        """Whether this answer is kept for a last measurement: one in ten, always the same ones."""
        return zlib.crc32(f"{self.task}{self.number}".encode()) % 10 == 0


class Corpus:
    """Collects answers, in the order in which they are written down."""

    def __init__(self):
        self.all: list[Entry] = []
        self._numbers = Counter()

    def wrong(self, task: str, slip: str, *accept: str | tuple[str, ...]):
        return lambda answer: self._add(task, slip, answer, accept)

    def right(self, task: str):
        return lambda answer: self._add(task, None, answer, ())

    def _add(self, task, slip, answer, accept):
        self._numbers[task] += 1
        self.all.append(Entry(task, slip, answer, accept, self._numbers[task]))
        return answer
