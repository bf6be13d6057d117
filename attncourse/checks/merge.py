"""Two changes of one step as one: their edits of its source are merged, as those of two branches.

    >>> merge(shares, without_scale, over_queries)(scores)  # neither is scaled nor summed over keys

Edits are apart if they are of different statements, operands or arguments, or if one puts something
around what the other changes, or takes it away from around it. Two that are not apart have no
merge: which one would win is not for us to say.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from types import FunctionType

Path_ = tuple[tuple[str, int | None], ...]  # of fields, and of places in those that are lists


class _Conflict(Exception):
    """The edits are not apart; or a source cannot be had."""


def merge(right: Callable, one: Callable, two: Callable) -> Callable | None:
    """What both make of a step, as a new function; None where their edits are not apart."""
    names = _Names()
    try:
        every = [_definition(each, _parameters(right), names) for each in (right, one, two)]
        made = copy.copy(next((each for each in every if _takes_self(each)), every[0]))
        made.body = _merged(*(each.body for each in every))
        if any(_same(made.body, each.body) for each in every):
            return None
        return names.compiled(made)
    except (_Conflict, SyntaxError):  # some merges are no Python: a star where none may stand
        return None


# --- a step as a tree ---------------------------------------------------------------------------


class _Names:
    """What the free names of functions stand for: one name for each thing."""

    def __init__(self):
        self.names: dict[int, str] = {}
        self.things: dict[str, object] = {}

    def of(self, name: str, thing: object) -> str:
        """The name of a thing, if possible the given one."""
        if id(thing) not in self.names:
            while name in self.things:
                name += "_"
            self.things[name] = thing
            self.names[id(thing)] = name
        return self.names[id(thing)]

    def compiled(self, definition: ast.FunctionDef) -> Callable:
        module = ast.fix_missing_locations(ast.Module([definition], []))
        space = {"__builtins__": builtins, **self.things}
        with warnings.catch_warnings():  # of code that nobody would write
            warnings.simplefilter("ignore")
            exec(compile(module, "<merged>", "exec"), space)
        return space[definition.name]


def _definition(step: object, parameters: list[str], names: _Names) -> ast.FunctionDef:
    """A step with the given parameters, its free names replaced."""
    function = _function(step)
    definition = ast.parse("def step(): pass").body[0]
    given = [ast.arg(each) for each in parameters]
    if isinstance(function, FunctionType):
        node = _node(function)
        own = [each.arg for each in node.args.args]
        if own[:1] == ["self"]:
            given.insert(0, ast.arg("self"))
        if len(own) != len(given) or _is_special(function, node):
            raise _Conflict
        renamed = dict(zip(own, (each.arg for each in given), strict=True))
        body = node.body if isinstance(node, ast.FunctionDef) else [ast.Return(node.body)]
        body = [each for each in body if not _is_docstring(each)]
        definition.body = [_Free(function, node, renamed, names).visit(each) for each in body]
    else:  # one of torch's, say
        called = ast.Name(names.of("called", function), ast.Load())
        arguments = [ast.Name(each, ast.Load()) for each in parameters]
        definition.body = [ast.Return(ast.Call(called, arguments, []))]
    definition.args.args = given
    return definition


def _function(step: object) -> object:
    step = inspect.unwrap(step)
    return step.__func__ if isinstance(step, staticmethod) else step


def _parameters(step: object) -> list[str]:
    return [name for name in inspect.signature(_function(step)).parameters if name != "self"]


def _takes_self(definition: ast.FunctionDef) -> bool:
    return any(each.arg == "self" for each in definition.args.args)


def _is_special(function: FunctionType, node: ast.Lambda | ast.FunctionDef) -> bool:
    """Whether it has more than plain parameters and names: defaults, `super()`."""
    many = node.args.posonlyargs or node.args.kwonlyargs or node.args.vararg or node.args.kwarg
    return bool(many or function.__defaults__ or "__class__" in function.__code__.co_freevars)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _node(function: FunctionType) -> ast.Lambda | ast.FunctionDef:
    """A copy of the piece of a file that defines a function."""
    code = function.__code__
    here = _functions(code.co_filename).get((code.co_firstlineno, code.co_name), [])
    if len(here) > 1:  # lambdas on one line: the smallest that holds all its instructions
        places = [each for each in code.co_positions() if None not in each and each[2:] != (0, 0)]
        first, last = min((a, c) for a, _, c, _ in places), max((b, d) for _, b, _, d in places)
        here = [node for node in here if _begin(node) <= first and last <= _end(node)]
        here.sort(key=lambda node: (_begin(node), _end(node)), reverse=True)
    if not here:
        raise _Conflict
    return copy.deepcopy(here[0])


def _begin(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


@functools.cache
def _functions(file: str) -> dict[tuple[int, str], list[ast.Lambda | ast.FunctionDef]]:
    """The functions of a file, by first line and name."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[tuple[int, str], list] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            lines = [node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]
            name = getattr(node, "name", "<lambda>")
            found.setdefault((min(lines), name), []).append(node)
    return found


