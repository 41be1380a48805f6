"""Command line of the client."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common import commandline
from common.access import cli as access_cli
from common.access.credentials import require_encrypted
from common.access.quiet_grpc import import_grpc_quietly
from common.bit_rate import bits_per_second
from common.errors import ConfigError, RunError
from common.events import Emit
from fedclient.flags import Flags
from fedclient.keys.cli import certs as certs_group
from fedclient.site import Site

if TYPE_CHECKING:
    from fedclient.own_data import OwnData
    from fedclient.rpc.round_stream import RunEnded

START, DATA, STATE, TRAINING, WIRE = "Start here", "Data", "State", "Training", "Wire"
ALLOWED = "Permissions"


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT | {"auto_envvar_prefix": "FEDCLIENT"},
    epilog=commandline.example("fedclient run --server 127.0.0.1:50051 --name clinic-a"),
)
def main() -> None:
    """Take part in a federated training run."""


main.add_command(certs_group)


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
    DATA,
    "--partition",
    type=click.Path(path_type=Path),
    help="With --shard: take shard I of the N in this file instead; see fedlab partition.",
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
    ALLOWED,
    "--model",
    metavar="NAME",
    help="Train this model (built-in or module:factory) and no other.  [default: any built-in]",
)
@commandline.option(
    ALLOWED,
    "--allow-plugin",
    metavar="MODULE:FACTORY",
    multiple=True,
    help="Let the server name this code of the current directory as model or data set; repeatable.",
)
@commandline.option(
    ALLOWED,
    "--max-parameters",
    type=click.IntRange(1),
    default=Site.max_parameters,
    help="Refuse larger models, and runs that need more than 64 bytes of memory for each.",
)
@commandline.option(
    ALLOWED,
    "--max-steps",
    type=click.IntRange(1),
    default=Site.max_steps,
    help="Refuse rounds with more local steps.",
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
@access_cli.access_options
@commandline.log_options
def run(emit: Emit, certs: Path | None, token_file: Path | None, insecure: bool, **given: Any) -> None:
    """Join a run, train until it ends, and end too.

    Waits for the server if it is not there yet. Every flag can also come from the environment, for example
    FEDCLIENT_RUN_SERVER=10.0.0.5:50051.
    """
    flags = Flags(**given)
    site = flags.site
    require_encrypted(flags.server, certs, insecure)
    credentials = {"certs": certs, "token_file": token_file, "insecure": insecure}
    end = _take_part(flags, site, credentials, emit)
    if end.reason:
        raise RunError(f"the run ended early: {end.reason}")


def _take_part(flags: Flags, site: Site, credentials: dict[str, Any], emit: Emit) -> RunEnded:
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
            site=site,
            threads=flags.threads,
            device=flags.device,
            give_up_s=flags.give_up,
            uplink=flags.uplink,
            downlink=flags.downlink,
            access=access_cli.access(flags.server, name, **credentials),
        )
        return Daemon(config, state, emit, capture).run()


def _own_data(flags: Flags, emit: Emit) -> OwnData | None:
    from fedclient.own_data import OwnDataset, OwnPictures

    if flags.dataset is not None:
        return OwnDataset(flags.dataset, flags.data_dir, flags.shard, emit, flags.partition)
    return OwnPictures(flags.data, emit) if flags.data is not None else None
