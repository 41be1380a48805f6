"""Command line of the client."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from common import commandline
from common.bit_rate import bits_per_second
from common.data import datasets
from common.errors import ConfigError, RunError
from common.events import Emit
from common.names import require_name


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT | {"auto_envvar_prefix": "FEDCLIENT"},
    epilog=commandline.example("fedclient run --server 127.0.0.1:50051 --name clinic-a"),
)
def main() -> None:
    """Take part in a federated training run."""


@main.command(
    epilog=commandline.example("fedclient run --server 127.0.0.1:50051 --name clinic-a --state-dir state/a")
)
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option("--name", help="Stable name of this client.  [default: the host's name]")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Where the client keeps its control variate.  [default: .fedclient/NAME]",
)
@click.option(
    "--state-root",
    type=click.Path(path_type=Path),
    help="Instead of --name and --state-dir: take the first of DIR/client-1, client-2, ... that is free.",
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
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Train on the pictures in this folder, one folder per class, instead of an assigned shard.",
)
@click.option("--data-dir", default="data", help="Where data sets that are not built in are.")
@click.option("--threads", type=click.IntRange(1), default=1, help="Torch threads.")
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda")),
    default="cpu",
    help="Where to train; on a GPU results are not the same to the bit.",
)
@click.option(
    "--give-up",
    type=click.FloatRange(0),
    default=300.0,
    metavar="SECONDS",
    help="End after this long without a server.",
)
@click.option("--uplink", metavar="RATE", help="Send at this speed at the most, for example 2Mbit.")
@click.option("--downlink", metavar="RATE", help="Receive at this speed at the most, for example 10Mbit.")
@click.option(
    "--capture",
    type=click.Path(path_type=Path),
    help="Append every message to this file, for fedwire.",
)
@commandline.access_options
@commandline.log_options
def run(
    server: str,
    name: str | None,
    state_dir: Path | None,
    state_root: Path | None,
    dataset: str | None,
    shard: str | None,
    data: Path | None,
    data_dir: str,
    threads: int,
    device: str,
    give_up: float,
    uplink: str | None,
    downlink: str | None,
    capture: Path | None,
    emit: Emit,
    **credentials: Any,
) -> None:
    """Join a run, train until it ends, and end too.

    Waits for the server if it is not there yet. Every flag can also come from the environment, for example
    FEDCLIENT_RUN_SERVER=10.0.0.5:50051.

    """
    commandline.require_address("--server", server)
    if state_root is not None and (name is not None or state_dir is not None):
        raise ConfigError(
            "--state-root gives the name and the state directory; leave out --name and --state-dir"
        )
    name = name or socket.gethostname()
    require_name(name)
    if shard is not None and dataset is None:
        raise ConfigError("--shard goes with --dataset")
    if data is not None and dataset is not None:
        raise ConfigError("--data and --dataset exclude each other; give one of them")
    if dataset is not None:
        datasets.require_known(dataset)
    rates = {
        flag: bits_per_second(f"--{flag}", text) if text is not None else None
        for flag, text in (("uplink", uplink), ("downlink", downlink))
    }
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here; leave it out, or install torch with CUDA")
    from common.wire.capture import CaptureWriter
    from fedclient.own_data import OwnData, OwnDataset, OwnPictures
    from fedclient.run.daemon import ClientConfig, Daemon
    from fedclient.store.state import StateDir
    from fedclient.store.state_slot import first_free

    say = commandline.line_by_line(emit)
    own: OwnData | None = None
    if dataset is not None:
        own = OwnDataset(dataset, data_dir, shard)
    elif data is not None:
        own = OwnPictures(data, say)
    writer = CaptureWriter(capture, emit) if capture is not None else None
    with commandline.stopped_by_signals(), ExitStack() as stack:
        if state_root is not None:
            name, state = stack.enter_context(first_free(state_root))
        else:
            state = stack.enter_context(StateDir(state_dir or Path(".fedclient") / name))
        config = ClientConfig(
            server=server,
            name=name,
            data_dir=data_dir,
            own_data=own,
            threads=threads,
            device=device,
            give_up_s=give_up,
            access=commandline.access(server, name, **credentials),
            **rates,
        )
        end = Daemon(config, state, say, writer).run()
    if end.reason:
        raise RunError(f"the run ended early: {end.reason}")
    say(f"run finished after round {end.round}, accuracy {end.accuracy:.2%}")
