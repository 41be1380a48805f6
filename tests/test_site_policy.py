"""The site decides: its rules one by one, and over the wire against servers that ask for more."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from inspect import isfunction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from common.errors import ConfigError, RefusedError
from common.events import unheard
from common.tensors.layout import Purpose
from fedclient import cli
from fedclient.own_data import OwnDataset
from fedclient.policy import reference
from fedclient.policy.facts import Departure, Facts, Usage
from fedclient.policy.guarded import TOLD_WITH_UPDATE, GuardedConnection
from fedclient.policy.policy import KEYS, Policy, policy_of, read_policy
from fedclient.policy.rules import RULES, require_allowed
from fedclient.policy.told import ToldData
from fedclient.rpc.connection import Connection
from fedlab.simulation import simulate
from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from fedserver.console.status import ClientStatus
from fedserver.console.status_client import ask
from fedwire.source import open_capture
from fedwire.transfers import Transfers
from tests.hostile_server import Hostile, round_of, seat
from tests.killpoint import trap
from tests.processes import Federation, wait_until, without_metadata

DOCUMENT = Path(__file__).parent.parent / "docs" / "site-policy.md"
UPDATE = Departure(kind="update", run="a1", round=3, bytes=100)
THREE = Usage(frozenset({("a1", 1), ("a1", 2), ("b2", 9)}), 1000)
BROKEN: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("servers", ("fl.example:*",), {"server": "127.0.0.1:1"}, {"server": "fl.example:443"}),
    ("require_tls", True, {"encrypted": False}, {"encrypted": True}),
    ("min_examples", 20, {"examples": 19}, {"examples": 20}),
    ("runs", ("a*",), {"run": "b1"}, {"run": "a1"}),
    ("models", ("resnet*",), {"model": "cnn"}, {"model": "resnet8"}),
    ("fingerprints", ("0123abcd",), {"fingerprint": "0123abce" * 8}, {"fingerprint": "0123abcd" * 8}),
    ("modules", ("mine:net",), {"modules": ("mine:other",)}, {"modules": ("mine:net",)}),
    ("min_others", 2, {"others": 1}, {"others": 2}),
    ("max_rounds", 50, {"rounds": 51}, {"rounds": 50}),
    ("algorithms", ("fedpvr",), {"algorithm": "fedavg"}, {"algorithm": "fedpvr"}),
    ("codecs", ("int8", "topk"), {"codecs": ("topk:0.1", "fp32")}, {"codecs": ("topk:0.1", "int8")}),
    ("approval", True, {"approved": False}, {"approved": True}),
    ("max_rounds_per_day", 3, {"departure": UPDATE, "usage": THREE}, {"departure": UPDATE, "usage": Usage()}),
    (
        "max_bytes_per_day",
        1099,
        {"departure": UPDATE, "usage": THREE},
        {"departure": UPDATE, "usage": Usage(bytes=999)},
    ),
]


@pytest.mark.parametrize(("name", "value", "bad", "good"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_rule_refuses_what_breaks_it_and_nothing_else(
    name: str, value: Any, bad: dict[str, Any], good: dict[str, Any]
) -> None:
    policy = Policy(**{name: value})
    require_allowed(policy, Facts(**good))
    require_allowed(policy, Facts())
    if name != "modules":
        require_allowed(Policy(), Facts(**bad))
    with pytest.raises(RefusedError, match=f"^rule {name}: ") as caught:
        require_allowed(policy, Facts(**bad))
    assert caught.value.rule == name
    assert len(str(caught.value)) < 200, "a server keeps no more of it"


def test_an_update_that_is_sent_again_is_no_other_round() -> None:
    known = Usage(THREE.rounds | {("a1", 3)})
    require_allowed(Policy(max_rounds_per_day=3), Facts(departure=UPDATE, usage=known))


def test_every_key_has_a_rule_a_test_and_a_line_in_the_document() -> None:
    names = {rule.__name__ for rule in RULES}
    assert set(KEYS) - names == {"suppress_below", "round_examples"}, "these change what is told"
    assert names == {row[0] for row in BROKEN}
    document = DOCUMENT.read_text()
    example = re.search(r"```toml\n(.*?)```", document, re.DOTALL)
    assert example is not None
    assert tuple(tomllib.loads(example[1])) == KEYS
    assert reference.rewritten(document) == document, "say make docs"


def test_the_example_of_the_document_can_be_used(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "site.toml").write_text(example[1])
    found = policy_of(None, tmp_path)
    assert found is not None
    assert found[0].min_others == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_round = 3", "unknown key 'max_round'; known are servers, require_tls, "),
        ("max_rounds = '3'", "max_rounds: expected whole number from 1, got"),
        ("max_rounds = 0", "max_rounds: expected whole number from 1, got 0"),
        ("servers = 'a:1'", r"servers: expected \[text, ...\], got"),
        ("models = []", "models: an empty list would allow nothing; leave it out"),
        ("codecs = ['fp8']", "codecs: expected some of fp32, .*, got 'fp8'"),
        ("algorithms = ['sgd']", "algorithms: expected some of .*, got 'sgd'"),
        ("modules = ['os']", "expected module:factory, got 'os'"),
        ("fingerprints = ['xyz']", "fingerprints: expected 8 to 64 hexadecimal digits"),
        ("approval = ", "cannot be read: "),
    ],
)
def test_a_file_that_means_something_else_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"site.toml:? ?{message}"):
        read_policy(tmp_path / "site.toml")
    result = CliRunner().invoke(cli.main, ["run", "--site", str(tmp_path / "site.toml")])
    assert result.exit_code == 2
    assert re.search(message, result.output)


def test_small_classes_are_not_named_and_the_number_of_examples_is_rounded() -> None:
    own = OwnDataset("digits", "data", "0/30", unheard)
    counts = own.class_counts
    assert own.examples == sum(counts.values()) == 48
    told = ToldData(own, Policy(suppress_below=5, round_examples=20))
    assert told.examples == 40
    assert set(told.class_names) == {name for name, count in counts.items() if count >= 5} < set(counts)
    loaded = told.load(own.class_names, (1, 8, 8))
    assert len(loaded.labels) == 40, "what is told is what is used"
    assert set(loaded.labels) == set(own.load(own.class_names, (1, 8, 8)).labels)
    assert ToldData(own, Policy()).class_names == own.class_names
    assert Policy(suppress_below=5).told(4) == 0


SAYS_NOTHING = {"renew", "progress", "decline"}
"""Calls that carry nothing of the site's."""
ENVELOPE = {
    *("protocol_version", "client", "gives_signs", "message_crc32c", "run_id", "round", "update_id"),
    *("fingerprint", "declined", "diverged", "leaving", "refused_rule", "resume_from", "evaluates"),
    "canary_pull_seconds",
}
"""Fields of messages to the server that say nothing of the site's data."""
LEAVES = {"own_data", "class_names", "test_examples", "tensors", *TOLD_WITH_UPDATE}


