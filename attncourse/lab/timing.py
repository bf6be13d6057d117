"""A stopwatch to trust: `measure` one function, or `compare` several in turn, on a CPU or a GPU.

A GPU works on its own: a call returns when the work is queued, not when it is done. So events on
the GPU's own time line hold the stopwatch, after a warm-up, with the L2 cache flushed before every
call and outside the timed span. On a CPU it is the processor time of one thread, which other
programs disturb far less than the time on the wall.
"""

import builtins
import functools
import gc
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from tqdm import tqdm

from attncourse import extras

__all__ = [
    *("Sample", "compare", "enough", "headline", "is_out_of_memory", "machine", "measure", "start"),
    "threads",
]

LEAST_SAMPLES = 20  # fewer say little about their own noise
# What disturbs a call lasts milliseconds, so a call that takes long hardly shows it.
SLOW_SECONDS, LEAST_SLOW_SAMPLES = 0.5, 5
WARM_UP_SECONDS = 0.025  # of warm-up, as in triton.testing.do_bench: kernels, caches, clocks
WARM_UP_CALLS = 3
# A GPU that may draw little power changes its clock for about a second after it begins to work.
# NVIDIA's data sheets: T4 70 W, L4 72 W, all others of the course 300 W and more.
CAPPED_WATTS, CAPPED_WARM_UP_SECONDS = 100, 1.0
FLUSH_BYTES = 256 * 2**20  # five times the largest L2 cache of the course (H100: 50 MB)
THROTTLED = 1.25  # last quarter of the samples over the first
CONTENDED = 1.2  # time on the wall over processor time
UNSTEADY = 0.25  # interquartile range over median
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}

_loaded = time.perf_counter()


def headline(point: Mapping) -> float:
    """The one number of a record's point, in seconds, as `Sample.headline` says it.

    The shortest sample of a CPU's processor times: what disturbs them only makes them longer. The
    median of anything else: a GPU's clock moves both ways.
    """
    return (min if point["clock"] == "cpu" else statistics.median)(point["seconds"])


