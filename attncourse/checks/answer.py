"""How a check sees an answer, and what it can say against it."""

from __future__ import annotations

import contextlib
import math
import numbers
import random
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attncourse.checks.observe import Observation, Unusable, states_without_draws

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncourse.checks.task import Task

_PLAIN = numbers.Real | str | dict | None  # what a check takes, besides tensors and lists
# What torch says where there is no GPU, or where it is hidden, as it is when a class is graded.
NO_GPU = re.compile(  # what torch says without one, and in a fork of a process that was asked
    "not compiled with CUDA|No CUDA GPUs|NVIDIA driver|not linked with support for|"
    "re-initialize CUDA in forked"
)
OTHERWISE = "something else while it is watched"
SETTING = (
    "Your answer leaves a setting of torch changed for all code after it: gradients on or off, the "
    "default dtype or device, threads, autocast, or deterministic algorithms. "
    "`with torch.no_grad():` and its like turn it back at their end."
)
_unforeseen = random.SystemRandom()  # a seed would let an answer know which calls these are

MOST_LETTERS = 120  # of a value in a sentence
Inputs = dict[str, object]  # argument name -> tensor, number or None, in the answer's order


HOLDS = "This holds, but the result is wrong: "


class Failure(AssertionError):
    """A check failed; `inputs`, `expected` and `got` are the evidence, where there is any.

    `of` says what the two are, if they are no whole result: "gradient of x". `whole` says what was
    compared, where no more was asked than whether it is right: "result". `open`: what the check is
    named for cannot be seen, since something is wrong that has a check of its own.
    """

    def __init__(
        self,
        message: str,
        inputs: Inputs | None = None,
        expected=None,
        got=None,
        of: str = "",
        whole: str = "",
        open: bool = False,
    ):
        super().__init__(message)
        self.open = open
        self.inputs, self.expected, self.got = inputs, expected, got
        self.of, self.whole = of, whole


class Unanswered(Failure):
    """The task has not been attempted, as far as the judge can see."""


def describe(value: object) -> str:
    """Say what a value is, as a student would: type, shape and dtype.

    The tables of explanations (`tables`) hold such sentences: with other words, build them anew.
    """
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


def _returned(seen: Observation, inputs: Inputs | None = None) -> object:
    """What came back, whatever it is; a Failure says why there is nothing."""
    if seen.unanswered:
        raise Unanswered("The answer still raises NotImplementedError.")
    if seen.error:
        said = f"{seen.error} ({seen.error_line})" if seen.error_line else seen.error
        if NO_GPU.search(said):
            said += (
                ". It asks for a GPU, but answers are judged on a CPU, where the inputs are. "
                "Make tensors there: `device=x.device`, for an input x."
            )
        stop = "" if said.startswith("raised") or said[-1] in ".?)" else "."
        raise Failure(f"Your answer {said}{stop}", inputs)
    if seen.returned is None:
        raise Unanswered("Your answer returned None: is a `return` missing?")
    return seen.returned


def unpack(task: Task, seen: Observation) -> tuple:
    """Turn an observation into the values the task promises, or raise a Failure that says why."""
    returned = _returned(seen)
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


def apart(one: float, two: float, form: str = ".3g") -> tuple[str, str]:
    """Two numbers that are said to differ, in as many digits as it takes to see that they do."""
    start, digits, end = re.fullmatch(r"(.*\.)(\d+)(.)", form).groups()
    for more in range(18):
        texts = tuple(f"{x:{start}{int(digits) + more}{end}}" for x in (one, two))
        if texts[0] != texts[1]:
            break
    return texts


