"""What a rehearsal has shown of each client: go, or what is in the way. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import RunError
from fedserver.events.canary import CanaryAnswer
from fedserver.run.round import Answer, Update

NAMED = 5
"""Clients whose problem is in the error."""


@dataclass(frozen=True)
class ClientAnswer:
    """The answer of one client."""

    client: str
    examples: int
    """With which it joined."""
    answer: Answer
    up_s: float
    """Since its upload began, where it has sent an update."""

    def row(self) -> CanaryAnswer:
        """A line of the table."""
        found = self.answer
        if not isinstance(found, Update):
            return CanaryAnswer(client=self.client, examples=self.examples, reason=found.why)
        return CanaryAnswer(
            client=self.client,
            examples=found.examples,
            down_s=found.pull_seconds,
            train_s=found.train_seconds,
            up_s=self.up_s,
            loss=found.loss,
        )


def require_go(rows: Iterable[CanaryAnswer]) -> None:
    """Raises unless every client is ready."""
    rows = list(rows)
    bad = [row for row in rows if row.reason]
    if bad:
        few = " | ".join(f"{row.client}: {row.reason}" for row in bad[:NAMED])
        raise RunError(
            f"canary: no go for {len(bad)} of {len(rows)} clients, nothing was trained: {few}; "
            "see to them (fedclient check) and give the same command again"
        )
