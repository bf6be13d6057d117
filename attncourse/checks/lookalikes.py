"""What in a file of others looks like a task, and how to read it as one.

    >>> for found in lookalikes.of_file(Path("layers.py").read_text()):
    ...     print(found.name, found.tasks)
    SelfAttention ('MultiHeadAttention',)

The file is read, not run. Others pass a mask that is True where something is hidden, return the
output alone, or give a layer's projections other names. A `Reading` says one such convention in
words and is an adapter in Python, which translates and mends nothing.
"""

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from attncourse.checks import registry
from attncourse.checks.fingerprint import (
    Fingerprint,
    agree,
    of_reference,
    outputs,
    probes,
    tolerance,
)

MOST = 16  # readings of one definition that are tried


@dataclass(frozen=True)
class Found:
    """A function or a class of a file, and which tasks it may be, likeliest first."""

    name: str
    line: int
    is_class: bool
    parameters: tuple[str, ...]  # of a class, its constructor's
    required: frozenset[str]  # those of all without a default
    called_with: tuple[str, ...]  # of a class, its forward's
    returns: int  # results of a tuple; 1 for anything else
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """One convention under which a definition of others does a task."""

    words: str  # what is translated; "" for nothing
    source: str  # of an adapter, which defines the task's name


class Unreadable(ValueError):
    """Why no reading of a definition does this task."""


# Names in small letters without underscores, as patterns of file names are written, and the task
# that each promises. The first that fit are asked about in this order.
FUNCTIONS = {
    "softmax *stablesoftmax safesoftmax mysoftmax naivesoftmax softmaxstable": "softmax",
    "attention sdpa attend *scale*dotproduct* *dotproductattention*": (
        "scaled_dot_product_attention"
    ),
    "*causal*mask* *subsequen*mask* *lookahead*mask* *future*mask* *nopeak*mask* *mask*causal* "
    "*mask*subsequen* *mask*future* *autoregressive*mask*": "causal_mask",
    "*length*mask* *lens*mask* *seq*mask* *pad*mask* *mask*length* *mask*lens*": "padding_mask",
    "*sinusoid* pos*encoding *position*encoding* *position*embedding* *position*table* *sincos*": (
        "sinusoidal_positions"
    ),
}
CLASSES = {
    "*multihead* mha selfattention crossattention attention attentionlayer": "MultiHeadAttention",
    "*dotproduct*attention* attention": "scaled_dot_product_attention",
    "*position*encod* *position*embed* *sinusoid*": "sinusoidal_positions",
}
# An argument of a task, and names of parameters, written likewise, that stand for it.
ROLES = {
    "query": "q query queries xq",
    "key": "k key keys xk",
    "value": "v value values xv",
    "mask": "*mask*",
    "scores": "x z t a score scores logit logits input inputs infeatures tensor attn energy vec*",
    "dim": "dim axis",
    "query_length": "n t l sz size length len seqlen* seqlength* sequencelength seqsize targetlen* "
    "tgtlen qlen maxlen* numsteps blocksize contextlength",
    "lengths": "*lengths lens *lens len *length *len",
    "max_length": "max* size n t",
    "length": "n t length max* seqlen* seqlength sequencelength numpos* nposition* position "
    "contextlength contextsize blocksize",
    "width": "d width dim dmodel *dim *hid *size channels depth *embd hidden features numhiddens "
    "dwordvec demb* modelwidth",
    "model_width": "d width dim dmodel *dim *hid *size channels *embd hidden numhiddens nfeat din "
    "demb* modelwidth",
    "num_heads": "h nh head *heads nhead",
    "dropout": "*drop*",
    "words": "seq* x token* src* tgt* source* target* input* ids *ids batch",
    "pad": "*pad*",
}
# What others ask for besides, where it stands for nothing that the task has; of attention and of a
# layer, what follows from the other arguments, too.
CONSTANTS = {"*drop*": "None", "*device": "None", "dtype": "None", "*bias": "True", "eps*": "1e-9"}
OF_ATTENTION = {"dk dhead *depth": "query.shape[-1]", "*temper* scal*": "query.shape[-1] ** 0.5"}
OF_LAYER = {
    "dk dv dq dhead headdim *perhead": "model_width // num_heads",
    "d* *dim*": "model_width",
}


def _means(name: str, patterns: str) -> bool:
    short = name.lower().replace("_", "")
    return any(fnmatchcase(short, each) for each in patterns.split())


