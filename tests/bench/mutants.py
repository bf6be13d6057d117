"""Break the reference code in every small way, and see whether the checks notice.

    python tests/bench/mutants.py [TASK ...] [--jobs 2]

Each mutant changes one thing in one answer: an operator, a constant, an axis, an argument, a line.
Lines that only validate their arguments are left alone, since an answer need not have them. A
mutant that passes all checks is either equivalent (see EQUIVALENT, each with its reason) or a hole.
"""

import argparse
import ast
import collections
import copy
import functools
import importlib
import inspect
import multiprocessing
import signal
import textwrap
from collections.abc import Callable, Iterator

import torch
from tqdm import tqdm

from attncourse.checks import engine, registry

SECONDS = 20  # a mutant may loop forever

SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {
    "amax": "amin",
    "argmax": "argmin",
    "cat": "stack",
    "cos": "sin",
    "exp": "sigmoid",
    "full_like": "zeros_like",
    "log": "exp",
    "max": "min",
    "mean": "sum",
    "min": "max",
    "ones": "zeros",
    "relu": "sigmoid",
    "sin": "cos",
    "sqrt": "exp",
    "sum": "mean",
    "tanh": "relu",
    "tril": "triu",
    "zeros": "ones",
}

# (task, mutant) -> why it does the same as the reference for every input that is promised.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "AdditiveAttention",
        "weights = self.W_query.weight.T, self.W_key.weight.T, self.v.weight[0]  [0 -> -1]",
    ): "v has one row, so its first is its last",
    (
        "score_variance",
        'scores = einsum(query, key, "samples d, samples d -> samples")  [einsum(query, key, '
        "'samples d, samples d -> samples') -> einsum(key, query, "
        "'samples d, samples d -> samples')]",
    ): "a dot product is symmetric",
}


def _equivalent(task: str, line: str, why: str, changes: list[str]) -> None:
    EQUIVALENT.update({(task, f"{line}  {change}"): why for change in changes})


