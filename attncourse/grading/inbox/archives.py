"""What was handed in, file by file: notebooks, folders, zips and the zips in them.

Files are read in memory, one at a time, and nothing of an archive is ever unpacked to disk: a path
that leads out of it, a link, or a terabyte of zeros has nowhere to go.
"""

import contextlib
import io
import itertools
import os
import re
import stat
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attncourse.grading.inbox.submission import LARGEST

MOST_ENTRIES = 20_000  # of one archive, with the archives in it
MOST_BYTES = 4 * 2**30  # of all of them, unpacked
METADATA = "submission_metadata.yml"  # of a Gradescope export
EXPORT = re.compile(r"assignment_\d+_export")  # the one folder in its zip
LARGEST_ZIP = 256 * 2**20  # bytes of a student's zip
KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may ask for gigabytes to be unpacked
# What systems add and no student sends.
NOISE = re.compile(
    r"(^|/)(__MACOSX|\.ipynb_checkpoints|__pycache__|\.git)(/|$)"
    r"|(^|/)(\._[^/]*|\.DS_Store|Thumbs\.db|desktop\.ini|submission_metadata\.yml)$"
)


class Refused(Exception):
    """A file that cannot be filed; says why, and what to ask for."""


@dataclass
class Purse:
    """What an archive may still cost us, with the archives in it."""

    entries: int = MOST_ENTRIES
    bytes: int = MOST_BYTES


@dataclass(frozen=True)
class Sent:
    """One file, wherever it lies."""

    path: tuple[str, ...]  # the archives and folders it lies in, and its name
    read: Callable[[], bytes]  # may raise Refused
    saved: tuple[int, ...] = ()  # when, as the archive or the disk says
    base: int = 0  # 1 if it lies in the folder of a Gradescope export
    common: int = 0  # how many of its folders are the same for all that came with it
    metadata: bytes = b""  # of the Gradescope export it lies in
    purse: Purse | None = None  # of the archive it lies in

    @property
    def name(self) -> str:
        return self.path[-1]


def unpack(*places: Path) -> list[Sent]:
    """The files in folders and in a zip, and single files; a zip among them counts as one.

    What a zip says about whose its files are is believed if it is given alone, as a class's. Of
    several, each may be a student's.
    """
    return [sent for place in places for sent in _unpack(place, alone=len(places) == 1)]


def _unpack(place: Path, alone: bool) -> list[Sent]:
    if place.is_dir():
        files = [p for p in sorted(place.rglob("*")) if p.is_symlink() or not p.is_dir()]
        return _together(
            [Sent(path.relative_to(place).parts, _on_disk(path), _saved(path)) for path in files]
        )
    file = Sent((place.name,), _on_disk(place), _saved(place), common=1)
    if not alone or not _is_zip(place.name):
        return [file]
    try:
        return _together(_members(zipfile.ZipFile(place), (), Purse()))
    except Refused as error:
        return [Sent(file.path, _refusing(str(error)))]
    except Exception:  # zipfile raises a dozen kinds
        return [Sent(file.path, _refusing("this zip is damaged; fetch it again"))]


def _together(all_sent: list[Sent]) -> list[Sent]:
    """What one file says about the others: folders around all, and Gradescope's lists of names.

    A list counts where an export has it, at the top or in the export's folder, and for what lies
    beside it. A student may send a file of that name, too: it says nothing about anybody.
    """
    folders = [sent.path[:-1] for sent in all_sent if not NOISE.search("/".join(sent.path))]
    same = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
    common, lists = len(list(same)), {}
    for sent in all_sent:
        if sent.name == METADATA and len(sent.path) == _base(sent) + 1:
            with contextlib.suppress(Refused):
                lists[sent.path[:-1]] = sent.read()
    return [
        replace(sent, base=base, common=common, metadata=lists.get(sent.path[:base], b""))
        for sent in all_sent
        for base in [_base(sent)]
    ]


def _base(sent: Sent) -> int:
    return int(len(sent.path) > 1 and EXPORT.fullmatch(sent.path[0]) is not None)