def of_file(text: str, wanted: tuple[str, ...] = ()) -> list[Found]:
    """Definitions at the top of a file that look like tasks, or are `wanted`, in their order.

    Raises:
        SyntaxError, ValueError: the text is no Python.
    """
    return [each for node in ast.parse(text).body if (each := _found(node, wanted))]


def _found(node: ast.stmt, wanted: tuple[str, ...]) -> Found | None:
    if isinstance(node, ast.FunctionDef):
        known, run, made = FUNCTIONS, node, node
    elif isinstance(node, ast.ClassDef):
        methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        known, run, made = CLASSES, methods.get("forward"), methods.get("__init__")
        run = run or methods.get("__call__")
        if run is None:
            return None
    else:
        return None
    likely = [task for patterns, task in known.items() if _means(node.name, patterns)]
    likely += [node.name] if node.name in registry.all_tasks() else []
    if not likely and node.name not in wanted:
        return None
    first = 1 if isinstance(node, ast.ClassDef) else 0
    own, required = _parameters(made, first)
    called_with, _ = _parameters(run, first)
    returned = [each.value for each in ast.walk(run) if isinstance(each, ast.Return)]
    sizes = [len(each.elts) if isinstance(each, ast.Tuple) else 1 for each in returned]
    return Found(
        node.name, node.lineno, bool(first), own, frozenset(required), called_with,
        max(sizes, default=1), tuple(dict.fromkeys(likely)),
    )  # fmt: skip


def _parameters(node: ast.FunctionDef | None, first: int) -> tuple[tuple[str, ...], set[str]]:
    """Names in their order, without `self`, and those that have no default."""
    if node is None:
        return (), set()
    given = [*node.args.posonlyargs, *node.args.args]
    names = [each.arg for each in given][first:]
    required = set(names[: max(0, len(names) - len(node.args.defaults))])
    for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        names.append(each.arg)
        required |= {each.arg} if default is None else set()
    return tuple(names), required


def loaded(text: str, name: str, label: str) -> str:
    """Python that gives `theirs` the imports and definitions of a text, each that can be had.

    Running it raises what hinders the definition `name`, where something does.
    """
    return _LOADED.format(text=text, label=label, name=name)


_LOADED = """
import ast, linecache, types
import torch
text = {text!r}
linecache.cache[{label!r}] = len(text), None, text.splitlines(True), {label!r}  # for errors
theirs = types.ModuleType("__main__")  # what is in another module is nobody's own answer
first = None
for node in ast.parse(text, {label!r}).body:
    kinds = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign
    if isinstance(node, kinds):
        try:
            exec(compile(ast.Module([node], []), {label!r}, "exec"), vars(theirs))
        except BaseException as error:
            first = first or error
if not hasattr(theirs, {name!r}):
    raise first or NameError({name!r})
"""


def readings(found: Found, task: str) -> list[Reading]:
    """Ways to read a definition as a task, the plainest first.

    Raises:
        Unreadable: it asks for something that the task has not.
    """
    make = _MAKERS.get(task)
    if make:
        return list(itertools.islice(make(found), MOST))
    if found.name == task:
        return [Reading("", f"{task} = {_theirs(found)}\n")]
    raise Unreadable(f"`{found.name}` can be judged as {task} under that name alone")


def agreeing(task: str, answer) -> tuple[int, int]:
    """How many results of an answer are the course's, on the task's small inputs, and of how many.

    Args:
        answer: in this process or in a jail.
    """
    about = registry.find(task)
    shown, near = Fingerprint(about, answer, gradients=False), tolerance(about)
    expected = [
        (key, value)
        for probe in probes(about)
        for key, value in of_reference(about).on(probe).items()
        if key[1] in outputs(about)
    ]
    return sum(agree(shown.piece(key), value, near) for key, value in expected), len(expected)


def _theirs(found: Found) -> str:
    """Definitions of others are in a module of that name, where none takes another's place."""
    return f"theirs.{found.name}"


