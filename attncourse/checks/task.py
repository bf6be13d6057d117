"""What the judge knows of a task, and how a check sees an answer."""

import inspect
import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attncourse.checks.observe import Observation, find_short_cut, observe

# Stem of the modules -> the name that the page in the book and the assignment share.
CHAPTERS = {
    "bottleneck": "01_bottleneck",
    "additive": "02_additive",
    "scaled_dot_product": "03_scaled_dot_product",
    "self_attention": "04_self_attention",
    "multihead": "05_multihead",
    "masking": "06_masking",
    "cross_attention": "07_cross_attention",
}
LABS = {
    name: name
    for name in (
        "lab1_time_it_right",
        "lab2_quadratic_wall",
        "lab3_who_computed_it",
        "lab4_sequential_or_parallel",
        "lab5_decode_bandwidth",
        "lab6_write_flash",
    )
}

Inputs = dict[str, object]  # argument name -> tensor, number or None, in the answer's order


@dataclass(frozen=True)
class Task:
    """One answer a student writes.

    Attributes:
        name: of the answer, as in the notebook.
        reference: the course's own answer.
        returns: names of the returned tensors, or the type of the one plain value: float, int,
            bool, dict or list.
        difficulty: 1 (a line) to 5 (an evening).
        minutes: a typical student needs.
        section: anchor in the book's chapter to read again.
        hints: nudge, idea, almost code.
        probes: inputs on which wrong answers tell themselves apart, by name; see diagnosis.
        adapt: turns an answer that is no function of tensors (a class, a function of functions)
            into one of the inputs, which it gets by name.
        differentiated: the probes on which gradients are compared, too.
        small: inputs from the smallest on, to show a failure on.
        maps: inputs for a dependency map (see diagnosis), with the names that are perturbed.
        features: trailing axes of those inputs, and of the output, that belong to one position;
            of whole numbers, each is a position.
        forbidden: parts of the names of torch functions that would do the task.
        traits: further yes-or-no evidence on an answer, by name.
        chance: the answer may draw from the global random generator.
        tolerance: how far two equal answers may lie apart (relative); None = rounding only.
    """

    name: str
    reference: Callable
    returns: tuple[str, ...] | type
    difficulty: int
    minutes: int
    section: str
    hints: tuple[str, str, str]
    probes: Callable[[torch.Generator], dict[str, Inputs]]
    small: Callable[[torch.Generator], Iterator[Inputs]]
    adapt: Callable[[Callable], Callable] | None = None
    differentiated: tuple[str, ...] = ()
    maps: Callable[[torch.Generator], list[tuple[str, Inputs, tuple[str, ...]]]] | None = None
    features: int = 0
    forbidden: tuple[str, ...] = ()
    traits: Callable[["Answer"], dict[str, bool]] | None = None
    chance: bool = False
    tolerance: float | None = None

    @property
    def chapter(self) -> str:
        """The stem shared by everything about the task's chapter."""
        return self.reference.__module__.rsplit(".", 1)[-1]

    @property
    def assignment(self) -> str:
        """The name of its assignment."""
        return (CHAPTERS | LABS)[self.chapter]

    @property
    def page(self) -> str:
        """Its file in the book, without suffix."""
        return f"book/{self.assignment}"

    @property
    def place(self) -> str:
        """Where it is in the course: "chapter 3" or "lab 1"."""
        if self.chapter in LABS:
            return f"lab {self.chapter[3]}"
        return f"chapter {int(self.assignment[:2])}"

    def observe(self, answer: Callable, inputs: Inputs, adapt=None, **options) -> Observation:
        """Call an answer to this task, or its reference; `adapt` replaces the task's own."""
        if isinstance(answer, Elsewhere):
            return answer.observe(self, inputs, adapt, **options)
        adapt = adapt or self.adapt
        if adapt is None:
            return observe(answer, inputs, **options)
        return observe(adapt(answer), inputs, by_name=True, **options)

    def expected(self, inputs: Inputs, gradient: bool = False) -> Observation:
        """What the reference shows; remembered, since a class brings the same inputs back."""
        key = self.name, gradient, _key(inputs)
        if key not in _expected:
            if len(_expected) >= MOST_EXPECTED:
                _expected.clear()
            _expected[key] = self.observe(self.reference, inputs, gradient=gradient)
        return _expected[key]

    def short_cut(self, answer: Callable, inputs: Inputs) -> str | None:
        """Name the ready-made function that an answer calls instead of computing, if any."""
        if isinstance(answer, Elsewhere):
            return answer.short_cut(self, inputs)
        own = inspect.unwrap(self.reference)  # not what @torch.no_grad() put around it
        code = getattr(getattr(own, "forward", own), "__code__", None)
        function = self.adapt(answer) if self.adapt else answer
        return find_short_cut(function, inputs, self.forbidden, code, by_name=bool(self.adapt))


