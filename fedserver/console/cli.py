"""Commands that ask a running server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common import commandline
from common.access import cli as access_cli
from common.access.quiet_grpc import import_grpc_quietly
from common.errors import ConfigError

if TYPE_CHECKING:
    from fedserver.console.watching import Source

AWAY_S = 15.0
"""How long a server may be away, as between two of its processes, before its run counts as stopped."""
BEGINS_S = 2.0
"""How long a run that was started just now may take to be seen."""


@click.command(epilog=commandline.example("fedserver status --server 127.0.0.1:50051 --json"))
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option(
    "--name", default="", help="Whose certificate to show, with --certs.  [default: the operator's]"
)
@access_cli.access_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(server: str, name: str, as_json: bool, **credentials: Any) -> None:
    """Say what a running server is doing."""
    access_cli.require_address("--server", server)
    access = access_cli.access(server, name, **credentials)
    import_grpc_quietly()
    from fedserver.console.status_client import ask

    reply = ask(server, access)
    if as_json:
        click.echo(json.dumps(reply.as_json(), indent=2))
        return
    from fedserver.console.tables import show_status

    show_status(reply)


@click.command(epilog=commandline.example("fedserver health --server 127.0.0.1:50051"))
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option(
    "--name", default="", help="Whose certificate to show, with --certs.  [default: the operator's]"
)
@access_cli.access_options
def health(server: str, name: str, **credentials: Any) -> None:
    """Ask a server by the gRPC health protocol whether it serves; the exit code is the answer."""
    access_cli.require_address("--server", server)
    access = access_cli.access(server, name, **credentials)
    import_grpc_quietly()
    from fedserver.console.status_client import require_health

    require_health(server, access)
    click.echo("serving")


@click.command(epilog=commandline.example("fedserver evict clinic-x --server 127.0.0.1:50051"))
@click.argument("member", metavar="NAME")
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option(
    "--name", default="", help="Whose certificate to show, with --certs.  [default: the operator's]"
)
@access_cli.access_options
def evict(member: str, server: str, name: str, **credentials: Any) -> None:
    """Take a member out of a run for good.

    From the next round on its control variate is in c no more, as if it had never been, and its calls are
    refused. What it has done to the model is only unlearned.
    """
    access_cli.require_address("--server", server)
    access = access_cli.access(server, name, **credentials)
    import_grpc_quietly()
    from fedserver.console.status_client import evict as ask_to_evict

    ask_to_evict(server, member, access)
    click.echo(f"{member} is evicted; rounds go on without it")


def _server_options(function: Any) -> Any:
    """Where a run is seen: in its directory, or at its server."""
    function = access_cli.access_options(function)
    function = click.option(
        "--name", default="", help="Whose certificate to show, with --certs.  [default: the operator's]"
    )(function)
    function = click.option("--server", metavar="HOST:PORT", help="Where the server listens.")(function)
    return click.argument("run_dir", required=False, type=click.Path(path_type=Path))(function)


def _source(
    run_dir: Path | None, server: str | None, name: str, first_s: float = 0.0, **credentials: Any
) -> Source:
    """Where to look; `first_s` is how long there need not be anything yet."""
    if (run_dir is None) == (server is None):
        raise ConfigError("say what to watch: a RUN_DIR of this machine, or --server HOST:PORT")
    if run_dir is not None:
        from fedserver.console.directory import Directory

        return Directory(run_dir, AWAY_S, first_s)
    assert server is not None, "one of both is given"
    access_cli.require_address("--server", server)
    access = access_cli.access(server, name, **credentials)
    import_grpc_quietly()
    from fedserver.console.remote import Remote

    return Remote(server, access, AWAY_S, first_s)


@click.command(epilog=commandline.example("fedserver watch --server 127.0.0.1:50051"))
@_server_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object whenever something has changed.")
def watch(as_json: bool, **where: Any) -> None:
    """Show a run while it goes on: on a terminal as a screen, else as lines.

    Ends with the run, and with the exit codes of `fedserver wait`; or with Ctrl-C, which ends nothing else.
    """
    from fedserver.console import watching

    source = _source(**where, first_s=BEGINS_S)
    if as_json:
        frame = watching.as_json(source, click.echo)
    elif sys.stdout.isatty():
        frame = watching.on_terminal(source)
    else:
        frame = watching.as_lines(source, click.echo)
    raise SystemExit(frame.exit_code if frame.over else 0)


@click.command(epilog=commandline.example("fedserver wait runs/a --timeout 3600"))
@_server_options
@click.option("--timeout", type=float, metavar="SECONDS", help="Wait no longer.  [default: for ever]")
def wait(timeout: float | None, **where: Any) -> None:
    """Wait until a run is over; the exit code says how it ended.

    0: finished. 1: the server was stopped, failed or is gone. 3: finished, but without somebody who was to
    take part. 124: not over by --timeout.
    """
    from fedserver.console import watching

    raise SystemExit(watching.wait(_source(**where, first_s=min(AWAY_S, timeout or AWAY_S)), timeout))


@click.command(epilog=commandline.example("fedserver ls runs"))
@click.argument("folder", default="runs", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(folder: Path, as_json: bool) -> None:
    """List the runs of a folder."""
    from fedserver.console import runs

    found = runs.runs(folder)
    if as_json:
        click.echo(runs.as_json(found))
    else:
        runs.show(found)


COMMANDS = (status, health, evict, watch, wait, ls)