@dataclass(frozen=True)
class Sample:
    """What a stopwatch saw: every single time, and all that is needed to believe it.

    Args:
        name: of the implementation.
        seconds: one number for each sample, in order; empty if it ran out of memory.
        started: when each sample began, in seconds since this session began.
        clock: "events" (the GPU's own), "cpu" (processor time) or "wall".
        machine: as `machine` returns it.
        dtype: of what the function returned, e.g. "float16"; None if it returned no tensor.
        backend: which attention kernel ran, as the caller found out; None if it was not asked.
        wall_over_cpu: time on the wall over processor time. 1 on a GPU, where nobody asks.
        launch: seconds the host was busy with one call on a GPU (median); None on a CPU.
        calls: of the function in each sample; a sample's seconds are those of one call.
        clocks: {"before", "after"}: what nvidia-smi said; None without it.
        error: None, or "out of memory".
        stopped: whether Ctrl-C ended it early.
    """

    name: str
    seconds: list[float]
    started: list[float]
    clock: str
    machine: dict
    dtype: str | None = None
    backend: str | None = None
    wall_over_cpu: float = 1.0
    launch: float | None = None
    calls: int = 1
    clocks: dict | None = None
    error: str | None = None
    stopped: bool = False

    @property
    def median(self) -> float:
        """Seconds; NaN without samples."""
        return statistics.median(self.seconds) if self.seconds else math.nan

    @property
    def iqr(self) -> float:
        """Interquartile range in seconds: the middle half of the samples lies within it."""
        if len(self.seconds) < 2:
            return math.nan
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return third - first

    @property
    def best(self) -> float:
        """The shortest, in seconds; NaN without samples."""
        return min(self.seconds, default=math.nan)

    @property
    def headline(self) -> float:
        """The one number to report, in seconds: best of a CPU's processor times, else the median.

        What disturbs a CPU only ever makes it slower. A GPU's clock moves both ways.
        """
        return self.best if self.clock == "cpu" else self.median

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return self.machine["device"]

    @property
    def label(self) -> str:
        """Where this is true, e.g. "T4, fp16" or "CPU, 1 thread"."""
        if self.dtype is None or (self.device == "cpu" and self.dtype == "float32"):
            return self.machine["label"]
        return f"{self.machine['label']}, {SHORT.get(self.dtype, self.dtype)}"

    @property
    def notes(self) -> list[str]:
        """What a careful reader should know before believing the number, in sentences."""
        return list(_notes(self))

    def __str__(self) -> str:
        if self.seconds:
            kind = "best" if self.clock == "cpu" else "median"
            text = f"{human(self.headline)} {kind} of {len(self.seconds)}"
            aside = [f"median {human(self.median)}"] * (kind == "best")
            aside += [f"IQR {human(self.iqr)}"] * (len(self.seconds) > 1)
            text += f" ({', '.join(aside)})" if aside else ""
        else:
            text = self.error or "no samples"
        lines = [f"{self.name}: {text} [{self.label}]"]
        return "\n".join(lines + [f"  {note}" for note in self.notes])

    def as_point(self, **configuration) -> dict:
        """One point of a lab's record, in JSON's types.

        Args:
            configuration: what this point is, e.g. n=1024, and what other meters found:
                peak_bytes, flops, bytes, reference_error.
        """
        point = {
            "name": self.name,
            "seconds": list(self.seconds),
            "clock": self.clock,
            "started": list(self.started),
            "peak_bytes": None,
            "backend": self.backend,
            "dtype": self.dtype,
            "flops": None,
            "bytes": None,
            "error": self.error,
            "wall_over_cpu": self.wall_over_cpu,
            "reference_error": None,
        }
        return point | configuration

    def plot(self, ax=None):
        """Draw every sample in the order it was taken, and the headline as a line.

        Several samples may share one pair of axes. The title says where the times are from.

        Args:
            ax: matplotlib axes to draw on; new ones if None.

        Returns:
            The axes that were drawn on.
        """
        plt = extras.load("notebook", "matplotlib.pyplot")

        from attncourse.plots import STYLE

        with plt.style.context(STYLE):
            if ax is None:
                _, ax = plt.subplots()
            text = human(self.headline) if self.seconds else self.error or "no samples"
            milliseconds = [1e3 * each for each in self.seconds]
            (dots,) = ax.plot(milliseconds, ".", markersize=5, label=f"{self.name}: {text}")
            if self.seconds:
                ax.axhline(1e3 * self.headline, color=dots.get_color(), linewidth=1)
            # Never a figure that hides that half of it is from another machine.
            labels = [part for part in (ax.get_title(), f"[{self.label}]") if part]
            ax.set(xlabel="sample", ylabel="milliseconds", title=" ".join(dict.fromkeys(labels)))
            ax.set_ylim(bottom=0)
            ax.legend()
        return ax


def enough(seconds: Sequence[float]) -> bool:
    """Whether so many samples, in seconds, show their own noise."""
    slow = len(seconds) >= LEAST_SLOW_SAMPLES and min(seconds) >= SLOW_SECONDS
    return slow or len(seconds) >= LEAST_SAMPLES


def _notes(sample: Sample) -> Iterator[str]:
    seconds = sample.seconds
    if sample.error:
        yield f"It ran {sample.error}: that is a result, but not a time."
    if sample.stopped:
        yield f"Stopped by hand after {len(seconds)} samples."
    if seconds and not enough(seconds):
        yield f"{len(seconds)} samples are few: {LEAST_SAMPLES} show the noise."
    if len(seconds) >= 8:
        quarter = len(seconds) // 4
        first = statistics.median(seconds[:quarter])
        drift = statistics.median(seconds[-quarter:]) / first if first else 1.0
        if drift > THROTTLED:
            yield (
                f"The last quarter took {drift:.2f} times as long as the first: the clock fell "
                "(heat or the power limit), or another program came in. Measure again."
            )
        elif drift < 1 / THROTTLED:
            yield (
                f"The last quarter took {drift:.2f} times as long as the first: it was not "
                "warm yet (give it a longer warm-up), or another program left."
            )
    if sample.wall_over_cpu > CONTENDED:
        yield (
            f"The wall clock ran {sample.wall_over_cpu:.1f} times the processor time: contended, "
            "other programs want this processor. Processor time is shown; better measure again."
            if sample.clock == "cpu"
            else f"The wall clock ran {sample.wall_over_cpu:.1f} times the processor time of all "
            "threads: contended. Measure again."
        )
    if len(seconds) > 1 and sample.iqr > UNSTEADY * sample.median:
        yield (
            f"Unsteady: the middle half of the samples spans {sample.iqr / sample.median:.0%} "
            "of the median."
        )
    if sample.launch is not None and seconds and sample.launch > sample.median:
        yield (
            f"Launching a call takes the host {human(sample.launch)}, longer than the GPU works: "
            "at this size a program waits for Python, not for the GPU."
        )
    if sample.clock == "events" and seconds and sample.median * sample.calls < 1e-5:
        yield "Below 10 µs the gaps between launches count, too: pass, for example, calls=20."


