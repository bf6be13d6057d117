"""What the command `attncourse` prints, and what it says to bad input."""

import subprocess
import sys
from importlib import metadata

import nbformat
import pytest
import warm
from conftest import points_of
from typer.testing import CliRunner

from attncourse import cli
from attncourse.checks import prose, registry
from attncourse.grading import CannotGrade


def environment(home) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "COLUMNS": "100", "HOME": str(home or "/")}


def attncourse(*arguments, cwd=None):
    return warm.run("attncourse", *arguments, cwd=cwd, env=environment(cwd))


def test_help_lists_the_commands(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "attncourse", "--help"],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
    )
    out = done.stdout
    assert done.returncode == 0
    commands = "check tasks hint inspect release sample-class grade report feedback ingest export"
    for command in [*commands.split(), "doctor"]:
        assert command in out


@pytest.mark.slow
def test_tasks_are_listed_with_their_points():
    code, out, _ = attncourse("tasks")
    assert code == 0
    for name in registry.all_tasks():
        assert name in out


def test_tasks_are_listed_with_the_points_that_the_report_counts(course):
    _, points = points_of("03_scaled_dot_product")
    for width in ("80", "200"):
        done = CliRunner().invoke(cli.app, ["tasks"], env={"COLUMNS": width})
        assert done.exit_code == 0 and f"03_scaled_dot_product: {points} points" in done.output
        lines = [line.split() for line in done.output.splitlines()]
        assert ["softmax", "6", "+", "6"] in [words[:4] for words in lines]
        assert ["why-scaled", "8", "written"] in lines
        assert all(any(name in words for words in lines) for name in registry.all_tasks())


def test_hints_come_one_at_a_time():
    hints = registry.find("softmax").hints
    code, out, _ = attncourse("hint", "softmax")
    assert code == 0 and hints[0][:40] in out and "attncourse hint softmax 2" in out
    code, out, _ = attncourse("hint", "softmax", 3)
    assert code == 0 and hints[2][:40] in out and hints[0][:40] not in out


def test_a_hint_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(prose, "hints", lambda task: ())
    done = CliRunner().invoke(cli.app, ["hint", "softmax"])
    assert done.exit_code == 2 and "softmax has no hint 1" in done.output


@pytest.mark.slow
def test_doctor_finds_this_environment_healthy(root):
    code, out, _ = attncourse("doctor", cwd=root)
    assert code == 0, out
    assert "torch" in out and "GPU" in out and "✗" not in out


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no jails")
def test_doctor_shows_no_tick_before_a_failure(monkeypatch):
    def fails(job, data):
        raise CannotGrade("its process made Python crash (SIGILL)")

    monkeypatch.setattr("attncourse.grading.jail.workers.in_own_process", fails)
    done = CliRunner().invoke(cli.app, ["doctor"])
    (line,) = (each for each in done.output.splitlines() if " jail " in each)
    assert done.exit_code == 1 and line.startswith("✗") and "SIGILL" in line


def test_doctor_says_what_to_install_so_that_it_can_be_copied(monkeypatch):
    kept = metadata.version

    def version(name):
        if name == "nbclient":
            raise metadata.PackageNotFoundError
        return kept(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr("attncourse.cli.doctor.jail_state", lambda: ("", "–", ""))
    done = CliRunner().invoke(cli.app, ["doctor"])
    assert "→ pip install 'attncourse[notebook]'" in done.output and done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hint", "sofmax"], "no task is named 'sofmax'; did you mean softmax?"),
        (["hint", "nothing"], "lists them all"),
        (["check", "none.ipynb"], "there is no file none.ipynb"),
        (["check", "text.txt"], "is not a notebook"),
        (["check", "broken.ipynb"], "its JSON is broken"),
        (["check", "list.ipynb"], "is not a valid notebook"),
        (["check", "empty.ipynb"], "its JSON is broken"),
        (["release"], "run this in the course's own folder"),
        (["report"], "run this in the course's own folder"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_2(arguments, said, tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "broken.ipynb").write_text('{"cells": [')
    (tmp_path / "list.ipynb").write_text("[1, 2]")
    (tmp_path / "empty.ipynb").write_text("")
    code, out, err = attncourse(*arguments, cwd=tmp_path)
    assert code == 2, (out, err)
    assert said in err and out == ""
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_an_unknown_assignment_is_refused(course):
    code, _, err = attncourse("report", "99_nothing", cwd=course)
    assert code == 2 and "there are: " in err and "03_scaled_dot_product" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["3", "03_scaled", "scaled", "03_scaled_dotproduct", "3_scaled_dot_product"]
)
def test_an_assignment_that_is_nearly_named_is_asked_for(course, name):
    code, _, err = attncourse("release", name, cwd=course)
    assert code == 2 and err.endswith(f"is named {name}; did you mean 03_scaled_dot_product?\n")


@pytest.mark.parametrize("arguments", [["hint", "softmax", "7"], ["nonsense"], ["check"]])
def test_usage_errors_exit_2(arguments):
    assert attncourse(*arguments)[0] == 2


@pytest.mark.slow
def test_check_runs_a_notebook_and_prints_its_reports(root, tmp_path, warm_kernels):
    assignment = "03_scaled_dot_product"
    solution = root / "solutions" / assignment / f"{assignment}.ipynb"
    code, out, _ = attncourse("check", solution, cwd=tmp_path)
    assert code == 0, out
    assert "✓ softmax: 6 of 6 points" in out

    content = nbformat.read(solution, as_version=4)
    for cell in content.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "softmax":
            cell.source = "def softmax(scores, dim=-1):\n    return scores.sigmoid()"
    mine = tmp_path / "mine.ipynb"
    nbformat.write(content, mine)
    before = mine.read_bytes()
    done = CliRunner().invoke(cli.app, ["check", str(mine)])
    assert done.exit_code == 1
    assert "D-SOFTMAX-SIGMOID" in done.stdout and "✓ hidden_scale" in done.stdout
    assert mine.read_bytes() == before


@pytest.mark.slow
def test_check_names_a_cell_that_raises(tmp_path):
    content = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("# my cell\n1 / 0"), nbformat.v4.new_code_cell("1 + 1")]
    )
    nbformat.write(content, tmp_path / "no_checks.ipynb")
    code, out, err = attncourse("check", "no_checks.ipynb", cwd=tmp_path)
    assert code == 2 and "has no check cells" in err
    assert "`# my cell` raised ZeroDivisionError" in out
