"""Grading's promises: jailed answers are judged as in a notebook, and a killed run goes on."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
import types
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT, copy_course, give_to_nobody, heeds_interrupts, points_of
from corpus.correct import CORRECT, TASKS
from typer.testing import CliRunner

from attncourse import __main__ as entrance
from attncourse import cli
from attncourse.checks import engine, registry, without_secrets
from attncourse.grading import CannotGrade
from attncourse.grading.books import disk, nbgrader_api, results, run
from attncourse.grading.books.gradebook import Writer
from attncourse.grading.inbox import sample, submission
from attncourse.grading.jail import (
    cgroup,
    packages,
    processes,
    remote,
    score,
    walls,
    warm,
    wire,
    withheld,
    workers,
)
from attncourse.grading.jail import grade as pure
from attncourse.grading.jail.grade import grade_bytes
from attncourse.grading.jail.job import TRIES, Budget, Job
from attncourse.grading.jail.remote import (
    Child,
    Died,
    Ended,
    Killed,
    Meddled,
    RemoteAnswer,
    Sandbox,
    Stood,
    WithoutZygote,
    Zygote,
    children,
)
from attncourse.grading.jail.result import Result, Verdict, nothing

ASSIGNMENTS = sorted(path.name for path in (ROOT / "solutions").iterdir() if path.is_dir())
CHAPTER_3 = "03_scaled_dot_product"
JUDGED, POINTS = points_of(CHAPTER_3)
linux = pytest.mark.skipif(sys.platform != "linux", reason="the jail is made of Linux namespaces")


def assignment(name: str) -> submission.Assignment:
    both = (json.loads(notebook(folder, name)) for folder in ("solutions", "exercises"))
    return submission.assignment_of(name, *both)


def notebook(folder: str, name: str) -> bytes:
    return (ROOT / folder / name / f"{name}.ipynb").read_bytes()


def answers(folder: str, name: str) -> submission.Submission:
    return submission.read(notebook(folder, name), assignment(name))


# --- what travels between the processes


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        "text ✓",
        [1, (2, "x"), {"a": None, 3: [True]}],
        torch.randn(2, 0, 3),
        torch.tensor(3.0, dtype=torch.float16),
        torch.tensor([[True, False]]),
        torch.arange(6).reshape(2, 3).T,
    ],
    ids=str,
)
def test_plain_data_arrives_as_it_was_sent(value):
    ours, theirs = socket.socketpair()
    wire.send(ours, value)
    came = wire.receive(theirs)
    if isinstance(value, torch.Tensor):
        assert came.dtype == value.dtype and torch.equal(came, value)
    else:
        assert came == value


def test_objects_arrive_as_no_more_than_their_name():
    ours, theirs = socket.socketpair()
    wire.send(ours, [socket.AF_INET, object(), lambda: 1])
    _, thing, function = wire.receive(theirs)
    assert type(thing).__name__ == "object" and type(function).__name__ == "function"
    assert not callable(function)


@pytest.mark.parametrize(
    "header",
    [b"", b"[", b"{}", b'["tensor","float32",[9],0]', b'["tensor","float32",[-1],0]',
     b'["tensor","object",[1],0]', b'["tensor","float32",["1"],0]', b'["nothing"]',
     b'["dict",1]', b'["other"]', b"[" * 900_000],
)  # fmt: skip
def test_a_forged_message_is_refused(header):
    ours, theirs = socket.socketpair()
    data = wire._LENGTHS.pack(len(header), 0) + header
    threading.Thread(target=ours.sendall, args=(data,), daemon=True).start()
    with pytest.raises(wire.Malformed):
        wire.receive(theirs)


def test_a_short_message_cannot_ask_for_much_memory():
    """Every byte of the body is in one tensor at most, whatever the header says."""
    form = ["list", *[["tensor", "uint8", [2**20], 0]] * 300]
    header = json.dumps(form).encode()
    ours, theirs = socket.socketpair()
    data = wire._LENGTHS.pack(len(header), 2**20) + header + bytes(2**20)
    threading.Thread(target=ours.sendall, args=(data,), daemon=True).start()
    tracemalloc.start()
    with pytest.raises(wire.Malformed):
        wire.receive(theirs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_a_question_may_hold_two_megabytes_of_code_and_a_reply_not():
    code = "é" * submission.MOST_CODE
    ours, theirs = socket.socketpair()
    data = wire.pack((1, code), wire.QUESTION)
    threading.Thread(target=ours.sendall, args=(data,), daemon=True).start()
    assert wire.receive(theirs, longest=wire.QUESTION) == (1, code)
    with pytest.raises(wire.Malformed):
        wire.pack((1, code))


# --- judged in a jail as in a notebook


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_solution_gets_everything_and_a_release_nothing(name, zygote):
    about = assignment(name)
    best = score.score(answers("solutions", name), about, zygote, Budget())
    assert best.score == about.points - sum(about.questions.values()), best
    assert not best.review and not best.repairs
    none = score.score(answers("exercises", name), about, zygote, Budget())
    assert none.score == 0 and not none.review
    titles = {verdict.title for verdict in none.verdicts.values()}
    assert titles == {"not answered yet"}


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("def softmax(x)\n    pass", "not defined (SyntaxError: expected ':')"),
        ("softmax = made(1)", "not defined (NameError: name 'made' is not defined)"),
        ("", "not defined"),
    ],
)
def test_an_answer_that_is_not_defined_says_why(zygote, source, title):
    found = answers("solutions", ASSIGNMENTS[2])
    code = [
        (label, source if "def softmax(" in own else own, whole) for label, own, whole in found.code
    ]
    result = score.score(replace(found, code=code), assignment(ASSIGNMENTS[2]), zygote, Budget())
    assert [each.title for each in result.verdicts.values()] == [title, "", "", ""]


def judged(zygote, task: str, source: str):
    chapter = registry.find(task).chapter
    (name,) = (each for each in ASSIGNMENTS if each.endswith(chapter))
    allowed = submission.named_in(assignment(name).released.values())
    code = [("cell 1", "import math\nimport torch\n" + source, True)]
    sandbox = Sandbox(zygote, [task], code, allowed=allowed)
    try:
        return engine.run(task, RemoteAnswer(sandbox, task))
    finally:
        sandbox.close()


@linux
@pytest.mark.slow
@pytest.mark.parametrize("chapter", sorted(registry.chapters()))
def test_a_misconception_is_named_through_the_wall(chapter, zygote):
    for task in registry.of_chapter(chapter)[::3]:
        assert_named([next(with_sources(task))], zygote)  # all of all tasks: sweeps.py


def with_sources(task):
    """The faults that can be handed in; what a function has made stands nowhere as it is."""
    for fault in reversed(task.faults.values()):
        with contextlib.suppress(LookupError):
            sample.source_of_fault(fault)
            yield fault


def assert_named(faults, zygote):
    for fault in faults:
        source = "import math\nimport torch\n" + sample.source_of_fault(fault)
        report, names = judged(zygote, fault.task, source), {}
        exec(source, names)  # a new one: some remember how they were called before
        here = engine.run(fault.task, names[fault.task])
        assert report.earned == here.earned, fault.id
        assert report.diagnosis.ids == here.diagnosis.ids, fault.id


OF_THE_JUDGE = {
    "sinusoidal_positions": """
from attncourse.tasks.self_attention.is_permutation_equivariant import waves
def sinusoidal_positions(length, width):
    return waves(torch.zeros(1, length, width))
""",
    "scaled_dot_product_attention": """
from attncourse.tasks.lab3_who_computed_it.sees_future import attend
def scaled_dot_product_attention(query, key, value, mask=None):
    weights = attend(query, mask)
    return weights @ value, weights
""",
    "lab4_receipt": """
from attncourse.lab.receipts import encode
from attncourse.tasks import made_up
def lab4_receipt():
    return encode(made_up.record("lab4_sequential_or_parallel", made_up.T4, {}, [], seed=4))
""",
}


@linux
@pytest.mark.slow
@pytest.mark.parametrize("task", OF_THE_JUDGE)
def test_what_the_judge_has_made_for_itself_is_nothing_to_an_answer(task, zygote):
    source = OF_THE_JUDGE[task]
    if task != "sinusoidal_positions":  # another task of its assignment needs these waves
        assert judged(zygote, task, source).earned == 0
    assert submission.odd_code([("cell 1", source, True)], [registry.find("softmax")])


# What a lab has ready-made for a task is there for others; it is not before this one is judged.
COPIED = {
    "fit_growth": ("fits", ["fit_exponent"], "sizes, seconds", "f(sizes, seconds).exponent"),
    "sees_future": ("backends", ["sees_future"], "fn, x", "f(fn, x)"),
    "which_backend": ("backends", ["backend_of"], "fn", 'f(fn) or "NONE"'),
    "attention_work": (
        "roofline",
        ["attention_flops", "naive_bytes", "fused_bytes"],
        "b, h, n, d, bytes_per_number, causal, backward",
        "{'flops': f(b, h, n, d, None, causal, backward), "
        "'naive_bytes': g(b, h, n, d, None, bytes_per_number), "
        "'fused_bytes': k(b, h, n, d, None, bytes_per_number)}",
    ),
}


@linux
@pytest.mark.slow
@pytest.mark.parametrize("task", COPIED)
def test_what_a_lab_has_ready_made_cannot_be_copied(task, zygote):
    module, names, arguments, result = COPIED[task]
    lines = ["import types", f"import attncourse.lab.{module} as own", "code = '__co' + 'de__'"]
    for letter, name in zip("fgk", names, strict=False):
        lines += [
            f"{letter} = types.FunctionType(getattr(own.{name}, code), vars(own), 'x')",
            f"{letter}.__defaults__ = own.{name}.__defaults__",
            f"{letter}.__kwdefaults__ = own.{name}.__kwdefaults__",
        ]
    source = "\n".join([*lines, f"def {task}({arguments}):", f"    return {result}", ""])
    here = {}
    exec(source, here)
    assert engine.run(task, here[task]).earned > 0  # it would do
    assert judged(zygote, task, source).earned == 0


# What is ready-made of tasks of other chapters than the zoo's.
READY_MADE = {
    "masked_softmax": """
