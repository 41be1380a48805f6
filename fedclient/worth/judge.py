"""Judges the models of a site on its own test data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.errors import StateError
from common.records.provenance import Provenance, read_provenance
from common.tensors.layout import Flat
from fedclient.outbox.listing import departures
from fedclient.own_data import OwnData
from fedclient.worth.bench import Bench
from fedclient.worth.report import Findings, Outgoing


def findings(
    bench: Bench,
    client: str,
    state_dir: Path,
    model_file: Path | None,
    models: Mapping[str, Flat],
    own_tests: OwnData | None,
) -> Findings:
    """Of models by kind; the federated one is judged once more after a local round."""
    test, x = bench.test_data(own_tests), models["federated"]
    judged = {kind: bench.judged(flat, test) for kind, flat in models.items()}
    judged["personalised"] = bench.judged(bench.after(x, bench.run.rounds + 1).payload.copy(), test)
    sent = tuple(
        Outgoing(row.time, row.round, row.bytes)
        for row in departures(state_dir)
        if row.run == bench.run.run_id
    )
    return Findings(client, bench.run, test.name, judged, _provenance(model_file), sent)


def _provenance(path: Path | None) -> Provenance | None:
    """What the model says of itself; a model of another program, or one on the wire, says nothing."""
    try:
        return None if path is None else read_provenance(path)
    except StateError:
        return None
