"""Another revision of this tree, beside it: for those who compare the two."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def check_out(revision: str, folder: Path) -> str:
    """Puts the files of a revision into a folder and returns its full name."""
    git = ["git", "-C", str(ROOT)]
    name = [*git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    found = subprocess.run(name, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"there is no revision {revision!r} here; name a commit, a tag or a branch")
    commit = found.stdout.strip()
    archive = subprocess.run(
        [*git, "archive", "--format=tar", commit], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return commit
