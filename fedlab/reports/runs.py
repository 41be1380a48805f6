"""Reads what a run left behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import json_files
from common.errors import DataError, StateError
from common.records.rounds import read_rounds
from common.wire.messages import PURPOSES

_CONFIG = {
    "algorithm": str,
    "variates": (str, ...),
    "codec": ([str], ...),
    "clients": [{"name": str, "classes": ([int], None)}],
}
_CONFORMAL = [{"kappa": float, "coverage": float, "mean_size": float}]


@dataclass(frozen=True)
class Run:
    """A run directory in memory."""

    config: dict[str, Any]
    rounds: list[dict[str, Any]]
    conformal: list[dict[str, float]]
    """Prediction sets of the final model; empty for a run that did not finish."""

    def accuracy(self) -> float:
        """After the last evaluated round."""
        evaluated = [record["accuracy"] for record in self.rounds if record["accuracy"] is not None]
        if not evaluated:
            raise DataError("the run has no evaluated round yet")
        return float(evaluated[-1])

    def accuracy_over(self, unit: str, bits_per_second: float = math.inf) -> tuple[list[float], list[float]]:
        """Accuracies over rounds, over megabytes of one client, or over seconds on links of some speed.

        Seconds are those of the slowest client's training in each round, and of one client's transfers.
        """
        xs, ys = [], []
        megabytes = seconds = 0.0
        for record in self.rounds:
            sent = sum(sum(counts.values()) for counts in record["bytes"].values()) / record["updates"]
            megabytes += sent / 1e6
            seconds += record["seconds"]["train"] + 8 * sent / bits_per_second
            if record["accuracy"] is not None:
                xs.append({"round": float(record["round"]), "megabytes": megabytes, "seconds": seconds}[unit])
                ys.append(float(record["accuracy"]))
        return xs, ys

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round at or above an accuracy."""
        for record in self.rounds:
            if record["accuracy"] is not None and record["accuracy"] >= accuracy:
                return int(record["round"])
        return None

    def seconds_to(self, accuracy: float, bits_per_second: float) -> float | None:
        """Time to an accuracy on links of some speed."""
        pairs = zip(*self.accuracy_over("seconds", bits_per_second), strict=True)
        return next((seconds for seconds, reached in pairs if reached >= accuracy), None)

    def socket_per_client_and_round(self) -> float | None:
        """Both directions together, as the kernel counted them on TCP connections; None where it did not."""
        tables = [table for record in self.rounds if (table := record.get("socket")) is not None]
        if len(tables) < len(self.rounds):
            return None
        total = sum(sum(counts.values()) for table in tables for counts in table.values())
        return float(total / sum(record["updates"] for record in self.rounds))

    def by_client(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Payload and encoded bytes by client and direction, over all rounds."""
        table: dict[str, dict[str, tuple[int, int]]] = {}
        for client, direction, _, _, payload, encoded in self._entries():
            before = table.setdefault(client, {}).get(direction, (0, 0))
            table[client][direction] = (before[0] + payload, before[1] + encoded)
        return table

    def by_tensor(self) -> dict[tuple[str, str, str], tuple[int, int]]:
        """Payload and encoded bytes by direction, purpose and tensor, over all rounds and clients."""
        table: dict[tuple[str, str, str], tuple[int, int]] = {}
        for _, direction, purpose, tensor, payload, encoded in self._entries():
            before = table.get((direction, purpose, tensor), (0, 0))
            table[direction, purpose, tensor] = (before[0] + payload, before[1] + encoded)
        return table

    def _entries(self) -> Iterator[tuple[str, str, str, str, int, int]]:
        for record in self.rounds:
            for client, directions in record.get("traffic", {}).items():
                for direction, purposes in directions.items():
                    for purpose, tensors in purposes.items():
                        for tensor, (payload, encoded) in tensors.items():
                            yield client, direction, purpose, tensor, payload, encoded

    @property
    def method(self) -> str:
        """The algorithm, with what differs from its plain form."""
        config = self.config
        derived = ["derived"] if config.get("variates") == "derived" else []
        return " ".join([str(config["algorithm"]), *derived, *config.get("codec", [])])

    def bytes_per_client_and_round(self) -> dict[str, float]:
        """Both directions together, by purpose, as the server counted them."""
        exchanges = sum(record["updates"] for record in self.rounds)
        return {
            purpose: sum(r["bytes"][d][purpose] for r in self.rounds for d in ("down", "up")) / exchanges
            for purpose in PURPOSES
        }


def read_run(run_dir: Path) -> Run:
    """A whole run."""
    try:
        config = json_files.read(run_dir / "config.json")
    except StateError as error:
        raise DataError(f"{run_dir} is not a run directory: {error}") from error
    if not json_files.has_form(config, _CONFIG):
        raise DataError(f"{run_dir} is not a run directory: its config.json is of something else")
    rounds = read_rounds(run_dir)
    if not rounds:
        raise DataError(f"{run_dir} has no closed round yet")
    path = run_dir / "conformal.json"
    conformal = json_files.read(path) if path.exists() else []
    if not json_files.has_form(conformal, _CONFORMAL):
        raise DataError(f"{path} does not hold the prediction sets of a run")
    return Run(config, rounds, conformal)
