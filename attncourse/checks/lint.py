"""Whether a task is written well: are its faults caught and told apart, do its sections exist?"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attncourse.checks import compositions, engine, prose, registry
from attncourse.checks.fingerprint import FAILED, Fingerprint, differing, of_reference, probes
from attncourse.checks.task import Task, compose


def complaints(
    task: Task,
    pages: Path | None = None,
    right: Iterable[Callable] = (),
    faults: bool = True,
) -> Iterator[str]:
    """What is wrong with a task, one sentence each: which part, where, and what to do.

    Args:
        pages: the course's folder, to look for sections and cells in; None: nobody looks.
        right: answers in unusual words that must pass.
        faults: look at every fault, in all spellings of the steps around it.
    """
    yield from prose.problems(task)
    if pages and task.page.startswith("book/"):
        yield from _sections(task, pages)
        yield from _place(task)
        yield from _cells(task, pages)
    yield from _accepts(task, "the reference", task.reference)
    for number, answer in enumerate(right, 1):
        name = getattr(answer, "__name__", f"number {number}")
        yield from _accepts(task, f"the right answer {name}", answer)
    if task.composed:
        yield from _steps(task)
        yield from _arguments(task)
    if faults:
        yield from _faults(task)


def _sections(task: Task, pages: Path) -> Iterator[str]:
    page = pages / f"{task.page}.md"
    if not page.exists():
        yield f"{task.name}: its page {page} does not exist"
        return
    text = page.read_text(encoding="utf-8")
    for section, owner in {
        task.section: "the task",
        **{fault.section: fault.id for fault in task.faults.values()},
    }.items():
        if f"({section})=" not in text:
            yield f"{task.name}: {owner} names “{section}”, and {page.name} has no such section"


def _place(task: Task) -> Iterator[str]:
    """A task has a place of its own among those of its chapter."""
    numbers = [each.number for each in registry.of_chapter(task.chapter)]
    free = sorted({*range(1, len(numbers) + 1)} - {*numbers})
    if free and (numbers.count(task.number) > 1 or not 1 <= task.number <= len(numbers)):
        yield (
            f"{task.name}: its place among the tasks of {task.place} is missing, or another has "
            f"it: say number={free[0]} where the task is made"
        )


def _cells(task: Task, pages: Path) -> Iterator[str]:
    """The solutions have what a student writes into, asks for hints, and is judged by."""
    path = pages / "solutions" / task.assignment / f"{task.assignment}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    there = {cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in cells}
    lacks = [id for end in ("", "-check", "-hidden") if (id := f"{task.name}{end}") not in there]
    if lacks:
        yield (
            f"{task.name}: {path} has no cell with the grade_id {', '.join(lacks)}; copy the five "
            "cells of another task, and give each an id of its own"
        )
    elif not any(f'hint("{task.name}")' in "".join(cell["source"]) for cell in cells):
        yield f'{task.name}: {path} has no cell that says hint("{task.name}")'


def _accepts(task: Task, what: str, answer: Callable) -> Iterator[str]:
    for seed in (0, 1):
        for result in engine.judge(task, answer, seed):
            if not result.passed:
                yield (
                    f"{task.name}: {what} fails the check “{result.name}” with seed {seed} "
                    f"({result.message}); mend the check or the answer"
                )
                return


def _steps(task: Task) -> Iterator[str]:
    """The composition, in every spelling, does what the reference does."""
    reference = of_reference(task).everything()
    for number, spelling in enumerate(({}, *task.spellings)):
        what = f"spelling {number} of its steps" if number else "the reference in steps"
        answer = compose(task, spelling)
        shows = Fingerprint(task, answer).everything()
        different = differing(shows, reference, reference.pieces)
        if different:
            probe, part = min(different)
            yield f"{task.name}: {what} differs from the reference (probe “{probe}”, {part})"
        yield from _accepts(task, what, answer)


def _arguments(task: Task) -> Iterator[str]:
    """A step of a fault can be called like the step that it replaces."""
    for fault in task.faults.values():
        for form in fault.forms:
            for name, step in form.items() if isinstance(form, dict) else ():
                old, new = _signature(inspect.getattr_static(task.composed, name)), _signature(step)
                if old and new and not _takes(new, old):
                    yield (
                        f"{task.name}: {fault.id} puts a function of {new} in the place of "
                        f"{name}{old}: give it the same arguments"
                    )


def _signature(step: object) -> inspect.Signature | None:
    """What a step is called with, without `self`; None for what does not say it."""
    function = getattr(step, "__func__", step)
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    given = [each for name, each in found.parameters.items() if name != "self"]
    return found.replace(parameters=given, return_annotation=inspect.Signature.empty)


def _takes(new: inspect.Signature, old: inspect.Signature) -> bool:
    """Whether a call of the old step, by position, can be one of the new step."""
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if any(each.kind is not place for each in old.parameters.values()):
        return True
    needed = sum(each.default is each.empty for each in old.parameters.values())
    for number in range(needed, len(old.parameters) + 1):
        try:
            new.bind(*range(number))
        except TypeError:
            continue
        return True
    return False


def _faults(task: Task) -> Iterator[str]:
    """Every fault is caught, differs from the reference, and is told apart from all others."""
    reference = of_reference(task).everything()
    shown: dict[tuple, list] = {}
    for each in compositions.singles(task):
        (fault,) = each.faults
        where = f"{task.name}: {fault.id}"
        wrong = frozenset(differing(each.shows.everything(), reference, reference.pieces))
        failed = {each.shows.pieces.get((probe, FAILED)) for probe in probes(task)}
        if failed == {"raised NameError"}:
            yield f"{where} fails on every probe (NameError): import what its code names"
            continue
        passed = all(result.passed for result in engine.judge(task, each.make()))
        if not wrong and passed:
            yield f"{where} equals the reference on every probe: no fault, or a probe is missing"
            continue
        if not wrong:
            yield f"{where} is caught, but no probe shows it, so it cannot be named: add a probe"
        if passed:
            yield f"{where} passes all checks (it differs on “{min(wrong)[0]}”): add a check"
        shown.setdefault(tuple(sorted(wrong)), []).append(each)
    for alike in shown.values():
        for one, two in itertools.combinations(alike, 2):
            if one.faults != two.faults and _same(task, one.shows, two.shows, reference):
                yield (
                    f"{task.name}: {one.faults[0].id} and {two.faults[0].id} show the same on "
                    "every probe: nobody can tell them apart. Join them, or add a probe"
                )


def _same(task: Task, one: Fingerprint, two: Fingerprint, reference: Fingerprint) -> bool:
    wrong = differing(one, reference, reference.pieces)
    return not differing(one, two, wrong)
