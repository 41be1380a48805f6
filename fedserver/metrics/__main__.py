"""The process that `fedserver run --prometheus` starts: python -m fedserver.metrics FD RUN_DIR."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from common.processes.companion import accompany, is_left
from fedserver.metrics.serving import serve

if __name__ == "__main__":
    accompany()
    serve(socket.socket(fileno=int(sys.argv[1])), [Path(sys.argv[2])])
    is_left(None)
