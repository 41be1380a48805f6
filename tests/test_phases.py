"""The phases of a client: what follows from what, without a server, a model or a disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from common.errors import StateError
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.chunks import START
from common.wire.encoding import Encoding
from fedclient.rpc.round_stream import ReceivedRound, RunEnded
from fedclient.run import phases
from fedclient.run.phases import Ended, Handing, LastBroadcast, Memory, StateSource, Training, Waiting
from fedclient.store.stored_update import StoredUpdate
from fedclient.training.task import Task
from tests.rules import rules

LAYOUT = Layout([TensorSpec("w", "float32", (2,)), TensorSpec("w", "float32", (2,), Purpose.CONTROL)])
ENCODING = Encoding(LAYOUT)


def received(r: int, algorithm: str = "fedpvr") -> ReceivedRound:
    """A round; FedAvg's has nothing to remember."""
    layout = LAYOUT if algorithm == "fedpvr" else LAYOUT.part(Purpose.MODEL)
    task = Task(
        rules=rules(round=r, algorithm=algorithm),
        layout=layout,
        broadcast=layout.allocate(),
        encoding=Encoding(layout),
    )
    return ReceivedRound(task, derives_c=False, counted_round=0, lost_variate=None)


def update(r: int) -> StoredUpdate:
    """A client's update for a round."""
    return StoredUpdate(r, ENCODING, np.zeros(LAYOUT.num_bytes, np.uint8), 1, 0.5, None, 0.1)


def handing(r: int, phase: Waiting | None = None) -> Handing:
    """A client that has trained a round."""
    training = phases.round_came(phase or Waiting(), received(r))
    return phases.trained(training, update(r), LastBroadcast(rules(round=r), [], 1))


def test_a_round_goes_from_waiting_to_waiting() -> None:
    waiting = Waiting()
    for r in (1, 2, 3):
        training = phases.round_came(waiting, received(r))
        assert training.memory.last_round == r - 1
        assert training.memory.keeps_state
        broadcast, trained = LastBroadcast(rules(round=r), [], 1), update(r)
        hands = phases.trained(training, trained, broadcast)
        assert hands == Handing(Memory(r - 1, taken=r > 1, keeps_state=True, broadcast=broadcast), trained)
        waiting = phases.answered(hands, taken=True)
        assert waiting == Waiting(Memory(r, taken=True, keeps_state=True, broadcast=broadcast), trained)
        assert phases.held_rounds(waiting.memory, [r - 1, r]) == [], "the usual case costs no byte"


def test_an_update_that_a_restarted_server_has_lost_is_handed_in_again() -> None:
    waiting = phases.answered(handing(4), taken=True)
    again = phases.update_lost(waiting, 4)
    assert isinstance(again, Handing)
    assert again.update.round == 4
    assert not again.interrupted, "a server that was restarted has nothing of it"
    assert phases.answered(again, taken=True) == waiting


def test_a_round_whose_update_is_gone_too_is_trained_again() -> None:
    """The server went back by more than a round, or the update had not counted."""
    for waiting in (phases.answered(handing(4), taken=True), phases.answered(handing(3), taken=False)):
        back = phases.update_lost(waiting, 3)
        assert isinstance(back, Waiting)
        assert back.memory.last_round == 0, "any round will do"
        assert phases.held_rounds(back.memory, [2, 3]) == [2, 3]


def test_the_next_round_shows_that_the_update_before_is_not_asked_for_any_more() -> None:
    training = phases.round_came(phases.answered(handing(4), taken=True), received(5))
    lost = phases.connection_lost(training)
    assert isinstance(lost, Waiting)
    assert lost.handed_in is None
    assert lost.memory.last_round == 4


@pytest.mark.parametrize("why", ["late", "rejected"])
def test_an_update_that_does_not_count_leaves_the_earlier_c_i_valid(why: str) -> None:
    waiting = phases.answered(handing(4, phases.answered(handing(3), taken=True)), taken=False)
    assert waiting.handed_in is None, f"it was {why}, and nobody will ask for it"
    assert waiting.memory.last_round == 4, "the client has the x of round 4 all the same"
    assert phases.held_rounds(waiting.memory, [3, 4]) == [3, 4], "the server says which one counts"
    assert phases.held_rounds(waiting.memory, [3]) == [3]


