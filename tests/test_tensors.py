"""Flat buffers and number formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.tensors.layout import (
    ALIGNMENT,
    DTYPES,
    Layout,
    Purpose,
    TensorSpec,
    all_finite,
    fingerprint,
    from_float64,
    to_float64,
)
from fedpvr.v1 import tensor_pb2 as pb

FLOATS = [name for name, dtype in DTYPES.items() if dtype.trains]


def test_the_dtype_table_agrees_with_the_contract_and_with_torch() -> None:
    for name, dtype in DTYPES.items():
        assert pb.DType.Value(f"DTYPE_{name.upper()}") == dtype.number
        assert getattr(torch, name).itemsize == dtype.storage.itemsize
    assert len(pb.DType.items()) == len(DTYPES) + 1


def test_purposes_agree_with_the_contract() -> None:
    assert {f"PURPOSE_{purpose.name}": purpose.value for purpose in Purpose} == {
        name: number for name, number in pb.Purpose.items() if number
    }


def test_tensors_lie_apart_and_aligned() -> None:
    layout = Layout(TensorSpec(str(n), "uint8", (n,)) for n in (1, 0, 64, 65, 3))
    flat = layout.allocate()
    for index in range(len(layout.specs)):
        layout.array(flat, index)[...] += 1
        assert layout.offsets[index] % ALIGNMENT == 0
    assert flat.sum() == 1 + 0 + 64 + 65 + 3


@pytest.mark.parametrize("dtype", FLOATS)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20))
def test_float64_is_rounded_as_torch_rounds(dtype: str, values: list[float]) -> None:
    exact = torch.tensor(values, dtype=torch.float64)
    # torch goes from float64 to bfloat16 by way of float32, and so do we.
    wanted = exact.float().bfloat16() if dtype == "bfloat16" else exact.to(getattr(torch, dtype))
    stored = from_float64(exact.numpy(), dtype)
    assert stored.tobytes() == wanted.view(torch.uint8).numpy().tobytes()
    assert to_float64(stored, dtype).tolist() == wanted.double().tolist()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_found(dtype: str, bad: float) -> None:
    good = from_float64(np.array([1.0, -2.0, 0.0]), dtype)
    assert all_finite(good, dtype)
    assert not all_finite(from_float64(np.array([1.0, bad]), dtype), dtype)


@pytest.mark.parametrize(("dtype", "large"), [("float32", 3e38), ("float64", 1e308), ("bfloat16", 3e38)])
def test_large_numbers_are_finite_though_their_squares_are_not(dtype: str, large: float) -> None:
    stored = from_float64(np.array([[large, -large], [0.0, large]]), dtype)
    assert all_finite(stored, dtype)
    assert all_finite(stored.T[::2], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_begin_at_any_byte_are_looked_at_as_well(dtype: str) -> None:
    size = 100_000
    for start in range(4):
        stored = np.zeros(start + size * DTYPES[dtype].storage.itemsize, np.uint8)[start:]
        numbers = stored.view(DTYPES[dtype].storage)
        for first, second in ((1.0, -2.0), (np.finfo(numbers.dtype).max,) * 2):
            numbers[7], numbers[-1] = first, second
            assert all_finite(numbers, dtype)
        for bad in (np.nan, np.inf, -np.inf):
            numbers[-1] = bad
            assert not all_finite(numbers, dtype)
        numbers[7], numbers[-1] = np.inf, -np.inf
        assert not all_finite(numbers, dtype)


def test_integers_are_rounded_and_always_finite() -> None:
    assert from_float64(np.array([1.5, 2.5, -0.4]), "int64").tolist() == [2, 2, 0]
    assert all_finite(np.array([1, 2]), "int64")


def test_the_fingerprint_sees_every_difference() -> None:
    base = TensorSpec("w", "float32", (2, 3))
    others = [
        TensorSpec("v", "float32", (2, 3)),
        TensorSpec("w", "float64", (2, 3)),
        TensorSpec("w", "float32", (3, 2)),
        TensorSpec("w", "float32", (2, 3), Purpose.BUFFER),
    ]
    assert len({fingerprint([spec]) for spec in [base, *others]}) == 5
    assert fingerprint([base, others[0]]) != fingerprint([others[0], base])
