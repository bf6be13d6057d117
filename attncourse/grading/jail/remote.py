"""The worker's side of zygotes and children: start them, ask them, get over their death."""

import contextlib
import functools
import json
import math
import os
import platform
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from torch import Tensor

import attncourse
from attncourse.checks import installed, prose, registry
from attncourse.checks.answer import Elsewhere, Inputs
from attncourse.checks.observe import Observation
from attncourse.checks.task import Task
from attncourse.grading import CannotGrade
from attncourse.grading.jail import cgroup, wire, withheld
from attncourse.grading.jail.job import DEFAULT, TRIES, Budget
from attncourse.grading.jail.processes import Started, surroundings
from attncourse.grading.jail.walls import Limits, Unavailable

# Bytes that a child shows as its own although it shares them with the zygote: torch's heap.
INHERITED = 300 * 2**20
BRIEF = 0.005  # seconds: of a shorter call, the wait for a processor is not looked up
# Linux stops a program by ticks of its clock. Where many compete for a processor, those were seen
# to be a tenth more than the time that is told afterwards.
BY_TICKS = 0.8
PATIENCE = 3  # times the seconds of a call: so long it may wait for a processor besides
STARVED = 3  # calls without enough memory, after which an answer is not asked again
_NO_NAME = re.compile(r"[^\w.: ']")
# How a program ends by its own fault. Any other signal comes from outside: in a jail, the answer's
# process is the first of its namespace, which no signal from within can end.
CRASHES = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}


class Died(Exception):
    """The child has ended; the message says what the answer did: "ran for more than 10 seconds"."""


class Ended(Died):
    """The child ended by itself: an answer can do that, and so can a machine that is broken."""


class Stood(Died):
    """The child took too long and did not compute: it slept, or the machine was paused."""


class Killed(Died):
    """Something outside of the jail has ended the child: the machine, or a person."""


class Meddled(Died):
    """The child was ended, because the program in it talked to the grader by itself."""


@functools.cache
def _folders(package: Path) -> tuple[Path, ...]:
    """The package's folders, which stay while a class is graded.

    Which of them have a `__pycache__` changes meanwhile, as Python compiles.
    """
    return package, *(path for path in package.rglob("*/") if path.name != "__pycache__")


def hidden() -> tuple[str, ...]:
    """What a jail does not show of the course's package: reference answers and what grades them."""
    package = Path(attncourse.__file__).parent
    folders = [package / "tasks", package / "grading", package / "data" / "fingerprints"]
    references = [
        package / where / f"{stem}.py" for stem in registry.stems() for where in ("", "lab")
    ]
    files = [path for path in references if path.exists()]
    outside = installed.outside_files()
    folders += [path for path in outside if path.is_dir()]
    files += [path for path in outside if path.is_file()]
    words = (path for task in registry.outside() for path in prose.files_of(task, translated=True))
    files += [path for path in words if not any(folder in path.parents for folder in folders)]
    compiled = [path / "__pycache__" for path in (*_folders(package), *{p.parent for p in outside})]
    return tuple(map(str, [*folders, *(path for path in compiled if path.is_dir()), *files]))


def children(jailed: bool, started: Started | None = None) -> "Zygote":
    """What starts a child for each submission on this machine.

    Args:
        started: a zygote that is there already; it may serve several workers.

    Raises:
        Unavailable: the machine has no jails, and one is asked for.
    """
    if sys.platform == "linux":
        return Zygote(jailed, started=started)
    if jailed:
        raise Unavailable(f"it is made of Linux namespaces, and this is {platform.system()}")
    return WithoutZygote()


def why_no_jail() -> str:
    """Build a jail to see; "" if it can be built."""
    try:
        with children(jailed=True) as zygote:
            zygote.fork([]).kill()
    except (Unavailable, Killed, CannotGrade) as error:
        return str(error)
    return ""


