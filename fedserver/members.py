"""Who takes part: seats, names and indices."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import JoinError, SupersededError, UnknownClientError

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Member:
    """A client with its seat."""

    name: str
    index: int
    examples: int
    shard: list[int] | None
    """Indices into the training split; None for a client with data of its own."""


@dataclass(frozen=True)
class OwnData:
    """What a client tells of the data it brings."""

    examples: int
    num_classes: int


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts client-10 behind client-2."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


class Members:
    """Seats are given when all are taken, in the order of names, so that start order does not matter."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.by_name: dict[str, Member] = {}
        self.complete = asyncio.Event()
        self._waiting: dict[str, tuple[OwnData | None, asyncio.Future[Member]]] = {}
        self._shards: list[list[int]] | None = None

    @property
    def waiting(self) -> list[str]:
        """Names that have asked for a seat and wait for the others."""
        return sorted(self._waiting, key=natural)

    def open(self, shards: list[list[int]]) -> None:
        """Lets seats be given, now that there are shards to go with them."""
        self._shards = shards
        self._seat_all()

    async def join(self, name: str, own_data: OwnData | None, on_wait: Callable[[], None]) -> Member:
        """A seat, at once for a known name, else when all seats are taken."""
        if name in self.by_name:
            return self._same_seat(self.by_name[name], own_data)
        if self.complete.is_set():
            raise JoinError(
                f"all {self.num_clients} seats are taken and {name!r} has none; use the name of a client "
                "that has one, or start the server with a larger --num-clients"
            )
        if name in self._waiting:
            self._waiting[name][1].set_exception(
                SupersededError(f"another client joined as {name!r}; give each client its own --name")
            )
        seat: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._waiting[name] = (own_data, seat)
        on_wait()
        self._seat_all()
        try:
            return await seat
        finally:
            if self._waiting.get(name, (None, None))[1] is seat:
                del self._waiting[name]

    def get(self, name: str) -> Member:
        """The member of this name."""
        if name not in self.by_name:
            raise UnknownClientError(f"client {name!r} has not joined this run; call Join first")
        return self.by_name[name]

    def _same_seat(self, member: Member, own_data: OwnData | None) -> Member:
        if (own_data is None) != (member.shard is not None) or (
            own_data and own_data.examples != member.examples
        ):
            raise JoinError(f"client {member.name!r} comes back with other data than it joined with")
        return member

    def _seat_all(self) -> None:
        if self._shards is None or len(self._waiting) < self.num_clients:
            return
        for index, name in enumerate(self.waiting):
            own_data, seat = self._waiting[name]
            shard = self._shards[index] if own_data is None else None
            examples = own_data.examples if own_data is not None else len(self._shards[index])
            self.by_name[name] = Member(name, index, examples, shard)
            seat.set_result(self.by_name[name])
        self._waiting.clear()
        self.complete.set()


def require_name(name: str) -> None:
    """Raises for a name that cannot be shown in a line or a file name."""
    if not NAME.fullmatch(name):
        raise JoinError(f"a client name has 1 to 64 letters, digits, '.', '_' or '-', got {name!r}")
