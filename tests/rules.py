"""Rules of a round with everything at its simplest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.server_step.rules import Rules

SIMPLEST = Rules(round=1, rounds=1, local_epochs=1, eta_l=0.1, algorithm="fedpvr", num_clients=1)


def rules(**changes: Any) -> Rules:
    """The simplest rules, and changes."""
    return replace(SIMPLEST, **changes)
