"""A run as its server tells of it: a stream of statuses, which goes on after a restart of the server."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from dataclasses import replace

from common.access.credentials import Access
from common.errors import FedError, NoConnectionError, UnavailableError, printable
from common.wire.statuses import STOPPING
from fedpvr.v1 import federation_pb2 as pb
from fedserver.console.frame import (
    FINISHED,
    STOPPED,
    Frame,
    SeenClient,
    SeenEvaluation,
    SeenEvent,
    changes,
)
from fedserver.console.status import status_phase
from fedserver.console.status_client import watch

EVENTS = 50
RETRY_S = 0.5


class Remote:
    """Watches a server. A thread of its own reads, so that ages and times go on between two replies."""

    def __init__(self, server: str, access: Access | None, patience_s: float, first_s: float = 0.0) -> None:
        """`patience_s`: how long a server may be away before the run counts as stopped; `first_s`: the same
        before it has answered at all."""
        self._server = server
        self._access = access
        self._patience_s = patience_s
        self._first_s = first_s
        self._replies: queue.Queue[pb.StatusReply | FedError] = queue.Queue()
        self._status: tuple[float, pb.StatusReply] | None = None
        self._ended: str | None = None
        self._round_since: tuple[int, float] | None = None
        self._last: Frame | None = None
        self._events: deque[SeenEvent] = deque(maxlen=EVENTS)
        threading.Thread(target=self._read, daemon=True).start()

    def look(self, at_most_s: float) -> Frame:
        """The run as soon as something has changed, or after so many seconds; waits for the first reply."""
        while True:
            try:
                told = self._replies.get(timeout=None if self._status is None else at_most_s)
            except queue.Empty:
                return self.now()
            if isinstance(told, UnavailableError) and self._status is not None:
                self._ended = str(told)
            elif isinstance(told, FedError):
                raise told
            else:
                self._status = time.monotonic(), told
            return self.now()

    def now(self) -> Frame:
        """The run as it was told of last, with ages as of now."""
        assert self._status is not None, "look waits for the first reply"
        at, status = self._status
        frame = frame_of(self._server, status, time.monotonic() - at)
        frame = replace(frame, open_s=self._open_s(frame))
        if self._ended is not None and frame.phase != FINISHED:
            closed = frame.round - (frame.phase == "training")
            frame = replace(frame, phase=STOPPED, outcome=self._ended, round=closed, clients=(), left_s=None)
        self._events.extend(changes(self._last, frame))
        self._last = frame
        return replace(frame, events=tuple(self._events))

    def _open_s(self, frame: Frame) -> float | None:
        """Since it was first seen; of the round that was open when the watch began, that is not known."""
        if self._round_since is None or self._round_since[0] != frame.round:
            self._round_since = frame.round, math.nan if self._last is None else time.monotonic()
        open_s = time.monotonic() - self._round_since[1]
        return open_s if frame.phase == "training" and math.isfinite(open_s) else None

    def _read(self) -> None:
        """Until the run is over, or the server is away for too long."""
        heard, patience_s = time.monotonic(), self._first_s
        while True:
            try:
                for status in watch(self._server, self._access):
                    heard, patience_s = time.monotonic(), self._patience_s
                    self._replies.put(status)
                return
            except UnavailableError as error:
                # A connection that breaks may come back with another process; one that stops says so.
                stopping = STOPPING in str(error) and not isinstance(error, NoConnectionError)
                if stopping or time.monotonic() >= heard + patience_s:
                    self._replies.put(UnavailableError(STOPPING) if stopping else error)
                    return
                time.sleep(RETRY_S)
            except FedError as error:
                self._replies.put(error)
                return


def frame_of(server: str, status: pb.StatusReply, age_s: float) -> Frame:
    """What a status of this age shows."""
    phase = status_phase(status)
    sent: dict[str, dict[str, int]] = {}
    for count in status.bytes:
        sent.setdefault(count.direction, {})[count.purpose] = count.bytes
    left_s = None
    if phase == "training" and status.HasField("round_seconds"):
        left_s = max(0.0, status.round_seconds * (status.rounds - status.round + 1) - age_s)
    return Frame(
        source=server,
        run_id=printable(status.run_id),
        algorithm=printable(status.algorithm),
        model=printable(status.model),
        dataset=printable(status.dataset),
        phase=phase,
        round=status.round,
        rounds=status.rounds,
        here=len(status.clients) + status.others,
        needed=status.needed,
        left_s=left_s,
        clients=tuple(_client(client, age_s) for client in status.clients),
        others=status.others,
        evaluations=tuple(
            SeenEvaluation(
                round=each.round, accuracy=each.accuracy, loss=each.loss if math.isfinite(each.loss) else None
            )
            for each in status.evaluations
        ),
        bytes=sent,
        lost=tuple(map(printable, status.lost)),
    )


def _client(client: pb.ClientStatus, age_s: float) -> SeenClient:
    silent = client.last_seen_seconds if client.HasField("last_seen_seconds") else None
    return SeenClient(
        name=printable(client.name),
        state=printable(client.state),
        why=printable(client.reason or (f"rule {client.rule} of its site" if client.rule else "")),
        # Of one that waits in a call nothing need be heard.
        silent_s=silent + age_s if silent else silent,
        examples=client.examples,
        counted_round=client.counted_round,
    )
