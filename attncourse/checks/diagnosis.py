"""Naming the misunderstanding behind a wrong answer, or describing the evidence.

A wrong answer is compared with the reference and with every known wrong answer on the task's
probes. Each (probe, part) is one piece of evidence: the part is an output, a gradient, an edited
input. A misconception explains the evidence where it equals the answer and the reference does not;
it is contradicted where it would be wrong and the answer is right. It is named if nothing
contradicts it, it explains at least half of the evidence, and no other explains as much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attncourse import misconceptions
from attncourse.checks.task import (
    Answer,
    Failure,
    Inputs,
    Task,
    Unanswered,
    agree_plain,
    unpack,
)


@dataclass(frozen=True)
class Example:
    """The smallest input found on which answer and reference differ."""

    inputs: Inputs
    name: str  # of the output that differs
    expected: object
    got: object


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
        example: the smallest failing input, if one was found.
        map: the dependency map, for answers that have positions.
    """

    id: str | None
    title: str
    why: str
    thinks: str = ""
    section: str = ""
    example: Example | None = None
    map: DependencyMap | None = None

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
            f"{why} If you have not started: the hints under the task are made for that.",
            section=task.section,
        )

    @classmethod
    def unreadable(cls, task: Task, error: Exception) -> Diagnosis:
        return cls(
            None,
            "behaves strangely",
            "Start with the first check that fails. Your answer behaves so unusually that we could "
            f"not look closer ({type(error).__name__}).",
            section=task.section,
        )

    @classmethod
    def short_cut(cls, task: Task, name: str) -> Diagnosis:
        return cls(
            "SHORT-CUT",
            f"calls {name.rsplit('.', 1)[-1] if 'attncourse' not in name else name}",
            f"Your answer calls {name}, which does the task itself. Here the point is to build it: "
            "write it with smaller operations, then compare with that function.",
            section=task.section,
        )


FAILED = "failed"  # the part that stands for all others when a call gives nothing to compare


# --- fingerprints -------------------------------------------------------------------------------


def _parts(task: Task, answer: Callable, inputs: Inputs, gradient: bool) -> dict[str, object]:
    """All that a call shows, in pieces that can be compared one by one."""
    seen = task.observe(answer, inputs)
    parts: dict[str, object] = {f"{name} edited": name in seen.edited for name in inputs}
    parts["random state moved"] = seen.random_state_moved and not task.chance
    try:
        values = unpack(task, seen)
    except Failure as failure:
        # Errors are told apart by their type: their words depend on how a line was written.
        return parts | {FAILED: seen.error.split(":")[0] if seen.error else str(failure)}
    for name, value in zip(_names(task), values, strict=True):
        parts[name] = _comparable(value)
        if isinstance(value, Tensor):
            parts[f"{name} dtype"] = str(value.dtype)
    if isinstance(task.returns, type):
        parts["type"] = "tensor" if isinstance(seen.returned, Tensor) else "plain"
    if not gradient:
        return parts
    differentiated = task.observe(answer, inputs, gradient=True)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            gradient = differentiated.gradients.get(name)
            if gradient is None:
                gradient = "broken" if differentiated.gradient_error else "none"
            parts[f"gradient of {name}"] = gradient
    return parts


def _comparable(value: object) -> object:
    """Numbers as tensors, so that they are compared with a tolerance; all else as it is."""
    return value if isinstance(value, bool | dict | list) else torch.as_tensor(value)


def _names(task: Task) -> tuple[str, ...]:
    if isinstance(task.returns, tuple):
        return task.returns
    return ("number",) if task.returns in (float, int) else ("result",)


TRAITS = ""  # stands where a probe's name would


@functools.cache
def _probes(task: Task) -> dict[str, Inputs]:
    return task.probes(torch.Generator().manual_seed(0))


