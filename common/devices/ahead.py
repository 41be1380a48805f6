"""Looks for a device before forks are made that will use it."""

from __future__ import annotations

import os

from common import commandline
from common.devices.choice import devices
from common.devices.names import CPU, OFF
from common.devices.trial import require_lower_precision
from common.processes.forks import fork


def require_for_forks(device: str, autocast: str) -> None:
    """Ends this process with one line if there is no such device, and not each of its forks with one.

    A fork looks, because whoever has looked for a GPU makes it unusable for its children. What is found out
    about the precision stays known in forks.
    """
    if device != CPU:
        _, status = os.waitpid(fork(_look, device), 0)
        if code := os.waitstatus_to_exitcode(status):
            raise SystemExit(code)
    if autocast != OFF:
        require_lower_precision(device, autocast)


def _look(device: str) -> None:
    with commandline.errors_in_one_line():
        devices(device)
