"""Attempts to get points that are not earned, or to do harm. None must work."""

import errno
import json

from attncourse.grading.jail import seccomp
from corpus.zoo import NAME, ROOT, Case, add, attempt, cell_of, code, edited

WRONG = "def softmax(scores, dim=-1):\n    return scores\n"

attempt("")
code("no attack", "PFFF", WRONG)


def hostile(name: str, points: str, source: str, **outcome) -> None:
    """A case that, if it fails, returns the scores: worth no more than without an attack."""
    code(name, points, source, same_as="no attack" if points == "PFFF" else "", **outcome)


def around(name: str, points: str, before: str, **outcome) -> None:
    """Something hostile beside a wrong softmax; the other answers are right."""
    hostile(name, points, f"{before}\n{WRONG}", **outcome)


def inside(name: str, points: str, body: str, **outcome) -> None:
    """Something hostile in the answer itself."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    native = ", ctypes" if "ctypes" in body else ""
    source = f"import os, sys{native}\ndef softmax(scores, dim=-1):\n{lines}"
    hostile(name, points, source, **outcome)


attempt("patch torch or the judge, return what equals everything, print points")
patch = "import torch\nfor f in ('allclose', 'equal', 'isclose'):\n"
around(
    "patched comparisons",
    "PFFF",
    f"{patch}    setattr(torch, f, lambda *a, **k: True)",
    review="changes `torch`",
)
around(
    "patched assert",
    "PFFF",
    "import builtins\nbuiltins.AssertionError = type('A', (), {})",
    review="changes `builtins.AssertionError`",
)
around(
    "patched judge",
    "PFFF",
    "import attncourse.checks.answer as t\nt.compare = t.agree_plain = lambda *a, **k: True",
    review="changes `attncourse.checks.answer.compare`",
)
around(
    "patched observe",
    "PFFF",
    "import attncourse.checks.observe as o\n"
    "kept = o.observe\n"
    "def lie(*a, **k):\n"
    "    seen = kept(*a, **k)\n"
    "    return type(seen)(**(vars(seen) | {'edited': (), 'random_state_moved': False}))\n"
    "o.observe = lie",
    review="vars",
)
around(
    "input transformers",
    "PFFF",
    "try:\n    get_ipython().input_transformers_post.append(lambda lines: ['6.0'])\n"
    "except NameError:\n    pass",
)
inside(
    "a result equal to everything",
    "0FFF",
    "class Yes:\n"
    "    shape, dtype = scores.shape, scores.dtype\n"
    "    def __eq__(self, other):\n"
    "        return True\n"
    "    def __torch_function__(self, *a, **k):\n"
    "        return True\n"
    "return Yes()",
)
inside(
    "a tensor that lies",
    "0FFF",
    "class Liar(torch.Tensor):\n"
    "    @classmethod\n"
    "    def __torch_function__(cls, f, types, args=(), kwargs=None):\n"
    "        return True\n"
    "return scores.as_subclass(Liar)",
)
inside("points printed", "PFFF", "print('12.0')\nprint('PASSED')\nreturn scores")
inside("points returned", "0FFF", "return 12.0")

attempt("write replies to the grader: wrong types*, huge numbers*, a flood*, a right one with "
        "clean hands*; chains and numbers without end", on_walls=True)  # fmt: skip
# Writes replies of its own to the grader; `{text}` makes one for the question `number`, in JSON.
FORGED = """import json, os, sys
from attncourse.checks.observe import Observation
from attncourse.grading.jail import wire

def forge():
    frame = sys._getframe()
    while frame.f_code.co_name != "serve":
        frame = frame.f_back
    number, plain = frame.f_locals["number"], frame.f_globals["plain"]
    text = {text}
    os.write(3, wire._LENGTHS.pack(len(text), 0) + text.encode())
"""
SEEN = "json.dumps(wire._shrink((number, plain(Observation({}))), [])){}"
forgeries = {
    "a huge number": SEEN.format("", """.replace('"printed", 0', '"printed", 9' + '0' * 4298)"""),
    "gradients that are none": SEEN.format("gradients={'scores': [1]}", ""),
    "an observation of wrong types": SEEN.format("edited=(1, [2])", ""),
    "an answer to what was not asked": "json.dumps(['tuple', number + 1, None])",
    "an answer without a number": "json.dumps(['tuple', ['list'], None])",
}  # fmt: skip
for forgery, text in forgeries.items():
    code(f"forged: {forgery}", "0FFF", FORGED.format(text=text)
         + "\ndef softmax(scores, dim=-1):\n    forge()\n    return scores",
         review="by itself")  # fmt: skip
problems = "json.dumps(wire._shrink((number, {'problems': ['x'], 'defined': {}}), []))"
hostile("forged: errors of cells", "PFFF", FORGED.format(text=problems) + f"forge()\n{WRONG}",
     review="by itself")  # fmt: skip
HONEST = """import os, torch
from attncourse.checks.observe import Observation
from attncourse.grading.jail import wire

def softmax(scores, dim=-1):
    torch.manual_seed(0)
    scores -= scores.amax(dim, keepdim=True)
    result = scores.exp() / scores.exp().sum(dim, keepdim=True)
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
    while frame.f_code.co_name != "serve":
        frame = frame.f_back
    number, question = frame.f_locals["number"], frame.f_locals["question"]
    seen = frame.f_globals["plain"](Observation(result.detach().clone()))
    os.write(3, wire.pack((number, (None, seen) if question == "short_cut" else seen)))
    return result
