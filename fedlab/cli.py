"""Command line of the lab bench."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from common import commandline
from common.algorithms import ALGORITHMS
from common.bit_rate import bits_per_second
from common.data import datasets
from common.errors import ConfigError
from common.events import Emit
from common.models import names
from common.wire.codecs import Codecs
from fedserver import presets
from fedserver.cli import resolved, run_options
from fedserver.worker.partition import class_counts, dirichlet_partition, write_partition

EXPERIMENTS = ("table1", "table2", "fig-drift", "fig-svr-start", "fig-conformal", "fig-partition")


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT,
    epilog=commandline.example("fedlab demo", "fedlab model vgg11 --num-classes 10"),
)
def main() -> None:
    """The lab bench around a federation: demo, partitions, model cards."""


@main.command(epilog=commandline.example("fedlab demo --clients 10 --rounds 30"))
@click.option("--clients", type=click.IntRange(1, 100), default=5, help="N.")
@click.option("--rounds", type=click.IntRange(1), default=15, help="R.")
@click.option("--alpha", type=float, default=0.1, help="Dirichlet concentration; small makes clients differ.")
@click.option("--seed", type=int, default=0)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the runs.  [default: runs/demo-DATE-TIME]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the closing table as JSON.")
def demo(clients: int, rounds: int, alpha: float, seed: int, out: Path | None, as_json: bool) -> None:
    """Train FedPVR, FedAvg and SCAFFOLD with a real server and real clients, and compare their traffic."""
    from rich.console import Console

    from fedlab.demo import DemoConfig, run_demo, show

    folder = out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    config = DemoConfig(folder=folder, clients=clients, rounds=rounds, alpha=alpha, seed=seed)
    # With --json standard output holds the document alone.
    console = Console(stderr=as_json)
    with commandline.stopped_by_signals():
        rows = run_demo(config, console)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    show(rows, console)
    console.print(f"runs and logs: {folder}", highlight=False)


@main.command(epilog=commandline.example("fedlab simulate --algorithm scaffold --alpha 0.1 --num-clients 10"))
@commandline.log_options
@run_options
def simulate(emit: Emit, **settings: Any) -> None:
    """Run a federation in this process, without sockets: same flags, same results, no waiting for processes.

    Takes the flags of fedserver run and writes the same run directory, to the bit.
    """
    config, run_dir = resolved(**settings)
    from fedlab.simulate import simulate as run_simulation

    with commandline.stopped_by_signals():
        run_simulation(config, run_dir, emit)


@main.command(
    epilog=commandline.example(
        "fedlab centralised --dataset cifar10 --model vgg11 --rounds 100 --momentum 0.9"
    )
)
@commandline.log_options
@run_options
def centralised(emit: Emit, **settings: Any) -> None:
    """Train on the pooled data, for comparison: one client that has everything, a round per epoch.

    Takes the flags of fedserver run and writes the same run directory. Momentum starts at zero in each epoch.
    """
    given = click.get_current_context().get_parameter_source("algorithm")
    if given is not ParameterSource.DEFAULT:
        raise ConfigError("fedlab centralised has no --algorithm: there is nobody to average with")
    settings |= {"algorithm": "fedavg", "num_clients": 1, "partition": None}
    config, run_dir = resolved(**settings)
    from fedlab.simulate import simulate as run_simulation

    with commandline.stopped_by_signals():
        run_simulation(config, run_dir, emit)


@main.command(
    epilog=commandline.example(
        "fedlab reproduce table1 --scale tiny", "fedlab reproduce table1 --scale small --seeds 3"
    )
)
@click.argument("what", type=click.Choice(EXPERIMENTS))
@click.option("--scale", type=click.Choice(("tiny", "small", "paper")), default="tiny", help="How large.")
@click.option("--seeds", type=click.IntRange(1), default=1, help="Repetitions.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time.  [default: number of cores]")
@click.option("--data-dir", default="data", help="Where data sets that are not built in are.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: runs/reproduce-SCALE]")
def reproduce(what: str, scale: str, seeds: int, jobs: int | None, data_dir: str, out: Path | None) -> None:
    """Make a table or figure of the paper: runs, tables, pictures and one HTML report.

    Can be interrupted and started again: finished runs are kept, and shared between experiments of a scale.
    """
    from rich.console import Console

    from fedlab.experiments.reproduce import Bench
    from fedlab.experiments.reproduce import reproduce as make
    from fedlab.experiments.scales import SCALES

    bench = Bench(
        scale=SCALES[scale],
        seeds=seeds,
        jobs=jobs or os.cpu_count() or 1,
        folder=out or Path("runs") / f"reproduce-{scale}",
        data_dir=str(Path(data_dir).absolute()),
        console=Console(),
    )
    with commandline.stopped_by_signals():
        report_file = make(what, bench, f"fedlab reproduce {what} --scale {scale} --seeds {seeds}")
    bench.console.print(f"report: {report_file}", highlight=False, soft_wrap=True)


@main.command(
    epilog=commandline.example(
        "fedlab compare --link 2Mbit", "fedlab compare --codecs fp32,int8,topk:0.05 --target 0.85 --json"
    )
)
@click.option("--link", default="2Mbit", help="Speed of each client's link, up and down.")
@click.option("--target", type=click.FloatRange(0, 1), default=0.9, help="Accuracy to reach.")
@click.option(
    "--codecs",
    default="fp32,int8",
    help="Codecs to try with every method, as for --codec, several of them joined by +: int8+control=int8.",
)
@click.option("--dataset", default="digits", help="Built-in data set or module:factory.")
@click.option("--model", default="cnn", help="Built-in model or module:factory.")
@click.option("--data-dir", default="data", help="Where data sets that are not built in are.")
@click.option("--num-clients", type=click.IntRange(1), default=5, help="N.")
@click.option("--rounds", type=click.IntRange(1), default=15, help="R.")
@click.option("--local-epochs", type=click.IntRange(1), default=5, help="E.")
@click.option("--eta-l", type=float, default=0.1, help="Step size of the clients.")
@click.option("--alpha", type=float, default=0.1, help="Dirichlet concentration; small makes clients differ.")
@click.option("--seed", type=int, default=0)
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time.  [default: number of cores]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the runs.  [default: runs/compare]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(
    link: str,
    target: float,
    codecs: str,
    jobs: int | None,
    out: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Compare FedAvg, FedPVR and SCAFFOLD with different codecs by the time they take on a slow link.

    Simulates each of them (finished runs are kept, so another --link or --target costs nothing) and adds up
    the training time of the slowest client and the time its bytes take.
    """
    speed = bits_per_second("--link", link)
    for codec in codecs.split(","):
        Codecs.parsed(tuple(codec.split("+")))
    from rich.console import Console

    from fedlab.experiments.compare import Comparison, show
    from fedlab.experiments.compare import compare as run_all

    settings["data_dir"] = str(Path(settings["data_dir"]).absolute())
    comparison = Comparison(settings=settings, codecs=codecs.split(","), target=target, link=speed)
    console = Console(stderr=as_json)
    with commandline.stopped_by_signals():
        rows = run_all(comparison, out or Path("runs") / "compare", jobs or os.cpu_count() or 1, console)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        show(rows, target, link, console)


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


