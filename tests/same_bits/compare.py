"""Whether two run directories hold the same results, to the bit.

Only what users are promised is looked at: the tensors of model.safetensors and control.safetensors, and the
number of each round in rounds.jsonl with its updates and its bytes. Other fields may come, go and move.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILES = ("model", "control")
DIRECTIONS = ("down", "up")
PAYLOADS = ("model", "control", "buffer")
FIGURES = ("accuracy", "loss", "train_loss")


@dataclass
class Comparison:
    """What was found."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Differences that may be: framing, figures, and what only one of them has."""
    size: str = ""
    """How much was compared."""


def compare(base: Path, ours: Path) -> Comparison:
    """Holds two run directories against each other."""
    found = Comparison()
    sizes = [f"{name} {_compare_tensors(base, ours, name, found) / 1000:.1f} KB" for name in FILES]
    before, after = _rounds(base), _rounds(ours)
    if len(before) != len(after) or not before:
        found.differences.append(f"rounds.jsonl: {len(before)} rounds -> {len(after)}")
    for old, new in zip(before, after, strict=False):
        _compare_round(old, new, found)
    _note_the_rest(before, after, found)
    found.size = ", ".join([*sizes, f"{len(after)} rounds"])
    return found


def _compare_tensors(base: Path, ours: Path, name: str, found: Comparison) -> int:
    """Returns the bytes of the tensors in this file."""
    before, after = (tensors(folder / f"{name}.safetensors") for folder in (base, ours))
    for tensor in sorted(before.keys() | after.keys()):
        if tensor not in before or tensor not in after:
            found.differences.append(f"{name}: {tensor} is only in {'ours' if tensor in after else 'base'}")
        elif before[tensor][0] != after[tensor][0]:
            found.differences.append(f"{name}: {tensor} is {before[tensor][0]} -> {after[tensor][0]}")
        elif before[tensor][1] != after[tensor][1]:
            wrong = sum(a != b for a, b in zip(before[tensor][1], after[tensor][1], strict=False))
            of = max(len(before[tensor][1]), len(after[tensor][1]))
            found.differences.append(f"{name}: {tensor} differs in {wrong} of {of} bytes")
    return sum(len(data) for _, data in after.values())


def tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    """Kind and bytes of each tensor of a safetensors file, whatever order and padding the file has."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    return {
        name: (
            f"{entry['dtype']} {entry['shape']}",
            raw[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def _rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def _compare_round(before: dict[str, Any], after: dict[str, Any], found: Comparison) -> None:
    where = f"round {before.get('round')}"
    for name in ("round", "updates"):
        if name not in before or before[name] != after.get(name):
            found.differences.append(f"{where}: {name} {before.get(name)} -> {after.get(name)}")
    for direction in DIRECTIONS:
        old, new = _bytes(before, direction), _bytes(after, direction)
        shared = [purpose for purpose in PAYLOADS if purpose in old and purpose in new]
        if not shared:
            found.differences.append(f"{where}: no bytes {direction} that both records have")
        for purpose in shared:
            if old[purpose] != new[purpose]:
                text = f"{where}: bytes {direction} {purpose} {old[purpose]} -> {new[purpose]}"
                found.differences.append(text)


def _note_the_rest(before: list[dict[str, Any]], after: list[dict[str, Any]], found: Comparison) -> None:
    """What may differ: bytes other than payload, payload that one of them does not count, figures."""
    for direction in DIRECTIONS:
        old, new = (
            sum((Counter(_bytes(r, direction)) for r in rounds), Counter()) for rounds in (before, after)
        )
        for purpose in sorted({*old, *new}):
            if old[purpose] != new[purpose] and not (
                purpose in PAYLOADS and purpose in old and purpose in new
            ):
                found.notes.append(f"bytes {direction} {purpose} {old[purpose]} -> {new[purpose]}")
    for name in FIGURES:
        old_figures, new_figures = ([r[name] for r in rounds if name in r] for rounds in (before, after))
        if old_figures and new_figures and old_figures != new_figures:
            found.notes.append(f"{name} {old_figures[-1]} -> {new_figures[-1]}")


def _bytes(record: dict[str, Any], direction: str) -> dict[str, int]:
    counted: dict[str, int] = record.get("bytes", {}).get(direction, {})
    return counted
