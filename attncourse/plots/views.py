"""Tables and views that work in a notebook and on a page, offline and without a running Python."""

import hashlib
import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from markupsafe import Markup, escape
from torch import Tensor

from attncourse.markup import each
from attncourse.plots.figures import ORANGE, TEAL


@dataclass(frozen=True)
class Table:
    """Numbers (r c) with a name for each row and column; a real HTML table in a notebook.

    Args:
        numbers: (r c), any real dtype.
        rows: r names.
        columns: c names.
        digits: decimals to print; one number for all columns, or one a column.
        corner: what the row names are, e.g. "query"; printed in the corner.
    """

    numbers: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    digits: int | Sequence[int] = 2
    corner: str = ""

    def _lines(self) -> list[list[str]]:
        digits = [self.digits] * len(self.columns) if isinstance(self.digits, int) else self.digits
        return [
            [f"{n:,.{places}f}".replace("-", "−") for n, places in zip(line, digits, strict=True)]
            for line in self.numbers.detach().tolist()
        ]

    def __repr__(self) -> str:
        lines = [[self.corner, *self.columns]]
        lines += [[name, *cells] for name, cells in zip(self.rows, self._lines(), strict=True)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def _repr_html_(self) -> str:
        head = each("<th scope='col'>{}</th>", (_on_one_line(name, 7) for name in self.columns))
        cells = (each("<td>{}</td>", line) for line in self._lines())
        body = each("<tr><th scope='row'>{}</th>{}</tr>", map(_on_one_line, self.rows), cells)
        corner = Markup("<th>{}</th>" if self.corner else "<td></td>").format(self.corner)
        table = "<table class='dataframe'><thead><tr>{}{}</tr></thead><tbody>{}</tbody></table>"
        return str(Markup(table).format(corner, head, body))


def _on_one_line(name: str, longest: int = 14) -> str:
    """A short name does not break at blanks and dashes; on a phone, tables are narrow."""
    if len(name) > longest:
        return name
    return name.replace(" ", "\u00a0").replace("-", "\u2011").replace("–", "\u2060–\u2060")


def bars_svg(weights: Tensor, names: Sequence[str], title: str, color: str) -> str:
    """Draw weights (k) as horizontal bars on a scale from 0 to 1, as an inline SVG.

    Lines and letters take the page's own color, so the picture follows light and dark mode.

    Args:
        weights: (k), each between 0 and 1.
        names: k labels, written beside the bars.
        title: written above.
        color: fill of the bars, as CSS.
    """
    left, width, step, top = 48, 200, 22, 26
    bottom = top + step * len(names)
    ticks = {0: left, 0.5: left + width // 2, 1: left + width}
    lines = "".join(f"M{x} {top}V{bottom}" for x in ticks.values())
    tick_names = "".join(
        f"<text x='{x}' y='{bottom + 14}'>{tick}</text>" for tick, x in ticks.items()
    )
    bars = numbers = ""
    ys = range(top, bottom, step)
    for y, weight in zip(ys, weights.tolist(), strict=True):
        bars += f"M{left} {y + 4}h{width * weight:.1f}v14H{left}z"
        numbers += f"<text x='{left + width + 8}' y='{y + 15}'>{weight:.2f}</text>"
    key_names = each(f"<text x='{left - 5}' y='{{}}'>{{}}</text>", (y + 15 for y in ys), names)
    return (
        f"<svg viewBox='0 0 292 {bottom + 36}' aria-hidden='true'>"
        f"<text x='{left}' y='16' font-weight='600'>{escape(title)}</text>"
        f"<path d='{lines}' stroke='currentColor' opacity='.35'/>"
        f"<g text-anchor='middle'>{tick_names}"
        f"<text x='{ticks[0.5]}' y='{bottom + 30}'>weight</text></g>"
        f"<path d='{bars}' fill='{color}'/>"
        f"<g text-anchor='end'>{key_names}</g>{numbers}</svg>"
    )


# The lines of `lines_svg`: color and dash.
LINES = ((ORANGE, "none"), (TEAL, "7 3"), ("#6b6fd8", "2 3"), ("#767676", "9 3 2 3"))


def lines_svg(
    lines: Tensor, places: Sequence[float], at: int, title: str, axes: tuple[str, str] = ("", "")
) -> str:
    """Draw lines (h k) over k places, with a mark at one of them, as an inline SVG.

    Lines and letters take the page's own color where they carry no meaning, so the picture follows
    light and dark mode. Each line has a dash and a color of its own; `lines_key` names them.

    Args:
        lines: (h k), at most four.
        places: k numbers, in rising order.
        at: which of them is marked.
        title: written above.
        axes: what goes up, and what goes across.
    """
    left, right, top, bottom = 42, 276, 26, 126
    low, high = min(lines.min().floor().item(), -1.0), max(lines.max().ceil().item(), 0.0)
    first, last = places[0], places[-1]
    across = [left + (right - left) * (place - first) / (last - first) for place in places]
    up = bottom - (lines - low) / (high - low) * (bottom - top)
    zero = bottom + low / (high - low) * (bottom - top)
    drawn = ""
    for row, (color, dash) in zip(up.tolist(), LINES, strict=False):
        path = "L".join(f"{x:.0f} {y:.1f}" for x, y in zip(across, row, strict=True))
        drawn += f"<path d='M{path}' fill='none' stroke='{color}' stroke-width='2' "
        drawn += f"stroke-dasharray='{dash}'/><circle cx='{across[at]:.0f}' cy='{row[at]:.1f}' "
        drawn += f"r='4' fill='{color}'/>"
    names = "".join(
        f"<text x='{x:.0f}' y='{bottom + 15}'>{place:+.0f}</text>".replace("+0", "0")
        for x, place in zip(across, places, strict=True)
        if place % 4 == 0
    ).replace("-", "−")
    middle = (top + bottom) // 2
    return (
        f"<svg viewBox='0 0 292 {bottom + 34}' aria-hidden='true'>"
        f"<text x='{left}' y='16' font-weight='600'>{escape(title)}</text>"
        f"<path d='M{left} {zero:.0f}H{right}M{across[at]:.0f} {top}V{bottom}' "
        "stroke='currentColor' opacity='.35'/>"
        f"<g text-anchor='end'><text x='{left - 4}' y='{zero + 4:.0f}'>0</text>"
        f"<text x='{left - 4}' y='{bottom + 4}'>{low:.0f}</text></g>"
        f"<g text-anchor='middle'>{names}"
        f"<text transform='rotate(-90 12 {middle})' x='12' y='{middle}'>{escape(axes[0])}</text>"
        f"<text x='{(left + right) // 2}' y='{bottom + 30}'>{escape(axes[1])}</text></g>"
        f"{drawn}</svg>"
    ).replace(">-", ">−")


def lines_key(names: Sequence[str]) -> str:
    """The names of the lines that `lines_svg` draws, as an inline SVG beside theirs."""
    drawn = "".join(
        f"<path d='M42 {34 + 24 * i}h60' stroke='{color}' stroke-width='2' fill='none' "
        f"stroke-dasharray='{dash}'/><text x='112' y='{38 + 24 * i}'>{escape(name)}</text>"
        for i, (name, (color, dash)) in enumerate(zip(names, LINES, strict=False))
    )
    return f"<svg viewBox='0 0 292 160' aria-hidden='true'>{drawn}</svg>"


@dataclass(frozen=True)
class Slider:
    """Pictures on a slider, switched in the browser: no server, no downloads, works by keyboard.

    Args:
        label: what the slider sets, e.g. "width d".
        positions: one name a position, e.g. "1", "2", "4".
        pictures: one tuple of inline SVGs a position; they stand side by side where there is room.
        readouts: one sentence a position: what the pictures show, for readers who cannot see them.
        start: the position shown first (and on paper).
    """

    label: str
    positions: Sequence[str]
    pictures: Sequence[Sequence[str]]
    readouts: Sequence[str]
    start: int = 0

    def __repr__(self) -> str:
        return (
            f"Slider({self.label!r}, {len(self.positions)} positions): {self.readouts[self.start]}"
        )

    def _repr_html_(self) -> str:
        frames = each(
            "<div class='frame' role='group' aria-label='{}'{}>{}</div>",
            self.readouts,
            ("" if place == self.start else " hidden" for place in range(len(self.pictures))),
            (Markup("".join(svgs)) for svgs in self.pictures),
        )
        # The same slider has the same id in every build, so that builds can be compared.
        digest = hashlib.sha256(f"{self.label}{frames}".encode()).hexdigest()[:10]
        return _filled(
            "slider.html",
            id=f"slider-{digest}",
            label=self.label,
            last=len(self.positions) - 1,
            start=self.start,
            text=f"{self.label} = {self.positions[self.start]}",
            readout=self.readouts[self.start],
            frames=frames,
            listing=each("<li>{}</li>", self.readouts),
            positions="|".join(self.positions),
        )


def marked_words(label: str, words: Sequence[str], wrong: Collection[int] = ()) -> str:
    """Write one sentence as inline HTML, wrong words with a wavy line below; a picture for Slider.

    Args:
        label: says whose sentence it is, e.g. "the model".
        words: n words.
        wrong: places (from 0) of the words to mark.

    Raises:
        ValueError: a place outside the sentence.
    """
    if outside := sorted(set(wrong) - set(range(len(words)))):
        raise ValueError(f"{len(words)} words have places 0 to {len(words) - 1}; got {outside}")
    mark = Markup(
        f"<u style='{WAVE}'><span style='position:absolute;clip-path:inset(50%)'>wrong: </span>"
        "{}</u>"
    )
    marked = (mark.format(word) if place in wrong else word for place, word in enumerate(words))
    return str(Markup("<p><b>{}:</b> {}</p>").format(label, Markup(" ").join(marked)))


WAVE = f"text-decoration:underline wavy {ORANGE} 2px;text-underline-offset:3px"


@dataclass(frozen=True, eq=False)
class View:
    """One state of an interactive figure: weights (q k) with their tokens.

    Args:
        weights: (q k), each between 0 and 1; a row of zeros attends to nothing.
        queries: q tokens.
        keys: k tokens.
        note: one sentence, shown below.

    Raises:
        ValueError: shapes that do not fit, or numbers that are no weights.
    """

    weights: Tensor
    queries: Sequence[str]
    keys: Sequence[str]
    note: str = ""

    def __post_init__(self):
        shape = tuple(self.weights.shape)
        if shape != (len(self.queries), len(self.keys)) or 0 in shape:
            raise ValueError(
                f"weights have shape {shape}, but there are {len(self.queries)} queries (rows) "
                f"and {len(self.keys)} keys (columns)"
            )
        weights = self.weights.detach()
        if not bool(((weights >= 0) & (weights <= 1 + 1e-3)).all()):
            low, high = weights.min().item(), weights.max().item()
            raise ValueError(f"weights lie between 0 and 1; these go from {low:.4g} to {high:.4g}")

    def _hundredths(self) -> list[list[str]]:
        """Each weight as a whole number of hundredths; "" for a weight of exactly 0."""
        return [
            ["" if weight == 0 else str(round(100 * weight)) for weight in row]
            for row in self.weights.detach().double().tolist()
        ]

    def _sentence(self, query: int) -> str:
        """What a reader who cannot see the figure hears when it shows this query."""
        row = self._hundredths()[query]
        seen = sorted((key for key, w in enumerate(row) if w), key=lambda key: -int(row[key]))
        told = [key for place, key in enumerate(seen[:3]) if place == 0 or row[key] != "0"]
        name = f"Query {_quoted(self.queries, query)}"
        if not told:
            return f"{name} attends to nothing."
        on = (f"{_printed(row[key])} on {_quoted(self.keys, key)}" for key in told)
        return f"{name}: {', '.join(on)}."


def _printed(hundredths: str) -> str:
    return f"{int(hundredths) / 100:.2f}" if hundredths else "0"


def _quoted(words: Sequence[str], place: int) -> str:
    again = f" (no. {place + 1})" if list(words).count(words[place]) > 1 else ""
    return f"“{words[place]}”{again}"


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Weights one query at a time, chosen in the browser: no server, no downloads, by keyboard too.

    Pointing at a query, or arrowing to it, draws its weights as lines to the keys, as bars behind
    them and as numbers: "0" is exactly zero, as behind a mask; "0.00" is rounded. Radio buttons
    choose among several tables of weights.

    Args:
        views: one view; or one for each combination of options, by the tuple of these options.
        choices: groups of radio buttons: name -> options, in the order of the tuples.
        label: what is shown; printed above.
        pictures: two choices become a table of small maps, the first choice's options its rows;
            each is a radio button.
        start: number of the query that is shown first.

    Raises:
        ValueError: a combination without a view, or a view without a combination; pictures for
            other than two choices; a start that the first view has not.
    """

    views: dict[tuple[str, ...], View] | View
    choices: dict[str, Sequence[str]] | None = None
    label: str = ""
    pictures: bool = False
    start: int = 0

    def __post_init__(self):
        if isinstance(self.views, View):
            object.__setattr__(self, "views", {(): self.views})
        combinations = list(itertools.product(*(self.choices or {}).values()))
        missing = [each for each in combinations if each not in self.views]
        if missing or len(self.views) != len(set(combinations)):
            extra = [each for each in self.views if each not in combinations]
            raise ValueError(
                f"views need one entry for each combination of {list(self.choices or {})}; "
                f"missing: {missing[:3]}, not a combination: {extra[:3]}"
            )
        if self.pictures and len(self.choices or {}) != 2:
            raise ValueError(f"pictures need two choices; got {len(self.choices or {})}")
        if not 0 <= self.start < (last := len(self._ordered()[0].queries)):
            raise ValueError(f"start must be a query of the first view, 0 to {last - 1}")

    def _ordered(self) -> list[View]:
        return [self.views[each] for each in itertools.product(*(self.choices or {}).values())]

    def __repr__(self) -> str:
        choices = "".join(
            f"{name} {' | '.join(options)}; " for name, options in (self.choices or {}).items()
        )
        return f"AttentionView({self.label!r}; {choices}{self._ordered()[0]._sentence(self.start)})"

    def _repr_html_(self) -> str:
        views = self._ordered()
        first, row = views[0], views[0]._hundredths()[self.start]
        # Tokens are written once, however many views share them.
        tokens = {tuple(words): None for view in views for words in (view.queries, view.keys)}
        place = {words: i for i, words in enumerate(tokens)}
        data = {
            "tokens": list(tokens),
            "views": [
                (
                    place[tuple(view.queries)],
                    place[tuple(view.keys)],
                    ";".join(",".join(row) for row in view._hundredths()),
                    view.note,
                )
                for view in views
            ],
        }
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        choices = self._pictures() if self.pictures else self._buttons()
        at, words = self.start + 0.5, first.queries
        seen = [(key, int(weight)) for key, weight in enumerate(row) if int(weight or 0)]
        # Shown as it is where no script runs; the script draws the same, and the others.
        digest = hashlib.sha256(f"{self.label}{choices}{data}".encode()).hexdigest()[:10]
        return _filled(
            "attention.html",
            id=f"attention-{digest}",
            name=each(' aria-label="{}"', [self.label] if self.label else []),
            caption=each("<p><b>{}</b></p>", [self.label] if self.label else []),
            choices=choices,
            queries=each(
                "<label><input type='radio' name='query'{}><span>{}</span></label>",
                _checked(len(words), self.start),
                words,
            ),
            rows=max(first.weights.shape),
            lines=each(
                f"<path d='M0 {at}C50 {at} 50 {{0}} 100 {{0}}' stroke-width='{{1}}' "
                "stroke-opacity='{2:.2f}'/>",
                (i + 0.5 for i, w in seen),
                (1 + w / 20 for i, w in seen),
                (0.3 + w / 143 for i, w in seen),
            ),
            keys=each(
                "<li><i>{}</i><span style='--w:{}'>{}</span>",
                map(_printed, row),
                (weight or 0 for weight in row),
                first.keys,
            ),
            sentence=first._sentence(self.start),
            start=self.start,
            note=first.note,
            data=Markup(data),
        )

    def _buttons(self) -> Markup:
        button = "<label><input type='radio' name='choice-{}'{}>{}</label>"
        groups = (
            each(button, [number] * len(options), _checked(len(options)), options)
            for number, options in enumerate((self.choices or {}).values())
        )
        group = "<fieldset class='choice'><legend><b>{}</b></legend>{}</fieldset>"
        return each(group, self.choices or {}, groups)

    def _pictures(self) -> Markup:
        """One group of radio buttons, each a small map, in rows and columns."""
        (row, rows), (column, columns) = self.choices.items()
        button = "<label><input type='radio' name='choice-0' aria-label='{}'{}>{}</label>"
        body = Markup()
        for option in rows:
            names = (f"{row} {option}, {column} {other}" for other in columns)
            marks = _checked(len(columns), 0 if option == rows[0] else -1)
            maps = (_small_map(self.views[option, other].weights) for other in columns)
            body += Markup("<span>{}</span>{}").format(option, each(button, names, marks, maps))
        return Markup(
            "<fieldset class='choice pictures' style='--columns:{}'><legend>{} and {}</legend>"
            "<div><span>{}</span>{}{}</div></fieldset>"
        ).format(len(columns), row, column, column, each("<b>{}</b>", columns), body)


def _checked(buttons: int, which: int = 0) -> list[str]:
    return [" checked" if number == which else "" for number in range(buttons)]


def _small_map(weights: Tensor) -> Markup:
    """Weights (q k) as a picture without words: four shades, nothing below 0.05."""
    q, k = weights.shape
    shades = ((0.05, 0.25), (0.2, 0.5), (0.4, 0.75), (0.7, 1.0))
    paths = ""
    for place, (least, shade) in enumerate(shades):
        most = shades[place + 1][0] if place < 3 else 2.0
        cells = ((weights >= least) & (weights < most)).nonzero().tolist()
        drawn = "".join(f"M{j} {i}h1v1h-1z" for i, j in cells)
        paths += f"<path d='{drawn}' opacity='{shade}'/>" if drawn else ""
    return Markup(
        f"<svg class='small' viewBox='0 0 {k} {q}' preserveAspectRatio='none' aria-hidden='true'>"
        f"{paths}</svg>"
    )


def head_view(
    maps: dict[str, Tensor],
    queries: Sequence[str] | dict[str, Sequence[str]],
    keys: Sequence[str] | dict[str, Sequence[str]] | None = None,
    label: str = "",
    start: int = 0,
) -> AttentionView:
    """Every head of a model on one text: a row of small maps a layer, and one of them large.

    After BertViz' head view and model view (Vig, 2019), without a server.

    Args:
        maps: attention's name -> weights (h q k), such as `attention_maps` collects, of one text.
        queries: words of the rows; one list for all attentions, or one for each.
        keys: words of the columns; as the queries if None.
        label: what is shown; printed above.
        start: number of the query that is shown first.

    Raises:
        ValueError: words that are not as many as the weights, or attentions with other heads.
    """
    keys = queries if keys is None else keys
    counts = {name: len(weights) for name, weights in maps.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"every attention must have as many heads; got {counts}")

    def words(side, name):
        return side[name] if isinstance(side, dict) else side

    views = {
        (name, str(head)): View(weights, words(queries, name), words(keys, name))
        for name, heads in maps.items()
        for head, weights in enumerate(heads)
    }
    heads = [str(head) for head in range(next(iter(counts.values())))]
    return AttentionView(views, {"attention": list(maps), "head": heads}, label, True, start)


def _filled(file: str, **parts: object) -> str:
    """HTML with a script in it, from data/; what goes for its $names is escaped as in `each`."""
    page = Template((Path(__file__).parent.parent / "data" / file).read_text(encoding="utf-8"))
    return page.substitute({name: escape(part) for name, part in parts.items()})