class Zygote:
    """A zygote, as the worker sees it: it forks children. A context manager."""

    def __init__(
        self, jailed: bool = True, limits: Limits | None = None, started: Started | None = None
    ):
        self.jailed, self.limits, self.slot = jailed, limits or Limits(), os.getpid() * 97
        self.worked, self.loaded = False, False
        if started:
            self.control, self.process = started
        else:
            self._start()

    def _start(self) -> None:
        for _ in range(TRIES):
            self.control, theirs = socket.socketpair()
            self.process = _start_python(theirs)
            theirs.close()
            if self._is_loaded():
                return
            self.control.close()
            if (code := self.process.wait()) >= 0:  # of its own: the next would, too
                raise CannotGrade(f"the process that forks the jails ended with exit code {code}")
            if (name := signal.Signals(-code).name) in CRASHES:
                raise CannotGrade(f"the process that forks the jails crashed ({name})")
        raise CannotGrade(f"the process that forks the jails was killed {TRIES} times")

    def _is_loaded(self) -> bool:
        """Wait until the zygote has loaded what children need; False if it ended before."""
        with contextlib.suppress(ConnectionError):
            # PEEK: the other workers that share the zygote see its word, too.
            self.loaded = self.control.recv(16, socket.MSG_PEEK) == b"ready"
        return self.loaded

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.control.close()
        self.process.wait()

    def fork(self, tasks: list[str], allowed: tuple[str, ...] = ()) -> "Child":
        """A new child, ready to be asked.

        Args:
            tasks: that the child is asked about; no answers of the course are in it, to any task.
            allowed: full names of what the released notebook uses, of the course and of installed
                packages. The child has it all the same.

        Raises:
            Unavailable: the kernel refuses to build a jail on this machine.
            Killed: each of several ended as it started, or was refused after others had worked.
        """
        for pause in (0.1, 1.0, None):  # the rest of an earlier child may be in the way
            try:
                child = self._fork(tasks, allowed)
            except (Unavailable, Died, OSError) as error:
                if pause is None:
                    refused = isinstance(error, Unavailable) and not self.worked
                    raise (Unavailable if refused else Killed)(str(error)) from None
                time.sleep(pause)
            else:
                self.worked, child.late = True, pause != 0.1
                return child

    def _fork(self, tasks: list[str], allowed: tuple[str, ...]) -> "Child":
        self.slot += 1
        settings = {
            "jailed": self.jailed,
            "limits": asdict(self.limits),
            "hidden": hidden(),
            "slot": self.slot,
            "tasks": tasks,
            "allowed": allowed,
        }
        ours, theirs = socket.socketpair()
        status, write = os.pipe()
        child = Child(ours, status, self.limits, self.jailed)
        try:
            self._hand_over(json.dumps(settings), theirs, write)
        except OSError:
            child.close()
            raise
        finally:
            theirs.close()
            os.close(write)
        word, *reason = child.ask(30)
        child._read_pid()
        if word != "ready":
            child.close()
            raise Unavailable(*reason)
        if self.jailed and child.pid:
            with contextlib.suppress(OSError):  # the grader was given no group: `_memory` counts
                group = cgroup.Group(self.slot, self.limits.memory, self.limits.processes)
                group.add(child.pid)
                child.group = group
        return child

    def _hand_over(self, settings: str, channel: socket.socket, status: int) -> None:
        if self.process.poll() is not None or not (self.loaded or self._is_loaded()):
            self.control.close()  # somebody has killed the zygote
            self._start()
        socket.send_fds(self.control, [settings.encode()], [channel.fileno(), status])


class WithoutZygote(Zygote):
    """A new program for every child, where forking what has loaded torch is unsafe (macOS)."""

    def __init__(self):
        self.jailed, self.limits, self.slot, self.worked = False, Limits(), 0, False

    def __exit__(self, *_):
        pass

    def _hand_over(self, settings: str, channel: socket.socket, status: int) -> None:
        child, status = _start_python(channel, settings), os.dup(status)
        os.write(status, f"{child.pid}\n".encode())

        def keep():
            code = child.wait()
            with contextlib.suppress(BrokenPipeError):  # the worker has closed the pipe
                os.write(status, f"{-code if code < 0 else code << 8} 0\n".encode())
            os.close(status)

        threading.Thread(target=keep, daemon=True).start()


