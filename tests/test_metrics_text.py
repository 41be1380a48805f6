"""What Prometheus is told: the numbers of the run directory, with a bound on the number of series."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from common.events import unheard
from common.live.view import RunView
from common.records.run import Seat
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.metrics import document
from fedserver.metrics.families import FAMILIES
from fedserver.metrics.family import MOST_NAMES, Histogram, sample
from fedserver.metrics.text import metrics_text
from tests.processes import Federation, wait_until
from tests.test_cli import invoke

SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run that is over."""
    run = tmp_path_factory.mktemp("metrics") / "run"
    simulate(RunConfig(num_clients=3, rounds=4, local_steps=1, model="mlp"), run, unheard)
    found = RunView(run)
    found.refresh()
    return found


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """Values by name and labels; no series is there twice."""
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    found = [SAMPLE.fullmatch(line) for line in lines]
    values = {(match[1], match[2]): float(match[3]) for match in found if match is not None}
    assert len(values) == len(lines)
    return values


def test_the_numbers_are_those_of_the_run_directory(view: RunView) -> None:
    assert view.config is not None
    found, run = samples(metrics_text([view, view])), f'run="{view.config.run_id}"'
    records = list(view.rounds.values())
    assert found["fedpvr_accuracy", run] == records[-1].accuracy
    assert found["fedpvr_rounds_closed_total", run] == 4
    assert found["fedpvr_phase", f'{run},phase="finished"'] == 1
    assert found["fedpvr_updates_total", f'{run},client="client-1",outcome="accepted"'] == 4
    sent = Counter[str]()
    for (name, labels), value in found.items():
        if name == "fedpvr_payload_bytes_total":
            sent[labels] += int(value)
    assert sent.total() == sum(record.bytes.total for record in records)
    by_client = [value for (name, _), value in found.items() if name == "fedpvr_client_bytes_total"]
    assert sum(by_client) == sent.total()
    seconds = sum(record.seconds.round for record in records)
    assert found["fedpvr_round_seconds_sum", f'{run},phase="round"'] == pytest.approx(seconds)
    assert found["fedpvr_round_seconds_bucket", f'{run},phase="round",le="+Inf"'] == 4


def test_a_crowd_has_a_hundred_series_and_one_for_all_others(view: RunView) -> None:
    assert view.config is not None
    names = [f"client-{k}" for k in range(250)]
    crowd = RunView(view.path)
    crowd.refresh()
    seats = tuple(Seat(name=name, index=k, examples=1, classes=None) for k, name in enumerate(names))
    crowd.config = replace(view.config, clients=seats)
    crowd.rounds = {
        r: replace(
            record,
            clients=tuple(names[:240]),
            absent={name: "no answer by the deadline" for name in names[240:]},
            layer_drift={f"layer.{k}": float(k) for k in range(150)},
        )
        for r, record in view.rounds.items()
    }
    found = samples(metrics_text([crowd]))
    updates = {labels: value for (name, labels), value in found.items() if name == "fedpvr_updates_total"}
    assert len(updates) == MOST_NAMES + 2
    assert sum(updates.values()) == 4 * 250
    run = f'run="{view.config.run_id}"'
    assert updates[f'{run},client="other",outcome="accepted"'] == 4 * 140
    assert updates[f'{run},client="other",outcome="late"'] == 4 * 10
    assert found["fedpvr_drift_diversity", f'{run},layer="other"'] == 149


def test_labels_are_escaped_and_histograms_add_up() -> None:
    assert sample("a", {"b": 'x"\\\n'}, 0.5) == 'a{b="x\\"\\\\\\n"} 0.5\n'
    histogram = Histogram()
    for seconds in (0.1, 0.2, 9999.0):
        histogram.add(seconds)
    found = {suffix + end: value for suffix, end, value in histogram.samples()}
    assert (found["_bucket0.1"], found["_bucket0.3"], found["_bucket3000"]) == (1, 2, 2)
    assert (found["_bucket+Inf"], found["_count"]) == (3, 3)
    assert found["_sum"] == pytest.approx(9999.3)


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"fedpvr_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.text.endswith(".")


def test_the_document_has_every_metric() -> None:
    path = Path(__file__).parent.parent / "docs" / "monitoring.md"
    assert document.rewritten(path.read_text()) == path.read_text(), "say make docs"


def test_a_server_has_a_process_beside_it_that_answers_prometheus(federation: Federation) -> None:
    flags = "--model problem:network --dataset problem:data --local-steps 1 --num-clients 1 --rounds 2"
    federation.server(*flags.split(), "--prometheus", "127.0.0.1:0")
    port = int(federation.wait_for("server", r"metrics for Prometheus at http://127\.0\.0\.1:(\d+)/metrics"))

    def asked(path: str = "/metrics") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.headers["Content-Type"], reply.read()

    status, kind, _ = asked()
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert asked("/")[0] == 404

    def waits() -> bool:
        found = samples(asked()[2])
        return any(labels.endswith('phase="waiting"') and value for (_, labels), value in found.items())

    wait_until(waits, "the run waits for clients")
    federation.client("a")
    federation.finish()
    with pytest.raises(ConnectionRefusedError):
        asked()


def test_metrics_are_for_this_machine_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    refused = invoke("fedserver", "run", "--run-dir", str(tmp_path / "a"), "--prometheus", "0.0.0.0:0")
    assert refused.exit_code == 2
    assert "--prometheus 0.0.0.0:0 can be reached from other machines" in refused.stderr
    assert invoke("fedserver", "run", "--prometheus", "here").exit_code == 2
