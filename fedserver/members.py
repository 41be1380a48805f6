"""Who takes part: seats, names and indices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import FedError, JoinError, SupersededError, UnknownClientError
from common.names import class_number, natural


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
    class_names: tuple[str, ...]


class Members:
    """Seats are given when all are taken, in the order of names, so that start order does not matter."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.by_name: dict[str, Member] = {}
        self.complete = asyncio.Event()
        self._waiting: dict[str, tuple[OwnData | None, asyncio.Future[Member]]] = {}
        self._shards: list[list[int]] | None = None
        self._class_names: tuple[str, ...] = ()

    @property
    def waiting(self) -> list[str]:
        """Names that have asked for a seat and wait for the others, in the order in which they came."""
        return [name for name, (_, seat) in self._waiting.items() if not seat.done()]

    def open(self, shards: list[list[int]], class_names: tuple[str, ...]) -> None:
        """Lets seats be given, now that there are shards to go with them."""
        self._shards = shards
        self._class_names = class_names
        self._seat_all()

    def restore(self, members: list[Member]) -> None:
        """Gives the seats of a run that goes on to those who had them, also to those who wait already."""
        self.by_name = {member.name: member for member in members}
        self.complete.set()
        for name in self.waiting:
            own_data, seat = self._waiting[name]
            try:
                seat.set_result(self._same_seat(self.by_name[name], own_data))
            except KeyError:
                seat.set_exception(self._full(name))
            except JoinError as error:
                seat.set_exception(error)

    async def join(self, name: str, own_data: OwnData | None, on_wait: Callable[[], None]) -> Member:
        """A seat, at once for a known name, else when all seats are taken."""
        if name in self.by_name:
            return self._same_seat(self.by_name[name], own_data)
        if self.complete.is_set():
            raise self._full(name)
        if name in self.waiting:
            self._waiting[name][1].set_exception(
                SupersededError(f"another client joined as {name!r}; give each client its own --name")
            )
        seat: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._waiting[name] = (own_data, seat)
        try:
            on_wait()
            self._seat_all()
            return await seat
        finally:
            if self._waiting.get(name, (None, None))[1] is seat:
                del self._waiting[name]

    def turn_away(self, error: FedError) -> None:
        """Gives everybody who waits this answer instead of a seat."""
        for name in self.waiting:
            self._waiting[name][1].set_exception(error)

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

    def _full(self, name: str) -> JoinError:
        return JoinError(
            f"all {self.num_clients} seats are taken and {name!r} has none; use the name of a client "
            "that has one, or start the server with a larger --num-clients"
        )

    def _seat_all(self) -> None:
        if self._shards is None or self.complete.is_set():
            return
        for name in self.waiting:
            own_data, seat = self._waiting[name]
            strange = (
                [c for c in own_data.class_names if class_number(c, self._class_names) is None]
                if own_data
                else []
            )
            if strange:
                known = ", ".join(self._class_names[:10])
                seat.set_exception(
                    JoinError(f"client {name!r} has class {strange[0]!r}, the run has {known} and so on")
                )
        if len(self.waiting) < self.num_clients:
            return
        for index, name in enumerate(sorted(self.waiting[: self.num_clients], key=natural)):
            own_data, seat = self._waiting[name]
            shard = self._shards[index] if own_data is None else None
            examples = own_data.examples if own_data is not None else len(self._shards[index])
            self.by_name[name] = Member(name, index, examples, shard)
            seat.set_result(self.by_name[name])
        for name in self.waiting:
            self._waiting[name][1].set_exception(self._full(name))
        self.complete.set()
