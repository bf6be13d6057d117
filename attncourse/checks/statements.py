"""What can be seen of an answer by trying it, whoever wrote it and whatever they thought.

Each statement is an experiment with the answer that was also done with the reference, and is made
only where the two differ. It says what was seen and ascribes no thought.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attncourse.checks import fingerprint
from attncourse.checks.answer import Failure, Inputs, shape_of, unpack
from attncourse.checks.fingerprint import Fingerprint, Gradient, comparable, of_reference, outputs
from attncourse.checks.task import Task

MOST_TRIED = 4  # probes for one experiment
MOST_SAID = 3  # what comes first is nearer to the cause
NEAR = 1e-4


@dataclass(frozen=True)
class Statement:
    """One thing that was seen; `kind` and `about` tell whether two answers show the same."""

    kind: str
    about: str
    words: str

    @property
    def is_of_a_part(self) -> bool:
        """Whether an answer with a part of the mistakes may show something else in its place."""
        return self.kind in ("results", "flags")


def statements(
    task: Task,
    answer: Callable,
    got: Fingerprint,
    wrong: set,
    keeps: bool = False,
    smallest: Inputs | None = None,
    errors: Sequence[BaseException] = (),
) -> Iterator[Statement]:
    """What was seen, the cause before its symptoms; a thing is tried when it is asked for.

    Args:
        got: the answer's fingerprint.
        wrong: the pieces of it in which the reference differs.
        keeps: an earlier call with the same inputs has given something else.
        smallest: inputs that are shown with a wrong result: no statement contradicts them.
        errors: of the checks that failed, and so are these.
    """
    seen = _Trials(task, answer)
    if found := list(_unsteady(task, seen, keeps)):
        yield from found  # of an answer that differs from call to call nothing else can be told
        return
    edited = list(dict.fromkeys(_edited(task, got)))
    every = itertools.chain(
        edited,
        _inputs(task, seen),
        _gradients(task, got, bool(edited)),
        _defaults(task, seen),
        _digits(task, got, wrong),
    )
    said = None
    for said in itertools.islice(every, MOST_SAID):
        yield said
    right, bad = _right_and_wrong(task, wrong)
    if said:
        return
    shown = [getattr(error, "inputs", None) for error in errors]
    known = [inputs for inputs in (smallest, *shown) if inputs]
    yield from _results(seen, wrong, known, errors)
    if right and len(bad) > 1:  # one probe alone tells nothing
        bad += known
        flags = _flags(task, bad) if all(shown) else ()  # who knows on what the others failed
        where = itertools.chain(_sizes(task, right, bad), _conditions(right, bad, flags))
        yield from itertools.islice(where, 1)


class _Trials:
    """Calls of the answer and of the reference with other inputs."""

    def __init__(self, task: Task, answer: Callable):
        self.task, self.answer = task, answer
        self._before: dict[int, list | None] = {}

    def got(self, inputs: Inputs, **options) -> list | None:
        return self._values(self.task.observe(self.answer, inputs, **options))

    def before(self, probe: Inputs) -> list | None:
        """What comes back for a probe: many experiments begin with the same."""
        if id(probe) not in self._before:  # probes are kept as long as their task
            self._before[id(probe)] = self.got(probe)
        return self._before[id(probe)]

    def expected(self, inputs: Inputs) -> list | None:
        return self._values(self.task.expected(inputs))

    def _values(self, seen) -> list | None:
        try:
            return [comparable(value) for value in unpack(self.task, seen)]
        except Failure:
            return None


def _same(one: list | None, two: list | None, near: float = NEAR) -> bool:
    if one is None or two is None:
        return one is two
    return all(fingerprint.agree(left, right, near) for left, right in zip(one, two, strict=True))


def _chosen(task: Task, name: str) -> list[Inputs]:
    """Some probes that have this input: the first ones, and the last."""
    having = [p for p in fingerprint.probes(task).values() if p.get(name) is not None]
    return having if len(having) <= MOST_TRIED else [*having[: MOST_TRIED - 1], having[-1]]


# --- chance and state ---------------------------------------------------------------------------


def _unsteady(task: Task, seen: _Trials, keeps: bool) -> Iterator[Statement]:
    if task.chance:
        return
    state = Statement(
        "state", "", "The same inputs gave another result later: it keeps something between calls."
    )
    if keeps:
        yield state
        return
    for inputs in list(fingerprint.probes(task).values())[:3]:
        once, twice, other = seen.before(inputs), seen.got(inputs), seen.got(inputs, seed=1)
        if not _same(once, twice):
            yield state
            return
        if not _same(twice, other):
            words = (
                "Two calls with the same inputs give different results: it draws random numbers."
            )
            yield Statement("chance", "", words)
            return


def _edited(task: Task, got: Fingerprint) -> Iterator[Statement]:
    asked = of_reference(task).pieces  # to change what a caller handed in
    for (probe, part), value in got.pieces.items():
        if part.endswith(" edited") and value is True and not asked.get((probe, part)):
            name = part.removesuffix(" edited")
            words = f"After the call the caller's own {task.called(name)} has changed."
            yield Statement("edits", name, words)


# --- one input at a time ------------------------------------------------------------------------


def _inputs(task: Task, seen: _Trials) -> Iterator[Statement]:
    probes = fingerprint.probes(task).values()
    for name in filter(task.gives, dict.fromkeys(name for inputs in probes for name in inputs)):
        called = task.called(name)
        if _never(seen, name):
            words = f"We changed {called}, and your result stayed the same."
            yield Statement("unused", name, words)
            continue
        if _first_only(seen, name):
            words = f"Only the first {called} of a batch matters: the others change nothing."
            yield Statement("first", name, words)
        if _mixes(seen, name):
            words = f"The result for the first of a batch changes with the {called} of another."
            yield Statement("mixes", name, words)
        elif place := _hears(seen, name):
            words = f"{place}: your result changed, and a right one does not."
            yield Statement("hears", name, words)


def _other(value: object, rows: slice | tuple = slice(None)) -> object:
    """Another value of the same kind: never only another order of the same numbers."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 1.5
    if not isinstance(value, Tensor) or value.numel() == 0:
        return None
    changed = value.clone()
    part = changed[rows] if changed.ndim else changed
    if part.numel() == 0:
        return None
    if value.dtype == torch.bool:
        part.copy_(~part)
    elif value.is_floating_point():
        noise = torch.randn(part.shape, generator=torch.Generator().manual_seed(5))
        part.copy_(part + 1 + noise.to(part.dtype))
    else:
        part.copy_(part.roll(1, -1) if part.unique().numel() > 1 else part)
    return changed


