"""Who takes part: seats, names and indices, and who is still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from common.errors import UnknownClientError
from fedserver.members.presence import Presence
from fedserver.members.seats import Member, OwnData, require_not_evicted, selection
from fedserver.members.uploads_seen import UploadsSeen

EVICTED = "evicted by the operator"


class Seated:
    """Clients that have a seat."""

    def __init__(self, num_clients: int, presence: Presence) -> None:
        self.num_clients = num_clients
        self.by_name: dict[str, Member] = {}
        self.by_index: dict[int, Member] = {}
        self.unwritten: set[str] = set()
        """Names whose seats were given after the start and are not on disk yet."""
        self.presence = presence
        self.leases = presence.leases
        self.uploads_seen = UploadsSeen()
        self.example_limit: int | None = None
        """As many examples a client counts with at the most; known once the run can start."""
        self._test_examples: dict[int, int | None] = {}
        """Examples in a test set of their own, by index, of clients that have joined this process; None for
        one that cannot evaluate."""
        self._gone: dict[int, str] = {}
        """Why a client has left, by index."""
        self._rules: dict[int, str] = {}
        """Which rule of its site made a client leave, by index."""
        self._shards: Sequence[Sequence[int]] | None = None

    def get(self, name: str) -> Member:
        """The member of this name."""
        if name not in self.by_name:
            raise UnknownClientError(f"client {name!r} has not joined this run; call Join first")
        return self.by_name[name]

    def evict(self, member: Member, r: int) -> None:
        """Takes a member out of the run for good, in round r; its seat stays taken.

        The round goes on as it was opened, because clients train with its c: later ones are without it.
        """
        out = replace(member, evicted_in=r if member.evicted_in is None else member.evicted_in)
        self.by_name[member.name] = self.by_index[member.index] = out

    def evicted_before(self, r: int) -> frozenset[int]:
        """Who has no part in round r any more, by index."""
        return frozenset(
            i
            for i, member in self.by_index.items()
            if member.evicted_in is not None and member.evicted_in < r
        )

    def heard_of(self, name: str) -> Member:
        """The member of this name, which has just given a sign of life."""
        member = self.get(name)
        require_not_evicted(member)
        self.presence.heard(member.index, name)
        return member

    def _note_test_set(self, i: int, own_data: OwnData | None) -> None:
        """A client says as it joins whether it evaluates x, and on how many examples besides its shard."""
        self._test_examples[i] = None if own_data is None else own_data.test_examples

    def evaluated_on(self, i: int, held_out: int) -> int | None:
        """Examples that client i evaluates x on, if it holds so many of its shard out; None: not known."""
        if i not in self._test_examples:
            return None
        own = self._test_examples[i]
        return 0 if own is None else own or held_out

    def leave(self, member: Member, reason: str, rule: str = "") -> bool:
        """A client will not come back by itself, until it joins again; False if that was known."""
        known = member.index in self._gone
        if not known:
            self._gone[member.index], self._rules[member.index] = reason, rule
        return not known

    def rule(self, i: int) -> str:
        """The rule of its site because of which a client has left, or waits; empty if it is none of these."""
        return self._rules.get(i, "") if i in self._gone else self.presence.held_by(i)

    @property
    def gone(self) -> dict[int, str]:
        """Why clients have left, by index."""
        return dict(self._gone)

    def is_gone(self, i: int) -> bool:
        """Whether a client has left, or has not been heard of for too long."""
        return i in self._gone or self.leases.left(i) <= 0

    def total_examples(self, r: int) -> int:
        """Of all clients of a round; a seat that is free counts with the shard that is meant for it."""
        meant = {i: len(shard) for i, shard in enumerate(self._shards or [])}
        taken = {i: member.examples for i, member in self.by_index.items()}
        out = self.evicted_before(r)
        count = {i: n for i, n in (meant | taken).items() if i not in out}
        return sum(min(n, self.example_limit or n) for n in count.values())

    def in_order(self) -> list[Member]:
        """All members by index."""
        return [self.by_index[i] for i in sorted(self.by_index)]

    def here(self) -> set[str]:
        """Names of those who have not left."""
        return {member.name for member in self.by_name.values() if member.index not in self._gone}

    def drawn(self, seed: int, r: int, size: int | None) -> list[int]:
        """The clients of a round, by index: all that are seated, or as many as are drawn for each round.

        Seed and round alone decide, except that clients that are gone are taken only where too few are here.
        """
        seats = self.by_index.keys() - self.evicted_before(r)
        seated = [i for i in selection(self.num_clients, size, seed, r) if i in seats]
        return sorted(sorted(seated, key=self.is_gone)[:size])

    def written_down(self) -> None:
        """All seats are on disk."""
        self.unwritten.clear()

    def unseat_unwritten(self) -> None:
        """Takes back the seats that could not be written down."""
        for name in self.unwritten:
            del self.by_index[self.by_name.pop(name).index]
        self.unwritten.clear()

    def _add(self, member: Member) -> Member:
        self.by_name[member.name] = self.by_index[member.index] = member
        if member.evicted_in is not None:
            self._gone[member.index] = EVICTED
        self.presence.heard(member.index, member.name)
        return member
