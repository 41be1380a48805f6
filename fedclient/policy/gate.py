"""The gate that everything of a site's passes before it leaves."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import RefusedError
from common.events import Emit
from fedclient.outbox.log import Outbox
from fedclient.policy.approvals import Approvals
from fedclient.policy.events import ApprovalAwaited, ApprovalGiven
from fedclient.policy.facts import Departure, Facts, Kind
from fedclient.policy.policy import Policy
from fedclient.policy.rules import approval, require_allowed

POLL_S = 0.2
"""How often a client looks whether a run was approved."""
TELL_S = 5.0
"""How often it says that it waits, which also tells it whether the server is still there."""


class Gate:
    """Holds what is known of a server and its run against the policy, and writes down what leaves."""

    def __init__(self, policy: Policy, state_dir: Path, outbox: Outbox, facts: Facts) -> None:
        """Raises if the client may not even talk to this server."""
        self._policy = policy
        self._state_dir = state_dir
        self._approvals = Approvals(state_dir)
        self._outbox = outbox
        self._known = facts
        self.require()

    def require(self, **facts: Any) -> None:
        """Raises if what is known now, together with what was known before, breaks a rule."""
        self._known = replace(self._known, **facts)
        require_allowed(self._policy, self._known)

    def require_departure(self, departure: Departure) -> None:
        """Raises if this may not leave now."""
        usage = self._outbox.usage()
        require_allowed(self._policy, replace(self._known, departure=departure, usage=usage))

    def may_tell(self, count: int) -> bool:
        """Whether a figure may be told that comes from so many examples."""
        return self._policy.may_tell(count)

    def depart(self, departure: Departure) -> int:
        """Raises if this may not leave; else writes it down and returns its number: then it may be sent."""
        self.require_departure(departure)
        return self._outbox.depart(departure)

    def receipt(self, number: int, outcome: str, run: str, r: int = 0) -> None:
        """The server has answered for a departure."""
        self._outbox.receipt(number, outcome, run, r)

    def await_approval(self, kind: Kind, run: str, emit: Emit, tell: Callable[[str], None]) -> None:
        """Returns once this kind is approved; `tell` lets the server know under which rule it waits."""
        if self._approved(kind):
            return
        self._approvals.ask(kind, self._known.server or "", run)
        command = ["fedclient", "approve", kind.digest, "--state-dir", str(self._state_dir)]
        emit(ApprovalAwaited(kind_of_run=kind.digest, described=kind.described, command=shlex.join(command)))
        told_at = -math.inf
        while not self._approved(kind):
            if time.monotonic() >= told_at + TELL_S:
                tell(approval.__name__)
                told_at = time.monotonic()
            time.sleep(POLL_S)
        emit(ApprovalGiven(kind_of_run=kind.digest))
        tell("")

    def _approved(self, kind: Kind) -> bool:
        facts = replace(self._known, approved=self._approvals.has(kind.digest))
        try:
            require_allowed(self._policy, facts, (approval,))
        except RefusedError:
            return False
        return True
