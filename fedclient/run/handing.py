"""An update on its way from training to the server."""

from __future__ import annotations

from common.metrics import drift
from common.metrics.message import to_message
from fedclient.rpc.seat import Seat
from fedclient.store.stored_update import StoredUpdate
from fedclient.training.task import Task, Update


def to_hand_in(task: Task, update: Update, seat: Seat, canary_s: float | None) -> StoredUpdate:
    """What is kept on disk until the server has counted it."""
    found = update.evaluation
    return StoredUpdate(
        round=update.round,
        encoding=task.encoding,
        payload=update.payload,
        steps=update.steps,
        loss=update.loss,
        validation_accuracy=update.validation_accuracy,
        seconds=update.seconds,
        evaluation=None if found is None else to_message(found, seat.model.num_classes),
        canary_pull_seconds=canary_s,
        measures=None if update.drift is None else drift.to_message(update.drift),
    )
