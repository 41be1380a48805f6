"""Command line of the client."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import click
import numpy as np

from common import cli as command
from common import datasets
from common.errors import ConfigError, RunError


@click.group(
    cls=command.Group,
    context_settings=command.CONTEXT | {"auto_envvar_prefix": "FEDCLIENT"},
    epilog=command.example("fedclient run --server 127.0.0.1:50051 --name clinic-a"),
)
def main() -> None:
    """Take part in a federated training run."""


@main.command(
    epilog=command.example("fedclient run --server 127.0.0.1:50051 --name clinic-a --state-dir state/a")
)
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option("--name", help="Stable name of this client.  [default: the host's name]")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Where the client keeps its control variate.  [default: .fedclient/NAME]",
)
@click.option(
    "--dataset",
    help="Train on this data set (built-in or module:factory) instead of an assigned shard.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="With --dataset: only every N-th example from the I-th on, I from 0.",
)
@click.option("--threads", type=click.IntRange(1), default=1, help="Torch threads.")
@click.option(
    "--give-up",
    type=click.FloatRange(0),
    default=300.0,
    metavar="SECONDS",
    help="End after this long without a server.",
)
def run(
    server: str,
    name: str | None,
    state_dir: Path | None,
    dataset: str | None,
    shard: str | None,
    threads: int,
    give_up: float,
) -> None:
    """Join a run, train until it ends, and end too.

    Waits for the server if it is not there yet. Every flag can also come from the environment, for example
    FEDCLIENT_RUN_SERVER=10.0.0.5:50051.

    """
    command.require_address("--server", server)
    name = name or socket.gethostname()
    own = _own_data(dataset, shard)
    from fedclient.daemon import ClientConfig, Daemon
    from fedclient.state import StateDir

    config = ClientConfig(
        server=server,
        name=name,
        state_dir=state_dir or Path(".fedclient") / name,
        own_data=own,
        threads=threads,
        give_up_s=give_up,
    )
    with command.stopped_by_signals(), StateDir(config.state_dir) as state:
        end = Daemon(config, state, command.say).run()
    if end.reason:
        raise RunError(f"the run ended early: {end.reason}")
    command.say(f"run finished after round {end.round}, accuracy {end.accuracy:.2%}")


def _own_data(dataset: str | None, shard: str | None) -> datasets.Dataset | None:
    """The client's own training data; None without --dataset."""
    if dataset is None:
        if shard is not None:
            raise ConfigError("--shard goes with --dataset")
        return None
    train = datasets.load(dataset, "train")
    if shard is None:
        return train
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not int(match[1]) < int(match[2]) <= len(train.labels):
        raise ConfigError(
            f"--shard must be I/N with I below N and N at most {len(train.labels)}, got {shard!r}"
        )
    return train.subset(np.arange(int(match[1]), len(train.labels), int(match[2])))
