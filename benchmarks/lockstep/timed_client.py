"""Real clients that pull and push on command: `timed_client.py FDS ADDRESS MODEL`.

`fedclient run` as it is, but that its calls for a round and for an update wait for the word, and say when
they are done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from lockstep.crew import Member, serve
from measure.federation import client_flags


def become(member: Member, i: int) -> None:
    """One client."""
    from fedclient import cli
    from fedclient.transport.grpc_transport import GrpcTransport

    pull, push = GrpcTransport.pull, GrpcTransport.push

    def timed_pull(self: GrpcTransport, call: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
        if call.name != "PullRound":
            yield from pull(self, call, *arguments, **named)
            return
        member.ready("down")
        try:
            yield from pull(self, call, *arguments, **named)
        finally:
            member.done()
        # What a round has beside transfers takes nothing from those of others.
        member.ready("train")
        member.done()

    def timed_push(self: GrpcTransport, call: Any, *arguments: Any, **named: Any) -> Any:
        member.ready("up")
        reply = push(self, call, *arguments, **named)
        member.done()
        return reply

    GrpcTransport.pull, GrpcTransport.push = timed_pull, timed_push  # type: ignore[method-assign]
    cli.main(client_flags(sys.argv[3], i, sys.argv[2]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(become)
