"""What the judge knows of a task, and how a check sees an answer."""

import copy
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from attncourse.checks import prose
from attncourse.checks.answer import Answer, Elsewhere, Inputs
from attncourse.checks.observe import NAMED, Observation, find_short_cut, observe


@dataclass(frozen=True)
class Chapter:
    """Where tasks belong: a chapter, a lab, or somebody else's package.

    Attributes:
        assignment: its notebooks' name, e.g. "03_scaled_dot_product".
        place: in words, e.g. "chapter 3".
        page: its file in the book, without suffix; or an address of one's own.
        stem: the module that holds its tasks, e.g. "scaled_dot_product"; known once it is loaded.
    """

    assignment: str
    place: str
    page: str = ""
    stem: str = ""


class BadTask(Exception):
    """A task is written wrongly: an error of its author, and none of a student's."""


@dataclass(frozen=True)
class Check:
    """One promise of an answer, and the points it is worth."""

    name: str  # the sentence a teacher would say
    points: float
    function: Callable

    @functools.cached_property
    def draws(self) -> bool:
        """Whether it draws inputs, other ones for each seed."""
        return "rng" in inspect.signature(self.function).parameters


@dataclass(frozen=True, eq=False)
class Fault:
    """What a student may have misunderstood in one task.

    Attributes:
        words: the id under which its two sentences stand.
        forms: complete wrong answers; or what steps do instead (see `compose`): a dict of
            functions by the step's name, or a subclass of the task's steps.
    """

    of: "Task" = field(repr=False)
    id: str
    words: str
    section: str
    forms: list["Callable | Change"] = field(default_factory=list, repr=False)

    @property
    def task(self) -> str:
        return self.of.name

    @property
    def thinks(self) -> str:
        """What the student probably thinks, in the student's words."""
        return prose.thought(self, "thinks")

    @property
    def why(self) -> str:
        """Why that is wrong, without giving the solution away."""
        return prose.thought(self, "why")


