"""Kinds of runs that a site has approved, and those that wait for it, as files that two processes write.

The client writes KIND.json when it is asked for a kind, `fedclient approve` writes KIND.approved.json.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from common import json_files
from common.atomic import PRIVATE, make_private
from common.errors import ConfigError
from common.records.client import APPROVALS, AskedApproval, GivenApproval
from fedclient.policy.facts import Kind

_GIVEN = ".approved.json"


class Approvals:
    """Those of a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / APPROVALS

    def has(self, kind: str) -> bool:
        """Whether runs of this kind are approved."""
        return (self._folder / f"{kind}{_GIVEN}").exists()

    def ask(self, kind: Kind, server: str, run: str) -> None:
        """Notes that a kind wants to be approved."""
        path = self._folder / f"{kind.digest}.json"
        if not path.exists():
            make_private(self._folder)
            asked = AskedApproval(
                kind=kind.digest,
                asked=_now(),
                server=server,
                run=run,
                described=kind.described,
                tensors=kind.tensors,
            )
            json_files.write(path, asked, PRIVATE)

    def asked(self) -> list[tuple[AskedApproval, GivenApproval | None]]:
        """All kinds that were ever asked for, the oldest first, with their approval."""
        files = [path for path in self._folder.glob("*.json") if not path.name.endswith(_GIVEN)]
        found = [json_files.read(path, AskedApproval) for path in files]
        return [(each, self._given(each.kind)) for each in sorted(found, key=lambda each: each.asked)]

    def _given(self, kind: str) -> GivenApproval | None:
        path = self._folder / f"{kind}{_GIVEN}"
        return json_files.read(path, GivenApproval) if path.exists() else None

    def approve(self, begin: str) -> AskedApproval:
        """Approves the kind whose name begins so."""
        found = [each for each, _ in self.asked() if each.kind.startswith(begin)]
        if len(found) != 1:
            known = ", ".join(each.kind for each, _ in self.asked()) or "none"
            raise ConfigError(
                f"expected the name of one kind of run that was asked for ({known}), got {begin!r}"
            )
        given = GivenApproval(kind=found[0].kind, approved=_now())
        json_files.write(self._folder / f"{given.kind}{_GIVEN}", given, PRIVATE)
        return found[0]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
