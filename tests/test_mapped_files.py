"""What lies in a mapped file is read, and what lies in memory is used where it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from common.errors import StateError
from common.server_step.aggregate import PIECE, Aggregate
from common.tensors.layout import Flat, Layout, TensorSpec
from common.tensors.mapped_files import Stored
from tests.rules import rules
from tests.test_wire import filled

LAYOUT = Layout(
    [TensorSpec(f"a-{n}", n, (5, 3)) for n in ("float32", "bfloat16", "int64", "uint8", "float64")]
)


def mapped(path: Path, flat: Flat, behind: int = 0) -> Flat:
    """The same bytes in a file, with so many others in front of them."""
    path.write_bytes(bytes(behind) + flat.tobytes())
    found: Flat = np.memmap(path, np.uint8, "r+")[behind:]
    return found


@pytest.mark.parametrize("behind", [0, 1, 5000])
def test_any_part_of_a_tensor_is_the_same_from_a_file_and_from_memory(tmp_path: Path, behind: int) -> None:
    flat, room = filled(LAYOUT), np.zeros(1 << 10, np.uint8)
    for here in (flat, mapped(tmp_path / "update", flat, behind)):
        with Stored(here) as stored:
            for index in range(len(LAYOUT.specs)):
                whole = LAYOUT.array(flat, index).reshape(-1)
                for elements in (slice(0, 15), slice(0, 1), slice(4, 11), slice(14, 15)):
                    found = stored.reading(LAYOUT, index)(elements, room)
                    assert found.tobytes() == whole[elements].tobytes()


def test_what_was_written_to_the_mapping_is_read(tmp_path: Path) -> None:
    flat = mapped(tmp_path / "update", filled(LAYOUT))
    LAYOUT.array(flat, 0)[...] = 7.0
    with Stored(flat) as stored:
        assert (stored.reading(LAYOUT, 0)(slice(0, 15), np.zeros(60, np.uint8)) == 7.0).all()


def test_a_file_that_was_cut_is_noticed(tmp_path: Path) -> None:
    flat = mapped(tmp_path / "update", filled(LAYOUT))
    os.truncate(tmp_path / "update", 30)
    with Stored(flat) as stored, pytest.raises(StateError, match="shorter than it was"):
        stored.reading(LAYOUT, 0)(slice(0, 15), np.zeros(60, np.uint8))


def test_a_file_that_is_elsewhere_by_now_is_read_where_it_is_mapped(tmp_path: Path) -> None:
    flat = mapped(tmp_path / "update", filled(LAYOUT))
    (tmp_path / "update").unlink()
    with Stored(flat) as stored:
        found = stored.reading(LAYOUT, 0)(slice(0, 15), np.zeros(60, np.uint8))
        assert found.tobytes() == filled(LAYOUT)[:60].tobytes()


def test_no_page_of_an_update_is_in_memory_when_it_is_summed_up(tmp_path: Path) -> None:
    """However many there are, the memory of the server does not grow with them."""
    layout = Layout([TensorSpec("w", "float32", (3 * PIECE + 5,))])
    x = layout.allocate()
    aggregate = Aggregate(layout, x)
    for k in range(1, 4):
        up = layout.allocate()
        layout.array(up, 0)[:] = k
        aggregate.add(mapped(tmp_path / f"update-{k}", up), None, 1.0, 1.0)
    after, _ = aggregate.result(x, rules(num_clients=3), {})
    assert (layout.array(after, 0) == 2.0).all()
    assert [resident_kb(tmp_path / f"update-{k}") for k in range(1, 4)] == [0, 0, 0]


def resident_kb(path: Path) -> int:
    """How much of a file is in the memory of this process."""
    found = re.search(
        rf" {re.escape(str(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB", Path("/proc/self/smaps").read_text()
    )
    assert found is not None
    return int(found[1])
