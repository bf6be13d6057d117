"""The marks of a released notebook, put back on what a student sent.

Grading finds answers without them, but nbgrader and the person who reads with its formgrader do
not. What the student wrote is never changed; marks, numbers of cells and the file's form are.
"""

import copy
import json
import re
from collections import defaultdict

from nbformat.validator import iter_validate

from attncourse.grading.inbox import submission as reading
from attncourse.grading.inbox import written
from attncourse.grading.inbox.submission import MARKER, Assignment, code_of, grade_id_of, source_of

MOST_OUTPUT = 2**20  # bytes of outputs that a notebook keeps when it is written anew
_CELL_ID = re.compile(r"[\w-]{1,64}", re.ASCII)


def restore(
    notebook: reading.Notebook, names: dict[int, str], about: Assignment, released: dict
) -> tuple[reading.Notebook, list[str]]:
    """Make a notebook one that nbgrader understands.

    Args:
        notebook: as it was sent; its cells are changed in place.
        names: what `recognize` says of its cells.
        released: the notebook in exercises/.

    Returns:
        The notebook, its file byte for byte the same if nothing was wrong with it, and what was odd
        about it.
    """
    form, cells = _form(notebook), notebook.cells
    graded = {grade_id_of(c): c for c in released["cells"] if grade_id_of(c)}
    kept, repairs = choose(cells, names, about)
    put_back, changed, foreign = 0, [], 0
    for place, cell in enumerate(cells):
        metadata = cell.get("metadata")
        metadata = dict(metadata) if isinstance(metadata, dict) else {}
        before = metadata.pop("nbgrader", None)
        if place in kept:
            metadata |= graded[kept[place]]["metadata"]
            if before is None:
                put_back += 1
            elif before != metadata["nbgrader"]:
                changed.append(kept[place])
        elif before is not None and place not in names:
            foreign += 1
        if metadata != cell.get("metadata"):
            cell["metadata"] = metadata
    if put_back:
        repairs.append(f"nbgrader's marks were gone from {_cells(put_back)}; put back")
    if changed:
        repairs.append(f"nbgrader's marks were changed and are put right: {_list(changed)}")
    if foreign:
        repairs.append(f"marks of {_cells(foreign)} that the assignment does not know; removed")
    repairs += _put_back_checks(cells, kept, about, released)
    missing = [name for name in (*about.tasks, *about.questions) if name not in kept.values()]
    lost = [f"not there, and not made up: {_list(missing)}"] if missing else []
    if not repairs and not form:
        return notebook, lost
    made, left_out = _written(cells, released)
    return made, [*repairs, *form, *left_out, *lost]


# --- which cell is which ------------------------------------------------------------------------


def recognize(cells: list[dict], about: Assignment, released: dict) -> dict[int, str]:
    """Place of a cell -> its grade id: by its mark, its text, its number, or what it defines."""
    graded = {grade_id_of(c): c for c in released["cells"] if grade_id_of(c)}
    numbers = {cell.get("id"): name for name, cell in graded.items() if name not in about.tasks}
    checks = {}
    for each in about.graded:
        checks[each.task, None], checks[each.task, " hidden"] = each.visible, each.hidden
    names: dict[int, str] = {}
    for place, cell in enumerate(cells):
        source, own = source_of(cell), grade_id_of(cell)
        marker = MARKER.search(source)
        ours = marker and marker[1] == about.name
        if own in graded:
            names[place] = own
        elif ours and marker[4] and (marker[2], marker[3]) in checks:
            names[place] = checks[marker[2], marker[3]]
        elif ours and marker[2] in about.tasks and not marker[4]:
            names[place] = marker[2]
        elif (number := _number_of(cell)) in numbers and not marker:
            if cell.get("cell_type") == graded[numbers[number]]["cell_type"]:
                names[place] = numbers[number]
        elif cell.get("cell_type") == "code" and not marker:
            defined = reading.defined_in(reading.plain_python(source))
            if here := [name for name in defined if name in about.tasks]:
                names[place] = here[0]
    if about.questions.keys() - set(names.values()):
        for question, each in written.answers(cells, about).items():
            if question not in names.values() and each.place not in (None, *names):
                names[each.place] = question
    return names


def _number_of(cell: dict) -> str | None:
    """A cell's id; Colab moves it into the metadata."""
    metadata = cell.get("metadata")
    number = cell.get("id") or (metadata.get("id") if isinstance(metadata, dict) else None)
    return number if isinstance(number, str) else None


