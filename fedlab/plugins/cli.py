"""The command that lists plug-ins."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from common import commandline


@click.command("plugins", cls=commandline.Command, epilog=commandline.example("fedlab plugins --json"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(as_json: bool) -> None:
    """List what installed packages add: algorithms, codecs, metrics, data sets and models.

    Imports every one of them, to say whether it can be used.
    """
    from fedlab.plugins.listing import plugins as found

    rows = found()
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("kind", "name", "package", "object", "state")
    for row in rows:
        table.add_row(row.kind, row.name, row.package, row.object, row.state)
    Console(markup=False).print(table if rows else "no installed package adds anything")
