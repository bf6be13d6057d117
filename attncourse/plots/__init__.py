"""Pictures the chapters share. Not imported by `import attncourse`: it needs matplotlib."""

from attncourse.plots.figures import ORANGE, STYLE, TEAL, dependency_map, heat_map, share_bars
from attncourse.plots.views import (
    AttentionView,
    Slider,
    Table,
    View,
    bars_svg,
    head_view,
    lines_key,
    lines_svg,
    marked_words,
)

__all__ = [
    "ORANGE",
    "STYLE",
    "TEAL",
    "AttentionView",
    "Slider",
    "Table",
    "View",
    "bars_svg",
    "dependency_map",
    "head_view",
    "heat_map",
    "lines_key",
    "lines_svg",
    "marked_words",
    "share_bars",
]
