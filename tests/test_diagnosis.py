"""Connections that cannot come about: one plain line for the client, at once, and a remedy that works."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from common.access import diagnosis
from common.access.certificates import require_usable
from common.access.credentials import Access
from common.errors import ConfigError
from fedserver.access.settings import AccessSettings
from fedserver.keys.authority import Authority
from fedserver.keys.tokens import Tokens
from tests.processes import Federation, lasting_address
from tests.test_cli import invoke

FLAGS = ["--num-clients", "1", "--rounds", "100000", "--local-steps", "5"]


def at(days: float) -> Callable[[], datetime]:
    """A clock that stands so many days from now."""
    return lambda: datetime.now(UTC) + timedelta(days=days)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with servers and a client of all kinds; its folder has a space in its name."""
    folder = tmp_path_factory.mktemp("keys") / "our certs"
    authority = Authority(folder)
    authority.init()
    authority.issue("a")
    hosts = ["localhost", "127.0.0.1"]
    Authority(folder, clock=at(-40)).issue("expired", days=30, hosts=hosts)
    Authority(folder, clock=at(4)).issue("early", hosts=hosts)
    authority.issue("elsewhere", hosts=["fl.example.org", "localhost"])
    other = Authority(folder.parent / "other")
    other.init()
    other.issue("a")
    for kind in ("pem", "key"):
        shutil.copy(folder.parent / "other" / f"a.{kind}", folder / f"stranger.{kind}")
    return folder


@contextmanager
def grpc_server(certs: Path, name: str | None, *, ask_for_certificates: bool = True) -> Iterator[str]:
    """A server with this certificate, or without TLS."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        if name is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = [(certs / f"{name}.{kind}").read_bytes() for kind in ("key", "pem")]
            ca = (certs / "ca.pem").read_bytes() if ask_for_certificates else None
            secrets = grpc.ssl_server_credentials([(pair[0], pair[1])], ca, ask_for_certificates)
            port = server.add_secure_port("127.0.0.1:0", secrets)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@contextmanager
def speaking(banner: bytes, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Something that is no server of ours and says this to whoever comes and says anything."""
    host, _, port = address.rpartition(":")
    with closing(socket.create_server((host, int(port)))) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(1 << 16)
                        connection.sendall(banner)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        # A thread that still waits for connections would keep the port.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


