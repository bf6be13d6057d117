"""Figures by matplotlib: one style, a table of weights, a dependency map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attncourse import extras

if TYPE_CHECKING:
    from matplotlib.axes import Axes

plt = extras.load("notebook", "matplotlib.pyplot")

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
    "axes.titlesize": "medium",
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
    q, k = table.shape
    if ax is None:
        height = 1.2 + 0.5 * q if max(q, k) <= 8 else 1.8 + (0.3 if q <= 12 else 0.22) * q
        _, ax = plt.subplots(figsize=(min(4.8, 1.6 + 0.8 * k), height))
    image = ax.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    _name_rows_and_columns(ax, queries, keys, "query", "key", rotate=k > 6)
    if title:
        ax.set_title(title, y=-0.05, va="top")
    if k <= 8:
        for (row, column), weight in np.ndenumerate(table):
            shade = "white" if weight > 0.715 else "black"  # at least 4.5:1 either way
            ax.text(column, row, f"{weight:.2f}", ha="center", va="center", color=shade)
    else:
        ax.figure.colorbar(image, ax=ax, label="weight", location="bottom", aspect=40)
    return ax


def _name_rows_and_columns(
    ax: Axes, rows: Sequence[str], columns: Sequence[str], row: str, column: str, rotate: bool
) -> None:
    """Tokens beside the rows and above the columns, in letters that fit."""
    box = ax.get_window_extent()
    points = 72 / ax.figure.dpi
    high, wide = box.height * points / len(rows), box.width * points / len(columns)
    size = plt.rcParams["font.size"]
    above = {"fontsize": size}
    if rotate and wide > 1.4 * size:
        above |= {"rotation": 60, "rotation_mode": "anchor", "ha": "left"}
    elif rotate:
        above = {"fontsize": min(size, 0.85 * wide), "rotation": 90}
    ax.set_xticks(range(len(columns)), columns, **above)
    ax.set_yticks(range(len(rows)), rows, fontsize=min(size, 0.85 * high))
    ax.xaxis.set_ticks_position("top")
    ax.xaxis.set_label_position("top")
    ax.tick_params(length=0)
    ax.set_xlabel(column, labelpad=8)
    ax.set_ylabel(row, labelpad=8)
    ax.spines[:].set_visible(False)


def dependency_map(
    depends: Tensor, tokens: Sequence[str], title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw which outputs (rows) depend on which inputs (columns): a square for yes, a dot for no.

    Args:
        depends: (n n) boolean, as `masking.dependency_map` returns it.
        tokens: n names.
        title: what distinguishes this map from its neighbors.
        ax: where to draw; a new figure if None.

    Returns:
        The axes that were drawn on.
    """
    n = len(tokens)
    if depends.shape != (n, n) or depends.dtype != torch.bool:
        raise ValueError(
            f"depends must be boolean (n n) with n = {n}, one row and one column a token; "
            f"got {depends.dtype} {tuple(depends.shape)}"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(min(4.8, 1.6 + 0.45 * n), min(4.6, 1.2 + 0.4 * n)))
    for row, column in depends.nonzero().tolist():
        ax.add_patch(plt.Rectangle((column - 0.4, row - 0.4), 0.8, 0.8, color=TEAL))
    rows, columns = (~depends.cpu()).nonzero(as_tuple=True)
    ax.scatter(columns, rows, s=5, color="#767676")
    ax.set(xlim=(-0.6, n - 0.4), ylim=(n - 0.4, -0.6))
    rotate = n * max(map(len, tokens)) > 28
    _name_rows_and_columns(ax, tokens, tokens, "output", "input", rotate)
    if title:
        ax.set_title(title, y=-0.05, va="top")
    return ax


def share_bars(
    names: Sequence[str],
    counts: Sequence[int],
    of: Sequence[int],
    intervals: Sequence[tuple[float, float]],
    ax: Axes | None = None,
) -> Axes:
    """Draw shares as bars, the first on top, each with its interval and "3 of 20" beside it.

    Args:
        names: n names, written beside the bars.
        counts: n.
        of: n, what each count is a share of.
        intervals: n, each from where to where, as shares.
        ax: where to draw; a new figure if None.

    Returns:
        The axes that were drawn on.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(4.8, 0.9 + 0.3 * len(names)))
    rows = zip(counts, of, intervals, names, strict=True)
    for place, (count, all_, (low, high), _) in enumerate(rows):
        ax.barh(place, count / all_, color=TEAL, height=0.66, alpha=0.75)
        ax.plot([low, high], [place, place], "k|-", lw=1.3, ms=6)
        ax.text(high + 0.02, place, f"{count} of {all_}", va="center", fontsize=9.5)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.2), xticks=[0, 0.25, 0.5, 0.75, 1])
    return ax
