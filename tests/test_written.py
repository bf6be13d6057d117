"""A written answer is never a silent zero, wherever a student or an editor has put it."""

import copy
import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT, copy_course
from zoo import ASSIGNMENT, NAME, cell_of, right, source_of

from attncourse.grading.books import disk, nbgrader_api, results, run
from attncourse.grading.inbox import sample, submission
from attncourse.grading.jail.grade import grade_bytes
from attncourse.grading.outbox import class_report, feedback

QUESTION = "why-scaled"
SAID = "The variance grows like the width, so the softmax saturates"
STUB = "*Your answer here.*"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhf"
    "DwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def text(source: str, **more) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": source} | more


def code(source: str, **more) -> dict:
    made = {"cell_type": "code", "metadata": {}, "source": source, "outputs": []}
    return made | {"execution_count": None} | more


def notebook(*below: dict, change=None) -> dict:
    """All tasks are right and the question is not answered; then `change`, and more cells."""
    content = right()
    if change:
        change(content["cells"])
    content["cells"] += copy.deepcopy(below)
    return content


def stub(cells: list[dict]) -> dict:
    return cell_of({"cells": cells}, QUESTION)


def asking(cells: list[dict]) -> dict:
    return next(cell for cell in cells if "In your own words" in source_of(cell))


def by_deepnote(*answer: str):
    """Text blocks: a cell a paragraph, without emphasis; the marks are gone."""

    def change(cells: list[dict]) -> None:
        stub(cells)["source"] = "\n".join(answer or [STUB])
        kept = [*cells]
        cells.clear()
        for cell in kept:
            if cell["cell_type"] == "code":
                cells.append(cell | {"metadata": {"cell_id": "4", "deepnote_cell_type": "code"}})
                continue
            for line in filter(str.strip, source_of(cell).splitlines()):
                kind = "text-cell-h2" if line.startswith("#") else "text-cell-p"
                about = {"cell_id": "5", "deepnote_cell_type": kind, "formattedRanges": []}
                cells.append(text(line.replace("*", ""), metadata=about, execution_count=None))
        for cell in cells:
            cell.pop("id", None)
        link = "<a href='https://deepnote.com'> Created in <span>Deepnote</span></a>"
        cells.append(text(link, metadata={"created_in_deepnote_cell": True}))

    return change


def by_databricks(answer: str = STUB):
    """Texts are code that begins with %md; numbers of its own in the metadata."""

    def change(cells: list[dict]) -> None:
        stub(cells)["source"] = answer
        for cell in cells:
            if cell["cell_type"] == "markdown":
                cell |= code(f"%md\n{source_of(cell)}")
            cell["metadata"] = {"application/vnd.databricks.v1+cell": {"nuid": "8"}}
            cell.pop("id", None)

    return change


def by_pycharm(answer: str = STUB):
    """A mark of its own in the first line of each cell."""

    def change(cells: list[dict]) -> None:
        stub(cells)["source"] = answer
        for cell in cells:
            kind = " md" if cell["cell_type"] == "markdown" else ""
            cell["source"] = f"#%%{kind}\n{source_of(cell)}"

    return change


def edit(cell, **changes):
    """Something else stands in a cell: its source may be a function of the one it had."""

    def change(cells: list[dict]) -> None:
        found = cell(cells)
        for key, value in changes.items():
            found[key] = value(source_of(found)) if callable(value) else value

    return change


def insert(before, cell: dict):
    return lambda cells: cells.insert(cells.index(before(cells)), copy.deepcopy(cell))


def without(*which):
    def change(cells: list[dict]) -> None:
        for cell in which:
            cells.remove(cell(cells))

    return change


def picture(cells: list[dict]) -> dict:
    return next(cell for cell in cells if "the tables of the picture" in source_of(cell))


def as_code(cells: list[dict]) -> None:
    stub(cells).update(code(f"{SAID}."), metadata=stub(cells)["metadata"])


def as_code_without_marks(cells: list[dict]) -> None:
    stub(cells).update(code(f"{SAID}."))