class Answer:
    """The answer under test, as the fixture `answer` gives it to a check."""

    def __init__(self, task: Task, function: Callable):
        self.task, self.function = task, function
        self.printed = 0  # characters, over all calls
        self.looks: dict[tuple, Observation] = {}  # what `returned` has seen
        self.calls, self.one = 0, None  # one of the calls, and nobody can foresee which

    apart = staticmethod(apart)

    def observe(self, inputs: Inputs, **options) -> Observation:
        seen = self.task.observe(self.function, inputs, **options)
        self.printed += seen.printed
        self._remember(inputs, options, seen)
        return seen

    def returned(self, inputs: Inputs, adapt: Callable) -> object:
        """What came back, whatever it is, of an answer looked at in another way.

        Checks and traits ask the same of an answer, often under a meter: it is called once, unless
        it may be tempted to keep something.
        """
        look = adapt, self.task.key(inputs)
        if look not in self.looks or self.task.keeps:
            self.looks[look] = self.observe(inputs, adapt=adapt)
        return _returned(self.looks[look], inputs)

    def _remember(self, inputs: Inputs, options: dict, seen: Observation) -> None:
        """Keep one of all calls that can be repeated, each with the same chance."""
        if "adapt" in options or not self.task.forbidden:
            return
        self.calls += 1
        if _unforeseen.randrange(self.calls) == 0:
            self.one = inputs, options, seen

    def while_watched(self) -> str | None:
        """Repeat a call of the checks under observation.

        Returns:
            The ready-made function that it calls; OTHERWISE if other numbers come back than
            before, and that only while it is watched; None.
        """
        if self.one is None:
            return None
        inputs, options, seen = self.one
        options = {name: value for name, value in options.items() if name != "gradient"}
        found, watched = self.task.short_cut(self.function, inputs, **options)
        if not found and _differ(seen, watched):
            again = self.task.observe(self.function, inputs, **options)
            found = None if _differ(seen, again) else OTHERWISE
        return found

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
        with of_the_whole():
            if isinstance(self.task.returns, type):
                compare_plain(got, expected, inputs, tolerance)
                return
            names = self.task.returns
            for name, ours, theirs in zip(names, _as_tuple(expected), _as_tuple(got), strict=True):
                compare(name, theirs, ours, inputs, tolerance)
        if gradient:
            self.gradients_match(inputs)

    def holds_of_the_right(self, inputs: Inputs) -> None:
        """`matches`, after a property was seen that constants have, too: the property is not it."""
        try:
            self.matches(inputs)
        except Failure as failure:
            said = f"{HOLDS}{failure}"
            evidence = failure.inputs, failure.expected, failure.got
            raise Failure(said, *evidence, whole="result") from None

    def leaves_settings(self, inputs: Inputs, **options) -> None:
        """Assert that whatever runs after a call finds torch as it was before."""
        if self.observe(inputs, **options).settings_changed:
            raise Failure(SETTING, inputs)

    def resets_random_state(self, inputs: Inputs, **options) -> bool:
        """Whether a global generator ends in the same state from two different starts."""
        one, two = (self.observe(inputs, seed=seed, **options).random_states for seed in (1, 2))
        return any(a == b for a, b in zip(one, two, strict=False))

    def draws_elsewhere(self, inputs: Inputs, **options) -> bool:
        """Whether a call draws from Python's or NumPy's generator, or from one of its own."""
        seen = self.observe(inputs, seed=1, **options)
        if seen.error:
            return False
        others = zip(seen.random_states[1:], states_without_draws(1)[1:], strict=False)
        return not seen.random_state_moved or any(one != two for one, two in others)

    def gradients_match(self, inputs: Inputs):
        """Assert that the gradient of a mixture of all outputs reaches every input, correctly."""
        seen = self.observe(inputs, gradient=True)
        unpack(self.task, seen)
        expected = self.task.expected(inputs, gradient=True).gradients
        floor = rounding(expected.values())
        for name, ours in expected.items():
            theirs = seen.gradients.get(name)
            if theirs is None and not seen.gradient_error and is_zero(ours, floor):
                continue  # nothing depends on this input here: the average of one value, say
            if theirs is None:
                said = f" Autograd says: {seen.gradient_error}" if seen.gradient_error else ""
                raise Failure(
                    f"No gradient reaches {name}: a model could not learn by it.{said}",
                    inputs,
                )
            if not torch.isfinite(theirs).all():
                raise Failure(f"The gradient of {name}: some entries are NaN or infinite.", inputs)
            with following(lambda: self.matches(inputs)):  # of a wrong result it is wrong, too
                compare(f"the gradient of {name}", theirs, ours, inputs, tolerance=1e-3)


