"""The x of a run that goes on, from its server, as a client gets it for a round."""

from __future__ import annotations

from common.access.credentials import Access
from common.errors import RunError, UnavailableError, WrongRunError
from common.tensors.layout import Flat, Layout
from fedclient.own_data import OwnData
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.round_stream import RunEnded, UpdateLost
from fedclient.transport.grpc_transport import GrpcTransport


def fetched(server: str, name: str, access: Access, own: OwnData, run_id: str, model: Layout) -> Flat:
    """x of the open round, or of the next one that this client is drawn for; nothing is trained or sent."""
    with Connection(GrpcTransport(server, access.read()), name) as connection:
        seat = connection.join((own.examples, own.class_names))
        if seat.run_id != run_id:
            raise WrongRunError(f"{server} runs {seat.run_id}, the state directory has {run_id}; give --run")
        answer = connection.pull(seat.run_id, 0, [], model, Download())
    if isinstance(answer, RunEnded):
        raise RunError("the run is over; ask its operator for model.safetensors and give --model FILE")
    if isinstance(answer, UpdateLost):
        raise UnavailableError(f"{server} waits for an update; start the client, or try again later")
    return answer.task.broadcast[: model.num_bytes].copy()