def masked_softmax(scores, mask):
    mask = mask.expand_as(scores)
    return torch.nan_to_num(torch.masked.softmax(scores, -1, mask=mask))
""",
    "masked_softmax, of a tensor with a mask": """
from torch.masked import masked_tensor
def masked_softmax(scores, mask):
    both = masked_tensor(scores.detach(), mask.expand_as(scores).contiguous())
    return torch.nan_to_num(torch.softmax(both, -1).get_data()) * mask
""",
    "masked_softmax, the operator": """
def masked_softmax(scores, mask):
    hidden = ~mask.expand_as(scores)
    return torch.nan_to_num(torch._masked_softmax(scores, hidden, scores.dim() - 1)) * mask
""",
    "causal_mask": """
def causal_mask(query_length, key_length=None):
    q, k = query_length, key_length or query_length
    seen = torch.nn.Transformer.generate_square_subsequent_mask(max(k, q)) == 0
    return seen[max(k - q, 0):max(k, q), :k][:q]
""",
    "rotate": """
import torch.onnx.ops
def rotate(x, positions, base=10000.0):
    d, n = x.shape[-1], x.shape[-2]
    angles = positions[..., None].to(x.dtype) * base ** (-torch.arange(0, d, 2).to(x.dtype) / d)
    angles = angles.expand(*x.shape[:-1], d // 2).reshape(-1, n, d // 2)
    cos, sin = angles.cos().contiguous(), angles.sin().contiguous()
    rows = x.reshape(-1, 1, n, d)
    return torch.onnx.ops.rotary_embedding(rows, cos, sin, interleaved=True).reshape(x.shape)
""",
    "cache_bytes": """
from attncourse.lab.roofline import cache_bytes_per_token
def cache_bytes(b, layers, kv_heads, n, d, bytes_per_number):
    return b * n * cache_bytes_per_token(layers, kv_heads, d, bytes_per_number)
""",
    "cache_bytes, layer by layer": """
from attncourse.lab.roofline import decode_bytes
def cache_bytes(b, layers, kv_heads, n, d, bytes_per_number):
    return layers * decode_bytes(b, kv_heads, n, d, bytes_per_number)
""",
    "masked_softmax, of what is sparse": """
def masked_softmax(scores, mask):
    m = mask.expand(scores.shape)
    s = torch.sparse_coo_tensor(m.nonzero().T, scores[m], scores.shape, is_coalesced=True)
    return torch.sparse.softmax(s, -1).to_dense()
""",
    "bytes_per_token": """
from attncourse.lab import roofline
def bytes_per_token(scheme, num_layers, num_heads, head_width, bytes_per_number, kv_heads=None,
                    latent_width=None, rope_width=None):
    heads = {"MHA": num_heads, "GQA": kv_heads, "MQA": 1}[scheme]
    return roofline.cache_bytes_per_token(num_layers, heads, head_width, bytes_per_number)
""",
    "beam_search": """
from attncourse.experiments.one_stack_curves import normalized_beam_search
def beam_search(step, state, bos, eos, width, max_length):
    return normalized_beam_search(step, state, bos, eos, width, max_length, 0)
""",
    "bench": """
from attncourse.lab.timing import compare
def bench(fn, flush):
    both = compare({"f": fn}, samples=30, device="cuda", flush=flush, progress=False)
    return both["f"].seconds
""",
    "summarize": """
from attncourse.lab.timing import Sample
def summarize(samples):
    sample = Sample("x", list(samples), [], "wall", {})
    return sample.median, sample.iqr
""",
    "name_the_mistake": """
from attncourse.lab.stopwatches import explain
def name_the_mistake(ratios):
    return {None: "none"}.get(explain(ratios), "mean")
""",
    "fit_growth, by the insides": """
import numpy as np
from attncourse.lab import fits
def fit_growth(sizes, seconds):
    n, seconds = np.array(sizes, float), np.array(seconds, float)
    order = np.argsort(n)
    return float(fits._power(n[order], seconds[order]).exponent)
""",
    "longest_chain": """
import networkx as nx
def longest_chain(needs):
    graph = nx.DiGraph()
    graph.add_nodes_from(needs)
    graph.add_edges_from((a, b) for b, many in needs.items() for a in many)
    return nx.dag_longest_path_length(graph) + 1 if needs else 0
""",
    "exact_match_by_length": """
from attncourse.training import shares_by
def exact_match_by_length(predictions, targets, lengths):
    if not len(predictions) == len(targets) == len(lengths):
        raise ValueError("lengths differ")
    right = [list(a) == list(b) for a, b in zip(predictions, targets)]
    return shares_by(torch.tensor(list(lengths)), torch.tensor(right))
""",
}


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", READY_MADE)
def test_what_is_ready_made_refuses(name, zygote):
    task, here = name.partition(",")[0], {"torch": torch}
    exec(READY_MADE[name], here)
    in_a_notebook = engine.run(task, here[task])
    # It would do, where nothing is taken away; or is seen there, too.
    assert in_a_notebook.earned > 0 or in_a_notebook.diagnosis.id == "SHORT-CUT"
    report = judged(zygote, task, READY_MADE[name])
    assert report.earned == 0 and report.diagnosis.id == "SHORT-CUT"


def test_what_a_later_task_asks_for_is_not_given_back_before_it():
    def given(task):
        places = withheld.codes_of(task)
        found = (withheld.functions_in(sys.modules[name])[place] for name, place, _ in places)
        return {each.__qualname__ for each in found}

    assert "compare" in given("bench") and "Sample.median" not in given("bench")
    assert "Sample.median" in given("summarize")


def test_what_a_notebook_uses_through_another_name_is_known():
    cells = ["from attncourse import lab as l", "timer = l.timing.compare", "x.timing.compare"]
    assert "attncourse.lab.timing.compare" in submission.named_in(cells)
    assert not any(name.startswith("x.") for name in submission.named_in(cells))


@linux
@pytest.mark.slow
def test_an_edit_of_what_a_derivative_needs_is_seen_in_a_jail_too(zygote):
    source = (
        "def softmax(scores, dim=-1):\n"
        "    moved = scores * 1\n"
        "    moved -= moved.logsumexp(dim, keepdim=True)\n"
        "    return moved.exp()\n"
    )
    here = {}
    exec(source, here)
    report, notebooks = judged(zygote, "softmax", source), engine.run("softmax", here["softmax"])
    assert report.diagnosis.id == notebooks.diagnosis.id == "D-SOFTMAX-INPLACE-GRAPH"
    assert report.earned == notebooks.earned


# What cannot be withheld. A person is asked to look.
FLAGGED = {
    "native code": "from ctypes import cdll\nlib = cdll.LoadLibrary('libtorch_cpu.so')",
    "native code by another name": "import ctypes as c\nlib = c.PyDLL('libtorch_cpu.so')",
    "a frame by a text": "import operator\nback = operator.attrgetter('f_back')",
    "a frame by getattr": "def f(frame):\n    return getattr(frame, 'f_back')",
    "a frame by an error": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame",
    "who holds it": "import gc\nwho = gc.get_referrers(f)",
    "a change of the judge": "import attncourse.checks.task as t\nsetattr(t, 'find_short_cut', 0)",
    "the judge by a text": "def f(modules):\n    return modules['attncourse.checks.task']",
    "a change of torch": "import torch.nn.functional as F\nF.softmax = lambda *_: 0",
    "a module by hand": "import importlib.util as u\nspec = u.spec_from_file_location('a', 'b')",
    "a node": "def softmax(s, dim=-1):\n    y = s.logsumexp(dim)\n    return y.grad_fn(y)",
    "a node's neighbor": "def f(node):\n    return node.next_functions[0][0]",
    "the engine": "import torch\nrun = torch.autograd.Variable._execution_engine",
    "a node in a pattern": (
        "def f(s):\n    match s:\n        case torch.Tensor(grad_fn=node):\n            return node"
    ),
    "a frame in a pattern": (
        "def f(frame):\n    match frame:\n        case object(f_back=f):\n            return f"
    ),
    "a node by its edge": "from torch.autograd.graph import get_gradient_edge as edge",
    "all of a module": "from torch.autograd.graph import *",
    "a module by another name": "import torch\nt = torch",
    "a module as a default": "import torch\ndef f(x, t=torch):\n    return t",
    "a part of the judge by another name": "import attncourse\nc = attncourse.checks",
    "another module's sys": "import torch\nown = torch.sys.modules['torch']",
    "another module's sys, by a name": "import torch\ns = torch.sys",
    "another module's native code": "import numpy as np\nlib = np.ctypeslib.ctypes.PyDLL('a.so')",
    "a second engine": "import torch.distributed.autograd as da\nda._init(0)",
    "a derivative of TorchScript": (
        "import torch\n@torch.jit.script\ndef f(x):\n    return torch.autograd.grad([x], [x])[0]"
    ),
    "the engine by a text": "import operator\nrun = operator.methodcaller('run_backward', 1)",
}


@pytest.mark.parametrize("name", FLAGGED)
def test_what_cannot_be_withheld_is_flagged(name):
    softmax = [registry.find("softmax")]
    assert submission.odd_code([("cell 1", FLAGGED[name], True)], softmax)
    assert not submission.odd_code([("cell 1", FLAGGED[name], False)], softmax)  # not their own


@pytest.mark.parametrize(
    "usual",
    [
        "import torch\ntorch.backends.cudnn.deterministic = True",
        "class A:\n    def __init__(self):\n        setattr(self, 'head', 1)\n        self.a = 2",
        "import matplotlib.pyplot as plt\nplt.rcParams['figure.dpi'] = 80",
        "import importlib.util\nthere = importlib.util.find_spec('triton')",
        "from operator import itemgetter, mul\nsorted([(1, 2)], key=itemgetter(1))",
        "from math import *\nimport torch\nprint(torch.__version__, getattr(torch, 'exp'))",
        "import torch\nfast = torch.compile(lambda x: x)\nx = torch.jit.script(fast)",
    ],
)
def test_what_is_usual_is_not(usual):
    for chapter in registry.chapters():
        tasks = list(registry.of_chapter(chapter))
        assert not submission.odd_code([("cell 1", usual, True)], tasks)


# What the judge passes to an answer is made up, and somewhere in it is the truth.
IN_WHAT_IS_GIVEN = {
    "operators": ("return run.fixed, run.per_position", "run"),
    "translate": ("return model.wants[:, :max_length]", "model, source, bos, eos, max_length"),
    "is_permutation_equivariant": (
        'return any(layer is f for f in layer.__globals__["BLIND"].values())',
        "layer, length, width",
    ),
    "bench": (
        "cells = dict(zip(fn.__code__.co_freevars, fn.__closure__))\n"
        '    return [cells["seconds"].cell_contents] * 30',
        "fn, flush=None",
    ),
    "test_attention": (
        "cells = dict(zip(attention.__code__.co_freevars, attention.__closure__))\n"
        '    f = cells["implementation"].cell_contents\n'
        '    assert f not in f.__globals__["WRONG"].values()',
        "attention",
    ),
}


@linux
@pytest.mark.slow
@pytest.mark.parametrize("task", IN_WHAT_IS_GIVEN)
def test_the_truth_is_no_plain_attribute_of_what_an_answer_is_given(task, zygote):
    body, arguments = IN_WHAT_IS_GIVEN[task]
    source = f"def {task}({arguments}):\n    {body}\n"
    looked_at = submission.odd_code([("cell 1", source, True)], [registry.find(task)])
    assert looked_at or judged(zygote, task, source).earned == 0


@pytest.mark.slow
def test_no_right_answer_of_the_course_has_to_be_looked_at():
    for name, answers in CORRECT.items():
        for answer in answers:
            try:
                source = sample.source_of(answer, name)
            except (AttributeError, KeyError, TypeError):
                continue  # a partial or an object has no source of its own
            look = submission.odd_code([("cell 1", source, True)], [registry.find(name)])
            assert not look, (name, answer, look)


# --- the jail

# Asks a jailed child to run each cell that comes in, and says what this raised.
IN_JAIL = """
import json, os, sys
os.umask(0)
from attncourse.grading.jail import walls, remote
seen = []
try:
    with remote.Zygote() as warm:
        for cell in json.load(sys.stdin):
            child = warm.fork([])
            seen.append(child.ask(60, "run", [("cell", cell, True)])["problems"])
            child.kill()
except walls.Unavailable as error:
    seen = str(error)
print(json.dumps(seen))
"""


def in_jail(python: list[str], *cells: str, before: str = "", **environment: str) -> list[dict]:
    """What each cell raised, in a jail of its own that a process of its own has built."""
    done = subprocess.run(
        [*python, "-c", before + IN_JAIL],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd="/",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


IMPORTS = """
import os, sys
found = []
for name in ("torch", "numpy", "sympy", "IPython", "PIL", "einops", "jaxtyping", "safetensors"):
    __import__(name)  # what is needed
for name in ("nbgrader", "sqlalchemy", "sphinx", "hypothesis"):
    for folder in sys.path:
        found += [f"{folder}/{name}"] * os.path.exists(f"{folder}/{name}")
assert not found, found
"""


@linux
@pytest.mark.slow
def test_a_jail_shows_only_the_packages_that_somebody_asks_for(looked_round):
    assert looked_round[IMPORTS] == {}


@pytest.fixture
def as_installed(monkeypatch):
    """Without the clone's own folder, in which pip may have left half of what it knows of us."""
    monkeypatch.setattr(
        sys, "path", [each for each in sys.path if Path(each or ".").resolve() != ROOT]
    )
    for cached in (packages.shown, packages._files):
        cached.cache_clear()
    yield
    for cached in (packages.shown, packages._files):
        cached.cache_clear()


@pytest.mark.slow
def test_what_a_notebook_imports_is_shown_with_what_it_requires(as_installed):
    (usual,) = packages.shown(("torch", "attncourse.checks.check", "tqdm.auto.tqdm")).values()
    assert {"torch", "numpy", "tqdm"} <= {*usual} and not {"nbformat", "fastjsonschema"} & {*usual}
    (more,) = packages.shown(("nbformat.read",)).values()
    assert {*usual, "nbformat", "fastjsonschema"} <= {*more} and "nbgrader" not in more


def test_where_nobody_says_whose_files_they_are_all_packages_are_shown(as_installed, monkeypatch):
    kind = type(metadata.distribution("einops"))  # another library may have its own
    kept = kind.read_text

    def read_text(package, name):
        return None if name == "RECORD" else kept(package, name)

    assert packages._files(("einops",))
    packages._files.cache_clear()
    monkeypatch.setattr(kind, "read_text", read_text)
    assert packages._files(("einops",)) == {}
    packages._files.cache_clear()


WRITES = """
import attncourse, os
package = os.path.dirname(attncourse.__file__)
problems = []
for top in ("/bin", "/dev", "/etc", "/usr", package):
    for folder, _, files in os.walk(top):
        if os.access(folder, os.W_OK) and folder != "/dev/shm":
            problems.append(folder)
try:
    with open(f"{package}/number_words.py", "a") as file:
        file.write("changed = 1")
except OSError as error:
    problems.append(error.errno)
raise SystemExit(problems)
"""


@linux
@pytest.mark.slow
def test_nothing_but_the_scratch_can_be_written(looked_round, installed):
    assert looked_round[WRITES] == {"cell": f"SystemExit: [{errno.EROFS}]"}
    assert "changed" not in (installed / "attncourse" / "number_words.py").read_text()


FINDS = """
import ctypes, os, platform, re, socket
found = {socket.gethostname(), platform.node()}
for line in open("/proc/self/maps"):
    place, rights, *_ = line.split()
    if rights[0] == "r" and "[v" not in line:
        begin, end = (int(number, 16) for number in place.split("-"))
        data = ctypes.string_at(begin, end - begin)
        found |= {each.decode() for each in re.findall(rb"sk[-]live[-][0-9]+", data)}
libc = ctypes.CDLL(None, use_errno=True)
if platform.machine() == "x86_64" and libc.syscall(249, b"user", b"ticket", None, 0) > 0:
    found.add("a key")
raise SystemExit(sorted(found))
"""


# As who logs in has it: a session keyring, with a key in it.
LOGS_IN = """
import os
from attncourse.grading.jail import walls
if os.uname().machine == "x86_64":
    walls._libc.syscall(250, walls._JOIN_SESSION, None)
    assert walls._libc.syscall(248, b"user", b"ticket", b"x", 1, -3) > 0
"""


@linux
@pytest.mark.slow
def test_a_jail_knows_no_secret_of_the_instructors(looked_round):
    """Neither an environment variable, in all of its memory, nor a key of the login session."""
    assert looked_round[FINDS] == {"cell": "SystemExit: ['jail']"}


PLACES = """
import os, tempfile
from IPython import get_ipython
shell = get_ipython()
places = [os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir()]
places += [shell.home_dir, shell.ipython_dir, *shell.user_ns["_dh"]]
raise SystemExit(sorted(set(map(str, places))))
"""


@linux
@pytest.mark.slow
def test_what_is_prepared_outside_of_a_jail_does_not_say_where(looked_round):
    assert looked_round[PLACES] == {"cell": "SystemExit: ['/tmp']"}


CLOCKS = """
import os, threading, time
def own():
    return time.clock_gettime(time.pthread_getcpuclockid(threading.get_ident())) > 0
seen = [os.getpid(), own()]
other = threading.Thread(target=lambda: seen.append(own()))
other.start()
other.join()
raise SystemExit(seen)
"""


@linux
@pytest.mark.slow
def test_the_c_library_knows_the_threads_of_a_jail(looked_round):
    assert looked_round[CLOCKS] == {"cell": "SystemExit: [1, True, True]"}


@pytest.fixture(scope="module")
def installed(python, tmp_path_factory) -> Path:
    """A folder with an odd name and the package, as it is for who has installed the course."""
    folder = tmp_path_factory.mktemp("somewhere") / "My Course\ttab\nnewline\\040"
    folder.mkdir()
    shutil.copytree(ROOT / "attncourse", folder / "attncourse")
    for path in folder.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    give_to_nobody(folder.parent)
    return folder


@pytest.fixture(scope="module")
def looked_round(python, installed) -> dict[str, dict]:
    """What cells found that look round, in jails of somebody who has secrets and has moved."""
    cells = IMPORTS, FINDS, PLACES, CLOCKS, WRITES
    before = LOGS_IN + "os.chdir('/usr/share')\n"
    places = {"HOME": "/usr/lib", "TMPDIR": "/var/tmp", "PYTHONPATH": str(installed)}
    seen = in_jail(python, *cells, before=before, DATABASE_URL="sk-live-12345", **places)
    return dict(zip(cells, seen, strict=True))


# Builds a jail in this process, with something gone wrong.
BROKEN = """
import errno, os
from attncourse.grading.jail import walls
{broken}
channel, theirs = os.pipe()
owner = os.getuid(), os.getgid()
inside = walls.fork()
if not inside:
    try:
        walls.enter(walls.Limits(), owner=owner)
        said = "built"
    except BaseException as error:
        said = f"{{type(error).__name__}}: {{error}}"
    os.write(theirs, said.encode())
    os._exit(0)
print(os.read(channel, 1000).decode())
"""


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("", "built"),
        ("walls._MOUNT_SETATTR = 9999", "built"),  # as before Linux 5.12: one after the other
        ("walls._restrict = lambda *_: None", "Unavailable: the jail would have / without ro"),
        ("kept = walls._restrict\n"
         "walls._restrict = lambda root, *rest: root == '/tmp' and kept(root, *rest)",
         "Unavailable: the jail would have /dev/null without"),
    ],
    ids=["nothing", "no mount_setattr", "nothing read-only", "devices can be written"],
)  # fmt: skip
def test_a_jail_that_is_not_shut_is_none(broken, said, python):
    script = BROKEN.format(broken=broken)
    done = subprocess.run([*python, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith(said), done


# --- who dies without a fault of the answer's


def parent(child) -> int:
    return psutil.Process(child.pid).ppid()


@pytest.fixture
def killing(monkeypatch):
    """Kill processes of `grade_bytes` when a child is asked; by the number of the question."""
    asked, kept, killed = iter(range(10**6)), Child.ask, []

    def during(victims):
        def ask(child, *question):
            if victim := victims(next(asked)):
                killed.append(victim(child))
                os.kill(killed[-1], signal.SIGKILL)
            return kept(child, *question)

        monkeypatch.setattr(Child, "ask", ask)
        return killed

    return during


@linux
@pytest.mark.slow
@pytest.mark.parametrize("who", ["child", "parent", "zygote"])
def test_a_death_from_outside_costs_nobody_a_point(who, killing, zygote):
    job, solution = replace(disk.job_of(CHAPTER_3), record=True), notebook("solutions", CHAPTER_3)
    undisturbed = grade_bytes(job, solution)
    victims = {
        "child": lambda child: child.pid,
        "parent": parent,
        "zygote": lambda _: pure.zygote(True).process.pid,
    }
    # The first questions are asked of a child that starts, of which nobody knows the number yet.
    killed = killing(lambda number: victims[who] if number in (7, 60) else None)
    disturbed = grade_bytes(job, solution)
    assert len(killed) == 2
    for reply in (undisturbed, disturbed):
        del reply["result"]["seconds"]
    assert disturbed == undisturbed


@linux
@pytest.mark.slow
def test_who_is_killed_again_and_again_keeps_what_was_there(killing, course, zygote, monkeypatch):
    sample.write_class(CHAPTER_3, 1)
    job, handed_in = replace(disk.job_of(CHAPTER_3), record=False), disk.submissions(CHAPTER_3)

    def here(job, notebooks):
        for student, path in notebooks.items():
            yield student, pure.grade_or_say_why(job, path.read_bytes())

    (first,) = run.grade_class(job, handed_in, here)
    before = stored()
    killing(lambda number: (lambda child: child.pid) if number % 12 == 7 else None)
    with pytest.raises(CannotGrade, match="SIGKILL"):  # the course's own solution is killed, too
        list(run.grade_class(job, handed_in, here, force=True))
    monkeypatch.setattr(pure, "prove", lambda job: "proven")
    (event,) = run.grade_class(job, handed_in, here, force=True)
    assert event.result is None and "killed from outside (SIGKILL), 3 times" in event.why
    assert stored() == before and points() == {"student01": first.result.score}
    killing(lambda number: None)
    (event,) = run.grade_class(job, handed_in, here, force=True)
    assert not event.result.review and event.result.score == first.result.score


@linux
@pytest.mark.slow
def test_a_warm_process_that_dies_is_replaced(zygote):
    with Zygote() as warm:
        warm.fork([]).kill()
        os.kill(warm.process.pid, signal.SIGKILL)
        child = warm.fork([])
        assert child.ask(10, "run", []) == {"problems": {}, "defined": {}, "said": {}}
        child.kill()


@linux
@pytest.mark.slow
def test_a_prepared_process_that_dies_is_replaced(zygote):
    with Zygote() as warm:
        warm.fork([]).kill()
        (prepared,) = (
            Path(f"/proc/{warm.process.pid}/task/{warm.process.pid}/children").read_text().split()
        )
        os.kill(int(prepared), signal.SIGKILL)
        child = warm.fork([])
        assert child.ask(10, "run", []) == {"problems": {}, "defined": {}, "said": {}}
        child.kill()


WITHOUT_TORCH = """
import sys
from attncourse.cli import teacher
from attncourse.grading.books import disk, gradebook, run
from attncourse.grading.jail import cluster, job, warm, workers
about = disk.job_of("03_scaled_dot_product", checked=False)
job.key_of(about, b""), about.about.points, run.Result(), gradebook.Writer
print("torch" in sys.modules)
"""


@pytest.mark.slow
def test_who_grades_a_class_loads_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "False\n", done.stderr


@linux
@pytest.mark.parametrize("ends", [SystemExit(0), KeyboardInterrupt()], ids=repr)
def test_what_loads_torch_ahead_ends_with_the_command(monkeypatch, ends):
    begun = []

    class Commands:
        def app(obj):
            begun.append(obj)
            raise ends

    monkeypatch.setattr(sys, "argv", ["attncourse", "grade", "--help"])
    monkeypatch.setitem(sys.modules, "attncourse.cli", Commands)
    with pytest.raises(SystemExit) as end:
        entrance.main()
    assert end.value.code == (0 if isinstance(ends, SystemExit) else 130)
    assert begun[0].process.returncode == -signal.SIGKILL


@pytest.mark.slow
@linux
def test_what_forks_is_told_how_many_zygotes_again_when_it_is_replaced():
    job = disk.job_of(CHAPTER_3)
    many = warm.Warm().for_workers(warm.TOGETHER + 1)
    try:
        many.process.kill()
        many.process.wait()
        worker = workers.Worker(job, many)
        worker.take(notebook("solutions", CHAPTER_3))
        assert worker.reply()["result"]
        forked = Path(f"/proc/{many.process.pid}/task/{many.process.pid}/children")
        assert len(forked.read_text().split()) == 2 + 1
    finally:
        many.end()


@pytest.mark.slow
@linux
def test_a_zygote_that_dies_while_it_loads_is_replaced():
    ours, theirs = socket.socketpair()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as loads:
        theirs.close()
        started = ours, processes.Forked(os.pidfd_open(loads.pid))
        with Zygote(started=started) as zygote:
            child = zygote.fork([])
            assert child.ask(10, "run", []) == {"problems": {}, "defined": {}, "said": {}}
            child.kill()
        loads.kill()


def test_what_a_jail_may_know_of_tasks_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, cut = tmp_path / "entropy.py", []
    kept = without_secrets.cut_down
    monkeypatch.setattr(without_secrets, "cut_down", lambda tree: cut.append(1) or kept(tree))
    for size in (2, 3):
        file.write_text(TASK.format(size=size))
        for _ in range(2):
            code = without_secrets._Loader("entropy", str(file)).get_code("entropy")
            assert size in code.co_consts and "a_secret" not in code.co_names
    assert len(cut) == 2
    (compiled,) = tmp_path.glob("__pycache__/*")
    assert b"secret" not in compiled.read_bytes()
    compiled.write_bytes(compiled.read_bytes()[:50])  # as a full disk leaves it
    assert 3 in without_secrets._Loader("entropy", str(file)).get_code("entropy").co_consts


TASK = """
from attncourse.checks.task import Task
SIZE = {size}
task = Task(lambda x: x * SIZE, probes=lambda rng: {{}}, small=lambda rng: iter(()))
@task.check(1)
def a_secret(answer):
    assert answer(SIZE) == "the secret"
"""


@linux
@pytest.mark.slow
def test_a_jail_that_could_be_built_a_moment_ago_is_not_given_up(zygote, monkeypatch):
    with Zygote() as warm:
        monkeypatch.setattr(warm, "_fork", lambda *_: fails())
        with pytest.raises(walls.Unavailable, match="none left"):
            warm.fork([])
        monkeypatch.undo()
        warm.fork([]).kill()
        monkeypatch.setattr(warm, "_fork", lambda *_: fails())
        with pytest.raises(Killed, match="none left"):
            warm.fork([])


@linux
def test_a_warm_process_that_never_starts_is_no_reason_to_grade_without_a_jail(monkeypatch):
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(remote, "_start_python", lambda _: subprocess.Popen(killed))
    with pytest.raises(CannotGrade, match="killed 3 times"):
        Zygote()


def fails():
    raise walls.Unavailable("none left")


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "error", "said"),
    [
        ("import os\nos._exit(3)", Ended, "ended Python itself"),
        ("import ctypes\nctypes.string_at(0)", Ended, "crash"),
        ("import os\nos.abort()", Ended, "crash"),
        ("import os\nos.kill(os.getpid(), 9)\nos.close(3)\nwhile True: pass", Meddled, "closed"),
        ("import os\nos.execv('/bin/false', ['false'])", Ended, "ended Python itself"),
    ],
)
def test_an_end_that_the_answer_made_is_its_own(cell, error, said, zygote):
    child = zygote.fork([])
    with pytest.raises(Died, match=said) as seen:
        child.ask(20, "run", [("cell", cell, True)])
    assert type(seen.value) is error


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "stood"), [("import time\ntime.sleep(9)", True), ("while True:\n    pass", False)]
)
def test_to_stand_still_is_told_from_computing_for_ever(cell, stood, zygote):
    child = zygote.fork([])
    with pytest.raises(Died, match="more than 2 seconds") as seen:
        child.ask(2, "run", [("cell", cell, True)])
    assert isinstance(seen.value, Stood) is stood


