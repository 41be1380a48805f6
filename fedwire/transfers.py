"""Whole transfers out of single messages: the broadcast to one client, or its update, put together again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from common.errors import DataError, WireError
from common.tensors.layout import Flat, Purpose
from common.wire.chunks import read_chunk
from common.wire.codecs import DERIVED, TopK
from common.wire.encoding import Encoding
from common.wire.manifest import read_manifest
from fedpvr.v1 import federation_pb2 as pb
from fedwire.source import Capture, Message

Header = pb.RoundHeader | pb.UpdateHeader


@dataclass
class Transfer:
    """The messages that carried x and c to a client in a round, or its update back."""

    round: int
    client: str
    up: bool
    header: Header
    """The first one, if the transfer was interrupted and went on."""
    headers: list[Message] = field(default_factory=list)
    chunks: list[Message] = field(default_factory=list)
    outcome: str = ""
    """Of an update: what the server made of it."""

    @property
    def encoding(self) -> Encoding:
        """What was announced."""
        return read_manifest(self.header.tensors)

    @property
    def name(self) -> str:
        """For people."""
        who = f"update of {self.client}" if self.up else f"broadcast to {self.client}"
        return f"round {self.round}, {who}"


def transfers(capture: Capture) -> list[Transfer]:
    """All transfers of a capture, in the order in which they began.

    A header that announces nonsense began none. Of an update that was pushed again after the server had taken
    it, only what the server took belongs to it.
    """
    found: dict[tuple[object, ...], Transfer] = {}
    by_call: dict[int, Transfer] = {}
    for message in capture.messages:
        transfer = by_call.get(message.call)
        if message.content.kind == "header":
            _begin(capture, message, found, by_call)
        elif transfer is not None and message.content.kind == "chunk":
            transfer.chunks.append(message)
        elif transfer is not None and message.content.kind == "reply":
            transfer.outcome = _outcome(capture.data(message))
            if transfer.outcome == "ACCEPTED":
                for key, value in list(found.items()):
                    if value is transfer:
                        found[*key, "taken"] = found.pop(key)
    return sorted(found.values(), key=lambda transfer: transfer.headers[0].number)


def _begin(
    capture: Capture,
    message: Message,
    found: dict[tuple[object, ...], Transfer],
    by_call: dict[int, Transfer],
) -> None:
    header = _header(capture, message)
    if header.round == 0 or (isinstance(header, pb.UpdateHeader) and header.declined):
        return
    try:
        read_manifest(header.tensors)
    except WireError:
        return
    client = header.client if isinstance(header, pb.UpdateHeader) else message.client
    key = (message.process, header.round, client, message.up, _announced(header))
    transfer = found.setdefault(key, Transfer(header.round, client, message.up, header))
    transfer.headers.append(message)
    by_call[message.call] = transfer


def _outcome(data: bytes) -> str:
    try:
        outcome = pb.PushUpdateReply.FromString(data).outcome
        return pb.PushUpdateReply.Outcome.Name(outcome)
    except (DecodeError, ValueError):
        return ""


def _header(capture: Capture, message: Message) -> Header:
    data = capture.data(message)
    return pb.UpdateFrame.FromString(data).header if message.up else pb.RoundFrame.FromString(data).header


def _announced(header: Header) -> object:
    """What transfers have in common that are parts of one."""
    if isinstance(header, pb.UpdateHeader):
        return header.update_id
    return tuple(spec.SerializeToString() for spec in header.tensors)


def assemble(capture: Capture, transfer: Transfer) -> Flat:
    """The bytes of all announced tensors; raises if some of them are not in the capture."""
    layout = transfer.encoding.encoded
    spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for tensor, offset, data in _chunks(capture, transfer):
        if tensor >= len(layout.specs) or offset + len(data) > layout.specs[tensor].num_bytes:
            raise DataError(f"{transfer.name}: a chunk lies outside of its tensor")
        spans[tensor].append((offset, offset + len(data)))
    for k, spec in enumerate(layout.specs):
        whole = _covered(spans[k])
        if whole < spec.num_bytes:
            raise DataError(
                f"{transfer.name}: {spec.name} is not whole in the capture: {whole} of {spec.num_bytes} bytes"
            )
    # Only now, when all of it is known to be there, memory is taken for it.
    raw = layout.allocate()
    for tensor, offset, data in _chunks(capture, transfer):
        layout.raw(raw, tensor)[offset : offset + len(data)] = data
    return raw


def _covered(spans: list[tuple[int, int]]) -> int:
    """How far spans reach from 0 on without a gap."""
    reached = 0
    for start, end in sorted(spans):
        if start > reached:
            break
        reached = max(reached, end)
    return reached


def _chunks(capture: Capture, transfer: Transfer) -> Iterator[tuple[int, int, Flat]]:
    for message in transfer.chunks:
        try:
            chunk = read_chunk(capture.data(message))
        except WireError as error:
            raise DataError(f"{transfer.name}: {error}") from error
        if chunk is not None:
            yield chunk.tensor, chunk.offset, chunk.data


def values(capture: Capture, transfer: Transfer, found: list[Transfer]) -> Flat:
    """The decoded tensors. `found` are all transfers: a difference needs the broadcast of its round."""
    _require_backed(transfer)
    x = (
        _broadcast(capture, found, transfer)
        if any(w.difference for w in transfer.encoding.tensor_encodings)
        else None
    )
    try:
        return transfer.encoding.decode(assemble(capture, transfer), x)
    except WireError as error:
        raise DataError(f"{transfer.name}: {error}") from error


def _require_backed(transfer: Transfer) -> None:
    """Raises for a tensor that would take memory without bytes for it, or for one like it, in the capture."""
    encoding = transfer.encoding
    models = {(s.name, s.dtype, s.shape) for s in encoding.layout.specs if s.purpose is Purpose.MODEL}
    for spec, tensor_encoding in zip(encoding.layout.specs, encoding.tensor_encodings, strict=True):
        computed = spec.purpose is Purpose.CONTROL and (spec.name, spec.dtype, spec.shape) in models
        backed = tensor_encoding.codec != DERIVED or computed
        if tensor_encoding.difference or isinstance(tensor_encoding.codec, TopK):
            backed = transfer.up and tensor_encoding.difference  # Then x is as large, and has come.
        if not backed:
            raise DataError(f"{transfer.name}: {spec.name} cannot be known as {tensor_encoding.codec.name}")


def _broadcast(capture: Capture, found: list[Transfer], update: Transfer) -> Flat:
    """x of an update's round as clients saw it, from any of them."""
    for transfer in found:
        if transfer.round == update.round and not transfer.up and _begins_with(transfer, update):
            try:
                return values(capture, transfer, found)
            except DataError:
                continue
    raise DataError(f"{update.name}: is a difference to an x that is not whole in the capture")


def _begins_with(broadcast: Transfer, update: Transfer) -> bool:
    """Whether an update is laid out as the beginning of a broadcast is."""
    specs = update.encoding.layout.specs
    return broadcast.encoding.layout.specs[: len(specs)] == specs
