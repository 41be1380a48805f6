"""The place that flags ask for."""

from __future__ import annotations

from collections.abc import Callable

from common.devices.machine import found
from common.devices.names import CPU, OFF, candidates, device_of, require_device, require_precision
from common.devices.place import Place
from common.devices.trial import require_lower_precision


def devices(device: str = CPU, autocast: str = OFF) -> tuple[str, ...]:
    """All that a name stands for here; raises if that is none, or none that can compute in this precision."""
    require_precision(autocast)
    names = (CPU,) if require_device(device) == CPU else candidates(device, found())
    if autocast != OFF:
        require_lower_precision(device, autocast)
    return names


def placed(device: str = CPU, autocast: str = OFF, k: int = 0) -> Place:
    """The place of the k-th of several workers, from 0 on; raises if there is no such device here.

    A process that forks its workers lets each of them call this: see `common.devices.machine`.
    """
    return Place(device_of(k, devices(device, autocast)), autocast)


Placing = Callable[[int], Place]
"""Where the k-th process of a program computes, asked by that process itself."""


def on_devices(device: str, autocast: str) -> Placing:
    """On those that flags name; several processes share out the GPUs of `cuda`."""
    return lambda k: placed(device, autocast, k)
