"""Many clients from one command: each is a client as if it had been started alone."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedclient.flags import Flags
from fedclient.replicas.family import MAX_PROCESSES, grouped
from fedclient.replicas.identity import identified
from fedclient.store.state import StateDir
from fedserver.keys.authority import Authority
from fedserver.keys.tokens import Tokens
from tests.killpoint import trap
from tests.processes import Federation, children, wait_for_end, wait_until
from tests.test_cli import invoke

FLAGS = [
    *("--num-clients", "3", "--rounds", "4", "--seed", "5", "--algorithm", "scaffold"),
    *("--alpha", "0.3", "--local-steps", "2", "--width", "0.25"),
]
NAMES = ["site-1", "site-2", "site-3"]
SHARED = ("tests.tuned", "fedclient.replicas.family:MAX_PROCESSES", "1")
"""All replicas in one process."""


GIVEN: dict[str, Any] = {field.name: None for field in fields(Flags)} | {
    "server": "127.0.0.1:1",
    "allow_plugin": (),
    "max_parameters": 1,
    "max_steps": 1,
}
NO_CREDENTIALS = {"certs": None, "token_file": None, "insecure": False}


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """The same clients, each started alone."""
    federation = Federation(tmp_path_factory.mktemp("alone"))
    federation.server(*FLAGS)
    for name in NAMES:
        federation.client(name)
    federation.finish()
    yield federation
    federation.close()


def start(federation: Federation, *flags: str, process: str = "site", through: tuple[str, ...] = ()) -> None:
    """Three replicas, with state directories in `state`."""
    own = ["--server", federation.address, "--name", "site", "--state-dir", "state", "--replicas", "3"]
    federation.start(process, "fedclient", "run", *own, *flags, through=through)


def assert_same(federation: Federation, other: Federation) -> None:
    """Byte for byte."""
    for file in ("model", "control"):
        assert federation.bytes(file) == other.bytes(file)


@pytest.mark.parametrize("through", [(), SHARED], ids=["processes", "threads"])
def test_replicas_are_the_clients_that_are_started_one_by_one(
    one_by_one: Federation, federation: Federation, through: tuple[str, ...]
) -> None:
    federation.server(*FLAGS)
    start(federation, through=through)
    federation.finish()
    assert_same(federation, one_by_one)
    seats = json.loads((federation.folder / "run" / "config.json").read_text())["clients"]
    assert [seat["name"] for seat in seats] == NAMES
    assert sorted(path.name for path in (federation.folder / "state").iterdir()) == NAMES
    first, *lines = federation.log("site").splitlines()
    assert first.endswith(f"starting 3 clients, site-1 to site-3; the server is {federation.address}")
    for name in NAMES:
        own = [line for line in lines if re.match(rf"\d\d:\d\d:\d\d {name}: ", line)]
        assert [line.count("steps, loss") for line in own].count(1) == 4
    assert all(re.match(r"\d\d:\d\d:\d\d site-[123]: ", line) for line in lines)


@pytest.mark.parametrize("through", [(), SHARED], ids=["processes", "threads"])
def test_sigterm_lets_every_replica_say_good_bye(federation: Federation, through: tuple[str, ...]) -> None:
    asked = trap("say", "a client asks for a round", 6)
    federation.server(*FLAGS, through=(*trap("hold", "after the checkpoint", 1), *asked))
    start(federation, through=through)
    federation.wait_for("server", "a client asks for a round: 6")
    started = children(federation.processes["site"].pid)
    assert len(started) == (1 if through else 3)
    federation.processes["site"].terminate()
    assert federation.exit_code("site") == 0
    wait_for_end(*started)
    for name in NAMES:
        assert re.search(rf"{name}: stopped by SIGTERM while .*; the server knows;", federation.log("site"))
    federation.wait_for_states(**dict.fromkeys(NAMES, "stopped"))


def test_a_killed_replica_is_named_and_its_state_is_free_for_another(
    one_by_one: Federation, federation: Federation
) -> None:
    federation.server(*FLAGS)
    start(federation, through=trap("stop", "mid-upload", 2))
    pids = children_that_stop(federation, 3)
    [killed] = [pid for pid in pids if open_files(pid, "site-2/lock")]
    for pid, number in [(killed, signal.SIGKILL), *((pid, signal.SIGCONT) for pid in pids if pid != killed)]:
        os.kill(pid, number)
    federation.wait_for("site", r"site-2: ended \(killed by SIGKILL\); 2 others go on")
    federation.client("site-2", process="again")
    assert federation.exit_code("again") == 0
    assert federation.exit_code("site") == 128 + signal.SIGKILL
    del federation.processes["site"]
    federation.finish()
    assert_same(federation, one_by_one)


def test_replicas_of_a_killed_parent_end_and_the_same_command_goes_on(
    one_by_one: Federation, federation: Federation
) -> None:
    asked = trap("say", "a client asks for a round", 9)
    federation.server(*FLAGS, through=(*trap("hold", "after the checkpoint", 2), *asked))
    start(federation)
    federation.wait_for("server", "a client asks for a round: 9")
    started = children(federation.processes["site"].pid)
    assert len(started) == 3
    federation.kill("site")
    wait_for_end(*started)
    federation.wait_for_states(**dict.fromkeys(NAMES, "stopped"))
    start(federation, process="again")
    (federation.folder / "go").touch()
    federation.finish()
    assert_same(federation, one_by_one)


def test_each_replica_has_a_certificate_of_its_own(federation: Federation) -> None:
    authority = Authority(federation.folder / "certs")
    authority.init()
    for name in NAMES:
        authority.issue(name)
    federation.server(*FLAGS[2:], "--num-clients", "3", "--rounds", "1", "--certs", "certs")
    start(federation, "--certs", "certs")
    federation.finish()
    assert federation.rounds()[0]["clients"] == NAMES


def test_each_replica_has_a_token_of_its_own(federation: Federation) -> None:
    tokens = Tokens(federation.folder / "tokens")
    for name in NAMES[:2]:
        tokens.issue(name)
    federation.server(*FLAGS[2:], "--num-clients", "3", "--rounds", "1", "--tokens", "tokens")
    start(federation, "--token-file", "tokens")
    assert federation.exit_code("site") == 2
    assert "--token-file tokens/site-3.token cannot be read" in federation.log("site")
    tokens.issue(NAMES[2])
    start(federation, "--token-file", "tokens")
    federation.finish()
    assert federation.rounds()[0]["clients"] == NAMES


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--dataset", "digits", "--shard", "0/2"], "--replicas gives each replica its part of --dataset"),
        (["--state-root", "state", "--name", "a"], "leave out --name and --state-dir"),
        (["--name", "a" * 63], "a client name has 1 to 64 letters"),
    ],
)
def test_flags_that_replicas_cannot_have_are_refused(flags: list[str], expected: str, tmp_path: Path) -> None:
    own = [] if "--state-root" in flags else ["--state-dir", str(tmp_path / "state")]
    done = invoke("fedclient", "run", "--replicas", "2", *own, *flags)
    assert done.exit_code != 0
    assert expected in done.output


def test_replicas_take_free_places_of_a_state_root(tmp_path: Path) -> None:
    flags = Flags(**GIVEN | {"state_root": tmp_path, "replicas": 3})
    with ExitStack() as stack:
        stack.enter_context(StateDir(tmp_path / "client-2"))
        taken = [stack.enter_context(identified(each, NO_CREDENTIALS)) for each in flags.of_replicas()]
        assert [each.name for each in taken] == ["client-1", "client-3", "client-4"]


def test_more_replicas_than_processes_share_them_evenly(tmp_path: Path) -> None:
    flags = Flags(**GIVEN | {"name": "a", "state_dir": tmp_path, "replicas": MAX_PROCESSES + 2})
    with ExitStack() as stack:
        groups = grouped(
            [stack.enter_context(identified(each, NO_CREDENTIALS)) for each in flags.of_replicas()]
        )
    assert [len(group) for group in groups] == [2, 2] + [1] * (MAX_PROCESSES - 2)
    assert [each.name for each in groups[0]] == ["a-1", f"a-{MAX_PROCESSES + 1}"]


def test_each_replica_has_its_part_of_the_data() -> None:
    of_set = Flags(**GIVEN | {"name": "a", "dataset": "digits", "replicas": 2}).of_replicas()
    assert [each.shard for each in of_set] == ["0/2", "1/2"]
    pictures = Flags(**GIVEN | {"name": "a", "data": Path("p"), "replicas": 2}).of_replicas()
    assert [each.data for each in pictures] == [Path("p/a-1"), Path("p/a-2")]


def test_one_token_is_not_for_several_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPVR_TOKEN", "a:b")
    done = invoke("fedclient", "run", "--replicas", "2")
    assert done.exit_code == 2
    assert "FEDPVR_TOKEN has one client's token; give --replicas a folder" in done.output


def test_a_replica_that_fails_is_named_with_its_exit_code(federation: Federation) -> None:
    federation.address = "127.0.0.1:1"
    start(federation, "--data", "pictures")
    code = federation.exit_code("site")
    assert code == 1
    for name in NAMES:
        assert f"Error: {name}: pictures/{name}" in federation.log("site")
        assert f"{name}: ended (exit code {code}); " in federation.log("site")
    federation.processes.clear()


def children_that_stop(federation: Federation, number: int) -> list[int]:
    """Replicas, once all of them have stopped."""

    def stopped() -> list[int]:
        pids = children(federation.processes["site"].pid)
        states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
        return pids if states == ["T"] * number else []

    return wait_until(stopped, f"{number} replicas stop")


def open_files(pid: int, ending: str) -> list[str]:
    """Files of a process whose path ends so."""
    files = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    return [file for file in files if file.endswith(ending)]