def test_a_round_that_diverged_leaves_the_earlier_c_i_valid() -> None:
    before = phases.answered(handing(3), taken=True)
    waiting = phases.diverged(phases.round_came(before, received(4)))
    assert waiting.memory.last_round == 4
    assert waiting.memory.broadcast is before.memory.broadcast
    assert waiting.handed_in is None
    assert phases.held_rounds(waiting.memory, [3]) == [3]


def test_an_upload_that_broke_off_goes_on_where_it_was() -> None:
    """Also one that another stream of this client took over: what became of that is not known."""
    hands = handing(2)
    lost = phases.connection_lost(hands)
    assert isinstance(lost, Handing)
    assert lost.interrupted
    assert lost.arrived == START
    on = phases.arrived(lost, (1, 4))
    assert (on.interrupted, on.arrived) == (True, (1, 4))
    assert phases.connection_lost(on) == on
    assert phases.answered(on, taken=True) == phases.answered(hands, taken=True)


def test_a_restart_with_an_update_in_hand_asks_how_much_of_it_has_arrived() -> None:
    started = phases.begin(update(7))
    assert isinstance(started, Handing)
    assert started.interrupted
    waiting = phases.answered(started, taken=True)
    assert waiting.memory.last_round == 0, "the x of round 7 went with the process before"
    assert phases.held_rounds(waiting.memory, [6, 7]) == [6, 7]
    assert phases.begin(None) == Waiting()


def test_a_lost_connection_changes_nothing_for_a_client_that_waits_or_is_done() -> None:
    for phase in (Waiting(), phases.answered(handing(1), taken=True), Ended(RunEnded(3, 0.5, ""))):
        assert phases.connection_lost(phase) == phase


@pytest.mark.parametrize(
    ("memory", "on_disk", "named"),
    [
        (Memory(), [], []),
        (Memory(), [4], [4]),
        (Memory(5), [], []),
        (Memory(5, taken=True, keeps_state=True), [4, 5], []),
        (Memory(5, taken=True, keeps_state=True), [4], [4]),
        (Memory(5, taken=True, keeps_state=True), [], [0]),
        (Memory(5, taken=False, keeps_state=True), [4, 5], [4, 5]),
        (Memory(5, taken=False, keeps_state=True), [], [0]),
    ],
    ids=[
        "new here",
        "restarted",
        "nothing to remember",
        "as usual",
        "the last c_i was taken away",
        "all were taken away",
        "the last update does not count",
        "it does not count, and all were taken away",
    ],
)
def test_the_rounds_that_a_request_names(memory: Memory, on_disk: list[int], named: list[int]) -> None:
    assert phases.held_rounds(memory, on_disk) == named


@pytest.mark.parametrize(
    ("counted", "on_disk", "came_along", "source"),
    [
        (0, [], False, StateSource.HELD),
        (4, [4, 5], False, StateSource.HELD),
        (4, [4, 5], True, StateSource.SERVER),
        (4, [5], True, StateSource.SERVER),
        (4, [], True, StateSource.SERVER),
    ],
    ids=["never counted", "here", "here, but another one counts", "lost", "all lost"],
)
def test_where_the_variate_that_counts_comes_from(
    counted: int, on_disk: list[int], came_along: bool, source: StateSource
) -> None:
    found = phases.state_source(counted, on_disk, came_along=came_along, has_variate=True)
    assert found is source


def test_a_variate_that_is_nowhere_ends_the_client_and_lost_residuals_do_not() -> None:
    with pytest.raises(StateError, match="the variate of round 4, which is not here"):
        phases.state_source(4, [3], came_along=False, has_variate=True)
    assert phases.state_source(4, [3], came_along=False, has_variate=False) is StateSource.LOST


def test_a_round_without_state_is_remembered_as_such() -> None:
    waiting = Waiting(replace(Memory(), keeps_state=True))
    assert not phases.round_came(waiting, received(1, "fedavg")).memory.keeps_state
    assert isinstance(phases.round_came(waiting, received(1)), Training)
