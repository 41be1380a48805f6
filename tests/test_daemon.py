"""The client daemon through trouble: no server yet, kill -9, lost state, signals, bad set-ups."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator

import pytest

from common.errors import ExitCode
from tests.killpoint import trap
from tests.processes import Federation, children, lasting_address, wait_for_end

FLAGS = ["--num-clients", "2", "--rounds", "6", "--alpha", "0.3", "--local-steps", "2", "--seed", "5"]
FLAGS += ["--width", "0.25"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation in which nothing went wrong, with clients that came before the server."""
    federation = Federation(tmp_path_factory.mktemp("undisturbed"))
    federation.address = lasting_address()
    for name in ("a", "b"):
        federation.client(name)
    federation.wait_for("a", "no server answers")
    federation.server(*FLAGS, listen=federation.address)
    federation.finish()
    yield federation
    federation.close()


def assert_same_result(federation: Federation, other: Federation) -> None:
    """Byte for byte."""
    for file in ("model", "control"):
        assert federation.bytes(file) == other.bytes(file)


def test_clients_wait_for_a_server_that_is_not_there_yet(undisturbed: Federation) -> None:
    assert undisturbed.log("a").count("no server answers") == 1, "one line, however long it takes"
    assert "run finished after round 6" in undisturbed.log("a")
    assert undisturbed.log("a").count("joining") == 1


def test_a_killed_client_that_comes_back_changes_nothing(
    undisturbed: Federation, federation: Federation
) -> None:
    federation.server(*FLAGS)
    federation.client("a")
    federation.client("b", through=trap("kill", "before training", 3))
    federation.wait_for_death("b")
    federation.client("b")
    federation.finish()
    assert_same_result(federation, undisturbed)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_client_that_is_told_to_end_says_good_bye_and_changes_nothing_when_it_comes_back(
    undisturbed: Federation, federation: Federation, number: signal.Signals, code: int
) -> None:
    federation.server(*FLAGS)
    federation.client("a")
    federation.client("b", process="first", through=trap("stop", "before training", 3))
    federation.wait_for_stop("first")
    federation.processes["first"].send_signal(number)
    federation.go_on("first")
    assert federation.exit_code("first") == code
    assert f"stopped by {number.name} while training round 3; the server knows" in federation.log("first")
    del federation.processes["first"]
    federation.wait_for("server", "b has stopped and may come back; round 3 waits for it")
    federation.wait_for_states(a="answered", b="stopped")
    federation.client("b")
    federation.finish()
    assert "b is back" in federation.log("server")
    assert_same_result(federation, undisturbed)