def _call(name: str, parameters, required, more=None, **values: str) -> str:
    """`name(their=value, …)`: each value goes to the parameter whose name means it.

    Args:
        more: what else the name of a parameter may stand for, beside CONSTANTS.

    Raises:
        Unreadable: a parameter that must be given means nothing of these.
    """
    left, given = dict(values), {}
    for parameter in parameters:
        for role in list(left):
            if _means(parameter, ROLES[role]):
                given[parameter] = left.pop(role)
                break
    for parameter in parameters:  # what is left goes by its place
        if parameter in required and parameter not in given:
            constants = CONSTANTS | (more or {})
            constant = [text for names, text in constants.items() if _means(parameter, names)]
            must = [role for role in left if role not in ("mask", "dropout", "dim")]
            if constant:
                given[parameter] = constant[0]
                left = {role: text for role, text in left.items() if text != constant[0]}
            elif must:
                given[parameter] = left.pop(must[0])
            else:
                said = f"asks for `{parameter}`, which stands for nothing here"
                raise Unreadable(f"`{name.removeprefix('theirs.')}` {said}")
    if missing := [role for role in left if role not in ("mask", "dropout", "dim")]:
        said = f"takes no {' and no '.join(missing)}"
        raise Unreadable(f"`{name.removeprefix('theirs.')}` {said}")
    return f"{name}({', '.join(f'{key}={text}' for key, text in given.items())})"


def _takes(parameters, role: str) -> bool:
    return any(_means(each, ROLES[role]) for each in parameters)


MASKS = {  # what their mask is: words, and how ours becomes it
    "": "mask",
    "True in the mask hides": "None if mask is None else ~mask",
    "the mask is 1 and 0": "None if mask is None else mask.int()",
    "the mask is 1 where it hides": "None if mask is None else (~mask).int()",
    "the mask is added to the scores": (
        "None if mask is None else torch.zeros(mask.shape).masked_fill(~mask, float('-inf'))"
    ),
}
UNMASKED = "it takes no mask, so what is said of masks is not about this code"
# Where others return the output alone, the weights are what their softmax gave last.
SEEN = """
class _Weights(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", "") == "softmax":
            self.last = result
        return result
"""


def _results(found: Found, call: str) -> Iterator[tuple[str, str]]:
    """Words, and lines that return an output and its weights."""
    if found.returns == 1:
        yield "the weights are those of its softmax", (
            f"seen = _Weights()\n    with seen:\n        output = {call}\n"
            "    return output, getattr(seen, 'last', None)"
        )  # fmt: skip
    else:
        yield "", f"return {call}" if found.returns == 2 else f"return {call}[:2]"
        yield "it returns the weights first", f"return {call}[1::-1]"


def _together(*words: str) -> str:
    return ", ".join(filter(None, words))


def _attention(found: Found) -> Iterator[Reading]:
    made, parameters, name = "", found.parameters, _theirs(found)
    if found.is_class:
        sizes = {"width": "query.shape[-1]"} if _takes(found.parameters, "width") else {}
        built = _call(name, found.parameters, found.required, OF_ATTENTION, **sizes)
        made = f"layer = {built}.eval()\n    "
        parameters, name = found.called_with, "layer"
    masks = MASKS if _takes(parameters, "mask") else {UNMASKED: ""}
    for (told, mask), swap in itertools.product(masks.items(), (False, True)):
        values = {"query": "query", "key": "key", "value": "value"}
        values |= {"mask": f"({mask})"} if mask else {}
        needed = set(parameters) & found.required
        call = _call(name, parameters, needed, OF_ATTENTION, **values)
        for place, (how, lines) in enumerate(_results(found, call)):
            if place == swap:
                body = f"{made}{lines}"
                yield Reading(
                    _together(told, how),
                    f"{SEEN}\ndef scaled_dot_product_attention(query, key, value, mask=None):\n"
                    f"    {body}\n",
                )  # fmt: skip


def _layer(found: Found) -> Iterator[Reading]:
    sizes = {"model_width": "model_width", "num_heads": "num_heads", "dropout": "dropout"}
    built = _call(_theirs(found), found.parameters, found.required, OF_LAYER, **sizes)
    parameters = found.called_with
    if not _takes(parameters, "key"):
        raise Unreadable(f"`{found.name}` is not called with queries, keys and values")
    masks = MASKS if _takes(parameters, "mask") else {UNMASKED: ""}
    for told, mask in masks.items():
        values = {"query": "query", "key": "key", "value": "value"}
        values |= {"mask": f"({mask})"} if mask else {}
        call = _call("self.theirs", parameters, set(), **values)
        for how, lines in _results(found, call):
            for axis in ("", "a mask with an axis for the heads") if mask else ("",):
                more = (
                    "mask if mask is None or mask.ndim == 2 else mask[:, None]" if axis else "mask"
                )
                yield Reading(
                    _together("projections by their order", told, axis, how),
                    _LAYER.format(
                        seen=SEEN, built=built, mask=more, lines=lines.replace("\n", "\n    ")
                    ),
                )


