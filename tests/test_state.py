"""What a client remembers: in files and in memory alike, and an update in memory only once."""

from __future__ import annotations

import os
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.errors import DiskError
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.encoding import Encoding
from fedclient.store.memory_state import MemoryState
from fedclient.store.state import ClientState, RunFiles, StateDir
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training.core_gate import free_core

LAYOUT = Layout([TensorSpec("w", "float32", (3,), Purpose.CLIENT_CONTROL)])


@pytest.fixture(params=["files", "memory"])
def client_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClientState]:
    """Either of the two."""
    if request.param == "memory":
        yield MemoryState()
    else:
        with StateDir(tmp_path) as state:
            yield state


def test_a_variate_is_remembered_by_round_until_another_one_counts(client_state: ClientState) -> None:
    state = client_state.of_run("a1", "clinic", "f00")
    assert state.held_rounds() == []
    assert not state.read(0, LAYOUT).any(), "zero before the first round"
    for r in (3, 4):
        flat = LAYOUT.allocate()
        LAYOUT.array(flat, 0)[...] = r
        state.write(r, LAYOUT, flat)
    assert state.held_rounds() == [3, 4]
    state.settle(3)
    assert state.held_rounds() == [3]
    assert LAYOUT.array(state.read(3, LAYOUT), 0).tolist() == [3.0] * 3


def test_a_variate_is_dropped_if_it_is_damaged_and_not_if_it_cannot_be_read_now(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    for r in (1, 2):
        files.write(r, LAYOUT, LAYOUT.allocate())
    damaged = tmp_path / "variate-000001.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    (reason,) = files.drop_damaged()
    assert "variate-000001.safetensors is damaged: its checksum is wrong" in reason
    assert files.held_rounds() == [2]
    assert files.drop_damaged() == []
    (tmp_path / "variate-000003.safetensors").mkdir()
    with pytest.raises(DiskError, match="Is a directory"):
        files.drop_damaged()
    assert files.held_rounds() == [2, 3]


def test_runs_do_not_know_of_each_other(client_state: ClientState) -> None:
    client_state.of_run("a1", "clinic", "f00").write(1, LAYOUT, LAYOUT.allocate())
    assert client_state.of_run("a1", "clinic", "f00").held_rounds() == [1]
    assert client_state.of_run("b2", "clinic", "f00").held_rounds() == []


def test_an_update_that_an_earlier_process_left_is_in_memory_once(tmp_path: Path) -> None:
    """It may be as large as the model, and a restarted client holds a model and a broadcast beside it."""
    layout = Layout([TensorSpec("w", "float32", (1 << 20,))])
    sender = Sender("a1", "clinic", "f00", 12)
    payload = np.ones(layout.num_bytes, np.uint8)
    update = StoredUpdate(1, Encoding(layout), payload, 1, 0.5, None, 0.1)
    files = RunFiles(tmp_path)
    files.store_update(update.stored(sender))
    tracemalloc.start()
    try:
        data = files.stored_update()
        assert data is not None
        again = StoredUpdate.restored(data, sender)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert again.id == update.id
    assert peak < 1.1 * layout.num_bytes


def test_a_machine_trains_as_many_clients_at_once_as_it_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    order: list[str] = []

    def third() -> None:
        with free_core(2, 1):
            order.append("third")

    with free_core(0, 1):
        with free_core(1, 1):
            thread = threading.Thread(target=third)
            thread.start()
            thread.join(0.2)
            order.append("second leaves")
        thread.join(0.2)
        order.append("first leaves")
    thread.join()
    assert order == ["second leaves", "first leaves", "third"], "index 2 waits for the first of two"
    (gate,) = tmp_path.iterdir()
    assert sorted(path.name for path in gate.iterdir()) == ["core-0", "core-1"]
