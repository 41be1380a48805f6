"""What a client may see of a status: how the run goes, its own part, and how many others there are."""

from __future__ import annotations

from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.rpc.sites import own_sites


def seen_by(caller: Caller, status: pb.StatusReply) -> pb.StatusReply:
    """All of it for an operator, and for everybody where nobody is asked who he is."""
    return status if caller.is_operator else own_view(status, caller.name or "")


def own_view(status: pb.StatusReply, name: str) -> pb.StatusReply:
    """The status as the client of this name sees it. What is not named here is an operator's."""
    own = [client for client in status.clients if client.name == name]
    view = pb.StatusReply(
        run_id=status.run_id,
        algorithm=status.algorithm,
        model=status.model,
        dataset=status.dataset,
        phase=status.phase,
        round=status.round,
        rounds=status.rounds,
        num_clients=status.num_clients,
        needed=status.needed,
        clients=own,
        traffic=[count for count in status.traffic if count.client == name],
        others=len(status.clients) - len(own),
        left_out=[each for each in status.left_out if each.client == name],
        evaluations=status.evaluations,
        round_seconds=status.round_seconds if status.HasField("round_seconds") else None,
        lost=[each for each in status.lost if each == name],
    )
    if status.HasField("last"):
        view.last.CopyFrom(status.last)
    if status.HasField("sites"):
        view.sites.CopyFrom(own_sites(status.sites, name))
    return view