def test_nothing_is_sent_past_the_gate() -> None:
    calls = {name for name, value in vars(Connection).items() if isfunction(value) and name[0] != "_"}
    assert calls - SAYS_NOTHING <= vars(GuardedConnection).keys(), "what these send is a departure"
    messages = (pb.JoinRequest, pb.OwnData, pb.UpdateHeader)
    fields = {field.name for message in messages for field in message.DESCRIPTOR.fields}
    assert fields == ENVELOPE | LEAVES, "a new field says something of the site's data, or it does not"


# Over the wire


def rounds_of(**changes: Any) -> Callable[[], Iterator[bytes]]:
    """Rounds with other headers."""

    def change(header: pb.RoundHeader) -> None:
        for name, value in changes.items():
            setattr(header, name, value)

    return lambda: round_of(change)


def evil(reply: pb.JoinReply) -> None:
    """Names code."""
    reply.model.name = "evil:main"


DEMANDED = {
    "module": ("modules", 'models = ["evil:*", "cnn"]'),
    "model": ("models", 'models = ["resnet8"]'),
    "fingerprint": ("fingerprints", 'fingerprints = ["00000000"]'),
    "codec": ("codecs", 'codecs = ["fp32"]'),
    "rounds": ("max_rounds", "max_rounds = 2"),
    "lie": ("max_rounds", "max_rounds = 2"),
    "alone": ("min_others", "min_others = 1"),
    "bytes": ("max_bytes_per_day", "max_bytes_per_day = 1000"),
}
"""Rule that each client refuses by, and its site.toml."""


def up(path: Path) -> list[tuple[str, str]]:
    """Everything in a capture that the client has sent: calls, and what is in them."""
    with open_capture(path, None, None, print) as capture:
        return [(message.rpc, message.content.kind) for message in capture.messages if message.up]


