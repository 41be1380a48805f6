"""Trouble around a run: full disks, clocks that jump, servers that hang. One line, and nothing is lost."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.wire.capture import read_records
from tests.killpoint import trap
from tests.processes import Federation, lasting_address

FLAGS = [
    *("--num-clients", "2", "--rounds", "5"),
    *("--alpha", "0.3", "--local-steps", "2", "--seed", "5", "--algorithm", "scaffold"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Nothing goes wrong."""
    federation = Federation(tmp_path_factory.mktemp("undisturbed"))
    federation.server(*FLAGS)
    start_clients(federation)
    federation.finish()
    yield federation
    federation.close()


def start_clients(federation: Federation, *flags: str) -> None:
    """Clients a and b."""
    for name in ("a", "b"):
        federation.client(name, *flags)


def assert_same(federation: Federation, other: Federation) -> None:
    """Byte for byte."""
    for file in ("model", "control"):
        assert federation.bytes(file) == other.bytes(file)


def limit_files(pid: int, most: int) -> None:
    """The process can make no file larger than this, as if the disk were full."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def test_a_server_without_room_for_updates_says_so_and_goes_on_once_there_is(
    undisturbed: Federation, federation: Federation
) -> None:
    federation.server(*FLAGS, through=trap("stop", "before broadcast", 3))
    start_clients(federation)
    federation.wait_for_stop("server")
    limit_files(federation.processes["server"].pid, 20_000)
    federation.go_on("server")
    federation.wait_for("server", "because of this server's disk: .*File too large")
    limit_files(federation.processes["server"].pid, resource.RLIM_INFINITY)
    federation.finish()
    assert_same(federation, undisturbed)


def test_a_server_that_cannot_write_its_checkpoint_ends_and_goes_on_when_it_is_started_again(
    undisturbed: Federation, federation: Federation
) -> None:
    address = federation.server(
        *FLAGS, listen=lasting_address(), name="full", through=trap("full", "before the checkpoint", 3)
    )
    start_clients(federation)
    assert federation.exit_code("full") == 1
    assert "Error: disk: No space left on device" in federation.log("full")
    del federation.processes["full"]
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert_same(federation, undisturbed)


def test_a_client_whose_disk_is_full_ends_and_goes_on_when_it_is_started_again(
    undisturbed: Federation, federation: Federation
) -> None:
    federation.server(*FLAGS)
    federation.client("a")
    federation.client("b", through=trap("stop", "a round has come", 3))
    federation.wait_for_stop("b")
    limit_files(federation.processes["b"].pid, 20_000)
    federation.go_on("b")
    assert federation.exit_code("b") == 1
    assert re.search("Error: .*File too large", federation.log("b"))
    federation.client("b")
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.parametrize("program", ["fedserver", "fedclient"])
def test_a_directory_that_cannot_be_written_is_named(federation: Federation, program: str) -> None:
    arguments = {"fedserver": ["--run-dir", "/proc/run"], "fedclient": ["--state-dir", "/proc/state"]}
    federation.start("it", program, "run", *arguments[program])
    assert federation.exit_code("it") == 1
    assert re.search(
        r"Error: --(run|state)-dir /proc/\w+ cannot be written: .*; choose another", federation.log("it")
    )


def test_wall_clocks_that_jump_change_nothing(undisturbed: Federation, federation: Federation) -> None:
    """Limits of an hour: a clock that jumps by up to a day breaks them at once if they go by it."""
    jumping = ("tests.skewed", "jumping")
    limits = ["--deadline", "3600", "--lease", "3600", "--quorum", "0.5"]
    federation.server(*FLAGS, *limits, "--capture", "s.fedwire", through=jumping)
    federation.client("a")
    federation.client("b", through=jumping)
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [2] * 5
    assert_same(federation, undisturbed)
    times = [record.time_ns for record in read_records(federation.folder / "s.fedwire", pytest.fail)]
    assert times != sorted(times), "or the clock has not jumped"


def test_a_port_that_is_taken_is_named(federation: Federation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        federation.start("server", "fedserver", "run", "--listen", address, "--run-dir", "run")
        assert federation.exit_code("server") == 2
        assert f"Error: --listen {address}: cannot listen there" in federation.log("server")


def test_a_server_that_hangs_for_a_while_changes_nothing(
    undisturbed: Federation, federation: Federation
) -> None:
    federation.server(*FLAGS, through=trap("stop", "before broadcast", 3))
    start_clients(federation)
    federation.wait_for_stop("server")
    time.sleep(1)  # This long it hangs, with both clients waiting for it.
    federation.go_on("server")
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_hangs_for_good_is_noticed_and_replaced(
    undisturbed: Federation, federation: Federation
) -> None:
    address = federation.server(
        *FLAGS, listen=lasting_address(), name="first", through=trap("stop", "before broadcast", 3)
    )
    start_clients(federation)
    federation.wait_for_stop("first")
    for name in ("a", "b"):
        federation.wait_for(name, "no server answers", at_most_s=120)
    federation.kill("first")
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert_same(federation, undisturbed)


def test_half_open_connections_do_not_keep_a_server_from_ending(federation: Federation) -> None:
    """Peers that connect and say nothing, or vanish without a word."""
    federation.server(*FLAGS)
    host, _, port = federation.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    start_clients(federation)
    federation.finish()
    for connection in silent:
        connection.close()


def test_the_trick_with_the_limit_works(tmp_path: Path) -> None:
    """Or the tests with full disks show nothing."""
    write = "import sys, pathlib; sys.stdin.read(); pathlib.Path('x').write_bytes(bytes(1000))"
    writing = subprocess.Popen(
        [sys.executable, "-c", write], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    limit_files(writing.pid, 100)
    assert "OSError: [Errno 27] File too large" in writing.communicate()[1].decode()
