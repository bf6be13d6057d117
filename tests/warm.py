"""`python -m …` for programs and Jupyter's kernels, quickly: as the book's kernels start. The tests
that are about the start itself use `subprocess`.
"""

import sys
import tempfile
from pathlib import Path

import pytest
from jupyter_client.provisioning import local_provisioner

sys.path.append(str(Path(__file__).parent.parent / "book" / "_ext"))
from forked_kernels import Popen


def run(*arguments, cwd=None, env=None, timeout=300) -> tuple[int, str, str]:
    """What `python -m` with these arguments returns, and writes into its stdout and stderr."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder, name) for name in ("out", "err"))
        process = Popen([sys.executable, "-m", *map(str, arguments)], cwd, env, out, err)
        if process.wait(timeout) is None:
            process.kill()
            raise TimeoutError(f"{arguments} takes more than {timeout} seconds")
        return process.poll(), out.read_text("utf-8"), err.read_text("utf-8")


@pytest.fixture
def warm_kernels(monkeypatch):
    """Notebooks run as ever, in kernels that start in no time."""
    monkeypatch.setattr(local_provisioner, "launch_kernel", Popen)
