"""The house holds together: a chapter is one stem everywhere, and imports go one way."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

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


def test_imports_point_one_way():
    """The layers stand in pyproject.toml; a module that stands in none is an error, too."""
    done = subprocess.run([Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout


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


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "ARCHITECTURE.md", "README.md"])
def test_the_door_s_pages_name_files_targets_and_commands_that_are_there(page):
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text(encoding="utf-8"))
    made = ("_build/", "_site/")  # by a command; the repository does not hold them
    for path in (each for each in quoted if "/" in each and not re.search(r"[<…* ]", each)):
        places = (ROOT / path, ROOT / "attncourse" / path)  # "the package's `checks/`"
        assert path.startswith(made) or any(place.exists() for place in places), path
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in (each for each in quoted if each.startswith("make ")):
        assert set(line.split()[1:]) <= targets | {"test-changed"}, line
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
