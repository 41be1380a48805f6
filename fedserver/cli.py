"""Command line of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from common import commandline
from common.access import cli as access_cli
from common.data import names as datasets
from common.devices.cli import device_option
from common.events import Emit
from common.installation.cli import completion, version_option
from common.models import names
from common.processes import memory, signals
from fedserver import presets
from fedserver.config import RunConfig
from fedserver.console import cli as console
from fedserver.dashboard import cli as dashboards
from fedserver.flag_types import OneOf, or_word, resume_option
from fedserver.keys import cli as keys
from fedserver.settings import Section, about, flag
from fedserver.task import NO_DATA, Task
from fedserver.track import cli as track_cli

FIELDS = {declared.name: declared for declared in fields(RunConfig)}
TASK_KEYS = (*(each.name for each in fields(Task)), "model", "width", "augment", "svr", "personal", "freeze")
"""What a file that describes a task may say."""


def run_options(function: Any) -> Any:
    """The flags of a run, under all headings in their order; `resolve` makes settings of them."""
    declared = [setting_option(name) for name in _names(Section.START)]
    declared += [
        commandline.option(
            Section.START,
            "--run-dir",
            type=click.Path(path_type=Path),
            help="Where results go.  [default: runs/DATE-TIME-ALGORITHM]",
        ),
        commandline.option(
            Section.RUN,
            "--config",
            type=click.Path(path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=commandline.settings_file,
            help="TOML file with any of these settings; flags and environment variables override it.",
        ),
        commandline.option(
            Section.DATA,
            "--task",
            type=click.Path(path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=partial(commandline.settings_file, only=TASK_KEYS),
            help="TOML file that describes the task, for a server without data: "
            "input_shape, classes, model and so on.",
        ),
        commandline.option(
            Section.RUN,
            "--preset",
            metavar="NAME",
            help="Settings of a cell of the paper's tables; see fedlab presets. Anything else overrides it.",
        ),
    ]
    others = [section for section in Section if section is not Section.START]
    declared += [setting_option(name) for section in others for name in _names(section)]
    for decorate in reversed(declared):
        function = decorate(function)
    return function


def setting_option(name: str, **changes: Any) -> Callable[[Any], Any]:
    """The flag of one setting, as `RunConfig` declares it; `changes` are for `click.option`."""
    declared = FIELDS[name]
    described = about(declared)
    kind = str(declared.type).removesuffix(" | None")
    attributes: dict[str, Any] = {"default": declared.default, "metavar": described.metavar}
    if described.choices:
        attributes["type"] = OneOf(described.choices)
    elif described.word_for_none:
        attributes["type"] = or_word({"int": int, "float": float}[kind], described.word_for_none)
    elif kind.startswith("tuple"):
        attributes |= {"multiple": True, "type": float if "float" in kind else str}
    elif kind != "bool":
        attributes["type"] = {"int": int, "float": float, "str": str}[kind]
    usual = described.if_unset if "default" not in changes else ""
    attributes["help"] = described.text + (f"  [default: {usual}]" if usual else "")
    names = f"{flag(name)}/{flag('no_' + name)}" if kind == "bool" else flag(name)
    return commandline.option(changes.pop("section", described.section), names, **(attributes | changes))


def checked_option(name: str, **changes: Any) -> Callable[[Any], Any]:
    """The flag of a setting for a command that makes no `RunConfig` itself, which would check the value."""

    def check(_: click.Context, __: click.Parameter, value: Any) -> Any:
        about(FIELDS[name]).require(name, value)
        return value

    return setting_option(name, **({"section": commandline.OPTIONS, "callback": check} | changes))


def _names(section: Section) -> list[str]:
    return [name for name, declared in FIELDS.items() if about(declared).section is section]


def resolve(run_dir: Path | None, preset: str | None, **settings: Any) -> tuple[RunConfig, Path]:
    """The settings that flags, environment, file and preset add up to, and the run directory."""
    if preset is not None:
        for name, value in presets.settings(preset, settings["algorithm"]).items():
            if _is_default(name):
                settings[name] = value
    _prefer_the_stronger(settings, "local_epochs", "local_steps")
    if settings["input_shape"] is not None and _is_default("dataset"):
        settings["dataset"] = NO_DATA
    config = RunConfig(**settings)
    names.require_known(config.model)
    if not config.has_task:
        datasets.require_known(config.dataset)
    return config, run_dir or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.algorithm}"


def _is_default(name: str) -> bool:
    """Whether nobody has said anything about a setting."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


