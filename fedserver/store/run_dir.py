"""The run directory: what a run leaves behind for people and scripts; docs/run-directory.md has every file.

Here it is locked, looked into for a run that goes on, and written.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from common import json_files
from common.atomic import PRIVATE, USUAL, write_bytes
from common.errors import ConfigError, StateError
from common.events import Emit
from common.live.record import EVENTS, LIVE
from common.locks import lock
from common.records import form
from common.records.base import FORMAT
from common.records.cka import CKA, CkaRecord
from common.records.conformal import CONFORMAL, ConformalRecord
from common.records.provenance import PROVENANCE
from common.records.rounds import ROUNDS, RoundRecord, read_rounds
from common.records.run import CONFIG, RunRecord, read_run_record
from common.records.traffic import (
    TRAFFIC,
    TRAFFIC_LINES,
    RoundTraffic,
    TrafficRecord,
    cut_lines,
    round_of_line,
)
from common.tensors import safetensors_files
from common.tensors.classes import FrozenTensors
from common.tensors.layout import Flat, Layout, Purpose
from fedserver.config import RunConfig
from fedserver.store.first_format import in_todays_form, separate_traffic
from fedserver.store.history import History
from fedserver.store.salvage import round_of_record, salvage
from fedserver.store.same_settings import differences

MODEL = "model.safetensors"
CONTROL = "control.safetensors"
STATE_PAUSES = 20
"""Writing x and c after a round gets a twentieth of the time."""


class RunDir:
    """Writes one run's directory, and reads what an earlier process of the same run has left there."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.previous: RunRecord | None = None
        """config.json of the run that goes on here; None for a new one."""
        self.frozen: FrozenTensors | None = None
        """What model.safetensors has besides x."""
        self._config: RunRecord | None = None
        self.history = History()
        """Of all rounds that count."""
        self._made = not path.exists()
        self._state_due = 0.0
        self.state_pause_s = 0.0
        """How long x and c are not written again once they were."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / ".lock").touch(PRIVATE)
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
            if not lock(self._lock):
                raise ConfigError(f"--run-dir {path} is in use by another server; choose another")
            if (path / CONFIG).exists() and resume:
                self.previous = read_run_record(path)
            for name in (CONFIG, MODEL, ROUNDS, TRAFFIC_LINES, CKA):
                there = (path / name).exists() and (path / name).stat().st_size > 0
                if self.previous is None and there:
                    raise ConfigError(f"--run-dir {path} {self._left(name, resume)}")
            shutil.rmtree(path / "spool", ignore_errors=True)
            if self.previous is None:
                # Left by a server that ended before its clients were seated.
                for name in ("ledger", "checkpoints"):
                    shutil.rmtree(path / name, ignore_errors=True)
            for folder in (path, path / "ledger", path / "checkpoints", path / "checkpoints" / "ledger"):
                safetensors_files.drop_scratch(folder)
            (path / ROUNDS).touch()
        except OSError as error:
            raise self._unwritable(error) from error

    def _left(self, name: str, resume: bool) -> str:
        if resume:
            return f"has {name}, but {CONFIG} is missing; put a copy of it back, or choose a new directory"
        return f"already holds {name}; choose a new directory"

    def _unwritable(self, error: OSError) -> StateError:
        return StateError(f"--run-dir {self.path} cannot be written: {error.strerror}; choose another")

    def require_same_settings(self, config: RunConfig) -> None:
        """Raises if the run that goes on here has other settings, and says which."""
        different = [] if self.previous is None else differences(self.previous, config)
        if different:
            raise ConfigError(
                f"--run-dir {self.path} holds a run with other settings: {'; '.join(different)}; "
                "give the same, or choose a new directory"
            )

    def go_back(self, last: int, lacking: int, emit: Emit) -> set[int]:
        """Drops what was written of rounds later than `last`, or is damaged; returns which have a record.

        Raises instead where there must have been a checkpoint: more than `lacking` rounds have a record.
        """
        assert self.previous is not None, "only a run that goes on goes back"
        salvage(self.path / ROUNDS, round_of_record, emit)
        recorded = max((record.round for record in read_rounds(self.path)), default=0)
        if not last and recorded > lacking:
            how = "put checkpoints/ back, or start anew in another --run-dir"
            raise StateError(f"{self.path}: {ROUNDS} has {recorded} rounds, but no checkpoint is left; {how}")
        salvage(self.path / TRAFFIC_LINES, round_of_line, emit)
        salvage(self.path / CKA, round_of_line, emit)
        separate_traffic(self.path, last)
        cut_lines(self.path / TRAFFIC_LINES, last)
        cut_lines(self.path / CKA, last)
        kept = [self._of_today(record) for record in read_rounds(self.path) if record.round <= last]
        json_files.write_lines(self.path / ROUNDS, kept)
        if self.previous.format < FORMAT:
            self.write_config(replace(self.previous, format=FORMAT))
        return {record.round for record in kept}

    def records(self) -> list[RoundRecord]:
        """The records of all rounds, which are in their order afterwards."""
        found = read_rounds(self.path)
        ordered = sorted(found, key=lambda record: record.round)
        if ordered != found:
            json_files.write_lines(self.path / ROUNDS, ordered)
        return ordered

    def remember(self, records: Iterable[RoundRecord]) -> None:
        """Rounds count, and are in what models say of themselves."""
        self.history.restore(records)

    def _of_today(self, record: RoundRecord) -> RoundRecord:
        return in_todays_form(record, self.previous.clients if self.previous is not None else ())

    def finished(self) -> bool:
        """Whether everything is written that a run writes."""
        return (self.path / CONFORMAL).exists()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._made and not (self.path / CONFIG).exists():
            self._remove()
        self._lock.close()

    def _remove(self) -> None:
        """Leaves nothing behind of a run that never began, but for what others have put here."""
        for name in (".lock", ROUNDS, TRAFFIC, TRAFFIC_LINES, CKA, EVENTS, LIVE):
            (self.path / name).unlink(missing_ok=True)
        for name in ("spool", "ledger", "checkpoints"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()

    def write_config(self, record: RunRecord) -> None:
        """Writes config.json."""
        json_files.write(self.path / CONFIG, record)
        self._config = record

    def provenance(self, r: int) -> dict[str, str]:
        """What a file with the x of round r says of itself."""
        config = self._config or self.previous
        return {PROVENANCE: form.text(self.history.provenance(config, r))} if config is not None else {}

    def write_state(self, layout: Layout, flat: Flat, r: int, *, synced: bool = True) -> None:
        """Writes x and c of round r. The checkpoint has both: what a power cut tears is made again."""
        started = time.monotonic()
        self.write_x(self.path / MODEL, layout, flat, self.provenance(r), synced=synced)
        safetensors_files.write(self.path / CONTROL, layout, flat, Purpose.CONTROL, synced=synced)
        ended = time.monotonic()
        self.state_pause_s = STATE_PAUSES * (ended - started)
        self._state_due = ended + self.state_pause_s

    def write_x(
        self, path: Path, layout: Layout, flat: Flat, note: dict[str, str], *, synced: bool = True
    ) -> None:
        """Writes x as a model that others can load: with the frozen tensors, and a note."""
        along = None if self.frozen is None else (self.frozen.layout, self.frozen.flat)
        x = (Purpose.MODEL, Purpose.BUFFER)
        safetensors_files.write(path, layout, flat, *x, note=note, synced=synced, along=along)

    @property
    def state_is_due(self) -> bool:
        """Whether x and c were not written just now."""
        return time.monotonic() >= self._state_due

    def write_traffic(self, record: TrafficRecord) -> None:
        """Writes traffic.json."""
        json_files.write(self.path / TRAFFIC, record)

    def write_conformal(self, record: ConformalRecord) -> None:
        """Writes conformal.json; it comes last, so a run that has it is whole."""
        json_files.write(self.path / CONFORMAL, record)

    def append_cka(self, record: CkaRecord) -> None:
        """Adds a line to cka.jsonl; what counts of it, and when, is as for traffic.jsonl."""
        json_files.append(self.path / CKA, record, synced=False)

    def append_traffic(self, record: RoundTraffic) -> None:
        """Adds a line to traffic.jsonl. It does not count before the round does, and is synced with it."""
        json_files.append(self.path / TRAFFIC_LINES, record, synced=False)

    @property
    def lines(self) -> list[Path]:
        """What grows by a line a round and is synced with a checkpoint."""
        there = [self.path / CKA] if (self.path / CKA).exists() else []
        return [self.path / ROUNDS, self.path / TRAFFIC_LINES, *there]

    def append_round(self, record: RoundRecord) -> None:
        """Adds a line to rounds.jsonl; until a later round counts, the checkpoint has the same."""
        json_files.append(self.path / ROUNDS, self._of_today(record), synced=False)

    def amend_round(self, record: RoundRecord) -> None:
        """Writes the line of a round anew; the others stay as they are."""
        path = self.path / ROUNDS
        lines = path.read_bytes().splitlines(keepends=True)
        (at,) = (k for k, line in enumerate(lines) if json.loads(line)["round"] == record.round)
        lines[at] = form.text(self._of_today(record)).encode() + b"\n"
        write_bytes(path, b"".join(lines), USUAL)
