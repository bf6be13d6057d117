"""Running the checks of a task: pytest, inside this process, on one answer."""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import os
import pkgutil
import threading
import zlib
from collections.abc import Iterable

import pytest
import torch

from attncourse import checks
from attncourse.checks.diagnosis import Diagnosis, diagnose
from attncourse.checks.report import Report, Result
from attncourse.checks.task import CHAPTERS, LABS, Answer, Failure, Task, describe

# Everything that pytest does for a test suite and a judge does not need. It takes a run from
# 300 ms to 15 ms: most of it was garbage collection over torch's heap (`unraisableexception`).
_QUIET = [
    "-pno:cacheprovider",
    "-pno:debugging",
    "-pno:doctest",
    "-pno:faulthandler",
    "-pno:junitxml",
    "-pno:logging",
    "-pno:pastebin",
    "-pno:stepwise",
    "-pno:terminal",
    "-pno:threadexception",
    "-pno:unraisableexception",
    "-pno:warnings",
    "--disable-plugin-autoload",
    "--assert=plain",
    "--capture=no",
    "--import-mode=importlib",
    f"-c{os.devnull}",
]


# pytest and the capture of output belong to the whole process
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def _plain_environment():
    """Hide the caller's own settings of pytest and torch: they are meant for other code."""
    names = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")
    saved = {name: os.environ.pop(name) for name in names if name in os.environ}
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    elsewhere = torch.get_default_device().type != "cpu"
    try:
        with (
            torch.device("cpu") if elsewhere else contextlib.nullcontext(),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(saved)


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


def points_of(task: str) -> float:
    """What a task is worth: the sum of its checks' points."""
    tests = (value for name, value in vars(_test_classes()[task]).items() if name[:5] == "test_")
    return sum(mark.args[0] for test in tests for mark in test.pytestmark if mark.name == "points")


class _Judge:
    """The pytest plug-in that hands out the answer and collects the verdicts."""

    def __init__(self, task: Task, answer, seeds: tuple[int, ...]):
        self.answer_under_test = Answer(task, answer)
        self.seeds = seeds
        self.results: dict[int, dict[str, Result]] = {seed: {} for seed in seeds}

    @pytest.fixture
    def answer(self):
        return self.answer_under_test

    @pytest.fixture
    def rng(self, request, seed):
        """Fresh numbers for each check and seed, the same ones every time."""
        name = zlib.crc32(request.function.__name__.encode())
        return torch.Generator().manual_seed(seed * 1_000_003 + name)

    def pytest_configure(self, config):
        config.addinivalue_line("markers", "points(n): what passing this check is worth")
        config.option.tbstyle = "line"  # a traceback takes 20 ms, and nobody reads it

    def pytest_generate_tests(self, metafunc):
        if "rng" in metafunc.fixturenames:
            metafunc.fixturenames.append("seed")
            metafunc.parametrize("seed", self.seeds)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "call" or call.excinfo:
            error = call.excinfo.value if call.excinfo else None
            name = item.originalname.removeprefix("test_").replace("_", " ")
            result = Result(name, item.get_closest_marker("points").args[0], error)
            callspec = getattr(item, "callspec", None)  # a check without chance has no seed
            for seed in [callspec.params["seed"]] if callspec else self.seeds:
                kept = self.results[seed].setdefault(name, result)
                if kept.passed and not result.passed:
                    self.results[seed][name] = result
        return report


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
    judge = _Judge(about, answer, seeds)
    cls = _test_classes()[task]
    module = importlib.import_module(cls.__module__)
    with _ONE_AT_A_TIME, _plain_environment():
        short_cut = _short_cut(about, answer)
        if short_cut:
            return [refuse(about, Diagnosis.short_cut(about, short_cut))] * len(seeds)
        root = os.path.dirname(module.__file__)
        code = pytest.main(
            [
                f"{module.__file__}::{cls.__name__}",
                f"--rootdir={root}",
                f"--confcutdir={root}",
                *_QUIET,
            ],
            plugins=[judge],
        )
        if code == pytest.ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise RuntimeError(f"the judge itself failed (pytest exit code {code!r})")
        by_seed = [tuple(judge.results[seed].values()) for seed in seeds]
        failed = [results for results in by_seed if not all(result.passed for result in results)]
        try:
            diagnosis = diagnose(about, answer, failed[0]) if failed else None
        except Exception as error:  # a hostile answer may break the evidence, never the notebook
            diagnosis = Diagnosis.unreadable(about, error)
        note = ""
        if judge.answer_under_test.printed:
            note = f"(Your answer printed {judge.answer_under_test.printed:,} characters while "
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
    for inputs in (probes[0], probes[-1], *masked.values()):
        found = task.short_cut(answer, inputs)
        if found:
            return found
    return None
