"""A term as an instructor has it: the commands of `book/teaching.md`, one after the other."""

import contextlib
import csv
import json
import multiprocessing
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from browser import browser, needs_browser
from conftest import ROOT, copy_course
from jupyter_core.application import NoStart
from nbgrader.apps.nbgraderapp import NbGraderApp
from rich.console import Console
from test_postgresql import a_server
from typer.main import get_command
from typer.testing import CliRunner

from attncourse import cli
from attncourse.grading.books import disk, nbgrader_api, results
from attncourse.grading.inbox import sample
from attncourse.grading.jail.remote import why_no_jail

CHAPTER_3 = "03_scaled_dot_product"
FILE = f"{CHAPTER_3}.ipynb"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the jail is made of Linux namespaces"
)


# --- what the documents say ---------------------------------------------------------------------


def commands(text: str) -> list[str]:
    """The command lines of a page's `sh` blocks, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = (re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


TEACHING = commands((ROOT / "book" / "teaching.md").read_text("utf-8"))


def named() -> set[tuple[str, ...]]:
    """The programs with their subcommands and options that documents and help texts name."""
    places = [*ROOT.glob("*.md"), *ROOT.glob("book/*.md"), *ROOT.glob("attncourse/**/*.j2")]
    places += ROOT.glob("attncourse/**/*.py")
    found = set()
    for path in places:
        text = path.read_text("utf-8")
        quoted = re.findall(r"(?:`+|<code>)((?:attncourse|nbgrader|jupyter) [^`<{\n]+)", text)
        for line in [*quoted, *commands(text)]:
            words = line.split()
            if words[0] in ("attncourse", "nbgrader", "jupyter"):
                found.add(tuple(re.sub(r"=.*", "", word) for word in words))
    return found


def test_every_command_that_is_written_somewhere_exists():
    ours, seen = get_command(cli.app), named()
    assert {words[0] for words in seen} == {"attncourse", "nbgrader", "jupyter"} and len(seen) > 30
    for program, *words in seen:
        options = {word for word in words if word.startswith("--") and len(word) > 2}
        if program == "attncourse":
            command = ours.commands.get(words[0])
            assert command or words[0].isupper(), words
            known = {o for p in command.params for o in p.opts} if command else options
        elif program == "nbgrader":
            app, path = NbGraderApp, list(words)
            while isinstance(app.subcommands, dict):
                assert path and path[0] in app.subcommands, words
                app = app.subcommands[path.pop(0)][0]
            known = {f"--{alias}" for alias in [*app.aliases, *app.flags]}
            known |= {option for option in options if "." in option}  # of a trait
        else:
            assert shutil.which(f"jupyter-{words[0]}"), words
            continue
        assert options <= known | {"--help"}, words


# --- a term -------------------------------------------------------------------------------------

PEOPLE = {  # id -> first name, last name, id in the course system
    "ann": ("Ann", "O'Neil", "101"),
    "zoe": ("Zoë", "Müller", "102"),
    "wei": ("Wei", "Li", "103"),
    "bob": ("Bob", "Smith", "104"),
    "kim": ("Kim", "Late", "105"),
    "eve": ("Eve", "Absent", "106"),
}
DUE = "2026-11-20 23:59:00 UTC"


def attncourse(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, list(arguments))
    assert done.exit_code == code, (arguments, done.output, done.exception)
    return done.output


def nbgrader(*arguments: str) -> None:
    NbGraderApp.clear_instance()
    app = NbGraderApp.instance()
    app.initialize(list(arguments))
    with contextlib.suppress(NoStart):  # its subcommand has run
        app.start()
    NbGraderApp.clear_instance()


class Term:
    """Runs lines of the page; at its end nothing but what needs another machine is left."""

    def __init__(self):
        self.left = list(TEACHING)

    def __call__(self, begin: str, code: int = 0) -> str | None:
        """Run the next line of the page that begins in this way."""
        line = next(line for line in self.left if line.startswith(begin))
        self.left.remove(line)
        program, *words = shlex.split(line)
        return attncourse(*words, code=code) if program == "attncourse" else nbgrader(*words)


def two_graders(line: str) -> None:
    """The same command at once in two processes; each grades half, and both the one between."""
    halves = ["ann,zoe,wei", "wei,bob"]
    fork = multiprocessing.get_context("fork")
    words = [*shlex.split(line)[1:], "--jobs", "1", "--students"]
    graders = [fork.Process(target=lambda half=h: attncourse(*words, half)) for h in halves]
    for grader in graders:
        grader.start()
    for grader in graders:
        grader.join(timeout=240)
        assert grader.exitcode == 0


@contextlib.contextmanager
def jupyter_lab():
    """`jupyter lab` in this folder: the address of its Formgrader."""
    command = ["jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    command += ["--IdentityProvider.token=", "--ServerApp.port_retries=0", "--ip=127.0.0.1"]
    with open("lab.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found, end = None, time.monotonic() + 180
        while not found:
            assert process.poll() is None and time.monotonic() < end, Path("lab.log").read_text()
            time.sleep(0.1)
            found = re.search(r"http://127\.0\.0\.1:(\d+)/lab", Path("lab.log").read_text())
        yield f"http://127.0.0.1:{found[1]}/formgrader"
    finally:
        process.terminate()
        process.wait(20)


# A cell that looks for an instructor's secret, and for one of the judge, in all of its memory.
FINDS = """
import ctypes, re
found = set()
for line in open("/proc/self/maps"):
    place, rights, *_, name = line.split() if len(line.split()) > 5 else [*line.split(), ""]
    if rights[0] == "r" and name in ("", "[heap]", "[stack]"):
        begin, end = (int(number, 16) for number in place.split("-"))
        data = ctypes.string_at(begin, end - begin)
        found |= set(re.findall({secrets!r}, data))