def test_a_client_that_vanishes_in_its_upload_is_named_at_once(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--rounds", "1", "--local-steps", "1")
    federation.client("a")
    federation.client("b", "--uplink", "100kbit")
    federation.wait_for_states(a="answered", b="uploading")
    federation.kill("b")
    federation.wait_for(
        "server", r"b hung up \d+ s ago and has not come back; round 1 waits for it \(1 of 2 in\)"
    )
    federation.wait_for_states(a="answered", b="not heard of")
    federation.client("b")
    federation.finish()
    assert "b is back" in federation.log("server")


@pytest.mark.slow
def test_a_client_that_is_unplugged_is_named(undisturbed: Federation, federation: Federation) -> None:
    """A stopped process is like one behind a cut cable: the kernel keeps its connections, nobody answers."""
    federation.server(*FLAGS)
    federation.client("a")
    federation.client("b", through=trap("stop", "before training", 3))
    federation.wait_for("server", r"b has not been heard of for \d+ s; round 3 waits for it \(1 of 2 in\)")
    federation.wait_for_states(a="answered", b="not heard of")
    federation.go_on("b")
    federation.finish()
    assert "b is back" in federation.log("server")
    assert_same_result(federation, undisturbed)


def test_a_client_that_lost_its_state_gets_c_i_back(undisturbed: Federation, federation: Federation) -> None:
    federation.server(*FLAGS)
    federation.client("a")
    federation.client("b", through=trap("kill", "before training", 3))
    federation.wait_for_death("b")
    shutil.rmtree(federation.folder / "state" / "b")
    federation.client("b")
    federation.finish()
    assert "came back from the server" in federation.log("b")
    assert_same_result(federation, undisturbed)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_signals_end_both_sides_cleanly(federation: Federation, number: signal.Signals, code: int) -> None:
    federation.server("--num-clients", "2", "--rounds", "100000")
    federation.client("a")
    federation.client("b")
    federation.wait_for("server", "round 2/100000: ")
    (worker,) = children(federation.processes["server"].pid)
    for name in ("a", "server"):
        federation.processes[name].send_signal(number)
        assert federation.exit_code(name) == code, federation.log(name)
        assert "Traceback" not in federation.log(name)
    wait_for_end(worker)


def test_the_worker_does_not_outlive_a_killed_server(federation: Federation) -> None:
    federation.server("--num-clients", "1")
    federation.wait_for("server", "waiting for clients")
    (worker,) = children(federation.processes["server"].pid)
    federation.kill("server")
    wait_for_end(worker)


def test_a_client_gives_up_on_a_server_that_never_comes(federation: Federation) -> None:
    federation.client("a", "--give-up", "0.5", server="127.0.0.1:9")
    assert federation.exit_code("a") == 1
    last = federation.log("a").splitlines()[-1]
    assert last.startswith("Error: no server answers at 127.0.0.1:9")
    assert "gave up after" in last


def test_clients_of_one_name_or_state_do_not_collide(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--rounds", "1")
    federation.client("a")
    federation.wait_for("server", "a is here")
    federation.start(
        "second", "fedclient", "run", "--server", federation.address, "--name", "x", "--state-dir", "state/a"
    )
    assert federation.exit_code("second") == 1
    assert "is in use by another client" in federation.log("second")
    federation.start(
        "third", "fedclient", "run", "--server", federation.address, "--name", "a", "--state-dir", "state/z"
    )
    assert federation.exit_code("a") == 1
    assert "another client joined as 'a'" in federation.log("a")
    del federation.processes["a"], federation.processes["second"]
    federation.client("b")
    federation.finish()


def test_a_client_that_hangs_up_gives_its_seat_back(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--rounds", "1")
    federation.client("gone")
    federation.wait_for("server", "gone is here")
    federation.kill("gone")
    federation.wait_for_states(gone="absent")
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    assert "run finished" in federation.log("server")


def test_clients_may_bring_their_own_data(federation: Federation) -> None:
    federation.server("--num-clients", "3", "--rounds", "2", "--weighting", "examples")
    federation.client("a", "--dataset", "digits", "--shard", "0/3")
    federation.client("b", "--dataset", "digits", "--shard", "1/3")
    federation.client("c")
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [3, 3]
    assert "client 2 of 3, 479 examples" in federation.log("b")


def test_an_answered_client_that_restarts_before_the_next_round_does_not_train_again(
    undisturbed: Federation, federation: Federation
) -> None:
    """Its c_i may be moved on at any moment then, and training from it again would spoil the next round."""
    asked = "a client asks for a round"
    federation.server(*FLAGS, through=trap("say", asked, 0))
    federation.client("b", through=trap("stop", "a round has come"))
    federation.client("a")
    federation.wait_for_stop("b")
    federation.wait_for_states(a="answered", b="training")
    federation.wait_for("server", f"{asked}: 3")
    federation.kill("a")
    federation.client("a")
    federation.wait_for("server", f"{asked}: 4")
    federation.go_on("b")
    federation.finish()
    assert len(re.findall(r"round 1: \d+ steps", federation.log("a"))) == 1
    assert_same_result(federation, undisturbed)


def test_a_client_that_cannot_go_on_says_so_and_the_others_do(federation: Federation) -> None:
    """The model of b fails in training: the server hears why, and a finishes alone."""
    source = (federation.folder / "problem.py").read_text()
    broken = Federation(federation.folder / "broken")
    (broken.folder / "problem.py").write_text(
        source.replace("nn.Tanh(), nn.Linear(7, 5)", "Broken(), nn.Linear(7, 5)")
        + "\n\nclass Broken(nn.Module):\n    def forward(self, x):\n        raise OSError('no disk')\n"
    )
    try:
        federation.server(
            *[
                "--num-clients",
                "2",
                "--rounds",
                "3",
                "--model",
                "problem:network",
                "--dataset",
                "problem:data",
            ]
        )
        federation.client("a")
        broken.client("b", server=federation.address)
        assert broken.exit_code("b") == 1
        assert broken.log("b").splitlines()[-1] == "Error: training failed: OSError('no disk')"
        assert federation.exit_code("a") == 0
        assert federation.exit_code("server") == 3, "somebody left, and no setting says that this is fine"
        assert [record["updates"] for record in federation.rounds()] == [1, 1, 1]
        assert federation.rounds()[0]["absent"] == {"b": "left: training failed: OSError('no disk')"}
        lines = federation.log("server").splitlines()
        assert any("b leaves: training failed" in line for line in lines)
        assert any("run finished: accuracy" in line and ", 3 rounds in" in line for line in lines)
        assert any("took part: a in 3, b in 0 of 3 rounds" in line for line in lines)
        assert any("the model is run/model.safetensors; next: fedlab report run" in line for line in lines)
        assert "b is NOT in the model: left: training failed" in lines[-2]
        assert lines[-1].startswith("Error: the run is finished, but went on without b")
        assert "took part in 3 rounds" in federation.log("a")
    finally:
        broken.close()


def test_a_client_whose_site_allows_no_plug_in_leaves_and_both_sides_say_why(federation: Federation) -> None:
    federation.server(*["--num-clients", "1", "--model", "problem:network", "--dataset", "problem:data"])
    federation.start("b", "fedclient", "run", "--server", federation.address, "--name", "b")
    assert federation.exit_code("b") == 1
    line = "to allow it, start the client with --allow-plugin problem:network"
    assert federation.log("b").splitlines()[-1].endswith(line)
    assert re.search(f"site b refused: rule modules: .*{line}", federation.log("server"))


def test_a_diverging_federation_ends_with_a_reason(federation: Federation) -> None:
    federation.server("--num-clients", "2", "--rounds", "3", "--eta-l", "1e30")
    for name in ("a", "b"):
        federation.client(name)
    assert federation.exit_code("server") == ExitCode.DIVERGED
    assert "Error: round 1: no client has an update to give: the loss is" in federation.log("server")
    for name in ("a", "b"):
        assert federation.exit_code(name) == 1
        assert "lower --eta-l" in federation.log(name)
        assert "the run ended early" in federation.log(name).splitlines()[-1]


def test_a_run_that_most_clients_have_no_update_for_ends_with_a_reason(federation: Federation) -> None:
    """Two of three clients diverge round after round: half of them is the quorum."""
    wild = Federation(federation.folder / "wild")
    source = (wild.folder / "problem.py").read_text()
    (wild.folder / "problem.py").write_text(
        source.replace("nn.Tanh()", "nn.Threshold(float('inf'), float('nan'))")
    )
    try:
        flags = "--num-clients 3 --rounds 3 --model problem:network --dataset problem:data"
        federation.server(*flags.split())
        federation.client("a", "--dataset", "problem:data")
        for name in ("b", "c"):
            wild.client(name, "--dataset", "problem:data", server=federation.address)
        assert federation.exit_code("server") == ExitCode.DIVERGED
        assert re.search(
            # Whether the third has answered by then is a matter of luck.
            r"Error: round 1: (1 of 3 clients have an update to give; --quorum 0.5 needs 2|no client has .*):"
            r" the loss is",
            federation.log("server"),
        )
        assert federation.exit_code("a") == 1
        assert "the run ended early: round 1: " in federation.log("a").splitlines()[-1]
    finally:
        wild.close()


def test_another_model_under_the_same_name_is_recognised(federation: Federation) -> None:
    other = Federation(federation.folder / "other")
    source = (other.folder / "problem.py").read_text()
    (other.folder / "problem.py").write_text(
        source.replace("nn.Linear(6, 7)", "nn.Linear(6, 8)").replace("nn.Linear(7, 5)", "nn.Linear(8, 5)")
    )
    try:
        federation.server(*["--num-clients", "1", "--model", "problem:network", "--dataset", "problem:data"])
        other.client("a", server=federation.address)
        assert other.exit_code("a") == 1
        assert "install the same code on both" in other.log("a").splitlines()[-1]
    finally:
        other.close()
