"""Targets: checkpoints, variates, partitions, run directories, settings, data sets and pictures on disk."""

from __future__ import annotations

import io
import json
import warnings
from contextlib import suppress
from pathlib import Path

import click
import numpy as np
from PIL import Image

from common.algorithms import ALGORITHMS
from common.commandline import settings_file
from common.data import imagefolder, published
from common.data.partition_file import read_partition
from common.errors import FedError
from common.events import unheard
from common.models.spec import ModelSpec
from common.records import form
from common.records.base import Record
from common.records.checkpoint import CheckpointNote
from common.records.cka import CKA, CkaRecord
from common.records.client import Owner
from common.records.conformal import ConformalRecord
from common.records.provenance import PROVENANCE, read_provenance
from common.records.rounds import RoundRecord
from common.records.run import RunRecord
from common.records.traffic import RoundTraffic, TrafficRecord
from common.server_step.step import CSource
from common.tensors import safetensors_files
from common.tensors.description import DESCRIPTION, ModelDescription
from common.tensors.layout import Purpose
from common.wire.byte_counts import ByteCounts
from fedclient.midround.file import MidRoundFile
from fedclient.store.state import RunFiles
from fedlab.reports.runs import read_run
from fedserver.config import RunConfig
from fedserver.members.members import Members
from fedserver.members.seats import restored
from fedserver.store.checkpoints import Checkpoint, Checkpoints
from fedserver.store.run_dir import RunDir
from fedserver.store.variates import Variates
from fedserver.tensors.init_file import read_init
from fedwire.stats import Ratios, Statistics, compare_with_run
from tests.fuzz import known, mutators
from tests.fuzz.mutators import script, scripted
from tests.fuzz.target import Target

_RUN = Path(__file__).parent.parent / "data" / "run"
_FIRST = Path(__file__).parent.parent / "data" / "run-format-1"
_RECORDS: tuple[type[Record], ...] = (
    RunRecord,
    RoundRecord,
    RoundTraffic,
    TrafficRecord,
    CheckpointNote,
    ConformalRecord,
    CkaRecord,
    Owner,
)
_RUN_FILES = ("config.json", "rounds.jsonl", "conformal.json", "traffic.json", "traffic.jsonl", CKA)
_PAIRS = (
    b'{"format": 2, "round": 1, "estimator": "debiased", "images": 4, "minibatches": 1, '
    b'"clients": ["a", "b"], "layers": {"w": [[1.0, 0.5], [0.5, null]]}}\n'
)
_NO_BYTES = ByteCounts().by_purpose()
_NOTHING = Statistics(
    messages=0, bytes=_NO_BYTES, ratios=Ratios(None, None), rounds={}, clients={}, tensors=(), traffic={}
)
_DATA_FILES = ("images.npy", "labels.npy", "classes.json")


def _folder(name: str) -> Path:
    path = known.folder() / name
    path.mkdir(exist_ok=True)
    return path


def checkpoint(data: bytes) -> None:
    """The only checkpoint of a run that goes on, with the variates it names."""
    folder = _folder("checkpoints")
    checkpoints = Checkpoints(folder, known.LAYOUT)
    (folder / "round-000001.safetensors").write_bytes(data)
    variates = Variates(folder / "ledger", folder / "archive", known.LAYOUT, ALGORITHMS["fedpvr"], 0.0)
    found = checkpoints.newest(lambda c: variates.require_whole(c.counted), unheard)
    assert found is not None
    assert found.round == 1
    variates.restore(found.counted, found.norms, found.changed)
    assert found.closing is not None
    assert f"{found.closing.train_loss:.4f} {found.closing.seconds.round:.1f}"


def checkpoint_seeds() -> list[bytes]:
    """With h and without."""
    folder = _folder("written")
    found = []
    for h in ({}, {0: np.ones(12), 1: np.ones(6)}):
        Checkpoints(folder, known.LAYOUT).write(
            Checkpoint(
                1,
                known.values(),
                h,
                {},
                {0: 0.5},
                {0},
                frozenset({1}),
                {1: 2},
                CSource.FROM_MOVE,
                2.0,
                known.ROUND,
            )
        )
        found.append((folder / "round-000001.safetensors").read_bytes())
    return found


