"""The class report's promises: the right things first, hostile names harmless, copies found."""

import ast
import csv
import functools
import io
import itertools
import json
import os
import re
from datetime import datetime
from pathlib import Path

import pytest
from browser import browser, needs_browser
from conftest import ROOT, copy_course
from corpus.correct import CORRECT
from typer.testing import CliRunner

from attncourse import cli
from attncourse.checks import pages, registry
from attncourse.grading.books import disk, nbgrader_api, results
from attncourse.grading.inbox import sample
from attncourse.grading.jail.result import Result, Verdict
from attncourse.grading.outbox import class_report, lms, similarity

NAME = "03_scaled_dot_product"
SLY = '<img src=x onerror="window.pwned=1">'
FORMULA = '=HYPERLINK("x")'
MARKUP = "[red]b[nothing]"
WRONG = "D-KEY-AS-VALUE"


def result(about, wrong=None, **more) -> Result:
    """As the judge would give it: everything right but `wrong` (task -> title)."""
    verdicts = {}
    for each in about.graded:
        title = (wrong or {}).get(each.task, "")
        earned = 0 if title else each.points
        verdicts[each.task] = Verdict(earned, earned, each.points, title)
    texts = dict.fromkeys(about.questions, "Because.")
    return Result(verdicts, **{"texts": texts, "seconds": 1.5} | more)