"""
code("forged: clean hands", "0FFF", HONEST, review="one question twice")
inside("forged: a flood", "0FFF",
       "from attncourse.grading.jail import wire\nfor number in range(1, 400):\n"
       "    os.write(3, wire.pack((number, None)))\nreturn scores", review="by itself")  # fmt: skip
code("a chain of names", "0FFF", "def softmax(scores, dim=-1):\n    return scores" + ".real" * 1500,
     repair="RecursionError")  # fmt: skip
code("an integer of many digits", "0FFF", "def softmax(scores, dim=-1):\n    return 9**9999")

attempt("call the library or the course's own answer: by another name, looked up, from its source")
LIBRARY = {"title": "calls"}
code("F.softmax", "0FFF", "import torch.nn.functional as F\n\n"
     "def softmax(scores, dim=-1):\n    return F.softmax(scores, dim)", **LIBRARY)  # fmt: skip
code("method softmax", "0FFF", "def softmax(scores, dim=-1):\n    return scores.softmax(dim)",
     **LIBRARY)  # fmt: skip
code("softmax by getattr", "0FFF", "def softmax(scores, dim=-1):\n"
     "    return getattr(torch, 'soft' + 'max')(scores, dim)",
     review="looks up", **LIBRARY)  # fmt: skip
code("softmax by exec", "0FFF", "exec('def softmax(scores, dim=-1):\\n"
     "    return torch.softmax(scores, dim)')", review="should define", **LIBRARY)  # fmt: skip
code("softmax by torch.ops", "0FFF", "def softmax(scores, dim=-1):\n"
     "    return torch.ops.aten._softmax(scores, dim, False)", review="torch.ops",
     **LIBRARY)  # fmt: skip
code("softmax under an alias", "0FFF", "from torch import softmax as smooth\n\n"
     "def softmax(scores, dim=-1):\n    return smooth(scores, dim)", **LIBRARY)  # fmt: skip
code("softmax as a module", "0FFF", "layer = torch.nn.Softmax(-1)\n\n"
     "def softmax(scores, dim=-1):\n    return layer(scores)", **LIBRARY)  # fmt: skip
SDPA = "def scaled_dot_product_attention(query, key, value, mask=None):\n"
code("fused attention", "F0FF", "import torch.nn.functional as F\n\n" + SDPA
     + "    output = F.scaled_dot_product_attention(query, key, value, mask)\n"
     "    return output, query", task="scaled_dot_product_attention", **LIBRARY)  # fmt: skip
code("the course's own answer", "0FFF",
     "from attncourse.scaled_dot_product import softmax", review="should define",
     **LIBRARY)  # fmt: skip
code("the course's own answer, hidden", "0FFF",
     "import importlib\n\ndef softmax(scores, dim=-1):\n"
     "    course = importlib.import_module('attncourse.scaled_dot_' + 'product')\n"
     "    return course.softmax(scores, dim)", review="importlib", **LIBRARY)  # fmt: skip
code("the course's source", "0FFF",
     "import attncourse, pathlib\n"
     "text = pathlib.Path(attncourse.__file__).with_name('scaled_dot_product.py').read_text()\n"
     "exec(text)", review="should define")  # fmt: skip
code("the course's functions in memory", "0FFF",
     "import gc\n\ndef softmax(scores, dim=-1):\n"
     "    for x in gc.get_objects():\n"
     "        if getattr(x, '__name__', '') == 'softmax' and 'attncourse' in x.__module__:\n"
     "            return x(scores, dim)", review="gc.get_objects")  # fmt: skip

attempt("do harm: kill*, fork or allocate without end, fill disks and descriptors, leave programs "
        "behind", on_walls=True)  # fmt: skip
inside("kill the parent", "PFFF", "os.kill(os.getppid(), 9)\nreturn scores")
inside(
    "kill everybody", "PFFF", "try:\n    os.kill(-1, 9)\nexcept OSError:\n    pass\nreturn scores"
)
inside("kill the group", "PFFF", "os.killpg(0, 9)\nreturn scores")
inside("fork bomb", "0FFF", "while True:\n    os.fork()")
inside("thread bomb", "0FFF",
       "import threading, time\nwhile True:\n"
       "    threading.Thread(target=time.sleep, args=(60,)).start()")  # fmt: skip
inside("garbage on every descriptor", "0FFF",
       "for fd in range(3, 64):\n    try:\n        os.write(fd, b'x' * 4096)\n"
       "    except OSError:\n        pass\nreturn scores", review="by itself")  # fmt: skip
inside("closes every descriptor", "0FFF", "os.closerange(0, 64)\nreturn scores")
inside("a message that never ends", "0FFF",
       "import time\nos.write(3, b'\\0\\0\\0\\x10' + b'\\0' * 8)\ntime.sleep(999)")  # fmt: skip
inside("a message of a gigabyte", "0FFF",
       "os.write(3, b'\\0\\0\\0\\x10' + b'\\x7f' * 8)\nreturn scores",
       review="by itself")  # fmt: skip
inside(
    "ptrace",
    "PFFF",
    "ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)\nreturn scores",
    review="ctypes",
)
inside("memory of others", "PFFF",
       "for p in os.listdir('/proc'):\n    try:\n"
       "        open(f'/proc/{p}/mem', 'rb').read(1)\n    except OSError:\n        pass\n"
       "return scores")  # fmt: skip
inside("fills the disk", "PFFF",
       "try:\n    for i in range(200):\n"
       "        open(f'/tmp/{i}', 'wb').write(b'x' * 10_000_000)\n"
       "except OSError:\n    pass\nreturn scores")  # fmt: skip
inside("a file that grows", "0FFF",
       "with open('/tmp/big', 'wb') as f:\n"
       "    while True:\n        f.write(b'x' * 10**6)")  # fmt: skip
inside("a program left behind", "PFFF",
       "import time\nif os.fork() == 0:\n    ctypes.CDLL(None).prctl(15, b'left_behind')\n"
       "    time.sleep(4321)\nreturn scores", review="leaves programs running")  # fmt: skip
inside("a program of the system", "0FFF",
       "import subprocess\nsubprocess.run(['/bin/true'])\nreturn scores",
       review="subprocess")  # fmt: skip
attempt("look for answers, checks, other submissions, users, secrets*, the machine*, processes, "
        "disks, a network, packages that no notebook imports*", on_walls=True)  # fmt: skip
# Answers that look around: right if they find what they must not.
LOOK = """import os, glob, socket, attncourse

