"""How long does the server take to check and fold one update, against copying it?"""

from __future__ import annotations

import numpy as np

from common.server_step.aggregate import Aggregate
from common.server_step.rules import Rules
from common.tensors.layout import Layout, Purpose, TensorSpec, all_finite
from timing import best_seconds, show

ELEMENTS = 9_250_000
RULES = Rules(round=1, rounds=1, eta_l=0.1, algorithm="fedavg", num_clients=10)


def main() -> None:
    """Measures and prints."""
    layout = Layout([TensorSpec("w", "float32", (ELEMENTS,), Purpose.MODEL)])
    down, up = layout.allocate(), layout.allocate()
    layout.array(up, 0)[:] = np.random.default_rng(0).normal(size=ELEMENTS)
    copy = best_seconds(lambda: np.copyto(down, up))
    aggregate = Aggregate(layout, down)
    rows = {
        "copy": copy,
        "check finite": best_seconds(lambda: all_finite(layout.array(up, 0), "float32")),
        "fold": best_seconds(lambda: aggregate.add(up, None, 1.0, 1.0)),
        "next x": best_seconds(lambda: aggregate.result(down, RULES, {})),
    }
    print(f"{layout.num_bytes / 1e6:.1f} MB of float32")
    show(rows)


if __name__ == "__main__":
    main()
