"""Plain data between two processes: numbers, text, lists, dictionaries and tensors as bytes.

Never pickle: what comes out of a student's process is data that somebody else wrote. A message is
its header's and its body's length, a JSON header, and a body that holds the tensors' bytes.
"""

import json
import math
import numbers
import re
import socket
import struct
from collections.abc import Callable

import torch
from torch import Tensor

LARGEST = 64 * 2**20  # bytes of one message's tensors
LONGEST = 2**20  # bytes of a reply's header
QUESTION = 16 * 2**20  # of a question's, which holds a notebook's code: 6 bytes for a byte, at most
_LENGTHS = struct.Struct("!IQ")
_SCALARS = {type(None), bool, float, str}  # whose JSON form is what they are
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Malformed(Exception):
    """A message that no honest process sends, or one that is too large."""


def pack(value: object, longest: int = LONGEST) -> bytes:
    """Encode a value; what is no plain data becomes a mark with the name of its type.

    Raises:
        Malformed: the message would be too large.
    """
    body: list[bytes] = []
    header = json.dumps(_shrink(value, body)).encode()
    size = sum(map(len, body))
    if len(header) > longest or size > LARGEST:
        raise Malformed(f"returned {size + len(header):,} bytes, far more than expected")
    return b"".join([_LENGTHS.pack(len(header), size), header, *body])


def send(channel: socket.socket, value: object) -> None:
    channel.sendall(pack(value))


def receive(
    channel: socket.socket, wait: Callable[[], None] = lambda: None, longest: int = LONGEST
) -> object:
    """Read one message.

    Args:
        wait: called before every read; it may give up by raising an error of its own.
        longest: bytes of a header; a child trusts the grader with `QUESTION`.

    Raises:
        EOFError: the other side is gone.
        Malformed: this is no message.
    """
    lengths = _read(channel, _LENGTHS.size, wait)
    header_size, body_size = _LENGTHS.unpack(lengths)
    if header_size > longest or body_size > LARGEST:
        raise Malformed("sent more than expected")
    data = _read(channel, header_size + body_size, wait)
    try:
        return _Reader(data, header_size).value(json.loads(data[:header_size]))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, RuntimeError) as error:
        raise Malformed(f"sent something unreadable ({type(error).__name__})") from None


def _read(channel: socket.socket, size: int, wait: Callable[[], None]) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        wait()
        try:
            count = channel.recv_into(view)
        except ConnectionResetError:
            count = 0
        if not count:
            raise EOFError
        view = view[count:]
    return data


def _shrink(value: object, body: list[bytes]) -> object:
    """The JSON form: scalars as they are, all else as a list that begins with its kind."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        offset = sum(map(len, body))
        body.append(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        return ["tensor", _NAMES.get(value.dtype, ""), list(value.shape), offset]
    if isinstance(value, (list, tuple)):
        form = ["list" if isinstance(value, list) else "tuple"]
        for item in value:
            form.append(item if type(item) in _SCALARS else _shrink(item, body))
        return form
    if isinstance(value, dict):
        return ["dict", *([_shrink(k, body), _shrink(v, body)] for k, v in value.items())]
    if isinstance(value, str):
        return value
    if type(value) is int or isinstance(value, numbers.Integral):
        value = int(value)
        if value.bit_length() > 64:
            raise Malformed(f"returned an integer of {value.bit_length():,} bits")
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    return ["other", type(value).__module__, type(value).__name__]


class _Reader:
    """Makes values of their JSON forms; each byte of the body is part of one tensor at most."""

    def __init__(self, data: bytearray, start: int):
        self.data, self.start = data, start  # where the body begins
        self.left = len(data) - start  # else a short header could ask for any amount of memory

    def value(self, form: object) -> object:
        if not isinstance(form, list):
            if isinstance(form, dict) or (isinstance(form, int) and form.bit_length() > 64):
                raise ValueError("not a form of this wire")
            return form
        kind, *rest = form
        match kind:
            case "tensor":
                return self._tensor(*rest)
            case "list":
                return self._values(rest)
            case "tuple":
                return tuple(self._values(rest))
            case "dict":
                return {self.value(k): self.value(v) for k, v in rest}
            case "other":
                module, name = (re.sub(r"\W", "_", str(part)[:60]) or "_" for part in rest)
                return type(name, (), {"__module__": module})()
        raise ValueError("not a form of this wire")

    def _values(self, forms: list) -> list:
        return [form if type(form) in _SCALARS else self.value(form) for form in forms]

    def _tensor(self, name: str, shape: list[int], offset: int) -> Tensor:
        dtype = _DTYPES[name]
        if not all(type(n) is int and n >= 0 for n in [*shape, offset]):
            raise ValueError("not a shape")
        if len(shape) > 16:
            raise ValueError("too many axes")
        size = math.prod(shape) * dtype.itemsize
        self.left -= size
        offset += self.start
        if self.left < 0 or offset + size > len(self.data):
            raise ValueError("not that many bytes")
        if not size:
            return torch.empty(shape, dtype=dtype)
        data = self.data[offset : offset + size]
        if dtype is torch.bool:  # a byte of 2 would be neither
            return torch.frombuffer(data, dtype=torch.uint8).reshape(shape) != 0
        return torch.frombuffer(data, dtype=dtype).reshape(shape)
