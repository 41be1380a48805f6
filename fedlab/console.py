"""What the lab's commands print for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from fedlab.demo import TARGET, DemoRow
from fedserver.worker.partition import Indices

if TYPE_CHECKING:  # These import torch, which not every command needs.
    from fedlab.experiments.compare import ComparisonRow
    from fedlab.models.card import ModelCard

BARS = " ▁▂▃▄▅▆▇█"
MAX_COLUMNS = 10
"""Up to this many classes the counts stand beside the bars."""
Settings = Mapping[str, str | float]


def _table(title: str | None = None) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))


def show_demo(rows: Sequence[DemoRow], console: Console) -> None:
    """A line for each method of the demo."""
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
    for row in rows:
        table.add_row(
            row.algorithm,
            f"{row.accuracy:.1%}",
            str(row.rounds_to_target or "-"),
            f"{row.bytes['model'] + row.bytes['buffer']:,.0f}",
            f"{row.bytes['control']:,.0f}",
            f"{row.bytes['other']:,.0f}",
            f"{row.total_bytes:,.0f}",
            "-" if row.socket_bytes is None else f"{row.socket_bytes:,.0f}",
            f"{row.ratio_to_fedavg:.3f}",
        )
    console.print(table)


def show_comparison(rows: Sequence[ComparisonRow], target: float, link: str, console: Console) -> None:
    """A line for each method with each codec."""
    table = _table(
        f"per client and round: bytes, and seconds they take at {link}; time to {target:.0%} there"
    )
    table.add_column("method", no_wrap=True)
    table.add_column("codec", no_wrap=True)
    for heading in ("accuracy", "rounds", "down", "up", "transfer", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.method,
            row.codec,
            _or(row.outcome, row.accuracy, ".1%"),
            str(row.rounds_to_target or "-"),
            _or("-", row.down_bytes, ",.0f"),
            _or("-", row.up_bytes, ",.0f"),
            _or("-", row.transfer_seconds, ".2f", " s"),
            _or("-", row.seconds_to_target, ".1f", " s"),
        )
    console.print(table)


def _or(otherwise: str, value: float | None, form: str, unit: str = "") -> str:
    return otherwise if value is None else f"{value:{form}}{unit}"


def show_presets(
    presets: Mapping[str, Mapping[str, Settings]], norms: Mapping[str, str], console: Console
) -> None:
    """A line for each preset and one for each of its algorithms, with everything in which they differ."""
    table = _table("what presets set")
    shown = ("eta_l", "schedule", "momentum", "mu", "feddyn_alpha", "validation")
    for heading in (
        "preset",
        "eta_l",
        "schedule",
        "mo-\nmentum",
        "mu",
        "feddyn\nalpha",
        "val.\nshare",
        "norm",
    ):
        table.add_column(heading, no_wrap=True)
    for preset, by_algorithm in presets.items():
        table.add_row(preset, *[""] * len(shown), norms[preset])
        for algorithm, said in by_algorithm.items():
            table.add_row(f"  {algorithm}", *(str(said.get(name, "-")) for name in shown), "")
    console.print(table)
    some = next(iter(next(iter(presets.values())).values()))
    shared = ("num_clients", "rounds", "local_epochs", "batch_size")
    console.print(", ".join(f"{name} {some[name]}" for name in shared), highlight=False)
    console.print(
        "norm: what is between the layers. Momentum acts outside S_svr. eta_l of fedprox and feddyn, mu and "
        "both schedules' parameters are not printed in the paper, which tunes them.",
        highlight=False,
    )


def show_shards(counts: Indices, console: Console) -> None:
    """A histogram of each client's classes; its largest class has full height."""
    numbered = counts.shape[1] <= MAX_COLUMNS
    table = _table()
    table.add_column("client")
    table.add_column("classes", no_wrap=True)
    for heading in (*(map(str, range(counts.shape[1])) if numbered else ()), "sum"):
        table.add_column(heading, justify="right")
    for i, row in enumerate(counts):
        numbers = [str(n) if n else "." for n in row] if numbered else []
        table.add_row(str(i), "".join(_bar(int(n), int(row.max())) for n in row), *numbers, str(row.sum()))
    console.print(table)


def _bar(n: int, most: int) -> str:
    return BARS[-(-(len(BARS) - 1) * n // most)]


def show_model(card: ModelCard, console: Console) -> None:
    """A line for each tensor, and the traffic of each algorithm."""
    table = Table("tensor", "shape", "dtype", "purpose", "class")
    for tensor in card.tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        table.add_row(tensor.name, shape, tensor.dtype, tensor.purpose, tensor.kind)
    console.print(table)
    if card.d < card.parameters:
        apart = card.parameters - card.d
        console.print(
            f"{apart:,} of {card.parameters:,} parameters are personal or frozen and in no round's messages",
            highlight=False,
        )
    console.print(
        f"d = {card.d:,} parameters, v = {card.v:,} in S_svr; floats per client and round: "
        f"FedAvg 2 d, FedPVR {card.multiplier:.4f} d, SCAFFOLD 4 d; with --variates derived 2 d for all",
        highlight=False,
    )
