"""What a run writes down: in its form, once, documented, and readable when it is of the release before.

tests/data/run-format-1 was left by the release before formats, killed between the checkpoint of round 2 of 4
and its record.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common import json_files
from common.algorithms import ALGORITHMS
from common.errors import ConfigError, DataError, StateError
from common.events import unheard
from common.live.record import LoggedEvent
from common.records import document, form
from common.records.base import FORMAT
from common.records.provenance import Provenance, read_provenance
from common.records.rounds import Evaluation, Norms, RoundRecord, read_rounds
from common.records.run import RunRecord, read_run_record
from common.records.traffic import RoundTraffic, cut_lines, read_traffic
from common.server_step.step import CSource
from common.tensors import safetensors_files
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.byte_counts import ByteCounts
from common.wire.messages import Content
from fedlab import cli
from fedlab.reports.runs import read_run
from fedserver.config import RunConfig
from fedserver.store.checkpoints import Checkpoint, Checkpoints
from fedserver.store.run_dir import RunDir
from fedserver.store.variates import Variates
from fedserver.worker.messages import CompareModels, Reply, Request, Similarity, encoded, reply_of, request_of
from tests.fuzz import known

ROOT = Path(__file__).parent.parent
RUN, FIRST = (ROOT / "tests" / "data" / name for name in ("run", "run-format-1"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of a run directory, finished."""
    shutil.copytree(RUN, tmp_path / "run")
    sets = {"format": FORMAT, "sets": [{"kappa": 0.1, "tau": 0.2, "coverage": 0.9, "mean_size": 1.5}]}
    (tmp_path / "run" / "conformal.json").write_text(json.dumps(sets))
    return tmp_path / "run"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A copy of the run directory of format 1."""
    shutil.copytree(FIRST, tmp_path / "first")
    return tmp_path / "first"


def report(*runs: Path) -> tuple[int, str]:
    """Exit code of `fedlab report` and what it says; a traceback would be an exception of another kind."""
    out = runs[0].parent / "report.html"
    result = CliRunner().invoke(cli.main, ["report", *map(str, runs), "--out", str(out)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


# What is written


def many(num_clients: int, num_tensors: int) -> tuple[RoundRecord, RoundTraffic]:
    """How a round with so many clients and tensors is recorded."""
    counts = ByteCounts()
    for i in range(num_clients):
        for k in range(num_tensors):
            counts.add(f"client-{i}", "PushUpdate", True, Content("chunk", "model", f"layer{k}.w", 4), 16)
    norms = Norms(c=1.0, clients={f"client-{i}": 0.123456789 + i for i in range(num_clients)})
    drift = {f"layer{k}.w": 0.123456789 for k in range(num_tensors)}
    record = replace(known.ROUND, bytes=counts.by_purpose(), norms=norms, drift=drift)
    return record, RoundTraffic(round=1, traffic=counts.detailed(), socket=None)


def note_bytes(folder: Path, num_clients: int, num_tensors: int) -> int:
    """The size of a checkpoint's note; the checkpoint can be read."""
    layout = Layout([TensorSpec(f"layer{k}.w", "float32", (1,)) for k in range(num_tensors)])
    checkpoints = Checkpoints(folder, layout)
    closing, _ = many(num_clients, num_tensors)
    counted, norms = dict.fromkeys(range(num_clients), 1), dict.fromkeys(range(num_clients), 0.123456789)
    checkpoints.write(
        Checkpoint(
            1,
            layout.allocate(),
            {},
            counted,
            norms,
            {3},
            frozenset(),
            {},
            CSource.FROM_VARIATES,
            2.0,
            closing,
        )
    )
    assert checkpoints.read(1).closing == closing
    return len(safetensors_files.read_note(folder / "round-000001.safetensors")["checkpoint"])


def test_a_checkpoints_note_does_not_grow_with_clients_times_tensors(tmp_path: Path) -> None:
    few = note_bytes(tmp_path, 10, 50)
    crowd = note_bytes(tmp_path, 2_000, 50)
    assert (crowd - few) / 1_990 < 100, "bytes for a client: its round and twice its norm"
    fewer_tensors = note_bytes(tmp_path, 2_000, 5)
    assert crowd - fewer_tensors == few - note_bytes(tmp_path, 10, 5), (
        "tensors cost the same, whoever takes part"
    )
    assert crowd < safetensors_files.MAX_HEADER_BYTES / 100


