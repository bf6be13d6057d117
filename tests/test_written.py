"""A written answer is never a silent zero, wherever a student or an editor has put it."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, copy_course
from corpus.zoo import ASSIGNMENT, NAME, cell_of, grade_id, right, source_of
from typer.testing import CliRunner

from attncourse import cli
from attncourse.grading.books import disk, nbgrader_api, results, run
from attncourse.grading.inbox import ingest, restore, sample, submission
from attncourse.grading.jail import page, score
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
PHOTOS = [form for form in FORMS if "photo" in form]


@pytest.fixture(scope="module")
def about():
    return ingest.Course.here().about[ASSIGNMENT]


def found(content: dict, about) -> submission.Submission:
    return submission.read(json.dumps(content).encode(), about)


# --- what is found


@pytest.mark.parametrize("form", IN_PLACE | ELSEWHERE)
def test_what_a_student_has_written_is_found(form, about):
    said = found(FORMS[form], about).texts[QUESTION]
    assert {"a reason in signs": "√d ≈ 8"}.get(form, "IMG" if form in PHOTOS else SAID) in said
    assert STUB not in said or form == "behind the stub"


@pytest.mark.parametrize("form", FORMS)
def test_a_person_is_told_where_to_look_for_it(form, about):
    told = " ".join(found(FORMS[form], about).review)
    if form in ELSEWHERE:
        what = "may be the code" if form in ("printed", "code") else "seems to stand"
        assert f"the written answer `{QUESTION}` {what} in cell " in told
    else:
        assert told == (f"the written answer `{QUESTION}` is not there" if form in GONE else "")


@pytest.mark.parametrize("form", NOTHING | GONE)
def test_where_a_student_has_written_nothing_there_is_nothing(form, about):
    assert found(FORMS[form], about).texts == {QUESTION: ""}


def test_a_person_is_told_the_cells_by_number(about):
    first = found(notebook(code("x = 1"), text(SAID), text(SAID)), about)
    assert first.review == [f"the written answer `{QUESTION}` seems to stand in cells 31, 32"]
    assert first.texts[QUESTION].count(SAID) == 1  # what is said twice, is read once
    more = found(IN_PLACE["in its place, and more below"], about)
    assert more.repairs == [f"more on `{QUESTION}` stands in cell 30"]
    assert "x = 1" not in more.texts[QUESTION]  # who has written in place may try things below


def test_a_question_is_answered_before_the_next_task(about):
    """Of an assignment with its question in the middle, behind the first task."""
    content, tasks = right(), about.tasks
    cells = content["cells"]
    place = next(i for i, cell in enumerate(cells) if "## 2." in source_of(cell))
    cells[:] = [*cells[:place], *cells[-2:], *cells[place:-2]]
    names = [grade_id(cell) or cell["id"] for cell in cells]
    about = replace(about, released={name: about.released[name] for name in names})

    def before(task: str, cell: dict) -> submission.Submission:
        changed = copy.deepcopy(content)
        insert(lambda cells: cell_of({"cells": cells}, task), cell)(changed["cells"])
        return found(changed, about)

    note = text(SAID)
    assert before(tasks[1], note).texts[QUESTION] == SAID
    assert before(tasks[0], note).texts[QUESTION] == before(tasks[2], note).texts[QUESTION] == ""
    above = before(f"{tasks[0]}-hidden", code("y = softmax(torch.ones(3))"))
    assert above.texts[QUESTION] == "" and not above.review


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_is_filed_says_the_same_as_what_was_sent(form, about):
    sent, here = FORMS[form], ingest.Course.here().released[ASSIGNMENT]
    read = submission.notebook_of(json.dumps(sent).encode())
    names = restore.recognize(read.cells, about, here)
    filed, _ = restore.restore(read, names, about, here)
    before, after = found(sent, about), submission.read(filed.data, about)
    assert (after.texts, after.review) == (before.texts, before.review)


def test_a_notebook_with_nothing_but_a_text_below_is_no_empty_one(about):
    content = ingest.Course.here().released[ASSIGNMENT]
    empty, more = (
        submission.notebook_of(json.dumps(content | {"cells": content["cells"] + cells}).encode())
        for cells in ([], [text(SAID)])
    )
    assert not ingest._answered(empty, about) and ingest._answered(more, about)


@pytest.mark.slow
def test_a_made_up_class_says_what_it_says_in_place(course):
    """Nobody in it writes elsewhere, so nobody waits who did not wait for a text in its place."""
    for name, about in ingest.Course.here().about.items():
        # There are eight kinds of students; of the second eight, one has stopped halfway.
        sample.write_class(name, 16 if name == ASSIGNMENT else 8)
        for path in Path("submitted").glob(f"*/{name}/*.ipynb"):
            read = submission.read(path.read_bytes(), about)
            in_place = {grade_id(cell): source_of(cell) for cell in read.cells}
            expected = {q: in_place[q] for q in about.questions if in_place[q] != STUB}
            assert {q: said for q, said in read.texts.items() if said} == expected
            assert not any(each.review or each.repair for each in read.written.values())


# --- what becomes of it


def who(form: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in form)


def grade_here(job, notebooks):
    for student, path in notebooks.items():
        yield student, grade_bytes(job, path.read_bytes())


def judged_once(judge):
    """`score.score`, which asks a jail only about code that it has not seen yet."""
    known = {}

    def score(found, *others):
        code = repr(found.code)
        if code not in known:
            known[code] = judge(replace(found, written={}, repairs=[], review=[]), *others)
        kept = known[code]
        return replace(
            kept,
            verdicts=copy.deepcopy(kept.verdicts),
            texts=found.texts,
            repairs=[*found.repairs, *kept.repairs],
            review=[*found.review, *kept.review],
        )

    return score


@pytest.fixture(scope="module")
def graded(zygote, tmp_path_factory):
    """A class in which each writes in another form, graded; rows of the gradebook, by student.

    Their answers to the tasks are the same, so one is judged.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attncourse.grading.jail.grade.score", judged_once(score.score))
        patch.setattr("attncourse.grading.jail.grade.zygote", lambda jailed: zygote)
        folder = tmp_path_factory.mktemp("written")
        copy_course(ROOT, folder)
        patch.chdir(folder)
        sent = {who(form): json.dumps(content) for form, content in FORMS.items()} | {"broken": "{"}
        for student, content in sent.items():
            path = Path("submitted", student, ASSIGNMENT, NAME)
            path.parent.mkdir(parents=True)
            path.write_text(content, encoding="utf-8")
        job = disk.job_of(ASSIGNMENT)
        assert len([*run.grade_class(job, disk.submissions(ASSIGNMENT), grade_here)]) == len(sent)
        assert all(e.fresh for e in feedback.write(ASSIGNMENT, feedback.graded(ASSIGNMENT)))
        yield {row.student: row for row in results.of_class(ASSIGNMENT)}