_equivalent(
    "sinusoidal_positions",
    "position = torch.arange(length, dtype=torch.float64)",
    "whole numbers are exact, and become float64 beside the frequencies",
    ["[torch.arange(length, dtype=torch.float64) -> torch.arange(length)]"],
)
_equivalent(
    "sinusoidal_positions",
    "frequency = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)",
    "frequencies of float32 are as precise as the table that is promised",
    ["[torch.arange(0, width, 2, dtype=torch.float64) -> torch.arange(0, width, 2)]"],
)
_equivalent(
    "is_permutation_equivariant",
    "swap = [1, 0, *range(2, n)] if n > 1 else [0]",
    "one word has no other order: nobody is asked about it",
    [
        "[[1, 0, *range(2, n)] if n > 1 else [0] -> [1, 0, *range(2, n)]]",
        "[n > 1 -> n >= 1]",
        "[1 -> 0]",
        "[0 -> 1] (2)",
        "[0 -> -1] (2)",
    ],
)
_ANY_SOUND_TOLERANCE = (
    "no tolerance is prescribed: the checks' outputs agree up to 1e-6, or differ by 1e-2 and more"
)
_equivalent(
    "is_permutation_equivariant",
    "largest = output.nan_to_num(0, 0, 0).abs().max().item()  # NaN and infinity aside",
    _ANY_SOUND_TOLERANCE,
    [
        "[output.nan_to_num(0, 0, 0).abs().max().item() -> output.nan_to_num(0, 0, 0).abs().max()]",
        "[output.nan_to_num(0, 0, 0).abs().max -> output.nan_to_num(0, 0, 0).abs().min]",
        "[output.nan_to_num(0, 0, 0).abs() -> output.nan_to_num(0, 0, 0)]",
        "[output.nan_to_num(0, 0, 0) -> output]",
        *(f"[0 -> {number}]{nth}" for number in (1, -1) for nth in ("", " (2)", " (3)")),
    ],
)
_equivalent(
    "is_permutation_equivariant",
    "tolerance = torch.finfo(output.dtype).eps ** 0.5 * (1 + largest)",
    _ANY_SOUND_TOLERANCE,
    [
        "[torch.finfo(output.dtype).eps ** 0.5 * (1 + largest) -> "
        f"torch.finfo(output.dtype).eps ** 0.5{scale}]"
        for scale in (" / (1 + largest)", "")
    ]
    + ["[1 + largest -> 1]", "[1 + largest -> largest]", "[1 -> 2]", "[1 -> 0]"],
)
_equivalent(
    "is_permutation_equivariant",
    "torch.allclose(layer(x[:, order]), output[:, order], rtol=0, atol=tolerance)",
    "without a relative tolerance, or with so small a one, allclose is symmetric",
    [
        "[torch.allclose(layer(x[:, order]), output[:, order], rtol=0, atol=tolerance) -> "
        f"torch.allclose({other}atol=tolerance)]"
        for other in (
            "output[:, order], layer(x[:, order]), rtol=0, ",
            "layer(x[:, order]), output[:, order], ",
        )
    ],
)
_ON_THE_CPU = "answers are judged on the CPU, where a tensor lies if no device is named"
_INT64 = "the ids and lengths that are handed over are of int64 already"
_equivalent(
    "encode",
    "return states[torch.arange(len(tokens), device=states.device), lengths.long() - 1]",
    _ON_THE_CPU,
    ["[torch.arange(len(tokens), device=states.device) -> torch.arange(len(tokens))]"],
)
_equivalent(
    "encode",
    "return states[torch.arange(len(tokens), device=states.device), lengths.long() - 1]",
    _INT64,
    ["[lengths.long() -> lengths]"],
)
_equivalent(
    "sequence_loss",
    "return F.cross_entropy(logits, target.long(), ignore_index=pad)",
    _INT64,
    ["[target.long() -> target]"],
)
_equivalent(
    "greedy_decode",
    "first = state[0] if isinstance(state, tuple) and state else state",
    _ON_THE_CPU,
    ["[state[0] if isinstance(state, tuple) and state else state -> state]", "[0 -> -1]"],
)
_equivalent(
    "greedy_decode",
    'token = torch.full((batch_size,), bos, device=getattr(first, "device", None))',
    _ON_THE_CPU,
    [
        "[torch.full((batch_size,), bos, device=getattr(first, 'device', None)) -> "
        "torch.full((batch_size,), bos)]"
    ],
)
_equivalent(
    "greedy_decode",
    "token = logits.argmax(-1).masked_fill(finished, eos)",
    "logits are (b vocab): their last axis is axis 1",
    ["[-1 -> 1]"],
)
_equivalent(
    "greedy_decode",
    "finished = finished | (token == eos)",
    "a finished row has just written eos, so that it counts as finished again",
    ["[finished | (token == eos) -> token == eos]"],
)
_equivalent(
    "greedy_decode",
    "if finished.all():",
    "stopping early is left free: all that would follow is eos",
    ["[if finished.all():\n    break -> if False:\n    break]"],
)
_equivalent(
    "greedy_decode",
    "break",
    "stopping early is left free: all that would follow is eos",
    ["[break -> pass]"],
)
_equivalent(
    "exact_match_by_length",
    "for prediction, target, length in zip(predictions, targets, lengths, strict=True):",
    "equality is symmetric, and the three lists that are handed over are equally long",
    [
        "[zip(predictions, targets, lengths, strict=True) -> "
        "zip(targets, predictions, lengths, strict=True)]",
        "[zip(predictions, targets, lengths, strict=True) -> zip(predictions, targets, lengths)]",
        "[True -> False]",
    ],
)


_equivalent(
    "padding_mask",
    "place = torch.arange(max_length, device=lengths.device)",
    _ON_THE_CPU,
    ["[torch.arange(max_length, device=lengths.device) -> torch.arange(max_length)]"],
)