class _Free(ast.NodeTransformer):
    """Gives parameters other names, and what comes from outside the name of the thing."""

    def __init__(self, function: FunctionType, node: ast.AST, renamed: dict, names: _Names):
        code, cells = function.__code__, function.__closure__ or ()
        self.outside = function.__globals__ | {
            name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)
        }
        self.renamed, self.names = renamed, names
        self.bound = {each for part in ast.walk(node) for each in _binds(part)}
        if self.bound & {*renamed.values()} - {*renamed}:
            raise _Conflict  # one of its own names is that of a parameter of the step

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self.renamed:
            return ast.Name(self.renamed[node.id], node.ctx)
        if node.id in self.bound or node.id not in self.outside:
            return ast.Name(node.id, node.ctx)
        return ast.Name(self.names.of(node.id, self.outside[node.id]), node.ctx)


def _binds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.arg):
        yield node.arg
    if isinstance(node, ast.FunctionDef):
        yield node.name


# --- merging ------------------------------------------------------------------------------------


def _same(one: object, two: object) -> bool:
    return _text(one) == _text(two)


def _text(node: object) -> str:
    if isinstance(node, list):
        return "\n".join(map(_text, node))
    return ast.dump(node) if isinstance(node, ast.AST) else repr(node)


def _merged(right, one, two):
    """A piece of a tree with the edits that two make of it."""
    if _same(one, right):
        return two
    if _same(two, right) or _same(one, two):
        return one
    if isinstance(right, list):
        return _merged_list(right, one, two)
    if not all(isinstance(each, ast.AST) for each in (right, one, two)):
        raise _Conflict
    if type(right) is type(one) is type(two):
        try:
            three = (right, one, two)
            fields = [[getattr(each, field) for each in three] for field in right._fields]
            return type(right)(*(_merged(*each) for each in fields))
        except _Conflict:
            pass  # there may be another way
    for first, second in ((one, two), (two, one)):
        if (made := _around(right, first, second)) is not None:
            return made
    raise _Conflict


def _merged_list(right: list, one: list, two: list) -> list:
    """Of statements, arguments, operands: what is replaced, left out or put in, item by item."""
    edits = sorted((*_edits(right, one, 1), *_edits(right, two, 2)), key=lambda edit: edit[:3])
    made, place = [], 0
    while edits:
        begin, end, side, new = edits.pop(0)
        if edits and edits[0][:2] == (begin, end) and _same(edits[0][3], new):
            edits.pop(0)  # both do the same
        elif edits and edits[0][0] < end:  # both change the same items: merge each of them
            begin_2, end_2, _, new_2 = edits.pop(0)
            if (begin, end) != (begin_2, end_2) or not end - begin == len(new) == len(new_2):
                raise _Conflict
            sides = (new, new_2) if side == 1 else (new_2, new)
            new = [_merged(*each) for each in zip(right[begin:end], *sides, strict=True)]
        made += right[place:begin] + new
        place = end
    return made + right[place:]


def _edits(right: list, other: list, side: int) -> Iterator[tuple[int, int, int, list]]:
    """Which items are replaced by which."""
    matcher = SequenceMatcher(None, [*map(_text, right)], [*map(_text, other)], autojunk=False)
    for tag, begin, end, first, last in matcher.get_opcodes():
        if tag != "equal":
            yield begin, end, side, other[first:last]


def _around(right: ast.AST, one: ast.AST, two: ast.AST) -> ast.AST | None:
    """The other's edit in what `one` puts around the piece, or leaves of it."""
    inside = [path for path, node in _pieces(one) if path and _same(node, right)]
    if len(inside) == 1:
        return _replaced(one, inside[0], two)
    left = [path for path, node in _pieces(right) if path and _same(node, one)]
    if len(left) == 1:
        made = _piece(two, left[0])
        return None if made is None or _same(made, one) else made
    return None


def _pieces(node: ast.AST, path: Path_ = ()) -> Iterator[tuple[Path_, ast.AST]]:
    """Every expression in a tree, and the way to it."""
    yield path, node
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            yield from _pieces(value, (*path, (field, None)))
        for place, each in enumerate(value if isinstance(value, list) else ()):
            if isinstance(each, ast.expr):
                yield from _pieces(each, (*path, (field, place)))


def _piece(node: ast.AST, path: Path_) -> ast.AST | None:
    return next((each for way, each in _pieces(node) if way == path), None)


def _replaced(node: ast.AST, path: Path_, new: ast.AST) -> ast.AST:
    if not path:
        return new
    made = copy.copy(node)
    (field, place), *rest = path
    value = getattr(node, field)
    if place is None:
        setattr(made, field, _replaced(value, tuple(rest), new))
    else:
        other = _replaced(value[place], tuple(rest), new)
        setattr(made, field, [*value[:place], other, *value[place + 1 :]])
    return made