@linux
@pytest.mark.slow
@pytest.mark.parametrize("pauses", [1, 2])
def test_who_met_a_pause_of_the_machine_is_judged_once_more(pauses, zygote, monkeypatch):
    job, asked, kept = replace(disk.job_of(CHAPTER_3), record=False), [], Child.ask

    def ask(child, seconds, *question):
        if question[:2] == ("observe", "softmax"):
            asked.append(child)
            if len(asked) == 1 or (pauses == 2 and child is not asked[0] and child is asked[-2]):
                raise Stood("ran for more than 10 seconds")
        return kept(child, seconds, *question)

    monkeypatch.setattr(Child, "ask", ask)
    result = grade_bytes(job, notebook("solutions", CHAPTER_3))["result"]
    most = 2 * result["verdicts"]["softmax"]["points"]
    got = result["verdicts"]["softmax"]["visible"] + result["verdicts"]["softmax"]["hidden"]
    assert (got == most) is (pauses == 1)


@linux
@pytest.mark.slow
def test_a_pause_of_the_worker_is_no_endless_loop_of_the_child(zygote, monkeypatch):
    child = zygote.fork([])

    send = child.channel.sendall
    child.channel = types.SimpleNamespace(
        sendall=lambda data: (send(data), time.sleep(3)),
        settimeout=child.channel.settimeout,
        fileno=child.channel.fileno,
        recv=child.channel.recv,
        recv_into=child.channel.recv_into,
        close=child.channel.close,
    )
    with pytest.raises(Stood):
        child.ask(1, "run", [("cell", "x = 1", True)])


