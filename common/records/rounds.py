"""rounds.jsonl: what a run says of each round that has closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import StateError
from common.json_files import has_form, read_lines
from common.wire.messages import DIRECTIONS, PURPOSES

BYTES = dict.fromkeys(DIRECTIONS, dict.fromkeys(PURPOSES, int))
_ROUND = {
    "round": int,
    "accuracy": (float, None),
    "loss": (float, None),
    "updates": int,
    "bytes": BYTES,
    "seconds": {"train": float},
    "socket": ({str: {str: int}}, None, ...),
    "traffic": ({str: {str: {str: {str: [int, int]}}}}, ...),
    "layer_drift": ({str: float}, ...),
}


def read_rounds(run_dir: Path) -> list[dict[str, Any]]:
    """The closed rounds so far; none in a directory that has no such file."""
    path = run_dir / "rounds.jsonl"
    records = read_lines(path) if path.exists() else []
    for number, record in enumerate(records, start=1):
        if not has_form(record, _ROUND) or record["updates"] < 1:
            raise StateError(f"{path}: line {number} is not the record of a round")
    return records
