"""Whole transfers out of single messages: the broadcast to one client, or its update, put together again.

What all transfers cost is linear in the messages of a capture: each manifest is read once, each chunk once to
see whether a transfer is whole and once for its bytes, and x of a round is decoded once for all updates that
are differences to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from google.protobuf.message import DecodeError

from common.errors import DataError, WireError
from common.tensors.layout import Flat, Purpose
from common.wire.chunks import read_chunk
from common.wire.codecs import DERIVED, TopK
from common.wire.encoding import Encoding
from common.wire.manifest import read_manifest
from common.wire.messages import is_canary
from fedpvr.v1 import federation_pb2 as pb
from fedwire.source import Capture, CapturedMessage

Header = pb.RoundHeader | pb.UpdateHeader


@dataclass
class Transfer:
    """The messages that carried x and c to a client in a round, or its update back."""

    round: int
    client: str
    up: bool
    header: Header
    """The first one, if the transfer was interrupted and went on."""
    encoding: Encoding
    """What it announces."""
    headers: list[CapturedMessage] = field(default_factory=list)
    chunks: list[CapturedMessage] = field(default_factory=list)
    outcome: str = ""
    """Of an update: what the server made of it."""

    @property
    def name(self) -> str:
        """The words for it in messages."""
        who = f"update of {self.client}" if self.up else f"broadcast to {self.client}"
        return f"round {self.round}, {who}"


class Transfers(Sequence[Transfer]):
    """All transfers of a capture, in the order in which they began."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._all = _Collector(capture).collect()
        self._broadcasts: defaultdict[int, list[Transfer]] = defaultdict(list)
        for transfer in self._all:
            if not transfer.up:
                self._broadcasts[transfer.round].append(transfer)
        self._broken: set[int] = set()
        """Identities of broadcasts that are not whole."""
        self._decoded: tuple[Transfer, Flat] | None = None
        """The broadcast that an update was last decoded with."""

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> Transfer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Transfer]: ...
    def __getitem__(self, index: int | slice) -> Transfer | list[Transfer]:
        return self._all[index]

    def assemble(self, transfer: Transfer) -> Flat:
        """The bytes of all announced tensors; raises if some of them are not in the capture."""
        layout = transfer.encoding.encoded
        spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for tensor, offset, data in self._chunks(transfer):
            if tensor >= len(layout.specs) or offset + len(data) > layout.specs[tensor].num_bytes:
                raise DataError(f"{transfer.name}: a chunk lies outside of its tensor")
            spans[tensor].append((offset, offset + len(data)))
        for k, spec in enumerate(layout.specs):
            whole = _reach(spans[k])
            if whole < spec.num_bytes:
                raise DataError(
                    f"{transfer.name}: {spec.name} is not whole in the capture: "
                    f"{whole} of {spec.num_bytes} bytes"
                )
        # Only now, when all of it is known to be there, memory is taken for it.
        raw = layout.allocate()
        for tensor, offset, data in self._chunks(transfer):
            layout.raw(raw, tensor)[offset : offset + len(data)] = data
        return raw

    def _chunks(self, transfer: Transfer) -> Iterator[tuple[int, int, Flat]]:
        for message in transfer.chunks:
            try:
                chunk = read_chunk(self._capture.data(message))
            except WireError as error:
                raise DataError(f"{transfer.name}: {error}") from error
            if chunk is not None:
                yield chunk.tensor, chunk.offset, chunk.data

    def values(self, transfer: Transfer) -> Flat:
        """The decoded tensors; a difference needs the broadcast of its round too."""
        _require_backed(transfer)
        differs = any(each.difference for each in transfer.encoding.tensor_encodings)
        x = self._broadcast_before(transfer) if differs else None
        try:
            return transfer.encoding.decode(self.assemble(transfer), x)
        except WireError as error:
            raise DataError(f"{transfer.name}: {error}") from error

    def _broadcast_before(self, update: Transfer) -> Flat:
        """x of an update's round as clients saw it, from any of them."""
        for transfer in self._broadcasts[update.round]:
            if id(transfer) in self._broken or not _begins_with(transfer, update):
                continue
            if self._decoded is not None and self._decoded[0] is transfer:
                return self._decoded[1]
            try:
                self._decoded = transfer, self.values(transfer)
            except DataError:
                self._broken.add(id(transfer))
                continue
            return self._decoded[1]
        raise DataError(f"{update.name}: is a difference to an x that is not whole in the capture")


