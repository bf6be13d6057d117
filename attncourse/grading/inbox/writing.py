"""Files that several programs may write: one at a time, and completely or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of all programs that say so of this folder, which is made if it is not there.

    Where locks do not exist (Windows, some network drives), nobody waits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, handle)  # which also gives the lock back
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write(path: Path, data: bytes, lasting: bool = True) -> None:
    """Write a file so that it is there completely or not at all; who may read it stays as it was.

    Args:
        lasting: its bytes are on the disk before it takes the place of another. After a loss of
            power one of the two is there, and whole; which one, the file system says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")  # others may write the same one
    try:
        with scratch.open("wb") as file:
            with contextlib.suppress(OSError):  # there is none before it, or the disk has no modes
                shutil.copymode(path, scratch)
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)  # a full disk


def put_out(path: Path, data: bytes) -> None:
    """Write an output where somebody wants it, also behind a link, into a pipe or /dev/stdout."""
    path = path.absolute()
    if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        write(path.resolve(), data)
