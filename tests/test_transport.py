"""Transports around transports: each verb passes through, and a slow link is paid for by the byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.access.credentials import Credentials
from common.errors import UnavailableError
from common.events import unheard
from common.wire.calls import CALLS, Call
from common.wire.capture import CaptureWriter, read_records
from fedclient.transport.base import Transport
from fedclient.transport.captured import CapturedTransport
from fedclient.transport.grpc_transport import GrpcTransport
from fedclient.transport.paced import Pace, PacedTransport
from tests.test_limits import answering


class Echo:
    """Answers with what it was sent."""

    chunk_bytes = 1 << 20
    open = True

    def ask(self, call: Call, request: bytes) -> bytes:
        """The same."""
        return request

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """The same, three times."""
        yield from [request] * 3

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """All of it."""
        return b"".join(frames)

    def close(self) -> None:
        """Notes it."""
        self.open = False


class Meter(Pace):
    """A link that takes no time and says how much it was used."""

    def __init__(self) -> None:
        super().__init__(8.0)
        self.spent: list[int] = []

    def spend(self, num_bytes: int) -> None:
        """Notes it."""
        self.spent.append(num_bytes)


def sent_through(transport: Transport, call: Call) -> bytes:
    """One call."""
    if call.streams_requests:
        return transport.push(call, iter([b"12", b"345"]))
    if call.streams_replies:
        return b"".join(transport.pull(call, b"12345"))
    return transport.ask(call, b"12345")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_passes_through_all_transports_and_is_paid_for(tmp_path: Path, call: Call) -> None:
    up, down, inner = Meter(), Meter(), Echo()
    capture = CaptureWriter(tmp_path / "c", unheard)
    transport = CapturedTransport(PacedTransport(inner, up, down), capture, itertools.count())
    reply = sent_through(transport, call)
    assert reply == b"12345" * (3 if call.streams_replies else 1)
    transport.close()
    assert not inner.open
    capture.close()
    records = list(read_records(tmp_path / "c", pytest.fail))
    assert {record.rpc for record in records} == {call.name}
    assert b"".join(record.data for record in records if record.up) == b"12345"
    assert b"".join(record.data for record in records if not record.up) == reply
    if call.name == "Renew":
        assert up.spent == down.spent == [], "a sign of life does not wait behind an upload"
    else:
        assert (sum(up.spent), sum(down.spent)) == (5, len(reply))


def test_chunks_are_small_on_a_slow_uplink() -> None:
    assert PacedTransport(Echo(), None, Meter()).chunk_bytes == 1 << 20
    assert PacedTransport(Echo(), Pace(8e6), None).chunk_bytes == 250_000
    assert PacedTransport(Echo(), Pace(8e3), None).chunk_bytes == 1 << 14


def test_a_server_that_does_not_answer_is_named_and_one_without_the_call_may_be_of_another_release() -> None:
    address = "127.0.0.1:1"
    transport = GrpcTransport(address, Credentials())
    with pytest.raises(UnavailableError, match=f"no server answers at {address}"):
        transport.ask(CALLS["Join"], b"")
    transport.close()
    with answering(1) as address:
        transport = GrpcTransport(address, Credentials())
        missing = Call("Missing", CALLS["Join"].request, CALLS["Join"].reply)
        with pytest.raises(UnavailableError, match=r"UNIMPLEMENTED: .*another release"):
            transport.ask(missing, b"")
        transport.close()
        with pytest.raises(ValueError, match="Channel closed"):
            transport.ask(CALLS["Join"], b"")
