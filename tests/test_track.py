"""Trackers get every value of a run once, whatever is killed; the real libraries read the same numbers."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.events import unheard
from common.live.view import RunView
from common.records.rounds import read_rounds
from common.records.run import read_run_record
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.track import tracker
from fedserver.track.follow import Following, follow, tell_all
from fedserver.track.scalars import scalars
from fedserver.track.tensorboard_files import open_tracker
from fedserver.track.tracker import Kind, Target, target
from tests.processes import Federation
from tests.test_cli import invoke

FLAGS = "--model problem:network --dataset problem:data --local-steps 1 --num-clients 1 --rounds 4"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over."""
    run = tmp_path_factory.mktemp("track") / "run"
    simulate(RunConfig(num_clients=3, rounds=4, local_steps=1, model="mlp"), run, unheard)
    return run


def expected(run: Path) -> dict[tuple[str, int], float]:
    """All values of rounds.jsonl."""
    return {(name, each.round): v for each in read_rounds(run) for name, v in scalars(each).items()}


def written(folder: Path, run: Path) -> dict[tuple[str, int], float]:
    """What TensorBoard's files have."""
    return open_tracker(str(folder), run, read_run_record(run)).known()


def approximately(values: dict[tuple[str, int], float]) -> object:
    """TensorBoard's floats have 32 bits."""
    return pytest.approx(values, rel=1e-6)


def test_a_finished_run_is_told_once(simulated: Path, tmp_path: Path) -> None:
    to = f"tensorboard={tmp_path}"
    first = invoke("fedserver", "track", str(simulated), "--to", to)
    assert first.output == f"{to}: {len(expected(simulated))} new values\n"
    assert written(tmp_path, simulated) == approximately(expected(simulated))
    assert invoke("fedserver", "track", str(simulated), "--to", to).output == f"{to}: nothing new\n"
    assert {("accuracy", 4), ("norm/c", 1), ("bytes/up/control", 2)} < expected(simulated).keys()


def test_what_was_cut_off_is_told_again_and_what_changed_replaces_what_was(
    simulated: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_bytes((simulated / "config.json").read_bytes())
    lines = (simulated / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:3]))
    to = [Target("tensorboard", str(tmp_path / "tb"))]
    tell_all(run, to)
    (file,) = (tmp_path / "tb").rglob("events.out.*")
    file.write_bytes(file.read_bytes()[:-40])
    # The server went back to an older checkpoint, and round 3 closed without somebody.
    other = json.loads(lines[2]) | {"train_loss": 7.0}
    (run / "rounds.jsonl").write_text("".join([*lines[:2], json.dumps(other) + "\n", lines[3]]))
    tell_all(run, to)
    assert written(tmp_path / "tb", run) == approximately(expected(run))
    assert written(tmp_path / "tb", run)["train_loss", 3] == 7.0


def test_a_tracker_beside_a_server_goes_on_after_both_were_killed(federation: Federation) -> None:
    """No value is missing and none is there twice."""
    trap = ("tests.killpoint", "kill", "before the record", "3")
    track = ("--track", "tensorboard=tb")
    federation.server(*FLAGS.split(), *track, through=trap)
    federation.client("a")
    federation.wait_for_death("server")
    federation.kill("a")
    federation.server(*FLAGS.split(), *track, name="again")
    federation.client("a")
    federation.finish()
    assert "rounds are told to tensorboard=tb" in federation.log("again")
    run, folder = federation.folder / "run", federation.folder / "tb"
    assert written(folder, run) == approximately(expected(run))
    assert set(times_told(folder).values()) == {1}


def test_only_one_process_at_a_time_tells_a_tracker_of_a_run(simulated: Path, tmp_path: Path) -> None:
    """That of a killed server is waited for; then nothing is left to tell."""
    to = Target("tensorboard", str(tmp_path))
    view = RunView(simulated)
    view.refresh()
    first = Following(to, view, wait=False)
    first.tell()
    refused = invoke("fedserver", "track", str(simulated), "--to", str(to))
    assert refused.stderr == f"Error: another process tells {to} of this run; wait for it to end\n"
    second = threading.Thread(target=follow, args=(simulated, [to], lambda _: True, print))
    second.start()
    assert second.is_alive()
    first.close()
    second.join(60)
    assert not second.is_alive()
    assert set(times_told(tmp_path).values()) == {1}


