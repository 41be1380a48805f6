"""Federations as a program or a notebook has them: simulate, serve, join, and what is left of a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import TensorDataset

import fedclient
import fedlab
import fedserver
from common.data.given import arrays
from common.errors import CancelledError, ConfigError, DataError, RefusedError, StateError
from common.events import Event, unheard
from common.models.spec import ModelSpec
from fedclient.events import Joining
from fedclient.given import GivenExamples
from fedclient.site import Site
from fedlab.api.bar import bar
from fedlab.api.table import Table
from fedlab.models.export import export_model
from fedlab.simulation import simulate
from fedserver.api.settings import Settings, configured, flags
from fedserver.cli import main, resolve
from fedserver.config import RunConfig
from fedserver.events.rounds import RoundClosed
from tests.processes import wait_until, without_metadata

ROOT = Path(__file__).parent.parent
SHORT: dict[str, Any] = {"num_clients": 2, "rounds": 2, "local_steps": 3}


TASK: dict[str, Any] = {
    "num_clients": 2,
    "model": "mlp",
    "input_shape": "4",
    "input_dtype": "float32",
    "classes": ("low", "high"),
    "validation": 0.2,
}


def first_weights(folder: Path) -> str:
    """A file with which a server of the task needs no torch, and starts at once."""
    spec = ModelSpec(name="mlp", num_classes=2, width=1.0, image_shape=(4,), dtype="float32")
    export_model(spec, 0, folder / "first.safetensors")
    return str(folder / "first.safetensors")


class Line(nn.Sequential):
    """A linear classifier of four numbers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(4, num_classes))


