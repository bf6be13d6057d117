"""Installed anywhere: with few packages, on other systems, in odd folders, behind odd pipes.

Other systems are simulated on the one that the tests run on. What is only simulated is said in the
names of these tests and in the book's page "Judge your answers anywhere".
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import typer
import yaml
from packaging.requirements import Requirement
from typer.testing import CliRunner

import attncourse
from attncourse import cli, extras, terminal
from attncourse.grading.jail import job
from attncourse.grading.outbox import new_course

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "attncourse"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
RIGHT = """import torch

def softmax(scores, dim=-1):
    e = (scores - scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)
"""
WRONG = "import torch\n\ndef softmax(scores, dim=-1):\n    return scores.sigmoid()\n"


def required(*chosen: str) -> list[str]:
    """What pyproject.toml asks for, with the extras that an extra names."""
    found = [] if chosen else list(PROJECT["dependencies"])
    for extra in chosen:
        for each in EXTRAS[extra]:
            names = re.fullmatch(r"attncourse\[(.+)\]", each)
            found += required(*names[1].split(",")) if names else [each]
    return found


def distributions(*wanted: str) -> dict[str, metadata.Distribution]:
    """Packages, and what they require, of those that are installed here."""
    todo, found = [Requirement(each) for each in wanted], {}
    seen = set()
    while todo:
        each = todo.pop()
        name = re.sub(r"[-_.]+", "-", each.name).lower()
        if (name, *each.extras) in seen:
            continue
        seen.add((name, *each.extras))
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for other in map(Requirement, found[name].requires or ()):
            marks = ({"extra": extra} for extra in ("", *each.extras))
            if other.marker is None or any(map(other.marker.evaluate, marks)):
                todo.append(other)
    return found


@pytest.fixture(scope="module")
def students(tmp_path_factory) -> Path:
    """Python of an environment in which nothing is installed but the course without extras."""
    folder = tmp_path_factory.mktemp("student")
    venv.create(folder, symlinks=True)
    (place,) = folder.glob("lib/*/site-packages")
    for each in distributions(*required()).values():
        for top in {file.parts[0] for file in each.files} - {"..", "__pycache__"}:
            source = Path(each.locate_file(top))
            if source.exists() and not (place / top).exists():
                (place / top).symlink_to(source)
    (place / "course.pth").write_text(str(ROOT))
    return folder / "bin" / "python"


def run(python, *arguments, cwd, before="", **environment):
    """What `attncourse …` does, after some lines of Python."""
    main = "from attncourse.__main__ import main; main()"
    code = f"import sys\n{before}\nsys.argv = ['attncourse', *sys.argv[1:]]\n{main}"
    plain = {"PATH": "/usr/bin:/bin", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "HOME": str(cwd)}
    wanted = {k: v for k, v in (plain | environment).items() if v is not None}
    command = [python, "-P", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=wanted, capture_output=True, timeout=120)
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    return done.returncode, done.stdout.decode(encoding), done.stderr.decode(encoding, "replace")


SEVERAL = """
import json, sys
from typer.testing import CliRunner
from attncourse import cli

def did(line):
    done = CliRunner().invoke(cli.app, line.split())
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr

