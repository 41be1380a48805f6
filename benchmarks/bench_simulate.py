"""How long does a round of `fedlab simulate` without training take, against copying, and in how much memory?

Ten clients with VGG-11, all in every round, beside as many copies of the model as they make at the least; and
a thousand clients of whom a hundred are drawn, whose updates would not fit into memory together.
"""

from __future__ import annotations

import numpy as np

from measure import report
from measure.federation import simulated
from measure.timing import best_seconds

ELEMENTS = 9_750_922
"""VGG-11."""
CASES = (
    ("idle", 10, None, 40, "fedavg"),
    ("vgg11", 10, None, 15, "fedavg"),
    ("vgg11", 10, None, 15, "fedpvr"),
    ("vgg11", 1000, 100, 3, "fedavg"),
)
"""Model, clients, of them in a round, rounds, algorithm."""
COPIES = 60.0
"""What a round of ten may cost in copies of the model: six for each client."""
MEMORY_MB = 2500.0
"""Whatever the number of clients: a gigabyte of updates, torch, the model a few times."""


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    source, target = np.ones(ELEMENTS, np.float32), np.zeros(ELEMENTS, np.float32)
    copy_s = best_seconds(lambda: np.copyto(target, source))
    found.row("39.0 MB of float32", what="copy", best_ms=copy_s * 1e3)
    for model, clients, drawn, rounds, algorithm in (
        [("idle", 2, None, 3, "fedavg")] if arguments.quick else CASES
    ):
        took = simulated(model, clients, rounds, algorithm, drawn)
        found.row(
            "a round, and peaks of memory",
            model=model,
            clients=clients,
            in_a_round=drawn or clients,
            algorithm=algorithm,
            rounds=rounds,
            best_ms=took.best_s * 1e3,
            median_ms=took.median_s * 1e3,
            cpu_ms=took.cpu_s * 1e3,
            anon_mb=took.anon_mb,
            first_close_s=took.first_close_s,
        )
        case = f"{model}, {drawn or clients} of {clients} clients, {algorithm}"
        if model == "vgg11" and drawn is None:
            found.ratio(f"simulated round / copy, {case}", took.best_s / copy_s, at_most=COPIES)
        found.ratio(f"memory of a simulation, {case}, MB", took.anon_mb, at_most=MEMORY_MB)
    found.finish()


if __name__ == "__main__":
    main()
