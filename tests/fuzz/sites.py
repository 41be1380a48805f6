"""Targets: what a site's owner writes and keeps, site.toml and the log of what has left."""

from __future__ import annotations

import json
from contextlib import suppress

from common.errors import FedError
from common.events import unheard
from common.records.client import OUTBOX, OUTBOX_HEAD
from fedclient.outbox import chain
from fedclient.outbox.listing import departures, verdict
from fedclient.outbox.log import Outbox
from fedclient.policy.facts import Departure
from fedclient.policy.policy import read_policy
from tests.fuzz import known, mutators
from tests.fuzz.mutators import script, scripted
from tests.fuzz.target import Target


def outbox(data: bytes) -> None:
    """A log and its head, as they are and with right hashes, for those who read it and who go on with it."""
    folder = known.folder() / "outbox"
    folder.mkdir(exist_ok=True)
    log, head, *_ = [*script(data), b"", b""]
    for content in (log, b"".join(map(_rehashed, log.splitlines(keepends=True)))):
        (folder / OUTBOX).write_bytes(content)
        (folder / OUTBOX_HEAD).write_bytes(head)
        if not head:
            (folder / OUTBOX_HEAD).unlink()
        with suppress(FedError):
            departures(folder)
            assert "".join(verdict(folder, None).problems).isprintable()
        with suppress(FedError):
            Outbox(folder, None, unheard).depart(Departure(kind="update", bytes=1))
            assert not verdict(folder, None).problems


def _rehashed(line: bytes) -> bytes:
    try:
        values = json.loads(line)
        return json.dumps(values | {"hash": chain.digest(values)}).encode() + b"\n"
    except (ValueError, TypeError, AttributeError, RecursionError):
        return line


def outbox_seeds() -> list[bytes]:
    """A departure with its receipt."""
    folder = known.folder() / "outbox-seed"
    folder.mkdir(exist_ok=True)
    if not (folder / OUTBOX).exists():
        log = Outbox(folder, None, unheard)
        leaving = Departure(kind="update", run="a1", round=1, update="1-0", tensors=("w",), bytes=4, norm=0.5)
        log.receipt(log.depart(leaving), "ACCEPTED", "a1", 1)
    return [scripted([(folder / name).read_bytes() for name in (OUTBOX, OUTBOX_HEAD)])]


def policy(data: bytes) -> None:
    """A site.toml."""
    read_policy(known.file_with(data))


def policy_seeds() -> list[bytes]:
    """Keys of every form."""
    text = 'servers = ["a:*"]\nrequire_tls = true\nmax_rounds = 3\ncodecs = ["int8"]\nmodules = ["a:b"]\n'
    return [text.encode(), b"fingerprints = ['0123abcd']\nmin_others = 2\nround_examples = 10\n"]


TARGETS = {
    "outbox": Target(outbox, outbox_seeds, mutators.json_files),
    "site-policy": Target(policy, policy_seeds),
}
