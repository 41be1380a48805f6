"""The outbox: a log of everything that leaves a site, on disk before the first byte of it is sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from common import json_files
from common.atomic import PRIVATE
from common.errors import DiskError, StateError
from common.events import Emit
from common.records.client import OUTBOX, OUTBOX_HEAD, OutboxEntry, OutboxHead
from fedclient.keys.signatures import fingerprint, is_signed
from fedclient.outbox import chain
from fedclient.policy.events import OutboxMended
from fedclient.policy.facts import Departure, Usage


class Signer(Protocol):
    """The site's key."""

    @property
    def key(self) -> str:
        """Its public half, in base64."""

    def sign(self, data: bytes) -> str:
        """A signature in base64."""


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
        self._day = ""
        self._rounds: set[tuple[str, int]] = set()
        self._bytes = 0
        self._open()

    def _open(self) -> None:
        lines, torn, head = read_outbox(self.path.parent)
        wrong = chain.problems(lines, head) + signature_problems(head)
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
                number = self._last.number
                self._emit(OutboxMended(reason=f"entry {number} was not in the head yet; it is now"))
                self._write_head(self._last)
        self._note_key(head)

    def _note_key(self, head: OutboxHead | None) -> None:
        """From which entry on another key signs, or none, is in the log itself."""
        key = self._signer.key if self._signer is not None else ""
        if head is not None and head.key != key:
            now_signed = f"signed with key {fingerprint(key)}" if key else "not signed"
            number = self._note("key", outcome=now_signed)
            self._emit(OutboxMended(reason=f"from entry {number} on it is {now_signed}"))

    def depart(self, departure: Departure) -> int:
        """Writes down what is about to leave; once this returns it is on disk, under the number returned."""
        if (number := self._tried_already(departure)) is not None:
            return number
        names = departure.tensors if departure.tensors != self._names else ()
        norm = self._norm[1] if departure.update == self._norm[0] else departure.norm
        return self._note(
            departure.kind,
            run=departure.run,
            round=departure.round,
            update=departure.update,
            tensors=len(departure.tensors),
            names=names,
            bytes=departure.bytes,
            norm=norm,
            told=departure.told,
        )

    def _tried_already(self, departure: Departure) -> int | None:
        """The entry of the same join today without an answer: a client asks until there is a server."""
        last = self._last
        if last is None or departure.kind != "join" or last.time[:10] != self._now[:10]:
            return None
        same = (last.kind, last.bytes, last.told) == (departure.kind, departure.bytes, departure.told)
        return last.number if same else None

    def receipt(self, number: int, outcome: str, run: str, r: int = 0) -> None:
        """The server has answered for an entry."""
        self._note("receipt", run=run, round=r, receipt_of=number, outcome=outcome)

    def usage(self) -> Usage:
        """What has left today; a clock that is set back makes the day longer."""
        return Usage(frozenset(self._rounds), self._bytes) if self._day >= self._now[:10] else Usage()

    @property
    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")

    def _note(self, kind: str, **content: Any) -> int:
        """Adds an entry; returns its number once it is on disk."""
        number, previous = (self._last.number + 1, self._last.hash) if self._last else (1, chain.FIRST)
        entry = chain.sealed(
            OutboxEntry(number=number, time=self._now, kind=kind, previous=previous, **content)
        )
        with self._working():
            self.path.touch(PRIVATE)
            json_files.append(self.path, entry)
            self._write_head(entry)
        self._take(entry)
        return number

    def _write_head(self, entry: OutboxEntry) -> None:
        head = OutboxHead(number=entry.number, hash=entry.hash)
        if self._signer is not None:
            signature = self._signer.sign(chain.signed_text(head))
            head = replace(head, key=self._signer.key, signature=signature)
        json_files.write(self._head, head, PRIVATE)

    def _take(self, entry: OutboxEntry) -> None:
        """Counts an entry."""
        self._last = entry
        self._names = entry.names or self._names
        if entry.update:
            self._norm = (entry.update, entry.norm)
        if entry.time[:10] > self._day:
            self._day, self._rounds, self._bytes = entry.time[:10], set(), 0
        if entry.kind == "update":
            self._rounds.add((entry.run, entry.round))
        self._bytes += entry.bytes

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


def signature_problems(head: OutboxHead | None, wanted: str | None = None) -> list[str]:
    """What is wrong with the signature of a head; `wanted` is the key that must have signed it."""
    if head is None:
        return []
    if wanted is not None and head.key != wanted:
        return ["the head is not signed with the key of the certificate"]
    if head.key and not is_signed(head.key, chain.signed_text(head), head.signature):
        return ["the signature of the head is wrong"]
    return []
