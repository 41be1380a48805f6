"""A small run that the targets know: its tensors, its messages, and a folder in memory for its files."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.algorithms import ALGORITHMS
from common.models.spec import ModelSpec
from common.records.rounds import Norms, RoundRecord, Seconds
from common.records.traffic import DirectionBytes, PurposeBytes
from common.server_step.rules import Rules
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec, fingerprint
from common.wire.bundles import bundles
from common.wire.codec_choice import Codecs
from common.wire.encoding import Encoding, downward
from common.wire.manifest import manifest
from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from fedserver.run.run import rules_of
from fedserver.worker.messages import Prepared

RUN_ID = "0a1b2c"
CLIENT = "client-1"
MODEL = Layout(
    [
        TensorSpec("body.weight", "float32", (3, 4)),
        TensorSpec("head.weight", "float64", (2, 3)),
        TensorSpec("body.seen", "int64", (), Purpose.BUFFER),
    ]
)
LAYOUT = Layout([*MODEL.specs, TensorSpec("head.weight", "float64", (2, 3), Purpose.CONTROL)])
VARIATES = ALGORITHMS["fedpvr"].variates(LAYOUT)
CONFIGS = [
    RunConfig(num_clients=2, rounds=3, local_steps=2),
    RunConfig(num_clients=2, rounds=3, local_steps=2, codec=("int8,down=bf16,control=fp16",)),
    RunConfig(num_clients=2, rounds=3, local_steps=2, codec=("topk:0.3",), variates="derived"),
]


def values() -> Flat:
    """x and c."""
    flat = LAYOUT.allocate()
    for k, spec in enumerate(LAYOUT.specs):
        LAYOUT.array(flat, k).reshape(-1)[:] = np.arange(spec.num_elements) / 4 - 1
    return flat


PREPARED = Prepared(
    model=ModelSpec(name="m:f", num_classes=2, image_shape=(4,)),
    specs=MODEL.specs,
    classifier=("head.weight",),
    class_names=("cat", "dog"),
    mean=(0.5,),
    std=(0.25,),
    shards=((0, 2), (1, 3, 4)),
    histograms=((1, 1), (2, 1)),
    augment=False,
    x0=values()[: MODEL.num_bytes],
)


_SENT = PurposeBytes(model=1, buffer=1, control=1, other=1)
ROUND = RoundRecord(
    round=1,
    accuracy=None,
    loss=None,
    updates=2,
    train_loss=0.5,
    validation_accuracy=None,
    drift={"head.weight": 0.5},
    layer_drift={"head": 0.5},
    eta_l=0.1,
    bytes=DirectionBytes(down=_SENT, up=_SENT),
    seconds=Seconds(round=1.0, train=0.5),
    norms=Norms(c=0.5, clients={CLIENT: 0.5}),
)


@functools.cache
def folder() -> Path:
    """Where targets put their files: in memory where there is such a place."""
    shared = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="fuzz-", dir=shared if shared.is_dir() else None))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def file_with(data: bytes, name: str = "input") -> Path:
    """A file of these bytes."""
    path = folder() / name
    path.write_bytes(data)
    return path


def rules(config: RunConfig) -> Rules:
    """The rules of round 1."""
    return rules_of(config, 1, augment=False, total_examples=5)


def up(config: RunConfig) -> Encoding:
    """How updates of a run travel."""
    return rules(config).update_encoding(LAYOUT)


def sent(encoding: Encoding) -> Iterator[bytes]:
    """The chunks that carry the values, or as many of them as the coding has: some alone, some together."""
    flat = values()[: encoding.layout.num_bytes]
    raw = encoding.encode_in_place(
        flat, np.random.default_rng(0), values()[: encoding.layout.num_bytes], None
    )
    for message in bundles(encoding.encoded, raw, chunk_bytes=40, most_bytes=60):
        yield message.data


def round_header(encoding: Encoding, config: RunConfig) -> pb.RoundHeader:
    """What opens a broadcast."""
    header = rules(config).to_header()
    header.tensors.extend(manifest(encoding))
    return header


def broadcast(config: RunConfig) -> list[bytes]:
    """The frames of a broadcast."""
    encoding = downward(LAYOUT, config.codecs)
    return [pb.RoundFrame(header=round_header(encoding, config)).SerializeToString(), *sent(encoding)]


def update_header(config: RunConfig) -> pb.UpdateHeader:
    """What opens an update."""
    return pb.UpdateHeader(
        run_id=RUN_ID,
        client=CLIENT,
        round=1,
        update_id="1-0a1b2c3d",
        steps=2,
        examples=3,
        loss=0.5,
        fingerprint=fingerprint(MODEL.specs),
        tensors=manifest(up(config)),
        train_seconds=0.1,
    )


def update(config: RunConfig) -> list[bytes]:
    """The frames of an update."""
    header = pb.UpdateFrame(header=update_header(config)).SerializeToString()
    return [header, *sent(up(config))]


PLAIN_CODING = Encoding(LAYOUT)
CODINGS = [downward(LAYOUT, Codecs()), *(up(config) for config in CONFIGS)]
