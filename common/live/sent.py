"""What traffic.jsonl adds up to by client and tensor, and what other methods would have sent."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import json_files
from common.live.lines import GrowingFile
from common.records import form
from common.records.traffic import TRAFFIC_LINES, DirectionBytes, PurposeBytes, RoundTraffic

AT_ONCE = 1 << 19
"""Bytes of traffic.jsonl that a look reads, at the most: with many clients its lines are long."""


class TrafficSums:
    """Adds up the lines of traffic.jsonl, some at each look."""

    def __init__(self, run_dir: Path) -> None:
        self._file = GrowingFile(run_dir / TRAFFIC_LINES)
        self.by_tensor: Counter[tuple[str, str, str]] = Counter()
        """Encoded bytes by direction, purpose, and tensor or kind of message."""
        self.by_client: Counter[tuple[str, str]] = Counter()
        """Encoded bytes by client and direction."""
        self.on_sockets: Counter[str] = Counter()
        """Bytes on the TCP connections by direction, where the kernel can tell."""
        self.rounds = 0
        """Rounds that are in these sums."""

    def look(self) -> bool:
        """Adds what is new, as far as one look goes; whether there was anything."""
        found = self._file.look(AT_ONCE)
        if found.anew:
            self.by_tensor.clear()
            self.by_client.clear()
            self.on_sockets.clear()
            self.rounds = 0
        for line in found.lines:
            try:
                self._add(json.loads(line))
            except (ValueError, TypeError, AttributeError, KeyError):
                # Says what is wrong with it: reading a line by its form takes five times as long.
                self._add(form.plain(json_files.parsed(line, RoundTraffic, str(self._file.path))))
        return found.anew or bool(found.lines)

    def _add(self, record: Any) -> None:
        by_tensor, by_client = Counter[tuple[str, str, str]](), Counter[tuple[str, str]]()
        on_sockets = Counter[str]()
        for counts in (record["socket"] or {}).values():
            on_sockets.update(counts)
        for client, directions in record["traffic"].items():
            for direction, purposes in directions.items():
                for purpose, tensors in purposes.items():
                    for name, (_, encoded) in tensors.items():
                        if type(encoded) is not int:
                            raise TypeError
                        by_tensor[direction, purpose, name] += encoded
                        by_client[client, direction] += encoded
        self.by_tensor.update(by_tensor)
        self.by_client.update(by_client)
        self.on_sockets.update(on_sockets)
        self.rounds += 1


@dataclass(frozen=True)
class Yardsticks:
    """Bytes of the same rounds under other methods, tensors coded as they were."""

    fedavg: int
    """Without control variates."""
    scaffold: int
    """With a control variate for every parameter, each way, as published."""


def yardsticks(sent: DirectionBytes) -> Yardsticks:
    """What FedAvg and SCAFFOLD would have sent where this was sent."""
    ways = (sent.down, sent.up)
    return Yardsticks(
        fedavg=sum(_without_control(way) for way in ways),
        scaffold=sum(_without_control(way) + way.model for way in ways),
    )


def _without_control(way: PurposeBytes) -> int:
    return way.total - way.control