MOST_EXPECTED = 10_000  # some kilobytes each
_expected: dict[tuple, Observation] = {}


def _key(value: object) -> object:
    """Something hashable that is equal for equal inputs."""
    if isinstance(value, Tensor):
        numbers = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return value.dtype, value.shape, numbers
    if isinstance(value, dict):
        return tuple((key, _key(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return type(value), *map(_key, value)
    return type(value), value


class Elsewhere:
    """An answer in another process: it is asked for observations, and never called here."""

    def __call__(self, *_, **__):
        raise TypeError("this answer lives in another process")

    def observe(self, task: Task, inputs: Inputs, adapt: Callable | None, **options) -> Observation:
        raise NotImplementedError

    def short_cut(self, task: Task, inputs: Inputs) -> str | None:
        raise NotImplementedError


class Failure(AssertionError):
    """A check failed; `inputs`, `expected` and `got` are the evidence, where there is any."""

    def __init__(self, message: str, inputs: Inputs | None = None, expected=None, got=None):
        super().__init__(message)
        self.inputs, self.expected, self.got = inputs, expected, got


class Unanswered(Failure):
    """The task has not been attempted, as far as the judge can see."""


def describe(value: object) -> str:
    """Say what a value is, as a student would: type, shape and dtype."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {shape_of(value)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, list | tuple):
        return f"a sequence of {len(value)}: " + "; ".join(map(describe, value[:4]))
    if value is None:
        return "None"
    module = type(value).__module__.split(".")[0]
    name = type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def shape_of(tensor: Tensor) -> str:
    return "(" + " ".join(map(str, tensor.shape)) + ")"


def unpack(task: Task, seen: Observation) -> tuple:
    """Turn an observation into the values the task promises, or raise a Failure that says why."""
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        where = f" ({seen.error_line})" if seen.error_line else ""
        raise Failure(f"Your answer {seen.error}{where}")
    returned = seen.returned
    if returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    if isinstance(task.returns, type):
        return (_plain_value(task.returns, returned),)
    names = task.returns
    if len(names) == 1:
        returned = (returned,)
    elif not isinstance(returned, list) or len(returned) != len(names):
        pair = "a pair" if len(names) == 2 else f"{len(names)} tensors"
        raise Failure(
            f"Your answer returned {describe(returned)}; {pair} is expected: {', '.join(names)}."
        )
    for name, value in zip(names, returned, strict=True):
        if not isinstance(value, Tensor):
            raise Failure(f"{name} is {describe(value)}; a torch.Tensor is expected.")
    return tuple(returned)


def _plain_value(kind: type, returned: object):
    """The one value that is no tensor, or a Failure that says what came instead."""
    if kind in (float, int) and isinstance(returned, Tensor) and returned.numel() == 1:
        returned = returned.item()  # the type has a check of its own
    expected = {float: numbers.Real, int: numbers.Integral}.get(kind, kind)
    if not isinstance(returned, expected) or (isinstance(returned, bool) and kind is not bool):
        article = "an" if kind is int else "a"
        raise Failure(
            f"Your answer returned {describe(returned)}; {article} {kind.__name__} is expected."
        )
    try:
        return kind(returned)
    except (OverflowError, ValueError):
        raise Failure("Your answer returned a number too large for a float.") from None


class Answer:
    """The answer under test, as the fixture `answer` gives it to a check."""

    def __init__(self, task: Task, function: Callable):
        self.task, self.function = task, function
        self.printed = 0  # characters, over all calls

    def observe(self, inputs: Inputs, **options) -> Observation:
        seen = self.task.observe(self.function, inputs, **options)
        self.printed += seen.printed
        return seen

    def __call__(self, inputs: Inputs, **options):
        """The returned tensors (a single one bare); a Failure if there are none."""
        try:
            values = unpack(self.task, self.observe(inputs, **options))
        except Failure as failure:
            failure.inputs = inputs
            raise
        return values[0] if len(values) == 1 else values

    def expected(self, inputs: Inputs):
        """What the reference returns for the same inputs."""
        values = unpack(self.task, self.task.expected(inputs))
        return values[0] if len(values) == 1 else values

    def matches(self, inputs: Inputs, *, tolerance: float | None = None, gradient=False, **options):
        """Assert that answer and reference agree on `inputs`: shape, dtype, then values."""
        got, expected = self(inputs, **options), self.expected(inputs)
        if isinstance(self.task.returns, type):
            compare_plain(got, expected, inputs, tolerance)
            return
        names = self.task.returns
        for name, ours, theirs in zip(names, _as_tuple(expected), _as_tuple(got), strict=True):
            compare(name, theirs, ours, inputs, tolerance)
        if gradient:
            self.gradients_match(inputs)

    def resets_random_state(self, inputs: Inputs) -> bool:
        """Whether a global generator ends in the same state from two different starts."""
        one, two = (self.observe(inputs, seed=seed).random_states for seed in (1, 2))
        return any(a == b for a, b in zip(one, two, strict=False))

    def gradients_match(self, inputs: Inputs):
        """Assert that the gradient of a mixture of all outputs reaches every input, correctly."""
        seen = self.observe(inputs, gradient=True)
        unpack(self.task, seen)
        expected = self.task.expected(inputs, gradient=True).gradients
        for name, ours in expected.items():
            theirs = seen.gradients.get(name)
            if theirs is None:
                said = f" Autograd says: {seen.gradient_error}" if seen.gradient_error else ""
                raise Failure(
                    f"No gradient reaches {name}: the model could not learn through this answer."
                    f"{said}",
                    inputs,
                )
            if not torch.isfinite(theirs).all():
                raise Failure(f"The gradient of {name}: some entries are NaN or infinite.", inputs)
            compare(f"the gradient of {name}", theirs, ours, inputs, tolerance=1e-3)


def _as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def compare(name, got: Tensor, expected: Tensor, inputs=None, tolerance: float | None = None):
    """Assert equal shape, dtype and values; never by broadcasting."""
    evidence = {"inputs": inputs, "expected": expected, "got": got}
    if got.shape != expected.shape:
        raise Failure(
            f"{name}: the shape is {shape_of(got)}; expected {shape_of(expected)}.", **evidence
        )
    if got.dtype != expected.dtype:
        raise Failure(f"{name}: the dtype is {got.dtype}; expected {expected.dtype}.", **evidence)
    if not got.is_floating_point():
        different = (got != expected).sum().item()
        if different:
            raise Failure(
                f"{name}: {different} of {got.numel()} entries differ from what is expected.",
                **evidence,
            )
        return
    if not torch.isfinite(got).all():
        raise Failure(f"{name}: some entries are NaN or infinite.", **evidence)
    tolerance = tolerance or (1e-9 if got.dtype == torch.float64 else 1e-4)
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    difference = (got - expected).abs().max().item() if expected.numel() else 0.0
    if difference > tolerance * scale:
        digits = ""
        if got.dtype == torch.float64 and difference < 1e-5 * scale:
            digits = " Inputs of float64 are checked to nine digits; was something float32 between?"
        raise Failure(f"{name}: off by up to {difference:.2g}.{digits}", **evidence)


def agree_plain(got, expected, tolerance: float | None = None) -> bool:
    """Whether two plain values are equal, numbers in them up to rounding."""
    tolerance = tolerance or 1e-6
    if isinstance(expected, dict) and isinstance(got, dict):
        return got.keys() == expected.keys() and all(
            agree_plain(got[key], value, tolerance) for key, value in expected.items()
        )
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        return len(got) == len(expected) and all(map(agree_plain, got, expected))
    if isinstance(expected, float) and isinstance(got, numbers.Real):
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(got, Tensor):
        return got.numel() == 1 and agree_plain(got.item(), expected, tolerance)
    return type(got) is type(expected) and got == expected


def compare_plain(got, expected, inputs=None, tolerance: float | None = None):
    """Assert that two plain values are equal."""
    if not agree_plain(got, expected, tolerance):
        raise Failure(
            f"Your answer returned {_short(got)}; expected {_short(expected)}.",
            inputs,
            expected,
            got,
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "…"
