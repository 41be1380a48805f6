"""Data sets that cells need, fetched once before they start: all at once they would write the same files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.data import published
from common.errors import DataError
from fedlab.engine.cells import Cell
from fedserver import presets
from fedserver.config import RunConfig


def fetch(cells: Sequence[Cell]) -> dict[Cell, str]:
    """Has the published data sets of cells on disk; returns the cells whose data cannot be had, and why."""
    failures: dict[tuple[str, str], str] = {}
    wanted = {cell: _data_of(cell) for cell in cells}
    for name, data_dir in sorted(set(wanted.values())):
        if name in published.PUBLISHED:
            try:
                for split in ("train", "test"):
                    published.read(name, split, Path(data_dir))
            except DataError as error:
                failures[name, data_dir] = str(error)
    return {cell: failures[data] for cell, data in wanted.items() if data in failures}


def _data_of(cell: Cell) -> tuple[str, str]:
    """Name and folder of a cell's data set."""
    flags = dict(cell.flags)
    usual = RunConfig.dataset
    if "--preset" in flags:
        settings = presets.settings(flags["--preset"], flags.get("--algorithm", RunConfig.algorithm))
        usual = str(settings["dataset"])
    return flags.get("--dataset", usual), flags.get("--data-dir", RunConfig.data_dir)
