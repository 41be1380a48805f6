"""Codecs: how far a value may move, that nothing else gets in, and that both sides always see the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError, Fault, WireError
from common.tensors.layout import Array, Flat, Layout, Purpose, TensorSpec
from common.wire import codecs
from common.wire.codec_choice import Codecs, codec_for
from common.wire.codecs import Codec, Int8, TopK
from common.wire.encoding import (
    Encoding,
    TensorEncoding,
    downward,
    require_finite,
    upward,
    without_control,
)
from common.wire.manifest import manifest, read_manifest, require_same
from fedpvr.v1 import tensor_pb2 as pb

LOSSY = ["fp16", "bf16", "int8", "int8-tensor", "topk:0.3"]
LAYOUT = Layout(
    [
        TensorSpec("w", "float32", (70, 50)),
        TensorSpec("b", "float32", (9,)),
        TensorSpec("s", "float32", ()),
        TensorSpec("e", "float32", (0,)),
        TensorSpec("mean", "float32", (9,), Purpose.BUFFER),
        TensorSpec("count", "int64", (), Purpose.BUFFER),
        TensorSpec("w", "float32", (70, 50), Purpose.CONTROL),
    ]
)


def random_values(layout: Layout, seed: int, scale: float = 1.0) -> Flat:
    """A buffer of normal numbers."""
    random = np.random.default_rng(seed)
    flat = layout.allocate()
    for k, spec in enumerate(layout.specs):
        layout.array(flat, k)[...] = scale * random.normal(size=spec.shape)
    return flat


def coded(codec: Codec, values: Array, seed: int = 0) -> tuple[Flat, Array]:
    """The bytes of an array, and what they say."""
    raw = np.zeros(codec.num_bytes(len(values), values.itemsize), np.uint8)
    codec.encode(values, raw, np.random.default_rng(seed))
    out = np.full_like(values, np.nan)
    codec.decode(raw, out)
    return raw, out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "error"), [("fp16", 2**-11), ("bf16", 2**-8), ("int8", 1 / 127), ("int8-tensor", 1 / 127)]
)
@given(st.integers(1, 9000), st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=15, deadline=None)
def test_no_value_moves_further_than_a_step(
    dtype: str, name: str, error: float, n: int, seed: int, scale: float
) -> None:
    values = (scale * np.random.default_rng(seed).normal(size=n)).astype(dtype)
    raw, found = coded(_codec(name, n), values)
    assert len(raw) <= 2 * n + 4
    steps = np.abs(values) if name in ("fp16", "bf16") else np.full(n, np.abs(values).max())
    assert np.all(np.abs(found - values) <= error * steps + 1e-7)


def _codec(name: str, n: int) -> Codec:
    return {
        "fp16": codecs.Half(),
        "bf16": codecs.Brain(),
        "int8": Int8(min(codecs.SCALED, n)),
        "int8-tensor": Int8(n),
    }[name]


def test_int8_is_right_on_average() -> None:
    values = np.full(200_000, 0.123456, np.float32)
    values[0] = 1.0
    _, found = coded(Int8(len(values)), values)
    assert set(np.unique(np.round(found[1:] * 127))) == {15.0, 16.0}
    assert found[1:].mean() == pytest.approx(0.123456, rel=1e-3)


def test_an_outlier_spoils_its_own_block_only() -> None:
    values = np.full(3 * codecs.SCALED, 0.01, np.float32)
    values[5] = 1000.0
    _, found = coded(codec_for("int8", "float32", len(values)), values)
    np.testing.assert_allclose(found[codecs.SCALED :], 0.01, rtol=1e-2)
    assert not np.allclose(found[: codecs.SCALED][6:], 0.01, rtol=1e-2)


def test_top_k_keeps_the_largest_exactly_and_nothing_else() -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    raw, found = coded(TopK(50), values)
    largest = np.argsort(-np.abs(values))[:50]
    assert set(np.flatnonzero(found)) == set(largest)
    assert np.array_equal(found[largest], values[largest])
    assert len(raw) == 8 * 50


def test_zeros_and_huge_numbers_stay_finite() -> None:
    for name in ("fp16", "bf16", "int8", "int8-tensor"):
        assert np.array_equal(coded(_codec(name, 10), np.zeros(10, np.float32))[1], np.zeros(10))
        huge = np.array([3e38, -3e38, 1.0], np.float32)
        assert np.isfinite(coded(_codec(name, 3), huge)[1]).all()


@pytest.mark.parametrize("indices", [[3, 2], [2, 2], [0, 10], [0, 2**32 - 1]])
def test_top_k_indices_from_a_peer_are_checked(indices: list[int]) -> None:
    raw = np.concatenate([np.array(indices, "<u4").view(np.uint8), np.zeros(8, np.uint8)])
    with pytest.raises(WireError, match="indices must rise and stay below 10"):
        TopK(2).decode(raw, np.zeros(10, np.float32))


@pytest.mark.parametrize("name", LOSSY)
def test_the_receiver_sees_to_the_bit_what_the_sender_believes_it_sees(name: str) -> None:
    encoding = upward(LAYOUT, name, "int8")
    x, values = random_values(LAYOUT, 1), random_values(LAYOUT, 2)
    residual = encoding.residuals.allocate()
    raw = encoding.encode_in_place(values, np.random.default_rng(3), x, residual)
    assert encoding.decode(raw, x).tobytes() == values.tobytes()
    assert len(raw) < LAYOUT.num_bytes


@pytest.mark.parametrize("name", LOSSY)
def test_what_is_left_out_now_is_sent_later(name: str) -> None:
    """Error feedback: sent plus kept is what was wanted, and over many updates the mean arrives whole."""
    encoding = upward(LAYOUT, name, "fp32")
    x = LAYOUT.allocate()
    residual = encoding.residuals.allocate()
    wanted = random_values(LAYOUT, 5)
    total = np.zeros((70, 50))
    for r in range(40):
        before = encoding.residuals.array(residual, 0).copy()
        values = wanted.copy()
        encoding.encode_in_place(values, np.random.default_rng(r), x, residual)
        sent = LAYOUT.array(values, 0)
        due = LAYOUT.array(wanted, 0) + before
        np.testing.assert_allclose(sent + encoding.residuals.array(residual, 0), due, atol=1e-6)
        total += sent
    np.testing.assert_allclose(total / 40, LAYOUT.array(wanted, 0), atol=0.15)


def test_buffers_and_what_would_not_get_smaller_travel_as_they_are() -> None:
    tensor_encodings = upward(LAYOUT, "int8", "fp16").tensor_encodings
    assert [tensor_encoding.codec.name for tensor_encoding in tensor_encodings] == [
        "int8",
        "int8",
        "fp32",
        "fp32",
        "fp32",
        "fp32",
        "fp16",
    ]
    assert [tensor_encoding.difference for tensor_encoding in tensor_encodings] == [
        True,
        True,
        False,
        False,
        False,
        False,
        False,
    ]


def test_without_a_codec_nothing_is_copied() -> None:
    encoding = upward(LAYOUT, "fp32", "fp32")
    values = random_values(LAYOUT, 0)
    assert encoding.plain
    assert encoding.encode_in_place(values, np.random.default_rng(0), None, None) is values
    assert encoding.decode(values, None) is values


def test_a_coding_survives_its_manifest() -> None:
    for encoding in (
        upward(LAYOUT, "topk:0.1", "int8"),
        without_control(downward(LAYOUT, Codecs(down="bf16"))),
    ):
        again = read_manifest(manifest(encoding))
        assert again.matches(encoding)
        assert again.encoded.num_bytes == encoding.encoded.num_bytes


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"codec": 4, "block": 0}, Fault.BROKEN_CONTRACT),
        ({"codec": 4, "block": 17, "num_bytes": 20}, Fault.BROKEN_CONTRACT),
        ({"codec": 5, "kept": 0, "num_bytes": 0}, Fault.BROKEN_CONTRACT),
        ({"codec": 5, "kept": 17, "num_bytes": 136}, Fault.BROKEN_CONTRACT),
        ({"codec": 2}, Fault.WRONG_SHAPE),
        ({"codec": 2, "num_bytes": 32, "dtype": 5}, Fault.WRONG_DTYPE),
        ({"codec": 2, "num_bytes": 2**41, "shape": [2**40]}, Fault.WRONG_SHAPE),
        ({"difference": True}, Fault.BROKEN_CONTRACT),
        ({"codec": 9}, Fault.BROKEN_CONTRACT),
    ],
)
def test_codecs_from_a_peer_are_checked(change: dict[str, object], fault: Fault) -> None:
    fields: dict[str, object] = dict(name="a", dtype=1, shape=[16], purpose=1, codec=1, num_bytes=64)
    with pytest.raises(WireError) as caught:
        read_manifest([pb.TensorSpec(**(fields | change))])  # type: ignore[arg-type]
    assert caught.value.fault is fault


def test_another_codec_than_agreed_is_named() -> None:
    with pytest.raises(WireError, match="w: expected codec int8 of the difference to x, got fp16 of the"):
        require_same(upward(LAYOUT, "fp16", "fp32"), upward(LAYOUT, "int8", "fp32"))


def test_an_update_that_decodes_to_infinity_is_refused() -> None:
    layout = Layout([TensorSpec("w", "float32", (4,))])
    encoding = Encoding(layout, [TensorEncoding(Int8(4), difference=True)])
    raw = encoding.encoded.allocate()
    raw[:4].view("<f4")[:] = np.inf
    raw[4:] = 1
    with pytest.raises(WireError) as caught:
        require_finite(layout, encoding.decode(raw, layout.allocate()))
    assert (caught.value.fault, caught.value.tensor) == (Fault.NOT_FINITE, "w")


@pytest.mark.parametrize(
    ("given_settings", "expected"),
    [
        ((), Codecs()),
        (("int8",), Codecs(up="int8")),
        (("down=fp16", "up=topk:0.01", "control=int8"), Codecs("fp16", "topk:0.01", "int8")),
        (("down=fp16,control=bf16",), Codecs("fp16", "fp32", "bf16")),
    ],
)
def test_settings_name_codecs(given_settings: tuple[str, ...], expected: Codecs) -> None:
    assert Codecs.parse(given_settings) == expected


@pytest.mark.parametrize(
    "bad", ["int7", "down=topk:0.1", "sideways=fp16", "topk:2", "topk:", "up=", "topk:nan"]
)
def test_settings_that_name_none_say_what_there_is(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"--codec .*(can be fp32, fp16|for down, up or control)"):
        Codecs.parse((bad,))
    with pytest.raises(ConfigError, match="gives up twice"):
        Codecs.parse(("int8", "up=fp16"))
