"""A stopwatch held against the truth, in all the ways a real GPU misleads one.

def bench(fn, flush):      # the interface: seconds of every call, fn's and nothing else's
    ...
    return samples

panel(bench)               # {"long kernel": 1.00, "short kernel": 1.02, ...}, measured / true
explain(panel(bench))      # None, or which mistake leaves this signature
"""

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from attncourse import extras
from attncourse.lab.virtual_gpu import EndlessLoop, Hardware, Place, VirtualGPU


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
    return _outcome(timer, scenario, seed, [])


def _outcome(timer: Callable, scenario: str, seed: int, places: list[Place]) -> Outcome:
    """The same; `places` as of a `VirtualGPU`."""
    hidden = _draw(scenario, seed)
    kernel = hidden.pop("kernel")
    hardware = Hardware(**hidden)
    worst, _ = _measured(timer, hardware, kernel, seed, places)
    if hardware.outlier != 1 and worst.error is None:
        # Whoever trusts a single sample may be lucky with one call in six: disturb the last.
        calm = replace(hardware, outlier=1.0)
        undisturbed, calls = _measured(timer, calm, kernel, seed, places)
        last, _ = _measured(timer, hardware, kernel, seed, places, only=calls - 1)
        worst = max(worst, undisturbed, last, key=_how_far_off)
    return worst


def _measured(
    timer: Callable,
    hardware: Hardware,
    kernel: float,
    seed: int,
    places: list[Place],
    only: int | None = None,
) -> tuple[Outcome, int]:
    """What a timer says of a kernel of `kernel` seconds, and how often it called it."""
    gpu = VirtualGPU(hardware, timer, seed, only, places)
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
    places: list[Place] = []
    for scenario in SCENARIOS:
        outcome = _outcome(timer, scenario, seed, places)
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
    plt = extras.load("notebook", "matplotlib.pyplot")

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
