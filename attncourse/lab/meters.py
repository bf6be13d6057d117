"""Counts that no clock can blur: bytes alive, operations dispatched, bytes kept for backward.

They come from watching every operation that torch dispatches, so they are the same on every run
and every machine, on the CPU, on a GPU, and on the device "meta", where tensors have a shape and
no memory: there, hand-written attention over more positions than fit can be counted before it is
tried. (Torch's own attention has no kernel there and counts as its fallback, MATH.)

Out of sight: scratch memory inside one operation, and code that does not go through torch's
dispatcher one operation at a time (`torch.compile`, Triton kernels, `flex_attention`).
"""

import weakref
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Counts:
    """What a call did. Memory is counted by storage, so that a view costs nothing.

    Args:
        peak_bytes: the most that was alive at once of what the call allocated, its result
            included and its inputs not.
        biggest_bytes: the biggest single allocation.
        biggest_shape: the shape it was allocated for; () for a nested tensor.
        input_bytes: what existed before and was used: arguments, weights, constants.
        moved_bytes: read and written, if every operation fetches each argument from memory once
            and stores its result: the traffic that a roofline assumes.
        operations: name -> how often it ran. Views (`transpose`, `view`, …) are left out: they
            compute nothing, and torch versions differ in them.
    """

    peak_bytes: int
    biggest_bytes: int
    biggest_shape: tuple[int, ...]
    input_bytes: int
    moved_bytes: int
    operations: dict[str, int]

    @property
    def total(self) -> int:
        """How many operations ran."""
        return sum(self.operations.values())


@dataclass(frozen=True)
class Saved:
    """Bytes that autograd keeps until the backward pass, each storage once.

    Args:
        activations: allocated during the call; this is what training adds to memory.
        inputs: existed before: arguments and weights, which would be there anyway.
    """

    activations: int
    inputs: int

    @property
    def total(self) -> int:
        return self.activations + self.inputs


def count(fn: Callable, *args, **kwargs) -> Counts:
    """Run `fn(*args, **kwargs)` once and count what it allocates and dispatches.

    >>> q = k = v = torch.empty(1, 16, 65536, 64, dtype=torch.float16, device="meta")
    >>> count(lambda: (q @ k.mT).softmax(-1) @ v).biggest_bytes / 2**30  # GiB
    128.0
    """
    with Meter() as meter:
        result = fn(*args, **kwargs)
    del result  # was alive until the meter stopped: the result is part of the peak
    return meter.counts()


def trace(fn: Callable, *args, **kwargs) -> list[str]:
    """Run `fn(*args, **kwargs)` once; the names of all operations in order, views included."""
    with Meter() as meter:
        fn(*args, **kwargs)
    return meter.names


