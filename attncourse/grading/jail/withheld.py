"""What is not there while an answer is judged: the course's answers, and what torch has ready-made.

Both are taken away from the process itself, so neither another thread nor a fork of it, nor a way
around the judge's watching, brings them back.
"""

import functools
import gc
import importlib
import inspect
import marshal
import pkgutil
import re
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator

import torch

from attncourse import experiments
from attncourse.checks import registry
from attncourse.checks.observe import DERIVATIVES, differentiate, observe
from attncourse.checks.task import Task

# --- the course's answers -----------------------------------------------------------------------


def of_course(own: Iterable[str], keep: Iterable[str]) -> None:
    """Empty every function beside which some task's reference stands, or what is said about it.

    What a notebook may use stays, with all that it needs, except for references of its own tasks.

    Args:
        own: the names of the assignment's tasks.
        keep: full names, such as "attncourse.multihead.MultiHeadAttention"; those of others do not
            matter.
    """
    for function, code in emptied(tuple(own), tuple(keep)):
        function.__code__ = code


@functools.cache
def emptied(
    own: tuple[str, ...], keep: tuple[str, ...]
) -> tuple[tuple[types.FunctionType, types.CodeType], ...]:
    """What `of_course` empties, and how. Found once, for all forks of this process."""
    tasks = registry.all_tasks()
    ready_made = [each for name in own for each in tasks[name].ready_made]
    gone = {id(part) for thing in ready_made for part in _parts(thing)}
    used = (name for name in keep if name.startswith("attncourse."))
    kept = {id(each) for name in used for each in _needed_by(_found(name), gone)}
    for name in own:  # what turns an answer into a function of tensors runs here, too
        adapters = functions_in(sys.modules[tasks[name].module])
        kept |= {id(found) for each in adapters for found in _needed_by(each, gone)}
    for name in own:
        kept -= {id(each) for each in _parts(tasks[name].reference)}
    strange = {*registry.stems(), "made_up"} - {tasks[name].chapter for name in own}
    others = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(f"{registry.COURSE}.") and name.split(".")[2] in strange
    ]
    there = (*modules(), *others, *measurements())
    found = [each for module in there for each in functions_in(module)]
    found += [
        part
        for each in ready_made
        for part in _needed_by(each)
        if part.__module__ == each.__module__  # its own parts, and no tool of others
    ]
    for task in tasks.values():  # an outside package's name for it may stand for the task itself
        if task.reference.__module__.startswith(registry.guarded()):
            found += _needed_by(task.reference)
    return tuple(
        (function, _refusing(f"attncourse's own {function.__name__}", function))
        for function in {id(each): each for each in found}.values()
        if id(function) not in kept
    )


@functools.cache
def measurements() -> tuple[types.ModuleType, ...]:
    """The modules of what the chapters have measured, which do some tasks in passing."""
    names = (each.name for each in pkgutil.iter_modules(experiments.__path__))
    return tuple(importlib.import_module(f"{experiments.__name__}.{name}") for name in names)


@functools.cache
def codes_of(task: str) -> list[tuple[str, int, str]]:
    """A task's reference, what is ready-made of it, and all that these need, for `give_back`.

    What is ready-made of a later task of its assignment is not there yet.
    """
    about = registry.find(task)
    things = (about.reference, *about.ready_made)
    tasks = registry.of_chapter(about.chapter)
    later = tasks[tasks.index(about) + 1 :]
    gone = {id(part) for each in later for thing in each.ready_made for part in _parts(thing)}
    needed = {id(each) for thing in things for each in _needed_by(thing, gone)}
    names = {each.__module__ for each in about.ready_made}
    return [
        (module.__name__, place, marshal.dumps(function.__code__).hex())
        for module in dict.fromkeys((*modules(), *(sys.modules[name] for name in sorted(names))))
        for place, function in enumerate(functions_in(module))
        if id(function) in needed
    ]


def give_back(codes: list) -> None:
    """Fill functions again that `of_course` has emptied."""
    for name, place, code in codes:
        function = functions_in(sys.modules[name])[place]
        function.__code__ = marshal.loads(bytes.fromhex(code))


