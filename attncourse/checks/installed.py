"""Packages with tasks that are installed beside the course: who has registered, and their files.

Nothing of them is loaded here, and no torch.
"""

import functools
from importlib import metadata, util
from pathlib import Path

GROUP = "attncourse.tasks"  # entry points: name of an assignment = module with its tasks


@functools.cache
def entry_points() -> tuple[metadata.EntryPoint, ...]:
    """What outside packages have registered, by name."""
    found = metadata.entry_points(group=GROUP)
    return tuple(sorted(set(found), key=lambda point: (point.name, point.value)))


@functools.cache
def outside_files() -> tuple[Path, ...]:
    """The files or folders that hold outside tasks: a jail hides them."""
    found = []
    for point in entry_points():
        try:
            spec = util.find_spec(point.module.split(".")[0])  # all of the package
        except (ImportError, ValueError):
            continue
        if spec and spec.submodule_search_locations:
            found += map(Path, spec.submodule_search_locations)
        elif spec and spec.origin:
            found.append(Path(spec.origin))
    return tuple(found)