def points(count: int = 80) -> tuple[Any, Any]:
    """Two clouds."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(count).normal(3.0 * labels[:, None], 1.0, (count, 4))
    return images.astype(np.float32), labels


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory of its own, in which runs/ and .fedclient/ come about."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> fedlab.Run:
    """A run that many tests look at."""
    return fedlab.simulate(model="mlp", run_dir=tmp_path_factory.mktemp("short"), **SHORT)


def test_a_program_gets_the_run_that_the_command_makes(short: fedlab.Run, tmp_path: Path) -> None:
    simulate(RunConfig(model="mlp", **SHORT), tmp_path / "command", unheard)
    ours, theirs = (
        without_metadata(path / "model.safetensors") for path in (short.path, tmp_path / "command")
    )
    assert ours == theirs
    assert (short.config.algorithm, short.config.num_clients, len(short.rounds)) == ("fedpvr", 2, 2)


def test_nothing_of_a_simulation_stays_behind(here: Path) -> None:
    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        mine = [thread for thread in threading.enumerate() if not thread.name.startswith("sync_")]
        return dict(os.environ), Path.cwd(), torch.get_num_threads(), handlers, mine, list(sys.path)

    torch.set_num_threads(2)
    try:
        before = state()

        async def in_a_loop_that_runs() -> fedlab.Run:
            return fedlab.simulate(model=Line, dataset={"train": points(), "test": points(40)}, **SHORT)

        run = asyncio.run(in_a_loop_that_runs())
        wait_until(lambda: state() == before, "threads end, and all is as before")
    finally:
        torch.set_num_threads(1)
    assert run.path.parent == Path("runs")


def test_a_model_and_data_of_the_program_are_trained(here: Path) -> None:
    start = Line(2)
    seen: list[Event] = []
    run = fedlab.simulate(
        model=start,
        dataset=lambda split: TensorDataset(*map(torch.as_tensor, points(80 if split == "train" else 40))),
        algorithm="fedavg",
        on_event=seen.append,
        **SHORT | {"rounds": 4, "local_steps": 20},
    )
    model = run.model()
    assert isinstance(model, Line)
    assert run.accuracy > 0.9
    images, labels = points(40)
    with torch.no_grad():
        found = model(torch.from_numpy(images)).argmax(dim=1).numpy()
    assert float((found == labels).mean()) == run.accuracy
    ours, theirs = (each.state_dict()["1.weight"] for each in (start, model))
    assert not torch.equal(ours, theirs), "the module that was given is left as it was"
    assert [event.round for event in seen if event.kind == "round_closed"] == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"its model was an object of a program; .* model\(factory\)"):
        fedlab.open(run.path).model()
    assert isinstance(fedlab.open(run.path).model(Line), Line)


def test_a_simulation_can_be_cancelled_and_what_has_closed_stays(here: Path) -> None:
    known = threading.Event()

    def cancel(event: Event) -> None:
        if event.kind == "round_closed" and known.wait(60):
            running.cancel()

    running = fedlab.start(model="mlp", on_event=cancel, **SHORT | {"rounds": 100_000})
    known.set()
    with pytest.raises(CancelledError, match="the simulation was cancelled"):
        running.wait()
    assert running.done
    assert 1 <= len(running.run().rounds) < 100_000


def test_a_bar_moves_with_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    closed = RoundClosed(
        round=7,
        rounds=20,
        accuracy=0.5,
        validation_accuracy=None,
        train_loss=1.0,
        updates=2,
        down_bytes=1,
        up_bytes=1,
        seconds=0.1,
    )
    with bar(RunConfig(), True) as move:
        move(closed)
    assert "7/20" in capsys.readouterr().err
    with bar(RunConfig(), None) as move:
        move(closed)
    assert not capsys.readouterr().err, "nobody watches"


def test_an_interrupt_ends_a_simulation(here: Path) -> None:
    started: list[threading.Thread] = []

    def interrupt(event: Event) -> None:
        if event.kind == "round_closed" and not started:
            started.extend(each for each in threading.enumerate() if each.name == "the simulation")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fedlab.simulate(model="mlp", on_event=interrupt, **SHORT | {"rounds": 100_000})
    started[0].join()


def test_what_fails_inside_a_simulation_is_raised_where_it_is_waited_for(here: Path) -> None:
    def angry(event: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fedlab.simulate(model="mlp", on_event=angry, **SHORT)
    with pytest.raises(ConfigError, match="--svr 'head' selects no parameter"):
        fedlab.simulate(svr=("head",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"round": 3}, "unknown setting 'round'; do you mean rounds?"),
        ({"rounds": 0}, "--rounds must be at least 1, got 0"),
        ({"algorithm": "fedmagic"}, "--algorithm must be one of fedpvr, "),
        ({"model": "lenet"}, "unknown model 'lenet'"),
        ({"dataset": "mnist"}, "unknown data set 'mnist'"),
    ],
)
def test_settings_that_cannot_work_are_one_line_before_anything_starts(
    here: Path, settings: dict[str, Any], message: str
) -> None:
    for function in (fedlab.simulate, fedserver.serve):
        with pytest.raises(ConfigError, match=message):
            function(**settings)
    assert not list(here.iterdir())


def test_the_typed_settings_are_those_of_a_run() -> None:
    ours, theirs = get_type_hints(Settings), get_type_hints(RunConfig)
    assert ours == {
        each.name: theirs[each.name] for each in fields(RunConfig) if each.name not in ("model", "dataset")
    }


def test_flags_say_the_same_settings() -> None:
    given: Settings = {
        "rounds": 3,
        "augment": False,
        "eval_async": True,
        "codec": ("int8", "down=fp16"),
        "batch_size": None,
        "norm_bound": None,
    }
    config = configured(given, model="mlp", dataset=None)
    command = main.commands["run"]
    with command.make_context("run", ["--run-dir", "x", *flags(config)]) as context:
        names = {each.name for each in fields(RunConfig)} | {"run_dir", "preset"}
        found, _ = resolve(**{name: value for name, value in context.params.items() if name in names})
    assert found == config


def test_rounds_are_a_list_and_a_table(short: fedlab.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.round for row in short.rounds] == [1, 2]
    last = json.loads((short.path / "rounds.jsonl").read_text().splitlines()[-1])
    assert short.rounds[-1].accuracy == last["accuracy"] == short.accuracy
    assert short.rounds[-1].up == sum(last["bytes"]["up"].values())
    assert short.rounds.to_dict()["round"] == [1, 2]
    assert repr(short.rounds).splitlines()[0].split()[:2] == ["round", "accuracy"]
    assert short.rounds._repr_html_().count("<tr>") == 3
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="to_pandas needs pandas, which is not installed"):
        short.rounds.to_pandas()
    with pytest.raises(ConfigError, match="no column 'f1'; there are round, "):
        short.rounds.column("f1")


def test_names_in_a_table_are_text() -> None:
    class Named(Table[Site]):
        pass

    shown = Named(Site, [Site(model="cnn")])._repr_html_().replace("cnn", "")
    assert "<script>" not in shown
    assert "&lt;" in Table(Event, [Event(reason="<script>")])._repr_html_()


def test_a_run_is_drawn_and_compared(short: fedlab.Run, here: Path) -> None:
    other = fedlab.simulate(model="mlp", algorithm="scaffold", **SHORT)
    table = short.compare(other, other)
    assert [row.run for row in table] == [
        "fedpvr",
        f"scaffold {other.path.name} 2",
        f"scaffold {other.path.name} 3",
    ]
    assert table[0].ratio == 1 < table[1].ratio < 2.1
    for figure in (short.plot(), table.plot()):
        assert isinstance(figure, Figure)
        assert [len(axes.lines) for axes in figure.axes] == [len(figure.axes[0].lines)] * 4
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_model_of_a_run_is_built_again(short: fedlab.Run) -> None:
    model, tensors = short.model(), short.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(DataError, match="is not a run directory"):
        fedlab.open(short.path / "nothing")


def test_a_server_beside_and_clients_with_arrays_of_the_program(here: Path) -> None:
    told: list[str] = []
    trained: list[int] = []
    images, labels = points()
    with fedserver.serve(
        **TASK, init=first_weights(here), rounds=2, on_event=lambda event: told.append(event.kind)
    ) as server:
        clients = [
            fedclient.join(
                server.address,
                name=f"site-{i}",
                data=(images[i::2], labels[i::2]) if i else TensorDataset(*map(torch.as_tensor, points())),
                class_names=("low", "high"),
                on_round=lambda event: trained.append(event.round),
            )
            for i in range(2)
        ]
        ends = [client.wait(90) for client in clients]
        server.wait(90)
    assert {end.took_part for end in ends} == {2}
    assert sorted(trained) == [1, 1, 2, 2]
    assert told.count("round_closed") == 2
    assert len(fedlab.open(server.run_dir).rounds) == 2
    assert not server.running


def test_clients_and_servers_are_ended_by_their_program(here: Path) -> None:
    with fedserver.serve(**TASK, init=first_weights(here)) as server:
        with pytest.raises(ConfigError, match=r"--listen .*: cannot listen there"):
            fedserver.serve(listen=server.address, run_dir=here / "other", **TASK, init=first_weights(here))
        told = list[Event]()
        client = fedclient.join(server.address, name="one", data=points(), on_event=told.append)
        wait_until(lambda: any(isinstance(event, Joining) for event in told), "the client has its state")
        with pytest.raises(StateError, match="is in use by another client"):
            fedclient.join(server.address, name="one", data=points()).wait(60)
        client.cancel()
        with pytest.raises(CancelledError, match="client one was cancelled"):
            client.wait()
    assert not server.running
    server.wait()


def test_a_model_that_is_given_is_trained_whatever_the_server_calls_it() -> None:
    Site(own_model=True).require_model("code_of:somebody")
    with pytest.raises(RefusedError, match="has not allowed"):
        Site().require_model("code_of:somebody")
    with pytest.raises(RefusedError, match="has not allowed"):
        Site(own_model=True).require_dataset("code_of:somebody")


def test_examples_of_a_program_are_checked() -> None:
    images, labels = points(4)
    given = GivenExamples((images, labels), ("low", "high"), unheard)
    assert (given.examples, given.class_counts) == (4, {"low": 2, "high": 2})
    assert given.load(("high", "low"), (4,)).labels.tolist() == [1, 0, 1, 0]
    assert [array.shape for array in arrays(TensorDataset(torch.ones(3, 2), torch.ones(3)))] == [(3, 2), (3,)]
    for wrong, message in (((images, labels[:2]), "do not fit"), ("digits", "expected .images, labels.")):
        with pytest.raises(DataError, match=message):
            GivenExamples(wrong, None, unheard)


def test_importing_a_package_is_light_and_leaves_the_environment_alone() -> None:
    script = (
        "import os, sys; before = dict(os.environ); import fedclient, fedlab, fedserver; "
        "assert not {'torch', 'numpy', 'common'} & set(sys.modules); "
        "fedlab.simulate, fedlab.open, fedserver.serve; assert 'torch' not in sys.modules; "
        "assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="module 'fedlab' has no attribute 'nothing'"):
        fedlab.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_every_package_says_that_it_is_typed() -> None:
    for package in ("common", "fedserver", "fedclient", "fedwire", "fedlab", "proto/fedpvr"):
        assert (ROOT / package / "py.typed").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_users_with_strict_types_see_ours(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(
        "import fedlab\nimport fedserver\n"
        "def best() -> float | None:\n"
        "    run: fedlab.Run = fedlab.simulate(rounds=3, algorithm='fedavg')\n"
        "    return run.rounds[0].accuracy\n"
        "def address() -> str:\n    return fedserver.serve(rounds=3).address\n"
    )
    (tmp_path / "bad.py").write_text("import fedlab\nfedlab.simulate(rounds='three')\nfedlab.simulated()\n")

    # Other libraries would take minutes, and what they are does not matter here.
    skipped = "".join(
        f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in ("torch", "numpy", "matplotlib")
    )
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n" + skipped)
    command = [sys.executable, "-m", "mypy", "good.py", "bad.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "good.py" not in found
    assert 'bad.py:2: error: Argument "rounds" to "simulate" has incompatible type' in found
    assert 'bad.py:3: error: Module has no attribute "simulated"' in found


def test_several_processes_have_models_and_data_of_the_program(tmp_path: Path) -> None:
    class Small(nn.Sequential):
        def __init__(self, num_classes: int) -> None:
            super().__init__(nn.Flatten(), nn.Linear(8, num_classes))

    images = torch.rand(40, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    examples = images.numpy(), np.arange(40) % 2
    data = {"train": examples, "test": examples}
    one, two = (
        fedlab.simulate(model=Small, dataset=data, run_dir=tmp_path / str(n), jobs=n, alpha=5.0, **SHORT)
        for n in (1, 2)
    )
    assert without_metadata(one.path / "model.safetensors") == without_metadata(
        two.path / "model.safetensors"
    )
