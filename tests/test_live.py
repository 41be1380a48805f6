"""The run directory as it is watched: live.json, events.jsonl, and the view that reads what is new."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from common import json_files
from common.errors import StateError
from common.events import Event, Trouble, unheard
from common.live.lines import GrowingFile
from common.live.record import EVENTS, LIVE, LiveProcess, LoggedEvent, read_live
from common.live.sent import yardsticks
from common.live.view import RunView
from common.processes.identity import is_alive, own_process
from common.records.rounds import ROUNDS, read_rounds
from common.records.traffic import DirectionBytes, PurposeBytes
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.live.event_log import EventLog
from tests.processes import Federation, wait_until

CONFIG = RunConfig(num_clients=3, rounds=4, local_steps=1, model="mlp")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over."""
    run = tmp_path_factory.mktemp("live") / "run"
    simulate(CONFIG, run, unheard)
    return run


def copied(run: Path, to: Path) -> Path:
    """Its records, to be changed."""
    to.mkdir()
    for name in ("config.json", ROUNDS, "traffic.jsonl", LIVE, EVENTS):
        (to / name).write_bytes((run / name).read_bytes())
    return to


def events_of(run: Path) -> list[LoggedEvent]:
    """events.jsonl."""
    return list(json_files.read_lines(run / EVENTS, LoggedEvent))


def test_a_simulation_leaves_its_events_and_its_last_state(simulated: Path) -> None:
    kinds = [event.event for event in events_of(simulated)]
    assert kinds.count("round_opened") == kinds.count("round_closed") == 4
    assert kinds.count("update_accepted") == 12
    assert kinds[-1] == "results_ready"
    live = read_live(simulated)
    assert live is not None
    assert (live.phase, live.round, live.rounds, live.outcome) == ("finished", 4, 4, "finished")
    assert [(client.name, client.loss_round) for client in live.clients] == [
        (f"client-{i}", 4) for i in range(3)
    ]
    assert {client.upload.received == client.upload.total for client in live.clients if client.upload} == {
        True
    }


def test_a_view_reads_all_once_and_then_what_is_new(simulated: Path, tmp_path: Path) -> None:
    run = copied(simulated, tmp_path / "run")
    lines = (run / ROUNDS).read_bytes().splitlines(keepends=True)
    (run / ROUNDS).write_bytes(lines[0])
    view = RunView(run)
    first = view.refresh()
    assert first.config
    assert first.live
    assert first.rounds == (1,)
    assert view.traffic.rounds == 4
    assert len(first.events) == len(events_of(run))
    assert not view.refresh()
    with (run / ROUNDS).open("ab") as file:
        file.write(lines[1] + lines[2][:20])
    assert view.refresh().rounds == (2,)
    with (run / ROUNDS).open("ab") as file:
        file.write(lines[2][20:])
    assert view.refresh().rounds == (3,)
    assert list(view.rounds) == [1, 2, 3]


def test_a_view_sees_evaluations_that_come_later_and_rounds_that_are_taken_back(
    simulated: Path, tmp_path: Path
) -> None:
    run = copied(simulated, tmp_path / "run")
    view = RunView(run)
    view.refresh()
    records = read_rounds(run)
    records[1] = replace(records[1], accuracy=0.125)
    json_files.write_lines(run / ROUNDS, records)
    changes = view.refresh()
    assert changes.rounds == (2,)
    assert not changes.fewer
    assert view.rounds[2].accuracy == 0.125
    json_files.write_lines(run / ROUNDS, records[:2])
    assert view.refresh().fewer
    assert list(view.rounds) == [1, 2]


def test_a_file_that_was_cut_and_has_grown_again_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthree\n")
    file = GrowingFile(path)
    assert file.look().lines == [b"one", b"two", b"three"]
    with path.open("rb+") as same:
        same.truncate(4)
        same.seek(4)
        same.write(b"2\n3\nfour and more\nfi")
    found = file.look()
    assert found.anew
    assert found.lines == [b"one", b"2", b"3", b"four and more"]
    path.unlink()
    assert file.look().anew
    assert not file.look().anew