print(json.dumps([did(line) for line in json.loads(sys.argv[1])]))
"""


def run_several(python, *lines, cwd, before=""):
    """The same of several commands, in one process that has loaded torch once."""
    plain = {"PATH": "/usr/bin:/bin", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "HOME": str(cwd)}
    command = [python, "-P", "-c", f"import sys\n{before}{SEVERAL}", json.dumps(lines)]
    done = subprocess.run(command, cwd=cwd, env=plain, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, json.loads(done.stdout.splitlines()[-1]), strict=True))


# --- few packages -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_student_who_installs_no_extra_is_judged_hinted_and_may_write_a_task(students, tmp_path):
    (tmp_path / "mine.py").write_text(WRONG)
    lint = "lint-task entropy_lab/entropy_lab.py"
    lines = ("check mine.py", "hint softmax", "tasks", "new-task entropy", lint, "doctor")
    done = run_several(students, *lines, cwd=tmp_path)
    assert {line: code for line, (code, _, _) in done.items() if code} == {"check mine.py": 1}
    assert "D-SOFTMAX-SIGMOID" in done["check mine.py"][1]
    assert "exact_match_by_length" in done["tasks"][1] and "all told apart" in done[lint][1]
    assert f"→ {extras.cure('notebook')}" in done["doctor"][1] and "✗" not in done["doctor"][1]


@pytest.mark.slow
def test_what_an_extra_is_needed_for_says_which(students, tmp_path):
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "mine.ipynb")
    (tmp_path / "mine.py").write_text(RIGHT)
    wanted = {
        "check mine.ipynb": "notebook",
        "check --watch mine.ipynb": "notebook",
        "check --watch mine.py": "notebook",
        "grade": "grader",
        "release": "grader",
        "new-course mine": "grader",
        "inspect mine.py": "grader",
    }
    for line, (code, out, err) in run_several(students, *wanted, cwd=tmp_path).items():
        assert code == 2 and out == "" and extras.cure(wanted[line]) in err
        assert len(err.strip().splitlines()) == 1, err


@pytest.mark.slow
def test_a_picture_and_a_number_s_name_say_which_extra_they_need(students, tmp_path):
    for line in (
        "import attncourse.plots",
        "from attncourse import number_words as n; n.words(9, 'en')",
    ):
        done = subprocess.run([students, "-c", line], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1 and extras.cure("notebook") in done.stderr.splitlines()[-1]


def test_what_is_missing_inside_a_package_that_is_there_is_no_missing_extra(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import nowhere_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        extras.load("notebook", "half_there")
    with pytest.raises(extras.Missing, match="needs nowhere_at_all; get it with `pip install"):
        extras.load("notebook", "nowhere_at_all.inner")


# What a room may load, besides what everybody installs.
OF_ROOM = {"grading": "grader", "pytest_plugin": "pytest"}


def _imports(path: Path) -> set[tuple[str, bool]]:
    """Packages that a file imports, and whether as soon as it is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.Lambda)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        else:
            continue
        found |= {(name.partition(".")[0], id(node) not in late) for name in names}
    given = {*sys.stdlib_module_names, "attncourse", "google"}  # the last one is Colab's own
    return {each for each in found if each[0] not in given}


@pytest.mark.slow
def test_every_package_that_a_module_loads_is_one_that_the_project_asks_for():
    everybody = {Requirement(each).name for each in required()}
    anybody = set(distributions(*required(), *required(*EXTRAS)))
    more = {room: set(distributions(*required(extra))) for room, extra in OF_ROOM.items()}
    known = metadata.packages_distributions()
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        with_room = everybody | more.get(room, set())
        for package, at_once in _imports(path):
            owners = {
                re.sub(r"[-_.]+", "-", name).lower() for name in known.get(package, [package])
            }
            if not owners & (with_room if at_once else anybody):
                wrong.append(f"{path.relative_to(ROOT)}: {package}")
    assert not wrong


def test_every_requirement_has_a_pin():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = {re.split(r"==|\[", line)[0] for line in lines if line and line[0] not in " #"}
    wanted = {Requirement(each).name for each in [*required(), *required(*EXTRAS)]}
    assert not {re.sub(r"[-_.]+", "-", name).lower() for name in wanted} - pins


# --- Windows, simulated -------------------------------------------------------------------------


