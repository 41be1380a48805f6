"""Messages at their limits: what may be large gets through, what may not is refused in a line, early."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from common.access.credentials import Credentials
from common.errors import ConfigError, JoinError, TooLargeError, WireError
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire import limits
from common.wire.calls import CALLS, SERVICE
from common.wire.encoding import Encoding
from common.wire.limits import MAX_JOIN_REPLY_BYTES, MAX_REPLY_BYTES, require_announceable, require_assignable
from common.wire.manifest import MAX_TENSORS
from fedclient.transport.grpc_transport import GrpcTransport
from tests.processes import Federation


@contextmanager
def answering(num_bytes: int) -> Iterator[str]:
    """A server whose every reply has this many bytes."""

    def reply(request: bytes, context: grpc.ServicerContext) -> bytes:
        return bytes(num_bytes)

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield bytes(num_bytes)

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        call.name: grpc.unary_stream_rpc_method_handler(stream)
        if call.streams_replies
        else grpc.unary_unary_rpc_method_handler(reply)
        for call in CALLS.values()
    }
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_of_all_replies_only_that_to_join_may_be_large() -> None:
    with answering(MAX_REPLY_BYTES + 1) as address:
        transport = GrpcTransport(address, Credentials())
        assert len(transport.ask(CALLS["Join"], b"")) == MAX_REPLY_BYTES + 1
        for call in CALLS.values():
            if call.name != "Join":
                with pytest.raises(TooLargeError, match=r"too large for gRPC: .*; smaller shards"):
                    next(transport.pull(call, b"")) if call.streams_replies else transport.ask(call, b"")
        transport.close()
    with answering(MAX_JOIN_REPLY_BYTES + 1) as address:
        transport = GrpcTransport(address, Credentials())
        with pytest.raises(TooLargeError):
            transport.ask(CALLS["Join"], b"")
        transport.close()


def test_a_request_that_is_too_large_is_no_missing_seat(federation: Federation) -> None:
    """Both end as RESOURCE_EXHAUSTED; the server says the one, gRPC the other."""
    federation.server("--num-clients", "2")
    transport = GrpcTransport(federation.address, Credentials())
    with pytest.raises(TooLargeError, match="larger than max"):
        transport.ask(CALLS["Join"], b"\x12" + bytes(1_200_000))
    with pytest.raises(JoinError, match="a client name has"):
        transport.ask(CALLS["Join"], b"\x08\x01\x12\x01/")
    transport.close()


def run_of(num_tensors: int, name: str = "w", *purposes: Purpose) -> Layout:
    """That many tensors of each purpose."""
    return Layout(
        TensorSpec(f"{name}{k}", "float32", (1,), purpose)
        for purpose in purposes or (Purpose.MODEL,)
        for k in range(num_tensors)
    )


NOTHING = Layout([])


def test_a_run_with_as_many_tensors_as_can_be_announced_starts() -> None:
    encoding = Encoding(run_of(MAX_TENSORS, "layer."))
    require_announceable(encoding, encoding, NOTHING)


@pytest.mark.parametrize(
    ("layout", "variates", "line"),
    [
        (run_of(MAX_TENSORS + 1), NOTHING, "at most 20000 tensors can be announced, got 20001"),
        (
            run_of(7000, "w", Purpose.MODEL, Purpose.CONTROL),
            run_of(7000, "w", Purpose.CLIENT_CONTROL),
            "at most 20000 tensors can be announced, got 21000",
        ),
        (run_of(1, "w" * 600), NOTHING, "a tensor name has 1 to 512 bytes"),
        (run_of(15_000, "block." * 12), NOTHING, r"an update's header would make a message of \d+ bytes"),
    ],
    ids=["many", "many with c and c_i", "long name", "long names"],
)
def test_a_run_whose_tensors_no_header_can_announce_does_not_start(
    layout: Layout, variates: Layout, line: str
) -> None:
    encoding = Encoding(layout)
    with pytest.raises(ConfigError, match=f"{line}.*; choose a model with fewer tensors") as caught:
        require_announceable(encoding, encoding, variates)
    assert "\n" not in str(caught.value)


def test_a_run_whose_shards_no_reply_can_list_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_JOIN_REPLY_BYTES", 1 << 16)
    shards = [[1], range(2**28, 2**28 + 12_000)]
    require_assignable(shards, ["cat"])
    line = (
        r"the list of the 12300 examples of client 1 would make a message of 65600 bytes, .* use more clients"
    )
    with pytest.raises(ConfigError, match=line):
        require_assignable([[1], range(2**28, 2**28 + 12_300)], [])
    with pytest.raises(ConfigError, match="use more clients"):
        require_assignable(shards, ["a class with a name of some length"] * 100)


LONG_NAMES = """
from torch import nn

class network(nn.Linear):
    def __init__(self, num_classes):
        super().__init__(6, num_classes)
        for k in range(1200):
            self.add_module("a_name_that_says_very_much_about_itself_" * 12 + str(k), nn.Linear(1, 1))
"""


def test_a_server_with_such_a_model_ends_in_a_line(federation: Federation) -> None:
    (federation.folder / "long.py").write_text(LONG_NAMES)
    flags = "--model long:network --dataset problem:data --num-clients 1 --svr none"
    federation.start("server", "fedserver", "run", "--listen", "127.0.0.1:0", *flags.split())
    assert federation.exit_code("server") == 2
    line = federation.log("server").splitlines()[-1]
    assert line.startswith("Error: an update's header would make a message of ")
    assert line.endswith("choose a model with fewer tensors or shorter names, or a smaller --svr")


MANY = """
import numpy as np
from torch import nn

def network(num_classes):
    return nn.Linear(1, num_classes)

def data(split):
    n = 1_600_000 if split == "train" else 10
    return np.zeros((n, 1), np.float32), np.arange(n) % 2
"""


@pytest.mark.slow
def test_a_shard_whose_list_is_larger_than_grpcs_default_reaches_its_client(federation: Federation) -> None:
    """1.6 million examples for one client: their numbers take more than 4 MiB."""
    (federation.folder / "many.py").write_text(MANY)
    flags = "--model many:network --dataset many:data --num-clients 1 --rounds 1 --local-steps 1 --svr none"
    federation.server(*flags.split())
    federation.client("a")
    federation.finish()
    assert "1600000 examples" in federation.log("a")
    traffic = federation.folder / "run" / "traffic.json"
    assert '"Join reply"' in traffic.read_text()
    (record,) = federation.rounds()
    assert record["updates"] == 1


def test_a_manifest_at_the_limit_is_still_checked_by_its_receiver() -> None:
    from common.wire.manifest import manifest, read_manifest

    announced = manifest(Encoding(run_of(MAX_TENSORS)))
    assert len(read_manifest(announced).layout.specs) == MAX_TENSORS
    with pytest.raises(WireError, match="at most"):
        read_manifest([*announced, announced[0]])
