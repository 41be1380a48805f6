"""The demo: FedPVR, FedAvg and SCAFFOLD over gRPC on very different clients, and what each of them costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from common.records.rounds import read_rounds
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


def run_demo(config: DemoConfig, console: Console) -> list[dict[str, Any]]:
    """Runs all algorithms one after the other and returns a row for each."""
    console.print(
        f"1 server and {config.clients} clients as processes on this machine; digits, Dirichlet alpha "
        f"{config.alpha}, {config.local_epochs} local epochs, {config.rounds} rounds",
        highlight=False,
    )
    runs: dict[str, Run] = {}
    with Progress(
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        for method in TRAFFIC:
            bar = progress.add_task(method, total=config.rounds, accuracy="starting")
            folder = config.folder / method.replace(" ", "-")
            with LocalFederation(folder, config.clients, config.server_flags(method)) as federation:
                _follow(federation, method, progress, bar, console)
            runs[method] = read_run(folder)
    return rows(runs)


def _follow(federation: LocalFederation, method: str, progress: Progress, bar: Any, console: Console) -> None:
    """Shows each closed round until all processes have ended."""
    credentials = 0
    going = True
    while going:
        going = federation.running()
        for record in read_rounds(federation.run_dir)[credentials:]:
            credentials += 1
            accuracy = f"accuracy {record['accuracy']:.1%}"
            progress.update(bar, completed=record["round"], accuracy=accuracy)
            if not console.is_terminal:
                console.print(f"{method}: round {record['round']}, {accuracy}", highlight=False)
        time.sleep(POLL_S)


def rows(runs: dict[str, Run]) -> list[dict[str, Any]]:
    """What the table shows, from the run directories alone."""
    total = {name: sum(run.bytes_per_client_and_round().values()) for name, run in runs.items()}
    return [
        {
            "algorithm": name,
            "accuracy": run.accuracy(),
            "rounds_to_target": run.rounds_to(TARGET),
            "bytes": run.bytes_per_client_and_round(),
            "total_bytes": total[name],
            "socket_bytes": run.socket_per_client_and_round(),
            "ratio_to_fedavg": total[name] / total["fedavg"],
        }
        for name, run in runs.items()
    ]


def show(table_rows: list[dict[str, Any]], console: Console) -> None:
    """Prints the closing table."""
    table = Table(
        title="bytes per client and round, down and up, as the server measured them",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("algorithm", no_wrap=True)
    headings = ("accuracy", f"to {TARGET:.0%}", "model", "control", "other", "total", "socket", "ratio")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in table_rows:
        counts = row["bytes"]
        table.add_row(
            row["algorithm"],
            f"{row['accuracy']:.1%}",
            str(row["rounds_to_target"] or "-"),
            f"{counts['model'] + counts['buffer']:,.0f}",
            f"{counts['control']:,.0f}",
            f"{counts['other']:,.0f}",
            f"{row['total_bytes']:,.0f}",
            "-" if row["socket_bytes"] is None else f"{row['socket_bytes']:,.0f}",
            f"{row['ratio_to_fedavg']:.3f}",
        )
    console.print(table)
