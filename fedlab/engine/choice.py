"""Which engine runs cells, and how many at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


def _cores() -> int:
    return os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What the flags `--engine`, `--jobs` and so on say."""

    jobs: int = field(default_factory=_cores)
    """Cells at a time."""