def choose(
    cells: list[dict], names: dict[int, str], about: Assignment
) -> tuple[dict[int, str], list[str]]:
    """Of cells with the same grade id the last with an answer in it keeps the mark."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in names.items():
        places[name].append(place)
    kept, repairs = {}, []
    for name, here in places.items():
        same = code_of if name in about.tasks else str.strip  # a written answer is no code
        stub = same(about.released.get(name, ""))
        answered = [p for p in here if same(source_of(cells[p])) != stub]
        kept[(answered or here)[-1]] = name
        if sum(grade_id_of(cells[place]) == name for place in here) > 1:
            which = "the last" if name not in about.tasks else "the last with an answer in it"
            repairs.append(f"`{name}` was marked {len(here)} times; {which} keeps the mark")
    return dict(sorted(kept.items())), repairs


def _put_back_checks(
    cells: list[dict], kept: dict[int, str], about: Assignment, released: dict
) -> list[str]:
    """Insert check cells that were deleted, each below the one it was released after."""
    order = [name for cell in released["cells"] if (name := grade_id_of(cell))]
    present = {name: cells[place] for place, name in kept.items()}
    originals = {grade_id_of(cell): cell for cell in released["cells"]}
    missing = [n for n in order if n not in present and n not in (*about.tasks, *about.questions)]
    if not kept:
        return []  # nothing was recognized: who knows what this is
    for name in missing:
        above = [n for n in order[: order.index(name)] if n in present]
        place = next((i for i, c in enumerate(cells) if above and c is present[above[-1]]), -1)
        present[name] = copy.deepcopy(originals[name])
        cells.insert(place + 1, present[name])
    return [f"deleted checks are put back: {_list(missing)}"] if missing else []


def _list(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    return ", ".join(f"`{name}`" for name in (names[:3] if more else names)) + more


def _cells(count: int) -> str:
    return f"{count} cell{'s' if count > 1 else ''}"


# --- the file's form ----------------------------------------------------------------------------


def _form(notebook: reading.Notebook) -> list[str]:
    """What is wrong with the file, other than its marks."""
    found = []
    if notebook.data.startswith(b"\xef\xbb\xbf"):
        found.append("the byte order mark before the text is removed")
    try:
        notebook.data.decode()
    except UnicodeDecodeError:
        return [*found, "bytes that are no UTF-8 are replaced"]
    version = notebook.says.get("nbformat")
    if version != 4:
        return [*found, f"a notebook of version {version}; written as version 4"]
    ids = [_number_of({"id": cell.get("id")}) for cell in notebook.cells]
    ids = [each for each in ids if each is not None]
    twice = len(set(ids)) < len(ids)
    if twice or not _valid(notebook.says):
        found.append("not quite the form of a notebook; written anew")
    return found


def _valid(part: dict, kind: str | None = None) -> bool:
    """Whether a notebook, or a cell of some kind, has the form that Jupyter asks for."""
    version = {"version": 4, "version_minor": 5} if kind else {}
    try:
        json.dumps(part, allow_nan=False).encode()
        return not any(iter_validate(part, ref=kind, **version))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False


def _written(cells: list[dict], released: dict) -> tuple[reading.Notebook, list[str]]:
    """A valid notebook with these cells, and what was left out."""
    used: set[str] = set()
    plain = [_plain(cell, number, used) for number, cell in enumerate(cells, start=1)]
    left_out = []
    if len(json.dumps([cell.get("outputs") for cell in plain])) > MOST_OUTPUT:
        for cell in plain:
            if "outputs" in cell:
                cell["outputs"] = []
        left_out = ["more than a megabyte of outputs is left out"]
    notebook = {
        "cells": plain,
        "metadata": released["metadata"],
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    return reading.Notebook(text.encode(errors="replace"), notebook, plain), left_out


def _plain(cell: dict, number: int, used: set[str]) -> dict:
    """A valid cell with the same text; outputs and metadata are kept where they are valid, too."""
    kind = cell.get("cell_type")
    kind = kind if kind in ("code", "markdown", "raw") else "markdown"
    name = _number_of(cell) or ""
    if not _CELL_ID.fullmatch(name) or name in used:
        name = next(n for i in range(number, number + len(used) + 2) if (n := f"c{i}") not in used)
    used.add(name)
    plain = {"cell_type": kind, "id": name, "metadata": {}, "source": source_of(cell)}
    if kind == "code":
        plain |= {"outputs": [], "execution_count": None}
    metadata = cell.get("metadata")
    full = plain | {"metadata": metadata if isinstance(metadata, dict) else {}}
    if kind == "code" and isinstance(cell.get("outputs"), list):
        full |= {"outputs": cell["outputs"]}
    elif kind != "code" and isinstance(cell.get("attachments"), dict):
        full |= {"attachments": cell["attachments"]}
    silent = full | ({"outputs": []} if kind == "code" else {})
    for candidate in (full, silent):
        if _valid(candidate, f"{kind}_cell"):
            return candidate
    mark = full["metadata"].get("nbgrader")
    return plain | ({"metadata": {"nbgrader": mark}} if mark else {})
