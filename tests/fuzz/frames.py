"""Targets: chunks, messages, manifests, streams of chunks, whole calls and names."""

from __future__ import annotations

import math

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError, Message

from common.errors import FedError, WireError
from common.metrics.choice import Metrics
from common.metrics.message import from_message
from common.metrics.pooled import sites_record
from common.names import class_number, natural, require_name
from common.tensors.layout import DTYPES
from common.wire.bundles import frames_in
from common.wire.byte_counts import ByteCounts
from common.wire.calls import CALLS
from common.wire.chunks import parsed, read_chunk, varint
from common.wire.codec_choice import announced_codec
from common.wire.encoding import require_finite
from common.wire.manifest import manifest, read_manifest, require_same
from common.wire.messages import CallFollower, ClassifiedMessage
from common.wire.receiver import Receiver
from fedpvr.v1 import capture_pb2, federation_pb2, tensor_pb2
from fedpvr.v1 import federation_pb2 as pb
from tests.fuzz import known, mutators
from tests.fuzz.mutators import script, scripted
from tests.fuzz.target import Target
from tests.samples import chunk_frame, chunk_of

MAX_BYTES = 1 << 16
"""Of a layout that a target takes memory for, as one that a receiver knows from elsewhere."""
RPCS = (*CALLS, "")
KINDS: list[type[Message]] = [
    getattr(module, name)
    for module in (tensor_pb2, federation_pb2, capture_pb2)
    for name in module.DESCRIPTOR.message_types_by_name
]


def chunk(data: bytes) -> None:
    """Whatever is read in place, alone or in a bundle, means to protobuf what it means to us."""
    frames = frames_in(data)
    assert b"".join(frames) == data
    found = [each for each in map(read_chunk, frames) if each is not None]
    if len(found) == len(frames):
        try:
            message = pb.RoundFrame.FromString(data)
        except DecodeError:
            raise AssertionError("read in place, but no protobuf") from None
        came = [message.chunk] if message.HasField("chunk") else message.chunks
        told = [(each.tensor, each.offset, each.crc32c, each.data) for each in came]
        assert told == [(each.tensor, each.offset, each.crc32c, each.data.tobytes()) for each in found]


def chunk_seeds() -> list[bytes]:
    """Chunks with all fields and with few, and all of them together."""
    data = np.arange(12, dtype=np.uint8)
    chunks = [(9, 300, data), (0, 0, data[:1]), (1 << 20, 1 << 40, data)]
    together = pb.RoundFrame(chunks=[chunk_of(*each) for each in chunks])
    return [*(chunk_frame(*each) for each in chunks), together.SerializeToString()]


def message(data: bytes) -> None:
    """Any message of the contract; the first byte chooses which."""
    kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    again = parsed(kind, data[1:]).SerializeToString()
    assert parsed(kind, again).SerializeToString() == again


def message_seeds() -> list[bytes]:
    """A few messages, as themselves and as others."""
    frames = [known.broadcast(known.CONFIGS[1])[0], known.update(known.CONFIGS[2])[0]]
    return [bytes([k]) + frame for k in range(len(KINDS)) for frame in frames]


def announced(data: bytes) -> None:
    """A manifest, also as that of the known run; what is accepted can be announced again."""
    encoding = read_manifest(parsed(pb.RoundHeader, data).tensors)
    assert read_manifest(manifest(encoding)).matches(encoding)
    for spec in encoding.layout.specs:
        if not spec.num_elements:
            np.zeros(0).reshape(spec.shape)
    require_same(encoding, known.CODINGS[len(data) % len(known.CODINGS)])


def announced_seeds() -> list[bytes]:
    """Manifests of all codings."""
    return [known.round_header(encoding, known.CONFIGS[0]).SerializeToString() for encoding in known.CODINGS]


def with_checksum(frame: bytes) -> bytes:
    """The same frame with the checksums that its data have."""
    try:
        found = pb.RoundFrame.FromString(frame)
    except DecodeError:
        return frame
    chunks = [found.chunk] if found.HasField("chunk") else found.chunks
    for each in chunks:
        each.crc32c = google_crc32c.value(each.data)
    return found.SerializeToString() if chunks else frame


def unpacked(data: bytes) -> list[bytes]:
    """Frames out of a script; the first byte of each says whether its checksum is put right."""
    return [with_checksum(part[1:]) if part[:1] < b"\x80" else part[1:] for part in script(data)]


def packed(frames: list[bytes]) -> bytes:
    """A script of frames with right checksums."""
    return scripted([b"\x00" + frame for frame in frames])


def stream(data: bytes) -> None:
    """A manifest and its chunks, through to the numbers."""
    first, *frames = unpacked(data) or [b""]
    encoding = read_manifest(parsed(pb.RoundFrame, first).header.tensors)
    if max(encoding.layout.num_bytes, encoding.encoded.num_bytes) > MAX_BYTES:
        return
    raw = encoding.encoded.allocate()
    receiver = Receiver(encoding.encoded, raw)
    for frame in (frame for message in frames for frame in frames_in(message)):
        found = read_chunk(frame)
        if found is not None:
            receiver.add(found)
    receiver.finish()
    x = np.frombuffer(first.ljust(encoding.layout.num_bytes, b"\x7f"), np.uint8)[: encoding.layout.num_bytes]
    require_finite(encoding.layout, encoding.decode(raw, x))


