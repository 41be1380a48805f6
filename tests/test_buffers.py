"""Buffers that are used again are nobody else's at that moment."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.tensors.buffers import Buffers, reused
from common.tensors.layout import Layout, TensorSpec
from common.tensors.torch_views import tensor_view

LAYOUT = Layout([TensorSpec("w", "float32", ((4 << 20) // 4 + 3,)), TensorSpec("b", "float32", (5,))])


def address(layout: Layout = LAYOUT) -> int:
    """Where the buffer lies that is given out now."""
    place: int = reused(layout).ctypes.data
    return place


def test_a_buffer_that_nobody_has_is_given_out_again() -> None:
    assert address() == address()


@pytest.mark.parametrize(
    "look", [lambda flat: flat[8:], lambda flat: flat.data, np.asarray], ids=["part", "memory", "all"]
)
def test_one_that_somebody_looks_at_is_not(look: object) -> None:
    flat = reused(LAYOUT)
    place = flat.ctypes.data
    view = look(flat)  # type: ignore[operator]
    del flat
    assert address() != place
    del view


def test_one_that_a_tensor_lies_in_is_not() -> None:
    weight = tensor_view(LAYOUT, reused(LAYOUT), 0)
    other = reused(LAYOUT)
    LAYOUT.raw(other, 0)[:] = 1
    assert torch.count_nonzero(weight) in (0, len(weight)), "as it was left, and not as the other writes it"
    assert weight.data_ptr() != other.ctypes.data


def test_another_layout_gets_another_buffer() -> None:
    other = Layout([TensorSpec("w", "float32", ((5 << 20) // 4,))])
    first = reused(LAYOUT)
    assert reused(other).ctypes.data != first.ctypes.data
    assert len(reused(other)) == other.num_bytes


@pytest.mark.parametrize("spared", [0, 1])
def test_a_very_large_one_goes_back_to_the_system(spared: int) -> None:
    buffers = Buffers(kept=1, most_bytes=LAYOUT.num_bytes - 1 + spared)
    flat = buffers.take(LAYOUT)
    flat[:] = 1
    del flat
    assert buffers.take(LAYOUT).any() == bool(spared), "new, unless it was small enough to be kept"