_LAYER = """{seen}
class MultiHeadAttention(torch.nn.Module):
    def __init__(self, model_width, num_heads, dropout=0.0):
        super().__init__()
        self.theirs = {built}
        linear = [part for part in self.theirs.modules() if isinstance(part, torch.nn.Linear)]
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = linear

    def forward(self, query, key, value, mask=None):
        mask = {mask}
        {lines}
"""


def _softmax(found: Found) -> Iterator[Reading]:
    if _takes(found.parameters, "dim"):
        call = _call(_theirs(found), found.parameters, found.required, scores="scores", dim="dim")
        yield Reading("", f"def softmax(scores, dim=-1):\n    return {call}\n")
        return
    moved = "scores.transpose(dim, -1)"
    call = _call(_theirs(found), found.parameters, found.required, scores=moved)
    yield Reading(
        "it knows the last axis, so another is moved there",
        f"def softmax(scores, dim=-1):\n    return {call}.transpose(dim, -1)\n",
    )


def _causal(found: Found) -> Iterator[Reading]:
    call = _call(_theirs(found), found.parameters, found.required, query_length="query_length")
    shapes = {"": "", "an axis for the batch": "[0]", "axes for batch and heads": "[0, 0]"}
    kinds = {
        "": "{}", "True hides": "~{}", "1 and 0": "{} != 0", "1 hides": "{} == 0",
        "it is added to the scores": "{} == 0",
    }  # fmt: skip
    for (axes, index), (told, kind) in itertools.product(shapes.items(), kinds.items()):
        value = kind.format(f"torch.as_tensor({call}){index}")
        yield Reading(
            _together(told, axes, "one length: the last rows for fewer queries"),
            "def causal_mask(query_length, key_length=None):\n"
            "    rows, query_length = query_length, key_length or query_length\n"
            f"    return ({value})[query_length - rows:]\n",
        )


def _padding(found: Found) -> Iterator[Reading]:
    given, words = {"lengths": "lengths", "max_length": "max_length"}, ""
    if _takes(found.parameters, "pad") or not _takes(found.parameters, "lengths"):
        words = "it reads words, here 1, and pads, here 0"
        real = "torch.arange(max_length) < lengths[:, None]"
        given = {"words": f"({real}).long()"} | (
            {"pad": "0"} if _takes(found.parameters, "pad") else {}
        )
    elif len(found.parameters) == 1:
        del given["max_length"]
    call = _call(_theirs(found), found.parameters, found.required, **given)
    kinds = {"": "{}", "True hides": "~{}", "1 and 0": "{} != 0", "1 hides": "{} == 0"}
    for told, kind in kinds.items():
        value = kind.format(f"torch.as_tensor({call})")
        yield Reading(
            _together(words, told),
            "def padding_mask(lengths, max_length):\n"
            f"    return ({value}).reshape(len(lengths), 1, -1)\n",
        )


def _table(found: Found) -> Iterator[Reading]:
    if not found.is_class:
        values = {"length": "length", "width": "width"}
        call = _call(_theirs(found), found.parameters, found.required, **values)
        shapes = {"": "", "an axis for the batch": ".squeeze(0)"}
        for told, index in shapes.items():
            yield Reading(told, _TABLE.format(f"torch.as_tensor({call}){index}"))
        return
    values = {"width": "width"} | (
        {"length": "length"} if _takes(found.parameters, "length") else {}
    )
    values |= {"dropout": "0.0"} if _takes(found.parameters, "dropout") else {}
    made = _call(_theirs(found), found.parameters, found.required, **values)
    yield Reading(
        "what it adds to zeros, batch first",
        _TABLE.format(f"{made}.eval()(torch.zeros(1, length, width))[0]"),
    )
    yield Reading(
        "what it adds to zeros, batch second",
        _TABLE.format(f"{made}.eval()(torch.zeros(length, 1, width))[:, 0]"),
    )
    yield Reading("the table it keeps", _TABLE.format(f"{made}.pe.squeeze()[:length]"))


_TABLE = "def sinusoidal_positions(length, width):\n    return {}\n"
_MAKERS = {
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
    "MultiHeadAttention": _layer,
    "causal_mask": _causal,
    "padding_mask": _padding,
    "sinusoidal_positions": _table,
}