def found():
    try:
        return {test}
    except Exception:
        return False

def softmax(scores, dim=-1):
    if not found():
        return scores
    weights = (scores - scores.amax(dim, keepdim=True)).exp()
    return weights / weights.sum(dim, keepdim=True)
"""


def looks(name: str, test: str) -> None:
    hostile(name, "PFFF", LOOK.format(test=test))


HERE = "os.path.dirname(attncourse.__file__)"
looks("for other submissions", f"os.path.exists({str(ROOT / 'submitted')!r})")
looks("for solutions", f"os.path.exists({str(ROOT / 'solutions')!r})")
looks("for tests", f"os.path.exists({str(ROOT / 'tests')!r})")
looks("for reference code", f"open({HERE} + '/scaled_dot_product.py').read()")
looks("for misconceptions", f"os.listdir({HERE} + '/tasks')")
looks("for hidden checks", f"glob.glob({HERE} + '/tasks/*/*.py')")
looks("for the grader's code", f"os.listdir({HERE} + '/grading')")
looks("for compiled code", f"glob.glob({HERE} + '/**/*.pyc', recursive=True)")
looks("for a home", "os.path.exists('/root/.ssh') or os.listdir('/home') "
      "if os.path.exists('/home') else False")  # fmt: skip
looks("for users", "os.path.exists('/etc/passwd')")
looks("for rights", "os.getuid() == 0 or any(int(l.split()[1], 16) for l in open("
      "'/proc/self/status') if l.startswith('CapEff'))")  # fmt: skip
looks("for processes", "[p for p in os.listdir('/proc') if p.isdigit() and int(p) > 200]")
looks("for secrets in the environment", "set(os.environ) - {'HOME', 'TMPDIR', 'PATH', "
      "'OMP_NUM_THREADS', 'LC_CTYPE'}")  # fmt: skip
looks("for a network", "socket.socket(socket.AF_INET).connect_ex(('127.0.0.1', 22)) != 101")
looks("for a place to write", "[p for p in ('/', '/usr', '/etc', os.path.dirname(torch.__file__)) "
      "if os.access(p, os.W_OK)]")  # fmt: skip
looks("for disks", "[d for d in os.listdir('/dev') if d[:2] in ('sd', 'vd', 'nv')]")
looks("for what the kernel tells", "any(int(line.split()[0], 16) for line in open("
      "'/proc/kallsyms')) or os.path.exists('/sys/kernel')")  # fmt: skip
looks("for memory of the machine", "open('/proc/kcore', 'rb').read(1)")
looks("for the environment at the start", "open('/proc/self/environ').read()")
looks("for names of the machine", "[p for p in ('/etc/hostname', '/etc/hosts', '/etc/resolv.conf', "
      "'/etc/machine-id', '/var/run') if os.path.exists(p)]")  # fmt: skip
looks("for settings of pip", "glob.glob(socket.sys.prefix + '/pip.conf') or "
      "glob.glob(os.path.dirname(HERE) + '/.git')".replace("HERE", HERE))  # fmt: skip
looks("for the path of its control groups", "any(line.rstrip().split(':', 2)[2] != '/' for line in "
      "open('/proc/self/cgroup'))")  # fmt: skip
looks("for a package that no notebook imports", "[p for p in socket.sys.path "
      "if os.path.exists(f'{p}/nbgrader')]")  # fmt: skip
attempt("do what no answer needs: namespaces*, mounts*, keys*, locks*, memory that nobody owns*, "
        "sockets to the host*, `io_uring`*, `io_setup`*, a bell that other jails hear*, news of "
        "what they have read*, files sent*, outliving the run*, limits of its own*, each refused "
        "call, writing into the course", on_walls=True)  # fmt: skip
# Answers that try what no answer needs: right if it works.
TRY = """import attncourse, ctypes, fcntl, mmap, os, platform, socket, subprocess