def test_a_server_that_asks_for_more_than_a_site_allows_gets_a_typed_refusal_and_no_update(
    federation: Federation,
) -> None:
    (federation.folder / "evil.py").write_text("open('ran', 'w')\ndef main(n): ...\n")
    seats = {"module": seat(evil), "rounds": seat(lambda reply: setattr(reply, "rounds", 3))}
    server = Hostile(seats, {"codec": rounds_of(update_codec="int8"), "lie": rounds_of(rounds=1, round=3)})
    with server.serving():
        for name, (_, text) in DEMANDED.items():
            (federation.folder / f"{name}.toml").write_text(text)
            own = ("--server", server.address, "--name", name, "--state-dir", f"state/{name}")
            wire = ("--site", f"{name}.toml", "--capture", f"{name}.fedwire")
            federation.start(name, "fedclient", "run", *own, *wire)
        for name, (rule, _) in DEMANDED.items():
            assert federation.exit_code(name) == 1
            line = federation.log(name).splitlines()[-1]
            assert line.startswith(f"Error: rule {rule}: "), line
            assert server.rules[name] == rule
            assert line == f"Error: {server.reasons[name]}"
            asked = [("Join", "request"), *[("PullRound", "request")] * server.calls[name]["PullRound"]]
            sent = [each for each in up(federation.folder / f"{name}.fedwire") if each[0] != "Renew"]
            assert sent == [*asked, ("PushUpdate", "header")], "the refusal itself, and nothing after it"
            assert not (federation.folder / "state" / name / "outbox.jsonl").exists()
    assert not (federation.folder / "ran").exists()
    assert all(server.calls[name]["PullRound"] == 0 for name in ("module", "model", "rounds", "alone"))


def test_nothing_at_all_is_sent_to_a_server_that_is_not_allowed(federation: Federation) -> None:
    server = Hostile({}, {})
    with server.serving():
        for name, text in (("servers", 'servers = ["fl.example:*"]'), ("min_examples", "min_examples = 99")):
            state = federation.folder / "state" / name
            state.mkdir(parents=True)
            (state / "site.toml").write_text(text)
            data = ("--dataset", "digits", "--shard", "0/30")
            federation.client(name, *data, server=server.address)
            assert federation.exit_code(name) == 1
            assert federation.log(name).splitlines()[-1].startswith(f"Error: rule {name}: ")
    assert not server.calls


def approvals(state_dir: Path) -> list[dict[str, Any]]:
    """As a script sees them."""
    result = CliRunner().invoke(cli.main, ["approve", "--list", "--json", "--state-dir", str(state_dir)])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.output)
    return found


def outbox(state_dir: Path, *words: str) -> Any:
    """As a script sees it."""
    result = CliRunner().invoke(cli.main, ["outbox", *words, "--json", "--state-dir", str(state_dir)])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_site_approves_a_run_counts_its_rounds_and_leaves_and_the_others_go_on(
    federation: Federation,
) -> None:
    state = federation.folder / "state" / "berlin"
    state.mkdir(parents=True)
    rules = "approval = true\nmax_rounds_per_day = 1\nsuppress_below = 13\nround_examples = 50\n"
    (state / "site.toml").write_text(rules)
    # Of 160 examples, of which 150 are told, 3 are kept for validation: an accuracy of so few is not told.
    settings = ["--num-clients", "2", "--rounds", "3", "--local-steps", "2", "--eval-every", "0"]
    federation.server("--validation", "0.02", *settings)
    federation.client("a")
    federation.client("berlin", "--capture", "berlin.fedwire", "--dataset", "digits", "--shard", "0/9")
    kind = federation.wait_for("berlin", r"waiting for approval of (\w+): fedpvr with model cnn")
    federation.wait_for("server", "site berlin has yet to decide, under its rule approval")
    federation.wait_for_states(berlin="held")
    assert [(each["kind"], each["approved"]) for each in approvals(state)] == [(kind, None)]
    assert [row["kind"] for row in outbox(state)] == ["join"]
    for wrong in (["x"], [], ["--list", kind]):
        refused = CliRunner().invoke(cli.main, ["approve", *wrong, "--state-dir", str(state)])
        assert (refused.exit_code, refused.output[:16]) == (2, "Error: expected ")
    result = CliRunner().invoke(cli.main, ["approve", kind[:6], "--state-dir", str(state)])
    assert result.exit_code == 0, result.output
    assert federation.exit_code("berlin") == 1
    refusal = "rule max_rounds_per_day: updates have left for 1 rounds today (UTC), and 1 is all that may"
    assert federation.log("berlin").splitlines()[-1] == f"Error: {refusal}"
    assert federation.exit_code("a") == 0
    assert federation.exit_code("server") == 3, "somebody left, and no setting says that this is fine"
    assert f"site berlin refused: {refusal}" in federation.log("server")
    assert [record["updates"] for record in federation.rounds()] == [2, 1, 1]
    assert federation.rounds()[1]["absent"] == {"berlin": f"left: {refusal}"}
    joined, update = outbox(state)
    assert (joined["receipt"], joined["told"]) == ("SEATED", ["examples", "classes"])
    assert (update["kind"], update["round"], update["receipt"]) == ("update", 1, "ACCEPTED")
    assert update["run"] == joined["run"]
    assert update["told"] == ["examples", "steps", "loss", "train_seconds"]
    with open_capture(federation.folder / "berlin.fedwire", None, None, print) as capture:
        asked = pb.JoinRequest.FromString(capture.data(capture.messages[0])).own_data
        assert (asked.examples, list(asked.class_names)) == (150, list("01234569")), (
            "of 7 and 8 there are too few"
        )
        transfers = Transfers(capture)
        received, sent = (next(t for t in transfers if t.up is up) for up in (False, True))
        x, y = transfers.values(received), transfers.values(sent)
        model, own = received.encoding.layout, sent.encoding.layout
        assert isinstance(sent.header, pb.UpdateHeader)
        assert not sent.header.HasField("validation_accuracy")
        assert update["tensors"] == len(own.specs)
        assert update["bytes"] == sum(message.content.payload for message in sent.chunks)
        pairs = zip(model.indices(Purpose.MODEL), own.indices(Purpose.MODEL), strict=True)
        moved = [model.array(x, i).astype(float) - own.array(y, k) for i, k in pairs]
    assert update["norm"] == pytest.approx(np.sqrt(sum(np.square(each).sum() for each in moved)))
    assert outbox(state, "verify") == {
        "entries": 4,
        "torn_bytes": 0,
        "key": "",
        "key_changes": [],
        "problems": [],
    }


