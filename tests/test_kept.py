"""What was there stays there: whatever a command fails at, until what replaces it is whole."""

import contextlib
import errno
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, copy_course, points_of
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from attncourse import cli
from attncourse.cli import teacher
from attncourse.grading import CannotGrade, Refusal
from attncourse.grading.books import autograde, disk, generate, nbgrader_api, results
from attncourse.grading.inbox import sample, senders, writing
from attncourse.grading.jail import processes, walls, workers
from attncourse.grading.jail.result import Result, Verdict
from attncourse.grading.outbox import class_report, feedback

CHAPTER_3, LAB = "03_scaled_dot_product", "lab1_time_it_right"
JUDGED, POINTS = points_of(CHAPTER_3)
FILE = f"{CHAPTER_3}.ipynb"
RELEASED, SOLUTION = Path("exercises", CHAPTER_3, FILE), Path("solutions", CHAPTER_3, FILE)
STUDENTS = ("ann", "bob")
RESULT = disk.result_path(CHAPTER_3, "ann")
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


def judge_who_likes_all(patch) -> None:
    """All answers are right, and nobody starts a process to say so."""

    def grade_all(job, notebooks):
        for student in notebooks:
            verdicts = {g.task: Verdict(g.points, g.points, g.points) for g in job.about.graded}
            result = Result(verdicts, dict.fromkeys(job.about.questions, ""))  # all are read
            yield student, {"result": result.as_data(), "notebook": job.released}

    patch.setattr(workers, "in_processes", lambda *_: grade_all)
    patch.setattr(processes, "can_fork", lambda: False)


@pytest.fixture(scope="module")
def once_taught(tmp_path_factory) -> Path:
    """A course of two assignments; of one, two students are graded."""
    folder = tmp_path_factory.mktemp("taught")
    copy_course(ROOT, folder)
    for path in [*folder.glob("solutions/*"), *folder.glob("exercises/*")]:
        if path.name not in (CHAPTER_3, LAB):
            shutil.rmtree(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        judge_who_likes_all(patch)
        for student in STUDENTS:
            place = Path("submitted", student, CHAPTER_3)
            place.mkdir(parents=True)
            shutil.copy(RELEASED, place)
        assert attncourse("grade", CHAPTER_3).exit_code == 0
    return folder


@pytest.fixture
def taught(once_taught, tmp_path, monkeypatch) -> Path:
    """A copy of that course, as working directory."""
    shutil.copytree(once_taught, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    judge_who_likes_all(monkeypatch)
    return tmp_path


def attncourse(*command: object):
    return CliRunner().invoke(cli.app, list(map(str, command)), env={"COLUMNS": "200"})


def said(*command: object) -> str:
    """The one sentence of what cannot be done."""
    done = attncourse(*command)
    assert done.exit_code == 2 and done.stderr.count("attncourse: ") == 1, done.output
    assert "Traceback" not in done.output
    return done.stderr


def everything() -> dict[str, object]:
    """All files of the course, and what the gradebook says."""
    folders = ("solutions", "exercises", "submitted", "autograded", "feedback")
    paths = (path for folder in folders for path in Path(folder).rglob("*"))
    there = {str(p): p.read_bytes() if p.is_file() else b"" for p in paths if p.suffix != ".log"}
    return there | {"gradebook.db": rows()}


def rows() -> list[str]:
    if not Path("gradebook.db").exists():
        return []
    with contextlib.closing(sqlite3.connect("gradebook.db")) as book:
        return [*book.iterdump()]


def edit(path: Path, change) -> None:
    """Make other cells of a notebook's, or None: leave it out."""
    content = json.loads(path.read_text("utf-8"))
    made = (change(mark_of(cell), cell) for cell in content["cells"])
    content["cells"] = [cell for cell in made if cell is not None]
    path.write_text(json.dumps(content), "utf-8")


def mark_of(cell: dict) -> dict:
    return cell["metadata"].get("nbgrader", {})


def longer(mark, cell):
    return cell | {"source": "".join(cell["source"]) + "\n"}


def worth_ten(mark, cell):
    if mark.get("grade_id") == "why-scaled":
        mark["points"] = 10
    return cell


def points() -> dict[str, float]:
    return {row.student: row.score for row in results.of_class(CHAPTER_3)}


# --- release


def broken_solution(_):
    def twice(mark, cell):
        if mark.get("grade_id") == "hidden_scale":
            mark["grade_id"] = "softmax"
        return cell

    edit(SOLUTION, twice)


def no_notebook(_):
    SOLUTION.write_text('{"cells": [')


def no_address(_):
    Path("_config.yml").unlink()


def full_disk(patch):
    replaced, kept = [], os.replace

    def replace(source, target):
        replaced.append(target)
        if len(replaced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        kept(source, target)

    patch.setattr(generate.os, "replace", replace)


def lost_server(patch):
    kept = nbgrader_api.all_or_nothing

    @contextlib.contextmanager
    def all_or_nothing(book):
        with kept(book):
            yield
            raise OperationalError("COMMIT", {}, Exception("the server has gone away"))

    patch.setattr(nbgrader_api, "all_or_nothing", all_or_nothing)


def stopped(patch):
    def enter(*_):
        raise KeyboardInterrupt

    patch.setattr(generate, "_enter", enter)


def stopped_while_nbgrader_works(patch):
    def preprocess(*_):
        raise KeyboardInterrupt

    patch.setattr("attncourse.grading.outbox.release.TaskFacts.preprocess", preprocess)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (broken_solution, "so exercises/ is as it was: jsonschema.exceptions.ValidationError"),
        (no_notebook, f"nothing was released: {SOLUTION} cannot be read: its JSON is broken"),
        (no_address, "_config.yml, with the course's address, is not here; copy it from"),
        (full_disk, "No space left on device; exercises/ is as it was"),
        (lost_server, "the gradebook cannot be used: the server has gone away"),
        (stopped, "stopped; exercises/ is as it was"),
        (stopped_while_nbgrader_works, "stopped; exercises/ is as it was"),
    ],
)
def test_a_release_that_fails_changes_nothing(taught, monkeypatch, happens, reason):
    for folder in ("solutions", "exercises"):
        Path(folder, CHAPTER_3, "data.csv").write_text(folder)
    edit(SOLUTION, worth_ten)
    with monkeypatch.context() as patch:
        happens(patch)
        before = everything()
        assert reason in said("release", CHAPTER_3)
        assert everything() == before
    if happens in (full_disk, lost_server, stopped):  # which are over
        assert attncourse("release", CHAPTER_3).exit_code == 0
        assert Path("exercises", CHAPTER_3, "data.csv").read_text() == "solutions"
        assert {row.max_score for row in results.of_class(CHAPTER_3)} == {66}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["_enter", "_swap"])
