"""What it takes to build a model, for those who only tell others of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What it takes to build a model: the same on the server and on every client."""

    name: str
    num_classes: int
    image_shape: tuple[int, ...]
    dtype: str = "float32"
    width: float = 1.0
