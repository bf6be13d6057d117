"""Judge public implementations, and count what is wrong with them.

    python tests/bench/in_the_wild.py FOLDER

The folder stays outside of the repository. It holds the public files as they are,
`clones/OWNER+NAME/PATH`, and an adapter for each item, `adapters/TASK_NUMBER.py`, which names the
definitions it takes from the public file and translates their convention into the task's:

    TASK = "causal_mask"
    SOURCE = "owner+name/utils/mask.py"
    TAKES = ["subsequent_mask"]                       # these top-level definitions, nothing else
    KINDS = ["True hides", "an axis more"]            # what is translated
    EXCLUDES = {"P-ODD": "assert dim % 2 == 0"}       # ruled out by the authors, in their words
    NOT_THEIRS = []                                   # checks whose contract is another, by name

    def adapt(theirs):
        return lambda n: ~theirs.subsequent_mask(n)[0]

How items were chosen stands in in_the_wild.md beside this file. Stored is an anonymous row for each
(attncourse/data/in_the_wild.json), which `attncourse.experiments.in_the_wild` counts. Each item
runs in a process of its own, and is given a minute.
"""

import argparse
import ast
import contextlib
import io
import json
import multiprocessing
import random
import runpy
import sys
import types
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from multiprocessing.pool import ThreadPool
from pathlib import Path

from attncourse.grading.outbox import similarity
from attncourse.pretrained import DATA

SECONDS = 60
SAME = 0.95  # of two normalized syntax trees, from here on one item
# What public files expect to find imported, under the names that everybody gives it.
PRELUDE = """
import abc, collections, copy, dataclasses, enum, functools, heapq, itertools, json, math, os
import random, re, sys, typing, warnings
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, namedtuple
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import inf, log, pi, sqrt
from typing import *
import einops
import numpy, numpy as np
import torch, torch.nn as nn, torch.nn.functional as F, torch.nn.functional
from einops import rearrange, reduce, repeat
from einops.layers.torch import Rearrange
from torch import Tensor, einsum
from torch.nn import Dropout, LayerNorm, Linear, Module, ModuleList, Parameter, init
"""


def taken(path: Path, names: Iterable[str]) -> types.SimpleNamespace:
    """Those top-level definitions of a public file, and nothing else of it, executed."""
    names = list(names)
    tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    tree.body = [each for each in tree.body if set(_defined(each)) & set(names)]
    module = types.ModuleType("theirs")
    sys.modules["theirs"] = module  # a dataclass asks for its module
    exec(PRELUDE, vars(module))
    exec(compile(tree, path.name, "exec"), vars(module))
    return types.SimpleNamespace(**{name: vars(module)[name] for name in names})


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)]
    name = getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", None)
    return [name] if name else []


def shape(path: Path, names: Iterable[str]) -> list[str]:
    """The syntax of those definitions, without what a copy may change: names, comments, …"""
    tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    wanted = [each for each in tree.body if set(_defined(each)) & set(names)]
    return [kind for each in wanted for kind, _ in similarity.nodes(each, 0)]


def answer_of(folder: Path, adapter: Path) -> tuple[str, object]:
    """The task that an adapter is for, and the public code as an answer to it."""
    about = runpy.run_path(str(adapter))
    return about["TASK"], about["adapt"](taken(folder / "clones" / about["SOURCE"], about["TAKES"]))


def judged(folder: Path, adapter: Path) -> dict:
    """One item: an anonymous row, but for its number."""
    import torch

    from attncourse.checks import run

    torch.set_num_threads(1)
    about = runpy.run_path(str(adapter))
    row = {
        "task": about["TASK"],
        "kinds": sorted(about.get("KINDS", [])),
        "excludes": sorted(about.get("EXCLUDES", {})),
    }
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        task, answer = answer_of(folder, adapter)
        report = run(task, answer)
    not_theirs = set(about.get("NOT_THEIRS", []))
    failed = [each.name for each in report.results if not each.passed]
    unknown = not_theirs - {each.name for each in report.results}
    if unknown:
        raise ValueError(f"{adapter.name}: no such check: {', '.join(sorted(unknown))}")
    found = report.diagnosis
    return row | {
        "failed": [name for name in failed if name not in not_theirs],
        "not theirs": sorted(not_theirs & set(failed)),
        "named": list(found.ids) if found else [],
        "partly": bool(found and found.partly),
        "title": found.title if found else "",
    }


def _into(pipe, work: Callable, folder: Path, adapter: Path) -> None:
    try:
        pipe.send(work(folder, adapter))
    except BaseException as error:  # of a public file or of its adapter: said, and no verdict
        pipe.send({"error": f"{type(error).__name__}: {error}"[:300]})


def in_time(folder: Path, adapter: Path, work: Callable[[Path, Path], dict] = judged) -> dict:
    """What `work` says of an item, in a process of its own that is ended after a minute."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_into, args=(there, work, folder, adapter), daemon=True)
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else {"error": f"more than {SECONDS} seconds"}
    except EOFError:
        return {"error": "the process ended without a word"}
    finally:
        process.kill()
        process.join()


def once(folder: Path, adapters: Iterable[Path]) -> tuple[list[Path], list[tuple[str, str]]]:
    """Adapters without those of a near-duplicate, and pairs (left out, like which)."""
    kept: list[tuple[Path, str, list[str]]] = []
    left_out = []
    for adapter in adapters:
        about = runpy.run_path(str(adapter))
        mine = shape(folder / "clones" / about["SOURCE"], about["TAKES"])
        like = next(
            (path.stem for path, task, theirs in kept
             if task == about["TASK"] and _alike(mine, theirs)), None
        )  # fmt: skip
        if like:
            left_out.append((adapter.stem, like))
        else:
            kept.append((adapter, about["TASK"], mine))
    return [path for path, *_ in kept], left_out


def _alike(one: list[str], other: list[str]) -> bool:
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.real_quick_ratio() >= SAME and (
        matcher.quick_ratio() >= SAME and matcher.ratio() >= SAME
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds clones/ and adapters/")
    parser.add_argument(
        "--only", default="", help="adapters whose names begin like this; shown, not stored"
    )
    asked = parser.parse_args()
    adapters = sorted((asked.folder / "adapters").glob(f"{asked.only}*.py"))
    if asked.only:
        for adapter in adapters:
            print(
                adapter.stem,
                json.dumps(in_time(asked.folder, adapter), ensure_ascii=False, indent=1),
            )
        return
    kept, left_out = once(asked.folder, adapters)
    for one, other in left_out:
        print(f"{one}: like {other}")
    rows, errors = [], 0
    with ThreadPool(2) as pool:
        found = pool.imap(lambda adapter: in_time(asked.folder, adapter), kept)
        for number, (adapter, row) in enumerate(zip(kept, found, strict=True), 1):
            verdict = row.get("error") or row["named"] or row["failed"] or "right"
            print(f"{number}/{len(kept)} {adapter.stem}: {verdict}", flush=True)
            if "error" in row:
                errors += 1
            else:
                rows.append(row)
    sources = {runpy.run_path(str(each))["SOURCE"].split("/")[0] for each in kept}
    random.Random(0).shuffle(rows)  # the order tells nothing about the names of repositories
    path = DATA / "in_the_wild.json"
    kept_words = json.loads(path.read_text("utf-8")) if path.exists() else {}
    stored = {"repositories": len(sources), "near-duplicates": len(left_out), "errors": errors}
    stored["items"] = rows
    path.write_text(json.dumps(kept_words | stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
