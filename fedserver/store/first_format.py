"""A run of format 1 that goes on: what it has on disk, in today's form.

Format 1 had the bytes by client and tensor in rounds.jsonl and in the notes of checkpoints, where they could
outgrow what a note may hold, and the norms of the c_i by client index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from common import json_files
from common.errors import StateError
from common.records import form
from common.records.base import FORMAT
from common.records.rounds import ROUNDS, RoundRecord, read_rounds
from common.records.run import Seat
from common.records.traffic import TRAFFIC_LINES, RoundTraffic
from common.tensors import safetensors_files


def separate_traffic(run_dir: Path, last: int) -> None:
    """Writes the traffic.jsonl that a run of format 1 does not have, up to round `last`."""
    if (run_dir / TRAFFIC_LINES).exists():
        return
    recorded = [record.round for record in read_rounds(run_dir) if record.format == 1]
    lines = [*json_files.read_lines(run_dir / ROUNDS, RoundTraffic)] if recorded else []
    lines += (line for line in _in_notes(run_dir) if max(recorded, default=0) < line.round <= last)
    json_files.write_lines(run_dir / TRAFFIC_LINES, [replace(line, format=FORMAT) for line in lines])


def _in_notes(run_dir: Path) -> Iterator[RoundTraffic]:
    """The bytes of rounds that have a checkpoint, and perhaps no record yet."""
    for path in sorted((run_dir / "checkpoints").glob("round-*.safetensors")):
        # A checkpoint that is damaged or of today has none; the run does not need them to go on.
        with suppress(StateError, KeyError, TypeError, ValueError, RecursionError):
            note = json.loads(safetensors_files.read_note(path)["checkpoint"])
            yield form.read(RoundTraffic, {"round": note["round"]} | note["closing"])


def in_todays_form(record: RoundRecord, seats: Iterable[Seat]) -> RoundRecord:
    """A round's record with the norms of the c_i by name and, if all clients are in it, with who that is."""
    if record.format > 1:
        return record
    names = {str(seat.index): seat.name for seat in seats}
    norms = {names.get(i, i): size for i, size in record.norms.clients.items()}
    took_part = tuple(names.values()) if record.updates == len(names) else ()
    return replace(record, format=FORMAT, clients=took_part, norms=replace(record.norms, clients=norms))
