"""A hostile server against clients with default settings: nothing runs, nothing is written, little is spent.

All clients run at once, each with a demand of its own and in the same directory, which is full of code that
would leave a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedlab.processes.nursery import Forked
from fedpvr.v1 import federation_pb2 as pb
from tests.hostile_server import Hostile, many_tensors, round_of, seat
from tests.processes import Federation, wait_until

AT_ONCE = 4
MOST_MB = 250
"""More than a client that is turned down at once has at its peak."""
MOST_CALLS = 20


def model(**changes: Any) -> pb.JoinReply:
    """A seat with another model."""

    def change(reply: pb.JoinReply) -> None:
        for name, value in changes.items():
            if isinstance(value, list):
                del getattr(reply.model, name)[:]
                getattr(reply.model, name).extend(value)
            else:
                setattr(reply.model, name, value)

    return seat(change)


def shard(dataset: str = "digits", indices: Any = range(50)) -> pb.JoinReply:
    """A seat with other data."""
    return seat(lambda reply: reply.shard.CopyFrom(pb.Shard(dataset=dataset, indices=indices)))


def run_id(text: str) -> pb.JoinReply:
    """A seat in a run of another name."""
    return seat(lambda reply: setattr(reply, "run_id", text))


def lease(seconds: float) -> pb.JoinReply:
    """A seat that wants signs of life."""
    return seat(lambda reply: setattr(reply, "lease_seconds", seconds))


def big_pictures() -> pb.JoinReply:
    """All digits, as large as a picture may be."""
    reply = model(image_shape=[1, 4000, 4000])
    reply.shard.CopyFrom(pb.Shard(dataset="digits", indices=range(1437)))
    return reply


NOT_ALLOWED = "code on this client's machine that its owner has not allowed"
NOT_BUILT_IN = "is not built in here"
SEATS: dict[str, tuple[pb.JoinReply, str]] = {
    "model-plugin": (model(name="evil:main"), NOT_ALLOWED),
    "model-known-plugin": (model(name="problem:network"), NOT_ALLOWED),
    "model-dotted": (model(name="Downloads.some_zip.evil:main"), NOT_ALLOWED),
    "model-os": (model(name="os:system"), NOT_ALLOWED),
    "model-builtins": (model(name="script.__builtins__:exec"), NOT_ALLOWED),
    "model-dunder": (model(name="evil:__builtins__"), NOT_ALLOWED),
    "model-path": (model(name="../../evil:main"), NOT_BUILT_IN),
    "model-long": (model(name="m:" + "f" * 100_000), NOT_BUILT_IN),
    "model-escapes": (model(name="\x1b[2Jcnn"), NOT_BUILT_IN),
    "data-plugin": (shard("evil:main"), NOT_ALLOWED),
    "data-imported": (shard("helpers:rmtree"), NOT_ALLOWED),
    "data-stdlib": (shard("test.regrtest:main"), NOT_ALLOWED),
    "data-missing": (shard("imagefolder"), "is not a directory; expected one folder per class"),
    "data-unknown": (shard("../secret"), NOT_BUILT_IN),
    "width-huge": (model(width=1e6), "expected a width up to 64, got 1000000.0"),
    "width-nan": (model(width=float("nan")), "expected a width up to 64, got nan"),
    "width-large": (model(name="vgg11", width=60.0), r"the model has \d{11} parameters, .* --max-parameters"),
    "classes-huge": (model(num_classes=2**32 - 1), "expected up to 100000 classes"),
    "classes-many": (model(num_classes=100_000), "expected up to 100000 classes and as many names"),
    "image-huge": (model(image_shape=[3, 4000, 4000]), "expected examples of up to 16777216 values"),
    "image-big": (big_pictures(), r"1437 examples of shape 1x4000x4000 would take about 43853 MB"),
    "image-none": (model(image_shape=[]), "expected examples of up to"),
    "image-dims": (model(image_shape=[1] * 100_000), "expected examples of up to"),
    "dtype-function": (model(dtype="load"), "a model is float32 or float64, got 'load'"),
    "mean-long": (model(mean=[0.5] * 1000), "mean has a number per channel, got 1000"),
    "std-zero": (model(std=[0.0]), "mean has finite|std has finite numbers"),
    "indices-equal": (shard(indices=[7] * 4_000_000), "the 4000000 examples of a shard must differ"),
    "indices-twice": (shard(indices=[7, 8, 7]), "the 3 examples of a shard must differ"),
    "indices-far": (shard(indices=[2**32 - 1]), "but digits has 1437 here"),
    "run-slashes": (run_id("../../outside"), "a run id has hexadecimal digits"),
    "run-absolute": (run_id("/tmp/outside"), "a run id has hexadecimal digits"),
    "fingerprint": (model(fingerprint="00" * 32), "install the same code on both"),
    "lease-nan": (lease(float("nan")), "a lease has a length in seconds"),
}


def header(**changes: Any) -> Callable[[], Iterator[bytes]]:
    """A round with another header."""

    def change(found: pb.RoundHeader) -> None:
        for name, value in changes.items():
            setattr(found, name, value)

    return lambda: round_of(change)


def only_resend() -> Iterator[bytes]:
    """Asks for an update that the client has never made."""
    yield pb.RoundFrame(resend=pb.Resend(round=7)).SerializeToString()


ROUNDS: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "steps-endless": (header(local_steps=2**32 - 1), "a round has 4294967295 local steps, .* --max-steps"),
    "epochs-endless": (header(local_epochs=2**32 - 1), r"a round has \d+ local steps, .* --max-steps"),
    "lease-tiny": (header(local_steps=2**32 - 1), "a round has 4294967295 local steps"),
    "resend-endless": (only_resend, "has asked 6 times for round 7 and sends no other"),
    "codec-unknown": (header(update_codec="xxx"), "codec 'xxx', .*; update this release"),
    "codec-none-kept": (header(update_codec="topk:0"), "codec 'topk:0', .*; update this release"),
    "codec-nan-kept": (header(control_codec="topk:nan"), "codec 'topk:nan', .*; update this release"),
    "algorithm-unknown": (header(algorithm="exec"), "the run uses algorithm 'exec', .*; update this release"),
    "eta-nan": (header(eta_l=float("nan")), "eta_l must be positive and finite"),
    "tensors-many": (lambda: round_of(lambda h: many_tensors(h, 20_000)), "no such MODEL tensor in this run"),
    "tensors-more": (lambda: round_of(lambda h: many_tensors(h, 20_001)), "at most 20000 tensors"),
    "counted-elsewhere": (header(counted_round=9, algorithm="feddyn"), "the variate of round 9, .* not here"),
}
DEMANDS = {name: line for name, (_, line) in [*SEATS.items(), *ROUNDS.items()]}

TRAPS = {
    "evil.py": "",
    "script.py": "",
    "helpers.py": "from shutil import rmtree\n",
    "Downloads/some_zip/evil.py": "",
    "test/regrtest.py": "",
    "train/picture.txt": "",
}


class Aftermath:
    """What is left when all clients have ended."""

    def __init__(self, federation: Federation, server: Hostile) -> None:
        self._federation = federation
        self.server = server
        self.written = {
            str(path.relative_to(federation.folder))
            for path in federation.folder.rglob("*")
            if path.is_file()
        }

    def log(self, name: str) -> str:
        """What a client said."""
        return self._federation.log(name)

    def process(self, name: str) -> Forked:
        """As it ended."""
        process = self._federation.processes[name]
        assert isinstance(process, Forked)
        return process


def hostile() -> Hostile:
    """A server with all demands."""
    seats = {name: reply for name, (reply, _) in SEATS.items()} | {"lease-tiny": lease(1e-9)}
    return Hostile(seats, {name: frames for name, (frames, _) in ROUNDS.items()})


def lay_traps(folder: Path) -> None:
    """Code that leaves a mark when it is imported."""
    for name, source in TRAPS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        mark = f"import pathlib\npathlib.Path({str(folder / 'ran')!r}).touch()\n"
        (folder / name).write_text(f"{mark}{source}def main(*_): pass\n")


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    """Of all demands, a few at a time."""
    federation = Federation(tmp_path_factory.mktemp("hostile"))
    lay_traps(federation.folder)
    server = hostile()
    running: list[str] = []
    with server.serving():
        for name in sorted(DEMANDS, key=lambda name: name != "resend-endless"):
            own = ("--server", server.address, "--name", name, "--state-dir", f"state/{name}")
            federation.start(name, "fedclient", "run", *own)
            running.append(name)
            wait_until(lambda: _few(federation, running), "some clients end")
        for name in running:
            federation.exit_code(name)
    yield Aftermath(federation, server)
    federation.close()


def _few(federation: Federation, names: list[str]) -> bool:
    return sum(federation.processes[name].poll() is None for name in names) < AT_ONCE


@pytest.mark.parametrize("name", DEMANDS)
def test_a_client_refuses_what_a_hostile_server_demands(aftermath: Aftermath, name: str) -> None:
    """In one line, without much work, and without telling of its machine."""
    lines = aftermath.log(name).splitlines()
    assert aftermath.process(name).returncode in (1, 2), lines
    assert [line for line in lines if line.startswith("Error: ")] == lines[-1:]
    assert re.search(DEMANDS[name], lines[-1])
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    calls = aftermath.server.calls[name]
    assert sum(calls.values()) <= MOST_CALLS, calls
    assert calls["PullRound"] <= 6
    if name not in ("run-slashes", "run-absolute", "lease-nan"):  # Who has no seat cannot leave it.
        reason = aftermath.server.reasons[name]
        assert re.search(DEMANDS[name], reason)
        assert "/tmp" not in reason
        assert len(reason) <= 500


def test_a_path_is_for_the_clients_own_log(aftermath: Aftermath) -> None:
    assert re.search(r"Error: data/train is not a directory", aftermath.log("data-missing"))
    assert aftermath.server.reasons["data-missing"].startswith("[a path of this client] is not a directory")


def test_nothing_runs_because_a_hostile_server_names_it(aftermath: Aftermath) -> None:
    assert "ran" not in aftermath.written
    assert not [name for name in aftermath.written if "__pycache__" in name]
    assert "train/picture.txt" in aftermath.written


def test_nothing_is_written_outside_the_state_directory(aftermath: Aftermath, tmp_path_factory: Any) -> None:
    ours = {"problem.py", *TRAPS, *(f"{name}.log" for name in DEMANDS)}
    strange = {
        name for name in aftermath.written - ours if not re.match(r"state/[\w-]+/|fedpvr-gate-\d+/", name)
    }
    assert not strange
    assert not list(Path(tmp_path_factory.getbasetemp()).rglob("outside"))
    assert not Path("/tmp/outside").exists()


def test_what_a_hostile_server_announces_takes_no_memory(aftermath: Aftermath) -> None:
    """But for the message itself."""
    peaks = {name: round(aftermath.process(name).peak_mb) for name in DEMANDS}
    print(peaks)
    least = min(peaks.values())
    assert {name: peak for name, peak in peaks.items() if peak > least + MOST_MB} == {}


def test_a_site_that_allows_a_plug_in_runs_it(federation: Federation) -> None:
    """Which also shows that the traps work."""
    lay_traps(federation.folder)
    server = hostile()
    with server.serving():
        for name, flag in (("model-plugin", "--allow-plugin"), ("model-known-plugin", "--model")):
            own = ("--server", server.address, "--name", name, "--state-dir", f"state/{name}")
            federation.start(name, "fedclient", "run", *own, flag, "evil:main")
            assert federation.exit_code(name) == (2 if flag == "--allow-plugin" else 1)
            assert (federation.folder / "ran").exists()
    assert "expected factory(num_classes) -> nn.Module, got NoneType" in server.reasons["model-plugin"]
    line = "the run trains model 'problem:network', this client takes evil:main only; change its --model"
    assert federation.log(name).splitlines()[-1] == f"Error: rule model: {line}"
    assert server.reasons[name] == f"rule model: {line}"
