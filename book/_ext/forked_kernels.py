"""Kernels that start in no time: forks of a process that has loaded torch and the course.

On Linux alone; elsewhere a process with torch in it is not safely forked.
"""

import functools
import multiprocessing
import os
import runpy
import signal
import sys
from multiprocessing import forkserver

LOADED = ["ipykernel.kernelapp", "matplotlib.pyplot", "nbclient", "pytest", "torch", "tqdm.auto"]
LOADED += ["typer", "rich.console", "torch.utils.flop_counter"]
LOADED += ["attncourse.lab", "attncourse.tasks", "attncourse.plots", "attncourse.pretrained"]
INLINE = "module://matplotlib_inline.backend_inline"


@functools.cache
def _processes():
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(LOADED)
    # Read when matplotlib is loaded; a kernel would set it by itself.
    before = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = INLINE
    forkserver.ensure_running()
    os.environ.pop("MPLBACKEND") if before is None else os.environ.update(MPLBACKEND=before)
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
