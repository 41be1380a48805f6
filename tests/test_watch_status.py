"""WatchStatus: a status whenever something has changed, and the end of a run for certain."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import pytest

from common.errors import UnavailableError
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub
from fedserver.access.authenticate import Caller
from fedserver.rpc.status import MAX_WATCHERS, Watching
from fedserver.run.board import Board
from tests.processes import Federation

FLAGS = "--model problem:network --dataset problem:data --rounds 3 --local-steps 1 --num-clients 2"
OPERATOR = Caller("ipv4:127.0.0.1:1", None)


def test_who_watches_sees_the_run_begin_and_hears_of_its_end(federation: Federation) -> None:
    federation.server(*FLAGS.split())
    with grpc.insecure_channel(federation.address) as channel:
        replies = FederationStub(channel).WatchStatus(pb.WatchStatusRequest(), timeout=60)
        assert next(replies).phase in (pb.StatusReply.PREPARING, pb.StatusReply.WAITING)
        federation.client("a")
        federation.client("b")
        found = list(replies)
    last = found[-1]
    assert (last.phase, last.round, list(last.lost)) == (pb.StatusReply.FINISHED, 3, [])
    federation.finish()
    assert [each.accuracy for each in last.evaluations] == [r["accuracy"] for r in federation.rounds()]
    assert last.round_seconds > 0


def test_nothing_is_sent_while_nothing_changes_and_the_cost_of_a_status_is_shared() -> None:
    async def watched() -> list[int]:
        board, made = Board(), itertools.count()

        def status() -> pb.StatusReply:
            client = pb.ClientStatus(name="a", last_seen_seconds=next(made))
            other = pb.TrafficCount(direction="up", purpose="other", bytes=int(client.last_seen_seconds))
            return pb.StatusReply(round=3, clients=[client], bytes=[other])

        watching = Watching(board, status)
        streams = [watching.replies(OPERATOR, 0) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        assert next(made) == 1
        tasks = [asyncio.create_task(_rest(stream)) for stream in streams]
        await asyncio.sleep(0)
        await board.end("over")
        return await asyncio.gather(*tasks)

    assert asyncio.run(watched()) == [0, 0, 0]


async def _rest(stream: object) -> int:
    return len([reply async for reply in stream])  # type: ignore[attr-defined]


def test_a_stopping_server_says_so_and_too_many_are_turned_away() -> None:
    async def made() -> None:
        board = Board()
        watching = Watching(board, pb.StatusReply)
        streams = [watching.replies(OPERATOR, 0) for _ in range(MAX_WATCHERS)]
        for stream in streams:
            await anext(stream, None)
        with pytest.raises(UnavailableError, match="64 others watch already"):
            await anext(watching.replies(OPERATOR, 0))
        await board.stop()
        with pytest.raises(UnavailableError, match="the server is stopping"):
            await anext(streams[0])
        assert await anext(watching.replies(OPERATOR, 1))
        for stream in streams:
            await stream.aclose()

    asyncio.run(made())
