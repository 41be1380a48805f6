"""Compares the models that clients have handed in, before they become x."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from common.records.cka import CkaRecord
from fedserver.run.round import Update
from fedserver.run.run import Run
from fedserver.worker.messages import MAX_CLIENTS
from fedserver.worker.process import TorchWorker


async def compared(
    run: Run, r: int, counted: Mapping[int, Update], worker: TorchWorker
) -> dict[str, float | None] | None:
    """Mean CKA over pairs of clients by layer, where x is evaluated; the pairs go to cka.jsonl."""
    config = run.config
    if not config.cka or not run.evaluates(r):
        return None
    some = dict(islice(counted.items(), MAX_CLIENTS))
    found = await worker.cka([run.spool.path(r, i) for i in some], config.cka, config.cka_estimator)
    record = CkaRecord(
        round=r,
        estimator=config.cka_estimator,
        images=found.images,
        minibatches=found.minibatches,
        clients=tuple(update.client for update in some.values()),
        layers=found.layers,
    )
    run.run_dir.append_cka(record)
    return record.means()
