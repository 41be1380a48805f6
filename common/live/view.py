"""Everything that is known of a run from its directory, kept up to date."""

from __future__ import annotations

import statistics
import sys
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from common import json_files
from common.atomic import file_stamp
from common.errors import StateError
from common.live.lines import GrowingFile
from common.live.record import EVENTS, LIVE, LiveRecord, LoggedEvent, read_live
from common.live.sent import TrafficSums
from common.processes.identity import is_alive
from common.records.conformal import CONFORMAL
from common.records.rounds import ROUNDS, RoundRecord
from common.records.run import CONFIG, RunRecord, read_run_record

FIRST_EVENT_BYTES = 1 << 18
"""Of the events of a run that has gone on for long, so much is read when it is first looked at."""
RECENT = 10
"""Rounds that say how long the next ones will take."""


@dataclass(frozen=True)
class Changes:
    """What a refresh has found."""

    config: bool
    """config.json is there, or was written anew."""
    live: bool
    """live.json likewise, or its process has ended."""
    rounds: tuple[int, ...]
    """Rounds whose records are new or have changed."""
    fewer: bool
    """Whether rounds that were there are not there any more: the run went back to an earlier checkpoint."""
    traffic: bool
    """There are more bytes."""
    events: tuple[LoggedEvent, ...]
    """New ones, the oldest first."""

    def __bool__(self) -> bool:
        return self.config or self.live or self.fewer or self.traffic or bool(self.rounds or self.events)


class RunView:
    """A run directory, of a run that goes on, is over, or has yet to begin. `refresh` reads what is new."""

    def __init__(self, run_dir: Path, *, events: int = 2000) -> None:
        """`events`: so many of them are kept."""
        self.path = run_dir
        self.config: RunRecord | None = None
        """None before all seats are taken."""
        self.live: LiveRecord | None = None
        """None for a run of an earlier release, and before a server has begun."""
        self.alive: bool | None = False
        """Whether the process of the run lives; None where that cannot be seen from here."""
        self.rounds: dict[int, RoundRecord] = {}
        """Closed rounds by number, in their order."""
        self.events: deque[LoggedEvent] = deque(maxlen=events)
        self.damaged = 0
        """Lines of events.jsonl that are none, as after a power cut."""
        self.traffic = TrafficSums(run_dir)
        self._stamps: dict[str, tuple[int, int, int] | None] = {}
        self._events = GrowingFile(run_dir / EVENTS, first_bytes=FIRST_EVENT_BYTES)
        self._records = GrowingFile(run_dir / ROUNDS)
        self._lines: list[tuple[int, int]] = []
        """Hash of each line of rounds.jsonl, and its round: of a file that was written anew, most lines are
        as they were."""

    def refresh(self) -> Changes:
        """Reads what is new; raises a StateError for a file that does not have its form."""
        config = self._changed(CONFIG)
        if config:
            self.config = read_run_record(self.path) if (self.path / CONFIG).exists() else None
        live = self._changed(LIVE)
        if live:
            self.live = read_live(self.path)
        alive = self.live is not None and self.live.ended is None and is_alive(self.live.process)
        live, self.alive = live or alive is not self.alive, alive
        rounds, fewer = self._look_at_rounds()
        return Changes(config, live, rounds, fewer, self.traffic.look(), self._look_at_events())

    @property
    def finished(self) -> bool:
        """Whether everything is written that a run writes."""
        return (self.path / CONFORMAL).exists()

    @property
    def is_run(self) -> bool:
        """Whether there is anything of a run here."""
        return any((self.path / name).exists() for name in (CONFIG, LIVE, ROUNDS))

    @property
    def seconds_left(self) -> float | None:
        """How long the rounds that are left will take, if they go on as the last ones; None: not known."""
        live = self.live
        if live is None or self.alive is False or live.phase != "training" or not self.rounds:
            return None
        last = [record.seconds.round for record in list(self.rounds.values())[-RECENT:]]
        return statistics.median(last) * (live.rounds - max(self.rounds))

    def _changed(self, name: str) -> bool:
        stamp = file_stamp(self.path / name)
        before = self._stamps.get(name)
        self._stamps[name] = stamp
        return stamp != before

    def _look_at_rounds(self) -> tuple[tuple[int, ...], bool]:
        """Rounds that are new or have changed, and whether others are gone."""
        found, before = self._records.look(), self.rounds
        if not (found.lines or found.anew):
            return (), False
        lines = list(map(hash, found.lines))
        known = dict(self._lines) if found.anew else {}
        kept = [] if found.anew else self._lines
        news: dict[int, RoundRecord] = {}
        for line, mark in zip(found.lines, lines, strict=True):
            r = known.get(mark)
            if r is None:
                record = _sharing_names(json_files.parsed(line, RoundRecord, str(self._records.path)))
                r = record.round
                news[r] = record
            kept.append((mark, r))
        self._lines = kept
        there = {r for _, r in kept}
        merged = {r: record for r, record in before.items() if r in there} | news
        self.rounds = dict(sorted(merged.items())) if found.anew else merged
        return tuple(sorted(news)), bool(before.keys() - there)

    def _look_at_events(self) -> tuple[LoggedEvent, ...]:
        found = self._events.look()
        if found.anew:
            self.events.clear()
        news = []
        for line in found.lines:
            try:
                news.append(json_files.parsed(line, LoggedEvent, str(self._events.path)))
            except StateError:
                self.damaged += 1
        self.events.extend(news)
        return tuple(news)


def _sharing_names(record: RoundRecord) -> RoundRecord:
    """The same with one text for each name, however many rounds and clients there are."""
    shared = sys.intern
    return replace(
        record,
        clients=tuple(map(shared, record.clients)),
        drift={shared(name): value for name, value in record.drift.items()},
        norms=replace(record.norms, clients={shared(n): size for n, size in record.norms.clients.items()}),
    )
