"""Slots: state directories side by side, for clients that are all started alike and take one each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common.errors import StateError
from fedclient.store.state import StateDir

_NAME = "client-"


@contextmanager
def first_free_slot(root: Path) -> Iterator[tuple[str, StateDir]]:
    """Takes the first of ROOT/client-1, client-2, ... that no other client has open.

    The kernel frees the lock of a client that is killed, so one that is started again finds its own slot
    the only free one among those in use. The slot's name is the client's.
    """
    with ExitStack() as stack:
        for number in itertools.count(1):
            slot = StateDir(root / f"{_NAME}{number}")
            try:
                state = stack.enter_context(slot)
            except StateError:
                continue
            yield f"{_NAME}{number}", state
            return


def slot_number(name: str) -> int:
    """Which of the slots has this name, from 0 on."""
    return int(name.removeprefix(_NAME)) - 1
