"""`import torchvision` where its compiled operators cannot be loaded.

A torchvision built for another torch (for CUDA, next to a CPU build of torch) fails on import, because it
registers shapes for operators that are not there. Data sets need none of these operators: declaring them is
enough.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

_MISSING = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[Any] = []
"""Keeps the declarations alive: they vanish with the object that made them."""


def torchvision_datasets() -> Any:
    """The module `torchvision.datasets`."""
    try:
        import torchvision.datasets
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in _MISSING.values():
            library.define(schema)
        _declared.append(library)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        import torchvision.datasets
    return torchvision.datasets
