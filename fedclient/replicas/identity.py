"""Who a client is: its name, the directory of its state, what it shows to a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from common.access import cli as access_cli
from common.access.credentials import Access
from fedclient.flags import STATE, Flags
from fedclient.store.state import StateDir
from fedclient.store.state_slot import first_free_slot, slot_number


@dataclass(frozen=True)
class Identity:
    """A client before it has data and a model."""

    flags: Flags
    name: str
    state: StateDir
    """Locked."""
    access: Access


@contextmanager
def identified(flags: Flags, credentials: dict[str, Any]) -> Iterator[Identity]:
    """Takes a client's state directory, as its flags say, and looks whether its credentials can be used."""
    with ExitStack() as stack:
        if flags.state_root is not None:
            name, state = stack.enter_context(first_free_slot(flags.state_root))
            flags = replace(flags, worker=slot_number(name))
        else:
            name = flags.own_name
            state = stack.enter_context(StateDir(flags.state_dir or STATE / name))
        yield Identity(flags, name, state, access_cli.access(flags.server, name, **credentials))
