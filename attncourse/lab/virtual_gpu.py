"""A GPU that exists only in numbers, so that a stopwatch can be held against the truth.

`VirtualGPU` takes the place of `torch.cuda` and of Python's clocks. It keeps two time lines, the
host's and the GPU's: a launch costs the host a few microseconds and puts the kernel in a queue,
and only `synchronize` lets the host wait for the GPU. How long a kernel truly takes is known. So
an ordinary timer, written for torch, can be graded on any computer, exactly and in no time.

    def bench(fn, flush):      # the interface: seconds of every call, fn's and nothing else's
        ...
        return samples

    panel(bench)               # {"long kernel": 1.00, "short kernel": 1.02, ...}, measured / true
    explain(panel(bench))      # None, or which mistake leaves this signature
"""

import functools
import math
import random
import statistics
import sys
import threading
import time
import timeit
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = [
    "FAMOUS",
    "SCENARIOS",
    "Famous",
    "Hardware",
    "Outcome",
    "VirtualGPU",
    "accepts",
    "explain",
    "panel",
    "plot_panels",
    "try_out",
]

FLUSH_BYTES = 256 * 2**20
QUEUE = 1024  # launches that may wait before a launch waits, too; about what CUDA allows
TICK = 5e-7  # an event's resolution: "around 0.5 microseconds", CUDA runtime API
STEPS = 100_000  # looks at a clock, launches, waits: after so many we call it an endless loop
OUTLIER_EVERY = 6  # calls


@dataclass(frozen=True)
class Hardware:
    """How a virtual GPU behaves. Seconds and bytes; factors multiply a kernel's time.

    Args:
        launch: host time to launch a kernel.
        record: host time to record an event.
        sync: host time that a synchronize costs, beside the waiting.
        look: host time that a look at a clock costs. It keeps the virtual clock from standing
            still for a timer that waits for it.
        malloc: host time to get memory on the GPU.
        bandwidth: bytes a second that the GPU writes.
        l2_bytes: a write at least as large leaves nothing in the cache.
        noise: relative standard deviation of a kernel's time.
        first: host time of a kernel's first call with arguments it has not seen (compilation).
        hot: factor when the kernel finds its input in the L2 cache.
        outlier: factor for one call in six.
        wake: seconds of work until the clock is up; before, `slow` is the factor.
        slow: see `wake`.
        heat: seconds of work after which the clock falls; then `drop` is the factor.
        drop: see `heat`.
        backlog: seconds of work that wait in the queue when the timer begins.
    """

    launch: float = 5e-6
    record: float = 1e-6
    sync: float = 3e-6
    look: float = 8e-8
    malloc: float = 3e-6
    bandwidth: float = 1e12
    l2_bytes: int = 40 * 2**20
    noise: float = 0.015
    first: float = 0.0
    hot: float = 1.0
    outlier: float = 1.0
    wake: float = 0.0
    slow: float = 1.0
    heat: float = math.inf
    drop: float = 1.0
    backlog: float = 0.0


class Scenario(NamedTuple):
    """One thing that a real GPU does to a stopwatch."""

    what: str
    hidden: dict[str, tuple[float, float]]  # field of Hardware, or "kernel" -> least, most
    accepted: tuple[float, float] = (0.9, 1.1)  # measured / true


# Every machine has these; a scenario adds one thing, so that its ratio tells of one thing.
EVERYWHERE = {
    "kernel": (0.4e-3, 1e-3),
    "launch": (4e-6, 7e-6),
    "record": (0.5e-6, 1.5e-6),
    "sync": (2e-6, 5e-6),
    "look": (5e-8, 1e-7),
    "bandwidth": (0.3e12, 2e12),  # T4 0.32, A100 2.04 TB/s by NVIDIA's data sheets
    "noise": (0.005, 0.015),
}
SCENARIOS = {
    "long kernel": Scenario("nothing special", {"kernel": (3e-3, 8e-3)}),
    # Twice is allowed here: clocks of the host see the launch and the synchronize, too.
    "short kernel": Scenario(
        "it ends before the host is done talking", {"kernel": (20e-6, 30e-6)}, (0.9, 2.0)
    ),
    "first call": Scenario("the first call compiles and loads", {"first": (0.3, 1.0)}),
    "waking clock": Scenario(
        "the clock rises after some milliseconds of work", {"wake": (0.01, 0.02), "slow": (2, 3)}
    ),
    "outliers": Scenario("one call in six is disturbed", {"outlier": (5, 10)}),
    "hot L2": Scenario("inputs of the last call wait in the cache", {"hot": (0.4, 0.6)}),
    "dirty queue": Scenario("the GPU still works on something else", {"backlog": (0.1, 0.4)}),
    "slow malloc": Scenario("getting memory takes milliseconds", {"malloc": (1e-3, 3e-3)}),
}


