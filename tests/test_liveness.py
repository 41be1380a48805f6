"""A connection that carries nothing is given up; one that is slow, or has nothing to say, is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from common.access.credentials import Credentials
from common.errors import UnavailableError
from common.tensors.layout import Layout
from common.wire.calls import CALLS, SERVICE
from common.wire.chunks import sealed
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.round_stream import RunEnded
from fedclient.transport import liveness
from fedclient.transport.grpc_transport import GrpcTransport
from fedclient.transport.liveness import (
    ANSWER_S,
    LEAST_BYTES,
    MOVING_S,
    OVERDUE_S,
    WAITING_S,
    Liveness,
    bytes_to,
)
from fedpvr.v1 import federation_pb2 as pb
from tests.proxy import Fault, Proxy
from tests.test_limits import answering


class Link:
    """A connection whose bytes, answers and clock are set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.bytes: int | None = 0
        self.answers = False
        self.bytes_while_asked = 0
        self.asked: list[float] = []
        self.hung_up: list[float] = []
        self.liveness = Liveness(
            lambda: self.bytes, self._answer, self.hung_up.append, loses_calls=True, now=lambda: self.now
        )

    def _answer(self, seconds: float) -> bool:
        self.asked.append(self.now)
        self.now += seconds
        self.bytes = (self.bytes or 0) + self.bytes_while_asked
        return self.answers

    def wait(self, seconds: float) -> bool:
        """Looks at the end of it."""
        self.now += seconds
        return self.liveness.look()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    """Looked at by the test alone."""
    monkeypatch.setattr(liveness, "LOOK_S", 3600.0)
    return Link()


def test_a_transfer_without_bytes_or_an_answer_is_given_up(link: Link) -> None:
    with link.liveness.call(may_wait=False):
        assert link.wait(MOVING_S - 1)
        assert not link.asked
        assert not link.wait(1)
    assert link.hung_up == [MOVING_S + ANSWER_S]


def test_a_slow_link_is_not_even_asked(link: Link) -> None:
    with link.liveness.call(may_wait=False):
        for _ in range(100):
            link.bytes = (link.bytes or 0) + LEAST_BYTES
            assert link.wait(MOVING_S)
    assert not link.asked


def test_pings_alone_are_no_progress(link: Link) -> None:
    with link.liveness.call(may_wait=False):
        link.bytes = 17
        assert not link.wait(MOVING_S)


def test_a_server_that_answers_may_take_its_time_and_is_not_asked_again_and_again(link: Link) -> None:
    link.answers = True
    with link.liveness.call(may_wait=False):
        assert link.wait(MOVING_S)
        assert link.wait(WAITING_S - 1)
        assert len(link.asked) == 1
        assert link.wait(1)
    assert len(link.asked) == 2


def test_bytes_that_come_instead_of_an_answer_are_one(link: Link) -> None:
    link.bytes_while_asked = LEAST_BYTES
    with link.liveness.call(may_wait=False):
        assert link.wait(MOVING_S)
    assert len(link.asked) == 1


def test_who_waits_for_a_round_asks_less_often_until_its_first_frame(link: Link) -> None:
    link.answers = True
    with link.liveness.call(may_wait=True) as call:
        assert link.wait(WAITING_S - 1)
        assert not link.asked
        assert link.wait(1)
        link.liveness.heard(call)
        assert link.wait(MOVING_S)
    assert len(link.asked) == 2


@pytest.mark.parametrize("loses_calls", [True, False], ids=["plain", "TLS"])
def test_a_call_without_a_word_for_long_is_asked_again_where_it_may_be_lost(
    link: Link, loses_calls: bool
) -> None:
    link.answers = True
    link.liveness = Liveness(
        lambda: link.bytes, link._answer, link.hung_up.append, loses_calls=loses_calls, now=lambda: link.now
    )
    cancelled: list[str] = []
    with link.liveness.call(may_wait=True) as old:
        old.cancel = lambda: cancelled.append("old")
        link.now += OVERDUE_S - 1
        with link.liveness.call(may_wait=True) as young:
            young.cancel = lambda: cancelled.append("young")
            assert link.wait(WAITING_S)
        assert (old.overdue, young.overdue) == (loses_calls, False)
    assert cancelled == ["old"] * loses_calls
    assert not link.hung_up


@pytest.mark.parametrize("bytes_now", [None, 0], ids=["nobody can tell", "no call"])
def test_nothing_is_given_up_if_nobody_can_tell_or_needs_it(link: Link, bytes_now: int | None) -> None:
    link.bytes = bytes_now
    if bytes_now is None:
        with link.liveness.call(may_wait=False):
            assert link.wait(1e6)
    else:
        assert link.wait(1e6)
    assert not link.asked


def test_a_real_connection_that_falls_silent_ends_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("MOVING_S", 0.1), ("ANSWER_S", 0.5), ("LOOK_S", 0.05)):
        monkeypatch.setattr(liveness, name, seconds)
    with answering(1_000_000) as server, Proxy(server, [Fault("half-open", False, 100_000)]) as proxy:
        transport = GrpcTransport(proxy.address, Credentials())
        line = f"no server answers at {proxy.address} \\(connected, but nothing came for"
        with pytest.raises(UnavailableError, match=line):
            transport.ask(CALLS["Renew"], b"")
        assert len(proxy.made) == 1
        with pytest.raises(UnavailableError, match=line):
            transport.ask(CALLS["Renew"], b"")
        transport.close()


@contextmanager
def forgetful() -> Iterator[tuple[str, list[str]]]:
    """A server that never answers the first call; the list has what became of each."""
    calls: list[str] = []
    gone = threading.Event()

    def reply(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        calls.append("forgotten" if not calls else "answered")
        if len(calls) == 1:
            context.add_callback(gone.set)
            gone.wait()
        yield sealed(pb.RoundFrame(finished=pb.Finished(round=3)))

    methods: dict[str, Any] = {"PullRound": grpc.unary_stream_rpc_method_handler(reply)}
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", calls
        finally:
            server.stop(None).wait()


def test_a_call_that_the_server_has_forgotten_is_asked_again_over_the_same_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("WAITING_S", 0.1), ("OVERDUE_S", 0.2), ("LOOK_S", 0.05)):
        monkeypatch.setattr(liveness, name, seconds)
    with forgetful() as (server, calls), Connection(GrpcTransport(server, Credentials()), "a") as connection:
        answer = connection.pull("1", 0, [], Layout([]), Download())
    assert answer == RunEnded(3, 0.0, "")
    assert calls == ["forgotten", "answered"]


def test_the_kernel_counts_what_passes() -> None:
    with answering(1_000_000) as server:
        transport: Any = GrpcTransport(server, Credentials())
        assert bytes_to(server) is None
        transport.ask(CALLS["Renew"], b"")
        assert 1_000_000 < (bytes_to(server) or 0) < 2_100_000, "both ends are in this process"
        transport.close()
    assert bytes_to("somewhere") is None