PHOTO = text("![IMG](attachment:IMG.png)", attachments={"IMG.png": {"image/png": PIXEL}})
IN_PLACE = {  # nobody has to search
    "in its place": notebook(change=edit(stub, source=SAID)),
    "behind the stub": notebook(change=edit(stub, source=f"{STUB} {SAID}")),
    "a photo in its place": notebook(
        change=edit(stub, source=PHOTO["source"], attachments=PHOTO["attachments"])
    ),
    "turned into code": notebook(change=as_code),
    "turned into code, marks gone": notebook(change=as_code_without_marks),
    "its cell deleted, another below": notebook(text(SAID), change=without(stub)),
    "Deepnote": notebook(change=by_deepnote("First.", f"{SAID}.", "Third.")),
    "Databricks": notebook(change=by_databricks(SAID)),
    "PyCharm": notebook(change=by_pycharm(SAID)),
    "in its place, and more below": notebook(
        text(f"And {SAID}."), code("x = 1"), change=edit(stub, source="First.")
    ),
}
ELSEWHERE = {
    "below": notebook(text(SAID)),
    "below, as raw text": notebook(text(SAID, cell_type="raw")),
    "far below": notebook(text(""), code("check('softmax')"), code("1 + 1"), text(SAID)),
    "above": notebook(change=insert(stub, text(SAID))),
    "above the question": notebook(change=insert(asking, text(SAID))),
    "in the question's cell": notebook(
        change=edit(asking, source=lambda source: f"{source}\n\n{SAID}.")
    ),
    "in the question's line": notebook(
        change=edit(asking, source=lambda source: f"{source} {SAID}.")
    ),
    "in the question's cell, its own deleted": notebook(
        change=lambda cells: (
            edit(asking, source=lambda source: f"{source}\n\n{SAID}.")(cells),
            without(stub)(cells),
        )
    ),
    "a comment below": notebook(code(f"# {SAID}.\n# And so on.")),
    "a comment in code of the course": notebook(
        change=edit(picture, source=lambda source: f"{source}\n# {SAID}.")
    ),
    "a comment above the question": notebook(change=insert(asking, code(f"x = 1\n# {SAID}."))),
    "prose in a code cell": notebook(code(f"{SAID}.")),
    "a string in a code cell": notebook(code(f'"""\n{SAID}.\n"""')),
    "printed": notebook(code(f"print('{SAID}')")),
    "a magic cell": notebook(code(f"%%markdown\n{SAID}")),
    "code": notebook(code(f"x = '{SAID}'")),
    "a photo": notebook(PHOTO),
    "a photo that no text shows": notebook(PHOTO | {"source": ""}),
    "stub emptied, text below": notebook(text(SAID), change=edit(stub, source="")),
    "stub touched, text below": notebook(text(SAID), change=edit(stub, source=f"\n {STUB}\u200b ")),
    "question and its cell deleted": notebook(text(SAID), change=without(asking, stub)),
    "Deepnote, below": notebook(text(f"{SAID}."), change=by_deepnote()),
    "Databricks, below": notebook(code(f"%md {SAID}"), change=by_databricks()),
    "PyCharm, below": notebook(text(f"#%% md\n{SAID}"), change=by_pycharm()),
    "a reason in signs": notebook(text("√d ≈ 8 ⇒ ∇ ≈ 0")),
}
NOTHING = {
    "as released": notebook(),
    "stub emptied": notebook(change=edit(stub, source="")),
    "stub touched": notebook(change=edit(stub, source=f"\n {STUB}\u200b ")),
    "blank cells below": notebook(text(" \n"), text("<br>\n&nbsp;"), code("\n"), text("---")),
    "copies of the course's cells below": notebook(
        code("check('softmax')\n"), *(c for c in right()["cells"] if "picture" in source_of(c))
    ),
    "scratch code above": notebook(
        change=insert(asking, code("# print(softmax(x))\nx = torch.ones(3)\nsoftmax(x)"))
    ),
    "code of the course changed": notebook(
        change=edit(picture, source=lambda source: source.replace("0.11", "0.12"))
    ),
    "outputs below": notebook(
        code("", outputs=[{"output_type": "stream", "name": "stdout", "text": SAID}])
    ),
    "text at another task": notebook(
        change=insert(lambda cells: cell_of({"cells": cells}, "softmax"), text(SAID))
    ),
    "Deepnote, nothing": notebook(change=by_deepnote()),
    "Databricks, nothing": notebook(change=by_databricks()),
    "PyCharm, nothing": notebook(change=by_pycharm()),
    "the question moved to the top": notebook(
        change=lambda cells: cells.insert(0, cells.pop(cells.index(stub(cells))))
    ),
    "marks gone": notebook(change=lambda cells: [c.update(metadata={}) for c in cells] and None),
}
GONE = {"its cell deleted": notebook(change=without(stub))}  # and nothing in its stead
FORMS = IN_PLACE | ELSEWHERE | NOTHING | GONE


def who(form: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in form)


def grade_here(job, notebooks):
    for student, path in notebooks.items():
        yield student, grade_bytes(job, path.read_bytes())


@pytest.fixture(scope="module")
def graded(zygote, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attncourse.grading.jail.grade.zygote", lambda jailed: zygote)
        folder = tmp_path_factory.mktemp("written")
        copy_course(ROOT, folder)
        patch.chdir(folder)
        for form, content in FORMS.items():
            path = Path("submitted", who(form), ASSIGNMENT, NAME)
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(content), encoding="utf-8")
        job = disk.job_of(ASSIGNMENT)
        events = list(run.grade_class(job, disk.submissions(ASSIGNMENT), grade_here))
        list(feedback.write(ASSIGNMENT, feedback.graded(ASSIGNMENT)))
        yield {event.student: event.result for event in events}
