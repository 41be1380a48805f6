"""The replies to Status and WatchStatus: phase, round, clients and bytes of a run."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable

from common.errors import UnavailableError
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.config import RunConfig
from fedserver.live.states import client_state
from fedserver.members.members import Members
from fedserver.rpc.own_view import seen_by
from fedserver.rpc.sites import sites_result
from fedserver.run.board import Board, Phase
from fedserver.traffic.traffic import Traffic

MOST_LEFT_OUT = 100
"""Clients and reasons in a status."""
MAX_WATCHERS = 64
WATCH_S = 1.0
"""A watcher gets a status at most this often."""


def status_reply(
    run_id: str, config: RunConfig, board: Board, members: Members, traffic: Traffic
) -> pb.StatusReply:
    """The status of a run, also of one that is still being prepared."""
    status = pb.StatusReply(
        run_id=run_id,
        algorithm=config.algorithm,
        model=config.model,
        dataset=config.dataset,
        phase=pb.StatusReply.Phase.Value(board.phase.name),
        round=_round(config, board),
        rounds=config.rounds,
        num_clients=members.num_clients,
        needed=members.needed,
        clients=_clients(board, members),
        bytes=[
            pb.TrafficCount(direction=direction, purpose=purpose, bytes=count)
            for direction, counts in vars(traffic.by_purpose()).items()
            for purpose, count in counts.by_name().items()
        ],
        traffic=[
            pb.ClientTraffic(
                client=client, direction=direction, payload=payload, encoded=encoded, socket=socket
            )
            for (client, direction), (payload, encoded, socket) in traffic.by_client().items()
        ],
        rounds_without=board.history.rounds_without,
        left_out=[
            pb.LeftOut(client=each.client, rounds=each.rounds, reason=each.reason)
            for each in board.history.left_out()[:MOST_LEFT_OUT]
        ],
        evaluations=[_result(*each) for each in board.attendance.evaluations],
        round_seconds=board.attendance.round_s,
    )
    if board.phase is Phase.FINISHED:
        status.lost.extend(board.attendance.lost(member.name for member in members.in_order()))
    if board.last is not None:
        last = board.last
        status.last.CopyFrom(_result(last.round, last.accuracy, last.loss, last.seconds))
    if board.sites is not None:
        status.sites.CopyFrom(sites_result(*board.sites))
    return status


def _result(r: int, accuracy: float, loss: float | None, seconds: float | None = None) -> pb.RoundResult:
    loss = math.nan if loss is None else loss
    return pb.RoundResult(round=r, accuracy=accuracy, loss=loss, seconds=seconds)


def _round(config: RunConfig, board: Board) -> int:
    """The open round; the evaluation after the last one is none."""
    return min(board.number, config.rounds)


def finished(board: Board, name: str) -> pb.Finished:
    """What a client hears of the end of the run."""
    last, attendance = board.last, board.attendance
    end = pb.Finished(
        round=last.round if last else _round(board.require_run().config, board),
        accuracy=last.accuracy if last else math.nan,
        reason=board.end_reason,
        took_part=attendance.rounds_of(name),
    )
    if attendance.best is not None:
        r, accuracy = attendance.best
        end.best.CopyFrom(pb.RoundResult(round=r, accuracy=accuracy))
    return end


def _clients(board: Board, members: Members) -> list[pb.ClientStatus]:
    counted, gone = board.counted, members.gone
    waiting = [pb.ClientStatus(name=name, state="waiting") for name in members.waiting]
    return waiting + [
        pb.ClientStatus(
            name=member.name,
            index=member.index,
            examples=member.examples,
            counted_round=counted.get(member.index, 0),
            state=client_state(board, members, member.index),
            last_seen_seconds=members.presence.silent_s(member.index),
            reason=gone.get(member.index, ""),
            rule=members.rule(member.index),
        )
        for member in members.in_order()
    ]


class Watching:
    """Those who watch a run. They share what it costs to make a status."""

    def __init__(self, board: Board, status: Callable[[], pb.StatusReply]) -> None:
        self._board = board
        self._make = status
        self._made: tuple[float, Phase, pb.StatusReply] | None = None
        self._watchers = 0

    async def replies(self, caller: Caller, most: int) -> AsyncGenerator[pb.StatusReply, None]:
        """So many at the most (0: as many as there are) as this caller may see them."""
        if self._watchers >= MAX_WATCHERS:
            raise UnavailableError(f"{MAX_WATCHERS} others watch already; ask with Status")
        self._watchers += 1
        try:
            sent = 0
            before: bytes | None = None
            while True:
                phase, status = self._status()
                reply = seen_by(caller, status)
                if (now := _what_counts(reply)) != before:
                    yield reply
                    sent, before = sent + 1, now
                if phase is Phase.FINISHED or sent == most > 0:
                    return
                await self._board.pause(WATCH_S)
                caller.require_admitted()
        finally:
            self._watchers -= 1

    def _status(self) -> tuple[Phase, pb.StatusReply]:
        """The status as it is, or was less than a moment ago in the same phase."""
        now, phase = time.monotonic(), self._board.phase
        if self._made is None or self._made[1] is not phase or now >= self._made[0] + WATCH_S / 2:
            self._made = now, phase, self._make()
        return phase, self._made[2]


def _what_counts(status: pb.StatusReply) -> bytes:
    """A status without what changes because time goes by, or because somebody watches."""
    rest = pb.StatusReply()
    rest.CopyFrom(status)
    rest.ClearField("traffic")
    tensors = [count for count in status.bytes if count.purpose != "other"]
    rest.ClearField("bytes")
    rest.bytes.extend(tensors)
    for client in rest.clients:
        client.ClearField("last_seen_seconds")
    return rest.SerializeToString(deterministic=True)
