"""The book, built once a run, whichever of pytest's processes asks for it first."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock  # torch needs it, too

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"
PAGES = sorted((ROOT / "book").glob("*.md"))
CHAPTERS = sorted((ROOT / "book").glob("[0-9][0-9]_*.md"))


def stem(path):
    return path.stem


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def build_book(folder, *command):
    command += ("build", ".", "-W", "-n", "--keep-going")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def build() -> None:
    # Without this a failing cell is reported once, and the next build passes.
    shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
    shutil.rmtree(HTML, ignore_errors=True)
    result = build_book(ROOT, "jupyter-book")
    output = result.stdout + result.stderr
    told = [line for line in output.splitlines() if re.search("WARNING: |ERROR|Error", line)]
    assert result.returncode == 0, "\n".join(told) or output[-3000:]


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> list[Path]:
    """Build the book as `make book` does; the pages' paths."""
    pytest.importorskip("jupyter_book", reason="the book needs: pip install -e '.[book]'")
    place, run = tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run:
        place = place.parent  # of all processes of this run
    with FileLock(place / "book.lock"):
        if not (done := place / f"book-{run}").exists():
            build()
            done.touch()
    return sorted(page for page in HTML.rglob("*.html") if HTML / "_static" not in page.parents)
