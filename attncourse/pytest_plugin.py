"""pytest as a front door: `pytest --pyargs attncourse.checks --answers my_answers.py`.

Each check of the judge is a test. The verdicts are the judge's own, so they and their points are
the same as in a notebook. Without `--answers` this plugin does nothing.
"""

import functools
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.getgroup("attncourse").addoption(
        "--answers",
        type=Path,
        metavar="FILE",
        help="judge the answers in this notebook or script (with: --pyargs attncourse.checks)",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "points(n): what passing a check of the judge is worth")
    path = config.getoption("--answers")
    if path:
        if path.suffix not in (".py", ".ipynb") or not path.exists():
            raise pytest.UsageError(f"--answers: there is no script or notebook {path}")
        config.pluginmanager.register(Judged(path))


class Judged:
    """The tests of this run are the judge's checks, on the answers of one file."""

    def __init__(self, path: Path):
        self.path = path
        self.reports = {}

    @functools.cached_property
    def answers(self):
        from attncourse.checks import answers

        return answers.load(self.path)

    def pytest_collection_modifyitems(self, config, items):
        from attncourse.checks import answers

        try:
            wanted = set(answers.of_chapters(self.answers))
        except Exception as error:
            raise pytest.UsageError(f"{self.path}: {type(error).__name__}: {error}") from error
        chosen = [item for item in items if _task_of(item) in wanted]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_generate_tests(self, metafunc):
        metafunc.fixturenames.clear()  # the judge has its own inputs

    def pytest_pyfunc_call(self, pyfuncitem):
        from attncourse.checks import run

        task = _task_of(pyfuncitem)
        if task not in self.reports:
            self.reports[task] = run(task, self.answers.get(task))
        name = pyfuncitem.originalname.removeprefix("test_").replace("_", " ")
        results = {result.name: result for result in self.reports[task].results}
        # An answer that is missing or forbidden has one verdict for all checks.
        result = results.get(name) or next(iter(results.values()))
        if not result.passed:
            pytest.fail(result.message, pytrace=False)
        return True

    def pytest_terminal_summary(self, terminalreporter):
        for report in self.reports.values():
            if not report.passed:
                terminalreporter.section(report.task)
                terminalreporter.write_line(str(report))
        earned = sum(report.earned for report in self.reports.values())
        points = sum(report.points for report in self.reports.values())
        terminalreporter.section("points")
        terminalreporter.write_line(f"{earned:g} of {points:g} points")


def _task_of(item) -> str | None:
    task = getattr(getattr(item, "cls", None), "task", None)
    return task.name if task else None
