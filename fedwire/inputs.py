"""What a command is asked to look at, and whether it is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import DataError
from common.records.run import read_run_record
from fedwire.problems import Problems

if TYPE_CHECKING:
    from fedwire.source import Capture


@dataclass(frozen=True)
class Source:
    """The file that a command reads, and what was wrong with it."""

    path: Path
    port: int | None
    """The server's, in a packet capture."""
    run: str | None
    """Id of the run, or its beginning."""
    problems: Problems = field(default_factory=Problems)

    def open(self) -> AbstractContextManager[Capture]:
        """The messages of the run."""
        from fedwire.source import open_capture

        return open_capture(self.path, self.port, self.run, self.problems)

    def require_run(self, capture: Capture, run_dir: Path | None) -> None:
        """Raises if this directory is that of another run than the capture's."""
        if run_dir is None or not capture.run_id:
            return
        recorded = read_run_record(run_dir).run_id
        if recorded != capture.run_id:
            raise DataError(f"{self.path} is of run {capture.run_id}, --run-dir {run_dir} of run {recorded}")


def require_found(
    path: Path,
    found: Sized,
    wanted: Mapping[str, object],
    rounds: Sequence[int],
    what: str = "message",
) -> None:
    """Raises if what was asked for is not in the file; `rounds` are those that are."""
    asked = [f"--{name} {value}" for name, value in wanted.items() if value is not None]
    if found or not asked:
        return
    there = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no round"
    raise DataError(f"{path}: no {what} for {' '.join(asked)}; the capture has {there}")
