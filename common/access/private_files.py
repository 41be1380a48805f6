"""Files with secrets in them, which are for their owner only."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

from common.errors import ConfigError


def require_private(path: Path) -> None:
    """Raises if others than its owner can get at a secret."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        quoted = shlex.quote(str(path))
        raise ConfigError(
            f"{path} must be for its owner only, but has mode {mode:03o}; run: chmod 600 {quoted}"
        )
