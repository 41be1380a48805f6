"""The answer to a round that asks for an evaluation and nothing else."""

from __future__ import annotations

from common.errors import UnavailableError
from common.events import Emit
from common.tensors.layout import Flat
from fedclient.evaluation.events import Evaluated, EvaluationRejected
from fedclient.rpc.connection import Connection
from fedclient.rpc.round_stream import ON_THE_WAY
from fedclient.rpc.seat import Seat
from fedclient.training.task import Task
from fedclient.training.train import Trainer


def report_evaluation(
    connection: Connection, seat: Seat, trainer: Trainer, task: Task, personal: Flat, emit: Emit
) -> None:
    """Evaluates x and tells the server; if the connection breaks, the server asks once more."""
    found, r = trainer.evaluate(task, personal), task.round
    if found is None:
        connection.decline(seat, r, "there are no examples to evaluate on")
        return
    reply = connection.report(seat, r, found)
    if reply.outcome == "REJECTED":
        if reply.fault in ON_THE_WAY:
            raise UnavailableError(f"{reply.message}; asking again")
        emit(EvaluationRejected(round=r - 1, reason=reply.message))
        connection.decline(seat, r, reply.message)
        return
    emit(Evaluated(round=r - 1, examples=found.examples))
