"""Flags that say which client's state a command is about."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click

from common.errors import ConfigError
from fedclient.flags import STATE


def place_options(function: Any) -> Any:
    """Which client's state directory; `place` makes a path of them."""
    function = click.option(
        "--state-dir", type=click.Path(path_type=Path), help="Of the client.  [default: .fedclient/NAME]"
    )(function)
    return click.option("--name", help="Of the client.  [default: the host's name]")(function)


def place(state_dir: Path | None, name: str | None) -> Path:
    """The state directory, which has to be there."""
    folder = state_dir or STATE / (name or socket.gethostname())
    if not folder.is_dir():
        raise ConfigError(f"--state-dir {folder} is not there; give that of the client, or its --name")
    return folder
