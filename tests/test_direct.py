"""Tensors that are handed over in memory leave the same records and bits as tensors that are sent."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.events import unheard
from common.server_step.rules import Rules
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.bundles import bundles
from common.wire.byte_counts import chunk_sizes
from common.wire.chunks import CHUNK_BYTES
from common.wire.codec_choice import Codecs
from common.wire.encoding import Encoding, downward, upward, without_control
from common.wire.messages import PURPOSE_NAMES
from fedclient.training.task import Task
from fedlab import simulation
from fedlab.direct.rooms import Rooms
from fedlab.direct.worker_here import WorkerHere
from fedserver.config import RunConfig
from tests.processes import without_metadata
from tests.wire_simulation import simulate_on_the_wire

SETTINGS: dict[str, Any] = {"num_clients": 3, "rounds": 3, "seed": 4, "local_steps": 2, "eval_every": 0}
SETTINGS["width"] = 0.25
CASES: dict[str, dict[str, Any]] = {
    "explicit": {"algorithm": "scaffold"},
    "derived, some of them": {"variates": "derived", "clients_per_round": 2},
    "coded both ways": {"algorithm": "scaffold", "codec": ("int8", "down=fp16", "control=int8")},
    "coded and derived": {"variates": "derived", "codec": ("topk:0.3", "down=bf16")},
    "too large": {"algorithm": "scaffold", "norm_bound": 1.05, "alpha": 0.1},
    "buffers": {"algorithm": "fedavg", "model": "resnet8-bn", "rounds": 2, "local_steps": 1},
    "frozen and personal": {"model": "cnn", "freeze": ("features.0*",), "personal": ("classifier*",)},
    "of a state of the server": {"algorithm": "feddyn", "clients_per_round": 2},
}
WITHOUT_MORE = ("explicit", "coded both ways", "of a state of the server")
"""What others of these cases show too."""
CODECS = ("fp32", "fp16", "bf16", "int8", "int8-tensor", "topk:0.1")


def results(folder: Path) -> dict[str, Any]:
    """What a run says of itself, but for names and times."""
    lines = {
        name: [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("rounds.jsonl", "traffic.jsonl")
    }
    for line in lines["rounds.jsonl"]:
        line.pop("seconds")
    whole = {"traffic.json": json.loads((folder / "traffic.json").read_text())}
    files = ("model.safetensors", "control.safetensors")
    checkpoints = sorted(path.name for path in (folder / "checkpoints").glob("*.safetensors"))
    return (
        lines
        | whole
        | {name: without_metadata(folder / name) for name in files}
        | {"checkpoints": checkpoints}
    )


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c in WITHOUT_MORE)) for c in CASES]
)
def test_a_simulation_counts_and_computes_what_a_wire_would_have_carried(tmp_path: Path, case: str) -> None:
    config = RunConfig(**(SETTINGS | CASES[case]))
    simulation.simulate(config, tmp_path / "handed", unheard)
    simulate_on_the_wire(config, tmp_path / "sent")
    handed, sent = results(tmp_path / "handed"), results(tmp_path / "sent")
    for name, found in handed.items():
        assert found == sent[name], name
    clipped = [line.get("clipped") for line in handed["rounds.jsonl"]]
    assert any(clipped) or case != "too large", "a client gets its c_i back only then"


def test_updates_that_are_too_many_for_the_memory_go_to_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(**(SETTINGS | {"rounds": 2, "codec": ("int8",)}))
    simulation.simulate(config, tmp_path / "memory", unheard)
    monkeypatch.setattr(simulation, "Rooms", partial(Rooms, kept_bytes=0))
    simulation.simulate(config, tmp_path / "files", unheard)
    assert results(tmp_path / "files") == results(tmp_path / "memory")


def _layout() -> Layout:
    shapes = [
        (),
        (1,),
        (127,),
        (128,),
        (0, 3),
        (3, 43),
        (CHUNK_BYTES // 4,),
        (CHUNK_BYTES // 4 + 1,),
        (600_000,),
    ]
    specs = [TensorSpec(f"w{k}", "float32", shape) for k, shape in enumerate(shapes)]
    many = [TensorSpec(f"b{k}", "int64", (k,), Purpose.BUFFER) for k in range(125)]
    return Layout(
        [*specs, *many, *(TensorSpec(s.name, s.dtype, s.shape, Purpose.CONTROL) for s in specs[:3])]
    )


@pytest.mark.parametrize("codec", CODECS)
def test_frames_are_as_large_as_they_would_be(codec: str) -> None:
    codecs = Codecs(up=codec, down=codec if ":" not in codec else "fp32", control="fp16")
    for encoding in (
        downward(_layout(), codecs),
        upward(_layout(), codecs.up, codecs.control),
        without_control(downward(_layout(), codecs)),
    ):
        for first in (0, 100):
            _require_sizes(encoding, first)


def _require_sizes(encoding: Encoding, first: int) -> None:
    layout = encoding.encoded
    flat = np.random.default_rng(3).integers(0, 256, layout.num_bytes, np.uint8)
    sizes = {spec.name + spec.purpose.name: [0, 0] for spec in layout.specs if spec.num_bytes}
    for part in (part for message in bundles(layout, flat, first_index=first) for part in message.parts):
        spec = layout.specs[part.position[0] - first]
        found = sizes[spec.name + spec.purpose.name]
        found[0] += part.payload
        found[1] += len(part.data)
    told = [(content.purpose, content.payload, size) for content, size in chunk_sizes(layout, first)]
    purposes = [PURPOSE_NAMES[spec.purpose] for spec in layout.specs if spec.num_bytes]
    assert told == [(purpose, *found) for purpose, found in zip(purposes, sizes.values(), strict=True)]


def test_rooms_open_with_x_and_are_used_again() -> None:
    layout = Layout([TensorSpec("w", "float32", (100,))])
    rules = Rules(round=1, rounds=2, eta_l=0.1, algorithm="fedavg", num_clients=3)
    rooms, x = Rooms(kept_bytes=2 * layout.num_bytes), layout.allocate()
    layout.array(x, 0)[:] = np.arange(100)
    task = Task(rules=rules, layout=layout, broadcast=x, encoding=rules.update_encoding(layout))
    seen = set()
    for _ in range(3):
        rooms.open(4)
        for k in range(4):
            room = rooms.lend(task)
            np.testing.assert_array_equal(room, x)
            room[:] = 255
            seen.add(room.ctypes.data)
            assert rooms.may_keep() == (k < 2)
            if k >= 2:
                rooms.give_back()
    rooms.close()
    assert len(seen) <= 4, "two that are kept, one that is lent and one that is made ready"


def test_questions_about_one_model_do_not_meet(tmp_path: Path) -> None:
    """An evaluation may still go on when the next round asks for CKA: each has the model for itself."""
    worker = WorkerHere(RunConfig(**(SETTINGS | {"model": "mlp"})))
    prepared = asyncio.run(worker.prepare(RunConfig()))
    layout = Layout(prepared.specs)
    models = [prepared.x0 * np.uint8(1) for _ in range(12)]
    for k, flat in enumerate(models):
        layout.array(flat, 0)[:] *= np.float32(k)
    updates = [tmp_path / f"{k}.update" for k in range(3)]
    for flat, path in zip(models, updates, strict=False):
        path.write_bytes(flat.tobytes())

    async def alike() -> dict[str, Any]:
        found = await worker.cka(updates, 64, "debiased")
        return {layer: np.asarray(matrix).tolist() for layer, matrix in found.layers.items()}

    async def at_once() -> list[Any]:
        return [*await asyncio.gather(*(ask for x in models for ask in (worker.evaluate(x), alike())))]

    one_by_one = [
        answer for x in models for answer in (asyncio.run(worker.evaluate(x)), asyncio.run(alike()))
    ]
    assert asyncio.run(at_once()) == one_by_one