@contextlib.contextmanager
def following(usual: Callable[[], object]) -> Iterator[None]:
    """What fails inside is left open where the usual case fails, too, which has its own check."""
    try:
        yield
    except Failure as failure:
        try:
            usual()
        except Failure:
            failure.open = True
        raise


@contextlib.contextmanager
def left_open(always: bool = True) -> Iterator[None]:
    """What fails inside is not what the check is named for."""
    try:
        yield
    except Failure as failure:
        failure.open = failure.open or always
        raise


@contextlib.contextmanager
def of_the_whole() -> Iterator[None]:
    """What fails inside says that the result is wrong, and no more."""
    try:
        yield
    except Failure as failure:
        failure.whole = "result"
        raise


def rounding(gradients: Iterable[Tensor | None]) -> float:
    """What is no more than this beside the gradients of its call may be rounding alone."""
    full = (x for x in gradients if x is not None and x.numel())
    sizes = [x.abs().nan_to_num(0, 0, 0).max().item() for x in full]
    return 3e-5 * max(sizes, default=0.0)


def is_zero(gradient: object, floor: float) -> bool:
    """Whether a gradient is zero up to the rounding of its call."""
    return isinstance(gradient, Tensor) and not bool((gradient.abs() > floor).any())


def _differ(one: Observation, two: Observation) -> bool:
    """Whether two calls returned other numbers, by more than rounding."""
    if one.error or two.error:
        return False  # some programs cannot run while they are watched
    return not _alike(one.returned, two.returned)


def _alike(one: object, two: object) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        if not one.is_floating_point():
            return torch.equal(one, two)
        return torch.allclose(one.double(), two.double(), rtol=1e-2, atol=1e-3, equal_nan=True)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_alike, one, two))
    if not isinstance(one, _PLAIN) or not isinstance(two, _PLAIN):
        return type(one) is type(two)  # an array of NumPy, say; comparing may do anything
    if isinstance(one, dict) and isinstance(two, dict):
        return _alike([*one, *one.values()], [*two, *two.values()])
    return agree_plain(two, one, tolerance=1e-2) or one != one


def _as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def compare(name, got: Tensor, expected: Tensor, inputs=None, tolerance: float | None = None):
    """Assert equal shape, dtype and values; never by broadcasting."""
    of = name.removeprefix("the ")
    evidence = {"inputs": inputs, "expected": expected, "got": got, "of": of}
    # of a wrong result the gradients are wrong, too
    evidence["whole"] = "result" if of.startswith("gradient") else name
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
            digits = " float64 is checked to nine digits."
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
        came, due = _told_apart(got, expected)
        raise Failure(f"Your answer returned {came}; expected {due}.", inputs, expected, got)


class _Entries(str):
    """How many there are, in words; a value that is shown as it is, without quotes."""

    __slots__ = ()

    def __new__(cls, number: int):
        return super().__new__(cls, f"{number} entr{'y' if number == 1 else 'ies'}")

    __repr__ = str.__str__


