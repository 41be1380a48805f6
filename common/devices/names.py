"""Devices as flags name them, and which of them a process takes. Without torch, for command lines.

auto      the GPUs, else mps, else the processor
cpu       the processor
cuda      all GPUs: the k-th of several workers takes the k-th, and begins again after the last
cuda:K    the K-th GPU, from 0 on
mps       the GPU of an Apple machine
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import ConfigError

CPU, OFF, BF16 = "cpu", "off", "bf16"
PRECISIONS = (OFF, BF16)
"""What may be said of autocast."""
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:(0|[1-9][0-9]{0,3}))?")


@dataclass(frozen=True, kw_only=True)
class Accelerators:
    """What a machine has besides its processor."""

    gpus: int = 0
    """That CUDA can use."""
    mps: bool = False


def require_device(text: str) -> str:
    """The same text; raises unless it names a device."""
    if not _DEVICE.fullmatch(text):
        raise ConfigError(f"--device must be auto, cpu, cuda, cuda:K with K from 0 on, or mps, got {text!r}")
    return text


def require_precision(text: str) -> str:
    """The same text; raises unless it names a precision."""
    if text not in PRECISIONS:
        raise ConfigError(f"--autocast must be one of {', '.join(PRECISIONS)}, got {text!r}")
    return text


def candidates(text: str, found: Accelerators) -> tuple[str, ...]:
    """The devices that a name stands for on such a machine: one or, for `cuda` and `auto`, all GPUs."""
    gpus = tuple(f"cuda:{k}" for k in range(found.gpus))
    if text == "auto":
        return gpus or ("mps" if found.mps else CPU,)
    if text == CPU:
        return (CPU,)
    if text == "mps":
        if not found.mps:
            raise ConfigError("--device mps: torch finds no Apple GPU here; leave it out")
        return ("mps",)
    if not gpus:
        advice = "leave it out, or install torch with CUDA"
        raise ConfigError(f"--device {text}: torch finds no GPU here; {advice}")
    if text == "cuda":
        return gpus
    if text not in gpus:
        have = "one GPU, cuda:0" if found.gpus == 1 else f"{found.gpus} GPUs, cuda:0 to {gpus[-1]}"
        raise ConfigError(f"--device {text}: torch finds {have}; give one of these")
    return (text,)


def device_of(k: int, devices: Sequence[str]) -> str:
    """The device that the k-th of several workers takes, k from 0 on; see `candidates`."""
    return devices[k % len(devices)]
