"""The wire inspector on a recorded run, and on live ones beside tcpdump.

tests/data holds one run of three rounds with two clients: the server's own capture, tcpdump's of the same
port, and the run directory.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.tensors.layout import Purpose
from common.wire.capture import CaptureRecord, CaptureWriter, read_records
from common.wire.chunks import read_chunk
from common.wire.messages import ClassifiedMessage, Content
from fedpvr.v1 import federation_pb2 as pb
from fedwire.pcap.packets import server_ports
from fedwire.source import Capture
from fedwire.transfers import Transfers
from tests.processes import Federation, wait_until
from tests.samples import chunk_frame
from tests.test_cli import invoke

DATA = Path(__file__).parent / "data"
OWN, PACKETS, RUN = (str(DATA / name) for name in ("run.fedwire", "run.pcap", "run"))


def found(*arguments: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    result = invoke("fedwire", *arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def kinds(capture: str) -> Counter[tuple[Any, ...]]:
    """Everything that `ls` tells about the messages, but the time and their order."""
    keys = ("direction", "client", "round", "rpc", "kind", "bytes", "payload", "purpose", "tensor")
    return Counter(tuple(row[key] for key in keys) for row in found("ls", capture)["messages"])


def test_tcpdump_saw_the_messages_that_the_server_captured() -> None:
    assert kinds(PACKETS) == kinds(OWN)
    assert found("pcap", PACKETS)["messages"] == found("ls", PACKETS)["messages"]
    assert found("diff", OWN, PACKETS) == {"same": True, "differences": [], "problems": []}


@pytest.mark.parametrize("capture", [OWN, PACKETS])
def test_the_ledger_of_the_run_agrees_to_the_byte(capture: str) -> None:
    statistics = found("stats", capture, "--run-dir", RUN)
    assert statistics["differences"] == []
    records = [json.loads(line) for line in (DATA / "run" / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        assert statistics["rounds"][str(record["round"])] == record["bytes"]
    assert statistics["messages"] == sum(kinds(OWN).values())


def test_a_ledger_that_differs_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    record["bytes"]["up"]["control"] += 8
    (tmp_path / "run" / "rounds.jsonl").write_text("\n".join([lines[0], json.dumps(record), lines[2]]) + "\n")
    statistics = found("stats", OWN, "--run-dir", str(tmp_path / "run"), code=1)
    assert statistics["differences"] == ["round 2, up, control: 288 bytes in the capture, 296 in the ledger"]


def test_statistics_know_what_others_would_have_cost() -> None:
    d, v = 107, 18
    ratios = found("stats", OWN)["ratios"]
    assert ratios["fedavg"] == pytest.approx((d + v) / d)
    assert ratios["scaffold"] == pytest.approx((d + v) / (2 * d))


@pytest.mark.parametrize("capture", [OWN, PACKETS])
def test_a_replay_gives_the_next_broadcast_to_the_bit(capture: str) -> None:
    verdicts = found("replay", capture, "--run-dir", RUN)
    assert [(v["round"], v["updates"], v["same"], v["problems"]) for v in verdicts] == [
        (r, 2, True, []) for r in (1, 2, 3)
    ]
    assert verdicts[-1]["compared"] == "the run's final x and c"


def test_a_replay_notices_one_changed_number(tmp_path: Path) -> None:
    """The same capture, with one weight in one update of round 2 moved by a little."""

    def changed(record: CaptureRecord) -> list[tuple[str, int, ClassifiedMessage]]:
        data = record.data
        chunk = read_chunk(data) if (record.rpc, record.up, record.round) == ("PushUpdate", True, 2) else None
        if chunk is not None and chunk.tensor == 0 and record.client == "b":
            numbers = chunk.data.copy().view(np.float64)
            numbers[5] += 1e-12
            data = chunk_frame(0, chunk.offset, numbers.view(np.uint8))
        return [as_it_was(record, data=data)]

    rewritten(tmp_path / "changed", changed)
    verdicts = found("replay", str(tmp_path / "changed"), "--run-dir", RUN, code=1)
    assert [verdict["same"] for verdict in verdicts] == [True, False, True]
    assert verdicts[1]["problems"] == ["model 0.weight differs"]
    rows = found("diff", OWN, str(tmp_path / "changed"), code=1)["differences"]
    assert [(row["round"], row["client"], row["direction"], row["tensor"]) for row in rows] == [
        (2, "b", "up", "0.weight")
    ]


def rewritten(path: Path, change: Callable[[CaptureRecord], list[tuple[str, int, ClassifiedMessage]]]) -> str:
    """The recorded run with some of its messages changed."""
    writer = CaptureWriter(path, print)
    for record in read_records(DATA / "run.fedwire", pytest.fail):
        for rpc, call, message in change(record):
            writer.write(rpc, call, message)
    writer.close()
    return str(path)


def as_it_was(record: CaptureRecord, **changes: Any) -> tuple[str, int, ClassifiedMessage]:
    """A message of the recorded run."""
    fields: dict[str, Any] = {"data": record.data, "client": record.client, "round": record.round}
    return (
        record.rpc,
        record.call[1],
        ClassifiedMessage(record.time_ns, record.up, content=Content(""), **(fields | changes)),
    )


def test_after_a_round_that_is_missing_x_is_certain_and_c_is_not(tmp_path: Path) -> None:
    """The c_i that its updates led to are not known, so the c_i of the round before must not stand in."""

    def without_a_download(record: CaptureRecord) -> list[tuple[str, int, ClassifiedMessage]]:
        lost = (record.rpc, record.up, record.round) == ("PullRound", False, 2)
        return [] if lost and read_chunk(record.data) is not None else [as_it_was(record)]

    rewritten(tmp_path / "gap", without_a_download)
    first, second, third = found("replay", str(tmp_path / "gap"), "--run-dir", RUN)
    assert (first["same"], second["same"]) == (None, None)
    assert (third["same"], third["compared"]) == (True, "the run's final x")
    assert {problem.partition(":")[0] for problem in third["problems"]} == {"c is not certain"}


def test_an_update_that_was_pushed_twice_counts_once(tmp_path: Path) -> None:
    """Every push of client a comes again in a call of its own and is answered DUPLICATE."""
    duplicate = pb.PushUpdateReply(outcome=pb.PushUpdateReply.DUPLICATE).SerializeToString()
    pushes: list[CaptureRecord] = []

    def twice(record: CaptureRecord) -> list[tuple[str, int, ClassifiedMessage]]:
        written = [as_it_was(record)]
        if record.rpc == "PushUpdate" and record.client == "a":
            pushes.append(record)
            if not record.up:
                for again in pushes:
                    _, call, message = as_it_was(again, data=again.data if again.up else duplicate)
                    written.append(("PushUpdate", 1000 + call, message))
                pushes.clear()
        return written

    verdicts = found("replay", rewritten(tmp_path / "twice", twice), "--run-dir", RUN)
    assert [(v["updates"], v["same"]) for v in verdicts] == [(2, True)] * 3


def test_nonsense_from_strangers_disturbs_no_view(tmp_path: Path) -> None:
    header = pb.UpdateHeader(client="x[/b]", round=1, declined="")
    header.tensors.add(name="w[/x]", dtype=99, shape=[1 << 40], purpose=1, codec=1, num_bytes=4)
    huge = pb.UpdateHeader(client="y", round=1, update_id="[/z]")
    huge.tensors.add(name="[/h]", dtype=1, shape=[1 << 37], purpose=1, codec=1, num_bytes=1 << 39)
    said = pb.UpdateHeader(client="z", round=1, declined="loss is [/b] nan")
    frames = [pb.UpdateFrame(header=h).SerializeToString() for h in (header, huge, said)]
    done = False

    def with_strangers(record: CaptureRecord) -> list[tuple[str, int, ClassifiedMessage]]:
        nonlocal done
        written = [as_it_was(record)]
        if record.rpc == "PushUpdate" and not done:
            done = True
            for number, frame in enumerate(frames):
                for up, data in ((True, frame), (False, b"\xff\xff")):
                    message = ClassifiedMessage(record.time_ns, up, data, Content(""), "", 0)
                    written.append(("PushUpdate", 2000 + number, message))
        return written

    capture = rewritten(tmp_path / "strange", with_strangers)
    strange = [row["number"] for row in found("ls", capture)["messages"] if row["client"] == ""]
    for arguments in (["ls"], ["stats"], ["replay"], ["export", "--out", str(tmp_path / "out")]):
        result = invoke("fedwire", arguments[0], capture, *arguments[1:])
        assert result.exit_code == 0, result.output
    for number in strange:
        credentials = invoke("fedwire", "show", capture, str(number))
        assert credentials.exit_code == 0 or credentials.stderr.startswith(
            f"Error: message {number} is no PushUpdateReply"
        )
    assert found("stats", capture)["ratios"] == found("stats", OWN)["ratios"]


def test_a_file_with_two_runs_shows_the_last_or_the_one_asked_for(
    tmp_path: Path, federation: Federation
) -> None:
    shutil.copy(OWN, federation.folder / "both.fedwire")
    flags = "--model problem:network --dataset problem:data --num-clients 1 --rounds 1 --local-steps 1"
    federation.server(*flags.split(), "--capture", "both.fedwire")
    federation.client("a")
    federation.finish()
    both = str(federation.folder / "both.fedwire")
    listed = found("stats", both, "--run-dir", str(federation.folder / "run"))
    assert listed["differences"] == []
    assert "this is the last one, --run picks another" in listed["problems"][0]
    first = json.loads((DATA / "run" / "config.json").read_text())["run_id"]
    assert found("stats", both, "--run", first, "--run-dir", RUN)["differences"] == []
    assert invoke("fedwire", "stats", both, "--run", "ffff").exit_code == 1


def test_words_of_peers_do_not_steer_the_terminal(tmp_path: Path) -> None:
    """Names of clients and tensors, ids, reasons: whatever a captured message says."""
    escape = "\x1b[2J\x1b]0;title\x07"
    header = pb.UpdateHeader(client=escape, round=1, update_id=escape, run_id=escape, fingerprint=escape)
    header.tensors.add(name=f"w{escape}", dtype=1, shape=[1], purpose=1, codec=1, num_bytes=4)
    said = pb.UpdateHeader(client="z", round=1, declined=escape)
    frames = [pb.UpdateFrame(header=h).SerializeToString() for h in (header, said)]
    done = False

    def with_escapes(record: CaptureRecord) -> list[tuple[str, int, ClassifiedMessage]]:
        nonlocal done
        written = [as_it_was(record)]
        if record.rpc == "PushUpdate" and not done:
            done = True
            for number, frame in enumerate(frames):
                message = ClassifiedMessage(record.time_ns, True, frame, Content(""), escape, 1)
                written.append((f"PushUpdate{escape if number else ''}", 2000 + number, message))
        return written

    capture = rewritten(tmp_path / "strange", with_escapes)
    numbers = [row["number"] for row in found("ls", capture)["messages"] if row["client"] == escape]
    assert len(numbers) == 2
    shows = [["show", capture, str(number)] for number in numbers]
    exports = ["export", capture, "--out", str(tmp_path / "out")]
    for arguments in (["ls", capture], ["stats", capture], ["diff", OWN, capture], exports, *shows):
        result = invoke("fedwire", *arguments)
        assert "\x1b" not in result.output, arguments
        assert "\x07" not in result.output, arguments


def test_what_is_not_in_a_capture_ends_in_one_line(tmp_path: Path) -> None:
    other = shutil.copytree(RUN, tmp_path / "run")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"run_id": "0123456789ab"}))
    another = f"{OWN} is of run {config['run_id']}, --run-dir {other} of run 0123456789ab"
    cases = {
        ("ls", OWN, "--round", "99"): "no message for --round 99; the capture has rounds 1 to 3",
        ("ls", OWN, "--json", "--client", "z"): "no message for --client z",
        ("pcap", PACKETS, "--rpc", "Pull"): "no message for --rpc Pull",
        ("show", OWN, "99999"): "this run has messages 0 to",
        ("export", OWN, "--round", "9", "--out", str(tmp_path / "o")): "no whole transfer for --round 9",
        ("stats", PACKETS, "--port", "1"): f"Servers' ports in it: {server_ports(Path(PACKETS))[0]}",
        ("stats", OWN, "--run-dir", str(other)): another,
        ("replay", OWN, "--run-dir", str(other)): another,
    }
    for arguments, message in cases.items():
        result = invoke("fedwire", *arguments)
        assert result.exit_code == 1, arguments
        assert message in result.stderr, arguments
        assert len(result.stderr.splitlines()) == 1
        assert result.stdout == ""


def test_a_message_has_the_same_size_in_every_view() -> None:
    for row in found("ls", OWN)["messages"][:12]:
        number = str(row["number"])
        assert found("show", OWN, number)["bytes"] == row["bytes"]
        lines = [line.split() for line in invoke("fedwire", "show", OWN, number).output.splitlines()]
        assert ["bytes", str(row["bytes"])] in lines


@pytest.mark.parametrize(
    "arguments",
    [["fedwire", "ls", OWN], pytest.param(["fedlab", "presets"], marks=pytest.mark.slow)],
)
def test_a_reader_that_has_enough_is_no_error(arguments: list[str]) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    program.stdout.close()
    assert program.communicate()[1] == b""


def test_a_difference_is_between_the_runs_asked_for(tmp_path: Path) -> None:
    """Two files with the recorded run and another one behind it, which is the same but for its id."""
    (first,) = {
        m.run_id
        for m in (
            pb.PullRoundRequest.FromString(record.data)
            for record in read_records(DATA / "run.fedwire", pytest.fail)
            if (record.rpc, record.up) == ("PullRound", True)
        )
    }
    second = "f" * len(first)

    def twice(record: CaptureRecord) -> list[tuple[str, int, ClassifiedMessage]]:
        rpc, call, message = as_it_was(record, data=record.data.replace(first.encode(), second.encode()))
        return [as_it_was(record), (rpc, 5000 + call, message)]

    both = rewritten(tmp_path / "both", twice)
    assert found("diff", OWN, both, "--run", first)["problems"] == []
    assert invoke("fedwire", "diff", OWN, both, "--run", second).exit_code == 1, "the first has no such run"
    assert found("diff", OWN, both, "--run", first, "--run", second)["differences"] == []
    assert "this is the last one" in found("diff", OWN, both)["problems"][0]
    assert invoke("fedwire", "diff", OWN, both, *["--run", first] * 3).exit_code == 2


def test_problems_of_a_packet_capture_are_told_when_it_is_converted(tmp_path: Path) -> None:
    whole = Path(PACKETS).read_bytes()
    (tmp_path / "cut.pcap").write_bytes(whole[: len(whole) * 2 // 3])
    problems = found("pcap", str(tmp_path / "cut.pcap"), "--out", str(tmp_path / "out"))["problems"]
    assert problems == found("pcap", str(tmp_path / "cut.pcap"))["problems"] != []


def test_show_tells_what_a_header_announces_and_what_the_numbers_look_like() -> None:
    rows = found("ls", OWN, "--rpc", "PushUpdate", "--client", "a", "--round", "3")["messages"]
    header, chunk = rows[0], rows[1]
    credentials = found("show", OWN, str(header["number"]))
    assert (
        credentials["fields"]["client"],
        credentials["fields"]["round"],
        credentials["fields"]["steps"],
    ) == ("a", 3, "2")
    names = [(tensor["name"], tensor["purpose"]) for tensor in credentials["tensors"]]
    assert names[0] == ("0.weight", "model")
    assert names[-1] == ("4.bias", "control")
    weight = credentials["tensors"][0]
    assert (weight["shape"], weight["codec"], weight["bytes"], weight["nan"]) == ([7, 6], "fp32", 336, 0)
    assert weight["min"] < 0 < weight["max"] < weight["norm"]
    part = found("show", OWN, str(chunk["number"]))["chunk"]
    assert (part["tensor"], part["offset"], part["norm"]) == ("0.weight", 0, pytest.approx(weight["norm"]))
    assert invoke("fedwire", "show", OWN, "99999").exit_code == 1


def test_export_writes_what_travelled(tmp_path: Path) -> None:
    files = found("export", OWN, "--out", str(tmp_path))["files"]
    assert len(files) == 3 * 2 * 2 * 2
    up, down = (
        load_file(tmp_path / "round-000003" / tensor_encoding / "a" / "model.safetensors")
        for tensor_encoding in ("up", "down")
    )
    assert up.keys() == down.keys()
    assert not np.array_equal(up["0.weight"], down["0.weight"])
    again = found("export", OWN, "--out", str(tmp_path / "one"), "--round", "2", "--client", "b")["files"]
    assert len(again) == 4


def test_every_view_is_also_for_people() -> None:
    for arguments in (["ls", OWN], ["stats", OWN, "--run-dir", RUN], ["replay", OWN], ["show", OWN, "5"]):
        result = invoke("fedwire", *arguments)
        assert result.exit_code == 0, result.output
    assert "agrees to the byte" in invoke("fedwire", "stats", OWN, "--run-dir", RUN).output
    assert "the same to the bit as broadcast of round 2" in invoke("fedwire", "replay", OWN).output
    assert "do not differ" in invoke("fedwire", "diff", OWN, PACKETS).output


@pytest.mark.parametrize("capture", [OWN, PACKETS])
def test_a_damaged_capture_is_read_up_to_the_damage(tmp_path: Path, capture: str) -> None:
    whole = Path(capture).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) * 2 // 3])
    result = invoke("fedwire", "ls", str(tmp_path / "cut"), "--json")
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert 0 < len(listed["messages"]) < sum(kinds(OWN).values())
    assert listed["problems"]
    assert listed["problems"][0] in result.stderr
    assert "Traceback" not in result.output


def test_what_is_no_capture_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    result = invoke("fedwire", "stats", str(tmp_path / "x"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "neither a fedwire capture nor a pcap" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_transfers_carry_what_the_algorithm_says() -> None:
    with Capture(DATA / "run.fedwire", pytest.fail) as capture:
        for transfer in Transfers(capture):
            assert transfer.outcome == ("ACCEPTED" if transfer.up else "")
            assert len(transfer.encoding.layout.indices(Purpose.CONTROL)) == 2


CASES = {
    "fedpvr-derived-int8": "--variates derived --codec int8",
    "scaffold-examples": "--algorithm scaffold --weighting examples --eta-g 0.5",
    "feddyn": "--algorithm feddyn --feddyn-alpha 0.2",
    "scaffold-median": "--algorithm scaffold --aggregation median --norm-bound 1.01",
    "fedpvr-coded-control": "--codec control=int8,up=fp16",
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c == "feddyn" else pytest.mark.slow) for c in CASES]
)
def test_every_way_of_training_can_be_replayed(federation: Federation, case: str) -> None:
    flags = "--model problem:network --dataset problem:data --num-clients 2 --rounds 3 --local-steps 2"
    federation.server(*flags.split(), *CASES[case].split(), "--capture", "c.fedwire")
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    capture, run = str(federation.folder / "c.fedwire"), str(federation.folder / "run")
    verdicts = found("replay", capture, "--run-dir", run)
    assert [verdict["same"] for verdict in verdicts] == [True, True, True]
    if case == "fedpvr-coded-control":
        assert all("the server's own c is not on the wire" in v["problems"][0] for v in verdicts)
        assert verdicts[-1]["compared"] == "the run's final x"
    assert found("stats", capture, "--run-dir", run)["differences"] == []


@pytest.mark.tcpdump
def test_tcpdump_beside_a_live_run_and_the_kernels_count(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--rounds", "2", "--capture", "own.fedwire")
    port = federation.address.rpartition(":")[2]
    pcap, said = federation.folder / "run.pcap", federation.folder / "tcpdump.log"
    own = str(federation.folder / "own.fedwire")
    flags = ["-i", "lo", "-s", "0", "-B", "65536", "-U", "--immediate-mode", "-w", str(pcap)]
    with said.open("wb") as log:
        sniffer = subprocess.Popen(["tcpdump", *flags, f"tcp port {port}"], stderr=log)
    try:
        wait_until(lambda: "listening on" in said.read_text() or sniffer.poll() is not None, "tcpdump starts")
        assert sniffer.poll() is None, f"tcpdump must be allowed to capture: {said.read_text().strip()}"
        for name in ("a", "b"):
            federation.client(name)
        federation.finish()
        wait_until(lambda: kinds(str(pcap)) == kinds(own), "tcpdump has seen what the server captured")
    finally:
        sniffer.send_signal(signal.SIGINT)
        sniffer.wait()
    assert found("diff", own, str(pcap))["same"]
    traffic = json.loads((federation.folder / "run" / "traffic.json").read_text())
    encoded = sum(sum(counts.values()) for counts in traffic["bytes"].values())
    counted = sum(sum(counts.values()) for counts in traffic["socket"].values())
    assert 0 < counted - encoded < 0.01 * encoded, "HTTP/2 framing, headers and pings"
    packets = subprocess.run(["tcpdump", "-r", str(pcap), "-nn", "-q"], capture_output=True, text=True).stdout
    on_the_wire = sum(int(size) for size in re.findall(r": tcp (\d+)", packets))
    assert 0 <= on_the_wire - counted < 2000, "the kernel's count misses only what closed the connections"
