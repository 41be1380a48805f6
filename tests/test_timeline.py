"""The timeline of a capture: every transfer, and what went wrong, by name."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from common.events import unheard
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.capture import CaptureWriter, RecordFile
from common.wire.codec_choice import Codecs
from common.wire.encoding import downward
from common.wire.manifest import manifest
from common.wire.messages import ClassifiedMessage, Content
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1 import tensor_pb2
from fedwire.source import Capture
from fedwire.timeline.attempts import MAX_POINTS
from fedwire.timeline.timeline import Timeline, timeline
from tests.killpoint import trap
from tests.processes import Federation, lasting_address, wait_until
from tests.proxy import Fault, Proxy
from tests.samples import chunk_frame
from tests.test_cli import invoke
from tests.test_fedwire import OWN, PACKETS, found
from tests.test_page import HOSTILE, documents, parsed

CHUNKS, SIZE = 8, 1000
LAYOUT = Layout([TensorSpec("w", "float32", (CHUNKS * SIZE // 4,), Purpose.MODEL)])
Reply = pb.PushUpdateReply


class Story:
    """Writes a capture by hand; time goes on by what is said."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._calls = itertools.count()
        self._time_ns = 10**18
        self._writer = CaptureWriter(path, unheard)

    def started(self) -> None:
        """Another process goes on with the file."""
        self._writer.close()
        self._writer = CaptureWriter(self._path, unheard)

    def after(self, seconds: float) -> Story:
        """Lets time pass."""
        self._time_ns += int(seconds * 1e9)
        return self

    def _write(self, rpc: str, call: int, up: bool, client: str, r: int, data: bytes) -> None:
        message = ClassifiedMessage(self._time_ns, up, data, Content(""), client, r)
        self._writer.write(rpc, call, message)

    def joins(self, client: str) -> None:
        """A client takes its seat."""
        call = next(self._calls)
        self._write("Join", call, True, client, 0, pb.JoinRequest(client=client).SerializeToString())
        self._write("Join", call, False, client, 0, pb.JoinReply(run_id="r").SerializeToString())

    def _chunks(
        self, rpc: str, call: int, client: str, r: int, chunks: range, gaps: float, stall: float
    ) -> None:
        for k in chunks:
            self.after(gaps + (stall if k == CHUNKS // 2 else 0))
            data = chunk_frame(0, k * SIZE, np.zeros(SIZE, np.uint8))
            self._write(rpc, call, rpc == "PushUpdate", client, r, data)

    def pulls(self, client: str, r: int, after: int, chunks: int = CHUNKS, *, only: bool = False) -> None:
        """A client gets a round, or a part of it, or x for an evaluation only."""
        call = next(self._calls)
        asked = pb.PullRoundRequest(client=client, after_round=after, run_id="r")
        self._write("PullRound", call, True, client, r, asked.SerializeToString())
        tensors = manifest(downward(LAYOUT, Codecs()))
        header = pb.RoundHeader(round=r, tensors=tensors, evaluation_only=only)
        self._write("PullRound", call, False, client, r, pb.RoundFrame(header=header).SerializeToString())
        self._chunks("PullRound", call, client, r, range(chunks), 0.01, 0)

    def is_asked_again(self, client: str, r: int) -> None:
        """The server has not got an update that the client is done with."""
        call = next(self._calls)
        asked = pb.PullRoundRequest(client=client, after_round=r, run_id="r")
        self._write("PullRound", call, True, client, 0, asked.SerializeToString())
        answer = pb.RoundFrame(resend=pb.Resend(round=r))
        self._write("PullRound", call, False, client, 0, answer.SerializeToString())

    def pushes(
        self,
        client: str,
        r: int,
        reply: Reply | None,
        chunks: range = range(CHUNKS),
        gaps: float = 0.01,
        stall: float = 0.0,
        declined: str = "",
    ) -> None:
        """A client hands its update in, or a part of it."""
        call = next(self._calls)
        header = pb.UpdateHeader(
            steps=1, run_id="r", client=client, round=r, update_id=f"{client} {r}", declined=declined
        )
        if not declined:
            header.tensors.extend(manifest(downward(LAYOUT, Codecs())))
        if chunks.start:
            header.resume_from.CopyFrom(tensor_pb2.Position(tensor=0, offset=chunks.start * SIZE))
        self._write("PushUpdate", call, True, client, r, pb.UpdateFrame(header=header).SerializeToString())
        self._chunks("PushUpdate", call, client, r, chunks, gaps, stall)
        if reply is not None:
            self._write("PushUpdate", call, False, client, r, reply.SerializeToString())

    def round(self, r: int, *clients: str, after: int | None = None) -> None:
        """A round in which all goes well."""
        for client in clients:
            self.pulls(client, r, r - 1 if after is None else after)
        for client in clients:
            self.after(0.2).pushes(client, r, Reply(outcome=Reply.ACCEPTED))

    def told(self) -> Timeline:
        """What comes out."""
        self._writer.close()
        with Capture(self._path, pytest.fail) as capture:
            return timeline(capture)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    story = Story(tmp_path / "run.fedwire")
    story.joins("a")
    story.joins("b")
    story.round(1, "a", "b")
    return story


def named(told: Timeline) -> list[tuple[str, str, int]]:
    """Kinds, clients and rounds of what stands out."""
    return [(finding.kind, finding.client, finding.round) for finding in told.findings]


def test_a_run_in_which_all_goes_well(story: Story) -> None:
    story.round(2, "a", "b")
    told = story.told()
    assert named(told) == []
    assert [(t.client, t.round, t.direction, t.outcome) for t in told.transfers] == [
        (client, r, way, outcome)
        for r in (1, 2)
        for way, outcome in (("down", "whole"), ("up", "accepted"))
        for client in ("a", "b")
    ]
    assert [mark.updates for mark in told.rounds] == [2, 2]
    assert told.rounds[0].end <= told.rounds[1].start
    for training in told.training:
        assert training.end - training.start > 0.19
    assert len(told.training) == 4
    assert told.transfers[0].bytes["model"] == told.transfers[0].announced == CHUNKS * SIZE


def test_the_last_evaluation_is_no_round(story: Story) -> None:
    story.pulls("a", 2, after=1, only=True)
    told = story.told()
    assert [mark.round for mark in told.rounds] == [1]
    assert told.transfers[-1].apart == "evaluation"


def test_an_upload_that_broke_off_with_its_process(story: Story) -> None:
    story.pulls("a", 2, after=1)
    story.pushes("a", 2, Reply(outcome=Reply.REJECTED, fault=Reply.TOO_FEW_BYTES), range(3))
    story.after(0.4).joins("a")
    story.pushes("a", 2, Reply(outcome=Reply.ACCEPTED), range(3, CHUNKS))
    story.pulls("a", 3, after=0)
    told = story.told()
    assert named(told) == [("client restarted", "a", 2)]
    assert "in its upload of round 2 (after 3.0 kB of 8.0 kB)" in told.findings[0].text
    assert "went on from 3.0 kB" in told.findings[0].text
    uploads = [t for t in told.transfers if (t.client, t.round, t.direction) == ("a", 2, "up")]
    assert [(t.attempt, t.skipped, t.outcome) for t in uploads] == [(1, 0, "cut"), (2, 3000, "accepted")]


def test_the_same_with_a_connection(story: Story) -> None:
    story.pulls("a", 2, after=1, chunks=3)
    story.after(0.4).joins("a")
    story.pulls("a", 2, after=1)
    story.pushes("a", 2, Reply(outcome=Reply.ACCEPTED))
    told = story.told()
    assert named(told) == [("connection lost", "a", 2)]
    assert "its process went on" in told.findings[0].text


def test_a_server_that_was_killed_explains_all_that_join_again(story: Story) -> None:
    story.pulls("a", 2, after=1)
    story.pushes("a", 2, None, range(5))
    story.after(2.0).started()
    for client in ("a", "b"):
        story.joins(client)
    story.pushes("a", 2, Reply(outcome=Reply.ACCEPTED))
    story.pulls("b", 2, after=1)
    story.pulls("a", 3, after=2)
    told = story.told()
    assert ("server restarted", "", 2) in named(told)
    assert not {"connection lost", "client restarted"} & {kind for kind, _, _ in named(told)}
    text = next(f.text for f in told.findings if f.kind == "server restarted")
    assert "a's upload of round 2 (after 5.0 kB of 8.0 kB)" in text
    assert "2 clients joined again" in text


def test_packets_tell_a_killed_server_by_what_it_asks_for_again(story: Story) -> None:
    story.pulls("a", 2, after=1)
    story.pushes("a", 2, Reply(outcome=Reply.ACCEPTED))
    story.after(2.0).joins("a")
    story.is_asked_again("a", 2)
    story.pushes("a", 2, Reply(outcome=Reply.ACCEPTED))
    story.pulls("a", 3, after=2)
    assert ("server restarted", "a", 2) in named(story.told())


def test_answers_that_cost_an_update_are_named(story: Story) -> None:
    rejected = Reply(outcome=Reply.REJECTED, fault=Reply.NOT_FINITE, message="w has a NaN")
    story.round(2, "b")
    story.pulls("a", 2, after=1)
    story.pushes("a", 2, Reply(outcome=Reply.REJECTED, fault=Reply.BAD_CHECKSUM, message="CRC"))
    story.pushes("a", 2, rejected)
    story.pushes("a", 2, Reply(outcome=Reply.DUPLICATE))
    story.round(3, "b")
    story.pushes("a", 2, Reply(outcome=Reply.LATE))
    story.pulls("a", 3, after=2)
    story.pushes("a", 3, Reply(), range(0), declined="the loss is not finite")
    told = story.told()
    assert named(told) == [
        ("damaged", "a", 2),
        ("rejected", "a", 2),
        ("duplicate", "a", 2),
        ("late", "a", 2),
        ("declined", "a", 3),
    ]
    assert "w has a NaN" in told.findings[1].text


def test_a_round_that_closed_without_somebody(story: Story) -> None:
    story.pulls("a", 2, after=1)
    story.round(2, "b")
    story.round(3, "b")
    assert named(story.told()) == [("missing", "a", 2)]


def test_pauses_and_slow_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwire.timeline.findings.SLOW_BYTES", SIZE)
    story = Story(tmp_path / "run.fedwire")
    for client in ("a", "b", "c"):
        story.joins(client)
        story.pulls(client, 1, after=0)
        story.pushes(client, 1, Reply(outcome=Reply.ACCEPTED), gaps=0.5 if client == "c" else 0.01)
    story.pulls("a", 2, after=1)
    story.pushes("a", 2, Reply(outcome=Reply.ACCEPTED), stall=1.5)
    told = story.told()
    kinds = Counter((finding.kind, finding.client) for finding in told.findings)
    assert kinds["stall", "a"] == kinds["slow link", "c"] == 1
    assert ("stall", "c") not in kinds, "slow all the time is no pause"
    stall = next(finding for finding in told.findings if finding.kind == "stall")
    assert stall.end - stall.start == pytest.approx(1.51)


def test_what_a_transfer_leaves_behind_does_not_grow_and_chunks_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path / "run.fedwire")
    story.joins("a")
    story.pulls("a", 1, after=0, chunks=1000)
    reads = 0
    inner = RecordFile.read

    def counted(self: RecordFile, offset: int) -> object:
        nonlocal reads
        reads += 1
        return inner(self, offset)

    monkeypatch.setattr(RecordFile, "read", counted)
    told = story.told()
    assert len(told.transfers[0].progress) <= MAX_POINTS
    assert told.transfers[0].bytes["model"] == 1000 * SIZE
    assert reads == 2, "a request and a header"


@pytest.mark.parametrize("capture", [OWN, PACKETS])
def test_bytes_agree_with_the_statistics(capture: str) -> None:
    told, statistics = found("timeline", capture), found("stats", capture)
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in told["bytes"]:
        sums[str(row["round"]), row["direction"], row["purpose"]] += row["bytes"]
    for r, ways in statistics["rounds"].items():
        for way, purposes in ways.items():
            assert {p: sums[r, way, p] for p in purposes} == purposes
    assert told["findings"] == []
    assert [t["outcome"] for t in told["transfers"]].count("accepted") == 6


def test_the_page_of_a_capture(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = invoke("fedwire", "timeline", PACKETS, "--out", str(out))
    assert result.output == f"timeline: {out}\n"
    shown = documents(parsed(out.read_text()))["timeline"]
    assert isinstance(shown, dict)
    assert shown["clients"] == ["a", "b"]
    assert len(shown["transfers"]) == 12
    one = found("timeline", OWN, "--client", "a", "--round", "2")
    assert [(t["client"], t["round"]) for t in one["transfers"]] == [("a", 2)] * 2
    nobody = invoke("fedwire", "timeline", OWN, "--client", "x", "--out", str(out))
    assert nobody.exit_code == 1
    assert "no transfer for --client x" in nobody.output


def test_hostile_words_of_peers_are_text_in_the_page(tmp_path: Path) -> None:
    story = Story(tmp_path / "run.fedwire")
    story.joins(HOSTILE)
    story.pulls(HOSTILE, 1, after=0)
    story.pushes(HOSTILE, 1, Reply(outcome=Reply.REJECTED, fault=Reply.NOT_FINITE, message=HOSTILE))
    assert named(story.told()) == [("rejected", HOSTILE, 1)]
    out = tmp_path / "page.html"
    result = invoke("fedwire", "timeline", str(tmp_path / "run.fedwire"), "--out", str(out))
    assert result.exit_code == 0, result.output
    page = parsed(out.read_text())
    assert any("onerror" in text for text in page.texts["p"])
    assert json.dumps(documents(page)["timeline"]).count("onerror") >= 2


BIG = """
from torch import nn

def network(num_classes):
    return nn.Sequential(nn.Linear(6, 100_000), nn.Tanh(), nn.Linear(100_000, num_classes))

def tenth(num_classes):
    return nn.Sequential(nn.Linear(6, 10_000), nn.Tanh(), nn.Linear(10_000, num_classes))
"""
PROBLEM = ("--dataset", "problem:data", "--rounds", "3", "--local-steps", "2", "--capture", "run.fedwire")
FLAGS = ("--model", "big:network", "--num-clients", "3", "--svr", "none", *PROBLEM)


@pytest.fixture
def big(federation: Federation) -> Federation:
    (federation.folder / "big.py").write_text(BIG)
    return federation


def _finished(federation: Federation) -> list[dict[str, object]]:
    federation.finish()
    rows: list[dict[str, object]] = found("timeline", str(federation.folder / "run.fedwire"))["findings"]
    return rows


def _uploading(federation: Federation, client: str, r: int) -> bool:
    with Capture(federation.folder / "run.fedwire", lambda line: None) as capture:
        chunks = [m for m in capture.messages if m.content.kind == "chunk" and m.up]
    return sum((m.client, m.round) == (client, r) for m in chunks) >= 2


def test_a_client_killed_before_its_upload_is_named(federation: Federation) -> None:
    federation.server("--model", "problem:network", "--num-clients", "2", *PROBLEM)
    federation.client("b")
    federation.client("a", process="doomed", through=trap("kill", "mid-upload", 2))
    federation.wait_for_death("doomed")
    federation.client("a")
    kinds = [(row["kind"], row["client"], row["round"]) for row in _finished(federation)]
    assert ("client restarted", "a", 2) in kinds


@pytest.mark.slow
def test_a_client_killed_in_its_upload_is_named(big: Federation) -> None:
    big.server(*FLAGS)
    for name in ("b", "c"):
        big.client(name)
    big.client("a", "--uplink", "30Mbit", process="doomed")
    wait_until(lambda: _uploading(big, "a", 2), "a is in its upload of round 2")
    big.kill("doomed")
    big.client("a", "--uplink", "30Mbit")
    rows = _finished(big)
    restart = next(row for row in rows if row["kind"] == "client restarted")
    assert (restart["client"], restart["round"]) == ("a", 2)
    assert "in its upload of round 2" in str(restart["text"])
    assert "went on from" in str(restart["text"])


@pytest.mark.slow
def test_a_slow_link_is_named(big: Federation) -> None:
    """An upload of 0.8 MB takes 6 s there."""
    big.server("--model", "big:tenth", "--num-clients", "3", "--svr", "none", *PROBLEM)
    for name in ("a", "b"):
        big.client(name)
    big.client("c", "--uplink", "1Mbit")
    kinds = [(row["kind"], row["client"]) for row in _finished(big)]
    assert ("slow link", "c") in kinds


@pytest.mark.slow
def test_a_server_killed_in_an_upload_is_named(big: Federation) -> None:
    killed = trap("kill", "mid-upload, server", 25)
    address = big.server(*FLAGS, listen=lasting_address(), name="doomed", through=killed)
    for name in ("a", "b", "c"):
        big.client(name)
    big.wait_for_death("doomed")
    big.server(*FLAGS, listen=address)
    kinds = {(str(row["kind"]), row["client"]) for row in _finished(big)}
    assert ("server restarted", "") in kinds
    assert not {kind for kind, _ in kinds} & {"client restarted", "connection lost", "gone"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"), [("drop", "connection lost"), ("delay", "stall"), ("corrupt", "damaged")]
)
def test_what_a_bad_link_does_to_an_upload_is_named(big: Federation, fault: str, kind: str) -> None:
    """The fault is in the middle of the second upload of a client of 8 MB each."""
    address = big.server(*FLAGS)
    with Proxy(address, [Fault(fault, True, 12_000_000, mask=5)]) as proxy:
        big.client("a", server=proxy.address)
        for name in ("b", "c"):
            big.client(name)
        rows = _finished(big)
        assert len(proxy.made) == 1
    assert (kind, "a", 2) in [(row["kind"], row["client"], row["round"]) for row in rows]
