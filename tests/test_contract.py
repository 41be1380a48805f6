"""The service as any gRPC client meets it: a real server, hand-made messages, good and bad."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.server_step.updates import reduced
from common.tensors.layout import Flat, Layout, Purpose
from common.wire import chunks
from common.wire.bundles import bundles
from common.wire.encoding import Encoding
from common.wire.manifest import manifest, read_manifest
from common.wire.receiver import Receiver
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub
from tests.processes import WAIT_S, Federation, wait_until
from tests.samples import chunk_of

Reply = pb.PushUpdateReply
FLAGS = "--model problem:network --dataset problem:data --num-clients 2 --rounds 3 --local-steps 1"


@dataclass
class Peers:
    """Two hand-made clients of one server."""

    federation: Federation
    stub: FederationStub
    seats: dict[str, pb.JoinReply]
    rounds: dict[int, tuple[pb.RoundHeader, Layout, Flat]]

    def pull(self, client: str = "a", after: int = 0, held: tuple[int, ...] = ()) -> Iterator[pb.RoundFrame]:
        """Asks for a round."""
        run_id = self.seats["a"].run_id
        return self.stub.PullRound(
            pb.PullRoundRequest(run_id=run_id, client=client, after_round=after, held_rounds=held),
            timeout=WAIT_S,
        )

    def receive(self, client: str = "a", after: int = 0, held: tuple[int, ...] = ()) -> pb.RoundHeader:
        """Receives a round whole and keeps it."""
        frames = self.pull(client, after, held)
        header = next(frames).header
        layout = read_manifest(header.tensors).layout
        flat = layout.allocate()
        receiver = Receiver(layout, flat)
        for frame in frames:
            chunk = chunks.read_chunk(frame.SerializeToString())
            assert chunk is not None
            receiver.add(chunk)
        receiver.finish()
        self.rounds[header.round] = (header, layout, flat)
        return header

    def update(self, client: str, r: int) -> list[pb.UpdateFrame]:
        """A good update that returns what was received, but goes a step down on S_svr: c_i becomes one."""
        received, announced, flat = self.rounds[r]
        layout = announced.part(Purpose.MODEL, Purpose.BUFFER, Purpose.CONTROL)
        up = flat[: layout.num_bytes].copy()
        for y in reduced(layout, up):
            y -= received.eta_l
        for index in layout.indices(Purpose.CONTROL):
            layout.array(up, index)[...] = 1.0
        seat = self.seats[client]
        header = pb.UpdateHeader(
            run_id=seat.run_id,
            client=client,
            round=r,
            update_id=f"{client}-{r}",
            steps=1,
            examples=len(seat.shard.indices),
            loss=1.0,
            fingerprint=seat.model.fingerprint,
            tensors=manifest(Encoding(layout)),
        )
        alone = bundles(layout, up, most_bytes=0)
        frames = [pb.UpdateFrame.FromString(message.data) for message in alone]
        return [pb.UpdateFrame(header=header), *frames]

    def push(self, frames: list[pb.UpdateFrame]) -> pb.PushUpdateReply:
        """Hands in an update."""
        return self.stub.PushUpdate(iter(frames), timeout=WAIT_S)

    def arrived(self, client: str = "a") -> int:
        """Tensor bytes of a client that have come, of updates that count and of others."""
        status = self.stub.Status(pb.StatusRequest(), timeout=WAIT_S)
        return sum(t.payload for t in status.traffic if (t.client, t.direction) == (client, "up"))

    def wait_for_chunks(self, before: int, frames: list[pb.UpdateFrame]) -> None:
        """Waits until these have come too."""
        sent = sum(len(frame.chunk.data) for frame in frames)
        wait_until(lambda: self.arrived() == before + sent, f"{sent} bytes after {before}")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """A server in round 1, with clients a and b seated."""
    federation = Federation(tmp_path_factory.mktemp("contract"))
    federation.server(*FLAGS.split())
    with grpc.insecure_channel(federation.address) as channel:
        stub = FederationStub(channel)
        seats: dict[str, pb.JoinReply] = {}

        def join(name: str) -> None:
            seats[name] = stub.Join(pb.JoinRequest(protocol_version=1, client=name), timeout=WAIT_S)

        # Names decide, not who comes first.
        threads = [threading.Thread(target=join, args=(name,)) for name in ("b", "a")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        peers = Peers(federation, stub, seats, {})
        peers.receive()
        yield peers
    federation.close()


def test_a_seat_tells_what_a_client_needs(peers: Peers) -> None:
    a, b = peers.seats["a"], peers.seats["b"]
    assert (a.index, b.index, a.num_clients, a.rounds) == (0, 1, 2, 3)
    assert a.run_id == b.run_id
    assert a.model.name == "problem:network"
    assert a.model.dtype == "float64"
    assert not set(a.shard.indices) & set(b.shard.indices)


def test_a_known_client_that_joins_again_gets_the_same_seat(peers: Peers) -> None:
    again = peers.stub.Join(pb.JoinRequest(protocol_version=1, client="a"), timeout=WAIT_S)
    assert again == peers.seats["a"]


def test_the_round_header_carries_the_settings_and_s_svr(peers: Peers) -> None:
    header, layout, _ = peers.rounds[1]
    assert (header.round, header.rounds, header.local_steps, header.counted_round) == (1, 3, 1, 0)
    assert header.eta_l == pytest.approx(0.1)
    assert [layout.specs[k].name for k in layout.indices(Purpose.CONTROL)] == ["4.weight", "4.bias"]


Change = Callable[[list[pb.UpdateFrame]], object]


def _replace_chunk(frames: list[pb.UpdateFrame], value: float) -> None:
    """The same chunk with one number changed and its checksum right."""
    chunk = frames[1].chunk
    data = np.frombuffer(chunk.data, np.float64).copy()
    data[3] = value
    frames[1] = pb.UpdateFrame(chunk=chunk_of(chunk.tensor, chunk.offset, data.view(np.uint8)))


def _shape(frames: list[pb.UpdateFrame]) -> None:
    spec = frames[0].header.tensors[0]
    del spec.shape[:]
    spec.shape.extend([6, 7])


def _dtype(frames: list[pb.UpdateFrame]) -> None:
    spec = frames[0].header.tensors[0]
    spec.dtype = 5  # type: ignore[assignment]


def _huge(frames: list[pb.UpdateFrame]) -> None:
    spec = frames[0].header.tensors[0]
    spec.shape[0], spec.num_bytes = 2**34, 2**34 * 6 * 8


BAD: dict[str, tuple[Change, int, str]] = {
    "wrong shape": (_shape, Reply.WRONG_SHAPE, "0.weight"),
    "wrong dtype": (_dtype, Reply.WRONG_DTYPE, "0.weight"),
    "an announced terabyte": (_huge, Reply.WRONG_SHAPE, "0.weight"),
    "unknown tensor": (
        lambda f: f[0].header.tensors.add(name="zz", dtype=2, shape=[1], purpose=1, codec=1, num_bytes=8),
        Reply.UNKNOWN_TENSOR,
        "zz",
    ),
    "missing tensor": (lambda f: f[0].header.tensors.pop(), Reply.MISSING_TENSOR, "4.bias"),
    "NaN": (lambda f: _replace_chunk(f, float("nan")), Reply.NOT_FINITE, "0.weight"),
    "infinity": (lambda f: _replace_chunk(f, float("-inf")), Reply.NOT_FINITE, "0.weight"),
    "bad CRC": (lambda f: setattr(f[1].chunk, "crc32c", 1), Reply.BAD_CHECKSUM, "0.weight"),
    "wrong offset": (lambda f: f.pop(1), Reply.WRONG_OFFSET, "0.bias"),
    "more bytes than announced": (lambda f: f.append(f[-1]), Reply.TOO_MANY_BYTES, "4.bias"),
    "a chunk beyond its tensor": (
        lambda f: setattr(f[1].chunk, "data", f[1].chunk.data * 2),
        Reply.TOO_MANY_BYTES,
        "0.weight",
    ),
    "fewer bytes than announced": (lambda f: f.pop(), Reply.TOO_FEW_BYTES, "4.bias"),
    "a later round": (lambda f: setattr(f[0].header, "round", 2), Reply.WRONG_ROUND, ""),
    "round zero": (lambda f: setattr(f[0].header, "round", 0), Reply.WRONG_ROUND, ""),
    "another model": (lambda f: setattr(f[0].header, "fingerprint", "beef"), Reply.WRONG_MODEL, ""),
    "an id that steers terminals": (
        lambda f: setattr(f[0].header, "update_id", "\x1b[2J"),
        Reply.BROKEN_CONTRACT,
        "",
    ),
    "a long id": (lambda f: setattr(f[0].header, "update_id", "a" * 65), Reply.BROKEN_CONTRACT, ""),
    "no steps": (lambda f: setattr(f[0].header, "steps", 0), Reply.BROKEN_CONTRACT, ""),
    "other examples": (lambda f: setattr(f[0].header, "examples", 10**9), Reply.BROKEN_CONTRACT, ""),
    "a loss that is not finite": (lambda f: setattr(f[0].header, "loss", float("nan")), Reply.NOT_FINITE, ""),
    "no header": (lambda f: f.pop(0), Reply.MALFORMED, ""),
    "two headers": (lambda f: f.insert(1, f[0]), Reply.MALFORMED, ""),
    "nothing at all": (lambda f: f.clear(), Reply.MALFORMED, ""),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_update_is_rejected_with_its_fault_and_the_round_goes_on(peers: Peers, case: str) -> None:
    change, fault, tensor = BAD[case]
    frames = peers.update("a", 1)
    change(frames)
    reply = peers.push(frames)
    assert reply.outcome == Reply.REJECTED
    assert (reply.fault, reply.tensor) == (fault, tensor)
    assert reply.message
    assert "\n" not in reply.message
    status = peers.stub.Status(pb.StatusRequest(), timeout=WAIT_S)
    assert (status.round, status.clients[0].state) == (1, "training")
    left = list((peers.federation.folder / "run" / "spool").rglob("*"))
    # What ends early may have been cut, and waits for the client to go on with it.
    assert all(path.suffix == ".part" for path in left)
    assert len(left) <= 1


def _code(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


def test_strangers_get_a_status_that_says_why(peers: Peers) -> None:
    stub, run_id = peers.stub, peers.seats["a"].run_id
    update = peers.update("a", 1)
    update[0].header.client = "stranger"
    assert _code(lambda: peers.push(update)) == (
        grpc.StatusCode.NOT_FOUND,
        "client 'stranger' has not joined this run; call Join first",
    )
    code, _ = _code(
        lambda: list(stub.PullRound(pb.PullRoundRequest(run_id=run_id, client="x"), timeout=WAIT_S))
    )
    assert code is grpc.StatusCode.NOT_FOUND
    code, text = _code(
        lambda: list(stub.PullRound(pb.PullRoundRequest(run_id="old", client="a"), timeout=WAIT_S))
    )
    assert code is grpc.StatusCode.NOT_FOUND
    assert run_id in text
    code, text = _code(lambda: stub.Join(pb.JoinRequest(protocol_version=1, client="c"), timeout=WAIT_S))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "all 2 seats are taken" in text
    code, text = _code(lambda: stub.Join(pb.JoinRequest(protocol_version=9, client="a"), timeout=WAIT_S))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "protocol version 1" in text
    code, text = _code(lambda: stub.Join(pb.JoinRequest(protocol_version=1, client="../x"), timeout=WAIT_S))
    assert "a client name has" in text


def test_bytes_that_are_no_protobuf_disturb_nobody(peers: Peers) -> None:
    with grpc.insecure_channel(peers.federation.address) as channel:
        push: Any = channel.stream_unary("/fedpvr.v1.Federation/PushUpdate")
        reply = pb.PushUpdateReply.FromString(push(iter([b"\xff" * 100]), timeout=WAIT_S))
        assert (reply.outcome, reply.fault) == (Reply.REJECTED, Reply.MALFORMED)
        join: Any = channel.unary_unary("/fedpvr.v1.Federation/Join")
        code, text = _code(lambda: join(b"\xff" * 100, timeout=WAIT_S))
        assert code is grpc.StatusCode.DATA_LOSS
        assert "expected a JoinRequest, got other bytes" in text
    assert peers.stub.Status(pb.StatusRequest(), timeout=WAIT_S).round == 1


def test_health_and_reflection_are_the_standard_ones(peers: Peers) -> None:
    with grpc.insecure_channel(peers.federation.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "fedpvr.v1.Federation"):
            reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflection.ServerReflectionInfo(iter([request]), timeout=WAIT_S)
        assert "fedpvr.v1.Federation" in [service.name for service in answer.list_services_response.service]


def test_of_two_uploads_of_one_client_the_later_goes_on_and_nothing_is_mixed(peers: Peers) -> None:
    """The first stream hangs halfway; the second starts anew, and what the first brings then is refused."""
    frames = peers.update("a", 1)
    spoiled = peers.update("a", 1)
    _replace_chunk(spoiled, 7.0)
    go_on, before = threading.Event(), peers.arrived()

    def hanging() -> Iterator[pb.UpdateFrame]:
        yield from spoiled[:3]
        go_on.wait(WAIT_S)
        yield from spoiled[3:]

    caught: list[tuple[grpc.StatusCode, str]] = []
    first = threading.Thread(
        target=lambda: caught.append(_code(lambda: peers.stub.PushUpdate(hanging(), timeout=WAIT_S)))
    )
    first.start()
    peers.wait_for_chunks(before, spoiled[1:3])

    def second() -> Iterator[pb.UpdateFrame]:
        """Lets the first stream go on when half of it is through, and breaks off: it was not to count."""
        yield from frames[:4]
        go_on.set()
        first.join(WAIT_S)
        yield frames[0]

    reply = peers.stub.PushUpdate(second(), timeout=WAIT_S)
    assert caught == [
        (grpc.StatusCode.ABORTED, "another stream of this client goes on with its update"),
    ]
    assert (reply.outcome, reply.fault) == (Reply.REJECTED, Reply.MALFORMED)
    assert not list((peers.federation.folder / "run" / "spool").rglob("*"))


@pytest.mark.parametrize("how", ["cancelled", "ended"])
def test_what_came_of_a_broken_upload_is_still_there(peers: Peers, how: str) -> None:
    frames = peers.update("a", 1)
    for _ in range(5):
        over, before = threading.Event(), peers.arrived()

        def broken(over: threading.Event = over) -> Iterator[pb.UpdateFrame]:
            yield from frames[:3]
            if how == "cancelled":
                over.wait(WAIT_S)

        call: Any = peers.stub.PushUpdate.future(broken(), timeout=WAIT_S)
        header = frames[0].header
        asked = pb.UpdateProgressRequest(
            run_id=header.run_id, client="a", round=1, update_id=header.update_id
        )
        peers.wait_for_chunks(before, frames[1:3])  # Asking earlier would end the stream.
        call.cancel()
        over.set()
        received = peers.stub.UpdateProgress(asked, timeout=WAIT_S).received
        assert (received.tensor, received.offset) == (2, 0)
        whole = [pb.UpdateFrame(header=header), *frames[3:-1]]
        whole[0].header.resume_from.CopyFrom(received)
        reply = peers.push(whole)
        assert reply.fault == Reply.TOO_FEW_BYTES, "it goes on behind what was there"
        stale = peers.push(whole)
        assert (stale.outcome, stale.fault) == (Reply.REJECTED, Reply.WRONG_OFFSET)


def test_the_conversation_to_its_end(peers: Peers) -> None:
    """Accepted, duplicate, late, declined, a lost c_i restored, finished: in the order a run has them."""
    a, b = peers.update("a", 1), peers.update("b", 1)
    assert peers.push(a).outcome == Reply.ACCEPTED
    assert peers.push(a).outcome == Reply.DUPLICATE
    assert peers.push(b).outcome == Reply.ACCEPTED

    header = peers.receive("a", after=1, held=(1,))
    assert (header.round, header.counted_round) == (2, 1)
    _, layout, flat = peers.rounds[2]
    assert not layout.indices(Purpose.CLIENT_CONTROL)
    for index in layout.indices(Purpose.CONTROL):
        np.testing.assert_allclose(layout.array(flat, index), 1.0, rtol=1e-6)  # c is the mean of the c_i.
    assert peers.push(peers.update("a", 1)).outcome == Reply.LATE

    seat = peers.seats["b"]
    declined = pb.UpdateHeader(run_id=seat.run_id, client="b", round=2, declined="the loss is nan")
    assert peers.push([pb.UpdateFrame(header=declined)]).outcome == Reply.ACCEPTED
    assert peers.push(peers.update("b", 2)).outcome == Reply.DUPLICATE
    assert peers.push(peers.update("a", 2)).outcome == Reply.ACCEPTED

    header = peers.receive("b", after=2)
    assert (header.round, header.counted_round) == (3, 1), "what was declined does not count"
    _, layout, flat = peers.rounds[3]
    lost = layout.indices(Purpose.CLIENT_CONTROL)
    assert [layout.specs[k].name for k in lost] == ["4.weight", "4.bias"]
    assert all((layout.array(flat, k) == 1.0).all() for k in lost)

    for client in ("b", "a"):
        assert peers.push(peers.update(client, 3)).outcome == Reply.ACCEPTED
    for client in ("a", "b"):
        (frame,) = peers.pull(client, after=3)
        assert frame.finished.round == 3
    assert peers.federation.exit_code("server") == 0
    assert [record["updates"] for record in peers.federation.rounds()] == [2, 1, 2]
