"""Flags that say where a process computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from common import commandline
from common.devices.names import CPU, OFF, PRECISIONS, require_device


def device_option(section: str, text: str) -> Callable[[Any], Any]:
    """--device; whether it is there is seen when torch is."""

    def check(_: click.Context, __: click.Parameter, value: str) -> str:
        return require_device(value)

    return commandline.option(
        section, "--device", default=CPU, metavar="auto|cpu|cuda|cuda:K|mps", callback=check, help=text
    )


def training_options(section: str) -> Callable[[Any], Any]:
    """--device and --autocast, for commands that train."""

    def decorate(function: Any) -> Any:
        function = commandline.option(
            section,
            "--autocast",
            type=click.Choice(PRECISIONS),
            default=OFF,
            help="Train with products in bf16, for speed; what is sent and evaluated stays as it is.",
        )(function)
        return device_option(
            section,
            "Where to train and evaluate. auto: GPUs if there are any; cuda: all GPUs, shared out among "
            "processes. On a GPU results are not the same to the bit.",
        )(function)

    return decorate
