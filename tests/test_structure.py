"""The house holds together: a chapter is one stem everywhere, and imports go one way."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attncourse.checks import registry

ROOT = Path(__file__).parent.parent
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
