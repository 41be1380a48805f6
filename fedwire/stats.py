"""What the bytes of a capture were for, and whether a run's own ledger says the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from common.errors import DataError, StateError
from common.json_files import has_form, read, read_lines
from common.tensors.layout import Purpose
from common.wire.byte_counts import ByteCounts
from common.wire.messages import DIRECTIONS
from fedwire.source import Capture
from fedwire.transfers import Transfers

_BYTES = {str: {str: int}}
_ROUNDS = [{"round": int, "bytes": _BYTES}]
_WHOLE = {"outside": _BYTES, "open": ({"round": int, "bytes": _BYTES}, None, ...), "traffic": {str: {}}}


def statistics(capture: Capture) -> dict[str, Any]:
    """Bytes by round, client, purpose and tensor; round 0 is what belongs to none."""
    rounds: defaultdict[int, ByteCounts] = defaultdict(ByteCounts)
    for message in capture.messages:
        counts = rounds[message.round]
        counts.add(message.client, message.rpc, message.up, message.content, message.size)
    total = ByteCounts()
    for counts in rounds.values():
        total.update(counts)
    return {
        "messages": len(capture.messages),
        "bytes": total.by_purpose(),
        "ratios": _ratios(capture, total),
        "rounds": {str(r): rounds[r].by_purpose() for r in sorted(rounds)},
        "clients": {
            client: {
                direction: dict(zip(("payload", "encoded"), counts, strict=True))
                for (name, direction), counts in total.by_client().items()
                if name == client
            }
            for client in sorted({name for name, _ in total.by_client()})
        },
        "tensors": _by_tensor(total),
        "traffic": total.detailed(),
    }


def _by_tensor(total: ByteCounts) -> list[dict[str, Any]]:
    payload: Counter[tuple[str, str, str]] = Counter()
    encoded: Counter[tuple[str, str, str]] = Counter()
    for key, count in total.encoded.items():
        payload[key[1:]] += total.payload[key]
        encoded[key[1:]] += count
    return [
        {"direction": d, "purpose": p, "tensor": t, "payload": payload[d, p, t], "encoded": encoded[d, p, t]}
        for d, p, t in encoded
    ]


def _ratios(capture: Capture, total: ByteCounts) -> dict[str, float | None]:
    """Tensor bytes against what the same transfers would have cost FedAvg and SCAFFOLD without any codec."""
    plain = reduced = 0
    # A transfer that was interrupted or repeated is needed once.
    counting = (t for t in Transfers(capture) if not t.up or t.outcome == "ACCEPTED")
    needed = {(t.round, t.client, t.up): t.encoding.layout for t in counting}
    for layout in needed.values():
        plain += layout.payload_bytes(Purpose.MODEL, Purpose.BUFFER)
        reduced += layout.payload_bytes(Purpose.MODEL)
    sent = sum(total.payload.values())
    return {
        "fedavg": sent / plain if plain else None,
        "scaffold": sent / (plain + reduced) if plain else None,
    }


def compare_with_run(found: dict[str, Any], run_dir: Path) -> list[str]:
    """Where a capture and a run's ledger differ; nothing if they agree to the byte."""
    try:
        records, whole = read_lines(run_dir / "rounds.jsonl"), read(run_dir / "traffic.json")
    except StateError as error:
        raise DataError(f"{run_dir} has no complete ledger: {error}") from error
    if not has_form(records, _ROUNDS) or not has_form(whole, _WHOLE):
        raise DataError(f"{run_dir} has no complete ledger: rounds.jsonl or traffic.json has another form")
    differences = []
    ledger = {"0": whole["outside"], **{str(record["round"]): record["bytes"] for record in records}}
    if whole.get("open"):
        ledger[str(whole["open"]["round"])] = whole["open"]["bytes"]
    for r in sorted({*ledger, *found["rounds"]}, key=int):
        for direction in DIRECTIONS:
            ours = found["rounds"].get(r, {}).get(direction, {})
            theirs = ledger.get(r, {}).get(direction, {})
            for purpose in sorted({*ours, *theirs}):
                if ours.get(purpose, 0) != theirs.get(purpose, 0):
                    differences.append(
                        f"round {r}, {direction}, {purpose}: {ours.get(purpose, 0)} bytes in the capture, "
                        f"{theirs.get(purpose, 0)} in the ledger"
                    )
    if not differences and found["traffic"] != whole["traffic"]:
        differences.append("the totals by client and tensor differ")
    return differences
