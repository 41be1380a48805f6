"""Updates between their arrival and the end of their round: small ones in memory, others in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.tensors.layout import Flat, Layout, TensorSpec
from common.wire.bundles import bundles
from common.wire.chunks import START, read_chunk
from common.wire.encoding import Encoding
from fedserver.store import room
from fedserver.store.spool import Spool

LAYOUT = Layout([TensorSpec("w", "float32", (3, 5)), TensorSpec("b", "float32", (5,))])
SENT: Flat = LAYOUT.allocate()
for index, spec in enumerate(LAYOUT.specs):
    LAYOUT.raw(SENT, index)[:] = np.arange(1, spec.num_bytes + 1)


def sent_to(spool: Spool, i: int, r: int) -> None:
    """An update of client i comes, whole."""
    upload = spool.upload(i, "1-00", START, Encoding(LAYOUT))
    for message in bundles(LAYOUT, SENT, most_bytes=0):
        chunk = read_chunk(message.data)
        assert chunk is not None
        upload.add(chunk)
    raw, _ = upload.mapped()
    assert np.array_equal(raw, SENT)
    spool.keep(i, r, upload)


@pytest.mark.parametrize("in_files", [False, True])
def test_an_update_is_the_same_in_memory_and_in_a_file(tmp_path: Path, in_files: bool) -> None:
    spool = Spool(tmp_path, Encoding(LAYOUT), LAYOUT, in_files=in_files)
    sent_to(spool, 3, 7)
    assert bool([*tmp_path.rglob("*.update")]) is in_files
    assert np.array_equal(spool.values(7, 3), SENT)
    spool.values(7, 3, writable=True)[0] = 99
    assert spool.values(7, 3)[0] == 99, "what is changed stays changed"
    spool.drop_round(7)
    spool.drop_spares()
    assert not [*tmp_path.iterdir()]


def test_the_next_round_writes_over_the_files_of_the_last(tmp_path: Path) -> None:
    spool = Spool(tmp_path, Encoding(LAYOUT), LAYOUT, in_files=True)
    sent_to(spool, 3, 7)
    file = spool.path(7, 3).stat().st_ino
    spool.drop_round(7)
    sent_to(spool, 5, 8)
    assert spool.path(8, 5).stat().st_ino == file
    assert np.array_equal(spool.values(8, 5), SENT)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000008"]


def test_memory_is_taken_only_for_so_many_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MEMORY_BYTES", 2 * LAYOUT.num_bytes)
    spool = Spool(tmp_path, Encoding(LAYOUT), LAYOUT)
    for r in (1, 2):
        for i in range(3):
            sent_to(spool, i, r)
        assert [path.name for path in tmp_path.rglob("*.update")] == ["client-00002.update"]
        assert all(np.array_equal(spool.values(r, i), SENT) for i in range(3))
        spool.drop_round(r)


def test_an_upload_that_is_given_up_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MEMORY_BYTES", LAYOUT.num_bytes)
    spool = Spool(tmp_path, Encoding(LAYOUT), LAYOUT)
    for _ in range(3):
        spool.upload(0, "1-00", START, Encoding(LAYOUT))
        assert not [*tmp_path.iterdir()], "the one before has made room"
    spool.drop_parts()
    sent_to(spool, 1, 1)
    assert not [*tmp_path.rglob("*.update")]