def _start_python(channel: socket.socket, *settings: str) -> subprocess.Popen:
    # -P: the course's folder is no place to import from, nor one to tell students of.
    command = [sys.executable, "-P", "-m", "attncourse.grading.jail.child", str(channel.fileno())]
    return subprocess.Popen([*command, *settings], pass_fds=[channel.fileno()], env=surroundings())


class Child:
    """A child, as the worker sees it: a channel to ask it, and a pipe that says how it ended."""

    def __init__(self, channel: socket.socket, status: int, limits: Limits, jailed: bool):
        self.channel, self.status, self.limits, self.jailed = channel, status, limits, jailed
        self.pid: int | None = None
        self.handle: int | None = None  # of the process: its number may be another's by now
        self.group: cgroup.Group | None = None  # in which Linux counts the child's memory
        self.said = b""  # on the pipe: the child's number, then its exit status and its CPU time
        self.asked, self.past = 0, set()  # numbers of questions; a reply carries its question's
        self.late = False  # an earlier try to start a child failed
        self.clocks = _clock("thread-self")  # and the child's, once its number is known
        self.before = 0.0  # what `waited` was when the child was last asked

    def ask(self, seconds: float, *question) -> object:
        """Send a question, if there is one, and wait for the reply.

        Raises:
            Died: the child took too long, used too much, sent nonsense, or ended.
            Killed: something outside of the jail ended the child.
        """
        looked = time.monotonic()
        deadline, self.before, computed = looked + seconds, self.waited(), self.computed()

        def late() -> float:
            over = time.monotonic() - deadline
            if over > 0:
                over -= min(self.waited() - self.before, PATIENCE * seconds)
            return over

        def too_late(said: str) -> Died:
            """What is said of an answer, unless it did not compute: then nobody knows."""
            stood = self.computed() - computed < seconds / 2
            return (Stood if stood else Died)(said)

        def look():
            nonlocal looked
            looked = time.monotonic()
            if self.group is None and self._memory() > self.limits.memory:
                raise Died(self._hungry())

        def wait():
            while not select.select([self.channel], [], [], 0.25)[0]:
                if late() > 0:
                    raise too_late(
                        f"ran for more than {seconds:.0f} seconds and was stopped: an endless loop?"
                    )
                look()
            if late() > 1:  # the worker may have stood, and not the child
                raise too_late(f"sent its result for more than {seconds:.0f} seconds")
            if time.monotonic() > looked + 0.25:
                look()

        try:
            if question:
                self.past.add(self.asked)
                self.asked = secrets.randbits(60)  # so no child can answer beforehand
                self.channel.settimeout(seconds)
                self.channel.sendall(wire.pack((self.asked, *question), wire.QUESTION))
            while True:
                match wire.receive(self.channel, wait):
                    case (self.asked, ("failed", str(reason))):
                        raise Ended(f"could not be asked ({_NO_NAME.sub('', reason)[:300]})")
                    case (self.asked, reply):
                        return reply
                    case (int(number), _) if number in self.past:
                        raise Meddled("answered one question twice")
                    case _:
                        raise Meddled("sent an answer to what nobody had asked")
        except Died:
            self.kill()
            raise
        except wire.Malformed as error:
            self.kill()
            raise Meddled(str(error)) from None
        except TimeoutError:
            error = too_late("did not listen any more")
            self.kill()
            raise error from None
        except (EOFError, ConnectionError):
            raise self._end() from None
        except OSError as error:  # the worker's own: it is short of something
            self.kill()
            raise Killed(f"could not be asked ({error.strerror})") from None

    def computed(self) -> float:
        """Seconds that the child had a processor; infinite where the system does not count them."""
        if len(self.clocks) < 2:
            return math.inf
        with contextlib.suppress(OSError):  # the child has ended
            return int(os.pread(self.clocks[1], 100, 0).split()[0]) / 1e9
        return math.inf

    def waited(self) -> float:
        """Seconds that the child or this thread was ready to run, and another had the processor."""
        nanoseconds = 0
        for clock in self.clocks:
            with contextlib.suppress(OSError):  # the child has ended
                nanoseconds += int(os.pread(clock, 100, 0).split()[1])
        return nanoseconds / 1e9

    def _hungry(self) -> str:
        return f"needed more than {self.limits.memory / 2**30:.0f} GiB of memory"

    def kill(self) -> None:
        """End the child and everything that the child started."""
        if self.status is None:
            return  # the child has ended, and its number may be another's
        self._read_pid()
        with contextlib.suppress(ProcessLookupError):
            # A child is the first process of its namespace: all others end with it.
            if self.handle is not None:
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            elif self.pid:  # macOS, and Linux before 5.3, have no such handles
                os.kill(self.pid, signal.SIGKILL)
        if self.pid and not self.jailed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # without a jail, no more can be reached
        self.close()

    def close(self) -> None:
        self.channel.close()
        for handle in (self.status, self.handle, *self.clocks):
            if handle is not None:
                os.close(handle)
        self.status, self.handle, self.clocks = None, None, []

    def _listen(self, lines: int, seconds: float = 5) -> list[bytes] | None:
        """What the prepared zygote said so far of the child; wait for that many lines, for a while.

        Returns:
            None if the prepared zygote has ended without having said as much.
        """
        while self.status is not None and self.said.count(b"\n") < lines:
            if not select.select([self.status], [], [], seconds)[0]:
                break
            text = os.read(self.status, 64)
            if not text:
                return None
            self.said += text
        return self.said.split(b"\n")[:-1]

    def _read_pid(self) -> None:
        if self.pid is None and (lines := self._listen(1)):
            self.pid = int(lines[0])
            self.clocks += _clock(self.pid)
            if hasattr(os, "pidfd_open"):
                with contextlib.suppress(OSError):  # the child may have ended already
                    self.handle = os.pidfd_open(self.pid)

    def _end(self) -> Died:
        """How the child ended, in words that follow "Your answer"."""
        lines = self._listen(2)
        alive = lines is not None and len(lines) < 2
        self.kill()
        if lines is None:
            return Killed("was killed from outside, with the process that looks after it")
        if alive:
            return Meddled("closed its channel to the grader")
        code, seconds = map(int, lines[1].split())
        if not os.WIFSIGNALED(code):
            return Ended("ended Python itself: a call to exit?")
        name = signal.Signals(os.WTERMSIG(code)).name
        if name == "SIGKILL" and self.group and self.group.was_full():
            return Died(self._hungry())
        if name in CRASHES:
            return Ended(f"made Python crash ({name})")
        if name == "SIGXCPU" or (name == "SIGKILL" and seconds >= BY_TICKS * self.limits.seconds):
            return Died(f"used more than {self.limits.seconds} seconds of computing time")
        return Killed(f"was killed from outside ({name})")

    def count(self) -> int:
        """How many processes the child and all that it started are."""
        return len(self._tree())

    def _memory(self) -> int:
        """Bytes that the child and its own children took since the fork.

        What several of these processes share counts for each of them: of the two numbers that Linux
        offers, this is the one that a program cannot make smaller.
        """
        total = -INHERITED
        for process in self._tree():
            with contextlib.suppress(OSError, ValueError):
                for line in (process / "status").read_text().splitlines():
                    if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")):
                        total += int(line.split()[1]) * 1024
        return total

    def _tree(self) -> list[Path]:
        """The folders in /proc of the child and of all that it has started."""
        self._read_pid()
        found, todo = [], [self.pid] if self.pid else []
        while todo:
            process = Path("/proc", str(todo.pop()))
            with contextlib.suppress(OSError, ValueError):
                for thread in (process / "task").iterdir():
                    todo += map(int, (thread / "children").read_text().split())
                found.append(process)
        return found


