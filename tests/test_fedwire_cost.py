"""What looking at a capture costs, counted in operations: all of it grows as the capture does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from common.events import unheard
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.bundles import bundles
from common.wire.capture import CaptureWriter, RecordFile
from common.wire.codec_choice import Codecs
from common.wire.encoding import Encoding, downward, upward
from common.wire.manifest import manifest
from common.wire.messages import ClassifiedMessage, Content
from fedpvr.v1 import federation_pb2 as pb
from fedwire import transfers
from fedwire.source import Capture
from fedwire.transfers import Transfers

LAYOUT = Layout([TensorSpec("w", "float32", (50,), Purpose.MODEL)])
DOWN, UP = downward(LAYOUT, Codecs()), upward(LAYOUT, "fp16", "fp32")


def captured(path: Path, clients: int, rounds: int) -> Path:
    """A run whose updates are differences to x."""
    writer = CaptureWriter(path, unheard)
    calls = iter(range(1 << 20))

    def write(rpc: str, call: int, up: bool, client: int, r: int, *data: bytes) -> None:
        for each in data:
            writer.write(rpc, call, ClassifiedMessage(1, up, each, Content(""), f"c{client}", r))

    accepted = pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED).SerializeToString()
    for r in range(1, rounds + 1):
        for i in range(clients):
            opening = pb.RoundFrame(header=pb.RoundHeader(round=r, tensors=manifest(DOWN)))
            write("PullRound", next(calls), False, i, r, opening.SerializeToString(), *chunks(DOWN))
        for i in range(clients):
            header = pb.UpdateHeader(client=f"c{i}", round=r, update_id=f"{r} {i}", tensors=manifest(UP))
            opening_up = pb.UpdateFrame(header=header).SerializeToString()
            call = next(calls)
            write("PushUpdate", call, True, i, r, opening_up, *chunks(UP))
            write("PushUpdate", call, False, i, r, accepted)
    writer.close()
    return path


def chunks(encoding: Encoding) -> list[bytes]:
    """Zeros as they travel."""
    return [message.data for message in bundles(encoding.encoded, encoding.encoded.allocate())]


def counted(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], owner: Any, name: str) -> None:
    """Counts the calls of a function."""
    function = getattr(owner, name)

    def count(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    monkeypatch.setattr(owner, name, count)


@pytest.mark.parametrize(("clients", "rounds"), [(2, 3), (4, 3), (4, 6)])
def test_reading_all_transfers_is_linear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int, rounds: int
) -> None:
    calls: Counter[str] = Counter()
    for owner, name in (
        (RecordFile, "__init__"),
        (RecordFile, "read"),
        (transfers, "read_manifest"),
        (Transfers, "assemble"),
    ):
        counted(monkeypatch, calls, owner, name)
    with Capture(captured(tmp_path / "run.fedwire", clients, rounds), pytest.fail) as capture:
        found = Transfers(capture)
        for transfer in found:
            assert not found.values(transfer).any()
    exchanges = clients * rounds
    assert [transfer.outcome for transfer in found if transfer.up] == ["ACCEPTED"] * exchanges
    assert calls["__init__"] == 1, "the file is opened once"
    assert calls["read_manifest"] == 2, "one manifest each way, however many announce it"
    assert calls["assemble"] == 2 * exchanges + rounds, "x is put together once more for a round's updates"
    headers_and_replies, chunk_reads = 3 * exchanges, 2 * calls["assemble"]
    assert calls["read"] == headers_and_replies + chunk_reads


def test_a_broadcast_that_is_not_whole_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = captured(tmp_path / "run.fedwire", 3, 1)
    calls: Counter[str] = Counter()
    counted(monkeypatch, calls, Transfers, "assemble")
    with Capture(whole, pytest.fail) as capture:
        capture.messages = [m for m in capture.messages if m.up or m.content.kind != "chunk"]
        found = Transfers(capture)
        for update in (transfer for transfer in found if transfer.up):
            with pytest.raises(DataError, match="an x that is not whole in the capture"):
                found.values(update)
    assert calls["assemble"] == 3, "one try for each of the three"