def test_of_several_assignments_all_are_released_or_none(taught, monkeypatch, step):
    both = [RELEASED, Path("exercises", LAB, f"{LAB}.ipynb")]
    for path in both:
        edit(Path("solutions", *path.parts[1:]), longer)
    before, kept, calls = everything(), getattr(generate, step), []

    def stops(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        kept(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(generate, step, stops)
        assert "stopped; exercises/ is as it was" in said("release")
    assert len(calls) == 2 and everything() == before
    assert attncourse("release").exit_code == 0
    assert all(path.read_bytes() != before[str(path)] for path in both)
    assert rows() != before["gradebook.db"]


def conflict():
    text = RELEASED.read_text("utf-8")
    RELEASED.write_text(f"<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> theirs\n", "utf-8")


def no_metadata():
    edit(SOLUTION, lambda mark, cell: {k: v for k, v in cell.items() if k != "metadata"})


def checked_by(source: str, **mark_is):
    def change(mark, cell):
        if "check(" in "".join(cell["source"]) and mark.get("grade"):
            mark.update(mark_is)
            return cell | {"source": source}
        return cell

    edit(SOLUTION, change)


@pytest.mark.parametrize(
    ("happens", "reason", "commands"),
    [
        (conflict, "03_scaled_dot_product.ipynb cannot be read: it has the marks of a merge", 5),
        (no_metadata, "cannot be read: not every cell has its metadata", 6),
        (lambda: checked_by("check("), "solutions/03_scaled_dot_product has points and should", 6),
        (lambda: checked_by("1 + 1"), "has points and should be `check", 6),
        (lambda: checked_by("check(task)"), "has points and should be `check", 6),
        (lambda: checked_by('check("softmax")', grade_id=None), "points, but no grade_id", 6),
    ],
)
def test_a_mistake_in_the_courses_own_notebooks_is_said_by_every_command(
    taught, happens, reason, commands
):
    Path("canvas.csv").write_text(CANVAS)
    happens()
    export = ["export", CHAPTER_3, "--format", "canvas", "--roster", "canvas.csv", "-o", "x.csv"]
    shutil.copy(Path("submitted", "ann", CHAPTER_3, FILE), "x.ipynb")
    ingest = ["ingest", "x.ipynb", "--student", "cleo"]
    others = [[name, CHAPTER_3] for name in ("grade", "report", "feedback", "release")]
    for command in [ingest, export, *others][:commands]:  # a release needs no earlier one
        assert reason in said(*command), command


def test_a_task_that_is_not_there_is_said(taught):
    def misspelled(mark, cell):
        source = "".join(cell["source"])
        return cell | {"source": source.replace('check("softmax"', 'check("sofmax"')}

    edit(SOLUTION, misspelled)
    reason = "the cell softmax-check of solutions/03_scaled_dot_product: no task is named 'sofmax'"
    for command in ("release", "report", "feedback"):
        assert f"{reason}; did you mean softmax?" in said(command, CHAPTER_3)


def test_a_question_that_is_not_released_yet_stops_no_ingest(taught):
    edit(RELEASED, lambda mark, cell: None if mark.get("grade_id") == "why-scaled" else cell)
    shutil.copy(Path("submitted", "ann", CHAPTER_3, FILE), "x.ipynb")
    assert attncourse("ingest", "x.ipynb", "--student", "cleo").exit_code == 0
    assert Path("submitted", "cleo", CHAPTER_3, FILE).exists()


def test_a_first_release_that_fails_leaves_nothing(taught):
    Path("gradebook.db").unlink()
    shutil.rmtree("exercises")
    broken_solution(None)
    assert "could not make" in said("release", CHAPTER_3)
    assert not Path("gradebook.db").exists() and not list(Path("exercises").iterdir())


def test_a_release_keeps_what_else_a_teacher_put_there(taught):
    Path("exercises", CHAPTER_3, "for_students.csv").write_text("1,2\n")
    edit(SOLUTION, worth_ten)
    before = RELEASED.read_bytes()
    assert attncourse("release", CHAPTER_3).exit_code == 0
    assert RELEASED.read_bytes() != before
    there = sorted(path.name for path in RELEASED.parent.iterdir())
    assert there == [FILE, "for_students.csv"]
    assert sorted(path.name for path in Path("exercises").iterdir()) == [CHAPTER_3, LAB]


def test_at_each_moment_of_a_release_there_is_a_notebook(taught, monkeypatch):
    edit(SOLUTION, worth_ten)
    old, moments = RELEASED.read_bytes(), []
    for module, name in ((os, "replace"), (os, "unlink"), (os, "rename"), (shutil, "copy2")):
        kept = getattr(module, name)

        def step(*arguments, kept=kept, **options):
            moments.append(RELEASED.read_bytes())
            return kept(*arguments, **options)

        monkeypatch.setattr(module, name, step)
    assert attncourse("release", CHAPTER_3).exit_code == 0
    assert set(moments) == {old, RELEASED.read_bytes()}


def cells_in_gradebook() -> list[tuple]:
    query = """
        SELECT assignment.name, notebook.name, notebook.kernelspec, base_cell.name, base_cell.type,
            grade_cells.max_score, grade_cells.cell_type, source_cell.cell_type,
            source_cell.locked, source_cell.source, source_cell.checksum
        FROM base_cell JOIN notebook ON notebook.id = base_cell.notebook_id
        JOIN assignment ON assignment.id = notebook.assignment_id
        LEFT JOIN grade_cells ON grade_cells.id = base_cell.id
        LEFT JOIN source_cell ON source_cell.id = base_cell.id ORDER BY base_cell.name, type"""
    with contextlib.closing(sqlite3.connect("gradebook.db")) as book:
        return book.execute(query).fetchall()


@pytest.mark.slow
def test_what_the_gradebook_is_told_is_what_nbgrader_tells_it(taught):
    registered = cells_in_gradebook()  # by `grade`
    Path("gradebook.db").unlink()
    assert attncourse("release", CHAPTER_3).exit_code == 0
    released = cells_in_gradebook()
    Path("gradebook.db").unlink()
    assert nbgrader_api.api().generate_assignment(CHAPTER_3)["success"]
    assert released == registered == cells_in_gradebook() and len(released) > 10


@pytest.mark.slow
def test_grade_registers_the_release_that_students_have(taught, caplog):
    """In a section's folder, too, which has no book."""
    Path("_config.yml").unlink()
    Path("gradebook.db").unlink()
    Path("exercises", CHAPTER_3, "for_students.csv").write_text("1,2\n")
    content = json.loads(RELEASED.read_text("utf-8"))
    word = {"cell_type": "markdown", "id": "w", "metadata": {}, "source": "A word of the teacher"}
    content["cells"].append(word)
    RELEASED.write_text(json.dumps(content), "utf-8")
    before = everything()
    with caplog.at_level("WARNING", "attncourse"):
        assert attncourse("grade", CHAPTER_3).exit_code == 0
    assert "that a person gave are in another one" in caplog.text
    after = everything()
    assert {path: after[path] for path in before if path.startswith("exercises")} == {
        path: before[path] for path in before if path.startswith("exercises")
    }
    assert points() == dict.fromkeys(STUDENTS, JUDGED)
    Path("gradebook.db").unlink()
    broken_solution(None)
    before = everything()
    assert "nbgrader could not make" in said("grade", CHAPTER_3, "--force")
    assert {**everything(), "gradebook.db": []} == before
    assert cells_in_gradebook() == []


def without_hidden_scale(mark, cell):
    return None if mark.get("grade_id", "").startswith("hidden_scale") else cell


def with_a_locked_text(mark, cell):
    if not mark:
        cell["metadata"]["nbgrader"] = {
            **{"grade_id": cell["id"], "schema_version": 3, "locked": True},
            **{"grade": False, "solution": False, "task": False},
        }
    return cell


def read_by_a_person(mark, cell):
    if mark.get("grade_id") == "softmax":
        mark |= {"grade": True, "points": 3}
    return cell


@pytest.mark.slow
def test_cells_with_points_are_neither_removed_nor_added_behind_ones_back(taught):
    with nbgrader_api.gradebook() as book:
        book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "ann").manual_score = 7.0
        book.db.commit()
    edit(Path("solutions", LAB, f"{LAB}.ipynb"), longer)
    whole = SOLUTION.read_bytes()
    for change, named in (
        (without_hidden_scale, "hidden_scale, hidden_scale-check, hidden_scale-hidden: removed"),
        (with_a_locked_text, ": new"),
    ):
        edit(SOLUTION, change)
        before = everything()
        for command in (["release", CHAPTER_3], ["release"]):  # nothing of another one, either
            reason = said(*command)
            assert named in reason and "2 students have submissions" in reason
            assert "`nbgrader db assignment remove 03_scaled_dot_product --force`" in reason
            assert everything() == before
        SOLUTION.write_bytes(whole)
    assert attncourse("release").exit_code == 0 and points()["ann"] == 63  # they are back
    edit(SOLUTION, without_hidden_scale)
    way_out = ["nbgrader", "db", "assignment", "remove", CHAPTER_3, "--force"]
    subprocess.run(way_out, check=True, capture_output=True)
    assert attncourse("release", CHAPTER_3).exit_code == 0
    assert attncourse("grade", CHAPTER_3).exit_code == 0
    assert points() == dict.fromkeys(STUDENTS, 46)  # without what a person gave


@pytest.mark.slow
def test_a_written_answer_may_come_to_count_nothing(taught):
    edit(SOLUTION, lambda mark, cell: cell if not mark.get("grade") else worth_nothing(mark, cell))
    assert attncourse("release", CHAPTER_3).exit_code == 0
    assert attncourse("grade", CHAPTER_3).exit_code == 0
    assert {row.max_score for row in results.of_class(CHAPTER_3)} == {JUDGED}
    assert attncourse("feedback", CHAPTER_3).exit_code == 0


def worth_nothing(mark, cell):
    if mark["grade_id"] == "why-scaled":
        mark["points"] = 0
    return cell


def test_a_release_of_a_colleague_with_other_cells_is_said(taught):
    for path in (SOLUTION, RELEASED):
        content = json.loads(path.read_text("utf-8"))
        (asked,) = (c for c in content["cells"] if mark_of(c).get("grade_id") == "why-scaled")
        again = json.loads(json.dumps(asked))
        again["id"] = again["metadata"]["nbgrader"]["grade_id"] = "why-else"
        content["cells"].append(again)
        path.write_text(json.dumps(content), "utf-8")
    for command in ("grade", "report"):
        assert "why-else is in exercises/, and the gradebook does not know" in said(
            command, CHAPTER_3
        )


# --- a sample class, and what commands write


@pytest.mark.slow
def test_a_sample_class_is_written_over_nobodys_work(course):
    assert sample.write_class(CHAPTER_3, 3) == 3
    assert sample.write_class(CHAPTER_3, 3) == 0
    own = Path("submitted", "student02", CHAPTER_3, FILE)
    edit(own, longer)
    before = everything()
    assert "submitted/student02/" in said("sample-class", CHAPTER_3, "--students", 4)
    assert everything() == before
    own.rename(own.with_name("Copy of it.ipynb"))
    assert "Copy of it.ipynb is not as sample-class" in said("sample-class", CHAPTER_3)
    shutil.move(own.parent.parent, "elsewhere")
    Path("submitted/student02").symlink_to(Path("elsewhere").resolve())
    before = everything()
    assert "submitted/student02 is not as" in said("sample-class", CHAPTER_3, "--students", 4)
    assert everything() == before
    Path("submitted/student02").unlink()
    assert "2 of them new" in attncourse("sample-class", CHAPTER_3, "--students", 4).stdout
    edit(RELEASED, longer)
    assert sample.write_class(CHAPTER_3, 4) == 4  # its own it makes again, of another release


CANVAS = (
    f"Student,ID,SIS Login ID,Section,{CHAPTER_3} (1)\nPoints Possible,,,,{POINTS}\nA,1,ann,,\n"
)

TEACHERS = ("gradebook.db", "nbgrader_config.py", "hard.csv")
OTHERS = {  # names, and what they hold: nothing that can be made again
    "mine.ipynb": b"{}",
    f"{FILE}.1": b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    "notebook": b'{"cells": []}',
    "people.csv": b"id,first_name,last_name,email\nann,Ann,O,ann@uni.edu\n",
    "semicolons.csv": b"id;first_name;last_name\nann;Ann;O\n",
    "utf16.csv": "id,first_name\nann,Ann\n".encode("utf-16"),
    "moodle.csv": b"First name,Surname,Email address\nAnn,O,ann@uni.edu\n",
    "section_b.csv": CANVAS.replace("A,1,ann", "B,2,bob").encode(),
    "students.csv": b"student,name,points\nann,Ann O,0\n",
    "work.zip": b"PK\3\4" + bytes(100),
    "other.html": b"<!DOCTYPE html>\n<html><head><title>Slides</title></head></html>",
    "other.json": b'{"assignment": "03_scaled_dot_product", "notes": "of a person"}',
    "other.log": b"2026-01-31: nobody came\n",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (f"submitted/ann/{CHAPTER_3}/{FILE}", "is in submitted/"),
        (f"autograded/ann/{CHAPTER_3}/result.json", "is in autograded/"),
        (f"feedback/ann/{CHAPTER_3}.csv", "is in feedback/"),  # which is not there yet
        (str(SOLUTION), "is in solutions/"),
        ("exercises/new.csv", "is in exercises/"),
        ("link.csv", "is in submitted/"),
        *((name, "is there, and no output of this command") for name in (*TEACHERS, *OTHERS)),
    ],
)
def test_no_table_is_written_over_work(taught, target, reason):
    Path("canvas.csv").write_text(CANVAS)
    for name, content in OTHERS.items():
        Path(name).write_bytes(content)
    Path("link.csv").symlink_to(Path("submitted", "ann", CHAPTER_3, FILE))
    os.link(Path("submitted", "ann", CHAPTER_3, FILE), "hard.csv")
    others = [Path(name) for name in OTHERS]
    before = everything(), [path.read_bytes() for path in others]
    for command in (
        ["export", CHAPTER_3, "--format", "canvas", "--roster", "canvas.csv", "-o", target],
        *(["report", CHAPTER_3, option, target] for option in ("--csv", "--html", "--json")),
        ["total", "--csv", target],
        ["grade", CHAPTER_3, "--log", target],
    ):
        assert reason in said(*command), command
    assert before == (everything(), [path.read_bytes() for path in others])


