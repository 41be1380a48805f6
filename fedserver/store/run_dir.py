"""The run directory: what a run leaves behind for people and scripts.

config.json           the resolved settings, run id, S_svr, clients
rounds.jsonl          one object per closed round
model.safetensors     x, by state-dict names
traffic.json          the byte ledger of the whole run, what passed outside of rounds included
conformal.json        prediction sets of the final x; written last
control.safetensors   c, by the names of S_svr
ledger/               c_i of every client as last counted
checkpoints/          the state after each of the last rounds
spool/                updates of the open round
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from common import json_files
from common.atomic import replacing, write_json
from common.errors import ConfigError, StateError
from common.records.rounds import read_rounds
from common.tensors import safetensors_files
from common.tensors.layout import Flat, Layout, Purpose


class RunDir:
    """Writes one run's directory, and reads what an earlier process of the same run has left there."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.previous: dict[str, Any] | None = None
        """config.json of the run that goes on here; None for a new one."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._begin(resume)
        except BaseException:
            self._lock.close()
            raise

    def _begin(self, resume: bool) -> None:
        """Locks the directory, and looks whether a run goes on in it."""
        path = self.path
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / "config.json").exists() and resume:
                self.previous = _run_of(json_files.read(path / "config.json"))
            for name in ("config.json", "model.safetensors"):
                if self.previous is None and (path / name).exists():
                    raise ConfigError(f"--run-dir {path} already holds {name}; choose a new directory")
            shutil.rmtree(path / "spool", ignore_errors=True)
            if self.previous is None:
                # Left by a server that ended before its clients were seated.
                for name in ("ledger", "checkpoints"):
                    shutil.rmtree(path / name, ignore_errors=True)
            (path / "rounds.jsonl").touch()
        except BlockingIOError as error:
            raise ConfigError(f"--run-dir {path} is in use by another server; choose another") from error
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StateError:
        return StateError(f"--run-dir {self.path} cannot be written: {error.strerror}; choose another")

    def require_same_settings(self, settings: dict[str, Any]) -> None:
        """Raises if the run that goes on here has other settings, and says which."""
        if self.previous is None:
            return
        now = json.loads(json.dumps(settings))
        different = [
            f"--{name.replace('_', '-')} was {self.previous.get(name)!r} and is {value!r}"
            for name, value in now.items()
            if self.previous.get(name) != value
        ]
        if different:
            raise ConfigError(
                f"--run-dir {self.path} holds a run with other settings: {'; '.join(different)}; "
                "give the same, or choose a new directory"
            )

    def keep_rounds(self, last: int) -> list[dict[str, Any]]:
        """Drops the records of rounds later than `last`, and returns the others."""
        kept = [record for record in read_rounds(self.path) if record["round"] <= last]
        with replacing(self.path / "rounds.jsonl") as scratch:
            scratch.write_text("".join(json.dumps(record) + "\n" for record in kept))
        return kept

    def finished(self) -> bool:
        """Whether everything is written that a run writes."""
        return (self.path / "conformal.json").exists()

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
        safetensors_files.write(self.path / "model.safetensors", layout, flat, Purpose.MODEL, Purpose.BUFFER)
        safetensors_files.write(self.path / "control.safetensors", layout, flat, Purpose.CONTROL)

    def write_traffic(self, traffic: dict[str, Any]) -> None:
        """Writes traffic.json."""
        write_json(self.path / "traffic.json", traffic)

    def write_conformal(self, sets: list[dict[str, float]]) -> None:
        """Writes conformal.json; it comes last, so a run that has it is whole."""
        write_json(self.path / "conformal.json", sets)

    def append_round(self, record: dict[str, Any]) -> None:
        """Adds a line to rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(without_nan(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _run_of(config: Any) -> dict[str, Any] | None:
    """A config.json, if it is one that a run has written."""
    needed = {"run_id": str, "fingerprint": str, "clients": list}
    written = isinstance(config, dict) and all(isinstance(config.get(k), v) for k, v in needed.items())
    return config if written else None


def without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
