"""The demo as a user runs it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import fedlab.demo
from common.errors import RunError
from common.events import JsonLog, Level, TextLog
from fedlab.console import show_demo
from fedlab.events import MethodAdvanced, MethodStarted
from fedlab.processes.federation import LocalFederation
from fedlab.processes.nursery import Nursery
from fedlab.progress import bars_for
from tests.processes import WAIT_S, descendants, forked_children, wait_for_end, wait_until
from tests.test_cli import invoke


@pytest.fixture
def forked() -> Iterator[Nursery]:
    """Servers and clients that start at once."""
    with forked_children() as nursery:
        yield nursery


class Short(fedlab.demo.DemoConfig):
    """Bytes do not depend on how long clients train."""

    def server_flags(self, method: str) -> list[str]:
        """An epoch of few steps."""
        return [*replace(self, local_epochs=1)._flags(method), "--batch-size", "256"]

    def _flags(self, method: str) -> list[str]:
        return super().server_flags(method)


@pytest.mark.usefixtures("forked")
def test_the_demo_compares_algorithms_by_measured_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedlab.demo, "DemoConfig", Short)
    flags = ["--clients", "2", "--rounds", "2", "--json", "--out", str(tmp_path / "demo")]
    done = invoke("fedlab", "demo", *flags)
    assert done.exit_code == 0, done.output
    rows = {row["algorithm"]: row for row in json.loads(done.stdout)}
    assert list(rows) == ["fedpvr", "fedpvr derived", "fedavg", "scaffold", "scaffold derived"]
    d, v = 4 * 38_282, 4 * 650
    assert rows["fedavg"]["bytes"]["model"] == 2 * d
    assert rows["fedavg"]["bytes"]["control"] == 0
    assert rows["fedpvr"]["bytes"]["control"] == 2 * v
    assert rows["scaffold"]["bytes"]["control"] == 2 * d
    assert rows["fedpvr derived"]["bytes"]["control"] == rows["scaffold derived"]["bytes"]["control"] == 0
    assert rows["scaffold derived"]["accuracy"] == rows["scaffold"]["accuracy"]
    assert rows["fedavg"]["ratio_to_fedavg"] == 1
    assert all(row["total_bytes"] < row["socket_bytes"] < 1.03 * row["total_bytes"] for row in rows.values())
    assert rows["fedpvr"]["ratio_to_fedavg"] == pytest.approx(1 + v / d, abs=0.005)
    assert rows["scaffold"]["ratio_to_fedavg"] == pytest.approx(2, abs=0.01)
    assert "fedpvr: round 2, accuracy" in done.stderr


def test_the_table_fits_a_narrow_terminal() -> None:
    counts = {"model": 306256.0, "buffer": 0.0, "control": 306256.0, "other": 1685.0}
    row = fedlab.demo.DemoRow("scaffold derived", 1.0, 15, counts, 614197.0, 615201.0, 1.999)
    out = io.StringIO()
    show_demo([row], Console(file=out, width=80))
    for number in ("scaffold derived", "100.0%", "306,256", "1,685", "614,197", "615,201", "1.999"):
        assert number in out.getvalue()


def test_a_terminal_gets_bars_instead_of_lines() -> None:
    out = io.StringIO()
    with bars_for(TextLog(file=out), Console(file=out, force_terminal=True, width=100)) as emit:
        emit(MethodStarted(method="fedavg", rounds=2))
        emit(MethodAdvanced(method="fedavg", round=2, accuracy=0.5))
    assert "2/2" in out.getvalue()
    assert "accuracy 50.0%" in out.getvalue()
    for log in (JsonLog(file=out), TextLog(Level.WARNING, out)):
        with bars_for(log, Console(file=out, force_terminal=True)) as emit:
            assert emit is log, "programs and those who want quiet get no bars"
    plain = TextLog(file=out)
    with bars_for(plain, Console(file=io.StringIO())) as emit:
        assert emit is plain, "nor does a file"


HEARING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])
"""
"""Starts a module. Tests that run in the background of a shell inherit that SIGINT is ignored."""
ONE = ("tests.tuned", "fedlab.demo:AT_ONCE", "1")
"""One method after the other: its processes are enough to show who is left."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    flags = ["demo", "--clients", "2", "--rounds", "500", "--out", str(tmp_path / "demo")]
    with (tmp_path / "log").open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-c", HEARING, *ONE, "fedlab", *flags], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: "round 1," in (tmp_path / "log").read_text(), "the first round")
        started = descendants(demo.pid)
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in started}
        servers = [pid for pid, command in commands.items() if "fedserver" in command]
        assert len(servers) == 1
        with_torch = {pid for pid in started if "libtorch" in Path(f"/proc/{pid}/maps").read_text()}
        assert not with_torch & {*servers}, "a server's own process gets by without torch"
        assert len(with_torch) >= 5, "a worker, two clients, who has forked them, and the nursery"
        demo.send_signal(number)
        assert demo.wait(WAIT_S) in (130, -signal.SIGKILL)
    finally:
        demo.kill()
    assert "Traceback" not in (tmp_path / "log").read_text()
    wait_for_end(*started)


def test_a_federation_whose_server_fails_says_so(tmp_path: Path, forked: Nursery) -> None:
    refused = pytest.raises(RunError, match=r"server ended with code 2: Error: --alpha must be positive")
    with refused, LocalFederation(tmp_path / "run", 2, ["--alpha", "0"], forked):
        pass
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["server.log"]