def modules() -> list[types.ModuleType]:
    """The modules that hold references."""
    names = {task.reference.__module__ for task in registry.all_tasks().values()}
    return [sys.modules[name] for name in sorted(names)]


def functions_in(module: types.ModuleType) -> list[types.FunctionType]:
    """The functions and methods that a module defines, always in the same order."""
    return [
        part
        for value in vars(module).values()
        if getattr(value, "__module__", None) == module.__name__
        for part in _parts(value)
        if part.__module__ == module.__name__
    ]


def _parts(value: object) -> list[types.FunctionType]:
    """A function as a list; the methods of a class."""
    if not isinstance(value, type):
        value = inspect.unwrap(value) if callable(value) else value
        return [value] if isinstance(value, types.FunctionType) else []
    found = []
    for each in vars(value).values():
        each = getattr(each, "__func__", getattr(each, "fget", each))
        each = inspect.unwrap(each) if callable(each) and not isinstance(each, type) else each
        if isinstance(each, types.FunctionType):
            found.append(each)
    return found


def _found(name: str) -> object:
    """What a full name stands for; None if there is no such thing."""
    module, *rest = name.split(".")
    thing: object = sys.modules.get(module)
    for part in rest:
        thing = getattr(thing, part, None) if thing is not None else None
    return thing


def _needed_by(
    thing: object, without: Collection[int] = frozenset()
) -> Iterator[types.FunctionType]:
    """The course's functions that a function or class calls, and those that these call.

    Args:
        without: ids of functions that are not looked into, nor given.
    """
    todo, seen = [thing], set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, type):
            todo += [base for base in thing.__mro__ if base.__module__.startswith("attncourse")]
        for function in _parts(thing):
            if id(function) in without:
                continue
            yield function
            names = _names(function.__code__)
            for name in names:
                value = function.__globals__.get(name)
                if isinstance(value, types.ModuleType) and value.__name__.startswith("attncourse"):
                    todo += [vars(value)[other] for other in names if other in vars(value)]
                elif str(getattr(value, "__module__", "")).startswith("attncourse"):
                    todo.append(value)


