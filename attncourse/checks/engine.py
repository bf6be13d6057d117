"""Running the checks of a task on one answer."""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
import threading
import zlib
from collections.abc import Callable, Iterable

import torch

from attncourse import checks
from attncourse.checks.diagnosis import Diagnosis, diagnose
from attncourse.checks.observe import kept_random_states
from attncourse.checks.report import Report, Result
from attncourse.checks.task import CHAPTERS, LABS, Answer, Failure, Task, describe

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


@functools.cache
def chapters() -> dict[str, object]:
    """The check modules of chapters and labs, by their stem, in the order of the course."""
    here = {module.name for module in pkgutil.iter_modules(checks.__path__)}
    return {
        stem: importlib.import_module(f"{checks.__name__}.test_{stem}")
        for stem in CHAPTERS | LABS
        if f"test_{stem}" in here
    }


@functools.cache
def _test_classes() -> dict[str, type]:
    return {
        value.task.name: value
        for module in chapters().values()
        for value in vars(module).values()
        if isinstance(value, type) and hasattr(value, "task")
    }


def all_tasks() -> dict[str, Task]:
    """Every task of the course, by name, in the order of the chapters."""
    return {name: cls.task for name, cls in _test_classes().items()}


def find(name: str) -> Task:
    """The task of that name; ValueError if there is none."""
    tasks = all_tasks()
    if name not in tasks:
        close = difflib.get_close_matches(name, tasks, n=1)
        there = f"did you mean {close[0]}?" if close else f"there are: {', '.join(tasks)}"
        raise ValueError(f"no task is named {name!r}; {there}")
    return tasks[name]


def _checks(task: str) -> dict[str, Callable]:
    """The tests of a task's class, by the sentence that their names are."""
    tests = _test_classes()[task]()
    names = [name for name in vars(type(tests)) if name.startswith("test_")]
    return {name[5:].replace("_", " "): getattr(tests, name) for name in names}


def _points(check: Callable) -> float:
    return next(mark.args[0] for mark in check.pytestmark if mark.name == "points")


def points_of(task: str) -> float:
    """What a task is worth: the sum of its checks' points."""
    return sum(map(_points, _checks(task).values()))


def _judge(task: str, answer: Answer, seeds: tuple[int, ...]) -> list[tuple[Result, ...]]:
    """The results of all checks, for each seed.

    pytest runs the same tests for those who prefer it (see pytest_plugin). Here they are called:
    a session of pytest takes 30 ms, and a judge needs none of what it does.
    """
    results: list[list[Result]] = [[] for _ in seeds]
    for name, check in _checks(task).items():
        chance = "rng" in inspect.signature(check).parameters
        result = None
        for place, seed in enumerate(seeds):
            if chance or result is None:
                result = Result(name, _points(check), _error(check, answer, seed, chance))
            results[place].append(result)
    return [tuple(each) for each in results]


def _error(check: Callable, answer: Answer, seed: int, chance: bool) -> BaseException | None:
    """What a check says against an answer, if anything."""
    fixtures: dict = {"answer": answer}
    if chance:  # fresh numbers for each check and seed, the same ones every time
        name = zlib.crc32(check.__name__.encode())
        fixtures["rng"] = torch.Generator().manual_seed(seed * 1_000_003 + name)
    try:
        check(**fixtures)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a hostile answer may make a check itself stumble
        return error
    return None


def refuse(about: Task, diagnosis: Diagnosis) -> Report:
    """The report on an answer that is not worth checking: no points, and why."""
    failed = Result("there is an answer of your own", points_of(about.name), Failure(diagnosis.why))
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
    about, seeds = find(task), tuple(seeds)
    if not seeds:
        raise ValueError("at least one seed is needed")
    if answer is None:
        return [refuse(about, Diagnosis.not_defined(about))] * len(seeds)
    if not callable(answer):
        return [refuse(about, Diagnosis.not_callable(about, describe(answer)))] * len(seeds)
    with _ONE_AT_A_TIME, _plain_settings():
        short_cut = _short_cut(about, answer)
        if short_cut:
            return [refuse(about, Diagnosis.short_cut(about, short_cut))] * len(seeds)
        under_test = Answer(about, answer)
        by_seed = _judge(task, under_test, seeds)
        failed = [results for results in by_seed if not all(result.passed for result in results)]
        try:
            diagnosis = diagnose(about, answer, failed[0]) if failed else None
        except Exception as error:  # a hostile answer may break the evidence, never the notebook
            diagnosis = Diagnosis.unreadable(about, error)
        note = ""
        if under_test.printed:
            note = f"(Your answer printed {under_test.printed:,} characters while "
            note += "it was checked. They are not shown, and cost nothing.)"
        right = f"{_next_step(task)} {note}".strip()
        return [
            Report(about, results, diagnosis, note)
            if results in failed
            else Report(about, results, None, right)
            for results in by_seed
        ]


def _next_step(task: str) -> str:
    """What to do after success: rustlings' lesson is that the way on must be in sight."""
    names = list(all_tasks())
    following = names[names.index(task) + 1 :][:1]
    if following and find(following[0]).chapter == find(task).chapter:
        return f"Well done. Next: `{following[0]}`."
    return f"Well done. That was the last coding task of {find(task).place}."


def _short_cut(task: Task, answer) -> str | None:
    probes = list(task.probes(torch.Generator().manual_seed(0)).values())
    # A mask of each number of axes: an answer may treat them apart.
    masked = {p["mask"].ndim: p for p in probes if isinstance(p.get("mask"), torch.Tensor)}
    chosen = {id(inputs): inputs for inputs in (probes[0], probes[-1], *masked.values())}
    for inputs in chosen.values():
        found = task.short_cut(answer, inputs)
        if found:
            return found
    return None
