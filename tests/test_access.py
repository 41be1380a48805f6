"""Nobody in without a certificate or a token, and nobody for somebody else; real servers, real handshakes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.access.channel import open_channel
from common.access.credentials import Access, Credentials, is_loopback
from common.errors import AccessError, ConfigError
from common.wire.calls import CALLS, Call
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller, Refusals
from fedserver.access.handshake_log import in_words
from fedserver.console.status_client import ask, require_health
from fedserver.keys.authority import Authority
from fedserver.keys.tokens import Tokens
from fedserver.rpc.own_view import own_view
from tests import skewed
from tests.killpoint import trap
from tests.processes import WAIT_S, Federation
from tests.samples import request, sample
from tests.test_cli import invoke

FLAGS = ["--num-clients", "2", "--rounds", "3", "--alpha", "0.3", "--local-steps", "2", "--seed", "5"]
LONG = ["--num-clients", "2", "--rounds", "100000", "--local-steps", "5"]

STATUS = ("Status", "WatchStatus")
"""Calls that name nobody: a client may make them, and sees its own part."""


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with clients a and b, one that expired, and one of another authority."""
    folder = tmp_path_factory.mktemp("keys") / "certs"
    authority = Authority(folder)
    authority.init()
    for name in ("a", "b"):
        authority.issue(name)
    authority.issue("alice", operator=True)
    Authority(folder, clock=lambda: datetime.now(UTC) - timedelta(days=40)).issue("late", days=30)
    other = Authority(folder.parent / "other")
    other.init()
    other.issue("stranger")
    for kind in ("pem", "key"):
        shutil.copy(folder.parent / "other" / f"stranger.{kind}", folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """The same run without any of it."""
    federation = Federation(tmp_path_factory.mktemp("plain"))
    federation.server(*FLAGS)
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    return federation


def credentials(certs: Path, name: str) -> Credentials:
    """A certificate as a client shows it, without the client's own checks."""
    key, pem = ((certs / f"{name}.{kind}").read_bytes() for kind in ("key", "pem"))
    return Credentials((certs / "ca.pem").read_bytes(), (key, pem))


def calls(channel: grpc.Channel, as_client: str) -> dict[str, Callable[..., Any]]:
    """Every call of the service, made for this client."""
    return {call.name: _made(channel, call, as_client) for call in CALLS.values()}


def _made(channel: grpc.Channel, call: Call, as_client: str) -> Callable[..., Any]:
    data = request(call, as_client)
    if call.streams_replies:
        pull: Any = channel.unary_stream(call.path)
        return lambda **named: next(pull(data, **named))
    if call.streams_requests:
        push: Any = channel.stream_unary(call.path)
        return lambda **named: push(iter([data]), **named)
    ask: Any = channel.unary_unary(call.path)
    return lambda **named: ask(data, **named)


def code(call: Callable[..., Any], metadata: tuple[tuple[str, str], ...] = ()) -> grpc.StatusCode:
    """The status that a call ends with."""
    try:
        call(timeout=WAIT_S, metadata=metadata)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_with_certificates_a_run_ends_in_the_same_bytes(
    plain: Federation, federation: Federation, certs: Path
) -> None:
    federation.server(*FLAGS, "--certs", str(certs))
    federation.client("a", "--certs", str(certs))
    federation.client("b", "--certs", str(certs), through=trap("hold", "a round has come", 2))
    federation.wait_for("server", "round 1/3")
    seen = ask(federation.address, Access(certs=certs))
    assert ([client.name for client in seen.clients], seen.others) == (["a", "b"], 0)
    assert {"a", "b"} <= seen.traffic.keys()
    own = ask(federation.address, Access("a", certs))
    assert ([client.name for client in own.clients], own.others) == (["a"], 1)
    assert own.traffic.keys() == {"a"}
    assert own.bytes == {"down": {}, "up": {}}
    assert (own.num_clients, own.phase) == (2, "training")
    require_health(federation.address, Access(certs=certs), timeout_s=WAIT_S)
    (federation.folder / "go").touch()
    federation.finish()
    for file in ("model", "control"):
        assert federation.bytes(file) == plain.bytes(file)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certs: Path) -> Iterator[Federation]:
    """A server that wants certificates."""
    federation = Federation(tmp_path_factory.mktemp("guarded"))
    federation.server(*LONG, "--certs", str(certs))
    yield federation
    federation.close()


