"""Closes a round: the new x and c, and the c_i that went into them, on disk."""

from __future__ import annotations

from typing import Any

from common.errors import RunError
from common.server_step.updates import reduced, share_variate, shared_step_sum
from common.tensors.layout import Flat, Layout, Purpose, all_finite, norm
from fedserver.run.fold import Fold
from fedserver.run.prepare import Standing
from fedserver.run.run import Run
from fedserver.store.checkpoints import Checkpoint
from fedserver.store.run_dir import without_nan


def close(run: Run, standing: Standing, fold: Fold, closing: dict[str, Any]) -> Standing:
    """Makes the round count. The checkpoint is the moment; what follows can be made from it again."""
    r, new, shared = fold.round, *_step(run, standing, fold)
    _require_finite(r, run.layout, new)
    server, variates = standing.server, run.variates
    closing["norms"] = {"c": _norm_of_c(run.layout, new), "clients": dict(variates.norms)}
    run.checkpoints.write(
        Checkpoint(
            round=r,
            flat=new,
            h=server.h if server is not None else {},
            counted=variates.counted | dict.fromkeys(fold.counted, r),
            norms=variates.norms,
            shared=shared,
            closing=without_nan(closing),
        )
    )
    for i in fold.counted:
        variates.count(i, r)
    variates.prune(run.checkpoints.rounds()[0])
    run.run_dir.write_state(run.layout, new)
    run.spool.drop_round(r)
    return Standing(r, new, server, shared)


def _step(run: Run, standing: Standing, fold: Fold) -> tuple[Flat, bool]:
    """x, buffers and c after the round, and whether c follows from what x did."""
    config, layout = run.config, run.layout
    new = fold.aggregate.result(standing.flat, config.eta_g, config.num_clients, standing.server)
    step_sum = shared_step_sum(fold.step_sums(), config.num_clients, config.eta_g, config.weighting)
    shared = step_sum is not None and fold.consistent and run.down.plain
    if step_sum is not None and shared:
        share_variate(layout, run.algorithm, reduced(layout, standing.flat), new, step_sum)
    return new, shared


def _require_finite(r: int, layout: Layout, flat: Flat) -> None:
    for index, spec in enumerate(layout.specs):
        if not all_finite(layout.array(flat, index), spec.dtype):
            raise RunError(f"round {r}: {spec.name} is not finite any more; lower --eta-l or --eta-g")


def _norm_of_c(layout: Layout, flat: Flat) -> float:
    return norm(layout.array(flat, k) for k in layout.indices(Purpose.CONTROL))
