"""Reads what a run left behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import DataError


@dataclass(frozen=True)
class Run:
    """A run directory in memory."""

    config: dict[str, Any]
    rounds: list[dict[str, Any]]

    def accuracy(self) -> float:
        """After the last evaluated round."""
        evaluated = [record["accuracy"] for record in self.rounds if record["accuracy"] is not None]
        if not evaluated:
            raise DataError("the run has no evaluated round yet")
        return float(evaluated[-1])

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round at or above an accuracy."""
        for record in self.rounds:
            if record["accuracy"] is not None and record["accuracy"] >= accuracy:
                return int(record["round"])
        return None

    def bytes_per_client_and_round(self) -> dict[str, float]:
        """Both directions together, by purpose, as the server counted them."""
        exchanges = sum(record["updates"] for record in self.rounds)
        purposes = self.rounds[0]["bytes"]["down"]
        return {
            purpose: sum(r["bytes"][d][purpose] for r in self.rounds for d in ("down", "up")) / exchanges
            for purpose in purposes
        }


def read_rounds(run_dir: Path) -> list[dict[str, Any]]:
    """The closed rounds so far; a line still being written is left for later."""
    try:
        lines = (run_dir / "rounds.jsonl").read_text().split("\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[:-1]]


def read_run(run_dir: Path) -> Run:
    """A whole run."""
    try:
        config = json.loads((run_dir / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{run_dir} is not a run directory: {error}") from error
    return Run(config, read_rounds(run_dir))
