"""How long does a simulated round without training take, in how much memory, and are two processes faster?

Ten clients with VGG-11, all in every round, beside as many copies of the model as they make at the least; and
a thousand clients of whom a hundred are drawn, whose updates would not fit into memory together. Then ten
clients that do train, a narrow VGG-11, by one process and by two (`--jobs 2`) in turn.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from statistics import median

import numpy as np

from measure import processes, report
from measure.federation import ALL_ROUNDS_S, ServerProcess, scratch, simulated
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

SPEED_UP = 1.7
"""What two processes bring at the least, on two cores that nobody else uses."""
TRAINING = (
    "--dataset digits --image-size 32 --model vgg11 --width 0.25 --num-clients 10 --batch-size 32 "
    "--local-steps 8 --eval-every 0 --seed 1"
)
TURNS = 3
"""Of each number of processes."""


def training_rounds(jobs: int, rounds: int) -> tuple[list[float], float]:
    """Seconds of rounds with training, without the first, and processor seconds of one."""
    with scratch() as folder:
        flags = [*TRAINING.split(), "--rounds", str(rounds), "--jobs", str(jobs), "--run-dir", "run"]
        simulate = ServerProcess(flags, folder, ("-P", "-m", "fedlab", "simulate"))
        with closing(simulate):
            simulate.wait_for("round_closed", ALL_ROUNDS_S, round=1)
            everybody = [simulate.pid, *processes.descendants(simulate.pid)]
            before = sum(map(processes.exact_cpu_seconds, everybody))
            simulate.wait_for("round_closed", ALL_ROUNDS_S, round=rounds - 1)
            cpu_s = sum(map(processes.exact_cpu_seconds, everybody)) - before
            simulate.wait_for("round_closed", ALL_ROUNDS_S, round=rounds)
            closes = [simulate.wait_for("round_closed", round=r)[0] for r in range(1, rounds + 1)]
        return [b - a for a, b in itertools.pairwise(closes)], cpu_s / (rounds - 2)


def compare_jobs(found: report.Report, quick: bool) -> None:
    """One process and two, in turn."""
    took: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(1 if quick else TURNS):
        for jobs in took:
            seconds, cpu_s = training_rounds(jobs, 3 if quick else 5)
            took[jobs] += seconds
            cpu[jobs].append(cpu_s)
    for jobs, seconds in took.items():
        found.row(
            "a round of ten clients that train",
            jobs=jobs,
            best_ms=min(seconds) * 1e3,
            median_ms=median(seconds) * 1e3,
            cpu_ms=min(cpu[jobs]) * 1e3,
        )
    found.ratio("rounds by one process / by two", min(took[1]) / min(took[2]), at_least=SPEED_UP)
    found.ratio("processor time by two processes / by one", min(cpu[2]) / min(cpu[1]))


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
    compare_jobs(found, arguments.quick)
    found.finish()


if __name__ == "__main__":
    main()
