"""The explanations there are: every fault alone, and two at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attncourse.checks import generic
from attncourse.checks.fingerprint import Fingerprint
from attncourse.checks.generic import Generic
from attncourse.checks.task import Fault, Task, answer_of, changed, compose, is_change

MOST_PAIRS = 3000  # of faults in all wordings; looking at each takes a millisecond or ten


@dataclass(frozen=True, eq=False)
class Explanation:
    """One fault or two in one wording, as an answer that has them."""

    task: Task
    faults: tuple[Fault | Generic, ...]
    make: Callable[[], Callable]
    spelled: bool = False  # in other words than the plain ones

    @functools.cached_property
    def shows(self) -> Fingerprint:
        return Fingerprint(self.task, self.make())


@functools.cache
def singles(task: Task) -> tuple[Explanation, ...]:
    """Every form of every fault, in all spellings of the steps around it."""
    found = []
    for fault in task.faults.values():
        for form in fault.forms:
            for spelling in _spellings(task, form) if is_change(task, form) else [{}]:
                make = functools.partial(answer_of, task, form, spelling)
                found.append(Explanation(task, (fault,), make, spelled=bool(spelling)))
    return tuple(found)


def _spellings(task: Task, *forms) -> list[dict]:
    """The spellings that can make a difference beside these forms; the plain one first."""
    taken = frozenset().union(*map(changed, forms))
    return [{}, *(each for each in task.spellings if not each.keys() <= taken)]


def pairs(task: Task) -> Iterator[Explanation]:
    """Generic faults alone; two faults in different steps; a fault and a generic one.

    Where that would be too many, of each fault the first form only, and the plain spelling.
    """
    around = generic.of(task)
    for each in around:
        yield Explanation(task, (each,), functools.partial(each.around, task, task.reference))
    forms = [(fault, form) for fault in task.faults.values() for form in fault.forms]
    both = list(_both(task, forms, spelled=True))
    if len(both) > MOST_PAIRS:
        forms = [(fault, fault.forms[0]) for fault in task.faults.values()]
        both = list(_both(task, forms, spelled=False))
    yield from both
    for each in around:
        if not each.alone:
            for fault, form in forms:
                make = functools.partial(_around, task, each, form)
                yield Explanation(task, (fault, each), make)


def _both(task: Task, forms: list[tuple], spelled: bool) -> Iterator[Explanation]:
    changes = [(fault, form) for fault, form in forms if is_change(task, form)]
    for place, (one, first) in enumerate(changes):
        for two, second in changes[place + 1 :]:
            if one is not two and not changed(first) & changed(second):
                for spelling in _spellings(task, first, second) if spelled else [{}]:
                    make = functools.partial(compose, task, first, second, spelling)
                    yield Explanation(task, (one, two), make)


def _around(task: Task, each: Generic, form) -> Callable:
    return each.around(task, answer_of(task, form))
