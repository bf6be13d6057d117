"""The explanations there are: every fault alone, and two at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attncourse.checks import generic, merge
from attncourse.checks.fingerprint import Fingerprint
from attncourse.checks.generic import Generic
from attncourse.checks.task import (
    Change,
    Fault,
    Task,
    answer_of,
    as_step,
    changed,
    compose,
    goes_on,
    is_change,
    step_of,
)

MOST_PAIRS = 3500  # of faults in all wordings; looking at each takes a millisecond or ten

Part = tuple[str, int]  # a fault's id, or a generic one's name; the number of its form
Key = tuple[tuple[Part, ...], int]  # one or two; the number of the spelling, 0 for the plain one


@dataclass(frozen=True, eq=False)
class Explanation:
    """One fault or two in one wording, as an answer that has them."""

    task: Task
    key: Key
    faults: tuple[Fault | Generic, ...]
    make: Callable[[], Callable]

    @functools.cached_property
    def shows(self) -> Fingerprint:
        return Fingerprint(self.task, self.make())


def explanation(task: Task, key: Key) -> Explanation | None:
    """The one of that key; None if there is none any more."""
    try:
        return _explanation(task, key)
    except (KeyError, IndexError):
        return None


def _explanation(task: Task, key: Key) -> Explanation:
    """The same; a KeyError where there is none, as where two edits cannot be merged any more."""
    parts, number = key
    faults = tuple(task.faults.get(name) or _generic(task)[name] for name, _ in parts)
    forms = [
        fault.forms[form]
        for fault, (_, form) in zip(faults, parts, strict=True)
        if isinstance(fault, Fault)
    ]
    spelling = task.spellings[number - 1] if number else {}
    if len(forms) == 2:
        if not (changes := both(task, *parts)):
            raise KeyError(parts)
        make = functools.partial(compose, task, *changes, spelling)
    elif len(faults) == 2:
        make = functools.partial(_around, task, faults[1], forms[0])
    elif forms:
        make = functools.partial(answer_of, task, forms[0], spelling)
    else:
        make = functools.partial(faults[0].around, task, task.reference)
    return Explanation(task, key, faults, make)


@functools.cache
def _generic(task: Task) -> dict[str, Generic]:
    return {each.name: each for each in generic.of(task)}


@functools.cache
def singles(task: Task) -> tuple[Explanation, ...]:
    """Every form of every fault, in all spellings of the steps around it."""
    return tuple(
        _explanation(task, ((part,), number))
        for part, form in _forms(task)
        for number in (_spellings(task, form) if is_change(task, form) else [0])
    )


def both(task: Task, one: Part, two: Part) -> tuple[Change, ...] | None:
    """The changes that make an answer with two forms; None where both change the same thing."""
    first, second = (task.faults[name].forms[form] for name, form in (one, two))
    if not changed(first) & changed(second):
        return first, second
    return _apart(task, one, two)


@functools.lru_cache(maxsize=10_000)
def _apart(task: Task, one: Part, two: Part) -> tuple[Change, ...] | None:
    first, second = (task.faults[name].forms[form] for name, form in (one, two))
    shared = changed(first) & changed(second)
    for outer, inner in ((first, second), (second, first)):
        if all(goes_on(outer, name) for name in shared):
            return outer, inner if isinstance(inner, type) else type("_", (task.composed,), inner)
    steps = {}
    for name in shared:
        if not hasattr(task.composed, name):  # both need it for themselves
            return None
        step = merge.merge(*(step_of(each, name) for each in (task.composed, first, second)))
        if step is None:
            return None
        steps[name] = as_step(step)
    return steps, first, second


def pairs(task: Task) -> Iterator[Explanation]:
    """Generic faults alone; two faults whose edits are apart; a fault and a generic one.

    Where that would be too many, those of first forms in the plain spelling, and of the others as
    many as there is room for.
    """
    around = generic.of(task)
    forms = _forms(task)
    two = sorted(_two(task, forms), key=_remoteness)
    if len(two) > MOST_PAIRS:
        first = sum(_remoteness(key) == (False, 0) for key in two)
        two = two[: max(first, MOST_PAIRS)]
        forms = [(part, form) for part, form in forms if part[1] == 0]
    alone = [(((each.name, 0),), 0) for each in around]
    mixed = [((part, (each.name, 0)), 0) for each in around if not each.alone for part, _ in forms]
    for key in (*alone, *two, *mixed):
        yield _explanation(task, key)


def _forms(task: Task) -> list[tuple[Part, Callable | Change]]:
    faults = task.faults.values()
    return [((each.id, n), form) for each in faults for n, form in enumerate(each.forms)]


def _spellings(task: Task, *forms: Change) -> list[int]:
    """The spellings that can make a difference beside these forms; the plain one first."""
    taken = frozenset().union(*map(changed, forms))
    numbered = enumerate(task.spellings, 1)
    return [0, *(number for number, each in numbered if not each.keys() <= taken)]


def _remoteness(key: Key) -> tuple[bool, int]:
    """How far a pair is from two first forms in the plain spelling."""
    parts, spelling = key
    return spelling > 0, sum(form for _, form in parts)


def _two(task: Task, forms: list[tuple]) -> Iterator[Key]:
    changes = [(part, form) for part, form in forms if is_change(task, form)]
    for place, (one, first) in enumerate(changes):
        for two, second in changes[place + 1 :]:
            if one[0] != two[0] and both(task, one, two):
                for number in _spellings(task, first, second):
                    yield (one, two), number


def _around(task: Task, each: Generic, form: Callable | Change) -> Callable:
    return each.around(task, answer_of(task, form))
