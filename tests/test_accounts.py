"""The server's account of what passes is the one that is read from bytes, message by message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from common.tensors.layout import Purpose
from common.wire import chunks, messages
from common.wire.bundles import frames_in
from common.wire.calls import CALLS
from common.wire.chunks import Chunk, read_chunk
from common.wire.messages import CallFollower, ClassifiedMessage, chunk_content
from fedserver.traffic.traffic import Traffic
from fedwire.source import Capture
from fedwire.stats import compare_with_run, statistics
from tests.fuzz import known
from tests.fuzz import server as fuzzed_server
from tests.fuzz.mutators import scripted
from tests.killpoint import trap
from tests.processes import Federation
from tests.proxy import Fault, Proxy
from tests.samples import sample
from tests.test_transfers import BIG, NUM_BYTES
from tests.test_transfers import FLAGS as BIG_FLAGS

PROBLEM = "--model problem:network --dataset problem:data --num-clients 2 --rounds 3 --local-steps 2"
CASES = {
    "explicit": "--algorithm scaffold",
    "derived and coded": "--variates derived --codec topk:0.3",
    "coded both ways": "--codec int8,down=bf16,control=fp16 --lease 2",
}


def start(federation: Federation, *flags: str) -> None:
    """A server that keeps two accounts, and captures its own."""
    run = ["run", "--listen", "127.0.0.1:0", "--run-dir", "run", "--capture", "s.fedwire", *flags]
    federation.start("server", "tests.two_accounts", "fedserver", *run)
    federation.address = federation.wait_for("server", r"listening on (\S+)")


def require_agreement(federation: Federation, *kinds: str) -> None:
    """Both accounts agree on every message, as do the ledger and the capture; such messages there were."""
    federation.finish()
    log = federation.log("server")
    assert "TWO ACCOUNTS" not in log, log
    agreed = federation.wait_for("server", r"two accounts agree on \d+ messages: (.*)")
    for kind in kinds:
        assert kind in agreed, agreed
    with Capture(federation.folder / "s.fedwire", pytest.fail) as capture:
        assert sum(json.loads(agreed.replace("'", '"')).values()) == len(capture.messages) > 0
        assert compare_with_run(statistics(capture), federation.folder / "run") == ()


@pytest.mark.parametrize("case", CASES)
def test_two_accounts_of_a_run_agree(federation: Federation, case: str) -> None:
    start(federation, *PROBLEM.split(), *CASES[case].split())
    for name in ("a", "b"):
        federation.client(name)
    require_agreement(federation, "Join reply", "PullRound header", "PullRound finished", "PushUpdate chunk")


@pytest.mark.slow
def test_two_accounts_of_interrupted_streams_and_lost_variates_agree(federation: Federation) -> None:
    """An upload and a download are cut and go on; then the client loses its state, and gets c_i back."""
    (federation.folder / "big.py").write_text(BIG)
    flags = BIG_FLAGS.replace("--svr none", "--algorithm scaffold").replace("--rounds 2", "--rounds 3")
    start(federation, *flags.split())
    half = NUM_BYTES // 2
    with (
        Proxy(federation.address, [Fault("drop", True, half)]) as up,
        Proxy(up.address, [Fault("drop", False, half)]) as down,
    ):
        federation.client("a", server=down.address, through=trap("kill", "before training", 2))
        federation.wait_for_death("a")
        shutil.rmtree(federation.folder / "state" / "a")
        federation.client("a")
        require_agreement(federation, "UpdateProgress reply", "PushUpdate chunk")
        assert (len(up.made), len(down.made)) == (1, 1)
    rows = Capture(federation.folder / "s.fedwire", pytest.fail).messages
    assert len([m for m in rows if m.rpc == "PullRound" and m.content.kind == "header"]) > 3


def test_a_server_parses_each_message_once_and_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames go out as they were encoded, replies are encoded and not read back."""
    traffic = Traffic(lambda name: True)
    counted: list[ClassifiedMessage] = []
    monkeypatch.setattr(traffic, "count", lambda call, message: counted.append(message))
    for call in CALLS.values():
        monkeypatch.setattr(call.reply, "FromString", _refused, raising=False)
        with traffic.call(call.name, "ipv4:127.0.0.1:1") as current:
            current.reply(sample(call.reply))
    with traffic.call("PullRound", "ipv4:127.0.0.1:1") as current:
        current.sent(b"no protobuf at all", chunk_content(Purpose.MODEL, "w", 9))
    assert len(counted) == len(CALLS) + 1
    assert (counted[-1].content.tensor, counted[-1].content.payload) == ("w", 9)


def test_each_frame_of_an_upload_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def counted(data: bytes) -> Chunk | None:
        parsed.append(data)
        return read_chunk(data)

    for module in (chunks, messages):
        monkeypatch.setattr(module, "read_chunk", counted)
    frames = known.update(known.CONFIGS[0])
    push = bytes([list(CALLS).index("PushUpdate")]) + scripted(frames)
    fuzzed_server.calls(b"\x00" + scripted([push]))
    assert parsed == [frame for message in frames for frame in frames_in(message)]
    assert len(parsed) > len(frames)


def _refused(data: bytes) -> None:
    raise AssertionError("a server does not read its own messages")


def test_a_reader_of_bytes_never_refuses_a_call_that_it_does_not_know() -> None:
    passed: list[ClassifiedMessage] = []
    follower = CallFollower("FutureCall", passed.append)
    for up in (True, False):
        follower.note(up, b"\xff")
    assert [message.content.kind for message in passed] == ["request", "reply"]


def test_a_capture_of_the_server_reads_back_to_its_ledger(tmp_path: Path) -> None:
    """The recorded run of an earlier release: its ledger was made by reading bytes."""
    data = Path(__file__).parent / "data"
    with Capture(data / "run.fedwire", pytest.fail) as capture:
        assert compare_with_run(statistics(capture), data / "run") == ()
