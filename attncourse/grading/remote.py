"""The grader's side of a jailed child: start it, ask it, and get over its death."""

import contextlib
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import attncourse
from attncourse.checks import engine
from attncourse.checks.observe import Observation
from attncourse.checks.task import CHAPTERS, LABS, Elsewhere, Inputs, Task
from attncourse.grading import wire
from attncourse.grading.child import codes_of
from attncourse.grading.jail import Limits, Unavailable

# Bytes that every forked process shows as its own and shares with the warm one: torch's heap.
INHERITED = 300 * 2**20


@dataclass(frozen=True)
class Budget:
    """Seconds of real time. Generous: a right answer needs a hundredth."""

    call: float = 10.0
    task: float = 30.0
    submission: float = 120.0
    record: float = 20.0  # for the executed notebook, which costs no points


class Died(Exception):
    """The child is gone; says what the answer did, e.g. "ran for more than 10 seconds …"."""


def hidden() -> tuple[str, ...]:
    """What a jail does not show of the course's package: reference answers and what grades them."""
    package = Path(attncourse.__file__).parent
    folders = [package / "misconceptions", package / "grading", *package.rglob("__pycache__")]
    files = [*(package / f"{stem}.py" for stem in CHAPTERS), *package.glob("checks/test_*.py")]
    files += [package / "lab" / f"{stem}.py" for stem in LABS]
    return tuple(map(str, [*folders, *files]))


def children(jailed: bool) -> "Zygote":
    """What starts a child for each submission on this machine.

    Raises:
        Unavailable: it has no jails, and one is asked for.
    """
    if sys.platform == "linux":
        return Zygote(jailed)
    if jailed:
        raise Unavailable(f"it is made of Linux namespaces, and this is {platform.system()}")
    return Spawner()


def why_no_jail() -> str:
    """Build one to see; "" if it can be built."""
    try:
        with children(jailed=True) as warm:
            warm.fork([]).kill()
    except Unavailable as error:
        return str(error)
    return ""


