"""Relatives of known faults: half of one, one to the other side, two or three that no table holds.

What a step does wrong, an answer may do wrong in one of two places, or to the other side, or as one
of two mistakes. Nobody writes these down: they are made of the steps and of the known faults, and
looked at where nothing else explains an answer. They stand in no table; what a table holds of the
faults says which two are worth a look.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attncourse.checks import compositions, generic, prose, tables
from attncourse.checks.answer import Failure
from attncourse.checks.compositions import Explanation, Part
from attncourse.checks.fingerprint import (
    Fingerprint,
    Gradient,
    Key,
    agree,
    differing,
    of_reference,
    outputs,
    probes,
    tolerance,
)
from attncourse.checks.generic import Generic
from attncourse.checks.task import Change, Fault, Task, changed, compose, is_change, step_of

if TYPE_CHECKING:
    from attncourse.checks.explain import Evidence

MOST_TRIED = 16  # of two at a time, beside the pairs that a table holds
MOST_WITHOUT_TABLE = 48
MOST_OF_THREE = 64  # of three, on one probe each
FILL = 1e4  # numbers as large as this hide something, and have no other side

Step = Callable  # takes the answer, then what the step takes


@dataclass(frozen=True)
class Half:
    """A fault that an answer has in one place of several, or in one of several results."""

    fault: Fault

    id = property(lambda self: self.fault.id)
    title = property(lambda self: f"half of {self.fault.id}")
    section = property(lambda self: self.fault.section)
    thinks = property(lambda self: prose.generic("HALF").format(self.fault.thinks))
    why = property(lambda self: self.fault.why)


@dataclass(frozen=True)
class Moved:
    """As far off as a fault, to the other side, or twice as far. It ascribes no thought."""

    fault: Fault
    id: str
    thinks: str = ""

    title = property(lambda self: f"{self.id} {self.fault.id}")
    section = property(lambda self: self.fault.section)
    why = property(lambda self: prose.generic(self.id).format(self.fault.thinks))


@functools.cache
def alone(task: Task) -> tuple[Explanation, ...]:
    """Every relative with one thought."""
    forms = [each for each in compositions._forms(task) if isinstance(each[1], dict)]
    first, found = [each for each in forms if each[0][1] == 0], []
    for kind, known in ((_halves, forms), (_moved, first)):
        for part, form in known:
            for what, change in kind(task, task.faults[part[0]], form):
                make = functools.partial(compose, task, change)
                found.append(Explanation(task, ((part,), 0), (what,), make))
    for what in _numbers(task):
        make = functools.partial(what.around, task, task.reference)
        found.append(Explanation(task, (((what.name, 0),), 0), (what,), make))
    return tuple(found)


def _halves(task: Task, fault: Fault, form: dict) -> Iterator[tuple[Half, Change]]:
    for step, wrong in form.items():
        if len(form) > 1:  # wrong in several steps: in one of them alone
            yield Half(fault), {step: wrong}
        used, pair = _uses(task).get(step, _Use()), (_right(task, step), _method(wrong))
        for place in used.places():
            yield Half(fault), form | {step: _in_one_place(*pair, place)}
        for part in range(used.parts):
            yield Half(fault), form | {step: _in_one_part(*pair, part)}


def _moved(task: Task, fault: Fault, form: dict) -> Iterator[tuple[Moved, Change]]:
    (step, wrong), *more = form.items()
    if not more and _uses(task).get(step, _Use()).number:
        for id, function in AWAY:
            yield Moved(fault, id), {step: _away(_right(task, step), _method(wrong), function)}


def _right(task: Task, step: str) -> Step:
    return _method(step_of(task.composed, step))


def _method(function: object) -> Step:
    """What a class has under a name, as a function of the answer and of what the step takes."""
    if isinstance(function, staticmethod):
        return lambda self, *given, **named: function.__func__(*given, **named)
    return function


# --- half: in one place, or in one result -------------------------------------------------------


@dataclass
class _Use:
    """How the reference uses a step."""

    sites: list = field(default_factory=list)  # lines of code that call it
    calls: set[int] = field(default_factory=set)  # how often, in one call of the reference
    parts: int = 0  # results, if there are several
    number: bool = False  # it gives numbers, that may be off to one side or the other

    def places(self) -> Iterator[Callable]:
        """Ways to tell one place from the others, given the site and the number of a call."""
        if len(self.sites) > 1:
            for one in self.sites:
                yield lambda site, _, one=one: site == one
        elif self.calls == {2}:
            for one in range(2):
                yield lambda _, number, one=one: number % 2 == one


def _site() -> tuple:
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lasti


@functools.cache
def _uses(task: Task) -> dict[str, _Use]:
    """How each step is used on the probes."""
    uses: dict[str, _Use] = defaultdict(_Use)
    count: dict[str, int] = defaultdict(int)

    def watched(name: str, right: Step) -> Step:
        def step(self, *given, **named):
            returned, use, site = right(self, *given, **named), uses[name], _site()
            count[name] += 1
            if site not in use.sites:
                use.sites.append(site)
            several = isinstance(returned, tuple | list) and 1 < len(returned) <= 3
            use.parts = len(returned) if several else 0
            use.number = _is_number(returned)
            return returned

        return step

    forms = [form for _, form in compositions._forms(task) if isinstance(form, dict)]
    steps = {name: watched(name, _right(task, name)) for form in forms for name in form}
    answer = compose(task, steps)
    for inputs in probes(task).values():
        count.clear()
        with contextlib.suppress(Failure):
            task.observe(answer, inputs)
        for name, times in count.items():
            uses[name].calls.add(times)
    return dict(uses)


def _in_one_place(right: Step, wrong: Step, here: Callable) -> Step:
    calls = 0

    def step(self, *given, **named):
        nonlocal calls
        calls += 1
        return (wrong if here(_site(), calls - 1) else right)(self, *given, **named)

    return step


def _in_one_part(right: Step, wrong: Step, part: int) -> Step:
    def step(self, *given, **named):
        results = list(right(self, *given, **named))
        results[part] = wrong(self, *given, **named)[part]
        return tuple(results)

    return step


# --- to the other side, or twice as far ---------------------------------------------------------


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)


AWAY = (
    ("AS-IF-OTHER-SIDE", lambda right, wrong: right - (wrong - right)),
    ("AS-IF-OTHER-SIDE", lambda right, wrong: right / (wrong / right)),
    ("AS-IF-TWICE-AS-FAR", lambda right, wrong: wrong * (wrong / right)),
)


def _away(right: Step, wrong: Step, function: Callable) -> Step:
    def step(self, *given, **named):
        ours, theirs = right(self, *given, **named), wrong(self, *given, **named)
        if _hides(ours) or _hides(theirs):
            return ours
        moved = function(ours, theirs)
        return type(ours)(moved) if isinstance(ours, int) and moved == int(moved) else moved

    return step


def _hides(value: Tensor | float) -> bool:
    return not bool((torch.as_tensor(value).abs() < FILL).all())


def _numbers(task: Task) -> Iterator[Generic]:
    """Each whole number that goes in, one larger and one smaller."""
    names = {name for inputs in probes(task).values() for name, value in inputs.items()}
    for name in sorted(names):
        seen = [inputs.get(name) for inputs in probes(task).values()]
        if {type(value) for value in seen if value is not None} == {int} and len(set(seen)) > 1:
            for id, by in (("AS-IF-ONE-LARGER", 1), ("AS-IF-ONE-SMALLER", -1)):
                change = functools.partial(generic._each, name, lambda value, by=by: value + by)
                yield Generic(id, (name,), change)


# --- two at once --------------------------------------------------------------------------------


def _both(task: Task, parts: tuple[Part, Part], one: Change, two: Change) -> Iterator[Callable]:
    """Answers that have both changes; where both change one step, in the ways that they can."""
    if changes := compositions.both(task, *parts):
        yield functools.partial(compose, task, *changes)
    shared = changed(one) & changed(two)
    if len(shared) != 1 or not isinstance(one, dict) or not isinstance(two, dict):
        return
    (step,) = shared
    right = _right(task, step)
    first, second = _method(one[step]), _method(two[step])
    for join in JOINED:
        yield functools.partial(
            compose, task, {step: _joined(right, first, second, join)}, one, two
        )
    for before, after in ((first, second), (second, first)):
        yield functools.partial(compose, task, {step: _chained(before, after)}, one, two)


def _where_it_differs(right, one, two):
    return torch.where(one != right, one, two)


JOINED = (
    _where_it_differs,
    lambda right, one, two: one + (two - right),
    lambda right, one, two: one * (two / right),
)


def _joined(right: Step, one: Step, two: Step, join: Callable) -> Step:
    def step(self, *given, **named):
        return join(*(each(self, *given, **named) for each in (right, one, two)))

    return step


def _chained(before: Step, after: Step) -> Step:
    def step(self, first, *given, **named):
        return after(self, before(self, first, *given, **named), *given, **named)

    return step


# --- which are worth a look ---------------------------------------------------------------------


def share_nothing(found: list[Explanation]) -> bool:
    """Whether no fault is in all of them: then none is sure, however many more are found."""
    return bool(found) and not frozenset.intersection(*(frozenset(each.faults) for each in found))


def explaining(found: Evidence) -> list[Explanation]:
    """The relatives of one kind that explain all of what is wrong."""
    quick = _Quick(found)
    if found.task.composed is None or found.task.chance or not quick.keys:
        return []  # chance blurs what little a half shows; and of traits alone there are no halves
    known = found.table.wrong_on if found.table else {}
    wrong = {probe for probe, _ in found.wrong}
    for kind in (Half, Moved, Generic) if _measured(found) else (Half, Generic):
        alike: list[Explanation] = []
        for each in alone(found.task):
            name = each.key[0][0][0]  # where a fault is right, its half is right
            likely = isinstance(each.faults[0], kind) and wrong <= known.get(name, wrong)
            if likely and quick.explains(each):
                alike.append(each)
                if share_nothing(alike):
                    break
        if alike:
            return alike
    return []


def _measured(found: Evidence) -> bool:
    """Whether any number that is wrong is more than a yes or no: those have but one other side."""
    reference = of_reference(found.task)
    return any(
        _more_than_yes_or_no(reference.piece(key), found.got.piece(key)) for key in found.wrong
    )


def _more_than_yes_or_no(one: object, two: object) -> bool:
    if isinstance(one, Gradient) and isinstance(two, Gradient):
        return _more_than_yes_or_no(one.value, two.value)
    if isinstance(one, dict) and isinstance(two, dict):
        return any(_more_than_yes_or_no(one[name], two[name]) for name in one.keys() & two.keys())
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return any(map(_more_than_yes_or_no, one, two))
    if isinstance(one, Tensor) and isinstance(two, Tensor) and one.shape == two.shape:
        off = one.double() != two.double()
        return not set(torch.cat([one[off], two[off]]).tolist()) <= {0, 1}
    plain = all(isinstance(each, int | float) and _is_number(each) for each in (one, two))
    return plain and one != two and not {one, two} <= {0, 1}


def explaining_together(found: Evidence) -> list[Explanation]:
    """Two faults in any of their forms that explain all of what is wrong."""
    task, quick, full = found.task, _Quick(found), []
    if task.composed is None or not quick.keys:
        return []
    likely = found.table.likely_pairs(found) if found.table else _likely_pairs(found, quick.probe)
    composed = (parts for parts in likely if _together(task, parts))
    for parts in itertools.islice(composed, MOST_TRIED if found.table else MOST_WITHOUT_TABLE):
        for each in _together(task, parts):
            if quick.explains(each):
                full.append(each)
                if share_nothing(full):
                    return full
    return full


def explaining_with_a_third(found: Evidence) -> Explanation | None:
    """Of three faults in different steps that explain all of what is wrong, what is sure.

    A report names two at most: what is said of them is said of a part.
    """
    task, quick, full = found.task, _Quick(found), []
    if task.composed is None or not found.table or not quick.keys or _has_layers(task):
        return None
    form = {name: fault.forms[0] for name, fault in task.faults.items()}
    changes = {name: changed(each) for name, each in form.items() if isinstance(each, dict)}
    likely = found.table.likely_threes(found, lambda part: part[0] in changes)
    apart = (three for three in likely if _are_apart(changes[name] for name, _ in three))
    for three in itertools.islice(apart, MOST_OF_THREE):
        make = functools.partial(compose, task, *(form[name] for name, _ in three))
        each = Explanation(task, (three, 0), tuple(task.faults[name] for name, _ in three), make)
        if quick.explains(each):
            full.append(each)
            if share_nothing(full):
                return None
    if not full:
        return None
    sure = frozenset.intersection(*(frozenset(each.faults) for each in full))
    return replace(full[0], faults=tuple(f for f in full[0].faults if f in sure))


def _has_layers(task: Task) -> bool:
    """Whether layers are made for each call: to make hundreds takes too long."""
    return any("." in name for inputs in probes(task).values() for name in inputs)


def _are_apart(steps: Iterable[frozenset]) -> bool:
    taken: frozenset = frozenset()
    for each in steps:
        if taken & each:
            return False
        taken |= each
    return True


@functools.lru_cache(maxsize=1000)
def _together(task: Task, parts: tuple[Part, Part]) -> tuple[Explanation, ...]:
    """Two forms in one answer, in every way; none where one is a whole answer."""
    forms = [task.faults[name].forms[n] for name, n in parts]
    if not all(is_change(task, form) for form in forms):
        return ()
    faults = tuple(task.faults[name] for name, _ in parts)
    return tuple(Explanation(task, (parts, 0), faults, make) for make in _both(task, parts, *forms))


def _likely_pairs(found: Evidence, probe: str) -> Iterator[tuple[Part, Part]]:
    """Without a table of codes: by what each fault shows, a table of facts on one probe, or shares
    on all of them.
    """
    task, near = found.task, tolerance(found.task)
    if task.returns is not dict and not task.chance:
        return
    plain = [each for each in compositions.singles(task) if each.key[1] == 0]
    told = {probe} if task.returns is dict else probes(task).keys()
    keys = [
        key
        for key in found.keys
        if key[0] in told and (key[1] in outputs(task) or key[1].endswith(" edited"))
    ]
    ours, theirs = _facts(of_reference(task), keys), _facts(found.got, keys)
    shown = [_facts(each.shows, keys) for each in plain]
    unlike, differs = (
        np.array([[not agree(row.get(key), side.get(key), near) for key in ours] for row in shown])
        for side in (theirs, ours)
    )
    wrong = np.array([not agree(theirs.get(key), ours[key], near) for key in ours])
    yield from tables.in_pairs([each.key[0][0] for each in plain], differs, ~unlike, wrong)


def _facts(shows: Fingerprint, keys: list[Key]) -> dict[tuple, object]:
    """Pieces, and for a table of facts each of these."""
    found = {}
    for key in keys:
        piece = shows.piece(key)
        found |= {(key, n): x for n, x in piece.items()} if isinstance(piece, dict) else {}
        found.setdefault((key, None), None if isinstance(piece, dict) else piece)
    return found


def _off(found: Evidence, wrong: set[Key]) -> Counter[str]:
    """Of each probe, how many of its pieces are wrong, or of the facts in them."""
    theirs, ours = (_facts(each, list(wrong)) for each in (found.got, of_reference(found.task)))
    near = tolerance(found.task)
    return Counter(key[0][0] for key in ours if not agree(theirs.get(key), ours[key], near))


class _Quick:
    """A look at one probe, that tells known faults apart best of those on which it is wrong."""

    def __init__(self, found: Evidence):
        wrong = {key for key in found.wrong if key[1] in outputs(found.task)} or found.wrong
        known = [probe for probe in probes(found.task) if any(key[0] == probe for key in wrong)]
        tells = found.table.variety if found.table else _off(found, wrong)
        self.probe = max(known, key=lambda each: tells.get(each, 0), default=None)
        self.keys = {key for key in wrong if key[0] == self.probe}
        self.gradients = any(key[1] not in outputs(found.task) for key in self.keys)
        self.found = found

    def explains(self, each: Explanation) -> bool:
        """Whether it fits here, and then on all probes."""
        here = _shows(each, self.gradients)
        return not differing(self.found.got, here, self.keys) and self.found.share(each, 1) == 1


@functools.lru_cache(maxsize=1000)
def _shows(each: Explanation, gradients: bool) -> Fingerprint:
    return Fingerprint(each.task, each.make(), gradients)
