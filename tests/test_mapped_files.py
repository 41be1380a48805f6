"""What is mapped need not be in memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from common.tensors.layout import Layout, Purpose, TensorSpec
from common.tensors.mapped_files import let_go

MEGABYTE = 1 << 20


def resident_kb(path: Path) -> int:
    """How much of a file is in the memory of this process."""
    found = re.search(
        rf" {re.escape(str(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB", Path("/proc/self/smaps").read_text()
    )
    assert found is not None
    return int(found[1])


def test_a_mapped_file_is_let_go_of_and_read_again(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 256, 4 * MEGABYTE, np.uint8)
    random.tofile(tmp_path / "update")
    flat = np.memmap(tmp_path / "update", np.uint8, "r+")[: 3 * MEGABYTE]
    flat[5] = random[5] = 17
    assert (flat == random[: len(flat)]).all()
    assert resident_kb(tmp_path / "update") >= 3 * 1024
    let_go(flat[MEGABYTE:][:MEGABYTE])
    assert resident_kb(tmp_path / "update") <= 2 * 1024 + 64
    let_go(flat.view(np.float32).reshape(3, -1))
    assert resident_kb(tmp_path / "update") <= 64
    assert (flat == random[: len(flat)]).all()


def test_other_memory_is_left_alone() -> None:
    layout = Layout([TensorSpec("w", "float32", (MEGABYTE,), Purpose.MODEL)])
    for flat in (layout.allocate(), np.empty(layout.num_bytes, np.uint8)):
        flat[:] = 7
        let_go(flat)
        assert (flat == 7).all()
