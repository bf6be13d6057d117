"""Calling an answer as a black box, and writing down everything it shows.

Checks and diagnosis see an answer only through `Observation`s: what came back, what it did to its
inputs and to the random state, which gradients it lets through. An answer in another process can
be judged by the same checks, since an observation is plain data.
"""

import contextlib
import copy
import functools
import io
import linecache
import random
import sys
import traceback
import warnings
from collections.abc import Callable
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

    returned: object = None  # tensors detached; tuples and lists as lists
    error: str | None = None  # "raised ValueError: the message", "returned a sparse tensor"
    error_line: str | None = None  # where in the answer: "line 3: x = y"
    unanswered: bool = False  # raised NotImplementedError
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # per input, if asked for
    gradient_error: str | None = None  # what autograd said instead
    edited: tuple[str, ...] = ()  # inputs changed in place
    random_state_moved: bool = False  # torch's, NumPy's or Python's global generator
    random_states: tuple[int, ...] = ()  # of the three after the call
    settings_changed: bool = False  # of torch, for whatever runs after the call
    printed: int = 0  # characters


class Counter(io.TextIOBase):
    """A stream that counts what is written and keeps none of it."""

    encoding = "utf-8"

    def __init__(self):
        self.characters = 0
        self.buffer = self  # some programs write bytes

    def writable(self) -> bool:
        return True

    def write(self, text) -> int:
        self.characters += len(text)
        return len(text)


@contextlib.contextmanager
def kept_random_states():
    """Put the global generators back at the end: every observation seeds them."""
    numpy = sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy:
            numpy.random.set_state(states[2])


def _seed_generators(seed: int) -> None:
    # Not torch.manual_seed: without a GPU it queues a stack trace per call (1 ms, never freed).
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def _random_states() -> tuple[int, ...]:
    """A number for each global generator (torch's, Python's, NumPy's if it is there).

    The next draw stands for the state of the last two: reading NumPy's takes as long as all else
    that an observation does.
    """
    states = [hash(torch.get_rng_state().numpy().tobytes()), random.getrandbits(64)]
    if numpy := sys.modules.get("numpy"):
        states.append(int(numpy.random.get_bit_generator().random_raw()))
    return tuple(states)


@functools.cache
def _states_of(seed: int, with_numpy: bool) -> tuple[int, ...]:
    """The random states of an answer that draws nothing."""
    _seed_generators(seed)
    return _random_states()


def states_without_draws(seed: int) -> tuple[int, ...]:
    """The random states after a call that draws nothing."""
    return _states_of(seed, "numpy" in sys.modules)


def _settings() -> tuple:
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        _default_device(),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
    )


@contextlib.contextmanager
def _own_surroundings(seed: int, facts: dict):
    """Give the answer fixed random states and torch's own settings; put the settings back.

    Whether it has changed them is noted among the facts.
    """
    settings = _settings()
    _, dtype, device, threads, autocast, deterministic = settings
    _seed_generators(seed)
    left = None
    try:
        with (
            warnings.catch_warnings(),
            torch.inference_mode(False),
            torch.enable_grad(),  # as in a notebook, whatever the caller has switched off
        ):
            warnings.simplefilter("ignore")
            torch.set_autocast_enabled("cpu", False)
            yield
            left = _settings()
            facts["settings_changed"] = left != (True, dtype, device, threads, False, deterministic)
    finally:
        torch.set_autocast_enabled("cpu", autocast)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic)
        if (left[2] if left else _default_device()) != device:
            torch.set_default_device(device)


def _default_device() -> torch.device | None:
    """None if it is a device that is not there."""
    try:
        return torch.get_default_device()
    except Exception:
        return None


class Unusable(Exception):
    """An answer that cannot be called, or whose result cannot be looked at; says what it does."""


NAMED = ("dim", "mask")  # arguments that everybody passes by name
MOST_NUMBERS = 10_000_000  # no task returns a thousandth of it


