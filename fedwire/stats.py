"""What the bytes of a capture were for, and whether a run's own ledger says the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from common import json_files
from common.errors import DataError, StateError
from common.records.base import Positive, Record
from common.records.rounds import ROUNDS
from common.records.traffic import TRAFFIC, DirectionBytes, Traffic, TrafficRecord
from common.tensors.layout import Purpose
from common.wire.byte_counts import ByteCounts
from common.wire.messages import CANARY, DIRECTIONS
from fedwire.source import Capture
from fedwire.transfers import Transfers


@dataclass(frozen=True)
class Sizes:
    """Bytes of some messages: those of tensors, and all of them."""

    payload: int
    encoded: int


@dataclass(frozen=True)
class TensorSizes:
    """Bytes of a tensor, or of a kind of message, over all rounds and clients."""

    direction: str
    purpose: str
    tensor: str
    payload: int
    encoded: int


@dataclass(frozen=True)
class Ratios:
    """Tensor bytes against what others would have cost; None where a capture has no transfers."""

    fedavg: float | None
    scaffold: float | None


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What the bytes of a capture were for."""

    messages: int
    bytes: DirectionBytes
    ratios: Ratios
    rounds: dict[int, DirectionBytes]
    """Round 0 is what belongs to none."""
    clients: dict[str, dict[str, Sizes]]
    """By client and direction."""
    tensors: tuple[TensorSizes, ...]
    traffic: Traffic
    problems: tuple[str, ...] = ()
    """What is wrong with the capture itself."""
    differences: tuple[str, ...] | None = None
    """Where a run's ledger says something else; None if it was not asked."""


@dataclass(frozen=True, kw_only=True)
class _RoundBytes(Record):
    """What of a line of rounds.jsonl is compared."""

    round: Positive
    bytes: DirectionBytes


def statistics(capture: Capture) -> Statistics:
    """Bytes by round, client, purpose and tensor."""
    rounds: defaultdict[int, ByteCounts] = defaultdict(ByteCounts)
    for message in capture.messages:
        counts = rounds[message.round]
        counts.add(message.client, message.rpc, message.up, message.content, message.size)
    total = ByteCounts()
    for counts in rounds.values():
        total.update(counts)
    clients: dict[str, dict[str, Sizes]] = {}
    for (client, direction), sizes in total.by_client().items():
        clients.setdefault(client, {})[direction] = Sizes(*sizes)
    return Statistics(
        messages=len(capture.messages),
        bytes=total.by_purpose(),
        ratios=_ratios(capture, total),
        rounds={r: rounds[r].by_purpose() for r in sorted(rounds)},
        clients=clients,
        tensors=_by_tensor(total),
        traffic=total.detailed(),
    )


def _by_tensor(total: ByteCounts) -> tuple[TensorSizes, ...]:
    payload: Counter[tuple[str, str, str]] = Counter()
    encoded: Counter[tuple[str, str, str]] = Counter()
    for key, count in total.encoded.items():
        payload[key[1:]] += total.payload[key]
        encoded[key[1:]] += count
    return tuple(TensorSizes(*key, payload[key], encoded[key]) for key in encoded)


def _ratios(capture: Capture, total: ByteCounts) -> Ratios:
    """Tensor bytes against what the same transfers would have cost FedAvg and SCAFFOLD without any codec."""
    plain = reduced = 0
    # A transfer that was interrupted or repeated is needed once.
    counting = (t for t in Transfers(capture) if not t.up or t.outcome == "ACCEPTED")
    needed = {(t.round, t.client, t.up): t.encoding.layout for t in counting}
    for layout in needed.values():
        plain += layout.payload_bytes(Purpose.MODEL, Purpose.BUFFER)
        reduced += layout.payload_bytes(Purpose.MODEL)
    sent = sum(count for key, count in total.payload.items() if key[2] != CANARY)
    return Ratios(sent / plain if plain else None, sent / (plain + reduced) if plain else None)


def compare_with_run(found: Statistics, run_dir: Path) -> tuple[str, ...]:
    """Where a capture and a run's ledger differ; nothing if they agree to the byte."""
    try:
        records = list(json_files.read_lines(run_dir / ROUNDS, _RoundBytes))
        whole = json_files.read(run_dir / TRAFFIC, TrafficRecord)
    except StateError as error:
        raise DataError(f"{run_dir} has no complete ledger: {error}") from error
    ledger = {0: whole.outside, **{record.round: record.bytes for record in records}}
    if whole.open is not None:
        ledger[whole.open.round] = whole.open.bytes
    differences = []
    for r in sorted({*ledger, *found.rounds}):
        ours, theirs = (_flat(rounds.get(r)) for rounds in (found.rounds, ledger))
        differences += [
            f"round {r}, {direction}, {purpose}: {ours.get((direction, purpose), 0)} bytes in the capture, "
            f"{theirs.get((direction, purpose), 0)} in the ledger"
            for direction, purpose in {**ours, **theirs}
            if ours.get((direction, purpose), 0) != theirs.get((direction, purpose), 0)
        ]
    if not differences and found.traffic != whole.traffic:
        differences.append("the totals by client and tensor differ")
    return tuple(differences)


def _flat(counts: DirectionBytes | None) -> dict[tuple[str, str], int]:
    """Counts by direction and purpose, purposes by name."""
    if counts is None:
        return {}
    tables = {d: getattr(counts, d).by_name() for d in DIRECTIONS}
    return {(d, purpose): table[purpose] for d, table in tables.items() for purpose in sorted(table)}
