"""What a person wants to know first of a client."""

from __future__ import annotations

from fedserver.members.members import Members
from fedserver.run.board import Board, Phase


def client_state(board: Board, members: Members, i: int) -> str:
    """In a word or three: what client i does, or that it is not there."""
    presence, current = members.presence, board.round
    if i in members.gone:
        return "left"
    if presence.is_stopped(i):
        return "stopped"
    if members.is_gone(i):
        return "gone"
    if presence.is_missing(i) and board.phase is not Phase.FINISHED:
        return "not heard of"
    if current is None or i not in current.answers:
        return "waiting"
    return presence.works(i, current.number) if current.waits_for(i) else "answered"
