"""Tasks as processes of this machine, forked from one that has imported what all of them need."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

from fedlab.engine.task import Ended, Task, begin, wait_for
from fedlab.processes import children
from fedlab.processes.children import Child
from fedlab.processes.nursery import SIMULATION, Nursery, having


class LocalEngine:
    """A process for each task. A thread waits for each end, so that nobody has to ask for it."""

    def __init__(self, jobs: int, flags: Callable[[int], tuple[str, ...]] = lambda k: ()) -> None:
        """`flags` are what the k-th of the processes at a time is given in addition: its device."""
        self._flags = flags
        self._free = list(range(jobs))
        """Which of so many at a time the next one may be."""
        self._places: dict[str, int] = {}
        self._waiting: deque[Task] = deque()
        self._running: dict[str, Child] = {}
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._nursery: Nursery | None = None

    def submit(self, task: Task) -> None:
        """Takes a task."""
        self._waiting.append(task)

    def ended(self) -> Iterator[Ended]:
        """Each task as it ends."""
        while self._waiting or self._running:
            while self._waiting and self._free:
                self._start(self._waiting.popleft())
            ended = self._ended.get()
            del self._running[ended.key]
            self._free.append(self._places.pop(ended.key))
            yield ended

    def stop(self) -> None:
        """Ends what still runs."""
        self._waiting.clear()
        children.stop(self._running.values())
        if self._nursery is not None:
            self._nursery.close()

    def _start(self, task: Task) -> None:
        # Here and not in the thread: the kernel ends a child with the thread that has started it.
        self._free.sort()
        self._places[task.key] = k = self._free.pop(0)
        child = self._running[task.key] = begin(task.given(self._flags(k)), self._forked)

        def wait() -> None:
            self._ended.put(Ended(task.key, wait_for(child, task)))

        threading.Thread(target=wait, daemon=True).start()

    def _forked(self, module: str, arguments: Sequence[str], log: Path) -> Child:
        """A process of a nursery; of a new one if the last was killed, and the tasks that it had with it."""
        if self._nursery is None or self._nursery.has_ended:
            self._nursery = Nursery(having(SIMULATION))
        return self._nursery.start(module, arguments, log)
