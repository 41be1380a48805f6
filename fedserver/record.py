"""The run directory: what a run leaves behind for people and scripts.

config.json           the resolved settings, run id, S_svr, clients
rounds.jsonl          one object per closed round
model.safetensors     x, by state-dict names
control.safetensors   c, by the names of S_svr
ledger/               c_i of every client as last counted
spool/                updates of the open round
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from common import tensorfile
from common.atomic import write_json
from common.errors import ConfigError, StateError
from common.tensors import Flat, Layout, Purpose


class RunDir:
    """Writes one run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if (path / "config.json").exists():
            raise ConfigError(f"--run-dir {path} already holds a run; choose another directory or remove it")
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "rounds.jsonl").touch()
        except OSError as error:
            raise StateError(
                f"--run-dir {path} cannot be written: {error.strerror}; choose another"
            ) from error

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes config.json."""
        write_json(self.path / "config.json", config)

    def write_state(self, layout: Layout, flat: Flat) -> None:
        """Writes x and c."""
        tensorfile.write(self.path / "model.safetensors", layout, flat, Purpose.MODEL, Purpose.BUFFER)
        tensorfile.write(self.path / "control.safetensors", layout, flat, Purpose.CONTROL)

    def append_round(self, record: dict[str, Any]) -> None:
        """Adds a line to rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