def _clock(who: int | str) -> list[int]:
    """The open file in which Linux counts how long a process has waited: it is read often."""
    with contextlib.suppress(OSError):  # macOS; or the process has ended
        return [os.open(f"/proc/{who}/schedstat", os.O_RDONLY)]
    return []


@dataclass
class Sandbox:
    """One submission's answers in a child; where a child died, the next question starts another."""

    zygote: Zygote
    tasks: list[str]  # of the assignment, in order
    cells: list  # (label, source, everything)
    budget: Budget = DEFAULT
    allowed: tuple[str, ...] = ()  # what the released notebook uses
    problems: dict[str, str] = field(default_factory=dict)  # label -> error of a cell
    defined: dict[str, str] = field(default_factory=dict)  # task -> "" or why it is no function
    said: set[str] | None = None  # labels of cells that print or draw; None if that is not known
    notes: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)
    whole: bool = True  # nothing that stands in the cells was left out
    disturbed: str = ""  # why no result is to be trusted, by no fault of the answers
    doubt: str = ""  # how a child ended, where the machine may have ended it as well
    stood: bool = False  # a child was late and had not computed, as where the machine was paused

    def __post_init__(self):
        self.spent = 0.0  # seconds that the answers took
        self.process: Child | None = None
        self.beside = 1  # processes in the jail, once the cells have run
        self.given: dict[str, bool] = {}  # task -> rebind, of what was provided so far
        self.start()

    def start(self) -> None:
        """Have a child run the cells; if they kill it, another one, with less and less of them."""
        if self.spent >= self.budget.submission:
            return  # nothing could be asked
        for patience in (None, self.budget.call / 10, 0.0):
            try:
                with self._heeded():
                    child = self.zygote.fork(self.tasks, self.allowed)
                    if child.late:
                        child.kill()
                        raise Killed("could not be started at once")
                    self.process = child
                    found = self._ask("run", self.cells, patience)
                    labels = {cell[0] for cell in self.cells}
                    self.problems = _texts(found, "problems", labels)
                    self.defined = _texts(found, "defined", set(self.tasks))
                    self.whole = patience is None
                    if self.whole and self.said is None:
                        self.said = set(_texts(found, "said", labels))
                for task, rebind in self.given.items():
                    self._provide(task, rebind)
                self.beside = max(1, self.process.count())
                return
            except Died as error:
                self.close()
                reason = str(error)
                if patience is None:
                    self.notes.append(f"what stands outside of the definitions {reason}")
            if self.disturbed:
                break
        self.defined = {}
        self.review.append(f"even its definitions cannot be run: the notebook {reason}")

    def provide(self, task: str, rebind: bool) -> None:
        """Give the course's own answer to a task that is judged; `rebind` replaces a wrong one."""
        self.given[task] = rebind
        if self.process:
            try:
                self._provide(task, rebind)
            except Died:
                self.close()  # the next task gets a new child

    def _provide(self, task: str, rebind: bool) -> None:
        self._ask("provide", task, withheld.codes_of(task), rebind)

    def _ask(self, *question) -> object:
        left, process = self.budget.submission - self.spent, self.process
        if self.disturbed:
            raise Died("is not asked any more")
        if left <= 0 or process is None:
            raise Died("used up the time for the whole submission")
        started = time.monotonic()
        try:
            with self._heeded():
                return process.ask(min(self.budget.call, left), *question)
        finally:
            took = time.monotonic() - started
            waited = max(0.0, process.waited() - process.before) if took > BRIEF else 0.0
            self.spent += max(took - waited, took / (1 + PATIENCE))

    @contextlib.contextmanager
    def _heeded(self):
        """Write down what a person, or another try, must deal with."""
        try:
            yield
        except Killed as error:
            self.disturbed = self.disturbed or f"its process {error}"
            raise
        except Ended as error:
            self.doubt = self.doubt or f"its process {error}"
            raise
        except Stood:
            self.stood = True
            raise
        except Meddled as error:
            self.review.append(f"its code talks to the grader by itself: it {error}")
            raise

    def look_behind(self) -> None:
        """After a task: see whether the answers have left other programs running."""
        running = self.process.count() if self.process else 0
        if running > 1:
            self.review.append("its code leaves programs running beside the answers")
        if running > self.beside:  # the next answers get a new child
            self.close()

    def close(self) -> None:
        """End the child; whoever asks next gets a new one."""
        if self.process:
            self.process.kill()
        self.process = None


