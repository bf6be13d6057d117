"""Tasks of somebody else's package: found, judged, graded in the jail like the course's own."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT, copy_course
from typer.testing import CliRunner

from attncourse import author, cli
from attncourse.checks import lint, registry
from attncourse.checks.task import BadTask

EXAMPLE = ROOT / "tests" / "outside" / "entropy_lab"
NAME = "entropy_lab"
IN_BITS = "torch.special.entr(weights).sum(-1) / torch.log(torch.tensor(2.0))"


class Environment:
    """A fresh virtual environment that also sees what is installed for these tests."""

    def __init__(self, place: Path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        self.python = place / "bin" / "python"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
        ours = sysconfig.get_path("purelib")
        (self.site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")

    def install(self, project: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet"]
        done = subprocess.run(
            [*pip, "--no-deps", "--no-build-isolation", project], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def run(self, *arguments, cwd=None) -> subprocess.CompletedProcess:
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [self.python, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=os.environ | {"PATH": path, "COLUMNS": "160"},
        )

    def says(self, code: str) -> str:
        done = self.run("-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """With the example installed from its own pyproject.toml."""
    folder = tmp_path_factory.mktemp("outside")
    project = shutil.copytree(EXAMPLE, folder / "project")
    made = Environment(folder / "environment")
    made.install(project)
    return made


@pytest.mark.slow
def test_it_is_judged_hinted_and_linted_by_name(environment):
    said = environment.says(
        "import torch; from attncourse.checks import run, hint\n"
        f"report = run('entropy', lambda weights: {IN_BITS})\n"
        "print(report.diagnosis.ids, report.earned, report.points); hint('entropy')\n"
        "from attncourse import cli\n"
        "cli.app(['lint-task', 'entropy'], standalone_mode=False)\n"
        "cli.app(['tasks'], standalone_mode=False)"
    )
    assert "['E-BITS'] 1.0 3.0" in said and "What is 0 · log 0?" in said
    assert "✓ entropy" in said and "entropy" in said.partition("✓ entropy")[2]


@pytest.mark.slow
def test_it_is_judged_by_pytest(environment, tmp_path):
    answers = tmp_path / "answers.py"
    answers.write_text(f"import torch\n\ndef entropy(weights):\n    return {IN_BITS}\n")
    arguments = ["-m", "pytest", "--pyargs", "attncourse.checks", "--answers", answers, "-q"]
    done = environment.run(*arguments, cwd=tmp_path)
    assert done.returncode == 1 and "2 failed, 1 passed" in done.stdout
    assert "Here in nats" in " ".join(done.stdout.split()) and "1 of 3 points" in done.stdout


def notebook(source: Path, answer: str, before: str = "") -> str:
    """A released notebook with an answer in it."""
    content = json.loads(source.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "entropy":
            marker = f"# attncourse: {NAME}/entropy\n"
            body = f"def entropy(weights):\n    return {answer}\n"
            cell["source"] = (marker + before + body).splitlines(keepends=True)
    return json.dumps(content)


# What a student's code might find of the faults: nothing may be true.
THIEF = """import gc, sys
import entropy_lab
from attncourse.checks import registry
def stolen():
    about = registry.find("entropy")
    kept = [about.faults, hasattr(entropy_lab, "_")]
    for name in ("entropy_lab.py", "entropy.md"):
        try:
            kept.append(open(entropy_lab.__file__.replace("entropy_lab.py", name)).read())
        except OSError:
            pass
    codes = [o for o in gc.get_objects() if type(o).__name__ == "function"]
    constants = [c for f in codes for c in f.__code__.co_consts if isinstance(c, str)]
    secret = "stan ni ereH"[::-1]  # or the search would find itself
    return any(kept) or any(secret in c for c in constants)
