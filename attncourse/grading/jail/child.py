"""Zygotes and children: a zygote forks one jailed child for each submission.

    python -m attncourse.grading.jail.child FD [SETTINGS]

A zygote has loaded torch and the course, so a fork is ready at once. It never loads what a student
must not see: no solutions, no misconceptions, no gradebook. A child holds one student's definitions
and answers questions over its channel until the worker hangs up: about the answers, for points; or,
another child, about what the cells show, for the record.
"""

import ast
import contextlib
import ctypes
import dataclasses
import gc
import json
import linecache
import operator
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import attncourse
from attncourse import checks
from attncourse.checks import registry, without_secrets
from attncourse.checks.answer import describe
from attncourse.checks.answer_files import DEFINITIONS
from attncourse.checks.observe import Counter, Observation, find_short_cut, observe
from attncourse.checks.task import Task
from attncourse.grading.inbox import untrusted
from attncourse.grading.jail import packages, seccomp, walls, wire, withheld

DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG


# --- zygotes ------------------------------------------------------------------------------------


def zygote(control: socket.socket) -> None:
    """Have a child forked for every message: its settings in JSON, its channel and its status pipe.

    The zygote forks a prepared zygote for each assignment, in which everything is done that all
    students of a class need. The prepared zygote forks the children.
    """
    untrusted.lift_memory_limit()
    gc.disable()  # to look at a million new objects again and again doubles the time
    load()
    gc.enable()
    gc.freeze()  # no collection touches these pages, so the children share them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepared: dict[str, socket.socket] = {}
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone
        control.sendall(b"ready")
        while True:
            message, handles, *_ = socket.recv_fds(control, 1 << 20, 2)
            if not message:
                return
            settings = json.loads(message)
            kind = json.dumps([settings[name] for name in ("jailed", "tasks", "allowed")])
            try:
                if kind in prepared and not _handed_on(prepared[kind], message, handles):
                    prepared.pop(kind).close()  # somebody has killed the prepared zygote
                if kind not in prepared:
                    prepared[kind] = _prepare(settings, handles, control, *prepared.values())
                    _handed_on(prepared[kind], message, handles)
            except OSError as error:  # too many processes, for now
                _refuse(handles[0], error)
            for handle in handles:
                os.close(handle)


def _handed_on(control: socket.socket, message: bytes, handles: list[int]) -> bool:
    """Hand a message on to a prepared zygote; False if that has ended."""
    try:
        socket.send_fds(control, [message], handles)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _prepare(settings: dict, handles: list[int], *others: socket.socket) -> socket.socket:
    """Fork a prepared zygote, and return the socket on which it takes messages."""
    this = os.getpid()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            for each in (ours, *others):
                each.close()
            for handle in handles:
                os.close(handle)
            _end_with(this)
            if settings["jailed"]:
                packages.shown(tuple(settings["allowed"]))  # what it finds is kept for all children
                walls.plain_surroundings()
            names = Namespace(settings["tasks"], settings["allowed"])
            _fork_children(theirs, names, settings["jailed"])
        finally:
            os._exit(1)
    theirs.close()
    return ours


def _fork_children(control: socket.socket, names: "Namespace", jailed: bool) -> None:
    """Fork a child for every message, and report the end of each child. Never returns."""
    gc.freeze()
    this, owner = os.getpid(), (os.getuid(), os.getgid())
    living: dict[int, int] = {}  # the number of a child, and the pipe on which its end is reported
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal with a handler writes to `wakes`
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            _bury(living)
        if control not in ready:
            continue
        message, handles, *_ = socket.recv_fds(control, 1 << 20, 2)
        if not message:
            os._exit(0)
        channel, status = handles
        try:
            forked = walls.fork() if jailed else os.fork()
        except (walls.Unavailable, OSError) as error:  # or too many processes, for now
            _refuse(channel, error)
            os.close(status)
        else:
            if forked == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                if not jailed:  # `walls.enter` does the same
                    _end_with(this)
                _live(json.loads(message), names, channel, owner)
            living[forked] = status
            with contextlib.suppress(BrokenPipeError):  # the worker has closed the pipe
                os.write(status, f"{forked}\n".encode())
        os.close(channel)


