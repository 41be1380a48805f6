"""Is this tree faster than another revision? `python -m measure.compare BASE [NAME ...]`

The benchmarks of this tree measure the packages of both, in turn, so that what disturbs the machine disturbs
both. Every figure is the median over the turns; ratios are this tree's by the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from measure import report
from tests.same_bits.revision import ROOT, check_out

HERE = Path(__file__).parent.parent
USUAL = ("fold", "wire", "rounds")
Figures = dict[tuple[str, str, str], list[float]]
"""By table, row and column, one for each turn."""


def main() -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m measure.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("base", metavar="BASE", help="revision to compare this tree with")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=USUAL, help=f"benchmarks  [default: {' '.join(USUAL)}]"
    )
    parser.add_argument(
        "--turns", type=int, default=3, help="times that each is run in each tree  [default: 3]"
    )
    parser.add_argument("--flags", default="", help="for the benchmarks, for example: --flags='--model idle'")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-compare-") as scratch:
        base = Path(scratch, "base")
        commit = check_out(arguments.base, base)[:12]
        for folder in ("tests", "benchmarks"):  # Those of this tree measure both.
            shutil.rmtree(base / folder, ignore_errors=True)
        print(f"base is {commit}, ours is this tree as it is; {arguments.turns} turns each", flush=True)
        for name in arguments.names:
            compare(name, {commit: base, "ours": ROOT}, arguments.turns, shlex.split(arguments.flags))


def compare(name: str, trees: dict[str, Path], turns: int, flags: list[str]) -> None:
    """Runs one benchmark in both trees and prints what differs."""
    figures: dict[str, Figures] = {tree: defaultdict(list) for tree in trees}
    for _ in range(turns):
        for label, tree in trees.items():
            found = result(name, label, tree, flags)
            if found is None:
                print(f"\nbench_{name} does not run on {label}; its last words are above")
                return
            for key, value in flattened(found):
                figures[label][key].append(value)
    base, ours = figures.values()
    lines = report.Report(f"bench_{name}: {' '.join(trees)}")
    for key in [key for key in ours if key in base]:
        old, new = median(base[key]), median(ours[key])
        table, row, column = key
        lines.row(table, what=row, figure=column, base=old, ours=new, ratio=new / old if old else None)
    lines.finish()


def result(name: str, label: str, tree: Path, flags: list[str]) -> dict[str, Any] | None:
    """One turn, in a process of its own; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        done = subprocess.run(
            [sys.executable, str(HERE / f"bench_{name}.py"), "--json", str(out), *flags],
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join((str(tree), str(tree / "proto"))), report.REVISION: label},
            stdout=subprocess.DEVNULL,
        )
        found: dict[str, Any] | None = json.loads(out.read_text()) if done.returncode == 0 else None
        return found


def flattened(found: dict[str, Any]) -> list[tuple[tuple[str, str, str], float]]:
    """Every measured figure; words and whole numbers of a row say what it is of."""
    figures = []
    for table, rows in found["tables"].items():
        for row in rows:
            label = " ".join(str(value) for value in row.values() if isinstance(value, str | int))
            figures += [((table, label, k), v) for k, v in row.items() if isinstance(v, float)]
    return figures


if __name__ == "__main__":
    main()