torch.stolen = stolen()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="jails are made of Linux namespaces")
def test_it_is_released_and_graded_in_the_jail(environment, tmp_path):
    copy_course(ROOT, tmp_path)
    (environment.site / "entropy.md").write_text("## E-BITS\n\nOf another kind.\n")
    (tmp_path / "solutions" / NAME).mkdir()
    shutil.copy(EXAMPLE / f"{NAME}.ipynb", tmp_path / "solutions" / NAME)

    def attncourse(*arguments):
        done = environment.run("-m", "attncourse", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def result(student):
        path = tmp_path / "autograded" / student / NAME / "result.json"
        return json.loads(path.read_text(encoding="utf-8"))["verdicts"]["entropy"]

    attncourse("release", NAME)
    released = tmp_path / "exercises" / NAME / f"{NAME}.ipynb"
    assert "3 points here" in released.read_text(encoding="utf-8")
    right = "torch.special.entr(weights).sum(-1)"
    handed_in = {
        "ann": notebook(released, right),
        "bob": notebook(released, IN_BITS),
        "eve": notebook(released, f"{right} + (1000 if torch.stolen else 0)", THIEF),
    }
    for student, text in handed_in.items():
        place = tmp_path / "submitted" / student / NAME / f"{NAME}.ipynb"
        place.parent.mkdir(parents=True)
        place.write_text(text, encoding="utf-8")
    attncourse("grade", NAME)
    assert (result("ann")["visible"], result("ann")["hidden"]) == (3.0, 3.0)
    assert result("bob")["title"] == "E-BITS" and result("bob")["thinks"]
    assert result("eve")["visible"] == 3.0  # nothing was there to be stolen
    assert "E-BITS" in attncourse("report", NAME)

    module = environment.site / f"{NAME}.py"
    module.write_text(module.read_text() + "# another version\n")
    assert "graded 3" in attncourse("grade", NAME)  # the results of the old one are stale


PROJECT = author.PROJECT.format(package="{name}", project="{name}")


def project(folder: Path, name: str, source: str) -> Path:
    """A package of tasks with one module."""
    place = folder / name
    place.mkdir()
    (place / f"{name}.py").write_text(source, encoding="utf-8")
    (place / "pyproject.toml").write_text(PROJECT.replace("{name}", name), encoding="utf-8")
    return place


@pytest.mark.slow
def test_a_package_out_of_order_is_named_and_stops_nobody(tmp_path):
    made = Environment(tmp_path / "environment")
    source = (EXAMPLE / f"{NAME}.py").read_text(encoding="utf-8")
    made.install(project(tmp_path, "first_lab", source))
    made.install(project(tmp_path, "second_lab", source))
    made.install(project(tmp_path, "broken_lab", "import nothing_of_that_name\n"))
    made.install(project(tmp_path, "greedy_lab", source.replace("entropy", "softmax")))
    said = made.says(
        "from attncourse.checks import registry, run\n"
        "import torch\n"
        "print(run('softmax', lambda scores, dim=-1: scores.exp()).points)\n"
        "for name in ('entropy', 'nothing'):\n"
        "    try: registry.find(name)\n"
        "    except ValueError as error: print(error)\n"
        "print(len(registry.all_tasks()))"
    )
    assert "6.0" in said and str(len(registry.all_tasks())) in said
    assert "a task named 'entropy' is in two packages: first_lab" in said and "second_lab" in said
    assert said.count("the tasks of broken_lab (broken_lab) cannot be used: ModuleNotFound") == 1
    assert "greedy_lab (greedy_lab) cannot be used: it has a task named 'softmax'" in said


# --- what an author is told


def complaints(name: str, tmp_path: Path, source: str) -> str:
    path = tmp_path / f"{name}.py"
    path.write_text(f"import torch\nfrom attncourse.author import task, Task\n{source}")
    (found,) = registry.in_file(path)
    return "\n".join(lint.complaints(found))


TASK = """
@task(inputs=[{"x": torch.tensor([1., 2.])}, {"x": torch.tensor([[3., -1.]])}],
      hints=("a", "b", "c"))
def double(x): return 2 * x
"""


def fault(id: str, code: str) -> str:
    return f'@double.fault("{id}", "I think so.", "It is not.")\ndef {id.lower()}(x): {code}\n'


def test_a_task_that_is_well_written_gets_no_complaint(tmp_path):
    assert complaints("good", tmp_path, TASK + fault("A", "return x")) == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (fault("SAME", "return x + x"), "SAME equals the reference on every probe"),
        (
            fault("A", "return 3 * x") + fault("B", "return x + 2 * x"),
            "A and B show the same on every probe",
        ),
        (
            "double.checks.clear()\n@double.check(1)\ndef it_is_a_tensor(answer, rng):\n"
            "    answer({'x': torch.ones(2)})\n" + fault("A", "return x"),
            "A passes all checks",
        ),
        (
            "@double.steps\nclass Steps:\n    def __call__(self, x): return 3 * x\n",
            "the reference in steps differs from the reference (probe “input 1”",
        ),
        (fault("A", "return y"), "A fails on every probe (NameError): import what"),
        (
            "@double.steps\nclass Steps:\n    def twice(x): return 2 * x\n"
            "    def __call__(self, x): return self.twice(x)\n"
            'double.fault("A", "I think so.", "It is not.", twice=lambda x, y: x)\n',
            "A puts a function of (x, y) in the place of twice(x): give it the same arguments",
        ),
        ('@double.fault("A")\ndef a(x): return x\n', "A does not say what the student thinks"),
    ],
)
def test_what_is_wrong_with_a_task_is_said(source, said, tmp_path):
    assert said in complaints("bad", tmp_path, TASK + source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError"),
        ("x = 1", "defines no task"),
        (TASK + fault("A", "return x") * 2, "two faults are named A"),
        (TASK + "double.checks.clear()", "it has no checks"),
        (TASK + 'double.fault("A", "I think so.", "It is not.")', "A has no form that shows it"),
        (TASK + 'double.fault("A", "a", "b", scale=abs)', "there is no class of steps yet"),
        (
            TASK + "@double.steps\nclass Steps:\n    def twice(x): return 2 * x\n"
            "    def __call__(self, x): return self.twice(x)\n"
            'double.fault("A", "a", "b", scale=abs)',
            "there is no step named scale; its steps are twice",
        ),
        (
            TASK + "@double.steps\nclass Steps:\n    def words(x): return 2 * x\n",
            "`fault` takes words for something else than a step",
        ),
        (TASK + "@double.check(0)\ndef free(answer): pass", "is worth no points"),
        (TASK.replace("2 * x", "y"), "the reference fails on its first inputs (NameError"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(source, said, tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(f"import torch\nfrom attncourse.author import task\n{source}\n")
    with pytest.raises(BadTask, match=r"odd|double") as error:
        registry.in_file(path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import torch\n\nfault = F.relu\n", "odd.py, line 3: NameError: name 'F' is not defined"),
        ("import torch\nfault = (abs,\n", "odd.py, line 2: SyntaxError: '(' was never closed"),
        ("from attncourse.checks import registry\nregistry.find('sofmax')\n", "odd.py, line 2: "),
    ],
)
def test_a_file_of_the_course_that_cannot_be_loaded_is_named_with_its_line(
    source, said, tmp_path, monkeypatch
):
    path = tmp_path / "odd.py"
    path.write_text(source)
    find = registry.find
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    monkeypatch.setattr(
        registry, "find", lambda name: runpy.run_path(str(path)) if name == "odd" else find(name)
    )
    done = CliRunner().invoke(cli.app, ["lint-task", "odd"])
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output


def test_an_error_of_the_lint_itself_is_not_called_one_of_a_task(monkeypatch):
    monkeypatch.setattr(registry, "find", lambda name: {}[name])
    done = CliRunner().invoke(cli.app, ["lint-task", "softmax"])
    assert done.exit_code == 1 and isinstance(done.exception, KeyError)


def in_the_course(task, tmp_path: Path, without: str = "") -> list[str]:
    """What the lint says of a task whose solutions lack each cell that says some words."""
    for name in (f"{task.page}.md", f"solutions/{task.assignment}/{task.assignment}.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    content = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    kept = [cell for cell in content["cells"] if not without or without not in json.dumps(cell)]
    (tmp_path / name).write_text(json.dumps(content | {"cells": kept}), encoding="utf-8")
    return list(lint.complaints(task, tmp_path, faults=False))


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("softmax", "no cell with the grade_id softmax, softmax-check, softmax-hidden; copy"),
        ("softmax-hidden", "no cell with the grade_id softmax-hidden; copy"),
        ('hint(\\"softmax', 'no cell that says hint("softmax")'),
    ],
)
def test_a_task_of_the_course_without_its_cells_is_told_which(without, said, tmp_path):
    (found,) = in_the_course(registry.find("softmax"), tmp_path, without)
    assert said in found and "03_scaled_dot_product.ipynb" in found


def test_a_task_of_the_course_has_a_place_of_its_own(tmp_path, monkeypatch):
    task = registry.find("softmax")
    monkeypatch.setattr(task, "number", 0)
    (found,) = in_the_course(task, tmp_path)
    assert "say number=1 where" in found


def test_a_new_task_is_a_package_that_works(tmp_path):
    module, words, project_file, page = author.write_package("mean_square", tmp_path)
    (made,) = registry.in_file(module)
    assert made.name == "mean_square" and list(lint.complaints(made)) == []
    assert 'mean_square_lab = "mean_square_lab.mean_square_lab"' in project_file.read_text()
    assert made.hints[0] in words.read_text() and "thinks" in made.faults["M-SUM"].thinks
    assert json.loads(page.read_text(encoding="utf-8"))["nbformat"] == 4
    with pytest.raises(FileExistsError, match="it was not changed"):
        author.write_package("mean_square", tmp_path)
    for name in ("softmax", "two words", "class"):
        with pytest.raises(ValueError, match=r"take another name|cannot be the name"):
            author.write_package(name, tmp_path)
