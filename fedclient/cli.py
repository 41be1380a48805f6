"""Command line of the client."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common import commandline
from common.access.quiet_grpc import import_grpc_quietly
from common.bit_rate import bits_per_second
from common.data import datasets
from common.errors import ConfigError, RunError
from common.events import Emit
from common.names import require_name

if TYPE_CHECKING:
    from fedclient.own_data import OwnData
    from fedclient.rpc.round_stream import RunEnded

START, DATA, STATE, TRAINING, WIRE = "Start here", "Data", "State", "Training", "Wire"


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT | {"auto_envvar_prefix": "FEDCLIENT"},
    epilog=commandline.example("fedclient run --server 127.0.0.1:50051 --name clinic-a"),
)
def main() -> None:
    """Take part in a federated training run."""


def _rate(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Callback of a flag that takes a speed."""
    return None if text is None else bits_per_second(parameter.opts[0], text)


@main.command(
    epilog=commandline.example("fedclient run --server 127.0.0.1:50051 --name clinic-a --state-dir state/a")
)
@commandline.option(
    START, "--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens."
)
@commandline.option(START, "--name", help="Stable name of this client.  [default: the host's name]")
@commandline.option(
    START,
    "--data",
    type=click.Path(path_type=Path),
    help="Train on the pictures in this folder, one folder per class, instead of an assigned shard.",
)
@commandline.option(
    DATA,
    "--dataset",
    metavar="NAME",
    help="Train on this data set (built-in or module:factory) instead of an assigned shard.",
)
@commandline.option(
    DATA,
    "--shard",
    metavar="I/N",
    help="With --dataset: only every N-th example from the I-th on, I from 0.",
)
@commandline.option(
    DATA, "--data-dir", default="data", metavar="DIR", help="Where data sets that are not built in are."
)
@commandline.option(
    STATE,
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Where the client keeps its control variate.  [default: .fedclient/NAME]",
)
@commandline.option(
    STATE,
    "--state-root",
    type=click.Path(path_type=Path),
    help="Instead of --name and --state-dir: take the first of DIR/client-1, client-2, ... that is free.",
)
@commandline.option(TRAINING, "--threads", type=click.IntRange(1), default=1, help="Torch threads.")
@commandline.option(
    TRAINING,
    "--device",
    type=click.Choice(("cpu", "cuda")),
    default="cpu",
    help="Where to train; on a GPU results are not the same to the bit.",
)
@commandline.option(
    WIRE,
    "--give-up",
    type=click.FloatRange(0),
    default=300.0,
    metavar="SECONDS",
    help="End after this long without a server.",
)
@commandline.option(
    WIRE,
    "--uplink",
    metavar="RATE",
    callback=_rate,
    help="Send at this speed at most, for example 2Mbit.",
)
@commandline.option(
    WIRE,
    "--downlink",
    metavar="RATE",
    callback=_rate,
    help="Receive at this speed at most, for example 10Mbit.",
)
@commandline.capture_option(WIRE)
@commandline.access_options
@commandline.log_options
def run(emit: Emit, certs: Path | None, token_file: Path | None, insecure: bool, **given: Any) -> None:
    """Join a run, train until it ends, and end too.

    Waits for the server if it is not there yet. Every flag can also come from the environment, for example
    FEDCLIENT_RUN_SERVER=10.0.0.5:50051.
    """
    credentials = {"certs": certs, "token_file": token_file, "insecure": insecure}
    end = _take_part(Flags(**given), credentials, emit)
    if end.reason:
        raise RunError(f"the run ended early: {end.reason}")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of `fedclient run` but for credentials; what can be checked at once is checked."""

    server: str
    name: str | None
    state_dir: Path | None
    state_root: Path | None
    dataset: str | None
    shard: str | None
    data: Path | None
    data_dir: str
    threads: int
    device: str
    give_up: float
    uplink: float | None
    downlink: float | None
    capture: Path | None

    def __post_init__(self) -> None:
        commandline.require_address("--server", self.server)
        if self.state_root is not None and (self.name is not None or self.state_dir is not None):
            raise ConfigError(
                "--state-root gives the name and the state directory; leave out --name and --state-dir"
            )
        require_name(self.own_name)
        if self.shard is not None and self.dataset is None:
            raise ConfigError("--shard goes with --dataset")
        if self.data is not None and self.dataset is not None:
            raise ConfigError("--data and --dataset exclude each other; give one of them")
        if self.dataset is not None:
            datasets.require_known(self.dataset)

    @property
    def own_name(self) -> str:
        """The client's name, unless a state root gives it one."""
        return self.name or socket.gethostname()


def _take_part(flags: Flags, credentials: dict[str, Any], emit: Emit) -> RunEnded:
    """Everything that needs torch or gRPC; `--help` and wrong flags do not wait for them."""
    import torch

    if flags.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here; leave it out, or install torch with CUDA")
    import_grpc_quietly()
    from common.wire.capture import CaptureWriter
    from fedclient.config import ClientConfig
    from fedclient.run.daemon import Daemon
    from fedclient.store.state import StateDir
    from fedclient.store.state_slot import first_free_slot

    own = _own_data(flags, emit)
    capture = CaptureWriter(flags.capture, emit) if flags.capture is not None else None
    name = flags.own_name
    with commandline.stopped_by_signals(), ExitStack() as stack:
        if flags.state_root is not None:
            name, state = stack.enter_context(first_free_slot(flags.state_root))
        else:
            state = stack.enter_context(StateDir(flags.state_dir or Path(".fedclient") / name))
        config = ClientConfig(
            server=flags.server,
            name=name,
            data_dir=flags.data_dir,
            own_data=own,
            threads=flags.threads,
            device=flags.device,
            give_up_s=flags.give_up,
            uplink=flags.uplink,
            downlink=flags.downlink,
            access=commandline.access(flags.server, name, **credentials),
        )
        return Daemon(config, state, emit, capture).run()


def _own_data(flags: Flags, emit: Emit) -> OwnData | None:
    from fedclient.own_data import OwnDataset, OwnPictures

    if flags.dataset is not None:
        return OwnDataset(flags.dataset, flags.data_dir, flags.shard, emit)
    return OwnPictures(flags.data, emit) if flags.data is not None else None
