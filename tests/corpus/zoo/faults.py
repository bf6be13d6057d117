"""Honest accidents: loops, crashes, memory, lost marks, odd files."""

import copy
import json

from corpus.zoo import (
    ASSIGNMENT,
    NAME,
    TASKS,
    Case,
    add,
    attempt,
    cell_of,
    code,
    edited,
    files,
    grade_id,
    source_of,
)

attempt("")

# --- code that does not end, or ends too much

code("loop at the top", "FFFF", "{right}\nwhile True:\n    pass", repair="endless loop")
code("loop in the answer", "0FFF", "def softmax(scores, dim=-1):\n    while True:\n        pass")
code(
    "loop that swallows everything",
    "0FFF",
    "def softmax(scores, dim=-1):\n"
    "    while True:\n"
    "        try:\n"
    "            while True:\n"
    "                pass\n"
    "        except BaseException:\n"
    "            pass",
)
code("sleeps", "0FFF", "import time\n\ndef softmax(scores, dim=-1):\n    time.sleep(3600)")
code("exits", "0FFF", "import os\n\ndef softmax(scores, dim=-1):\n    os._exit(1)")
code("crashes", "0FFF", "import faulthandler\n\ndef softmax(scores, dim=-1):\n"
     "    faulthandler._read_null()")  # fmt: skip
code("crashes at the top", "FFFF", "{right}\nimport faulthandler\nfaulthandler._read_null()",
     repair="crash")  # fmt: skip
code("quits at the top", "FFFF", "quit()\n{right}")
code("sys.exit above the answer", "FFFF", "import sys\nsys.exit()\n{right}")
code("sys.exit in the answer", "0FFF", "def softmax(scores, dim=-1):\n    raise SystemExit")
code("interrupt in the answer", "0FFF", "def softmax(scores, dim=-1):\n    raise KeyboardInterrupt")
code("recursion", "0FFF", "def softmax(scores, dim=-1):\n    return softmax(scores, dim)")
code(
    "recursion without a limit",
    "0FFF",
    "import sys\nsys.setrecursionlimit(10**9)\n\n"
    "def softmax(scores, dim=-1):\n    return max(softmax(scores, dim), 0)",
)
code(
    "memory in one piece",
    "0FFF",
    "def softmax(scores, dim=-1):\n    return torch.ones(10**11)",
)
code(
    "memory piece by piece",
    "0FFF",
    "def softmax(scores, dim=-1):\n"
    "    kept = []\n"
    "    while True:\n"
    "        kept.append(bytearray(50_000_000))",
)
code("memory at the top", "FFFF", "{right}\nkept = [bytearray(10**8) for _ in range(10**4)]")
code("huge result", "0FFF", "def softmax(scores, dim=-1):\n    return torch.zeros(10**7 + 1)")
code("not a number", "PFFF", "def softmax(scores, dim=-1):\n    return scores * float('nan')")
code("syntax error", "0FFF", "def softmax(scores, dim=-1)\n    return scores", repair="SyntaxError")
code("null byte", "0FFF", "def softmax(scores, dim=-1):\n    return '\0'", repair="cell")
code(
    "raises at the top", "FFFF", "raise NotImplementedError\n{right}", repair="NotImplementedError"
)
code("tests of one's own fail", "FFFF", "{right}\nassert softmax(torch.ones(2)).sum() == 7")
code(
    "wrong answer that later ones call",
    "PFFF",
    "def softmax(scores, dim=-1):\n    return scores.sigmoid()",
    title="D-SOFTMAX-SIGMOID",
)
code("never defined", "0FFF", "soft_max = 1", review="should define `softmax`")
code("defined under another name", "0FFF", "def my_softmax(scores, dim=-1):\n    return scores",
     review="defines `my_softmax`")  # fmt: skip
code("not a function", "0FFF", "softmax = 3", title="not a function")
code("deleted again", "0FFF", "{right}\ndel softmax")

# --- right, but loud or odd

