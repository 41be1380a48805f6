"""What every command line says of itself: its versions, and how a shell completes it."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

from common import commandline

PROGRAMS = ("fedserver", "fedclient", "fedwire", "fedlab")
SHELLS = ("bash", "zsh", "fish")


def version_option(function: Any) -> Any:
    """The flag --version."""

    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            from common.installation.versions import versions

            click.echo(versions())
            ctx.exit()

    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        allow_from_autoenv=False,  # FEDSERVER_VERSION may be something of somebody else's.
        callback=show,
        help="Print the versions of this program, Python, gRPC, protobuf and torch.",
    )(function)


@click.command(
    cls=commandline.Command,
    epilog=commandline.example(
        "fedserver completion bash > ~/.fedpvr-completion && echo '. ~/.fedpvr-completion' >> ~/.bashrc"
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script with which a shell completes commands and flags of all four programs."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that are offered"
    for program in PROGRAMS:
        # The command itself is asked later, by the script.
        script = kind(click.Command(program), {}, program, f"_{program.upper()}_COMPLETE")
        click.echo(script.source())
