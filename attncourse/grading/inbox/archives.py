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
from dataclasses import dataclass, field, replace
from pathlib import Path

from attncourse.grading.inbox.submission import LARGEST
from attncourse.grading.inbox.untrusted import TooMuch, limited

MOST_ENTRIES = 20_000  # of one archive, with the archives in it
MOST_BYTES = 4 * 2**30  # of all of them, unpacked
MOST_SECONDS = 60.0  # to read them; a right notebook needs a tenth
METADATA = "submission_metadata.yml"  # of a Gradescope export
EXPORT = re.compile(r"assignment_\d+_export")  # the one folder in its zip
LARGEST_ZIP = 256 * 2**20  # bytes of a student's zip
OUTER = 5  # folders within each other in which a student's may be the innermost
LONGEST_PART = 255  # characters of a name in a path
KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may ask for gigabytes to be unpacked
SPECIAL = (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)
SMALLEST_HEADER = 30  # bytes before each file in a zip
NOTHING = "nothing is in it; ask for the notebook (.ipynb)"
OVER = "in the zip it lies over another file; ask for it again"
# What systems add and no student sends.
NOISE = re.compile(
    r"(^|/)(__MACOSX|\.ipynb_checkpoints|__pycache__|\.git)(/|$)"
    r"|(^|/)(\._[^/]*|\.DS_Store|Thumbs\.db|desktop\.ini|submission_metadata\.yml)$"
)


class Refused(Exception):
    """A file that cannot be filed; says why, and what to ask for."""


@dataclass
class Purse:
    """What an outermost file or folder may still cost us, with all that is in it."""

    entries: int = MOST_ENTRIES
    bytes: int = MOST_BYTES
    seconds: float = MOST_SECONDS

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """What stands in it costs seconds.

        Raises:
            Refused: there are no more.
        """
        started = time.monotonic()
        try:
            if self.seconds <= 0:
                raise TooMuch
            with limited(self.seconds):
                yield
        except TooMuch:
            said = f"to read what was sent takes more than {MOST_SECONDS:.0f} seconds"
            raise Refused(f"{said}; ask for the notebook alone") from None
        finally:
            self.seconds -= time.monotonic() - started


@dataclass(frozen=True)
class Sent:
    """One file, wherever it lies."""

    path: tuple[str, ...]  # the archives and folders it lies in, and its name
    unpack: Callable[[Purse], bytes]  # may raise Refused
    saved: tuple[int, ...] = ()  # when, as the archive or the disk says
    base: int = 0  # 1 if it lies in the folder of a Gradescope export
    common: int = 0  # how many of its folders are the same for all that came with it
    beside: frozenset[str] = frozenset()  # the names in the last folder that all lie in
    metadata: bytes = b""  # of the Gradescope export it lies in
    purse: Purse = field(default_factory=Purse)

    @property
    def name(self) -> str:
        return self.path[-1]

    def read(self) -> bytes:
        return self.unpack(self.purse)


def unpack(*places: Path) -> list[Sent]:
    """The files in folders and in a zip, and single files; a zip among them counts as one.

    What a zip says about whose its files are is believed if it is given alone, as a class's. Of
    several, each may be a student's. A folder with nothing in it is there, too: somebody's, who
    should be asked.
    """
    if len(places) == 1:
        return _unpack(places[0], alone=True)
    nothing = _refusing(NOTHING)
    return [
        sent
        for place in places
        for sent in _unpack(place, alone=False) or [Sent((place.name, ""), nothing)]
    ]


def _unpack(place: Path, alone: bool) -> list[Sent]:
    if place.is_dir():
        files, folders = [], []
        for path in sorted(place.rglob("*")):
            parts = path.relative_to(place).parts
            if path.is_dir() and not path.is_symlink():
                folders.append(parts)
            else:
                files.append(Sent(parts, _on_disk(path), _saved(path)))
        return _together(files, folders)
    file = Sent((place.name,), _on_disk(place), _saved(place), common=1)
    if not alone or not is_zip(place.name):
        return [file]
    try:
        return _together(*_members(zipfile.ZipFile(place), (), Purse()))
    except Refused as error:
        return [replace(file, unpack=_refusing(str(error)))]
    except Exception:  # zipfile raises a dozen kinds
        return [replace(file, unpack=_refusing("this zip is damaged; fetch it again"))]


def is_noise(path: tuple[str, ...]) -> bool:
    return NOISE.search("/".join(path)) is not None


def _together(files: list[Sent], folders: list[tuple[str, ...]]) -> list[Sent]:
    """What one file says about the others: folders around all, and Gradescope's lists of names.

    A list counts where an export has it, at the top or in the export's folder, and for what lies
    beside it. A student may send a file of that name, too: it says nothing about anybody.
    """
    files = [*files, *_empty(files, folders)]
    paths = [sent.path for sent in files if not is_noise(sent.path)]
    inner = zip(*(path[:-1] for path in paths), strict=False)
    common = len(list(itertools.takewhile(lambda names: len(set(names)) == 1, inner)))
    beside = frozenset(path[common] for path in paths if len(path[common]) <= LONGEST_PART)
    lists = {}
    for sent in files:
        if sent.name == METADATA and len(sent.path) == _base(sent) + 1:
            with contextlib.suppress(Refused):
                lists[sent.path[:-1]] = sent.read()
    return [
        replace(
            sent,
            base=base,
            common=common,
            beside=beside,
            metadata=lists.get(sent.path[:base], b""),
        )
        for sent in files
        for base in [_base(sent)]
    ]


