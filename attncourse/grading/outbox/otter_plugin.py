"""A plugin of Otter-Grader's: points from the judge, and no student's code in Otter's own process.

Otter runs a notebook in a kernel, and its tests in the same one. This plugin gives Otter an empty
notebook to run, has the student's judged as everywhere, and writes the points into Otter's results.
Its interface: otter-grader.readthedocs.io/en/latest/plugins/creating_plugins.html
"""

from pathlib import Path

from attncourse.grading.outbox import hosted


class Judge:
    """The plugin, under the name that otter_config.json has."""

    def __init__(self, submission_path: str, submission_metadata: dict, plugin_config: dict):
        self.submission, self.outcome = submission_path, None

    def before_execution(self, submission):
        """Judge the student's notebook, and let Otter run another one.

        Raises:
            NotGraded: then Otter writes no results.
        """
        from nbformat.v4 import new_notebook

        place = Path(self.submission)
        self.outcome = hosted.grade(place.parent.parent / "source" / "files", place)
        return new_notebook()

    def after_grading(self, results) -> None:
        """Give each of Otter's questions its points and reports."""
        lines = {(line.name, line.hidden): line for line in self.outcome.lines}
        for name, question in results.results.items():
            for each in question.test_case_results:
                line = lines[name, each.test_case.hidden]
                each.passed, each.message = line.earned == line.most, line.report
            earned = (line.earned for line in self.outcome.lines if line.name == name)
            question.update_score(sum(earned))
        results.set_output("\n".join(self.outcome.said))

    def generate_report(self) -> str:
        """What the teacher reads."""
        return "\n".join(f"look at this: {line}" for line in self.outcome.told)

    def __getattr__(self, event: str):
        """Nothing is to be done at Otter's other events."""
        if event.startswith("_"):
            raise AttributeError(event)
        return lambda *_, **__: None
