"""What a student reads after a check: plain text, or HTML in a notebook."""

from __future__ import annotations

import functools
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from markupsafe import Markup
from torch import Tensor

from attncourse.checks import pages
from attncourse.checks.answer import (
    HOLDS,
    MOST_LETTERS,
    Failure,
    describe,
    first_difference,
    shape_of,
)
from attncourse.checks.task import Task
from attncourse.markup import each, with_code

if TYPE_CHECKING:
    from attncourse.checks.diagnosis import DependencyMap, Diagnosis, Example

TWO = (
    "Two things at once, and each is told as if it were the only one. Mend the first and run "
    "again: then only the second is left."
)
OPEN = "○: stays open while something else is wrong"
PROBABLY = "What you probably think"
PARTLY = "At least part of this looks like a mistake we know"

NOT_BEGUN = ("NOT-DEFINED", "NOT-ANSWERED")

# A report as data, beside its HTML in a notebook's output: what the class report reads.
MIME = "application/vnd.attncourse.report+json"


@dataclass(frozen=True)
class Result:
    """The verdict of one check."""

    name: str  # the sentence a teacher would say
    points: float
    error: BaseException | None = None

    @property
    def passed(self) -> bool:
        return self.error is None

    @property
    def message(self) -> str:
        """Why it failed, in a sentence or two; empty if it passed."""
        if self.error is None:
            return ""
        if isinstance(self.error, Failure):
            return str(self.error)
        return f"{type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Report:
    """All verdicts on one answer, and what was probably misunderstood."""

    about: Task
    results: tuple[Result, ...]
    diagnosis: Diagnosis | None
    note: str = ""  # what to do after success, or what was noticed and costs nothing
    near: bool = False  # shown where it was made: then a page built there can be opened

    @property
    def task(self) -> str:
        return self.about.name

    @property
    def points(self) -> float:
        return float(sum(result.points for result in self.results))

    @property
    def earned(self) -> float:
        return float(sum(result.points for result in self.results if result.passed))

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def begun(self) -> bool:
        """Whether there is an answer to speak of: what is not begun is not wrong."""
        return not self.diagnosis or self.diagnosis.id not in NOT_BEGUN

    @property
    def state(self) -> str:
        if not self.begun:
            return "open"
        return "right" if self.passed else "half" if 2 * self.earned >= self.points else "wrong"

    @functools.cached_property
    def left_open(self) -> list[Result]:
        """The checks that met a wrong result, and not what they are named for.

        Where the result is wrong on most inputs, the first check that compares it says so. Whether
        big scores stay finite, say, a later one could tell of a right result alone. And of what has
        the wrong shape, or does not come at all, none can tell more than the first.
        """
        met, found, failed = set(), [], [each for each in self.results if not each.passed]
        mostly = self.diagnosis is not None and self.diagnosis.mostly
        for result in failed:
            what = mostly and getattr(result.error, "whole", "")
            bare = _malformed(result.message)
            follows = getattr(result.error, "open", False) or result.message.startswith(HOLDS)
            if met & {what, bare} or follows:
                found.append(result)
            else:
                met |= {what, bare} - {"", False}
        return found if len(found) < len(failed) else found[1:]  # something is always wrong

    def mark(self, result: Result) -> str:
        if result.passed:
            return "✓"
        return "✗" if self.begun and result not in self.left_open else "○"

    def as_dict(self) -> dict:
        """The report as plain data (JSON)."""
        failed = [result for result in self.results if not result.passed]
        return {
            "task": self.task,
            "points": self.points,
            "earned": self.earned,
            "passed": self.passed,
            "diagnosis": self.diagnosis.id if self.diagnosis else None,
            "diagnoses": self.diagnosis.ids if self.diagnosis else [],
            "title": self.diagnosis.title if self.diagnosis else None,
            "failed": [[result.name, result.message] for result in failed],
        }

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {"text/plain": repr(self), "text/html": str(_html(self))} | self.as_bundle()

    def as_bundle(self) -> dict:
        """The part of a notebook's output that programs read."""
        return {MIME: self.as_dict()}

    def __repr__(self) -> str:
        return _text(self)


