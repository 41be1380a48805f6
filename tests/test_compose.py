"""docker compose up, for real: containers, volumes, kills and byte counts. Needs a Docker engine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.containers import IMAGE, Project, answers, run
from tests.processes import without_metadata

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

ROUNDS = 8
SETTINGS = {"ROUNDS": str(ROUNDS), "ALPHA": "0.3", "SEED": "3"}
PACED = "tests/paced.yml"


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """Builds what the containers run."""
    if not answers("docker", "info"):
        pytest.fail("no Docker engine answers; start one")
    Project("build", profiles="wire").compose("build")


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Iterator[Callable[..., Project]]:
    """Makes projects that are gone after the test."""
    made: list[Project] = []

    def make(*overrides: str, **settings: str) -> Project:
        made.append(
            Project(request.node.name.removeprefix("test_").replace("_", "-"), *overrides, **settings)
        )
        made[-1].close()
        return made[-1]

    yield make
    for each in made:
        each.close()


@dataclass(frozen=True)
class Seen:
    """What a run in which nothing went wrong has shown."""

    runs: Path
    exit_codes: dict[str, int]
    containers: list[dict[str, Any]]
    inside: dict[str, str]
    """The answers of commands run in the server's container."""
    status: dict[str, Any]
    counters: dict[str, int]
    """Bytes through the server's network interface when it gave that status."""
    of_clients: dict[str, dict[str, int]]
    """And through those of its clients."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """One server and four clients, with a pause after round 3 to compare byte counts at rest."""
    project = Project("undisturbed", PACED, **SETTINGS)
    project.close()
    project.compose("up", "-d")
    project.wait_for("server", "round 3/")
    clients, server = project.containers("client"), project.server()
    run("docker", "pause", *clients)
    time.sleep(1.5)
    status = json.loads(run("docker", "exec", server, "fedserver", "status", "--json"))
    counters = dict(zip(("up", "down"), message(server), strict=True))
    of_clients = {
        re.findall(r"joining \S+ as (\S+)", run("docker", "logs", client))[-1]: dict(
            zip(("down", "up"), message(client), strict=True)
        )
        for client in clients
    }
    run("docker", "unpause", *clients)
    inside = {
        command: run("docker", "exec", server, "sh", "-c", command, check=False).strip()
        for command in (
            "id -u",
            "grep -E 'CapEff|NoNewPrivs' /proc/self/status",
            "touch /x || echo refused",
            "command -v gcc cc make",
            "fedserver health",
            "cat /proc/1/comm",
        )
    }
    containers = project.inspect()
    codes = project.exit_codes()
    yield Seen(
        project.results(tmp_path_factory.mktemp("results")),
        codes,
        containers,
        inside,
        status,
        counters,
        of_clients,
    )
    project.close()


def message(container: str) -> tuple[int, int]:
    """Bytes that came and went through the interface of a container, which may be paused."""
    beside = ("docker", "run", "--rm", "--network", f"container:{container}", IMAGE)
    return tuple(  # type: ignore[return-value]
        int(run(*beside, "cat", f"/sys/class/net/eth0/statistics/{name}_bytes")) for name in ("rx", "tx")
    )


def records(run_dir: Path) -> list[dict[str, Any]]:
    """rounds.jsonl."""
    return [json.loads(line) for line in (run_dir / "rounds.jsonl").read_text().splitlines()]


def test_all_containers_train_to_the_end_and_exit_with_0(undisturbed: Seen) -> None:
    assert len(undisturbed.exit_codes) == 5
    assert set(undisturbed.exit_codes.values()) == {0}
    config = json.loads((undisturbed.runs / "default" / "config.json").read_text())
    assert [client["name"] for client in config["clients"]] == [f"client-{i}" for i in range(1, 5)]
    rounds = records(undisturbed.runs / "default")
    assert [record["updates"] for record in rounds] == [4] * ROUNDS
    assert rounds[-1]["accuracy"] > 0.6


def test_the_ledger_agrees_with_the_network_interfaces(undisturbed: Seen) -> None:
    traffic = undisturbed.status["traffic"]
    assert set(undisturbed.of_clients) == {f"client-{i}" for i in range(1, 5)}
    for name, counters in undisturbed.of_clients.items():
        for direction, seen in counters.items():
            counts = traffic[name][direction]
            _compare(f"{name} {direction}", counts["encoded"], counts["socket"], seen)
    for direction, seen in undisturbed.counters.items():
        counts = [client[direction] for name, client in traffic.items() if name]
        encoded, socket = (sum(count[kind] for count in counts) for kind in ("encoded", "socket"))
        _compare(f"server {direction}", encoded, socket, seen)


def _compare(what: str, encoded: int, socket: int, seen: int) -> None:
    assert encoded < socket < seen, f"{what}: {encoded}, {socket}, {seen}"
    # Ethernet, IP and TCP headers, acknowledgements, and the name resolution before.
    assert seen < 1.05 * socket + 20_000, f"{what}: {socket} on sockets, {seen} on the interface"
    assert socket < 1.02 * encoded + 20_000, f"{what}: {encoded} in messages, {socket} on sockets"


def test_the_ledger_of_the_run_adds_up(undisturbed: Seen) -> None:
    folder = undisturbed.runs / "default"
    total = json.loads((folder / "traffic.json").read_text())
    rounds = records(folder)
    for direction, counts in total["bytes"].items():
        for purpose, count in counts.items():
            inside = sum(record["bytes"][direction][purpose] for record in rounds)
            assert count == inside + total["outside"][direction][purpose]


def test_containers_are_hardened(undisturbed: Seen) -> None:
    for container in undisturbed.containers:
        host = container["HostConfig"]
        assert container["Config"]["User"] == "10001:10001"
        assert host["ReadonlyRootfs"]
        assert host["Init"]
        assert host["CapDrop"] == ["ALL"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert 0 < host["Memory"] == host["MemorySwap"]
        assert host["RestartPolicy"]["Name"] == "on-failure"
    answers_inside = list(undisturbed.inside.values())
    assert answers_inside[:5] == [
        "10001",
        "CapEff:\t0000000000000000\nNoNewPrivs:\t1",
        "refused",
        "",
        "serving",
    ]
    assert answers_inside[5] in ("docker-init", "tini"), "something that reaps"


def test_kills_restarts_and_recreations_change_no_bit(
    undisturbed: Seen, project: Callable[..., Project], tmp_path: Path
) -> None:
    disturbed = project(PACED, **SETTINGS)
    disturbed.compose("up", "-d")
    disturbed.wait_for("server", "round 1/")
    run("docker", "kill", disturbed.containers("client")[1])
    disturbed.compose("up", "-d")

    disturbed.wait_for("server", "round 2/")
    run("docker", "kill", disturbed.server())
    disturbed.compose("up", "-d")
    disturbed.wait_for("server", "going on with run")

    disturbed.wait_for("server", "round 4/")
    kill_all = "kill -9 $(cat /proc/1/task/1/children)"
    for victim in (disturbed.containers("client")[2], disturbed.server()):
        # Nobody starts these again but the engine.
        run("docker", "exec", victim, "sh", "-c", kill_all)

    disturbed.wait_for("server", "round 5/")
    disturbed.compose("up", "-d", "--force-recreate", "--no-deps", "server")

    disturbed.wait_for("server", "round 6/")
    disturbed.compose("stop")
    assert set(disturbed.exit_codes().values()) == {0}, "SIGTERM is a clean end"
    disturbed.compose("down")
    disturbed.compose("up", "-d")

    assert set(disturbed.exit_codes().values()) == {0}
    runs = disturbed.results(tmp_path)
    for name in ("model.safetensors", "control.safetensors"):
        ours, theirs = (without_metadata(folder / "default" / name) for folder in (runs, undisturbed.runs))
        assert ours == theirs, name


def test_scales_to_ten(project: Callable[..., Project], tmp_path: Path) -> None:
    ten = project(ROUNDS="2", GATHER="15")
    ten.compose("up", "--abort-on-container-exit", "--scale", "client=10")
    assert list(ten.exit_codes().values()) == [0] * 11
    config = json.loads((ten.results(tmp_path) / "default" / "config.json").read_text())
    assert len(config["clients"]) == 10


def test_wire_captures_every_byte(project: Callable[..., Project]) -> None:
    wire = project(profiles="wire", CLIENTS="2", ROUNDS="3")
    wire.compose("up", "-d")
    assert list(wire.exit_codes().values()) == [0] * 4
    arguments = ("run", "--rm", "--no-deps", "-T", "server", "fedwire", "stats", "/runs/default.pcap")
    found = wire.compose(*arguments, "--port", "50051", "--run-dir", "/runs/default")
    assert "agrees to the byte" in found


def test_a_slow_link_is_not_exceeded(project: Callable[..., Project], tmp_path: Path) -> None:
    slow = project(profiles="slow", CLIENTS="1", ROUNDS="3", LINK="1Mbit")
    slow.compose("up")
    assert list(slow.exit_codes().values()) == [0] * 3
    for record in records(slow.results(tmp_path) / "default"):
        # One client sends after it has received; each way 32 KiB pass at once.
        held_back = [sum(counts.values()) - (32 << 10) for counts in record["bytes"].values()]
        assert record["seconds"]["round"] > 8 * sum(held_back) / 1e6


def test_tools_end_when_they_are_told_to(project: Callable[..., Project]) -> None:
    told = project(profiles="wire slow", CLIENTS="1", ROUNDS="50", LINK="1Mbit")
    told.compose("up", "-d")
    told.wait_for("server", "round 1/")
    told.compose("stop")
    assert list(told.exit_codes().values()) == [0] * 4


def test_compare_ends_with_a_table(project: Callable[..., Project]) -> None:
    compared = project("deploy/compose/compare.yml", profiles="slow", CLIENTS="2", ROUNDS="1", RUN="three")
    compared.compose("up", "-d")
    assert set(compared.exit_codes().values()) == {0}
    table = [line for line in compared.log("server").splitlines() if line.startswith("| ")]
    assert [line.split()[1] for line in table[2:]] == ["fedavg", "scaffold", "fedpvr"]


def test_certificates_are_asked_for_and_shown(project: Callable[..., Project]) -> None:
    closed = project("deploy/compose/tls.yml", CLIENTS="2", ROUNDS="2")
    certs = ("run", "--rm", "--no-deps", "-T", "server", "fedserver", "certs")
    closed.compose(*certs, "init", "--dir", "/certs", "--host", "server")
    for name in ("client-1", "client-2"):
        closed.compose(*certs, "issue", name, "--dir", "/certs")
    closed.compose("up", "-d")
    assert set(closed.exit_codes().values()) == {0}
    assert "run finished after round 2" in closed.log("client")


def test_memory_limits_hold(project: Callable[..., Project]) -> None:
    limited = project(CLIENT_MEMORY="64m")
    greedy = ("run", "--no-deps", "-T", "client", "python", "-c", "print(len(b'x' * (200 << 20)))")
    assert limited.compose(*greedy, check=False) == ""
    (container,) = limited.inspect("client")
    assert container["State"]["ExitCode"] == 137
