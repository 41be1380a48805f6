"""Tries lower precision in a process of its own before it is used in this one.

Some machines say that they can compute in bf16 and end every process that does with SIGILL (seen with AMX on
a virtual machine): no exception, no line, a client that is gone. So a child trains a step first:
`python -m common.devices.trial DEVICE AUTOCAST`, which ends with 0 if that went well.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from common.devices.machine import found
from common.devices.names import candidates
from common.devices.place import Place
from common.errors import ConfigError


def require_lower_precision(device: str, autocast: str) -> None:
    """Raises if a step in this precision fails on this device; tried once, also for forks that come later."""
    why = _tried(device, autocast)
    if why:
        raise ConfigError(f"--autocast {autocast}: a step of it here {why}; leave --autocast out")


@cache
def _tried(device: str, autocast: str) -> str:
    return failure([sys.executable, "-P", "-m", "common.devices.trial", device, autocast])


def failure(command: Sequence[str]) -> str:
    """How a process fails; empty if it does not."""
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode < 0:
        return f"ends with {signal.Signals(-ended.returncode).name}"
    if ended.returncode:
        return f"fails ({(ended.stderr.strip() or 'without a word').splitlines()[-1]})"
    return ""


def main(device: str, autocast: str) -> None:
    """A step of a small net with the layers of the built-in models, as large as oneDNN wants it."""
    torch.set_num_threads(1)
    place = Place(candidates(device, found())[0], autocast)
    features = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 1, stride=2)
    model = nn.Sequential(*features, nn.Flatten(), nn.Linear(64 * 16 * 16, 10)).to(place.device)
    images, labels = place.put(torch.randn(64, 3, 32, 32)), place.put(torch.zeros(64, dtype=torch.int64))
    with place.lower_precision():
        loss = F.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        raise ArithmeticError("its gradients are not finite")


if __name__ == "__main__":
    main(*sys.argv[1:])
