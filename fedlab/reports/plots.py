"""Pictures, as matplotlib figures that need no screen."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
PURPOSES = {
    "model": "#4878a8",
    "buffer": "#9bb8d3",
    "control": "#d1703c",
    "frozen": "#7fa87f",
    "other": "#999999",
}


def _axes(title: str, x: str, y: str, size: tuple[float, float] = (6.4, 3.8)) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def curves(title: str, x: str, y: str, series: Series, *, percent: bool = False, log: bool = False) -> Figure:
    """One line per name."""
    figure, axes = _axes(title, x, y)
    for label, (xs, ys) in series.items():
        axes.plot(xs, [100 * v for v in ys] if percent else ys, label=label, marker="o", markersize=2.5)
    axes.grid(alpha=0.25)
    if all(float(x).is_integer() for xs, _ in series.values() for x in xs):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log:
        axes.set_yscale("log")
    if series:
        axes.legend(fontsize=8, frameon=False)
    return figure


def stacked_bars(title: str, y: str, parts: Mapping[str, Mapping[str, float]]) -> Figure:
    """One bar per name, one colour per purpose."""
    figure, axes = _axes(title, "", y)
    names = list(parts)
    bottom = [0.0] * len(names)
    for purpose, colour in PURPOSES.items():
        heights = [parts[name].get(purpose, 0.0) for name in names]
        if any(heights):
            axes.bar(names, heights, bottom=bottom, label=purpose, color=colour, width=0.6)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend(fontsize=8, frameon=False)
    return figure


def heat_map(
    title: str, x: str, rows: Sequence[str], values: Sequence[Sequence[float]], label: str, first: int = 0
) -> Figure:
    """A row per name, a column per round or class; `first` is the number of the first column."""
    figure, axes = _axes(title, x, "", (6.4, max(1.6, 0.28 * len(rows) + 1.0)))
    sides = (first - 0.5, first + len(values[0]) - 0.5, len(rows) - 0.5, -0.5)
    image = axes.imshow(
        values, aspect="auto", cmap=colormaps["viridis"], interpolation="nearest", extent=sides
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    figure.colorbar(image, ax=axes, label=label, shrink=0.9)
    return figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """Writes NAME.png and NAME.svg."""
    figure.savefig(folder / f"{name}.png", dpi=130)
    _save_svg(figure, folder / f"{name}.svg")


def _save_svg(figure: Figure, to: Path | io.StringIO) -> None:
    """The same figure gives the same bytes: ids are drawn from its content, and there is no date."""
    with rc_context({"svg.hashsalt": "fedpvr"}):
        figure.savefig(to, format="svg", metadata={"Date": None})


def inline_svg(figure: Figure) -> str:
    """The figure as an SVG element for a page; ids are kept apart from those of other figures."""
    stream = io.StringIO()
    _save_svg(figure, stream)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    prefix = f"f{zlib.crc32(svg.encode()):08x}-"
    svg = re.sub(r'(id="|href="#|url\(#)', lambda found: found[1] + prefix, svg)
    return svg.replace("<svg ", '<svg role="img" ', 1)
