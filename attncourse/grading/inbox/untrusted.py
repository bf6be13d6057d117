"""What somebody else wrote, before it is shown or read: made printable, and read within limits."""

import contextlib
import resource
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator

MEMORY = 2 * 2**30  # bytes that a process of ours may take to read what students sent

# Letters of other alphabets that look like small Latin ones: most of what Unicode calls confusable
# (https://www.unicode.org/reports/tr39/) with a letter of a to z.
_ALIKE = {
    "a": "аɑα", "c": "с", "d": "ԁ", "e": "е", "g": "ɡ", "h": "һ", "i": "іıι", "j": "ј",
    "k": "κк", "l": "ӏ", "m": "м", "n": "ո", "o": "оοօ", "p": "рρ", "q": "ԛ", "s": "ѕ",
    "t": "тτ", "u": "υս", "v": "ѵν", "w": "ԝ", "x": "хχ", "y": "уүγ", "z": "ᴢ",
}  # fmt: skip
_LATIN = str.maketrans({other: latin for latin, others in _ALIKE.items() for other in others})


def printable(text: str, lines: bool = False) -> str:
    """Text that changes neither a terminal nor the lines of a log, and fits into any file.

    Control characters (escape sequences, ends of lines), what turns the direction of writing, and
    halves of characters are replaced. With `lines`, ends of lines and tabs stay.
    """
    kept = "\n\t" if lines else ""
    return "".join(
        letter if letter in kept or unicodedata.category(letter)[0] not in "CZ" or letter == " "
        else " " if unicodedata.category(letter) == "Zs"
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )  # fmt: skip


def looks_like(name: str) -> str:
    """The same for names that differ by case, or by letters that look the same."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return unicodedata.normalize("NFC", plain.translate(_LATIN))


def alike(names: list[str]) -> list[list[str]]:
    """Groups of names that a person may take for one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(looks_like(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


class TooMuch(Exception):
    """Reading took more time than anything honest needs."""


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let this process, and what it starts meanwhile, take no more than `MEMORY` in addition.

    Linux alone counts what a process has taken in this way; elsewhere nothing is limited.
    """
    if sys.platform != "linux":
        yield
        return
    with open("/proc/self/status") as status:
        taken = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = taken * 1024 + MEMORY
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def lift_memory_limit() -> None:
    """For a process with limits of its own, which one with `limited_memory` has started."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Stop what stands in it after some seconds; its memory is `limited_memory`'s concern.

    Raises:
        TooMuch: it was stopped. In a thread other than the first nothing is stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise TooMuch(f"to read it takes more than {seconds:.0f} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