def test_every_file_of_a_run_directory_is_in_the_document(tmp_path: Path) -> None:
    flags = "--num-clients 2 --rounds 2 --local-steps 1 --algorithm feddyn --best loss --cka 10"
    result = CliRunner().invoke(cli.main, ["simulate", *flags.split(), "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    patterns = [re.escape(entry.name) for entry in document.RUN_DIRECTORY]
    patterns = [re.sub("RRRRRR|IIIII", r"\\d+", p) + ("" if p.endswith("/") else "$") for p in patterns]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    names = [path.relative_to(tmp_path / "run").as_posix() for path in files]
    assert [name for name in names if not any(re.match(p, name) for p in patterns)] == []
    unused = {p for p in patterns if not any(re.match(p, name) for name in names)}
    while_it_goes_on = {"spool/", "clients/", "checkpoints/spare$"}
    assert unused == {*while_it_goes_on, re.escape(".track-HHHHHHHH.lock") + "$"}
    for path in files:
        record = next((e.record for e in document.RUN_DIRECTORY if e.name == path.name), None)
        if record is Provenance:
            assert read_provenance(path).format == FORMAT
            continue
        if record is not None and path.suffix == ".jsonl":
            lines: list[object] = list(json_files.read_lines(path, record))
            assert len(lines) == 2 or record is LoggedEvent
        elif record is not None:
            assert json_files.read(path, record).format == FORMAT


def test_the_document_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "run-directory.md").read_text()
    assert committed == document.document(), "run make docs"
    assert "|  |" not in committed, "every field has a docstring"


def test_requests_and_replies_of_the_worker_travel_as_they_are() -> None:
    for request in (
        Request(prepare=RunConfig(batch_size=None, svr=("head",), codec=("int8",)), flat=False),
        Request(evaluate=True, flat=True),
        Request(conformal=(0, 7), flat=True),
        Request(cka=CompareModels(updates=("a", "b"), num_images=10, estimator="debiased")),
    ):
        assert request_of(encoded(request)) == request
    found = Evaluation(accuracy=0.5, loss=None, class_accuracy=(None, 0.5))
    for reply in (
        Reply(built=known.PREPARED.built()),
        Reply(evaluation=found),
        Reply(similarity=Similarity(images=4, minibatches=1, layers={"a": ((1.0, None), (None, 1.0))})),
    ):
        assert reply_of(encoded(reply)) == reply


# What is dropped when a run goes on


def test_lines_of_rounds_that_did_not_count_are_cut_off(tmp_path: Path) -> None:
    _, detail = many(3, 2)
    path = tmp_path / "traffic.jsonl"
    json_files.write_lines(path, [replace(detail, round=r) for r in (1, 2, 3)])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    cut_lines(path, 3)
    assert path.read_bytes() == whole, "a line that was cut off is dropped"
    cut_lines(path, 2)
    assert [line.round for line in read_traffic(tmp_path)] == [1, 2]
    cut_lines(path, 0)
    assert path.read_bytes() == b""
    path.unlink()
    cut_lines(path, 0)


def of_round(r: int) -> Checkpoint:
    """The known run after a round."""
    closing = replace(known.ROUND, round=r)
    return Checkpoint(
        round=r,
        flat=known.values(),
        h={},
        counted={0: r},
        norms={0: 0.5},
        changed=set(),
        evicted=frozenset(),
        strikes={},
        c_source=CSource.FROM_MOVE,
        total_weight=2.0,
        closing=closing,
    )


def test_checkpoints_that_are_not_kept_are_written_over(tmp_path: Path) -> None:
    checkpoints, seen = Checkpoints(tmp_path, known.LAYOUT), []
    for r in range(1, 7):
        checkpoints.write(of_round(r))
        assert checkpoints.prune() == max(1, r - 2)
        assert checkpoints.rounds() == [*range(max(1, r - 2), r + 1)]
        seen.append((tmp_path / f"round-{r:06d}.safetensors").stat().st_ino)
    assert len({*seen}) == 4, "three that are kept, and the one that is written"
    assert checkpoints.read(6).closing == of_round(6).closing
    checkpoints.drop_spare()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"round-00000{r}.safetensors" for r in (4, 5, 6)
    ]


