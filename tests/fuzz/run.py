"""Looks for inputs that a decoder does not stand, target after target, guided by the code they reach.

What reaches new code is kept in `corpus/TARGET`. An input that breaks a target is left in the current
directory as `crash-*` and ends the run.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.reach import reached
from tests.fuzz.target import CORPUS, stored
from tests.fuzz.targets import TARGETS

LEAST_MAX_LEN = 4096


def main() -> None:
    """Fuzzes some targets, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; all")
    parser.add_argument("--runs", type=int, default=100_000, help="executions of each target")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices")
    options = parser.parse_args()
    for name in options.targets or TARGETS:
        with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as folder:
            search(name, Path(folder), options)
            print(f"{name}: kept {keep(name, Path(folder))} new inputs", flush=True)


def search(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Fills a folder with inputs that reach different code; ends the program if one breaks the target."""
    batches = [*TARGETS[name].seeds(), *stored(name)]
    for k, data in enumerate(batches):
        (folder / f"{k:04d}").write_bytes(data)
    max_len = max(LEAST_MAX_LEN, 2 * max(map(len, batches)))
    print(f"{name}: {options.runs} executions, seed {options.seed}", flush=True)
    flags = (f"-runs={options.runs}", f"-seed={options.seed}", f"-max_len={max_len}", "-timeout=20")
    command = [sys.executable, "-m", "tests.fuzz.search", name, *flags, str(folder)]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"{name}: an input breaks it, see above")


def keep(name: str, folder: Path) -> int:
    """Copies what reaches new code, the smallest first, and says how much it was."""
    target, kept = TARGETS[name], 0
    known = set().union(*(reached(target, data) for data in stored(name)))
    for data in sorted((path.read_bytes() for path in folder.iterdir()), key=len):
        if not (found := reached(target, data)) <= known:
            known |= found
            kept += 1
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            (CORPUS / name / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    return kept


if __name__ == "__main__":
    main()
