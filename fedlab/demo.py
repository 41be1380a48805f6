"""The demo: FedPVR, FedAvg and SCAFFOLD over gRPC on very different clients, and what each of them costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from common.events import Emit
from common.records.rounds import read_rounds
from fedlab.events import DemoStarted, MethodAdvanced, MethodStarted
from fedlab.experiments.methods import METHODS, TRAFFIC
from fedlab.processes.federation import LocalFederation
from fedlab.processes.nursery import CLIENT, Nursery, having
from fedlab.reports.runs import Run, read_run

TARGET = 0.9
POLL_S = 0.1
AT_ONCE = 2
"""Methods under way at a time: while clients of one wait for its server, those of another train."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What the demo trains."""

    folder: Path
    clients: int = 5
    rounds: int = 12
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
            # As published: a bound on updates would act on honest clients that differ a lot.
            "norm-bound": "none",
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
    """Runs all methods, a few at a time, and returns a row for each."""
    emit(
        DemoStarted(
            clients=config.clients,
            rounds=config.rounds,
            local_epochs=config.local_epochs,
            alpha=config.alpha,
        )
    )
    waiting, going = list(TRAFFIC), list[_Going]()
    with ExitStack() as stack:
        nursery = stack.enter_context(Nursery(having(CLIENT)))
        while waiting or going:
            if waiting and len(going) < AT_ONCE:
                method = waiting.pop(0)
                emit(MethodStarted(method=method, rounds=config.rounds))
                federation = LocalFederation(
                    _folder(config, method), config.clients, config.server_flags(method), nursery
                )
                going.append(_Going(method, stack.enter_context(federation)))
            going = [each for each in going if each.advances(emit)]
            time.sleep(POLL_S)
    return demo_rows({method: read_run(_folder(config, method)) for method in TRAFFIC})


def _folder(config: DemoConfig, method: str) -> Path:
    return config.folder / method.replace(" ", "-")


class _Going:
    """The federation of one method, while it runs."""

    def __init__(self, method: str, federation: LocalFederation) -> None:
        self._method = method
        self._federation = federation
        self._told = 0

    def advances(self, emit: Emit) -> bool:
        """Tells of each round that was closed since; whether more may come."""
        going = self._federation.running()
        for record in read_rounds(self._federation.run_dir)[self._told :]:
            self._told += 1
            if record.accuracy is not None:
                emit(MethodAdvanced(method=self._method, round=record.round, accuracy=record.accuracy))
        return going


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
