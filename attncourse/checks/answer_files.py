"""Answers in a file: a notebook's or a script's functions and classes, by the task's name."""

import ast
import re
import runpy
import types
from collections.abc import Callable
from pathlib import Path

from attncourse import extras

# What a notebook does besides: train for minutes, draw, check. Only these are needed for answers.
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def load(path: Path) -> dict[str, Callable]:
    """Read the answers in a file. A script is run; of a notebook only the definitions are.

    Args:
        path: a Python script (.py) or a notebook (.ipynb).

    Returns:
        Task name -> answer, for the tasks that are defined, in the order of the course. What is
        only imported from the course is no answer.

    Raises:
        Exception: whatever running the file raises, a SyntaxError for instance.
    """
    from attncourse.checks import registry  # with torch, which who only reads text need not load

    if path.suffix == ".ipynb":
        names = _of_notebook(path)
    else:
        names = runpy.run_path(str(path), run_name="answers")
    return {
        name: names[name]
        for name, task in registry.all_tasks().items()
        if name in names and names[name] is not task.reference  # imported, to build on
    }


def _of_notebook(path: Path) -> dict[str, object]:
    nbformat = extras.load("notebook", "nbformat")
    module = types.ModuleType("answers")
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type != "code":
            continue
        tree = ast.parse(plain_python(cell.source), f"{path.name}, cell {number + 1}")
        tree.body = [node for node in tree.body if isinstance(node, DEFINITIONS)]
        exec(compile(tree, f"{path.name}, cell {number + 1}", "exec"), vars(module))
    return vars(module)


def plain_python(source: str) -> str:
    """A cell without what only a notebook understands: `pass` stands where `%pip` or `!ls` was."""
    return re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def of_chapters(answers: dict[str, Callable]) -> list[str]:
    """The tasks of every chapter of which at least one answer is there; all if none is."""
    from attncourse.checks import registry

    tasks = registry.all_tasks()
    begun = {tasks[name].chapter for name in answers} or {task.chapter for task in tasks.values()}
    return [name for name, task in tasks.items() if task.chapter in begun]
