"""Which engine runs cells, and how many at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.devices.names import CPU, OFF, device_of
from common.errors import ConfigError
from common.events import Emit
from common.installation import extras
from fedlab.engine.local import LocalEngine
from fedlab.engine.task import Engine

ENGINES = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What the flags `--engine`, `--jobs`, `--ray-address`, `--device` and `--autocast` say."""

    name: str = "local"
    jobs: int | None = None
    """Cells at a time; None: as many as there are cores, of this machine or of the cluster."""
    ray_address: str | None = None
    device: str = CPU
    """Where cells compute; no part of what a cell is."""
    autocast: str = OFF
    """Cells of another precision are other runs: see `runs_in`."""

    def __post_init__(self) -> None:
        if self.ray_address is not None and self.name != "ray":
            raise ConfigError("--ray-address is for --engine ray; give both, or neither")
        if self.name == "ray" and self.device.startswith("cuda:"):
            raise ConfigError(
                f"--device {self.device} names a GPU of one machine; on a cluster give --device cuda, "
                "and every run gets one that is free"
            )
        if self.name == "ray":
            extras.require("ray")

    def runs_in(self, folder: Path) -> Path:
        """Where the runs of a folder are that compute in this precision."""
        return folder if self.autocast == OFF else folder / self.autocast

    def opened(self, folder: Path, emit: Emit) -> Engine:
        """The engine, ready for tasks whose runs go into a folder."""
        if self.name == "local":
            return LocalEngine(self.jobs or os.cpu_count() or 1, self.flags(self._devices()))
        from fedlab.engine.ray_engine import RayEngine

        # Each node looks for its own devices; of those that Ray shares out, a task sees its own and no other.
        flags, gpus = self.flags((self.device,))(0), int(self.device == "cuda")
        return RayEngine(self.ray_address, self.jobs, folder, emit, flags, gpus)

    def _devices(self) -> tuple[str, ...]:
        """Those of this machine; raises before the first cell if one is not there."""
        if self.device == CPU and self.autocast == OFF:
            return (CPU,)
        from common.devices.choice import devices

        return tuple(devices(self.device, self.autocast))

    def flags(self, devices: tuple[str, ...]) -> Callable[[int], tuple[str, ...]]:
        """What the k-th of the cells at a time is given in addition."""
        return lambda k: ("--device", device_of(k, devices), "--autocast", self.autocast)
