"""Transfers that survive slow and broken links, in federations of real processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedwire.source import Capture
from tests.processes import Federation
from tests.proxy import Fault, Proxy

BIG = """
from torch import nn
from problem import network as small

def network(num_classes):
    return nn.Sequential(nn.Linear(6, 200_000), nn.Tanh(), nn.Linear(200_000, num_classes))
"""
NUM_BYTES = 8 * (6 * 200_000 + 200_000 + 200_000 * 3 + 3)
FLAGS = "--model big:network --dataset problem:data --num-clients 1 --rounds 2 --local-steps 1 --svr none"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """x of a federation whose link never broke."""
    federation = _started(tmp_path_factory.mktemp("undisturbed"))
    federation.client("a")
    federation.finish()
    return federation.bytes("model")


def _started(folder: Path, *flags: str) -> Federation:
    federation = Federation(folder)
    (folder / "big.py").write_text(BIG)
    federation.server(*FLAGS.split(), *flags)
    return federation


def _through(folder: Path, cut_after: int, *flags: str, up: bool) -> Federation:
    federation = _started(folder, *flags)
    try:
        with Proxy(federation.address, [Fault("drop", up, cut_after)]) as proxy:
            federation.client("a", "--capture", "a.fedwire", server=proxy.address)
            federation.finish()
            assert len(proxy.made) == 1
    finally:
        federation.close()
    return federation


def _payload(federation: Federation, *, up: bool) -> int:
    """Tensor bytes that the client sent or received in round 1."""
    found = Capture(federation.folder / "a.fedwire", pytest.fail).messages
    return sum(m.content.payload for m in found if m.up is up and m.round == 1)


def test_an_upload_that_was_cut_goes_on_where_it_stopped(tmp_path: Path, undisturbed: bytes) -> None:
    federation = _through(tmp_path, NUM_BYTES // 2, up=True)
    assert "round 1: going on with the upload after" in federation.log("a")
    assert federation.bytes("model") == undisturbed
    again = _payload(federation, up=True) - NUM_BYTES
    assert 0 <= again < NUM_BYTES // 4, f"{again} bytes sent again"
    arrived = federation.rounds()[0]["bytes"]["up"]["model"]
    assert arrived == NUM_BYTES, "the server counts no byte twice"
    assert [record["updates"] for record in federation.rounds()] == [1, 1]


def test_a_download_that_was_cut_goes_on_where_it_stopped(tmp_path: Path, undisturbed: bytes) -> None:
    federation = _through(tmp_path, NUM_BYTES // 2, up=False)
    assert federation.bytes("model") == undisturbed
    assert _payload(federation, up=False) == NUM_BYTES, "nothing came twice"
    requests = [
        m for m in Capture(tmp_path / "a.fedwire", pytest.fail).messages if m.rpc == "PullRound" and m.up
    ]
    assert [m.round for m in requests if m.round == 1] == [1, 1], "two calls for one download"


@pytest.mark.slow
def test_a_download_of_frozen_tensors_that_was_cut_goes_on_where_it_stopped(tmp_path: Path) -> None:
    federation = _through(tmp_path, NUM_BYTES // 2, "--freeze", "0", up=False)
    assert _payload(federation, up=False) == NUM_BYTES, "nothing came twice"
    messages = Capture(tmp_path / "a.fedwire", pytest.fail).messages
    assert [m.round for m in messages if m.rpc == "PullRound" and m.up and m.round == 1] == [1, 1]
    assert federation.rounds()[1]["bytes"]["down"]["model"] == 8 * (200_000 * 3 + 3)


@pytest.mark.slow
def test_a_link_that_breaks_again_and_again_is_no_silence(tmp_path: Path, undisturbed: bytes) -> None:
    """Six cuts, each after 2.5 MB, and a client that gives up after half a second without any progress."""
    federation = _started(tmp_path)
    try:
        with Proxy(federation.address, [Fault("drop", True, 2_500_000 * k) for k in range(1, 7)]) as proxy:
            federation.client("a", "--give-up", "0.5", server=proxy.address)
            federation.finish()
            assert len(proxy.made) == 6
    finally:
        federation.close()
    assert federation.log("a").count("trying again") == 6, "after each cut something came through"
    assert federation.bytes("model") == undisturbed


def test_a_paced_client_takes_its_time_and_changes_nothing(federation: Federation) -> None:
    """A lower bound on time is what pacing means."""
    federation.server(*["--num-clients", "1", "--rounds", "2", "--seed", "1"])
    started = time.monotonic()
    federation.client("a", "--uplink", "2Mbit", "--downlink", "4Mbit")
    federation.finish()
    bytes_ = [record["bytes"] for record in federation.rounds()]
    least = sum(8 * sum(b["up"].values()) / 2e6 + 8 * sum(b["down"].values()) / 4e6 for b in bytes_)
    assert time.monotonic() - started > least > 1
    assert "run finished" in federation.log("a")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_transfer_that_takes_longer_than_every_timeout_arrives(tmp_path: Path) -> None:
    """16 MB at 1 Mbit/s are 128 s each way: more than any timeout, and nobody loses patience."""
    federation = _started(tmp_path, "--rounds", "1")
    try:
        federation.client("a", "--uplink", "1Mbit", "--downlink", "1Mbit", "--give-up", "30")
        for name in ("a", "server"):
            assert federation.processes[name].wait(590) == 0, federation.log(name)
    finally:
        federation.close()
    assert [record["updates"] for record in federation.rounds()] == [1]
    assert "trying again" not in federation.log("a")
