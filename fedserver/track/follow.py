"""Tells trackers what a run directory has, once or for as long as a run goes on."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from common.errors import FedError, StateError
from common.live.view import RunView
from common.locks import lock
from common.records.run import CONFIG
from fedserver.track.tracker import Once, Target, Tracker

LOOK_S = 1.0
RETRY_S = 30.0
"""How long a tracker that failed is left alone."""
CLOSED = "round_closed"


class Following:
    """One run and one tracker, which is opened once there is something to tell.

    Only one process at a time tells a tracker of a run: that of a killed server may still be at it when the
    next one's begins, and each would know nothing of what the other writes.
    """

    def __init__(self, target: Target, view: RunView, *, wait: bool) -> None:
        self._target = target
        self._view = view
        self._wait = wait
        self._turn: IO[bytes] | None = None
        self._tracker: Tracker | None = None
        self._once: Once | None = None

    def tell(self) -> int:
        """All that the tracker does not have; returns how many values that were."""
        config = self._view.config
        if config is None or not self._view.rounds:
            return 0
        if self._turn is None:
            self._turn = self._take_turn()
        if self._tracker is None or self._once is None:
            self._tracker = self._target.open(self._view.path, config)
            self._once = Once(self._tracker)
        return self._once.tell(self._view.rounds.values(), _times(self._view))

    def _take_turn(self) -> IO[bytes]:
        name = f".track-{zlib.crc32(str(self._target).encode()):08x}.lock"
        turn = (self._view.path / name).open("ab")
        if not lock(turn, wait=self._wait):
            turn.close()
            raise StateError(f"another process tells {self._target} of this run; wait for it to end")
        return turn

    def close(self) -> None:
        """No more comes from this process."""
        if self._tracker is not None:
            self._tracker.close(finished=self._view.finished)
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def forget(self) -> None:
        """After an error nobody knows what the tracker has: it is read back the next time."""
        self._tracker = self._once = None


def tell_all(run_dir: Path, targets: Sequence[Target]) -> dict[Target, int]:
    """Tells trackers of a run as far as it is; returns how many values were new to each."""
    view = RunView(run_dir)
    view.refresh()
    if view.config is None:
        raise StateError(f"{run_dir} holds no run; a run directory has {CONFIG}")
    told = {}
    for target in targets:
        following = Following(target, view, wait=False)
        told[target] = following.tell()
        following.close()
    return told


def follow(
    run_dir: Path,
    targets: Sequence[Target],
    is_left: Callable[[float | None], bool],
    complain: Callable[[str], None],
) -> None:
    """Tells trackers of every round until `is_left`, and then of what is missing. Each fails for itself."""
    view = RunView(run_dir)
    followings = {target: Following(target, view, wait=True) for target in targets}
    waits = dict.fromkeys(targets, 0.0)
    left, news = False, True
    while True:
        for target, following in followings.items():
            waits[target] -= LOOK_S
            if left or (news and waits[target] <= 0):
                with _complaints(target, run_dir, complain) as failed:
                    following.tell()
                if failed:
                    following.forget()
                    waits[target] = RETRY_S
        if left:
            break
        left = is_left(LOOK_S)
        with _complaints(None, run_dir, complain):
            news = bool(view.refresh()) or any(wait > -LOOK_S for wait in waits.values())
    for target, following in followings.items():
        with _complaints(target, run_dir, complain):
            following.close()


@contextmanager
def _complaints(target: Target | None, run_dir: Path, complain: Callable[[str], None]) -> Iterator[list[str]]:
    """An error becomes a line that says what to do, and is in the list that the block gets."""
    failed: list[str] = []
    try:
        yield failed
    except (FedError, OSError) as error:
        failed.append(str(error))
        again = f"; later: fedserver track {run_dir} --to {target}" if target is not None else ""
        complain(f"{target or run_dir}: {error}{again}")


def _times(view: RunView) -> dict[int, float]:
    """When rounds closed, as far as that is among the events that are kept."""
    found = {}
    for event in view.events:
        if event.event == CLOSED:
            try:
                found[event.round] = datetime.fromisoformat(event.time).timestamp()
            except ValueError:
                continue
    return found