def _bury(living: dict[int, int]) -> None:
    """Report the children that have ended."""
    while living:
        number, code, used = os.wait4(-1, os.WNOHANG)
        if not number:
            return
        status = living.pop(number)
        with contextlib.suppress(BrokenPipeError):  # the worker has closed the pipe
            os.write(status, f"{code} {used.ru_utime + used.ru_stime:.0f}\n".encode())
        os.close(status)


def alone(settings: dict, channel: int) -> None:
    """Be a child without having been forked, and without a jail. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    _live(settings, Namespace(settings["tasks"], settings["allowed"]), channel)


def _watch(parent: int) -> None:
    """End when the parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def load() -> None:
    """Load what a child needs, so that each fork is ready at once."""
    # What students' notebooks import: loaded here once, and not in every child.
    import einops  # noqa: F401
    import numpy as np  # noqa: F401
    from matplotlib import artist

    # A third of the time goes into tables for docstrings, which nobody reads in a jail.
    kept, artist.kwdoc = artist.kwdoc, lambda _: ""
    import matplotlib.pyplot as plt

    artist.kwdoc = kept
    plt.switch_backend("agg")

    without_secrets.switch_on(registry.guarded())
    registry.all_tasks()
    torch_is_ready()
    withheld.find()
    if sys.platform == "linux" and seccomp.supported():
        walls.readable()  # all three keep what they find
        packages.shown()
        for programs in (False, True):
            seccomp.program(programs)


def torch_is_ready() -> None:
    import einops
    import torch

    torch.set_num_threads(1)
    # Asked whether there are GPUs, NVIDIA's driver starts a thread, also where they are hidden.
    # No child asks the driver for anything, so the thread may be lost in a fork.
    torch.cuda.is_available()
    before = _threads()
    # What a first call sets up takes a second; the children inherit it.
    observe(torch.exp, {"scores": torch.ones(2)}, gradient=True)
    find_short_cut(torch.exp, {"scores": torch.ones(2)}, ("softmax",), None)
    einops.rearrange(torch.ones(2, 3), "a b -> b a")  # looks for libraries
    # Autograd on the CPU runs in the caller's thread; a thread of its own would not survive a fork.
    threads = _threads()
    assert threads == before, f"{threads} threads before a fork, and {before} before autograd ran"


def _threads() -> int:
    """Of this process; 1 where the system does not say."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1


def _refuse(channel: int, error: Exception) -> None:
    way = socket.socket(fileno=channel)  # no `dup`: there may be too many files
    wire.send(way, (0, ("unavailable", str(error) or type(error).__name__)))
    way.detach()


def _end_with(parent: int) -> None:
    """Let Linux kill this process when its parent ends: nothing is left of a run that is killed."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent had ended before
        os._exit(1)


def _live(settings: dict, names: "Namespace", handle: int, owner: tuple[int, int] = (0, 0)) -> None:
    """Enter the jail and serve. Never returns."""
    os.setsid()
    limits = walls.Limits(**settings["limits"])
    try:
        handle = _only_this_is_open(handle)
        if settings["jailed"]:
            hidden = tuple(map(Path, settings["hidden"]))
            judged = bool(settings["tasks"])  # the record may show what a program says
            kept = packages.shown(tuple(settings["allowed"]))
            walls.enter(limits, hidden, settings["slot"], not judged, owner, kept)
        else:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds))
            if sys.platform == "linux":
                walls.be_a_user_of_ones_own(settings["slot"])
    except (walls.Unavailable, OSError, ValueError, MemoryError) as error:
        _refuse(handle, error)
        os._exit(0)
    channel = socket.socket(fileno=handle)
    with contextlib.suppress(EOFError, OSError):  # the worker has hung up
        try:
            wire.send(channel, (0, ("ready",)))
            serve(channel, names)
        finally:
            os._exit(0)


