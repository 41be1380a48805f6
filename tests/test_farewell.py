"""A server that has come to its end stays until its clients have heard of it."""

from __future__ import annotations

import asyncio

from common.wire.chunks import sealed
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from tests.fuzz import known, server


def test_a_client_has_heard_of_the_end_once_that_is_on_its_way_and_not_before() -> None:
    async def run() -> None:
        federation = await server.opened(known.CONFIGS[0])
        board, service = federation.board, federation.service
        await board.end("")
        aware = asyncio.create_task(board.all_told(lambda: {known.CLIENT}))
        request = sealed(pb.PullRoundRequest(run_id=known.RUN_ID, client=known.CLIENT))
        call = service.pull_round(request, Caller("ipv4:127.0.0.1:1"))
        frame = pb.RoundFrame.FromString(await anext(call))
        assert frame.HasField("finished")
        await asyncio.sleep(0)
        assert not aware.done()
        await call.aclose()  # As when the client hangs up.
        await aware

    server.LOOP.run_until_complete(run())