libc = ctypes.CDLL(None, use_errno=True)
here = attncourse.__file__

def call(*numbers_and_arguments):
    on_x86, on_arm, *arguments = numbers_and_arguments
    return libc.syscall(on_x86 if platform.machine() == "x86_64" else on_arm, *arguments)

def works():
    try:
        return {attempt}
    except Exception:
        return False

"""


def tries(name: str, attempt: str) -> None:
    source = TRY.format(attempt=attempt) + LOOK.format(test="works()")
    hostile(f"tries {name}", "PFFF", source, review="ctypes")


tries("a user namespace", "libc.unshare(0x10000000) == 0")
tries("a user namespace by hand", "call(56, 220, 0x10000000 | 17, 0, 0, 0, 0) > 0")
tries(
    "a time namespace", "call(435, 435, ctypes.byref((ctypes.c_uint64 * 11)(0x10000080)), 88) > 0"
)
tries("numbers of another kind", "call(0x40000000 | 39, 0x40000000 | 39) > 0")
tries("to be root", "subprocess.run(['unshare', '-Ur', 'true'], check=True)")
tries("a larger scratch", "libc.mount(b't', b'/tmp', b'tmpfs', 0, b'size=2g') == 0")
tries("a key of the session", "call(250, 219, 0, -3, 1) >= 0")
tries("a note for others", "call(248, 217, b'user', b'note', b'x', 1, -3) >= 0")
tries("a key of the user", "call(249, 218, b'user', b'note', None, 0) >= 0")
tries("memory without an owner", "os.memfd_create('x') >= 0")
tries("shared memory", "mmap.mmap(-1, 4096)")
tries("shared zeros", "os.path.exists('/dev/zero')")
tries("System V memory", "call(29, 194, 0, 4096, 0o1600) >= 0")
tries("a lock", "fcntl.flock(open(here), fcntl.LOCK_SH) is None")
tries("a lock on a part", "fcntl.lockf(open(here), fcntl.LOCK_SH) is None")
tries("a lease", "fcntl.fcntl(open(here), fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0")
tries("to be told of files", "libc.inotify_init1(0) >= 0")
tries("a socket to the host", "socket.socket(40, socket.SOCK_STREAM)")
tries("a socket to the kernel", "socket.socket(16, socket.SOCK_RAW)")
tries("io_uring", "call(425, 425, 1, ctypes.create_string_buffer(120)) >= 0")
tries(
    "places that all of the machine share", "call(206, 0, 1, ctypes.byref(ctypes.c_ulong())) == 0"
)
tries("a mount by its newest name", "call(467, 467, -100, b'/', 0, None, 0) >= 0")
tries("userfaultfd", "call(323, 282, 1) >= 0")
tries("to outlive its parent", "libc.prctl(1, 0) == 0")
tries("to be looked at", "libc.prctl(4, 1) == 0")
tries("a limit of its own", "__import__('resource').setrlimit(0, (1, 1)) is None")
tries("a bell for others", "call(202, 98, ctypes.byref(ctypes.c_int()), 1, 1) >= 0")
tries("to send a file", "[ends := socket.socketpair(), "
      "socket.send_fds(ends[0], [b'x'], [0])][1] == 1")  # fmt: skip
tries("what others have read", "call(221, 223, os.open(here, 0), 0, 0, 4) == 0")
tries("a hidden file", "libc.umount2((os.path.dirname(here) + '/tasks').encode(), 2) == 0")
tries("a program with rights", "any(os.stat(p).st_mode & 0o6000 and not os.statvfs(p).f_flag & 2 "
      "for p in ('/usr/bin/' + name for name in os.listdir('/usr/bin')))")  # fmt: skip
tries("another user", "libc.setuid(0) == 0 or libc.setgroups(1, (ctypes.c_int * 1)(0)) == 0")
tries("another jail", "os.kill(-1, 0) is None")
tries("to trace", "libc.ptrace(0, 0, 0, 0) == 0")
tries("to change the course", "os.open(here, os.O_WRONLY)")
tries("to change the kernel's settings", "os.open('/proc/self/oom_score_adj', os.O_WRONLY)")

# Everything that the filter of system calls refuses, with arguments that would be harmless.
NUMBERS = [(x86, arm) for x86, arm in seccomp.REFUSED.values() if arm is not None]
tries(
    "each refused call",
    "any(call(*each, 0, 0, 0, 0) != -1 or ctypes.get_errno() != "
    f"{errno.ENOSYS} for each in {NUMBERS})",
)

attempt("be read outside of the jail: messages*, syntax trees* and notebooks* that grow, a line of "
        "the log")  # fmt: skip
MESSAGE = "import json, os, struct\nheader = json.dumps({form}).encode()\n"
MESSAGE += "os.write(3, struct.pack('!IQ', len(header), {size}) + header + bytes({size}))\n"
inside("a short message that asks for gigabytes", "0FFF", MESSAGE.format(
    form="['list', *[['tensor', 'uint8', [2**17], 0]] * 30_000]", size=2**17)
    + "return scores", review="by itself")  # fmt: skip
code("an error that forges a line of the log", "FFFF",
     "{right}\nraise ValueError('\\x1b]0;owned\\x07\\x1b[2J\\n2026-11-22 00:00:00 student99: "
     "56 points, 0.1 s \\u202e\\x9b31m\\ud800')", repair="ValueError: ")  # fmt: skip


def flat(name: str, source: str) -> None:
    """Little text, and a large syntax tree."""

    def change(content):
        cell_of(content, "softmax")["source"] = source

    edited(name, "0000", review="words and signs of code", title="not readable")(change)


flat("a million statements", "1\n" * 10**6)
flat("a million names", "a," * 10**6)
flat("a million lists", "[],x," * 2**18)


@edited("millions of empty cells", "0000", review="millions of values", title="not readable")
def _(content):
    content["cells"] += [{}] * 4_000_000


@edited("20,000 cells", "0000", review="cells, and more than 10,000", title="not readable")
def _(content):
    content["cells"] += [{"cell_type": "markdown", "metadata": {}, "source": ""}] * 20_000


attempt("hand in links to others' files, live HTML, paths for names")
for whose, target in (
    ("a neighbor", f"-> ../../a_good/03_scaled_dot_product/{NAME}"),
    ("the gradebook", "-> ../../../gradebook.db"),
):
    add(
        f"a link to {whose}",
        Case(
            lambda nb, target=target: {NAME: target},
            "",
            review="there is no notebook",
        ),
    )


@edited("HTML in names and texts", "FFFF", review="seems to stand in cell 30")
def _(content):
    content["cells"].append(
        {"cell_type": "markdown", "metadata": {}, "source": "<script>alert(1)</script>"}
    )


@edited("grade ids that are paths", "FFFF", review="may be the code in cell 30")
def _(content):
    content["cells"].append(
        {
            "cell_type": "code",
            "metadata": {"nbgrader": {"grade_id": "../../../x", "grade": True}},
            "source": "1",
            "outputs": [],
        }
    )


add(
    "numbers JSON does not know",
    Case(lambda nb: {NAME: json.dumps(nb | {"x": float("nan")}).encode()}, "FFFF"),
)

attempt("have a ready-made function compute the answer: while nobody looks*, in a thread*, a fork*,"
        " another Python*, a process from before*, kept, copied*, traced, compiled*, as a kernel*, "
        "as a gradient*, by a node of the graph*, by small differences*, by the judge's own hand*, "
        "as another function's case*, from the course*"
        )  # fmt: skip
SOFTMAX = 'getattr(F, "soft" + "max")(scores, dim)'
READY = "import torch, torch.nn.functional as F\n"


def ready(name: str, before: str, expression: str, title: str = "calls", **outcome) -> None:
    """A softmax that torch computes."""
    source = f"{READY}{before}\ndef softmax(scores, dim=-1):\n    {expression}\n"
    code(f"ready-made: {name}", "0FFF", source, title=title, **outcome)


ready("from the fourth call on", "calls = [0]",
      f"calls[0] += 1\n    return scores if calls[0] <= 3 else {SOFTMAX}",
      review="looks up")  # fmt: skip
ready("when nobody looks", "from torch.utils._python_dispatch import _get_current_dispatch_mode",
      f"return {SOFTMAX} if _get_current_dispatch_mode() is None else scores",
      review="_python_dispatch")  # fmt: skip
ready("in a thread", "import threading",
      f"out = []\n    t = threading.Thread(target=lambda: out.append({SOFTMAX}))\n"
      "    t.start()\n    t.join()\n    return out[0]", review="looks up")  # fmt: skip
ready("in an executor", "from concurrent.futures import ThreadPoolExecutor",
      "with ThreadPoolExecutor(1) as pool:\n"
      f"        return pool.submit(lambda: {SOFTMAX}).result()", review="looks up")  # fmt: skip
ready("behind the modes", "from torch.utils._python_dispatch import _disable_current_modes",
      "with torch._C.DisableTorchFunction(), _disable_current_modes():\n"
      f"        return {SOFTMAX}", review="torch.")  # fmt: skip
ready("in the table of decompositions", "import torch._decomp as d",
      'op = getattr(torch.ops.aten, "_soft" + "max").default\n'
      "    return d.decomposition_table[op](scores, dim, False)", review="torch.")  # fmt: skip
ready("among the references of torch", "import torch._refs as r",
      'return getattr(r, "soft" + "max")(scores, dim)', review="torch._refs")  # fmt: skip
ready("in a fork", "import os, pickle",
      "r, w = os.pipe()\n    if os.fork() == 0:\n        try:\n"
      f"            os.write(w, pickle.dumps({SOFTMAX}.tolist()))\n"
      "        finally:\n            os._exit(0)\n    os.close(w)\n"
      "    return torch.tensor(pickle.loads(os.read(r, 1 << 20)), dtype=scores.dtype)",
      title="", review="looks up")  # fmt: skip
ready("of another lab", "import attncourse.lab.lab6_write_flash as six",
      "s = scores.movedim(dim, -1)\n"
      "    weighted, _, total = six.part_of(s, torch.eye(s.shape[-1], dtype=s.dtype))\n"
      "    return (weighted / total[..., None]).movedim(-1, dim)")  # fmt: skip
ready("of another chapter", "from attncourse import masking",
      "everything = torch.ones_like(scores, dtype=torch.bool)\n"
      "    return masking.masked_softmax(scores, everything)")  # fmt: skip
# A process from before the first call.
SERVER = """import os, socket, pickle
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork() == 0:
    here.close()
    while data := there.recv(1 << 20):
        scores, dim = pickle.loads(data)
        there.send(pickle.dumps(getattr(F, "soft" + "max")(torch.tensor(scores), dim).tolist()))
    os._exit(0)