def measure(
    fn: Callable[[], object], *, name: str | None = None, backend: str | None = None, **how
) -> Sample:
    """Time a function that takes no arguments.

    Args:
        fn: what to time. Its inputs exist before, so that making them is not timed.
        name: what to call it; the function's own name if None.
        backend: which attention kernel ran, if you know.
        how: as in `compare`.

    Returns:
        All samples and where they are from. `print` it for the headline.

    Example:
        measure(lambda: query @ key.mT, name="scores")
    """
    name = name or getattr(fn, "__name__", type(fn).__name__)
    return compare({name: fn}, backends={name: backend}, **how)[name]


def compare(
    fns: Mapping[str, Callable[[], object]],
    *,
    samples: int = 50,
    patience: float = 10.0,
    warm_up: float | None = None,
    calls: int = 1,
    device: str | None = None,
    flush: Callable[[], object] | None = None,
    grad: bool = False,
    threads: int = 1,
    backends: Mapping[str, str | None] | None = None,
    progress: bool = True,
) -> dict[str, Sample]:
    """Time several functions in turn, A B A B, so that a clock that drifts is fair to all of them.

    Args:
        fns: name -> function without arguments, all on one device.
        samples: to take of each.
        patience: seconds after which 20 samples of each are enough, and 5 of a function whose
            every call takes half a second or more.
        warm_up: seconds to run each before, and at least 3 calls. None: 0.025; a second, shared by
            all, on a GPU of at most 100 W, whose clock takes that long to settle.
        calls: of the function in each sample; more than 1 for kernels shorter than 10 µs (all but
            the first then find the L2 cache warm).
        device: "cpu" or "cuda"; None: where the results are, else a GPU if there is one.
        flush: called before each sample, untimed. None: on a GPU, overwrite 256 MiB, so that no
            input waits in the L2 cache; on a CPU, nothing.
        grad: True if `fn` needs gradients; otherwise torch.inference_mode.
        threads: of torch on a CPU. With more than 1 the clock is the one on the wall.
        backends: name -> which attention kernel ran, if you know.
        progress: whether a bar may appear after 2 seconds where somebody watches.

    Returns:
        name -> sample. Running out of memory becomes `error`, and the others go on. Ctrl-C ends
        early and returns what there is.

    Raises:
        ValueError: nothing to time, too few samples, or results on different or unknown devices.
    """
    if not fns:
        raise ValueError("nothing to time: give {name: function}")
    if samples < 1 or calls < 1:
        raise ValueError(f"samples and calls start at 1; got samples={samples}, calls={calls}")
    runs = [_Run(name, fn) for name, fn in fns.items()]
    stopped, before = False, None
    with _undisturbed(threads, grad):
        try:
            for run in runs:
                run.attempt(run.first_call)
            device = device or _device_of(runs)
            before = _gpu_clocks() if device == "cuda" else None
            if warm_up is None:
                warm_up = _warm_up_seconds(before, len(runs))
            if device == "cuda":
                stopwatch = _gpu_stopwatch(flush, calls)
            else:
                stopwatch = _cpu_stopwatch(flush, calls, threads)
            for run in runs:
                run.attempt(lambda run=run: _warm(run.fn, warm_up, device))
            _take(runs, stopwatch, samples, patience, progress)
        except KeyboardInterrupt:
            stopped = True
            device = device or _device_of(runs)
        after = _gpu_clocks() if before else None
        here = machine(device, threads)
    return {
        run.name: run.sample(
            clock="events" if device == "cuda" else "cpu" if threads == 1 else "wall",
            machine=here,
            backend=(backends or {}).get(run.name),
            calls=calls,
            clocks={"before": before, "after": after} if before else None,
            stopped=stopped,
        )
        for run in runs
    }


