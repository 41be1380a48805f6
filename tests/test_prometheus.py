"""A real Prometheus scrapes a run; promtool checks the rules and what is served. Needs both programs."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from tests.processes import Federation, wait_until

pytestmark = pytest.mark.prometheus
MONITORING = Path(__file__).parent.parent / "deploy" / "monitoring"


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended after the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.terminate()
        process.wait()


def free_port() -> int:
    """For a program that cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def promtool(*arguments: str, given: bytes = b"") -> str:
    """What it says; it must be content."""
    ended = subprocess.run(["promtool", *arguments], input=given, capture_output=True, check=False)
    said = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == 0, said
    return said


def answer(port: int, path: str) -> Any:
    """Of Prometheus's API."""
    with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=60) as reply:
        return json.load(reply)["data"]


def values(port: int, expression: str) -> dict[str, float]:
    """What a query finds, by the client or else the run."""
    found = answer(port, f"query?query={quote(expression)}")["result"]
    return {
        each["metric"].get("client", each["metric"].get("run")): float(each["value"][1]) for each in found
    }


def test_prometheus_scrapes_a_run_and_an_alert_names_who_is_gone(
    federation: Federation, prometheus: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    flags = "--model problem:network --dataset problem:data --local-steps 1 --num-clients 2 --rounds 3"
    federation.server(*flags.split(), "--prometheus", "127.0.0.1:0")
    target = federation.wait_for("server", r"metrics for Prometheus at http://(\S+)/metrics")
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    alerts = (MONITORING / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(re.sub(r"for: \d+m", "for: 0s", alerts))
    port = free_port()
    flags = f"--config.file={tmp_path}/prometheus.yml --storage.tsdb.path={tmp_path}/data"
    with (tmp_path / "prometheus.log").open("wb") as log:
        command = ["prometheus", *flags.split(), f"--web.listen-address=127.0.0.1:{port}"]
        prometheus.append(subprocess.Popen(command, stdout=log, stderr=log))
    wait_until(lambda: "Server is ready" in (tmp_path / "prometheus.log").read_text(), "Prometheus is ready")
    federation.client("a")
    federation.client("b", through=("tests.killpoint", "kill", "before training", "2"))
    federation.wait_for_death("b")
    wait_until(lambda: values(port, "fedpvr_client_up").get("b") == 0, "b is not up")
    firing = wait_until(lambda: _firing(port, "FedpvrClientGone"), "an alert for b")
    assert firing == {"b is not there"}
    assert values(port, "fedpvr_client_up")["a"] == 1
    (accuracy,) = values(port, "fedpvr_accuracy").values()
    assert accuracy == federation.rounds()[0]["accuracy"]
    sent = sum(values(port, "sum by (run) (fedpvr_payload_bytes_total)").values())
    ways = federation.rounds()[0]["bytes"].values()
    assert sent == sum(sum(count for count in way.values() if count is not None) for way in ways)
    federation.client("b")
    federation.finish()


def _firing(port: int, name: str) -> set[str]:
    found = answer(port, "alerts")["alerts"]
    summaries = [each["annotations"]["summary"] for each in found if each["labels"]["alertname"] == name]
    return {summary.partition(" (run")[0] for summary in summaries}


def test_promtool_is_content_with_rules_and_configuration() -> None:
    assert "6 rules found" in promtool("check", "rules", str(MONITORING / "alerts.yml"))
    assert "SUCCESS" in promtool("check", "config", str(MONITORING / "prometheus.yml"))


def test_promtool_is_content_with_what_is_served(federation: Federation) -> None:
    flags = "--model problem:network --dataset problem:data --local-steps 1 --num-clients 1 --rounds 1"
    federation.server(*flags.split())
    federation.client("a")
    federation.finish()
    from common.live.view import RunView
    from fedserver.metrics.text import refreshed

    text = refreshed([RunView(federation.folder / "run")])
    assert promtool("check", "metrics", given=text) == ""