@dataclass(eq=False)
class Task:
    """One answer a student writes, and what the judge knows about it.

    What is read of it, its hints and the sentences of its faults, is in `<name>.md` (see `prose`).

    Attributes:
        reference: the course's own answer.
        name: of the answer, as in the notebook; the reference's own if none is given.
        returns: names of the returned tensors, or the type of the one plain value: float, int,
            bool, dict or list.
        difficulty: 1 (a line) to 5 (an evening).
        minutes: a typical student needs.
        section: anchor in the book's chapter to read again.
        probes: inputs on which wrong answers tell themselves apart, by name.
        adapt: turns an answer that is no function of tensors (a class, a function of functions)
            into one of the inputs, which it gets by name.
        differentiated: the probes on which gradients are compared, too.
        small: inputs from the smallest on, to show a failure on.
        maps: inputs for a dependency map (see diagnosis), with the names that are perturbed.
        features: trailing axes of those inputs, and of the output, that belong to one position;
            of whole numbers, each is a position.
        forbidden: parts of the names of torch functions that would do the task.
        ready_made: functions of the course that do it, and that notebooks use besides.
        traits: further yes-or-no evidence on an answer, by name.
        chance: the answer may draw from the global random generator.
        tolerance: how far two equal answers may lie apart (relative); None = rounding only.
        keeps: an answer may be tempted to keep something from call to call; then it is looked at
            before anything else has called it.
        number: its place among the tasks of its chapter.
        home: its chapter; set when its file is loaded.
        module: the one that makes it; set when that is loaded.
        said: what its module says itself, in place of a file of words.
    """

    reference: Callable
    _: KW_ONLY
    name: str = ""
    returns: tuple[str, ...] | type = ("result",)
    difficulty: int = 1
    minutes: int = 5
    section: str = ""
    probes: Callable[[torch.Generator], dict[str, Inputs]]
    small: Callable[[torch.Generator], Iterator[Inputs]]
    adapt: Callable[[Callable], Callable] | None = None
    differentiated: tuple[str, ...] = ()
    maps: Callable[[torch.Generator], list[tuple[str, Inputs, tuple[str, ...]]]] | None = None
    features: int = 0
    forbidden: tuple[str, ...] = ()
    ready_made: tuple[Callable, ...] = ()
    traits: Callable[[Answer], dict[str, bool]] | None = None
    chance: bool = False
    tolerance: float | None = None
    keeps: bool = False
    number: int = 0
    home: Chapter | None = None
    module: str = ""
    said: prose.Words = field(default_factory=prose.Words, repr=False)
    checks: dict[str, Check] = field(default_factory=dict, repr=False)
    faults: dict[str, Fault] = field(default_factory=dict, repr=False)
    composed: type | None = field(default=None, repr=False)
    spellings: list[dict] = field(default_factory=list, repr=False)

    def __post_init__(self):
        self.name = self.name or self.reference.__name__

    # --- what its file says about it

    def check(self, points: float, title: str = "") -> Callable:
        """Decorator: a promise that takes `answer`, and `rng` if it draws inputs.

        Its name is the sentence a teacher would say: `every_row_sums_to_one`.

        Args:
            points: what it is worth.
            title: that sentence, where a name cannot say it ("the CPU's fused kernel is FLASH").
        """

        def record(function):
            name = title or function.__name__.replace("_", " ")
            if name in self.checks:
                raise BadTask(f"{self.name}: two checks are named “{name}”")
            if not points > 0:
                raise BadTask(f"{self.name}: the check “{name}” is worth no points")
            self.checks[name] = Check(name, points, function)
            return function

        return record

    def steps(self, cls: type) -> type:
        """Decorator: the reference cut into steps, a class of which each method is one.

        A step that keeps nothing needs no `self`. Called with the inputs (`__call__`), or, where
        the answer is a class, made like it, it must do what the reference does.
        What an answer does in two places is called in two places: a fault of this step is then
        known in each of them alone, too (see `relatives`).
        """
        taken = sorted(vars(cls).keys() & inspect.signature(self.fault).parameters.keys())
        if taken:
            raise BadTask(f"{self.name}: `fault` takes {taken[0]} for something else than a step")
        self.composed = _without_self(cls)
        return cls

    def spelling(self, **steps: Callable) -> None:
        """The same steps in other words, which nobody can tell from the first by their results."""
        self.spellings.append(_known_steps(self, steps))

    def fault(
        self,
        id: str,
        thinks: str = "",
        why: str = "",
        *,
        words: str = "",
        section: str = "",
        forms: Iterable[Callable] = (),
        entire: Iterable[dict[str, Callable]] = (),
        **steps: Callable | tuple[Callable, ...],
    ) -> Callable:
        """Record what a student may have misunderstood, and what the answer then does.

        Args:
            id: as in the course's catalogue, e.g. "D-SOFTMAX-DIM".
            thinks: what the student probably thinks, one sentence, in the student's words, if no
                file of words says it.
            why: why that is wrong, without giving the solution away; likewise.
            words: the id under which a file of words says it, if that is another one.
            section: of the chapter to read again; the task's own if none is given.
            forms: complete wrong answers.
            entire: more wordings, what each does instead by step, that are not tried beside other
                faults: a task can have too many pairs.
            steps: what a step does instead; several wordings as a tuple, in which `...` is the
                step as it was, and the last one goes on.

        Returns:
            A decorator for one more form: a complete wrong answer, or a subclass of the steps.
        """
        if id in self.faults:
            raise BadTask(f"{self.name}: two faults are named {id}")
        if thinks or why:
            self.said.thoughts[id] = prose.Entry(thinks, why)
        self.faults[id] = found = Fault(self, id, words or id, section or self.section)
        for form in forms:
            found.forms.append(form)
        wordings = {k: v if isinstance(v, tuple) else (v,) for k, v in steps.items()}
        for place in range(max(map(len, wordings.values()), default=0)):
            chosen = {step: each[min(place, len(each) - 1)] for step, each in wordings.items()}
            found.forms.append(_known_steps(self, chosen))
        found.forms.extend(_as_a_whole(self, each) for each in entire)

        def record(answer):
            if is_change(self, answer):
                _without_self(answer)
            found.forms.append(answer)
            return answer

        return record

    # --- what it is

    @property
    def points(self) -> float:
        """What it is worth: the sum of its checks' points."""
        return sum(check.points for check in self.checks.values())

    @property
    def hints(self) -> tuple[str, ...]:
        """Nudge, idea, almost code."""
        return prose.hints(self)

    def called(self, name: str) -> str:
        """What a reader calls an input or a result: `query`, `cache[0]`, rows of `tokens`."""
        return prose.called(self, name)

    def gives(self, name: str) -> bool:
        """Whether that input, or what it is part of, is what an answer is called with."""
        code = re.fullmatch(r"`(\w+)(\[.+\])?`", self.called(name))
        return bool(code) and code[1] in self.parameters

    @functools.cached_property
    def parameters(self) -> frozenset[str]:
        """What can be given to an answer, by name; of a module, to both of its calls."""
        if not isinstance(self.reference, type):
            return frozenset(inspect.signature(self.reference).parameters)
        calls = self.reference.__init__, self.reference.forward
        names = {name for call in calls for name in inspect.signature(call).parameters}
        return frozenset(names - {"self"} | {"training"})

    @functools.cached_property
    def in_float64(self) -> bool:
        """Whether answers are looked at in float64, too."""
        probes = self.probes(torch.Generator().manual_seed(0)).values()
        values = (value for inputs in probes for value in inputs.values())
        return any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in values)

    @property
    def chapter(self) -> str:
        """The stem shared by everything about the task's chapter."""
        return self.home.stem

    @property
    def assignment(self) -> str:
        """The name of its assignment."""
        return self.home.assignment

    @property
    def page(self) -> str:
        """Its file in the book, without suffix."""
        return self.home.page

    @property
    def place(self) -> str:
        """Where it is in the course: "chapter 3" or "lab 1"."""
        return self.home.place

    # --- what an answer to it shows

    def observe(self, answer: Callable, inputs: Inputs, adapt=None, **options) -> Observation:
        """Call an answer to this task, or its reference; `adapt` replaces the task's own."""
        if isinstance(answer, Elsewhere):
            return answer.observe(self, inputs, adapt, **options)
        if isinstance(answer, ByName):
            if adapt is None:
                return observe(answer, inputs, by_name=True, **options)
            answer = answer.answer  # what it changes is of the task's own inputs and results
        adapt = adapt or self.adapt
        if adapt is None:
            return observe(answer, inputs, **options)
        return observe(adapt(answer), inputs, by_name=True, **options)

    @staticmethod
    def key(inputs: Inputs) -> object:
        """Something hashable that is equal for equal inputs."""
        return _key(inputs)

    def expected(self, inputs: Inputs, gradient: bool = False) -> Observation:
        """What the reference shows; remembered, since a class brings the same inputs back."""
        key = self.name, gradient, self.key(inputs)
        if key not in _expected:
            if len(_expected) >= MOST_EXPECTED:
                _expected.clear()
            _expected[key] = self.observe(self.reference, inputs, gradient=gradient)
        return _expected[key]

    def short_cut(
        self, answer: Callable, inputs: Inputs, **options
    ) -> tuple[str | None, Observation]:
        """Name the ready-made function that an answer calls instead of computing, if any.

        Also gives what this call showed.
        """
        if isinstance(answer, Elsewhere):
            return answer.short_cut(self, inputs, **options)
        # not what @torch.no_grad() or @checked put around it
        own = inspect.unwrap(getattr(self.reference, "forward", self.reference))
        code = getattr(own, "__code__", None)
        function = self.adapt(answer) if self.adapt else answer
        if self.adapt:
            options["by_name"] = True
        return find_short_cut(function, inputs, self.forbidden, code, **options)


