"""Pictures of charts as files, by matplotlib, which needs no screen."""

from __future__ import annotations

from pathlib import Path

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from common.page.charts import Curves, HeatMap

Drawn = Curves | HeatMap
MAX_COLUMNS = 20
"""Of a heat map that are named."""


def draw(chart: Drawn) -> Figure:
    """The picture; of curves, the first view."""
    return _curves(chart) if isinstance(chart, Curves) else _heat_map(chart)


def save(chart: Drawn, folder: Path, name: str) -> None:
    """Writes NAME.png and NAME.svg. The same chart gives the same bytes: no date, ids from the content."""
    figure = draw(chart)
    figure.savefig(folder / f"{name}.png", dpi=130)
    with rc_context({"svg.hashsalt": "fedpvr"}):
        figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None})


def _axes(title: str, x: str, y: str, size: tuple[float, float] = (6.4, 3.8)) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _curves(chart: Curves) -> Figure:
    view = chart.views[0]
    figure, axes = _axes(chart.title, view.x, f"{view.y} in per cent" if view.percent else view.y)
    for label, (xs, ys) in view.series.items():
        unit = 100 if view.percent else 1
        known = [(x, unit * y) for x, y in zip(xs, ys, strict=True) if y is not None]
        (drawn,) = axes.plot(
            [x for x, _ in known],
            [y for _, y in known],
            linestyle="none" if view.points else "-",
            label=label,
            marker="o",
            markersize=2.5,
        )
        if label in view.bands:
            low, high = ([unit * y for y in edge] for edge in view.bands[label])
            axes.fill_between(xs, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
    axes.grid(alpha=0.25)
    if all(float(x).is_integer() for xs, _ in view.series.values() for x in xs):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if view.log:
        axes.set_yscale("log")
    if view.series:
        axes.legend(fontsize=8, frameon=False)
    return figure


def _heat_map(chart: HeatMap) -> Figure:
    names = chart.rows_named
    figure, axes = _axes(chart.title, chart.x, "", (6.4, max(1.6, 0.28 * len(names) + 1.0)))
    values = [[float("nan") if value is None else value for value in row] for row in chart.values]
    image = axes.imshow(values, aspect="auto", cmap=colormaps["viridis"], interpolation="nearest")
    step = -(-len(chart.columns) // MAX_COLUMNS)
    axes.set_xticks(range(0, len(chart.columns), step), chart.columns[::step])
    axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.colorbar(image, ax=axes, label=chart.label, shrink=0.9)
    return figure
