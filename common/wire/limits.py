"""How large a message may be, and whether those of a run would be larger: better known before it starts.

Tensors travel in chunks, so a model of any size works. What grows with the number of tensors is the manifest
in a header, and what grows with the number of examples is the list of those that are assigned to a client.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ConfigError, WireError
from common.tensors.layout import Layout
from common.wire.bundles import BUNDLE_BYTES
from common.wire.encoding import Encoding
from common.wire.manifest import manifest, read_manifest
from fedpvr.v1 import federation_pb2 as pb

MAX_REQUEST_BYTES = BUNDLE_BYTES
"""Of a message to the server: a bundle of chunks. Bounds what a crowd of callers can make it hold."""
MAX_REPLY_BYTES = 4 << 20
"""Of a message to a client: gRPC's own default."""
MAX_JOIN_REPLY_BYTES = 64 << 20
"""Of the one reply that may be larger, as it lists the examples of a shard; the inspector reads as much."""
OTHER_FIELDS_BYTES = 4096
"""More than all fields of a header or a JoinReply take that do not grow with the model or the data."""
_FEWER = "choose a model with fewer tensors or shorter names, or a smaller --svr"


def require_announceable(down: Encoding, up: Encoding, variates: Layout) -> None:
    """Raises for a run with more or larger tensors than a header can announce; `variates` is c_i's layout."""
    tensors = [*manifest(down), *manifest(Encoding(variates))]
    try:
        read_manifest(tensors)
    except WireError as error:
        raise ConfigError(f"the tensors of this run cannot be sent: {error}; {_FEWER}") from error
    _require_fits("a round's header", pb.RoundHeader(tensors=tensors).ByteSize(), MAX_REPLY_BYTES, _FEWER)
    up_bytes = pb.UpdateHeader(tensors=manifest(up)).ByteSize()
    _require_fits("an update's header", up_bytes, MAX_REQUEST_BYTES, _FEWER)


def require_assignable(shards: Sequence[Sequence[int]], class_names: Sequence[str]) -> None:
    """Raises for a run with more examples in a shard, or more classes, than a JoinReply can name."""
    names_bytes = pb.ModelSpec(class_names=class_names).ByteSize()
    for i, shard in enumerate(shards):
        what = f"the list of the {len(shard)} examples of client {i}"
        num_bytes = names_bytes + pb.Shard(indices=shard).ByteSize()
        _require_fits(what, num_bytes, MAX_JOIN_REPLY_BYTES, "use more clients, so that each gets fewer")


def _require_fits(what: str, num_bytes: int, most: int, remedy: str) -> None:
    size = num_bytes + OTHER_FIELDS_BYTES
    if size > most:
        raise ConfigError(f"{what} would make a message of {size} bytes, at most {most} pass; {remedy}")
