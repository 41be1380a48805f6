"""Every call of the service is answered, carried, counted, shown, fuzzed, guarded and documented.

A call that is added to federation.proto and forgotten in one of these places fails here.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from common import errors
from common.access.credentials import Credentials
from common.errors import AccessError, CertificateError, FedError, JoinError, UnavailableError
from common.events import unheard
from common.wire.calls import CALLS, Call
from common.wire.capture import CaptureWriter
from common.wire.limits import MAX_JOIN_REPLY_BYTES, MAX_REPLY_BYTES, MAX_REQUEST_BYTES
from common.wire.messages import CallReader
from common.wire.statuses import MEANINGS, OTHER, error_of, status_of
from fedclient.transport.base import Transport
from fedclient.transport.captured import CapturedTransport
from fedclient.transport.grpc_transport import GrpcTransport
from fedclient.transport.paced import Pace, PacedTransport
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.config import RunConfig
from fedserver.members.members import Members
from fedserver.rpc.service import Service
from fedserver.run.board import Board
from fedserver.traffic.traffic import Traffic
from fedwire.message import inspect as shown
from fedwire.source import Capture
from tests import attackers
from tests.fuzz import frames as fuzzed_frames
from tests.fuzz import server as fuzzed_server
from tests.fuzz.mutators import script
from tests.processes import Federation
from tests.samples import request, sample

ROOT = Path(__file__).parent.parent
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")


@dataclass(frozen=True)
class Served:
    """A server to which every call was made once, through all transports of a client."""

    folder: Path
    outcomes: dict[str, str]


def carried(transport: Transport, call: Call) -> str:
    """What becomes of a call whose request has something in every field, but is of no run."""
    try:
        if call.streams_requests:
            transport.push(call, iter([request(call)]))
        elif call.streams_replies:
            list(transport.pull(call, request(call)))
        else:
            transport.ask(call, request(call))
    except FedError as error:
        return type(error).__name__
    return "answered"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both sides write down what passes."""
    folder = tmp_path_factory.mktemp("calls")
    federation = Federation(folder)
    address = federation.server("--num-clients", "2", "--capture", "server.fedwire")
    capture = CaptureWriter(folder / "client.fedwire", unheard)
    paced = PacedTransport(GrpcTransport(address, Credentials()), Pace(1e9), Pace(1e9))
    transport = CapturedTransport(paced, capture, itertools.count())
    outcomes = {call.name: carried(transport, call) for call in CALLS.values()}
    transport.close()
    capture.close()
    federation.stop("server")
    yield Served(folder, outcomes)
    federation.close()


def test_the_table_is_the_service_and_its_messages_are_the_generated_ones() -> None:
    service = pb.DESCRIPTOR.services_by_name["Federation"]
    assert list(CALLS) == [method.name for method in service.methods]
    assert (CALLS["Join"].request, CALLS["Join"].reply) == (pb.JoinRequest, pb.JoinReply)
    assert CALLS["PullRound"].path == "/fedpvr.v1.Federation/PullRound"
    assert CALLS["PullRound"].method == "pull_round"
    forms = {name: (call.streams_requests, call.streams_replies) for name, call in CALLS.items()}
    assert forms["Join"] == (False, False)
    assert forms["PullRound"] == (False, True)
    assert forms["PushUpdate"] == (True, False)


@every_call
def test_every_call_has_a_method_of_the_service_in_its_form(call: Call) -> None:
    method = getattr(Service, call.method)
    assert inspect.isasyncgenfunction(method) is call.streams_replies
    assert inspect.iscoroutinefunction(method) is not call.streams_replies


@every_call
def test_every_call_reaches_the_service(served: Served, call: Call) -> None:
    """A strange request is refused for what is in it; a call that is not there would be another release's."""
    assert served.outcomes[call.name] in ("answered", "JoinError", "UnknownClientError")


@every_call
@pytest.mark.parametrize("side", ["client", "server"])
def test_every_call_is_captured_classified_and_shown(served: Served, call: Call, side: str) -> None:
    found = 0
    # The samples are of a run that is not the server's; the server's own is named in its reply to Status.
    for run in ("somebody", None):
        with Capture(served.folder / f"{side}.fedwire", lambda line: None, run) as capture:
            for message in capture.messages:
                if message.rpc == call.name:
                    found += 1
                    assert message.content.kind in (("request", "header") if message.up else ("reply",))
                    kind = call.request if message.up else call.reply
                    assert shown(capture, message.number).fields or not kind.DESCRIPTOR.fields
    assert found


@every_call
def test_every_call_is_counted_by_its_name(served: Served, call: Call) -> None:
    traffic = json.loads((served.folder / "run" / "traffic.json").read_text())["traffic"]
    sent = {name: encoded for name, (_, encoded) in traffic[""]["up"]["other"].items()}
    (key,) = [name for name in sent if name.startswith(f"{call.name} ")]
    assert sent[key] == len(request(call))


