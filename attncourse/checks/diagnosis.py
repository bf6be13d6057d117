"""What a student is told of a wrong answer: thoughts, what was seen, the smallest example."""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attncourse.checks import compositions, examples, explain, prose, tables
from attncourse.checks.answer import OTHERWISE, Failure, Inputs, Unanswered, unpack
from attncourse.checks.fingerprint import (
    FAILED,
    Fingerprint,
    agree,
    comparable,
    differing,
    of_reference,
    outputs,
    probes,
    tolerance,
)
from attncourse.checks.generic import Generic
from attncourse.checks.statements import statements
from attncourse.checks.task import Fault, Task


@dataclass(frozen=True)
class Example:
    """The smallest input found on which answer and reference differ."""

    inputs: Inputs
    name: str  # of the output that differs
    expected: object
    got: object
    later: bool = False  # seen after calls with other inputs, of which the answer keeps something


@dataclass(frozen=True)
class DependencyMap:
    """Which outputs change when one position of the input changes."""

    title: str
    moved: str  # what was changed, e.g. "key and value"
    expected: Tensor  # (outputs inputs), boolean
    got: Tensor | None  # None: the answer gave nothing to compare

    @property
    def right(self) -> bool:
        return (
            self.got is not None
            and self.got.shape == self.expected.shape
            and torch.equal(self.got, self.expected)
        )


@dataclass(frozen=True)
class Diagnosis:
    """What was probably misunderstood.

    Attributes:
        id: of the misconception; upper-case words without a letter prefix are states, such as
            "NOT-ANSWERED"; None if no known misconception explains the evidence.
        title: a few words for a table.
        thinks: what the student probably thinks; empty if nobody can know.
        why: why it is wrong.
        section: anchor in the chapter to read again.
        also: the second of two thoughts, if there are two at once.
        partly: whether it explains only a part of what is wrong.
        seen: what was measured, in sentences.
        example: the smallest failing input, if one was found.
        map: the dependency map, for answers that have positions.
        mostly: whether the result is wrong on most inputs, and not in a special case.
    """

    id: str | None
    title: str
    why: str
    thinks: str = ""
    section: str = ""
    also: Diagnosis | None = None
    partly: bool = False
    seen: tuple[str, ...] = ()
    example: Example | None = None
    map: DependencyMap | None = None
    mostly: bool = False

    @property
    def thoughts(self) -> tuple[Diagnosis, ...]:
        """One thought or two, the cause first; none if none is known."""
        if self.id is None:
            return ()
        return (self, self.also) if self.also else (self,)

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.thoughts]

    @classmethod
    def not_defined(cls, task: Task) -> Diagnosis:
        return cls(
            "NOT-DEFINED",
            "not defined",
            f"There is no `{task.name}` yet. Run the cell that defines it; if that cell shows an "
            "error, mend the error first.",
        )

    @classmethod
    def not_callable(cls, task: Task, came: str) -> Diagnosis:
        return cls(
            "NOT-CALLABLE",
            "not a function",
            f"`{task.name}` is {came}; the judge needs a function it can call. Has a later line "
            "given this name to something else?",
        )

    @classmethod
    def not_answered(cls, task: Task, why: str) -> Diagnosis:
        return cls(
            "NOT-ANSWERED",
            "not answered yet",
            f"{why} If you have not started, begin with the hints under the task.",
            section=task.section,
        )

    @classmethod
    def unreadable(cls, task: Task, error: Exception) -> Diagnosis:
        return cls(
            None,
            "behaves strangely",
            "Start with the first check that fails. Your answer behaves so unusually that we could "
            f"not look more closely ({type(error).__name__}).",
            section=task.section,
        )

    @classmethod
    def short_cut(cls, task: Task, name: str) -> Diagnosis:
        build = "In this task, build it yourself from smaller operations"
        if name == OTHERWISE:
            return cls(
                "SHORT-CUT",
                "does something else while it is watched",
                "For the same inputs your answer returns other numbers while we watch which "
                f"functions it calls. {build}, and use the same ones in every call.",
                section=task.section,
            )
        return cls(
            "SHORT-CUT",
            f"calls {name if 'attncourse' in name else _last(name)}",
            f"Your answer calls {name}, which does the task itself. {build}, then "
            "compare with that function.",
            section=task.section,
        )


def _last(name: str) -> str:
    """What a function goes by: `Categorical` of `torch.distributions.Categorical.__init__`."""
    parts = name.split(".")
    return next((p for p in reversed(parts) if p[:2] != "__" and p not in OVERLOADS), parts[-1])


OVERLOADS = ("default", "opset23")


# --- evidence -----------------------------------------------------------------------------------