def _pieces_of(task: Task, answer: Callable, probe: str) -> dict[tuple[str, str], object]:
    """What an answer shows on one probe, or its traits."""
    if probe == TRAITS:
        try:
            parts = task.traits(Answer(task, answer)) if task.traits else {}
        except Failure:
            parts = {}
    else:
        parts = _parts(task, answer, _probes(task)[probe], probe in task.differentiated)
    return {(probe, part): value for part, value in parts.items()}


def _fingerprint(task: Task, answer: Callable) -> dict[tuple[str, str], object]:
    probes = [*_probes(task), TRAITS]
    return {
        key: value for probe in probes for key, value in _pieces_of(task, answer, probe).items()
    }


def _piece(of: dict, key: tuple[str, str]) -> object:
    return of.get(key, of.get((key[0], FAILED)))


def _differing(one: dict, two: dict, keys, tolerance: float) -> set[tuple[str, str]]:
    return {k for k in keys if not _agree(_piece(one, k), _piece(two, k), tolerance)}


@functools.cache
def _of_reference(task: Task) -> dict[tuple[str, str], object]:
    return _fingerprint(task, task.reference)


@functools.cache
def _of_known(task: Task, form: Callable, probe: str) -> tuple[dict, set]:
    """A misconception's pieces on one probe, and in which of them the reference differs."""
    theirs, reference = _pieces_of(task, form, probe), _of_reference(task)
    keys = [key for key in reference if key[0] == probe]
    return theirs, _differing(theirs, reference, keys, _tolerance(task))


def _tolerance(task: Task) -> float:
    return task.tolerance or 1e-3


def _agree(left: object, right: object, tolerance: float) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape:
            return False
        left, right = left.double(), right.double()
        scale = torch.nan_to_num(right, 0, 0, 0).abs().max().item() if right.numel() else 0.0
        return torch.allclose(left, right, rtol=0, atol=tolerance * scale, equal_nan=True)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return False
    return agree_plain(left, right, tolerance)


def _share(task: Task, form: Callable, got: dict, keys: set, wrong: set) -> float:
    """How much of what is wrong a known wrong answer explains; 0 for less than half, or if it
    would be wrong where the answer is right.

    Probe by probe, and no further than needed: few misconceptions get past the first.
    """
    explained, theirs, differs, missed = set(), {}, set(), 0
    for probe in dict.fromkeys(key[0] for key in _of_reference(task)):
        pieces, here = _of_known(task, form, probe)
        here = here & keys
        if here - wrong:
            return 0.0  # contradicted
        found = here - _differing(got, pieces, here, _tolerance(task))
        missed += sum(key[0] == probe for key in wrong) - len(found)
        if 2 * missed > len(wrong):
            return 0.0
        theirs |= pieces
        differs |= here
        explained |= found
    # What is wrong about gradients or dtypes alone cannot explain wrong values.
    values = {*_names(task), FAILED}
    if any(key[1] in values for key in wrong) and not any(key[1] in values for key in differs):
        return 0.0
    share = len(explained) / max(1, len(wrong))
    # "It fails too" is weak evidence: then it must explain everything.
    if share < 1 and all((key[0], FAILED) in theirs for key in explained):
        return 0.0
    return share


def _name(task: Task, answer: Callable) -> misconceptions.Misconception | None:
    reference = _of_reference(task)
    got = _fingerprint(task, answer)
    keys = {key for key in reference if _piece(got, key) is not None}
    if got.get((TRAITS, "differs from call to call")):
        keys = {key for key in keys if not isinstance(reference[key], Tensor | dict | list)}
    wrong = _differing(got, reference, keys, _tolerance(task))
    scores: dict = {}
    for known in misconceptions.of_chapter(task.chapter):
        if known.task == task.name:
            forms = (known.answer, *known.variants)
            scores[known] = max(_share(task, form, got, keys, wrong) for form in forms)
    ranked = sorted(scores, key=scores.get, reverse=True)
    if not ranked or scores[ranked[0]] < 0.5:
        return None
    if len(ranked) > 1 and scores[ranked[0]] == scores[ranked[1]]:
        return None  # two explanations as good as each other: better silent than wrong
    return ranked[0]


