"""Whole cells of a student's notebook in IPython, with what they print, draw and return.

This runs in a student's jail, for the record that people read: no points come from here. Outputs
are cut where they arise, so that none fills the memory; and again by the grader, who trusts nobody.
"""

import io
import json
import signal
import subprocess
import sys
import tempfile
import types

import PIL.Image
import stack_data  # noqa: F401  as are the others that are not used: loaded before the fork
from IPython.core import (  # noqa: F401
    application,
    completer,
    completerlib,
    crashhandler,
    logger,
    magics,
    oinspect,
    pylabtools,
)
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magics import execution  # noqa: F401
from matplotlib_inline import backend_inline  # noqa: F401
from traitlets import Any, Type
from traitlets.config import Config

PIL.Image.preinit()
pylabtools.find_gui_and_backend("inline")  # matplotlib looks through all that is installed, once

TEXT = 20_000  # characters of a stream, an error or a text
RICH = 400_000  # characters of a picture or of HTML
CELL = 800_000  # characters of JSON, all outputs of a cell together: they are one message
MANY = 200  # outputs of a cell


def cut(text: str, most: int = TEXT) -> str:
    lost = len(text) - most
    return text[:most] + f"\n… and {lost:,} more characters\n" if lost > 0 else text


class Outputs:
    """What one cell shows, in order; what is too long is cut, and half a picture left out."""

    def __init__(self):
        self.shown: list[dict] = []
        self.lost = 0  # outputs that there was no room for
        self.unwritten = 0  # characters of the stream that comes last
        self.stale = False  # the next output replaces all before it

    def write(self, name: str, text: str) -> None:
        last = self.shown[-1] if self.shown and not self.stale else {}
        if last.get("name") != name:
            last = {"output_type": "stream", "name": name, "text": ""}
            self.add(last)
        kept = text[: max(0, TEXT - len(last["text"]))]
        last["text"] += kept
        self.unwritten += len(text) - len(kept)

    def show(self, output_type: str, data: dict, display_id: str | None = None) -> None:
        kept = {}
        for mime, value in data.items():
            if not isinstance(value, str):
                continue  # a widget: it needs a server
            if mime == "text/plain":
                kept[mime] = cut(value)
            elif len(value) <= RICH:
                kept[mime] = value
            else:
                kept = {"text/plain": f"{mime} of {len(value):,} characters: too long to be shown"}
                break
        self.add({"output_type": output_type, "data": kept, "id": display_id})

    def error(self, name: str, value: str, traceback: str) -> None:
        if len(traceback) > TEXT:  # what happened stands at its end
            traceback = cut(traceback, TEXT // 2) + traceback[-TEXT // 2 :]
        report = {"ename": name[:200], "evalue": value[:1000], "traceback": traceback}
        self.add({"output_type": "error"} | report)

    def add(self, output: dict) -> None:
        if self.stale:
            self.shown, self.stale, self.unwritten = [], False, 0
        self._end_stream()
        if len(self.shown) < MANY:
            self.shown.append(output)
        else:
            self.lost += 1

    def _end_stream(self) -> None:
        if self.unwritten:
            self.shown[-1]["text"] += f"\n… and {self.unwritten:,} more characters\n"
            self.unwritten = 0

    def collected(self) -> dict:
        self._end_stream()
        kept, left = [], CELL
        for output in self.shown:
            left -= len(json.dumps(output))
            if left < 0:
                break
            kept.append(output)
        return {"outputs": kept, "lost": self.lost + len(self.shown) - len(kept)}


class Stream(io.TextIOBase):
    """sys.stdout or sys.stderr."""

    def __init__(self, shell: "Shell", name: str):
        self.shell, self.stream = shell, name

    def write(self, text: str) -> int:
        self.shell.outputs.write(self.stream, str(text))
        return len(text)

    def writable(self) -> bool:
        return True


class Publisher(DisplayPublisher):
    """What `display` shows."""

    def publish(self, data, metadata=None, *, transient=None, update=False, **_):
        display_id, outputs = (transient or {}).get("display_id"), self.shell.outputs
        before = [each for each in outputs.shown if display_id and each.get("id") == display_id]
        outputs.show("display_data", data, display_id)
        if update and before:  # in the place of the one that it replaces
            before[0]["data"] = outputs.shown.pop()["data"]

    def clear_output(self, wait=False):
        self.shell.outputs.stale = True


class Hook(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.shell.outputs.show("execute_result", format_dict)

    def finish_displayhook(self):
        self._is_active = False


class Stopped(KeyboardInterrupt):
    """The cell's time is over."""


class Shell(InteractiveShell):
    """IPython without a terminal, a history or a kernel."""

    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)
    outputs = Outputs()

    profile_dir = Any()

    def init_profile_dir(self, profile_dir):
        """A real one would make folders; IPython before 9.11 wants a place for its `db`."""
        self.profile_dir = types.SimpleNamespace(location=tempfile.gettempdir())

    def enable_gui(self, gui=None):
        pass

    def ask_exit(self):
        raise SystemExit("the notebook asked to end")

    def _showtraceback(self, etype, evalue, stb):
        if etype is not Stopped:
            self.outputs.error(etype.__name__, str(evalue), "\n".join(stb))

    def system_raw(self, cmd):
        command = self.var_expand(cmd, depth=1)
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, shell=True, text=True, errors="replace", **pipe) as process:
            while text := process.stdout.read(4096):
                self.outputs.write("stdout", text)
        self.user_ns["_exit_code"] = process.returncode

    system = system_raw


def start(module: types.ModuleType) -> Shell:
    """IPython for the names of `module`. In a fork of its own: there is one per process."""
    settings = Config()
    settings.HistoryManager.enabled = False  # or it starts a thread, and writes to the disk
    settings.HistoryManager.hist_file = ":memory:"
    settings.InteractiveShell.colors = "nocolor"
    # Of the user's own settings nothing is read, and nothing is written there.
    folder = tempfile.gettempdir()
    shell = Shell.instance(config=settings, user_module=module, ipython_dir=folder)
    shell.enable_matplotlib("inline")
    return shell


def run(shell: Shell, source: str, seconds: float) -> dict:
    """Run a cell; stop it after so many seconds.

    Returns:
        "outputs", "lost" (how many more there were), and "stopped".
    """
    shell.outputs, stopped = Outputs(), False

    def stop(*_):
        nonlocal stopped
        stopped = True
        raise Stopped

    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Stream(shell, "stdout"), Stream(shell, "stderr")
    signal.signal(signal.SIGALRM, stop)
    # Again and again: a cell may catch the first.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        shell.run_cell(source, store_history=True)
    except Stopped:
        pass
    except BaseException as error:
        shell.outputs.error(type(error).__name__, str(error), "")
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout, sys.stderr = streams
    return shell.outputs.collected() | {"stopped": stopped}