def contents(sent: Sent, depth: int = 2) -> Iterator[Sent]:
    """The file itself, or if it is a zip what is in it, and in zips in that."""
    if not _is_zip(sent.name):
        yield sent
    elif not depth:
        yield Sent(sent.path, _refusing("a zip in a zip in a zip; ask for the notebook (.ipynb)"))
    else:
        try:
            data = sent.read()
            if data.count(b"PK\x01\x02") > MOST_ENTRIES:  # the beginning of each file's entry
                raise _too_many()
            archive = zipfile.ZipFile(io.BytesIO(data))
            members = _members(archive, sent.path, sent.purse or Purse())
        except Refused as error:
            yield Sent(sent.path, _refusing(str(error)))
        except Exception:
            yield Sent(sent.path, _refusing("a damaged zip; ask for the notebook (.ipynb)"))
        else:
            folders = {m.path[:-1] for m in members if not NOISE.search("/".join(m.path))}
            # One folder in a zip that was given by itself is the student's; several may be a class.
            common = 0 if len(sent.path) == 1 == len(folders) else sent.common
            outer = {"base": sent.base, "common": common, "metadata": sent.metadata}
            for member in members:
                yield from contents(replace(member, **outer), depth - 1)


def _too_many() -> Refused:
    return Refused(f"more than {MOST_ENTRIES:,} files in a zip are not opened")


def _largest(name: str) -> int:
    return LARGEST_ZIP if _is_zip(name) else LARGEST


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _refusing(reason: str) -> Callable[[], bytes]:
    def read() -> bytes:
        raise Refused(reason)

    return read


def _on_disk(path: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        if path.is_symlink():
            raise Refused("a link to another file, not the file")
        try:
            # Neither wait for a pipe nor follow what has become a link in this moment.
            odd = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            with open(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | odd), "rb") as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise Refused("not a file: a folder, a pipe or a device")
                if about.st_size > _largest(path.name):
                    raise Refused(f"it has {about.st_size / 2**20:.0f} MiB")
                return file.read(_largest(path.name))  # it may grow while we read
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}") from None

    return read


def _saved(path: Path) -> tuple[int, ...]:
    return time.localtime(path.lstat().st_mtime)[:6]


def _members(archive: zipfile.ZipFile, path: tuple[str, ...], purse: Purse) -> list[Sent]:
    """The files of a zip. Only their names are looked at here.

    Raises:
        Refused: they are too many.
    """
    infos = [info for info in archive.infolist() if not info.filename.endswith("/")]
    purse.entries -= len(infos)
    if purse.entries < 0:
        raise _too_many()
    return [
        Sent((*path, *_parts(info)), _member(archive, info, purse), info.date_time, purse=purse)
        for info in infos
    ]


def _parts(info: zipfile.ZipInfo) -> tuple[str, ...]:
    name = info.filename
    if not info.flag_bits & 0x800:  # not declared as UTF-8: Macs write it all the same
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:
            name = info.filename
    name = unicodedata.normalize("NFC", name).replace("\\", "/")
    return tuple(part for part in name.split("/") if part) or ("",)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, purse: Purse) -> Callable[[], bytes]:
    def read() -> bytes:
        parts = _parts(info)
        if info.filename.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise Refused("its path leads out of the archive")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise Refused("a link to another file, not the file")
        if info.flag_bits & 1:
            raise Refused("it is encrypted; ask for a zip without a password")
        if info.compress_type not in KINDS:
            raise Refused("it is packed in an unusual way; ask for a plain zip")
        most = min(_largest(info.filename), purse.bytes)
        try:
            with archive.open(info) as file:
                data = file.read(most + 1)  # whatever size it claims to have
        except Exception:
            raise Refused("it is damaged in the zip; ask for it again") from None
        purse.bytes -= len(data)
        if len(data) > most:
            raise Refused(f"unpacked, it has more than {most / 2**20:.0f} MiB")
        return data

    return read
