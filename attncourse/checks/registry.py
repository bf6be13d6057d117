"""Which tasks there are: the course's own, and those of packages that were installed beside it.

The course's tasks are files, `attncourse/tasks/<chapter>/<task>.py`, found by name without loading
any other. An outside package names its modules as entry points of the group `attncourse.tasks`.
"""

import dataclasses
import difflib
import functools
import importlib
import sys
import traceback
from importlib import util
from pathlib import Path
from types import ModuleType

from attncourse.checks import without_secrets
from attncourse.checks.installed import entry_points
from attncourse.checks.task import BadTask, Chapter, Task

COURSE = "attncourse.tasks"  # the package of the course's own
FOLDER = Path(__file__).parent.parent / "tasks"


@functools.cache
def _files() -> dict[str, tuple[str, ...]]:
    """Stem of a chapter or lab -> names of its tasks, by their files."""
    return {
        folder.name: tuple(sorted(path.stem for path in folder.glob("[!_]*.py")))
        for folder in sorted(FOLDER.iterdir())
        if (folder / "__init__.py").is_file()
    }


def stems() -> tuple[str, ...]:
    """The course's chapters and labs, without loading anything."""
    return tuple(_files())


@functools.cache
def chapters() -> dict[str, Chapter]:
    """The course's chapters and then its labs, by their stem."""
    found = {stem: _chapter(stem) for stem in _files()}
    return dict(sorted(found.items(), key=lambda item: item[1].assignment))


@functools.cache
def _chapter(stem: str) -> Chapter:
    chapter = importlib.import_module(f"{COURSE}.{stem}").chapter
    page = chapter.page or f"book/{chapter.assignment}"
    return dataclasses.replace(chapter, stem=stem, page=page)


@functools.cache
def of_chapter(stem: str) -> tuple[Task, ...]:
    """The tasks of a chapter, a lab or an outside package, in their order.

    Raises:
        BadTask: one of them is written wrongly.
    """
    if stem not in _files():
        return _outside()[0].get(stem, ())
    names = _files()[stem]
    return tuple(sorted((_load(stem, name) for name in names), key=lambda task: task.number))


@functools.cache
def _load(stem: str, name: str) -> Task:
    module = importlib.import_module(f"{COURSE}.{stem}.{name}")
    found = _tasks_in(module)
    if [task.name for task in found] != [name]:
        raise BadTask(
            f"{module.__name__} holds {_list(found) or 'no task'}, and not `{name}` alone"
        )
    return _at_home(found[0], _chapter(stem), module)


def _tasks_in(module: ModuleType) -> list[Task]:
    """The tasks that a module defines: not those it imports."""
    found = {id(value): value for value in vars(module).values() if isinstance(value, Task)}
    return [task for task in found.values() if task.home is None]


def _list(tasks) -> str:
    return ", ".join(f"`{task.name}`" for task in tasks)


def _at_home(task: Task, chapter: Chapter, module: ModuleType) -> Task:
    """A task that knows where it belongs, if nothing is wrong with it."""
    task.home, task.module = chapter, module.__name__
    if without_secrets.is_on():
        return task
    if not task.checks:
        raise BadTask(f"{task.name}: it has no checks, so no answer could earn a point")
    for fault in task.faults.values():
        if not fault.forms:
            raise BadTask(f"{task.name}: {fault.id} has no form that shows it")
        if not fault.section and chapter.page.startswith("book/"):
            raise BadTask(
                f"{task.name}: {fault.id} names no section of the book to read again; "
                'say which, in the task or the fault: section="stable-softmax"'
            )
    return task


