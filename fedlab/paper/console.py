"""What the command prints: the catalogue, and what would run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from fedlab.paper.catalogue import ITEMS
from fedlab.paper.columns import COLUMNS, PRINTED
from fedlab.paper.plan import FORMULA, CostedRun, PlannedItem, distinct, seconds
from fedlab.paper.scales import SCALES, Scale
from fedlab.sweep.protocols import described

SHOWN = (
    "algorithm",
    "dataset",
    "model",
    "alpha",
    "num_clients",
    "rounds",
    "local_epochs",
    "local_steps",
    "batch_size",
    "eta_l",
    "schedule",
    "momentum",
    "mu",
    "feddyn_alpha",
    "validation",
    "variates",
    "svr",
    "cka",
    "seed",
)
"""Settings of a planned run, in this order."""


def listing() -> dict[str, object]:
    """The catalogue and the scales as plain values."""
    items = [
        {"name": i.name, "title": i.title, "shows": i.shows, "columns": list(i.columns)}
        for i in ITEMS.values()
    ]
    own = [{"name": p.name, "title": p.title, "shows": p.question} for p in described()]
    scales = {name: _scale(scale) for name, scale in SCALES.items()}
    return {"items": items, "experiments": own, "scales": scales}


def _scale(scale: Scale) -> dict[str, object]:
    stand_ins = {name: scale.stand_in(column) for name, column in COLUMNS.items()}
    return {
        "text": scale.text,
        "rounds": scale.rounds,
        "at_round": scale.at_round,
        "settings": dict(scale.settings),
        "centralised_epochs": scale.central.epochs,
        "columns": {name: {"here": s.words, "target": s.target} for name, s in stand_ins.items()},
    }


def show_catalogue(console: Console) -> None:
    """A line for each item, then the scales."""
    table = Table("name", "shows", "columns of the paper")
    for item in ITEMS.values():
        columns = "all eight" if item.columns == PRINTED else ", ".join(item.columns)
        table.add_row(item.name, item.shows, columns)
    console.print(table)
    for scale in SCALES.values():
        console.print(f"--scale {scale.name}: {scale.rounds} rounds. {scale.text}", highlight=False)
    others = [name for name in COLUMNS if name not in PRINTED]
    console.print(f"--column also takes {', '.join(others)}", highlight=False)
    own = Table("beyond the paper", "asks")
    for protocol in described():
        own.add_row(protocol.name, f"{protocol.title}. {protocol.question}")
    console.print(own)


def plan_document(
    planned: Sequence[PlannedItem], here: Mapping[str, float], device: Mapping[str, float], jobs: int
) -> dict[str, object]:
    """The plan as plain values."""

    def total(runs: Sequence[CostedRun]) -> dict[str, object]:
        found: dict[str, object] = {
            "runs": len(runs),
            "images_trained": sum(run.trained for run in runs),
            "images_evaluated": sum(run.evaluated for run in runs),
            "hours_here": seconds(runs, here) / jobs / 3600,
        }
        return found | ({"hours_on_device": seconds(runs, device) / 3600} if device else {})

    def row(run: CostedRun) -> dict[str, object]:
        shown = {name: run.settings[name] for name in SHOWN if name in run.settings}
        return {"run": run.key, "settings": shown, **total([run])}

    return {
        "formula": FORMULA,
        "images_per_second_here": dict(here),
        "cores_here": jobs,
        "images_per_second_on_device": dict(device),
        "items": [
            {
                "name": item.name,
                "new_runs": item.new,
                **total(item.runs),
                "needs": [row(run) for run in item.runs],
            }
            for item in planned
        ],
        "total": total(distinct(planned)),
    }


def show_plan(
    planned: Sequence[PlannedItem],
    here: Mapping[str, float],
    device: Mapping[str, float],
    jobs: int,
    console: Console,
) -> None:
    """Every run of every item with its settings, then a line for each item and the total."""
    for item in planned:
        console.print(f"{item.name}: {len(item.runs)} runs", highlight=False)
        for run in item.runs:
            words = [f"{name} {_word(run.settings[name])}" for name in SHOWN if name in run.settings]
            hours = seconds([run], here) / 3600
            console.print(f"  {hours:10.2f} h  {', '.join(words)}", highlight=False, soft_wrap=True)
    table = Table("item", "runs", "new", "images", f"here, {jobs} at a time", "on the device")
    total = distinct(planned)
    for name, runs, new in [*((i.name, i.runs, i.new) for i in planned), ("total", total, len(total))]:
        on_device = _time(seconds(runs, device)) if device else "-"
        images = sum(run.images for run in runs)
        table.add_row(
            name,
            str(len(runs)),
            str(new),
            f"{images / 1e6:,.1f} M",
            _time(seconds(runs, here) / jobs),
            on_device,
        )
    console.print(table)
    console.print(FORMULA, highlight=False)
    rates = ", ".join(f"{model} {rate:,.0f}" for model, rate in here.items())
    if rates:
        console.print(f"images per second and core, measured now by a few steps: {rates}", highlight=False)
    if device:
        said = ", ".join(f"{model} {rate:,.0f}" for model, rate in device.items())
        console.print(
            f"images per second of the device, as given; one run at a time: {said}", highlight=False
        )


def _word(value: object) -> str:
    return f"{value[0]} ... {value[-1]}" if isinstance(value, list) and len(value) > 2 else str(value)


def _time(amount: float) -> str:
    if amount < 3600:
        return f"{amount / 60:.1f} min"
    return f"{amount / 3600:,.1f} h" if amount < 4 * 86400 else f"{amount / 86400:,.1f} d"
