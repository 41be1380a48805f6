"""How long does the server take to check and fold one update, against the bandwidth of the memory?"""

from __future__ import annotations

import numpy as np

from common.server_step.aggregate import Aggregate
from common.server_step.rules import Rules
from common.tensors.layout import Layout, Purpose, TensorSpec, all_finite
from measure import report
from measure.timing import interleaved

ELEMENTS = 9_750_922
"""VGG-11."""
RULES = Rules(round=1, rounds=1, eta_l=0.1, algorithm="fedavg", num_clients=10)
UPDATES = 10
"""That are folded in one round."""
MOVED = {"copy": 2, "scale and add": 5, "add to float64": 6, "check finite": 1, "fold": UPDATES + 2}
"""Times that four bytes for each number pass between processor and memory, if each is read or written once:
the fold reads every y_i, and x, and writes the next x."""


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    elements, repeats = (ELEMENTS // 100, 2) if arguments.quick else (ELEMENTS, 9)
    layout = Layout([TensorSpec("w", "float32", (elements,), Purpose.MODEL)])
    x, y, scratch = layout.allocate(), layout.allocate(), np.empty(elements, np.float32)
    random = np.random.default_rng(0)
    layout.array(x, 0)[:] = random.normal(size=elements)
    layout.array(y, 0)[:] = random.normal(size=elements)
    flat_x, flat_y, sums = layout.array(x, 0), layout.array(y, 0), np.zeros(elements)

    def fold() -> None:
        aggregate = Aggregate(layout, x)
        for _ in range(UPDATES):
            aggregate.add(y, None, 1.0, 1.0)
        aggregate.result(x, RULES, {})

    def scale_and_add() -> None:
        np.multiply(flat_y, np.float32(0.5), out=scratch)
        np.add(scratch, flat_x, out=scratch)

    seconds = interleaved(
        {
            "copy": lambda: np.copyto(scratch, flat_y),
            "scale and add": scale_and_add,
            "add to float64": lambda: np.add(sums, flat_y, out=sums),
            "check finite": lambda: all_finite(flat_y, "float32"),
            "fold": fold,
        },
        repeats,
    )
    copy = seconds["copy"][0]
    for name, (best, usual) in seconds.items():
        rate = 4 * elements * MOVED[name] / best / 1e9
        found.row(
            f"{layout.num_bytes / 1e6:.1f} MB of float32",
            what=name,
            best_ms=best * 1e3,
            median_ms=usual * 1e3,
            GB_per_s=rate,
            ratio=best / copy,
        )
    bandwidth = MOVED["copy"] / copy
    fold_s = seconds["fold"][0]
    found.ratio("fold, bytes moved a second / copy's", MOVED["fold"] / fold_s / bandwidth)
    found.ratio(f"fold of one update of {UPDATES} / copy", fold_s / UPDATES / copy)
    found.finish()


if __name__ == "__main__":
    main()
