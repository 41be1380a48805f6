"""What torch finds on this machine."""

from __future__ import annotations

import torch

from common.devices.names import Accelerators


def found() -> Accelerators:
    """The devices here. Not before forks: whoever has looked for a GPU makes it unusable for its children."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Accelerators(gpus=gpus, mps=torch.backends.mps.is_available())