CASES = {
    "a server that speaks TLS": ("server", "", None, r"the server at \S+ speaks TLS: give --certs DIR"),
    "a server without TLS": (None, "", "a", r"the server at \S+ does not speak TLS: start it with --certs"),
    "another authority": (
        "server",
        "other",
        "a",
        r"the server's certificate is signed by another authority than \S+other/ca\.pem; ask",
    ),
    "another name": (
        "elsewhere",
        "",
        "a",
        r"the server's certificate is for fl\.example\.org, localhost, not 127\.0\.0\.1; connect by such",
    ),
    "an expired server": (
        "expired",
        "",
        "a",
        r"the server's certificate expired on 20\d\d-.* with: fedserver",
    ),
    "a server before its time": ("early", "", "a", r"the server's certificate is not valid before 20\d\d-"),
    "a client as a server": (
        "a",
        "",
        "a",
        "the server's certificate is not a server's but a client's; issue",
    ),
    "a client of another authority": (
        "server",
        "",
        "stranger",
        r"does not accept .*stranger\.pem, which is signed by another authority than .*ca\.pem; issue",
    ),
    "a server as a client": (
        "server",
        "",
        "server",
        r"not accept .*server\.pem, which is a server's certificate",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_heal_is_one_plain_line(case: str, certs: Path) -> None:
    server, folder, name, line = CASES[case]
    own = certs.parent / folder if folder else certs
    flags = ["--certs", str(own), "--name", name] if name else []
    with grpc_server(certs, server) as address:
        for command in ("status", "health"):
            result = invoke("fedserver", command, "--server", address, *flags)
            assert result.exit_code == 1
            assert result.output.count("\n") == 1, result.output
            assert re.match(f"Error: .*{line}", result.output), result.output


def test_a_token_instead_of_a_certificate_is_told_apart(certs: Path, tmp_path: Path) -> None:
    Tokens(tmp_path).issue("a")
    access = Access("a", certs, tmp_path / "a.token")
    with grpc_server(certs, "server") as address:
        assert "wants a certificate and no token" in (diagnosis.fault(address, access) or "")
    with grpc_server(certs, "server", ask_for_certificates=False) as address:
        assert diagnosis.fault(address, access) is None


@pytest.mark.parametrize("with_tls", [True, False])
@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_port_that_speaks_something_else_is_named(banner: bytes, with_tls: bool, certs: Path) -> None:
    access = Access("a", certs) if with_tls else Access()
    said = banner.split(b"\r")[0].decode()
    with speaking(banner) as address:
        assert diagnosis.fault(address, access) == (
            f"what listens at {address} is not a server of a federation: it says {said!r}; check the port"
        )


def test_what_may_heal_is_no_fault(certs: Path) -> None:
    """Nobody there, a host that is not known, a name that is none, a connection that is closed at once."""
    for access in (Access(), Access("a", certs)):
        for server in ("127.0.0.1:1", "no.such.host.invalid:1", f"{'x' * 70}.org:1"):
            assert diagnosis.fault(server, access) is None
        with speaking(b"") as address:
            assert diagnosis.fault(address, access) is None
    for name, access in ((None, Access()), ("server", Access("a", certs))):
        with grpc_server(certs, name) as address:
            assert diagnosis.fault(address, access) is None


@pytest.mark.parametrize("case", ["a server that speaks TLS", "another authority", "another name"])
def test_a_client_ends_at_once_with_the_line_and_none_of_grpcs(
    case: str, certs: Path, federation: Federation
) -> None:
    server, folder, name, line = CASES[case]
    flags = ["--certs", str(certs.parent / folder if folder else certs)] if name else []
    with grpc_server(certs, server) as address:
        federation.client("a", *flags, server=address)
        assert federation.exit_code("a") == 1
    joining, error = federation.log("a").splitlines()
    assert "joining" in joining
    assert re.match(f"Error: .*{line}", error)


def test_a_client_that_has_joined_waits_for_the_repair(federation: Federation) -> None:
    """Whoever puts something else in the place of a server that was good may be about to bring it back."""
    address = lasting_address()
    federation.server(*FLAGS, listen=address)
    federation.client("a")
    federation.wait_for("server", "round 1/")
    federation.kill("server")
    with speaking(b"SSH-2.0-other\r\n", address):
        federation.wait_for("a", "it says 'SSH-2.0-other'; check the port; trying again")
    federation.server(*FLAGS, listen=address)
    last = federation.wait_for("server", r"(?s).*round (\d+)/100000")
    federation.wait_for("server", rf"round {int(last) + 1}/100000: ")


def remedies(certs: Path) -> Iterator[str]:
    """Lines that end with a command, from both sides."""
    now = datetime.now(UTC)
    for name, later in (("server", 400), ("a", 400), ("ops", 400), ("nobody", 0), ("expired", 0)):
        with pytest.raises(ConfigError) as caught:
            require_usable(certs / f"{name}.pem", certs / f"{name}.key", now + timedelta(days=later))
        yield str(caught.value)
    for name in ("elsewhere", "expired", "a"):
        with grpc_server(certs, name) as address:
            yield diagnosis.fault(address, Access("a", certs)) or ""


def test_every_remedy_works_as_it_is_printed(certs: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(certs, tmp_path / "our certs"))
    Authority(own).issue("ops", operator=True)
    kinds = []
    for line in list(remedies(own)):
        program, *arguments = shlex.split(re.split("(?:with|from|after): ", line)[1])
        result = invoke(program, *arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        kinds += re.findall(r" for (\w+) (\S+) \(", result.output)
    assert kinds[:5] == [
        ("server", "server"),
        ("client", "a"),
        ("operator", "ops"),
        ("client", "nobody"),
        ("server", "expired"),
    ]
    with grpc_server(own, "server") as address:
        assert diagnosis.fault(address, Access("a", own)) is None


def test_a_server_does_not_start_with_a_clients_certificate(certs: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(certs, tmp_path / "certs"))
    for kind in ("pem", "key"):
        shutil.copy(own / f"a.{kind}", own / f"server.{kind}")
    settings = AccessSettings(own)
    with pytest.raises(
        ConfigError, match=r"server\.pem is not a server's certificate but a client's"
    ) as caught:
        settings.tls()
    (own / "server.key").unlink()
    with pytest.raises(ConfigError, match=r"server\.key: No such file") as missing:
        settings.tls()
    for line in (caught.value, missing.value):
        assert invoke(*shlex.split(re.split("(?:with|from): ", str(line))[1])).exit_code == 0
        assert settings.tls() is not None


def test_an_operator_need_not_say_his_name_if_there_is_one(certs: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(certs, tmp_path / "certs"))

    def asked() -> str:
        return invoke("fedserver", "status", "--certs", str(own), "--server", "127.0.0.1:1").output

    line = asked()
    assert f"{own} holds no operator's certificate; give --name (a), or issue one with: fedserver" in line
    assert invoke(*shlex.split(line.partition("with: ")[2])).exit_code == 0
    assert "no server answers" in asked()
    Authority(own).issue("bob", operator=True)
    assert f"{own} holds certificates of operators bob, operator; choose one of them with --name" in asked()
