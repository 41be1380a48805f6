"""Private keys and tokens in the files that git tracks. Needs no network."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PATTERNS = {
    "private key": rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "AWS access key": rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": rb"\b(?:gh[opsur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})",
    "GitLab token": rb"\bglpat-[A-Za-z0-9_-]{20,}",
    "Slack token": rb"\bxox[abeprs]-[A-Za-z0-9-]{20,}",
    "Google key": rb"\bAIza[A-Za-z0-9_-]{35}",
    "package index token": rb"\bpypi-[A-Za-z0-9_-]{50,}",
    "model hub token": rb"\bhf_[A-Za-z0-9]{30,}",
    "JSON web token": rb"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "password": rb"(?i)\b(?:password|passwd|secret|api_?key|token)\s*[=:]\s*[\"'][^\"'\s]{12,}[\"']",
}
_COMPILED = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}


def tracked(root: Path) -> list[Path]:
    """The files that git tracks and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    paths = (root / name.decode() for name in listed.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def secrets(root: Path) -> list[str]:
    """One line for everything that looks like a secret: where it is and what it is, not the secret itself."""
    found = []
    for path in tracked(root):
        data = path.read_bytes()
        for name, pattern in _COMPILED.items():
            for match in pattern.finditer(data):
                line = data.count(b"\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(root)}:{line}: looks like a {name}")
    return found