code("prints", "FFFF", "{right}", task="score_variance")
code(
    "prints a million lines",
    "FFFF",
    "{right}\nquiet = softmax\n\n"
    "def softmax(scores, dim=-1):\n"
    "    print('x\\n' * 100_000)\n"
    "    return quiet(scores, dim)",
)
code(
    "one line of 20 MB",
    "FFFF",
    "{right}\nquiet = softmax\n\n"
    "def softmax(scores, dim=-1):\n"
    "    print('x' * 20_000_000)\n"
    "    return quiet(scores, dim)",
)
code(
    "warns on stderr",
    "FFFF",
    "import sys, warnings\n{right}\nquiet = softmax\n\n"
    "def softmax(scores, dim=-1):\n"
    "    warnings.warn('hm')\n"
    "    print('hm', file=sys.stderr)\n"
    "    return quiet(scores, dim)",
)
code(
    "a progress bar",
    "FFFF",
    "from tqdm import tqdm\n{right}\nquiet = softmax\n\n"
    "def softmax(scores, dim=-1):\n"
    "    for _ in tqdm(range(3)):\n"
    "        pass\n"
    "    return quiet(scores, dim)",
)
code("shell and magic lines", "FFFF", "!pip install nothing\n%matplotlib inline\n{right}\n!ls")
code("a cell magic", "FFFF", "%%time\n{right}")
code("checks in the same cell", "FFFF", "{right}\ncheck('softmax')\nhint('softmax')")
code("default dtype changed", "FFFF", "torch.set_default_dtype(torch.float64)\n{right}")
code("gradients switched off", "FFFF", "torch.set_grad_enabled(False)\n{right}")
code(
    "threads left over",
    "FFFF",
    "import threading, time\n{right}\nquiet = softmax\n\n"
    "def softmax(scores, dim=-1):\n"
    "    threading.Thread(target=time.sleep, args=(0.01,), daemon=True).start()\n"
    "    return quiet(scores, dim)",
)
code("ligature in the name", "FFFF", "{right}\nkeep = softmax\ndef ſoftmax(scores, dim=-1):\n"
     "    return keep(scores, dim)")  # fmt: skip
code("another alphabet in the name", "0FFF", "def softmаx(scores, dim=-1):\n    return scores",
     review="should define `softmax`")  # fmt: skip


# --- the notebook's marks


@edited("answer cell copied, the copy edited", "FFFF", repair="answered 2 times")
def _(content):
    place = content["cells"].index(cell_of(content, "softmax"))
    stub = copy.deepcopy(content["cells"][place])
    stub["source"] = "def softmax(scores, dim=-1):\n    return scores"
    content["cells"].insert(place, stub)


@edited("empty cell copied below the answer", "FFFF")
def _(content):
    from corpus.zoo import notebook

    place = content["cells"].index(cell_of(content, "softmax"))
    content["cells"].insert(place + 3, cell_of(notebook("exercises"), "softmax"))


@edited("metadata lost", "FFFF")
def _(content):
    for cell in content["cells"]:
        cell["metadata"] = {}


@edited("metadata and markers lost", "FFFF", review="sys.modules", repair="has lost its marks")
def _(content):
    for cell in content["cells"]:
        lines = source_of(cell).splitlines(keepends=True)
        cell["metadata"] = {}
        cell["source"] = [line for line in lines if "# attncourse:" not in line]


@edited("saved by Colab", "FFFF")
def _(content):
    content["nbformat_minor"] = 0
    content["metadata"]["colab"] = {"provenance": [], "gpuType": "T4"}
    for cell in content["cells"]:
        cell["metadata"]["id"] = cell.pop("id", "x")
        cell["metadata"]["outputId"] = "9a7f"


@edited("saved by Colab, metadata gone, a pip line added", "FFFF")
def _(content):
    content["nbformat_minor"] = 0
    for cell in content["cells"]:
        cell["metadata"] = {"id": cell.pop("id", "x")}
    content["cells"].insert(
        0, {"cell_type": "code", "metadata": {}, "source": "!pip install x", "outputs": []}
    )


@edited("answer cell deleted", "0FFF", review="no cell answers `softmax`")
def _(content):
    content["cells"].remove(cell_of(content, "softmax"))