def variate(data: bytes) -> None:
    """A client's variate of the known layout, and the note of the file."""
    folder = _folder("variates")
    path = folder / "variate-000001.safetensors"
    path.write_bytes(data)
    files = RunFiles(folder)
    assert files.held_rounds() == [1]
    safetensors_files.read_note(path)
    with suppress(FedError):
        read_provenance(path)
    with suppress(FedError):
        MidRoundFile(path).read(known.VARIATES, "me")
    assert len(files.read(1, known.VARIATES)) == known.VARIATES.num_bytes


def variate_seeds() -> list[bytes]:
    """A right one, and one of another layout."""
    path = known.folder() / "seed.safetensors"
    flat = known.VARIATES.allocate()
    safetensors_files.write(
        path, known.VARIATES, flat, Purpose.CLIENT_CONTROL, note={PROVENANCE: '{"format": 2}'}
    )
    right = path.read_bytes()
    safetensors_files.write(path, known.LAYOUT, known.values(), Purpose.MODEL, Purpose.BUFFER)
    return [right, path.read_bytes()]


def init(data: bytes) -> None:
    """First values for a model, from a file of anybody's."""
    file = read_init(str(known.file_with(data, "init.safetensors")))
    for seeded in (known.MODEL.allocate(), None):
        flat, _ = file.values(known.MODEL.specs, seeded)
        assert len(flat) == known.MODEL.num_bytes


def init_seeds() -> list[bytes]:
    """A file that describes its model, and one of the same tensors that does not."""
    path, found = known.folder() / "seed.safetensors", []
    spec = ModelSpec(name="cnn", num_classes=2, image_shape=(1, 2, 2))
    described = ModelDescription(model=spec, specs=known.MODEL.specs, classifier=())
    for note in ({DESCRIPTION: form.text(described)}, {}):
        flat = known.MODEL.allocate()
        safetensors_files.write(path, known.MODEL, flat, Purpose.MODEL, Purpose.BUFFER, note=note)
        found.append(path.read_bytes())
    return found


def partition(data: bytes) -> None:
    """Shards for two clients and ten examples."""
    shards = read_partition(known.file_with(data), 2, 10)
    assert all(shard.min() >= 0 and shard.max() < 10 for shard in shards)


def partition_seeds() -> list[bytes]:
    """Shards."""
    return [b'{"clients": [[0, 1, 2], [9, 3]]}', b'{"clients": [[0], []]}']


def run_dir(data: bytes) -> None:
    """A run directory, for the server that goes on with it and for those who read it."""
    folder = _folder("run-dir")
    for name, content in zip(_RUN_FILES, [*script(data), *[b""] * len(_RUN_FILES)], strict=False):
        (folder / name).write_bytes(content)
    for read in (_go_on, _read, lambda path: compare_with_run(_NOTHING, path)):
        with suppress(FedError):
            read(folder)


def _go_on(folder: Path) -> None:
    with RunDir(folder, resume=True) as found:
        if found.previous is not None:
            Members(2).restore(restored(found.previous.clients, known.PREPARED.shards), None)
            found.require_same_settings(RunConfig())
            found.go_back(1, 0, unheard)
            found.records()


def _read(folder: Path) -> None:
    run = read_run(folder)
    run.accuracy_over("seconds", 1e6)
    run.rounds_to(0.5)
    run.socket_per_client_and_round()
    run.by_client()
    run.by_tensor()
    list(run.cka())
    run.bytes_per_client_and_round()
    str(run.method)
    run.accuracy()


