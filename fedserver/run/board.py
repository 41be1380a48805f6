"""The board on which clients wait: what the run is doing, the open round, and who has heard of the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from common.errors import Fault, UnavailableError, WireError
from common.records.sites import SitesRecord
from common.wire.statuses import STOPPING
from fedserver.members.attendance import Attendance
from fedserver.run.round import Answer, Outcome, Round
from fedserver.run.run import Run
from fedserver.store.history import History
from fedserver.store.spool import Upload


class Phase(Enum):
    """What a run is doing; names as in `StatusReply.Phase`."""

    PREPARING = auto()
    WAITING = auto()
    TRAINING = auto()
    FINISHED = auto()

    @property
    def word(self) -> str:
        """As live.json has it."""
        return self.name.lower()


@dataclass(frozen=True)
class Result:
    """The last evaluation."""

    round: int
    accuracy: float
    loss: float | None
    """None where it is not finite."""
    seconds: float | None
    """How long the evaluation took."""


class Board:
    """Written by the run, read by the calls of clients; all on one event loop."""

    def __init__(self) -> None:
        self.phase = Phase.PREPARING
        self.run: Run | None = None
        """None while it is being prepared."""
        self.round: Round | None = None
        """The open round, or the last one; None before the first."""
        self.last: Result | None = None
        self.sites: tuple[int, SitesRecord] | None = None
        """The last evaluation at the clients, and the round whose x it is of."""
        self.attendance = Attendance()
        """Of the rounds whose records are written."""
        self.end_reason = ""
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._told: set[str] = set()
        self._unaware: set[str] = set()
        """Of those who are expected to hear of the end, who has not."""
        self._all_aware = asyncio.Event()
        self._stopping = False
        self._calls: dict[int, asyncio.Event] = {}
        """Wakes the calls of a client: of thousands that wait, a round concerns those it has drawn."""
        self._ending = asyncio.Event()
        """Set when the run is over, or the server stops."""
        self._news = asyncio.Event()
        """Set whenever there may be something to do for whoever looks after the open round."""

    @property
    def history(self) -> History:
        """Of the rounds that count."""
        return self.run.run_dir.history if self.run is not None else History()

    @property
    def counted(self) -> Mapping[int, int]:
        """The last round that each client's update counted in, by client; none while the run is prepared."""
        return self.run.variates.counted if self.run is not None else {}

    @property
    def number(self) -> int:
        """Of the open round, or the last one; 0 before the first, also in what comes before it."""
        return 0 if self.round is None or self.round.is_apart else self.round.number

    def open(self, run: Run) -> None:
        """The run is prepared."""
        self.run = run
        self.phase = Phase.WAITING

    def go_on_with(self, run: Run) -> None:
        """The next round has perhaps another S_svr than the last one had."""
        self.run = run
        run.spool.lay_out(run.up, run.layout)

    def require_run(self) -> Run:
        """The run; raises while it is being prepared."""
        if self.run is None:
            raise UnavailableError("the run is being prepared; try again")
        return self.run

    async def open_round(self, current: Round) -> dict[int, asyncio.Future[Answer]]:
        """Wakes the clients that wait for a round; returns what will be the answers, by client."""
        loop = asyncio.get_running_loop()
        self.phase = Phase.TRAINING
        self.round = current
        self._answers = {i: loop.create_future() for i in current.answers}
        for i, answer in current.answers.items():
            if answer is not None:
                self._answers[i].set_result(answer)
        self._wake(current.answers)
        return self._answers

    def _wake(self, clients: Iterable[int]) -> None:
        for i in clients:
            if i in self._calls:
                self._calls.pop(i).set()

    async def next_round(self, i: int) -> Round | None:
        """The open round as soon as there is one that client i has not answered; None once all are over.

        A client that has answered waits for the next round even if it forgot that it has, because its variate
        may be moved on at any moment now.
        """

        while not (self.phase is Phase.FINISHED or self._stopping or self.waits_for(i)):
            await self._calls.setdefault(i, asyncio.Event()).wait()
        if self._stopping:
            raise UnavailableError(STOPPING)
        return None if self.phase is Phase.FINISHED else self.round

    def verdict(self, i: int, r: int) -> Outcome:
        """What would become of an answer of client i for round r."""
        if self.round is None:
            raise UnavailableError("no round is open yet; try again")
        current = self.round.number
        if r > current or r < 1:
            raise WireError(Fault.WRONG_ROUND, f"round {current} is open, got an update for round {r}")
        if r < current or self.phase is Phase.FINISHED:
            return Outcome.LATE
        return self.round.outcome(i)

    def answer_of(self, i: int) -> Answer | None:
        """What client i has answered to the open round, or the last one."""
        return self.round.answers.get(i) if self.round is not None else None

    def part(self, i: int, r: int, update_id: str) -> Upload | None:
        """What has come so far of an update of client i, if round r is open."""
        if self.round is None or self.round.number != r:
            return None
        return self.require_run().spool.part(i, update_id)

    def answer(self, i: int, answer: Answer) -> Outcome:
        """Takes an answer to the open round."""
        assert self.round is not None, "there is a verdict before there is an answer"
        outcome = self.round.answer(i, answer)
        if outcome is Outcome.ACCEPTED:
            self._answers[i].set_result(answer)
            self._news.set()
        return outcome

    def fail(self, i: int, error: Exception) -> None:
        """There will be no answer of client i, for a reason of this server's: ends who drives the round."""
        answer = self._answers.get(i)
        if answer is not None and not answer.done():
            answer.set_exception(error)
            answer.exception()  # Looked at, or asyncio complains if the run ends for another reason first.

    def look_again(self) -> None:
        """Something has happened that is no answer, and may change for whom the open round waits."""
        self._news.set()

    async def news(self, timeout: float | None) -> None:
        """Waits for the next answer to the open round, but not longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._news.wait()
        self._news.clear()

    def round_waiting_for(self, i: int) -> int:
        """The number of the open round if it needs an answer of this client, else 0."""
        return self.number if self.waits_for(i) else 0

    def waits_for(self, i: int) -> bool:
        """Whether an open round needs an answer of this client."""
        return self.round is not None and self.round.waits_for(i)

    async def stop(self) -> None:
        """Sends everybody away who waits; they may come back to another server process."""
        self._stopping = True
        self._ending.set()
        self._wake(list(self._calls))

    async def end(self, reason: str) -> None:
        """Tells everybody who waits that the run is over."""
        self.end_reason = reason
        self.phase = Phase.FINISHED
        self._ending.set()
        self._wake(list(self._calls))

    async def pause(self, seconds: float) -> None:
        """Waits, but not beyond the end of the run; raises if the server stops before that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        if self._stopping and self.phase is not Phase.FINISHED:
            raise UnavailableError(STOPPING)

    def tell(self, name: str) -> None:
        """A client hears of the end, or need not hear of it any more."""
        self._told.add(name)
        self._unaware.discard(name)
        if not self._unaware:
            self._all_aware.set()

    async def all_told(self, expected: Callable[[], set[str]]) -> None:
        """Waits until everybody who is expected to has heard of the end."""
        while unaware := expected() - self._told:
            self._unaware = unaware
            self._all_aware.clear()
            await self._all_aware.wait()
