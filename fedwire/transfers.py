"""Whole transfers out of single messages: the broadcast to one client, or its update, put together again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from common.coding import Coding
from common.errors import DataError, WireError
from common.manifest import read_manifest
from common.tensors import Flat
from common.wire import read_chunk
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
    def coding(self) -> Coding:
        """What was announced."""
        return read_manifest(self.header.tensors)

    @property
    def name(self) -> str:
        """For people."""
        who = f"update of {self.client}" if self.up else f"broadcast to {self.client}"
        return f"round {self.round}, {who}"


def transfers(capture: Capture) -> list[Transfer]:
    """All transfers of a capture, in the order in which they began."""
    found: dict[tuple[object, ...], Transfer] = {}
    by_call: dict[int, Transfer] = {}
    for message in capture.messages:
        if message.entry.kind == "header":
            header = _header(capture, message)
            if header.round == 0 or (isinstance(header, pb.UpdateHeader) and header.declined):
                continue
            client = header.client if isinstance(header, pb.UpdateHeader) else message.client
            key = (message.process, header.round, client, message.up, _announced(header))
            transfer = found.setdefault(key, Transfer(header.round, client, message.up, header))
            transfer.headers.append(message)
            by_call[message.call] = transfer
        elif message.call in by_call and message.entry.kind == "chunk":
            by_call[message.call].chunks.append(message)
        elif message.call in by_call and message.entry.kind == "reply":
            reply = pb.PushUpdateReply.FromString(capture.data(message))
            by_call[message.call].outcome = pb.PushUpdateReply.Outcome.Name(reply.outcome)
    return list(found.values())


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
    spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    try:
        layout = transfer.coding.wire
        raw = layout.allocate()
        for tensor, offset, data in _chunks(capture, transfer):
            end = offset + len(data)
            if tensor >= len(layout.specs) or end > layout.specs[tensor].num_bytes:
                raise DataError(f"{transfer.name}: a chunk lies outside of its tensor")
            layout.raw(raw, tensor)[offset:end] = data
            spans[tensor].append((offset, end))
    except WireError as error:
        raise DataError(f"{transfer.name}: {error}") from error
    for k, spec in enumerate(layout.specs):
        whole = _covered(spans[k])
        if whole < spec.num_bytes:
            raise DataError(
                f"{transfer.name}: {spec.name} is not whole in the capture: {whole} of {spec.num_bytes} bytes"
            )
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
        chunk = read_chunk(capture.data(message))
        if chunk is not None:
            yield chunk.tensor, chunk.offset, chunk.data


def values(capture: Capture, transfer: Transfer, x: Flat | None) -> Flat:
    """The decoded tensors; `x`, the round's broadcast as clients saw it, for what travels as a difference."""
    try:
        return transfer.coding.receive(assemble(capture, transfer), x)
    except WireError as error:
        raise DataError(f"{transfer.name}: {error}") from error


def broadcast(capture: Capture, all_transfers: list[Transfer], r: int) -> Flat | None:
    """x of a round as clients saw it, from any of them; None if no client's download is whole."""
    for transfer in all_transfers:
        if transfer.round == r and not transfer.up:
            try:
                return values(capture, transfer, None)
            except DataError:
                continue
    return None


def is_difference(transfer: Transfer) -> bool:
    """Whether some tensors are differences to x."""
    return any(way.difference for way in transfer.coding.ways)