def smallest_failure(task: Task, answer: Callable) -> Example | None:
    names = outputs(task)
    for place, inputs in enumerate(examples.small(task)):
        expected = tables.of_small(task, place)
        try:
            got = unpack(task, task.observe(answer, inputs))
        except Failure as failure:
            return Example(inputs, names[0], comparable(expected[0]), _instead(failure))
        # The last output first: weights are nearer to the cause than the output made from them.
        for name, ours, theirs in reversed(list(zip(names, expected, got, strict=True))):
            ours, theirs = comparable(ours), comparable(theirs)
            lost = _is_finite(ours) and not _is_finite(theirs)
            if lost or not agree(theirs, ours, _near(task)):
                return Example(inputs, name, *_differing(ours, theirs, _near(task)))
    return None


def _near(task: Task) -> float:
    """How far off a result may be and still be no example: farther than a check lets pass."""
    return 1.5 * tolerance(task)


def _is_finite(value: object) -> bool:
    return not isinstance(value, Tensor) or bool(torch.isfinite(value.double()).all())


MOST_OF_AN_ERROR = 100  # letters


def _instead(failure: Failure) -> str:
    """What came in place of a result: (raised IndexError: …)."""
    said = str(failure).removeprefix("Your answer ").rstrip(".")
    return f"({textwrap.shorten(said, MOST_OF_AN_ERROR, placeholder=' …')})"


@functools.cache
def _by_size(task: Task) -> list[str]:
    """The probes, the one that is read most quickly first."""
    size = {
        name: sum(_size(value) for part, value in inputs.items() if "." not in part)  # no weights
        for name, inputs in probes(task).items()
    }
    return sorted(size, key=size.__getitem__)


def _size(value: object) -> int:
    """How many numbers and words somebody reads who reads a value."""
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, str):
        return len(value.split())
    if isinstance(value, dict):
        return _size([*value, *value.values()])
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 1


def failure_on_a_probe(found: explain.Evidence) -> Example | None:
    """The smallest failure that was seen already, for an answer that is right on `small` inputs."""
    task, got, reference = found.task, found.got, of_reference(found.task)
    for probe in _by_size(task):
        inputs, names = probes(task)[probe], outputs(task)
        for name in reversed(names):  # as above
            if (probe, name) not in found.wrong:
                continue
            ours, theirs = reference.piece((probe, name)), got.piece((probe, name))
            if (probe, FAILED) in got.pieces:
                theirs = _failed(found, probe)
            return Example(inputs, name, *_differing(ours, theirs, tolerance(task)))
    return None


def _failed(found: explain.Evidence, probe: str) -> str:
    """What an answer that failed on a probe says there."""
    try:
        unpack(found.task, found.task.observe(found.got.answer, probes(found.task)[probe]))
    except Failure as failure:
        return _instead(failure)
    return f"({found.got.pieces[probe, FAILED]})"  # it keeps something, and goes through by now