SIX = """
from nbgrader.plugins import LateSubmissionPlugin


class Six(LateSubmissionPlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 6


c.AssignLatePenalties.plugin_class = Six
"""


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A small class in the gradebook, with everything that can be odd about it."""
    from attncourse.grading.books.gradebook import Writer

    folder = tmp_path_factory.mktemp("class")
    copy_course(ROOT, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with Path("nbgrader_config.py").open("a") as config:
            config.write(SIX)
        job = disk.job_of(NAME)
        about = job.about
        task = "scaled_dot_product_attention"
        both = {task: WRONG, "softmax": "D-SOFTMAX-L2"}
        people = {
            "ann": result(about),
            "bob": result(about, {task: WRONG}, seconds=12.0),
            SLY: result(about, both, review=["uses `exec` <b>here</b>"]),
            FORMULA: result(about, {task: "fails: any leading axes work"}),
            MARKUP: result(about, {task: "fails: any leading axes work"}, repairs=["renamed"]),
        }
        with Writer(about) as writer:
            writer.gradebook.update_or_create_assignment(NAME, duedate="2026-01-31 12:00 UTC")
            for student, each in people.items():
                Path("submitted", student, NAME).mkdir(parents=True)
                disk.store_result(disk.result_path(NAME, student), "key", each)
                late = datetime(2026, 2, 1, 12) if student == "ann" else None
                writer.write(student, each, late)
        Path("submitted", "later", NAME).mkdir(parents=True)
        with nbgrader_api.gradebook() as book:
            book.update_or_create_student("absent", first_name="Abby", last_name="Sent")
            grade = book.find_grade("why-scaled", NAME, NAME, "ann")
            grade.manual_score, grade.needs_manual_grade = 7.5, False
            book.db.commit()
        yield about


@pytest.fixture(scope="module")
def data(graded):
    return class_report.data_of(NAME, results.of_class(NAME))


@pytest.fixture(scope="module")
def page(data):
    path = Path("report.html").resolve()
    class_report.write_html(data, path)
    return path


@pytest.mark.slow
def test_points_are_those_of_the_gradebook(data, graded):
    ann = next(each for each in data["students"] if each["student"] == "ann")
    assert ann["points"]["why-scaled"] == 7.5 and ann["late"] == 6.0
    assert ann["score"] == graded.points - 8 + 7.5 - 6  # 8 for the written answer
    bob = next(each for each in data["students"] if each["student"] == "bob")
    assert bob["points"]["why-scaled"] is None  # not read yet, which is not zero
    assert bob["points"]["softmax"] == 12 and bob["points"]["scaled_dot_product_attention"] == 0


@pytest.mark.slow
def test_who_needs_a_person_is_named_with_the_reason(data):
    assert data["review"] == [{"student": SLY, "reasons": ["uses `exec` <b>here</b>"]}]
    assert data["unread"][0]["students"] == sorted([SLY, FORMULA, MARKUP, "bob"])
    assert data["not_graded"] == ["later"] and data["nothing_handed_in"] == ["absent"]
    assert data["submissions"] == 6


def test_what_to_reteach_comes_by_frequency_and_is_that_tasks(data):
    first, second = data["misconceptions"]
    wrong = results.catalogue()["scaled_dot_product_attention", WRONG]
    assert (first["id"], first["students"]) == (WRONG, [SLY, "bob"])
    assert (first["thinks"], first["why"]) == (wrong.thinks, wrong.why)
    assert second["students"] == [SLY]
    assert [(each["what"], each["students"]) for each in data["failures"]] == [
        ("fails: any leading axes work", [FORMULA, MARKUP])
    ]


def test_a_misconceptions_words_are_those_of_its_task():
    rows = [
        results.Row("a", 0.0, 1.0, False, {task: title})
        for task, title in results.catalogue()
        if title == "C-SQUEEZE"
    ]
    assert len(rows) > 1
    for name, thinks, _ in results.by_frequency(rows):
        assert thinks in {results.catalogue()[task, name].thinks for task in _tasks(rows)}
    assert sum(n for _, _, n in results.by_frequency(rows)) == len(rows)


def _tasks(rows):
    return [next(iter(row.wrong)) for row in rows]


def test_tasks_and_scores_add_up(data):
    by_name = {each["task"]: each for each in data["tasks"]}
    assert (by_name["softmax"]["solved"], by_name["softmax"]["judged"]) == (4, 5)
    assert by_name["softmax"]["mean"] == 9.6
    assert by_name["why-scaled"]["judged"] == 1 and by_name["why-scaled"]["mean"] == 7.5
    bins = data["scores"]["histogram"]
    assert sum(each["students"] for each in bins) == 5
    assert bins[0]["from"] == 0 and bins[-1]["to"] >= data["scores"]["most"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in Path("solutions").glob("[0l]*")))
def test_a_report_can_be_made_of_every_assignment_and_every_misconception(name, root, tmp_path):
    """Chapters and labs keep their reference code in different places."""
    tasks = {task.name for task in registry.all_tasks().values() if task.assignment == name}
    wrong = [pair for pair in results.catalogue() if pair[0] in tasks]
    rows = [results.Row(f"s{n}", 0.0, 1.0, False, dict([pair])) for n, pair in enumerate(wrong)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(results, "without_submission", lambda _: [])
        data = class_report.data_of(name, rows)
        class_report.write_html(data, tmp_path / "report.html")
    assert len(wrong) > 3 and {s for m in data["misconceptions"] for s in m["students"]} == {
        row.student for row in rows
    }
    page = (tmp_path / "report.html").read_text("utf-8")
    assert f"{name}.html#" in page


def test_an_empty_class_has_a_report_too(graded, tmp_path):
    nothing = class_report.data_of(NAME, [])
    for write in (class_report.write_html, class_report.write_csv, class_report.write_json):
        write(nothing, tmp_path / "new" / "file")
    assert nothing["not_graded"] and nothing["scores"]["mean"] is None


@pytest.mark.slow
def test_a_long_list_is_folded_where_a_browser_leaves_it(data, tmp_path):
    """A browser ends a paragraph before what is folded, and its last period stands alone."""
    bs4 = pytest.importorskip("bs4")
    many = [f"student{n}" for n in range(20)]
    lists = dict.fromkeys(("stale", "not_graded", "nothing_handed_in"), many)
    class_report.write_html({**data, **lists}, tmp_path / "report.html")
    soup = bs4.BeautifulSoup((tmp_path / "report.html").read_text("utf-8"), "html.parser")
    assert "20 students" in soup.get_text() and not soup.select("p details")


def test_the_page_is_one_file_that_loads_nothing_and_runs_nobodys_code(page, data):
    bs4 = pytest.importorskip("bs4")
    soup = bs4.BeautifulSoup(page.read_text("utf-8"), "html.parser")
    assert not soup.find_all(["img", "link", "iframe", "object", "b"])
    assert not soup.find_all(src=True) and len(soup.find_all("script")) == 1
    assert not any(name.startswith("on") for tag in soup.find_all(True) for name in tag.attrs)
    text = soup.get_text()
    for student in [each["student"] for each in data["students"]] + ["later", "absent"]:
        assert student in text
    ids = [tag["id"] for tag in soup.find_all(id=True)]
    assert len(ids) == len(set(ids))
    for link in soup.find_all("a", href=True):
        if not link["href"].startswith(pages.address("book/")[: -len(".html")]):
            assert link["href"].removeprefix("#") in ids, link
    headings = [int(tag.name[1]) for tag in soup.find_all(re.compile("^h[1-6]$"))]
    assert headings[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(headings))


def test_a_spreadsheet_reads_the_csv_and_computes_nothing(data, tmp_path):
    class_report.write_csv(data, tmp_path / "class.csv")
    raw = (tmp_path / "class.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    rows = list(csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline="")))
    assert [row["student"] for row in rows] == [SLY, "'" + FORMULA, MARKUP, "ann", "bob", "later"]
    assert rows[5]["points"] == "not graded" and rows[5]["softmax"] == ""  # and no zero
    assert rows[3]["why-scaled"] == "7.5" and rows[4]["why-scaled"] == ""
    assert rows[4]["misunderstood"] == f"scaled_dot_product_attention: {WRONG}"
    for row in rows:
        for cell in row.values():
            assert cell[:1] not in tuple("=+-@\t\r"), cell
    assert class_report.harmless("softmax; =HYPERLINK(A1)") == "softmax; '=HYPERLINK(A1)"


def test_the_command_shows_the_class_and_says_where_the_page_is(graded):
    done = CliRunner().invoke(cli.app, ["report", NAME, "--csv", "c.csv", "--json", "d/c.json"])
    assert done.exit_code == 0, done.output
    page = Path("_build", "report", f"{NAME}.html")
    for path in (page, Path("c.csv"), Path("d/c.json")):
        assert path.exists() and f"{path} is written" in done.output
    assert json.loads(Path("d/c.json").read_text("utf-8"))["assignment"] == NAME
    assert MARKUP in done.output  # rich would take it for its own


def test_the_same_file_of_several_students_is_named(graded, data, tmp_path):
    assert data["identical"] == []
    answered = (ROOT / "solutions" / NAME / f"{NAME}.ipynb").read_bytes()
    untouched = (ROOT / "exercises" / NAME / f"{NAME}.ipynb").read_bytes()
    files = {"ann": answered, "bob": answered, SLY: untouched, MARKUP: untouched, "later": b""}
    places = {Path("submitted", who, NAME, f"{NAME}.ipynb"): file for who, file in files.items()}
    try:
        for path, file in places.items():
            path.write_bytes(file)
        done = CliRunner().invoke(cli.app, ["report", NAME, "--html", str(tmp_path / "x.html")])
    finally:
        for path in places:
            path.unlink(missing_ok=True)
    assert "2 handed in the same file, byte for byte: ann; bob\n" in done.output
    assert done.output.count("the same file") == 1
    written = (tmp_path / "x.html").read_text("utf-8")
    said = re.search("<p>.*the same file, byte for byte.*</p>", written)[0]
    assert "byte for byte: ann, bob." in re.sub("<[^>]*>", "", said)
    assert "No two submissions share" not in written


def test_written_answers_that_nobody_has_read_are_counted(page):
    row = re.search('<tr><th scope="row"><code>why-scaled<.*', page.read_text("utf-8"))[0]
    assert ' 0 of 1<br><span class="soft">4 not read yet</span></td>' in row


def test_points_go_to_the_course_system_with_penalty_and_comments(graded):
    points, most, not_graded = lms.graded(NAME)
    assert not_graded == ["later"]
    by_name = {each.student: each for each in points}
    assert most == graded.points and by_name["ann"].score == graded.points - 6.5
    assert not by_name["ann"].unread and by_name["bob"].unread
    assert by_name["bob"].comment.startswith(f"scaled_dot_product_attention: {WRONG}.")
    Path("roster.csv").write_text(f"Student,ID,SIS Login ID,Section,{NAME} (7)\nA,1,ann,X,\n")
    arguments = ["export", NAME, "--format", "canvas", "--roster", "roster.csv"]
    done = CliRunner().invoke(cli.app, [*arguments, "-o", "filled.csv"])
    assert done.exit_code == 1 and "graded here and not found in Canvas" in done.output
    assert "handed in and not graded, run `attncourse grade" in done.output
    assert f"\nA,1,ann,X,{graded.points - 6.5:g}\n" in Path("filled.csv").read_text()
    refused = CliRunner().invoke(cli.app, [*arguments, "-o", "./roster.csv"])
    assert refused.exit_code == 2 and Path("roster.csv").read_text().endswith("ann,X,\n")


@needs_browser
@pytest.mark.slow
def test_everybody_can_read_the_page(page, tmp_path):
    with browser(tmp_path) as tab:
        for theme in ("light", "dark"):
            tab.open(page, width=390, theme=theme)
            assert tab.run("return document.documentElement.scrollWidth") <= 390
            assert tab.violations() == []
        assert not tab.run("return window.pwned")
        tab.press("Tab")
        assert tab.run("return document.activeElement.href").endswith("#person")
        rows = "[...document.querySelectorAll('#every tbody tr')]"
        tab.run("document.querySelectorAll('#every th button')[1].click()")
        said = tab.run(f"return {rows}.map(row => row.cells[1].innerText)")
        assert said[0] == "not graded"
        shown = tab.run(f"return {rows}.slice(1).map(row => parseFloat(row.cells[1].innerText))")
        assert shown == sorted(shown) and len(set(shown)) > 1
        tab.run(
            "const box = document.querySelector('#filter'); box.value = 'bob';"
            "box.dispatchEvent(new Event('input'))"
        )
        hidden = "return document.querySelectorAll('#every tbody tr:not([hidden])').length"
        assert tab.run(hidden) == 1
        tab.run("location.hash = '#s1'")  # a link to a row that the filter hides shows it again
        tab.wait("document.querySelectorAll('#every tbody tr[hidden]').length === 0")


# --- near-duplicates


CHAPTERS = [stem for stem, each in registry.chapters().items() if "chapter" in each.place]


@functools.cache
def independent() -> dict[str, list[list[str]]]:
    """By chapter, made-up students: each answers each task in a way of its own."""
    answers = (answer for each in CORRECT.values() for answer in each)
    names = {getattr(answer, "__name__", None) for answer in answers} - CORRECT.keys()
    classes, seen = {}, set()
    for chapter in CHAPTERS:
        students: list[list[str]] = []
        for task in (task for task in CORRECT if registry.find(task).chapter == chapter):
            number = 0
            for answer in CORRECT[task]:
                try:
                    source = sample.source_of(answer, task)
                except (AttributeError, KeyError, TypeError):
                    continue  # a partial or an object has no source of its own
                defined = {getattr(node, "name", "") for node in ast.parse(source).body}
                if defined & names or source in seen:
                    continue  # built on another of these answers, so not independent of it
                seen.add(source)
                students += [[]] * (number == len(students))
                students[number] = [*students[number], source]
                number += 1
        classes[chapter] = students
    return classes


def groups(students: list[list[str]], known=()):
    found = similarity.alike(((f"s{n}", cells) for n, cells in enumerate(students)), known)
    return [group.students for group in found]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_independent_right_answers_are_not_accused(chapter):
    assert len(independent()[chapter]) >= similarity.FEWEST
    assert groups(independent()[chapter], class_report.course_code(chapter)) == []


class Rename(ast.NodeTransformer):
    """Every name that is not one of Python's or torch's, changed."""

    def __init__(self, tree):
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        bound = (node.id for node in names if isinstance(node.ctx, ast.Store))
        given = (node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
        self.names = {*bound, *given} - {"self"}

    def visit_Name(self, node):
        return ast.Name(f"my_{node.id}" if node.id in self.names else node.id, node.ctx)

    def visit_arg(self, node):
        return ast.arg(f"my_{node.arg}", ast.Name("object"))


def disguised(cells: list[str]) -> list[str]:
    """A copy: other names, other order, comments, docstrings, spacing, annotations."""
    changed = []
    for cell in reversed(cells):
        tree = Rename(ast.parse(cell)).visit(ast.parse(cell)) if cell else ast.parse("")
        tree.body.reverse()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                node.body.insert(0, ast.Expr(ast.Constant("My own work.")))
        lines = ast.unparse(ast.fix_missing_locations(tree)).splitlines()
        changed.append("# mine\n" + "\n\n".join(f"{line}  # so" for line in lines))
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("chapter", ["scaled_dot_product", "multihead", "cross_attention"])
def test_a_disguised_copy_is_found_and_its_lines_are_shown(chapter):
    students = independent()[chapter]
    for number in (0, 3, 5):
        copied = students[number]
        found = similarity.alike(
            ((f"s{n}", cells) for n, cells in enumerate([*students, disguised(copied)])), []
        )
        pair = tuple(sorted((f"s{number}", f"s{len(students)}")))
        assert [group.students for group in found] == [pair]
        original = found[0].lines[f"s{number}"].splitlines()
        assert len(original) > 6
        assert {line for line in original if line != "…"} <= set("\n".join(copied).splitlines())


@pytest.mark.slow
def test_what_the_course_wrote_and_what_many_wrote_is_no_evidence():
    students = independent()["multihead"]
    assert len(groups([*students, students[3]])) == 1
    assert groups([*students, students[3]], known=students[3]) == []
    assert groups([*students, *[students[3]] * 8]) == []


@pytest.mark.slow
def test_among_few_nobody_is_accused():
    students = independent()["multihead"][: similarity.FEWEST - 2]
    assert groups([*students, students[3]]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    ["", "def f(", "x" + ".a" * 50_000, "1" + "+1" * 30_000, "(" * 5000, "\0", "\ud800", "[" * 99],
    ids=range(8),
)
def test_code_that_cannot_be_compared_stops_nothing(code):
    students = independent()["multihead"]
    found = groups([[code, *cells] for cells in students] + [[code, *students[3], code]])
    assert found == [tuple(sorted(("s3", f"s{len(students)}")))]


@pytest.mark.slow
def test_a_thousand_submissions_take_seconds():
    students = independent()["scaled_dot_product"]
    many = [
        [cell.replace("1", str(n % 50 + 2)) for cell in students[n % len(students)]]
        for n in range(1000)
    ]
    spent = os.times().user
    groups(many)
    assert os.times().user - spent < 20
