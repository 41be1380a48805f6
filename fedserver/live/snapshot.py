"""What a run is doing at a moment, from the board, the members and the byte ledger."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from common.access.expiry import valid_until
from common.atomic import file_stamp
from common.events import Event
from common.live.record import (
    ABSENT_STATES,
    NOT_CONNECTED,
    LiveCertificate,
    LiveClient,
    LiveRecord,
    LiveUpload,
)
from common.processes.identity import own_process
from fedserver.config import RunConfig
from fedserver.events.rounds import RoundOpened, UpdateAccepted
from fedserver.federation import Federation
from fedserver.live.states import client_state
from fedserver.members.seats import Member
from fedserver.run.board import Phase
from fedserver.run.round import Declined, Excused


class LiveNews:
    """A listener that remembers what is nowhere else: when a round opened, and the last losses."""

    def __init__(self) -> None:
        self.opened = 0.0
        self.losses: dict[str, tuple[float, int]] = {}
        """Loss and round by client."""

    def __call__(self, event: Event) -> None:
        """Something happened."""
        if isinstance(event, UpdateAccepted):
            self.losses[event.client] = event.loss, event.round
        elif isinstance(event, RoundOpened):
            self.opened = time.time()


@dataclass(frozen=True)
class Constants:
    """What does not change while a process runs."""

    run_id: str
    config: RunConfig
    address: str = ""
    certificate: Path | None = None
    """With TLS; may be renewed meanwhile."""


class Snapshots:
    """Of one run in one process."""

    def __init__(self, constants: Constants, federation: Federation, news: LiveNews) -> None:
        self._constants = constants
        self._board = federation.board
        self._members = federation.members
        self._traffic = federation.traffic
        self._news = news
        self._started = self._since = time.time()
        self._doing: tuple[Phase, int] | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._expires: float | None = None
        self._epoch = time.time() - time.monotonic()
        """Taken once, so that what has not changed has the same time in the next snapshot."""

    def now(self, ended: float | None = None, outcome: str = "") -> LiveRecord:
        """What the run is doing; must be called on its event loop."""
        config, board, members = self._constants.config, self._board, self._members
        answers = board.round.answers if board.round is not None and board.number else {}
        return LiveRecord(
            run_id=self._constants.run_id,
            algorithm=config.algorithm,
            model=config.model,
            dataset=config.dataset,
            process=own_process(os.getpid()),
            address=self._constants.address,
            started=self._started,
            ended=ended,
            outcome=outcome,
            phase=board.phase.word,
            since=self._since_when(),
            round=min(board.number or board.attendance.rounds, config.rounds),
            rounds=config.rounds,
            drawn=len(answers),
            answered=sum(answer is not None for answer in answers.values()),
            num_clients=members.num_clients,
            needed=members.needed,
            clients=self._clients(over=ended is not None or board.phase is Phase.FINISHED),
            certificate=self._certificate(),
        )

    def _certificate(self) -> LiveCertificate | None:
        path = self._constants.certificate
        if path is None:
            return None
        stamp = file_stamp(path)
        if stamp != self._stamp:
            end = valid_until(path)
            self._stamp, self._expires = stamp, None if end is None else end.timestamp()
        return None if self._expires is None else LiveCertificate(path=str(path), expires=self._expires)

    def _since_when(self) -> float:
        doing = self._board.phase, self._board.number
        if doing != self._doing:
            self._doing = doing
            self._since = self._news.opened if doing[0] is Phase.TRAINING and doing[1] else time.time()
        return self._since

    def _clients(self, *, over: bool) -> tuple[LiveClient, ...]:
        """Once all is over, the server itself hangs up, or clients do: that says nothing about them."""
        waiting = [LiveClient(name=name, state="waiting") for name in self._members.waiting]
        lost = frozenset() if over else self._traffic.disconnected()
        return (*waiting, *(self._client(member, lost) for member in self._members.in_order()))

    def _client(self, member: Member, lost: frozenset[str]) -> LiveClient:
        i, board, members = member.index, self._board, self._members
        state, heard = client_state(board, members, i), members.presence.heard_at(i)
        if member.name in lost and state not in ABSENT_STATES:
            state = NOT_CONNECTED
        answer = board.answer_of(i)
        reason = answer.why if isinstance(answer, Declined | Excused) else ""
        loss, loss_round = self._news.losses.get(member.name, (None, 0))
        return LiveClient(
            name=member.name,
            index=i,
            state=state,
            heard_at=None if heard is None else self._epoch + heard,
            examples=member.examples,
            counted_round=board.counted.get(i, 0),
            loss=loss,
            loss_round=loss_round,
            upload=self._upload(i, state),
            reason=members.gone.get(i, reason),
            rule=members.rule(i),
        )

    def _upload(self, i: int, state: str) -> LiveUpload | None:
        seen, run = self._members.uploads_seen.of(i), self._board.run
        if seen is None or run is None:
            return None
        layout = run.up.encoded
        return LiveUpload(
            received=seen.received,
            # Up to the last byte of the last tensor, without what aligns the next one.
            total=layout.offsets[-1] + layout.specs[-1].num_bytes,
            speed=seen.speed,
            under_way=state == "uploading",
        )
