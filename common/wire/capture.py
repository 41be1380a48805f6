"""Capture files: every message of a run, appended as it passes. capture.proto specifies the format."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c
from google.protobuf.message import DecodeError

from common.atomic import PRIVATE
from common.errors import ConfigError, DataError
from common.events import CaptureCutOff, CaptureStopped, Emit
from common.locks import lock
from common.wire.chunks import varint
from common.wire.messages import ClassifiedMessage
from fedpvr.v1 import capture_pb2 as pb

MAGIC = b"FEDWIRE1"
MAX_RECORD_BYTES = 65 << 20
"""More than any message: gRPC lets 4 MiB through by default, and packet captures are read up to 64 MiB."""
_MESSAGE = b"\x7a"  # Field 15, length-delimited.


@dataclass(frozen=True)
class CaptureRecord:
    """One message as it stands in a capture."""

    time_ns: int
    call: tuple[int, int]
    """Process and number of the call."""
    rpc: str
    up: bool
    client: str
    round: int
    data: bytes
    offset: int
    """Where the record starts in its file."""
    end: int
    """Where the next one starts."""


class CaptureWriter:
    """Appends to a capture file. A disk that is full ends the capture, not the run."""

    def __init__(self, path: Path, emit: Emit, flag: str = "--capture") -> None:
        """`flag` is the one that named the file, for whoever has to choose another."""
        self._path = path
        self._emit = emit
        self._lock = threading.Lock()
        self._process = secrets.randbits(32)
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(PRIVATE)
            self._file = path.open("ab", buffering=0)
            if not lock(self._file):
                self._close()
                raise ConfigError(
                    f"{flag} {path} is being written by another process; give each its own file"
                )
            self._continue(self._file)
        except (OSError, DataError) as error:
            self._close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{flag} {path} cannot be written: {reason}") from error

    def _continue(self, file: BinaryIO) -> None:
        """Goes on behind the last whole record of an existing file."""
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            file.write(MAGIC)
            return
        end, problems = len(MAGIC), list[str]()
        for record in read_records(self._path, problems.append):
            end = record.end
        if problems and not _is_cut_off(self._path, end):
            raise DataError(f"{problems[0]}; behind the damage may be good records, so use another file")
        if end < size:
            self._emit(CaptureCutOff(path=self._path, dropped_bytes=size - end, offset=end))
            file.truncate(end)

    def write(self, rpc: str, call: int, message: ClassifiedMessage) -> None:
        """Appends one message."""
        data = bytes(message.data)
        record = pb.CaptureRecord(
            time_ns=message.time_ns,
            call=call,
            rpc=rpc,
            direction=pb.CaptureRecord.UP if message.up else pb.CaptureRecord.DOWN,
            client=message.client,
            round=message.round,
            process=self._process,
        )
        head = record.SerializeToString() + _MESSAGE + varint(len(data))
        checksum = google_crc32c.extend(google_crc32c.value(head), data)
        size = len(head) + len(data)
        prefix = size.to_bytes(4, "little") + checksum.to_bytes(4, "little")
        with self._lock:
            if self._file is None:
                return
            try:
                written = os.writev(self._file.fileno(), [prefix + head, data])
                if written < 8 + size:
                    os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._emit(CaptureStopped(path=self._path, reason=error.strerror or str(error)))
                self._close()

    def close(self) -> None:
        """Ends the capture."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_cut_off(path: Path, offset: int) -> bool:
    """Whether the record there runs past the end of the file, as it does after a crash."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(offset)
        announced = int.from_bytes(file.read(4), "little")
    return size - offset < 8 or size - offset < 8 + announced <= 8 + MAX_RECORD_BYTES


def is_capture(path: Path) -> bool:
    """Whether a file begins like a capture."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_records(path: Path, problem: Callable[[str], None]) -> Iterator[CaptureRecord]:
    """The records of a file up to its end or to the first damage, which `problem` is told of."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise DataError(f"{path} is not a capture file: it should begin with {MAGIC.decode()}")
        number = 0
        while (record := _read_record(path, file, number, problem)) is not None:
            yield record
            number += 1


class RecordFile:
    """Single records of a capture file by where they start; the file is opened once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")

    def read(self, offset: int) -> CaptureRecord:
        """The record that starts there."""
        problems: list[str] = []
        self._file.seek(offset)
        record = _read_record(self._path, self._file, 0, problems.append)
        if record is None:
            raise DataError(problems[0] if problems else f"{self._path} ends before byte {offset}")
        return record

    def close(self) -> None:
        """Ends the reading."""
        self._file.close()


def _read_record(
    path: Path, file: BinaryIO, number: int, problem: Callable[[str], None]
) -> CaptureRecord | None:
    offset = file.tell()
    where = f"{path}: record {number} at byte {offset}"
    prefix = file.read(8)
    if not prefix:
        return None
    size, checksum = int.from_bytes(prefix[:4], "little"), int.from_bytes(prefix[4:], "little")
    if len(prefix) == 8 and not 0 < size <= MAX_RECORD_BYTES:
        problem(f"{where} is damaged: it claims {size} bytes; read up to there")
        return None
    # Memory is taken for what is there, not for what is announced.
    there = os.fstat(file.fileno()).st_size - file.tell()
    body = file.read(max(0, min(size, there))) if len(prefix) == 8 else b""
    if len(prefix) < 8 or len(body) < size:
        problem(f"{where} is cut off after {len(prefix) + len(body)} bytes; read up to there")
        return None
    if google_crc32c.value(body) != checksum:
        problem(f"{where} is damaged: its CRC32C is wrong; read up to there")
        return None
    try:
        record = pb.CaptureRecord.FromString(body)
    except DecodeError as error:
        problem(f"{where} is damaged: {error}; read up to there")
        return None
    return CaptureRecord(
        time_ns=record.time_ns,
        call=(record.process, record.call),
        rpc=record.rpc,
        up=record.direction == pb.CaptureRecord.UP,
        client=record.client,
        round=record.round,
        data=record.message,
        offset=offset,
        end=offset + 8 + size,
    )