def run_dir_seeds() -> list[bytes]:
    """A real one, and its first round."""
    files = {path.name: path.read_bytes() for path in _RUN.iterdir()}
    files[CKA] = _PAIRS
    files["conformal.json"] = (
        b'{"format": 2, "sets": [{"kappa": 0.1, "tau": 0, "coverage": 1, "mean_size": 1}]}'
    )
    first = files | {"rounds.jsonl": files["rounds.jsonl"].split(b"\n")[0] + b"\n"}
    return [scripted([each[name] for name in _RUN_FILES]) for each in (files, first, _of_first_format())]


def _of_first_format() -> dict[str, bytes]:
    files = dict.fromkeys(_RUN_FILES, b"")
    files["conformal.json"] = b'[{"kappa": 0.1, "tau": 0.2, "coverage": 0.9, "mean_size": 1.5}]'
    return files | {name: (_FIRST / name).read_bytes() for name in ("config.json", "rounds.jsonl")}


def record(data: bytes) -> None:
    """One JSON value, as every kind of record: one that is read is the same when written and read again."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    for kind in _RECORDS:
        with suppress(FedError):
            found = form.read(kind, value)
            assert form.read(kind, json.loads(form.text(found))) == found


def record_seeds() -> list[bytes]:
    """One of each kind."""
    note = safetensors_files.read_note(_FIRST / "checkpoints" / "round-000001.safetensors")
    lines = [(_RUN / name).read_bytes().split(b"\n")[0] for name in ("rounds.jsonl", "traffic.jsonl")]
    whole = [(_RUN / name).read_bytes() for name in ("config.json", "traffic.json")]
    return [*lines, *whole, _PAIRS, note["checkpoint"].encode(), b'{"client": "a", "model": "f00"}']


def settings(data: bytes) -> None:
    """A settings file."""
    command = click.Command("run", params=[click.Option(["--eta-l"]), click.Option(["--codec"])])
    settings_file(click.Context(command), command.params[0], known.file_with(data))


def settings_seeds() -> list[bytes]:
    """Settings, known and unknown."""
    return [b"eta-l = 0.1\ncodec = ['int8']\n", b"[eta_l]\nx = 2026-01-01\n", b'other = "\\u00e9"\n']


def data_set(data: bytes) -> None:
    """A published data set as it was kept."""
    folder = _folder("data")
    for name, content in zip(_DATA_FILES, [*script(data), b"", b"", b""], strict=False):
        (folder / f"cifar10-train-{name}").write_bytes(content)
    found = published.read("cifar10", "train", folder)
    np.bincount(found.labels, minlength=len(found.class_names))
    assert len(found.images) == len(found.labels)


def data_set_seeds() -> list[bytes]:
    """Two pictures."""
    parts = []
    for array in (np.zeros((2, 3, 2, 2), np.uint8), np.array([0, 1])):
        file = io.BytesIO()
        np.save(file, array)
        parts.append(file.getvalue())
    return [scripted([*parts, b'["cat", "dog"]'])]


def picture(data: bytes) -> None:
    """A picture of a client's own."""
    path = known.file_with(data, "picture.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of much that it can read.
        imagefolder.readable([("cat", path)], unheard)
        imagefolder.decode([path], (3, 4, 4))


def picture_seeds() -> list[bytes]:
    """The same picture in some formats."""
    found = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, kind)
        found.append(file.getvalue())
    return found


TARGETS = {
    "checkpoint": Target(checkpoint, checkpoint_seeds, mutators.safetensors),
    "variate": Target(variate, variate_seeds, mutators.safetensors),
    "init": Target(init, init_seeds, mutators.safetensors),
    "partition": Target(partition, partition_seeds, mutators.json_value),
    "record": Target(record, record_seeds, mutators.json_value),
    "run-dir": Target(run_dir, run_dir_seeds, mutators.json_files),
    "settings": Target(settings, settings_seeds),
    "data-set": Target(data_set, data_set_seeds, mutators.files),
    # Pillow's own memory is not counted here; its formats and the number of pixels bound it.
    "picture": Target(picture, picture_seeds, spare_bytes=4 << 20),
}
