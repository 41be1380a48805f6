"""The wire codec: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import DamagedError, Fault, WireError
from common.tensors.layout import DTYPES, Flat, Layout, Purpose, TensorSpec
from common.tensors.torch_views import tensor_view
from common.wire import chunks, manifest
from common.wire.bundles import bundles
from common.wire.calls import CALLS
from common.wire.encoding import Encoding
from common.wire.receiver import Receiver
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1 import tensor_pb2 as tensor_pb
from tests.samples import sample

SHAPES = [(), (0,), (3,), (2, 0, 4), (5, 7), (300_000,)]


def filled(layout: Layout, seed: int = 0) -> Flat:
    """A buffer of random bytes that are valid for every dtype."""
    flat = layout.allocate()
    for index, spec in enumerate(layout.specs):
        high = 2 if spec.dtype == "bool" else 256
        layout.raw(flat, index)[:] = np.random.default_rng(seed).integers(0, high, spec.num_bytes)
    return flat


def sent_chunks(layout: Layout, flat: Flat) -> list[tensor_pb.TensorChunk]:
    """What a receiver sees."""
    alone = bundles(layout, flat, most_bytes=0)
    return [pb.UpdateFrame.FromString(message.data).chunk for message in alone]


def receive(layout: Layout, arriving: list[tensor_pb.TensorChunk]) -> Flat:
    """Runs a receiver to its end."""
    flat = layout.allocate()
    receiver = Receiver(layout, flat)
    for sent in arriving:
        chunk = chunks.read_chunk(pb.UpdateFrame(chunk=sent).SerializeToString())
        assert chunk is not None
        receiver.add(chunk)
    receiver.finish()
    return flat


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_survives_the_wire(dtype: str) -> None:
    sent = Layout([TensorSpec(f"t{k}", dtype, shape) for k, shape in enumerate(SHAPES)])
    flat = filled(sent)
    layout = manifest.read_manifest(manifest.manifest(Encoding(sent))).layout
    assert layout.specs == sent.specs
    received = receive(layout, sent_chunks(sent, flat))
    for index in range(len(SHAPES)):
        original, copy = (tensor_view(sent, buffer, index) for buffer in (flat, received))
        assert copy.dtype == getattr(torch, dtype)
        assert copy.shape == torch.Size(SHAPES[index])
        assert torch.equal(
            original.reshape(-1).view(torch.uint8) if original.numel() else original,
            copy.reshape(-1).view(torch.uint8) if copy.numel() else copy,
        )


@given(st.lists(st.integers(0, 3 * chunks.CHUNK_BYTES // 8), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_any_sizes_are_cut_into_chunks_and_put_together(sizes: list[int]) -> None:
    layout = Layout([TensorSpec(f"t{k}", "float64", (n,)) for k, n in enumerate(sizes)])
    flat = filled(layout)
    arriving = sent_chunks(layout, flat)
    assert all(0 < len(chunk.data) <= chunks.CHUNK_BYTES for chunk in arriving)
    assert receive(layout, arriving).tobytes() == flat.tobytes()


LAYOUT = Layout([TensorSpec("a", "float32", (4,)), TensorSpec("b", "float32", (2, 2))])


def spoiled(change: str) -> list[tensor_pb.TensorChunk]:
    """The two chunks of LAYOUT with one thing wrong."""
    first, second = sent_chunks(LAYOUT, filled(LAYOUT))
    match change:
        case "checksum":
            second.crc32c ^= 1
        case "bit":
            second.data = second.data[:-1] + bytes([second.data[-1] ^ 1])
        case "offset":
            second.offset = 4
            second.data = second.data[:4]
        case "overrun":
            second.data += b"1234"
        case "beyond":
            second.offset = 2**40
        case "index":
            second.tensor = 9
        case "repeat":
            return [first, second, second]
        case "order":
            return [second, first]
        case "empty":
            second.data = b""
        case "large":
            second.data = bytes(chunks.CHUNK_BYTES + 1)
        case "short":
            return [first]
    return [first, second]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("checksum", Fault.BAD_CHECKSUM),
        ("bit", Fault.BAD_CHECKSUM),
        ("offset", Fault.WRONG_OFFSET),
        ("overrun", Fault.TOO_MANY_BYTES),
        ("beyond", Fault.TOO_MANY_BYTES),
        ("index", Fault.WRONG_OFFSET),
        ("repeat", Fault.TOO_MANY_BYTES),
        ("order", Fault.WRONG_OFFSET),
        ("empty", Fault.MALFORMED),
        ("large", Fault.MALFORMED),
        ("short", Fault.TOO_FEW_BYTES),
    ],
)
def test_a_spoiled_stream_is_refused_with_its_fault(change: str, fault: Fault) -> None:
    with pytest.raises(WireError) as caught:
        receive(LAYOUT, spoiled(change))
    assert caught.value.fault is fault
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"num_bytes": 15}, Fault.WRONG_SHAPE),
        ({"shape": [2**63, 2**63], "num_bytes": 0}, Fault.WRONG_SHAPE),
        ({"shape": [2**45], "num_bytes": 2**47}, Fault.WRONG_SHAPE),
        ({"shape": [1] * 17, "num_bytes": 4}, Fault.WRONG_SHAPE),
        ({"dtype": 99}, Fault.WRONG_DTYPE),
        ({"dtype": 0}, Fault.WRONG_DTYPE),
        ({"purpose": 0}, Fault.BROKEN_CONTRACT),
        ({"codec": 7}, Fault.BROKEN_CONTRACT),
        ({"name": ""}, Fault.BROKEN_CONTRACT),
        ({"name": "n" * 513}, Fault.BROKEN_CONTRACT),
    ],
)
def test_a_manifest_is_checked_before_anything_is_allocated(change: dict[str, object], fault: Fault) -> None:
    fields: dict[str, object] = dict(name="a", dtype=1, shape=[4], purpose=1, codec=1, num_bytes=16)
    spec = tensor_pb.TensorSpec(**(fields | change))  # type: ignore[arg-type]
    with pytest.raises(WireError) as caught:
        manifest.read_manifest([spec])
    assert caught.value.fault is fault


def test_a_tensor_cannot_be_announced_twice_but_may_have_two_purposes() -> None:
    model, control = TensorSpec("a", "float32", (4,)), TensorSpec("a", "float32", (4,), Purpose.CONTROL)
    announced = manifest.manifest(Encoding(Layout([model, control])))
    assert manifest.read_manifest(announced).layout.specs == (model, control)
    with pytest.raises(WireError, match="announced twice"):
        manifest.read_manifest(manifest.manifest(Encoding(Layout([model, model]))))


def test_too_many_tensors_are_refused() -> None:
    with pytest.raises(WireError, match="at most"):
        manifest.read_manifest([tensor_pb.TensorSpec()] * (manifest.MAX_TENSORS + 1))


@pytest.mark.parametrize(
    ("came", "fault"),
    [
        ([TensorSpec("a", "float32", (5,)), LAYOUT.specs[1]], Fault.WRONG_SHAPE),
        ([TensorSpec("a", "float64", (4,)), LAYOUT.specs[1]], Fault.WRONG_DTYPE),
        ([*LAYOUT.specs, TensorSpec("z", "float32", (1,))], Fault.UNKNOWN_TENSOR),
        ([TensorSpec("a", "float32", (4,), Purpose.CONTROL), LAYOUT.specs[1]], Fault.UNKNOWN_TENSOR),
        ([LAYOUT.specs[0]], Fault.MISSING_TENSOR),
        ([LAYOUT.specs[1], LAYOUT.specs[0]], Fault.BROKEN_CONTRACT),
    ],
)
def test_other_tensors_than_expected_are_named(came: list[TensorSpec], fault: Fault) -> None:
    with pytest.raises(WireError) as caught:
        manifest.require_expected(manifest.manifest(Encoding(Layout(came))), Encoding(LAYOUT))
    assert caught.value.fault is fault


def test_a_manifest_that_comes_again_is_read_once_and_another_one_anew() -> None:
    def came(*specs: TensorSpec) -> list[tensor_pb.TensorSpec]:
        return [tensor_pb.TensorSpec.FromString(each.SerializeToString()) for each in announced(*specs)]

    def announced(*specs: TensorSpec) -> tuple[tensor_pb.TensorSpec, ...]:
        return manifest.manifest(Encoding(Layout(specs)))

    first, other = TensorSpec("a", "float32", (4,)), TensorSpec("a", "float32", (5,))
    again = manifest.read_again(came(first))
    assert manifest.read_again(came(first)) is again
    assert manifest.read_again(came(other)).layout.specs == (other,)
    assert again.layout.specs == (first,)
    manifest.require_expected(came(first), again)
    for _ in range(2):
        with pytest.raises(WireError, match="announced twice"):
            manifest.read_again(came(first, first))


@pytest.mark.parametrize(
    "masks",
    [
        pytest.param([*(1 << k for k in range(8)), 255], id="bits"),
        pytest.param(range(1, 256), id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", sorted({k for c in CALLS.values() for k in (c.request, c.reply)}, key=str))
def test_a_message_with_any_byte_changed_is_noticed(kind: type[Message], masks: Iterable[int]) -> None:
    sent = sample(kind)
    data = chunks.sealed(sent)
    assert chunks.parsed(kind, data) == sent
    assert chunks.parsed(kind, sent.SerializeToString()) == sent, "earlier releases send no checksum"
    for at, mask in itertools.product(range(len(data)), masks):
        with pytest.raises(DamagedError):
            chunks.parsed(kind, data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