def test_a_refusal_is_in_the_status_of_a_running_server_by_its_rule(federation: Federation) -> None:
    (federation.folder / "site.toml").write_text("max_rounds = 2\n")
    federation.server(*["--num-clients", "2", "--rounds", "3"])
    federation.client("a", through=trap("stop", "before training"))
    federation.client("berlin", "--site", "site.toml")
    assert federation.exit_code("berlin") == 1

    def berlin() -> ClientStatus:
        return {client.name: client for client in ask(federation.address).clients}["berlin"]

    wait_until(lambda: berlin().state == "left", "the server knows")
    assert berlin().rule == "max_rounds"
    assert berlin().reason == "rule max_rounds: the run has 3 rounds, this site takes part in runs of 2"


def test_a_client_killed_between_its_outbox_and_the_wire_goes_on_and_counts_once(
    federation: Federation,
) -> None:
    (federation.folder / "site.toml").write_text("max_rounds_per_day = 2\n")
    federation.server(*["--num-clients", "1", "--rounds", "2", "--local-steps", "1", "--eval-every", "0"])
    federation.client("a", "--site", "site.toml", through=trap("kill", "mid-upload"))
    federation.wait_for_death("a")
    federation.client("a", "--site", "site.toml")
    federation.finish()
    rows = outbox(federation.folder / "state" / "a")
    assert [(row["round"], row["receipt"]) for row in rows] == [(1, None), (1, "ACCEPTED"), (2, "ACCEPTED")]
    assert rows[0]["update"] == rows[1]["update"]
    assert rows[0]["norm"] == rows[1]["norm"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("count", range(1, 14))
@pytest.mark.parametrize("point", ["before fsync", "after fsync"])
def test_a_client_killed_at_any_write_of_its_outbox_ends_in_the_same_bits(
    federation: Federation, point: str, count: int
) -> None:
    settings = ["--num-clients", "1", "--rounds", "3", "--local-steps", "1", "--eval-every", "0"]
    config = RunConfig(num_clients=1, rounds=3, local_steps=1, eval_every=0)
    simulate(config, federation.folder / "undisturbed", lambda line: None)
    (federation.folder / "site.toml").write_text("max_rounds_per_day = 3\n")
    federation.server(*settings)
    federation.client("a", "--site", "site.toml", through=trap("kill", point, count))
    federation.wait_for_death("a")
    federation.client("a", "--site", "site.toml")
    federation.finish()
    expected = federation.folder / "undisturbed" / "model.safetensors"
    assert federation.bytes("model") == without_metadata(expected)
    state = federation.folder / "state" / "a"
    assert outbox(state, "verify")["problems"] == []
    assert {row["round"] for row in outbox(state)} == {1, 2, 3}
    assert sum(row["receipt"] == "ACCEPTED" for row in outbox(state)) >= 2
