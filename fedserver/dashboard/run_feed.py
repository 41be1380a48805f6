"""What is to be told of one run: everything to a page that opens, what is new to the others."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from common.errors import FedError, printable
from common.live.view import Changes, RunView
from common.records.run import RunRecord
from fedserver.dashboard.history import RoundHistory, chosen, thinned
from fedserver.dashboard.messages import (
    BestSoFar,
    Bytes,
    ClientStanding,
    Head,
    RunMessage,
    Shard,
    TensorBytes,
)

MOST_CLIENTS = 500
"""Whose rows a page has; those with most to say are in the log."""
MOST_TENSORS = 60
MOST_EVENTS = 500
EVERYTHING = Changes(config=True, live=True, rounds=(), fewer=True, traffic=True, events=())


class RunFeed:
    """Of one run directory."""

    def __init__(self, number: int, run_dir: Path) -> None:
        self._number = number
        self.view = RunView(run_dir, events=MOST_EVENTS)
        self._history = RoundHistory()
        self._trouble = ""
        self.behind = False
        """Whether there may be more to read at once: with many clients, traffic.jsonl is long."""

    def look(self) -> RunMessage | None:
        """What is new since the last look, if anything is."""
        try:
            changes = self.view.refresh()
        except (FedError, OSError) as error:
            trouble = printable(str(error), 300)
            fresh, self._trouble, self.behind = trouble != self._trouble, trouble, False
            return self._message(trouble=trouble) if fresh else None
        self.behind = changes.traffic
        self._history.follow(self.view.rounds, changes)
        was, self._trouble = self._trouble, ""
        return self._told(changes) if changes or was else None

    def whole(self) -> RunMessage:
        """Everything that a page needs which has just been opened."""
        points = thinned(list(self._history.points.values()))
        return self._told(EVERYTHING, points=points, events=tuple(self.view.events))

    def _told(self, changes: Changes, **known: object) -> RunMessage:
        """What has changed, in one message."""
        if changes.fewer and changes is not EVERYTHING:
            return self.whole()
        news: dict[str, object] = {"whole": changes is EVERYTHING, "trouble": self._trouble}
        if changes.config and self.view.config is not None:
            news["head"] = _head(self.view.config)
        if changes.live:
            news["live"] = self.view.live
        if changes.rounds or changes.fewer:
            news["layers"] = tuple(self._history.layers)
            news["points"] = chosen(self._history.points, changes.rounds)
        if changes.traffic:
            news["bytes"] = self._bytes()
        if changes.rounds or changes.config or changes.traffic or changes.fewer:
            news["standings"] = self._standings()
        return self._message(**({"events": changes.events[-MOST_EVENTS:]} | news | known))

    def _message(self, **news: object) -> RunMessage:
        view, best = self.view, self._history.attendance.best
        return RunMessage(
            run=self._number,
            now=time.time(),
            name=view.path.resolve().name,
            alive=view.alive,
            finished=view.finished,
            seconds_left=view.seconds_left,
            closed=len(view.rounds),
            down=self._history.down,
            up=self._history.up,
            best=None if best is None else BestSoFar(round=best[0], accuracy=best[1]),
            **news,  # type: ignore[arg-type]
        )

    def _standings(self) -> tuple[ClientStanding, ...]:
        attendance, sums = self._history.attendance, self.view.traffic.by_client
        seats = self.view.config.clients if self.view.config is not None else ()
        names = [seat.name for seat in seats[:MOST_CLIENTS]]
        absences = {absence.client: absence for absence in attendance.absences(names)}
        found = []
        for name in names:
            absence, (metric, value) = absences.get(name), self._history.metrics.get(name, ("", None))
            missed = absence.missed if absence is not None else 0
            found.append(
                ClientStanding(
                    name=name,
                    took_part=attendance.rounds_of(name) - self._history.uncounted[name],
                    uncounted=self._history.uncounted[name],
                    uncounted_reason=self._history.reasons.get(name, ""),
                    missed=missed,
                    reason=absence.reason if absence is not None and missed else "",
                    norm=self._history.norms.get(name),
                    metric=metric,
                    value=value,
                    bytes=sums[name, "down"] + sums[name, "up"],
                )
            )
        return tuple(found)

    def _bytes(self) -> Bytes:
        svr = set(self.view.config.svr_names) if self.view.config is not None else set()
        sums, both = self.view.traffic.by_tensor, Counter[tuple[str, str]]()
        for (_, purpose, name), count in sums.items():
            both[purpose, name] += count
        rows = both.most_common(MOST_TENSORS)
        return Bytes(
            rounds=self.view.traffic.rounds,
            tensors=tuple(
                TensorBytes(
                    name=name,
                    purpose=purpose,
                    svr=name in svr,
                    down=sums["down", purpose, name],
                    up=sums["up", purpose, name],
                )
                for (purpose, name), _ in rows
            ),
            unlisted=len(both) - len(rows),
        )


def _head(config: RunRecord) -> Head:
    rounds = config.others.get("rounds")
    return Head(
        run_id=config.run_id,
        algorithm=config.algorithm,
        model=config.model,
        dataset=config.dataset,
        variates=config.variates,
        rounds=rounds if isinstance(rounds, int) else 0,
        num_clients=config.num_clients,
        codec=config.codec,
        class_names=config.class_names,
        svr_names=config.svr_names,
        svr_layers=tuple(sorted({name.rpartition(".")[0] for name in config.svr_names})),
        shards=tuple(
            Shard(name=seat.name, examples=seat.examples, classes=seat.classes, evicted_in=seat.evicted_in)
            for seat in config.clients[:MOST_CLIENTS]
        ),
        unlisted=max(0, len(config.clients) - MOST_CLIENTS),
    )
