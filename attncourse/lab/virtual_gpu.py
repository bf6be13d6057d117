"""A GPU that exists only in numbers, so that a stopwatch can be held against the truth.

`VirtualGPU` takes the place of `torch.cuda` and of Python's clocks. It keeps two time lines, the
host's and the GPU's: a launch costs the host a few microseconds and puts the kernel in a queue,
and only `synchronize` lets the host wait for the GPU. How long a kernel truly takes is known. So
an ordinary timer, written for torch, can be graded on any computer, exactly and in no time.
"""

import functools
import itertools
import math
import operator
import random
import sys
import threading
import time
import timeit
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType, SimpleNamespace

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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
        places: shared by all that are for one timer. The first of them writes down where the timer
            knows clocks: to look for that takes half of the time.

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
        places: "list[Place] | None" = None,
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
        self._places: list[Place] = [] if places is None else places
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
        return position == _outlier(self._seed, block)

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
        if not self._places:
            for module in (time, torch, torch.cuda, torch.accelerator):
                self._places += _names(vars(module), virtual)
            # `timeit` keeps the clock as a default value; a notebook is the module `__main__`.
            notebook, caller = vars(sys.modules["__main__"]), sys._getframe(1).f_globals
            self._places += _places([vars(timeit), notebook, caller, self._timer], virtual)
        with ExitStack() as undo:
            for put, real, becomes in self._places:
                undo.callback(put, real)
                put(becomes(virtual))
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


@functools.lru_cache(1000)  # asked for at each call; to make a generator takes longer than all else
def _outlier(seed: int, block: int) -> int:
    """Which call of a block is slow."""
    return random.Random(f"outlier {seed} {block}").randrange(OUTLIER_EVERY)


def _means_cuda(argument: object) -> bool:
    if isinstance(argument, str):
        return argument.split(":")[0] == "cuda"
    return isinstance(argument, torch.device) and argument.type == "cuda"


Virtual = dict[int, object]  # what stands for a thing, by the thing's `id`
# How to put a thing there, what is there, and what that becomes.
Place = tuple[Callable[[object], None], object, Callable[[Virtual], object]]


def _as_it_is(thing: object) -> Callable[[Virtual], object]:
    return operator.itemgetter(id(thing))


def _names(namespace: dict[str, object], virtual: Virtual) -> Iterator[Place]:
    """Where a namespace keeps a clock under any name."""
    kept = map(virtual.__contains__, map(id, namespace.values()))  # torch has two thousand names
    for name, value in itertools.compress(namespace.items(), kept):
        yield functools.partial(namespace.__setitem__, name), value, _as_it_is(value)


def _places(roots: list[object], virtual: Virtual) -> Iterator[Place]:
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
                put = functools.partial(setattr, thing, "__defaults__")
                yield put, defaults, functools.partial(_in_defaults, defaults)
            todo += [thing.__kwdefaults__, *defaults]
            if not _is_standard(thing):
                todo.append(thing.__globals__)
            for cell in thing.__closure__ or ():
                try:
                    value = cell.cell_contents
                except ValueError:  # a name without a value yet
                    continue
                if id(value) in virtual:
                    put = functools.partial(setattr, cell, "cell_contents")
                    yield put, value, _as_it_is(value)
                todo.append(value)
        elif isinstance(thing, type):
            if _is_standard(thing):
                continue
            for name, value in vars(thing).items():
                if id(value) in virtual:  # static: a function of Python would be given `self`
                    put = functools.partial(setattr, thing, name)
                    yield put, value, functools.partial(_static, value)
                todo.append(getattr(value, "__func__", value))
        elif isinstance(thing, MethodType):
            todo += [thing.__func__, thing.__self__]
        elif isinstance(thing, functools.partial):
            todo += [thing.func, thing.keywords, *thing.args, *thing.keywords.values()]
        elif isinstance(getattr(thing, "__dict__", None), dict):
            todo += [vars(thing), type(thing)]


def _in_defaults(defaults: tuple, virtual: Virtual) -> tuple:
    return tuple(virtual.get(id(each), each) for each in defaults)


def _static(thing: object, virtual: Virtual) -> staticmethod:
    return staticmethod(virtual[id(thing)])


def _is_standard(thing: FunctionType | type) -> bool:
    """Whether the standard library defines it, except `timeit`, which keeps a clock."""
    home = str(thing.__module__).split(".")[0]
    return home in sys.stdlib_module_names and home != "timeit"


def _made_in(thing: object) -> str | None:
    """The module that defines a function, a class, or an object's class."""
    if isinstance(thing, FunctionType | type):
        return thing.__module__
    return type(thing).__module__
