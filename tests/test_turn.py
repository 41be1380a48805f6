"""A client's turns, with a real model and a server that says what the test wants it to say."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import datasets
from common.data.batches import Batches
from common.errors import (
    Fault,
    FedError,
    RefusedError,
    RunError,
    StateError,
    SupersededError,
    UnavailableError,
    WrongRunError,
)
from common.events import Event
from common.models.build import build_model, tensor_specs
from common.models.spec import ModelSpec
from common.tensors.layout import Flat, Layout, Purpose, fingerprint
from common.tensors.torch_views import flatten
from common.wire.chunks import START, Position
from fedclient import events
from fedclient.rpc.connection import Connection
from fedclient.rpc.replies import PushReply
from fedclient.rpc.round_stream import ON_THE_WAY, ReceivedRound, RunEnded, UpdateLost
from fedclient.rpc.seat import Seat
from fedclient.run.demands import Demands
from fedclient.run.phases import Handing, Waiting
from fedclient.run.prepare import Equipment
from fedclient.run.turn import PUSH_TRIES, RESENDS, Participant
from fedclient.site import Site
from fedclient.store.state import RunFiles
from fedclient.store.stored_update import Sender
from fedclient.training.task import Task, Update
from fedclient.training.train import Trainer
from fedlab.direct.kept_state import KeptRunState, Together
from tests.test_train import task

ACCEPTED = PushReply("ACCEPTED", None, "")
LATE = PushReply("LATE", None, "")
DAMAGED = PushReply("REJECTED", Fault.BAD_CHECKSUM, "w: CRC32C is wrong")
SPEC = ModelSpec(name="mlp", num_classes=10, image_shape=(1, 8, 8))


class Server(Connection):
    """Answers as the test says: a value is an answer, an error is raised, and everything is written down."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    def _answer(self, *what: Any) -> Any:
        self.asked.append(what)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pull(self, run_id: str, after: int, held_rounds: list[int], *_: Any) -> Any:
        """A round, or another answer."""
        return self._answer("pull", after, held_rounds)

    def push(self, sender: Sender, stored_update: Any, start: Position = START) -> PushReply:
        """What became of the update."""
        reply: PushReply = self._answer("push", stored_update.round, start)
        return reply

    def progress(self, seat: Seat, stored_update: Any) -> Position:
        """How much of it there is."""
        position: Position = self._answer("progress", stored_update.round)
        return position

    def decline(
        self,
        seat: Seat,
        r: int,
        reason: str,
        *,
        leaving: bool = False,
        rule: str = "",
        diverged: bool = False,
    ) -> PushReply:
        """Heard."""
        reply: PushReply = self._answer("leave" if leaving else "decline", r, reason)
        return reply