class RemoteAnswer(Elsewhere):
    """An answer in a sandbox, which the checks see as they see one in this process."""

    def __init__(self, sandbox: Sandbox, task: str):
        self.sandbox, self.task = sandbox, task
        self.last = sandbox.spent + sandbox.budget.task
        self.died = ""
        self.starved = 0  # calls that ran out of memory
        if sandbox.process is None and not sandbox.disturbed:
            sandbox.start()

    def _ask(self, *question) -> object:
        if not self.died and self.sandbox.spent > self.last:
            limit = f"more than {self.sandbox.budget.task:.0f} seconds in all checks"
            self.died = (
                f"took {limit}. That is too slow, and need not be wrong; your teacher is told"
            )
            said = f"`{self.task}` took {limit}: what it earns there, only a person can say"
            self.sandbox.review.append(said)
        if not self.died:
            try:
                return self.sandbox._ask(*question)
            except Died as error:
                self.died = str(error)
                self.sandbox.close()  # the next task gets a new child
        raise Died(self.died)

    def observe(self, task: Task, inputs: Inputs, adapt, **options) -> Observation:
        name = adapt and f"{adapt.__module__}.{adapt.__name__}"
        try:
            with self.sandbox._heeded():
                seen = _observation(self._ask("observe", task.name, name, inputs, options))
        except Died as error:
            return Observation(error=str(error))
        if seen.error and seen.error.startswith("raised MemoryError"):
            self.starved += 1
            if self.starved == STARVED:  # each such call fills gigabytes: slow, and wrong already
                self.died = seen.error
        return seen

    def short_cut(self, task: Task, inputs: Inputs, **options) -> tuple[str | None, Observation]:
        try:
            with self.sandbox._heeded():
                match self._ask("short_cut", task.name, inputs, options):
                    case (str() | None as found, seen):
                        # The name goes into pages and tables, and may be a student's invention.
                        return found and _NO_NAME.sub("", found)[:100], _observation(seen)
                    case tuple() as seen:  # what it returned cannot be sent
                        return None, _observation(seen)
                    case _:
                        raise Meddled("sent something that is no observation")
        except Died as error:
            return None, Observation(error=str(error))