def test_long_files_are_read_in_parts_or_from_their_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"line %d\n" % k for k in range(100)))
    parts, file = [], GrowingFile(path)
    while lines := file.look(at_most=50).lines:
        assert len(lines) <= 7
        parts += lines
    assert parts == path.read_bytes().splitlines()
    assert GrowingFile(path, first_bytes=20).look().lines == [b"line 98", b"line 99"]
    path.write_bytes(b"x" * 200 + b"\n")
    assert GrowingFile(path).look(at_most=10).lines == [b"x" * 200]


def test_a_torn_line_of_events_stays_alone(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text('{"time": "2026-01-01T00:00:0')
    with EventLog(tmp_path, unheard) as log:
        log(Trouble(reason="<script>alert(1)</script>"))
    view = RunView(tmp_path)
    assert [event.text for event in view.refresh().events] == ["<script>alert(1)</script>"]
    assert view.damaged == 1


def test_a_log_that_cannot_be_written_ends_and_says_so(tmp_path: Path) -> None:
    told: list[Event] = []
    (tmp_path / EVENTS).symlink_to("/dev/full")
    with EventLog(tmp_path, told.append) as log:
        log(Trouble(reason="first"))
        log(Trouble(reason="second"))
    assert [event.text() for event in told] == [
        f"{tmp_path / EVENTS} ends here: No space left on device; the run goes on"
    ]


def test_a_view_names_a_file_that_does_not_have_its_form(simulated: Path, tmp_path: Path) -> None:
    run = copied(simulated, tmp_path / "run")
    (run / LIVE).write_text('{"format": 2, "run_id": 7}')
    with pytest.raises(StateError, match=r"live\.json: run_id: expected text, got 7"):
        RunView(run).refresh()


def test_a_process_is_known_by_more_than_its_number() -> None:
    me = own_process(os.getpid())
    assert is_alive(me)
    assert is_alive(replace(me, ticks=1)) is False
    assert is_alive(replace(me, ticks=None))
    assert is_alive(replace(me, host="elsewhere")) is None
    assert is_alive(LiveProcess(pid=2**22 + 1, host=me.host)) is False


def test_other_methods_are_measured_by_the_same_rounds() -> None:
    way = PurposeBytes(model=100, buffer=10, control=7, other=3)
    found = yardsticks(DirectionBytes(down=way, up=way))
    assert (found.fedavg, found.scaffold) == (2 * 113, 2 * 213)


def test_live_json_says_who_is_gone_and_how_the_server_ended(federation: Federation) -> None:
    flags = "--num-clients 2 --rounds 2000 --local-steps 2 --model mlp"
    federation.server(*flags.split())
    view = RunView(federation.folder / "run")
    for name in ("a", "b"):
        federation.client(name)

    def states() -> dict[str, str]:
        view.refresh()
        return {client.name: client.state for client in view.live.clients} if view.live else {}

    wait_until(lambda: states() and len(view.rounds) > 2 and view.seconds_left, "rounds are closed")
    assert view.alive
    assert view.live is not None
    assert view.live.address == federation.address
    federation.processes["b"].send_signal(signal.SIGKILL)
    wait_until(lambda: states()["b"] in ("not connected", "not heard of"), "b is missing")
    assert states()["a"] in ("waiting", "answered", "training", "uploading")
    federation.stop("server")
    view.refresh()
    assert view.live.ended is not None
    assert view.live.outcome == "stopped by SIGTERM"
    assert not view.alive
    assert not view.finished
    assert states()["a"] in ("waiting", "answered", "training", "uploading"), "it was the server that hung up"


def test_live_json_of_a_killed_server_is_seen_through(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--model", "mlp")
    view = RunView(federation.folder / "run")
    wait_until(lambda: view.refresh() and view.alive, "the server says what it does")
    federation.kill("server")
    assert view.refresh().live
    assert view.alive is False
    assert view.live is not None
    assert view.live.ended is None
    federation.server("--num-clients", "2", "--model", "mlp", name="again")
    wait_until(lambda: view.refresh() and view.alive, "another one goes on")
    listening = [event for event in view.events if event.event == "listening"]
    assert len(listening) == 2, "the log goes on"
    assert json.loads((view.path / EVENTS).read_text().splitlines()[0])["event"] == "listening"
    federation.stop("again")
