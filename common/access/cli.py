"""Flags that say how to reach a server: its address, certificates, a token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from common import commandline
from common.access.credentials import TOKEN_VARIABLE, Access, is_loopback
from common.errors import ConfigError


def access_options(function: Any) -> Any:
    """The flags for credentials; `access` makes an `Access` of them."""
    function = commandline.option(
        commandline.SECURITY,
        "--insecure",
        is_flag=True,
        help="Talk to another machine, or send it a token, although nothing is encrypted.",
    )(function)
    function = commandline.option(
        commandline.SECURITY,
        "--token-file",
        type=click.Path(path_type=Path),
        help="File with the token of this client, or folder with NAME.token; "
        f"the token itself may be in {TOKEN_VARIABLE}.",
    )(function)
    return commandline.option(
        commandline.SECURITY,
        "--certs",
        type=click.Path(path_type=Path),
        help="Use TLS: folder with ca.pem and, unless there is a token, NAME.pem and NAME.key.",
    )(function)


def access(server: str, name: str, certs: Path | None, token_file: Path | None, insecure: bool) -> Access:
    """The credentials for a server; raises if they cannot be used, or would give a secret away."""
    found = Access(name, certs, token_file)
    if found.read().token is not None and certs is None and not insecure and not is_loopback(server):
        raise ConfigError(
            f"a token for {server} would travel unencrypted; "
            "give --certs with the server's ca.pem, or say --insecure"
        )
    return found


def require_address(flag: str, address: str) -> None:
    """Raises for anything but HOST:PORT, the host a name, an IPv4 address or an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    good = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not good or not re.fullmatch(r"\[[0-9A-Fa-f:.]+(%\w+)?\]|[^\s:/@\[\]]+", host):
        raise ConfigError(f"{flag} must be HOST:PORT, for example 127.0.0.1:50051, got {address!r}")
