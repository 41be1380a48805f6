"""Reads what a run left behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import DataError, StateError
from common.records.cka import CkaRecord, read_cka
from common.records.conformal import ConformalRecord, PredictionSets, read_conformal
from common.records.rounds import RoundRecord, read_rounds
from common.records.run import CONFIG, RunRecord, read_run_record
from common.records.traffic import RoundTraffic, read_traffic
from common.wire.messages import PURPOSES


@dataclass(frozen=True)
class Run:
    """A run directory; what is long in it stays on disk until it is asked for."""

    path: Path
    config: RunRecord
    rounds: list[RoundRecord]
    calibrated: ConformalRecord
    """Prediction sets of the final model, and what they were calibrated on; empty before the end."""

    @property
    def conformal(self) -> tuple[PredictionSets, ...]:
        """Prediction sets of the final model; empty for a run that did not finish."""
        return self.calibrated.sets

    def cka(self) -> Iterator[CkaRecord]:
        """How alike the models of clients were, pair by pair and layer by layer, where they were compared."""
        return read_cka(self.path)

    def accuracy(self) -> float:
        """After the last evaluated round."""
        evaluated = [record.accuracy for record in self.rounds if record.accuracy is not None]
        if not evaluated:
            raise DataError(f"{self.path} has no evaluated round yet")
        return evaluated[-1]

    def accuracy_over(self, unit: str, bits_per_second: float = math.inf) -> tuple[list[float], list[float]]:
        """Accuracies over rounds, over megabytes of one client, or over seconds on links of some speed.

        Seconds are those of the slowest client's training in each round, and of one client's transfers.
        """
        xs, ys = [], []
        megabytes = seconds = 0.0
        for record in self.rounds:
            sent = record.bytes.total / record.updates
            megabytes += sent / 1e6
            seconds += record.seconds.train + 8 * sent / bits_per_second
            if record.accuracy is not None:
                xs.append({"round": float(record.round), "megabytes": megabytes, "seconds": seconds}[unit])
                ys.append(record.accuracy)
        return xs, ys

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round at or above an accuracy."""
        for record in self.rounds:
            if record.accuracy is not None and record.accuracy >= accuracy:
                return record.round
        return None

    def seconds_to(self, accuracy: float, bits_per_second: float) -> float | None:
        """Time to an accuracy on links of some speed."""
        pairs = zip(*self.accuracy_over("seconds", bits_per_second), strict=True)
        return next((seconds for seconds, reached in pairs if reached >= accuracy), None)

    def seconds_per_round(self) -> float:
        """From the opening of a round to its close."""
        return sum(record.seconds.round for record in self.rounds) / len(self.rounds)

    def exchanges(self) -> int:
        """Updates that entered x, over all rounds."""
        return sum(record.updates for record in self.rounds)

    def bytes_per_client_and_round(self) -> dict[str, float]:
        """Both directions together, by purpose, as the server counted them."""
        return {
            purpose: sum(
                counts.by_name().get(purpose, 0)
                for record in self.rounds
                for counts in (record.bytes.down, record.bytes.up)
            )
            / self.exchanges()
            for purpose in PURPOSES
        }

    def socket_per_client_and_round(self) -> float | None:
        """Both directions together, as the kernel counted them on TCP connections; None where it did not."""
        tables = [line.socket for line in self.traffic() if line.socket is not None]
        if len(tables) < len(self.rounds):
            return None
        total = sum(sum(counts.values()) for table in tables for counts in table.values())
        return total / self.exchanges()

    def traffic(self) -> Iterator[RoundTraffic]:
        """Bytes by client and tensor, round by round."""
        return read_traffic(self.path)

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
        for line in self.traffic():
            for client, directions in line.traffic.items():
                for direction, purposes in directions.items():
                    for purpose, tensors in purposes.items():
                        for tensor, (payload, encoded) in tensors.items():
                            yield client, direction, purpose, tensor, payload, encoded

    @property
    def method(self) -> str:
        """The algorithm, with what differs from its plain form."""
        derived = ["derived"] if self.config.variates == "derived" else []
        return " ".join([self.config.algorithm, *derived, *self.config.codec])


def read_run(run_dir: Path) -> Run:
    """A whole run."""
    try:
        config = read_run_record(run_dir)
    except StateError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise DataError(f"{run_dir} is not a run directory: it has no {CONFIG}") from error
        raise DataError(str(error)) from error
    rounds = read_rounds(run_dir)
    if not rounds:
        raise DataError(f"{run_dir} has no closed round yet")
    return Run(run_dir, config, rounds, read_conformal(run_dir))