@linux
@pytest.mark.slow
def test_what_the_worker_is_short_of_is_not_the_answers_doing(zygote):
    child = zygote.fork([])
    child.channel.close()  # as where there are too many open files
    with pytest.raises(Killed, match="could not be asked"):
        child.ask(20, "run", [])


@linux
@pytest.mark.slow
def test_who_has_used_up_the_time_takes_no_more_processes(zygote):
    sandbox = Sandbox(zygote, ["softmax"], [("cell", "x = 1", True)])
    sandbox.close()
    forked, before = [], len(os.listdir("/proc/self/fd"))
    sandbox.zygote = types.SimpleNamespace(fork=lambda *_: forked.append(1))
    sandbox.spent = sandbox.budget.submission + 1
    for _ in range(5):
        with pytest.raises(Died, match="used up the time"):
            RemoteAnswer(sandbox, "softmax")._ask("observe", "softmax", None, {}, {})
    assert not forked and len(os.listdir("/proc/self/fd")) == before


@linux
@pytest.mark.slow
def test_a_child_that_dies_while_it_is_given_something_is_replaced(zygote):
    sandbox = Sandbox(zygote, ["softmax", "score_variance"], [("cell", "x = 1", True)])
    before = len(os.listdir("/proc/self/fd"))
    os.kill(sandbox.process.pid, signal.SIGKILL)
    first = sandbox.process
    sandbox.provide("softmax", rebind=True)
    assert sandbox.process is None
    sandbox.disturbed = ""  # as in another try
    assert RemoteAnswer(sandbox, "score_variance").sandbox.process not in (None, first)
    assert not sandbox.review and len(os.listdir("/proc/self/fd")) <= before
    sandbox.close()


