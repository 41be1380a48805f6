"""A finished update on disk: what was stored comes back, and nothing else does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StateError
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.encoding import Encoding
from fedclient.store.state import StateDir
from fedclient.store.stored_update import Sender, StoredUpdate
from tests.killpoint import trap
from tests.processes import Federation, lasting_address

SENDER = Sender("a1b2", "clinic", "f" * 64, 12)
LAYOUT = Layout([TensorSpec("w", "float32", (3, 2)), TensorSpec("w", "float32", (3, 2), Purpose.CONTROL)])
FLAGS = ["--num-clients", "1", "--rounds", "2", "--seed", "5", "--algorithm", "scaffold"]


def stored_update() -> StoredUpdate:
    """An update of two small tensors."""
    payload = LAYOUT.allocate()
    for k in range(len(LAYOUT.specs)):
        LAYOUT.raw(payload, k)[:] = np.arange(24) + k
    return StoredUpdate(
        7, Encoding(LAYOUT), payload, steps=3, loss=0.5, validation_accuracy=None, seconds=1.5
    )


def stored() -> bytes:
    """The same as a file."""
    return b"".join(stored_update().stored(SENDER))


def test_what_was_stored_comes_back() -> None:
    again = StoredUpdate.restored(stored(), SENDER)
    assert again.header(SENDER) == stored_update().header(SENDER)
    assert again.payload.tobytes() == stored_update().payload.tobytes()
    assert again.encoding.matches(stored_update().encoding)


@given(st.integers(0, len(stored()) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed(at: int, change: int) -> None:
    data = bytearray(stored())
    data[at] ^= change
    with pytest.raises(StateError):
        StoredUpdate.restored(bytes(data), SENDER)


@given(st.integers(0, len(stored()) - 1))
def test_a_file_that_was_cut_off_is_noticed(length: int) -> None:
    with pytest.raises(StateError):
        StoredUpdate.restored(stored()[:length], SENDER)


def test_an_update_of_somebody_else_is_refused() -> None:
    for other in (
        replace(SENDER, run_id="c3"),
        replace(SENDER, client="b"),
        replace(SENDER, fingerprint="0"),
    ):
        with pytest.raises(StateError, match="belongs to"):
            StoredUpdate.restored(stored(), other)


def test_state_of_another_client_or_model_is_refused(tmp_path: Path) -> None:
    with StateDir(tmp_path) as state:
        state.of_run("a1", "clinic", "f00")
        state.of_run("a1", "clinic", "f00")
        state.of_run("b2", "bank", "f11")
        with pytest.raises(StateError, match=r"holds the state of .*clinic.*choose another --state-dir"):
            state.of_run("a1", "bank", "f00")
        with pytest.raises(StateError, match="holds the state of"):
            state.of_run("a1", "clinic", "f11")
        (tmp_path / "run-a1" / "owner.json").write_text("{")
        with pytest.raises(StateError, match=r"owner\.json: expected JSON, .*; remove .*run-a1"):
            state.of_run("a1", "clinic", "f00")


@pytest.mark.parametrize("damage", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_client_killed_with_its_update_in_hand_hands_it_in_later(
    federation: Federation, damage: bool
) -> None:
    """The server is killed when the update begins to arrive, and the client once it cannot hand it in."""
    address = federation.server(
        *FLAGS, listen=lasting_address(), name="first", through=trap("kill", "mid-upload, server")
    )
    federation.client("a")
    federation.wait_for_death("first")
    federation.wait_for("a", r"round 1: .* steps(.|\n)*trying again")
    federation.kill("a")
    (held,) = (federation.folder / "state" / "a").glob("run-*/update.parcel")
    if damage:
        held.write_bytes(held.read_bytes()[:-1])
    federation.server(*FLAGS, listen=address)
    federation.client("a")
    federation.finish()
    log = federation.log("a")
    assert ("handing in the update that an earlier process left" in log) is not damage
    assert ("is damaged: its tensors are not whole; training its round again" in log) is damage
    assert len(re.findall(r"round 1: \d+ steps", log)) == 1 + damage
    assert [record["updates"] for record in federation.rounds()] == [1, 1]
    assert not held.exists()
