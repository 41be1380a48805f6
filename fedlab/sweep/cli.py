"""The command that runs a grid of one's own."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from common import commandline
from common.errors import ConfigError
from common.events import Emit
from common.processes import signals
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.cli import RUNS, engine_options
from fedlab.sweep.form import Sweep
from fedserver.cli import checked_option, resolve, run_options
from fedserver.config import RunConfig


@click.command(cls=commandline.Command)
@run_options
def _run(**_: Any) -> None:
    """Only parses, as `fedlab simulate` does."""


def configured(cell: Cell) -> RunConfig:
    """The settings of a cell; raises a ConfigError for flags that cannot work."""
    try:
        with _run.make_context("run", cell.command()[1:]) as context:
            return resolve(**context.params)[0]
    except click.UsageError as error:
        raise ConfigError(error.format_message()) from error


@click.command(
    cls=commandline.Command,
    epilog=commandline.example(
        "fedlab sweep mine.toml --dry-run", "fedlab sweep mine.toml --jobs 4", "fedlab sweep mine.toml --json"
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print the runs and their settings, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@commandline.option(
    RUNS, "--seeds", type=click.IntRange(1), help="Seeds, from 0 on.  [default: those of the file]"
)
@checked_option("data_dir", section=RUNS)
@engine_options
@commandline.option(
    RUNS, "--out", type=click.Path(path_type=Path), help="Folder.  [default: runs/sweep-FILE]"
)
@commandline.log_options
def sweep(
    file: Path,
    dry_run: bool,
    as_json: bool,
    seeds: int | None,
    data_dir: str,
    engine: EngineChoice,
    out: Path | None,
    emit: Emit,
) -> None:
    """Compare methods on a grid of settings of one's own, as a TOML file says: runs, tables, one HTML page.

    Settings can be searched by validation accuracy first. All methods have the same seeds, and are compared
    seed by seed. Can be interrupted and started again: what has run stays.
    """
    run_file(file, f"fedlab sweep {file}", dry_run, as_json, seeds, data_dir, engine, out, emit)


def run_file(
    file: Path,
    command: str,
    dry_run: bool,
    as_json: bool,
    seeds: int | None,
    data_dir: str,
    engine: EngineChoice,
    out: Path | None,
    emit: Emit,
) -> None:
    """Runs what a file says, or shows it; `command` is what the page says that it was made by."""
    from rich.console import Console

    from fedlab.experiments.bench import Bench
    from fedlab.progress import bars_for
    from fedlab.sweep.file import read_sweep, with_seeds
    from fedlab.sweep.page import document, write_page
    from fedlab.sweep.run import run_sweep

    read = with_seeds(read_sweep(file, configured), seeds)
    folder = (out or Path("runs") / f"sweep-{file.stem}").absolute()
    data = str(Path(data_dir).absolute())
    if dry_run:
        _show_plan(read, data, as_json)
        return
    # What a library has to say of a cluster goes where the log goes.
    quiet = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with quiet, signals.stopped_by_signals(), bars_for(emit, Console(stderr=as_json)) as tell:
        results = run_sweep(read, Bench(engine, folder, data, tell), configured)
        report = write_page(results, folder, command)
    if as_json:
        click.echo(json.dumps(document(results, report), indent=2))
        return
    for title, table in results.tables().values():
        click.echo(f"{title}\n{table.markdown()}")
    click.echo(f"report: {report}")


def _show_plan(read: Sweep, data_dir: str, as_json: bool) -> None:
    from fedlab.sweep.plan import Plan
    from fedlab.sweep.preview import preview

    steps = preview(Plan(sweep=read, data_dir=data_dir))
    if as_json:
        click.echo(json.dumps([step.as_dict() for step in steps], indent=2))
        return
    for step in steps:
        click.echo(step.text())
    click.echo(f"{len(steps)} runs; nothing was run")
