"""live.json: replaced when something has changed, at most once a second, beside the rounds."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from common.atomic import replacing
from common.live.record import LIVE, LiveRecord
from common.records import form
from fedserver.live.snapshot import Snapshots

LEAST_S = 1.0
"""Between two looks."""
PAUSES = 50
"""With thousands of clients a look takes longer; looks get a fiftieth of the time."""


class LiveFile:
    """Follows a run while the block goes on, and says at its end how that was. For the run's event loop."""

    def __init__(self, run_dir: Path, snapshots: Snapshots) -> None:
        self._path = run_dir / LIVE
        self._snapshots = snapshots
        self._written: LiveRecord | None = None
        self.task: asyncio.Task[None]
        """What follows the run."""
        self.outcome = "finished"
        """How the block ends, unless with an error."""

    async def __aenter__(self) -> LiveFile:
        self._write(self._snapshots.now())
        self.task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        outcome = self.outcome if error is None else str(error) or type(error).__name__
        self._write(self._snapshots.now(ended=time.time(), outcome=outcome))

    async def _follow(self) -> None:
        pause_s = LEAST_S
        while True:
            await asyncio.sleep(pause_s)
            started = time.thread_time()
            record = self._snapshots.now()
            took_s = time.thread_time() - started
            if record != self._written:
                await asyncio.to_thread(self._write, record)
            pause_s = max(LEAST_S, PAUSES * took_s)

    def _write(self, record: LiveRecord) -> None:
        """Nobody needs it but those who watch: a disk that is full does not end the run."""
        self._written = record
        with suppress(OSError), replacing(self._path, synced=False) as scratch:
            scratch.write_text(form.text(record) + "\n")
