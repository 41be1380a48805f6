"""`fedclient check`: the flags of `fedclient run`, and a table instead of a run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from common import commandline
from common.commandline import Option
from common.errors import ExitCode
from fedclient.flags import Flags

if TYPE_CHECKING:
    from fedclient.check.findings import Finding

COLOURS = {"ok": "green", "skipped": "bright_black", "warning": "yellow", "error": "red"}
LEVEL_COLUMN, NAME_COLUMN = 9, 13
CREDENTIALS = ("certs", "token_file", "insecure")
NOT_FOR_CHECKS = ("log_format", "quiet", "verbose")
"""Flags that are taken because a client is started with them, and change nothing."""


def check_command(run: click.Command, load: Callable[[], None]) -> click.Command:
    """The command, with the flags of another; `load` imports what that takes a while for."""

    def check(as_json: bool, **given: Any) -> None:
        credentials = {name: given.pop(name) for name in CREDENTIALS}
        flags = Flags(**{name: value for name, value in given.items() if name not in NOT_FOR_CHECKS})
        if flags.replicas is not None:
            flags = flags.of_replicas()[0]
        load()
        raise SystemExit(_examined(flags, credentials, as_json))

    flags = [_borrowed(parameter) for parameter in run.params]
    flags.append(Option(["--json", "as_json"], section=commandline.LOG, is_flag=True, help="Print JSON."))
    return commandline.Command(
        "check",
        params=flags,
        callback=check,
        help="Say whether this client is ready for a run, and what to do if not.\n\n"
        "Takes the flags of `fedclient run`, and its environment variables; of --replicas it looks at the "
        "first. Joins nothing and leaves nothing behind. Ends with 0 if there are no errors, else with 1.",
        epilog=commandline.example(
            "fedclient check --server 127.0.0.1:50051 --name clinic-a --data pictures"
        ),
        context_settings=commandline.CONTEXT,
    )


def _borrowed(parameter: click.Parameter) -> click.Parameter:
    """The flag of another command, with its variable in the environment."""
    borrowed = copy.copy(parameter)
    borrowed.envvar = f"FEDCLIENT_RUN_{(parameter.name or '').upper()}"
    return borrowed


def _examined(flags: Flags, credentials: dict[str, Any], as_json: bool) -> int:
    """Prints what is found, as it is found or in one document; returns the exit code."""
    from fedclient.check.examination import examine
    from fedclient.check.findings import Level

    found = []
    for finding in examine(flags, credentials):
        found.append(finding)
        if not as_json:
            _show(finding)
    errors, warnings = (
        sum(finding.level is level for finding in found) for level in (Level.ERROR, Level.WARNING)
    )
    if as_json:
        findings = [asdict(finding) for finding in found]
        document = {"server": flags.server, "ready": not errors, "findings": findings}
        click.echo(json.dumps(document, indent=2))
    else:
        verdict = "not ready" if errors else "ready"
        click.echo(f"{verdict}: {errors} errors, {warnings} warnings")
    return ExitCode.FAILED if errors else ExitCode.DONE


def _show(finding: Finding) -> None:
    """A line, and one for what to do; colours are for terminals only."""
    level = click.style(finding.level.value.ljust(LEVEL_COLUMN), fg=COLOURS[finding.level.value])
    click.echo(f"{level}{finding.check.ljust(NAME_COLUMN)}{finding.found}")
    if finding.remedy:
        click.echo(f"{' ' * (LEVEL_COLUMN + NAME_COLUMN)}-> {finding.remedy}")
