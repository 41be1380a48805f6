"""A server that asks its clients for things that no client should do; a client's name says which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import grpc

from common.models.build import build_model, tensor_specs
from common.models.spec import ModelSpec
from common.tensors.layout import Layout, Purpose, TensorSpec, fingerprint
from common.wire.bundles import bundles
from common.wire.calls import CALLS, SERVICE
from common.wire.encoding import Encoding
from common.wire.manifest import manifest
from fedpvr.v1 import federation_pb2 as pb

SPEC = ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8), width=0.25)


@cache
def model() -> Layout:
    """The tensors of an honest run."""
    return Layout(tensor_specs(build_model(SPEC, 0)))


def seat(change: Callable[[pb.JoinReply], object] = lambda reply: None) -> pb.JoinReply:
    """A good seat, and what is bad about it."""
    reply = pb.JoinReply(
        run_id="a1",
        num_clients=1,
        model=pb.ModelSpec(
            name=SPEC.name,
            num_classes=SPEC.num_classes,
            image_shape=SPEC.image_shape,
            dtype=SPEC.dtype,
            width=SPEC.width,
            fingerprint=fingerprint(model().specs),
            class_names=map(str, range(10)),
            mean=[0.3],
            std=[0.3],
        ),
        shard=pb.Shard(dataset="digits", indices=range(50)),
    )
    change(reply)
    return reply


def round_of(change: Callable[[pb.RoundHeader], object] = lambda header: None) -> Iterator[bytes]:
    """A good round, and what is bad about it."""
    header = pb.RoundHeader(
        round=1,
        rounds=2,
        local_steps=1,
        batch_size=10,
        eta_l=0.1,
        algorithm="fedavg",
        num_clients=1,
        eta_g=1,
        weighting="uniform",
        tensors=manifest(Encoding(model())),
    )
    change(header)
    yield pb.RoundFrame(header=header).SerializeToString()
    for message in bundles(model(), model().allocate()):
        yield message.data


def many_tensors(header: pb.RoundHeader, count: int) -> None:
    """Announces that many small ones."""
    specs = [TensorSpec(f"w{k}", "float32", (1,), Purpose.MODEL) for k in range(count)]
    del header.tensors[:]
    header.tensors.extend(manifest(Encoding(Layout(specs))))


class Hostile:
    """What the server has heard."""

    def __init__(
        self, seats: dict[str, pb.JoinReply], rounds: dict[str, Callable[[], Iterator[bytes]]]
    ) -> None:
        self._seats = seats
        self._rounds = rounds
        self.address = ""
        self.calls: dict[str, Counter[str]] = defaultdict(Counter)
        """By client and name of the call."""
        self.reasons: dict[str, str] = {}
        """Of clients that left."""
        self.rules: dict[str, str] = {}
        """Of the sites of clients that left."""

    def join(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """A seat that is bad, or one in a run that is."""
        name = pb.JoinRequest.FromString(request).client
        self.calls[name]["Join"] += 1
        return self._seats.get(name, seat()).SerializeToString()

    def pull_round(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """A bad round."""
        name = pb.PullRoundRequest.FromString(request).client
        self.calls[name]["PullRound"] += 1
        return self._rounds[name]() if name in self._rounds else round_of()

    def push_update(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Thanks."""
        header = pb.UpdateFrame.FromString(next(frames)).header
        self.calls[header.client]["PushUpdate"] += 1
        if header.leaving:
            self.reasons[header.client] = header.declined
            self.rules[header.client] = header.refused_rule
        for _ in frames:
            pass
        return pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED).SerializeToString()

    def renew(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Noted."""
        self.calls[pb.RenewRequest.FromString(request).client]["Renew"] += 1
        return b""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serves while the block runs."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Join": grpc.unary_unary_rpc_method_handler(self.join),
            "PullRound": grpc.unary_stream_rpc_method_handler(self.pull_round),
            "PushUpdate": grpc.stream_unary_rpc_method_handler(self.push_update),
            "Renew": grpc.unary_unary_rpc_method_handler(self.renew),
        }
        assert methods.keys() <= CALLS.keys()
        with ThreadPoolExecutor(16) as pool:
            server = grpc.server(pool, options=[("grpc.max_send_message_length", -1)])
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
            self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            server.start()
            try:
                yield
            finally:
                server.stop(None).wait()
