"""Command line for what a site lets out: the flag of `fedclient run`, `approve` and `outbox`."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from common import commandline
from common.errors import ConfigError, StateError
from fedclient.store.cli import place, place_options

site_option = commandline.option(
    "Permissions",
    "--site",
    "site_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="What may leave this site; see docs/site-policy.md.  [default: site.toml of the state directory]",
)


@click.command(
    cls=commandline.Command,
    epilog=commandline.example("fedclient approve --list", "fedclient approve 3f2a --state-dir state/a"),
)
@click.argument("kind", required=False)
@click.option("--list", "listing", is_flag=True, help="Show the kinds of runs that were asked for.")
@place_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def approve(kind: str | None, listing: bool, state_dir: Path | None, name: str | None, as_json: bool) -> None:
    """Let runs of a KIND begin that wait because of `approval = true` in site.toml.

    KIND is what the client's log and --list show, or how it begins.
    """
    from fedclient.policy.approvals import Approvals

    approvals = Approvals(place(state_dir, name))
    if listing == (kind is not None):
        raise ConfigError("expected KIND or --list; give one of them")
    if kind is not None:
        approvals.approve(kind)
    rows = [
        asdict(asked) | {"approved": given.approved if given else None} for asked, given in approvals.asked()
    ]
    if as_json:
        click.echo(json.dumps(rows if kind is None else next(r for r in rows if r["kind"].startswith(kind))))
        return
    for row in rows:
        state = f"approved {row['approved']}" if row["approved"] else f"waits since {row['asked']}"
        if kind is None or row["kind"].startswith(kind):
            click.echo(f"{row['kind']}  {state}  asked for by {row['server']}: {row['described']}")
            for tensor in row["tensors"] if kind is None else ():
                click.echo(f"    {tensor}")


@click.command(
    cls=commandline.Command,
    epilog=commandline.example("fedclient outbox --name clinic-a", "fedclient outbox verify --name clinic-a"),
)
@click.argument("action", type=click.Choice(("list", "verify")), default="list")
@click.option(
    "--certs",
    type=click.Path(path_type=Path),
    help="With verify: folder with NAME.pem; the log must be signed with its key.",
)
@place_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def outbox(action: str, certs: Path | None, state_dir: Path | None, name: str | None, as_json: bool) -> None:
    """List what has left this site, or verify that the list is whole and as it was written.

    Only a client with a site.toml writes one.
    """
    folder = place(state_dir, name)
    actions: dict[str, Callable[[], None]] = {
        "list": lambda: _list(folder, as_json),
        "verify": lambda: _verify(folder, certs and certs / f"{name or socket.gethostname()}.pem", as_json),
    }
    actions[action]()


COMMANDS = (approve, outbox)


def _list(folder: Path, as_json: bool) -> None:
    from fedclient.outbox.listing import departures, show

    rows = departures(folder)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows]))
    else:
        show(rows)


def _verify(folder: Path, certificate: Path | None, as_json: bool) -> None:
    from fedclient.outbox.listing import verdict

    found = verdict(folder, certificate)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    elif not found.problems:
        signed = f"signed with key {found.key}" if found.key else "not signed"
        click.echo(f"{found.entries} entries, whole and as they were written; {signed}")
    if found.key_changes and not as_json:
        numbers = ", ".join(map(str, found.key_changes))
        click.echo(f"the key has changed at entry {numbers}; earlier ones are only as good as the key before")
    if found.torn_bytes and not as_json:
        click.echo(f"{found.torn_bytes} bytes of a line that was cut off follow; nothing left for it")
    if found.problems:
        raise StateError(f"{folder / 'outbox.jsonl'}: {'; '.join(found.problems)}")