def times_told(folder: Path) -> Counter[tuple[str, int]]:
    """How often each value is in the files."""
    from fedserver.track.tensorboard_files import _events

    (run,) = folder.iterdir()
    return Counter(
        (value.tag, event.step)
        for event in _events(run)
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    )


def test_a_tracker_that_cannot_work_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("tensorboard", "wandb=x", "tensorboard="):
        with pytest.raises(ConfigError, match="must be tensorboard=DIR or mlflow=URI"):
            target("--track", wrong)
    monkeypatch.setitem(tracker.KINDS, "mlflow", Kind("nowhere", "no_such_library", "mlflow"))
    refused = invoke("fedserver", "run", "--track", "mlflow=sqlite:///a.db", "--run-dir", "never")
    assert refused.exit_code == 2
    assert refused.stderr == (
        "Error: --track mlflow needs no_such_library, which is not here; "
        'install it with: pip install "fedpvr[mlflow]"\n'
    )
    assert not Path("never").exists()


def test_a_failing_tracker_is_told_of_and_the_run_goes_on(federation: Federation) -> None:
    (federation.folder / "tb").write_text("a file where a folder should be")
    federation.server(*FLAGS.split(), "--track", "tensorboard=tb")
    federation.client("a")
    federation.finish()
    assert "tracker: tensorboard=tb: " in federation.log("server")
    assert "later: fedserver track run --to tensorboard=tb" in federation.log("server")


@pytest.mark.trackers
def test_tensorboard_itself_reads_the_accuracies_of_the_run(simulated: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell_all(simulated, [Target("tensorboard", str(tmp_path))])
    (folder,) = tmp_path.iterdir()
    read = EventAccumulator(str(folder))
    read.Reload()
    records = read_rounds(simulated)
    assert [each.step for each in read.Scalars("accuracy")] == [1, 2, 3, 4]
    assert [each.value for each in read.Scalars("accuracy")] == pytest.approx(
        [record.accuracy for record in records], rel=1e-6
    )
    assert "settings/text_summary" in read.Tags()["tensors"]


@pytest.mark.trackers
def test_tensorboard_shows_what_a_run_that_went_back_has_now(simulated: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_bytes((simulated / "config.json").read_bytes())
    records = [json.loads(line) for line in (simulated / "rounds.jsonl").read_text().splitlines()]
    for loss in (5.0, 7.0):
        records[2]["train_loss"] = loss
        (run / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        tell_all(run, [Target("tensorboard", str(tmp_path / "tb"))])
    (folder,) = (tmp_path / "tb").iterdir()
    read = EventAccumulator(str(folder))
    read.Reload()
    assert [each.step for each in read.Scalars("train_loss")] == [1, 2, 3, 4]
    assert read.Scalars("train_loss")[2].value == 7.0


@pytest.mark.trackers
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of what MLflow does with SQLAlchemy.
def test_mlflow_itself_reads_the_accuracies_and_settings_of_the_run(federation: Federation) -> None:
    """Stopped halfway and gone on with, in a store that the server's companion fills."""
    from mlflow import MlflowClient

    from fedserver.track.mlflow_store import EXPERIMENT, RUN_ID

    track = ("--track", "mlflow=sqlite:///ml.db", "--track", "tensorboard=tb")
    trap = ("tests.killpoint", "stop", "before training", "3")
    federation.server(*FLAGS.split(), *track)
    federation.client("a", through=trap)
    federation.wait_for_stop("a")
    federation.processes["server"].send_signal(signal.SIGTERM)
    assert federation.exit_code("server") == 0
    federation.kill("a")
    federation.server(*FLAGS.split(), *track, name="again")
    federation.client("a")
    federation.finish()
    client = MlflowClient(tracking_uri=f"sqlite:///{federation.folder}/ml.db")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    config = read_run_record(federation.folder / "run")
    assert (run.data.tags[RUN_ID], run.info.status) == (config.run_id, "FINISHED")
    assert (run.data.params["algorithm"], run.data.params["rounds"]) == ("fedpvr", "4")
    history = client.get_metric_history(run.info.run_id, "accuracy")
    records = read_rounds(federation.folder / "run")
    assert sorted((each.step, each.value) for each in history) == [
        (record.round, record.accuracy) for record in records
    ]
    told = tell_all(federation.folder / "run", [Target("mlflow", f"sqlite:///{federation.folder}/ml.db")])
    assert list(told.values()) == [0]
