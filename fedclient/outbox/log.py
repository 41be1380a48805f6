"""The outbox: a log of everything that leaves a site, on disk before the first byte of it is sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from common import json_files
from common.atomic import PRIVATE
from common.errors import DiskError, StateError
from common.events import Emit
from common.records.client import OUTBOX, OUTBOX_HEAD, OutboxEntry, OutboxHead
from fedclient.outbox import chain
from fedclient.policy.events import OutboxMended
from fedclient.policy.facts import Departure, Usage

Signature = tuple[str, str]
"""The public key and what it has signed, both in base64."""


class Signer(Protocol):
    """The site's key."""

    def sign(self, data: bytes) -> Signature:
        """Signs."""


def now() -> datetime:
    """The time of an entry."""
    return datetime.now(UTC)


class Outbox:
    """The log in a state directory, which the client has locked."""

    def __init__(
        self, folder: Path, signer: Signer | None, emit: Emit, clock: Callable[[], datetime] = now
    ) -> None:
        """Raises for a log that was changed: what may leave depends on what has left."""
        self.path = folder / OUTBOX
        self._head = folder / OUTBOX_HEAD
        self._signer = signer
        self._emit = emit
        self._clock = clock
        self._last: OutboxEntry | None = None
        self._names: tuple[str, ...] = ()
        self._norm: tuple[str, float | None] = ("", None)
        """Id of the last update, and how far it moves x: whoever sends it again may not know that."""
        self._day, self._usage = "", Usage()
        self._open()

    def _open(self) -> None:
        lines, torn, head = read_outbox(self.path.parent)
        wrong = chain.problems(lines, head)
        if wrong:
            raise StateError(
                f"{self.path}: {wrong[0]}; look into it with fedclient outbox verify, "
                "and move it away together with its head to begin another"
            )
        for line in lines:
            assert line.entry is not None, "a log without problems has entries only"
            self._take(line.entry)
        with self._working():
            if torn:
                os.truncate(self.path, self.path.stat().st_size - torn)
                self._emit(OutboxMended(reason=f"the last line was cut off, {torn} bytes are removed"))
            if self._last is not None and (head is None or head.number < self._last.number):
                self._emit(
                    OutboxMended(reason=f"entry {self._last.number} was not in the head yet; it is now")
                )
                self._write_head(self._last)

    def depart(self, departure: Departure) -> int:
        """Writes down what is about to leave; once this returns it is on disk, under the number returned."""
        names = departure.tensors if departure.tensors != self._names else ()
        norm = self._norm[1] if departure.update == self._norm[0] else departure.norm
        return self._append(
            OutboxEntry(
                number=self._next,
                time=self._now,
                kind=departure.kind,
                run=departure.run,
                round=departure.round,
                update=departure.update,
                tensors=len(departure.tensors),
                names=names,
                bytes=departure.bytes,
                norm=norm,
                told=departure.told,
                previous=self._previous,
            )
        )

    def receipt(self, number: int, outcome: str, run: str, r: int = 0) -> None:
        """The server has answered for an entry."""
        self._append(
            OutboxEntry(
                number=self._next,
                time=self._now,
                kind="receipt",
                run=run,
                round=r,
                receipt_of=number,
                outcome=outcome,
                previous=self._previous,
            )
        )

    def usage(self) -> Usage:
        """What has left today."""
        return self._usage if self._day == self._now[:10] else Usage()

    @property
    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")

    @property
    def _next(self) -> int:
        return 1 if self._last is None else self._last.number + 1

    @property
    def _previous(self) -> str:
        return chain.FIRST if self._last is None else self._last.hash

    def _append(self, entry: OutboxEntry) -> int:
        entry = chain.sealed(entry)
        with self._working():
            self.path.touch(PRIVATE)
            json_files.append(self.path, entry)
            self._write_head(entry)
        self._take(entry)
        return entry.number

    def _write_head(self, entry: OutboxEntry) -> None:
        head = OutboxHead(number=entry.number, hash=entry.hash)
        if self._signer is not None:
            key, signature = self._signer.sign(chain.signed_text(head))
            head = replace(head, key=key, signature=signature)
        json_files.write(self._head, head, PRIVATE)

    def _take(self, entry: OutboxEntry) -> None:
        """Counts an entry."""
        self._last = entry
        self._names = entry.names or self._names
        if entry.update:
            self._norm = (entry.update, entry.norm)
        if entry.time[:10] != self._day:
            self._day, self._usage = entry.time[:10], Usage()
        rounds = {(entry.run, entry.round)} if entry.kind == "update" else set()
        self._usage = Usage(self._usage.rounds | rounds, self._usage.bytes + entry.bytes)

    @contextmanager
    def _working(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DiskError(
                f"{self.path} cannot be written: {error.strerror}; nothing leaves without it: "
                "see to the disk and start the client again"
            ) from error


def read_outbox(folder: Path) -> tuple[list[chain.Line], int, OutboxHead | None]:
    """The lines of a log, the bytes of one that was cut off, and its head."""
    path, head = folder / OUTBOX, folder / OUTBOX_HEAD
    try:
        lines, torn = chain.parsed(path.read_bytes()) if path.exists() else ([], 0)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error
    advice = "it was changed: the log has no end that can be relied on"
    return lines, torn, json_files.read(head, OutboxHead, advice) if head.exists() else None