@pytest.mark.parametrize(
    ("who", "line"),
    [
        ("nobody", "turned away: a connection: it has shown no certificate"),
        ("late", "turned away: a connection: its certificate has expired"),
        ("stranger", "turned away: a connection: its certificate is not of this authority"),
        ("server", "turned away: a connection: its certificate is not a client's"),
    ],
)
def test_without_a_valid_certificate_no_call_gets_through(
    guarded: Federation, certs: Path, who: str, line: str
) -> None:
    known = Credentials((certs / "ca.pem").read_bytes()) if who == "nobody" else credentials(certs, who)
    for name in calls(grpc.insecure_channel("localhost:1"), "a"):
        with open_channel(guarded.address, known) as channel:
            assert code(calls(channel, "a")[name]) is grpc.StatusCode.UNAVAILABLE, name
    guarded.wait_for("server", re.escape(line))


def test_without_tls_no_call_gets_through(guarded: Federation) -> None:
    with grpc.insecure_channel(guarded.address) as channel:
        for name, call in calls(channel, "a").items():
            assert code(call) is grpc.StatusCode.UNAVAILABLE, name
    guarded.wait_for("server", "it does not speak TLS")


def test_a_client_cannot_speak_for_another(guarded: Federation, certs: Path) -> None:
    with open_channel(guarded.address, credentials(certs, "a")) as channel:
        for name, call in calls(channel, "b").items():
            expected = grpc.StatusCode.OK if name in STATUS else grpc.StatusCode.UNAUTHENTICATED
            assert code(call) is expected, name
        assert code(calls(channel, "b" * 100_000)["Join"]) is grpc.StatusCode.UNAUTHENTICATED
    guarded.wait_for("server", "turned away: this is 'a', which cannot speak for 'b'")


OPERATORS_CALLS = dict.fromkeys(STATUS, grpc.StatusCode.OK) | {"Evict": grpc.StatusCode.NOT_FOUND}
"""Nobody has joined who could be evicted."""


def test_an_operator_asks_for_the_status_and_takes_no_part(guarded: Federation, certs: Path) -> None:
    with open_channel(guarded.address, credentials(certs, "alice")) as channel:
        for as_client in ("a", "alice"):
            for name, call in calls(channel, as_client).items():
                expected = OPERATORS_CALLS.get(name, grpc.StatusCode.UNAUTHENTICATED)
                assert code(call) is expected, name
    guarded.wait_for("server", "turned away: this is operator 'alice', which cannot take part as a client")
    guarded.client("alice", "--certs", str(certs))
    assert guarded.exit_code("alice") == 1
    assert "Error: this is operator 'alice'" in guarded.log("alice")


def test_an_operator_is_known_by_his_identity_or_where_nobody_is_asked() -> None:
    Caller("peer").require_operator()
    Caller("peer", "alice", operator=True).require_operator()
    with pytest.raises(AccessError, match="this is client 'a', and only an operator may do that"):
        Caller("peer", "a").require_operator()


def test_what_a_client_sees_of_a_status_has_nothing_of_another_in_it() -> None:
    """Also not in fields that this test does not know."""
    status = sample(pb.StatusReply, "somebody-else")
    status.clients.add(name="a")
    status.run_id = status.algorithm = status.model = status.dataset = ""
    view = own_view(status, "a")
    assert b"somebody-else" not in view.SerializeToString()
    assert (len(view.clients), view.others) == (1, 1)


