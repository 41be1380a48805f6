"""c, or FedDyn's h, counted anew from the variates of all clients. Pure.

Round by round they move by what clients change. Where a client is taken out of a run, what it has ever put in
has to go, to the last digit: taking its variate away again would leave what rounding made of large numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from common.server_step.rules import Rules
from common.tensors.layout import Flat, Float64, Layout, to_float64


def recounted(rules: Rules, variates: Layout, known: Iterable[tuple[float, Flat]]) -> list[Float64]:
    """Each tensor of the mean, or of the rule's center, of the variates of all clients of these rules.

    `known` has weights and variates, and is gone through for each tensor; those of the other clients are
    zero. h is always a mean.
    """
    center = None if rules.method.keeps_h else rules.robustness.center()
    found = []
    for k, spec in enumerate(variates.specs):
        if center is None:
            total = np.zeros(spec.num_elements)
            for weight, variate in known:
                total += weight * to_float64(variates.array(variate, k).reshape(-1), spec.dtype)
            found.append(total / rules.total_weight)
        else:
            stack = np.zeros((rules.num_clients, spec.num_elements))
            for row, (_, variate) in zip(stack, known, strict=False):
                row[:] = to_float64(variates.array(variate, k).reshape(-1), spec.dtype)
            found.append(center(stack))
    return found
