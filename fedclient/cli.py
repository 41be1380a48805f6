"""Command line of the client."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from common import commandline
from common.access import cli as access_cli
from common.access.credentials import TOKEN_VARIABLE, require_encrypted
from common.access.quiet_grpc import import_grpc_quietly
from common.devices.cli import training_options
from common.errors import ConfigError
from common.events import Emit, naming_clients
from common.installation.cli import version_option
from common.processes import memory, signals
from fedclient.check.cli import check_command
from fedclient.flags import Flags, rate, threads
from fedclient.keys.cli import certs as certs_group
from fedclient.policy import cli as policy_cli
from fedclient.replicas.events import Starting
from fedclient.site import Site
from fedclient.worth import cli as worth_cli

START, DATA, STATE, TRAINING, WIRE = "Start here", "Data", "State", "Training", "Wire"
ALLOWED = "Permissions"


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT | {"auto_envvar_prefix": "FEDCLIENT"},
    epilog=commandline.example("fedclient run --server 127.0.0.1:50051 --name clinic-a"),
)
@version_option
def main() -> None:
    """Take part in a federated training run."""


for command in (certs_group, *policy_cli.COMMANDS, worth_cli.baseline, worth_cli.report):
    main.add_command(command)


@main.command(
    epilog=commandline.example("fedclient run --server 127.0.0.1:50051 --name clinic-a --state-dir state/a")
)
@commandline.option(
    START, "--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens."
)
@commandline.option(START, "--name", help="Stable name of this client.  [default: the host's name]")
@commandline.option(
    START,
    "--replicas",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Run N clients, NAME-1 to NAME-N, from this one command, each with a folder or file of its own "
    "in --state-dir, --data, --capture, --token-file and --certs.",
)
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
    DATA,
    "--test",
    metavar="FOLDER|NAME",
    help="Where the server has no data: evaluate its models on these pictures, one folder per class, or on "
    "the test split of this data set.  [default: on what the run's --validation keeps aside]",
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
@commandline.option(
    STATE,
    "--save-every",
    type=click.FloatRange(0),
    default=60.0,
    metavar="SECONDS",
    help="Save a long round this often, and at the ends of epochs of 10 s and more; 0: only when it is over.",
)
@commandline.option(
    TRAINING,
    "--threads",
    default="1",
    metavar="N|auto",
    callback=threads,
    help="Torch threads. auto: the cores, shared out among clients of this machine that say so; then results "
    "are not the same to the bit.",
)
@training_options(TRAINING)
@policy_cli.site_option
@commandline.option(
    ALLOWED,
    "--model",
    metavar="NAME",
    help="Train this model (built-in or module:factory) and no other.  [default: any built-in]",
)
@commandline.option(
    ALLOWED,
    "--allow-plugin",
    metavar="MODULE:FACTORY|NAME",
    multiple=True,
    help="Let the server name this code of the current directory as model or data set, or this model, data "
    "set, algorithm or codec of an installed package; repeatable.",
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
    callback=rate,
    help="Send at this speed at most, for example 2Mbit.",
)
@commandline.option(
    WIRE,
    "--downlink",
    metavar="RATE",
    callback=rate,
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
    require_encrypted(flags.server, certs, insecure)
    credentials = {"certs": certs, "token_file": token_file, "insecure": insecure}
    if flags.replicas is not None:
        raise SystemExit(_run_replicas(flags, credentials, emit))
    emit(Starting(server=flags.server))
    _load()
    from fedclient.replicas.identity import identified
    from fedclient.run.live import live

    with signals.stopped_by_signals(), identified(flags, credentials) as identity:
        live(identity, emit)


def _load() -> None:
    """What `--help` and wrong flags do not wait for: torch and gRPC, before either has a thread."""
    with memory.loading():
        import torch

        torch.set_num_threads(1)
        import_grpc_quietly()
        import fedclient.run.live  # noqa: F401
        from fedclient.training.freed_memory import KEPT_BYTES
    memory.keep_pages(KEPT_BYTES)


main.add_command(check_command(run, _load))


def _run_replicas(flags: Flags, credentials: dict[str, Any], emit: Emit) -> int:
    """Many clients in processes that are forked once torch is here; returns the exit code."""
    if TOKEN_VARIABLE in os.environ and flags.replicas != 1:
        raise ConfigError(
            f"{TOKEN_VARIABLE} has one client's token; give --replicas a folder: --token-file DIR"
        )
    from common.devices.ahead import require_for_forks
    from common.processes.forks import share_memory
    from fedclient.replicas.family import Family, grouped
    from fedclient.replicas.host import live_together
    from fedclient.replicas.identity import identified

    with ExitStack() as stack:
        all_flags = flags.of_replicas()
        identities = [stack.enter_context(identified(each, credentials)) for each in all_flags]
        emit(Starting(server=flags.server, replicas=tuple(each.name for each in identities)))
        _load()
        if flags.dataset is not None:
            from common.data import datasets

            datasets.load(flags.dataset, "train", flags.data_dir)  # In memory that all of them share.
        require_for_forks(flags.device, flags.autocast)
        share_memory()
        named = naming_clients(emit)
        return Family(grouped(identities), partial(live_together, emit=named), named).run()