@dataclass(frozen=True)
class ByName:
    """An answer to a task between a change of its inputs and a change of what it returns."""

    task: Task
    answer: Callable
    inward: Callable[[Inputs], Inputs]
    outward: Callable[[object], object]

    def __call__(self, **inputs):
        inputs = self.inward(inputs)
        if self.task.adapt:
            return self.outward(self.task.adapt(self.answer)(**inputs))
        named = {name: inputs.pop(name) for name in NAMED if name in inputs}
        return self.outward(self.answer(*inputs.values(), **named))


Change = dict[str, Callable] | type  # what a form does to the reference in steps


def compose(task: Task, *changes: Change) -> Callable:
    """The reference in steps, with some of them changed; an earlier change wins."""
    classes, steps = [each for each in changes if isinstance(each, type)], {}
    for each in reversed(changes):
        if isinstance(each, type):
            steps = {name: steps[name] for name in steps.keys() - changed(each)}
        else:
            steps |= each
    answer = type(task.composed.__name__, (*classes, task.composed), steps)
    return answer if isinstance(task.reference, type) else answer()


def changed(change: Change) -> frozenset[str]:
    """The steps that a change replaces."""
    return frozenset(_own(change).keys() - ABOUT_A_CLASS)


# What Python itself writes into a class; the last two from 3.13 on.
ABOUT_A_CLASS = {"__module__", "__doc__", "__firstlineno__", "__static_attributes__"}