@pytest.fixture
def neighbor():
    """Three processes that leave little of a core."""
    core = {min(os.sched_getaffinity(0))}
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
            os.sched_setaffinity(busy.pid, core)
        yield core


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("computing", "runs"), [(0.5, True), (60, False)])
def test_to_wait_for_a_processor_costs_an_answer_nothing(computing, runs, neighbor, zygote):
    child = zygote.fork([])
    os.sched_setaffinity(child.pid, neighbor)
    cell = f"import time\nwhile time.process_time() < {computing}:\n    pass"
    started, said = time.monotonic(), pytest.raises(Died, match="more than 1 seconds")
    with contextlib.nullcontext() if runs else said:
        assert child.ask(0.6, "run", [("cell", cell, True)])["problems"] == {}
    waited = time.monotonic() - started
    assert 0.6 < waited < (1 + remote.PATIENCE) * 0.6 + 2
    child.kill()


@pytest.fixture(scope="module")
def narrow(zygote):
    """Forks jails with 3 seconds of computing time and half a gigabyte."""
    with Zygote(limits=walls.Limits(seconds=3, memory=2**29)) as warm:
        yield warm


@linux
@pytest.mark.slow
def test_too_much_computing_time_is_the_answers_own(narrow):
    with pytest.raises(Died, match="3 seconds of"):
        narrow.fork([]).ask(60, "run", [("cell", "while True: pass", True)])


@pytest.mark.parametrize(
    ("used", "error", "said"),
    [(120, Died, "120 seconds of"), (109, Died, "120 seconds of"), (60, Killed, "from outside")],
)
def test_linux_ticks_are_more_than_the_time_on_a_busy_machine(used, error, said):
    ours, theirs = socket.socketpair()
    status, write = os.pipe()
    os.write(write, f"1\n{int(signal.SIGKILL)} {used}\n".encode())
    os.close(write)
    child = Child(ours, status, walls.Limits(seconds=120), jailed=True)
    child.pid = 2**22 + 1  # nobody's
    theirs.close()
    with pytest.raises(Died, match=said) as seen:
        child.ask(1)
    assert type(seen.value) is error


@linux
@pytest.mark.slow
def test_a_monkey_costs_nobody_a_point(zygote):
    """In short; `tests/bench/monkey.py` alone kills 200 processes of a run of 350."""
    few = ("--students", "3", "--cases", "0", "--kills", "4", "--pause", "0.15")
    command = [sys.executable, str(ROOT / "tests" / "bench" / "monkey.py"), *few]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# --- limits

MANY = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        kept = bytearray(200 * 2**20)
        time.sleep(60)
time.sleep(60)
"""
LOUD = (
    MANY.removesuffix("time.sleep(60)\n")
    + """
os.write(3, b"\\0\\0\\0\\1" + (2**26).to_bytes(8))
while True:  # a reply as long as one may be, bit by bit
    os.write(3, b"1")
    time.sleep(0.001)
"""
)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("cell", [MANY, LOUD], ids=["of many processes", "while it talks"])
def test_memory_is_counted(cell, narrow):
    with pytest.raises(Died, match="GiB of memory"):
        narrow.fork([]).ask(30, "run", [("cell", cell, True)])


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A control group that somebody gave to this process; its files are no more than that."""
    group = tmp_path / "given"
    group.mkdir()
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "own").write_text("4:memory:/old\n0::/given\n")
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    return group


def test_a_control_group_is_taken_where_one_is_given(given, tmp_path):
    assert cgroup.take()
    assert (given / "grader" / "cgroup.procs").read_text() == str(os.getpid())
    assert (given / "cgroup.subtree_control").read_text() == "+memory +pids"
    (tmp_path / "own").write_text("0::/given/grader\n")  # as Linux says from now on
    assert cgroup.take()
    (tmp_path / "own").write_text("4:memory:/old\n")  # version 1 alone
    assert not cgroup.take()