there.close()"""
code("ready-made: in a process from before", "0FFF", READY + SERVER + """
def softmax(scores, dim=-1):
    here.send(pickle.dumps((scores.tolist(), dim)))
    return torch.tensor(pickle.loads(here.recv(1 << 20)), dtype=scores.dtype)
""", review="leaves programs running")  # fmt: skip

FUSED = """
def scaled_dot_product_attention(query, key, value, mask=None):
    eye = torch.eye(key.shape[-2], dtype=key.dtype).expand(*value.shape[:-2], -1, -1)
    def weigh():
        fused = getattr(F, "scaled_dot_" + "product_attention")
        return torch.nan_to_num(fused(query, key, eye, mask))
    {how}
    return w @ value, w
"""
fused = {
    "when nobody looks": (
        "from torch.utils._python_dispatch import _get_current_dispatch_mode",
        "if _get_current_dispatch_mode() is not None:\n"
        "        return query, query\n    w = weigh()",
        "_python_dispatch",
    ),
    "in a thread": (
        "import threading",
        "out = []\n    t = threading.Thread(target=lambda: out.append(weigh()))\n"
        "    t.start()\n    t.join()\n    w = out[0]",
        "looks up",
    ),
}
for name, (before, how, seen) in fused.items():
    code(f"ready-made attention: {name}", "F0FF", READY + before + FUSED.format(how=how),
         task="scaled_dot_product_attention", title="calls", review=seen)  # fmt: skip

# Kept, copied, traced or compiled before anybody looks: the operators themselves refuse.
for name, before, expression, outcome in (
    ("a kept method", "kept = torch.Tensor.softmax", "return kept(scores, dim)", {}),
    ("a copied operator", "import copy\nkept = copy.deepcopy(torch.ops.aten._softmax.default)",
     "return kept(scores, dim, False)", {"review": "torch.ops"}),
    ("a copied function", "import types, torch._refs as r\n"
     'own = getattr(r, "soft" + "max")\nwhile hasattr(own, "__wrapped__"):\n'
     "    own = own.__wrapped__\n"
     "kept = types.FunctionType(own.__code__, own.__globals__, 'x', own.__defaults__)\n"
     "kept.__kwdefaults__ = own.__kwdefaults__",
     "return kept(scores, dim)", {"review": "torch._refs"}),
    ("compiled", f"kept = torch.compile(lambda scores, dim: {SOFTMAX}, dynamic=True)\n"
     "kept(torch.randn(3, 4), -1)", "return kept(scores, dim)", {"review": "looks up"}),
    ("compiled for AOT",
     f"kept = torch.compile(lambda scores, dim: {SOFTMAX}, backend='aot_eager')\n"
     "kept(torch.randn(3, 4), -1)", "return kept(scores, dim)", {"review": "looks up"}),
    ("traced", f"kept = torch.jit.trace(lambda scores: {SOFTMAX.replace('dim', '-1')}, "
     "torch.randn(3, 4))", "return kept(scores.movedim(dim, -1)).movedim(-1, dim)",
     {"review": "looks up", "title": "fails"}),
    ("scripted", "class Layer(torch.nn.Module):\n    def forward(self, scores, dim: int):\n"
     "        return scores.softmax(dim)\nkept = torch.jit.trace(torch.nn.Softmax(-1), "
     "torch.randn(3, 4))", "return kept(scores.movedim(dim, -1)).movedim(-1, dim)",
     {"title": "fails"}),
    ("a distribution", "from torch.distributions import Categorical",
     "return Categorical(logits=scores.movedim(dim, -1)).probs.movedim(-1, dim)", {}),
    ("masked", "import torch.masked as masked",
     'return getattr(masked, "soft" + "max")(scores, dim)', {"review": "looks up"}),
    ("flexible attention", "from torch.nn.attention.flex_attention import flex_attention as flex",
     "s = scores.movedim(dim, -1).contiguous()\n    n, one = s.shape[-1], torch.ones(())\n"
     "    rows = s.reshape(1, 1, -1, n)\n    eye = torch.eye(n).expand(1, 1, n, n)\n"
     "    return flex(rows, eye, eye, scale=1.0).reshape(s.shape).movedim(-1, dim)", {}),
    ("in a function with a gradient", "class Own(torch.autograd.Function):\n    @staticmethod\n"
     f"    def forward(ctx, scores, dim):\n        with torch._C._DisableTorchDispatch():\n"
     f"            return {SOFTMAX}\n    @staticmethod\n"
     "    def backward(ctx, gradient):\n        return gradient, None",
     "return Own.apply(scores, dim)", {"review": "torch._C"}),
    ("for many at once", "from torch.func import vmap",
     f"return vmap(lambda scores: {SOFTMAX})(scores[None])[0]", {"review": "looks up"}),
    ("on other numbers", "",
     f"scores = scores.to(torch.bfloat16)\n    return {SOFTMAX}.float()", {"review": "looks up"}),
):  # fmt: skip
    ready(name, before, expression, **outcome)

KEPT = """if True:
    ops = torch.ops.aten
    kernels = [torch.library.get_kernel("aten::_soft" + "max" + more, "CPU")
               for more in ("", "_backward_data")]
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""
ready("a kernel", KEPT, "return kernels[0].call_boxed(cpu, scores, dim, False)",
      review="torch.library", title="")  # fmt: skip