# --- evidence -----------------------------------------------------------------------------------


def _smallest_failure(task: Task, answer: Callable) -> Example | None:
    for inputs in task.small(torch.Generator().manual_seed(0)):
        expected = unpack(task, task.observe(task.reference, inputs))
        names = _names(task)
        try:
            got = unpack(task, task.observe(answer, inputs))
        except Failure:
            return Example(inputs, names[0], expected[0], "an error, see above")
        # The last output first: weights are nearer to the cause than the output made from them.
        for name, ours, theirs in reversed(list(zip(names, expected, got, strict=True))):
            ours, theirs = _comparable(ours), _comparable(theirs)
            finite = not isinstance(theirs, Tensor) or torch.isfinite(theirs.double()).all()
            if not finite or not _agree(theirs, ours, 1.5 * _tolerance(task)):
                return Example(inputs, name, ours, theirs)
    return None


def _legible(value: object) -> bool:
    """Whether a value shown beside another one tells a reader anything."""
    return value.numel() <= 24 if isinstance(value, Tensor) else value is not None


def _dependencies(task: Task, answer: Callable, inputs: Inputs, moved) -> Tensor | None:
    """(outputs inputs), True where changing an input position changes an output position."""
    fresh = torch.Generator().manual_seed(1)

    def positions(tensor: Tensor) -> Tensor:  # (positions features)
        features = task.features if tensor.is_floating_point() else 0  # an id is a position
        shape = tensor.shape[: tensor.ndim - features]
        return tensor.reshape(shape.numel(), -1)

    def outputs(inputs: Inputs) -> Tensor:
        return positions(unpack(task, task.observe(answer, inputs))[0])

    try:
        before = outputs(inputs)
        columns = []
        for position in range(len(positions(inputs[moved[0]]))):
            changed = dict(inputs)
            for name in moved:
                tensor = inputs[name].clone()
                row = positions(tensor)[position]
                noise = torch.randn(row.shape, generator=fresh, device="cpu")
                row += noise + 1 if row.is_floating_point() else 1  # an id: another one
                changed[name] = tensor
            after = outputs(changed)
            same = torch.isclose(before, after, rtol=1e-4, atol=1e-6, equal_nan=True)
            columns.append(~same.all(-1))
    except (Failure, RuntimeError, IndexError, TypeError):
        return None
    return torch.stack(columns, dim=-1)


def _dependency_map(task: Task, answer: Callable) -> DependencyMap | None:
    if task.maps is None:
        return None
    shown = None
    for title, inputs, moved in task.maps(torch.Generator().manual_seed(0)):
        expected = _dependencies(task, task.reference, inputs, moved)
        got = _dependencies(task, answer, inputs, moved)
        if got is not None and got.shape != expected.shape:
            got = None  # its rows are other outputs
        found = DependencyMap(title, " and ".join(moved), expected, got)
        if not found.right:
            return found
        shown = shown or found
    return shown


def diagnose(task: Task, answer: Callable, results) -> Diagnosis:
    """Name what was misunderstood in an answer that failed a check, or show the evidence."""
    failed = [result for result in results if not result.passed]
    if all(isinstance(result.error, Unanswered) for result in failed):
        return Diagnosis.not_answered(task, failed[0].message)
    example = _smallest_failure(task, answer)
    map_ = _dependency_map(task, answer)
    found = _name(task, answer)
    if found:
        return Diagnosis(found.id, found.id, found.why, found.thinks, found.section, example, map_)
    first = failed[0]
    error = first.error
    if example is None and isinstance(error, Failure) and _legible(error.got):
        example = Example(error.inputs or {}, "result", error.expected, error.got)
    return Diagnosis(
        None,
        f"fails: {first.name}",
        f"Start with the first check that fails: “{first.name}”. We do not recognize this mistake, "
        "so here is what we saw.",
        section=task.section,
        example=example,
        map=map_,
    )
