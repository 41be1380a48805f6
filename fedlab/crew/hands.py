"""Who takes which client's turn next: the largest shards first, each where its client is at home."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping


class Hands:
    """The clients of a round whose turns are still to be taken, and where each client is at home.

    In a round for all clients each stays with one worker, and the work is shared out beforehand. Where some
    are drawn, it would be by chance that as many are drawn of each worker's: whoever is free takes the next,
    rather one that it has had before, whose examples it has in memory.
    """

    def __init__(self, work: Mapping[int, int], jobs: int, *, move: bool) -> None:
        """`work` is that of each client; `move`: clients go where somebody is free."""
        self._work = work
        self._move = move
        self._lock = threading.Lock()
        self._left: set[int] = set()
        self._home: dict[int, int] = {} if move else shared_out(work, jobs)

    def open(self, drawn: Iterable[int]) -> None:
        """A round for these clients begins."""
        self._left = {*drawn}

    def next(self, k: int) -> int | None:
        """The client whose turn worker k takes next, which is at home there from now on."""
        with self._lock:
            mine = [i for i in self._left if self._home.get(i) == k]
            nobodys = [i for i in self._left if i not in self._home]
            others = [*self._left] if self._move else []
            for some in (mine, nobodys, others):
                if some:
                    i = min(some, key=lambda i: (-self._work[i], i))
                    self._left.discard(i)
                    self._home[i] = k
                    return i
            return None

    def lose(self, k: int) -> list[int]:
        """Worker k is gone: its clients are nobody's, and are returned."""
        with self._lock:
            homeless = [i for i, home in self._home.items() if home == k]
            for i in homeless:
                del self._home[i]
            return homeless

    def again(self, i: int) -> None:
        """The turn of this client was not taken."""
        with self._lock:
            self._left.add(i)

    @property
    def left(self) -> bool:
        """Whether there are turns to take."""
        return bool(self._left)


def shared_out(work: Mapping[int, int], jobs: int) -> dict[int, int]:
    """Workers by client: the largest first, each to whoever has least to do."""
    loads, home = [0] * jobs, {}
    for i in sorted(work, key=lambda i: (-work[i], i)):
        k = loads.index(min(loads))
        loads[k] += work[i]
        home[i] = k
    return home
