"""The numbers of a closed round under the names that trackers show."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice

from common.records.rounds import RoundRecord

MOST_NAMES = 100
"""Layers and sites that get curves of their own."""
_FOREIGN = re.compile(r"[^\w.\-/ ]", re.ASCII)


def scalars(record: RoundRecord) -> dict[str, float]:
    """What is known so far of a round; a number that is not finite, or not there yet, is left out."""
    return {
        _FOREIGN.sub("_", name): float(value)
        for name, value in _numbers(record)
        if value is not None and math.isfinite(value)
    }


def _numbers(record: RoundRecord) -> Iterator[tuple[str, float | None]]:
    for name in ("accuracy", "loss", "train_loss", "validation_accuracy", "head_gap", "updates", "eta_l"):
        yield name, getattr(record, name)
    for direction, counts in vars(record.bytes).items():
        for purpose, count in counts.by_name().items():
            yield f"bytes/{direction}/{purpose}", count
    for what, seconds in vars(record.seconds).items():
        yield f"seconds/{what}", seconds
    yield "norm/c", record.norms.c
    for layer, xi in islice(record.layer_drift.items(), MOST_NAMES):
        yield f"drift/{layer}", xi
    if record.sites is not None:
        for metric, value in record.sites.metrics.items():
            yield f"sites/{metric}", value
        for client, site in islice(record.sites.sites.items(), MOST_NAMES):
            for metric, value in site.metrics.items():
                yield f"site/{client}/{metric}", value
