"""What is mapped need not be in memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from common.tensors.layout import Layout, Purpose, TensorSpec
from common.tensors.mapped_files import WINDOW_BYTES, let_go_behind

MEGABYTE = 1 << 20


def resident_kb(path: Path) -> int:
    """How much of a file is in the memory of this process."""
    found = re.search(
        rf" {re.escape(str(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB", Path("/proc/self/smaps").read_text()
    )
    assert found is not None
    return int(found[1])


def test_a_mapped_file_is_let_go_of_and_read_again(tmp_path: Path) -> None:
    size = 3 * WINDOW_BYTES
    random = np.random.default_rng(0).integers(0, 256, size + MEGABYTE, np.uint8)
    random.tofile(tmp_path / "update")
    flat = np.memmap(tmp_path / "update", np.uint8, "r+")[:size]
    flat[5] = random[5] = 17
    assert (flat == random[:size]).all()
    assert resident_kb(tmp_path / "update") >= size // 1024
    let_go_behind(flat[: WINDOW_BYTES - 1])
    assert resident_kb(tmp_path / "update") >= size // 1024, "no window ends there"
    let_go_behind(flat[WINDOW_BYTES - 1 :][: WINDOW_BYTES + 1])
    assert resident_kb(tmp_path / "update") <= WINDOW_BYTES // 1024 + 64
    let_go_behind(flat.view(np.float32).reshape(3, -1))
    assert resident_kb(tmp_path / "update") <= 64
    assert (flat == random[:size]).all()


def test_no_more_than_a_window_of_what_is_read_part_by_part_is_in_memory(tmp_path: Path) -> None:
    np.ones(5 * WINDOW_BYTES, np.uint8).tofile(tmp_path / "update")
    flat, total = np.memmap(tmp_path / "update", np.uint8, "r")[100:], 0
    step = WINDOW_BYTES // 3
    for start in range(0, len(flat), step):
        total += int(flat[start : start + step].sum())
        let_go_behind(flat[start : start + step])
        assert resident_kb(tmp_path / "update") <= WINDOW_BYTES // 1024 + 64
    assert total == len(flat)


def test_other_memory_is_left_alone() -> None:
    layout = Layout([TensorSpec("w", "float32", (MEGABYTE,), Purpose.MODEL)])
    for flat in (layout.allocate(), np.empty(layout.num_bytes, np.uint8)):
        flat[:] = 7
        let_go_behind(flat)
        assert (flat == 7).all()