def located(error: Exception) -> str:
    """What is wrong with a task, and the line of the course's file; "" for any other error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {_said(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each for each in frames if FOLDER in Path(each.filename).parents]
    if lines:
        return f"{lines[-1].filename}, line {lines[-1].lineno}: {_said(error)}"
    return str(error) if isinstance(error, BadTask | ValueError | OSError) else ""


# --- packages from outside ----------------------------------------------------------------------


@functools.cache
def _outside() -> tuple[dict[str, tuple[Task, ...]], dict[str, str]]:
    """Tasks by entry point; and what is out of order, by entry point or by the name of a task."""
    course = {name for names in _files().values() for name in names}
    found, broken, owners = {}, {}, {}
    for point in entry_points():
        where = f"{point.name} ({point.dist.name})" if point.dist else point.name
        try:
            module = importlib.import_module(point.module)
            tasks = _tasks_in(module)
            if not tasks:
                raise BadTask(f"{point.module} defines no task")
            chapter = getattr(module, "chapter", None) or Chapter(point.name, point.name)
            chapter = dataclasses.replace(chapter, stem=point.name)
            tasks = tuple(_at_home(task, chapter, module) for task in tasks)
        except Exception as error:  # somebody else's module: whatever it raises stays with it
            broken[point.name] = f"the tasks of {where} cannot be used: {_said(error)}"
            continue
        for task in tasks:
            if task.name in course:
                broken[point.name] = (
                    f"the tasks of {where} cannot be used: it has a task named {task.name!r}, and "
                    "so has attncourse; one of them needs another name"
                )
            owners.setdefault(task.name, []).append(where)
        found[point.name] = tasks
    for name, owner in owners.items():
        if len(owner) > 1:
            broken[name] = f"a task named {name!r} is in two packages: {' and '.join(owner)}"
    usable = {
        point: tuple(task for task in tasks if task.name not in broken)
        for point, tasks in found.items()
        if point not in broken
    }
    return usable, broken


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, BadTask) else f"{type(error).__name__}: {error}"


_told: set[str] = set()


def out_of_order() -> list[str]:
    """One sentence for each outside package, or each name, that cannot be used."""
    return list(_outside()[1].values())


def _warn() -> None:
    for sentence in out_of_order():
        if sentence not in _told:
            _told.add(sentence)
            print(f"attncourse: {sentence}", file=sys.stderr)


# --- all of them --------------------------------------------------------------------------------


def find(name: str) -> Task:
    """The task of that name.

    Raises:
        ValueError: there is none, or two packages have one of that name.
    """
    for stem, names in _files().items():
        if name in names:
            return _load(stem, name)
    tasks, broken = _outside()
    _warn()
    if name in broken:
        raise ValueError(broken[name])
    for task in (task for each in tasks.values() for task in each):
        if task.name == name:
            return task
    known = [*(n for names in _files().values() for n in names), *(task.name for task in outside())]
    close = difflib.get_close_matches(name, known, n=1)
    there = f"did you mean {close[0]}?" if close else "`attncourse tasks` lists them all"
    raise ValueError(f"no task is named {name!r}; {there}")


def in_file(path: Path) -> list[Task]:
    """The tasks in a file that need not be installed.

    Raises:
        BadTask: it cannot be loaded, or holds none.
    """
    stem = path.stem
    try:
        spec = util.spec_from_file_location(stem, path)
        module = sys.modules[stem] = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadTask(f"{path} cannot be loaded: {_said(error)}") from error
    chapter = getattr(module, "chapter", None) or Chapter(stem, stem)
    chapter = dataclasses.replace(chapter, stem=stem)
    tasks = [_at_home(task, chapter, module) for task in _tasks_in(module)]
    if not tasks:
        raise BadTask(f"{path} defines no task")
    return tasks


def outside() -> list[Task]:
    """The tasks of outside packages."""
    return [task for each in _outside()[0].values() for task in each]


def all_tasks() -> dict[str, Task]:
    """Every task by name: the course's in their order, then those of outside packages."""
    _warn()
    stems = [*chapters(), *_outside()[0]]
    return {task.name: task for stem in stems for task in of_chapter(stem)}


def guarded() -> tuple[str, ...]:
    """The packages that hold tasks, for a process that must not see all of them."""
    return COURSE, *dict.fromkeys(point.module.split(".")[0] for point in entry_points())
