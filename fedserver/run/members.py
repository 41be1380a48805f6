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
    """Seats are given when enough clients wait, in the order of names, so that start order does not matter.

    Those who come later take the seats that are left, in the order in which they come.
    """

    def __init__(self, num_clients: int, min_clients: int | None = None) -> None:
        """A run starts with `min_clients`; None: with all."""
        self.num_clients = num_clients
        self.needed = min_clients or num_clients
        self.by_name: dict[str, Member] = {}
        self.by_index: dict[int, Member] = {}
        self.complete = asyncio.Event()
        """Set once the run can start."""
        self.on_seated: Callable[[], None] = lambda: None
        """Called when a seat was given after the start, before its client hears of it."""
        self._waiting: dict[str, tuple[OwnData | None, asyncio.Future[Member]]] = {}
        self._shards: list[list[int]] | None = None
        self._class_names: tuple[str, ...] = ()

    @property
    def waiting(self) -> list[str]:
        """Names that have asked for a seat and wait for the others, in the order in which they came."""
        return [name for name, (_, seat) in self._waiting.items() if not seat.done()]

    def open(self, shards: list[list[int]], class_names: tuple[str, ...]) -> None:
        """Lets seats be given, now that there are shards to go with them, also to those who wait already."""
        self._shards = shards
        self._class_names = class_names
        if not self.complete.is_set():
            self._refuse_strange_classes()
            self._seat_all()
            return
        for name in self.waiting:
            own_data, seat = self._waiting[name]
            try:
                seat.set_result(self._seat(name, own_data))
            except JoinError as error:
                seat.set_exception(error)

    def restore(self, members: list[Member]) -> None:
        """Gives the seats of a run that goes on to those who had them; `open` comes next."""
        for member in members:
            self._add(member)
        self.complete.set()

    async def join(self, name: str, own_data: OwnData | None, on_wait: Callable[[], None]) -> Member:
        """A seat: at once for a known name and after the start, else when enough clients are here."""
        if name in self.by_name or self.complete.is_set():
            return self._seat(name, own_data)
        if self._shards is not None:
            self._check_classes(name, own_data)
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

    def _add(self, member: Member) -> None:
        self.by_name[member.name] = self.by_index[member.index] = member

    def _seat(self, name: str, own_data: OwnData | None) -> Member:
        """The seat that this client has, or one that is left."""
        if name in self.by_name:
            return self._same_seat(self.by_name[name], own_data)
        free = [i for i in range(self.num_clients) if i not in self.by_index]
        if not free or self._shards is None:
            raise self._full(name)
        self._check_classes(name, own_data)
        self._add(self._member(name, free[0], own_data))
        try:
            self.on_seated()
        except OSError:
            del self.by_name[name], self.by_index[free[0]]
            raise
        return self.by_name[name]

    def _member(self, name: str, index: int, own_data: OwnData | None) -> Member:
        assert self._shards is not None, "seats are given once there are shards"
        if own_data is not None:
            return Member(name, index, own_data.examples, None)
        return Member(name, index, len(self._shards[index]), self._shards[index])

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

    def _check_classes(self, name: str, own_data: OwnData | None) -> None:
        """Raises for data that the run has no class for."""
        for label in own_data.class_names if own_data else ():
            if class_number(label, self._class_names) is None:
                known = ", ".join(self._class_names[:10])
                raise JoinError(f"client {name!r} has class {label!r}, the run has {known} and so on")

    def _refuse_strange_classes(self) -> None:
        """Sends those away who came before it was known what classes there are."""
        for name in self.waiting:
            own_data, seat = self._waiting[name]
            try:
                self._check_classes(name, own_data)
            except JoinError as error:
                seat.set_exception(error)

    def _seat_all(self) -> None:
        if self._shards is None:
            return
        if len(self.waiting) < self.needed:
            return
        for index, name in enumerate(sorted(self.waiting[: self.num_clients], key=natural)):
            own_data, seat = self._waiting[name]
            self._add(self._member(name, index, own_data))
            seat.set_result(self.by_name[name])
        for name in self.waiting:
            self._waiting[name][1].set_exception(self._full(name))
        self.complete.set()