_equivalent(
    "MultiHeadAttention",
    "if self.dropout.p > 0:  # acts on the weights; those returned are whole",
    "a dropout of 0 changes no weight: averaging once more gives the same output",
    [
        "[if self.dropout.p > 0:\n    heads = einsum(self.dropout(weights), v, "
        "'b h q k, b h k d -> b h q d') -> if True:\n    heads = einsum(self.dropout(weights), v, "
        "'b h q k, b h k d -> b h q d')]",
        "[self.dropout.p > 0 -> self.dropout.p >= 0]",
        "[0 -> -1]",
    ],
)

_TRUST = "trust = torch.where(seen, weights, 0.0).double() ** 2"
_equivalent(
    "hidden_scale",
    _TRUST,
    "how much a point counts is left free: within the 5 % that rounding of the tables leaves",
    [
        "[torch.where(seen, weights, 0.0).double() ** 2 -> "
        "torch.where(seen, weights, 0.0).double()]",
        "[2 -> 3]",
        "[2 -> 1]",
    ],
)
_equivalent(
    "hidden_scale",
    _TRUST,
    "the tables have two decimals: float32 keeps seven",
    ["[torch.where(seen, weights, 0.0).double() -> torch.where(seen, weights, 0.0)]"],
)
_equivalent(
    "hidden_scale",
    "table = torch.where(seen, table.double(), 0.0)",
    "the tables have two decimals, and what is not seen has no weight in any sum",
    ["[table.double() -> table]", "[0.0 -> 1.0]"],
)
_equivalent(
    "hidden_scale",
    "total = trust.sum(-1, keepdim=True)",
    "tables are (q k): their last axis is axis 1",
    ["[-1 -> 1]"],
)
_equivalent(
    "hidden_scale",
    "mean = (trust * table).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)",
    "tables are (q k), and each row that is handed over has a weight above 0",
    ["[-1 -> 1]", "[total > 0 -> total >= 0]", "[0 -> -1]", "[1.0 -> 2.0]"],
)


def _validates(node: ast.stmt) -> bool:
    """Whether a statement only refuses bad input."""
    if isinstance(node, ast.If) and all(isinstance(each, ast.Raise) for each in node.body):
        return not node.orelse
    call = node.value if isinstance(node, ast.Expr) else None
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    return isinstance(node, ast.Raise) or "validate" in name or "raise_" in name


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Every (node, field, place in the field) that holds code of an answer."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.stmt) and (_validates(child) or _is_docstring(child)):
                continue
            yield tree, field, place
            yield from _places(child)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Other nodes that may stand where this one stands."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        changed = copy.deepcopy(node)
        changed.op = SWAPS[type(node.op)]()
        yield changed
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        changed = copy.deepcopy(node)
        changed.ops[0] = SWAPS[type(node.ops[0])]()
        yield changed
    if isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = SWAPS[type(node.op)]()
        yield changed
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        changed = copy.deepcopy(node)
        changed.attr = NAMES[node.attr]
        yield changed
    if isinstance(node, ast.Name) and node.id in NAMES:
        yield ast.Name(NAMES[node.id], node.ctx)
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        for place in range(len(node.args) - 1):
            changed = copy.deepcopy(node)
            changed.args[place : place + 2] = changed.args[place : place + 2][::-1]
            yield changed
    if isinstance(node, ast.Call) and node.keywords:
        for place in range(len(node.keywords)):
            changed = copy.deepcopy(node)
            del changed.keywords[place]
            yield changed
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.value  # x.f(…) -> x
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    if isinstance(node, ast.If):
        for value in (True, False):
            changed = copy.deepcopy(node)
            changed.test = ast.Constant(value)
            yield changed
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Break):
        yield ast.Pass()
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        changed = copy.deepcopy(node)
        changed.value.elts = changed.value.elts[::-1]
        yield changed