class _Collector:
    """Sorts the messages of a capture into transfers.

    A header that announces nonsense begins none. Of an update that was pushed again after the server had
    taken it, only what the server took belongs to it.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._unfinished: dict[tuple[object, ...], Transfer] = {}
        """Transfers that may go on in another call, by what the parts of one have in common."""
        self._taken: dict[tuple[object, ...], Transfer] = {}
        """Updates that the server has taken."""
        self._by_call: dict[int, tuple[tuple[object, ...], Transfer]] = {}
        self._encodings: dict[tuple[bytes, ...], Encoding | None] = {}
        """Manifests that were read before; None for nonsense."""

    def collect(self) -> list[Transfer]:
        """All transfers, in the order in which they began."""
        for message in self._capture.messages:
            kind = message.content.kind
            if kind == "header":
                self._begin(message)
            elif kind == "chunk" and message.call in self._by_call:
                self._by_call[message.call][1].chunks.append(message)
            elif kind == "reply" and message.call in self._by_call:
                self._end(message)
        found = [*self._unfinished.values(), *self._taken.values()]
        return sorted(found, key=lambda transfer: transfer.headers[0].number)

    def _begin(self, message: CapturedMessage) -> None:
        header = self._header(message)
        says_only = isinstance(header, pb.UpdateHeader) and _is_word_only(header)
        if header.round == 0 or says_only or is_canary(header):  # Nothing of a rehearsal goes on.
            return
        announced = tuple(spec.SerializeToString() for spec in header.tensors)
        encoding = self._encoding(announced, header)
        if encoding is None:
            return
        client = header.client if isinstance(header, pb.UpdateHeader) else message.client
        same: tuple[object, ...]
        if isinstance(header, pb.UpdateHeader):
            same = header.update_id, message.process  # It begins again when the server was restarted.
        else:
            same = (_opening(header),)
        key = (header.round, client, message.up, *same)
        begun = Transfer(header.round, client, message.up, header, encoding)
        transfer = self._unfinished.setdefault(key, begun)
        transfer.headers.append(message)
        self._by_call[message.call] = key, transfer

    def _encoding(self, announced: tuple[bytes, ...], header: Header) -> Encoding | None:
        if announced not in self._encodings:
            try:
                self._encodings[announced] = read_manifest(header.tensors)
            except WireError:
                self._encodings[announced] = None
        return self._encodings[announced]

    def _header(self, message: CapturedMessage) -> Header:
        data = self._capture.data(message)
        return pb.UpdateFrame.FromString(data).header if message.up else pb.RoundFrame.FromString(data).header

    def _end(self, message: CapturedMessage) -> None:
        key, transfer = self._by_call[message.call]
        transfer.outcome = _outcome(self._capture.data(message))
        if transfer.outcome == "ACCEPTED" and self._unfinished.get(key) is transfer:
            self._taken[key] = self._unfinished.pop(key)


def _is_word_only(header: pb.UpdateHeader) -> bool:
    """Whether no update follows: the client has none, or was asked for an evaluation only."""
    return bool(header.declined) or (header.HasField("evaluation") and not header.tensors)


def _opening(header: pb.RoundHeader) -> bytes:
    """A header as it was when the download began: the same wherever it goes on."""
    opening = pb.RoundHeader.FromString(header.SerializeToString())
    opening.ClearField("resumed_at")
    return opening.SerializeToString(deterministic=True)


def _outcome(data: bytes) -> str:
    try:
        outcome = pb.PushUpdateReply.FromString(data).outcome
        return pb.PushUpdateReply.Outcome.Name(outcome)
    except (DecodeError, ValueError):
        return ""


def _reach(spans: list[tuple[int, int]]) -> int:
    """How far spans reach from 0 on without a gap."""
    reached = 0
    for start, end in sorted(spans):
        if start > reached:
            break
        reached = max(reached, end)
    return reached


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


def _begins_with(broadcast: Transfer, update: Transfer) -> bool:
    """Whether an update is laid out as the beginning of a broadcast is."""
    specs = update.encoding.layout.specs
    return broadcast.encoding.layout.specs[: len(specs)] == specs
