"""Other doors to the same judge: pytest, `attncourse check` on a script, and `--watch`."""

import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import warm
import yaml

from attncourse.checks import answer_files, registry, run

RIGHT = """
import torch

def softmax(scores, dim=-1):
    e = (scores - scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)
"""
WRONG = (
    RIGHT
    + """

def scaled_dot_product_attention(query, key, value, mask=None):
    weights = (query @ key.mT).softmax(-1)
    return weights @ value, weights
"""
)


def judge(folder, name):
    options = ["--pyargs", "attncourse.checks", "-p", "no:cacheprovider", "--answers", name]
    return warm.run("pytest", *options, cwd=folder)


@pytest.mark.slow
def test_pytest_gives_the_judge_s_verdicts_and_points(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a report names the built page beside it, if there is one
    (tmp_path / "mine.py").write_text(WRONG)
    code, out, _ = judge(tmp_path, "mine.py")
    assert code == 1
    found = answer_files.load(tmp_path / "mine.py")
    reports = [run(task, found.get(task)) for task in answer_files.of_chapters(found)]
    passed = sum(result.passed for report in reports for result in report.results)
    assert f"{passed} passed" in out
    points = sum(report.points for report in reports)
    assert f"{sum(report.earned for report in reports):g} of {points:g} points" in out
    for report in reports:
        assert report.passed or str(report) in out


@pytest.mark.slow
def test_pytest_passes_a_right_answer_check_by_check(tmp_path):
    (tmp_path / "mine.py").write_text(RIGHT)
    _, out, _ = judge(tmp_path, "mine.py")
    failed = re.findall(r"^FAILED (\w+)::", out, re.MULTILINE)
    assert "softmax" not in failed and "hidden_scale" in failed


@pytest.mark.slow
def test_pytest_says_what_is_wrong_with_the_file(tmp_path):
    (tmp_path / "broken.py").write_text("def softmax(:")
    for name, said in (("none.py", "there is no script or notebook"), ("broken.py", "SyntaxError")):
        code, out, err = judge(tmp_path, name)
        assert code == pytest.ExitCode.USAGE_ERROR and said in out + err


def test_a_notebook_gives_its_definitions_and_trains_nothing(tmp_path):
    cells = [
        "%pip list\nimport torch",
        RIGHT + "\ncheck('softmax')",
        "for step in range(10**12):\n    pass",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbformat.write(notebook, tmp_path / "mine.ipynb")
    found = answer_files.load(tmp_path / "mine.ipynb")
    assert list(found) == ["softmax"] and run("softmax", found["softmax"]).passed


@pytest.mark.slow
@pytest.mark.parametrize("assignment", sorted(p.name for p in Path("solutions").glob("[0l]*")))
def test_notebook_and_pytest_agree_on_the_solutions(root, assignment):
    path = root / "solutions" / assignment / f"{assignment}.ipynb"
    found = answer_files.load(path)
    tasks = [t for t in registry.all_tasks().values() if t.assignment == assignment]
    assert list(found) == [task.name for task in tasks]
    for name, answer in found.items():
        assert run(name, answer).passed, name


@pytest.mark.slow
def test_a_script_is_judged_in_the_terminal(tmp_path):
    (tmp_path / "mine.py").write_text(WRONG)
    code, out, _ = warm.run("attncourse", "check", "mine.py", cwd=tmp_path)
    assert code == 1 and "✓ softmax: 6 of 6 points" in out and "1 of 4 tasks" in out
    (tmp_path / "empty.py").write_text("x = 1")
    code, _, err = warm.run("attncourse", "check", "empty.py", cwd=tmp_path)
    assert code == 2 and "defines no answer" in err


@pytest.mark.slow
def test_watching_judges_again_at_every_save(tmp_path):
    mine, log = tmp_path / "mine.py", tmp_path / "log"
    mine.write_text("def softmax(scores, dim=-1):\n    while True:\n        pass\n")
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "attncourse", "check", "--watch", "mine.py"],
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            time.sleep(6)
            for text, said in ((RIGHT, "✓ softmax: 6 of 6"), (WRONG, "✗ scaled_dot_product")):
                mine.write_text(text)
                end = time.monotonic() + 90
                while said not in log.read_text():
                    assert time.monotonic() < end and process.poll() is None, log.read_text()
                    time.sleep(0.3)
            assert "Next: " in log.read_text() or time.sleep(5) or "Next: " in log.read_text()
        finally:
            process.terminate()
            process.wait(20)


def test_the_classroom_workflow_is_valid_and_runs_the_documented_command(root):
    page = (root / "book" / "anywhere.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    steps = workflow["jobs"]["judge"]["steps"]
    assert steps[-1]["run"] in re.search(r"```sh\npytest(.*?)```", page, re.DOTALL)[0]