def _only_this_is_open(handle: int) -> int:
    """Close everything else, and let what is printed go nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    channel = os.dup2(handle, 3)
    os.closerange(4, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20))
    return channel


# --- one submission -----------------------------------------------------------------------------


def serve(channel: socket.socket, names: "Namespace") -> None:
    """Answer the worker's questions until it hangs up."""
    while True:
        number, question, *arguments = wire.receive(channel, longest=wire.QUESTION)
        try:
            reply = getattr(names, question)(*arguments)
        except Exception as error:  # of ours: what an answer raises is part of an observation
            reply = "failed", f"{type(error).__name__}: {error}"
        try:
            message = wire.pack((number, reply))
        except (wire.Malformed, ValueError, RecursionError) as error:
            seen = Observation(error=str(error) or "returned nonsense")
            message = wire.pack((number, plain(seen)))
        channel.sendall(message)


# What an observation shows, in the order of its fields.
plain = operator.attrgetter(*(field.name for field in dataclasses.fields(Observation)))


class _Nowhere(Counter):
    """What is written goes nowhere, as what is written to its file does."""

    def fileno(self) -> int:
        return 1


class Namespace:
    """The names that a student's notebook defines, and what the worker may ask of them.

    Args:
        tasks: those that are judged; none, for the record.
        allowed: full names of what the notebook may use of the course, whoever does the tasks.
    """

    def __init__(self, tasks: list[str], allowed: list[str]):
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.tasks = list(map(registry.find, tasks))
        self.torch = withheld.Torch(self.tasks)
        self.task, self.not_yet = None, self.tasks  # the task at hand; and with it all later ones
        if tasks:  # before the student's code runs, which could keep what is there
            withheld.of_course(tasks, allowed)
            withheld.no_compiler()
            self.torch.withhold(self.tasks)
        # In a student's own cells these have nothing to say while we grade.
        silent = {"check": lambda *_, **__: 0.0, "hint": lambda *_: None, "use": self.module_name}
        silent["warm_up"] = lambda: None
        for door in (attncourse, checks):
            for name, function in silent.items():
                setattr(door, name, function)
        if not tasks:
            from attncourse.grading.jail import shell

            self.shell = shell.start(self.module)

    def module_name(self, name: str) -> object:
        return vars(self.module).get(name)

    def run(self, cells: list, patience: float | None = None) -> dict:
        """Run a notebook's cells, and note which of them print or draw: see `_run`."""
        output = _Nowhere()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return self._run(cells, patience, output)

    def _run(self, cells: list, patience: float | None, output: Counter) -> dict:
        """Run (label, source, everything) statement by statement; one that fails stops no other.

        Where `everything` is False, only imports and definitions run.

        Args:
            patience: seconds for each statement that defines nothing, and five times as much for
                all outside of the cells of answers; after that, and from the beginning if it is 0,
                those that call something are left out. None: as long as they take.

        Returns:
            By label, "problems", and in "said" the cells that have printed or drawn something; in
            "defined" by task, why its answer is none, or "".
        """
        import matplotlib.pyplot as plt
        import numpy as np
        import torch

        random.seed(0)
        np.random.seed(0)
        torch.default_generator.manual_seed(0)
        # As in a notebook: then it is known that a cell warns.
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        tasks, problems, said, spent = registry.all_tasks(), {}, {}, 0.0
        shown = output.characters, plt.get_fignums()
        for label, source, everything in cells:
            # As in a notebook: some look at their own source, such as torch.jit.script.
            linecache.cache[label] = len(source), None, source.splitlines(keepends=True), label
            try:
                tree = ast.parse(source, label)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                problems[label] = f"{type(error).__name__}: {getattr(error, 'msg', error)}"
                continue
            answers = any(getattr(node, "name", "") in tasks for node in tree.body)
            for node in tree.body:
                if isinstance(node, DEFINITIONS) or (everything and patience is None):
                    problem = self._statement(node, label)
                elif everything and patience and (answers or spent < 5 * patience):
                    started = time.monotonic()
                    problem = self._statement(node, label, patience)
                    spent += time.monotonic() - started
                elif everything and _is_quick(node):
                    problem = self._statement(node, label)
                else:
                    continue
                if problem:
                    problems.setdefault(label, problem)
            if (shows := (output.characters, plt.get_fignums())) != shown:
                said[label], shown = "", shows
        torch.set_default_dtype(torch.float32)  # a cell's settings are for its own experiments
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        defined = {
            name: "" if callable(value) else describe(value)
            for name, value in vars(self.module).items()
            if name in tasks
        }
        return {"problems": problems, "defined": defined, "said": said}

    def _statement(self, node: ast.stmt, label: str, seconds: float | None = None) -> str:
        try:
            code = compile(ast.Module([node], []), label, "exec")
            with untrusted.limited(seconds) if seconds else contextlib.nullcontext():
                exec(code, vars(self.module))
        except withheld.ReadyMade:  # as somebody does who wants to compare
            return ""
        except untrusted.TooMuch:
            return f"line {node.lineno} was stopped after {seconds:g} seconds"
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        return ""

    def observe(self, task: str, adapt: str | None, inputs: dict, options: dict) -> tuple:
        about = self._ready(task)
        return plain(about.observe(self._answer(task), inputs, adapt=named(adapt), **options))

    def _ready(self, name: str) -> Task:
        """A task, after all that does it, or does a later one, was taken away."""
        if self.task is None or name != self.task.name:
            self.task = registry.find(name)
            self.not_yet = self.tasks[self.tasks.index(self.task) :]
            withheld.refused.clear()
        self.torch.withhold(self.not_yet)
        return self.task

    def short_cut(self, task: str, inputs: dict, options: dict) -> tuple[str | None, tuple]:
        about = self._ready(task)
        found, seen = about.short_cut(self._answer(task), inputs, **options)
        return found or next(iter(withheld.refused), None), plain(seen)

    def provide(self, task: str, codes: list, rebind: bool) -> None:
        """Give back the course's own answer; with `rebind`, in the place of the student's."""
        withheld.give_back(codes)
        if rebind:
            setattr(self.module, task, registry.find(task).reference)

    def _answer(self, task: str) -> object:
        return vars(self.module)[task]

    # --- for the record

    def open(self, passed: list[str]) -> None:
        """Prepare to run whole cells, as in the student's own notebook.

        Args:
            passed: tasks of which `use` gives the student's answer.
        """
        os.environ["PIP_NO_INDEX"] = "1"  # without a network, pip shall say so at once

        def use(name: str) -> object:
            if name in passed:
                return self.module_name(name)
            print(f"Your `{name}` is not finished yet, so this cell uses the course's.")
            return registry.find(name).reference

        for door in (attncourse, checks):
            door.check = lambda *_, **__: print("The report is below the grader's own check.")
            door.use = use

    def define(self, source: str) -> None:
        """Run only the imports and definitions of a cell, and show nothing."""
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.parse(source).body:
                if isinstance(node, DEFINITIONS):
                    self._statement(node, "cell")

    def show(self, source: str, seconds: float) -> dict:
        """Run a cell, and give what it shows."""
        from attncourse.grading.jail import shell

        return shell.run(self.shell, source, seconds)


withheld.asks |= {Namespace.observe.__code__, Namespace.short_cut.__code__}


def _is_quick(node: ast.stmt) -> bool:
    """Whether it gives a name to something, and calls nothing: `eps = 1e-9`, `f = lambda x: …`."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    slow = ast.Call, ast.comprehension, ast.Mult, ast.Pow, ast.LShift, ast.MatMult
    value = node.value
    return isinstance(value, ast.Lambda) or not any(isinstance(x, slow) for x in ast.walk(value))


def named(name: str | None) -> Callable | None:
    """An adapter by its name, "attncourse.tasks.additive.attend.look_at_parts"."""
    if name is None:
        return None
    module, function = name.rsplit(".", 1)
    return getattr(sys.modules[module], function)


if __name__ == "__main__":
    handle, *given = sys.argv[1:]
    if given:
        alone(json.loads(given[0]), int(handle))
    zygote(socket.socket(fileno=int(handle)))
