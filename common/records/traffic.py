"""traffic.jsonl and traffic.json: the bytes that a run has sent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import json_files
from common.records.base import Count, Positive, Record

TRAFFIC = "traffic.json"
TRAFFIC_LINES = "traffic.jsonl"
Traffic = dict[str, dict[str, dict[str, dict[str, tuple[Count, Count]]]]]
"""[payload, encoded] by client, direction, purpose, and tensor or, for `other`, what the message was."""
Socket = dict[str, dict[str, Count]]
"""By client and direction."""
_BEGINNING = re.compile(rb'{"format": \d{1,18}, "round": (\d{1,18}),')


@dataclass(frozen=True, kw_only=True)
class PurposeBytes:
    """Bytes in one direction by what they were for."""

    model: Count
    """Parameters of x or y_i."""
    buffer: Count
    """Buffers, such as statistics of normalisation."""
    control: Count
    """Control variates: c or c_i."""
    other: Count
    """Everything else in the messages: headers, envelopes of chunks, requests, replies."""
    frozen: Count | None = None
    """Tensors that stay as they are, on their way to clients that have not got them; missing if none were."""
    canary: Count | None = None
    """Tensors of the rehearsal before round 1; left out where there was none."""

    @property
    def total(self) -> int:
        """All purposes together."""
        return sum(self.by_name().values())

    def by_name(self) -> dict[str, int]:
        """Those purposes that have a count."""
        return {name: count for name, count in vars(self).items() if count is not None}


@dataclass(frozen=True, kw_only=True)
class DirectionBytes:
    """Bytes of all clients by direction and purpose."""

    down: PurposeBytes
    """From the server to clients."""
    up: PurposeBytes
    """From clients to the server."""

    @property
    def total(self) -> int:
        """Both directions together."""
        return self.down.total + self.up.total


@dataclass(frozen=True, kw_only=True)
class RoundTraffic(Record):
    """A line of traffic.jsonl: the bytes of one closed round in full detail."""

    round: Positive
    """Number of the round, from 1."""
    traffic: Traffic
    """[payload, encoded] by client, direction, purpose, and tensor or, for `other`, kind of message."""
    socket: Socket | None
    """On the TCP connections, by client and direction, as the kernel counted them; null where it cannot."""

    @classmethod
    def from_first(cls, value: Any) -> Any:
        """They were part of rounds.jsonl, and before that nowhere."""
        return {"traffic": {}, "socket": None} | value if isinstance(value, dict) else value


@dataclass(frozen=True, kw_only=True)
class OpenRoundBytes:
    """A round that was open when the server ended."""

    round: Positive
    """Number of the round, from 1."""
    bytes: DirectionBytes
    """What it had cost by then."""


@dataclass(frozen=True, kw_only=True)
class TrafficRecord(Record):
    """traffic.json: the bytes since the server started, inside and outside of rounds."""

    bytes: DirectionBytes
    """Of all messages."""
    outside: DirectionBytes
    """Of messages that belong to no round: Join, Status, late updates, the end."""
    open: OpenRoundBytes | None
    """The round that was open when the server ended; null if none was."""
    socket: Socket | None
    """On the TCP connections, by client and direction; null where the kernel cannot tell."""
    traffic: Traffic
    """[payload, encoded] as in traffic.jsonl; calls of nobody who has a seat are under the empty name."""


def read_traffic(run_dir: Path) -> Iterator[RoundTraffic]:
    """The bytes of the closed rounds, one after the other; a run of format 1 has them in rounds.jsonl."""
    path = run_dir / TRAFFIC_LINES
    return json_files.read_lines(path if path.exists() else run_dir / "rounds.jsonl", RoundTraffic)


def round_of_line(line: bytes) -> int | None:
    """The round of a line by its beginning; None if it, or the end, is not that of a record."""
    begins = _BEGINNING.match(line)
    return int(begins[1]) if begins and line.endswith(b"}\n") else None


def cut_lines(path: Path, last: int) -> None:
    """Cuts a file of rounds off behind one of them. Lines may be long; only beginnings are looked at."""
    end = 0
    if not path.exists():
        return
    with path.open("rb+") as file:
        for line in file:
            begins = _BEGINNING.match(line)
            if not line.endswith(b"\n") or (begins and int(begins[1]) > last):
                break
            end += len(line)
        file.truncate(end)
        os.fsync(file.fileno())