class Points(float):
    """Points as nbgrader takes them from a cell's output, and as a notebook does not show them.

    They stand in the first line of the report already.
    """

    def _repr_html_(self) -> str:
        return ""


@dataclass(frozen=True)
class Hints:
    """The hint ladder of a task; in a notebook each rung is opened by a click."""

    about: Task

    def _repr_html_(self) -> str:
        names = [f"{self.about.name}: hint {n} of 3" for n in (1, 2, 3)]
        hint = "<details><summary>{}</summary><p>{}</p></details>"
        return str(each(hint, names, map(with_code, self.about.hints)))

    def __repr__(self) -> str:
        return "\n".join(
            _wrap(f"{n}. {text}", indent="   ") for n, text in enumerate(self.about.hints, 1)
        )


# --- numbers and tables -------------------------------------------------------------------------

MOST_NUMBERS = 24  # in a table
MOST_NAMES = 8  # of what is in a dict
DIGITS = (4, 7, 17)  # of a number; the last ones tell any two apart


def _number(value: float, digits: int = DIGITS[0]) -> str:
    """A number as a person would write it: 3, 0.269, 1e+04, NaN."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def _table(value: object, digits: int = DIGITS[0]) -> list[list[str]]:
    """Rows of words: of a small tensor its numbers, of anything else one line."""
    if not _is_shown(value):
        return [[_line(value, digits)]]
    flat = value.detach().reshape(-1, value.shape[-1] if value.ndim else 1)
    if value.dtype == torch.bool:
        return [["✓" if cell else "·" for cell in row] for row in flat.tolist()]
    return [[_number(float(cell), digits) for cell in row] for row in flat.tolist()]


def _is_shown(value: object) -> bool:
    """Whether each of its numbers is, in a table."""
    return isinstance(value, Tensor) and 0 < value.numel() <= MOST_NUMBERS and value.ndim <= 5


def _line(value: object, digits: int) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {shape_of(value)}"
    if isinstance(value, float):
        return _number(value, digits)
    if isinstance(value, dict) and value and all(isinstance(v, float) for v in value.values()):
        # A name that is a number as text does not look like the number.
        texts = {name for name in value if isinstance(name, str) and name.isdigit()}
        names = [repr(name) if name in texts else name for name in value]
        pairs = zip(names, value.values(), strict=True)
        return " ; ".join(f"{name}: {_number(number, digits)}" for name, number in pairs)
    if isinstance(value, dict) and value and all(map(_is_plain, value.values())):
        return " ; ".join(f"{name}: {_line(each, digits)}" for name, each in value.items())
    text = str(value)
    if len(text) <= MOST_LETTERS or isinstance(value, str):
        return text
    if isinstance(value, list | tuple) and len(value) <= MOST_NUMBERS and all(map(_is_real, value)):
        return " ; ".join(_number(each, digits) for each in value)
    if type(value) is dict:
        names = ", ".join(map(str, value))
        return f"a dict of {names if len(value) <= MOST_NAMES else f'{len(value):,}'}"
    return describe(value)


def _is_real(value: object) -> bool:
    return isinstance(value, int | float)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float)


def _both(example: Example) -> tuple[list[list[str]], list[list[str]]]:
    """What was expected and what came, as tables that do not look alike."""
    ours, theirs = example.expected, example.got
    for digits in DIGITS:
        tables = _table(ours, digits), _table(theirs, digits)
        if tables[0] != tables[1] or _shapes_differ(example):
            return tables
    place, ours, theirs = first_difference(ours, theirs)
    where = f" at {place}" if place else ""
    for digits in DIGITS:
        lines = _line(ours, digits), _line(theirs, digits)
        if lines[0] != lines[1]:
            break
    return tuple([[f"{line}{where}"]] for line in lines)


def _found(example: Example) -> str:
    later = ", after calls with others" if example.later else ""
    return f"Smallest failing input found{later}"


def _result(task: Task, example: Example) -> str:
    """What the result is called: its name, or the task's words for it."""
    words = task.called(example.name)
    name = example.name if words.startswith("`") else words  # an input may have that name, too
    return name if _shapes_differ(example) else name + _stacked(example.expected)


