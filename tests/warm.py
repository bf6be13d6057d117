"""`python -m …` for programs and Jupyter's kernels, quickly: a fork of a process that has loaded
torch, pytest and the course. The tests that are about the start itself use `subprocess`.

`python tests/warm.py …` is `jupyter-book …` with such kernels.
"""

import functools
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path

import pytest
from jupyter_client.provisioning import local_provisioner

LOADED = ["ipykernel.kernelapp", "matplotlib.pyplot", "nbclient", "pytest", "torch", "tqdm.auto"]
LOADED += [
    "typer",
    "rich.console",
    "attncourse.lab",
    "attncourse.tasks",
    "attncourse.plots",
]


@functools.cache
def _processes():
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(LOADED)
    with pytest.MonkeyPatch.context() as patch:
        # Read when matplotlib is loaded; a kernel would set it by itself.
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        forkserver.ensure_running()
    # A worker of a pool may have no children as long as it is a daemon.
    multiprocessing.current_process().daemon = False
    return made


class Popen:
    """What jupyter_client and the tests need of `subprocess.Popen`; the outputs go into files."""

    stdin = stdout = stderr = None

    def __init__(self, command, cwd=None, env=None, out=os.devnull, err=os.devnull, **_):
        ready, started = _processes().Pipe(duplex=False)
        assert command[1] == "-m"
        environment = dict(os.environ if env is None else env)
        arguments = command[2:], str(cwd or os.getcwd()), environment, (out, err), started
        self._process = _processes().Process(target=_run, args=arguments)
        self._process.start()
        started.close()
        ready.recv()  # from here on it has a process group of its own, which may be killed
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _run(arguments, folder, environment, files, started):
    os.setsid()
    started.send(None)
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments[1:]
    sys.path.insert(0, folder)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


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


if __name__ == "__main__":
    from jupyter_book.cli.main import main

    local_provisioner.launch_kernel = Popen
    main()
