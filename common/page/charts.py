"""Pictures as data: the page draws them, and has the same numbers as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

Numbers = Sequence[float]
Series = Mapping[str, tuple[Numbers, Sequence[float | None]]]
"""Name -> x and y."""
MAX_ROWS, MAX_COLUMNS = 400, 100
"""Of the table of a picture."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One way to look at curves."""

    name: str
    x: str
    y: str
    series: Series
    percent: bool = False
    """Whether y is a share, shown in per cent."""
    log: bool = False
    bands: Mapping[str, tuple[Numbers, Numbers]] = field(default_factory=dict)
    """Name -> lowest and highest y at every x of that line, where it stands for several."""
    points: bool = False
    """Whether points are not joined by a line."""

    def value(self, name: str, k: int) -> str:
        """The k-th number of a line as text, with what it stands for."""
        y = self.series[name][1][k]
        if y is None:
            return "-"
        if name not in self.bands:
            return f"{y:.6g}"
        low, high = (edge[k] for edge in self.bands[name])
        return f"{y:.6g} ({low:.6g} to {high:.6g})"


@dataclass(frozen=True, kw_only=True)
class Curves:
    """One line per name; with several views, the reader chooses."""

    title: str
    views: Sequence[View]
    kind: Literal["curves"] = "curves"

    def document(self) -> dict[str, object]:
        """What the page draws from; names on their own, since a script has another order for keys."""
        return asdict(self) | {
            "names": list(dict.fromkeys(name for view in self.views for name in view.series))
        }

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The numbers: headings and rows."""
        found = [
            [name, view.x, f"{x:g}", view.y, view.value(name, k)]
            for view in self.views
            for name, (xs, _) in view.series.items()
            for k, x in enumerate(xs)
        ]
        return ["line", "over", "at", "of", "value"], found


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One bar of bytes per name, a colour per purpose."""

    title: str
    parts: Mapping[str, Mapping[str, float]]
    faint: Sequence[str] = ()
    """Names of bars that stand for what did not happen."""
    horizontal: bool = True
    kind: Literal["bars"] = "bars"

    def document(self) -> dict[str, object]:
        """What the page draws from."""
        return asdict(self) | {"names": list(self.parts), "purposes": self._purposes()}

    def _purposes(self) -> list[str]:
        """Those that there are, the largest first."""
        totals: Counter[str] = Counter()
        for part in self.parts.values():
            totals.update(part)
        return [purpose for purpose, _ in totals.most_common()]

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The numbers: headings and rows."""
        purposes = self._purposes()
        found = [
            [name, *(f"{part.get(p, 0):,.0f}" for p in purposes), f"{sum(part.values()):,.0f}"]
            for name, part in self.parts.items()
        ]
        return ["", *purposes, "total"], found


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A row per name, a column per round or class."""

    title: str
    x: str
    rows_named: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    label: str
    top: float | None = None
    """Where the scale ends that begins at 0; None takes it from the values."""
    marked: Sequence[int] = ()
    """Rows that are in something."""
    mark: str = ""
    """What they are in."""
    kind: Literal["heat"] = "heat"

    def document(self) -> dict[str, object]:
        """What the page draws from."""
        return asdict(self)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The numbers: headings and rows; of very many columns one in so many."""
        step = -(-len(self.columns) // MAX_COLUMNS) or 1
        found = [
            [f"{name}{f' ({self.mark})' if k in self.marked else ''}", *map(_number, line[::step])]
            for k, (name, line) in enumerate(zip(self.rows_named, self.values, strict=True))
        ]
        return ["" if step == 1 else f"one column in {step}", *self.columns[::step]], found


Chart = Curves | Bars | HeatMap


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
