"""Whatever breaks, whenever: the run ends in the same bytes as one in which nothing did.

`make test-chaos` runs all of it; the default suite a part.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedserver.keys.authority import Authority
from tests.killpoint import POINTS
from tests.processes import Federation, free_port
from tests.proxy import Faults, Proxy

FLAGS = ["--num-clients", "2", "--rounds", "4", "--alpha", "0.3", "--seed", "5", "--algorithm", "scaffold"]
FOUR = ["--num-clients", "4", "--rounds", "25", "--alpha", "0.3", "--seed", "5", "--local-epochs", "3"]
BROADCAST = 310_000
"""About the bytes of one download, and of one upload."""
SERVER_COUNTS = {
    "before broadcast": 3,
    "mid-upload, server": 30,
    "before the update counts": 4,
    "mid-fold": 4,
}
CLIENT_COUNTS = {"mid-download": 30, "mid-training": 30, "before the variate is settled": 2}
SHORT = {"mid-fold", "before the checkpoint", "after the checkpoint", "mid-training", "mid-upload"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Nothing goes wrong."""
    federation = Federation(tmp_path_factory.mktemp("undisturbed"))
    federation.server(*FLAGS)
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    yield federation
    federation.close()


def assert_same(federation: Federation, other: Federation) -> None:
    """Byte for byte, and every update counted once."""
    for file in ("model", "control"):
        assert federation.bytes(file) == other.bytes(file), file
    assert [r["updates"] for r in federation.rounds()] == [r["updates"] for r in other.rounds()]
    assert [line["round"] for line in federation.traffic()] == [r["round"] for r in other.rounds()]


def trapped(federation: Federation, name: str, point: str, count: int, program: str, *arguments: str) -> None:
    """Starts a process that kills itself at a point."""
    federation.start(name, "tests.killpoint", point, str(count), program, *arguments)


def wait_for_death(federation: Federation, name: str) -> None:
    """Waits until the trap has closed; the process is forgotten then."""
    assert federation.exit_code(name) == -signal.SIGKILL, federation.log(name)
    del federation.processes[name]


def points(of_server: bool) -> list[object]:
    """The points of one side, those beyond the short form marked as slow."""
    chosen = [
        point
        for point, (module, _, _) in POINTS.items()
        if module == "os" or module.startswith("fedserver") is of_server
    ]
    return [pytest.param(p, marks=[] if p in SHORT else pytest.mark.slow) for p in chosen]


@pytest.mark.parametrize("point", points(of_server=True))
def test_a_server_killed_at_a_point(undisturbed: Federation, federation: Federation, point: str) -> None:
    count = SERVER_COUNTS.get(point, 9 if POINTS[point][0] == "os" else 2)
    listen = f"127.0.0.1:{free_port()}"
    arguments = ["run", "--listen", listen, "--run-dir", "run", *FLAGS]
    trapped(federation, "doomed", point, count, "fedserver", *arguments)
    federation.wait_for("doomed", "listening on")
    for name in ("a", "b"):
        federation.client(name, server=listen)
    wait_for_death(federation, "doomed")
    federation.server(*FLAGS, listen=listen)
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.parametrize("point", points(of_server=False))
def test_a_client_killed_at_a_point(undisturbed: Federation, federation: Federation, point: str) -> None:
    count = CLIENT_COUNTS.get(point, 5 if POINTS[point][0] == "os" else 2)
    federation.server(*FLAGS)
    federation.client("b")
    arguments = ["run", "--server", federation.address, "--name", "a", "--state-dir", "state/a"]
    trapped(federation, "doomed", point, count, "fedclient", *arguments)
    wait_for_death(federation, "doomed")
    federation.client("a")
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["mid-fold", "before the checkpoint", "after the checkpoint"])
def test_both_sides_killed_at_once(undisturbed: Federation, federation: Federation, point: str) -> None:
    listen = f"127.0.0.1:{free_port()}"
    arguments = ["run", "--listen", listen, "--run-dir", "run", *FLAGS]
    trapped(federation, "doomed", point, SERVER_COUNTS.get(point, 2), "fedserver", *arguments)
    federation.wait_for("doomed", "listening on")
    for name in ("a", "b"):
        federation.client(name, server=listen)
    wait_for_death(federation, "doomed")
    for name in ("a", "b"):
        federation.kill(name)
    federation.server(*FLAGS, listen=listen)
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    assert_same(federation, undisturbed)


KINDS = ["drop", "delay", "truncate", "duplicate", "corrupt"]


