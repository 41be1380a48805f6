"""The paper's VGG-11 over real sockets: what each algorithm costs, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Federation

D, V = 9_750_922 * 4, 530_442 * 4
IMAGES = """
import torch

def data(split):
    generator = torch.Generator().manual_seed(1 if split == "train" else 2)
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.arange(20) % 10
"""
MODEL = "--model vgg11 --dataset images:data --no-augment"
ROUNDS = "--num-clients 2 --rounds 2 --local-steps 1 --batch-size 2 --eval-every 0"
COSTS = {
    "fedavg": (D, D),
    "fedpvr": (D + V, D + V),
    "scaffold": (2 * D, 2 * D),
    "fedpvr --variates derived": (D, D),
    "scaffold --variates derived": (D, D),
}


def run(folder: Path, flags: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A federation of real processes; returns the ledger of its rounds and the whole one."""
    federation = Federation(folder)
    (folder / "images.py").write_text(IMAGES)
    try:
        federation.server(*MODEL.split(), *ROUNDS.split(), "--algorithm", *flags.split())
        for name in ("a", "b"):
            federation.client(name)
        federation.finish()
    finally:
        federation.close()
    return federation.traffic(), json.loads((folder / "run" / "traffic.json").read_text())


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m == "fedpvr" else pytest.mark.slow) for m in COSTS]
)
def test_vgg11_costs_what_the_paper_says(tmp_path: Path, method: str) -> None:
    rounds, whole = run(tmp_path, method)
    down, up = COSTS[method]
    assert [line["round"] for line in rounds] == [1, 2]
    for line in rounds:
        for client in ("a", "b"):
            ledger = line["traffic"][client]
            for direction, expected in (("down", down), ("up", up)):
                assert sum(p for kind in ledger[direction].values() for p, _ in kind.values()) == expected
    payload = 2 * 2 * (down + up)
    assert 0 < sum(sum(counts.values()) for counts in whole["socket"].values()) - payload < 0.005 * payload


def test_those_costs_are_the_published_ones() -> None:
    assert [sum(COSTS[name]) for name in ("fedavg", "fedpvr", "scaffold")] == [
        78_007_376,
        82_250_912,
        156_014_752,
    ]
    assert sum(COSTS["fedpvr"]) / D == pytest.approx(2.1088, abs=5e-5)
