"""`fedclient check`: every fault of a site has a name and a remedy, and looking for it changes nothing."""

from __future__ import annotations

import json
import re
import resource
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.access.credentials import Credentials
from common.errors import UnavailableError, WireError
from common.wire.calls import Call
from common.wire.chunks import sealed
from fedclient.check import document, machine, network, policy, server
from fedclient.check.findings import CHECKS, Level
from fedclient.flags import Flags
from fedclient.rpc.probe import MAX_DOWN_BYTES, MAX_UP_BYTES, probe
from fedclient.store.state import StateDir
from fedclient.transport.grpc_transport import GrpcTransport
from fedclient.transport.paced import Pace
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.config import RunConfig
from fedserver.keys.authority import Authority
from fedserver.keys.tokens import Tokens
from fedserver.rpc.probe import PROBES_AT_ONCE, Probes
from fedserver.run.run import rules_of
from tests.processes import Federation
from tests.proxy import Proxy
from tests.test_cli import invoke
from tests.test_replicas import GIVEN

ROOT = Path(__file__).parent.parent
TASK = ["--input-shape", "3x8x8", "--classes", "cat", "--classes", "dog", "--model", "mlp"]


def draw(folder: Path, *classes: str, broken: int = 0) -> Path:
    """Some pictures of each class, and files that are none."""
    random = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for k in range(4):
            pixels = random.integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    for k in range(broken):
        (folder / classes[0] / f"broken-{k}.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run without data of its own, which waits for clients that never come."""
    federation = Federation(tmp_path_factory.mktemp("open"))
    yield federation.server(*TASK, "--num-clients", "2")
    federation.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server that asks for certificates, and where they are: those of `a`, and ones that are no good."""
    federation = Federation(tmp_path_factory.mktemp("guarded"))
    certs = federation.folder / "certs"
    authority = Authority(certs)
    authority.init()
    authority.issue("a")
    Authority(certs, clock=lambda: datetime.now(UTC) - timedelta(days=40)).issue("late", days=30)
    authority.issue("soon", days=20)
    other = Authority(federation.folder / "other")
    other.init()
    other.issue("a")
    yield federation.server(*TASK, "--num-clients", "2", "--certs", str(certs)), certs
    federation.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a client that is ready."""
    draw(tmp_path / "pictures", "cat", "dog")
    monkeypatch.chdir(tmp_path)
    for name in (*network.PROXIES, *network.EXCEPTIONS):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def checked(address: str, *flags: str, data: bool = True) -> dict[str, tuple[str, str]]:
    """Level and text of every check, with the remedy behind the text."""
    own = ["--data", "pictures"] if data else []
    result = invoke("fedclient", "check", "--server", address, "--name", "a", "--json", *own, *flags)
    found = json.loads(result.output)
    assert result.exit_code == (0 if found["ready"] else 1)
    rows = {row["check"]: (row["level"], f"{row['found']}; {row['remedy']}") for row in found["findings"]}
    assert list(rows) == list(CHECKS), "every check, in the order of the table"
    for row in found["findings"]:
        assert bool(row["remedy"]) is (row["level"] in ("warning", "error")), row
    return rows


def levels(rows: dict[str, tuple[str, str]], level: str) -> set[str]:
    """Checks that came out so."""
    return {name for name, (found, _) in rows.items() if found == level}


def test_a_site_that_is_ready_has_no_complaints_and_nothing_is_left_behind(address: str, site: Path) -> None:
    before = sorted(path.relative_to(site) for path in site.rglob("*"))
    result = invoke("fedclient", "check", "--server", address, "--name", "a", "--data", "pictures")
    assert result.exit_code == 0, result.output
    assert "ready: 0 errors, 0 warnings" in result.output
    assert "\x1b" not in result.output, "colours are for terminals"
    assert sorted(path.relative_to(site) for path in site.rglob("*")) == before
    assert levels(checked(address), "ok") == set(CHECKS)
    assert "waiting, 0 of 2 clients" in invoke("fedserver", "status", "--server", address).output.lower()


@pytest.mark.parametrize(
    ("flags", "check", "level", "says"),
    [
        (["--data", "nowhere"], "data", "error", "nowhere is not a directory"),
        (["--max-parameters", "10"], "policy", "error", "start the client with --max-parameters"),
        (["--model", "cnn"], "policy", "error", "this client takes cnn only"),
        (["--state-dir", "/proc/state"], "state", "error", "/proc cannot be written"),
        (["--dataset", "wrong:data"], "shape", "error", "this client has float32 (5,)"),
        (["--dataset", "few:data"], "data", "warning", "left out 2 of 6 examples that have another shape"),
    ],
)
def test_a_fault_of_the_site_is_named(
    address: str, site: Path, flags: list[str], check: str, level: str, says: str
) -> None:
    (site / "wrong.py").write_text(
        "import numpy as np\ndef data(split):\n    return np.zeros((4, 5), np.float32), [0, 1, 0, 1]\n"
    )
    (site / "few.py").write_text(
        "import numpy as np\ndef data(split):\n"
        "    good = [np.zeros((3, 8, 8), np.float32)] * 4\n"
        "    return [*good, np.zeros((3, 8, 7), np.float32), np.zeros(3, np.float32)], [0] * 6\n"
    )
    rows = checked(address, *flags, data="--data" not in flags and "--dataset" not in flags)
    assert rows[check][0] == level
    assert says in rows[check][1]
    if "few:data" in flags:
        assert rows["classes"] == (
            "warning",
            "no examples of dog; fine if this site has none; else look for their folder",
        )
    assert rows["access"][0] == "ok", "what is wrong here keeps nothing from being looked at there"


def test_pictures_that_are_broken_are_counted_and_named_and_strange_classes_too(
    address: str, site: Path
) -> None:
    draw(site / "mixed", "cat", "horse", broken=7)
    rows = checked(address, "--data", "mixed", data=False)
    assert levels(rows, "error") == {"classes"}
    assert "the run does not have horse" in rows["classes"][1]
    assert rows["classes"][1].endswith("it has cat, dog")
    assert "8 examples, 2 classes; left out 7 of 15 pictures that cannot be read" in rows["data"][1]
    assert "broken-0.png" in rows["data"][1]
    assert "and 2 others" in rows["data"][1]
    shutil.rmtree(site / "mixed")
    (site / "mixed" / "cat").mkdir(parents=True)
    (site / "mixed" / "cat" / "0.png").write_text("no")
    rows = checked(address, "--data", "mixed", data=False)
    assert levels(rows, "error") == {"data"}
    assert "all 1 are pictures that cannot be read" in rows["data"][1]


def test_without_data_and_without_a_shard_to_get_there_is_nothing_to_train_on(
    address: str, site: Path
) -> None:
    rows = checked(address, data=False)
    assert "give --data or --dataset" in rows["data"][1]
    assert levels(rows, "error") == {"data"}


def test_a_disk_that_is_full_is_named(address: str, site: Path) -> None:
    """The kernel lets no file of this process grow beyond 64 KiB, as on a disk without room for more."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        rows = checked(address)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert levels(rows, "error") == {"disk"}
    assert "no room for 2 MB" in rows["disk"][1]


def test_a_clock_that_is_wrong_is_named(address: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600)
    rows = checked(address)
    monkeypatch.undo()
    assert levels(rows, "error") == {"clock"}
    assert re.match(r"3[56]\d\d\.\d s ahead of the server's; set the clock", rows["clock"][1])


def test_a_port_that_is_closed_keeps_nothing_else_from_being_looked_at(site: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"127.0.0.1:{free.getsockname()[1]}"
    rows = checked(closed)
    assert levels(rows, "error") == {"port"}
    assert "nothing listens at" in rows["port"][1]
    assert levels(rows, "ok") == {"credentials", "proxy", "address", "state", "disk", "files", "data"}
    rows = checked(f"{'x' * 70}.example:1", "--insecure")
    assert levels(rows, "error") == {"address"}


def test_another_version_of_the_protocol_is_named(
    address: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedclient.rpc.probe.PROTOCOL_VERSION", 2)
    rows = checked(address)
    assert levels(rows, "error") == {"protocol"}
    assert "protocol version 1, the client 2; install the same release on both" in rows["protocol"][1]


class Slow(Proxy):
    """Half a megabit a second, each way."""

    def __init__(self, server: str) -> None:
        super().__init__(server, [])
        self._paces = Pace(5e5), Pace(5e5)

    def _with_faults(self, before: bytes, data: bytes, up: bool) -> tuple[bytes, bool]:
        self._paces[up].spend(len(data))
        return data, True


def test_a_slow_link_is_named(address: str, site: Path) -> None:
    with Slow(address) as proxy:
        rows = checked(proxy.address)
    assert levels(rows, "warning") == {"link"}
    assert "the tensors of a round take" in rows["link"][1]


def test_a_client_that_runs_with_this_state_directory_is_named(address: str, site: Path) -> None:
    with StateDir(site / "state"):
        rows = checked(address, "--state-dir", "state")
        assert levels(rows, "warning") == {"state"}
        assert "in use by another client" in rows["state"][1]
    assert not machine.is_locked(site / "state")


def test_certificates_that_are_no_good_are_named(guarded: tuple[str, Path], site: Path) -> None:
    address, certs = guarded
    assert levels(checked(address, "--certs", str(certs)), "ok") == set(CHECKS)
    rows = checked(address, "--certs", str(certs), "--name", "late")
    assert levels(rows, "error") == {"credentials"}
    assert "late.pem expired on" in rows["credentials"][1]
    rows = checked(address, "--certs", str(certs), "--name", "soon")
    assert levels(rows, "warning") == {"credentials"}
    assert "expires in 19 days" in rows["credentials"][1]
    rows = checked(address, "--certs", str(certs.parent / "other"))
    assert levels(rows, "error") == {"tls"}
    assert "signed by another authority than" in rows["tls"][1]
    mixed = site / "mixed"
    shutil.copytree(certs.parent / "other", mixed)
    shutil.copy(certs / "ca.pem", mixed)
    rows = checked(address, "--certs", str(mixed))
    assert levels(rows, "error") == {"tls"}
    assert "the server does not accept" in rows["tls"][1]
    assert levels(checked(address), "error") == {"tls"}, "the server speaks TLS"


def test_a_token_that_is_not_known_is_named(
    federation: Federation, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(federation.folder / "tokens")
    tokens.issue("a")
    address = federation.server(*TASK, "--num-clients", "1", "--tokens", "tokens")
    file = str(federation.folder / "tokens" / "a.token")
    assert levels(checked(address, "--token-file", file), "ok") == set(CHECKS)
    tokens.issue("a", renew=True)
    shutil.copy(file, site / "new.token")
    (site / "old.token").write_text("a:" + "x" * 43 + "\n")
    (site / "old.token").chmod(0o600)
    rows = checked(address, "--token-file", "old.token")
    assert levels(rows, "error") == {"access"}
    assert "this token is not known here; ask for one" in rows["access"][1]
    federation.stop("server")


def test_a_run_goes_on_beside_a_check_of_the_same_client(federation: Federation, site: Path) -> None:
    """Also with its state directory; who checks is no sign of life, and no second client."""
    address = federation.server("--num-clients", "1", "--rounds", "100000", "--local-steps", "1")
    federation.client("a", "--verbose")
    federation.wait_for("a", r"round 2:")
    state = federation.folder / "state" / "a"
    rows = checked(address, "--state-dir", str(state), data=False)
    assert levels(rows, "warning") == {"state"}
    assert not levels(rows, "error")
    at = len(federation.log("a"))
    federation.wait_for("a", rf"(?s)^.{{{at}}}.*round \d+:")
    assert "ABORTED" not in federation.log("a")
    federation.stop("server")


def test_a_proxy_in_the_environment_is_named_and_grpc_does_go_through_it(
    address: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = address.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        accepting = _first_line(listener)
        with _transport(address) as transport, pytest.raises(UnavailableError):
            probe(transport, "a")
        assert accepting() == f"CONNECT 127.0.0.1:{port} HTTP/1.1"
        found = network.proxy_finding(address, network.proxy_of(address, {"https_proxy": "http://p:3128"}))
        assert found.level is Level.WARNING
        assert "no_proxy=127.0.0.1" in found.remedy
    monkeypatch.setenv("no_proxy", "example.org,127.0.0.0/8")
    assert levels(checked(address), "ok") == set(CHECKS)


def _first_line(listener: socket.socket) -> Any:
    """What a client of a proxy says first; it is sent away."""
    heard: list[str] = []

    def accept() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(1 << 12).decode().splitlines()[0])

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()

    def line() -> str:
        thread.join(20)
        return heard[0]

    return line


@contextmanager
def _transport(address: str) -> Iterator[GrpcTransport]:
    transport = GrpcTransport(address, Credentials())
    try:
        yield transport
    finally:
        transport.close()


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"http_proxy": "http://u:p@proxy:3128/"}, ("http_proxy", "proxy:3128")),
        ({"HTTPS_PROXY": "http://proxy:3128"}, None),
        ({"http_proxy": "http://a:1", "grpc_proxy": "http://b"}, ("grpc_proxy", "b:80")),
        ({"http_proxy": "http://a:1", "no_proxy": "x, .Example.org"}, None),
        ({"http_proxy": "http://a:1", "no_proxy": "fl.example.org"}, None),
        ({"http_proxy": "http://a:1", "no_proxy": "l.example.org,10.0.0.0/8"}, ("http_proxy", "a:1")),
    ],
)
def test_the_proxy_is_the_one_that_grpc_takes(
    environment: dict[str, str], proxy: tuple[str, str] | None
) -> None:
    assert network.proxy_of("fl.example.org:50051", environment) == proxy


def test_limits_of_findings() -> None:
    assert machine.files_finding(32).level is Level.ERROR
    assert machine.files_finding(128).level is Level.WARNING
    assert machine.files_finding(1024).level is Level.OK
    assert server.clock_finding(7.0, 3.0).level is Level.OK, "the link may have taken as long"
    assert server.clock_finding(-60.0, 3.0).level is Level.WARNING
    soon = datetime.now(UTC) + timedelta(days=3, hours=1)
    assert "in 3 days" in network.server_expiry(soon, datetime.now(UTC)).found
    assert server.speed(lambda size: size / 1e6, 1 << 20) == pytest.approx(8e6)


def test_a_probe_is_small_seldom_and_not_for_others() -> None:
    probes, caller = Probes("r", now=lambda: 0.0), Caller("ipv4:127.0.0.1:1", "a")

    def asked(**fields: Any) -> pb.ProbeReply:
        return probes.answer(pb.ProbeRequest(protocol_version=1, client="a", **fields), caller, None)

    for fields in ({"padding_bytes": MAX_DOWN_BYTES + 1}, {"padding": bytes(MAX_UP_BYTES + 1)}):
        with pytest.raises(WireError, match="has at most"):
            asked(**fields)
    reply = asked(padding_bytes=MAX_DOWN_BYTES, padding=bytes(MAX_UP_BYTES))
    assert len(reply.padding) == MAX_DOWN_BYTES
    for _ in range(PROBES_AT_ONCE):
        assert not asked().padding
    with pytest.raises(UnavailableError, match="too many probes"):
        asked()
    other = Caller("ipv4:127.0.0.1:1", "b")
    assert probes.answer(pb.ProbeRequest(protocol_version=1, client="b"), other, None).run_id == "r"


class Liar:
    """A server that says what it likes."""

    chunk_bytes = 1

    def __init__(self, reply: pb.ProbeReply) -> None:
        self._reply = sealed(reply)

    def ask(self, call: Call, request: bytes) -> bytes:
        return self._reply

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        raise NotImplementedError

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        pass


def test_what_a_server_says_is_not_trusted(tmp_path: Path) -> None:
    """Numbers that cannot be, and bytes that nobody asked for, are findings like others."""
    most = 2**64 - 1
    reply = pb.ProbeReply(unix_seconds=float("nan"), run_id="a\nb", down_bytes=most, up_bytes=most)
    reply.model.CopyFrom(pb.ModelSpec(name="mlp", num_classes=2**32 - 1, image_shape=[2**32 - 1] * 9))
    reply.rules.CopyFrom(rules_of(RunConfig(), 1, False, 0).to_header())
    probed, found = server.meet(Liar(reply), "a")
    assert probed is not None
    assert probed.terms is not None
    assert {finding.check: finding.level for finding in found}["clock"] is Level.ERROR
    assert not any("\n" in finding.found for finding in found)
    _, link = server.link_finding(Liar(reply), "a", probed.terms)
    assert link.level is Level.SKIPPED, "no padding came"
    flags = Flags(**GIVEN | {"name": "a"})
    refused = policy.policy_finding(probed.terms, flags, tmp_path, 10, own_data=True, encrypted=False)
    assert refused.level is Level.ERROR
    needed = machine.needed_bytes(probed.terms.up_bytes)
    assert machine.disk_finding(machine.try_disk(tmp_path, needed), needed).level is Level.ERROR
    reply.rules.eta_l = -1.0
    assert server.meet(Liar(reply), "a")[0] is None


def test_the_document_has_the_checks_of_the_table() -> None:
    assert (ROOT / "docs" / "checks.md").read_text() == document.document(), "run make docs"
