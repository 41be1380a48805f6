"""Fills the tables and the picture of the documents from results: `python -m published.documents [DIR]`.

DIR is a folder of benchmarks/results, by default the newest. Nothing of it is typed by hand: the tests
compare the documents with the folder that they name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure.report import shown

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "pictures" / "round.svg"
END = "<!-- end -->"
Result = dict[str, Any]
NAMES = {"idle": "4 KB", "cnn": "0.4 MB", "vgg11": "VGG-11"}
OURS = ("ours", "fedlab simulate")
"""Who a row is about that others are compared with, which come before it."""


def results(folder: Path) -> dict[str, Result]:
    """All results of a folder by the benchmark's name; files of another form are left out."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: each for name, each in found.items() if isinstance(each, dict) and "tables" in each}


def against_flower(found: dict[str, Result]) -> list[str]:
    """Ours beside Flower's."""
    if "flower" not in found:
        return ["No results yet: `make bench-flower`."]
    tables = found["flower"]["tables"]
    version = tables["the peer"][0]["version"]
    lines = [f"| no training | ours | Flower {version} | times |", "|---|---:|---:|---:|"]
    deployed, simulated = tables.get("deployment", []), tables.get("simulation", [])
    lines += _pairs(deployed, tuple(NAMES), "round_s", "a round", _time)
    lines += _pairs(deployed, ("vgg11",), "server_side_mb", "memory of the server's side", _memory)
    lines += _pairs(deployed, ("idle",), "cold_start_s", "start to first round closed", _time)
    lines += _pairs(simulated, ("vgg11",), "round_s", "a simulated round", _time)
    return [*lines, "", _origin(found["flower"])]


def _pairs(
    rows: list[dict[str, Any]], models: tuple[str, ...], key: str, what: str, unit: Callable[[float], str]
) -> list[str]:
    lines: list[str] = []
    theirs: list[dict[str, Any]] = []
    for row in (row for row in rows if row["model"] in models):
        if row["who"] not in OURS:
            theirs.append(row)
            continue
        case = f"{what}, {NAMES[row['model']]}, {row['clients']} clients"
        for each in theirs:  # Others than the first say how they differ from it.
            name, times = case if each is theirs[0] else each["who"], shown(each[key] / row[key])
            lines.append(f"| {name} | {unit(row[key])} | {unit(each[key])} | {times} |")
        theirs = []
    return lines


def _time(seconds: float) -> str:
    return f"{shown(seconds)} s" if seconds >= 1 else f"{shown(seconds * 1e3)} ms"


def _memory(megabytes: float) -> str:
    return f"{megabytes:,.0f} MB"


def _origin(result: Result) -> str:
    where = result["machine"]
    machine = f"{where['cores']} cores ({where['processor']})"
    state = f"revision {result['revision']}, load {result['load']['before']} before"
    return f"{result['date'][:10]}, {machine}, {state}: `{result['command']}`."


def limits(found: dict[str, Result]) -> list[str]:
    """Every figure that has a limit, and whether it keeps it."""
    lines = ["| figure | measured | limit | kept | benchmark |", "|---|---:|---:|---|---|"]
    for name, result in found.items():
        for what, ratio in result["ratios"].items():
            for kind, keeps in (("at_most", float.__le__), ("at_least", float.__ge__)):
                if kind in ratio:
                    kept = "yes" if keeps(float(ratio["value"]), float(ratio[kind])) else "no"
                    limit = f"{kind.replace('_', ' ')} {shown(ratio[kind])}"
                    lines.append(f"| {what} | {shown(ratio['value'])} | {limit} | {kept} | {name} |")
    loads = [result["load"]["before"] for result in found.values()]
    return [*lines, "", f"Load of the machine before each benchmark: {min(loads)} to {max(loads)}."]


def rounds(found: dict[str, Result]) -> list[str]:
    """What a round takes."""
    if "rounds" not in found:
        return ["No results yet: `make bench`."]
    columns = {
        "median_ms": "median, ms",
        "server_cpu_ms": "server CPU, ms",
        "clients_cpu_ms": "clients' CPU, ms",
        "server_anon_mb": "server's own memory, MB",
    }
    [rows] = found["rounds"]["tables"].values()
    lines = [
        f"| model | clients | algorithm | {' | '.join(columns.values())} |",
        "|---|---:|---|" + "---:|" * 4,
    ]
    for row in rows:
        figures = " | ".join(shown(row[key]) for key in columns)
        lines.append(f"| {NAMES[row['model']]} | {row['clients']} | {row['algorithm']} | {figures} |")
    return [*lines, "", _origin(found["rounds"])]


PLACES: dict[str, tuple[str, Callable[[dict[str, Result]], list[str]]]] = {
    "against Flower": ("README.md", against_flower),
    "limits": ("docs/performance.md", limits),
    "rounds": ("docs/performance.md", rounds),
}
"""Tables by name, the document that each is in, and what makes it."""


def marked(name: str) -> re.Pattern[str]:
    """The place of a table in a document, with the folder that it is from."""
    return re.compile(
        rf"<!-- table: {re.escape(name)}, from (\S*) by make bench-docs -->\n(.*?){END}", re.DOTALL
    )


def filled(text: str, name: str, folder: str, lines: list[str]) -> str:
    """A document with a new table."""
    head = f"<!-- table: {name}, from {folder} by make bench-docs -->"
    new = "\n".join([head, *lines, END])
    text, count = marked(name).subn(lambda _: new, text)
    if count != 1:
        raise SystemExit(f"a document has {count} places for the table {name!r} instead of one")
    return text


def main() -> None:
    """Fills all documents."""
    given = sys.argv[1:]
    folders = sorted(path for path in RESULTS.iterdir() if path.is_dir())
    if not given and not folders:
        raise SystemExit("there are no results; say: make bench")
    folder = Path(given[0]) if given else folders[-1]
    found = results(folder)
    for name, (document, table) in PLACES.items():
        path = ROOT / document
        path.write_text(filled(path.read_text(), name, folder.name, table(found)))
    if "profile" in found:
        from published.picture import drawn

        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(drawn(found["profile"]))
    print(f"filled from {folder}")


if __name__ == "__main__":
    main()