def test_an_expired_certificate_has_a_line_on_both_sides(guarded: Federation, certs: Path) -> None:
    guarded.client("late", "--certs", str(certs))
    assert guarded.exit_code("late") == 2
    log = guarded.log("late")
    assert re.search(
        r"Error: \S+late\.pem expired on 20\d\d-.* issue a new one with: fedserver certs issue", log
    )


def test_a_client_of_another_authority_is_told_what_is_wrong_and_ends(
    guarded: Federation, certs: Path
) -> None:
    guarded.client("stranger", "--certs", str(certs))
    assert guarded.exit_code("stranger") == 1
    assert "stranger.pem, which is signed by another authority than" in guarded.log("stranger")


def test_a_revoked_client_leaves_and_nobody_waits_for_it(federation: Federation, certs: Path) -> None:
    own = federation.folder / "certs"
    shutil.copytree(certs, own)
    federation.server(*LONG, "--certs", str(own), "--quorum", "0.5")
    for name in ("a", "b"):
        federation.client(name, "--certs", str(own))
    federation.wait_for("server", "round 2/100000: .* 2 updates")
    Authority(own).revoke("b")
    assert federation.exit_code("b") == 1
    assert "Error: the certificate of b was revoked" in federation.log("b")
    federation.wait_for("server", "b leaves: the certificate of b was revoked")
    federation.wait_for("server", "2 updates(.|\\n)* 1 updates")
    federation.client("b", "--certs", str(own))
    assert federation.exit_code("b") == 1
    old = credentials(own, "b")
    Authority(own).issue("b", renew=True)
    federation.client("b", "--certs", str(own))
    federation.wait_for("server", "1 updates(.|\\n)* 2 updates")
    # Whoever has the old key cannot shut the client out that has the new one.
    with open_channel(federation.address, old) as channel:
        for name, call in calls(channel, "b").items():
            assert code(call) is grpc.StatusCode.UNAUTHENTICATED, name
    last = federation.wait_for("server", r"(?s).*round (\d+)/100000")
    federation.wait_for("server", rf"round {int(last) + 2}/100000: .* 2 updates")
    assert federation.log("server").count("b leaves") == 1


def test_a_certificate_that_expires_during_a_run_ends_its_clients_part(
    federation: Federation, certs: Path
) -> None:
    """The server's clock is set ahead when the run goes on, so that the test need not wait."""
    own = federation.folder / "certs"
    shutil.copytree(certs, own)
    Authority(own).issue("c", days=1)
    federation.server(*LONG, "--certs", str(own), through=("tests.skewed", "later"))
    for name in ("a", "c"):
        federation.client(name, "--certs", str(own))
    federation.wait_for("server", "round 1/100000: .* 2 updates")
    skewed.later(federation.folder, days=30)
    assert federation.exit_code("c") == 1
    assert "Error: the certificate of c expired on 20" in federation.log("c")
    federation.wait_for("server", "c leaves: the certificate of c expired on 20(.|\\n)* 1 updates")


def test_with_tokens_a_run_ends_in_the_same_bytes_and_no_file_holds_a_secret(
    plain: Federation, federation: Federation, certs: Path
) -> None:
    tokens = federation.folder / "tokens"
    for name in ("a", "b"):
        Tokens(tokens).issue(name)
    federation.server(*FLAGS, "--certs", str(certs), "--tokens", "tokens", "--capture", "s.fedwire")
    for name in ("a", "b"):
        secret = tokens / f"{name}.token"
        federation.client(name, "--certs", str(certs), "--token-file", str(secret), "--capture", f"{name}.fw")
    federation.finish()
    for file in ("model", "control"):
        assert federation.bytes(file) == plain.bytes(file)
    secrets = [(tokens / f"{name}.token").read_bytes().strip().partition(b":")[2] for name in ("a", "b")]
    keys = [(certs / "server.key").read_bytes().splitlines()[1]]
    for path in federation.folder.rglob("*"):
        if path.is_file() and path.suffix != ".token":
            held = path.read_bytes()
            assert not any(secret in held for secret in secrets + keys), path


