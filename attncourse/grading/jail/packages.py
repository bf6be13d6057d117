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

from packaging.requirements import Requirement

from attncourse.checks import installed

COURSE = "attncourse"
SHELL = "ipython"  # it runs the cells of a record


@functools.cache
def shown(imported: tuple[str, ...]) -> dict[Path, tuple[str, ...]]:
    """What a jail shows of each folder of packages; {}, which is all, where that is not known.

    Args:
        imported: full names of what the released notebook imports.
    """
    course = _found(COURSE)
    wanted = [*course, *_found(SHELL)]
    wanted += [point.dist for point in installed.entry_points() if point.dist]
    kept = _files(wanted)
    tops = {name.partition(".")[0] for names in kept.values() for name in names}
    tops |= {COURSE, *sys.stdlib_module_names}
    if strange := {name.partition(".")[0] for name in imported} - tops:
        owners = metadata.packages_distributions()  # which takes a quarter of a second
        names = {owner for name in strange for owner in owners.get(name, ())}
        kept = _files([*wanted, *(each for name in names for each in _found(name))])
    return kept if course else {}


def _files(wanted: list[metadata.Distribution]) -> dict[Path, tuple[str, ...]]:
    """What belongs to them in each folder of packages; {} if one of them does not say it."""
    kept = {Path(each): set() for each in site.getsitepackages() if Path(each).is_dir()}
    for package in _with_requirements(wanted):
        files, folder = package.read_text("RECORD"), Path(package.locate_file(""))
        if files is None:
            return {}
        if folder in kept:
            kept[folder] |= {line.split("/")[0].split(",")[0] for line in files.splitlines()}
    return {
        folder: tuple(sorted(name for name in names - {"", ".."} if (folder / name).exists()))
        for folder, names in kept.items()
    }


def _with_requirements(
    packages: Iterable[metadata.Distribution],
) -> Iterator[metadata.Distribution]:
    """These, all that they require, and all that this requires."""
    todo, seen = [(package, ()) for package in packages], set()
    while todo:
        package, extras = todo.pop()
        name = re.sub(r"[-_.]+", "-", str(package.metadata["Name"])).lower()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        yield package
        for line in package.requires or ():
            other = Requirement(line)
            wanted = (other.marker.evaluate({"extra": each}) for each in ("", *extras))
            if other.marker is None or any(wanted):
                todo += [(each, tuple(sorted(other.extras))) for each in _found(other.name)]


def _found(name: str) -> list[metadata.Distribution]:
    """The installed package of that name, if there is one."""
    try:
        return [metadata.distribution(name)]
    except metadata.PackageNotFoundError:
        return []