def test_looking_for_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    """The newest lacks a variate, so the older one is found, and its variates are still in the archive."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", known.LAYOUT)
    folder, archive = tmp_path / "ledger", tmp_path / "archive"
    variates = Variates(folder, archive, known.LAYOUT, ALGORITHMS["fedpvr"], 0.0)
    for r in (1, 2):
        variates.stage(0, r, known.values(), known.values())
        checkpoints.write(of_round(r))
        variates.count(0, r)
    (folder / "client-00000-round-000002.safetensors").write_bytes(b"")

    def on_disk() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = on_disk()
    found = checkpoints.newest(lambda checkpoint: variates.require_whole(checkpoint.counted), unheard)
    assert on_disk() == before
    assert found is not None
    assert found.round == 1
    variates.restore(found.counted, found.norms, found.changed)
    assert variates.read(0) is not None
    assert [path.name for path in folder.iterdir()] == ["client-00000-round-000001.safetensors"]


@pytest.mark.parametrize("name", ["rounds.jsonl", "traffic.jsonl", "model.safetensors"])
def test_a_new_run_is_not_added_to_what_is_left_of_another(run: Path, name: str) -> None:
    shutil.copytree(run, run.parent / "other", ignore=lambda _, names: {*names} - {name})
    missing = rf"other has {name}, but config\.json is missing; put a copy of it back, or choose"
    with pytest.raises(ConfigError, match=missing):
        RunDir(run.parent / "other", resume=True)
    with pytest.raises(ConfigError, match=rf"already holds {name}; choose a new directory"):
        RunDir(run.parent / "other", resume=False)


# Settings


def damaged(path: Path, **changes: object) -> None:
    """Changes keys of a JSON document; ... takes one away."""
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: inner for name, inner in value.items() if inner is not ...}))


def config_of(run_dir: Path) -> RunConfig:
    """The settings that a run directory was made with."""
    settings = read_run_record(run_dir).settings
    return RunConfig(**{name: value for name, value in settings.items() if value is not None})  # type: ignore[arg-type]


def test_a_setting_that_did_not_exist_yet_has_its_default(run: Path) -> None:
    config = config_of(run)
    assert "quorum" not in json.loads((run / "config.json").read_text()), "or nothing is shown"
    with RunDir(run, resume=True) as found:
        found.require_same_settings(config)
        with pytest.raises(ConfigError, match=r"--quorum was 0\.5 and is 0\.7; give the same"):
            found.require_same_settings(replace(config, quorum=0.7))


def test_a_setting_of_a_later_release_is_not_passed_over(run: Path) -> None:
    config = config_of(run)
    damaged(run / "config.json", shyness=0.5)
    with (
        RunDir(run, resume=True) as found,
        pytest.raises(ConfigError, match=r"--shyness was 0\.5, which this release does not know"),
    ):
        found.require_same_settings(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_clients": ...}, "num_clients: expected whole number from 1, got nothing"),
        ({"num_clients": "two"}, 'num_clients: expected whole number from 1, got "two"'),
        ({"run_id": None}, "run_id: expected text, got null"),
        ({"clients": [{"name": "a"}]}, "clients.0.index: expected whole number from 0, got nothing"),
        ({"format": FORMAT + 1}, f"format: expected {FORMAT} at most, got {FORMAT + 1}; a later release"),
    ],
)
def test_a_server_names_what_is_wrong_with_a_config(run: Path, changes: dict[str, Any], message: str) -> None:
    damaged(run / "config.json", **changes)
    with pytest.raises(StateError) as caught:
        RunDir(run, resume=True)
    assert f"run/config.json: {message}" in str(caught.value)
    RunDir(run.parent / "other", resume=True).__exit__(None, None, None)


# Reports


CONFIG_KEYS = ("algorithm", "model", "dataset", "num_clients", "run_id", "clients", "class_names")
ROUND_KEYS = ("round", "accuracy", "updates", "bytes", "seconds", "layer_drift", "train_loss", "norms")


@pytest.mark.parametrize("key", CONFIG_KEYS)
def test_a_report_names_what_a_foreign_config_lacks(run: Path, key: str) -> None:
    damaged(run / "config.json", **{key: ...})
    code, output = report(run)
    assert code == 1
    assert f"Error: {run / 'config.json'}: {key}: expected" in output
    assert output.count(str(run)) == 1


@pytest.mark.parametrize("key", ROUND_KEYS)
def test_a_report_names_what_a_foreign_round_lacks(run: Path, key: str) -> None:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    del lines[1][key]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, output = report(run)
    assert code == 1
    assert re.search(rf"Error: \S+rounds\.jsonl, line 2: {key}: expected .*, got nothing", output)


def test_a_report_names_bytes_that_are_none(run: Path) -> None:
    text = (run / "traffic.jsonl").read_text()
    (run / "traffic.jsonl").write_text(text.replace("[336, 347]", '[336, "347"]', 1))
    code, output = report(run)
    assert code == 1
    assert re.search(r'line 1: traffic\.b\.up\.model\.0\.weight\.1: expected .*, got "347"', output)


def test_a_report_is_the_same_whoever_writes_it(run: Path) -> None:
    """This process, whose hashes are as they happen to be, and one that has others."""
    assert report(run)[0] == 0
    out = run.parent / "other.html"
    subprocess.run(
        [sys.executable, "-m", "fedlab", "report", str(run), "--out", str(out)],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
    )
    assert out.read_bytes() == (run.parent / "report.html").read_bytes()


# The release before


def test_a_run_of_format_1_is_reported(first: Path) -> None:
    code, output = report(first)
    assert code == 0, output
    found = read_run(first)
    assert (found.config.format, found.rounds[0].format) == (1, 1)
    assert found.config.settings["quorum"] == 0.5
    assert found.by_client()["a"]["up"][0] == 1000
    assert found.socket_per_client_and_round() is not None
    (first / "conformal.json").write_text('[{"kappa": 0.1, "tau": 0.2, "coverage": 0.9, "mean_size": 1.5}]')
    assert read_run(first).conformal[0].mean_size == 1.5


def test_a_run_of_format_1_is_brought_up_to_date_when_it_goes_on(first: Path) -> None:
    before = json.loads((first / "rounds.jsonl").read_text())
    layout = Layout(
        [
            TensorSpec(name, "float64", shape, purpose)
            for purpose in (Purpose.MODEL, Purpose.CONTROL)
            for name, shape in (
                ("0.weight", (7, 6)),
                ("0.bias", (7,)),
                ("2.weight", (5, 7)),
                ("2.bias", (5,)),
                ("4.weight", (3, 5)),
                ("4.bias", (3,)),
            )
            if purpose is Purpose.MODEL or name.startswith("4.")
        ]
    )
    second = Checkpoints(first / "checkpoints", layout).read(2)
    with RunDir(first, resume=True) as run_dir:
        assert run_dir.go_back(2, 0, unheard) == {1}
        (record,) = run_dir.records()
        assert second.closing is not None
        run_dir.append_round(second.closing)
    assert record.norms.clients == dict(zip("ab", before["norms"]["clients"].values(), strict=True))
    assert read_run_record(first).format == FORMAT
    records = read_rounds(first)
    assert [(r.format, r.round, list(r.norms.clients)) for r in records] == [
        (FORMAT, r, ["a", "b"]) for r in (1, 2)
    ]
    lines = list(read_traffic(first))
    assert [(line.format, line.round) for line in lines] == [(FORMAT, 1), (FORMAT, 2)], "also from the note"
    assert json.loads(form.text(lines[0].traffic)) == before["traffic"]
    assert lines[1].traffic.keys() == {"a", "b"}


def test_something_else_than_a_run_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a run directory: it has no config\.json$"):
        read_run(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(DataError, match=r"config\.json: expected \{\.\.\.\}, got \[\]"):
        read_run(tmp_path)
    json_files.write(tmp_path / "config.json", read_run_record(RUN))
    with pytest.raises(DataError, match="has no closed round yet"):
        read_run(tmp_path)
    assert isinstance(read_run_record(RUN), RunRecord)