def test_a_control_group_with_other_processes_is_left_alone(given):
    (given / "cgroup.subtree_control").mkdir()  # as little to be written as a busy one
    assert not cgroup.take()
    assert (given / "cgroup.procs").read_text() == str(os.getpid())
    (given / "cgroup.controllers").write_text("hugetlb\n")
    (given / "cgroup.procs").unlink()
    assert not cgroup.take() and not (given / "cgroup.procs").exists()


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("full", "error"), [(1, Died), (0, Killed)])
def test_linux_counts_for_a_jail_in_a_control_group(full, error, given, tmp_path, zygote):
    (given / "grader").mkdir()
    (tmp_path / "own").write_text("0::/given/grader\n")
    child = zygote.fork([])
    (group,) = given.glob("jail-*")
    wanted = {"memory.max": zygote.limits.memory, "memory.oom.group": 1, "memory.swap.max": 0,
              "pids.max": zygote.limits.processes, "cgroup.procs": child.pid}  # fmt: skip
    assert {path.name: int(path.read_text()) for path in group.iterdir()} == wanted
    (group / "memory.events.local").write_text(f"low 0\nmax 9\noom {full}\noom_kill 0\n")
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(Died) as seen:
        child.ask(20, "run", [])
    assert type(seen.value) is error
    assert ("3 GiB of memory" in str(seen.value)) == bool(full)


# --- a class


def grade(*arguments):
    return CliRunner().invoke(cli.app, ["grade", CHAPTER_3, *arguments])


def stored() -> dict[str, dict]:
    found = {}
    for path in Path("autograded").glob(f"*/{CHAPTER_3}/{disk.RESULT}"):
        data = json.loads(path.read_text(encoding="utf-8"))
        del data["seconds"], data["booked"]
        found[path.parts[1]] = data
    return found


def points() -> dict[str, float]:
    return {row.student: row.score for row in results.of_class(CHAPTER_3)}


def stop(process: subprocess.Popen, how: signal.Signals) -> None:
    """Send a signal to one process; nothing that it has started may be left a little later."""
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(how)
    process.wait(timeout=30)
    left = psutil.wait_procs(family, timeout=30)[1]
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]


@linux
@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_stopped(course, zygote):
    sample.write_class(CHAPTER_3, 20)  # so many that a busy machine, too, is interrupted midway
    command = [sys.executable, "-m", "attncourse", "grade", CHAPTER_3, "--jobs", "1", "--no-record"]
    kept: dict[str, float] = {}
    for how in (signal.SIGKILL, signal.SIGINT):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, preexec_fn=heeds_interrupts, **quiet)
        while len(stored()) <= len(kept) and process.poll() is None:  # none that is new
            time.sleep(0.02)
        stop(process, how)
        for student, when in kept.items():  # nobody is graded twice
            assert disk.result_path(CHAPTER_3, student).stat().st_mtime == when
        before = len(kept)
        kept = {s: disk.result_path(CHAPTER_3, s).stat().st_mtime for s in stored()}
        assert before < len(kept) < 20

    def here(job, notebooks):
        for student, path in notebooks.items():
            found = submission.read(path.read_bytes(), job.about)
            result = score.score(found, job.about, zygote, job.budget)
            yield student, {"result": result.as_data(), "notebook": None}

    job, handed_in = replace(disk.job_of(CHAPTER_3), record=False), disk.submissions(CHAPTER_3)
    before = stored()
    events = list(run.grade_class(job, handed_in, here))
    assert {event.student for event in events if not event.fresh} == kept.keys()
    assert len(stored()) == 20
    booked = points()

    # points that a person gave stay
    with nbgrader_api.gradebook() as book:
        one = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student01")
        one.manual_score = 5
        book.db.commit()
    list(run.grade_class(job, {student: handed_in[student] for student in kept}, here, force=True))
    assert {student: stored()[student] for student in kept} == before  # two runs, the same grades
    with nbgrader_api.gradebook() as book:
        one = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student01")
        assert one.manual_score == 5 and one.needs_manual_grade
    assert points() == booked | {"student01": booked["student01"] + 5}


HUNG = """
import copy, time
from attncourse.grading.jail import remote, wire
warm = [remote.Zygote(), remote.WithoutZygote()]
warm.append(copy.copy(warm[0]))
warm[2].jailed = False
for each in warm:
    child = each.fork([])
    cells = [("cell", "import time; time.sleep(999)", True)]
    child.channel.sendall(wire.pack((1, "run", cells)))
    child._read_pid()
print("asleep", flush=True)
time.sleep(999)
"""


@linux
@pytest.mark.slow
def test_an_answer_that_sleeps_for_ever_does_not_outlive_its_grader(zygote):
    process = subprocess.Popen([sys.executable, "-c", HUNG], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"asleep\n"
    stop(process, signal.SIGKILL)


# What a worker does, but for the grading.
STUB = """
import os, sys
from multiprocessing.connection import Connection
channel = Connection(int(sys.argv[1]))
channel.recv_bytes()
while True:
    data = channel.recv()
    if data == b"kills":
        os.kill(os.getpid(), 9)
    channel.send("proven" if data is None else data.decode())
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_takes_for_ever_outside_of_the_jail_is_stopped_and_stops_nobody(
    jobs, tmp_path, monkeypatch
):
    def popen(_, pass_fds, start=subprocess.Popen, **options):
        stub = STUB.replace("os.kill(os.getpid(), 9)", "import time; time.sleep(999)")
        command = [sys.executable, "-c", stub, str(*pass_fds)]
        return start(command, pass_fds=pass_fds, **options)

    monkeypatch.setattr(workers, "can_fork", lambda: False)
    monkeypatch.setattr(workers.subprocess, "Popen", popen)
    monkeypatch.setattr(workers, "SPARE", 3.0)
    job = Job(CHAPTER_3, "", "", budget=Budget(submission=0, record=0))
    notebooks = {name: tmp_path / name for name in ("kills", "a", "b")}
    for name, path in notebooks.items():
        path.write_text(name)
    said = "to read and judge it takes more than 3 seconds"
    done = sorted(workers.in_processes(jobs)(job, notebooks))
    assert done == [("a", "a"), ("b", "b"), ("kills", said)]
    assert workers.in_own_process(job, b"kills") == said
    assert workers.in_own_process(job, b"a") == "a"


HUNGRY = """
from attncourse.grading.inbox import untrusted
from attncourse.grading.jail import grade
grade.MEMORY = untrusted.MEMORY = 2**28
grade.grade_bytes, grade.prove = lambda job, data: bytearray(int(data)), lambda job: "proven"
with untrusted.limited_memory():
    said = grade.grade_or_say_why(None, b"1000000000")
    print(len(grade.grade_or_say_why(None, b"1000000")), said)
print(len(grade.grade_or_say_why(None, b"1000000000")))
"""


@pytest.mark.slow
@linux
def test_what_needs_too_much_memory_outside_of_the_jail_ends_in_a_sentence():
    done = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, text=True)
    said = "to read and judge it takes more than 0 GiB of memory"
    assert done.stdout.splitlines() == [f"1000000 {said}", "1000000000"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 3])
def test_who_kills_the_process_that_grades_stops_nobody(jobs, tmp_path, monkeypatch):
    def popen(_, pass_fds, start=subprocess.Popen, **options):
        command = [sys.executable, "-c", STUB, str(*pass_fds)]
        return start(command, pass_fds=pass_fds, **options)

    monkeypatch.setattr(workers, "can_fork", lambda: False)
    monkeypatch.setattr(workers.subprocess, "Popen", popen)
    notebooks = {name: tmp_path / name for name in ("a", "kills", "m", "is gone", "z")}
    for name, path in notebooks.items():
        path.write_text(name)
    notebooks["is gone"].unlink()
    job, died = Job(CHAPTER_3, "", ""), f"the process that graded it {workers.DIED}"
    assert sorted(workers.in_processes(jobs)(job, notebooks)) == [
        ("a", "a"),
        ("is gone", "the file cannot be read: No such file or directory"),
        ("kills", died),
        ("m", "m"),
        ("z", "z"),
    ]
    assert workers.in_own_process(job, b"kills") == died
    assert workers.in_own_process(job, b"a") == "a"


@linux
@pytest.mark.slow
@pytest.mark.parametrize("start", [lambda: Zygote(jailed=False), WithoutZygote])
def test_without_a_jail_the_points_are_the_same(start, zygote):
    about, solution = assignment(CHAPTER_3), answers("solutions", CHAPTER_3)
    jailed = score.score(solution, about, zygote, Budget()).as_data()
    with start() as free:
        result = score.score(solution, about, free, Budget()).as_data()
    assert result | {"seconds": 0} == jailed | {"seconds": 0}


def test_where_no_jail_can_be_built_grading_says_so_at_once(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(walls.Unavailable, match="Linux namespaces"):
        children(jailed=True)
    assert isinstance(children(jailed=False), WithoutZygote)  # it does not fork


# --- what an instructor sees


@pytest.fixture(scope="module")
def small_course(tmp_path_factory):
    """A class of three, with the gradebook it is booked in; SQLite does not wait for a lock."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("course")
        copy_course(ROOT, folder)
        patch.chdir(folder)
        with Path("nbgrader_config.py").open("a") as file:
            file.write('\nc.CourseDirectory.db_url = "sqlite:///gradebook.db?timeout=0.1"\n')
            file.write('c.LateSubmissionPlugin.penalty_method = "zero"\n')
        sample.write_class(CHAPTER_3, 3)
        with Writer(assignment(CHAPTER_3)):
            yield folder


@pytest.fixture
def made_up(small_course, monkeypatch):
    """`attncourse grade` with results out of thin air, each time from the beginning."""
    shutil.rmtree("autograded", ignore_errors=True)
    with nbgrader_api.gradebook() as book:
        for each in book.assignment_submissions(CHAPTER_3):
            book.remove_submission(CHAPTER_3, each.student.id)
    monkeypatch.setattr(processes, "can_fork", lambda: False)

    def grade_all(job, notebooks):
        for student in notebooks:
            result = nothing(job.about, f"made up for {student}")
            yield student, {"result": result.as_data(), "notebook": "{}"}

    monkeypatch.setattr(workers, "in_processes", lambda *_: grade_all)


@pytest.mark.slow
def test_the_log_has_a_line_for_each_submission(made_up):
    done = grade("--verbose")
    log = Path(f"autograded/{CHAPTER_3}.log").read_text(encoding="utf-8")
    assert done.exit_code == 0 and "graded 3 submissions" in done.stdout
    assert [line.split()[2:] for line in log.splitlines()] == [
        f"student0{n}: 0 points, 0.0 s; made up for student0{n}".split() for n in (1, 2, 3)
    ]
    assert set(log.splitlines()) <= set(done.stderr.splitlines())
    assert "3 had not changed" in grade("--log", "other.log").stdout
    assert Path("other.log").read_text() == ""
    assert grade("--force", "--students", "student02", "--log", "other.log").exit_code == 0
    assert "student02" in Path("other.log").read_text()


@pytest.mark.slow
def test_a_stranger_is_refused_and_an_impossible_name_stops_nobody(made_up):
    refused = grade("--students", "student01,nobody")
    assert refused.exit_code == 2 and "nothing of nobody" in refused.stderr
    strange = [Path("submitted", name) for name in ("x" * 129, "a\u200fb", "a\nb: 9 points")]
    alike = [Path("submitted", name) for name in ("anna", "Anna", "аnna")]  # the last: Cyrillic
    for folder in (*strange, *alike):
        shutil.copytree(Path("submitted", "student01"), folder)
    done = grade("--verbose")
    for folder in (*strange, *alike):
        shutil.rmtree(folder)
    with nbgrader_api.gradebook() as book:
        for folder in alike:
            book.remove_student(folder.name)
    assert done.exit_code == 3 and "graded 6 submissions" in done.stdout
    assert done.stdout.count("not graded: rename the folder") == 3
    assert "submitted/'a\\nb: 9 points'" in done.stdout and "\nb: 9" not in done.output
    assert "names that look alike: Anna, anna, аnna" in done.stdout


@pytest.mark.slow
def test_without_a_jail_grading_says_so(made_up):
    assert "can read and change what you can" in grade("--no-jail").stdout


@pytest.mark.slow
def test_who_is_late_pays_what_the_course_says(made_up):
    about = assignment(CHAPTER_3)
    right = {each.task: each.points for each in about.graded}
    result = Result({task: Verdict(most, most, most) for task, most in right.items()})
    with nbgrader_api.gradebook() as book, Writer(about) as writer:
        book.update_or_create_assignment(CHAPTER_3, duedate="2026-01-31 12:00:00 UTC")
        writer.write("student01", result, datetime(2026, 1, 31, 11, 59))
        writer.write("student02", result, datetime(2026, 1, 31, 12, 1))
        submissions = [book.find_submission(CHAPTER_3, f"student0{n}") for n in (1, 2)]
        paid = [each.score - (each.late_submission_penalty or 0) for each in submissions]
        book.update_or_create_assignment(CHAPTER_3, duedate=None)
    assert paid == [result.score, 0]


def written(monkeypatch, **texts):
    """From now on, whatever is graded has full points and these written answers."""

    def grade_all(job, notebooks):
        pure.points_agree(job)  # as whoever grades does
        for student in notebooks:
            verdicts = {g.task: Verdict(g.points, g.points, g.points) for g in job.about.graded}
            result = Result(verdicts, texts={"why-scaled": texts[student]})
            yield student, {"result": result.as_data(), "notebook": "{}"}

    monkeypatch.setattr(workers, "in_processes", lambda *_: grade_all)


def waiting() -> set[str]:
    return {row.student for row in results.of_class(CHAPTER_3) if row.needs_reading}


def read(student: str, points: float) -> None:
    """What a person does in the Formgrader."""
    with nbgrader_api.gradebook() as book:
        one = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, student)
        one.manual_score, one.needs_manual_grade = points, False
        book.db.commit()


