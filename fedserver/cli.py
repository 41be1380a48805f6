"""Command line of the server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from common import commandline
from common.algorithms import ALGORITHMS
from common.algorithms.schedule import SCHEDULES
from common.data import datasets
from common.events import Emit
from common.models import names
from fedserver import presets
from fedserver.config import VARIATES, WEIGHTINGS, RunConfig
from fedserver.keys import cli

HELP = {
    "algorithm": "How clients are kept from drifting apart.",
    "model": "Built-in model or module:factory, imported from the current directory.",
    "dataset": "Built-in data set or module:factory, imported from the current directory.",
    "data_dir": "Where data sets that are not built in are read from and downloaded to.",
    "image_size": "Bring images to this height and width, to save time.",
    "width": "Factor on the channels of a built-in model, to save time.",
    "num_clients": "N; round 1 starts when all have joined, or --min-clients of them.",
    "rounds": "R; the server ends after the last one.",
    "local_epochs": "E, passes of each client over its shard per round.  [default: 1]",
    "local_steps": "K, minibatch steps per client and round, instead of --local-epochs.",
    "eta_l": "Step size of the clients.",
    "schedule": "How eta_l changes over the rounds: cosine to zero, or tenfold down at 50 % and 75 %.",
    "eta_g": "Step size of the server; 1 takes the mean of the client models.",
    "momentum": "Local momentum outside S_svr.",
    "mu": "Weight of the proximal term of fedprox.  [default: 0.1]",
    "feddyn_alpha": "Weight of the regulariser of feddyn.  [default: 0.01]",
    "alpha": "Dirichlet concentration of the shards; small makes clients differ.",
    "partition": "JSON file with ready-made shards; see fedlab partition.",
    "validation": "Share of every shard that its client keeps for validation.",
    "weighting": "Weights of the mean over clients.",
    "aggregation": "mean, or median or trimmed:F of each number over all clients, if not all are trusted.",
    "norm_bound": "Leave out updates larger than this many times the median.  [default: none]",
    "clients_per_round": "S, clients drawn at random for each round.  [default: all]",
    "gather": "N is whoever has joined when nobody has for this many seconds, --num-clients at least.",
    "min_clients": "Start with this many clients; the others may join later.  [default: all]",
    "lease": "Seconds without a sign of life after which a client is not waited for.  [default: for ever]",
    "deadline": "Seconds after which a round closes without those who have not answered.  [default: never]",
    "quorum": "Share of a round's clients whose updates must be in before anybody is left out.",
    "variates": "Send control variates, or derive them from the models wherever both sides can.",
    "seed": "Fixes initialisation, shards and batches.",
    "cka": "Compare client models by CKA on this many test images wherever x is evaluated; 0: do not.",
    "eval_every": "Evaluate after every n-th round; 0: only after the last.",
}
CHOICES = {
    "algorithm": tuple(ALGORITHMS),
    "weighting": WEIGHTINGS,
    "schedule": tuple(SCHEDULES),
    "variates": VARIATES,
}


class BatchSize(click.ParamType[Any]):
    """A number of examples, or `full` for the whole shard."""

    name = "B|full"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Keeps `full` as it is and makes anything else a number."""
        if value == "full":
            return value
        try:
            return int(value)
        except (TypeError, ValueError):
            self.fail(f"expected a whole number or full, got {value!r}", param, ctx)


def run_options(function: Any) -> Any:
    """The flags of a run, with the defaults that RunConfig has; `resolved` makes the settings of them."""
    function = click.option(
        "--augment/--no-augment", default=None, help="Random flip and crop.  [default: as the data set says]"
    )(function)
    function = click.option(
        "--codec",
        multiple=True,
        metavar="CODEC",
        help="How updates travel: fp32 (as they are), fp16, bf16, int8 (a scale per 2048 elements), "
        "int8-tensor (one scale) or topk:F (the largest share F). down=CODEC is for x, control=CODEC for c "
        "and c_i; repeatable.  [default: fp32 for all]",
    )(function)
    function = click.option(
        "--svr",
        multiple=True,
        metavar="PATTERN",
        help="Names with variance reduction: a glob or a module's name; repeatable; none for none.  "
        "[default: the model's classifier]",
    )(function)
    function = click.option(
        "--batch-size", type=BatchSize(), default=RunConfig.batch_size, help="Examples per step, or full."
    )(function)
    for field in reversed(fields(RunConfig)):
        if field.name in HELP:
            kind: Any = click.Choice(CHOICES[field.name]) if field.name in CHOICES else _type(field)
            flag = "--" + field.name.replace("_", "-")
            function = click.option(flag, type=kind, default=field.default, help=HELP[field.name])(function)
    function = click.option(
        "--run-dir",
        type=click.Path(path_type=Path),
        help="Where results go.  [default: runs/DATE-TIME-ALGORITHM]",
    )(function)
    function = click.option(
        "--preset", help="Settings of a cell of the paper's tables; see fedlab presets. Flags go before it."
    )(function)
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=commandline.settings_file,
        help="TOML file with any of these settings; flags and environment go before it.",
    )(function)


