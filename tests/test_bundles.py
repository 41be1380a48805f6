"""Several chunks in one message: the same tensors, the same accounts, and peers that take one chunk only."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.access.credentials import Credentials
from common.errors import Fault, WireError
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from common.wire.bundles import BUNDLE_BYTES, MAX_CHUNKS, Bundle, bundles, frames_in
from common.wire.byte_counts import chunk_sizes
from common.wire.calls import CALLS, Call
from common.wire.chunks import CHUNK_BYTES, START, Position, read_chunk, sealed
from common.wire.limits import MAX_REQUEST_BYTES
from common.wire.manifest import read_manifest
from common.wire.messages import UNREADABLE, CallFollower, ClassifiedMessage
from common.wire.receiver import Receiver
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.round_stream import ReceivedRound
from fedclient.rpc.seat import Seat
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.transport.base import Transport
from fedclient.transport.grpc_transport import GrpcTransport
from fedpvr.v1 import federation_pb2 as pb
from fedserver.traffic.traffic import Traffic
from fedwire.source import Capture
from fedwire.stats import compare_with_run, statistics
from tests.processes import Federation
from tests.samples import chunk_frame, chunk_of, received

SIZES = st.lists(st.tuples(st.integers(0, 90), st.sampled_from([Purpose.MODEL, Purpose.BUFFER])), max_size=30)
MOST = st.one_of(st.just(0), st.integers(0, 300), st.just(BUNDLE_BYTES))
CHUNKS = st.integers(1, 50)


def layout_of(sizes: Iterable[tuple[int, Purpose]]) -> Layout:
    """x of tensors of so many bytes, and c, which is as large."""
    x = [TensorSpec(f"t{k}", "bool", (n,), purpose) for k, (n, purpose) in enumerate(sizes)]
    return Layout([*x, *(TensorSpec(spec.name, "bool", spec.shape, Purpose.CONTROL) for spec in x)])


def filled(layout: Layout) -> Flat:
    """A buffer of random bytes."""
    return np.random.default_rng(0).integers(0, 256, layout.num_bytes, np.uint8)


def frames_of(messages: Iterable[Bundle]) -> list[bytes]:
    """What a receiver finds in messages."""
    return [bytes(frame) for message in messages for frame in frames_in(message.data)]


def alone(frame: bytes) -> bytes:
    """A chunk's frame as it is where the chunk travels alone."""
    return b"\x12" + frame[1:]


@given(SIZES, CHUNKS, MOST)
def test_what_goes_in_comes_out(sizes: list[tuple[int, Purpose]], chunk_bytes: int, most: int) -> None:
    layout = layout_of(sizes)
    sent = filled(layout)
    messages = [bundle.data for bundle in bundles(layout, sent, chunk_bytes=chunk_bytes, most_bytes=most)]
    assert received(layout, messages) == [layout.raw(sent, k).tobytes() for k in range(len(layout.specs))]


@given(SIZES, CHUNKS, MOST, st.integers(0, 9))
def test_a_message_is_what_protobuf_would_write_of_the_chunks_that_would_travel_alone(
    sizes: list[tuple[int, Purpose]], chunk_bytes: int, most: int, first: int
) -> None:
    layout = layout_of(sizes)
    flat = filled(layout)
    one_by_one = [*bundles(layout, flat, first_index=first, chunk_bytes=chunk_bytes, most_bytes=0)]
    chunks = []
    for message in one_by_one:
        parsed = pb.UpdateFrame.FromString(message.data)
        chunks.append(parsed.chunk)
        assert parsed.SerializeToString() == message.data
        assert parsed.chunk == chunk_of(*message.position, np.frombuffer(parsed.chunk.data, np.uint8))
    left = iter(chunks)
    for message in bundles(layout, flat, first_index=first, chunk_bytes=chunk_bytes, most_bytes=most):
        frame = pb.RoundFrame.FromString(message.data)
        assert frame.SerializeToString() == message.data
        found = [*frame.chunks] or [frame.chunk]
        assert len(frame.chunks) != 1, "one that is alone has the field that every release knows"
        assert found == [next(left) for _ in found]
        assert len(message.data) <= most or len(found) == 1
    assert next(left, None) is None


