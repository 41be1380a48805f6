"""live.json and events.jsonl: what a run is doing now, and what has happened, for those who watch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common import json_files
from common.records.base import Count, Positive, Record

LIVE = "live.json"
EVENTS = "events.jsonl"
NOT_CONNECTED = "not connected"
"""State of a client whose connection is gone, a few seconds before the server counts it as not heard of."""
ABSENT_STATES = frozenset({"left", "stopped", "gone", "not heard of", NOT_CONNECTED})
"""States of clients that are not there. The others are waiting, preparing, training, held, uploading and
answered."""


@dataclass(frozen=True, kw_only=True)
class LiveProcess:
    """The process that writes a run directory, so that others can see whether it still lives."""

    pid: Positive
    """Process id."""
    host: str
    """Name of the machine or container that it runs on; the id means nothing elsewhere."""
    ticks: Count | None = None
    """When it started, in clock ticks since the machine did; a later process of the same id has another."""


@dataclass(frozen=True, kw_only=True)
class LiveUpload:
    """How far an update has come."""

    received: Count
    """Bytes that are here."""
    total: Count
    """Bytes that it has."""
    speed: float | None = None
    """Bytes per second since it began; left out where it was over too soon to tell."""
    under_way: bool
    """False for the last one of a client, once it is here or broke off."""


@dataclass(frozen=True, kw_only=True)
class LiveClient:
    """A client, as the server sees it."""

    name: str
    """As it joined."""
    index: Count | None = None
    """Its seat; left out while it waits for one."""
    state: str
    """waiting, preparing, training, held (its site has yet to decide), uploading or answered; or not there:
    not connected, not heard of, stopped, left, gone (its lease has run out)."""
    heard_at: float | None = None
    """When it was last heard of, in seconds since 1970; left out while a call of it is open."""
    examples: Count = 0
    """Examples that it trains on."""
    counted_round: Count = 0
    """The last round that its c_i counts from; 0 for none."""
    loss: float | None = None
    """Mean training loss of its last update, if one came to this process."""
    loss_round: Count = 0
    """The round of that update."""
    upload: LiveUpload | None = None
    """Its last update, if one came to this process."""
    reason: str = ""
    """Why it has left, or is not in the open round."""
    rule: str = ""
    """The rule of its site because of which it has left, or waits."""


@dataclass(frozen=True, kw_only=True)
class LiveCertificate:
    """The certificate that the server shows."""

    path: str
    """Where it is."""
    expires: float
    """Until when it is valid, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class LiveRecord(Record):
    """live.json: what a run is doing now."""

    run_id: str
    """As in config.json, which is not there before all seats are taken."""
    algorithm: str
    """As in config.json."""
    model: str
    """As in config.json."""
    dataset: str
    """As in config.json."""
    process: LiveProcess
    """Who writes this."""
    address: str = ""
    """Where clients reach the server; empty in a simulation."""
    started: float
    """When this process began, in seconds since 1970."""
    ended: float | None = None
    """When it ended, in the same; left out while it runs, and where it was killed."""
    outcome: str = ""
    """How it ended: finished, stopped by a signal, or the error."""
    phase: str
    """preparing, waiting (for clients), training or finished."""
    since: float
    """When the phase began or, while it trains, the open round; in seconds since 1970."""
    round: Count
    """The open round, or the last one; 0 before the first."""
    rounds: Positive
    """All rounds of the run."""
    drawn: Count
    """Clients of that round."""
    answered: Count
    """Of these, those that it does not wait for any more."""
    num_clients: Positive
    """Seats."""
    needed: Positive
    """Clients with which the run starts."""
    clients: tuple[LiveClient, ...]
    """Those who wait for a seat, and then by index those who have one."""
    certificate: LiveCertificate | None = None
    """With TLS."""


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    """A line of events.jsonl. Every kind of event has further keys, which are not listed here."""

    time: str
    """Universal time as in 2026-01-31T12:00:00.000Z."""
    level: str
    """detail, notice or warning."""
    event: str
    """What happened, for example round_closed."""
    run: str = ""
    """Id of the run; left out like the next three where there is none."""
    round: Count = 0
    """The round it is about."""
    client: str = ""
    """Name of the client it is about."""
    reason: str = ""
    """Why."""
    text: str
    """One line for people."""


def read_live(run_dir: Path) -> LiveRecord | None:
    """live.json of a run directory; None in one that has none, as those of earlier releases."""
    path = run_dir / LIVE
    return json_files.read(path, LiveRecord) if path.exists() else None
