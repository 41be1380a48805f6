"""The command that makes the paper's tables and figures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from common import commandline
from common.errors import ConfigError
from common.events import Emit
from common.processes import signals
from fedlab.engine.choice import EngineChoice
from fedlab.engine.cli import RUNS, engine_options
from fedlab.paper import catalogue, columns
from fedlab.sweep.cli import run_file
from fedlab.sweep.protocols import PROTOCOLS, named
from fedserver.cli import checked_option

if TYPE_CHECKING:
    from fedlab.paper.study import Study

PLAN = "Plan"


@click.command(
    cls=commandline.Command,
    epilog=commandline.example(
        "fedlab reproduce all --scale tiny",
        "fedlab reproduce fig4 --column cifar100-vgg11-a1.0 --scale small --seeds 3",
        "fedlab reproduce all --scale paper --dry-run --device-rate vgg11=9000 --device-rate resnet8=20000",
    ),
)
@click.argument("what", required=False)
@click.option(
    "--list", "as_list", is_flag=True, help="List the tables and figures, their columns and the scales."
)
@commandline.option(
    RUNS, "--scale", type=click.Choice(("tiny", "small", "paper")), default="tiny", help="How large."
)
@commandline.option(
    RUNS,
    "--column",
    "chosen",
    multiple=True,
    metavar="NAME",
    help="Data set, model and alpha, such as cifar100-resnet8-a1.0; repeatable.  [default: the paper's own]",
)
@commandline.option(RUNS, "--seeds", type=click.IntRange(1), default=1, help="Repetitions; the paper has 3.")
@engine_options
@checked_option("data_dir", section=RUNS)
@commandline.option(
    RUNS, "--out", type=click.Path(path_type=Path), help="Folder.  [default: runs/reproduce-SCALE]"
)
@commandline.option(
    PLAN, "--dry-run", is_flag=True, help="Run nothing: print the runs, their settings and the time."
)
@commandline.option(
    PLAN,
    "--device-rate",
    "device_rates",
    multiple=True,
    metavar="[MODEL=]RATE",
    help="Images per second that a device trains on, of all models or of one; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with --list or --dry-run.")
@commandline.log_options
def reproduce(
    what: str | None,
    as_list: bool,
    scale: str,
    chosen: tuple[str, ...],
    seeds: int,
    engine: EngineChoice,
    data_dir: str,
    out: Path | None,
    dry_run: bool,
    device_rates: tuple[str, ...],
    as_json: bool,
    emit: Emit,
) -> None:
    """Make a table or figure of the paper, or all: runs, tables, pictures and one site of HTML pages.

    WHAT is its name in the paper: table2, table3, fig1, fig2a ... figC4, or all. Can be interrupted and
    started again: finished runs are kept, and shared between the items of a scale. Or it is an experiment of
    our own with settings and seeds that are fixed (--list names them); such a one has no scale or column.
    """
    if as_list:
        _list(as_json)
        return
    if what is None:
        raise ConfigError(f"expected a table or figure: {', '.join(catalogue.ITEMS)} or all; got none")
    if (own := named(catalogue.plain(what), catalogue.plain)) is not None:
        given, command = _seeds_of_its_own(seeds), f"fedlab reproduce {own}"
        run_file(PROTOCOLS[own], command, dry_run, as_json, given, data_dir, engine, out, emit)
        return
    items = catalogue.items(what)
    for name in chosen:
        columns.column(name)
    from fedlab.experiments.bench import Bench
    from fedlab.paper.scales import SCALES
    from fedlab.paper.study import Study

    folder = out or Path("runs") / f"reproduce-{scale}"
    bench = Bench(engine, folder, str(Path(data_dir).absolute()), emit)
    study = Study(scale=SCALES[scale], seeds=seeds, bench=bench)
    if dry_run:
        _plan(items, study, chosen, device_rates, as_json)
    elif as_json or device_rates:
        raise ConfigError("--json and --device-rate go with --dry-run (or --list); without it items are made")
    else:
        _make(items, study, chosen)


def _is_given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is not ParameterSource.DEFAULT


def _seeds_of_its_own(seeds: int) -> int | None:
    """Of an experiment with fixed settings, if they are given; raises for flags that it has no use for."""
    flags = {"chosen": "--column", "device_rates": "--device-rate", "scale": "--scale"}
    given = [flag for name, flag in flags.items() if _is_given(name)]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: this experiment has settings of its own; for others copy its file, which "
            "is in fedlab/experiments/protocols, and use fedlab sweep"
        )
    return seeds if _is_given("seeds") else None


def _list(as_json: bool) -> None:
    from fedlab.paper import console

    if as_json:
        click.echo(json.dumps(console.listing(), indent=2))
        return
    from rich.console import Console

    console.show_catalogue(Console())


def _plan(
    items: list[catalogue.Item], study: Study, chosen: tuple[str, ...], given: tuple[str, ...], as_json: bool
) -> None:
    from rich.console import Console

    from fedlab.paper import console, plan
    from fedlab.paper.calibration import images_per_second

    planned = plan.plan(items, study, chosen)
    first = {run.model: run for run in plan.distinct(planned)}
    device = plan.rates(given, list(first))
    here = {model: images_per_second(run) for model, run in first.items()}
    jobs = study.bench.engine.jobs or os.cpu_count() or 1
    if as_json:
        click.echo(json.dumps(console.plan_document(planned, here, device, jobs), indent=2))
    else:
        console.show_plan(planned, here, device, jobs, Console())


def _make(items: list[catalogue.Item], study: Study, chosen: tuple[str, ...]) -> None:
    from dataclasses import replace

    from rich.console import Console

    from fedlab.paper.reproduce import reproduce as make
    from fedlab.paper.site import write_index
    from fedlab.progress import bars_for

    with signals.stopped_by_signals(), bars_for(study.bench.emit, Console()) as tell:
        told = replace(study, bench=replace(study.bench, emit=tell))
        made = make(items, told, chosen)
    for each in made:
        for title, table in each.tables.items():
            click.echo(f"{each.item.name}: {title}\n{table.markdown()}")
    index = write_index(study, made)
    for each in made[: 1 if len(made) == 1 else 0]:
        click.echo(f"report: {each.report}")
    click.echo(f"all pages: {index}")
