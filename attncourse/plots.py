"""Pictures the chapters share. Not imported by `import attncourse`: it needs matplotlib."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

# Two hues of middling lightness: 3:1 or more against white paper and against a dark page,
# and told apart by color-blind readers. They keep their meaning through a chapter.
ORANGE, TEAL = "#c8590c", "#12807a"

# `plt.style.use(STYLE)`. Figures are 4.8 inches wide so that their text is still readable when
# a telephone shrinks them to 350 pixels; paper stays white, because a notebook may be dark.
STYLE = {
    "figure.figsize": (4.8, 3.0),
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": plt.cycler(color=[ORANGE, TEAL, "#5b5fc7", "#767676"]),
    "lines.linewidth": 2,
    "legend.frameon": False,
}


def heat_map(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str],
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw weights (q k) as a table of shades: one row a query, one column a key.

    Args:
        weights: (q k), each between 0 and 1.
        queries: q tokens, written beside the rows.
        keys: k tokens, written above the columns.
        title: what distinguishes this map from its neighbors.
        ax: where to draw; a new figure if None.

    Returns:
        The axes that were drawn on.
    """
    table = weights.detach().cpu().float().numpy()
    if table.shape != (len(queries), len(keys)):
        raise ValueError(
            f"weights have shape {table.shape}, but there are {len(queries)} queries (rows) "
            f"and {len(keys)} keys (columns)"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(min(4.8, 1.6 + 0.8 * len(keys)), 1.2 + 0.5 * len(queries)))
    image = ax.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set_xticks(range(len(keys)), keys, rotation=0 if len(keys) <= 6 else 60)
    ax.set_yticks(range(len(queries)), queries)
    ax.xaxis.set_ticks_position("top")
    ax.xaxis.set_label_position("top")
    ax.tick_params(length=0)
    ax.set_xlabel("key", labelpad=8)
    ax.set_ylabel("query", labelpad=8)
    ax.spines[:].set_visible(False)
    if title:
        ax.set_title(title, y=-0.05, va="top")
    if table.shape[1] <= 8:
        for (row, column), weight in np.ndenumerate(table):
            shade = "white" if weight > 0.55 else "black"
            ax.text(column, row, f"{weight:.2f}", ha="center", va="center", color=shade)
    else:
        ax.figure.colorbar(image, ax=ax, label="weight")
    return ax


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
        head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            f"<tr><th scope='row'>{escape(name)}</th>"
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
            for name, cells in zip(self.rows, self._lines(), strict=True)
        )
        return (
            f"<table class='dataframe'><thead><tr><th>{escape(self.corner)}</th>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>"
        )


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
    bars = key_names = numbers = ""
    for place, (name, weight) in enumerate(zip(names, weights.tolist(), strict=True)):
        y = top + step * place
        bars += f"M{left} {y + 4}h{width * weight:.1f}v14H{left}z"
        key_names += f"<text x='{left - 5}' y='{y + 15}'>{escape(name)}</text>"
        numbers += f"<text x='{left + width + 8}' y='{y + 15}'>{weight:.2f}</text>"
    return (
        f"<svg viewBox='0 0 292 {bottom + 36}' aria-hidden='true'>"
        f"<text x='{left}' y='16' font-weight='600'>{escape(title)}</text>"
        f"<path d='{lines}' stroke='currentColor' opacity='.35'/>"
        f"<g text-anchor='middle'>{tick_names}"
        f"<text x='{ticks[0.5]}' y='{bottom + 30}'>weight</text></g>"
        f"<path d='{bars}' fill='{color}'/>"
        f"<g text-anchor='end'>{key_names}</g>{numbers}</svg>"
    )


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
        frames = "".join(
            f"<div class='frame' role='img' aria-label='{escape(readout, quote=True)}'"
            f"{'' if place == self.start else ' hidden'}>{''.join(svgs)}</div>"
            for place, (svgs, readout) in enumerate(zip(self.pictures, self.readouts, strict=True))
        )
        listing = "".join(f"<li>{escape(readout)}</li>" for readout in self.readouts)
        # The same slider has the same id in every build, so that builds can be compared.
        digest = hashlib.sha256((self.label + frames).encode()).hexdigest()[:10]
        return SLIDER_HTML.format(
            id=f"slider-{digest}",
            label=escape(self.label),
            last=len(self.positions) - 1,
            start=self.start,
            text=escape(f"{self.label} = {self.positions[self.start]}", quote=True),
            readout=escape(self.readouts[self.start]),
            frames=frames,
            listing=listing,
            positions=escape("|".join(self.positions), quote=True),
        )


SLIDER_HTML = """\
<div class="attncourse slider" id="{id}" data-positions="{positions}">
<style>
.attncourse.slider {{ max-width: 44rem; color: inherit; }}
.attncourse.slider label {{ display: flex; gap: .8em; align-items: center; margin: 0; }}
.attncourse.slider input {{ flex: 1; min-width: 8em; height: 2.2em; accent-color: #12807a; }}
.attncourse.slider .frame:not([hidden]) {{ display: flex; flex-wrap: wrap; gap: .6em 1.5em; }}
.attncourse.slider svg {{
  flex: 1 1 250px; max-width: 21rem; height: auto; fill: currentColor; font-size: 13px;
}}
.attncourse.slider output {{ display: block; min-height: 3.2em; }}
</style>
<label><span>{label}</span>
<input type="range" min="0" max="{last}" step="1" value="{start}" aria-valuetext="{text}"></label>
<output aria-live="polite">{readout}</output>
{frames}
<details><summary>All positions as text</summary><ul>{listing}</ul></details>
<script>
document.querySelectorAll("#{id}").forEach(figure => {{
  const input = figure.querySelector("input");
  const frames = figure.querySelectorAll(".frame");
  const positions = figure.dataset.positions.split("|");
  input.oninput = () => {{
    const place = Number(input.value);
    frames.forEach((frame, i) => {{ frame.hidden = i !== place; }});
    const label = input.labels[0].textContent.trim();
    input.setAttribute("aria-valuetext", label + " = " + positions[place]);
    figure.querySelector("output").textContent = frames[place].getAttribute("aria-label");
  }};
  input.oninput();  // a reloading browser may have kept the slider where it was
}});
</script>
</div>"""
