"""Where a figure was measured: without it a figure says nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import common

TREE = Path(common.__file__).parent.parent
"""The tree whose code is measured; with `make bench-compare` not always the one that this file is in."""
VERSIONS = ("grpcio", "protobuf", "numpy", "torch")


def description() -> dict[str, Any]:
    """Cores, processor, memory and versions."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "processor": found[1] if found else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"Linux {platform.release()}",
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in VERSIONS},
    }


def load() -> float:
    """Processes that ran or wanted to in the last minute: about 0 on a quiet machine."""
    return round(os.getloadavg()[0], 2)


def revision() -> str:
    """Commit of the tree that is measured, `+` if it has changes; empty where git does not know."""
    if not (TREE / ".git").exists():
        return ""
    git = ["git", "-C", str(TREE)]
    commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")