def _tries(seen: _Trials, name: str, change: Callable) -> Iterator[bool]:
    """Of each change of one input that moved the reference, whether it moved the answer.

    Where chance blurs results, the reference has moved only if it moved farther than chance does.
    """
    near = max(NEAR, seen.task.tolerance or 0)
    for inputs in _chosen(seen.task, name):
        value = change(inputs[name])
        if value is None:
            continue
        other = inputs | {name: value}
        before, after = seen.expected(inputs), seen.expected(other)
        got = seen.before(inputs)
        if after is not None and got is not None and not _same(before, after, near):
            yield not _same(got, seen.got(other))


def _stays(moved: Iterable[bool]) -> bool:
    """Whether the answer was tried and never moved; it is tried until it does."""
    moved = iter(moved)
    return not next(moved, True) and not any(moved)


def _far(value: object) -> object:
    """A number of another size: what a small step hardly moves may move now."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return 3 * value + (0 if isinstance(value, int) else 5)


def _less(value: object) -> object:
    """A smaller number: a large one may lie where nothing depends on it any more."""
    return value / 8 if isinstance(value, float) else None


def _never(seen: _Trials, name: str) -> bool:
    return _stays(each for change in (_other, _far, _less) for each in _tries(seen, name, change))


def _first_only(seen: _Trials, name: str) -> bool:
    def all_as_the_first(value):
        if not isinstance(value, Tensor) or value.ndim < 2 or len(value) < 2:
            return None
        return value[:1].expand_as(value).clone()

    return _is_batched(seen.task, name) and _stays(_tries(seen, name, all_as_the_first))


def _batch(task: Task, inputs: Inputs, name: str) -> int:
    """The length of the first axis, where it may count sentences.

    Where the same input comes with other numbers of axes, the fewest leave none for a batch.
    """
    value = inputs.get(name)
    if not isinstance(value, Tensor) or value.ndim < 2:
        return 0
    axes = {x.ndim for each in _chosen(task, name) if isinstance(x := each[name], Tensor)}
    return 0 if len(axes) > 1 and value.ndim == min(axes) else len(value)


@functools.cache
def _is_batched(task: Task, name: str) -> bool:
    """Whether the first axis counts sentences: the first result needs only the first of them."""
    seen, tried = _Trials(task, task.reference), 0
    for inputs in _chosen(seen.task, name):
        size = _batch(seen.task, inputs, name)
        before = seen.expected(inputs)
        if size < 2 or before is None:
            continue
        if not all(isinstance(v, Tensor) and v.ndim and len(v) == size for v in before):
            return False
        after = seen.expected(inputs | {name: _other(inputs[name], slice(1, None))})
        if after is None or not _same([v[:1] for v in before], [v[:1] for v in after]):
            return False
        tried += not _same(before, after)
    return tried > 0


def _mixes(seen: _Trials, name: str) -> bool:
    if not _is_batched(seen.task, name):
        return False
    for inputs in _chosen(seen.task, name):
        if _batch(seen.task, inputs, name) < 2:
            continue
        before = seen.before(inputs)
        after = seen.got(inputs | {name: _other(inputs[name], slice(1, None))})
        if before is None or after is None:
            continue
        if not all(isinstance(value, Tensor) and value.ndim for value in before + after):
            continue
        if not _same([value[:1] for value in before], [value[:1] for value in after]):
            return True
    return False


def _hears(seen: _Trials, name: str) -> str:
    """One place of an input that changes the answer and cannot change the reference, if any.

    In words: "In a `key` of shape (1 4 2) we changed `key[0, 3]`". No slope at one size of the
    numbers is not enough, for a softmax that is nearly 0 or 1 has none either.
    """
    for inputs in _chosen(seen.task, name):
        value = inputs[name]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return ""
        slopes = [_slope(seen.task, each, name) for each in (inputs, _shrunk(inputs))]
        if None in slopes or not value.ndim:
            continue
        free = torch.stack([slope == 0 for slope in slopes]).all(0)
        free = free.all(-1) if value.ndim > 1 else free  # a vector is one place
        if free.all():
            continue
        before, got = seen.expected(inputs), seen.before(inputs)
        for place in free.nonzero().tolist()[:MOST_TRIED]:
            other = inputs | {name: _other(value, tuple(place))}
            if before is None or got is None or not _same(before, seen.expected(other)):
                continue
            if not _same(got, seen.got(other)):
                where = f"[{', '.join(map(str, place))}]"
                called = seen.task.called(name).strip("`")
                return f"In a `{called}` of shape {shape_of(value)} we changed `{called}{where}`"
    return ""


def _slope(task: Task, inputs: Inputs, name: str) -> Tensor | None:
    return task.expected(inputs, gradient=True).gradients.get(name)


def _shrunk(inputs: Inputs) -> Inputs:
    floats = {
        n: v / 8 for n, v in inputs.items() if isinstance(v, Tensor) and v.is_floating_point()
    }
    return inputs | floats


# --- gradients, defaults, digits ----------------------------------------------------------------


def _gradients(task: Task, got: Fingerprint, edits: bool) -> Iterator[Statement]:
    if edits:  # an edit in place breaks autograd, and is the cause
        return
    arrives: dict[str, list[bool]] = {}
    partly, broken = Counter(), Counter()
    for key, ours in of_reference(task).pieces.items():
        theirs = got.pieces.get(key)
        if not isinstance(ours, Gradient) or not isinstance(theirs, Gradient):
            continue
        # what is tiny beside the gradients of its call is the rounding of our own
        due = isinstance(ours.value, Tensor) and ours.value.abs() > 10 * ours.floor
        if due is False or not due.any():
            continue
        name = key[1].removeprefix("gradient of ")
        there = isinstance(theirs.value, Tensor) and bool(theirs.value.any())
        arrives.setdefault(name, []).append(there)
        broken[name] += isinstance(theirs.value, str) and theirs.value == "broken"
        if there and theirs.value.shape == due.shape and (theirs.value == 0)[due].any():
            partly[name] += 1
    for name, there in sorted(arrives.items()):
        called = task.called(name)
        if not any(there):
            words = f"{called} should get a gradient, and none arrives at it."
            if broken[name] == len(there):
                words = f"autograd ends with an error, so no gradient arrives at {called}."
            yield Statement("no gradient", name, _begin(words))
        elif not all(there):
            words = f"In some of our calls no gradient arrives at {called}, and one should."
            yield Statement("part of a gradient", name, words)
        elif name in partly:
            words = f"a part of {called} should get a gradient, and gets none."
            if partly[name] < len(there):
                words = f"In some of our calls {words}"
            yield Statement("part of a gradient", name, _begin(words))


def _begin(words: str) -> str:
    return words[:1].upper() + words[1:]


def _defaults(task: Task, seen: _Trials) -> Iterator[Statement]:
    if task.adapt or isinstance(task.reference, type):
        return
    for name, parameter in inspect.signature(task.reference).parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty or default is None:
            continue
        for inputs in _chosen(task, name):
            if list(inputs)[-1] != name:
                break  # only the last one can be left out
            given = inputs | {name: default}
            left_out = {key: value for key, value in given.items() if key != name}
            got = seen.got(given)
            right = got is not None and _same(got, seen.expected(given))
            if right and not _same(got, seen.got(left_out)):
                words = f"Without `{name}` the result is not that of `{name}={default!r}`."
                yield Statement("default", name, words)
                break


def _digits(task: Task, got: Fingerprint, wrong: set) -> Iterator[Statement]:
    """Float64 goes in and comes out, and about seven digits of it are right."""
    for probe, name in sorted(wrong | {k for k in got.pieces if k[1] in outputs(task)}):
        theirs, ours = got.pieces.get((probe, name)), of_reference(task).pieces.get((probe, name))
        if not (isinstance(theirs, Tensor) and isinstance(ours, Tensor)):
            continue
        if ours.dtype != torch.float64 or theirs.shape != ours.shape or not ours.numel():
            continue
        if theirs.dtype != torch.float64:
            words = f"`{name}` comes back as {str(theirs.dtype)[6:]} where float64 went in."
            yield Statement("dtype", name, words)
            return
        size = ours.abs().max().item()
        off = (theirs - ours).abs().max().item()
        if 1e-9 * size < off < 1e-5 * size:
            words = (
                "Only about seven digits of float64 come back right. Is something inside float32, "
                "or is a small number added?"
            )
            yield Statement("digits", name, words)
            return


# --- where it is right --------------------------------------------------------------------------


def _right_and_wrong(task: Task, wrong: set) -> tuple[list[Inputs], list[Inputs]]:
    bad = {probe for probe, _ in wrong}
    probes = fingerprint.probes(task)
    right = [inputs for name, inputs in probes.items() if name not in bad]
    return right, [inputs for name, inputs in probes.items() if name in bad]


def _results(
    seen: _Trials, wrong: set, known: list[Inputs], errors: Sequence[BaseException]
) -> Iterator[Statement]:
    """Which of several results are right, wherever the answer was tried."""
    names = outputs(seen.task)
    bad = {part.removesuffix(" dtype") for _, part in wrong} & {*names}
    bad |= {name for name in names if any(str(error).startswith(f"{name}:") for error in errors)}
    for inputs in known:
        if expected := seen.expected(inputs):
            pairs = zip(names, seen.got(inputs) or names, expected, strict=True)
            bad |= {name for name, ours, theirs in pairs if not _same([ours], [theirs])}
    if 0 < len(bad) < len(names) and all(map(str.isidentifier, names)):
        good = " and ".join(f"`{name}`" for name in names if name not in bad)
        rest = " and ".join(f"`{name}`" for name in names if name in bad)
        words = f"{good} came back right on every input we tried; {rest} did not."
        yield Statement("results", good, words)


# What the letters of axes count, as in the book's notation; a longer name says it itself.
AXES = {"b": "sentences", "h": "heads", "c": "cached heads", "q": "queries", "k": "keys"}
AXES |= {"n": "positions", "r": "offsets", "y": "rows", "x": "columns"}
AXES |= dict.fromkeys("devma", "width")


def _axes(task: Task) -> dict[str, tuple[str, int]]:
    """Where the lengths of the course's axes are seen: an input, and its axis from the end."""
    found = {}
    called = getattr(task.reference, "forward", task.reference)  # a layer, or a function
    for name, parameter in inspect.signature(called).parameters.items():
        letters = getattr(parameter.annotation, "dim_str", "").split()
        for place, letter in enumerate(reversed(letters), 1):
            if not letter.isidentifier():
                break  # "...": any axes
            found.setdefault(letter, (name, -place))
    return found


