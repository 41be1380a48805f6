"""Whatever breaks, whenever: the run ends in the same bytes as one in which nothing did.

`make test-chaos` runs all of it; the default suite a part.
"""

from __future__ import annotations

import importlib
import operator
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedserver.keys.authority import Authority
from tests.killpoint import POINTS, trap
from tests.processes import Federation, lasting_address
from tests.proxy import KINDS, Proxy, faults

FLAGS = [
    *("--num-clients", "2", "--rounds", "4"),
    *("--alpha", "0.3", "--local-steps", "5", "--seed", "5", "--algorithm", "scaffold"),
]
FOUR = ["--num-clients", "4", "--rounds", "35", "--alpha", "0.3", "--seed", "5"]
BROADCAST = 306_000
"""About the bytes of one download, and of one upload."""
BAD_LINK_S = 120.0
"""Within this a run on a bad link is to end."""
LONG_S = 400.0
"""The same for a run of many rounds, also on a busy machine."""
SERVER_COUNTS = {
    "before broadcast": 3,
    "mid-upload, server": 30,
    "before the update counts": 4,
    "mid-fold": 4,
    "mid-file": 60,
}
IN_TWO_ROUNDS = {
    "before broadcast": 2,
    "mid-upload, server": 60,
    "before the update counts": 8,
    "mid-fold": 8,
    "after the fold": 2,
    "before the checkpoint": 2,
    "after the checkpoint": 2,
    "mid-count": 8,
    "before the record": 2,
}
"""How often a server of four clients gets to a point in about two rounds."""
CLIENT_COUNTS = {"mid-file": 10, "mid-download": 30, "mid-training": 8, "before a save": 6, "after a save": 6}
SAVES = ("--save-every", "0.001")
"""Of a client that is killed where it saves, in the second round."""
WATCHED = {"before gathering", "a client asks for a round", "a sign of life", "a round has come"}
"""Points at which tests wait; what could be lost there can be lost at others too."""
OF_A_TASK = {"before the evaluation is written", "after the best is kept", "before the last evaluation"}
"""Points of runs without data at the server: tests/test_sites.py kills there."""
ELSEWHERE = {
    *("mid-checkpoint, simulated", "before a client remembers", "after a client remembers"),
    "before the first gradient",
}
"""Points of simulations and of warm variates: test_resumed.py and test_warm_variates.py kill there."""
OF_EITHER = ("os", "common.tensors.safetensors_files")
SHORT = {"mid-fold", "after the checkpoint", "mid-upload"}


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


def points(of_server: bool) -> list[object]:
    """The points of one side, those beyond the short form marked as slow."""
    chosen = [
        point
        for point, (module, _, _) in POINTS.items()
        if point not in WATCHED | OF_A_TASK | ELSEWHERE
        and (module in OF_EITHER or module.startswith("fedserver") is of_server)
    ]
    return [pytest.param(p, marks=[] if p in SHORT else pytest.mark.slow) for p in chosen]


def test_every_point_is_a_function_of_the_code() -> None:
    for module, name, _ in POINTS.values():
        assert callable(operator.attrgetter(name)(importlib.import_module(module)))


@pytest.mark.parametrize("point", points(of_server=True))
def test_a_server_killed_at_a_point(undisturbed: Federation, federation: Federation, point: str) -> None:
    count = SERVER_COUNTS.get(point, 9 if POINTS[point][0] == "os" else 2)
    killed = trap("kill", point, count)
    address = federation.server(*FLAGS, listen=lasting_address(), name="doomed", through=killed)
    for name in ("a", "b"):
        federation.client(name)
    federation.wait_for_death("doomed")
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.parametrize("point", points(of_server=False))
def test_a_client_killed_at_a_point(undisturbed: Federation, federation: Federation, point: str) -> None:
    count = CLIENT_COUNTS.get(point, 1 if POINTS[point][0] == "os" else 2)
    federation.server(*FLAGS)
    federation.client("b")
    saves = SAVES if point.endswith(("a save", "the save is dropped")) else ()
    federation.client("a", *saves, process="doomed", through=trap("kill", point, count))
    federation.wait_for_death("doomed")
    federation.client("a", *saves)
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["mid-fold", "before the checkpoint", "after the checkpoint"])
def test_both_sides_killed_at_once(undisturbed: Federation, federation: Federation, point: str) -> None:
    killed = trap("kill", point, SERVER_COUNTS.get(point, 2))
    address = federation.server(*FLAGS, listen=lasting_address(), name="doomed", through=killed)
    for name in ("a", "b"):
        federation.client(name)
    federation.wait_for_death("doomed")
    for name in ("a", "b"):
        federation.kill(name)
    federation.server(*FLAGS, listen=address)
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    assert_same(federation, undisturbed)


