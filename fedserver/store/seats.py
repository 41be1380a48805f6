"""config.json of a run: its settings and who has which seat, written when all are taken, read to go on."""

from __future__ import annotations

from typing import Any

from common.errors import StateError
from common.json_files import has_form
from common.tensors.layout import Purpose
from fedserver.run.members import Members
from fedserver.run.run import Run
from fedserver.run.seats import Member
from fedserver.worker.process import Prepared

_CLIENTS = [{"name": str, "index": int, "examples": int, "classes": ([int], None)}]


def described(run: Run, members: Members) -> dict[str, Any]:
    """A run whose clients are seated, as plain values."""
    layout, prepared = run.layout, run.prepared
    return run.config.as_dict() | {
        "run_id": run.id,
        "fingerprint": run.fingerprint,
        "num_classes": prepared.model["num_classes"],
        "svr_names": [layout.specs[k].name for k in layout.indices(Purpose.CONTROL)],
        "class_names": prepared.class_names,
        "clients": [
            {
                "name": m.name,
                "index": m.index,
                "examples": m.examples,
                # What a client's own data look like is nobody's business but its own.
                "classes": prepared.histograms[m.index] if m.shard is not None else None,
            }
            for m in members.in_order()
        ],
    }


def seated(config: dict[str, Any], prepared: Prepared) -> list[Member]:
    """Who had which seat."""
    clients, shards = config["clients"], prepared.shards
    known = has_form(clients, _CLIENTS)
    seats = {c["index"]: c["name"] for c in clients} if known else {}
    # Not all need be taken: others may join later.
    distinct = len(clients) == len(seats) == len(set(seats.values())) if known else False
    if not seats or not distinct or not seats.keys() <= set(range(len(shards))):
        raise StateError(
            "config.json of the run is damaged: its clients do not fit its seats; choose another --run-dir"
        )
    # A client with data of its own tells nothing of its classes, and has no shard.
    return [
        Member(c["name"], c["index"], c["examples"], shards[c["index"]] if c["classes"] else None)
        for c in clients
    ]
