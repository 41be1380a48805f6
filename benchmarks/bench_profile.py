"""Where does the processor time of a round with VGG-11 go, by module, at the server and at a client?

Two clients, no training: see `measure.federation`; `measure.sampled` says how time is put down to modules.
The rows are means of a round; the first round is left out.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

from fedlab.processes import children
from measure import report
from measure.federation import ALL_ROUNDS_S, HERE, PATHS, ServerProcess, client_flags, scratch, settings
from measure.processes import environment

SAMPLED = str(HERE / "sampled.py")
LEAST = 0.01
"""Share of a side's time below which a module is among the others."""
Sample = dict[str, float]


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    model, rounds = ("idle", 20) if arguments.quick else ("vgg11", 16)
    with scratch() as folder, ExitStack() as stack:
        flags = [*settings(model, 2, rounds, "fedavg", folder), "--run-dir", "run"]
        program = (SAMPLED, "server.json", "fedserver", "run")
        server = stack.enter_context(closing(ServerProcess(flags, folder, program)))
        address = server.wait_for("listening")[1]["address"]
        clients = [_client(folder, model, i, address) for i in range(2)]
        stack.callback(children.stop, clients)
        server.wait_for("round_closed", round=1)
        before = _samples(folder)
        server.wait_for("round_closed", ALL_ROUNDS_S, round=rounds - 1)
        after = _samples(folder)
        closes = [server.wait_for("round_closed", round=r)[0] for r in range(1, rounds)]
    period = median(b - a for a, b in itertools.pairwise(closes))
    found.row("a round", model=model, clients=2, rounds=rounds - 2, median_ms=period * 1e3)
    for side, earlier in before.items():
        _add(found, side, earlier, after[side], rounds - 2)
    found.finish()


def _client(folder: Path, model: str, i: int, address: str) -> subprocess.Popen[bytes]:
    with (folder / f"client-{i}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, SAMPLED, f"client-{i}.json", "fedclient", *client_flags(model, i, address)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(PATHS),
        )


def _samples(folder: Path) -> dict[str, Sample]:
    """What the server and the clients together have taken so far, by module."""
    return {side: _sum(sorted(folder.glob(f"{side}*.json"))) for side in ("server", "client")}


def _sum(paths: list[Path]) -> Sample:
    total: Counter[str] = Counter()
    for path in paths:
        total.update(json.loads(path.read_text())["seconds"])
    return dict(total)


def _add(found: report.Report, side: str, before: Sample, after: Sample, rounds: int) -> None:
    used = {name: (after[name] - before.get(name, 0.0)) / rounds for name in after}
    total = sum(used.values())
    shown = {name: seconds for name, seconds in used.items() if seconds >= LEAST * total}
    rest = total - sum(shown.values())
    for name, seconds in [*sorted(shown.items(), key=lambda item: -item[1]), ("others", rest)]:
        who = "server" if side == "server" else "clients"
        found.row(f"{who}, CPU of a round", module=name, ms=seconds * 1e3, share=seconds / total)


if __name__ == "__main__":
    main()