def _stacked(value: object) -> str:
    """The shape of a tensor whose table has the rows of several matrices, else ""."""
    several = _is_shown(value) and math.prod(value.shape[:-2]) > 1
    return f" {shape_of(value)}" if several else ""


def _shown_inputs(task: Task, example: Example) -> dict[str, list[list[str]]]:
    """What there is room for: weights of modules ("q_proj.weight") are left out."""
    return {
        task.called(name).replace("`", "") + _unseen(value): _table(value)
        for name, value in example.inputs.items()
        if value is not None and "." not in name
    }


def _unseen(value: object) -> str:
    """What it takes to type a table in again and its numbers do not show: axes, half precision."""
    half = isinstance(value, Tensor) and value.is_floating_point() and value.itemsize < 4
    return _stacked(value) + (f" {str(value.dtype).removeprefix('torch.')}" if half else "")


def _shapes_differ(example: Example) -> bool:
    got, expected = example.got, example.expected
    return isinstance(got, Tensor) and isinstance(expected, Tensor) and got.shape != expected.shape


def _got(example: Example) -> str:
    """A label for what came: with both shapes where they differ, as one number shows none."""
    if _shapes_differ(example):
        return f"got, with shape {shape_of(example.got)} instead of {shape_of(example.expected)}"
    return "got"


def _points(report: Report) -> str:
    return f"{report.earned:g} of {report.points:g} points"


def _told(report: Report) -> Iterator[tuple[Result, str]]:
    """Each verdict with its message, or "": nothing is said twice."""
    why, before, first = report.diagnosis and report.diagnosis.why, "", {}
    for result in report.results:
        message = "" if result.message == why or not report.begun else result.message
        left_open = result in report.left_open
        seen = first.get(_unsized(message) if left_open else message)
        if not message or seen is None:
            yield result, message
        elif left_open:  # ○ says as much
            yield result, ""
        else:
            yield result, "the same" if message == before else f"the same as for “{seen}”"
        first = {_unsized(message): result.name, message: result.name} | first
        before = message or before


def _malformed(message: str) -> str:
    """What keeps a result from being compared: an error, its shape, dtype or kind; else ""."""
    if "raised " in message:
        return _unsized(message)
    kinds = r"\bshape|\btorch(?=\.(float|int|bool))|(?<!what)(?<!\d) is expected"
    kinds += "|hands `step`|does not stop|makes a module"
    return found[0] if (found := re.search(kinds, message)) else ""


def _unsized(message: str) -> str:
    return re.sub(r"a sequence of .*(?=; )|\d[\d ]*", "", message)


# --- text ---------------------------------------------------------------------------------------


def _wrap(text: str, indent: str = "  ", first: str = "") -> str:
    return textwrap.fill(
        text, 88, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
    )


def _text(report: Report) -> str:
    mark = "✓" if report.passed else "✗" if report.begun else "○"
    lines = [f"{mark} {report.task}: {_points(report)}"]
    diagnosis = report.diagnosis
    for result, message in _told(report):
        lines.append(f"  {report.mark(result)} {result.name}")
        if message:
            lines.append(_wrap(message, first="      ", indent="      "))
    if report.left_open:
        lines.append(f"  ({OPEN})")
    if report.note:
        lines.append(_wrap(report.note))
    if diagnosis is None:
        return "\n".join(lines)
    lines.append("")
    if diagnosis.also and not diagnosis.partly:
        lines.append(_wrap(TWO))
    for number, thought in enumerate(diagnosis.thoughts or (diagnosis,), 1):
        mark = f"{number}. " if diagnosis.also else ""
        lines += [""] * (number > 1)
        if thought.thinks:
            said = PARTLY if thought.partly else PROBABLY
            lines.append(_wrap(f"{mark}{said} ({thought.id}): {thought.thinks}"))
            lines.append(_wrap(f"Why it is wrong: {thought.why}"))
        else:
            lines.append(_wrap(f"{mark}{thought.why}"))
        if thought.section:
            known = thought.id if thought.thinks else ""
            lines.append(pages.read_again(report.about, thought.section, known, report.near))
    if diagnosis.seen:
        lines += [
            "",
            "What we saw:",
            *(_wrap(f"- {words}", "    ", "  ") for words in diagnosis.seen),
        ]
    if diagnosis.example:
        lines += ["", *_text_example(report.about, diagnosis.example)]
    if diagnosis.map and diagnosis.map.got is not None:
        lines += ["", *_text_map(diagnosis.map)]
    return "\n".join(lines)


