"""Files that several programs may write: one at a time, and completely or not at all."""

import contextlib
import os
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
    """Write a file so that it is there completely or not at all.

    Args:
        lasting: it outlives a loss of power from now on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")  # others may write the same one
    try:
        with scratch.open("wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)  # a full disk
