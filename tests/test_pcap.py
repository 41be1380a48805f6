"""Reading captures: real gRPC conversations, recorded byte for byte, come back out of every kind of file."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hpack import Encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import DataError
from fedwire.pcap import http2, packets, pcapfile, tcp
from fedwire.pcap.packets import grpc_messages
from tests.captures import (
    LINKS,
    SERVER_PORT,
    Recording,
    Sent,
    calls_of,
    conversation,
    frame,
    ip,
    pcap,
    pcapng,
    read,
    record,
)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """One conversation for all tests."""
    return record()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test puts its capture."""
    return tmp_path / "capture"


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("port", [None, SERVER_PORT])
def test_every_link_type_gives_the_messages_sent(
    path: Path, recording: Recording, link: int, port: int | None
) -> None:
    frames = [frame(ip(sent), link) for sent in conversation(recording.chunks)]
    messages, problems = read(path, pcap(frames, link), port)
    assert sorted(calls_of(messages)) == sorted(recording.calls)
    assert problems == []
    assert {message.call for message in messages} == set(range(len(recording.calls)))
    assert [message.time for message in messages] == sorted(message.time for message in messages)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["micro", "nano", "ng", "ng nano", "ng binary"])
def test_every_file_format_gives_messages_and_times(
    path: Path, recording: Recording, order: str, kind: str
) -> None:
    frames = [frame(ip(sent)) for sent in conversation(recording.chunks)]
    if kind in ("micro", "nano"):
        data = pcap(frames, order=order, nano=kind == "nano")
    else:
        data = pcapng(frames, order=order, resolution={"ng": None, "ng nano": 9, "ng binary": 128 + 30}[kind])
    messages, problems = read(path, data)
    assert sorted(calls_of(messages)) == sorted(recording.calls)
    assert problems == []
    assert 1000 < messages[0].time < messages[-1].time <= 1000 + len(frames) / 1000


def test_sections_of_both_byte_orders_may_follow_each_other(path: Path, recording: Recording) -> None:
    frames = [frame(ip(sent)) for sent in conversation(recording.chunks)]
    messages, problems = read(path, pcapng(frames[:20]) + pcapng(frames[20:], order=">"))
    assert (sorted(calls_of(messages)), problems) == (sorted(recording.calls), [])


@pytest.mark.parametrize(
    ("version", "options"),
    [(4, bytes(8)), (6, b""), (6, b"\x3c\x00" + bytes(6) + b"\x2b\x01" + bytes(14) + b"\x06\x00" + bytes(6))],
    ids=["IPv4 options", "IPv6", "IPv6 extension headers"],
)
def test_ip_headers_of_all_kinds_are_passed(
    path: Path, recording: Recording, version: int, options: bytes
) -> None:
    frames = [frame(ip(sent, version, options)) for sent in conversation(recording.chunks)]
    messages, problems = read(path, pcap(frames))
    assert sorted(calls_of(messages)) == sorted(recording.calls)
    assert problems == []


def test_a_packet_left_to_the_network_card_has_no_length_and_is_read_whole(
    path: Path, recording: Recording
) -> None:
    whole = [ip(sent) for sent in conversation(recording.chunks)]
    frames = [frame(packet[:2] + bytes(2) + packet[4:], 101) for packet in whole]
    assert sorted(calls_of(read(path, pcap(frames, 101))[0])) == sorted(recording.calls)


