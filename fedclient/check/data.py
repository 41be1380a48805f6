"""The examples of this site, held against the run's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from common.data import datasets
from common.errors import FedError
from common.events import Event
from common.names import class_number
from fedclient.check.findings import Finding, error, failed, ok, skipped, warning
from fedclient.config import ClientConfig
from fedclient.flags import Flags
from fedclient.own_data import OwnData
from fedclient.rpc.probe import Terms
from fedclient.rpc.seat import Seat
from fedclient.run.demands import Demands
from fedclient.run.live import own_data
from fedclient.run.prepare import examples_for

NAMED = 10


@dataclass(frozen=True)
class Brought:
    """Data that a client brings along, or why there are none."""

    own: OwnData | None
    finding: Finding


def brought(flags: Flags) -> Brought:
    """Reads them; what is broken is told."""
    told: list[Event] = []
    try:
        own = own_data(flags, told.append)
    except (FedError, OSError) as reason:
        return Brought(None, failed("data", reason))
    if own is None:
        return Brought(None, skipped("data", "none of its own"))
    found = f"{own.examples} examples, {len(own.class_names)} classes"
    if told:
        troubles = "; ".join(event.text() for event in told)
        remedy = "repair or remove them; a client leaves them out in every run"
        return Brought(own, warning("data", f"{found}; {troubles}", remedy))
    return Brought(own, ok("data", found))


def assigned(flags: Flags, terms: Terms) -> tuple[int, Finding]:
    """How many examples a client gets that brings none, and whether what they are taken from is here."""
    seat = terms.seat
    if seat.dataset is None:
        return 0, error(
            "data", "the run has no examples to give, and this client brings none", "give --data or --dataset"
        )
    told: list[Event] = []
    try:
        flags.site.require_dataset(seat.dataset)
        train = datasets.load(seat.dataset, "train", flags.data_dir, emit=told.append)
    except (FedError, OSError) as reason:
        return 0, failed("data", reason)
    found = f"the server assigns a shard of {seat.dataset}, which has {len(train.labels)} examples here"
    share = max(len(train.labels) // max(seat.num_clients, 1), 1)
    if told:
        remedy = "server and clients need the same pictures; see to them on all sides"
        return share, warning("data", f"{found}; {told[0].text()}", remedy)
    return share, ok("data", found)


def unknown_classes(own: OwnData, seat: Seat) -> Finding | None:
    """Classes that the run does not have; None if it has all of them."""
    strange = [name for name in own.class_names if class_number(name, seat.class_names) is None]
    if not strange:
        return None
    remedy = "name folders or classes as the run does, or leave these out; it has " + _some(seat.class_names)
    return error("classes", f"the run does not have {_some(strange)}", remedy)


def classes_finding(labels: datasets.Labels, class_names: tuple[str, ...]) -> Finding:
    """Which classes of the run have no examples here."""
    counts = np.bincount(labels, minlength=len(class_names))
    missing = [name for name, number in zip(class_names, counts, strict=False) if not number]
    if missing:
        remedy = "fine if this site has none; else look for their folder"
        return warning("classes", f"no examples of {_some(missing)}", remedy)
    return ok("classes", f"all {len(class_names)} of the run, the rarest with {counts.min()} examples")


def _some(names: list[str] | tuple[str, ...]) -> str:
    others = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {others} others" if others > 0 else "")


def fitted(config: ClientConfig, terms: Terms, examples: int) -> tuple[datasets.Dataset | None, Finding]:
    """The examples as the run wants them."""
    seat = terms.seat
    if config.own_data is None:
        seat = replace(seat, indices=list(range(examples)))
    try:
        demands = Demands(seat, config.site, own_data=config.own_data is not None)
        dataset = examples_for(config, seat, demands, lambda event: None)
    except (FedError, OSError) as reason:
        return None, failed("shape", reason)
    shape = "x".join(map(str, dataset.image_shape))
    return dataset, ok("shape", f"{len(dataset.labels)} examples of {shape}, {dataset.model_dtype}")
