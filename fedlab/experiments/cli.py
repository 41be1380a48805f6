"""Commands that run many simulations and put them side by side."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from common import commandline
from common.bit_rate import bits_per_second
from common.events import Emit
from common.processes import signals
from common.wire.codec_choice import Codecs
from fedlab.engine.choice import EngineChoice
from fedlab.engine.cli import RUNS, engine_options
from fedserver.cli import checked_option


@click.command(
    cls=commandline.Command,
    epilog=commandline.example(
        "fedlab compare --link 2Mbit", "fedlab compare --codecs fp32,int8,topk:0.05 --target 0.85 --json"
    ),
)
@click.option("--link", default="2Mbit", help="Speed of each client's link, up and down.")
@click.option("--target", type=click.FloatRange(0, 1), default=0.9, help="Accuracy to reach.")
@click.option(
    "--codecs",
    default="fp32,int8",
    help="Codecs to try with every method, as for --codec, several of them joined by +: int8+control=int8.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@checked_option("dataset", section=RUNS)
@checked_option("model", section=RUNS)
@checked_option("data_dir", section=RUNS)
@checked_option("num_clients", section=RUNS, default=5)
@checked_option("rounds", section=RUNS, default=15)
@checked_option("local_epochs", section=RUNS, default=5)
@checked_option("eta_l", section=RUNS)
@checked_option("alpha", section=RUNS, default=0.1)
@checked_option("seed", section=RUNS)
@engine_options
@commandline.option(
    RUNS, "--out", type=click.Path(path_type=Path), help="Folder for the runs.  [default: runs/compare]"
)
@commandline.log_options
def compare(
    link: str,
    target: float,
    codecs: str,
    engine: EngineChoice,
    out: Path | None,
    as_json: bool,
    emit: Emit,
    **settings: Any,
) -> None:
    """Compare FedAvg, FedPVR and SCAFFOLD with different codecs by the time they take on a slow link.

    Simulates each of them (finished runs are kept, so another --link or --target costs nothing) and adds up
    the training time of the slowest client and the time its bytes take.
    """
    speed = bits_per_second("--link", link)
    for codec in codecs.split(","):
        Codecs.parse(tuple(codec.split("+")))
    from rich.console import Console

    from fedlab.console import show_comparison
    from fedlab.experiments.compare import Comparison
    from fedlab.experiments.compare import compare as run_all
    from fedlab.progress import bars_for

    settings["data_dir"] = str(Path(settings["data_dir"]).absolute())
    comparison = Comparison(settings=settings, codecs=codecs.split(","), target=target, link=speed)
    console = Console(stderr=as_json)
    # What a library has to say of a cluster goes where the log goes.
    quiet = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with quiet, signals.stopped_by_signals(), bars_for(emit, console) as tell:
        rows = run_all(comparison, out or Path("runs") / "compare", engine, tell)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show_comparison(rows, target, link, console)