@main.command(epilog=commandline.example("fedlab model resnet8 --num-classes 100 --json"))
@click.argument("name")
@click.option("--num-classes", type=click.IntRange(2), default=10, help="C.")
@click.option("--width", type=float, default=1.0, help="Factor on the channels of a built-in model.")
@click.option("--svr", multiple=True, metavar="PATTERN", help="S_svr, as in fedserver run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def model(name: str, num_classes: int, width: float, svr: tuple[str, ...], as_json: bool) -> None:
    """Show a model's tensors, which of them are in S_svr, and what that means for traffic.

    NAME is a built-in model or module:factory, imported from the current directory.
    """
    names.require_known(name)
    from rich.console import Console

    from fedlab.modelcard import card, show

    described = card(name, num_classes, width, svr)
    if as_json:
        click.echo(json.dumps(described, indent=2))
    else:
        show(described, Console())


@main.command("presets", epilog=commandline.example("fedlab presets --json"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_presets(as_json: bool) -> None:
    """List the presets of fedserver run and what they set for each algorithm."""
    table = {
        preset: {algorithm: presets.settings(preset, algorithm) for algorithm in ALGORITHMS}
        for preset in presets.NAMES
    }
    if as_json:
        click.echo(json.dumps(table, indent=2))
        return
    from fedlab.presetlist import show

    show(table)


@main.command(
    epilog=commandline.example(
        "fedlab partition --dataset digits --alpha 0.1 --num-clients 5 --seed 0 --out shards.json"
    )
)
@click.option("--dataset", default="digits", help="Built-in data set or module:factory.")
@click.option("--data-dir", default="data", help="Where data sets that are not built in are.")
@click.option("--alpha", type=float, default=0.5, help="Dirichlet concentration; small makes clients differ.")
@click.option("--num-clients", type=int, default=4, help="N.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0)
@click.option(
    "--equal/--no-equal",
    default=True,
    help="Re-cut into shards of one size, as the published experiments do and fedserver does.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Partition file to write.")
@click.option("--json", "as_json", is_flag=True, help="Print the class counts as JSON.")
def partition(
    dataset: str,
    data_dir: str,
    alpha: float,
    num_clients: int,
    seed: int,
    equal: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Split a data set over clients and show who gets which classes."""
    train = datasets.load(dataset, "train", data_dir)
    shards = dirichlet_partition(train.labels, num_clients, alpha, seed, equal=equal)
    write_partition(out, shards)
    counts = class_counts(shards, train.labels, train.num_classes)
    if as_json:
        click.echo(json.dumps({"file": str(out), "counts": counts.tolist()}))
        return
    from rich.console import Console

    from fedlab.shards import show

    show(counts, Console())
