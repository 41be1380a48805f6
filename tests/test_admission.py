"""Who calls is found out once for every call, belongs to it alone, and is looked up, not read again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.access.certificates import CallerCertificate, Revocations, caller_certificate
from common.errors import AccessError, StateError
from common.events import unheard
from common.wire.calls import CALLS, Call
from fedserver.access import authenticate
from fedserver.access.admission import Admission
from fedserver.access.authenticate import Caller, CertificateAuthenticator, Refusals, TokenAuthenticator
from fedserver.keys.authority import Authority
from fedserver.keys.tokens import Tokens
from fedserver.rpc.endpoint import Endpoint

CALLERS = 30


class Echo:
    """A service that answers every call with the name of the caller, after a while."""

    def __getattr__(self, name: str) -> Callable[[Any, Caller], Any]:
        (call,) = [call for call in CALLS.values() if call.method == name]

        async def replying(request: Any, caller: Caller) -> bytes:
            if call.streams_requests:
                assert [frame async for frame in request] == [b"1", b"2"]
            await asyncio.sleep(0.01)
            return (caller.name or "nobody").encode()

        async def streaming(request: bytes, caller: Caller) -> AsyncIterator[bytes]:
            for _ in range(3):
                yield await replying(request, caller)

        return streaming if call.streams_replies else replying


class Counting:
    """Counts how often it is asked; the token is the name."""

    def __init__(self) -> None:
        self.asked = 0

    def admit(self, peer: str, pem: bytes | None, authorization: str) -> Caller:
        """Whoever it says it is."""
        self.asked += 1
        return Caller(peer, authorization)


async def named(channel: grpc.aio.Channel, call: Call, name: str) -> set[bytes]:
    """What the service answers to a caller."""
    metadata = (("authorization", name),)
    if call.streams_replies:
        stream: Any = channel.unary_stream(call.path)
        return {reply async for reply in stream(b"", metadata=metadata)}
    if call.streams_requests:
        push: Any = channel.stream_unary(call.path)
        return {await push(iter([b"1", b"2"]), metadata=metadata)}
    ask: Any = channel.unary_unary(call.path)
    return {await ask(b"", metadata=metadata)}


def test_every_call_has_its_own_caller_and_asks_once_who_it_is() -> None:
    async def run() -> int:
        authenticator, service = Counting(), Echo()
        endpoint = Endpoint(service, authenticator, Refusals(unheard))  # type: ignore[arg-type]
        server = grpc.aio.server(interceptors=[Admission(endpoint.admit)])
        server.add_generic_rpc_handlers((endpoint.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            names = [(call, f"{call.name}-{k}") for call in CALLS.values() for k in range(CALLERS)]
            replies = await asyncio.gather(*(named(channel, call, name) for call, name in names))
            assert replies == [{name.encode()} for _, name in names]
        await server.stop(None)
        return authenticator.asked

    assert asyncio.run(run()) == CALLERS * len(CALLS)


def test_a_certificate_is_parsed_once_and_revocation_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "certs"
    authority = Authority(folder)
    authority.init()
    authority.issue("a")
    parsed: list[bytes] = []

    def parse(pem: bytes) -> CallerCertificate:
        parsed.append(pem)
        return caller_certificate(pem)

    monkeypatch.setattr(authenticate, "caller_certificate", parse)
    revocations = Revocations(folder / "crl.pem", folder / "ca.pem", unheard)
    authenticator = CertificateAuthenticator(revocations)
    pem = (folder / "a.pem").read_bytes()
    callers = [authenticator.admit("peer", bytes(bytearray(pem)), "") for _ in range(5)]
    assert {caller.name for caller in callers} == {"a"}
    assert len(parsed) == 1
    callers[0].require_admitted()
    authority.revoke("a")
    for check in (callers[0].require_admitted, lambda: authenticator.admit("peer", pem, "")):
        with pytest.raises(AccessError, match="the certificate of a was revoked"):
            check()
    authority.issue("a", renew=True)
    assert authenticator.admit("peer", (folder / "a.pem").read_bytes(), "").name == "a"
    assert len(parsed) == 2


def test_a_token_record_is_read_once_for_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(tmp_path)
    tokens.issue("a")
    secret = (tmp_path / "a.token").read_text().strip()
    reads: list[str] = []
    read_text = Path.read_text

    def counted(self: Path, *arguments: Any, **named: Any) -> str:
        reads.append(self.name)
        return read_text(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", counted)
    server = TokenAuthenticator(Tokens(tmp_path))
    caller = server.admit("peer", None, f"Bearer {secret}")
    for _ in range(5):
        caller.require_admitted()
        assert server.admit("peer", None, f"Bearer {secret}").name == "a"
    assert reads == ["a.json"]
    Tokens(tmp_path).revoke("a")
    with pytest.raises(AccessError, match="the token of a was revoked"):
        caller.require_admitted()
    Tokens(tmp_path).issue("a", renew=True)
    with pytest.raises(AccessError, match="not known here"):
        caller.require_admitted()
    (tmp_path / "a.json").unlink()
    with pytest.raises(AccessError, match="not known here"):
        caller.require_admitted()


def test_a_token_that_expires_while_its_record_is_kept_is_noticed(tmp_path: Path) -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    tokens = Tokens(tmp_path, clock=lambda: now[0])
    tokens.issue("a", days=1)
    secret = (tmp_path / "a.token").read_text().strip()
    assert tokens.holder_of(secret).name == "a"
    now[0] += timedelta(days=2)
    with pytest.raises(AccessError, match="the token of a expired on 2026-01-02"):
        tokens.holder_of(secret)


def test_a_record_without_a_time_zone_is_damaged_and_says_so(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    tokens.issue("a")
    path = tmp_path / "a.json"
    record = json.loads(path.read_text())
    record["valid_until"] = "2030-01-01T00:00:00"
    path.write_text(json.dumps(record))
    for ask in (tokens.show, lambda: tokens.holder_of("a:secret"), lambda: tokens.issue("a")):
        with pytest.raises(StateError, match=r"a\.json is damaged: .* has no time zone.*--renew"):
            ask()
    tokens.issue("a", renew=True)
    assert tokens.holder_of((tmp_path / "a.token").read_text().strip()).name == "a"