def feedback_of(student: str) -> str:
    return feedback.path_of(ASSIGNMENT, student).read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_waits_for_a_person_and_0_is_for_nothing(graded):
    waiting = {who(form) for form in IN_PLACE | ELSEWHERE} | {"broken"}
    assert {student for student, row in graded.items() if QUESTION in row.unread} == waiting
    assert {student for student, row in graded.items() if row.needs_reading} == waiting
    for student, row in graded.items():
        assert row.score == (0 if student == "broken" else 56)  # the rest is as it was
        told = feedback_of(student)
        assert ("not read yet, of 8" in told) == (student in waiting)
        assert ("No response." in told) == (student not in waiting)


@pytest.mark.slow
@pytest.mark.parametrize("form", IN_PLACE | ELSEWHERE)
def test_it_stands_where_a_person_enters_the_points(form, graded):
    record = nbformat.read(disk.record_path(ASSIGNMENT, who(form)), as_version=4)
    nbformat.validate(record)
    (box,) = (c for c in record.cells if c.metadata.get("nbgrader", {}).get("grade_id") == QUESTION)
    assert box.cell_type == "markdown"
    shown = feedback_of(who(form)).partition(f'id="{QUESTION}"')[2].partition("</section>")[0]
    if form in PHOTOS:
        assert f"data:image/png;base64,{PIXEL}" in shown
    else:
        assert ("√d ≈ 8" if form == "a reason in signs" else SAID) in shown
    assert ("In cell " in shown) == (form in ELSEWHERE)


def test_a_picture_that_cannot_be_shown_is_named(about):
    large = {"IMG.heic": {"image/heic": PIXEL}, "IMG.png": {"image/png": PIXEL * 30_000}}
    read = found(notebook(PHOTO | {"attachments": large}), about)
    box = page.box(read.written[QUESTION], 28, read.cells)
    assert "or no PNG or JPEG: IMG.heic, IMG.png, in cell 30 of" in box["source"]
    assert "attachments" not in box


@pytest.mark.slow
def test_everybody_who_waits_is_in_the_report(graded, tmp_path):
    shown = CliRunner().invoke(cli.app, ["report", ASSIGNMENT], env={"COLUMNS": "200"}).stdout
    waiting = {who(form) for form in IN_PLACE | ELSEWHERE}
    for student in waiting:
        assert re.search(rf"{re.escape(student[:25])}\w* *│ 56 of 64 \+", shown), student
    data = class_report.data_of(ASSIGNMENT, [*graded.values()])
    (unread,) = data["unread"]
    assert {*unread["students"]} == waiting | {"broken"}
    reasons = {each["student"]: each["reasons"] for each in data["review"]}
    assert {who(form) for form in ELSEWHERE} == reasons.keys() - {"broken", who(*GONE)}


@pytest.mark.slow
def test_what_a_person_has_read_elsewhere_stays_read_until_it_changes(graded):
    student = who("below")
    with nbgrader_api.gradebook() as book:
        grade = book.find_grade(QUESTION, ASSIGNMENT, ASSIGNMENT, student)
        grade.manual_score, grade.needs_manual_grade = 7, False
        book.db.commit()

    def waits() -> bool:
        job, folder = disk.job_of(ASSIGNMENT), disk.submissions(ASSIGNMENT)[student]
        assert [*run.grade_class(job, {student: folder}, grade_here, force=True)]
        (row,) = (row for row in results.of_class(ASSIGNMENT) if row.student == student)
        assert row.score == 63
        return QUESTION in row.unread

    assert not waits()
    path = Path("submitted", student, ASSIGNMENT, NAME)
    path.write_text(json.dumps(notebook(text(f"{SAID}."))), encoding="utf-8")
    assert waits()