@every_call
def test_what_a_request_tells_of_its_client_is_learned(call: Call) -> None:
    reader = CallReader(call.name)
    assert reader.note(True, request(call)).kind in ("request", "header")
    assert (reader.client == "somebody") is (b"somebody" in request(call))
    assert CallReader(call.name).note(True, b"\xff" * 9).kind == "unreadable"
    assert CallReader(call.name).note(False, b"\xff" * 9).kind == "unreadable"


@every_call
def test_nobody_calls_for_somebody_else(call: Call) -> None:
    """A call with a field for the client's name is refused to all others before anything else is read."""
    if b"somebody" not in request(call):
        assert call.name in ("Status", "WatchStatus"), (
            "a call that names no client is open to every member of the federation"
        )
        return

    async def made() -> None:
        members = Members(1)
        traffic = Traffic(lambda name: False)
        service = Service(RunConfig(num_clients=1), "r", members, Board(), traffic, unheard)
        method, data = getattr(service, call.method), request(call)
        other = Caller("ipv4:127.0.0.1:1", "other")
        if call.streams_replies:
            await anext(method(data, other))
        else:
            await method(_stream(data) if call.streams_requests else data, other)

    with pytest.raises(AccessError, match=r"this is (client )?'other', "):
        asyncio.run(made())


async def _stream(*frames: bytes) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame


def test_every_call_is_fuzzed_and_attacked() -> None:
    parts = [part for seed in fuzzed_server.call_seeds() for part in script(seed[1:])]
    assert {fuzzed_server.called(part).name for part in parts} == set(CALLS)
    assert set(fuzzed_frames.RPCS) == {*CALLS, ""}
    assert [call.path for call in CALLS.values()] == attackers.PATHS


def test_the_documents_have_every_call_their_number_and_the_limits() -> None:
    wire, security, contract = (
        (ROOT / name).read_text()
        for name in ("docs/wire.md", "docs/security.md", "proto/fedpvr/v1/federation.proto")
    )
    for name in CALLS:
        assert f"**{name}**" in wire, f"docs/wire.md, section 3: {name}"
        assert name in security, name
    listed = re.findall(r"One service, `fedpvr\.v1\.Federation`, (\w+) calls", wire)
    listed += re.findall(r"all (\w+) calls", wire)
    assert listed == [NUMBERS[len(CALLS)]] * 2
    files = list((ROOT / "proto" / "fedpvr" / "v1").glob("*.proto"))
    assert f"`proto/fedpvr/v1/`, {NUMBERS[len(files)]} files" in wire
    for path in files:
        assert f"`{path.name}`" in wire, path.name
    sizes = [_size(number) for number in (MAX_REQUEST_BYTES, MAX_REPLY_BYTES, MAX_JOIN_REPLY_BYTES)]
    for text in (wire, contract):
        for size in sizes:
            assert size in text, size
    assert sizes[0] in security


def _size(number: int) -> str:
    parts = [f"{number >> 20} MiB", f"{number % (1 << 20) >> 10} KiB"]
    return " and ".join(part for part in parts if not part.startswith("0 "))


def test_errors_and_status_codes_are_one_table() -> None:
    for meaning in MEANINGS:
        assert meaning.status in grpc.StatusCode.__members__
        for kind in meaning.raised:
            error = kind(errors.Fault.MALFORMED, "x") if issubclass(kind, errors.WireError) else kind("x")
            assert status_of(error) == meaning.status
            assert type(error_of(meaning.status, "x")) is meaning.seen_as
    assert status_of(OSError()) == OTHER
    assert type(error_of(OTHER, "x")) is UnavailableError, "the disk of a server may be well again"
    crossing = {kind for meaning in MEANINGS for kind in meaning.raised}
    here: set[type[FedError]] = {
        errors.ConfigError,
        errors.DataError,
        errors.StateError,
        errors.DiskError,
        errors.LaterReleaseError,
        errors.RunError,
    }
    here |= {errors.RefusedError}  # It ends the client; the server hears of it in an update's place.
    here |= {errors.DivergedError, errors.LeftOutError, errors.CancelledError}
    by_grpc = {errors.TooLargeError, errors.NoConnectionError, errors.OverdueError}
    assert set(_kinds(FedError)) == crossing | here | by_grpc, "a new error needs a status"
    assert {CertificateError, JoinError} < crossing


def _kinds(kind: type[FedError]) -> Iterator[type[FedError]]:
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield below
            yield from _kinds(below)


def test_samples_have_something_in_every_field() -> None:
    header = sample(pb.UpdateFrame).header
    assert {field.name for field, _ in header.ListFields()} == {
        field.name for field in header.DESCRIPTOR.fields
    }
