"""Calling an answer as a black box, and writing down everything it shows.

Checks and diagnosis see an answer only through `Observation`s: what came back, what it did to its
inputs and to the random state, which gradients it lets through. An answer in another process can
be judged by the same checks, since an observation is plain data.
"""

import contextlib
import io
import linecache
import random
import sys
import traceback
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

# The judge's own seed for answers that draw random numbers; any fixed number does.
GLOBAL_SEED = 20140901


@dataclass(frozen=True)
class Observation:
    """What one call of an answer showed."""

    returned: object = None  # tensors detached, containers as they came
    error: str | None = None  # "ValueError: the message"
    error_line: str | None = None  # where in the answer: "line 3: x = y"
    unanswered: bool = False  # raised NotImplementedError
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # per input, if asked for
    edited: tuple[str, ...] = ()  # inputs changed in place
    random_state_moved: bool = False  # torch's, NumPy's or Python's global generator
    random_state: int = 0  # torch's after the call, hashed
    settings_changed: bool = False  # torch's default dtype
    printed: int = 0  # characters


class _Counter(io.TextIOBase):
    """A stream that counts what is written and keeps none of it."""

    characters = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.characters += len(text)
        return len(text)


def _random_states() -> list:
    states = [torch.get_rng_state(), random.getstate()]
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states.append((kind, tuple(keys.tolist()), *rest))
    return states


@contextlib.contextmanager
def _own_random_state(seed: int):
    """Give the answer a fixed global random state; give the caller's back afterwards."""
    saved = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    saved_numpy = numpy.random.get_state() if numpy else None
    # Not torch.manual_seed: without a GPU it queues a stack trace per call (1 ms, never freed).
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(saved[0])
        random.setstate(saved[1])
        if numpy:
            numpy.random.set_state(saved_numpy)


def _copy(value):
    return value.detach().clone() if isinstance(value, Tensor) else value


def _detached(value):
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return tuple(map(_detached, value))
    return value


def _tensors(value) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _line_of(error: BaseException) -> str | None:
    """The deepest line that the student wrote: not torch's, not the judge's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        name = frame.filename
        if "site-packages" in name or "/attncourse/" in name.replace("\\", "/"):
            continue
        if name.startswith("<frozen") or "/lib/python" in name.replace("\\", "/"):
            continue
        source = linecache.getline(name, frame.lineno or 0).strip()
        return f"line {frame.lineno}: {source}" if source else None
    return None


def observe(function, inputs: dict, *, named=(), gradient=False, seed=GLOBAL_SEED) -> Observation:
    """Call `function` on a copy of `inputs`: by position, those in `named` and a mask by keyword.

    A mask of None is left out, as a caller would.

    With `gradient`, also differentiate a fixed random mixture of all outputs with respect to
    every floating-point input. Whatever the answer prints, warns, raises or does to global state
    ends here.
    """
    arguments = {name: _copy(value) for name, value in inputs.items()}
    leaves = {}
    if gradient:
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                leaves[name] = _copy(value).requires_grad_()
                # Not the leaf itself: an answer may edit its input, and that is reported apart.
                with torch.enable_grad():
                    arguments[name] = leaves[name].clone()
    if arguments.get("mask", 0) is None:
        del arguments["mask"]
    named = {*named, "mask"}
    positional = [value for name, value in arguments.items() if name not in named]
    keywords = {name: value for name, value in arguments.items() if name in named}
    output = _Counter()
    default_dtype = torch.get_default_dtype()
    facts: dict = {}
    with (
        _own_random_state(seed),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        torch.inference_mode(False),
        torch.set_grad_enabled(bool(leaves)),
    ):
        warnings.simplefilter("ignore")
        before = _random_states()
        try:
            returned = function(*positional, **keywords)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: an answer that calls exit() is just wrong
            facts["unanswered"] = isinstance(error, NotImplementedError)
            facts["error"] = f"{type(error).__name__}: {error}"[:600]
            facts["error_line"] = _line_of(error)
            returned = None
        after = _random_states()
        facts["settings_changed"] = torch.get_default_dtype() != default_dtype
        torch.set_default_dtype(default_dtype)
        moved = not torch.equal(before[0], after[0]) or before[1:] != after[1 : len(before)]
        if leaves and not facts.get("error"):
            with torch.enable_grad():
                facts["gradients"] = _gradients(returned, leaves)
    facts["random_state"] = hash(after[0].numpy().tobytes())
    edited = tuple(
        name
        for name, value in inputs.items()
        if isinstance(value, Tensor) and not _identical(value, arguments[name])
    )
    try:
        returned = _detached(returned)
    except Exception as error:  # an object posing as a tensor
        facts["error"] = f"{type(error).__name__}: {error}"[:600]
        returned = None
    return Observation(
        returned, edited=edited, random_state_moved=moved, printed=output.characters, **facts
    )


def _identical(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(torch.nan_to_num(left), torch.nan_to_num(right.detach()))


def _gradients(returned, leaves: dict[str, Tensor]) -> dict[str, Tensor | None]:
    outputs = [
        tensor for tensor in _tensors(returned) if tensor.is_floating_point() and tensor.numel()
    ]
    outputs = [tensor for tensor in outputs if tensor.requires_grad]
    if not outputs:
        return dict.fromkeys(leaves)
    mixer = torch.Generator().manual_seed(GLOBAL_SEED)
    total = sum(
        (
            tensor
            * torch.randn(tensor.shape, generator=mixer, dtype=torch.float64, device="cpu").to(
                tensor
            )
        ).sum()
        for tensor in outputs
    )
    try:
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except RuntimeError:  # an in-place edit broke the graph: no gradient arrives
        return dict.fromkeys(leaves)
    return dict(zip(leaves, gradients, strict=True))


# --- short cuts ---------------------------------------------------------------------------------

FUSED_ATTENTION = (
    "scaled_dot_product",  # also the aten names _scaled_dot_product_…
    "multi_head_attention",
    "MultiheadAttention",
    "flex_attention",
    "_transformer_encoder_layer",
    "_native_multi_head",
)
LIBRARY_SOFTMAX = ("softmax", "softmin")  # log_softmax, gumbel_softmax, _safe_softmax, … too


class _Functions(TorchFunctionMode):
    """Note the public torch functions an answer calls, under whatever alias."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.add(str(resolve_name(function) or getattr(function, "__name__", function)))
        return function(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Note the operators that arrive at the backend, however they were called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


def find_short_cut(function, inputs: dict, forbidden: tuple[str, ...], own_code) -> str | None:
    """Name the ready-made function that an answer calls instead of computing, if any.

    Args:
        forbidden: parts of names of torch functions and operators.
        own_code: the code object of the course's reference for the same task.
    """
    functions, operators, course = _Functions(), _Operators(), []

    def profile(frame, event, argument):
        if event == "call" and frame.f_code is own_code:
            course.append(frame.f_code.co_name)

    def traced(*arguments, **keywords):
        watching = sys.getprofile() is None  # somebody who profiles a notebook goes first
        if watching:
            sys.setprofile(profile)
        try:
            with functions, operators:
                return function(*arguments, **keywords)
        finally:
            if watching:
                sys.setprofile(None)

    observe(traced, inputs)
    if course:
        return f"attncourse's own {course[0]}"
    for name in sorted(functions.names) + sorted(operators.names):
        if any(part in name for part in forbidden):
            return name
    return None