def resolved(run_dir: Path | None, preset: str | None, **settings: Any) -> tuple[RunConfig, Path]:
    """The settings that flags, environment, file and preset add up to, and the run directory."""
    if preset is not None:
        context = click.get_current_context()
        for name, value in presets.settings(preset, settings["algorithm"]).items():
            if context.get_parameter_source(name) is ParameterSource.DEFAULT:
                settings[name] = value
    _prefer_the_stronger(settings, "local_epochs", "local_steps")
    if settings["batch_size"] == "full":
        settings["batch_size"] = None
    config = RunConfig(**settings)
    names.require_known(config.model)
    datasets.require_known(config.dataset)
    return config, run_dir or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.algorithm}"


def _prefer_the_stronger(settings: dict[str, Any], *names: str) -> None:
    """Of settings that exclude each other, one given by flag silences one given in a file, and so on."""
    context = click.get_current_context()
    order = [ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP]
    rank = {
        n: order.index(s) if (s := context.get_parameter_source(n)) in order else len(order) for n in names
    }
    for name in names:
        if rank[name] > min(rank.values()):
            settings[name] = None


def _type(field: Field[Any]) -> Any:
    """The type of a setting; with `X | None` it is X."""
    return {"int": int, "float": float, "str": str}[str(field.type).removesuffix(" | None")]


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT | {"auto_envvar_prefix": "FEDSERVER"},
    epilog=commandline.example("fedserver run --num-clients 4 --rounds 20 --listen 127.0.0.1:50051"),
)
def main() -> None:
    """Serve a federated training run, or ask a running server what it does."""


@main.command(
    epilog=commandline.example("fedserver run --algorithm fedpvr --alpha 0.1 --num-clients 5 --rounds 20")
)
@click.option(
    "--listen", default="127.0.0.1:50051", metavar="HOST:PORT", help="Port 0 picks a free one and prints it."
)
@click.option(
    "--capture",
    type=click.Path(path_type=Path),
    help="Append every message to this file, for fedwire.",
)
@click.option("--resume/--no-resume", default=True, help="Go on with the run in --run-dir, if there is one.")
@click.option(
    "--certs",
    type=click.Path(path_type=Path),
    help="Use TLS: folder with ca.pem, crl.pem, server.pem and server.key. Clients need a certificate.",
)
@click.option(
    "--tokens",
    type=click.Path(path_type=Path),
    help="Clients need a token of this folder, and no certificate.",
)
@click.option("--insecure", is_flag=True, help="Let other machines in without TLS.")
@commandline.log_options
@run_options
def run(
    listen: str,
    capture: Path | None,
    resume: bool,
    certs: Path | None,
    tokens: Path | None,
    insecure: bool,
    emit: Emit,
    **settings: Any,
) -> None:
    """Serve one training run and end when it is over.

    Every flag can also come from the environment, for example FEDSERVER_RUN_ROUNDS=50.
    """
    config, run_dir = resolved(**settings)
    commandline.require_address("--listen", listen)
    from fedserver.access.settings import AccessSettings
    from fedserver.server import serve

    commandline.deaf_at_exit()
    access = AccessSettings(certs, tokens, insecure)
    ended = serve(config, listen, run_dir, emit, access=access, capture_path=capture, resume=resume)
    raise SystemExit(commandline.exit_code(asyncio.run(ended)))


@main.command(epilog=commandline.example("fedserver status --server 127.0.0.1:50051 --json"))
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option("--name", default="", help="Whose certificate to show, with --certs.")
@commandline.access_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(server: str, name: str, as_json: bool, **credentials: Any) -> None:
    """Say what a running server is doing."""
    commandline.require_address("--server", server)
    access = commandline.access(server, name, **credentials)
    from fedserver.console.status_client import ask

    reply = ask(server, access)
    if as_json:
        click.echo(json.dumps(reply, indent=2))
        return
    from fedserver.console.tables import show_status

    show_status(reply)


@main.command(epilog=commandline.example("fedserver health --server 127.0.0.1:50051"))
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option("--name", default="", help="Whose certificate to show, with --certs.")
@commandline.access_options
def health(server: str, name: str, **credentials: Any) -> None:
    """Ask a server by the gRPC health protocol whether it serves; the exit code is the answer."""
    commandline.require_address("--server", server)
    access = commandline.access(server, name, **credentials)
    from fedserver.console.status_client import require_health

    require_health(server, access)
    click.echo("serving")


main.add_command(cli.certs)
main.add_command(cli.tokens)
