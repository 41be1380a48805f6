"""Command line of the lab bench."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from common import commandline
from common.algorithms import ALGORITHMS
from common.bit_rate import bits_per_second
from common.data import datasets
from common.data.partition_file import write_partition
from common.devices.cli import training_options
from common.errors import ConfigError
from common.events import Emit
from common.installation import extras
from common.installation.cli import version_option
from common.processes import memory, signals
from fedlab.experiments import cli as experiments
from fedlab.models import cli as models
from fedlab.paper import cli as paper
from fedlab.plugins import cli as plugins
from fedlab.sweep import cli as sweeps
from fedlab.theory import cli as theory
from fedserver import presets
from fedserver.cli import checked_option, resolve, run_options
from fedserver.config import RunConfig
from fedserver.flag_types import resume_option
from fedserver.settings import Section
from fedserver.worker.partition import class_counts, dirichlet_partition


@click.group(
    cls=commandline.Group,
    extra="lab",
    context_settings=commandline.CONTEXT,
    epilog=commandline.example("fedlab demo", "fedlab model vgg11 --num-classes 10"),
)
@version_option
def main() -> None:
    """The lab bench around a federation: demo, simulations, experiments, partitions, model cards."""


@main.command(epilog=commandline.example("fedlab demo --clients 10 --rounds 30"))
@click.option("--clients", type=click.IntRange(1, 100), default=5, help="N.")
@checked_option("rounds", default=12)
@checked_option("alpha", default=0.1)
@checked_option("seed")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the runs.  [default: runs/demo-DATE-TIME]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the closing table as JSON.")
@commandline.log_options
def demo(
    clients: int, rounds: int, alpha: float, seed: int, out: Path | None, as_json: bool, emit: Emit
) -> None:
    """Train FedPVR, FedAvg and SCAFFOLD with a real server and real clients, and compare their traffic."""
    from rich.console import Console

    from fedlab.console import show_demo
    from fedlab.demo import DemoConfig, run_demo
    from fedlab.progress import bars_for

    extras.require("torch", "lab")
    folder = out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    config = DemoConfig(folder=folder, clients=clients, rounds=rounds, alpha=alpha, seed=seed)
    console = Console(stderr=as_json)
    with signals.stopped_by_signals(), bars_for(emit, console) as tell:
        rows = run_demo(config, tell)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    show_demo(rows, console)
    console.print(f"runs and logs: {folder}", highlight=False)


@main.command(
    epilog=commandline.example("fedlab simulate --algorithm scaffold --alpha 0.1 --num-clients 10 --jobs 2")
)
@run_options
@training_options(Section.TRAINING)
@resume_option
@commandline.option(
    Section.RUN,
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    metavar="n",
    help="Clients that train at the same time, each in a process of its own. Results are the same.",
)
@commandline.log_options
def simulate(emit: Emit, jobs: int, resume: bool, device: str, autocast: str, **settings: Any) -> None:
    """Run a federation on this machine, without sockets: same flags, same results, no waiting for processes.

    Takes the flags of fedserver run and writes the same run directory, to the bit.
    """
    _simulate(*resolve(**settings), emit, device, autocast, resume=resume, jobs=jobs)


@main.command(
    epilog=commandline.example(
        "fedlab centralised --dataset cifar10 --model vgg11 --rounds 100 --momentum 0.9"
    )
)
@run_options
@training_options(Section.TRAINING)
@resume_option
@commandline.log_options
def centralised(emit: Emit, resume: bool, device: str, autocast: str, **settings: Any) -> None:
    """Train on the pooled data, for comparison: one client that has everything, a round per epoch.

    Takes the flags of fedserver run and writes the same run directory. Momentum starts at zero in each epoch.
    """
    given = click.get_current_context().get_parameter_source("algorithm")
    if given is not ParameterSource.DEFAULT:
        raise ConfigError("fedlab centralised has no --algorithm: there is nobody to average with")
    settings |= {"algorithm": "fedavg", "num_clients": 1, "partition": None}
    _simulate(*resolve(**settings), emit, device, autocast, resume=resume)


def _simulate(
    config: RunConfig, run_dir: Path, emit: Emit, device: str, autocast: str, *, resume: bool, jobs: int = 1
) -> None:
    """Wrong flags do not wait for torch; memory is kept as a client keeps it."""
    with memory.loading():
        from common.devices.choice import on_devices
        from fedclient.training.freed_memory import KEPT_BYTES
        from fedlab.simulation import simulate as run_simulation
    memory.keep_pages(KEPT_BYTES)
    with signals.stopped_by_signals():
        run_simulation(config, run_dir, emit, on_devices(device, autocast), jobs=jobs, resume=resume)


@main.command(epilog=commandline.example("fedlab report runs/a runs/b --link 2Mbit --out report.html"))
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--link", default="10Mbit", help="Speed of a client's link, for accuracy over time.")
@click.option("--out", type=click.Path(path_type=Path), default="report.html", help="Page to write.")
def report(run_dirs: tuple[Path, ...], link: str, out: Path) -> None:
    """Write one HTML page about any runs: learning curves, traffic by purpose, drift, shards."""
    bits_per_second("--link", link)
    from fedlab.reports.report import write_report

    click.echo(write_report(list(run_dirs), out, link).markdown(), nl=False)
    click.echo(f"report: {out}")


@main.command(epilog=commandline.example("fedlab card runs/a/model.safetensors"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def card(file: Path, as_json: bool) -> None:
    """Show what a model says of itself: its run, who is in it, and who was left out and why."""
    from common.records import form
    from common.records.provenance import read_provenance

    found = read_provenance(file)
    if as_json:
        click.echo(json.dumps(form.plain(found), indent=2))
        return
    from rich.console import Console

    from fedlab.card import show_card

    show_card(found, Console(markup=False))


@main.command("presets", epilog=commandline.example("fedlab presets --json"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_presets(as_json: bool) -> None:
    """List the presets of fedserver run and what they set for each algorithm."""
    table = {
        preset: {algorithm: presets.settings(preset, algorithm) for algorithm in ALGORITHMS.built_in}
        for preset in presets.NAMES
    }
    if as_json:
        click.echo(json.dumps(table, indent=2))
        return
    from rich.console import Console

    from fedlab.console import show_presets

    norms = {preset: presets.normalisation(preset) for preset in presets.NAMES}
    show_presets(table, norms, Console())


@main.command(
    epilog=commandline.example(
        "fedlab partition --alpha 0.1 --num-clients 5",
        "fedlab partition --dataset digits --alpha 0.1 --num-clients 5 --seed 0 --out shards.json",
    )
)
@checked_option("dataset")
@checked_option("data_dir")
@checked_option("alpha")
@checked_option("num_clients")
@checked_option("seed")
@click.option(
    "--equal/--no-equal",
    default=True,
    help="Re-cut into shards of one size, as the published experiments do and fedserver does.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write a partition file too, for fedserver run --partition.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the class counts as JSON.")
def partition(
    dataset: str,
    data_dir: str,
    alpha: float,
    num_clients: int,
    seed: int,
    equal: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Split a data set over clients and show who gets which classes.

    Shows it only, unless --out says where to write it.
    """
    train = datasets.load(dataset, "train", data_dir)
    shards = dirichlet_partition(train.labels, num_clients, alpha, seed, equal=equal)
    if out is not None:
        write_partition(out, shards)
    counts = class_counts(shards, train.labels, train.num_classes)
    if as_json:
        click.echo(json.dumps({"file": out and str(out), "counts": counts.tolist()}))
        return
    from rich.console import Console

    from fedlab.console import show_shards

    show_shards(counts, Console())


main.add_command(plugins.plugins)
main.add_command(models.model)
main.add_command(experiments.compare)
main.add_command(paper.reproduce)
main.add_command(sweeps.sweep)
main.add_command(theory.theory)