@pytest.mark.slow
def test_a_roster_stays_and_an_earlier_table_does_not(taught):
    Path("canvas.csv").write_text(CANVAS)
    os.link("canvas.csv", "hard.csv")
    Path("soft.csv").symlink_to("canvas.csv")
    for name in ("filled.csv", "class.csv", "class.html", "class.json", "total.csv"):
        Path(name).touch()
    export = ["export", CHAPTER_3, "--format", "canvas", "--roster", "canvas.csv", "-o"]
    for name in ("canvas.csv", "hard.csv", "soft.csv"):
        assert "is the same file as canvas.csv" in said(*export, name)
        assert Path("canvas.csv").read_text() == CANVAS
    for _ in range(2):
        assert "filled.csv: points of 1 student in" in attncourse(*export, "filled.csv").stdout
        names = ("class.csv", "class.html", "class.json")
        options = zip(("--csv", "--html", "--json"), names, strict=True)
        tables = [word for pair in options for word in pair]
        assert attncourse("report", CHAPTER_3, *tables).exit_code == 0
        assert attncourse("total", "--csv", "total.csv").exit_code == 0
        grown = CANVAS.replace("A,1", "C,3,cleo,,\nA,1").encode()  # a later export
        Path("canvas.csv").write_bytes(grown)
        assert attncourse("grade", CHAPTER_3, "--log", "autograded/mine.log").exit_code == 0


