"""Tensor files: readable by others, checked by us, replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common import tensorfile
from common.errors import StateError
from common.params import tensor_views
from common.tensors import DTYPES, Layout, Purpose, TensorSpec
from tests.test_wire import filled

LAYOUT = Layout([TensorSpec("w", "float32", (3, 2)), TensorSpec("w", "float32", (3, 2), Purpose.CONTROL)])


def test_any_dtype_can_be_written_and_read_back(tmp_path: Path) -> None:
    # The file format has no complex128; no model of ours can have one either.
    names = [name for name in DTYPES if name != "complex128"]
    layout = Layout(TensorSpec(f"{n}-{s}", n, s) for n in names for s in [(), (0,), (2, 3)])
    flat = filled(layout)
    tensorfile.write(tmp_path / "t", layout, flat, Purpose.MODEL)
    assert tensorfile.read(tmp_path / "t", layout).tobytes() == flat.tobytes()


def test_files_open_in_the_standard_library_for_them(tmp_path: Path) -> None:
    flat = filled(LAYOUT)
    tensorfile.write(tmp_path / "t", LAYOUT, flat, Purpose.CONTROL)
    part = LAYOUT.part(Purpose.CONTROL)
    wanted = tensor_views(part, tensorfile.read(tmp_path / "t", part))
    found = load_file(tmp_path / "t")
    assert found.keys() == {"w"}
    assert torch.equal(found["w"].view(torch.uint8), wanted["w"].view(torch.uint8))


def test_damaged_foreign_and_missing_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    part = LAYOUT.part(Purpose.MODEL)
    tensorfile.write(path, part, part.allocate(), Purpose.MODEL)
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole[8:], b"\xff" * 8 + whole[8:]):
        path.write_bytes(content)
        with pytest.raises(StateError, match=r"cannot be read.*remove it"):
            tensorfile.read(path, part)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(StateError, match="other tensors"):
        tensorfile.read(path, part)
    save_file({"w": torch.zeros(3, 3)}, path)
    with pytest.raises(StateError, match=r"should be F32 \(3, 2\)"):
        tensorfile.read(path, part)
    with pytest.raises(StateError, match="cannot be read"):
        tensorfile.read(tmp_path / "missing", part)


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path: Path) -> None:
    part = LAYOUT.part(Purpose.MODEL)
    tensorfile.write(tmp_path / "t", part, part.allocate(), Purpose.MODEL)
    before = (tmp_path / "t").read_bytes()
    unwritable = Layout([TensorSpec("z", "complex128", (2,))])
    with pytest.raises(StateError, match="cannot be written"):
        tensorfile.write(tmp_path / "t", unwritable, unwritable.allocate(), Purpose.MODEL)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == before
