"""Follows a run to its end: on a terminal, as lines, as JSON, or in silence for a script."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from common.errors import RunError
from fedserver.console.frame import FINISHED, Frame, changes, doing

TICK_S = 1.0
"""Ages and times on a terminal are not older than this."""
TIMED_OUT = 124
"""Exit code, as of timeout(1)."""


class Source(Protocol):
    """Where a run is seen."""

    def look(self, at_most_s: float) -> Frame:
        """The run as soon as something has changed, or after so many seconds."""


def on_terminal(source: Source) -> Frame:
    """Shows the run on a screen of its own until it is over or the user has enough."""
    from rich.console import Console
    from rich.live import Live

    from fedserver.console.screen import screen

    console = Console()
    frame = source.look(0.0)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(frame, console.width, console.height), refresh=True)
                if frame.over:
                    break
                frame = source.look(TICK_S)
    except KeyboardInterrupt:
        pass
    console.print(screen(frame, console.width, console.height))
    return frame


def as_lines(source: Source, tell: Callable[[str], None]) -> Frame:
    """Tells what changes, a line each."""

    def happened(before: Frame | None, now: Frame) -> None:
        for event in changes(before, now):
            tell(f"{event.time} {event.text}")

    return _follow(source, happened)


def as_json(source: Source, tell: Callable[[str], None]) -> Frame:
    """Tells every state of the run as a JSON object, when it differs in more than ages."""

    def different(before: Frame | None, now: Frame) -> None:
        if before is None or _lasting(before) != _lasting(now):
            tell(now.json())

    return _follow(source, different)


def _lasting(frame: Frame) -> object:
    states = [(client.name, client.state, client.counted_round) for client in frame.clients]
    return frame.phase, frame.round, frame.here, len(frame.evaluations), states, frame.events[-1:]


def _follow(source: Source, told: Callable[[Frame | None, Frame], object]) -> Frame:
    before: Frame | None = None
    while True:
        frame = source.look(TICK_S if before is not None else 0.0)
        told(before, frame)
        if frame.over:
            return frame
        before = frame


def wait(source: Source, timeout_s: float | None) -> int:
    """Waits for the end of a run and says how it was on standard error; returns the exit code."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    first: Frame | None = None
    while True:
        left = TICK_S if deadline is None else max(0.0, deadline - time.monotonic())
        frame = source.look(min(TICK_S, left) if first is not None else 0.0)
        first = first or frame
        if frame.run_id != first.run_id:
            raise RunError(
                f"{frame.source} has run {frame.run_id} now; how {first.run_id} ended was not seen"
            )
        if frame.over:
            print(_end(frame), file=sys.stderr)
            return frame.exit_code
        if deadline is not None and time.monotonic() >= deadline:
            print(f"not over after {timeout_s:g} s: {doing(frame)}", file=sys.stderr)
            return TIMED_OUT


def _end(frame: Frame) -> str:
    """The last word on a run."""
    accuracy = "" if frame.accuracy is None else f", accuracy {frame.accuracy:.2%}"
    if frame.phase == FINISHED:
        without = f", without {', '.join(frame.lost)}" if frame.lost else ""
        return f"run {frame.run_id} is finished after round {frame.round}{accuracy}{without}"
    why = f": {frame.outcome}" if frame.outcome else ": its process has ended"
    return f"run {frame.run_id} {doing(frame)}{accuracy}{why}"
