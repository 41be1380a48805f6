"""A run directory as a long run with many clients would leave it, made up in a moment."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

from common import json_files
from common.live.record import EVENTS, LIVE, LiveClient, LiveRecord, LiveUpload, LoggedEvent
from common.processes.identity import own_process
from common.records.rounds import ROUNDS, Norms, RoundRecord, Seconds
from common.records.run import CONFIG, RunRecord, Seat
from common.records.traffic import TRAFFIC_LINES, DirectionBytes, PurposeBytes, RoundTraffic, Traffic

TENSORS = {
    f"features.{k}.{part}": size for k in range(8) for part, size in (("weight", 40_000), ("bias", 64))
}
CLASSIFIER = {"classifier.weight": 5_120, "classifier.bias": 40}
START = 1_790_000_000.0


def long_run(path: Path, *, rounds: int, clients: int) -> Path:
    """Makes the directory; the process that it names is this one, and it has just closed the last round."""
    path.mkdir(parents=True)
    names, dice = [f"site-{i:03d}" for i in range(clients)], random.Random(0)
    json_files.write(path / CONFIG, _config(names, rounds, dice))
    json_files.write_lines(path / ROUNDS, (_round(r, rounds, names, dice) for r in range(1, rounds + 1)))
    detail = _traffic(names)
    lines = (RoundTraffic(round=r, traffic=detail, socket=None) for r in range(1, rounds + 1))
    json_files.write_lines(path / TRAFFIC_LINES, lines)
    events = (event for r in range(1, rounds + 1) for event in _events(r, names))
    json_files.write_lines(path / EVENTS, events)
    json_files.write(path / LIVE, _live(names, rounds))
    return path


def _config(names: list[str], rounds: int, dice: random.Random) -> RunRecord:
    seats = [
        Seat(name=name, index=i, examples=500, classes=tuple(dice.randrange(100) for _ in range(10)))
        for i, name in enumerate(names)
    ]
    return RunRecord(
        algorithm="fedpvr",
        model="cnn",
        dataset="digits",
        num_clients=len(names),
        others={"rounds": rounds + 10},
        run_id="0123456789ab",
        fingerprint="f" * 64,
        num_classes=10,
        svr_names=tuple(CLASSIFIER),
        class_names=tuple(map(str, range(10))),
        clients=tuple(seats),
    )


def _round(r: int, rounds: int, names: list[str], dice: random.Random) -> RoundRecord:
    way = PurposeBytes(
        model=len(names) * sum((TENSORS | CLASSIFIER).values()),
        buffer=0,
        control=len(names) * sum(CLASSIFIER.values()),
        other=len(names) * 400,
    )
    learned = 1 - math.exp(-4 * r / rounds)
    return RoundRecord(
        round=r,
        accuracy=0.1 + 0.85 * learned + 0.01 * dice.random(),
        loss=2.3 - 2 * learned,
        updates=len(names) - r % 2,
        clients=tuple(names[r % 2 :]),
        absent={names[0]: "no answer by the deadline"} if r % 2 else {},
        clipped={names[1]: 4.0} if r % 10 == 0 else None,
        uncounted={names[1]: "too large"} if r % 10 == 0 else None,
        train_loss=2.2 - 2 * learned,
        validation_accuracy=None,
        drift={name: 1 + dice.random() for name in TENSORS | CLASSIFIER},
        layer_drift={f"features.{k}": 1 + dice.random() * (k + 1) / 8 for k in range(8)}
        | {"classifier": 3.0},
        eta_l=0.1,
        bytes=DirectionBytes(down=way, up=way),
        seconds=Seconds(round=1.5, train=1.0),
        norms=Norms(c=0.2, clients={name: 0.5 + dice.random() for name in names}),
    )


def _traffic(names: list[str]) -> Traffic:
    tensors = TENSORS | CLASSIFIER
    way = {
        "model": {name: (size, size + 10) for name, size in tensors.items()},
        "control": {name: (size, size + 10) for name, size in CLASSIFIER.items()},
        "other": {"header": (0, 400)},
    }
    return {name: {"down": way, "up": way} for name in names}


def _events(r: int, names: list[str]) -> list[LoggedEvent]:
    time = "2026-01-01T00:00:00.000Z"
    updates = [
        LoggedEvent(
            time=time, level="detail", event="update_accepted", round=r, client=name, text=f"{name} is in"
        )
        for name in names[r % 2 :]
    ]
    closed = LoggedEvent(time=time, level="notice", event="round_closed", round=r, text=f"round {r} is over")
    return [*updates, closed]


def _live(names: list[str], rounds: int) -> LiveRecord:
    upload = LiveUpload(received=200_000, total=330_000, speed=1e6, under_way=True)
    return LiveRecord(
        run_id="0123456789ab",
        algorithm="fedpvr",
        model="cnn",
        dataset="digits",
        process=own_process(os.getpid()),
        started=START,
        phase="training",
        since=START,
        round=rounds + 1,
        rounds=rounds + 10,
        drawn=len(names),
        answered=0,
        num_clients=len(names),
        needed=len(names),
        clients=tuple(
            LiveClient(name=name, index=i, state="uploading", heard_at=START, examples=500, upload=upload)
            for i, name in enumerate(names)
        ),
    )