class EndlessLoop(BaseException):
    """A timer that waits for ever. Not an Exception: `except Exception` must not swallow it."""


class VirtualGPU:
    """A context in which torch.cuda and all clocks belong to a simulated GPU and its host.

    Args:
        hardware: how it behaves.
        timer: the function that will be called inside. Clocks that its module or a notebook knows
            by a name of its own (`from time import perf_counter`), as a default value or in a
            closure, become virtual, too.
        seed: of the noise.
        only: if given, this call alone (from 0) is an outlier, and not one in six.

    Example:
        with VirtualGPU() as gpu:
            fn = gpu.kernel(1e-3)
            samples = bench(fn, gpu.flush)  # should all be about 1e-3

    Only the thread that entered sees the virtual clocks. On leaving, everything is as before, even
    if the timer raised. Tensors made on "cuda" inside have a shape and cost time, but no values.
    """

    def __init__(
        self,
        hardware: Hardware = Hardware(),
        timer: Callable | None = None,
        seed: int = 0,
        only: int | None = None,
    ):
        self.hardware = hardware
        self.host = 1000.0  # seconds; where the host is
        self.idle_at = 1000.0  # when the GPU will have done all that is in its queue
        self.worked = 0.0  # seconds of work so far
        self.slept = 0.0  # seconds
        self.clock_reads = 0  # looks at a clock, and times read from events
        self.calls = 0  # of kernels
        self._steps = self._idle_looks = 0
        self._timer, self._seed, self._only = timer, seed, only
        self._random = random.Random(f"noise {seed}")
        self._queue: deque[float] = deque()  # when each kernel in it will be done
        self._cache_is_hot = False
        self._thread: int | None = None  # of the timer; None outside the context
        self._undo = ExitStack()

    # What the timer is given.

    def kernel(self, seconds: float) -> Callable[..., None]:
        """A function that launches a kernel of `seconds` (cold cache, settled clock).

        Its arguments stand for shapes: the first call with each pays `Hardware.first`.
        """
        known = set()

        def fn(*shape) -> None:
            if shape not in known:
                known.add(shape)
                self.host += self.hardware.first
            self._launch(self._duration(seconds))
            self._cache_is_hot = True

        return fn

    def flush(self) -> None:
        """Overwrite 256 MiB on the GPU: afterward the L2 cache holds nothing of use."""
        self.write(FLUSH_BYTES)

    def write(self, count: int) -> None:
        """Launch a kernel that writes `count` bytes."""
        self._launch(count / self.hardware.bandwidth)
        if count >= self.hardware.l2_bytes:
            self._cache_is_hot = False

    def _duration(self, seconds: float) -> float:
        hardware = self.hardware
        seconds *= max(0.9, min(self._random.gauss(1.0, hardware.noise), 1.1))
        if self._cache_is_hot:
            seconds *= hardware.hot
        if self._is_outlier():
            seconds *= hardware.outlier
        if self.worked < hardware.wake:
            seconds *= hardware.slow
        if self.worked > hardware.heat:
            seconds *= hardware.drop
        self.calls += 1
        return seconds

    def _is_outlier(self) -> bool:
        if self._only is not None:
            return self.calls == self._only
        # One in each block of six, and not each with a chance of its own: so whoever takes the
        # median of many is never unlucky.
        block, position = divmod(self.calls, OUTLIER_EVERY)
        chance = random.Random(f"outlier {self._seed} {block}")
        return position == chance.randrange(OUTLIER_EVERY)

    def _launch(self, seconds: float) -> None:
        self._step()
        self.host += self.hardware.launch
        while self._queue and self._queue[0] <= self.host:
            self._queue.popleft()
        if len(self._queue) >= QUEUE:
            self.host = self._queue.popleft()
        self.idle_at = max(self.idle_at, self.host) + seconds
        self.worked += seconds
        self._queue.append(self.idle_at)

    # What torch and Python's clocks become.

    def _step(self) -> None:
        self._idle_looks = 0
        self._steps += 1
        if self._steps > STEPS:
            raise EndlessLoop(
                f"{STEPS:,} looks at a clock and launches without an end: "
                "a loop waits for something that never comes"
            )

    def _look(self) -> float:
        """The host's time. It moves at every look, faster where a loop does nothing but look."""
        looks = self._idle_looks + 1
        self._step()
        self._idle_looks = looks
        self.clock_reads += 1
        self.host += self.hardware.look * (1 + looks // 20)
        return self.host

    def _wait(self, until: float) -> None:
        self._step()
        self.host = max(self.host, until) + self.hardware.sync

    def _sleep(self, seconds: float) -> None:
        self._step()
        self.host += seconds
        self.slept += seconds

    def _clocks(self) -> Iterator[tuple[Callable, Callable]]:
        """Every clock of Python, and what stands for it."""
        origins = {
            "perf_counter": lambda: 0.0,
            "monotonic": lambda: 0.0,
            "time": lambda: 1.7e9,
            # A host that waits for the GPU spins, which is processor time; sleep is not.
            "process_time": lambda: -self.slept,
            "thread_time": lambda: -self.slept,
        }
        for name, origin in origins.items():
            if hasattr(time, name):

                def seconds(origin=origin) -> float:
                    return self._look() + origin()

                yield getattr(time, name), seconds
                yield getattr(time, f"{name}_ns"), lambda seconds=seconds: round(1e9 * seconds())
        yield time.sleep, self._sleep

    def _torch(self) -> Iterator[tuple[object, object]]:
        """What a timer needs of torch, and what stands for it."""
        cuda, accelerator = torch.cuda, torch.accelerator
        stream = SimpleNamespace(
            synchronize=lambda: self._wait(self.idle_at), query=lambda: self.idle_at <= self._look()
        )
        properties = SimpleNamespace(
            name="Virtual GPU",
            major=8,
            minor=0,
            total_memory=16 * 2**30,
            L2_cache_size=self.hardware.l2_bytes,
            multi_processor_count=40,
        )

        def only_one_stream(*_, **__) -> None:
            raise RuntimeError("the virtual GPU has one stream: time the function on that one")

        yield cuda.is_available, lambda: True
        yield cuda.synchronize, lambda device=None: self._wait(self.idle_at)
        yield cuda.current_stream, lambda device=None: stream
        yield cuda.default_stream, lambda device=None: stream
        yield cuda.stream, only_one_stream
        yield cuda.device_count, lambda: 1
        yield cuda.current_device, lambda: 0
        yield cuda.set_device, lambda device: None
        yield cuda.get_device_name, lambda device=None: properties.name
        yield cuda.get_device_capability, lambda device=None: (properties.major, properties.minor)
        yield cuda.get_device_properties, lambda device=None: properties
        yield cuda.empty_cache, lambda: None
        yield accelerator.is_available, lambda: True
        yield accelerator.synchronize, lambda device=None: self._wait(self.idle_at)
        yield accelerator.device_count, lambda: 1
        yield accelerator.current_accelerator, lambda *_: torch.device("cuda")

    def __enter__(self) -> "VirtualGPU":
        if self._thread is not None:
            raise RuntimeError("this virtual GPU is in use: make another one")
        functions = [*self._clocks(), *self._torch()]
        virtual = {id(real): self._for_this_thread(real, fake) for real, fake in functions}
        virtual |= {id(real): fake for real, fake in _event_classes(self)}
        places = []
        for module in (time, torch, torch.cuda, torch.accelerator):
            places += _names(vars(module), virtual)
        # `timeit` keeps the clock as a default value; a notebook is the module `__main__`.
        notebook, caller = vars(sys.modules["__main__"]), sys._getframe(1).f_globals
        places += _places([vars(timeit), notebook, caller, self._timer], virtual)
        with ExitStack() as undo:
            for put, real, fake in places:
                undo.callback(put, real)
                put(fake)
            undo.enter_context(_Memory(self))
            self._undo = undo.pop_all()
        self._thread = threading.get_ident()
        self.idle_at += self.hardware.backlog
        self.worked += self.hardware.backlog
        return self

    def __exit__(self, *_) -> None:
        self._thread = None
        self._undo.close()

    def _for_this_thread(self, real: Callable, fake: Callable) -> Callable:
        """Others (a notebook's heartbeat, say) keep the real one; so does who calls it later."""

        @functools.wraps(real)
        def either(*args, **kwargs):
            return (fake if self.is_here() else real)(*args, **kwargs)

        return either

    def is_here(self) -> bool:
        """Whether whoever asks is inside the context, and in the thread that entered."""
        return threading.get_ident() == self._thread


def _event_classes(gpu: VirtualGPU) -> Iterator[tuple[type, type]]:
    """torch's classes of events and what they become. Errors as in torch 2.13, CUDAEvent.h."""

    class Event:
        real = torch.cuda.Event

        def __new__(cls, *args, **kwargs):
            # Code that keeps this class for later gets real events then.
            return super().__new__(cls) if gpu.is_here() else cls.real(*args, **kwargs)

        def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
            self.timing = enable_timing
            self.reached: float | None = None  # when the GPU gets there

        def record(self, stream=None) -> None:
            gpu._step()
            gpu.host += gpu.hardware.record
            self.reached = max(gpu.host, gpu.idle_at)

        def synchronize(self) -> None:
            gpu._wait(self.reached or 0.0)

        def wait(self, stream=None) -> None:
            gpu._step()

        def query(self) -> bool:
            return (self.reached or 0.0) <= gpu._look()

        def elapsed_time(self, end_event: "Event") -> float:
            gpu.clock_reads += 1
            if not (self.timing and end_event.timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if self.reached is None or end_event.reached is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            if max(self.reached, end_event.reached) > gpu.host:
                raise RuntimeError("Both events must be completed before calculating elapsed time.")
            ticks = round((end_event.reached - self.reached) / TICK)
            return 1e3 * TICK * ticks  # milliseconds

    class EventOfAnyDevice(Event):
        real = torch.Event

        def __init__(self, device=None, *, enable_timing=False, **_):
            super().__init__(enable_timing)

    yield torch.cuda.Event, Event
    yield torch.Event, EventOfAnyDevice


class _Memory(TorchFunctionMode):
    """Tensors on "cuda" have a shape but no values ("meta"), and cost the virtual GPU time."""

    def __init__(self, gpu: VirtualGPU):
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is torch.device:
            return func(*args, **kwargs)
        if name == "cuda":
            func, args, kwargs = Tensor.to, (args[0], "cuda"), {}
        on_gpu = any(_means_cuda(each) for each in (*args, *kwargs.values()))
        if on_gpu:
            args = ["meta" if _means_cuda(each) else each for each in args]
            kwargs = {k: "meta" if _means_cuda(each) else each for k, each in kwargs.items()}
            if name in ("rand", "randn"):  # nobody sees the values, and this needs no imports
                func = torch.empty
        output = func(*args, **kwargs)
        if on_gpu:
            self.gpu._step()
            self.gpu.host += self.gpu.hardware.malloc
        if isinstance(output, Tensor) and output.is_meta:
            in_place = name.endswith("_") and not name.endswith("__")
            if in_place or (on_gpu and not name.startswith("empty")):
                self.gpu.write(output.numel() * output.element_size())
        return output


def _means_cuda(argument: object) -> bool:
    if isinstance(argument, str):
        return argument.split(":")[0] == "cuda"
    return isinstance(argument, torch.device) and argument.type == "cuda"


Place = tuple[Callable[[object], None], object, object]  # how to put a thing there, old, new


def _names(namespace: dict[str, object], virtual: dict[int, object]) -> Iterator[Place]:
    """Where a namespace keeps a clock under any name."""
    for name, value in namespace.items():
        if id(value) in virtual:
            yield functools.partial(namespace.__setitem__, name), value, virtual[id(value)]


def _places(roots: list[object], virtual: dict[int, object]) -> Iterator[Place]:
    """Where code keeps a clock of its own: names in its module, default values, closures.

    Follows functions to their module, and a module to what is defined there.
    """
    todo, seen = list(roots), set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, ModuleType | Tensor):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            yield from _names(thing, virtual)
            own = thing.get("__name__")
            todo += [each for each in thing.values() if _made_in(each) == own]
        elif isinstance(thing, FunctionType):
            defaults = thing.__defaults__ or ()
            if any(id(each) in virtual for each in defaults):
                new = tuple(virtual.get(id(each), each) for each in defaults)
                yield functools.partial(setattr, thing, "__defaults__"), defaults, new
            todo += [thing.__globals__, thing.__kwdefaults__, *defaults]
            for cell in thing.__closure__ or ():
                try:
                    value = cell.cell_contents
                except ValueError:  # a name without a value yet
                    continue
                if id(value) in virtual:
                    put = functools.partial(setattr, cell, "cell_contents")
                    yield put, value, virtual[id(value)]
                todo.append(value)
        elif isinstance(thing, type):
            for name, value in vars(thing).items():
                if id(value) in virtual:  # static: a function of Python would be given `self`
                    put = functools.partial(setattr, thing, name)
                    yield put, value, staticmethod(virtual[id(value)])
                todo.append(getattr(value, "__func__", value))
        elif isinstance(thing, MethodType):
            todo += [thing.__func__, thing.__self__]
        elif isinstance(thing, functools.partial):
            todo += [thing.func, thing.keywords, *thing.args, *thing.keywords.values()]
        elif isinstance(getattr(thing, "__dict__", None), dict):
            todo += [vars(thing), type(thing)]


def _made_in(thing: object) -> str | None:
    """The module that defines a function, a class, or an object's class."""
    if isinstance(thing, FunctionType | type):
        return thing.__module__
    return type(thing).__module__


@dataclass(frozen=True)
class Outcome:
    """What a timer said about one scenario.

    Args:
        ratio: measured / true; NaN if there is an error.
        samples: how many it returned.
        each: measured / true of every one of them.
        error: None, or what went wrong, in a sentence.
    """

    ratio: float
    samples: int = 0
    error: str | None = None
    each: tuple[float, ...] = ()


def try_out(timer: Callable, scenario: str, seed: int = 0) -> Outcome:
    """Let a timer measure a kernel whose time is known, on a virtual GPU.

    Args:
        timer: called as `timer(fn, flush)`, both without arguments: `fn` launches what is to be
            measured, `flush` overwrites the L2 cache. Returns the seconds of every call of `fn`,
            of which the median counts; or one number, which counts as it is; or a `Sample`.
        scenario: a key of SCENARIOS.
        seed: draws the hidden times of the GPU and of the kernel.

    Returns:
        Measured over true; of several tries (outliers) the one that is furthest off.

    Raises:
        ValueError: there is no such scenario.
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
    hidden = _draw(scenario, seed)
    kernel = hidden.pop("kernel")
    hardware = Hardware(**hidden)
    worst, _ = _measured(timer, hardware, kernel, seed)
    if hardware.outlier != 1 and worst.error is None:
        # Whoever trusts a single sample may be lucky with one call in six: disturb the last.
        undisturbed, calls = _measured(timer, replace(hardware, outlier=1.0), kernel, seed)
        last, _ = _measured(timer, hardware, kernel, seed, only=calls - 1)
        worst = max(worst, undisturbed, last, key=_how_far_off)
    return worst


def _measured(
    timer: Callable, hardware: Hardware, kernel: float, seed: int, only: int | None = None
) -> tuple[Outcome, int]:
    """What a timer says of a kernel of `kernel` seconds, and how often it called it."""
    gpu = VirtualGPU(hardware, timer, seed, only)
    try:
        with gpu:
            result = timer(gpu.kernel(kernel), gpu.flush)
        samples = _as_samples(result)
        if not gpu.clock_reads:
            raise ValueError(
                "it read no clock that the virtual GPU knows: use time.perf_counter() or "
                "torch.cuda.Event (datetime and %timeit read other clocks)"
            )
    except (Exception, EndlessLoop) as error:
        return Outcome(math.nan, error=_in_words(error)), gpu.calls
    each = tuple(seconds / kernel for seconds in samples)
    return Outcome(statistics.median(samples) / kernel, len(samples), each=each), gpu.calls


def _how_far_off(outcome: Outcome) -> float:
    if outcome.error:
        return math.inf
    return abs(math.log(max(outcome.ratio, 1e-12)))


def _draw(scenario: str, seed: int) -> dict[str, float]:
    """The hidden numbers of a scenario: fields of Hardware, and "kernel", its true seconds."""
    ranges = EVERYWHERE | SCENARIOS[scenario].hidden
    chance = random.Random(f"{scenario} {seed}")
    return {name: chance.uniform(*ranges[name]) for name in sorted(ranges)}


def _as_samples(result: object) -> list[float]:
    """Seconds, from whatever a timer may return in good faith."""
    if hasattr(result, "seconds"):  # a Sample
        result = result.seconds
    if isinstance(result, Tensor):
        result = result.tolist()
    try:
        samples = [float(each) for each in result] if _is_iterable(result) else [float(result)]
    except (TypeError, ValueError):
        shown = "nothing (None)" if result is None else f"{type(result).__name__} {result!r:.80}"
        raise TypeError(
            f"it returned {shown}: return a list of seconds, one for each call"
        ) from None
    if not samples:
        raise ValueError("it returned an empty list: return the seconds of each call")
    if not all(math.isfinite(each) for each in samples):
        raise ValueError("it returned a time that is infinite or NaN")
    return samples


def _is_iterable(thing: object) -> bool:
    return hasattr(thing, "__iter__") and not isinstance(thing, str) and getattr(thing, "ndim", 1)


def _in_words(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if "meta" in str(error):
        text += " (tensors on the virtual GPU have a shape and no values)"
    return text


def panel(timer: Callable, seed: int = 0) -> dict[str, float | str]:
    """A timer's ratio to the truth in every scenario, or what went wrong there.

    Args:
        timer: as in `try_out`.
        seed: draws all hidden times.

    Returns:
        scenario -> measured / true, or a sentence. `accepts` says whether that is near enough.
    """
    values: dict[str, float | str] = {}
    for scenario in SCENARIOS:
        outcome = try_out(timer, scenario, seed)
        values[scenario] = outcome.error or outcome.ratio
        if outcome.error and outcome.error.startswith(EndlessLoop.__name__):
            return dict.fromkeys(SCENARIOS, outcome.error) | values  # the others would wait, too
    return values


def accepts(scenario: str, value: float | str) -> bool:
    """Whether a value of `panel` is near enough to the truth."""
    least, most = SCENARIOS[scenario].accepted
    return not isinstance(value, str) and least <= value <= most


def explain(ratios: Mapping[str, float | str]) -> str | None:
    """Name the mistake behind a panel, if its signature leaves no doubt.

    Args:
        ratios: as `panel` returns them.

    Returns:
        What was misunderstood and what to do, one line for each mistake; None where all is well,
        and where something remains that no known mistake explains.
    """
    errors = {value for value in ratios.values() if isinstance(value, str)}
    if errors:
        texts = [text for sign, text in ERRORS.items() if all(sign in error for error in errors)]
        return texts[0] if texts else None
    unit = _unit(ratios)
    ratios = {name: value / unit for name, value in ratios.items()}
    failed = {name for name, value in ratios.items() if not accepts(name, value)}
    texts = [UNITS[unit]] if unit != 1 else []
    for text, scenarios in _mistakes(ratios):
        if failed & scenarios:
            texts.append(text)
            failed -= scenarios
    return "\n".join(texts) if texts and not failed else None


ERRORS = {
    "must be completed": (
        "No synchronize before elapsed_time: the GPU had not reached the events yet. Call "
        "torch.cuda.synchronize() first."
    ),
    "enable_timing": (
        "These events carry no time. Create them with torch.cuda.Event(enable_timing=True)."
    ),
    "must be recorded": (
        "elapsed_time needs both events recorded: start.record() before fn(), end.record() after."
    ),
}
UNITS = {
    1e3: "A wrong unit: these are milliseconds, which elapsed_time returns. Divide by 1000.",
    1e6: "A wrong unit: these are microseconds. Divide by a million.",
    1e9: "A wrong unit: these are nanoseconds, as perf_counter_ns returns them. Divide by 1e9.",
    1e-3: "A wrong unit: a thousand times too small. perf_counter speaks in seconds already.",
    1e-6: "A wrong unit: a million times too small.",
}


def _unit(ratios: Mapping[str, float]) -> float:
    """The unit that a timer speaks in, in seconds over the truth: 1, unless it is clearly not."""
    power = round(math.log10(max(ratios["long kernel"], 1e-12)) / 3)
    unit = 10.0 ** (3 * power)
    # Who forgets to synchronize is a thousand times too small, too, but only for long kernels.
    same = all(0.3 < value / unit < 3 for name, value in ratios.items() if name in STEADY)
    return unit if unit in UNITS and same else 1.0


STEADY = ("long kernel", "hot L2", "dirty queue", "slow malloc")


def _mistakes(r: Mapping[str, float]) -> Iterator[tuple[str, set[str]]]:
    """Each mistake whose signature is there, and the scenarios that it spoils."""
    everything = set(SCENARIOS)
    if r["long kernel"] < 0.5 and max(r.values()) < 0.7 and r["short kernel"] > 0.1:
        yield (
            "No synchronize: you measured the launch, which takes the same few microseconds for "
            "every kernel. Call torch.cuda.synchronize() before you read the clock again.",
            everything,
        )
        return
    if r["first call"] < 0.5 and r["hot L2"] < 0.9:
        yield (
            "No synchronize: the warm-up filled the queue of the GPU, and then you measured how "
            "long a launch waits for a place in it. Call torch.cuda.synchronize() before you read "
            "the clock.",
            {"first call", "hot L2"},
        )
        return
    # More than a flush in the time could do, or nothing else like it.
    alone = max(r["hot L2"], r["slow malloc"]) <= 1.1
    if r["dirty queue"] > 3.5 or (r["dirty queue"] > 1.1 and alone):
        yield (
            "No synchronize before the start: the clock ran while the GPU still worked on what was "
            "queued before. Call torch.cuda.synchronize() before you start it.",
            everything,
        )
        return
    if r["short kernel"] > 3 and min(r["hot L2"], r["dirty queue"], r["slow malloc"]) > 1.1:
        yield (
            "The flush is in your time: it stands inside the timed span, or the clock of the host "
            "starts before the GPU is done with it. Flush, synchronize, and then start.",
            everything - {"first call"} if r["first call"] > 5 else everything,
        )
    if r["first call"] > 3:
        yield (
            "No warm-up, or a warm-up that counts: the first call compiles and loads. Call fn for "
            "25 ms and at least 3 times before you take the first sample.",
            {"first call", "waking clock"},
        )
    if r["waking clock"] > 1.1:
        yield (
            "The warm-up is too short: the clock of the GPU was still rising. Warm up by time, "
            "25 ms, and not by a number of calls.",
            {"waking clock"},
        )
    if r["outliers"] > 4.5:
        yield (
            "A single sample: when that call was disturbed, nothing shows it. Take at least 20 and "
            "report the median.",
            {"outliers"},
        )
    elif r["outliers"] > 1.1:
        yield (
            "A mean, or the total of a loop: one disturbed call in six moves it. Time every call "
            "and take the median.",
            {"outliers"},
        )
    if r["hot L2"] < 0.9:
        yield (
            "No flush: from the second call on the inputs wait in the L2 cache, where your program "
            "will not find them. Flush before every sample.",
            {"hot L2"},
        )
    if r["slow malloc"] > 1.1:
        yield (
            "Memory is allocated inside the timed span. Make all tensors before you start the "
            "clock.",
            {"slow malloc", "short kernel"},
        )


def plot_panels(panels: Mapping[str, Mapping[str, float | str]], ax=None):
    """Draw a table of timers (rows) and scenarios (columns): measured over true.

    White is right; orange is too slow, teal too fast, gray an error.

    Args:
        panels: name of the timer -> what `panel` returned.
        ax: matplotlib axes to draw on; new ones if None.

    Returns:
        The axes that were drawn on.
    """
    import matplotlib.pyplot as plt

    from attncourse.plots import ORANGE, STYLE, TEAL

    with plt.style.context(STYLE):
        if ax is None:
            _, ax = plt.subplots(figsize=(4.8, 1.6 + 0.32 * len(panels)))
        for row, values in enumerate(panels.values()):
            for column, scenario in enumerate(SCENARIOS):
                value = values[scenario]
                if isinstance(value, str):
                    color, shade, text = "#767676", 0.4, "error"
                else:
                    color = ORANGE if value > 1 else TEAL
                    # A factor of ten is as dark as it gets.
                    off = min(1.0, abs(math.log10(max(value, 1e-9))))
                    shade = 0.0 if accepts(scenario, value) else 0.25 + 0.55 * off
                    text = f"{value:.2f}" if value < 9.95 else f"{value:.0f}"
                    text = text if value < 9995 else f"{value:.0e}".replace("e+0", "e")
                box = plt.Rectangle((column, row), 1, 1, facecolor=color, alpha=shade, linewidth=0)
                ax.add_patch(box)
                ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7)
        ax.set(xlim=(0, len(SCENARIOS)), ylim=(len(panels), 0))
        ax.set_xticks([i + 0.5 for i in range(len(SCENARIOS))], SCENARIOS, rotation=45, ha="left")
        ax.set_yticks([i + 0.5 for i in range(len(panels))], panels)
        ax.xaxis.set_ticks_position("top")
        ax.tick_params(length=0, labelsize=8)
        ax.spines[:].set_visible(False)
        ax.set_title("measured / true [virtual GPU]", y=-0.02, va="top", fontsize=9)
    return ax


# Timers that many people learn from, as models: each follows the recipe of its source, so that one
# sees what a recipe is good for. All were written for a purpose that they serve; none for all.


class Famous(NamedTuple):
    """A well-known timer."""

    timer: Callable  # as in `try_out`; returns the one number its users read
    source: str


def _event() -> object:
    return torch.cuda.Event(enable_timing=True)


def _one_pair_of_events(fn: Callable, flush: Callable) -> float:
    start, end = _event(), _event()
    for _ in range(5):
        fn()
    start.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _mean_of_ten_steps(fn: Callable, flush: Callable) -> float:
    def step() -> float:
        start = timeit.default_timer()
        fn()
        torch.cuda.synchronize()
        return timeit.default_timer() - start

    for _ in range(5):
        step()
    return statistics.mean(step() for _ in range(10))


def _synchronized_clock() -> float:
    """What torch.utils.benchmark takes for a clock where there is a GPU."""
    torch.cuda.synchronize()
    return timeit.default_timer()


def _torch_timer(fn: Callable):
    from torch.utils.benchmark import Timer

    return Timer("fn()", globals={"fn": fn}, timer=_synchronized_clock)


def _do_bench(fn: Callable) -> list[float]:
    """Milliseconds of every repetition, with triton's default warm-up=25 and rep=100 ms."""
    fn()
    torch.cuda.synchronize()
    cache = torch.empty(int(256e6 // 4), dtype=torch.int, device="cuda")
    start, end = _event(), _event()
    start.record()
    for _ in range(5):
        cache.zero_()
        fn()
    end.record()
    torch.cuda.synchronize()
    estimate = start.elapsed_time(end) / 5
    for _ in range(max(1, int(25 / estimate))):
        fn()
    pairs = [(_event(), _event()) for _ in range(max(1, int(100 / estimate)))]
    for start, end in pairs:
        cache.zero_()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def _until_the_mean_is_sure(fn: Callable, flush: Callable) -> float:
    fn()  # the check of the result
    _repeat_until_sure(fn, 0.1)  # the warm-up
    return _repeat_until_sure(fn, 10.0)


def _repeat_until_sure(fn: Callable, budget: float) -> float:
    """Mean seconds of up to 100 calls: until its standard error is 0.1 % or the budget is gone."""
    seconds = []
    for _ in range(100):
        torch.cuda.synchronize()
        start, end = _event(), _event()
        torch.empty((32, 1024, 1024), dtype=torch.int64, device="cuda").fill_(42)  # 256 MiB
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
        if len(seconds) > 2:
            error = statistics.stdev(seconds) / math.sqrt(len(seconds))
            if error < 0.001 * statistics.mean(seconds) or sum(seconds) > budget:
                break
    return statistics.mean(seconds)


FAMOUS = {
    "GPU MODE lecture 1": Famous(
        _one_pair_of_events,
        "time_pytorch_function in lecture_001/pytorch_square.py, gpu-mode/lectures (7cb40f6)",
    ),
    "CS336 recipe": Famous(
        _mean_of_ten_steps,
        "Stanford CS336, assignment 2 (systems), benchmarking_script: 5 warm-up steps, mean of 10, "
        "timeit.default_timer, synchronize after each step",
    ),
    "torch Timer, blocked": Famous(
        lambda fn, flush: _torch_timer(fn).blocked_autorange().median,
        "torch.utils.benchmark.Timer.blocked_autorange itself (its median is over block averages)",
    ),
    "flash-attn timeit(30)": Famous(
        lambda fn, flush: _torch_timer(fn).timeit(30).mean,
        "benchmarks/benchmark_flash_attention.py (repeats = 30) and flash_attn/utils/benchmark.py, "
        "Dao-AILab/flash-attention",
    ),
    "do_bench, mean": Famous(
        lambda fn, flush: statistics.mean(_do_bench(fn)) / 1e3,
        'triton.testing.do_bench, triton 3.6, with its default return_mode="mean"',
    ),
    "do_bench, median": Famous(
        lambda fn, flush: statistics.median(_do_bench(fn)) / 1e3,
        'triton.testing.do_bench, triton 3.6, with return_mode="median"',
    ),
    "kernelbot": Famous(
        _until_the_mean_is_sure,
        "_run_single_benchmark in problems/pmpp_v2/eval.py, gpu-mode/reference-kernels (f83cb92)",
    ),
}
