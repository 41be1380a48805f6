"""`fedserver dashboard`: shows runs in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common import commandline
from common.access import cli as access_cli
from common.errors import ConfigError
from common.events import Emit
from common.live.view import RunView
from fedserver.dashboard import process
from fedserver.dashboard.assignment import Assignment
from fedserver.events.run import DashboardOpened

if TYPE_CHECKING:
    from fedserver.access.settings import AccessSettings

DEFAULT = "127.0.0.1:8080"


@click.command(cls=commandline.Command, epilog=commandline.example("fedserver dashboard runs/a runs/b"))
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option(
    "--listen",
    default=DEFAULT,
    metavar="HOST:PORT",
    help="Where browsers find it; port 0 picks a free one and prints it.",
)
@commandline.option(
    commandline.SECURITY,
    "--certs",
    type=click.Path(path_type=Path),
    help="Beyond this machine: use TLS with the certificates of this folder; browsers need an operator's.",
)
@commandline.option(
    commandline.SECURITY,
    "--tokens",
    type=click.Path(path_type=Path),
    help="Beyond this machine: ask for an operator's token of this folder, and for no certificate.",
)
@commandline.option(
    commandline.SECURITY, "--insecure", is_flag=True, help="Let other machines in without TLS."
)
@commandline.log_options
def dashboard(
    run_dirs: tuple[Path, ...],
    listen: str,
    certs: Path | None,
    tokens: Path | None,
    insecure: bool,
    emit: Emit,
) -> None:
    """Show runs in a browser, side by side: finished ones and those that go on. Ends with Ctrl-C."""
    process.require_installed("fedserver dashboard")
    access_cli.require_address("--listen", listen)
    for run_dir in run_dirs:
        if not RunView(run_dir).is_run:
            raise ConfigError(f"{run_dir} is not a run directory; give those of fedserver run --run-dir")
    assignment = _assignment(run_dirs, listen, certs, tokens, insecure)
    assignment.require_safe("--listen")
    listening = process.listen("--listen", listen)
    emit(DashboardOpened(url=process.url(listening, assignment)))
    process.become(assignment, listening)


def run_option(section: str) -> Callable[[Any], Any]:
    """The flag of `fedserver run`."""
    return commandline.option(
        section,
        "--dashboard",
        metavar="HOST:PORT",
        help="Show the run in browsers there, for example 127.0.0.1:8080; see docs/dashboard.md.",
    )


@contextmanager
def beside_run(address: str | None, run_dir: Path, access: AccessSettings, emit: Emit) -> Iterator[None]:
    """Shows a run while the block serves it, if that is asked for."""
    if address is None:
        yield
        return
    flag = "--dashboard"
    process.require_installed(flag)
    access_cli.require_address(flag, address)
    assignment = _assignment((run_dir,), address, access.certs, access.tokens, access.insecure)
    assignment.require_safe(flag)
    listening = process.listen(flag, address)
    emit(DashboardOpened(url=process.url(listening, assignment)))
    with process.beside(assignment, listening):
        yield


def _assignment(
    run_dirs: tuple[Path, ...], address: str, certs: Path | None, tokens: Path | None, insecure: bool
) -> Assignment:
    return Assignment(
        run_dirs=tuple(map(str, run_dirs)),
        address=address,
        certs=None if certs is None else str(certs),
        tokens=None if tokens is None else str(tokens),
        insecure=insecure,
    )
