"""A run as its directory shows it."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from common.errors import StateError, printable
from common.live.record import LiveClient, LiveRecord, LoggedEvent
from common.live.view import RunView
from common.records.run import CONFIG
from fedserver.console.frame import FINISHED, STOPPED, Frame, SeenClient, SeenEvaluation, SeenEvent
from fedserver.members.attendance import Attendance

EVENTS = 200
"""Of the last ones, enough for a tall terminal; details are not shown."""
LOOK_S = 0.25


class Directory:
    """Watches a run directory."""

    def __init__(self, path: Path, patience_s: float = 0.0, first_s: float = 0.0) -> None:
        """`patience_s`: how long a process may be away before its run counts as stopped; `first_s`: how long
        to wait for a run to begin here."""
        self._view = RunView(path, events=EVENTS)
        self._patience_s = patience_s
        deadline = time.monotonic() + first_s
        self._view.refresh()
        while not self._has_run() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            self._view.refresh()
        if not self._has_run():
            raise StateError(f"{path} holds no run; a run directory has {CONFIG}")
        self._alive_at = time.monotonic()

    def look(self, at_most_s: float) -> Frame:
        """The run as soon as something has changed, or after so many seconds."""
        deadline = time.monotonic() + at_most_s
        while not self._refresh() and time.monotonic() < deadline:
            time.sleep(min(LOOK_S, max(0.0, deadline - time.monotonic())))
        return self.now()

    def now(self) -> Frame:
        """The run as it was when it was last looked at."""
        return frame_of(self._view, self._phase())

    def _refresh(self) -> bool:
        changed = bool(self._view.refresh())
        if self._view.alive is not False:
            self._alive_at = time.monotonic()
        return changed

    def _has_run(self) -> bool:
        return self._view.live is not None or self._view.config is not None

    def _phase(self) -> str:
        live, view = self._view.live, self._view
        if view.finished and (live is None or view.alive is False or live.ended is not None):
            return FINISHED
        if live is None or live.ended is not None:
            return STOPPED
        away = view.alive is False and time.monotonic() >= self._alive_at + self._patience_s
        return STOPPED if away else live.phase


def frame_of(view: RunView, phase: str) -> Frame:
    """What a view shows."""
    live, config = view.live, view.config
    told = live or config
    assert told is not None, "there is a run"
    evaluations = [
        SeenEvaluation(round=r, accuracy=record.accuracy, loss=record.loss)
        for r, record in view.rounds.items()
        if record.accuracy is not None
    ]
    closed = max(view.rounds, default=0)
    rounds = live.rounds if live is not None else config.others["rounds"] if config is not None else 0
    return Frame(
        source=str(view.path),
        run_id=told.run_id,
        algorithm=told.algorithm,
        model=told.model,
        dataset=told.dataset,
        phase=phase,
        outcome=live.outcome if live is not None else "",
        round=live.round if live is not None and phase == live.phase else closed,
        rounds=rounds if isinstance(rounds, int) else closed,
        here=len(live.clients) if live is not None else 0,
        needed=live.needed if live is not None else 0,
        open_s=max(0.0, time.time() - live.since) if live is not None and phase == "training" else None,
        left_s=view.seconds_left,
        started=live.started if live is not None else None,
        clients=_clients(live, phase),
        evaluations=tuple(evaluations),
        bytes=_sent(view),
        lost=_lost(view) if phase == FINISHED else (),
        events=tuple(_event(event) for event in view.events if event.level != "detail"),
    )


def _clients(live: LiveRecord | None, phase: str) -> tuple[SeenClient, ...]:
    """Once nobody looks after them any more, nothing is known of clients."""
    known = live is not None and phase not in (FINISHED, STOPPED)
    return tuple(map(_client, live.clients)) if live is not None and known else ()


def _client(client: LiveClient) -> SeenClient:
    upload, heard = client.upload, client.heard_at
    on_its_way = upload is not None and upload.under_way and upload.total > 0
    return SeenClient(
        name=client.name,
        state=client.state,
        why=client.reason or (f"rule {client.rule} of its site" if client.rule else ""),
        silent_s=0.0 if heard is None else max(0.0, time.time() - heard),
        examples=client.examples,
        counted_round=client.counted_round,
        upload=upload.received / upload.total if upload is not None and on_its_way else None,
    )


def _sent(view: RunView) -> dict[str, dict[str, int]]:
    """Bytes of the closed rounds."""
    sums: dict[str, Counter[str]] = {"down": Counter(), "up": Counter()}
    for record in view.rounds.values():
        for direction, counts in vars(record.bytes).items():
            sums[direction].update(counts.by_name())
    return {direction: dict(counts) for direction, counts in sums.items()}


def _lost(view: RunView) -> tuple[str, ...]:
    """By the rule that the server itself ends by."""
    attendance = Attendance()
    for record in view.rounds.values():
        attendance.add(record)
    seats = view.config.clients if view.config is not None else ()
    return tuple(attendance.lost(seat.name for seat in seats))


def _event(event: LoggedEvent) -> SeenEvent:
    try:
        at = f"{datetime.fromisoformat(event.time).astimezone():%H:%M:%S}"
    except ValueError:
        at = "--:--:--"
    return SeenEvent(time=at, text=printable(event.text), warning=event.level == "warning")