@given(SIZES, CHUNKS, MOST)
def test_parts_are_the_frames_that_the_chunks_would_be_alone(
    sizes: list[tuple[int, Purpose]], chunk_bytes: int, most: int
) -> None:
    layout = layout_of(sizes)
    flat = filled(layout)
    messages = [*bundles(layout, flat, chunk_bytes=chunk_bytes, most_bytes=most)]
    one_by_one = [*bundles(layout, flat, chunk_bytes=chunk_bytes, most_bytes=0)]
    for message in messages:
        assert b"".join(part.data for part in message.parts) == message.data
        assert [*frames_in(message.data)] == [part.data for part in message.parts]
    parts = [part for message in messages for part in message.parts]
    assert [alone(bytes(part.data)) for part in parts] == [message.data for message in one_by_one]
    assert [part.position for part in parts] == [message.position for message in one_by_one]
    assert [message.data for each in messages for message in each.one_by_one()] == [
        message.data for message in one_by_one
    ]
    for part in parts:
        chunk = read_chunk(bytes(part.data))
        assert chunk is not None
        assert (chunk.tensor, chunk.offset, len(chunk.data)) == (*part.position, part.payload)


@given(SIZES, CHUNKS, MOST, st.data())
def test_a_transfer_goes_on_at_any_chunk(
    sizes: list[tuple[int, Purpose]], chunk_bytes: int, most: int, data: st.DataObject
) -> None:
    """What is cut out of messages that are there, and what is made anew, are the chunks that are missing."""
    layout = layout_of(sizes)
    flat = filled(layout)
    messages = [*bundles(layout, flat, chunk_bytes=chunk_bytes, most_bytes=most)]
    positions = [part.position for message in messages for part in message.parts]
    ends: list[Position] = [(len(layout.specs), 0)]
    start = data.draw(st.sampled_from(positions + ends))
    missing = [alone(frame) for frame in frames_of(messages)][bisect_left(positions, start) :]
    behind = [left for message in messages if (left := message.behind(start)) is not None]
    anew = [*bundles(layout, flat, start=start, chunk_bytes=chunk_bytes, most_bytes=most)]
    for found in (behind, anew, [each for message in behind for each in message.one_by_one()]):
        assert [alone(frame) for frame in frames_of(found)] == missing
        for message in found:
            assert (message.data[:1] == b"\x12") == (len(message.parts) == 1)


@given(SIZES, CHUNKS, MOST)
def test_x_and_c_never_share_a_message(sizes: list[tuple[int, Purpose]], chunk_bytes: int, most: int) -> None:
    layout = layout_of(sizes)
    for message in bundles(layout, filled(layout), chunk_bytes=chunk_bytes, most_bytes=most):
        purposes = {layout.specs[part.position[0]].purpose for part in message.parts}
        assert purposes == {Purpose.CONTROL} or Purpose.CONTROL not in purposes


def test_large_and_many_chunks_keep_to_the_limits() -> None:
    scalars = [TensorSpec(f"s{k}", "float32", ()) for k in range(3 * MAX_CHUNKS)]
    large = [TensorSpec(f"w{k}", "float32", (n,)) for k, n in enumerate((1 << 18, 5 << 16, 3 << 18))]
    layout = Layout([*scalars[:100], *large, *scalars[100:]])
    messages = [*bundles(layout, layout.allocate())]
    assert max(len(message.data) for message in messages) <= BUNDLE_BYTES <= MAX_REQUEST_BYTES
    assert max(len(message.parts) for message in messages) == MAX_CHUNKS
    assert max(part.payload for message in messages for part in message.parts) == CHUNK_BYTES
    assert len(messages) < 20