@pytest.mark.slow
def test_on_a_full_disk_tables_stay(taught, monkeypatch):
    Path("canvas.csv").write_text(CANVAS)
    export = ["export", CHAPTER_3, "--format", "canvas", "--roster", "canvas.csv", "-o"]
    report = [["report", CHAPTER_3, option] for option in ("--csv", "--html", "--json")]
    for number, command in enumerate([export, *report, ["total", "--csv"]]):
        table, link = Path(f"table{number}"), Path(f"link{number}")
        table.touch(0o600)  # it holds names and points
        link.symlink_to(table)
        assert attncourse(*command, link).exit_code in (0, 1)
        before = table.read_bytes()
        assert before and link.is_symlink() and table.stat().st_mode & 0o777 == 0o600
        with monkeypatch.context() as patch:
            patch.setattr(writing.os, "fsync", full)
            if "--html" not in command:  # which is written first
                patch.setattr(class_report, "write_html", lambda *_: None)
            assert f"link{number}" in said(*command, link)
        assert table.read_bytes() == before
    assert not [*Path().glob("*.part")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "x/y"), "x/y: Permission denied. "),
        (PermissionError(errno.EPERM, "Operation not permitted"), "Operation not permitted. "),
        (OSError(errno.EMFILE, "Too many open files", "x"), "x: Too many open files. Let a proc"),
        (OSError("no number"), "no number. "),
    ],
)
def test_an_error_of_the_system_gets_a_cure_only_if_there_is_one(
    taught, monkeypatch, error, reason
):
    def fails(*_):
        raise error

    monkeypatch.setattr(disk, "store", fails)
    for command, kept in (("grade", "What is graded is kept"), ("feedback", "The pages that are")):
        sentence = said(command, CHAPTER_3, "--force").partition("attncourse: ")[2]
        assert sentence.startswith(reason) and kept in sentence
        has_cure = not sentence.startswith(reason + kept)
        assert has_cure == (error.errno == errno.EMFILE), sentence


