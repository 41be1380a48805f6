"""How clients come to their seats: who waits, and when seats are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.errors import FedError, JoinError, SupersededError, UnavailableError
from common.events import Emit, unheard
from common.names import natural, require_name
from fedserver.events.clients import ClientJoined, ClientsAwaited, ClientsGathered
from fedserver.members.join_limit import MAX_WAITING, JoinLimit
from fedserver.members.presence import Presence
from fedserver.members.seated import Seated
from fedserver.members.seats import (
    Member,
    OwnData,
    example_limit,
    new_member,
    no_seat,
    require_known_classes,
    require_not_evicted,
    require_same_data,
    require_usable,
)


class Members(Seated):
    """Seats are given when enough clients wait, in the order of names, so that start order does not matter.

    Those who come later take the seats that are left, in the order in which they come.
    """

    def __init__(
        self,
        num_clients: int,
        needed: int | None = None,
        presence: Presence | None = None,
        emit: Emit = unheard,
    ) -> None:
        """A run starts with as many as are `needed`; None: with all."""
        super().__init__(num_clients, presence or Presence())
        self.needed = needed or num_clients
        self.joinable = asyncio.Event()
        """Set once whoever joins gets on: the model is there or, before N is known, waits for clients."""
        self.complete = asyncio.Event()
        """Set once the run can start."""
        self._emit = emit
        self._waiting: dict[str, tuple[OwnData | None, asyncio.Future[Member]]] = {}
        """With those who have an answer and have yet to take it; `waiting` looks at each, so not per join."""
        self._waiting_changed = asyncio.Event()
        self._gathering = False
        self._joins = JoinLimit(num_clients)
        self._class_names: tuple[str, ...] = ()

    @property
    def waiting(self) -> list[str]:
        """Names that have asked for a seat and wait for the others, in the order in which they came."""
        return [name for name, (_, seat) in self._waiting.items() if not seat.done()]

    async def gather(self, quiet_s: float) -> int:
        """Where N is not given: all who are here once they are enough and none has come for a while."""
        self._gathering = True
        self.joinable.set()
        while True:
            self._waiting_changed.clear()
            enough = len(self._waiting) >= self.num_clients
            try:
                async with asyncio.timeout(quiet_s if enough else None):
                    await self._waiting_changed.wait()
            except TimeoutError:
                break
        self._gathering = False
        self.num_clients = self.needed = len(self.waiting)
        self._emit(ClientsGathered(here=self.num_clients))
        return self.num_clients

    def open(self, shards: Sequence[Sequence[int]], class_names: tuple[str, ...]) -> None:
        """Lets seats be given, now that there are shards to go with them, also to those who wait already."""
        self._shards = shards
        self._class_names = class_names
        self.joinable.set()
        if not self.complete.is_set():
            self._refuse_unfitting()
            self._seat_all()
            return
        for name in self.waiting:
            own_data, seat = self._waiting[name]
            try:
                seat.set_result(self._seat(name, own_data))
            except JoinError as error:
                seat.set_exception(error)

    def restore(self, members: list[Member], example_limit: int | None) -> None:
        """Gives the seats of a run that goes on to those who had them; `open` comes next."""
        self.example_limit = example_limit
        for member in members:
            self._add(member)
        self.complete.set()

    async def join(self, name: str, own_data: OwnData | None) -> Member:
        """A seat: at once for a known name and after the start, else when enough clients are here."""
        require_name(name)
        if not self._joins.take(name) or len(self._waiting) > self.num_clients + MAX_WAITING:
            raise UnavailableError("too many clients join at once; try again")
        require_usable(name, own_data)
        member = await self._seat_or_wait(name, own_data)
        self._gone.pop(member.index, None)
        self._note_test_set(member.index, own_data)
        self.presence.heard(member.index, name)
        return member

    async def _seat_or_wait(self, name: str, own_data: OwnData | None) -> Member:
        if name in self.by_name or self.complete.is_set():
            return self._seat(name, own_data)
        if self._shards is not None:
            self._require_fitting(name, own_data)
        if name in self._waiting and not self._waiting[name][1].done():
            self._waiting[name][1].set_exception(
                SupersededError(f"another client joined as {name!r}; give each client its own --name")
            )
        seat: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._waiting[name] = (own_data, seat)
        self._waiting_changed.set()
        try:
            self.tell_who_is_here(name)
            self._seat_all()
            return await seat
        finally:
            if self._waiting.get(name, (None, None))[1] is seat:
                del self._waiting[name]
                self._waiting_changed.set()

    def tell_who_is_here(self, name: str = "") -> None:
        """Says how many clients are here; `name` is the one that has just come."""
        here = len(self._waiting)
        self._emit(ClientsAwaited(client=name, here=here, needed=self.needed, at_least=self._gathering))

    def turn_away(self, error: FedError) -> None:
        """Gives everybody who waits this answer instead of a seat."""
        for name in self.waiting:
            self._waiting[name][1].set_exception(error)

    def _seat(self, name: str, own_data: OwnData | None) -> Member:
        """The seat that this client has, or one that is left."""
        if name in self.by_name:
            require_not_evicted(self.by_name[name])
            require_same_data(self.by_name[name], own_data)
            return self.by_name[name]
        free = [i for i in range(self.num_clients) if i not in self.by_index]
        if not free or self._shards is None:
            raise no_seat(name, self.num_clients)
        self._require_fitting(name, own_data)
        member = self._add(new_member(name, free[0], self._shards[free[0]], own_data))
        self.unwritten.add(name)
        self._emit(ClientJoined(client=name, taken=len(self.by_name), seats=self.num_clients))
        return member

    def _require_fitting(self, name: str, own_data: OwnData | None) -> None:
        """Raises for a client whose data the run cannot use, or that has none where all bring their own."""
        if own_data is None and not any(map(len, self._shards or ())):
            raise JoinError(
                f"client {name!r} brings no data, and this server has none; "
                "start the client with --data or --dataset"
            )
        require_known_classes(name, own_data, self._class_names)

    def _refuse_unfitting(self) -> None:
        """Sends those away who came before it was known what the run is about."""
        for name in self.waiting:
            own_data, seat = self._waiting[name]
            try:
                self._require_fitting(name, own_data)
            except JoinError as error:
                seat.set_exception(error)

    def _seat_all(self) -> None:
        if self._shards is None or len(self._waiting) < self.needed or len(self.waiting) < self.needed:
            return
        for index, name in enumerate(sorted(self.waiting[: self.num_clients], key=natural)):
            own_data, seat = self._waiting[name]
            self._note_test_set(index, own_data)
            seat.set_result(self._add(new_member(name, index, self._shards[index], own_data)))
        for name in self.waiting:
            self._waiting[name][1].set_exception(no_seat(name, self.num_clients))
        self.example_limit = example_limit(self.by_index.values(), self._shards)
        self.complete.set()