def _text_example(task: Task, example: Example) -> list[str]:
    def line(name: str, table: list[list[str]], before: str = "") -> str:
        return f"  {name:<{width}}  {before}{' ; '.join('  '.join(row) for row in table)}"

    inputs = _shown_inputs(task, example)
    width = max(map(len, [*inputs, "expected"]))
    about = "about " if _is_measured(example.expected, task.tolerance or 0.0) else ""
    expected, got = _both(example)
    return [
        f"{_found(example)}:",
        *(line(name, table) for name, table in inputs.items()),
        f"Its {_result(task, example)}:",
        line("expected", expected, about),
        line(_got(example), got),
    ]


def _is_measured(value: object, tolerance: float) -> bool:
    """Whether four digits show what a task permits: of numbers, and of counts that are large."""
    if tolerance <= 1e-3 or not isinstance(value, Tensor):
        return False
    value = value.double()
    return bool(((value != value.round()) | (value.abs() * tolerance > 1)).any())


def _text_map(found: DependencyMap) -> list[str]:
    about = f"Which outputs (rows) depend on which {found.moved} (columns), {found.title}:"
    if found.right:
        rows = (" ".join("■" if cell else "·" for cell in row) for row in found.got.tolist())
        return [_wrap(about, indent=""), "  got, as expected", *(f"  {row}" for row in rows)]
    lines = [
        _wrap(about, indent=""),
        f"  {'expected':<{2 * found.expected.shape[-1]}}  got",
    ]
    for expected, got in zip(found.expected.tolist(), found.got.tolist(), strict=False):
        left, right = (" ".join("■" if cell else "·" for cell in row) for row in (expected, got))
        lines.append(f"  {left:<{max(8, 2 * len(expected))}}  {right}")
    return lines


# --- HTML ---------------------------------------------------------------------------------------