def saved_for_backward(fn: Callable, *args, **kwargs) -> Saved:
    """Run `fn(*args, **kwargs)` once and count what autograd keeps for its backward pass."""
    seen, sizes = {}, {True: 0, False: 0}

    def pack(tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage is not None and id(storage) not in seen:
            # The reference lets go of the name when the storage dies: another may take its place.
            name = id(storage)
            seen[name] = weakref.ref(storage, lambda _: seen.pop(name, None))
            sizes[meter.made(storage)] += storage.nbytes()
        # Torch calls the innermost hook alone; the one around this call wants to know, too.
        return outer(tensor) if outer else tensor

    outer = _pack.get()
    token = _pack.set(pack)
    try:
        with Meter() as meter, torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            fn(*args, **kwargs)
    finally:
        _pack.reset(token)
    return Saved(activations=sizes[True], inputs=sizes[False])


def allocator_peak(fn: Callable, *args, **kwargs) -> int | None:
    """Run `fn(*args, **kwargs)` once; the most bytes that CUDA's allocator held above the start.

    Rounded up by the allocator to blocks of 512 bytes, and with the workspaces that libraries
    allocate in a first call: call `fn` once before, and compare with `count(...).peak_bytes`.

    Returns:
        Bytes, or None without a GPU.
    """
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()  # else the peak of everything that ran before
    before = torch.cuda.memory_allocated()  # inputs, and what others left
    result = fn(*args, **kwargs)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


class Meter(TorchDispatchMode):
    """Counts while a `with` block runs; also what was counted up to an error.

    >>> with Meter() as meter:
    ...     attention(q, k, v)
    >>> meter.counts().peak_bytes

    Meters may be nested: an outer one counts what an inner one counts. A meter is used once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []  # of all operations in order, such as "bmm"
        self._operations: Counter[str] = Counter()
        self._live: dict[int, int] = {}  # id of a storage made here -> its bytes
        self._outside: set[int] = set()  # ids of storages that were there before
        self._watches: dict[int, weakref.ref] = {}
        self._bytes = self._peak = self._input_bytes = self._moved = 0
        self._biggest, self._biggest_shape = 0, ()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, torch's default, makes the first count import torch._dynamo: 1.5 s

    def counts(self) -> Counts:
        """What was counted so far."""
        return Counts(
            peak_bytes=self._peak,
            biggest_bytes=self._biggest,
            biggest_shape=self._biggest_shape,
            input_bytes=self._input_bytes,
            moved_bytes=self._moved,
            operations=dict(self._operations),
        )

    def made(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage, still alive, was allocated while this meter ran."""
        return id(storage) in self._live

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _NAMES:
            # In inference mode torch hands over compound operations whole: take them apart as its
            # compiled code does. `func.decompose` prefers what torch wrote in Python for its
            # compiler, in which a GRU is a loop where a GPU's library runs a single kernel.
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOUND):
                with self:
                    return func._op_dk(_COMPOUND, *args, **kwargs)
            _NAMES[func] = str(func).split(".")[1]  # aten.bmm.default, aten.add_.Tensor
        name = _NAMES[func]
        given = _tensors((*args, kwargs))
        if name != "lift_fresh":  # its argument was born a moment ago, in torch.tensor
            for tensor in given:
                self._meet(tensor)
        result = func(*args, **kwargs)
        made = _tensors((result,))
        are_new = [self._allocate(tensor) for tensor in made]
        self.names.append(name)
        # What is no view allocates, or writes in place and says so by its last letter or `out`.
        if any(are_new) or name.endswith("_") or "out" in kwargs:
            self._operations[name] += 1
            if "empty" not in name:  # which touches no byte
                self._moved += sum(map(_size, given + made))
        return result

    def _meet(self, tensor: Tensor) -> None:
        """An argument that was not made here is an input."""
        storage = _storage(tensor)
        if storage is not None and id(storage) not in self._watches:
            self._outside.add(id(storage))
            self._input_bytes += storage.nbytes()
            self._watch(storage)

    def _allocate(self, tensor: Tensor) -> bool:
        """Count a result's storage unless it is known, and say whether it is new."""
        storage = _storage(tensor)
        if storage is None or id(storage) in self._outside:
            return False
        is_new = id(storage) not in self._live
        if is_new:
            self._watch(storage)
        size = storage.nbytes()
        self._bytes += size - self._live.get(id(storage), 0)  # resize_ changes an old one
        self._live[id(storage)] = size
        self._peak = max(self._peak, self._bytes)
        if size > self._biggest:
            self._biggest = size
            self._biggest_shape = () if tensor.is_nested else tuple(tensor.shape)
        return is_new

    def _watch(self, storage: torch.UntypedStorage) -> None:
        name = id(storage)

        def forget(_: weakref.ref) -> None:  # the storage died; its id is free for another
            del self._watches[name]
            self._outside.discard(name)
            self._bytes -= self._live.pop(name, 0)

        self._watches[name] = weakref.ref(storage, forget)


_NAMES: dict[object, str] = {}  # of the operations met so far that are no compounds
_COMPOUND = torch._C.DispatchKey.CompositeImplicitAutograd

# The hook of the innermost `saved_for_backward` that is running.
_pack: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("pack", default=None)


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """The memory behind a tensor; None where there is no single one (a sparse tensor)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _size(tensor: Tensor) -> int:
    """Bytes that reading all of a tensor fetches; an expanded axis is fetched once."""
    storage = _storage(tensor)
    size = tensor.numel() * tensor.element_size()
    return size if storage is None else min(size, storage.nbytes())


def _tensors(tree: tuple | list | dict) -> list[Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    found: list[Tensor] = []
    for branch in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(branch, Tensor):  # most are: no call for each
            found.append(branch)
        elif isinstance(branch, (tuple, list, dict)):
            found += _tensors(branch)
    return found
