"""Seats: what a client has in a run, and the rules by which it gets one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common import seeds
from common.errors import JoinError, StateError
from common.names import class_number
from common.records.run import Seat

MAX_OWN_CLASSES = 10_000
MOST_NAMED = 30
"""Classes that an error lists."""
MOST_CLAIMED = 10
"""Times the median number of examples that a client may count with."""


@dataclass(frozen=True)
class Member:
    """A client with its seat."""

    name: str
    index: int
    examples: int
    shard: Sequence[int] | None
    """Indices into the training split; None for a client with data of its own."""
    evicted_in: int | None = None
    """The round that was open when the operator took it out of the run, the last that it may be in."""


@dataclass(frozen=True)
class OwnData:
    """What a client tells of the data it brings."""

    examples: int
    class_names: tuple[str, ...]
    test_examples: int | None = None
    """Examples in a test set of its own, 0 without one; None for a client that cannot evaluate x."""


def new_member(name: str, index: int, shard: Sequence[int], own_data: OwnData | None) -> Member:
    """A client in its seat: with data of its own, or with the shard of the seat."""
    if own_data is not None:
        return Member(name, index, own_data.examples, None)
    return Member(name, index, len(shard), shard)


def restored(seats: Sequence[Seat], shards: Sequence[Sequence[int]]) -> list[Member]:
    """Who had which seat in a run that goes on. Not all need be taken: others may join later."""
    indices, names = {seat.index for seat in seats}, {seat.name for seat in seats}
    if not seats or not len(seats) == len(indices) == len(names) or max(indices) >= len(shards):
        raise StateError(
            f"config.json of the run: clients: expected different names in seats 0 to {len(shards) - 1}, "
            f"got seats {sorted(indices)[:10]}; it is damaged: put a copy back, or choose another --run-dir"
        )
    # A client with data of its own tells nothing of its classes, and has no shard.
    return [
        Member(
            seat.name,
            seat.index,
            seat.examples,
            shards[seat.index] if seat.classes else None,
            seat.evicted_in,
        )
        for seat in seats
    ]


def example_limit(members: Iterable[Member], shards: Sequence[Sequence[int]]) -> int:
    """How many examples a client can count with: claims far above what the others have are not believed.

    Ten times the median, or as many as the largest shard has, which nobody claims.
    """
    meant = {i: len(shard) for i, shard in enumerate(shards)}
    examples = sorted((meant | {member.index: member.examples for member in members}).values())
    return max(MOST_CLAIMED * examples[(len(examples) - 1) // 2], *meant.values())


def require_not_evicted(member: Member) -> None:
    """Raises for a client that has no part in the run any more."""
    if member.evicted_in is not None:
        raise JoinError(f"client {member.name!r} was evicted from this run by its operator")


def require_usable(name: str, own_data: OwnData | None) -> None:
    """Raises for data that no run could use."""
    if own_data is None:
        return
    if len(own_data.class_names) > MAX_OWN_CLASSES:
        many = len(own_data.class_names)
        raise JoinError(f"client {name!r} names {many} classes; at most {MAX_OWN_CLASSES} are allowed")
    if own_data.examples < 1:
        raise JoinError(f"client {name!r} brings no examples; a shard needs at least one")


def require_known_classes(name: str, own_data: OwnData | None, class_names: Sequence[str]) -> None:
    """Raises for data that the run has no class for."""
    own = own_data.class_names if own_data else ()
    for label in own:
        if class_number(label, class_names) is None:
            raise JoinError(
                f"client {name!r} has class {label!r}, the run has {_listed(class_names)}; "
                f"all of the client's are {_listed(own)}; rename its folders or classes"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (" and so on" if len(names) > MOST_NAMED else "")


def require_same_data(member: Member, own_data: OwnData | None) -> None:
    """Raises for a client that comes back with data that it did not join with."""
    own = own_data.examples if own_data is not None else None
    if own != (member.examples if member.shard is None else None):
        raise JoinError(f"client {member.name!r} comes back with other data than it joined with")


def selection(num_clients: int, size: int | None, seed: int, r: int) -> list[int]:
    """In which order clients are drawn for a round of `size` clients; None: of all."""
    if size in (None, num_clients):
        return list(range(num_clients))
    return [int(i) for i in seeds.stream(seed, seeds.SELECTION, r).permutation(num_clients)]


def no_seat(name: str, num_clients: int) -> JoinError:
    """All seats are taken."""
    return JoinError(
        f"all {num_clients} seats are taken and {name!r} has none; use the name of a client "
        "that has one, or start the server with a larger --num-clients"
    )
