"""Takes evicted members out of what the run has of them: out of c, and out of h."""

from __future__ import annotations

from dataclasses import replace

from common.server_step.recount import recounted
from common.server_step.rules import Rules
from common.server_step.step import CSource
from common.tensors.layout import Purpose
from fedserver.members.seated import Seated
from fedserver.run.prepare import Standing
from fedserver.run.run import Run


def without_evicted(run: Run, standing: Standing, members: Seated, rules: Rules) -> Standing:
    """Where the run stands once c and h are those of the members that are left, under the rules of a round.

    x is as it is: what an evicted member did to it is only unlearned.
    """
    evicted = members.evicted_before(rules.round)
    if evicted == standing.evicted:
        return standing
    stay = {i: member for i, member in sorted(members.by_index.items()) if i not in evicted}
    variates = ((rules.client_weight(member.examples), run.variates.read(i)) for i, member in stay.items())
    known = [(weight, variate) for weight, variate in variates if variate is not None]
    found = recounted(rules, run.variates.layout, known)
    flat, h = standing.flat.copy(), standing.h
    for k, tensor in zip(run.layout.indices(Purpose.CONTROL), found, strict=False):
        run.layout.store(flat, k, tensor)
    if h:
        h = dict(zip(run.layout.indices(Purpose.MODEL), found, strict=True))
    return replace(
        standing,
        flat=flat,
        h=h,
        evicted=evicted,
        c_source=CSource.FROM_VARIATES,
        total_weight=rules.total_weight,
    )
