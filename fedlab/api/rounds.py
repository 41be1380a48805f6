"""The closed rounds of a run, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.records.rounds import RoundRecord
from fedlab.api.table import Table


@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """What most people want to know of a round."""

    round: int
    accuracy: float | None
    """Of the new x on the test set; None where it was not evaluated, as for the next."""
    loss: float | None
    train_loss: float
    updates: int
    """Updates that entered x."""
    down: int
    """Bytes to all clients together."""
    up: int
    """Bytes from all clients together."""
    model: int
    """Bytes of both directions that were parameters of the model."""
    control: int
    """Bytes of both directions that were control variates."""
    megabytes: float
    """Of one client, both directions, from the first round to this one."""
    seconds: float
    """From the opening of the round to its close."""


class Rounds(Table[RoundRow]):
    """All rounds of a run; `records` has everything that is known of them."""

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        self.records = tuple(records)
        rows, megabytes = [], 0.0
        for record in self.records:
            sent = record.bytes
            megabytes += sent.total / record.updates / 1e6
            by_purpose = [direction.by_name() for direction in (sent.down, sent.up)]
            rows.append(
                RoundRow(
                    round=record.round,
                    accuracy=record.accuracy,
                    loss=record.loss,
                    train_loss=record.train_loss,
                    updates=record.updates,
                    down=sum(by_purpose[0].values()),
                    up=sum(by_purpose[1].values()),
                    model=sum(each.get("model", 0) for each in by_purpose),
                    control=sum(each.get("control", 0) for each in by_purpose),
                    megabytes=megabytes,
                    seconds=record.seconds.round,
                )
            )
        super().__init__(RoundRow, rows)