def test_a_machine_that_cannot_grade_does_not_deny_what_it_has_booked(taught, monkeypatch):
    def cannot(job, notebooks):
        raise CannotGrade("it crashes")
        yield  # it is a generator

    monkeypatch.setattr(workers, "in_processes", lambda *_: cannot)
    assert "Nothing was booked" in said("grade", CHAPTER_3, "--force")
    edit(Path("submitted", "ann", CHAPTER_3, FILE), longer)
    assert "What is graded is kept" in said("grade", CHAPTER_3)  # bob's has not changed


class Killer:
    """What ends the process that it is sent to, at once."""

    def __reduce__(self):
        return os._exit, (9,)


@pytest.mark.slow
def test_a_process_that_makes_pages_and_is_killed_is_said(taught):
    with pytest.raises(Refusal, match=r"killed.*pages that are written stay.*--jobs 1"):
        list(feedback._made({"ann": (Killer(), None, "")}, 2))


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
def test_a_table_goes_into_standard_output_too(taught):
    command = [sys.executable, "-m", "attncourse", "total", "--csv", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "\nann," in done.stdout, done.stderr


def test_a_course_without_its_solutions_says_so(taught):
    Path("canvas.csv").write_text(CANVAS)
    Path("solutions").rename("elsewhere")
    export = ["export", CHAPTER_3, "--format", "canvas", "--roster", "canvas.csv", "-o", "x.csv"]
    for command in (["grade", CHAPTER_3], export, ["total"], ["feedback"], ["release"]):
        assert "solutions/: No such file or directory; it is a part of the course" in said(*command)


def test_on_a_full_disk_pages_stay(taught, monkeypatch):
    assert attncourse("feedback", CHAPTER_3).exit_code == 0
    before, opened = everything(), Path.open

    def full(path, mode="r", *rest, **options):
        if "w" in mode and "feedback" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", full)
    assert "attncourse: No space left on device. Make room" in said(
        "feedback", CHAPTER_3, "--force"
    )
    assert everything() == before


@pytest.mark.parametrize(
    "own",
    [
        *(
            "submitted",
            "autograded",
            "feedback",
            "exercises",
            "solutions",
            ".",
            "..",
            "autograded/ann",
        ),
        str(disk.record_path(CHAPTER_3, "ann")),
    ],
)
def test_the_courses_own_folders_are_no_hand_ins(taught, own):
    assert attncourse("feedback", CHAPTER_3).exit_code == 0
    before = everything()
    assert f"{own}: this is the course's own" in said("ingest", own)
    assert everything() == before


def test_an_earlier_submission_may_be_filed_again(taught):
    place = Path("submitted", "ann", CHAPTER_3)
    shutil.copy(place / FILE, place / "earlier.ipynb")
    edit(place / FILE, longer)
    done = attncourse("ingest", place / "earlier.ipynb", "--student", "cleo")
    assert done.exit_code == 0 and Path("submitted", "cleo", CHAPTER_3, FILE).exists()


# --- results


def test_a_folder_where_a_result_belongs_stays_beside_it(taught):
    RESULT.unlink()
    for name in ("notes.txt", "more.txt"):
        RESULT.mkdir()
        (RESULT / name).write_text("of a person")
        done = attncourse("grade", CHAPTER_3, "--force")
        assert done.exit_code == 0 and disk.load_result(RESULT).result.score == JUDGED
        RESULT.unlink()
    kept = [*RESULT.parent.glob("result.json.*/*")]
    assert {path.name: path.parent.name for path in kept} == {
        "notes.txt": "result.json.1",
        "more.txt": "result.json.2",
    }


TIME = b"2026-02-01 12:00:00 UTC"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        *((text, True) for text in (TIME, b"\xef\xbb\xbf" + TIME, b"\r\n" + TIME + b"\r\nlate\n")),
        *((text, False) for text in (b"", b"2026-02-01 24:00:00", b"Sunday noon", b"\xff\xfe2\0")),
    ],
)
def test_a_time_is_read_as_editors_write_it_or_said(taught, text, read):
    folder = Path("submitted", "ann", CHAPTER_3)
    (folder / senders.TIMESTAMP).write_bytes(text)
    assert str(senders.timestamp_of(folder)) == ("2026-02-01 12:00:00" if read else "None")
    shown = attncourse("grade", CHAPTER_3).stdout
    assert shown.count("timestamp.txt says no time, so nothing counts as late") == (not read)


