"""Lab 1: what its tasks share."""

import functools
import statistics
import time

import torch

from attncourse.checks.answer import Failure, describe
from attncourse.checks.task import Chapter
from attncourse.lab.stopwatches import panel

chapter = Chapter("lab1_time_it_right", "lab 1")


def draw(rng, most=1_000_000) -> int:
    return int(torch.randint(most, (), generator=rng, device="cpu"))


NAMES = (
    *("none", "no synchronize", "earlier work counted", "first call counted", "single sample"),
    *("mean", "hot cache", "allocation inside", "wrong unit"),
)


def flawed(mistake: str, form: int):
    """A timer with this mistake; `form` picks one of the ways to make it."""

    def one(fn, flush):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if mistake != "hot cache":
            flush()
        wall = form % 2 or mistake in ("no synchronize", "first call counted")
        if wall and mistake != "earlier work counted":
            torch.cuda.synchronize()
        before = time.perf_counter()
        start.record()
        if mistake == "earlier work counted" and not wall:
            flush()
        if mistake == "allocation inside":
            torch.zeros(256, 256, device="cuda")
        fn()
        end.record()
        if mistake != "no synchronize":
            torch.cuda.synchronize()
        return time.perf_counter() - before if wall else start.elapsed_time(end) / 1e3

    def timer(fn, flush):
        # Calls instead of time: enough for every clock here, and quick to simulate.
        queued = mistake == "earlier work counted" and form == 2
        for _ in range(8 if queued else 0 if mistake == "first call counted" else 60):
            fn()
        if queued:
            before = time.perf_counter()
            for _ in range(20):
                fn()
            torch.cuda.synchronize()
            return (time.perf_counter() - before) / 20
        torch.cuda.synchronize()
        if mistake == "single sample" or (mistake == "first call counted" and form % 2):
            return one(fn, flush)
        times = [one(fn, flush) for _ in range(20)]
        if mistake in ("mean", "first call counted"):
            return statistics.mean(times)
        factors = (1e3, 1e9, 1e-3, 1e6)
        return [factors[form] * each for each in times] if mistake == "wrong unit" else times

    return timer


@functools.lru_cache(512)
def hidden_panel(mistake: str, form: int, seed: int) -> dict[str, float]:
    ratios = panel(flawed(mistake, form), seed)
    return {scenario: float(f"{value:.3g}") for scenario, value in ratios.items()}


def of(mistake, form, seed):
    return {"ratios": dict(hidden_panel(mistake, form, seed))}


def named(answer, mistake, form, rng, also=()):
    """Assert that a panel, with these entries in it `also`, gets the name of its mistake."""
    inputs = of(mistake, form, draw(rng, 1000))
    inputs["ratios"].update(also)
    name = answer(inputs)["name"]
    if name == mistake:
        return
    if not isinstance(name, str):
        raise Failure(
            f"Your answer returned {describe(name)}; one of the names is expected.", inputs
        )
    if name not in NAMES:
        raise Failure(f"“{name}” is none of the nine names: {', '.join(NAMES)}.", inputs)
    ratios = ", ".join(f"{scenario} {value:g}" for scenario, value in inputs["ratios"].items())
    raise Failure(
        f"You say “{name}”, and the mistake of this timer is “{mistake}”. Its panel: {ratios}.",
        inputs,
        {"name": mistake},
        {"name": name},
    )
