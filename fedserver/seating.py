"""config.json of a run: its settings and who has which seat, written when all are taken, read to go on."""

from __future__ import annotations

from typing import Any

from common.errors import StateError
from common.tensors import Purpose
from fedserver.federation import Federation
from fedserver.members import Member
from fedserver.workbench import Prepared


def described(federation: Federation) -> dict[str, Any]:
    """A run whose clients are seated, as plain values."""
    members = sorted(federation.members.by_name.values(), key=lambda member: member.index)
    layout, prepared = federation.layout, federation.prepared
    return federation.config.as_dict() | {
        "run_id": federation.run_id,
        "fingerprint": federation.fingerprint,
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
            for m in members
        ],
    }


def seated(config: dict[str, Any], prepared: Prepared) -> list[Member]:
    """Who had which seat."""
    try:
        return [
            Member(
                client["name"],
                client["index"],
                client["examples"],
                prepared.shards[client["index"]] if client["classes"] is not None else None,
            )
            for client in config["clients"]
        ]
    except (KeyError, IndexError, TypeError) as error:
        raise StateError(f"config.json of the run is damaged: {error!r}; choose another --run-dir") from error