VERDICTS = '"verdicts": {"softmax": {"visible": %s, "hidden": 6, "points": 6%s}}'
REST = '"texts": {}, "repairs": [], "review": []'


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("", "\0" * 500, "3", "[]", "null", "[" * 100_000, "\udcff"),
        '{"key": "x", "verdicts": []}',
        '{"key": "x", "verdicts": {"softmax": 3}}',
        '{"key": "x", "verdicts": {}, "texts": {}, "repairs": [], "review": null}',
        '{"key": "x", "verdicts": {}, "texts": {"why-scaled": 3}, "repairs": [], "review": []}',
        *(f'{{"key": "x", {VERDICTS % (n, "")}, {REST}}}' for n in ('"6"', "NaN", "1e999", "[]")),
        f'{{"key": "x", {VERDICTS % ("1" + 400 * "0", "")}, {REST}}}',
        f'{{"key": "x", {VERDICTS % (6, chr(44) + chr(34) + "title" + chr(34) + ": 3")}, {REST}}}',
        f'{{"key": "x", "new": 1, {VERDICTS % (6, "")}, {REST}}}',
    ],
)
def test_a_damaged_result_is_that_students_only(taught, text):
    RESULT.write_text(text, errors="surrogateescape")
    Path("canvas.csv").write_text(CANVAS + "B,2,bob,,\n")
    assert disk.load_result(RESULT) is None
    shown = attncourse("report", CHAPTER_3)
    assert shown.exit_code == 0 and "graded before something changed" in shown.stdout
    assert {row.student: (row.score, row.stale) for row in results.of_class(CHAPTER_3)} == {
        "ann": (JUDGED, True),
        "bob": (JUDGED, False),
    }
    assert "2 pages" in attncourse("feedback", CHAPTER_3).stdout
    assert attncourse("total").exit_code == 0
    export = ["export", CHAPTER_3, "--format", "canvas", "--roster", "canvas.csv", "-o", "x.csv"]
    assert "points of 2 students" in attncourse(*export).stdout
    done = attncourse("grade", CHAPTER_3)
    assert f"graded 1 submission of {CHAPTER_3}: ann; 1 had not changed\n" in done.stdout
    assert disk.load_result(RESULT).result.score == JUDGED


@pytest.mark.slow
def test_who_does_not_belong_in_the_class_is_taken_out_as_the_export_says(taught):
    Path("canvas.csv").write_text(CANVAS)
    export = ["export", CHAPTER_3, "--format", "canvas", "--roster", "canvas.csv", "-o", "x.csv"]
    done = attncourse(*export)
    assert done.exit_code == 1 and "1 graded here and not found in Canvas: bob\n" in done.stdout
    says = "nbgrader db student remove NAME --force"
    assert f"does not belong in the class: {says}, then delete the folders NAME" in done.stdout
    command = says.replace("NAME", "bob").split()
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    for folder in ("submitted", "autograded", "feedback"):
        assert f"{folder}/" in done.stdout
        shutil.rmtree(Path(folder, "bob"), ignore_errors=True)
    assert attncourse(*export).exit_code == 0
    for command in (["grade", CHAPTER_3], ["report", CHAPTER_3], ["total"]):
        done = attncourse(*command)
        assert done.exit_code == 0 and "bob" not in done.stdout


