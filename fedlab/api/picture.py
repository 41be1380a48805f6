"""Curves of runs: accuracy and loss, by round and by bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedlab.api.rounds import Rounds


class Picture(Figure):
    """A figure that a notebook shows, whatever backend matplotlib has; nothing of pyplot's is touched."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png")
        return stream.getvalue()


def curves(runs: Mapping[str, Rounds]) -> Picture:
    """One line per run in each of four plots; rounds that were not evaluated have no point."""
    figure = Picture(figsize=(9.0, 5.6), layout="constrained")
    plots = figure.subplots(2, 2, sharex="col", sharey="row", squeeze=False)
    for row, what in enumerate(("accuracy", "loss")):
        for column, unit in enumerate(("round", "megabytes")):
            axes = plots[row][column]
            for name, rounds in runs.items():
                points = [
                    (x, y)
                    for x, y in zip(rounds.column(unit), rounds.column(what), strict=True)
                    if y is not None
                ]
                axes.plot(
                    [x for x, _ in points], [y for _, y in points], label=name, marker="o", markersize=3
                )
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    for axes, label in zip(plots[1], ("round", "MB per client, down and up"), strict=True):
        axes.set_xlabel(label)
    for axes, label in zip(plots[:, 0], ("accuracy", "loss"), strict=True):
        axes.set_ylabel(label)
    plots[0][0].yaxis.set_major_formatter(PercentFormatter(1.0))
    plots[1][0].xaxis.set_major_locator(MaxNLocator(integer=True))
    plots[0][1].legend(fontsize=8, frameon=False)
    return figure
