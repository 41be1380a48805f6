"""The demo: FedPVR, FedAvg and SCAFFOLD over gRPC on very different clients, and what each of them costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.events import Emit
from common.records.rounds import read_rounds
from fedlab.events import DemoStarted, MethodAdvanced, MethodStarted
from fedlab.experiments.methods import METHODS, TRAFFIC
from fedlab.processes.federation import LocalFederation
from fedlab.reports.runs import Run, read_run

TARGET = 0.9
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What the demo trains."""

    folder: Path
    clients: int = 5
    rounds: int = 15
    local_epochs: int = 5
    alpha: float = 0.1
    eta_l: float = 0.1
    seed: int = 0

    def server_flags(self, method: str) -> list[str]:
        """The flags of `fedserver run` for one method."""
        settings: dict[str, object] = {
            **METHODS[method],
            "rounds": self.rounds,
            "local-epochs": self.local_epochs,
            "alpha": self.alpha,
            "eta-l": self.eta_l,
            "seed": self.seed,
        }
        return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


@dataclass(frozen=True)
class DemoRow:
    """What the closing table says of one method."""

    algorithm: str
    accuracy: float
    rounds_to_target: int | None
    bytes: dict[str, float]
    """Per client and round, both directions together, by purpose."""
    total_bytes: float
    socket_bytes: float | None
    """As the kernel counted them; None where it did not."""
    ratio_to_fedavg: float


def run_demo(config: DemoConfig, emit: Emit) -> list[DemoRow]:
    """Runs all methods one after the other and returns a row for each."""
    emit(
        DemoStarted(
            clients=config.clients,
            rounds=config.rounds,
            local_epochs=config.local_epochs,
            alpha=config.alpha,
        )
    )
    runs: dict[str, Run] = {}
    for method in TRAFFIC:
        emit(MethodStarted(method=method, rounds=config.rounds))
        folder = config.folder / method.replace(" ", "-")
        with LocalFederation(folder, config.clients, config.server_flags(method)) as federation:
            _follow(federation, method, emit)
        runs[method] = read_run(folder)
    return demo_rows(runs)


def _follow(federation: LocalFederation, method: str, emit: Emit) -> None:
    """Tells of each closed round until all processes have ended."""
    told = 0
    going = True
    while going:
        going = federation.running()
        for record in read_rounds(federation.run_dir)[told:]:
            told += 1
            if record.accuracy is not None:
                emit(MethodAdvanced(method=method, round=record.round, accuracy=record.accuracy))
        time.sleep(POLL_S)


def demo_rows(runs: Mapping[str, Run]) -> list[DemoRow]:
    """What the table shows, from the run directories alone."""
    total = {name: sum(run.bytes_per_client_and_round().values()) for name, run in runs.items()}
    return [
        DemoRow(
            algorithm=name,
            accuracy=run.accuracy(),
            rounds_to_target=run.rounds_to(TARGET),
            bytes=run.bytes_per_client_and_round(),
            total_bytes=total[name],
            socket_bytes=run.socket_per_client_and_round(),
            ratio_to_fedavg=total[name] / total["fedavg"],
        )
        for name, run in runs.items()
    ]