def _plain(value):
    """A copy of a returned value that holds nothing but numbers; raises Unusable."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise Unusable(
                "returned a sparse, nested or quantized tensor; an ordinary one is expected"
            )
        if value.device.type == "meta":
            raise Unusable("returned a tensor on the meta device, which holds no numbers")
        if value.numel() > MOST_NUMBERS:
            raise Unusable(
                f"returned a tensor with {value.numel():,} numbers, far more than expected"
            )
        return value.detach().as_subclass(Tensor).cpu().clone()
    if isinstance(value, list | tuple):
        if len(value) > 100:
            raise Unusable(f"returned a {type(value).__name__} of {len(value):,}")
        return [_plain(item) if isinstance(item, Tensor) else item for item in list(value)]
    return value


def _line_of(error: BaseException) -> str | None:
    """The deepest line that the student wrote: not torch's, not the judge's."""
    # not traceback.extract_tb: it reads the line of every frame
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = frame.f_code.co_filename
        if "site-packages" in name or "/attncourse/" in name.replace("\\", "/"):
            continue
        if name.startswith("<frozen") or "/lib/python" in name.replace("\\", "/"):
            continue
        linecache.checkcache(name)
        source = linecache.getline(name, number or 0, frame.f_globals).strip()
        return f"line {number}: {source}" if source else None
    return None


def _slice_with(value: Tensor) -> Tensor:
    """The same numbers as a slice of a wider tensor, beside others that nobody should read.

    It begins at an odd place, and so do its rows: nothing can be taken for pairs.
    """
    width = value.shape[-1]
    wide = value.new_full((*value.shape[:-1], width + 4 + (width + 1) % 2), _beside(value))
    return wide[..., 1 : 1 + width].copy_(value)


def _turned_with(value: Tensor) -> Tensor:
    """The same numbers with gaps between them, and the first two of three axes exchanged."""
    axes = [1, 0, *range(2, value.ndim)] if value.ndim > 2 else list(range(value.ndim))
    wide = value.new_full((*(value.shape[axis] for axis in axes), 3), _beside(value))
    return wide[..., 1].permute(axes).copy_(value)


def _beside(value: Tensor) -> float:
    return float("nan") if value.is_floating_point() else 1


def _spread_with(value: Tensor) -> Tensor:
    """Equal rows as one row that stands in memory once."""
    equal = value.ndim > 1 and torch.equal(value, value[:1].expand_as(value))
    return value[:1].clone().expand_as(value) if equal else value


LAYOUTS = {"sliced": _slice_with, "turned": _turned_with, "spread": _spread_with}


_UNCHANGING = {str, int, float, bool, type(None)}


def _copied(value: object) -> object:
    """A deep copy, of what tables consist of in a fraction of the time that `deepcopy` takes."""
    if type(value) is list:  # most of what is in it is a number: no call for each
        return [each if type(each) in _UNCHANGING else _copied(each) for each in value]
    if type(value) is dict:
        return {
            key: each if type(each) in _UNCHANGING else _copied(each) for key, each in value.items()
        }
    return value if type(value) in _UNCHANGING else copy.deepcopy(value)


def observe(
    function, inputs: dict, *, gradient=False, seed=GLOBAL_SEED, by_name=False, layout=None
) -> Observation:
    """Call `function` on a copy of `inputs`: by position, `dim` and `mask` by keyword.

    A mask of None is left out, as a caller would. With `gradient`, also differentiate a fixed
    random mixture of all outputs with respect to every floating-point input. With `by_name`, pass
    every input by keyword. A `layout` says how the inputs lie in memory (see LAYOUTS). Whatever
    the answer prints, warns, raises or sets ends here; the global random generators are left
    anywhere (see `kept_random_states`).
    """
    arguments, leaves = {}, {}
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            value = value.detach().clone()
            if layout and value.numel() and value.ndim:
                value = LAYOUTS[layout](value)
            if gradient and value.is_floating_point():
                leaves[name] = value.requires_grad_()
                # Not the leaf itself: an answer may edit its input, and that is reported apart.
                with torch.enable_grad():
                    value = value.clone()
        elif isinstance(value, list | dict):
            value = _copied(value)
        if value is not None or not name.endswith("mask"):
            arguments[name] = value
    keywords = {name: value for name, value in arguments.items() if by_name or name in NAMED}
    positional = [value for name, value in arguments.items() if name not in keywords]
    output = Counter()
    facts: dict = {}
    before = _states_of(seed, "numpy" in sys.modules)
    with (
        _own_surroundings(seed, facts),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            returned = function(*positional, **keywords)
            facts["returned"] = _plain(returned)
            if leaves:
                with torch.enable_grad():  # whether it has switched them off is reported apart
                    facts["gradients"], facts["gradient_error"] = differentiate(returned, leaves)
        except KeyboardInterrupt:
            raise
        except Unusable as error:
            facts["error"] = str(error)
        except BaseException as error:  # SystemExit too: an answer that calls exit() is just wrong
            facts["unanswered"] = isinstance(error, NotImplementedError)
            facts["error"] = f"raised {_kind_of(error)}: {_text_of(error)}"
            facts["error_line"] = _line_of(error)
        after = _random_states()
    facts["edited"] = tuple(
        name
        for name, value in inputs.items()
        if name in arguments and not _identical(value, arguments[name])
    )
    return Observation(
        random_state_moved=before != after[: len(before)],
        random_states=after,
        printed=output.characters,
        **facts,
    )


def _kind_of(error: BaseException) -> str:
    """The name of its type; a compiler's own kind of RuntimeError is one."""
    kind = type(error)
    while kind.__module__.startswith("torch._dynamo"):
        kind = kind.__base__
    return kind.__name__


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:600]
    except Exception:
        return "(its message cannot be read)"