def _differing(ours: object, theirs: object, near: float) -> tuple[object, object]:
    """Of two tables of facts, those that differ; anything else as it is."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict) or ours.keys() != theirs.keys():
        return ours, theirs
    off = [key for key in ours if not agree(theirs[key], ours[key], near)]
    return {key: ours[key] for key in off}, {key: theirs[key] for key in off}


def dependencies_of(task: Task, answer: Callable) -> DependencyMap | None:
    if task.maps is None:
        return None
    shown = None
    for place, (title, moved, inputs, moves) in enumerate(examples.maps(task)):
        expected = tables.of_map(task, place)
        got = examples.dependencies(task, answer, inputs, moves)
        if got is not None and got.shape != expected.shape:
            got = None  # its rows are other outputs
        found = DependencyMap(title, moved, expected, got)
        if not found.right:
            return found
        shown = shown or found
    return shown


AND = " + "  # between the two ids of a title
AS_IF = "Your results are, number for number, those of a right answer {}."


def _thought(fault: Fault | Generic, task: Task) -> Diagnosis:
    if isinstance(fault, Generic):
        as_if = _as_if(fault, task)
        return Diagnosis(fault.id, as_if, AS_IF.format(as_if), section=task.section)
    title = getattr(fault, "title", fault.id)
    return Diagnosis(fault.id, title, fault.why, fault.thinks, fault.section)


def _as_if(fault: Generic, task: Task) -> str:
    """Its sentence, with inputs called as the student calls them."""
    of = [task.called(name).strip("`") for name in fault.of] if fault.inward else fault.of
    return prose.generic(fault.id).format(*of)


def _named(task: Task, faults: tuple[Fault | Generic, ...]) -> Diagnosis:
    """One thought or the first two; the description of a result comes last."""
    first, *second = _in_order(task, faults) if faults[1:] else faults
    thought = _thought(first, task)
    if not second:
        return thought
    also = _thought(second[0], task)
    if isinstance(second[0], Generic):
        why = f"Besides that, everything is {_as_if(second[0], task)}."
        also = replace(also, why=why)
    return replace(thought, title=f"{thought.title}{AND}{also.title}", also=also)


def _as_a_part(named: Diagnosis) -> Diagnosis:
    """The same beside something else; a description says that there is nothing else."""
    if also := named.also:
        also = replace(also, partly=True) if also.thinks else None
    title = named.title if also else named.title.partition(AND)[0]
    return replace(named, title=title, also=also, partly=True)


def _in_order(task: Task, faults: tuple[Fault | Generic, ...]) -> list[Fault | Generic]:
    """The fault that shows on more probes first, a description last."""
    table = tables.load(task)
    shown = {fault: _shown(task, fault, table) for fault in faults}
    by_codes = sorted(n for n in shown.values() if n >= 0)
    if any(two - one <= COARSE for one, two in itertools.pairwise(by_codes)):
        shown = {fault: _shown(task, fault, None) for fault in faults}
    return sorted(faults, key=lambda fault: -shown[fault])


COARSE = 4  # pieces; of those in which a known fault differs, codes miss no more than two


def _shown(task: Task, fault: Fault | Generic, table: tables.Table | None) -> int:
    """In how many pieces a fault differs from the reference: as a table says, or looked at.

    Of a description -1: it comes last, wherever it shows.
    """
    if isinstance(fault, Generic):
        return -1
    if table and fault.id in table.unlike:
        return table.unlike[fault.id]
    reference = of_reference(task)
    alone = next(each for each in compositions.singles(task) if each.faults == (fault,))
    return len(differing(alone.shows.everything(), reference, reference.pieces))


def diagnose(task: Task, answer: Callable, results, fresh: Fingerprint | None = None) -> Diagnosis:
    """Name what was misunderstood in an answer that failed a check, or show the evidence.

    Args:
        results: of all checks.
        fresh: what the answer showed before the checks, on some probes.
    """
    failed = [result for result in results if not result.passed]
    later = (fresh.again() if fresh else Fingerprint(task, answer)).everything()
    nothing = not any(part in outputs(task) for _, part in later.pieces)  # on any probe
    if nothing and all(isinstance(result.error, Unanswered) for result in failed):
        return Diagnosis.not_answered(task, failed[0].message)
    keeps = bool(fresh) and bool(differing(later, fresh, fresh.pieces))
    got = fresh if fresh and task.keeps else later
    found = explain.evidence(task, got)
    example = smallest_failure(task, answer) or failure_on_a_probe(found)
    if example and keeps:
        example = replace(example, later=True)
    map_ = dependencies_of(task, answer)
    best = explain.best(found)
    explained = bool(best) and found.is_explained(best)
    of_values = None if explained else explain.best_of_values(found)
    inputs, errors = example.inputs if example else None, [result.error for result in failed]
    seen = (
        [] if explained else list(statements(task, answer, got, found.wrong, keeps, inputs, errors))
    )
    if of_values:
        best = of_values
    elif best and not explained and _is_contradicted(best, seen, found):
        best = None
    said, mostly = tuple(each.words for each in seen), _is_wrong_mostly(found)
    if explained:
        best = explain.with_what_it_hides(best, found)
    if best:
        if map_ and map_.right:
            map_ = None  # it would say where the mistake is not, beside its name
        named = _named(task, best.faults)
        if not explained:
            named = _as_a_part(named)
        elif example and _takes_other_calls(best, example):
            example = replace(example, later=True)
        return replace(named, seen=said, example=example, map=map_, mostly=mostly)
    first = failed[0]
    error = first.error
    if example is None and isinstance(error, Failure) and error.got is not None:
        name = error.of or "result"
        example = Example(error.inputs or {}, name, error.expected, error.got, keeps)
    shown = map_ and map_.got is not None
    return Diagnosis(
        None,
        f"fails: {first.name}",
        f"Start with the first check that fails: “{first.name}”. No mistake we know explains all "
        f"of it{', so here is what we saw.' if said or shown else '.'}",
        section=task.section,
        seen=said,
        example=example,
        map=map_,
        mostly=mostly,
    )


def _is_wrong_mostly(found: explain.Evidence) -> bool:
    wrong = {probe for probe, part in found.wrong if part in outputs(found.task)}
    return 2 * len(wrong) > len(probes(found.task))


def _takes_other_calls(best: explain.Explanation, example: Example) -> bool:
    """Whether a new answer with these faults is right there: so it keeps something of others."""
    task = best.task
    if not task.keeps:
        return False
    try:
        got, expected = (
            unpack(task, task.observe(each, example.inputs))
            for each in (best.make(), task.reference)
        )
    except Failure:
        return False
    pairs = zip(map(comparable, got), map(comparable, expected), strict=True)
    return all(agree(theirs, ours, _near(task)) for theirs, ours in pairs)


def _is_contradicted(best: explain.Explanation, seen, found: explain.Evidence) -> bool:
    """Whether something was seen of the answer that an explanation of a part does not show."""
    ours = {(each.kind, each.about) for each in seen if not each.is_of_a_part}
    if not ours:
        return False
    shows = best.shows.everything()
    wrong = differing(shows, of_reference(best.task), found.keys)
    theirs = statements(best.task, best.make(), shows, wrong)
    return not any((each.kind, each.about) in ours for each in theirs)
