"""Command line for the site's own keys."""

from __future__ import annotations

from pathlib import Path

import click

from common import commandline


@click.group(epilog=commandline.example("fedclient certs request clinic-a"))
def certs() -> None:
    """Ask for a certificate with a key that never leaves this machine."""


@certs.command(epilog=commandline.example("fedclient certs request clinic-a --dir certs"))
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("certs"),
    help="Folder for the key, and later for ca.pem and the certificate.",
)
def request(name: str, folder: Path) -> None:
    """Make NAME.key, which stays here, and NAME.csr, which goes to whoever runs the server.

    If NAME.key is there already it is used again: so a certificate is renewed.
    """
    from common.access.signing_request import make_request

    made = make_request(folder, name)
    click.echo(f"{folder}/{name}.csr asks for a certificate for client {name}, key {made.fingerprint}")
    click.echo(
        f"send it to whoever runs the server, who says: fedserver certs sign {name}.csr; "
        f"put ca.pem and {name}.pem that come back into {folder}; {name}.key stays here"
    )
