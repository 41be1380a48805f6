"""The reply to Status: phase, round, clients and bytes of a run."""

from __future__ import annotations

import math

from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from fedserver.live.states import client_state
from fedserver.members.members import Members
from fedserver.rpc.sites import sites_result
from fedserver.run.board import Board
from fedserver.traffic.traffic import Traffic

MOST_LEFT_OUT = 100
"""Clients and reasons in a status."""


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
    )
    if board.last is not None:
        last, loss = board.last, math.nan if board.last.loss is None else board.last.loss
        status.last.CopyFrom(
            pb.RoundResult(round=last.round, accuracy=last.accuracy, loss=loss, seconds=last.seconds)
        )
    if board.sites is not None:
        status.sites.CopyFrom(sites_result(*board.sites))
    return status


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
    counted = board.run.variates.counted if board.run is not None else {}
    gone = members.gone
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