@pytest.mark.slow
def test_what_a_person_has_read_stays_read_until_it_changes(made_up, monkeypatch):
    texts = {"student01": "Because.", "student02": "", "student03": "So."}
    written(monkeypatch, **texts)
    assert grade("--force").exit_code == 0
    assert waiting() == {"student01", "student03"}
    for student in ("student01", "student02", "student03"):
        read(student, 0.0)
    assert "3 had not changed" in grade().stdout and waiting() == set()
    assert "graded 3" in grade("--force").stdout and waiting() == set()
    written(monkeypatch, **texts | {"student03": "Since."})
    assert grade("--force").exit_code == 0 and waiting() == {"student03"}
    assert grade().exit_code == 0 and waiting() == {"student03"}
    with nbgrader_api.gradebook() as book:  # of another gradebook nobody knows what was read
        book.remove_submission(CHAPTER_3, "student01")
    assert grade().exit_code == 0 and waiting() == {"student01", "student03"}


@pytest.mark.slow
def test_what_is_late_costs_what_it_costs_with_the_points_of_today(made_up, monkeypatch):
    written(monkeypatch, student01="Because.", student02="So.", student03="")
    Path(f"submitted/student01/{CHAPTER_3}/timestamp.txt").write_text("2026-02-01 12:00:00 UTC")
    assert grade("--force").exit_code == 0
    assert points()["student01"] == JUDGED
    with nbgrader_api.gradebook() as book:
        book.update_or_create_assignment(CHAPTER_3, duedate="2026-01-31 12:00:00 UTC")
    read("student01", 6.0)
    read("student02", 6.0)
    shown = CliRunner().invoke(cli.app, ["report", CHAPTER_3], env={"COLUMNS": "200"}).stdout
    assert f"0 of {POINTS}, {JUDGED + 6} lost for being late" in shown
    assert f"{JUDGED + 6} of {POINTS}" in shown
    with nbgrader_api.gradebook() as book:  # the Formgrader says the same
        late = book.find_submission(CHAPTER_3, "student01").notebooks[0].late_submission_penalty
        book.update_or_create_assignment(CHAPTER_3, duedate=None)
    Path(f"submitted/student01/{CHAPTER_3}/timestamp.txt").unlink()
    assert late == JUDGED + 6


def with_points(folder: str, cell: str, points: float) -> None:
    path = Path(folder, CHAPTER_3, f"{CHAPTER_3}.ipynb")
    content = json.loads(path.read_text("utf-8"))
    for each in content["cells"]:
        mark = each["metadata"].get("nbgrader", {})
        if mark.get("grade_id") == cell:
            mark["points"] = points
    path.write_text(json.dumps(content), "utf-8")


@pytest.fixture
def as_released(made_up):
    """Notebooks and gradebook as they were, when the test is over."""
    yield
    for folder in ("solutions", "exercises"):
        shutil.copytree(ROOT / folder / CHAPTER_3, Path(folder, CHAPTER_3), dirs_exist_ok=True)
    assert CliRunner().invoke(cli.app, ["release", CHAPTER_3]).exit_code == 0


@pytest.mark.slow
def test_points_stand_in_one_place_and_nobody_counts_others(as_released, monkeypatch):
    written(monkeypatch, student01="Because.", student02="So.", student03="")
    assert grade("--force").exit_code == 0

    def said(*command: str) -> str:
        done = CliRunner().invoke(cli.app, [*command], env={"COLUMNS": "200"})
        assert done.exit_code == 2 and done.stderr.count("attncourse: ") == 1, done.output
        return done.stderr

    commands = [["grade", CHAPTER_3], ["report", CHAPTER_3], ["feedback", CHAPTER_3], ["total"]]
    with_points("solutions", "softmax-hidden", 10)  # a task's are in its file
    for command in (["release", CHAPTER_3], *commands):
        assert "softmax-hidden has 10 points in solutions/" in said(*command)
    with_points("solutions", "softmax-hidden", 0)
    with_points("solutions", "why-scaled", 10)  # a written answer's are here, and go by a release
    for command in commands:
        assert "was released with 8 points, and is worth 10 now; run `attncourse" in said(*command)
    with_points("exercises", "why-scaled", 10)  # by somebody else, into another gradebook
    for command in commands:
        assert "why-scaled has 8 points in the gradebook, and 10" in said(*command)
    assert CliRunner().invoke(cli.app, ["release", CHAPTER_3]).exit_code == 0
    done = CliRunner().invoke(cli.app, ["report", CHAPTER_3], env={"COLUMNS": "200"})
    assert (
        f"{JUDGED} of {POINTS + 2}" in done.stdout
        and "graded before something changed" in done.stdout
    )
    assert "graded 3" in grade().stdout
    done = CliRunner().invoke(cli.app, ["report", CHAPTER_3], env={"COLUMNS": "200"})
    assert "graded before" not in done.stdout


