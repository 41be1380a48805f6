"""The process that `fedserver run --track` starts: python -m fedserver.track RUN_DIR TARGET..."""

from __future__ import annotations

import sys
from pathlib import Path

from common.processes.companion import accompany, is_left
from fedserver.track.follow import follow
from fedserver.track.tracker import target


def complain(line: str) -> None:
    """Where the server's own troubles are told."""
    print(f"tracker: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    accompany()
    follow(Path(sys.argv[1]), [target("--track", text) for text in sys.argv[2:]], is_left, complain)
