"""Command line for certificates and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from common import commandline
from fedserver.keys.issued import AUTHORITY_DAYS, DAYS, HOSTS, SERVER, Issued


@click.group(epilog=commandline.example("fedserver certs init --host fl.example.org"))
def certs() -> None:
    """Make, list and revoke certificates, with an authority of the federation's own."""


def authority_option(function: Any) -> Any:
    """The flag for the authority's folder."""
    return click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path),
        default=Path("certs"),
        help="Folder of the authority. Whoever can read its ca.key can join as anyone.",
    )(function)


@certs.command(epilog=commandline.example("fedserver certs init --host fl.example.org --host 192.0.2.7"))
@authority_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    default=HOSTS,
    help="Name or address at which clients reach the server; repeatable.",
)
@click.option(
    "--days",
    default=AUTHORITY_DAYS,
    help="Days that the authority is valid; the server's certificate is for a year.",
)
def init(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a certificate authority and the server's certificate in a new folder."""
    from fedserver.console.tables import show_certificates
    from fedserver.keys.authority import Authority

    authority = Authority(folder)
    authority.init(hosts, days)
    show_certificates(authority.show())
    click.echo(f"{folder}/ca.pem goes to every client, {folder}/ca.key to nobody")


@certs.command(
    epilog=commandline.example(
        "fedserver certs issue clinic-a --days 90", "fedserver certs issue --operator alice"
    )
)
@click.argument("name", required=False)
@authority_option
@click.option("--days", default=DAYS, help="Days that it is valid, though never longer than the authority.")
@click.option(
    "--renew", is_flag=True, help="Issue another one although a valid one exists, which stays valid."
)
@click.option(
    "--server", is_flag=True, help="Issue it to a server, which is called server unless NAME is given."
)
@click.option(
    "--operator", is_flag=True, help="Issue it to an operator, who sees everything and takes no part."
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="With --server: its name or address; repeatable.  [default: those of its last certificate]",
)
def issue(
    name: str | None,
    folder: Path,
    days: int,
    renew: bool,
    server: bool,
    operator: bool,
    hosts: tuple[str, ...],
) -> None:
    """Make NAME.pem and NAME.key, for the client of that name."""
    if name is None and not server:
        raise click.UsageError("give the client's NAME, or --server")
    if server and operator:
        raise click.UsageError("--server and --operator exclude each other; give one of them")
    if hosts and not server:
        raise click.UsageError("--host goes with --server")
    from common.access.certificates import minute
    from fedserver.keys.authority import Authority

    issued = Authority(folder).issue(
        name or SERVER, days, hosts=hosts if server else None, operator=operator, renew=renew
    )
    click.echo(
        f"{folder}/{issued.name}.pem and {folder}/{issued.name}.key for {issued.kind} {issued.name} "
        f"({', '.join(issued.sans)}), until {minute(issued.valid_until)}"
    )


@certs.command(epilog=commandline.example("fedserver certs sign clinic-a.csr --days 90"))
@click.argument("request", type=click.Path(path_type=Path))
@authority_option
@click.option("--days", default=DAYS, help="Days that it is valid, though never longer than the authority.")
@click.option(
    "--renew", is_flag=True, help="Sign another one although a valid one exists, which stays valid."
)
@click.option("--operator", is_flag=True, help="Sign it for an operator, who takes no part.")
def sign(request: Path, folder: Path, days: int, renew: bool, operator: bool) -> None:
    """Make NAME.pem for a client that has its key at home, from what `fedclient certs request` made."""
    from common.access.certificates import minute, read
    from common.access.signing_request import signing_request
    from fedserver.keys.authority import Authority

    asked = read(request, signing_request)
    issued = Authority(folder).sign(asked, days, operator=operator, renew=renew)
    click.echo(
        f"{folder}/{issued.name}.pem for {issued.kind} {issued.name}, until {minute(issued.valid_until)}, "
        f"key {asked.fingerprint}"
    )
    click.echo(f"ask {issued.name} whether that is its key, then send it {issued.name}.pem and ca.pem")


@certs.command(name="show", epilog=commandline.example("fedserver certs show --json"))
@authority_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_certs(folder: Path, as_json: bool) -> None:
    """List the authority and every certificate it has issued."""
    from fedserver.keys.authority import Authority

    _list(Authority(folder).show(), as_json)


@certs.command(epilog=commandline.example("fedserver certs revoke clinic-a"))
@click.argument("name")
@authority_option
def revoke(name: str, folder: Path) -> None:
    """Put all certificates of a name on the revocation list, crl.pem."""
    from fedserver.keys.authority import Authority

    count = len(Authority(folder).revoke(name))
    click.echo(f"{folder}/crl.pem: newly revoked certificates of {name}: {count}")


@click.group(epilog=commandline.example("fedserver tokens issue clinic-a"))
def tokens() -> None:
    """Make, list and revoke tokens, for federations that can do without certificates."""


def tokens_option(function: Any) -> Any:
    """The flag for the folder of tokens."""
    return click.option(
        "--dir", "folder", type=click.Path(path_type=Path), default=Path("tokens"), help="Folder of tokens."
    )(function)


@tokens.command(name="issue", epilog=commandline.example("fedserver tokens issue clinic-a --days 90"))
@click.argument("name")
@tokens_option
@click.option("--days", default=DAYS, help="Days that it is valid.")
@click.option(
    "--renew",
    is_flag=True,
    help="Issue another one although a valid one exists, which is then no longer valid.",
)
@click.option(
    "--operator", is_flag=True, help="Issue it to an operator, who sees everything and takes no part."
)
def issue_token(name: str, folder: Path, days: int, renew: bool, operator: bool) -> None:
    """Make NAME.token, for the client of that name."""
    from common.access.certificates import minute
    from fedserver.keys.tokens import Tokens

    issued = Tokens(folder).issue(name, days, operator=operator, renew=renew)
    click.echo(f"{folder}/{name}.token for {issued.kind} {name}, until {minute(issued.valid_until)}")


@tokens.command(name="show", epilog=commandline.example("fedserver tokens show --json"))
@tokens_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_tokens(folder: Path, as_json: bool) -> None:
    """List the tokens, without the secrets."""
    from fedserver.keys.tokens import Tokens

    _list(Tokens(folder).show(), as_json)


@tokens.command(name="revoke", epilog=commandline.example("fedserver tokens revoke clinic-a"))
@click.argument("name")
@tokens_option
def revoke_token(name: str, folder: Path) -> None:
    """Revoke the token of a client, at once."""
    from fedserver.keys.tokens import Tokens

    was_valid = Tokens(folder).revoke(name)
    click.echo(f"the token of {name} is revoked" if was_valid else f"the token of {name} was revoked before")


def _list(entries: list[Issued], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([entry.as_dict() for entry in entries], indent=2))
        return
    from fedserver.console.tables import show_certificates

    show_certificates(entries)