# A long title is cut, so that a link is one line on a phone, too. Two thoughts stand beside a rule
# each, so that it is plain what belongs to which. Links, lists and code are named three times
# over: else JupyterLab's own rules take the line from a link and move a list to the right. Colors
# of words keep a contrast of 4.5 : 1 on white and on the dark grounds of JupyterLab, VS Code, Colab
# and the book; everything else inherits.
STYLE = """
.attn-report{font:14px/1.5 system-ui,sans-serif;max-width:46em;border-left:4px solid var(--attn);
padding:.2em 0 .2em 1em;margin:.5em 0;--ok:#16833f;--no:#c0392b;--link:#0b5c94;
--attn:var(--ok)}
.attn-report.wrong{--attn:var(--no)}
.attn-report.half{--attn:#e0930a}
.attn-report.open{--attn:#8a8a8a}
.attn-report h4{margin:.1em 0 .4em;font-size:1.1em;font-weight:600}
.attn-report h5{margin:.9em 0 .2em;font-size:1em;font-weight:600}
.attn-report p{margin:.2em 0 .5em}
.attn-report .read{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.attn-report.attn-report.attn-report a,.attn-report.attn-report.attn-report a code{
color:var(--link);text-decoration:underline;text-underline-offset:.15em}
.attn-report .thought{border-left:2px solid #8888;padding-left:.9em;margin:.9em 0}
.attn-report .thought h5:first-child{margin-top:0}
.attn-report.attn-report.attn-report ul{list-style:none;margin:.2em 0;padding:0}
.attn-report li{padding-left:1.5em;text-indent:-1.5em;margin:.1em 0}
.attn-report li small{display:block;text-indent:0;font-size:.93em;opacity:.85}
.attn-report.attn-report.attn-report ul.seen{list-style:disc;padding-left:1.3em}
.attn-report ul.seen li{padding-left:0;text-indent:0}
.attn-report .ok,.attn-report .no{font-weight:700;display:inline-block;width:1.5em;text-indent:0}
.attn-report .ok{color:var(--ok)}.attn-report .no{color:var(--no)}
.attn-report .yet{color:inherit;opacity:.85}
.attn-report .side{display:flex;flex-wrap:wrap;gap:.4em 1.6em;align-items:flex-start}
.attn-report table{border-collapse:collapse;margin:.2em 0;font-variant-numeric:tabular-nums;
background:none;font-size:13px}
.attn-report caption{text-align:left;white-space:nowrap;font-weight:600;padding:0;color:inherit;
caption-side:top}
.attn-report td{border:1px solid #8888;padding:.1em .5em;text-align:right;background:none}
.attn-report td.off{outline:2px solid var(--no);outline-offset:-2px;font-weight:700}
.attn-report td.says{text-align:left}
.attn-report td.on{background:currentColor}
.attn-report .map caption{white-space:nowrap;contain:inline-size}
.attn-report .map td{width:1.1em;height:1.1em;padding:0;min-width:1.1em}
.attn-report code{font-size:.95em}
.attn-report.attn-report.attn-report code{background:none;color:inherit;padding:0}
@media (prefers-color-scheme:dark){.attn-report{--ok:#4cc27a;--no:#ff8a7a;--link:#7cbcf0}}
[data-theme=dark] .attn-report,[data-jp-theme-light=false] .attn-report,
.vscode-dark .attn-report,html[theme=dark] .attn-report{--ok:#4cc27a;--no:#ff8a7a;--link:#7cbcf0}
[data-theme=light] .attn-report,[data-jp-theme-light=true] .attn-report,
.vscode-light .attn-report{--ok:#16833f;--no:#c0392b;--link:#0b5c94}
""".replace("\n", "")


def _html_link(where: str, words: str) -> str:
    """A link, or the words alone if it leads nowhere."""
    link = Markup('<a href="{}" target="_blank" rel="noopener">{}</a>')
    return link.format(where, words) if where else words


def _html_table(caption: str, rows: list[list[str]], beside: list | None = None) -> Markup:
    def cell(here: str, there: str) -> Markup:
        words = re.search("[a-z]{2}", here)
        kind = " ".join(["off"] * (here != there) + ["says"] * bool(words))
        return Markup("<td{}>{}</td>").format(Markup(' class="{}"').format(kind) * bool(kind), here)

    return _html_rows(caption, rows, beside, cell)


def _html_map(caption: str, table: Tensor, beside: Tensor) -> Markup:
    def cell(on: bool, there: bool) -> Markup:
        classes = " ".join(["on"] * on + ["off"] * (on != there))
        title = "changes" if on else "stays"
        return Markup('<td class="{}" title="{}"></td>').format(classes, title)

    return _html_rows(caption, table.tolist(), beside.tolist(), cell, Markup(' class="map"'))


def _html_rows(caption: str, rows: list, others: list | None, cell: Callable, kind="") -> Markup:
    """Each cell is made of what stands here and there; of this alone if the sizes differ."""
    if not others or [*map(len, others)] != [*map(len, rows)]:
        others = rows
    lines = (map(cell, *pair) for pair in zip(rows, others, strict=True))
    body = each("<tr>{}</tr>", map(Markup("").join, lines))
    return Markup("<table{}><caption>{}</caption>{}</table>").format(kind, caption, body)