def _other_constants(value: object) -> Iterator[ast.Constant]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        yield ast.Constant(value + 1.0)
    elif isinstance(value, str) and "->" in value:  # a pattern of einops
        left, right = value.split("->")
        axes = right.split()
        for place in range(len(axes) - 1):
            swapped = [*axes[:place], axes[place + 1], axes[place], *axes[place + 2 :]]
            yield ast.Constant(f"{left}-> {' '.join(swapped)}")


@functools.cache
def mutants(task: str) -> list[tuple[str, ast.Module]]:
    """Every mutant of a task's reference, see `_mutants`."""
    return list(_mutants(registry.find(task).reference))


def _mutants(answer: Callable) -> Iterator[tuple[str, ast.Module]]:
    """Every mutant of a function or class: what was changed, and the module to run."""
    source = textwrap.dedent(inspect.getsource(answer))
    tree = ast.parse(source)
    seen = {ast.unparse(tree)}
    names = collections.Counter()
    for number, (holder, field, place) in enumerate(list(_places(tree))):
        node = getattr(holder, field) if place is None else getattr(holder, field)[place]
        for changed in _changes(node):
            copied = copy.deepcopy(tree)
            target, name, at = list(_places(copied))[number]
            if at is None:
                setattr(target, name, changed)
            else:
                getattr(target, name)[at] = changed
            ast.fix_missing_locations(copied)
            text = ast.unparse(copied)
            if text not in seen:
                seen.add(text)
                line = getattr(node, "lineno", 1)
                was = source.splitlines()[line - 1].strip()
                name = f"{was}  [{ast.unparse(node)} -> {ast.unparse(changed)}]"
                names[name] += 1  # a line may hold the same constant twice
                yield name + (f" ({names[name]})" if names[name] > 1 else ""), copied


def survives(task: str, number: int) -> bool | None:
    """Whether the checks accept a mutant; None if it does not even compile."""
    torch.set_num_threads(1)
    reference = registry.find(task).reference
    module = importlib.import_module(reference.__module__)
    _, tree = mutants(task)[number]
    names = dict(vars(module))
    try:
        exec(compile(tree, "mutant", "exec"), names)
    except Exception:
        return None

    def stop(*_):
        raise TimeoutError("endless")

    signal.signal(signal.SIGALRM, stop)
    # Again and again: what is raised in an answer is noted like any other error of it.
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 0.2)
    try:
        results = engine.judge(registry.find(task), names[reference.__name__])
        return all(result.passed for result in results)
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*", help="names of tasks; if none, the chapters'")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    options = parser.parse_args()
    chapters = [name for name, task in registry.all_tasks().items() if "chapter" in task.place]
    tasks = options.task or chapters
    work = [(task, number) for task in tasks for number, _ in enumerate(mutants(task))]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        verdicts = pool.starmap_async(survives, work, chunksize=4)
        with tqdm(total=len(work), desc="mutants") as bar:
            while not verdicts.ready():
                verdicts.wait(1)
                bar.n = max(0, len(work) - 4 * verdicts._number_left)
                bar.refresh()
        found = dict(zip(work, verdicts.get(), strict=True))
    print("| answer | mutants | equivalent | rejected | share |\n|---|---|---|---|---|")
    holes = []
    for task in tasks:
        names = [name for name, _ in mutants(task)]
        judged = {names[n]: found[t, n] for t, n in work if t == task and found[t, n] is not None}
        alive = [name for name, survived in judged.items() if survived]
        equivalent = [name for name in alive if (task, name) in EQUIVALENT]
        holes += [(task, name) for name in alive if name not in equivalent]
        total, rejected = len(judged) - len(equivalent), len(judged) - len(alive)
        print(
            f"| {task} | {len(judged)} | {len(equivalent)} | {rejected} "
            f"| {rejected / max(1, total):.1%} |"
        )
    print(f"\n{len(holes)} mutants survive without a proof")
    for task, name in holes:
        print(f"  {task}: {name}")


if __name__ == "__main__":
    main()