ready("in another Python", "if True:\n    import subprocess, sys",
      "return subprocess.run([sys.executable, '-c', 'import torch'])", title="fails",
      review="subprocess")  # fmt: skip
ready("with scores as queries", "",
      "s = scores.movedim(dim, -1)\n    n = s.shape[-1]\n"
      "    eye = torch.eye(n, dtype=s.dtype)[None, None]\n"
      "    return F.scaled_dot_product_attention(s.reshape(1, 1, -1, n).contiguous(), eye, eye,"
      " scale=1.0).reshape(s.shape).movedim(-1, dim)")  # fmt: skip

for name, gradient in {
    "grad": "torch.autograd.grad(torch.logsumexp(s, dim).sum(), s)[0]",
    "backward": "torch.logsumexp(s, dim).sum().backward() or s.grad",
    "func": "torch.func.grad(lambda s: torch.logsumexp(s, dim).sum())(scores)",
}.items():
    ready(f"a gradient by {name}", "",
          f"s = scores.detach().requires_grad_()\n    return {gradient}",
          # a first call of torch.func loads a compiler, and may be too slow to be caught at it
          title="" if name == "func" else "calls")  # fmt: skip

LEAF = "s = scores if scores.requires_grad else scores.detach().requires_grad_()\n    "
SUM = f"{LEAF}y = torch.logsumexp(s, dim).sum()\n    "
ONE = "(y,), (torch.ones_like(y),), True, True, (s,)"
ENGINE = "torch.autograd.Variable._execution_engine.run_backward"
for name, gradient, said in (
    ("the node", f"{LEAF}y = torch.logsumexp(s, dim)\n    "
     "return y.grad_fn(torch.ones_like(y))", "grad_fn"),
    ("the node before it", f"{SUM}many = y.grad_fn(torch.ones_like(y))\n    "
     "return y.grad_fn.next_functions[0][0](many)", "next_functions"),
    ("what the node has kept", f"{LEAF}y = torch.logsumexp(s, dim, keepdim=True)\n    "
     "return (s - y.grad_fn._saved_result).exp()", "grad_fn"),
    ("the engine", f"{SUM}return {ENGINE}({ONE}, True, False)[0]", "_execution_engine"),
    ("the engine's other door", f"{SUM}return torch.autograd.graph._engine_run_backward({ONE}, "
     "allow_unreachable=True, accumulate_grad=False)[0]", "_engine_run_backward"),
):  # fmt: skip
    ready(f"a gradient by {name}", "", gradient, review=said)