def step_of(change: Change, name: str) -> object:
    """What a change does in place of a step."""
    return change[name] if isinstance(change, dict) else inspect.getattr_static(change, name)


def goes_on(change: Change, name: str) -> bool:
    """Whether what it does in place of a step calls the step itself, with `super()`."""
    function = inspect.unwrap(step_of(change, name)) if isinstance(change, type) else None
    return "__class__" in getattr(getattr(function, "__code__", None), "co_freevars", ())


def _own(change: Change) -> dict[str, object]:
    return change if isinstance(change, dict) else dict(vars(change))


def is_change(task: Task, form: object) -> bool:
    """Whether a form of a fault changes steps, and is no complete answer."""
    if isinstance(form, dict):
        return True
    return bool(task.composed) and isinstance(form, type) and issubclass(form, task.composed)


def answer_of(task: Task, form: Callable | Change, *spelling: Change) -> Callable:
    """A form as a complete wrong answer, as new; its other steps in the given spelling."""
    if is_change(task, form):
        return compose(task, form, *spelling)
    if not isinstance(form, types.FunctionType):
        return form
    # What a function keeps in its default arguments is not there yet in a new one.
    new = types.FunctionType(
        form.__code__,
        form.__globals__,
        form.__name__,
        copy.deepcopy(form.__defaults__),
        form.__closure__,
    )
    new.__kwdefaults__ = copy.deepcopy(form.__kwdefaults__)
    return new


def _known_steps(task: Task, steps: dict[str, Callable]) -> dict[str, Callable]:
    if task.composed is None:
        raise BadTask(f"{task.name}: a step is replaced, and there is no class of steps yet")
    unknown = [name for name in steps if not hasattr(task.composed, name)]
    if unknown:
        steps = [name for name in vars(task.composed) if not name.startswith("__")]
        raise BadTask(
            f"{task.name}: there is no step named {', '.join(unknown)}; its steps are "
            f"{', '.join(steps)}"
        )
    return {name: as_step(step) for name, step in steps.items() if step is not ...}


def _as_a_whole(task: Task, steps: dict[str, Callable]) -> Callable:
    """A complete answer with these steps, in which nobody sees steps."""
    change = _known_steps(task, steps)
    return lambda *inputs: compose(task, change)(*inputs)


def as_step(function: object) -> object:
    """A step whose first argument is not `self` needs none."""
    if not isinstance(function, types.FunctionType):
        return staticmethod(function)  # a method of a tensor would take the class for one
    first = next(iter(inspect.signature(function).parameters), None)
    return function if first == "self" else staticmethod(function)


def _without_self(cls: type) -> type:
    for name, value in list(vars(cls).items()):
        if isinstance(value, types.FunctionType):
            setattr(cls, name, as_step(value))
    return cls


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