def test_ends_of_lines_change_no_version_and_no_key(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    import fresh_pages

    for name in ("attncourse", "crlf"):
        shutil.copytree(PACKAGE / "grading", tmp_path / name / "attncourse" / "grading")
        (tmp_path / name / "requirements.txt").write_bytes(b"torch==2.13.0\n")
    for path in (tmp_path / "crlf").rglob("*.[pt]*"):
        if path.is_file() and path.suffix in (".py", ".txt"):
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    versions = set()
    for name in ("attncourse", "crlf"):
        monkeypatch.setattr(job.attncourse, "__file__", f"{tmp_path}/{name}/attncourse/__init__.py")
        versions.add(job.version.__wrapped__())
    assert len(versions) == 1
    hashes = {fresh_pages.package_hash(tmp_path / name) for name in ("attncourse", "crlf")}
    assert len(hashes) == 1


def test_git_gives_every_machine_the_same_ends_of_lines():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if names.returncode:
        pytest.skip("this is no clone")
    paths = [
        name for name in names.stdout.split("\0") if Path(name).suffix in (".py", ".md", ".j2")
    ]
    asked = ["git", "check-attr", "--stdin", "-z", "eol"]
    done = subprocess.run(
        asked, cwd=ROOT, input="\0".join(paths) + "\0", capture_output=True, text=True
    )
    assert set(done.stdout.split("\0")[2::3]) == {"lf"}


# What Windows lacks is hidden once that is loaded which asks for it only elsewhere.
WINDOWS = """
import asyncio, os, signal, subprocess, tempfile
import nbgrader.apps, nbformat, rich.console, sqlalchemy, torch, typer
LACKING = ("fcntl", "resource", "pwd", "grp", "termios")
for name in LACKING:
    sys.modules[name] = None
for name in ("fork", "getuid", "geteuid", "memfd_create", "setsid"):
    delattr(os, name)
for name in ("SIGALRM", "SIGKILL", "SIGCHLD"):
    delattr(signal, name)
sys.platform = "win32"
"""


@pytest.mark.slow
def test_on_a_simulated_windows_answers_are_judged_and_a_class_is_sent_to_wsl(course):
    (course / "mine.py").write_text(WRONG)
    here = ("tasks", "hint softmax", "doctor", "lint-task softmax", "release 06_masking")
    there = ("ingest mine.py", "grade", "report", "feedback", "total",
             "export --format canvas --roster x --output y")  # fmt: skip
    lines = ("check mine.py", *here, *there)
    done = run_several(sys.executable, *lines, cwd=course, before=WINDOWS)
    assert done["check mine.py"][0] == 1 and "D-SOFTMAX-SIGMOID" in done["check mine.py"][1]
    assert all(done[line][0] == 0 for line in here), done
    for line in there:
        code, out, err = done[line]
        assert code == 2 and out == "" and "WSL" in err
        assert len(err.strip().splitlines()) == 1, err


# --- pipes, homes and folders -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "surroundings",
    [
        {"PYTHONIOENCODING": "cp1252"},  # what Windows gives to `| more` and `> file`
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"HOME": None},
        {"HOME": "/dev/null/nobody"},  # can neither be read nor written
    ],
    ids=["cp1252", "LC_ALL=C", "no HOME", "no such HOME"],
)
def test_a_report_is_written_whatever_the_surroundings(tmp_path, surroundings):
    place = tmp_path / "ein Ordner mit Ü, 注意 und Leerzeichen"
    place.mkdir()
    (place / "meine Lösung.py").write_text(WRONG, encoding="utf-8")
    code, out, err = run(
        sys.executable, "check", place / "meine Lösung.py", cwd=place, **surroundings
    )
    assert code == 1 and "D-SOFTMAX-SIGMOID" in out and "Traceback" not in err, err
    marks = "✗✓" if surroundings.keys() == {"HOME"} else "x+"
    assert f"{marks[0]} softmax:" in out and f"  {marks[1]} one weight" in out


