"""Runs the benchmarks one after the other and keeps their results: `python benchmarks/run.py [NAME ...]`.

Results go to benchmarks/results/DATE-MACHINE/, a JSON file for each benchmark and a table of all for people.
One that fails is named at the end and does not keep the others from running. Flags that are not known here
are for the benchmarks.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedlab.processes import children
from measure import machine, report
from measure.processes import environment
from published.documents import results

HERE = Path(__file__).parent
RESULTS = HERE / "results"
BY_HAND = ("flower", "link")
"""Run only where they are named: one needs another environment, the other network namespaces and root."""
LIMIT_S = 2400.0
TABLE = "tables.txt"


def names() -> list[str]:
    """All benchmarks that there are."""
    return sorted([*(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")), "flower"])


def folder_for_today() -> Path:
    """DATE-MACHINE: two runs of one day on one kind of machine replace each other's results."""
    found = machine.description()
    words = re.findall(r"\w+", re.sub(r"\(\w+\)|@.*", "", found["processor"]).lower())
    return RESULTS / "-".join([time.strftime("%Y-%m-%d", time.gmtime()), *words, f"{found['cores']}-cores"])


def run(name: str, out: Path, flags: Sequence[str]) -> bool:
    """One benchmark, in a process of its own; whether it came to its end."""
    print(f"== {name}", flush=True)
    what = ["-m", "flower"] if name == "flower" else [str(HERE / f"bench_{name}.py")]
    command = [sys.executable, *what, "--json", str(out / f"{name}.json"), *flags]
    process = subprocess.Popen(command, env=environment([HERE]))
    try:
        return process.wait(LIMIT_S) == 0
    except subprocess.TimeoutExpired:
        print(f"bench_{name} has not ended after {LIMIT_S:.0f} s", file=sys.stderr)
        return False
    finally:
        children.stop([process])


def tables(folder: Path) -> str:
    """All results of a folder for people, with machine and commands."""
    parts = []
    for each in results(folder).values():
        where = each["machine"]
        load = f"load {each['load']['before']} before and {each['load']['after']} after"
        parts.append(
            f"{each['benchmark']}: {report.text(each)}\n\n"
            f"{each['date']}, {each['seconds']} s, revision {each['revision']}, {load}\n"
            f"{where['processor']}, {where['cores']} cores, {where['memory_gb']} GB, {where['system']}, "
            + ", ".join(f"{name} {version}" for name, version in where["versions"].items())
            + f"\n{each['command']}\n"
        )
    return ("\n" + "-" * 100 + "\n\n").join(parts)


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}  [default: all]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go  [default: a new folder]")
    parser.add_argument("--quick", action="store_true", help="the smallest form of each")
    arguments, flags = parser.parse_known_args()
    if unknown := set(arguments.names) - set(names()):
        parser.error(f"there is no benchmark {unknown.pop()!r}; choose from {', '.join(names())}")
    out = arguments.out or folder_for_today()
    out.mkdir(parents=True, exist_ok=True)
    wanted = arguments.names or [name for name in names() if name not in BY_HAND]
    flags += ["--quick"] if arguments.quick else []
    failed = [name for name in wanted if not run(name, out, flags)]
    (out / TABLE).write_text(tables(out))
    print(f"results are in {out}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