@pytest.mark.slow
def test_a_few_graded_students_are_named_and_many_are_counted(taught):
    for number in range(teacher.FEW + 1):
        place = Path("submitted", f"s{number}", CHAPTER_3)
        place.mkdir(parents=True)
        shutil.copy(RELEASED, place)
    done = attncourse("grade", CHAPTER_3, "--students", "s1,s0")
    assert f"graded 2 submissions of {CHAPTER_3}: s0, s1; 0 had not changed\n" in done.stdout
    done = attncourse("grade", CHAPTER_3, "--force")
    assert f"graded 13 submissions of {CHAPTER_3}; 0 had not changed\n" in done.stdout


@pytest.mark.parametrize("reason", ["cell 4 uses `exec`", "the file is empty"])
def test_where_a_cell_has_a_number_it_is_said_how_cells_are_counted(capsys, reason):
    teacher.tell(teacher.Graded(look={"ann": [reason]}), {}, [], [])
    out = capsys.readouterr().out
    assert out.startswith(f"look at ann: {reason}\n")
    assert ("counted from the top, texts too" in out) == ("cell" in reason)


def test_a_result_without_a_task_is_none(taught):
    data = json.loads(RESULT.read_text())
    del data["verdicts"]["softmax"]
    RESULT.write_text(json.dumps(data))
    assert "graded 1 submission of" in attncourse("grade", CHAPTER_3).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["", "3", '{"cells": 3}', '{"cells": [{"outputs": [3]}]}', "\udcff"]
)
def test_a_damaged_record_is_that_students_only(taught, text):
    RESULT.unlink()
    disk.record_path(CHAPTER_3, "ann").write_text(text, errors="surrogateescape")
    assert attncourse("report", CHAPTER_3).exit_code == 0
    done = attncourse("feedback", CHAPTER_3)
    assert done.exit_code in (0, 1) and Path("feedback", "bob", CHAPTER_3).is_dir()
    assert attncourse("grade", CHAPTER_3).exit_code == 0


@pytest.mark.slow
def test_who_has_no_time_any_more_is_not_late_any_more(taught):
    with Path("nbgrader_config.py").open("a") as config:
        config.write('\nc.LateSubmissionPlugin.penalty_method = "zero"\n')
    nbgrader_api._api_of.cache_clear()
    with nbgrader_api.gradebook() as book:
        book.update_or_create_assignment(CHAPTER_3, duedate="2026-01-31 12:00:00 UTC")
    time = Path("submitted", "ann", CHAPTER_3, "timestamp.txt")
    time.write_text("2026-02-01 12:00:00 UTC")
    assert attncourse("grade", CHAPTER_3).exit_code == 0 and points() == {"ann": 0, "bob": JUDGED}
    assert attncourse("feedback", CHAPTER_3).exit_code == 0
    page = Path("feedback", "ann", CHAPTER_3, f"{CHAPTER_3}.html")
    assert "being late" in page.read_text()
    time.unlink()
    assert attncourse("grade", CHAPTER_3).exit_code == 0 and points() == dict.fromkeys(
        STUDENTS, JUDGED
    )
    assert "lost for being late" not in attncourse("report", CHAPTER_3).stdout
    assert attncourse("feedback", CHAPTER_3).exit_code == 0 and "being late" not in page.read_text()


def test_a_gradebook_of_another_nbgrader_is_said_and_stays(taught):
    with contextlib.closing(sqlite3.connect("gradebook.db")) as book:
        book.execute("UPDATE alembic_version SET version_num = '724cde206c17'")
        book.commit()
    before = everything()
    for command in ("grade", "report", "release"):
        assert "another version of nbgrader" in said(command, CHAPTER_3)
    assert everything() == before


# --- nbgrader autograde, which takes away what a student had before it grades


JUDGE = "attncourse.grading.books.autograde._one_by_one"
BOOKS = "nbgrader.api.Gradebook.update_or_create_student"  # one of nbgrader's own first steps


def stops(monkeypatch, error: BaseException, where: str = JUDGE) -> dict:
    """`nbgrader autograde --force`, stopped by an error."""

    def stop(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(where, stop)
        return nbgrader_api.api().autograde(CHAPTER_3, "ann")


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [walls.Unavailable("unshare"), RuntimeError("x"), KeyboardInterrupt(), SystemExit(1)],
)
def test_whatever_stops_autograde_a_student_keeps_what_was_there(taught, monkeypatch, error):
    place = Path("submitted", "ann", CHAPTER_3)
    (place / FILE).rename(place / "Copy of it.ipynb")  # which nbgrader takes for none
    (place / "timestamp.txt").write_text("2026-02-01 12:00:00 UTC")
    assert attncourse("grade", CHAPTER_3).exit_code == 0
    Path("autograded", "ann", CHAPTER_3, "notes.txt").write_text("of the teacher")
    (place / "timestamp.txt").write_text("2026-02-02 12:00:00 UTC")
    before = everything()
    for where in (JUDGE, BOOKS):
        assert not stops(monkeypatch, error, where)["success"]
        assert everything() == before
    shutil.rmtree(Path("autograded", "ann"))
    stops(monkeypatch, error)
    assert not list(Path("autograded", "ann").iterdir())  # what was begun would pass for graded


