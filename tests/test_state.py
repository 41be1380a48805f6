"""What a client remembers: in a directory and in a simulation alike, and an update in memory only once."""

from __future__ import annotations

import os
import subprocess
import sys
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
from fedclient.store.run_state import ClientState
from fedclient.store.state import RunFiles, StateDir
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training.core_gate import free_cores, sharing_cores
from fedlab.direct.kept_state import KeptState, Together

LAYOUT = Layout([TensorSpec("w", "float32", (3,), Purpose.CLIENT_CONTROL)])


@pytest.fixture(params=["files", "simulation"])
def client_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClientState]:
    """Either of the two."""
    if request.param == "simulation":
        yield KeptState(Together(tmp_path, LAYOUT, {}, 1 << 20), 0)
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


def test_runs_do_not_know_of_each_other(tmp_path: Path) -> None:
    with StateDir(tmp_path) as state:
        state.of_run("a1", "clinic", "f00").write(1, LAYOUT, LAYOUT.allocate())
        assert state.of_run("a1", "clinic", "f00").held_rounds() == [1]
        assert state.of_run("b2", "clinic", "f00").held_rounds() == []


def test_an_update_that_an_earlier_process_left_is_in_memory_once(tmp_path: Path) -> None:
    """It may be as large as the model, and a restarted client holds a model and a broadcast besides it."""
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


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The gate of a machine with two cores."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return tmp_path / f"fedpvr-gate-{os.getuid()}"


def test_a_machine_trains_as_many_clients_at_once_as_it_has_cores(gate: Path) -> None:
    order: list[str] = []

    def third() -> None:
        with free_cores(1):
            order.append("third")

    with free_cores(1):
        with free_cores(1):
            thread = threading.Thread(target=third)
            thread.start()
            thread.join(0.2)
            order.append("one of two leaves")
        thread.join()
        order.append("the other leaves")
    assert order == ["one of two leaves", "third", "the other leaves"], "it waits for whichever is free first"
    assert sorted(path.name for path in gate.iterdir()) == ["core-0", "core-1", "door"]


def test_who_waits_for_a_core_is_let_in_when_its_holder_is_killed(gate: Path) -> None:
    program = (
        "from fedclient.training.core_gate import free_cores\nwith free_cores(9): print(flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(gate.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"\n"
    inside = threading.Event()

    def wait() -> None:
        with free_cores(2):
            inside.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not inside.wait(0.1)
    holder.kill()
    thread.join()
    holder.communicate()
    assert inside.is_set()


def test_cores_are_shared_out_among_the_clients_that_share_them(gate: Path) -> None:
    with sharing_cores():
        with free_cores(None) as alone:
            pass
        with sharing_cores(), free_cores(None) as one_of_two, free_cores(None) as other:
            pass
        with free_cores(None) as alone_again:
            pass
    assert (alone, one_of_two, other, alone_again) == (2, 1, 1, 2)


def test_a_turn_writes_nothing_to_the_gate_that_is_there(gate: Path) -> None:
    def times() -> dict[str, tuple[int, int]]:
        found = {path.name: path.stat() for path in [gate, *gate.iterdir()]}
        return {name: (each.st_mtime_ns, each.st_ctime_ns) for name, each in found.items()}

    with free_cores(2):
        before = times()
    with free_cores(2):
        assert times() == before


def test_where_no_file_can_be_made_a_client_trains_without_a_gate(gate: Path) -> None:
    (gate / "door").mkdir(parents=True)
    (gate / "client-0").mkdir()
    with sharing_cores(), free_cores(2) as first, free_cores(2) as second:
        assert (first, second) == (2, 2)


def test_without_a_folder_of_its_own_a_client_trains_without_a_gate(gate: Path) -> None:
    gate.write_text("in the way")
    with sharing_cores(), free_cores(2) as first, free_cores(2) as second, free_cores(None) as third:
        assert (first, second, third) == (2, 2, 1)