ONE = chunk_frame(0, 0, np.arange(12, dtype=np.uint8))
OF_MANY = b"\x2a" + ONE[1:]
HEADER = sealed(pb.UpdateFrame(header=pb.UpdateHeader(client="a", round=1, update_id="1-0")))
MALFORMED = {
    "cut": OF_MANY + OF_MANY[:-1],
    "cut in a length": OF_MANY + b"\x2a\x80",
    "a length alone": b"\x2a\xff",
    "nothing but a tag": b"\x2a",
    "a length that never ends": b"\x2a" + b"\xff" * 20,
    "longer than there is": b"\x2a\x7f" + OF_MANY,
    "a chunk of its own behind": OF_MANY + ONE,
    "a header behind": OF_MANY + HEADER,
    "a checksum behind": OF_MANY + b"\xfd\xff\x7f" + bytes(4),
    "too many": OF_MANY * (MAX_CHUNKS + 1),
    "too many empty ones": b"\x2a\x00" * (MAX_REQUEST_BYTES // 2),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_bundle_is_refused_and_counted_whole(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        frames_in(data)
    assert caught.value.fault is Fault.MALFORMED
    _require_malformed_and_counted(data)
    noted: list[ClassifiedMessage] = []
    CallFollower("PushUpdate", noted.append).note(True, data)
    assert [(message.content, message.data) for message in noted] == [(UNREADABLE, data)]


def test_a_bundle_with_a_damaged_chunk_is_counted_to_its_end() -> None:
    _require_malformed_and_counted(OF_MANY + b"\x2a\x02\x08\x80" + OF_MANY)


def _require_malformed_and_counted(data: bytes) -> None:
    """A server refuses the message, and its account has all of it."""
    traffic = Traffic(lambda name: True)
    with traffic.call("PushUpdate", "") as call:
        call.received(HEADER)
        with pytest.raises(WireError) as caught:
            call.received_frames(data)
    assert caught.value.fault is Fault.MALFORMED
    assert traffic.by_client()["a", "up"][1] == len(HEADER) + len(data)


@pytest.mark.parametrize("data", [ONE + OF_MANY, OF_MANY * 2, HEADER + OF_MANY, b""], ids=len)
def test_a_frame_with_something_else_than_one_chunk_is_no_chunk(data: bytes) -> None:
    assert read_chunk(data) is None


@given(st.integers(1, 60), st.integers(0, 59), st.integers(0, 255))
def test_a_bundle_with_any_byte_changed_brings_nothing_wrong(count: int, at: int, value: int) -> None:
    """What is changed is refused, or is what was sent."""
    layout = layout_of([(count, Purpose.MODEL)] * 3)
    sent, came = filled(layout), layout.allocate()
    receiver = Receiver(layout, came)
    with suppress(WireError):
        for message in bundles(layout, sent):
            at %= len(message.data)
            data = message.data[:at] + bytes([value]) + message.data[at + 1 :]
            for frame in frames_in(data):
                chunk = read_chunk(frame)
                if chunk is None:
                    break
                receiver.add(chunk)
    tensor, filled_bytes = receiver.position
    for k in range(tensor):
        assert layout.raw(came, k).tobytes() == layout.raw(sent, k).tobytes()
    assert not filled_bytes


def test_messages_of_other_calls_are_no_bundles() -> None:
    """A field of this number in a request is something else."""
    request = pb.PullRoundRequest(resume=pb.Resume(round=3)).SerializeToString()
    assert request[:1] == b"\x2a"
    noted: list[ClassifiedMessage] = []
    follower = CallFollower("PullRound", noted.append)
    for each in (request, request + b"\x2a"):
        follower.note(True, each)
    follower.close()
    assert [message.data for message in noted] == [request, request + b"\x2a"]


MANY = """
import torch
from torch import nn
from problem import network as small

class Many(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = small(num_classes)
        self.steps = nn.ParameterList(nn.Parameter(torch.full((num_classes,), k / 100)) for k in range(200))

    def forward(self, inputs):
        return self.body(inputs) + torch.stack([*self.steps]).sum(0)

def network(num_classes):
    return Many(num_classes)
"""
FLAGS = [
    *("--model", "many:network", "--dataset", "problem:data", "--algorithm", "scaffold"),
    *("--local-steps", "2", "--seed", "1", "--capture", "s.fedwire"),
]
NUM_TENSORS = 206
EARLIER = ("tests.earlier",)


class Counting:
    """A transport that counts messages; the first `cut` of an upload arrive, if that is set."""

    def __init__(self, inner: Transport, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._inner = inner
        self.chunk_bytes = chunk_bytes
        self.messages: list[bytes] = []
        """Of the last stream, but for the header."""
        self.cut: int | None = None

    def ask(self, call: Call, request: bytes) -> bytes:
        """As ever."""
        return self._inner.ask(call, request)

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """As ever."""
        header, *self.messages = self._inner.pull(call, request)
        yield header
        yield from self.messages

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """As ever, or a part."""
        header, *self.messages = frames
        return self._inner.push(call, iter([header, *self.messages[: self.cut]]))

    def close(self) -> None:
        """As ever."""
        self._inner.close()


def start(federation: Federation, *flags: str, through: tuple[str, ...] = ()) -> None:
    """A server whose model has many small tensors."""
    (federation.folder / "many.py").write_text(MANY)
    federation.server(*FLAGS, *flags, through=through)


class Peer:
    """The only client of a run of one round, message by message."""

    def __init__(self, federation: Federation, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.transport = Counting(GrpcTransport(federation.address, Credentials()), chunk_bytes)
        self.connection = Connection(self.transport, "a")
        self.seat: Seat = self.connection.join(None)
        self.header = self.asked()
        announced = read_manifest(self.header.tensors).layout
        model = [spec for spec in announced.specs if spec.purpose is Purpose.MODEL]
        found = self.connection.pull(self.seat.run_id, 0, [], Layout(model), Download())
        assert isinstance(found, ReceivedRound)
        self.came = [*self.transport.messages]
        self.flat = found.task.broadcast.copy()
        self.update = StoredUpdate(1, found.task.encoding, self.flat, 2, 0.5, None, 0.1)

    def asked(self, **fields: Any) -> pb.RoundHeader:
        """The header of round 1 for such a request."""
        request = pb.PullRoundRequest(run_id=self.seat.run_id, client="a", **fields)
        header, *_ = self.transport.pull(CALLS["PullRound"], sealed(request))
        return pb.RoundFrame.FromString(header).header

    def push(self, start: Position = START) -> str:
        """Hands in x and c as they came; returns the outcome."""
        sender = Sender(self.seat.run_id, "a", self.seat.fingerprint, len(self.seat.indices))
        return self.connection.push(sender, self.update, start).outcome

    def hear_the_end(self) -> None:
        """So that the server need not wait for somebody who knows."""
        self.connection.pull(self.seat.run_id, 1, [], Layout([]), Download())
        self.connection.__exit__(None, None, None)


def of_tensors(federation: Federation) -> list[dict[tuple[str, str, str], Any]]:
    """Payload and encoded bytes of every tensor, by round, client, direction and purpose."""
    return [
        {
            (client, direction, purpose): tensors
            for client, directions in line["traffic"].items()
            for direction, purposes in directions.items()
            for purpose, tensors in purposes.items()
            if purpose != "other"
        }
        for line in federation.traffic()
    ]


def test_a_round_of_many_small_tensors_takes_few_messages_each_way(federation: Federation) -> None:
    start(federation, "--num-clients", "1", "--rounds", "1")
    peer = Peer(federation)
    assert peer.push() == "ACCEPTED"
    for messages in (peer.came, peer.transport.messages):
        assert sum(len(frames_in(message)) for message in messages) == 2 * NUM_TENSORS
        assert len(messages) <= 4
    peer.hear_the_end()
    federation.finish()
    with Capture(federation.folder / "s.fedwire", pytest.fail) as capture:
        chunks = Counter(m.up for m in capture.messages if m.content.kind == "chunk")
        assert chunks == {True: 2 * NUM_TENSORS, False: 2 * 2 * NUM_TENSORS}, "it was pulled twice"
        assert compare_with_run(statistics(capture), federation.folder / "run") == ()
    (found,) = of_tensors(federation)
    told = {
        (purpose, name): size
        for (_, direction, purpose), tensors in found.items()
        for name, (_, size) in tensors.items()
        if direction == "up"
    }
    alone = {(c.purpose, c.tensor): size for c, size in chunk_sizes(peer.update.encoding.encoded)}
    assert told == alone, "as many bytes as one by one"


@pytest.mark.parametrize("takes_bundles", [True, False])
def test_a_download_goes_on_at_any_chunk_of_a_message(federation: Federation, takes_bundles: bool) -> None:
    start(federation, "--num-clients", "1", "--rounds", "1")
    peer = Peer(federation)
    frames = [alone(bytes(frame)) for message in peer.came for frame in frames_in(message)]
    for missing in (1, 2, NUM_TENSORS - 1, NUM_TENSORS, NUM_TENSORS + 1, 2 * NUM_TENSORS - 1):
        chunk = read_chunk(frames[-missing])
        assert chunk is not None
        resume = pb.Resume(round=1)
        resume.position.tensor, resume.position.offset = chunk.tensor, chunk.offset
        header = peer.asked(resume=resume, takes_bundles=takes_bundles)
        assert header.resumed_at == resume.position
        came = peer.transport.messages
        assert [alone(bytes(frame)) for message in came for frame in frames_in(message)] == frames[-missing:]
        assert (len(came) == missing) if not takes_bundles else (len(came) <= 4)
        assert takes_bundles or {message[:1] for message in came} == {b"\x12"}
    federation.stop("server")


def test_an_upload_goes_on_in_the_middle_of_what_was_a_message(federation: Federation) -> None:
    """Its link was slow, so that messages and chunks were small, and is not any more."""
    start(federation, "--num-clients", "1", "--rounds", "1")
    peer = Peer(federation, chunk_bytes=100)
    peer.transport.cut = 9
    assert peer.push() == "REJECTED"
    sent = peer.transport.messages
    assert 9 < len(sent) < sum(len(frames_in(message)) for message in sent)
    assert max(map(len, sent)) < 150
    peer.transport.chunk_bytes, peer.transport.cut = CHUNK_BYTES, None
    position = peer.connection.progress(peer.seat, peer.update)
    assert START < position < (NUM_TENSORS, 0)
    assert peer.push(position) == "ACCEPTED"
    assert len(peer.transport.messages) <= 4
    peer.hear_the_end()
    federation.finish()
    layout = peer.update.encoding.layout
    for k, spec in enumerate(layout.specs):
        if spec.purpose is Purpose.MODEL:
            assert np.array_equal(federation.tensors("model")[spec.name].numpy(), layout.array(peer.flat, k))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two clients and a server that all take bundles."""
    federation = Federation(tmp_path_factory.mktemp("together"))
    trained(federation)
    yield federation
    federation.close()


def trained(federation: Federation, **earlier: tuple[str, ...]) -> None:
    """A run of two rounds; those named are of an earlier release."""
    start(federation, "--num-clients", "2", "--rounds", "2", through=earlier.get("server", ()))
    for name in ("a", "b"):
        federation.client(name, "--capture", f"{name}.fedwire", through=earlier.get(name, ()))
    federation.finish()


@pytest.mark.parametrize("who", ["b", "server"])
def test_who_takes_one_chunk_a_message_gets_that_and_ends_with_the_same_bits(
    together: Federation, federation: Federation, who: str
) -> None:
    trained(federation, **{who: EARLIER})
    for name in ("model", "control"):
        assert federation.bytes(name) == together.bytes(name)
    assert of_tensors(federation) == of_tensors(together)
    for path in ("s.fedwire", "a.fedwire", "b.fedwire"):
        found, expected = (Capture(each.folder / path, pytest.fail) for each in (federation, together))
        assert len(found.messages) == len(expected.messages), path
