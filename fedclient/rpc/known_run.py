"""What a client writes down of a run that it trains for."""

from __future__ import annotations

from common.records.client import KnownRun
from fedclient.rpc.seat import Seat
from fedclient.training.task import Task


def known_run(seat: Seat, task: Task) -> KnownRun:
    """The run as its seat and a round say it is."""
    rules, model, encoded = task.rules, seat.model, task.encoding.encoded
    return KnownRun(
        run_id=seat.run_id,
        index=seat.index,
        num_clients=seat.num_clients,
        seed=seat.seed,
        model=model.name,
        num_classes=model.num_classes,
        image_shape=model.image_shape,
        dtype=model.dtype,
        width=model.width,
        fingerprint=seat.fingerprint,
        class_names=seat.class_names,
        mean=seat.mean,
        std=seat.std,
        rounds=rules.rounds,
        local_epochs=rules.local_epochs,
        local_steps=rules.local_steps,
        batch_size=rules.batch_size,
        eta_l=rules.eta_l,
        momentum=rules.momentum,
        augment=rules.augment,
        validation=rules.validation,
        update_bytes=sum(spec.num_bytes for spec in encoded.specs),
        evaluates=seat.evaluates,
        loss=seat.loss,
        transform=seat.transform,
    )
