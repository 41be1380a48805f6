"""Closes a round: the new x and c, and the c_i that went into them, on disk."""

from __future__ import annotations

from collections.abc import Mapping

from common.records.rounds import Norms, RoundRecord
from common.records.traffic import RoundTraffic
from common.server_step.robust import strikes_after
from common.tensors.layout import Flat, Purpose, norm
from fedserver.run.fold import Folded
from fedserver.run.prepare import Standing
from fedserver.run.run import Run
from fedserver.store.checkpoints import Checkpoint


def close(run: Run, folded: Folded, record: RoundRecord, detail: RoundTraffic, before: Standing) -> Standing:
    """Makes the round count. The checkpoint is the moment; what follows can be made from it again.

    What is written before it does not count without it: a run that goes on drops it.
    """
    rules, closed, variates = folded.rules, folded.closed, run.variates
    r = rules.round
    changed = variates.changed_by(closed.counted, closed.clipped)
    strikes = strikes_after(before.strikes, closed.counted, closed.clipped)
    run.run_dir.append_traffic(detail)
    run.checkpoints.write(
        Checkpoint(
            round=r,
            flat=closed.flat,
            h=dict(closed.h),
            counted=variates.counted | dict.fromkeys(closed.counted, r),
            norms=variates.norms,
            changed=changed,
            evicted=before.evicted,
            strikes=strikes,
            c_source=closed.c_source,
            total_weight=rules.total_weight,
            closing=record,
        )
    )
    for i in closed.counted:
        variates.count(i, r)
    variates.changed = changed
    variates.prune(run.checkpoints.rounds()[0])
    run.run_dir.write_state(run.layout, closed.flat)
    run.spool.drop_round(r)
    return Standing(r, closed.flat, closed.h, closed.c_source, rules.total_weight, before.evicted, strikes)


def norms(run: Run, flat: Flat, names: Mapping[int, str]) -> Norms:
    """||c|| and every ||c_i|| as the round leaves them."""
    layout = run.layout
    c = norm(layout.array(flat, k) for k in layout.indices(Purpose.CONTROL))
    return Norms(c=c, clients={names[i]: size for i, size in run.variates.norms.items()})
