"""The house holds together: a chapter is one stem everywhere, and imports go one way."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from changed import chosen

import attncourse
from attncourse import cli
from attncourse.checks import registry

ROOT = Path(__file__).parent.parent
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
COMMANDS = typer.main.get_command(cli.app).commands
ASSIGNMENTS = {stem: chapter.assignment for stem, chapter in registry.chapters().items()}
CHAPTERS = {stem: name for stem, name in ASSIGNMENTS.items() if stem != name}


@pytest.mark.parametrize("stem", CHAPTERS)
def test_a_chapter_has_a_page_a_module_and_its_tests(stem):
    for part in (
        f"book/{CHAPTERS[stem]}.md",
        f"attncourse/{stem}.py",
        f"tests/test_{stem}.py",
        f"tests/claims/test_claims_{stem}.py",
    ):
        assert (ROOT / part).exists(), part


@pytest.mark.parametrize("stem", sorted(registry.chapters()))
def test_a_chapter_with_a_judge_has_an_exercise(stem):
    name = ASSIGNMENTS[stem]
    for part in (
        f"book/{name}.md",
        f"attncourse/tasks/{stem}/__init__.py",
        f"solutions/{name}/{name}.ipynb",
        f"exercises/{name}/{name}.ipynb",
        f"book/mistakes/{stem}.md",
    ):
        assert (ROOT / part).exists(), part


def test_no_part_stands_without_its_chapter():
    stems = set(registry.chapters())
    for folder in ("solutions", "exercises"):
        names = {path.name for path in (ROOT / folder).iterdir() if path.is_dir()}
        assert names <= {ASSIGNMENTS[stem] for stem in stems}
    chapters = {path.stem.split("_", 1)[1] for path in (ROOT / "book").glob("[0-9]*.md")}
    assert chapters <= CHAPTERS.keys()


@pytest.mark.slow
def test_imports_point_one_way():
    """The layers stand in pyproject.toml; a module that stands in none is an error, too."""
    done = subprocess.run([Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_what_one_chapter_asks_of_its_input_is_asked_by_no_other():
    importing = re.compile(r"from attncourse\.validation\.(\w+) import")
    for path in (ROOT / "attncourse").glob("*.py"):
        rooms = set(importing.findall(path.read_text(encoding="utf-8")))
        assert rooms <= {path.stem}, f"{path.name}: what several ask, attncourse.validation exports"


def test_the_addresses_of_repository_and_book_are_written_once():
    holders = [
        path.relative_to(ROOT)
        for pattern in (
            "*.md",
            "*.toml",
            "*.yml",
            "book/*.md",
            "solutions/*/*",
            "attncourse/**/*.py",
        )
        for path in ROOT.glob(pattern)
        if re.search(r"github\.(com|io)/attncourse", path.read_text(encoding="utf-8"))
    ]
    assert holders == [Path("_config.yml")]


def test_requirements_pin_every_version():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(pins) > 100 and all("==" in pin for pin in pins)
    assert "torch==2.13.0" in pins
    assert any("make lock" in line for line in lines[:8])
    assert not any("--" in pin for pin in pins)


# --- the tests themselves


@pytest.mark.parametrize(
    ("changed", "runs", "rests"),
    [
        (
            "attncourse/tasks/masking/causal_mask.md",
            "test_judge.py::t[causal_mask-some]",
            "softmax",
        ),
        ("attncourse/tasks/masking/causal_mask.py", "test_masking.py::t", "test_cache.py::t"),
        (
            "attncourse/tasks/masking/causal_mask.py",
            "test_notebooks.py::t[06_masking]",
            "test_book",
        ),
        ("attncourse/tasks/additive/_scores.py", "test_judge.py::t[dot_scores]", "[softmax]"),
        ("attncourse/masking.py", "test_contract.py::t[cross_attention translate]", "test_lms.py"),
        ("attncourse/masking.py", "test_book.py::t", "test_zoo.py"),
        ("attncourse/grading/outbox/lms.py", "test_lms.py::t", "test_number_words.py"),
        ("book/06_masking.md", "test_book.py::t", "test_cache.py"),
        ("book/06_masking.md", "claims/test_claims_masking.py::t", "test_judge.py::t[softmax]"),
        ("solutions/06_masking/06_masking.ipynb", "test_grading.py::t[06_masking]", "[07_a]"),
        ("tests/corpus/correct/masking.py", "test_judge.py::t[padding_mask]", "[softmax]"),
        ("tests/corpus/zoo/attacks.py", "test_zoo.py::t", "test_cache.py"),
        ("SECURITY.md", "test_zoo.py::t", "test_cache.py"),
    ],
)
def test_a_change_chooses_the_tests_that_it_can_break(changed, runs, rests):
    is_chosen = chosen([changed])
    assert is_chosen("tests/test_structure.py::t") and is_chosen(f"tests/{runs}")
    assert not is_chosen(f"tests/{rests}")


@pytest.mark.parametrize("path", ["pyproject.toml", "tests/conftest.py", "a/new/corner"])
def test_a_change_that_no_test_knows_chooses_all(path):
    assert chosen(["book/06_masking.md", path]) is None


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "bench").glob("*.py")), ids=lambda p: p.stem
)
def test_what_measures_fits_what_it_measures(path):
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "ARCHITECTURE.md", "README.md"])
def test_the_door_s_pages_name_files_targets_and_commands_that_are_there(page):
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text(encoding="utf-8"))
    made = ("_build/", "_site/")  # by a command; the repository does not hold them
    for path in (each for each in quoted if "/" in each and not re.search(r"[<…* ]", each)):
        places = (ROOT / path, ROOT / "attncourse" / path)  # "the package's `checks/`"
        assert path.startswith(made) or any(place.exists() for place in places), path
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in (each for each in quoted if each.startswith("make ")):
        assert set(line.split()[1:]) <= targets, line
    for line in (each for each in quoted if re.match(r"attncourse [a-z]", each)):
        assert line.split()[1] in COMMANDS, line


def test_the_map_names_each_room_of_the_package():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "attncourse").glob("*/__init__.py")}
    assert not {room for room in rooms if f"`{room}`" not in text}


def test_an_issue_form_asks_for_the_report_that_the_judge_shows():
    forms = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in FORMS.glob("[jp]*.yml")}
    assert forms.keys() == {"judge", "page"}
    fields = {each.get("id"): each for each in forms["judge"]["body"]}
    assert fields["report"]["validations"]["required"] and fields["answer"]["validations"]
    assert "attncourse.run(" in fields["report"]["attributes"]["description"]


def test_the_citation_names_the_course_and_its_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert citation["version"] == attncourse.__version__
    assert citation["title"].lower() == config["title"].lower()
    assert citation["authors"] == [{"name": config["author"]}]
