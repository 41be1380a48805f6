"""The log of what has left a site: what was done to it is found, and a kill at any moment does it no harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.access.signing_request import new_key
from common.errors import DiskError, StateError
from common.events import Event, unheard
from fedclient import cli
from fedclient.keys.signatures import KeySigner, signer_of
from fedclient.outbox import chain
from fedclient.outbox.log import Outbox
from fedclient.policy.events import OutboxMended
from fedclient.policy.facts import Departure, Usage
from fedserver.keys.authority import Authority

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
Lines = list[dict[str, Any]]


def update(r: int, run: str = "a1", **changes: Any) -> Departure:
    """An update that leaves."""
    values: dict[str, Any] = {
        "kind": "update",
        "update": f"{r}-00",
        "tensors": ("w", "b"),
        "bytes": 100,
        "norm": float(r),
    }
    return Departure(run=run, round=r, **(values | changes))


def filled(folder: Path, signer: KeySigner | None = None, rounds: int = 3) -> Outbox:
    """Two entries a round: an update and its receipt."""
    outbox = Outbox(folder, signer, unheard)
    for r in range(1, rounds + 1):
        outbox.receipt(outbox.depart(update(r)), "ACCEPTED", "a1", r)
    return outbox


def verify(folder: Path, *flags: str) -> tuple[int, str]:
    """Exit code and words of the command."""
    result = CliRunner().invoke(cli.main, ["outbox", "verify", "--state-dir", str(folder), *flags])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def rewrite(folder: Path, change: Callable[[Lines], Lines | None]) -> None:
    """Changes the log as somebody would who can write the file."""
    path = folder / "outbox.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = change(lines) or lines
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edited(lines: Lines) -> None:
    lines[2]["bytes"] = 1


def replaced(lines: Lines) -> None:
    lines[2]["bytes"] = 1
    lines[2]["hash"] = chain.digest(lines[2])


def last_replaced(lines: Lines) -> None:
    lines[-1]["outcome"] = "LATE"
    lines[-1]["hash"] = chain.digest(lines[-1])


def rechained(lines: Lines) -> None:
    lines[2]["bytes"] = 1
    for before, line in zip([{"hash": chain.FIRST}, *lines], lines, strict=False):
        line["previous"] = before["hash"]
        line["hash"] = chain.digest(line)


def swapped(lines: Lines) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def renumbered(lines: Lines) -> Lines:
    del lines[2]
    for number, line in enumerate(lines, start=1):
        line["number"] = number
    rechained(lines)
    return lines


TAMPERED: list[tuple[Callable[[Lines], Lines | None], list[str]]] = [
    (edited, ["entry 3 was edited"]),
    (replaced, ["entry 4 does not follow from entry 3, which was replaced"]),
    (last_replaced, ["entry 6 is not the one that the head names: it was replaced"]),
    (rechained, ["entry 6 is not the one that the head names: it was replaced"]),
    (lambda lines: lines[:2] + lines[3:], ["entry 3 is missing"]),
    (lambda lines: lines[:1] + lines[4:], ["entries 2 to 4 are missing"]),
    (lambda lines: lines[1:], ["entry 1 is missing"]),
    (lambda lines: lines[:-1], ["entry 6 is missing at the end"]),
    (lambda lines: lines[:2], ["entries 3 to 6 are missing at the end"]),
    (lambda lines: [], ["entry 6 is missing at the end", "entries 1 to 6 are missing at the end"]),
    (swapped, ["entry 3 stands after entry 4: they were reordered"]),
    (lambda lines: lines[::-1], ["entry 5 stands after entry 6: they were reordered"]),
    (lambda lines: [*lines, lines[2]], ["entry 3 is there more than once"]),
    (renumbered, ["entry 6 is missing at the end"]),
]


@pytest.mark.parametrize(("change", "words"), TAMPERED)
def test_a_changed_log_is_found_entry_by_entry_and_nothing_more_leaves(
    change: Callable[[Lines], Lines | None], words: list[str], tmp_path: Path
) -> None:
    filled(tmp_path)
    assert verify(tmp_path) == (0, "6 entries, whole and as they were written; not signed\n")
    path = tmp_path / "outbox.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = found if (found := change(lines)) is not None else lines
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, said = verify(tmp_path)
    assert code == 1
    assert any(word in said for word in words), said
    with pytest.raises(StateError, match=r"outbox.jsonl: .*; look into it with fedclient outbox verify"):
        Outbox(tmp_path, None, unheard)


@pytest.mark.parametrize("line", ["{}", "[]", "null", "x", '{"number": 2}', "\x00" * 50, "[" * 100_000])
def test_a_line_that_is_no_entry_is_named(line: str, tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / "outbox.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = line
    path.write_text("\n".join(lines) + "\n")
    assert verify(tmp_path)[0] == 1
    assert "entry 2 was edited" in verify(tmp_path)[1]


def test_a_lost_or_damaged_head_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    head = tmp_path / "outbox.head.json"
    head.write_text("{")
    assert verify(tmp_path)[0] == 1
    head.unlink()
    assert verify(tmp_path) == (1, f"Error: {tmp_path / 'outbox.jsonl'}: the head is missing\n")


def test_a_signed_log_cannot_be_written_anew_without_the_key(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    authority = Authority(certs)
    authority.init()
    authority.issue("a")
    signer = signer_of(certs / "a.key")
    filled(tmp_path, signer)
    flags = ("--certs", str(certs), "--name", "a")
    code, said = verify(tmp_path, *flags)
    assert code == 0
    assert "6 entries, whole and as they were written; signed with key " in said
    # Whoever writes all of it anew has to sign it with a key of his own, or with none.
    for forger, words in ((KeySigner(new_key()), "not signed with the key of"), (None, "not signed with")):
        for name in ("outbox.jsonl", "outbox.head.json"):
            (tmp_path / name).unlink()
        filled(tmp_path, forger, rounds=2)
        assert verify(tmp_path)[0] == 0
        code, said = verify(tmp_path, *flags)
        assert code == 1
        assert words in said
    for name in ("outbox.jsonl", "outbox.head.json"):
        (tmp_path / name).unlink()
    filled(tmp_path, signer)
    head = json.loads((tmp_path / "outbox.head.json").read_text())
    rewrite(tmp_path, lambda lines: lines[:-1])
    last = json.loads((tmp_path / "outbox.jsonl").read_text().splitlines()[-1])
    head |= {"number": last["number"], "hash": last["hash"]}
    (tmp_path / "outbox.head.json").write_text(json.dumps(head))
    assert "the signature of the head is wrong" in verify(tmp_path)[1]
    with pytest.raises(StateError, match="the signature of the head is wrong"):
        Outbox(tmp_path, signer, unheard)


def test_another_key_is_noted_in_the_log(tmp_path: Path) -> None:
    told: list[Event] = []
    filled(tmp_path)
    for signer in (KeySigner(new_key()), KeySigner(new_key()), None):
        Outbox(tmp_path, signer, told.append)
        assert verify(tmp_path)[0] == 0
    assert len(told) == 3
    assert "the key has changed at entry 7, 8, 9;" in verify(tmp_path)[1]


def test_what_a_kill_leaves_is_mended_and_said(tmp_path: Path) -> None:
    """At every byte of the line that is being written, and before the head follows."""
    filled(tmp_path)
    path, told = tmp_path / "outbox.jsonl", list[Event]()
    whole, head = path.read_bytes(), (tmp_path / "outbox.head.json").read_bytes()
    filled_more = Outbox(tmp_path, None, unheard)
    filled_more.depart(update(4))
    line = path.read_bytes()[len(whole) :]
    for cut in (1, 2, len(line) // 2, len(line) - 1, len(line)):
        path.write_bytes(whole + line[:cut])
        (tmp_path / "outbox.head.json").write_bytes(head)
        code, said = verify(tmp_path)
        assert code == 0, said
        assert cut == len(line) or f"{cut} bytes of a line that was cut off follow" in said
        told.clear()
        outbox = Outbox(tmp_path, None, told.append)
        assert [type(event) for event in told] == [OutboxMended]
        assert len(outbox.usage().rounds) == (4 if cut == len(line) else 3)
        assert verify(tmp_path)[0] == 0
        outbox.depart(update(5))
        assert verify(tmp_path)[0] == 0


def test_what_left_today_is_known_after_a_restart_and_forgotten_at_midnight(tmp_path: Path) -> None:
    clock = {"now": NOON}
    outbox = Outbox(tmp_path, None, unheard, lambda: clock["now"])
    outbox.depart(Departure(kind="join", bytes=10))
    for r in (1, 2, 2):
        outbox.depart(update(r))
    for again in (outbox, Outbox(tmp_path, None, unheard, lambda: clock["now"])):
        assert again.usage() == Usage(frozenset({("a1", 1), ("a1", 2)}), 310)
    clock["now"] += timedelta(hours=12)
    assert outbox.usage() == Usage()
    outbox.depart(update(3))
    assert Outbox(tmp_path, None, unheard, lambda: clock["now"]).usage() == Usage(frozenset({("a1", 3)}), 100)


def test_a_clock_that_is_set_back_does_not_free_a_day(tmp_path: Path) -> None:
    clock = {"now": NOON}
    outbox = Outbox(tmp_path, None, unheard, lambda: clock["now"])
    outbox.depart(update(1))
    clock["now"] -= timedelta(days=1)
    assert outbox.usage().bytes == 100


def test_names_of_tensors_are_written_when_they_change_and_a_norm_is_known_the_second_time(
    tmp_path: Path,
) -> None:
    outbox = Outbox(tmp_path, None, unheard)
    outbox.depart(update(1))
    Outbox(tmp_path, None, unheard).depart(update(1, norm=None))
    lines = [json.loads(line) for line in (tmp_path / "outbox.jsonl").read_text().splitlines()]
    assert [(line["tensors"], line["names"], line["norm"]) for line in lines] == [
        (2, ["w", "b"], 1.0),
        (2, [], 1.0),
    ]


def test_a_join_that_nobody_answers_is_one_entry_however_often_it_is_tried(tmp_path: Path) -> None:
    clock = {"now": NOON}
    asking = Departure(kind="join", bytes=20, told=("examples",))
    outbox = Outbox(tmp_path, None, unheard, lambda: clock["now"])
    assert [outbox.depart(asking) for _ in range(3)] == [1, 1, 1]
    assert Outbox(tmp_path, None, unheard, lambda: clock["now"]).depart(asking) == 1
    assert outbox.depart(Departure(kind="join", bytes=21, told=("examples",))) == 2
    clock["now"] += timedelta(days=1)
    assert outbox.depart(asking) == 3, "it counts for the day on which it may leave"
    outbox.receipt(3, "SEATED", "a1")
    assert outbox.depart(asking) == 5


def test_nothing_leaves_if_it_cannot_be_written_down(tmp_path: Path) -> None:
    outbox = filled(tmp_path)
    (tmp_path / "outbox.jsonl").unlink()
    (tmp_path / "outbox.jsonl").mkdir()
    with pytest.raises(DiskError, match="nothing leaves without it"):
        outbox.depart(update(4))


def test_the_log_is_for_its_owner_only(tmp_path: Path) -> None:
    filled(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_the_list_is_for_people_and_scripts(tmp_path: Path) -> None:
    filled(tmp_path).depart(Departure(kind="join", bytes=20, told=("examples",)))
    result = CliRunner().invoke(cli.main, ["outbox", "--state-dir", str(tmp_path), "--json"])
    rows = json.loads(result.output)
    assert [(row["kind"], row["receipt"]) for row in rows] == [("update", "ACCEPTED")] * 3 + [("join", None)]
    shown = CliRunner().invoke(cli.main, ["outbox", "--state-dir", str(tmp_path)]).output
    assert "4 departures, 320 bytes" in shown
    assert shown.count("ACCEPTED") == 3, "nothing is cut off"
    missing = CliRunner().invoke(cli.main, ["outbox", "--state-dir", str(tmp_path / "no")])
    assert missing.exit_code == 2
    assert "is not there; give that of the client, or its --name" in missing.output
