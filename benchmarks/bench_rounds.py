"""What does a round without training take of time, processor and memory, by model and number of clients?

Real processes on this machine, the server with its durable checkpoint: see `measure.federation`. Rounds are
timed from close to close, without the first. Fifty clients with VGG-11 need 9 GB of memory and 5 GB of disk.
"""

from __future__ import annotations

import argparse

from measure import report
from measure.federation import MODELS, Rounds, measured

CASES = (
    ("idle", 2, 60, "fedavg"),
    ("idle", 10, 40, "fedavg"),
    ("cnn", 2, 40, "fedavg"),
    ("cnn", 10, 20, "fedavg"),
    ("vgg11", 2, 8, "fedavg"),
    ("vgg11", 2, 8, "fedpvr"),
    ("vgg11", 10, 5, "fedavg"),
    ("vgg11", 50, 2, "fedavg"),
)
"""Model, clients, rounds, algorithm."""
MEMORY_MB = 200.0
"""What the server's own memory may be with VGG-11, whatever the number of clients."""


def main() -> None:
    """Measures and prints."""
    parser = report.parser(__doc__)
    parser.add_argument("--model", choices=MODELS, help="only this model")
    parser.add_argument("--clients", type=int, help="only with as many clients")
    parser.add_argument("--rounds", type=int, help="as many rounds of each")
    arguments = parser.parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    results = {}
    for model, num_clients, rounds, algorithm in _cases(arguments):
        result = measured(model, num_clients, rounds, algorithm)
        results[model, num_clients, algorithm] = result
        _add(found, model, num_clients, rounds, algorithm, result)
    _ratios(found, results)
    found.finish()


def _cases(arguments: argparse.Namespace) -> list[tuple[str, int, int, str]]:
    if arguments.quick:
        return [("idle", 2, 3, "fedavg")]
    return [
        (model, num_clients, arguments.rounds or rounds, algorithm)
        for model, num_clients, rounds, algorithm in CASES
        if arguments.model in (None, model) and arguments.clients in (None, num_clients)
    ]


def _add(
    found: report.Report, model: str, num_clients: int, rounds: int, algorithm: str, result: Rounds
) -> None:
    found.row(
        "a round, and peaks of memory",
        model=model,
        clients=num_clients,
        algorithm=algorithm,
        rounds=rounds,
        median_ms=result.median_s * 1e3,
        server_cpu_ms=result.server_cpu_s * 1e3,
        clients_cpu_ms=result.client_cpu_s * 1e3,
        server_anon_mb=result.server_anon_mb,
        server_peak_mb=result.server_peak_mb,
        worker_peak_mb=result.worker_peak_mb,
        mb_per_round=result.bytes_per_round / 1e6,
        first_close_s=result.first_close_s,
    )


def _ratios(found: report.Report, results: dict[tuple[str, int, str], Rounds]) -> None:
    for (model, num_clients, algorithm), result in results.items():
        if algorithm != "fedavg":
            plain = results[model, num_clients, "fedavg"]
            cpu = (result.server_cpu_s + result.client_cpu_s) / (plain.server_cpu_s + plain.client_cpu_s)
            found.ratio(f"CPU of a round, {model}, {num_clients} clients, {algorithm} / fedavg", cpu)
        if model == "idle" and num_clients == 2:
            found.ratio("idle round, 2 clients, milliseconds", result.median_s * 1e3, at_most=10.0)
        if model == "vgg11" and algorithm == "fedavg":
            found.ratio(
                f"server's own memory, vgg11, {num_clients} clients, MB",
                result.server_anon_mb,
                at_most=MEMORY_MB,
            )


if __name__ == "__main__":
    main()
