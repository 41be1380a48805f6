"""Where two captures differ: messages that only one has, and tensors whose numbers are not the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from common.errors import DataError
from common.tensors.layout import to_float64
from fedwire.source import Capture
from fedwire.transfers import Transfer, Transfers


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which two captures differ."""

    round: int
    client: str
    direction: str
    tensor: str | None = None
    purpose: str | None = None
    what: str


def differences(one: Capture, other: Capture) -> list[Difference]:
    """In the order of rounds: calls first, then transfers tensor by tensor."""
    rows = _calls(one, other)
    sides = Transfers(one), Transfers(other)
    mine, theirs = ({(t.round, t.client, t.up): t for t in side} for side in sides)
    for key in sorted({*mine, *theirs}):
        where = partial(Difference, round=key[0], client=key[1], direction="up" if key[2] else "down")
        if key not in mine or key not in theirs:
            rows.append(where(what="only in " + ("the second" if key in theirs else "the first")))
        else:
            rows += _tensors(where, sides, mine[key], theirs[key])
    return rows


def _calls(one: Capture, other: Capture) -> list[Difference]:
    """Messages that are no tensors, by what they are."""
    counts = []
    for capture in (one, other):
        found: Counter[tuple[int, str, str, str]] = Counter()
        size: Counter[tuple[int, str, str, str]] = Counter()
        for m in capture.messages:
            if m.content.kind != "chunk":
                key = (m.round, m.client, m.direction, f"{m.rpc} {m.content.kind}")
                found[key] += 1
                size[key] += m.size
        counts.append((found, size))
    (mine, my_size), (theirs, their_size) = counts
    return [
        Difference(
            round=key[0],
            client=key[1],
            direction=key[2],
            what=f"{key[3]}: {mine[key]} messages of {my_size[key]} bytes against {theirs[key]} of "
            f"{their_size[key]}",
        )
        for key in sorted({*mine, *theirs})
        if (mine[key], my_size[key]) != (theirs[key], their_size[key])
    ]


def _tensors(
    where: Callable[..., Difference], sides: tuple[Transfers, Transfers], mine: Transfer, theirs: Transfer
) -> list[Difference]:
    ours, yours = mine.encoding, theirs.encoding
    if ours.layout.specs != yours.layout.specs:
        return [where(what="other tensors are announced")]
    rows: list[Difference] = []
    for k, spec in enumerate(ours.layout.specs):
        sizes = ours.encoded.specs[k].num_bytes, yours.encoded.specs[k].num_bytes
        if sizes[0] != sizes[1]:
            names = ours.tensor_encodings[k].codec.name, yours.tensor_encodings[k].codec.name
            what = f"{sizes[0]} bytes ({names[0]}) against {sizes[1]} ({names[1]})"
            rows.append(where(tensor=spec.name, purpose=spec.purpose.name.lower(), what=what))
    try:
        first, second = sides[0].values(mine), sides[1].values(theirs)
    except DataError as error:
        return [*rows, where(what=str(error))]
    for k, spec in enumerate(ours.layout.specs):
        sent = ours.encoded.specs[k].num_bytes and yours.encoded.specs[k].num_bytes
        if not sent or ours.layout.raw(first, k).tobytes() == ours.layout.raw(second, k).tobytes():
            continue
        a, b = (to_float64(ours.layout.array(flat, k), spec.dtype) for flat in (first, second))
        apart, norm = float(np.abs(a - b).max()), float(np.linalg.norm(a))
        relative = float(np.linalg.norm(a - b)) / norm if norm else float("inf")
        what = f"numbers differ by up to {apart:.3g}, {relative:.3g} of the norm"
        rows.append(where(tensor=spec.name, purpose=spec.purpose.name.lower(), what=what))
    return rows