@pytest.mark.parametrize("seed", range(6))
def test_disorder_repeats_and_overlaps_do_not_show(path: Path, recording: Recording, seed: int) -> None:
    chance = random.Random(seed)
    sent = conversation(recording.chunks, most=5000)
    for k in [k for k, one in enumerate(sent) if one.data and chance.random() < 0.3]:
        one, cut = sent[k], chance.randrange(len(sent[k].data))
        sent.append(replace(one, seq=one.seq + cut, data=one.data[cut:]))  # Sent again in part, and late.
        if k + 1 < len(sent) and sent[k + 1].from_client == one.from_client:
            sent[k] = replace(one, data=one.data + sent[k + 1].data[:cut])
    start, body = sent[:3], sent[3:]
    body = [one for _, one in sorted(enumerate(body), key=lambda pair: pair[0] + chance.uniform(0, 8))]
    messages, problems = read(path, pcap([frame(ip(one)) for one in [*start, *body]]))
    assert sorted(calls_of(messages)) == sorted(recording.calls)
    assert problems == []


def data_places(sent: list[Sent], from_client: bool) -> list[int]:
    """Where one side's data are in a conversation."""
    return [k for k, one in enumerate(sent) if one.data and one.from_client == from_client]


@pytest.mark.parametrize("from_client", [True, False])
def test_a_packet_the_sniffer_missed_is_named_and_the_other_direction_still_read(
    path: Path, recording: Recording, from_client: bool
) -> None:
    sent = conversation(recording.chunks, most=5000)
    places = data_places(sent, from_client)
    gone = sent.pop(places[len(places) // 2])
    messages, problems = read(path, pcap([frame(ip(one)) for one in sent]))
    assert len(problems) == 1
    assert f"{len(gone.data)} bytes are missing after byte" in problems[0]
    assert ("127.0.0.1:40000 > 127.0.0.2:50051" in problems[0]) is from_client
    known = {message.method: message for message in messages if message.from_client is not from_client}
    assert known
    expected = {data for call in recording.calls for side in call[1:] for data in side}
    assert {message.data for message in messages} <= expected


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_missed_nothing_wrong_comes_out_and_nothing_is_lost_in_silence(
    path: Path, recording: Recording, seed: int
) -> None:
    chance = random.Random(seed)
    sent = [
        one for one in conversation(recording.chunks, most=3000) if not one.data or chance.random() > 0.005
    ]
    messages, problems = read(path, pcap([frame(ip(one)) for one in sent]), SERVER_PORT)
    expected = [(call[0], data) for call in recording.calls for side in call[1:] for data in side]
    came = [(message.method, message.data) for message in messages]
    assert set(came) <= set(expected)
    assert len(problems) <= 2
    assert problems or len(came) == len(expected)


def test_the_last_packet_missing_is_noticed_by_its_acknowledgement(path: Path) -> None:
    sent = conversation(answered(b"x" * 100))[:-2]
    gone = sent.pop(data_places(sent, False)[-1])
    _, problems = read(path, pcap([frame(ip(one)) for one in sent]))
    assert len(problems) == 1
    assert f"{len(gone.data)} bytes are missing" in problems[0]


def test_a_missing_packet_is_noticed_while_reading_and_the_rest_not_kept_for_the_end(
    path: Path, recording: Recording
) -> None:
    sent = conversation(recording.chunks, most=2000)
    place = data_places(sent, True)[20]
    sent.pop(place)
    _, problems = read(path, pcap([frame(ip(one)) for one in sent]))
    assert len(problems) == 1
    noticed = int(problems[0].partition("noticed at packet ")[2].partition(";")[0])
    assert place < noticed <= place + 2 * tcp.PATIENCE + 2


def test_packets_cut_by_the_snap_length_are_named(path: Path, recording: Recording) -> None:
    frames = [frame(ip(one)) for one in conversation(recording.chunks)]
    _, problems = read(path, pcap(frames, snap=400))
    assert problems
    assert all("capture with -s 0" in problem for problem in problems)
    assert "ends inside its IP or TCP header" in read(path, pcap(frames, snap=50))[1][0]


def test_too_much_behind_a_gap_is_given_up(
    path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "MAX_WAITING_BYTES", 100_000)
    sent = [one for one in conversation(recording.chunks) if one.from_client]
    sent.pop(data_places(sent, True)[1])
    _, problems = read(path, pcap([frame(ip(one)) for one in sent]))
    assert len(problems) == 1
    assert "bytes are missing" in problems[0]


def test_ports_used_again_are_a_new_connection_with_new_calls(path: Path, recording: Recording) -> None:
    both = conversation(recording.chunks) + conversation(recording.chunks, first=(99, 12_345))
    messages, problems = read(path, pcap([frame(ip(one)) for one in both]))
    assert sorted(calls_of(messages)) == sorted(recording.calls * 2)
    assert problems == []


def test_a_connection_without_its_start_is_told_only_if_its_port_was_asked_for(
    path: Path, recording: Recording
) -> None:
    late = [frame(ip(one)) for one in conversation(recording.chunks)[8:]]
    other = [frame(ip(one, ports=(40_001, 50_052))) for one in conversation(recording.chunks)]
    messages, problems = read(path, pcap(late + other))
    assert (sorted(calls_of(messages)), problems) == (sorted(recording.calls), [])
    messages, problems = read(path, pcap(late + other), SERVER_PORT)
    assert messages == []
    assert len(problems) == 1
    assert "start of the connection is not in the capture" in problems[0]


def test_an_encrypted_connection_is_called_so(path: Path) -> None:
    sent = conversation([(True, b"\x16\x03\x01" + bytes(200)), (False, b"\x16\x03\x03" + bytes(900))])
    _, problems = read(path, pcap([frame(ip(one)) for one in sent]), SERVER_PORT)
    assert len(problems) == 1
    assert "encrypted (TLS)" in problems[0]


def test_a_cut_file_gives_what_stands_before_the_cut(path: Path, recording: Recording) -> None:
    frames = [frame(ip(one), 101) for one in conversation(recording.chunks)]
    for data in (pcap(frames, 101), pcapng(frames, 101)):
        messages, problems = read(path, data[: len(data) * 2 // 3])
        assert messages
        assert "the rest is not read" in problems[0]
        assert all("the capture ended" in problem for problem in problems[1:])


def test_an_absurd_length_ends_the_reading(path: Path) -> None:
    good = pcap([frame(ip(one)) for one in conversation(answered(b"x"))])
    messages, problems = read(path, good + struct.pack("<IIII", 1, 1, 2**31, 2**31) + bytes(100))
    assert [message.data for message in messages] == [b"x", b"x!"]
    assert len(problems) == 1
    assert f"at most {pcapfile.MAX_PACKET_BYTES} bytes, {2**31} announced" in problems[0]


def test_fragments_and_unknown_links_are_told_once(path: Path) -> None:
    whole = [ip(one) for one in conversation(answered(b"x"))]
    broken = [packet[:6] + b"\x20\x00" + packet[8:] for packet in whole]
    assert "IP fragment" in "".join(read(path, pcap([frame(packet) for packet in broken]))[1])
    assert len(read(path, pcap([frame(packet) for packet in broken]))[1]) == 1
    problems = read(path, pcap(whole, link=147))[1]
    assert len(problems) == 1
    assert "link type 147" in problems[0]


@pytest.mark.parametrize("data", [b"", b"abc", b"hello world", gzip.compress(b"x", mtime=0)])
def test_a_file_that_is_no_capture_is_refused(path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match="neither a fedwire capture nor a pcap or pcapng; found") as caught:
        read(path, data)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        list(grpc_messages(path, None, print))


def h2(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return struct.pack("!BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def asked(
    *frames: bytes, encoding: str = "identity", flags: int = 4, before: bytes = b""
) -> list[tuple[bool, bytes]]:
    """A client that opens stream 1 and sends these frames."""
    fields = [(":path", "/t.T/One"), ("content-type", "application/grpc"), ("grpc-encoding", encoding)]
    return [
        (
            True,
            http2.PREFACE
            + h2(4, 0, 0)
            + h2(1, flags, 1, before + Encoder().encode(fields))
            + b"".join(frames),
        )
    ]


def answered(data: bytes) -> list[tuple[bool, bytes]]:
    """A call and its answer, with a server that speaks first."""
    fields = [(":status", "200"), ("content-type", "application/grpc")]
    answer = h2(1, 4, 1, Encoder().encode(fields)) + h2(0, 1, 1, message(data + b"!"))
    return [(False, h2(4, 0, 0)), *asked(h2(0, 1, 1, message(data))), (False, answer)]


def message(data: bytes, flag: int = 0, size: int | None = None) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack("!BI", flag, len(data) if size is None else size) + data


def by_hand(path: Path, chunks: list[tuple[bool, bytes]]) -> tuple[list[bytes], list[str]]:
    """The data and problems of a hand-made conversation."""
    messages, problems = read(path, pcap([frame(ip(one)) for one in conversation(chunks)]))
    return [message.data for message in messages], problems


def test_padding_priority_and_continuation_are_understood(path: Path) -> None:
    fields = Encoder().encode([(":path", "/t.T/One"), ("content-type", "application/grpc+proto")])
    opening = h2(1, 0x28, 1, b"\x03" + bytes(5) + fields[:4] + bytes(3)) + h2(9, 0, 1, fields[4:9])
    whole = message(b"padded") + message(b"") + message(b"twice")
    stream = (
        opening
        + h2(9, 4, 1, fields[9:])
        + h2(0, 8, 1, b"\x04" + whole[:8] + bytes(4))
        + h2(6, 0, 0, bytes(8))
    )
    chunks = [(True, http2.PREFACE + h2(4, 0, 0) + stream + h2(0, 1, 1, whole[8:]))]
    assert by_hand(path, chunks) == ([b"padded", b"", b"twice"], [])


def test_a_larger_header_table_is_allowed_once_the_other_side_announced_it(path: Path) -> None:
    larger = b"\x3f\xe1\x3f"  # HPACK: table size 8192.
    announced = (False, h2(4, 0, 0, struct.pack("!HI", 1, 8192)))
    stream = asked(h2(0, 1, 1, message(b"x")), before=larger)
    assert by_hand(path, [announced, *stream]) == ([b"x"], [])
    data, problems = by_hand(path, [(False, h2(4, 0, 0)), *stream])
    assert data == []
    assert "InvalidTableSizeError" in problems[0]


@pytest.mark.parametrize(
    ("encoding", "content", "complaint"),
    [
        ("gzip", gzip.compress(b"x" * 1000, mtime=0), ""),
        ("deflate", zlib.compress(b"x" * 1000), ""),
        ("snappy", b"whatever", "only gzip and deflate are known"),
        ("gzip", b"no gzip at all", "damaged"),
        ("gzip", gzip.compress(b"x" * 1000, mtime=0)[:-9], "its end is missing"),
        ("gzip", gzip.compress(bytes(5000), mtime=0), "grow to more than 4000"),
    ],
)
def test_compressed_messages_are_opened_or_named(
    path: Path, encoding: str, content: bytes, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packets, "MAX_MESSAGE_BYTES", 4000)
    frames = h2(0, 0, 1, message(content, 1)), h2(0, 1, 1, message(b"next"))
    data, problems = by_hand(path, asked(*frames, encoding=encoding))
    assert data == ([b"next"] if complaint else [b"x" * 1000, b"next"])
    assert len(problems) == bool(complaint)
    assert all(complaint in problem for problem in problems)


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([h2(0, 1, 1, message(b"abc", size=9))], "the stream ended after 3 of 9 bytes"),
        ([h2(0, 0, 1, message(b"abc", size=9)), h2(3, 0, 1, bytes(4))], "the stream was reset after 3 of 9"),
        ([h2(0, 0, 1, message(b"abc", size=9))], "the connection ended after 3 of 9 bytes"),
        ([h2(0, 0, 1, message(b"", size=2**31))], f"a message of {2**31} bytes"),
        ([h2(0, 0, 1, message(b"", flag=7))], "begins with 0 or 1, got 7"),
        ([h2(0, 8, 1, b"\xff")], "padding"),
        ([h2(1, 4, 3, b"\xff\xff\xff")], "the headers of stream 3"),
        ([h2(1, 0, 3, b""), h2(0, 0, 1, b"")], "wrong place of a header block"),
        ([h2(0, 0, 1, bytes(100))[:50]], "inside an HTTP/2 frame"),
    ],
)
def test_what_cannot_be_decoded_is_one_line_and_the_next_connection_is_read(
    path: Path, frames: list[bytes], complaint: str
) -> None:
    bad = [frame(ip(one)) for one in conversation(asked(h2(0, 0, 1, message(b"good")), *frames))]
    next_one = [frame(ip(one, ports=(40_001, SERVER_PORT))) for one in conversation(answered(b"y"))]
    messages, problems = read(path, pcap(bad + next_one))
    assert [message.data for message in messages] == [b"good", b"y", b"y!"]
    assert len(problems) == 1
    assert complaint in problems[0]
    assert problems[0].startswith("127.0.0.1:40000 > 127.0.0.2:50051: ")


def test_calls_of_a_connection_are_forgotten_when_they_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_OPEN_CALLS", 2)
    headers, encoder = Encoder(), Encoder()
    fields = [(":path", "/t.T/One"), ("content-type", "application/grpc")]
    chunks = [(True, http2.PREFACE + h2(4, 0, 0)), (False, h2(4, 0, 0))]
    for stream in range(1, 21, 2):
        chunks.append((True, h2(1, 4, stream, headers.encode(fields)) + h2(0, 1, stream, message(b"x"))))
        if stream == 11:  # From here on the server's direction is lost, so no call is seen to end there.
            chunks.append((False, h2(0, 8, stream, b"\xff")))
        chunks.append((False, h2(1, 5, stream, encoder.encode([("grpc-status", "0")]))))
    data, problems = by_hand(path, chunks)
    assert data == [b"x"] * 10
    assert len(problems) == 1
    assert "padding" in problems[0]


FUZZ = settings(max_examples=150, suppress_health_check=list(HealthCheck))
SMALL = [frame(ip(one)) for one in conversation(answered(b"x" * 200), most=50)]
GOOD = [pcap(SMALL), pcapng(SMALL, resolution=9)]


def survive(path: Path, data: bytes) -> None:
    """Reads the bytes; DataError is the only way out, and problems are single lines."""
    try:
        _, problems = read(path, data)
    except DataError as error:
        problems = [str(error)]
    assert not [problem for problem in problems if "\n" in problem]


@FUZZ
@given(st.sampled_from([b"", *(good[:24] for good in GOOD)]), st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_data_error(path: Path, start: bytes, data: bytes) -> None:
    survive(path, start + data)


@FUZZ
@given(st.sampled_from(GOOD), st.data())
def test_a_damaged_capture_raises_nothing_but_data_error(
    path: Path, good: bytes, draw: st.DataObject
) -> None:
    changed = bytearray(good)
    for at in draw.draw(st.lists(st.integers(0, len(good) - 1), max_size=20)):
        changed[at] = draw.draw(st.integers(0, 255))
    survive(path, bytes(changed[: draw.draw(st.integers(0, len(good)))]))


@FUZZ
@given(st.binary(max_size=400), st.binary(max_size=100), st.integers(0, 255))
def test_arbitrary_http2_raises_nothing(path: Path, data: bytes, block: bytes, flags: int) -> None:
    start = asked(h2(1, 4, 3, block), h2(0, flags, 1, data))[0][1]
    sent = conversation([(True, start + data), (False, h2(4, 0, 0) + data)])
    survive(path, pcap([frame(ip(one)) for one in sent]))
