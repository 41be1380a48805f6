"""Which engine runs cells, and how many at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError
from common.events import Emit
from common.installation import extras
from fedlab.engine.local import LocalEngine
from fedlab.engine.task import Engine

ENGINES = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What the flags `--engine`, `--jobs` and `--ray-address` say."""

    name: str = "local"
    jobs: int | None = None
    """Cells at a time; None: as many as there are cores, of this machine or of the cluster."""
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.ray_address is not None and self.name != "ray":
            raise ConfigError("--ray-address is for --engine ray; give both, or neither")
        if self.name == "ray":
            extras.require("ray")

    def opened(self, folder: Path, emit: Emit) -> Engine:
        """The engine, ready for tasks whose runs go into a folder."""
        if self.name == "local":
            return LocalEngine(self.jobs or os.cpu_count() or 1)
        from fedlab.engine.ray_engine import RayEngine

        return RayEngine(self.ray_address, self.jobs, folder, emit)