def _sizes(task: Task, right: list[Inputs], bad: list[Inputs]) -> Iterator[Statement]:
    """Two axes whose lengths agree where the answer is right, and nowhere else."""
    axes = _axes(task)
    if task.adapt and not isinstance(task.reference, type):  # its inputs are not the student's
        return

    def length(inputs: Inputs, letter: str) -> int | None:
        name, axis = axes[letter]
        value = inputs.get(name)
        has = isinstance(value, Tensor) and value.ndim >= -axis
        return value.shape[axis] if has else None

    def told_by(right: list[Inputs]) -> list[tuple[str, str]]:
        def parts(one: str, two: str) -> bool:
            pairs = [
                [(length(each, one), length(each, two)) for each in some] for some in (right, bad)
            ]
            if any(None in lengths for some in pairs for lengths in some):
                return False
            return all(a == b for a, b in pairs[0]) and all(a != b for a, b in pairs[1])

        return [pair for pair in itertools.combinations(axes, 2) if parts(*pair)]

    # One number alone, such as the weight of an only key, comes out right whatever is done to it.
    several = [each for each in right if not any(1 in x.shape for x in _floats(each))]
    found = told_by(right)
    if len(found) == 1 and found == told_by(several):  # of several nobody knows which it is
        words = AXES | ({"c": "colors"} if "y" in axes else {})
        one, two = (f"{x} (the {words.get(x, x)} of `{axes[x][0]}`)" for x in found[0])
        words = f"Of the inputs we tried, it is right only where {one} is equal to {two}."
        yield Statement("equal sizes", " ".join(found[0]), words)


