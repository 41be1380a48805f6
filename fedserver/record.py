"""The run directory: what a run leaves behind for people and scripts.

config.json           the resolved settings, run id, S_svr, clients
rounds.jsonl          one object per closed round
model.safetensors     x, by state-dict names
traffic.json          the byte ledger of the whole run, what passed outside of rounds included
conformal.json        prediction sets of the final x; written last
control.safetensors   c, by the names of S_svr
ledger/               c_i of every client as last counted
spool/                updates of the open round
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from common import tensorfile
from common.atomic import write_json
from common.errors import ConfigError, StateError
from common.tensors import Flat, Layout, Purpose


class RunDir:
    """Writes one run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in ("config.json", "model.safetensors", "ledger", "spool"):
                if (path / name).exists():
                    raise ConfigError(f"--run-dir {path} already holds {name}; choose a new directory")
            (path / "rounds.jsonl").touch()
        except BlockingIOError as error:
            raise ConfigError(f"--run-dir {path} is in use by another server; choose another") from error
        except OSError as error:
            raise StateError(
                f"--run-dir {path} cannot be written: {error.strerror}; choose another"
            ) from error

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes config.json."""
        write_json(self.path / "config.json", config)

    def write_state(self, layout: Layout, flat: Flat) -> None:
        """Writes x and c."""
        tensorfile.write(self.path / "model.safetensors", layout, flat, Purpose.MODEL, Purpose.BUFFER)
        tensorfile.write(self.path / "control.safetensors", layout, flat, Purpose.CONTROL)

    def write_traffic(self, traffic: dict[str, Any]) -> None:
        """Writes traffic.json."""
        write_json(self.path / "traffic.json", traffic)

    def write_conformal(self, sets: list[dict[str, float]]) -> None:
        """Writes conformal.json; it comes last, so a run that has it is whole."""
        write_json(self.path / "conformal.json", sets)

    def append_round(self, record: dict[str, Any]) -> None:
        """Adds a line to rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(_without_nan(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