def _identical(left: object, right: object) -> bool:
    if not isinstance(left, Tensor):
        return left == right and (not isinstance(left, dict) or list(left) == list(right))
    if not isinstance(right, Tensor):
        return False
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    right = right.detach()
    return torch.equal(left, right) or torch.equal(left.nan_to_num(), right.nan_to_num())


def differentiate(
    returned, leaves: dict[str, Tensor]
) -> tuple[dict[str, Tensor | None], str | None]:
    """Gradients by input (None where none arrives), and what autograd said if it gave up."""
    outputs = returned if isinstance(returned, list | tuple) else [returned]
    outputs = [x for x in outputs if isinstance(x, Tensor) and x.is_floating_point()]
    outputs = [x.as_subclass(Tensor) for x in outputs if x.requires_grad]
    if not outputs:
        return dict.fromkeys(leaves), None
    mixer = torch.Generator().manual_seed(GLOBAL_SEED)
    mixed = [
        torch.randn(x.shape, generator=mixer, dtype=torch.float64, device="cpu").to(x) * x
        for x in outputs
    ]
    try:
        total = sum(x.sum() for x in mixed)
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an in-place edit broke the graph, or a backward of its own
        return dict.fromkeys(leaves), _text_of(error)
    return dict(zip(leaves, gradients, strict=True)), None


# --- short cuts ---------------------------------------------------------------------------------

# Parts of names, such as torch.nn.functional.softmax and aten._softmax. One that begins with
# "torch." is the beginning of a full name.
ONNX = ("torch.onnx.ops.", "onnx.")  # whole layers: attention, a rotary embedding
FUSED_ATTENTION = (
    *ONNX,
    "scaled_dot_product",  # also the aten names _scaled_dot_product_…
    "multi_head_attention",
    "MultiheadAttention",
    "flex_attention",
    "_transformer_encoder_layer",
    "_native_multi_head",
)
# A softmax is the gradient of torch.logsumexp.
DERIVATIVES = (
    *("autograd.grad", "autograd.backward", "Tensor.backward", "autograd.functional"),
    *("forward_ad", "make_dual"),
    *("func.grad", "func.vjp", "func.jvp", "func.jac", "func.hessian", "func.linearize"),
    *("get_gradient_edge", "_get_grad_fn_or_grad_acc"),  # a node of the graph, to call by hand
    "torch.autograd.gradcheck.",  # by small differences
)
LIBRARY_SOFTMAX = (
    *("softmax", "softmin"),  # log_softmax, gumbel_softmax, _safe_softmax, … too
    "Categorical",  # of torch.distributions; what it keeps of its logits is normalized
    *("SoftmaxTransform", "StickBreakingTransform"),  # transform_to(constraints.simplex), too
    *DERIVATIVES,
)
MASKED_SOFTMAX = (
    "_masked_softmax",
    *("torch.masked._ops.softmax", "torch.masked._ops.log_softmax", "torch.masked._ops.softmin"),
    *("torch.masked._ops.normalize", "torch.masked.maskedtensor."),
    *("_sparse_softmax", "_sparse_log_softmax", "sparse.softmax", "sparse.log_softmax"),
)
CAUSAL_MASK = ("square_subsequent_mask", "torch.nn.attention.bias.")


class _Functions(TorchFunctionMode):
    """Note the public torch functions an answer calls, under whatever alias."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.add(_name_of(function))
        return function(*args, **(kwargs or {}))


@functools.lru_cache(1000)  # it takes longer than most calls
def _name_of(function: Callable) -> str:
    name = str(resolve_name(function) or getattr(function, "__qualname__", function))
    inside = getattr(function, "__module__", None) == "torch.autograd"
    return f"torch.autograd.{name}" if inside else name


class _Operators(TorchDispatchMode):
    """Note the operators that arrive at the backend, however they were called."""

    def __init__(self):
        super().__init__()
        self.names: dict[Callable, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, torch's default, makes the first check import torch._dynamo: 1.5 s

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function not in self.names:
            self.names[function] = str(getattr(function, "overloadpacket", function))
        return function(*args, **(kwargs or {}))


def find_short_cut(
    function, inputs: dict, forbidden: tuple[str, ...], own_code, **options
) -> tuple[str | None, Observation]:
    """Name the ready-made function that an answer calls instead of computing, if any.

    The second result is what the watched call showed: an answer may behave while it is watched.

    Args:
        forbidden: parts of names of torch functions and operators.
        own_code: the code object of the course's reference for the same task.
        options: of `observe`.
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

    seen = observe(traced, inputs, **options)
    if course:
        return f"attncourse's own {course[0]}", seen
    for name in sorted(functions.names) + sorted(operators.names.values()):
        if any(part in name for part in forbidden):
            return name, seen
    return None, seen