def _is_dead(inputs: Inputs) -> bool:
    masks = [v for v in inputs.values() if isinstance(v, Tensor) and v.dtype == torch.bool]
    return any(mask.ndim and not mask.any(-1).all() for mask in masks)


def _floats(inputs: Inputs) -> list[Tensor]:
    return [v for v in inputs.values() if isinstance(v, Tensor) and v.is_floating_point()]


CONDITIONS = (
    ("a row of the mask hides everything", _is_dead),
    ("a mask is given", lambda i: any("mask" in n and v is not None for n, v in i.items())),
    ("no mask is given", lambda i: any("mask" in n and v is None for n, v in i.items())),
    ("numbers are large", lambda i: any(v.numel() and v.abs().max() > 99 for v in _floats(i))),
    ("numbers are float64", lambda i: any(v.dtype == torch.float64 for v in _floats(i))),
    ("numbers are float16", lambda i: any(v.dtype == torch.float16 for v in _floats(i))),
    ("an input has more than two axes", lambda i: any(v.ndim > 2 for v in _floats(i))),
)


def _conditions(right: list[Inputs], bad: list[Inputs], flags: Iterable) -> Iterator[Statement]:
    for kind, conditions in (("where", CONDITIONS), ("flags", flags)):
        for words, holds in conditions:
            if all(map(holds, bad)) and not any(map(holds, right)):
                said = f"Of the inputs we tried, it is wrong exactly where {words}."
                yield Statement(kind, words, said)


def _flags(task: Task, bad: list[Inputs]) -> Iterator[tuple[str, Callable[[Inputs], bool]]]:
    """Of plain inputs: this one is what it is in the first; or it is left out, or given."""
    for name, value in bad[0].items():
        if task.gives(name) and value is None:
            yield f"{task.called(name)} is None", lambda i, name=name: i.get(name) is None
        elif task.gives(name):
            if isinstance(value, bool | str):
                words = f"{task.called(name)} is {value!r}"
                yield words, lambda i, name=name, value=value: i.get(name) == value
            words = f"{task.called(name)} is given"
            yield words, lambda i, name=name: i.get(name) is not None