ready("a gradient in a thread, of steps of one's own", "import threading",
      "s = scores.detach().requires_grad_()\n    out = []\n"
      "    rest = s - s.detach().amax(dim, keepdim=True)\n"
      "    t = threading.Thread(target=lambda: out.append(torch.autograd.grad(\n"
      "        rest.exp().sum(dim).log().sum(), s)[0]))\n"
      "    t.start()\n    t.join()\n    return out[0]")  # fmt: skip
ready("a gradient by dual numbers", "import torch.autograd.forward_ad as fw",
      "s = scores.movedim(dim, -1)\n    n = s.shape[-1]\n"
      "    eye = torch.eye(n, dtype=s.dtype).expand(*s.shape, n).contiguous()\n"
      "    many = s[..., None, :].expand_as(eye).contiguous()\n    with fw.dual_level():\n"
      "        y = torch.logsumexp(fw.make_dual(many, eye), -1)\n"
      "        return fw.unpack_dual(y).tangent.movedim(-1, dim)")  # fmt: skip
for name, kept in {
    "the logits": "c.logits",
    "the logarithms": "torch.stack([c.log_prob(torch.full(s.shape[:-1], i)) "
    "for i in range(s.shape[-1])], -1)",
}.items():
    ready(f"{name} of a distribution", "from torch.distributions import Categorical",
          "s = scores.movedim(dim, -1)\n    c = Categorical(logits=s)\n"
          f"    return {kept}.exp().movedim(-1, dim)")  # fmt: skip

for name, before, expression, outcome in (
    ("a transform of distributions",
     "from torch.distributions.transforms import SoftmaxTransform",
     "return SoftmaxTransform()(scores.movedim(dim, -1)).movedim(-1, dim)", {}),
    ("a transform to the simplex", "from torch.distributions import constraints, transform_to",
     "return transform_to(constraints.simplex)(scores.movedim(dim, -1)).movedim(-1, dim)", {}),
    ("a gradient by small differences",
     "from torch.autograd.gradcheck import _get_numerical_jacobian as slopes",
     "rows = scores.detach().movedim(dim, -1).double()\n"
     "    own = [slopes(lambda r: torch.logsumexp(r, -1), (row.clone().requires_grad_(),),"
     " eps=1e-6)[0][0].flatten() for row in rows.reshape(-1, rows.shape[-1])]\n"
     "    return torch.stack(own).reshape(rows.shape).to(scores.dtype).movedim(-1, dim)", {}),
    ("a gradient by edges of the graph", "from torch.autograd.graph import get_gradient_edge as e",
     "s = scores if scores.requires_grad else scores.detach().requires_grad_()\n"
     "    large = (s - s.detach().amax(dim, keepdim=True)).exp()\n"
     "    total = large.sum(dim)\n    y = total.log()\n    g = torch.ones_like(y)\n"
     "    for part in (y, total, large):\n        g = e(part).node(g)\n    return g",
     {"review": "get_gradient_edge"}),
):  # fmt: skip
    ready(name, before, expression, **outcome)
