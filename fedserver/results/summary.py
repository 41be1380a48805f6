"""What a run that is over tells: how good the model is, who is in it and who is not, and what to do next."""

from __future__ import annotations

from pathlib import Path

from common.errors import LeftOutError
from common.events import Emit
from fedserver.events.clients import listed
from fedserver.events.left_out import RoundsWithout
from fedserver.events.run import (
    ClientLeftOut,
    FinishedBefore,
    MoreLeftOut,
    ResultsReady,
    RunFinished,
    TookPart,
)
from fedserver.members.members import Members
from fedserver.run.board import Board
from fedserver.run.run import Run
from fedserver.store.run_dir import MODEL

MOST_LINES = 10
"""Clients that get a line if they are left out."""


def tell_of_the_end(board: Board, members: Members, run_path: Path, emit: Emit) -> None:
    """Says it, and last of all who is missing; raises if that is somebody whom no setting leaves out."""
    attendance, history = board.attendance, board.history
    last, best = attendance.last, attendance.best
    emit(
        RunFinished(
            round=last[0] if last else 0,
            accuracy=last[1] if last else None,
            best_accuracy=best[1] if best else None,
            best_round=best[0] if best else 0,
            rounds=attendance.rounds,
            seconds=attendance.seconds,
            evaluation_seconds=attendance.evaluation_seconds,
            down_bytes=attendance.down_bytes,
            up_bytes=attendance.up_bytes,
        )
    )
    names = [] if attendance.unnamed else [member.name for member in members.in_order()]
    if names:
        counts = {name: attendance.rounds_of(name) for name in names}
        emit(TookPart(clients=counts, rounds=attendance.rounds, seats=members.num_clients))
    emit(ResultsReady(model=str(run_path / MODEL), run_dir=str(run_path)))
    if history.rounds_without:
        told = [(each.client, each.rounds, each.reason) for each in history.left_out()]
        emit(RoundsWithout(without=history.rounds_without, rounds=attendance.rounds, left_out=told))
    absences = sorted(attendance.absences(names), key=lambda absence: absence.took_part)
    for absence in absences[:MOST_LINES]:
        emit(
            ClientLeftOut(
                client=absence.client,
                took_part=absence.took_part,
                missed=absence.missed,
                reason=absence.reason,
            )
        )
    if len(absences) > MOST_LINES:
        emit(MoreLeftOut(clients=len(absences) - MOST_LINES))
    if lost := attendance.lost(names):
        raise LeftOutError(
            f"the run is finished, but went on without {listed(lost)}; the lines above say why"
        )


def tell_of_an_earlier_end(board: Board, run: Run, done: int, emit: Emit) -> None:
    """For a server that finds its run finished."""
    accuracy = None if board.last is None else board.last.accuracy
    folder = str(run.run_dir.path)
    emit(FinishedBefore(round=done, rounds=run.config.rounds, accuracy=accuracy, run_dir=folder))