def bad_links() -> list[object]:
    """Every fault on either side, with and without TLS; those beyond the short form marked as slow."""
    return [
        pytest.param(
            kind,
            up,
            tls,
            id=f"{kind}-{'up' if up else 'down'}-{'tls' if tls else 'plain'}",
            marks=[] if (kind, up, tls) in QUICK_LINKS else pytest.mark.slow,
        )
        for kind in KINDS
        for up in (True, False)
        for tls in (False, True)
    ]


QUICK_LINKS = {("corrupt", True, True)}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("kind", "up", "tls"), bad_links())
def test_a_bad_link(
    undisturbed: Federation, federation: Federation, tmp_path: Path, kind: str, up: bool, tls: bool
) -> None:
    """Any byte may be the one: of a tensor, of a message, of HTTP/2 or of TLS."""
    certs = certificates(tmp_path) if tls else []
    federation.server(*FLAGS, *certs)
    planned = faults(kind, up, 1 if kind == "half-open" else 4, BROADCAST)
    with Proxy(federation.address, planned) as proxy:
        federation.client("a", *certs, server=proxy.address)
        federation.client("b", *certs)
        federation.finish(BAD_LINK_S)
        assert proxy.made == planned
    assert_same(federation, undisturbed)


def certificates(folder: Path) -> list[str]:
    """Flags that show those of clients a and b, and the server's."""
    authority = Authority(folder / "certs")
    authority.init()
    for name in ("a", "b"):
        authority.issue(name)
    return ["--certs", str(folder / "certs")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "wiped"])
def test_ten_kills_of_the_server_and_many_of_clients(tmp_path: Path, seed: int, wipe: bool) -> None:
    """At random points; with `wipe` a killed client loses its state directory too."""
    calm, wild = Federation(tmp_path / "calm"), Federation(tmp_path / "wild")
    names = ["a", "b", "c", "d"]
    try:
        calm.server(*FOUR)
        for name in names:
            calm.client(name)
        calm.finish(LONG_S)
        chance = random.Random(f"{seed} {wipe}")
        wild.address = lasting_address()
        for name in names:
            wild.client(name)
        for kills in range(10):
            # Two or three rounds at the most, so that the run is not over before the last kill.
            point, most = chance.choice(list(IN_TWO_ROUNDS.items()))
            killed = trap("kill", point, chance.randint(1, most))
            wild.server(*FOUR, listen=wild.address, name=f"server{kills}", through=killed)
            wild.wait_for_death(f"server{kills}")
            victim = chance.choice(names)
            wild.kill(victim)
            if wipe:
                shutil.rmtree(wild.folder / "state" / victim, ignore_errors=True)
            wild.client(victim)
        wild.server(*FOUR, listen=wild.address)
        wild.finish(LONG_S)
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
            killed = trap("kill", "before training", 4) if federation is wild else ()
            for name, through in (("a", killed), ("b", killed), ("c", ())):
                federation.client(name, through=through)
            if federation is wild:
                for name in ("a", "b"):
                    federation.wait_for_death(name)
                    federation.client(name)
            federation.finish()
        assert "times as large as is usual" in calm.log("server"), "or the test shows nothing"
        assert_same(wild, calm)
    finally:
        calm.close()
        wild.close()
