"""What the tests share: the course's folder, and a copy of it to work in."""

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Networks as small as these are quickest on one thread, and other programs want a core, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Programs that tests start by name (jupyter-book, nbgrader) are those of this environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def course(tmp_path, monkeypatch) -> Path:
    """A course folder of one's own, with solutions and configuration, as working directory."""
    for name in ("nbgrader_config.py", "_config.yml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "solutions", tmp_path / "solutions")
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises")
    monkeypatch.chdir(tmp_path)
    return tmp_path