def _names(code: types.CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


# --- what torch has ready-made ------------------------------------------------------------------

# Where numbers on a processor are computed, in all layouts.
_KEYS = ("CPU", "MkldnnCPU", "SparseCPU", "SparseCsrCPU", "NestedTensorCPU", "QuantizedCPU")


@functools.cache
def functions_of_torch() -> tuple[types.FunctionType, ...]:
    """Functions in Python that do some task. Found once, for all forks of this process."""
    parts = tuple({part for task in registry.all_tasks().values() for part in task.forbidden})
    gc.unfreeze()  # who has forked this process has hidden all that was there before
    every = gc.get_objects()
    gc.freeze()
    return tuple(
        each
        for each in every
        if type(each) is types.FunctionType
        and str(each.__module__).startswith("torch.")
        and _does(each, parts)
    )


def _does(function: types.FunctionType, forbidden: tuple[str, ...]) -> bool:
    """Whether its name says that it does a task; of private functions, their file's name, too."""
    if not forbidden:
        return False
    full = f"{function.__module__}.{function.__qualname__}"
    name = full if full.startswith("torch._") else function.__qualname__
    return _says(name, forbidden) or full.startswith(_beginnings(forbidden))


@functools.cache
def _says(name: str, forbidden: tuple[str, ...]) -> bool:
    """Many functions have one name, such as `forward`."""
    return _one_of(forbidden).search(name) is not None


@functools.cache
def _emptied_of_torch(
    forbidden: tuple[str, ...],
) -> tuple[tuple[types.FunctionType, types.CodeType], ...]:
    return tuple(_empty(functions_of_torch(), forbidden))


def _empty(
    functions: Iterable[types.FunctionType], forbidden: tuple[str, ...]
) -> Iterator[tuple[types.FunctionType, types.CodeType]]:
    """Those that do what is forbidden, each with code that refuses."""
    for function in functions:
        if _does(function, forbidden):
            yield function, _refusing(f"{function.__module__}.{function.__qualname__}", function)


@functools.cache
def _one_of(parts: tuple[str, ...]) -> re.Pattern:
    return re.compile("|".join(map(re.escape, parts)))


@functools.cache
def _beginnings(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for part in parts if part.startswith(("torch.", "networkx.")))


@functools.cache
def _operators(forbidden: tuple[str, ...]) -> tuple[str, ...]:
    return _among(_all_operators(), forbidden)


def _among(operators: Iterable[str], forbidden: tuple[str, ...]) -> tuple[str, ...]:
    found = ((name, name.replace("::", ".")) for name in operators)
    return tuple(name for name, dotted in found if any(part in dotted for part in forbidden))


@functools.cache
def _all_operators() -> tuple[str, ...]:
    return tuple(torch._C._dispatch_get_all_op_names())


@functools.cache
def _loaded() -> frozenset[str]:
    """The modules that are there before a student's program runs; what comes is looked through."""
    return frozenset(sys.modules)


def _forbidden(tasks: list[Task]) -> tuple[str, ...]:
    return tuple(sorted({part for task in tasks for part in task.forbidden}))


def find() -> None:
    """Do the searching once, for all forks of this process."""
    measurements()
    functions_of_torch()
    _own_engine()
    for name in _LOG_SUMS:
        _without_derivative(name)
    _loaded()


def no_compiler() -> None:
    """From now on `torch.compile` gives back what it gets.

    To compile takes longer than a call may, and changes no number. What was compiled before the
    first call would keep functions that are not there in it.
    """
    torch.compile.__code__ = _not_compiled.__code__


def _not_compiled(model=None, **_):
    return (lambda each: each) if model is None else model


class Torch:
    """Torch without some of its functions, from one `withhold` to the next.

    Args:
        tasks: of an assignment; of what they forbid together, each forbids the rest of the list.
    """

    def __init__(self, tasks: list[Task]):
        for place in range(len(tasks)):
            _operators(_forbidden(tasks[place:]))  # found once, for all forks of this process
            _emptied_of_torch(_forbidden(tasks[place:]))
        self.tasks: list[Task] = []
        self.forbidden: tuple[str, ...] = ()
        self.libraries: dict[str, torch.library.Library] = {}  # by operator
        self.codes: list[tuple[types.FunctionType, types.CodeType]] = []
        self.modules = _loaded()

    def withhold(self, tasks: list[Task]) -> None:
        """Let what these tasks forbid refuse: in all threads, and in forks."""
        if tasks is not self.tasks:
            self.tasks, forbidden = tasks, _forbidden(tasks)
            if forbidden != self.forbidden:
                self._give_back(forbidden)
                self.forbidden = forbidden
                self._refuse(_operators(forbidden))
                self._put(_emptied_of_torch(forbidden))
                if set(DERIVATIVES) <= set(forbidden):
                    self._no_derivatives()
        if len(sys.modules) != len(self.modules):  # something was imported since
            fresh = set(sys.modules) - self.modules
            self.modules |= fresh
            for name in fresh:
                module = sys.modules[name]
                if type(module) is types.ModuleType and name.partition(".")[0] not in OURS:
                    self._put(_empty(functions_in(module), self.forbidden))
            if self.forbidden:  # some bring operators of their own
                self._refuse(_among(torch._C._dispatch_get_all_op_names(), self.forbidden))

    def _refuse(self, operators: Iterable[str]) -> None:
        for operator in operators:
            if operator not in self.libraries:
                space, name = operator.split("::")
                public = f"torch.ops.{space}.{name.split('.')[0]}"
                kernel = functools.partial(_kernel, public)
                self.libraries[operator] = _library(operator, dict.fromkeys(_KEYS, kernel))

    def _no_derivatives(self) -> None:
        """The judge alone can differentiate, and it does so after the answer has returned."""
        for name in _LOG_SUMS:
            kernel = _without_derivative(name)
            self.libraries[name] = _library(f"aten::{name}", {"AutogradCPU": kernel}, True)
        self.codes.append((_engine, _engine.__code__))
        _engine.__code__ = _asks.__code__

    def _put(self, codes: Iterable[tuple[types.FunctionType, types.CodeType]]) -> None:
        for function, code in codes:
            self.codes.append((function, function.__code__))
            function.__code__ = code

    def _give_back(self, forbidden: tuple[str, ...]) -> None:
        """All functions, and of the operators, which cost more, those that are not forbidden."""
        if "torch._dynamo" in sys.modules:  # what was compiled holds what was there
            torch._dynamo.reset()
        for operator in self.libraries.keys() - set(_operators(forbidden)):
            self.libraries.pop(operator)._destroy()
        for function, code in reversed(self.codes):
            function.__code__ = code
        self.codes = []


OURS = {"__main__", "attncourse"}


def _library(operator: str, kernels: dict[str, Callable], with_keyset=False):
    """Other kernels for an operator, by key, for as long as the library is there."""
    space, name = operator.split("::")
    library = torch.library.Library(space, "IMPL")
    with warnings.catch_warnings():  # a student's filter may make errors of them
        warnings.simplefilter("ignore")
        for key, kernel in kernels.items():
            library.impl(name, kernel, key, with_keyset=with_keyset)
    return library


def _kernel(name: str, *_, **__):
    refuse(name)


# --- what differentiates ------------------------------------------------------------------------

# A softmax is their derivative.
_LOG_SUMS = ("logsumexp", "logcumsumexp", "logaddexp", "logaddexp2")
_engine = torch.autograd.graph._engine_run_backward  # torch's functions come to this one


asks: set[types.CodeType] = set()  # what in this process calls an answer for the judge


def _judge_differentiates() -> bool:
    """Whether it is the judge's call of an answer that goes on to differentiate what came back.

    It is not where an answer calls what the judge calls: then the judge observes twice, or, in a
    thread or a program of the answer's, does not ask.
    """
    codes, frame = [], sys._getframe()
    while frame:
        codes.append(frame.f_code)
        frame = frame.f_back
    own = differentiate.__code__, observe.__code__
    ours = [code for code in codes if code in own or code in asks]
    return ours[:2] == [*own] and ours.count(own[1]) == 1 and not asks.isdisjoint(ours)


@functools.cache
def _without_derivative(name: str) -> Callable:
    """An operator's own kernel, but what it keeps for its derivative is for the judge alone.

    So it does not matter who asks: torch's functions, its engine, or a node called by hand.
    """
    own = torch.library.get_kernel(f"aten::{name}", "AutogradCPU")

    def keep(tensor):
        return tensor, tensor._version

    def give(kept):
        if not _judge_differentiates():
            refuse(f"the derivative of {name}")
        tensor, version = kept
        if tensor._version != version:  # torch looks only where nobody keeps it otherwise
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation"
            )
        return tensor

    def kernel(keys, *arguments, **options):
        with torch.autograd.graph.saved_tensors_hooks(keep, give):
            return own.call_boxed(keys, *arguments, **options)

    return kernel


@functools.cache
def _own_engine() -> Callable:
    return types.FunctionType(_engine.__code__, _engine.__globals__)


def run_engine(*arguments, **options):
    if not _judge_differentiates():
        refuse("torch.autograd")
    return _own_engine()(*arguments, **options)


def _asks(*arguments, **options):
    from attncourse.grading.jail import withheld  # its globals are those of another module

    return withheld.run_engine(*arguments, **options)


# --- how a function refuses ---------------------------------------------------------------------

refused: list[str] = []  # what was called all the same, for the report


class ReadyMade(RuntimeError):
    """An answer has called what it is to do itself."""


def refuse(name: str) -> None:
    refused.append(name)
    raise ReadyMade(f"{name} is not there while your answer is graded")


def _refusing(name: str, function: types.FunctionType) -> types.CodeType:
    """Code for the place of a function's own."""
    own, code = function.__code__, _refuses.__code__
    return code.replace(
        co_name=own.co_name,
        co_freevars=own.co_freevars,
        co_consts=tuple(name if each == "NAME" else each for each in code.co_consts),
    )


def _refuses(*_, **__):
    from attncourse.grading.jail import withheld  # its globals are those of another module

    withheld.refuse("NAME")
