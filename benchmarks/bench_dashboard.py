"""What do rounds pay for a dashboard that three pages look at, and how soon is a long run on the page?"""

from __future__ import annotations

import http.client
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from fedlab.processes import children
from measure import processes, report
from measure.federation import ALL_ROUNDS_S, PATHS, ServerProcess, client_flags, scratch, settings
from measure.machine import TREE
from tests.long_run import long_run
from tests.same_bits.forker import Forker

PAGES = 3
CLIENTS = 5
ENDLESS = 100_000
READ = "import http.client as h, sys; c = h.HTTPConnection(sys.argv[1]); c.request('GET', '/news')\n"
READ += "r = c.getresponse()\nprint(r.readline(), flush=True)\nwhile r.readline(): pass"
"""A page without its drawing, which is the browser's business and not the server's."""


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    blocks, rounds = (1, 3) if arguments.quick else (6, 40)
    _rounds(found, blocks, rounds)
    _opening(found, *((20, 5) if arguments.quick else (1000, 100)))
    found.finish()


def _rounds(found: report.Report, blocks: int, rounds: int) -> None:
    """Rounds of one federation in turns, with pages and without, because machines are busy now and then."""
    times: dict[str, list[float]] = {"no page": [], f"{PAGES} pages": []}
    spent = dict.fromkeys(times, 0.0)
    with scratch() as folder, closing(Forker(TREE)) as forker:
        flags = [*settings("cnn", CLIENTS, ENDLESS, "fedpvr", folder), "--run-dir", "run"]
        with closing(ServerProcess([*flags, "--dashboard", "127.0.0.1:0"], folder)) as server:
            url = server.wait_for("dashboard_opened")[1]["url"]
            address = server.wait_for("listening")[1]["address"]
            for i in range(CLIENTS):
                forker.start("fedclient", client_flags("cnn", i, address), folder / f"client-{i}.log")
            server.wait_for("round_closed", round=1)
            memory = 0.0
            for _, name in itertools.product(range(blocks), times):
                with _pages(url, PAGES if name != "no page" else 0):
                    # Rounds go on while pages open; the one that is open then belongs to neither.
                    last = server.newest("round_closed")["round"] + 1
                    server.wait_for("round_closed", ALL_ROUNDS_S, round=last + 1)
                    cpu = processes.cpu_seconds([server.pid])
                    server.wait_for("round_closed", ALL_ROUNDS_S, round=last + 1 + rounds)
                    spent[name] += processes.cpu_seconds([server.pid]) - cpu
                    memory = max(memory, _dashboard_mb(server.pid))
                closes = [server.wait_for("round_closed", round=last + k)[0] for k in range(1, rounds + 2)]
                times[name] += [b - a for a, b in itertools.pairwise(closes)]
    without, with_pages = times.values()
    for name, each in times.items():
        found.row(
            f"a round of {CLIENTS} clients that hardly train",
            pages=name,
            rounds=len(each),
            median_s=median(each),
            server_cpu_s=spent[name] / len(each),
        )
    found.row("memory of the dashboard's process", pages=PAGES, peak_mb=memory)
    found.ratio(f"round with {PAGES} pages / without", median(with_pages) / median(without), at_most=1.03)
    cpu_without, cpu_with = spent.values()
    found.ratio("server's processor time, the same", cpu_with / max(cpu_without, 1e-9))


@contextmanager
def _pages(url: str, number: int) -> Iterator[None]:
    """So many open pages, in processes of their own, once all of them have heard something."""
    command = [sys.executable, "-c", READ, url.split("/")[2]]
    pages = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(number)]
    try:
        for page in pages:
            assert page.stdout is not None
            page.stdout.readline()
        yield
    finally:
        children.stop(pages)
        for page in pages:
            assert page.stdout is not None
            page.stdout.close()


def _dashboard_mb(server: int) -> float:
    """Of the one process beside the server that is not its worker."""
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes.descendants(server)}
    return max(
        processes.memory_mb(pid, "VmHWM") for pid, text in named.items() if b"fedserver.dashboard" in text
    )


def _opening(found: report.Report, rounds: int, clients: int) -> None:
    """From asking for a page's first news to the last byte of them."""
    with tempfile.TemporaryDirectory() as name:
        run = long_run(Path(name) / "run", rounds=rounds, clients=clients)
        command = [sys.executable, "-P", "-m", "fedserver", "dashboard", str(run), "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=processes.environment(PATHS))
        try:
            assert process.stdout is not None
            host = process.stdout.readline().decode().split("/")[2]
            _get(host, "/")
            cpu, seconds = processes.cpu_seconds([process.pid]), []
            for _ in range(3):
                started = time.perf_counter()
                _get(host, "/runs.json")
                seconds.append(time.perf_counter() - started)
            found.row(
                f"a run of {rounds} rounds and {clients} clients",
                first_page_s=seconds[0],
                next_page_s=min(seconds[1:]),
                cpu_of_three_s=processes.cpu_seconds([process.pid]) - cpu,
                peak_mb=processes.memory_mb(process.pid, "VmHWM"),
            )
        finally:
            children.stop([process])


def _get(host: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(host)
    connection.request("GET", path)
    data = connection.getresponse().read()
    connection.close()
    return data


if __name__ == "__main__":
    main()
