"""Which runs a sweep needs: for the model that all start from, for the search, for the report."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedlab.engine.cells import Cell
from fedlab.sweep.form import Choices, Point, Settings, Sweep, Value

FROM_SETTINGS = ("model", "width", "image_size")
"""What the first run takes from [settings], so that its model fits the others."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run with its place in the tables."""

    method: str
    point: Point
    tried: Settings
    """Values of the settings that are searched."""
    seed: int
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs of a sweep with the data of some folder, from the model in some file."""

    sweep: Sweep
    data_dir: str
    init: Path | None = None
    chosen: dict[tuple[str, str], Settings] = field(default_factory=dict)
    """What the search has found, by method and name of a point; until then the first values count."""

    def points(self) -> Sequence[Point]:
        """Every combination of the grid; one without settings where there is none."""
        return combinations(self.sweep.grid)

    def first(self) -> Cell | None:
        """The run whose model all others start from: one client that has everything."""
        if self.sweep.prepare is None:
            return None
        taken = {name: v for name, v in self.sweep.settings.items() if name in FROM_SETTINGS}
        own = {"seed": 0} | taken | self.sweep.prepare
        return Cell.of(_ordered(own | {"algorithm": "fedavg", "num_clients": 1, "data_dir": self.data_dir}))

    def search(self) -> Iterator[PlannedRun]:
        """Every combination of searched values, for every method and point."""
        of = self.sweep.search
        shorter: Settings = {} if of.rounds is None else {"rounds": of.rounds}
        for method, point in self._columns():
            if choices := self.sweep.searched(method):
                for tried, seed in itertools.product(
                    combinations(choices), self.sweep.report.all_seeds[: of.seeds]
                ):
                    settings = self.settings(method, point, tried, seed) | shorter
                    yield _planned(method, point, tried, seed, Cell.of(_ordered(settings)))

    def report(self) -> Iterator[PlannedRun]:
        """Every method at every point with every seed, with what the search has found."""
        for method, point in self._columns():
            for seed in self.sweep.report.all_seeds:
                tried = self.choice(method, point)
                settings = _ordered(self.settings(method, point, tried, seed))
                yield _planned(method, point, tried, seed, Cell.of(settings, self.sweep.stop_at))

    def choice(self, method: str, point: Point) -> Settings:
        """The values of searched settings that a method has at a point."""
        tried = combinations(self.sweep.searched(method))
        return self.chosen.get((method, named(point)), tried[0])

    def settings(self, method: str, point: Point, tried: Settings, seed: int) -> Settings:
        """The settings of one run; only [settings] are overridden by the others."""
        found = {**self.sweep.settings, **point, **self.sweep.methods[method].settings, **tried}
        if self.init is not None:
            found |= {"init": str(self.init), "init_missing": "keep"}
        return found | {"seed": seed, "data_dir": self.data_dir}

    def with_init(self, init: Path) -> Plan:
        """The same from a model that is there."""
        return replace(self, init=init)

    def _columns(self) -> Iterator[tuple[str, Point]]:
        return ((method, point) for point in self.points() for method in self.sweep.methods)


def combinations(choices: Choices) -> list[Settings]:
    """Every combination of values, one for each setting."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def named(point: Point) -> str:
    """A combination in words: the heading of its column."""
    return ", ".join(f"{name} {shown(value)}" for name, value in point.items())


def shown(value: Value) -> str:
    """A value in words."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _ordered(settings: Settings) -> Settings:
    """By name, so that another order in the file is no other run."""
    return dict(sorted(settings.items()))


def _planned(method: str, point: Point, tried: Settings, seed: int, cell: Cell) -> PlannedRun:
    return PlannedRun(method=method, point=point, tried=tried, seed=seed, cell=cell)
