"""Messages out of a capture file or a packet capture, with what each of them is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.algorithms import ALGORITHMS
from common.errors import ConfigError, DataError, printable
from common.wire.calls import SERVICE
from common.wire.capture import CaptureRecord, CaptureWriter, RecordFile, is_capture, read_records
from common.wire.codec_choice import CODECS
from common.wire.messages import DIRECTIONS, CallFollower, CallReader, Content

MAX_PORTS = 10
"""That are named of a capture in which nothing was found."""
MAX_TIME_NS = (1 << 64) - 1
"""Of a capture record; a packet capture may claim any time."""


@dataclass(frozen=True, kw_only=True)
class MessageRow:
    """What `fedwire ls` says of a message."""

    number: int
    time: str
    direction: str
    client: str
    round: int
    rpc: str
    kind: str
    bytes: int
    payload: int
    purpose: str
    tensor: str
    call: int


@dataclass(frozen=True)
class CapturedMessage:
    """One message of a capture, without its bytes."""

    number: int
    time_ns: int
    process: int
    """Which of the processes that wrote into the file."""
    call: int
    rpc: str
    up: bool
    client: str
    round: int
    size: int
    content: Content
    offset: int
    """Where its record starts in the file."""

    @property
    def direction(self) -> str:
        """down or up."""
        return DIRECTIONS[self.up]

    def row(self) -> MessageRow:
        """The message in a list."""
        return MessageRow(
            number=self.number,
            time=datetime.fromtimestamp(self.time_ns / 1e9, UTC).isoformat(timespec="microseconds"),
            direction=self.direction,
            client=self.client,
            round=self.round,
            rpc=self.rpc,
            kind=self.content.kind,
            bytes=self.size,
            payload=self.content.payload,
            purpose=self.content.purpose,
            tensor=self.content.tensor,
            call=self.call,
        )


class Capture:
    """The messages of one run in a capture file; their bytes stay in the file until they are asked for.

    The file is open from the first time on that they are, until the capture is closed.
    """

    def __init__(self, path: Path, problem: Callable[[str], None], run: str | None = None) -> None:
        """`run` is the id of the run, or its beginning; None takes the last one in the file."""
        # A capture may name what other packages have; whoever reads it here has installed them.
        ALGORITHMS.load_all()
        CODECS.load_all()
        self._path = path
        self._file: RecordFile | None = None
        self.messages: list[CapturedMessage] = []
        calls: dict[tuple[int, int, str], int] = {}
        readers: dict[int, CallReader] = {}
        runs: dict[int, str] = {}
        """Run ids by call; a call that ended before it told its run has none."""
        for record in read_records(path, problem):
            call = calls.setdefault((*record.call, record.rpc), len(calls))
            reader = readers.setdefault(call, CallReader(record.rpc))
            content = reader.note(record.up, record.data)
            if reader.run_id:
                runs[call] = reader.run_id
            self.messages.append(_message(len(self.messages), call, record, content))
            if content.kind in ("reply", "finished"):
                del readers[call]
        self.run_id = _run_id(path, list(dict.fromkeys(runs.values())), run, problem)
        """Of the run they belong to; empty where no message tells."""
        self.messages = [m for m in self.messages if runs.get(m.call, self.run_id) == self.run_id]

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def data(self, message: CapturedMessage) -> bytes:
        """The bytes of a message."""
        if self._file is None:
            self._file = RecordFile(self._path)
        return self._file.read(message.offset).data


def _run_id(path: Path, runs: list[str], wanted: str | None, problem: Callable[[str], None]) -> str:
    """The run that begins as wanted, or the last one."""
    if wanted is not None:
        found = [run for run in runs if run.startswith(wanted)]
        if len(found) != 1:
            raise DataError(f"{path} has runs {', '.join(runs) or 'none'}; --run {wanted} is not one of them")
        return found[0]
    if len(runs) > 1:
        problem(printable(f"{path} has runs {', '.join(runs)}; this is the last one, --run picks another"))
    return runs[-1] if runs else ""


def _message(number: int, call: int, record: CaptureRecord, content: Content) -> CapturedMessage:
    return CapturedMessage(
        number=number,
        time_ns=record.time_ns,
        process=record.call[0],
        call=call,
        rpc=record.rpc,
        up=record.up,
        client=record.client,
        round=record.round,
        size=len(record.data),
        content=content,
        offset=record.offset,
    )


@contextmanager
def open_capture(
    path: Path, port: int | None, run: str | None, problem: Callable[[str], None]
) -> Iterator[Capture]:
    """A capture file, or the messages of a packet capture as one."""
    if is_capture(path):
        with Capture(path, problem, run) as capture:
            yield capture
        return
    with tempfile.TemporaryDirectory(prefix="fedwire-") as folder:
        converted = Path(folder) / "packets.fedwire"
        convert(path, port, converted, problem)
        with Capture(converted, problem, run) as capture:
            yield capture


def convert(path: Path, port: int | None, out: Path, problem: Callable[[str], None]) -> None:
    """Writes the messages of a packet capture into a capture file."""
    from fedwire.pcap.packets import grpc_messages, server_ports  # These need a library that captures do not.

    if out.exists():
        raise ConfigError(f"{out} exists already; choose another file")
    writer = CaptureWriter(out, lambda event: problem(event.text()), flag="--out")
    followers: dict[int, CallFollower] = {}
    others = found = 0
    try:
        for message in grpc_messages(path, port, problem):
            service, _, rpc = message.method.removeprefix("/").rpartition("/")
            if service != SERVICE:
                others += 1
                continue
            found += 1
            if message.call not in followers:
                followers[message.call] = _follower(writer, rpc, message.call)
            time_ns = min(max(int(message.time * 1e9), 0), MAX_TIME_NS)
            followers[message.call].note(message.from_client, message.data, time_ns)
        for follower in followers.values():
            follower.close()
    finally:
        writer.close()
    if others:
        problem(f"{path}: left out {others} messages of other services, such as health checks")
    if not found:
        out.unlink()
        ports = ", ".join(map(str, server_ports(path)[:MAX_PORTS])) or "none"
        hint = "is it another port, encrypted, or was the connection there before the capture began?"
        raise DataError(f"{path}: found no message of {SERVICE}; {hint} Servers' ports in it: {ports}")


def _follower(writer: CaptureWriter, rpc: str, call: int) -> CallFollower:
    return CallFollower(rpc, lambda message: writer.write(rpc, call, message))