@edited("question deleted", "FFFF", review="the written answer `why-scaled` is not there")
def _(content):
    content["cells"].remove(cell_of(content, "why-scaled"))


@edited("check cells deleted", "FFFF")
def _(content):
    content["cells"] = [c for c in content["cells"] if "check" not in grade_id(c)]


@edited("check cells edited", "0FFF")
def _(content):
    cell_of(content, "softmax")["source"] = "def softmax(scores, dim=-1):\n    return None"
    for cell in content["cells"]:
        if grade_id(cell).endswith(("check", "hidden")):
            cell["source"] = "6.0"


@edited("points edited", "FFFF")
def _(content):
    for cell in content["cells"]:
        if "points" in cell["metadata"].get("nbgrader", {}):
            cell["metadata"]["nbgrader"]["points"] = 1000


@edited("answer turned into text", "FFFF", repair="is not a code cell")
def _(content):
    cell = cell_of(content, "softmax")
    cell["cell_type"] = "markdown"


for version in (99, 1, "x", None):

    def change(content, version=version):
        for cell in content["cells"]:
            if "nbgrader" in cell["metadata"]:
                cell["metadata"]["nbgrader"]["schema_version"] = version

    edited(f"schema_version {version}", "FFFF")(change)


@edited("grade flags off", "FFFF")
def _(content):
    for cell in content["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"] |= {"grade": False, "solution": True}


@edited("metadata of odd types", "FFFF")
def _(content):
    for cell in content["cells"]:
        cell["metadata"] = [1, 2] if cell["cell_type"] == "code" else {"nbgrader": "yes"}


@edited("a helper in a cell of one's own", "FFFF")
def _(content):
    cell = cell_of(content, "softmax")
    place = content["cells"].index(cell)
    own = {"cell_type": "code", "metadata": {}, "outputs": [], "source": ""}
    content["cells"].insert(
        place,
        own | {"source": "AXIS = -1\ndef shift(x, dim):\n    return x - x.amax(dim, keepdim=True)"},
    )
    cell["source"] = (
        "def softmax(scores, dim=AXIS):\n"
        "    weights = shift(scores, dim).exp()\n"
        "    return weights / weights.sum(dim, keepdim=True)"
    )


@edited("nothing done", "0000", title="not answered yet")
def _(content):
    from corpus.zoo import notebook

    return notebook("exercises")


@edited("all in one cell", "FFFF", review="no cell answers")
def _(content):
    everything = "\n\n".join(source_of(cell_of(content, task)) for task in TASKS)
    for task in TASKS[1:]:
        content["cells"].remove(cell_of(content, task))
    cell_of(content, "softmax")["source"] = everything


# --- the file


@edited("version 3", "FFFF")
def _(content):
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["input"] = cell.pop("source")
    return {"nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": content["cells"]}]}


@edited("version 5", "FFFF")
def _(content):
    content["nbformat"] = 5


@edited("30 MB of outputs", "FFFF")
def _(content):
    text = {"output_type": "stream", "name": "stdout", "text": "x" * 30_000_000}
    cell_of(content, "softmax")["outputs"] = [text]


@edited("a cell that is no cell", "FFFF")
def _(content):
    content["cells"] += ["text", None, 3, {"cell_type": "code"}, {"source": 3, "cell_type": []}]


def raw(name: str, data: bytes, review: str) -> None:
    add(name, Case(lambda content: {NAME: data}, "0000", review=review, title="not readable"))


raw("empty file", b"", "the file is empty")
raw("broken JSON", b'{"cells": [', "its JSON is broken")
raw("deep JSON", b'{"cells":' + b"[" * 100_000, "its JSON")
raw("a list", b"[1, 2]", "not a notebook")
raw("not JSON at all", b"\x89PNG\r\n\x1a\n\0\0", "its JSON is broken")
raw("merge conflict", b"{\n<<<<<<< HEAD\n}\n=======\n>>>>>>> x\n", "merge conflict")


@edited("a data table of 1.5 MiB beside the answer", "FFFF")
def _(content):
    numbers = ", ".join(f"{n / 7:.5f}" for n in range(150_000))
    table = {"cell_type": "code", "metadata": {}, "outputs": [], "source": f"x = [{numbers}]"}
    content["cells"].insert(0, table)


