"""What the state directory knows of the runs that this client took part in."""

from __future__ import annotations

from pathlib import Path

from common import json_files
from common.errors import StateError
from common.records.client import KNOWN_RUN, KnownRun


def known_run(state_dir: Path, run_id: str | None) -> tuple[Path, KnownRun]:
    """The folder of a run, or of the newest, and what was trained in it."""
    found = sorted(state_dir.glob(f"run-*/{KNOWN_RUN}"), key=lambda path: path.stat().st_mtime_ns)
    if run_id is not None:
        found = [path for path in found if path.parent.name == f"run-{run_id}"]
    if not found:
        which = "a run" if run_id is None else f"run {run_id}"
        raise StateError(
            f"{state_dir} knows nothing of {which}; expected the --state-dir of a client that took part"
        )
    return found[-1].parent, json_files.read(found[-1], KnownRun)
