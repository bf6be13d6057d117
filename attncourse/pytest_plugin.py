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
        from attncourse.checks import answer_files

        return answer_files.load(self.path)

    def report(self, task: str):
        from attncourse.checks import run

        if task not in self.reports:
            self.reports[task] = run(task, self.answers.get(task))
        return self.reports[task]

    def pytest_ignore_collect(self, collection_path):
        return True  # no file is a test here

    def pytest_collection_modifyitems(self, session, items):
        from attncourse.checks import answer_files, registry

        try:
            wanted = answer_files.of_chapters(self.answers)
        except Exception as error:
            raise pytest.UsageError(f"{self.path}: {type(error).__name__}: {error}") from error
        items[:] = [
            CheckItem.from_parent(group, name=check, judged=self)
            for group in (Group.from_parent(session, name=name, nodeid=name) for name in wanted)
            for check in registry.find(group.name).checks
        ]

    def pytest_terminal_summary(self, terminalreporter):
        for report in self.reports.values():
            if not report.passed:
                terminalreporter.section(report.task)
                terminalreporter.write_line(str(report))
        earned = sum(report.earned for report in self.reports.values())
        points = sum(report.points for report in self.reports.values())
        terminalreporter.section("points")
        terminalreporter.write_line(f"{earned:g} of {points:g} points")


class Group(pytest.Collector):
    """A task; its checks are the tests."""

    def collect(self):
        return []


class CheckItem(pytest.Item):
    """One check of the judge, on one answer."""

    def __init__(self, *, judged: Judged, **options):
        super().__init__(**options)
        self.judged = judged

    def runtest(self):
        report = self.judged.report(self.parent.name)
        results = {result.name: result for result in report.results}
        # An answer that is missing or forbidden has one verdict for all checks.
        result = results.get(self.name) or next(iter(results.values()))
        if not result.passed:
            pytest.fail(result.message, pytrace=False)

    def reportinfo(self):
        return self.judged.path, None, f"{self.parent.name}: {self.name}"