@edited("a picture of 3 MiB in a written answer", "FFFF")
def _(content):
    cell_of(content, "why-scaled")["source"] = "![x](data:image/png;base64," + "A" * 3 * 2**20 + ")"


@edited("3 MiB of code", "0000", review="3.0 MiB of code", title="not readable")
def _(content):
    cell_of(content, "softmax")["source"] += "\n# " + "x" * 3 * 2**20


def sent(name: str, points: str, make, **outcome) -> None:
    add(name, Case(make, points, **outcome))


sent("byte order mark", "FFFF", lambda nb: {NAME: b"\xef\xbb\xbf" + json.dumps(nb).encode()})
sent("renamed by Colab", "FFFF", lambda nb: files(nb, f"Copy of {NAME}"), repair="was named")
sent(
    "renamed by a browser",
    "FFFF",
    lambda nb: files(nb, f"{ASSIGNMENT} (1).ipynb"),
    repair="was named",
)
sent(
    "two notebooks",
    "",
    lambda nb: files(nb, "a.ipynb") | files(nb, "b.ipynb"),
    review="several notebooks",
)
sent("no notebook", "", lambda nb: {"a.txt": b"x"}, review="there is no notebook")
sent("files beside it", "FFFF", lambda nb: files(nb) | {"torch.py": b"1/0", "random.py": b"1/0"})
sent("bad timestamp", "FFFF", lambda nb: files(nb) | {"timestamp.txt": b"soon"})

# --- right, and easily taken for something else

PLAIN = """def softmax(scores, dim=-1):
    weights = (scores - scores.amax(dim, keepdim=True)).exp()
    return weights / weights.sum(dim, keepdim=True)
"""
code("a ready-made function in a cell, and its result's name in the answer", "FFFF",
     f"scores = torch.randn(3, 4)\nweights = torch.softmax(scores, -1)\n{PLAIN}")  # fmt: skip
code("a comparison with the ready-made function", "FFFF",
     f"{PLAIN}\nscores = torch.randn(3, 4)\n"
     "assert torch.allclose(softmax(scores), torch.softmax(scores, -1))")  # fmt: skip
code("a constant, a lambda and a slow line", "FFFF",
     "import time\nkeep = True\nexp = lambda scores: scores.exp()\ntime.sleep(99)\n"
     + PLAIN.replace("keepdim=True", "keepdim=keep"), repair="endless loop")  # fmt: skip
SMALL = "small = float('1e-9')\n" + PLAIN.replace("exp()", "exp() + 0 * small")
code("slow lines before a constant that is computed", "FFFF",
     f"import time\n{'time.sleep(99); ' * 7}\n{SMALL}", repair="stopped after 0.25")  # fmt: skip
code("a line that nobody can stop before a constant that is computed", "0FFF",
     "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n"
     f"        pass\n{SMALL}", repair="endless loop", review="may need what was left out",
     title="fails")  # fmt: skip
code("an answer that is scripted", "FFFF",
     "@torch.jit.script\n" + PLAIN.replace("dim=-1", "dim: int = -1"))  # fmt: skip
code("an answer in a condition", "FFFF",
     "if not torch.cuda.is_available():\n    def softmax(scores, dim=-1):\n"
     "        weights = (scores - scores.amax(dim, keepdim=True)).exp()\n"
     "        return weights / weights.sum(dim, keepdim=True)")  # fmt: skip
code("two names at once", "FFFF", f"{PLAIN}\nsoftmax, other = softmax, 1")
code("a name of many digits", "FFFF",
     "def other():\n    return getattr(torch, 0x" + "f" * 5000 + ")\n\n" + PLAIN)  # fmt: skip
code("long chains of names", "FFFF",
     PLAIN + "\ndef other(scores):\n" + f"    scores{'.a' * 900}\n" * 40)  # fmt: skip
code(
    "warnings that are errors",
    "FFFF",
    'import warnings\nwarnings.filterwarnings("error")\n' + PLAIN,
)