def _prefer_the_stronger(settings: dict[str, Any], *names: str) -> None:
    """Of settings that exclude each other, one given by flag silences one given in a file, and so on."""
    context = click.get_current_context()
    order = [ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP]
    rank = {
        n: order.index(s) if (s := context.get_parameter_source(n)) in order else len(order) for n in names
    }
    for name in names:
        if rank[name] > min(rank.values()):
            settings[name] = None


@click.group(
    cls=commandline.Group,
    context_settings=commandline.CONTEXT | {"auto_envvar_prefix": "FEDSERVER"},
    epilog=commandline.example("fedserver run --num-clients 4 --rounds 20 --listen 127.0.0.1:50051"),
)
@version_option
def main() -> None:
    """Serve a federated training run, or ask a running server what it does."""


@main.command(
    epilog=commandline.example("fedserver run --algorithm fedpvr --alpha 0.1 --num-clients 5 --rounds 20")
)
@run_options
@commandline.option(
    Section.RUN,
    "--listen",
    default="127.0.0.1:50051",
    metavar="HOST:PORT",
    help="Where to wait for clients; port 0 picks a free one and prints it.",
)
@resume_option
@commandline.option(
    Section.RUN,
    "--canary",
    is_flag=True,
    help="Rehearse a tiny round with everybody before round 1; end with a table unless all are ready.",
)
@device_option(
    Section.RUN, "Where the server evaluates x. auto: a GPU if there is one. Clients decide for themselves."
)
@dashboards.run_option(Section.RUN)
@commandline.capture_option(Section.WIRE)
@track_cli.companion_options(Section.RUN)
@commandline.option(
    Section.SECURITY,
    "--certs",
    type=click.Path(path_type=Path),
    help="Use TLS: folder with ca.pem, crl.pem, server.pem and server.key. Clients need a certificate.",
)
@commandline.option(
    Section.SECURITY,
    "--tokens",
    type=click.Path(path_type=Path),
    help="Clients need a token of this folder, and no certificate.",
)
@commandline.option(Section.SECURITY, "--insecure", is_flag=True, help="Let other machines in without TLS.")
@commandline.log_options
def run(
    listen: str,
    capture: Path | None,
    resume: bool,
    canary: bool,
    device: str,
    dashboard: str | None,
    certs: Path | None,
    tokens: Path | None,
    insecure: bool,
    companions: track_cli.Companions,
    emit: Emit,
    **settings: Any,
) -> None:
    """Serve one training run and end when it is over.

    Every flag can also come from the environment, for example FEDSERVER_RUN_ROUNDS=50.
    """
    config, run_dir = resolve(**settings)
    access_cli.require_address("--listen", listen)
    with memory.loading():
        from fedserver.access.settings import AccessSettings
        from fedserver.server import serve

    signals.deaf_at_exit()
    access = AccessSettings(certs, tokens, insecure)
    with dashboards.beside_run(dashboard, run_dir, access, emit), companions.started(run_dir, insecure, emit):
        ended = serve(
            config,
            listen,
            run_dir,
            emit,
            access=access,
            capture_path=capture,
            resume=resume,
            canary=canary,
            device=device,
        )
        raise SystemExit(signals.exit_code(asyncio.run(ended)))


for command in (
    *console.COMMANDS,
    dashboards.dashboard,
    keys.certs,
    keys.tokens,
    track_cli.track,
    completion,
):
    main.add_command(command)
