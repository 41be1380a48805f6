"""How do rounds without training compare with Flower's, in time, bytes, memory and cold start?

Flower's deployment (SuperLink, SuperNodes, `flwr run`, all as they are by default, without TLS) and ours
(real server with its durable checkpoint, real clients), one after the other for each model and number of
clients; then Flower's Ray simulation, as it is by default and as it is fastest on two cores, and `fedlab
simulate`. The models are lists of float32 arrays of the same shapes. Flower's clients move every number a
little, because what it has already it does not send again; ours train one small layer. Flower's rounds take
ten seconds and more: there are few.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench_startup import first_round
from flower.peer import ENVIRONMENT, Deployment, PeerFailure, Took, simulated
from measure import report
from measure.federation import MODELS, FederationFailure, measured, shapes_of, simulation_seconds
from measure.processes import ended_in_order

CASES = (("idle", 2), ("cnn", 2), ("vgg11", 2), ("idle", 10), ("cnn", 10), ("vgg11", 10))
SIMULATED = (("idle", 10), ("vgg11", 10))
ROUNDS = 4
OURS = {"idle": 60, "cnn": 40, "vgg11": 20}
"""Rounds of ours, which are shorter."""
FASTER = {("idle", 2): 500.0, ("vgg11", 2): 30.0, ("vgg11", 10): 30.0}
LESS_MEMORY = 5.0
FASTER_SIMULATION = 10.0
SIMULATIONS = {"Flower's Ray simulation": None, "the same with one core a client": 1}
"""Cores for each of its clients. By default it has two, so that on two cores clients take turns."""


def main() -> None:
    """Measures and prints."""
    parser = report.parser(__doc__)
    parser.add_argument("--model", choices=MODELS, help="only this model")
    parser.add_argument("--clients", type=int, help="only with as many clients")
    arguments = parser.parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    if not ENVIRONMENT.exists():
        raise SystemExit("Flower is not here; say: make bench-flower")
    version = next((ENVIRONMENT / "lib").glob("*/site-packages/flwr-*.dist-info")).name.split("-")[1]
    found.row("the peer", name="Flower", version=version.removesuffix(".dist"), rounds=ROUNDS)
    failed = []
    for compare, cases in ((_compare, CASES), (_compare_simulations, SIMULATED)):
        for model, num_clients in _wanted(cases, arguments):
            try:
                compare(found, model, num_clients, 2 if arguments.quick else ROUNDS)
            except (PeerFailure, FederationFailure, subprocess.TimeoutExpired) as failure:
                failed.append(f"{model}, {num_clients} clients: {failure}")
    found.finish()
    if failed:
        raise SystemExit("\n".join(failed))


def _wanted(cases: Sequence[tuple[str, int]], arguments: argparse.Namespace) -> list[tuple[str, int]]:
    if arguments.quick:
        return [case for case in cases if case == ("idle", 2)]
    return [
        (model, num_clients)
        for model, num_clients in cases
        if arguments.model in (None, model) and arguments.clients in (None, num_clients)
    ]


def _compare(found: report.Report, model: str, num_clients: int, rounds: int) -> None:
    with ended_in_order(), tempfile.TemporaryDirectory(prefix="bench-flower-") as name:
        shapes = _shapes(Path(name), model)
        with closing(Deployment(Path(name), num_clients)) as deployment:
            theirs = deployment.run(shapes, rounds)
    result = measured(model, num_clients, OURS[model])
    cold = first_round(model, num_clients)
    ours = Took(
        result.median_s,
        cold,
        result.all_server_mb,
        result.server_anon_mb,
        result.server_cpu_s,
        result.client_cpu_s,
        result.bytes_per_round,
    )
    case = f"{model}, {num_clients} clients"
    for who, took in (("Flower", theirs), ("ours", ours)):
        found.row("deployment", who=who, model=model, clients=num_clients, **_figures(took))
    speed = theirs.median_s / ours.median_s
    found.ratio(f"Flower's round / ours, {case}", speed, at_least=FASTER.get((model, num_clients)))
    memory = theirs.server_mb / ours.server_mb
    limit = LESS_MEMORY if model == "vgg11" else None
    found.ratio(f"Flower's memory of the server side / ours, {case}", memory, at_least=limit)
    whole = theirs.server_mb / result.whole_server_mb
    found.ratio(f"Flower's memory of the server side / ours with its start and end, {case}", whole)
    alone = theirs.server_anon_mb / ours.server_anon_mb
    found.ratio(f"Flower's own memory of the server side / our server's without worker, {case}", alone)
    found.ratio(f"Flower's cold start / ours, {case}", theirs.first_close_s / ours.first_close_s)
    print(f"{case}: Flower {theirs.median_s:.2f} s, ours {ours.median_s:.4f} s a round", flush=True)


def _figures(took: Took) -> dict[str, Any]:
    return {
        "round_s": took.median_s,
        "cold_start_s": took.first_close_s,
        "server_side_mb": took.server_mb,
        "server_anon_mb": took.server_anon_mb,
        "server_cpu_s": took.server_cpu_s,
        "clients_cpu_s": took.client_cpu_s,
        "mb_per_round": took.bytes_per_round / 1e6,
    }


def _compare_simulations(found: report.Report, model: str, num_clients: int, rounds: int) -> None:
    theirs = {}
    for who, cores in SIMULATIONS.items():
        with ended_in_order(), tempfile.TemporaryDirectory(prefix="bench-flower-") as name:
            shapes = _shapes(Path(name), model)
            theirs[who] = simulated(Path(name), shapes, num_clients, rounds, cores)
    ours, first = simulation_seconds(model, num_clients, OURS[model])
    took = {who: (each.median_s, each.first_close_s) for who, each in theirs.items()}
    for who, (seconds, cold) in (took | {"fedlab simulate": (ours, first)}).items():
        found.row("simulation", who=who, model=model, clients=num_clients, round_s=seconds, cold_start_s=cold)
    case = f"{model}, {num_clients} clients"
    limit = FASTER_SIMULATION if model == "vgg11" else None
    for who, (seconds, _) in took.items():
        at_least = limit if SIMULATIONS[who] is None else None
        found.ratio(f"{who}, a round / ours, {case}", seconds / ours, at_least=at_least)
        print(f"simulation of {model}: {who} {seconds:.2f} s, ours {ours:.4f} s a round", flush=True)


def _shapes(folder: Path, model: str) -> Path:
    path = folder / "shapes.json"
    path.write_text(json.dumps(shapes_of(model)))
    return path


if __name__ == "__main__":
    main()