class Zygote:
    """The warm process that forks children; a context manager."""

    def __init__(self, jailed: bool = True, limits: Limits | None = None):
        self.jailed, self.limits, self.slot = jailed, limits or Limits(), os.getpid() * 97
        self._start()

    def _start(self) -> None:
        self.control, theirs = socket.socketpair()
        self.process = _start_python(theirs)
        theirs.close()
        if self.control.recv(16) != b"ready":
            raise Unavailable("the process that forks the students' children did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.control.close()
        self.process.wait()

    def fork(self, withheld: list[str]) -> "Process":
        """A new child, ready to be asked.

        Raises:
            Unavailable: no jail can be built on this machine.
        """
        self.slot += 1
        settings = {
            "jailed": self.jailed,
            "limits": asdict(self.limits),
            "hidden": hidden(),
            "slot": self.slot,
            "withheld": withheld,
        }
        ours, theirs = socket.socketpair()
        status, write = os.pipe()
        self._hand_over(json.dumps(settings), theirs, write)
        theirs.close()
        os.close(write)
        child = Process(ours, status, self.limits)
        try:
            word, *reason = child.ask(30)
        except Died as error:
            raise Unavailable(f"the jail ended at once: it {error}") from None
        if word != "ready":
            raise Unavailable(*reason)
        return child

    def _hand_over(self, settings: str, channel: socket.socket, status: int) -> None:
        if self.process.poll() is not None:  # somebody has killed it
            self.control.close()
            self._start()
        socket.send_fds(self.control, [settings.encode()], [channel.fileno(), status])


class Spawner(Zygote):
    """A new process for every child, where forking one that has loaded torch is unsafe (macOS)."""

    def __init__(self):
        self.jailed, self.limits, self.slot = False, Limits(), 0

    def __exit__(self, *_):
        pass

    def _hand_over(self, settings: str, channel: socket.socket, status: int) -> None:
        child, status = _start_python(channel, settings), os.dup(status)
        os.write(status, f"{child.pid}\n".encode())

        def keep():
            code = child.wait()
            with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
                os.write(status, f"{-code if code < 0 else code << 8}\n".encode())
            os.close(status)

        threading.Thread(target=keep, daemon=True).start()


def _start_python(channel: socket.socket, *settings: str) -> subprocess.Popen:
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return subprocess.Popen(
        [sys.executable, "-m", "attncourse.grading.child", str(channel.fileno()), *settings],
        pass_fds=[channel.fileno()],
        env=os.environ | dict.fromkeys(threads, "1"),
    )


class Process:
    """One child: a channel to ask it, a pipe that says how it ended."""

    def __init__(self, channel: socket.socket, status: int, limits: Limits):
        self.channel, self.status, self.limits = channel, status, limits
        self.pid: int | None = None
        self.said = b""  # on the pipe: the child's number, then its exit status
        self.asked = 0  # questions so far; a reply carries the number of its question

    def ask(self, seconds: float, *question) -> object:
        """Send a question, if there is one, and wait for the reply.

        Raises:
            Died: it took too long, used too much, sent nonsense, or ended.
        """
        deadline = time.monotonic() + seconds

        def wait():
            while not select.select([self.channel], [], [], 0.25)[0]:
                if time.monotonic() > deadline:
                    raise Died(
                        f"ran for more than {seconds:.0f} seconds and was stopped: an endless loop?"
                    )
                if self._memory() > self.limits.memory:
                    raise Died(f"needed more than {self.limits.memory / 2**30:.0f} GiB of memory")
            if time.monotonic() > deadline + 1:
                raise Died(f"sent its result for more than {seconds:.0f} seconds")

        try:
            if question:
                self.asked += 1
                self.channel.settimeout(seconds)
                self.channel.sendall(wire.pack((self.asked, *question), wire.QUESTION))
            while True:  # copies that the child made of itself may answer twice
                reply = wire.receive(self.channel, wait)
                if isinstance(reply, tuple) and len(reply) == 2 and reply[0] == self.asked:
                    return reply[1]
        except Died:
            self.kill()
            raise
        except wire.Malformed as error:
            self.kill()
            raise Died(str(error)) from None
        except (EOFError, OSError):
            raise Died(self._end()) from None

    def kill(self) -> None:
        """End the child and everything it started."""
        self._read_pid()
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                # The first process of its namespace takes all others with it; without a jail, the
                # process group is what we can reach.
                os.kill(self.pid, signal.SIGKILL)
                os.killpg(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self.channel.close()
        if self.status >= 0:
            os.close(self.status)
            self.status = -1

    def _listen(self, lines: int) -> list[bytes]:
        """What the keeper said so far; waits a little until there are that many lines."""
        while self.status >= 0 and self.said.count(b"\n") < lines:
            if not select.select([self.status], [], [], 2)[0]:
                break
            text = os.read(self.status, 64)
            if not text:
                break
            self.said += text
        return self.said.split(b"\n")[:-1]

    def _read_pid(self) -> None:
        if self.pid is None:
            lines = self._listen(1)
            self.pid = int(lines[0]) if lines else None

    def _end(self) -> str:
        """How it ended, in words that follow "Your answer"."""
        lines = self._listen(2)
        self.close()
        code = int(lines[1]) if len(lines) > 1 else -1
        if code >= 0 and os.WIFSIGNALED(code):
            name = signal.Signals(os.WTERMSIG(code)).name
            if name == "SIGXCPU":
                return f"used more than {self.limits.seconds} seconds of computing time"
            return f"made Python crash ({name})"
        return "ended Python itself: a call to exit?"

    def count(self) -> int:
        """How many processes it consists of."""
        return len(self._tree())

    def _memory(self) -> int:
        """Bytes that the child and its own children took since the fork."""
        total = 0
        for process in self._tree():
            with contextlib.suppress(OSError, ValueError):
                _, resident, shared, *_ = map(int, (process / "statm").read_text().split())
                grown = (resident - shared) * os.sysconf("SC_PAGE_SIZE") - INHERITED
                total += max(0, grown)
        return total

    def _tree(self) -> list[Path]:
        """In /proc, the child and all that it has started."""
        self._read_pid()
        found, todo = [], [self.pid] if self.pid else []
        while todo:
            process = Path("/proc", str(todo.pop()))
            with contextlib.suppress(OSError, ValueError):
                for thread in (process / "task").iterdir():
                    todo += map(int, (thread / "children").read_text().split())
                found.append(process)
        return found


@dataclass
class Sandbox:
    """One submission's answers in a child, which is started again after it died."""

    zygote: Zygote
    tasks: list[str]  # of the assignment, in order
    cells: list  # (label, source, everything)
    budget: Budget = Budget()
    problems: dict[str, str] = field(default_factory=dict)  # label -> error of a cell
    defined: dict[str, str] = field(default_factory=dict)  # task -> "" or why it is no function
    notes: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.deadline = time.monotonic() + self.budget.submission
        self.process: Process | None = None
        self.given: dict[str, bool] = {}  # task -> rebind, of what was provided so far
        self.start()

    def start(self) -> None:
        """Fork a child and run the cells; if they kill it, run only what they define."""
        for only_definitions in (False, True):
            self.process = self.zygote.fork(self.tasks)
            try:
                found = self._ask("run", self.cells, only_definitions)
                self.problems, self.defined = found["problems"], found["defined"]
                for task, rebind in self.given.items():
                    self._provide(task, rebind)
                return
            except (Died, TypeError, KeyError) as error:
                reason = str(error) if isinstance(error, Died) else "sent nonsense"
                if not only_definitions:
                    self.notes.append(f"what stands outside of the definitions {reason}")
        self.process, self.defined = None, {}
        self.review.append(f"even its definitions cannot be run: the notebook {reason}")

    def provide(self, task: str, rebind: bool) -> None:
        """Give the course's own answer to a task that is judged; `rebind` replaces a wrong one."""
        self.given[task] = rebind
        if self.process:
            with contextlib.suppress(Died):
                self._provide(task, rebind)

    def _provide(self, task: str, rebind: bool) -> None:
        self._ask("provide", task, codes_of(engine.find(task)), rebind)

    def _ask(self, *question) -> object:
        left = self.deadline - time.monotonic()
        if left <= 0 or self.process is None:
            raise Died("used up the time for the whole submission")
        return self.process.ask(min(self.budget.call, left), *question)

    def close(self) -> None:
        if self.process:
            self.process.kill()


class RemoteAnswer(Elsewhere):
    """An answer in a sandbox, which the checks see as they see one in this process."""

    def __init__(self, sandbox: Sandbox, task: str):
        self.sandbox, self.task = sandbox, task
        self.deadline = time.monotonic() + sandbox.budget.task
        self.died = ""
        if sandbox.process and sandbox.process.count() > 1:
            sandbox.close()  # an earlier answer has left programs behind
            sandbox.process = None
        if sandbox.process is None:
            sandbox.start()

    def _ask(self, *question) -> object:
        if not self.died and time.monotonic() > self.deadline:
            self.died = f"took more than {self.sandbox.budget.task:.0f} seconds in all checks"
        if not self.died:
            try:
                return self.sandbox._ask(*question)
            except Died as error:
                self.died = str(error)
                self.sandbox.process = None  # the next task gets a new one
        raise Died(self.died)

    def observe(self, task: Task, inputs: Inputs, adapt, **options) -> Observation:
        name = adapt and f"{adapt.__module__.rsplit('.', 1)[-1]}.{adapt.__name__}"
        try:
            return _observation(self._ask("observe", task.name, name, inputs, options))
        except Died as error:
            return Observation(error=str(error))

    def short_cut(self, task: Task, inputs: Inputs) -> str | None:
        try:
            found = self._ask("short_cut", task.name, inputs)
        except Died:
            return None
        return found[:200] if isinstance(found, str) else None


def _observation(reply: object) -> Observation:
    """An observation of the right types, whoever made it."""
    kinds = {
        "error": str | None,
        "error_line": str | None,
        "unanswered": bool,
        "gradients": dict,
        "gradient_error": str | None,
        "edited": tuple,
        "random_state_moved": bool,
        "random_states": tuple,
        "settings_changed": bool,
        "printed": int,
    }
    if not isinstance(reply, dict) or reply.keys() != {each.name for each in fields(Observation)}:
        return Observation(error="sent something that is no observation")
    for name, kind in kinds.items():
        if not isinstance(reply[name], kind):
            return Observation(error="sent something that is no observation")
        if isinstance(reply[name], str):
            reply[name] = reply[name][:1000]
    return Observation(**reply)
