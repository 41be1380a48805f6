"""Capture files: appended, cut off, damaged, on a full disk; what was written before can always be read."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError, DataError
from common.events import unheard
from common.wire.capture import MAGIC, CaptureRecord, CaptureWriter, read_records
from common.wire.messages import ClassifiedMessage, Content
from fedpvr.v1 import capture_pb2 as pb

MESSAGES = [b"first", b"", b"x" * 5000, b"last"]


def message(data: bytes, r: int = 1) -> ClassifiedMessage:
    """A message on its way up."""
    return ClassifiedMessage(
        time_ns=123456789, up=True, data=data, content=Content("chunk"), client="a", round=r
    )


def write(path: Path, messages: list[bytes]) -> list[str]:
    """Appends messages; returns what the writer said."""
    said: list[str] = []
    writer = CaptureWriter(path, lambda event: said.append(event.text()))
    for number, data in enumerate(messages):
        writer.write("PushUpdate", number, message(data, number))
    writer.close()
    return said


def read(path: Path) -> tuple[list[CaptureRecord], list[str]]:
    """All records, and what was wrong."""
    problems: list[str] = []
    return list(read_records(path, problems.append)), problems


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    assert write(tmp_path / "c", MESSAGES) == []
    records, problems = read(tmp_path / "c")
    assert problems == []
    assert [record.data for record in records] == MESSAGES
    assert [record.round for record in records] == [0, 1, 2, 3]
    assert {(r.rpc, r.up, r.client, r.time_ns) for r in records} == {("PushUpdate", True, "a", 123456789)}


def test_the_file_is_what_capture_proto_says(tmp_path: Path) -> None:
    write(tmp_path / "c", [b"hello"])
    data = (tmp_path / "c").read_bytes()
    assert data[:8] == MAGIC
    record = pb.CaptureRecord.FromString(data[16:])
    assert int.from_bytes(data[8:12], "little") == len(data) - 16 == record.ByteSize()
    assert record.message == b"hello"


def test_two_processes_can_append_and_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "c", MESSAGES[:2])
    write(tmp_path / "c", MESSAGES[2:])
    records, _ = read(tmp_path / "c")
    assert [record.data for record in records] == MESSAGES
    assert len({record.call[0] for record in records}) == 2


def test_a_file_cut_anywhere_is_read_up_to_there_and_can_be_continued(tmp_path: Path) -> None:
    write(tmp_path / "whole", MESSAGES)
    data = (tmp_path / "whole").read_bytes()
    ends = [record.end for record in read(tmp_path / "whole")[0]]
    for cut in [9, 15, 16, 30, ends[0] + 3, ends[1] - 1, ends[2] - 700, len(data) - 1]:
        path = tmp_path / f"cut-{cut}"
        path.write_bytes(data[:cut])
        records, problems = read(path)
        whole = sum(end <= cut for end in ends)
        assert [record.data for record in records] == MESSAGES[:whole]
        assert len(problems) == 1
        assert f"record {whole} at byte" in problems[0]
        assert "cut off" in problems[0]
        said = write(path, [b"more"])
        assert "dropping" in said[0]
        records, problems = read(path)
        assert [record.data for record in records] == [*MESSAGES[:whole], b"more"]
        assert problems == []


@given(st.integers(0, 10**6), st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_a_damaged_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, at: int, flip: int) -> None:
    path = tmp_path_factory.mktemp("damage") / "c"
    write(path, MESSAGES)
    data = bytearray(path.read_bytes())
    ends = [record.end for record in read(path)[0]]
    at %= len(data)
    data[at] ^= flip
    path.write_bytes(data)
    if at < len(MAGIC):
        with pytest.raises(DataError, match="is not a capture file"):
            read(path)
        return
    records, problems = read(path)
    assert [record.data for record in records] == MESSAGES[: sum(end <= at for end in ends)]
    assert len(problems) == 1


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_the_reader_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "c"
    path.write_bytes(MAGIC + data)
    read(path)


def test_an_announced_size_alone_allocates_nothing(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(MAGIC + b"\xff" * 8)
    assert "claims 4294967295 bytes" in read(tmp_path / "c")[1][0]


def test_a_damaged_file_is_not_continued_but_left_alone(tmp_path: Path) -> None:
    """What lies behind the damage may be good."""
    write(tmp_path / "c", MESSAGES)
    data = bytearray((tmp_path / "c").read_bytes())
    data[20] ^= 1
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(ConfigError, match=r"--capture .* use another file"):
        CaptureWriter(tmp_path / "c", unheard)
    assert (tmp_path / "c").read_bytes() == data


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c", unheard)
    with pytest.raises(ConfigError, match="being written by another process"):
        CaptureWriter(tmp_path / "c", unheard)
    writer.close()
    CaptureWriter(tmp_path / "c", unheard).close()


def test_a_tail_of_zeros_is_damage_and_no_message(tmp_path: Path) -> None:
    """What a power cut may leave behind; the CRC32C of nothing is zero."""
    write(tmp_path / "c", MESSAGES)
    with (tmp_path / "c").open("ab") as file:
        file.write(bytes(64))
    records, problems = read(tmp_path / "c")
    assert len(records) == len(MESSAGES)
    assert "claims 0 bytes" in problems[0]


def test_a_file_that_is_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("do not overwrite")
    with pytest.raises(ConfigError, match=r"--capture .* is not a capture file"):
        CaptureWriter(tmp_path / "notes.txt", unheard)
    assert (tmp_path / "notes.txt").read_text() == "do not overwrite"


def test_a_full_disk_ends_the_capture_and_nothing_else(tmp_path: Path) -> None:
    said: list[str] = []
    writer = CaptureWriter(tmp_path / "c", lambda event: said.append(event.text()))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        for number in range(5):
            writer.write("PushUpdate", number, message(b"y" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(said) == 1
    assert "ends here" in said[0]
    records, problems = read(tmp_path / "c")
    assert [len(record.data) for record in records] == [1000, 1000]
    assert problems == [], "no half record is left"