@pytest.mark.slow
def test_check_in_a_script_writes_its_report_into_any_pipe(tmp_path):
    (tmp_path / "mine.py").write_text(WRONG + "\nimport attncourse\nattncourse.check(softmax)\n")
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 0 and b"x softmax:" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_notebook_is_checked_where_the_home_folder_cannot_be_written(tmp_path):
    cells = [RIGHT, "from attncourse import check\ncheck(softmax)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbformat.write(notebook, tmp_path / "mein Heft ü.ipynb")
    nobody = {"HOME": "/dev/null/nobody", "IPYTHONDIR": None}
    code, out, err = run(sys.executable, "check", "mein Heft ü.ipynb", cwd=tmp_path, **nobody)
    assert code == 0 and "✓ softmax: 6 of 6 points" in out, err


def test_letters_that_a_pipe_lacks_are_written_in_those_that_it_has():
    class Pipe:
        encoding = "ascii"

    assert terminal.fitting("✓ a − b → ∞ é", Pipe()) == "+ a - b -> inf ?"
    assert terminal.fitting("✓ é", object()) == "✓ é"


# --- a teacher starts from what is installed ----------------------------------------------------


def texts(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_new_course_has_all_that_its_commands_need_and_no_student_s_work(tmp_path, monkeypatch):
    done = CliRunner().invoke(cli.app, ["new-course", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    made = texts(tmp_path / "mine")
    for folder in ("solutions", "exercises"):
        for path in (ROOT / folder).glob("*/*.ipynb"):
            notebook = made[path.relative_to(ROOT).as_posix()].decode()
            assert "Open in Colab" not in notebook and "../../book/" not in notebook
            cells = nbformat.reads(notebook, as_version=4).cells
            for cell, ours in zip(cells, nbformat.read(path, as_version=4).cells, strict=True):
                link = "[Open in Colab](" if folder == "exercises" else "](../../book/"
                assert cell == ours or link in ours.source
    readme = made["README.md"].decode()
    for command in set(re.findall(r"`attncourse ([a-z-]+)", readme)):
        assert command in typer.main.get_command(cli.app).commands
    commands = typer.main.get_command(cli.app).commands.values()
    options = {name for command in commands for each in command.params for name in each.opts}
    used = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", readme.partition("| when |")[2]))
    assert {"--dry-run", "--student", "--roster", "--column"} <= used <= options
    for name in {"NAME.new", *(name for name in made if "/" not in name)} - {"README.md"}:
        assert name in readme
    assert f"@v{attncourse.__version__}" in readme and "{" not in readme
    monkeypatch.chdir(tmp_path / "mine")
    subprocess.run(["git", "init", "--quiet"], check=True)
    private = ["submitted/a/b.ipynb", "autograded/a", "feedback/a", "gradebook.db", "roster.csv",
               "_build/report/06_masking.html", "06_masking-gradescope.zip"]  # fmt: skip
    asked = subprocess.run(["git", "check-ignore", *private], capture_output=True, text=True)
    assert asked.stdout.split() == private
    done = CliRunner().invoke(cli.app, ["release", "06_masking"])
    assert done.exit_code == 0, done.output
    assert (
        Path("exercises/06_masking/06_masking.ipynb").read_bytes()
        == made["exercises/06_masking/06_masking.ipynb"]
    )
    done = CliRunner().invoke(cli.app, ["new-course", "."])
    assert done.exit_code == 0 and done.output == f"{Path.cwd()}: {len(made) - 1} unchanged\n"


def test_a_newer_course_keeps_what_a_teacher_changed_and_says_which_files_differ(
    tmp_path, monkeypatch
):
    exercise = "exercises/x/x.ipynb"
    old = dict.fromkeys(("untouched", "theirs", "both", "removed", exercise, "same"), b"old")
    monkeypatch.setattr(new_course, "files", lambda: old)
    new_course.write_course(tmp_path / "mine")
    for name in ("theirs", "both", exercise):
        (tmp_path / "mine" / name).write_bytes(b"the teacher's")
    (tmp_path / "mine" / "removed").unlink()
    newer = old | {name: b"new" for name in ("untouched", "both", "removed", "added", exercise)}
    monkeypatch.setattr(new_course, "files", lambda: newer)
    monkeypatch.chdir(tmp_path / "mine")

    def again():
        done = CliRunner().invoke(cli.app, ["new-course", "."])
        counts, *said = done.output.splitlines()
        return done.exit_code, counts.removeprefix(f"{Path.cwd()}: "), said

    both = "both: changed by you and by the course; the course's is both.new"
    code, counts, said = again()
    assert code == 1 and counts == (
        "1 file written, 1 brought up to date, 1 unchanged, 1 changed by you, 1 deleted by you, "
        "2 changed by you and by the course"
    )
    assert said[0].startswith(both) and "`attncourse release x` makes it again" in said[1]
    now = texts(Path())
    assert now["untouched"] == now["added"] == now["both.new"] == b"new"
    assert now["theirs"] == now["both"] == b"the teacher's"
    assert not {"removed", f"{exercise}.new"} & now.keys()
    code, counts, said = again()  # until somebody has looked
    assert code == 1 and "2 changed by you, 1 deleted by you, 1 changed by you and by" in counts
    assert len(said) == 1 and said[0].startswith(both)
    Path("both.new").unlink()
    assert again() == (0, "3 unchanged, 3 changed by you, 1 deleted by you", [])


def test_a_new_course_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(new_course, "files", lambda: {name: b"text" for name in "abc"})
    kept = new_course.write

    def stops(path, data):
        if path.name == "b":
            raise KeyboardInterrupt
        kept(path, data)

    monkeypatch.setattr(new_course, "write", stops)
    with pytest.raises(KeyboardInterrupt):
        new_course.write_course(tmp_path / "mine")
    monkeypatch.setattr(new_course, "write", kept)
    done = new_course.write_course(tmp_path / "mine")
    assert done.new == ["b", "c"] and done.same == ["a"]


@pytest.mark.parametrize("there", ["a file", "another folder", "broken notes"])
def test_a_new_course_writes_over_nothing_of_others(tmp_path, there):
    place = tmp_path / "mine"
    if there == "a file":
        place.write_text("hello")
    else:
        place.mkdir()
        (place / ("x" if there == "another folder" else new_course.KEPT)).write_text("[1")
    before = place.read_text() if place.is_file() else texts(place)
    done = CliRunner().invoke(cli.app, ["new-course", str(place)])
    assert done.exit_code == 2
    assert before == (place.read_text() if place.is_file() else texts(place))


# --- published ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The wheel and the source archive, unpacked."""
    pytest.importorskip("build", reason="packages are built by: pip install build")
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    if listed.returncode:
        pytest.skip("this is no clone")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for kind, pattern in (("wheel", "*.whl"), ("sdist", "*.tar.gz")):
        (archive,) = folder.glob(pattern)
        found[kind] = folder / kind
        form = "zip" if kind == "wheel" else "gztar"
        shutil.unpack_archive(
            archive, found[kind], form, **({} if form == "zip" else {"filter": "data"})
        )
    return found


@pytest.mark.slow
def test_the_wheel_carries_a_course_and_all_of_the_package(built, tmp_path):
    wheel = built["wheel"]
    package = texts(wheel / "attncourse")
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(PACKAGE).as_posix() in package
    code = (
        "import attncourse; from pathlib import Path; from attncourse.grading.outbox import "
        "new_course as n; print(attncourse.__file__); n.write_course(Path('mine'))"
    )
    surroundings = os.environ | {"PYTHONPATH": str(wheel)}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0 and str(wheel) in done.stdout, done.stderr
    exercises = texts(tmp_path / "mine" / "exercises")
    assert exercises.keys() == texts(ROOT / "exercises").keys()


@pytest.mark.slow
def test_the_metadata_lead_somewhere_and_say_whose_it_is(built):
    (text,) = (path.read_text("utf-8") for path in built["wheel"].glob("*.dist-info/METADATA"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    head, _, body = text.partition("\n\n")
    assert f"Project-URL: Book, {config['html']['baseurl']}" in head
    assert f"Project-URL: Source, {config['repository']['url']}" in head
    assert f"Author: {config['author']}" in head and "Classifier: " in head
    links = re.findall(r"\]\(([^)]+)\)", body)
    assert links and all(link.startswith("https://") for link in links)


@pytest.mark.slow
def test_the_source_archive_has_its_tests_and_what_they_need(built):
    (source,) = built["sdist"].iterdir()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    missing = [
        name
        for name in listed.splitlines()
        if (ROOT / name).is_file() and not (source / name).exists()
    ]
    assert not missing


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_its_actions_and_has_no_rights_that_it_does_not_name(path):
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "Has not run yet" in text.partition("\nname:")[0]
    for part in workflow["jobs"].values():
        assert part["timeout-minutes"] <= 60
        for step in part["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
            for script in re.findall(r"python (tests/\S+\.py)", step.get("run", "")):
                assert (ROOT / script).exists(), script
    # beside each, the tag that the hash is of
    assert text.count("uses:") == len(
        re.findall(r"uses: \S+ # v\d+\.\d+\.\d+$", text, re.MULTILINE)
    )


def test_a_tag_is_released_with_its_own_section_of_the_changelog():
    def notes(tag):
        command = [sys.executable, ROOT / "tests" / "bench" / "release.py", tag]
        return subprocess.run(command, capture_output=True, text=True)

    done = notes(f"v{attncourse.__version__}")
    assert done.returncode == 0 and done.stdout.strip() and "## [" not in done.stdout
    done = notes("v99.0.0")
    assert done.returncode != 0 and f"v{attncourse.__version__}" in done.stderr


def test_a_tag_here_names_the_version_of_what_it_tags():
    """The tag of a commit is that commit's version; there may be none."""
    done = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    tags = [tag for tag in done.stdout.split() if re.match(r"v\d", tag)]
    assert tags in ([], [f"v{attncourse.__version__}"])
