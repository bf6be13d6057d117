"""The rubric of a written answer, shown where a person enters its points."""

from pathlib import Path

from nbgrader.preprocessors import NbGraderPreprocessor

from attncourse.grading import Refusal
from attncourse.grading.inbox.submission import course_notebook, grade_id_of, source_of


class Rubrics(NbGraderPreprocessor):
    """In the Formgrader, put a question's rubric above the answer, in the box with its points.

    It is read from solutions/ when the page is opened, and stands in no file that students get.
    """

    def preprocess(self, nb, resources):
        if "submission_id" in resources:  # this is a page of the Formgrader, and no feedback
            course = Path(resources["metadata"]["path"]).parents[2]  # autograded/STUDENT/NAME
            name = resources["assignment_id"]
            rubrics = rubrics_in(course / "solutions" / name / f"{name}.ipynb")
            for cell in nb.cells:
                if rubric := rubrics.get(cell.metadata.get("nbgrader", {}).get("grade_id")):
                    cell.source = f'<div class="well">\n\n{rubric}\n\n</div>\n\n{cell.source}'
        return nb, resources


def rubrics_in(solution: Path) -> dict[str, str]:
    """What the solution says about each question that a person grades, by grade id."""
    try:
        cells = course_notebook(solution)[1]["cells"]
    except (OSError, Refusal):
        return {}
    marked = [(cell["metadata"].get("nbgrader", {}), cell) for cell in cells]
    return {
        grade_id_of(cell): source_of(cell)
        for mark, cell in marked
        if mark.get("grade") and mark.get("solution")
    }
