"""The flags that say where cells run; every command that runs cells has them."""

from __future__ import annotations

import functools
from typing import Any

import click

from common import commandline
from common.devices.cli import training_options
from fedlab.engine.choice import ENGINES, EngineChoice

RUNS = "Runs"


def engine_options(function: Any) -> Any:
    """The flags for engines; the command gets what they choose as `engine`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        engine: str,
        jobs: int | None,
        ray_address: str | None,
        device: str,
        autocast: str,
        **kwargs: Any,
    ) -> Any:
        chosen = EngineChoice(
            name=engine, jobs=jobs, ray_address=ray_address, device=device, autocast=autocast
        )
        return function(*args, engine=chosen, **kwargs)

    for decorate in (training_options(RUNS), *reversed(_OPTIONS)):
        command = decorate(command)
    return command


_OPTIONS = (
    commandline.option(
        RUNS, "--jobs", type=click.IntRange(1), help="Runs at a time.  [default: number of cores]"
    ),
    commandline.option(
        RUNS,
        "--engine",
        type=click.Choice(ENGINES),
        default="local",
        help="Where they run: as processes of this machine, or on the nodes of a Ray cluster.",
    ),
    commandline.option(
        RUNS,
        "--ray-address",
        metavar="HOST:PORT",
        help="Head of the cluster, or auto.  [default: RAY_ADDRESS, or this machine alone]",
    ),
)
