"""What a model says of itself: who is in it, who was left out and why; and who reads it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.events import RED, TextLog
from common.records import form
from common.records.base import FORMAT
from common.records.provenance import PROVENANCE, read_provenance
from common.records.rounds import RoundRecord
from common.records.run import RunRecord, Seat
from common.tensors import safetensors_files
from common.tensors.layout import Layout, Purpose, TensorSpec
from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from fedserver.console import tables
from fedserver.console.status import status_of
from fedserver.events.left_out import RoundsWithout
from fedserver.store.history import MOST_RANGES, History, Ranges
from tests.fuzz import known
from tests.test_cli import invoke


def config(*names: str) -> RunRecord:
    """Of a run with these clients."""
    return RunRecord.of(
        RunConfig(num_clients=len(names), rounds=20).as_dict(),
        run_id="run",
        fingerprint="f" * 64,
        num_classes=2,
        svr_names=[],
        class_names=["[bold]no", "yes"],
        clients=[
            form.plain(Seat(name=name, index=i, examples=100 + i, classes=None))
            for i, name in enumerate(names)
        ],
    )


def closed(r: int, *clients: str, **others: Any) -> RoundRecord:
    """A round with the updates of some clients."""
    return replace(known.ROUND, round=r, clients=clients, **others)


def history(records: list[RoundRecord]) -> History:
    """After these rounds."""
    found = History()
    found.restore(records)
    return found


LATE = {"hamburg": "no answer by the deadline"}
RECORDS = [
    *(closed(r, "berlin", "hamburg") for r in (1, 2, 3)),
    *(closed(r, "berlin", absent=LATE) for r in (4, 5, 6)),
    closed(7, "berlin", "hamburg", clipped={"berlin": 2.5}),
    closed(8, "berlin", "hamburg", clipped={"berlin": 9.0}, uncounted={"berlin": "too large"}),
    closed(9, "hamburg", absent={"berlin": "declined: the loss is nan"}),
]


def test_rounds_are_told_as_ranges_of_who_took_part_and_who_did_not_and_why() -> None:
    told = history(RECORDS).provenance(config("berlin", "hamburg", "koeln"), 9)
    berlin, hamburg, koeln = told.clients
    assert (berlin.rounds, berlin.took_part) == (7, "1-7")
    assert berlin.left_out == {"clipped": "7", "too large": "8", "declined": "9"}
    assert (hamburg.rounds, hamburg.took_part, hamburg.left_out) == (6, "1-3,7-9", {"deadline": "4-6"})
    assert (koeln.rounds, koeln.took_part, koeln.left_out) == (0, "", {})
    assert (told.round, told.rounds, told.rounds_without, told.more_clients) == (9, 20, 5, 0)
    assert [part.examples for part in told.clients] == [100, 101, 102]


@pytest.mark.parametrize("r", range(1, len(RECORDS) + 1))
def test_a_model_that_is_written_while_the_next_round_closes_says_the_same(r: int) -> None:
    names = config("berlin", "hamburg")
    assert history(RECORDS[: r + 1]).provenance(names, r) == history(RECORDS[:r]).provenance(names, r)


def test_a_round_counts_once_and_records_need_no_order() -> None:
    names = config("berlin", "hamburg")
    twice = history([*reversed(RECORDS), *RECORDS])
    assert twice.provenance(names, 9) == history(RECORDS).provenance(names, 9)


def test_the_note_is_bounded_however_many_clients_and_rounds_there_are() -> None:
    """Of a thousand clients each is in every second of the first rounds, which makes the most ranges."""
    names = [f"client-{i:059d}" for i in range(1_000)]
    found = History()
    for r in range(1, 61):
        absent = dict.fromkeys(names[1 - r % 2 :: 2], "no sign of life")
        found.add(closed(r, *names[r % 2 :: 2], absent=absent))
    for r in range(61, 10_001):
        found.add(closed(r, names[0]))
    told = found.provenance(config(*names, "one-more"), 10_000)
    assert len(form.text(told)) < 500_000
    assert (len(told.clients), told.more_clients) == (1_000, 1)
    first = told.clients[1]
    assert (first.rounds, first.took_part.count(","), "...," in first.took_part) == (30, MOST_RANGES, True)
    assert first.took_part.endswith(",59")
    assert told.clients[0].took_part.endswith(",60-10000")


def test_ranges_of_any_rounds_can_be_read_back() -> None:
    ranges = Ranges()
    for r in (1, 2, 3, 7, 9, 10):
        ranges.add(r)
    assert ranges.until(10) == (6, "1-3,7,9-10")
    assert ranges.until(9) == (5, "1-3,7,9")
    assert Ranges().until(5) == (0, "")


def model(path: Path, note: dict[str, str]) -> Path:
    """A file with one tensor."""
    layout = Layout([TensorSpec("w", "float32", (2,))])
    safetensors_files.write(path, layout, layout.allocate(), Purpose.MODEL, note=note)
    return path


def test_a_card_shows_what_a_model_says_of_itself(tmp_path: Path) -> None:
    told = history(RECORDS).provenance(config("berlin", "hamburg"), 9)
    path = model(tmp_path / "model.safetensors", {PROVENANCE: form.text(told)})
    assert read_provenance(path) == told
    result = invoke("fedlab", "card", str(path))
    assert result.exit_code == 0
    assert "run run, round 9 of 20: fedpvr, cnn on digits" in result.output
    assert "2 classes: [bold]no, yes" in result.output
    assert "5 of 9 rounds without somebody who was drawn" in result.output
    as_json = invoke("fedlab", "card", str(path), "--json")
    assert form.read(type(told), json.loads(as_json.output)) == told


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ({}, "does not say where it is from"),
        ({PROVENANCE: "[" * 100_000}, "in its metadata"),
        ({PROVENANCE: '{"format": 2, "round": -1}'}, "in its metadata"),
        ({PROVENANCE: f'{{"format": {FORMAT + 1}}}'}, "in its metadata"),
    ],
)
def test_a_file_that_is_no_model_of_a_run_is_one_line(
    tmp_path: Path, note: dict[str, str], message: str
) -> None:
    result = invoke("fedlab", "card", str(model(tmp_path / "model.safetensors", note)))
    assert result.exit_code == 1
    assert message in result.output.splitlines()[-1]
    assert len(result.output.splitlines()) == 1


def test_a_damaged_model_has_no_card(tmp_path: Path) -> None:
    path = model(tmp_path / "model.safetensors", {PROVENANCE: "{}"})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "is damaged: its checksum is wrong" in invoke("fedlab", "card", str(path)).output
    assert "cannot be read" in invoke("fedlab", "card", str(tmp_path / "nothing")).output


class Terminal(io.StringIO):
    """As a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_run_without_a_member_says_so_in_red_on_a_terminal_and_plainly_in_a_log() -> None:
    told = history(RECORDS[:6])
    left_out = [(each.client, each.rounds, each.reason) for each in told.left_out()]
    event = RoundsWithout(without=told.rounds_without, rounds=20, left_out=left_out)
    line = "3 of 20 rounds without: hamburg (rounds 4-6, deadline)"
    reply = pb.StatusReply(
        left_out=[pb.LeftOut(client=client, rounds=r, reason=why) for client, r, why in left_out],
        rounds_without=told.rounds_without,
        round=21,
        phase=pb.StatusReply.TRAINING,
    )
    status = status_of(reply)
    assert tables._left_out(status) == line
    own = replace(status, rounds_without=0)
    assert tables._left_out(own).startswith("some of 20 rounds without: hamburg")
    for file in (io.StringIO(), Terminal()):
        TextLog(file=file)(event)
        assert line in file.getvalue()
        assert (RED in file.getvalue()) is file.isatty()
