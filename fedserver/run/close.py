"""Closes a round: the new x and c, and the c_i that went into them, on disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from common.errors import RunError
from common.records.rounds import Norms, RoundRecord
from common.records.traffic import RoundTraffic
from common.server_step.updates import reduced, share_variate, shared_step_sum
from common.tensors.layout import Flat, Layout, Purpose, all_finite, norm
from fedserver.run.fold import Fold
from fedserver.run.prepare import Standing
from fedserver.run.run import Run
from fedserver.store.checkpoints import Checkpoint


def close(
    run: Run, closed: Standing, counted: Collection[int], record: RoundRecord, detail: RoundTraffic
) -> None:
    """Makes the round count. The checkpoint is the moment; what follows can be made from it again.

    What is written before it does not count without it: a run that goes on drops it.
    """
    r, variates, server = closed.round, run.variates, closed.server
    run.run_dir.append_traffic(detail)
    run.checkpoints.write(
        Checkpoint(
            round=r,
            flat=closed.flat,
            h=server.h if server is not None else {},
            counted=variates.counted | dict.fromkeys(counted, r),
            norms=variates.norms,
            shared=closed.shared,
            closing=record,
        )
    )
    for i in counted:
        variates.count(i, r)
    variates.prune(run.checkpoints.rounds()[0])
    run.run_dir.write_state(run.layout, closed.flat)
    run.spool.drop_round(r)


def norms(run: Run, flat: Flat, names: Mapping[int, str]) -> Norms:
    """||c|| and every ||c_i|| as the round leaves them."""
    layout = run.layout
    c = norm(layout.array(flat, k) for k in layout.indices(Purpose.CONTROL))
    return Norms(c=c, clients={names[i]: size for i, size in run.variates.norms.items()})


def step(run: Run, standing: Standing, fold: Fold) -> Standing:
    """x, buffers and c after the round, and whether c follows from what x did."""
    config, layout = run.config, run.layout
    new = fold.aggregate.result(standing.flat, config.eta_g, config.num_clients, standing.server)
    step_sum = shared_step_sum(fold.step_sums(), config.num_clients, config.eta_g, config.weighting)
    shared = step_sum is not None and fold.consistent and run.down.plain
    if step_sum is not None and shared:
        share_variate(layout, run.algorithm, reduced(layout, standing.flat), new, step_sum)
    _require_finite(fold.round, layout, new)
    return Standing(fold.round, new, standing.server, shared)


def _require_finite(r: int, layout: Layout, flat: Flat) -> None:
    for index, spec in enumerate(layout.specs):
        if not all_finite(layout.array(flat, index), spec.dtype):
            raise RunError(f"round {r}: {spec.name} is not finite any more; lower --eta-l or --eta-g")