@dataclass
class _Run:
    """One function while it is being timed."""

    name: str
    fn: Callable[[], object]
    seconds: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)  # of the host
    cpu: list[float] = field(default_factory=list)
    result: tuple[str, str] | None = None  # device and dtype of what it returns
    error: str | None = None

    def attempt(self, work: Callable[[], object]) -> None:
        """Do it, unless memory ran out, then or before."""
        if self.error:
            return
        try:
            work()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.error = "out of memory"
        if self.error:
            # Not in the `except` block, where the traceback still holds the tensors.
            self.seconds.clear()
            self.started.clear()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def first_call(self) -> None:
        tensor = _first_tensor(self.fn())
        if tensor is not None:
            self.result = tensor.device.type, str(tensor.dtype).removeprefix("torch.")

    def sample(self, clock: str, **rest) -> Sample:
        on_gpu = clock == "events"
        cpu = sum(self.cpu)
        whole = min(len(self.seconds), len(self.started))  # Ctrl-C may come between the two
        return Sample(
            name=self.name,
            seconds=self.seconds[:whole],
            started=self.started[:whole],
            clock=clock,
            dtype=self.result[1] if self.result else None,
            wall_over_cpu=1.0 if on_gpu or not cpu else sum(self.wall) / cpu,
            launch=statistics.median(self.wall) if on_gpu and self.wall else None,
            error=self.error,
            **rest,
        )


def _take(
    runs: list[_Run], stopwatch: Callable, samples: int, patience: float, progress: bool
) -> None:
    began, late = time.perf_counter(), False
    watched = sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__")  # a notebook
    watched = watched and not _under_a_grader()
    # The delay keeps a bar off the screen for what is over in a moment.
    with tqdm(total=samples, delay=2, leave=False, disable=not (progress and watched)) as bar:
        for taken in range(1, samples + 1):
            for run in runs:
                if not (late and enough(run.seconds)):
                    run.attempt(lambda run=run: stopwatch(run))
            bar.update()
            late = time.perf_counter() - began > patience
            if late and taken >= LEAST_SAMPLES:
                break


def _gpu_stopwatch(flush: Callable | None, calls: int) -> Callable[[_Run], None]:
    """Two events on the GPU's own time line, around the calls and nothing else."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if flush is None:
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda").zero_

    def once(run: _Run) -> None:
        started = time.perf_counter()
        # The GPU is busy with the flush while the host queues the rest behind it: so the span
        # between the events has no gap in which the GPU waits for Python.
        flush()
        before = time.perf_counter()
        first.record()
        for _ in range(calls):
            run.fn()
        last.record()
        launched = time.perf_counter() - before
        last.synchronize()  # an event can be read only when the GPU has reached it
        run.seconds.append(first.elapsed_time(last) / 1e3 / calls)  # it speaks in milliseconds
        run.started.append(started - _loaded)
        run.wall.append(launched / calls)

    return once


def _cpu_stopwatch(flush: Callable | None, calls: int, threads: int) -> Callable[[_Run], None]:
    """Processor time with one thread, the clock on the wall with several."""

    def once(run: _Run) -> None:
        if flush is not None:
            flush()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            run.fn()
        cpu_seconds, seconds = time.process_time() - cpu, time.perf_counter() - wall
        run.seconds.append((cpu_seconds if threads == 1 else seconds) / calls)
        run.started.append(wall - _loaded)
        run.wall.append(seconds)
        run.cpu.append(cpu_seconds)

    return once


def _warm(fn: Callable, least: float, device: str) -> None:
    """Call for `least` seconds and often enough; the very first call was before."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    began, called, seconds = time.perf_counter(), 1, 0.0
    while seconds < least or (called < WARM_UP_CALLS and seconds < SLOW_SECONDS):
        fn()
        synchronize()
        called, seconds = called + 1, time.perf_counter() - began


def _warm_up_seconds(clocks: dict | None, implementations: int) -> float:
    if clocks and (clocks["power_limit_watts"] or math.inf) <= CAPPED_WATTS:
        return max(CAPPED_WARM_UP_SECONDS / implementations, WARM_UP_SECONDS)
    return WARM_UP_SECONDS


def _device_of(runs: list[_Run]) -> str:
    devices = {run.result[0] for run in runs if run.result}
    if len(devices) > 1:
        raise ValueError(
            f"the results lie on {' and '.join(sorted(devices))}: compare what runs on one device"
        )
    device = devices.pop() if devices else "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"this stopwatch knows cpu and cuda; the result lies on {device}")
    return device


