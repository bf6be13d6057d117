"""Running the checks of a task on one answer."""

import contextlib
import dataclasses
import threading
import zlib
from collections.abc import Callable, Iterable

import torch

from attncourse.checks import registry
from attncourse.checks.answer import Answer, Failure, describe
from attncourse.checks.diagnosis import Diagnosis, diagnose
from attncourse.checks.fingerprint import Fingerprint, all_probes, probes
from attncourse.checks.observe import kept_random_states
from attncourse.checks.report import Report, Result
from attncourse.checks.task import Check, Task

# The capture of output belongs to the whole process.
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def _plain_settings():
    """Hide the caller's own settings of torch, meant for other code; keep its random states."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    elsewhere = torch.get_default_device().type != "cpu"
    try:
        with (
            kept_random_states(),
            torch.device("cpu") if elsewhere else contextlib.nullcontext(),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)


def judge(task: Task, answer: Callable, seed: int = 0) -> tuple[Result, ...]:
    """The results of all checks, without any diagnosis."""
    with _ONE_AT_A_TIME, _plain_settings():
        return _judge(task, Answer(task, answer), (seed,))[0]


def _judge(task: Task, answer: Answer, seeds: tuple[int, ...]) -> list[tuple[Result, ...]]:
    """The results of all checks, for each seed.

    pytest runs the same checks for those who prefer it (see pytest_plugin).
    """
    results: list[list[Result]] = [[] for _ in seeds]
    for check in task.checks.values():
        result = None
        for place, seed in enumerate(seeds):
            if check.draws or result is None:
                error = _error(check, answer, seed)
                result = Result(check.name, check.points, error)
            results[place].append(result)
    return [tuple(each) for each in results]


def _error(check: Check, answer: Answer, seed: int) -> BaseException | None:
    """What a check says against an answer, if anything."""
    fixtures: dict = {"answer": answer}
    if check.draws:  # fresh numbers for each check and seed, the same ones every time: points that
        # are stored were earned with those that a name beginning with "test_" gives
        name = zlib.crc32(f"test_{check.function.__name__}".encode())
        fixtures["rng"] = torch.Generator().manual_seed(seed * 1_000_003 + name)
    try:
        check.function(**fixtures)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a hostile answer may make a check itself stumble
        return error
    return None


def refuse(about: Task, diagnosis: Diagnosis) -> Report:
    """The report on an answer that is not worth checking: no points, and why."""
    failed = Result("there is an answer of your own", about.points, Failure(diagnosis.why))
    return Report(about, (failed,), diagnosis)


def run(task: str, answer, seeds: Iterable[int] = (0,)) -> Report:
    """Judge `answer` without showing anything; a check must hold on every seed.

    Args:
        task: the answer's name, as in `attncourse tasks`.
        answer: the function under test; None means that there is none.
        seeds: of the random inputs.

    Raises:
        ValueError: there is no such task.
    """
    reports = run_each(task, answer, seeds)
    checks = zip(*(report.results for report in reports), strict=True)
    worst = tuple(min(results, key=lambda result: result.passed) for results in checks)
    return dataclasses.replace(min(reports, key=lambda report: report.passed), results=worst)


def run_each(task: str, answer, seeds: Iterable[int]) -> list[Report]:
    """One report for each seed; those that fail share the diagnosis of the first that does."""
    about, seeds = registry.find(task), tuple(seeds)
    if not seeds:
        raise ValueError("at least one seed is needed")
    if answer is None:
        return [refuse(about, Diagnosis.not_defined(about))] * len(seeds)
    if not callable(answer):
        return [refuse(about, Diagnosis.not_callable(about, describe(answer)))] * len(seeds)
    with _ONE_AT_A_TIME, _plain_settings():
        fresh = Fingerprint(about, answer)  # first of all: an answer may keep something
        for probe in all_probes(about) if about.keeps else [next(all_probes(about))]:
            fresh.on(probe)
        short_cut = _short_cut(about, answer)
        if short_cut:
            return [refuse(about, Diagnosis.short_cut(about, short_cut))] * len(seeds)
        under_test = fresh.under_test
        by_seed = _judge(about, under_test, seeds)
        short_cut = under_test.while_watched()
        if short_cut:
            return [refuse(about, Diagnosis.short_cut(about, short_cut))] * len(seeds)
        failed = [results for results in by_seed if not all(result.passed for result in results)]
        try:
            diagnosis = diagnose(about, answer, failed[0], fresh) if failed else None
        except Exception as error:  # a hostile answer may break the evidence, never the notebook
            diagnosis = Diagnosis.unreadable(about, error)
        note = ""
        if under_test.printed:
            note = f"(Your answer printed {under_test.printed:,} characters while "
            note += "it was checked. They are not shown, and cost nothing.)"
        return [
            Report(about, results, diagnosis, note)
            if results in failed
            else Report(about, results, None, f"{_next_step(about)} {note}".strip())
            for results in by_seed
        ]


def _next_step(task: Task) -> str:
    """What to do after success: the way on must be in sight."""
    mates = registry.of_chapter(task.chapter)
    following = mates[mates.index(task) + 1 :]
    if following:
        return f"Well done. Next: `{following[0].name}`."
    return f"Well done. That was the last coding task of {task.place}."


def _short_cut(task: Task, answer) -> str | None:
    inputs = list(probes(task).values())
    # A mask of each number of axes: an answer may treat them apart.
    masked = {p["mask"].ndim: p for p in inputs if isinstance(p.get("mask"), torch.Tensor)}
    chosen = {id(each): each for each in (inputs[0], inputs[-1], *masked.values())}
    for each in chosen.values():
        found, _ = task.short_cut(answer, each)
        if found:
            return found
    return None
