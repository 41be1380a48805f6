"""Commands that ask a running server."""

from __future__ import annotations

import json
from typing import Any

import click

from common import commandline
from common.access.quiet_grpc import import_grpc_quietly


@click.command(epilog=commandline.example("fedserver status --server 127.0.0.1:50051 --json"))
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option(
    "--name", default="", help="Whose certificate to show, with --certs.  [default: the operator's]"
)
@commandline.access_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(server: str, name: str, as_json: bool, **credentials: Any) -> None:
    """Say what a running server is doing."""
    commandline.require_address("--server", server)
    access = commandline.access(server, name, **credentials)
    import_grpc_quietly()
    from fedserver.console.status_client import ask

    reply = ask(server, access)
    if as_json:
        click.echo(json.dumps(reply, indent=2))
        return
    from fedserver.console.tables import show_status

    show_status(reply)


@click.command(epilog=commandline.example("fedserver health --server 127.0.0.1:50051"))
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Where the server listens.")
@click.option(
    "--name", default="", help="Whose certificate to show, with --certs.  [default: the operator's]"
)
@commandline.access_options
def health(server: str, name: str, **credentials: Any) -> None:
    """Ask a server by the gRPC health protocol whether it serves; the exit code is the answer."""
    commandline.require_address("--server", server)
    access = commandline.access(server, name, **credentials)
    import_grpc_quietly()
    from fedserver.console.status_client import require_health

    require_health(server, access)
    click.echo("serving")
