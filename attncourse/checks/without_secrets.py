"""Loading tasks in a process that runs students' code: nothing that a student must not see.

There a task's file is cut down to what such a process needs: the task itself, and what turns an
answer into a function. Checks, steps and faults are never compiled, so they are nowhere in memory;
and a jail does not show the file.
"""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import marshal
import sys
from importlib import util

VERBS = ("check", "steps", "spelling", "fault")  # what a file says about its task, and keeps secret
SECRET = ("probes", "small", "maps")  # the same, of what makes a task; traits name adapters


def switch_on(guarded: tuple[str, ...]) -> None:
    """From now on this process loads these packages without their secrets.

    Raises:
        RuntimeError: one of them has been loaded already.
    """
    loaded = [name for name in guarded if name in sys.modules]
    if loaded:
        raise RuntimeError(f"too late: {', '.join(loaded)} is loaded")
    sys.meta_path.insert(0, _Finder(guarded))


def is_on() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, guarded: tuple[str, ...]):
        self.guarded = guarded

    def find_spec(self, name, path=None, target=None):
        if not any(name == each or name.startswith(f"{each}.") for each in self.guarded):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec and spec.origin and spec.origin.endswith(".py"):
                spec.loader = _Loader(name, spec.origin)
            if spec:
                return spec
        return None


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        """Of a compiled file of its own: Python's would hold everything."""
        source = self.get_data(self.path)
        mark = util.source_hash(source + self.get_data(__file__))
        kept = util.cache_from_source(self.path, optimization="cut")
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            data = self.get_data(kept)
            if data.startswith(mark):
                return marshal.loads(data[len(mark) :])
        code = compile(cut_down(ast.parse(source)), self.path, "exec", dont_inherit=True)
        if not sys.dont_write_bytecode:
            self.set_data(kept, mark + marshal.dumps(code))  # what cannot be written is not
        return code


def cut_down(tree: ast.Module) -> ast.Module:
    """A module's code, cut down.

    A module that makes a task keeps that, its adapters, and whatever these need. Another one keeps
    all that is not said about some task.
    """
    adapters = _cut(tree)
    told = [node for node in tree.body if _tells(node)]
    rest = [node for node in tree.body if node not in told]
    roots = [node for node in rest if _makes(node, "Task", "task")]
    if roots:
        roots += [node for node in rest if _makes(node, "Chapter")]
        needed = {name for node in roots for name in names(node)}
        needed |= adapters
    else:
        needed = {name for node in rest for name in (*names(node), *bound(node))}
    kept: list[ast.stmt] = []
    while grown := [
        node for node in rest if node not in kept and (node in roots or needed & bound(node))
    ]:
        kept += grown
        needed |= {name for node in grown for name in names(node)}
    for node in kept:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [each for each in node.names if needed & _bound_by(each)]
    tree.body = [node for node in tree.body if node in kept]
    return tree


def verb(call: ast.AST) -> str:
    """The method that is called or named: "fault" of `task.fault(…)`."""
    function = call.func if isinstance(call, ast.Call) else call
    return function.attr if isinstance(function, ast.Attribute) else ""


def _tells(node: ast.stmt) -> bool:
    """Whether a statement says something about a task: `task.fault(…)`, `@task.check(1)`."""
    if isinstance(node, ast.Expr):
        return verb(node.value) in VERBS
    return any(verb(each) in VERBS for each in getattr(node, "decorator_list", ()))


def _makes(node: ast.stmt, *makers: str) -> bool:
    """Whether a statement makes a task, or a chapter."""
    values = [node.value] if isinstance(node, ast.Assign | ast.AnnAssign) else []
    for call in [*values, *getattr(node, "decorator_list", ())]:
        if isinstance(call, ast.Call):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name in makers:
                return True
    return False


def _cut(tree: ast.Module) -> set[str]:
    """Cut away what is secret of a call; returns the names that are passed as `adapt=` anywhere."""
    adapters = set()
    for part in ast.walk(tree):
        if isinstance(part, ast.keyword):
            if part.arg in SECRET:
                part.value = ast.copy_location(ast.Constant(None), part.value)
            elif part.arg == "adapt" and isinstance(part.value, ast.Name):
                adapters.add(part.value.id)
    return adapters


def names(node: ast.AST) -> set[str]:
    """The names that a piece of code mentions."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module gives a meaning to."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {name for each in node.names for name in _bound_by(each)}
    match node:
        case ast.Assign(targets=places):
            pass
        case ast.AnnAssign(target=place) | ast.AugAssign(target=place):
            places = [place]
        case ast.If() | ast.For() | ast.With() | ast.Try():
            places = [node]
        case _:
            return set()
    stored = (part for place in places for part in ast.walk(place) if isinstance(part, ast.Name))
    return {part.id for part in stored if isinstance(part.ctx, ast.Store)}


def _bound_by(alias: ast.alias) -> set[str]:
    return {alias.asname or alias.name.split(".")[0]}
