"""The flags that say where cells run; every command that runs cells has them."""

from __future__ import annotations

import functools
from typing import Any

import click

from common import commandline
from fedlab.engine.choice import EngineChoice

RUNS = "Runs"


def engine_options(function: Any) -> Any:
    """The flags for engines; the command gets what they choose as `engine`."""

    @functools.wraps(function)
    def command(*args: Any, jobs: int | None, **kwargs: Any) -> Any:
        engine = EngineChoice() if jobs is None else EngineChoice(jobs=jobs)
        return function(*args, engine=engine, **kwargs)

    return commandline.option(
        RUNS, "--jobs", type=click.IntRange(1), help="Runs at a time.  [default: number of cores]"
    )(command)