def _empty(files: list[Sent], folders: list[tuple[str, ...]]) -> list[Sent]:
    """For each folder that holds nothing, or only a system's own, a file that cannot be read.

    A folder that cannot be read seems to be empty, too.
    """
    full, maybe = {()}, set(folders)
    for sent in files:
        if is_noise(sent.path):
            maybe.add(sent.path[:-1])
        else:
            full |= {sent.path[:end] for end in range(min(len(sent.path), OUTER))}
    empty = {path[:end] for path in maybe for end in range(min(len(path) + 1, OUTER))} - full
    empty = {path for path in empty if not is_noise(path)}
    innermost = empty - {path[:-1] for path in empty}
    return [Sent((*path, ""), _refusing(NOTHING)) for path in sorted(innermost)]


def _base(sent: Sent) -> int:
    return int(len(sent.path) > 1 and EXPORT.fullmatch(sent.path[0]) is not None)


def contents(sent: Sent, depth: int = 2) -> Iterator[Sent]:
    """The file itself, or if it is a zip what is in it, and in zips in that."""

    def refused(reason: str) -> Sent:
        return replace(sent, unpack=_refusing(reason))

    if not is_zip(sent.name):
        yield sent
    elif not depth:
        yield refused("a zip in a zip in a zip; ask for the notebook (.ipynb)")
    else:
        try:
            data = sent.read()
            if data.count(b"PK\x01\x02") > MOST_ENTRIES:  # the beginning of each file's entry
                raise _too_many()
            archive = zipfile.ZipFile(io.BytesIO(data))
            members, _ = _members(archive, sent.path, sent.purse)
        except TooMuch:
            raise
        except Refused as error:
            yield refused(str(error))
        except Exception:
            yield refused("a damaged zip; ask for the notebook (.ipynb)")
        else:
            folders = {m.path[:-1] for m in members if not is_noise(m.path)}
            if not folders:
                yield refused("an empty zip; ask for the notebook (.ipynb)")
            # One folder in a zip that was given by itself is the student's; several may be a class.
            common = 0 if len(sent.path) == 1 == len(folders) else sent.common
            for member in members:
                outer = replace(sent, path=member.path, unpack=member.unpack, saved=member.saved)
                yield from contents(replace(outer, common=common), depth - 1)


def _too_many() -> Refused:
    return Refused(f"more than {MOST_ENTRIES:,} files in a zip are not opened")


def _largest(name: str) -> int:
    return LARGEST_ZIP if is_zip(name) else LARGEST


def is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _refusing(reason: str) -> Callable[[Purse], bytes]:
    def read(_: Purse) -> bytes:
        raise Refused(reason)

    return read


def _on_disk(path: Path) -> Callable[[Purse], bytes]:
    def read(_: Purse) -> bytes:
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


def _members(
    archive: zipfile.ZipFile, path: tuple[str, ...], purse: Purse
) -> tuple[list[Sent], list[tuple[str, ...]]]:
    """The files of a zip, and its folders. Only their names are looked at here.

    Raises:
        Refused: they are too many.
    """
    infos = archive.infolist()
    purse.entries -= len(infos)
    if purse.entries < 0:
        raise _too_many()
    folders = [(*path, *_parts(info)) for info in infos if info.filename.endswith("/")]
    infos = [info for info in infos if not info.filename.endswith("/")]
    over = _over_others(infos)
    return [
        Sent((*path, *_parts(info)), read, info.date_time)
        for info in infos
        for read in [_refusing(OVER) if id(info) in over else _member(archive, info)]
    ], folders


def _over_others(infos: list[zipfile.ZipInfo]) -> set[int]:
    """Entries whose bytes are another one's, too: a small zip could hold many large files so."""
    in_order = sorted(infos, key=lambda info: info.header_offset, reverse=True)
    over, following = set(), float("inf")
    for info, before in itertools.zip_longest(in_order, in_order[1:]):
        start = info.header_offset
        if start + SMALLEST_HEADER + info.compress_size > following or (
            before and before.header_offset == start
        ):
            over.add(id(info))
        else:
            following = start
    return over


def _parts(info: zipfile.ZipInfo) -> tuple[str, ...]:
    name = info.filename
    if not info.flag_bits & 0x800:  # not declared as UTF-8: Macs write it all the same
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:
            name = info.filename
    name = unicodedata.normalize("NFC", name).replace("\\", "/")
    return tuple(part for part in name.split("/") if part) or ("",)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[Purse], bytes]:
    def read(purse: Purse) -> bytes:
        parts, kind = _parts(info), stat.S_IFMT(info.external_attr >> 16)
        if info.filename.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise Refused("its path leads out of the archive")
        if kind == stat.S_IFLNK:
            raise Refused("a link to another file, not the file")
        if kind in SPECIAL:
            raise Refused("not a file: a pipe or a device")
        if info.flag_bits & 1:
            raise Refused("it is encrypted; ask for a zip without a password")
        if info.compress_type not in KINDS:
            raise Refused("it is packed in an unusual way; ask for a plain zip")
        largest = _largest(info.filename)
        try:
            with archive.open(info) as file:
                # Whatever size it claims to have.
                data = file.read(min(largest, purse.bytes) + 1)
        except TooMuch:
            raise
        except Exception:
            raise Refused("it is damaged in the zip; ask for it again") from None
        if len(data) > purse.bytes:
            purse.bytes = 0
            raise Refused(f"unpacked, what was sent has more than {MOST_BYTES / 2**20:,.0f} MiB")
        purse.bytes -= len(data)
        if len(data) > largest:
            raise Refused(f"unpacked, it has more than {largest / 2**20:.0f} MiB")
        return data

    return read