def first_difference(one: object, two: object, place: str = "") -> tuple[str, object, object]:
    """Where two values of one kind differ most, or first, and what stands there."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype or not one.numel():
            return place, describe(one), describe(two)
        off = (one.double() - two.double()).abs().nan_to_num(torch.inf)
        same = (one == two) | (one.isnan() & two.isnan())
        at = torch.unravel_index(off.masked_fill(same, -1).argmax(), off.shape)
        index = ", ".join(str(each.item()) for each in at)
        return f"{place}[{index}]", one[at].item(), two[at].item()
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        pairs = [(key, one[key], two[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple):
        if len(one) != len(two):
            return place, _Entries(len(one)), _Entries(len(two))
        pairs = zip(range(len(one)), one, two, strict=True)
    else:
        return place, one, two
    for key, here, there in pairs:
        if str(here) != str(there):
            return first_difference(here, there, f"{place}[{key!r}]")
    return place, one, two


def _told_apart(one: object, two: object) -> tuple[str, ...]:
    """Two values that differ, in a line each, so that it can be seen."""
    if type(one) is type(two) is float:
        return apart(one, two, ".8g")
    if max(len(repr(one)), len(repr(two))) <= MOST_LETTERS:
        return repr(one), repr(two)
    place, *both = first_difference(one, two)
    texts = (repr(x) if len(repr(x)) <= MOST_LETTERS else describe(x) for x in both)
    return tuple(f"{text} at {place}" if place else text for text in texts)


def has_shape(name: str, tensor: Tensor, axes: str, *shape: int, inputs, dtype=torch.float32):
    """Assert the shape and the dtype of what came back."""
    if tensor.shape != shape:
        expected = f"{axes} = ({' '.join(map(str, shape))})"
        raise Failure(f"{name} has shape {shape_of(tensor)}; expected {expected}.", inputs)
    if tensor.dtype != dtype:
        raise Failure(f"{name} has dtype {tensor.dtype}; expected {dtype}.", inputs)


def moves_nothing(answer: Answer, inputs: Inputs, *, draws: bool = False) -> None:
    """Assert that a call leaves inputs, random state and settings alone, and can be repeated.

    Args:
        draws: it may move the random state on, as whoever makes a layer does, and not reset it.
    """
    seen = _alone(answer, inputs, draws=draws)
    first = unpack(answer.task, seen)
    again = unpack(answer.task, answer.observe(inputs, seed=1))
    for one, two, name in zip(first, again, _names(answer), strict=True):
        if isinstance(one, Tensor):  # a NaN in the same place is another check's business
            same = torch.equal(one.nan_to_num(), two.nan_to_num())
        else:
            same = one == two
        if not same:
            raise Failure(f"{name} is not the same on a second call with the same inputs.", inputs)
    if draws and answer.resets_random_state(inputs):
        raise Failure(
            "After your answer, the global random state is always the same: a `manual_seed` inside "
            "a function makes all later draws of the program repeat.",
            inputs,
        )
    _does_not_mind_the_layout(answer, inputs, first, draws)


def leaves_inputs(answer: Answer, inputs: Inputs) -> None:
    """Assert that a call does not change what it was given."""
    answer(inputs)
    _edits_nothing(answer.observe(inputs), inputs)


def _edits_nothing(seen: Observation, inputs: Inputs) -> None:
    if not seen.edited:
        return
    tensors = all(isinstance(inputs[name], Tensor) for name in seen.edited)
    how = (
        "an in-place operation (`-=`, `masked_fill_`, …)"
        if tensors
        else "`…[…] = …`, `sort` or `pop`"
    )
    raise Failure(
        f"Your answer changed its own input: {', '.join(seen.edited)}. The caller still needs "
        f"it; {how} does that.",
        inputs,
    )


def _alone(answer: Answer, inputs: Inputs, *, draws: bool = False, **options) -> Observation:
    """A call that leaves inputs, random state and settings alone."""
    seen = answer.observe(inputs, **options)
    try:
        unpack(answer.task, seen)
    except Failure as failure:
        failure.inputs = inputs
        raise
    _edits_nothing(seen, inputs)
    if seen.random_state_moved and not draws:
        raise Failure(
            "Your answer moved or reset the global random state, which nothing here needs.",
            inputs,
        )
    if seen.settings_changed:
        raise Failure(SETTING, inputs)
    return seen


_LAYOUTS = {  # how the inputs may lie in memory
    "sliced": "each input a slice of a wider tensor (`chunk` returns such slices)",
    "turned": "the axes of each input in another order in memory, and gaps between its numbers "
    "(`transpose` and steps as in `[..., ::3]` return such tensors)",
}


def _does_not_mind_the_layout(
    answer: Answer, inputs: Inputs, first: tuple, draws: bool = False
) -> None:
    """Assert that it does not matter how the inputs lie in memory, but for rounding."""
    exact = {name: _in_float64(value) for name, value in inputs.items()}
    for layout, words in _LAYOUTS.items():
        # As they are, `double` copies them and `float` does not; in float64 it is the other way.
        wide = layout == "sliced" and answer.task.in_float64
        said = f"With the same numbers{' in float64' if wide else ''}, but {words}"
        _returns_as_before(answer, exact if wide else inputs, first, said, layout, draws)
    rows = {name: _one_row(name, value) for name, value in inputs.items()}
    if any(rows[name] is not value for name, value in inputs.items()):
        plain = answer.observe(rows)
        if not plain.error:
            said = "With one row in the place of all others (`expand` returns such tensors)"
            _returns_as_before(answer, rows, unpack(answer.task, plain), said, "spread", draws)


def _in_float64(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _one_row(name: str, value: object) -> object:
    """Its first row in the place of all others; weights of a module stay."""
    if not isinstance(value, Tensor) or value.ndim < 2 or len(value) < 2 or "." in name:
        return value
    return value[:1].repeat(len(value), *[1] * (value.ndim - 1))


def _returns_as_before(
    answer: Answer, inputs: Inputs, first: tuple, words: str, layout: str, draws: bool
) -> None:
    try:
        seen = _alone(answer, inputs, draws=draws, layout=layout)
        then = unpack(answer.task, seen)
        for one, two, name in zip(first, then, _names(answer), strict=True):
            if isinstance(one, Tensor):
                half = one.is_floating_point() and one.element_size() < 4
                near = 4 * torch.finfo(one.dtype).eps if half else None  # another kernel may run
                if two.dtype == torch.float64:
                    two = two.to(one.dtype)
                compare(name, two.nan_to_num(), one.nan_to_num(), inputs, near)
    except Failure as failure:
        raise Failure(f"{words}, it goes wrong: {failure}", inputs) from None


def _names(answer: Answer) -> tuple[str, ...]:
    returns = answer.task.returns
    return returns if isinstance(returns, tuple) else ("The result",)


# --- answers that return a dict ---------------------------------------------------------------


def fields(found: object, names: Iterable[str]) -> list:
    """The entries of a returned dict, in the order of the names.

    Raises:
        Unusable: it is no dict, or lacks one of them.
    """
    if not isinstance(found, dict):
        raise Unusable(f"returned {describe(found)}; a dict is expected.")
    missing = [name for name in names if name not in found]
    if missing:
        raise Unusable(f"returned a dict without {', '.join(map(repr, missing))}.")
    return [found[name] for name in names]


def as_number(value: object, name: str) -> Tensor:
    """A plain number, or a tensor or array of one, as a tensor in float64.

    Raises:
        Unusable: it is no number.
    """
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise Unusable(f"says that {name!r} is {describe(value)}; a number is expected.")
    return torch.tensor(float(value), dtype=torch.float64)


def numbers_of(found: object, names: Iterable[str]) -> list[Tensor]:
    """Entries of a returned dict as numbers; NaN, what is missing or none: it costs no other check.

    Raises:
        Unusable: it is no dict.
    """

    def number(name):
        try:
            return as_number(found[name], name)
        except (KeyError, Unusable):
            return torch.tensor(torch.nan, dtype=torch.float64)

    fields(found, ())
    return list(map(number, names))


def known(number: Tensor, name: str, kind: str = "a number") -> Tensor:
    """One of `numbers_of`, or a Failure if it is missing."""
    if number.isnan().any():
        raise Failure(f'Your result has no "{name}", or one that is not {kind}.')
    return number


class Elsewhere:
    """An answer in another process: it is asked for observations, and never called here."""

    def __call__(self, *_, **__):
        raise TypeError("this answer lives in another process")

    def observe(self, task: Task, inputs: Inputs, adapt: Callable | None, **options) -> Observation:
        raise NotImplementedError

    def short_cut(self, task: Task, inputs: Inputs, **options) -> tuple[str | None, Observation]:
        raise NotImplementedError