def _first_tensor(output: object) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(_first_tensor, output) if t is not None), None)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # cuBLAS and the CPU's allocator have no class of their own for it.
    signs = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads on the CPU inside the block, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _undisturbed(count: int, grad: bool) -> Iterator[None]:
    """Nothing in some samples that is not in the others."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.inference_mode(not grad), threads(count):
            yield
    finally:
        if collects:
            gc.enable()


def human(seconds: float) -> str:
    """Seconds with a unit and three digits: "1.53 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e6 * seconds:.3g} µs"


def machine(device: str | None = None, threads: int = 1) -> dict:
    """What this machine is, in JSON's types.

    Args:
        device: "cpu" or "cuda"; None: a GPU if there is one.
        threads: of torch on the CPU while it is timed; `measure` takes 1.

    Returns:
        device; name, e.g. "Tesla T4"; capability, [7, 5] (None on a CPU); memory_bytes (0 if
        unknown) and l2_bytes (None if unknown) of the device; `threads`;
        versions of torch, python and cuda; label, e.g. "T4" or "CPU, 1 thread"; ceilings, None
        until somebody measures them; precision of float32 products, "highest" without TF32.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        name, capability, memory = gpu.name, [gpu.major, gpu.minor], gpu.total_memory
        l2 = getattr(gpu, "L2_cache_size", None)
        label = name
        for brand in ("NVIDIA ", "Tesla ", "GeForce "):
            label = label.removeprefix(brand)
    else:
        name, capability, memory, l2 = _cpu_name(), None, _cpu_memory(), None
        label = f"CPU, {threads} thread{'s' * (threads != 1)}"
    return {
        "device": device,
        "name": name,
        "capability": capability,
        "memory_bytes": memory,
        "l2_bytes": l2,
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "label": label,
        "ceilings": None,
        "precision": torch.get_float32_matmul_precision(),
    }


@functools.cache
def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    except OSError:  # only Linux has it
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        return 0


def _gpu_clocks() -> dict | None:
    """What nvidia-smi says of the first GPU: clock, power, its limit, temperature."""
    query = "clocks.sm,power.draw,power.limit,temperature.gpu"
    names = ("sm_megahertz", "power_watts", "power_limit_watts", "celsius")
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        printed = subprocess.run(
            [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
        values = printed.splitlines()[0].split(",")
    except (OSError, subprocess.SubprocessError, IndexError):
        return None

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:  # "[N/A]"
            return None

    if len(values) != len(names):  # "No devices were found"
        return None
    return dict(zip(names, map(number, values), strict=True))


def _under_a_grader() -> bool:
    return "NBGRADER_EXECUTION" in os.environ  # nbgrader sets it while it runs a notebook


def start(lab: str) -> bool:
    """The first cell of a lab: say what it runs on. Safe to run again; silent under a grader.

    Args:
        lab: its name, e.g. "lab1_time_it_right".

    Returns:
        Whether to be quick, with few and small sizes: under a grader, or where the environment
        has ATTNCOURSE_QUICK.
    """
    if _under_a_grader():
        return True
    here = machine()
    print(f"{lab}: times of this session carry the label [{here['label']}].")
    if here["device"] == "cuda":
        major, minor = here["capability"]
        l2 = f", L2 cache {here['l2_bytes'] / 2**20:.0f} MiB" if here["l2_bytes"] else ""
        print(
            f"{here['name']}: compute capability {major}.{minor}, "
            f"{here['memory_bytes'] / 2**30:.1f} GiB{l2}, CUDA {here['cuda']}."
        )
        print(
            "Use float16 or bfloat16."
            if major >= 8
            else "Use float16. This GPU only emulates bfloat16: it works, slowly, and attention "
            "falls back to the plain math."
        )
    else:
        print(
            f"{here['name']}. No GPU here, so all times are CPU times. Use float32: "
            "half precision is slower on a CPU.\n"
            "For a GPU on Colab: Runtime > Change runtime type > T4 GPU > Save, "
            "then Runtime > Run all.\n"
            "Out of GPU quota? Submit the CPU version: same points."
        )
    print(
        f"Python {here['python']}, torch {here['torch']}, float32 products at "
        f'"{here["precision"]}" precision.'
    )
    return "ATTNCOURSE_QUICK" in os.environ
