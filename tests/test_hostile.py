"""Hostile peers beside an honest federation: it ends in the right weights, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import UnavailableError
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub
from fedserver.access.admission import FirstMessages
from fedserver.access.token_bucket import TokenBucket
from tests.killpoint import trap
from tests.processes import WAIT_S, Federation
from tests.test_transfers import BIG
from tests.test_transfers import FLAGS as BIG_FLAGS

FLAGS = [
    *("--num-clients", "3"),
    *("--alpha", "0.3", "--local-steps", "5", "--seed", "5", "--algorithm", "scaffold"),
]
MOST_MB = 200


class Peak:
    """Watches how much memory a process has at the most, until it ends."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._status = Path(f"/proc/{pid}/status")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with suppress(OSError):
            while found := re.search(r"VmHWM:\s+(\d+) kB", self._status.read_text()):
                self.mb = int(found[1]) / 1024
                time.sleep(0.05)


def run(federation: Federation, rounds: int, attack: tuple[int, float] | None) -> float:
    """A federation of three, perhaps among hostile peers; returns the server's peak of memory.

    Rounds go on during the attack, but for the last one, which c is not to answer before the attack is over.
    """
    federation.server(*FLAGS, "--rounds", str(rounds))
    peak = Peak(federation.processes["server"].pid)
    for name in ("a", "b"):
        federation.client(name)
    if attack is None:
        federation.client("c")
    else:
        connections, seconds = attack
        attackers = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.attackers",
                federation.address,
                str(connections),
                str(seconds),
                "7",
            ],
            stdout=subprocess.PIPE,
        )
        federation.client("c", through=trap("stop", "a round has come", rounds))
        tried = json.loads(attackers.communicate(timeout=seconds + WAIT_S)[0])
        assert len(tried) == 5
        assert sum(tried.values()) >= connections
        federation.wait_for_stop("c")
        federation.go_on("c")
    federation.finish(WAIT_S + 5 * rounds)
    return peak.mb


def compare(tmp_path: Path, rounds: int, connections: int, seconds: float) -> None:
    """The same run undisturbed and attacked."""
    memory = {}
    federations = {}
    for name, attack in (("undisturbed", None), ("attacked", (connections, seconds))):
        federations[name] = Federation(tmp_path / name)
        try:
            memory[name] = run(federations[name], rounds, attack)
        finally:
            federations[name].close()
    for file in ("model", "control"):
        assert federations["attacked"].bytes(file) == federations["undisturbed"].bytes(file)
    assert memory["attacked"] < memory["undisturbed"] + MOST_MB, memory
    print(memory)


def test_an_honest_federation_among_hostile_peers_ends_in_the_same_bytes(tmp_path: Path) -> None:
    compare(tmp_path, rounds=6, connections=60, seconds=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_hostile_connections_for_a_minute(tmp_path: Path) -> None:
    compare(tmp_path, rounds=60, connections=200, seconds=60)


async def _never() -> AsyncIterator[bytes]:
    await asyncio.sleep(3600)
    yield b""


async def _at_once() -> AsyncIterator[bytes]:
    yield b"first"
    yield b"second"


def test_whoever_takes_longest_to_open_a_call_gives_way() -> None:
    async def run() -> None:
        first_messages = FirstMessages(limit=2, seconds=60)
        slow = [asyncio.create_task(first_messages.first(_never())) for _ in range(2)]
        await asyncio.sleep(0)
        assert await first_messages.first(_at_once()) == b"first"
        with pytest.raises(UnavailableError, match="too many calls at once"):
            await slow[0]
        assert not slow[1].done()
        slow[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow[1]
        assert await first_messages.first(_at_once()) == b"first"

    asyncio.run(run())


def test_a_call_whose_message_does_not_come_is_given_up() -> None:
    async def run() -> None:
        with pytest.raises(UnavailableError, match="has not come"):
            await FirstMessages(seconds=0.01).first(_never())

    asyncio.run(run())


def test_a_rate_lets_a_crowd_in_and_then_so_many_a_second() -> None:
    now = [0.0]
    rate = TokenBucket(2.0, 5, lambda: now[0])
    assert [rate.take() for _ in range(6)] == [True] * 5 + [False]
    now[0] = 1.0
    assert [rate.take() for _ in range(3)] == [True, True, False]
    now[0] = 1000.0
    assert [rate.take() for _ in range(6)] == [True] * 5 + [False]


def test_a_call_without_a_message_and_one_that_is_too_large_are_refused(federation: Federation) -> None:
    federation.server(*FLAGS, "--rounds", "1")
    with grpc.insecure_channel(federation.address) as channel:
        for path in ("/fedpvr.v1.Federation/Join", "/grpc.health.v1.Health/Check"):
            call: Any = channel.stream_unary(path)
            with pytest.raises(grpc.RpcError) as caught:
                call(iter(()), timeout=WAIT_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            with pytest.raises(grpc.RpcError) as caught:
                call(iter([b"x" * 1_200_000]), timeout=WAIT_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        assert status.status == health_pb2.HealthCheckResponse.SERVING
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        labels = pb.OwnData(examples=1, class_names=["0"] * 20_000)
        stub = FederationStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Join(pb.JoinRequest(protocol_version=1, client="a", own_data=labels), timeout=WAIT_S)
        assert "names 20000 classes" in str(caught.value.details())


def test_one_client_cannot_ask_for_rounds_without_end(federation: Federation) -> None:
    """Calls whose answers it does not read hold memory until they are noticed."""
    (federation.folder / "big.py").write_text(BIG)
    federation.server(*BIG_FLAGS.split())
    own = [
        ("grpc.use_local_subchannel_pool", 1),
        # A window that grows with the link may take in all of an answer that nobody reads.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1 << 16),
    ]
    with ExitStack() as stack:
        channels = [grpc.insecure_channel(federation.address, options=own) for _ in range(3)]
        stubs = [FederationStub(stack.enter_context(channel)) for channel in channels]
        seat = stubs[0].Join(pb.JoinRequest(protocol_version=1, client="a"), timeout=WAIT_S)
        request = pb.PullRoundRequest(run_id=seat.run_id, client="a")
        pulls = [stub.PullRound(request, timeout=WAIT_S) for stub in stubs[:2] for _ in range(4)]
        assert all(next(pull).WhichOneof("frame") == "header" for pull in pulls)
        with pytest.raises(grpc.RpcError) as caught:
            next(stubs[2].PullRound(request, timeout=WAIT_S))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "'a' has 8 calls for a round open; try again"