@pytest.mark.timeout(500)
@pytest.mark.parametrize("up", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["up", "down"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "truncate" else pytest.mark.slow) for kind in KINDS]
)
def test_a_bad_link(undisturbed: Federation, federation: Federation, kind: str, up: bool) -> None:
    federation.server(*FLAGS)
    faults = Faults(kind, BROADCAST // 2, up, times=4, random=random.Random(f"{kind} {up}"))
    with Proxy(federation.address, faults) as proxy:
        federation.client("a", server=proxy.address)
        federation.client("b")
        for name in ("server", "a", "b"):
            # A connection that lost its place in the stream looks alive until a ping goes unanswered.
            assert federation.processes[name].wait(400) == 0, federation.log(name)
        assert faults.done == 4
    assert_same(federation, undisturbed)


@pytest.mark.parametrize("up", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["up", "down"])
@pytest.mark.parametrize("kind", ["corrupt", pytest.param("duplicate", marks=pytest.mark.slow)])
def test_a_bad_link_under_tls(
    undisturbed: Federation, federation: Federation, tmp_path: Path, kind: str, up: bool
) -> None:
    """Here any byte may change."""
    authority = Authority(tmp_path / "certs")
    authority.init()
    for name in ("a", "b"):
        authority.issue(name)
    certs = ["--certs", str(tmp_path / "certs")]
    federation.server(*FLAGS, *certs)
    faults = Faults(kind, BROADCAST // 2, up, times=4, random=random.Random(f"tls {kind} {up}"))
    with Proxy(federation.address, faults) as proxy:
        federation.client("a", *certs, server=proxy.address)
        federation.client("b", *certs)
        federation.finish()
        assert faults.done == 4
    assert_same(federation, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_connection_that_is_half_open(undisturbed: Federation, federation: Federation) -> None:
    """Nothing passes any more and nobody hangs up: both sides notice by themselves, which takes minutes."""
    federation.server(*FLAGS)
    faults = Faults("half-open", BROADCAST * 3 // 2, up=False)
    with Proxy(federation.address, faults) as proxy:
        federation.client("a", server=proxy.address)
        federation.client("b")
        for name in ("server", "a", "b"):
            assert federation.processes[name].wait(800) == 0, federation.log(name)
        assert faults.done == 1
    assert_same(federation, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "wiped"])
def test_ten_kills_of_the_server_and_many_of_clients(tmp_path: Path, seed: int, wipe: bool) -> None:
    """At random moments; with `wipe` a killed client loses its state directory too."""
    calm, wild = Federation(tmp_path / "calm"), Federation(tmp_path / "wild")
    names = ["a", "b", "c", "d"]
    try:
        calm.server(*FOUR)
        for name in names:
            calm.client(name)
        calm.finish()
        moments = random.Random(seed)
        wild.server(*FOUR)
        for name in names:
            wild.client(name)
        server, kills = "server", 0
        while kills < 10 and wild.processes[server].poll() is None:
            time.sleep(moments.uniform(0.5, 3.5))
            victim = moments.choice(names)
            if wild.processes[victim].poll() is None:
                wild.kill(victim)
                if wipe:
                    shutil.rmtree(wild.folder / "state" / victim, ignore_errors=True)
                wild.client(victim)
            if wild.processes[server].poll() is None:
                wild.kill(server)
                kills += 1
                server = f"server{kills}"
                wild.server(*FOUR, listen=wild.address, name=server)
        wild.finish()
        assert kills >= 5, "the run was over too soon to show anything"
        assert_same(wild, calm)
    finally:
        calm.close()
        wild.close()


@pytest.mark.slow
def test_clients_that_are_left_out_and_killed_keep_what_coding_left_over(tmp_path: Path) -> None:
    """Updates that are too large do not count, so c_i and what coding has left out stay as they were."""
    flags = [
        "--num-clients",
        "3",
        "--rounds",
        "5",
        "--codec",
        "topk:0.05",
        "--norm-bound",
        "1.02",
        "--seed",
        "5",
        "--local-epochs",
        "2",
    ]
    calm, wild = Federation(tmp_path / "calm"), Federation(tmp_path / "wild")
    try:
        for federation in (calm, wild):
            federation.server(*flags)
            for name in ("a", "b", "c"):
                federation.client(name)
            if federation is wild:
                federation.wait_for("server", "round 3/5")
                for name in ("a", "b"):
                    federation.kill(name)
                    federation.client(name)
            federation.finish()
        assert "leaves out" in calm.log("server"), "or the test shows nothing"
        assert_same(wild, calm)
    finally:
        calm.close()
        wild.close()
