"""What is read of a task: beside its code, in more than one language, and never half a sentence."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from attncourse import check
from attncourse.checks import lint, prose, registry
from attncourse.checks.task import answer_of

TASKS = list(registry.all_tasks())


@pytest.mark.parametrize("task", TASKS)
def test_everything_that_is_read_of_a_task_is_there_and_whole(task):
    assert list(prose.problems(registry.find(task))) == []


def test_every_file_of_words_belongs_to_a_task_or_is_shared():
    shared = {"thoughts", "receipts", "sinusoids"}
    for path in (ROOT / "attncourse" / "tasks").rglob("*.md"):
        name = path.name.split(".")[0]
        assert name in {*TASKS, *shared} or name.startswith("_"), path


def test_what_is_shared_is_used():
    used = {id for t in TASKS for f in registry.find(t).faults.values() for id in (f.id, f.words)}
    for path in (ROOT / "attncourse" / "tasks").rglob("*.md"):
        if path.stem in ("thoughts", "receipts") or path.stem.startswith("_"):
            assert prose.read(path).thoughts.keys() <= used, path


def texts_of_failures():
    """Where each is, and its last words as they stand in the code."""
    for path in (ROOT / "attncourse").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "func", None)
            if isinstance(node, ast.Call) and getattr(name, "id", "") == "Failure" and node.args:
                text = node.args[0]
                last = text.values[-1] if isinstance(text, ast.JoinedStr) else text
                if isinstance(last, ast.Constant) and isinstance(last.value, str):
                    yield f"{path.name}:{node.lineno}", last.value


@pytest.mark.slow
def test_no_message_of_a_check_breaks_off():
    found = dict(texts_of_failures())
    assert len(found) > 250
    assert {place: text for place, text in found.items() if prose.is_cut(text)} == {}


@pytest.mark.slow
def test_nothing_is_read_before_it_is_shown():
    code = (
        "from attncourse.checks import prose, registry, run\n"
        "registry.all_tasks()\n"
        "grow = lambda x, dim: (x - x.amax(dim, keepdim=True)).exp()\n"
        "whole = lambda e, dim: e / e.sum(dim, keepdim=True)\n"
        "right = lambda scores, dim=-1: whole(grow(scores, dim), dim)\n"
        "assert run('softmax', right).passed\n"
        "print(prose.read.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


# --- a task of somebody's own

MODULE = """
import torch
from attncourse.author import task

@task(inputs=[{"x": torch.tensor([1., 2.])}, {"x": torch.tensor([[3., -1.]])}])
def double(x): return 2 * x

@double.fault("D-SAME")
def same(x): return x

@double.fault("D-SQUARE")
def square(x): return x * x
"""
WORDS = """# double

Twice each number.

## Hints

1. Which operation?
2. A product.
3. 2 · x, in
   Python's words.

## D-SAME

Nothing has to be done.

> Something has: each number
> is taken twice, also if 3 > 2.

## D-SQUARE

Twice and squared are one.