def test_what_a_killed_autograde_took_away_comes_back(taught, monkeypatch):
    before, folder = everything(), Path("autograded", "ann", CHAPTER_3)
    folder.rename(autograde.before(folder))
    folder.mkdir()
    (folder / "begun.txt").write_text("")
    (folder.parent / f".{CHAPTER_3}.gone").mkdir()
    stops(monkeypatch, walls.Unavailable("unshare"))
    assert everything() == before


@pytest.mark.parametrize("step", ["shutil.copyfile", "pathlib.Path.mkdir", "pathlib.Path.rename"])
def test_on_a_full_disk_autograde_leaves_what_was_there(taught, monkeypatch, step):
    before, full = everything(), OSError(errno.ENOSPC, "No space left on device")
    assert not stops(monkeypatch, full, step)["success"]
    assert everything() == before


@pytest.mark.parametrize("copied", [False, True])  # before it was killed
def test_a_killed_autograde_does_not_undo_what_is_graded_since(taught, monkeypatch, copied):
    folder = Path("autograded", "ann", CHAPTER_3)
    (folder / "notes.txt").write_text("of the teacher")
    kept = folder.rename(autograde.before(folder))
    folder.mkdir()
    for name in (FILE, disk.RESULT) * copied:
        shutil.copy2(kept / name, folder)
    edit(Path("submitted", "ann", CHAPTER_3, FILE), longer)
    assert "graded 1 submission of" in attncourse("grade", CHAPTER_3).stdout
    newer = {path: path.read_bytes() for path in folder.iterdir()}
    assert newer[folder / disk.RESULT] != (kept / disk.RESULT).read_bytes()
    newer[folder / "notes.txt"] = b"of the teacher"
    for force in (False, True):
        if force:
            stops(monkeypatch, walls.Unavailable("unshare"))
        else:
            assert nbgrader_api.api().autograde(CHAPTER_3, "ann", force=False)["success"]
        assert {path: path.read_bytes() for path in folder.iterdir()} == newer
        assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.slow
def test_autograde_replaces_what_is_graded_anew_and_knows_what_was_read(taught, monkeypatch):
    with nbgrader_api.gradebook() as book:
        grade = book.find_grade("softmax-check", CHAPTER_3, CHAPTER_3, "ann")
        grade.manual_score, grade.needs_manual_grade = 5, False
        book.db.commit()
    result = RESULT.read_bytes()
    Path("autograded", "ann", CHAPTER_3, "old.txt").write_text("")
    monkeypatch.setattr(autograde, "_one_by_one", workers.in_processes())
    assert nbgrader_api.api().autograde(CHAPTER_3, "*")["success"]
    there = {path.name for path in Path("autograded", "ann").rglob("*")}
    assert there == {CHAPTER_3, FILE, "result.json"}
    assert RESULT.read_bytes() == result and points() == {"ann": JUDGED - 1, "bob": JUDGED}
    assert not [row for row in results.of_class(CHAPTER_3) if row.needs_reading]


# --- a package that is not installed


@pytest.fixture(scope="module")
def not_installed(tmp_path_factory) -> dict[str, str]:
    """The environment of a Python that finds the package, and nothing about it."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "attncourse").symlink_to(ROOT / "attncourse")
    (others := folder / "others").mkdir()
    for path in Path(pytest.__file__).parents[1].iterdir():
        if "attncourse" not in path.name:
            (others / path.name).symlink_to(path)
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{others}"}


@pytest.mark.slow
def test_the_first_cell_and_a_release_need_no_installation(not_installed, course):
    python = [sys.executable, "-S"]  # -S: without this environment's own packages
    code = "from importlib import metadata; metadata.version('attncourse')"
    nothing = subprocess.run([*python, "-c", code], env=not_installed, capture_output=True)
    assert b"PackageNotFoundError" in nothing.stderr
    for command, out in (
        (["-c", "import attncourse; attncourse.welcome()"], "The judge is ready."),
        (["-m", "attncourse", "release", CHAPTER_3], f"exercises/: {CHAPTER_3}"),
    ):
        done = subprocess.run(
            [*python, *command], env=not_installed, capture_output=True, text=True
        )
        assert done.returncode == 0 and out in done.stdout, done.stderr
    assert RELEASED.read_bytes() == (ROOT / RELEASED).read_bytes()


def test_the_version_is_read_without_a_look_at_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from setuptools.config.expand import read_attr\n"  # as pyproject.toml asks for
        "print(read_attr('attncourse.__version__'))\n"
        "import attncourse; print(attncourse.__version__)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert first == second


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux forks them")
def test_a_worker_that_is_forked_when_the_grader_is_gone_says_nothing():
    control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "attncourse.grading.jail.forkserver", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=processes.surroundings(),
    )
    theirs.close()
    control.send(b"1")
    pairs = [socket.socketpair() for _ in range(2)]
    socket.send_fds(control, [b"fork"], [pair[1].fileno() for pair in pairs])
    for each in [*pairs[0], *pairs[1], control]:
        each.close()
    assert process.communicate(timeout=120)[1] == b"" and process.returncode == 0
