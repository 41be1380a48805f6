"""Tensor files: readable by others, checked by us, replaced whole."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import StateError
from common.tensors import safetensors_files
from common.tensors.layout import DTYPES, Layout, Purpose, TensorSpec
from common.tensors.torch_views import tensor_views
from tests.test_wire import filled

LAYOUT = Layout([TensorSpec("w", "float32", (3, 2)), TensorSpec("w", "float32", (3, 2), Purpose.CONTROL)])


def test_any_dtype_can_be_written_and_read_back(tmp_path: Path) -> None:
    # The file format has no complex128; no model of ours can have one either.
    names = [name for name in DTYPES if name != "complex128"]
    layout = Layout(TensorSpec(f"{n}-{s}", n, s) for n in names for s in [(), (0,), (2, 3)])
    flat = filled(layout)
    safetensors_files.write(tmp_path / "t", layout, flat, Purpose.MODEL)
    assert safetensors_files.read(tmp_path / "t", layout).tobytes() == flat.tobytes()


def test_files_open_in_the_standard_library_for_them(tmp_path: Path) -> None:
    flat = filled(LAYOUT)
    safetensors_files.write(tmp_path / "t", LAYOUT, flat, Purpose.CONTROL)
    part = LAYOUT.part(Purpose.CONTROL)
    wanted = tensor_views(part, safetensors_files.read(tmp_path / "t", part))
    found = load_file(tmp_path / "t")
    assert found.keys() == {"w"}
    assert torch.equal(found["w"].view(torch.uint8), wanted["w"].view(torch.uint8))


@pytest.mark.parametrize("piece", [1, 7, 24])
def test_a_checksum_is_the_same_in_pieces_of_any_size(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(name: str) -> bytes:
        safetensors_files.write(tmp_path / name, LAYOUT, filled(LAYOUT), Purpose.MODEL)
        return (tmp_path / name).read_bytes()

    whole = written("whole")
    monkeypatch.setattr(safetensors_files, "SUMMED_BYTES", piece)
    assert written("pieces") == whole


def test_a_file_is_what_the_standard_library_for_them_writes(tmp_path: Path) -> None:
    layout = Layout(
        TensorSpec(name, dtype, shape)
        for name, dtype, shape in [
            ("b", "float32", (3,)),
            ("a", "float32", (2, 2)),
            ("n", "int64", ()),
            ("m", "bool", (5,)),
            ("h", "float16", (1, 3)),
            ("g", "bfloat16", (4,)),
            ("d", "float64", (2,)),
            ("u", "uint8", (3,)),
            ("i", "int32", (2,)),
        ]
    )
    flat = filled(layout)
    safetensors_files.write(tmp_path / "ours", layout, flat, Purpose.MODEL)
    note = safetensors_files.read_note(tmp_path / "ours")
    save_file(tensor_views(layout, flat), tmp_path / "theirs", metadata=note)
    ours, theirs = ((tmp_path / name).read_bytes() for name in ("ours", "theirs"))
    length = 8 + int.from_bytes(ours[:8], "little")
    entries, others = (json.loads(content[8:length]) for content in (ours, theirs))
    assert entries == others
    assert [*entries] == [*others], "in one order"
    assert ours[length:] == theirs[length:]


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_written_over_a_spare_file_it_is_the_same(tmp_path: Path, size: int) -> None:
    flat, spare = filled(LAYOUT), tmp_path / "spare"
    safetensors_files.write(tmp_path / "new", LAYOUT, flat, Purpose.MODEL)
    spare.write_bytes(b"x" * size)
    spare.chmod(0o600)
    safetensors_files.write(tmp_path / "over", LAYOUT, flat, Purpose.MODEL, spare=spare)
    assert (tmp_path / "over").read_bytes() == (tmp_path / "new").read_bytes()
    assert not spare.exists()


@pytest.mark.parametrize("harm", ["another name", "readable by others", "gone"])
def test_a_spare_file_that_is_not_just_ours_is_left_alone(tmp_path: Path, harm: str) -> None:
    spare = tmp_path / "spare"
    spare.write_bytes(b"mine")
    spare.chmod(0o600)
    if harm == "another name":
        (tmp_path / "link").hardlink_to(spare)
    elif harm == "readable by others":
        spare.chmod(0o644)
    else:
        spare.unlink()
    safetensors_files.write(tmp_path / "t", LAYOUT, filled(LAYOUT), Purpose.MODEL, spare=spare)
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600
    assert harm == "gone" or spare.read_bytes() == b"mine"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        safetensors_files.write(tmp_path / "none" / "t", LAYOUT, filled(LAYOUT), Purpose.MODEL)
    assert caught.value.filename == str(tmp_path / "none" / "t")


def test_what_a_killed_process_has_not_finished_is_dropped(tmp_path: Path) -> None:
    safetensors_files.write(tmp_path / "t.safetensors", LAYOUT, filled(LAYOUT), Purpose.MODEL)
    (tmp_path / ".t.safetensors.99.tmp").write_bytes(b"half")
    safetensors_files.drop_scratch(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["t.safetensors"]


def test_damaged_foreign_and_missing_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    part = LAYOUT.part(Purpose.MODEL)
    safetensors_files.write(path, part, part.allocate(), Purpose.MODEL)
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole[8:], b"\xff" * 8 + whole[8:]):
        path.write_bytes(content)
        with pytest.raises(StateError, match=r"cannot be read.*remove it"):
            safetensors_files.read(path, part)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(StateError, match="other tensors"):
        safetensors_files.read(path, part)
    save_file({"w": torch.zeros(3, 3)}, path)
    with pytest.raises(StateError, match=r"should be F32 \(3, 2\)"):
        safetensors_files.read(path, part)
    with pytest.raises(StateError, match="cannot be read"):
        safetensors_files.read(tmp_path / "missing", part)


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path, flat, note = tmp_path / "t", filled(LAYOUT), {"round": "7", "told": '{"a": [1]}'}
    part = LAYOUT.part(Purpose.MODEL)
    safetensors_files.write(path, LAYOUT, flat, Purpose.MODEL, note=note)
    whole, wanted = path.read_bytes(), safetensors_files.read(path, part).tobytes()
    unnoticed = 0
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            assert safetensors_files.read(path, part).tobytes() == wanted
            assert note.items() <= safetensors_files.read_note(path).items()
        except StateError:
            continue
        unnoticed += 1
    assert unnoticed <= 8 * len('"crc32c"'), "only where the name of the checksum itself is hit"


def test_a_file_of_a_release_without_checksums_is_read(tmp_path: Path) -> None:
    part = LAYOUT.part(Purpose.MODEL)
    save_file({"w": torch.ones(3, 2)}, tmp_path / "t")
    assert part.array(safetensors_files.read(tmp_path / "t", part), 0).tolist() == [[1.0, 1.0]] * 3


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path: Path) -> None:
    part = LAYOUT.part(Purpose.MODEL)
    safetensors_files.write(tmp_path / "t", part, part.allocate(), Purpose.MODEL)
    before = (tmp_path / "t").read_bytes()
    unwritable = Layout([TensorSpec("z", "complex128", (2,))])
    with pytest.raises(StateError, match="cannot be written"):
        safetensors_files.write(tmp_path / "t", unwritable, unwritable.allocate(), Purpose.MODEL)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == before