def _texts(reply: object, key: str, names: set[str]) -> dict[str, str]:
    """By name, short texts of a reply.

    Raises:
        Meddled: this is something else.
    """
    found = reply.get(key) if isinstance(reply, dict) else None
    if not isinstance(found, dict) or not all(type(text) is str for text in found.values()):
        raise Meddled("sent something else than the errors of its cells")
    return {name: text[:300] for name, text in found.items() if name in names}


_KINDS = {
    "returned": object,
    "error": (str, type(None)),
    "error_line": (str, type(None)),
    "unanswered": bool,
    "gradients": dict,
    "gradient_error": (str, type(None)),
    "edited": tuple,
    "random_state_moved": bool,
    "random_states": tuple,
    "settings_changed": bool,
    "printed": int,
}
_NAMES = [each.name for each in fields(Observation)]


def _observation(reply: object) -> Observation:
    """An observation of the right types and sizes, whoever made it.

    Raises:
        Meddled: this is something else.
    """

    def all_are(values, *kinds: type) -> bool:
        return len(values) < 100 and all(type(each) in kinds for each in values)

    if not isinstance(reply, tuple) or len(reply) != len(_NAMES):
        raise Meddled("sent something that is no observation")
    seen = dict(zip(_NAMES, reply, strict=True))
    if not (
        all(isinstance(seen[name], kind) for name, kind in _KINDS.items())
        and all_are(seen["gradients"], str)
        and all_are(seen["gradients"].values(), Tensor, type(None))
        and all_are(seen["edited"], str)
        and all_are(seen["random_states"], int)
    ):
        raise Meddled("sent something that is no observation")
    for name in ("error", "error_line", "gradient_error"):
        if seen[name]:
            seen[name] = seen[name][:1000]
    return Observation(**seen)