class Client:
    """A participant with a small model, and what it has told."""

    def __init__(self, folder: Path) -> None:
        model = build_model(SPEC, 0)
        specs = tensor_specs(model)
        self.layout = Layout(specs)
        self.x = flatten(model, self.layout)
        self.told: list[Event] = []
        seat = Seat("a1", 0, 1, 0, SPEC, fingerprint(specs), (), (0.0,), (1.0,), "digits", [])
        batches = Batches(datasets.load("digits", "train").subset(np.arange(20)))
        trainer = Trainer(model, batches, 0, 0)
        sender = Sender("a1", "clinic", seat.fingerprint, 20)
        self.state = KeptRunState(Together(folder, Layout([]), {}, 1 << 30), 0)
        demands = Demands(seat, Site(), own_data=False)
        self._equipment = Equipment(seat, sender, trainer, self.layout, self.state, 1, demands)
        self.participant = Participant(self._equipment, None, self.told.append)

    def remember_in(self, files: RunFiles) -> None:
        """Starts anew, with its state on disk."""
        self.participant = Participant(replace(self._equipment, state=files), None, self.told.append)

    def round(self, r: int, **changes: object) -> ReceivedRound:
        """A round from the server."""
        return ReceivedRound(task(self.layout, self.x, round=r, **changes), False, 0, None)

    def turn(self, server: Server) -> RunEnded | None:
        """One turn, after which the server has said everything it had to say."""
        try:
            return self.participant.take_turn(server)
        finally:
            assert not server._answers

    def kinds(self) -> list[type[Event]]:
        """What it has told, without details."""
        return [type(event) for event in self.told if event.level > event.level.DETAIL]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Before its first round."""
    return Client(tmp_path / "simulated")


def test_a_turn_is_pull_train_push(client: Client) -> None:
    server = Server(client.round(1), ACCEPTED)
    assert client.turn(server) is None
    assert server.asked == [("pull", 0, []), ("push", 1, START)]
    assert client.told[0].text() == "round 1: training"
    assert client.kinds() == [events.RoundTrained]
    end = RunEnded(1, 0.5, "")
    assert client.turn(Server(end)) is end


def test_what_arrived_damaged_is_sent_again_at_once(client: Client) -> None:
    server = Server(client.round(1), DAMAGED, DAMAGED, ACCEPTED)
    client.turn(server)
    assert [what[0] for what in server.asked] == ["pull", "push", "push", "push"]
    assert client.kinds() == [events.RoundTrained, events.UploadDamaged, events.UploadDamaged]


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in ON_THE_WAY])
def test_what_no_link_can_have_done_is_not_sent_again(client: Client, fault: Fault) -> None:
    server = Server(client.round(1), PushReply("REJECTED", fault, "no"), ACCEPTED)
    client.turn(server)
    assert [what[0] for what in server.asked] == ["pull", "push", "decline"]


def test_what_never_arrives_whole_is_a_lost_connection(client: Client) -> None:
    with pytest.raises(UnavailableError, match="round 1: the update does not arrive whole"):
        client.turn(Server(client.round(1), *[DAMAGED] * PUSH_TRIES))
    server = Server((0, 40), ACCEPTED)
    client.turn(server)
    assert server.asked == [("progress", 1), ("push", 1, (0, 40))]
    assert client.told[-1].text().startswith("round 1: going on with the upload after 40 of ")


def test_a_rejected_update_is_declined_and_the_client_goes_on(client: Client) -> None:
    rejected = PushReply("REJECTED", Fault.NOT_FINITE, "w: holds NaN")
    server = Server(client.round(1), rejected, ACCEPTED)
    client.turn(server)
    assert server.asked[-1] == ("decline", 1, "w: holds NaN")
    assert client.told[-1].text() == "round 1: update rejected: w: holds NaN"
    server = Server(client.round(2), LATE)
    client.turn(server)
    assert server.asked[0] == ("pull", 1, [])
    assert client.told[-1].text() == "round 2: the round has closed; this update changes nothing"


def test_a_connection_that_breaks_while_a_rejected_update_is_declined_is_tried_again(client: Client) -> None:
    rejected = PushReply("REJECTED", Fault.NOT_FINITE, "no")
    with pytest.raises(UnavailableError):
        client.turn(Server(client.round(1), rejected, UnavailableError("gone")))
    assert isinstance(client.participant.phase, Handing)
    server = Server(START, rejected, ACCEPTED)
    client.turn(server)
    assert [what[0] for what in server.asked] == ["progress", "push", "decline"]


def test_an_upload_that_another_stream_took_over_goes_on_after_it(client: Client) -> None:
    with pytest.raises(UnavailableError, match="the upload was taken over: newer"):
        client.turn(Server(client.round(1), SupersededError("newer")))
    server = Server((0, 8), PushReply("DUPLICATE", None, ""))
    client.turn(server)
    assert server.asked == [("progress", 1), ("push", 1, (0, 8))]
    assert isinstance(client.participant.phase, Waiting)


def test_a_restarted_server_gets_the_update_again(client: Client) -> None:
    client.turn(Server(client.round(1), ACCEPTED))
    server = Server(UpdateLost(1), ACCEPTED)
    client.turn(server)
    assert server.asked == [("pull", 1, []), ("push", 1, START)]
    assert client.told[-1].text() == "round 1: the server was restarted; handing the update in again"


def test_a_restarted_server_that_wants_an_older_round_gets_it_trained_again(client: Client) -> None:
    client.turn(Server(client.round(1), LATE))
    client.turn(Server(UpdateLost(1)))
    assert client.told[-1].text() == "round 1: the server was restarted; training it again"
    server = Server(client.round(1), ACCEPTED)
    client.turn(server)
    assert server.asked[0] == ("pull", 0, [])


def test_a_server_that_only_asks_for_updates_is_left(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("fedclient.run.turn.time.sleep", waits.append)
    for _ in range(RESENDS):
        client.turn(Server(UpdateLost(1)))
    with pytest.raises(RefusedError, match="has asked 6 times for round 1 and sends no other"):
        client.turn(Server(UpdateLost(1), ACCEPTED))
    assert len(waits) == RESENDS - 1, "the first time is what a restart looks like"
    assert waits == sorted(set(waits)), "each is longer than the one before"


def test_a_server_may_be_restarted_in_every_round(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedclient.run.turn.time.sleep", None)
    for r in range(1, 2 * RESENDS):
        client.turn(Server(client.round(r), ACCEPTED))
        client.turn(Server(UpdateLost(r), ACCEPTED))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"local_epochs": None, "local_steps": 100_001},
            "a round has 100001 local steps, .* --max-steps 100001",
        ),
        ({"local_epochs": 2**32 - 1}, r"a round has \d+ local steps"),
    ],
)
def test_a_round_that_is_too_long_is_refused(client: Client, changes: dict[str, Any], line: str) -> None:
    server = Server(client.round(1, **changes), ACCEPTED)
    with pytest.raises(RefusedError, match=line):
        client.turn(server)
    assert server.asked[-1][0] == "leave"


def test_a_round_that_diverges_is_declined(client: Client) -> None:
    server = Server(client.round(1, eta_l=1e30), UnavailableError("gone"))
    with pytest.raises(UnavailableError):
        client.turn(server)
    server = Server(client.round(1, eta_l=1e30), ACCEPTED)
    client.turn(server)
    assert server.asked[0] == ("pull", 0, [])
    assert server.asked[1][:2] == ("decline", 1)
    assert client.kinds() == [events.Diverged, events.Diverged]
    assert isinstance(client.participant.phase, Waiting)
    assert client.participant.phase.memory.last_round == 1


@pytest.mark.parametrize("telling", [ACCEPTED, UnavailableError("the server is gone"), RunError("no")])
@pytest.mark.parametrize("reason", [StateError("foreign"), WrongRunError("old"), OSError("no disk")])
def test_a_client_that_cannot_go_on_ends_with_its_reason_even_if_nobody_hears_it(
    client: Client, telling: Any, reason: Exception
) -> None:
    """UnavailableError instead would be retried, and the reason be met again and again."""
    client.participant._trainer.train = _raising(reason)  # type: ignore[method-assign]
    server = Server(client.round(1), telling)
    with pytest.raises(FedError) as caught:
        client.turn(server)
    expected = str(reason) if isinstance(reason, FedError) else "training failed: OSError('no disk')"
    assert str(caught.value) == expected
    assert not isinstance(caught.value, UnavailableError)
    assert server.asked[-1] == ("leave", 0, expected)
    unheard = [event for event in client.told if isinstance(event, events.LeavingUnheard)]
    assert len(unheard) == isinstance(telling, Exception)


def test_a_variate_that_is_damaged_is_asked_for_with_the_round(client: Client, tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    client.remember_in(files)
    feddyn = {"algorithm": "feddyn", "prox_weight": 0.1}
    client.turn(Server(client.round(1, **feddyn), ACCEPTED))
    (held,) = tmp_path.glob("variate-*")
    whole = files.read(1, client.layout.part(Purpose.MODEL))
    held.write_bytes(held.read_bytes()[:-1] + b"x")
    counted = replace(client.round(2, **feddyn), counted_round=1)
    server = Server(counted)
    assert client.turn(server) is None
    assert server.asked == [("pull", 1, [])]
    assert client.kinds()[-1] is events.StateDamaged
    server = Server(replace(counted, lost_variate=whole), ACCEPTED)
    client.turn(server)
    assert server.asked == [("pull", 1, [0]), ("push", 2, START)], "0: it has none at all"
    assert client.kinds()[-2:] == [events.VariateReturned, events.RoundTrained]


def _raising(error: Exception) -> Callable[..., Any]:
    def train(*_: Any) -> Any:
        raise error

    return train


def test_the_update_before_is_forgotten_before_the_next_one_is_trained(client: Client) -> None:
    """An update may be as large as the model, and training needs the memory."""
    client.turn(Server(client.round(1), ACCEPTED))
    assert isinstance(client.participant.phase, Waiting)
    assert client.participant.phase.handed_in is not None
    before = weakref.ref(client.participant.phase.handed_in)
    train = client.participant._trainer.train

    def watched(task: Task, state: Flat) -> Update:
        assert before() is None
        return train(task, state)

    client.participant._trainer.train = watched  # type: ignore[method-assign]
    client.turn(Server(client.round(2), ACCEPTED))
    assert client.kinds() == [events.RoundTrained, events.RoundTrained]


def test_progress_shows_in_how_far_a_client_has_come(client: Client) -> None:
    """Or a client on a bad link would give up although it gets on."""
    seen = [client.participant.reached]
    for server in (
        Server(client.round(1), UnavailableError("gone")),
        Server((0, 8), UnavailableError("gone")),
        Server((0, 16), UnavailableError("gone")),
        Server((0, 16), ACCEPTED),
    ):
        if server._answers[-1] is ACCEPTED:
            client.turn(server)
        else:
            with pytest.raises(UnavailableError):
                client.turn(server)
        seen.append(client.participant.reached)
    assert len(set(seen)) == len(seen)
    with pytest.raises(UnavailableError):
        client.turn(Server(UnavailableError("gone")))
    assert client.participant.reached == seen[-1]