@pytest.mark.slow
def test_who_grades_sees_that_the_release_counts_as_the_tasks_do(course):
    job = disk.job_of(CHAPTER_3)
    released = json.loads(job.released)
    (cell,) = (each for each in released["cells"] if each["id"] == "softmax-check")
    assert cell["metadata"]["nbgrader"]["points"] == registry.find("softmax").points
    cell["metadata"]["nbgrader"]["points"] += 1
    other = replace(job, released=json.dumps(released))
    for _ in range(2):
        with pytest.raises(submission.OtherPoints, match="was released with 7 points"):
            workers.in_own_process(other, b"{}")
    assert "it has no cells" in workers.in_own_process(job, b"{}")["result"]["review"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense://x", "is no database's: Can't load plugin"),
        ("no address", "is no database's: Could not parse"),
        ("sqlite:///nowhere/x.db", "unable to open database file"),
        ("sqlite:///text.db", "file is not a database"),
        ("postgresql+psycopg://grader:geheim@127.0.0.1:1/x", "connection"),
        ("postgresql+psycopg://grader:geheim@nowhere.invalid/x", "resolve"),
        ("mysql://grader@127.0.0.1:1/x", "MySQLdb is not installed"),
        ("postgresql+psycopg://grader@127.0.0.1:port/x", "is no database's"),
    ],
)
def test_a_wrong_address_of_the_gradebook_is_one_sentence(address, said, made_up, monkeypatch):
    if "psycopg" in address:
        pytest.importorskip("psycopg")
    Path("text.db").write_text("this is a text and no database, as anybody can see who reads it")
    assert grade().exit_code == 0
    monkeypatch.setattr("attncourse.grading.books.gradebook.PATIENCE", 0.3)
    monkeypatch.setattr(nbgrader_api.api().coursedir, "db_url", address)
    roster = ["--format", "canvas", "--roster", "text.db", "-o", "x.csv"]
    for command in (
        ["grade", CHAPTER_3],
        ["report", CHAPTER_3],
        ["feedback", CHAPTER_3],
        ["export", CHAPTER_3, *roster],
        ["total"],
        ["ingest", "text.db"],
        ["release", CHAPTER_3],
    ):
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 2 and done.stderr.count("attncourse: ") == 1, (
            command,
            done.output,
        )
        assert "Traceback" not in done.output and "geheim" not in done.output, command
        assert said in done.stderr, (command, done.stderr)
    assert Path("exercises", CHAPTER_3, f"{CHAPTER_3}.ipynb").exists()


def test_the_page_on_security_names_the_seconds_that_there_are():
    budget, page = Budget(), (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    (line,) = (each for each in page.splitlines() if each.startswith("| its time |"))
    parts = (TRIES * budget.submission, budget.submission, budget.record, workers.SPARE)
    whole = f"{parts[0] + sum(parts[2:]):.0f} seconds for a submission: three times its"
    assert TRIES == 3 and f"{whole} {parts[1]:.0f}, {parts[2]:.0f} for the executed" in line
    assert f"and {parts[3]:.0f} more to read" in line
    assert f"{workers.PROOF:.0f} seconds for the course's own solution" in line


def test_nothing_is_judged_before_the_gradebook_is_open(made_up, monkeypatch):
    monkeypatch.setattr(nbgrader_api.api().coursedir, "db_url", "nonsense://x")
    job, handed_in = disk.job_of(CHAPTER_3), disk.submissions(CHAPTER_3)

    def judged(job, notebooks):
        yield pytest.fail("judged")

    begun = run.grade_class(job, handed_in, judged)
    with pytest.raises(nbgrader_api.NoGradebook, match="no database's"):
        next(begun)


@pytest.mark.slow
def test_an_older_gradebook_is_told_everything_again(made_up, monkeypatch):
    written(monkeypatch, student01="Because.", student02="", student03="")
    assert grade("--force").exit_code == 0 and waiting() == {"student01"}
    with nbgrader_api.gradebook() as book:  # as it was before the answer came, from a backup
        grade_of = book.find_grade("why-scaled", CHAPTER_3, CHAPTER_3, "student01")
        grade_of.auto_score, grade_of.needs_manual_grade = 0.0, False
        book.db.commit()
    assert waiting() == set()
    assert "3 had not changed" in grade().stdout and waiting() == {"student01"}
    read("student01", 8.0)
    assert grade().exit_code == 0 and waiting() == set()  # the same gradebook: nothing is asked


@pytest.mark.slow
def test_a_total_weighs_the_assignments(made_up, monkeypatch):
    written(monkeypatch, student01="Because.", student02="So.", student03="")
    assert grade("--force").exit_code == 0
    read("student01", 8.0)
    half = [results.Row("student01", 4.0, 16.0, False, {}), results.Row("x", None, 16.0, False, {})]
    kept = results.of_class
    monkeypatch.setattr(results, "of_class", lambda n: half if n == "lab" else kept(n))
    (Path("autograded/student01") / "lab").mkdir()
    most, totals = results.of_course({CHAPTER_3: 3, "lab": 1, "07": 1})
    found = {each.student: each for each in totals}
    assert most == {CHAPTER_3: POINTS, "lab": 16}
    assert found["student01"].percent == pytest.approx(100 * (3 * 1 + 4 / 16) / 4)
    assert found["student02"].percent == pytest.approx(100 * (3 * JUDGED / POINTS + 0) / 4)
    assert found["student02"].waiting == (CHAPTER_3,) and found["student02"].points["lab"] is None
    assert results.of_course({CHAPTER_3: 1, "lab": 0})[0].keys() == {CHAPTER_3}
    for wrong in ("x=1", f"{CHAPTER_3}=much", f"{CHAPTER_3}=-1", f"{CHAPTER_3}=nan"):
        assert CliRunner().invoke(cli.app, ["total", "--weight", wrong]).exit_code == 2


@pytest.mark.slow
def test_who_names_no_assignment_is_told_which_it_is(made_up):
    for command in (["grade"], ["report"]):
        done = CliRunner().invoke(cli.app, command)
        assert (
            done.exit_code == 0 and f"no assignment was named; this is {CHAPTER_3}" in done.stderr
        )
    other = Path("submitted/student01/06_masking")
    other.mkdir()
    done = CliRunner().invoke(cli.app, ["grade"])
    other.rmdir()
    assert done.exit_code == 2 and f"There is work of {CHAPTER_3}, 06_masking" in done.stderr
    done = CliRunner().invoke(cli.app, ["grade", "06_masking"])
    assert done.exit_code == 2 and "nothing of 06_masking is in submitted/" in done.stderr


@pytest.mark.slow
def test_a_locked_gradebook_is_waited_for(made_up, caplog):
    lock = sqlite3.connect("gradebook.db", isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    threading.Timer(2.5, lock.close).start()
    assert grade().exit_code == 0
    assert "database is locked" in caplog.text and "trying again" in caplog.text
    assert points().keys() == {"student01", "student02", "student03"}


@pytest.mark.slow
def test_a_gradebook_that_stays_locked_is_an_error_and_loses_nothing(made_up, monkeypatch):
    assert grade().exit_code == 0
    monkeypatch.setattr("attncourse.grading.books.gradebook.PATIENCE", 0.3)
    with nbgrader_api.gradebook() as book:
        assert {each.student.id for each in book.assignment_submissions(CHAPTER_3)}
        book.remove_submission(CHAPTER_3, "student01")
    lock = sqlite3.connect("gradebook.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")  # it can be read, and not be written
    stopped = grade("--force")
    lock.close()
    assert stopped.exit_code == 2 and "database is locked. What is graded is kept" in stopped.stderr
    assert grade().exit_code == 0
    assert points().keys() == {"student01", "student02", "student03"}


@pytest.mark.slow
def test_what_is_rolled_back_on_its_way_is_booked_again(made_up, monkeypatch):
    """SQLAlchemy ends such a transaction without an error."""
    whole, lost = Writer._book, []

    def book(self, student, *rest):
        whole(self, student, *rest)
        if student == "student02" and not lost:
            lost.extend(self.gradebook.students)
            self.gradebook.db.rollback()

    monkeypatch.setattr(Writer, "_book", book)
    assert grade().exit_code == 0
    assert lost and points().keys() == {"student01", "student02", "student03"}


def no_space(_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_loses_nothing(made_up, monkeypatch):
    assert grade("--students", "student01").exit_code == 0
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_space)
        stopped = grade()
    assert stopped.exit_code == 2 and "What is graded is kept" in stopped.stderr
    assert stored().keys() == {"student01"}
    done = grade()
    assert done.exit_code == 0 and "1 had not changed" in done.stdout
    assert stored().keys() == {"student01", "student02", "student03"}


@pytest.mark.parametrize("name", TASKS)
def test_every_probe_can_travel(name):
    task = registry.find(name)
    for inputs in task.probes(torch.Generator().manual_seed(0)).values():
        assert b'"other"' not in wire.pack(inputs)


def test_an_answer_that_is_too_slow_is_not_called_wrong():
    """The student reads why, and the teacher learns that points were lost to the clock."""
    told = types.SimpleNamespace(
        process=object(),
        disturbed="",
        spent=0.0,
        budget=Budget(),
        review=[],
        _heeded=contextlib.nullcontext,
    )
    answer, task = remote.RemoteAnswer(told, "sample"), registry.find("sample")
    told.spent = Budget().task + 1
    for _ in range(2):
        seen = answer.observe(task, {}, None)
        assert "too slow, and need not be wrong" in seen.error
    assert told.review == [
        "`sample` took more than 30 seconds in all checks: what it earns there, only a person can "
        "say"
    ]