@pytest.fixture(scope="module")
def tokened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server on loopback that wants tokens."""
    federation = Federation(tmp_path_factory.mktemp("tokened"))
    tokens = Tokens(federation.folder / "tokens")
    for name in ("a", "b", "gone"):
        tokens.issue(name)
    tokens.revoke("gone")
    tokens.issue("alice", operator=True)
    past = Tokens(federation.folder / "tokens", clock=lambda: datetime.now(UTC) - timedelta(days=9))
    past.issue("late", days=8)
    federation.server(*LONG, "--tokens", "tokens")
    yield federation
    federation.close()


def bearer(federation: Federation, name: str) -> tuple[tuple[str, str], ...]:
    """The metadata that shows a token."""
    return Access(token_file=federation.folder / "tokens" / f"{name}.token").read().metadata


@pytest.mark.parametrize("who", ["nobody", "gone", "late", "forged", "odd"])
def test_without_a_valid_token_no_call_gets_through(tokened: Federation, who: str) -> None:
    forged = {"nobody": (), "forged": (("authorization", "Bearer a:" + "x" * 43),)}
    odd = (("authorization", "Bearer ../tokens/a:x"), ("authorization", "Basic a"))
    metadata = odd if who == "odd" else forged[who] if who in forged else bearer(tokened, who)
    with grpc.insecure_channel(tokened.address) as channel:
        for name, call in calls(channel, "a").items():
            assert code(call, metadata) is grpc.StatusCode.UNAUTHENTICATED, name
    with pytest.raises(AccessError, match="expected a token, got none"):
        ask(tokened.address)


def test_a_token_speaks_for_its_own_client_only(tokened: Federation) -> None:
    with grpc.insecure_channel(tokened.address) as channel:
        for name, call in calls(channel, "b").items():
            expected = grpc.StatusCode.OK if name in STATUS else grpc.StatusCode.UNAUTHENTICATED
            assert code(call, bearer(tokened, "a")) is expected, name


def test_an_operators_token_takes_no_part_either(tokened: Federation) -> None:
    with grpc.insecure_channel(tokened.address) as channel:
        for as_client in ("a", "alice"):
            for name, call in calls(channel, as_client).items():
                expected = OPERATORS_CALLS.get(name, grpc.StatusCode.UNAUTHENTICATED)
                assert code(call, bearer(tokened, "alice")) is expected, name


def test_revoked_and_expired_tokens_have_a_line_on_both_sides(tokened: Federation) -> None:
    for name, line in (
        ("gone", "the token of gone was revoked"),
        ("late", r"the token of late expired on 20\d\d"),
    ):
        tokened.client(name, "--token-file", f"tokens/{name}.token")
        assert tokened.exit_code(name) == 1
        assert re.search(f"Error: {line}", tokened.log(name))
        tokened.wait_for("server", f"turned away: {line}")


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.token"
    Tokens(tmp_path).issue("a")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=f"{path} must be for its owner only, but has mode 644; run: chmod"):
        Access(token_file=path).read()


def test_a_token_keeps_its_kind_until_it_is_revoked(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    tokens.issue("a")
    for renew in (True, False):
        with pytest.raises(ConfigError, match="'a' is already known as client; choose another name"):
            tokens.issue("a", operator=True, renew=renew)
    tokens.revoke("a")
    assert tokens.issue("a", operator=True).kind == "operator"
    assert tokens.holder_of((tmp_path / "a.token").read_text().strip()).operator
    tokens.revoke("a")
    assert [entry.kind for entry in tokens.show()] == ["operator"]


def test_a_token_comes_from_the_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tokens(tmp_path).issue("a")
    monkeypatch.setenv("FEDPVR_TOKEN", (tmp_path / "a.token").read_text())
    assert Access().read().metadata == Access(token_file=tmp_path / "a.token").read().metadata
    monkeypatch.setenv("FEDPVR_TOKEN", "a\nb")
    with pytest.raises(ConfigError, match="FEDPVR_TOKEN must hold one token, in one line"):
        Access().read()


def test_tokens_are_private_replaced_and_listed_without_the_secret(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")
    tokens.issue("a")
    first = (tmp_path / "tokens" / "a.token").read_text().strip()
    assert tokens.holder_of(first).name == "a"
    for path in (tmp_path / "tokens").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(ConfigError, match=r"'a' has a token until .* give --renew"):
        tokens.issue("a")
    tokens.issue("a", renew=True)
    with pytest.raises(AccessError, match="not known here"):
        tokens.holder_of(first)
    listing = invoke("fedserver", "tokens", "show", "--json", "--dir", str(tmp_path / "tokens"))
    assert listing.exit_code == 0
    assert '"name": "a"' in listing.output
    secrets = [
        text.strip().partition(":")[2] for text in (first, (tmp_path / "tokens" / "a.token").read_text())
    ]
    assert not any(secret in listing.output for secret in secrets)


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("127.0.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("127.9.9.9:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example.org:1", False),
    ],
)
def test_without_tls_a_server_is_for_this_machine_only(
    federation: Federation, address: str, safe: bool
) -> None:
    assert is_loopback(address) is safe
    if not safe:
        federation.start("server", "fedserver", "run", "--listen", address, "--run-dir", "run")
        assert federation.exit_code("server") == 2
        assert "nothing is encrypted; give --certs DIR" in federation.log("server")
        assert not (federation.folder / "run").exists()


def test_a_token_is_not_sent_in_the_clear_to_another_machine(federation: Federation) -> None:
    Tokens(federation.folder).issue("a")
    far = ("--server", "192.0.2.1:1", "--token-file", "a.token")
    federation.start("status", "fedserver", "status", *far)
    federation.start("a", "fedclient", "run", *far)
    for name in ("status", "a"):
        assert federation.exit_code(name) == 2
    assert "a token for 192.0.2.1:1 would travel unencrypted" in federation.log("status")
    assert "192.0.2.1:1 is on another machine, and nothing would be encrypted" in federation.log("a")


def test_a_crowd_that_is_turned_away_does_not_fill_the_log() -> None:
    said: list[str] = []
    now = [0.0]
    refusals = Refusals(lambda event: said.append(event.text()), lambda: now[0])
    for _ in range(1000):
        refusals.note("x\n")
    now[0] = 11.0
    refusals.note("x\n")
    assert said == ["turned away: x ", "turned away: x  (999 more since the line before)"]
    for number in range(1000):
        refusals.note(f"{number}" * 1000)
    assert len(said) < 110
    assert max(map(len, said)) < 260


def test_lines_that_are_not_about_handshakes_pass() -> None:
    assert in_words(b"Traceback (most recent call last):\n") is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", "it does not accept this server's certificate"),
        (
            "UNSUPPORTED_PROTOCOL: Invalid certificate verification context",
            "it speaks an old version of TLS only",
        ),
        ("SOMETHING_NEW", "the handshake failed (SOMETHING_NEW)"),
    ],
)
def test_grpcs_lines_about_handshakes_are_put_in_words(line: str, words: str) -> None:
    said = f"I1117 ssl_transport_security.cc:2563] Handshake failed with error OPENSSL_internal:{line}\n"
    assert in_words(said.encode()) == f"a connection: {words}"


def test_a_caller_for_another_host_is_put_in_words_too() -> None:
    said = b"E1117 ssl_transport_security.cc:3238] No match found for server name: fl.example.org\n"
    assert in_words(said) == "a connection: it asks for fl.example.org, and server.pem is for others"