raise SystemExit(f"found {{sorted(found)}}")
"""


def with_cell(notebook: bytes, source: str) -> bytes:
    content = json.loads(notebook)
    cell = {"cell_type": "code", "id": "last", "metadata": {}, "source": source, "outputs": []}
    content["cells"].append(cell | {"execution_count": None})
    return json.dumps(content).encode()


def notebooks() -> dict[str, bytes]:
    """What five students wrote: right, unusual, and three times mistaken."""
    sample.write_class(CHAPTER_3, 5)
    made = sorted(Path("submitted").glob(f"*/{CHAPTER_3}/{FILE}"))
    found = dict(zip(("ann", "zoe", "wei", "bob", "kim"), map(Path.read_bytes, made), strict=True))
    shutil.rmtree("submitted")
    return found


def unread() -> set[str]:
    return {row.student for row in results.of_class(CHAPTER_3) if row.needs_reading}


def points() -> dict[str, float]:
    return {row.student: row.score for row in results.of_class(CHAPTER_3)}


@pytest.mark.slow
@needs_browser
def test_a_term(tmp_path, monkeypatch):
    if reason := why_no_jail():
        pytest.skip(f"no jail can be built here: {reason}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_PASSWORD", "sk-live-12345")
    monkeypatch.setattr(cli.teacher, "console", Console(width=200))
    copy_course(ROOT, tmp_path)
    for folder in [*tmp_path.glob("solutions/*"), *tmp_path.glob("exercises/*")]:
        if folder.name not in (CHAPTER_3, "lab1_time_it_right"):
            shutil.rmtree(folder)  # two assignments are released as quickly as thirteen
    page = (ROOT / "book" / "teaching.md").read_text("utf-8")
    rule = next(b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "TenPercent" in b)
    with contextlib.ExitStack() as stack, Path("nbgrader_config.py").open("a") as config:
        config.write(f"\n{rule}")
        if address := stack.enter_context(a_server()):
            config.write(f"c.CourseDirectory.db_url = {address!r}\n")
        config.close()
        nbgrader_api._api_of.cache_clear()
        the_term(Term(), stack, tmp_path)
        assert Path("gradebook.db").exists() == (not address)


def the_term(term: Term, stack: contextlib.ExitStack, folder: Path) -> None:
    sent = notebooks()
    thinks = results.catalogue()["scaled_dot_product_attention", "D-KEY-AS-VALUE"].thinks
    secrets = f"sk[-]live[-][0-9]+|[{thinks[0]}]{re.escape(thinks[1:30])}"
    sent["ann"] = with_cell(sent["ann"], FINDS.format(secrets=secrets.encode()))

    # a folder of one's own, release, and who takes the course
    assert "files written" in term("attncourse new-course")
    term("attncourse release")
    term("attncourse release")
    with Path("roster.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "first_name", "last_name", "email", "lms_user_id"])
        for student, (first, last, number) in PEOPLE.items():
            table.writerow([student, first, last, f"{student}@uni.edu", number])
    term("nbgrader db student import")
    term("nbgrader db assignment add")

    # Sunday night: Canvas, Drive, and a file in the mail; each by other names
    with zipfile.ZipFile("submissions.zip", "w") as archive:
        archive.writestr(f"oneilann_101_5001_{FILE}", sent["ann"])
        archive.writestr(f"müllerzoë_102_5002_{FILE}", sent["zoe"])
        archive.writestr(f"Wei Li - Copy of {FILE}", sent["wei"])
        lab = Path("exercises", "lab1_time_it_right", "lab1_time_it_right.ipynb").read_bytes()
        archive.writestr("smithbob_104_5004_lab1.ipynb", lab)
    dry = term("attncourse ingest", code=0)
    assert "3 of 03_scaled_dot_product, 1 of lab1" in dry and not Path("submitted").exists()
    assert "a mistake?" in dry
    filed = term("attncourse ingest", code=1)
    assert "it is of lab1_time_it_right, not of 03_scaled_dot_product" in filed
    assert "3 filed" in filed
    assert {place.name for place in Path("submitted").iterdir()} == {"ann", "zoe", "wei"}
    Path("x.ipynb").write_bytes(sent["bob"])
    assert "jane is not in the gradebook yet" in term("attncourse ingest")
    Path("submitted/jane").rename("submitted/bob")
    for who in ("jane", "kim"):
        with zipfile.ZipFile(f"{who}.zip", "w") as archive:
            archive.writestr(FILE, sent["kim"])
    assert "2 filed" in term("attncourse ingest jane.zip")
    for who in ("jane", "kim"):  # not yet
        shutil.rmtree(Path("submitted", who))

    # Monday: two graders, then the report
    line = next(line for line in term.left if line == f"attncourse grade {CHAPTER_3}")
    term.left.remove(line)
    two_graders(line)
    scores = points()
    assert scores.keys() == {"ann", "zoe", "wei", "bob"} and unread() == scores.keys()
    assert scores["ann"] == 56  # of 64: 8 are for the written answer
    found = disk.load_result(disk.result_path(CHAPTER_3, "ann")).result.repairs
    assert [note.partition(": ")[2] for note in found] == ["SystemExit: found []"]
    seen = term("attncourse report")
    assert "nothing handed in: eve; kim" in seen and Path("class.csv").exists()

    # the written answers, in a browser
    term.left.remove("jupyter lab")
    formgrader, tab = stack.enter_context(jupyter_lab()), stack.enter_context(browser(folder))
    with nbgrader_api.gradebook() as book:
        pages = {s: book.find_submission(CHAPTER_3, s).notebooks[0].id for s in scores}
    for student, given in (("ann", 8), ("zoe", 0), ("wei", 5)):
        tab.open(f"{formgrader}/submissions/{pages[student]}/?index=0")
        assert "Rubric" in tab.run("return document.querySelector('.well').innerText")
        box = "document.querySelector('input.score[id=why-scaled]')"
        assert tab.run(f"return {box}.closest('.panel').contains(document.querySelector('.well'))")
        tab.wait(f"!{box}.disabled && jQuery.active === 0")
        tab.run(f"{box}.value = {given}; jQuery({box}).trigger('change')")
        tab.wait("jQuery.active === 0")
        for _ in range(1200):
            if student not in unread():
                break
            time.sleep(0.05)
    assert unread() == {"bob"}
    assert points() == scores | {"ann": 64, "wei": scores["wei"] + 5}

    # Tuesday: one comes late, by two days, and what was read stays read
    late = Path("submitted/kim", CHAPTER_3)
    late.mkdir(parents=True)
    (late / FILE).write_bytes(sent["kim"])
    (late / "timestamp.txt").write_text("2026-11-22 08:00:00 UTC\n")
    assert "graded 1 submission of" in term("attncourse grade")
    assert unread() == {"bob", "kim"}
    before = points()["kim"]
    with nbgrader_api.gradebook() as book:
        grade = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "kim")
        grade.manual_score, grade.needs_manual_grade = 4, False
        book.db.commit()
    assert points()["kim"] == pytest.approx(before + 0.8 * 4)  # without another run
    assert "4 had not changed" in attncourse("grade", CHAPTER_3, "--students", "ann,zoe,wei,kim")
    assert unread() == {"bob"}
    # the page's anna and ben are no students of ours
    assert "nothing of anna, ben is in submitted/" in term("attncourse grade", code=2)

    # feedback, points, and the total
    assert "5 pages" in term("attncourse feedback")
    for student in scores:
        tab.open(Path("feedback", student, CHAPTER_3, f"{CHAPTER_3}.html"), width=390)
        assert tab.run("return document.documentElement.scrollWidth") <= 390, student
        wrong = tab.run("return [...document.querySelectorAll('table')][0].innerText")
        assert not re.search(r"[A-Z]-[A-Z]+-", wrong), wrong
    roster = [f"Student,ID,SIS Login ID,Section,{CHAPTER_3} (7)"]
    roster += [f'"{last}, {first}",{n},{s},A,' for s, (first, last, n) in PEOPLE.items()]
    Path("canvas.csv").write_text("\n".join([*roster, ""]), encoding="utf-8")
    term("attncourse export")
    with open("filled.csv", encoding="utf-8", newline="") as file:
        filled = {row["SIS Login ID"]: row[f"{CHAPTER_3} (7)"] for row in csv.DictReader(file)}
    now = points()
    assert filled == {
        s: f"{now[s]:.2f}".rstrip("0").rstrip(".") if s in now else "" for s in PEOPLE
    }
    term("attncourse total")
    with open("total.csv", encoding="utf-8-sig", newline="") as file:
        totals = {row["student"]: float(row["percent"]) for row in csv.DictReader(file)}
    assert totals == {s: round(100 * now.get(s, 0) / 64, 2) for s in PEOPLE}
    assert all("pip install" in line or "--cluster" in line for line in term.left), term.left
