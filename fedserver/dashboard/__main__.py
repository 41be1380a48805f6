"""The dashboard's process; its one argument says what to show."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from common.commandline import errors_in_one_line
from common.processes.parent import end_with_parent
from common.processes.signals import stopped_by_signals
from common.records import form
from fedserver.dashboard.assignment import Assignment

NICE = 10
"""Rounds come first."""


def main() -> None:
    """Serves until a signal comes, or the server ends that has started this."""
    assignment = form.read(Assignment, json.loads(sys.argv[1]))
    assert assignment.fd is not None, "who starts this has opened the socket"
    if assignment.parent is not None:
        end_with_parent(signal.SIGTERM, assignment.parent)
        os.nice(NICE)
    with errors_in_one_line("dashboard"), stopped_by_signals():
        from fedserver.dashboard.serving import serve

        serve(socket.socket(fileno=assignment.fd), assignment)


if __name__ == "__main__":
    main()