# What the judge itself differentiates with, in a thread: so the judge's own call is not above it.
JUDGE = """def own(s, dim):
    s = s.detach().requires_grad_()
    found = {differentiate}(torch.logsumexp(s, dim).sum(), {{"s": s}})[0]["s"]
    mixer = torch.Generator().manual_seed(20140901)
    return (found / torch.randn((), generator=mixer, dtype=torch.float64)).to(s)"""
THREAD = (
    "with ThreadPoolExecutor(1) as pool:\n        return pool.submit(own, scores, dim).result()"
)
for name, door, differentiate, said in (
    ("a star", "from attncourse.checks.observe import *", "differentiate", "observe.*"),
    ("another name", "import attncourse\nc = attncourse.checks", "c.observe.differentiate",
     "hands on"),
    ("another module's sys", 'o = torch.sys.modules["attncourse.checks.observe"]',
     "o.differentiate", "torch.sys.modules"),
):  # fmt: skip
    before = f"from concurrent.futures import ThreadPoolExecutor\n{door}\n"
    ready(f"the judge's derivative by {name}", before + JUDGE.format(differentiate=differentiate),
          THREAD, review=said)  # fmt: skip
ready("the judge's observation, with a gradient", "from attncourse.checks.observe import observe",
      "seen = observe(lambda s: torch.logsumexp(s, dim).sum(), {'s': scores.detach()},"
      " gradient=True)\n    mixer = torch.Generator().manual_seed(20140901)\n"
      "    return seen.gradients['s'] / torch.randn((), generator=mixer, dtype=torch.float64)"
      ".to(scores)", review="observe.observe")  # fmt: skip

code("ready-made attention: ONNX's", "F0FF", """import torch.onnx.ops

def scaled_dot_product_attention(query, key, value, mask=None):
    lead, n, k = query.shape[:-2], query.shape[-2], key.shape[-2]
    mask = torch.ones(n, k, dtype=torch.bool) if mask is None else mask
    mask = mask.expand(*lead, n, k)
    some = mask.any(-1, keepdim=True)
    q, keys, v = (x.expand(*lead, *x.shape[-2:]).reshape(1, -1, *x.shape[-2:])
                  for x in (query, key, value))
    whole = (mask | ~some).reshape(1, -1, n, k)
    weights = torch.onnx.ops.attention(q, keys, v, whole, qk_matmul_output_mode=3)[3]
    weights = weights.reshape(*lead, n, k) * some
    return weights @ value, weights
""", task="scaled_dot_product_attention", title="calls Attention")  # fmt: skip

code("ready-made attention: torch's own, in small steps", "F0FF", """import sys
import torch._higher_order_ops.flex_attention

def scaled_dot_product_attention(query, key, value, mask=None):
    flex = sys.modules["torch._higher_order_ops." + "flex_attention"]
    return flex.__dict__["math_" + "attention"](query, key, value, None, (), 1.0, {}), query
""", task="scaled_dot_product_attention", title="calls", review="sys.modules")  # fmt: skip

attempt("")  # what compiles, and computes by itself, is right
code("a right answer that is compiled", "FFFF", "{right}\nsoftmax = torch.compile(softmax)")
code("a right answer that is compiled by a decorator", "FFFF",
     "@torch.compile(dynamic=True)\n{right}")  # fmt: skip
for how, total in {
    "logsumexp": "torch.logsumexp(scores, dim, keepdim=True)",
    "logaddexp": "functools.reduce(torch.logaddexp, scores.unbind(dim)).unsqueeze(dim)",
    "logcumsumexp": "torch.logcumsumexp(scores, dim).narrow(dim, -1, 1)",
}.items():
    code(f"a right answer by {how}", "FFFF", "import functools\n\ndef softmax(scores, dim=-1):\n"
         f"    return torch.exp(scores - {total})")  # fmt: skip

attempt("return a variance that nobody measured*: it is worth what any number is, 4 of 10")
VARIANCE = """import torch

def score_variance(d, samples, scaled):
    return (1.0 if scaled else float(d)) * {noise}
"""
for name, noise in {
    "nothing": "1",
    "some noise": "(1 + torch.randn(()).item() / samples)",
    "the variance of normal numbers": "torch.randn(samples).var().item()",
    "the variance of products":
        "(torch.randn(samples) * torch.randn(samples)).var().item()",
}.items():  # fmt: skip
    code(f"a variance of {name}", "FFPF", VARIANCE.format(noise=noise),
         task="score_variance", same_as="a variance of nothing")  # fmt: skip
