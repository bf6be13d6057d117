"""Jupyter's kernels, started quickly: each a fork of one process that has loaded torch."""

import functools
import multiprocessing
import os
import signal
from multiprocessing import forkserver

import pytest
from jupyter_client.provisioning import local_provisioner

LOADED = ["ipykernel.kernelapp", "matplotlib.pyplot", "pytest", "torch", "tqdm.auto"]
LOADED += ["attncourse.lab", "attncourse.misconceptions", "attncourse.plots", "kernels"]


class WarmKernel:
    """For `jupyter_client`, in the place of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, processes, command, cwd, env, **_):
        ready, started = processes.Pipe(duplex=False)
        arguments = command[command.index("-f") :], str(cwd), env, started
        self._process = processes.Process(target=_serve, args=arguments)
        self._process.start()
        started.close()
        ready.recv()  # from here on it has a process group of its own, which may be killed
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self):
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _serve(arguments, folder, environment, started):
    from ipykernel.kernelapp import launch_new_instance

    os.setsid()
    started.send(None)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    launch_new_instance(arguments)


@pytest.fixture(scope="session")
def warm_kernels():
    """Notebooks run as ever, but Python, torch and the course are loaded once for all of them."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(LOADED)
    with pytest.MonkeyPatch.context() as patch:
        # Read when matplotlib is loaded; a kernel sets it by itself.
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        forkserver.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        launch = functools.partial(WarmKernel, processes)
        patch.setattr(local_provisioner, "launch_kernel", launch)
        yield
