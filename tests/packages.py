"""Packages of users, as they lie in a folder of installed ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HALFWAY = '''\
"""SCAFFOLD with half of its correction."""
from common.algorithms.base import Algorithm


class Halfway(Algorithm):
    reduces_variance = True

    def svr(self, parameters, classifier):
        return parameters

    def correction(self, variate, c):
        return 0.5 * (c - variate)
'''
SIGNS = '''\
"""One bit for each number: its sign, and one size for all."""
from dataclasses import dataclass

import numpy as np

from common.wire.codecs import Codec


@dataclass(frozen=True)
class Signs(Codec):
    number = 70
    name = "signs"
    setting_names = ("signs",)
    lossy = True

    def num_bytes(self, num_elements, itemsize):
        return 4 + -(-num_elements // 8)

    def encode(self, values, out, random):
        out[:4].view("<f4")[0] = np.abs(values).mean()
        out[4:] = np.packbits(values >= 0)

    def decode(self, raw, out):
        size = raw[:4].view("<f4")[0]
        out[:] = np.where(np.unpackbits(raw[4:], count=len(out)), size, -size)
'''
THINGS = '''\
"""A model, a data set and a metric."""
import numpy as np
from torch import nn


def network(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, num_classes))


def points(split):
    draw = np.random.default_rng(len(split))
    labels = np.arange(40) % 2
    return draw.normal(3.0 * labels[:, None], 1.0, (40, 4)).astype(np.float32), labels


def missed(confusion):
    return float(confusion.sum() - np.trace(confusion))
'''


def install(folder: Path, package: str, source: str, points: Mapping[str, str]) -> None:
    """A module and what an installer writes beside it; `points` has an object for each GROUP NAME."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{package}.py").write_text(source)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for key, value in points.items():
        group, name = key.split()
        lines.append(f"[fedpvr.{group}]\n{name} = {package}:{value}\n")
    (about / "entry_points.txt").write_text("\n".join(lines))
