"""What callers may hold or repeat, so that a crowd keeps nobody out: idle connections, joins, tokens."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.access.credentials import Access
from common.errors import UnavailableError
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub
from fedserver.access.authenticate import FAILURES_AT_ONCE, PENANCE_S, Penance
from fedserver.access.token_bucket import TokenBuckets
from fedserver.console.status_client import ask
from fedserver.keys.tokens import Tokens
from fedserver.members.join_limit import BURST_OF_A_NAME, JoinLimit
from fedserver.members.members import Members
from fedserver.rpc.endpoint import MAX_WATCHERS
from tests.attackers import PREFACE, SETTINGS, frame
from tests.killpoint import trap
from tests.processes import WAIT_S, Federation, wait_until

SHORT = ("tests.tuned", "fedserver.server:IDLE_MS", "500")
STREAMS = 8
"""On one connection."""
FLAGS = ["--num-clients", "1", "--rounds", "2", "--local-steps", "2"]


def connections(address: str) -> int:
    """Established TCP connections to a server, by the kernel."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


def test_connections_without_a_call_are_closed_after_a_while(federation: Federation) -> None:
    federation.server(*FLAGS, through=SHORT)
    host, _, port = federation.address.rpartition(":")
    with ExitStack() as stack:
        for opening in [PREFACE, PREFACE + frame(SETTINGS, 0, 0)] * 10:
            idle = stack.enter_context(socket.create_connection((host, int(port)), WAIT_S))
            idle.sendall(opening)
        wait_until(lambda: connections(federation.address) == 0, "the server hangs up on all of them")


def test_a_client_that_trains_for_longer_keeps_its_run_and_its_result(federation: Federation) -> None:
    federation.server(*FLAGS, through=SHORT)
    federation.client("a", through=trap("hold", "before training"))
    federation.wait_for("a", "client 1 of 1")
    wait_until(
        lambda: connections(federation.address) == 0, "the connection of a client without a call is closed"
    )
    (federation.folder / "go").touch()
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [1, 1]
    assert "no server answers" not in federation.log("a")
    assert federation.log("a").count("joining") == 1


def test_strangers_cannot_hold_more_than_so_many_calls_open(federation: Federation) -> None:
    federation.server(*FLAGS)
    own = [("grpc.use_local_subchannel_pool", 1)]
    with ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(federation.address, options=own))
            for _ in range(MAX_WATCHERS // STREAMS + 1)
        ]
        stubs = [health_pb2_grpc.HealthStub(channel) for channel in channels]
        request = health_pb2.HealthCheckRequest()
        watches = [stub.Watch(request, timeout=WAIT_S) for stub in stubs[1:] for _ in range(STREAMS)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError, match="others watch already; ask with Check"):
            next(stubs[0].Watch(request, timeout=WAIT_S))
        assert stubs[0].Check(request, timeout=WAIT_S).status == health_pb2.HealthCheckResponse.SERVING
        watches[0].cancel()

        def has_place() -> bool:
            try:
                return bool(next(stubs[0].Watch(request, timeout=WAIT_S)))
            except grpc.RpcError:
                return False

        wait_until(has_place, "whoever leaves makes room")


def test_one_that_joins_without_end_leaves_room_for_the_others() -> None:
    now = [0.0]
    limit = JoinLimit(10, lambda: now[0])
    assert sum(limit.take("a") for _ in range(5000)) == BURST_OF_A_NAME
    assert all(limit.take(f"client-{k}") for k in range(900))
    for second in range(1, 20):
        now[0] = float(second)
        assert 4 <= sum(limit.take("a") for _ in range(330)) <= 6
        assert all(limit.take(f"client-{k}") for k in range(60))


def test_a_join_beyond_the_limit_is_told_to_try_again() -> None:
    async def run() -> None:
        members = Members(1)
        members.open([[0]], ("x",))
        for _ in range(BURST_OF_A_NAME):
            await members.join("a", None)
        with pytest.raises(UnavailableError, match="too many clients join at once; try again"):
            await members.join("a", None)

    asyncio.run(run())


def test_buckets_for_more_keys_than_there_is_room_for_start_anew() -> None:
    buckets = TokenBuckets(1.0, 1, 2, lambda: 0.0)
    assert [buckets.take(key) for key in "aabb"] == [True, False, True, False]
    assert [buckets.take(key) for key in "cab"] == [True, True, True]


def test_wrong_credentials_wait_after_some_and_only_those_of_their_address() -> None:
    now, slept = [0.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def run() -> None:
        penance = Penance(lambda: now[0], sleep)
        for port in range(FAILURES_AT_ONCE):
            await penance.serve(f"ipv4:192.0.2.1:{port}")
        assert slept == []
        await penance.serve("ipv4:192.0.2.1:99")
        await penance.serve("ipv6:[::1]:99")
        assert slept == [PENANCE_S]
        now[0] = 0.2
        await penance.serve("ipv4:192.0.2.1:99")
        assert slept == [PENANCE_S]

    asyncio.run(run())


def test_a_right_token_gets_in_while_wrong_ones_of_its_address_wait(federation: Federation) -> None:
    tokens = Tokens(federation.folder / "tokens")
    tokens.issue("a")
    federation.server(*FLAGS, "--tokens", "tokens")
    wrong, right = (("authorization", "Bearer a:x"),), Access(token_file=tokens.folder / "a.token")
    with grpc.insecure_channel(federation.address) as channel:
        call = FederationStub(channel).Status
        request = pb.StatusRequest()
        for _ in range(FAILURES_AT_ONCE):
            with pytest.raises(grpc.RpcError, match="this token is not known here"):
                call(request, metadata=wrong, timeout=WAIT_S)
        # Not all that a connection may have: the server refuses a stream while it still clears one away.
        waiting = [call.future(request, metadata=wrong, timeout=WAIT_S) for _ in range(STREAMS // 2)]
        assert ask(federation.address, right).num_clients == 1
        assert {each.code() for each in waiting} == {grpc.StatusCode.UNAUTHENTICATED}
