"""Which installed packages a jail shows: those that the course or one of its notebooks asks for.

Others may hold what a task asks for, ready-made. Who asks for what, and which files belong to whom,
is known from what pip keeps of each package.
"""

import functools
import re
import site
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from attncourse.checks import installed

COURSE = "attncourse"
SHELL = "ipython", "pip"  # what runs the cells of a record; some say %pip
NOTEBOOKS = "matplotlib", "num2words"  # what exercises import, and `check` alone does not need


@functools.cache
def shown(imported: tuple[str, ...] = ()) -> dict[Path, tuple[str, ...]]:
    """What a jail shows of each folder of packages; {}, which is all, where that is not known.

    Args:
        imported: full names of what the released notebook imports.
    """
    outside = (point.dist.name for point in installed.entry_points() if point.dist)
    wanted = COURSE, *SHELL, *NOTEBOOKS, *outside
    kept = _found(COURSE) and _files(wanted)
    if not kept:
        return {}
    tops = {name.partition(".")[0] for names in kept.values() for name in names}
    tops |= {COURSE, *sys.stdlib_module_names}
    if strange := {name.partition(".")[0] for name in imported} - tops:
        owners = metadata.packages_distributions()  # which takes a quarter of a second
        kept = _files((*wanted, *(owner for name in strange for owner in owners.get(name, ()))))
    return kept


@functools.cache
def _files(wanted: tuple[str, ...]) -> dict[Path, tuple[str, ...]]:
    """What belongs to packages in each of their folders; {} if one of them does not say it."""
    kept = {Path(each): set() for each in site.getsitepackages() if Path(each).is_dir()}
    try:
        needed = list(_with_requirements(wanted))
    except InvalidRequirement:
        return {}
    for package in needed:
        files, folder = package.read_text("RECORD"), Path(package.locate_file(""))
        if files is None:
            return {}
        if folder in kept:
            kept[folder].update(re.findall(r"^([^/,\n]+).*", files, re.MULTILINE))
    return {
        folder: tuple(sorted(name for name in names - {"", ".."} if (folder / name).exists()))
        for folder, names in kept.items()
    }


def _with_requirements(names: Iterable[str]) -> Iterator[metadata.Distribution]:
    """These packages, all that they require, and all that this requires; what is installed."""
    todo, seen = [(name, ()) for name in names], set()
    while todo:
        name, extras = todo.pop()
        key = re.sub(r"[-_.]+", "-", name).lower(), extras
        if key in seen or not (package := _found(name)):
            continue
        seen.add(key)
        yield package
        for other in _requirements(package, bool(extras)):
            wanted = (other.marker.evaluate({"extra": each}) for each in ("", *extras))
            if other.marker is None or any(wanted):
                todo.append((other.name, tuple(sorted(other.extras))))


def _requirements(package: metadata.Distribution, extras: bool) -> Iterator[Requirement]:
    """As `package.requires`, without a parser of mails, which takes most of the time.

    Args:
        extras: whether any is asked for; else what they alone require is not parsed.
    """
    head = (package.read_text("METADATA") or "").partition("\n\n")[0]
    for line in head.splitlines():
        field, _, value = line.partition(": ")
        alone = "extra ==" in value and " or " not in value
        if field == "Requires-Dist" and (extras or not alone):
            yield Requirement(value)


def _found(name: str) -> metadata.Distribution | None:
    """The installed package of that name, if there is one."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
