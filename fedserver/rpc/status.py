"""What a run is doing, as the message that tells it."""

from __future__ import annotations

from fedpvr.v1 import federation_pb2 as pb
from fedserver.run.federation import Federation


def reply(federation: Federation) -> pb.StatusReply:
    """The status of a run."""
    config = federation.config
    status = pb.StatusReply(
        run_id=federation.run_id,
        algorithm=config.algorithm,
        model=config.model,
        dataset=config.dataset,
        phase=pb.StatusReply.Phase.Value(federation.phase.name),
        round=federation.round.number if federation.round else 0,
        rounds=config.rounds,
        num_clients=config.num_clients,
        clients=_clients(federation),
        bytes=[
            pb.TrafficCount(direction=direction, purpose=purpose, bytes=count)
            for direction, counts in federation.traffic.by_purpose().items()
            for purpose, count in counts.items()
        ],
        traffic=[
            pb.ClientTraffic(
                client=client, direction=direction, payload=payload, encoded=encoded, socket=socket
            )
            for (client, direction), (payload, encoded, socket) in federation.traffic.by_client().items()
        ],
    )
    if federation.last is not None:
        last = federation.last
        status.last.CopyFrom(pb.RoundResult(round=last.round, accuracy=last.accuracy, loss=last.loss))
    return status


def _clients(federation: Federation) -> list[pb.ClientStatus]:
    waiting = [pb.ClientStatus(name=name, state="waiting") for name in federation.members.waiting]
    members = sorted(federation.members.by_name.values(), key=lambda member: member.index)
    return waiting + [
        pb.ClientStatus(
            name=member.name,
            index=member.index,
            examples=member.examples,
            counted_round=federation.variates.counted.get(member.index, 0),
            state=_state(federation, member.index),
        )
        for member in members
    ]


def _state(federation: Federation, i: int) -> str:
    if federation.is_gone(i):
        return "gone"
    return "training" if federation.round is not None and federation.round.waits_for(i) else "answered"