def _html(report: Report) -> Markup:
    diagnosis = report.diagnosis
    text = Markup("<h4><code>{}</code>: {}</h4>").format(report.task, _points(report))
    if diagnosis:
        text += _html_thoughts(report, diagnosis)
        if diagnosis.seen:
            seen = each("<li>{}</li>", map(with_code, diagnosis.seen))
            text += Markup('<h5>What we saw</h5><ul class="seen">{}</ul>').format(seen)
        if diagnosis.example:
            text += html_example(report.about, diagnosis.example)
        if diagnosis.map and diagnosis.map.got is not None:
            text += html_dependencies(diagnosis.map)
    if report.note:
        text += Markup("<p>{}</p>").format(with_code(report.note))
    if not report.passed:
        text += Markup("<h5>What was checked</h5>")
    checks = each("{}", (_html_item(report.mark(told[0]), *told) for told in _told(report)))
    legend = Markup("<p><small>{}</small></p>").format(OPEN) if report.left_open else ""
    box = Markup('<style>{}</style><div class="attn-report {}">{}<ul>{}</ul>{}</div>')
    return box.format(Markup(STYLE), report.state, text, checks, legend)


def _html_item(mark: str, result: Result, message: str) -> Markup:
    kind = {"✓": "ok", "✗": "no", "○": "no yet"}[mark]
    detail = message and Markup("<small>{}</small>").format(with_code(message))
    return Markup('<li><span class="{}">{}</span>{}{}</li>').format(
        kind, mark, with_code(result.name), detail
    )


def _html_thoughts(report: Report, diagnosis: Diagnosis) -> Markup:
    if not diagnosis.also:
        return _html_thought(report, diagnosis, "")
    two = (_html_thought(report, one, f"{n}. ") for n, one in enumerate(diagnosis.thoughts, 1))
    alone = "" if diagnosis.partly else Markup("<p><b>{}</b></p>").format(TWO)
    return alone + each('<div class="thought">{}</div>', two)


def _html_thought(report: Report, thought: Diagnosis, mark: str) -> Markup:
    why = with_code(thought.why)
    if thought.thinks:
        id = Markup("<code>{}</code>").format(thought.id)
        id = _html_link(pages.in_gallery(report.about, thought.id), id)
        text = Markup("<h5>{}{} {}</h5><p>{}</p><h5>Why it is wrong</h5><p>{}</p>").format(
            mark, PARTLY if thought.partly else PROBABLY, id, with_code(thought.thinks), why
        )
    else:
        text = Markup("<p>{}{}</p>").format(mark, why)
    return text + (_html_again(report, thought.section) if thought.section else "")


def _html_again(report: Report, section: str) -> Markup:
    """To the published page: no front end of notebooks opens a built one as it should be.

    JupyterLab drops `file:` links and shows local pages without scripts, from their top; a person
    who sits at JupyterLab reads where the built page is.
    """
    task, line = report.about, Markup('<p class="read">{}{}</p>').format
    link = _html_link(pages.address(task.page, section), pages.title(task.home, section))
    again = line("Read again: ", link)
    if report.near and "JPY_SESSION_NAME" in os.environ and pages.built(task.page):
        again += line("", Markup("<small>offline: _build/html/{}.html</small>").format(task.page))
    return again


def html_example(task: Task, example: Example) -> Markup:
    inputs, (expected, got) = _shown_inputs(task, example), _both(example)
    return Markup(
        '<h5>{}</h5><div class="side">{}</div><h5>Its {}</h5><div class="side">{}{}</div>'
    ).format(
        _found(example),
        each("{}", map(_html_table, inputs, inputs.values())),
        with_code(_result(task, example)),
        _html_table("expected", expected),
        _html_table(_got(example), got, expected),
    )


def html_dependencies(found: DependencyMap) -> Markup:
    maps = _html_map("got, as expected" if found.right else "got", found.got, found.expected)
    if not found.right:
        maps = _html_map("expected", found.expected, found.expected) + maps
    return Markup(
        "<h5>What depends on what ({})</h5><p>A filled cell: the output of that row depends on the "
        '{} of that column.</p><div class="side">{}</div>'
    ).format(found.title, found.moved, maps)