> For 2 they are.
"""


@pytest.fixture
def written(tmp_path):
    """Writes a task in a module, and its words beside it."""

    def write(words: str = WORDS, module: str = MODULE):
        prose.read.cache_clear()
        (tmp_path / "doubled.py").write_text(module, encoding="utf-8")
        (tmp_path / "double.md").write_text(words, encoding="utf-8")
        (found,) = registry.in_file(tmp_path / "doubled.py")
        return found

    yield write
    prose.read.cache_clear()


def test_a_teacher_writes_plain_markdown(written):
    task = written()
    assert task.hints[2] == "2 · x, in Python's words."
    assert prose.sentence(task) == "Twice each number."
    same = task.faults["D-SAME"]
    assert same.thinks == "Nothing has to be done."
    assert same.why == "Something has: each number is taken twice, also if 3 > 2."
    assert list(lint.complaints(task)) == []


def test_a_change_of_line_ends_changes_no_word(written, tmp_path):
    plain = written()
    before = plain.hints, plain.faults["D-SAME"].why
    (tmp_path / "double.md").write_bytes(WORDS.replace("\n", "\r\n").encode())
    prose.read.cache_clear()
    assert (plain.hints, plain.faults["D-SAME"].why) == before


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("## D-SQUARE", "## D-CUBE", "double.md:19: double has no fault D-CUBE"),
        ("## D-SQUARE", "## D-CUBE", "double.md: D-SQUARE does not say what the student thinks"),
        ("3. 2 · x, in\n   Python's words.\n", "", "double.md: give three different hints"),
        ("2. A product.", "2. Which operation?", "double.md: give three different hints"),
        ("is taken twice, also if 3 > 2.", "is taken", "double.md:12: D-SAME ends in the middle"),
        ("Nothing has to be done.\n\n", "", "double.md: D-SAME does not say what the student"),
        ("> For 2 they are.\n", "", "double.md: D-SQUARE does not say why that is wrong"),
        ("Nothing has", "Nothing.\n\nNothing has", "double.md:12: D-SAME has more than one para"),
        ("## D-SQUARE", "## D-SAME", "double.md:19: D-SAME is there twice"),
    ],
)
def test_what_is_wrong_with_the_words_is_said_with_file_and_line(written, before, after, said):
    assert before in WORDS
    found = "\n".join(lint.complaints(written(WORDS.replace(before, after))))
    assert said in found


def test_a_fault_that_nobody_has_coded_is_named(written):
    module = MODULE[: MODULE.index('@double.fault("D-SQUARE")')]
    (said,) = lint.complaints(written(module=module))
    assert "double.md:19: double has no fault D-SQUARE" in said


def test_the_module_may_say_it_itself(written):
    module = MODULE.replace('"D-SAME"', '"D-SAME", "I think so.", "It is not."')
    fault = written(module=module).faults["D-SAME"]
    assert (fault.thinks, fault.why) == ("I think so.", "It is not.")


# --- languages


def test_a_translation_is_shown_sentence_by_sentence(written, tmp_path, monkeypatch):
    task = written()
    chinese = "# double\n\n## D-SAME\n\n什么都不用做。\n"
    (tmp_path / "double.zh.md").write_text(chinese, encoding="utf-8")
    same = task.faults["D-SAME"]
    english = same.thinks, same.why
    with prose.speaking("zh"):
        assert same.thinks == "什么都不用做。"
        assert same.why == english[1] and len(task.hints) == 3
    assert (same.thinks, same.why) == english
    monkeypatch.setenv("ATTNCOURSE_LANG", "zh")
    assert same.thinks == "什么都不用做。"
    with prose.speaking("en"):
        assert same.thinks == english[0]
    monkeypatch.setenv("ATTNCOURSE_LANG", "nothing-like-it")
    assert same.thinks == english[0]


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"## D-SAME\n\n\xff")]
)
def test_a_file_of_words_that_is_gone_or_damaged_takes_no_judgment_away(damage, written, tmp_path):
    task = written()
    damage(tmp_path / "double.md")
    prose.read.cache_clear()
    assert task.faults["D-SAME"].thinks == "" and task.hints == ()
    assert "double.md" in "\n".join(prose.problems(task))


def test_a_translation_of_nothing_is_named(written, tmp_path):
    task = written()
    (tmp_path / "double.zh.md").write_text("## D-GONE\n\n没有。\n", encoding="utf-8")
    (said,) = lint.complaints(task)
    assert "double.zh.md:1: double has no fault D-GONE" in said


def test_check_takes_a_language(tmp_path, monkeypatch, capsys):
    own = prose.TASKS / "scaled_dot_product" / "softmax.md"
    copy = tmp_path / "softmax.md"
    copy.write_text(own.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "softmax.zh.md").write_text(
        "## D-SOFTMAX-MINUS\n\n指数带负号。\n", encoding="utf-8"
    )
    monkeypatch.setattr(prose, "files_of", lambda task: [copy])

    task = registry.find("softmax")
    softmax = answer_of(task, task.faults["D-SOFTMAX-MINUS"].forms[0])
    check(softmax, "softmax", language="zh")
    assert "指数带负号。" in capsys.readouterr().out
    check(softmax, "softmax")
    assert "The exponent carries a minus sign" in capsys.readouterr().out


def test_a_description_has_a_sentence_for_every_task():
    from attncourse.checks import generic

    for name in TASKS:
        for each in generic.of(registry.find(name)):
            assert "as if" in each.why and "{" not in each.why
