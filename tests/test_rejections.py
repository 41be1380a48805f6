"""What a client makes of a rejected update: damaged ones are sent again, wrong ones are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from common.errors import Fault, UnavailableError
from common.tensors.layout import Layout
from common.wire.calls import Call
from common.wire.chunks import sealed
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.replies import PushReply
from fedclient.rpc.round_stream import ON_THE_WAY
from fedpvr.v1 import federation_pb2 as pb
from tests.fuzz.client import SEAT
from tests.processes import Federation
from tests.samples import sample


class Rejecting:
    """A transport to a server that takes no update."""

    chunk_bytes = 1 << 20

    def __init__(self, fault: int) -> None:
        self._fault = fault

    def ask(self, call: Call, request: bytes) -> bytes:
        """Not needed."""
        raise NotImplementedError

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """Not needed."""
        raise NotImplementedError

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """Says no."""
        list(frames)
        reply = pb.PushUpdateReply(outcome=pb.PushUpdateReply.REJECTED, message="no")
        # By its number, as the wire has it: a newer release may have more faults.
        return reply.SerializeToString() + b"\x10" + bytes([self._fault])

    def close(self) -> None:
        """Nothing to hang up."""


class Damaging:
    """A transport that changes a byte of every answer."""

    chunk_bytes = 1 << 20

    def ask(self, call: Call, request: bytes) -> bytes:
        """As it does not come in good condition."""
        answer = bytearray(sealed(sample(call.reply, "a")))
        answer[1] ^= 1
        return bytes(answer)

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """The first frame."""
        yield self.ask(call, request)

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """The answer."""
        list(frames)
        return self.ask(call, b"")

    def close(self) -> None:
        """Nothing to hang up."""


@pytest.mark.parametrize(
    "call",
    [
        lambda connection: connection.join(None),
        lambda connection: connection.pull("1", 0, [], Layout([]), Download()),
        lambda connection: connection.renew(SEAT),
        lambda connection: connection.decline(SEAT, 1, "x"),
    ],
    ids=["Join", "PullRound", "Renew", "PushUpdate"],
)
def test_an_answer_that_was_damaged_on_its_way_is_worth_another_try(
    call: Callable[[Connection], object],
) -> None:
    with pytest.raises(UnavailableError, match="asking again"):
        call(Connection(Damaging(), "a"))


def rejected(fault: int) -> PushReply:
    """What a client hears."""
    return Connection(Rejecting(fault), "a").decline(SEAT, 1, "x")


def test_every_fault_has_the_same_name_on_both_sides() -> None:
    numbers = pb.PushUpdateReply.Fault.items()
    assert {name for name, number in numbers if number} == set(Fault)
    for name, number in numbers:
        assert rejected(number).fault == (Fault(name) if number else None)


def test_a_fault_of_a_newer_release_is_a_rejection_and_no_reason_to_send_again() -> None:
    reply = rejected(99)
    assert (reply.outcome, reply.fault, reply.message) == ("REJECTED", None, "no")
    assert reply.fault not in ON_THE_WAY


@pytest.mark.parametrize("fault", Fault)
def test_only_what_a_bad_link_can_do_is_sent_again(fault: Fault) -> None:
    damage = {"BAD_CHECKSUM", "WRONG_OFFSET", "MALFORMED", "TOO_MANY_BYTES", "TOO_FEW_BYTES"}
    assert (fault in ON_THE_WAY) is (fault in damage)


def test_a_client_that_breaks_the_contract_is_told_and_the_round_goes_on(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--rounds", "1", "--quorum", "0.5")
    federation.client("a")
    run = ("run", "--server", federation.address, "--name", "b", "--state-dir", "state/b")
    federation.start("b", "tests.boastful", *run)
    assert [federation.exit_code(name) for name in ("a", "b", "server")] == [0, 0, 3]
    said = federation.log("b")
    assert "update rejected: client 'b' joined with" in said
    assert "does not arrive whole" not in said
    assert "trying again" not in said
    assert "b has no update: client 'b' joined with" in federation.log("server")
    assert [record["updates"] for record in federation.rounds()] == [1]