def stream_seeds() -> list[bytes]:
    """Broadcasts, and updates under a broadcast's header."""
    found = [packed(known.broadcast(config)) for config in known.CONFIGS]
    for encoding in known.CODINGS:
        header = pb.RoundFrame(header=known.round_header(encoding, known.CONFIGS[0])).SerializeToString()
        found.append(packed([header, *known.sent(encoding)]))
    return found


def decoded(data: bytes) -> None:
    """One codec on its own: number, dtype, elements, block and kept, then the bytes."""
    wire, dtype, elements, block, kept = (*data[:5], 0, 0, 0, 0, 0)[:5]
    name = list(DTYPES)[dtype % len(DTYPES)]
    codec = announced_codec(wire, name, elements, block, kept)
    storage = DTYPES[name].storage
    size = codec.num_bytes(elements, storage.itemsize)
    raw = np.frombuffer(data[5 : 5 + size].ljust(size, b"\xff"), np.uint8)
    out = np.zeros(elements, storage)
    with np.errstate(all="ignore"):  # As whoever decodes a whole layout does.
        codec.decode(raw, out)


def decoded_seeds() -> list[bytes]:
    """Every codec."""
    return [bytes([wire, dtype, 4, 3, 2]) + bytes(range(32)) for wire in range(1, 7) for dtype in (0, 1, 4)]


def reader(data: bytes) -> None:
    """The messages of a call as the byte ledger sees them; nothing at all may be raised."""
    parts = script(data)
    counts = ByteCounts()
    rpc = RPCS[(parts[0][0] & 0x7F) % len(RPCS)] if parts and parts[0] else ""

    def count(message: ClassifiedMessage) -> None:
        counts.add(message.client, rpc, message.up, message.content, len(message.data))

    follower = CallFollower(rpc, count)
    try:
        for part in parts:
            follower.note(bool(part[:1] >= b"\x80"), part[1:], 1)
        follower.close()
        counts.by_purpose(), counts.detailed(), counts.by_client()
    except FedError as error:
        raise AssertionError("the ledger refuses nothing") from error


def reader_seeds() -> list[bytes]:
    """One call of each kind."""
    asked = pb.PullRoundRequest(run_id=known.RUN_ID, client=known.CLIENT, after_round=1)
    down = [b"\x81" + asked.SerializeToString(), *(b"\x01" + f for f in known.broadcast(known.CONFIGS[0]))]
    up = [b"\x82" + frame for frame in known.update(known.CONFIGS[0])]
    up.append(b"\x02" + pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED).SerializeToString())
    join = b"\x80" + pb.JoinRequest(protocol_version=1, client=known.CLIENT).SerializeToString()
    progress = b"\x83" + pb.UpdateProgressRequest(run_id="1", client="a", round=1).SerializeToString()
    return [scripted(down), scripted(up), scripted([join, b"\x00"]), scripted([progress, b"\x03"])]


def name(data: bytes) -> None:
    """A client's name or a class's, as a protobuf string brings it."""
    try:
        text = parsed(pb.JoinRequest, b"\x12" + varint(len(data)) + data).client
    except WireError:
        return
    natural(text)
    class_number(text, ("cat", "dog", "7"))
    require_name(text)
    assert text.isascii()
    assert not {*"/\\"} & {*text}


def name_seeds() -> list[bytes]:
    """Names."""
    return [b"client-10", b"a.b_c-1", b"cat", b"1", "\u0661\u00b2".encode(), b"9" * 200]


def site_counts(data: bytes) -> None:
    """Counts of a client; whatever is taken adds up, and has metrics."""
    counts = from_message(parsed(pb.SiteCounts, data), 3)
    assert sum(number for _, _, number in counts.confusion) == counts.examples
    record = sites_record({"a": counts}, ("x", "y", "z"), Metrics.load((), 3), "f1", {})
    assert all(value is None or math.isfinite(value) for value in record.metrics.values())
    assert all(0 <= area.low <= area.value <= area.high <= 1 for area in record.sites["a"].auroc)


def site_counts_seeds() -> list[bytes]:
    """With and without pairs."""
    told = pb.SiteCounts(examples=7, loss_sum=3.5, cells=[0, 2, 4, 8], counts=[2, 1, 3, 1], pairs=[20, 24, 0])
    bare = pb.SiteCounts(examples=1, loss_sum=math.nan, cells=[5], counts=[1])
    return [told.SerializeToString(), bare.SerializeToString()]


TARGETS = {
    "chunk": Target(chunk, chunk_seeds, mutators.message),
    "message": Target(message, message_seeds, mutators.tagged_message),
    "manifest": Target(announced, announced_seeds, mutators.message),
    "stream": Target(stream, stream_seeds, mutators.messages),
    "codec": Target(decoded, decoded_seeds),
    "call-reader": Target(reader, reader_seeds, mutators.messages),
    "name": Target(name, name_seeds),
    "site-counts": Target(site_counts, site_counts_seeds, mutators.message),
}
