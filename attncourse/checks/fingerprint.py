"""What an answer shows on a task's probes, in pieces that can be compared one by one."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attncourse.checks.answer import Answer, Failure, Inputs, unpack
from attncourse.checks.task import Task

Key = tuple[str, str]  # probe, part: an output, its dtype, a gradient, an edited input

FAILED = "failed"  # the part that stands for all outputs when a call gives nothing to compare
TRAITS = "traits"  # stands where a probe's name would


@functools.cache
def probes(task: Task) -> dict[str, Inputs]:
    return task.probes(torch.Generator().manual_seed(0))


def outputs(task: Task) -> tuple[str, ...]:
    """What the values of an answer are called."""
    if isinstance(task.returns, tuple):
        return task.returns
    return ("number",) if task.returns in (float, int) else ("result",)


def comparable(value: object) -> object:
    """Numbers as tensors, so that they are compared with a tolerance; all else as it is."""
    if isinstance(value, int) and value.bit_length() > 63:
        value = float(value) if value.bit_length() < 1000 else math.copysign(math.inf, value)
    return value if isinstance(value, bool | dict | list) else torch.as_tensor(value)


@dataclass(frozen=True)
class Gradient:
    """A gradient, and how large its call's gradients are: what is tiny beside them is rounding."""

    value: Tensor | str  # or why there is none
    floor: float = 0.0


def pieces(answer: Answer, probe: str, gradients: bool = True) -> dict[Key, object]:
    """What an answer shows on one probe, or its traits."""
    task = answer.task
    if probe == TRAITS:
        try:
            parts = task.traits(answer) if task.traits else {}
        except Failure:
            parts = {}
    else:
        gradients = gradients and probe in task.differentiated
        parts = _parts(task, answer.function, probes(task)[probe], gradients)
    return {(probe, part): value for part, value in parts.items()}


def _parts(task: Task, answer: Callable, inputs: Inputs, gradients: bool) -> dict[str, object]:
    seen = task.observe(answer, inputs)
    parts: dict[str, object] = {f"{name} edited": name in seen.edited for name in inputs}
    parts["random state moved"] = seen.random_state_moved and not task.chance
    try:
        values = unpack(task, seen)
    except Failure as failure:
        # Errors are told apart by their type: their words depend on how a line was written, and
        # so does whether it is torch or einops that complains about sizes.
        error = (seen.error or "").split(":")[0].replace("EinopsError", "RuntimeError")
        return parts | {FAILED: error or str(failure)}
    for name, value in zip(outputs(task), values, strict=True):
        parts[name] = comparable(value)
        if isinstance(value, Tensor):
            parts[f"{name} dtype"] = str(value.dtype)
    if isinstance(task.returns, type):
        parts["type"] = "tensor" if isinstance(seen.returned, Tensor) else "plain"
    if not gradients:
        return parts
    differentiated = task.observe(answer, inputs, gradient=True)
    found = {
        name: differentiated.gradients.get(name)
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    sizes = [g.abs().nan_to_num(0, 0, 0).max().item() for g in found.values() if _full(g)]
    for name, value in found.items():
        if value is None:
            value = "broken" if differentiated.gradient_error else "none"
        parts[f"gradient of {name}"] = Gradient(value, 3e-5 * max(sizes, default=0.0))
    return parts


def _full(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.numel() > 0


def agree(left: object, right: object, tolerance: float, floor: float = 0.0) -> bool:
    """Whether two pieces show the same, numbers up to a share of the largest of them."""
    if isinstance(left, Gradient) and isinstance(right, Gradient):
        return agree(left.value, right.value, tolerance, max(left.floor, right.floor))
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape:
            return False
        if left.dtype == right.dtype and torch.equal(left, right):
            return True  # most pieces are, and to look for a distance takes forty times as long
        left, right = left.double(), right.double()
        if not right.numel():
            return True
        near = max(tolerance * torch.nan_to_num(right, 0, 0, 0).abs().max().item(), floor)
        off = (left - right).abs().max().item()
        # No number where NaN, or infinities of one sign, are in the same place.
        return off <= near or (
            math.isnan(off) and torch.allclose(left, right, rtol=0, atol=near, equal_nan=True)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        same = left.keys() == right.keys()
        return same and all(agree(left[key], right[key], tolerance) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(agree(*pair, tolerance) for pair in pairs)
    if _is_number(left) and _is_number(right):  # 3 and 3.0 are one number
        return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance) or (
            left != left and right != right
        )
    return type(left) is type(right) and left == right


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def tolerance(task: Task) -> float:
    return task.tolerance or 1e-3


@dataclass
class Fingerprint:
    """What one answer shows, probe by probe, looked at when it is asked for."""

    task: Task
    answer: Callable
    gradients: bool = True
    pieces: dict[Key, object] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _wrong: dict[str, set[Key]] = field(default_factory=dict)

    @functools.cached_property
    def under_test(self) -> Answer:
        """The answer as checks and traits see it: one, so nothing is measured twice."""
        return Answer(self.task, self.answer)

    def again(self) -> Fingerprint:
        """A later look at the same answer: it may keep something."""
        later = Fingerprint(self.task, self.answer, self.gradients)
        later.under_test = self.under_test
        return later

    def look(self, probe: str) -> None:
        if probe not in self._seen:
            self._seen.add(probe)
            self.pieces |= pieces(self.under_test, probe, self.gradients)

    def know(self, probe: str, pieces: dict[Key, object]) -> None:
        """What is known to be seen there, and need not be looked at."""
        if probe not in self._seen:
            self._seen.add(probe)
            self.pieces |= pieces

    def on(self, probe: str) -> dict[Key, object]:
        self.look(probe)
        return {key: value for key, value in self.pieces.items() if key[0] == probe}

    def everything(self) -> Fingerprint:
        for probe in all_probes(self.task):
            self.look(probe)
        return self

    def piece(self, key: Key) -> object:
        """A piece; where the call failed that stands for its outputs, and for nothing else."""
        self.look(key[0])
        if key in self.pieces:
            return self.pieces[key]
        return self.pieces.get((key[0], FAILED)) if key[1] in outputs(self.task) else None

    def wrong(self, probe: str) -> set[Key]:
        """In which pieces of the reference it differs from it."""
        if probe not in self._wrong:
            reference = of_reference(self.task)
            self._wrong[probe] = differing(self, reference, reference.on(probe))
        return self._wrong[probe]


def all_probes(task: Task) -> Iterator[str]:
    return iter((*probes(task), TRAITS))


@functools.cache
def of_reference(task: Task) -> Fingerprint:
    return Fingerprint(task, task.reference)


def differing(one: Fingerprint, two: Fingerprint, keys) -> set[Key]:
    near = tolerance(one.task)
    return {key for key in keys if not agree(one.piece(key), two.piece(key), near)}
